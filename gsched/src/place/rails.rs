//! GPUs on the same rails on all nodes of a job, where that costs nothing else.
//!
//! In a rail-optimised fabric GPU k of every node hangs on leaf switch k: traffic between equal GPUs of two nodes passes one switch, all
//! other traffic the spine or the links within a node. Nodes and numbers of GPUs are decided before. A set with worse links within its
//! node, or that leaves worse links, is never taken for its rails.
//! Source: NVIDIA DGX SuperPOD reference architecture; NCCL's NCCL_CROSS_NIC.

use crate::cluster::network::Network;
use crate::cluster::node_class::NodeClass;
use crate::cluster::node_states::NodeStateId;
use crate::cluster::nodes::Cluster;
use crate::cluster::picked::{PickedNodes, count, each};
use crate::cluster::wiring::{MOST_SETS, SetQuality};
use crate::job::job_class::JobAlternative;
use crate::snapshot::Snapshot;
use gpolicy::window::Window;
use std::collections::BTreeMap;

/// A node as rails see it. Nodes that are equal here give the same slots.
struct RailChoice<'a> {
    node_class: &'a NodeClass,
    rails: Vec<Option<u32>>,
    free: Vec<u16>,
    /// What it gives by itself.
    usual: Vec<u16>,
}

/// How good a set of slots is, rails apart: its GPU links and those of the slots that remain, its NUMA nodes, and how
/// many GPUs stay together on the other NUMA nodes.
#[derive(PartialEq, Eq)]
struct Quality {
    kinds: Vec<u8>,
    worth: Option<SetQuality>,
    numas: usize,
    left: usize,
}

/// Slots of each node of a job, by its place, that are on the same rails everywhere. Empty where each node chooses for itself: on
/// one node, without rails, or where no rails are as good for each node as its own choice.
pub(crate) fn aligned(
    network: &Network,
    cluster: &Cluster,
    snapshot: &Snapshot,
    picked: &PickedNodes,
    alternative: &JobAlternative,
    window: Window,
) -> BTreeMap<usize, Vec<u16>> {
    if count(picked) < 2 || !network.has_rails() {
        return BTreeMap::new();
    }
    find(network, cluster, snapshot, picked, alternative, window).unwrap_or_default()
}

fn find(
    network: &Network,
    cluster: &Cluster,
    snapshot: &Snapshot,
    picked: &PickedNodes,
    alternative: &JobAlternative,
    window: Window,
) -> Option<BTreeMap<usize, Vec<u16>>> {
    let mut choices: Vec<RailChoice> = Vec::new();
    let mut of_node: Vec<(usize, usize)> = Vec::with_capacity(count(picked));
    let mut known: BTreeMap<(NodeStateId, usize, Vec<Option<u32>>), usize> = BTreeMap::new();
    for (at, part) in each(picked) {
        let rails = network.rails_of(at, &snapshot.nodes[at])?;
        let key = (cluster.state_id(at), part, rails);
        let choice = match known.get(&key) {
            Some(choice) => *choice,
            None => {
                let node_class = cluster.nodes[at].node_class;
                let need = alternative.parts[part].need(node_class)?;
                let (node_class, room) = (
                    &cluster.node_classes.list[node_class as usize],
                    cluster.state(at),
                );
                let usual = room.slots_by_itself(node_class, need, window)?;
                choices.push(RailChoice {
                    node_class,
                    rails: key.2.clone(),
                    free: room.free_slots(node_class),
                    usual,
                });
                known.insert(key, choices.len() - 1);
                choices.len() - 1
            }
        };
        of_node.push((at, choice));
    }
    let sets = common_sets(&choices)?;
    Some(
        of_node
            .into_iter()
            .map(|(at, choice)| (at, sets[choice].clone()))
            .collect(),
    )
}

/// Sets on the same rails, one of each choice; what the first gives by itself is tried first.
fn common_sets(choices: &[RailChoice]) -> Option<Vec<Vec<u16>>> {
    let count = choices[0].usual.len();
    if choices.iter().any(|choice| choice.usual.len() != count) {
        return None;
    }
    // The node with the least choice first.
    let tightest = choices.iter().min_by_key(|choice| choice.free.len())?;
    let mut tried = 0;
    let mut found = None;
    each_set(&tightest.usual, &tightest.free, count, &mut |set| {
        tried += 1;
        found = tightest.rails_under(set).and_then(|rails| {
            choices
                .iter()
                .map(|choice| choice.set_on(&rails))
                .collect::<Option<Vec<_>>>()
        });
        found.is_none() && tried < MOST_SETS
    });
    found
}

/// Calls `take` with the first set, then with each set of `count` slots of a list, while it returns `true`.
fn each_set(first: &[u16], of: &[u16], count: usize, take: &mut dyn FnMut(&[u16]) -> bool) {
    fn extend(
        of: &[u16],
        count: usize,
        set: &mut Vec<u16>,
        take: &mut dyn FnMut(&[u16]) -> bool,
    ) -> bool {
        if count == 0 {
            return take(set);
        }
        (0..(of.len() + 1).saturating_sub(count)).all(|at| {
            set.push(of[at]);
            let on = extend(&of[at + 1..], count - 1, set, take);
            set.pop();
            on
        })
    }
    if take(first) {
        extend(of, count, &mut Vec::with_capacity(count), take);
    }
}

impl RailChoice<'_> {
    /// The rails of some slots, in order; `None` where one is on none.
    fn rails_under(&self, slots: &[u16]) -> Option<Vec<u32>> {
        let mut rails: Vec<u32> = slots
            .iter()
            .map(|slot| self.rails[usize::from(*slot)])
            .collect::<Option<_>>()?;
        rails.sort_unstable();
        Some(rails)
    }

    /// Free slots on these rails, if they are as good as what the node gives by itself.
    fn set_on(&self, rails: &[u32]) -> Option<Vec<u16>> {
        if self.rails_under(&self.usual).as_deref() == Some(rails) {
            return Some(self.usual.clone());
        }
        let mut set: Vec<u16> = Vec::with_capacity(rails.len());
        for rail in rails {
            let slot = self.free.iter().find(|slot| {
                self.rails[usize::from(**slot)] == Some(*rail) && !set.contains(slot)
            })?;
            set.push(*slot);
        }
        set.sort_unstable();
        (self.quality(&set).is_as_good_as(&self.quality(&self.usual))).then_some(set)
    }

    fn quality(&self, set: &[u16]) -> Quality {
        let places =
            |slots: &[u16]| -> Vec<usize> { slots.iter().map(|slot| usize::from(*slot)).collect() };
        let mut kinds: Vec<u8> = set
            .iter()
            .map(|slot| self.node_class.slots[usize::from(*slot)])
            .collect();
        kinds.sort_unstable();
        let mut numas: Vec<Option<u32>> = set
            .iter()
            .map(|slot| self.node_class.numa[usize::from(*slot)])
            .collect();
        numas.sort_unstable();
        numas.dedup();
        let mut left: BTreeMap<Option<u32>, usize> = BTreeMap::new();
        for slot in self.free.iter().filter(|slot| !set.contains(slot)) {
            *left
                .entry(self.node_class.numa[usize::from(*slot)])
                .or_default() += 1;
        }
        let worth = self
            .node_class
            .wiring
            .as_ref()
            .map(|wiring| wiring.worth(&places(set), &places(&self.free)));
        Quality {
            kinds,
            worth,
            numas: numas.len(),
            left: left.values().map(|count| count * count).sum(),
        }
    }
}

impl Quality {
    fn is_as_good_as(&self, other: &Self) -> bool {
        let joined = match (&self.worth, &other.worth) {
            (Some(one), Some(other)) => {
                one.weakest >= other.weakest && one.sum >= other.sum && one.left >= other.left
            }
            // Where all are joined alike the host's memory nodes decide.
            _ => self.numas <= other.numas && self.left >= other.left,
        };
        self.kinds == other.kinds && joined
    }
}
