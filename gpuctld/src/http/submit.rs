//! `POST /v1/jobs`: bounds and shape of a submission, the site's hook, then the core.
//!
//! Owns what can be said before the core is asked: sizes, and whether there is something to run. Nothing is kept of
//! a submission that is refused. The path asks for no view: it is the busiest of all.

use super::Site;
use super::error::ApiError;
use super::permission::Caller;
use crate::core_thread::Submission;
use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::JsonRejection;
use axum::extract::{FromRequest, Request, State as Shared};
use axum::http::header::CONTENT_TYPE;
use gcore::ctl::Reply;
use gwire::api::{MAX_ARGUMENT_BYTES, MAX_ENVIRONMENT_BYTES, MAX_SCRIPT_BYTES, SCHEMA, SubmitRequest, Submitted};

/// Longest key of a client, bytes.
const MAX_KEY_BYTES: usize = 128;

pub(super) async fn submit(
    caller: Caller,
    Shared(site): Shared<Site>,
    body: Result<Body, JsonRejection>,
) -> Result<Json<Submitted>, ApiError> {
    let Body(request) = body?;
    caller.may_submit()?;
    check(&request)?;
    let (request, mut notes) = site.app.hook.ask(&site.app.config(), &caller.actor, request).await?;
    let SubmitRequest { spec, script, environment, client_key } = request;
    let submission = Submission { spec, client_key, script, environment };
    match site.core.submit(caller.actor, submission).await? {
        Reply::Submitted { id, notes: of_core, repeated } => {
            notes.extend(of_core);
            Ok(Json(Submitted { schema: SCHEMA, id, notes, repeated }))
        }
        other => Err(super::targets::odd(&other)),
    }
}

/// The request as `Json` reads it. `Json` keeps the way to each value for its errors; a body is read without
/// that first, and once more only to say what is wrong with it.
pub(super) struct Body(SubmitRequest);

impl<S: Send + Sync> FromRequest<S> for Body {
    type Rejection = JsonRejection;

    async fn from_request(request: Request, state: &S) -> Result<Self, JsonRejection> {
        let plain = request.headers().get(CONTENT_TYPE).is_some_and(|kind| kind == "application/json");
        if !plain {
            return Json::from_request(request, state).await.map(|Json(request)| Self(request));
        }
        let body = Bytes::from_request(request, state).await?;
        match serde_json::from_slice(&body) {
            Ok(request) => Ok(Self(request)),
            Err(_) => Json::from_bytes(&body).map(|Json(request)| Self(request)),
        }
    }
}

/// What can be refused without knowing the cluster.
///
/// # Errors
/// The first thing that stands against it, with numbers.
pub(super) fn check(request: &SubmitRequest) -> Result<(), ApiError> {
    let SubmitRequest { spec, script, environment, client_key } = request;
    within("the script", script.len(), MAX_SCRIPT_BYTES, "Keep data in files beside it")?;
    let environment_bytes = environment.iter().map(|variable| variable.len() + 1).sum();
    within("the environment", environment_bytes, MAX_ENVIRONMENT_BYTES, "Pass less of it with --export")?;
    let argument_bytes = spec.launch.argv.iter().map(|word| word.len() + 1).sum();
    within("the arguments", argument_bytes, MAX_ARGUMENT_BYTES, "Pass them in a file")?;
    check_program(script, &spec.launch.argv)?;
    if let Some(odd) = environment.iter().find(|variable| !is_variable(variable)) {
        let name: String = odd.chars().take(40).collect();
        return Err(ApiError::invalid(format!("the environment has {name:?}, which is not NAME=value")));
    }
    if client_key.as_ref().is_some_and(|key| key.is_empty() || key.len() > MAX_KEY_BYTES) {
        return Err(ApiError::invalid(format!("client_key has to have 1 to {MAX_KEY_BYTES} bytes")));
    }
    Ok(())
}

fn within(what: &str, bytes: usize, most: usize, advice: &str) -> Result<(), ApiError> {
    if bytes <= most {
        return Ok(());
    }
    let text = format!("{what} has {bytes} bytes; {most} ({} MiB) are the most. {advice}", most >> 20);
    Err(ApiError::limit(text))
}

fn check_program(script: &str, argv: &[String]) -> Result<(), ApiError> {
    if script.is_empty() {
        return match argv.first() {
            Some(command) if !command.is_empty() => no_nul("the command", argv.iter().any(|word| word.contains('\0'))),
            _ => Err(ApiError::invalid("there is neither a script nor a command to run")),
        };
    }
    no_nul("the script", script.contains('\0'))?;
    if script.starts_with("#!") {
        return no_nul("an argument", argv.iter().any(|word| word.contains('\0')));
    }
    Err(ApiError::invalid(
        "this does not look like a batch script: its first line has to be #! and the path of an interpreter, as \
         #!/bin/sh. To run a program, write gsub -- PROGRAM",
    ))
}

fn no_nul(what: &str, has_nul: bool) -> Result<(), ApiError> {
    if !has_nul {
        return Ok(());
    }
    let text = format!("{what} has a NUL byte in it: it is no text. To run a program, write gsub -- PROGRAM");
    Err(ApiError::invalid(text))
}

fn is_variable(text: &str) -> bool {
    !text.contains('\0') && text.split_once('=').is_some_and(|(name, _)| !name.is_empty())
}
