//! Time limits as options take them (`1-12:00`, `90`, `UNLIMITED`), and how listings print durations. Begin times are in
//! `begin_time`. Source: sbatch(1), squeue(1), sacct(1).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Longest time limit that is not UNLIMITED: ten years, in seconds.
pub const MAX_LIMIT_SECS: u64 = 3_650 * DAY_SECS;
/// Longest text of a time limit or begin time.
pub(crate) const MAX_TEXT_BYTES: usize = 64;
pub(crate) const DAY_SECS: u64 = 86_400;
const TIME_FORMS: &str = "minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes, \
                          days-hours:minutes:seconds or UNLIMITED";

/// How long a job may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TimeLimit {
    /// At most this many seconds, 1 to [`MAX_LIMIT_SECS`].
    Secs(u64),
    /// No limit asked for; the partition's maximum still holds.
    Unlimited,
}

impl TimeLimit {
    /// Reads all of Slurm's forms of `--time`. A bare number is minutes; `0`, `UNLIMITED` and `INFINITE` ask for no limit.
    pub fn parse(text: &str) -> Result<Self, DurationError> {
        let text = text.trim();
        if ["unlimited", "infinite", "-1"]
            .iter()
            .any(|word| text.eq_ignore_ascii_case(word))
        {
            return Ok(Self::Unlimited);
        }
        match limit_secs(text) {
            None => Err(DurationError::Form {
                text: shorten(text),
            }),
            Some(0) => Ok(Self::Unlimited),
            Some(secs) if secs > MAX_LIMIT_SECS => Err(DurationError::TooLong {
                text: shorten(text),
            }),
            Some(secs) => Ok(Self::Secs(secs)),
        }
    }

    /// Seconds, or None for no limit.
    pub fn secs(self) -> Option<u64> {
        match self {
            Self::Secs(secs) => Some(secs),
            Self::Unlimited => None,
        }
    }
}

impl FromStr for TimeLimit {
    type Err = DurationError;
    fn from_str(text: &str) -> Result<Self, DurationError> {
        Self::parse(text)
    }
}

impl fmt::Display for TimeLimit {
    /// As squeue prints a limit: `2-00:00:00`, `10:00`, `UNLIMITED`. The text can be parsed again.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Secs(secs) => f.write_str(&squeue_time(*secs)),
            Self::Unlimited => f.write_str("UNLIMITED"),
        }
    }
}

/// What is wrong with a time limit or a begin time.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DurationError {
    #[error(
        "time limit {text:?} is in none of the forms {TIME_FORMS}. Try 90 (minutes) or 1:30:00"
    )]
    Form { text: String },
    #[error(
        "time limit {text:?} is longer than 3650 days. Use UNLIMITED, or a limit within the partition's"
    )]
    TooLong { text: String },
    #[error(
        "begin time {text:?} is no time that can be read. Try now+1hour, 16:00, tomorrow, 2027-01-09 or 2027-01-09T06:00"
    )]
    Begin { text: String },
    #[error(
        "begin time {text:?}: there is no such day as {year}-{month:02}-{day:02}. Write YYYY-MM-DD"
    )]
    NoSuchDay {
        text: String,
        year: i64,
        month: u8,
        day: u8,
    },
    #[error(
        "begin time {text:?}: there is no such time of day. Hours go to 23, minutes and seconds to 59"
    )]
    NoSuchTime { text: String },
    #[error("begin time {text:?} is further than 3650 days from now. Try a nearer one")]
    TooFar { text: String },
}

fn limit_secs(text: &str) -> Option<u64> {
    if text.is_empty() || text.len() > MAX_TEXT_BYTES {
        return None;
    }
    let sum = |parts: &[(u64, u64)]| {
        parts.iter().try_fold(0u64, |total, &(count, unit)| {
            total.checked_add(count.checked_mul(unit)?)
        })
    };
    let fields = |text: &str| text.split(':').map(number).collect::<Option<Vec<u64>>>();
    if let Some((days, clock)) = text.split_once('-') {
        let days = (number(days)?, DAY_SECS);
        return match *fields(clock)?.as_slice() {
            [hours] => sum(&[days, (hours, 3600)]),
            [hours, minutes] => sum(&[days, (hours, 3600), (minutes, 60)]),
            [hours, minutes, seconds] => sum(&[days, (hours, 3600), (minutes, 60), (seconds, 1)]),
            _ => None,
        };
    }
    match *fields(text)?.as_slice() {
        [minutes] => sum(&[(minutes, 60)]),
        [minutes, seconds] => sum(&[(minutes, 60), (seconds, 1)]),
        [hours, minutes, seconds] => sum(&[(hours, 3600), (minutes, 60), (seconds, 1)]),
        _ => None,
    }
}

/// Reads a plain decimal number: no sign, no spaces.
pub(crate) fn number<T: FromStr>(digits: &str) -> Option<T> {
    let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    if plain { digits.parse().ok() } else { None }
}

/// Seconds as squeue prints them: `0:14`, `10:00`, `1:00:00`, `2-00:00:00`.
pub fn squeue_time(secs: u64) -> String {
    let (days, hours, minutes, seconds) = split_secs(secs);
    match (days, hours) {
        (0, 0) => format!("{minutes}:{seconds:02}"),
        (0, _) => format!("{hours}:{minutes:02}:{seconds:02}"),
        _ => format!("{days}-{hours:02}:{minutes:02}:{seconds:02}"),
    }
}

/// Seconds as sacct and `scontrol show job` print them: `00:10:00`, `1-00:00:00`.
pub fn sacct_time(secs: u64) -> String {
    let (days, hours, minutes, seconds) = split_secs(secs);
    match days {
        0 => format!("{hours:02}:{minutes:02}:{seconds:02}"),
        _ => format!("{days}-{hours:02}:{minutes:02}:{seconds:02}"),
    }
}

pub(crate) fn split_secs(secs: u64) -> (u64, u64, u64, u64) {
    (secs / DAY_SECS, secs / 3600 % 24, secs / 60 % 60, secs % 60)
}

/// At most 40 characters of a text, for messages.
pub(crate) fn shorten(text: &str) -> String {
    text.chars().take(40).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use proptest::prelude::*;

    fn limit(text: &str) -> String {
        match TimeLimit::parse(text) {
            Ok(limit) => format!("{limit}"),
            Err(error) => format!("error: {error}"),
        }
    }

    #[test]
    fn reads_all_of_slurms_time_forms() {
        for (text, secs) in [
            ("30", 1800),
            ("0:30", 30),
            ("10:00", 600),
            ("1:00:00", 3600),
            ("2-0", 172_800),
            ("1-12", 129_600),
            ("1-12:30", 131_400),
            ("1-12:30:15", 131_415),
            ("99-0", 8_553_600),
            ("0:90", 90),
        ] {
            assert_eq!(TimeLimit::parse(text), Ok(TimeLimit::Secs(secs)), "{text}");
        }
        for text in ["UNLIMITED", "infinite", "0", "-1", "0-0:0:0"] {
            assert_eq!(TimeLimit::parse(text), Ok(TimeLimit::Unlimited), "{text}");
        }
    }

    #[test]
    fn prints_as_squeue_and_sacct() {
        let printed: Vec<_> = [14, 600, 3586, 3600, 172_800]
            .iter()
            .map(|&s| (squeue_time(s), sacct_time(s)))
            .collect();
        expect![[r#"[("0:14", "00:00:14"), ("10:00", "00:10:00"), ("59:46", "00:59:46"), ("1:00:00", "01:00:00"), ("2-00:00:00", "2-00:00:00")]"#]]
            .assert_eq(&format!("{printed:?}"));
    }

    #[test]
    fn a_bad_limit_is_refused_with_the_forms() {
        expect![[r#"error: time limit "junk" is in none of the forms minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes, days-hours:minutes:seconds or UNLIMITED. Try 90 (minutes) or 1:30:00"#]].assert_eq(&limit("junk"));
        expect![[r#"error: time limit "99999-0" is longer than 3650 days. Use UNLIMITED, or a limit within the partition's"#]].assert_eq(&limit("99999-0"));
        for text in [
            "",
            "1h",
            "1:2:3:4",
            "1-",
            "-5",
            "+5",
            "1-2-3",
            "99999999999999999999",
            "1 2",
        ] {
            assert!(TimeLimit::parse(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,30}|[0-9:/tanowpm. +-]{0,24}") {
            let _ = TimeLimit::parse(&text);
        }

        #[test]
        fn printed_limits_read_back(secs in 1..=MAX_LIMIT_SECS) {
            prop_assert_eq!(TimeLimit::parse(&squeue_time(secs)), Ok(TimeLimit::Secs(secs)));
            prop_assert_eq!(TimeLimit::parse(&sacct_time(secs)), Ok(TimeLimit::Secs(secs)));
        }
    }
}
