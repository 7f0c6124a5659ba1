//! A run, one attempt of a job: what each node is told of it, and what it reports back.
//!
//! A run goes `prepare -> ready -> go -> running -> ended -> clean` on each of its nodes
//! Reports carry the whole phase, so repeating or reordering them does no harm.

use crate::checkpoint::CheckpointMark;
use crate::exit_code::ExitCode;
use crate::gpu_order::GpuOrder;
use crate::gpu_set::GpuSet;
use crate::gpu_use::GpuUseTotals;
use crate::ids::{Fence, NodeId, RunId};
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What one run holds on one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeShare {
    pub node: NodeId,
    pub cpus: u32,
    pub mem_bytes: u64,
    #[serde(default, skip_serializing_if = "GpuSet::is_empty")]
    pub gpus: GpuSet,
    /// Tasks of the job placed here.
    pub tasks: u32,
}

/// Everything a run holds, the batch node first.
pub type Allocation = Vec<NodeShare>;

/// What a node should be running. Runs it holds that are not named are to be stopped and cleaned.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DesiredState {
    pub fence: Fence,
    pub runs: Vec<DesiredRun>,
    /// Open orders for its GPUs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<GpuOrder>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DesiredRun {
    pub run: RunId,
    pub want: RunTarget,
    /// Signals asked for so far (`gdel -s`), numbered from 1: the node delivers those it has not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub signals: Vec<NumberedSignal>,
    /// The time limit now in force, seconds from the start; `None` is unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_secs: Option<u32>,
    /// Its processes are stopped; the time limit does not run. A stop ends the suspension.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspended: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NumberedSignal {
    pub number: u32,
    pub signal: u8,
    /// Only the batch shell, not the whole tree.
    #[serde(default)]
    pub batch_only: bool,
    /// The batch shell too, beside all that it started: otherwise it is spared.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub full: bool,
}

/// How far a node should take a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunTarget {
    /// Make everything ready, start no process of the user.
    Prepare,
    /// Start, and keep running.
    Run,
    /// SIGTERM, after `grace_secs` SIGKILL to all of it, then clean.
    Stop { why: StopCause, grace_secs: u32 },
    /// From a newer controller.
    #[serde(other)]
    Unknown,
}

/// Why the controller ends a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopCause {
    Cancelled,
    Requeued,
    /// It is a victim. The job is told to write a checkpoint first.
    Preempted,
    /// Its node is drained with a deadline, or maintenance begins. As preempted.
    Drained,
    /// Another node of the run failed or ended.
    Member,
    /// The client of an allocation ended it. An older node takes it for an unknown cause and stops the run all the same.
    Ended,
    /// It did not get ready in time.
    PrepareTimeout,
    /// The controller holds the node for lost, or ran the job elsewhere meanwhile.
    Fenced,
    /// The node ends it: a GPU of it fell sick, or its fence does not stand.
    GpuFailed,
    FenceBroken,
    #[serde(other)]
    Unknown,
}

/// How far a run has come on a node. The order is the order of life: a report never goes back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "phase", rename_all = "snake_case")]
pub enum RunPhase {
    /// Recorded durably on the node; nothing made yet.
    Accepted,
    /// Cgroups, fence, spool and supervisor are there; waiting for `go`.
    Ready,
    /// The user's process was started.
    Running { started: Timestamp },
    /// All processes are gone; the epilog may still run and the share is not free yet.
    Ended(Arc<RunEnd>),
    /// Nothing of the run is left on the node but its record. The share is free.
    Clean(Arc<RunEnd>),
}

impl RunPhase {
    /// Position in life, for comparing two reports.
    pub const fn rank(&self) -> u8 {
        match self {
            Self::Accepted => 0,
            Self::Ready => 1,
            Self::Running { .. } => 2,
            Self::Ended(_) => 3,
            Self::Clean(_) => 4,
        }
    }
    pub const fn end(&self) -> Option<&Arc<RunEnd>> {
        match self {
            Self::Ended(end) | Self::Clean(end) => Some(end),
            _ => None,
        }
    }
}

/// How a run ended on one node: what `exit.json` says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunEnd {
    pub cause: EndCause,
    pub exit: ExitCode,
    /// As text: the path and system error of a failed launch, the limit that was hit.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub text: String,
    /// The failed launch is about the job's user (unknown to the node, say): jobs of other users may start there. Older releases
    /// have this subject only.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub about_user: bool,
    /// What a failed launch is about, as [`RunEnd::subject`] reads it.
    #[serde(skip_serializing_if = "LaunchFailureSubject::is_node")]
    pub about: LaunchFailureSubject,
    /// A checkpoint mark on this node answered the request for a checkpoint: the other nodes need not wait for one.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub answered: bool,
    /// When the first process of the user started and the last was gone, by the node's clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<Timestamp>,
    /// The time between the two by a clock that is never set. What is charged comes from it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ran_millis: Option<u64>,
    /// What the driver told of its GPUs while it ran: `GPU-...: Xid 94`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpu_events: Vec<String>,
    /// The image of its script, else of its first step in one: `docker.io/library/ubuntu@sha256:...`, or a path.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub image: String,
    pub usage: Usage,
}

impl Default for RunEnd {
    fn default() -> Self {
        Self {
            cause: EndCause::Exited,
            exit: ExitCode::default(),
            text: String::new(),
            about_user: false,
            about: LaunchFailureSubject::Node,
            answered: false,
            started: None,
            ended: None,
            ran_millis: None,
            gpu_events: Vec::new(),
            image: String::new(),
            usage: Usage::default(),
        }
    }
}

impl RunEnd {
    /// What a failed launch is about.
    pub fn subject(&self) -> LaunchFailureSubject {
        if self.about_user {
            LaunchFailureSubject::User
        } else {
            self.about.clone()
        }
    }

    /// For how long the user's processes were there: by the node's monotonic clock, else between two readings of its other one.
    pub fn lasted_millis(&self) -> Option<i64> {
        let between = || Some(self.ended?.since_millis(self.started?).max(0));
        self.ran_millis
            .map(|millis| i64::try_from(millis).unwrap_or(i64::MAX))
            .or_else(between)
    }
}

/// What a failed launch is about. All but the first say little of what else the node can start.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum LaunchFailureSubject {
    #[default]
    Node,
    /// The job's user.
    User,
    /// One GPU or slice, by UUID.
    Gpu { uuid: String },
    /// What the job or its partition chose: a share of a GPU, `private_tmp`. Jobs without it may start.
    Choice { name: String },
    /// A shortage within gpud that passes, of file descriptors say.
    Shortage,
    /// A registry that the job's image is to come from: no fault of the node.
    Registry,
    /// From a newer node.
    #[serde(other)]
    Unknown,
}

impl LaunchFailureSubject {
    pub const fn is_node(&self) -> bool {
        matches!(self, Self::Node)
    }
}

/// Why the processes of a run are gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndCause {
    /// The job's own process ended; see its exit code.
    Exited,
    TimeLimit,
    OutOfMemory,
    /// Told to stop by the controller.
    Stopped,
    /// The user's error at launch: directory, output, interpreter.
    LaunchUser,
    /// The node's error at launch: fence, cgroup, spool, user lookup.
    LaunchNode,
    PrologFailed,
    /// gstepd died; what it supervised was killed.
    SupervisorLost,
    NodeRebooted,
    /// The node lost its spool: nothing is known of the run.
    SpoolLost,
    /// The device fence was found changed.
    FenceBroken,
    /// A GPU of the run failed, so that its results could not be trusted or it could not go on.
    GpuFailed,
    #[serde(other)]
    Unknown,
}

impl EndCause {
    /// The node's fault, not the user's: the run may be started again elsewhere.
    pub const fn is_node_failure(self) -> bool {
        matches!(
            self,
            Self::LaunchNode
                | Self::PrologFailed
                | Self::SupervisorLost
                | Self::NodeRebooted
                | Self::SpoolLost
                | Self::GpuFailed
        )
    }
}

/// What a run used on one node: from its cgroup after the end, of its GPUs by samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    pub cpu_user_micros: u64,
    pub cpu_system_micros: u64,
    pub peak_memory_bytes: u64,
    pub oom_kills: u64,
    /// The run's use of its GPUs; empty without samples.
    #[serde(skip_serializing_if = "GpuUseTotals::is_empty")]
    pub gpu: GpuUseTotals,
}

impl Usage {
    /// Sum over nodes; the peak is the largest of any node, as sacct's MaxRSS.
    pub fn add(&mut self, other: &Self) {
        self.cpu_user_micros = self.cpu_user_micros.saturating_add(other.cpu_user_micros);
        self.cpu_system_micros = self
            .cpu_system_micros
            .saturating_add(other.cpu_system_micros);
        self.peak_memory_bytes = self.peak_memory_bytes.max(other.peak_memory_bytes);
        self.oom_kills = self.oom_kills.saturating_add(other.oom_kills);
        self.gpu = self.gpu.merge(&other.gpu);
    }
}

/// What a run that goes on has used by now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunUse {
    /// All of it, steps that are over included.
    pub all: Usage,
    /// Its steps under way: number and use. No map: a tagged frame cannot read back numbers as keys.
    pub steps: Vec<(u32, Usage)>,
}

impl RunUse {
    /// As [`Usage::add`].
    pub fn add(&mut self, other: &Self) {
        self.all.add(&other.all);
        for (step, used) in &other.steps {
            match self.steps.iter_mut().find(|(known, _)| known == step) {
                Some((_, sum)) => sum.add(used),
                None => self.steps.push((*step, *used)),
            }
        }
    }

    /// Of one step under way.
    #[must_use]
    pub fn of_step(&self, step: u32) -> Option<Usage> {
        self.steps
            .iter()
            .find(|(known, _)| *known == step)
            .map(|(_, used)| *used)
    }
}

/// One line of a node's report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunReport {
    pub run: RunId,
    #[serde(flatten)]
    pub phase: RunPhase,
    /// The newest checkpoint mark of the run on this node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark: Option<CheckpointMark>,
    /// When this was said, by the node's clock: its other times are read against it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent: Option<Timestamp>,
}

impl RunReport {
    /// A report without a mark.
    pub const fn new(run: RunId, phase: RunPhase) -> Self {
        Self {
            run,
            phase,
            mark: None,
            sent: None,
        }
    }

    /// With its times as the clock of its reader has them: ages are kept, whatever the two clocks show.
    #[must_use]
    pub fn heard_at(mut self, now: Timestamp) -> Self {
        let Some(sent) = self.sent.take() else {
            return self;
        };
        let off = now.0.saturating_sub(sent.0);
        let shift = |at: &mut Timestamp| at.0 = at.0.saturating_add(off);
        match &mut self.phase {
            RunPhase::Running { started } => shift(started),
            RunPhase::Ended(end) | RunPhase::Clean(end) => {
                let end = Arc::make_mut(end);
                end.started.iter_mut().chain(&mut end.ended).for_each(shift);
            }
            RunPhase::Accepted | RunPhase::Ready => {}
        }
        self.mark.iter_mut().for_each(|mark| shift(&mut mark.at));
        self
    }
}

/// Whether a run stands within its account's guarantee or on what others leave idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunClass {
    Guaranteed,
    /// Goes when the owner comes back.
    Borrowed,
    #[serde(other)]
    Unknown,
}
