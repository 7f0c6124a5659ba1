//! What a job's runs left in its record. Most pending jobs never ran and have none of it.
//!
//! Read as fields of the job (`job.started`). Decides only when and where a job is tried again after node
//! failures.

use gmodel::checkpoint::CheckpointMark;
use gmodel::rare::StaticDefault;
use gmodel::{ExitCode, NodeId, Timestamp};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastRuns {
    /// Of the last run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Timestamp>,
    #[serde(default)]
    pub exit: ExitCode,
    /// How it ended, in words, and the user that cancelled it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub end_text: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancelled_by: Option<String>,
    /// Nodes that failed it, one entry a node, newest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub node_failures: Vec<NodeFailure>,
    /// Its last runs in a row that failed by a node's fault.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub failed_runs: u32,
    /// Its last runs in a row under which a node went down.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub downed_runs: u32,
    /// What happened to the GPUs of its last run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpu_events: Vec<String>,
    /// Of its last run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<Box<str>>,
    /// After a node failure it is not tried again before this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub try_after: Option<Timestamp>,
    /// When its last run that was preempted ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preempted: Option<Timestamp>,
    /// Newest checkpoint mark of all its runs; its time is bounded by the controller's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_mark: Option<Box<CheckpointMark>>,
    /// Its priority when its last run was placed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i64>,
    /// MAGNETIC reservations that drew its last run, separated by commas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drawn_into: Option<Box<str>>,
    /// How many of its last runs in a row the idle policy requeued.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub idle_requeues: u32,
}

/// A node that failed a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeFailure {
    pub node: NodeId,
    pub attempt: u32,
    pub at: Timestamp,
    pub text: String,
    /// Launches of the job that failed there in a row: it stays away until [`NodeFailure::barred_until`].
    #[serde(default, skip_serializing_if = "is_zero")]
    pub launches: u32,
    /// The node went down soon after the job's processes had started there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub downed: bool,
}

/// A job is held after so many runs in a row in which a node went down within [`DOWNED_MILLIS`] of their
/// start: it is the likely cause. Failed launches never hold it.
pub const MAX_DOWNED: u32 = 3;

pub(crate) const DOWNED_MILLIS: i64 = 600_000;

/// How long a job stays away from a node that failed to launch it, seconds: the first time, and at most.
const FIRST_BAR_SECS: i64 = 60;
const MAX_BAR_SECS: i64 = 600;

impl NodeFailure {
    /// Until then the job is not started on the node.
    pub fn barred_until(&self) -> Option<Timestamp> {
        let doublings = self.launches.checked_sub(1)?.min(8);
        Some(
            self.at
                .plus_secs((FIRST_BAR_SECS << doublings).min(MAX_BAR_SECS)),
        )
    }
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}

impl StaticDefault for PastRuns {
    fn static_default() -> &'static Self {
        static NONE: PastRuns = PastRuns {
            started: None,
            ended: None,
            exit: ExitCode { code: 0, signal: 0 },
            end_text: String::new(),
            cancelled_by: None,
            node_failures: Vec::new(),
            failed_runs: 0,
            downed_runs: 0,
            gpu_events: Vec::new(),
            image: None,
            try_after: None,
            preempted: None,
            last_mark: None,
            priority: None,
            drawn_into: None,
            idle_requeues: 0,
        };
        &NONE
    }
}
