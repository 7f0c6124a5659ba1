//! Advance reservations: their windows, their nodes, and their upkeep while time passes.

pub(crate) mod nodes;
pub(crate) mod release;
pub(crate) mod selection;
pub(crate) mod upkeep;
pub(crate) mod window;
