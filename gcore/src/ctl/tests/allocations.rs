//! Allocations: jobs without a script, which their clients end.

use crate::ctl::tests::world::check;
use expect_test::expect;

#[test]
fn the_end_that_a_client_reports_is_the_jobs() {
    check(
        "node n1 h100:4
         submit user=alice gpus=1 time=600 allocation
         submit user=alice gpus=1 time=600 allocation
         submit user=alice gpus=1 time=600 allocation
         plan
         n1 running 1-1
         n1 running 2-1
         end 1 user=alice exit=0
         end 1 user=alice exit=0
         end 2 user=alice exit=7
         cancel 2 user=alice
         n1 told
         restart
         end 2 user=alice exit=7
         n1 told
         n1 stopped 1-1
         n1 stopped 2-1
         end 2 user=alice exit=9
         cancel 3 user=alice
         end 3 user=alice exit=0
         n1 stopped 3-1
         show",
        expect![[r#"
            job 1
            job 2
            job 3
            n1 is told: 1-1 stop (Ended), 2-1 stop (Ended), 3-1 Run
            n1 is told: 1-1 stop (Ended), 2-1 stop (Ended), 3-1 Run
            1 alice COMPLETED 0:0
            2 alice FAILED 7:0
            3 alice CANCELLED 0:0 (alice)
        "#]],
    );
}

#[test]
fn an_allocation_that_is_not_granted_is_cancelled() {
    check(
        "node n1 h100:1
         submit user=alice gpus=1 time=600
         submit user=alice gpus=1 time=600 allocation
         submit user=alice gpus=1 time=600 allocation
         plan
         n1 running 1-1
         end 2 user=bob exit=0
         end 2 user=alice exit=1
         end 2 user=alice exit=1
         end 3
         end 1 user=alice exit=0
         end 9 user=alice exit=0
         show",
        expect![[r#"
            job 1
            job 2
            job 3
            refused: job 2 belongs to alice; you are bob. Ask them or an operator.
            refused: job 1 has a script, and ends with it. To cancel it: gdel 1
            refused: no job 9 in the queue. If it was there, it is over: see `gacct -j 9`.
            1 alice RUNNING 1-1 on n1[0]
            2 alice CANCELLED 0:0 (alice)
            3 alice CANCELLED 0:0 (its client is gone) (system)
        "#]],
    );
}

#[test]
fn an_allocation_without_its_client_ends() {
    check(
        "node n1 h100:2
         submit user=alice gpus=1 time=600 allocation
         submit user=alice gpus=1 time=600 allocation
         plan
         n1 running 1-1
         end 1
         end 1 user=alice exit=0
         end 2 user=root exit=3
         n1 told
         n1 stopped 1-1
         n1 stopped 2-1
         show",
        expect![[r#"
            job 1
            job 2
            n1 is told: 1-1 stop (Cancelled), 2-1 stop (Ended)
            1 alice CANCELLED 0:0 (its client is gone) (system)
            2 alice FAILED 3:0
        "#]],
    );
}

#[test]
fn an_allocation_does_not_go_back_to_the_queue() {
    check(
        "node n1 h100:1
         node n2 h100:1
         submit user=alice gpn=1 nodes=2 time=600 allocation requeue=yes
         plan
         n1 ready 1-1
         n2 ready 1-1
         n1 running 1-1
         n2 running 1-1
         requeue 1 user=alice
         update 1 user=alice requeue=yes
         n2 gone
         down n2 user=root dead
         end 1 user=alice exit=1
         n1 stopped 1-1
         show
         submit user=alice gpus=1 time=600 nodelist=n1 allocation
         plan
         n1 running 2-1
         submit user=bob gpus=1 time=60
         preempt 2-1 for=3
         end 2 user=alice exit=15
         n1 stopped 2-1
         submit user=alice gpus=1 time=600 nodelist=n1 array=0-1 allocation
         show",
        expect![[r#"
            job 1
            refused: job 1 is an allocation: its client waits for it once, so it does not go back to the queue. Ask for another.
            refused: job 1 is an allocation, which never goes back to the queue.
            1 alice NODE_FAIL 0:0 (n2 was lost)
            job 2
            job 3
            refused: an allocation is one job: an array has a script for its tasks. Submit it with gsub
            1 alice NODE_FAIL 0:0 (n2 was lost)
            2 alice PREEMPTED 0:0 (preempted for job 3 of bob (account default): its guarantee)
            3 bob PENDING None: 
        "#]],
    );
}

#[test]
fn a_victim_has_completed_where_its_client_ends_it_well() {
    check(
        "node n1 h100:2
         submit user=alice gpus=1 time=600 allocation
         submit user=alice gpus=1 time=600 allocation
         plan
         n1 running 1-1
         n1 running 2-1
         submit user=bob gpus=2 time=60
         preempt 1-1 2-1 for=3
         end 1 user=alice exit=0
         end 2 user=alice exit=15
         n1 told
         n1 stopped 1-1
         n1 stopped 2-1
         show",
        expect![[r#"
            job 1
            job 2
            job 3
            n1 is told: 1-1 stop (Ended), 2-1 stop (Preempted, gone in 30 s)
            1 alice COMPLETED 0:0
            2 alice PREEMPTED 0:0 (preempted for job 3 of bob (account default): its guarantee)
            3 bob PENDING None: 
        "#]],
    );
}

#[test]
fn an_allocation_that_nobody_was_granted_waits_again_after_a_failed_start() {
    check(
        "node n1 h100:1
         node n2 h100:1
         submit user=alice gpn=1 nodes=2 time=600 allocation
         plan
         n1 ready 1-1
         n2 user_unknown 1-1
         n1 stopped 1-1
         show",
        expect![[r#"
            job 1
            1 alice PENDING None: 
        "#]],
    );
}
