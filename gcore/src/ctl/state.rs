//! The controller's state: what is queued, what runs where, which nodes there are.
//!
//! Changed only by `apply`. Everything here can be rebuilt from the rows the store keeps; finished
//! jobs leave it after `min_job_age`.

use super::apart::Apart;
use super::dependency::{Dependent, Waits};
use super::idle::{self, IdleSeen, RunIdle};
use super::late_specs::LateSpecs;
use super::limits::{Minutes, Tally};
pub use super::node_health::Strike;
pub use super::outcome::Outcome;
pub use super::past::NodeFailure;
use super::past::Past;
use super::reservation::window_left_secs;
pub use super::stop::Stop;
use crate::chunk_map::ChunkMap;
use gmodel::array_spec::{ArraySpec, RangeSet};
use gmodel::config::ClusterConfig;
use gmodel::gpu_order::GpuOrder;
use gmodel::node::{GpuEntry, HoldMark, Inventory, Link, NodeStateView, Role};
use gmodel::rare::Rare;
use gmodel::run::{Allocation, EndCause, NumberedSignal, RunEnd, RunPhase};
use gmodel::step_share::StepHold;
use gmodel::{
    Fence, GpuSlot, JobId, JobSpec, JobState, NodeId, NodeLife, Policy, Reason, Request, RunClass,
    RunId, Seq, Timestamp,
};
use gsched::SchedNode;
use gsched::usage::UsageBook;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, OnceLock};

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
    pub config: Arc<ClusterConfig>,
    /// Accounts, QOS and reservations made by `gadm`.
    pub own_policy: Policy,
    /// Those in force: `own_policy` with what the configuration says over it.
    pub policy: Arc<Policy>,
    /// What accounts and users have used.
    pub usage: Arc<UsageBook>,
    /// When the policy or the configuration last changed (or a run came that no plan had placed): plans made before are
    /// not entered, and runs placed before may be beyond limits.
    pub policy_since: (Seq, Timestamp),
    /// Times up to here have come: reservations that begin or end by then were seen.
    pub time_reached: Timestamp,
    /// When this controller began: silence of nodes counts from here at the earliest.
    pub started: Timestamp,
    /// Jobs, and those array tasks that differ from their array.
    pub jobs: ChunkMap<JobId, Job>,
    pub arrays: ChunkMap<JobId, Array>,
    /// Runs that hold something or whose node has not reported clean.
    pub runs: ChunkMap<RunId, Run>,
    pub nodes: ChunkMap<NodeId, Node>,
    pub node_names: BTreeMap<String, NodeId>,
    pub tokens: BTreeMap<String, JoinToken>,
    /// Submissions by client key, so that a repeated question makes no second job.
    pub client_keys: BTreeMap<ClientKey, JobId>,
    /// Jobs that are over but still in memory, by when we heard; for forgetting them in order.
    pub finished: BTreeSet<(Timestamp, JobId)>,
    /// Automatic drains of the last hour: the one breaker counts them.
    pub automatic_drains: BTreeSet<(Timestamp, NodeId)>,
    /// And GPUs that went out of service by themselves, by UUID.
    pub automatic_gpus: BTreeSet<(Timestamp, NodeId, String)>,
    /// GPUs that are in no node now, and missed or out of service where they were last seen; where that was.
    pub gone: BTreeMap<String, NodeId>,
    /// When idle GPUs are looked at next, where they are checked.
    pub next_check_look: Timestamp,
    /// When jobs and arrays become eligible, or no longer wait for few switches, if that is later.
    pub not_yet: BTreeSet<(Timestamp, JobId)>,
    /// Who waits for whom: by the id of the job, task or array that decides. An end costs only its dependants.
    pub dependents: BTreeSet<(JobId, Dependent)>,
    /// Pending jobs and arrays with something to look at then: a deadline, or minutes after another's start.
    pub due: BTreeSet<(Timestamp, JobId)>,
    /// Jobs that are not over, by whom they count for.
    pub tally: Tally,
    /// Nodes with a deadline: silent ones, those that are to be empty by some time, and those that wait to be powered off.
    pub watched: BTreeSet<NodeId>,
    /// Runs whose nodes are not all ready, by placement.
    pub preparing: BTreeSet<(Timestamp, RunId)>,
    /// Runs that were told to make room, by the job they make it for, until they are clean everywhere.
    pub making_room: BTreeSet<(JobId, RunId)>,
    /// What nodes tell of runs that do not use all their GPUs. A memo, as `respecified`.
    pub idle_seen: ChunkMap<RunId, IdleSeen>,
    /// Runs that were warned for standing idle and of which the site's program is still to be told.
    pub idle_untold: BTreeSet<RunId>,
    /// Requests known to fit the nodes there are, as they were asked for, and on how many: a memo for submission, cleared when
    /// nodes change.
    pub feasible: Arc<BTreeMap<(String, Request), u32>>,
    /// The nodes of each partition as a submission looks at them, made when the first needs them. A memo, cleared with `feasible`.
    pub(super) members: OnceLock<Arc<BTreeMap<String, Vec<SchedNode>>>>,
    /// Pending jobs whose request changed since the last plan was entered: a plan made before does not start them. A
    /// memo of the controller that runs.
    pub respecified: BTreeMap<JobId, Seq>,
    /// Submissions of the last minute where they are limited. A memo, as `respecified`.
    pub minutes: Minutes,
    /// Requests of late, which later ones may share.
    pub late_specs: LateSpecs,
}

/// In which nodes may bring runs that a restored database does not know: each node once, and not for ever.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdoptionWindow {
    /// Number of the event that opened it.
    #[serde(default)]
    pub number: u64,
    /// The newest fence of the database that was restored. Runs with older orders were over when it was copied, if it does not name them.
    pub from: Fence,
    /// Nodes may be ahead of this controller up to here: a database may have been restored before, and that is forgotten.
    pub max_incarnation: u64,
    /// Jobs from this id on were submitted since: no node can hold a run of theirs that is not known.
    pub first_job: u64,
    pub until: Timestamp,
}

/// Made by a client for each submission; unique per user.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ClientKey {
    pub uid: u32,
    /// The same text as in the job's record.
    pub key: Arc<str>,
}

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
    pub submitted: Timestamp,
    /// Not before this: `--begin`, or back-off after a failed start.
    pub eligible: Timestamp,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub holds: Vec<HoldMark>,
    /// Attempts made so far; the next run is `attempts + 1`.
    #[serde(default)]
    pub attempts: u32,
    /// Numbers among them that no run had: restores skip some.
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
    /// What of its dependency is not met; only while it is pending.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits: Option<Box<Waits>>,
    /// What its runs left; read as if it stood here.
    #[serde(flatten)]
    pub past: Rare<Past>,
}

impl Deref for Job {
    type Target = Past;
    fn deref(&self) -> &Past {
        &self.past
    }
}

impl DerefMut for Job {
    fn deref_mut(&mut self) -> &mut Past {
        &mut self.past
    }
}

/// Which task of which array a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskOf {
    pub array: JobId,
    pub position: u32,
    pub index: u32,
}

/// An array as one record: its untouched tasks are a set of positions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Array {
    /// Id of the task at position 0.
    pub id: JobId,
    pub spec: Arc<JobSpec>,
    pub tasks: ArraySpec,
    /// Positions that are pending and like the array in everything.
    pub pending: RangeSet,
    /// Positions cancelled before they had a record.
    pub cancelled: RangeSet,
    /// Tasks with a record of their own that are not over: pending, running, completing.
    pub own_pending: u32,
    pub own_live: u32,
    pub reason: Reason,
    pub submitted: Timestamp,
    pub eligible: Timestamp,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub holds: Vec<HoldMark>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_secs: Option<u32>,
    pub nice: i32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancelled_by: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_key: Option<Arc<str>>,
    /// What of its dependency is not met, for the tasks without records of their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits: Option<Box<Waits>>,
    /// Tasks with records of their own that are over and did not end well. They may be forgotten before the array.
    #[serde(default)]
    pub unsuccessful: u32,
    /// Pending tasks that are held unlike the rest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub apart: Vec<Apart>,
}

/// One attempt of a job, from the placement until every node reported clean.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    pub id: RunId,
    /// The batch node first.
    pub allocation: Allocation,
    /// Same order as `allocation`.
    pub members: Vec<Member>,
    pub placed: Timestamp,
    /// All members were ready (or there is only one).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub go: Option<Timestamp>,
    /// `None` where there are no quotas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<RunClass>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop: Option<Stop>,
    /// An order that was taken back before any of its nodes was known to have it. A node that had it all the same ends the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub called_back: Option<Box<Stop>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_secs: Option<u32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub signals: Vec<NumberedSignal>,
    /// Steps started so far; the next has this number.
    #[serde(default)]
    pub steps: u32,
    /// What steps under way have for themselves.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub step_holds: Vec<StepHold>,
    /// First process started, by the controller's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<Timestamp>,
    /// Outcome, once every member ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    /// Its newest checkpoint mark, with the node's number, note, and time as far as the controller's clock allows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark: Option<gmodel::checkpoint::CheckpointMark>,
    /// It stands still.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspension: Option<Box<Suspension>>,
    /// How long it stood still before.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub suspended_millis: u64,
    /// What its nodes tell of GPUs that it does not use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle: Option<Box<RunIdle>>,
    /// By which its nodes of one NVLink domain share GPU memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub imex_channel: Option<u32>,
    /// Its record was made again from what its nodes brought: it authorises none of them to speak for its user.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub adopted: bool,
}

/// Since when a run stands still, and on whose word.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suspension {
    pub since: Timestamp,
    pub by: String,
    /// The job that has its CPUs; `None`: an operator's word, and it keeps them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_job: Option<JobId>,
    /// For people: on which ground.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn is_beginning(at: &Timestamp) -> bool {
    at.0 == 0
}

fn is_none_yet(number: &u32) -> bool {
    *number == 0
}

/// One node of a run, under the life of the node it was placed in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    pub node: NodeId,
    pub life: Arc<NodeLife>,
    /// What the node last reported; `None` until it accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<RunPhase>,
    /// The node was given up: its share is written off, whatever it still runs is killed when it
    /// reports.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub forfeited: bool,
    /// Number of the newest checkpoint mark that was set there: each node of a run counts its own.
    #[serde(default, skip_serializing_if = "is_none_yet")]
    pub marked: u32,
}

/// A node of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    pub id: NodeId,
    pub name: String,
    pub role: Role,
    /// Operators may administer from there; its certificate has to say so too.
    #[serde(default)]
    pub admin: bool,
    /// Raised by each join after the first and by `gadm node revoke`: certificates of older ones open nothing.
    #[serde(default, skip_serializing_if = "is_none_yet")]
    pub epoch: u32,
    /// Its certificate's last renewal under this epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renewed: Option<Box<Renewed>>,
    pub link: Link,
    /// Since when the link is as it is.
    pub link_since: Timestamp,
    pub life: Arc<NodeLife>,
    /// Inventory without GPUs; these are in `gpus`, by slot. Both are shared: what a node runs changes all the time, and
    /// each change after a pass copies its record.
    pub inventory: Arc<Inventory>,
    pub gpus: Arc<Vec<GpuEntry>>,
    pub drains: Vec<HoldMark>,
    /// Runs that hold a share here or are to be stopped here.
    pub runs: BTreeSet<RunId>,
    /// Number of the last event that changed what the node should run.
    pub generation: u64,
    /// The newest generation the node said it obeys.
    pub obeyed: u64,
    /// Launch failures that were the node's fault since the last success.
    pub strikes: Vec<Strike>,
    /// When it was last resumed, or came with another life: launches that failed before say nothing of it now.
    #[serde(default, skip_serializing_if = "is_beginning")]
    pub well_since: Timestamp,
    pub joined: Timestamp,
    /// Orders for its GPUs that it has not answered, one a GPU.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpu_orders: Vec<GpuOrder>,
    /// It is lost and its runs wait until it is known to be off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fencing: Option<Fencing>,
    /// The newest cut by MIG that was ordered of each GPU.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub cuts: BTreeMap<String, gsched::snapshot::CutRecord>,
    /// Drained with a deadline: runs that are still here then are told to checkpoint and stop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub empty_by: Option<Timestamp>,
    /// Number of the last adoption window in which it said hello: closed to it since.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub adopted_in: u64,
    /// When each GPU was last given back, where idle ones are checked. A memo of the controller that runs.
    #[serde(skip)]
    pub freed: BTreeMap<GpuSlot, Timestamp>,
}

/// The newest renewal of a node's certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Renewed {
    pub at: Timestamp,
    /// Address of the machine that asked.
    pub from: String,
    /// Under this epoch so far.
    pub count: u32,
}

/// A lost node that is to be powered off by the site's fence program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fencing {
    /// Why it is held for lost.
    pub lost: String,
    /// Number of the event that asked last: an answer to another call does not count.
    pub number: u64,
    /// Calls so far.
    pub attempts: u32,
    /// When the program was last asked for, or failed.
    pub asked: Timestamp,
    /// `None`: the call is under way.
    pub failed: Option<FenceFailure>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FenceFailure {
    pub text: String,
    pub retry: Timestamp,
}

/// A one-time invitation for a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinToken {
    /// SHA-256 of the secret, hex; the secret itself is never stored.
    pub hash: String,
    pub role: Role,
    /// The node's name, when fixed by the administrator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub expires: Timestamp,
    pub minted_by: String,
    /// A login node whose operators may administer from there.
    #[serde(default)]
    pub admin: bool,
}

impl Job {
    /// How it is written: `17`, or `98_5` for an array task.
    pub fn shown_id(&self) -> String {
        match self.task {
            Some(task) => format!("{}_{}", task.array, task.index),
            None => self.id.to_string(),
        }
    }
    /// How often it was started again, as of its last run.
    pub fn restarts(&self) -> u32 {
        self.attempts
            .saturating_sub(1)
            .saturating_sub(self.skipped_attempts)
    }
    pub fn live_run(&self) -> Option<RunId> {
        self.live.map(|attempt| RunId::new(self.id, attempt))
    }
    /// It is neither too early for it nor does it wait after a failure of its node.
    pub fn is_due(&self, now: Timestamp) -> bool {
        self.eligible <= now && self.try_after.is_none_or(|at| at <= now)
    }
    /// Times from which it may start where it may not before.
    pub fn tries(&self) -> impl Iterator<Item = Timestamp> + '_ {
        self.try_after.into_iter().chain(
            self.node_failures
                .iter()
                .filter_map(NodeFailure::barred_until),
        )
    }
    pub fn may_requeue(&self, partition_default: bool) -> bool {
        self.spec.requeue.unwrap_or(partition_default)
    }
}

impl Array {
    pub fn task_id(&self, position: u32) -> JobId {
        JobId(self.id.0 + u64::from(position))
    }
    pub fn len(&self) -> u32 {
        self.tasks.len()
    }
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Nothing of it is pending or live any more.
    pub fn is_over(&self) -> bool {
        self.pending.is_empty() && self.own_pending == 0 && self.own_live == 0
    }
}

impl Run {
    /// As it begins: nothing of it is ready, and no node has said anything. Members are in the order of the allocation.
    pub fn placed(
        id: RunId,
        allocation: Allocation,
        members: Vec<Member>,
        limit_secs: Option<u32>,
        at: Timestamp,
    ) -> Self {
        Self {
            id,
            allocation,
            members,
            placed: at,
            go: None,
            class: None,
            mark: None,
            suspension: None,
            suspended_millis: 0,
            idle: None,
            imex_channel: None,
            adopted: false,
            stop: None,
            called_back: None,
            limit_secs,
            signals: Vec::new(),
            steps: 0,
            step_holds: Vec::new(),
            started: None,
            outcome: None,
        }
    }
    pub fn member(&self, node: NodeId) -> Option<&Member> {
        self.place_of(node).map(|at| &self.members[at])
    }
    /// Where a node stands in `allocation` and `members`. They are in the order of the nodes' names, which mostly is
    /// that of their ids, and a large run is asked for each of its nodes again and again. Its nodes mostly follow each other.
    pub fn place_of(&self, node: NodeId) -> Option<usize> {
        let near = node
            .0
            .checked_sub(self.members.first()?.node.0)
            .map(|near| near as usize);
        if let Some(near) = near.filter(|near| {
            self.members
                .get(*near)
                .is_some_and(|member| member.node == node)
        }) {
            return Some(near);
        }
        let by_order = self
            .members
            .binary_search_by_key(&node, |member| member.node)
            .ok();
        by_order.or_else(|| self.members.iter().position(|member| member.node == node))
    }
    pub fn all(&self, test: impl Fn(&Member) -> bool) -> bool {
        self.members.iter().all(test)
    }
    /// Nodes that have not reported ready.
    pub fn late_members(&self) -> Vec<NodeId> {
        self.members
            .iter()
            .filter(|member| !member.is_ready())
            .map(|member| member.node)
            .collect()
    }
    pub fn is_late(&self, node: NodeId) -> bool {
        self.stop
            .as_ref()
            .is_some_and(|stop| stop.late.contains(&node))
    }
    /// Nodes this run failed on by the node's fault, with the reason.
    pub fn failed_nodes(&self) -> impl Iterator<Item = (NodeId, &str)> + '_ {
        self.members.iter().filter_map(|member| match member.end() {
            _ if self.is_late(member.node) => Some((member.node, "not ready in time")),
            Some(end) if end.cause.is_node_failure() => Some((member.node, &*end.text)),
            _ => member
                .forfeited
                .then_some((member.node, "the node was lost")),
        })
    }
    /// The node did not bring the run so far that anything of the user was started there.
    pub fn failed_launch(&self, node: NodeId) -> bool {
        let cause = self.member(node).and_then(Member::end).map(|end| end.cause);
        self.is_late(node) || matches!(cause, Some(EndCause::LaunchNode | EndCause::PrologFailed))
    }
    /// The node itself was rebooted, or lost.
    pub fn lost_node(&self, node: NodeId) -> bool {
        self.member(node).is_some_and(|member| match member.end() {
            Some(end) => end.cause == EndCause::NodeRebooted,
            None => member.forfeited,
        })
    }
    /// Every node has reported clean, or was given up.
    pub fn is_settled(&self) -> bool {
        self.all(Member::is_settled)
    }
    /// Every node has reported clean: the run holds nothing any more.
    pub fn is_clean(&self) -> bool {
        self.all(Member::is_clean)
    }
}

impl Member {
    pub fn new(node: NodeId, life: Arc<NodeLife>) -> Self {
        Self {
            node,
            life,
            phase: None,
            forfeited: false,
            marked: 0,
        }
    }
    pub fn end(&self) -> Option<&Arc<RunEnd>> {
        self.phase.as_ref().and_then(RunPhase::end)
    }
    pub fn is_ready(&self) -> bool {
        self.phase
            .as_ref()
            .is_some_and(|phase| phase.rank() >= RunPhase::Ready.rank())
    }
    pub fn is_ended(&self) -> bool {
        self.forfeited || self.end().is_some()
    }
    pub fn is_settled(&self) -> bool {
        self.forfeited || self.is_clean()
    }
    /// The node said so itself, or can hold nothing any more. A forfeited share is not free before.
    pub fn is_clean(&self) -> bool {
        matches!(self.phase, Some(RunPhase::Clean(_)))
    }
}

impl Node {
    /// Something may have to be done about it at some time.
    pub(super) fn has_deadline(&self) -> bool {
        self.link == Link::Silent
            || self.empty_by.is_some()
            || self.fencing.is_some()
            || self.has_step_waiting()
    }
    /// Takes new work, as far as the node's own state goes.
    pub fn is_available(&self) -> bool {
        self.role == Role::Compute
            && self.link == Link::Up
            && self.drains.is_empty()
            && self.inventory.unfit.is_empty()
    }
}

impl State {
    /// Whether a node may bring runs along that this controller does not know.
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

    /// After either part changed.
    pub(super) fn merge_policy(&mut self) {
        self.policy = super::policy::merged(&self.own_policy, &self.config);
    }

    /// After a node's link or deadline changed.
    pub(super) fn watch(&mut self, id: NodeId) {
        let node = self.nodes.get(id);
        if node.is_some_and(Node::has_deadline) {
            self.watched.insert(id);
        } else {
            self.watched.remove(&id);
        }
    }

    /// Nodes with a deadline.
    pub(super) fn watched_nodes(&self) -> impl Iterator<Item = &Node> {
        self.watched.iter().filter_map(|id| self.nodes.get(*id))
    }

    pub(super) fn index_job(&mut self, job: &Job) {
        if let Some(key) = &job.client_key {
            let key = ClientKey {
                uid: job.spec.user.uid,
                key: key.clone(),
            };
            self.client_keys.insert(key, job.id);
        }
        if let (true, Some(ended)) = (job.state.is_final(), job.ended) {
            self.finished.insert((ended, job.id));
        }
        if !job.state.is_final() {
            self.tally.add(&job.spec, 1);
        }
        if job.state == JobState::Pending {
            self.index_waits(Dependent::Job(job.id), job.waits.as_deref());
            self.index_deadline(job.id, &job.spec, job.limit_secs);
            self.index_begin(job.id, job.submitted, job.eligible, &job.spec);
            self.index_tries(job);
        }
    }

    /// When a job that failed with its nodes is tried again, and when on nodes that did not launch it.
    pub(super) fn index_tries(&mut self, job: &Job) {
        self.not_yet.extend(job.tries().map(|at| (at, job.id)));
    }

    pub(super) fn index_array(&mut self, array: &Array) {
        if let Some(key) = &array.client_key {
            let key = ClientKey {
                uid: array.spec.user.uid,
                key: key.clone(),
            };
            self.client_keys.insert(key, array.id);
        }
        self.index_waits(Dependent::Array(array.id), array.waits.as_deref());
        self.tally.add(&array.spec, array.pending.len());
        if !array.pending.is_empty() {
            self.index_deadline(array.id, &array.spec, array.limit_secs);
        }
        self.index_begin(array.id, array.submitted, array.eligible, &array.spec);
    }

    fn index_waits(&mut self, who: Dependent, waits: Option<&Waits>) {
        for wait in waits.into_iter().flat_map(|waits| &waits.on) {
            self.dependents.insert((wait.of, who));
            self.due.extend(wait.until.map(|at| (at, who.id())));
        }
    }

    /// When a waiting job may start that could not before, without anything happening: it is eligible, or takes nodes on
    /// any switches.
    pub(super) fn index_begin(
        &mut self,
        id: JobId,
        submitted: Timestamp,
        eligible: Timestamp,
        spec: &JobSpec,
    ) {
        let later = (eligible > submitted).then_some(eligible);
        let any_switches = spec
            .request
            .switches
            .and_then(|wanted| wanted.waits_until(eligible));
        self.not_yet
            .extend(later.into_iter().chain(any_switches).map(|at| (at, id)));
    }

    /// The latest time at which the job could begin and still end by its deadline.
    pub(super) fn index_deadline(&mut self, id: JobId, spec: &JobSpec, limit_secs: Option<u32>) {
        self.due
            .extend(super::deadline::last_start(spec, limit_secs).map(|at| (at, id)));
    }

    /// What of a job's or an array's dependency is not met, with the index that follows from it.
    pub(super) fn set_waits(&mut self, who: Dependent, waits: Option<Box<Waits>>) {
        let slot = match who {
            Dependent::Job(id) => {
                &mut self
                    .jobs
                    .get_mut(id)
                    .expect("a dependant has its record")
                    .waits
            }
            Dependent::Array(id) => {
                &mut self
                    .arrays
                    .get_mut(id)
                    .expect("a dependant has its record")
                    .waits
            }
        };
        let before = std::mem::replace(slot, waits.clone());
        for wait in before.iter().flat_map(|waits| &waits.on) {
            self.dependents.remove(&(wait.of, who));
        }
        self.index_waits(who, waits.as_deref());
    }

    /// A time, or a later one by which all runs were placed: the clock may have gone back.
    pub(super) fn after_all_placed(&self, at: Timestamp) -> Timestamp {
        self.runs
            .values()
            .map(|run| run.placed)
            .max()
            .map_or(at, |last| last.max(at))
    }

    pub(super) fn index_run(&mut self, run: &Run) {
        if run.go.is_none() && run.stop.is_none() && run.outcome.is_none() {
            self.preparing.insert((run.placed, run.id));
        }
        self.making_room.extend(
            run.stop
                .as_ref()
                .and_then(|stop| Some((stop.for_job?, run.id))),
        );
        idle::index(self, run.id, idle::is_untold(run));
    }

    pub fn node_by_name(&self, name: &str) -> Option<&Node> {
        self.nodes.get(*self.node_names.get(name)?)
    }

    /// Finds the array that owns an id, when the task has no record of its own.
    pub fn array_of(&self, id: JobId) -> Option<(&Array, u32)> {
        let (_, array) = self
            .arrays
            .range(id.0.saturating_sub(1_000_000), id.0.saturating_add(1))
            .last()?;
        let position = u32::try_from(id.0 - array.id.0).ok()?;
        (position < array.len()).then_some((array, position))
    }

    /// The time limit that a job has: its run's, which may have been cut to what there was room for; else as asked.
    pub fn limit_in_force(&self, job: &Job) -> Option<u32> {
        job.live_run()
            .and_then(|run| self.runs.get(run))
            .map_or(job.limit_secs, |run| run.limit_secs)
    }

    /// When a run is ended: its limit with what its partition lets runs go over it, and before the window of its reservation ends in
    /// which it was placed, as that stands now.
    pub fn enforced_limit_secs(&self, run: &Run) -> Option<u32> {
        let job = self.jobs.get(run.id.job);
        let partition = job.and_then(|job| self.config.partition(&job.spec.partition));
        let over = partition.map_or(0, |partition| partition.over_time_secs);
        let longest = run.limit_secs?.saturating_add(over);
        let window_left = job.and_then(|job| window_left_secs(self, &job.spec, run.placed));
        Some(
            window_left
                .filter(|left| *left > 0)
                .map_or(longest, |left| longest.min(left)),
        )
    }

    /// When a run is over at the latest: unknown while it stands still.
    pub fn ends_by(&self, run: &Run, from: Timestamp) -> Option<Timestamp> {
        let limit_secs = self
            .enforced_limit_secs(run)
            .filter(|_| run.suspension.is_none())?;
        let stood_still = i64::try_from(run.suspended_millis).unwrap_or(i64::MAX / 2);
        Some(
            from.plus_secs(i64::from(limit_secs))
                .plus_millis(stood_still),
        )
    }

    /// What of a node is free: CPUs, bytes, and per slot thousandths of a GPU.
    pub fn free_on(&self, node: &Node) -> Free {
        let mut free = Free {
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

    /// Without its reservations, which come and go with the clock.
    pub fn node_view(&self, node: &Node) -> NodeStateView {
        let free = self.free_on(node);
        NodeStateView {
            link: node.link,
            drained: !node.drains.is_empty(),
            unfit: !node.inventory.unfit.is_empty(),
            allocated: free.runs > 0,
            room: free.cpus > 0 && (node.gpus.is_empty() || free.gpu_milli.iter().any(|m| *m > 0)),
            reserved: false,
            maintenance: false,
        }
    }
}

/// What of a node is not held by a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Free {
    pub cpus: u32,
    pub mem_bytes: u64,
    /// By slot; 0 for a GPU that is missing or sick.
    pub gpu_milli: Vec<u32>,
    /// Runs with a share here.
    pub runs: u32,
}
