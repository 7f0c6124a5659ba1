//! The record of an array: tasks without records are sets of positions.
//!
//! Half a million held tasks are one record and one event: tasks held unlike the rest are sets beside the
//! array's own holds. Any other difference gives a task a record of its own.

use crate::ctl::state::open_dependency::OpenDependency;
use gmodel::array_spec::{ArraySpec, RangeSet};
use gmodel::node::HoldMark;
use gmodel::{JobId, JobSpec, Reason, Timestamp};
use gsched::Nomination;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::sync::Arc;

/// An array as one record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Array {
    /// Id of the task at position 0.
    pub id: JobId,
    pub spec: Arc<JobSpec>,
    pub tasks: ArraySpec,
    /// Positions of pending tasks without records.
    pub pending: RangeSet,
    /// Positions cancelled without records.
    pub cancelled: RangeSet,
    /// Tasks with records that are not over: pending, running, completing.
    pub own_pending: u32,
    pub own_live: u32,
    pub reason: Reason,
    /// As a job's, for the next of its untouched tasks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nomination: Option<Nomination>,
    pub submitted: Timestamp,
    pub eligible: Timestamp,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub holds: Vec<HoldMark>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_secs: Option<u32>,
    pub nice: i32,
    #[serde(flatten)]
    pub dropped: DroppedTasks,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_key: Option<Arc<str>>,
    /// Open conditions of the dependency, for the tasks without records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits: Option<Box<OpenDependency>>,
    /// Tasks with records that are over and did not end well. They may be forgotten before the array.
    #[serde(default)]
    pub unsuccessful: u32,
    /// Pending tasks that are held unlike the rest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub apart: Vec<HeldTasks>,
}

/// Why tasks of `Array::cancelled` are over.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DroppedTasks {
    /// The last who cancelled some of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cancelled_by: Option<String>,
    /// Those that could not end by their deadline.
    #[serde(skip_serializing_if = "RangeSet::is_empty")]
    pub late: RangeSet,
}

impl Array {
    /// Those of `cancelled` that somebody cancelled, or whose dependency can not be met.
    pub fn not_late(&self) -> Cow<'_, RangeSet> {
        if self.dropped.late.is_empty() {
            return Cow::Borrowed(&self.cancelled);
        }
        let mut left = self.cancelled.clone();
        take_out(&mut left, &self.dropped.late);
        Cow::Owned(left)
    }

    /// Another reason, with which a nomination is over.
    pub(crate) fn set_reason(&mut self, reason: Reason) {
        (self.reason, self.nomination) = (reason, None);
    }

    pub fn task_id(&self, position: u32) -> JobId {
        JobId(self.id.0 + u64::from(position))
    }
    pub fn len(&self) -> u32 {
        self.tasks.len()
    }
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// No task is pending or live.
    pub fn is_over(&self) -> bool {
        self.pending.is_empty() && self.own_pending == 0 && self.own_live == 0
    }
}

/// Most sets beside an array; further tasks get records.
const MAX_APART: usize = 100;

/// Pending tasks with holds of their own; with none, if only the rest of the array is held.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HeldTasks {
    pub positions: RangeSet,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub holds: Vec<HoldMark>,
}

impl Array {
    /// The holds of a pending task.
    pub fn holds_of(&self, position: u32) -> &[HoldMark] {
        let apart = self
            .apart
            .iter()
            .find(|one| one.positions.contains(position));
        apart.map_or(&self.holds, |one| &one.holds)
    }

    /// Pending tasks with the array's own holds.
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

    /// Pending tasks without a hold.
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

    /// Whether there is room for another set.
    pub(crate) fn has_room_apart(&self) -> bool {
        self.apart.len() < MAX_APART
    }

    /// Tasks with holds of their own.
    pub(crate) fn all_apart(&self) -> RangeSet {
        let mut all = RangeSet::new();
        self.apart
            .iter()
            .for_each(|one| put_in(&mut all, &one.positions));
        all
    }

    /// Pending tasks, grouped by their holds.
    pub(crate) fn by_holds(&self, positions: &RangeSet) -> Vec<HeldTasks> {
        let sets = self
            .apart
            .iter()
            .map(|one| (Cow::Borrowed(&one.positions), &one.holds));
        let sets = sets.chain(std::iter::once((self.together(), &self.holds)));
        let of_both = sets.map(|(set, holds)| HeldTasks {
            positions: intersection(positions, &set),
            holds: holds.clone(),
        });
        of_both.filter(|one| !one.positions.is_empty()).collect()
    }

    /// Changes the holds of these tasks.
    pub(crate) fn set_holds(&mut self, positions: &RangeSet, change: impl Fn(&mut Vec<HoldMark>)) {
        let mut changed = self.by_holds(&intersection(positions, &self.pending));
        self.no_longer_apart(positions);
        changed.iter_mut().for_each(|one| change(&mut one.holds));
        self.apart.append(&mut changed);
        self.tidy_apart();
    }

    /// These tasks are not pending any more, or held like the rest.
    pub(crate) fn no_longer_apart(&mut self, positions: &RangeSet) {
        self.apart
            .iter_mut()
            .for_each(|one| take_out(&mut one.positions, positions));
        self.apart.retain(|one| !one.positions.is_empty());
    }

    /// Merges equal sets, and drops sets that are held like the array.
    pub(crate) fn tidy_apart(&mut self) {
        let mut tidy: Vec<HeldTasks> = Vec::new();
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

/// The positions in both sets.
pub(crate) fn intersection(one: &RangeSet, other: &RangeSet) -> RangeSet {
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

pub(crate) fn take_out(of: &mut RangeSet, these: &RangeSet) {
    these
        .runs()
        .for_each(|(first, last)| of.remove_range(first, last));
}

pub(crate) fn put_in(into: &mut RangeSet, these: &RangeSet) {
    these
        .runs()
        .for_each(|(first, last)| into.insert_range(first, last));
}
