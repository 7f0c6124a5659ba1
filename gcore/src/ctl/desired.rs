//! What a node should be running, computed from the state and sent again and again until it is so.

use super::state::{Run, State};
use gmodel::run::{Desired, DesiredRun, Want};
use gmodel::{Fence, NodeId};

/// Costs what the node holds. Runs that are clean or written off are not named: the node clears them.
pub fn desired(state: &State, id: NodeId) -> Desired {
    let Some(node) = state.nodes.get(id) else { return Desired::default() };
    let runs = node
        .runs
        .iter()
        .filter_map(|run| state.runs.get(*run))
        .filter(|run| run.member(id).is_some_and(|member| !member.is_settled()))
        .map(desired_run)
        .collect();
    let fence = Fence { incarnation: state.incarnation, generation: node.generation };
    Desired { fence, runs }
}

fn desired_run(run: &Run) -> DesiredRun {
    let want = match (&run.stop, run.go) {
        (Some(stop), _) => Want::Stop { why: stop.why, grace_secs: stop.grace_secs },
        (None, Some(_)) => Want::Run,
        (None, None) => Want::Prepare,
    };
    DesiredRun { run: run.id, want, signals: run.signals.clone(), limit_secs: run.limit_secs }
}
