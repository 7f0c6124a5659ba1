//! The nodes of a run act together: the run goes when all are ready, and a failure on one stops it on all.

use crate::ctl::event::Event;
use crate::ctl::owner::SYSTEM;
use crate::ctl::run::end::end;
use crate::ctl::run::parts;
use crate::ctl::run::stop_order::order;
use crate::ctl::state::{Member, Run, Stop};
use crate::ctl::tx::Tx;
use gmodel::run::{EndCause, StopCause};
use gmodel::{ExitCode, JobState, NodeId, RunId};

/// Emits what follows from the reports of a run so far. Safe to call at any time.
pub(crate) fn advance(tx: &mut Tx, id: RunId) {
    move_on(tx, id, None);
}

/// As [`advance`], when one node's report is all that is new: large runs have many nodes.
pub(crate) fn advance_after(tx: &mut Tx, id: RunId, node: NodeId) {
    move_on(tx, id, Some(node));
}

fn move_on(tx: &mut Tx, id: RunId, news: Option<NodeId>) {
    let Some(run) = tx.run(id) else {
        return;
    };
    if run.outcome.is_none() {
        if all(run, Member::is_ended) {
            let together = parts::ended_together(tx, id);
            end(tx, &together);
            for run in together {
                settle(tx, run);
            }
            return;
        } else if should_stop_rest(run, || no_kill(tx, id), news) {
            stop(tx, id, StopCause::Member, SYSTEM);
            return;
        } else if run.go.is_none() && run.stop.is_none() && all(run, Member::is_ready) {
            for run in parts::ready_together(tx.state, id) {
                tx.emit(Event::RunGo { run, at: tx.now });
            }
            return;
        } else {
            return;
        }
    }
    settle(tx, id);
}

/// Whether all members have come so far. They report mostly in order, so a late one stands at an end of the list.
fn all(run: &Run, has_come: impl Fn(&Member) -> bool) -> bool {
    run.members.last().is_none_or(&has_come) && run.all(has_come)
}

fn no_kill(tx: &Tx, id: RunId) -> bool {
    tx.job(id.job).is_some_and(|job| job.spec.no_kill)
}

/// The batch node's end ends the run; so does another member's failure, without `--no-kill`.
fn should_stop_rest(run: &Run, no_kill: impl Fn() -> bool, news: Option<NodeId>) -> bool {
    let ends_all = |at: usize| {
        let member = &run.members[at];
        match member.end() {
            _ if member.forfeited => at == 0 || !no_kill(),
            Some(_) if at == 0 => true,
            Some(end) => (end.cause != EndCause::Exited || !end.exit.is_success()) && !no_kill(),
            None => false,
        }
    };
    run.stop.is_none()
        && match news {
            Some(node) => run.place_of(node).is_some_and(ends_all),
            None => (0..run.members.len()).any(ends_all),
        }
}

fn settle(tx: &mut Tx, id: RunId) {
    let Some(run) = tx.run(id) else {
        return;
    };
    let (settled, clean) = (all(run, Member::is_settled), all(run, Member::is_clean));
    let completing = tx
        .job(id.job)
        .is_some_and(|job| job.live_run() == Some(id) && job.state == JobState::Completing);
    if settled && completing {
        tx.emit(Event::RunSettled {
            run: id,
            at: tx.now,
        });
    }
    if clean {
        tx.emit(Event::RunClosed { run: id });
    }
}

/// Orders a run to stop, unless it is over or has an order. A cancel replaces other orders.
pub(crate) fn stop(tx: &mut Tx, run: RunId, why: StopCause, by: &str) {
    let stop = order(tx, run, why, by);
    stop_by(tx, run, stop);
}

/// As [`stop`], by an order that says more. A victim whose client ends it well has completed.
pub(crate) fn stop_by(tx: &mut Tx, run: RunId, order: Stop) {
    let Some(record) = tx.run(run) else {
        return;
    };
    let stands = |stop: &Stop| match order.why {
        StopCause::Cancelled => matches!(stop.why, StopCause::Cancelled | StopCause::Ended),
        StopCause::Ended => {
            let gives_way = matches!(stop.why, StopCause::Preempted | StopCause::Drained);
            !gives_way || !order.exit.is_some_and(ExitCode::is_success)
        }
        _ => true,
    };
    if record.outcome.is_some() || record.stop.as_ref().is_some_and(stands) {
        return;
    }
    let late = match order.why {
        StopCause::PrepareTimeout => record.late_members(),
        _ => Vec::new(),
    };
    // A victim still frees its resources for the preempting job.
    let for_job = record.stop.as_ref().and_then(|stop| stop.for_job);
    let stop = Stop {
        late,
        for_job,
        ..order
    };
    tx.emit(Event::RunStopping { run, stop });
    advance(tx, run);
}
