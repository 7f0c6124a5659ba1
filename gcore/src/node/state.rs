//! A node's state: the fence it made durable, the target it is making durable, and its runs.
//!
//! `apply` is the only mutation, infallible, without clock or randomness; `check` lists what can never be.

use super::input::{NodeEvent, SpooledRun};
use crate::violation::Violation;
use gmodel::checkpoint::CheckpointMark;
use gmodel::run::{
    DesiredRun, DesiredState, NumberedSignal, RunEnd, RunPhase, RunTarget, StopCause,
};
use gmodel::{Fence, NodeLife, RunId};
use std::collections::{BTreeMap, BTreeSet};

/// Seconds between SIGTERM and SIGKILL for runs the controller no longer names.
pub const FENCED_GRACE_SECS: u32 = 5;

/// One node, from its own point of view.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeState {
    pub life: NodeLife,
    /// Newest fence that is durable and obeyed.
    pub fence: Fence,
    /// The spool was read: nothing is obeyed or reported before.
    pub scanned: bool,
    /// A target was obeyed since: runs that it does not name are known.
    pub obeyed: bool,
    /// Newest target that came, until it is durable. A newer one takes its place.
    pub pending: Option<PendingTarget>,
    pub runs: BTreeMap<RunId, NodeRun>,
}

/// A target on its way to the disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PendingTarget {
    pub desired: DesiredState,
    /// Runs of which the launch order is at hand, in memory or in the spool.
    pub orders: BTreeSet<RunId>,
}

/// One run on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRun {
    pub phase: RunPhase,
    pub want: RunTarget,
    /// In the newest obeyed target, or found in the spool with no target obeyed since. A run that is not named
    /// is stopped, cleaned and forgotten.
    pub named: bool,
    pub signals: Vec<NumberedSignal>,
    /// Time limit in force, seconds from the start; `None` is unlimited.
    pub limit_secs: Option<u32>,
    /// `limit_secs` came from a target: before that the launch order's limit holds.
    pub limit_told: bool,
    /// Suspended or not, as a target said last; until then its supervisor knows.
    pub suspended: Option<bool>,
    /// The newest checkpoint mark, as the run's spool has it.
    pub mark: Option<CheckpointMark>,
}

impl NodeRun {
    /// A run just accepted.
    fn new(phase: RunPhase, want: RunTarget) -> Self {
        Self {
            phase,
            want,
            named: true,
            signals: Vec::new(),
            limit_secs: None,
            limit_told: false,
            suspended: None,
            mark: None,
        }
    }

    fn obey(&mut self, told: &DesiredRun) {
        self.named = true;
        self.signals.clone_from(&told.signals);
        self.limit_secs = told.limit_secs;
        self.limit_told = true;
        self.suspended = Some(told.suspended);
        // A stop is final; a released run does not wait again; an unknown target changes nothing.
        match (&self.want, &told.want) {
            (_, RunTarget::Unknown)
            | (RunTarget::Stop { .. }, RunTarget::Prepare | RunTarget::Run)
            | (RunTarget::Run, RunTarget::Prepare) => {}
            (_, newer) => self.want = newer.clone(),
        }
    }

    fn drop_from_target(&mut self) {
        self.named = false;
        if !matches!(self.want, RunTarget::Stop { .. }) {
            self.want = RunTarget::Stop {
                why: StopCause::Fenced,
                grace_secs: FENCED_GRACE_SECS,
            };
        }
    }
}

impl NodeState {
    /// A node that has not read its spool.
    pub fn new() -> Self {
        Self::default()
    }

    /// The fence of the newest target, durable or not: what comes with a lower one is refused.
    pub fn newest_fence(&self) -> Fence {
        self.pending
            .as_ref()
            .map_or(self.fence, |pending| pending.desired.fence)
    }
}

/// Makes one fact part of the state.
pub fn apply(state: &mut NodeState, event: &NodeEvent) {
    match event {
        NodeEvent::Scanned { life, fence, runs } => {
            state.life = life.clone();
            state.fence = *fence;
            state.scanned = true;
            state.obeyed = false;
            state.pending = None;
            state.runs = runs
                .iter()
                .map(|(run, found)| (*run, found_run(found)))
                .collect();
        }
        NodeEvent::TargetCame { desired, orders } => {
            state.pending = Some(PendingTarget {
                desired: desired.clone(),
                orders: orders.clone(),
            });
        }
        NodeEvent::OldTargetRefused { .. } => {}
        NodeEvent::TargetObeyed {
            desired,
            accepted,
            refused,
        } => {
            state.fence = desired.fence;
            state.obeyed = true;
            state.pending = None;
            obey(&mut state.runs, desired, accepted, refused);
        }
        NodeEvent::PhaseReached { run, phase } => {
            if let Some(known) = state.runs.get_mut(run) {
                known.phase = phase.clone();
            }
        }
        NodeEvent::MarkSet { run, mark } => {
            if let Some(known) = state.runs.get_mut(run) {
                known.mark = Some(mark.clone());
            }
        }
        NodeEvent::RunForgotten { run } => {
            state.runs.remove(run);
        }
    }
}

fn obey(
    runs: &mut BTreeMap<RunId, NodeRun>,
    desired: &DesiredState,
    accepted: &[RunId],
    refused: &[(RunId, RunEnd)],
) {
    for run in accepted {
        runs.insert(*run, NodeRun::new(RunPhase::Accepted, RunTarget::Prepare));
    }
    for (run, end) in refused {
        runs.insert(
            *run,
            NodeRun::new(RunPhase::Clean(end.clone().into()), RunTarget::Prepare),
        );
    }
    let named: BTreeMap<RunId, &DesiredRun> =
        desired.runs.iter().map(|told| (told.run, told)).collect();
    for (run, known) in runs {
        match named.get(run) {
            Some(told) => known.obey(told),
            None => known.drop_from_target(),
        }
    }
}

/// A run from the spool. Until a target comes it is left as it is: released runs run on, others wait.
fn found_run(found: &SpooledRun) -> NodeRun {
    let (phase, want) = match found {
        SpooledRun::Accepted => (RunPhase::Accepted, RunTarget::Prepare),
        SpooledRun::Ready => (RunPhase::Ready, RunTarget::Prepare),
        SpooledRun::Running { started } => {
            (RunPhase::Running { started: *started }, RunTarget::Run)
        }
        SpooledRun::Ended { end, clean: false } => {
            (RunPhase::Ended(end.clone().into()), RunTarget::Run)
        }
        SpooledRun::Ended { end, clean: true } => {
            (RunPhase::Clean(end.clone().into()), RunTarget::Run)
        }
    };
    NodeRun::new(phase, want)
}

/// Lists what is wrong with a state; empty when nothing is.
pub fn check(state: &NodeState) -> Vec<Violation> {
    let mut wrong = Vec::new();
    if !state.scanned && (!state.runs.is_empty() || state.pending.is_some()) {
        wrong.push(Violation(
            "runs or a target before the spool was read".into(),
        ));
    }
    if let Some(pending) = &state.pending
        && pending.desired.fence < state.fence
    {
        wrong.push(Violation(format!(
            "target {:?} is older than the obeyed {:?}",
            pending.desired.fence, state.fence
        )));
    }
    for (run, known) in &state.runs {
        if !known.named && !matches!(known.want, RunTarget::Stop { .. }) {
            wrong.push(Violation(format!(
                "run {run} is named by nobody and not being stopped"
            )));
        }
        if known.want == RunTarget::Unknown {
            wrong.push(Violation(format!(
                "run {run} is to be taken nobody knows where"
            )));
        }
    }
    wrong
}
