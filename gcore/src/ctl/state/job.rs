//! The record of a job, or of an array task that differs from its array.

use crate::ctl::state::open_dependency::OpenDependency;
use crate::ctl::state::past_runs::{NodeFailure, PastRuns};
use gmodel::node::HoldMark;
use gmodel::rare::Rare;
use gmodel::{JobId, JobSpec, JobState, Reason, RunId, Timestamp};
use gsched::Nomination;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A job, or one array task with a record of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    pub id: JobId,
    pub spec: Arc<JobSpec>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<TaskOf>,
    pub state: JobState,
    #[serde(default)]
    pub reason: Reason,
    /// Nodes are held for it until it starts there. Comes and goes with a reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nomination: Option<Nomination>,
    pub submitted: Timestamp,
    /// Not before this: `--begin`, or back-off after a failed start.
    pub eligible: Timestamp,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub holds: Vec<HoldMark>,
    /// Attempts made so far; the next run is `attempts + 1`.
    #[serde(default)]
    pub attempts: u32,
    /// Attempts that no run had: restores skip some.
    #[serde(default, skip_serializing_if = "is_none_yet")]
    pub skipped_attempts: u32,
    /// The attempt that runs or completes now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live: Option<u32>,
    /// Seconds in force; `None` is unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_secs: Option<u32>,
    pub nice: i32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_key: Option<Arc<str>>,
    /// Open conditions of its dependency; only while it is pending.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits: Option<Box<OpenDependency>>,
    /// What its runs left.
    #[serde(flatten)]
    pub past: Rare<PastRuns>,
}

/// The array and position of an array task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskOf {
    pub array: JobId,
    pub position: u32,
    pub index: u32,
}

impl Job {
    /// Another reason, with which a nomination is over.
    pub(crate) fn set_reason(&mut self, reason: Reason) {
        (self.reason, self.nomination) = (reason, None);
    }

    /// As written: `17`, `98_5` for an array task, `17+1` for a component.
    pub fn shown_id(&self) -> String {
        match (self.task, self.spec.part) {
            (Some(task), _) => format!("{}_{}", task.array, task.index),
            (None, Some(part)) => part.shown(),
            (None, None) => self.id.to_string(),
        }
    }
    /// All components of a job of unlike parts; of any other job itself.
    pub fn whole(&self) -> Vec<JobId> {
        self.spec
            .part
            .map_or(vec![self.id], |part| part.jobs().collect())
    }

    /// How often it was started again.
    pub fn restarts(&self) -> u32 {
        self.attempts
            .saturating_sub(1)
            .saturating_sub(self.skipped_attempts)
    }
    pub fn live_run(&self) -> Option<RunId> {
        self.live.map(|attempt| RunId::new(self.id, attempt))
    }
    /// Neither its begin time nor a back-off after a node failure lies ahead.
    pub fn is_due(&self, now: Timestamp) -> bool {
        self.eligible <= now && self.past.try_after.is_none_or(|at| at <= now)
    }
    /// Times at which it may start on more nodes, or at all.
    pub fn tries(&self) -> impl Iterator<Item = Timestamp> + '_ {
        self.past.try_after.into_iter().chain(
            self.past
                .node_failures
                .iter()
                .filter_map(NodeFailure::barred_until),
        )
    }
    pub fn may_requeue(&self, partition_default: bool) -> bool {
        self.spec.requeue.unwrap_or(partition_default)
    }
}

fn is_none_yet(number: &u32) -> bool {
    *number == 0
}
