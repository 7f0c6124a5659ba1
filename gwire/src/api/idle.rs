//! GPUs that are held and not used: `GET /v1/idle`.

use gmodel::Instant;
use gmodel::idle::IdlePolicy;
use serde::{Deserialize, Serialize};

/// What to look at. Without `from` the last week, without `to` until now; without any of the last four the policies in force.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct IdleQuery {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<Instant>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<Instant>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub user: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub account: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub partition: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub qos: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warn_after_secs: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub act_after_secs: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace_secs: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpus_percent: Option<u32>,
}

/// What a policy makes, or would have made, of the runs of a time.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct IdleReportAnswer {
    pub schema: u32,
    pub from: Option<Instant>,
    pub to: Option<Instant>,
    /// Of the question; absent: those in force, each partition's and QOS's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<IdlePolicy>,
    /// Runs that would be warned, those that run first.
    pub runs: Vec<IdleRunRow>,
    pub warned: u64,
    pub ended: u64,
    pub gpu_hours_back: f64,
}

/// One run that would be, or would have been, warned.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct IdleRunRow {
    /// `17`, or `98_5` while it runs.
    pub job: String,
    pub attempt: u32,
    pub user: String,
    pub account: String,
    pub partition: String,
    pub qos: String,
    pub gpus: f64,
    pub running: bool,
    pub start_time: Option<Instant>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end_time: Option<Instant>,
    /// The longest time in which so many of its GPUs did nothing.
    pub idle_secs: u32,
    /// Seconds after its start.
    pub warned_secs: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_secs: Option<u32>,
    /// What it held after that.
    pub gpu_hours_back: f64,
    /// Of the policy that says so.
    pub action: String,
}
