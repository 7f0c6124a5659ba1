//! The site's submission hook: one long-lived program of an ordinary system user, JSON lines in and out.
//!
//! Owns the process and its deadline. One question at a time; an answer that is late, wrong or missing ends the
//! program, and `on_failure` decides. The program sees the request and the script, never the environment.
//!
//! ```text
//! -> {"schema":1,"question":7,"user":"ada","uid":1000,"spec":{...},"script":"#!/bin/sh\n..."}
//! <- {"question":7,"accept":true,"change":{"account":"physics"},"notes":["account set to physics"]}
//! <- {"question":7,"accept":false,"error":"jobs of more than 64 GPUs need a reservation"}
//! ```

use crate::config::settings::{Config, OnFailure, SubmitHook};
use crate::http::error::ApiError;
use crate::site_program::check_ownership;
use gcore::ctl::Actor;
use gmodel::job::JobSpec;
use gwire::api::{SCHEMA, SubmitRequest};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::Mutex;
use tokio::time::timeout;

/// Longest answer, bytes.
const MAX_ANSWER_BYTES: u64 = 1 << 20;
/// A program that ended is not started again sooner than this.
const RESTART_PAUSE: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(crate) struct HookProcess {
    running: Mutex<HookSlot>,
}

#[derive(Default)]
struct HookSlot {
    process: Option<HookChild>,
    last_start: Option<Instant>,
    questions: u64,
}

struct HookChild {
    hook: SubmitHook,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// Killed when dropped.
    _child: Child,
}

#[derive(Serialize)]
struct HookQuestion<'a> {
    schema: u32,
    question: u64,
    user: &'a str,
    uid: u32,
    spec: &'a JobSpec,
    script: &'a str,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct HookAnswer {
    question: u64,
    accept: bool,
    /// Keys of `spec` to set (RFC 7386, JSON merge patch).
    change: Option<Value>,
    notes: Vec<String>,
    error: String,
}

impl HookProcess {
    /// The request as the site's program wants it, with its notes; unchanged where there is no hook.
    ///
    /// # Errors
    /// The program's refusal, or its failure where `on_failure = "refuse"`.
    pub(crate) async fn ask(
        &self,
        config: &Config,
        actor: &Actor,
        request: SubmitRequest,
    ) -> Result<(SubmitRequest, Vec<String>), ApiError> {
        let Some(hook) = &config.submit_hook else {
            return Ok((request, Vec::new()));
        };
        match self
            .exchange(hook, actor, &request)
            .await
            .and_then(|answer| decided(answer, &request))
        {
            Ok(Ok((spec, notes))) => Ok((SubmitRequest { spec, ..request }, notes)),
            Ok(Err(refusal)) => Err(ApiError::denied(refusal)),
            Err(why) => {
                tracing::warn!(program = %hook.program.display(), why, "the submission hook failed");
                match hook.on_failure {
                    OnFailure::Accept => Ok((request, Vec::new())),
                    OnFailure::Refuse => Err(ApiError::unavailable(format!(
                        "the site's submission hook failed: {why}. Tell the administrators"
                    ))),
                }
            }
        }
    }

    /// One question and its answer; the program is ended when it does not keep to the form.
    async fn exchange(
        &self,
        hook: &SubmitHook,
        actor: &Actor,
        request: &SubmitRequest,
    ) -> Result<HookAnswer, String> {
        let mut slot = self.running.lock().await;
        if slot
            .process
            .as_ref()
            .is_none_or(|process| process.hook != *hook)
        {
            slot.process = None;
            if slot
                .last_start
                .is_some_and(|at| at.elapsed() < RESTART_PAUSE)
            {
                return Err("it ended a moment ago and is started again in a second".to_owned());
            }
            slot.last_start = Some(Instant::now());
            slot.process = Some(HookChild::start(hook)?);
        }
        slot.questions += 1;
        let number = slot.questions;
        let question = HookQuestion {
            schema: SCHEMA,
            question: number,
            user: &actor.user,
            uid: actor.uid,
            spec: &request.spec,
            script: &request.script,
        };
        let mut line = serde_json::to_vec(&question).map_err(|error| error.to_string())?;
        line.push(b'\n');
        let deadline = Duration::from_millis(u64::from(hook.timeout_ms));
        // Taken out while it works: a request that is dropped half-way ends the program, so that its answer is
        // never taken for that of the next.
        let Some(mut process) = slot.process.take() else {
            return Err("it is not running".to_owned());
        };
        let answer = match timeout(deadline, process.exchange(&line)).await {
            Ok(answer) => answer?,
            Err(_) => return Err(format!("it did not answer within {} ms", hook.timeout_ms)),
        };
        if answer.question != number {
            return Err(format!(
                "it answered question {} where {number} was asked",
                answer.question
            ));
        }
        slot.process = Some(process);
        Ok(answer)
    }
}

impl HookChild {
    fn start(hook: &SubmitHook) -> Result<Self, String> {
        check_ownership(&hook.program)?;
        let mut command = Command::new(&hook.program);
        command
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .kill_on_drop(true);
        let user = nix::unistd::User::from_name(&hook.user).ok().flatten();
        let user = user.ok_or_else(|| format!("there is no user {:?}", hook.user))?;
        if user.uid.is_root() {
            return Err(format!("{:?} is root; give it an ordinary user", hook.user));
        }
        match nix::unistd::geteuid() {
            me if me.is_root() => {
                command.uid(user.uid.as_raw()).gid(user.gid.as_raw());
            }
            me if me == user.uid => {}
            _ => {
                return Err(format!(
                    "gpuctld is not root and cannot become {:?}",
                    hook.user
                ));
            }
        }
        let mut child = command
            .spawn()
            .map_err(|error| format!("it cannot be started: {error}"))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("it has no standard input or output".to_owned());
        };
        Ok(Self {
            hook: hook.clone(),
            input,
            output: BufReader::new(output),
            _child: child,
        })
    }

    async fn exchange(&mut self, line: &[u8]) -> Result<HookAnswer, String> {
        let ended = |error: std::io::Error| format!("it ended: {error}");
        self.input.write_all(line).await.map_err(ended)?;
        self.input.flush().await.map_err(ended)?;
        let mut answer = Vec::new();
        let mut bounded = (&mut self.output).take(MAX_ANSWER_BYTES);
        bounded
            .read_until(b'\n', &mut answer)
            .await
            .map_err(ended)?;
        if answer.last() != Some(&b'\n') {
            return Err(match answer.len() {
                0 => "it ended without an answer".to_owned(),
                bytes => format!("its answer of {bytes} bytes or more has no end"),
            });
        }
        serde_json::from_slice(&answer)
            .map_err(|error| format!("its answer cannot be read: {error}"))
    }
}

/// The changed spec and notes, or the refusal's text: a refusal is an answer, not a failure.
fn decided(
    answer: HookAnswer,
    request: &SubmitRequest,
) -> Result<Result<(JobSpec, Vec<String>), String>, String> {
    if !answer.accept {
        let text = if answer.error.is_empty() {
            "the site's submission hook refused the job"
        } else {
            &answer.error
        };
        return Ok(Err(text.to_owned()));
    }
    let spec = match &answer.change {
        None => request.spec.clone(),
        Some(change) => {
            let mut spec =
                serde_json::to_value(&request.spec).map_err(|error| error.to_string())?;
            merge(&mut spec, change);
            serde_json::from_value(spec)
                .map_err(|error| format!("its change gives no valid job: {error}"))?
        }
    };
    Ok(Ok((spec, answer.notes)))
}

/// JSON merge patch (RFC 7386).
fn merge(value: &mut Value, patch: &Value) {
    let Value::Object(changes) = patch else {
        value.clone_from(patch);
        return;
    };
    if !value.is_object() {
        *value = Value::Object(serde_json::Map::new());
    }
    let Value::Object(fields) = value else { return };
    for (key, change) in changes {
        match change {
            Value::Null => {
                fields.remove(key);
            }
            _ => merge(fields.entry(key.clone()).or_insert(Value::Null), change),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_change_is_merged_key_by_key() {
        let mut spec = json!({"account": "a", "request": {"nodes_min": 1, "exclusive": true}});
        merge(
            &mut spec,
            &json!({"account": "b", "request": {"exclusive": null}, "qos": "low"}),
        );
        assert_eq!(
            spec,
            json!({"account": "b", "request": {"nodes_min": 1}, "qos": "low"})
        );
    }
}
