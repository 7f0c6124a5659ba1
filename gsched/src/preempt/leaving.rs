//! Victims that are still ending at the start of a pass, and the jobs that preempted them.

use crate::snapshot::{PendingJob, Snapshot};
use gmodel::{JobId, RunId};
use std::collections::{BTreeMap, BTreeSet};

/// Victims of a forecast that preemption ends once their protected time is over.
#[derive(Debug, Default)]
pub(crate) struct LaterVictims {
    pub(crate) runs: BTreeSet<RunId>,
    /// Jobs for which such victims were looked for.
    pub(crate) jobs: usize,
}

/// Runs that are being ended, and the jobs that preempted them.
#[derive(Clone, Debug, Default)]
pub(crate) struct LeavingRuns {
    pub runs: BTreeSet<RunId>,
    /// How many victims each job, or task of an array, has.
    pub(crate) for_job: BTreeMap<JobId, usize>,
    /// Jobs that will be guaranteed when they start.
    pub(crate) owed: BTreeSet<JobId>,
}

impl LeavingRuns {
    pub fn new(snapshot: &Snapshot) -> Self {
        let mut leaving = Self {
            owed: promised_guarantee(snapshot),
            ..Self::default()
        };
        for run in snapshot.running.iter().filter(|run| run.stops_by.is_some()) {
            leaving.runs.insert(run.run);
            if let Some(job) = run.victim_of {
                *leaving.for_job.entry(job).or_default() += 1;
            }
        }
        leaving
    }

    /// How many victims of a job, or of any task of an array, are being ended; `None`: no run.
    pub fn for_job(&self, job: &PendingJob) -> Option<usize> {
        let count: usize = self
            .for_job
            .range(job.ids())
            .filter(|(id, _)| job.is_or_has(**id))
            .map(|(_, count)| count)
            .sum();
        (count > 0).then_some(count)
    }
}

/// Jobs that start on their account's guarantee after the end of their victims, not as borrowers.
pub(crate) fn promised_guarantee(snapshot: &Snapshot) -> BTreeSet<JobId> {
    let leaving = snapshot
        .running
        .iter()
        .filter(|run| !run.leaves_for_borrower);
    leaving.filter_map(|run| run.victim_of).collect()
}
