//! What a pending job asks for, as the scheduler sees it: demands, job classes, queue groups, pending reasons.
//!
//! Finds no nodes: `place` does.

pub mod demand;
pub mod impossible;
pub mod job_class;
pub(crate) mod queue;
pub mod reason;
pub mod sharing;
pub(crate) mod usual;
