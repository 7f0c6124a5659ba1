//! Suspended runs go on: before anybody else as soon as the job that had their CPUs is done, or when it never started.
//!
//! Until their CPUs are all free, what is free of them is kept, so that smaller jobs do not starve a run that stands still
//! with its GPUs. Licences are not lent: what stands still keeps its seat at the licence server, so it need not wait for
//! them. (Slurm counts those of suspended jobs too: `license_job_get` after a restart.) Never suspends: that is preempt's.

use crate::cluster::timeline::{Need, UNLIMITED_SECS};
use crate::pass::Pass;
use crate::snapshot::RunningRun;
use gmodel::{JobId, Timestamp};

impl Pass<'_> {
    /// At the beginning of a pass: whose job is neither waiting nor running any more goes on, or keeps what is free.
    pub(crate) fn resume_first(&mut self) {
        let snapshot = self.snapshot;
        for run in in_order(&snapshot.running) {
            let Some(frozen) = &run.frozen else { continue };
            let runs = snapshot
                .running
                .iter()
                .any(|one| one.run.job == frozen.for_job && !one.charged);
            if !runs && !self.is_pending(frozen.for_job) && !self.resume(run) {
                self.keep_free(run);
            }
        }
    }

    /// At its end: what was suspended for a job that does not start all the same goes on if nobody took the CPUs.
    pub(crate) fn resume_rest(&mut self) {
        let snapshot = self.snapshot;
        for run in in_order(&snapshot.running) {
            let Some(frozen) = &run.frozen else { continue };
            let starts = self
                .plan
                .starts
                .iter()
                .any(|start| start.job == frozen.for_job);
            let preempts = self.preempts().any(|one| one.for_job == frozen.for_job);
            if !starts && !preempts && self.is_pending(frozen.for_job) {
                self.resume(run);
            }
        }
    }

    fn is_pending(&self, id: JobId) -> bool {
        self.snapshot.pending.iter().any(|one| one.is_or_has(id))
    }

    /// Takes the CPUs of a run if all of them are free now.
    fn resume(&mut self, run: &RunningRun) -> bool {
        let (now, to) = (self.snapshot.now, some_day(self.snapshot.now));
        let wants: Vec<(usize, u32)> = self.wants(run).collect();
        let fits = |(at, cpus): &(usize, u32)| {
            self.engine
                .cluster
                .room(*at)
                .fits(&of_cpus(*cpus), now, now.plus_millis(1))
        };
        let all = wants.len() == run.shares.len() && wants.iter().all(fits);
        if all {
            wants
                .into_iter()
                .for_each(|(at, cpus)| self.take_cpus(at, cpus, to));
            self.plan.resumes.push(run.run);
        }
        all
    }

    fn keep_free(&mut self, run: &RunningRun) {
        let (now, to) = (self.snapshot.now, some_day(self.snapshot.now));
        for (at, cpus) in self.wants(run).collect::<Vec<_>>() {
            let free = self.engine.cluster.room(at).profile.free_at(now).cpus;
            self.take_cpus(at, cpus.min(free), to);
        }
    }

    fn wants<'r>(&self, run: &'r RunningRun) -> impl Iterator<Item = (usize, u32)> + use<'r, '_> {
        let cpus = run.frozen.iter().flat_map(|frozen| &frozen.cpus);
        run.shares
            .iter()
            .zip(cpus)
            .filter_map(|(share, cpus)| Some((self.engine.cluster.place(share.node)?, *cpus)))
    }

    /// As far as others have not been promised them for later: those are put off.
    fn take_cpus(&mut self, at: usize, cpus: u32, to: Timestamp) {
        let now = self.snapshot.now;
        let room = self.engine.cluster.room(at);
        let to = room
            .until(&of_cpus(cpus), now)
            .map_or(to, |until| until.min(to));
        let _ = self.engine.cluster.touch(at).hold(&of_cpus(cpus), now, to);
    }
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

/// Those that were placed first stand still for the shortest time.
fn in_order(running: &[RunningRun]) -> Vec<&RunningRun> {
    let mut frozen: Vec<&RunningRun> = running.iter().filter(|run| run.frozen.is_some()).collect();
    frozen.sort_by_key(|run| (run.placed, run.run));
    frozen
}
