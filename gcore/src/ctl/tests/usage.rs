//! Charges: which accounts and users are charged for which runs, and when.

use crate::ctl::tests::world::World;
use crate::ctl::{Input, NodeReport};
use gmodel::Timestamp;
use gmodel::policy::Period;
use gmodel::run::{RunEnd, RunPhase, RunReport};

fn after(story: &str) -> World {
    let mut world = World::new();
    for line in story.lines().map(str::trim).filter(|line| !line.is_empty()) {
        world.line(line);
    }
    world
}

/// GPU-seconds charged to an account today.
fn gpu_secs(world: &World, account: &str) -> u128 {
    world
        .state
        .usage
        .in_period(account, Period::Day, world.now, Some("h100"))
        / 1_000_000
}

/// Weighted use of each user, thousandths of a GPU times seconds.
fn used(world: &World, at: Timestamp) -> Vec<(String, u64)> {
    let half_life = world.state.config.scheduler.fair_share.half_life_secs;
    let users = world
        .state
        .usage
        .users()
        .map(|(account, user, used)| (format!("{account}/{user}"), used.at(at, half_life)));
    users.collect()
}

#[test]
fn a_run_is_charged_once_from_its_first_process_to_its_last() {
    let begun = "node n1 h100:4
         account lab
         submit user=alice account=lab gpus=2 time=60
         plan
         wait 10
         n1 running 1-1
         wait 100
         n1 exits 1-1 0";
    let mut world = after(begun);
    assert_eq!(
        gpu_secs(&world, "lab"),
        200,
        "not before the end, and not the time of getting ready"
    );
    let charged = used(&world, world.now);
    assert_eq!(charged.len(), 1);
    // GPUs, and what CPUs and memory weigh.
    assert!(
        charged[0].0 == "lab/alice" && (200_000..240_000).contains(&charged[0].1),
        "{charged:?}"
    );
    world.line("wait 50");
    world.line("n1 clean 1-1 0");
    assert_eq!(
        gpu_secs(&world, "lab"),
        200,
        "what the node does afterwards is not the user's"
    );
    let before = world.state.usage.clone();
    world.line("restart");
    assert_eq!(world.state.usage, before);
}

#[test]
fn nothing_is_charged_while_a_run_goes_on_or_when_it_never_began() {
    let world = after(
        "node n1 h100:4
         submit user=alice gpus=1 time=60
         submit user=bob gpus=1 time=60
         plan
         n1 running 1-1
         wait 100
         cancel 2
         n1 stopped 2-1",
    );
    assert_eq!(used(&world, world.now), []);
}

#[test]
fn each_attempt_is_charged() {
    let world = after(
        "node n1 h100:4
         submit user=alice gpus=4 time=60
         plan
         n1 running 1-1
         wait 100
         requeue 1
         n1 stops 1-1
         n1 clean 1-1 0
         plan
         n1 running 1-2
         wait 30
         n1 clean 1-2 0",
    );
    let account = world
        .state
        .job(gmodel::JobId(1))
        .unwrap()
        .spec
        .account
        .clone();
    assert_eq!(gpu_secs(&world, &account), 400 + 120);
}

#[test]
fn the_time_that_a_run_stands_still_is_not_charged() {
    let story = |end: &str| {
        let world = after(&format!(
            "node n1 h100:4
             submit user=alice gpus=4 time=6000
             plan
             n1 running 1-1
             wait 100
             suspend 1
             wait 1000
             go-on 1
             wait 30
             suspend 1
             wait 500
             {end}"
        ));
        let account = world
            .state
            .job(gmodel::JobId(1))
            .unwrap()
            .spec
            .account
            .clone();
        gpu_secs(&world, &account)
    };
    assert_eq!(story("n1 clean 1-1 0"), 520);
    assert_eq!(
        story("cancel 1\nwait 10\nn1 stopped 1-1"),
        560,
        "while it is ended it holds what others could have"
    );
}

#[test]
fn a_qos_makes_use_dearer_for_fair_share_but_not_for_budgets() {
    let world = after(
        "node n1 h100:4
         qos fast usage_factor=3000
         submit user=alice gpus=1 time=60 qos=fast
         plan
         n1 running 1-1
         wait 100
         n1 clean 1-1 0",
    );
    let (who, used) = used(&world, world.now).remove(0);
    assert!((300_000..360_000).contains(&used), "{used}");
    assert_eq!(gpu_secs(&world, who.split('/').next().unwrap()), 100);
}

/// A run of two nodes with 8 GPUs each; its script ends 10 s before the other node reports so.
const LATE_NODE: &str = "node n1 h100:8
    node n2 h100:8
    account lab
    account other
    submit user=alice account=lab nodes=2 gpn=8 time=600
    submit user=bob account=other gpus=8 time=600
    plan
    n1 ready 1-1
    n2 ready 1-1
    n1 running 1-1
    n2 running 1-1
    wait 10
    n1 clean 1-1 0
    wait 2
    plan
    n1 running 2-1";

#[test]
fn a_run_is_completing_from_its_scripts_end_and_charged_on_each_node_until_that_nodes_end() {
    let mut world = after(LATE_NODE);
    let job = |world: &World| world.state.job(gmodel::JobId(1)).unwrap().clone();
    assert_eq!(
        (job(&world).state, job(&world).past.ended),
        (gmodel::JobState::Completing, Some(world.now.plus_secs(-2)))
    );
    assert!(
        world.state.job(gmodel::JobId(2)).unwrap().live.is_some(),
        "the first node's GPUs are others' already"
    );
    world.line("wait 8");
    world.line("n2 stopped 1-1");
    assert_eq!(job(&world).state, gmodel::JobState::Completed);
    let outcome_secs = |millis: &[i64]| {
        millis
            .iter()
            .map(|millis| millis / 1000)
            .collect::<Vec<_>>()
    };
    assert_eq!(gpu_secs(&world, "lab"), 8 * 10 + 8 * 20);
    assert_eq!(
        outcome_secs(&[job(&world)
            .past
            .ended
            .unwrap()
            .since_millis(job(&world).past.started.unwrap())]),
        [20]
    );
    world.line("n1 clean 2-1 0");
    assert_eq!(gpu_secs(&world, "other"), 8 * 8, "and none of that twice");
}

/// What a node says 12 s after it started a run, when the controller's clock was set in between.
fn charged_after_a_step(at_start: i64, at_end: i64) -> (u128, i64) {
    let mut world = after(
        "node n1 h100:8
         account lab
         submit user=alice account=lab gpus=8 time=600
         plan",
    );
    let (run, node) = (gmodel::RunId::new(gmodel::JobId(1), 1), gmodel::NodeId(1));
    // The node's own clock is an hour behind.
    let here = world.now.plus_secs(-3600);
    let say = |world: &mut World, phase: RunPhase, sent: Timestamp| {
        let runs = vec![RunReport {
            sent: Some(sent),
            ..RunReport::new(run, phase)
        }];
        world
            .feed(Input::Node {
                node,
                report: NodeReport::Runs { runs },
            })
            .unwrap();
    };
    world.now = world.now.plus_secs(at_start);
    say(&mut world, RunPhase::Running { started: here }, here);
    world.now = world.now.plus_secs(12 + at_end);
    let over = here.plus_secs(12);
    let end = RunEnd {
        started: Some(here),
        ended: Some(over),
        ran_millis: Some(12_000),
        ..RunEnd::default()
    };
    say(&mut world, RunPhase::Clean(end.into()), over);
    let job = world.state.job(gmodel::JobId(1)).unwrap();
    (
        gpu_secs(&world, "lab"),
        job.past
            .ended
            .unwrap()
            .since_secs(job.past.started.unwrap()),
    )
}

#[test]
fn a_step_of_the_controllers_clock_changes_no_charge() {
    for (at_start, at_end) in [
        (0, 0),
        (0, 20),
        (20, 0),
        (0, -20),
        (-20, 0),
        (0, 86_400),
        (3, -9),
    ] {
        assert_eq!(
            charged_after_a_step(at_start, at_end),
            (96, 12),
            "{at_start} s at the start, {at_end} s at the end"
        );
    }
}
