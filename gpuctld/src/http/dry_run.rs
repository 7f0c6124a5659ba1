//! `POST /v1/jobs/dry-run`: where and when a job would start, asked of the real core and scheduler on a copy.
//!
//! Nothing is kept: the copy shares the state's chunks and is thrown away.

use super::Site;
use super::error::ApiError;
use super::permission::Caller;
use super::row::{Row, View};
use super::submit::{check, may_ask};
use axum::Json;
use axum::extract::State as Shared;
use axum::extract::rejection::JsonRejection;
use gcore::ctl::{Actor, Command, Input, Reply, State, handle, snapshot};
use gmodel::run::Allocation;
use gmodel::{Instant, JobId, Timestamp, hostlist};
use gsched::WorkBudget;
use gwire::api::{DryRun, SCHEMA, SubmitRequest};
use std::sync::Arc;

pub(super) async fn dry_run(
    caller: Caller,
    Shared(site): Shared<Site>,
    body: Result<Json<SubmitRequest>, JsonRejection>,
) -> Result<Json<DryRun>, ApiError> {
    let Json(request) = body?;
    caller.may_submit()?;
    check(&request)?;
    may_ask(&caller, &request.spec)?;
    let (request, mut notes) = site.app.hook.ask(&site.app.config(), &caller.actor, request).await?;
    let state = site.core.view().await;
    let now = super::now();
    let task = tokio::task::spawn_blocking(move || consider(state, caller.actor, request, now));
    let mut answer = task.await.map_err(|_| ApiError::unavailable("the dry run failed; this is a bug"))??;
    notes.append(&mut answer.notes);
    Ok(Json(DryRun { notes, ..answer }))
}

fn consider(state: Arc<State>, actor: Actor, request: SubmitRequest, now: Timestamp) -> Result<DryRun, ApiError> {
    let mut copy = (*state).clone();
    drop(state);
    let command = Command::Submit { spec: Box::new(request.spec), client_key: None };
    let reply = handle(&mut copy, &mut Vec::new(), Input::Command { actor, command }, now)?;
    let Reply::Submitted { id, notes, .. } = reply else { return Err(super::targets::odd(&reply)) };
    let plan = gsched::plan(&snapshot(&copy, now), WorkBudget::default());
    let count = copy.arrays.get(id).map_or(1, |array| u64::from(array.len()));
    let tasks = id.0..id.0 + count;
    let start = plan.starts.iter().find(|start| tasks.contains(&start.job.0));
    let reason = plan.reasons.iter().find(|(job, _)| *job == id).map(|(_, reason)| reason.clone());
    let (cpus, partition) = asked(&copy, id, now);
    Ok(match start {
        Some(start) => would_start(&copy, &start.allocation, partition, notes, now),
        None => {
            let reason = reason.unwrap_or_default();
            let why = if reason.text.is_empty() { String::new() } else { format!(": {}", reason.text) };
            let text = format!("would wait in partition {partition} ({}){why}", reason.code);
            let reason = reason.code.to_string();
            DryRun { schema: SCHEMA, nodelist: String::new(), start: None, cpus, partition, reason, text, notes }
        }
    })
}

fn would_start(state: &State, allocation: &Allocation, partition: String, notes: Vec<String>, now: Timestamp) -> DryRun {
    let names = allocation.iter().filter_map(|share| state.nodes.get(share.node));
    let nodelist = hostlist::compress(names.map(|node| node.name.as_str()));
    let cpus = allocation.iter().map(|share| share.cpus).sum();
    let text = format!("would start at once, using {cpus} CPUs on nodes {nodelist} in partition {partition}");
    DryRun { schema: SCHEMA, nodelist, start: Some(Instant(now)), cpus, partition, reason: String::new(), text, notes }
}

/// CPUs and partition, with defaults filled in.
fn asked(state: &State, id: JobId, now: Timestamp) -> (u32, String) {
    let row = super::lookup::one_row(state, &super::lookup::JobName::Job(id));
    row.map_or((0, String::new()), |row: Row| (row.cpus(View::new(state, now)), row.spec().partition.clone()))
}
