//! What operators do to nodes besides draining: declare down, remove.

use crate::ctl::command::{Actor, Refusal, Reply};
use crate::ctl::event::Event;
use crate::ctl::node;
use crate::ctl::node::drain::known_node;
use crate::ctl::reservation;
use crate::ctl::run::report::take;
use crate::ctl::tx::{Tx, operator_only};
use gmodel::node::{DOWN_BY, HoldMark, Link};
use gmodel::run::{EndCause, RunEnd, RunPhase};
use gmodel::{NodeId, RunId};

pub(crate) fn down(
    tx: &mut Tx,
    actor: &Actor,
    id: NodeId,
    reason: &str,
    fenced: bool,
) -> Result<Reply, Refusal> {
    node::fencing::may_declare(actor, tx.state, fenced)?;
    let node = known_node(tx, id)?;
    if node.link == Link::Up && fenced {
        let text = format!(
            "{} is connected, so it is not off. Without --fenced its jobs are stopped, and it takes none.",
            node.name
        );
        return Err(Refusal::conflict(text));
    }
    if node.link == Link::Up {
        return put_down(tx, actor, id, reason);
    }
    if node.link != Link::Down {
        tx.emit(Event::NodeLinkChanged {
            node: id,
            link: Link::Down,
            at: tx.now,
        });
    }
    let text = format!("declared down by {}: {reason}", actor.user);
    node::fencing::declare(tx, id, &text, fenced, &actor.user);
    Ok(Reply::Done)
}

/// A node that answers is drained, shown as down, and emptied at once: its own word says when its jobs are over.
fn put_down(tx: &mut Tx, actor: &Actor, id: NodeId, reason: &str) -> Result<Reply, Refusal> {
    let mark = HoldMark {
        owner: format!("{DOWN_BY}{}", actor.user),
        reason: reason.chars().take(1000).collect(),
        since: tx.now,
    };
    tx.emit(Event::NodeDrained {
        node: id,
        mark,
        automatic: false,
    });
    tx.emit(Event::NodeDrainDue {
        node: id,
        due: tx.now,
    });
    node::drain::empty_nodes(tx);
    reservation::upkeep::look(tx);
    Ok(Reply::Done)
}

pub(crate) fn remove(tx: &mut Tx, actor: &Actor, id: NodeId) -> Result<Reply, Refusal> {
    operator_only(actor, "removing a node")?;
    let node = known_node(tx, id)?;
    let holds = |run: &&RunId| {
        let member = tx.run(**run).and_then(|run| run.member(id));
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

/// Written-off shares on a machine that will not come back are gone with it.
fn close_runs(tx: &mut Tx, id: NodeId) {
    for run in tx.state.runs_on(id) {
        let text = "the node was removed".into();
        let end = RunEnd {
            cause: EndCause::SpoolLost,
            text,
            ..RunEnd::default()
        };
        take(tx, id, run, RunPhase::Clean(end.into()));
    }
}
