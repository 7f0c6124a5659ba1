//! What a pending job asks for, as the scheduler sees it: job classes, queue groups, pending reasons.
//!
//! Finds no nodes: `place` does.

pub(crate) mod choices;
pub mod job_class;
pub mod job_classes;
pub(crate) mod most_free;
pub(crate) mod never_fits;
pub(crate) mod queue;
pub mod reason;
pub mod sharing;
pub(crate) mod usual;
