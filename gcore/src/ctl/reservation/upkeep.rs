//! Automatic changes of reservations: nodes that went down are replaced, an idle one ends, an expired one is
//! deleted.
//!
//! Once a minute, and only for reservations that `gadm` made: files are not changed. Source: scontrol(1),
//! `PURGE_COMP` and `STATIC_ALLOC`.

use crate::ctl::event::PolicyChange;
use crate::ctl::owner::SYSTEM;
use crate::ctl::policy;
use crate::ctl::reservation::selection::made;
use crate::ctl::reservation::window::{asked, covers, draws};
use crate::ctl::state::State;
use crate::ctl::tx::Tx;
use gmodel::hostlist::Hostlist;
use gmodel::node::{Link, Role};
use gmodel::policy::{Repeat, Reservation, ReservedPart};
use gmodel::{JobSpec, Timestamp};
use gpolicy::window::{Window, next};

const LOOK_SECS: i64 = 60;
/// Nodes are replaced from so long before a window on.
const AHEAD_SECS: i64 = 86_400;

/// Makes the changes that are due.
pub(crate) fn look(tx: &mut Tx) {
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
                .for_each(|change| policy::commit::make(tx, change, SYSTEM.into()));
        }
    }
}

/// When that is due next. The beginning of a window wakes by itself.
pub(crate) fn next_look(state: &State) -> Option<Timestamp> {
    let seen = state.memo.time_reached;
    let due = |one: &Reservation| {
        let window = next(one, seen)?;
        let again = seen.plus_secs(LOOK_SECS);
        let idle = one
            .purge_idle_secs
            .filter(|_| window.from <= seen)
            .map(|secs| match one.idle_since {
                Some(since) => again.min(since.plus_secs(secs.into())),
                None => again,
            });
        let replaced = is_replaced(one).then(|| again.max(window.from.plus_secs(-AHEAD_SECS)));
        idle.into_iter().chain(replaced).min()
    };
    made_here(state).filter_map(due).min()
}

/// Reservations that `gadm` made, with their time zone.
fn made_here(state: &State) -> impl Iterator<Item = &Reservation> {
    let own = state
        .own_policy
        .reservations
        .keys()
        .filter(|name| !state.config.policy.reservations.contains_key(*name));
    own.filter_map(|name| state.policy.reservations.get(name))
}

/// A maintenance is of the machines that it has.
fn is_replaced(one: &Reservation) -> bool {
    one.is_chosen && !one.static_nodes && !one.maintenance
}

/// The reservation with spare nodes for those that are down for longer or, with REPLACE, taken; as many as there are.
fn replaced(state: &State, one: &Reservation, now: Timestamp) -> Option<PolicyChange> {
    let ReservedPart::Nodes(list) = &one.what else {
        return None;
    };
    let is_near = next(one, now).is_some_and(|window| window.from <= now.plus_secs(AHEAD_SECS));
    if !is_replaced(one) || !is_near {
        return None;
    }
    let is_taken = |name: &str| {
        let node = state.node_by_name(name).filter(|_| one.replace);
        node.is_some_and(|node| !node.runs.is_empty())
    };
    let down = |list: &Hostlist| {
        let out = list
            .iter()
            .filter(|name| is_gone(state, name) || is_taken(name));
        out.count()
    };
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

/// A node that was silent for a moment comes back.
fn is_gone(state: &State, name: &str) -> bool {
    let node = state
        .node_by_name(name)
        .filter(|node| node.role == Role::Compute);
    node.is_none_or(|node| !node.is_available() && node.link != Link::Silent)
}

/// What an idle window leads to: its beginning noted, the note removed, or the reservation deleted.
fn idle(state: &State, one: &Reservation, now: Timestamp) -> Option<PolicyChange> {
    let secs = one.purge_idle_secs?;
    let window = next(one, now).filter(|window| window.from <= now)?;
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
                skip_until: Some(window.to),
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

/// When its window began, or the last of its jobs ended.
fn idle_since(state: &State, one: &Reservation, window: Window, now: Timestamp) -> Timestamp {
    let of_it = state
        .jobs
        .values()
        .filter(|job| asked(&job.spec) == Some(&one.name));
    let ended = of_it.filter_map(|job| job.past.ended).max();
    // With no job in memory, the last look counts.
    let known = one.idle_since.or(ended).unwrap_or_else(|| {
        if window.from > state.memo.time_reached {
            window.from
        } else {
            now
        }
    });
    known.max(ended.unwrap_or(known)).max(window.from)
}

/// A job runs in it, or waits for it.
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
                    .job(run.job)
                    .is_some_and(|job| draws(state, one, &job.spec))
            })
}

/// Deletes expired reservations. A recurring one stays as it was made: its hour is that of the first window,
/// also where the clocks change.
pub(crate) fn pass(tx: &mut Tx) {
    let all = tx.state.own_policy.reservations.values();
    let over: Vec<String> = all
        .filter(|one| next(one, tx.now).is_none())
        .map(|one| one.name.clone())
        .collect();
    for name in over {
        policy::commit::make(
            tx,
            PolicyChange::ReservationRemoved { name, force: true },
            SYSTEM.into(),
        );
    }
}
