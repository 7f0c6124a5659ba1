//! The scheduler: an immutable snapshot in, a plan out; every job that does not start has a reason.
//!
//! Pure: no clock, no I/O; its budget is work units, so a plan never depends on the machine.

mod backfill;
pub mod calibration;
pub mod changes;
pub mod cluster;
mod decide;
pub mod drivers;
pub mod engine;
pub mod forecast;
mod gang;
pub mod headroom;
pub mod job;
pub mod ledger;
pub mod mig;
mod pass;
pub mod place;
pub mod plan;
pub mod preempt;
pub mod queue_order;
pub mod snapshot;
pub mod why;
mod world;

pub use changes::Changes;
pub use drivers::plan;
pub use engine::Engine;
pub use forecast::job_starts::{Forecast, forecast};
pub use gang::idle::crowded_out;
pub use job::reason::held_by;
pub use ledger::holder::Holder;
pub use pass::HandOver;
pub use plan::{Cut, Nomination, Plan, PlanOrigin, Preempt, Start, WorkBudget};
pub use snapshot::{ArrayCap, Particulars, PendingJob, RunningRun, SchedNode, Snapshot};
pub use why::answer::{Alternative, Blocker, Explanation, OtherPartition};
pub use why::change::{Change, Edit};
pub use why::explanation::why;

#[cfg(test)]
mod tests;
