//! What the events of jobs and arrays change, from submission until they are forgotten. Infallible, without
//! clock or chance.

use crate::ctl::apply::index::{
    index_array, index_begin, index_deadline, index_job, index_token, set_waits,
};
use crate::ctl::apply::records::{array_mut, job_mut, lift, raise_generations, run_mut};
use crate::ctl::event::JobChange;
use crate::ctl::job::dependency::readiness;
use crate::ctl::owner::TOKEN;
use crate::ctl::state::{
    Array, ClientKey, DroppedTasks, EntryId, Job, OpenDependency, State, TaskOf, put_in,
};
use gmodel::array_spec::RangeSet;
use gmodel::node::HoldMark;
use gmodel::rare::Rare;
use gmodel::{JobId, JobSpec, JobState, Reason, ReasonCode, Timestamp};
use std::collections::BTreeSet;
use std::sync::Arc;

pub(crate) fn submitted(
    state: &mut State,
    id: JobId,
    spec: &Arc<JobSpec>,
    limit_secs: Option<u32>,
    at: Timestamp,
    client_key: Option<&str>,
) {
    let eligible = spec.begin.unwrap_or(at).max(at);
    let owner = format!("user:{}", spec.user.name);
    let hold = HoldMark {
        owner,
        reason: "submitted with --hold".into(),
        since: at,
    };
    let holds = if spec.hold { vec![hold] } else { Vec::new() };
    let reason = reason_of(&holds);
    let client_key = client_key.map(Arc::from);
    if let Some(tasks) = &spec.array {
        let array = Array {
            id,
            spec: spec.clone(),
            tasks: tasks.clone(),
            pending: RangeSet::first_n(tasks.len()),
            cancelled: RangeSet::new(),
            own_pending: 0,
            own_live: 0,
            reason,
            nomination: None,
            submitted: at,
            eligible,
            holds,
            limit_secs,
            nice: spec.nice,
            dropped: DroppedTasks::default(),
            ended: None,
            client_key,
            waits: None,
            unsuccessful: 0,
            apart: Vec::new(),
        };
        state.next_job = state.next_job.max(id.0 + u64::from(tasks.len()));
        index_array(state, &array);
        state.arrays.insert(id, array);
    } else {
        let job = Job {
            id,
            spec: spec.clone(),
            task: None,
            state: JobState::Pending,
            reason,
            nomination: None,
            submitted: at,
            eligible,
            holds,
            attempts: 0,
            skipped_attempts: 0,
            live: None,
            limit_secs,
            nice: spec.nice,
            client_key,
            waits: None,
            past: Rare::default(),
        };
        state.next_job = state.next_job.max(id.0 + 1);
        index_job(state, &job);
        state.jobs.insert(id, job);
    }
}

/// A task gets a record of its own.
pub(crate) fn split(state: &mut State, array: JobId, position: u32) {
    let waits = state
        .array(array)
        .and_then(|array| readiness::of_task(state, array, position));
    let array = array_mut(state, array);
    let holds = array.holds_of(position).to_vec();
    array.no_longer_apart(&RangeSet::from_iter([position]));
    assert!(
        array.pending.remove(position),
        "task {position} of {} is not pending",
        array.id
    );
    array.own_pending += 1;
    let index = array.tasks.nth(position).expect("position is in the array");
    let job = Job {
        id: array.task_id(position),
        spec: array.spec.clone(),
        task: Some(TaskOf {
            array: array.id,
            position,
            index,
        }),
        state: JobState::Pending,
        nomination: array.nomination.clone().filter(|_| holds.is_empty()),
        reason: if holds.is_empty() {
            array.reason.clone()
        } else {
            reason_of(&holds)
        },
        submitted: array.submitted,
        eligible: array.eligible,
        holds,
        attempts: 0,
        skipped_attempts: 0,
        live: None,
        limit_secs: array.limit_secs,
        nice: array.nice,
        client_key: None,
        waits,
        past: Rare::default(),
    };
    let (id, none_left) = (array.id, array.pending.is_empty());
    index_job(state, &job);
    // The array's count included it.
    state.index.tally.remove(&job.spec, 1);
    if none_left {
        index_token(state, &job.spec, EntryId::Array(id), false);
    }
    state.jobs.insert(job.id, job);
    if none_left {
        set_waits(state, EntryId::Array(id), None);
    }
}

pub(crate) fn held(job: &mut Job, mark: &HoldMark) {
    job.holds.push(mark.clone());
    if job.state == JobState::Pending {
        job.set_reason(reason_of(&job.holds));
    }
}

pub(crate) fn released(state: &mut State, id: JobId, owner: Option<&str>, at: Timestamp) {
    let job = job_mut(state, id);
    lift(&mut job.holds, owner);
    if job.state == JobState::Pending {
        job.set_reason(reason_of(&job.holds));
    }
    job.eligible = job.eligible.max(at);
    let (eligible, spec) = (job.eligible, job.spec.clone());
    index_begin(state, id, eligible, eligible, &spec);
}

pub(crate) fn array_held(array: &mut Array, mark: &HoldMark) {
    array.holds.push(mark.clone());
    array.set_reason(reason_of(&array.holds));
    array.tidy_apart();
}

pub(crate) fn tasks_held(array: &mut Array, positions: &RangeSet, mark: &HoldMark) {
    array.set_holds(positions, |holds| holds.push(mark.clone()));
}

/// An array has one eligible time. Tasks released from an array that is held as a whole are eligible from now.
pub(crate) fn tasks_released(
    state: &mut State,
    id: JobId,
    positions: &RangeSet,
    owner: Option<&str>,
    at: Timestamp,
) {
    let array = array_mut(state, id);
    let all_were_held = array.not_held().is_empty();
    array.set_holds(positions, |holds| lift(holds, owner));
    if all_were_held && !array.not_held().is_empty() {
        array.set_reason(Reason::default());
    }
    if !array.holds.is_empty() {
        array.eligible = array.eligible.max(at);
    }
    let (eligible, spec) = (array.eligible, array.spec.clone());
    index_begin(state, id, eligible, eligible, &spec);
}

pub(crate) fn array_released(state: &mut State, id: JobId, owner: Option<&str>, at: Timestamp) {
    let array = array_mut(state, id);
    lift(&mut array.holds, owner);
    array.set_reason(reason_of(&array.holds));
    array.tidy_apart();
    array.eligible = array.eligible.max(at);
    let (eligible, spec) = (array.eligible, array.spec.clone());
    index_begin(state, id, eligible, eligible, &spec);
}

/// The pending reason as far as holds go; the next pass says more.
pub(crate) fn reason_of(holds: &[HoldMark]) -> Reason {
    holds
        .first()
        .map_or_else(Reason::default, |mark| gsched::held_by(&holder(mark)))
}

/// The owner of a hold as the scheduler is told. Of a token's cap with its numbers, which no owner has.
pub(crate) fn holder(mark: &HoldMark) -> Box<str> {
    match &*mark.owner {
        TOKEN => format!("{TOKEN}:{}", mark.reason).into(),
        owner => owner.into(),
    }
}

/// Writes a change into the request.
pub(crate) fn changed_spec(spec: &mut Arc<JobSpec>, change: &JobChange) {
    if !change.changes_request() {
        return;
    }
    let spec = Arc::make_mut(spec);
    change.apply(spec);
    if !change.request.is_empty() {
        spread(&mut spec.request);
    }
}

/// Changes the request of a job that is not over, with the tally, and shares it with equal requests.
pub(crate) fn respecify(state: &mut State, id: JobId, change: impl FnOnce(&mut JobSpec)) {
    let before = job_mut(state, id).spec.clone();
    let mut spec = (*before).clone();
    change(&mut spec);
    let after = state.memo.late_specs.share(spec);
    state.index.tally.remove(&before, 1);
    state.index.tally.add(&after, 1);
    job_mut(state, id).spec = after;
}

pub(crate) fn updated(state: &mut State, id: JobId, change: &JobChange) {
    let job = job_mut(state, id);
    let before = job.spec.clone();
    changed_spec(&mut job.spec, change);
    job.nice = change.nice.unwrap_or(job.nice);
    let eligible = change.eligible.unwrap_or(job.eligible);
    job.eligible = eligible;
    let live = job.live_run();
    if let Some(limit) = change.limit_secs {
        job.limit_secs = limit;
        if let Some(run) = live {
            run_mut(state, run).limit_secs = limit;
            raise_generations(state, run);
        }
    }
    let (over, after) = (
        job_mut(state, id).state.is_final(),
        job_mut(state, id).spec.clone(),
    );
    if !over {
        state.index.tally.remove(&before, 1);
        state.index.tally.add(&after, 1);
    }
    let job = state.job(id).filter(|job| job.state == JobState::Pending);
    if let Some((spec, limit_secs, submitted)) =
        job.map(|job| (job.spec.clone(), job.limit_secs, job.submitted))
    {
        index_begin(state, id, submitted, eligible, &spec);
        index_deadline(state, id, &spec, limit_secs);
    }
}

pub(crate) fn array_updated(state: &mut State, id: JobId, change: &JobChange) {
    let array = array_mut(state, id);
    let before = array.spec.clone();
    changed_spec(&mut array.spec, change);
    array.nice = change.nice.unwrap_or(array.nice);
    array.limit_secs = change.limit_secs.unwrap_or(array.limit_secs);
    array.eligible = change.eligible.unwrap_or(array.eligible);
    if let Some(most) = change.max_running {
        array.tasks = array.tasks.clone().with_limit((most > 0).then_some(most));
    }
    let (spec, limit_secs, submitted, eligible) = (
        array.spec.clone(),
        array.limit_secs,
        array.submitted,
        array.eligible,
    );
    let untouched = array.pending.len();
    state.index.tally.remove(&before, untouched);
    state.index.tally.add(&spec, untouched);
    index_begin(state, id, submitted, eligible, &spec);
    index_deadline(state, id, &spec, limit_secs);
}

/// `end`: CANCELLED, or DEADLINE.
pub(crate) fn cancelled(
    state: &mut State,
    id: JobId,
    end: JobState,
    by: &str,
    text: &str,
    at: Timestamp,
) {
    let job = job_mut(state, id);
    assert_eq!(
        job.state,
        JobState::Pending,
        "job {id} is cancelled as pending"
    );
    job.state = end;
    job.past.ended = Some(at);
    job.set_reason(Reason::default());
    job.past.cancelled_by = Some(by.to_owned());
    job.past.end_text = text.to_owned();
    let (task, spec) = (job.task, job.spec.clone());
    state.index.tally.remove(&spec, 1);
    index_token(state, &spec, EntryId::Job(id), false);
    state.index.finished.insert((at, id));
    set_waits(state, EntryId::Job(id), None);
    if let Some(task) = task {
        let array = array_mut(state, task.array);
        array.own_pending -= 1;
        array.unsuccessful += 1;
        close_array(array, at);
    }
}

pub(crate) fn tasks_cancelled(
    state: &mut State,
    id: JobId,
    positions: &RangeSet,
    by: &str,
    reason: ReasonCode,
    at: Timestamp,
) {
    let array = array_mut(state, id);
    array.no_longer_apart(positions);
    if reason == ReasonCode::DeadLine {
        put_in(&mut array.dropped.late, positions);
    }
    for (first, last) in positions.runs() {
        array.pending.remove_range(first, last);
        array.cancelled.insert_range(first, last);
    }
    if reason != ReasonCode::DeadLine {
        array.dropped.cancelled_by = Some(by.to_owned());
    }
    close_array(array, at);
    let (none_left, spec) = (array.pending.is_empty(), array.spec.clone());
    state.index.tally.remove(&spec, positions.len());
    if none_left {
        index_token(state, &spec, EntryId::Array(id), false);
        set_waits(state, EntryId::Array(id), None);
    }
}

/// An array is over when none of its tasks is pending or live.
pub(crate) fn close_array(array: &mut Array, at: Timestamp) {
    array.ended = array.is_over().then_some(at);
}

pub(crate) fn waits_changed(
    state: &mut State,
    entry: EntryId,
    waits: Option<Box<OpenDependency>>,
    at: Timestamp,
) {
    let still = waits.is_some();
    set_waits(state, entry, waits);
    if still {
        return;
    }
    // Its age counts from here, as in Slurm.
    let (eligible, reason, spec) = match entry {
        EntryId::Job(id) => {
            let job = job_mut(state, id);
            (&mut job.eligible, &mut job.reason, job.spec.clone())
        }
        EntryId::Array(id) => {
            let array = array_mut(state, id);
            (&mut array.eligible, &mut array.reason, array.spec.clone())
        }
    };
    *eligible = (*eligible).max(at);
    let eligible = *eligible;
    if matches!(
        reason.code,
        ReasonCode::Dependency | ReasonCode::DependencyNeverSatisfied
    ) {
        *reason = Reason::default();
    }
    index_begin(state, entry.id(), eligible, eligible, &spec);
}

pub(crate) fn forgotten(state: &mut State, jobs: &[JobId], arrays: &[JobId]) {
    let gone: BTreeSet<JobId> = jobs.iter().copied().collect();
    // They are the oldest, so this looks at hardly any other.
    let oldest = state
        .index
        .finished
        .iter()
        .filter(|(_, id)| gone.contains(id))
        .take(gone.len());
    for key in oldest.copied().collect::<Vec<_>>() {
        state.index.finished.remove(&key);
    }
    for id in jobs {
        if let Some(job) = state.jobs.remove(*id) {
            forget_key(state, job.spec.user.uid, job.client_key);
        }
    }
    for id in arrays {
        if let Some(array) = state.arrays.remove(*id) {
            forget_key(state, array.spec.user.uid, array.client_key);
        }
    }
}

fn forget_key(state: &mut State, uid: u32, key: Option<Arc<str>>) {
    if let Some(key) = key {
        state.index.client_keys.remove(&ClientKey { uid, key });
    }
}

/// `--ntasks 8 --ntasks-per-node 4` needs two nodes, whatever `--nodes` says (sbatch(1)).
pub(crate) fn spread(request: &mut gmodel::Request) {
    if let Some(per_node) = request.ntasks_per_node.filter(|_| request.ntasks > 1) {
        request.nodes_min = request.nodes_min.max(request.ntasks.div_ceil(per_node));
        request.nodes_max = request.nodes_max.max(request.nodes_min);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_per_node_decide_how_many_nodes_it_takes() {
        let nodes = |ntasks, per_node, asked| {
            let mut request = gmodel::Request {
                ntasks,
                ntasks_per_node: per_node,
                nodes_min: asked,
                nodes_max: asked,
                ..gmodel::Request::default()
            };
            spread(&mut request);
            (request.nodes_min, request.nodes_max)
        };
        assert_eq!(nodes(8, Some(4), 1), (2, 2));
        assert_eq!(nodes(9, Some(4), 1), (3, 3));
        assert_eq!(nodes(8, Some(4), 4), (4, 4));
        assert_eq!(nodes(8, None, 1), (1, 1));
        assert_eq!(nodes(1, Some(4), 2), (2, 2));
    }
}
