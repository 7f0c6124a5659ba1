//! A calendar month, `2026-11`: what bills are for.

use crate::time::{civil_from_days, days_from_civil};
use crate::{TimeZone, Timestamp};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

const DAY_MILLIS: i64 = 86_400_000;

/// Months since 1970-01.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Month(pub i32);

impl Month {
    /// The month that a clock of the place shows.
    pub fn of(zone: &TimeZone, at: Timestamp) -> Self {
        let (year, month, _) = civil_from_days(zone.local_millis(at).div_euclid(DAY_MILLIS));
        Self(((year - 1970) * 12) as i32 + month as i32 - 1)
    }

    /// Reads `2026-11`.
    pub fn parse(text: &str) -> Option<Self> {
        let (year, month) = text.split_once('-')?;
        let digits = |text: &str, count: usize| {
            (text.len() == count && text.bytes().all(|c| c.is_ascii_digit()))
                .then(|| text.parse::<i32>().ok())?
        };
        let (year, month) = (digits(year, 4)?, digits(month, 2)?);
        (year >= 1970 && (1..=12).contains(&month)).then_some(Self((year - 1970) * 12 + month - 1))
    }

    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// Its first instant.
    pub fn start(self, zone: &TimeZone) -> Timestamp {
        let (year, month) = (
            1970 + i64::from(self.0.div_euclid(12)),
            self.0.rem_euclid(12) + 1,
        );
        zone.at_local(days_from_civil(year, month as u32, 1) * DAY_MILLIS)
    }

    /// Its first instant and the next one's.
    pub fn bounds(self, zone: &TimeZone) -> (Timestamp, Timestamp) {
        (self.start(zone), self.next().start(zone))
    }
}

impl fmt::Display for Month {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:04}-{:02}",
            1970 + self.0.div_euclid(12),
            self.0.rem_euclid(12) + 1
        )
    }
}

impl Serialize for Month {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Month {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| serde::de::Error::custom("no month as 2026-11"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_month_is_read_printed_and_bounded() {
        let month = Month::parse("2026-12").unwrap();
        assert_eq!(
            (month.to_string(), month.next().to_string()),
            ("2026-12".into(), "2027-01".into())
        );
        let (from, to) = month.bounds(&TimeZone::default());
        assert_eq!(
            (from.to_string(), to.to_string()),
            ("2026-12-01T00:00:00Z".into(), "2027-01-01T00:00:00Z".into())
        );
        let zone = TimeZone::default();
        assert_eq!(
            (Month::of(&zone, from), Month::of(&zone, to)),
            (month, month.next())
        );
        for bad in [
            "2026-13",
            "2026-1",
            "2026",
            "1969-12",
            "2026-00",
            "+026-01",
            "2026-1\u{661}",
        ] {
            assert_eq!(Month::parse(bad), None, "{bad}");
        }
    }
}
