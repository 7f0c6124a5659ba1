//! An order to a run to stop: why, on whose word, and how long it has. Never decides who is to stop.

use gmodel::policy::PreemptMode;
use gmodel::run::StopCause;
use gmodel::{JobId, NodeId, Timestamp};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stop {
    pub why: StopCause,
    pub grace_secs: u32,
    pub at: Timestamp,
    pub by: String,
    /// Of a run that did not get ready in time: the nodes that were late.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub late: Vec<NodeId>,
    /// Seconds the job has for its checkpoint before `grace_secs` begin; 0: it is not told.
    #[serde(default)]
    pub checkpoint_secs: u32,
    /// Of a preemption: the job that starts in its place, and how.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_job: Option<JobId>,
    /// It was to start on what others leave idle.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub for_borrower: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<PreemptMode>,
    /// GPU-seconds since the last mark when it was told to stop: lost if the signal is not answered.
    #[serde(default)]
    pub lost_gpu_secs: u64,
    /// For people: whose claim, on which ground.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
    /// Number of the event that said it: a node that obeys a lower one has not heard of it. 0 was not said by releases before.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub number: u64,
    /// The job for which the run goes started elsewhere, when this could not be taken back any more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub in_vain: bool,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Stop {
    /// With the site's grace and nothing else said.
    pub fn new(why: StopCause, grace_secs: u32, at: Timestamp, by: impl Into<String>) -> Self {
        Self {
            why,
            grace_secs,
            at,
            by: by.into(),
            late: Vec::new(),
            checkpoint_secs: 0,
            for_job: None,
            mode: None,
            lost_gpu_secs: 0,
            text: String::new(),
            number: 0,
            for_borrower: false,
            in_vain: false,
        }
    }
    /// It makes room for this job, which has not started elsewhere meanwhile.
    pub fn makes_room_for(&self) -> Option<JobId> {
        self.for_job
            .filter(|_| self.why == StopCause::Preempted && !self.in_vain)
    }
    /// When what the run holds is expected back.
    pub fn leaves_by(&self) -> Timestamp {
        self.at
            .plus_secs(i64::from(self.checkpoint_secs) + i64::from(self.grace_secs))
    }
}
