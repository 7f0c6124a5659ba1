//! Facts the controller asserts, past tense. The store writes them before any reply or order leaves.
//!
//! An event carries its own time and ids, so that `apply` needs neither clock nor chance.

mod gpu_history;
mod gpu_note;
mod policy_change;
mod touched_rows;

pub use gmodel::JobChange;
pub use gpu_history::GpuHistoryLine;
pub use gpu_note::GpuNoteKind;
pub use policy_change::PolicyChange;
pub use touched_rows::TouchedRows;

use crate::ctl::state::{
    AdoptionWindow, EntryId, JoinToken, OpenDependency, Outcome, SetFeatures, Stop, Strike,
    Suspension,
};
use gmodel::array_spec::RangeSet;
use gmodel::billing::{ClosedMonth, Correction, UsedPrices};
use gmodel::config::ClusterConfig;
use gmodel::gpu_check::CheckReport;
use gmodel::gpu_order::{GpuAction, GpuOrderDone};
use gmodel::idle::{IdleAction, IdleLevels, IdleSpell};
use gmodel::image_pull::PullProgress;
use gmodel::node::{HoldMark, Inventory, Link, Role};
use gmodel::run::{Allocation, NodeShare, NumberedSignal, RunPhase, Usage};
use gmodel::step_share::StepHold;
use gmodel::{
    ExitCode, JobId, JobSpec, Month, NodeId, NodeLife, Reason, ReasonCode, RunClass, RunId,
    Timestamp, TokenId, UserToken,
};
use gsched::Nomination;
use serde::{Deserialize, Serialize};
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
        /// Empty in events of earlier releases.
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
    /// A finished job is pending again.
    JobRequeued {
        job: JobId,
        /// Its last run, if that is still being cleaned up.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        run: Option<RunId>,
        by: String,
        at: Timestamp,
    },
    /// Cancelled tasks without records are pending again.
    TasksRequeued {
        array: JobId,
        positions: RangeSet,
        by: String,
        at: Timestamp,
    },
    /// What of a dependency is not met; `None`: nothing.
    WaitsChanged {
        #[serde(rename = "who")]
        entry: EntryId,
        waits: Option<Box<OpenDependency>>,
        at: Timestamp,
    },
    /// Untouched tasks of an array, cancelled together.
    TasksCancelled {
        array: JobId,
        positions: RangeSet,
        by: String,
        /// As of `JobCancelled`; none in events of earlier releases.
        #[serde(default, skip_serializing_if = "is_none")]
        reason: ReasonCode,
        at: Timestamp,
    },
    /// From the last plan; not stored.
    ReasonsGiven {
        jobs: Vec<(JobId, Reason)>,
        arrays: Vec<(JobId, Reason)>,
    },
    /// A nomination changed: the nodes on which the job is to start. No later pass can derive it once its
    /// victims are gone.
    #[serde(rename = "RoomPromised")]
    NominationChanged {
        #[serde(rename = "who")]
        entry: EntryId,
        reason: Reason,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        nomination: Option<Nomination>,
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
        /// The partition it starts in, if it was pending in several.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        partition: Option<String>,
        limit_secs: Option<u32>,
        /// `None` where there are no quotas.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        class: Option<RunClass>,
        /// The job's priority when it started.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        priority: Option<i64>,
        /// The IMEX channel by which its nodes share GPU memory.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        imex_channel: Option<u32>,
        at: Timestamp,
    },
    /// A run became guaranteed, or its account's guarantee shrank; `None`: no quotas are left.
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
    /// Its processes are suspended.
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
    /// The job for which it was preempted started elsewhere. `called_back`: no node of it is known to have the
    /// order, and it runs on.
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
    /// A node reported a sample of a run's GPUs; not stored, like the next.
    RunIdleSeen {
        run: RunId,
        node: NodeId,
        idle_secs: Vec<u32>,
        watched_secs: u32,
        at: Timestamp,
    },
    /// A node reported how far a run's image is; not stored.
    RunPullSeen {
        run: RunId,
        node: NodeId,
        progress: PullProgress,
        at: Timestamp,
    },
    /// How idle the run is on all its nodes together.
    RunIdled {
        run: RunId,
        levels: IdleLevels,
        watched_secs: u32,
    },
    /// GPUs that had been idle work again, or are not reported any more.
    RunIdleOver {
        run: RunId,
        /// Spells long enough to be kept.
        spells: Vec<IdleSpell>,
        /// The run was warned, and is warned again before anything else.
        ends_warning: bool,
        at: Timestamp,
    },
    /// Its GPUs have been idle for as long as its policy allows without a warning.
    RunIdleWarned {
        run: RunId,
        idle_secs: u32,
        /// Seconds of the run before that began.
        from_secs: u32,
        /// Percent of its GPUs.
        percent: u32,
        /// Total idle seconds after which the action follows.
        act_after_secs: u32,
        action: IdleAction,
        /// False: the policy only reports.
        real: bool,
        at: Timestamp,
    },
    /// A policy that acts would have ended the run.
    RunIdleNoted {
        run: RunId,
        idle_secs: u32,
        at: Timestamp,
    },
    /// The site's program was called for a warning; `failure`: it did not end well.
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
    /// A step was counted; the bearer of the order tells the nodes.
    StepStarted {
        run: RunId,
        step: u32,
        name: String,
        tasks: u32,
        /// Number of the run's nodes it is on, the first of them; 0 in events of earlier releases.
        #[serde(default)]
        nodes: u32,
        /// Their places among the run's nodes, if they are not the first.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        places: Vec<u32>,
        /// What it holds exclusively until it ends.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        hold: Option<StepHold>,
        /// Its own time limit.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit_secs: Option<u32>,
        at: Timestamp,
    },
    /// A step is over. Without this event (its grun was killed) it ends with its run.
    StepEnded {
        run: RunId,
        step: u32,
        exit: ExitCode,
        /// Its usage, as its nodes measured and its grun reports.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        used: Option<Usage>,
        at: Timestamp,
    },
    /// The node is given up for this run: its share is written off.
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
    /// Older certificates of the node are void: its machine joined again, or they were revoked.
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
    /// By an operator; `None`: it has what its gpud reports again.
    NodeFeaturesSet {
        node: NodeId,
        set: Option<Box<SetFeatures>>,
        by: String,
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
    /// A drained node is to be empty by then: remaining runs are asked for a checkpoint and stopped.
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
        /// Why the node counts as lost.
        lost: String,
        /// For its silence; counted by the breaker.
        automatic: bool,
        at: Timestamp,
    },
    /// It is not known to be off: the program failed, or may not be called now.
    NodeFenceFailed {
        node: NodeId,
        lost: String,
        text: String,
        retry: Timestamp,
        at: Timestamp,
    },
    /// It is off, as the program or an administrator says.
    NodeFenced {
        node: NodeId,
        by: String,
        at: Timestamp,
    },
    /// A GPU got an order.
    GpuOrdered {
        node: NodeId,
        uuid: String,
        what: GpuAction,
        by: String,
        at: Timestamp,
    },
    /// The node reports how an order ended.
    GpuOrderEnded {
        node: NodeId,
        done: GpuOrderDone,
        at: Timestamp,
    },
    /// A line of a GPU's history, from its node's inventory. `automatic`: the GPU went out of service by
    /// itself, and the breaker counts it.
    GpuNoted {
        node: NodeId,
        uuid: String,
        kind: GpuNoteKind,
        text: String,
        automatic: bool,
        at: Timestamp,
    },
    /// The result of an order to check a GPU.
    GpuChecked {
        node: NodeId,
        uuid: String,
        number: u64,
        /// The check gave way: the GPU was given to this run.
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
    /// Idle GPUs were looked at; the next look. Not stored.
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
    /// A user's token; the two above are of machines that join.
    TokenMade {
        token: Box<UserToken>,
    },
    TokenRevoked {
        token: TokenId,
        by: String,
        at: Timestamp,
    },
    /// The day in which tokens were used last. Not stored, like the next.
    TokensUsed {
        tokens: Vec<TokenId>,
        day: Timestamp,
    },
    /// They ended long ago.
    TokensForgotten {
        tokens: Vec<TokenId>,
    },

    // bills
    /// The lines of a month are fixed; they are stored under the name that is in here.
    BillClosed {
        month: Month,
        closed: ClosedMonth,
    },
    BillCorrected {
        correction: Correction,
    },
    /// Runs were charged by these lists for the first time.
    PricesUsed {
        prices: Box<UsedPrices>,
        at: Timestamp,
    },

    // the cluster
    /// The TOML is its source; the store keeps only a note of the change.
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
        /// `None`: a node's fence or run was above what is known, in the open window.
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

fn is_none(code: &ReasonCode) -> bool {
    *code == ReasonCode::None
}

impl Event {
    /// Whether the event belongs in the history. Other events are derived again or repeated by nodes.
    pub fn is_stored(&self) -> bool {
        !matches!(
            self,
            Self::ReasonsGiven { .. }
                | Self::NodeObeyed { .. }
                | Self::RunIdleSeen { .. }
                | Self::RunPullSeen { .. }
                | Self::RunIdled { .. }
                | Self::ControllerStarted { .. }
                | Self::JobsForgotten { .. }
                | Self::TimeReached { .. }
                | Self::GpuChecksLooked { .. }
                | Self::TokensUsed { .. }
                | Self::TokensForgotten { .. }
        )
    }

    /// Whether a plan made before it may be wrong now, so that a new pass is due.
    pub fn wakes_planner(&self) -> bool {
        match self {
            // Of run reports, only one that frees a share.
            Self::RunReported { phase, .. } => matches!(phase, RunPhase::Clean(_)),
            Self::ReasonsGiven { .. }
            | Self::NominationChanged { .. }
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
            | Self::RunPullSeen { .. }
            | Self::RunIdled { .. }
            | Self::RunIdleOver { .. }
            | Self::RunIdleWarned { .. }
            | Self::RunIdleNoted { .. }
            | Self::RunIdleTold { .. }
            | Self::RunClassed { .. }
            | Self::NodeDrainDue { .. }
            | Self::TokenMinted { .. }
            | Self::TokenSpent { .. }
            | Self::TokenMade { .. }
            | Self::TokenRevoked { .. }
            | Self::TokensUsed { .. }
            | Self::TokensForgotten { .. }
            | Self::BillClosed { .. }
            | Self::BillCorrected { .. }
            | Self::PricesUsed { .. }
            | Self::NodeJoined { .. }
            | Self::NodeEpochRaised { .. }
            | Self::NodeRenewed { .. }
            | Self::NodeStrikesCleared { .. } => false,
            _ => true,
        }
    }

    /// When the controller itself took a node out of service, and which.
    pub fn automatic_drain(&self) -> Option<(Timestamp, NodeId)> {
        match self {
            Event::NodeDrained {
                node,
                mark,
                automatic: true,
            } => Some((mark.since, *node)),
            Event::NodeFenceAsked {
                node,
                automatic: true,
                at,
                ..
            } => Some((*at, *node)),
            _ => None,
        }
    }
}
