//! Points in time: milliseconds since the Unix epoch, handed in from outside.
//!
//! Pure crates have no clock; a daemon stamps what it feeds them. Printing is RFC 3339 in UTC;
//! the civil calendar arithmetic follows the proleptic Gregorian calendar.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Milliseconds since 1970-01-01T00:00:00Z.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Timestamp(pub i64);

impl Timestamp {
    pub const fn from_secs(secs: i64) -> Self {
        Self(secs.saturating_mul(1000))
    }
    pub const fn secs(self) -> i64 {
        self.0.div_euclid(1000)
    }
    pub const fn plus_millis(self, millis: i64) -> Self {
        Self(self.0.saturating_add(millis))
    }
    pub const fn plus_secs(self, secs: i64) -> Self {
        self.plus_millis(secs.saturating_mul(1000))
    }
    /// Milliseconds from `earlier` to `self`; 0 when the clock went backwards.
    pub fn since_millis(self, earlier: Self) -> i64 {
        (self.0.saturating_sub(earlier.0)).max(0)
    }
    /// Whole seconds from `earlier` to `self`; 0 when the clock went backwards.
    pub fn since_secs(self, earlier: Self) -> i64 {
        self.since_millis(earlier) / 1000
    }
}

/// RFC 3339, UTC, whole seconds: `2026-11-20T09:05:27Z`.
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let secs = self.secs();
        let (year, month, day) = civil_from_days(secs.div_euclid(86_400));
        let of_day = secs.rem_euclid(86_400);
        write!(
            f,
            "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z",
            of_day / 3600,
            of_day / 60 % 60,
            of_day % 60
        )
    }
}

/// A timestamp that is RFC 3339 text in JSON, as the public API prints instants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(pub Timestamp);

impl Serialize for Instant {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Instant {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(d)?;
        parse_rfc3339(&text)
            .map(Instant)
            .ok_or_else(|| serde::de::Error::custom(format!("{text:?} is not an RFC 3339 time")))
    }
}

/// Reads `YYYY-MM-DDTHH:MM:SS[.fff]Z`.
pub fn parse_rfc3339(text: &str) -> Option<Timestamp> {
    let b = text.as_bytes();
    let body = text.strip_suffix('Z')?;
    if b.len() < 20 || !text.is_ascii() {
        return None;
    }
    let shape = [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':')];
    if shape.iter().any(|&(at, c)| b[at] != c) {
        return None;
    }
    let num = |from: usize, to: usize| -> Option<i64> {
        let part = &body[from..to];
        part.bytes()
            .all(|c| c.is_ascii_digit())
            .then(|| part.parse().ok())?
    };
    let (year, month, day) = (num(0, 4)?, num(5, 7)?, num(8, 10)?);
    let (hour, minute, second) = (num(11, 13)?, num(14, 16)?, num(17, 19)?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || hour > 23 || minute > 59 {
        return None;
    }
    let millis = match body[19..].strip_prefix('.') {
        None if body.len() == 19 => 0,
        None => return None,
        Some(frac) if !frac.is_empty() && frac.bytes().all(|c| c.is_ascii_digit()) => {
            format!("{frac:0<3}")[..3].parse::<i64>().ok()?
        }
        Some(_) => return None,
    };
    let days = days_from_civil(year, month as u32, day as u32);
    Some(Timestamp(
        ((days * 86_400) + hour * 3600 + minute * 60 + second.min(60)) * 1000 + millis,
    ))
}

/// Days since 1970-01-01 of a civil date (Howard Hinnant's derivation of the Gregorian calendar).
pub fn days_from_civil(year: i64, month: u32, day: u32) -> i64 {
    let shifted = if month <= 2 { year - 1 } else { year };
    let era = shifted.div_euclid(400);
    let of_era = shifted.rem_euclid(400);
    let of_year = (153 * ((i64::from(month) + 9) % 12) + 2) / 5 + i64::from(day) - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// Civil date of a day number since 1970-01-01.
pub fn civil_from_days(days: i64) -> (i64, u32, u32) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_part = (5 * day_of_year + 2) / 153;
    let day = (day_of_year - (153 * month_part + 2) / 5 + 1) as u32;
    let month = if month_part < 10 {
        month_part + 3
    } else {
        month_part - 9
    } as u32;
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn prints_rfc3339() {
        assert_eq!(Timestamp::from_secs(0).to_string(), "1970-01-01T00:00:00Z");
        assert_eq!(
            Timestamp::from_secs(1_795_165_527).to_string(),
            "2026-11-20T09:05:27Z"
        );
        assert_eq!(
            Timestamp::from_secs(951_782_400).to_string(),
            "2000-02-29T00:00:00Z"
        );
    }

    proptest! {
        #[test]
        fn rfc3339_reads_back(secs in 0i64..250_000_000_000) {
            let t = Timestamp::from_secs(secs);
            prop_assert_eq!(parse_rfc3339(&t.to_string()), Some(t));
        }
        #[test]
        fn rfc3339_reader_is_total(text in ".*") {
            let _ = parse_rfc3339(&text);
        }
    }
}
