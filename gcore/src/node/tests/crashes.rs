//! Random stories in which the daemon and the machine crash: no run starts twice, and all is tidied in the end.

use crate::node::tests::{NOW, feed};
use crate::node::*;
use gmodel::run::{DesiredRun, DesiredState, EndCause, RunEnd, RunTarget, StopCause};
use gmodel::{Fence, NodeLife, RunId};
use proptest::prelude::*;
use std::collections::BTreeMap;

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
                    (Some(end), _) => SpooledRun::Ended {
                        end: end.clone(),
                        clean: spool.clean,
                    },
                    (None, Some(Supervisor::Ready)) => SpooledRun::Ready,
                    (None, Some(Supervisor::Running)) => SpooledRun::Running { started: NOW },
                    (None, None) => SpooledRun::Accepted,
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
