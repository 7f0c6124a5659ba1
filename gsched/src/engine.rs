//! The scheduler's memory between passes: cluster, queue, job classes, planned starts of the last pass.
//!
//! Decides nothing. What it keeps changes no plan, only the work that a plan costs.

use crate::backfill::planned::{DeferredStart, NodeWait, PlannedStart};
use crate::changes::Changes;
use crate::cluster::network::Network;
use crate::cluster::nodes::Cluster;
use crate::job::job_classes::JobClasses;
use crate::job::queue::{GroupContext, Queue};
use crate::ledger::Ledger;
use crate::mig::held_back::HeldGpu;
use crate::place::counted::GpuReservation;
use crate::place::score::Scores;
use crate::place::search_memo::SearchMemo;
use crate::snapshot::Snapshot;
use gmodel::JobId;
use gmodel::config::ClusterConfig;
use gmodel::policy::Policy;
use gpolicy::fair_tree::Standings;
use gpolicy::reserved_nodes::Windows;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// The scheduler with what it keeps from pass to pass. Plans are the same with a new one.
#[derive(Debug, Default)]
pub struct Engine {
    pub(crate) cluster: Cluster,
    pub(crate) memory: Memory,
    pub(crate) queue: Queue,
    /// For quick passes after this one.
    pub(crate) left: Option<QuickPassState>,
    /// How often the budget is doubled: a pass that is cut short comes further the next time.
    pub(crate) stretch: u32,
    /// The policy that job classes and windows belong to.
    pub(crate) seen: Option<(Arc<ClusterConfig>, Arc<Policy>)>,
    generation: (u64, usize),
}

/// What passes learned about requests and nodes; none of it changes a plan.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    pub windows: Windows,
    pub network: Network,
    pub job_classes: JobClasses,
    pub scores: Scores,
    pub search_memo: SearchMemo,
    pub standings: Standings,
    /// Plans name starts only: no reasons.
    pub silent: bool,
    /// Probes of the last pass.
    pub probed: u64,
}

impl Engine {
    /// An engine for replays: its plans name the same starts, and carry no reasons and no planned start that
    /// no other start depends on. Quick passes have nothing to go on after it.
    pub fn silent() -> Self {
        Self {
            memory: Memory {
                silent: true,
                ..Memory::default()
            },
            ..Self::default()
        }
    }

    /// Brings everything up to a snapshot, with nothing taken by a pass.
    pub(crate) fn sync(&mut self, snapshot: &Snapshot, changes: Option<&Changes>) {
        self.cluster.sync(snapshot, changes);
        self.memory
            .standings
            .note(changes.and_then(Changes::known_runs));
        let same_policy = self.seen.as_ref().is_some_and(|(config, policy)| {
            (Arc::ptr_eq(config, &snapshot.config) || *config == snapshot.config)
                && (Arc::ptr_eq(policy, &snapshot.policy) || *policy == snapshot.policy)
        });
        let generation = (
            self.cluster.generation,
            self.cluster.node_classes.list.len(),
        );
        if !same_policy || generation != self.generation {
            self.memory.job_classes.clear();
            self.cluster.sort_again(snapshot);
            self.memory.windows = Windows::new(&snapshot.config, &snapshot.policy, &snapshot.nodes);
            self.memory.network =
                Network::new(&snapshot.config.scheduler.topology, &snapshot.nodes);
            self.generation = generation;
        }
        self.seen = Some((snapshot.config.clone(), snapshot.policy.clone()));
        self.memory.job_classes.begin_pass(snapshot.pending.len());
        self.memory.scores.begin_pass();
    }

    /// Brings the queue groups up to a snapshot to which the rest was brought.
    pub(crate) fn sync_queue(&mut self, snapshot: &Snapshot, changes: Option<&Changes>) {
        let mut known = GroupContext {
            snapshot,
            cluster: &mut self.cluster,
            windows: &self.memory.windows,
            job_classes: &mut self.memory.job_classes,
        };
        self.queue.sync(&mut known, changes);
    }
}

/// What a full pass leaves for quick ones.
#[derive(Debug, Default)]
pub(crate) struct QuickPassState {
    /// Brought up to date by the runs that came and went, where no limit is one of time.
    pub ledger: Option<Ledger>,
    /// Jobs that wait for nodes, in order, of those that were looked at.
    pub waiting: Vec<NodeWait>,
    /// GPUs that wait to be cut for some of them.
    pub held_back: Vec<HeldGpu>,
    pub reserved: Vec<PlannedStart>,
    /// Reservations that were put off, and by partition how many may be made.
    pub wants: VecDeque<DeferredStart>,
    pub reserve_left: Vec<u32>,
    /// Reservations of GPUs by their number, with what is set apart for them.
    pub counted: Vec<GpuReservation>,
    /// Something is set aside for a job that waits until more is idle.
    pub is_set_aside: bool,
    /// A nomination is open: what its victims leave, and the guarantee it claims, belong to the nominated job.
    pub makes_room: bool,
    /// Jobs that were started and have no run yet that is known here.
    pub started: BTreeSet<JobId>,
    /// Tasks among them, by the array with a cap that they are of.
    pub in_arrays: BTreeMap<JobId, BTreeSet<JobId>>,
}
