//! `POST /v1/jobs/{id}/steps`: tasks of a step inside a running job, for `grun`.
//!
//! The core counts the step and lays out its ranks; each node of it is told over its own connection. What the tasks
//! write goes from the nodes straight to grun, never through here.

use super::Site;
use super::error::ApiError;
use super::lookup::{job_name, targets};
use super::permission::Caller;
use super::targets::{confine, odd};
use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State as Shared};
use gcore::ctl::{Command, Reply, StepNode};
use gmodel::supervise::StepOrder;
use gwire::api::{MAX_ARGUMENT_BYTES, MAX_ENVIRONMENT_BYTES, SCHEMA, StepNodeRow, StepReply, StepRequest};
use std::net::SocketAddr;

/// Longest secret of a step, bytes.
const MAX_KEY_BYTES: usize = 256;

pub(super) async fn start(
    caller: Caller,
    Shared(site): Shared<Site>,
    Path(id): Path<String>,
    body: Result<Json<StepRequest>, JsonRejection>,
) -> Result<Json<StepReply>, ApiError> {
    let Json(request) = body?;
    check(&request)?;
    let [target] = targets(&[job_name(&id)?])?[..] else {
        return Err(ApiError::invalid(format!("{id} names several tasks; a step runs in one job")));
    };
    confine(&site, &caller, &[target]).await?;
    let name = request.argv[0].rsplit('/').next().unwrap_or_default().to_owned();
    let command = Command::StartStep { target, nodes: request.nodes, ntasks: request.ntasks, name };
    let (run, step, layout) = match site.core.command(caller.actor, command).await? {
        Reply::Step { run, step, layout } => (run, step, layout),
        other => return Err(odd(&other)),
    };
    for (position, node) in layout.iter().enumerate() {
        let order = order(&request, step, &layout, position);
        let told = site.app.links.start_step(node.node, run, order).await;
        told.map_err(|why| {
            ApiError::unavailable(format!("{} did not take its part of step {step} of job {id}: {why}", node.name))
        })?;
    }
    let nodes = layout.into_iter().map(|node| StepNodeRow { name: node.name, ranks: node.ranks }).collect();
    Ok(Json(StepReply { schema: SCHEMA, step, nodes }))
}

fn check(request: &StepRequest) -> Result<(), ApiError> {
    if request.argv.first().is_none_or(String::is_empty) {
        return Err(ApiError::invalid("there is no command to run"));
    }
    let bytes = |texts: &[String]| texts.iter().map(|text| text.len() + 1).sum::<usize>();
    for (what, is, most) in [
        ("arguments", bytes(&request.argv), MAX_ARGUMENT_BYTES),
        ("environment", bytes(&request.environment), MAX_ENVIRONMENT_BYTES),
    ] {
        if is > most {
            return Err(ApiError::limit(format!("the {what} of the step have {is} bytes; {most} are the most")));
        }
    }
    if request.argv.iter().chain(&request.environment).any(|text| text.contains('\0')) {
        return Err(ApiError::invalid("an argument or variable has a NUL byte in it"));
    }
    if request.connect.parse::<SocketAddr>().is_err() {
        return Err(ApiError::invalid(format!("connect = {:?} is not ADDRESS:PORT, numeric", request.connect)));
    }
    if request.key.is_empty() || request.key.len() > MAX_KEY_BYTES {
        return Err(ApiError::invalid(format!("key has to have 1 to {MAX_KEY_BYTES} bytes")));
    }
    Ok(())
}

fn order(request: &StepRequest, step: u32, layout: &[StepNode], position: usize) -> StepOrder {
    let tasks = |node: &StepNode| node.ranks.len() as u32;
    StepOrder {
        step,
        argv: request.argv.clone(),
        environment: request.environment.clone(),
        work_dir: request.work_dir.clone(),
        ranks: layout[position].ranks.clone(),
        ntasks: layout.iter().map(tasks).sum(),
        nodes: layout.iter().map(|node| node.name.clone()).collect(),
        node_index: position as u32,
        node_tasks: layout.iter().map(tasks).collect(),
        connect: request.connect.clone(),
        key: request.key.clone(),
    }
}
