//! `GET /v1/report`: usage of a period in groups, summed by the database.
//!
//! Owns the question, and what of others' usage a reader sees.

use crate::core_thread::now;
use crate::http::app::ApiContext;
use crate::http::error::ApiError;
use crate::http::period::{in_order, month_of};
use crate::http::permission::{Caller, Visibility};
use crate::http::query::{QueryPairs, words};
use crate::store::reader::GROUPS;
use axum::Json;
use axum::extract::State as Shared;
use gcore::ctl::State;
use gmodel::policy::price::Prices;
use gmodel::suggest::did_you_mean;
use gwire::api::{ReportRow, SCHEMA};
use serde::Serialize;

#[derive(Serialize)]
pub(crate) struct Report {
    schema: u32,
    rows: Vec<ReportRow>,
}

/// Usage of a time, in groups. Without `from` the present month, without `to` until now.
pub(crate) async fn report(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
    pairs: QueryPairs,
) -> Result<Json<Report>, ApiError> {
    let pairs = pairs.only(&["by", "from", "to"])?;
    let by = groups(&pairs)?;
    let now = now();
    let to = pairs.instant("to")?.unwrap_or(now);
    let from = pairs.instant("from")?.unwrap_or_else(|| month_of(to));
    in_order(Some(from), Some(to))?;
    let state = site.core.view().await;
    let sight = Visibility::of(&caller, &state);
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
        .report(asked.clone(), from, to, now, prices(&state))
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

/// Where a price depends on more than the type, sums of hours cannot say the cost; bills do.
fn prices(state: &State) -> Prices {
    let book = state.billing.prices(&state.config.scheduler.money);
    match book.is_plain() {
        true => book.prices,
        false => Prices::new(),
    }
}

fn groups(pairs: &QueryPairs) -> Result<Vec<String>, ApiError> {
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

/// The rows a reader may see, summed over the groups that only we asked for.
fn seen(
    sight: &Visibility,
    asked: &[String],
    groups: usize,
    rows: Vec<ReportRow>,
) -> Vec<ReportRow> {
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
