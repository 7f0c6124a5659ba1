//! Why preemption may end a run for a job: the guarantee that it takes back, the QOS that preempts, or the fair part.

use crate::ledger::Ledger;
use crate::preempt::guarantee_claims::lender_of;
use crate::snapshot::{PendingJob, RunningRun};
use gmodel::gpu_amounts::milli_text;
use gpolicy::account_tree::ROOT;
use gpolicy::limits::ALL;

/// The ground on which a run may be ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ground {
    Reclaim,
    /// Reclaim of a run outside of quotas: it has no guarantee, and is chosen before borrowed runs.
    Outside,
    Qos,
    FairShare,
}

impl Ground {
    /// The ground on which a run is preempted for a job, in words.
    pub fn text(self, ledger: &Ledger, job: &PendingJob, run: &RunningRun, excess: u64) -> String {
        let (account, from) = (&job.spec.account, &run.spec.account);
        let borrowed = milli_text(excess);
        match self {
            Self::Reclaim | Self::Outside => {
                let lender = ledger
                    .tree()
                    .number(account)
                    .map_or(ROOT, |number| lender_of(ledger, number));
                let guarantees = ledger.guarantees();
                let most = guarantees
                    .and_then(|one| one.guaranteed(lender))
                    .unwrap_or(0);
                let used = guarantees.map_or(0, |one| one.used(lender, ALL));
                let claim = match self {
                    Self::Outside => {
                        format!("QOS {} runs outside of quotas", run.spec.qos)
                    }
                    _ => format!("account {from} borrows {borrowed}"),
                };
                format!(
                    "account {} takes back GPUs of its guarantee for job {} (uses {} of {}); {claim}",
                    ledger.tree().name(lender),
                    job.id,
                    milli_text(used),
                    milli_text(most)
                )
            }
            Self::Qos => format!(
                "QOS {} of job {} may preempt QOS {}",
                job.spec.qos, job.id, run.spec.qos
            ),
            Self::FairShare => format!(
                "account {account} is below its fair part of the GPUs, for job {}; account {from} is above its own and borrows {borrowed}",
                job.id
            ),
        }
    }
}
