//! The indexes of the state, kept in step with the records that they are made of.

use crate::ctl::job::deadline::last_start;
use crate::ctl::state::{Array, ClientKey, EntryId, Job, Node, OpenDependency, Run, State};
use gmodel::{JobId, JobSpec, JobState, NodeId, RunId, Timestamp};

/// After a node's link or deadline changed.
pub(crate) fn watch(state: &mut State, id: NodeId) {
    let node = state.node(id);
    if node.is_some_and(Node::has_deadline) {
        state.index.watched.insert(id);
    } else {
        state.index.watched.remove(&id);
    }
}

pub(crate) fn index_job(state: &mut State, job: &Job) {
    if let Some(key) = &job.client_key {
        let key = ClientKey {
            uid: job.spec.user.uid,
            key: key.clone(),
        };
        state.index.client_keys.insert(key, job.id);
    }
    if let (true, Some(ended)) = (job.state.is_final(), job.past.ended) {
        state.index.finished.insert((ended, job.id));
    }
    if !job.state.is_final() {
        state.index.tally.add(&job.spec, 1);
        index_token(state, &job.spec, EntryId::Job(job.id), true);
    }
    if job.state == JobState::Pending {
        index_waits(state, EntryId::Job(job.id), job.waits.as_deref());
        index_deadline(state, job.id, &job.spec, job.limit_secs);
        index_begin(state, job.id, job.submitted, job.eligible, &job.spec);
        index_tries(state, job);
    }
}

/// When a job that failed with its nodes is tried again, and when on nodes that failed to launch it.
pub(crate) fn index_tries(state: &mut State, job: &Job) {
    state
        .index
        .not_yet
        .extend(job.tries().map(|at| (at, job.id)));
}

pub(crate) fn index_array(state: &mut State, array: &Array) {
    if let Some(key) = &array.client_key {
        let key = ClientKey {
            uid: array.spec.user.uid,
            key: key.clone(),
        };
        state.index.client_keys.insert(key, array.id);
    }
    index_waits(state, EntryId::Array(array.id), array.waits.as_deref());
    state.index.tally.add(&array.spec, array.pending.len());
    let entry = EntryId::Array(array.id);
    index_token(state, &array.spec, entry, !array.pending.is_empty());
    if !array.pending.is_empty() {
        index_deadline(state, array.id, &array.spec, array.limit_secs);
    }
    index_begin(
        state,
        array.id,
        array.submitted,
        array.eligible,
        &array.spec,
    );
}

/// Keeps the index of what counts against the caps of a token.
pub(crate) fn index_token(state: &mut State, spec: &JobSpec, entry: EntryId, counts: bool) {
    let Some(token) = spec.token else {
        return;
    };
    let records = state.index.of_token.entry(token).or_default();
    match counts {
        true => records.insert(entry),
        false => records.remove(&entry),
    };
    if records.is_empty() {
        state.index.of_token.remove(&token);
    }
}

fn index_waits(state: &mut State, entry: EntryId, waits: Option<&OpenDependency>) {
    for wait in waits.into_iter().flat_map(|waits| &waits.on) {
        state.index.dependents.insert((wait.of, entry));
        state
            .index
            .due
            .extend(wait.until.map(|at| (at, entry.id())));
    }
}

/// When a pending job may start without any other event: it becomes eligible, or stops waiting for few
/// switches.
pub(crate) fn index_begin(
    state: &mut State,
    id: JobId,
    submitted: Timestamp,
    eligible: Timestamp,
    spec: &JobSpec,
) {
    let later = (eligible > submitted).then_some(eligible);
    let any_switches = spec
        .request
        .switches
        .and_then(|wanted| wanted.waits_until(eligible));
    state
        .index
        .not_yet
        .extend(later.into_iter().chain(any_switches).map(|at| (at, id)));
}

/// The latest time at which the job could begin and still end by its deadline.
pub(crate) fn index_deadline(
    state: &mut State,
    id: JobId,
    spec: &JobSpec,
    limit_secs: Option<u32>,
) {
    state
        .index
        .due
        .extend(last_start(spec, limit_secs).map(|at| (at, id)));
}

/// Sets what of a dependency is not met, with the index that follows from it.
pub(crate) fn set_waits(state: &mut State, entry: EntryId, waits: Option<Box<OpenDependency>>) {
    let slot = match entry {
        EntryId::Job(id) => {
            &mut state
                .jobs
                .get_mut(id)
                .expect("a dependant has its record")
                .waits
        }
        EntryId::Array(id) => {
            &mut state
                .arrays
                .get_mut(id)
                .expect("a dependant has its record")
                .waits
        }
    };
    let before = std::mem::replace(slot, waits.clone());
    for wait in before.iter().flat_map(|waits| &waits.on) {
        state.index.dependents.remove(&(wait.of, entry));
    }
    index_waits(state, entry, waits.as_deref());
}

pub(crate) fn index_run(state: &mut State, run: &Run) {
    if run.go.is_none() && run.stop.is_none() && run.outcome.is_none() {
        state.index.preparing.insert((run.placed, run.id));
    }
    state.index.making_room.extend(
        run.stop
            .as_ref()
            .and_then(|stop| Some((stop.for_job?, run.id))),
    );
    index_idle_untold(state, run.id, run.is_idle_untold());
}

/// Keeps the index of runs for which the site's idle program is still to be called.
pub(crate) fn index_idle_untold(state: &mut State, id: RunId, is_untold: bool) {
    match is_untold {
        true => state.index.idle_untold.insert(id),
        false => state.index.idle_untold.remove(&id),
    };
}
