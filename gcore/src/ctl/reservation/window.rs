//! Reservations in force: which jobs may use them, which nodes they cover, when their windows begin and end.
//!
//! `gsched::window` computes windows.

use crate::ctl::command::Refusal;
use crate::ctl::state::{Job, Node, Run, State};
use gmodel::node::Role;
use gmodel::policy::{Reservation, ReservedPart};
use gmodel::run::Allocation;
use gmodel::{JobId, JobSpec, JobState, NodeId, RefusalKind, Timestamp};
use gpolicy::window::next;
use std::collections::{BTreeMap, BTreeSet};

/// Reservations by name, with their time zone.
pub(crate) type Reservations = BTreeMap<String, Reservation>;

/// Whether a run may still hold part of a node when a window begins. Jobs of the reservation itself do not
/// count.
pub(crate) fn runs_into(
    state: &State,
    run: &Run,
    node: NodeId,
    one: &Reservation,
    begins: Timestamp,
) -> bool {
    let Some(job) = state.job(run.id.job) else {
        return false;
    };
    let holds = run.member(node).is_some_and(|member| !member.is_clean());
    holds
        && asked(&job.spec) != Some(&one.name)
        && !draws(state, one, &job.spec)
        && ends_by(state, run).is_none_or(|end| end > begins)
}

/// Whether a reservation draws a job that names none (MAGNETIC).
pub(crate) fn draws(state: &State, one: &Reservation, spec: &JobSpec) -> bool {
    one.draws()
        && asked(spec).is_none()
        && state
            .policy
            .is_reserved_for(one, &spec.user.name, &spec.account)
}

fn ends_by(state: &State, run: &Run) -> Option<Timestamp> {
    let from = run.started.or(run.go).unwrap_or(run.placed);
    state.ends_by(run, from)
}

pub(crate) fn covers(state: &State, one: &Reservation, node: &Node) -> bool {
    let partition = one
        .partition
        .as_deref()
        .and_then(|name| state.config.partition(name));
    match &one.what {
        ReservedPart::AllNodes => {
            partition.is_none_or(|part| part.holds(&node.name, &node.inventory.features))
        }
        ReservedPart::Nodes(list) => list.contains(&node.name),
        ReservedPart::NodeCount(_) | ReservedPart::Gpus(_) => false,
    }
}

pub(crate) fn asked(spec: &JobSpec) -> Option<&str> {
    gpolicy::window::asked(spec)
}

/// Whether a job may start as far as its reservation goes: it exists and is open to the job.
pub(crate) fn admits(state: &State, spec: &JobSpec) -> bool {
    let Some(name) = asked(spec) else { return true };
    let one = state.policy.reservations.get(name);
    one.is_some_and(|one| {
        state
            .policy
            .is_reserved_for(one, &spec.user.name, &spec.account)
    })
}

/// Seconds left of the present window of the reservation that a job names; 0 outside of one. `None`: no window
/// bounds the job.
pub(crate) fn window_left_secs(state: &State, spec: &JobSpec, now: Timestamp) -> Option<u32> {
    let one = state
        .policy
        .reservations
        .get(asked(spec)?)
        .filter(|one| !one.flex)?;
    let window = next(one, now).filter(|window| window.from <= now);
    Some(window.map_or(0, |window| {
        u32::try_from(window.to.since_secs(now)).unwrap_or(0)
    }))
}

/// The reservations in force that draw a job and cover a node of its allocation; `None` for a job that names
/// one.
pub(crate) fn drawing(
    state: &State,
    job: JobId,
    allocation: &Allocation,
    now: Timestamp,
) -> Option<Box<str>> {
    let spec = &state.job(job)?.spec;
    let draws = |one: &&Reservation| {
        one.draws()
            && asked(spec).is_none()
            && state
                .policy
                .is_reserved_for(one, &spec.user.name, &spec.account)
            && next(one, now).is_some_and(|window| window.from <= now)
            && allocation.iter().any(|share| {
                state
                    .node(share.node)
                    .is_some_and(|node| covers(state, one, node))
            })
    };
    let names: Vec<&str> = state
        .policy
        .reservations
        .values()
        .filter(draws)
        .map(|one| one.name.as_str())
        .collect();
    (!names.is_empty()).then(|| names.join(",").into())
}

/// The reservations in force over a node.
pub fn reservations_over<'a>(
    state: &'a State,
    node: &'a Node,
    now: Timestamp,
) -> impl Iterator<Item = &'a Reservation> {
    let all = state
        .policy
        .reservations
        .values()
        .filter(|_| node.role == Role::Compute);
    all.filter(move |one| {
        covers(state, one, node) && next(one, now).is_some_and(|window| window.from <= now)
    })
}

/// The reservation of a job's run: the named one, or those that drew it.
pub fn reservation_of(job: &Job) -> Option<&str> {
    asked(&job.spec).or(job
        .past
        .drawn_into
        .as_deref()
        .filter(|_| job.state != JobState::Pending))
}

/// Whether no job runs in it.
///
/// # Errors
/// Jobs run in it.
pub(crate) fn is_left(state: &State, name: &str) -> Result<(), Refusal> {
    let is_of_it = |run: &&Run| {
        let job = state.job(run.id.job);
        job.and_then(reservation_of)
            .is_some_and(|names| names.split(',').any(|one| one == name))
    };
    let shown = |run: &Run| {
        state
            .job(run.id.job)
            .map_or_else(|| run.id.job.to_string(), |job| job.shown_id())
    };
    let running: BTreeSet<String> = state.runs.values().filter(is_of_it).map(shown).collect();
    if running.is_empty() {
        return Ok(());
    }
    let (jobs, run, they) = if running.len() == 1 {
        ("job", "runs", "it runs")
    } else {
        ("jobs", "run", "they run")
    };
    let more = if running.len() > 10 {
        format!(" and {} more", running.len() - 10)
    } else {
        String::new()
    };
    let named: Vec<String> = running.iter().take(10).cloned().collect();
    Err(Refusal::conflict(format!(
        "reservation {name} is in use: {jobs} {}{more} {run} in it. Wait for the end, or remove it by force (gadm reservation del {name} --force): \
         then {they} on, and others may have the rest of its nodes.",
        named.join(", "),
    ))
    .about(RefusalKind::ReservationBusy))
}

/// When the next window of any reservation begins or ends: a new pass is due then.
pub(crate) fn next_edge(state: &State) -> Option<Timestamp> {
    let after = state.memo.time_reached;
    let edge = |one: &Reservation| {
        let window = next(one, after)?;
        Some(if window.from > after {
            window.from
        } else {
            window.to
        })
    };
    state.policy.reservations.values().filter_map(edge).min()
}
