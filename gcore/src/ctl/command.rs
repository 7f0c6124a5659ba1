//! What comes in: commands, node reports, plans, wakes; and what goes out: replies and refusals.
//!
//! A refusal is made before the first event of its command, so no command is half done.

use crate::ctl::event::{JobChange, PolicyChange};
use crate::ctl::state::{ForgottenJob, JoinToken};
use gmodel::array_spec::ArraySpec;
use gmodel::config::ClusterConfig;
use gmodel::gpu_order::{GpuAction, GpuOrderDone};
use gmodel::hostlist::Hostlist;
use gmodel::idle::IdleReport;
use gmodel::image_pull::{PullProgress, PullReport};
use gmodel::launch_order::LaunchOrder;
use gmodel::node::{Inventory, Role};
use gmodel::run::{RunReport, Usage};
use gmodel::step_share::{StepHold, StepHoldOnNode, StepShareRequest};
use gmodel::{
    BlobId, ExitCode, Fence, JobId, JobSpec, Month, NodeId, NodeLife, RefusalKind, RunId,
    Timestamp, TokenId, UserToken,
};
use gsched::Plan;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Something that happened outside.
#[allow(
    clippy::large_enum_variant,
    reason = "they are handed on one at a time, not kept"
)]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "input", rename_all = "snake_case")]
pub enum Input {
    Command {
        actor: Actor,
        command: Command,
    },
    Node {
        node: NodeId,
        report: NodeReport,
    },
    Plan {
        plan: Plan,
    },
    /// The result of a call of the fence program; its number is that of its `FenceOrder`.
    Fenced {
        node: NodeId,
        number: u64,
        failure: Option<String>,
    },
    /// The result of a call of the idle program; its number is that of its `IdleOrder`.
    IdleTold {
        run: RunId,
        number: u64,
        failure: Option<String>,
    },
    /// A deadline of `next_deadline` has come.
    Wake,
    Configure {
        config: Arc<ClusterConfig>,
    },
    /// The files are read again while the controller runs: what was set of their partitions counts no more.
    Reload {
        config: Arc<ClusterConfig>,
    },
    /// First input after boot.
    Started,
}

/// The user of a command, as the kernel or the certificate says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Actor {
    pub user: String,
    pub uid: u32,
    pub gid: u32,
    /// May administer: root on the controller's own socket, or a configured operator.
    pub operator: bool,
    /// The node with the daemon that passed the command on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub via: Option<NodeId>,
    /// Groups that partitions are for, and whether the user is in each. Of a group that is not here that is not known.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub groups: BTreeMap<String, bool>,
    /// The token that it came with, or that a job has on the compute node it came from: what is submitted counts against its caps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<TokenId>,
}

/// A step's request: which of its job's nodes, and how many tasks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StepAsk {
    /// The program, for listings.
    pub name: String,
    pub nodes: Option<u32>,
    pub ntasks: Option<u32>,
    /// On each node; with `ntasks` the most on one.
    pub ntasks_per_node: Option<u32>,
    /// Nodes it must be on; other nodes of the job follow as far as `nodes` goes.
    pub nodelist: Option<Hostlist>,
    pub exclude: Option<Hostlist>,
    /// Begin with this node of the job, counted from 0.
    pub relative: u32,
    /// Ranks that a node gets before it is the next node's turn; 0: as many as it takes.
    pub plane: u32,
    /// More tasks than its nodes have CPUs of the job.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub overcommit: bool,
    /// Its own time limit, for listings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_secs: Option<u32>,
    /// What the step has exclusively; `None`: it shares all of its job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<StepShareRequest>,
    /// Programs behind the first, whose numbers are those above.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub programs: Vec<ProgramAsk>,
    /// Address at which its grun listens.
    pub connect: String,
}

/// What a step asks for in one job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepPart {
    pub target: Target,
    pub ask: StepAsk,
}

/// How many tasks a program of a step has, and on how many nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProgramAsk {
    pub nodes: Option<u32>,
    pub ntasks: Option<u32>,
    pub ntasks_per_node: Option<u32>,
}

#[allow(
    clippy::large_enum_variant,
    reason = "they are handed on one at a time, not kept"
)]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case")]
pub enum Command {
    /// `spec.user` is overwritten by the actor. -> `Reply::Submitted`
    Submit {
        spec: Box<JobSpec>,
        client_key: Option<String>,
    },
    /// A job of unlike parts: each component's request, the leader's first. -> `Reply::Submitted` with the leader's id
    SubmitParts {
        specs: Vec<JobSpec>,
        client_key: Option<String>,
    },
    /// Cancel jobs (or signal running ones). Ids of arrays mean the whole array unless `task`.
    /// -> `Reply::Cancelled`
    Cancel {
        targets: Vec<Target>,
        signal: Option<CancelSignal>,
    },
    Hold {
        targets: Vec<Target>,
        reason: String,
        /// The hold belongs to the job's owner and may be released by that user, though another made it.
        #[serde(default)]
        for_owner: bool,
    },
    Release {
        targets: Vec<Target>,
    },
    Requeue {
        targets: Vec<Target>,
        hold: bool,
    },
    /// Suspend running jobs.
    Suspend {
        targets: Vec<Target>,
    },
    Resume {
        targets: Vec<Target>,
    },
    Update {
        target: Target,
        change: JobChange,
    },
    /// Count a step of a running job, or one step over components of a job of unlike parts, and lay out its tasks. -> `Reply::Step`
    StartStep {
        parts: Vec<StepPart>,
    },
    /// A step is over, as its grun says.
    EndStep {
        target: Target,
        step: u32,
        exit: ExitCode,
        used: Option<Usage>,
    },
    /// Ends an allocation; one that is pending is cancelled. Repeating it does nothing.
    EndAllocation {
        target: Target,
        end: AllocationEnd,
    },
    NodeDrain {
        node: NodeId,
        reason: String,
    },
    /// As `NodeDrain`; at the deadline, runs still there are asked for a checkpoint and requeued.
    NodeDrainBy {
        node: NodeId,
        reason: String,
        deadline: Timestamp,
    },
    NodeResume {
        node: NodeId,
    },
    /// Which features a node has, in place of what its gpud reports. Neither list: what was set is taken back.
    NodeFeatures {
        node: NodeId,
        available: Option<Vec<String>>,
        active: Option<Vec<String>>,
    },
    /// Declare a silent node dead: its runs end as NODE_FAIL, with a fence program only after that has run.
    NodeDown {
        node: NodeId,
        reason: String,
        /// The node is off for certain: the fence program is not asked.
        #[serde(default)]
        fenced: bool,
    },
    NodeRemove {
        node: NodeId,
    },
    /// Revoke its certificates until it joins again.
    NodeRevoke {
        node: NodeId,
    },
    /// `gpuctld` is about to renew the certificate of this epoch for a machine at `from`.
    NodeRenew {
        node: NodeId,
        epoch: u32,
        from: String,
    },
    GpuOrder {
        node: NodeId,
        uuid: String,
        what: GpuAction,
    },
    /// A missing GPU is gone for good.
    GpuForget {
        uuid: String,
    },
    MintToken {
        token: JoinToken,
    },
    /// Of a user's tokens: by that user, or by an operator.
    Token {
        change: TokenChange,
    },
    /// By operators: a month is closed, or a line added.
    Bill {
        change: BillChange,
    },
    /// A machine presents a token's hash and the name it wants. -> `Reply::Joined`
    Join {
        token_hash: String,
        name: String,
    },
    /// By operators; by coordinators within their accounts.
    Policy {
        change: PolicyChange,
    },
    /// A command with the stored records of jobs that its dependencies name and that are no longer in memory.
    Knowing {
        past: Vec<ForgottenJob>,
        asked: Box<Command>,
    },
    /// An older database was put in place: the incarnation goes above every fence, ids above every id seen,
    /// and nodes may bring runs that it lacks. `incarnation` and `next_job` are the highest otherwise known,
    /// from the replaced database or the high-water mark; 0 is none.
    Restore {
        #[serde(default)]
        incarnation: u64,
        #[serde(default)]
        next_job: u64,
    },
}

/// What becomes of bills.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BillChange {
    /// The bill comes along as a blob.
    Close {
        month: Month,
        bill: BlobId,
        lines: u32,
        total_micro: i64,
        /// How many corrections it has.
        corrections: u32,
    },
    Correct {
        account: String,
        amount_micro: i64,
        reason: String,
    },
}

/// What becomes of tokens of users.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenChange {
    /// When and by whom it is made is filled in.
    Make(Box<UserToken>),
    Revoke(TokenId),
    /// These were used on the day that begins then; `gpuctld` says so once a day for each.
    NoteUse {
        tokens: Vec<TokenId>,
        day: Timestamp,
    },
}

/// How an allocation ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AllocationEnd {
    /// Its client is done, with this exit code.
    Done(ExitCode),
    /// Its client was not heard for the partition's `detached_time`.
    ClientGone,
}

/// A job as a user names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// `17`: a job; when it is the id of an array, all of it.
    Job(JobId),
    /// `17+1`: a component of a job of unlike parts.
    Part { leader: JobId, offset: u32 },
    /// `98_5`: one task, by array id and index.
    Task { array: JobId, index: u32 },
    /// `98_[1-3]`: several tasks; refused or done together by kind.
    Tasks { array: JobId, indices: ArraySpec },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelSignal {
    pub signal: u8,
    /// Only the batch shell (`gdel --batch`).
    #[serde(default)]
    pub batch_only: bool,
    /// The batch shell too (`gdel --full`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub full: bool,
}

/// What a node tells the controller. The name and role come from its certificate, not from here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "report", rename_all = "snake_case")]
pub enum NodeReport {
    /// First on every connection: all runs the node knows, before it obeys anything.
    Hello {
        life: NodeLife,
        fence: Fence,
        inventory: Inventory,
        runs: Vec<RunReport>,
    },
    /// Before the hello of a node that obeyed another incarnation: runs unknown here, with their launch
    /// orders. `gpuctld` verifies the seals first.
    Adopt {
        life: NodeLife,
        inventory: Inventory,
        runs: Vec<RunReport>,
        orders: Vec<LaunchOrder>,
    },
    Runs {
        runs: Vec<RunReport>,
    },
    /// How long GPUs of its runs have been idle, as of a sample just taken.
    Idle {
        runs: Vec<IdleReport>,
    },
    /// How far the images of runs that it makes ready are.
    Pulls {
        runs: Vec<PullReport>,
    },
    Inventory {
        inventory: Inventory,
    },
    /// The node made this fence durable and is working on it.
    Obeyed {
        fence: Fence,
    },
    /// How orders for its GPUs ended.
    GpuOrders {
        done: Vec<GpuOrderDone>,
    },
    /// Its certificate, which this authority signed, is of this epoch.
    Certificate {
        epoch: u32,
    },
    /// The connection is gone.
    Gone,
    /// Another machine claimed the node's identity and was rejected. `owner`: the owner of the drain that
    /// follows.
    Claimed {
        owner: String,
        text: String,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum Reply {
    Done,
    Submitted {
        id: JobId,
        /// One-line notes for the user: a default limit that was filled in, and the like.
        notes: Vec<String>,
        /// The key was known: this is the job made the first time.
        repeated: bool,
    },
    /// Per target, in order.
    Each {
        results: Vec<TargetResult>,
    },
    Joined {
        node: NodeId,
        role: Role,
        name: String,
        #[serde(default)]
        admin: bool,
        #[serde(default)]
        epoch: u32,
    },
    /// The part in each job, in the order of ranks.
    Step {
        parts: Vec<StartedStep>,
    },
    /// No step was started: these steps hold what it asked for exclusively.
    StepWaits {
        text: String,
        /// The run's nodes bring its image.
        pull: Option<PullProgress>,
        holders: Vec<StepHold>,
    },
}

/// A step that was counted in a job, with ranks of all of the step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartedStep {
    pub run: RunId,
    pub step: u32,
    pub layout: Vec<StepNode>,
    /// Of the programs behind the first.
    pub first_ranks: Vec<u32>,
}

/// One node of a step and the global ranks that run on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepNode {
    pub node: NodeId,
    pub name: String,
    pub ranks: Vec<u32>,
    /// Its exclusive part of the node, if it asked for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own: Option<StepHoldOnNode>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetResult {
    pub target: Target,
    /// `None` when done.
    pub refusal: Option<Refusal>,
}

/// Why a command is not carried out: what was asked, what prevents it, what would work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{text}")]
pub struct Refusal {
    pub code: RefusalCode,
    pub text: String,
    #[serde(default, skip_serializing_if = "RefusalKind::is_other")]
    pub about: RefusalKind,
    /// The name of what is refused, where the kind has one: a partition, a limit.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub subject: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalCode {
    NotFound,
    Denied,
    Invalid,
    /// Wrong for the job's or node's present state.
    Conflict,
    /// A bound of the cluster.
    Limit,
    Unavailable,
    #[serde(other)]
    Unknown,
}

impl Refusal {
    pub fn new(code: RefusalCode, text: impl Into<String>) -> Self {
        Self {
            code,
            text: text.into(),
            about: RefusalKind::Other,
            subject: String::new(),
        }
    }
    /// The same refusal, of this kind.
    pub fn about(self, about: RefusalKind) -> Self {
        Self { about, ..self }
    }
    /// The same refusal, naming its subject.
    pub fn naming(self, subject: impl Into<String>) -> Self {
        Self {
            subject: subject.into(),
            ..self
        }
    }
    pub fn invalid(text: impl Into<String>) -> Self {
        Self::new(RefusalCode::Invalid, text)
    }
    pub fn denied(text: impl Into<String>) -> Self {
        Self::new(RefusalCode::Denied, text).about(RefusalKind::Access)
    }
    pub fn not_found(text: impl Into<String>) -> Self {
        Self::new(RefusalCode::NotFound, text)
    }
    pub fn conflict(text: impl Into<String>) -> Self {
        Self::new(RefusalCode::Conflict, text)
    }
    pub fn limit(text: impl Into<String>) -> Self {
        Self::new(RefusalCode::Limit, text)
    }
    pub fn unavailable(text: impl Into<String>) -> Self {
        Self::new(RefusalCode::Unavailable, text)
    }
}
