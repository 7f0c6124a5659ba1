//! What the events of runs change, from placement until their nodes are clean. Infallible, without clock or
//! chance.

use crate::ctl::apply::gpus::{drop_orders_on, note_freed};
use crate::ctl::apply::index::{
    index_begin, index_deadline, index_run, index_token, index_tries, set_waits,
};
use crate::ctl::apply::jobs::{close_array, respecify};
use crate::ctl::apply::records::{
    array_mut, job_mut, node_mut, raise_generation, raise_generations, run_mut,
};
use crate::ctl::apply::{jobs, stops, usage};
use crate::ctl::owner::IDLE_POLICY;
use crate::ctl::state::{
    DOWNED_MILLIS, EntryId, Member, NodeFailure, NodePull, Outcome, Run, State,
};
use gmodel::checkpoint::CheckpointMark;
use gmodel::run::{Allocation, NodeShare, RunPhase};
use gmodel::{JobSpec, JobState, NodeId, NodeLife, Reason, RunId, Timestamp};
use std::sync::Arc;

pub(crate) fn placed(
    state: &mut State,
    id: RunId,
    allocation: &Allocation,
    lives: &[Arc<NodeLife>],
    limit_secs: Option<u32>,
    at: Timestamp,
) {
    assert_eq!(allocation.len(), lives.len());
    let job = job_mut(state, id.job);
    assert_eq!(job.state, JobState::Pending, "job {} is placed", id.job);
    assert!(
        job.attempts < id.attempt,
        "attempts of job {} count up",
        id.job
    );
    job.state = JobState::Running;
    job.set_reason(Reason::default());
    job.skipped_attempts += id.attempt - job.attempts - 1;
    job.attempts = id.attempt;
    job.live = Some(id.attempt);
    job.past.started = Some(at);
    job.past.ended = None;
    if job.past.try_after.is_some() {
        job.past.try_after = None;
    }
    let (task, waited) = (job.task, job.waits.is_some());
    if let Some(task) = task {
        let array = array_mut(state, task.array);
        array.own_pending -= 1;
        array.own_live += 1;
    }
    if waited {
        // Only an adopted run: it runs, whatever its job waited for.
        set_waits(state, EntryId::Job(id.job), None);
    }
    let members = allocation
        .iter()
        .zip(lives)
        .map(|(share, life)| Member::new(share.node, life.clone()))
        .collect();
    let run = Run::placed(id, allocation.clone(), members, limit_secs, at);
    let generation = state.seq.0;
    for share in allocation {
        let node = node_mut(state, share.node);
        node.runs.insert(id);
        node.generation = generation;
    }
    index_run(state, &run);
    state.runs.insert(id, run);
}

/// Makes the missing records of an adopted run, as if it had been placed and released just now.
pub(crate) fn adopted(
    state: &mut State,
    id: RunId,
    spec: &Arc<JobSpec>,
    limit_secs: Option<u32>,
    at: Timestamp,
) {
    if state.runs.contains(id) {
        return;
    }
    if !state.jobs.contains(id.job) {
        jobs::submitted(state, id.job, spec, limit_secs, at, None);
    }
    let job = job_mut(state, id.job);
    job.attempts = id.attempt.saturating_sub(1);
    placed(state, id, &Allocation::new(), &[], limit_secs, at);
    let_go(state, id, at);
}

/// Adds a node's share of an adopted run. The batch node's share comes first.
pub(crate) fn found_on(
    state: &mut State,
    id: RunId,
    share: &NodeShare,
    life: &NodeLife,
    batch: bool,
) {
    let run = run_mut(state, id);
    let place = if batch { 0 } else { run.members.len() };
    run.allocation.insert(place, share.clone());
    run.members
        .insert(place, Member::new(share.node, Arc::new(life.clone())));
    let node = node_mut(state, share.node);
    node.runs.insert(id);
    drop_orders_on(node, share);
}

pub(crate) fn pull_seen(state: &mut State, id: RunId, node: NodeId, pull: NodePull) {
    state.memo.pulls.entry(id).or_default().insert(node, pull);
}

fn pull_over(state: &mut State, id: RunId, node: NodeId) {
    let Some(known) = state.memo.pulls.get_mut(&id) else {
        return;
    };
    known.remove(&node);
    if known.is_empty() {
        state.memo.pulls.remove(&id);
    }
}

/// All of its nodes are ready.
pub(crate) fn let_go(state: &mut State, id: RunId, at: Timestamp) {
    let run = run_mut(state, id);
    run.go = Some(at);
    let placed = run.placed;
    state.index.preparing.remove(&(placed, id));
}

pub(crate) fn reported(
    state: &mut State,
    id: RunId,
    node: NodeId,
    phase: &RunPhase,
    at: Timestamp,
) {
    if phase.rank() > RunPhase::Accepted.rank() {
        pull_over(state, id, node);
    }
    let run = run_mut(state, id);
    let clean = matches!(phase, RunPhase::Clean(_));
    let place = run
        .place_of(node)
        .unwrap_or_else(|| panic!("node {node} is in run {id}"));
    run.members[place].phase = Some(phase.clone());
    let ends_wait = phase.end().is_some_and(|end| place == 0 || end.answered)
        && run.members.len() > 1
        && run
            .stop
            .as_ref()
            .is_some_and(|stop| stop.checkpoint_secs > 0);
    let freed = Some(&run.allocation[place])
        .filter(|share| clean && !share.gpus.is_empty())
        .cloned();
    // A run that was written off may report long after its job is over and forgotten.
    if let RunPhase::Running { started } = phase
        && run.started.is_none()
        && run.outcome.is_none()
    {
        // The node's time may come late; it is bounded by the controller's clock.
        let started = (*started).clamp(run.placed, at.max(run.placed));
        run.started = Some(started);
        job_mut(state, id.job).past.started = Some(started);
    }
    if clean {
        raise_generation(state, node);
    }
    if place == 0 && phase.end().is_some() {
        script_ended(state, id, at);
    }
    if let Some(share) = freed {
        note_freed(state, node, &share, at);
    }
    if ends_wait {
        // The other nodes need not wait for a checkpoint any more.
        raise_generations(state, id);
    }
}

/// The script of a run on several nodes is over and other nodes have not reported so: the job is COMPLETING
/// until then.
fn script_ended(state: &mut State, id: RunId, at: Timestamp) {
    let goes_on = state
        .run(id)
        .is_some_and(|run| run.members.len() > 1 && run.outcome.is_none());
    let job = state
        .jobs
        .get_mut(id.job)
        .filter(|job| goes_on && job.live_run() == Some(id) && job.state == JobState::Running);
    if let Some(job) = job {
        job.state = JobState::Completing;
        job.past.ended = Some(at);
    }
}

pub(crate) fn marked(run: &mut Run, node: NodeId, mark: &CheckpointMark) {
    if let Some(place) = run.place_of(node) {
        run.members[place].marked = mark.number;
    }
    run.mark = Some(mark.clone());
}

pub(crate) fn ended(state: &mut State, id: RunId, outcome: &Outcome, settled: bool, at: Timestamp) {
    let run = run_mut(state, id);
    run.outcome = Some(outcome.clone());
    run.step_holds.clear();
    let placed = run.placed;
    let idled = run.stop.as_ref().is_some_and(|stop| stop.by == IDLE_POLICY);
    state.index.preparing.remove(&(placed, id));
    state.memo.pulls.remove(&id);
    state.index.idle_untold.remove(&id);
    state.memo.idle_seen.remove(id);
    let job = job_mut(state, id.job);
    let idle_requeues = if idled && outcome.requeue.is_some() {
        job.past.idle_requeues + 1
    } else {
        0
    };
    if job.past.idle_requeues != idle_requeues {
        job.past.idle_requeues = idle_requeues;
    }
    job.past.started = outcome.started.or(job.past.started);
    job.past.exit = outcome.exit;
    job.past.end_text.clone_from(&outcome.text);
    if job.past.gpu_events != outcome.gpu_events {
        job.past.gpu_events.clone_from(&outcome.gpu_events);
    }
    let image = (!outcome.image.is_empty()).then(|| outcome.image.clone().into_boxed_str());
    if job.past.image != image {
        job.past.image = image;
    }
    if outcome.state == JobState::Preempted {
        job.past.preempted = Some(outcome.ended);
    }
    note_node_failures(state, id, outcome, at);
    usage::charge(state, id, outcome);
    if settled {
        fate(state, id, outcome, at);
    } else {
        let job = job_mut(state, id.job);
        job.state = JobState::Completing;
        job.past.ended = Some(outcome.ended);
    }
}

/// Most failed nodes that a job remembers.
const MAX_FAILURES: usize = 32;

/// The nodes that failed a run.
fn failures(run: &Run, outcome: &Outcome, ran_millis: i64, at: Timestamp) -> Vec<NodeFailure> {
    run.failed_nodes()
        .map(|(node, text)| {
            let is_launch = run.failed_launch(node);
            let downed = !is_launch
                && outcome.started.is_some()
                && ran_millis < DOWNED_MILLIS
                && run.lost_node(node);
            NodeFailure {
                node,
                attempt: run.id.attempt,
                at,
                text: text.to_owned(),
                launches: u32::from(is_launch),
                downed,
            }
        })
        .collect()
}

fn note_node_failures(state: &mut State, id: RunId, outcome: &Outcome, at: Timestamp) {
    let run = state.run(id).expect("run exists");
    let ran_millis = outcome
        .started
        .map_or(0, |started| outcome.ended.since_millis(started));
    let failed = failures(run, outcome, ran_millis, at);
    let job = job_mut(state, id.job);
    let downed_runs = if failed.iter().any(|failure| failure.downed) {
        job.past.downed_runs + 1
    } else {
        0
    };
    if downed_runs != job.past.downed_runs {
        job.past.downed_runs = downed_runs;
    }
    let failed_runs = if failed.is_empty() {
        0
    } else if ran_millis < DOWNED_MILLIS {
        job.past.failed_runs + 1
    } else {
        1
    };
    if failed_runs != job.past.failed_runs {
        job.past.failed_runs = failed_runs;
    }
    for mut failure in failed {
        if let Some(at) = job
            .past
            .node_failures
            .iter()
            .position(|known| known.node == failure.node)
        {
            let known = job.past.node_failures.remove(at);
            failure.launches = if failure.launches > 0 {
                known.launches.saturating_add(1)
            } else {
                0
            };
        }
        job.past.node_failures.push(failure);
    }
    let over = job.past.node_failures.len().saturating_sub(MAX_FAILURES);
    if over > 0 {
        job.past.node_failures.drain(..over);
    }
}

pub(crate) fn settled(state: &mut State, id: RunId, at: Timestamp) {
    let outcome = run_mut(state, id)
        .outcome
        .clone()
        .expect("a settled run has ended");
    fate(state, id, &outcome, at);
}

/// The run is over: the job goes back to the queue or is finished. Its age in memory counts from when the
/// controller heard: it may have ended long before, and must not be forgotten before it is written.
fn fate(state: &mut State, id: RunId, outcome: &Outcome, at: Timestamp) {
    let job = job_mut(state, id.job);
    job.live = None;
    let task = job.task;
    if let Some(eligible) = outcome.requeue {
        job.state = JobState::Pending;
        job.eligible = eligible;
        if job.past.ended.is_some() {
            job.past.ended = None;
        }
        if job.past.try_after != outcome.try_after {
            job.past.try_after = outcome.try_after;
        }
        job.set_reason(Reason::default());
        job.holds.extend(outcome.hold.clone());
        if !job.spec.partitions.is_empty() {
            respecify(state, id.job, |spec| spec.unsettle());
        }
        let job = job_mut(state, id.job);
        let (spec, limit_secs, submitted) = (job.spec.clone(), job.limit_secs, job.submitted);
        index_begin(state, id.job, submitted, eligible, &spec);
        index_deadline(state, id.job, &spec, limit_secs);
        let job = state.job(id.job).expect("it was there just now").clone();
        index_tries(state, &job);
    } else {
        job.state = outcome.state;
        job.past.ended = Some(outcome.ended);
        let by = state
            .run(id)
            .and_then(|run| run.stop.as_ref())
            .map(|stop| stop.by.clone());
        let job = job_mut(state, id.job);
        job.past.cancelled_by = by.filter(|_| outcome.state == JobState::Cancelled);
        let spec = job.spec.clone();
        state.index.tally.remove(&spec, 1);
        index_token(state, &spec, EntryId::Job(id.job), false);
        state.index.finished.insert((at, id.job));
    }
    if let Some(task) = task {
        let array = array_mut(state, task.array);
        array.own_live -= 1;
        array.own_pending += u32::from(outcome.requeue.is_some());
        array.unsuccessful +=
            u32::from(outcome.requeue.is_none() && outcome.state != JobState::Completed);
        close_array(array, at);
    }
}

pub(crate) fn closed(state: &mut State, id: RunId) {
    let run = state.runs.remove(id).expect("a closed run exists");
    stops::forget(state, id, run.stop.as_ref());
    for member in &run.members {
        if let Some(node) = state.nodes.get_mut(member.node) {
            node.runs.remove(&id);
        }
    }
}
