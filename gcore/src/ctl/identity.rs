//! Machines that say they are a node and are not believed: until that is clear the node gets no new work.
//!
//! Owns the drains that say so. Who is let in is the edge's to judge, which knows connections and addresses.

use super::SYSTEM;
use super::event::Event;
use super::handle::Tx;
use super::state::State;
use gmodel::NodeId;
use gmodel::node::HoldMark;

/// Whose drain it is when two machines that say they are one node were both heard. An operator lifts it.
pub const TWO_MACHINES: &str = "system:two-machines";
/// And when one with another boot or spool id came while the first is silent and its jobs may go on. Lifted when either is let in.
pub const SILENT_LIFE: &str = "system:other-machine";
/// Bound of the words, bytes.
const MAX_WORDS: usize = 1000;

/// Whether runs may go on at the node: neither over nor written off.
pub fn has_open_runs(state: &State, id: NodeId) -> bool {
    let Some(node) = state.nodes.get(id) else {
        return false;
    };
    node.runs.iter().any(|run| {
        let member = state.runs.get(*run).and_then(|run| run.member(id));
        member.is_some_and(|member| !member.is_settled() && !member.is_ended())
    })
}

/// Another machine wanted to be the node, and was not let in.
pub(super) fn claimed(tx: &mut Tx, id: NodeId, owner: &str, text: &str) {
    mark(tx, id, owner, text);
}

/// A machine was let in.
pub(super) fn settled(tx: &mut Tx, id: NodeId) {
    lift(tx, id, SILENT_LIFE);
}

pub(super) fn mark(tx: &mut Tx, id: NodeId, owner: &str, text: &str) {
    let known = tx
        .state
        .nodes
        .get(id)
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

pub(super) fn lift(tx: &mut Tx, id: NodeId, owner: &str) {
    if tx
        .state
        .nodes
        .get(id)
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
