//! IMEX channels: a run on several nodes of one NVLink domain has one, to share GPU memory across nodes.
//!
//! Chooses the numbers; the node makes and fences the device files (`gpud/src/gpu/imex.rs`). Sources: Slurm's
//! switch/nvidia_imex; NVIDIA's IMEX guide.

use crate::ctl::state::{Run, State};
use gmodel::run::Allocation;
use gmodel::{JobId, NodeId};
use std::collections::{BTreeMap, BTreeSet};

/// Channels of the driver as installed. Channel 0 is for processes outside of jobs.
const CHANNELS: u64 = 2048;

/// A channel that no other live run has, in whatever domain: a changed fabric never joins two runs. Tried from
/// the job's number on, so that a freed channel rests. `None`: none is needed, or all are taken.
pub(crate) fn channel_for(state: &State, job: JobId, allocation: &Allocation) -> Option<u32> {
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

/// The fabric as the node reports it: a channel reaches no further.
fn domain(state: &State, node: NodeId) -> Option<&str> {
    let node = state.node(node)?;
    Some(node.inventory.nvlink_domain.as_str()).filter(|domain| !domain.is_empty())
}

pub(crate) fn check(state: &State, found: &mut Vec<String>) {
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
