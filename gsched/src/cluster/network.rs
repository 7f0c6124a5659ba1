//! Which nodes are near each other: leaf switches, NVLink domains, and the order of ranks along them.
//!
//! Made from the site's topology and from what nodes report, anew when either changes. Knows nothing of what is free.

use crate::cluster::picked::PickedNodes;
use crate::snapshot::{PendingJob, SchedNode};
use fixedbitset::FixedBitSet;
use gmodel::config::{MigCuts, Partition};
use gmodel::node::GpuEntry;
use gmodel::policy::{Rails, Topology};
use gmodel::{Request, Timestamp};
use gpolicy::feasibility::demand::Demand;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Sets of leaf switches that are tried for a job with `--switches`, and looked at.
const MOST_CHOICES: usize = 64;
const MOST_TRIES: u32 = 10_000;

/// Nodes by their place in the snapshot.
#[derive(Clone, Debug, Default)]
pub struct Network {
    /// The nodes directly below each leaf switch, and those below none; empty where no switch is named.
    pub leaves: Vec<FixedBitSet>,
    /// Nodes that NVLink joins.
    pub domains: Vec<FixedBitSet>,
    /// Place of each node in the order of ranks.
    rank: Vec<u32>,
    /// The fabric with rails of each node, by its place in `rails`; empty where there are none.
    rails_of: Vec<Option<usize>>,
    rails: Vec<Rails>,
}

impl Network {
    pub fn new(topology: &Topology, nodes: &[SchedNode]) -> Self {
        let named: Vec<(&str, &str)> = nodes
            .iter()
            .map(|node| (&*node.name, &*node.nvlink_domain))
            .collect();
        let mut rank = vec![0; nodes.len()];
        for (place, at) in (0..).zip(topology.order(&named)) {
            rank[at] = place;
        }
        let mut domains: BTreeMap<&str, FixedBitSet> = BTreeMap::new();
        for (at, (_, domain)) in named
            .iter()
            .enumerate()
            .filter(|(_, (_, domain))| !domain.is_empty())
        {
            domains
                .entry(domain)
                .or_insert_with(|| FixedBitSet::with_capacity(nodes.len()))
                .insert(at);
        }
        let rails = topology.rails.clone();
        let of_node = |node: &SchedNode| {
            rails
                .iter()
                .position(|rails| rails.nodes.contains(&node.name))
        };
        let rails_of = if rails.is_empty() {
            Vec::new()
        } else {
            nodes.iter().map(of_node).collect()
        };
        let names: Vec<&str> = named.iter().map(|(name, _)| *name).collect();
        Self {
            leaves: leaves(topology, &names),
            domains: domains.into_values().collect(),
            rank,
            rails_of,
            rails,
        }
    }

    /// Whether the site told of rails.
    pub fn has_rails(&self) -> bool {
        !self.rails.is_empty()
    }

    /// Rail of each slot of a node, where its whole GPU is on one; `None` for a node without rails.
    pub fn rails_of(&self, at: usize, node: &SchedNode) -> Option<Vec<Option<u32>>> {
        let rails = &self.rails[(*self.rails_of.get(at)?)?];
        let whole = |gpu: &&GpuEntry| gpu.info.slice.is_none();
        Some(
            node.gpus
                .iter()
                .map(|gpu| {
                    Some(gpu)
                        .filter(whole)
                        .and_then(|gpu| rails.of(gpu.info.index))
                })
                .collect(),
        )
    }

    /// Leaf switches that some nodes are below.
    pub fn leaves_of(&self, picked: &PickedNodes) -> u32 {
        self.leaves
            .iter()
            .filter(|leaf| {
                picked
                    .iter()
                    .any(|(nodes, _)| leaf.contains_any_in_range(nodes.clone()))
            })
            .count() as u32
    }

    /// Nodes of at most so many leaves together, that hold as many fitting nodes as are needed and all that are named:
    /// of one leaf those that leave the least over first, of several the largest first. `sizes`: fitting nodes and the leaf,
    /// ascending.
    pub(crate) fn choices(
        &self,
        sizes: &[(usize, usize)],
        named: &[usize],
        most: usize,
        count: usize,
    ) -> Vec<FixedBitSet> {
        let has_named = |leaf: usize| named.iter().any(|at| self.leaves[leaf].contains(*at));
        let (must, others): (Vec<_>, Vec<_>) = sizes
            .iter()
            .filter(|(size, _)| *size > 0)
            .partition(|(_, leaf)| has_named(*leaf));
        let mut choices = Vec::new();
        for used in must.len().max(1)..=most.min(must.len() + others.len()) {
            let more = used - must.len();
            let mut list = others.clone();
            if more > 1 {
                list.reverse();
            }
            each_choice(&list, more, &mut |chosen| {
                let all = || must.iter().chain(chosen);
                if all().map(|(size, _)| size).sum::<usize>() >= count {
                    let mut union =
                        FixedBitSet::with_capacity(self.leaves.first().map_or(0, FixedBitSet::len));
                    all().for_each(|(_, leaf)| union.union_with(&self.leaves[*leaf]));
                    choices.push(union);
                }
                choices.len() < MOST_CHOICES
            });
        }
        choices
    }

    pub fn rank(&self, at: usize) -> u32 {
        self.rank[at]
    }
}

/// `--switches`: at most so many leaf switches, as long as it is willing to wait for that.
pub(crate) fn most_leaves(job: &PendingJob, now: Timestamp) -> Option<u32> {
    let wanted = job.spec.request.switches?;
    let waits = any_switches_from(job).is_none_or(|over| now < over);
    waits.then_some(wanted.most.max(1))
}

/// When a job with `--switches` no longer waits for few of them; `None`: never, or it does not ask.
pub(crate) fn any_switches_from(job: &PendingJob) -> Option<Timestamp> {
    job.spec
        .request
        .switches?
        .waits_until(job.eligible.max(job.submitted))
}

/// What a job with `--switches` that waits as long as it takes never gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchShortage {
    /// Nodes that could serve it below so few leaf switches, at most; and how many it needs.
    pub most: usize,
    pub needed: usize,
    /// So many leaf switches have enough.
    pub switches: Option<u32>,
}

/// Whether too few of some nodes lie below as many leaf switches as a request allows for good, were nothing else there.
pub fn too_few_below(
    topology: &Topology,
    request: &Request,
    partition: &Partition,
    nodes: &[&SchedNode],
) -> Option<SwitchShortage> {
    let asked = request
        .switches
        .filter(|switches| switches.wait_secs.is_none())?
        .most
        .max(1) as usize;
    let named = request.nodelist.as_ref().map_or(0, |list| list.len());
    let of_alternative = |demand: &Demand| {
        let is_cut = partition.mig == MigCuts::Planned;
        let serves = |node: &&SchedNode| {
            demand
                .nodes
                .iter()
                .any(|part| part.fits_empty(node).is_ok() || (is_cut && part.fits_cut(node)))
        };
        let names: Vec<&str> = nodes
            .iter()
            .copied()
            .filter(serves)
            .map(|node| &*node.name)
            .collect();
        let leaves = leaves(topology, &names);
        let needed = demand.nodes.len().max(named);
        let mut sizes: Vec<usize> = leaves.iter().map(|leaf| leaf.count_ones(..)).collect();
        sizes.sort_unstable_by_key(|size| Reverse(*size));
        let most = if leaves.is_empty() {
            needed
        } else {
            sizes.iter().take(asked).sum()
        };
        let enough =
            (asked..=sizes.len()).find(|count| sizes.iter().take(*count).sum::<usize>() >= needed);
        SwitchShortage {
            most,
            needed,
            switches: enough.and_then(|count| u32::try_from(count).ok()),
        }
    };
    let alternatives: Vec<SwitchShortage> = Demand::all(request, partition)
        .iter()
        .map(of_alternative)
        .collect();
    let none = alternatives
        .iter()
        .all(|alternative| alternative.most < alternative.needed);
    alternatives.into_iter().find(|_| none)
}

/// Each choice of so many out of a list, those of its first members first, until `take` says that it is enough.
fn each_choice<T: Copy>(list: &[T], count: usize, take: &mut dyn FnMut(&[T]) -> bool) {
    fn go<T: Copy>(
        list: &[T],
        count: usize,
        chosen: &mut Vec<T>,
        tries: &mut u32,
        take: &mut dyn FnMut(&[T]) -> bool,
    ) -> bool {
        if count == 0 {
            *tries = tries.saturating_sub(1);
            return take(chosen) && *tries > 0;
        }
        for at in 0..list.len().saturating_sub(count - 1) {
            chosen.push(list[at]);
            let on = go(&list[at + 1..], count - 1, chosen, tries, take);
            chosen.pop();
            if !on {
                return false;
            }
        }
        true
    }
    go(
        list,
        count,
        &mut Vec::with_capacity(count),
        &mut MOST_TRIES.clone(),
        take,
    );
}

fn leaves(topology: &Topology, nodes: &[&str]) -> Vec<FixedBitSet> {
    let mut leaves = Vec::new();
    let mut rest = FixedBitSet::with_capacity(nodes.len());
    rest.insert_range(..);
    for list in topology
        .switches
        .iter()
        .filter_map(|switch| switch.nodes.as_ref())
    {
        let mut leaf = FixedBitSet::with_capacity(nodes.len());
        leaf.extend((0..nodes.len()).filter(|at| rest.contains(*at) && list.contains(nodes[*at])));
        rest.difference_with(&leaf);
        leaves.push(leaf);
    }
    if !leaves.is_empty() && !rest.is_clear() {
        leaves.push(rest);
    }
    leaves
}
