//! An order to a run to stop: why, by which user, and how long it has. Never chooses the run.

use gmodel::policy::PreemptMode;
use gmodel::run::StopCause;
use gmodel::{ExitCode, JobId, NodeId, Timestamp};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stop {
    pub why: StopCause,
    pub grace_secs: u32,
    pub at: Timestamp,
    pub by: String,
    /// Nodes that were late, if the run was not ready in time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub late: Vec<NodeId>,
    /// Seconds for a checkpoint before `grace_secs` begin; 0: none is asked for.
    #[serde(default)]
    pub checkpoint_secs: u32,
    /// With what the client of an allocation ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<ExitCode>,
    /// Of a preemption: the job that starts in its place, and the mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_job: Option<JobId>,
    /// That job borrows.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub for_borrower: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<PreemptMode>,
    /// GPU-seconds since the last mark at the order: lost if the signal is not answered.
    #[serde(default)]
    pub lost_gpu_secs: u64,
    /// The preempting job and its ground, for listings.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
    /// Number of the order's event: a node that obeys a lower generation does not have it. 0 in records of
    /// earlier releases.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub number: u64,
    /// The preempting job started elsewhere, too late to take the order back.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub in_vain: bool,
    /// The component that this one ends with, of a job of unlike parts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub with: Option<JobId>,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Stop {
    /// With the site's grace time.
    pub fn new(why: StopCause, grace_secs: u32, at: Timestamp, by: impl Into<String>) -> Self {
        Self {
            why,
            grace_secs,
            at,
            by: by.into(),
            late: Vec::new(),
            checkpoint_secs: 0,
            exit: None,
            for_job: None,
            mode: None,
            lost_gpu_secs: 0,
            text: String::new(),
            number: 0,
            for_borrower: false,
            in_vain: false,
            with: None,
        }
    }
    /// The job that it frees resources for, unless that started elsewhere.
    pub fn makes_room_for(&self) -> Option<JobId> {
        self.for_job
            .filter(|_| self.why == StopCause::Preempted && !self.in_vain)
    }
    /// When its resources are expected to be free.
    pub fn leaves_by(&self) -> Timestamp {
        self.at
            .plus_secs(i64::from(self.checkpoint_secs) + i64::from(self.grace_secs))
    }
}
