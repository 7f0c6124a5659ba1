//! The scheduler: an immutable snapshot in, a plan out; every job that does not start has a reason.
//!
//! Pure: no clock, no I/O; its budget is work units, so a plan never depends on the machine.

pub mod account_tree;
pub mod array_starts;
pub mod calibration;
pub mod change;
mod choices;
mod claims;
pub mod cluster;
mod consolidate;
mod counted;
pub mod demand;
pub mod fair_tree;
pub mod forecast;
mod freed;
pub mod headroom;
pub mod impossible;
mod in_turn;
pub mod ledger;
mod limited;
pub mod limits;
pub mod make;
mod mig_hold;
pub mod mig_plan;
mod names;
pub mod network;
pub mod pass;
pub mod placement;
pub mod plan;
pub mod preempt;
mod preempt_exchange;
mod preempt_nodes;
mod preempt_room;
pub mod priority;
mod promised;
mod queue;
pub mod quick;
pub mod quota;
mod rails;
pub mod reason;
mod refusals;
mod resume;
pub mod room;
pub mod rooms;
pub mod run_lengths;
pub mod score;
pub mod shape;
pub mod sharing;
pub mod snapshot;
pub mod timeline;
mod types_of_nodes;
pub mod usage;
mod usual;
mod waiting;
mod walk;
mod what_if;
pub mod why;
pub mod window;
pub mod wiring;

pub use array_starts::ArrayStarts;
pub use change::{Change, Edit};
pub use demand::{Demand, NodeDemand};
pub use forecast::{Forecast, forecast};
pub use impossible::impossible;
pub use pass::{Engine, HandOver, plan};
pub use plan::{Cut, Made, Plan, Preempt, Start, WorkBudget};
pub use quick::Changes;
pub use reason::held_by;
pub use snapshot::{ArrayCap, Particulars, PendingJob, RunningRun, SchedNode, Snapshot};
pub use why::{Alternative, Blocker, Elsewhere, Why, why};

#[cfg(test)]
mod tests;
#[cfg(test)]
mod world;
