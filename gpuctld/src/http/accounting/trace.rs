//! `GET /v1/trace`: finished jobs, what they asked for and when they ran, for `gadm export-trace` and `gsim run --trace`.
//!
//! Owns what a request is in the terms of a simulation. Pages keep memory bounded however many jobs there were.

use crate::http::app::ApiContext;
use crate::http::error::ApiError;
use crate::http::job::row::{Row, View};
use crate::http::permission::Caller;
use crate::http::query::QueryPairs;
use crate::store::reader::{StoredJob, TracedJob};
use axum::Json;
use axum::extract::State as Shared;
use gcore::ctl::Job;
use gmodel::gpu_request::{GpuKind, GpuRequest};
use gmodel::{Instant, Timestamp};
use gwire::api::{RunRow, SCHEMA, TracePage, TraceRow};
use std::collections::BTreeMap;

/// Jobs of a page at most.
const MAX_ROWS: u32 = 2000;

pub(crate) async fn page(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
    pairs: QueryPairs,
) -> Result<Json<TracePage>, ApiError> {
    caller.must_administer("the history of all jobs")?;
    let pairs = pairs.only(&["from", "to", "after", "limit"])?;
    let from = pairs.instant("from")?.unwrap_or(Timestamp(i64::MIN));
    let to = pairs.instant("to")?.unwrap_or(Timestamp(i64::MAX));
    if from >= to {
        return Err(ApiError::invalid(format!(
            "from = {from} is not before to = {to}"
        )));
    }
    let after = pairs.job("after")?;
    let limit = pairs
        .number("limit")?
        .unwrap_or(MAX_ROWS)
        .clamp(1, MAX_ROWS);
    let reader = site.core.reader();
    let traced = reader.trace_page(from..to, after, limit).await?;
    let ids: Vec<_> = traced.iter().map(|job| job.id).collect();
    let state = site.core.view().await;
    let now = crate::core_thread::now();
    let view = View::new(&state, now);
    let runs = reader.last_runs(ids.clone(), now).await?;
    let mut runs: BTreeMap<u64, RunRow> = runs.into_iter().map(|run| (run.id, run)).collect();
    let jobs = reader.jobs(ids).await?;
    let rows = traced.iter().zip(&jobs).filter_map(|(traced, job)| {
        match (job, runs.remove(&traced.id.0)) {
            (Some(StoredJob::Job(job)), Some(run)) => Some(trace_row(traced, job, run, view)),
            _ => None,
        }
    });
    let trace = rows.collect();
    let next = traced
        .last()
        .filter(|_| traced.len() == limit as usize)
        .map(|last| last.id.0);
    Ok(Json(TracePage {
        schema: SCHEMA,
        trace,
        next,
    }))
}

fn trace_row(traced: &TracedJob, job: &Job, run: RunRow, view: View) -> TraceRow {
    let row = Row::Job(job);
    let first_start = traced.first_start;
    // A begin time or a dependency; what a requeue made of it later says nothing of the first start.
    let eligible = Some(job.eligible)
        .filter(|at| *at > job.submitted && first_start.is_none_or(|start| *at <= start));
    let ran = first_start.is_some() && run.nodes > 0;
    let nodes = if ran { run.nodes } else { row.nodes(view) };
    let asked = job.spec.request.gpus.as_ref();
    TraceRow {
        id: run.id,
        state: run.state,
        attempts: run.attempt,
        submit_time: Some(Instant(job.submitted)),
        eligible_time: eligible.map(Instant),
        first_start_time: first_start.map(Instant),
        start_time: run.start_time.filter(|_| ran),
        end_time: run.end_time.filter(|_| ran),
        suspended_secs: run.suspended_secs,
        time_limit_secs: run.time_limit_secs,
        nodes,
        cpus: if ran { run.cpus } else { row.cpus(view) },
        mem_bytes: if ran {
            run.mem_bytes / u64::from(nodes)
        } else {
            row.mem_bytes(view).unwrap_or(0)
        },
        gpus: if ran {
            run.gpu_count
        } else {
            row.gpu_milli(view) as f64 / 1000.0
        },
        gpu_types: asked.map_or_else(Vec::new, |asked| types(asked, &run.gpus)),
        user: run.user,
        account: run.account,
        partition: run.partition,
        qos: run.qos,
    }
}

/// The types that would have done as well. Alternatives of different amounts are not one size: then those that it held.
fn types(asked: &GpuRequest, held: &str) -> Vec<String> {
    let one_size = asked
        .alternatives
        .windows(2)
        .all(|pair| pair[0].amount == pair[1].amount);
    let any = asked
        .alternatives
        .iter()
        .any(|one| one.kind == GpuKind::Any);
    match (one_size, any) {
        (true, true) => Vec::new(),
        (false, _) if !held.is_empty() => held
            .split(',')
            .filter_map(|part| part.split(':').next())
            .map(str::to_owned)
            .collect(),
        _ => asked
            .alternatives
            .iter()
            .filter_map(|one| match &one.kind {
                GpuKind::Type(name) => Some(name.clone()),
                GpuKind::Any => None,
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_those_that_would_have_done() {
        let types =
            |asked: &str, held: &str| types(&GpuRequest::parse(asked).unwrap(), held).join("|");
        assert_eq!(types("4", "h100:4"), "");
        assert_eq!(types("h100:4", "h100:4"), "h100");
        assert_eq!(types("h100:4|a100:4", "a100:4"), "h100|a100");
        assert_eq!(types("h100:4|a100:8", "a100:8"), "a100");
        assert_eq!(types("h100:4|a100:8", ""), "h100|a100");
    }
}
