//! The components of a job of unlike parts go together: what is said to one is said to all, and they start and end together.

use crate::ctl::event::Event;
use crate::ctl::owner::SYSTEM;
use crate::ctl::run::stop_order::order;
use crate::ctl::state::{Job, Member, Outcome, Run, State, Stop};
use crate::ctl::tx::Tx;
use gmodel::job_key::JobChange;
use gmodel::run::StopCause;
use gmodel::{JobId, JobPart, JobState, RunId, Timestamp};
use std::collections::BTreeSet;

/// The other components of a job that are in memory.
pub(crate) fn siblings(state: &State, job: JobId) -> Vec<JobId> {
    let part = state.job(job).and_then(|job| job.spec.part);
    let is_known = |id: &JobId| state.jobs.contains(*id);
    part.map_or(Vec::new(), |part| part.others().filter(is_known).collect())
}

/// The open runs of a job's components, the leader's first; of any other job its own.
pub(crate) fn whole(state: &State, run: RunId) -> Vec<RunId> {
    let Some(part) = state.job(run.job).and_then(|job| job.spec.part) else {
        return vec![run];
    };
    let live = part.jobs().filter_map(|id| state.job(id)?.live_run());
    live.filter(|id| state.run(*id).is_some_and(|run| run.outcome.is_none()))
        .collect()
}

/// The runs that go now that one is ready: none while a component of its job is not.
pub(crate) fn ready_together(state: &State, run: RunId) -> Vec<RunId> {
    let all = whole(state, run);
    let size = state.job(run.job).and_then(|job| job.spec.part);
    let are_there = size.is_none_or(|part| all.len() == part.size as usize);
    let is_ready = |run: &Run| {
        run.go.is_none() && run.stop.is_none() && run.members.iter().all(Member::is_ready)
    };
    let ready = |id: &RunId| state.run(*id).is_some_and(is_ready);
    match are_there && all.iter().all(ready) {
        true => all,
        false => Vec::new(),
    }
}

/// The runs that end with this one, whose nodes have all ended: none while another component has processes. Those are told
/// to stop.
pub(crate) fn ended_together(tx: &mut Tx, run: RunId) -> Vec<RunId> {
    let all = whole(tx.state, run);
    let is_over = |id: &RunId| {
        let run = tx.run(*id);
        run.is_some_and(|run| run.members.iter().all(Member::is_ended))
    };
    if all.iter().all(is_over) {
        return all;
    }
    let stop = order(tx, run, StopCause::Member, SYSTEM);
    stop_siblings(tx, run, &stop);
    Vec::new()
}

/// The outcomes of components: each has times and use of its own, and the state of the one that ended first.
pub(crate) fn agree(state: &State, outcomes: &mut [(RunId, Outcome)]) {
    let is_first = |run: &RunId| {
        let stop = state.run(*run).and_then(|run| run.stop.as_ref());
        stop.is_none_or(|stop| stop.with.is_none())
    };
    let at = outcomes.iter().position(|(run, _)| is_first(run));
    let Some((_, first)) = outcomes.get(at.unwrap_or(0)).cloned() else {
        return;
    };
    for (_, outcome) in outcomes {
        *outcome = Outcome {
            state: first.state,
            exit: first.exit,
            text: first.text.clone(),
            requeue: first.requeue,
            try_after: first.try_after,
            hold: first.hold.clone(),
            ..outcome.clone()
        };
    }
}

/// Says to the other components what the events of an input said to one.
pub(crate) fn follow(tx: &mut Tx, from: usize) {
    for at in from..tx.events.len() {
        if let Some(job) = said_to(&tx.events[at])
            && tx.job(job).is_some_and(|job| job.spec.part.is_some())
        {
            let event = tx.events[at].clone();
            for sibling in siblings(tx.state, job) {
                say(tx, sibling, &event);
            }
        }
    }
}

/// The job that an event is about, where it holds for all components.
fn said_to(event: &Event) -> Option<JobId> {
    match event {
        Event::JobCancelled { job, .. }
        | Event::JobHeld { job, .. }
        | Event::JobReleased { job, .. }
        | Event::JobUpdated { job, .. }
        | Event::JobRequeued { job, .. } => Some(*job),
        Event::RequeueDropped { run, .. }
        | Event::RunSuspended { run, .. }
        | Event::RunResumed { run, .. }
        | Event::RunStopping { run, .. } => Some(run.job),
        _ => None,
    }
}

fn say(tx: &mut Tx, id: JobId, event: &Event) {
    if let Event::RunStopping { run, stop } = event {
        if stop.with.is_none() {
            stop_siblings(tx, *run, &stop.clone());
        }
        return;
    }
    let Some(job) = tx.job(id) else {
        return;
    };
    let run = job.live_run().and_then(|run| tx.run(run));
    if let Some(said) = said_of_job(tx, job, run, event).or_else(|| said_of_run(tx, run?, event)) {
        tx.emit(said);
    }
}

fn said_of_job(tx: &Tx, job: &Job, run: Option<&Run>, event: &Event) -> Option<Event> {
    match event {
        Event::JobCancelled {
            by,
            text,
            reason,
            at,
            ..
        } if job.state == JobState::Pending => Some(Event::JobCancelled {
            job: job.id,
            by: by.clone(),
            text: text.clone(),
            reason: *reason,
            at: *at,
        }),
        Event::JobCancelled { by, .. } => drop_requeue(tx, run?, by),
        Event::JobHeld { mark, .. } if !job.state.is_final() => {
            let is_held = job.holds.iter().any(|held| held.owner == mark.owner);
            (!is_held).then(|| Event::JobHeld {
                job: job.id,
                mark: mark.clone(),
            })
        }
        Event::JobReleased { owner, at, .. } if !job.holds.is_empty() => {
            let is_held = match owner {
                Some(owner) => job.holds.iter().any(|held| held.owner == *owner),
                None => true,
            };
            is_held.then(|| Event::JobReleased {
                job: job.id,
                owner: owner.clone(),
                at: *at,
            })
        }
        Event::JobUpdated { change, by, .. } if !job.state.is_final() => {
            let shared = change.of_all_parts();
            (shared != JobChange::default()).then(|| Event::JobUpdated {
                job: job.id,
                change: shared,
                by: by.clone(),
            })
        }
        Event::JobRequeued { by, at, .. } => requeued(job, run, by, *at),
        _ => None,
    }
}

fn said_of_run(tx: &Tx, run: &Run, event: &Event) -> Option<Event> {
    match event {
        Event::RequeueDropped { stop, .. } => drop_requeue(tx, run, &stop.by),
        Event::RunSuspended { suspension, .. } => {
            let goes = run.suspension.is_none() && run.stop.is_none() && run.outcome.is_none();
            goes.then(|| Event::RunSuspended {
                run: run.id,
                suspension: suspension.clone(),
            })
        }
        Event::RunResumed { by, at, .. } => run.suspension.is_some().then(|| Event::RunResumed {
            run: run.id,
            by: by.clone(),
            at: *at,
        }),
        _ => None,
    }
}

fn drop_requeue(tx: &Tx, run: &Run, by: &str) -> Option<Event> {
    let outcome = run.outcome.as_ref()?;
    outcome.requeue.is_some().then(|| Event::RequeueDropped {
        run: run.id,
        stop: order(tx, run.id, StopCause::Cancelled, by),
    })
}

fn requeued(job: &Job, run: Option<&Run>, by: &str, at: Timestamp) -> Option<Event> {
    let run = match run {
        Some(run) => {
            let outcome = run.outcome.as_ref()?;
            if outcome.requeue.is_some() {
                return None;
            }
            Some(run.id)
        }
        None if job.state.is_final() => None,
        None => return None,
    };
    Some(Event::JobRequeued {
        job: job.id,
        run,
        by: by.to_owned(),
        at,
    })
}

/// Stops the other components of a run by the order that it has.
fn stop_siblings(tx: &mut Tx, run: RunId, with: &Stop) {
    for id in whole(tx.state, run) {
        let Some(record) = tx.run(id).filter(|_| id != run) else {
            continue;
        };
        // As for one run: a cancel replaces other orders.
        let stands = record
            .stop
            .as_ref()
            .is_some_and(|stop| with.why != StopCause::Cancelled || stop.why == with.why);
        if stands {
            continue;
        }
        let for_job = record.stop.as_ref().and_then(|stop| stop.for_job);
        let stop = Stop {
            with: Some(run.job),
            late: Vec::new(),
            number: 0,
            lost_gpu_secs: 0,
            for_job: with.for_job.or(for_job),
            checkpoint_secs: order(tx, id, with.why, &with.by).checkpoint_secs,
            ..with.clone()
        };
        tx.emit(Event::RunStopping { run: id, stop });
    }
}

/// What must never be.
pub(crate) fn check(state: &State, found: &mut Vec<String>) {
    if state.adoption.is_some() {
        return;
    }
    let is_leader = |job: &&Job| job.spec.part.is_some_and(JobPart::is_leader);
    for leader in state.jobs.values().filter(is_leader) {
        let mut all = vec![leader];
        let others = siblings(state, leader.id);
        all.extend(others.iter().filter_map(|id| state.job(*id)));
        let faults = faults(state, &all);
        found.extend(faults.map(|fault| format!("job {} {fault}", leader.id)));
    }
}

fn faults(state: &State, all: &[&Job]) -> impl Iterator<Item = &'static str> {
    let open = |job: &&Job| {
        state
            .run(job.live_run()?)
            .filter(|run| run.outcome.is_none())
    };
    let running: Vec<&Run> = all.iter().filter_map(open).collect();
    let is_pending = |job: &&Job| job.state == JobState::Pending;
    let gone = running.iter().filter(|run| run.go.is_some()).count();
    let over = all.iter().filter(|job| job.state.is_final());
    let states: BTreeSet<JobState> = over.map(|job| job.state).collect();
    let runs = !running.is_empty();
    [
        (
            runs && all.iter().any(is_pending),
            "waits in part and runs in part",
        ),
        (
            runs && running.len() != all.len(),
            "has lost a component's run",
        ),
        (gone > 0 && gone < running.len(), "goes in part"),
        (states.len() > 1, "ended in several states"),
    ]
    .into_iter()
    .filter_map(|(is_so, fault)| is_so.then_some(fault))
}
