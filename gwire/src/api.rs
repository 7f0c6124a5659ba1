//! The public REST API under `/v1/`: request and answer bodies, the same for the commands and others.
//!
//! Every answer is one JSON object with `"schema": 1`. Keys may be added and never change meaning;
//! instants are RFC 3339 UTC, `_secs` and `_bytes` integers. Errors are [`ErrorBody`] with a status of
//! 400 (invalid), 403 (denied), 404 (not found), 409 (conflict), 410 (gone), 429 (limit) or 503 (unavailable).
//!
//! | endpoint | body -> answer |
//! |---|---|
//! | `POST /v1/jobs` | [`SubmitRequest`] -> [`SubmitReply`] |
//! | `POST /v1/jobs/dry-run` | [`SubmitRequest`] -> [`DryRun`] |
//! | `GET /v1/jobs?QUERY` | [`JobQuery`] -> `{"schema":1,"jobs":[JobRow...]}`, only the columns asked for; with `limit` and `offset` a part of them and `total`, `newest` by submission |
//! | `GET /v1/jobs/{id}` | -> `{"schema":1,"jobs":[JobRow]}`, all columns, finished jobs too; `{id}` is `17` or `98_5` |
//! | `GET /v1/jobs/{id}/script` | -> `text/plain`; owner and operators |
//! | `GET /v1/jobs/{id}/log` | -> [`LogText`]; what the nodes and the controller did |
//! | `GET /v1/jobs/{id}/wait?timeout_secs=30` | -> as `GET /v1/jobs/{id}`, once it is over or the time is up |
//! | `POST /v1/jobs/cancel` | [`CancelRequest`] -> [`EachResult`] |
//! | `POST /v1/jobs/hold`, `release`, `requeue`, `suspend`, `resume` | [`TargetsRequest`] -> [`EachResult`] |
//! | `POST /v1/jobs/update` | [`UpdateRequest`] -> [`ChangeReply`] |
//! | `POST /v1/jobs/{id}/attend` | [`AttendRequest`] -> [`AttendReply`]; the client of an allocation is there |
//! | `POST /v1/jobs/{id}/end` | [`AllocationEndRequest`] -> [`ChangeReply`]; of an allocation |
//! | `POST /v1/jobs/{id}/steps` | [`StepRequest`] -> [`StepReply`]; from inside the job |
//! | `POST /v1/jobs/{id}/steps/{step}/end` | [`StepEndRequest`] -> [`ChangeReply`] |
//! | `GET /v1/steps?QUERY` | [`JobQuery`] -> `{"schema":1,"steps":[StepRow...]}`, those that run |
//! | `GET /v1/events?QUERY` | [`EventQuery`] -> [`EventRow`]s: lines of JSON, or server-sent events |
//! | `GET /v1/webhooks` | -> `{"schema":1,"webhooks":[WebhookRow...]}`; operators |
//! | `POST /v1/webhooks/{name}/resume` | [`WebhookResume`] -> [`ChangeReply`]; operators |
//! | `GET /v1/nodes` | -> `{"schema":1,"nodes":[NodeRow...]}` |
//! | `GET /v1/cluster` | -> [`ClusterInfo`] |
//! | `GET /v1/partitions`, `/v1/partitions/{name}` | -> `{"schema":1,"partitions":[PartitionRow...]}` |
//! | `POST /v1/nodes/{name}/drain`, `resume`, `down`, `remove` | [`NodeRequest`] -> [`ChangeReply`] |
//! | `GET /v1/runs?QUERY` | [`RunQuery`] -> `{"schema":1,"runs":[RunRow...]}`, accounting, oldest first |
//! | `GET /v1/report?by=account,user&from=..&to=..` | -> `{"schema":1,"rows":[ReportRow...]}` |
//! | `GET /v1/bill?month=2026-11&account=..&by=..` | -> [`Bill`] |
//! | `GET /v1/bill/runs?month=..&account=..`, `/v1/bill/prices?month=..` | -> CSV; JSON |
//! | `POST /v1/bill/close`, `/v1/bill/correct` | [`BillClose`], [`BillCorrection`] -> [`ChangeReply`] |
//! | `GET /v1/utilization?from=..&to=..` | -> `{"schema":1,"known_from":"..","rows":[UtilizationRow...]}`, `cpu` and `gres/gpu` |
//! | `GET /v1/idle`, [`IdleQuery`] as its query | -> [`IdleReportAnswer`]: runs that the idle policies warn and end, or another would |
//! | `GET /v1/trace`, [`TraceQuery`] as its query | -> [`TracePage`]: finished jobs for a simulation; operators |
//! | `POST /v1/tokens` | [`TokenRequest`] -> [`TokenReply`] |
//! | `GET /v1/user-tokens?all=true&everyone=true` | -> `{"schema":1,"tokens":[UserTokenRow...]}` |
//! | `POST /v1/user-tokens` | [`UserTokenRequest`] -> [`UserTokenReply`] |
//! | `POST /v1/user-tokens/{id}/revoke` | -> [`ChangeReply`] |
//! | `POST /v1/web-links` | -> [`WebLinkReply`]; logs one browser in |
//! | `POST /v1/web-sessions/end` | -> [`WebLogoutReply`] |
//! | `POST /v1/join` | [`JoinRequest`] -> [`JoinReply`]; TLS without client certificate |
//! | `POST /v1/renew` | [`JoinRequest`] -> [`JoinReply`]; TLS with a node's certificate |
//! | `GET /v1/policy-events` | -> `{"changes": [`[`PolicyEventRow`]`]}` |
//! | `GET /v1/diag`, `/v1/check`, `/v1/config` | -> [`serde_json::Value`] |
//! | `POST /v1/reload`, `POST /v1/backup` | [`BackupRequest`] -> [`ChangeReply`] |
//! | `POST /v1/reload/dry-run` | -> [`ChangeReply`]; what the changed files would do to which jobs |
//! | `GET /v1/accounts`, `/v1/accounts/{name}` | -> `{"schema":1,"accounts":[AccountRow...]}` |
//! | `POST /v1/accounts/{name}`, `/v1/accounts/{name}/remove` | [`PolicyEdit`] -> [`ChangeReply`] |
//! | `POST /v1/accounts/{name}/users/{user}`, `.../remove` | [`PolicyEdit`] with keys of [`UserRow`] -> [`ChangeReply`] |
//! | `GET /v1/qos`, `/v1/qos/{name}` | -> `{"schema":1,"qos":[QosRow...]}` |
//! | `POST /v1/partitions/{name}`, `/v1/partitions/{name}/remove` | [`PolicyEdit`] -> [`ChangeReply`] |
//! | `POST /v1/qos/{name}`, `/v1/qos/{name}/remove` | [`PolicyEdit`] -> [`ChangeReply`] |
//! | `GET /v1/reservations`, `/v1/reservations/{name}` | -> `{"schema":1,"reservations":[ReservationRow...]}` |
//! | `POST /v1/reservations/{name}`, `/v1/reservations/{name}/remove` | [`PolicyEdit`] -> [`ChangeReply`] |
//! | `GET /v1/licences` | -> `{"schema":1,"licences":[LicenceRow...]}` |
//! | `GET /v1/policy` | -> [`PolicyText`], what `gadm` made; `?all=true` with what is in files |
//! | `POST /v1/policy` | [`PolicyText`] -> [`ChangeReply`]; replaces what `gadm` made |
//! | `GET /v1/jobs/{id}/why` | -> `{"schema":1,"jobs":[WhyRow...]}` |
//! | `GET /v1/starts?QUERY` | [`JobQuery`] -> `{"schema":1,"jobs":[StartRow...]}`, the waiting jobs in their order |
//! | `GET /v1/demand` | -> `{"schema":1,"demand":[DemandRow...]}`, what waits in sums |
//! | `GET /v1/priorities?QUERY` | [`JobQuery`] -> `{"schema":1,"weights":PriorityWeightsRow,"jobs":[PriorityRow...]}`, the waiting jobs in their order |
//! | `GET /v1/shares?user=U&account=A&outlook=true` | -> `{"schema":1,"half_life_secs":604800,"shares":[ShareRow...]}` |
//! | `GET /metrics` | -> Prometheus text |

mod allocation;
mod bill;
mod event_words;
mod events;
mod gpus;
mod idle;
mod nodes;
mod policy;
mod schedule;
mod step;
mod tokens;
mod trace;
mod web;
mod webhooks;

pub use allocation::*;
pub use bill::*;
pub use events::*;
pub use gpus::*;
pub use idle::*;
pub use nodes::*;
pub use policy::*;
pub use schedule::*;
pub use step::*;
pub use tokens::*;
pub use trace::*;
pub use web::*;
pub use webhooks::*;

use crate::row::wire_row;
use gmodel::job::JobSpec;
use gmodel::node::Role;
use gmodel::{ExitCode, Instant, JobId, JobState, ReasonCode, RefusalKind};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

pub const SCHEMA: u32 = 1;
/// The most that a submission may bring along, bytes.
pub const MAX_SCRIPT_BYTES: usize = 4 << 20;
pub const MAX_ENVIRONMENT_BYTES: usize = 1 << 20;
pub const MAX_ARGUMENT_BYTES: usize = 1 << 20;
/// Largest request body the controller reads.
pub const MAX_BODY_BYTES: usize = 8 << 20;

/// As the working directory of a job, or before a `/` in it: the user's home directory, as the controller's host knows it.
pub const HOME: &str = "~";

/// Body of every answer that is not 2xx.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ErrorBody {
    pub schema: u32,
    /// `not_found`, `denied`, `invalid`, `conflict`, `gone`, `limit`, `unavailable`.
    pub code: String,
    pub error: String,
    /// What the refusal is about, where more is known than its code: `partition`, `policy_limit`, `job`.
    #[serde(default, skip_serializing_if = "RefusalKind::is_other")]
    pub about: RefusalKind,
    /// The name of what it is about: the partition that is not there, the limit in Slurm's spelling.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub subject: String,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SubmitRequest {
    /// `spec.user` and the blob ids in `spec.launch` are ignored: the controller fills them in.
    pub spec: JobSpec,
    pub script: String,
    /// `NAME=value`, already filtered by `--export`.
    pub environment: Vec<String>,
    /// Made by the client; the same key from the same user never makes a second job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_key: Option<String>,
    /// The other components of a job of unlike parts. Their script is that of `spec`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<JobSpec>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SubmitReply {
    pub schema: u32,
    pub id: JobId,
    #[serde(default)]
    pub notes: Vec<String>,
    #[serde(default)]
    pub repeated: bool,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct DryRun {
    pub schema: u32,
    /// Nodes it would start on now; empty when it would wait.
    pub nodelist: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<Instant>,
    /// When it would start at the latest if no more urgent job comes, and where; absent where it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_start: Option<Instant>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub expected_nodes: String,
    /// Between when it would start nine times in ten; absent while too little is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<StartInterval>,
    pub cpus: u32,
    pub partition: String,
    /// Why it would wait; empty when it would start at once.
    pub reason: String,
    /// All of it in words; instants in it are RFC 3339 UTC.
    pub text: String,
    /// What stands in its way, and changes that would start it now or soonest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blockers: Vec<BlockerRow>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<ChangeRow>,
    /// Each kind of GPU that it names, in its order; empty where there is no choice and no price.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alternatives: Vec<AlternativeRow>,
    #[serde(default)]
    pub notes: Vec<String>,
}

/// One of the ranked kinds of GPUs that a job names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AlternativeRow {
    /// `h100:4`
    pub gpus: String,
    /// It would start at once with these alone.
    pub starts_now: bool,
    /// Why it could never start with these alone; absent where it could.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub never: Option<String>,
    /// Of all its GPUs, in the site's currency; absent where they have no price.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price_per_hour: Option<f64>,
    /// For the time limit from now on, by the prices of its hours; absent without a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<f64>,
}

/// Filters of a listing. Lists are comma-separated in the URL; empty means all.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobQuery {
    /// `17`, `98_5`, `98` (all tasks).
    #[serde(skip_serializing_if = "String::is_empty")]
    pub job: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub user: String,
    /// Jobs of no such user.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub not_user: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub partition: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub account: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub qos: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reservation: String,
    /// States, long or short; `all` includes finished jobs still in memory. Empty: not finished.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub state: String,
    /// Hostlist: jobs with a node in it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub nodelist: String,
    /// One row per pending array task instead of one per array.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub expand: bool,
    /// Keys of [`JobRow`] to send; empty means all. `id` is always sent.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub columns: String,
    /// Rows as lists of the values of `columns` in their order, `id` first and null for what a row does not have: a long
    /// listing is a third shorter and read in less time.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub bare: bool,
}

wire_row! {
    /// One line of the queue. All keys that a listing can ask for.
    pub struct JobRow<T = String>, keys JobRowKey {
        pub id: u64,
        /// `17`, `17+1`, `98_5`, `98_[7-9,12%2]`.
        pub shown_id: T,
        pub array_id: Option<u64> where present,
        pub array_index: Option<u32> where present,
        /// Pending tasks this row stands for, `7-9,12%2`.
        pub array_tasks: Option<T> where present,
        /// Ids of all components of a job of unlike parts, `17-18`.
        pub component_ids: Option<T> where present,
        pub name: T,
        pub user: T,
        pub uid: u32,
        pub account: T,
        pub partition: T,
        pub qos: T,
        pub state: JobState,
        pub reason: ReasonCode,
        pub reason_text: T where present,
        /// `pulling 62% of 5.1G on node3`, while it waits on its nodes for its image.
        pub pull: T where present,
        pub priority: u64,
        /// Place among all waiting jobs; 1 is next. Absent before a long queue was ranked.
        pub position: Option<u32> where present,
        /// `guaranteed` or `borrowed`; of a waiting job as what it would start. Absent where there are no quotas.
        pub class: Option<T> where present,
        pub nice: i32,
        pub nodes: u32,
        /// Hostlist of a run; empty while pending.
        pub nodelist: T,
        pub cpus: u32,
        pub ntasks: u32,
        /// Memory asked for, as Slurm prints `%m`: `100M`, `4G`.
        pub mem: T,
        pub mem_bytes: u64,
        /// Held, or asked for, on all nodes.
        pub mem_total_bytes: u64,
        /// What `mem` is for: `node`, `cpu` or `gpu`.
        pub mem_per: T where present,
        /// As asked: `h100:4`; empty for none.
        pub gpus: T,
        pub gpu_count: f64,
        /// What `gpus` are for: `job`, `node` or `task`; missing without GPUs.
        pub gpus_per: Option<T> where present,
        /// Held GPUs by node: `node1:h100:0-3`.
        pub gpus_held: Vec<String> where present,
        /// CPUs and memory it holds of each node, its first node first.
        pub held: Vec<HeldRow> where present,
        /// The same by UUID, of GPUs and slices: `node1:GPU-...`.
        pub gpu_uuids: Vec<String> where present,
        /// What befell the GPUs of its last run that is over: `node1: GPU-...: Xid 94`.
        pub gpu_events: Vec<String> where present,
        /// The image of its last run that is over, by its digest: `docker.io/library/ubuntu@sha256:...`.
        pub image: T where present,
        /// The weakest way within what it holds of each node: `node1:NV18`.
        pub gpu_links: Vec<String> where present,
        /// By which its nodes of one NVLink domain share GPU memory.
        pub imex_channel: Option<u32> where present,
        pub time_limit_secs: Option<u32> where present,
        /// Seconds of the present run.
        pub elapsed_secs: i64,
        pub submit_time: Option<Instant>,
        pub eligible_time: Option<Instant>,
        pub start_time: Option<Instant>,
        pub end_time: Option<Instant>,
        pub exit_code: ExitCode,
        pub end_text: T where present,
        pub attempts: u32,
        pub work_dir: T,
        pub command: T,
        pub stdout: T,
        pub stderr: T,
        pub stdin: T,
        pub comment: T,
        /// Which GPUs each task of a step has: `gres/gpu:single:1`.
        pub tres_bind: T where present,
        pub constraint: T,
        pub req_nodelist: T,
        pub exclude: T,
        pub exclusive: bool,
        pub requeue: bool,
        /// What of it is not met: `afterok:17(unfulfilled)`.
        pub dependency: T where present,
        /// `matlab:2,ansys:1`.
        pub licences: T where present,
        pub reservation: Option<T> where present,
        /// Id of the token that it was submitted with.
        pub token: Option<T> where present,
        pub prefer: Option<T> where present,
        pub nvlink: bool where present,
        /// `1@00:30:00`.
        pub switches: Option<T> where present,
        pub time_min_secs: Option<u32> where present,
        pub deadline: Option<Instant> where present,
        /// Whether it may start on GPUs lent by others, as it said.
        pub borrow: Option<bool> where present,
        /// `USR1@120`.
        pub checkpoint: Option<T> where present,
        /// The newest checkpoint that was marked safe.
        pub last_mark: Option<CheckpointMarkRow> where present,
        /// When its last run that was preempted ended.
        pub preempted_time: Option<Instant> where present,
        /// Of its runs, how many were preempted; only where one job is asked for.
        pub preemptions: Option<u32> where present,
        /// The job that its run gives way to.
        pub preempted_for: Option<T> where present,
        pub submit_host: T,
        pub tags: Vec<String>,
        pub holds: Vec<MarkRow> where present,
        pub later: BTreeMap<String, String> where present,
        pub mail_type: Option<T> where present,
        pub mail_user: Option<T> where present,
        /// In words: how long its GPUs have done nothing, and what follows.
        pub idle: Option<T> where present,
        /// An operator exempted it from idle policies.
        pub idle_exempt: bool where present,
        /// It has no script: its client starts steps in it, and ends it.
        pub allocation: bool where present,
    }
}

/// What a job holds of one node beside GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldRow {
    pub node: String,
    pub cpus: u32,
    pub mem_bytes: u64,
}

/// A checkpoint that its job marked as safe.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CheckpointMarkRow {
    pub number: u32,
    pub at: Option<Instant>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub note: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MarkRow {
    pub owner: String,
    pub reason: String,
    pub since: Instant,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TargetsRequest {
    /// `17`, `98_5`, `98_[1-3]`; several are fine.
    pub jobs: Vec<String>,
    pub reason: String,
    /// `requeue`: hold it afterwards.
    pub hold: bool,
    /// `hold`: the job's owner may release it, whichever user makes it.
    pub for_owner: bool,
}

/// Cancel by id, by filter, or ids narrowed by a filter. One of them must be there.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CancelRequest {
    pub jobs: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filter: Option<JobQuery>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<u8>,
    /// To the script's shell only.
    pub batch_only: bool,
    /// To the script's shell and all that it started.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub full: bool,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct EachResult {
    pub schema: u32,
    pub results: Vec<OneResult>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct OneResult {
    /// `17`, `98_5`; of tasks that were named together those that fared alike: `98_[0-4,7]`.
    pub job: String,
    pub ok: bool,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub code: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub error: String,
    /// As in an [`ErrorBody`].
    #[serde(skip_serializing_if = "RefusalKind::is_other")]
    pub about: RefusalKind,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct UpdateRequest {
    pub job: String,
    /// Keys of [`gmodel::job_key::KEYS`]. Of `time_limit_secs` null is UNLIMITED, of others none.
    pub change: BTreeMap<String, serde_json::Value>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeRequest {
    pub reason: String,
    /// Of `drain`: what still runs then is told to write its checkpoint and goes back to the queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Instant>,
    /// Of `features`: what the node may have, and what of it jobs may ask for now; neither takes back what was set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available_features: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active_features: Option<Vec<String>>,
    /// Of `down`: it is off for certain, so the fence program is not called.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub fenced: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ChangeReply {
    pub schema: u32,
    #[serde(default)]
    pub notes: Vec<String>,
}

/// Filters of the accounting listing. Instants RFC 3339.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RunQuery {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub job: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub user: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub account: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub partition: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub qos: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub state: String,
    /// Hostlist: jobs that ran on a node in it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub nodelist: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<Instant>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<Instant>,
    /// One row per attempt instead of the last attempt of each job.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub attempts: bool,
    /// With the steps of each row.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub steps: bool,
    /// With [`RunDetail`], which takes longer to find.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub detail: bool,
    /// Keys of [`RunRow`], comma separated: `id` comes first and always. Empty is all of them, but for `steps` and `detail`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub columns: String,
    /// Rows are lists of the values in the order of `columns`, null for what is not there, instead of objects.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub bare: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// What any user may know of the cluster as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClusterInfo {
    pub schema: u32,
    pub name: String,
    /// Of the controller.
    pub version: String,
    /// The machine that the controller runs on.
    pub host: String,
    /// So long after its end a job is in listings of the queue that ask for all states.
    pub min_job_age_secs: u32,
    /// Tasks that an array may have.
    pub max_array_tasks: u32,
    /// `time_zone` of gpuctld.toml, where that says one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<gmodel::TimeZone>,
}

/// What few ask about a job in accounting.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RunDetail {
    pub cluster: String,
    pub uid: u32,
    pub gid: u32,
    /// From when it might have started.
    pub eligible_time: Option<Instant>,
    /// What it was worth when its last run was placed; of one that waits, what it is worth.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i64>,
    /// What was asked for, on all nodes.
    pub req_nodes: u32,
    pub req_cpus: u32,
    pub req_mem_bytes: u64,
    pub req_gpus: f64,
    /// The highest of its steps.
    pub derived_exit_code: ExitCode,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reservation: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub constraint: String,
}

wire_row! {
    /// One job (or attempt) in accounting: sacct's line.
    pub struct RunRow<T = String>, keys RunRowKey {
        pub id: u64,
        pub shown_id: T,
        pub attempt: u32,
        pub array_id: Option<u64> where present,
        pub array_index: Option<u32> where present,
        /// Tasks this row stands for, `7-9`: those that were cancelled before they began.
        pub array_tasks: Option<T> where present,
        pub name: T,
        pub user: T,
        pub account: T,
        pub partition: T,
        pub qos: T,
        pub state: JobState,
        pub exit_code: ExitCode,
        pub end_text: T,
        pub submit_time: Option<Instant>,
        pub start_time: Option<Instant>,
        pub end_time: Option<Instant>,
        /// From start to end, without the time in which it stood still.
        pub elapsed_secs: i64,
        /// So long it stood still.
        pub suspended_secs: i64,
        pub time_limit_secs: Option<u32> where present,
        pub nodes: u32,
        pub nodelist: T,
        pub cpus: u32,
        pub mem_bytes: u64,
        /// `h100:4`; empty for none.
        pub gpus: T,
        pub gpu_count: f64,
        pub cpu_time_secs: f64,
        pub peak_memory_bytes: u64,
        /// What was used of the CPU time and of the memory that it held; absent before the end.
        pub cpu_percent: Option<f64> where present,
        pub mem_percent: Option<f64> where present,
        pub work_dir: T,
        pub comment: T,
        /// Which GPUs each task of a step has: `gres/gpu:single:1`.
        pub tres_bind: T where present,
        pub tags: Vec<String>,
        /// `guaranteed` or `borrowed`, as the run last stood; absent where there were no quotas.
        pub class: Option<T> where present,
        /// GPU-seconds of work since the last checkpoint mark that a preemption, requeue or drain threw away.
        pub lost_gpu_secs: u64,
        /// What it made of its GPUs; absent without samples.
        pub gpu_use: Option<GpuUseRow> where present,
        /// The GPUs and slices that it held: `node1:GPU-...`. Runs of releases before have none.
        pub gpu_uuids: Vec<String>,
        /// What befell them while it ran: `node1: GPU-...: Xid 94`.
        pub gpu_events: Vec<String>,
        /// The image of its script, else of its first step in one: `docker.io/library/ubuntu@sha256:...`, or a path.
        pub image: Option<T> where present,
        /// The user that cancelled it.
        pub cancelled_by: Option<T> where present,
        /// Only where they were asked for: of its batch script and what gruns started, in their order.
        pub steps: Vec<StepRow> where present,
        /// Only where it was asked for.
        pub detail: Option<Box<RunDetail>> where present,
    }
}

/// One group of a usage report.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ReportRow {
    /// Values of the `by` columns, in order: account, user, partition, gpu-type, tag, class, gpus, cpus.
    pub group: Vec<String>,
    pub jobs: u64,
    pub gpu_hours: f64,
    pub cpu_hours: f64,
    /// By the prices of the TOML, as they were at the time of use; absent where there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<f64>,
    /// CPU-hours that ended runs used of those they held.
    pub cpu_used_hours: f64,
    /// GiB of memory held, and the largest part of it used at any time, both times the time held.
    pub mem_gib_hours: f64,
    pub mem_peak_gib_hours: f64,
    /// GPU-hours for which the use is known, of these the ones in which GPUs worked (by their mean use) and those
    /// without any use at all.
    pub gpu_told_hours: f64,
    pub gpu_busy_hours: f64,
    pub gpu_idle_hours: f64,
    pub energy_kwh: f64,
    /// What was used of what was held; absent where that is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_percent: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mem_percent: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_percent: Option<f64>,
}

/// What became of the CPUs or GPUs that the nodes had in a time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct UtilizationRow {
    /// `cpu` or `gres/gpu`.
    pub tres: String,
    /// All there were; the three below add up to it.
    pub hours: f64,
    pub allocated_hours: f64,
    /// Of nodes that did not answer, took no work or were drained, without what ran there.
    pub down_hours: f64,
    pub idle_hours: f64,
}

impl ReportRow {
    /// Adds another group's use, but for percentages: they are of the sum.
    pub fn add(&mut self, other: &Self) {
        self.jobs += other.jobs;
        self.gpu_hours += other.gpu_hours;
        self.cpu_hours += other.cpu_hours;
        self.cost = match (self.cost, other.cost) {
            (Some(one), Some(more)) => Some(one + more),
            (one, more) => one.or(more),
        };
        self.cpu_used_hours += other.cpu_used_hours;
        self.mem_gib_hours += other.mem_gib_hours;
        self.mem_peak_gib_hours += other.mem_peak_gib_hours;
        self.gpu_told_hours += other.gpu_told_hours;
        self.gpu_busy_hours += other.gpu_busy_hours;
        self.gpu_idle_hours += other.gpu_idle_hours;
        self.energy_kwh += other.energy_kwh;
        self.set_percents();
    }

    /// Percentages from the hours.
    pub fn set_percents(&mut self) {
        let percent =
            |used: f64, held: f64| (held > 0.0 && used > 0.0).then(|| used / held * 100.0);
        self.cpu_percent = percent(self.cpu_used_hours, self.cpu_hours);
        self.mem_percent = percent(self.mem_peak_gib_hours, self.mem_gib_hours);
        // A GPU that was watched and did nothing was used by 0 %.
        self.gpu_percent =
            (self.gpu_told_hours > 0.0).then(|| self.gpu_busy_hours / self.gpu_told_hours * 100.0);
    }
}

/// What happened to a job, and what its last run's nodes wrote of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LogText {
    pub schema: u32,
    #[serde(default)]
    pub events: Vec<LogEvent>,
    /// `node1: 2026-11-20T09:05:27Z prolog took 3 ms`.
    pub lines: Vec<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LogEvent {
    pub at: Instant,
    /// The fact in words; instants in it are RFC 3339 UTC.
    pub text: String,
    /// The fact as the controller stored it: for looking closer. Its keys are the release's own.
    pub event: serde_json::Value,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TokenRequest {
    pub role: Role,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Seconds until it expires; the controller caps it at 7 days.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_secs: Option<u32>,
    /// For login nodes: operators may administer from there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub admin: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TokenReply {
    pub schema: u32,
    /// `SECRET.SHA256-OF-CA`: what `gpud join --token` takes.
    pub token: String,
    pub expires: Instant,
    /// `HOST:PORT` the controller listens on for nodes.
    pub controller: String,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct JoinRequest {
    /// The secret part of the token; empty when renewing.
    pub secret: String,
    pub name: String,
    /// Certificate signing request, PEM. Subject and extensions in it are ignored.
    pub csr_pem: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct JoinReply {
    pub schema: u32,
    pub name: String,
    pub role: Role,
    #[serde(default)]
    pub admin: bool,
    pub cert_pem: String,
    pub ca_pem: String,
    pub cluster: String,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct BackupRequest {
    /// Absolute path on the controller's host.
    pub path: String,
}

/// What a request asks its connection to become (`Upgrade:`): a step's stream, `gmodel/src/resumable_stream.rs`.
pub const STREAM_UPGRADE: &str = "gpupool-stream";

/// The user that the forwarding daemon saw on its unix socket, sent by gpud with each forwarded request.
pub const FORWARD_HEADER: &str = "x-gpupool-peer";
