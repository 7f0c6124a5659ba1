//! What a request needs of each node, and whether the nodes of a partition could ever give it.
//!
//! Looks at the inventory of nodes, not at what is free there.

pub mod demand;
pub mod describe;
pub mod gpu_group;
pub mod impossible;
pub mod share_request;
