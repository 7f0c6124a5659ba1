//! `GET /v1/runs` and `/v1/report`: accounting, answered by the database's readers.
//!
//! Owns the questions, what of others' usage a reader sees, and the rows of what waits, which the state has; sums and
//! rows of what ran are the store's.

use crate::core_thread::now;
use crate::http::accounting::run_column::{COLUMNS, RunColumn};
use crate::http::accounting::run_list::{RunList, RunListOptions, ViewMoment};
use crate::http::app::ApiContext;
use crate::http::error::ApiError;
use crate::http::job::filter::{JobFilter, words_of_ids};
use crate::http::job::name::job_names;
use crate::http::job::row::{Row, RowKey, View, positions};
use crate::http::json_row::chosen;
use crate::http::period::in_order;
use crate::http::permission::{Caller, Visibility};
use crate::http::query::{QueryPairs, job_state, words};
use crate::http::row_pieces::RowBody;
use crate::store::reader::{RunFields, RunKey};
use axum::body::Body;
use axum::extract::State as Shared;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use gmodel::{Instant, JobState, Timestamp};
use gwire::api::{JobQuery, RunQuery};

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

pub(crate) async fn runs(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
    pairs: QueryPairs,
) -> Result<Response, ApiError> {
    let mut query = run_query(&pairs.only(&KEYS)?)?;
    let columns = chosen(&COLUMNS, &words(&query.columns))?;
    let state = site.core.view().await;
    let sight = Visibility::of(&caller, &state);
    if !sight.sees_all() && sight.accounts().is_empty() {
        // Asked of the database already: the limit then counts rows that are seen.
        query.user = only_own(&query.user, &caller.actor.user)?;
    }
    let now = now();
    let moment = ViewMoment {
        ranks: site.app.ranks.ranks_of(&state, now),
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
    let body = RowBody::begin(RunList::new(site, moment, shown, found, waiting, most)).await?;
    Ok(([(CONTENT_TYPE, "application/json")], Body::new(body)).into_response())
}

/// What the rows show, and what must be read for it.
fn shown(query: &RunQuery, columns: Vec<&'static RunColumn>, sight: Visibility) -> RunListOptions {
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
    RunListOptions {
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
    sight: &Visibility,
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

fn run_query(pairs: &QueryPairs) -> Result<RunQuery, ApiError> {
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

fn only_own(asked: &str, user: &str) -> Result<String, ApiError> {
    if asked.is_empty() || words(asked).iter().any(|name| name == user) {
        return Ok(user.to_owned());
    }
    Err(ApiError::denied(format!(
        "what {asked} ran is private here; you see what {user} ran"
    )))
}
