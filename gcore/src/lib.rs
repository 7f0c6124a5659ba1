//! The two deterministic state machines: the controller's (`ctl`) and the node's (`node`).
//!
//! Neither knows tokio, SQLite, files or the clock. Facts come in as inputs with their time, leave as
//! events; what should be done is derived from the state (ARCHITECTURE.md; after flux-core and omicron).

pub mod chunk_map;
pub mod ctl;
pub mod node;
