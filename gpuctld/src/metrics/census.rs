//! What there is of the whole cluster: jobs, nodes and GPUs by state.

use crate::http::node::gpu::state_word;
use gcore::ctl::{Node, State};
use gmodel::JobState;
use gmodel::node::Role;
use std::collections::BTreeMap;

/// Counts of what there is.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Census {
    /// Array tasks count one each.
    pub(super) jobs: BTreeMap<&'static str, u64>,
    pub(super) arrays: u64,
    pub(super) runs: u64,
    pub(super) nodes: BTreeMap<String, u64>,
    /// By type and state, in GPUs.
    pub(super) gpus: BTreeMap<(String, &'static str), f64>,
    /// GPUs by how they stand, as `gnodes --health` says it.
    pub(super) health: BTreeMap<&'static str, u64>,
}

pub(super) fn census(state: &State) -> Census {
    let mut count = Census {
        arrays: state.arrays.len() as u64,
        runs: state.runs.len() as u64,
        ..Census::default()
    };
    count.jobs = JobState::ALL
        .iter()
        .filter(|job| !job.is_final())
        .map(|job| (job.long(), 0))
        .collect();
    for job in state.jobs.values() {
        *count.jobs.entry(job.state.long()).or_default() += 1;
    }
    for array in state.arrays.values() {
        *count.jobs.entry(JobState::Pending.long()).or_default() += array.pending.len();
    }
    for node in state
        .nodes
        .values()
        .filter(|node| node.role == Role::Compute)
    {
        *count
            .nodes
            .entry(state.node_view(node).to_string())
            .or_default() += 1;
        for gpu in node.gpus.iter().filter(|gpu| gpu.is_expected()) {
            *count.health.entry(state_word(gpu)).or_default() += 1;
        }
        gpus_of(state, node, |gpu_type, gpu_state, amount| {
            let key = (gpu_type.to_owned(), gpu_state);
            *count.gpus.entry(key).or_default() += amount;
        });
    }
    count
}

/// Calls `each` with type, state and amount for what there is of each GPU of a node. A GPU that is cut counts by its slices.
pub(super) fn gpus_of(state: &State, node: &Node, mut each: impl FnMut(&str, &'static str, f64)) {
    let free = state.free_on(node);
    for (gpu, free_milli) in node.gpus.iter().zip(&free.gpu_milli) {
        let gpu_type = &gpu.info.gpu_type;
        if gpu.info.divided && gpu.info.fault.is_empty() || !gpu.is_expected() {
            continue;
        }
        let part = f64::from(gpu.info.part().milli()) / 1000.0;
        if !gpu.usable() {
            each(gpu_type, if gpu.present { "sick" } else { "missing" }, part);
            continue;
        }
        let idle = f64::from(*free_milli) / 1000.0 * part;
        each(gpu_type, "allocated", part - idle);
        let idle_word = if node.is_available() {
            "idle"
        } else {
            "unavailable"
        };
        each(gpu_type, idle_word, idle);
    }
}
