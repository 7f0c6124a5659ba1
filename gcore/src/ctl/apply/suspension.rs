//! What suspending and resuming change of a run and its job.

use crate::ctl::state::{State, Suspension};
use gmodel::{JobState, RunId, Timestamp};

pub(crate) fn suspended(state: &mut State, id: RunId, suspension: &Suspension) {
    if let Some(run) = state.runs.get_mut(id) {
        run.suspension = Some(Box::new(suspension.clone()));
    }
    turn(state, id, JobState::Suspended);
}

pub(crate) fn resumed(state: &mut State, id: RunId, at: Timestamp) {
    if let Some(run) = state.runs.get_mut(id) {
        run.suspended_millis = run.suspended_by(at);
        run.suspension = None;
    }
    let script_ended = state.run(id).is_some_and(|run| {
        run.members
            .first()
            .is_some_and(|member| member.end().is_some())
    });
    turn(
        state,
        id,
        if script_ended {
            JobState::Completing
        } else {
            JobState::Running
        },
    );
}

fn turn(state: &mut State, id: RunId, to: JobState) {
    if let Some(job) = state
        .jobs
        .get_mut(id.job)
        .filter(|job| job.live_run() == Some(id))
    {
        job.state = to;
    }
}
