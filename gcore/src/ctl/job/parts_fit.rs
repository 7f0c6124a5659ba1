//! Whether the components of a job of unlike parts could start together if the cluster were idle; what never could is refused.
//!
//! Asks the scheduler itself, so that no job is accepted that it would never start.

use crate::ctl::command::Refusal;
use crate::ctl::job::partition_nodes::members;
use crate::ctl::plan::snapshot::sched_node;
use crate::ctl::state::{Node, State};
use gmodel::config::{MigCuts, Partition};
use gmodel::gpu_set::WHOLE_GPU_MILLI;
use gmodel::node::{GpuEntry, Link, Role};
use gmodel::{JobId, JobSpec, RefusalKind, Timestamp};
use gpolicy::feasibility::demand::Demand;
use gpolicy::feasibility::describe::describe;
use gsched::{PendingJob, SchedNode, Snapshot, WorkBudget, crowded_out};
use std::sync::Arc;

/// Refuses components that fit one by one and never beside each other.
pub(crate) fn check(
    state: &State,
    leader: JobId,
    parts: &[(JobSpec, Option<u32>)],
    now: Timestamp,
) -> Result<(), Refusal> {
    let partition_of = |spec: &JobSpec| state.config.partition(&spec.partition);
    let is_open = |partition: &Partition| {
        // Before its nodes report, and while GPUs can be cut for it, a request is given the benefit of the doubt.
        partition.mig == MigCuts::Planned
            || members(state, partition).all(|node| node.link == Link::Never)
    };
    if parts
        .iter()
        .filter_map(|(spec, _)| partition_of(spec))
        .any(is_open)
    {
        return Ok(());
    }
    let mut pending = (leader.0..)
        .map(JobId)
        .zip(parts)
        .map(|(id, (spec, limit_secs))| as_pending(id, spec, *limit_secs, now));
    let Some(mut first) = pending.next() else {
        return Ok(());
    };
    first.particulars.others = pending.collect();
    let snapshot = idle(state, now);
    let Some(at) = crowded_out(&snapshot, &first, WorkBudget::default()) else {
        return Ok(());
    };
    let asked = parts.get(at).and_then(|(spec, _)| {
        let demands = Demand::all(&spec.request, partition_of(spec)?);
        demands.first().map(describe)
    });
    Err(Refusal::invalid(format!(
        "component {at}: {} has no room beside the other components, whatever else ends: all start together. Ask for less in one of them.",
        asked.unwrap_or_default()
    ))
    .about(RefusalKind::NodeConfiguration))
}

/// A component that nothing but nodes and licences keeps from starting.
fn as_pending(id: JobId, spec: &JobSpec, limit_secs: Option<u32>, now: Timestamp) -> PendingJob {
    let mut spec = spec.clone();
    spec.deadline = None;
    // Few switches with a time to wait for them are a wish.
    if spec
        .request
        .switches
        .is_some_and(|few| few.wait_secs.is_some())
    {
        spec.request.switches = None;
    }
    PendingJob {
        id,
        spec: Arc::new(spec),
        submitted: now,
        eligible: now,
        nice: 0,
        limit_secs,
        reason: gmodel::Reason::default(),
        particulars: Default::default(),
    }
}

/// The cluster with nothing on it: nodes that are down or drained, and GPUs that are sick, may return.
fn idle(state: &State, now: Timestamp) -> Snapshot {
    let nodes = state
        .nodes
        .values()
        .filter(|node| node.role == Role::Compute);
    Snapshot {
        now,
        config: state.config.clone(),
        nodes: nodes.map(|node| idle_node(state, node)).collect(),
        ..Snapshot::default()
    }
}

fn idle_node(state: &State, node: &Node) -> SchedNode {
    let mut node = sched_node(state, node, Timestamp(i64::MAX));
    let returns = |gpu: &GpuEntry| !gpu.usable() && gpu.is_expected() && !gpu.info.divided;
    if node.gpus.iter().any(returns) {
        for gpu in Arc::make_mut(&mut node.gpus) {
            if returns(gpu) {
                gpu.present = true;
                gpu.info.fault = Default::default();
            }
        }
    }
    let free = node.gpus.iter().map(|gpu| match gpu.usable() {
        true => WHOLE_GPU_MILLI,
        false => 0,
    });
    node.free_gpu_milli = free.collect();
    (node.free_cpus, node.free_mem_bytes) = (node.cpus, node.mem_bytes);
    (node.unavailable, node.runs, node.exclusive) = (None, 0, false);
    node
}
