//! Which nodes are near each other: leaf switches, NVLink domains, and the order of ranks along them.
//!
//! Made from the site's topology and from what nodes report, anew when either changes. Knows nothing of what is free.

use crate::placement::Picked;
use crate::snapshot::SchedNode;
use fixedbitset::FixedBitSet;
use gmodel::policy::Topology;
use std::collections::BTreeMap;

/// Nodes by their place in the snapshot.
#[derive(Clone, Debug, Default)]
pub struct Network {
    /// The nodes directly below each leaf switch, and those below none; empty where no switch is named.
    pub leaves: Vec<FixedBitSet>,
    /// Nodes whose GPUs reach each other by NVLink.
    pub domains: Vec<FixedBitSet>,
    /// Place of each node in the order of ranks.
    rank: Vec<u32>,
}

impl Network {
    pub fn new(topology: &Topology, nodes: &[SchedNode]) -> Self {
        let named: Vec<(&str, &str)> = nodes.iter().map(|node| (&*node.name, &*node.nvlink_domain)).collect();
        let mut rank = vec![0; nodes.len()];
        for (place, at) in (0..).zip(topology.order(&named)) {
            rank[at] = place;
        }
        let mut domains: BTreeMap<&str, FixedBitSet> = BTreeMap::new();
        for (at, (_, domain)) in named.iter().enumerate().filter(|(_, (_, domain))| !domain.is_empty()) {
            domains.entry(domain).or_insert_with(|| FixedBitSet::with_capacity(nodes.len())).insert(at);
        }
        Self { leaves: leaves(topology, nodes), domains: domains.into_values().collect(), rank }
    }

    /// Leaf switches that some nodes are below.
    pub fn leaves_of(&self, picked: &Picked) -> u32 {
        self.leaves.iter().filter(|leaf| picked.iter().any(|(at, _)| leaf.contains(*at))).count() as u32
    }

    pub fn rank(&self, at: usize) -> u32 {
        self.rank[at]
    }
}

fn leaves(topology: &Topology, nodes: &[SchedNode]) -> Vec<FixedBitSet> {
    let mut leaves = Vec::new();
    let mut rest = FixedBitSet::with_capacity(nodes.len());
    rest.insert_range(..);
    for list in topology.switches.iter().filter_map(|switch| switch.nodes.as_ref()) {
        let mut leaf = FixedBitSet::with_capacity(nodes.len());
        leaf.extend((0..nodes.len()).filter(|at| rest.contains(*at) && list.contains(&nodes[*at].name)));
        rest.difference_with(&leaf);
        leaves.push(leaf);
    }
    if !leaves.is_empty() && !rest.is_clear() {
        leaves.push(rest);
    }
    leaves
}
