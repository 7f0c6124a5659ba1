//! What is idle and kept all the same: headroom for urgent work, what lenders do not lend, what is set aside for who waits.
//!
//! Says who may take how much of it, now and when runs that make room have left. What is idle is counted elsewhere.

use super::{Found, Ledger, Take, Who};
use crate::headroom::IdleGpus;
use crate::limits::{Holding, milli_text};
use crate::snapshot::{PendingJob, RunningRun, Snapshot};
use gmodel::{JobSpec, NodeId, Reason, ReasonCode, RunClass};
use std::collections::BTreeMap;

impl Ledger {
    /// As [`Ledger::check`] where it does not matter that some of what is idle is kept: others may be made to leave more.
    ///
    /// # Errors
    /// The first limit but headroom and lending limits.
    pub(crate) fn check_but_idle(&self, job: &PendingJob, take: &Take) -> Result<Option<RunClass>, Reason> {
        let mut first = None;
        let class = self.examine(job, take, &mut |reason| {
            let is_idle_kept = reason.code == ReasonCode::Headroom;
            first = (!is_idle_kept).then_some(reason);
            is_idle_kept
        });
        first.map_or(Ok(class), Err)
    }

    /// What is idle may be kept: by lenders from borrowers, as headroom for urgent work.
    pub(super) fn idle_is_not_kept(&self, spec: &JobSpec, who: Who, class: Option<RunClass>, held: &Holding, found: Found) -> bool {
        if held.gpus == 0 {
            return true;
        }
        if class == Some(RunClass::Borrowed)
            && let Some(guarantees) = &self.guarantees
        {
            for (gpu_type, milli) in held.each() {
                let kept = guarantees.kept_back(&self.tree, who.account.unwrap_or_default(), gpu_type);
                let idle = self.idle.of(gpu_type);
                if kept > 0 && idle < kept + milli {
                    let text = format!(
                        "{} and accounts keep {} of them by their lending limits; this job would borrow {}",
                        self.idle.idle_text(&self.types.text(gpu_type, idle)),
                        milli_text(kept),
                        milli_text(milli)
                    );
                    if !found(Reason::new(ReasonCode::Headroom, text)) {
                        return false;
                    }
                }
            }
        }
        let spared = self.is_urgent(spec) || class == Some(RunClass::Guaranteed);
        let reason = self.idle.kept(held, who.partition, !spared, false, &spec.qos, &self.types, &self.config, &self.policy);
        reason.is_none_or(found)
    }

    /// Keeps what a job that others' headroom or lending limits refuse waits for from all behind it in this pass: jobs that ask
    /// for less would take it piece by piece. Not where even all GPUs together would be too few. Whether it is kept.
    pub(crate) fn set_aside(&mut self, job: &PendingJob, take: &Take) -> bool {
        let (held, who) = (self.holding_of(job, take), self.who(&job.spec));
        let class = self.class_for(&job.spec, who, &held);
        let lenders_keep = |(gpu_type, milli): (usize, u64)| {
            let kept = self.guarantees.as_ref().map_or(0, |one| one.kept_back(&self.tree, who.account.unwrap_or_default(), gpu_type));
            kept > 0 && self.idle.usable_of(gpu_type) < kept + milli
        };
        let spared = self.is_urgent(&job.spec) || class == Some(RunClass::Guaranteed);
        let never = class == Some(RunClass::Borrowed) && held.each().any(lenders_keep)
            || self.idle.kept(&held, who.partition, !spared, true, &job.spec.qos, &self.types, &self.config, &self.policy).is_some();
        if !never {
            self.idle.set_aside(&held, who.partition);
        }
        !never
    }

    /// Whether some of what is idle is kept from anybody.
    pub(crate) fn keeps_idle(&self) -> bool {
        self.partitions_keep_idle()
            || self.policy.qos.values().any(|qos| qos.headroom.is_some())
            || self.policy.accounts.values().any(|account| account.lend_limit.is_some())
    }

    /// What is idle on which nodes matters then.
    pub(crate) fn partitions_keep_idle(&self) -> bool {
        self.config.partitions.iter().any(|one| one.headroom.is_some())
    }

    /// Why so much may not be taken of what is idle on the nodes of a partition; thousandths by type.
    pub(crate) fn kept_in(&self, partition: usize, taken: &BTreeMap<String, u64>) -> Option<Reason> {
        self.idle.kept_in(partition, taken, &self.types, &self.config)
    }

    /// What is idle is counted as if some runs had left, besides those that leave already. What was counted before.
    pub(crate) fn idle_without<'a>(&mut self, gone: impl Iterator<Item = &'a RunningRun>, snapshot: &Snapshot) -> IdleGpus {
        let before = self.idle.clone();
        self.idle.go_on_without(gone, snapshot, &self.types);
        before
    }

    pub(crate) fn put_idle_back(&mut self, before: IdleGpus) {
        self.idle = before;
    }

    /// Some runs go for a job, or others did before: who comes behind it leaves it what it needs beyond what they leave, so that
    /// it does start then beside what is kept. `on`: the nodes on which it is to start, where they are known.
    pub(crate) fn promise_idle<'a>(
        &mut self,
        job: &PendingJob,
        take: &Take,
        on: &[NodeId],
        gone: impl Iterator<Item = &'a RunningRun>,
        snapshot: &Snapshot,
    ) {
        if self.keeps_idle() {
            let held = self.holding_of(job, take);
            let choice = (job.is_choice() && job.positions.is_none()).then_some(job.id);
            self.idle.promise(choice, &held, self.who(&job.spec).partition, on, gone, snapshot, &self.types);
        }
    }

    /// What is promised to a job that others go for is not in its own way where it might start in another of its partitions. What
    /// was counted before, where anything is.
    pub(crate) fn lift_promise(&mut self, job: &PendingJob) -> Option<IdleGpus> {
        if !job.is_choice() || !self.keeps_idle() {
            return None;
        }
        let before = self.idle.clone();
        self.idle.lift_promise(job.id).then_some(before)
    }

    /// Whether something is set aside for a job that waits until more is idle.
    pub(crate) fn is_set_aside(&self) -> bool {
        self.idle.is_set_aside()
    }

    /// Whether a job may use what is kept for urgent work.
    pub(crate) fn is_urgent(&self, spec: &JobSpec) -> bool {
        self.policy.qos.get(&spec.qos).is_some_and(|qos| qos.headroom.is_some())
    }
}
