//! Runs that stand still: by an operator's word, or so that a job which needs no GPUs may have their CPUs.
//!
//! A suspended run keeps its GPUs and memory, its node freezes it, its limit does not run and the time is not charged. One
//! that was suspended for a job has lent its CPUs, and goes on when a plan says that they are free again; an operator's
//! keeps them, and goes on at the operator's word. Source: scontrol(1), suspend and resume.

use super::command::{Actor, Refusal, Reply, Target};
use super::event::Event;
use super::handle::{Tx, operator_only};
use super::state::{Run, State, Suspension};
use super::targets::{Found, each, find, own_tasks, shown};
use gmodel::{JobId, JobState, RefusalKind, RunId, Timestamp};

/// Operators only: its owner would keep GPUs from others for nothing.
pub(super) fn suspend(tx: &mut Tx, actor: &Actor, targets: &[Target]) -> Result<Reply, Refusal> {
    operator_only(actor, "suspending jobs")?;
    Ok(each(tx, targets, |tx, target| {
        let runs = live_runs(tx, actor, target)?;
        let awake = |run: &Run| run.suspension.is_none() && run.stop.is_none();
        let runs: Vec<RunId> = runs
            .into_iter()
            .filter(|run| tx.state.runs.get(*run).is_some_and(awake))
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

/// Lets jobs go on that an operator suspended.
pub(super) fn resume(tx: &mut Tx, actor: &Actor, targets: &[Target]) -> Result<Reply, Refusal> {
    operator_only(actor, "resuming jobs")?;
    Ok(each(tx, targets, |tx, target| {
        let runs = live_runs(tx, actor, target)?;
        let state = &*tx.state;
        let of = |run: &RunId| state.runs.get(*run).and_then(|run| run.suspension.as_ref());
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

fn live_runs(tx: &Tx, actor: &Actor, target: &Target) -> Result<Vec<RunId>, Refusal> {
    let jobs: Vec<JobId> = match find(tx.state, actor, target)? {
        Found::Job(id) => vec![id],
        Found::Array(id) => own_tasks(tx.state, id),
        Found::Untouched { .. } | Found::Over => Vec::new(),
    };
    let live = jobs
        .iter()
        .filter_map(|id| tx.state.jobs.get(*id)?.live_run());
    let live: Vec<RunId> = live
        .filter(|run| {
            tx.state
                .runs
                .get(*run)
                .is_some_and(|run| run.outcome.is_none())
        })
        .collect();
    if live.is_empty() {
        return Err(
            Refusal::conflict(format!("job {} is not running.", shown(target)))
                .about(RefusalKind::JobPending),
        );
    }
    Ok(live)
}

/// Runs whose CPUs are free again go on, as a plan says and as far as that is still so.
pub(super) fn enter(tx: &mut Tx, resumes: Vec<RunId>) {
    for id in resumes {
        let Some(run) = tx.state.runs.get(id).filter(|run| run.goes_on_later()) else {
            continue;
        };
        let has_room = run.allocation.iter().all(|share| {
            tx.state
                .nodes
                .get(share.node)
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

pub(super) fn apply_suspended(state: &mut State, id: RunId, suspension: &Suspension) {
    if let Some(run) = state.runs.get_mut(id) {
        run.suspension = Some(Box::new(suspension.clone()));
    }
    turn(state, id, JobState::Suspended);
}

pub(super) fn apply_resumed(state: &mut State, id: RunId, at: Timestamp) {
    if let Some(run) = state.runs.get_mut(id) {
        run.suspended_millis = run.suspended_by(at);
        run.suspension = None;
    }
    let script_ended = state.runs.get(id).is_some_and(|run| {
        run.members
            .first()
            .is_some_and(|member| member.end().is_some())
    });
    turn(
        state,
        id,
        if script_ended {
            JobState::Completing
        } else {
            JobState::Running
        },
    );
}

fn turn(state: &mut State, id: RunId, to: JobState) {
    if let Some(job) = state
        .jobs
        .get_mut(id.job)
        .filter(|job| job.live_run() == Some(id))
    {
        job.state = to;
    }
}

impl Run {
    /// Its CPUs are others' while it stands still.
    pub fn lends_cpus(&self) -> bool {
        self.suspension
            .as_ref()
            .is_some_and(|one| one.for_job.is_some())
    }

    /// It lent its CPUs and is to go on with them: nothing ended it meanwhile.
    pub fn goes_on_later(&self) -> bool {
        self.lends_cpus() && self.stop.is_none() && self.outcome.is_none()
    }

    /// Milliseconds that it stood still until a time.
    pub fn suspended_by(&self, at: Timestamp) -> u64 {
        let at = self.stop.as_ref().map_or(at, |stop| stop.at.min(at));
        let now = self
            .suspension
            .as_ref()
            .map_or(0, |one| at.since_millis(one.since));
        self.suspended_millis + u64::try_from(now).unwrap_or(0)
    }
}

/// What must never be.
pub(super) fn check(state: &State, found: &mut Vec<String>) {
    for run in state.runs.values().filter(|run| run.outcome.is_none()) {
        let job = state
            .jobs
            .get(run.id.job)
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
