//! `GET /v1/runs` and `/v1/report`: accounting, answered by the database's readers.
//!
//! Owns the questions, what of others' usage a reader sees, and the rows of what waits, which the state has; sums and
//! rows of what ran are the store's.

use super::error::ApiError;
use super::filter::{JobFilter, words_of_ids};
use super::json_row::chosen;
use super::lookup::job_names;
use super::permission::{Caller, Sight};
use super::query::{Pairs, job_state, words};
use super::row::{Alike, Row, RowKey, View, positions};
use super::run_column::{COLUMNS, RunColumn};
use super::run_list::{Moment, RunBody, RunList, Shown};
use super::steps::StepsOf;
use super::{Site, now};
use crate::store::reader::{GROUPS, RunFields, RunKey, StoredJob};
use axum::Json;
use axum::body::Body;
use axum::extract::State as Shared;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use gmodel::suggest::did_you_mean;
use gmodel::{ExitCode, Instant, JobId, JobState, Timestamp};
use gwire::api::{JobQuery, ReportRow, RunDetail, RunQuery, RunRow, SCHEMA};
use serde::Serialize;

const KEYS: [&str; 16] = [
    "job",
    "user",
    "account",
    "partition",
    "qos",
    "name",
    "state",
    "nodelist",
    "from",
    "to",
    "attempts",
    "steps",
    "detail",
    "limit",
    "columns",
    "bare",
];
/// Rows of one answer, unless fewer are asked for.
const MAX_ROWS: u32 = 1_000_000;

#[derive(Serialize)]
pub(super) struct Report {
    schema: u32,
    rows: Vec<ReportRow>,
}

pub(super) async fn runs(
    caller: Caller,
    Shared(site): Shared<Site>,
    pairs: Pairs,
) -> Result<Response, ApiError> {
    let mut query = run_query(&pairs.only(&KEYS)?)?;
    let columns = chosen(COLUMNS, &words(&query.columns))?;
    let state = site.core.view().await;
    let sight = Sight::of(&caller, &state);
    if !sight.sees_all() && sight.accounts().is_empty() {
        // Asked of the database already: the limit then counts rows that are seen.
        query.user = only_own(&query.user, &caller.actor.user)?;
    }
    let now = now();
    let moment = Moment {
        ranks: site.app.ranks(&state, now),
        state,
        now,
    };
    let filter = waiting(&query)?;
    let found = site
        .core
        .reader()
        .found_runs(query.clone(), filter.is_some())
        .await?;
    let waiting = filter
        .map(|filter| waiting_keys(&filter, &query, moment.view(), &sight))
        .unwrap_or_default();
    let shown = shown(&query, columns, sight);
    let most = query.limit.unwrap_or(MAX_ROWS) as usize;
    let body = RunBody::begin(RunList::new(site, moment, shown, found, waiting, most)).await?;
    Ok(([(CONTENT_TYPE, "application/json")], Body::new(body)).into_response())
}

/// What the rows show, and what must be read for it.
fn shown(query: &RunQuery, columns: Vec<&'static RunColumn>, sight: Sight) -> Shown {
    let chosen = !query.columns.is_empty();
    let has = |key: &str| chosen && columns.iter().any(|column| column.key == key);
    let (steps, detail) = (query.steps || has("steps"), query.detail || has("detail"));
    let mut keys: Vec<&str> = columns.iter().map(|column| column.key).collect();
    if !sight.sees_all() {
        keys.extend(["user", "account"]);
    }
    // Steps show much of their job.
    let all = !chosen || steps || detail;
    let fields = RunFields::of((!all).then_some(&keys), query.attempts).into();
    Shown {
        columns,
        bare: query.bare,
        steps,
        detail,
        fields,
        sight,
    }
}

fn waiting_keys(
    filter: &JobFilter,
    query: &RunQuery,
    view: View,
    sight: &Sight,
) -> Vec<(RunKey, RowKey)> {
    let until = query.to.map_or(Timestamp(i64::MAX), |to| to.0);
    let mut keys = Vec::new();
    filter.each(view, sight, |row| {
        if row.submitted() <= until && !(query.attempts && row.attempts() > 0) {
            // Tasks that wait together come behind those of their array that ran.
            let id = match row {
                Row::Tasks { array, alike } => {
                    array.task_id(positions(array, alike).last().unwrap_or(0)).0
                }
                _ => row.id(),
            };
            keys.push((
                RunKey {
                    id,
                    attempt: Some(row.attempts()),
                },
                row.key(),
            ));
        }
    });
    keys
}

/// The jobs that wait, if a question means them; they never were on a node.
fn waiting(query: &RunQuery) -> Result<Option<JobFilter>, ApiError> {
    let states = words(&query.state)
        .iter()
        .map(|word| job_state(word))
        .collect::<Result<Vec<_>, _>>()?;
    if !query.nodelist.is_empty() || !(states.is_empty() || states.contains(&JobState::Pending)) {
        return Ok(None);
    }
    let filter = JobFilter::new(&JobQuery {
        job: query.job.clone(),
        user: query.user.clone(),
        partition: query.partition.clone(),
        account: query.account.clone(),
        qos: query.qos.clone(),
        name: query.name.clone(),
        state: JobState::Pending.long().to_owned(),
        ..JobQuery::default()
    })?;
    Ok(Some(filter))
}

/// A job that waits, or an array's tasks that do, with what was asked for.
pub(super) fn waiting_row(row: &Row, view: View) -> RunRow {
    let spec = row.spec();
    RunRow {
        id: row.id(),
        shown_id: row.shown_id(),
        attempt: row.attempts(),
        array_id: row.array_id(),
        array_index: row.array_index(),
        array_tasks: row.array_tasks(),
        name: spec.name.clone(),
        user: spec.user.name.clone(),
        account: spec.account.clone(),
        partition: spec.partition.clone(),
        qos: spec.qos.clone(),
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
        work_dir: spec.launch.work_dir.clone(),
        comment: spec.comment.clone(),
        tags: spec.tags.clone(),
        ..RunRow::default()
    }
}

pub(super) fn detail(row: &Row, view: View) -> Box<RunDetail> {
    let spec = row.spec();
    Box::new(RunDetail {
        cluster: view.state.config.name.clone(),
        uid: spec.user.uid,
        gid: spec.user.gid,
        eligible_time: row.known_eligible(),
        priority: match row {
            Row::Job(job) if !row.is_pending() => job.priority,
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
pub(super) async fn add_steps(
    site: &Site,
    rows: &mut [RunRow],
    now: Timestamp,
) -> Result<(), ApiError> {
    let stored = site
        .core
        .reader()
        .steps(rows.iter().map(|row| JobId(row.id)).collect())
        .await?;
    for (row, stored) in rows.iter_mut().zip(&stored) {
        let of = StepsOf {
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
        };
        row.steps = of.rows(stored, now);
    }
    Ok(())
}

/// Details of what ran or is over, which the database has.
pub(super) async fn add_details(
    site: &Site,
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
                    alike: Alike::Cancelled,
                },
                view,
            )),
            None => None,
        };
        let gruns = row.steps.iter().skip(1).map(|step| step.exit_code);
        let highest = gruns
            .max_by_key(|exit| (exit.code, exit.signal))
            .unwrap_or_default();
        row.detail
            .iter_mut()
            .for_each(|detail| detail.derived_exit_code = highest);
    }
    Ok(())
}

fn run_query(pairs: &Pairs) -> Result<RunQuery, ApiError> {
    job_names(&words_of_ids(pairs.text("job")))?;
    for word in words(pairs.text("state")) {
        job_state(&word)?;
    }
    let text = |key| pairs.text(key).to_owned();
    let (from, to) = (pairs.instant("from")?, pairs.instant("to")?);
    in_order(from, to)?;
    Ok(RunQuery {
        job: text("job"),
        user: text("user"),
        account: text("account"),
        partition: text("partition"),
        qos: text("qos"),
        name: text("name"),
        state: text("state"),
        nodelist: text("nodelist"),
        from: from.map(Instant),
        to: to.map(Instant),
        attempts: pairs.flag("attempts")?,
        steps: pairs.flag("steps")?,
        detail: pairs.flag("detail")?,
        limit: Some(pairs.number("limit")?.unwrap_or(MAX_ROWS).min(MAX_ROWS)),
        columns: text("columns"),
        bare: pairs.flag("bare")?,
    })
}

pub(super) fn in_order(from: Option<Timestamp>, to: Option<Timestamp>) -> Result<(), ApiError> {
    match (from, to) {
        (Some(from), Some(to)) if from >= to => Err(ApiError::invalid(format!(
            "from = {from} is not before to = {to}"
        ))),
        _ => Ok(()),
    }
}

fn only_own(asked: &str, user: &str) -> Result<String, ApiError> {
    if asked.is_empty() || words(asked).iter().any(|name| name == user) {
        return Ok(user.to_owned());
    }
    Err(ApiError::denied(format!(
        "what {asked} ran is private here; you see what {user} ran"
    )))
}

/// Usage of a time, in groups. Without `from` the present month, without `to` until now.
pub(super) async fn report(
    caller: Caller,
    Shared(site): Shared<Site>,
    pairs: Pairs,
) -> Result<Json<Report>, ApiError> {
    let pairs = pairs.only(&["by", "from", "to"])?;
    let by = groups(&pairs)?;
    let now = now();
    let to = pairs.instant("to")?.unwrap_or(now);
    let from = pairs.instant("from")?.unwrap_or_else(|| month_of(to));
    in_order(Some(from), Some(to))?;
    let state = site.core.view().await;
    let sight = Sight::of(&caller, &state);
    let mut asked = by.clone();
    if !sight.sees_all() {
        // What may be seen goes by user and account: asked for too, and summed up again below.
        for needed in ["user", "account"] {
            if !asked.iter().any(|group| group == needed) {
                asked.push(needed.to_owned());
            }
        }
    }
    let rows = site
        .core
        .reader()
        .report(
            asked.clone(),
            from,
            to,
            now,
            state.config.scheduler.prices.clone(),
        )
        .await?;
    let rows = if sight.sees_all() {
        rows
    } else {
        seen(&sight, &asked, by.len(), rows)
    };
    Ok(Json(Report {
        schema: SCHEMA,
        rows,
    }))
}

fn groups(pairs: &Pairs) -> Result<Vec<String>, ApiError> {
    let by = words(pairs.text("by"));
    if let Some(odd) = by.iter().find(|group| !GROUPS.contains(&group.as_str())) {
        let guess = did_you_mean(odd, GROUPS);
        return Err(ApiError::invalid(format!(
            "nothing can be grouped by {odd:?}.{guess} Groups: {}",
            GROUPS.join(", ")
        )));
    }
    Ok(if by.is_empty() {
        vec!["account".to_owned()]
    } else {
        by
    })
}

/// First instant of a moment's month, UTC.
pub(super) fn month_of(at: Timestamp) -> Timestamp {
    let (year, month, _) = gmodel::time::civil_from_days(at.secs().div_euclid(86_400));
    Timestamp::from_secs(gmodel::time::days_from_civil(year, month, 1) * 86_400)
}

/// The rows a reader may see, summed over the groups that only we asked for.
fn seen(sight: &Sight, asked: &[String], groups: usize, rows: Vec<ReportRow>) -> Vec<ReportRow> {
    let position = |name: &str| asked.iter().position(|group| group == name).unwrap_or(0);
    let (user, account) = (position("user"), position("account"));
    let value = |row: &ReportRow, at: usize| row.group.get(at).cloned().unwrap_or_default();
    let mut sums: Vec<ReportRow> = Vec::new();
    for mut row in rows {
        if !sight.sees_named(&value(&row, user), &value(&row, account)) {
            continue;
        }
        row.group.truncate(groups);
        match sums.iter_mut().find(|sum| sum.group == row.group) {
            None => sums.push(row),
            Some(sum) => sum.add(&row),
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_month_begins_on_its_first_day() {
        let at = gmodel::time::parse_rfc3339("2026-11-20T09:05:27Z").unwrap();
        assert_eq!(month_of(at).to_string(), "2026-11-01T00:00:00Z");
    }
}
