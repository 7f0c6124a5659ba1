//! Dependencies: what a waiting job still waits for, kept with its record and looked at again when the job that
//! decides begins or ends.
//!
//! The conditions are those of sbatch(1). Which jobs wait for which is an index of the state, so an end costs only its
//! dependants. A condition that was met is forgotten, as in Slurm: what is left outlives the jobs it is about.

use super::SYSTEM;
use super::apart::intersection;
use super::command::Refusal;
use super::event::Event;
use super::handle::Tx;
use super::state::{Array, Job, State, TaskOf};
use gmodel::array_spec::{ArraySpec, RangeSet};
use gmodel::dependency::{Dependency, DependencyKind, DependencyTerm, JobRef};
use gmodel::{JobId, JobSpec, JobState, Reason, ReasonCode, RefusalKind, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// What of a dependency is not met. Empty when nothing is: then there is none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waits {
    /// One of them is enough.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub any: bool,
    pub on: Vec<Wait>,
}

/// One condition that is not met.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wait {
    /// As its user wrote it, alone: `afterok:17`.
    pub condition: Dependency,
    /// The job, task or array that decides.
    pub of: JobId,
    /// `of` is an array, and all its tasks count.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub whole: bool,
    /// It is met by itself then: the other has begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// It can never be met any more: how the other ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub never: Option<String>,
    /// Of an array that waits task by task: positions whose partner ended well, and those whose partner did not.
    #[serde(default, skip_serializing_if = "RangeSet::is_empty")]
    pub met: RangeSet,
    #[serde(default, skip_serializing_if = "RangeSet::is_empty")]
    pub failed: RangeSet,
}

/// Who waits: a job (or a task with a record of its own), or the untouched tasks of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dependent {
    Job(JobId),
    Array(JobId),
}

/// A job or array that is over and no longer in memory, as the store knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastJob {
    pub id: JobId,
    /// Of an array: COMPLETED if all its tasks are, else the state of one that is not.
    pub state: JobState,
    /// When it (or its last task) began; if it never did, when it was over.
    pub began: Timestamp,
    /// Of an array: its tasks, and the positions that ended well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tasks: Option<ArraySpec>,
    #[serde(default, skip_serializing_if = "RangeSet::is_empty")]
    pub well: RangeSet,
}

/// Who asks, as far as conditions depend on it.
#[derive(Clone, Copy)]
pub(super) struct Asker<'a> {
    /// Its id: for a singleton only earlier jobs count.
    pub id: JobId,
    pub spec: &'a JobSpec,
    /// A task of an array; `None` is a job or a whole array.
    pub task: Option<TaskOf>,
}

impl Dependent {
    pub fn id(self) -> JobId {
        match self {
            Self::Job(id) | Self::Array(id) => id,
        }
    }
}

impl Asker<'_> {
    fn tasks(&self) -> Option<&ArraySpec> {
        self.spec.array.as_ref().filter(|_| self.task.is_none())
    }
}

impl Wait {
    fn new(condition: DependencyTerm, of: JobId, whole: bool) -> Self {
        let condition = Dependency {
            any: false,
            conditions: vec![condition],
        };
        Self {
            condition,
            of,
            whole,
            until: None,
            never: None,
            met: RangeSet::new(),
            failed: RangeSet::new(),
        }
    }
    fn condition(&self) -> DependencyTerm {
        self.condition
            .conditions
            .first()
            .cloned()
            .unwrap_or(DependencyTerm::Singleton)
    }
    /// `None` for a singleton.
    fn kind(&self) -> Option<DependencyKind> {
        match self.condition() {
            DependencyTerm::Singleton => None,
            DependencyTerm::On { kind, .. } => Some(kind),
        }
    }
    /// It is met for each task of an array by itself.
    fn is_by_task(&self) -> bool {
        self.whole && self.kind() == Some(DependencyKind::AfterCorr)
    }
}

/// What of a dependency is open now; `None` when it is met.
///
/// # Errors
/// A job it names never existed, or is none of what the condition is for.
pub(super) fn resolve(
    state: &State,
    past: &[PastJob],
    now: Timestamp,
    dependency: &Dependency,
    asker: Asker,
) -> Result<Option<Box<Waits>>, Refusal> {
    let mut waits = Waits {
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

/// What a job that was over waits for when it is put back: all of its dependency if it never ran, since what had been met of
/// it went with it; else only until no other runs, where it is a singleton.
///
/// # Errors
/// As [`resolve`], and where it would wait for itself.
pub(super) fn resolve_again(
    tx: &Tx,
    who: Dependent,
    asker: Asker,
    ran: bool,
) -> Result<Option<Box<Waits>>, Refusal> {
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
        Some(Box::new(Waits {
            any: false,
            on: vec![Wait::new(DependencyTerm::Singleton, at_work?, false)],
        }))
    });
    match waits {
        Some(waits) if closes_circle(tx.state, who, &waits) => {
            let text = format!(
                "--dependency {dependency}: what job {} would wait for waits for it.",
                who.id()
            );
            Err(Refusal::conflict(text).about(RefusalKind::Dependency))
        }
        waits => Ok(waits),
    }
}

/// A job of the same name and user that runs, whichever came first.
fn at_work(state: &State, asker: Asker) -> Option<JobId> {
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

fn new_wait(
    state: &State,
    past: &[PastJob],
    condition: &DependencyTerm,
    asker: Asker,
) -> Result<Option<Wait>, Refusal> {
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
    Ok(Some(Wait::new(condition.clone(), of, whole)))
}

/// The record that decides, and whether it is a whole array.
fn locate(state: &State, past: &[PastJob], job: JobRef) -> Result<(JobId, bool), Refusal> {
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

fn tasks_of<'a>(state: &'a State, past: &'a [PastJob], id: JobId) -> Option<&'a ArraySpec> {
    let stored = || {
        past.iter()
            .find(|known| known.id == id)
            .and_then(|known| known.tasks.as_ref())
    };
    state
        .arrays
        .get(id)
        .map(|array| &array.tasks)
        .or_else(stored)
}

fn all_have_partners(
    state: &State,
    past: &[PastJob],
    of: JobId,
    asker: Asker,
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

/// Some active job of the same name and user that was submitted earlier: the last of them, so that in a chain each
/// waits for the one before it.
fn earlier(state: &State, asker: Asker) -> Option<(JobId, bool)> {
    let own_array = asker.task.map(|task| task.array);
    let same =
        |spec: &JobSpec| spec.user.uid == asker.spec.user.uid && spec.name == asker.spec.name;
    // From the newest on: in a chain that is the one before.
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

/// What others want to know of a job.
struct Fate {
    over: bool,
    /// It is over and ended well.
    well: bool,
    /// It ended badly; of an array, some task of it did.
    badly: bool,
    /// When it (of an array: the last of its tasks) began, or was cancelled.
    began: Option<Timestamp>,
}

fn ended(well: bool, began: Timestamp) -> Fate {
    Fate {
        over: true,
        well,
        badly: !well,
        began: Some(began),
    }
}

const PENDING: Fate = Fate {
    over: false,
    well: false,
    badly: false,
    began: None,
};

/// `None` for what neither the state nor the store knows.
fn fate(state: &State, past: &[PastJob], of: JobId, whole: bool) -> Option<Fate> {
    if whole {
        let stored = || {
            past.iter()
                .find(|known| known.id == of && known.tasks.is_some())
        };
        return match state.arrays.get(of) {
            Some(array) => Some(fate_of_array(state, array)),
            None => stored().map(|known| ended(known.state == JobState::Completed, known.began)),
        };
    }
    if let Some(job) = state.jobs.get(of) {
        return Some(fate_of_job(state, job));
    }
    let array = state.array_of(of);
    if let Some((array, position)) = array {
        if array.pending.contains(position) {
            return Some(PENDING);
        }
        if array.cancelled.contains(position) {
            return Some(ended(false, array.ended.unwrap_or(array.submitted)));
        }
    }
    past.iter().find_map(|known| match &known.tasks {
        None => (known.id == of).then(|| ended(known.state == JobState::Completed, known.began)),
        Some(tasks) => {
            let position = u32::try_from(of.0.checked_sub(known.id.0)?).ok()?;
            (position < tasks.len()).then(|| ended(known.well.contains(position), known.began))
        }
    })
}

fn fate_of_job(state: &State, job: &Job) -> Fate {
    match job.state {
        JobState::Pending => PENDING,
        over if over.is_final() => {
            let began = job.started.or(job.ended).unwrap_or(job.submitted);
            ended(over == JobState::Completed, began)
        }
        _ => {
            let run = job.live_run().and_then(|run| state.runs.get(run));
            Fate {
                began: run.and_then(|run| run.started),
                ..PENDING
            }
        }
    }
}

fn fate_of_array(state: &State, array: &Array) -> Fate {
    let over = array.is_over();
    let badly = array.unsuccessful > 0 || !array.cancelled.is_empty();
    let all_left = array.pending.is_empty() && array.own_pending == 0;
    let began = all_left.then(|| {
        let tasks = state
            .jobs
            .range(array.id.0, array.id.0 + u64::from(array.len()));
        tasks
            .map(|(_, task)| fate_of_job(state, task).began)
            .try_fold(array.submitted, |last, began| Some(last.max(began?)))
    });
    // As in Slurm: what becomes of an array is decided when all of it is over.
    Fate {
        over,
        well: over && !badly,
        badly: over && badly,
        began: began.flatten(),
    }
}

/// Looks at a condition again; notes in it what is known by now. `changed`: only this job did.
fn is_met(
    state: &State,
    past: &[PastJob],
    now: Timestamp,
    wait: &mut Wait,
    asker: Asker,
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
        DependencyTerm::Singleton if fate.over => match earlier(state, asker) {
            Some((of, whole)) => {
                (wait.of, wait.whole) = (of, whole);
                false
            }
            None => true,
        },
        DependencyTerm::Singleton => false,
        DependencyTerm::On {
            kind: DependencyKind::After,
            delay_mins,
            ..
        } => match fate.began {
            Some(began) => {
                let until = began.plus_secs(i64::from(delay_mins) * 60);
                wait.until = (until > now).then_some(until);
                wait.until.is_none()
            }
            None => false,
        },
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

/// Which of my tasks have a partner that ended, and how.
fn match_tasks(
    state: &State,
    past: &[PastJob],
    wait: &mut Wait,
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
        .arrays
        .get(wait.of)
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

/// `job 17 ended FAILED`.
fn words(state: &State, past: &[PastJob], of: JobId, whole: bool) -> String {
    if whole {
        let well = fate(state, past, of, true).is_some_and(|fate| fate.well);
        return if well {
            format!("all tasks of array {of} ended well")
        } else {
            format!("not all tasks of array {of} ended well")
        };
    }
    match (
        state.jobs.get(of),
        past.iter()
            .find(|known| known.id == of && known.tasks.is_none()),
    ) {
        (Some(job), _) => format!("job {} ended {}", job.shown_id(), job.state),
        (None, Some(known)) => format!("job {of} ended {}", known.state),
        (None, None) => match fate(state, past, of, false) {
            Some(fate) if fate.well => format!("task {of} ended well"),
            _ => format!("task {of} was cancelled or did not end well"),
        },
    }
}

/// After an input: everybody who waited for what began or ended in it looks again. Who can never start any more is
/// cancelled where that was asked for, and so on.
pub(super) fn settle(tx: &mut Tx, from: usize) {
    let mut at = from;
    while at < tx.events.len() && !tx.state.dependents.is_empty() {
        let changed = match &tx.events[at] {
            Event::JobCancelled { job, .. } => *job..=*job,
            Event::RunEnded { run, .. } | Event::RunSettled { run, .. } => run.job..=run.job,
            Event::RunReported {
                run,
                phase: gmodel::run::RunPhase::Running { .. },
                ..
            } => run.job..=run.job,
            Event::TasksCancelled {
                array, positions, ..
            } => {
                let last = u64::from(positions.last().unwrap_or(0));
                *array..=JobId(array.0 + last)
            }
            _ => {
                at += 1;
                continue;
            }
        };
        look_at_dependents(tx, *changed.start(), *changed.end());
        at += 1;
    }
}

fn look_at_dependents(tx: &mut Tx, first: JobId, last: JobId) {
    let array = match tx.state.jobs.get(first).and_then(|job| job.task) {
        Some(task) => Some(task.array),
        None => tx.state.array_of(first).map(|(array, _)| array.id),
    };
    let from = |id: JobId| (id, Dependent::Job(JobId(0)));
    let of_one = tx
        .state
        .dependents
        .range(from(first)..from(JobId(last.0 + 1)));
    let of_array = array.filter(|array| *array < first).into_iter();
    let of_array =
        of_array.flat_map(|id| tx.state.dependents.range(from(id)..from(JobId(id.0 + 1))));
    let waiting: BTreeSet<Dependent> = of_one.chain(of_array).map(|(_, who)| *who).collect();
    let changed = (first == last).then_some(first);
    for who in waiting {
        look_again(tx, who, changed);
    }
}

/// Looks at the conditions of one waiting job again.
pub(super) fn look_again(tx: &mut Tx, who: Dependent, changed: Option<JobId>) {
    let state = &*tx.state;
    let record = match who {
        Dependent::Job(id) => state
            .jobs
            .get(id)
            .map(|job| (&job.waits, &job.spec, job.task)),
        Dependent::Array(id) => state
            .arrays
            .get(id)
            .map(|array| (&array.waits, &array.spec, None)),
    };
    let Some((Some(waits), spec, task)) = record else {
        return;
    };
    let asker = Asker {
        id: who.id(),
        spec,
        task,
    };
    let mut left = Waits {
        any: waits.any,
        on: Vec::new(),
    };
    let mut met = false;
    for wait in &waits.on {
        let mut wait = wait.clone();
        if is_met(state, &[], tx.now, &mut wait, asker, changed) {
            met = true;
        } else {
            left.on.push(wait);
        }
    }
    let done = if left.any { met } else { left.on.is_empty() };
    if !done && left == **waits {
        return;
    }
    let waits = (!done).then(|| Box::new(left));
    tx.emit(Event::WaitsChanged {
        who,
        waits,
        at: tx.now,
    });
    cancel_hopeless(tx, who);
}

/// Those that can never start are cancelled, if they or the site want it so.
pub(super) fn cancel_hopeless(tx: &mut Tx, who: Dependent) {
    match who {
        Dependent::Job(id) => {
            let Some(job) = tx.state.jobs.get(id) else {
                return;
            };
            let Some(why) = job.waits.as_ref().and_then(|waits| never(waits)) else {
                return;
            };
            if job.state == JobState::Pending && kills(tx.state, &job.spec) {
                let text = format!("its dependency can never be met: {why}");
                let reason = ReasonCode::DependencyNeverSatisfied;
                tx.emit(Event::JobCancelled {
                    job: id,
                    by: SYSTEM.into(),
                    text,
                    reason,
                    at: tx.now,
                });
            }
        }
        Dependent::Array(id) => {
            let Some(array) = tx.state.arrays.get(id) else {
                return;
            };
            let Some(waits) = &array.waits else { return };
            let positions = hopeless(waits, &array.pending);
            if !positions.is_empty() && kills(tx.state, &array.spec) {
                tx.emit(Event::TasksCancelled {
                    array: id,
                    positions,
                    by: SYSTEM.into(),
                    at: tx.now,
                });
            }
        }
    }
}

/// Whether a job with an impossible dependency is cancelled.
pub(super) fn kills(state: &State, spec: &JobSpec) -> bool {
    spec.kill_on_invalid_dep
        .unwrap_or(state.config.kill_invalid_depend)
}

/// Why it can never be met as a whole.
pub(super) fn never(waits: &Waits) -> Option<&str> {
    let mut never = waits.on.iter().filter_map(|wait| wait.never.as_deref());
    let first = never.next()?;
    (!waits.any || never.count() + 1 == waits.on.len()).then_some(first)
}

/// Of an array: the positions that may start now.
pub(super) fn ready(array: &Array) -> RangeSet {
    match &array.waits {
        None => array.pending.clone(),
        Some(waits) => by_position(waits, &array.pending, |wait| {
            if wait.is_by_task() {
                wait.met.clone()
            } else {
                RangeSet::new()
            }
        }),
    }
}

/// Whether an array's task may start as far as its dependency goes.
pub(super) fn is_ready(array: &Array, position: u32) -> bool {
    let met = |wait: &Wait| wait.is_by_task() && wait.met.contains(position);
    match array.waits.as_deref() {
        None => true,
        Some(Waits { any: true, on }) => on.iter().any(met),
        Some(Waits { any: false, on }) => on.iter().all(met),
    }
}

/// Of an array: the positions that can never start.
fn hopeless(waits: &Waits, pending: &RangeSet) -> RangeSet {
    // The other way round: one impossible condition of several is enough, of alternatives all must be.
    let other = Waits {
        any: !waits.any,
        on: waits.on.clone(),
    };
    by_position(&other, pending, |wait| match wait.never {
        Some(_) => pending.clone(),
        None => wait.failed.clone(),
    })
}

fn by_position(waits: &Waits, pending: &RangeSet, of: impl Fn(&Wait) -> RangeSet) -> RangeSet {
    let mut sets = waits.on.iter().map(of);
    if waits.any {
        let mut all = RangeSet::new();
        sets.for_each(|set| {
            set.runs()
                .for_each(|(first, last)| all.insert_range(first, last))
        });
        return intersection(&all, pending);
    }
    let first = sets
        .next()
        .map_or(RangeSet::new(), |set| intersection(&set, pending));
    sets.fold(first, |left, set| intersection(&left, &set))
}

/// What an array's waits mean for one of its tasks that gets a record of its own.
pub(super) fn of_task(state: &State, array: &Array, position: u32) -> Option<Box<Waits>> {
    let waits = array.waits.as_deref()?;
    let mut left = Waits {
        any: waits.any,
        on: Vec::new(),
    };
    let mut met = false;
    for wait in &waits.on {
        if !wait.is_by_task() {
            left.on.push(wait.clone());
        } else if wait.met.contains(position) {
            met = true;
        } else {
            let index = array.tasks.nth(position);
            let theirs = state
                .arrays
                .get(wait.of)
                .and_then(|other| other.tasks.position(index?));
            let never = wait.failed.contains(position).then(|| {
                format!(
                    "task {} of array {} did not end well",
                    index.unwrap_or_default(),
                    wait.of
                )
            });
            let of = JobId(wait.of.0 + u64::from(theirs.unwrap_or(0)));
            let (met, failed) = (RangeSet::new(), RangeSet::new());
            left.on.push(Wait {
                of,
                whole: false,
                never,
                met,
                failed,
                ..wait.clone()
            });
        }
    }
    let done = if left.any { met } else { left.on.is_empty() };
    (!done).then(|| Box::new(left))
}

/// Whether `who` would wait, over however many others, for itself.
pub(super) fn closes_circle(state: &State, who: Dependent, waits: &Waits) -> bool {
    let mut open: Vec<(JobId, bool)> = waits.on.iter().map(|wait| (wait.of, wait.whole)).collect();
    let mut seen: BTreeSet<(JobId, bool)> = open.iter().copied().collect();
    while let Some((of, whole)) = open.pop() {
        let array = match state.jobs.get(of).and_then(|job| job.task) {
            Some(task) => Some(task.array),
            None => state.array_of(of).map(|(array, _)| array.id),
        };
        let is_who = match who {
            Dependent::Job(id) => {
                let mine = state
                    .jobs
                    .get(id)
                    .and_then(|job| job.task)
                    .map(|task| task.array);
                (of == id && !whole) || (whole && mine == Some(of))
            }
            Dependent::Array(id) => array == Some(id),
        };
        if is_who {
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

fn waits_of(state: &State, of: JobId, whole: bool) -> Vec<Wait> {
    let all = |waits: Option<Box<Waits>>| waits.map_or(Vec::new(), |waits| waits.on);
    if !whole {
        return match (state.jobs.get(of), state.array_of(of)) {
            (Some(job), _) => all(job.waits.clone()),
            (None, Some((array, position))) => all(of_task(state, array, position)),
            (None, None) => Vec::new(),
        };
    }
    let Some(array) = state.arrays.get(of) else {
        return Vec::new();
    };
    let tasks = state.jobs.range(of.0, of.0 + u64::from(array.len()));
    let own = tasks.flat_map(|(_, task)| task.waits.iter().flat_map(|waits| waits.on.clone()));
    all(array.waits.clone()).into_iter().chain(own).collect()
}

/// What a pending job's dependency says; `None` when it is met.
pub(super) fn reason(state: &State, waits: Option<&Waits>) -> Option<Reason> {
    let waits = waits?;
    if let Some(why) = never(waits) {
        let text = format!("its dependency can never be met: {why}");
        return Some(Reason::new(ReasonCode::DependencyNeverSatisfied, text));
    }
    let open: Vec<&Wait> = waits
        .on
        .iter()
        .filter(|wait| wait.never.is_none())
        .collect();
    let first = open
        .first()
        .map_or(String::new(), |wait| wait_words(state, wait));
    let more = match (open.len().saturating_sub(1), waits.any) {
        (0, _) => String::new(),
        (count, true) => format!(", or for {count} more"),
        (count, false) => format!(", and for {count} more"),
    };
    Some(Reason::new(
        ReasonCode::Dependency,
        format!("waits for {first}{more}"),
    ))
}

/// What the tasks of an array that may start are, and why the others do not.
pub(super) fn of_array(state: &State, array: &Array, open: RangeSet) -> (RangeSet, Option<Reason>) {
    let Some(waits) = &array.waits else {
        return (open, None);
    };
    let ready = intersection(&ready(array), &open);
    if !ready.is_empty() {
        return (ready, None);
    }
    if hopeless(waits, &open).len() == open.len() && never(waits).is_none() {
        let text =
            "their partners in the other array did not end well: these tasks can never start";
        return (
            open,
            Some(Reason::new(ReasonCode::DependencyNeverSatisfied, text)),
        );
    }
    (open, reason(state, Some(waits)))
}

/// `job 17 (RUNNING) to end well`.
fn wait_words(state: &State, wait: &Wait) -> String {
    let of = wait.of;
    let other = match (wait.whole, state.jobs.get(of), state.arrays.get(of)) {
        (true, _, Some(array)) => {
            let left = array.pending.len() + u64::from(array.own_pending + array.own_live);
            match left {
                0 => format!("array {of} (over)"),
                left => format!("array {of} ({left} of {} tasks not over)", array.len()),
            }
        }
        (_, Some(job), _) => format!("job {} ({})", job.shown_id(), job.state),
        _ => match state.array_of(of) {
            Some((array, at)) => format!(
                "job {}_{} (PENDING)",
                array.id,
                array.tasks.nth(at).unwrap_or(at)
            ),
            None => format!("job {of}"),
        },
    };
    match (wait.condition(), wait.until) {
        (_, Some(until)) => format!("{until}, {} after {other} began", minutes(wait)),
        (DependencyTerm::Singleton, _) => format!("{other}, of the same name and user, to end"),
        (
            DependencyTerm::On {
                kind: DependencyKind::After,
                delay_mins: 0,
                ..
            },
            _,
        ) => format!("{other} to begin"),
        (
            DependencyTerm::On {
                kind: DependencyKind::After,
                ..
            },
            _,
        ) => format!("{} after {other} begins", minutes(wait)),
        (
            DependencyTerm::On {
                kind: DependencyKind::AfterAny,
                ..
            },
            _,
        ) => format!("{other} to end"),
        (
            DependencyTerm::On {
                kind: DependencyKind::AfterOk,
                ..
            },
            _,
        ) => format!("{other} to end well"),
        (
            DependencyTerm::On {
                kind: DependencyKind::AfterNotOk,
                ..
            },
            _,
        ) => format!("{other} to fail"),
        (
            DependencyTerm::On {
                kind: DependencyKind::AfterCorr,
                ..
            },
            _,
        ) if wait.whole => {
            format!("the task of the same index of {other} to end well")
        }
        (
            DependencyTerm::On {
                kind: DependencyKind::AfterCorr,
                ..
            },
            _,
        ) => format!("{other} to end well"),
    }
}

fn minutes(wait: &Wait) -> String {
    match wait.condition() {
        DependencyTerm::On { delay_mins, .. } => format!("{delay_mins} min"),
        DependencyTerm::Singleton => String::new(),
    }
}

/// What must never be: an index that is not that of the records, a condition nobody will ever decide.
pub(super) fn check(state: &State, found: &mut Vec<String>) {
    let mut index = BTreeSet::new();
    let mut one = |who: Dependent, pending: bool, waits: &Option<Box<Waits>>| {
        let Some(waits) = waits else { return };
        if !pending {
            found.push(format!("{who:?} has a dependency and is not pending"));
        }
        if waits.on.is_empty() {
            found.push(format!("{who:?} waits for nothing"));
        }
        for wait in &waits.on {
            index.insert((wait.of, who));
            let over = fate(state, &[], wait.of, wait.whole).is_none_or(|fate| fate.over);
            if over && wait.never.is_none() && wait.until.is_none() && !wait.is_by_task() {
                found.push(format!(
                    "{who:?} waits for {}, which is over: {}",
                    wait.of, wait.condition
                ));
            }
        }
    };
    for job in state.jobs.values() {
        one(
            Dependent::Job(job.id),
            job.state == JobState::Pending,
            &job.waits,
        );
    }
    for array in state.arrays.values() {
        one(
            Dependent::Array(array.id),
            !array.pending.is_empty(),
            &array.waits,
        );
    }
    if index != state.dependents {
        let differ: Vec<_> = index
            .symmetric_difference(&state.dependents)
            .take(3)
            .collect();
        found.push(format!(
            "the index of dependencies is not that of the records: {differ:?}"
        ));
    }
}
