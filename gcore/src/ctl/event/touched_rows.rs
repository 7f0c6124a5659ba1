//! The rows of the store that an event changes.

use gmodel::{JobId, NodeId, RunId};

/// The rows an event changes: the store rewrites exactly these from the state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TouchedRows {
    pub job: Option<JobId>,
    pub array: Option<JobId>,
    pub run: Option<RunId>,
    pub node: Option<NodeId>,
    pub tokens: bool,
    /// Accounts, QOS and reservations.
    pub policy: bool,
    /// If the job is a task, its array's counters changed too.
    pub array_of_job: bool,
}
