//! From what a user names to the record it means: a job, a task, or a whole array.

use super::command::{Actor, Refusal, Reply, Target, TargetResult};
use super::event::Event;
use super::handle::Tx;
use super::state::State;
use gmodel::{JobId, JobSpec};

/// What a target stands for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// A record in `jobs`.
    Job(JobId),
    /// An array as a whole.
    Array(JobId),
    /// A task that is still like its array.
    Untouched { array: JobId, position: u32 },
    /// A task cancelled together with others: it has no record, and is over.
    Over,
}

/// Tasks that one command gives records of their own, at most: each is about a KiB, and all of them are one commit.
const MAX_SPLIT: usize = 10_000;

/// Not more tasks of their arrays than that are to be told from the rest one by one.
///
/// # Errors
/// They are more: nothing is done.
pub(super) fn few_are_split(state: &State, targets: &[Target], verb: &str, is_split: impl Fn(Found) -> bool) -> Result<(), Refusal> {
    if targets.len() <= MAX_SPLIT {
        return Ok(());
    }
    let split: Vec<&Target> = targets.iter().filter(|target| locate(state, **target).is_ok_and(&is_split)).collect();
    let array = match split.first() {
        Some(Target::Task { array, .. }) => Some(*array),
        Some(Target::Job(id)) => state.array_of(*id).map(|(array, _)| array.id),
        None => None,
    };
    match array.filter(|_| split.len() > MAX_SPLIT) {
        None => Ok(()),
        Some(array) => Err(Refusal::limit(format!(
            "{} tasks would be {verb} one by one, and {MAX_SPLIT} is the most of one request. Name the whole array ({array}), or fewer at a time.",
            split.len()
        ))),
    }
}

/// Finds a target that the actor may change.
pub(super) fn find(state: &State, actor: &Actor, target: Target) -> Result<Found, Refusal> {
    let found = locate(state, target)?;
    let owner = match found {
        Found::Job(id) => state.jobs.get(id).map(|job| &job.spec),
        Found::Array(id) | Found::Untouched { array: id, .. } => {
            state.arrays.get(id).map(|array| &array.spec)
        }
        Found::Over => None,
    };
    match owner {
        Some(spec) if !may_change(state, actor, spec) => Err(Refusal::denied(format!(
            "job {} belongs to {}; you are {}. Ask them or an operator.",
            shown(target),
            spec.user.name,
            actor.user
        ))),
        _ => Ok(found),
    }
}

/// Its owner, operators, and coordinators of its account.
fn may_change(state: &State, actor: &Actor, spec: &JobSpec) -> bool {
    actor.operator || actor.user == spec.user.name || state.policy.coordinates(&actor.user, &spec.account)
}

fn locate(state: &State, target: Target) -> Result<Found, Refusal> {
    let unknown = || {
        let text = format!(
            "no job {} in the queue. If it was there, it is over: see `gacct -j {}`.",
            shown(target),
            shown(target)
        );
        Refusal::not_found(text)
    };
    match target {
        Target::Job(id) if state.arrays.contains(id) => Ok(Found::Array(id)),
        Target::Job(id) if state.jobs.contains(id) => Ok(Found::Job(id)),
        Target::Job(id) => {
            let (array, position) = state.array_of(id).ok_or_else(unknown)?;
            untouched(array, position).ok_or_else(unknown)
        }
        Target::Task { array: id, index } => {
            let array = state.arrays.get(id).ok_or_else(unknown)?;
            let Some(position) = array.tasks.position(index) else {
                let text = format!(
                    "job {id} has no array task {index}; its tasks are {}.",
                    array.tasks.text_of(&gmodel::array_spec::RangeSet::first_n(array.len()))
                );
                return Err(Refusal::not_found(text));
            };
            let task = array.task_id(position);
            if state.jobs.contains(task) {
                return Ok(Found::Job(task));
            }
            untouched(array, position).ok_or_else(unknown)
        }
    }
}

fn untouched(array: &super::state::Array, position: u32) -> Option<Found> {
    if array.pending.contains(position) {
        Some(Found::Untouched { array: array.id, position })
    } else if array.cancelled.contains(position) {
        Some(Found::Over)
    } else {
        None
    }
}

/// Gives an untouched task a record of its own.
pub(super) fn split(tx: &mut Tx, array: JobId, position: u32) -> JobId {
    tx.emit(Event::TaskSplit { array, position });
    JobId(array.0 + u64::from(position))
}

/// All records of an array's tasks.
pub(super) fn own_tasks(state: &State, array: JobId) -> Vec<JobId> {
    let len = state.arrays.get(array).map_or(0, |array| u64::from(array.len()));
    let tasks = state.jobs.range(array.0, array.0 + len);
    tasks.filter(|(_, job)| job.task.is_some_and(|t| t.array == array)).map(|(id, _)| id).collect()
}

/// Runs `act` for each target and collects what was refused.
pub(super) fn each(
    tx: &mut Tx,
    targets: &[Target],
    mut act: impl FnMut(&mut Tx, Target) -> Result<(), Refusal>,
) -> Reply {
    let results = targets
        .iter()
        .map(|&target| TargetResult { target, refusal: act(tx, target).err() })
        .collect();
    Reply::Each { results }
}

/// A target as a user writes it.
pub(super) fn shown(target: Target) -> String {
    match target {
        Target::Job(id) => id.to_string(),
        Target::Task { array, index } => format!("{array}_{index}"),
    }
}
