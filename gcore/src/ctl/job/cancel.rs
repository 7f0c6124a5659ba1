//! Cancelling and signalling. A pending job is over at once; a running job gets an order to stop and is over
//! when its nodes report it.

use crate::ctl::command::{Actor, CancelSignal, Refusal, Reply, Target};
use crate::ctl::event::Event;
use crate::ctl::job::deadline::{last_start, words};
use crate::ctl::job::targets::{
    TargetRecord, each, find, live_runs, own_tasks, recorded_jobs, shown,
};
use crate::ctl::owner::SYSTEM;
use crate::ctl::run::gang::stop;
use crate::ctl::run::stop_order::order;
use crate::ctl::state::{Run, intersection, put_in};
use crate::ctl::tx::Tx;
use gmodel::array_spec::RangeSet;
use gmodel::run::{NumberedSignal, StopCause};
use gmodel::{JobId, JobSpec, JobState, ReasonCode, RefusalKind, RunId};
use std::collections::BTreeMap;

/// Most signals in a run's record; the oldest delivered ones are dropped.
const MAX_SIGNALS: usize = 256;

pub(crate) fn handle(
    tx: &mut Tx,
    actor: &Actor,
    targets: &[Target],
    signal: Option<CancelSignal>,
) -> Reply {
    let mut untouched: BTreeMap<JobId, RangeSet> = BTreeMap::new();
    let reply = each(tx, targets, |tx, target| {
        let found = find(tx.state, actor, target)?;
        match signal {
            None => {
                cancel(tx, actor, found, &mut untouched);
                Ok(())
            }
            Some(signal) => send(tx, target, found, signal),
        }
    });
    for (array, positions) in untouched {
        cancel_tasks(tx, array, positions, &actor.user, ReasonCode::None);
    }
    reply
}

/// Tasks without records are collected: those of an array are cancelled together, in one event.
fn cancel(
    tx: &mut Tx,
    actor: &Actor,
    found: TargetRecord,
    untouched: &mut BTreeMap<JobId, RangeSet>,
) {
    match found {
        TargetRecord::Job(id) => cancel_job(tx, actor, id),
        TargetRecord::Untouched { array, positions } => {
            put_in(untouched.entry(array).or_default(), &positions)
        }
        TargetRecord::Array(array) => {
            for id in own_tasks(tx.state, array) {
                cancel_job(tx, actor, id);
            }
            cancel_untouched(tx, array, &actor.user, ReasonCode::None);
        }
        TargetRecord::Over => {}
    }
}

/// Cancels every task of an array without a record of its own.
pub(crate) fn cancel_untouched(tx: &mut Tx, array: JobId, by: &str, reason: ReasonCode) {
    let positions = tx
        .array(array)
        .map_or(RangeSet::new(), |array| array.pending.clone());
    cancel_tasks(tx, array, positions, by, reason);
}

/// Cancels the given tasks that have no record of their own.
fn cancel_tasks(tx: &mut Tx, array: JobId, positions: RangeSet, by: &str, reason: ReasonCode) {
    let Some(record) = tx.array(array) else {
        return;
    };
    let positions = intersection(&positions, &record.pending);
    if !positions.is_empty() {
        tx.emit(Event::TasksCancelled {
            array,
            positions,
            by: by.to_owned(),
            reason,
            at: tx.now,
        });
    }
}

fn cancel_job(tx: &mut Tx, actor: &Actor, id: JobId) {
    let Some(job) = tx.job(id) else {
        return;
    };
    match (job.state, job.live_run()) {
        (JobState::Pending, _) => {
            let by = actor.user.clone();
            let reason = ReasonCode::None;
            tx.emit(Event::JobCancelled {
                job: id,
                by,
                text: String::new(),
                reason,
                at: tx.now,
            });
        }
        (_, Some(run)) => {
            stop(tx, run, StopCause::Cancelled, &actor.user);
            drop_requeue(tx, run, &actor.user);
        }
        _ => {}
    }
}

/// Cancels a COMPLETING job that would be requeued.
fn drop_requeue(tx: &mut Tx, run: RunId, by: &str) {
    let outcome = tx.run(run).and_then(|run| run.outcome.as_ref());
    if outcome.is_some_and(|outcome| outcome.requeue.is_some()) {
        let stop = order(tx, run, StopCause::Cancelled, by);
        tx.emit(Event::RequeueDropped { run, stop });
    }
}

fn send(
    tx: &mut Tx,
    target: &Target,
    found: TargetRecord,
    signal: CancelSignal,
) -> Result<(), Refusal> {
    let found_over = matches!(found, TargetRecord::Over);
    let jobs = recorded_jobs(tx.state, found);
    let live = live_runs(tx.state, &jobs);
    if live.is_empty() {
        let text = format!(
            "job {} is not running: only running jobs take signals. To cancel it, leave out --signal.",
            shown(target)
        );
        let over = found_over
            || !jobs.is_empty()
                && jobs
                    .iter()
                    .all(|id| tx.job(*id).is_none_or(|job| job.state.is_final()));
        return Err(Refusal::conflict(text).about(if over {
            RefusalKind::JobOver
        } else {
            RefusalKind::JobPending
        }));
    }
    for run in live {
        let sent = tx.run(run).map_or(0, next_number);
        if sent as usize > MAX_SIGNALS {
            let text = format!("job {} was sent {MAX_SIGNALS} signals already", run.job);
            return Err(Refusal::conflict(text));
        }
        let signal = NumberedSignal {
            number: sent,
            signal: signal.signal,
            batch_only: signal.batch_only,
            full: signal.full,
        };
        tx.emit(Event::RunSignalled { run, signal });
    }
    Ok(())
}

fn next_number(run: &Run) -> u32 {
    run.signals.last().map_or(1, |signal| signal.number + 1)
}

/// Ends a pending job or array past the last start that meets its deadline.
pub(crate) fn drop_late(tx: &mut Tx, id: JobId) {
    let now = tx.now;
    let late = |spec: &JobSpec, limit| last_start(spec, limit).is_some_and(|at| at <= now);
    if let Some(job) = tx.job(id)
        && job.state == JobState::Pending
        && late(&job.spec, job.limit_secs)
    {
        let text = words(&job.spec, job.limit_secs);
        let reason = ReasonCode::DeadLine;
        tx.emit(Event::JobCancelled {
            job: id,
            by: SYSTEM.into(),
            text,
            reason,
            at: tx.now,
        });
    }
    if tx
        .array(id)
        .is_some_and(|array| late(&array.spec, array.limit_secs))
    {
        cancel_untouched(tx, id, SYSTEM, ReasonCode::DeadLine);
    }
}
