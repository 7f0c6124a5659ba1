//! IMEX channels: a run on several nodes of one NVLink domain has one, by which its processes share GPU memory across nodes.
//!
//! Gives the numbers; the node makes and fences the device files (`gpud/src/imex.rs`). As Slurm's switch/nvidia_imex; NVIDIA's IMEX guide.

use super::state::{Run, State};
use gmodel::run::Allocation;
use gmodel::{JobId, NodeId};
use std::collections::{BTreeMap, BTreeSet};

/// Channels of the driver as it is installed. Channel 0 is left to what runs outside of jobs.
const CHANNELS: u64 = 2048;

/// A channel that no other live run has: where its domain is does not matter, so no change of a fabric makes two of them one.
/// Tried from the job's number on, so that one that was just given back rests. `None`: it needs none, or all are taken.
pub(super) fn channel_for(state: &State, job: JobId, allocation: &Allocation) -> Option<u32> {
    let nodes: Vec<NodeId> = allocation
        .iter()
        .filter(|share| !share.gpus.is_empty())
        .map(|share| share.node)
        .collect();
    let mut seen = BTreeSet::new();
    if nodes
        .iter()
        .filter_map(|node| domain(state, *node))
        .all(|domain| seen.insert(domain))
    {
        return None;
    }
    let taken: BTreeSet<u32> = state
        .runs
        .values()
        .filter(|run| !run.is_clean())
        .filter_map(|run| run.imex_channel)
        .collect();
    let all = (0..CHANNELS - 1).map(|step| 1 + ((job.0 + step) % (CHANNELS - 1)) as u32);
    all.into_iter().find(|channel| !taken.contains(channel))
}

/// The channel that a run opens on one of its nodes.
pub fn imex_channel(state: &State, run: &Run, node: NodeId) -> Option<u32> {
    run.imex_channel.filter(|_| domain(state, node).is_some())
}

/// What the node's fabric says itself: a channel reaches no further.
fn domain(state: &State, node: NodeId) -> Option<&str> {
    let node = state.nodes.get(node)?;
    Some(node.inventory.nvlink_domain.as_str()).filter(|domain| !domain.is_empty())
}

pub(super) fn check(state: &State, found: &mut Vec<String>) {
    let mut held = BTreeMap::new();
    for run in state.runs.values().filter(|run| !run.is_clean()) {
        if let Some(channel) = run.imex_channel
            && let Some(other) = held.insert(channel, run.id)
        {
            found.push(format!(
                "runs {other} and {} have IMEX channel {channel}",
                run.id
            ));
        }
    }
}
