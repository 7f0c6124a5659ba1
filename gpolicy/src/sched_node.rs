//! A node as policy and scheduler see it: its inventory and what is free there.

use gmodel::mig::{MigBoard, MigKind};
use gmodel::node::{GpuEntry, GpuInfo};
use gmodel::run::NodeShare;
use gmodel::{NodeId, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchedNode {
    pub id: NodeId,
    pub name: String,
    /// Why it takes no new work; `None` when it does.
    pub unavailable: Option<String>,
    pub features: Vec<String>,
    /// Nodes of one NVLink domain have the same word; empty: none.
    pub nvlink_domain: String,
    pub cpus: u32,
    pub mem_bytes: u64,
    /// Shared: a pass copies its nodes many times, and GPUs never change in it.
    pub gpus: Arc<Vec<GpuEntry>>,
    pub free_cpus: u32,
    pub free_mem_bytes: u64,
    /// By slot, thousandths; 0 for a GPU that is missing or sick.
    pub free_gpu_milli: Vec<u32>,
    /// How many runs have a share here: an exclusive job needs 0.
    pub runs: u32,
    /// An exclusive run holds the whole node.
    pub exclusive: bool,
    pub mig: NodeMig,
}

/// Facts of a node for planning MIG cuts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeMig {
    /// What its GPUs can be cut into.
    pub boards: Arc<Vec<MigBoard>>,
    /// When a GPU was last ordered to be cut, and into what.
    pub cuts: BTreeMap<String, CutRecord>,
    /// GPUs with any order that the node has not answered.
    pub ordered: BTreeSet<String>,
    /// GPUs that are being cut, and into what; none: into whole GPUs.
    pub being_cut: BTreeMap<String, Vec<String>>,
}

/// The newest cut of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CutRecord {
    pub at: Timestamp,
    /// In the order of the command; none: a whole GPU.
    pub profiles: Vec<String>,
}

impl NodeMig {
    /// What a GPU can be cut into.
    pub fn kinds_of(&self, gpu: &GpuInfo) -> &[MigKind] {
        let same = |board: &&MigBoard| {
            board.memory_mib == gpu.memory_mib && board.gpu_type == gpu.gpu_type
        };
        self.boards
            .iter()
            .find(same)
            .map_or(&[], |board| &board.kinds)
    }
}

impl SchedNode {
    /// How many GPUs the node has, missing and sick ones too; MIG slices are parts of GPUs.
    pub fn gpu_count(&self) -> usize {
        self.gpus
            .iter()
            .filter(|gpu| gpu.info.slice.is_none())
            .count()
    }

    /// Takes a share out of what is free.
    pub fn take(&mut self, share: &NodeShare) {
        self.free_cpus = self.free_cpus.saturating_sub(share.cpus);
        self.free_mem_bytes = self.free_mem_bytes.saturating_sub(share.mem_bytes);
        self.runs += 1;
        for grant in &share.gpus.0 {
            if let Some(free) = self.free_gpu_milli.get_mut(usize::from(grant.slot.0)) {
                *free = free.saturating_sub(grant.part.of_slot_milli());
            }
        }
    }

    /// Gives a share back.
    pub fn give(&mut self, share: &NodeShare) {
        self.free_cpus = (self.free_cpus + share.cpus).min(self.cpus);
        self.free_mem_bytes = (self.free_mem_bytes + share.mem_bytes).min(self.mem_bytes);
        self.runs = self.runs.saturating_sub(1);
        for grant in &share.gpus.0 {
            let at = usize::from(grant.slot.0);
            if self.gpus.get(at).is_some_and(|gpu| gpu.usable())
                && let Some(free) = self.free_gpu_milli.get_mut(at)
            {
                *free = (*free + grant.part.of_slot_milli()).min(gmodel::gpu_set::WHOLE_GPU_MILLI);
            }
        }
    }
}

/// The place of a node in a list by id. Ids mostly follow each other without a gap.
pub fn place_of_node<T>(list: &[T], node: NodeId, id_of: impl Fn(&T) -> NodeId) -> Option<usize> {
    let near = node.0.checked_sub(id_of(list.first()?).0)? as usize;
    match list.get(near) {
        Some(one) if id_of(one) == node => Some(near),
        _ => list.binary_search_by_key(&node, id_of).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_found_where_ids_are_missing_too() {
        let place = |ids: &[u32], id: u32| place_of_node(ids, NodeId(id), |id| NodeId(*id));
        for ids in [&[3, 4, 5, 6][..], &[3, 5, 6, 9], &[1], &[]] {
            for id in 0..12 {
                assert_eq!(
                    place(ids, id),
                    ids.iter().position(|one| *one == id),
                    "{id} in {ids:?}"
                );
            }
        }
    }
}
