//! Suspension: by an operator, or so that a job without GPUs may use the run's CPUs.
//!
//! A suspended run keeps its GPUs and memory; its node stops its processes; its limit does not run and the
//! time is not charged. A run suspended for a job lends its CPUs and resumes when a plan says that they are
//! free. A run suspended by an operator keeps its CPUs until an operator resumes it. Source: scontrol(1),
//! suspend and resume.

use crate::ctl::command::{Actor, Refusal, Reply, Target};
use crate::ctl::event::Event;
use crate::ctl::job::targets::{each, find, live_runs, recorded_jobs, shown};
use crate::ctl::state::{Run, State, Suspension};
use crate::ctl::tx::{Tx, operator_only};
use gmodel::{JobState, RefusalKind, RunId};

/// Operators only: an owner would hold GPUs without using them.
pub(crate) fn suspend(tx: &mut Tx, actor: &Actor, targets: &[Target]) -> Result<Reply, Refusal> {
    operator_only(actor, "suspending jobs")?;
    Ok(each(tx, targets, |tx, target| {
        let runs = runs_of(tx, actor, target)?;
        let awake = |run: &Run| run.suspension.is_none() && run.stop.is_none();
        let runs: Vec<RunId> = runs
            .into_iter()
            .filter(|run| tx.run(*run).is_some_and(awake))
            .collect();
        if runs.is_empty() {
            return Err(Refusal::conflict(format!(
                "job {} is suspended already, or being ended.",
                shown(target)
            )));
        }
        for run in runs {
            let suspension = Suspension {
                since: tx.now,
                by: actor.user.clone(),
                for_job: None,
                text: String::new(),
            };
            tx.emit(Event::RunSuspended { run, suspension });
        }
        Ok(())
    }))
}

/// Resumes jobs that an operator suspended.
pub(crate) fn resume(tx: &mut Tx, actor: &Actor, targets: &[Target]) -> Result<Reply, Refusal> {
    operator_only(actor, "resuming jobs")?;
    Ok(each(tx, targets, |tx, target| {
        let runs = runs_of(tx, actor, target)?;
        let state = &*tx.state;
        let of = |run: &RunId| state.run(*run).and_then(|run| run.suspension.as_ref());
        let held: Vec<RunId> = runs
            .iter()
            .copied()
            .filter(|run| of(run).is_some_and(|one| one.for_job.is_none()))
            .collect();
        if held.is_empty() {
            let lent = runs.iter().find_map(|run| of(run)?.for_job);
            return Err(Refusal::conflict(match lent {
                Some(job) => format!(
                    "job {} was suspended for job {job} and goes on when its CPUs are free.",
                    shown(target)
                ),
                None => format!("job {} is not suspended.", shown(target)),
            }));
        }
        for run in held {
            tx.emit(Event::RunResumed {
                run,
                by: actor.user.clone(),
                at: tx.now,
            });
        }
        Ok(())
    }))
}

fn runs_of(tx: &Tx, actor: &Actor, target: &Target) -> Result<Vec<RunId>, Refusal> {
    let jobs = recorded_jobs(tx.state, find(tx.state, actor, target)?);
    let live = live_runs(tx.state, &jobs);
    if live.is_empty() {
        return Err(
            Refusal::conflict(format!("job {} is not running.", shown(target)))
                .about(RefusalKind::JobPending),
        );
    }
    Ok(live)
}

/// Resumes suspended runs with free CPUs, as the plan says and if that still holds.
pub(crate) fn enter(tx: &mut Tx, resumes: Vec<RunId>) {
    for id in resumes {
        let Some(run) = tx.run(id).filter(|run| run.goes_on_later()) else {
            continue;
        };
        let has_room = run.allocation.iter().all(|share| {
            tx.node(share.node)
                .is_some_and(|node| tx.state.free_on(node).cpus >= share.cpus)
        });
        if has_room {
            tx.emit(Event::RunResumed {
                run: id,
                by: "scheduler".into(),
                at: tx.now,
            });
        }
    }
}

/// Violations: a run and its job that disagree.
pub(crate) fn check(state: &State, found: &mut Vec<String>) {
    for run in state.runs.values().filter(|run| run.outcome.is_none()) {
        let job = state
            .job(run.id.job)
            .filter(|job| job.live_run() == Some(run.id));
        let shown = job.is_some_and(|job| job.state == JobState::Suspended);
        if run.suspension.is_some() != shown {
            found.push(format!(
                "run {} and its job do not agree whether it is suspended",
                run.id
            ));
        }
    }
}
