//! The planner's side: the snapshot that a pass reads, and the snapshot that is kept from pass to pass.

pub(crate) mod mirror;
pub(crate) mod snapshot;
