//! `GET /v1/runs` and `/v1/report`: accounting, answered by the database's readers.
//!
//! Owns the questions and what of others' usage a reader sees; sums and rows are the store's.

use super::error::ApiError;
use super::filter::words_of_ids;
use super::lookup::job_names;
use super::permission::{Caller, Sight};
use super::query::{Pairs, job_state, words};
use super::{Site, now};
use axum::Json;
use axum::extract::State as Shared;
use gmodel::suggest::did_you_mean;
use gmodel::{Instant, Timestamp};
use gwire::api::{ReportRow, RunQuery, RunRow, SCHEMA};
use serde::Serialize;

const KEYS: [&str; 12] =
    ["job", "user", "account", "partition", "qos", "name", "state", "nodelist", "from", "to", "attempts", "limit"];
const GROUPS: [&str; 6] = ["account", "user", "partition", "gpu-type", "tag", "class"];
/// Rows of one answer, unless fewer are asked for.
const MAX_ROWS: u32 = 1_000_000;

#[derive(Serialize)]
pub(super) struct Runs {
    schema: u32,
    runs: Vec<RunRow>,
}

#[derive(Serialize)]
pub(super) struct Report {
    schema: u32,
    rows: Vec<ReportRow>,
}

pub(super) async fn runs(caller: Caller, Shared(site): Shared<Site>, pairs: Pairs) -> Result<Json<Runs>, ApiError> {
    let mut query = run_query(&pairs.only(&KEYS)?)?;
    let state = site.core.view().await;
    let sight = Sight::of(&caller, &state);
    if !sight.sees_all() && sight.accounts().is_empty() {
        // Asked of the database already: the limit then counts rows that are seen.
        query.user = only_own(&query.user, &caller.actor.user)?;
    }
    let mut rows = site.core.reader().runs(query, now()).await?;
    rows.retain(|row| sight.sees_named(&row.user, &row.account));
    Ok(Json(Runs { schema: SCHEMA, runs: rows }))
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
        limit: Some(pairs.number("limit")?.unwrap_or(MAX_ROWS).min(MAX_ROWS)),
    })
}

fn in_order(from: Option<Timestamp>, to: Option<Timestamp>) -> Result<(), ApiError> {
    match (from, to) {
        (Some(from), Some(to)) if from >= to => {
            Err(ApiError::invalid(format!("from = {from} is not before to = {to}")))
        }
        _ => Ok(()),
    }
}

fn only_own(asked: &str, user: &str) -> Result<String, ApiError> {
    if asked.is_empty() || words(asked).iter().any(|name| name == user) {
        return Ok(user.to_owned());
    }
    Err(ApiError::denied(format!("what {asked} ran is private here; you see what {user} ran")))
}

/// Usage of a time, in groups. Without `from` the present month, without `to` until now.
pub(super) async fn report(caller: Caller, Shared(site): Shared<Site>, pairs: Pairs) -> Result<Json<Report>, ApiError> {
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
    let rows = site.core.reader().report(asked.clone(), from, to, now, state.config.scheduler.prices.clone()).await?;
    let rows = if sight.sees_all() { rows } else { seen(&sight, &asked, by.len(), rows) };
    Ok(Json(Report { schema: SCHEMA, rows }))
}

fn groups(pairs: &Pairs) -> Result<Vec<String>, ApiError> {
    let by = words(pairs.text("by"));
    if let Some(odd) = by.iter().find(|group| !GROUPS.contains(&group.as_str())) {
        let guess = did_you_mean(odd, GROUPS);
        return Err(ApiError::invalid(format!("nothing can be grouped by {odd:?}.{guess} Groups: {}", GROUPS.join(", "))));
    }
    Ok(if by.is_empty() { vec!["account".to_owned()] } else { by })
}

/// First instant of a moment's month, UTC.
fn month_of(at: Timestamp) -> Timestamp {
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
