//! Sets of numbers as ranges: which positions of an array still wait. Written and stored as `0-5,7`.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A set of task positions as runs of neighbours. Every operation but `Display` and `iter` is O(log runs),
/// `insert_range` and `remove_range` also O(runs they touch). Written and stored as `0-5,7`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RangeSet {
    /// Start to end, both inside; runs neither touch nor overlap.
    runs: BTreeMap<u32, u32>,
    len: u64,
}

impl RangeSet {
    /// The empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// The positions 0 to `count - 1`: all tasks of an array of `count`.
    pub fn first_n(count: u32) -> Self {
        let mut set = Self::new();
        if count > 0 {
            set.insert_range(0, count - 1);
        }
        set
    }

    /// How many positions.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// True if the position is in the set.
    pub fn contains(&self, position: u32) -> bool {
        self.runs
            .range(..=position)
            .next_back()
            .is_some_and(|(_, &end)| position <= end)
    }

    /// Puts a position in; false if it was there.
    pub fn insert(&mut self, position: u32) -> bool {
        let before = self.len;
        self.insert_range(position, position);
        self.len > before
    }

    /// Takes a position out; false if it was not there.
    pub fn remove(&mut self, position: u32) -> bool {
        let before = self.len;
        self.remove_range(position, position);
        self.len < before
    }

    /// Puts in all from `start` to `end`, both included; nothing if `start > end`.
    pub fn insert_range(&mut self, start: u32, end: u32) {
        if start > end {
            return;
        }
        let (mut low, mut high) = (start, end);
        // A run that touches or overlaps ends at start - 1 or later and begins at end + 1 or earlier.
        while let Some((&from, &to)) = self.runs.range(..=end.saturating_add(1)).next_back() {
            if u64::from(to) + 1 < u64::from(start) {
                break;
            }
            self.drop_run(from, to);
            (low, high) = (low.min(from), high.max(to));
        }
        self.put_run(low, high);
    }

    /// Takes out all from `start` to `end`, both included; nothing if `start > end`.
    pub fn remove_range(&mut self, start: u32, end: u32) {
        if start > end {
            return;
        }
        while let Some((&from, &to)) = self.runs.range(..=end).next_back() {
            if to < start {
                break;
            }
            self.drop_run(from, to);
            if to > end {
                self.put_run(end + 1, to);
            }
            if from < start {
                self.put_run(from, start - 1);
                break;
            }
        }
    }

    /// The lowest position.
    pub fn first(&self) -> Option<u32> {
        self.runs.keys().next().copied()
    }

    /// The highest position.
    pub fn last(&self) -> Option<u32> {
        self.runs.values().next_back().copied()
    }

    /// The positions, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.runs().flat_map(|(from, to)| from..=to)
    }

    /// The runs of neighbouring positions, ascending, both ends included.
    pub fn runs(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.runs.iter().map(|(&from, &to)| (from, to))
    }

    fn put_run(&mut self, from: u32, to: u32) {
        self.runs.insert(from, to);
        self.len += u64::from(to - from) + 1;
    }

    fn drop_run(&mut self, from: u32, to: u32) {
        self.runs.remove(&from);
        self.len -= u64::from(to - from) + 1;
    }
}

impl FromIterator<u32> for RangeSet {
    fn from_iter<I: IntoIterator<Item = u32>>(positions: I) -> Self {
        let mut set = Self::new();
        positions.into_iter().for_each(|position| {
            set.insert(position);
        });
        set
    }
}

impl fmt::Display for RangeSet {
    /// `0-5,7`; nothing for the empty set.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (from, to)) in self.runs().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            if from == to {
                write!(f, "{comma}{from}")?
            } else {
                write!(f, "{comma}{from}-{to}")?
            }
        }
        Ok(())
    }
}

/// A text that is no set of positions.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{text:?} is no set of positions. Write 0-5,7")]
pub struct RangeSetError {
    text: String,
}

impl FromStr for RangeSet {
    type Err = RangeSetError;
    fn from_str(text: &str) -> Result<Self, RangeSetError> {
        let mut set = Self::new();
        let parts = text.split(',').filter(|_| !text.is_empty());
        for part in parts {
            let (from, to) = part.split_once('-').unwrap_or((part, part));
            let position =
                |digits: &str| number(digits).and_then(|number| u32::try_from(number).ok());
            let run = position(from)
                .zip(position(to))
                .filter(|(from, to)| from <= to);
            let (from, to) = run.ok_or_else(|| RangeSetError {
                text: shorten(text),
            })?;
            set.insert_range(from, to);
        }
        Ok(set)
    }
}

impl TryFrom<String> for RangeSet {
    type Error = RangeSetError;
    fn try_from(text: String) -> Result<Self, RangeSetError> {
        text.parse()
    }
}

impl From<RangeSet> for String {
    fn from(set: RangeSet) -> String {
        set.to_string()
    }
}

/// Reads a plain decimal number; more digits than an u64 holds count as the largest one.
pub(crate) fn number(digits: &str) -> Option<u64> {
    let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    plain.then(|| digits.parse().unwrap_or(u64::MAX))
}

/// At most 60 characters of a text, for messages.
pub(crate) fn shorten(text: &str) -> String {
    text.chars().take(60).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn stored_sets_are_text() {
        let set: RangeSet = serde_json::from_str(r#""0-5,7""#).unwrap();
        assert_eq!(
            (set.len(), serde_json::to_string(&set).unwrap().as_str()),
            (7, r#""0-5,7""#)
        );
        assert_eq!(
            serde_json::from_str::<RangeSet>(r#""""#).unwrap(),
            RangeSet::new()
        );
        assert!("5-1".parse::<RangeSet>().is_err() && "1,".parse::<RangeSet>().is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,30}|[0-9,:%-]{0,20}") {
            if let Ok(set) = text.parse::<RangeSet>() {
                prop_assert_eq!(set.to_string().parse(), Ok(set));
            }
        }

        #[test]
        fn a_range_set_is_a_set(steps in prop::collection::vec((any::<bool>(), 0u32..50, 0u32..12), 0..40)) {
            let (mut set, mut want) = (RangeSet::new(), BTreeSet::new());
            for (put, start, more) in steps {
                let end = start + more;
                if put {
                    set.insert_range(start, end);
                    want.extend(start..=end);
                } else if more == 0 {
                    prop_assert_eq!(set.remove(start), want.remove(&start));
                } else {
                    set.remove_range(start, end);
                    want.retain(|at| !(start..=end).contains(at));
                }
                prop_assert_eq!(set.iter().collect::<Vec<_>>(), want.iter().copied().collect::<Vec<_>>());
                prop_assert_eq!(set.len(), want.len() as u64);
                prop_assert!(set.runs().zip(set.runs().skip(1)).all(|(a, b)| a.1 + 1 < b.0), "runs do not touch");
            }
            prop_assert_eq!(set.to_string().parse::<RangeSet>(), Ok(set.clone()));
            prop_assert_eq!(set.first(), want.first().copied());
            prop_assert_eq!((0..70).filter(|&at| set.contains(at)).count(), want.len());
        }
    }
}
