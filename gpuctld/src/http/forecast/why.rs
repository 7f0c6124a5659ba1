//! `GET /v1/jobs/{id}/why` and `/v1/starts`: what blocks a job, what would start it, and when it starts.
//!
//! Asked of gsched over a snapshot of the state. Forecast plans are shared ([`super::plan`]); explanations are worked out for each
//! question.

use crate::core_thread::now;
use crate::forecaster::{Forecaster, plans};
use crate::http::app::ApiContext;
use crate::http::error::ApiError;
use crate::http::forecast::plan::{EntryKey, ForecastPlan, Forecasts, WORK};
use crate::http::job::filter::{JobFilter, job_query};
use crate::http::job::name::job_name;
use crate::http::job::row::{Row, View, positions};
use crate::http::node::list::mark_row;
use crate::http::permission::{Caller, Visibility};
use crate::http::query::QueryPairs;
use axum::Json;
use axum::extract::{Path, State as Shared};
use gcore::ctl::State;
use gmodel::{Instant, JobId, NodeId, ReasonCode, RefusalKind, Timestamp, hostlist};
use gpolicy::window::no_start_text;
use gsched::calibration::Plans;
use gsched::forecast::job_starts::RefusingLimit;
use gsched::{Change, Engine, Explanation, Forecast, Snapshot};
use gwire::api::{
    BlockerRow, ChangeRow, ElsewhereRow, IntervalRecord, JobQuery, NearestRow, OtherGpusRow,
    SCHEMA, StartInterval, StartRow, WhyRow,
};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Jobs that one question of why may name: tasks of an array wait for much the same.
const MAX_WHYS: usize = 20;

pub(crate) async fn why(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let name = job_name(&id)?;
    let query = JobQuery {
        state: "all".to_owned(),
        ..JobQuery::default()
    };
    let filter = JobFilter::new(&query)?.with_ids(vec![name]);
    let state = site.core.view().await;
    let asked = entries(
        &state,
        &Visibility::of(&caller, &state),
        &filter,
        now(),
        MAX_WHYS,
    );
    drop(state);
    let plan = site.app.plan_forecasts(&asked, &site.core).await?;
    let _turn = site.app.forecasts().turn().await;
    let forecaster = site.app.forecaster().clone();
    let task = tokio::task::spawn_blocking(move || {
        why_rows(
            &plan,
            &Visibility::of(&caller, &plan.state),
            &filter,
            &forecaster,
        )
    });
    let (rows, more) = task
        .await
        .map_err(|_| ApiError::unavailable("the answer could not be worked out; this is a bug"))?;
    if rows.is_empty() {
        let text = format!(
            "there is no job {id} in the queue that you may see. `gacct -j {id}` says how it ended, if it ran"
        );
        return Err(ApiError::not_found(text).about(RefusalKind::Job, id));
    }
    Ok(Json(json!({"schema": SCHEMA, "jobs": rows, "more": more})))
}

/// What is meant and visible, those that wait first.
fn rows_meant<'s>(view: View<'s>, sight: &Visibility, filter: &JobFilter) -> Vec<Row<'s>> {
    let mut rows = Vec::new();
    filter.each(view, sight, |row| rows.push(row));
    rows.sort_by_key(|row| (!row.is_pending(), row.id()));
    rows
}

/// The entries of the queue among the first rows that are meant.
fn entries(
    state: &State,
    sight: &Visibility,
    filter: &JobFilter,
    now: Timestamp,
    most: usize,
) -> BTreeSet<JobId> {
    let rows = rows_meant(View::new(state, now), sight, filter);
    rows.iter()
        .take(most)
        .filter(|row| row.is_pending())
        .map(|row| entry_of(row).0)
        .collect()
}

/// And how many more are meant.
fn why_rows(
    plan: &ForecastPlan,
    sight: &Visibility,
    filter: &JobFilter,
    forecaster: &Forecaster,
) -> (Vec<WhyRow>, usize) {
    let ForecastPlan {
        state,
        picture,
        now,
        at_limits,
        expected,
    } = plan;
    let (view, now) = (View::new(state, *now), *now);
    let mut rows = rows_meant(view, sight, filter);
    let more = rows.len().saturating_sub(MAX_WHYS);
    rows.truncate(MAX_WHYS);
    let explained = |row: &Row| {
        let mut why = if row.is_pending() && !row.is_held_apart() {
            Engine::default().why_now(picture, entry_of(row).0, WORK)
        } else {
            None
        };
        if let Some(why) = why.as_mut().filter(|why| !why.starts_now) {
            why.forecast = at_limits.of(entry_of(row)).cloned();
            say_without_start(why, picture, now);
        }
        let mut told = why_row(state, view, row, why, now);
        let plans = start_of(expected.of(entry_of(row)), row)
            .zip(told.expected_start)
            .map(|(expected, Instant(at_limits))| Plans {
                expected,
                at_limits,
            });
        told.interval = plans.and_then(|plans| {
            forecaster.interval(&row.spec().partition, row.eligible(), plans, now)
        });
        told
    };
    (rows.iter().map(explained).collect(), more)
}

/// Adds to the last blocker that the job has no start in its reservation.
fn say_without_start(why: &mut Explanation, picture: &Snapshot, now: Timestamp) {
    let entry = picture.pending.iter().find(|job| job.id == why.job);
    let none = entry
        .filter(|_| {
            why.forecast
                .as_ref()
                .is_some_and(|told| told.start.is_none())
        })
        .and_then(|job| no_start_text(job, &picture.policy, now));
    if let Some((last, none)) = why.blockers.last_mut().zip(none) {
        last.text.push_str(&format!("; {none}"));
    }
}

/// By what a row waits in the queue: a task without a record of its own with its array.
fn entry_of(row: &Row) -> EntryKey {
    match row {
        // The components of a job of unlike parts wait as one entry, the leader's.
        Row::Job(job) => (job.spec.part.map_or(job.id, |part| part.leader), false),
        Row::Tasks { array, .. } | Row::Task { array, .. } => (array.id, true),
    }
}

/// The forecast of an entry, where it is about a row: an array's is about its next task, and not about tasks with a hold.
fn forecast_of<'f>(forecast: Option<&'f Forecast>, row: &Row) -> Option<&'f Forecast> {
    let is_next = match row {
        Row::Task {
            array,
            position,
            alike,
        } => positions(array, *alike).first() == Some(*position),
        Row::Job(_) | Row::Tasks { .. } => true,
    };
    forecast.filter(|_| is_next && row.holds().is_empty())
}

fn start_of(forecast: Option<&Forecast>, row: &Row) -> Option<Timestamp> {
    forecast_of(forecast, row)?.start
}

/// In words, for a sentence that goes on; instants are RFC 3339.
pub(crate) fn interval_text(interval: &StartInterval) -> String {
    let (Some(earliest), Some(latest)) = (interval.earliest, interval.latest) else {
        return String::new();
    };
    let record = interval
        .record
        .text()
        .map(|text| format!(": {text}"))
        .unwrap_or_default();
    format!(
        "; nine times in ten between {} and {}{record}",
        earliest.0, latest.0
    )
}

fn why_row(
    state: &State,
    view: View,
    row: &Row,
    why: Option<Explanation>,
    now: Timestamp,
) -> WhyRow {
    let mut told = WhyRow {
        id: row.id(),
        shown_id: row.shown_id(),
        state: row.state(),
        reason: row.reason_code(view),
        reason_text: row.reason_text(view).into_owned(),
        end_text: row.end_text().to_owned(),
        holds: row.holds().iter().map(mark_row).collect(),
        ..WhyRow::default()
    };
    if let Some(why) = why {
        told.starts_now = why.starts_now;
        told.partition.clone_from(&why.partition);
        told.elsewhere = why.elsewhere.iter().map(elsewhere_row).collect();
        told.alternative.clone_from(&why.alternative);
        told.alternatives = why
            .alternatives
            .iter()
            .map(|one| OtherGpusRow {
                gpus: one.gpus.clone(),
                blockers: rows_of(&one.blockers),
            })
            .collect();
        told.ahead = why.ahead;
        told.blockers = blocker_rows(&why);
        told.borrows.clone_from(&why.borrows);
        told.changes = why
            .changes
            .iter()
            .map(|change| change_row(change, now))
            .collect();
        let foretold = why
            .forecast
            .as_ref()
            .and_then(|one| Some((start_of(Some(one), row)?, one)));
        if let Some((start, one)) = foretold {
            told.expected_start = Some(Instant(start));
            told.expected_partition.clone_from(&one.partition);
            told.expected_nodes = names(state, &one.nodes);
        }
    }
    told
}

fn elsewhere_row(one: &gsched::OtherPartition) -> ElsewhereRow {
    ElsewhereRow {
        partition: one.partition.clone(),
        alternative: one.alternative.clone(),
        ahead: one.ahead,
        blockers: rows_of(&one.blockers),
    }
}

pub(crate) fn blocker_rows(why: &Explanation) -> Vec<BlockerRow> {
    rows_of(&why.blockers)
}

fn rows_of(blockers: &[gsched::Blocker]) -> Vec<BlockerRow> {
    let nearest = |near: &gsched::why::answer::NearestNode| NearestRow {
        node: near.node.clone(),
        nodes_free: near.nodes_free,
        nodes_needed: near.nodes_needed,
        gpus_free: near.gpus_free,
        gpus_needed: near.gpus_needed,
        cpus_free: near.cpus_free,
        cpus_needed: near.cpus_needed,
        mem_free_bytes: near.mem_free_bytes,
        mem_needed_bytes: near.mem_needed_bytes,
        next_change: near.next_change.map(Instant),
    };
    let row = |blocker: &gsched::Blocker| BlockerRow {
        code: blocker.code,
        text: blocker_text(blocker),
        until: blocker.until.map(Instant),
        may_preempt_from: blocker.may_preempt_from.map(Instant),
        cut_from: blocker.cut_from.map(Instant),
        nearest: blocker.nearest.as_ref().map(nearest),
    };
    blockers.iter().map(row).collect()
}

fn blocker_text(blocker: &gsched::Blocker) -> String {
    let holder = blocker.holder.map(|holder| format!("; {}", holder.text()));
    format!("{}{}", blocker.text, holder.unwrap_or_default())
}

pub(crate) fn change_row(change: &Change, now: Timestamp) -> ChangeRow {
    ChangeRow {
        option: change.option.clone(),
        now: change.starts <= now,
        start: Some(Instant(change.starts)),
        loss: f64::from(change.loss_milli) / 1000.0,
    }
}

pub(crate) fn names(state: &State, nodes: &[NodeId]) -> String {
    let mut names: Vec<&str> = nodes
        .iter()
        .filter_map(|id| state.nodes.get(*id))
        .map(|node| node.name.as_str())
        .collect();
    names.sort_by(|a, b| hostlist::natural_order(a, b));
    hostlist::compress(names)
}

pub(crate) async fn starts(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
    pairs: QueryPairs,
) -> Result<Json<Value>, ApiError> {
    let query = job_query(pairs)?;
    let filter = JobFilter::new(&query)?;
    let state = site.core.view().await;
    let asked = entries(
        &state,
        &Visibility::of(&caller, &state),
        &filter,
        now(),
        usize::MAX,
    );
    drop(state);
    let plan = site.app.plan_forecasts(&asked, &site.core).await?;
    let forecaster = site.app.forecaster().clone();
    let task = tokio::task::spawn_blocking(move || {
        start_rows(
            &plan,
            &Visibility::of(&caller, &plan.state),
            &filter,
            &forecaster,
        )
    });
    let (rows, records) = task
        .await
        .map_err(|_| ApiError::unavailable("the starts could not be worked out; this is a bug"))?;
    Ok(Json(
        json!({"schema": SCHEMA, "jobs": rows, "records": records}),
    ))
}

/// The expected start of one job, where one is known.
pub(crate) async fn expected_start(
    site: &ApiContext,
    job: JobId,
) -> Result<Option<Instant>, ApiError> {
    let plan = site
        .app
        .plan_forecasts(&BTreeSet::from([job]), &site.core)
        .await?;
    let start = |forecasts: &Forecasts| forecasts.of((job, false)).and_then(|one| one.start);
    let expected = plausible(start(&plan.expected), start(&plan.at_limits), plan.now);
    Ok(expected.map(Instant))
}

/// The expected start. A job that could start now has started: passes go by time limits, before a maintenance too.
fn plausible(
    expected: Option<Timestamp>,
    at_limits: Option<Timestamp>,
    now: Timestamp,
) -> Option<Timestamp> {
    if expected? <= now {
        at_limits
    } else {
        expected
    }
}

/// How intervals of the rows' partitions turned out.
fn interval_records(rows: &[Row], forecaster: &Forecaster) -> Vec<IntervalRecord> {
    let partitions: BTreeSet<&str> = rows
        .iter()
        .map(|row| row.spec().partition.as_str())
        .collect();
    let records = partitions.into_iter().map(|name| forecaster.record(name));
    records.filter(|record| record.intervals > 0).collect()
}

type StartTable = (Vec<StartRow>, Vec<IntervalRecord>);

fn start_rows(
    plan: &ForecastPlan,
    sight: &Visibility,
    filter: &JobFilter,
    forecaster: &Forecaster,
) -> StartTable {
    let ForecastPlan {
        state,
        now,
        at_limits,
        expected,
        ..
    } = plan;
    let (view, now) = (View::new(state, *now), *now);
    let mut rows = rows_meant(view, sight, filter);
    rows.retain(Row::is_pending);
    rows.sort_by_key(|row| at_limits.place(entry_of(row)).unwrap_or(usize::MAX));
    let told = |row: &Row| {
        let one = at_limits.of(entry_of(row));
        let in_order = |expected: Option<Timestamp>, at_limits: Option<Timestamp>| {
            let plans = plans(expected, at_limits, now)?;
            forecaster.interval(&row.spec().partition, row.eligible(), plans, now)
        };
        let (at_limits, expected) = (
            start_of(one, row),
            start_of(expected.of(entry_of(row)), row),
        );
        let interval = in_order(expected, at_limits);
        let expected = plausible(expected, at_limits, now);
        let at_limits = at_limits.map(Instant);
        // As squeue has it: a job that only waits for its time.
        let begins =
            (row.reason_code(view) == ReasonCode::BeginTime).then(|| Instant(row.eligible()));
        StartRow {
            id: row.id(),
            shown_id: row.shown_id(),
            name: row.spec().name.clone(),
            user: row.spec().user.name.clone(),
            partition: row.spec().partition.clone(),
            nodes: row.nodes(view),
            reason: row.reason_code(view),
            ahead: one.map_or(0, |one| one.ahead),
            earliest: interval.as_ref().and_then(|one| one.earliest).or(begins),
            expected: expected.map(Instant).or(begins),
            latest: interval.as_ref().map_or(at_limits, |one| one.latest),
            at_limits,
            nodelist: one
                .filter(|_| !matches!(row, Row::Task { .. }))
                .map(|one| names(state, &one.nodes))
                .unwrap_or_default(),
            explanation: forecast_of(one, row)
                .and_then(|one| one.limit.as_ref())
                .map(RefusingLimit::text),
        }
    };
    let records = interval_records(&rows, forecaster);
    (rows.iter().map(told).collect(), records)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_expected_start_is_now() {
        let at = |secs: i64| Timestamp::from_secs(1000 + secs);
        let told = |expected: Option<i64>, at_limits: Option<i64>| {
            let (expected, at_limits) = (expected.map(at), at_limits.map(at));
            let secs = |at: Timestamp| at.since_secs(Timestamp::from_secs(1000));
            let plans = plans(expected, at_limits, at_now())
                .map(|plans| (secs(plans.expected), secs(plans.at_limits)));
            (plausible(expected, at_limits, at_now()).map(secs), plans)
        };
        fn at_now() -> Timestamp {
            Timestamp::from_secs(1000)
        }
        assert_eq!(told(Some(50), Some(90)), (Some(50), Some((50, 90))));
        assert_eq!(
            told(Some(0), Some(90)),
            (Some(90), Some((0, 90))),
            "a maintenance begins before its limit ends"
        );
        assert_eq!(
            told(Some(0), None),
            (None, None),
            "a cap counts time limits"
        );
        assert_eq!(
            told(Some(50), None),
            (Some(50), Some((50, 50))),
            "who is before it has no limit"
        );
        assert_eq!(told(Some(0), Some(0)), (Some(0), Some((0, 0))));
        assert_eq!(told(None, Some(90)), (None, None));
    }
}
