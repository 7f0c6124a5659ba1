//! After an input: the dependants of each job that began or ended look at their conditions again.

use crate::ctl::event::Event;
use crate::ctl::job::dependency::fate::fate;
use crate::ctl::job::dependency::readiness::{hopeless, kills, never};
use crate::ctl::job::dependency::resolve::{DependentJob, is_met};
use crate::ctl::owner::SYSTEM;
use crate::ctl::state::{EntryId, OpenDependency, State};
use crate::ctl::tx::Tx;
use gmodel::{JobId, JobState, ReasonCode};
use std::collections::BTreeSet;

/// After an input: dependants of what began or ended check their conditions again. A job that can never start
/// is cancelled if that was requested, and so on.
pub(crate) fn settle(tx: &mut Tx, from: usize) {
    let mut at = from;
    while at < tx.events.len() && !tx.state.index.dependents.is_empty() {
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

pub(crate) fn look_at_dependents(tx: &mut Tx, first: JobId, last: JobId) {
    let array = match tx.job(first).and_then(|job| job.task) {
        Some(task) => Some(task.array),
        None => tx.state.array_of(first).map(|(array, _)| array.id),
    };
    let from = |id: JobId| (id, EntryId::Job(JobId(0)));
    let of_one = tx
        .state
        .index
        .dependents
        .range(from(first)..from(JobId(last.0 + 1)));
    let of_array = array.filter(|array| *array < first).into_iter();
    let of_array = of_array.flat_map(|id| {
        tx.state
            .index
            .dependents
            .range(from(id)..from(JobId(id.0 + 1)))
    });
    let waiting: BTreeSet<EntryId> = of_one.chain(of_array).map(|(_, entry)| *entry).collect();
    let changed = (first == last).then_some(first);
    for entry in waiting {
        look_again(tx, entry, changed);
    }
}

/// Checks the open conditions of one pending job or array again.
pub(crate) fn look_again(tx: &mut Tx, entry: EntryId, changed: Option<JobId>) {
    let state = &*tx.state;
    let record = match entry {
        EntryId::Job(id) => state.job(id).map(|job| (&job.waits, &job.spec, job.task)),
        EntryId::Array(id) => state
            .array(id)
            .map(|array| (&array.waits, &array.spec, None)),
    };
    let Some((Some(waits), spec, task)) = record else {
        return;
    };
    let asker = DependentJob {
        id: entry.id(),
        spec,
        task,
    };
    let mut left = OpenDependency {
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
        entry,
        waits,
        at: tx.now,
    });
    cancel_hopeless(tx, entry);
}

/// Cancels what can never start, if the job or the site wants that.
pub(crate) fn cancel_hopeless(tx: &mut Tx, entry: EntryId) {
    match entry {
        EntryId::Job(id) => {
            let Some(job) = tx.job(id) else {
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
        EntryId::Array(id) => {
            let Some(array) = tx.array(id) else {
                return;
            };
            let Some(waits) = &array.waits else { return };
            let positions = hopeless(waits, &array.pending);
            if !positions.is_empty() && kills(tx.state, &array.spec) {
                tx.emit(Event::TasksCancelled {
                    array: id,
                    positions,
                    by: SYSTEM.into(),
                    reason: ReasonCode::DependencyNeverSatisfied,
                    at: tx.now,
                });
            }
        }
    }
}

/// Violation: an index that differs from the records, or a condition that no job will ever decide.
pub(crate) fn check(state: &State, found: &mut Vec<String>) {
    let mut index = BTreeSet::new();
    let mut one = |entry: EntryId, pending: bool, waits: &Option<Box<OpenDependency>>| {
        let Some(waits) = waits else { return };
        if !pending {
            found.push(format!("{entry:?} has a dependency and is not pending"));
        }
        if waits.on.is_empty() {
            found.push(format!("{entry:?} waits for nothing"));
        }
        for wait in &waits.on {
            index.insert((wait.of, entry));
            let over = fate(state, &[], wait.of, wait.whole).is_none_or(|fate| fate.over);
            if over && wait.never.is_none() && wait.until.is_none() && !wait.is_by_task() {
                found.push(format!(
                    "{entry:?} waits for {}, which is over: {}",
                    wait.of, wait.condition
                ));
            }
        }
    };
    for job in state.jobs.values() {
        one(
            EntryId::Job(job.id),
            job.state == JobState::Pending,
            &job.waits,
        );
    }
    for array in state.arrays.values() {
        one(
            EntryId::Array(array.id),
            !array.pending.is_empty(),
            &array.waits,
        );
    }
    if index != state.index.dependents {
        let differ: Vec<_> = index
            .symmetric_difference(&state.index.dependents)
            .take(3)
            .collect();
        found.push(format!(
            "the index of dependencies is not that of the records: {differ:?}"
        ));
    }
}
