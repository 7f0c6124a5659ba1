//! One entry of the queue in its turn: reasons that need no search, then a start or a wait.

use crate::backfill::choices::reserve_choice;
use crate::backfill::deferred::reserve_rivals;
use crate::backfill::planned::MOST_RESERVED_TASKS;
use crate::backfill::reserve::plan_start;
use crate::decide::start::{start_alone, start_tasks};
use crate::decide::wait::keep_waiting;
use crate::gang::consider::consider_gang;
use crate::job::job_class::JobClassId;
use crate::job::queue::QueueGroup;
use crate::job::reason::{array_limit, standing};
use crate::pass::Pass;
use crate::place::admission::{is_admitted_later, not_admitted};
use crate::place::allowed::refusing_limits;
use crate::place::gpu_reservation::{hold_counted_again, lift_counted};
use crate::snapshot::PendingJob;
use gmodel::Reason;

/// Starts what can start of a job; the reason of what is left waiting. Of the jobs of a queue group it is known what stands
/// against them whatever is free, and their job class.
pub(crate) fn consider(
    pass: &mut Pass,
    job: &PendingJob,
    partition: usize,
    group: Option<&QueueGroup>,
) -> Option<Reason> {
    if pass.is_settled(job) {
        return None;
    }
    if !job.particulars.others.is_empty() {
        return consider_gang(pass, job);
    }
    if group.is_none_or(|group| group.alone) {
        let policy = &pass.snapshot.config.partitions[partition];
        let standing = standing(job, policy, pass.snapshot);
        if standing.is_some() {
            return standing;
        }
    }
    let job_class = match group {
        Some(group) => group.job_class,
        None => pass.job_class_of(job, partition),
    };
    if let Some(never) = &pass.job_class(job_class).never {
        return Some(never.clone());
    }
    consider_class(pass, job, job_class)
}

/// The same for a job that nothing stands against that lasts.
fn consider_class(pass: &mut Pass, job: &PendingJob, job_class: JobClassId) -> Option<Reason> {
    if let Some(reason) = not_admitted(pass, job, job_class) {
        if pass.forecast.is_on && refusing_limits(pass, job, job_class).is_empty() {
            plan_in_window(pass, job, job_class);
        }
        return Some(reason);
    }
    if job.particulars.positions.is_none() && pass.array_room(job) == 0 {
        return Some(array_limit(job));
    }
    if pass.must_not_pass(pass.job_class(job_class).partition) {
        return Some(pass.job_class(job_class).behind.clone());
    }
    reserve_rivals(pass, job, job_class);
    let lifted = lift_counted(pass, job_class);
    let left = match &job.particulars.positions {
        None => start_alone(pass, job, job_class)
            .err()
            .map(|wait| (wait, 1)),
        Some(positions) => start_tasks(pass, job, positions, job_class),
    };
    let reason = left.map(|(wait, tasks)| keep_waiting(pass, job, job_class, wait, tasks));
    hold_counted_again(pass, lifted);
    reason
}

/// In a forecast: plans starts of a job, or of tasks of an array, in later windows of its reservation.
fn plan_in_window(pass: &mut Pass, job: &PendingJob, job_class: JobClassId) {
    if !is_admitted_later(pass, job, job_class) {
        return;
    }
    let most = u64::from(MOST_RESERVED_TASKS);
    let tasks = job
        .particulars
        .positions
        .as_ref()
        .map_or(1, |positions| positions.len().min(most) as u32);
    if job.is_choice() {
        return reserve_choice(
            pass,
            job,
            job_class,
            pass.job_class(job_class).partition,
            tasks,
        );
    }
    for _ in 0..tasks {
        if pass.is_spent() || plan_start(pass, job, job_class).is_none() {
            return;
        }
    }
}
