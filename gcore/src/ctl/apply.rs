//! The only place where the controller's state changes. Infallible, no clock, no chance.
//!
//! An event that names something unknown is a bug of `handle`, not bad input: it stops the process.

mod nodes;

use super::dependency::{self, Dependent};
use super::idle;
use super::event::{Event, JobChange};
use super::gpu_check;
use super::mig;
use super::policy;
use super::preempt;
use super::requeue;
use super::submit::{forget_what_fits, spread};
use super::suspend;
use super::usage;
use super::state::{Array, Job, Member, Node, NodeFailure, Outcome, Run, State, TaskOf};
use gmodel::array_spec::RangeSet;
use gmodel::node::{Link, Mark};
use gmodel::rare::Rare;
use gmodel::run::{Allocation, RunPhase};
use gmodel::{JobId, JobSpec, JobState, NodeId, NodeLife, Reason, ReasonCode, RunId, Timestamp};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Makes an event true.
pub fn apply(state: &mut State, event: &Event) {
    if event.is_stored() {
        state.seq.0 += 1;
    }
    match event {
        Event::JobSubmitted { id, spec, limit_secs, at, client_key } => {
            submitted(state, *id, spec, *limit_secs, *at, client_key.as_deref());
        }
        Event::TaskSplit { array, position } => split(state, *array, *position),
        Event::JobHeld { job, mark } => {
            let job = job_mut(state, *job);
            job.holds.push(mark.clone());
            if job.state == JobState::Pending {
                job.reason = reason_of(&job.holds);
            }
        }
        Event::JobReleased { job, owner, at } => {
            let job = job_mut(state, *job);
            lift(&mut job.holds, owner.as_deref());
            if job.state == JobState::Pending {
                job.reason = reason_of(&job.holds);
            }
            job.eligible = job.eligible.max(*at);
            let (id, eligible, spec) = (job.id, job.eligible, job.spec.clone());
            state.index_begin(id, eligible, eligible, &spec);
        }
        Event::ArrayHeld { array, mark } => {
            let array = array_mut(state, *array);
            array.holds.push(mark.clone());
            array.reason = reason_of(&array.holds);
        }
        Event::ArrayReleased { array, owner, at } => {
            let array = array_mut(state, *array);
            lift(&mut array.holds, owner.as_deref());
            array.reason = reason_of(&array.holds);
            array.eligible = array.eligible.max(*at);
            let (id, eligible, spec) = (array.id, array.eligible, array.spec.clone());
            state.index_begin(id, eligible, eligible, &spec);
        }
        Event::JobUpdated { job, change, .. } => job_updated(state, *job, change),
        Event::ArrayUpdated { array, change, .. } => array_updated(state, *array, change),
        Event::JobCancelled { job, by, text, reason, at } => {
            job_cancelled(state, *job, by, text, *at);
            job_mut(state, *job).reason = (*reason).into();
        }
        Event::WaitsChanged { who, waits, at } => {
            state.set_waits(*who, waits.clone());
            if waits.is_none() {
                // It counts as waiting in line from here on, as in Slurm.
                let (eligible, reason, spec) = match who {
                    Dependent::Job(id) => {
                        let job = job_mut(state, *id);
                        (&mut job.eligible, &mut job.reason, job.spec.clone())
                    }
                    Dependent::Array(id) => {
                        let array = array_mut(state, *id);
                        (&mut array.eligible, &mut array.reason, array.spec.clone())
                    }
                };
                *eligible = (*eligible).max(*at);
                let eligible = *eligible;
                if matches!(reason.code, ReasonCode::Dependency | ReasonCode::DependencyNeverSatisfied) {
                    *reason = Reason::default();
                }
                state.index_begin(who.id(), eligible, eligible, &spec);
            }
        }
        Event::TasksCancelled { array, positions, by, at } => {
            tasks_cancelled(state, *array, positions, by, *at);
        }
        Event::JobRequeued { .. } | Event::TasksRequeued { .. } => requeue::apply(state, event),
        Event::ReasonsGiven { jobs, arrays } => {
            for (id, reason) in jobs {
                job_mut(state, *id).reason = reason.clone();
            }
            for (id, reason) in arrays {
                array_mut(state, *id).reason = reason.clone();
            }
        }
        Event::JobsForgotten { jobs, arrays } => forget(state, jobs, arrays),
        Event::RunPlaced { run, allocation, lives, partition, limit_secs, class, priority, imex_channel, at } => {
            if let Some(name) = partition {
                respecify(state, run.job, |spec| spec.settle_in(name));
            }
            run_placed(state, *run, allocation, lives, *limit_secs, *at);
            let placed = run_mut(state, *run);
            (placed.class, placed.imex_channel) = (*class, *imex_channel);
            job_mut(state, run.job).priority = *priority;
        }
        Event::RunClassed { run, class } => run_mut(state, *run).class = *class,
        Event::RunMarked { run, mark, at, .. } => {
            let mark = gmodel::checkpoint::Mark { at: *at, ..mark.clone() };
            run_mut(state, *run).mark = Some(mark.clone());
            job_mut(state, run.job).last_mark = Some(Box::new(mark));
        }
        Event::RunAdopted { run, spec, share, life, batch, limit_secs, imex_channel, at } => {
            let member =
                Member { node: share.node, life: Arc::new(life.clone()), phase: None, forfeited: false };
            run_adopted(state, *run, spec, *limit_secs, *at);
            let held = run_mut(state, *run);
            held.imex_channel = held.imex_channel.or(*imex_channel);
            let place = if *batch { 0 } else { held.members.len() };
            held.allocation.insert(place, share.clone());
            held.members.insert(place, member);
            let node = node_mut(state, share.node);
            node.runs.insert(*run);
            mig::yield_to(node, share);
            state.policy_since.1 = *at;
            raise_generations(state, *run);
        }
        Event::RunGo { run, at } => {
            let one = run_mut(state, *run);
            one.go = Some(*at);
            let placed = one.placed;
            state.preparing.remove(&(placed, *run));
            raise_generations(state, *run);
        }
        Event::RunStopping { run, stop } => {
            preempt::apply_stopping(state, *run, stop);
            raise_generations(state, *run);
        }
        Event::RunUnneeded { run, for_job, called_back, .. } => {
            preempt::apply_unneeded(state, *run, *for_job, *called_back);
            if *called_back {
                raise_generations(state, *run);
            }
        }
        Event::RunSuspended { run, suspension } => {
            suspend::apply_suspended(state, *run, suspension);
            raise_generations(state, *run);
        }
        Event::RunResumed { run, at, .. } => {
            suspend::apply_resumed(state, *run, *at);
            raise_generations(state, *run);
        }
        Event::RunSignalled { run, signal } => {
            run_mut(state, *run).signals.push(*signal);
            raise_generations(state, *run);
        }
        // Which steps are under way is the history's: only what some have for themselves decides something.
        Event::StepStarted { run, step, hold, .. } => {
            let run = run_mut(state, *run);
            run.steps = step + 1;
            run.step_holds.extend(hold.clone());
        }
        Event::StepEnded { run, step, .. } => run_mut(state, *run).step_holds.retain(|hold| hold.step != *step),
        Event::RunReported { run, node, phase, at } => {
            run_reported(state, *run, *node, phase, *at);
        }
        Event::RunForfeited { run, node, .. } => {
            member_mut(state, *run, *node).forfeited = true;
            raise_generation(state, *node);
        }
        Event::RunEnded { run, outcome, settled, at } => {
            run_ended(state, *run, outcome, settled.then_some(*at));
        }
        Event::RequeueDropped { run, stop } => {
            preempt::apply_stopping(state, *run, stop);
            let one = run_mut(state, *run);
            let outcome = one.outcome.as_mut().expect("a run that is to be requeued has ended");
            outcome.state = JobState::Cancelled;
            outcome.requeue = None;
            outcome.hold = None;
            raise_generations(state, *run);
        }
        Event::RunIdleSeen { .. }
            | Event::RunIdled { .. }
            | Event::RunIdleOver { .. }
            | Event::RunIdleWarned { .. }
            | Event::RunIdleNoted { .. }
            | Event::RunIdleTold { .. } => idle::apply(state, event),
        Event::RunSettled { run, at } => run_settled(state, *run, *at),
        Event::RunClosed { run } => run_closed(state, *run),
        Event::NodeJoined { .. }
            | Event::NodeAdminChanged { .. }
            | Event::NodeHello { .. }
            | Event::NodeInventory { .. }
            | Event::NodeLinkChanged { .. }
            | Event::NodeObeyed { .. }
            | Event::NodeDrained { .. }
            | Event::NodeDrainDue { .. }
            | Event::NodeResumed { .. }
            | Event::NodeStruck { .. }
            | Event::NodeStrikesCleared { .. }
            | Event::NodeFenceAsked { .. }
            | Event::NodeFenceFailed { .. }
            | Event::NodeFenced { .. }
            | Event::NodeRemoved { .. }
            | Event::GpuOrdered { .. }
            | Event::GpuOrderEnded { .. }
            | Event::GpuNoted { .. }
            | Event::GpuChecked { .. }
            | Event::GpuJudged { .. } => nodes::apply(state, event),
        Event::GpuChecksLooked { next } => state.next_check_look = *next,
        Event::TokenMinted { token } => {
            state.tokens.insert(token.hash.clone(), token.clone());
        }
        Event::TokenSpent { hash, .. } => {
            state.tokens.remove(hash);
        }
        Event::PolicyChanged { change, at, .. } => {
            policy::apply(state, change);
            state.policy_since = (state.seq, *at);
        }
        Event::Configured { config, at } => {
            state.config = config.clone();
            if *state.usage.zone() != config.time_zone {
                Arc::make_mut(&mut state.usage).set_zone(config.time_zone.clone());
            }
            state.policy_since = (state.seq, *at);
            forget_what_fits(state);
            state.merge_policy();
        }
        Event::Restored { incarnation, next_job, .. } => {
            state.incarnation = *incarnation;
            state.next_job = (*next_job).max(state.next_job);
        }
        Event::ControllerStarted { at } => {
            state.started = *at;
            let up: Vec<NodeId> =
                state.nodes.values().filter(|n| n.link == Link::Up).map(|n| n.id).collect();
            for id in up {
                let node = node_mut(state, id);
                node.link = Link::Silent;
                node.link_since = *at;
                state.watched.insert(id);
            }
        }
        Event::TimeReached { until } => {
            let after = (until.plus_millis(1), JobId(0));
            state.not_yet = state.not_yet.split_off(&after);
            state.due = state.due.split_off(&after);
            state.time_reached = state.time_reached.max(*until);
            let hour_ago = until.plus_secs(-3600);
            state.automatic_drains.retain(|(at, _)| *at > hour_ago);
            state.automatic_gpus.retain(|(at, ..)| *at > hour_ago);
        }
    }
}

fn submitted(
    state: &mut State,
    id: JobId,
    spec: &Arc<JobSpec>,
    limit_secs: Option<u32>,
    at: Timestamp,
    client_key: Option<&str>,
) {
    let eligible = spec.begin.unwrap_or(at).max(at);
    let owner = format!("user:{}", spec.user.name);
    let hold = Mark { owner, reason: "submitted with --hold".into(), since: at };
    let holds = if spec.hold { vec![hold] } else { Vec::new() };
    let reason = reason_of(&holds);
    let client_key = client_key.map(Arc::from);
    if let Some(tasks) = &spec.array {
        let array = Array {
            id,
            spec: spec.clone(),
            tasks: tasks.clone(),
            pending: RangeSet::first_n(tasks.len()),
            cancelled: RangeSet::new(),
            own_pending: 0,
            own_live: 0,
            reason,
            submitted: at,
            eligible,
            holds,
            limit_secs,
            nice: spec.nice,
            cancelled_by: None,
            ended: None,
            client_key,
            waits: None,
            unsuccessful: 0,
        };
        state.next_job = state.next_job.max(id.0 + u64::from(tasks.len()));
        state.index_array(&array);
        state.arrays.insert(id, array);
    } else {
        let job = Job {
            id,
            spec: spec.clone(),
            task: None,
            state: JobState::Pending,
            reason,
            submitted: at,
            eligible,
            holds,
            attempts: 0,
            live: None,
            limit_secs,
            nice: spec.nice,
            client_key,
            waits: None,
            past: Rare::default(),
        };
        state.next_job = state.next_job.max(id.0 + 1);
        state.index_job(&job);
        state.jobs.insert(id, job);
    }
}

fn split(state: &mut State, array: JobId, position: u32) {
    let waits = state.arrays.get(array).and_then(|array| dependency::of_task(state, array, position));
    let array = array_mut(state, array);
    assert!(array.pending.remove(position), "task {position} of {} is not pending", array.id);
    array.own_pending += 1;
    let index = array.tasks.nth(position).expect("position is in the array");
    let job = Job {
        id: array.task_id(position),
        spec: array.spec.clone(),
        task: Some(TaskOf { array: array.id, position, index }),
        state: JobState::Pending,
        reason: array.reason.clone(),
        submitted: array.submitted,
        eligible: array.eligible,
        holds: array.holds.clone(),
        attempts: 0,
        live: None,
        limit_secs: array.limit_secs,
        nice: array.nice,
        client_key: None,
        waits,
        past: Rare::default(),
    };
    let (id, none_left) = (array.id, array.pending.is_empty());
    state.index_job(&job);
    // It was counted with its array.
    state.tally.remove(&job.spec, 1);
    state.jobs.insert(job.id, job);
    if none_left {
        state.set_waits(Dependent::Array(id), None);
    }
}

/// What a waiting job waits for as far as its holds go; the next pass says more.
pub(super) fn reason_of(holds: &[Mark]) -> Reason {
    holds.first().map_or_else(Reason::default, |mark| gsched::held_by(&mark.owner))
}

fn lift(marks: &mut Vec<Mark>, owner: Option<&str>) {
    marks.retain(|mark| owner.is_some_and(|owner| mark.owner != owner));
}

pub(super) fn changed_spec(spec: &mut Arc<JobSpec>, change: &JobChange) {
    let JobChange {
        limit_secs: _,
        nice: _,
        eligible: _,
        max_running: _,
        name,
        comment,
        partition,
        account,
        qos,
        requeue,
        dependency,
        licences,
        reservation,
        priority,
        borrow,
        deadline,
        time_min_secs,
        checkpoint,
        idle_exempt,
        request,
    } = change;
    let texts = [name, comment, partition, account, qos];
    let own = JobChange { limit_secs: None, nice: None, eligible: None, max_running: None, ..change.clone() };
    if own == JobChange::default() {
        return;
    }
    let spec = Arc::make_mut(spec);
    dependency.iter().for_each(|new| spec.dependency.clone_from(new));
    licences.iter().for_each(|new| spec.licences.clone_from(new));
    reservation.iter().for_each(|new| spec.reservation = Some(new.clone()).filter(|name| !name.is_empty()));
    priority.iter().for_each(|new| spec.priority = *new);
    deadline.iter().for_each(|new| spec.deadline = *new);
    time_min_secs.iter().for_each(|new| spec.time_min_secs = *new);
    checkpoint.iter().for_each(|new| spec.checkpoint.clone_from(new));
    spec.borrow = borrow.or(spec.borrow);
    spec.idle_exempt = idle_exempt.unwrap_or(spec.idle_exempt);
    if !request.is_empty() {
        request.apply(&mut spec.request);
        spread(&mut spec.request);
    }
    let common = &mut *spec.common;
    let fields =
        [&mut spec.name, &mut common.comment, &mut common.partition, &mut common.account, &mut common.qos];
    for (field, text) in fields.into_iter().zip(texts) {
        if let Some(text) = text {
            field.clone_from(text);
        }
    }
    spec.requeue = requeue.or(spec.requeue);
}

/// Changes the request of a job that is not over, where it counts and where it is shared.
pub(super) fn respecify(state: &mut State, id: JobId, change: impl FnOnce(&mut JobSpec)) {
    let before = job_mut(state, id).spec.clone();
    let mut spec = (*before).clone();
    change(&mut spec);
    let after = state.late_specs.share(spec);
    state.tally.remove(&before, 1);
    state.tally.add(&after, 1);
    job_mut(state, id).spec = after;
}

fn job_updated(state: &mut State, id: JobId, change: &JobChange) {
    let job = job_mut(state, id);
    let before = job.spec.clone();
    changed_spec(&mut job.spec, change);
    job.nice = change.nice.unwrap_or(job.nice);
    let eligible = change.eligible.unwrap_or(job.eligible);
    job.eligible = eligible;
    let live = job.live_run();
    if let Some(limit) = change.limit_secs {
        job.limit_secs = limit;
        if let Some(run) = live {
            run_mut(state, run).limit_secs = limit;
            raise_generations(state, run);
        }
    }
    let (over, after) = (job_mut(state, id).state.is_final(), job_mut(state, id).spec.clone());
    if !over {
        state.tally.remove(&before, 1);
        state.tally.add(&after, 1);
    }
    let job = state.jobs.get(id).filter(|job| job.state == JobState::Pending);
    if let Some((spec, limit_secs, submitted)) = job.map(|job| (job.spec.clone(), job.limit_secs, job.submitted)) {
        state.index_begin(id, submitted, eligible, &spec);
        state.index_deadline(id, &spec, limit_secs);
    }
}

fn array_updated(state: &mut State, id: JobId, change: &JobChange) {
    let array = array_mut(state, id);
    let before = array.spec.clone();
    changed_spec(&mut array.spec, change);
    array.nice = change.nice.unwrap_or(array.nice);
    array.limit_secs = change.limit_secs.unwrap_or(array.limit_secs);
    array.eligible = change.eligible.unwrap_or(array.eligible);
    if let Some(most) = change.max_running {
        array.tasks = array.tasks.clone().with_limit((most > 0).then_some(most));
    }
    let (spec, limit_secs, submitted, eligible) = (array.spec.clone(), array.limit_secs, array.submitted, array.eligible);
    let untouched = array.pending.len();
    state.tally.remove(&before, untouched);
    state.tally.add(&spec, untouched);
    state.index_begin(id, submitted, eligible, &spec);
    state.index_deadline(id, &spec, limit_secs);
}

fn job_cancelled(state: &mut State, id: JobId, by: &str, text: &str, at: Timestamp) {
    let job = job_mut(state, id);
    assert_eq!(job.state, JobState::Pending, "job {id} is cancelled as pending");
    job.state = JobState::Cancelled;
    job.ended = Some(at);
    job.reason = Reason::default();
    job.cancelled_by = Some(by.to_owned());
    job.end_text = text.to_owned();
    let (task, spec) = (job.task, job.spec.clone());
    state.tally.remove(&spec, 1);
    state.finished.insert((at, id));
    state.set_waits(Dependent::Job(id), None);
    if let Some(task) = task {
        let array = array_mut(state, task.array);
        array.own_pending -= 1;
        array.unsuccessful += 1;
        close_array(array, at);
    }
}

fn tasks_cancelled(state: &mut State, id: JobId, positions: &RangeSet, by: &str, at: Timestamp) {
    let array = array_mut(state, id);
    for (first, last) in positions.runs() {
        array.pending.remove_range(first, last);
        array.cancelled.insert_range(first, last);
    }
    array.cancelled_by = Some(by.to_owned());
    close_array(array, at);
    let (none_left, spec) = (array.pending.is_empty(), array.spec.clone());
    state.tally.remove(&spec, positions.len());
    if none_left {
        state.set_waits(Dependent::Array(id), None);
    }
}

pub(super) fn close_array(array: &mut Array, at: Timestamp) {
    array.ended = array.is_over().then_some(at);
}

fn forget(state: &mut State, jobs: &[JobId], arrays: &[JobId]) {
    let gone: BTreeSet<JobId> = jobs.iter().copied().collect();
    // They are the oldest, so this looks at hardly any other.
    let oldest = state.finished.iter().filter(|(_, id)| gone.contains(id)).take(gone.len());
    for key in oldest.copied().collect::<Vec<_>>() {
        state.finished.remove(&key);
    }
    for id in jobs {
        if let Some(job) = state.jobs.remove(*id) {
            forget_key(state, job.spec.user.uid, job.client_key);
        }
    }
    for id in arrays {
        if let Some(array) = state.arrays.remove(*id) {
            forget_key(state, array.spec.user.uid, array.client_key);
        }
    }
}

fn forget_key(state: &mut State, uid: u32, key: Option<Arc<str>>) {
    if let Some(key) = key {
        state.client_keys.remove(&super::state::ClientKey { uid, key });
    }
}

fn run_placed(
    state: &mut State,
    id: RunId,
    allocation: &Allocation,
    lives: &[Arc<NodeLife>],
    limit_secs: Option<u32>,
    at: Timestamp,
) {
    assert_eq!(allocation.len(), lives.len());
    let job = job_mut(state, id.job);
    assert_eq!(job.state, JobState::Pending, "job {} is placed", id.job);
    assert!(job.attempts < id.attempt, "attempts of job {} count up", id.job);
    job.state = JobState::Running;
    job.reason = Reason::default();
    job.attempts = id.attempt;
    job.live = Some(id.attempt);
    job.started = Some(at);
    job.ended = None;
    let (task, waited) = (job.task, job.waits.is_some());
    if let Some(task) = task {
        let array = array_mut(state, task.array);
        array.own_pending -= 1;
        array.own_live += 1;
    }
    if waited {
        // Only what a node brought along after a restore: it runs, whatever it waited for.
        state.set_waits(Dependent::Job(id.job), None);
    }
    let members = allocation
        .iter()
        .zip(lives)
        .map(|(share, life)| Member {
            node: share.node,
            life: life.clone(),
            phase: None,
            forfeited: false,
        })
        .collect();
    let run = Run {
        id,
        allocation: allocation.clone(),
        members,
        placed: at,
        go: None,
        class: None,
        mark: None,
        suspension: None,
        suspended_millis: 0,
        idle: None,
        imex_channel: None,
        stop: None,
        called_back: None,
        limit_secs,
        signals: Vec::new(),
        steps: 0,
        step_holds: Vec::new(),
        started: None,
        outcome: None,
    };
    let generation = state.seq.0;
    for share in allocation {
        let node = node_mut(state, share.node);
        node.runs.insert(id);
        node.generation = generation;
    }
    state.index_run(&run);
    state.runs.insert(id, run);
}

/// Makes what is missing of a job and its run, as if it had been placed and let go just now.
fn run_adopted(
    state: &mut State,
    id: RunId,
    spec: &Arc<JobSpec>,
    limit_secs: Option<u32>,
    at: Timestamp,
) {
    if state.runs.contains(id) {
        return;
    }
    if !state.jobs.contains(id.job) {
        submitted(state, id.job, spec, limit_secs, at, None);
    }
    let job = job_mut(state, id.job);
    job.attempts = id.attempt - 1;
    run_placed(state, id, &Allocation::new(), &[], limit_secs, at);
    let run = run_mut(state, id);
    run.go = Some(at);
    let placed = run.placed;
    state.preparing.remove(&(placed, id));
}

fn run_reported(state: &mut State, id: RunId, node: NodeId, phase: &RunPhase, at: Timestamp) {
    let run = run_mut(state, id);
    // A run that was written off may report long after its job is over and forgotten.
    if let RunPhase::Running { started } = phase
        && run.started.is_none()
        && run.outcome.is_none()
    {
        // The node's word, which may come late, within what our own clock allows.
        let started = (*started).clamp(run.placed, at.max(run.placed));
        run.started = Some(started);
        job_mut(state, id.job).started = Some(started);
    }
    let run = run_mut(state, id);
    let clean = matches!(phase, RunPhase::Clean(_));
    let place = run.place_of(node).unwrap_or_else(|| panic!("node {node} is in run {id}"));
    run.members[place].phase = Some(phase.clone());
    let first_ended = place == 0 && phase.end().is_some();
    let ends_wait = first_ended && run.members.len() > 1 && run.stop.as_ref().is_some_and(|stop| stop.checkpoint_secs > 0);
    let freed = Some(&run.allocation[place]).filter(|share| clean && !share.gpus.is_empty()).cloned();
    if clean {
        raise_generation(state, node);
    }
    if let Some(share) = freed {
        gpu_check::note_freed(state, node, &share, at);
    }
    if ends_wait {
        // The others need not wait for a checkpoint any more.
        raise_generations(state, id);
    }
}

fn run_ended(state: &mut State, id: RunId, outcome: &Outcome, settled: Option<Timestamp>) {
    let run = run_mut(state, id);
    run.outcome = Some(outcome.clone());
    run.step_holds.clear();
    let placed = run.placed;
    let idled = run.stop.as_ref().is_some_and(|stop| stop.by == idle::BY);
    state.preparing.remove(&(placed, id));
    state.idle_untold.remove(&id);
    state.idle_seen.remove(id);
    let job = job_mut(state, id.job);
    let idle_requeues = if idled && outcome.requeue.is_some() { job.idle_requeues + 1 } else { 0 };
    if job.idle_requeues != idle_requeues {
        job.idle_requeues = idle_requeues;
    }
    job.started = outcome.started.or(job.started);
    job.exit = outcome.exit;
    job.end_text.clone_from(&outcome.text);
    if outcome.state == JobState::Preempted {
        job.preempted = Some(outcome.ended);
    }
    note_node_failures(state, id, outcome);
    usage::charge(state, id, outcome);
    if let Some(at) = settled {
        fate(state, id, outcome, at);
    } else {
        job_mut(state, id.job).state = JobState::Completing;
    }
}

fn note_node_failures(state: &mut State, id: RunId, outcome: &Outcome) {
    let run = state.runs.get(id).expect("run exists");
    let failed: Vec<NodeFailure> = run
        .failed_nodes()
        .map(|(node, text)| NodeFailure {
            node,
            attempt: id.attempt,
            at: outcome.ended,
            text: text.to_owned(),
        })
        .collect();
    job_mut(state, id.job).node_failures.extend(failed);
}

fn run_settled(state: &mut State, id: RunId, at: Timestamp) {
    let outcome = run_mut(state, id).outcome.clone().expect("a settled run has ended");
    fate(state, id, &outcome, at);
}

/// The run is over: the job goes back to the queue or is finished. Its age in memory counts from when we
/// heard: it may have ended long before, and must not be forgotten before it is written.
fn fate(state: &mut State, id: RunId, outcome: &Outcome, at: Timestamp) {
    let job = job_mut(state, id.job);
    job.live = None;
    let task = job.task;
    if let Some(eligible) = outcome.requeue {
        job.state = JobState::Pending;
        job.eligible = eligible;
        job.reason = Reason::default();
        job.holds.extend(outcome.hold.clone());
        if !job.spec.partitions.is_empty() {
            respecify(state, id.job, |spec| spec.unsettle());
        }
        let job = job_mut(state, id.job);
        let (spec, limit_secs, submitted) = (job.spec.clone(), job.limit_secs, job.submitted);
        state.index_begin(id.job, submitted, eligible, &spec);
        state.index_deadline(id.job, &spec, limit_secs);
    } else {
        job.state = outcome.state;
        job.ended = Some(outcome.ended);
        let by = state.runs.get(id).and_then(|run| run.stop.as_ref()).map(|stop| stop.by.clone());
        let job = job_mut(state, id.job);
        job.cancelled_by = by.filter(|_| outcome.state == JobState::Cancelled);
        let spec = job.spec.clone();
        state.tally.remove(&spec, 1);
        state.finished.insert((at, id.job));
    }
    if let Some(task) = task {
        let array = array_mut(state, task.array);
        array.own_live -= 1;
        array.own_pending += u32::from(outcome.requeue.is_some());
        array.unsuccessful += u32::from(outcome.requeue.is_none() && outcome.state != JobState::Completed);
        close_array(array, at);
    }
}

fn run_closed(state: &mut State, id: RunId) {
    let run = state.runs.remove(id).expect("a closed run exists");
    preempt::forget(state, id, run.stop.as_ref());
    for member in &run.members {
        if let Some(node) = state.nodes.get_mut(member.node) {
            node.runs.remove(&id);
        }
    }
}

/// What the nodes of a run should do has changed.
fn raise_generations(state: &mut State, id: RunId) {
    let nodes: Vec<NodeId> =
        state.runs.get(id).expect("run exists").members.iter().map(|m| m.node).collect();
    for node in nodes {
        raise_generation(state, node);
    }
}

/// A node's generation is the number of the last event that changed what it should do. So it never
/// goes back, and needs no row of its own: at boot it is the number of the last event of all.
fn raise_generation(state: &mut State, node: NodeId) {
    let generation = state.seq.0;
    if let Some(node) = state.nodes.get_mut(node) {
        node.generation = generation;
    }
}

pub(super) fn job_mut(state: &mut State, id: JobId) -> &mut Job {
    state.jobs.get_mut(id).unwrap_or_else(|| panic!("job {id} is in the state"))
}
pub(super) fn array_mut(state: &mut State, id: JobId) -> &mut Array {
    state.arrays.get_mut(id).unwrap_or_else(|| panic!("array {id} is in the state"))
}
pub(super) fn run_mut(state: &mut State, id: RunId) -> &mut Run {
    state.runs.get_mut(id).unwrap_or_else(|| panic!("run {id} is in the state"))
}
fn node_mut(state: &mut State, id: NodeId) -> &mut Node {
    state.nodes.get_mut(id).unwrap_or_else(|| panic!("node {id} is in the state"))
}
fn member_mut(state: &mut State, run: RunId, node: NodeId) -> &mut Member {
    let run = run_mut(state, run);
    let at = run.place_of(node).unwrap_or_else(|| panic!("node {node} is in run {}", run.id));
    &mut run.members[at]
}
