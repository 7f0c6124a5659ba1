//! What happened, as `GET /v1/events` tells it: one row for an event, the same in a stream, a webhook and `gq events --json`.
//!
//! Keys and kinds may be added and never change their meaning; a reader passes over what it does not know.

use gmodel::{ExitCode, Instant, JobState};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The media types of the two forms.
pub const EVENT_STREAM: &str = "text/event-stream";
pub const JSON_LINES: &str = "application/jsonl";
/// Most events of one answer that is not followed.
pub const MAX_EVENTS: u32 = 10_000;

/// Kinds with their names and what each says.
macro_rules! event_kinds {
    ($($kind:ident $name:literal $meaning:literal),* $(,)?) => {
        /// What happened.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum EventKind { $($kind),* }

        impl EventKind {
            pub const ALL: &[Self] = &[$(Self::$kind),*];

            /// `job_ended`.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$kind => $name),* }
            }

            /// A sentence for documents and help.
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$kind => $meaning),* }
            }
        }
    };
}

event_kinds! {
    JobSubmitted "job_submitted" "A job or an array was accepted.",
    JobHeld "job_held" "A job, an array or some of its tasks were held; `by`, `text`.",
    JobReleased "job_released" "A hold was taken off.",
    JobChanged "job_changed" "The request was edited; `changed` names the keys.",
    JobStarted "job_started" "A run began: `run`, `nodelist`, `gpus`.",
    JobAdopted "job_adopted" "After a restore a node brought a running job back.",
    JobSuspended "job_suspended" "The processes of a run were stopped.",
    JobResumed "job_resumed" "A suspended run goes on.",
    JobStopping "job_stopping" "A run was told to end; `reason` says why. `job_ended` or `job_requeued` follows.",
    JobPreempted "job_preempted" "A run was told to give way to another job. `job_ended` or `job_requeued` follows.",
    JobEnded "job_ended" "A run ended and the job is over: `state`, `exit_code`, `text`.",
    JobRequeued "job_requeued" "The job waits again, after a run that ended in `state` or because a user asked.",
    JobCancelled "job_cancelled" "A job or tasks that waited are over: cancelled, or a deadline passed.",
    ArrayEnded "array_ended" "All tasks of an array are over; `states` counts them.",
    NodeJoined "node_joined" "A machine became a node.",
    NodeRemoved "node_removed" "A node is none any more.",
    NodeUp "node_up" "A node is connected.",
    NodeSilent "node_silent" "The connection of a node was lost; its jobs go on.",
    NodeDown "node_down" "A node counts as down.",
    NodeDrained "node_drained" "A node takes no new work; `by`, `text`.",
    NodeResumed "node_resumed" "A drain was taken off.",
    NodeFenced "node_fenced" "A lost node is off.",
    GpuQuarantined "gpu_quarantined" "A GPU is out of service: `gpu`, `node`, `text`.",
    GpuHealthy "gpu_healthy" "A GPU is back in service.",
    ReservationChanged "reservation_changed" "A reservation was made or edited.",
    ReservationRemoved "reservation_removed" "A reservation is gone.",
    PolicyChanged "policy_changed" "An account, a user in one, a QOS or a partition was edited. For operators.",
    ClusterConfigured "cluster_configured" "The controller read its files. For operators.",
    ClusterRestored "cluster_restored" "A backup was restored, or ids of events before it are void.",
    Cursor "cursor" "Nothing happened: up to `id` there is no further event for this reader.",
}

impl EventKind {
    /// All that happens: without the cursor.
    pub fn told() -> impl Iterator<Item = Self> {
        let all = Self::ALL.iter().copied();
        all.filter(|kind| *kind != Self::Cursor)
    }

    /// What it is about: the word before the first `_`.
    pub fn family(self) -> &'static str {
        self.name().split('_').next().unwrap_or_default()
    }
}

/// One event. What does not apply is absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EventRow {
    pub schema: u32,
    /// Its place: give the last one as `after`, and what follows comes. `1-40213`, or `1-40213.0` where a second event has the number.
    pub id: String,
    /// The number in `id`.
    pub seq: u64,
    pub time: Instant,
    /// One of [`EventKind`].
    pub kind: String,
    #[serde(flatten)]
    pub job: EventJob,
    #[serde(flatten)]
    pub run: EventRun,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node: String,
    /// UUID of a GPU.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub gpu: String,
    /// Of a change of policy: `account`, `user`, `qos`, `partition`, `reservation` or `all`, and its name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub record: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub record_name: String,
    /// Keys of the request that were edited.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub changed: Vec<String>,
    /// The user that did it, or the owner of a mark.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub by: String,
    /// A word for programs: `cancelled`, `drained`, `DeadLine`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// A sentence for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub text: String,
    /// Of a `cursor` at the end of an answer: it was full, and there may be more after `id`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub more: bool,
}

/// The job of an event, in keys of the event's own object.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EventJob {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job_id: Option<u64>,
    /// `17`, `98_5` of a task, `98` of an array.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub shown_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub array_id: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub array_index: Option<u32>,
    /// Of an event of several tasks: which, `1-5,9`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub array_tasks: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub user: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub account: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub partition: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub qos: String,
}

/// What is said of a run, in keys of the event's own object.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EventRun {
    /// Number of the run: 1 for the first.
    #[serde(rename = "run", skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub nodelist: String,
    /// GPUs of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpus: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<JobState>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<ExitCode>,
    /// Of an array that is over: how many tasks in which state.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub states: BTreeMap<String, u64>,
}

/// The query of `GET /v1/events`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EventQuery {
    /// An `id`, or a number; 0: from the oldest. Absent: what comes from now on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// In place of `after`: from this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Instant>,
    /// Kinds with commas between, or families of them: `job,node_down`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kinds: String,
    /// Events of jobs of these accounts only.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub account: String,
    /// Events of this job only: `17`, `98` with its tasks, `98_5`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub job: String,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub follow: bool,
    /// Most events of an answer that is not followed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}
