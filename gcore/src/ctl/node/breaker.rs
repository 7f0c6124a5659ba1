//! The pool's one breaker: automatic actions take at most max(1 node, a tenth) of a partition out of service
//! within an hour, whatever the causes. Counts in thousandths of nodes: a GPU is its part of its node. Takes
//! nothing out itself.

use crate::ctl::state::{Node, State};
use gmodel::config::Partition;
use gmodel::{NodeId, Timestamp};
use std::collections::{BTreeMap, BTreeSet};

/// A possible loss of service.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Loss<'a> {
    Node,
    Gpu(&'a str),
}

pub(crate) const WINDOW_SECS: i64 = 3600;

/// Whether each partition of the node stays within its bound with this loss. A loss that is already counted
/// costs nothing more while the bound is kept.
pub(crate) fn allows(state: &State, id: NodeId, loss: Loss<'_>, now: Timestamp) -> bool {
    let Some(node) = state.node(id) else {
        return false;
    };
    let taken = HourlyLoss::within_the_hour(state, now);
    let cost = taken.with(node, loss) - taken.of(node);
    let partitions = state
        .config
        .partitions
        .iter()
        .filter(|partition| holds(partition, node));
    partitions.into_iter().all(|partition| {
        let members = state
            .nodes
            .values()
            .filter(|node| holds(partition, node))
            .count() as u64;
        let gone: u64 = taken
            .nodes()
            .filter_map(|id| state.node(id))
            .filter(|node| holds(partition, node))
            .map(|node| taken.of(node))
            .sum();
        gone + cost <= (members * 100).max(1000)
    })
}

/// When a counted loss is an hour old, and more may be allowed.
pub(crate) fn next_relief(state: &State) -> Option<Timestamp> {
    let node = state.automatic.drains.first().map(|(at, _)| *at);
    let gpu = state.automatic.gpus.first().map(|(at, ..)| *at);
    let first = [node, gpu].into_iter().flatten().min()?;
    Some(first.plus_secs(WINDOW_SECS))
}

/// The partitions at their bound now, with thousandths of nodes lost and allowed: for listings.
pub fn open_breakers(state: &State, now: Timestamp) -> Vec<(String, u64, u64)> {
    let taken = HourlyLoss::within_the_hour(state, now);
    let waiting: Vec<&Node> = state
        .watched_nodes()
        .filter(|node| node.has_step_waiting())
        .collect();
    let open = |partition: &Partition| {
        let gone = taken
            .nodes()
            .filter_map(|id| state.node(id))
            .filter(|node| holds(partition, node))
            .map(|node| taken.of(node))
            .sum();
        let members = state
            .nodes
            .values()
            .filter(|node| holds(partition, node))
            .count() as u64;
        let stopped = waiting.iter().any(|node| holds(partition, node));
        stopped.then(|| (partition.name.clone(), gone, (members * 100).max(1000)))
    };
    state.config.partitions.iter().filter_map(open).collect()
}

fn holds(partition: &Partition, node: &Node) -> bool {
    partition.holds(&node.name, &node.inventory.features)
}

/// Losses within the hour.
struct HourlyLoss<'a> {
    whole: BTreeSet<NodeId>,
    gpus: BTreeMap<NodeId, BTreeSet<&'a str>>,
}

impl<'a> HourlyLoss<'a> {
    fn within_the_hour(state: &'a State, now: Timestamp) -> Self {
        let since = now.plus_secs(-WINDOW_SECS);
        let whole = state
            .automatic
            .drains
            .iter()
            .filter(|(at, _)| *at > since)
            .map(|(_, node)| *node)
            .collect();
        let mut gpus: BTreeMap<NodeId, BTreeSet<&str>> = BTreeMap::new();
        for (_, node, uuid) in state.automatic.gpus.iter().filter(|(at, ..)| *at > since) {
            gpus.entry(*node).or_default().insert(uuid);
        }
        Self { whole, gpus }
    }

    fn nodes(&self) -> impl Iterator<Item = NodeId> {
        let all: BTreeSet<NodeId> = self.whole.iter().chain(self.gpus.keys()).copied().collect();
        all.into_iter()
    }

    fn of(&self, node: &Node) -> u64 {
        match self.whole.contains(&node.id) {
            true => 1000,
            false => part(node, self.gpus.get(&node.id).map_or(0, BTreeSet::len)),
        }
    }

    /// The count with this loss.
    fn with(&self, node: &Node, loss: Loss<'_>) -> u64 {
        match loss {
            Loss::Node => 1000,
            Loss::Gpu(uuid)
                if self
                    .gpus
                    .get(&node.id)
                    .is_some_and(|gone| gone.contains(uuid)) =>
            {
                self.of(node)
            }
            Loss::Gpu(_) if self.whole.contains(&node.id) => 1000,
            Loss::Gpu(_) => part(node, self.gpus.get(&node.id).map_or(0, BTreeSet::len) + 1),
        }
    }
}

/// Thousandths of a node in so many of its GPUs.
fn part(node: &Node, gpus: usize) -> u64 {
    let all = node
        .gpus
        .iter()
        .filter(|gpu| gpu.present && gpu.info.slice.is_none())
        .count()
        .max(1);
    (gpus.min(all) * 1000 / all) as u64
}
