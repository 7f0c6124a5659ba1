//! Jobs with several entries in the queue (partitions, alternatives of a constraint): one start and one reason.
//!
//! Source: sbatch(1), `--partition`.

use crate::job::reason::distance;
use crate::plan::{Nomination, Preempt};
use crate::snapshot::PendingJob;
use gmodel::{JobId, Reason};
use std::collections::{BTreeMap, BTreeSet};

/// What a pass found out about them.
#[derive(Debug, Default)]
pub(crate) struct Choices {
    /// Jobs and array tasks that the pass started in one of their partitions, and tasks of arrays that borrow later in
    /// the pass.
    pub settled: BTreeSet<JobId>,
    /// Entries with a planned start, made or deferred, in one of their partitions.
    pub kept_for: BTreeSet<(JobId, bool)>,
    /// Runs that are to go for some of them. Another of their partitions may still start them: known at the end of the pass.
    pub(crate) preempts: Vec<Preempt>,
    /// What stands against each entry that was looked at, by the job, and whether that is an array.
    pub(crate) said: BTreeMap<(JobId, bool), EntryReason>,
}

#[derive(Debug, Default)]
pub(crate) struct EntryReason {
    /// The best so far: how far from a start, whether it is new, and which choice.
    pub(crate) best: Option<((u32, bool, u32), WaitReason)>,
    pub(crate) entries: usize,
    /// Entries there are, and the reason that the job has.
    pub(crate) all: usize,
    pub(crate) before: WaitReason,
    /// Of an array: how many tasks are to start, and the last.
    pub(crate) tasks: Option<(u64, JobId)>,
}

/// Why a job waits, with its nomination.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct WaitReason {
    pub(crate) reason: Reason,
    pub(crate) nomination: Option<Nomination>,
}

impl Choices {
    /// Keeps the reason of one entry.
    pub fn tell(
        &mut self,
        job: &PendingJob,
        reason: Option<Reason>,
        nomination: Option<Nomination>,
    ) {
        let Some(reason) = reason else { return };
        let said = self
            .said
            .entry((job.id, job.particulars.positions.is_some()))
            .or_insert_with(|| EntryReason {
                all: job.spec.choices(),
                before: WaitReason {
                    reason: job.reason.clone(),
                    nomination: job.particulars.nomination.clone(),
                },
                tasks: job.particulars.positions.as_ref().map(|tasks| {
                    (
                        tasks.len(),
                        JobId(job.id.0 + u64::from(tasks.last().unwrap_or(0))),
                    )
                }),
                ..EntryReason::default()
            });
        said.entries += 1;
        said.hear(WaitReason { reason, nomination }, job.spec.choice());
    }

    /// Tasks of an array that started in another of its partitions, or on what was left of its guarantee.
    pub fn settled_of(&self, job: &PendingJob) -> BTreeSet<JobId> {
        let Some(positions) = &job.particulars.positions else {
            return BTreeSet::new();
        };
        let last = JobId(job.id.0 + u64::from(positions.last().unwrap_or(0)));
        let is_own = |id: &&JobId| positions.contains((id.0 - job.id.0) as u32);
        self.settled
            .range(job.id..=last)
            .filter(is_own)
            .copied()
            .collect()
    }
}

impl EntryReason {
    pub(crate) fn hear(&mut self, wait: WaitReason, choice: u32) {
        // A nomination counts more than any reason. Of two that are as good the one that it has, so that texts do not change with each pass.
        let distance = match wait.nomination {
            Some(_) => 0,
            None => 1 + distance(wait.reason.code),
        };
        let rank = (distance, wait != self.before, choice);
        if self.best.as_ref().is_none_or(|(best, _)| rank < *best) {
            self.best = Some((rank, wait));
        }
    }
}
