//! Nodes, GPUs, partitions and the cluster over the API, and how a node joins.

pub(crate) mod difference;
pub(crate) mod gpu;
pub(crate) mod join;
pub(crate) mod list;
