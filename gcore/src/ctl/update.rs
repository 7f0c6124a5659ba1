//! Changing a job's request: what its owner may, what only an operator may.

use super::command::{Actor, Refusal, RefusalCode, Reply, Target};
use super::event::{Event, JobChange};
use super::handle::Tx;
use super::submit::partition_or_refusal;
use super::targets::{Found, conflict, find, own_tasks, shown, split};
use gmodel::JobState;

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
        && (change.partition.is_some() || change.eligible.is_some())
    {
        let text = format!(
            "job {} is running: its partition and begin time can only change while it is pending.",
            shown(target)
        );
        return Err(conflict(text));
    }
    let partition = partition_or_refusal(
        &tx.state.config,
        change.partition.as_deref().unwrap_or(&spec.partition),
    )?;
    if !actor.operator {
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
    match found {
        Found::Job(job) => tx.emit(Event::JobUpdated { job, change }),
        Found::Untouched { array, position } => {
            let job = split(tx, array, position);
            tx.emit(Event::JobUpdated { job, change });
        }
        Found::Array(array) => {
            tx.emit(Event::ArrayUpdated { array, change: change.clone() });
            let change = JobChange { max_running: None, ..change };
            if change != JobChange::default() {
                for job in own_tasks(tx.state, array) {
                    let over = tx.state.jobs.get(job).is_none_or(|job| job.state.is_final());
                    if !over {
                        tx.emit(Event::JobUpdated { job, change: change.clone() });
                    }
                }
            }
        }
        Found::Over => {}
    }
    Ok(Reply::Done)
}
