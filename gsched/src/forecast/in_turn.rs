//! Tasks of an array: those that start now; and in plans that foretell those that wait for others of it. Each starts as one before it
//! ends, as many side by side as its cap allows. Many that follow each other take their place as one, so that a million cost little more
//! than a hundred.
//!
//! A pass that decides keeps nothing for them: they have their turn in the passes that come.

use crate::backfill::waiting::{Earliest, MOST_RESERVED_TASKS};
use crate::cluster::nodes::end_of;
use crate::cluster::timeline::{Count, UNLIMITED_SECS};
use crate::forecast::array_starts::{Row, nth_of};
use crate::job::job_class::ShapeId;
use crate::job::reason::array_limit;
use crate::pass::{Pass, Reserved, Wait};
use crate::snapshot::{ArrayCap, Particulars, PendingJob, Snapshot};
use gmodel::array_spec::RangeSet;
use gmodel::{JobId, Timestamp};
use std::collections::BTreeMap;

/// Places of one array, each for one task or many in a row.
const MOST_ROWS: u32 = 512;
/// Of all arrays of a plan: after that they have those places only that a pass may give them.
const MOST_ROWS_OF_ALL: usize = 16_384;
/// No row is longer, seconds: nobody is told a start after that.
const LONGEST_SECS: u32 = 3 * UNLIMITED_SECS;

/// What a plan that foretells knows of arrays.
#[derive(Debug, Default)]
pub(crate) struct InTurn {
    /// Of those with a cap: how many more of their tasks may run over time.
    caps: BTreeMap<JobId, Count>,
    rows: usize,
}

impl Pass<'_> {
    /// Starts as many tasks of an array as can start now: why the next waits, with how many of those that its cap lets start, and how many
    /// have had their turn.
    pub(crate) fn start_tasks(
        &mut self,
        job: &PendingJob,
        positions: &RangeSet,
        shape: ShapeId,
    ) -> (Option<(Wait, u32)>, u32) {
        let elsewhere = self.choices.settled_of(job);
        let mut room = self.array_room(job);
        let mut done = elsewhere.len() as u32;
        let open = positions
            .iter()
            .filter(|position| !elsewhere.contains(&JobId(job.id.0 + u64::from(*position))));
        for position in open {
            if self.starts_left == 0 {
                break;
            }
            if room == 0 {
                return (Some((Wait::Limit(array_limit(job)), 0)), done);
            }
            let id = JobId(job.id.0 + u64::from(position));
            if let Err(wait) = self.start(job, id, shape) {
                let tasks = (positions.len() as u32).saturating_sub(done).min(room);
                return (Some((wait, tasks)), done);
            }
            room -= 1;
            done += 1;
        }
        (None, done)
    }

    /// Plans the tasks of an array, or a task of one with a record of its own, that are neither started nor among the reservations from a
    /// place on.
    pub(crate) fn follow(&mut self, job: &PendingJob, shape: ShapeId, started: u32, before: usize) {
        let is_own = |one: &&Reserved| one.job == job.id && one.is_array && !one.holds.is_empty();
        let reserved = self.reserved.iter().skip(before).filter(is_own).count() as u32;
        let all = job.positions.as_ref().map_or(1, RangeSet::len);
        let mut left = all.saturating_sub(u64::from(started + reserved));
        if job.is_choice() {
            let tasks = all
                .saturating_sub(u64::from(started))
                .min(u64::from(MOST_RESERVED_TASKS));
            return self.reserve_choice(job, shape, self.shape(shape).partition, tasks as u32);
        }
        let lifted = self.lift_counted(shape);
        let job = &PendingJob {
            particulars: of_one_task(job).into(),
            ..job.clone()
        };
        for made in reserved..MOST_ROWS {
            if left == 0 || self.is_spent() || self.in_turn.rows >= MOST_ROWS_OF_ALL {
                break;
            }
            let Some(next) = self.earliest_allowed(job, shape) else {
                break;
            };
            let tasks = self.tasks_that_follow(job, shape, (left, made), next.at);
            let Some((row, found)) = self.longest_row(job, shape, tasks, next) else {
                break;
            };
            left -= tasks_in(job, &row).min(left);
            self.in_turn.rows += 1;
            if self.reserve_at(&row, shape, found).is_none() {
                break;
            }
        }
        self.hold_again(lifted);
    }

    /// How many of so many tasks follow each other, where the next may start at a time. Where room is short they are planned one by one, as
    /// long as they are few.
    fn tasks_that_follow(
        &self,
        job: &PendingJob,
        shape: ShapeId,
        (left, made): (u64, u32),
        at: Timestamp,
    ) -> u64 {
        let secs = job.held_secs();
        // In its reservation each ends with the window.
        let may_follow = self.shape(shape).claim.own().is_none() && job.limit_secs.is_some();
        let most = u64::from(LONGEST_SECS / secs);
        let cap = job
            .capped_array()
            .and_then(|array| self.in_turn.caps.get(&array));
        let tasks = match cap.filter(|cap| cap.first_for(1, self.now, secs) == Some(at)) {
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
        &mut self,
        job: &PendingJob,
        shape: ShapeId,
        most: u64,
        next: Earliest,
    ) -> Option<(PendingJob, Earliest)> {
        let mut tasks = most;
        while tasks > 1 {
            let row = in_a_row(job, tasks);
            match self
                .earliest_allowed(&row, shape)
                .filter(|found| found.at <= next.at)
            {
                Some(found) => return Some((row, found)),
                None => tasks /= 2,
            }
        }
        // What was found out for the next alone may be gone with what was tried since.
        let next = if most > 1 {
            self.earliest_allowed(job, shape)?
        } else {
            next
        };
        Some((in_a_row(job, 1), next))
    }

    /// The first time from one on at which the cap of its array lets a task run for so long.
    pub(crate) fn cap_opens(
        &mut self,
        job: &PendingJob,
        from: Timestamp,
        secs: u32,
    ) -> Option<Timestamp> {
        self.cap_of(job)
            .map_or(Some(from), |cap| cap.first_for(1, from, secs))
    }

    /// A task runs for a time, or does not after all.
    pub(crate) fn use_cap(
        &mut self,
        job: &PendingJob,
        (from, to): (Timestamp, Timestamp),
        runs: bool,
    ) {
        match self.cap_of(job) {
            Some(cap) if runs => cap.take(from, to, 1),
            Some(cap) => cap.give(from, to, 1),
            None => {}
        }
    }

    fn cap_of(&mut self, job: &PendingJob) -> Option<&mut Count> {
        let array = job.capped_array().filter(|_| self.foretells)?;
        let snapshot = self.snapshot;
        Some(
            self.in_turn
                .caps
                .entry(array)
                .or_insert_with(|| cap_over_time(snapshot, job, array)),
        )
    }
}

/// How many more tasks of an array may run, by the ends of those that do.
fn cap_over_time(snapshot: &Snapshot, job: &PendingJob, array: JobId) -> Count {
    // Ids of an array follow each other, so its runs are the first of them.
    let running = job.cap.map_or(usize::MAX, |cap| cap.running as usize);
    let last = if job.cap.is_some() {
        JobId(u64::MAX)
    } else {
        *job.ids().end()
    };
    let from = snapshot.running.partition_point(|run| run.run.job < array);
    let own = snapshot.running[from..]
        .iter()
        .take_while(|run| run.run.job <= last)
        .filter(|run| !run.charged)
        .take(running);
    let soon = snapshot.now.plus_secs(1);
    let ends: Vec<Timestamp> = own.map(|run| end_of(run).max(soon)).collect();
    let most = job.cap.map_or(
        job.room.unwrap_or(0) + ends.len() as u32,
        |ArrayCap { most, .. }| most,
    );
    let mut cap = Count::new(snapshot.now, most);
    ends.into_iter()
        .for_each(|end| cap.take(snapshot.now, end, 1));
    cap
}

/// Tasks of an array, one after the other, as one.
pub(crate) fn in_a_row(job: &PendingJob, tasks: u64) -> PendingJob {
    let mut row = job.clone();
    if tasks > 1 {
        let secs = job.held_secs();
        let all = u64::from(secs)
            .saturating_mul(tasks)
            .min(u64::from(LONGEST_SECS)) as u32;
        row.limit_secs = Some(all);
        row.window_secs = job
            .particulars
            .window_secs
            .map(|window| all.saturating_add(window.saturating_sub(secs)));
    }
    row
}

/// Which of its tasks is meant, and how many there are, says nothing of when one starts.
fn of_one_task(job: &PendingJob) -> Particulars {
    let positions = job.positions.as_ref().map(|_| RangeSet::first_n(1));
    Particulars {
        positions,
        ..(*job.particulars).clone()
    }
}

/// How many tasks a reservation of an array is for.
pub(crate) fn tasks_of(job: &PendingJob, reserved: &Reserved) -> u64 {
    let secs = reserved.to.since_secs(reserved.at) / i64::from(job.held_secs());
    if job.positions.is_some() {
        secs.max(1) as u64
    } else {
        1
    }
}

fn tasks_in(job: &PendingJob, row: &PendingJob) -> u64 {
    u64::from(row.held_secs() / job.held_secs()).max(1)
}
