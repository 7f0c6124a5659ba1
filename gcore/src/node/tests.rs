//! A node's life as text, and as a property: whatever comes and crashes, no run starts twice and all of it is tidied up.

use super::*;
use expect_test::{Expect, expect};
use gmodel::checkpoint::CheckpointMark;
use gmodel::run::{
    DesiredRun, DesiredState, EndCause, NumberedSignal, RunEnd, RunPhase, RunTarget, StopCause,
};
use gmodel::{Fence, NodeLife, RunId, Timestamp};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
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
fn found(name: &str) -> (RunId, Found) {
    match name.strip_suffix('?') {
        Some(name) => (run(name), Found::Accepted),
        None => (run(name), Found::Running { started: NOW }),
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
fn nothing_is_made_ready_before_it_is_known_who_is_in_the_way() {
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

// --- the property ---

/// A run's files and its supervisor: what survives the daemon.
#[derive(Clone, Debug, Default)]
struct Spool {
    supervisor: Option<Supervisor>,
    /// A supervisor was started at some time.
    setup: bool,
    exit: Option<RunEnd>,
    clean: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Supervisor {
    Ready,
    Running,
}

/// A node with its disk, and a controller that remembers everything it ever sent.
struct World {
    state: NodeState,
    durable_fence: Fence,
    boot: u32,
    spool: BTreeMap<RunId, Spool>,
    starts: BTreeMap<RunId, u32>,
    reported: BTreeMap<RunId, u8>,
    wanted: BTreeMap<RunId, RunTarget>,
    fence: Fence,
    sent: Vec<DesiredState>,
    next_job: u64,
}

#[derive(Clone, Debug)]
enum Op {
    Submit(bool),
    Go(usize),
    Stop(usize),
    Replay(usize),
    /// Carry out one of the actions; with `true` the daemon is killed before it hears the outcome.
    Act(usize, bool),
    JobEnds(usize),
    SupervisorDies(usize),
    RestartDaemon,
    Reboot,
    NewIncarnation,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        2 => any::<bool>().prop_map(Op::Submit),
        2 => (0usize..8).prop_map(Op::Go),
        1 => (0usize..8).prop_map(Op::Stop),
        1 => (0usize..64).prop_map(Op::Replay),
        12 => (0usize..8, prop::bool::weighted(0.15)).prop_map(|(i, crash)| Op::Act(i, crash)),
        2 => (0usize..8).prop_map(Op::JobEnds),
        1 => (0usize..8).prop_map(Op::SupervisorDies),
        1 => Just(Op::RestartDaemon),
        1 => Just(Op::Reboot),
        1 => Just(Op::NewIncarnation),
    ];
    proptest::collection::vec(op, 0..120)
}

impl World {
    fn new() -> Self {
        let mut world = Self {
            state: NodeState::new(),
            durable_fence: Fence::default(),
            boot: 1,
            spool: BTreeMap::new(),
            starts: BTreeMap::new(),
            reported: BTreeMap::new(),
            wanted: BTreeMap::new(),
            fence: Fence {
                incarnation: 1,
                generation: 0,
            },
            sent: Vec::new(),
            next_job: 1,
        };
        world.restart_daemon();
        world
    }

    fn restart_daemon(&mut self) {
        self.state = NodeState::new();
        let mut found = Vec::new();
        for (&run, spool) in &mut self.spool {
            let lost = spool.setup && spool.supervisor.is_none() && spool.exit.is_none();
            if lost {
                spool.exit = Some(RunEnd {
                    cause: EndCause::SupervisorLost,
                    ..RunEnd::default()
                });
            }
            found.push((
                run,
                match (&spool.exit, spool.supervisor) {
                    (Some(end), _) => Found::Ended {
                        end: end.clone(),
                        clean: spool.clean,
                    },
                    (None, Some(Supervisor::Ready)) => Found::Ready,
                    (None, Some(Supervisor::Running)) => Found::Running { started: NOW },
                    (None, None) => Found::Accepted,
                },
            ));
        }
        let life = NodeLife {
            boot: self.boot.to_string(),
            spool: "s".into(),
        };
        // Runs refused in memory only are named again by the next target.
        self.reported.retain(|run, _| self.spool.contains_key(run));
        self.feed(NodeInput::Scanned {
            life,
            fence: self.durable_fence,
            runs: found,
        });
        if let Some(last) = self.sent.last().cloned() {
            self.deliver(last);
        }
    }

    fn feed(&mut self, input: NodeInput) {
        feed(&mut self.state, input);
        for report in reports(&self.state) {
            let before = self
                .reported
                .insert(report.run, report.phase.rank())
                .unwrap_or(0);
            assert!(
                before <= report.phase.rank(),
                "{} went back to {:?}",
                report.run,
                report.phase
            );
        }
        self.reported
            .retain(|run, _| self.state.runs.contains_key(run));
    }

    fn deliver(&mut self, desired: DesiredState) {
        // Orders are at hand for what the controller wants at all, whatever the target's age.
        let orders = desired.runs.iter().map(|told| told.run).collect();
        self.feed(NodeInput::DesiredReceived { desired, orders });
    }

    fn send(&mut self) {
        self.fence.generation += 1;
        // The controller lets a run go once it has heard that it is clean.
        let clean = |run: &RunId| self.reported.get(run) == Some(&4);
        self.wanted.retain(|run, _| !clean(run));
        let told = |(&run, want): (&RunId, &RunTarget)| DesiredRun {
            run,
            want: want.clone(),
            signals: Vec::new(),
            limit_secs: None,
            suspended: false,
        };
        let desired = DesiredState {
            fence: self.fence,
            runs: self.wanted.iter().map(told).collect(),
            gpus: Vec::new(),
        };
        self.sent.push(desired.clone());
        self.deliver(desired);
    }

    fn want(&mut self, index: usize, want: RunTarget) {
        let count = self.wanted.len().max(1);
        if let Some(slot) = self.wanted.values_mut().nth(index % count)
            && !matches!(slot, RunTarget::Stop { .. })
        {
            *slot = want;
            self.send();
        }
    }

    fn end(&mut self, run: RunId, cause: EndCause) {
        let spool = self
            .spool
            .get_mut(&run)
            .expect("a run with a supervisor has files");
        spool.supervisor = None;
        let end = RunEnd {
            cause,
            ..RunEnd::default()
        };
        let end = spool.exit.get_or_insert(end).clone();
        self.feed(NodeInput::Ended { run, end });
    }

    /// Does one action as the daemon would; `None` when it has no outcome to tell.
    fn act(&mut self, action: &NodeAction) -> Option<NodeInput> {
        match action {
            NodeAction::Record { fence, accept } => {
                for &run in accept {
                    self.spool.entry(run).or_default();
                }
                self.durable_fence = self.durable_fence.max(*fence);
                Some(NodeInput::Recorded { fence: *fence })
            }
            NodeAction::Prepare { run } => {
                let spool = self.spool.get_mut(run).expect("accepted runs have files");
                (spool.setup, spool.supervisor) = (true, Some(Supervisor::Ready));
                Some(NodeInput::Prepared { run: *run })
            }
            NodeAction::Abandon { run } | NodeAction::Stop { run, .. } => {
                let spool = self.spool.get_mut(run).expect("live runs have files");
                spool.supervisor = None;
                let end = RunEnd {
                    cause: EndCause::Stopped,
                    ..RunEnd::default()
                };
                let end = spool.exit.get_or_insert(end).clone();
                Some(NodeInput::Ended { run: *run, end })
            }
            NodeAction::Go { run } => {
                let spool = self.spool.get_mut(run).expect("ready runs have files");
                if spool.supervisor == Some(Supervisor::Ready) {
                    spool.supervisor = Some(Supervisor::Running);
                    *self.starts.entry(*run).or_default() += 1;
                }
                (spool.supervisor.is_some()).then_some(NodeInput::Started {
                    run: *run,
                    started: NOW,
                })
            }
            NodeAction::Clean { run } => {
                self.spool
                    .get_mut(run)
                    .expect("ended runs have files")
                    .clean = true;
                Some(NodeInput::Cleaned { run: *run })
            }
            NodeAction::Forget { run } => {
                self.spool.remove(run);
                Some(NodeInput::Forgotten { run: *run })
            }
            NodeAction::Signal { .. } | NodeAction::Limit { .. } | NodeAction::Suspend { .. } => {
                None
            }
        }
    }

    fn supervised(&self, index: usize) -> Option<RunId> {
        let live: Vec<RunId> = self
            .spool
            .iter()
            .filter(|(_, s)| s.supervisor.is_some())
            .map(|(run, _)| *run)
            .collect();
        live.get(index % live.len().max(1)).copied()
    }

    fn step(&mut self, op: &Op) {
        match *op {
            Op::Submit(go) => {
                let run = RunId::new(gmodel::JobId(self.next_job), 1);
                self.next_job += 1;
                self.wanted.insert(
                    run,
                    if go {
                        RunTarget::Run
                    } else {
                        RunTarget::Prepare
                    },
                );
                self.send();
            }
            Op::Go(index) => self.want(index, RunTarget::Run),
            Op::Stop(index) => self.want(
                index,
                RunTarget::Stop {
                    why: StopCause::Cancelled,
                    grace_secs: 1,
                },
            ),
            Op::Replay(index) => {
                if !self.sent.is_empty() {
                    self.deliver(self.sent[index % self.sent.len()].clone());
                }
            }
            Op::Act(index, crash) => {
                let todo = actions(&self.state);
                if todo.is_empty() {
                    return;
                }
                let outcome = self.act(&todo[index % todo.len()]);
                match outcome {
                    _ if crash => self.restart_daemon(),
                    Some(input) => self.feed(input),
                    None => {}
                }
            }
            Op::JobEnds(index) => {
                if let Some(run) = self.supervised(index)
                    && self.spool[&run].supervisor == Some(Supervisor::Running)
                {
                    self.end(run, EndCause::Exited);
                }
            }
            Op::SupervisorDies(index) => {
                if let Some(run) = self.supervised(index) {
                    self.end(run, EndCause::SupervisorLost);
                }
            }
            Op::RestartDaemon => self.restart_daemon(),
            Op::Reboot => {
                self.boot += 1;
                for spool in self.spool.values_mut() {
                    spool.supervisor = None;
                    let end = RunEnd {
                        cause: EndCause::NodeRebooted,
                        ..RunEnd::default()
                    };
                    spool.exit.get_or_insert(end);
                }
                self.restart_daemon();
            }
            Op::NewIncarnation => {
                self.fence = Fence {
                    incarnation: self.fence.incarnation + 1,
                    generation: 0,
                };
                self.send();
            }
        }
    }

    /// The controller stops all; no more faults: everything must be tidied up.
    fn calm(&mut self) {
        let runs: Vec<RunId> = self.wanted.keys().copied().collect();
        for run in runs {
            self.wanted.insert(
                run,
                RunTarget::Stop {
                    why: StopCause::Cancelled,
                    grace_secs: 0,
                },
            );
        }
        for _ in 0..200 {
            self.send();
            for action in actions(&self.state) {
                if let Some(input) = self.act(&action) {
                    self.feed(input);
                }
            }
            if self.wanted.is_empty() && self.state.runs.is_empty() && self.state.pending.is_none()
            {
                break;
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn whatever_crashes_no_run_starts_twice_and_all_is_tidied(ops in ops()) {
        let mut world = World::new();
        for op in &ops {
            world.step(op);
        }
        world.calm();
        for (run, starts) in &world.starts {
            prop_assert!(*starts <= 1, "{run} was started {starts} times");
        }
        prop_assert!(world.state.runs.is_empty(), "left in state: {:?}", world.state.runs);
        prop_assert!(world.spool.is_empty(), "left on disk: {:?}", world.spool);
        prop_assert_eq!(world.durable_fence, world.fence);
    }
}
