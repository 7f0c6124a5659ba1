//! Reasons and nominations of pending jobs, as plans give them.
//!
//! The next pass finds a reason again. A nomination it cannot find again once the victims are gone, so a nomination is stored:
//! without it the job would preempt once more.

use crate::ctl::event::Event;
use crate::ctl::node::registration::{is_new, nodes_return};
use crate::ctl::state::{EntryId, State};
use crate::ctl::tx::Tx;
use gmodel::{JobId, JobState, NodeId, Reason, ReasonCode, Timestamp};
use gsched::{Nomination, Start};
use std::collections::{BTreeMap, BTreeSet};

/// By node: jobs, or arrays, that are nominated there.
pub(crate) type NominatedNodes = BTreeMap<NodeId, BTreeSet<EntryId>>;

/// A reason for a job or an array, with its nomination.
struct NewReason {
    entry: EntryId,
    reason: Reason,
    nomination: Option<Nomination>,
}

/// Gives pending jobs the reasons of a plan. While nodes may still be to report to a new controller, nominated jobs keep their
/// nodes (the plan may be older than the last report), and no preemption begins.
pub(crate) fn enter(tx: &mut Tx, plan: PlanReasons) {
    let state = &*tx.state;
    let mut all = plan.each();
    if is_new(state, tx.now) {
        let has_nodes =
            |entry: EntryId| nomination_of(state, entry).is_some_and(|one| !one.nodes.is_empty());
        all.retain(|new| !has_nodes(new.entry));
    }
    if nodes_return(state, tx.now) {
        let is_fresh = |new: &&mut NewReason| {
            new.nomination.is_some() && nomination_of(state, new.entry).is_none()
        };
        for new in all.iter_mut().filter(is_fresh) {
            new.nomination = None;
            new.reason = Reason::new(
                ReasonCode::Resources,
                "no run is preempted for it before all nodes have re-registered with the new controller",
            );
        }
    }
    tell(tx, all);
}

/// What a plan says to pending jobs and arrays.
pub(crate) struct PlanReasons {
    pub jobs: Vec<(JobId, Reason)>,
    pub arrays: Vec<(JobId, Reason)>,
    pub nominations: Vec<(JobId, Nomination)>,
    pub array_nominations: Vec<(JobId, Nomination)>,
}

impl PlanReasons {
    fn each(self) -> Vec<NewReason> {
        let mut nominations: BTreeMap<JobId, Nomination> = self.nominations.into_iter().collect();
        let mut of_arrays: BTreeMap<JobId, Nomination> =
            self.array_nominations.into_iter().collect();
        let jobs = self.jobs.into_iter().map(|(id, reason)| NewReason {
            entry: EntryId::Job(id),
            reason,
            nomination: nominations.remove(&id),
        });
        let arrays = self.arrays.into_iter().map(|(id, reason)| NewReason {
            entry: EntryId::Array(id),
            reason,
            nomination: of_arrays.remove(&id),
        });
        jobs.chain(arrays).collect()
    }
}

/// Gives pending jobs and arrays newer reasons, which end nominations.
pub(crate) fn give_reasons(tx: &mut Tx, reasons: Vec<(EntryId, Reason)>) {
    let new = |(entry, reason)| NewReason {
        entry,
        reason,
        nomination: None,
    };
    tell(tx, reasons.into_iter().map(new).collect());
}

fn tell(tx: &mut Tx, all: Vec<NewReason>) {
    let mut given = (Vec::new(), Vec::new());
    for new in all {
        let NewReason {
            entry,
            reason,
            nomination,
        } = new;
        let Some(known) = reason_of(tx.state, entry) else {
            continue;
        };
        let is_nominated_anew = nomination_of(tx.state, entry) != nomination.as_ref();
        if *known == reason && !is_nominated_anew {
            continue;
        }
        match entry {
            entry if is_nominated_anew => tx.emit(Event::NominationChanged {
                entry,
                reason,
                nomination,
            }),
            EntryId::Job(id) => given.0.push((id, reason)),
            EntryId::Array(id) => given.1.push((id, reason)),
        }
    }
    let (jobs, arrays) = given;
    if !(jobs.is_empty() && arrays.is_empty()) {
        tx.emit(Event::ReasonsGiven { jobs, arrays });
    }
}

fn nomination_of(state: &State, entry: EntryId) -> Option<&Nomination> {
    match entry {
        EntryId::Job(id) => state
            .job(id)
            .filter(|job| job.state == JobState::Pending)?
            .nomination
            .as_ref(),
        EntryId::Array(id) => state.array(id)?.nomination.as_ref(),
    }
}

fn reason_of(state: &State, entry: EntryId) -> Option<&Reason> {
    match entry {
        EntryId::Job(id) => state
            .job(id)
            .filter(|job| job.state == JobState::Pending)
            .map(|job| &job.reason),
        EntryId::Array(id) => state.array(id).map(|array| &array.reason),
    }
}

/// Nominated nodes while some are still to report to a new controller: the nominated jobs cannot start there before, and no other
/// job may.
pub(crate) fn nominated_until_all_report(state: &State, now: Timestamp) -> NominatedNodes {
    let mut nominated = NominatedNodes::new();
    if !nodes_return(state, now) {
        return nominated;
    }
    for (entry, nodes) in nominations(state) {
        for node in nodes {
            nominated.entry(*node).or_default().insert(entry);
        }
    }
    nominated
}

/// All nominated nodes.
pub(crate) fn nominated_nodes(state: &State) -> BTreeSet<NodeId> {
    nominations(state)
        .flat_map(|(_, nodes)| nodes)
        .copied()
        .collect()
}

fn nominations(state: &State) -> impl Iterator<Item = (EntryId, &[NodeId])> {
    let jobs = state
        .jobs
        .values()
        .filter(|job| job.state == JobState::Pending)
        .map(|job| (EntryId::Job(job.id), &job.nomination));
    let arrays = state
        .arrays
        .values()
        .filter(|array| !array.pending.is_empty())
        .map(|array| (EntryId::Array(array.id), &array.nomination));
    jobs.chain(arrays)
        .filter_map(|(entry, nomination)| Some((entry, &nomination.as_ref()?.nodes[..])))
}

/// The nominated job that a start would take nodes from. Where headroom is kept, nominated jobs count on idle nodes elsewhere, too.
pub(crate) fn nominated_job(
    state: &State,
    nominated: &NominatedNodes,
    start: &Start,
) -> Option<JobId> {
    if nominated.is_empty() {
        return None;
    }
    let entry = waits_as(state, start.job);
    let mut on = start
        .allocation
        .iter()
        .filter_map(|share| nominated.get(&share.node));
    let there = on.find(|jobs| !jobs.contains(&entry));
    let anywhere = || {
        nominated
            .values()
            .find(|jobs| keeps_idle(state) && !jobs.contains(&entry))
    };
    there
        .or_else(anywhere)
        .and_then(|jobs| match jobs.first()? {
            EntryId::Job(id) | EntryId::Array(id) => Some(*id),
        })
}

/// Whether headroom or a lending limit keeps GPUs idle.
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

/// Says that a job waits for nodes that are nominated for another.
pub(crate) fn tell_kept(tx: &mut Tx, job: JobId, preemptor: JobId) {
    let text = format!(
        "nodes are held for preempting job {preemptor} until all nodes re-register after the controller restart"
    );
    let reason = Reason::new(ReasonCode::Priority, text);
    let entry = waits_as(tx.state, job);
    give_reasons(tx, vec![(entry, reason)]);
}

fn waits_as(state: &State, job: JobId) -> EntryId {
    match state.array_of(job) {
        Some((array, position)) if array.pending.contains(position) => EntryId::Array(array.id),
        _ => EntryId::Job(job),
    }
}
