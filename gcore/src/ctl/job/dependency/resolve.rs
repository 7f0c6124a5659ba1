//! A dependency as it is submitted: which job decides each condition, and whether it is met.

use crate::ctl::command::Refusal;
use crate::ctl::job::dependency::fate::{fate, tasks_of, words};
use crate::ctl::job::dependency::readiness::of_task;
use crate::ctl::state::{EntryId, ForgottenJob, Job, OpenDependency, OpenTerm, State, TaskOf};
use crate::ctl::tx::Tx;
use gmodel::array_spec::ArraySpec;
use gmodel::dependency::{Dependency, DependencyKind, DependencyTerm, JobRef};
use gmodel::{JobId, JobSpec, RefusalKind, Timestamp};
use std::collections::BTreeSet;

/// The dependent job, as far as conditions depend on it.
#[derive(Clone, Copy)]
pub(crate) struct DependentJob<'a> {
    /// For a singleton only jobs with lower ids count.
    pub id: JobId,
    pub spec: &'a JobSpec,
    /// A task of an array; `None` is a job or a whole array.
    pub task: Option<TaskOf>,
}

impl DependentJob<'_> {
    fn tasks(&self) -> Option<&ArraySpec> {
        self.spec.array.as_ref().filter(|_| self.task.is_none())
    }
}

/// The conditions that are open now; `None` if the dependency is met.
///
/// # Errors
/// A job it names never existed, or is of the wrong kind for the condition.
pub(crate) fn resolve(
    state: &State,
    past: &[ForgottenJob],
    now: Timestamp,
    dependency: &Dependency,
    asker: DependentJob,
) -> Result<Option<Box<OpenDependency>>, Refusal> {
    let mut waits = OpenDependency {
        any: dependency.any,
        on: Vec::with_capacity(dependency.conditions.len()),
    };
    let mut met = 0;
    for condition in &dependency.conditions {
        let Some(mut wait) = new_wait(state, past, condition, asker)? else {
            met += 1;
            continue;
        };
        if is_met(state, past, now, &mut wait, asker, None) {
            met += 1;
        } else {
            waits.on.push(wait);
        }
    }
    let enough = waits.on.is_empty() || (waits.any && met > 0);
    Ok((!enough).then(|| Box::new(waits)))
}

/// The open conditions of a finished job that is requeued: all of its dependency if it never ran, since met
/// conditions were forgotten; else only a singleton's, while another job runs.
///
/// # Errors
/// As [`resolve`], and if the job would wait for itself.
pub(crate) fn resolve_again(
    tx: &Tx,
    entry: EntryId,
    asker: DependentJob,
    ran: bool,
) -> Result<Option<Box<OpenDependency>>, Refusal> {
    let Some(mut dependency) = asker.spec.dependency.clone() else {
        return Ok(None);
    };
    let at_work = at_work(tx.state, asker)
        .filter(|_| !dependency.any && dependency.conditions.contains(&DependencyTerm::Singleton));
    if ran {
        dependency
            .conditions
            .retain(|condition| *condition == DependencyTerm::Singleton);
    }
    let waits = resolve(tx.state, &tx.past, tx.now, &dependency, asker)?;
    let waits = waits.or_else(|| {
        Some(Box::new(OpenDependency {
            any: false,
            on: vec![OpenTerm::new(DependencyTerm::Singleton, at_work?, false)],
        }))
    });
    match waits {
        Some(waits) if closes_circle(tx.state, entry, &waits) => {
            let text = format!(
                "--dependency {dependency}: what job {} would wait for waits for it.",
                entry.id()
            );
            Err(Refusal::conflict(text).about(RefusalKind::Dependency))
        }
        waits => Ok(waits),
    }
}

/// A live job of the same name and user, submitted earlier or later.
pub(crate) fn at_work(state: &State, asker: DependentJob) -> Option<JobId> {
    let array = |task: Option<TaskOf>| task.map(|task| task.array);
    let same =
        |job: &Job| job.spec.user.uid == asker.spec.user.uid && job.spec.name == asker.spec.name;
    let apart = |job: &Job| asker.task.is_none() || array(job.task) != array(asker.task);
    let other = state
        .jobs
        .values()
        .find(|job| job.live.is_some() && job.id != asker.id && same(job) && apart(job));
    other.map(|job| job.id)
}

pub(crate) fn new_wait(
    state: &State,
    past: &[ForgottenJob],
    condition: &DependencyTerm,
    asker: DependentJob,
) -> Result<Option<OpenTerm>, Refusal> {
    let (of, whole) = match condition {
        DependencyTerm::Singleton => match earlier(state, asker) {
            Some(found) => found,
            None => return Ok(None),
        },
        DependencyTerm::On {
            kind: DependencyKind::AfterCorr,
            job: JobRef { id, index: None },
            ..
        } if asker.task.is_some() => {
            let index = asker.task.map(|task| task.index);
            let whole = locate(
                state,
                past,
                JobRef {
                    id: *id,
                    index: None,
                },
            )?;
            if whole.1 {
                locate(state, past, JobRef { id: *id, index })?
            } else {
                whole
            }
        }
        DependencyTerm::On { kind, job, .. } => {
            let place = locate(state, past, *job)?;
            if *kind == DependencyKind::AfterCorr && place.1 {
                all_have_partners(state, past, place.0, asker)?;
            }
            place
        }
    };
    Ok(Some(OpenTerm::new(condition.clone(), of, whole)))
}

/// The record that decides, and whether it is a whole array.
pub(crate) fn locate(
    state: &State,
    past: &[ForgottenJob],
    job: JobRef,
) -> Result<(JobId, bool), Refusal> {
    let JobRef { id, index } = job;
    let not_found = |text: String| Err(Refusal::not_found(text).about(RefusalKind::Dependency));
    if id.0 >= state.next_job {
        return not_found(format!(
            "--dependency: there has never been a job {id}; the next will be {}.",
            state.next_job
        ));
    }
    let unknown = || {
        not_found(format!(
            "--dependency: job {job} is neither in the queue nor in the records of finished jobs."
        ))
    };
    let place = match (index, tasks_of(state, past, id)) {
        (None, Some(_)) => return Ok((id, true)),
        (Some(index), Some(tasks)) => match tasks.position(index) {
            Some(position) => JobId(id.0 + u64::from(position)),
            None => {
                return not_found(format!(
                    "--dependency: array {id} has no task {index}; it has {tasks}."
                ));
            }
        },
        (Some(index), None) if fate(state, past, id, false).is_some() => {
            return not_found(format!(
                "--dependency: job {id} is no array; leave out _{index}."
            ));
        }
        (_, None) => id,
    };
    if fate(state, past, place, false).is_none() {
        unknown()
    } else {
        Ok((place, false))
    }
}

pub(crate) fn all_have_partners(
    state: &State,
    past: &[ForgottenJob],
    of: JobId,
    asker: DependentJob,
) -> Result<(), Refusal> {
    let (Some(theirs), Some(mine)) = (tasks_of(state, past, of), asker.tasks()) else {
        return Ok(());
    };
    let missing = mine.iter().find(|index| theirs.position(*index).is_none());
    match missing {
        Some(index) => Err(Refusal::invalid(format!(
            "--dependency aftercorr:{of}: task {index} has no partner there; array {of} has {theirs}. \
             Submit the same indices, or use afterok:{of} to wait for all of it."
        ))
        .about(RefusalKind::Dependency)),
        None => Ok(()),
    }
}

/// The last active job of the same name and user that was submitted earlier: in a chain each waits for the one
/// before it.
pub(crate) fn earlier(state: &State, asker: DependentJob) -> Option<(JobId, bool)> {
    let own_array = asker.task.map(|task| task.array);
    let same =
        |spec: &JobSpec| spec.user.uid == asker.spec.user.uid && spec.name == asker.spec.name;
    // From the newest on.
    let is_sought = |job: &Job| {
        let apart = own_array.is_none() || job.task.map(|task| task.array) != own_array;
        !job.state.is_final() && apart && same(&job.spec)
    };
    let job = state
        .jobs
        .range(0, asker.id.0)
        .rev()
        .find(|(_, job)| is_sought(job));
    let mut arrays = state.arrays.range(0, asker.id.0).rev();
    let array =
        arrays.find(|(id, array)| Some(*id) != own_array && !array.is_over() && same(&array.spec));
    let (jobs, arrays) = (
        job.map(|(id, _)| (id, false)),
        array.map(|(id, _)| (id, true)),
    );
    jobs.max(arrays)
}

/// Checks a condition again and notes in it what is known by now. `changed`: only this job changed.
pub(crate) fn is_met(
    state: &State,
    past: &[ForgottenJob],
    now: Timestamp,
    wait: &mut OpenTerm,
    asker: DependentJob,
    changed: Option<JobId>,
) -> bool {
    if wait.never.is_some() {
        return false;
    }
    if let Some(until) = wait.until {
        return until <= now;
    }
    if let (true, Some(mine)) = (wait.is_by_task(), asker.tasks()) {
        match_tasks(state, past, wait, mine, changed);
        return wait.met.len() == u64::from(mine.len());
    }
    let Some(fate) = fate(state, past, wait.of, wait.whole) else {
        return false;
    };
    match wait.condition() {
        DependencyTerm::Singleton => {
            let next = fate.over.then(|| earlier(state, asker));
            if let Some(Some((of, whole))) = next {
                (wait.of, wait.whole) = (of, whole);
            }
            next == Some(None)
        }
        DependencyTerm::On {
            kind: DependencyKind::After,
            delay_mins,
            ..
        } => fate.began.is_some_and(|began| {
            let until = began.plus_secs(i64::from(delay_mins) * 60);
            wait.until = (until > now).then_some(until);
            wait.until.is_none()
        }),
        DependencyTerm::On {
            kind: DependencyKind::AfterAny,
            ..
        } => fate.over,
        DependencyTerm::On {
            kind: DependencyKind::AfterOk | DependencyKind::AfterCorr,
            ..
        } => {
            wait.never = fate.badly.then(|| words(state, past, wait.of, wait.whole));
            fate.well
        }
        DependencyTerm::On {
            kind: DependencyKind::AfterNotOk,
            ..
        } => {
            wait.never = fate.well.then(|| words(state, past, wait.of, wait.whole));
            fate.over && fate.badly
        }
    }
}

/// Notes which of the array's tasks have a partner that ended, and how.
pub(crate) fn match_tasks(
    state: &State,
    past: &[ForgottenJob],
    wait: &mut OpenTerm,
    mine: &ArraySpec,
    changed: Option<JobId>,
) {
    let Some(theirs) = tasks_of(state, past, wait.of) else {
        return;
    };
    let mut look = |position: u32, partner: JobId| match fate(state, past, partner, false) {
        Some(fate) if fate.well => drop(wait.met.insert(position)),
        Some(fate) if fate.over => drop(wait.failed.insert(position)),
        _ => {}
    };
    let partner = |theirs: u32| JobId(wait.of.0 + u64::from(theirs));
    if let Some(id) = changed {
        let index =
            id.0.checked_sub(wait.of.0)
                .and_then(|at| theirs.nth(u32::try_from(at).ok()?));
        if let Some(position) = index.and_then(|index| mine.position(index)) {
            look(position, id);
        }
        return;
    }
    if state
        .array(wait.of)
        .is_some_and(|array| array.pending.len() == u64::from(array.len()))
    {
        return;
    }
    for (position, index) in mine.iter().enumerate() {
        if let Some(at) = theirs.position(index) {
            look(position as u32, partner(at));
        }
    }
}

/// Whether the dependent would wait, through any number of jobs, for itself.
pub(crate) fn closes_circle(state: &State, entry: EntryId, waits: &OpenDependency) -> bool {
    let mut open: Vec<(JobId, bool)> = waits.on.iter().map(|wait| (wait.of, wait.whole)).collect();
    let mut seen: BTreeSet<(JobId, bool)> = open.iter().copied().collect();
    while let Some((of, whole)) = open.pop() {
        let array = match state.job(of).and_then(|job| job.task) {
            Some(task) => Some(task.array),
            None => state.array_of(of).map(|(array, _)| array.id),
        };
        let is_entry = match entry {
            EntryId::Job(id) => {
                let mine = state
                    .job(id)
                    .and_then(|job| job.task)
                    .map(|task| task.array);
                (of == id && !whole) || (whole && mine == Some(of))
            }
            EntryId::Array(id) => array == Some(id),
        };
        if is_entry {
            return true;
        }
        for wait in waits_of(state, of, whole) {
            if seen.insert((wait.of, wait.whole)) {
                open.push((wait.of, wait.whole));
            }
        }
    }
    false
}

pub(crate) fn waits_of(state: &State, of: JobId, whole: bool) -> Vec<OpenTerm> {
    let all = |waits: Option<Box<OpenDependency>>| waits.map_or(Vec::new(), |waits| waits.on);
    if !whole {
        return match (state.job(of), state.array_of(of)) {
            (Some(job), _) => all(job.waits.clone()),
            (None, Some((array, position))) => all(of_task(state, array, position)),
            (None, None) => Vec::new(),
        };
    }
    let Some(array) = state.array(of) else {
        return Vec::new();
    };
    let tasks = state.jobs.range(of.0, of.0 + u64::from(array.len()));
    let own = tasks.flat_map(|(_, task)| task.waits.iter().flat_map(|waits| waits.on.clone()));
    all(array.waits.clone()).into_iter().chain(own).collect()
}
