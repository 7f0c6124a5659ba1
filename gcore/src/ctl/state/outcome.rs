//! How a run ended: decided once, in `run/end.rs`, when its last node has reported.

use gmodel::node::HoldMark;
use gmodel::run::Usage;
use gmodel::{ExitCode, JobState, Timestamp};
use serde::{Deserialize, Serialize};

/// How a run ended, over all its nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    pub state: JobState,
    pub exit: ExitCode,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
    pub started: Option<Timestamp>,
    pub ended: Timestamp,
    /// How long each of its nodes was held since its start, in their order; empty if all were held to its end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub held_millis: Vec<i64>,
    /// The part of its length in which nodes were not held, averaged over its GPUs, or its CPUs if it has
    /// none.
    #[serde(default, skip_serializing_if = "is_no_time")]
    pub unheld_millis: i64,
    /// What happened to its GPUs while it ran, as its nodes report.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpu_events: Vec<String>,
    /// The image it ran in, by its digest.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub image: String,
    pub usage: Usage,
    /// The job is requeued, not before this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requeue: Option<Timestamp>,
    /// When it is tried again after a node failure, with its age.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub try_after: Option<Timestamp>,
    /// The hold of the requeued job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<HoldMark>,
    /// GPU-seconds of work since the last mark, lost to a preemption, requeue or drain.
    #[serde(default)]
    pub lost_gpu_secs: u64,
    /// Its longest idle spells.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub idle_spells: Vec<gmodel::idle::IdleSpell>,
}

impl Outcome {
    /// From its first process to its last, over all nodes.
    pub fn lasted_millis(&self) -> i64 {
        self.started
            .map_or(0, |started| self.ended.since_millis(started).max(0))
    }
}

fn is_no_time(millis: &i64) -> bool {
    *millis == 0
}
