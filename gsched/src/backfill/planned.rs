//! Planned starts, deferred and made, and the earliest start of a job. Data only.

use crate::cluster::nodes::Holds;
use crate::cluster::picked::PickedNodes;
use crate::job::job_class::JobClassId;
use crate::snapshot::{PendingJob, Snapshot};
use fixedbitset::FixedBitSet;
use gmodel::{JobId, Timestamp};

/// A start in the future that later jobs may not delay.
#[derive(Clone, Debug)]
pub struct PlannedStart {
    pub job: JobId,
    /// The job is an array, and this is a start of one task.
    pub is_array: bool,
    /// Which of its partitions it is in.
    pub choice: u32,
    pub at: Timestamp,
    pub to: Timestamp,
    /// From `at` on, or shortly before; empty where it was taken back.
    pub holds: Holds,
    /// The place of its own reservation of GPUs by number.
    pub counted: Option<usize>,
}

impl PlannedStart {
    pub fn nodes(&self) -> impl Iterator<Item = usize> + '_ {
        self.holds
            .iter()
            .filter(|(hold, _)| hold.from == self.at)
            .flat_map(|(_, nodes)| nodes.clone())
    }

    /// Whether it holds something of any of some nodes.
    pub fn is_on(&self, nodes: &FixedBitSet) -> bool {
        self.holds
            .iter()
            .any(|(_, stretch)| nodes.contains_any_in_range(stretch.clone()))
    }
}

/// A pending job that is to get a planned start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeferredStart {
    /// Where it was among the pending.
    pub at: u32,
    pub job: JobId,
    pub is_array: bool,
    /// Which of its partitions is meant.
    pub choice: u32,
    pub job_class: JobClassId,
    pub tasks: u32,
    /// It might start before this time, as far as is known.
    pub may_begin: Option<Timestamp>,
}

impl DeferredStart {
    /// The pending job: its place in the snapshot changes when other jobs start or end.
    pub fn job_in<'s>(&self, snapshot: &'s Snapshot) -> Option<&'s PendingJob> {
        let is = |job: &&PendingJob| {
            job.id == self.job
                && job.particulars.positions.is_some() == self.is_array
                && job.spec.choice() == self.choice
        };
        snapshot
            .pending
            .get(self.at as usize)
            .filter(is)
            .or_else(|| snapshot.pending.iter().find(is))
    }
}

/// A job that waits for nodes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeWait {
    /// Where it was among the pending.
    pub at: u32,
    pub job: JobId,
}

/// Tasks of one array that get planned starts where all jobs do.
pub(crate) const MOST_RESERVED_TASKS: u32 = 128;

/// The earliest start of a job.
pub(crate) struct EarliestStart {
    pub at: Timestamp,
    pub alternative: usize,
    pub picked: PickedNodes,
}
