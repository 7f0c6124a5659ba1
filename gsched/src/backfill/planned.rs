//! Planned starts, deferred and made, and the earliest start of a job. Data only.

use crate::cluster::nodes::Holds;
use crate::cluster::picked::PickedNodes;
use crate::job::job_class::JobClassId;
use crate::snapshot::{PendingJob, Snapshot};
use fixedbitset::FixedBitSet;
use gmodel::{JobId, Timestamp};

/// A start in the future that others may not delay.
#[derive(Clone, Debug)]
pub struct PlannedStart {
    pub job: JobId,
    /// For a task of the array with this id.
    pub is_array: bool,
    /// Which of its partitions it is in.
    pub choice: u32,
    pub at: Timestamp,
    pub to: Timestamp,
    /// From then on, or shortly before. None: it was taken back.
    pub holds: Holds,
    /// The place of the reservation by number of which it is.
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

/// A waiting job that is to have a reservation.
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
    /// It might begin before this time when that was looked into.
    pub may_begin: Option<Timestamp>,
}

impl DeferredStart {
    /// The pending job: it moves in the snapshot when others leave the queue.
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

/// A job that waits for room.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeWait {
    /// Where it was among the pending.
    pub at: u32,
    pub job: JobId,
}

/// Tasks of one array that get reservations where all jobs do.
pub(crate) const MOST_RESERVED_TASKS: u32 = 128;

/// The earliest start of a job: when, which way, and on which nodes.
pub(crate) struct EarliestStart {
    pub at: Timestamp,
    pub alternative: usize,
    pub picked: PickedNodes,
}
