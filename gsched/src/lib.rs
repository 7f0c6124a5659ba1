//! The scheduler: an immutable snapshot in, a plan out; every job that does not start has a reason.
//!
//! Pure: no clock, no I/O; its budget is work units, so a plan never depends on the machine.

pub mod account_tree;
mod backfill;
pub mod calibration;
pub mod cluster;
pub mod decide;
pub mod fair_tree;
pub mod forecast;
pub mod headroom;
pub mod job;
pub mod ledger;
pub mod limits;
pub mod mig;
mod names;
pub mod pass;
pub mod place;
pub mod plan;
pub mod preempt;
pub mod priority;
pub mod quota;
pub mod run_lengths;
pub mod snapshot;
pub mod usage;
pub mod why;
pub mod window;

pub use decide::quick::Changes;
pub use forecast::array_starts::ArrayStarts;
pub use forecast::job_starts::{Forecast, forecast};
pub use job::demand::{Demand, NodeDemand};
pub use job::impossible::impossible;
pub use job::reason::held_by;
pub use pass::{Engine, HandOver, plan};
pub use plan::{Cut, Made, Plan, Preempt, Start, WorkBudget};
pub use snapshot::{ArrayCap, Particulars, PendingJob, RunningRun, SchedNode, Snapshot};
pub use why::change::{Change, Edit};
pub use why::explanation::{Alternative, Blocker, Elsewhere, Why, why};

#[cfg(test)]
mod tests;
