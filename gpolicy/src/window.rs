//! When a reservation of the policy holds: its windows, single and recurring.
//!
//! Windows are arithmetic, not a list: an hourly one costs no more than a single one.
//! Source: Slurm's reservations; recurring times are those of the site's clock.

use crate::pending_job::PendingJob;
use gmodel::policy::{Repeat, Reservation};
use gmodel::{JobSpec, Policy, Timestamp};

/// A span of time; its end is no longer in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Window {
    pub from: Timestamp,
    pub to: Timestamp,
}

/// How many windows of two recurring reservations are compared.
const MOST_MEETINGS: usize = 1_000;

/// The first window that ends after a time, skipped ones left out.
pub fn next(reservation: &Reservation, after: Timestamp) -> Option<Window> {
    let after = reservation
        .skip_until
        .map_or(after, |skipped| after.max(skipped));
    let millis = i64::from(reservation.duration_secs) * 1000;
    let window = |from: Timestamp| Window {
        from,
        to: from.plus_millis(millis),
    };
    if millis == 0 {
        return None;
    }
    let Some(period) = reservation
        .repeat
        .every_secs()
        .map(|secs| i64::from(secs) * 1000)
    else {
        return Some(window(reservation.start)).filter(|window| window.to > after);
    };
    let ended = after
        .0
        .saturating_sub(reservation.start.0)
        .saturating_sub(millis);
    let Some(zone) = reservation
        .zone
        .as_ref()
        .filter(|_| reservation.repeat != Repeat::Hourly)
    else {
        let mut count = if ended < 0 { 0 } else { ended / period + 1 };
        loop {
            let start = reservation.start.plus_millis(period.checked_mul(count)?);
            if comes_on(reservation.repeat, start.0) {
                return Some(window(start));
            }
            count += 1;
        }
    };
    // The same time on the site's clock: its days have 23 to 25 hours.
    let first = zone.local_millis(reservation.start);
    let mut count = (ended / period - 1).max(0);
    loop {
        let local = first.checked_add(period.checked_mul(count)?)?;
        let start = if count == 0 {
            reservation.start
        } else {
            zone.at_local(local)
        };
        if comes_on(reservation.repeat, local) && start.plus_millis(millis) > after {
            return Some(window(start));
        }
        count += 1;
    }
}

/// The text for a job in the present window of its reservation without a known start.
pub fn no_start_text(job: &PendingJob, policy: &Policy, now: Timestamp) -> Option<String> {
    let own = policy
        .reservations
        .get(asked(&job.spec)?)
        .filter(|own| !own.flex)?;
    let window = next(own, now).filter(|window| {
        window.from <= now && now.plus_secs(i64::from(job.least_secs())) <= window.to
    })?;
    let is_for_it = policy.is_reserved_for(own, &job.spec.user.name, &job.spec.account);
    is_for_it.then(|| match own.repeat {
        Repeat::Once => format!("by what is known it does not start before reservation {:?} ends at {}", own.name, window.to),
        _ => format!("by what is known it does not start in this window of reservation {:?}, nor in those after it", own.name),
    })
}

/// The first two windows of two reservations that overlap after a time.
pub fn first_meeting(
    one: &Reservation,
    other: &Reservation,
    after: Timestamp,
) -> Option<(Window, Window)> {
    let (mut own, mut theirs) = (next(one, after)?, next(other, after)?);
    for _ in 0..MOST_MEETINGS {
        if own.from < theirs.to && theirs.from < own.to {
            return Some((own, theirs));
        }
        match own.to <= theirs.to {
            true => own = next(one, own.to)?,
            false => theirs = next(other, theirs.to)?,
        }
    }
    None
}

/// Whether a window may begin on the day of a local time in milliseconds. The epoch was a Thursday.
fn comes_on(repeat: Repeat, local_millis: i64) -> bool {
    let is_weekday = (1..=5).contains(&(local_millis.div_euclid(86_400_000) + 4).rem_euclid(7));
    match repeat {
        Repeat::Weekday => is_weekday,
        Repeat::Weekend => !is_weekday,
        Repeat::Once | Repeat::Hourly | Repeat::Daily | Repeat::Weekly => true,
    }
}

/// The name of the reservation that a job asks for.
pub fn asked(spec: &JobSpec) -> Option<&str> {
    spec.reservation.as_deref().filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reservation(start: i64, duration_secs: u32, repeat: Repeat) -> Reservation {
        Reservation {
            start: Timestamp::from_secs(start),
            duration_secs,
            repeat,
            ..Reservation::default()
        }
    }
    fn at(reservation: &Reservation, secs: i64) -> Option<(i64, i64)> {
        next(reservation, Timestamp::from_secs(secs))
            .map(|window| (window.from.secs(), window.to.secs()))
    }

    #[test]
    fn windows_come_once_or_again() {
        let once = reservation(100, 50, Repeat::Once);
        assert_eq!(
            (at(&once, 0), at(&once, 149), at(&once, 150)),
            (Some((100, 150)), Some((100, 150)), None)
        );
        let hourly = reservation(100, 50, Repeat::Hourly);
        assert_eq!(
            (at(&hourly, 150), at(&hourly, 3749), at(&hourly, 3750)),
            (Some((3700, 3750)), Some((3700, 3750)), Some((7300, 7350)))
        );
    }

    #[test]
    fn recurring_reservations_meet_in_any_of_their_windows() {
        let meets = |one: &Reservation, other: &Reservation| {
            let met = |one: &Reservation, other: &Reservation| {
                first_meeting(one, other, Timestamp(0))
                    .map(|(own, theirs)| (own.from.secs(), theirs.from.secs()))
            };
            let there = met(one, other);
            assert_eq!(
                there,
                met(other, one).map(|(own, theirs)| (theirs, own)),
                "either way"
            );
            there
        };
        let (hour, day) = (3600, 86_400);
        let daily = reservation(0, 3600, Repeat::Daily);
        assert_eq!(
            meets(&daily, &reservation(9 * day + 1800, 60, Repeat::Once)),
            Some((9 * day, 9 * day + 1800))
        );
        assert_eq!(
            meets(&daily, &reservation(9 * day + 3600, 60, Repeat::Once)),
            None,
            "one ends when the other begins"
        );
        assert_eq!(
            meets(&daily, &reservation(5 * hour, 60, Repeat::Daily)),
            None
        );
        let weekly = reservation(3 * day + hour / 2, 60, Repeat::Weekly);
        assert_eq!(meets(&daily, &weekly), Some((3 * day, 3 * day + hour / 2)));
        assert_eq!(
            meets(&reservation(hour / 4, 60, Repeat::Hourly), &weekly),
            None
        );
    }

    #[test]
    fn weekdays_leave_out_the_weekend_and_weekends_the_rest() {
        // Thursday the first of January 1970, noon.
        let noon = reservation(43_200, 3600, Repeat::Weekday);
        let day = 86_400;
        assert_eq!(
            at(&noon, 50_000),
            Some((43_200 + day, 46_800 + day)),
            "Friday"
        );
        assert_eq!(
            at(&noon, 50_000 + day),
            Some((43_200 + 4 * day, 46_800 + 4 * day)),
            "Monday"
        );
        let noon = Reservation {
            repeat: Repeat::Weekend,
            ..noon
        };
        assert_eq!(
            at(&noon, 0),
            Some((43_200 + 2 * day, 46_800 + 2 * day)),
            "Saturday"
        );
        assert_eq!(
            at(&noon, 50_000 + 2 * day),
            Some((43_200 + 3 * day, 46_800 + 3 * day)),
            "Sunday"
        );
        assert_eq!(
            at(&noon, 50_000 + 3 * day),
            Some((43_200 + 9 * day, 46_800 + 9 * day)),
            "the Saturday after"
        );
    }

    /// An hour ahead, two in the summer of 2026.
    fn berlin() -> gmodel::TimeZone {
        let (from, to) = (1_774_746_000, 1_792_890_000);
        gmodel::TimeZone::new(
            "Europe/Berlin",
            1_767_225_600..1_798_761_600,
            86_400,
            |at| if (from..to).contains(&at) { 7200 } else { 3600 },
        )
    }

    fn starts(one: &Reservation, from: &str, count: usize) -> Vec<String> {
        let mut after = gmodel::time::parse_rfc3339(from).unwrap();
        let step = |_| {
            let window = next(one, after)?;
            after = window.to;
            Some(window.from.to_string())
        };
        (0..count).map_while(step).collect()
    }

    #[test]
    fn a_recurring_window_keeps_its_hour_on_the_clock_of_the_place() {
        // 02:30 in Berlin, which does not come on the 29th of March and comes twice on the 25th of October.
        let start = gmodel::time::parse_rfc3339("2026-03-27T01:30:00Z").unwrap();
        let daily = Reservation {
            start,
            zone: Some(std::sync::Arc::new(berlin())),
            ..reservation(0, 1800, Repeat::Daily)
        };
        let daily = Reservation { start, ..daily };
        assert_eq!(
            starts(&daily, "2026-03-27T00:00:00Z", 5),
            [
                "2026-03-27T01:30:00Z",
                "2026-03-28T01:30:00Z",
                "2026-03-29T01:00:00Z",
                "2026-03-30T00:30:00Z",
                "2026-03-31T00:30:00Z",
            ]
        );
        assert_eq!(
            starts(&daily, "2026-10-24T00:00:00Z", 3),
            [
                "2026-10-24T00:30:00Z",
                "2026-10-25T00:30:00Z",
                "2026-10-26T01:30:00Z"
            ]
        );
        let weekly = Reservation {
            repeat: Repeat::Weekly,
            ..daily.clone()
        };
        assert_eq!(
            starts(&weekly, "2026-03-28T00:00:00Z", 2),
            ["2026-04-03T00:30:00Z", "2026-04-10T00:30:00Z"]
        );
        // Just after midnight on Monday there it is Sunday in UTC.
        let start = gmodel::time::parse_rfc3339("2026-06-28T22:15:00Z").unwrap();
        let weekday = Reservation {
            start,
            repeat: Repeat::Weekday,
            ..daily.clone()
        };
        let days = starts(&weekday, "2026-06-28T00:00:00Z", 6);
        assert_eq!(
            (&*days[0], &*days[4], &*days[5]),
            (
                "2026-06-28T22:15:00Z",
                "2026-07-02T22:15:00Z",
                "2026-07-05T22:15:00Z"
            )
        );
        let hourly = Reservation {
            repeat: Repeat::Hourly,
            ..daily
        };
        assert_eq!(
            starts(&hourly, "2026-03-29T00:10:00Z", 2),
            ["2026-03-29T00:30:00Z", "2026-03-29T01:30:00Z"]
        );
    }
}
