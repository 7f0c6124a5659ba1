//! Facts the controller asserts, past tense. The store writes them before anyone hears.
//!
//! An event carries its own time and ids, so that `apply` needs neither clock nor chance.

use super::dependency::{Dependent, Waits};
use super::state::{AdoptionWindow, JoinToken, Outcome, Stop, Strike, Suspension};
use gmodel::array_spec::RangeSet;
use gmodel::checkpoint::CheckpointSpec;
use gmodel::config::ClusterConfig;
use gmodel::dependency::Dependency;
use gmodel::gpu_check::CheckReport;
use gmodel::gpu_order::{GpuAction, GpuOrderDone};
use gmodel::idle::{IdleAction, IdleLevels, IdleSpell};
use gmodel::node::{HoldMark, Inventory, Link, Role};
use gmodel::policy::{Account, AccountUser, Qos, Reservation};
use gmodel::request_change::RequestChange;
use gmodel::run::{Allocation, NodeShare, NumberedSignal, RunPhase, Usage};
use gmodel::step_share::StepHold;
use gmodel::{
    ExitCode, JobId, JobSpec, NodeId, NodeLife, Policy, Reason, ReasonCode, RunClass, RunId,
    Timestamp,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    // the queue
    /// `spec.array` makes it an array that takes as many consecutive ids as it has tasks.
    JobSubmitted {
        id: JobId,
        spec: Arc<JobSpec>,
        limit_secs: Option<u32>,
        at: Timestamp,
        client_key: Option<String>,
    },
    /// A task of an array got a record of its own.
    TaskSplit {
        array: JobId,
        position: u32,
    },
    JobHeld {
        job: JobId,
        mark: HoldMark,
    },
    JobReleased {
        job: JobId,
        owner: Option<String>,
        at: Timestamp,
    },
    ArrayHeld {
        array: JobId,
        mark: HoldMark,
    },
    ArrayReleased {
        array: JobId,
        owner: Option<String>,
        at: Timestamp,
    },
    /// Untouched tasks of an array, held together.
    TasksHeld {
        array: JobId,
        positions: RangeSet,
        mark: HoldMark,
    },
    TasksReleased {
        array: JobId,
        positions: RangeSet,
        owner: Option<String>,
        at: Timestamp,
    },
    JobUpdated {
        job: JobId,
        change: JobChange,
        /// Not said by releases before.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        by: String,
    },
    ArrayUpdated {
        array: JobId,
        change: JobChange,
        #[serde(default, skip_serializing_if = "String::is_empty")]
        by: String,
    },
    /// Cancelled while pending: over.
    JobCancelled {
        job: JobId,
        by: String,
        text: String,
        /// Why it could not run: a deadline, an impossible dependency.
        #[serde(default, skip_serializing_if = "is_none")]
        reason: ReasonCode,
        at: Timestamp,
    },
    /// It was over, and waits again.
    JobRequeued {
        job: JobId,
        /// Its last run, where that is still being cleaned up.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        run: Option<RunId>,
        by: String,
        at: Timestamp,
    },
    /// Untouched tasks of an array that were cancelled wait again.
    TasksRequeued {
        array: JobId,
        positions: RangeSet,
        by: String,
        at: Timestamp,
    },
    /// What of a dependency is not met; `None`: all of it is.
    WaitsChanged {
        who: Dependent,
        waits: Option<Box<Waits>>,
        at: Timestamp,
    },
    /// Untouched tasks of an array, cancelled together.
    TasksCancelled {
        array: JobId,
        positions: RangeSet,
        by: String,
        at: Timestamp,
    },
    /// From the last plan; not stored.
    ReasonsGiven {
        jobs: Vec<(JobId, Reason)>,
        arrays: Vec<(JobId, Reason)>,
    },
    /// Others go for it, or no longer do: with where it is to start. Unlike other reasons this cannot be found again when they are gone.
    RoomPromised {
        who: Dependent,
        reason: Reason,
    },
    JobsForgotten {
        jobs: Vec<JobId>,
        arrays: Vec<JobId>,
    },

    // runs
    RunPlaced {
        run: RunId,
        allocation: Allocation,
        lives: Vec<Arc<NodeLife>>,
        /// In which of its partitions, where it waited in several.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        partition: Option<String>,
        limit_secs: Option<u32>,
        /// `None` where there are no quotas.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        class: Option<RunClass>,
        /// What its job was worth when its turn came.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        priority: Option<i64>,
        /// By which its nodes share GPU memory.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        imex_channel: Option<u32>,
        at: Timestamp,
    },
    /// A run became guaranteed, or its account's guarantee shrank; `None`: there are no quotas any more.
    RunClassed {
        run: RunId,
        #[serde(default)]
        class: Option<RunClass>,
    },
    /// The job said that its checkpoint is safe.
    RunMarked {
        run: RunId,
        node: NodeId,
        mark: gmodel::checkpoint::CheckpointMark,
        at: Timestamp,
    },
    /// A run that a node brought along after a restore; its job's record is made if there is none.
    RunAdopted {
        run: RunId,
        spec: Arc<JobSpec>,
        share: NodeShare,
        life: NodeLife,
        /// The share is the batch node's.
        batch: bool,
        limit_secs: Option<u32>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        imex_channel: Option<u32>,
        at: Timestamp,
    },
    RunGo {
        run: RunId,
        at: Timestamp,
    },
    /// Its processes stand still.
    RunSuspended {
        run: RunId,
        suspension: Suspension,
    },
    RunResumed {
        run: RunId,
        by: String,
        at: Timestamp,
    },
    RunStopping {
        run: RunId,
        stop: Stop,
    },
    /// The job for which it was told to go started elsewhere. `called_back`: none of its nodes is known to have the order, and it
    /// runs on.
    RunUnneeded {
        run: RunId,
        for_job: JobId,
        called_back: bool,
        at: Timestamp,
    },
    RunSignalled {
        run: RunId,
        signal: NumberedSignal,
    },
    /// A node told of a sample of a run's GPUs; not stored, as the next.
    RunIdleSeen {
        run: RunId,
        node: NodeId,
        idle_secs: Vec<u32>,
        watched_secs: u32,
        at: Timestamp,
    },
    /// How idle the run is on all its nodes together.
    RunIdled {
        run: RunId,
        levels: IdleLevels,
        watched_secs: u32,
    },
    /// Part of its GPUs had stood idle, and works again or is not heard of any more.
    RunIdleOver {
        run: RunId,
        /// Those worth writing down.
        spells: Vec<IdleSpell>,
        /// It was warned, and is to be warned again before anything else.
        ends_warning: bool,
        at: Timestamp,
    },
    /// Its GPUs have stood idle for as long as its policy bears without a word.
    RunIdleWarned {
        run: RunId,
        idle_secs: u32,
        /// Seconds of the run before that began.
        from_secs: u32,
        /// Of its GPUs.
        percent: u32,
        /// Idle so long in all, the action follows.
        act_after_secs: u32,
        action: IdleAction,
        /// False: the policy only reports.
        real: bool,
        at: Timestamp,
    },
    /// It would have been ended for being idle, under a policy that ends something.
    RunIdleNoted {
        run: RunId,
        idle_secs: u32,
        at: Timestamp,
    },
    /// The site's program was called for a warning; `failure`: and did not end well.
    RunIdleTold {
        run: RunId,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failure: Option<String>,
        at: Timestamp,
    },
    RunReported {
        run: RunId,
        node: NodeId,
        phase: RunPhase,
        at: Timestamp,
    },
    /// A step was counted; the nodes are told by whoever carries the order.
    StepStarted {
        run: RunId,
        step: u32,
        name: String,
        tasks: u32,
        /// How many of the run's nodes it is on, the first of them; 0 was not said by releases before.
        #[serde(default)]
        nodes: u32,
        /// Which they are, by their places among the run's nodes, where they are not the first.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        places: Vec<u32>,
        /// What it has for itself until it ends.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        hold: Option<StepHold>,
        at: Timestamp,
    },
    /// A step is over; of one whose grun was killed nobody says so, and it ends with its run.
    StepEnded {
        run: RunId,
        step: u32,
        exit: ExitCode,
        /// What it used, as its nodes measured and its grun says.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        used: Option<Usage>,
        at: Timestamp,
    },
    /// The node is given up for this run: its part is written off.
    RunForfeited {
        run: RunId,
        node: NodeId,
        text: String,
        at: Timestamp,
    },
    /// Every member ended; the job's fate is decided. Until it is settled the job is COMPLETING.
    RunEnded {
        run: RunId,
        outcome: Outcome,
        settled: bool,
        at: Timestamp,
    },
    /// Cancelled while COMPLETING: the job does not go back to the queue.
    RequeueDropped {
        run: RunId,
        stop: Stop,
    },
    /// Every member is clean or given up: a COMPLETING job is over.
    RunSettled {
        run: RunId,
        at: Timestamp,
    },
    /// Every member is clean: the run holds nothing any more.
    RunClosed {
        run: RunId,
    },

    // nodes
    NodeJoined {
        node: NodeId,
        name: String,
        role: Role,
        at: Timestamp,
    },
    /// A login node from which operators may administer, or no longer.
    NodeAdminChanged {
        node: NodeId,
        admin: bool,
        by: String,
        at: Timestamp,
    },
    /// Older certificates of the node open nothing any more: its machine joined again, or they were revoked.
    NodeEpochRaised {
        node: NodeId,
        epoch: u32,
        by: String,
        at: Timestamp,
    },
    NodeRenewed {
        node: NodeId,
        epoch: u32,
        from: String,
        at: Timestamp,
    },
    NodeHello {
        node: NodeId,
        life: NodeLife,
        at: Timestamp,
    },
    NodeInventory {
        node: NodeId,
        inventory: Inventory,
        at: Timestamp,
    },
    NodeLinkChanged {
        node: NodeId,
        link: Link,
        at: Timestamp,
    },
    /// Not stored: the node repeats it.
    NodeObeyed {
        node: NodeId,
        generation: u64,
    },
    NodeDrained {
        node: NodeId,
        mark: HoldMark,
        automatic: bool,
    },
    /// A drained node is to be empty by then: what still runs is told to checkpoint and stop.
    NodeDrainDue {
        node: NodeId,
        due: Timestamp,
    },
    NodeResumed {
        node: NodeId,
        owner: Option<String>,
        by: String,
        at: Timestamp,
    },
    NodeStruck {
        node: NodeId,
        strike: Strike,
    },
    NodeStrikesCleared {
        node: NodeId,
    },
    NodeRemoved {
        node: NodeId,
        by: String,
        at: Timestamp,
    },
    /// The site's fence program is to power a lost node off before its runs are written off.
    NodeFenceAsked {
        node: NodeId,
        /// Why the node is held for lost.
        lost: String,
        /// For its silence; counted by the breaker.
        automatic: bool,
        at: Timestamp,
    },
    /// It is not off: the program failed, or may not be called now.
    NodeFenceFailed {
        node: NodeId,
        lost: String,
        text: String,
        retry: Timestamp,
        at: Timestamp,
    },
    /// It is off, by the program's or an administrator's word.
    NodeFenced {
        node: NodeId,
        by: String,
        at: Timestamp,
    },
    /// Something is to be done to a GPU.
    GpuOrdered {
        node: NodeId,
        uuid: String,
        what: GpuAction,
        by: String,
        at: Timestamp,
    },
    /// The node says how an order ended.
    GpuOrderEnded {
        node: NodeId,
        done: GpuOrderDone,
        at: Timestamp,
    },
    /// Something befell a GPU, as its node's inventory shows: a line of its history. `automatic`: it went out of service by
    /// itself, and the breaker counts it.
    GpuNoted {
        node: NodeId,
        uuid: String,
        kind: GpuNoteKind,
        text: String,
        automatic: bool,
        at: Timestamp,
    },
    /// What an order to check a GPU came to.
    GpuChecked {
        node: NodeId,
        uuid: String,
        number: u64,
        /// Nothing was found out: the GPU was given to this run.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        gave_way_to: Option<RunId>,
        report: Box<CheckReport>,
        at: Timestamp,
    },
    /// The newest result of one check of a GPU is out of line with its kind.
    GpuJudged {
        node: NodeId,
        uuid: String,
        check: String,
        odd: String,
        at: Timestamp,
    },
    /// Idle GPUs were looked at, and will be again. Not stored.
    GpuChecksLooked {
        next: Timestamp,
    },
    TokenMinted {
        token: JoinToken,
    },
    TokenSpent {
        hash: String,
        at: Timestamp,
    },

    // the cluster
    /// The TOML is its source; the store keeps only the note that it changed.
    Configured {
        config: Arc<ClusterConfig>,
        at: Timestamp,
    },
    /// Accounts, users, QOS or reservations were edited.
    PolicyChanged {
        change: PolicyChange,
        by: String,
        at: Timestamp,
    },
    /// A backup was restored: all fences are raised, ids start above everything known.
    Restored {
        incarnation: u64,
        next_job: u64,
        /// `None`: a node's fence or run was above what is known, in the window that is open.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        opens: Option<AdoptionWindow>,
        at: Timestamp,
    },
    /// The controller came up. Not stored.
    ControllerStarted {
        at: Timestamp,
    },
    /// Times up to here have come. Not stored.
    TimeReached {
        until: Timestamp,
    },
}

/// A change of a job's request by its owner or an operator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobChange {
    /// `Some(None)` is UNLIMITED.
    #[serde(skip_serializing_if = "Option::is_none", with = "double_option")]
    pub limit_secs: Option<Option<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nice: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    /// One, or several: `a,b`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qos: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eligible: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requeue: Option<bool>,
    /// Tasks of an array that may run at once; 0 is no cap.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_running: Option<u32>,
    /// `Some(None)`: it depends on nothing any more.
    #[serde(skip_serializing_if = "Option::is_none", with = "double_option")]
    pub dependency: Option<Option<Dependency>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub licences: Option<BTreeMap<String, u32>>,
    /// Empty: outside of reservations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reservation: Option<String>,
    /// Operators only, but for 0, which holds the job. `Some(None)`: computed again.
    #[serde(skip_serializing_if = "Option::is_none", with = "double_option")]
    pub priority: Option<Option<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub borrow: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none", with = "double_option")]
    pub deadline: Option<Option<Timestamp>>,
    #[serde(skip_serializing_if = "Option::is_none", with = "double_option")]
    pub time_min_secs: Option<Option<u32>>,
    #[serde(skip_serializing_if = "Option::is_none", with = "double_option")]
    pub checkpoint: Option<Option<CheckpointSpec>>,
    /// Operators only: no idle policy touches it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_exempt: Option<bool>,
    /// Nodes, tasks, CPUs, memory, GPUs, and where.
    #[serde(skip_serializing_if = "RequestChange::is_empty")]
    pub request: RequestChange,
}

/// One edit of the accounts, QOS and reservations that the database keeps. Whole records: the same edit twice is one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "snake_case")]
pub enum PolicyChange {
    /// Made, or replaced.
    Account {
        account: Box<Account>,
    },
    /// Only one that was never charged; others are closed.
    AccountRemoved {
        name: String,
    },
    User {
        account: String,
        user: String,
        entry: AccountUser,
    },
    UserRemoved {
        account: String,
        user: String,
    },
    Qos {
        qos: Box<Qos>,
    },
    QosRemoved {
        name: String,
    },
    Reservation {
        reservation: Box<Reservation>,
    },
    ReservationRemoved {
        name: String,
        /// Though jobs run in it: they run on.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        force: bool,
    },
    /// Everything replaced, as `gadm policy import` does.
    All {
        policy: Box<Policy>,
    },
}

/// JSON keeps `Some(None)` apart from `None`: absent, null, value.
mod double_option {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    pub fn serialize<T: Serialize, S: Serializer>(
        value: &Option<Option<T>>,
        s: S,
    ) -> Result<S::Ok, S::Error> {
        value.as_ref().and_then(Option::as_ref).serialize(s)
    }
    pub fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
        d: D,
    ) -> Result<Option<Option<T>>, D::Error> {
        Option::<T>::deserialize(d).map(Some)
    }
}

fn is_none(code: &ReasonCode) -> bool {
    *code == ReasonCode::None
}

/// What befell a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuNoteKind {
    Appeared,
    /// From another node, where it was out of service.
    Moved,
    /// The node it left: it is in another one now, whose word counts.
    Left,
    Gone,
    /// Nobody misses it any more, by an operator's word.
    Forgotten,
    /// Out of service, or for another reason than before.
    Sick,
    Noted,
    Well,
    Reset,
    Boot,
    BurnIn,
    ToBeReplaced,
    /// Its next step waits for the pool's breaker.
    Stopped,
    Cut,
    #[serde(other)]
    Unknown,
}

impl GpuNoteKind {
    /// As it is written.
    pub fn word(self) -> &'static str {
        match self {
            Self::Appeared => "appeared",
            Self::Moved => "moved",
            Self::Left => "left",
            Self::Gone => "gone",
            Self::Forgotten => "forgotten",
            Self::Sick => "sick",
            Self::Noted => "noted",
            Self::Well => "well",
            Self::Reset => "reset",
            Self::Boot => "boot",
            Self::BurnIn => "burn_in",
            Self::ToBeReplaced => "to_be_replaced",
            Self::Stopped => "stopped",
            Self::Cut => "cut",
            Self::Unknown => "unknown",
        }
    }
}

/// The rows an event changes: the store rewrites exactly these from the state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Touched {
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

impl Event {
    /// Whether the event belongs in the history. The others are derived again or repeated by nodes.
    pub fn is_stored(&self) -> bool {
        !matches!(
            self,
            Self::ReasonsGiven { .. }
                | Self::NodeObeyed { .. }
                | Self::RunIdleSeen { .. }
                | Self::RunIdled { .. }
                | Self::ControllerStarted { .. }
                | Self::JobsForgotten { .. }
                | Self::TimeReached { .. }
                | Self::GpuChecksLooked { .. }
        )
    }

    /// Whether a plan made before it may be wrong now, so that another is wanted.
    pub fn wakes_planner(&self) -> bool {
        match self {
            // Of what a node says, that a share of it is free.
            Self::RunReported { phase, .. } => matches!(phase, RunPhase::Clean(_)),
            Self::ReasonsGiven { .. }
            | Self::RoomPromised { .. }
            | Self::NodeObeyed { .. }
            | Self::JobsForgotten { .. }
            | Self::RunPlaced { .. }
            | Self::RunGo { .. }
            | Self::TaskSplit { .. }
            | Self::RunStopping { .. }
            | Self::RunSignalled { .. }
            | Self::StepStarted { .. }
            | Self::StepEnded { .. }
            | Self::RunMarked { .. }
            | Self::RunIdleSeen { .. }
            | Self::RunIdled { .. }
            | Self::RunIdleOver { .. }
            | Self::RunIdleWarned { .. }
            | Self::RunIdleNoted { .. }
            | Self::RunIdleTold { .. }
            | Self::RunClassed { .. }
            | Self::NodeDrainDue { .. }
            | Self::TokenMinted { .. }
            | Self::TokenSpent { .. }
            | Self::NodeJoined { .. }
            | Self::NodeEpochRaised { .. }
            | Self::NodeRenewed { .. }
            | Self::NodeStrikesCleared { .. } => false,
            _ => true,
        }
    }

    /// Which rows the event changes.
    pub fn touched(&self) -> Touched {
        let none = Touched::default();
        let job = |job: JobId| Touched {
            job: Some(job),
            ..none
        };
        let of_array = |array: JobId| Touched {
            array: Some(array),
            ..none
        };
        let of_run = |run: RunId| Touched {
            job: Some(run.job),
            run: Some(run),
            array_of_job: true,
            ..none
        };
        let node = |node: NodeId| Touched {
            node: Some(node),
            ..none
        };
        match self {
            Self::JobSubmitted { id, spec, .. } if spec.array.is_some() => of_array(*id),
            Self::JobSubmitted { id, .. } => job(*id),
            Self::TaskSplit { array, position } => Touched {
                job: Some(JobId(array.0 + u64::from(*position))),
                array: Some(*array),
                ..none
            },
            Self::JobHeld { job: id, .. }
            | Self::JobReleased { job: id, .. }
            | Self::JobUpdated { job: id, .. } => job(*id),
            Self::JobCancelled { job: id, .. } => Touched {
                job: Some(*id),
                array_of_job: true,
                ..none
            },
            Self::JobRequeued { job: id, run, .. } => Touched {
                job: Some(*id),
                run: *run,
                array_of_job: true,
                ..none
            },
            Self::WaitsChanged {
                who: Dependent::Job(id),
                ..
            }
            | Self::RoomPromised {
                who: Dependent::Job(id),
                ..
            } => job(*id),
            Self::WaitsChanged {
                who: Dependent::Array(id),
                ..
            }
            | Self::RoomPromised {
                who: Dependent::Array(id),
                ..
            } => of_array(*id),
            Self::ArrayHeld { array, .. }
            | Self::ArrayReleased { array, .. }
            | Self::TasksHeld { array, .. }
            | Self::TasksReleased { array, .. }
            | Self::ArrayUpdated { array, .. }
            | Self::TasksCancelled { array, .. }
            | Self::TasksRequeued { array, .. } => of_array(*array),
            Self::RunPlaced { run, .. }
            | Self::RunAdopted { run, .. }
            | Self::RunEnded { run, .. }
            | Self::RequeueDropped { run, .. }
            | Self::RunSettled { run, .. } => of_run(*run),
            Self::RunSuspended { run, .. } | Self::RunResumed { run, .. } => Touched {
                job: Some(run.job),
                run: Some(*run),
                ..none
            },
            Self::RunGo { run, .. }
            | Self::RunStopping { run, .. }
            | Self::RunUnneeded { run, .. }
            | Self::RunSignalled { run, .. }
            | Self::RunIdleOver { run, .. }
            | Self::RunIdleWarned { run, .. }
            | Self::RunIdleNoted { run, .. }
            | Self::RunIdleTold { run, .. }
            | Self::StepStarted { run, .. }
            | Self::StepEnded { run, .. }
            | Self::RunClassed { run, .. }
            | Self::RunForfeited { run, .. }
            | Self::RunClosed { run } => Touched {
                run: Some(*run),
                ..none
            },
            Self::RunReported { run, .. } | Self::RunMarked { run, .. } => Touched {
                job: Some(run.job),
                run: Some(*run),
                ..none
            },
            Self::NodeJoined { node: id, .. }
            | Self::NodeAdminChanged { node: id, .. }
            | Self::NodeEpochRaised { node: id, .. }
            | Self::NodeRenewed { node: id, .. }
            | Self::NodeHello { node: id, .. }
            | Self::NodeInventory { node: id, .. }
            | Self::NodeLinkChanged { node: id, .. }
            | Self::NodeDrained { node: id, .. }
            | Self::NodeDrainDue { node: id, .. }
            | Self::NodeResumed { node: id, .. }
            | Self::NodeStruck { node: id, .. }
            | Self::NodeStrikesCleared { node: id }
            | Self::GpuOrdered { node: id, .. }
            | Self::GpuOrderEnded { node: id, .. }
            | Self::GpuNoted { node: id, .. }
            | Self::GpuChecked { node: id, .. }
            | Self::GpuJudged { node: id, .. }
            | Self::NodeFenceAsked { node: id, .. }
            | Self::NodeFenceFailed { node: id, .. }
            | Self::NodeFenced { node: id, .. }
            | Self::NodeRemoved { node: id, .. } => node(*id),
            Self::TokenMinted { .. } | Self::TokenSpent { .. } => Touched {
                tokens: true,
                ..none
            },
            Self::PolicyChanged { .. } => Touched {
                policy: true,
                ..none
            },
            Self::ReasonsGiven { .. }
            | Self::JobsForgotten { .. }
            | Self::RunIdleSeen { .. }
            | Self::RunIdled { .. }
            | Self::NodeObeyed { .. }
            | Self::Configured { .. }
            | Self::Restored { .. }
            | Self::ControllerStarted { .. }
            | Self::TimeReached { .. }
            | Self::GpuChecksLooked { .. } => none,
        }
    }
}
