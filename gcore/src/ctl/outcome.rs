//! How a run ended: decided once, when its last node has said so, by `run_end`.

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
    /// For how long each of its nodes was held since it started, in their order; empty where all were until its end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub held_millis: Vec<i64>,
    /// Of its length what its nodes were not held at its end, on average over what it had of them: by GPUs, else by CPUs.
    #[serde(default, skip_serializing_if = "is_no_time")]
    pub unheld_millis: i64,
    /// What befell its GPUs while it ran, in its nodes' words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpu_events: Vec<String>,
    pub usage: Usage,
    /// The job goes back to the queue, not before this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requeue: Option<Timestamp>,
    /// After a failure of its node it is tried again then, with the age it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub try_after: Option<Timestamp>,
    /// And is held there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<HoldMark>,
    /// GPU-seconds of work since the last mark that a preemption, requeue or drain threw away.
    #[serde(default)]
    pub lost_gpu_secs: u64,
    /// When its GPUs stood idle: its longest spells.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub idle_spells: Vec<gmodel::idle::IdleSpell>,
}

impl Outcome {
    /// From its first process to its last, on whichever node.
    pub fn lasted_millis(&self) -> i64 {
        self.started
            .map_or(0, |started| self.ended.since_millis(started).max(0))
    }
}

fn is_no_time(millis: &i64) -> bool {
    *millis == 0
}
