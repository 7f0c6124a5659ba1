//! `GET /v1/demand`: what waits in the queue, summed by account, partition and reason, however long the queue is.

use crate::core_thread::now;
use crate::http::app::ApiContext;
use crate::http::error::ApiError;
use crate::http::job::filter::JobFilter;
use crate::http::job::row::{Row, View, positions};
use crate::http::permission::{Caller, Visibility};
use crate::http::query::QueryPairs;
use axum::Json;
use axum::extract::State as Shared;
use gcore::ctl::State;
use gmodel::{JobState, ReasonCode};
use gwire::api::{DemandRow, JobQuery, SCHEMA};
use serde_json::{Value, json};
use std::collections::BTreeMap;

pub(crate) async fn demand(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
    pairs: QueryPairs,
) -> Result<Json<Value>, ApiError> {
    pairs.only(&[])?;
    let filter = JobFilter::new(&JobQuery {
        state: JobState::Pending.long().to_owned(),
        ..JobQuery::default()
    })?;
    let state = site.core.view().await;
    let summed = tokio::task::spawn_blocking(move || {
        let sight = Visibility::of(&caller, &state);
        sums(&state, &filter, &sight)
    });
    let rows = summed
        .await
        .map_err(|_| ApiError::unavailable("the demand could not be summed; this is a bug"))?;
    Ok(Json(json!({"schema": SCHEMA, "demand": rows})))
}

fn sums(state: &State, filter: &JobFilter, sight: &Visibility) -> Vec<DemandRow> {
    let view = View::new(state, now());
    // Jobs, and thousandths of GPUs.
    let mut sums: BTreeMap<(&str, &str, ReasonCode), (u64, u64)> = BTreeMap::new();
    filter.each(view, sight, |row| {
        let tasks = match row {
            Row::Tasks { array, alike } => positions(array, alike).len(),
            _ => 1,
        };
        let spec = row.spec();
        let (_, milli) = gpolicy::priority::gpus_asked(&spec.request);
        let key = (
            spec.account.as_str(),
            spec.partition.as_str(),
            row.reason_code(view),
        );
        let sum = sums.entry(key).or_default();
        *sum = (
            sum.0 + tasks,
            sum.1.saturating_add(milli.saturating_mul(tasks)),
        );
    });
    let row =
        |((account, partition, reason), (jobs, milli)): ((&str, &str, _), (u64, u64))| DemandRow {
            account: account.to_owned(),
            partition: partition.to_owned(),
            reason,
            jobs,
            gpus: milli as f64 / 1000.0,
        };
    sums.into_iter().map(row).collect()
}
