//! Hold, release, requeue, suspend, resume and update: what an owner or operator does to jobs by name.
//!
//! Owns reading the request and the shape of the answer; whether it may be done is the core's word.

use crate::http::app::ApiContext;
use crate::http::error::{ApiError, refusal_code};
use crate::http::job::filter::words_of_ids;
use crate::http::job::name::{each_task, job_name, job_names, target_text, targets as targets_of};
use crate::http::permission::Caller;
use axum::Json;
use axum::extract::State as Shared;
use axum::extract::rejection::JsonRejection;
use gcore::ctl::{Command, JobChange, Reply, State, Target, TargetResult};
use gmodel::checkpoint::CheckpointSpec;
use gmodel::dependency::Dependency;
use gmodel::request_change;
use gmodel::suggest::did_you_mean;
use gmodel::time::parse_rfc3339;
use gmodel::{JobId, licence};
use gwire::api::{ChangeReply, EachResult, OneResult, SCHEMA, TargetsRequest, UpdateRequest};
use serde_json::Value;

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
    for target in targets {
        site.core
            .command(
                caller.actor.clone(),
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

const CHANGES: [&str; 19] = [
    "time_limit_secs",
    "nice",
    "name",
    "comment",
    "partition",
    "account",
    "qos",
    "begin",
    "requeue",
    "max_running",
    "dependency",
    "licences",
    "reservation",
    "priority",
    "borrow",
    "deadline",
    "time_min_secs",
    "checkpoint",
    "idle_exempt",
];

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
        let text = || {
            value
                .as_str()
                .map(str::to_owned)
                .ok_or_else(|| wrong(key, value, "text"))
        };
        match key.as_str() {
            "time_limit_secs" if value.is_null() => change.limit_secs = Some(None),
            "time_limit_secs" => change.limit_secs = Some(Some(number(key, value)?)),
            "nice" => {
                let nice = value.as_i64().and_then(|nice| i32::try_from(nice).ok());
                change.nice = Some(nice.ok_or_else(|| wrong(key, value, "a whole number"))?);
            }
            "name" => change.name = Some(text()?),
            "comment" => change.comment = Some(text()?),
            "partition" => change.partition = Some(text()?),
            "account" => change.account = Some(text()?),
            "qos" => change.qos = Some(text()?),
            "begin" => {
                let at = value.as_str().and_then(parse_rfc3339);
                change.eligible =
                    Some(at.ok_or_else(|| wrong(key, value, "an RFC 3339 time in UTC"))?);
            }
            "requeue" => {
                change.requeue = Some(
                    value
                        .as_bool()
                        .ok_or_else(|| wrong(key, value, "true or false"))?,
                )
            }
            "max_running" => change.max_running = Some(number(key, value)?),
            "dependency" => change.dependency = Some(parsed(key, value, Dependency::parse)?),
            "licences" => {
                change.licences = Some(parsed(key, value, licence::parse)?.unwrap_or_default())
            }
            "reservation" if value.is_null() => change.reservation = Some(String::new()),
            "reservation" => change.reservation = Some(text()?),
            "priority" => {
                change.priority = Some(if value.is_null() {
                    None
                } else {
                    Some(number(key, value)?)
                })
            }
            "borrow" => {
                change.borrow = Some(
                    value
                        .as_bool()
                        .ok_or_else(|| wrong(key, value, "true or false"))?,
                )
            }
            "idle_exempt" => {
                change.idle_exempt = Some(
                    value
                        .as_bool()
                        .ok_or_else(|| wrong(key, value, "true or false"))?,
                )
            }
            "deadline" if value.is_null() => change.deadline = Some(None),
            "deadline" => {
                let at = value.as_str().and_then(parse_rfc3339);
                change.deadline =
                    Some(Some(at.ok_or_else(|| {
                        wrong(key, value, "an RFC 3339 time in UTC")
                    })?));
            }
            "time_min_secs" => {
                change.time_min_secs = Some(if value.is_null() {
                    None
                } else {
                    Some(number(key, value)?)
                })
            }
            "checkpoint" => change.checkpoint = Some(parsed(key, value, CheckpointSpec::parse)?),
            part if request_change::KEYS.contains(&part) => {
                let text = match value {
                    Value::Null => String::new(),
                    Value::String(text) => text.clone(),
                    Value::Number(number) => number.to_string(),
                    other => return Err(wrong(key, other, "text")),
                };
                change
                    .request
                    .set(part, &text)
                    .map_err(|why| ApiError::invalid(format!("{key}: {why}")))?;
            }
            _ => {
                let guess = did_you_mean(key, CHANGES.into_iter().chain(request_change::KEYS));
                return Err(ApiError::invalid(format!(
                    "{key:?} of a job cannot be changed.{guess} Keys: {}",
                    all_keys()
                )));
            }
        }
    }
    Ok(change)
}

fn all_keys() -> String {
    CHANGES
        .into_iter()
        .chain(request_change::KEYS)
        .collect::<Vec<_>>()
        .join(", ")
}

/// A text in a grammar of its own; null or an empty text is none.
fn parsed<T, E: std::fmt::Display>(
    key: &str,
    value: &Value,
    parse: impl Fn(&str) -> Result<T, E>,
) -> Result<Option<T>, ApiError> {
    match value {
        Value::Null => Ok(None),
        Value::String(text) if text.is_empty() => Ok(None),
        Value::String(text) => parse(text)
            .map(Some)
            .map_err(|error| ApiError::invalid(error.to_string())),
        other => Err(wrong(key, other, "text")),
    }
}

fn number(key: &str, value: &Value) -> Result<u32, ApiError> {
    let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
    number.ok_or_else(|| wrong(key, value, "a whole number, not negative"))
}

fn wrong(key: &str, value: &Value, wanted: &str) -> ApiError {
    ApiError::invalid(format!("{key} = {value} is not {wanted}"))
}
