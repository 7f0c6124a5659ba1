//! Instants as Slurm's commands print them: local time, or as `SLURM_TIME_FORMAT` says.
//!
//! Also the way back: the times that `-S`, `-E` and `--begin` take, in local time.

use crate::Failure;
use chrono::format::{Item, StrftimeItems};
use chrono::{
    DateTime, Datelike, Local, LocalResult, NaiveDate, NaiveDateTime, TimeDelta, TimeZone, Timelike,
};
use gmodel::begin_time::BeginTime;
use gmodel::civil_time::CivilTime;
use gmodel::{Instant, Timestamp};
use std::sync::OnceLock;

/// What [`read_in`] said; without it the machine's own zone.
static ZONE: OnceLock<gmodel::TimeZone> = OnceLock::new();

/// How instants are printed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TimeFormat {
    /// `2026-11-20T09:05:27`.
    #[default]
    Standard,
    /// A strftime(3) format, known to be good.
    Custom(String),
}

impl TimeFormat {
    /// What `SLURM_TIME_FORMAT` asks for; a format that strftime cannot print is as if unset.
    pub fn from_env() -> Self {
        std::env::var("SLURM_TIME_FORMAT").map_or(Self::Standard, |text| Self::parse(&text))
    }

    fn parse(text: &str) -> Self {
        let bad =
            text.is_empty() || StrftimeItems::new(text).any(|item| matches!(item, Item::Error));
        if bad || matches!(text, "standard" | "relative") {
            Self::Standard
        } else {
            Self::Custom(text.to_owned())
        }
    }

    /// The instant in this format, in the machine's time zone.
    pub fn print(&self, at: Timestamp) -> String {
        let Some(local) = local(at) else {
            return "Unknown".to_owned();
        };
        match self {
            Self::Standard => {
                let (date, time) = (local.date_naive(), local.time());
                format!(
                    "{date}T{:02}:{:02}:{:02}",
                    time.hour(),
                    time.minute(),
                    time.second()
                )
            }
            Self::Custom(format) => local.format(format).to_string(),
        }
    }

    /// A sentence with its RFC 3339 instants in this format; all else stays.
    pub fn in_text(&self, text: &str) -> String {
        let mut told = String::with_capacity(text.len());
        for word in text.split_inclusive(' ') {
            let end = word.find('Z').map_or(0, |at| at + 1);
            match gmodel::time::parse_rfc3339(&word[..end]) {
                Some(at) => {
                    told.push_str(&self.print(at));
                    told.push_str(&word[end..]);
                }
                None => told.push_str(word),
            }
        }
        told
    }
}

fn local(at: Timestamp) -> Option<DateTime<Local>> {
    Local.timestamp_opt(at.secs(), 0).single()
}

/// From now on times without a zone are read as a clock of this place shows them, for those that concern the whole cluster.
pub fn read_in(zone: gmodel::TimeZone) {
    // A command reads in one zone; a second word for it changes nothing.
    let _ = ZONE.set(zone);
}

fn on_clock_of(zone: &gmodel::TimeZone, at: Timestamp) -> CivilTime {
    const EPOCH: CivilTime = CivilTime {
        year: 1970,
        month: 1,
        day: 1,
        hour: 0,
        minute: 0,
        second: 0,
    };
    EPOCH.plus_secs(zone.local_millis(at).div_euclid(1000))
}

fn in_zone(zone: &gmodel::TimeZone, civil: CivilTime) -> Timestamp {
    let date = NaiveDate::from_ymd_opt(civil.year, civil.month.into(), civil.day.into());
    let shown = date.and_then(|date| {
        date.and_hms_opt(civil.hour.into(), civil.minute.into(), civil.second.into())
    });
    zone.at_local(
        shown
            .unwrap_or(NaiveDateTime::MAX)
            .and_utc()
            .timestamp_millis(),
    )
}

/// The present, to the millisecond.
pub fn now() -> Timestamp {
    Timestamp(chrono::Utc::now().timestamp_millis())
}

/// `Fri Nov 20 09:05:43 2026`, the head of `sinfo -l` and of each round of `squeue -i`.
pub fn banner(at: Timestamp) -> String {
    local(at)
        .map(|local| local.format("%a %b %d %H:%M:%S %Y").to_string())
        .unwrap_or_default()
}

/// The last midnight in local time.
pub fn midnight(now: Timestamp) -> Timestamp {
    let civil = civil(now);
    instant_of(CivilTime {
        hour: 0,
        minute: 0,
        second: 0,
        ..civil
    })
}

/// The first midnight of the month in local time.
pub fn month_start(now: Timestamp) -> Timestamp {
    let civil = civil(now);
    instant_of(CivilTime {
        day: 1,
        hour: 0,
        minute: 0,
        second: 0,
        ..civil
    })
}

/// The instant meant by a text such as `now-1hour`, `2026-11-20`, `16:00`, and by those that listings and `--json` print.
///
/// # Errors
/// What is wrong with the text, with forms that would do.
pub fn read(text: &str, now: Timestamp) -> Result<Timestamp, String> {
    if let Some(at) = seconds_of_unix(text).or_else(|| with_offset(text)) {
        return Ok(at);
    }
    let begin = BeginTime::parse(text).map_err(|error| error.to_string())?;
    Ok(match begin.offset_secs() {
        Some(offset) => now.plus_secs(offset),
        None => instant_of(begin.resolve(civil(now))),
    })
}

/// As [`read`], of what is no begin: a deadline.
///
/// # Errors
/// As [`read`].
pub fn read_end(text: &str, now: Timestamp) -> Result<Timestamp, String> {
    read(text, now).map_err(|why| why.replacen("begin time", "time", 1))
}

/// An option's time that has been, as [`read_past`] reads it.
///
/// # Errors
/// As [`read`], with the option's name.
pub fn past_option(
    option: &str,
    text: Option<&str>,
    now: Timestamp,
) -> Result<Option<Instant>, Failure> {
    let Some(text) = text else { return Ok(None) };
    match read_past(text, now) {
        Ok(at) => Ok(Some(Instant(at))),
        Err(why) => Err(Failure::usage(format_args!("--{option}: {why}"))),
    }
}

/// As [`read`], of what has been: a time of day is today's, a day without its year is not a year ahead.
///
/// # Errors
/// As [`read`].
pub fn read_past(text: &str, now: Timestamp) -> Result<Timestamp, String> {
    match BeginTime::parse(text) {
        Ok(begin) if begin.offset_secs().is_none() => {
            Ok(instant_of(begin.resolve_past(civil(now))))
        }
        _ => read(text, now).map_err(|why| {
            let why = why.replacen("begin time", "time", 1);
            why.replacen(
                "Try now+1hour, 16:00, tomorrow,",
                "Try now-1hour, 16:00, yesterday, monday, 01/09,",
                1,
            )
        }),
    }
}

/// `uts1795165527`: seconds since 1970, as Slurm takes them.
fn seconds_of_unix(text: &str) -> Option<Timestamp> {
    let secs: i64 = text.trim().strip_prefix("uts")?.parse().ok()?;
    (0..1 << 40)
        .contains(&secs)
        .then(|| Timestamp::from_secs(secs))
}

/// `2027-01-09T06:00:00Z`, as `--json` has instants, or with the hours from UTC: `2027-01-09T06:00+01:00`.
fn with_offset(text: &str) -> Option<Timestamp> {
    let text = text.trim().to_ascii_uppercase();
    let text = text
        .strip_suffix('Z')
        .map_or_else(|| text.clone(), |utc| format!("{utc}+00:00"));
    let forms = ["%Y-%m-%dT%H:%M:%S%.f%:z", "%Y-%m-%dT%H:%M%:z"];
    let at = forms
        .iter()
        .find_map(|form| DateTime::parse_from_str(&text, form).ok())?;
    Some(Timestamp(at.timestamp_millis()))
}

fn civil(at: Timestamp) -> CivilTime {
    if let Some(zone) = ZONE.get() {
        return on_clock_of(zone, at);
    }
    let local = local(at).unwrap_or_else(|| {
        Local
            .timestamp_opt(0, 0)
            .single()
            .expect("the epoch exists")
    });
    CivilTime {
        year: local.year(),
        month: local.month() as u8,
        day: local.day() as u8,
        hour: local.hour() as u8,
        minute: local.minute() as u8,
        second: local.second() as u8,
    }
}

/// A local time that occurs twice is the first; one that does not exist is the next that does.
fn instant_of(civil: CivilTime) -> Timestamp {
    if let Some(zone) = ZONE.get() {
        return in_zone(zone, civil);
    }
    let naive = NaiveDate::from_ymd_opt(civil.year, civil.month.into(), civil.day.into())
        .and_then(|date| {
            date.and_hms_opt(civil.hour.into(), civil.minute.into(), civil.second.into())
        })
        .unwrap_or(NaiveDateTime::MAX);
    let quarter = TimeDelta::minutes(15);
    let tries =
        std::iter::successors(Some(naive), |at| at.checked_add_signed(quarter)).take(24 * 4);
    for at in tries {
        match Local.from_local_datetime(&at) {
            LocalResult::Single(found) => return Timestamp::from_secs(found.timestamp()),
            // In which order these two are depends on where the machine's zone was read from.
            LocalResult::Ambiguous(one, other) => {
                return Timestamp::from_secs(one.timestamp().min(other.timestamp()));
            }
            LocalResult::None => {}
        }
    }
    Timestamp::from_secs(naive.and_utc().timestamp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_that_strftime_cannot_print_are_as_if_unset() {
        assert_eq!(TimeFormat::parse("%Q%"), TimeFormat::Standard);
        assert_eq!(TimeFormat::parse("standard"), TimeFormat::Standard);
        assert_eq!(
            TimeFormat::parse("%s").print(Timestamp::from_secs(1_795_165_527)),
            "1795165527"
        );
    }

    #[test]
    fn instants_within_a_sentence_are_printed_and_the_rest_stays() {
        let at = Timestamp::from_secs(1_795_165_527);
        let local = TimeFormat::Standard.print(at);
        let told = |text: &str| TimeFormat::Standard.in_text(text);
        assert_eq!(
            told(&format!("not before {at}: Zoe's node  Z")),
            format!("not before {local}: Zoe's node  Z")
        );
        assert_eq!(told("2026-11-20T99:05:27Z ärZ"), "2026-11-20T99:05:27Z ärZ");
    }

    #[test]
    fn times_of_a_place_are_read_as_its_clock_shows_them() {
        let secs = |text: &str| gmodel::time::parse_rfc3339(text).unwrap().secs();
        let (summer, winter) = (secs("2026-03-29T01:00:00Z"), secs("2026-10-25T01:00:00Z"));
        let ahead = move |at: i64| {
            if (summer..winter).contains(&at) {
                7200
            } else {
                3600
            }
        };
        let berlin = gmodel::TimeZone::new(
            "Europe/Berlin",
            secs("2026-01-01T00:00:00Z")..secs("2027-01-01T00:00:00Z"),
            86_400,
            ahead,
        );
        let civil = |hour| CivilTime {
            year: 2026,
            month: 10,
            day: 25,
            hour,
            minute: 30,
            second: 0,
        };
        assert_eq!(
            in_zone(&berlin, civil(2)).to_string(),
            "2026-10-25T00:30:00Z",
            "it comes twice: the first"
        );
        assert_eq!(on_clock_of(&berlin, in_zone(&berlin, civil(4))), civil(4));
    }

    #[test]
    fn printed_times_read_back_and_offsets_count_from_now() {
        let now = Timestamp::from_secs(1_795_165_527);
        let printed = TimeFormat::Standard.print(now);
        assert_eq!(printed.len(), "2026-11-20T09:05:27".len());
        assert_eq!(read(&printed, now), Ok(now));
        assert_eq!(read("now-1hour", now), Ok(now.plus_secs(-3600)));
        assert!(midnight(now) <= now && now.since_secs(midnight(now)) < 25 * 3600);
        assert_eq!(read_past("00:00", now), Ok(midnight(now)));
        assert_eq!(
            (read("uts1795165527", now), read_past("uts1795165527", now)),
            (Ok(now), Ok(now))
        );
        assert!(read("uts-5", now).is_err() && read("uts99999999999999", now).is_err());
        let (utc, east) = ("2026-11-20T09:05:27Z", "2026-11-20T10:05:27.000+01:00");
        assert_eq!(
            (read(utc, now), read(east, now), read_past(utc, now)),
            (Ok(now), Ok(now), Ok(now))
        );
        assert_eq!(read("2026-11-20t10:05+01:00", now), Ok(now.plus_secs(-27)));
        assert!(read("2026-11-31T10:05Z", now).is_err() && read("10:05Z", now).is_err());
        let day_before = now.plus_secs(-24 * 3600);
        assert_eq!(read_past("yesterday", now), Ok(midnight(day_before)));
        assert!(read("soon", now).unwrap_err().contains("Try now+1hour"));
    }
}
