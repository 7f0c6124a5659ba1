//! Changing a job's request: what its owner may, what only an operator may.

use super::command::{Actor, Refusal, RefusalCode, Reply, Target};
use super::dependency::{Asker, Dependent, Waits, cancel_hopeless, closes_circle, resolve};
use super::event::{Event, JobChange};
use super::handle::Tx;
use super::state::TaskOf;
use super::submit::{MAX_TEXT_BYTES, may_use, partition_or_refusal};
use super::targets::{Found, conflict, find, own_tasks, shown, split};
use gmodel::{JobId, JobSpec, JobState};
use std::sync::Arc;

pub(super) fn handle(
    tx: &mut Tx,
    actor: &Actor,
    target: Target,
    change: JobChange,
) -> Result<Reply, Refusal> {
    let found = find(tx.state, actor, target)?;
    let (spec, old_limit, old_nice, state) = match found {
        Found::Job(id) => {
            let job = tx.state.jobs.get(id).expect("found");
            (&job.spec, job.limit_secs, job.nice, job.state)
        }
        Found::Array(id) | Found::Untouched { array: id, .. } => {
            let array = tx.state.arrays.get(id).expect("found");
            (&array.spec, array.limit_secs, array.nice, JobState::Pending)
        }
        Found::Over => return Err(conflict(format!("job {} is over", shown(target)))),
    };
    if state.is_final() || state == JobState::Completing {
        let text = format!("job {} is {state}; nothing of it can change any more.", shown(target));
        return Err(conflict(text));
    }
    if state != JobState::Pending
        && (change.partition.is_some() || change.eligible.is_some() || change.dependency.is_some())
    {
        let text = format!(
            "job {} is running: its partition, begin time and dependency can only change while it is pending.",
            shown(target)
        );
        return Err(conflict(text));
    }
    let partition = partition_or_refusal(
        &tx.state.config,
        change.partition.as_deref().unwrap_or(&spec.partition),
    )?;
    let texts = [&change.name, &change.comment, &change.account, &change.qos];
    if texts.into_iter().flatten().any(|text| text.len() > MAX_TEXT_BYTES || text.contains(['\0', '\n'])) {
        let text = format!("names and comments have one line of at most {MAX_TEXT_BYTES} bytes.");
        return Err(Refusal::new(RefusalCode::Invalid, text));
    }
    if !actor.operator {
        if change.partition.is_some() || change.account.is_some() {
            let account = change.account.as_ref().unwrap_or(&spec.account);
            may_use(partition, &actor.user, account)?;
        }
        let denied = |text: String| Err(Refusal::new(RefusalCode::Denied, text));
        if let Some(limit) = change.limit_secs {
            let longer = limit.is_none_or(|new| old_limit.is_some_and(|old| new > old));
            if longer && state == JobState::Running {
                return denied(format!(
                    "a running job's time limit can only be lowered by its owner; job {} has {}. \
                     Ask an operator for more.",
                    shown(target),
                    old_limit.map_or("no limit".into(), |s| format!("{s} s"))
                ));
            }
            if let Some(most) = partition.max_time_secs
                && limit.is_none_or(|new| new > most)
            {
                return denied(format!(
                    "partition {:?} allows at most {} s.",
                    partition.name, most
                ));
            }
        }
        if change.nice.is_some_and(|new| new < old_nice) {
            return denied("only operators may lower a job's nice value.".into());
        }
    }
    if change.max_running.is_some() && !matches!(found, Found::Array(_)) {
        return Err(Refusal::new(
            RefusalCode::Invalid,
            "ArrayTaskThrottle is for a whole array: name it by its id alone.",
        ));
    }
    let new_waits = depend_anew(tx, found, &change)?;
    let respecified = match found {
        Found::Job(id) => vec![id],
        Found::Untouched { array, position } => vec![JobId(array.0 + u64::from(position))],
        Found::Array(array) => own_tasks(tx.state, array).into_iter().chain([array]).collect(),
        Found::Over => Vec::new(),
    };
    match found {
        Found::Job(job) => tx.emit(Event::JobUpdated { job, change }),
        Found::Untouched { array, position } => {
            let job = split(tx, array, position);
            tx.emit(Event::JobUpdated { job, change });
        }
        Found::Array(array) => {
            tx.emit(Event::ArrayUpdated { array, change: change.clone() });
            for job in own_tasks(tx.state, array) {
                let change = task_change(tx, actor, job, &change);
                if change != JobChange::default() {
                    tx.emit(Event::JobUpdated { job, change });
                }
            }
        }
        Found::Over => {}
    }
    for id in respecified {
        tx.state.respecified.insert(id, tx.state.seq);
    }
    for (who, waits) in new_waits {
        let is_there = match who {
            Dependent::Job(id) => tx.state.jobs.contains(id),
            Dependent::Array(id) => tx.state.arrays.get(id).is_some_and(|array| !array.pending.is_empty()),
        };
        if is_there {
            tx.emit(Event::WaitsChanged { who, waits, at: tx.now });
            cancel_hopeless(tx, who);
        }
    }
    Ok(Reply::Done)
}

type NewWaits = Vec<(Dependent, Option<Box<Waits>>)>;

/// What each of the records meant waits for by a new dependency: nothing yet, if the change has none.
fn depend_anew(tx: &Tx, found: Found, change: &JobChange) -> Result<NewWaits, Refusal> {
    let Some(new) = &change.dependency else { return Ok(Vec::new()) };
    let state = &*tx.state;
    let mut records: Vec<(Dependent, JobId, Arc<JobSpec>, Option<TaskOf>)> = Vec::new();
    let own = |id: JobId| {
        let job = state.jobs.get(id).filter(|job| job.state == JobState::Pending)?;
        Some((Dependent::Job(id), id, job.spec.clone(), job.task))
    };
    match found {
        Found::Job(id) => records.extend(own(id)),
        Found::Untouched { array, position } => {
            let array = state.arrays.get(array).expect("found");
            let id = array.task_id(position);
            let index = array.tasks.nth(position).unwrap_or_default();
            let task = TaskOf { array: array.id, position, index };
            records.push((Dependent::Job(id), id, array.spec.clone(), Some(task)));
        }
        Found::Array(id) => {
            let array = state.arrays.get(id).expect("found");
            records.push((Dependent::Array(id), id, array.spec.clone(), None));
            records.extend(own_tasks(state, id).into_iter().filter_map(own));
        }
        Found::Over => {}
    }
    let mut all = Vec::with_capacity(records.len());
    for (who, id, spec, task) in records {
        let waits = match new {
            None => None,
            Some(dependency) => {
                resolve(state, &tx.past, tx.now, dependency, Asker { id, spec: &spec, task })?
            }
        };
        if let (Some(text), true) = (new, waits.as_deref().is_some_and(|waits| closes_circle(state, who, waits))) {
            let text = format!("--dependency {text}: in the end that waits for job {id} itself, so neither could ever start.");
            return Err(Refusal::new(RefusalCode::Invalid, text));
        }
        all.push((who, waits));
    }
    Ok(all)
}

/// What of an array's change goes to a task with a record of its own: nothing once it is over; to a
/// running one neither place nor time, and a longer limit only from an operator.
fn task_change(tx: &Tx, actor: &Actor, id: JobId, change: &JobChange) -> JobChange {
    let mut change = JobChange { max_running: None, ..change.clone() };
    match tx.state.jobs.get(id) {
        Some(job) if job.state == JobState::Pending => {}
        Some(job) if job.state == JobState::Running => {
            change.partition = None;
            change.eligible = None;
            change.dependency = None;
            let longer = |new: Option<u32>| {
                new.is_none_or(|new| job.limit_secs.is_some_and(|old| new > old))
            };
            if !actor.operator && change.limit_secs.is_some_and(longer) {
                change.limit_secs = None;
            }
        }
        _ => return JobChange::default(),
    }
    change
}
