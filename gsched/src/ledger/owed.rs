//! Jobs for which others go, until they start: limits keep room for them, and what is to stay idle beside them does.
//!
//! A job behind one of them starts only where that one still can then. Urgent work does not wait for that, unless it gave way itself.

use super::{Ledger, Take, Who};
use crate::headroom::{IdleGpus, When, keepers_on};
use crate::snapshot::{PendingJob, RunningRun, Snapshot};
use gmodel::{JobId, JobSpec, NodeId, Reason, RunClass};
use gpolicy::limits::Holding;
use std::collections::BTreeSet;
use std::sync::Arc;

#[derive(Clone, Debug)]
pub(crate) struct Owed {
    /// And whether it is an array.
    whose: (JobId, bool),
    spec: Arc<JobSpec>,
    held: Holding,
    borrows: bool,
    /// The partitions with headroom that it leaves.
    keepers: BTreeSet<usize>,
}

/// What was taken back of it.
#[derive(Debug)]
pub(crate) struct Lifted {
    place: usize,
    owed: Owed,
    idle: IdleGpus,
}

impl Ledger {
    /// Some runs go for a job, or others did before. `class` is the one in which it is to start, `on` where, if that is known.
    pub(crate) fn owe<'a>(
        &mut self,
        job: &PendingJob,
        (take, class): (&Take, Option<RunClass>),
        on: &[NodeId],
        gone: impl Iterator<Item = &'a RunningRun>,
        snapshot: &Snapshot,
    ) {
        let held = self.holding_of(job, take);
        let who = self.who_or_new(&job.spec);
        self.count(&job.spec, who, &held, true);
        if self.keeps_idle() {
            let choice = (job.is_choice() && job.particulars.positions.is_none()).then_some(job.id);
            self.idle.promise(
                choice,
                &held,
                who.partition,
                on,
                gone,
                snapshot,
                &self.types,
            );
        }
        let borrows = class == Some(RunClass::Borrowed);
        let keepers = if self.spares_kept(job, class) {
            keepers_on(on, snapshot)
        } else {
            BTreeSet::new()
        };
        self.owed.push(Owed {
            whose: key(job),
            spec: job.spec.clone(),
            held,
            borrows,
            keepers,
        });
    }

    /// Whether that was said in this pass, of one of its partitions.
    pub(crate) fn is_owed(&self, job: &PendingJob) -> bool {
        self.owed.iter().any(|owed| owed.whose == key(job))
    }

    /// What is owed to a job is not in its own way where it might start in another of its partitions; nothing where nothing is.
    pub(crate) fn lift_owed(&mut self, job: &PendingJob) -> Option<Lifted> {
        let place = self.owed.iter().position(|owed| {
            job.is_choice() && job.particulars.positions.is_none() && owed.whose == key(job)
        })?;
        let owed = self.owed.remove(place);
        let who = self.who(&owed.spec);
        self.count(&owed.spec, who, &owed.held, false);
        if let (Some(guarantees), Some((account, held))) =
            (&mut self.guarantees, self.claimed.get(&owed.whose))
        {
            guarantees.remove(&self.tree, *account, held);
        }
        let idle = self.idle.clone();
        self.idle.lift_promise(job.id);
        Some(Lifted { place, owed, idle })
    }

    pub(crate) fn owe_again(&mut self, Lifted { place, owed, idle }: Lifted) {
        let who = self.who(&owed.spec);
        self.count(&owed.spec, who, &owed.held, true);
        if let (Some(guarantees), Some((account, held))) =
            (&mut self.guarantees, self.claimed.get(&owed.whose))
        {
            guarantees.add(&self.tree, *account, held);
        }
        self.owed.insert(place, owed);
        self.idle = idle;
    }

    /// What a job is to leave to nominated jobs before it.
    pub(crate) fn owed_to_others(&self, job: &PendingJob) -> impl Iterator<Item = &Owed> {
        let goes_first = self.is_urgent(&job.spec) && job.particulars.preempted.is_none();
        self.owed
            .iter()
            .filter(move |owed| !goes_first && owed.whose != key(job))
    }

    /// Whether all that is kept idle is kept from a job.
    pub(crate) fn spares_kept(&self, job: &PendingJob, class: Option<RunClass>) -> bool {
        class != Some(RunClass::Guaranteed) && !self.is_urgent(&job.spec)
    }

    /// Whether one of those is to leave what a partition keeps.
    pub(crate) fn is_left_by_others(&self, job: &PendingJob, keeper: usize) -> bool {
        self.owed_to_others(job)
            .any(|owed| owed.keepers.contains(&keeper))
    }

    /// Why so much may not be taken: it would be short when another is to start.
    pub(super) fn is_kept_for(&self, owed: &Owed, who: Who, held: &Holding) -> Option<Reason> {
        let not_lent = || self.not_lent(When::Then, self.tree.number(&owed.spec.account), held);
        let kept = || {
            let spares = |keeper: usize| owed.keepers.contains(&keeper);
            self.idle.kept(
                When::Then,
                held,
                who.partition,
                &spares,
                &owed.spec.qos,
                &self.types,
                &self.config,
                &self.policy,
            )
        };
        (owed.borrows).then(not_lent).flatten().or_else(kept)
    }
}

fn key(job: &PendingJob) -> (JobId, bool) {
    (job.id, job.particulars.positions.is_some())
}
