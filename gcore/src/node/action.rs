//! What the node's state calls for, and what it reports. Derived each time, so nothing is lost by a crash between
//! deciding and doing; the daemon leaves out what is already under way.

use super::state::{NodeRun, NodeState};
use gmodel::run::{NumberedSignal, RunPhase, RunReport, RunTarget, StopCause};
use gmodel::{Fence, RunId};

/// Something to do. Each action is safe to repeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeAction {
    /// Write the orders of these runs to the spool, then make the fence durable. -> `Recorded`
    Record {
        fence: Fence,
        accept: Vec<RunId>,
    },
    /// User, cgroups, fence, directories, prolog, supervisor. -> `Prepared` or `Ended`
    Prepare {
        run: RunId,
    },
    /// It is to stop before it was ready: when nothing is under way, write its end. -> `Ended`
    Abandon {
        run: RunId,
    },
    /// Release the supervisor. -> `Started` or `Ended`
    Go {
        run: RunId,
    },
    /// -> `Ended`
    Stop {
        run: RunId,
        why: StopCause,
        grace_secs: u32,
    },
    Signal {
        run: RunId,
        signal: NumberedSignal,
    },
    Limit {
        run: RunId,
        limit_secs: Option<u32>,
    },
    /// Suspend its processes, or resume them.
    Suspend {
        run: RunId,
        suspended: bool,
    },
    /// Kill what is left, epilog, remove cgroups, mounts and directories. -> `Cleaned`
    Clean {
        run: RunId,
    },
    /// Remove the record. -> `Forgotten`
    Forget {
        run: RunId,
    },
}

/// What is to be done now, in a working order.
pub fn actions(state: &NodeState) -> Vec<NodeAction> {
    let mut todo = Vec::new();
    if let Some(pending) = &state.pending {
        let stop = |want: &RunTarget| matches!(want, RunTarget::Stop { .. });
        let is_new = |run: &RunId| !state.runs.contains_key(run) && pending.orders.contains(run);
        let told = pending.desired.runs.iter().filter(|told| !stop(&told.want));
        let accept = told.map(|told| told.run).filter(is_new).collect();
        todo.push(NodeAction::Record {
            fence: pending.desired.fence,
            accept,
        });
    }
    // Runs that no target names may still use the resources of new runs: after a restore the controller does
    // not know them. Nothing is prepared before they are gone, nor before a restarted daemon knows the target.
    let in_the_way = !state.obeyed
        || state
            .runs
            .values()
            .any(|known| !known.named && !matches!(known.phase, RunPhase::Clean(_)));
    for (&run, known) in &state.runs {
        of_run(run, known, in_the_way, &mut todo);
    }
    todo
}

fn of_run(run: RunId, known: &NodeRun, in_the_way: bool, todo: &mut Vec<NodeAction>) {
    match (&known.phase, &known.want) {
        (RunPhase::Accepted, RunTarget::Stop { .. }) => todo.push(NodeAction::Abandon { run }),
        (RunPhase::Accepted, _) if in_the_way => {}
        (RunPhase::Accepted, _) => todo.push(NodeAction::Prepare { run }),
        (RunPhase::Ready | RunPhase::Running { .. }, RunTarget::Stop { why, grace_secs }) => {
            todo.push(NodeAction::Stop {
                run,
                why: *why,
                grace_secs: *grace_secs,
            });
        }
        (RunPhase::Ready, want) => {
            limit(run, known, todo);
            if *want == RunTarget::Run {
                todo.push(NodeAction::Go { run });
            }
        }
        (RunPhase::Running { .. }, _) => {
            limit(run, known, todo);
            todo.extend(
                known
                    .suspended
                    .map(|suspended| NodeAction::Suspend { run, suspended }),
            );
            todo.extend(
                known
                    .signals
                    .iter()
                    .map(|&signal| NodeAction::Signal { run, signal }),
            );
        }
        (RunPhase::Ended(_), _) => todo.push(NodeAction::Clean { run }),
        (RunPhase::Clean(_), _) if !known.named => todo.push(NodeAction::Forget { run }),
        (RunPhase::Clean(_), _) => {}
    }
}

fn limit(run: RunId, known: &NodeRun, todo: &mut Vec<NodeAction>) {
    if known.limit_told {
        todo.push(NodeAction::Limit {
            run,
            limit_secs: known.limit_secs,
        });
    }
}

/// Every run with its whole phase: the hello, and what the daemon compares with what it said last.
pub fn reports(state: &NodeState) -> Vec<RunReport> {
    let report = |(&run, known): (&RunId, &NodeRun)| RunReport {
        run,
        phase: known.phase.clone(),
        mark: known.mark.clone(),
        sent: None,
    };
    state.runs.iter().map(report).collect()
}
