//! The node's state machine: what a node was told, how far its runs are, and what is to be done about it.
//!
//! It never makes a cgroup or starts a process: `actions` says what the state calls for, the daemon does it and reports
//! facts. Actions are derived, so repeating one is harmless and a restart is "scan, then act" (after flux-core, omicron).
//!
//! ```text
//!   Desired + order        Prepared            Started            Ended             Cleaned
//!  (none) ----Record----> ACCEPTED --Prepare--> READY --Go--> RUNNING ---------> ENDED --Clean--> CLEAN --Forget--> (none)
//!                            |                    |              ^ Signal, Limit   ^
//!                            +----- Abandon ------+---- Stop ----+-----------------+
//! ```

pub mod action;
pub mod gpu_health;
pub mod handle;
pub mod input;
pub mod state;

pub use action::{NodeAction, actions, reports};
pub use handle::handle;
pub use input::{NodeEvent, NodeInput, SpooledRun};
pub use state::{NodeRun, NodeState, PendingTarget, apply, check};

#[cfg(test)]
mod tests;
