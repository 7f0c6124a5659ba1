//! `GET /v1/jobs/{id}/why` and `/v1/starts`: what stands in a job's way, what would start it, and when it starts.
//!
//! Asked of gsched over a picture of the state, one question at a time: a long queue costs seconds of one processor, and
//! who asks often must not slow down the others.

use super::error::ApiError;
use super::filter::{JobFilter, job_query};
use super::lookup::job_name;
use super::nodes::mark_row;
use super::permission::{Caller, Sight};
use super::query::Pairs;
use super::row::{Row, View};
use super::{Site, now};
use axum::Json;
use axum::extract::{Path, State as Shared};
use gcore::ctl::{State, snapshot};
use gmodel::{Instant, JobId, JobState, NodeId, ReasonCode, Timestamp, hostlist};
use gsched::{Change, Engine, Forecast, Snapshot, Why, WorkBudget};
use gwire::api::{BlockerRow, ChangeRow, JobQuery, NearestRow, RunQuery, RunRow, SCHEMA, StartRow, WhyRow};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Jobs that one question of why may name: tasks of an array wait for much the same.
const MAX_WHYS: usize = 20;
/// Runs of late that say how far before their limits runs end.
const RUNS_OF_LATE: u32 = 2_000;
/// Fewer of a partition say nothing.
const FEWEST_RUNS: usize = 20;
/// Steps of work of one question.
const WORK: WorkBudget = WorkBudget { node_probes: 200_000_000, starts: usize::MAX };

pub(super) async fn why(caller: Caller, Shared(site): Shared<Site>, Path(id): Path<String>) -> Result<Json<Value>, ApiError> {
    let name = job_name(&id)?;
    let state = site.core.view().await;
    let query = JobQuery { state: "all".to_owned(), ..JobQuery::default() };
    let filter = JobFilter::new(&query)?.with_ids(vec![name]);
    let _turn = site.app.outlook_turn().await;
    let task = tokio::task::spawn_blocking(move || why_rows(&state, &Sight::of(&caller, &state), &filter, now()));
    let rows = task.await.map_err(|_| ApiError::unavailable("the answer could not be worked out; this is a bug"))?;
    if rows.is_empty() {
        let text = format!("there is no job {id} in the queue that you may see. `gacct -j {id}` says how it ended, if it ran");
        return Err(ApiError::not_found(text));
    }
    Ok(Json(json!({"schema": SCHEMA, "jobs": rows})))
}

fn why_rows(state: &State, sight: &Sight, filter: &JobFilter, now: Timestamp) -> Vec<WhyRow> {
    let view = View::new(state, now);
    let mut rows = Vec::new();
    filter.each(view, sight, |row| rows.push(row));
    rows.sort_by_key(|row| (!row.is_pending(), row.id()));
    rows.truncate(MAX_WHYS);
    let picture = rows.iter().any(|row| row.is_pending()).then(|| snapshot(state, now));
    let explained = |row: &Row| {
        let why = picture.as_ref().filter(|_| row.is_pending());
        why_row(state, view, row, why.and_then(|picture| Engine::default().why(picture, JobId(row.id()), WORK)), now)
    };
    rows.iter().map(explained).collect()
}

fn why_row(state: &State, view: View, row: &Row, why: Option<Why>, now: Timestamp) -> WhyRow {
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
        told.ahead = why.ahead;
        told.blockers = blocker_rows(&why);
        told.changes = why.changes.iter().map(|change| change_row(change, now)).collect();
        // Whom others make room for starts when they are gone.
        let forecast = why.forecast.filter(|_| told.reason != ReasonCode::Preempting);
        if let Some(Forecast { start: Some(start), nodes, .. }) = &forecast {
            told.expected_start = Some(Instant(*start));
            told.expected_nodes = names(state, nodes);
        }
    }
    told
}

pub(super) fn blocker_rows(why: &Why) -> Vec<BlockerRow> {
    let nearest = |near: &gsched::why::Nearest| NearestRow {
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
        text: blocker.text.clone(),
        until: blocker.until.map(Instant),
        nearest: blocker.nearest.as_ref().map(nearest),
    };
    why.blockers.iter().map(row).collect()
}

pub(super) fn change_row(change: &Change, now: Timestamp) -> ChangeRow {
    ChangeRow {
        option: change.option.clone(),
        now: change.starts <= now,
        start: Some(Instant(change.starts)),
        loss: f64::from(change.loss_milli) / 1000.0,
    }
}

pub(super) fn names(state: &State, nodes: &[NodeId]) -> String {
    let mut names: Vec<&str> = nodes.iter().filter_map(|id| state.nodes.get(*id)).map(|node| node.name.as_str()).collect();
    names.sort_by(|a, b| hostlist::natural_order(a, b));
    hostlist::compress(names)
}

pub(super) async fn starts(caller: Caller, Shared(site): Shared<Site>, pairs: Pairs) -> Result<Json<Value>, ApiError> {
    let query = job_query(pairs)?;
    let filter = JobFilter::new(&query)?;
    let late = RunQuery { state: "COMPLETED,FAILED,TIMEOUT".into(), limit: Some(RUNS_OF_LATE), ..RunQuery::default() };
    let late = site.core.reader().runs(late, now()).await?;
    let state = site.core.view().await;
    let _turn = site.app.outlook_turn().await;
    let task = tokio::task::spawn_blocking(move || start_rows(&state, &Sight::of(&caller, &state), &filter, &late, now()));
    let rows = task.await.map_err(|_| ApiError::unavailable("the starts could not be worked out; this is a bug"))?;
    Ok(Json(json!({"schema": SCHEMA, "jobs": rows})))
}

fn start_rows(state: &State, sight: &Sight, filter: &JobFilter, late: &[RunRow], now: Timestamp) -> Vec<StartRow> {
    let view = View::new(state, now);
    let mut rows = Vec::new();
    filter.each(view, sight, |row| rows.push(row));
    rows.retain(Row::is_pending);
    let ids: BTreeSet<JobId> = rows.iter().map(|row| JobId(row.id())).collect();
    let picture = snapshot(state, now);
    let latest = Engine::default().forecast(&picture, &ids, WORK);
    let shares = early_shares(late);
    let earliest: BTreeMap<JobId, Timestamp> = match shares.is_empty() {
        true => BTreeMap::new(),
        false => {
            let early = hurried(picture, &shares, now);
            let told = Engine::default().forecast(&early, &ids, WORK);
            told.into_iter().filter_map(|one| Some((one.job, one.start?))).collect()
        }
    };
    let places: BTreeMap<JobId, usize> = latest.iter().enumerate().map(|(place, one)| (one.job, place)).collect();
    rows.sort_by_key(|row| places.get(&JobId(row.id())).copied().unwrap_or(usize::MAX));
    let told = |row: &Row| {
        let id = JobId(row.id());
        let one = places.get(&id).map(|place| &latest[*place]);
        let at_latest = one.and_then(|one| one.start);
        let has_history = shares.contains_key(&row.spec().partition);
        StartRow {
            id: row.id(),
            shown_id: row.shown_id(),
            name: row.spec().name.clone(),
            user: row.spec().user.name.clone(),
            partition: row.spec().partition.clone(),
            nodes: row.nodes(view),
            reason: row.reason_code(view),
            ahead: one.map_or(0, |one| one.ahead),
            earliest: earliest.get(&id).filter(|_| has_history).map(|at| Instant(at_latest.map_or(*at, |latest| latest.min(*at)))),
            latest: at_latest.map(Instant),
            nodelist: one.map(|one| names(state, &one.nodes)).unwrap_or_default(),
        }
    };
    rows.iter().map(told).collect()
}

/// Of each partition, thousandths of their limits after which the earliest tenth of the runs of late was over.
fn early_shares(late: &[RunRow]) -> BTreeMap<String, u32> {
    let mut shares: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for run in late.iter().filter(|run| run.state.is_final() && run.state != JobState::Cancelled) {
        let Some(limit) = run.time_limit_secs.filter(|limit| *limit > 0 && *limit != u32::MAX) else { continue };
        let milli = run.elapsed_secs.max(0).saturating_mul(1000) / i64::from(limit);
        shares.entry(run.partition.clone()).or_default().push(u32::try_from(milli).unwrap_or(1000).min(1000));
    }
    shares.retain(|_, all| all.len() >= FEWEST_RUNS);
    let tenth = |(name, mut all): (String, Vec<u32>)| {
        all.sort_unstable();
        (name, all[all.len() / 10])
    };
    shares.into_iter().map(tenth).collect()
}

/// The picture with every run and every waiting job as short as the early ones of its partition.
fn hurried(mut picture: Snapshot, shares: &BTreeMap<String, u32>, now: Timestamp) -> Snapshot {
    let share = |partition: &str| i64::from(shares.get(partition).copied().unwrap_or(1000));
    for run in &mut picture.running {
        if let Some(end) = run.ends_by {
            let left = end.since_millis(now);
            run.ends_by = Some(now.plus_millis(left * share(&run.spec.partition) / 1000).min(end));
        }
    }
    for job in &mut picture.pending {
        let share = share(&job.spec.partition);
        job.limit_secs = job.limit_secs.map(|secs| u32::try_from(i64::from(secs) * share / 1000).unwrap_or(secs).max(1));
    }
    picture
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_early_tenth_of_a_partition_needs_enough_runs() {
        let run = |partition: &str, elapsed_secs: i64, limit: Option<u32>| RunRow {
            partition: partition.into(),
            state: JobState::Completed,
            elapsed_secs,
            time_limit_secs: limit,
            ..RunRow::default()
        };
        let mut late: Vec<RunRow> = (1..=40).map(|n| run("a", n * 10, Some(1000))).collect();
        late.extend((0..10).map(|_| run("few", 5, Some(10))));
        late.extend((0..50).map(|_| run("endless", 5, None)));
        assert_eq!(early_shares(&late), BTreeMap::from([("a".to_owned(), 50)]));
    }
}
