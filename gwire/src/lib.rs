//! What travels between programs of gpupool: the REST types and client, the node protocol, frames. For the daemons' listeners:
//! permits for connections, and a least data rate.

pub mod api;
pub mod client;
pub mod frame;
#[cfg(feature = "server")]
pub mod min_rate;
pub mod node_protocol;
pub mod permits;
pub mod port_relay;
pub mod record_json;
pub mod row;
pub mod step_tls;
mod tls13;
