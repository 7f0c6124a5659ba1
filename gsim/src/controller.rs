//! The simulated controller process: the real state machine over the simulated store, one commit an input.

use crate::machine::{Behaviour, Order};
use crate::prng::Prng;
use crate::store::Store;
use gcore::ctl::{Event, Input, Refusal, Reply, State, check, desired, handle};
use gmodel::config::{ClusterConfig, GpuSharing, LostNodePolicy, Partition};
use gmodel::policy::Backfill;
use gmodel::run::{DesiredState, EndCause, RunTarget};
use gmodel::{ExitCode, Fence, JobId, NodeId, RunId, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The simulated day begins here.
const BASE: Timestamp = Timestamp::from_secs(1_700_000_000);

/// The last state sent over a connection.
#[derive(Debug)]
pub struct LinkState {
    pub connection: u64,
    pub fence: Fence,
    orders: BTreeSet<RunId>,
}

#[derive(Debug)]
pub struct Controller {
    pub up: bool,
    /// Raised by every start: what belongs to an older one is dropped.
    pub epoch: u64,
    pub state: State,
    pub store: Store,
    pub backup: Option<Store>,
    config: Arc<ClusterConfig>,
    /// How far its clock is off, milliseconds.
    pub clock_off: i64,
    pub commits: u64,
    /// Commits at which it is to crash: before (or after) the commit, and for how long.
    pub crashes: BTreeMap<u64, (bool, i64)>,
    pub told: BTreeMap<NodeId, LinkState>,
    pub planning: bool,
    pub plan_wanted: bool,
    seed: u64,
    /// Jobs take so many times as long as usual.
    pub job_scale: i64,
    /// Check the invariants every so many commits.
    check_every: u64,
}

/// The outcome of an input.
pub enum InputOutcome {
    Done {
        reply: Result<Reply, Refusal>,
        events: Vec<Event>,
    },
    /// It crashed at the commit, for so many milliseconds; the events are those that are durable.
    Crashed { millis: i64, events: Vec<Event> },
}

impl Controller {
    pub fn new(seed: u64, machines: u16, wait_for_lost: bool, fence_program: bool) -> Self {
        let mut config = ClusterConfig {
            partitions: vec![
                Partition {
                    name: "main".into(),
                    is_default: true,
                    ..Partition::default()
                },
                Partition {
                    name: "once".into(),
                    requeue: false,
                    ..Partition::default()
                },
                Partition {
                    name: "parts".into(),
                    gpu_sharing: GpuSharing::Mps,
                    ..Partition::default()
                },
                Partition {
                    name: "loose".into(),
                    gpu_sharing: GpuSharing::Uncapped,
                    ..Partition::default()
                },
            ],
            node_timeout_secs: 60,
            fence_program,
            lost_node: if wait_for_lost {
                LostNodePolicy::Wait
            } else {
                LostNodePolicy::Requeue
            },
            prepare_timeout_secs: 30,
            kill_grace_secs: 10,
            ..ClusterConfig::default()
        };
        // Runs here live for a minute.
        config.scheduler.preempt.min_run_secs = 5;
        // Half of the seeds plan as by default, half with reservations for many.
        if seed.is_multiple_of(2) {
            config.scheduler.backfill = Backfill::First(100);
        }
        Self {
            up: false,
            epoch: 0,
            state: State::default(),
            store: Store::default(),
            backup: None,
            config: Arc::new(config),
            clock_off: 0,
            commits: 0,
            crashes: BTreeMap::new(),
            told: BTreeMap::new(),
            planning: false,
            plan_wanted: false,
            seed,
            job_scale: 1,
            check_every: if machines > 64 { 256 } else { 1 },
        }
    }

    pub fn now(&self, millis: i64) -> Timestamp {
        BASE.plus_millis(millis + self.clock_off)
    }

    /// Reads the store, as a process that begins.
    pub fn start(&mut self) -> [Input; 2] {
        self.up = true;
        self.epoch += 1;
        self.state = self.store.load();
        self.told.clear();
        self.planning = false;
        self.plan_wanted = true;
        [
            Input::Configure {
                config: self.config.clone(),
            },
            Input::Started,
        ]
    }

    pub fn stop(&mut self) {
        self.up = false;
        self.state = State::default();
        self.told.clear();
    }

    /// One input, one commit. `Err` is a broken invariant.
    pub fn take(&mut self, input: Input, millis: i64) -> Result<InputOutcome, String> {
        let now = self.now(millis);
        let mut events = Vec::new();
        let reply = handle(&mut self.state, &mut events, input, now);
        let crash = if events.is_empty() {
            None
        } else {
            self.commits += 1;
            self.crashes.remove(&self.commits)
        };
        if let Some((true, millis)) = crash {
            return Ok(InputOutcome::Crashed {
                millis,
                events: Vec::new(),
            });
        }
        self.store.commit(&self.state, &events);
        self.plan_wanted |= events.iter().any(Event::wakes_planner);
        if self.commits.is_multiple_of(self.check_every)
            && let Some(violation) = check(&self.state).first()
        {
            return Err(format!(
                "controller: {violation}, after {:?}",
                events.last()
            ));
        }
        match crash {
            Some((_, millis)) => Ok(InputOutcome::Crashed { millis, events }),
            None => Ok(InputOutcome::Done { reply, events }),
        }
    }

    /// What to send to a node, if it has not been told already on this connection.
    pub fn news_for(&mut self, node: NodeId) -> Option<(u64, DesiredState, Vec<Order>)> {
        let generation = self.state.nodes.get(node)?.generation;
        let fence = Fence {
            incarnation: self.state.incarnation,
            generation,
        };
        let (seed, job_scale) = (self.seed, self.job_scale);
        let told = self
            .told
            .get_mut(&node)
            .filter(|told| told.fence != fence)?;
        let desired = desired(&self.state, node);
        told.fence = desired.fence;
        let starts = desired
            .runs
            .iter()
            .filter(|one| matches!(one.want, RunTarget::Prepare | RunTarget::Run));
        let fresh: Vec<RunId> = starts
            .map(|one| one.run)
            .filter(|run| told.orders.insert(*run))
            .collect();
        let orders = fresh
            .into_iter()
            .filter_map(|run| order(&self.state, run, node, seed))
            .map(|mut order| {
                order.behaviour.millis *= job_scale;
                order
            })
            .collect();
        Some((told.connection, desired, orders))
    }

    pub fn connected(&mut self, node: NodeId, connection: u64) {
        let told = LinkState {
            connection,
            fence: Fence::default(),
            orders: BTreeSet::new(),
        };
        self.told.insert(node, told);
    }
}

/// The nodes for which an event may change orders.
pub fn nodes_of(state: &State, event: &Event) -> Vec<NodeId> {
    let of_run = |run: RunId| -> Vec<NodeId> {
        state.runs.get(run).map_or(Vec::new(), |run| {
            run.members.iter().map(|m| m.node).collect()
        })
    };
    match event {
        Event::RunPlaced { allocation, .. } => allocation.iter().map(|share| share.node).collect(),
        Event::RunGo { run, .. }
        | Event::RunStopping { run, .. }
        | Event::RunUnneeded { run, .. }
        | Event::RequeueDropped { run, .. }
        | Event::RunSuspended { run, .. }
        | Event::RunResumed { run, .. }
        | Event::RunSignalled { run, .. } => of_run(*run),
        Event::RunReported { node, .. }
        | Event::RunForfeited { node, .. }
        | Event::GpuOrdered { node, .. }
        | Event::GpuOrderEnded { node, .. } => vec![*node],
        Event::NodeHello { node, .. } => vec![*node],
        Event::JobUpdated { job, .. } => state
            .jobs
            .get(*job)
            .and_then(|job| job.live_run())
            .map_or(Vec::new(), of_run),
        Event::Restored { .. } => state.nodes.keys().collect(),
        _ => Vec::new(),
    }
}

fn order(state: &State, run: RunId, node: NodeId, seed: u64) -> Option<Order> {
    let record = state.runs.get(run)?;
    let index = record
        .members
        .iter()
        .position(|member| member.node == node)?;
    let share = &record.allocation[index];
    Some(Order {
        run,
        index,
        gpus: share.gpus.0.clone(),
        limit_secs: record.limit_secs,
        behaviour: match state
            .jobs
            .get(run.job)
            .is_some_and(|job| !job.spec.has_script())
        {
            true => HOLDS_NODES,
            false => behaviour(seed, run.job),
        },
    })
}

/// An allocation has no process of its own: it lasts until it is ended.
const HOLDS_NODES: Behaviour = Behaviour {
    millis: 1 << 40,
    cause: EndCause::Exited,
    exit: ExitCode::SUCCESS,
};

/// What a job's program does: decided by its id, the same in every attempt.
pub fn behaviour(seed: u64, job: JobId) -> Behaviour {
    let mut prng = Prng::new(seed ^ job.0.rotate_left(20), 7);
    let millis = prng.range(10, 60_000);
    let (cause, exit) = match prng.below(20) {
        0..=12 => (EndCause::Exited, ExitCode::SUCCESS),
        13..=16 => (EndCause::Exited, ExitCode::exited(prng.range(1, 250) as u8)),
        17 => (EndCause::Exited, ExitCode::killed(11)),
        18 => (EndCause::OutOfMemory, ExitCode::killed(9)),
        _ => (EndCause::LaunchUser, ExitCode::exited(127)),
    };
    Behaviour {
        millis,
        cause,
        exit,
    }
}
