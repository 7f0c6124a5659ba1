//! Runs in the way of a maintenance are told to write their checkpoint in time, and go back to the queue before it begins.
//!
//! Only where nodes are named, and for runs whose limit reaches into the window: what was there before the reservation was
//! made over it. Never drains a node: the reservation keeps new work away.

use super::event::Event;
use super::handle::Tx;
use super::preempt::{checkpoint_of, order};
use super::reservation::{covers, runs_into};
use super::run_end::advance;
use super::state::{Run, State};
use gmodel::policy::{Reservation, ReservedPart};
use gmodel::run::StopCause;
use gmodel::{RunId, Timestamp};
use gsched::window::next;

/// Tells those to go that would not be gone in time otherwise. Whether it was the first look at a maintenance.
pub(super) fn clear(tx: &mut Tx) -> bool {
    let mut first_look = false;
    let mut due: Vec<(RunId, String)> = Vec::new();
    for (one, begins) in maintenances(tx.state, tx.now) {
        let opens = begins.plus_secs(-lead_secs(tx.state));
        if opens > tx.now {
            continue;
        }
        first_look |= tx.state.time_reached < opens;
        let leaving = in_the_way(tx.state, one, begins).filter(|(at, _)| *at <= tx.now);
        due.extend(leaving.map(|(_, run)| (run, format!("maintenance {}", one.name))));
    }
    for (run, by) in due {
        if tx.state.runs.get(run).is_some_and(stays) {
            let stop = order(tx, run, StopCause::Drained, &by);
            tx.emit(Event::RunStopping { run, stop });
            advance(tx, run);
        }
    }
    first_look
}

/// When that is to be done next. Runs are looked at only when a maintenance is near.
pub(super) fn next_clearing(state: &State) -> Option<Timestamp> {
    let seen = state.time_reached;
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
    all.filter_map(move |one| Some((one, next(one, now)?.0)))
}

/// The longest that any job is given to go, so that nobody is looked at too late.
fn lead_secs(state: &State) -> i64 {
    let config = &state.config;
    i64::from(config.scheduler.preempt.max_grace_secs) + i64::from(config.kill_grace_secs)
}

/// Runs that hold part of a node of it and may last into the window: until when each is left alone.
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
        let runs = node.runs.iter().filter_map(|run| state.runs.get(*run));
        runs.filter(move |run| stays(run) && runs_into(state, run, node.id, one, (begins, begins)))
    });
    on_node.map(move |run| {
        let job = state.jobs.get(run.id.job);
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
