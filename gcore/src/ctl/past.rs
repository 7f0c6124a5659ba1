//! What the runs of a job have left in its record: a hundred thousand waiting jobs have none of it.
//!
//! Reads as fields of the job (`job.started`). Never decides anything.

use super::state::NodeFailure;
use gmodel::checkpoint::Mark;
use gmodel::rare::Usual;
use gmodel::{ExitCode, Timestamp};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Past {
    /// Of the last run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Timestamp>,
    #[serde(default)]
    pub exit: ExitCode,
    /// How it ended, in words, and who cancelled it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub end_text: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancelled_by: Option<String>,
    /// Nodes its runs took down or failed to start on, newest last; three hold the job.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub node_failures: Vec<NodeFailure>,
    /// When its last run that was preempted ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preempted: Option<Timestamp>,
    /// Newest checkpoint mark of all its runs; its time is kept within what the controller's clock allows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_mark: Option<Box<Mark>>,
    /// What it was worth when its last run was placed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i64>,
    /// The reservations with MAGNETIC that its last run was drawn into, with commas between.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drawn_into: Option<Box<str>>,
    /// How many of its last runs in a row went back to the queue for standing idle.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub idle_requeues: u32,
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}

impl Usual for Past {
    fn usual() -> &'static Self {
        static NONE: Past = Past {
            started: None,
            ended: None,
            exit: ExitCode { code: 0, signal: 0 },
            end_text: String::new(),
            cancelled_by: None,
            node_failures: Vec::new(),
            preempted: None,
            last_mark: None,
            priority: None,
            drawn_into: None,
            idle_requeues: 0,
        };
        &NONE
    }
}
