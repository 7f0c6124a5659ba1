//! `handle` decides what follows from an input, and changes nothing.
//!
//! A target is obeyed only after `Recorded` says that its fence is durable; a phase never goes back.

use super::input::{NodeEvent, NodeInput};
use super::state::NodeState;
use gmodel::run::{DesiredState, EndCause, RunEnd, RunPhase, RunTarget};
use gmodel::{Fence, RunId, Timestamp};
use std::collections::BTreeSet;

/// Decides what follows from an input. Inputs without news (late, repeated, of unknown runs) give no event.
pub fn handle(state: &NodeState, input: NodeInput, now: Timestamp) -> Vec<NodeEvent> {
    match input {
        NodeInput::Scanned { life, fence, runs } => vec![NodeEvent::Scanned { life, fence, runs }],
        _ if !state.scanned => Vec::new(),
        NodeInput::DesiredReceived { desired, orders } => receive(state, desired, orders),
        NodeInput::Recorded { fence } => match &state.pending {
            Some(pending) if pending.desired.fence == fence => vec![obeyed(state, now)],
            _ => Vec::new(),
        },
        NodeInput::Prepared { run } => reach(state, run, RunPhase::Ready),
        NodeInput::Started { run, started } => reach(state, run, RunPhase::Running { started }),
        NodeInput::Marked { run, mark } => match state.runs.get(&run) {
            Some(known)
                if known
                    .mark
                    .as_ref()
                    .is_none_or(|newest| newest.number < mark.number) =>
            {
                vec![NodeEvent::MarkSet { run, mark }]
            }
            _ => Vec::new(),
        },
        NodeInput::Ended { run, end } => reach(state, run, RunPhase::Ended(end.into())),
        NodeInput::Cleaned { run } => match state.runs.get(&run).map(|known| &known.phase) {
            Some(RunPhase::Ended(end)) => reach(state, run, RunPhase::Clean(end.clone())),
            _ => Vec::new(),
        },
        NodeInput::Forgotten { run } => match state.runs.get(&run) {
            Some(known) if matches!(known.phase, RunPhase::Clean(_)) && !known.named => {
                vec![NodeEvent::RunForgotten { run }]
            }
            _ => Vec::new(),
        },
    }
}

fn receive(state: &NodeState, desired: DesiredState, orders: BTreeSet<RunId>) -> Vec<NodeEvent> {
    let newest = state.newest_fence();
    match desired.fence {
        fence if fence < newest => vec![NodeEvent::OldTargetRefused { fence, newest }],
        // The same target again, on a new connection: obeying it twice would only write the disk twice.
        fence if fence == state.fence && state.pending.is_none() && fence != Fence::default() => {
            repeated(state, desired, orders)
        }
        _ => vec![NodeEvent::TargetCame { desired, orders }],
    }
}

/// A target with the fence in force. After a restart the node knows its fence but not the target.
fn repeated(state: &NodeState, desired: DesiredState, orders: BTreeSet<RunId>) -> Vec<NodeEvent> {
    let says_nothing_new = desired.runs.iter().all(|told| {
        state.runs.get(&told.run).is_some_and(|known| {
            known.named
                && known.limit_told
                && known.limit_secs == told.limit_secs
                && known.signals == told.signals
                && (known.want == told.want || told.want == RunTarget::Unknown)
        })
    }) && state.runs.values().filter(|known| known.named).count()
        == desired.runs.len();
    if says_nothing_new {
        Vec::new()
    } else {
        vec![NodeEvent::TargetCame { desired, orders }]
    }
}

fn obeyed(state: &NodeState, now: Timestamp) -> NodeEvent {
    let Some(pending) = &state.pending else {
        unreachable!("asked for only with a target pending")
    };
    let (mut accepted, mut refused) = (Vec::new(), Vec::new());
    for told in &pending.desired.runs {
        if state.runs.contains_key(&told.run) {
            continue;
        }
        let (cause, text) = match told.want {
            RunTarget::Stop { .. } => (EndCause::Stopped, "the run had never reached this node"),
            _ if pending.orders.contains(&told.run) => {
                accepted.push(told.run);
                continue;
            }
            _ => (
                EndCause::LaunchNode,
                "the node has no launch order for the run: none came, or its spool could not take it",
            ),
        };
        refused.push((
            told.run,
            RunEnd {
                cause,
                text: text.into(),
                ended: Some(now),
                ..RunEnd::default()
            },
        ));
    }
    NodeEvent::TargetObeyed {
        desired: pending.desired.clone(),
        accepted,
        refused,
    }
}

fn reach(state: &NodeState, run: RunId, phase: RunPhase) -> Vec<NodeEvent> {
    match state.runs.get(&run) {
        Some(known) if known.phase.rank() < phase.rank() => {
            vec![NodeEvent::PhaseReached { run, phase }]
        }
        _ => Vec::new(),
    }
}
