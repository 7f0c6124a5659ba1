//! Seeds with faults, each to its calm end; a crash at every single commit; and the simulator's own honesty.

use gsim::fuzz::{run, shrink};
use gsim::scenario::{Act, Scenario, What};

fn must_rest(scenario: &Scenario) {
    if let Err(failure) = run(scenario, false) {
        let failure = shrink(failure);
        let acts: Vec<String> = failure.scenario.acts.iter().map(Act::to_string).collect();
        panic!(
            "seed {} fails: {}\n{}\nagain: gsim replay-seed {} --shrink",
            scenario.seed,
            failure.violation,
            acts.join("\n"),
            scenario.seed
        );
    }
}

#[test]
fn whatever_breaks_all_comes_to_rest_and_nothing_is_lost() {
    for seed in 1..=100 {
        must_rest(&Scenario::from_seed(seed, None));
    }
}

/// One job on a node, an array, a job on two nodes, a cancel and a requeue.
fn small_day() -> Scenario {
    let submit = |nodes, tasks| What::Submit { user: 0, gpus: 1, nodes, tasks, cap: 2, limit_secs: 40, option: 8 };
    let acts = vec![
        Act { at: 2_000, what: submit(1, 0) },
        Act { at: 2_500, what: submit(1, 3) },
        Act { at: 3_000, what: submit(2, 0) },
        Act { at: 6_000, what: What::Requeue { pick: 0 } },
        Act { at: 8_000, what: What::Cancel { pick: 1 } },
        Act { at: 9_000, what: What::CrashDaemon { machine: 0, millis: 500 } },
    ];
    Scenario { seed: 4, machines: 2, gpus: 2, wait_for_lost: false, acts, calm_from: 30_000 }
}

#[test]
fn a_crash_of_the_controller_at_any_commit_loses_nothing() {
    let commits = run(&small_day(), false).expect("the day without a crash comes to rest").commits;
    assert!(commits > 60, "{commits} commits are too few to mean anything");
    for commit in 1..=commits {
        for before in [true, false] {
            let mut scenario = small_day();
            let what = What::CrashAtCommit { commit, before, millis: 700 };
            scenario.acts.push(Act { at: 0, what });
            must_rest(&scenario);
        }
    }
}

#[test]
fn a_seed_is_the_same_every_time() {
    let one = run(&Scenario::from_seed(11, None), false).expect("seed 11 comes to rest");
    let other = run(&Scenario::from_seed(11, None), true).expect("and with a trace too");
    assert_eq!(one, other);
}

#[test]
fn two_hundred_machines_come_to_rest() {
    must_rest(&Scenario::from_seed(1, Some(200)));
}

#[test]
fn a_large_cluster_is_simulated_far_faster_than_it_lives() {
    let day = gsim::bench::busy_day(300, 2_000, 120).expect("a busy day breaks nothing");
    assert_eq!(day.runs_placed, 2_000, "{day:?}");
}
