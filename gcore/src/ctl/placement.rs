//! A plan enters: each start is checked against the state as it is now; what no longer fits is dropped.

use super::event::Event;
use super::handle::Tx;
use super::state::Free;
use gmodel::run::Allocation;
use gmodel::{JobId, JobState, NodeId, NodeLife, Reason, RunId};
use gsched::{Plan, Start};
use std::collections::{BTreeMap, BTreeSet};

pub(super) fn enter(tx: &mut Tx, plan: Plan) {
    let mut free: BTreeMap<NodeId, Free> = BTreeMap::new();
    for start in plan.starts {
        place(tx, start, &mut free);
    }
    let reasons: Vec<(JobId, Reason)> = plan
        .reasons
        .into_iter()
        .filter(|(id, reason)| current_reason(tx, *id).is_some_and(|old| old != reason))
        .collect();
    if !reasons.is_empty() {
        tx.emit(Event::ReasonsGiven { reasons });
    }
}

fn current_reason<'a>(tx: &'a Tx, id: JobId) -> Option<&'a Reason> {
    match tx.state.arrays.get(id) {
        Some(array) => Some(&array.reason),
        None => {
            tx.state.jobs.get(id).filter(|job| job.state == JobState::Pending).map(|job| &job.reason)
        }
    }
}

fn place(tx: &mut Tx, start: Start, free: &mut BTreeMap<NodeId, Free>) {
    let Some(task) = startable(tx, start.job) else { return };
    let Some(lives) = still_fits(tx, &start.allocation, free) else { return };
    if let Some((array, position)) = task {
        tx.emit(Event::TaskSplit { array, position });
    }
    let job = tx.state.jobs.get(start.job).expect("startable jobs have a record");
    let run = RunId::new(start.job, job.attempts + 1);
    let limit_secs = job.limit_secs;
    let single = start.allocation.len() == 1;
    let at = tx.now;
    tx.emit(Event::RunPlaced { run, allocation: start.allocation, lives, limit_secs, at });
    if single {
        tx.emit(Event::RunGo { run, at });
    }
}

/// Whether a job may start now; for an untouched array task its array and position.
#[allow(clippy::option_option)]
fn startable(tx: &Tx, id: JobId) -> Option<Option<(JobId, u32)>> {
    if let Some(job) = tx.state.jobs.get(id) {
        let free = job.state == JobState::Pending && job.holds.is_empty() && job.live.is_none();
        let room = job.task.is_none_or(|task| array_has_room(tx, task.array));
        return (free && job.eligible <= tx.now && room).then_some(None);
    }
    let (array, position) = tx.state.array_of(id)?;
    let free = array.pending.contains(position) && array.holds.is_empty();
    (free && array.eligible <= tx.now && array_has_room(tx, array.id))
        .then_some(Some((array.id, position)))
}

fn array_has_room(tx: &Tx, id: JobId) -> bool {
    tx.state
        .arrays
        .get(id)
        .is_none_or(|array| array.tasks.limit().is_none_or(|limit| array.own_live < limit))
}

/// Takes the allocation out of `free` and returns the lives of its nodes, or changes nothing.
fn still_fits(
    tx: &Tx,
    allocation: &Allocation,
    free: &mut BTreeMap<NodeId, Free>,
) -> Option<Vec<NodeLife>> {
    let mut lives = Vec::with_capacity(allocation.len());
    let mut seen = BTreeSet::new();
    for share in allocation {
        let node = tx.state.nodes.get(share.node).filter(|node| node.is_available())?;
        let here = free.entry(share.node).or_insert_with(|| tx.state.free_on(node));
        let gpus_free = share.gpus.0.iter().all(|grant| {
            here.gpu_milli
                .get(usize::from(grant.slot.0))
                .is_some_and(|free| *free >= grant.part.milli())
        });
        let distinct = share.gpus.slots().collect::<BTreeSet<_>>().len() == share.gpus.len();
        let room = share.cpus <= here.cpus && share.mem_bytes <= here.mem_bytes;
        if !(gpus_free && distinct && room && seen.insert(share.node)) {
            return None;
        }
        lives.push(node.life.clone());
    }
    if allocation.is_empty() {
        return None;
    }
    for share in allocation {
        let here = free.get_mut(&share.node).expect("seen above");
        here.cpus -= share.cpus;
        here.mem_bytes -= share.mem_bytes;
        for grant in &share.gpus.0 {
            here.gpu_milli[usize::from(grant.slot.0)] -= grant.part.milli();
        }
    }
    Some(lives)
}
