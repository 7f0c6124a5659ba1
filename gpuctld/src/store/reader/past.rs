//! How jobs ended that are no longer in memory: what a dependency on them needs to know.
//!
//! Owns how they are found, task by task where it matters; whether a condition is met is for the core.

use super::stored::{ReadResult, SpecCache, StoredJob, stored_array, stored_job};
use gcore::ctl::{Array, ForgottenJob, Job};
use gmodel::array_spec::RangeSet;
use gmodel::dependency::JobRef;
use gmodel::{JobId, JobState, Timestamp};
use rusqlite::{Connection, OptionalExtension};

/// What is known of the jobs named; those that are not over are left out.
pub fn past_jobs(db: &Connection, names: &[JobRef]) -> ReadResult<Vec<ForgottenJob>> {
    let mut all: Vec<ForgottenJob> = Vec::new();
    for name in names {
        let found = match stored_array(db, name.id)? {
            Some(array) => of_array(db, &array, name.index)?,
            None => of_job(db, name.id)?.into_iter().collect(),
        };
        for past in found {
            if !all
                .iter()
                .any(|known| known.id == past.id && known.tasks.is_some() == past.tasks.is_some())
            {
                all.push(past);
            }
        }
    }
    Ok(all)
}

fn of_job(db: &Connection, id: JobId) -> ReadResult<Option<ForgottenJob>> {
    Ok(match stored_job(db, id, &mut SpecCache::default())? {
        Some(StoredJob::Job(job)) => over(&job),
        Some(StoredJob::Array(array)) => cancelled(&array, id),
        None => None,
    })
}

fn over(job: &Job) -> Option<ForgottenJob> {
    let began = job.past.started.or(job.past.ended).unwrap_or(job.submitted);
    job.state.is_final().then(|| past(job.id, job.state, began))
}

fn past(id: JobId, state: JobState, began: Timestamp) -> ForgottenJob {
    ForgottenJob {
        id,
        state,
        began,
        tasks: None,
        well: RangeSet::new(),
    }
}

/// A task that never had a record of its own.
fn cancelled(array: &Array, id: JobId) -> Option<ForgottenJob> {
    let position = u32::try_from(id.0.checked_sub(array.id.0)?).ok()?;
    let began = array.ended.unwrap_or(array.submitted);
    let state = match array.dropped.late.contains(position) {
        true => JobState::Deadline,
        false => JobState::Cancelled,
    };
    array
        .cancelled
        .contains(position)
        .then(|| past(id, state, began))
}

/// The array as a whole, and the one task that is asked for.
fn of_array(db: &Connection, array: &Array, index: Option<u32>) -> ReadResult<Vec<ForgottenJob>> {
    let last = array.id.0 + u64::from(array.len()) - 1;
    let mut rows = db.prepare_cached(
        "SELECT id, state, start_ms FROM jobs WHERE id BETWEEN ?1 AND ?2 AND array_id = ?1",
    )?;
    let mut rows = rows.query([array.id.0, last])?;
    let mut well = RangeSet::new();
    let (mut worst, mut began) = (None, array.submitted);
    while let Some(row) = rows.next()? {
        let (id, state): (u64, String) = (row.get(0)?, row.get(1)?);
        began = began.max(Timestamp(row.get::<_, Option<i64>>(2)?.unwrap_or_default()));
        match JobState::parse(&state) {
            Some(JobState::Completed) => drop(well.insert((id - array.id.0) as u32)),
            Some(state) if state.is_final() => worst = Some(state),
            _ => {}
        }
    }
    let state = match worst {
        Some(state) => state,
        None if array.cancelled.is_empty() => JobState::Completed,
        None if array.not_late().is_empty() => JobState::Deadline,
        None => JobState::Cancelled,
    };
    let whole = ForgottenJob {
        id: array.id,
        state,
        began,
        tasks: Some(array.tasks.clone()),
        well,
    };
    let task = match index.and_then(|index| array.tasks.position(index)) {
        Some(position) => one_task(db, array, array.task_id(position))?,
        None => None,
    };
    Ok([Some(whole), task].into_iter().flatten().collect())
}

fn one_task(db: &Connection, array: &Array, id: JobId) -> ReadResult<Option<ForgottenJob>> {
    let row: Option<(String, Option<i64>, Option<i64>)> = db
        .prepare_cached("SELECT state, start_ms, end_ms FROM jobs WHERE id = ?1 AND array_id = ?2")?
        .query_row([id.0, array.id.0], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })
        .optional()?;
    let Some((state, start, end)) = row else {
        return Ok(cancelled(array, id));
    };
    let state = JobState::parse(&state).filter(|state| state.is_final());
    Ok(state.map(|state| past(id, state, Timestamp(start.or(end).unwrap_or_default()))))
}
