//! Victims: runs that end or stop for a nominated job, or for a drain with a deadline.
//!
//! The plan brings the proof. This module checks once more that the victims still run and that the job still waits. A victim
//! is asked for its checkpoint first. A job gets no more victims until its first ones are gone. If the job starts elsewhere
//! before, a victim is spared unless its node has the order.

use crate::ctl::event::Event;
use crate::ctl::job::dependency::readiness;
use crate::ctl::job::pending_reason;
use crate::ctl::node::registration::nodes_return;
use crate::ctl::run::class::{classify, is_outside_quota};
use crate::ctl::run::gang::advance;
use crate::ctl::run::stop_order::order;
use crate::ctl::state::{Member, Run, State, Stop, Suspension};
use crate::ctl::tx::Tx;
use gmodel::policy::PreemptMode;
use gmodel::run::StopCause;
use gmodel::{JobId, JobState, RunClass, RunId, Timestamp};
use gsched::Preempt;
use std::collections::BTreeSet;

/// Longest reason that is kept of a plan.
const MAX_WHY_BYTES: usize = 1000;

/// Tells the victims of a plan to stop.
pub(crate) fn enter(tx: &mut Tx, preempts: Vec<Preempt>) {
    if preempts.is_empty() || nodes_return(tx.state, tx.now) {
        return;
    }
    let being_served = served(tx.state);
    // Without an heir for its guarantee one victim stays, and then the others of its set would end for nothing.
    let bereft: BTreeSet<JobId> = preempts
        .iter()
        .filter(|one| !one.heirs.iter().all(|heir| may_inherit(tx.state, *heir)))
        .map(|one| one.for_job)
        .collect();
    for preempt in preempts {
        if bereft.contains(&preempt.for_job)
            || being_served.contains(&preempt.for_job)
            || !is_waiting(tx.state, preempt.for_job, tx.now)
        {
            continue;
        }
        let Some(mode) = mode_of(tx.state, &preempt) else {
            continue;
        };
        let text = words(tx.state, &preempt);
        if mode == PreemptMode::Suspend {
            let suspension = Suspension {
                since: tx.now,
                by: "scheduler".into(),
                for_job: Some(preempt.for_job),
                text,
            };
            tx.emit(Event::RunSuspended {
                run: preempt.run,
                suspension,
            });
        } else {
            stop(tx, preempt, mode, text);
        }
    }
}

/// Hands the victim's guarantee to its heirs and tells its nodes to stop it.
fn stop(tx: &mut Tx, preempt: Preempt, mode: PreemptMode, text: String) {
    let run = preempt.run;
    if !preempt.heirs.is_empty() {
        let heirs = preempt.heirs.into_iter();
        let classes = heirs.map(|heir| (heir, RunClass::Guaranteed));
        let own = std::iter::once((run, RunClass::Borrowed));
        classify(tx, own.chain(classes).collect());
    }
    let stop = Stop {
        for_job: Some(preempt.for_job),
        for_borrower: preempt.for_borrower,
        mode: Some(mode),
        lost_gpu_secs: preempt.lost_gpu_secs,
        text,
        ..order(tx, run, StopCause::Preempted, "scheduler")
    };
    tx.emit(Event::RunStopping { run, stop });
    advance(tx, run);
}

/// Jobs for which runs are being ended already.
fn served(state: &State) -> BTreeSet<JobId> {
    let leaving = |run: RunId| state.run(run).is_some_and(|run| !run.is_clean());
    state
        .index
        .making_room
        .iter()
        .filter(|(_, run)| leaving(*run))
        .map(|(job, _)| *job)
        .collect()
}

/// A job starts: victims of its nomination that are still whole are not needed. Their order is taken back where no node is
/// known to have it. What a node obeyed is final: gstepd has sent the signal, or asked for a checkpoint.
pub(crate) fn release_others(tx: &mut Tx, job: JobId) {
    let first = RunId::new(JobId(0), 1);
    let asked = tx
        .state
        .index
        .making_room
        .range((job, first)..(JobId(job.0 + 1), first))
        .filter_map(|(_, run)| tx.run(*run));
    let whole = |run: &&Run| run.outcome.is_none() && !run.members.iter().any(Member::is_ended);
    let asked = asked.filter(whole).filter_map(|run| {
        Some((
            run,
            run.stop
                .as_ref()
                .filter(|stop| stop.makes_room_for() == Some(job))?,
        ))
    });
    let unheard = |run: &Run, stop: &Stop| {
        let obeyed = |member: &Member| tx.node(member.node).map_or(u64::MAX, |node| node.obeyed);
        run.go.is_some()
            && run
                .members
                .iter()
                .all(|member| obeyed(member) < stop.number)
    };
    let asked: Vec<(&Run, &Stop)> = asked.collect();
    if asked.is_empty() {
        return;
    }
    // A job nominated to the same node counts on the victim, too, and has no other victims for that reason.
    let counted_on = pending_reason::nominated_nodes(tx.state);
    let is_free = |run: &Run| {
        !run.members
            .iter()
            .any(|member| counted_on.contains(&member.node))
    };
    let unneeded: Vec<(RunId, bool)> = asked
        .into_iter()
        .map(|(run, stop)| {
            // Of a job of unlike parts all components end, or none.
            let alone = tx.job(run.id.job).is_none_or(|job| job.spec.part.is_none());
            (run.id, alone && unheard(run, stop) && is_free(run))
        })
        .collect();
    for (run, called_back) in unneeded {
        tx.emit(Event::RunUnneeded {
            run,
            for_job: job,
            called_back,
            at: tx.now,
        });
    }
}

/// Whether a job waits for nothing but resources.
fn is_waiting(state: &State, id: JobId, now: Timestamp) -> bool {
    if let Some(job) = state.job(id) {
        return job.state == JobState::Pending
            && job.holds.is_empty()
            && job.waits.is_none()
            && job.is_due(now);
    }
    state.array_of(id).is_some_and(|(array, position)| {
        let open = array.pending.contains(position) && readiness::is_ready(array, position);
        open && array.holds_of(position).is_empty() && array.eligible <= now
    })
}

/// Whether a run can stand on a guarantee that another leaves: it runs, and goes on running.
fn may_inherit(state: &State, run: RunId) -> bool {
    state
        .run(run)
        .is_some_and(|run| run.stop.is_none() && run.outcome.is_none() && run.class.is_some())
}

/// How the run ends, if it may be preempted: it runs, and no stop order is open.
fn mode_of(state: &State, preempt: &Preempt) -> Option<PreemptMode> {
    let run = state
        .run(preempt.run)
        .filter(|run| run.stop.is_none() && run.outcome.is_none())?;
    let job = state.job(run.id.job)?;
    let partition = state.config.partition(&job.spec.partition);
    let may_requeue = job.may_requeue(partition.is_none_or(|partition| partition.requeue));
    match preempt.mode {
        PreemptMode::Requeue if may_requeue => Some(PreemptMode::Requeue),
        // As in Slurm: what cannot go back to the queue is ended.
        PreemptMode::Requeue | PreemptMode::Cancel => Some(PreemptMode::Cancel),
        PreemptMode::Suspend if run.suspension.is_none() => Some(PreemptMode::Suspend),
        PreemptMode::Off | PreemptMode::Suspend => None,
    }
}

/// `for job 42 of bob (account vision): 8 of its 16 guaranteed GPUs`.
fn words(state: &State, preempt: &Preempt) -> String {
    let spec = match state.job(preempt.for_job) {
        Some(job) => Some((job.shown_id(), &job.spec)),
        None => state.array_of(preempt.for_job).map(|(array, position)| {
            (
                format!(
                    "{}_{}",
                    array.id,
                    array.tasks.nth(position).unwrap_or(position)
                ),
                &array.spec,
            )
        }),
    };
    let whom = spec.map_or(String::new(), |(shown, spec)| {
        format!(
            "for job {shown} of {} (account {})",
            spec.user.name, spec.account
        )
    });
    let why: String = preempt.why.chars().take(MAX_WHY_BYTES).collect();
    if why.is_empty() {
        whom
    } else {
        format!("{whom}: {why}")
    }
}

/// What must never be.
pub(crate) fn check(state: &State, found: &mut Vec<String>) {
    let asked = state
        .runs
        .values()
        .filter_map(|run| Some((run.stop.as_ref()?.for_job?, run.id)));
    if asked.collect::<BTreeSet<_>>() != state.index.making_room {
        found.push("the index of who makes room is not that of the runs".into());
    }
    let since = state.policy_since.1;
    let quotas = state.policy.has_quotas();
    for run in state.runs.values() {
        if let Some(stop) = &run.stop
            && stop.why == StopCause::Preempted
            && (stop.for_job.is_none() || stop.mode.is_none())
        {
            found.push(format!("run {} is preempted for no job", run.id));
        }
        let Some(job) = state
            .job(run.id.job)
            .filter(|_| run.placed > since && run.outcome.is_none())
        else {
            continue;
        };
        let outside = is_outside_quota(state, &job.spec);
        if run.class.is_some() && (!quotas || outside) {
            found.push(format!(
                "run {} is {:?} and there are no quotas for it",
                run.id, run.class
            ));
        }
        if run.class.is_none() && quotas && !outside {
            found.push(format!("run {} has no class and there are quotas", run.id));
        }
    }
}
