//! Finding nodes for one job: limits, scores, rails, GPUs that reservations hold by number.
//!
//! Starts nothing and reserves nothing.

pub(crate) mod admission;
pub(crate) mod allowed;
pub(crate) mod counted;
pub(crate) mod find;
pub(crate) mod fitting_nodes;
pub(crate) mod free_now;
pub(crate) mod gpu_holds;
pub(crate) mod gpu_reservation;
pub(crate) mod limits_in_force;
pub(crate) mod nominated_nodes;
pub(crate) mod rails;
pub mod score;
pub mod search;
pub mod search_memo;
pub mod start_search;
