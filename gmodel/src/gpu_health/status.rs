//! How a GPU that is not plainly in service stands, as its node tells the controller. Nothing in it runs on by itself: it changes
//! when something happened, so that telling it again is no news.

use super::repair::RepairStage;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuHealthStatus {
    pub stage: RepairStage,
    /// Since when, by the node's clock.
    pub since: Timestamp,
    /// Name in the catalogue of the sign that took it out; empty where it was somebody's word, or what a run left.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub sign: String,
    /// What was seen when the sign was raised, with its numbers.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub evidence: String,
    /// Somebody keeps it out until it is returned: the breaker does not count it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub held: bool,
    /// What comes next, for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub next: String,
}
