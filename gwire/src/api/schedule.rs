//! Bodies of the API that say how the scheduler sees a job: its priority, the standing of its user, why it waits, when it starts.

use super::MarkRow;
use gmodel::{Instant, JobState, ReasonCode};
use serde::{Deserialize, Serialize};

/// Weights of the factors, as `[priority]` has them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PriorityWeightsRow {
    pub site: u32,
    pub age: u32,
    pub fair_share: u32,
    pub size: u32,
    pub partition: u32,
    pub qos: u32,
}

/// A waiting job's priority with what it is made of: sprio(1)'s line.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PriorityRow {
    pub id: u64,
    pub shown_id: String,
    pub user: String,
    pub account: String,
    pub partition: String,
    pub qos: String,
    /// Its place among all waiting jobs; 1 is next.
    pub position: u32,
    /// `guaranteed` or `borrowed`, as what it would start; absent where there are no quotas.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    pub priority: i64,
    /// Set by an operator in place of the sum.
    pub is_set: bool,
    /// Factors times weights; `nice` is taken off.
    pub weighted: FactorsRow,
    /// Factors from 0 to 1.
    pub normalized: FactorsRow,
}

/// Factors by name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FactorsRow {
    pub site: f64,
    pub age: f64,
    pub fair_share: f64,
    pub size: f64,
    pub partition: f64,
    pub qos: f64,
    pub nice: i64,
}

/// An account, or a user in one, in the fair tree: sshare(1)'s line.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ShareRow {
    /// Below the root by so many accounts.
    pub depth: u32,
    pub account: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    pub raw_shares: u32,
    /// Part of the siblings' shares.
    pub norm_shares: f64,
    /// Weighted GPU-seconds, decayed.
    pub raw_usage: u64,
    /// Part of everybody's usage.
    pub norm_usage: f64,
    /// Part of the siblings' usage.
    pub effective_usage: f64,
    /// `norm_shares` over `effective_usage`; absent for no use at all, which is above every number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub level_fs: Option<f64>,
    /// Of users: from the number of users, the best, down to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<u64>,
    /// Of users: rank over the number of users.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fair_share: Option<f64>,
    /// How the standing of the user develops if they run nothing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub outlook: Vec<OutlookRow>,
}

/// A user's standing later.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OutlookRow {
    pub at: Option<Instant>,
    pub raw_usage: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub level_fs: Option<f64>,
    pub fair_share: f64,
}

/// Why a job waits: all that stands in its way, and what would start it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WhyRow {
    pub id: u64,
    pub shown_id: String,
    pub state: JobState,
    /// The one reason that listings show, with its numbers.
    pub reason: ReasonCode,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason_text: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub end_text: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub holds: Vec<MarkRow>,
    /// It starts in the next pass of the scheduler; then nothing stands in its way.
    pub starts_now: bool,
    /// Waiting jobs of its partition whose turn is before its own.
    pub ahead: u32,
    /// Each must go before it starts.
    pub blockers: Vec<BlockerRow>,
    /// When it starts at the latest if nobody more urgent comes, and where; absent where nobody can say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected_start: Option<Instant>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub expected_nodes: String,
    /// Changes of the request that would start it now, the smallest first; else the one that starts it soonest.
    pub changes: Vec<ChangeRow>,
}

/// One thing that stands in a job's way.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BlockerRow {
    pub code: ReasonCode,
    pub text: String,
    /// When it goes away by itself, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Instant>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nearest: Option<NearestRow>,
}

/// The node that comes nearest to what a job needs of one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NearestRow {
    pub node: String,
    pub nodes_free: u32,
    pub nodes_needed: u32,
    pub gpus_free: u32,
    pub gpus_needed: u32,
    pub cpus_free: u32,
    pub cpus_needed: u32,
    pub mem_free_bytes: u64,
    pub mem_needed_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_change: Option<Instant>,
}

/// A change of a request and when the job would start with it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ChangeRow {
    /// As an option of gsub: `--time 1:30:00`.
    pub option: String,
    /// It would start with the next pass.
    pub now: bool,
    pub start: Option<Instant>,
    /// How much of the request it gives up, 0 to 1.
    pub loss: f64,
}

/// When a waiting job is expected to start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StartRow {
    pub id: u64,
    pub shown_id: String,
    pub name: String,
    pub user: String,
    pub partition: String,
    pub nodes: u32,
    pub reason: ReasonCode,
    /// Waiting jobs of its partition whose turn is before its own.
    pub ahead: u32,
    /// If runs end as early before their limits as the earlier tenth of late did; absent without such runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub earliest: Option<Instant>,
    /// If every run goes to its limit and nobody more urgent comes; absent where nobody can say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latest: Option<Instant>,
    /// Where it would start at the latest.
    pub nodelist: String,
}
