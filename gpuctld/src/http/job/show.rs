//! One job: in full, its script, and waiting for its end. Finished jobs come from the database.
//!
//! Owns how memory and database are joined to one answer; never which of them is right: a job in memory wins.

use crate::core_thread::now;
use crate::http::app::ApiContext;
use crate::http::error::ApiError;
use crate::http::job::column::COLUMNS;
use crate::http::job::filter::JobFilter;
use crate::http::job::list::json_rows;
use crate::http::job::name::{JobName, job_name, one_row};
use crate::http::job::rank::Ranks;
use crate::http::job::row::{Row, TaskGroup, View};
use crate::http::permission::{Caller, Visibility, must_own};
use crate::http::query::QueryPairs;
use crate::store::reader::StoredJob;
use axum::extract::{Path, State as Shared};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use gcore::ctl::State;
use gmodel::job::JobSpec;
use gmodel::{JobId, JobState, RefusalKind, Timestamp};
use gwire::api::{JobQuery, JobRow, RunQuery, RunRow, SCHEMA};
use serde::Serialize;
use std::time::{Duration, Instant};

/// Tasks of one array in one answer.
const MAX_ROWS: u32 = 20_000;
/// Longest that a question may wait.
const MAX_WAIT_SECS: u32 = 60;
const DEFAULT_WAIT_SECS: u32 = 30;
/// Between two looks of one waiter.
const WAIT_PAUSE: Duration = Duration::from_millis(10);

#[derive(Serialize)]
struct JobList {
    schema: u32,
    jobs: Vec<JobRow>,
}

pub(crate) async fn show(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
    Path(id): Path<String>,
    pairs: QueryPairs,
) -> Result<Response, ApiError> {
    pairs.only(&[])?;
    answer(&site, &caller, &job_name(&id)?, &id).await
}

/// Long poll: answers when the job (all of an array) is over, or the time is up.
pub(crate) async fn wait(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
    Path(id): Path<String>,
    pairs: QueryPairs,
) -> Result<Response, ApiError> {
    let pairs = pairs.only(&["timeout_secs"])?;
    let wait_secs = pairs
        .number("timeout_secs")?
        .unwrap_or(DEFAULT_WAIT_SECS)
        .min(MAX_WAIT_SECS);
    let name = job_name(&id)?;
    let until = Instant::now() + Duration::from_secs(u64::from(wait_secs));
    loop {
        let seen = site.core.version();
        let state = site.core.view().await;
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || is_over(&state, &name) {
            return answer(&site, &caller, &name, &id).await;
        }
        site.core.wait_changed(seen, left).await;
        // Thousands may wait while thousands of commits a second go by.
        tokio::time::sleep(WAIT_PAUSE).await;
    }
}

/// Nothing of it is pending or live in memory.
fn is_over(state: &State, name: &JobName) -> bool {
    match name {
        JobName::Job(id) if state.arrays.contains(*id) => {
            state.arrays.get(*id).is_none_or(gcore::ctl::Array::is_over)
        }
        _ => one_row(state, name).is_none_or(|row| row.state().is_final()),
    }
}

async fn answer(
    site: &ApiContext,
    caller: &Caller,
    name: &JobName,
    shown: &str,
) -> Result<Response, ApiError> {
    let jobs = in_full(site, caller, name).await?;
    if jobs.is_empty() {
        return Err(unknown(shown));
    }
    Ok(axum::Json(JobList {
        schema: SCHEMA,
        jobs,
    })
    .into_response())
}

fn unknown(shown: &str) -> ApiError {
    let shown: String = shown.chars().take(40).collect();
    ApiError::not_found(format!("there is no job {shown} that you may see. `gq` lists what waits and runs, `gacct` what is over"))
        .about(RefusalKind::Job, shown)
}

/// All rows of a name. Tasks that have left memory are added from accounting.
pub(crate) async fn in_full(
    site: &ApiContext,
    caller: &Caller,
    name: &JobName,
) -> Result<Vec<JobRow>, ApiError> {
    let state = site.core.view().await;
    let sight = Visibility::of(caller, &state);
    let ranks = site.app.ranks.ranks_of(&state, now());
    let mut jobs = rows_in_memory(&state, ranks.as_deref(), &sight, name)?;
    if let [job] = &mut jobs[..]
        && (job.state.is_final() || job.state == JobState::Completing)
        && job.nodelist.is_empty()
        && let Some(run) = site.core.reader().last_run(JobId(job.id), now()).await?
    {
        add_run(job, &run);
    }
    if let [job] = &mut jobs[..]
        && job.preempted_time.is_some()
    {
        let query = RunQuery {
            job: job.shown_id.clone(),
            attempts: true,
            state: "PREEMPTED".into(),
            ..RunQuery::default()
        };
        let runs = site.core.reader().runs(query, now()).await?;
        job.preemptions = u32::try_from(runs.len()).ok();
    }
    let whole_array = match name {
        JobName::Job(id) => state.arrays.contains(*id) || jobs.is_empty(),
        JobName::Part { .. } | JobName::Tasks { .. } => jobs.is_empty(),
    };
    if whole_array {
        let known: std::collections::BTreeSet<String> =
            jobs.iter().map(|job| job.shown_id.clone()).collect();
        let stored = from_database(site, &state, &sight, name).await?;
        jobs.extend(
            stored
                .into_iter()
                .filter(|job| !known.contains(&job.shown_id)),
        );
    }
    Ok(jobs)
}

fn rows_in_memory(
    state: &State,
    ranks: Option<&Ranks>,
    sight: &Visibility,
    name: &JobName,
) -> Result<Vec<JobRow>, ApiError> {
    let view = View {
        ranks,
        ..View::new(state, now())
    };
    let query = JobQuery {
        state: "all".to_owned(),
        ..JobQuery::default()
    };
    let filter = JobFilter::new(&query)?.with_ids(vec![name.clone()]);
    let mut rows = Vec::new();
    filter.each(view, sight, |row| rows.push(row));
    // What waits comes first; of the others the ids decide.
    rows.sort_by_key(|row| (!row.is_pending(), row.id()));
    rows.truncate(MAX_ROWS as usize);
    read_back(&json_rows(view, &rows, &COLUMNS.iter().collect::<Vec<_>>()))
}

fn read_back(json: &[u8]) -> Result<Vec<JobRow>, ApiError> {
    serde_json::from_slice(json)
        .map_err(|error| ApiError::unavailable(format!("a row cannot be read back: {error}")))
}

/// What the database knows of a name: the record, and what accounting says of its tasks.
async fn from_database(
    site: &ApiContext,
    state: &State,
    sight: &Visibility,
    name: &JobName,
) -> Result<Vec<JobRow>, ApiError> {
    let reader = site.core.reader();
    let stored = match name {
        JobName::Job(id) => reader.job(*id).await?,
        JobName::Part { leader, offset } => reader.part(*leader, *offset).await?,
        JobName::Tasks { array, indices } => reader.task(*array, indices.bounds().0).await?,
    };
    let view = View::new(state, now());
    let whole_array = match name {
        JobName::Job(id) => Some(*id),
        JobName::Part { .. } | JobName::Tasks { .. } => None,
    };
    match stored {
        None => Ok(Vec::new()),
        // An array has the id of its first task.
        Some(StoredJob::Job(job)) if sight.sees(&job.spec) => {
            let template = full_row(view, Row::Job(&job))?;
            if let Some(array) = job
                .task
                .map(|task| task.array)
                .filter(|array| Some(*array) == whole_array)
            {
                return tasks_of(site, array, &template, view.now).await;
            }
            let run = reader.last_run(job.id, view.now).await?;
            Ok(vec![
                run.map_or(template.clone(), |run| with_run(template, &run)),
            ])
        }
        Some(StoredJob::Array(array)) if sight.sees(&array.spec) => {
            let template = full_row(
                view,
                Row::Tasks {
                    array: &array,
                    alike: TaskGroup::Cancelled,
                },
            )?;
            tasks_of(site, array.id, &template, view.now).await
        }
        Some(_) => Ok(Vec::new()),
    }
}

fn full_row(view: View, row: Row) -> Result<JobRow, ApiError> {
    let mut rows = read_back(&json_rows(
        view,
        &[row],
        &COLUMNS.iter().collect::<Vec<_>>(),
    ))?;
    rows.pop()
        .ok_or_else(|| ApiError::unavailable("a row cannot be read back"))
}

/// The tasks of an array that have run or were cancelled, from accounting.
async fn tasks_of(
    site: &ApiContext,
    array: JobId,
    template: &JobRow,
    now: Timestamp,
) -> Result<Vec<JobRow>, ApiError> {
    let query = RunQuery {
        job: array.to_string(),
        limit: Some(MAX_ROWS),
        ..RunQuery::default()
    };
    let runs = site.core.reader().runs(query, now).await?;
    Ok(runs.iter().map(|run| of_run(template, run)).collect())
}

/// What a run held, on the row of its job that has none any more.
fn add_run(job: &mut JobRow, run: &RunRow) {
    job.nodelist.clone_from(&run.nodelist);
    job.nodes = run.nodes.max(1);
    job.cpus = run.cpus;
    job.gpu_count = run.gpu_count;
    job.mem_total_bytes = run.mem_bytes;
    job.start_time = job.start_time.or(run.start_time);
    job.end_time = job.end_time.or(run.end_time);
    if job.mem.is_empty() {
        job.mem_bytes = run.mem_bytes;
        job.mem = gmodel::size::exact_size(run.mem_bytes);
    }
}

fn with_run(mut job: JobRow, run: &RunRow) -> JobRow {
    add_run(&mut job, run);
    job
}

/// A task that only accounting knows, with what it has in common with its array.
fn of_run(template: &JobRow, run: &RunRow) -> JobRow {
    let job = JobRow {
        id: run.id,
        shown_id: run.shown_id.clone(),
        array_id: run.array_id,
        array_index: run.array_index,
        array_tasks: run.array_tasks.clone(),
        state: run.state,
        exit_code: run.exit_code,
        end_text: run.end_text.clone(),
        start_time: run.start_time,
        end_time: run.end_time,
        elapsed_secs: run.elapsed_secs,
        attempts: run.attempt,
        nodelist: String::new(),
        ..template.clone()
    };
    with_run(job, run)
}

/// The submitted text, for the owner and operators.
pub(crate) async fn script(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    let (spec, _) = found(&site, &job_name(&id)?, &id).await?;
    must_own(&caller, &spec, &id, "script")?;
    if spec.launch.script.is_empty() {
        let text = format!(
            "job {id} has no script; it runs: {}",
            spec.launch.argv.join(" ")
        );
        return Err(ApiError::not_found(text));
    }
    match site.core.reader().blob(spec.launch.script).await? {
        Some(text) => Ok(([(CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response()),
        None => {
            let days = site.app.config().keep_scripts_days;
            Err(ApiError::not_found(format!(
                "the script of job {id} was removed: scripts are kept {days} days after the end"
            )))
        }
    }
}

/// The spec of a job and how often it ran.
pub(crate) async fn found(
    site: &ApiContext,
    name: &JobName,
    shown: &str,
) -> Result<(JobSpec, JobAttempts), ApiError> {
    let state = site.core.view().await;
    if let Some(row) = one_row(&state, name) {
        let run = JobAttempts {
            job: JobId(row.id()),
            attempts: row.attempts(),
        };
        return Ok((row.spec().clone(), run));
    }
    let reader = site.core.reader();
    let stored = match name {
        JobName::Job(id) => reader.job(*id).await?,
        JobName::Part { leader, offset } => reader.part(*leader, *offset).await?,
        JobName::Tasks { array, indices } => reader.task(*array, indices.bounds().0).await?,
    };
    match stored {
        None => Err(unknown(shown)),
        Some(StoredJob::Array(array)) => Ok((
            (*array.spec).clone(),
            JobAttempts {
                job: array.id,
                attempts: 0,
            },
        )),
        Some(StoredJob::Job(job)) => Ok((
            (*job.spec).clone(),
            JobAttempts {
                job: job.id,
                attempts: job.attempts,
            },
        )),
    }
}

/// A job and how often it ran.
pub(crate) struct JobAttempts {
    pub(crate) job: JobId,
    pub(crate) attempts: u32,
}
