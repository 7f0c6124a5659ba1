//! The first seconds of a controller, in which its nodes report one after another.

use crate::ctl::state::{Node, State};
use gmodel::Timestamp;
use gmodel::node::{Link, Role};

/// After its start a controller waits so long for a node that may have room, before it preempts; the planner
/// proposes it again.
pub(crate) const NODES_RETURN_SECS: i64 = 10;

/// Whether the controller started just now.
pub(crate) fn is_new(state: &State, now: Timestamp) -> bool {
    now < state.started.plus_secs(NODES_RETURN_SECS)
}

/// Whether nodes have still to re-register after the controller's start.
pub(crate) fn nodes_return(state: &State, now: Timestamp) -> bool {
    let missing = |node: &Node| node.role == Role::Compute && node.link == Link::Silent;
    is_new(state, now) && state.watched_nodes().any(missing)
}
