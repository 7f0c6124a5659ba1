//! What the scheduler proposes. The core checks each part again before it becomes a fact.

use gmodel::run::Allocation;
use gmodel::{JobId, Reason, Seq};
use serde::{Deserialize, Serialize};

/// A proposal made from the state at `made_from`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    pub made_from: Seq,
    pub starts: Vec<Start>,
    /// The one reason of each job looked at that does not start, where it is another than the job has.
    pub reasons: Vec<(JobId, Reason)>,
    /// The same for arrays; their untouched tasks share it.
    #[serde(default)]
    pub array_reasons: Vec<(JobId, Reason)>,
    /// The budget ran out: later jobs were not looked at in this pass.
    pub cut_short: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// The job, or the array task by its own id.
    pub job: JobId,
    pub allocation: Allocation,
}

/// Bound of one pass, in node probes: a result never depends on the machine's speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkBudget {
    pub node_probes: u64,
    pub starts: usize,
}

impl Default for WorkBudget {
    fn default() -> Self {
        Self { node_probes: 20_000_000, starts: 10_000 }
    }
}
