//! Expected starts of pending jobs and array tasks.
//!
//! Reads a pass that plans a start for every job; changes no plan.

pub mod array_starts;
pub(crate) mod foretold;
pub mod job_starts;
pub(crate) mod limited;
