//! The calendar: local times without a zone, and times of day. Never reads a clock.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::duration::{DAY_SECS, split_secs};

/// A local calendar time without a zone. Fields are in their usual ranges (month and day from 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CivilTime {
    pub year: i32,
    pub month: u8,
    pub day: u8,
    pub hour: u8,
    pub minute: u8,
    pub second: u8,
}

impl CivilTime {
    /// Midnight of a day, or None if the calendar has no such day (years 1 to 9999).
    pub fn midnight(year: i32, month: u8, day: u8) -> Option<Self> {
        let exists = (1..=9999).contains(&year)
            && (1..=12).contains(&month)
            && (1..=days_in(year, month)).contains(&day);
        exists.then_some(Self {
            year,
            month,
            day,
            hour: 0,
            minute: 0,
            second: 0,
        })
    }

    /// The same day at another time of day.
    pub fn at(self, clock: ClockTime) -> Self {
        Self {
            hour: clock.hour,
            minute: clock.minute,
            second: clock.second,
            ..self
        }
    }

    /// This many days and seconds later (earlier when negative), as the calendar counts: no zone, no leap seconds.
    /// Stops at the first second of year 1 and the last of year 9999.
    pub fn plus_secs(self, secs: i64) -> Self {
        let day_secs = DAY_SECS as i64;
        let clock =
            i64::from(self.hour) * 3600 + i64::from(self.minute) * 60 + i64::from(self.second);
        let total = (day_number(self.year, self.month, self.day) * day_secs)
            .saturating_add(clock)
            .saturating_add(secs);
        let total = total.clamp(
            day_number(1, 1, 1) * day_secs,
            day_number(10_000, 1, 1) * day_secs - 1,
        );
        let (year, month, day) = date_of(total.div_euclid(day_secs));
        let (_, hour, minute, second) = split_secs(total.rem_euclid(day_secs) as u64);
        Self {
            year,
            month,
            day,
            hour: hour as u8,
            minute: minute as u8,
            second: second as u8,
        }
    }

    /// 0 is Monday: 1 January of year 1 was one.
    pub(crate) fn weekday(self) -> i64 {
        day_number(self.year, self.month, self.day).rem_euclid(7)
    }

    pub(crate) fn clock(self) -> ClockTime {
        ClockTime {
            hour: self.hour,
            minute: self.minute,
            second: self.second,
        }
    }
}

impl fmt::Display for CivilTime {
    /// `2027-01-09T06:00:00`, as Slurm prints instants.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let clock = self.clock();
        write!(
            f,
            "{:04}-{:02}-{:02}T{clock}",
            self.year, self.month, self.day
        )
    }
}

/// A time of day.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct ClockTime {
    pub hour: u8,
    pub minute: u8,
    pub second: u8,
}

impl fmt::Display for ClockTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02}:{:02}:{:02}", self.hour, self.minute, self.second)
    }
}

fn is_leap(year: i32) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

fn days_in(year: i32, month: u8) -> u8 {
    match month {
        2 => 28 + u8::from(is_leap(year)),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days since the first day of year 1 in the Gregorian calendar, for year, month and day from 1.
fn day_number(year: i32, month: u8, day: u8) -> i64 {
    let before = i64::from(year) - 1;
    let of_years =
        before * 365 + before.div_euclid(4) - before.div_euclid(100) + before.div_euclid(400);
    let of_months: i64 = (1..month).map(|m| i64::from(days_in(year, m))).sum();
    of_years + of_months + i64::from(day) - 1
}

fn date_of(day_number_: i64) -> (i32, u8, u8) {
    // 146,097 days in 400 years: a first guess that is at most one year off.
    let mut year = (day_number_ * 400).div_euclid(146_097) as i32 + 1;
    while day_number(year, 1, 1) > day_number_ {
        year -= 1;
    }
    while day_number(year + 1, 1, 1) <= day_number_ {
        year += 1;
    }
    let mut left = day_number_ - day_number(year, 1, 1);
    let mut month = 1;
    while left >= i64::from(days_in(year, month)) {
        left -= i64::from(days_in(year, month));
        month += 1;
    }
    (year, month, left as u8 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_calendar_knows_its_leap_years() {
        let end_of_february = CivilTime {
            year: 2028,
            month: 2,
            day: 28,
            hour: 23,
            minute: 59,
            second: 59,
        };
        assert_eq!(
            end_of_february.plus_secs(1).to_string(),
            "2028-02-29T00:00:00"
        );
        assert_eq!(day_number(1970, 1, 1), 719_162);
        assert_eq!(day_number(2000, 3, 1) - day_number(2000, 2, 28), 2);
        assert_eq!(day_number(1900, 3, 1) - day_number(1900, 2, 28), 1);
        assert_eq!(
            end_of_february.plus_secs(i64::MAX).to_string(),
            "9999-12-31T23:59:59"
        );
        assert_eq!(
            end_of_february.plus_secs(i64::MIN).to_string(),
            "0001-01-01T00:00:00"
        );
    }

    proptest! {
        #[test]
        fn days_count_forth_and_back(day in 0i64..3_652_059) {
            let (year, month, of_month) = date_of(day);
            prop_assert!(CivilTime::midnight(year, month, of_month).is_some());
            prop_assert_eq!(day_number(year, month, of_month), day);
        }
    }
}
