//! Dependencies: what a dependant waits for, and what follows when the other job ends, is requeued, cancelled
//! or forgotten.

use crate::ctl::tests::world::{World, check};
use expect_test::expect;

#[test]
fn each_kind_waits_for_its_own_end_of_the_other() {
    check(
        "node n1 h100:8
         submit user=alice gpus=1 time=60
         submit user=alice gpus=1 time=60
         submit user=alice time=60 dep=afterok:1
         submit user=alice time=60 dep=afternotok:1
         submit user=alice time=60 dep=afterany:1
         submit user=alice time=60 dep=after:1
         submit user=alice time=60 dep=afterok:1,afterok:2
         submit user=alice time=60 dep=afterok:1?afterok:2
         plan
         show
         n1 running 1-1
         plan
         show
         n1 exits 1-1 0
         plan
         show
         n1 clean 1-1 0
         plan
         show",
        expect![[r#"
            job 1
            job 2
            job 3
            job 4
            job 5
            job 6
            job 7
            job 8
            1 alice RUNNING 1-1 on n1[0]
            2 alice RUNNING 2-1 on n1[1]
            3 alice PENDING Dependency: waits for job 1 (RUNNING) to end well
            4 alice PENDING Dependency: waits for job 1 (RUNNING) to fail
            5 alice PENDING Dependency: waits for job 1 (RUNNING) to end
            6 alice PENDING Dependency: waits for job 1 (RUNNING) to begin
            7 alice PENDING Dependency: waits for job 1 (RUNNING) to end well, and for 1 more
            8 alice PENDING Dependency: waits for job 1 (RUNNING) to end well, or for 1 more
            1 alice RUNNING 1-1 on n1[0]
            2 alice RUNNING 2-1 on n1[1]
            3 alice PENDING Dependency: waits for job 1 (RUNNING) to end well
            4 alice PENDING Dependency: waits for job 1 (RUNNING) to fail
            5 alice PENDING Dependency: waits for job 1 (RUNNING) to end
            6 alice RUNNING 6-1 on n1[]
            7 alice PENDING Dependency: waits for job 1 (RUNNING) to end well, and for 1 more
            8 alice PENDING Dependency: waits for job 1 (RUNNING) to end well, or for 1 more
            1 alice COMPLETING 1-1 on n1[0]
            2 alice RUNNING 2-1 on n1[1]
            3 alice PENDING Dependency: waits for job 1 (COMPLETING) to end well
            4 alice PENDING Dependency: waits for job 1 (COMPLETING) to fail
            5 alice PENDING Dependency: waits for job 1 (COMPLETING) to end
            6 alice RUNNING 6-1 on n1[]
            7 alice PENDING Dependency: waits for job 1 (COMPLETING) to end well, and for 1 more
            8 alice PENDING Dependency: waits for job 1 (COMPLETING) to end well, or for 1 more
            1 alice COMPLETED 0:0
            2 alice RUNNING 2-1 on n1[1]
            3 alice RUNNING 3-1 on n1[]
            4 alice PENDING DependencyNeverSatisfied: its dependency can never be met: job 1 ended COMPLETED
            5 alice RUNNING 5-1 on n1[]
            6 alice RUNNING 6-1 on n1[]
            7 alice PENDING Dependency: waits for job 2 (RUNNING) to end well
            8 alice RUNNING 8-1 on n1[]
        "#]],
    );
}

#[test]
fn a_failure_lets_afternotok_go_and_leaves_afterok_as_impossible() {
    check(
        "node n1 h100:8
         submit user=alice gpus=1 time=60
         submit user=alice time=60 dep=afterok:1
         submit user=alice time=60 dep=afterok:1 kill=yes
         submit user=alice time=60 dep=afterok:3
         submit user=alice time=60 dep=afternotok:1
         submit user=alice time=60 dep=afterok:1?afterany:1
         plan
         n1 running 1-1
         n1 clean 1-1 7
         plan
         show
         config kill=yes
         submit user=alice time=60 dep=afterok:1
         submit user=alice time=60 dep=afterok:1 kill=no
         submit user=alice array=0-1 time=60 dep=afterok:1
         update 2 user=alice dep=none
         plan
         show",
        expect![[r#"
            job 1
            job 2
            job 3
            job 4
            job 5
            job 6
            1 alice FAILED 7:0
            2 alice PENDING DependencyNeverSatisfied: its dependency can never be met: job 1 ended FAILED
            3 alice CANCELLED 0:0 (its dependency can never be met: job 1 ended FAILED) (system)
            4 alice PENDING DependencyNeverSatisfied: its dependency can never be met: job 3 ended CANCELLED
            5 alice RUNNING 5-1 on n1[]
            6 alice RUNNING 6-1 on n1[]
            job 7
              note: --dependency afterok:1: job 1 ended FAILED, so it is cancelled
            job 8
              note: --dependency afterok:1: job 1 ended FAILED, so it never starts
            job 9
              note: --dependency afterok:1: job 1 ended FAILED, so it is cancelled
            1 alice FAILED 7:0
            2 alice RUNNING 2-1 on n1[]
            3 alice CANCELLED 0:0 (its dependency can never be met: job 1 ended FAILED) (system)
            4 alice PENDING DependencyNeverSatisfied: its dependency can never be met: job 3 ended CANCELLED
            5 alice RUNNING 5-1 on n1[]
            6 alice RUNNING 6-1 on n1[]
            7 alice CANCELLED 0:0 (its dependency can never be met: job 1 ended FAILED) (system)
            8 alice PENDING DependencyNeverSatisfied: its dependency can never be met: job 1 ended FAILED
        "#]],
    );
}

#[test]
fn a_requeue_of_the_other_keeps_all_waiting() {
    check(
        "node n1 h100:1
         submit user=alice gpus=1 time=60
         submit user=alice time=60 dep=afterany:1
         plan
         n1 running 1-1
         requeue 1 user=alice
         n1 stopped 1-1
         plan
         show
         n1 clean 1-2 0
         plan
         show",
        expect![[r#"
            job 1
            job 2
            1 alice RUNNING 1-2 on n1[0]
            2 alice PENDING Dependency: waits for job 1 (RUNNING) to end
            1 alice COMPLETED 0:0
            2 alice RUNNING 2-1 on n1[]
        "#]],
    );
}

#[test]
fn after_counts_its_minutes_from_the_start_or_the_cancellation() {
    check(
        "node n1 h100:8
         submit user=alice gpus=1 time=600
         submit user=alice time=60 dep=after:1+2
         plan
         show
         wait 100
         n1 running 1-1
         plan
         show
         wait 119
         plan
         restart
         n1 hello 1-1=running
         plan
         show
         wait 1
         plan
         show
         submit user=alice held
         submit user=alice time=60 dep=after:3
         cancel 3 user=alice
         plan
         show",
        expect![[r#"
            job 1
            job 2
            1 alice RUNNING 1-1 on n1[0]
            2 alice PENDING Dependency: waits for 2 min after job 1 (RUNNING) begins
            1 alice RUNNING 1-1 on n1[0]
            2 alice PENDING Dependency: waits for 1970-01-12T13:50:20Z, 2 min after job 1 (RUNNING) began
            1 alice RUNNING 1-1 on n1[0]
            2 alice PENDING Dependency: waits for 1970-01-12T13:50:20Z, 2 min after job 1 (RUNNING) began
            1 alice RUNNING 1-1 on n1[0]
            2 alice RUNNING 2-1 on n1[]
            job 3
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            job 4
            1 alice RUNNING 1-1 on n1[0]
            2 alice RUNNING 2-1 on n1[]
            3 alice CANCELLED 0:0 (alice) HELD user:alice (submitted with --hold)
            4 alice RUNNING 4-1 on n1[]
        "#]],
    );
}

#[test]
fn a_whole_array_counts_when_all_its_tasks_do() {
    check(
        "node n1 h100:8
         submit user=alice gpus=1 time=60 array=0-2%2
         submit user=alice time=60 dep=afterok:1
         submit user=alice time=60 dep=after:1
         submit user=alice time=60 dep=afterok:1_1
         submit user=alice time=60 dep=afternotok:1
         plan
         n1 running 1-1
         n1 running 2-1
         n1 clean 2-1 0
         plan
         show
         n1 running 3-1
         n1 clean 3-1 0
         wait 100
         plan
         show
         n1 clean 1-1 0
         plan
         show",
        expect![[r#"
            job 1
            job 4
            job 5
            job 6
            job 7
            1_0 alice RUNNING 1-1 on n1[0]
            1_1 alice COMPLETED 0:0
            1_2 alice RUNNING 3-1 on n1[1]
            4 alice PENDING Dependency: waits for array 1 (2 of 3 tasks not over) to end well
            5 alice PENDING Dependency: waits for array 1 (2 of 3 tasks not over) to begin
            6 alice RUNNING 6-1 on n1[]
            7 alice PENDING Dependency: waits for array 1 (2 of 3 tasks not over) to fail
            1_0 alice RUNNING 1-1 on n1[0]
            4 alice PENDING Dependency: waits for array 1 (1 of 3 tasks not over) to end well
            5 alice RUNNING 5-1 on n1[]
            6 alice RUNNING 6-1 on n1[]
            7 alice PENDING Dependency: waits for array 1 (1 of 3 tasks not over) to fail
            1_0 alice COMPLETED 0:0
            4 alice RUNNING 4-1 on n1[]
            5 alice RUNNING 5-1 on n1[]
            6 alice RUNNING 6-1 on n1[]
            7 alice PENDING DependencyNeverSatisfied: its dependency can never be met: all tasks of array 1 ended well
        "#]],
    );
}

#[test]
fn a_task_that_failed_spoils_the_array_even_after_it_was_forgotten() {
    check(
        "node n1 h100:8
         submit user=alice gpus=1 time=600 array=0-1
         submit user=alice time=60 dep=afternotok:1
         plan
         n1 running 1-1
         n1 running 2-1
         n1 clean 1-1 3
         wait 100
         submit user=alice time=60 dep=afterok:1
         plan
         show
         n1 clean 2-1 0
         plan
         show",
        expect![[r#"
            job 1
            job 3
            job 4
            1_1 alice RUNNING 2-1 on n1[1]
            3 alice PENDING Dependency: waits for array 1 (1 of 2 tasks not over) to fail
            4 alice PENDING Dependency: waits for array 1 (1 of 2 tasks not over) to end well
            1_1 alice COMPLETED 0:0
            3 alice RUNNING 3-1 on n1[]
            4 alice PENDING DependencyNeverSatisfied: its dependency can never be met: not all tasks of array 1 ended well
        "#]],
    );
}

#[test]
fn an_array_that_is_over_is_said_to_be() {
    check(
        "node n1 h100:8
         submit user=alice gpus=1 time=600 array=0-1
         submit user=alice time=60 dep=after:1+5
         plan
         n1 running 1-1
         n1 running 2-1
         n1 clean 1-1 0
         plan
         show
         n1 clean 2-1 0
         plan
         show",
        expect![[r#"
            job 1
            job 3
            1_0 alice COMPLETED 0:0
            1_1 alice RUNNING 2-1 on n1[1]
            3 alice PENDING Dependency: waits for 1970-01-12T13:51:40Z, 5 min after array 1 (1 of 2 tasks not over) began
            1_0 alice COMPLETED 0:0
            1_1 alice COMPLETED 0:0
            3 alice PENDING Dependency: waits for 1970-01-12T13:51:40Z, 5 min after array 1 (over) began
        "#]],
    );
}

#[test]
fn aftercorr_goes_task_by_task() {
    check(
        "node n1 h100:8
         submit user=alice gpus=1 time=60 array=0-3%3
         submit user=alice gpus=1 time=60 array=0-3 dep=aftercorr:1
         hold 5_1 user=alice
         plan
         show
         n1 clean 1-1 0
         n1 clean 2-1 0
         plan
         show
         n1 clean 3-1 1
         n1 clean 4-1 0
         plan
         release 5_1 user=alice
         plan
         show
         submit user=alice time=60 array=0-4 dep=aftercorr:1
         submit user=alice time=60 array=0-1 kill=yes dep=aftercorr:1
         plan
         wait 100
         submit user=alice time=60 array=2-3 kill=yes dep=aftercorr:1",
        expect![[r#"
            job 1
            job 5
            1_[3%3] alice PENDING JobArrayTaskLimit: the array allows 3 at once, and 3 of its tasks run
            5_[0,2-3] alice PENDING Dependency: waits for the task of the same index of array 1 (4 of 4 tasks not over) to end well
            1_0 alice RUNNING 1-1 on n1[0]
            1_1 alice RUNNING 2-1 on n1[1]
            1_2 alice RUNNING 3-1 on n1[2]
            5_1 alice PENDING JobHeldUser: held by user:alice HELD user:alice (because)
            5_[2-3] alice PENDING Dependency: waits for the task of the same index of array 1 (2 of 4 tasks not over) to end well
            1_0 alice COMPLETED 0:0
            1_1 alice COMPLETED 0:0
            1_2 alice RUNNING 3-1 on n1[2]
            1_3 alice RUNNING 4-1 on n1[0]
            5_0 alice RUNNING 5-1 on n1[1]
            5_1 alice PENDING JobHeldUser: held by user:alice HELD user:alice (because)
            5_[2] alice PENDING DependencyNeverSatisfied: their partners in the other array did not end well: these tasks can never start
            1_0 alice COMPLETED 0:0
            1_1 alice COMPLETED 0:0
            1_2 alice FAILED 1:0
            1_3 alice COMPLETED 0:0
            5_0 alice RUNNING 5-1 on n1[1]
            5_1 alice RUNNING 6-1 on n1[2]
            5_3 alice RUNNING 8-1 on n1[0]
            refused: --dependency aftercorr:1: task 4 has no partner there; array 1 has 0-3%3. Submit the same indices, or use afterok:1 to wait for all of it.
            job 9
            refused: --dependency: job 1 is neither in the queue nor in the records of finished jobs.
        "#]],
    );
}

#[test]
fn aftercorr_cancels_the_tasks_whose_partners_failed_where_asked() {
    check(
        "node n1 h100:8
         submit user=alice gpus=1 time=60 array=0-3
         submit user=alice gpus=1 time=60 array=0-3%1 kill=yes dep=aftercorr:1
         plan
         n1 clean 1-1 0
         n1 clean 3-1 1
         n1 clean 2-1 0
         plan
         show
         cancel 1 user=alice
         n1 stopped 4-1
         n1 clean 5-1 0
         plan
         n1 clean 6-1 0
         show",
        expect![[r#"
            job 1
            job 5
            5_[1,3%1] alice PENDING JobArrayTaskLimit: the array allows 1 at once, and 1 of its tasks run
            1_0 alice COMPLETED 0:0
            1_1 alice COMPLETED 0:0
            1_2 alice FAILED 1:0
            1_3 alice RUNNING 4-1 on n1[3]
            5_0 alice RUNNING 5-1 on n1[0]
            1_0 alice COMPLETED 0:0
            1_1 alice COMPLETED 0:0
            1_2 alice FAILED 1:0
            1_3 alice CANCELLED 0:0 (alice)
            5_0 alice COMPLETED 0:0
            5_1 alice COMPLETED 0:0
        "#]],
    );
}

#[test]
fn jobs_of_one_name_go_one_after_the_other() {
    check(
        "node n1 h100:8
         submit user=alice name=a time=60 dep=singleton
         submit user=alice name=a time=60 dep=singleton
         submit user=alice name=b time=60 dep=singleton
         submit user=bob name=a time=60 dep=singleton
         submit user=alice name=a time=60 dep=singleton
         submit user=alice name=a time=60 array=0-1 dep=singleton
         plan
         show
         cancel 2 user=alice
         plan
         show
         n1 clean 1-1 1
         plan
         show
         n1 clean 5-1 0
         plan
         show",
        expect![[r#"
            job 1
            job 2
            job 3
            job 4
            job 5
            job 6
            6_[0-1] alice PENDING Dependency: waits for job 5 (PENDING), of the same name and user, to end
            1 alice RUNNING 1-1 on n1[]
            2 alice PENDING Dependency: waits for job 1 (RUNNING), of the same name and user, to end
            3 alice RUNNING 3-1 on n1[]
            4 bob RUNNING 4-1 on n1[]
            5 alice PENDING Dependency: waits for job 2 (PENDING), of the same name and user, to end
            6_[0-1] alice PENDING Dependency: waits for job 5 (PENDING), of the same name and user, to end
            1 alice RUNNING 1-1 on n1[]
            2 alice CANCELLED 0:0 (alice)
            3 alice RUNNING 3-1 on n1[]
            4 bob RUNNING 4-1 on n1[]
            5 alice PENDING Dependency: waits for job 1 (RUNNING), of the same name and user, to end
            6_[0-1] alice PENDING Dependency: waits for job 5 (RUNNING), of the same name and user, to end
            1 alice FAILED 1:0
            2 alice CANCELLED 0:0 (alice)
            3 alice RUNNING 3-1 on n1[]
            4 bob RUNNING 4-1 on n1[]
            5 alice RUNNING 5-1 on n1[]
            1 alice FAILED 1:0
            2 alice CANCELLED 0:0 (alice)
            3 alice RUNNING 3-1 on n1[]
            4 bob RUNNING 4-1 on n1[]
            5 alice COMPLETED 0:0
            6_0 alice RUNNING 6-1 on n1[]
            6_1 alice RUNNING 7-1 on n1[]
        "#]],
    );
}

#[test]
fn what_never_existed_and_circles_are_refused() {
    check(
        "node n1 h100:8
         submit user=alice held
         submit user=alice array=0-3 held
         submit user=alice dep=afterok:6
         submit user=alice dep=afterok:99
         submit user=alice dep=afterok:2_9
         submit user=alice dep=afterok:1_0
         submit user=alice dep=afterok:1
         submit user=alice dep=afterok:6
         update 1 user=alice dep=afterok:1
         update 1 user=alice dep=afterok:7
         update 1 user=alice dep=after:2
         update 2_3 user=alice dep=afterok:6
         update 2_3 user=alice dep=afterok:2_2
         update 2_2 user=alice dep=afterok:2
         update 2 user=alice dep=afterok:2_2
         plan
         show",
        expect![[r#"
            job 1
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            job 2
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            refused: --dependency: there has never been a job 6; the next will be 6.
            refused: --dependency: there has never been a job 99; the next will be 6.
            refused: --dependency: array 2 has no task 9; it has 0-3.
            refused: --dependency: job 1 is no array; leave out _0.
            job 6
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            job 7
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            refused: --dependency afterok:1: in the end that waits for job 1 itself, so neither could ever start.
            refused: --dependency afterok:7: in the end that waits for job 1 itself, so neither could ever start.
            refused: --dependency afterok:2: in the end that waits for job 4 itself, so neither could ever start.
            refused: --dependency afterok:2_2: in the end that waits for job 2 itself, so neither could ever start.
            2_[0-2] alice PENDING JobHeldUser: held by user:alice
            1 alice PENDING JobHeldUser: held by user:alice HELD user:alice (submitted with --hold)
            2_3 alice PENDING JobHeldUser: held by user:alice HELD user:alice (submitted with --hold)
            6 alice PENDING Dependency: waits for job 1 (PENDING) to end well
            7 alice PENDING Dependency: waits for job 6 (PENDING) to end well
        "#]],
    );
}

#[test]
fn what_was_forgotten_is_asked_of_the_store() {
    check(
        "node n1 h100:8
         config age=10
         submit user=alice gpus=1 time=60
         submit user=alice gpus=1 time=60 array=0-2
         plan
         n1 clean 1-1 0
         n1 clean 2-1 0
         n1 clean 3-1 1
         n1 clean 4-1 0
         wait 100
         show
         submit user=alice time=60 dep=afterok:1
         past 1 COMPLETED
         past 2 FAILED tasks=0-2 well=0,2
         submit user=alice time=60 dep=afterok:1
         submit user=alice time=60 dep=afterok:2
         submit user=alice time=60 dep=afternotok:2
         submit user=alice time=60 dep=afterok:2_2
         submit user=alice time=60 dep=afterok:2_1
         submit user=alice time=60 dep=afterok:2_5
         submit user=alice time=60 array=0-2 dep=aftercorr:2
         plan
         show",
        expect![[r#"
            job 1
            job 2
            refused: --dependency: job 1 is neither in the queue nor in the records of finished jobs.
            job 5
            job 6
              note: --dependency afterok:2: not all tasks of array 2 ended well, so it never starts
            job 7
            job 8
            job 9
              note: --dependency afterok:2_1: task 3 was cancelled or did not end well, so it never starts
            refused: --dependency: array 2 has no task 5; it has 0-2.
            job 10
            10_[1] alice PENDING DependencyNeverSatisfied: their partners in the other array did not end well: these tasks can never start
            5 alice RUNNING 5-1 on n1[]
            6 alice PENDING DependencyNeverSatisfied: its dependency can never be met: not all tasks of array 2 ended well
            7 alice RUNNING 7-1 on n1[]
            8 alice RUNNING 8-1 on n1[]
            9 alice PENDING DependencyNeverSatisfied: its dependency can never be met: task 3 was cancelled or did not end well
            10_0 alice RUNNING 10-1 on n1[]
            10_2 alice RUNNING 12-1 on n1[]
        "#]],
    );
}

#[test]
fn a_deadline_ends_what_cannot_end_in_time_and_shortens_what_can() {
    check(
        "node n1 h100:1
         submit user=alice gpus=1 time=100 deadline=50
         submit user=alice gpus=1 time=100 deadline=500
         plan
         submit user=alice gpus=1 time=100 deadline=150
         submit user=alice gpus=1 time=100 time_min=20 deadline=150
         submit user=alice gpus=1 time=100 array=0-3 deadline=150
         plan
         show
         wait 50
         show
         wait 1
         show
         n1 clean 1-1 0
         wait 29
         plan
         show
         n1 told",
        expect![[r#"
            refused: it cannot end by its deadline 1970-01-12T13:47:30Z any more: it needs 1:40. Ask for less --time, or allow less with --time-min.
            job 1
            job 2
            job 3
            job 4
            4_[0-3] alice PENDING Priority: needs 1 GPU and 1 CPU on one node; jobs of higher priority wait for such resources too
            1 alice RUNNING 1-1 on n1[0]
            2 alice PENDING Resources: needs 1 GPU and 1 CPU on one node; most is free on n1: 0 GPUs, 63 CPUs and 0 of memory; room is expected by 1970-01-12T13:48:20Z
            3 alice PENDING Priority: needs 1 GPU and 1 CPU on one node; jobs of higher priority wait for such resources too
            4_[0-3] alice PENDING Priority: needs 1 GPU and 1 CPU on one node; jobs of higher priority wait for such resources too
            1 alice RUNNING 1-1 on n1[0]
            2 alice PENDING Resources: needs 1 GPU and 1 CPU on one node; most is free on n1: 0 GPUs, 63 CPUs and 0 of memory; room is expected by 1970-01-12T13:48:20Z
            3 alice PENDING Priority: needs 1 GPU and 1 CPU on one node; jobs of higher priority wait for such resources too
            1 alice RUNNING 1-1 on n1[0]
            2 alice DEADLINE 0:0 (it cannot end by its deadline 1970-01-12T13:49:10Z any more: it needs 1:40) (system)
            3 alice PENDING Priority: needs 1 GPU and 1 CPU on one node; jobs of higher priority wait for such resources too
            1 alice COMPLETED 0:0
            2 alice DEADLINE 0:0 (it cannot end by its deadline 1970-01-12T13:49:10Z any more: it needs 1:40) (system)
            3 alice RUNNING 3-1 on n1[0]
            n1 is told: 3-1 Run
        "#]],
    );
}

#[test]
fn tasks_that_a_deadline_ended_are_not_those_that_were_cancelled_and_did_not_end_well() {
    let mut world = World::new();
    let mut play = |lines: &str| {
        lines.lines().for_each(|line| world.line(line.trim()));
        let array = world.state.arrays.values().next().expect("the array");
        format!(
            "dropped: {}; late: {}; by {:?}\n{}",
            array.not_late(),
            array.dropped.late,
            array.dropped.cancelled_by,
            std::mem::take(&mut world.out)
        )
    };
    let waiting = "node n1 h100:1
         submit user=alice gpus=1 time=100
         submit user=alice gpus=1 time=100 array=0-3 deadline=150
         submit user=bob gpus=1 time=10 dep=afternotok:2
         submit user=bob gpus=1 time=10 dep=afterok:2
         submit user=bob gpus=1 time=10 dep=afterany:2_1
         cancel 2_0
         plan";
    play(waiting);
    let told = play(
        "wait 60
         n1 clean 1-1 0
         plan
         show",
    );
    expect![[r#"
        dropped: 0; late: 1-3; by Some("root")
        1 alice COMPLETED 0:0
        6 bob RUNNING 6-1 on n1[0]
        7 bob PENDING DependencyNeverSatisfied: its dependency can never be met: not all tasks of array 2 ended well
        8 bob PENDING Resources: needs 1 GPU and 1 CPU on one node; most is free on n1: 0 GPUs, 63 CPUs and 0 of memory; room is expected by 1970-01-12T13:47:50Z
    "#]].assert_eq(&told);
    // A requeue takes back both kinds.
    expect![[r#"
        dropped: ; late: ; by Some("root")
    "#]]
    .assert_eq(&play("requeue 2 user=alice"));
}

#[test]
fn a_run_that_its_deadline_cut_short_is_deadline_and_one_at_its_own_limit_is_timeout() {
    check(
        "node n1 h100:3
         submit user=alice gpus=1 time=100 time_min=20 deadline=50
         submit user=alice gpus=1 time=40 deadline=500
         submit user=alice gpus=1 time=100 time_min=20 deadline=60
         plan
         n1 running 1-1
         n1 running 2-1
         n1 running 3-1
         wait 30
         n1 clean 3-1 0
         wait 10
         n1 timed_out 2-1
         wait 10
         n1 timed_out 1-1
         show",
        expect![[r#"
            job 1
            job 2
            job 3
            1 alice DEADLINE 0:0 (its deadline 1970-01-12T13:47:30Z ended it)
            2 alice TIMEOUT 0:0
            3 alice COMPLETED 0:0
        "#]],
    );
}
