//! Requeues jobs: a live run is ended for it; a finished job is pending again as long as it is in memory. What
//! its earlier end decided (dependants, the record of that attempt) stays.

use crate::ctl::command::{Actor, Refusal, RefusalCode, Reply, Target};
use crate::ctl::event::Event;
use crate::ctl::job::dependency::resolve::DependentJob;
use crate::ctl::job::hold::{hold_tasks, mark_owner};
use crate::ctl::job::targets::{
    TargetRecord, each, few_are_split, find, is_one_task, own_tasks, shown, split,
};
use crate::ctl::job::{dependency, limits};
use crate::ctl::run::gang::stop;
use crate::ctl::state::{EntryId, Job, OpenDependency, intersection};
use crate::ctl::token::cap;
use crate::ctl::tx::Tx;
use gmodel::array_spec::RangeSet;
use gmodel::node::HoldMark;
use gmodel::run::StopCause;
use gmodel::{JobId, JobSpec, RefusalKind, RunId};

pub(crate) fn handle(
    tx: &mut Tx,
    actor: &Actor,
    targets: &[Target],
    hold: bool,
) -> Result<Reply, Refusal> {
    few_are_split(tx.state, targets, "held", |target, found| {
        hold && *found == TargetRecord::Over && is_one_task(target)
    })?;
    Ok(each(tx, targets, |tx, target| {
        requeue(tx, actor, target, hold)
    }))
}

fn requeue(tx: &mut Tx, actor: &Actor, target: &Target, hold: bool) -> Result<(), Refusal> {
    let found =
        find(tx.state, actor, target).map_err(|refusal| what_is_left(tx, target, refusal))?;
    let (jobs, cancelled) = match &found {
        TargetRecord::Job(id) => (vec![*id], None),
        TargetRecord::Array(id) => (
            own_tasks(tx.state, *id),
            tx.array(*id).map(|array| (*id, array.cancelled.clone())),
        ),
        TargetRecord::Untouched { .. } => (Vec::new(), None),
        TargetRecord::Over => (Vec::new(), position_of(tx, actor, target)?),
    };
    let steps: Vec<(JobId, RequeueStep)> = jobs
        .iter()
        .filter_map(|id| Some((*id, step(tx, tx.job(*id)?)?)))
        .collect();
    let cancelled = cancelled.filter(|(_, positions)| !positions.is_empty());
    if steps.is_empty() && cancelled.is_none() {
        let text = format!(
            "job {} waits in the queue, so there is nothing to take back.",
            shown(target)
        );
        return Err(Refusal::conflict(text).about(RefusalKind::JobPending));
    }
    may_run_again(tx, actor, target, &steps, cancelled.as_ref())?;
    let waits = steps
        .iter()
        .map(|(id, step)| waits_again(tx, *id, *step))
        .collect::<Result<Vec<_>, Refusal>>()?;
    let array_waits = cancelled
        .as_ref()
        .map_or(Ok(None), |(array, _)| waits_of_tasks(tx, *array))?;
    for ((id, step), waits) in steps.into_iter().zip(waits) {
        take_back(tx, actor, id, step, waits, hold);
    }
    if let Some((array, positions)) = cancelled {
        tx.emit(Event::TasksRequeued {
            array,
            positions: positions.clone(),
            by: actor.user.clone(),
            at: tx.now,
        });
        wait_for(tx, EntryId::Array(array), array_waits);
        if hold {
            hold_requeued(tx, actor, target, &found, array, &positions);
        }
    }
    Ok(())
}

/// Holds the tasks without records that were requeued.
fn hold_requeued(
    tx: &mut Tx,
    actor: &Actor,
    target: &Target,
    found: &TargetRecord,
    array: JobId,
    positions: &RangeSet,
) {
    match found {
        TargetRecord::Array(_) => hold_array(tx, actor, array),
        _ if !is_one_task(target) => hold_returned(tx, actor, array, positions),
        // A dependency that can never be met may cancel the task again.
        _ => positions.iter().for_each(|position| {
            if tx
                .array(array)
                .is_some_and(|array| array.pending.contains(position))
            {
                let task = split(tx, array, position);
                hold_job(tx, actor, task);
            }
        }),
    }
}

/// How a job returns to the queue.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RequeueStep {
    /// Its run is ended first.
    Stop(RunId),
    /// Its run has ended and is being cleaned up.
    Stay(RunId),
    Return,
}

/// `None` for a pending job, or one that is being requeued.
fn step(tx: &Tx, job: &Job) -> Option<RequeueStep> {
    let Some(run) = job.live_run() else {
        return job.state.is_final().then_some(RequeueStep::Return);
    };
    match tx.run(run)?.outcome.as_ref() {
        None => Some(RequeueStep::Stop(run)),
        Some(outcome) => outcome.requeue.is_none().then_some(RequeueStep::Stay(run)),
    }
}

/// Refused if the job must not run twice, or if a limit on queued jobs is reached.
fn may_run_again(
    tx: &Tx,
    actor: &Actor,
    target: &Target,
    steps: &[(JobId, RequeueStep)],
    cancelled: Option<&(JobId, RangeSet)>,
) -> Result<(), Refusal> {
    let job = |(id, _): &(JobId, RequeueStep)| Some((*id, &tx.job(*id)?.spec));
    let array = cancelled.and_then(|(id, _)| Some((*id, &tx.array(*id)?.spec)));
    if steps
        .iter()
        .filter_map(job)
        .any(|(_, spec)| spec.allocation)
    {
        let text = format!(
            "job {} is an allocation: its client waits for it once, so it does not go back to the queue. Ask for another.",
            shown(target)
        );
        return Err(Refusal::conflict(text));
    }
    if let Some((id, _)) = steps
        .iter()
        .filter_map(job)
        .chain(array)
        .find(|(_, spec)| spec.requeue == Some(false))
    {
        return Err(Refusal::conflict(format!(
            "job {} was submitted with --no-requeue. If it may run again: gadm job update {id} Requeue=1, and then requeue it.",
            shown(target)
        )));
    }
    let returning = || {
        steps
            .iter()
            .filter(|(_, step)| *step == RequeueStep::Return)
    };
    let count = returning().count() as u64 + cancelled.map_or(0, |(_, positions)| positions.len());
    let back = |(id, step): &(JobId, RequeueStep)| {
        let job = tx
            .job(*id)
            .filter(|_| !matches!(step, RequeueStep::Stop(_)))?;
        Some((&*job.spec, job.limit_secs, 1))
    };
    let tasks = cancelled.and_then(|(id, positions)| {
        let array = tx.array(*id)?;
        Some((&*array.spec, array.limit_secs, positions.len()))
    });
    let back = steps.iter().filter_map(back).chain(tasks);
    cap::check_return(tx.state, back, tx.now)?;
    match returning().find_map(job).or(array) {
        Some((_, spec)) if !actor.operator && count > 0 => {
            limits::check_return(tx.state, spec, count)
        }
        _ => Ok(()),
    }
}

fn take_back(
    tx: &mut Tx,
    actor: &Actor,
    id: JobId,
    step: RequeueStep,
    waits: Option<Box<OpenDependency>>,
    hold: bool,
) {
    let by = actor.user.clone();
    match step {
        RequeueStep::Stop(_) => {}
        RequeueStep::Stay(run) => tx.emit(Event::JobRequeued {
            job: id,
            run: Some(run),
            by,
            at: tx.now,
        }),
        RequeueStep::Return => tx.emit(Event::JobRequeued {
            job: id,
            run: None,
            by,
            at: tx.now,
        }),
    }
    if hold {
        hold_job(tx, actor, id);
    }
    match step {
        RequeueStep::Stop(run) => stop(tx, run, StopCause::Requeued, &actor.user),
        RequeueStep::Stay(_) => {}
        RequeueStep::Return => wait_for(tx, EntryId::Job(id), waits),
    }
}

fn hold_job(tx: &mut Tx, actor: &Actor, id: JobId) {
    let Some(job) = tx.job(id) else {
        return;
    };
    let mark = mark(tx, actor, &job.spec);
    if job.holds.iter().all(|held| held.owner != mark.owner) {
        tx.emit(Event::JobHeld { job: id, mark });
    }
}

fn hold_array(tx: &mut Tx, actor: &Actor, id: JobId) {
    let Some(array) = tx.array(id) else {
        return;
    };
    let mark = mark(tx, actor, &array.spec);
    let apart = array.all_apart();
    if array.holds.iter().all(|held| held.owner != mark.owner) {
        tx.emit(Event::ArrayHeld {
            array: id,
            mark: mark.clone(),
        });
    }
    hold_tasks(tx, id, &apart, mark);
}

/// Holds requeued tasks that are pending again.
fn hold_returned(tx: &mut Tx, actor: &Actor, id: JobId, positions: &RangeSet) {
    let Some(array) = tx.array(id) else {
        return;
    };
    let mark = mark(tx, actor, &array.spec);
    let positions = intersection(positions, &array.pending);
    let has_room = array.has_room_apart();
    match has_room {
        true => hold_tasks(tx, id, &positions, mark),
        false => positions.iter().for_each(|position| {
            let task = split(tx, id, position);
            hold_job(tx, actor, task);
        }),
    }
}

fn mark(tx: &Tx, actor: &Actor, spec: &JobSpec) -> HoldMark {
    HoldMark {
        owner: mark_owner(actor, &spec.user.name),
        reason: "requeued and held".into(),
        since: tx.now,
    }
}

fn wait_for(tx: &mut Tx, entry: EntryId, waits: Option<Box<OpenDependency>>) {
    if waits.is_some() {
        tx.emit(Event::WaitsChanged {
            entry,
            waits,
            at: tx.now,
        });
        dependency::settle::cancel_hopeless(tx, entry);
    }
}

/// The conditions that a finished job waits for again.
fn waits_again(
    tx: &Tx,
    id: JobId,
    step: RequeueStep,
) -> Result<Option<Box<OpenDependency>>, Refusal> {
    let Some(job) = tx.job(id).filter(|_| step == RequeueStep::Return) else {
        return Ok(None);
    };
    let asker = DependentJob {
        id,
        spec: &job.spec,
        task: job.task,
    };
    dependency::resolve::resolve_again(tx, EntryId::Job(id), asker, job.attempts > 0)
}

/// The same for tasks that never had a record of their own; they share the conditions of the pending tasks.
fn waits_of_tasks(tx: &Tx, id: JobId) -> Result<Option<Box<OpenDependency>>, Refusal> {
    let Some(array) = tx.array(id) else {
        return Ok(None);
    };
    if !array.pending.is_empty() {
        return Ok(array.waits.clone());
    }
    dependency::resolve::resolve_again(
        tx,
        EntryId::Array(id),
        DependentJob {
            id,
            spec: &array.spec,
            task: None,
        },
        false,
    )
}

/// The array and position of a task that was cancelled with others.
fn position_of(
    tx: &Tx,
    actor: &Actor,
    target: &Target,
) -> Result<Option<(JobId, RangeSet)>, Refusal> {
    let array = |id: JobId| tx.array(id);
    let place = match target {
        Target::Job(id) => tx
            .state
            .array_of(*id)
            .map(|(array, position)| (array, RangeSet::from_iter([position]))),
        Target::Task { array: id, index } => array(*id)
            .and_then(|array| Some((array, RangeSet::from_iter([array.tasks.position(*index)?])))),
        Target::Part { .. } => None,
        Target::Tasks { array: id, indices } => {
            array(*id).map(|array| (array, array.tasks.positions_of(indices)))
        }
    };
    let Some((array, positions)) = place else {
        return Ok(None);
    };
    find(tx.state, actor, &Target::Job(array.id))?;
    Ok(Some((array.id, positions)))
}

/// A job that has left the memory cannot be requeued.
fn what_is_left(tx: &Tx, target: &Target, refusal: Refusal) -> Refusal {
    let of_known_array = matches!(target, Target::Task { array, .. } | Target::Tasks { array, .. } if tx.state.arrays.contains(*array));
    if refusal.code != RefusalCode::NotFound || of_known_array {
        return refusal;
    }
    let age = tx.state.config.min_job_age_secs;
    let text = format!(
        "{} A job can be requeued for {age} s after its end; after that, submit it again with gsub.",
        refusal.text
    );
    Refusal { text, ..refusal }
}
