//! A time zone as data: by how much local time differs from UTC, and since when. For recurring windows and calendar periods.
//!
//! Pure crates know no table of zones: a daemon looks one up by its IANA name and hands it in with the configuration, so that
//! a replay has what was decided by. Never prints times.

use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Local time of a place. The default is UTC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimeZone {
    /// As IANA has it: `Europe/Berlin`.
    pub name: String,
    /// Seconds that local time is ahead before the first change.
    first_ahead_secs: i64,
    /// Seconds since 1970 at which it changes, in order, and by how much local time is ahead from then on.
    changes: Vec<(i64, i64)>,
}

impl Default for TimeZone {
    fn default() -> Self {
        Self {
            name: "UTC".into(),
            first_ahead_secs: 0,
            changes: Vec::new(),
        }
    }
}

impl TimeZone {
    /// `ahead` says by how many seconds local time is ahead of UTC at a time (seconds since 1970); it is asked for the time
    /// in `during`. Two changes within `step_secs` that undo each other are not seen.
    pub fn new(name: &str, during: Range<i64>, step_secs: i64, ahead: impl Fn(i64) -> i64) -> Self {
        let Range {
            start: from,
            end: to,
        } = during;
        let first_ahead_secs = ahead(from);
        let mut changes = Vec::new();
        let (mut at, mut is) = (from, first_ahead_secs);
        while at < to {
            let next = (at + step_secs.max(1)).min(to);
            let then = ahead(next);
            if then != is {
                let (mut before, mut after) = (at, next);
                while before + 1 < after {
                    let middle = before + (after - before) / 2;
                    if ahead(middle) == is {
                        before = middle
                    } else {
                        after = middle
                    }
                }
                // A step may hold more than one change: what is found is the first.
                is = ahead(after);
                changes.push((after, is));
                at = after;
            } else {
                at = next;
            }
        }
        Self {
            name: name.to_owned(),
            first_ahead_secs,
            changes,
        }
    }

    fn ahead_secs(&self, at: i64) -> i64 {
        let before = self.changes.partition_point(|(from, _)| *from <= at);
        before
            .checked_sub(1)
            .map_or(self.first_ahead_secs, |last| self.changes[last].1)
    }

    /// Milliseconds since 1970-01-01 that a clock of the place shows, read as if it were UTC.
    pub fn local_millis(&self, at: Timestamp) -> i64 {
        at.0.saturating_add(self.ahead_secs(at.secs()) * 1000)
    }

    /// When a clock of the place shows a time. One that does not exist is the next that does; one that comes twice is the
    /// first.
    pub fn at_local(&self, local_millis: i64) -> Timestamp {
        let local = local_millis.div_euclid(1000);
        let around = self
            .changes
            .iter()
            .filter(|(from, _)| (from - local).abs() < 3 * 86_400)
            .map(|(from, _)| *from);
        let around: Vec<i64> = around.collect();
        // What holds on each side of the changes nearby, in order.
        let begin = around.first().map_or(local, |from| from - 1);
        let mut candidates = std::iter::once(begin)
            .chain(around.iter().copied())
            .map(|inside| self.ahead_secs(inside));
        let fits = |ahead: &i64| self.ahead_secs(local - ahead) == *ahead;
        match candidates.clone().find(fits) {
            Some(ahead) => Timestamp(local_millis - ahead * 1000),
            None => {
                // Skipped: the clock goes on where it was set forward.
                let last_before = candidates.next().unwrap_or(self.first_ahead_secs);
                let jump = around
                    .iter()
                    .copied()
                    .find(|from| from + self.ahead_secs(*from) > local);
                Timestamp(jump.map_or(local_millis - last_before * 1000, |from| from * 1000))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::parse_rfc3339;
    use proptest::prelude::*;

    /// Central Europe in 2026 and 2027: an hour ahead, two between the last Sundays of March and October, at 01:00 UTC.
    fn berlin() -> TimeZone {
        let summer = [
            ("2026-03-29T01:00:00Z", "2026-10-25T01:00:00Z"),
            ("2027-03-28T01:00:00Z", "2027-10-31T01:00:00Z"),
        ];
        let secs = |text: &str| parse_rfc3339(text).unwrap().secs();
        let ahead = move |at: i64| {
            if summer
                .iter()
                .any(|(from, to)| (secs(from)..secs(to)).contains(&at))
            {
                7200
            } else {
                3600
            }
        };
        TimeZone::new(
            "Europe/Berlin",
            secs("2026-01-01T00:00:00Z")..secs("2028-01-01T00:00:00Z"),
            86_400,
            ahead,
        )
    }

    fn at(text: &str) -> Timestamp {
        parse_rfc3339(text).unwrap()
    }

    #[test]
    fn local_times_are_found_on_both_sides_of_a_change() {
        let zone = berlin();
        let utc = |local: &str| zone.at_local(at(local).0).to_string();
        assert_eq!(utc("2026-02-01T02:30:00Z"), "2026-02-01T01:30:00Z");
        assert_eq!(utc("2026-07-01T02:30:00Z"), "2026-07-01T00:30:00Z");
        assert_eq!(utc("2026-03-29T01:59:59Z"), "2026-03-29T00:59:59Z");
        assert_eq!(
            utc("2026-03-29T02:30:00Z"),
            "2026-03-29T01:00:00Z",
            "there is no 02:30: at 03:00"
        );
        assert_eq!(utc("2026-03-29T03:00:00Z"), "2026-03-29T01:00:00Z");
        assert_eq!(
            utc("2026-10-25T02:30:00Z"),
            "2026-10-25T00:30:00Z",
            "twice: the first"
        );
        assert_eq!(utc("2026-10-25T03:00:00Z"), "2026-10-25T02:00:00Z");
        assert_eq!(zone.changes.len(), 4);
        assert_eq!(TimeZone::default().at_local(17), Timestamp(17));
    }

    proptest! {
        #[test]
        fn a_time_that_exists_is_found_again_and_others_come_next(secs in 1_767_225_600i64..1_830_297_600) {
            let zone = berlin();
            let time = Timestamp::from_secs(secs);
            let found = zone.at_local(zone.local_millis(time));
            // The second of two equal local times is read as the first.
            prop_assert!(found == time || found == time.plus_secs(-3600), "{time} was read as {found}");
            prop_assert_eq!(zone.local_millis(found), zone.local_millis(time));
            let before = zone.at_local(zone.local_millis(time) - 1000);
            prop_assert!(before < time, "later on the clock is later in time");
        }
    }
}
