//! Bodies of the API that say how the scheduler sees a job: its priority, the standing of its user, why it waits, when it starts.

use gmodel::Instant;
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
