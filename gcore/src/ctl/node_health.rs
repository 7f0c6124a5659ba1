//! Strikes against nodes that fail to start jobs, and the breaker that bounds automatic drains.
//!
//! Three node errors from two users or jobs drain a node (from two users, where a user is what they are about), a failed
//! prolog does at once; no more than max(1, 10%) of a partition in an hour, whatever the cause. A node that may not be drained for that
//! takes no new work for a while instead. Errors about one GPU are that GPU's.

use super::SYSTEM;
use super::breaker::{self, Loss};
use super::event::Event;
use super::handle::Tx;
use super::state::{Job, Member, Node, Run, State};
use gmodel::gpu_order::{GpuAction, MAX_TEXT_BYTES};
use gmodel::node::HoldMark;
use gmodel::run::{EndCause, LaunchFailureSubject};
use gmodel::{JobId, NodeId, RunId, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// A launch that failed by a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Strike {
    pub run: RunId,
    pub user: String,
    pub at: Timestamp,
    pub text: String,
    /// What failed, if it is less than the node.
    #[serde(default, skip_serializing_if = "LaunchFailureSubject::is_node")]
    pub about: LaunchFailureSubject,
    /// It is enough by itself: a prolog failed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub enough: bool,
}

/// Strikes that drain a node, and users or jobs they must come from.
pub const STRIKES: usize = 3;
pub const STRIKE_SOURCES: usize = 2;

/// Strikes that a node keeps.
const MAX_STRIKES: usize = 32;
/// How long a node with so many launch errors takes no new work where it may not be drained, seconds: the first time, and at most.
const FIRST_PAUSE_SECS: i64 = 30;
const MAX_PAUSE_SECS: i64 = 600;

/// The strikes a run that ended leaves on its nodes.
pub(super) fn strikes_of(run: &Run, job: &Job, now: Timestamp) -> Vec<(NodeId, Strike)> {
    let strike = |member: &Member| {
        let user = job.spec.user.name.clone();
        let strike = |text: &str, about, enough| Strike {
            run: run.id,
            user,
            at: now,
            text: text.to_owned(),
            about,
            enough,
        };
        match member.end() {
            Some(end) if end.cause == EndCause::PrologFailed => {
                Some(strike(&end.text, LaunchFailureSubject::Node, true))
            }
            // It passes, and is of the daemon alone.
            Some(end)
                if end.cause == EndCause::LaunchNode
                    && end.subject() == LaunchFailureSubject::Shortage =>
            {
                None
            }
            Some(end) if end.cause == EndCause::LaunchNode => {
                Some(strike(&end.text, end.subject(), false))
            }
            _ if run.is_late(member.node) => Some(strike(
                "not ready in time",
                LaunchFailureSubject::Node,
                false,
            )),
            _ => None,
        }
    };
    run.members
        .iter()
        .filter_map(|member| Some((member.node, strike(member)?)))
        .collect()
}

pub(super) fn strike(tx: &mut Tx, id: NodeId, strike: Strike) {
    let (text, about) = (strike.text.clone(), strike.about.clone());
    tx.emit(Event::NodeStruck { node: id, strike });
    if let LaunchFailureSubject::Gpu { uuid } = about {
        take_out(tx, id, &uuid);
    }
    let Some(node) = tx.state.nodes.get(id) else {
        return;
    };
    let drained = node.drains.iter().any(|mark| mark.owner == SYSTEM);
    if drained || !is_the_nodes(&node.strikes) || !breaker_allows(tx, id) {
        return;
    }
    let reason = if node.strikes.iter().any(|strike| strike.enough) {
        text
    } else {
        words(&node.strikes)
    };
    let mark = HoldMark {
        owner: SYSTEM.into(),
        reason,
        since: tx.now,
    };
    tx.emit(Event::NodeDrained {
        node: id,
        mark,
        automatic: true,
    });
}

/// Whether so many failed there, with so little in common, that it is not theirs. Of the jobs of one user, whom a node does not
/// know, a hundred may fail; all errors about one GPU, or about one choice of jobs or partitions, count once.
fn is_the_nodes(strikes: &[Strike]) -> bool {
    let users: BTreeSet<_> = strikes
        .iter()
        .filter(|s| {
            matches!(
                s.about,
                LaunchFailureSubject::Node | LaunchFailureSubject::User
            )
        })
        .map(|s| &s.user)
        .collect();
    let of_users = strikes
        .iter()
        .filter(|s| {
            matches!(
                s.about,
                LaunchFailureSubject::Node | LaunchFailureSubject::User
            )
        })
        .count();
    let plain = strikes
        .iter()
        .filter(|s| s.about == LaunchFailureSubject::Node);
    let parts: BTreeSet<_> = strikes
        .iter()
        .filter(|s| {
            !matches!(
                s.about,
                LaunchFailureSubject::Node | LaunchFailureSubject::User
            )
        })
        .map(|s| &s.about)
        .collect();
    let others = plain.clone().count() + parts.len();
    let jobs: BTreeSet<_> = strikes
        .iter()
        .filter(|s| s.about != LaunchFailureSubject::User)
        .map(|s| s.run.job)
        .collect();
    strikes.iter().any(|strike| strike.enough)
        || of_users >= STRIKES && users.len() >= STRIKE_SOURCES
        || others >= STRIKES && jobs.len() >= STRIKE_SOURCES
}

/// Three errors about one GPU, from two jobs: it goes out of service, as far as the breaker allows.
fn take_out(tx: &mut Tx, id: NodeId, uuid: &str) {
    let Some(node) = tx.state.nodes.get(id) else {
        return;
    };
    let about = || {
        node.strikes
            .iter()
            .filter(|strike| matches!(&strike.about, LaunchFailureSubject::Gpu { uuid: known } if known == uuid))
    };
    let jobs: BTreeSet<_> = about().map(|strike| strike.run.job).collect();
    let board = node
        .gpus
        .iter()
        .find(|gpu| gpu.info.uuid == uuid)
        .map(|gpu| gpu.info.slice.as_ref().map_or(uuid, |slice| &slice.gpu));
    let Some(board) = board.filter(|_| about().count() >= STRIKES && jobs.len() >= STRIKE_SOURCES)
    else {
        return;
    };
    let in_service = node
        .gpus
        .iter()
        .any(|gpu| gpu.info.uuid == board && gpu.present && gpu.info.fault.is_empty());
    let ordered = node.gpu_orders.iter().any(|order| order.uuid == board);
    if !in_service || ordered || !breaker::allows(tx.state, id, Loss::Gpu(board), tx.now) {
        return;
    }
    let last = about().last().map_or("", |strike| &*strike.text);
    let mut reason = format!(
        "{} launch errors about it, the last: {last}",
        about().count()
    );
    reason.truncate(reason.floor_char_boundary(MAX_TEXT_BYTES));
    let (board, at) = (board.to_owned(), tx.now);
    tx.emit(Event::GpuOrdered {
        node: id,
        uuid: board,
        what: GpuAction::Quarantine { reason },
        by: SYSTEM.into(),
        at,
    });
}

fn words(strikes: &[Strike]) -> String {
    let last = strikes.last().map_or("", |strike| &*strike.text);
    format!(
        "{} launch errors, the last: {last}",
        strikes.len().max(STRIKES)
    )
}

/// One more; the oldest go.
pub(super) fn apply_struck(state: &mut State, id: NodeId, strike: &Strike) {
    let Some(node) = state.nodes.get_mut(id) else {
        return;
    };
    node.strikes.push(strike.clone());
    let over = node.strikes.len().saturating_sub(MAX_STRIKES);
    node.strikes.drain(..over);
    index_pause(state, id);
}

/// The planner looks again when the node takes work again.
pub(super) fn index_pause(state: &mut State, id: NodeId) {
    let until = state
        .nodes
        .get(id)
        .and_then(|node| paused(node, Timestamp(i64::MIN)))
        .map(|(until, _)| until);
    state.not_yet.extend(until.map(|at| (at, JobId(0))));
}

/// Until when a node with launch errors takes no new work, and why. A drain takes it out for longer, where the breaker allows one: so
/// nodes that fail everything do not eat the queue, and come back by themselves once they are well.
pub fn paused(node: &Node, now: Timestamp) -> Option<(Timestamp, String)> {
    let last = node
        .strikes
        .last()
        .filter(|_| is_the_nodes(&node.strikes))?;
    let doublings = node.strikes.len().saturating_sub(STRIKES).min(8);
    let until = last
        .at
        .plus_secs((FIRST_PAUSE_SECS << doublings).min(MAX_PAUSE_SECS));
    (until > now).then(|| (until, words(&node.strikes)))
}

/// True while no partition of the node has lost its share to automatic actions this hour.
pub fn breaker_allows(tx: &Tx, id: NodeId) -> bool {
    breaker::allows(tx.state, id, Loss::Node, tx.now)
}
