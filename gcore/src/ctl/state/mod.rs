//! The controller's state: the queue, the runs, the nodes.
//!
//! Changed only by `apply`. All of it can be rebuilt from the stored rows; finished jobs leave it after
//! `min_job_age`.

mod array;
mod idle;
mod index;
mod job;
mod memos;
mod node;
mod open_dependency;
mod outcome;
mod past_runs;
mod recent_specs;
mod run;
mod stop;
mod tally;

pub use array::{Array, DroppedTasks, HeldTasks};
pub(crate) use array::{intersection, put_in, take_out};
pub(crate) use idle::NodeIdleness;
pub use idle::{IdleSeen, IdleWarning, RunIdle};
pub use index::StateIndex;
pub use job::{Job, TaskOf};
pub use memos::{NodePull, StateMemos};
pub(crate) use node::is_out_of_service;
pub use node::{
    CertificateRenewal, FenceFailure, Fencing, FreeResources, GpuWork, JoinToken, Node,
    NodeCertificate, NodeOrders, SetFeatures, Strike,
};
pub use open_dependency::{EntryId, ForgottenJob, OpenDependency, OpenTerm};
pub use outcome::Outcome;
pub(crate) use past_runs::DOWNED_MILLIS;
pub use past_runs::{MAX_DOWNED, NodeFailure, PastRuns};
pub use recent_specs::RecentSpecs;
pub use run::{Member, Run, Suspension};
pub use stop::Stop;
pub use tally::{SubmissionTimes, Tally};

use crate::chunk_map::ChunkMap;
use gmodel::billing::Billing;
use gmodel::config::ClusterConfig;
use gmodel::node::{DOWN_BY, GpuEntry, HoldMark, Link, NodeStateView};
use gmodel::{Fence, JobId, NodeId, Policy, RunId, Seq, Timestamp, TokenId, UserToken};
use gpolicy::usage::UsageBook;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Everything the controller decides from.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// Changes when a backup is restored; part of every fence.
    pub incarnation: u64,
    /// Number of the last accepted event.
    pub seq: Seq,
    /// The next unused job id. Only ever grows.
    pub next_job: u64,
    pub next_node: u32,
    /// The newest adoption window, open or not.
    pub adoption: Option<AdoptionWindow>,
    /// The files' configuration with the partitions of `own_policy`.
    pub config: Arc<ClusterConfig>,
    /// Accounts, QOS, reservations and partitions made by `gadm`.
    pub own_policy: Policy,
    /// The policy in force: `own_policy` under the configuration's.
    pub policy: Arc<Policy>,
    /// Usage of accounts and users.
    pub usage: Arc<UsageBook>,
    /// When the policy or the configuration last changed (or a run was adopted): plans made before are not
    /// entered, and runs placed before may exceed limits.
    pub policy_since: (Seq, Timestamp),
    /// When this controller started: silence of nodes counts from here at the earliest.
    pub started: Timestamp,
    /// Jobs, and those array tasks that differ from their array.
    pub jobs: ChunkMap<JobId, Job>,
    pub arrays: ChunkMap<JobId, Array>,
    /// Runs that hold something, or that a node has not reported clean.
    pub runs: ChunkMap<RunId, Run>,
    pub nodes: ChunkMap<NodeId, Node>,
    pub tokens: Tokens,
    pub billing: Arc<Billing>,
    pub automatic: AutomaticRemovals,
    pub index: StateIndex,
    pub memo: StateMemos,
}

/// The tokens that are known here, as hashes of their secrets.
#[derive(Clone, Debug, Default)]
pub struct Tokens {
    /// Of machines that are to join, by the hash.
    pub joins: BTreeMap<String, JoinToken>,
    pub users: Arc<BTreeMap<TokenId, Arc<UserToken>>>,
}

/// What the controller itself took out of service in the last hour, for the breaker.
#[derive(Clone, Debug, Default)]
pub struct AutomaticRemovals {
    /// Drains of nodes.
    pub drains: BTreeSet<(Timestamp, NodeId)>,
    /// GPUs, by UUID.
    pub gpus: BTreeSet<(Timestamp, NodeId, String)>,
}

/// The adoption window: nodes may bring runs that a restored database lacks, each node once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdoptionWindow {
    /// Number of the event that opened it.
    #[serde(default)]
    pub number: u64,
    /// The newest fence of the restored database. Runs with older orders that it lacks were over when it was
    /// copied.
    pub from: Fence,
    /// Nodes may be ahead of this controller up to here: an earlier restore may be forgotten.
    pub max_incarnation: u64,
    /// Jobs from this id on were submitted since: no node can have an unknown run of theirs.
    pub first_job: u64,
    pub until: Timestamp,
}

/// A client's key of a submission; unique per user.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ClientKey {
    pub uid: u32,
    /// Shared with the job's record.
    pub key: Arc<str>,
}

impl State {
    /// Whether a node may bring runs that this controller does not know.
    pub fn adopts_from(&self, node: &Node, now: Timestamp) -> bool {
        self.adoption
            .as_ref()
            .is_some_and(|window| now < window.until && node.adopted_in != window.number)
    }

    /// The newest fence that any node can have been given.
    pub fn newest_fence(&self) -> Fence {
        Fence {
            incarnation: self.incarnation,
            generation: self.seq.0,
        }
    }

    /// Nodes with a deadline.
    pub(crate) fn watched_nodes(&self) -> impl Iterator<Item = &Node> {
        self.index
            .watched
            .iter()
            .filter_map(|id| self.nodes.get(*id))
    }

    /// The time, or a later one by which all runs were placed: the clock may have gone back.
    pub(crate) fn after_all_placed(&self, at: Timestamp) -> Timestamp {
        self.runs
            .values()
            .map(|run| run.placed)
            .max()
            .map_or(at, |last| last.max(at))
    }

    pub fn job(&self, id: JobId) -> Option<&Job> {
        self.jobs.get(id)
    }

    pub fn array(&self, id: JobId) -> Option<&Array> {
        self.arrays.get(id)
    }

    pub fn run(&self, id: RunId) -> Option<&Run> {
        self.runs.get(id)
    }

    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(id)
    }

    /// The runs with a share on a node, or to be stopped there.
    pub(crate) fn runs_on(&self, node: NodeId) -> Vec<RunId> {
        let node = self.nodes.get(node);
        node.map_or(Vec::new(), |node| node.runs.iter().copied().collect())
    }

    /// The part of a run on one of its nodes.
    pub(crate) fn member(&self, run: RunId, node: NodeId) -> Option<&Member> {
        self.runs.get(run)?.member(node)
    }

    /// A GPU of a node, by UUID; present or not.
    pub(crate) fn gpu(&self, node: NodeId, uuid: &str) -> Option<&GpuEntry> {
        self.nodes
            .get(node)?
            .gpus
            .iter()
            .find(|gpu| gpu.info.uuid == uuid)
    }

    pub fn node_by_name(&self, name: &str) -> Option<&Node> {
        self.nodes.get(*self.index.node_names.get(name)?)
    }

    /// The array of a task without a record, and the task's position.
    pub fn array_of(&self, id: JobId) -> Option<(&Array, u32)> {
        let (_, array) = self
            .arrays
            .range(id.0.saturating_sub(1_000_000), id.0.saturating_add(1))
            .last()?;
        let position = u32::try_from(id.0 - array.id.0).ok()?;
        (position < array.len()).then_some((array, position))
    }

    /// Free CPUs, bytes, and thousandths of each GPU by slot.
    pub fn free_on(&self, node: &Node) -> FreeResources {
        let mut free = FreeResources {
            cpus: node.inventory.cpus,
            mem_bytes: node.inventory.mem_bytes,
            gpu_milli: node
                .gpus
                .iter()
                .map(|gpu| {
                    if gpu.usable() && !node.is_being_cut(gpu) {
                        1000
                    } else {
                        0
                    }
                })
                .collect(),
            runs: 0,
        };
        for run in node.runs.iter().filter_map(|id| self.runs.get(*id)) {
            let Some(at) = run
                .place_of(node.id)
                .filter(|at| !run.members[*at].is_clean())
            else {
                continue;
            };
            let share = &run.allocation[at];
            free.runs += 1;
            if !run.lends_cpus() {
                free.cpus = free.cpus.saturating_sub(share.cpus);
            }
            free.mem_bytes = free.mem_bytes.saturating_sub(share.mem_bytes);
            for grant in &share.gpus.0 {
                if let Some(slot) = free.gpu_milli.get_mut(usize::from(grant.slot.0)) {
                    *slot = slot.saturating_sub(grant.part.of_slot_milli());
                }
            }
        }
        free
    }

    /// Without reservations, which depend on the clock.
    pub fn node_view(&self, node: &Node) -> NodeStateView {
        let free = self.free_on(node);
        let (down, drained): (Vec<&HoldMark>, Vec<_>) = node
            .drains
            .iter()
            .partition(|mark| mark.owner.starts_with(DOWN_BY));
        NodeStateView {
            link: if down.is_empty() {
                node.link
            } else {
                Link::Down
            },
            drained: !drained.is_empty(),
            unfit: !node.inventory.unfit.is_empty(),
            allocated: free.runs > 0,
            room: free.cpus > 0 && (node.gpus.is_empty() || free.gpu_milli.iter().any(|m| *m > 0)),
            reserved: false,
            maintenance: false,
        }
    }
}
