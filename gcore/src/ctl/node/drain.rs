//! Draining and resuming nodes, and what still runs on a node that is to be empty by a deadline.

use crate::ctl::command::{Actor, Refusal, Reply};
use crate::ctl::event::Event;
use crate::ctl::reservation;
use crate::ctl::run::gang::advance;
use crate::ctl::run::stop_order::order;
use crate::ctl::state::{Node, State};
use crate::ctl::tx::{Tx, operator_only};
use gmodel::node::{DOWN_BY, HoldMark, Link};
use gmodel::run::StopCause;
use gmodel::{NodeId, RefusalKind, RunId, Timestamp};

pub(crate) fn drain(
    tx: &mut Tx,
    actor: &Actor,
    id: NodeId,
    reason: &str,
) -> Result<Reply, Refusal> {
    operator_only(actor, "draining a node")?;
    let name = known_node(tx, id)?.name.clone();
    if reason.trim().is_empty() {
        let text = format!("draining {name} needs a --reason: others will ask why.");
        return Err(Refusal::invalid(text));
    }
    let mark = HoldMark {
        owner: format!("admin:{}", actor.user),
        reason: reason.chars().take(1000).collect(),
        since: tx.now,
    };
    tx.emit(Event::NodeDrained {
        node: id,
        mark,
        automatic: false,
    });
    reservation::upkeep::look(tx);
    Ok(Reply::Done)
}

/// Drains a node that is to be empty by a deadline.
pub(crate) fn drain_by(
    tx: &mut Tx,
    actor: &Actor,
    id: NodeId,
    reason: &str,
    deadline: Timestamp,
) -> Result<Reply, Refusal> {
    drain(tx, actor, id, reason)?;
    tx.emit(Event::NodeDrainDue {
        node: id,
        due: deadline,
    });
    Ok(Reply::Done)
}

/// Lifts the actor's drains, with a word that the node is down, or all of them if the actor has none.
pub(crate) fn resume(tx: &mut Tx, actor: &Actor, id: NodeId) -> Result<Reply, Refusal> {
    operator_only(actor, "resuming a node")?;
    let node = known_node(tx, id)?;
    let mine = format!("admin:{}", actor.user);
    if node.drains.is_empty() && node.strikes.is_empty() {
        let text = match (&*node.inventory.unfit, node.link) {
            ("", Link::Down) => format!(
                "{} is down, not drained: it comes back by itself when its gpud connects.",
                node.name
            ),
            ("", _) => format!("{} is not drained.", node.name),
            (why, _) => format!(
                "{} is not drained; it takes no work because: {why}",
                node.name
            ),
        };
        return Err(Refusal::conflict(text).about(RefusalKind::NodeState));
    }
    let has = |owner: &String| node.drains.iter().any(|mark| mark.owner == *owner);
    let mut owners: Vec<_> = [mine, format!("{DOWN_BY}{}", actor.user)]
        .into_iter()
        .filter(has)
        .map(Some)
        .collect();
    if owners.is_empty() {
        owners.push(None);
    }
    for owner in owners {
        tx.emit(Event::NodeResumed {
            node: id,
            owner,
            by: actor.user.clone(),
            at: tx.now,
        });
    }
    Ok(Reply::Done)
}

/// Stops what still runs on nodes that were to be empty by now.
pub(crate) fn empty_nodes(tx: &mut Tx) {
    let due = tx
        .state
        .watched_nodes()
        .filter(|node| node.ordered.empty_by.is_some_and(|at| at <= tx.now));
    let due: Vec<(NodeId, String)> = due
        .map(|node| {
            (
                node.id,
                node.drains
                    .first()
                    .map_or(String::new(), |mark| mark.owner.clone()),
            )
        })
        .collect();
    for (node, by) in due {
        for run in staying(tx.state, node) {
            let stop = order(tx, run, StopCause::Drained, &by);
            tx.emit(Event::RunStopping { run, stop });
            advance(tx, run);
        }
    }
}

/// When that is due next.
pub(crate) fn next_emptying(state: &State) -> Option<Timestamp> {
    let nodes = state
        .watched_nodes()
        .filter_map(|node| Some((node.ordered.empty_by?, node.id)));
    nodes
        .filter(|(_, node)| !staying(state, *node).is_empty())
        .map(|(at, _)| at)
        .min()
}

/// Runs on a node without an order to stop.
pub(crate) fn staying(state: &State, node: NodeId) -> Vec<RunId> {
    let held = state
        .node(node)
        .into_iter()
        .flat_map(|node| &node.runs)
        .copied();
    held.filter(|run| {
        state
            .run(*run)
            .is_some_and(|run| run.stop.is_none() && run.outcome.is_none())
    })
    .collect()
}

pub(crate) fn known_node<'a>(tx: &'a Tx, id: NodeId) -> Result<&'a Node, Refusal> {
    let unknown = || Refusal::not_found(format!("no node number {id}"));
    tx.node(id).ok_or_else(unknown)
}
