//! Rejected claims to a node's identity: until the claim is resolved the node is drained.
//!
//! Owns these drains. `gpuctld`, which knows connections and addresses, decides which machine is let in.

use crate::ctl::event::Event;
use crate::ctl::owner::SYSTEM;
use crate::ctl::state::State;
use crate::ctl::tx::Tx;
use gmodel::NodeId;
use gmodel::node::HoldMark;

/// Owner of the drain after two live machines claimed one node. An operator lifts it.
pub const TWO_MACHINES: &str = "system:two-machines";
/// Owner of the drain after a machine with another boot or spool id came while the node was silent and its
/// runs may go on. Lifted when either is let in.
pub const SILENT_LIFE: &str = "system:other-machine";
/// Bound of the text, bytes.
const MAX_WORDS: usize = 1000;

/// Whether runs may go on at the node: neither over nor written off.
pub fn has_open_runs(state: &State, id: NodeId) -> bool {
    let Some(node) = state.node(id) else {
        return false;
    };
    node.runs.iter().any(|run| {
        let member = state.run(*run).and_then(|run| run.member(id));
        member.is_some_and(|member| !member.is_settled() && !member.is_ended())
    })
}

/// Another machine claimed the node and was rejected.
pub(crate) fn claimed(tx: &mut Tx, id: NodeId, owner: &str, text: &str) {
    mark(tx, id, owner, text);
}

/// A machine was let in.
pub(crate) fn settled(tx: &mut Tx, id: NodeId) {
    lift(tx, id, SILENT_LIFE);
}

pub(crate) fn mark(tx: &mut Tx, id: NodeId, owner: &str, text: &str) {
    let known = tx
        .node(id)
        .is_none_or(|node| node.drains.iter().any(|mark| mark.owner == owner));
    if !known {
        let reason = text.chars().take(MAX_WORDS).collect();
        let mark = HoldMark {
            owner: owner.into(),
            reason,
            since: tx.now,
        };
        tx.emit(Event::NodeDrained {
            node: id,
            mark,
            automatic: false,
        });
    }
}

pub(crate) fn lift(tx: &mut Tx, id: NodeId, owner: &str) {
    if tx
        .node(id)
        .is_some_and(|node| node.drains.iter().any(|mark| mark.owner == owner))
    {
        tx.emit(Event::NodeResumed {
            node: id,
            owner: Some(owner.into()),
            by: SYSTEM.into(),
            at: tx.now,
        });
    }
}
