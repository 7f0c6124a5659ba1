//! A pass along the queue groups: always the group with the next job first, skipping jobs that their class refuses.
//!
//! It starts, reserves and explains as a pass that looks at every job does (`tests/kept.rs` compares them). Also the quick
//! pass: the same way along the queue groups that a freed node can serve.

use crate::backfill::deferred::may_reserve;
use crate::changes::Changes;
use crate::decide::consider::consider_class;
use crate::decide::finish::finish;
use crate::decide::withheld::kept_for_others;
use crate::engine::{Engine, QuickPassState};
use crate::job::job_class::JobClassId;
use crate::job::queue::{GroupContext, Queue, QueueGroup, QueueTurn};
use crate::job::reason::{self, KeptFor};
use crate::ledger::Ledger;
use crate::pass::{Pass, Slices};
use crate::place::allowed::{allowed_alternatives, limit_of_class};
use crate::place::free_now::is_full_at_first;
use crate::place::gpu_reservation::hold_counted;
use crate::plan::{Plan, WorkBudget};
use crate::snapshot::Snapshot;
use fixedbitset::FixedBitSet;
use gmodel::Reason;
use gmodel::policy::JobOrder;
use gpolicy::fair_tree::Standings;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

/// Which job is next: by tier, priority, then its turn. Least goes first.
type TurnRank = (Reverse<u32>, Reverse<i64>, QueueTurn);

/// The queue groups, each with the place of the job in it that is next.
pub(crate) struct Turns<'a> {
    snapshot: &'a Snapshot,
    /// By owner, millionths; empty where it makes no difference.
    fair_shares: Vec<u32>,
    heap: BinaryHeap<Reverse<(TurnRank, u32, usize)>>,
}

/// Jobs of a queue group that were not looked at, and why they wait.
struct SkippedJobs {
    group: u32,
    places: Range<usize>,
    reason: Reason,
}

/// Queue groups with a job that may start, in passes that give no reasons.
struct OpenGroups {
    /// By number; `None`: all are looked at.
    groups: Option<FixedBitSet>,
    left: usize,
}

impl OpenGroups {
    fn is_over(&self) -> bool {
        self.groups.is_some() && self.left == 0
    }

    /// No job of a queue group starts any more.
    fn close(&mut self, group: u32) {
        if let Some(groups) = self
            .groups
            .as_mut()
            .filter(|groups| groups.contains(group as usize))
        {
            groups.set(group as usize, false);
            self.left -= 1;
        }
    }
}

/// What follows for those behind a job in its queue group.
enum FollowUp {
    /// They are looked at.
    Next,
    /// They wait for the same.
    Waits(Reason),
}

impl<'a> Turns<'a> {
    /// Of the queue groups that are wanted.
    pub fn new(
        queue: &Queue,
        standings: &mut Standings,
        snapshot: &'a Snapshot,
        wanted: impl Fn(&QueueGroup) -> bool,
    ) -> Self {
        let mut turns = Self {
            snapshot,
            fair_shares: Vec::new(),
            heap: BinaryHeap::new(),
        };
        let groups = || {
            (0..)
                .zip(&queue.groups)
                .filter(|(_, group)| !group.turns.is_empty() && wanted(group))
        };
        let mut owners = groups().map(|(_, group)| group.owner);
        let first = owners.next();
        let by_share = snapshot.config.scheduler.order == JobOrder::Multifactor
            && snapshot.config.scheduler.priority.fair_share > 0;
        if by_share && owners.any(|owner| Some(owner) != first) {
            turns.fair_shares =
                standings.factors(snapshot.usage_input(), queue.made, queue.owners());
        }
        let heads: Vec<_> = groups()
            .map(|(number, group)| Reverse((turns.rank(group, 0), number, 0)))
            .collect();
        turns.heap = heads.into();
        turns
    }

    fn rank(&self, group: &QueueGroup, at: usize) -> TurnRank {
        let turn = group.turns[at];
        match self.snapshot.config.scheduler.order {
            JobOrder::Multifactor => {
                let fair_share = self
                    .fair_shares
                    .get(group.owner as usize)
                    .copied()
                    .unwrap_or(0);
                let factors = group.factors(at, fair_share, self.snapshot);
                (Reverse(group.tier), Reverse(factors.priority), turn)
            }
            JobOrder::Fifo | JobOrder::Sjf => (Reverse(0), Reverse(0), turn),
        }
    }

    pub fn next(&mut self) -> Option<(u32, usize)> {
        self.heap.pop().map(|Reverse((_, group, at))| (group, at))
    }

    /// A job of a queue group has its turn still to come, if there is one in that place.
    pub fn push(&mut self, number: u32, group: &QueueGroup, at: usize) {
        if at < group.turns.len() {
            self.heap.push(Reverse((self.rank(group, at), number, at)));
        }
    }
}

pub(crate) fn sync_queue(engine: &mut Engine, snapshot: &Snapshot, changes: Option<&Changes>) {
    let mut known = GroupContext {
        snapshot,
        cluster: &mut engine.cluster,
        windows: &engine.memory.windows,
        job_classes: &mut engine.memory.job_classes,
    };
    engine.queue.sync(&mut known, changes);
}

pub(crate) fn walk_groups(
    engine: &mut Engine,
    snapshot: &Snapshot,
    budget: WorkBudget,
    slices: Option<Slices>,
) -> (Plan, QuickPassState) {
    let mut queue = std::mem::take(&mut engine.queue);
    let mut open = open_groups(engine, &queue);
    if open.is_over() {
        engine.queue = queue;
        engine.memory.probed = 0;
        return (
            Plan {
                made_from: snapshot.seq,
                ..Plan::default()
            },
            QuickPassState::default(),
        );
    }
    let ledger = match crate::place::limits_in_force::is_unlimited(snapshot) {
        true => Ledger::new(&nobody(snapshot)),
        false => Ledger::new(snapshot),
    };
    let mut pass = Pass::new(engine, snapshot, budget, ledger);
    hold_counted(&mut pass);
    pass.work.slices = slices;
    pass.is_silent = pass.memory.silent;
    let mut turns = Turns::new(&queue, &mut pass.memory.standings, snapshot, |_| true);
    let mut passed: Vec<SkippedJobs> = Vec::new();
    while let Some((number, at)) = turns.next() {
        if pass.is_spent() || open.is_over() {
            break;
        }
        let group = &queue.groups[number as usize];
        if let Some((to, reason)) = passes_over(&mut pass, group, at) {
            if to == group.turns.len() {
                open.close(number);
            }
            passed.push(SkippedJobs {
                group: number,
                places: at..to,
                reason,
            });
            turns.push(number, group, to);
            continue;
        }
        let behind = consider_next(&mut pass, group, at);
        pass.hand_over();
        let is_last = at + 1 == group.turns.len() || matches!(behind, FollowUp::Waits(_));
        if is_last || pass.job_class(group.job_class).pass.full == Some(true) {
            open.close(number);
        }
        match behind {
            FollowUp::Next => turns.push(number, group, at + 1),
            FollowUp::Waits(reason) => passed.push(SkippedJobs {
                group: number,
                places: at + 1..group.turns.len(),
                reason,
            }),
        }
    }
    tell_others(&mut pass, &mut queue, passed);
    let done = finish(pass, budget);
    engine.queue = queue;
    done
}

/// Of a silent pass the queue groups for which enough nodes have anything free now: free room only shrinks in a pass.
fn open_groups(engine: &mut Engine, queue: &Queue) -> OpenGroups {
    let mut open = OpenGroups {
        groups: None,
        left: 0,
    };
    if !engine.memory.silent {
        return open;
    }
    let mut groups = FixedBitSet::with_capacity(queue.groups.len());
    for (number, group) in queue
        .groups
        .iter()
        .enumerate()
        .filter(|(_, group)| !group.turns.is_empty())
    {
        if !is_full_at_first(engine, group.job_class) {
            groups.insert(number);
            open.left += 1;
        }
    }
    open.groups = Some(groups);
    open
}

/// A cluster of which nothing is known but its policy.
pub(crate) fn nobody(snapshot: &Snapshot) -> Snapshot {
    let (config, policy) = (snapshot.config.clone(), snapshot.policy.clone());
    Snapshot {
        seq: snapshot.seq,
        now: snapshot.now,
        config,
        policy,
        ..Snapshot::default()
    }
}

/// Up to which place of a queue group, from one on, all are refused by what is known of their job class; and why they wait.
fn passes_over(pass: &mut Pass, group: &QueueGroup, at: usize) -> Option<(usize, Reason)> {
    if group.alone || !pass.backfill.waiting[group.partition] {
        return None;
    }
    if pass.must_not_pass(group.partition) {
        return Some((
            group.turns.len(),
            pass.job_class(group.job_class).behind.clone(),
        ));
    }
    if may_reserve(pass, group.partition) {
        return None;
    }
    let refused = pass.job_class(group.job_class).pass.refused_secs?;
    if !pass.limits.unlimited {
        // A limit that is reached is the better reason.
        let job = &pass.snapshot.pending[group.at[at] as usize];
        if pass.limits.minds_time
            || allowed_alternatives(pass, job, group.job_class, group.secs[at]).is_err()
        {
            return None;
        }
    }
    let mut to = if refused == 0 {
        group.turns.len()
    } else {
        group.shorter_from(at, refused)
    };
    if refused > 0 && !pass.choices.kept_for.is_empty() {
        // What is kept for itself in another partition is not in its way.
        let is_kept_for = |at: &usize| {
            pass.choices
                .kept_for
                .contains(&(group.turns[*at].id, group.turns[*at].is_array))
        };
        to = (at..to).find(is_kept_for).unwrap_or(to);
    }
    (to > at).then(|| (to, wait_of(pass, group.job_class)))
}

/// The reason of jobs that are not looked at, in words that do not change from pass to pass.
fn wait_of(pass: &mut Pass, job_class: JobClassId) -> Reason {
    if pass.is_silent {
        return Reason::default();
    }
    match kept_for_others(pass, job_class) {
        Some(kept @ KeptFor::Reservation { .. }) => kept.reason(&pass.memory.windows),
        _ => pass.job_class(job_class).behind.clone(),
    }
}

/// Looks at the job in a place of a queue group.
fn consider_next(pass: &mut Pass, group: &QueueGroup, at: usize) -> FollowUp {
    pass.turn.at = group.at[at] as usize;
    let job = &pass.snapshot.pending[pass.turn.at];
    if pass.is_settled(job) {
        return FollowUp::Next;
    }
    let partition = &pass.snapshot.config.partitions[group.partition];
    // Of others it was looked into when they came into the queue.
    let standing = group
        .alone
        .then(|| reason::standing(job, partition, pass.snapshot));
    let reason = standing
        .flatten()
        .or_else(|| consider_class(pass, job, group.job_class));
    pass.tell(job, reason);
    if group.alone || pass.limits.minds_time {
        return FollowUp::Next;
    }
    match limit_of_class(pass, job, group.job_class, group.secs[at]) {
        Some(limit) => FollowUp::Waits(limit.reason),
        None => FollowUp::Next,
    }
}

/// Gives a reason to all jobs that were not looked at and have another.
fn tell_others(pass: &mut Pass, queue: &mut Queue, mut passed: Vec<SkippedJobs>) {
    if pass.is_silent {
        return;
    }
    passed.sort_by_key(|one| (one.group, one.places.start));
    let mut told = Vec::new();
    for of_line in passed.chunk_by(|one, next| one.group == next.group && one.reason == next.reason)
    {
        let places: Vec<Range<usize>> = of_line.iter().map(|one| one.places.clone()).collect();
        queue.tell(
            of_line[0].group,
            &places,
            &of_line[0].reason,
            pass.snapshot,
            &mut told,
        );
    }
    told.sort_by_key(|(at, _)| pass.snapshot.pending[*at].id);
    for (at, reason) in told {
        pass.tell(&pass.snapshot.pending[at], Some(reason));
    }
    for (at, reason) in queue.untold() {
        pass.tell(&pass.snapshot.pending[at], Some(reason.clone()));
    }
}
