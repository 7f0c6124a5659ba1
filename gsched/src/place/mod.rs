//! Finding nodes for one job: limits, scores, rails, GPUs that reservations hold by number.
//!
//! Starts nothing and reserves nothing.

pub(crate) mod claims;
pub(crate) mod counted;
pub(crate) mod rails;
pub mod score;
pub mod search;
