//! Planned starts of jobs with several entries (partitions, features): one for each job or task, the earliest.
//!
//! Source: slurm.conf(5), `bf_one_resv_per_job`.

use crate::backfill::earliest::earliest_start;
use crate::backfill::planned::PlannedStart;
use crate::backfill::reserve::plan_start_at;
use crate::cluster::node_state::Hold;
use crate::job::job_class::JobClassId;
use crate::pass::Pass;
use crate::place::gpu_reservation::{hold_counted_again, lift_counted, promise_reserved};
use crate::snapshot::PendingJob;
use gmodel::JobId;
use std::ops::Range;

/// Whether a job has, or is to get, a planned start in another of its partitions.
pub(crate) fn waits_elsewhere(pass: &Pass, job: &PendingJob) -> bool {
    pass.backfill
        .wants
        .iter()
        .any(|want| is_of(job, want.job, want.is_array))
        || places_of(pass, job).next().is_some()
}

pub(crate) fn places_of<'p>(
    pass: &'p Pass,
    job: &PendingJob,
) -> impl Iterator<Item = usize> + use<'p> {
    let (id, is_array) = (job.id, job.particulars.positions.is_some());
    let of_job = move |one: &PlannedStart| {
        one.job == id && one.is_array == is_array && !one.holds.is_empty()
    };
    (0..pass.backfill.reserved.len()).filter(move |at| of_job(&pass.backfill.reserved[*at]))
}

/// Takes a planned start back. An empty one keeps its place: loops along the list must not miss the next.
///
/// No trial does this and `hold_own`: a start in between stays, so the part that it did not take is put back by hand.
pub(crate) fn lift_reserved(pass: &mut Pass, job: &PendingJob, place: usize) -> PlannedStart {
    let own = &mut pass.backfill.reserved[place];
    let lifted = PlannedStart {
        holds: std::mem::take(&mut own.holds),
        ..own.clone()
    };
    for (hold, nodes) in &lifted.holds {
        nodes
            .clone()
            .for_each(|at| pass.world.cluster.touch(at).release(hold));
    }
    promise_reserved(pass, lifted.counted, &lifted.holds, false);
    for (name, count) in &job.spec.licences {
        pass.world
            .licences
            .get_mut(name)
            .into_iter()
            .for_each(|free| free.give(lifted.at, lifted.to, *count));
    }
    lifted
}

/// Holds again what was lifted, where the job did not start.
pub(crate) fn hold_own(pass: &mut Pass, job: &PendingJob, own: Vec<(usize, PlannedStart)>) {
    for (place, own) in own {
        for (hold, nodes) in &own.holds {
            nodes
                .clone()
                .for_each(|at| pass.world.cluster.touch(at).hold_again(hold));
        }
        for (name, count) in &job.spec.licences {
            pass.world
                .licences
                .get_mut(name)
                .into_iter()
                .for_each(|free| free.take(own.at, own.to, *count));
        }
        promise_reserved(pass, own.counted, &own.holds, true);
        pass.backfill.reserved[place] = own;
    }
}

/// Holds all but one planned start again after the job, or a task, started: without the one that the start overlaps, or the latest.
pub(crate) fn hold_but_one(pass: &mut Pass, job: &PendingJob, mut own: Vec<(usize, PlannedStart)>) {
    own.sort_by_key(|(place, one)| (one.at, *place));
    let mut left = own.len().saturating_sub(1);
    for (place, one) in own {
        if left > 0 && still_fits(pass, job, &one) {
            left -= 1;
            hold_own(pass, job, vec![(place, one)]);
        } else {
            forget_not_before(pass);
        }
    }
}

/// Forgets since when job classes have room: a planned start is gone, and later jobs may have its time.
pub(crate) fn forget_not_before(pass: &mut Pass) {
    for job_class in &mut pass.memory.job_classes.list {
        job_class.pass.not_before.clear();
        job_class.pass.not_before_window.clear();
    }
}

pub(crate) fn still_fits(pass: &Pass, job: &PendingJob, one: &PlannedStart) -> bool {
    let cluster = &pass.world.cluster;
    let has_room = |(hold, nodes): &(Hold, Range<usize>)| {
        nodes
            .clone()
            .all(|at| cluster.state(at).can_hold_again(hold))
    };
    let is_free = |(name, count): (&String, &u32)| {
        pass.world
            .licences
            .get(name)
            .is_some_and(|free| free.least(one.at, one.to) >= *count)
    };
    one.holds.iter().all(has_room) && job.spec.licences.iter().all(is_free)
}

/// Gives each job, and each task of an array, one planned start, in the partition that offers the earliest: this partition
/// replaces the latest planned start of another one where it offers an earlier one.
pub(crate) fn reserve_choice(
    pass: &mut Pass,
    job: &PendingJob,
    job_class: JobClassId,
    partition: usize,
    tasks: u32,
) {
    let lifted = lift_counted(pass, job_class);
    reserve_tasks(pass, job, job_class, partition, tasks);
    hold_counted_again(pass, lifted);
}

fn reserve_tasks(
    pass: &mut Pass,
    job: &PendingJob,
    job_class: JobClassId,
    partition: usize,
    tasks: u32,
) {
    for _ in 0..tasks {
        if pass.backfill.reserve_left[partition] == 0 || pass.is_spent() {
            return;
        }
        pass.backfill.reserve_left[partition] -= 1;
        let is_new = places_of(pass, job).count() < tasks as usize;
        let latest = places_of(pass, job)
            .max_by_key(|place| (pass.backfill.reserved[*place].at, *place))
            .filter(|_| !is_new);
        let own: Vec<_> = latest
            .map(|place| (place, lift_reserved(pass, job, place)))
            .into_iter()
            .collect();
        let known = (!own.is_empty()).then(|| std::mem::take(pass.of_pass(job_class)));
        let found = earliest_start(pass, job, job_class)
            .filter(|found| own.iter().all(|(_, own)| found.at < own.at));
        known
            .into_iter()
            .for_each(|known| *pass.of_pass(job_class) = known);
        if found
            .and_then(|found| plan_start_at(pass, job, job_class, found))
            .is_none()
        {
            return hold_own(pass, job, own);
        }
        if !own.is_empty() {
            forget_not_before(pass);
        }
    }
}

pub(crate) fn is_of(job: &PendingJob, id: JobId, is_array: bool) -> bool {
    job.id == id && job.particulars.positions.is_some() == is_array
}
