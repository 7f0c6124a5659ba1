//! The health status of a GPU that has a sign or is out of service, as its node reports it. It holds no running counters:
//! an equal report is no change.

use crate::time::Timestamp;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuHealthStatus {
    pub stage: RepairStage,
    /// Since when, by the node's clock.
    pub since: Timestamp,
    /// Name in the catalogue of the sign that took it out; empty after an operator's order, or for what a run left.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub sign: String,
    /// What was seen when the sign was raised, with its numbers.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub evidence: String,
    /// An operator keeps it out until its return: the breaker does not count it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub held: bool,
    /// The next step, as text.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub next: String,
}

/// How far the repair of a GPU is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RepairStage {
    #[default]
    InService,
    /// No new job gets it; nothing is under way.
    Out,
    Resetting,
    Booting,
    BurningIn,
    /// Marked for replacement: only an administrator brings it back.
    Marked,
}
