//! The order in which a pass takes the entries of the queue: all of them, or along the queue groups.
//!
//! Along queue groups the group with the next job comes first. Jobs that their class refuses are skipped together.

use crate::engine::Engine;
use crate::job::queue::{Queue, QueueGroup, QueueTurn};
use crate::pass::Pass;
use crate::place::free_now::is_full_at_first;
use crate::queue_order::{OrderedJob, in_order};
use crate::snapshot::Snapshot;
use fixedbitset::FixedBitSet;
use gmodel::policy::JobOrder;
use gmodel::{Reason, RunClass};
use gpolicy::fair_tree::Standings;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::iter::Peekable;
use std::ops::Range;
use std::vec::IntoIter;

/// An entry at its turn.
pub(crate) struct Turn<'q> {
    /// Its place among the pending.
    pub at: usize,
    /// `None`: its partition is not in the configuration.
    pub partition: Option<usize>,
    /// Where it stands, in a pass along queue groups.
    pub place: Option<GroupPlace<'q>>,
    /// Its account's guarantee has room for its next task.
    pub is_guaranteed: bool,
    /// Its tasks within the guarantee had their turn; these would borrow.
    pub is_second: bool,
}

/// A place in a queue group.
pub(crate) struct GroupPlace<'q> {
    pub number: u32,
    pub group: &'q QueueGroup,
    pub at: usize,
}

/// What a turn means for the entries behind it.
pub(crate) enum FollowUp {
    /// The next entry has its turn.
    Next,
    /// The jobs in these places of its queue group wait for this reason, without a turn.
    Skip {
        places: Range<usize>,
        reason: Reason,
    },
    /// The other tasks of its array have their turn before the first borrower.
    SecondTurn,
    /// Only second turns remain.
    End,
}

/// Jobs of a queue group that had no turn, and why they wait.
pub(crate) struct SkippedJobs {
    pub group: u32,
    pub places: Range<usize>,
    pub reason: Reason,
}

/// The turns of a pass.
pub(crate) enum Turns<'q> {
    Entries(EntryTurns<'q>),
    Groups(GroupTurns<'q>),
}

impl<'q> Turns<'q> {
    pub fn next(&mut self) -> Option<Turn<'q>> {
        match self {
            Self::Entries(entries) => entries.next(),
            Self::Groups(groups) => groups.next(),
        }
    }

    pub fn follow(&mut self, pass: &Pass, turn: Turn<'q>, follow_up: FollowUp) {
        match self {
            Self::Entries(entries) => entries.follow(turn, follow_up),
            Self::Groups(groups) => groups.follow(pass, turn, follow_up),
        }
    }

    /// The jobs that had no turn.
    pub fn skipped(self) -> Vec<SkippedJobs> {
        match self {
            Self::Entries(_) => Vec::new(),
            Self::Groups(groups) => groups.skipped,
        }
    }
}

/// All entries in order.
pub(crate) struct EntryTurns<'q> {
    snapshot: &'q Snapshot,
    partitions: BTreeMap<&'q str, usize>,
    entries: Peekable<IntoIter<OrderedJob>>,
    /// Arrays with a used-up guarantee, by their places among the pending.
    second: VecDeque<usize>,
}

impl<'q> EntryTurns<'q> {
    pub fn new(pass: &Pass<'q>) -> Self {
        let snapshot = pass.snapshot;
        let partitions = snapshot.config.partitions.iter().enumerate();
        Self {
            snapshot,
            partitions: partitions
                .map(|(at, one)| (one.name.as_str(), at))
                .collect(),
            entries: in_order(snapshot, &pass.world.usage).into_iter().peekable(),
            second: VecDeque::new(),
        }
    }

    fn next(&mut self) -> Option<Turn<'q>> {
        let is_guaranteed = |one: &OrderedJob| one.class == Some(RunClass::Guaranteed);
        let first = match self.second.is_empty() {
            true => self.entries.next(),
            false => self.entries.next_if(is_guaranteed),
        };
        let (at, is_guaranteed, is_second) = match first {
            Some(one) => (one.at, is_guaranteed(&one), false),
            None => (self.second.pop_front()?, false, true),
        };
        let partition = self.snapshot.pending[at].spec.partition.as_str();
        Some(Turn {
            at,
            partition: self.partitions.get(partition).copied(),
            place: None,
            is_guaranteed,
            is_second,
        })
    }

    fn follow(&mut self, turn: Turn, follow_up: FollowUp) {
        match follow_up {
            FollowUp::SecondTurn => self.second.push_back(turn.at),
            FollowUp::End => self.entries = Vec::new().into_iter().peekable(),
            FollowUp::Next | FollowUp::Skip { .. } => {}
        }
    }
}

/// Which job is next: by tier, priority, then its turn. Least goes first.
type TurnRank = (Reverse<u32>, Reverse<i64>, QueueTurn);

/// The queue groups, each with the place of the job in it that is next.
pub(crate) struct GroupTurns<'q> {
    snapshot: &'q Snapshot,
    queue: &'q Queue,
    /// By owner, millionths; empty where it makes no difference.
    fair_shares: Vec<u32>,
    heap: BinaryHeap<Reverse<(TurnRank, u32, usize)>>,
    /// In a pass that gives no reasons.
    open: Option<OpenGroups>,
    skipped: Vec<SkippedJobs>,
}

impl<'q> GroupTurns<'q> {
    /// Of the queue groups that are wanted.
    pub fn new(
        queue: &'q Queue,
        standings: &mut Standings,
        snapshot: &'q Snapshot,
        is_wanted: impl Fn(&QueueGroup) -> bool,
    ) -> Self {
        let mut turns = Self {
            snapshot,
            queue,
            fair_shares: Vec::new(),
            heap: BinaryHeap::new(),
            open: None,
            skipped: Vec::new(),
        };
        let groups = || {
            (0..)
                .zip(&queue.groups)
                .filter(|(_, group)| !group.turns.is_empty() && is_wanted(group))
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

    /// Ends with the last open queue group.
    pub fn while_open(self, open: Option<OpenGroups>) -> Self {
        Self { open, ..self }
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

    fn next(&mut self) -> Option<Turn<'q>> {
        if self.open.as_ref().is_some_and(OpenGroups::is_over) {
            return None;
        }
        let Reverse((_, number, at)) = self.heap.pop()?;
        let group = &self.queue.groups[number as usize];
        Some(Turn {
            at: group.at[at] as usize,
            partition: Some(group.partition),
            place: Some(GroupPlace { number, group, at }),
            is_guaranteed: false,
            is_second: false,
        })
    }

    fn follow(&mut self, pass: &Pass, turn: Turn, follow_up: FollowUp) {
        let Some(GroupPlace { number, group, at }) = turn.place else {
            return;
        };
        let (last, mut next) = (group.turns.len(), at + 1);
        if let FollowUp::Skip { places, reason } = follow_up {
            next = places.end;
            self.skipped.push(SkippedJobs {
                group: number,
                places,
                reason,
            });
        }
        if next < last {
            self.heap
                .push(Reverse((self.rank(group, next), number, next)));
        }
        if let Some(open) = &mut self.open
            && (next == last || pass.job_class(group.job_class).pass.full == Some(true))
        {
            open.close(number);
        }
    }
}

/// Queue groups with a job that may start, in a pass that gives no reasons: what is free only shrinks in a pass.
pub(crate) struct OpenGroups {
    groups: FixedBitSet,
    left: usize,
}

impl OpenGroups {
    /// The queue groups for which enough nodes have anything free now.
    pub fn new(engine: &mut Engine) -> Self {
        let mut groups = FixedBitSet::with_capacity(engine.queue.groups.len());
        for (number, group) in engine.queue.groups.iter().enumerate() {
            let is_open = !group.turns.is_empty()
                && !is_full_at_first(&mut engine.cluster, &mut engine.memory, group.job_class);
            groups.set(number, is_open);
        }
        let left = groups.count_ones(..);
        Self { groups, left }
    }

    pub fn is_over(&self) -> bool {
        self.left == 0
    }

    /// No job of a queue group starts any more.
    fn close(&mut self, group: u32) {
        let is_open = self.groups.contains(group as usize);
        self.groups.set(group as usize, false);
        self.left -= usize::from(is_open);
    }
}
