//! The nodes that reservations cover, the jobs they admit there, and when a node is free of other reservations' windows.

use crate::pending_job::PendingJob;
use crate::sched_node::SchedNode;
use crate::window::{Window, asked, next};
use fixedbitset::FixedBitSet;
use gmodel::config::ClusterConfig;
use gmodel::constraint::Constraint;
use gmodel::policy::{Reservation, ReservedPart};
use gmodel::{JobSpec, Policy, Timestamp};
use std::ops::Range;

/// How many windows are tried in a row before a job is said to fit in none.
const MOST_WINDOWS: usize = 64;

/// The most reservations that draw jobs.
pub const MOST_MAGNETIC: usize = 64;

/// A search for room on one node: from a time, before another, for so many seconds.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    pub from: Timestamp,
    pub until: Timestamp,
    pub secs: u32,
    /// No other reservation begins for so many seconds more than the room lasts.
    pub beyond_secs: i64,
    /// The least that is left of the window of the job's own reservation.
    pub least_secs: u32,
}

/// Which reservations a job may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Claim {
    #[default]
    None,
    /// The reservation that the job names, by number, and no other node.
    Own(usize),
    /// Also nodes of the reservations that draw the job: a bit for each, by [`ReservedNodes::magnet`].
    Drawn(u64),
}

/// The reservations of a policy, by number.
#[derive(Clone, Debug, Default)]
pub struct Windows {
    pub list: Vec<ReservedNodes>,
    /// Nodes that any reservation covers.
    covered: FixedBitSet,
}

#[derive(Clone, Debug)]
pub struct ReservedNodes {
    pub reservation: Reservation,
    /// Nodes it covers whole; empty for one that counts GPUs.
    pub nodes: FixedBitSet,
    /// Its number among the reservations that draw jobs.
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
    pub fn new(config: &ClusterConfig, policy: &Policy, nodes: &[SchedNode]) -> Self {
        let mut list: Vec<ReservedNodes> = policy
            .reservations
            .values()
            .map(|one| ReservedNodes::new(one, config, nodes))
            .collect();
        let magnets = list
            .iter_mut()
            .filter(|one| one.reservation.draws())
            .take(MOST_MAGNETIC);
        (0..)
            .zip(magnets)
            .for_each(|(number, one)| one.magnet = Some(number));
        let mut covered = FixedBitSet::with_capacity(nodes.len());
        list.iter().for_each(|one| covered.union_with(&one.nodes));
        Self { list, covered }
    }

    pub fn find(&self, name: &str) -> Option<usize> {
        self.list
            .iter()
            .position(|one| one.reservation.name == name)
    }

    /// The reservation that a job names, if there is one; otherwise all that draw it.
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

    /// Whether a reservation keeps jobs with a claim off its nodes. Maintenance outranks all other reservations; OVERLAP
    /// outranks the rest.
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

    /// The first window of a reservation closed to the claim that overlaps a time on a node.
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
            .filter(|(_, window)| window.from < to)
            .min_by_key(|(_, window)| *window)
    }

    /// The beginnings and ends of the windows that keep jobs with a claim off their nodes, within a time.
    pub fn edges_of_others(&self, claim: Claim, Window { from, to }: Window) -> Vec<Timestamp> {
        let others = (0..self.list.len())
            .filter(|at| !self.list[*at].nodes.is_clear() && self.bars(*at, claim));
        let windows = others.flat_map(|at| self.of(at, from).take_while(|window| window.from < to));
        windows
            .flat_map(|window| [window.from, window.to])
            .filter(|at| from < *at && *at < to)
            .collect()
    }

    /// Whether any window decides when a job may be on a node.
    #[inline]
    pub fn concern(&self, node: usize, claim: Claim) -> bool {
        claim.own().is_some() || (!self.list.is_empty() && self.covered.contains(node))
    }

    /// Whether any window decides when a job may be on any node.
    pub fn concern_some(&self, claim: Claim) -> bool {
        claim.own().is_some() || !self.list.is_empty()
    }

    /// Whether any window decides when a job may be on one of some nodes.
    pub fn concern_any(&self, nodes: Range<usize>, claim: Claim) -> bool {
        claim.own().is_some()
            || (!self.list.is_empty() && self.covered.contains_any_in_range(nodes))
    }

    /// Whether a job may be on a node for a time: within its own reservation, and with no other window until `beyond_secs`
    /// after it.
    #[inline]
    pub fn open(
        &self,
        node: usize,
        claim: Claim,
        Window { from, to }: Window,
        beyond_secs: i64,
    ) -> bool {
        if !self.concern(node, claim) {
            return true;
        }
        let mut until = to.plus_secs(beyond_secs);
        if let Some(own) = self.held_to(claim) {
            match next(own, from) {
                Some(window) if window.from <= from && to <= window.to => {
                    until = until.min(window.to)
                }
                _ => return false,
            }
        }
        self.blocking(node, claim, from, until).is_none()
    }

    /// The reservation that jobs with a claim run in exclusively.
    fn held_to(&self, claim: Claim) -> Option<&Reservation> {
        Some(&self.list[claim.own()?].reservation).filter(|own| !own.flex)
    }

    /// How many of `secs` seconds a job has that starts at a time: in its reservation it ends with the window.
    pub fn secs_from(&self, claim: Claim, at: Timestamp, secs: u32) -> u32 {
        let window = self
            .held_to(claim)
            .and_then(|own| next(own, at))
            .filter(|window| window.from <= at);
        window.map_or(secs, |window| secs.min(left_secs(at, window.to)))
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
            Window {
                from,
                to: from.plus_secs(i64::from(secs)),
            },
            beyond_secs,
        )
    }

    /// The windows of a reservation that end after a time, in order, as many as are worth trying.
    pub fn of(&self, own: usize, from: Timestamp) -> impl Iterator<Item = Window> + '_ {
        let reservation = &self.list[own].reservation;
        let mut from = from;
        (0..MOST_WINDOWS).map_while(move |_| {
            let window = next(reservation, from)?;
            from = window.to;
            Some(window)
        })
    }

    /// The first time at which `first` finds room on a node outside other reservations' windows. `first` takes the earliest
    /// start, the seconds of room and the end of the search.
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
            return self.first_between(node, claim, span, Timestamp(i64::MAX), &first);
        };
        self.of(own, span.from)
            .take_while(|window| window.from < span.until)
            .find_map(|window| {
                let from = span.from.max(window.from);
                // With all its seconds; else until the window ends.
                let last = window.to.plus_secs(-i64::from(span.secs));
                let whole = Span {
                    from,
                    until: span.until.min(last.plus_millis(1)),
                    ..span
                };
                let cut = Span {
                    from: from.max(last.plus_millis(1)),
                    ..span
                };
                let found = self.first_between(node, claim, whole, window.to, &first);
                found.or_else(|| self.first_cut(node, claim, cut, window.to, &first))
            })
    }

    /// The same outside other reservations' windows, for a job that ends at `end` at the latest.
    fn first_between(
        &self,
        node: usize,
        claim: Claim,
        span: Span,
        end: Timestamp,
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
                Some((_, window)) => from = window.to,
                None => return Some(start),
            }
        }
        None
    }

    /// The first start with room until the window ends. Room at one moment means room at all later ones.
    fn first_cut(
        &self,
        node: usize,
        claim: Claim,
        span: Span,
        end: Timestamp,
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

/// Whole seconds between two times, at least one.
fn left_secs(from: Timestamp, to: Timestamp) -> u32 {
    u32::try_from(to.since_millis(from) / 1000)
        .unwrap_or(0)
        .max(1)
}

impl ReservedNodes {
    fn new(reservation: &Reservation, config: &ClusterConfig, all: &[SchedNode]) -> Self {
        let partition = reservation
            .partition
            .as_deref()
            .and_then(|name| config.partition(name));
        let mut nodes = FixedBitSet::with_capacity(all.len());
        let mut left = match reservation.what {
            ReservedPart::NodeCount(count) => count as usize,
            _ => usize::MAX,
        };
        for (at, node) in all.iter().enumerate() {
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

    /// Whether a job may use the reservation.
    pub fn admits(&self, job: &PendingJob, policy: &Policy) -> bool {
        policy.is_reserved_for(&self.reservation, &job.spec.user.name, &job.spec.account)
    }
}

/// Whether a node has the features of a reservation. An expression that cannot be read suits no node.
pub fn suits(reservation: &Reservation, features: &[String]) -> bool {
    let wanted = || Constraint::parse(&reservation.features);
    reservation.features.is_empty()
        || wanted().is_ok_and(|wanted| wanted.eval(&features.iter().map(String::as_str).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gmodel::policy::Repeat;

    fn reservation(start: i64, duration_secs: u32, repeat: Repeat) -> Reservation {
        Reservation {
            start: Timestamp::from_secs(start),
            duration_secs,
            repeat,
            ..Reservation::default()
        }
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

    fn span(from: i64, secs: u32) -> Span {
        Span {
            from: Timestamp::from_secs(from),
            until: Timestamp(i64::MAX),
            secs,
            beyond_secs: 0,
            least_secs: 60,
        }
    }

    /// The window from 100 to 400 is the first of two.
    #[test]
    fn in_its_own_window_a_job_gets_what_is_left_of_it() {
        let mut nodes = FixedBitSet::with_capacity(1);
        nodes.insert(0);
        let reserved = |one: Reservation| ReservedNodes {
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
        // The node is busy until `taken_until`.
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
        let daily = ReservedNodes {
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
