//! What nodes are and what is free on them over time.
//!
//! Knows runs and planned starts as amounts of a node; knows no queue and no policy.

pub(crate) mod gpu_types;
pub mod network;
pub mod node_class;
pub mod node_state;
pub mod node_states;
pub mod nodes;
pub mod picked;
pub(crate) mod tenant_terms;
pub mod timeline;
pub mod wiring;
