//! Jobs and arrays as documents: everything but the request, which has a row of its own.
//!
//! The patterns below name every field, so that a new one cannot be forgotten here.

use gcore::ctl::Waits;
use gcore::ctl::state::{Array, Job, NodeFailure, TaskOf};
use gmodel::checkpoint::Mark as CheckpointMark;
use gmodel::array_spec::{ArraySpec, RangeSet};
use gmodel::node::Mark;
use gmodel::{ExitCode, JobId, JobSpec, JobState, Reason, Timestamp};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

#[derive(Serialize, Deserialize)]
pub struct JobDocument {
    id: JobId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    task: Option<TaskOf>,
    state: JobState,
    #[serde(default)]
    reason: Reason,
    submitted: Timestamp,
    eligible: Timestamp,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    holds: Vec<Mark>,
    #[serde(default)]
    attempts: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    live: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    limit_secs: Option<u32>,
    #[serde(default)]
    nice: i32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    started: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ended: Option<Timestamp>,
    #[serde(default)]
    exit: ExitCode,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    end_text: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cancelled_by: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    node_failures: Vec<NodeFailure>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    client_key: Option<Arc<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    waits: Option<Box<Waits>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    preempted: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last_mark: Option<Box<CheckpointMark>>,
}

impl JobDocument {
    pub fn of(job: &Job) -> Self {
        let Job {
            id, spec: _, task, state, reason, submitted, eligible, holds, attempts, live, limit_secs, nice,
            started, ended, exit, end_text, cancelled_by, node_failures, client_key, waits, preempted, last_mark,
        } = job.clone();
        Self {
            id, task, state, reason, submitted, eligible, holds, attempts, live, limit_secs, nice, started,
            ended, exit, end_text, cancelled_by, node_failures, client_key, waits, preempted, last_mark,
        }
    }
    pub fn with_spec(self, spec: Arc<JobSpec>) -> Job {
        let Self {
            id, task, state, reason, submitted, eligible, holds, attempts, live, limit_secs, nice, started,
            ended, exit, end_text, cancelled_by, node_failures, client_key, waits, preempted, last_mark,
        } = self;
        Job {
            id, spec, task, state, reason, submitted, eligible, holds, attempts, live, limit_secs, nice,
            started, ended, exit, end_text, cancelled_by, node_failures, client_key, waits, preempted, last_mark,
        }
    }
}

#[derive(Serialize, Deserialize)]
pub struct ArrayDocument {
    id: JobId,
    tasks: ArraySpec,
    pending: RangeSet,
    cancelled: RangeSet,
    #[serde(default)]
    own_pending: u32,
    #[serde(default)]
    own_live: u32,
    #[serde(default)]
    reason: Reason,
    submitted: Timestamp,
    eligible: Timestamp,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    holds: Vec<Mark>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    limit_secs: Option<u32>,
    #[serde(default)]
    nice: i32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cancelled_by: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ended: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    client_key: Option<Arc<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    waits: Option<Box<Waits>>,
    #[serde(default)]
    unsuccessful: u32,
}

impl ArrayDocument {
    pub fn of(array: &Array) -> Self {
        let Array {
            id, spec: _, tasks, pending, cancelled, own_pending, own_live, reason, submitted, eligible, holds,
            limit_secs, nice, cancelled_by, ended, client_key, waits, unsuccessful,
        } = array.clone();
        Self {
            id, tasks, pending, cancelled, own_pending, own_live, reason, submitted, eligible, holds,
            limit_secs, nice, cancelled_by, ended, client_key, waits, unsuccessful,
        }
    }
    pub fn with_spec(self, spec: Arc<JobSpec>) -> Array {
        let Self {
            id, tasks, pending, cancelled, own_pending, own_live, reason, submitted, eligible, holds,
            limit_secs, nice, cancelled_by, ended, client_key, waits, unsuccessful,
        } = self;
        Array {
            id, spec, tasks, pending, cancelled, own_pending, own_live, reason, submitted, eligible, holds,
            limit_secs, nice, cancelled_by, ended, client_key, waits, unsuccessful,
        }
    }
}
