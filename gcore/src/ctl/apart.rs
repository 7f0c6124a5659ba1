//! Waiting tasks of an array that are held, or not, unlike the rest of it: sets of places beside the array's own holds.
//!
//! Half a million held tasks are one record and one event so. What else differs of a task gives it a record of its own.

use super::state::Array;
use gmodel::array_spec::RangeSet;
use gmodel::node::HoldMark;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// Sets beside an array, at most; the tasks of further ones get records of their own.
const MAX_APART: usize = 100;

/// Pending tasks with holds of their own; none at all, where only the rest of the array is held.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Apart {
    pub positions: RangeSet,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub holds: Vec<HoldMark>,
}

impl Array {
    /// What keeps a pending task from starting.
    pub fn holds_of(&self, position: u32) -> &[HoldMark] {
        let apart = self
            .apart
            .iter()
            .find(|one| one.positions.contains(position));
        apart.map_or(&self.holds, |one| &one.holds)
    }

    /// Pending tasks that have the array's own holds.
    pub fn together(&self) -> Cow<'_, RangeSet> {
        if self.apart.is_empty() {
            return Cow::Borrowed(&self.pending);
        }
        let mut rest = self.pending.clone();
        self.apart
            .iter()
            .for_each(|one| take_out(&mut rest, &one.positions));
        Cow::Owned(rest)
    }

    /// Pending tasks that nobody holds.
    pub fn not_held(&self) -> RangeSet {
        let mut free = if self.holds.is_empty() {
            self.together().into_owned()
        } else {
            RangeSet::new()
        };
        self.apart
            .iter()
            .filter(|one| one.holds.is_empty())
            .for_each(|one| put_in(&mut free, &one.positions));
        free
    }

    /// Whether more tasks can be held unlike the rest without records of their own.
    pub(super) fn has_room_apart(&self) -> bool {
        self.apart.len() < MAX_APART
    }

    /// Those with holds of their own.
    pub(super) fn all_apart(&self) -> RangeSet {
        let mut all = RangeSet::new();
        self.apart
            .iter()
            .for_each(|one| put_in(&mut all, &one.positions));
        all
    }

    /// Some of the pending tasks by what holds them.
    pub(super) fn by_holds(&self, positions: &RangeSet) -> Vec<Apart> {
        let sets = self
            .apart
            .iter()
            .map(|one| (Cow::Borrowed(&one.positions), &one.holds));
        let sets = sets.chain(std::iter::once((self.together(), &self.holds)));
        let of_both = sets.map(|(set, holds)| Apart {
            positions: intersection(positions, &set),
            holds: holds.clone(),
        });
        of_both.filter(|one| !one.positions.is_empty()).collect()
    }

    /// These are held so from now on.
    pub(super) fn set_holds(&mut self, positions: &RangeSet, change: impl Fn(&mut Vec<HoldMark>)) {
        let mut changed = self.by_holds(&intersection(positions, &self.pending));
        self.no_longer_apart(positions);
        changed.iter_mut().for_each(|one| change(&mut one.holds));
        self.apart.append(&mut changed);
        self.tidy_apart();
    }

    /// They are not pending any more, or as the rest of the array.
    pub(super) fn no_longer_apart(&mut self, positions: &RangeSet) {
        self.apart
            .iter_mut()
            .for_each(|one| take_out(&mut one.positions, positions));
        self.apart.retain(|one| !one.positions.is_empty());
    }

    /// Sets alike are one, and who is held as the array is in none.
    pub(super) fn tidy_apart(&mut self) {
        let mut tidy: Vec<Apart> = Vec::new();
        for one in std::mem::take(&mut self.apart) {
            match tidy.iter_mut().find(|known| known.holds == one.holds) {
                Some(known) => put_in(&mut known.positions, &one.positions),
                None if one.holds == self.holds || one.positions.is_empty() => {}
                None => tidy.push(one),
            }
        }
        self.apart = tidy;
    }
}

/// What is in both sets.
pub(super) fn intersection(one: &RangeSet, other: &RangeSet) -> RangeSet {
    let mut both = RangeSet::new();
    let mut others = other.runs().peekable();
    for (first, last) in one.runs() {
        while let Some(&(from, to)) = others.peek() {
            both.insert_range(first.max(from), last.min(to));
            if to > last {
                break;
            }
            others.next();
        }
    }
    both
}

pub(super) fn take_out(of: &mut RangeSet, these: &RangeSet) {
    these
        .runs()
        .for_each(|(first, last)| of.remove_range(first, last));
}

pub(super) fn put_in(into: &mut RangeSet, these: &RangeSet) {
    these
        .runs()
        .for_each(|(first, last)| into.insert_range(first, last));
}
