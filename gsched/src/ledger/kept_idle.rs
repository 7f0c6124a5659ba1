//! What is idle and kept all the same: headroom for urgent work, what lenders do not lend, what is set aside for a pending job.
//!
//! Says how much of it a job may take, now and when runs that make room have left. What is idle is counted elsewhere.

use super::holder::{LimitKind, LimitRefusal};
use super::{Ledger, LimitVisitor, Take, UsageOwner};
use crate::headroom::{HeadroomTime, IdleGpus};
use crate::snapshot::{PendingJob, RunningRun, Snapshot};
use gmodel::{JobSpec, Reason, ReasonCode, RunClass};
use gpolicy::limits::{Holding, milli_text};
use std::collections::BTreeMap;

impl Ledger {
    /// As [`Ledger::check_but`] without headroom and lending limits: others may be made to leave more.
    ///
    /// # Errors
    /// The first limit but headroom and lending limits.
    pub(crate) fn check_but_idle(
        &self,
        job: &PendingJob,
        take: &Take,
    ) -> Result<Option<RunClass>, LimitRefusal> {
        self.check_but(job, take, |kind| matches!(kind, LimitKind::Headroom(_)))
    }

    /// What is idle may be kept: by lenders from borrowers, as headroom for urgent work.
    pub(super) fn idle_is_not_kept(
        &self,
        job: &PendingJob,
        who: UsageOwner,
        class: Option<RunClass>,
        held: &Holding,
        found: LimitVisitor,
    ) -> bool {
        let (spec, kind) = (&*job.spec, LimitKind::Headroom(who.partition));
        if held.gpus == 0 || !self.keeps_idle {
            return true;
        }
        if class == Some(RunClass::Borrowed)
            && let Some(reason) = self.not_lent(HeadroomTime::Now, who.account, held)
            && !found(reason, kind)
        {
            return false;
        }
        let spared = self.is_urgent(spec) || class == Some(RunClass::Guaranteed);
        let reason = self.idle.kept(
            HeadroomTime::Now,
            held,
            who.partition,
            &|_| !spared,
            &spec.qos,
            &self.types,
            &self.config,
            &self.policy,
        );
        if reason.is_some_and(|reason| !found(reason, kind)) {
            return false;
        }
        self.nominated_before(job)
            .filter_map(|nominated| self.is_kept_for(nominated, who, held))
            .all(|reason| found(reason, kind))
    }

    /// What accounts with a lending limit keep of what is idle from a borrower.
    pub(super) fn not_lent(
        &self,
        at: HeadroomTime,
        account: Option<u32>,
        held: &Holding,
    ) -> Option<Reason> {
        let guarantees = self.guarantees.as_ref()?;
        held.each().find_map(|(gpu_type, milli)| {
            let kept = guarantees.kept_back(&self.tree, account.unwrap_or_default(), gpu_type);
            let idle = self.idle.of(at, gpu_type);
            let text = || {
                format!(
                    "{} and accounts keep {} of them by their lending limits; this job would borrow {}",
                    self.idle.idle_text(&self.types.text(gpu_type, idle), idle),
                    milli_text(kept),
                    milli_text(milli)
                )
            };
            (kept > 0 && idle < kept + milli).then(|| Reason::new(ReasonCode::Headroom, text()))
        })
    }

    /// Keeps what a job that others' headroom or lending limits refuse waits for from all behind it in this pass: jobs that ask
    /// for less would take it piece by piece.
    pub(crate) fn set_aside(&mut self, job: &PendingJob, take: &Take) {
        let (held, who) = (self.holding_of(job, take), self.who(&job.spec));
        self.idle.set_aside(&held, who.partition);
    }

    /// Whether headroom or a lending limit keeps idle GPUs from some jobs.
    pub(crate) fn keeps_idle(&self) -> bool {
        self.keeps_idle
    }

    /// What is idle on which nodes matters then.
    pub(crate) fn partitions_keep_idle(&self) -> bool {
        self.config
            .partitions
            .iter()
            .any(|one| one.headroom.is_some())
    }

    /// Why so much may not be taken of what is idle on the nodes of a partition; thousandths by type.
    pub(crate) fn kept_in(
        &self,
        at: HeadroomTime,
        partition: usize,
        taken: &BTreeMap<String, u64>,
    ) -> Option<Reason> {
        self.idle
            .kept_in(at, partition, taken, &self.types, &self.config)
    }

    /// What is idle is counted as if some runs had left, besides those that leave already. What was counted before.
    pub(crate) fn idle_without<'a>(
        &mut self,
        gone: impl Iterator<Item = &'a RunningRun>,
        snapshot: &Snapshot,
    ) -> IdleGpus {
        let before = self.idle.clone();
        self.idle.go_on_without(gone, snapshot, &self.types);
        before
    }

    /// The same as if no run held anything that takes work.
    pub(crate) fn idle_without_all(&mut self) -> IdleGpus {
        let before = self.idle.clone();
        self.idle.go_on_idle();
        before
    }

    /// A run that was to leave may not.
    pub(crate) fn stays(&mut self, run: &RunningRun, snapshot: &Snapshot) {
        if self.keeps_idle() {
            self.idle.stays(run, snapshot, &self.types);
        }
    }

    pub(crate) fn put_idle_back(&mut self, before: IdleGpus) {
        self.idle = before;
    }

    /// Whether something is set aside for a job that waits until more is idle.
    pub(crate) fn is_set_aside(&self) -> bool {
        self.idle.is_set_aside()
    }

    /// Whether a job may use what is kept for urgent work.
    pub(crate) fn is_urgent(&self, spec: &JobSpec) -> bool {
        self.policy
            .qos
            .get(&spec.qos)
            .is_some_and(|qos| qos.headroom.is_some())
    }
}
