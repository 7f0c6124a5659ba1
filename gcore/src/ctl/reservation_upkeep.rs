//! What becomes of reservations by themselves: nodes that went down are replaced, and one that nobody uses any more ends.
//!
//! Looked at once a minute, and only those that `gadm` made: files say what they say. Source: scontrol(1), `PURGE_COMP` and
//! `STATIC_ALLOC`.

use super::SYSTEM;
use super::event::{Event, JobChange, PolicyChange};
use super::handle::Tx;
use super::policy;
use super::reservation::{asked, covers, draws, made};
use super::state::State;
use gmodel::hostlist::Hostlist;
use gmodel::node::{Link, Role};
use gmodel::policy::{Repeat, Reservation, ReservedPart};
use gmodel::{JobSpec, JobState, Timestamp};
use gsched::window::{Window, next};

const LOOK_SECS: i64 = 60;
/// Nodes are replaced from so long before a window on.
const AHEAD_SECS: i64 = 86_400;

/// Does what is due.
pub(super) fn look(tx: &mut Tx) {
    let names: Vec<String> = made_here(tx.state).map(|one| one.name.clone()).collect();
    for name in names {
        for due in [replaced, idle] {
            let change = tx
                .state
                .policy
                .reservations
                .get(&name)
                .and_then(|one| due(tx.state, one, tx.now));
            change
                .into_iter()
                .for_each(|change| policy::make(tx, change, SYSTEM.into()));
        }
    }
}

/// When that is to be done next: a window that begins is looked at by itself.
pub(super) fn next_look(state: &State) -> Option<Timestamp> {
    let seen = state.time_reached;
    let due = |one: &Reservation| {
        let window = next(one, seen)?;
        let again = seen.plus_secs(LOOK_SECS);
        let idle = one
            .purge_idle_secs
            .filter(|_| window.0 <= seen)
            .map(|secs| match one.idle_since {
                Some(since) => again.min(since.plus_secs(secs.into())),
                None => again,
            });
        let replaced = is_replaced(one).then(|| again.max(window.0.plus_secs(-AHEAD_SECS)));
        idle.into_iter().chain(replaced).min()
    };
    made_here(state).filter_map(due).min()
}

/// With their clock.
fn made_here(state: &State) -> impl Iterator<Item = &Reservation> {
    let own = state
        .own_policy
        .reservations
        .keys()
        .filter(|name| !state.config.policy.reservations.contains_key(*name));
    own.filter_map(|name| state.policy.reservations.get(name))
}

fn is_replaced(one: &Reservation) -> bool {
    one.is_chosen && !one.static_nodes
}

/// The reservation with other nodes for those that are down for more than a moment, as many as there are.
fn replaced(state: &State, one: &Reservation, now: Timestamp) -> Option<PolicyChange> {
    let ReservedPart::Nodes(list) = &one.what else {
        return None;
    };
    let is_near = next(one, now).is_some_and(|window| window.0 <= now.plus_secs(AHEAD_SECS));
    if !is_replaced(one) || !is_near {
        return None;
    }
    let down = |list: &Hostlist| list.iter().filter(|name| is_gone(state, name)).count();
    if down(list) == 0 {
        return None;
    }
    let anew = Reservation {
        what: ReservedPart::NodeCount(u32::try_from(list.len()).ok()?),
        ..one.clone()
    };
    let mut anew = made(state, now, SYSTEM, &state.policy.reservations, anew).ok()?;
    anew.idle_since = one.idle_since;
    let is_better = matches!(&anew.what, ReservedPart::Nodes(new) if down(new) < down(list));
    is_better.then(|| PolicyChange::Reservation {
        reservation: Box::new(anew),
    })
}

/// A node that was only silent for a while comes back.
fn is_gone(state: &State, name: &str) -> bool {
    let node = state
        .node_by_name(name)
        .filter(|node| node.role == Role::Compute);
    node.is_none_or(|node| !node.is_available() && node.link != Link::Silent)
}

/// What an idle window leads to: it is noted since when, that it is no more, or it ends.
fn idle(state: &State, one: &Reservation, now: Timestamp) -> Option<PolicyChange> {
    let secs = one.purge_idle_secs?;
    let window = next(one, now).filter(|window| window.0 <= now)?;
    let noted = |since: Option<Timestamp>| {
        (since != one.idle_since).then(|| PolicyChange::Reservation {
            reservation: Box::new(Reservation {
                idle_since: since,
                zone: None,
                ..one.clone()
            }),
        })
    };
    if is_used(state, one) {
        return noted(None);
    }
    let since = idle_since(state, one, window, now);
    if since.plus_secs(secs.into()) > now {
        return noted(Some(since));
    }
    Some(match one.repeat {
        Repeat::Once => PolicyChange::ReservationRemoved {
            name: one.name.clone(),
            force: true,
        },
        _ => {
            let rest = Reservation {
                skip_until: Some(window.1),
                idle_since: None,
                zone: None,
                ..one.clone()
            };
            PolicyChange::Reservation {
                reservation: Box::new(rest),
            }
        }
    })
}

/// Since its window began, or the last of its jobs ended.
fn idle_since(state: &State, one: &Reservation, window: Window, now: Timestamp) -> Timestamp {
    let of_it = state
        .jobs
        .values()
        .filter(|job| asked(&job.spec) == Some(&one.name));
    let ended = of_it.filter_map(|job| job.ended).max();
    // Where no job is known, it was in use at the look before.
    let known = one.idle_since.or(ended).unwrap_or_else(|| {
        if window.0 > state.time_reached {
            window.0
        } else {
            now
        }
    });
    known.max(ended.unwrap_or(known)).max(window.0)
}

/// Jobs run in it, or wait for it.
fn is_used(state: &State, one: &Reservation) -> bool {
    let is_its = |spec: &JobSpec| asked(spec) == Some(&one.name);
    let of_nodes = || {
        state
            .nodes
            .values()
            .filter(|node| covers(state, one, node))
            .flat_map(|node| node.runs.iter())
    };
    state
        .jobs
        .values()
        .any(|job| !job.state.is_final() && is_its(&job.spec))
        || state
            .arrays
            .values()
            .any(|array| !array.pending.is_empty() && is_its(&array.spec))
        || one.draws()
            && of_nodes().any(|run| {
                state
                    .jobs
                    .get(run.job)
                    .is_some_and(|job| draws(state, one, &job.spec))
            })
}

/// The reservations whose jobs wait on without them when they go.
pub(super) fn releasing(state: &State) -> Vec<String> {
    state
        .policy
        .reservations
        .values()
        .filter(|one| one.release_jobs)
        .map(|one| one.name.clone())
        .collect()
}

/// Of these some may be gone: who waits for one names it no more.
pub(super) fn release(tx: &mut Tx, names: &[String], by: &str) {
    let state = &*tx.state;
    let gone = |spec: &JobSpec| {
        asked(spec).is_some_and(|name| {
            names.iter().any(|one| one == name) && !state.policy.reservations.contains_key(name)
        })
    };
    let by = by.to_owned();
    let change = JobChange {
        reservation: Some(String::new()),
        ..JobChange::default()
    };
    let jobs = state
        .jobs
        .values()
        .filter(|job| job.state == JobState::Pending && gone(&job.spec));
    let jobs = jobs.map(|job| Event::JobUpdated {
        job: job.id,
        change: change.clone(),
        by: by.clone(),
    });
    let arrays = state
        .arrays
        .values()
        .filter(|array| !array.pending.is_empty() && gone(&array.spec));
    let arrays = arrays.map(|array| Event::ArrayUpdated {
        array: array.id,
        change: change.clone(),
        by: by.clone(),
    });
    let events: Vec<Event> = jobs.chain(arrays).collect();
    events.into_iter().for_each(|event| tx.emit(event));
}
