//! What is free of a node.

use crate::ctl::state::{Node, State};
use gmodel::node::NodeStateView;

/// The resources of a node that no run holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Free {
    pub cpus: u32,
    pub mem_bytes: u64,
    /// By slot; 0 for a GPU that is missing or sick.
    pub gpu_milli: Vec<u32>,
    /// Runs with a share here.
    pub runs: u32,
}

impl State {
    /// Free CPUs, bytes, and thousandths of each GPU by slot.
    pub fn free_on(&self, node: &Node) -> Free {
        let mut free = Free {
            cpus: node.inventory.cpus,
            mem_bytes: node.inventory.mem_bytes,
            gpu_milli: node
                .gpus
                .iter()
                .map(|gpu| {
                    if gpu.usable() && !node.is_being_cut(gpu) {
                        1000
                    } else {
                        0
                    }
                })
                .collect(),
            runs: 0,
        };
        for run in node.runs.iter().filter_map(|id| self.runs.get(*id)) {
            let Some(at) = run
                .place_of(node.id)
                .filter(|at| !run.members[*at].is_clean())
            else {
                continue;
            };
            let share = &run.allocation[at];
            free.runs += 1;
            if !run.lends_cpus() {
                free.cpus = free.cpus.saturating_sub(share.cpus);
            }
            free.mem_bytes = free.mem_bytes.saturating_sub(share.mem_bytes);
            for grant in &share.gpus.0 {
                if let Some(slot) = free.gpu_milli.get_mut(usize::from(grant.slot.0)) {
                    *slot = slot.saturating_sub(grant.part.of_slot_milli());
                }
            }
        }
        free
    }

    /// Without reservations, which depend on the clock.
    pub fn node_view(&self, node: &Node) -> NodeStateView {
        let free = self.free_on(node);
        NodeStateView {
            link: node.link,
            drained: !node.drains.is_empty(),
            unfit: !node.inventory.unfit.is_empty(),
            allocated: free.runs > 0,
            room: free.cpus > 0 && (node.gpus.is_empty() || free.gpu_milli.iter().any(|m| *m > 0)),
            reserved: false,
            maintenance: false,
        }
    }
}
