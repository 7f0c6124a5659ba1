//! The usage of nominated jobs until they start: limits and headroom keep room for it.
//!
//! A lower-priority job starts only where the nominated job still can. Urgent work does not wait, unless it was preempted itself.

use super::{Ledger, Take};
use crate::headroom::{IdleGpus, keepers_on};
use crate::snapshot::{PendingJob, RunningRun, Snapshot};
use gmodel::{JobId, JobSpec, NodeId, RunClass};
use gpolicy::limits::Holding;
use std::collections::BTreeSet;
use std::sync::Arc;

/// What a nominated job will hold.
#[derive(Clone, Debug)]
pub(crate) struct NominatedUsage {
    /// With `true` for an array.
    job: (JobId, bool),
    pub(super) spec: Arc<JobSpec>,
    held: Holding,
    pub(super) borrows: bool,
    /// Partitions of which the job may not use the headroom.
    pub(super) keepers: BTreeSet<usize>,
}

/// Nominated usage taken out of the ledger for a while.
#[derive(Debug)]
pub(crate) struct LiftedUsage {
    place: usize,
    nominated: NominatedUsage,
    idle: IdleGpus,
}

impl Ledger {
    /// Counts the usage of a job that is nominated. `class`: in which it will start; `on`: its nodes, if known; `gone`: its victims.
    pub(crate) fn nominate<'a>(
        &mut self,
        job: &PendingJob,
        take: &Take,
        class: Option<RunClass>,
        on: &[NodeId],
        gone: impl Iterator<Item = &'a RunningRun>,
        snapshot: &Snapshot,
    ) {
        let held = self.limits.holding_of(job, take);
        let owner = self.owner_or_new(&job.spec);
        self.count(&job.spec, owner, &held, true);
        if self.idle.is_kept() {
            let choice = (job.is_choice() && job.particulars.positions.is_none()).then_some(job.id);
            self.idle
                .promise(choice, &held, owner.partition, on, gone, snapshot);
        }
        let borrows = class == Some(RunClass::Borrowed);
        let keepers = if self.spares_kept(job, class) {
            keepers_on(on, snapshot)
        } else {
            BTreeSet::new()
        };
        self.nominated.push(NominatedUsage {
            job: key(job),
            spec: job.spec.clone(),
            held,
            borrows,
            keepers,
        });
    }

    /// The job is nominated in this pass, in one of its partitions.
    pub(crate) fn is_nominated(&self, job: &PendingJob) -> bool {
        self.nominated
            .iter()
            .any(|nominated| nominated.job == key(job))
    }

    /// Takes out the nominated usage of a job that may start in another of its partitions: it does not block its own job.
    pub(crate) fn lift_nominated(&mut self, job: &PendingJob) -> Option<LiftedUsage> {
        let place = self.nominated.iter().position(|nominated| {
            job.is_choice() && job.particulars.positions.is_none() && nominated.job == key(job)
        })?;
        let nominated = self.nominated.remove(place);
        let owner = self.owners.owner(&nominated.spec);
        self.count(&nominated.spec, owner, &nominated.held, false);
        if let (Some(guarantees), Some((account, held))) =
            (&mut self.guarantees, self.claimed.get(&nominated.job))
        {
            guarantees.remove(&self.owners.tree, *account, held);
        }
        let idle = self.idle.clone();
        self.idle.lift_promise(job.id);
        Some(LiftedUsage {
            place,
            nominated,
            idle,
        })
    }

    pub(crate) fn restore_nominated(
        &mut self,
        LiftedUsage {
            place,
            nominated,
            idle,
        }: LiftedUsage,
    ) {
        let owner = self.owners.owner(&nominated.spec);
        self.count(&nominated.spec, owner, &nominated.held, true);
        if let (Some(guarantees), Some((account, held))) =
            (&mut self.guarantees, self.claimed.get(&nominated.job))
        {
            guarantees.add(&self.owners.tree, *account, held);
        }
        self.nominated.insert(place, nominated);
        self.idle = idle;
    }

    /// The nominated jobs for which a job leaves room.
    pub(crate) fn nominated_before(
        &self,
        job: &PendingJob,
    ) -> impl Iterator<Item = &NominatedUsage> {
        let goes_first = self.is_urgent(&job.spec) && job.particulars.preempted.is_none();
        self.nominated
            .iter()
            .filter(move |nominated| !goes_first && nominated.job != key(job))
    }

    /// Whether all that is kept idle is kept from a job.
    pub(crate) fn spares_kept(&self, job: &PendingJob, class: Option<RunClass>) -> bool {
        class != Some(RunClass::Guaranteed) && !self.is_urgent(&job.spec)
    }

    /// Whether such a nominated job may not use the headroom of a partition.
    pub(crate) fn is_left_by_others(&self, job: &PendingJob, keeper: usize) -> bool {
        self.nominated_before(job)
            .any(|nominated| nominated.keepers.contains(&keeper))
    }
}

fn key(job: &PendingJob) -> (JobId, bool) {
    (job.id, job.particulars.positions.is_some())
}
