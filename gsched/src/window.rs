//! When reservations of the policy hold: single windows and recurring ones, over which nodes, for which users.
//!
//! Windows are arithmetic, not a list: one that comes hourly for ever costs no more than one that comes once.
//! Source: Slurm's reservations: recurring times are those of a clock of the site.

pub use crate::snapshot::least_secs;
use crate::snapshot::{PendingJob, Snapshot};
use fixedbitset::FixedBitSet;
use gmodel::constraint::Constraint;
use gmodel::policy::{Repeat, Reservation, ReservedPart};
use gmodel::{JobSpec, Policy, Timestamp};
use std::ops::Range;

/// From, and until just before.
pub type Window = (Timestamp, Timestamp);

/// Windows that are looked at in a row before a job is said to fit in none.
const MOST_WINDOWS: usize = 64;

/// Windows of two recurring reservations that are held against each other.
const MOST_MEETINGS: usize = 1_000;

/// Reservations that draw jobs at most.
pub const MOST_MAGNETIC: usize = 64;

/// What is looked for on a node: room for so long, from a time on and before another.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    pub from: Timestamp,
    pub until: Timestamp,
    pub secs: u32,
    /// So many seconds more than there must be room for no reservation of others may begin.
    pub beyond_secs: i64,
    /// The least that is left of the window of its own reservation.
    pub least_secs: u32,
}

/// Which reservations jobs may be in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Claim {
    #[default]
    None,
    /// In that which they name, by its number, and nowhere else.
    Own(usize),
    /// On nodes of those that draw them, too: a bit for each, by [`Reserved::magnet`].
    Drawn(u64),
}

/// The reservations of a snapshot, by number.
#[derive(Clone, Debug, Default)]
pub struct Windows {
    pub list: Vec<Reserved>,
    /// Nodes that any of them covers.
    covered: FixedBitSet,
}

#[derive(Clone, Debug)]
pub struct Reserved {
    pub reservation: Reservation,
    /// Nodes it covers whole; empty for one that counts GPUs.
    pub nodes: FixedBitSet,
    /// Its number among those that draw jobs.
    pub magnet: Option<u32>,
}

impl Claim {
    pub fn own(self) -> Option<usize> {
        match self {
            Self::Own(own) => Some(own),
            Self::None | Self::Drawn(_) => None,
        }
    }
}

impl Windows {
    pub fn new(snapshot: &Snapshot) -> Self {
        let mut list: Vec<Reserved> = snapshot
            .policy
            .reservations
            .values()
            .map(|one| Reserved::new(one, snapshot))
            .collect();
        let magnets = list
            .iter_mut()
            .filter(|one| one.reservation.draws())
            .take(MOST_MAGNETIC);
        (0..)
            .zip(magnets)
            .for_each(|(number, one)| one.magnet = Some(number));
        let mut covered = FixedBitSet::with_capacity(snapshot.nodes.len());
        list.iter().for_each(|one| covered.union_with(&one.nodes));
        Self { list, covered }
    }

    pub fn find(&self, name: &str) -> Option<usize> {
        self.list
            .iter()
            .position(|one| one.reservation.name == name)
    }

    /// What jobs may use: the reservation that they name (not one that is not there), or all that draw them.
    pub fn claim(&self, spec: &JobSpec, policy: &Policy) -> Claim {
        if let Some(name) = asked(spec) {
            return self.find(name).map_or(Claim::None, Claim::Own);
        }
        let drawn = self.list.iter().filter_map(|one| {
            let magnet = one.magnet?;
            policy
                .is_reserved_for(&one.reservation, &spec.user.name, &spec.account)
                .then_some(1 << magnet)
        });
        match drawn.fold(0, |all: u64, one: u64| all | one) {
            0 => Claim::None,
            drawn => Claim::Drawn(drawn),
        }
    }

    /// The nodes of the reservations that draw jobs with a claim.
    pub fn drawing(&self, claim: Claim) -> Option<FixedBitSet> {
        let Claim::Drawn(_) = claim else { return None };
        let mut nodes = FixedBitSet::with_capacity(self.covered.len());
        let drawing = (0..self.list.len()).filter(|at| !self.bars(*at, claim));
        drawing.for_each(|at| nodes.union_with(&self.list[at].nodes));
        Some(nodes)
    }

    /// Whether a reservation keeps jobs with a claim off its nodes. Maintenance comes before all but maintenance, OVERLAP before
    /// the rest.
    fn bars(&self, at: usize, claim: Claim) -> bool {
        let one = &self.list[at];
        match claim {
            Claim::None => true,
            Claim::Drawn(drawn) => one.magnet.is_none_or(|magnet| drawn >> magnet & 1 == 0),
            Claim::Own(own) => {
                let own_one = &self.list[own].reservation;
                own != at
                    && !own_one.maintenance
                    && (one.reservation.maintenance || !own_one.overlap)
            }
        }
    }

    /// The first window on a node, of reservations that are not for a claim, that meets a time.
    pub fn blocking(
        &self,
        node: usize,
        claim: Claim,
        from: Timestamp,
        to: Timestamp,
    ) -> Option<(usize, Window)> {
        if !self.covered.contains(node) {
            return None;
        }
        let others = self
            .list
            .iter()
            .enumerate()
            .filter(|(at, one)| one.nodes.contains(node) && self.bars(*at, claim));
        others
            .filter_map(|(at, one)| Some((at, next(&one.reservation, from)?)))
            .filter(|(_, window)| window.0 < to)
            .min_by_key(|(_, window)| *window)
    }

    /// When windows that keep jobs with a claim off their nodes begin and end, within a time.
    pub fn edges_of_others(&self, claim: Claim, (from, to): Window) -> Vec<Timestamp> {
        let others = (0..self.list.len())
            .filter(|at| !self.list[*at].nodes.is_clear() && self.bars(*at, claim));
        let windows = others.flat_map(|at| self.of(at, from).take_while(|window| window.0 < to));
        windows
            .flat_map(|window| [window.0, window.1])
            .filter(|at| from < *at && *at < to)
            .collect()
    }

    /// Whether any window decides when a job may be on a node.
    #[inline]
    pub fn concern(&self, node: usize, claim: Claim) -> bool {
        claim.own().is_some() || (!self.list.is_empty() && self.covered.contains(node))
    }

    /// Whether that is so for any node.
    pub fn concern_some(&self, claim: Claim) -> bool {
        claim.own().is_some() || !self.list.is_empty()
    }

    /// Whether that is so for any of some nodes.
    pub fn concern_any(&self, nodes: Range<usize>, claim: Claim) -> bool {
        claim.own().is_some()
            || (!self.list.is_empty() && self.covered.contains_any_in_range(nodes))
    }

    /// Whether a job may be on a node for that time: in its own reservation, and in no other's way, which may not begin for so many
    /// seconds more.
    #[inline]
    pub fn open(&self, node: usize, claim: Claim, (from, to): Window, beyond_secs: i64) -> bool {
        if !self.concern(node, claim) {
            return true;
        }
        let mut until = to.plus_secs(beyond_secs);
        if let Some(own) = self.held_to(claim) {
            match next(own, from) {
                Some(window) if window.0 <= from && to <= window.1 => until = until.min(window.1),
                _ => return false,
            }
        }
        self.blocking(node, claim, from, until).is_none()
    }

    /// The reservation that jobs with a claim run in, and nowhere else.
    fn held_to(&self, claim: Claim) -> Option<&Reservation> {
        Some(&self.list[claim.own()?].reservation).filter(|own| !own.flex)
    }

    /// How many of so many seconds a job has that starts at a time: in its reservation it ends with the window.
    pub fn secs_from(&self, claim: Claim, at: Timestamp, secs: u32) -> u32 {
        let window = self
            .held_to(claim)
            .and_then(|own| next(own, at))
            .filter(|window| window.0 <= at);
        window.map_or(secs, |(_, to)| secs.min(left_secs(at, to)))
    }

    /// Whether reservations let a job start on a node at a time.
    pub fn admit(&self, job: &PendingJob, policy: &Policy, node: usize, from: Timestamp) -> bool {
        let claim = self.claim(&job.spec, policy);
        let own = claim
            .own()
            .filter(|_| self.held_to(claim).is_some())
            .map(|own| &self.list[own]);
        let secs = self.secs_from(
            claim,
            from,
            job.spec.time_min_secs.unwrap_or(job.held_secs()),
        );
        let beyond_secs = i64::from(job.window_secs().saturating_sub(job.held_secs()));
        own.is_none_or(|own| {
            (own.nodes.is_clear() || own.nodes.contains(node))
                && secs >= job.least_secs().min(job.held_secs())
        }) && self.open(
            node,
            claim,
            (from, from.plus_secs(i64::from(secs))),
            beyond_secs,
        )
    }

    /// The windows of a reservation that end after a time, in order; no more than are worth looking at.
    pub fn of(&self, own: usize, from: Timestamp) -> impl Iterator<Item = Window> + '_ {
        let reservation = &self.list[own].reservation;
        let mut from = from;
        (0..MOST_WINDOWS).map_while(move |_| {
            let window = next(reservation, from)?;
            from = window.1;
            Some(window)
        })
    }

    /// The first time at which `first` finds room on a node that no window takes. It is asked for a time from one on and before another,
    /// with room for so many seconds from then on.
    pub fn first_beside(
        &self,
        node: usize,
        claim: Claim,
        span: Span,
        first: impl Fn(Timestamp, u32, Timestamp) -> Option<Timestamp>,
    ) -> Option<Timestamp> {
        if !self.concern(node, claim) {
            return first(span.from, span.secs, span.until);
        }
        let Some(own) = claim.own().filter(|_| self.held_to(claim).is_some()) else {
            return self.first_between(node, claim, (span, Timestamp(i64::MAX)), &first);
        };
        self.of(own, span.from)
            .take_while(|window| window.0 < span.until)
            .find_map(|window| {
                let from = span.from.max(window.0);
                // As long as it may; else until the window ends.
                let last = window.1.plus_secs(-i64::from(span.secs));
                let whole = Span {
                    from,
                    until: span.until.min(last.plus_millis(1)),
                    ..span
                };
                let cut = Span {
                    from: from.max(last.plus_millis(1)),
                    ..span
                };
                let found = self.first_between(node, claim, (whole, window.1), &first);
                found.or_else(|| self.first_cut(node, claim, (cut, window.1), &first))
            })
    }

    /// The same beside the windows of others, of a job that ends at a time at the latest.
    fn first_between(
        &self,
        node: usize,
        claim: Claim,
        (span, end): (Span, Timestamp),
        first: &impl Fn(Timestamp, u32, Timestamp) -> Option<Timestamp>,
    ) -> Option<Timestamp> {
        let mut from = span.from;
        for _ in 0..MOST_WINDOWS {
            if from >= span.until {
                return None;
            }
            let start = first(from, span.secs, span.until).filter(|start| *start < span.until)?;
            match self.blocking(
                node,
                claim,
                start,
                start
                    .plus_secs(i64::from(span.secs) + span.beyond_secs)
                    .min(end),
            ) {
                Some((_, window)) => from = window.1,
                None => return Some(start),
            }
        }
        None
    }

    /// The first from which on there is room until its window ends: from then on there always is.
    fn first_cut(
        &self,
        node: usize,
        claim: Claim,
        (span, end): (Span, Timestamp),
        first: &impl Fn(Timestamp, u32, Timestamp) -> Option<Timestamp>,
    ) -> Option<Timestamp> {
        let has_room = |at: Timestamp| {
            let soon = at.plus_millis(1);
            first(at, left_secs(at, end), soon).is_some_and(|at| at < soon)
                && self.blocking(node, claim, at, end).is_none()
        };
        let last = end
            .plus_secs(-i64::from(span.least_secs))
            .min(span.until.plus_millis(-1));
        if last < span.from || !has_room(last) {
            return None;
        }
        let (mut early, mut late) = (span.from, last);
        while early < late {
            let middle = early.plus_millis(late.since_millis(early) / 2);
            match has_room(middle) {
                true => late = middle,
                false => early = middle.plus_millis(1),
            }
        }
        Some(late)
    }
}

/// Whole seconds from one time to another: one at least.
fn left_secs(from: Timestamp, to: Timestamp) -> u32 {
    u32::try_from(to.since_millis(from) / 1000)
        .unwrap_or(0)
        .max(1)
}

impl Reserved {
    fn new(reservation: &Reservation, snapshot: &Snapshot) -> Self {
        let partition = reservation
            .partition
            .as_deref()
            .and_then(|name| snapshot.config.partition(name));
        let mut nodes = FixedBitSet::with_capacity(snapshot.nodes.len());
        let mut left = match reservation.what {
            ReservedPart::NodeCount(count) => count as usize,
            _ => usize::MAX,
        };
        for (at, node) in snapshot.nodes.iter().enumerate() {
            let in_partition = partition
                .is_none_or(|partition| partition.holds(&node.name, &node.features))
                && suits(reservation, &node.features);
            let covers = match &reservation.what {
                ReservedPart::AllNodes | ReservedPart::NodeCount(_) => in_partition,
                ReservedPart::Nodes(list) => list.contains(&node.name),
                ReservedPart::Gpus(_) => false,
            };
            if covers && left > 0 {
                left -= 1;
                nodes.insert(at);
            }
        }
        Self {
            reservation: reservation.clone(),
            nodes,
            magnet: None,
        }
    }

    /// Whether a job may use it.
    pub fn admits(&self, job: &PendingJob, policy: &Policy) -> bool {
        policy.is_reserved_for(&self.reservation, &job.spec.user.name, &job.spec.account)
    }
}

/// The first window that ends after a time, of those that are not skipped.
pub fn next(reservation: &Reservation, after: Timestamp) -> Option<Window> {
    let after = reservation
        .skip_until
        .map_or(after, |skipped| after.max(skipped));
    let millis = i64::from(reservation.duration_secs) * 1000;
    let window = |start: Timestamp| (start, start.plus_millis(millis));
    if millis == 0 {
        return None;
    }
    let Some(period) = reservation
        .repeat
        .every_secs()
        .map(|secs| i64::from(secs) * 1000)
    else {
        return Some(window(reservation.start)).filter(|window| window.1 > after);
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
    // The same time on a clock of the place: days there have 23 to 25 hours.
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

/// What is said of a job in the present window of its reservation for which no start is known.
pub fn no_start_text(job: &PendingJob, policy: &Policy, now: Timestamp) -> Option<String> {
    let own = policy
        .reservations
        .get(asked(&job.spec)?)
        .filter(|own| !own.flex)?;
    let window = next(own, now).filter(|window| {
        window.0 <= now && now.plus_secs(i64::from(job.least_secs())) <= window.1
    })?;
    let is_for_it = policy.is_reserved_for(own, &job.spec.user.name, &job.spec.account);
    is_for_it.then(|| match own.repeat {
        Repeat::Once => format!("by what is known it does not start before reservation {:?} ends at {}", own.name, window.1),
        _ => format!("by what is known it does not start in this window of reservation {:?}, nor in those after it", own.name),
    })
}

/// The first window of a reservation that ends after a time and meets one of another, with the other's.
pub fn first_meeting(
    one: &Reservation,
    other: &Reservation,
    after: Timestamp,
) -> Option<(Window, Window)> {
    let (mut own, mut theirs) = (next(one, after)?, next(other, after)?);
    for _ in 0..MOST_MEETINGS {
        if own.0 < theirs.1 && theirs.0 < own.1 {
            return Some((own, theirs));
        }
        match own.1 <= theirs.1 {
            true => own = next(one, own.1)?,
            false => theirs = next(other, theirs.1)?,
        }
    }
    None
}

/// Whether a window may begin on that day, of milliseconds on a clock. The epoch was a Thursday.
fn comes_on(repeat: Repeat, local_millis: i64) -> bool {
    let is_weekday = (1..=5).contains(&(local_millis.div_euclid(86_400_000) + 4).rem_euclid(7));
    match repeat {
        Repeat::Weekday => is_weekday,
        Repeat::Weekend => !is_weekday,
        Repeat::Once | Repeat::Hourly | Repeat::Daily | Repeat::Weekly => true,
    }
}

/// Whether a node has the features that a reservation chooses among. An expression that cannot be read suits none.
pub fn suits(reservation: &Reservation, features: &[String]) -> bool {
    let wanted = || Constraint::parse(&reservation.features);
    reservation.features.is_empty()
        || wanted().is_ok_and(|wanted| wanted.eval(&features.iter().map(String::as_str).collect()))
}

/// Which reservation a job asks for, by name.
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
        next(reservation, Timestamp::from_secs(secs)).map(|(from, to)| (from.secs(), to.secs()))
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
                    .map(|(own, theirs)| (own.0.secs(), theirs.0.secs()))
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

    #[test]
    fn nodes_suit_by_their_features() {
        let node = ["a100".to_owned(), "nvlink".to_owned()];
        let of = |features: &str| {
            suits(
                &Reservation {
                    features: features.to_owned(),
                    ..Reservation::default()
                },
                &node,
            )
        };
        assert!(of("") && of("a100&nvlink") && of("h100|a100"));
        assert!(!of("h100") && !of("a100&"), "nor by what cannot be read");
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
            after = window.1;
            Some(window.0.to_string())
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

    fn span(from: i64, secs: u32) -> Span {
        Span {
            from: Timestamp::from_secs(from),
            until: Timestamp(i64::MAX),
            secs,
            beyond_secs: 0,
            least_secs: 60,
        }
    }

    /// Of a window from 100 to 400 of two that are there.
    #[test]
    fn in_its_own_window_a_job_gets_what_is_left_of_it() {
        let mut nodes = FixedBitSet::with_capacity(1);
        nodes.insert(0);
        let reserved = |one: Reservation| Reserved {
            reservation: one,
            nodes: nodes.clone(),
            magnet: None,
        };
        let other = Reservation {
            maintenance: true,
            ..reservation(1000, 50, Repeat::Once)
        };
        let windows = Windows {
            list: vec![
                reserved(reservation(100, 300, Repeat::Hourly)),
                reserved(other),
            ],
            covered: nodes.clone(),
        };
        // The node is taken until then.
        let first = |from: i64, secs: u32, taken_until: i64| {
            let free = |from: Timestamp, _: u32, until: Timestamp| {
                Some(from.max(Timestamp::from_secs(taken_until))).filter(|at| *at < until)
            };
            windows
                .first_beside(0, Claim::Own(0), span(from, secs), free)
                .map(Timestamp::secs)
        };
        assert_eq!([first(0, 200, 0), first(0, 900, 0)], [Some(100); 2]);
        assert_eq!(
            [first(0, 200, 200), first(0, 200, 250), first(0, 900, 250)],
            [Some(200), Some(250), Some(250)]
        );
        assert_eq!(
            [first(0, 200, 340), first(0, 200, 341), first(0, 30, 360)],
            [Some(340), Some(3700), Some(360)]
        );
        let secs =
            |at: i64, secs: u32| windows.secs_from(Claim::Own(0), Timestamp::from_secs(at), secs);
        assert_eq!(
            [
                secs(100, 200),
                secs(250, 200),
                secs(250, 100),
                secs(50, 900)
            ],
            [200, 150, 100, 900]
        );
        assert_eq!(
            windows.secs_from(Claim::None, Timestamp::from_secs(250), 200),
            200
        );
    }

    #[test]
    fn an_hour_between_two_windows_is_found() {
        let mut nodes = FixedBitSet::with_capacity(1);
        nodes.insert(0);
        let daily = Reserved {
            reservation: reservation(7200, 75_600, Repeat::Daily),
            nodes: nodes.clone(),
            magnet: None,
        };
        let windows = Windows {
            list: vec![daily],
            covered: nodes,
        };
        let first = |from: i64, secs: u32| {
            windows
                .first_beside(0, Claim::None, span(from, secs), |from, _, _| Some(from))
                .map(Timestamp::secs)
        };
        assert_eq!(first(0, 7200), Some(0));
        assert_eq!(first(1, 7200), Some(82_800));
        assert_eq!(first(0, 10_801), None, "the gap of three hours never comes");
        let inside = windows.first_beside(0, Claim::Own(0), span(0, 3600), |from, _, _| Some(from));
        assert_eq!(inside.map(Timestamp::secs), Some(7200));
    }
}
