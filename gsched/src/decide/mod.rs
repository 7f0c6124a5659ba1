//! The drivers of a pass: along the queue, along queue groups, and quick passes after a run's end.

pub(crate) mod consider;
pub(crate) mod finish;
pub(crate) mod full_pass;
pub mod quick;
pub(crate) mod start;
pub(crate) mod turns;
pub(crate) mod wait;
pub(crate) mod walk;
pub(crate) mod withheld;
