//! Jobs that wait in several partitions, or for nodes alike in one of several features (`[rack1|rack2]`): one start and one reservation (of an array: for each task), one reason, whichever
//! entries were looked at.
//!
//! A pass sees such a job once for each partition and feature, in the order of tiers and priorities as any other, and then as the job
//! names them. Source: sbatch(1), `--partition`; slurm.conf(5), `bf_one_resv_per_job`.

use crate::cluster::node_state::Hold;
use crate::job::job_class::ShapeId;
use crate::pass::{Pass, Reserved, Wait};
use crate::plan::Preempt;
use crate::snapshot::PendingJob;
use gmodel::{JobId, Reason, ReasonCode};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// What a pass found out about them.
#[derive(Debug, Default)]
pub(crate) struct Choices {
    /// Jobs, and tasks of arrays, that it started in one of their partitions; and tasks of arrays whose others come later in the pass,
    /// among those who borrow.
    pub settled: BTreeSet<JobId>,
    /// Those for which room is, or is to be, kept in one of theirs; and whether they are arrays.
    pub kept_for: BTreeSet<(JobId, bool)>,
    /// Runs that are to go for some of them. Another of their partitions may still start them: known at the end of the pass.
    preempts: Vec<Preempt>,
    /// What stands against each entry that was looked at, by the job, and whether that is an array.
    said: BTreeMap<(JobId, bool), Said>,
}

#[derive(Debug, Default)]
struct Said {
    /// The best so far: how far from a start, whether it is new, and which choice.
    best: Option<((u32, bool, u32), Reason)>,
    entries: usize,
    /// Entries there are, and the reason that the job has.
    all: usize,
    before: Reason,
    /// Of an array: how many tasks are to start, and the last.
    tasks: Option<(u64, JobId)>,
}

impl Choices {
    /// Keeps the reason of one entry.
    pub fn tell(&mut self, job: &PendingJob, reason: Option<Reason>) {
        let Some(reason) = reason else { return };
        let said = self
            .said
            .entry((job.id, job.positions.is_some()))
            .or_insert_with(|| Said {
                all: job.spec.choices(),
                before: job.reason.clone(),
                tasks: job.positions.as_ref().map(|tasks| {
                    (
                        tasks.len(),
                        JobId(job.id.0 + u64::from(tasks.last().unwrap_or(0))),
                    )
                }),
                ..Said::default()
            });
        said.entries += 1;
        said.hear(reason, job.spec.choice());
    }

    /// Tasks of an array that started in another of its partitions, or on what was left of its guarantee.
    pub fn settled_of(&self, job: &PendingJob) -> BTreeSet<JobId> {
        let Some(positions) = &job.positions else {
            return BTreeSet::new();
        };
        let last = JobId(job.id.0 + u64::from(positions.last().unwrap_or(0)));
        let is_own = |id: &&JobId| positions.contains((id.0 - job.id.0) as u32);
        self.settled
            .range(job.id..=last)
            .filter(is_own)
            .copied()
            .collect()
    }
}

impl Said {
    fn hear(&mut self, reason: Reason, choice: u32) {
        // Of two that are as good the one that it has: words that change with each pass help nobody.
        let rank = (distance(reason.code), reason != self.before, choice);
        if self.best.as_ref().is_none_or(|(best, _)| rank < *best) {
            self.best = Some((rank, reason));
        }
    }
}

/// How far from a start a job is that waits for a reason: room comes by itself, a closed partition does not.
fn distance(code: ReasonCode) -> u32 {
    match code {
        ReasonCode::JobArrayTaskLimit | ReasonCode::Preempting => 0,
        ReasonCode::Resources => 1,
        ReasonCode::Priority => 2,
        ReasonCode::PartitionDown
        | ReasonCode::PartitionInactive
        | ReasonCode::PartitionTimeLimit
        | ReasonCode::PartitionNodeLimit
        | ReasonCode::PartitionConfig
        | ReasonCode::BadConstraints => 5,
        ReasonCode::ReqNodeNotAvail | ReasonCode::Reservation => 4,
        ReasonCode::None => 9,
        _ => 3,
    }
}

impl Pass<'_> {
    /// Whether a job was started in another of its partitions.
    pub(crate) fn is_settled(&self, job: &PendingJob) -> bool {
        job.is_choice() && job.positions.is_none() && self.choices.settled.contains(&job.id)
    }

    /// Runs that go for a job, unless another of its partitions starts it. Of an array they go for the task that is next.
    pub(crate) fn preempt(&mut self, job: &PendingJob, victims: impl IntoIterator<Item = Preempt>) {
        let for_job = self.next_of(job);
        let victims = victims.into_iter().map(|one| Preempt { for_job, ..one });
        match job.is_choice() {
            true => self.choices.preempts.extend(victims),
            false => self.plan.preempts.extend(victims),
        }
    }

    fn next_of(&self, job: &PendingJob) -> JobId {
        let Some(positions) = &job.positions else {
            return job.id;
        };
        let ids = job.ids();
        let started: BTreeSet<JobId> = self
            .plan
            .starts
            .iter()
            .map(|start| start.job)
            .filter(|id| ids.contains(id))
            .collect();
        let tasks = positions
            .iter()
            .map(|position| JobId(job.id.0 + u64::from(position)));
        tasks
            .into_iter()
            .find(|task| !started.contains(task))
            .unwrap_or(job.id)
    }

    /// All that are to go so far.
    pub(crate) fn preempts(&self) -> impl Iterator<Item = &Preempt> {
        self.plan.preempts.iter().chain(&self.choices.preempts)
    }

    /// Nobody goes for those that started.
    pub(crate) fn preempt_for_choices(&mut self) {
        let Choices {
            settled, preempts, ..
        } = &mut self.choices;
        self.plan.preempts.extend(
            preempts
                .drain(..)
                .filter(|one| !settled.contains(&one.for_job)),
        );
    }

    /// One reason for each job: of the partition that is nearest to start it.
    pub(crate) fn tell_choices(&mut self) {
        for ((id, is_array), mut said) in std::mem::take(&mut self.choices.said) {
            let (tasks, last) = said.tasks.unwrap_or((1, id));
            if self.choices.settled.range(id..=last).count() as u64 == tasks {
                continue;
            }
            if said.entries < said.all {
                // Who says nothing has the reason that is known.
                let before = said.before.clone();
                said.hear(before, u32::MAX);
            }
            let told = if is_array {
                &mut self.plan.array_reasons
            } else {
                &mut self.plan.reasons
            };
            told.extend(
                said.best
                    .filter(|(_, reason)| *reason != said.before)
                    .map(|(_, reason)| (id, reason)),
            );
        }
    }

    /// Starts a job that is no array now, if it can: without those who go for it in another of its partitions, too.
    pub(crate) fn start_alone(&mut self, job: &PendingJob, shape: ShapeId) -> Result<(), Wait> {
        let Some(owed) = self.ledger.lift_owed(job) else {
            return self.start(job, job.id, shape);
        };
        self.limited.clear();
        let told = self.start(job, job.id, shape);
        if told.is_err() {
            self.ledger.owe_again(owed);
        }
        told
    }

    /// Ways for which its reservation by number has GPUs left, with what it was promised of it in another of its partitions.
    pub(crate) fn reserved_ways_of(
        &mut self,
        job: &PendingJob,
        shape: ShapeId,
        ways: Vec<usize>,
        secs: u32,
    ) -> Result<Vec<usize>, Wait> {
        if !job.is_choice() || !self.is_counted(shape) {
            return self.reserved_ways(shape, ways, secs);
        }
        let own = self.lift_own(job);
        let ways = self.reserved_ways(shape, ways, secs);
        self.hold_own(job, own);
        ways
    }

    /// What a job has reserved in other partitions is not in its own way: taken back while it is looked at. Where each
    /// stands, and what it held.
    pub(crate) fn lift_own(&mut self, job: &PendingJob) -> Vec<(usize, Reserved)> {
        if !job.is_choice() {
            return Vec::new();
        }
        if self.waits_elsewhere(job) {
            // Those who come after it are to find what it leaves them, not what is free while it is lifted.
            self.reserve_wanted();
        }
        let places: Vec<usize> = self.places_of(job).collect();
        // Holds of one node are given back in the opposite order.
        let mut own: Vec<_> = places
            .into_iter()
            .rev()
            .map(|place| (place, self.lift_reserved(job, place)))
            .collect();
        own.reverse();
        own
    }

    /// Whether it has, or is to have, a reservation in another of its partitions.
    pub(crate) fn waits_elsewhere(&self, job: &PendingJob) -> bool {
        self.wants
            .iter()
            .any(|want| is_of(job, want.job, want.is_array))
            || self.places_of(job).next().is_some()
    }

    fn places_of(&self, job: &PendingJob) -> impl Iterator<Item = usize> + '_ {
        let (id, is_array) = (job.id, job.positions.is_some());
        let of_job = move |one: &Reserved| {
            one.job == id && one.is_array == is_array && !one.holds.is_empty()
        };
        (0..self.reserved.len()).filter(move |at| of_job(&self.reserved[*at]))
    }

    /// Leaves an empty one in its place: who goes along the list must not miss those behind it.
    pub(crate) fn lift_reserved(&mut self, job: &PendingJob, place: usize) -> Reserved {
        self.foretell_no_more(place);
        // What is taken back out of its turn is no part of the argument that others are promised the same again.
        self.engine.promised.forget();
        self.refusals.forget();
        let own = &mut self.reserved[place];
        let lifted = Reserved {
            holds: std::mem::take(&mut own.holds),
            ..own.clone()
        };
        for (hold, nodes) in &lifted.holds {
            nodes
                .clone()
                .for_each(|at| self.engine.cluster.touch(at).release(hold));
        }
        self.promise_reserved(lifted.counted, &lifted.holds, false);
        for (name, count) in &job.spec.licences {
            self.licences
                .get_mut(name)
                .into_iter()
                .for_each(|free| free.give(lifted.at, lifted.to, *count));
        }
        self.use_cap(job, (lifted.at, lifted.to), false);
        lifted
    }

    /// It did not start: what was lifted is held again.
    pub(crate) fn hold_own(&mut self, job: &PendingJob, own: Vec<(usize, Reserved)>) {
        for (place, own) in own {
            for (hold, nodes) in &own.holds {
                nodes
                    .clone()
                    .for_each(|at| self.engine.cluster.touch(at).hold_again(hold));
            }
            for (name, count) in &job.spec.licences {
                self.licences
                    .get_mut(name)
                    .into_iter()
                    .for_each(|free| free.take(own.at, own.to, *count));
            }
            self.use_cap(job, (own.at, own.to), true);
            self.promise_reserved(own.counted, &own.holds, true);
            self.reserved[place] = own;
            self.foretell_again(place);
        }
    }

    /// It started, or one of its tasks did: one reservation less, that which the start stands in the way of or the latest.
    pub(crate) fn hold_but_one(&mut self, job: &PendingJob, mut own: Vec<(usize, Reserved)>) {
        own.sort_by_key(|(place, one)| (one.at, *place));
        let mut left = own.len().saturating_sub(1);
        for (place, one) in own {
            if left > 0 && self.still_fits(job, &one) {
                left -= 1;
                self.hold_own(job, vec![(place, one)]);
            } else {
                self.forget_not_before();
            }
        }
    }

    /// A reservation is gone for good: others may have its time.
    pub(crate) fn forget_not_before(&mut self) {
        self.refusals.forget();
        for shape in &mut self.engine.shapes.list {
            shape.pass.not_before.clear();
            shape.pass.not_before_window.clear();
        }
    }

    fn still_fits(&self, job: &PendingJob, one: &Reserved) -> bool {
        let cluster = &self.engine.cluster;
        let has_room = |(hold, nodes): &(Hold, Range<usize>)| {
            nodes
                .clone()
                .all(|at| cluster.room(at).can_hold_again(hold))
        };
        let is_free = |(name, count): (&String, &u32)| {
            self.licences
                .get(name)
                .is_some_and(|free| free.least(one.at, one.to) >= *count)
        };
        one.holds.iter().all(has_room) && job.spec.licences.iter().all(is_free)
    }

    /// One reservation for each job, and for each task of an array, in the partition that offers the earliest start: this one
    /// takes over what is the latest in others as long as it offers an earlier one.
    pub(crate) fn reserve_choice(
        &mut self,
        job: &PendingJob,
        shape: ShapeId,
        partition: usize,
        tasks: u32,
    ) {
        let lifted = self.lift_counted(shape);
        self.reserve_tasks(job, shape, partition, tasks);
        self.hold_again(lifted);
    }

    fn reserve_tasks(&mut self, job: &PendingJob, shape: ShapeId, partition: usize, tasks: u32) {
        for _ in 0..tasks {
            if self.reserve_left[partition] == 0 || self.is_spent() {
                return;
            }
            self.reserve_left[partition] -= 1;
            let is_new = self.places_of(job).count() < tasks as usize;
            let latest = self
                .places_of(job)
                .max_by_key(|place| (self.reserved[*place].at, *place))
                .filter(|_| !is_new);
            let own: Vec<_> = latest
                .map(|place| (place, self.lift_reserved(job, place)))
                .into_iter()
                .collect();
            let known = (!own.is_empty()).then(|| std::mem::take(self.of_pass(shape)));
            let found = self
                .earliest_allowed(job, shape)
                .filter(|found| own.iter().all(|(_, own)| found.at < own.at));
            known
                .into_iter()
                .for_each(|known| *self.of_pass(shape) = known);
            if found
                .and_then(|found| self.reserve_at(job, shape, found))
                .is_none()
            {
                return self.hold_own(job, own);
            }
            if !own.is_empty() {
                self.forget_not_before();
            }
        }
    }
}

fn is_of(job: &PendingJob, id: JobId, is_array: bool) -> bool {
    job.id == id && job.positions.is_some() == is_array
}
