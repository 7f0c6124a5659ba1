//! Runs in the way of a maintenance are asked for a checkpoint in time and requeued before it begins.
//!
//! Only for named nodes, and for runs whose limit reaches into the window: they were there before the
//! reservation. Never drains a node: the reservation keeps new work away.

use crate::ctl::event::Event;
use crate::ctl::reservation::window::{covers, runs_into};
use crate::ctl::run::gang::advance;
use crate::ctl::run::stop_order::{checkpoint_of, order};
use crate::ctl::state::{Run, State};
use crate::ctl::tx::Tx;
use gmodel::policy::{Reservation, ReservedPart};
use gmodel::run::StopCause;
use gmodel::{RunId, Timestamp};
use gpolicy::window::next;

/// Stops runs that would last into a window. Returns whether it was the first look at a maintenance.
pub(crate) fn clear(tx: &mut Tx) -> bool {
    let mut first_look = false;
    let mut due: Vec<(RunId, String)> = Vec::new();
    for (one, begins) in maintenances(tx.state, tx.now) {
        let opens = begins.plus_secs(-lead_secs(tx.state));
        if opens > tx.now {
            continue;
        }
        first_look |= tx.state.memo.time_reached < opens;
        let leaving = in_the_way(tx.state, one, begins).filter(|(at, _)| *at <= tx.now);
        due.extend(leaving.map(|(_, run)| (run, format!("maintenance {}", one.name))));
    }
    for (run, by) in due {
        if tx.run(run).is_some_and(stays) {
            let stop = order(tx, run, StopCause::Drained, &by);
            tx.emit(Event::RunStopping { run, stop });
            advance(tx, run);
        }
    }
    first_look
}

/// When that is due next. Runs are looked at only when a maintenance is near.
pub(crate) fn next_clearing(state: &State) -> Option<Timestamp> {
    let seen = state.memo.time_reached;
    let next = |(one, begins): (&Reservation, Timestamp)| {
        let opens = begins.plus_secs(-lead_secs(state));
        if opens > seen {
            Some(opens)
        } else {
            in_the_way(state, one, begins).map(|(at, _)| at).min()
        }
    };
    maintenances(state, seen).filter_map(next).min()
}

/// Maintenance of named nodes, of a partition's, or of all, with the beginning of the present or next window.
fn maintenances(state: &State, now: Timestamp) -> impl Iterator<Item = (&Reservation, Timestamp)> {
    let named = |one: &&Reservation| {
        one.maintenance && matches!(one.what, ReservedPart::AllNodes | ReservedPart::Nodes(_))
    };
    let all = state.policy.reservations.values().filter(named);
    all.filter_map(move |one| Some((one, next(one, now)?.from)))
}

/// The longest time that any job has to stop.
fn lead_secs(state: &State) -> i64 {
    let config = &state.config;
    i64::from(config.scheduler.preempt.max_grace_secs) + i64::from(config.kill_grace_secs)
}

/// Runs with a share on a maintained node that may last into the window, with the time to stop each.
fn in_the_way<'a>(
    state: &'a State,
    one: &'a Reservation,
    begins: Timestamp,
) -> impl Iterator<Item = (Timestamp, RunId)> + 'a {
    let nodes = state
        .nodes
        .values()
        .filter(move |node| covers(state, one, node));
    let on_node = nodes.flat_map(move |node| {
        let runs = node.runs.iter().filter_map(|run| state.run(*run));
        runs.filter(move |run| stays(run) && runs_into(state, run, node.id, one, begins))
    });
    on_node.map(move |run| {
        let job = state.job(run.id.job);
        let checkpoint = job
            .and_then(|job| checkpoint_of(state, &job.spec))
            .map_or(0, |checkpoint| checkpoint.grace_secs);
        let secs = i64::from(checkpoint) + i64::from(state.config.kill_grace_secs);
        (begins.plus_secs(-secs), run.id)
    })
}

fn stays(run: &Run) -> bool {
    run.stop.is_none() && run.outcome.is_none()
}
