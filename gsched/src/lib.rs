//! The scheduler: an immutable snapshot in, a plan out; every job that does not start has a reason.
//!
//! Pure: no clock, no I/O; its budget is work units, so a plan never depends on the machine.

pub mod account_tree;
pub mod demand;
pub mod first_fit;
pub mod fair_tree;
pub mod headroom;
pub mod ledger;
pub mod limits;
pub mod priority;
pub mod quota;
pub mod plan;
pub mod snapshot;
pub mod usage;

pub use demand::{Demand, NodeDemand};
pub use first_fit::{held_by, impossible, plan, priority};
pub use plan::{Plan, Preempt, Start, WorkBudget};
pub use snapshot::{PendingJob, RunningRun, SchedNode, Snapshot};

#[cfg(test)]
mod tests;
