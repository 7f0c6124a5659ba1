//! `POST /v1/jobs`: bounds and shape of a submission, the site's hook, then the core.
//!
//! Owns what can be said before the core is asked: sizes, and whether there is something to run. Nothing is kept of
//! a submission that is refused. The path asks for no view: it is the busiest of all.

use crate::core_thread::Submission;
use crate::http::app::ApiContext;
use crate::http::error::ApiError;
use crate::http::job::home;
use crate::http::permission::{Caller, with_groups};
use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::JsonRejection;
use axum::extract::{FromRequest, Request, State as Shared};
use axum::http::header::CONTENT_TYPE;
use gcore::ctl::Reply;
use gmodel::JobSpec;
use gmodel::container::ContainerSpec;
use gmodel::job_part::MOST_PARTS;
use gwire::api::{
    MAX_ARGUMENT_BYTES, MAX_ENVIRONMENT_BYTES, MAX_SCRIPT_BYTES, SCHEMA, SubmitReply, SubmitRequest,
};
use serde::de::{DeserializeSeed, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::Ordering::Relaxed;

/// Longest key of a client, bytes.
const MAX_KEY_BYTES: usize = 128;
/// Room for the variables of a submission to begin with.
const USUAL_ENVIRONMENT_BYTES: usize = 2048;

const NO_MAIL: &str = "--mail-type: this cluster sends no mail ([mail] in gpuctld.toml is not set)";

pub(crate) async fn submit(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
    body: Result<SubmitBody, JsonRejection>,
) -> Result<Json<SubmitReply>, ApiError> {
    let SubmitBody(mut request) = body?;
    let config = site.app.config();
    caller.may_submit(&request.spec.partition, &config.cluster)?;
    may_ask(&caller, &request.spec)?;
    for other in &request.others {
        caller.may_submit(&other.partition, &config.cluster)?;
        may_ask(&caller, other)?;
    }
    home::resolve(&caller, &mut request.spec, &mut request.others).await?;
    request.check()?;
    let (submission, mut notes) = with_hook(&site, &caller, request).await?;
    let has_gpus = submission.spec.request.gpus.is_some();
    let is_allocation = submission.spec.allocation;
    let wants_mail = submission.spec.launch.mail_type.is_some();
    let specs = std::iter::once(&submission.spec).chain(&submission.others);
    let groups = asked_groups(&site, specs.map(|spec| &*spec.partition));
    let actor = with_groups(&site, &caller, groups).await;
    match site.core.submit(actor, submission).await? {
        Reply::Submitted {
            id,
            notes: of_core,
            repeated,
        } => {
            notes.extend(of_core);
            if wants_mail && config.outgoing.mail.is_none() {
                notes.push(NO_MAIL.to_owned());
            }
            if is_allocation {
                site.app.attendance().expect(id);
            }
            // The path asks for a view only where there may be quotas.
            if has_gpus && site.app.may_have_quotas.load(Relaxed) {
                let state = site.core.view().await;
                site.app
                    .may_have_quotas
                    .store(state.policy.has_quotas(), Relaxed);
                notes.extend(crate::http::policy::borrow::borrow_note(&state, id));
            }
            Ok(Json(SubmitReply {
                schema: SCHEMA,
                id,
                notes,
                repeated,
            }))
        }
        other => Err(crate::http::job::control::odd(&other)),
    }
}

/// The groups that the partitions of a submission are for.
pub(crate) fn asked_groups<'a>(
    site: &ApiContext,
    partitions: impl Iterator<Item = &'a str>,
) -> BTreeSet<String> {
    let known = site.core.partition_groups();
    partitions
        .flat_map(|list| known.of_partitions(list))
        .collect()
}

/// Options for operators only. The site's hook may set them for any user.
///
/// # Errors
/// For all other users.
pub(crate) fn may_ask(caller: &Caller, spec: &JobSpec) -> Result<(), ApiError> {
    match spec.priority {
        // The core makes a hold of 0, which any user may ask for.
        Some(priority) if priority > 0 && !caller.actor.operator => Err(ApiError::denied(format!(
            "--priority {priority}: only operators set a job's priority. With --nice you may lower it"
        ))),
        _ if spec.site_factor_milli.is_some() && !caller.actor.operator => Err(ApiError::denied(
            "site_factor_milli: only operators and the submission hook set a job's site factor",
        )),
        _ if spec.idle_exempt && !caller.actor.operator => Err(ApiError::denied(
            "idle_exempt: only operators and the submission hook exempt a job from idle policies",
        )),
        _ => Ok(()),
    }
}

/// What the site's hook makes of a submission.
async fn with_hook(
    site: &ApiContext,
    caller: &Caller,
    request: SubmissionBody,
) -> Result<(Submission, Vec<String>), ApiError> {
    let config = site.app.config();
    let SubmissionBody {
        spec,
        script,
        environment,
        client_key,
        others,
    } = request;
    if config.submit_hook.is_none() {
        return Ok((
            Submission {
                spec,
                client_key,
                script,
                environment: environment.joined,
                others,
            },
            Vec::new(),
        ));
    }
    let variables = environment
        .joined
        .split('\0')
        .filter(|variable| !variable.is_empty());
    let environment = variables.map(str::to_owned).collect();
    let request = SubmitRequest {
        spec,
        script,
        environment,
        client_key,
        others,
    };
    let (request, notes) = site.app.hook.ask(&config, &caller.actor, request).await?;
    let SubmitRequest {
        spec,
        script,
        environment,
        client_key,
        others,
    } = request;
    Ok((
        Submission {
            spec,
            client_key,
            script,
            environment: environment.join("\0"),
            others,
        },
        notes,
    ))
}

/// `SubmitRequest` with the environment as it is stored: one text, not sixty.
#[derive(Default, Deserialize)]
#[serde(default)]
struct SubmissionBody {
    spec: JobSpec,
    script: String,
    environment: EnvironmentText,
    client_key: Option<String>,
    others: Vec<JobSpec>,
}

/// `NAME=value` each, separated by NUL bytes.
#[derive(Default)]
struct EnvironmentText {
    joined: String,
    /// The first that is no `NAME=value`.
    odd: Option<String>,
}

/// The body of a submission. `Json` keeps the way to each value for its errors; a body is read without that first,
/// and once more only to say what is wrong with it.
pub(crate) struct SubmitBody(SubmissionBody);

impl<S: Send + Sync> FromRequest<S> for SubmitBody {
    type Rejection = JsonRejection;

    async fn from_request(request: Request, state: &S) -> Result<Self, JsonRejection> {
        let plain = request
            .headers()
            .get(CONTENT_TYPE)
            .is_some_and(|kind| kind == "application/json");
        if !plain {
            return Json::from_request(request, state)
                .await
                .map(|Json(request)| Self(request));
        }
        let body = Bytes::from_request(request, state).await?;
        // Whether it is UTF-8 is asked once, not of each of its sixty texts.
        let read = std::str::from_utf8(&body)
            .ok()
            .and_then(|text| serde_json::from_str(text).ok());
        read.map_or_else(
            || Json::from_bytes(&body).map(|Json(request)| Self(request)),
            |request| Ok(Self(request)),
        )
    }
}

impl SubmissionBody {
    fn check(&self) -> Result<(), ApiError> {
        check_count(self.others.len())?;
        let bytes = self.environment.joined.len() + 1;
        check_parts(
            &self.spec,
            &self.script,
            bytes,
            self.environment.odd.as_deref(),
            self.client_key.as_deref(),
        )
    }
}

impl<'de> Deserialize<'de> for EnvironmentText {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_seq(EnvironmentVisitor)
    }
}

struct EnvironmentVisitor;

impl<'de> Visitor<'de> for EnvironmentVisitor {
    type Value = EnvironmentText;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of NAME=value")
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<EnvironmentText, A::Error> {
        let mut variables = EnvironmentText::default();
        while list.next_element_seed(&mut variables)?.is_some() {}
        Ok(variables)
    }
}

/// One more variable.
impl<'de> DeserializeSeed<'de> for &mut EnvironmentText {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<(), D::Error> {
        d.deserialize_str(self)
    }
}

impl Visitor<'_> for &mut EnvironmentText {
    type Value = ();
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NAME=value")
    }
    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<(), E> {
        if self.odd.is_none() && !is_variable(text) {
            self.odd = Some(text.to_owned());
        }
        if self.joined.is_empty() {
            self.joined.reserve(USUAL_ENVIRONMENT_BYTES);
        } else {
            self.joined.push('\0');
        }
        self.joined.push_str(text);
        Ok(())
    }
}

/// # Errors
/// More components than one job has.
fn check_count(others: usize) -> Result<(), ApiError> {
    match others < MOST_PARTS {
        true => Ok(()),
        false => Err(ApiError::invalid(format!(
            "a job of unlike parts has {MOST_PARTS} components at most; this one has {}",
            others + 1
        ))),
    }
}

/// What can be refused without knowing the cluster.
///
/// # Errors
/// The first thing that stands against it, with numbers.
pub(crate) fn check(request: &SubmitRequest) -> Result<(), ApiError> {
    let SubmitRequest {
        spec,
        script,
        environment,
        client_key,
        others,
    } = request;
    check_count(others.len())?;
    let bytes = environment.iter().map(|variable| variable.len() + 1).sum();
    let odd = environment.iter().find(|variable| !is_variable(variable));
    check_parts(
        spec,
        script,
        bytes,
        odd.map(String::as_str),
        client_key.as_deref(),
    )
}

fn check_parts(
    spec: &JobSpec,
    script: &str,
    environment_bytes: usize,
    odd_variable: Option<&str>,
    client_key: Option<&str>,
) -> Result<(), ApiError> {
    within(
        "the script",
        script.len(),
        MAX_SCRIPT_BYTES,
        "Keep data in files beside it",
    )?;
    within(
        "the environment",
        environment_bytes,
        MAX_ENVIRONMENT_BYTES,
        "Pass less of it with --export",
    )?;
    let argument_bytes = spec.launch.argv.iter().map(|word| word.len() + 1).sum();
    within(
        "the arguments",
        argument_bytes,
        MAX_ARGUMENT_BYTES,
        "Pass them in a file",
    )?;
    let container = spec.launch.container.as_deref();
    container
        .map_or(Ok(()), ContainerSpec::check)
        .map_err(ApiError::invalid)?;
    match spec.allocation {
        true if !script.is_empty() => {
            return Err(ApiError::invalid(
                "an allocation has no script: its client starts steps in it",
            ));
        }
        true => no_nul(
            "the command",
            spec.launch.argv.iter().any(|word| word.contains('\0')),
        )?,
        false => check_program(script, &spec.launch.argv)?,
    }
    if let Some(odd) = odd_variable {
        let name: String = odd.chars().take(40).collect();
        return Err(ApiError::invalid(format!(
            "the environment has {name:?}, which is not NAME=value"
        )));
    }
    if client_key.is_some_and(|key| key.is_empty() || key.len() > MAX_KEY_BYTES) {
        return Err(ApiError::invalid(format!(
            "client_key has to have 1 to {MAX_KEY_BYTES} bytes"
        )));
    }
    Ok(())
}

fn within(what: &str, bytes: usize, most: usize, advice: &str) -> Result<(), ApiError> {
    if bytes <= most {
        return Ok(());
    }
    let text = format!(
        "{what} has {bytes} bytes; {most} ({} MiB) are the most. {advice}",
        most >> 20
    );
    Err(ApiError::limit(text))
}

fn check_program(script: &str, argv: &[String]) -> Result<(), ApiError> {
    if script.is_empty() {
        return match argv.first() {
            Some(command) if !command.is_empty() => {
                no_nul("the command", argv.iter().any(|word| word.contains('\0')))
            }
            _ => Err(ApiError::invalid(
                "there is neither a script nor a command to run",
            )),
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
    let text = format!(
        "{what} has a NUL byte in it: it is no text. To run a program, write gsub -- PROGRAM"
    );
    Err(ApiError::invalid(text))
}

fn is_variable(text: &str) -> bool {
    !text.contains('\0')
        && text
            .split_once('=')
            .is_some_and(|(name, _)| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> SubmissionBody {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn an_environment_is_joined_as_it_is_read() {
        let variables = read(r#"{"environment":["A=1","B=x\ny","C="],"newer":1}"#).environment;
        assert_eq!(
            (variables.joined.as_str(), variables.odd),
            ("A=1\0B=x\ny\0C=", None)
        );
        assert_eq!(read("{}").environment.joined, "");
    }

    #[test]
    fn what_is_no_variable_is_named() {
        for (list, odd) in [
            (r#"["A=1","B"]"#, "B"),
            (r#"["=1"]"#, "=1"),
            (r#"[""]"#, ""),
            (r#"["A=1\u0000B=2"]"#, "A=1\0B=2"),
        ] {
            assert_eq!(
                read(&format!(r#"{{"environment":{list}}}"#))
                    .environment
                    .odd
                    .as_deref(),
                Some(odd),
                "{list}"
            );
        }
        assert!(serde_json::from_str::<SubmissionBody>(r#"{"environment":"A=1"}"#).is_err());
        assert!(serde_json::from_str::<SubmissionBody>(r#"{"environment":[1]}"#).is_err());
    }
}
