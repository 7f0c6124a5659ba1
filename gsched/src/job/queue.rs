//! The queue, kept from pass to pass: queue groups of jobs that differ only in age and time limit.
//!
//! What one job of a group cannot get, later jobs of the group with no shorter limit cannot get either, so a pass skips most jobs.
//! Jobs that wait whatever is free (held, dependent, too early) are in no group. Decides nothing.

use crate::changes::Changes;
use crate::cluster::nodes::Cluster;
use crate::job::job_class::{JobClass, JobClassId};
use crate::job::job_classes::JobClasses;
use crate::job::reason::{self, standing};
use crate::job::usual::{NO_SORT, Sort, UsualJobs};
use crate::snapshot::{PendingJob, Snapshot};
use gmodel::policy::JobOrder;
use gmodel::{JobId, Reason, Timestamp};
use gpolicy::names::Names;
use gpolicy::priority::{Factors, Scale};
use gpolicy::reserved_nodes::Windows;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

/// All pending jobs, by their places in the snapshot.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    /// Some may be empty.
    pub groups: Vec<QueueGroup>,
    by_key: BTreeMap<GroupKey, u32>,
    empty: Vec<u32>,
    /// By place among the pending.
    places: Vec<QueuePlace>,
    /// Jobs that may enter a queue group from a time on.
    later: BTreeSet<(Timestamp, usize)>,
    /// New reasons of jobs in no queue group.
    untold: BTreeMap<usize, Reason>,
    scale: Scale,
    owners: Owners,
    qos: Names,
    /// Of the job classes that queue groups name.
    era: u64,
    /// How often it was made anew: the numbers of owners change then.
    pub made: u64,
}

/// The place of a pending job in the queue.
#[derive(Clone, Copy, Debug)]
struct QueuePlace {
    /// `None`: in no queue group.
    group: Option<u32>,
    turn: QueueTurn,
    owner: u32,
    sort: Sort,
}

/// The order within a queue group, and between jobs of one priority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct QueueTurn {
    /// Shortest first: the limit in seconds; otherwise nothing.
    rank: u32,
    submitted: Timestamp,
    pub id: JobId,
    pub is_array: bool,
    /// Which of its partitions, in the order that it names them.
    choice: u32,
}

/// Jobs of one job class on the same terms, in order.
#[derive(Debug)]
pub(crate) struct QueueGroup {
    key: GroupKey,
    pub partition: usize,
    pub job_class: JobClassId,
    pub owner: u32,
    pub tier: u32,
    /// Without age and fair share.
    factors: Factors,
    /// One job that each pass looks at by itself: more than its job class decides about it.
    pub alone: bool,
    pub turns: VecDeque<QueueTurn>,
    /// In the order of `turns`: limits, places among the pending, and since when each is eligible.
    pub secs: VecDeque<u32>,
    pub at: VecDeque<u32>,
    eligible: VecDeque<Timestamp>,
    /// The last reason of the jobs that were skipped, and the jobs that have another.
    said: Reason,
    untold: BTreeSet<QueueTurn>,
}

/// What jobs of one queue group have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct GroupKey {
    partition: usize,
    job_class: JobClassId,
    owner: u32,
    qos: u32,
    borrow: Option<bool>,
    requeue: Option<bool>,
    site_factor_milli: Option<u32>,
    priority: Option<u32>,
    nice: i32,
    /// The job, or the array, that is a group of its own.
    alone: Option<(JobId, bool)>,
}

/// Users in accounts, with how many of their jobs wait.
#[derive(Debug, Default)]
struct Owners {
    accounts: Names,
    users: Names,
    numbers: BTreeMap<(u32, u32), u32>,
    list: Vec<(u32, u32, u32)>,
}

/// What a job's queue group is found with.
pub(crate) struct GroupContext<'a> {
    pub snapshot: &'a Snapshot,
    pub cluster: &'a mut Cluster,
    pub windows: &'a Windows,
    pub job_classes: &'a mut JobClasses,
}

impl Queue {
    /// Brings the queue groups up to a snapshot. `changes` since the last one, where they are known.
    pub fn sync(&mut self, known: &mut GroupContext, changes: Option<&Changes>) {
        let snapshot = known.snapshot;
        let hint = changes.filter(|changes| {
            !changes.everything && !changes.all_pending && self.era == known.job_classes.era()
        });
        let mut places: BTreeSet<usize> = match hint {
            Some(changes) => changes.pending.clone(),
            None => {
                known.cluster.usual.forget_queue();
                known.cluster.usual.queue_is_known = true;
                *self = Self {
                    scale: Scale::new(&snapshot.config, &snapshot.policy, &snapshot.nodes),
                    era: known.job_classes.era(),
                    made: self.made + 1,
                    ..Self::default()
                };
                (0..snapshot.pending.len()).collect()
            }
        };
        while let Some((at, place)) = self
            .later
            .first()
            .copied()
            .filter(|(at, _)| *at <= snapshot.now)
        {
            self.later.remove(&(at, place));
            places.insert(place);
        }
        for place in &places {
            self.leave(*place, &mut known.cluster.usual);
        }
        for place in places
            .into_iter()
            .filter(|place| *place < snapshot.pending.len())
        {
            self.enter(place, known);
        }
        self.places.truncate(snapshot.pending.len());
    }

    /// Takes the job of a place out of the queue.
    fn leave(&mut self, place: usize, usual: &mut UsualJobs) {
        let Some(was) = self.places.get_mut(place) else {
            return;
        };
        let owner = std::mem::replace(&mut was.owner, u32::MAX);
        usual.job_goes(std::mem::replace(&mut was.sort, NO_SORT));
        let (group, turn) = (was.group.take(), was.turn);
        if let Some(count) = self.owners.list.get_mut(owner as usize) {
            count.2 -= 1;
        }
        self.untold.remove(&place);
        let Some(number) = group else { return };
        let group = &mut self.groups[number as usize];
        let Ok(at) = group.turns.binary_search(&turn) else {
            return;
        };
        group.turns.remove(at);
        group.secs.remove(at);
        group.at.remove(at);
        group.eligible.remove(at);
        group.untold.remove(&turn);
        if group.turns.is_empty() {
            self.by_key.remove(&group.key);
            self.empty.push(number);
        }
    }

    fn enter(&mut self, place: usize, known: &mut GroupContext) {
        let job = &known.snapshot.pending[place];
        let owner = self.owners.number(job);
        self.owners.list[owner as usize].2 += 1;
        let turn = QueueTurn::of(job, known.snapshot.config.scheduler.order);
        let none = QueuePlace {
            group: None,
            turn: QueueTurn::default(),
            owner: u32::MAX,
            sort: NO_SORT,
        };
        let cluster = &mut *known.cluster;
        let sort = cluster
            .usual
            .job_comes(&job.spec, known.snapshot, &cluster.node_classes);
        if self.places.len() <= place {
            self.places.resize(place + 1, none);
        }
        self.places[place] = QueuePlace {
            group: None,
            turn,
            owner,
            sort,
        };
        match self.stand(job, known) {
            Err(reason) => {
                if job.earliest() > known.snapshot.now {
                    self.later.insert((job.earliest(), place));
                }
                if reason != job.reason {
                    self.untold.insert(place, reason);
                }
            }
            Ok((partition, job_class)) => {
                let group = self.group_for(job, partition, job_class, owner, turn, known);
                self.places[place].group = Some(group);
                self.groups[group as usize].add(job, place, turn);
            }
        }
    }

    /// Partition and job class of a job, or why it is in no queue group.
    fn stand(
        &self,
        job: &PendingJob,
        known: &mut GroupContext,
    ) -> Result<(usize, JobClassId), Reason> {
        let partition = self
            .scale
            .partition(&job.spec.partition)
            .ok_or_else(|| reason::no_partition(job))?;
        let snapshot = known.snapshot;
        // All components of a gang hear why it waits: in its turn.
        let is_gang = !job.particulars.others.is_empty();
        let standing = standing(job, &snapshot.config.partitions[partition], snapshot);
        if let Some(reason) = standing.filter(|_| !is_gang) {
            return Err(reason);
        }
        let job_class =
            known
                .job_classes
                .of(job, partition, snapshot, known.cluster, known.windows);
        match &known.job_classes.list[job_class as usize].never {
            Some(never) if !is_gang => Err(never.clone()),
            _ => Ok((partition, job_class)),
        }
    }

    fn group_for(
        &mut self,
        job: &PendingJob,
        partition: usize,
        job_class: JobClassId,
        owner: u32,
        turn: QueueTurn,
        known: &GroupContext,
    ) -> u32 {
        let spec = &job.spec;
        let mut key = GroupKey {
            partition,
            job_class,
            owner,
            qos: self.qos.number_or_new(&spec.qos),
            borrow: spec.borrow,
            requeue: spec.requeue,
            site_factor_milli: spec.site_factor_milli,
            priority: spec.priority,
            nice: job.nice,
            alone: None,
        };
        let group_of = |key: &GroupKey| self.by_key.get(key).copied();
        // Age must fall along a group, or its first job would not always be the first of the queue.
        let breaks_order = |group: u32| !self.groups[group as usize].takes(job, turn);
        let job_class = &known.job_classes.list[job_class as usize];
        if is_special(job, job_class) || group_of(&key).is_some_and(breaks_order) {
            key.alone = Some((job.id, turn.is_array));
        }
        group_of(&key).unwrap_or_else(|| self.add_group(key, job, known.snapshot))
    }

    fn add_group(&mut self, key: GroupKey, job: &PendingJob, snapshot: &Snapshot) -> u32 {
        let (tier, factors) = self
            .scale
            .factors(&snapshot.config, &snapshot.policy, &job.spec);
        let group = QueueGroup {
            key,
            partition: key.partition,
            job_class: key.job_class,
            owner: key.owner,
            tier,
            factors: Factors {
                nice: job.nice,
                ..factors
            },
            alone: key.alone.is_some(),
            turns: VecDeque::new(),
            secs: VecDeque::new(),
            at: VecDeque::new(),
            eligible: VecDeque::new(),
            said: Reason::default(),
            untold: BTreeSet::new(),
        };
        let number = match self.empty.pop() {
            Some(number) => {
                self.groups[number as usize] = group;
                number
            }
            None => {
                self.groups.push(group);
                self.groups.len() as u32 - 1
            }
        };
        self.by_key.insert(key, number);
        number
    }

    /// New reasons of jobs in no queue group, by their places.
    pub fn untold(&self) -> impl Iterator<Item = (usize, &Reason)> + '_ {
        self.untold.iter().map(|(place, reason)| (*place, reason))
    }

    /// Owners of pending jobs: number, account and user.
    pub fn owners(&self) -> impl Iterator<Item = (usize, &str, &str)> + Clone + '_ {
        let here = self
            .owners
            .list
            .iter()
            .enumerate()
            .filter(|(_, (_, _, jobs))| *jobs > 0);
        here.map(|(number, (account, user, _))| {
            (
                number,
                self.owners.accounts.name(*account),
                self.owners.users.name(*user),
            )
        })
    }

    /// Adds the reason of skipped jobs to `told`, by their places, where they have another.
    pub fn tell(
        &mut self,
        group: u32,
        passed: &[Range<usize>],
        reason: &Reason,
        snapshot: &Snapshot,
        told: &mut Vec<(usize, Reason)>,
    ) {
        let group = &mut self.groups[group as usize];
        if group.said != *reason {
            group.said = reason.clone();
            let others = group
                .at
                .iter()
                .zip(&group.turns)
                .filter(|(at, _)| snapshot.pending[**at as usize].reason != *reason);
            group.untold = others.map(|(_, turn)| *turn).collect();
        }
        for turn in &group.untold {
            let Ok(at) = group.turns.binary_search(turn) else {
                continue;
            };
            if passed.iter().any(|range| range.contains(&at)) {
                told.push((group.at[at] as usize, reason.clone()));
            }
        }
    }
}

impl QueueGroup {
    fn add(&mut self, job: &PendingJob, place: usize, turn: QueueTurn) {
        let at = self.turns.partition_point(|other| *other < turn);
        self.turns.insert(at, turn);
        self.secs.insert(at, job.held_secs());
        self.at.insert(at, place as u32);
        self.eligible.insert(at, job.eligible);
        if job.reason != self.said {
            self.untold.insert(turn);
        }
    }

    /// Whether a job became eligible no earlier than the one before it and no later than the one after it.
    fn takes(&self, job: &PendingJob, turn: QueueTurn) -> bool {
        let at = self.turns.partition_point(|other| *other < turn);
        let before = at
            .checked_sub(1)
            .is_none_or(|at| self.eligible[at] <= job.eligible);
        before
            && self
                .eligible
                .get(at)
                .is_none_or(|behind| job.eligible <= *behind)
    }

    /// Factors of the job in a place of the queue group.
    pub fn factors(&self, at: usize, fair_share: u32, snapshot: &Snapshot) -> Factors {
        let shared = Factors {
            fair_share,
            ..self.factors
        };
        shared.at_age(
            self.eligible[at],
            snapshot.now,
            &snapshot.config.scheduler.priority,
        )
    }

    /// The first from a place on that asks for less than so many seconds.
    pub fn shorter_from(&self, at: usize, secs: u32) -> usize {
        let found = match secs {
            0 => None,
            _ => self.secs.range(at..).position(|one| *one < secs),
        };
        found.map_or(self.secs.len(), |found| at + found)
    }
}

impl QueueTurn {
    fn of(job: &PendingJob, order: JobOrder) -> Self {
        let rank = if order == JobOrder::Sjf {
            job.limit_secs.unwrap_or(u32::MAX)
        } else {
            0
        };
        Self {
            rank,
            submitted: job.submitted,
            id: job.id,
            is_array: job.particulars.positions.is_some(),
            choice: job.spec.choice(),
        }
    }
}

/// Whether more than its job class and its limit decides when a job starts.
fn is_special(job: &PendingJob, job_class: &JobClass) -> bool {
    let spec = &job.spec;
    job.particulars.positions.is_some()
        || job.particulars.room.is_some()
        || !job.particulars.others.is_empty()
        || !job.particulars.avoid.is_empty()
        || !job.particulars.barred.is_empty()
        || spec.time_min_secs.is_some()
        || spec.deadline.is_some()
        || !spec.licences.is_empty()
        || spec.request.switches.is_some()
        || job_class.claim.own().is_some()
}

impl Owners {
    fn number(&mut self, job: &PendingJob) -> u32 {
        let account = self.accounts.number_or_new(&job.spec.account);
        let user = self.users.number_or_new(&job.spec.user.name);
        let next = self.list.len() as u32;
        let number = *self.numbers.entry((account, user)).or_insert(next);
        if number == next {
            self.list.push((account, user, 0));
        }
        number
    }
}
