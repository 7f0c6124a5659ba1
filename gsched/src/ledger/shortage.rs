//! What of a guarantee has no room for a job, in words: why it would borrow.
//!
//! Counts nothing and decides nothing: the ledger does.

use super::{Ledger, UsageOwner};
use crate::queue_order::{asked, guaranteed_as};
use crate::snapshot::PendingJob;
use gmodel::JobSpec;
use gmodel::policy::{BudgetKind, Period};
use gpolicy::limits::{Holding, hours_text, milli_text};
use gpolicy::quota::GuaranteeShortage;

/// Why a job would borrow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage {
    pub text: String,
    /// It is more than the whole guarantee, or than accounts below leave of it: with nothing running it would borrow, too.
    pub for_good: bool,
}

impl Shortage {
    fn now(text: String) -> Self {
        Self {
            text,
            for_good: false,
        }
    }

    fn for_good(text: String) -> Self {
        Self {
            text,
            for_good: true,
        }
    }
}

impl Ledger {
    /// Why a job that waits would borrow; `None` where its account's guarantee has room for it as things are. Of the types that it
    /// may have, told of one that the guarantee is large enough for.
    pub fn borrows(&self, job: &PendingJob) -> Option<Shortage> {
        let guarantees = self
            .guarantees
            .as_ref()
            .filter(|_| !self.is_outside_quota(&job.spec))?;
        let who = self.who(&job.spec);
        if guaranteed_as(job, who.account?, guarantees, self, self.now).is_some() {
            return None;
        }
        let each = asked(job, self, self.now)
            .into_iter()
            .map(|held| self.shortage(&job.spec, who, &held));
        each.min_by_key(|short| short.for_good)
    }

    /// Why a job would borrow: what of its account's guarantee has no room for it.
    pub(super) fn shortage(&self, spec: &JobSpec, who: UsageOwner, held: &Holding) -> Shortage {
        let (never, short) = match (&self.guarantees, who.account) {
            (Some(all), Some(account)) if all.granting(&self.tree, account).is_some() => {
                let never = all.never_fits(&self.tree, account, held);
                (
                    never.is_some(),
                    never.or_else(|| all.short_of(&self.tree, account, held)),
                )
            }
            _ => (false, None),
        };
        match short {
            None => {
                let needs = milli_text(held.gpus);
                Shortage::for_good(format!(
                    "account {} is guaranteed no GPUs, and this job needs {needs}",
                    spec.account
                ))
            }
            Some(GuaranteeShortage::Gpus {
                account,
                gpu_type,
                most,
                used,
            }) => {
                let (name, all, needs) = (
                    self.tree.name(account),
                    self.types.text(gpu_type, most),
                    held.of(gpu_type),
                );
                match needs > most {
                    true => Shortage::for_good(format!(
                        "account {name} is guaranteed {all}, and this job needs {}",
                        milli_text(needs)
                    )),
                    false => {
                        let (used, needs) = (milli_text(used), milli_text(needs));
                        Shortage::now(format!(
                            "account {name} is guaranteed {all} and uses {used} of them, and this job needs {needs}"
                        ))
                    }
                }
            }
            Some(GuaranteeShortage::SetApart {
                account,
                gpu_type,
                most,
                set_apart,
            }) => {
                let (name, all, needs) = (
                    self.tree.name(account),
                    self.types.text(gpu_type, most),
                    milli_text(held.of(gpu_type)),
                );
                let apart = milli_text(set_apart);
                match never {
                    true => Shortage::for_good(format!(
                        "account {name} is guaranteed {all}, of which {apart} are guaranteed to accounts below it, and this job needs {needs}"
                    )),
                    false => Shortage::now(format!(
                        "account {name} is guaranteed {all}, of which {apart} are used or guaranteed to accounts below it, and this job needs {needs}"
                    )),
                }
            }
            Some(GuaranteeShortage::Budget { account, at }) => self.of_budget(account, at, held),
        }
    }

    fn of_budget(&self, account: u32, at: usize, held: &Holding) -> Shortage {
        let budgets = self.accounts[account as usize]
            .budgets
            .iter()
            .map(|(budget, _)| budget);
        let budget = budgets
            .filter(|budget| budget.kind == BudgetKind::Guaranteed)
            .nth(at);
        let spent = self.guarantees.as_ref().map(|all| all.budget(account, at));
        let (Some(budget), Some(spent)) = (budget, spent) else {
            return Shortage::now(String::new());
        };
        Shortage::now(format!(
            "account {} is guaranteed {} GPU-hours{} {}: {} are used, guaranteed runs may use {} more by their time limits, and this job {}",
            self.tree.name(account),
            budget.gpu_hours,
            budget
                .gpu_type
                .as_ref()
                .map_or(String::new(), |name| format!(" of {name}")),
            period_text(budget.period),
            hours_text(spent.used),
            hours_text(spent.promised),
            hours_text(spent.ahead(held, self.now)),
        ))
    }
}

pub(super) fn period_text(period: Period) -> &'static str {
    match period {
        Period::Day => "a day",
        Period::Week => "a week",
        Period::Month => "a month",
        Period::Quarter => "a quarter",
        Period::Year => "a year",
    }
}
