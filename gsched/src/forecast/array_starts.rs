//! When the tasks of an array are expected to start: each on its own, up to the last.
//!
//! A plan says it of those that it has a place for, many in a row in one. Should that not be all, the others follow as those before them
//! end, as many at once as the plan has side by side: a guess that others who wait do not enter.

use gmodel::Timestamp;
use gmodel::array_spec::RangeSet;
use serde::{Deserialize, Serialize};

/// Expected starts of the tasks of an array that wait.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ArrayStarts {
    waiting: RangeSet,
    /// Of the first of them, by the plan.
    planned: Vec<Row>,
    /// Of the next, as the places of those before them become free; and again each time as long as a task runs.
    then: Vec<Timestamp>,
    length_secs: u32,
}

/// Tasks that follow each other: the first starts then, each of the others when the one before it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    pub from: Timestamp,
    pub tasks: u64,
}

impl Row {
    /// When so many have had their turn.
    fn after(&self, tasks: u64, secs: u32) -> Timestamp {
        self.from.plus_secs(
            i64::try_from(tasks)
                .unwrap_or(i64::MAX)
                .saturating_mul(i64::from(secs)),
        )
    }
}

impl ArrayStarts {
    /// Tasks that wait; when the plan starts the first of them; when those that run end; how long a task runs, if that is known.
    pub fn new(
        now: Timestamp,
        waiting: RangeSet,
        mut planned: Vec<Row>,
        running: &[Timestamp],
        length_secs: Option<u32>,
    ) -> Self {
        planned.sort_unstable_by_key(|row| row.from);
        // As on the timeline: no job takes less than a second.
        let length_secs = length_secs.map(|secs| secs.max(1));
        let then = length_secs
            .filter(|_| count(&planned) < waiting.len())
            .map(|secs| {
                let starts: Vec<Timestamp> = planned.iter().map(|row| row.from).collect();
                let mut ends: Vec<Timestamp> = running
                    .iter()
                    .copied()
                    .chain(planned.iter().map(|row| row.after(row.tasks, secs)))
                    .collect();
                ends.sort_unstable();
                let last = planned
                    .iter()
                    .map(|row| row.after(row.tasks - 1, secs))
                    .fold(now, Timestamp::max);
                let gone = ends.partition_point(|end| *end <= last);
                let free =
                    most_at_once(&starts, &ends, running.len()).saturating_sub(ends.len() - gone);
                std::iter::repeat_n(last, free)
                    .chain(ends[gone..].iter().copied())
                    .collect()
            });
        Self {
            waiting,
            planned,
            then: then.unwrap_or_default(),
            length_secs: length_secs.unwrap_or(0),
        }
    }

    /// Of the task in a position; `None`: unknown.
    pub fn of(&self, position: u32) -> Option<Timestamp> {
        let before = self.waiting.runs().take_while(|(from, _)| *from < position);
        let turn: u64 = before
            .map(|(from, to)| u64::from((to + 1).min(position) - from))
            .sum();
        self.waiting
            .contains(position)
            .then(|| self.nth(turn))
            .flatten()
    }

    /// Of the last that waits.
    pub fn last(&self) -> Option<Timestamp> {
        self.nth(self.waiting.len().checked_sub(1)?)
    }

    fn nth(&self, turn: u64) -> Option<Timestamp> {
        let planned = count(&self.planned);
        if turn < planned {
            return nth_of(&self.planned, self.length_secs, turn);
        }
        let (turn, width) = (turn - planned, self.then.len() as u64);
        let first = self
            .then
            .get(usize::try_from(turn.checked_rem(width)?).ok()?)?;
        let rounds = i64::try_from(turn / width).ok()?;
        Some(first.plus_secs(rounds.saturating_mul(i64::from(self.length_secs))))
    }
}

fn count(rows: &[Row]) -> u64 {
    rows.iter()
        .fold(0, |all, row| all.saturating_add(row.tasks))
}

/// When that of the tasks of all rows starts before which so many do.
pub(crate) fn nth_of(rows: &[Row], length_secs: u32, turn: u64) -> Option<Timestamp> {
    let millis = i64::from(length_secs.max(1)) * 1000;
    let starts_by = |row: &Row, at: i64| match at.checked_sub(row.from.0) {
        Some(since) if since >= 0 => row.tasks.min((since / millis) as u64 + 1),
        _ => 0,
    };
    let by = |at: i64| {
        rows.iter()
            .fold(0u64, |all, row| all.saturating_add(starts_by(row, at)))
    };
    let turns = i64::try_from(turn).ok()?.saturating_mul(millis);
    let mut early = rows.iter().map(|row| row.from.0).min()?;
    let mut late = rows
        .iter()
        .map(|row| row.from.0)
        .max()?
        .saturating_add(turns);
    if by(late) <= turn {
        return None;
    }
    while early < late {
        let middle = early + (late - early) / 2;
        match by(middle) > turn {
            true => late = middle,
            false => early = middle + 1,
        }
    }
    Some(Timestamp(late))
}

/// How many tasks run side by side at most, those that run already included. Both lists are sorted.
fn most_at_once(starts: &[Timestamp], ends: &[Timestamp], running: usize) -> usize {
    let at_each = starts
        .iter()
        .enumerate()
        .map(|(at, start)| running + at + 1 - ends.partition_point(|end| end <= start));
    at_each.max().unwrap_or(0).max(running)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: i64) -> Timestamp {
        Timestamp(secs * 1000)
    }

    /// One by one.
    fn each(starts: impl IntoIterator<Item = Timestamp>) -> Vec<Row> {
        starts
            .into_iter()
            .map(|from| Row { from, tasks: 1 })
            .collect()
    }

    fn secs(told: &ArrayStarts, positions: impl IntoIterator<Item = u32>) -> Vec<Option<i64>> {
        positions
            .into_iter()
            .map(|position| told.of(position).map(|at| at.0 / 1000))
            .collect()
    }

    #[test]
    fn who_is_not_planned_follows_as_places_become_free() {
        // Two side by side, of 100 s.
        let told = ArrayStarts::new(
            at(0),
            RangeSet::first_n(7),
            each([at(10), at(30), at(110)]),
            &[],
            Some(100),
        );
        assert_eq!(
            secs(&told, 0..7),
            [10, 30, 110, 130, 210, 230, 310].map(Some)
        );
        assert_eq!(told.last(), Some(at(310)));
        assert_eq!(told.of(7), None, "there is no such task");
    }

    #[test]
    fn of_a_capped_array_each_task_waits_for_one_that_runs() {
        let mut waiting = RangeSet::first_n(6);
        waiting.remove(0);
        waiting.remove(1);
        let told = ArrayStarts::new(at(0), waiting, Vec::new(), &[at(40), at(60)], Some(100));
        assert_eq!(
            secs(&told, 1..6),
            [None, Some(40), Some(60), Some(140), Some(160)]
        );
    }

    #[test]
    fn of_rows_each_task_starts_when_the_one_before_it_ends() {
        let rows = |tasks: [u64; 3]| {
            [0, 30, 250]
                .into_iter()
                .zip(tasks)
                .map(|(from, tasks)| Row {
                    from: at(from),
                    tasks,
                })
                .collect()
        };
        let told = ArrayStarts::new(at(0), RangeSet::first_n(8), rows([3, 3, 2]), &[], Some(100));
        assert_eq!(
            secs(&told, 0..8),
            [0, 30, 100, 130, 200, 230, 250, 350].map(Some)
        );
        let told = ArrayStarts::new(
            at(0),
            RangeSet::first_n(11),
            rows([3, 3, 2]),
            &[],
            Some(100),
        );
        assert_eq!(
            secs(&told, 7..11),
            [350, 350, 350, 450].map(Some),
            "as many side by side as there were"
        );
        let told = ArrayStarts::new(
            at(0),
            RangeSet::first_n(1_000_000),
            rows([400_000, 300_000, 300_000]),
            &[],
            Some(100),
        );
        assert_eq!(told.last(), Some(at(39_999_900)));
    }

    #[test]
    fn tasks_of_no_length_take_a_second_each() {
        let told = ArrayStarts::new(
            at(0),
            RangeSet::first_n(6),
            each([at(10), at(10), at(20)]),
            &[],
            Some(0),
        );
        assert_eq!(secs(&told, 0..6), [10, 10, 20, 20, 21, 21].map(Some));
    }

    #[test]
    fn of_a_million_tasks_the_last_is_known_at_once_and_without_a_length_only_what_is_planned() {
        let told = ArrayStarts::new(
            at(0),
            RangeSet::first_n(1_000_000),
            each([at(0); 100]),
            &[],
            Some(60),
        );
        assert_eq!(told.last(), Some(at(9_999 * 60)));
        let told = ArrayStarts::new(at(0), RangeSet::first_n(3), each([at(5)]), &[], None);
        assert_eq!(
            (secs(&told, 0..3), told.last()),
            (vec![Some(5), None, None], None)
        );
        assert_eq!(ArrayStarts::default().last(), None);
    }
}
