//! The checkpoint contract: what a job says (`--checkpoint SIGNAL@grace`), and the marks it answers with.
//!
//! A run that must go is signalled first; it writes its checkpoint and marks it; then it is ended. Owns the words
//! and their grammar; gstepd owns signal and socket.

use crate::duration::TimeLimit;
use crate::signal::{parse_signal, signal_word};
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Seconds a job has to write its checkpoint when it does not say.
pub const DEFAULT_GRACE_SECS: u32 = 60;
/// Most seconds a job may ask for.
pub const MAX_GRACE_SECS: u32 = 86_400;
/// Longest command.
pub const MAX_COMMAND_BYTES: usize = 1024;
/// Longest note of a mark.
pub const MAX_NOTE_BYTES: usize = 256;

/// How a job is told to write a checkpoint, and how long it may take.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CheckpointSpec {
    pub how: CheckpointMethod,
    pub grace_secs: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckpointMethod {
    /// Number of the signal, sent to every process of the job.
    Signal(u8),
    /// Run by `/bin/sh -c` as the user, inside the job.
    Command(String),
}

/// A safe checkpoint, as the job told gstepd. Numbered from 1 within the job's run.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CheckpointMark {
    pub number: u32,
    /// By the node's clock.
    pub at: Timestamp,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

/// Why a `--checkpoint` cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "--checkpoint {text:?}: {why}. Write SIGNAL@GRACE, as in USR1@120 (seconds) or USR1@10:00, or a command as in './save.sh@120'"
)]
pub struct CheckpointError {
    pub text: String,
    pub why: String,
}

impl CheckpointSpec {
    /// Reads `USR1`, `USR1@120`, `SIGTERM@5:00`, `10@60`, `./save.sh --fast@120`. Bare grace is in seconds.
    pub fn parse(text: &str) -> Result<Self, CheckpointError> {
        let wrong = |why: &str| CheckpointError {
            text: text.chars().take(60).collect(),
            why: why.to_owned(),
        };
        let trimmed = text.trim();
        let (how, grace) = match trimmed.rsplit_once('@') {
            Some((how, grace)) => (how.trim(), Some(grace.trim())),
            None => (trimmed, None),
        };
        if how.is_empty() {
            return Err(wrong("neither a signal nor a command is named"));
        }
        if how.len() > MAX_COMMAND_BYTES || how.contains(['\0', '\n']) {
            return Err(wrong(
                "the command is longer than 1024 bytes or has a line break",
            ));
        }
        let grace_secs = match grace {
            None => DEFAULT_GRACE_SECS,
            Some(grace) => {
                grace_secs(grace).ok_or_else(|| wrong("the grace is no time of 1 s to 1 day"))?
            }
        };
        let looks_like_signal = !how.contains(['/', ' ', '.']);
        let how = match parse_signal(how) {
            Ok(signal) => CheckpointMethod::Signal(signal),
            Err(_) if looks_like_signal => {
                return Err(wrong("no such signal (a command has a / in it)"));
            }
            Err(_) => CheckpointMethod::Command(how.to_owned()),
        };
        if matches!(how, CheckpointMethod::Signal(9 | 19)) {
            return Err(wrong("KILL and STOP cannot be answered"));
        }
        Ok(Self { how, grace_secs })
    }
}

fn grace_secs(text: &str) -> Option<u32> {
    let secs = match text.parse::<u32>() {
        Ok(secs) => secs,
        Err(_) => u32::try_from(TimeLimit::parse(text).ok()?.secs()?).ok()?,
    };
    (1..=MAX_GRACE_SECS).contains(&secs).then_some(secs)
}

impl FromStr for CheckpointSpec {
    type Err = CheckpointError;
    fn from_str(text: &str) -> Result<Self, CheckpointError> {
        Self::parse(text)
    }
}

impl fmt::Display for CheckpointSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.how {
            CheckpointMethod::Signal(number) => write!(f, "{}", signal_word(*number))?,
            CheckpointMethod::Command(command) => f.write_str(command)?,
        }
        write!(f, "@{}", self.grace_secs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};

    fn check(text: &str, want: Expect) {
        want.assert_eq(&match CheckpointSpec::parse(text) {
            Ok(spec) => spec.to_string(),
            Err(error) => format!("error: {error}"),
        });
    }

    #[test]
    fn reads_signals_and_commands() {
        check("USR1@120", expect!["USR1@120"]);
        check("SIGUSR2", expect!["USR2@60"]);
        check("10@5:00", expect!["USR1@300"]);
        check("./save.sh --fast@90", expect!["./save.sh --fast@90"]);
    }

    #[test]
    fn refuses_with_the_reason() {
        check(
            "",
            expect![[
                r#"error: --checkpoint "": neither a signal nor a command is named. Write SIGNAL@GRACE, as in USR1@120 (seconds) or USR1@10:00, or a command as in './save.sh@120'"#
            ]],
        );
        check(
            "KILL@10",
            expect![[
                r#"error: --checkpoint "KILL@10": KILL and STOP cannot be answered. Write SIGNAL@GRACE, as in USR1@120 (seconds) or USR1@10:00, or a command as in './save.sh@120'"#
            ]],
        );
        check(
            "USR9@10",
            expect![[
                r#"error: --checkpoint "USR9@10": no such signal (a command has a / in it). Write SIGNAL@GRACE, as in USR1@120 (seconds) or USR1@10:00, or a command as in './save.sh@120'"#
            ]],
        );
        check(
            "USR1@0",
            expect![[
                r#"error: --checkpoint "USR1@0": the grace is no time of 1 s to 1 day. Write SIGNAL@GRACE, as in USR1@120 (seconds) or USR1@10:00, or a command as in './save.sh@120'"#
            ]],
        );
    }
}
