//! Preemption: victims, the proof that the job starts without them, and nominations that hold its nodes until it does.
//!
//! Ends no run: the plan proposes, the controller decides.

pub(crate) mod candidate;
pub(crate) mod consolidate;
pub(crate) mod exchange;
pub(crate) mod fair_swap;
pub(crate) mod ground;
pub(crate) mod guarantee_claims;
pub(crate) mod holders;
pub(crate) mod leaving;
pub(crate) mod nomination;
pub mod protection;
pub(crate) mod resume;
pub(crate) mod victim_nodes;
pub mod victims;
pub(crate) mod what_if;
