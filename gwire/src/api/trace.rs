//! `GET /v1/trace`: finished jobs as a simulation wants them, a page at a time, in the order of their ids.

use gmodel::{Instant, JobState};
use serde::{Deserialize, Serialize};

/// Which jobs: submitted from an instant until before another, after the last id of the page before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TraceQuery {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<Instant>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<Instant>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// Jobs of one page; 2,000 without a word, which is the most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// A page of the trace.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TracePage {
    pub schema: u32,
    pub trace: Vec<TraceRow>,
    /// What to ask for `after`; absent: there is no more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

/// A job that is over: what it asked for, and its times. Of a job that ran, sizes are those of its last run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TraceRow {
    pub id: u64,
    pub user: String,
    pub account: String,
    pub partition: String,
    pub qos: String,
    pub state: JobState,
    /// Runs that it had.
    pub attempts: u32,
    pub submit_time: Option<Instant>,
    /// Since when it could have run, where its begin time or its dependencies made that later than its submission.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eligible_time: Option<Instant>,
    /// When its first run began; absent, as the next two, of a job that never ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_start_time: Option<Instant>,
    /// Of its last run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Instant>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end_time: Option<Instant>,
    /// So long it stood still.
    pub suspended_secs: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_limit_secs: Option<u32>,
    pub nodes: u32,
    /// Of the whole job.
    pub cpus: u32,
    /// On each node.
    pub mem_bytes: u64,
    /// Of the whole job; a part of one for shares and slices.
    pub gpus: f64,
    /// Any of these would have done; empty: any GPU.
    pub gpu_types: Vec<String>,
}
