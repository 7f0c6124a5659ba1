//! From what a user names to the record it means: a job, a task, or a whole array.

use crate::ctl::command::{Actor, Refusal, Reply, Target, TargetResult};
use crate::ctl::event::Event;
use crate::ctl::state::{Array, State, intersection, take_out};
use crate::ctl::token::cap;
use crate::ctl::tx::Tx;
use gmodel::array_spec::RangeSet;
use gmodel::{JobId, JobSpec, RefusalKind, RunId};

/// What a target stands for now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TargetRecord {
    /// A record in `jobs`.
    Job(JobId),
    /// An array as a whole.
    Array(JobId),
    /// Tasks without records, still like their array.
    Untouched { array: JobId, positions: RangeSet },
    /// Tasks cancelled together with others: no records, and over.
    Over,
}

/// Most tasks that one command splits from their array: each is about a KiB, and all are one commit.
const MAX_SPLIT: usize = 10_000;

/// Checks that the targets split no more tasks from their arrays than that.
///
/// # Errors
/// More than that: nothing is done.
pub(crate) fn few_are_split(
    state: &State,
    targets: &[Target],
    verb: &str,
    is_split: impl Fn(&Target, &TargetRecord) -> bool,
) -> Result<(), Refusal> {
    let named = |target: &Target| {
        if let Target::Tasks { indices, .. } = target {
            indices.len() as usize
        } else {
            1
        }
    };
    if targets.iter().map(named).sum::<usize>() <= MAX_SPLIT {
        return Ok(());
    }
    let (mut count, mut first) = (0, None);
    for target in targets.iter().flat_map(|target| of_one_kind(state, target)) {
        let Some(found) = locate(state, &target)
            .ok()
            .filter(|found| is_split(&target, found))
        else {
            continue;
        };
        count += if let TargetRecord::Untouched { positions, .. } = &found {
            positions.len() as usize
        } else {
            named(&target)
        };
        first = first.or(match target {
            Target::Task { array, .. } | Target::Tasks { array, .. } => Some(array),
            Target::Job(id) => state.array_of(id).map(|(array, _)| array.id),
            Target::Part { .. } => None,
        });
    }
    match first.filter(|_| count > MAX_SPLIT) {
        None => Ok(()),
        Some(array) => Err(Refusal::limit(format!(
            "{count} tasks would be {verb} one by one, and {MAX_SPLIT} is the most of one request. Name the whole array ({array}), or fewer at a time.",
        ))),
    }
}

/// Finds a target that the actor may change.
pub(crate) fn find(state: &State, actor: &Actor, target: &Target) -> Result<TargetRecord, Refusal> {
    let found = locate(state, target)?;
    let owner = match &found {
        TargetRecord::Job(id) => state.job(*id).map(|job| &job.spec),
        TargetRecord::Array(id) | TargetRecord::Untouched { array: id, .. } => {
            state.array(*id).map(|array| &array.spec)
        }
        TargetRecord::Over => None,
    };
    match owner {
        Some(spec) if !may_change(state, actor, spec) => {
            let uids = (spec.user.name == actor.user).then(|| {
                (
                    format!(" of uid {}", spec.user.uid),
                    format!(" of uid {}", actor.uid),
                )
            });
            let (theirs, yours) = uids.unwrap_or_default();
            Err(Refusal::denied(format!(
                "job {} belongs to {}{theirs}; you are {}{yours}. Ask them or an operator.",
                shown(target),
                spec.user.name,
                actor.user
            )))
        }
        Some(spec) => {
            cap::check_reach(state, actor, spec, &format!("job {}", shown(target)))?;
            Ok(found)
        }
        None => Ok(found),
    }
}

/// Its owner, operators, and coordinators of its account.
fn may_change(state: &State, actor: &Actor, spec: &JobSpec) -> bool {
    actor.operator
        || spec.user.is(&actor.user, actor.uid)
        || state.policy.coordinates(&actor.user, &spec.account)
}

fn locate(state: &State, target: &Target) -> Result<TargetRecord, Refusal> {
    let unknown = || {
        let text = format!(
            "no job {} in the queue. If it was there, it is over: see `gacct -j {}`.",
            shown(target),
            shown(target)
        );
        Refusal::not_found(text)
            .about(RefusalKind::Job)
            .naming(shown(target))
    };
    match *target {
        Target::Job(id) if state.arrays.contains(id) => Ok(TargetRecord::Array(id)),
        Target::Job(id) if state.jobs.contains(id) => Ok(TargetRecord::Job(id)),
        Target::Job(id) => {
            let (array, position) = state.array_of(id).ok_or_else(unknown)?;
            untouched(array, RangeSet::from_iter([position])).ok_or_else(unknown)
        }
        Target::Part { leader, offset } => {
            let id = JobId(leader.0.saturating_add(u64::from(offset)));
            let part = state.job(id).and_then(|job| job.spec.part);
            part.filter(|part| part.leader == leader)
                .map(|_| TargetRecord::Job(id))
                .ok_or_else(unknown)
        }
        Target::Tasks {
            array: id,
            ref indices,
        } => {
            let array = state.array(id).ok_or_else(unknown)?;
            let positions = array.tasks.positions_of(indices);
            if positions.is_empty() {
                return Err(no_task(array, &indices.to_string()));
            }
            untouched(array, positions).ok_or_else(unknown)
        }
        Target::Task { array: id, index } => {
            let array = state.array(id).ok_or_else(unknown)?;
            let Some(position) = array.tasks.position(index) else {
                return Err(no_task(array, &index.to_string()));
            };
            let task = array.task_id(position);
            if state.jobs.contains(task) {
                return Ok(TargetRecord::Job(task));
            }
            untouched(array, RangeSet::from_iter([position])).ok_or_else(unknown)
        }
    }
}

fn no_task(array: &Array, indices: &str) -> Refusal {
    let all = array.tasks.text_of(&RangeSet::first_n(array.len()));
    Refusal::not_found(format!(
        "job {} has no array task {indices}; its tasks are {all}.",
        array.id
    ))
    .about(RefusalKind::Job)
}

/// Tasks by index, all of one kind.
fn untouched(array: &Array, positions: RangeSet) -> Option<TargetRecord> {
    let first = positions.first()?;
    if array.pending.contains(first) {
        Some(TargetRecord::Untouched {
            array: array.id,
            positions,
        })
    } else {
        array
            .cancelled
            .contains(first)
            .then_some(TargetRecord::Over)
    }
}

/// Several tasks as targets of one kind each: with records one by one, pending without records, cancelled
/// without records, forgotten, and unknown.
fn of_one_kind(state: &State, target: &Target) -> Vec<Target> {
    let Target::Tasks { array: id, indices } = target else {
        return vec![target.clone()];
    };
    let Some(array) = state.array(*id) else {
        return vec![target.clone()];
    };
    let mut left = array.tasks.positions_of(indices);
    let unknown = left.len() < u64::from(indices.len());
    let mut parts = Vec::new();
    for task in own_tasks(state, *id) {
        let position = (task.0 - id.0) as u32;
        if left.remove(position) {
            parts.extend(
                array
                    .tasks
                    .nth(position)
                    .map(|index| Target::Task { array: *id, index }),
            );
        }
    }
    let mut part = |positions: &RangeSet| {
        parts.extend(array.tasks.at(positions).map(|indices| Target::Tasks {
            array: *id,
            indices,
        }))
    };
    for alike in [&array.pending, &array.cancelled] {
        let both = intersection(&left, alike);
        take_out(&mut left, &both);
        part(&both);
    }
    part(&left);
    if unknown {
        parts.extend(indices.without(&array.tasks).map(|indices| Target::Tasks {
            array: *id,
            indices,
        }));
    }
    parts
}

/// Tasks named as a set are held as one, as long as their array has room for it.
pub(crate) fn is_one_task(target: &Target) -> bool {
    !matches!(target, Target::Tasks { .. })
}

/// Gives an untouched task a record of its own.
pub(crate) fn split(tx: &mut Tx, array: JobId, position: u32) -> JobId {
    tx.emit(Event::TaskSplit { array, position });
    JobId(array.0 + u64::from(position))
}

/// The jobs with records that a target names.
pub(crate) fn recorded_jobs(state: &State, found: TargetRecord) -> Vec<JobId> {
    match found {
        TargetRecord::Job(id) => vec![id],
        TargetRecord::Array(id) => own_tasks(state, id),
        TargetRecord::Untouched { .. } | TargetRecord::Over => Vec::new(),
    }
}

/// The runs of jobs that have not ended.
pub(crate) fn live_runs(state: &State, jobs: &[JobId]) -> Vec<RunId> {
    let live = jobs.iter().filter_map(|id| state.job(*id)?.live_run());
    let is_open = |run: &RunId| {
        let run = state.run(*run);
        run.is_some_and(|run| run.outcome.is_none())
    };
    live.filter(is_open).collect()
}

/// All records of an array's tasks.
pub(crate) fn own_tasks(state: &State, array: JobId) -> Vec<JobId> {
    let len = state.array(array).map_or(0, |array| u64::from(array.len()));
    let tasks = state.jobs.range(array.0, array.0 + len);
    tasks
        .filter(|(_, job)| job.task.is_some_and(|t| t.array == array))
        .map(|(id, _)| id)
        .collect()
}

/// Runs `act` for each target and collects what was refused.
pub(crate) fn each(
    tx: &mut Tx,
    targets: &[Target],
    mut act: impl FnMut(&mut Tx, &Target) -> Result<(), Refusal>,
) -> Reply {
    let mut results = Vec::with_capacity(targets.len());
    for target in targets {
        for target in of_one_kind(tx.state, target) {
            let refusal = act(tx, &target).err();
            results.push(TargetResult { target, refusal });
        }
    }
    Reply::Each { results }
}

/// A target as a user writes it.
pub(crate) fn shown(target: &Target) -> String {
    match target {
        Target::Job(id) => id.to_string(),
        Target::Part { leader, offset } => format!("{leader}+{offset}"),
        Target::Task { array, index } => format!("{array}_{index}"),
        Target::Tasks { array, indices } => format!("{array}_[{indices}]"),
    }
}
