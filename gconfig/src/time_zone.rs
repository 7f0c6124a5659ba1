//! `time_zone`: from the name in the file to the changes of its clock, as the pure crates need them.
//!
//! The table of zones is chrono-tz's, compiled in: what a controller decides does not depend on the machine's.

use crate::error::Errors;
use crate::section::Section;
use chrono::{DateTime, Offset, TimeZone as _};
use chrono_tz::{TZ_VARIANTS, Tz};
use gmodel::TimeZone;
use gmodel::suggest::closest;
use std::sync::Arc;

/// From 2000 to 2100, in seconds since 1970.
const KNOWN: std::ops::Range<i64> = 946_684_800..4_102_444_800;
/// A zone changes seldom; two changes in a week that undo each other are history.
const STEP_SECS: i64 = 7 * 86_400;

pub fn read(section: &Section, errors: &mut Errors) -> Arc<TimeZone> {
    let Some(name) = section.text("time_zone", errors) else {
        return Arc::default();
    };
    if let Ok(zone) = name.parse::<Tz>() {
        return Arc::new(of(&name, zone));
    }
    let hint = closest(&name, TZ_VARIANTS.iter().map(|zone| zone.name())).map_or_else(
        || "an IANA name, as \"Europe/Berlin\"".to_owned(),
        |near| format!("did you mean {near:?}?"),
    );
    errors.add(
        section.source,
        section.span("time_zone"),
        format!("there is no time zone {name:?}"),
        hint,
    );
    Arc::default()
}

fn of(name: &str, zone: Tz) -> TimeZone {
    let ahead = |at: i64| {
        let at = DateTime::from_timestamp(at, 0).unwrap_or_default();
        i64::from(
            zone.offset_from_utc_datetime(&at.naive_utc())
                .fix()
                .local_minus_utc(),
        )
    };
    match zone {
        Tz::UTC => TimeZone::default(),
        _ => TimeZone::new(name, KNOWN, STEP_SECS, ahead),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gmodel::Timestamp;
    use gmodel::time::parse_rfc3339;

    fn at(text: &str) -> Timestamp {
        parse_rfc3339(text).unwrap()
    }

    #[test]
    fn zones_change_as_the_table_says() {
        let berlin = of("Europe/Berlin", Tz::Europe__Berlin);
        let utc = |zone: &TimeZone, local: &str| zone.at_local(at(local).0).to_string();
        assert_eq!(utc(&berlin, "2026-03-29T02:30:00Z"), "2026-03-29T01:00:00Z");
        assert_eq!(utc(&berlin, "2099-07-01T00:00:00Z"), "2099-06-30T22:00:00Z");
        let kolkata = of("Asia/Kolkata", Tz::Asia__Kolkata);
        assert_eq!(
            utc(&kolkata, "2026-11-20T00:00:00Z"),
            "2026-11-19T18:30:00Z"
        );
        // Half an hour in summer; on the other side of the equator.
        let lord_howe = of("Australia/Lord_Howe", Tz::Australia__Lord_Howe);
        assert_eq!(
            utc(&lord_howe, "2026-01-10T00:00:00Z"),
            "2026-01-09T13:00:00Z"
        );
        assert_eq!(
            utc(&lord_howe, "2026-07-10T00:00:00Z"),
            "2026-07-09T13:30:00Z"
        );
        // Ramadan takes Morocco's summer time away for a month, so that it changes four times a year.
        let casablanca = of("Africa/Casablanca", Tz::Africa__Casablanca);
        for day in 0..3650 {
            let noon = Timestamp::from_secs(1_767_268_800 + day * 86_400);
            let exact = Tz::Africa__Casablanca.offset_from_utc_datetime(
                &DateTime::from_timestamp(noon.secs(), 0)
                    .unwrap()
                    .naive_utc(),
            );
            assert_eq!(
                casablanca.local_millis(noon) - noon.0,
                i64::from(exact.fix().local_minus_utc()) * 1000,
                "{noon}"
            );
        }
        assert_eq!(of("UTC", Tz::UTC), TimeZone::default());
    }
}
