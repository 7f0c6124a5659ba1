//! What a pass changes as it books starts: cluster, usage, reservations, licences.
//!
//! Holds amounts only; which job gets what is decided above.

use crate::cluster::nodes::Cluster;
use crate::cluster::timeline::Count;
use crate::headroom::IdleGpus;
use crate::ledger::Ledger;
use crate::place::counted::GpuReservation;
use crate::place::limits_in_force::licences;
use crate::snapshot::Snapshot;
use gmodel::JobId;
use std::collections::{BTreeMap, BTreeSet};

pub(crate) struct World<'a> {
    pub cluster: &'a mut Cluster,
    /// What accounts, users, QOS and partitions hold, against their limits.
    pub usage: Ledger,
    /// Reservations of GPUs by number: what they hold, and what their jobs have of it.
    pub reservations: Vec<GpuReservation>,
    /// What is free of each licence over time.
    pub licences: BTreeMap<String, Count>,
    /// Started tasks without a run in the snapshot yet, by their capped array.
    pub array_starts: BTreeMap<JobId, BTreeSet<JobId>>,
    /// What was counted as idle before the trial under way.
    idle_before: Option<IdleGpus>,
}

impl<'a> World<'a> {
    pub fn new(cluster: &'a mut Cluster, usage: Ledger, snapshot: &Snapshot) -> Self {
        Self {
            cluster,
            usage,
            reservations: Vec::new(),
            licences: licences(snapshot),
            array_starts: BTreeMap::new(),
            idle_before: None,
        }
    }

    /// Begins a trial: changes of node states and of idle GPUs can be rolled back.
    pub fn begin_trial(&mut self) {
        self.cluster.begin_trial();
    }

    /// Changes the count of idle GPUs in a trial.
    pub fn count_idle(&mut self, change: impl FnOnce(&mut IdleGpus)) {
        self.idle_before = Some(self.usage.idle.clone());
        change(&mut self.usage.idle);
    }

    /// What the trial changed stays.
    pub fn commit_trial(&mut self) {
        self.cluster.commit_trial();
        self.idle_before = None;
    }

    /// What a trial changed, if there is one, is undone.
    pub fn roll_back(&mut self) {
        self.cluster.roll_back();
        if let Some(idle) = self.idle_before.take() {
            self.usage.idle = idle;
        }
    }
}
