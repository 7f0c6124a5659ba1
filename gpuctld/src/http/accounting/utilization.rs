//! `GET /v1/utilization`: what became of the CPUs and GPUs that nodes had in a time; `GET /v1/node-events`: when nodes took no work.
//!
//! Owns how what runs held and what was down are set against what there was; both are the store's.

use crate::core_thread::now;
use crate::http::app::ApiContext;
use crate::http::error::ApiError;
use crate::http::period::{in_order, month_of};
use crate::http::query::QueryPairs;
use crate::store::reader::NodeNow;
use axum::Json;
use axum::extract::State as Shared;
use gmodel::Instant;
use gwire::api::{SCHEMA, UtilizationRow};
use serde_json::{Value, json};

const MILLIS_PER_HOUR: f64 = 3_600_000.0;

/// When nodes took no work, and why.
pub(crate) async fn node_events(
    Shared(site): Shared<ApiContext>,
    pairs: QueryPairs,
) -> Result<Json<Value>, ApiError> {
    let pairs = pairs.only(&["from", "to"])?;
    let to = pairs.instant("to")?.unwrap_or_else(now);
    let from = pairs.instant("from")?.unwrap_or_else(|| month_of(to));
    in_order(Some(from), Some(to))?;
    let rows = site.core.reader().node_events(from, to).await?;
    Ok(Json(json!({"schema": SCHEMA, "events": rows})))
}

pub(crate) async fn utilization(
    Shared(site): Shared<ApiContext>,
    pairs: QueryPairs,
) -> Result<Json<Value>, ApiError> {
    let pairs = pairs.only(&["from", "to"])?;
    let now = now();
    let to = pairs.instant("to")?.unwrap_or(now).min(now);
    let from = pairs.instant("from")?.unwrap_or_else(|| month_of(to));
    in_order(Some(from), Some(to))?;
    let state = site.core.view().await;
    let nodes = state.nodes.values().map(NodeNow::from).collect();
    let capacity = site.core.reader().capacity(from, to, nodes).await?;
    let used = match capacity.from < to {
        true => {
            site.core
                .reader()
                .report(
                    vec!["account".to_owned()],
                    capacity.from,
                    to,
                    now,
                    Default::default(),
                )
                .await?
        }
        false => Vec::new(),
    };
    // The sum of nothing is -0.0, and printed so.
    let cpus: f64 = used.iter().fold(0.0, |sum, row| sum + row.cpu_hours);
    let gpus: f64 = used.iter().fold(0.0, |sum, row| sum + row.gpu_hours);
    let row = |tres: &str, at: usize, allocated: f64| {
        let hours = |millis: u128| millis as f64 / MILLIS_PER_HOUR;
        let all = hours(capacity.all[at]);
        let allocated_hours = allocated.min(all).max(0.0);
        let down_hours = hours(capacity.down[at]).min(all - allocated_hours);
        UtilizationRow {
            tres: tres.to_owned(),
            hours: all,
            allocated_hours,
            down_hours,
            idle_hours: (all - allocated_hours - down_hours).max(0.0),
        }
    };
    let rows = [row("cpu", 0, cpus), row("gres/gpu", 1, gpus)];
    Ok(Json(
        json!({"schema": SCHEMA, "known_from": Instant(capacity.from), "rows": rows}),
    ))
}
