//! What ended a run, judged from the reports of its nodes and the stop order: job state, exit code, sentence, and whether the job goes back.

use crate::ctl::state::{Member, Run, Stop};
use gmodel::policy::PreemptMode;
use gmodel::run::{EndCause, RunEnd, StopCause};
use gmodel::{ExitCode, JobState, NodeId};

/// From a node's id to its name.
pub(crate) type NodeName<'a> = &'a dyn Fn(NodeId) -> String;

pub(crate) struct Verdict {
    pub state: JobState,
    pub exit: ExitCode,
    pub text: String,
    pub kind: EndKind,
}

pub(crate) enum EndKind {
    Final,
    /// Stopped on request.
    AskedBack,
    /// Preempted, or its node was drained: requeued if allowed.
    Preempted,
    /// No user process was started; it costs nothing and is always requeued.
    NeverStarted,
    /// It ran and lost its node.
    NodeFailure,
}

pub(crate) fn verdict(run: &Run, name: NodeName) -> Verdict {
    let batch = run.members.first().and_then(Member::end);
    let why = run.stop.as_ref().map(|stop| stop.why);
    // A node had the order before it was taken back: that ended the run, and later orders followed from it.
    let heard = run
        .called_back
        .as_deref()
        .filter(|_| matches!(why, None | Some(StopCause::Member)));
    let order = heard.or(run.stop.as_ref());
    let worst = worst(run, name);
    // A batch process that ended by itself counts, whatever was ordered meanwhile. Its success counts whatever
    // happened on other nodes; its failure too, unless theirs explains it (a limit met while they were being
    // stopped does not).
    let explains = |w: &Verdict| w.state != JobState::Timeout;
    if let Some(end) = batch
        && end.cause == EndCause::Exited
        && (why != Some(StopCause::Member)
            || end.exit.is_success()
            || !worst.as_ref().is_some_and(explains))
    {
        return by_exit(end);
    }
    let exit = order.and_then(|stop| stop.exit);
    let exit = exit.or(batch.map(|end| end.exit)).unwrap_or_default();
    let why = order.map(|stop| stop.why);
    // A requested end counts, even if a node was lost before it could obey.
    let asked = matches!(
        why,
        Some(
            StopCause::Cancelled
                | StopCause::Ended
                | StopCause::Requeued
                | StopCause::Preempted
                | StopCause::Drained
        )
    );
    if let Some(verdict) = worst.filter(|worst| !(asked && worst.state == JobState::NodeFail)) {
        return verdict;
    }
    Verdict {
        exit,
        ..ordered_end(run, order)
    }
}

/// The end of a run that obeyed an order.
fn ordered_end(run: &Run, order: Option<&Stop>) -> Verdict {
    let by = order.map_or("", |stop| stop.by.as_str());
    let (state, text, kind) = match order.map(|stop| stop.why) {
        Some(StopCause::Requeued) => (
            JobState::Cancelled,
            with_ground(format!("requeued by {by}"), run),
            EndKind::AskedBack,
        ),
        Some(StopCause::Preempted) => {
            let text = order.map_or(String::new(), |stop| format!("preempted {}", stop.text));
            let cancel = order.is_some_and(|stop| stop.mode == Some(PreemptMode::Cancel));
            (
                JobState::Preempted,
                text,
                if cancel {
                    EndKind::Final
                } else {
                    EndKind::Preempted
                },
            )
        }
        Some(StopCause::Drained) => {
            let text = match by.strip_prefix("maintenance ") {
                Some(name) => format!("its node was to be empty for maintenance {name}"),
                None => format!("its node was drained by {by} and had to be empty"),
            };
            (JobState::Cancelled, text, EndKind::Preempted)
        }
        Some(StopCause::PrepareTimeout) => {
            let late = run.stop.as_ref().map_or(0, |stop| stop.late.len());
            let text = format!(
                "{late} of {} nodes did not get ready in time",
                run.members.len()
            );
            (JobState::NodeFail, text, EndKind::NeverStarted)
        }
        Some(StopCause::Ended) => {
            let exit = order.and_then(|stop| stop.exit).unwrap_or_default();
            (by_code(exit), String::new(), EndKind::Final)
        }
        _ => (
            JobState::Cancelled,
            with_ground(String::new(), run),
            EndKind::Final,
        ),
    };
    Verdict {
        state,
        exit: ExitCode::default(),
        text,
        kind,
    }
}

fn by_code(exit: ExitCode) -> JobState {
    match exit.is_success() {
        true => JobState::Completed,
        false => JobState::Failed,
    }
}

fn by_exit(end: &RunEnd) -> Verdict {
    Verdict {
        state: by_code(end.exit),
        exit: end.exit,
        text: end.text.clone(),
        kind: EndKind::Final,
    }
}

/// The gravest end among the members, if one is more than a plain exit or an obeyed stop.
fn worst(run: &Run, name: NodeName) -> Option<Verdict> {
    if let Some(member) = run.members.iter().find(|member| member.forfeited) {
        let text = format!("{} was lost", name(member.node));
        return Some(node_failure(run, text));
    }
    let ends = || run.members.iter().filter_map(Member::end);
    if let Some(end) = ends().find(|end| end.cause.is_node_failure()) {
        let never = matches!(end.cause, EndCause::LaunchNode | EndCause::PrologFailed);
        if never && run.started.is_none() {
            return Some(Verdict {
                state: JobState::NodeFail,
                exit: end.exit,
                text: end.text.clone(),
                kind: EndKind::NeverStarted,
            });
        }
        return Some(node_failure(run, end.text.clone()));
    }
    let special = [
        (EndCause::LaunchUser, JobState::Failed),
        (EndCause::FenceBroken, JobState::Failed),
        (EndCause::OutOfMemory, JobState::OutOfMemory),
        (EndCause::TimeLimit, JobState::Timeout),
    ];
    for (cause, state) in special {
        if let Some(end) = ends().find(|end| end.cause == cause) {
            let mut exit = end.exit;
            if cause == EndCause::LaunchUser && exit.is_success() {
                exit = ExitCode::exited(1);
            }
            return Some(Verdict {
                state,
                exit,
                text: end.text.clone(),
                kind: EndKind::Final,
            });
        }
    }
    // Another node's tasks failed and the batch was stopped for it.
    let failed = run.members.iter().skip(1).filter_map(Member::end);
    let failed = failed
        .into_iter()
        .find(|end| end.cause == EndCause::Exited && !end.exit.is_success());
    failed.map(|end| by_exit(end))
}

fn node_failure(run: &Run, text: String) -> Verdict {
    // Before the go no user process ran: as if never placed. After it, one may have.
    let kind = if run.go.is_none() {
        EndKind::NeverStarted
    } else {
        EndKind::NodeFailure
    };
    Verdict {
        state: JobState::NodeFail,
        exit: ExitCode::default(),
        text,
        kind,
    }
}

/// With the reason of the stop order, if it has one.
fn with_ground(text: String, run: &Run) -> String {
    match run.stop.as_ref().map_or("", |stop| &stop.text) {
        "" => text,
        ground if text.is_empty() => ground.to_owned(),
        ground => format!("{text}: {ground}"),
    }
}
