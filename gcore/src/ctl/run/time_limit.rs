//! The time limit of a run: as asked, cut by the plan, and bounded by the window of its reservation.

use crate::ctl::reservation::window::window_left_secs;
use crate::ctl::state::{Job, Run, State};
use gmodel::Timestamp;

impl State {
    /// The time limit of a job, seconds: its run's, which a plan may have shortened; else as requested.
    pub fn limit_in_force(&self, job: &Job) -> Option<u32> {
        job.live_run()
            .and_then(|run| self.runs.get(run))
            .map_or(job.limit_secs, |run| run.limit_secs)
    }

    /// The limit at which a run is ended, seconds: with its partition's over-time, and not beyond the
    /// reservation window in which it was placed.
    pub fn enforced_limit_secs(&self, run: &Run) -> Option<u32> {
        let job = self.jobs.get(run.id.job);
        let partition = job.and_then(|job| self.config.partition(&job.spec.partition));
        let over = partition.map_or(0, |partition| partition.over_time_secs);
        let longest = run.limit_secs?.saturating_add(over);
        let window_left = job.and_then(|job| window_left_secs(self, &job.spec, run.placed));
        Some(
            window_left
                .filter(|left| *left > 0)
                .map_or(longest, |left| longest.min(left)),
        )
    }

    /// The latest end of a run; unknown while it is suspended.
    pub fn ends_by(&self, run: &Run, from: Timestamp) -> Option<Timestamp> {
        let limit_secs = self
            .enforced_limit_secs(run)
            .filter(|_| run.suspension.is_none())?;
        let stood_still = i64::try_from(run.suspended_millis).unwrap_or(i64::MAX / 2);
        Some(
            from.plus_secs(i64::from(limit_secs))
                .plus_millis(stood_still),
        )
    }
}
