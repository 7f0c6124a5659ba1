//! The controller's disk: documents of exactly those records that events say they touched.
//!
//! A record that changed without being named is old after the next crash, as in gpuctld's `store`. Its rules on live
//! records are repeated here.

use gcore::ctl::state::{Array, Job, JoinToken, Node, Run, State};
use gcore::ctl::{Event, Rows};
use gmodel::billing::Billing;
use gmodel::{JobId, NodeId, Policy, RunId, Seq, Timestamp, TokenId, UserToken};
use gpolicy::usage::UsageBook;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

type Document = Vec<u8>;

/// What is durable. A clone is a backup.
#[derive(Clone, Debug, Default)]
pub struct Store {
    jobs: BTreeMap<JobId, Document>,
    arrays: BTreeMap<JobId, Document>,
    runs: BTreeMap<RunId, Document>,
    nodes: BTreeMap<NodeId, Document>,
    tokens: BTreeMap<String, Document>,
    user_tokens: Arc<BTreeMap<TokenId, Arc<UserToken>>>,
    billing: Arc<Billing>,
    policy: Document,
    /// By account and user.
    usage: BTreeMap<(String, String), Document>,
    written_usage: Arc<UsageBook>,
    automatic_drains: BTreeSet<(Timestamp, NodeId)>,
    automatic_gpus: BTreeSet<(Timestamp, NodeId, String)>,
    /// Jobs and arrays that are over: kept, and not read at boot.
    over: BTreeSet<JobId>,
    incarnation: u64,
    seq: Seq,
    next_job: u64,
    next_node: u32,
    adoption: Document,
}

/// The rows that the events of one commit touched.
#[derive(Default)]
struct ChangedRows {
    jobs: BTreeSet<JobId>,
    arrays: BTreeSet<JobId>,
    runs: BTreeSet<RunId>,
    nodes: BTreeSet<NodeId>,
    tokens: bool,
    policy: bool,
}

impl ChangedRows {
    fn add(&mut self, state: &State, event: &Event) {
        let rows = event.touched();
        self.jobs.extend(rows.job);
        self.arrays.extend(rows.array);
        self.runs.extend(rows.run);
        self.nodes.extend(rows.node);
        self.tokens |= rows.tokens;
        self.policy |= rows.policy;
        let job = rows.job.and_then(|job| state.jobs.get(job));
        if rows.array_of_job {
            let task = job.and_then(|job| job.task);
            self.arrays.extend(task.map(|task| task.array));
        }
        // A new time limit is in the run's row too.
        if matches!(event, Event::JobUpdated { .. }) {
            self.runs.extend(job.and_then(Job::live_run));
        }
    }
}

impl Store {
    /// One commit: every record the events touched, as it is in `state` now.
    pub fn commit(&mut self, state: &State, events: &[Event]) {
        let mut rows = ChangedRows::default();
        for event in events {
            rows.add(state, event);
            self.automatic_drains.extend(event.automatic_drain());
            self.automatic_gpus.extend(
                event
                    .of_gpu()
                    .filter(|line| line.automatic)
                    .map(|line| (line.at, line.node, line.uuid)),
            );
        }
        for id in rows.arrays {
            if let Some(array) = state.arrays.get(id) {
                self.arrays.insert(id, document(array));
            }
        }
        for id in rows.jobs {
            if let Some(job) = state.jobs.get(id) {
                self.jobs.insert(id, document(job));
                // One that is over may be put back.
                match job.state.is_final() {
                    true => self.over.insert(id),
                    false => self.over.remove(&id),
                };
            }
        }
        for id in rows.runs {
            put_or_remove(&mut self.runs, id, state.runs.get(id));
        }
        for id in rows.nodes {
            put_or_remove(&mut self.nodes, id, state.nodes.get(id));
        }
        for (account, user, entry) in state.usage.changed_since(&self.written_usage) {
            self.usage
                .insert((account.to_owned(), user.to_owned()), document(entry));
        }
        self.written_usage = state.usage.clone();
        if rows.policy {
            self.policy = document(&state.own_policy);
        }
        if rows.tokens {
            self.tokens = state
                .tokens
                .joins
                .iter()
                .map(|(hash, token)| (hash.clone(), document(token)))
                .collect();
        }
        self.user_tokens = state.tokens.users.clone();
        self.billing = state.billing.clone();
        self.incarnation = state.incarnation;
        self.seq = state.seq;
        self.next_job = state.next_job;
        self.next_node = state.next_node;
        self.adoption = document(&state.adoption);
    }

    /// A backup takes the place of this store. As in gpuctld's restore, what the replaced one still says of
    /// the counters is kept.
    pub fn replaced_by(&self, backup: &Self) -> Self {
        Self {
            incarnation: self.incarnation.max(backup.incarnation),
            next_job: self.next_job.max(backup.next_job),
            ..backup.clone()
        }
    }

    /// The state as a controller that starts now reads it.
    pub fn load(&self) -> State {
        let runs: Vec<Run> = self.runs.values().map(read).collect();
        let held: BTreeSet<JobId> = runs.iter().map(|run| run.id.job).collect();
        let is_live = |id: &JobId| !self.over.contains(id) || held.contains(id);
        let jobs: Vec<Job> = self
            .jobs
            .iter()
            .filter(|(id, _)| is_live(id))
            .map(|(_, document)| read(document))
            .collect();
        let of_tasks: BTreeSet<JobId> = jobs
            .iter()
            .filter_map(|job| Some(job.task?.array))
            .collect();
        let arrays = self.arrays.values().map(read::<Array>);
        let arrays = arrays
            .filter(|array| !array.is_over() || of_tasks.contains(&array.id))
            .collect();
        let mut usage = UsageBook::default();
        for ((account, user), entry) in &self.usage {
            usage.insert(account, user, read(entry));
        }
        let rows = Rows {
            incarnation: self.incarnation,
            seq: self.seq,
            next_job: self.next_job,
            next_node: self.next_node,
            adoption: if self.adoption.is_empty() {
                None
            } else {
                read(&self.adoption)
            },
            jobs,
            arrays,
            runs,
            nodes: self.nodes.values().map(read::<Node>).collect(),
            tokens: self.tokens.values().map(read::<JoinToken>).collect(),
            user_tokens: self
                .user_tokens
                .values()
                .map(|one| (**one).clone())
                .collect(),
            billing: (*self.billing).clone(),
            policy: if self.policy.is_empty() {
                Policy::default()
            } else {
                read(&self.policy)
            },
            usage,
            automatic_drains: self.automatic_drains.clone(),
            automatic_gpus: self.automatic_gpus.clone(),
        };
        State::from_rows(rows)
    }

    /// A job's record, wherever it went: its own, or `None` with whether an array has it as a task.
    pub fn job(&self, id: JobId) -> Option<Job> {
        self.jobs.get(&id).map(read)
    }

    /// Whether an array has the task without a record: waiting, or cancelled with others.
    pub fn is_array_task(&self, id: JobId) -> bool {
        self.arrays
            .range(..=id)
            .next_back()
            .is_some_and(|(_, document)| {
                let array: Array = read(document);
                let position = u32::try_from(id.0 - array.id.0).unwrap_or(u32::MAX);
                array.pending.contains(position) || array.cancelled.contains(position)
            })
    }
}

fn put_or_remove<K: Ord, V: Serialize>(
    rows: &mut BTreeMap<K, Document>,
    key: K,
    value: Option<&V>,
) {
    match value {
        Some(value) => {
            rows.insert(key, document(value));
        }
        None => {
            rows.remove(&key);
        }
    }
}

fn document(value: &impl Serialize) -> Document {
    serde_json::to_vec(value).expect("records are JSON")
}

fn read<T: DeserializeOwned>(document: &Document) -> T {
    serde_json::from_slice(document).expect("a document reads back")
}
