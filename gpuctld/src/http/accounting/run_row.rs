//! Rows of accounting that the state or the database fills in: what waits, details, steps.

use crate::http::app::ApiContext;
use crate::http::error::ApiError;
use crate::http::job::row::{Row, TaskGroup, View};
use crate::http::step::list::{BATCH, StepSource};
use crate::store::reader::{StoredJob, requested};
use gmodel::{ExitCode, Instant, JobId, JobState, Timestamp};
use gwire::api::{RunDetail, RunRow};

/// A job that waits, or an array's tasks that do, with what was asked for.
pub(crate) fn waiting_row(row: &Row, view: View) -> RunRow {
    let spec = row.spec();
    RunRow {
        id: row.id(),
        shown_id: row.shown_id(),
        attempt: row.attempts(),
        array_id: row.array_id(),
        array_index: row.array_index(),
        array_tasks: row.array_tasks(),
        state: JobState::Pending,
        submit_time: Some(Instant(row.submitted())),
        time_limit_secs: row.limit_secs(view),
        nodes: row.nodes(view),
        cpus: row.cpus(view),
        mem_bytes: row.mem_total_bytes(view),
        gpus: spec
            .request
            .gpus
            .as_ref()
            .filter(|ask| !ask.is_none())
            .map(ToString::to_string)
            .unwrap_or_default(),
        gpu_count: row.gpu_milli(view) as f64 / 1000.0,
        ..requested(spec)
    }
}

pub(crate) fn detail(row: &Row, view: View) -> Box<RunDetail> {
    let spec = row.spec();
    Box::new(RunDetail {
        cluster: view.state.config.name.clone(),
        uid: spec.user.uid,
        gid: spec.user.gid,
        eligible_time: row.known_eligible(),
        priority: match row {
            Row::Job(job) if !row.is_pending() => job.past.priority,
            _ => row
                .is_pending()
                .then(|| i64::try_from(row.priority(view)).unwrap_or(i64::MAX)),
        },
        req_nodes: row.nodes(view),
        req_cpus: row.cpus(view),
        req_mem_bytes: row.mem_total_bytes(view),
        req_gpus: row.gpu_milli(view) as f64 / 1000.0,
        derived_exit_code: ExitCode::SUCCESS,
        reservation: row.reservation().unwrap_or_default().to_owned(),
        constraint: spec.request.constraint.clone().unwrap_or_default(),
    })
}

/// The steps of what ran, from the history.
pub(crate) async fn add_steps(
    site: &ApiContext,
    rows: &mut [RunRow],
    now: Timestamp,
) -> Result<(), ApiError> {
    let stored = site
        .core
        .reader()
        .steps(rows.iter().map(|row| JobId(row.id)).collect())
        .await?;
    let jobs = site
        .core
        .reader()
        .jobs(rows.iter().map(|row| JobId(row.id)).collect())
        .await?;
    for ((row, stored), job) in rows.iter_mut().zip(&stored).zip(&jobs) {
        let of = StepSource {
            job: row.id,
            shown_id: &row.shown_id,
            user: &row.user,
            account: &row.account,
            partition: &row.partition,
            qos: &row.qos,
            attempt: row.attempt,
            state: row.state,
            exit: row.exit_code,
            nodelist: &row.nodelist,
            started: row.start_time.map(|at| at.0),
            ended: row.end_time.map(|at| at.0),
            used: row
                .end_time
                .map(|_| (row.cpu_time_secs, row.peak_memory_bytes)),
            live: None,
            has_script: !matches!(job, Some(StoredJob::Job(job)) if !job.spec.has_script()),
        };
        row.steps = of.rows(stored, now);
    }
    Ok(())
}

/// Details of what ran or is over, which the database has.
pub(crate) async fn add_details(
    site: &ApiContext,
    rows: &mut [RunRow],
    view: View<'_>,
) -> Result<(), ApiError> {
    let ids = rows
        .iter()
        .filter(|row| row.detail.is_none())
        .map(|row| JobId(row.id))
        .collect();
    let jobs = site.core.reader().jobs(ids).await?;
    for (row, job) in rows
        .iter_mut()
        .filter(|row| row.detail.is_none())
        .zip(&jobs)
    {
        row.detail = match job {
            Some(StoredJob::Job(job)) => Some(detail(&Row::Job(job), view)),
            Some(StoredJob::Array(array)) => Some(detail(
                &Row::Tasks {
                    array,
                    alike: TaskGroup::Cancelled,
                },
                view,
            )),
            None => None,
        };
        let gruns = row
            .steps
            .iter()
            .filter(|step| step.shown_id.rsplit('.').next() != Some(BATCH))
            .map(|step| step.exit_code);
        let highest = gruns
            .max_by_key(|exit| (exit.code, exit.signal))
            .unwrap_or_default();
        row.detail
            .iter_mut()
            .for_each(|detail| detail.derived_exit_code = highest);
    }
    Ok(())
}
