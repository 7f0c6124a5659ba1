//! Changes of a job's request: by its owner, and by operators only.

use crate::ctl::apply::{changed_spec, memos};
use crate::ctl::command::{Actor, Refusal, Reply, Target};
use crate::ctl::event::{Event, JobChange};
use crate::ctl::job::dependency::resolve::resolve;
use crate::ctl::job::dependency::resolve::{DependentJob, closes_circle};
use crate::ctl::job::dependency::settle::cancel_hopeless;
use crate::ctl::job::feasibility::check_nodes;
use crate::ctl::job::hold::{Holder, hold};
use crate::ctl::job::partition::{check_size, may_use, partition_or_refusal, takes_submissions};
use crate::ctl::job::request_bounds::{MAX_TEXT_BYTES, check_counts};
use crate::ctl::job::targets::{TargetRecord, find, own_tasks, shown, split};
use crate::ctl::job::{admission, deadline, limits, parts, request_size};
use crate::ctl::state::{EntryId, OpenDependency, State, TaskOf};
use crate::ctl::token::cap::{self, ChangedRecord};
use crate::ctl::tx::Tx;
use gmodel::config::Partition;
use gmodel::duration::squeue_time;
use gmodel::partition_list::{MAX_PARTITIONS, names};
use gmodel::{JobId, JobSpec, JobState, RefusalKind};
use std::collections::BTreeSet;
use std::sync::Arc;

pub(crate) fn handle(
    tx: &mut Tx,
    actor: &Actor,
    target: Target,
    mut change: JobChange,
) -> Result<Reply, Refusal> {
    if matches!(target, Target::Tasks { .. }) {
        return Err(Refusal::invalid(
            "tasks are changed one by one: each may need a record of its own.",
        ));
    }
    let found = find(tx.state, actor, &target)?;
    // Slurm's priority 0 is a hold.
    let holds = change
        .priority
        .take_if(|priority| *priority == Some(0))
        .is_some();
    let old = PreviousRequest::of(tx.state, &found).ok_or_else(|| {
        Refusal::conflict(format!("job {} is over", shown(&target))).about(RefusalKind::JobOver)
    })?;
    check_state(&old, &target, &change)?;
    if holds && old.state != JobState::Pending {
        return Err(Refusal::conflict(format!(
            "job {} is {}: Priority=0 holds it, and only pending jobs can be held.",
            shown(&target),
            old.state
        ))
        .about(RefusalKind::JobRuns));
    }
    let change = accepted(tx, actor, &target, &old, change)?;
    if change.max_running.is_some() && !matches!(found, TargetRecord::Array(_)) {
        return Err(Refusal::invalid(
            "ArrayTaskThrottle is for a whole array: name it by its id alone.",
        ));
    }
    check_token(tx, actor, &found, &change)?;
    let new_waits = depend_anew(tx, &found, &change)?;
    let is_more = !holds || change != JobChange::default();
    if is_more {
        for id in changed(tx, actor, &found, &change) {
            // A plan made before this does not start the job.
            memos::note_respecified(tx.state, id);
        }
    }
    for (who, waits) in new_waits {
        wait_anew(tx, who, waits);
    }
    if holds {
        hold(
            tx,
            Holder {
                actor,
                for_owner: false,
            },
            &[target],
            "",
        )?;
    }
    Ok(Reply::Done)
}

/// Refuses what the actor's token does not reach, and what may use more than the cap of the job's token has left.
fn check_token(
    tx: &Tx,
    actor: &Actor,
    found: &TargetRecord,
    change: &JobChange,
) -> Result<(), Refusal> {
    let state = &*tx.state;
    let as_changed = |(id, tasks): (EntryId, u64)| {
        let (spec, limit_secs) = match id {
            EntryId::Job(id) => state.job(id).map(|job| (&job.spec, job.limit_secs))?,
            EntryId::Array(id) => state
                .array(id)
                .map(|array| (&array.spec, array.limit_secs))?,
        };
        let mut spec = spec.clone();
        changed_spec(&mut spec, change);
        Some(ChangedRecord {
            id,
            tasks,
            spec: Arc::unwrap_or_clone(spec),
            limit_secs: change.limit_secs.unwrap_or(limit_secs),
        })
    };
    let records = records_of(state, found).into_iter();
    let changed: Vec<ChangedRecord> = records.filter_map(as_changed).collect();
    for one in &changed {
        cap::check_reach(state, actor, &one.spec, "the changed job")?;
    }
    if change.limit_secs.is_none() && change.request.is_empty() && change.partition.is_none() {
        return Ok(());
    }
    cap::check_change(state, changed.into_iter(), tx.now)
}

/// The records that a change of a target changes, an array's with those of its tasks, and for how many untouched tasks.
fn records_of(state: &State, found: &TargetRecord) -> Vec<(EntryId, u64)> {
    match *found {
        TargetRecord::Job(id) => vec![(EntryId::Job(id), 1)],
        TargetRecord::Array(id) => {
            let untouched = state.array(id).map_or(0, |array| array.pending.len());
            let own = own_tasks(state, id)
                .into_iter()
                .map(|task| (EntryId::Job(task), 1));
            own.chain([(EntryId::Array(id), untouched)]).collect()
        }
        TargetRecord::Untouched {
            array,
            ref positions,
        } => vec![(EntryId::Array(array), positions.len())],
        TargetRecord::Over => Vec::new(),
    }
}

/// The change as it is to be carried out: permitted to the actor, and with the defaults of the partitions it leads to.
fn accepted(
    tx: &Tx,
    actor: &Actor,
    target: &Target,
    old: &PreviousRequest,
    mut change: JobChange,
) -> Result<JobChange, Refusal> {
    check_for_operators_only(actor, &change)?;
    if let Some(list) = &change.partition {
        change.partition = Some(each_once(list)?);
    }
    let partitions = partitions(
        tx.state,
        change.partition.as_deref().unwrap_or(&old.spec.partition),
    )?;
    if change.partition.is_some() {
        partitions
            .iter()
            .try_for_each(|partition| takes_submissions(partition))?;
    }
    check_texts(&change)?;
    if !actor.operator {
        check_as_owner(tx.state, actor, old, target, &partitions, &change)?;
    }
    admitted(tx, actor, old, &partitions, change)
}

/// The job before the change.
struct PreviousRequest<'a> {
    spec: &'a JobSpec,
    limit_secs: Option<u32>,
    nice: i32,
    state: JobState,
    /// How many jobs it stands for: the tasks of an array.
    tasks: u64,
}

impl<'a> PreviousRequest<'a> {
    /// `None`: a task that was cancelled with others and has no record.
    fn of(state: &'a State, found: &TargetRecord) -> Option<Self> {
        match found {
            TargetRecord::Job(id) => {
                let job = state.job(*id).expect("found");
                Some(Self {
                    spec: &job.spec,
                    limit_secs: state.limit_in_force(job),
                    nice: job.nice,
                    state: job.state,
                    tasks: 1,
                })
            }
            TargetRecord::Array(id) | TargetRecord::Untouched { array: id, .. } => {
                let array = state.array(*id).expect("found");
                let tasks = if matches!(found, TargetRecord::Array(_)) {
                    array.pending.len()
                } else {
                    1
                };
                Some(Self {
                    spec: &array.spec,
                    limit_secs: array.limit_secs,
                    nice: array.nice,
                    state: JobState::Pending,
                    tasks,
                })
            }
            TargetRecord::Over => None,
        }
    }
}

/// Refuses fields that cannot change for a running or finished job.
fn check_state(old: &PreviousRequest, target: &Target, change: &JobChange) -> Result<(), Refusal> {
    if old.spec.allocation && change.requeue == Some(true) {
        return Err(Refusal::conflict(format!(
            "job {} is an allocation, which never goes back to the queue.",
            shown(target)
        )));
    }
    parts::check_change(old.spec, change)?;
    // Requeue may still be allowed.
    let of_requeue = JobChange {
        requeue: change.requeue,
        ..JobChange::default()
    };
    if (old.state.is_final() || old.state == JobState::Completing) && *change != of_requeue {
        return Err(Refusal::conflict(format!(
            "job {} is {}; nothing of it can change any more.",
            shown(target),
            old.state
        ))
        .about(RefusalKind::JobOver));
    }
    match change.pending_only() {
        Some(what) if old.state != JobState::Pending => {
            let text = format!(
                "job {} is running: its {what} can only change while it is pending.",
                shown(target)
            );
            Err(Refusal::conflict(text).about(RefusalKind::JobRuns))
        }
        _ => Ok(()),
    }
}

fn check_for_operators_only(actor: &Actor, change: &JobChange) -> Result<(), Refusal> {
    if change.priority.is_some() && !actor.operator {
        return Err(Refusal::denied("only operators may set a priority."));
    }
    if change.idle_exempt.is_some() && !actor.operator {
        return Err(Refusal::denied(
            "only operators may exempt a job from the idle policy, or take that back.",
        ));
    }
    Ok(())
}

fn check_texts(change: &JobChange) -> Result<(), Refusal> {
    let mut texts = change.texts();
    match texts.any(|text| text.len() > MAX_TEXT_BYTES || text.contains(['\0', '\n'])) {
        true => Err(Refusal::invalid(format!(
            "names and comments have one line of at most {MAX_TEXT_BYTES} bytes."
        ))),
        false => Ok(()),
    }
}

/// Refuses, to an owner: a closed partition, a limit beyond its own or a running job's, a negative nice value.
fn check_as_owner(
    state: &State,
    actor: &Actor,
    old: &PreviousRequest,
    target: &Target,
    partitions: &[&Partition],
    change: &JobChange,
) -> Result<(), Refusal> {
    if change.partition.is_some() || change.account.is_some() {
        let account = change.account.as_ref().unwrap_or(&old.spec.account);
        // A job in several partitions needs one that takes it.
        let mut said = partitions
            .iter()
            .map(|partition| may_use(state, partition, actor, account));
        match change.partition.is_some() {
            true => said.collect::<Result<(), Refusal>>()?,
            false => any_of(&mut said)?,
        }
    }
    if let Some(limit) = change.limit_secs {
        let longer = limit.is_none_or(|new| old.limit_secs.is_some_and(|old| new > old));
        if longer && matches!(old.state, JobState::Running | JobState::Suspended) {
            return Err(Refusal::denied(format!(
                "a running job's time limit can only be lowered by its owner; job {} has {}. Ask an operator for more.",
                shown(target),
                old.limit_secs
                    .map_or("no limit".into(), |secs| squeue_time(u64::from(secs)))
            )));
        }
        let mut said = partitions
            .iter()
            .map(|partition| match partition.max_time_secs {
                Some(most) if limit.is_none_or(|new| new > most) => {
                    let text = format!(
                        "partition {:?} allows at most {}.",
                        partition.name,
                        squeue_time(u64::from(most))
                    );
                    Err(Refusal::denied(text).about(RefusalKind::TimeLimit))
                }
                _ => Ok(()),
            });
        any_of(&mut said)?;
    }
    match change.nice {
        Some(new) if new < old.nice && new < 0 => Err(Refusal::denied(
            "only operators may give a job a negative nice value.",
        )),
        _ => Ok(()),
    }
}

/// Emits the change; returns the jobs and arrays that changed.
fn changed(tx: &mut Tx, actor: &Actor, found: &TargetRecord, change: &JobChange) -> Vec<JobId> {
    let updated = |job: JobId, change: JobChange| Event::JobUpdated {
        job,
        change,
        by: actor.user.clone(),
    };
    match *found {
        TargetRecord::Job(job) => {
            tx.emit(updated(job, change.clone()));
            vec![job]
        }
        TargetRecord::Untouched {
            array,
            ref positions,
        } => {
            let jobs: Vec<JobId> = positions
                .iter()
                .map(|position| split(tx, array, position))
                .collect();
            jobs.iter()
                .for_each(|job| tx.emit(updated(*job, change.clone())));
            jobs
        }
        TargetRecord::Array(array) => {
            tx.emit(Event::ArrayUpdated {
                array,
                change: change.clone(),
                by: actor.user.clone(),
            });
            let tasks = own_tasks(tx.state, array);
            for job in &tasks {
                let change = task_change(tx, actor, *job, change);
                if change != JobChange::default() {
                    tx.emit(updated(*job, change));
                }
            }
            tasks.into_iter().chain([array]).collect()
        }
        TargetRecord::Over => Vec::new(),
    }
}

/// A new dependency holds from now; one that can never be met cancels.
fn wait_anew(tx: &mut Tx, entry: EntryId, waits: Option<Box<OpenDependency>>) {
    let is_there = match entry {
        EntryId::Job(id) => tx.state.jobs.contains(id),
        EntryId::Array(id) => tx.array(id).is_some_and(|array| !array.pending.is_empty()),
    };
    if is_there {
        tx.emit(Event::WaitsChanged {
            entry,
            waits,
            at: tx.now,
        });
        cancel_hopeless(tx, entry);
    }
}

/// A list of partitions without repeated names.
fn each_once(list: &str) -> Result<String, Refusal> {
    let mut seen = BTreeSet::new();
    let names: Vec<&str> = names(list).filter(|name| seen.insert(*name)).collect();
    match names.len() {
        0 => Err(
            Refusal::invalid(format!("Partition={list}: that names none."))
                .about(RefusalKind::Partition),
        ),
        1..=MAX_PARTITIONS => Ok(names.join(",")),
        many => Err(Refusal::limit(format!(
            "{many} partitions, and {MAX_PARTITIONS} are the most."
        ))),
    }
}

fn partitions<'a>(state: &'a State, list: &str) -> Result<Vec<&'a Partition>, Refusal> {
    names(list)
        .map(|name| partition_or_refusal(&state.config, name))
        .collect()
}

/// Whether one of several accepts; else the first refusal.
fn any_of(said: &mut dyn Iterator<Item = Result<(), Refusal>>) -> Result<(), Refusal> {
    let mut first = Ok(());
    for said in said {
        match said {
            Ok(()) => return Ok(()),
            Err(_) if first.is_err() => {}
            Err(refusal) => first = Err(refusal),
        }
    }
    first
}

/// The change with names filled in, if its owner could submit the changed request now: to each partition that
/// the change names, or else to one in which the job waits.
fn admitted(
    tx: &Tx,
    actor: &Actor,
    old: &PreviousRequest,
    partitions: &[&Partition],
    mut change: JobChange,
) -> Result<JobChange, Refusal> {
    let limit = change.limit_secs.unwrap_or(old.limit_secs);
    change
        .request
        .check(&old.spec.request)
        .map_err(Refusal::invalid)?;
    let mut wanted = Arc::new(old.spec.clone());
    changed_spec(&mut wanted, &change);
    let wanted = Arc::unwrap_or_clone(wanted);
    if wanted != *old.spec {
        request_size::check(tx.state, &wanted)?;
    }
    if asks(&change) {
        check_counts(&wanted.request)?;
        let mut taken: Option<JobSpec> = None;
        let mut refused: Option<Refusal> = None;
        for partition in partitions {
            let mut there = wanted.clone();
            there.partition.clone_from(&partition.name);
            match admitted_in(tx, actor, old, &mut there, limit, partition, &change) {
                Ok(()) => drop(taken.get_or_insert(there)),
                Err(refusal) if change.partition.is_some() => return Err(refusal),
                Err(refusal) => drop(refused.get_or_insert(refusal)),
            }
        }
        let there = match (taken, refused) {
            (None, Some(refusal)) => return Err(refusal),
            (taken, _) => taken.unwrap_or_else(|| wanted.clone()),
        };
        change.account = change.account.map(|_| there.account.clone());
        change.qos = change.qos.map(|_| there.qos.clone());
    }
    if change.deadline.is_some() || change.time_min_secs.is_some() {
        deadline::check(&wanted, limit, tx.now)?;
    }
    Ok(change)
}

/// Fields of a change that are checked like a submission.
fn asks(change: &JobChange) -> bool {
    change.account.is_some()
        || change.qos.is_some()
        || change.partition.is_some()
        || change.licences.is_some()
        || change.reservation.is_some()
        || change.checkpoint.is_some()
        || !change.request.is_empty()
}

/// Fills in account and QOS, if the partition takes the changed job.
fn admitted_in(
    tx: &Tx,
    actor: &Actor,
    old: &PreviousRequest,
    wanted: &mut JobSpec,
    limit_secs: Option<u32>,
    partition: &Partition,
    change: &JobChange,
) -> Result<(), Refusal> {
    // An operator may set a priority that the owner could not.
    let operator = Actor {
        operator: true,
        ..actor.clone()
    };
    admission::admit(tx.state, &operator, wanted, partition, &mut Vec::new())?;
    let resized = !change.request.is_empty();
    if change.partition.is_some() || resized {
        crate::ctl::gpu::share::check_request(&tx.state.config, partition, &wanted.request)?;
    }
    if resized {
        check_size(partition, &wanted.request)?;
        check_nodes(tx.state, partition, wanted, &mut Vec::new())?;
    }
    if !actor.operator {
        limits::check_request(tx.state, wanted, partition, limit_secs, tx.now)?;
        limits::check_move(tx.state, old.spec, wanted, partition, old.tasks)?;
    }
    Ok(())
}

type NewWaits = Vec<(EntryId, Option<Box<OpenDependency>>)>;

/// A record with a new dependency.
struct Dependant {
    id: EntryId,
    spec: Arc<JobSpec>,
    task: Option<TaskOf>,
}

/// The pending records of what was found.
fn dependants(state: &State, found: &TargetRecord) -> Vec<Dependant> {
    let mut all = Vec::new();
    let own = |id: JobId| {
        let job = state.job(id).filter(|job| job.state == JobState::Pending)?;
        Some(Dependant {
            id: EntryId::Job(id),
            spec: job.spec.clone(),
            task: job.task,
        })
    };
    match *found {
        TargetRecord::Job(id) => all.extend(own(id)),
        TargetRecord::Untouched {
            array,
            ref positions,
        } => {
            let array = state.array(array).expect("found");
            for position in positions.iter() {
                let (id, index) = (
                    array.task_id(position),
                    array.tasks.nth(position).unwrap_or_default(),
                );
                let task = TaskOf {
                    array: array.id,
                    position,
                    index,
                };
                all.push(Dependant {
                    id: EntryId::Job(id),
                    spec: array.spec.clone(),
                    task: Some(task),
                });
            }
        }
        TargetRecord::Array(id) => {
            let array = state.array(id).expect("found");
            all.push(Dependant {
                id: EntryId::Array(id),
                spec: array.spec.clone(),
                task: None,
            });
            all.extend(own_tasks(state, id).into_iter().filter_map(own));
        }
        TargetRecord::Over => {}
    }
    all
}

/// The new open conditions of each record; none if the change has no dependency.
fn depend_anew(tx: &Tx, found: &TargetRecord, change: &JobChange) -> Result<NewWaits, Refusal> {
    let Some(new) = &change.dependency else {
        return Ok(Vec::new());
    };
    let state = &*tx.state;
    let records = dependants(state, found);
    let mut all = Vec::with_capacity(records.len());
    for Dependant { id, spec, task } in records {
        let waits = match new {
            None => None,
            Some(dependency) => resolve(
                state,
                &tx.past,
                tx.now,
                dependency,
                DependentJob {
                    id: id.id(),
                    spec: &spec,
                    task,
                },
            )?,
        };
        if let (Some(text), true) = (
            new,
            waits
                .as_deref()
                .is_some_and(|waits| closes_circle(state, id, waits)),
        ) {
            let text = format!(
                "--dependency {text}: in the end that waits for job {} itself, so neither could ever start.",
                id.id()
            );
            return Err(Refusal::invalid(text));
        }
        all.push((id, waits));
    }
    Ok(all)
}

/// The part of an array's change for a task with a record of its own: nothing once it is over; for a running
/// task neither place nor time, and a longer limit only by an operator.
fn task_change(tx: &Tx, actor: &Actor, id: JobId, change: &JobChange) -> JobChange {
    let mut change = JobChange {
        max_running: None,
        ..change.clone()
    };
    match tx.job(id) {
        Some(job) if job.state == JobState::Pending => {}
        Some(job) if matches!(job.state, JobState::Running | JobState::Suspended) => {
            change = change.for_running();
            let longer = |new: Option<u32>| {
                new.is_none_or(|new| tx.state.limit_in_force(job).is_some_and(|old| new > old))
            };
            if !actor.operator && change.limit_secs.is_some_and(longer) {
                change.limit_secs = None;
            }
        }
        _ => return JobChange::default(),
    }
    change
}
