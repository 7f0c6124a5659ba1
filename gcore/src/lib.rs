//! The two deterministic state machines: the controller's (`ctl`) and the node's (`node`).
//!
//! Neither knows tokio, SQLite, files or the clock. Inputs come in with their time, events go out; what should
//! be done is derived from the state (ARCHITECTURE.md; after flux-core and omicron).

pub mod chunk_map;
pub mod ctl;
pub mod node;
mod violation;

pub use violation::Violation;
