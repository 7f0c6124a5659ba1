//! The pages of the ledger: limits, and what is held against them.

use gmodel::policy::{Budget, Limits};
use gpolicy::budget::BudgetUse;
use gpolicy::limits::{Bound, GpuTypes, Meter};

/// The limits and the use of an account.
#[derive(Clone, Debug, Default)]
pub(super) struct AccountPage {
    pub(super) group: Option<Bound>,
    pub(super) per_user: Option<Bound>,
    pub(super) has_user_bounds: bool,
    pub(super) held: Meter,
    /// In their present periods.
    pub(super) budgets: Vec<(Budget, BudgetUse)>,
}

/// The limits and the use of a QOS or a partition.
#[derive(Clone, Debug, Default)]
pub(super) struct Page {
    pub(super) group: Option<Bound>,
    pub(super) per_user: Option<Bound>,
    pub(super) per_account: Option<Bound>,
    pub(super) held: Meter,
}

impl Page {
    pub(super) fn new([group, per_user, per_account]: [&Limits; 3], types: &GpuTypes) -> Self {
        Self {
            group: Bound::new(group, types),
            per_user: Bound::new(per_user, types),
            per_account: Bound::new(per_account, types),
            held: Meter::default(),
        }
    }
}

/// A user's own limits; where they say nothing, those of each user.
pub(super) fn stricter(own: &Limits, each: &Limits) -> Limits {
    let own = own.clone();
    Limits {
        running_jobs: own.running_jobs.or(each.running_jobs),
        submitted_jobs: own.submitted_jobs.or(each.submitted_jobs),
        gpus: own.gpus.or_else(|| each.gpus.clone()),
        cpus: own.cpus.or(each.cpus),
        nodes: own.nodes.or(each.nodes),
        running_gpu_hours: own.running_gpu_hours.or(each.running_gpu_hours),
        array_tasks: own.array_tasks.or(each.array_tasks),
        submits_per_minute: own.submits_per_minute.or(each.submits_per_minute),
    }
}
