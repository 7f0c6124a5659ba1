//! Of the sets of runs that would clear single nodes: which to take for a job on one node or on several.
//!
//! The fewest runs bound the choice: at most one more than that. Within the bound the account furthest above its guarantee
//! goes first, then the least work is lost. Proposes; the caller's proof decides.

use crate::preempt::holders::NodeSet;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// Sets on single nodes that are held against the proof before the search goes over all nodes at once.
const TRIES: usize = 24;
/// Cheapest nodes from which the search over all runs begins.
const BASES: usize = 2;
/// Choices of several nodes that are held against the proof for less loss.
const DEARER_TRIES: usize = 4;

/// A proposal is a set of places in the caller's order; the proof says whether the job starts without these runs.
pub(crate) type Proof<'a> = dyn FnMut(&[usize]) -> bool + 'a;

/// The best of the sets that need at most one run more than the smallest.
pub(crate) fn one_node(sets: &[NodeSet], proof: &mut Proof) -> Option<Vec<usize>> {
    // A node that seems to have room anyway lacks something that this sketch does not see.
    let counts = sets
        .iter()
        .map(|set| set.orders.len())
        .filter(|count| *count > 0);
    let least = counts.min()?;
    let mut near: Vec<&NodeSet> = sets
        .iter()
        .filter(|set| (1..=least + 1).contains(&set.orders.len()))
        .collect();
    near.sort_by_key(|set| {
        (
            Reverse(set.least_excess),
            set.protected,
            set.orders.len(),
            set.node,
        )
    });
    near.into_iter()
        .take(TRIES)
        .find(|set| proof(&set.orders))
        .map(|set| set.orders.clone())
}

/// The nodes that need the fewest runs, more of them until the proof holds, less those that it does not need. Whether more were needed.
pub(crate) fn several_nodes(
    sets: &[NodeSet],
    nodes: usize,
    proof: &mut Proof,
) -> Option<(Vec<usize>, bool)> {
    let mut sets = fewest_by_node(sets);
    sets.sort_by_key(|set| key(set));
    let mut take = nodes;
    loop {
        let union = union(sets.iter().take(take).copied());
        if proof(&union) {
            return Some((fewest(union, proof), take > nodes));
        }
        if take >= sets.len() {
            return None;
        }
        take += (take / 2).max(1);
    }
}

/// Runs anywhere that make room together: beyond those that clear the nodes the next in the caller's order, unless the largest first are at
/// least two fewer. `count`: how many there are, all of which do.
pub(crate) fn near_fewest(
    sets: &[NodeSet],
    nodes: usize,
    count: usize,
    gpus: &dyn Fn(usize) -> u64,
    proof: &mut Proof,
) -> Vec<usize> {
    let mut by_node = fewest_by_node(sets);
    by_node.sort_by_key(|set| key(set));
    let in_order: Vec<usize> = (0..count).collect();
    let mut by_size = in_order.clone();
    by_size.sort_by_key(|order| Reverse(gpus(*order)));
    let beyond = |first: &[usize], rest: &[usize]| -> Vec<usize> {
        let rest = rest.iter().filter(|order| !first.contains(order));
        first.iter().chain(rest).copied().collect()
    };
    let bases: Vec<Vec<usize>> = by_node
        .windows(nodes)
        .take(BASES)
        .map(|sets| union(sets.iter().copied()))
        .collect();
    let mut tried: Vec<Vec<usize>> = bases.iter().map(|first| beyond(first, &in_order)).collect();
    tried.extend(bases.iter().map(|first| beyond(first, &by_size)));
    tried.extend(bases.is_empty().then_some(in_order));
    tried.push(by_size);
    tried.iter_mut().for_each(|set| shorten(set, proof));
    let least = tried.iter().map(Vec::len).min().unwrap_or(0);
    let near = tried
        .into_iter()
        .find(|set| set.len() <= least + 1)
        .unwrap_or_default();
    fewest(near, proof)
}

/// What some runs cost: the less above the guarantees, and the more lost, the dearer.
type Cost<'a> = dyn Fn(&[usize]) -> (Reverse<u64>, u64) + 'a;

/// Several nodes that may need a run more than the fewest, and on which less is lost than what is `known` to do: of accounts
/// as far above their guarantees, or further. `most` runs are allowed, or one more than the fewest that there can be. `cost` is
/// the order of the policy: the account least above its guarantee, and what is lost.
pub(crate) fn less_loss(
    sets: &[NodeSet],
    nodes: usize,
    known: &[usize],
    most: usize,
    cost: &Cost<'_>,
    proof: &mut Proof,
) -> Option<Vec<usize>> {
    let by_node = fewest_by_node(sets);
    let most = most.max(least_possible(sets, nodes) + 1);
    let levels: BTreeSet<u64> = by_node.iter().map(|set| set.least_excess).collect();
    let mut best = cost(known);
    let least_excess = best.0.0;
    let mut found = None;
    let mut tries = 0;
    for level in levels
        .into_iter()
        .rev()
        .filter(|level| *level >= least_excess)
    {
        let liked = by_node
            .iter()
            .copied()
            .filter(|set| set.least_excess >= level)
            .collect();
        for union in within_one(liked, nodes) {
            let is_better = !union.is_empty() && union.len() <= most && cost(&union) < best;
            if !is_better || tries == DEARER_TRIES {
                continue;
            }
            tries += 1;
            if proof(&union) {
                best = cost(&union);
                found = Some(union);
            }
        }
        if found.is_some() || tries == DEARER_TRIES {
            break;
        }
    }
    found.map(|union| fewest(union, proof))
}

/// So many nodes with the fewest runs, and with one more, each with the least loss that there is for that.
fn within_one(mut sets: Vec<&NodeSet>, nodes: usize) -> Vec<Vec<usize>> {
    if nodes == 0 || sets.len() < nodes {
        return Vec::new();
    }
    let count = |set: &NodeSet| set.orders.len();
    sets.sort_by_key(|set| (count(set), set.protected, set.node));
    // Nodes with fewer runs than the last that is taken are all taken; of those with as many, the cheapest.
    let last = count(sets[nodes - 1]);
    let below = sets.partition_point(|set| count(set) < last);
    let as_many = sets.partition_point(|set| count(set) <= last);
    let mut choices = vec![union(sets[..nodes].iter().copied())];
    // One run more: a node with one run less is left for one with as many as the last, or one of the last for one with one more.
    if below > 0 && count(sets[below - 1]) + 1 == last && as_many > nodes {
        choices.push(union(
            sets[..=nodes]
                .iter()
                .enumerate()
                .filter(|(at, _)| *at != below - 1)
                .map(|(_, set)| *set),
        ));
    }
    if let Some(dearer) = sets.get(as_many).filter(|set| count(set) == last + 1) {
        choices.push(union(sets[..nodes - 1].iter().copied().chain([*dearer])));
    }
    choices
}

/// Fewer runs than this cannot clear so many nodes: a run on several of them counts on each for its part.
fn least_possible(sets: &[NodeSet], nodes: usize) -> usize {
    const WHOLE: usize = 720_720; // of 1 to 16 nodes the parts are whole numbers
    let mut by_node: BTreeMap<usize, usize> = BTreeMap::new();
    for set in sets {
        let parts = set.orders.len() * WHOLE / set.widest.clamp(1, nodes.max(1));
        by_node
            .entry(set.node)
            .and_modify(|known| *known = (*known).min(parts))
            .or_insert(parts);
    }
    let mut parts: Vec<usize> = by_node.into_values().collect();
    parts.sort_unstable();
    parts.into_iter().take(nodes).sum::<usize>().div_ceil(WHOLE)
}

/// Of each node the set with the fewest runs.
fn fewest_by_node(sets: &[NodeSet]) -> Vec<&NodeSet> {
    let mut best: BTreeMap<usize, &NodeSet> = BTreeMap::new();
    for set in sets {
        best.entry(set.node)
            .and_modify(|known| {
                if key(set) < key(known) {
                    *known = set
                }
            })
            .or_insert(set);
    }
    best.into_values().collect()
}

fn key(set: &NodeSet) -> (usize, Reverse<u64>, u64, usize) {
    (
        set.orders.len(),
        Reverse(set.least_excess),
        set.protected,
        set.node,
    )
}

fn union<'a>(sets: impl Iterator<Item = &'a NodeSet>) -> Vec<usize> {
    let union: BTreeSet<usize> = sets.flat_map(|set| set.orders.iter().copied()).collect();
    union.into_iter().collect()
}

/// Of runs that make room together, in the order of preemption: the shortest beginning that makes room, less the runs
/// that it does not need, large groups first.
pub(crate) fn fewest(mut set: Vec<usize>, proof: &mut Proof) -> Vec<usize> {
    shorten(&mut set, proof);
    let mut group = set.len() / 2;
    while group > 0 {
        // The last ones are preempted last; the very last is needed.
        let mut end = set.len();
        while end > 0 {
            let start = end.saturating_sub(group);
            let without: Vec<usize> = set[..start].iter().chain(&set[end..]).copied().collect();
            if !without.is_empty() && proof(&without) {
                set = without;
            }
            end = start;
        }
        group /= 2;
    }
    set
}

/// To the shortest beginning that makes room.
fn shorten(set: &mut Vec<usize>, proof: &mut Proof) {
    let (mut too_few, mut enough) = (0, set.len());
    while too_few + 1 < enough {
        let middle = usize::midpoint(too_few, enough);
        if proof(&set[..middle]) {
            enough = middle
        } else {
            too_few = middle
        }
    }
    set.truncate(enough);
}
