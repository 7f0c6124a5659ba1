//! The record of a run: one attempt of a job on its nodes, from the placement until every node is clean.

use crate::ctl::state::idle::RunIdle;
use crate::ctl::state::outcome::Outcome;
use crate::ctl::state::stop::Stop;
use gmodel::run::{Allocation, EndCause, LaunchFailureSubject, NumberedSignal, RunEnd, RunPhase};
use gmodel::step_share::StepHold;
use gmodel::{JobId, NodeId, NodeLife, RunClass, RunId, Timestamp};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

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
    /// An order that was taken back before a node was known to have it. A node that has it all the same ends
    /// the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub called_back: Option<Box<Stop>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_secs: Option<u32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub signals: Vec<NumberedSignal>,
    /// Steps started so far; the next has this number.
    #[serde(default)]
    pub steps: u32,
    /// Step shares under way.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub step_holds: Vec<StepHold>,
    /// First process started, by the controller's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<Timestamp>,
    /// Outcome, once every member ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    /// Its newest checkpoint mark, with the node's number and note; its time is bounded by the controller's
    /// clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark: Option<gmodel::checkpoint::CheckpointMark>,
    /// Set while it is suspended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspension: Option<Box<Suspension>>,
    /// How long it was suspended before, milliseconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub suspended_millis: u64,
    /// Idle spells and warnings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle: Option<Box<RunIdle>>,
    /// The IMEX channel by which its nodes share GPU memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub imex_channel: Option<u32>,
    /// Its record was made from what nodes brought: it authorises none of them to speak for its user.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub adopted: bool,
}

/// Since when a run is suspended, and by which user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suspension {
    pub since: Timestamp,
    pub by: String,
    /// The job that has its CPUs; `None`: an operator suspended it, and it keeps them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_job: Option<JobId>,
    /// The reason, for listings.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
}

/// One node of a run, under the life of the node it was placed in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    pub node: NodeId,
    pub life: Arc<NodeLife>,
    /// What the node last reported; `None` until it accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<RunPhase>,
    /// The node was given up: its share is written off; what it still runs is killed when it reports.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub forfeited: bool,
    /// Number of the newest checkpoint mark on this node; each node counts its own.
    #[serde(default, skip_serializing_if = "is_none_yet")]
    pub marked: u32,
}

impl Run {
    /// A run as placed. Members are in the order of the allocation.
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
    /// The node's index in `allocation` and `members`. These are in the order of node names, mostly that of
    /// ids without gaps; large runs look up each of their nodes often.
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
    /// Nodes that failed this run by their own fault, with the reason.
    pub fn failed_nodes(&self) -> impl Iterator<Item = (NodeId, &str)> + '_ {
        self.members.iter().filter_map(|member| match member.end() {
            _ if self.is_late(member.node) => Some((member.node, "not ready in time")),
            Some(end) if end.cause.is_node_failure() => Some((member.node, &*end.text)),
            _ => member
                .forfeited
                .then_some((member.node, "the node was lost")),
        })
    }
    /// The node failed before any user process was started there.
    pub fn failed_launch(&self, node: NodeId) -> bool {
        let is_the_nodes = |end: &RunEnd| match end.cause {
            EndCause::LaunchNode => end.subject() != LaunchFailureSubject::Registry,
            cause => cause == EndCause::PrologFailed,
        };
        let end = self.member(node).and_then(Member::end);
        self.is_late(node) || end.is_some_and(|end| is_the_nodes(end))
    }
    /// The node was rebooted, or lost.
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
    /// The node reported it clean, or can hold nothing any more. A written-off share is not free before.
    pub fn is_clean(&self) -> bool {
        matches!(self.phase, Some(RunPhase::Clean(_)))
    }
}

impl Run {
    /// The site's idle program has not yet been called for the newest warning.
    pub(crate) fn is_idle_untold(&self) -> bool {
        self.outcome.is_none()
            && self
                .idle
                .as_ref()
                .and_then(|idle| idle.warned.as_ref())
                .is_some_and(|warned| !warned.told)
    }

    /// It lends its CPUs while it is suspended.
    pub fn lends_cpus(&self) -> bool {
        self.suspension
            .as_ref()
            .is_some_and(|one| one.for_job.is_some())
    }

    /// It lends its CPUs and is to resume: no order or end came meanwhile.
    pub fn goes_on_later(&self) -> bool {
        self.lends_cpus() && self.stop.is_none() && self.outcome.is_none()
    }

    /// Milliseconds in which it was suspended, up to a time.
    pub fn suspended_by(&self, at: Timestamp) -> u64 {
        let at = self.stop.as_ref().map_or(at, |stop| stop.at.min(at));
        let now = self
            .suspension
            .as_ref()
            .map_or(0, |one| at.since_millis(one.since));
        self.suspended_millis + u64::try_from(now).unwrap_or(0)
    }
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn is_none_yet(number: &u32) -> bool {
    *number == 0
}
