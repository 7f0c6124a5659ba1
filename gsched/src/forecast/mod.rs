//! Expected starts of pending jobs; of a job that a limit refuses, that limit.
//!
//! Reads a pass that plans a start for every job; changes no plan.

pub mod job_starts;
