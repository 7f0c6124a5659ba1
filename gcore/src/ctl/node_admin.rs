//! What administrators do to nodes: drain, resume, declare down, remove.

use super::command::{Actor, Refusal, Reply};
use super::event::Event;
use super::handle::{Tx, operator_only};
use super::lost_node;
use super::node_report::take;
use super::state::Node;
use gmodel::node::{HoldMark, Link};
use gmodel::run::{EndCause, RunEnd, RunPhase};
use gmodel::{NodeId, RunId};

pub(super) fn drain(
    tx: &mut Tx,
    actor: &Actor,
    id: NodeId,
    reason: &str,
) -> Result<Reply, Refusal> {
    operator_only(actor, "draining a node")?;
    let name = node(tx, id)?.name.clone();
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
    Ok(Reply::Done)
}

/// Lifts the actor's drains, or all of them when none is theirs.
pub(super) fn resume(tx: &mut Tx, actor: &Actor, id: NodeId) -> Result<Reply, Refusal> {
    operator_only(actor, "resuming a node")?;
    let node = node(tx, id)?;
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
        return Err(Refusal::conflict(text));
    }
    let owner = node
        .drains
        .iter()
        .any(|mark| mark.owner == mine)
        .then_some(mine);
    tx.emit(Event::NodeResumed {
        node: id,
        owner,
        by: actor.user.clone(),
        at: tx.now,
    });
    Ok(Reply::Done)
}

pub(super) fn down(
    tx: &mut Tx,
    actor: &Actor,
    id: NodeId,
    reason: &str,
    fenced: bool,
) -> Result<Reply, Refusal> {
    lost_node::may_declare(actor, tx.state, fenced)?;
    let node = node(tx, id)?;
    if node.link == Link::Up {
        let text = format!(
            "{} is connected. Drain it to keep new work away; `down` is for a machine that is \
             known to be off.",
            node.name
        );
        return Err(Refusal::conflict(text));
    }
    if node.link != Link::Down {
        tx.emit(Event::NodeLinkChanged {
            node: id,
            link: Link::Down,
            at: tx.now,
        });
    }
    let text = format!("declared down by {}: {reason}", actor.user);
    lost_node::declare(tx, id, &text, fenced, &actor.user);
    Ok(Reply::Done)
}

pub(super) fn remove(tx: &mut Tx, actor: &Actor, id: NodeId) -> Result<Reply, Refusal> {
    operator_only(actor, "removing a node")?;
    let node = node(tx, id)?;
    let holds = |run: &&RunId| {
        let member = tx.state.runs.get(**run).and_then(|run| run.member(id));
        member.is_some_and(|member| !member.is_settled())
    };
    let held = node.runs.iter().filter(holds).count();
    if node.link == Link::Up || held > 0 {
        let text = format!(
            "{} is {} and holds {held} runs. Stop its gpud and declare it down first.",
            node.name,
            if node.link == Link::Up {
                "connected"
            } else {
                "not connected"
            },
        );
        return Err(Refusal::conflict(text));
    }
    close_runs(tx, id);
    tx.emit(Event::NodeRemoved {
        node: id,
        by: actor.user.clone(),
        at: tx.now,
    });
    Ok(Reply::Done)
}

/// What was written off on a machine that will not come back is gone with it.
fn close_runs(tx: &mut Tx, id: NodeId) {
    let left: Vec<RunId> = tx
        .state
        .nodes
        .get(id)
        .map_or(Vec::new(), |node| node.runs.iter().copied().collect());
    for run in left {
        let text = "the node was removed".into();
        let end = RunEnd {
            cause: EndCause::SpoolLost,
            text,
            ..RunEnd::default()
        };
        take(tx, id, run, RunPhase::Clean(end.into()));
    }
}

fn node<'a>(tx: &'a Tx, id: NodeId) -> Result<&'a Node, Refusal> {
    let unknown = || Refusal::not_found(format!("no node number {id}"));
    tx.state.nodes.get(id).ok_or_else(unknown)
}
