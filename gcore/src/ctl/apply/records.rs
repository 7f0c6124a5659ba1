//! The records that an event changes, and the generations of the nodes that must hear of it.
//!
//! An event that names an unknown record is a fault of `handle`, not bad input: it stops the process.

use crate::ctl::state::{Array, Job, Member, Node, Run, State};
use gmodel::node::HoldMark;
use gmodel::{JobId, NodeId, RunId};

pub(crate) fn raise_generations(state: &mut State, id: RunId) {
    let generation = state.seq.0;
    for member in &state.runs.get(id).expect("run exists").members {
        if let Some(node) = state.nodes.get_mut(member.node) {
            node.generation = generation;
        }
    }
}

/// A node's generation is the number of the last event that changed its orders. It never goes back and needs
/// no row: at boot it is the number of the last event of all.
pub(crate) fn raise_generation(state: &mut State, node: NodeId) {
    let generation = state.seq.0;
    if let Some(node) = state.nodes.get_mut(node) {
        node.generation = generation;
    }
}

/// Removes one owner's marks, or all of them.
pub(crate) fn lift(marks: &mut Vec<HoldMark>, owner: Option<&str>) {
    marks.retain(|mark| owner.is_some_and(|owner| mark.owner != owner));
}

pub(crate) fn job_mut(state: &mut State, id: JobId) -> &mut Job {
    state
        .jobs
        .get_mut(id)
        .unwrap_or_else(|| panic!("job {id} is in the state"))
}

pub(crate) fn array_mut(state: &mut State, id: JobId) -> &mut Array {
    state
        .arrays
        .get_mut(id)
        .unwrap_or_else(|| panic!("array {id} is in the state"))
}

pub(crate) fn run_mut(state: &mut State, id: RunId) -> &mut Run {
    state
        .runs
        .get_mut(id)
        .unwrap_or_else(|| panic!("run {id} is in the state"))
}

pub(crate) fn node_mut(state: &mut State, id: NodeId) -> &mut Node {
    state
        .nodes
        .get_mut(id)
        .unwrap_or_else(|| panic!("node {id} is in the state"))
}

pub(crate) fn member_mut(state: &mut State, run: RunId, node: NodeId) -> &mut Member {
    let run = run_mut(state, run);
    let at = run
        .place_of(node)
        .unwrap_or_else(|| panic!("node {node} is in run {}", run.id));
    &mut run.members[at]
}
