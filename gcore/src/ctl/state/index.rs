//! Finds jobs, runs and nodes of the state by what is asked of them most.
//!
//! Follows from the records alone, and is made anew from them at boot. Changed only by `apply`.

use crate::ctl::state::ClientKey;
use crate::ctl::state::open_dependency::EntryId;
use crate::ctl::state::tally::Tally;
use gmodel::{JobId, NodeId, RunId, Timestamp, TokenId};
use std::collections::{BTreeMap, BTreeSet};

/// Derived from the records of the state.
#[derive(Clone, Debug, Default)]
pub struct StateIndex {
    pub node_names: BTreeMap<String, NodeId>,
    /// Submissions by client key, so that a repeated request makes no second job.
    pub client_keys: BTreeMap<ClientKey, JobId>,
    /// Finished jobs in memory, by when the controller heard of the end.
    pub finished: BTreeSet<(Timestamp, JobId)>,
    /// GPUs that no node has now, missing or out of service; with their last node.
    pub gone: BTreeMap<String, NodeId>,
    /// When jobs and arrays become eligible, or stop waiting for few switches, if that is later.
    pub not_yet: BTreeSet<(Timestamp, JobId)>,
    /// Dependants by the id of the job, task or array that decides. An end costs only its dependants.
    pub dependents: BTreeSet<(JobId, EntryId)>,
    /// Pending jobs and arrays with a check due then: a deadline, or minutes after another job's start.
    pub due: BTreeSet<(Timestamp, JobId)>,
    /// Jobs that are not over, by account, user, QOS and partition.
    pub tally: Tally,
    /// Jobs that are not over, and arrays with pending tasks, by the token that they were submitted with.
    pub of_token: BTreeMap<TokenId, BTreeSet<EntryId>>,
    /// Nodes with a deadline: silent, to be empty by a time, or to be powered off.
    pub watched: BTreeSet<NodeId>,
    /// Runs that are not ready on all nodes, by placement.
    pub preparing: BTreeSet<(Timestamp, RunId)>,
    /// Victims by the job that preempts them, until they are clean everywhere.
    pub making_room: BTreeSet<(JobId, RunId)>,
    /// Runs with a warning for which the site's idle program is still to be called.
    pub idle_untold: BTreeSet<RunId>,
}
