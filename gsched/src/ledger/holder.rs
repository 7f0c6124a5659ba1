//! Which run of the holders of a limit ends first, for explanations.
//!
//! Decides nothing: a limit is checked by the ledger at each start.

use super::Ledger;
use super::refusal::LimitKind;
use crate::snapshot::{RunningRun, Snapshot};
use gmodel::{JobId, RunClass, Timestamp};
use gpolicy::running_run::end_of;
use serde::{Deserialize, Serialize};

/// The job of the first run to end among the runs that hold a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    pub job: JobId,
    /// By its time limit; `None`: no holder has one.
    pub ends: Option<Timestamp>,
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

impl LimitKind {
    /// The holder of a limit that ends first.
    pub(crate) fn first_to_end(self, ledger: &Ledger, snapshot: &Snapshot) -> Option<Holder> {
        let end = |run: &RunningRun| {
            let has_end = run.ends_by.is_some() || run.stops_by.is_some();
            has_end.then(|| end_of(run).max(ledger.limits.now))
        };
        let holders: Vec<&RunningRun> = match self {
            Self::ArrayCap(array, running) => {
                // Ids of an array follow each other, so its runs are the first from its id on.
                let from = snapshot.running.partition_point(|run| run.run.job < array);
                let own = snapshot.running[from..].iter().filter(|run| !run.charged);
                own.take(running as usize).collect()
            }
            _ => {
                let runs = snapshot.running.iter();
                runs.filter(|run| self.is_held_by(run, ledger)).collect()
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

    fn is_held_by(self, run: &RunningRun, ledger: &Ledger) -> bool {
        let (owner, tree) = (ledger.owners.owner(&run.spec), ledger.tree());
        match self {
            Self::Fixed | Self::Licence | Self::Reservation | Self::ArrayCap(..) => false,
            Self::Bound(limit) => {
                let mut limits = ledger.limits.of(owner, tree);
                limits.any(|(of_run, _)| of_run == limit)
            }
            Self::Guarantee(account) => {
                let is_below = |own| tree.line(own).any(|above| above == account);
                ledger.class_of(run.run) == Some(RunClass::Guaranteed)
                    && owner.account.is_some_and(is_below)
            }
            Self::Headroom(partition) => owner.partition == partition,
        }
    }
}
