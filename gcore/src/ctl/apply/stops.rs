//! What orders to stop change of a run, and the index of runs that make room for a job.

use crate::ctl::state::{Job, State, Stop};
use gmodel::{JobId, RunId};

pub(crate) fn stopping(state: &mut State, id: RunId, stop: &Stop) {
    let number = state.seq.0;
    let run = state.runs.get_mut(id).expect("a run that stops exists");
    let before = run.stop.replace(Stop {
        number,
        ..stop.clone()
    });
    let placed = run.placed;
    state.index.preparing.remove(&(placed, id));
    state.memo.pulls.remove(&id);
    forget(state, id, before.as_ref());
    state
        .index
        .making_room
        .extend(stop.for_job.map(|job| (job, id)));
}

pub(crate) fn unneeded(state: &mut State, id: RunId, for_job: JobId, called_back: bool) {
    let whom = state
        .job(for_job)
        .map_or(for_job.to_string(), Job::shown_id);
    let run = state
        .runs
        .get_mut(id)
        .expect("a run that is not needed exists");
    let Some(stop) = &mut run.stop else { return };
    stop.in_vain = true;
    stop.text = format!(
        "{}; job {whom} started elsewhere before it was gone",
        stop.text
    );
    if called_back {
        run.called_back = run.stop.take().map(Box::new);
        state.index.making_room.remove(&(for_job, id));
    }
}

/// A run makes room no more: it is clean on all its nodes, or was told otherwise.
pub(crate) fn forget(state: &mut State, run: RunId, stop: Option<&Stop>) {
    if let Some(job) = stop.and_then(|stop| stop.for_job) {
        state.index.making_room.remove(&(job, run));
    }
}
