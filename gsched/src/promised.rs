//! Reservations of the last pass, so that this one makes most of them again without a search. Decides nothing.
//!
//! Nodes whose room may be another than when a reservation was made have "moved". A job none of whose nodes has, and for which
//! no moved node has room as early, gets the same again: before that time no more nodes have room than had then, which were
//! too few, and at it all those do that a search liked best of more. Everybody else is looked for anew; the nodes they had
//! and get have moved for those behind.

use crate::shape::ShapeId;
use fixedbitset::FixedBitSet;
use gmodel::{JobId, Timestamp};
use std::collections::BTreeMap;
use std::ops::Range;

/// With more moved nodes than this a search costs no more: it looks at each room once, too.
const MOST_MOVED: usize = 1024;

/// What the last pass that made reservations made, in order, and what is otherwise since.
#[derive(Debug, Default)]
pub(crate) struct Promised {
    before: Vec<Promise>,
    by_job: BTreeMap<JobId, usize>,
    /// Up to here those of before were passed, made again or not.
    passed: usize,
    now: Vec<Promise>,
    /// Nodes whose room is another than it was before the next of those before was made.
    moved: Moved,
    /// Nodes on which this pass started something.
    started: Moved,
    /// Of the shapes that promises name.
    era: u64,
    /// Until the next pass nothing is compared or noted, also not by who makes later what it put off.
    closed: bool,
}

/// A reservation as it was made: for whom, when and where.
#[derive(Debug, PartialEq, Eq)]
struct Promise {
    who: Who,
    at: Timestamp,
    /// In the order in which they were picked.
    nodes: Vec<Range<usize>>,
}

/// A job with what decides when it can start: its shape, and the seconds it asks for.
pub(crate) type Who = (JobId, ShapeId, u32);

#[derive(Debug, Default)]
struct Moved {
    nodes: FixedBitSet,
    count: usize,
}

impl Moved {
    fn add(&mut self, nodes: impl IntoIterator<Item = usize>) {
        let mut nodes = nodes.into_iter();
        while let Some(at) = nodes.next().filter(|_| !self.are_too_many()) {
            if !self.nodes.contains(at) {
                self.nodes.grow_and_insert(at);
                self.count += 1;
            }
        }
    }

    fn are_too_many(&self) -> bool {
        self.count > MOST_MOVED
    }

    fn are_any_in(&self, nodes: &Range<usize>) -> bool {
        let end = nodes.end.min(self.nodes.len());
        nodes.start < end && self.nodes.contains_any_in_range(nodes.start..end)
    }

    fn clear(&mut self) {
        self.nodes.clear();
        self.count = 0;
    }
}

impl Promised {
    /// A new pass, at whose beginning the rooms of some nodes are others than at that of the last one.
    pub fn begin(&mut self, era: u64, changed: &[usize]) {
        if era != self.era {
            *self = Self { era, ..Self::default() };
            return;
        }
        if !self.now.is_empty() {
            self.before = std::mem::take(&mut self.now);
            self.by_job = (0..).zip(&self.before).map(|(place, one)| (one.who.0, place)).collect();
            self.moved.clear();
        }
        self.passed = 0;
        self.closed = false;
        // What the last pass started it may have started before it made a reservation, and the core may have dropped it.
        self.moved.add(self.started.nodes.ones());
        self.started.clear();
        self.moved.add(changed.iter().copied());
    }

    /// Nothing is promised again in this pass and the next.
    pub fn forget(&mut self) {
        *self = Self { era: self.era, closed: true, ..Self::default() };
    }

    /// A pass started something there.
    pub fn start(&mut self, nodes: impl Iterator<Item = usize> + Clone) {
        self.started.add(nodes.clone());
        self.moved.add(nodes);
    }

    /// When and where a job is to start, if that is as before; of jobs whose nodes all give the same and may be any.
    /// `is_as_early`: whether a node has room for it at that time or before.
    pub fn again(&mut self, who: Who, now: Timestamp, mut is_as_early: impl FnMut(usize, Timestamp) -> bool) -> Option<(Timestamp, &[Range<usize>])> {
        let place = self.pass_to(who)?;
        let one = &self.before[place];
        let moved = &self.moved;
        let stands = one.who == who
            && one.at > now
            && !moved.are_too_many()
            && !one.nodes.iter().any(|nodes| moved.are_any_in(nodes))
            && !moved.nodes.ones().any(|at| is_as_early(at, one.at));
        stands.then_some((one.at, &one.nodes))
    }

    /// A job got a reservation, `again` or by a search.
    pub fn make(&mut self, who: Who, at: Timestamp, nodes: Vec<Range<usize>>) {
        if self.closed {
            return;
        }
        let one = Promise { who, at, nodes };
        let place = self.pass_to(who);
        let before = place.map(|place| &self.before[place]);
        if before != Some(&one) {
            self.moved.add(before.into_iter().flat_map(|before| &before.nodes).cloned().flatten());
            self.moved.add(one.nodes.iter().cloned().flatten());
        }
        self.passed = place.map_or(self.passed, |place| place + 1);
        self.now.push(one);
    }

    /// The place of a job among those of before, if it is still to come. Those up to it have no reservation now, or not in
    /// their turn: what they held is free.
    fn pass_to(&mut self, who: Who) -> Option<usize> {
        let place = self.by_job.get(&who.0).copied().filter(|place| *place >= self.passed)?;
        for one in &self.before[self.passed..place] {
            self.moved.add(one.nodes.iter().cloned().flatten());
        }
        self.passed = place;
        Some(place)
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)]
mod tests {
    use super::*;

    fn secs(at: i64) -> Timestamp {
        Timestamp::from_secs(at)
    }
    fn who(job: u64) -> Who {
        (JobId(job), 0, 60)
    }
    /// Two reservations, and the pass after.
    fn two(changed: &[usize]) -> Promised {
        let mut promised = Promised::default();
        promised.make(who(1), secs(100), vec![0..2]);
        promised.make(who(2), secs(200), vec![2..3]);
        promised.begin(0, changed);
        promised
    }
    fn never(_: usize, _: Timestamp) -> bool {
        false
    }

    #[test]
    fn what_nothing_changed_about_is_promised_again() {
        let mut promised = two(&[5]);
        assert_eq!(promised.again(who(1), secs(1), never), Some((secs(100), &[0..2][..])));
        promised.make(who(1), secs(100), vec![0..2]);
        assert_eq!(promised.again(who(2), secs(1), never), Some((secs(200), &[2..3][..])));
        assert_eq!(promised.again(who(2), secs(200), never), None, "its time has come");
        assert_eq!(promised.again((JobId(2), 0, 61), secs(1), never), None, "it asks for longer");
        promised.begin(1, &[]);
        assert_eq!(promised.again(who(2), secs(1), never), None, "shapes are others");
    }

    #[test]
    fn after_something_was_taken_back_nothing_is_noted_before_the_next_pass() {
        let mut promised = two(&[]);
        promised.forget();
        promised.make(who(3), secs(300), vec![3..4]);
        promised.begin(0, &[]);
        assert_eq!(promised.again(who(3), secs(1), never), None, "who was promised something before it is not known");
        promised.make(who(3), secs(300), vec![3..4]);
        promised.begin(0, &[]);
        assert!(promised.again(who(3), secs(1), never).is_some());
    }

    #[test]
    fn nodes_that_moved_take_promises_with_them() {
        let mut promised = two(&[2]);
        assert!(promised.again(who(1), secs(1), |node, at| (node, at) == (2, secs(101))).is_some());
        assert_eq!(promised.again(who(1), secs(1), |node, at| (node, at) == (2, secs(100))), None, "it has room as early");
        assert_eq!(promised.again(who(2), secs(1), never), None, "it was to run there");
        let mut promised = two(&[]);
        promised.start(std::iter::once(0));
        assert_eq!(promised.again(who(1), secs(1), never), None, "somebody else runs there now");
        promised.make(who(1), secs(300), vec![2..4]);
        assert_eq!(promised.again(who(2), secs(1), never), None, "somebody before it moved there");
        assert_eq!(two(&[]).again(who(2), secs(1), |node, _| node < 2), None, "who was before it leaves its nodes to it");
        assert_eq!(two(&(10..10_000).collect::<Vec<_>>()).again(who(1), secs(1), never), None, "too much is otherwise");
    }
}
