//! What a node should be running, computed from the state and sent until the node says that it is so.

use crate::ctl::state::{Member, Run, State};
use gmodel::run::{DesiredRun, DesiredState, RunTarget, StopCause};
use gmodel::{Fence, NodeId};

/// Costs what the node holds. A run is named until its node says that it is clean. A written-off run is named
/// to be stopped: so a node that never heard of it answers, and its share comes back, whatever older orders
/// are still on their way.
pub fn desired(state: &State, id: NodeId) -> DesiredState {
    let Some(node) = state.node(id) else {
        return DesiredState::default();
    };
    let runs = node
        .runs
        .iter()
        .filter_map(|run| state.run(*run))
        .filter_map(|run| Some((run, run.member(id).filter(|member| !member.is_clean())?)))
        .map(|(run, member)| desired_run(state, run, member, id))
        .collect();
    let fence = Fence {
        incarnation: state.incarnation,
        generation: node.generation,
    };
    DesiredState {
        fence,
        runs,
        gpus: node.gpu_work.orders.clone(),
    }
}

fn desired_run(state: &State, run: &Run, member: &Member, id: NodeId) -> DesiredRun {
    let grace_secs = state.config.kill_grace_secs;
    let want = match (&run.stop, run.go) {
        _ if member.forfeited => RunTarget::Stop {
            why: StopCause::Fenced,
            grace_secs,
        },
        (Some(stop), _) => {
            let over = stop.checkpoint_secs > 0 && checkpoint_is_over(run, id);
            RunTarget::Stop {
                why: if over { StopCause::Member } else { stop.why },
                grace_secs: stop.grace_secs,
            }
        }
        (None, Some(_)) => RunTarget::Run,
        (None, None) => RunTarget::Prepare,
    };
    let suspended = run.suspension.is_some() && want == RunTarget::Run;
    DesiredRun {
        run: run.id,
        want,
        signals: run.signals.clone(),
        limit_secs: state.enforced_limit_secs(run),
        suspended,
    }
}

/// Whether the checkpoint time of a node is over: the run ends with its first node's processes, and a mark set
/// on any of its nodes as the answer counts for all.
fn checkpoint_is_over(run: &Run, id: NodeId) -> bool {
    let ends_it = |(place, member): (usize, &Member)| match place {
        0 => member.is_ended(),
        _ => member.end().is_some_and(|end| end.answered),
    };
    run.members
        .iter()
        .enumerate()
        .filter(|(_, member)| member.node != id)
        .any(ends_it)
}
