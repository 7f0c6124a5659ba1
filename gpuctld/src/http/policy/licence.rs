//! `GET /v1/licences`: counts, and what running jobs hold of them.

use crate::http::app::ApiContext;
use crate::http::error::ApiError;
use crate::http::permission::Caller;
use crate::http::query::QueryPairs;
use axum::Json;
use axum::extract::State as Shared;
use gcore::ctl::State;
use gwire::api::{LicenceRow, SCHEMA};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

pub(crate) async fn licences(
    _: Caller,
    Shared(site): Shared<ApiContext>,
    pairs: QueryPairs,
) -> Result<Json<Value>, ApiError> {
    pairs.only(&[])?;
    let rows: Vec<LicenceRow> = licence_rows(&*site.core.view().await);
    Ok(Json(json!({"schema": SCHEMA, "licences": rows})))
}

/// Licences by name, with what running jobs hold.
fn licence_rows(state: &State) -> Vec<LicenceRow> {
    let mut used: BTreeMap<&str, u32> = BTreeMap::new();
    for run in state.runs.values().filter(|run| !run.is_clean()) {
        let Some(job) = state.jobs.get(run.id.job) else {
            continue;
        };
        for (name, count) in &job.spec.licences {
            *used.entry(name).or_default() += count;
        }
    }
    let totals = &state.config.scheduler.licences;
    // A licence that left the file is still held by its runs.
    let names: BTreeSet<&str> = totals
        .keys()
        .map(String::as_str)
        .chain(used.keys().copied())
        .collect();
    let row = |name: &str| {
        let (total, used) = (
            totals.get(name).copied().unwrap_or(0),
            used.get(name).copied().unwrap_or(0),
        );
        LicenceRow {
            name: name.to_owned(),
            total,
            used,
            free: total.saturating_sub(used),
        }
    };
    names.into_iter().map(row).collect()
}
