//! Resuming suspended runs: before all pending jobs, once the job that had their CPUs is done or never started.
//!
//! Until all of its CPUs are free, the free ones are kept: smaller jobs do not starve a suspended run that holds GPUs.
//! A suspended run keeps its licences, as it keeps its seat at the licence server; so does Slurm (`license_job_get`).
//! Never suspends: that is for preemption.

use crate::cluster::timeline::Need;
use crate::pass::Pass;
use crate::snapshot::RunningRun;
use gmodel::{JobId, Timestamp};
use gpolicy::pending_job::UNLIMITED_SECS;

/// At the beginning of a pass: a run resumes, or keeps its free CPUs, if the job it was suspended for has ended.
pub(crate) fn resume_first(pass: &mut Pass) {
    let snapshot = pass.snapshot;
    for run in in_order(&snapshot.running) {
        let Some(suspended) = &run.suspended else {
            continue;
        };
        let runs = snapshot
            .running
            .iter()
            .any(|one| one.run.job == suspended.for_job && !one.charged);
        if !runs && !is_pending(pass, suspended.for_job) && !resume_run(pass, run) {
            keep_free(pass, run);
        }
    }
}

/// At its end: a run resumes if the job it was suspended for did not start and its CPUs are free.
pub(crate) fn resume_rest(pass: &mut Pass) {
    let snapshot = pass.snapshot;
    for run in in_order(&snapshot.running) {
        let Some(suspended) = &run.suspended else {
            continue;
        };
        let starts = pass
            .plan
            .starts
            .iter()
            .any(|start| start.job == suspended.for_job);
        let preempts = pass.preempts().any(|one| one.for_job == suspended.for_job);
        if !starts && !preempts && is_pending(pass, suspended.for_job) {
            resume_run(pass, run);
        }
    }
}

fn is_pending(pass: &Pass, id: JobId) -> bool {
    pass.snapshot.pending.iter().any(|one| one.is_or_has(id))
}

/// Takes the CPUs of a run if all of them are free now.
fn resume_run(pass: &mut Pass, run: &RunningRun) -> bool {
    let (now, to) = (pass.snapshot.now, some_day(pass.snapshot.now));
    let wants: Vec<(usize, u32)> = wanted_cpus(pass, run).collect();
    let fits = |(at, cpus): &(usize, u32)| {
        pass.world
            .cluster
            .state(*at)
            .fits(&of_cpus(*cpus), now, now.plus_millis(1))
    };
    let all = wants.len() == run.shares.len() && wants.iter().all(fits);
    if all {
        wants
            .into_iter()
            .for_each(|(at, cpus)| take_cpus(pass, at, cpus, to));
        pass.plan.resumes.push(run.run);
    }
    all
}

fn keep_free(pass: &mut Pass, run: &RunningRun) {
    let (now, to) = (pass.snapshot.now, some_day(pass.snapshot.now));
    for (at, cpus) in wanted_cpus(pass, run).collect::<Vec<_>>() {
        let free = pass.world.cluster.state(at).profile.free_at(now).cpus;
        take_cpus(pass, at, cpus.min(free), to);
    }
}

fn wanted_cpus<'r>(pass: &'r Pass, run: &'r RunningRun) -> impl Iterator<Item = (usize, u32)> + 'r {
    let cpus = run.suspended.iter().flat_map(|suspended| &suspended.cpus);
    run.shares
        .iter()
        .zip(cpus)
        .filter_map(|(share, cpus)| Some((pass.world.cluster.place(share.node)?, *cpus)))
}

/// Takes CPUs of a node until a time, or until the first planned start that needs them.
fn take_cpus(pass: &mut Pass, at: usize, cpus: u32, to: Timestamp) {
    let now = pass.snapshot.now;
    let room = pass.world.cluster.state(at);
    let to = room
        .until(&of_cpus(cpus), now)
        .map_or(to, |until| until.min(to));
    let _ = pass.world.cluster.touch(at).hold(&of_cpus(cpus), now, to);
}

fn of_cpus(cpus: u32) -> Need {
    Need {
        cpus,
        mem_bytes: 0,
        gpus: 0,
        groups: 0,
        milli: 0,
        tenant: None,
        one_group: false,
        exclusive: false,
    }
}

fn some_day(now: Timestamp) -> Timestamp {
    now.plus_secs(i64::from(UNLIMITED_SECS))
}

#[cfg(test)]
mod tests;

/// The runs that were placed first are suspended for the shortest time.
fn in_order(running: &[RunningRun]) -> Vec<&RunningRun> {
    let mut suspended: Vec<&RunningRun> = running
        .iter()
        .filter(|run| run.suspended.is_some())
        .collect();
    suspended.sort_by_key(|run| (run.placed, run.run));
    suspended
}
