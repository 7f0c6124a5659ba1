//! What travels: the REST types and client, the node protocol, frames, versions, peer identity.

pub mod api;
pub mod client;
pub mod frame;
pub mod node_protocol;
