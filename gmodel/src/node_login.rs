//! What the PAM module of a node's sshd asks gpud about a login, and gpud's answer; see pam_gpupool(8).
//!
//! The question names no process: the kernel tells gpud which one asks, and that one is moved.

use crate::RunId;
use serde::{Deserialize, Serialize};

/// Where gpud takes the question, by POST on `gpud.sock`.
pub const LOGIN_PATH: &str = "/node/login";
/// Longest question and answer.
pub const MAX_QUESTION_BYTES: usize = 4 << 10;
pub const MAX_ANSWER_BYTES: usize = 1 << 20;

/// A user is about to log in, or is logged in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoginQuestion {
    pub uid: u32,
    /// Move the asking process into the job.
    pub enter: bool,
    /// Where the user has several jobs here, choose none.
    #[serde(default)]
    pub refuse_several: bool,
}

/// What becomes of a login.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum LoginAnswer {
    NoJob {
        node: String,
    },
    /// Only where the question refuses several.
    SeveralJobs {
        node: String,
        runs: Vec<RunId>,
    },
    /// All jobs of the user on this node are suspended; the newest.
    JobSuspended {
        node: String,
        run: RunId,
    },
    Admitted {
        run: RunId,
    },
    /// The asking process is in the job; `NAME=value` lines as a step of the job has them.
    Moved {
        run: RunId,
        environment: Vec<String>,
    },
    NotMoved {
        run: RunId,
        text: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_that_names_a_process_is_refused() {
        let read = |text: &str| serde_json::from_str::<LoginQuestion>(text);
        assert!(read(r#"{"uid":1000,"enter":true}"#).is_ok());
        let wrong = read(r#"{"uid":1000,"enter":true,"pid":1}"#).unwrap_err();
        assert!(wrong.to_string().contains("pid"), "{wrong}");
    }
}
