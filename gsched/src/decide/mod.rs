//! The drivers of a pass: along the queue, along queue groups, and quick passes after a run's end.

pub(crate) mod choices;
pub mod quick;
pub(crate) mod walk;
