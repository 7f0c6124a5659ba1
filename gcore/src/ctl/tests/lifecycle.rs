//! A job's life on one node: from the submission to the end, and what people do to it on the way.

use crate::ctl::tests::world::{World, check};
use crate::ctl::{Input, Job, handle, next_deadline};
use expect_test::expect;
use gmodel::JobId;
use gmodel::config::ClusterConfig;
use std::sync::Arc;

#[test]
fn a_job_is_placed_runs_and_ends_with_its_exit_code() {
    check(
        "node n1 h100:8
         submit user=alice gpus=h100:4 time=60
         submit user=bob gpus=h100:4 time=60
         plan
         show
         n1 told
         n1 running 1-1
         n1 running 2-1
         n1 exits 1-1 0
         show
         n1 clean 1-1 0
         n1 clean 2-1 3
         show
         nodes
         n1 told",
        expect![[r#"
            job 1
            job 2
            1 alice RUNNING 1-1 on n1[0,1,2,3]
            2 bob RUNNING 2-1 on n1[4,5,6,7]
            n1 is told: 1-1 Run, 2-1 Run
            1 alice COMPLETING 1-1 on n1[0,1,2,3]
            2 bob RUNNING 2-1 on n1[4,5,6,7]
            1 alice COMPLETED 0:0
            2 bob FAILED 3:0
            n1 IDLE 8 GPUs 64 CPUs free
            n1 is told: 
        "#]],
    );
}

#[test]
fn every_job_that_waits_has_its_reason() {
    check(
        "partition main default max_time=600
         partition closed state=down
         node n1 h100:2
         node n2 h100:2
         drain n2 fan is broken
         submit user=alice gpus=2 time=100
         submit user=alice gpus=2 time=100
         submit user=alice gpus=1 time=100
         submit user=alice gpus=1 time=100 held
         submit user=alice gpus=1 time=100 begin=500
         submit user=alice partition=closed
         submit user=alice gpus=2 nodelist=n2
         plan
         show",
        expect![[r#"
            job 1
            job 2
            job 3
            job 4
            job 5
            job 6
              note: no --time given and partition "closed" has no default: the limit is 1-00:00:00
            job 7
            1 alice RUNNING 1-1 on n1[0,1]
            2 alice PENDING Resources: needs 2 GPUs and 1 CPU on one node; most is free on n1: 0 GPUs, 63 CPUs and 0 of memory; room is expected by 1970-01-12T13:48:20Z
            3 alice PENDING Priority: needs 1 GPU and 1 CPU on one node; jobs of higher priority wait for such resources too
            4 alice PENDING JobHeldUser: held by user:alice HELD user:alice (submitted with --hold)
            5 alice PENDING BeginTime: not before 1970-01-12T13:55:00Z
            6 alice PENDING PartitionDown: partition "closed" is DOWN: it takes jobs and starts none
            7 alice PENDING ReqNodeNotAvail: nodes it needs are not available (n2: drained: fan is broken)
        "#]],
    );
}

#[test]
fn a_pending_job_is_cancelled_at_once_a_running_one_when_its_node_says_so() {
    check(
        "node n1 h100:1
         submit user=alice gpus=1
         submit user=alice gpus=1
         plan
         n1 running 1-1
         cancel 1 2 user=alice
         n1 told
         show
         cancel 2 user=alice
         n1 stops 1-1
         show
         n1 clean 1-1
         show",
        expect![[r#"
            job 1
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            job 2
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            n1 is told: 1-1 stop (Cancelled)
            1 alice RUNNING 1-1 on n1[0]
            2 alice CANCELLED 0:0 (alice)
            1 alice COMPLETING 1-1 on n1[0]
            2 alice CANCELLED 0:0 (alice)
            1 alice CANCELLED 0:15 (alice)
            2 alice CANCELLED 0:0 (alice)
        "#]],
    );
}

#[test]
fn a_batch_process_that_ends_by_itself_while_it_is_cancelled_keeps_its_exit_code() {
    check(
        "node n1 h100:1
         submit user=alice gpus=1
         plan
         n1 running 1-1
         cancel 1 user=alice
         n1 clean 1-1 7
         show",
        expect![[r#"
            job 1
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            1 alice FAILED 7:0
        "#]],
    );
}

#[test]
fn a_run_that_never_reached_its_node_is_stopped_by_the_nodes_word() {
    check(
        "node n1 h100:1
         submit user=alice gpus=1
         plan
         cancel 1 user=alice
         n1 told
         show
         n1 stopped 1-1
         show
         nodes",
        expect![[r#"
            job 1
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            n1 is told: 1-1 stop (Cancelled)
            1 alice RUNNING 1-1 on n1[0]
            1 alice CANCELLED 0:0 (alice)
            n1 IDLE 1 GPUs 64 CPUs free
        "#]],
    );
}

#[test]
fn signals_are_numbered_and_go_to_running_jobs_only() {
    check(
        "node n1 h100:1
         submit user=alice gpus=1
         signal 1 user=alice signal=10
         plan
         n1 running 1-1
         signal 1 user=alice signal=10
         signal 1 user=bob signal=9
         n1 told",
        expect![[r#"
            job 1
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            refused: job 1 is not running: only running jobs take signals. To cancel it, leave out --signal.
            refused: job 1 belongs to alice; you are bob. Ask them or an operator.
            n1 is told: 1-1 Run signal 1: 10
        "#]],
    );
}

#[test]
fn a_requeued_job_keeps_its_id_and_starts_a_new_attempt() {
    check(
        "node n1 h100:1
         submit user=alice gpus=1
         requeue 1 user=alice
         plan
         n1 running 1-1
         requeue 1 user=alice held
         n1 told
         n1 stopped 1-1
         plan
         show
         release 1 user=alice
         wait 1
         plan
         show",
        expect![[r#"
            job 1
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            refused: job 1 waits in the queue, so there is nothing to take back.
            n1 is told: 1-1 stop (Requeued)
            1 alice PENDING JobHeldUser: held by user:alice HELD user:alice (requeued and held)
            1 alice RUNNING 1-2 on n1[0]
        "#]],
    );
}

#[test]
fn what_is_never_to_run_again_is_not_taken_back_before_it_says_otherwise() {
    check(
        "node n1 h100:1
         submit user=alice gpus=1 requeue=no
         plan
         n1 running 1-1
         requeue 1 user=alice
         update 1 user=alice requeue=yes
         requeue 1 user=alice
         show",
        expect![[r#"
            job 1
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            refused: job 1 was submitted with --no-requeue. If it may run again: gadm job update 1 Requeue=1, and then requeue it.
            1 alice RUNNING 1-1 on n1[0]
        "#]],
    );
}

#[test]
fn cancelling_a_job_that_is_completing_keeps_it_out_of_the_queue() {
    check(
        "node n1 h100:1
         submit user=alice gpus=1
         plan
         n1 running 1-1
         requeue 1 user=alice
         n1 stops 1-1
         show
         cancel 1 user=alice
         n1 clean 1-1
         plan
         show",
        expect![[r#"
            job 1
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            1 alice COMPLETING 1-1 on n1[0]
            1 alice CANCELLED 0:15 (alice) (requeued by alice)
        "#]],
    );
}

#[test]
fn holds_stand_side_by_side_and_each_owner_lifts_their_own() {
    check(
        "node n1 h100:1
         submit user=alice gpus=1
         hold 1 user=alice reason=mine
         hold 1 user=root reason=maintenance
         hold 1 user=alice reason=twice
         plan
         show
         release 1 user=alice
         show
         release 1 user=alice
         release 1 user=root
         plan
         show
         hold 1 user=alice",
        expect![[r#"
            job 1
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            1 alice PENDING JobHeldUser: held by user:alice HELD user:alice (mine) HELD admin:root (maintenance)
            1 alice PENDING JobHeldAdmin: held by admin:root HELD admin:root (maintenance)
            refused: job 1 is held by root (maintenance); only they or an operator can release it.
            1 alice RUNNING 1-1 on n1[0]
            refused: job 1 is not pending: only pending jobs can be held.
        "#]],
    );
}

#[test]
fn what_is_over_cannot_be_released_and_what_runs_has_nothing_to_lift() {
    check(
        "node n1 h100:1
         submit user=alice gpus=1
         submit user=alice gpus=1 array=0-1
         plan
         n1 running 1-1
         release 1 user=alice
         cancel 1 user=alice
         n1 told
         n1 stopped 1-1
         release 1 user=alice
         cancel 2_0 user=alice
         release 2_0 user=alice
         release 2 user=alice
         cancel 2 user=alice
         release 2 user=alice
         release 9 user=alice",
        expect![[r#"
            job 1
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            job 2
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            n1 is told: 1-1 stop (Cancelled)
            refused: job 1 is over: there is nothing to release.
            refused: job 2_0 is over: there is nothing to release.
            refused: job 2 is over: there is nothing to release.
            refused: no job 9 in the queue. If it was there, it is over: see `gacct -j 9`.
        "#]],
    );
}

#[test]
fn a_repeated_client_key_makes_no_second_job() {
    check(
        "node n1 h100:1
         submit user=alice gpus=1 key=k1
         submit user=alice gpus=1 key=k1
         submit user=bob gpus=1 key=k1
         submit user=alice array=0-3 key=k2
         submit user=alice array=0-3 key=k2
         restart
         submit user=alice gpus=1 key=k1",
        expect![[r#"
            job 1
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            job 1 again
            job 2
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            job 3
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            job 3 again
            job 1 again
        "#]],
    );
}

#[test]
fn limits_are_changed_by_their_owner_downward_and_by_operators_at_will() {
    check(
        "partition main default max_time=600
         node n1 h100:1
         submit user=alice gpus=1 time=100
         update 1 user=alice time=300
         update 1 user=alice time=900
         plan
         n1 running 1-1
         update 1 user=alice time=400
         update 1 user=alice time=200
         update 1 user=root time=900
         update 1 user=alice partition=main
         update 1 user=bob nice=5
         update 1 user=alice nice=-5",
        expect![[r#"
            job 1
            refused: partition "main" allows at most 10:00.
            refused: a running job's time limit can only be lowered by its owner; job 1 has 5:00. Ask an operator for more.
            refused: job 1 is running: its partition can only change while it is pending.
            refused: job 1 belongs to alice; you are bob. Ask them or an operator.
            refused: only operators may give a job a negative nice value.
        "#]],
    );
}

#[test]
fn a_hold_is_its_owners_where_an_operator_says_so_and_by_a_priority_of_zero() {
    check(
        "node n1 h100:1
         submit user=alice gpus=1 array=0-1
         submit user=alice gpus=1 priority=0
         hold 1 user=root for_owner reason=later
         plan
         show
         release 1 user=bob
         release 1 user=alice
         update 3 user=bob priority=0
         update 3 user=alice priority=5
         release 3 user=alice
         update 3 user=root priority=0 nice=7
         release 3 user=alice
         plan
         show
         update 1_1 user=alice priority=0 nice=3
         n1 running 1-1
         update 1_0 user=alice priority=0
         show",
        expect![[r#"
            job 1
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            job 3
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            1_[0-1] alice PENDING JobHeldUser: held by user:alice
            3 alice PENDING JobHeldUser: held by user:alice HELD user:alice (submitted with --hold)
            refused: job 1 belongs to alice; you are bob. Ask them or an operator.
            refused: job 3 belongs to alice; you are bob. Ask them or an operator.
            refused: only operators may set a priority.
            refused: job 3 is held by root; only they or an operator can release it.
            1_[1] alice PENDING Resources: needs 1 GPU and 1 CPU on one node; most is free on n1: 0 GPUs, 63 CPUs and 0 of memory; room is expected by 1970-01-13T13:46:40Z
            1_0 alice RUNNING 1-1 on n1[0]
            3 alice PENDING JobHeldAdmin: held by admin:root HELD admin:root ()
            refused: job 1_0 is RUNNING: Priority=0 holds it, and only pending jobs can be held.
            1_0 alice RUNNING 1-1 on n1[0]
            1_1 alice PENDING JobHeldUser: held by user:alice HELD user:alice ()
            3 alice PENDING JobHeldAdmin: held by admin:root HELD admin:root ()
        "#]],
    );
}

#[test]
fn a_nice_value_goes_up_and_down_above_none_for_its_owner() {
    check(
        "node n1 h100:1
         submit user=alice gpus=1 nice=5
         update 1 user=alice nice=50
         update 1 user=alice nice=0
         update 1 user=alice nice=-1
         update 1 user=root nice=-5
         update 1 user=alice nice=-3
         update 1 user=alice nice=-5",
        expect![[r#"
            job 1
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            refused: only operators may give a job a negative nice value.
            refused: only operators may give a job a negative nice value.
        "#]],
    );
}

#[test]
fn the_owner_of_an_array_cannot_lengthen_its_running_tasks() {
    check(
        "node n1 h100:1
         submit user=alice gpus=1 time=100 array=0-1
         plan
         n1 running 1-1
         update 1 user=alice time=300
         show
         n1 told",
        expect![[r#"
            job 1
            1_[1] alice PENDING Resources: needs 1 GPU and 1 CPU on one node; most is free on n1: 0 GPUs, 63 CPUs and 0 of memory; room is expected by 1970-01-12T13:48:20Z
            1_0 alice RUNNING 1-1 on n1[0]
            n1 is told: 1-1 Run
        "#]],
    );
}

#[test]
fn a_job_that_was_moved_since_the_plan_does_not_start_on_the_old_nodes() {
    use crate::ctl::Input;
    use crate::ctl::snapshot;
    use crate::ctl::tests::world::World;
    let mut world = World::new();
    for line in [
        "partition a nodes=n1",
        "partition b nodes=n2",
        "node n1 h100:1",
        "node n2 h100:1",
        "submit user=alice gpus=1 partition=a",
    ] {
        world.line(line);
    }
    let plan = gsched::plan(
        &snapshot(&world.state, world.now),
        gsched::WorkBudget::default(),
    );
    assert_eq!(plan.starts.len(), 1);
    world.line("update 1 user=alice partition=b");
    world.feed(Input::Plan { plan }).unwrap();
    world.line("show");
    world.line("plan");
    world.line("show");
    expect![[r#"
        job 1
          note: no --time given and partition "a" has no default: the limit is 1-00:00:00
        1 alice PENDING None: 
        1 alice RUNNING 1-1 on n2[0]
    "#]]
    .assert_eq(&world.out);
}

/// A cluster with a busy node under each leaf switch, and a job of two nodes that waits 600 s for one switch.
fn waits_for_one_switch(more: &[&str]) -> super::world::World {
    let mut world = super::world::World::new();
    let lines = [
        "config switches=n[1-2]/n[3-4]",
        "node n1 h100:1",
        "node n2 h100:1",
        "node n3 h100:1",
        "node n4 h100:1",
        "submit user=alice gpus=1 nodelist=n1 time=9000",
        "submit user=alice gpus=1 nodelist=n3 time=9000",
        "plan",
    ];
    lines.iter().chain(more).for_each(|line| world.line(line));
    world
}

/// Times of passes without an event, in seconds from now.
fn looks_at(world: &super::world::World) -> Vec<i64> {
    world
        .state
        .index
        .not_yet
        .iter()
        .map(|(at, _)| at.since_secs(world.now))
        .filter(|secs| *secs > 0)
        .collect()
}

#[test]
fn the_end_of_a_wait_for_switches_is_a_time_to_look_again() {
    use gmodel::JobId;
    let mut world = waits_for_one_switch(&[
        "submit user=alice nodes=2 gpn=1 time=60 switches=1@600",
        "wait 599",
    ]);
    assert_eq!(world.plan(), []);
    assert_eq!(
        (looks_at(&world), crate::ctl::next_deadline(&world.state)),
        (vec![1], Some(world.now.plus_secs(1)))
    );
    let mut again = waits_for_one_switch(&[
        "submit user=alice nodes=2 gpn=1 time=60 switches=1@600",
        "wait 599",
        "restart",
    ]);
    assert_eq!(looks_at(&again), [1]);
    again.line("wait 1");
    assert!(looks_at(&again).is_empty());
    world.line("wait 1");
    assert!(looks_at(&world).is_empty());
    assert_eq!(world.plan(), [JobId(3)]);
    // Without an end there is no time; arrays wait too, and a job that was held or dependent waits from its
    // release on.
    let world = waits_for_one_switch(&["submit user=alice nodes=2 gpn=1 time=60 switches=1"]);
    assert!(looks_at(&world).is_empty());
    let held = [
        "submit user=alice nodes=2 gpn=1 time=60 switches=1@600 array=0-3 held",
        "wait 100",
        "release 3 user=alice",
    ];
    assert_eq!(looks_at(&waits_for_one_switch(&held)), [500, 600]);
    let after = [
        "submit user=alice nodes=2 gpn=1 time=60 switches=1@600 dep=afterany:2",
        "wait 100",
        "cancel 2",
        "n3 stopped 2-1",
    ];
    assert_eq!(looks_at(&waits_for_one_switch(&after)), [500, 600]);
}

#[test]
fn a_stale_plan_gives_nothing_out_twice() {
    use crate::ctl::Input;
    use crate::ctl::snapshot;
    use crate::ctl::tests::world::World;
    let mut world = World::new();
    for line in [
        "node n1 h100:1",
        "submit user=alice gpus=1",
        "submit user=alice gpus=1",
    ] {
        world.line(line);
    }
    let plan = gsched::plan(
        &snapshot(&world.state, world.now),
        gsched::WorkBudget::default(),
    );
    world.line("cancel 1");
    world.line("plan");
    world.feed(Input::Plan { plan: plan.clone() }).unwrap();
    world.feed(Input::Plan { plan }).unwrap();
    world.line("show");
    expect![[r#"
        job 1
          note: no --time given and partition "main" has no default: the limit is 1-00:00:00
        job 2
          note: no --time given and partition "main" has no default: the limit is 1-00:00:00
        1 alice CANCELLED 0:0 (root)
        2 alice RUNNING 2-1 on n1[0]
    "#]]
    .assert_eq(&world.out);
}

#[test]
fn finished_jobs_are_forgotten_after_their_age() {
    check(
        "config age=100
         node n1 h100:1
         submit user=alice gpus=1
         submit user=alice gpus=1 array=0-1
         cancel 2
         plan
         n1 running 1-1
         n1 clean 1-1 0
         wait 99
         show
         wait 2
         show
         cancel 1 user=alice",
        expect![[r#"
            job 1
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            job 2
              note: no --time given and partition "main" has no default: the limit is 1-00:00:00
            1 alice COMPLETED 0:0
            refused: no job 1 in the queue. If it was there, it is over: see `gacct -j 1`.
        "#]],
    );
}

#[test]
fn of_very_many_finished_jobs_the_oldest_are_forgotten_after_a_minute() {
    let mut world = World::new();
    world.line("config age=300");
    world.line("submit user=alice hold");
    world.line("cancel 1");
    let (mut state, ended) = (world.state, world.now);
    for id in (2..=10_002).map(JobId) {
        let job = Job {
            id,
            ..state.job(JobId(1)).unwrap().clone()
        };
        state.jobs.insert(id, job);
        state.index.finished.insert((ended, id));
    }
    for (secs, left) in [(59, 10_002), (60, 10_000), (299, 10_000), (300, 0)] {
        let now = ended.plus_secs(secs);
        handle(&mut state, &mut Vec::new(), Input::Wake, now).unwrap();
        assert_eq!(
            (state.index.finished.len(), state.jobs.len()),
            (left, left),
            "after {secs} s"
        );
        assert!(
            next_deadline(&state).is_none_or(|at| at > now),
            "a deadline that is met is over"
        );
        assert!(
            left == 0 || state.job(JobId(10_002)).is_some(),
            "the oldest went"
        );
    }
}

#[test]
fn an_operators_hold_is_an_administrators_on_their_own_jobs_too() {
    let mut world = World::new();
    let config = ClusterConfig {
        allow_root_jobs: true,
        ..(*world.state.config).clone()
    };
    world
        .feed(Input::Configure {
            config: Arc::new(config),
        })
        .unwrap();
    let mut held = |lines: &[&str]| -> Vec<String> {
        lines.iter().for_each(|line| world.line(line));
        world
            .state
            .jobs
            .values()
            .map(|job| format!("{} {}", job.reason.code, job.holds.len()))
            .collect()
    };
    let jobs = [
        "submit user=root gpus=1 time=60",
        "submit user=root gpus=1 time=60 held",
        "submit user=alice gpus=1 time=60",
    ];
    assert_eq!(held(&jobs), ["None 0", "JobHeldUser 1", "None 0"]);
    assert_eq!(
        held(&["hold 1 user=root", "hold 2 user=root", "hold 3 user=root"]),
        ["JobHeldAdmin 1", "JobHeldUser 2", "JobHeldAdmin 1"]
    );
    assert_eq!(
        held(&["release 3 user=alice"])[2],
        "JobHeldAdmin 1",
        "it is not hers"
    );
    assert_eq!(
        held(&[
            "release 1 user=root",
            "release 2 user=root",
            "release 3 user=root"
        ]),
        ["None 0"; 3]
    );
}
