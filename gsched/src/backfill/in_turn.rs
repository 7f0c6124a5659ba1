//! Planned starts of array tasks that follow each other: many in a row take one place, so a million tasks cost little more than a hundred.
//!
//! Only forecasts plan them; a pass that decides leaves them for later passes.

use crate::backfill::choices::reserve_choice;
use crate::backfill::planned::{
    EarliestStart, LONGEST_SECS, MOST_RESERVED_TASKS, PlannedStart, in_a_row,
};
use crate::backfill::reserve::plan_start_at;
use crate::forecast::array_starts::{Row, nth_of};
use crate::forecast::limited::earliest_allowed;
use crate::job::job_class::JobClassId;
use crate::pass::Pass;
use crate::place::gpu_reservation::{hold_counted_again, lift_counted};
use crate::snapshot::{Particulars, PendingJob};
use gmodel::Timestamp;
use gmodel::array_spec::RangeSet;

/// Places of one array, each for one task or many in a row.
const MOST_ROWS: u32 = 512;

/// Of all arrays of a plan: after that they have those places only that a pass may give them.
const MOST_ROWS_OF_ALL: usize = 16_384;

/// Plans the tasks of an array, or a task of one with a record of its own, that are neither started nor among the reservations from a
/// place on.
pub(crate) fn plan_following_tasks(
    pass: &mut Pass,
    job: &PendingJob,
    shape: JobClassId,
    started: u32,
    before: usize,
) {
    let is_own = |one: &&PlannedStart| one.job == job.id && one.is_array && !one.holds.is_empty();
    let reserved = pass
        .backfill
        .reserved
        .iter()
        .skip(before)
        .filter(is_own)
        .count() as u32;
    let all = job.positions.as_ref().map_or(1, RangeSet::len);
    let mut left = all.saturating_sub(u64::from(started + reserved));
    if job.is_choice() {
        let tasks = all
            .saturating_sub(u64::from(started))
            .min(u64::from(MOST_RESERVED_TASKS));
        return reserve_choice(pass, job, shape, pass.shape(shape).partition, tasks as u32);
    }
    let lifted = lift_counted(pass, shape);
    let job = &PendingJob {
        particulars: of_one_task(job).into(),
        ..job.clone()
    };
    for made in reserved..MOST_ROWS {
        if left == 0 || pass.is_spent() || pass.world.array_caps.rows >= MOST_ROWS_OF_ALL {
            break;
        }
        let Some(next) = earliest_allowed(pass, job, shape) else {
            break;
        };
        let tasks = tasks_that_follow(pass, job, shape, (left, made), next.at);
        let Some((row, found)) = longest_row(pass, job, shape, tasks, next) else {
            break;
        };
        left -= tasks_in(job, &row).min(left);
        pass.world.array_caps.rows += 1;
        if plan_start_at(pass, &row, shape, found).is_none() {
            break;
        }
    }
    hold_counted_again(pass, lifted);
}

/// How many of so many tasks follow each other, where the next may start at a time. Where room is short they are planned one by one, as
/// long as they are few.
fn tasks_that_follow(
    pass: &Pass,
    job: &PendingJob,
    shape: JobClassId,
    (left, made): (u64, u32),
    at: Timestamp,
) -> u64 {
    let secs = job.held_secs();
    // In its reservation each ends with the window.
    let may_follow = pass.shape(shape).claim.own().is_none() && job.limit_secs.is_some();
    let most = u64::from(LONGEST_SECS / secs);
    let cap = job
        .capped_array()
        .and_then(|array| pass.world.array_caps.caps.get(&array));
    let tasks = match cap.filter(|cap| cap.first_for(1, pass.now, secs) == Some(at)) {
        _ if !may_follow => 1,
        Some(cap) => {
            // Each place goes on from when it is free.
            let free = cap.rises(at).into_iter().take((MOST_ROWS - made) as usize);
            let places: Vec<Row> = free.map(|from| Row { from, tasks: left }).collect();
            let last = nth_of(&places, secs, left - 1);
            last.map_or(1, |last| {
                last.since_secs(at).max(0) as u64 / u64::from(secs) + 1
            })
        }
        None if made < MOST_RESERVED_TASKS => 1,
        None => left.div_ceil(u64::from(
            (2 * MOST_RESERVED_TASKS).saturating_sub(made).max(1),
        )),
    };
    tasks.min(left).min(most).max(1)
}

/// As many tasks in a row, of so many, as have room from when the next has it.
fn longest_row(
    pass: &mut Pass,
    job: &PendingJob,
    shape: JobClassId,
    most: u64,
    next: EarliestStart,
) -> Option<(PendingJob, EarliestStart)> {
    let mut tasks = most;
    while tasks > 1 {
        let row = in_a_row(job, tasks);
        match earliest_allowed(pass, &row, shape).filter(|found| found.at <= next.at) {
            Some(found) => return Some((row, found)),
            None => tasks /= 2,
        }
    }
    // What was found out for the next alone may be gone with what was tried since.
    let next = if most > 1 {
        earliest_allowed(pass, job, shape)?
    } else {
        next
    };
    Some((in_a_row(job, 1), next))
}

/// Which of its tasks is meant, and how many there are, says nothing of when one starts.
fn of_one_task(job: &PendingJob) -> Particulars {
    let positions = job.positions.as_ref().map(|_| RangeSet::first_n(1));
    Particulars {
        positions,
        ..(*job.particulars).clone()
    }
}

fn tasks_in(job: &PendingJob, row: &PendingJob) -> u64 {
    u64::from(row.held_secs() / job.held_secs()).max(1)
}
