//! Bodies of the API that are about policy: accounts, users, QOS, reservations, licences, priorities, shares, quotas.
//!
//! Keys are those of the TOML in gpuctld.toml(5). GPUs are numbers by type, in which `gpu` is all types together:
//! `{"h100": 16, "gpu": 32}`. An edit is a set of keys to change; `null` takes a key's bound away.

use super::IdlePolicyRow;
use gmodel::Instant;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// GPUs by type; `gpu` is all types together.
pub type Gpus = BTreeMap<String, f64>;

/// A change of one record. `+KEY` and `-KEY` add to and take from a list.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PolicyEdit {
    /// The record is new: one that exists is refused. Otherwise one that does not exist is.
    pub create: bool,
    pub change: BTreeMap<String, serde_json::Value>,
}

/// An account: its record, and what it holds now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AccountRow {
    pub name: String,
    pub parent: Option<String>,
    pub description: String,
    pub shares: u32,
    pub guaranteed: Option<Gpus>,
    pub limit: Option<Gpus>,
    pub lend_limit: Option<Gpus>,
    pub budgets: Vec<BudgetRow>,
    pub group: LimitsRow,
    pub per_user: LimitsRow,
    pub allow_qos: Vec<String>,
    pub default_qos: Option<String>,
    pub coordinators: BTreeSet<String>,
    pub users: BTreeMap<String, UserRow>,
    /// Only `users` and coordinators may use it, also when there are none.
    pub users_only: bool,
    pub closed: bool,
    /// GPUs held by it and those below it, within its guarantee and beyond.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub guaranteed_held: Gpus,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub borrowed_held: Gpus,
    /// What runs of QOS that are outside of quotas hold: limits count it, guarantees do not.
    #[serde(skip_serializing_if = "Gpus::is_empty")]
    pub outside_held: Gpus,
    /// Where it is written, `FILE:LINE`; absent for what `gadm` made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
}

impl Default for AccountRow {
    fn default() -> Self {
        Self {
            name: String::new(),
            parent: None,
            description: String::new(),
            shares: 1,
            guaranteed: None,
            limit: None,
            lend_limit: None,
            budgets: Vec::new(),
            group: LimitsRow::default(),
            per_user: LimitsRow::default(),
            allow_qos: Vec::new(),
            default_qos: None,
            coordinators: BTreeSet::new(),
            users: BTreeMap::new(),
            users_only: false,
            closed: false,
            guaranteed_held: Gpus::new(),
            borrowed_held: Gpus::new(),
            outside_held: Gpus::new(),
            file: None,
        }
    }
}

/// GPU-hours in calendar periods. `kind` is `guaranteed` or `cap`; `period` day, week, month, quarter or year.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BudgetRow {
    pub kind: String,
    pub gpu_hours: u64,
    pub period: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_type: Option<String>,
    /// Used in the present period, with what runs now so far. Not read back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used_gpu_hours: Option<f64>,
    /// What runs now may still use in it by their time limits. Not read back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub promised_gpu_hours: Option<f64>,
    /// When the next period begins, with nothing used. Not read back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resets: Option<Instant>,
}

/// A user in an account.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct UserRow {
    pub shares: u32,
    /// The account of jobs that name none.
    pub default: bool,
    #[serde(flatten)]
    pub limits: LimitsRow,
}

impl Default for UserRow {
    fn default() -> Self {
        Self {
            shares: 1,
            default: false,
            limits: LimitsRow::default(),
        }
    }
}

/// Bounds on what is held at once; absent is no bound.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LimitsRow {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running_jobs: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub submitted_jobs: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpus: Option<Gpus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running_gpu_hours: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub array_tasks: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub submits_per_minute: Option<u32>,
}

impl LimitsRow {
    /// The bounds there are, by key, as `gpus` and decimal numbers write them.
    pub fn bounds(&self, gpus: impl Fn(&Gpus) -> String) -> Vec<(&'static str, String)> {
        let count = |count: Option<u32>| count.map(|count| count.to_string());
        let all = [
            ("running_jobs", count(self.running_jobs)),
            ("submitted_jobs", count(self.submitted_jobs)),
            ("gpus", self.gpus.as_ref().map(gpus)),
            ("cpus", count(self.cpus)),
            ("nodes", count(self.nodes)),
            (
                "running_gpu_hours",
                self.running_gpu_hours.map(|hours| hours.to_string()),
            ),
            ("array_tasks", count(self.array_tasks)),
            ("submits_per_minute", count(self.submits_per_minute)),
        ];
        all.into_iter()
            .filter_map(|(key, bound)| Some((key, bound?)))
            .collect()
    }
}

/// Bounds on one job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobLimitsRow {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_time_secs: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpus: Option<Gpus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_gpus: Option<Gpus>,
}

/// A quality of service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct QosRow {
    pub name: String,
    pub description: String,
    pub priority: u32,
    pub usage_factor: f64,
    pub preempt: BTreeSet<String>,
    /// `off`, `requeue`, `cancel`, `suspend`; absent: as the partition says.
    pub preempt_mode: Option<String>,
    pub min_run_secs: u32,
    pub group: LimitsRow,
    pub per_user: LimitsRow,
    pub per_account: LimitsRow,
    pub per_job: JobLimitsRow,
    pub headroom: Option<Gpus>,
    pub outside_quota: bool,
    /// What is done about its runs with idle GPUs; absent: as the partition says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle: Option<IdlePolicyRow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
}

impl Default for QosRow {
    fn default() -> Self {
        Self {
            name: String::new(),
            description: String::new(),
            priority: 0,
            usage_factor: 1.0,
            preempt: BTreeSet::new(),
            preempt_mode: None,
            min_run_secs: 0,
            group: LimitsRow::default(),
            per_user: LimitsRow::default(),
            per_account: LimitsRow::default(),
            per_job: JobLimitsRow::default(),
            headroom: None,
            outside_quota: false,
            idle: None,
            file: None,
        }
    }
}

/// A reservation. One of `nodes`, `node_count` and `gpus` says what is reserved.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReservationRow {
    pub name: String,
    pub start: Option<Instant>,
    pub duration_secs: u32,
    /// `once`, `hourly`, `daily`, `weekday`, `weekend`, `weekly`.
    pub repeat: String,
    /// A host list, or `ALL`.
    pub nodes: Option<String>,
    pub node_count: Option<u32>,
    pub gpus: Option<Gpus>,
    pub users: BTreeSet<String>,
    pub accounts: BTreeSet<String>,
    pub partition: Option<String>,
    /// Of the nodes that `node_count` chose among; absent: of all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub features: Option<String>,
    pub maintenance: bool,
    pub flex: bool,
    pub ignore_running: bool,
    /// Jobs that it is for use its nodes without naming it.
    pub magnetic: bool,
    /// It may be made over others, and has their nodes in its windows.
    pub overlap: bool,
    /// A window ends once no job of it ran or waited for so long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub purge_idle_secs: Option<u32>,
    /// Nodes that were chosen by their number are not replaced when they go down.
    pub static_nodes: bool,
    /// Jobs that wait for it when it goes wait on without it.
    pub release_jobs: bool,
    /// Windows that end by then do not come.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skip_until: Option<Instant>,
    /// Its nodes were chosen by their number. Not read back.
    pub chosen: bool,
    pub created_by: String,
    /// `ACTIVE`, `INACTIVE`, or `OVER`.
    pub state: String,
    /// The window that holds now, or the next one.
    pub window_start: Option<Instant>,
    pub window_end: Option<Instant>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
}

/// A licence of the cluster, and how many of it running jobs hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LicenceRow {
    pub name: String,
    pub total: u32,
    pub used: u32,
    pub free: u32,
}

/// A policy as TOML.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PolicyText {
    pub schema: u32,
    /// Name of the file it is from, for messages.
    pub name: String,
    pub toml: String,
    /// Of an import: say what would change, and change nothing.
    pub dry_run: bool,
}

/// A change of an account, user, QOS or reservation by a command.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PolicyEventRow {
    pub at: Option<Instant>,
    /// The author of the change.
    pub by: String,
    /// `set account`, `remove user`, `import policy`.
    pub action: String,
    /// Of the record; empty where all were replaced.
    pub name: String,
    /// Of a user's record: the account.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// The record since, as JSON, for people.
    pub info: String,
}
