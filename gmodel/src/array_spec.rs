//! Job arrays: `0-99:2%10`, `1,3,5-7`. The indices of a million tasks are a few ranges, never a list; tasks are
//! counted by their position (0 is the lowest index). Knows nothing of jobs. Source: `--array` in sbatch(1), and the index text that squeue prints.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use crate::range_set::RangeSet;
use crate::range_set::{number, shorten};

/// Most tasks of one array.
pub const MAX_TASKS: u32 = 1_000_000;
/// Largest index.
pub const MAX_INDEX: u32 = 4_000_000;
/// Indices of ranges with steps that a text of positions writes one by one.
const MOST_SINGLE: u32 = 1_000;
/// Longest text of an array's indices.
pub const MAX_TEXT_BYTES: usize = 64 * 1024;

/// The indices of an array in ascending order, and how many of its tasks may run at once. At least one index.
/// Written and stored as Slurm's text; the text is canonical (`3,1,2` is `1-3`, `0-99:2` is `0-98:2`).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ArraySpec {
    /// Ascending, one wholly before the next.
    ranges: Vec<IndexRange>,
    /// `%N`; None for no limit.
    limit: Option<u32>,
}

/// The indices `start`, `start + step`, ... `end`; `end` is one of them, and a single index has step 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IndexRange {
    pub start: u32,
    pub end: u32,
    pub step: u32,
}

impl ArraySpec {
    /// Reads `--array`. Brackets in it count for nothing, as in sbatch: `[0-9]%2`.
    pub fn parse(text: &str) -> Result<Self, ArraySpecError> {
        let text = text.trim();
        let wrong = |why: ArraySpecErrorKind| ArraySpecError {
            text: shorten(text),
            why,
        };
        if text.len() > MAX_TEXT_BYTES {
            return Err(wrong(ArraySpecErrorKind::TextTooLong { bytes: text.len() }));
        }
        let bare: &str = &text.replace(['[', ']'], "");
        let (indices, limit) = match bare.split_once('%') {
            Some((indices, limit)) => (indices, Some(limit)),
            None => (bare, None),
        };
        let limit = match limit.map(|digits| (digits, number(digits))) {
            None => None,
            Some((_, Some(limit))) if limit > u64::from(MAX_TASKS) => Some(MAX_TASKS),
            Some((_, Some(limit))) => Some(limit as u32).filter(|&limit| limit > 0),
            Some((digits, None)) => {
                return Err(wrong(ArraySpecErrorKind::Limit {
                    limit: shorten(digits),
                }));
            }
        };
        if indices.is_empty() {
            return Err(wrong(ArraySpecErrorKind::Empty));
        }
        let mut ranges = indices
            .split(',')
            .map(IndexRange::parse)
            .collect::<Result<Vec<_>, _>>()
            .map_err(wrong)?;
        let tasks: u64 = ranges.iter().map(|range| u64::from(range.len())).sum();
        if tasks > u64::from(MAX_TASKS) {
            return Err(wrong(ArraySpecErrorKind::TooMany { tasks }));
        }
        ranges.sort_unstable();
        Ok(Self {
            ranges: canonical(separated(ranges)),
            limit,
        })
    }

    /// How many tasks the array has, 1 to [`MAX_TASKS`].
    #[expect(
        clippy::len_without_is_empty,
        reason = "an array has at least one task"
    )]
    pub fn len(&self) -> u32 {
        self.ranges.iter().map(IndexRange::len).sum()
    }

    /// At most so many tasks run at once; None for no limit.
    pub fn limit(&self) -> Option<u32> {
        self.limit
    }

    /// The same indices with another limit (`gadm job update`); 0 is none.
    pub fn with_limit(self, limit: Option<u32>) -> Self {
        Self {
            limit: limit.filter(|&limit| limit > 0),
            ..self
        }
    }

    /// The ranges, ascending.
    pub fn ranges(&self) -> &[IndexRange] {
        &self.ranges
    }

    /// The index of the task at this position (from 0), or None behind the last.
    pub fn nth(&self, position: u32) -> Option<u32> {
        let mut left = position;
        for range in &self.ranges {
            if left < range.len() {
                return Some(range.start + left * range.step);
            }
            left -= range.len();
        }
        None
    }

    /// The position of the task with this index, or None if the array has no such index.
    pub fn position(&self, index: u32) -> Option<u32> {
        let mut before = 0;
        for range in &self.ranges {
            if range.contains(index) {
                return Some(before + (index - range.start) / range.step);
            }
            before += range.len();
        }
        None
    }

    /// True if a task has this index.
    pub fn contains(&self, index: u32) -> bool {
        self.position(index).is_some()
    }

    /// All indices, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.ranges
            .iter()
            .flat_map(|range| (range.start..=range.end).step_by(range.step as usize))
    }

    /// The positions here of those of another's indices that are here, too.
    pub fn positions_of(&self, indices: &ArraySpec) -> RangeSet {
        let mut found = RangeSet::new();
        let mut before = 0;
        for own in &self.ranges {
            let at = |index: u32| before + (index - own.start) / own.step;
            let from = indices
                .ranges
                .partition_point(|other| other.end < own.start);
            for other in indices.ranges[from..]
                .iter()
                .take_while(|other| other.start <= own.end)
            {
                let last = other.end.min(own.end);
                let from = |one: &IndexRange, least: u32| {
                    one.start + least.saturating_sub(one.start).div_ceil(one.step) * one.step
                };
                if other.step == 1
                    || (other.step == own.step && other.start % own.step == own.start % own.step)
                {
                    let first = from(own, other.start);
                    if first <= last {
                        found.insert_range(at(first), at(last));
                    }
                } else {
                    let both = (from(other, own.start)..=last)
                        .step_by(other.step as usize)
                        .filter(|index| own.contains(*index));
                    both.for_each(|index| found.insert_range(at(index), at(index)));
                }
            }
            before += own.len();
        }
        found
    }

    /// The indices at these positions; `None` where there are none.
    pub fn at(&self, positions: &RangeSet) -> Option<ArraySpec> {
        Some(ArraySpec {
            ranges: self.ranges_at(positions),
            limit: None,
        })
        .filter(|found| !found.ranges.is_empty())
    }

    /// The indices that another does not have; `None` where it has all.
    pub fn without(&self, other: &ArraySpec) -> Option<ArraySpec> {
        let mut left = RangeSet::first_n(self.len());
        self.positions_of(other)
            .runs()
            .for_each(|(first, last)| left.remove_range(first, last));
        self.at(&left)
    }

    /// Lowest and highest index.
    pub fn bounds(&self) -> (u32, u32) {
        let ends = self.ranges.first().zip(self.ranges.last());
        let (first, last) = ends.expect("an array has at least one index");
        (first.start, last.end)
    }

    /// The step that `SLURM_ARRAY_TASK_STEP` shows: that of the first range, and of two indices their distance (`5-9:4`).
    pub fn step(&self) -> u32 {
        match self.ranges[..] {
            [first, second] if first.is_single() && second.is_single() => {
                second.start - first.start
            }
            _ => self.ranges.first().map_or(1, |range| range.step),
        }
    }

    /// The indices at these positions as squeue prints the waiting part of an array, without brackets:
    /// `5-98%10`. As squeue does, it writes a step only if the whole is one range of more than five indices over more than
    /// eleven numbers (`0-12:2`, but `0,2,4,6,8,10`). Beyond [`MOST_SINGLE`] single indices, other ranges get steps too.
    /// Positions behind the last task are left out.
    pub fn text_of(&self, positions: &RangeSet) -> String {
        text(&without_steps(self.ranges_at(positions)), self.limit)
    }

    /// Positions behind the last task are left out.
    fn ranges_at(&self, positions: &RangeSet) -> Vec<IndexRange> {
        let mut pieces = Vec::new();
        let mut before = 0;
        let mut runs = positions.runs().peekable();
        for range in &self.ranges {
            let last = before + range.len() - 1;
            while let Some(&(from, to)) = runs.peek() {
                if from > last {
                    break;
                }
                let at = |position: u32| range.start + (position - before) * range.step;
                pieces.push(IndexRange::new(
                    at(from.max(before)),
                    at(to.min(last)),
                    range.step,
                ));
                if to > last {
                    break;
                }
                runs.next();
            }
            before = last + 1;
        }
        canonical(pieces)
    }
}

impl fmt::Display for ArraySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&text(&self.ranges, self.limit))
    }
}

impl FromStr for ArraySpec {
    type Err = ArraySpecError;
    fn from_str(text: &str) -> Result<Self, ArraySpecError> {
        Self::parse(text)
    }
}

impl TryFrom<String> for ArraySpec {
    type Error = ArraySpecError;
    fn try_from(text: String) -> Result<Self, ArraySpecError> {
        Self::parse(&text)
    }
}

impl From<ArraySpec> for String {
    fn from(spec: ArraySpec) -> String {
        spec.to_string()
    }
}

/// An array that cannot be: Slurm's words, then the reason.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("Invalid job array specification {text:?}: {why}")]
pub struct ArraySpecError {
    pub text: String,
    pub why: ArraySpecErrorKind,
}

/// What stands against an array.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ArraySpecErrorKind {
    #[error("it names no index. Try 0-9, 1,3,5-7 or 0-99:2%10")]
    Empty,
    #[error("{part:?} is no index or range. Try 0-9, 1,3,5-7 or 0-99:2%10")]
    Form { part: String },
    #[error(
        "the range {part:?} has step 0 and would never end. Leave the step out or use 1 or more"
    )]
    ZeroStep { part: String },
    #[error("the range {part:?} runs backwards. Write {end}-{start}")]
    Reversed { part: String, start: u64, end: u64 },
    #[error(
        "index {index} is larger than {MAX_INDEX}, the largest there can be. Use smaller indices"
    )]
    IndexTooLarge { index: u64 },
    #[error("it has {tasks} tasks and {MAX_TASKS} are the most. Split it into several arrays")]
    TooMany { tasks: u64 },
    #[error("{limit:?} after % is no number of tasks. Write %10 for at most ten at once")]
    Limit { limit: String },
    #[error(
        "its text has {bytes} bytes and {MAX_TEXT_BYTES} are the most. Use ranges, as in 0-99:2"
    )]
    TextTooLong { bytes: usize },
}

impl IndexRange {
    fn parse(part: &str) -> Result<Self, ArraySpecErrorKind> {
        let part = part.trim();
        let form = || ArraySpecErrorKind::Form {
            part: shorten(part),
        };
        let index = |digits: &str| match number(digits) {
            None => Err(form()),
            Some(index) if index > u64::from(MAX_INDEX) => {
                Err(ArraySpecErrorKind::IndexTooLarge { index })
            }
            Some(index) => Ok(index as u32),
        };
        let (range, step) = part
            .split_once(':')
            .map_or((part, None), |(range, step)| (range, Some(step)));
        let Some((start, end)) = range.split_once('-') else {
            let start = index(range)?;
            return if step.is_none() {
                Ok(Self::new(start, start, 1))
            } else {
                Err(form())
            };
        };
        let (start, end) = (index(start)?, index(end)?);
        if start > end {
            return Err(ArraySpecErrorKind::Reversed {
                part: shorten(part),
                start: start.into(),
                end: end.into(),
            });
        }
        let step = match step.map(number) {
            None => 1,
            Some(None) => return Err(form()),
            Some(Some(0)) => {
                return Err(ArraySpecErrorKind::ZeroStep {
                    part: shorten(part),
                });
            }
            // A step beyond the range leaves its first index only.
            Some(Some(step)) => step.min(u64::from(MAX_INDEX) + 1) as u32,
        };
        Ok(Self::new(start, end, step))
    }

    fn new(start: u32, end: u32, step: u32) -> Self {
        let end = end - (end - start) % step;
        Self {
            start,
            end,
            step: if start == end { 1 } else { step },
        }
    }

    /// How many indices; never 0.
    #[expect(
        clippy::len_without_is_empty,
        reason = "a range has at least its start"
    )]
    pub fn len(&self) -> u32 {
        (self.end - self.start) / self.step + 1
    }

    /// True if the index is one of them.
    pub fn contains(&self, index: u32) -> bool {
        (self.start..=self.end).contains(&index) && (index - self.start).is_multiple_of(self.step)
    }

    fn is_single(&self) -> bool {
        self.start == self.end
    }
}

/// Sorted ranges of which each ends before the next begins: as given if they do, else index by index.
fn separated(ranges: Vec<IndexRange>) -> Vec<IndexRange> {
    if ranges.is_sorted_by(|a, b| a.end < b.start) {
        return ranges;
    }
    let top = ranges.iter().map(|range| range.end).max().unwrap_or(0);
    let mut wanted = vec![false; top as usize + 1];
    for range in &ranges {
        (range.start..=range.end)
            .step_by(range.step as usize)
            .for_each(|index| wanted[index as usize] = true);
    }
    let indices = wanted.iter().enumerate().filter(|&(_, &wanted)| wanted);
    indices
        .map(|(index, _)| IndexRange::new(index as u32, index as u32, 1))
        .collect()
}

/// The same indices in few ranges. Doing it twice changes nothing, so that a printed array reads back as itself.
fn canonical(ranges: Vec<IndexRange>) -> Vec<IndexRange> {
    let mut done: Vec<IndexRange> = Vec::new();
    let pairs_apart = |range: IndexRange| match range {
        // Two indices with a gap are shorter as two.
        IndexRange { start, end, step } if step > 1 && end - start == step => [
            Some(IndexRange::new(start, start, 1)),
            Some(IndexRange::new(end, end, 1)),
        ],
        range => [Some(range), None],
    };
    for range in ranges.into_iter().flat_map(pairs_apart).flatten() {
        done.push(range);
        while let Some((merged, used)) = merge_top(&done) {
            done.truncate(done.len() - used);
            done.push(merged);
        }
    }
    done
}

/// Ranges with steps index by index, neighbours together. One range that Slurm too writes with its step stays as it is
/// (seen in squeue 22.05.8: `0-25:5` and `0-12:2`, but `0,5,10,15,20` and `0,2,4,6,8,10`).
fn without_steps(ranges: Vec<IndexRange>) -> Vec<IndexRange> {
    let apart: u32 = ranges
        .iter()
        .filter(|range| range.step > 1)
        .map(IndexRange::len)
        .sum();
    let one_long = matches!(ranges[..], [range] if range.len() > 5 && range.end - range.start > 10);
    if one_long || apart == 0 || apart > MOST_SINGLE {
        return ranges;
    }
    let mut runs: Vec<IndexRange> = Vec::new();
    let mut add = |start: u32, end: u32| match runs.last_mut() {
        Some(last) if last.end + 1 == start => last.end = end,
        _ => runs.push(IndexRange {
            start,
            end,
            step: 1,
        }),
    };
    for range in ranges {
        match range.step {
            1 => add(range.start, range.end),
            step => (range.start..=range.end)
                .step_by(step as usize)
                .for_each(|index| add(index, index)),
        }
    }
    runs
}

/// What the last two or three ranges become together, and how many of them that uses up.
fn merge_top(done: &[IndexRange]) -> Option<(IndexRange, usize)> {
    let &[.., a, b] = done else { return None };
    let gap = b.start - a.end;
    let steps_fit = (a.is_single() && gap == b.step && !b.is_single())
        || (b.is_single() && gap == a.step && !a.is_single())
        || (a.step == b.step && gap == a.step && (gap == 1 || (!a.is_single() && !b.is_single())));
    if steps_fit {
        return Some((
            IndexRange {
                start: a.start,
                end: b.end,
                step: gap,
            },
            2,
        ));
    }
    let &[.., first, _, _] = done else {
        return None;
    };
    let three_singles =
        first.is_single() && a.is_single() && b.is_single() && a.start - first.start == gap;
    three_singles.then_some((
        IndexRange {
            start: first.start,
            end: b.end,
            step: gap,
        },
        3,
    ))
}

fn text(ranges: &[IndexRange], limit: Option<u32>) -> String {
    let parts: Vec<String> = ranges
        .iter()
        .map(|range| match range {
            range if range.is_single() => range.start.to_string(),
            IndexRange {
                start,
                end,
                step: 1,
            } => format!("{start}-{end}"),
            IndexRange { start, end, step } => format!("{start}-{end}:{step}"),
        })
        .collect();
    let limit = limit.map(|limit| format!("%{limit}")).unwrap_or_default();
    parts.join(",") + &limit
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn check(text: &str, want: Expect) {
        want.assert_eq(&match ArraySpec::parse(text) {
            Ok(spec) => format!("{spec} ({} tasks)", spec.len()),
            Err(error) => format!("error: {error}"),
        });
    }

    #[test]
    fn arrays_read_and_print_compactly() {
        check("0-99", expect!["0-99 (100 tasks)"]);
        check("0-99:2%10", expect!["0-98:2%10 (50 tasks)"]);
        check("1,3,5-7", expect!["1,3,5-7 (5 tasks)"]);
        check("5-9:4", expect!["5,9 (2 tasks)"]);
        check("3,1,2", expect!["1-3 (3 tasks)"]);
        check("1-5,3-8,4", expect!["1-8 (8 tasks)"]);
        check("0-10:2,1-9:2", expect!["0-10 (11 tasks)"]);
        check("1,3,5%2", expect!["1-5:2%2 (3 tasks)"]);
        check("7-9:100", expect!["7 (1 tasks)"]);
        check("0-999999", expect!["0-999999 (1000000 tasks)"]);
        check("4000000", expect!["4000000 (1 tasks)"]);
        check("1-3%0", expect!["1-3 (3 tasks)"]);
        check("[0-1],[3]%2", expect!["0-1,3%2 (3 tasks)"]);
    }

    #[test]
    fn impossible_arrays_are_refused_with_the_reason() {
        check(
            "1-3:0",
            expect![[
                r#"error: Invalid job array specification "1-3:0": the range "1-3:0" has step 0 and would never end. Leave the step out or use 1 or more"#
            ]],
        );
        check(
            "",
            expect![[
                r#"error: Invalid job array specification "": it names no index. Try 0-9, 1,3,5-7 or 0-99:2%10"#
            ]],
        );
        check(
            "%5",
            expect![[
                r#"error: Invalid job array specification "%5": it names no index. Try 0-9, 1,3,5-7 or 0-99:2%10"#
            ]],
        );
        check(
            "9-1",
            expect![[
                r#"error: Invalid job array specification "9-1": the range "9-1" runs backwards. Write 1-9"#
            ]],
        );
        check(
            "1,,3",
            expect![[
                r#"error: Invalid job array specification "1,,3": "" is no index or range. Try 0-9, 1,3,5-7 or 0-99:2%10"#
            ]],
        );
        check(
            "a-b",
            expect![[
                r#"error: Invalid job array specification "a-b": "a-b" is no index or range. Try 0-9, 1,3,5-7 or 0-99:2%10"#
            ]],
        );
        check(
            "0-1000000",
            expect![[
                r#"error: Invalid job array specification "0-1000000": it has 1000001 tasks and 1000000 are the most. Split it into several arrays"#
            ]],
        );
        check(
            "1-99999999999999999999",
            expect![[
                r#"error: Invalid job array specification "1-99999999999999999999": index 18446744073709551615 is larger than 4000000, the largest there can be. Use smaller indices"#
            ]],
        );
        check(
            "1-4%x",
            expect![[
                r#"error: Invalid job array specification "1-4%x": "x" after % is no number of tasks. Write %10 for at most ten at once"#
            ]],
        );
    }

    #[test]
    fn the_waiting_part_prints_as_squeue_does() {
        let spec = ArraySpec::parse("0-19:2,200-202%10").unwrap();
        let mut waiting = RangeSet::first_n(spec.len());
        assert_eq!(
            spec.text_of(&waiting),
            "0,2,4,6,8,10,12,14,16,18,200-202%10"
        );
        waiting.remove_range(0, 3);
        waiting.remove(7);
        waiting.remove(11);
        assert_eq!(spec.text_of(&waiting), "8,10,12,16,18,200,202%10");
        assert_eq!(spec.text_of(&RangeSet::new()), "%10");
        assert_eq!(
            spec.text_of(&RangeSet::first_n(u32::MAX)),
            "0,2,4,6,8,10,12,14,16,18,200-202%10"
        );
    }

    #[test]
    fn waiting_indices_are_written_as_squeue_writes_them() {
        let same = [
            "0-12:2",
            "0-15:3",
            "0-25:5",
            "100-112:2",
            "0-98:2%5",
            "1-11",
            "0-3,10,15,20,25,30",
            "1-2,13",
        ];
        let listed = [
            ("0-10:2", "0,2,4,6,8,10"),
            ("1-11:2", "1,3,5,7,9,11"),
            ("0-12:3", "0,3,6,9,12"),
            ("0-20:5", "0,5,10,15,20"),
            ("0-200:100", "0,100,200"),
            ("5,90", "5,90"),
            ("0-4:2%3", "0,2,4%3"),
            ("0-30:2,31", "0,2,4,6,8,10,12,14,16,18,20,22,24,26,28,30-31"),
            ("0-200:40,7", "0,7,40,80,120,160,200"),
        ];
        for (asked, printed) in same.map(|text| (text, text)).into_iter().chain(listed) {
            let spec = ArraySpec::parse(asked).unwrap();
            assert_eq!(
                spec.text_of(&RangeSet::first_n(spec.len())),
                printed,
                "{asked}"
            );
        }
    }

    #[test]
    fn stored_arrays_are_text() {
        let spec: ArraySpec = serde_json::from_str(r#""0-9:3%2""#).unwrap();
        assert_eq!(serde_json::to_string(&spec).unwrap(), r#""0-9:3%2""#);
        assert!(serde_json::from_str::<ArraySpec>(r#""0-99999999""#).is_err());
    }

    #[test]
    fn a_million_tasks_are_a_few_bytes() {
        let spec = ArraySpec::parse("0-999999").unwrap();
        assert_eq!(spec.ranges().len(), 1);
        assert_eq!(
            (spec.nth(999_999), spec.nth(1_000_000), spec.position(4711)),
            (Some(999_999), None, Some(4711))
        );
        assert_eq!((spec.bounds(), spec.step()), ((0, 999_999), 1));
        let step = |text: &str| ArraySpec::parse(text).unwrap().step();
        assert_eq!(
            (
                step("5-9:4"),
                step("0-15:4"),
                step("1,2"),
                step("7"),
                step("1,3,9")
            ),
            (4, 4, 1, 1, 1)
        );
        let mut waiting = RangeSet::first_n(spec.len());
        waiting.remove_range(0, 9);
        assert_eq!(
            (waiting.to_string().as_str(), waiting.len(), waiting.last()),
            ("10-999999", 999_990, Some(999_999))
        );
        waiting.remove_range(10, 999_999);
        assert_eq!((waiting.first(), waiting.last()), (None, None));
    }

    #[test]
    fn steps_are_written_where_all_that_waits_is_one_range() {
        let waiting = |text: &str, gone: &[u32]| {
            let spec = ArraySpec::parse(text).unwrap();
            let mut positions = RangeSet::first_n(spec.len());
            for at in gone {
                positions.remove(*at);
            }
            spec.text_of(&positions)
        };
        assert_eq!(waiting("10-100:10%3", &[]), "10-100:10%3");
        // As squeue 22.05.8 wrote these.
        assert_eq!(waiting("0-4:2,7-20", &[]), "0,2,4,7-20");
        assert_eq!(waiting("0-8:2,9-12", &[]), "0,2,4,6,8-12");
        assert_eq!(waiting("1,2,4,6,8", &[]), "1-2,4,6,8");
        assert_eq!(waiting("0-20:2", &[2]), "0,2,6,8,10,12,14,16,18,20");
        let long = waiting("0-9998:2", &[7]);
        assert_eq!(
            long, "0-12:2,16-9998:2",
            "too many to be written one by one"
        );
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,30}|[0-9,:%-]{0,20}") {
            if let Ok(spec) = ArraySpec::parse(&text) {
                prop_assert_eq!(ArraySpec::parse(&spec.to_string()), Ok(spec));
            }
        }

        #[test]
        fn an_array_has_the_indices_that_were_written(parts in prop::collection::vec((0u32..60, 0u32..40, 1u32..6), 1..8)) {
            let written: Vec<String> = parts.iter().map(|(start, more, step)| format!("{start}-{}:{step}", start + more)).collect();
            let want: BTreeSet<u32> = parts.iter().flat_map(|&(start, more, step)| (start..=start + more).step_by(step as usize)).collect();
            let spec = ArraySpec::parse(&written.join(",")).unwrap();
            prop_assert_eq!(spec.iter().collect::<Vec<_>>(), want.iter().copied().collect::<Vec<_>>());
            prop_assert_eq!(spec.len() as usize, want.len());
            for (position, index) in spec.iter().enumerate() {
                prop_assert_eq!(spec.nth(position as u32), Some(index));
                prop_assert_eq!(spec.position(index), Some(position as u32));
            }
            prop_assert_eq!((0..120).filter(|&i| spec.contains(i)).count(), want.len());
            prop_assert_eq!(ArraySpec::parse(&spec.to_string()), Ok(spec));
        }

        #[test]
        fn indices_of_another_array_are_found_here(
            own in prop::collection::vec((0u32..60, 0u32..40, 1u32..6), 1..6),
            other in prop::collection::vec((0u32..60, 0u32..40, 1u32..6), 1..6),
        ) {
            let spec = |parts: &[(u32, u32, u32)]| {
                let text: Vec<String> = parts.iter().map(|(start, more, step)| format!("{start}-{}:{step}", start + more)).collect();
                ArraySpec::parse(&text.join(",")).unwrap()
            };
            let (own, other) = (spec(&own), spec(&other));
            let positions: RangeSet = other.iter().filter_map(|index| own.position(index)).collect();
            prop_assert_eq!(own.positions_of(&other), positions.clone());
            let both: Vec<u32> = own.at(&positions).map_or(Vec::new(), |both| both.iter().collect());
            prop_assert_eq!(both, own.iter().filter(|index| other.contains(*index)).collect::<Vec<_>>());
            let only_there: Vec<u32> = other.without(&own).map_or(Vec::new(), |left| left.iter().collect());
            prop_assert_eq!(only_there, other.iter().filter(|index| !own.contains(*index)).collect::<Vec<_>>());
        }

        #[test]
        fn the_text_of_positions_names_their_indices(positions in prop::collection::btree_set(0u32..40, 1..30)) {
            let spec = ArraySpec::parse("3-50:2,60,70-90:5,100-120").unwrap();
            let set: RangeSet = positions.iter().copied().collect();
            let want: Vec<u32> = positions.iter().filter_map(|&at| spec.nth(at)).collect();
            prop_assert_eq!(ArraySpec::parse(&spec.text_of(&set)).unwrap().iter().collect::<Vec<_>>(), want);
        }
    }
}
