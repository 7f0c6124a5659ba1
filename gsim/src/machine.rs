//! A simulated machine: what is on its disk, which supervisors and processes it has, and its daemon.
//!
//! Disk and processes are the ground truth: they survive the daemon. Processes do not survive a reboot.

use crate::node_gpus::NodeGpus;
use gcore::node::{NodeState, SpooledRun};
use gmodel::node::Inventory;
use gmodel::run::{EndCause, RunEnd, RunPhase};
use gmodel::{ExitCode, Fence, GpuGrant, NodeId, NodeLife, RunId, Timestamp};
use std::collections::{BTreeMap, BTreeSet};

/// What the job's program does, known only to the simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Behaviour {
    pub millis: i64,
    pub cause: EndCause,
    pub exit: ExitCode,
}

/// The launch order of a run on one node.
#[derive(Clone, Debug)]
pub struct Order {
    pub run: RunId,
    /// 0 is the batch node; the others only hold their share until they are stopped.
    pub index: usize,
    pub gpus: Vec<GpuGrant>,
    pub limit_secs: Option<u32>,
    pub behaviour: Behaviour,
}

#[derive(Clone, Debug)]
pub struct SpoolRun {
    pub order: Order,
    /// Boot in which it was accepted.
    pub boot: u32,
    /// A supervisor was started once: without an exit record it is never started again.
    pub supervised: bool,
    pub exit: Option<RunEnd>,
    pub clean: bool,
}

/// What survives everything but the loss of the disk.
#[derive(Clone, Debug, Default)]
pub struct Spool {
    pub fence: Fence,
    pub runs: BTreeMap<RunId, SpoolRun>,
}

/// A supervisor with the processes of its run.
#[derive(Clone, Debug)]
pub struct Supervisor {
    pub order: Order,
    /// The user's process was started then and lives.
    pub running_since: Option<i64>,
    /// Its processes are frozen since then; and how long they were before.
    pub frozen_since: Option<i64>,
    pub stood_still: i64,
    /// The supervisor itself is gone; the processes are not.
    pub dead: bool,
    pub stopping: bool,
    /// Only the newest timer of its end counts.
    pub timer: u64,
}

/// The node daemon: gone with everything in it when it crashes.
#[derive(Debug, Default)]
pub struct Daemon {
    pub epoch: u64,
    pub state: NodeState,
    /// Work under way, so that it is not begun twice.
    pub busy: BTreeSet<Work>,
    pub orders: BTreeMap<RunId, Order>,
    pub connection: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Work {
    WriteOrders(Fence),
    WriteFence(Fence),
    Prepare(RunId),
    Abandon(RunId),
    Clean(RunId),
    Forget(RunId),
}

#[derive(Debug)]
pub struct Machine {
    pub id: NodeId,
    pub name: String,
    pub powered: bool,
    pub boot: u32,
    pub spool_number: u32,
    pub spool: Spool,
    pub supervisors: BTreeMap<RunId, Supervisor>,
    pub daemon: Option<Daemon>,
    pub gpus: NodeGpus,
    /// Only the newest look at the GPUs that was asked for counts.
    pub gpu_look: u64,
    pub partitioned_until: i64,
    /// Until then starting a run fails here, by the prolog or otherwise.
    pub broken_until: (i64, bool),
}

impl Machine {
    pub fn new(id: NodeId, name: String, gpus: NodeGpus) -> Self {
        Self {
            id,
            name,
            powered: true,
            boot: 1,
            spool_number: 1,
            spool: Spool::default(),
            supervisors: BTreeMap::new(),
            daemon: None,
            gpus,
            gpu_look: 0,
            partitioned_until: 0,
            broken_until: (0, false),
        }
    }

    pub fn life(&self) -> NodeLife {
        NodeLife {
            boot: format!("boot-{}", self.boot),
            spool: format!("spool-{}", self.spool_number),
        }
    }

    pub fn inventory(&self) -> Inventory {
        Inventory {
            cpus: 64,
            mem_bytes: 512 << 30,
            gpus: self.gpus.infos(),
            ..Inventory::default()
        }
    }

    /// The runs on each GPU, by its index, and whether no run is on the node, with GPUs or without.
    pub fn gpu_holders(&self) -> (BTreeMap<usize, BTreeSet<RunId>>, bool) {
        let mut held: BTreeMap<usize, BTreeSet<RunId>> = BTreeMap::new();
        let runs = self.spool.runs.iter();
        for (run, record) in runs.clone().filter(|(_, record)| !record.clean) {
            for grant in &record.order.gpus {
                held.entry(usize::from(grant.slot.0))
                    .or_default()
                    .insert(*run);
            }
        }
        let is_live = |record: &SpoolRun| record.supervised && record.exit.is_none();
        (held, !runs.into_iter().any(|(_, record)| is_live(record)))
    }

    /// What a starting daemon finds. It kills processes without a supervisor and writes their end.
    pub fn scan(&mut self, now: i64) -> Vec<(RunId, SpooledRun)> {
        let known: BTreeSet<RunId> = self.spool.runs.keys().copied().collect();
        self.supervisors
            .retain(|run, supervisor| known.contains(run) && !supervisor.dead);
        let boot = self.boot;
        let mut found = Vec::new();
        for (run, record) in &mut self.spool.runs {
            let supervisor = self.supervisors.get(run);
            if record.exit.is_none() {
                let lost = match supervisor {
                    _ if record.boot != boot => Some(EndCause::NodeRebooted),
                    None if record.supervised => Some(EndCause::SupervisorLost),
                    _ => None,
                };
                let text = "found without its supervisor".to_owned();
                record.exit = lost.map(|cause| RunEnd {
                    cause,
                    text,
                    ..RunEnd::default()
                });
            }
            let what = match (&record.exit, supervisor.map(|s| s.running_since)) {
                (Some(end), _) => SpooledRun::Ended {
                    end: end.clone(),
                    clean: record.clean,
                },
                (None, Some(Some(since))) => SpooledRun::Running {
                    started: Timestamp(since.min(now)),
                },
                (None, Some(None)) => SpooledRun::Ready,
                (None, None) => SpooledRun::Accepted,
            };
            found.push((*run, what));
        }
        found
    }

    /// Power off: processes and daemon are gone, the disk stays.
    pub fn power_off(&mut self) {
        self.powered = false;
        self.daemon = None;
        self.supervisors.clear();
    }

    /// The runs with processes on a GPU of the order, which the order must not meet.
    pub fn users_of(&self, order: &Order) -> Vec<RunId> {
        let disturbs = |one: &GpuGrant, other: &GpuGrant| {
            one.slot == other.slot && !one.part.goes_beside(&other.part)
        };
        let shares = |other: &Order| {
            other
                .gpus
                .iter()
                .any(|held| order.gpus.iter().any(|own| disturbs(own, held)))
        };
        let others = self
            .supervisors
            .values()
            .filter(|s| s.running_since.is_some());
        others
            .filter(|s| s.order.run != order.run && shares(&s.order))
            .map(|s| s.order.run)
            .collect()
    }

    /// Everything of the machine that should be gone when nothing runs.
    pub fn leftovers(&self) -> Vec<String> {
        let mut left: Vec<String> = Vec::new();
        left.extend(
            self.supervisors
                .keys()
                .map(|run| format!("{}: a supervisor of {run}", self.name)),
        );
        left.extend(
            self.spool
                .runs
                .keys()
                .map(|run| format!("{}: a spool record of {run}", self.name)),
        );
        match &self.daemon {
            None => left.push(format!("{}: no daemon", self.name)),
            Some(daemon) => left.extend(daemon.state.runs.iter().map(|(run, known)| {
                let phase: &RunPhase = &known.phase;
                format!(
                    "{}: its daemon holds {run}, rank {}, named {}",
                    self.name,
                    phase.rank(),
                    known.named
                )
            })),
        }
        left
    }
}
