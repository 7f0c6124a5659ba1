//! What a requeue changes of a job that was over, or of cancelled tasks of an array.

use crate::ctl::apply::index::{index_begin, index_deadline, index_token};
use crate::ctl::apply::jobs::{close_array, reason_of, respecify};
use crate::ctl::apply::records::{array_mut, job_mut, run_mut};
use crate::ctl::event::Event;
use crate::ctl::state::{EntryId, State, take_out};
use gmodel::array_spec::RangeSet;
use gmodel::{JobId, JobState, Timestamp};

pub(crate) fn apply(state: &mut State, event: &Event) {
    match event {
        Event::JobRequeued {
            run: Some(run), at, ..
        } => {
            let outcome = run_mut(state, *run)
                .outcome
                .as_mut()
                .expect("a run that is being cleaned up has ended");
            outcome.requeue = Some(*at);
        }
        Event::JobRequeued {
            job, run: None, at, ..
        } => returned(state, *job, *at),
        Event::TasksRequeued {
            array,
            positions,
            at,
            ..
        } => tasks_returned(state, *array, positions, *at),
        _ => {}
    }
}

/// A finished job is pending again, with its age counted from now.
fn returned(state: &mut State, id: JobId, at: Timestamp) {
    let job = job_mut(state, id);
    assert!(
        job.state.is_final() && job.live.is_none(),
        "job {id} is over"
    );
    let unsuccessful = job.state != JobState::Completed;
    job.state = JobState::Pending;
    job.set_reason(reason_of(&job.holds));
    job.eligible = at;
    if job.past.try_after.is_some() {
        job.past.try_after = None;
    }
    job.past.ended = None;
    job.past.cancelled_by = None;
    let (task, spec, limit_secs, submitted) =
        (job.task, job.spec.clone(), job.limit_secs, job.submitted);
    state.index.finished.retain(|(_, one)| *one != id);
    state.index.tally.add(&spec, 1);
    index_token(state, &spec, EntryId::Job(id), true);
    if !spec.partitions.is_empty() {
        respecify(state, id, |spec| spec.unsettle());
    }
    index_begin(state, id, submitted, at, &spec);
    // A component may have failed to launch somewhere when another ended the job.
    let tries: Vec<Timestamp> = state
        .job(id)
        .into_iter()
        .flat_map(|job| job.tries())
        .collect();
    state
        .index
        .not_yet
        .extend(tries.into_iter().map(|at| (at, id)));
    index_deadline(state, id, &spec, limit_secs);
    if let Some(task) = task {
        let array = array_mut(state, task.array);
        array.own_pending += 1;
        array.unsuccessful -= u32::from(unsuccessful);
        close_array(array, at);
    }
}

fn tasks_returned(state: &mut State, id: JobId, positions: &RangeSet, at: Timestamp) {
    let array = array_mut(state, id);
    if array.pending.is_empty() {
        array.eligible = at;
    }
    take_out(&mut array.dropped.late, positions);
    for (first, last) in positions.runs() {
        array.cancelled.remove_range(first, last);
        array.pending.insert_range(first, last);
    }
    array.set_reason(reason_of(&array.holds));
    close_array(array, at);
    let (spec, limit_secs, submitted, eligible) = (
        array.spec.clone(),
        array.limit_secs,
        array.submitted,
        array.eligible,
    );
    state.index.tally.add(&spec, positions.len());
    index_token(state, &spec, EntryId::Array(id), true);
    index_begin(state, id, submitted, eligible, &spec);
    index_deadline(state, id, &spec, limit_secs);
}
