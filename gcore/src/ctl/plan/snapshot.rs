//! The snapshot of the state for a pass.

use crate::ctl::apply::holder;
use crate::ctl::job::dependency;
use crate::ctl::state::{Array, FreeResources, Job, Node, NodeFailure, Run, State};
use crate::ctl::{gpu, node};
use gmodel::node::Role;
use gmodel::run::NodeShare;
use gmodel::{JobId, JobState, NodeId, Reason, ReasonCode, Timestamp};
use gsched::snapshot::{BarredNode, Suspension};
use gsched::{ArrayCap, Particulars, PendingJob, RunningRun, SchedNode, Snapshot};

/// All that a pass needs.
pub fn snapshot(state: &State, now: Timestamp) -> Snapshot {
    snapshot_of(state, now, |_| true)
}

/// The same with some of the pending jobs.
pub fn snapshot_of(state: &State, now: Timestamp, wanted: impl Fn(JobId) -> bool) -> Snapshot {
    let nodes = compute_nodes(state)
        .map(|node| sched_node(state, node, now))
        .collect();
    let jobs = state
        .jobs
        .values()
        .filter(|job| job.state == JobState::Pending && wanted(job.id));
    let arrays = state
        .arrays
        .values()
        .filter(|array| !array.pending.is_empty() && wanted(array.id));
    // Allocated at once: the queue is long, and this runs in every pass.
    let mut pending = Vec::with_capacity(state.jobs.len() + state.arrays.len());
    pending.extend(
        jobs.filter_map(|job| pending_job(state, job, now))
            .flat_map(PendingJob::in_each_partition),
    );
    pending.extend(arrays.flat_map(|array| pending_array(state, array).in_each_partition()));
    let running = state
        .runs
        .values()
        .filter_map(|run| running_run(state, run, now));
    Snapshot {
        seq: state.seq,
        now,
        config: state.config.clone(),
        policy: state.policy.clone(),
        nodes,
        pending,
        running: running.collect(),
        usage: state.usage.clone(),
    }
}

/// Compute nodes, in the order of their ids.
pub(crate) fn compute_nodes(state: &State) -> impl Iterator<Item = &Node> {
    state
        .nodes
        .values()
        .filter(|node| node.role == Role::Compute)
}

pub(crate) fn pending_array(state: &State, array: &Array) -> PendingJob {
    let free = array.not_held();
    let all_are_held = free.is_empty();
    let (ready, waits) = dependency::reason::of_array(
        state,
        array,
        if all_are_held {
            array.pending.clone()
        } else {
            free
        },
    );
    let hold = array
        .holds
        .iter()
        .chain(array.apart.iter().flat_map(|one| &one.holds))
        .next();
    PendingJob {
        id: array.id,
        spec: array.spec.clone(),
        submitted: array.submitted,
        eligible: array.eligible,
        nice: array.nice,
        limit_secs: array.limit_secs,
        reason: array.reason.clone(),
        particulars: Particulars {
            held_by: hold.filter(|_| all_are_held).map(holder),
            positions: Some(ready),
            room: room_of(array),
            cap: cap_of(array),
            dependency: waits,
            nomination: array.nomination.clone(),
            ..Particulars::default()
        }
        .into(),
    }
}

/// The entry of a job. The components of a job of unlike parts stand in one entry, the leader's, while all of them are
/// pending.
pub(crate) fn pending_job(state: &State, job: &Job, now: Timestamp) -> Option<PendingJob> {
    let mut entry = entry_of(state, job, now);
    if let Some(part) = job.spec.part {
        let other = |id: JobId| {
            let other = state.job(id)?;
            (other.state == JobState::Pending).then(|| entry_of(state, other, now))
        };
        match part.others().map(other).collect::<Option<Vec<_>>>() {
            Some(others) if part.is_leader() => entry.particulars.others = others,
            Some(_) => return None,
            None => {
                let text = "another component of the job is still being cleaned up";
                entry.particulars.dependency = Some(Reason::new(ReasonCode::BeginTime, text));
            }
        }
    }
    Some(entry)
}

fn entry_of(state: &State, job: &Job, now: Timestamp) -> PendingJob {
    // A task with a record of its own counts against its array's cap.
    let room = job.task.and_then(|task| room_of(state.array(task.array)?));
    let mut avoid: Vec<NodeId> = job
        .past
        .node_failures
        .iter()
        .map(|failure| failure.node)
        .collect();
    avoid.dedup();
    PendingJob {
        id: job.id,
        spec: job.spec.clone(),
        submitted: job.submitted,
        eligible: job.eligible,
        nice: job.nice,
        limit_secs: job.limit_secs,
        reason: job.reason.clone(),
        particulars: Particulars {
            held_by: job.holds.first().map(holder),
            avoid,
            barred: barred(state, job, now),
            try_after: job.past.try_after,
            positions: None,
            room,
            array: job.task.filter(|_| room.is_some()).map(|task| task.array),
            cap: job.task.and_then(|task| cap_of(state.array(task.array)?)),
            dependency: dependency::reason::reason(state, job.waits.as_deref()),
            preempted: job.past.preempted,
            nomination: job.nomination.clone(),
            ..Particulars::default()
        }
        .into(),
    }
}

/// Nodes that failed to launch the job not long ago, and have not changed since.
fn barred(state: &State, job: &Job, now: Timestamp) -> Vec<BarredNode> {
    let bar = |failure: &NodeFailure| {
        let until = failure.barred_until().filter(|until| *until > now)?;
        let node = state
            .node(failure.node)
            .filter(|node| failure.at >= node.well_since)?;
        Some(BarredNode {
            node: node.id,
            until,
            text: failure.text.clone(),
        })
    };
    job.past.node_failures.iter().filter_map(bar).collect()
}

/// A run that still holds something.
pub(crate) fn running_run(state: &State, run: &Run, now: Timestamp) -> Option<RunningRun> {
    let shares = run
        .allocation
        .iter()
        .zip(&run.members)
        .filter(|(_, member)| !member.is_clean());
    let mut shares: Vec<NodeShare> = shares.map(|(share, _)| share.clone()).collect();
    if shares.is_empty() {
        return None;
    }
    let suspended_for = run
        .suspension
        .as_ref()
        .and_then(|one| one.for_job)
        .filter(|_| run.goes_on_later());
    let suspended = suspended_for.map(|for_job| Suspension {
        for_job,
        cpus: shares.iter().map(|share| share.cpus).collect(),
    });
    if run.lends_cpus() {
        shares.iter_mut().for_each(|share| share.cpus = 0);
    }
    let job = state.job(run.id.job)?;
    let from = run.started.or(run.go).unwrap_or(now);
    let partition = state.config.partition(&job.spec.partition);
    Some(RunningRun {
        run: run.id,
        spec: job.spec.clone(),
        shares,
        placed: run.placed,
        // A node that has not reported ready got its order at the placement.
        started: run.started.or(run.go),
        ends_by: state.ends_by(run, from),
        suspended,
        class: run.class,
        marked: run.mark.as_ref().map(|mark| mark.at),
        stops_by: run.stop.as_ref().map(|stop| stop.leaves_by()),
        victim_of: run.stop.as_ref().and_then(|stop| stop.for_job),
        leaves_for_borrower: run.stop.as_ref().is_some_and(|stop| stop.for_borrower),
        may_requeue: job.may_requeue(partition.is_none_or(|partition| partition.requeue)),
        preempted: job.past.preempted,
        charged: run.outcome.is_some(),
    })
}

fn room_of(array: &Array) -> Option<u32> {
    array
        .tasks
        .limit()
        .map(|limit| limit.saturating_sub(array.own_live))
}

fn cap_of(array: &Array) -> Option<ArrayCap> {
    array.tasks.limit().map(|most| ArrayCap {
        most,
        running: array.own_live,
    })
}

/// A node as the scheduler sees it.
pub fn sched_node(state: &State, node: &Node, now: Timestamp) -> SchedNode {
    let mut entry = SchedNode {
        id: node.id,
        name: node.name.clone(),
        unavailable: unavailable(node, now),
        features: node.inventory.features.clone(),
        nvlink_domain: nvlink_domain(state, node).unwrap_or_default().to_owned(),
        cpus: node.inventory.cpus,
        mem_bytes: node.inventory.mem_bytes,
        gpus: gpu::mig::gpus_of(node),
        free_cpus: 0,
        free_mem_bytes: 0,
        free_gpu_milli: Vec::new(),
        runs: 0,
        exclusive: false,
        mig: gpu::mig::of_node(node),
    };
    set_free(&mut entry, state.free_on(node));
    entry
}

/// Sets the resources that no run holds.
pub(crate) fn set_free(node: &mut SchedNode, free: FreeResources) {
    (node.free_cpus, node.free_mem_bytes, node.runs) = (free.cpus, free.mem_bytes, free.runs);
    node.free_gpu_milli = free.gpu_milli;
}

/// The NVLink domain of a node: as it reports itself, else as the site's topology says.
pub fn nvlink_domain<'a>(state: &'a State, node: &'a Node) -> Option<&'a str> {
    match node.inventory.nvlink_domain.as_str() {
        "" => state.config.scheduler.topology.nvlink_domain(&node.name),
        found => Some(found),
    }
}

/// Why a node takes no new work.
fn unavailable(node: &Node, now: Timestamp) -> Option<String> {
    use gmodel::node::Link;
    match node.link {
        Link::Never => return Some("has not reported yet".into()),
        Link::Silent => return Some("not responding".into()),
        Link::Down => return Some("down".into()),
        Link::Up => {}
    }
    if let Some(mark) = node.drains.first() {
        return Some(format!("drained: {}", mark.reason));
    }
    if !node.inventory.unfit.is_empty() {
        return Some(node.inventory.unfit.clone());
    }
    node::pause::paused(node, now)
        .map(|(until, words)| format!("{words}; takes work again at {until}"))
}
