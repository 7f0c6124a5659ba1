//! Begin times as options take them: `now+1hour`, `16:00`, `2027-01-09T06:00`. Never reads a clock: a begin time is resolved
//! against a local calendar time that the caller gives. Source: sbatch(1), and the time options of squeue(1) and sacct(1).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::civil_time::{CivilTime, ClockTime};
use crate::duration::{DAY_SECS, DurationError, MAX_LIMIT_SECS, MAX_TEXT_BYTES, number, shorten};

/// `--begin`, as it was written: what it means depends on when it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BeginTime {
    /// `now`, `now+1hour`, `now-2days`: so many seconds from now. Add these to the instant itself:
    /// calendar arithmetic would err by an hour when the clocks change.
    Relative { offset_secs: i64 },
    /// `16:00`, `midnight`, `noon`, `teatime`: the next time the clock shows it.
    TimeOfDay { clock: ClockTime },
    /// `yesterday`, `today`, `tomorrow`, each at a time of day (00:00 if none was given).
    DayFromNow { days: i8, clock: ClockTime },
    /// `monday`: the next one, or the last where the past is meant. 0 is Monday.
    Weekday { weekday: u8, clock: ClockTime },
    /// `MMDD`, `MM/DD`: this year's, or the next year's when it has passed.
    MonthDay {
        month: u8,
        day: u8,
        clock: ClockTime,
    },
    /// A date with its year, at 00:00 if no time was given.
    Date {
        year: i32,
        month: u8,
        day: u8,
        clock: ClockTime,
    },
}

impl BeginTime {
    /// Reads the forms of `sbatch --begin` and of the time options of squeue and sacct.
    pub fn parse(text: &str) -> Result<Self, DurationError> {
        let text = text.trim();
        let begin_error = || DurationError::Begin {
            text: shorten(text),
        };
        if text.is_empty() || text.len() > MAX_TEXT_BYTES || !text.is_ascii() {
            return Err(begin_error());
        }
        let lower = text.to_ascii_lowercase();
        if let Some(rest) = lower.strip_prefix("now") {
            let offset_secs = offset_secs(rest.trim()).ok_or_else(begin_error)?;
            if offset_secs.unsigned_abs() > MAX_LIMIT_SECS {
                return Err(DurationError::TooFar {
                    text: shorten(text),
                });
            }
            return Ok(Self::Relative { offset_secs });
        }
        let (mut day, mut clock) = (None, None);
        for word in begin_words(&lower) {
            if let Some(read) = parse_clock(&word) {
                let read = read.ok_or_else(|| DurationError::NoSuchTime {
                    text: shorten(text),
                })?;
                if clock.replace(read).is_some() {
                    return Err(begin_error());
                }
            } else if let Some(read) = DayWord::parse(&word) {
                if day.replace(read).is_some() {
                    return Err(begin_error());
                }
            } else {
                return Err(begin_error());
            }
        }
        match (day, clock) {
            (None, None) => Err(begin_error()),
            (None, Some(clock)) => Ok(Self::TimeOfDay { clock }),
            (Some(day), clock) => day.at(clock.unwrap_or_default(), text),
        }
    }

    /// The offset in seconds for the forms that begin with `now`: to be added to the instant.
    pub fn offset_secs(self) -> Option<i64> {
        match self {
            Self::Relative { offset_secs } => Some(offset_secs),
            _ => None,
        }
    }

    /// The calendar time meant when the local calendar says `now`.
    pub fn resolve(self, now: CivilTime) -> CivilTime {
        let midnight = now.at(ClockTime::default());
        let days_later = |days: i64| midnight.plus_secs(days * DAY_SECS as i64);
        match self {
            Self::Relative { offset_secs } => now.plus_secs(offset_secs),
            Self::TimeOfDay { clock } => days_later(i64::from(clock <= now.clock())).at(clock),
            Self::DayFromNow { days, clock } => days_later(days.into()).at(clock),
            Self::Weekday { weekday, clock } => {
                let ahead = (i64::from(weekday) - now.weekday()).rem_euclid(7);
                let over = ahead == 0 && clock <= now.clock();
                days_later(if over { 7 } else { ahead }).at(clock)
            }
            Self::MonthDay { month, day, clock } => next_month_day(now, month, day).at(clock),
            Self::Date {
                year,
                month,
                day,
                clock,
            } => CivilTime {
                year,
                month,
                day,
                hour: 0,
                minute: 0,
                second: 0,
            }
            .at(clock),
        }
    }

    /// The calendar time meant when what has been is looked at: a time of day is today's, a weekday the last one, and a
    /// date without a year this year's, or last year's where that is nearer.
    pub fn resolve_past(self, now: CivilTime) -> CivilTime {
        const HALF_A_YEAR_SECS: i64 = 183 * DAY_SECS as i64;
        let midnight = now.at(ClockTime::default());
        match self {
            Self::TimeOfDay { clock } => now.at(clock),
            Self::Weekday { weekday, clock } => {
                let ago = (now.weekday() - i64::from(weekday)).rem_euclid(7);
                midnight.plus_secs(-ago * DAY_SECS as i64).at(clock)
            }
            Self::MonthDay { month, day, clock } => {
                let latest = midnight.plus_secs(HALF_A_YEAR_SECS);
                let years = (now.year.saturating_sub(8)..=now.year).rev();
                let mut days = years.filter_map(|year| CivilTime::midnight(year, month, day));
                days.find(|found| *found <= latest)
                    .unwrap_or(midnight)
                    .at(clock)
            }
            other => other.resolve(now),
        }
    }
}

impl FromStr for BeginTime {
    type Err = DurationError;
    fn from_str(text: &str) -> Result<Self, DurationError> {
        Self::parse(text)
    }
}

impl fmt::Display for BeginTime {
    /// A form that can be parsed again: `now+3600`, `16:00:00`, `tomorrow 00:00:00`, `2027-01-09T06:00:00`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Relative { offset_secs: 0 } => f.write_str("now"),
            Self::Relative { offset_secs } => write!(f, "now{offset_secs:+}"),
            Self::TimeOfDay { clock } => write!(f, "{clock}"),
            Self::DayFromNow { days: 0, clock } => write!(f, "today {clock}"),
            Self::DayFromNow { days, clock } if days < 0 => write!(f, "yesterday {clock}"),
            Self::DayFromNow { clock, .. } => write!(f, "tomorrow {clock}"),
            Self::Weekday { weekday, clock } => {
                write!(f, "{} {clock}", WEEKDAYS[usize::from(weekday % 7)])
            }
            Self::MonthDay { month, day, clock } => write!(f, "{month:02}/{day:02}-{clock}"),
            Self::Date {
                year,
                month,
                day,
                clock,
            } => write!(f, "{year:04}-{month:02}-{day:02}T{clock}"),
        }
    }
}

const WEEKDAYS: [&str; 7] = [
    "monday",
    "tuesday",
    "wednesday",
    "thursday",
    "friday",
    "saturday",
    "sunday",
];

/// `29 February` waits for a leap year; every other day is within a year.
fn next_month_day(now: CivilTime, month: u8, day: u8) -> CivilTime {
    let today = now.at(ClockTime::default());
    (now.year..=now.year.saturating_add(8))
        .filter_map(|year| CivilTime::midnight(year, month, day))
        .find(|candidate| *candidate >= today)
        .unwrap_or(today)
}

/// `+1hour`, `-30`, ` + 2 days` after `now`; seconds where no unit is given.
fn offset_secs(rest: &str) -> Option<i64> {
    if rest.is_empty() {
        return Some(0);
    }
    let (sign, rest) = match rest.split_at_checked(1)? {
        ("+", rest) => (1, rest.trim_start()),
        ("-", rest) => (-1, rest.trim_start()),
        _ => return None,
    };
    let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (count, unit) = rest.split_at(digits);
    let unit_secs = match unit.trim() {
        "" | "s" | "sec" | "secs" | "second" | "seconds" => 1,
        "m" | "min" | "mins" | "minute" | "minutes" => 60,
        "h" | "hr" | "hrs" | "hour" | "hours" => 3600,
        "d" | "day" | "days" => DAY_SECS as i64,
        "w" | "week" | "weeks" => 7 * DAY_SECS as i64,
        _ => return None,
    };
    number::<i64>(count)?
        .checked_mul(unit_secs)?
        .checked_mul(sign)
}

/// Cuts `2027-01-09t06:00`, `01/09/27-06:00` and `4:00 pm` into words for a day and a time of day.
fn begin_words(lower: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for word in lower.split_ascii_whitespace().flat_map(joined_words) {
        match word {
            "am" | "pm" if words.last().is_some_and(|last| last.contains(':')) => {
                words.last_mut().expect("just seen").push_str(word);
            }
            _ => match word
                .find(':')
                .and_then(|colon| word[..colon].rfind(['t', '-']))
            {
                Some(cut) => words.extend([word[..cut].to_owned(), word[cut + 1..].to_owned()]),
                None => match hour_of_date(word) {
                    Some((date, hour)) => words.extend([date.to_owned(), format!("{hour}:00")]),
                    None => words.push(word.to_owned()),
                },
            },
        }
    }
    words
}

/// `noon-tomorrow`, `2027-01-09-teatime`: words may be joined to each other and to dates.
fn joined_words(text: &str) -> Vec<&str> {
    let is_word = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphabetic());
    if let Some((first, rest)) = text.split_once('-').filter(|(first, _)| is_word(first)) {
        return [vec![first], joined_words(rest)].concat();
    }
    match text.rsplit_once('-').filter(|(_, last)| is_word(last)) {
        Some((rest, last)) => [joined_words(rest), vec![last]].concat(),
        None => vec![text],
    }
}

/// `2027-01-09t06`, `01/09/27-6`: a date, and an hour without minutes.
fn hour_of_date(word: &str) -> Option<(&str, &str)> {
    let (date, hour) = word.rsplit_once(if word.contains(['/', '.']) { '-' } else { 't' })?;
    let is_hour = matches!(hour.len(), 1 | 2) && hour.bytes().all(|b| b.is_ascii_digit());
    (is_hour && date.ends_with(|c: char| c.is_ascii_digit())).then_some((date, hour))
}

/// Reads a time of day. `None`: the word is none; `Some(None)`: no clock shows it.
fn parse_clock(word: &str) -> Option<Option<ClockTime>> {
    let at = |hour: u8| {
        Some(Some(ClockTime {
            hour,
            minute: 0,
            second: 0,
        }))
    };
    match word {
        "midnight" => return at(0),
        "elevenses" => return at(11),
        "noon" => return at(12),
        "fika" => return at(15),
        "teatime" => return at(16),
        _ => {}
    }
    let (clock, half) = match (word.strip_suffix("am"), word.strip_suffix("pm")) {
        (Some(clock), _) => (clock, Some(0)),
        (_, Some(clock)) => (clock, Some(12)),
        _ => (word, None),
    };
    let mut fields = Vec::new();
    for field in clock.split(':') {
        let short = field.len() <= 2;
        fields.push(number::<u8>(field).filter(|_| short)?);
    }
    let (hour, minute, second) = match *fields.as_slice() {
        [hour, minute] => (hour, minute, 0),
        [hour, minute, second] => (hour, minute, second),
        _ => return None,
    };
    let hour = match half {
        Some(_) if !(1..=12).contains(&hour) => return Some(None),
        Some(half) => hour % 12 + half,
        None => hour,
    };
    Some(
        (hour < 24 && minute < 60 && second < 60).then_some(ClockTime {
            hour,
            minute,
            second,
        }),
    )
}

/// The day of a begin time.
#[derive(Clone, Copy)]
enum DayWord {
    FromNow(i8),
    Weekday(u8),
    MonthDay(u8, u8),
    Date(i32, u8, u8),
}

impl DayWord {
    fn parse(word: &str) -> Option<Self> {
        match word {
            "today" => return Some(Self::FromNow(0)),
            "tomorrow" => return Some(Self::FromNow(1)),
            "yesterday" => return Some(Self::FromNow(-1)),
            _ => {}
        }
        if let Some(at) = WEEKDAYS
            .iter()
            .position(|name| *name == word || name[..3] == *word)
        {
            return Some(Self::Weekday(at as u8));
        }
        let two = |digits: &str| {
            if digits.len() <= 2 {
                number::<u8>(digits)
            } else {
                None
            }
        };
        // A year of two digits is of this century, as Slurm reads it.
        let short_year = |digits: &str| match digits.len() {
            2 => number::<i32>(digits).map(|year| 2000 + year),
            4 => number::<i32>(digits),
            _ => None,
        };
        if number::<u64>(word).is_some() {
            return match word.len() {
                4 => Some(Self::MonthDay(two(&word[..2])?, two(&word[2..])?)),
                6 => Some(Self::Date(
                    short_year(&word[4..])?,
                    two(&word[..2])?,
                    two(&word[2..4])?,
                )),
                _ => None,
            };
        }
        let separator = word.chars().find(|c| matches!(c, '-' | '/' | '.'))?;
        let fields: Vec<&str> = word.split(separator).collect();
        match (separator, fields.as_slice()) {
            ('-', [year, month, day]) if year.len() == 4 => {
                Some(Self::Date(number(year)?, two(month)?, two(day)?))
            }
            ('/' | '.', [month, day]) => Some(Self::MonthDay(two(month)?, two(day)?)),
            ('/' | '.', [month, day, year]) => {
                Some(Self::Date(short_year(year)?, two(month)?, two(day)?))
            }
            _ => None,
        }
    }

    fn at(self, clock: ClockTime, text: &str) -> Result<BeginTime, DurationError> {
        // 2000 had a 29 February: a day that some year has is taken.
        let (year, month, day) = match self {
            Self::FromNow(days) => return Ok(BeginTime::DayFromNow { days, clock }),
            Self::Weekday(weekday) => return Ok(BeginTime::Weekday { weekday, clock }),
            Self::MonthDay(month, day) => (2000, month, day),
            Self::Date(year, month, day) => (year, month, day),
        };
        if CivilTime::midnight(year, month, day).is_none() {
            return Err(DurationError::NoSuchDay {
                text: shorten(text),
                year: i64::from(year),
                month,
                day,
            });
        }
        Ok(match self {
            Self::MonthDay(..) => BeginTime::MonthDay { month, day, clock },
            _ => BeginTime::Date {
                year,
                month,
                day,
                clock,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};
    use proptest::prelude::*;

    /// Friday 20 November 2026, 10:05:27 is now.
    fn begin(text: &str, want: Expect) {
        let now = CivilTime {
            year: 2026,
            month: 11,
            day: 20,
            hour: 10,
            minute: 5,
            second: 27,
        };
        want.assert_eq(&match BeginTime::parse(text) {
            Ok(begin) => begin.resolve(now).to_string(),
            Err(error) => format!("error: {error}"),
        });
    }

    #[test]
    fn reads_begin_times() {
        begin("now", expect!["2026-11-20T10:05:27"]);
        begin("now+1hour", expect!["2026-11-20T11:05:27"]);
        begin("now+10minutes", expect!["2026-11-20T10:15:27"]);
        begin("now+60", expect!["2026-11-20T10:06:27"]);
        begin("noon-tomorrow", expect!["2026-11-21T12:00:00"]);
        begin("tomorrow-teatime", expect!["2026-11-21T16:00:00"]);
        begin("2027-01-09-fika", expect!["2027-01-09T15:00:00"]);
        begin("elevenses-01/09/27", expect!["2027-01-09T11:00:00"]);
        begin("4:00pm-monday", expect!["2026-11-23T16:00:00"]);
        begin(
            "noon-",
            expect![[
                r#"error: begin time "noon-" is no time that can be read. Try now+1hour, 16:00, tomorrow, 2027-01-09 or 2027-01-09T06:00"#
            ]],
        );
        begin("now + 2 weeks", expect!["2026-12-04T10:05:27"]);
        begin("now-1hour", expect!["2026-11-20T09:05:27"]);
        begin("16:00", expect!["2026-11-20T16:00:00"]);
        begin("9:30", expect!["2026-11-21T09:30:00"]);
        begin("4:15 PM", expect!["2026-11-20T16:15:00"]);
        begin("12:00am", expect!["2026-11-21T00:00:00"]);
        begin("midnight", expect!["2026-11-21T00:00:00"]);
        begin("noon", expect!["2026-11-20T12:00:00"]);
        begin("teatime", expect!["2026-11-20T16:00:00"]);
        begin("today", expect!["2026-11-20T00:00:00"]);
        begin("tomorrow", expect!["2026-11-21T00:00:00"]);
        begin("tomorrow 8:00", expect!["2026-11-21T08:00:00"]);
        begin("2027-01-09", expect!["2027-01-09T00:00:00"]);
        begin("2027-01-09T06:01", expect!["2027-01-09T06:01:00"]);
        begin("2027-01-09T06:01:39", expect!["2027-01-09T06:01:39"]);
        begin("010927", expect!["2027-01-09T00:00:00"]);
        begin("01/09/27-06:30", expect!["2027-01-09T06:30:00"]);
        begin("01/09", expect!["2027-01-09T00:00:00"]);
        begin("1225", expect!["2026-12-25T00:00:00"]);
        begin("02/29", expect!["2028-02-29T00:00:00"]);
        begin("2027-01-09T06", expect!["2027-01-09T06:00:00"]);
        begin("01/09/27-6", expect!["2027-01-09T06:00:00"]);
        begin("yesterday 8:00", expect!["2026-11-19T08:00:00"]);
        begin("friday", expect!["2026-11-27T00:00:00"]); // now is one
        begin("friday 16:00", expect!["2026-11-20T16:00:00"]);
        begin("Mon", expect!["2026-11-23T00:00:00"]);
    }

    #[test]
    fn times_of_the_past_have_been() {
        let now = CivilTime {
            year: 2026,
            month: 11,
            day: 20,
            hour: 10,
            minute: 5,
            second: 27,
        };
        let past = |text: &str| {
            BeginTime::parse(text)
                .unwrap()
                .resolve_past(now)
                .to_string()
        };
        let forms = [
            "11/19",
            "1119-06:30",
            "11/25",
            "01/05",
            "12/24",
            "05/01-7",
            "02/29",
            "friday",
            "fri 16:00",
            "saturday",
            "9:30",
            "noon",
            "now-1hour",
            "2026-11-19T10",
        ];
        expect![[r#"
            11/19 2026-11-19T00:00:00
            1119-06:30 2026-11-19T06:30:00
            11/25 2026-11-25T00:00:00
            01/05 2026-01-05T00:00:00
            12/24 2026-12-24T00:00:00
            05/01-7 2026-05-01T07:00:00
            02/29 2024-02-29T00:00:00
            friday 2026-11-20T00:00:00
            fri 16:00 2026-11-20T16:00:00
            saturday 2026-11-14T00:00:00
            9:30 2026-11-20T09:30:00
            noon 2026-11-20T12:00:00
            now-1hour 2026-11-20T09:05:27
            2026-11-19T10 2026-11-19T10:00:00
        "#]]
        .assert_eq(
            &forms
                .map(|text| format!("{text} {}\n", past(text)))
                .concat(),
        );
        let january = CivilTime {
            year: 2027,
            month: 1,
            day: 3,
            ..now
        };
        let christmas = BeginTime::parse("12/25").unwrap();
        assert_eq!(
            christmas.resolve_past(january).to_string(),
            "2026-12-25T00:00:00"
        );
    }

    #[test]
    fn refuses_begin_times_that_no_calendar_has() {
        begin(
            "2027-02-29",
            expect![[
                r#"error: begin time "2027-02-29": there is no such day as 2027-02-29. Write YYYY-MM-DD"#
            ]],
        );
        begin(
            "25:00",
            expect![[
                r#"error: begin time "25:00": there is no such time of day. Hours go to 23, minutes and seconds to 59"#
            ]],
        );
        begin(
            "13:00pm",
            expect![[
                r#"error: begin time "13:00pm": there is no such time of day. Hours go to 23, minutes and seconds to 59"#
            ]],
        );
        begin(
            "next week",
            expect![[
                r#"error: begin time "next week" is no time that can be read. Try now+1hour, 16:00, tomorrow, 2027-01-09 or 2027-01-09T06:00"#
            ]],
        );
        begin(
            "now+99999days",
            expect![[
                r#"error: begin time "now+99999days" is further than 3650 days from now. Try a nearer one"#
            ]],
        );
        for text in [
            "",
            "now+",
            "now+1fortnight",
            "5",
            "10:00 11:00",
            "today tomorrow",
            "31/12",
            "+5",
        ] {
            assert!(BeginTime::parse(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,30}|[0-9:/tanowpm. +-]{0,24}") {
            if let Ok(begin) = BeginTime::parse(&text) {
                prop_assert_eq!(BeginTime::parse(&begin.to_string()), Ok(begin));
            }
        }
    }
}
