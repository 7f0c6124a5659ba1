//! The state as the store keeps it, in rows: what a controller loads at boot, and the beginning of a trace.
//!
//! Only what cannot be derived; the rest is derived at every boot.

use crate::ctl::apply::index::{index_array, index_job, index_run, watch};
use crate::ctl::apply::index_pause;
use crate::ctl::gpu;
use crate::ctl::node::bounds::{bound_gpu, bound_inventory};
use crate::ctl::state::{
    AdoptionWindow, Array, AutomaticRemovals, Job, JoinToken, Node, Run, State,
};
use gmodel::billing::Billing;
use gmodel::{NodeId, Policy, Seq, Timestamp, UserToken};
use gpolicy::usage::UsageBook;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The live rows and the counters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rows {
    pub incarnation: u64,
    pub seq: Seq,
    pub next_job: u64,
    pub next_node: u32,
    #[serde(default)]
    pub adoption: Option<AdoptionWindow>,
    pub jobs: Vec<Job>,
    pub arrays: Vec<Array>,
    pub runs: Vec<Run>,
    pub nodes: Vec<Node>,
    pub tokens: Vec<JoinToken>,
    #[serde(default)]
    pub user_tokens: Vec<UserToken>,
    #[serde(default)]
    pub billing: Billing,
    pub policy: Policy,
    #[serde(with = "usage_entries")]
    pub usage: UsageBook,
    pub automatic_drains: BTreeSet<(Timestamp, NodeId)>,
    pub automatic_gpus: BTreeSet<(Timestamp, NodeId, String)>,
}

impl State {
    /// What the store keeps of it.
    pub fn rows(&self) -> Rows {
        Rows {
            incarnation: self.incarnation,
            seq: self.seq,
            next_job: self.next_job,
            next_node: self.next_node,
            adoption: self.adoption.clone(),
            jobs: self.jobs.values().cloned().collect(),
            arrays: self.arrays.values().cloned().collect(),
            runs: self.runs.values().cloned().collect(),
            nodes: self.nodes.values().cloned().collect(),
            tokens: self.tokens.joins.values().cloned().collect(),
            user_tokens: self
                .tokens
                .users
                .values()
                .map(|one| (**one).clone())
                .collect(),
            billing: (*self.billing).clone(),
            policy: self.own_policy.clone(),
            usage: (*self.usage).clone(),
            automatic_drains: self.automatic.drains.clone(),
            automatic_gpus: self.automatic.gpus.clone(),
        }
    }

    /// The state as of the last commit. Feed `Input::Configure` and `Input::Started` next.
    pub fn from_rows(rows: Rows) -> Self {
        let mut state = Self {
            incarnation: rows.incarnation.max(1),
            seq: rows.seq,
            next_job: rows.next_job.max(1),
            next_node: rows.next_node.max(1),
            adoption: rows.adoption,
            policy: Arc::new(rows.policy.clone()),
            own_policy: rows.policy,
            billing: Arc::new(rows.billing),
            usage: Arc::new(rows.usage),
            automatic: AutomaticRemovals {
                drains: rows.automatic_drains,
                gpus: rows.automatic_gpus,
            },
            ..Self::default()
        };
        for mut node in rows.nodes {
            node.generation = rows.seq.0;
            node.runs.clear();
            bound(&mut node);
            state.index.node_names.insert(node.name.clone(), node.id);
            let id = node.id;
            state.nodes.insert(id, node);
            watch(&mut state, id);
            index_pause(&mut state, id);
        }
        for token in rows.tokens {
            state.tokens.joins.insert(token.hash.clone(), token);
        }
        let tokens = rows.user_tokens.into_iter();
        state.tokens.users = Arc::new(tokens.map(|one| (one.id, Arc::new(one))).collect());
        for array in rows.arrays {
            index_array(&mut state, &array);
            state.arrays.insert(array.id, array);
        }
        for job in rows.jobs {
            index_job(&mut state, &job);
            state.jobs.insert(job.id, job);
        }
        // The runs of a node are in the rows of the runs: a placement does not write the node's row.
        for run in rows.runs {
            for member in &run.members {
                if let Some(node) = state.nodes.get_mut(member.node) {
                    node.runs.insert(run.id);
                }
            }
            index_run(&mut state, &run);
            state.runs.insert(run.id, run);
        }
        state.index.gone = gpu::missing::gone(&state);
        state
    }
}

/// A database from before the bounds may hold what no machine has.
fn bound(node: &mut Node) {
    let mut inventory = (*node.inventory).clone();
    bound_inventory(&mut inventory);
    if inventory != *node.inventory {
        node.inventory = Arc::new(inventory);
    }
    Arc::make_mut(&mut node.gpus)
        .iter_mut()
        .for_each(|gpu| bound_gpu(&mut gpu.info));
}

/// The usage book as a list of account, user and entry.
mod usage_entries {
    use gpolicy::usage::{UsageBook, UsageEntry};
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(usage: &UsageBook, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(usage.rows())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<UsageBook, D::Error> {
        let mut usage = UsageBook::default();
        for (account, user, entry) in
            Vec::<(String, String, UsageEntry)>::deserialize(deserializer)?
        {
            usage.insert(&account, &user, entry);
        }
        Ok(usage)
    }
}
