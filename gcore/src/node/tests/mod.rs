//! A node's life as text, and as a property: whatever comes and crashes, no run starts twice and all of it is tidied up.

mod crashes;

use super::*;
use expect_test::{Expect, expect};
use gmodel::checkpoint::CheckpointMark;
use gmodel::run::{
    DesiredRun, DesiredState, NumberedSignal, RunEnd, RunPhase, RunTarget, StopCause,
};
use gmodel::{Fence, NodeLife, RunId, Timestamp};
use std::collections::BTreeSet;
use std::fmt::Write;

const NOW: Timestamp = Timestamp(1_000);

fn run(text: &str) -> RunId {
    text.parse().unwrap()
}

/// `5: 17-1 go, 18-1 stop` is generation 5; a leading `2/` is the incarnation.
fn desired(text: &str) -> DesiredState {
    let (fence, runs) = text.split_once(':').unwrap();
    let (incarnation, generation) = fence.split_once('/').unwrap_or(("1", fence));
    let told = |entry: &str| {
        let (name, want) = entry.trim().split_once(' ').unwrap();
        let want = match want {
            "prepare" => RunTarget::Prepare,
            "go" => RunTarget::Run,
            "stop" => RunTarget::Stop {
                why: StopCause::Cancelled,
                grace_secs: 30,
            },
            _ => RunTarget::Unknown,
        };
        DesiredRun {
            run: run(name),
            want,
            signals: Vec::new(),
            limit_secs: Some(60),
            suspended: false,
        }
    };
    DesiredState {
        fence: Fence {
            incarnation: incarnation.parse().unwrap(),
            generation: generation.parse().unwrap(),
        },
        runs: runs
            .split(',')
            .filter(|entry| !entry.trim().is_empty())
            .map(told)
            .collect(),
        gpus: Vec::new(),
    }
}

/// A run that was found running, or `9-1?` one that was only accepted.
fn found(name: &str) -> (RunId, SpooledRun) {
    match name.strip_suffix('?') {
        Some(name) => (run(name), SpooledRun::Accepted),
        None => (run(name), SpooledRun::Running { started: NOW }),
    }
}

fn input(state: &NodeState, line: &str) -> NodeInput {
    let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
    match word {
        "scanned" => NodeInput::Scanned {
            life: NodeLife {
                boot: "b".into(),
                spool: "s".into(),
            },
            fence: Fence {
                incarnation: 1,
                generation: 1,
            },
            runs: rest.split_whitespace().map(found).collect(),
        },
        "told" => {
            let desired = desired(rest);
            let orders = desired.runs.iter().map(|told| told.run).collect();
            NodeInput::DesiredReceived { desired, orders }
        }
        "told-without-orders" => NodeInput::DesiredReceived {
            desired: desired(rest),
            orders: BTreeSet::new(),
        },
        "recorded" => NodeInput::Recorded {
            fence: state.newest_fence(),
        },
        "prepared" => NodeInput::Prepared { run: run(rest) },
        "started" => NodeInput::Started {
            run: run(rest),
            started: NOW,
        },
        "ended" => NodeInput::Ended {
            run: run(rest),
            end: RunEnd::default(),
        },
        "cleaned" => NodeInput::Cleaned { run: run(rest) },
        "forgotten" => NodeInput::Forgotten { run: run(rest) },
        _ => panic!("no input {word:?}"),
    }
}

fn feed(state: &mut NodeState, input: NodeInput) -> Vec<NodeEvent> {
    let events = handle(state, input, NOW);
    for event in &events {
        apply(state, event);
    }
    assert_eq!(check(state), [], "after {events:?}");
    events
}

/// Feeds the lines and prints after each what the state calls for, and how far the runs are.
fn story(lines: &str, expect: Expect) {
    let mut state = NodeState::new();
    let mut out = String::new();
    for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let next = input(&state, line);
        let refused = matches!(
            feed(&mut state, next)[..],
            [NodeEvent::OldTargetRefused { .. }]
        );
        let todo: Vec<String> = actions(&state).iter().map(short).collect();
        let phases: Vec<String> = state
            .runs
            .iter()
            .map(|(run, known)| format!("{run} {}", word(&known.phase)))
            .collect();
        let refused = if refused { " REFUSED" } else { "" };
        writeln!(
            out,
            "{line}{refused} => {} | {}",
            phases.join(", "),
            todo.join("; ")
        )
        .unwrap();
    }
    expect.assert_eq(&out);
}

fn word(phase: &RunPhase) -> String {
    match phase {
        RunPhase::Accepted => "accepted".into(),
        RunPhase::Ready => "ready".into(),
        RunPhase::Running { .. } => "running".into(),
        RunPhase::Ended(end) => format!("ended {:?}", end.cause),
        RunPhase::Clean(end) => format!("clean {:?}", end.cause),
    }
}

fn short(action: &NodeAction) -> String {
    match action {
        NodeAction::Record { fence, accept } => {
            let accept: Vec<String> = accept.iter().map(RunId::to_string).collect();
            format!(
                "record {}/{} [{}]",
                fence.incarnation,
                fence.generation,
                accept.join(" ")
            )
        }
        NodeAction::Prepare { run } => format!("prepare {run}"),
        NodeAction::Abandon { run } => format!("abandon {run}"),
        NodeAction::Go { run } => format!("go {run}"),
        NodeAction::Stop {
            run,
            why,
            grace_secs,
        } => format!("stop {run} {why:?} {grace_secs}s"),
        NodeAction::Signal { run, signal } => {
            format!("signal {run} #{} {}", signal.number, signal.signal)
        }
        NodeAction::Limit { run, limit_secs } => format!("limit {run} {}", limit_secs.unwrap_or(0)),
        NodeAction::Suspend { run, suspended } => {
            format!("{} {run}", if *suspended { "suspend" } else { "go on" })
        }
        NodeAction::Clean { run } => format!("clean {run}"),
        NodeAction::Forget { run } => format!("forget {run}"),
    }
}

#[test]
fn a_run_goes_from_order_to_oblivion() {
    story(
        "scanned
         told 2: 17-1 go
         recorded
         prepared 17-1
         started 17-1
         ended 17-1
         cleaned 17-1
         told 3:
         recorded
         forgotten 17-1",
        expect![[r#"
            scanned =>  | 
            told 2: 17-1 go =>  | record 1/2 [17-1]
            recorded => 17-1 accepted | prepare 17-1
            prepared 17-1 => 17-1 ready | limit 17-1 60; go 17-1
            started 17-1 => 17-1 running | limit 17-1 60; go on 17-1
            ended 17-1 => 17-1 ended Exited | clean 17-1
            cleaned 17-1 => 17-1 clean Exited | 
            told 3: => 17-1 clean Exited | record 1/3 []
            recorded => 17-1 clean Exited | forget 17-1
            forgotten 17-1 =>  | 
        "#]],
    );
}

#[test]
fn a_member_of_several_nodes_waits_for_go() {
    story(
        "scanned
         told 2: 17-1 prepare
         recorded
         prepared 17-1
         told 3: 17-1 go
         recorded",
        expect![[r#"
            scanned =>  | 
            told 2: 17-1 prepare =>  | record 1/2 [17-1]
            recorded => 17-1 accepted | prepare 17-1
            prepared 17-1 => 17-1 ready | limit 17-1 60
            told 3: 17-1 go => 17-1 ready | record 1/3 []; limit 17-1 60
            recorded => 17-1 ready | limit 17-1 60; go 17-1
        "#]],
    );
}

#[test]
fn a_lower_fence_is_refused_even_while_a_newer_one_is_being_written() {
    story(
        "scanned 9-1
         told 5: 9-1 go
         told 4: 9-1 stop
         recorded
         told 4: 9-1 stop
         told 2/1: 9-1 stop
         told 9: 9-1 go",
        expect![[r#"
            scanned 9-1 => 9-1 running | 
            told 5: 9-1 go => 9-1 running | record 1/5 []
            told 4: 9-1 stop REFUSED => 9-1 running | record 1/5 []
            recorded => 9-1 running | limit 9-1 60; go on 9-1
            told 4: 9-1 stop REFUSED => 9-1 running | limit 9-1 60; go on 9-1
            told 2/1: 9-1 stop => 9-1 running | record 2/1 []; limit 9-1 60; go on 9-1
            told 9: 9-1 go REFUSED => 9-1 running | record 2/1 []; limit 9-1 60; go on 9-1
        "#]],
    );
}

#[test]
fn runs_of_an_earlier_controller_live_until_it_says_otherwise() {
    story(
        "scanned 9-1 10-1
         told 2/1: 9-1 go
         recorded",
        expect![[r#"
            scanned 9-1 10-1 => 9-1 running, 10-1 running | 
            told 2/1: 9-1 go => 9-1 running, 10-1 running | record 2/1 []
            recorded => 9-1 running, 10-1 running | limit 9-1 60; go on 9-1; stop 10-1 Fenced 5s
        "#]],
    );
}

#[test]
fn no_run_is_prepared_before_the_other_runs_are_known() {
    // The daemon was killed between a target of a restored controller, that does not know of 9-1, and its end.
    story(
        "scanned 9-1 10-1?
         told 2/1: 10-1 go
         recorded
         ended 9-1
         cleaned 9-1",
        expect![[r#"
            scanned 9-1 10-1? => 9-1 running, 10-1 accepted | 
            told 2/1: 10-1 go => 9-1 running, 10-1 accepted | record 2/1 []
            recorded => 9-1 running, 10-1 accepted | stop 9-1 Fenced 5s
            ended 9-1 => 9-1 ended Exited, 10-1 accepted | clean 9-1
            cleaned 9-1 => 9-1 clean Exited, 10-1 accepted | forget 9-1; prepare 10-1
        "#]],
    );
}

#[test]
fn a_stop_before_the_run_is_ready_starts_nothing() {
    story(
        "scanned
         told 2: 17-1 go
         recorded
         told 3: 17-1 stop
         recorded
         prepared 17-1
         ended 17-1",
        expect![[r#"
            scanned =>  | 
            told 2: 17-1 go =>  | record 1/2 [17-1]
            recorded => 17-1 accepted | prepare 17-1
            told 3: 17-1 stop => 17-1 accepted | record 1/3 []; prepare 17-1
            recorded => 17-1 accepted | abandon 17-1
            prepared 17-1 => 17-1 ready | stop 17-1 Cancelled 30s
            ended 17-1 => 17-1 ended Exited | clean 17-1
        "#]],
    );
}

#[test]
fn a_run_that_never_came_is_reported_clean() {
    story(
        "scanned
         told-without-orders 2: 17-1 stop, 18-1 go
         recorded
         told 3:
         recorded",
        expect![[r#"
            scanned =>  | 
            told-without-orders 2: 17-1 stop, 18-1 go =>  | record 1/2 []
            recorded => 17-1 clean Stopped, 18-1 clean LaunchNode | 
            told 3: => 17-1 clean Stopped, 18-1 clean LaunchNode | record 1/3 []
            recorded => 17-1 clean Stopped, 18-1 clean LaunchNode | forget 17-1; forget 18-1
        "#]],
    );
}

#[test]
fn nothing_is_obeyed_before_the_spool_was_read() {
    story(
        "told 2: 17-1 go",
        expect![[r#"
        told 2: 17-1 go =>  | 
    "#]],
    );
}

#[test]
fn signals_a_new_limit_and_the_word_to_stand_still_reach_a_running_job() {
    let mut state = NodeState::new();
    let scanned = input(&state, "scanned 9-1");
    feed(&mut state, scanned);
    let mut wanted = desired("2: 9-1 go");
    wanted.runs[0].signals = vec![NumberedSignal {
        number: 1,
        signal: 10,
        batch_only: false,
        full: false,
    }];
    wanted.runs[0].limit_secs = None;
    wanted.runs[0].suspended = true;
    feed(
        &mut state,
        NodeInput::DesiredReceived {
            desired: wanted.clone(),
            orders: BTreeSet::new(),
        },
    );
    feed(
        &mut state,
        NodeInput::Recorded {
            fence: wanted.fence,
        },
    );
    let todo: Vec<String> = actions(&state).iter().map(short).collect();
    assert_eq!(todo, ["limit 9-1 0", "suspend 9-1", "signal 9-1 #1 10"]);
    let again = feed(
        &mut state,
        NodeInput::DesiredReceived {
            desired: wanted,
            orders: BTreeSet::new(),
        },
    );
    assert_eq!(again, [], "the same target is not written twice");
}

#[test]
fn an_unknown_wish_changes_nothing() {
    story(
        "scanned 9-1
         told 2: 9-1 dance, 10-1 dance
         recorded
         prepared 10-1",
        expect![[r#"
            scanned 9-1 => 9-1 running | 
            told 2: 9-1 dance, 10-1 dance => 9-1 running | record 1/2 [10-1]
            recorded => 9-1 running, 10-1 accepted | limit 9-1 60; go on 9-1; prepare 10-1
            prepared 10-1 => 9-1 running, 10-1 ready | limit 9-1 60; go on 9-1; limit 10-1 60
        "#]],
    );
}

#[test]
fn marks_only_grow_and_are_on_every_report() {
    let mut state = NodeState::new();
    feed(&mut state, input(&NodeState::new(), "scanned 9-1"));
    let mark = |number| CheckpointMark {
        number,
        at: NOW,
        note: format!("epoch {number}"),
    };
    let newest = |state: &NodeState| reports(state)[0].mark.clone();
    assert_eq!(newest(&state), None);
    feed(
        &mut state,
        NodeInput::Marked {
            run: run("9-1"),
            mark: mark(2),
        },
    );
    assert_eq!(
        feed(
            &mut state,
            NodeInput::Marked {
                run: run("9-1"),
                mark: mark(2)
            }
        ),
        [],
        "said again"
    );
    assert_eq!(
        feed(
            &mut state,
            NodeInput::Marked {
                run: run("9-1"),
                mark: mark(1)
            }
        ),
        [],
        "late"
    );
    assert_eq!(
        feed(
            &mut state,
            NodeInput::Marked {
                run: run("8-1"),
                mark: mark(1)
            }
        ),
        [],
        "of a run that is not here"
    );
    feed(
        &mut state,
        NodeInput::Ended {
            run: run("9-1"),
            end: RunEnd::default(),
        },
    );
    feed(
        &mut state,
        NodeInput::Marked {
            run: run("9-1"),
            mark: mark(3),
        },
    );
    feed(&mut state, NodeInput::Cleaned { run: run("9-1") });
    assert_eq!(
        newest(&state),
        Some(mark(3)),
        "the spool was read once more at the end"
    );
}
