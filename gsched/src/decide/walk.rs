//! A pass along the queue groups: always the group with the next job first, skipping jobs that their class refuses.
//!
//! It starts, reserves and explains as a pass that looks at every job does (`tests/kept.rs` compares them). Also the quick
//! pass: the same way along the lines that a freed node can serve.

use crate::backfill::deferred::may_reserve;
use crate::changes::Changes;
use crate::decide::consider::consider_shape;
use crate::decide::finish::finish;
use crate::decide::withheld::kept_for_others;
use crate::engine::{Engine, QuickPassState};
use crate::job::job_class::JobClassId;
use crate::job::queue::{GroupContext, Queue, QueueGroup, QueueTurn};
use crate::job::reason::{self, KeptFor};
use crate::ledger::Ledger;
use crate::pass::{Pass, Slices};
use crate::place::allowed::{allowed_ways, limit_of_class};
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

/// The lines, each with the place of the job in it that is next.
pub(crate) struct Turns<'a> {
    snapshot: &'a Snapshot,
    /// By owner, millionths; empty where it makes no difference.
    fair_shares: Vec<u32>,
    heap: BinaryHeap<Reverse<(TurnRank, u32, usize)>>,
}

/// Jobs of a line that were not looked at, and why they wait.
struct SkippedJobs {
    line: u32,
    places: Range<usize>,
    reason: Reason,
}

/// Queue groups with a job that may start, in passes that give no reasons.
struct OpenGroups {
    /// By number; `None`: all are looked at.
    lines: Option<FixedBitSet>,
    left: usize,
}

impl OpenGroups {
    fn is_over(&self) -> bool {
        self.lines.is_some() && self.left == 0
    }

    /// No job of a queue group starts any more.
    fn close(&mut self, line: u32) {
        if let Some(lines) = self
            .lines
            .as_mut()
            .filter(|lines| lines.contains(line as usize))
        {
            lines.set(line as usize, false);
            self.left -= 1;
        }
    }
}

/// What follows for those behind a job in its line.
enum FollowUp {
    /// They are looked at.
    Next,
    /// They wait for the same.
    Waits(Reason),
}

impl<'a> Turns<'a> {
    /// Of the lines that are wanted.
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
        let lines = || {
            (0..)
                .zip(&queue.lines)
                .filter(|(_, line)| !line.turns.is_empty() && wanted(line))
        };
        let mut owners = lines().map(|(_, line)| line.owner);
        let first = owners.next();
        let by_share = snapshot.config.scheduler.order == JobOrder::Multifactor
            && snapshot.config.scheduler.priority.fair_share > 0;
        if by_share && owners.any(|owner| Some(owner) != first) {
            turns.fair_shares =
                standings.factors(snapshot.usage_input(), queue.made, queue.owners());
        }
        let heads: Vec<_> = lines()
            .map(|(number, line)| Reverse((turns.rank(line, 0), number, 0)))
            .collect();
        turns.heap = heads.into();
        turns
    }

    fn rank(&self, line: &QueueGroup, at: usize) -> TurnRank {
        let turn = line.turns[at];
        match self.snapshot.config.scheduler.order {
            JobOrder::Multifactor => {
                let fair_share = self
                    .fair_shares
                    .get(line.owner as usize)
                    .copied()
                    .unwrap_or(0);
                let factors = line.factors(at, fair_share, self.snapshot);
                (Reverse(line.tier), Reverse(factors.priority), turn)
            }
            JobOrder::Fifo | JobOrder::Sjf => (Reverse(0), Reverse(0), turn),
        }
    }

    pub fn next(&mut self) -> Option<(u32, usize)> {
        self.heap.pop().map(|Reverse((_, line, at))| (line, at))
    }

    /// A job of a line has its turn still to come, if there is one in that place.
    pub fn push(&mut self, number: u32, line: &QueueGroup, at: usize) {
        if at < line.turns.len() {
            self.heap.push(Reverse((self.rank(line, at), number, at)));
        }
    }
}

pub(crate) fn sync_queue(engine: &mut Engine, snapshot: &Snapshot, changes: Option<&Changes>) {
    let mut known = GroupContext {
        snapshot,
        cluster: &mut engine.cluster,
        windows: &engine.memory.windows,
        shapes: &mut engine.memory.shapes,
    };
    engine.queue.sync(&mut known, changes);
}

pub(crate) fn walk_lines(
    engine: &mut Engine,
    snapshot: &Snapshot,
    budget: WorkBudget,
    slices: Option<Slices>,
) -> (Plan, QuickPassState) {
    let mut queue = std::mem::take(&mut engine.queue);
    let mut open = open_lines(engine, &queue);
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
        let line = &queue.lines[number as usize];
        if let Some((to, reason)) = passes_over(&mut pass, line, at) {
            if to == line.turns.len() {
                open.close(number);
            }
            passed.push(SkippedJobs {
                line: number,
                places: at..to,
                reason,
            });
            turns.push(number, line, to);
            continue;
        }
        let behind = consider_next(&mut pass, line, at);
        pass.hand_over();
        let is_last = at + 1 == line.turns.len() || matches!(behind, FollowUp::Waits(_));
        if is_last || pass.shape(line.shape).pass.full == Some(true) {
            open.close(number);
        }
        match behind {
            FollowUp::Next => turns.push(number, line, at + 1),
            FollowUp::Waits(reason) => passed.push(SkippedJobs {
                line: number,
                places: at + 1..line.turns.len(),
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
fn open_lines(engine: &mut Engine, queue: &Queue) -> OpenGroups {
    let mut open = OpenGroups {
        lines: None,
        left: 0,
    };
    if !engine.memory.silent {
        return open;
    }
    let mut lines = FixedBitSet::with_capacity(queue.lines.len());
    for (number, line) in queue
        .lines
        .iter()
        .enumerate()
        .filter(|(_, line)| !line.turns.is_empty())
    {
        if !is_full_at_first(engine, line.shape) {
            lines.insert(number);
            open.left += 1;
        }
    }
    open.lines = Some(lines);
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

/// Up to which place of a line, from one on, all are refused by what is known of their shape; and why they wait.
fn passes_over(pass: &mut Pass, line: &QueueGroup, at: usize) -> Option<(usize, Reason)> {
    if line.alone || !pass.backfill.waiting[line.partition] {
        return None;
    }
    if pass.must_not_pass(line.partition) {
        return Some((line.turns.len(), pass.shape(line.shape).behind.clone()));
    }
    if may_reserve(pass, line.partition) {
        return None;
    }
    let refused = pass.shape(line.shape).pass.refused_secs?;
    if !pass.limits.unlimited {
        // A limit that is reached is the better reason.
        let job = &pass.snapshot.pending[line.at[at] as usize];
        if pass.limits.minds_time || allowed_ways(pass, job, line.shape, line.secs[at]).is_err() {
            return None;
        }
    }
    let mut to = if refused == 0 {
        line.turns.len()
    } else {
        line.shorter_from(at, refused)
    };
    if refused > 0 && !pass.choices.kept_for.is_empty() {
        // What is kept for itself in another partition is not in its way.
        let is_kept_for = |at: &usize| {
            pass.choices
                .kept_for
                .contains(&(line.turns[*at].id, line.turns[*at].is_array))
        };
        to = (at..to).find(is_kept_for).unwrap_or(to);
    }
    (to > at).then(|| (to, wait_of(pass, line.shape)))
}

/// The reason of jobs that are not looked at, in words that do not change from pass to pass.
fn wait_of(pass: &mut Pass, shape: JobClassId) -> Reason {
    if pass.is_silent {
        return Reason::default();
    }
    match kept_for_others(pass, shape) {
        Some(kept @ KeptFor::Reservation { .. }) => kept.reason(&pass.memory.windows),
        _ => pass.shape(shape).behind.clone(),
    }
}

/// Looks at the job in a place of a line.
fn consider_next(pass: &mut Pass, line: &QueueGroup, at: usize) -> FollowUp {
    pass.turn.at = line.at[at] as usize;
    let job = &pass.snapshot.pending[pass.turn.at];
    if pass.is_settled(job) {
        return FollowUp::Next;
    }
    let partition = &pass.snapshot.config.partitions[line.partition];
    // Of others it was looked into when they came into the queue.
    let standing = line
        .alone
        .then(|| reason::standing(job, partition, pass.snapshot));
    let reason = standing
        .flatten()
        .or_else(|| consider_shape(pass, job, line.shape));
    pass.tell(job, reason);
    if line.alone || pass.limits.minds_time {
        return FollowUp::Next;
    }
    match limit_of_class(pass, job, line.shape, line.secs[at]) {
        Some(limit) => FollowUp::Waits(limit.reason),
        None => FollowUp::Next,
    }
}

/// Gives a reason to all jobs that were not looked at and have another.
fn tell_others(pass: &mut Pass, queue: &mut Queue, mut passed: Vec<SkippedJobs>) {
    if pass.is_silent {
        return;
    }
    passed.sort_by_key(|one| (one.line, one.places.start));
    let mut told = Vec::new();
    for of_line in passed.chunk_by(|one, next| one.line == next.line && one.reason == next.reason) {
        let places: Vec<Range<usize>> = of_line.iter().map(|one| one.places.clone()).collect();
        queue.tell(
            of_line[0].line,
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
