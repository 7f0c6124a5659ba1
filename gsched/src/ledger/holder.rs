//! Which run of the holders of a limit ends first, for explanations.
//!
//! Decides nothing: a limit is checked by the ledger at each start.

use super::{Ledger, LimitId, LimitVisitor, Take};
use crate::snapshot::{PendingJob, RunningRun, Snapshot};
use gmodel::{JobId, Reason, RunClass, Timestamp};
use gpolicy::running_run::end_of;
use serde::{Deserialize, Serialize};

/// The job of the run that ends first of those that hold a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    pub job: JobId,
    /// By its time limit; `None`: no holder has one.
    pub ends: Option<Timestamp>,
}

/// A limit that refuses a job: which it is, and the reason for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LimitRefusal {
    pub kind: LimitKind,
    pub reason: Reason,
}

/// A limit that refuses a job, by the runs that hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LimitKind {
    /// No run's end makes room: a bound on one job, a cap, or more than the whole limit.
    Fixed,
    Licence,
    /// What is left of the job's own reservation of GPUs.
    Reservation,
    Bound(LimitId),
    /// Of the accounts below this one.
    Guarantee(u32),
    /// GPUs of this partition that stay idle.
    Headroom(Option<usize>),
    /// The cap of the array with this id, of which so many tasks run.
    ArrayCap(JobId, u32),
}

impl Holder {
    pub fn text(&self) -> String {
        match self.ends {
            Some(ends) => format!("job {} ends first of its holders, by {ends}", self.job),
            None => format!(
                "job {} is one of its holders, and none has a time limit",
                self.job
            ),
        }
    }
}

impl Ledger {
    /// Everything that refuses a job that would take so much now.
    pub(crate) fn refusing_limits(&self, job: &PendingJob, take: &Take) -> Vec<LimitRefusal> {
        let mut all = Vec::new();
        let found: LimitVisitor = &mut |reason, kind| {
            all.push(LimitRefusal { kind, reason });
            true
        };
        self.examine(job, take, found);
        all
    }

    /// The holder of a limit that ends first.
    pub(crate) fn first_to_end(&self, kind: LimitKind, snapshot: &Snapshot) -> Option<Holder> {
        let end = |run: &RunningRun| {
            let has_end = run.ends_by.is_some() || run.stops_by.is_some();
            has_end.then(|| end_of(run).max(self.now))
        };
        let holders: Vec<&RunningRun> = match kind {
            LimitKind::ArrayCap(array, running) => {
                // Ids of an array follow each other, so its runs come first of those from its id on.
                let from = snapshot.running.partition_point(|run| run.run.job < array);
                let own = snapshot.running[from..].iter().filter(|run| !run.charged);
                own.take(running as usize).collect()
            }
            _ => {
                let runs = snapshot.running.iter();
                runs.filter(|run| self.is_holder(kind, run)).collect()
            }
        };
        let first = holders
            .into_iter()
            .min_by_key(|run| (end(run).unwrap_or(Timestamp(i64::MAX)), run.run))?;
        Some(Holder {
            job: first.run.job,
            ends: end(first),
        })
    }

    fn is_holder(&self, kind: LimitKind, run: &RunningRun) -> bool {
        let who = self.who(&run.spec);
        match kind {
            LimitKind::Fixed
            | LimitKind::Licence
            | LimitKind::Reservation
            | LimitKind::ArrayCap(..) => false,
            LimitKind::Bound(limit) => !self.each_limit(who, &mut |_, of_run, _| of_run != limit),
            LimitKind::Guarantee(account) => {
                let is_below = |own| self.tree.line(own).any(|above| above == account);
                self.class_of(run.run) == Some(RunClass::Guaranteed)
                    && who.account.is_some_and(is_below)
            }
            LimitKind::Headroom(partition) => who.partition == partition,
        }
    }
}
