//! A job of unlike parts: its components start together or not at all.

pub(crate) mod consider;
pub(crate) mod idle;
pub(crate) mod members;
pub(crate) mod plan_start;
pub(crate) mod preempt;
