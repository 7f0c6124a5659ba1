//! Maintenance over running jobs: which runs are stopped, when, and what becomes of them.

use crate::ctl::tests::world::check;
use expect_test::expect;

#[test]
fn what_runs_into_a_maintenance_writes_its_checkpoint_in_time_and_comes_back_after_it() {
    check(
        "node n1 h100:4
         node n2 h100:4
         submit user=alice gpus=1 time=6000 checkpoint=USR1@120 nodelist=n1
         submit user=alice gpus=1 time=6000 nodelist=n1
         submit user=bob gpus=1 time=1000 nodelist=n1
         submit user=bob gpus=1 time=6000 nodelist=n2
         plan
         n1 running 1-1
         n1 running 2-1
         n1 running 3-1
         n2 running 4-1
         reservation up nodes=n1 at=2000 for=600 maintenance
         reservation up nodes=n1 at=2000 for=600 maintenance ignore_running
         n1 told
         wait 1849
         n1 told
         wait 1
         n1 told
         n1 stopped 1-1
         wait 119
         n1 told
         wait 1
         n1 told
         n1 stopped 2-1
         plan
         show
         wait 700
         plan
         show",
        expect![[r#"
            job 1
            job 2
            job 3
            job 4
            refused: reservation up: jobs 1, 2 may still run on n1 then, by their time limits. Begin later, choose other nodes, or make it over running jobs (ignore_running).
            n1 is told: 1-1 Run, 2-1 Run, 3-1 Run
            n1 is told: 1-1 Run, 2-1 Run, 3-1 Run
            n1 is told: 1-1 stop (Drained, gone in 150 s), 2-1 Run, 3-1 Run
            n1 is told: 2-1 Run, 3-1 Run
            n1 is told: 2-1 stop (Drained, gone in 30 s), 3-1 Run
            1 alice PENDING ReqNodeNotAvail: nodes it needs are kept for maintenance "up" from 1970-01-12T14:20:00Z to 1970-01-12T14:30:00Z
            2 alice PENDING ReqNodeNotAvail: nodes it needs are kept for maintenance "up" from 1970-01-12T14:20:00Z to 1970-01-12T14:30:00Z
            3 bob RUNNING 3-1 on n1[2]
            4 bob RUNNING 4-1 on n2[0]
            1 alice RUNNING 1-2 on n1[0]
            2 alice RUNNING 2-2 on n1[1]
            3 bob RUNNING 3-1 on n1[2]
            4 bob RUNNING 4-1 on n2[0]
        "#]],
    );
}

#[test]
fn a_controller_that_was_away_clears_the_nodes_when_it_is_back() {
    check(
        "node n1 h100:4
         submit user=alice gpus=1 time=6000
         plan
         n1 running 1-1
         reservation up at=100 for=6000 maintenance ignore_running
         wait 60
         n1 told
         restart
         wait 300
         n1 hello 1-1=running
         n1 told",
        expect![[r#"
            job 1
            n1 is told: 1-1 Run
            n1 is told: 1-1 stop (Fenced)
        "#]],
    );
}

#[test]
fn the_other_nodes_of_a_run_wait_no_longer_than_its_first() {
    check(
        "node n1 h100:1
         node n2 h100:1
         submit user=alice gpus=2 nodes=2 time=6000 checkpoint=USR1@120
         submit user=bob gpus=1 time=60
         plan
         n1 ready 1-1
         n2 ready 1-1
         n1 running 1-1
         n2 running 1-1
         preempt 1-1 for=2
         n2 told
         n1 stops 1-1
         n1 told
         n2 told",
        expect![[r#"
            job 1
            job 2
            n2 is told: 1-1 stop (Preempted, gone in 150 s)
            n1 is told: 1-1 stop (Preempted, gone in 150 s)
            n2 is told: 1-1 stop (Member)
        "#]],
    );
}

#[test]
fn a_mark_that_was_waited_for_is_one_for_all_nodes_of_the_run() {
    check(
        "node n1 h100:1
         node n2 h100:1
         node n3 h100:1
         submit user=alice gpus=3 nodes=3 time=6000 checkpoint=USR1@120
         submit user=bob gpus=1 time=60
         plan
         n1 ready 1-1
         n2 ready 1-1
         n3 ready 1-1
         n1 running 1-1
         n2 running 1-1
         n3 running 1-1
         preempt 1-1 for=2
         # Whose last process is gone has nothing to say for the others.
         n3 stops 1-1
         n1 told
         n2 told
         n2 mark 1-1 1 rank 0
         n1 told
         n2 answers 1-1
         n1 told
         n2 told",
        expect![[r#"
            job 1
            job 2
            n1 is told: 1-1 stop (Preempted, gone in 150 s)
            n2 is told: 1-1 stop (Preempted, gone in 150 s)
            n1 is told: 1-1 stop (Preempted, gone in 150 s)
            n1 is told: 1-1 stop (Member)
            n2 is told: 1-1 stop (Preempted, gone in 150 s)
        "#]],
    );
}

#[test]
fn each_node_of_a_run_counts_its_own_marks_and_the_newest_of_all_is_the_last() {
    check(
        "node n1 h100:1
         node n2 h100:1
         submit user=alice gpus=2 nodes=2 time=6000
         plan
         n1 ready 1-1
         n2 ready 1-1
         n1 running 1-1
         n2 running 1-1
         n1 mark 1-1 5 five
         wait 10
         n2 mark 1-1 1 other
         show
         n1 mark 1-1 5 five
         show
         n1 mark 1-1 6 six
         n2 mark 1-1 1 other
         show",
        expect![[r#"
            job 1
            1 alice RUNNING 1-1 on n1[0] n2[0] MARK 1 other
            1 alice RUNNING 1-1 on n1[0] n2[0] MARK 1 other
            1 alice RUNNING 1-1 on n1[0] n2[0] MARK 6 six
        "#]],
    );
}
