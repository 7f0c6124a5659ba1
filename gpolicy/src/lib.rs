//! Policy as numbers: the account tree, usage, hard limits, guarantees and budgets.
//!
//! Core and scheduler share it. Pure: no clock, no I/O. Starts and ends no run, and knows no node.

pub mod account_tree;
pub mod budget;
pub mod limits;
pub mod names;
pub mod quota;
pub mod usage;
