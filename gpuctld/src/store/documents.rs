//! Jobs and arrays as documents: everything but what their request has in common with others, which has a row of its own.
//!
//! The patterns below name every field, so that a new one cannot be forgotten here.

use gcore::ctl::state::PastRuns;
use gcore::ctl::state::{Array, DroppedTasks, Job, NodeFailure, TaskOf};
use gcore::ctl::{HeldTasks, OpenDependency, RecentSpecs};
use gmodel::array_spec::{ArraySpec, RangeSet};
use gmodel::checkpoint::CheckpointMark;
use gmodel::job::Launch;
use gmodel::node::HoldMark;
use gmodel::{BlobId, ExitCode, JobId, JobSpec, JobState, NodeId, Reason, ReasonCode, Timestamp};
use gsched::Nomination;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What a job has for itself of its request.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct OwnLaunch {
    name: String,
    #[serde(skip_serializing_if = "BlobId::is_empty")]
    script: BlobId,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    argv: Vec<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    command: String,
}

impl OwnLaunch {
    fn of(spec: &JobSpec) -> Self {
        let JobSpec {
            name,
            launch:
                Launch {
                    script,
                    argv,
                    command,
                    around: _,
                },
            common: _,
        } = spec.clone();
        Self {
            name,
            script,
            argv,
            command,
        }
    }
    fn with_common(self, common: &JobSpec) -> JobSpec {
        let Self {
            name,
            script,
            argv,
            command,
        } = self;
        let launch = Launch {
            script,
            argv,
            command,
            around: common.launch.around.clone(),
        };
        JobSpec {
            name,
            launch,
            common: common.common.clone(),
        }
    }
}

/// A request without what a job has for itself: the row that jobs share.
pub fn common_part(spec: &JobSpec) -> JobSpec {
    OwnLaunch::default().with_common(spec)
}

/// The request of a row. Until schema 3 the row in common had all of it.
fn whole(own: Option<OwnLaunch>, common: Arc<JobSpec>, late: &mut RecentSpecs) -> Arc<JobSpec> {
    match own {
        Some(own) => late.share(own.with_common(&common)),
        None => common,
    }
}

/// A reason as a row has it. Releases without nominations kept the nodes of one with it, and knew one by its code.
#[derive(Default, Serialize, Deserialize)]
struct StoredReason {
    #[serde(flatten)]
    reason: Reason,
    #[serde(default, skip_serializing)]
    nodes: Option<Arc<Vec<NodeId>>>,
}

impl StoredReason {
    fn of(reason: Reason) -> Self {
        Self {
            reason,
            nodes: None,
        }
    }

    fn nomination(&self) -> Option<Nomination> {
        let is_nominated = self.reason.code == ReasonCode::Preempting;
        is_nominated.then(|| Nomination {
            nodes: self.nodes.clone().unwrap_or_default(),
        })
    }
}

#[derive(Serialize, Deserialize)]
pub struct JobDocument {
    id: JobId,
    #[serde(default)]
    own: Option<OwnLaunch>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    task: Option<TaskOf>,
    state: JobState,
    #[serde(default)]
    reason: StoredReason,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    nomination: Option<Nomination>,
    submitted: Timestamp,
    eligible: Timestamp,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    holds: Vec<HoldMark>,
    #[serde(default)]
    attempts: u32,
    #[serde(default, skip_serializing_if = "is_zero")]
    skipped_attempts: u32,
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
    #[serde(default, skip_serializing_if = "is_zero")]
    failed_runs: u32,
    #[serde(default, skip_serializing_if = "is_zero")]
    downed_runs: u32,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    gpu_events: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    image: Option<Box<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    try_after: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    client_key: Option<Arc<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    waits: Option<Box<OpenDependency>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    preempted: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last_mark: Option<Box<CheckpointMark>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    priority: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    drawn_into: Option<Box<str>>,
    #[serde(default, skip_serializing_if = "is_zero")]
    idle_requeues: u32,
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}

impl JobDocument {
    pub fn from_job(job: &Job) -> Self {
        let Job {
            id,
            spec,
            task,
            state,
            reason,
            nomination,
            submitted,
            eligible,
            holds,
            attempts,
            skipped_attempts,
            live,
            limit_secs,
            nice,
            client_key,
            waits,
            past,
        } = job.clone();
        let PastRuns {
            started,
            ended,
            exit,
            end_text,
            cancelled_by,
            node_failures,
            failed_runs,
            downed_runs,
            gpu_events,
            image,
            try_after,
            preempted,
            last_mark,
            priority,
            drawn_into,
            idle_requeues,
        } = (*past).clone();
        let own = Some(OwnLaunch::of(&spec));
        Self {
            id,
            own,
            task,
            state,
            reason: StoredReason::of(reason),
            nomination,
            submitted,
            eligible,
            holds,
            attempts,
            skipped_attempts,
            live,
            limit_secs,
            nice,
            started,
            ended,
            exit,
            end_text,
            cancelled_by,
            node_failures,
            failed_runs,
            downed_runs,
            gpu_events,
            image,
            try_after,
            client_key,
            waits,
            preempted,
            last_mark,
            priority,
            drawn_into,
            idle_requeues,
        }
    }
    pub fn with_spec(self, common: Arc<JobSpec>, late: &mut RecentSpecs) -> Job {
        let Self {
            id,
            own,
            task,
            state,
            reason,
            nomination,
            submitted,
            eligible,
            holds,
            attempts,
            skipped_attempts,
            live,
            limit_secs,
            nice,
            started,
            ended,
            exit,
            end_text,
            cancelled_by,
            node_failures,
            failed_runs,
            downed_runs,
            gpu_events,
            image,
            try_after,
            client_key,
            waits,
            preempted,
            last_mark,
            priority,
            drawn_into,
            idle_requeues,
        } = self;
        let spec = whole(own, common, late);
        let past = PastRuns {
            started,
            ended,
            exit,
            end_text,
            cancelled_by,
            node_failures,
            failed_runs,
            downed_runs,
            gpu_events,
            image,
            try_after,
            preempted,
            last_mark,
            priority,
            drawn_into,
            idle_requeues,
        }
        .into();
        Job {
            id,
            spec,
            task,
            state,
            nomination: nomination.or_else(|| reason.nomination()),
            reason: reason.reason,
            submitted,
            eligible,
            holds,
            attempts,
            skipped_attempts,
            live,
            limit_secs,
            nice,
            client_key,
            waits,
            past,
        }
    }
}

#[derive(Serialize, Deserialize)]
pub struct ArrayDocument {
    id: JobId,
    #[serde(default)]
    own: Option<OwnLaunch>,
    tasks: ArraySpec,
    pending: RangeSet,
    cancelled: RangeSet,
    #[serde(default)]
    own_pending: u32,
    #[serde(default)]
    own_live: u32,
    #[serde(default)]
    reason: StoredReason,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    nomination: Option<Nomination>,
    submitted: Timestamp,
    eligible: Timestamp,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    holds: Vec<HoldMark>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    limit_secs: Option<u32>,
    #[serde(default)]
    nice: i32,
    #[serde(flatten)]
    dropped: DroppedTasks,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ended: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    client_key: Option<Arc<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    waits: Option<Box<OpenDependency>>,
    #[serde(default)]
    unsuccessful: u32,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    apart: Vec<HeldTasks>,
}

impl ArrayDocument {
    pub fn of(array: &Array) -> Self {
        let Array {
            id,
            spec,
            tasks,
            pending,
            cancelled,
            own_pending,
            own_live,
            reason,
            nomination,
            submitted,
            eligible,
            holds,
            limit_secs,
            nice,
            dropped,
            ended,
            client_key,
            waits,
            unsuccessful,
            apart,
        } = array.clone();
        let own = Some(OwnLaunch::of(&spec));
        Self {
            id,
            own,
            tasks,
            pending,
            cancelled,
            own_pending,
            own_live,
            reason: StoredReason::of(reason),
            nomination,
            submitted,
            eligible,
            holds,
            limit_secs,
            nice,
            dropped,
            ended,
            client_key,
            waits,
            unsuccessful,
            apart,
        }
    }
    pub fn with_spec(self, common: Arc<JobSpec>, late: &mut RecentSpecs) -> Array {
        let Self {
            id,
            own,
            tasks,
            pending,
            cancelled,
            own_pending,
            own_live,
            reason,
            nomination,
            submitted,
            eligible,
            holds,
            limit_secs,
            nice,
            dropped,
            ended,
            client_key,
            waits,
            unsuccessful,
            apart,
        } = self;
        let spec = whole(own, common, late);
        Array {
            id,
            spec,
            tasks,
            pending,
            cancelled,
            own_pending,
            own_live,
            nomination: nomination.or_else(|| reason.nomination()),
            reason: reason.reason,
            submitted,
            eligible,
            holds,
            limit_secs,
            nice,
            dropped,
            ended,
            client_key,
            waits,
            unsuccessful,
            apart,
        }
    }
}
