//! Hold, release, requeue, suspend, resume and update: what an owner or operator does to jobs by name.
//!
//! Owns reading the request and the shape of the answer; whether it may be done is the core's word.

use crate::http::app::ApiContext;
use crate::http::error::{ApiError, refusal_code};
use crate::http::job::filter::words_of_ids;
use crate::http::job::name::{each_task, job_name, job_names, target_text, targets as targets_of};
use crate::http::permission::{Caller, with_groups};
use axum::Json;
use axum::extract::State as Shared;
use axum::extract::rejection::JsonRejection;
use gcore::ctl::{Command, JobChange, Reply, State, Target, TargetResult};
use gmodel::JobId;
use gmodel::job_key::all_keys;
use gwire::api::{ChangeReply, EachResult, OneResult, SCHEMA, TargetsRequest, UpdateRequest};
use std::collections::BTreeSet;

/// Tasks that one request may change one by one; those before one that is refused are changed.
const MAX_UPDATED: usize = 1000;

type JsonBody<T> = Result<Json<T>, JsonRejection>;

pub(crate) async fn hold(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
    body: JsonBody<TargetsRequest>,
) -> Result<Json<EachResult>, ApiError> {
    let Json(request) = body?;
    let targets = named(&site, &caller, &request.jobs).await?;
    each(
        &site,
        caller,
        Command::Hold {
            targets,
            reason: request.reason,
            for_owner: request.for_owner,
        },
    )
    .await
}

pub(crate) async fn release(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
    body: JsonBody<TargetsRequest>,
) -> Result<Json<EachResult>, ApiError> {
    let Json(request) = body?;
    let targets = named(&site, &caller, &request.jobs).await?;
    each(&site, caller, Command::Release { targets }).await
}

pub(crate) async fn requeue(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
    body: JsonBody<TargetsRequest>,
) -> Result<Json<EachResult>, ApiError> {
    let Json(request) = body?;
    let targets = named(&site, &caller, &request.jobs).await?;
    each(
        &site,
        caller,
        Command::Requeue {
            targets,
            hold: request.hold,
        },
    )
    .await
}

pub(crate) async fn suspend(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
    body: JsonBody<TargetsRequest>,
) -> Result<Json<EachResult>, ApiError> {
    let Json(request) = body?;
    let targets = named(&site, &caller, &request.jobs).await?;
    each(&site, caller, Command::Suspend { targets }).await
}

pub(crate) async fn resume(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
    body: JsonBody<TargetsRequest>,
) -> Result<Json<EachResult>, ApiError> {
    let Json(request) = body?;
    let targets = named(&site, &caller, &request.jobs).await?;
    each(&site, caller, Command::Resume { targets }).await
}

pub(crate) async fn update(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
    body: JsonBody<UpdateRequest>,
) -> Result<Json<ChangeReply>, ApiError> {
    let Json(request) = body?;
    let targets: Vec<Target> = targets_of(&[job_name(request.job.trim())?])?
        .iter()
        .flat_map(each_task)
        .collect();
    if targets.len() > MAX_UPDATED {
        return Err(ApiError::invalid(format!(
            "{:?} names more than {MAX_UPDATED} tasks; change fewer, or the whole array",
            request.job
        )));
    }
    confine(&site, &caller, &targets).await?;
    let change = job_change(&request)?;
    let known = site.core.partition_groups();
    let groups = match (&change.partition, &change.account) {
        (Some(list), _) => known.of_partitions(list),
        // Its partitions stay, whichever they are.
        (None, Some(_)) => known.all(),
        (None, None) => BTreeSet::new(),
    };
    let actor = with_groups(&site, &caller, groups).await;
    for target in targets {
        site.core
            .command(
                actor.clone(),
                Command::Update {
                    target,
                    change: change.clone(),
                },
            )
            .await?;
    }
    Ok(Json(ChangeReply {
        schema: SCHEMA,
        notes: Vec::new(),
    }))
}

/// The jobs of a request as targets that may be acted on from where it came.
async fn named(
    site: &ApiContext,
    caller: &Caller,
    jobs: &[String],
) -> Result<Vec<Target>, ApiError> {
    let names: Vec<String> = jobs.iter().flat_map(|text| words_of_ids(text)).collect();
    if names.is_empty() {
        return Err(ApiError::invalid("no job is named"));
    }
    let targets = targets_of(&job_names(&names)?)?;
    confine(site, caller, &targets).await?;
    Ok(targets)
}

/// From a compute node only the jobs that run there can be acted on.
pub(crate) async fn confine(
    site: &ApiContext,
    caller: &Caller,
    targets: &[Target],
) -> Result<(), ApiError> {
    if caller.confined_to().is_none() {
        return Ok(());
    }
    let state = site.core.view().await;
    targets.iter().flat_map(each_task).try_for_each(|target| match own_id(&state, &target) {
        Some(id) => caller.may_act_on(id),
        None => {
            let shown = target_text(&target);
            let text = format!("from a compute node you can act only on your tasks that run there, not on all of array {shown}");
            Err(ApiError::denied(text))
        }
    })
}

/// The one job that a target means; `None` for a whole array.
pub(crate) fn own_id(state: &State, target: &Target) -> Option<JobId> {
    match *target {
        Target::Job(id) if state.arrays.contains(id) => None,
        Target::Job(id) => Some(id),
        Target::Part { leader, offset } => Some(JobId(leader.0.saturating_add(u64::from(offset)))),
        Target::Task { array: id, index } => {
            let Some(array) = state.arrays.get(id) else {
                return Some(id);
            };
            array
                .tasks
                .position(index)
                .map(|position| array.task_id(position))
        }
        Target::Tasks { .. } => None,
    }
}

/// Sends one command and answers for each target.
pub(crate) async fn each(
    site: &ApiContext,
    caller: Caller,
    command: Command,
) -> Result<Json<EachResult>, ApiError> {
    match site.core.command(caller.actor, command).await? {
        Reply::Each { results } => Ok(Json(EachResult {
            schema: SCHEMA,
            results: results.into_iter().map(one).collect(),
        })),
        other => Err(odd(&other)),
    }
}

fn one(result: TargetResult) -> OneResult {
    let job = target_text(&result.target);
    match result.refusal {
        None => OneResult {
            job,
            ok: true,
            ..OneResult::default()
        },
        Some(refusal) => OneResult {
            job,
            ok: false,
            code: refusal_code(refusal.code).to_owned(),
            error: refusal.text,
            about: refusal.about,
        },
    }
}

pub(crate) fn odd(reply: &Reply) -> ApiError {
    tracing::error!(?reply, "the core answered something else than was asked");
    ApiError::unavailable(
        "the controller's core answered something else than was asked; this is a bug",
    )
}

/// The change as the core takes it. Unknown keys are refused: a change that does nothing would be a lie.
fn job_change(request: &UpdateRequest) -> Result<JobChange, ApiError> {
    if request.change.is_empty() {
        return Err(ApiError::invalid(format!(
            "nothing to change. Keys: {}",
            all_keys()
        )));
    }
    let mut change = JobChange::default();
    for (key, value) in &request.change {
        change.set(key, value).map_err(ApiError::invalid)?;
    }
    Ok(change)
}
