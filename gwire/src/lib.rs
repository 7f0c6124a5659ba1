//! What travels: the REST types and client, the node protocol, frames, versions, peer identity. For the daemons' listeners: who gets a
//! place, and how long the other end is waited for.

pub mod api;
pub mod client;
pub mod door;
pub mod frame;
pub mod node_protocol;
#[cfg(feature = "server")]
pub mod patience;
