//! When the tasks of an array are expected to start: each on its own, up to the last.
//!
//! A plan says it of the first of them only. The others follow as those before them end, as many at once as the plan has side
//! by side: a guess that others who wait do not enter, and the plainer the longer the array.

use gmodel::Timestamp;
use gmodel::array_spec::RangeSet;
use serde::{Deserialize, Serialize};

/// Expected starts of the tasks of an array that wait.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ArrayStarts {
    waiting: RangeSet,
    /// Of the first of them, by the plan.
    planned: Vec<Timestamp>,
    /// Of the next, as the places of those before them become free; and again each time as long as a task runs.
    then: Vec<Timestamp>,
    length_secs: u32,
}

impl ArrayStarts {
    /// Tasks that wait; when the plan starts the first of them; when those that run end; how long a task runs, if that is known.
    pub fn new(now: Timestamp, waiting: RangeSet, mut planned: Vec<Timestamp>, running: &[Timestamp], length_secs: Option<u32>) -> Self {
        planned.sort_unstable();
        planned.truncate(usize::try_from(waiting.len()).unwrap_or(usize::MAX));
        // As on the timeline: who takes no time has its place for a second.
        let length_secs = length_secs.map(|secs| secs.max(1));
        let then = length_secs.filter(|_| (planned.len() as u64) < waiting.len()).map(|secs| {
            let mut ends: Vec<Timestamp> = running.iter().copied().chain(planned.iter().map(|at| at.plus_secs(i64::from(secs)))).collect();
            ends.sort_unstable();
            let last = planned.last().map_or(now, |last| (*last).max(now));
            let gone = ends.partition_point(|end| *end <= last);
            let free = most_at_once(&planned, &ends, running.len()).saturating_sub(ends.len() - gone);
            std::iter::repeat_n(last, free).chain(ends[gone..].iter().copied()).collect()
        });
        Self { waiting, planned, then: then.unwrap_or_default(), length_secs: length_secs.unwrap_or(0) }
    }

    /// Of the task in a position; `None`: nobody can say.
    pub fn of(&self, position: u32) -> Option<Timestamp> {
        let before = self.waiting.runs().take_while(|(from, _)| *from < position);
        let turn: u64 = before.map(|(from, to)| u64::from((to + 1).min(position) - from)).sum();
        self.waiting.contains(position).then(|| self.nth(turn)).flatten()
    }

    /// Of the last that waits.
    pub fn last(&self) -> Option<Timestamp> {
        self.nth(self.waiting.len().checked_sub(1)?)
    }

    fn nth(&self, turn: u64) -> Option<Timestamp> {
        let planned = self.planned.len() as u64;
        if turn < planned {
            return self.planned.get(usize::try_from(turn).ok()?).copied();
        }
        let (turn, width) = (turn - planned, self.then.len() as u64);
        let first = self.then.get(usize::try_from(turn.checked_rem(width)?).ok()?)?;
        let rounds = i64::try_from(turn / width).ok()?;
        Some(first.plus_secs(rounds.saturating_mul(i64::from(self.length_secs))))
    }
}

/// How many tasks run side by side at most, those that run already included. Both lists are sorted.
fn most_at_once(starts: &[Timestamp], ends: &[Timestamp], running: usize) -> usize {
    let at_each = starts.iter().enumerate().map(|(at, start)| running + at + 1 - ends.partition_point(|end| end <= start));
    at_each.max().unwrap_or(0).max(running)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: i64) -> Timestamp {
        Timestamp(secs * 1000)
    }

    fn secs(told: &ArrayStarts, positions: impl IntoIterator<Item = u32>) -> Vec<Option<i64>> {
        positions.into_iter().map(|position| told.of(position).map(|at| at.0 / 1000)).collect()
    }

    #[test]
    fn who_is_not_planned_follows_as_places_become_free() {
        // Two side by side, of 100 s.
        let told = ArrayStarts::new(at(0), RangeSet::first_n(7), vec![at(10), at(30), at(110)], &[], Some(100));
        assert_eq!(secs(&told, 0..7), [10, 30, 110, 130, 210, 230, 310].map(Some));
        assert_eq!(told.last(), Some(at(310)));
        assert_eq!(told.of(7), None, "there is no such task");
    }

    #[test]
    fn of_a_capped_array_each_task_waits_for_one_that_runs() {
        let mut waiting = RangeSet::first_n(6);
        waiting.remove(0);
        waiting.remove(1);
        let told = ArrayStarts::new(at(0), waiting, Vec::new(), &[at(40), at(60)], Some(100));
        assert_eq!(secs(&told, 1..6), [None, Some(40), Some(60), Some(140), Some(160)]);
    }

    #[test]
    fn tasks_of_no_length_take_a_second_each() {
        let told = ArrayStarts::new(at(0), RangeSet::first_n(6), vec![at(10), at(10), at(20)], &[], Some(0));
        assert_eq!(secs(&told, 0..6), [10, 10, 20, 20, 21, 21].map(Some));
    }

    #[test]
    fn of_a_million_tasks_the_last_is_known_at_once_and_without_a_length_only_what_is_planned() {
        let told = ArrayStarts::new(at(0), RangeSet::first_n(1_000_000), vec![at(0); 100], &[], Some(60));
        assert_eq!(told.last(), Some(at(9_999 * 60)));
        let told = ArrayStarts::new(at(0), RangeSet::first_n(3), vec![at(5)], &[], None);
        assert_eq!((secs(&told, 0..3), told.last()), (vec![Some(5), None, None], None));
        assert_eq!(ArrayStarts::default().last(), None);
    }
}
