//! Strikes against nodes that fail to start jobs, and the breaker that bounds automatic drains.
//!
//! Three node errors from two users or jobs drain a node (from two users, where a user is what they are about), a failed
//! prolog does at once; no more than max(1, 10%) of a partition in an hour, whatever the cause.

use super::SYSTEM;
use super::breaker::{self, Loss};
use super::event::Event;
use super::handle::Tx;
use super::state::{Job, Run, Strike};
use gmodel::node::Mark;
use gmodel::run::EndCause;
use gmodel::{NodeId, Timestamp};
use std::collections::BTreeSet;

/// Strikes that drain a node, and users or jobs they must come from.
pub const STRIKES: usize = 3;
pub const STRIKE_SOURCES: usize = 2;

/// The strikes a run that ended leaves on its nodes; `true` where one is enough.
pub(super) fn strikes_of(run: &Run, job: &Job, now: Timestamp) -> Vec<(NodeId, Strike, bool)> {
    run.members
        .iter()
        .filter_map(|member| {
            let about_user = member.end().is_some_and(|end| end.about_user);
            let strike = |text: &str| Strike {
                run: run.id,
                user: job.spec.user.name.clone(),
                at: now,
                text: text.to_owned(),
                about_user,
            };
            match member.end() {
                Some(end) if end.cause == EndCause::PrologFailed => {
                    Some((member.node, strike(&end.text), true))
                }
                Some(end) if end.cause == EndCause::LaunchNode => {
                    Some((member.node, strike(&end.text), false))
                }
                _ if run.is_late(member.node) => {
                    Some((member.node, strike("not ready in time"), false))
                }
                _ => None,
            }
        })
        .collect()
}

pub(super) fn strike(tx: &mut Tx, id: NodeId, strike: Strike, at_once: bool) {
    let text = strike.text.clone();
    tx.emit(Event::NodeStruck { node: id, strike });
    let Some(node) = tx.state.nodes.get(id) else { return };
    let enough = is_the_nodes(&node.strikes);
    let drained = node.drains.iter().any(|mark| mark.owner == SYSTEM);
    if drained || !(at_once || enough) {
        return;
    }
    if !breaker_allows(tx, id) {
        return;
    }
    let reason = if at_once {
        text
    } else {
        format!("{} launch errors, the last: {text}", STRIKES)
    };
    let mark = Mark { owner: SYSTEM.into(), reason, since: tx.now };
    tx.emit(Event::NodeDrained { node: id, mark, automatic: true });
}

/// Whether so many failed there, with so little in common, that it is not theirs: of the jobs of one user, whom a node does not
/// know, a hundred may fail.
fn is_the_nodes(strikes: &[Strike]) -> bool {
    let users: BTreeSet<_> = strikes.iter().map(|s| &s.user).collect();
    let others: Vec<_> = strikes.iter().filter(|s| !s.about_user).collect();
    let jobs: BTreeSet<_> = others.iter().map(|s| s.run.job).collect();
    strikes.len() >= STRIKES && users.len() >= STRIKE_SOURCES || others.len() >= STRIKES && jobs.len() >= STRIKE_SOURCES
}

/// True while no partition of the node has lost its share to automatic actions this hour.
pub fn breaker_allows(tx: &Tx, id: NodeId) -> bool {
    breaker::allows(tx.state, id, Loss::Node, tx.now)
}
