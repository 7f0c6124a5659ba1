//! The scheduler: an immutable snapshot in, a plan out; every job that does not start has a reason.
//!
//! Pure: no clock, no I/O; its budget is work units, so a plan never depends on the machine.

pub mod account_tree;
pub mod array_starts;
pub mod calibration;
pub mod run_lengths;
mod consolidate;
mod freed;
mod in_turn;
pub mod quick;
pub mod why;
pub mod forecast;
pub mod change;
mod choices;
mod what_if;
mod waiting;
mod claims;
mod promised;
pub mod cluster;
mod counted;
pub mod demand;
pub mod impossible;
pub mod make;
mod mig_hold;
pub mod mig_plan;
pub mod network;
pub mod pass;
pub mod placement;
pub mod reason;
pub mod room;
pub mod rooms;
pub mod score;
pub mod shape;
pub mod sharing;
pub mod timeline;
pub mod window;
pub mod wiring;
pub mod fair_tree;
pub mod headroom;
pub mod ledger;
mod limited;
pub mod limits;
mod types_of_nodes;
mod names;
mod refusals;
mod queue;
mod usual;
mod walk;
pub mod preempt;
mod preempt_exchange;
mod preempt_nodes;
mod preempt_room;
pub mod priority;
mod resume;
pub mod quota;
mod rails;
pub mod plan;
pub mod snapshot;
pub mod usage;

pub use array_starts::ArrayStarts;
pub use demand::{Demand, NodeDemand};
pub use impossible::impossible;
pub use pass::{Engine, HandOver, plan};
pub use reason::held_by;
pub use change::{Change, Edit};
pub use forecast::{Forecast, forecast};
pub use why::{Alternative, Blocker, Elsewhere, Why, why};
pub use quick::Changes;
pub use plan::{Cut, Made, Plan, Preempt, Start, WorkBudget};
pub use snapshot::{ArrayCap, Particulars, PendingJob, RunningRun, SchedNode, Snapshot};

#[cfg(test)]
mod tests;
#[cfg(test)]
mod world;
