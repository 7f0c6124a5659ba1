//! Allocations, jobs without a script: how their clients wait for them, stay with them and end them.

use gmodel::{ExitCode, Instant, JobState, ReasonCode};
use serde::{Deserialize, Serialize};

/// The client is there. With what it knows already the answer waits for something else, `wait_secs` at most.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AttendRequest {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub known: Option<AllocationStanding>,
    /// 10 at most.
    pub wait_secs: u32,
    /// Tell when it is expected to start: a forecast, which takes its time.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub forecast: bool,
}

/// Where an allocation stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AllocationStanding {
    pub state: JobState,
    pub reason: ReasonCode,
    /// Its nodes take steps now.
    pub granted: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AttendReply {
    pub schema: u32,
    #[serde(flatten)]
    pub standing: AllocationStanding,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason_text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected_start: Option<Instant>,
    /// Once it is granted.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub nodelist: String,
    /// `NAME=value` of what describes the job, once it is granted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub environment: Vec<String>,
    /// Its partition wants the shell of salloc on the first node.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub interactive_step: bool,
    /// Other clients that are there.
    pub others: u32,
    /// Why it ends or ended.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub end_text: String,
}

/// The client is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AllocationEndRequest {
    pub exit_code: ExitCode,
}
