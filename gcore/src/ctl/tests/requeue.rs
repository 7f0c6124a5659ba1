//! Jobs that are over and are put back: same id, next attempt; and what is not put back, and why.

use crate::ctl::tests::world::check;
use expect_test::expect;

#[test]
fn a_job_that_is_over_waits_again_and_runs_as_its_next_attempt() {
    check(
        "node n1 h100:2
         submit user=alice gpus=1 time=60
         submit user=alice gpus=1 time=60
         plan
         n1 running 1-1
         n1 clean 1-1 7
         cancel 2 user=alice
         n1 stopped 2-1
         show
         requeue 1 user=alice
         requeue 2 user=alice held
         show
         requeue 1 user=alice
         wait 1
         plan
         show
         n1 clean 1-2 0
         cancel 2 user=alice
         show
         restart
         requeue 1 user=alice
         plan
         show",
        expect![[r#"
            job 1
            job 2
            1 alice FAILED 7:0
            2 alice CANCELLED 0:0 (alice)
            1 alice PENDING None: 
            2 alice PENDING JobHeldUser: held by user:alice HELD user:alice (requeued and held)
            refused: job 1 waits in the queue, so there is nothing to take back.
            1 alice RUNNING 1-2 on n1[0]
            2 alice PENDING JobHeldUser: held by user:alice HELD user:alice (requeued and held)
            1 alice COMPLETED 0:0
            2 alice CANCELLED 0:0 (alice) HELD user:alice (requeued and held)
            1 alice PENDING ReqNodeNotAvail: nodes it needs are not available (n1: not responding)
            2 alice CANCELLED 0:0 (alice) HELD user:alice (requeued and held)
        "#]],
    );
}

#[test]
fn a_job_whose_last_run_is_being_cleaned_up_goes_back_when_that_is_done() {
    check(
        "node n1 h100:1
         submit user=alice gpus=1 time=60
         plan
         n1 running 1-1
         n1 exits 1-1 0
         requeue 1 user=alice
         requeue 1 user=alice
         show
         n1 clean 1-1 0
         show
         wait 1
         plan
         n1 exits 1-2 0
         requeue 1 user=alice held
         cancel 1 user=alice
         n1 clean 1-2 0
         show",
        expect![[r#"
            job 1
            refused: job 1 waits in the queue, so there is nothing to take back.
            1 alice COMPLETING 1-1 on n1[0]
            1 alice PENDING None: 
            1 alice CANCELLED 0:0 (alice) HELD user:alice (requeued and held)
        "#]],
    );
}

#[test]
fn what_may_not_run_again_is_refused_by_name_and_by_right() {
    check(
        "node n1 h100:1
         config age=100
         submit user=alice gpus=1 time=60 requeue=no
         plan
         n1 clean 1-1 0
         requeue 1 user=alice
         update 1 user=alice name=other
         update 1 user=bob requeue=yes
         update 1 user=alice requeue=yes
         requeue 1 user=bob
         requeue 1 user=alice
         wait 1
         plan
         n1 clean 1-2 0
         wait 200
         requeue 1 user=alice
         show",
        expect![[r#"
            job 1
            refused: job 1 was submitted with --no-requeue. If it may run again: gadm job update 1 Requeue=1, and then requeue it.
            refused: job 1 is COMPLETED; nothing of it can change any more.
            refused: job 1 belongs to alice; you are bob. Ask them or an operator.
            refused: job 1 belongs to alice; you are bob. Ask them or an operator.
            refused: no job 1 in the queue. If it was there, it is over: see `gacct -j 1`. A job can be requeued for 100 s after its end; after that, submit it again with gsub.
        "#]],
    );
}

#[test]
fn dependants_of_a_job_that_runs_again_keep_what_its_first_end_gave_them() {
    check(
        "node n1 h100:2
         submit user=alice gpus=1 time=60
         submit user=alice time=60 dep=afternotok:1
         submit user=alice time=60 dep=afterok:1
         submit user=alice time=60 dep=afterok:1 kill=yes
         plan
         n1 clean 1-1 7
         requeue 1 user=alice
         submit user=alice time=60 dep=afterok:1
         wait 1
         plan
         show
         requeue 4 user=alice
         n1 clean 1-2 0
         wait 1
         plan
         show",
        expect![[r#"
            job 1
            job 2
            job 3
            job 4
            job 5
            1 alice RUNNING 1-2 on n1[0]
            2 alice RUNNING 2-1 on n1[]
            3 alice PENDING DependencyNeverSatisfied: its dependency can never be met: job 1 ended FAILED
            4 alice CANCELLED 0:0 (its dependency can never be met: job 1 ended FAILED) (system)
            5 alice PENDING Dependency: waits for job 1 (RUNNING) to end well
            1 alice COMPLETED 0:0
            2 alice RUNNING 2-1 on n1[]
            3 alice PENDING DependencyNeverSatisfied: its dependency can never be met: job 1 ended FAILED
            4 alice RUNNING 4-1 on n1[]
            5 alice RUNNING 5-1 on n1[]
        "#]],
    );
}

#[test]
fn one_that_never_ran_waits_again_for_what_it_waited_for_and_not_for_itself() {
    check(
        "node n1 h100:2
         submit user=alice gpus=1 time=60
         submit user=alice time=60 dep=afterok:1
         plan
         cancel 2 user=alice
         requeue 2 user=alice
         plan
         show
         cancel 2 user=alice
         n1 clean 1-1 0
         config age=1
         wait 10
         past 1 COMPLETED
         requeue 2 user=alice
         submit user=alice gpus=1 time=60 begin=1000
         submit user=alice array=0-1 time=60 dep=afterany:3
         update 4_0 user=alice dep=none
         plan
         cancel 4_1 user=alice
         update 3 user=alice dep=afterany:4
         requeue 4_1 user=alice
         show",
        expect![[r#"
            job 1
            job 2
            1 alice RUNNING 1-1 on n1[0]
            2 alice PENDING Dependency: waits for job 1 (RUNNING) to end well
            refused: no job 2 in the queue. If it was there, it is over: see `gacct -j 2`. A job can be requeued for 1 s after its end; after that, submit it again with gsub.
            job 3
            job 4
            refused: --dependency afterany:3: what job 4 would wait for waits for it.
            3 alice PENDING BeginTime: not before 1970-01-12T14:03:30Z
            4_0 alice RUNNING 4-1 on n1[]
        "#]],
    );
}

#[test]
fn a_singleton_that_runs_again_does_not_run_beside_a_later_one() {
    check(
        "node n1 h100:2
         submit user=alice name=one time=60 dep=singleton
         plan
         n1 clean 1-1 0
         submit user=alice name=one time=60 dep=singleton
         plan
         n1 running 2-1
         requeue 1 user=alice
         wait 1
         plan
         show
         n1 clean 2-1 0
         wait 1
         plan
         show",
        expect![[r#"
            job 1
            job 2
            1 alice PENDING Dependency: waits for job 2 (RUNNING), of the same name and user, to end
            2 alice RUNNING 2-1 on n1[]
            1 alice RUNNING 1-2 on n1[]
            2 alice COMPLETED 0:0
        "#]],
    );
}

#[test]
fn tasks_of_an_array_go_back_one_by_one_or_all_that_are_over() {
    check(
        "node n1 h100:2
         submit user=alice gpus=1 time=60 array=0-4
         plan
         n1 clean 1-1 0
         n1 clean 2-1 3
         cancel 1_4 user=alice
         cancel 1 user=alice
         show
         requeue 1_3 user=bob
         requeue 1_3 user=alice held
         show
         requeue 1_1 user=alice
         show
         requeue 1 user=alice
         requeue 1 user=alice
         show
         wait 1
         plan
         show
         requeue 1_9 user=alice",
        expect![[r#"
            job 1
            1_0 alice COMPLETED 0:0
            1_1 alice FAILED 3:0
            refused: job 1 belongs to alice; you are bob. Ask them or an operator.
            1_0 alice COMPLETED 0:0
            1_1 alice FAILED 3:0
            1_3 alice PENDING JobHeldUser: held by user:alice HELD user:alice (requeued and held)
            1_0 alice COMPLETED 0:0
            1_1 alice PENDING None: 
            1_3 alice PENDING JobHeldUser: held by user:alice HELD user:alice (requeued and held)
            refused: job 1 waits in the queue, so there is nothing to take back.
            1_[2,4] alice PENDING None: 
            1_0 alice PENDING None: 
            1_1 alice PENDING None: 
            1_3 alice PENDING JobHeldUser: held by user:alice HELD user:alice (requeued and held)
            1_[4] alice PENDING Resources: needs 1 GPU and 1 CPU on one node; most is free on n1: 0 GPUs, 62 CPUs and 0 of memory; room is expected by 1970-01-12T13:47:41Z
            1_0 alice RUNNING 1-2 on n1[0]
            1_1 alice PENDING Priority: needs 1 GPU and 1 CPU on one node; jobs of higher priority wait for such resources too
            1_2 alice RUNNING 3-1 on n1[1]
            1_3 alice PENDING JobHeldUser: held by user:alice HELD user:alice (requeued and held)
            refused: job 1 has no array task 9; its tasks are 0-4.
        "#]],
    );
}

#[test]
fn what_is_put_back_counts_among_the_jobs_in_the_queue() {
    check(
        "node n1 h100:1
         qos normal user_queue=3
         submit user=alice time=60 array=0-2
         plan
         n1 clean 1-1 0
         n1 clean 2-1 0
         cancel 1 user=alice
         n1 stopped 3-1
         submit user=alice time=60
         requeue 1 user=alice
         requeue 1_1 user=alice
         requeue 1_2 user=alice
         submit user=alice time=60
         requeue 1
         show",
        expect![[r#"
            job 1
            job 4
            refused: user alice in QOS normal may have 3 jobs in the queue and running; there are 1, and this would be 3 more. Wait until some have ended.
            refused: user alice in QOS normal may have 3 jobs in the queue and running; there are 3, and this would be 1 more. Wait until some have ended.
            1_0 alice PENDING None: 
            1_1 alice PENDING None: 
            1_2 alice PENDING None: 
            4 alice PENDING None: 
        "#]],
    );
}

#[test]
fn a_task_that_is_put_back_held_and_can_never_start_is_cancelled_again() {
    check(
        "node n1 h100:1
         submit user=alice time=60 array=0-1
         cancel 1_1
         submit user=alice time=60 array=0-1 dep=aftercorr:1 kill=yes
         show
         requeue 3_1 held user=alice
         requeue 4 held user=alice
         show
         update 3 dep=none user=alice
         requeue 3_1 held user=alice
         show",
        expect![[r#"
            job 1
            job 3
            1_[0] alice PENDING None: 
            3_[0] alice PENDING None: 
            1_[0] alice PENDING None: 
            3_[0] alice PENDING None: 
            1_[0] alice PENDING None: 
            3_[0] alice PENDING None: 
            3_1 alice PENDING JobHeldUser: held by user:alice HELD user:alice (requeued and held)
        "#]],
    );
}

#[test]
fn a_job_that_ran_after_any_of_two_waits_for_neither_when_it_is_put_back() {
    check(
        "node n1 h100:1
         submit user=alice time=60
         submit user=alice time=60 dep=afterany:1?afterok:1
         plan
         n1 running 1-1
         n1 clean 1-1 0
         plan
         n1 running 2-1
         n1 clean 2-1 7
         requeue 2 user=alice
         show
         wait 1
         plan
         show",
        expect![[r#"
            job 1
            job 2
            1 alice COMPLETED 0:0
            2 alice PENDING None: 
            1 alice COMPLETED 0:0
            2 alice RUNNING 2-2 on n1[]
        "#]],
    );
}
