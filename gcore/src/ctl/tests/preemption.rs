//! Preemption, marks, and drains with a deadline: the victims, what becomes of them, what the record says.

use crate::ctl::tests::world::{World, check};
use expect_test::expect;

#[test]
fn a_victim_gets_its_time_for_a_checkpoint_and_goes_back_to_its_place_in_line() {
    check(
        "node n1 h100:2
         submit user=alice gpus=1 time=6000 checkpoint=USR1@120
         submit user=alice gpus=1 time=6000
         submit user=bob gpus=1 time=60
         plan
         n1 running 1-1
         n1 running 2-1
         wait 100
         n1 mark 1-1 1 epoch 3
         wait 50
         preempt 1-1 for=3
         n1 told
         wait 10
         n1 mark 1-1 2 epoch 4
         wait 20
         n1 stopped 1-1
         show
         plan
         show
         n1 clean 3-1 0
         plan
         show",
        expect![[r#"
            job 1
            job 2
            job 3
            n1 is told: 1-1 stop (Preempted, gone in 150 s), 2-1 Run
            1 alice PENDING None:  MARK 2 epoch 4
            2 alice RUNNING 2-1 on n1[1]
            3 bob PENDING Resources: needs 1 GPU and 1 CPU on one node; most is free on n1: 0 GPUs, 62 CPUs and 0 of memory; room is expected by 1970-01-12T15:26:40Z
            1 alice PENDING Resources: needs 1 GPU and 1 CPU on one node; most is free on n1: 0 GPUs, 62 CPUs and 0 of memory; room is expected by 1970-01-12T13:50:40Z MARK 2 epoch 4
            2 alice RUNNING 2-1 on n1[1]
            3 bob RUNNING 3-1 on n1[0]
            1 alice RUNNING 1-2 on n1[0] MARK 2 epoch 4
            2 alice RUNNING 2-1 on n1[1]
            3 bob COMPLETED 0:0
        "#]],
    );
}

#[test]
fn only_what_runs_gives_way_and_only_once_for_one_job() {
    check(
        "node n1 h100:4
         submit user=alice gpus=1 time=600
         submit user=alice gpus=1 time=600
         submit user=alice gpus=1 time=600
         submit user=alice gpus=1 time=600
         submit user=bob gpus=1 time=60
         submit user=bob gpus=1 time=60 held
         plan
         n1 running 1-1
         n1 running 2-1
         n1 running 3-1
         preempt 1-1 for=6
         preempt 1-1 for=2
         preempt 1-1 for=99
         preempt 9-1 for=5
         n1 told
         preempt 1-1 for=5
         preempt 2-1 for=5
         n1 told
         release 6 user=bob
         preempt 1-1 2-1 for=6
         n1 told
         n1 stopped 1-1
         n1 stopped 2-1
         plan
         show",
        expect![[r#"
            job 1
            job 2
            job 3
            job 4
            job 5
            job 6
            n1 is told: 1-1 Run, 2-1 Run, 3-1 Run, 4-1 Run
            n1 is told: 1-1 stop (Preempted, gone in 30 s), 2-1 Run, 3-1 Run, 4-1 Run
            n1 is told: 1-1 stop (Preempted, gone in 30 s), 2-1 stop (Preempted, gone in 30 s), 3-1 Run, 4-1 Run
            1 alice RUNNING 1-2 on n1[0]
            2 alice RUNNING 2-2 on n1[1]
            3 alice RUNNING 3-1 on n1[2]
            4 alice RUNNING 4-1 on n1[3]
            5 bob PENDING Resources: needs 1 GPU and 1 CPU on one node; most is free on n1: 0 GPUs, 60 CPUs and 0 of memory; room is expected by 1970-01-12T13:56:40Z
            6 bob PENDING Priority: needs 1 GPU and 1 CPU on one node; jobs of higher priority wait for such resources too
        "#]],
    );
}

#[test]
fn a_plan_from_before_a_policy_change_preempts_and_starts_no_job() {
    check(
        "node n1 h100:1
         submit user=alice gpus=1 time=600
         plan
         n1 running 1-1
         submit user=bob gpus=1 time=60
         config age=50
         preempt 1-1 for=2 from=3
         n1 told
         preempt 1-1 for=2
         n1 told",
        expect![[r#"
            job 1
            job 2
            n1 is told: 1-1 Run
            n1 is told: 1-1 stop (Preempted, gone in 30 s)
        "#]],
    );
}

#[test]
fn what_ends_by_itself_counts_as_it_ended_and_cancel_mode_ends_for_good() {
    check(
        "node n1 h100:4
         submit user=alice gpus=1 time=600
         submit user=alice gpus=1 time=600
         submit user=alice gpus=1 time=600 requeue=no
         submit user=alice gpus=1 time=600
         submit user=bob gpus=4 time=60
         plan
         n1 running 1-1
         n1 running 2-1
         n1 running 3-1
         n1 running 4-1
         wait 30
         preempt 1-1 3-1 4-1 for=5
         preempt 2-1 for=5 mode=cancel
         n1 clean 1-1 0
         n1 stopped 3-1
         cancel 4 user=alice
         n1 stopped 4-1
         preempt 2-1 for=5 mode=cancel
         n1 stopped 2-1
         plan
         show",
        expect![[r#"
            job 1
            job 2
            job 3
            job 4
            job 5
            1 alice COMPLETED 0:0
            2 alice PREEMPTED 0:0 (preempted for job 5 of bob (account default): its guarantee; 30 GPU-seconds since its last mark are lost)
            3 alice PREEMPTED 0:0 (preempted for job 5 of bob (account default): its guarantee; 30 GPU-seconds since its last mark are lost)
            4 alice CANCELLED 0:0 (alice)
            5 bob RUNNING 5-1 on n1[0,1,2,3]
        "#]],
    );
}

#[test]
fn a_lost_node_while_giving_way_is_still_a_preemption() {
    check(
        "node n1 h100:1
         node n2 h100:1
         submit user=alice gpus=1 time=600
         plan
         n1 running 1-1
         submit user=bob gpus=1 time=60 nodelist=n1
         preempt 1-1 for=2
         n1 gone
         down n1 it burns
         plan
         show
         restart
         plan
         show",
        expect![[r#"
            job 1
            job 2
            1 alice RUNNING 1-2 on n2[0]
            2 bob PENDING ReqNodeNotAvail: nodes it needs are not available (n1: down)
            1 alice RUNNING 1-2 on n2[0]
            2 bob PENDING ReqNodeNotAvail: nodes it needs are not available (n1: down)
        "#]],
    );
}

/// Nodes report one after another when a controller starts: the free one may be a moment behind.
#[test]
fn no_run_is_preempted_while_nodes_re_register_after_a_controller_start() {
    let told = |lines: &[&str]| {
        let mut world = World::new();
        let begin = [
            "node n1 h100:1",
            "node n2 h100:1",
            "account lab guaranteed=1 users=alice",
            "account guest users=bob",
            "submit user=bob gpus=1 time=600 nodelist=n1",
            "plan",
            "n1 running 1-1",
            "restart",
            "n1 hello 1-1=running",
            "submit user=alice gpus=1 time=60",
            "plan",
        ];
        begin.iter().chain(lines).for_each(|line| world.line(line));
        let stopped = world.state.runs.values().any(|run| run.stop.is_some());
        (stopped, world.state.runs.len())
    };
    assert_eq!(told(&[]), (false, 1));
    assert_eq!(
        told(&["n2 hello", "plan"]),
        (false, 2),
        "there is room on n2"
    );
    assert_eq!(told(&["wait 10", "plan"]), (true, 1), "n2 does not come");
    assert_eq!(
        told(&["n2 gone", "down n2 broken", "plan"]),
        (true, 1),
        "n2 will not come"
    );
}

/// The array's id is that of its first task, too.
#[test]
fn others_give_way_to_an_array_of_which_the_first_task_runs_already() {
    let stopped = |lines: &[&str]| {
        let mut world = World::new();
        let begin = [
            "node n1 h100:2",
            "account lab guaranteed=2 users=alice",
            "account guest users=bob",
            "submit user=bob gpus=1 time=600",
            "plan",
            "n1 running 1-1",
            "submit user=alice gpus=1 time=600 array=0-1",
            "plan",
        ];
        begin.iter().chain(lines).for_each(|line| world.line(line));
        let stops = world
            .state
            .runs
            .values()
            .filter_map(|run| Some((run.id.to_string(), run.stop.as_ref()?.for_job?.0)));
        (stops.collect::<Vec<_>>(), world.state.runs.len())
    };
    assert_eq!(stopped(&[]), (vec![("1-1".into(), 3)], 2));
    assert_eq!(stopped(&["n1 stopped 1-1", "plan"]), (vec![], 2));
}

/// What victims left for a job is its own, also after a restart of controller or nodes.
#[test]
fn a_controller_that_starts_knows_its_nominations() {
    let starts = |lines: &[&str]| {
        let mut world = World::new();
        let begin = [
            "node n1 h100:2",
            "account lab guaranteed=2 users=alice",
            "account guest users=bob",
            "submit user=alice gpus=1 time=60 held",
            "submit user=bob gpus=2 time=600",
            "plan",
            "n1 running 2-1",
            "submit user=alice gpus=2 time=600",
            "plan",
            "n1 stopped 2-1",
            "release 1",
        ];
        for line in begin.iter().chain(lines) {
            match line.strip_prefix("late ") {
                Some(line) => world.plan_and_enter_after(line),
                None => world.line(line),
            }
        }
        world.plan().iter().map(|job| job.0).collect::<Vec<_>>()
    };
    assert_eq!(starts(&[]), [3], "the first one is older, and was held");
    assert_eq!(
        starts(&["restart", "late n1 hello"]),
        [3],
        "a plan of before the last node came says nothing of it"
    );
    assert_eq!(starts(&["restart", "n1 hello"]), [3]);
    assert_eq!(
        starts(&["restart", "plan", "n1 hello"]),
        [3],
        "a pass while its node is not back takes nothing from it"
    );
    assert_eq!(
        starts(&["cancel 3", "restart", "n1 hello"]),
        [1],
        "it is not there any more"
    );
    assert_eq!(
        starts(&["hold 3", "restart", "n1 hello", "release 3"]),
        [1],
        "whom others went for, and was held, has its turn"
    );
}

#[test]
fn nominated_nodes_are_held_while_nodes_re_register() {
    let starts = |lines: &[&str]| {
        let mut world = World::new();
        let begin = [
            "node n1 h100:1",
            "node n2 h100:1",
            "account lab guaranteed=2 users=alice",
            "account guest users=bob",
            "submit user=bob nodes=2 gpn=1 time=600",
            "plan",
            "n1 running 1-1",
            "n2 running 1-1",
            "submit user=alice nodes=2 gpn=1 time=600",
            "plan",
            "n1 stopped 1-1",
            "n2 stopped 1-1",
            "submit user=bob gpus=1 time=60",
            "restart",
            "n1 hello",
        ];
        begin.iter().chain(lines).for_each(|line| world.line(line));
        world.plan().iter().map(|job| job.0).collect::<Vec<_>>()
    };
    assert_eq!(starts(&[]), [0; 0], "the third has room on n1");
    assert_eq!(starts(&["plan", "n2 hello"]), [2]);
    assert_eq!(starts(&["plan", "wait 10"]), [3], "n2 does not come");
}

#[test]
fn marks_are_numbered_and_old_ones_are_no_news() {
    check(
        "node n1 h100:1
         submit user=alice gpus=1 time=600
         plan
         n1 running 1-1
         n1 mark 1-1 3 three
         n1 mark 1-1 2 two
         n1 mark 1-1 3 again
         show
         restart
         n1 hello 1-1=running
         n1 mark 1-1 4 four
         requeue 1 user=alice
         n1 stopped 1-1
         plan
         n1 mark 1-1 5 late
         n1 running 1-2
         n1 mark 1-2 1 one
         show",
        expect![[r#"
            job 1
            1 alice RUNNING 1-1 on n1[0] MARK 3 three
            1 alice RUNNING 1-2 on n1[0] MARK 1 one
        "#]],
    );
}

#[test]
fn a_mark_is_as_old_as_its_node_says_within_what_can_be() {
    let mut world = World::new();
    let mut tell = |lines: &[&str]| {
        lines.iter().for_each(|line| world.line(line));
        let run = world.state.runs.values().next().unwrap();
        run.mark
            .as_ref()
            .map_or(-1, |mark| mark.at.since_secs(run.started.unwrap()))
    };
    assert_eq!(
        tell(&[
            "node n1 h100:1",
            "submit user=alice gpus=1 time=6000",
            "plan",
            "n1 running 1-1",
            "wait 100"
        ]),
        -1
    );
    assert_eq!(
        tell(&["n1 mark 1-1 1 early ago=5000"]),
        0,
        "not before the run"
    );
    assert_eq!(
        tell(&["n1 mark 1-1 2 ahead ago=-5000"]),
        100,
        "not in the future"
    );
    // The controller was away for a while, and the job went on.
    assert_eq!(tell(&["restart", "wait 50", "n1 hello 1-1=running"]), 100);
    assert_eq!(tell(&["n1 mark 1-1 7 while_away ago=20"]), 130);
    assert_eq!(
        tell(&["n1 mark 1-1 8 set_back ago=90"]),
        130,
        "the clock there was set back: it is the newer one all the same"
    );
    assert_eq!(
        tell(&["n1 mark 1-1 6 late ago=0"]),
        130,
        "an old one is no news"
    );
    assert_eq!(tell(&["n1 mark 1-1 9 now"]), 150);
}

#[test]
fn what_was_marked_while_the_controller_was_away_is_not_lost() {
    check(
        "node n1 h100:2
         submit user=alice gpus=1 time=6000
         submit user=alice gpus=1 time=6000
         submit user=bob gpus=2 time=60
         plan
         n1 running 1-1
         n1 running 2-1
         restart
         wait 50
         n1 hello 1-1=running 2-1=running
         n1 mark 1-1 1 safe ago=30
         preempt 1-1 2-1 for=3 mode=cancel
         n1 stopped 1-1
         n1 stopped 2-1
         show",
        expect![[r#"
            job 1
            job 2
            job 3
            1 alice PREEMPTED 0:0 (preempted for job 3 of bob (account default): its guarantee; 30 GPU-seconds since its last mark are lost) MARK 1 safe
            2 alice PREEMPTED 0:0 (preempted for job 3 of bob (account default): its guarantee; 50 GPU-seconds since its last mark are lost)
            3 bob PENDING None: 
        "#]],
    );
}

#[test]
fn a_victim_of_a_job_that_starts_elsewhere_stays_if_its_node_has_not_obeyed() {
    check(
        "node n1 h100:1
         node n2 h100:1
         submit user=alice gpus=1 time=600
         submit user=alice gpus=1 time=600
         plan
         n1 running 1-1
         n2 running 2-1
         n1 obeys
         submit user=bob gpus=1 time=60
         preempt 1-1 for=3
         n1 told
         n2 clean 2-1 0
         plan
         n1 told
         show
         n1 clean 1-1 0
         show",
        expect![[r#"
            job 1
            job 2
            job 3
            n1 is told: 1-1 stop (Preempted, gone in 30 s)
            n1 is told: 1-1 Run
            1 alice RUNNING 1-1 on n1[0]
            2 alice COMPLETED 0:0
            3 bob RUNNING 3-1 on n2[0]
            1 alice COMPLETED 0:0
            2 alice COMPLETED 0:0
            3 bob RUNNING 3-1 on n2[0]
        "#]],
    );
}

/// Two victims: one is known to have the order, the other has it and has not said so.
#[test]
fn a_victim_whose_node_obeyed_ends_and_its_record_says_it_was_not_needed() {
    check(
        "node n1 h100:1
         node n2 h100:1
         node n3 h100:1
         submit user=alice gpus=1 time=600
         submit user=alice gpus=1 time=600
         submit user=alice gpus=1 time=600
         plan
         n1 running 1-1
         n2 running 2-1
         n3 running 3-1
         submit user=bob gpus=1 time=60
         preempt 1-1 2-1 for=4 mode=cancel
         n1 obeys
         n3 clean 3-1 0
         plan
         n1 told
         n2 told
         preempt 2-1 for=4
         n1 stopped 1-1
         n2 stopped 2-1
         show
         restart",
        expect![[r#"
            job 1
            job 2
            job 3
            job 4
            n1 is told: 1-1 stop (Preempted, gone in 30 s)
            n2 is told: 2-1 Run
            1 alice PREEMPTED 0:0 (preempted for job 4 of bob (account default): its guarantee; job 4 started elsewhere before it was gone)
            2 alice PREEMPTED 0:0 (preempted for job 4 of bob (account default): its guarantee; job 4 started elsewhere before it was gone)
            3 alice COMPLETED 0:0
            4 bob RUNNING 4-1 on n3[0]
        "#]],
    );
}

/// A run on two nodes of which one had heard: the other is ended for it, and the whole counts as having made room.
#[test]
fn a_run_of_which_one_node_had_heard_goes_as_a_whole() {
    check(
        "node n1 h100:1
         node n2 h100:1
         node n3 h100:1
         submit user=alice nodes=2 gpus=1 time=600
         submit user=alice gpus=1 time=600
         plan
         n1 ready 1-1
         n2 ready 1-1
         n1 running 1-1
         n2 running 1-1
         n3 running 2-1
         submit user=bob gpus=1 time=60
         preempt 1-1 for=3
         n3 clean 2-1 0
         plan
         n1 told
         n2 stopped 1-1
         n1 told
         n1 stopped 1-1
         wait 1
         plan
         show",
        expect![[r#"
            job 1
            job 2
            job 3
            n1 is told: 1-1 Run
            n1 is told: 1-1 stop (Member)
            1 alice RUNNING 1-2 on n1[0] n2[]
            2 alice COMPLETED 0:0
            3 bob RUNNING 3-1 on n3[0]
        "#]],
    );
}

#[test]
fn a_task_of_an_array_that_gave_way_keeps_its_index() {
    check(
        "node n1 h100:2
         submit user=alice gpus=1 time=600 array=3-6%2
         plan
         n1 running 1-1
         n1 running 2-1
         submit user=bob gpus=1 time=60 nice=0
         preempt 2-1 for=5
         n1 stopped 2-1
         show
         submit user=bob gpus=1 time=600 array=0-1
         preempt 1-1 for=7
         n1 told",
        expect![[r#"
            job 1
            job 5
            1_[5-6%2] alice PENDING JobArrayTaskLimit: the array allows 2 at once, and 2 of its tasks run
            1_3 alice RUNNING 1-1 on n1[0]
            1_4 alice PENDING None: 
            5 bob PENDING None: 
            job 6
            n1 is told: 1-1 stop (Preempted, gone in 30 s)
        "#]],
    );
}

#[test]
fn a_drained_node_is_empty_by_its_deadline() {
    check(
        "node n1 h100:2
         submit user=alice gpus=1 time=6000 checkpoint=USR1@60
         submit user=alice gpus=1 time=6000 requeue=no
         plan
         n1 running 1-1
         n1 running 2-1
         drain n1 by=100 new fans
         wait 99
         n1 told
         wait 1
         n1 told
         restart
         n1 hello 1-1=running 2-1=running
         n1 told
         n1 stopped 1-1
         n1 stopped 2-1
         show
         nodes
         resume n1
         plan
         wait 1000
         show
         nodes",
        expect![[r#"
            job 1
            job 2
            n1 is told: 1-1 Run, 2-1 Run
            n1 is told: 1-1 stop (Drained, gone in 90 s), 2-1 stop (Drained, gone in 30 s)
            n1 is told: 1-1 stop (Drained, gone in 90 s), 2-1 stop (Drained, gone in 30 s)
            1 alice PENDING None: 
            2 alice CANCELLED 0:0 (admin:root) (its node was drained by admin:root and had to be empty; 100 GPU-seconds since its last mark are lost)
            n1 IDLE+DRAIN 2 GPUs 64 CPUs free DRAINED admin:root (new fans)
            1 alice RUNNING 1-2 on n1[0]
            n1 MIXED 1 GPUs 63 CPUs free
        "#]],
    );
}

#[test]
fn a_guarantee_passes_on_when_its_run_is_told_to_go_and_not_to_one_that_goes_itself() {
    check(
        "node n1 h100:3
         account lab guaranteed=1 users=alice
         account owner guaranteed=2 users=bob
         submit user=alice gpus=1 time=600
         submit user=alice gpus=1 time=600
         submit user=alice gpus=1 time=600
         plan
         n1 running 1-1
         n1 running 2-1
         n1 running 3-1
         submit user=bob gpus=2 time=600
         classes
         cancel 2
         preempt 1-1 for=4 heirs=2-1
         preempt 1-1 for=4 heirs=7-1
         n1 told
         preempt 1-1 for=4 heirs=3-1
         classes
         n1 told
         n1 stopped 1-1
         n1 stopped 2-1
         classes
         plan
         classes",
        expect![[r#"
            job 1
            job 2
            job 3
            job 4
            1-1 Guaranteed, 2-1 Borrowed, 3-1 Borrowed
            n1 is told: 1-1 Run, 2-1 stop (Cancelled), 3-1 Run
            1-1 Borrowed, 2-1 Borrowed, 3-1 Guaranteed
            n1 is told: 1-1 stop (Preempted, gone in 30 s), 2-1 stop (Cancelled), 3-1 Run
            3-1 Guaranteed
            3-1 Guaranteed, 4-1 Guaranteed
        "#]],
    );
}

#[test]
fn a_job_bound_to_a_node_gets_its_guarantee_there_and_the_lender_keeps_its_own_elsewhere() {
    check(
        "node n1 h100:2
         node n2 h100:2
         account owner guaranteed=2 users=bob
         account lab guaranteed=2 users=alice
         submit user=alice gpus=1 time=600 nodelist=n1
         submit user=alice gpus=1 time=600 nodelist=n1
         submit user=alice gpus=1 time=600 nodelist=n2
         submit user=alice gpus=1 time=600 nodelist=n2
         plan
         n1 running 1-1
         n1 running 2-1
         n2 running 3-1
         n2 running 4-1
         classes
         submit user=bob gpus=2 time=600 nodelist=n1
         plan
         n1 told
         n2 told
         classes
         plan
         n2 told
         n1 stopped 1-1
         n1 stopped 2-1
         plan
         classes",
        expect![[r#"
            job 1
            job 2
            job 3
            job 4
            1-1 Guaranteed, 2-1 Guaranteed, 3-1 Borrowed, 4-1 Borrowed
            job 5
            n1 is told: 1-1 stop (Preempted, gone in 30 s), 2-1 stop (Preempted, gone in 30 s)
            n2 is told: 3-1 Run, 4-1 Run
            1-1 Borrowed, 2-1 Borrowed, 3-1 Guaranteed, 4-1 Guaranteed
            n2 is told: 3-1 Run, 4-1 Run
            3-1 Guaranteed, 4-1 Guaranteed, 5-1 Guaranteed
        "#]],
    );
}

#[test]
fn a_job_that_was_to_borrow_keeps_no_guarantee_from_a_run_while_others_go_for_it() {
    check(
        "node n1 h100:6
         account lab guaranteed=2 users=alice
         account owner guaranteed=4 users=carol
         account guest users=bob
         qos low
         qos high preempt=low
         submit user=alice gpus=2 time=600
         submit user=alice gpus=2 time=600
         submit user=bob gpus=2 time=600 qos=low checkpoint=USR1@60
         plan
         n1 running 1-1
         n1 running 2-1
         n1 running 3-1
         classes
         submit user=alice gpus=2 time=600 qos=high
         plan
         n1 told
         n1 clean 1-1 0
         plan
         classes",
        expect![[r#"
            job 1
            job 2
            job 3
              note: account guest is guaranteed no GPUs: this job runs on what others leave idle, and gives way when they want it back
            1-1 Guaranteed, 2-1 Borrowed, 3-1 Borrowed
            job 4
            n1 is told: 1-1 Run, 2-1 Run, 3-1 stop (Preempted, gone in 90 s)
            2-1 Guaranteed, 3-1 Borrowed, 4-1 Borrowed
        "#]],
    );
}

#[test]
fn a_run_whose_qos_is_set_outside_of_quotas_has_no_class_until_it_is_within_them_again() {
    check(
        "node n1 h100:4
         account lab guaranteed=2 users=alice
         qos low
         submit user=alice gpus=2 time=600 qos=low
         submit user=alice gpus=2 time=600
         plan
         n1 running 1-1
         n1 running 2-1
         classes
         qos low outside_quota
         classes
         plan
         classes
         qos low
         plan
         classes",
        expect![[r#"
            job 1
            job 2
            1-1 Guaranteed, 2-1 Borrowed
            1-1 none, 2-1 Borrowed
            1-1 none, 2-1 Guaranteed
            1-1 Borrowed, 2-1 Guaranteed
        "#]],
    );
}
