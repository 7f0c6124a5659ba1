//! Seeds with faults, each to its calm end; a crash at every single commit; and the simulator's own honesty.

use gsim::fuzz::{Summary, run, shrink};
use gsim::scenario::{Act, ActKind, Scenario, SubmissionAct};

fn must_rest(scenario: &Scenario) -> Summary {
    run(scenario, false).unwrap_or_else(|failure| {
        let failure = shrink(failure);
        let acts: Vec<String> = failure.scenario.acts.iter().map(Act::to_string).collect();
        panic!(
            "seed {} fails: {}\n{}\nagain: gsim replay-seed {} --shrink",
            scenario.seed,
            failure.violation,
            acts.join("\n"),
            scenario.seed
        )
    })
}

#[test]
fn whatever_breaks_all_comes_to_rest_and_nothing_is_lost() {
    let (mut suspensions, mut fenced, mut returns, mut unneeded) = (0, 0, 0, 0);
    // The last four: a node that is powered off, limits of quotas while the clock goes back, a job held by the controller and by an operator, a node daemon that
    // is killed while runs go that a restored controller does not know.
    for seed in (1..=100).chain([261, 77_000_402, 77_002_593, 990_007_531]) {
        let summary = must_rest(&Scenario::from_seed(seed, None));
        suspensions += summary.suspensions;
        fenced += summary.fenced;
        returns += summary.returns;
        unneeded += summary.unneeded;
    }
    println!("{returns} jobs put back, {unneeded} asked in vain");
    assert!(
        returns > 20,
        "{returns} jobs were put back: too few to mean anything"
    );
    assert!(
        suspensions > 20 && fenced > 0,
        "{suspensions} runs stood still and {fenced} nodes were powered off: too few to mean anything"
    );
}

/// One job on a node, an array, a job on two nodes, a cancel and a requeue.
fn small_day() -> Scenario {
    let submit = |nodes, tasks| {
        ActKind::Submit(SubmissionAct {
            user: 0,
            gpus: 1,
            nodes,
            tasks,
            cap: 2,
            limit_secs: 40,
            option: 8,
        })
    };
    let acts = vec![
        Act {
            at: 2_000,
            what: submit(1, 0),
        },
        Act {
            at: 2_500,
            what: submit(1, 3),
        },
        Act {
            at: 3_000,
            what: submit(2, 0),
        },
        Act {
            at: 6_000,
            what: ActKind::Requeue { pick: 0 },
        },
        Act {
            at: 8_000,
            what: ActKind::Cancel { pick: 1 },
        },
        Act {
            at: 9_000,
            what: ActKind::CrashDaemon {
                machine: 0,
                millis: 500,
            },
        },
    ];
    Scenario {
        acts,
        calm_from: 30_000,
        ..Scenario::new(4, 2, 2)
    }
}

#[test]
fn a_crash_of_the_controller_at_any_commit_loses_nothing() {
    let commits = run(&small_day(), false)
        .expect("the day without a crash comes to rest")
        .commits;
    assert!(
        commits > 60,
        "{commits} commits are too few to mean anything"
    );
    for commit in 1..=commits {
        for before in [true, false] {
            let mut scenario = small_day();
            let what = ActKind::CrashAtCommit {
                commit,
                before,
                millis: 700,
            };
            scenario.acts.push(Act { at: 0, what });
            must_rest(&scenario);
        }
    }
}

/// It stands still on a node that falls silent with all that runs there: only when the fence program has powered that node
/// off, which it often fails to do, it may start again. Whether it starts beside itself the simulation sees.
#[test]
fn a_job_that_stands_still_on_a_silent_node_waits_for_the_fence_program() {
    let fenced: u64 = (1..=20)
        .map(|seed| {
            let submit = ActKind::Submit(SubmissionAct {
                user: 0,
                gpus: 2,
                nodes: 1,
                tasks: 0,
                cap: 0,
                limit_secs: 300,
                option: 8,
            });
            let acts = vec![
                Act {
                    at: 2_000,
                    what: submit,
                },
                Act {
                    at: 5_000,
                    what: ActKind::Suspend { pick: 0 },
                },
                Act {
                    at: 8_000,
                    what: ActKind::CrashDaemon {
                        machine: 0,
                        millis: 200_000,
                    },
                },
                Act {
                    at: 110_000,
                    what: ActKind::CrashController { millis: 2_000 },
                },
            ];
            let scenario = Scenario {
                fence_fails: Some(5),
                acts,
                calm_from: 400_000,
                ..Scenario::new(seed, 2, 2)
            };
            must_rest(&scenario).fenced
        })
        .sum();
    assert!(
        fenced >= 5,
        "{fenced} of 20 were fenced: too few to mean anything"
    );
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
