//! The state as a controller finds it at boot, as one record: what a trace of its inputs begins with.
//!
//! Only what the store keeps; everything else follows from it, as at every boot.

use super::state::{Array, Job, JoinToken, Node, Rows, Run, State};
use gmodel::{NodeId, Policy, Seq, Timestamp};
use gsched::usage::{UsageBook, UsageEntry};
use serde::{Deserialize, Serialize};

/// Rows and what else was loaded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BootRows {
    pub incarnation: u64,
    pub seq: Seq,
    pub next_job: u64,
    pub next_node: u32,
    pub jobs: Vec<Job>,
    pub arrays: Vec<Array>,
    pub runs: Vec<Run>,
    pub nodes: Vec<Node>,
    pub tokens: Vec<JoinToken>,
    pub policy: Policy,
    /// Account, user, and what they used.
    pub usage: Vec<(String, String, UsageEntry)>,
    pub automatic_drains: Vec<(Timestamp, NodeId)>,
    pub automatic_gpus: Vec<(Timestamp, NodeId, String)>,
}

impl BootRows {
    /// Of a state that has just been loaded.
    pub fn of(state: &State) -> Self {
        let Rows { incarnation, seq, next_job, next_node, jobs, arrays, runs, nodes, tokens, policy, usage } = state.rows();
        Self {
            incarnation,
            seq,
            next_job,
            next_node,
            jobs,
            arrays,
            runs,
            nodes,
            tokens,
            policy,
            usage: usage.rows().map(|(account, user, entry)| (account.to_owned(), user.to_owned(), entry.clone())).collect(),
            automatic_drains: state.automatic_drains.iter().copied().collect(),
            automatic_gpus: state.automatic_gpus.iter().cloned().collect(),
        }
    }

    /// The state that it was of.
    pub fn state(self) -> State {
        let mut usage = UsageBook::default();
        self.usage.into_iter().for_each(|(account, user, entry)| usage.insert(&account, &user, entry));
        let mut state = State::from_rows(Rows {
            incarnation: self.incarnation,
            seq: self.seq,
            next_job: self.next_job,
            next_node: self.next_node,
            jobs: self.jobs,
            arrays: self.arrays,
            runs: self.runs,
            nodes: self.nodes,
            tokens: self.tokens,
            policy: self.policy,
            usage,
        });
        state.automatic_drains = self.automatic_drains.into_iter().collect();
        state.automatic_gpus = self.automatic_gpus.into_iter().collect();
        state
    }
}
