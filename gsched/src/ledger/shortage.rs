//! What of a guarantee has no room for a job, in words: why it would borrow.
//!
//! Counts nothing and decides nothing: the ledger does.

use super::{Ledger, UsageOwner};
use crate::queue_order::{asked, guaranteed_as};
use crate::snapshot::PendingJob;
use gmodel::JobSpec;
use gmodel::gpu_amounts::milli_text;
use gmodel::policy::{Budget, BudgetKind, Period};
use gpolicy::limits::{Holding, hours_text};
use gpolicy::quota::GuaranteeShortage;

/// Why a job would borrow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage {
    pub text: String,
    /// The job would borrow in an idle cluster, too: its account's guarantee is too small.
    pub for_good: bool,
}

impl Shortage {
    /// Why a pending job would borrow; `None` where its account's guarantee has room for it now. Prefers a type of which the
    /// guarantee is large enough.
    pub fn of(ledger: &Ledger, job: &PendingJob) -> Option<Self> {
        let (spec, now) = (&job.spec, ledger.limits.now);
        let guarantees = ledger.guarantees.as_ref();
        let guarantees = guarantees.filter(|_| !ledger.is_outside_quota(spec))?;
        let owner = ledger.owners.owner(spec);
        if guaranteed_as(job, owner.account?, guarantees, ledger, now).is_some() {
            return None;
        }
        let each = asked(job, ledger, now)
            .into_iter()
            .map(|held| Self::new(ledger, spec, owner, &held));
        each.min_by_key(|short| short.for_good)
    }

    /// Why a job that holds so much would borrow.
    pub(super) fn new(ledger: &Ledger, spec: &JobSpec, owner: UsageOwner, held: &Holding) -> Self {
        let tree = ledger.tree();
        let account = owner.account.unwrap_or_default();
        let granting = ledger.guarantees.as_ref();
        let granting = granting.filter(|all| all.granting(tree, account).is_some());
        let never = granting.and_then(|all| all.never_fits(tree, account, held));
        let now = || granting.and_then(|all| all.short_of(tree, account, held));
        match never.or_else(now) {
            Some(short) => Self {
                text: shortage_text(ledger, short, never.is_some(), held),
                for_good: never.is_some(),
            },
            None => Self {
                text: format!(
                    "account {} is guaranteed no GPUs, and this job needs {}",
                    spec.account,
                    milli_text(held.gpus)
                ),
                for_good: true,
            },
        }
    }
}

fn shortage_text(ledger: &Ledger, short: GuaranteeShortage, never: bool, held: &Holding) -> String {
    let guaranteed = |account: u32, gpu_type: usize, most: u64| {
        let name = ledger.tree().name(account);
        let most = ledger.types().text(gpu_type, most);
        format!("account {name} is guaranteed {most}")
    };
    match short {
        GuaranteeShortage::Gpus {
            account,
            gpu_type,
            most,
            used,
        } => {
            let (used, needs) = (milli_text(used), milli_text(held.of(gpu_type)));
            let uses = match never {
                true => ",".to_owned(),
                false => format!(" and uses {used} of them,"),
            };
            let guaranteed = guaranteed(account, gpu_type, most);
            format!("{guaranteed}{uses} and this job needs {needs}")
        }
        GuaranteeShortage::SetApart {
            account,
            gpu_type,
            most,
            set_apart,
        } => {
            let (apart, needs) = (milli_text(set_apart), milli_text(held.of(gpu_type)));
            let used = if never { "" } else { "used or " };
            let guaranteed = guaranteed(account, gpu_type, most);
            format!(
                "{guaranteed}, of which {apart} are {used}guaranteed to accounts below it, and this job needs {needs}"
            )
        }
        GuaranteeShortage::Budget { account, at } => {
            let budgets = ledger.meters.budgets(account).iter();
            let budget = budgets
                .map(|(budget, _)| budget)
                .filter(|budget| budget.kind == BudgetKind::Guaranteed)
                .nth(at);
            let spent = ledger.guarantees().map(|all| all.budget(account, at));
            let Some((budget, spent)) = budget.zip(spent) else {
                return String::new();
            };
            format!(
                "account {} is guaranteed {}: {} are used, guaranteed runs may use {} more by their time limits, and this job {}",
                ledger.tree().name(account),
                budget_text(budget),
                hours_text(spent.used),
                hours_text(spent.promised),
                hours_text(spent.ahead(held, ledger.limits.now)),
            )
        }
    }
}

/// `100 GPU-hours of h100 a month`.
pub(super) fn budget_text(budget: &Budget) -> String {
    let of_type = budget.gpu_type.as_ref();
    let of_type = of_type.map_or(String::new(), |name| format!(" of {name}"));
    let period = match budget.period {
        Period::Day => "a day",
        Period::Week => "a week",
        Period::Month => "a month",
        Period::Quarter => "a quarter",
        Period::Year => "a year",
    };
    format!("{} GPU-hours{of_type} {period}", budget.gpu_hours)
}
