//! A plan enters: each start is checked against the present state; what no longer fits is dropped.

use crate::ctl::apply::memos;
use crate::ctl::event::Event;
use crate::ctl::job::dependency::readiness;
use crate::ctl::job::pending_reason::NominatedNodes;
use crate::ctl::job::{deadline, pending_reason};
use crate::ctl::run::{class, preempt, suspend};
use crate::ctl::state::{Job, State};
use crate::ctl::tx::Tx;
use crate::ctl::{gpu, node, reservation};
use gmodel::config::PartitionState;
use gmodel::partition_list::is_among;
use gmodel::run::{Allocation, NodeShare};
use gmodel::{
    GpuPart, JobId, JobPart, JobSpec, JobState, NodeId, NodeLife, RunClass, RunId, Seq, Timestamp,
};
use gsched::{Plan, Start};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub(crate) fn enter(tx: &mut Tx, plan: Plan) {
    let (as_of, _) = tx.state.policy_since;
    let priorities: BTreeMap<JobId, i64> = plan.priorities.into_iter().collect();
    if plan.made_from >= as_of {
        suspend::enter(tx, plan.resumes);
        let promised = pending_reason::nominated_until_all_report(tx.state, tx.now);
        for starts in together(tx.state, plan.starts) {
            enter_start(tx, starts, &promised, &priorities, plan.made_from);
        }
        class::classify(tx, plan.classes);
        gpu::mig::enter(tx, plan.cuts);
        preempt::enter(tx, plan.preempts);
        memos::forget_respecified(tx.state, plan.made_from);
    }
    let reasons = pending_reason::PlanReasons {
        jobs: plan.reasons,
        arrays: plan.array_reasons,
        nominations: plan.nominations,
        array_nominations: plan.array_nominations,
    };
    pending_reason::enter(tx, reasons);
}

/// The starts of a plan, those of one job of unlike parts in one: they stand together.
fn together(state: &State, starts: Vec<Start>) -> Vec<Vec<Start>> {
    let leader = |start: &Start| part_of(state, start.job).map(|part| part.leader);
    let mut all: Vec<Vec<Start>> = Vec::with_capacity(starts.len());
    for start in starts {
        let own = leader(&start);
        match all.last_mut() {
            Some(last) if own.is_some() && leader(&last[0]) == own => last.push(start),
            _ => all.push(vec![start]),
        }
    }
    all
}

/// Places a job, or all components of one, unless something stands against it by now.
fn enter_start(
    tx: &mut Tx,
    mut starts: Vec<Start>,
    promised: &NominatedNodes,
    priorities: &BTreeMap<JobId, i64>,
    made_from: Seq,
) {
    let nominee = starts
        .iter()
        .find_map(|start| pending_reason::nominated_job(tx.state, promised, start));
    if let Some(nominee) = nominee {
        return pending_reason::tell_kept(tx, starts[0].job, nominee);
    }
    if starts
        .iter()
        .any(|start| is_respecified(tx.state, start.job, made_from))
    {
        return;
    }
    // Of several components only the first stands in the queue.
    let mut known = starts.iter().filter_map(|start| priorities.get(&start.job));
    let priority = known.next().copied();
    match part_of(tx.state, starts[0].job) {
        None => place(tx, starts.remove(0), priority),
        Some(part) if starts.len() == part.size as usize => place_together(tx, starts, priority),
        Some(_) => {}
    }
}

/// Whether the request of a job (or of its array) changed since.
fn is_respecified(state: &State, id: JobId, since: Seq) -> bool {
    let changed = |id: JobId| {
        state
            .memo
            .respecified
            .get(&id)
            .is_some_and(|at| *at > since)
    };
    changed(id)
        || state
            .array_of(id)
            .is_some_and(|(array, _)| changed(array.id))
}

fn part_of(state: &State, id: JobId) -> Option<JobPart> {
    state.job(id).and_then(|job| job.spec.part)
}

/// Places all components of a job of unlike parts, or none where one no longer fits.
fn place_together(tx: &mut Tx, starts: Vec<Start>, priority: Option<i64>) {
    let placements: Option<Vec<Placement>> =
        starts.into_iter().map(|start| checked(tx, start)).collect();
    let Some(placements) = placements else {
        return;
    };
    let all = placements.iter().map(|one| &one.start.allocation);
    if still_fits(tx.state, &merged(all), tx.now).is_none() {
        return;
    }
    for placement in placements {
        commit(tx, placement, priority);
    }
}

/// What several runs take together, a share for each node.
fn merged<'a>(all: impl Iterator<Item = &'a Allocation>) -> Allocation {
    let mut merged: BTreeMap<NodeId, NodeShare> = BTreeMap::new();
    for share in all.flatten() {
        match merged.entry(share.node) {
            Entry::Vacant(entry) => drop(entry.insert(share.clone())),
            Entry::Occupied(mut entry) => {
                let both = entry.get_mut();
                both.cpus = both.cpus.saturating_add(share.cpus);
                both.mem_bytes = both.mem_bytes.saturating_add(share.mem_bytes);
                both.gpus.0.extend(share.gpus.0.iter().cloned());
            }
        }
    }
    merged.into_values().collect()
}

/// A start that fits the present state.
struct Placement {
    start: Start,
    /// Of an array task without a record: its array and position.
    task: Option<(JobId, u32)>,
    limit_secs: Option<u32>,
    lives: Vec<Arc<NodeLife>>,
}

fn place(tx: &mut Tx, start: Start, priority: Option<i64>) {
    if let Some(placement) = checked(tx, start) {
        commit(tx, placement, priority);
    }
}

fn checked(tx: &Tx, start: Start) -> Option<Placement> {
    let task = startable(tx, start.job)?;
    if !partition_still_holds(tx, &start) {
        return None;
    }
    let (spec, limit_secs) = match tx.job(start.job) {
        Some(job) => (&job.spec, job.limit_secs),
        None => match tx.state.array_of(start.job) {
            Some((array, _)) => (&array.spec, array.limit_secs),
            None => return None,
        },
    };
    let window_left = reservation::window::window_left_secs(tx.state, spec, tx.now);
    let limit_secs = deadline::run_limit(spec, limit_secs, start.limit_secs, window_left, tx.now)?;
    let lives = still_fits(tx.state, &start.allocation, tx.now)?;
    Some(Placement {
        start,
        task,
        limit_secs,
        lives,
    })
}

fn commit(tx: &mut Tx, placement: Placement, priority: Option<i64>) {
    let Placement {
        start,
        task,
        limit_secs,
        lives,
    } = placement;
    if let Some((array, position)) = task {
        tx.emit(Event::TaskSplit { array, position });
    }
    let job = tx.job(start.job).expect("startable jobs have a record");
    let run = RunId::new(start.job, next_attempt(tx.state, job));
    let class = class_of(tx.state, &job.spec, start.class);
    // The components of a job of unlike parts wait for each other.
    let single = start.allocation.len() == 1 && job.spec.part.is_none();
    let at = tx.now;
    gpu::check::yield_to(tx, &start.allocation, run);
    let imex_channel = gpu::imex::channel_for(tx.state, start.job, &start.allocation);
    let Start {
        allocation,
        partition,
        ..
    } = start;
    tx.emit(Event::RunPlaced {
        run,
        allocation,
        lives,
        partition,
        limit_secs,
        class,
        priority,
        imex_channel,
        at,
    });
    if single {
        tx.emit(Event::RunGo { run, at });
    }
    preempt::release_others(tx, run.job);
}

/// The class, where there are quotas and the QOS is not outside of them. Without a planned class a run is
/// borrowed.
fn class_of(state: &State, spec: &JobSpec, planned: Option<RunClass>) -> Option<RunClass> {
    (state.policy.has_quotas() && !class::is_outside_quota(state, spec))
        .then(|| planned.unwrap_or(RunClass::Borrowed))
}

/// Attempts skipped by a restore: nodes may hold runs that the backup lacks.
const RESTORE_ATTEMPTS: u64 = 1000;

/// The attempt of a job's next run. After a restore, attempts that nodes may have are skipped.
fn next_attempt(state: &State, job: &Job) -> u32 {
    let is_new = state
        .adoption
        .as_ref()
        .is_some_and(|window| job.id.0 >= window.first_job);
    let floor = if is_new {
        0
    } else {
        state
            .incarnation
            .saturating_sub(1)
            .saturating_mul(RESTORE_ATTEMPTS)
    };
    job.attempts
        .max(u32::try_from(floor).unwrap_or(0))
        .saturating_add(1)
}

/// Whether a job may start now; for a task without a record its array and position.
#[allow(clippy::option_option)]
fn startable(tx: &Tx, id: JobId) -> Option<Option<(JobId, u32)>> {
    if let Some(job) = tx.job(id) {
        let waits = !job.holds.is_empty() || job.waits.is_some();
        let free = job.state == JobState::Pending && !waits && job.live.is_none();
        let room = job.task.is_none_or(|task| array_has_room(tx, task.array));
        return (free && job.is_due(tx.now) && room).then_some(None);
    }
    let (array, position) = tx.state.array_of(id)?;
    let waits = !array.holds_of(position).is_empty() || !readiness::is_ready(array, position);
    let free = array.pending.contains(position) && !waits;
    (free && array.eligible <= tx.now && array_has_room(tx, array.id))
        .then_some(Some((array.id, position)))
}

/// The job may have moved to another partition since the plan was made.
fn partition_still_holds(tx: &Tx, start: &Start) -> bool {
    let spec = match tx.job(start.job) {
        Some(job) => &job.spec,
        None => match tx.state.array_of(start.job) {
            Some((array, _)) => &array.spec,
            None => return false,
        },
    };
    let name = match &start.partition {
        Some(name) if is_among(&spec.partition, name) => name,
        Some(_) => return false,
        None => &spec.partition,
    };
    let Some(partition) = tx.state.config.partition(name) else {
        return false;
    };
    let open = matches!(partition.state, PartitionState::Up | PartitionState::Drain);
    let open = open && reservation::window::admits(tx.state, spec);
    open && start.allocation.iter().all(|share| {
        let node = tx.node(share.node);
        node.is_some_and(|node| partition.holds(&node.name, &node.inventory.features))
    })
}

fn array_has_room(tx: &Tx, id: JobId) -> bool {
    tx.array(id).is_none_or(|array| {
        array
            .tasks
            .limit()
            .is_none_or(|limit| array.own_live < limit)
    })
}

/// The lives of the allocation's nodes, if its resources are free there.
fn still_fits(
    state: &State,
    allocation: &Allocation,
    now: Timestamp,
) -> Option<Vec<Arc<NodeLife>>> {
    let mut lives = Vec::with_capacity(allocation.len());
    let once = allocation.is_sorted_by(|one, next| one.node < next.node)
        || allocation
            .iter()
            .map(|share| share.node)
            .collect::<BTreeSet<_>>()
            .len()
            == allocation.len();
    if allocation.is_empty() || !once {
        return None;
    }
    for share in allocation {
        let node = state
            .node(share.node)
            .filter(|node| node.is_available() && node::pause::paused(node, now).is_none())?;
        let here = state.free_on(node);
        let gpus_free = share.gpus.0.iter().all(|grant| {
            here.gpu_milli
                .get(usize::from(grant.slot.0))
                .is_some_and(|free| *free >= grant.part.of_slot_milli())
        });
        // A planned slice still exists, with the planned profile.
        let as_planned = share.gpus.0.iter().all(|grant| {
            let gpu = node.gpus.get(usize::from(grant.slot.0));
            gpu.is_some_and(|gpu| match grant.part {
                GpuPart::Share { tenant, .. } => {
                    gpu.info.slice.is_none() && (gpu.info.mps || tenant.is_none())
                }
                _ => gpu.info.part() == grant.part,
            })
        });
        let beside = gpu::share::stand_beside(state, node, &share.gpus);
        let distinct = share.gpus.len() < 2
            || share.gpus.slots().collect::<BTreeSet<_>>().len() == share.gpus.len();
        let room = share.cpus <= here.cpus && share.mem_bytes <= here.mem_bytes;
        if !(gpus_free && as_planned && beside && distinct && room) {
            return None;
        }
        lives.push(node.life.clone());
    }
    Some(lives)
}
