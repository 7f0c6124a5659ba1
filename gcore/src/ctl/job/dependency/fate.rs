//! How the jobs ended that others depend on: from memory, or from stored records.

use crate::ctl::state::{Array, ForgottenJob, Job, State};
use gmodel::array_spec::ArraySpec;
use gmodel::{JobId, JobState, Timestamp};

/// How a job began and ended, as far as conditions ask.
pub(crate) struct Fate {
    pub over: bool,
    /// It is over and ended well.
    pub well: bool,
    /// It ended badly; of an array, some task of it did.
    pub badly: bool,
    /// When it (of an array: the last of its tasks) began, or was cancelled.
    pub began: Option<Timestamp>,
}

pub(crate) fn ended(well: bool, began: Timestamp) -> Fate {
    Fate {
        over: true,
        well,
        badly: !well,
        began: Some(began),
    }
}

pub(crate) const PENDING: Fate = Fate {
    over: false,
    well: false,
    badly: false,
    began: None,
};

/// `None` if neither the state nor the store knows the job.
pub(crate) fn fate(state: &State, past: &[ForgottenJob], of: JobId, whole: bool) -> Option<Fate> {
    if whole {
        let stored = || {
            past.iter()
                .find(|known| known.id == of && known.tasks.is_some())
        };
        return match state.array(of) {
            Some(array) => Some(fate_of_array(state, array)),
            None => stored().map(|known| ended(known.state == JobState::Completed, known.began)),
        };
    }
    if let Some(job) = state.job(of) {
        return Some(fate_of_job(state, job));
    }
    let array = state.array_of(of);
    if let Some((array, position)) = array {
        if array.pending.contains(position) {
            return Some(PENDING);
        }
        if array.cancelled.contains(position) {
            return Some(ended(false, array.ended.unwrap_or(array.submitted)));
        }
    }
    past.iter().find_map(|known| match &known.tasks {
        None => (known.id == of).then(|| ended(known.state == JobState::Completed, known.began)),
        Some(tasks) => {
            let position = u32::try_from(of.0.checked_sub(known.id.0)?).ok()?;
            (position < tasks.len()).then(|| ended(known.well.contains(position), known.began))
        }
    })
}

pub(crate) fn fate_of_job(state: &State, job: &Job) -> Fate {
    match job.state {
        JobState::Pending => PENDING,
        over if over.is_final() => {
            let began = job.past.started.or(job.past.ended).unwrap_or(job.submitted);
            ended(over == JobState::Completed, began)
        }
        _ => {
            let run = job.live_run().and_then(|run| state.run(run));
            Fate {
                began: run.and_then(|run| run.started),
                ..PENDING
            }
        }
    }
}

pub(crate) fn fate_of_array(state: &State, array: &Array) -> Fate {
    let over = array.is_over();
    let badly = array.unsuccessful > 0 || !array.cancelled.is_empty();
    let all_left = array.pending.is_empty() && array.own_pending == 0;
    let began = all_left.then(|| {
        let tasks = state
            .jobs
            .range(array.id.0, array.id.0 + u64::from(array.len()));
        tasks
            .map(|(_, task)| fate_of_job(state, task).began)
            .try_fold(array.submitted, |last, began| Some(last.max(began?)))
    });
    // As in Slurm, the fate of an array is decided when all of it is over.
    Fate {
        over,
        well: over && !badly,
        badly: over && badly,
        began: began.flatten(),
    }
}

pub(crate) fn tasks_of<'a>(
    state: &'a State,
    past: &'a [ForgottenJob],
    id: JobId,
) -> Option<&'a ArraySpec> {
    let stored = || {
        past.iter()
            .find(|known| known.id == id)
            .and_then(|known| known.tasks.as_ref())
    };
    state.array(id).map(|array| &array.tasks).or_else(stored)
}

/// `job 17 ended FAILED`.
pub(crate) fn words(state: &State, past: &[ForgottenJob], of: JobId, whole: bool) -> String {
    if whole {
        let well = fate(state, past, of, true).is_some_and(|fate| fate.well);
        return if well {
            format!("all tasks of array {of} ended well")
        } else {
            format!("not all tasks of array {of} ended well")
        };
    }
    match (
        state.job(of),
        past.iter()
            .find(|known| known.id == of && known.tasks.is_none()),
    ) {
        (Some(job), _) => format!("job {} ended {}", job.shown_id(), job.state),
        (None, Some(known)) => format!("job {of} ended {}", known.state),
        (None, None) => match fate(state, past, of, false) {
            Some(fate) if fate.well => format!("task {of} ended well"),
            _ => format!("task {of} was cancelled or did not end well"),
        },
    }
}
