//! Why jobs wait, as plans say it; and what outlasts the controller of that: for whom others went, and where.
//!
//! A reason can be found again by the next pass. That room was made for a job cannot, once those who made it are gone: without it
//! such a job would make others go once more.

use crate::ctl::event::Event;
use crate::ctl::node::registration::{is_new, nodes_return};
use crate::ctl::state::{EntryId, State};
use crate::ctl::tx::Tx;
use gmodel::{JobId, JobState, NodeId, Reason, ReasonCode, Timestamp};
use gsched::Start;
use std::collections::{BTreeMap, BTreeSet};

/// By node: jobs, or arrays, for which others went there.
pub(crate) type NominatedNodes = BTreeMap<NodeId, BTreeSet<EntryId>>;

/// Gives those who wait the reasons of a plan. While nodes may still be to report to a new controller nothing can be said of a job that
/// has room on some (the plan may be of before the last of them did), and nobody gives way for others.
pub(crate) fn enter(tx: &mut Tx, mut jobs: Vec<(JobId, Reason)>, mut arrays: Vec<(JobId, Reason)>) {
    let state = &*tx.state;
    if is_new(state, tx.now) {
        let has_room =
            |who: EntryId| reason_of(state, who).is_some_and(|reason| reason.nodes.is_some());
        jobs.retain(|(id, _)| !has_room(EntryId::Job(*id)));
        arrays.retain(|(id, _)| !has_room(EntryId::Array(*id)));
    }
    if nodes_return(state, tx.now) {
        let preempts = |reason: &Reason| reason.code == ReasonCode::Preempting;
        let is_served = |who: EntryId| reason_of(state, who).is_some_and(preempts);
        let jobs = jobs
            .iter_mut()
            .map(|(id, reason)| (EntryId::Job(*id), reason));
        let arrays = arrays
            .iter_mut()
            .map(|(id, reason)| (EntryId::Array(*id), reason));
        for (_, reason) in jobs
            .chain(arrays)
            .filter(|(who, reason)| preempts(reason) && !is_served(*who))
        {
            *reason = Reason::new(
                ReasonCode::Resources,
                "nobody gives way to it before all nodes have reported to the new controller",
            );
        }
    }
    tell(tx, jobs, arrays);
}

/// Gives those who wait their newer reasons.
pub(crate) fn tell(tx: &mut Tx, jobs: Vec<(JobId, Reason)>, arrays: Vec<(JobId, Reason)>) {
    let mut given = (Vec::new(), Vec::new());
    let each = jobs
        .into_iter()
        .map(|(id, reason)| (EntryId::Job(id), reason));
    let each = each.chain(
        arrays
            .into_iter()
            .map(|(id, reason)| (EntryId::Array(id), reason)),
    );
    for (who, reason) in each {
        let Some(known) = reason_of(tx.state, who).filter(|known| **known != reason) else {
            continue;
        };
        let matters = known.nodes != reason.nodes
            || (known.code == ReasonCode::Preempting) != (reason.code == ReasonCode::Preempting);
        match who {
            who if matters => tx.emit(Event::RoomPromised { who, reason }),
            EntryId::Job(id) => given.0.push((id, reason)),
            EntryId::Array(id) => given.1.push((id, reason)),
        }
    }
    let (jobs, arrays) = given;
    if !(jobs.is_empty() && arrays.is_empty()) {
        tx.emit(Event::ReasonsGiven { jobs, arrays });
    }
}

fn reason_of(state: &State, who: EntryId) -> Option<&Reason> {
    match who {
        EntryId::Job(id) => state
            .jobs
            .get(id)
            .filter(|job| job.state == JobState::Pending)
            .map(|job| &job.reason),
        EntryId::Array(id) => state.arrays.get(id).map(|array| &array.reason),
    }
}

/// Nodes on which jobs have room that others left, while some are still to report to a new controller: those jobs cannot have it
/// before, and nobody else is to take it meanwhile.
pub(crate) fn promised_nodes(state: &State, now: Timestamp) -> NominatedNodes {
    let mut promised = NominatedNodes::new();
    if !nodes_return(state, now) {
        return promised;
    }
    for (who, nodes) in freed(state) {
        for node in nodes {
            promised.entry(*node).or_default().insert(who);
        }
    }
    promised
}

/// Nodes on which jobs are to start for which others go, or went.
pub(crate) fn freed_nodes(state: &State) -> BTreeSet<NodeId> {
    freed(state).flat_map(|(_, nodes)| nodes).copied().collect()
}

fn freed(state: &State) -> impl Iterator<Item = (EntryId, &[NodeId])> {
    let jobs = state
        .jobs
        .values()
        .filter(|job| job.state == JobState::Pending)
        .map(|job| (EntryId::Job(job.id), &job.reason));
    let arrays = state
        .arrays
        .values()
        .filter(|array| !array.pending.is_empty())
        .map(|array| (EntryId::Array(array.id), &array.reason));
    jobs.chain(arrays)
        .filter_map(|(who, reason)| Some((who, &reason.nodes.as_ref()?[..])))
}

/// Of what is promised to others only a start takes: one of them. Where something is kept idle they count on what is idle elsewhere, too.
pub(crate) fn whose(state: &State, promised: &NominatedNodes, start: &Start) -> Option<JobId> {
    if promised.is_empty() {
        return None;
    }
    let who = waits_as(state, start.job);
    let mut on = start
        .allocation
        .iter()
        .filter_map(|share| promised.get(&share.node));
    let there = on.find(|whom| !whom.contains(&who));
    let anywhere = || {
        promised
            .values()
            .find(|whom| keeps_idle(state) && !whom.contains(&who))
    };
    there
        .or_else(anywhere)
        .and_then(|whom| match whom.first()? {
            EntryId::Job(id) | EntryId::Array(id) => Some(*id),
        })
}

/// Whether some of what is idle is kept from anybody.
fn keeps_idle(state: &State) -> bool {
    state
        .config
        .partitions
        .iter()
        .any(|one| one.headroom.is_some())
        || state.policy.qos.values().any(|qos| qos.headroom.is_some())
        || state
            .policy
            .accounts
            .values()
            .any(|account| account.lend_limit.is_some())
}

/// Why a job does not start where others went for another.
pub(crate) fn tell_kept(tx: &mut Tx, job: JobId, whose: JobId) {
    let text = format!(
        "what it needs is kept for job {whose}, for which others went, until all nodes have reported to the new controller"
    );
    let reason = Reason::new(ReasonCode::Priority, text);
    match waits_as(tx.state, job) {
        EntryId::Job(id) => tell(tx, vec![(id, reason)], Vec::new()),
        EntryId::Array(id) => tell(tx, Vec::new(), vec![(id, reason)]),
    }
}

fn waits_as(state: &State, job: JobId) -> EntryId {
    match state.array_of(job) {
        Some((array, position)) if array.pending.contains(position) => EntryId::Array(array.id),
        _ => EntryId::Job(job),
    }
}
