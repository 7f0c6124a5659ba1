//! Policy as numbers: accounts, usage, fair share, priority, limits, guarantees, budgets, reservation windows.
//!
//! Core and scheduler share it. Pure: no clock, no I/O. Starts and ends no run.

pub mod account_tree;
pub mod bill;
pub mod budget;
pub mod fair_tree;
pub mod feasibility;
pub mod limits;
pub mod names;
pub mod pending_job;
pub mod priority;
pub mod quota;
pub mod reserved_nodes;
pub mod run_lengths;
pub mod running_run;
pub mod sched_node;
pub mod slice_sizes;
pub mod usage;
pub mod window;
