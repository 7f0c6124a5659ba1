//! What is free of one node over time, as a step function; and how much of a counted thing is.
//!
//! Whole GPUs are counted by kind, not by slot: jobs keep their slots from start to end, so a count that is never
//! exceeded can always be dealt out (interval graphs are perfect). Knows nothing of jobs.

use gmodel::Timestamp;

/// Kinds of GPUs that are told apart on one node; further kinds of such a node are not offered.
pub const GROUPS: usize = 16;
/// Some of them, a bit each.
pub type Kinds = u16;

/// Countable resources of one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Amount {
    pub cpus: u32,
    pub mem_bytes: u64,
    /// Whole GPUs by kind.
    pub gpus: [u8; GROUPS],
}

/// What a job needs of a node of a given class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Need {
    pub cpus: u32,
    pub mem_bytes: u64,
    /// Whole GPUs.
    pub gpus: u8,
    /// Kinds that will do, a bit each.
    pub groups: Kinds,
    /// Thousandths of one GPU instead of whole ones; 0: none.
    pub milli: u16,
    /// Of a share that MPS is to hold: its user.
    pub tenant: Option<u32>,
    /// All its GPUs of one kind: within one NVLink island.
    pub one_group: bool,
    /// Nothing else on the node; `cpus` is all it has.
    pub exclusive: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    pub at: Timestamp,
    pub free: Amount,
}

/// Free amounts of a node; each step holds until the next, the last for ever. Never empty.
#[derive(Debug, PartialEq, Eq)]
pub struct Profile(Vec<Step>);

/// FNV-1a over words.
#[derive(Clone, Copy, Debug)]
pub struct Print(pub u64);

impl Amount {
    pub fn add(&mut self, other: &Self) {
        self.cpus = self.cpus.saturating_add(other.cpus);
        self.mem_bytes = self.mem_bytes.saturating_add(other.mem_bytes);
        for (mine, theirs) in self.gpus.iter_mut().zip(other.gpus) {
            *mine = mine.saturating_add(theirs);
        }
    }
    pub fn take(&mut self, other: &Self) {
        self.cpus = self.cpus.saturating_sub(other.cpus);
        self.mem_bytes = self.mem_bytes.saturating_sub(other.mem_bytes);
        for (mine, theirs) in self.gpus.iter_mut().zip(other.gpus) {
            *mine = mine.saturating_sub(theirs);
        }
    }
    /// Whether all of another is in it.
    pub fn holds(&self, other: &Self) -> bool {
        let gpus = self
            .gpus
            .iter()
            .zip(other.gpus)
            .all(|(mine, theirs)| *mine >= theirs);
        self.cpus >= other.cpus && self.mem_bytes >= other.mem_bytes && gpus
    }
    /// Whole GPUs of these kinds.
    pub fn gpus_in(&self, groups: Kinds) -> u32 {
        self.gpus
            .iter()
            .enumerate()
            .filter(|(at, _)| groups & (1 << at) != 0)
            .map(|(_, n)| u32::from(*n))
            .sum()
    }
    pub fn all_gpus(&self) -> u32 {
        self.gpus_in(Kinds::MAX)
    }
    fn least(&mut self, other: &Self) {
        self.cpus = self.cpus.min(other.cpus);
        self.mem_bytes = self.mem_bytes.min(other.mem_bytes);
        for (mine, theirs) in self.gpus.iter_mut().zip(other.gpus) {
            *mine = (*mine).min(theirs);
        }
    }
}

impl Need {
    /// Whether an amount that is free all the time serves it. A share is asked of a whole GPU here.
    #[inline]
    pub fn fits(&self, free: &Amount) -> bool {
        if self.cpus > free.cpus || self.mem_bytes > free.mem_bytes {
            return false;
        }
        let wanted = self.whole();
        if wanted == 0 {
            return true;
        }
        if self.groups.is_power_of_two() {
            return free.gpus[self.groups.trailing_zeros() as usize] >= wanted;
        }
        if self.one_group {
            return free
                .gpus
                .iter()
                .enumerate()
                .any(|(at, n)| self.groups & (1 << at) != 0 && *n >= wanted);
        }
        free.gpus_in(self.groups) >= u32::from(wanted)
    }
    /// CPUs and memory alone.
    #[inline]
    pub fn fits_beside_gpus(&self, free: &Amount) -> bool {
        self.cpus <= free.cpus && self.mem_bytes <= free.mem_bytes
    }
    /// GPUs it needs whole; a share opens one when none is shared yet.
    pub fn whole(&self) -> u8 {
        if self.milli > 0 { 1 } else { self.gpus }
    }
    /// One kind of GPU is looked at: then what is free all the time is what is free at each time.
    fn is_simple(&self) -> bool {
        self.whole() == 0 || self.groups.is_power_of_two()
    }
    /// CPUs, memory and GPUs as they are taken out of `free`: several GPUs from one kind where one has enough, the one with the
    /// fewest; else from the first kinds that have some.
    pub fn amount_from(&self, free: &Amount) -> Option<Amount> {
        let mut amount = Amount {
            cpus: self.cpus,
            mem_bytes: self.mem_bytes,
            gpus: [0; GROUPS],
        };
        if self.whole() > 1 && !self.is_simple() {
            let enough = (0..GROUPS)
                .filter(|at| self.groups & (1 << at) != 0 && free.gpus[*at] >= self.whole());
            if let Some(at) = enough.min_by_key(|at| free.gpus[*at]) {
                amount.gpus[at] = self.whole();
                return self.fits_beside_gpus(free).then_some(amount);
            }
        }
        let mut left = self.whole();
        for at in (0..GROUPS).filter(|at| self.groups & (1 << at) != 0) {
            if self.one_group && free.gpus[at] < self.whole() {
                continue;
            }
            let here = left.min(free.gpus[at]);
            amount.gpus[at] = here;
            left -= here;
        }
        (left == 0 && self.fits_beside_gpus(free)).then_some(amount)
    }
}

impl Clone for Profile {
    /// With a place for the two steps of what is taken next: that is what copies are made for.
    fn clone(&self) -> Self {
        let mut steps = Vec::with_capacity(self.0.len() + 2);
        steps.extend_from_slice(&self.0);
        Self(steps)
    }

    fn clone_from(&mut self, source: &Self) {
        self.0.clear();
        self.0.reserve(source.0.len() + 2);
        self.0.extend_from_slice(&source.0);
    }
}

impl Default for Profile {
    /// Nothing, ever.
    fn default() -> Self {
        Self(vec![Step {
            at: Timestamp::default(),
            free: Amount::default(),
        }])
    }
}

impl Print {
    pub fn of(word: u64) -> Self {
        let mut print = Self(0xcbf2_9ce4_8422_2325);
        print.add(word);
        print
    }
    pub fn add(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0x0100_0000_01b3);
    }
}

impl Profile {
    /// `free` now, and what comes back later. `ends` is sorted by time; those that are past come back a second from
    /// now: they are late, and may not be counted on at once.
    pub fn new(now: Timestamp, free: Amount, ends: &[(Timestamp, Amount)], all: &Amount) -> Self {
        let mut steps = Vec::with_capacity(ends.len() + 4);
        steps.push(Step { at: now, free });
        let mut free = free;
        for (at, amount) in ends {
            let at = (*at).max(now.plus_secs(1));
            free.add(amount);
            free.least(all);
            match steps.last_mut() {
                Some(last) if last.at == at => last.free = free,
                _ => steps.push(Step { at, free }),
            }
        }
        Self(steps)
    }

    pub fn steps(&self) -> &[Step] {
        &self.0
    }
    /// Whether the same is free at all times from now on, whenever "now" was: the first step holds for what is before it.
    pub fn is_as(&self, other: &Self) -> bool {
        self.0.len() == other.0.len()
            && self.0[0].free == other.0[0].free
            && self.0[1..] == other.0[1..]
    }
    pub fn print(&self, print: &mut Print) {
        for (at, step) in self.0.iter().enumerate() {
            print.add(if at == 0 { 0 } else { step.at.0 as u64 });
            print.add(u64::from(step.free.cpus) ^ step.free.mem_bytes.rotate_left(24));
            let gpus = u128::from_le_bytes(step.free.gpus);
            print.add(gpus as u64);
            print.add((gpus >> 64) as u64);
        }
    }

    /// The step that holds at a time; the first for all that is before it.
    fn at(&self, time: Timestamp) -> usize {
        // Mostly the first few: a job that starts now is looked at far more often than one of next week.
        match self.0.get(1) {
            Some(second) if second.at > time => 0,
            None => 0,
            _ => self
                .0
                .partition_point(|step| step.at <= time)
                .saturating_sub(1),
        }
    }
    pub fn free_at(&self, time: Timestamp) -> &Amount {
        &self.0[self.at(time)].free
    }

    /// What is free all the time from `from` until just before `to`.
    pub fn least(&self, from: Timestamp, to: Timestamp) -> Amount {
        let first = self.at(from);
        let mut least = self.0[first].free;
        for step in self.0[first + 1..].iter().take_while(|step| step.at < to) {
            least.least(&step.free);
        }
        least
    }

    #[inline]
    pub fn fits(&self, need: &Need, from: Timestamp, to: Timestamp) -> bool {
        if need.is_simple() {
            let first = self.at(from);
            return need.fits(&self.0[first].free)
                && self.0[first + 1..]
                    .iter()
                    .take_while(|step| step.at < to)
                    .all(|step| need.fits(&step.free));
        }
        need.fits(&self.least(from, to))
    }

    /// The first time from `from` on, and before `until`, at which the need is met for `secs`.
    pub fn first(
        &self,
        need: &Need,
        from: Timestamp,
        secs: u32,
        until: Timestamp,
    ) -> Option<Timestamp> {
        let mut at = self.at(from);
        let mut start = from;
        if !need.is_simple() {
            loop {
                if need.fits(&self.least(start, start.plus_secs(i64::from(secs)))) {
                    return Some(start);
                }
                at += 1;
                start = self.0.get(at)?.at;
                if start >= until {
                    return None;
                }
            }
        }
        loop {
            let step = &self.0[at];
            let next = self.0.get(at + 1);
            if need.fits(&step.free) {
                match next {
                    Some(next) if next.at < start.plus_secs(i64::from(secs)) => {}
                    _ => return Some(start),
                }
                at += 1;
            } else {
                at += 1;
                start = next?.at;
                if start >= until {
                    return None;
                }
            }
        }
    }

    /// How long the need is met without a gap from `from` on; `None`: for ever.
    pub fn until(&self, need: &Need, from: Timestamp) -> Option<Timestamp> {
        let first = self.at(from);
        let mut least = self.0[first].free;
        for (at, step) in self.0[first..].iter().enumerate() {
            least.least(&step.free);
            if !need.fits(&least) {
                return Some(if at == 0 { from } else { step.at });
            }
        }
        None
    }

    pub fn take(&mut self, from: Timestamp, to: Timestamp, amount: &Amount) {
        self.change(from, to, |free| free.take(amount));
    }
    pub fn give(&mut self, from: Timestamp, to: Timestamp, amount: &Amount) {
        self.change(from, to, |free| free.add(amount));
    }

    fn change(&mut self, from: Timestamp, to: Timestamp, change: impl Fn(&mut Amount)) {
        if to <= from {
            return;
        }
        let first = self.cut(from);
        let last = self.cut(to);
        for step in &mut self.0[first..last] {
            change(&mut step.free);
        }
    }

    /// Makes a step begin at a time; its place. Nothing is known of times before the first step: they are it.
    fn cut(&mut self, time: Timestamp) -> usize {
        let at = self.at(time);
        let step = self.0[at];
        if step.at >= time {
            return at;
        }
        self.0.insert(
            at + 1,
            Step {
                at: time,
                free: step.free,
            },
        );
        at + 1
    }
}

/// How much of one counted thing (a licence, what is left of a shared GPU) is free over time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Count(Vec<(Timestamp, u32)>);

impl Count {
    pub fn new(now: Timestamp, free: u32) -> Self {
        Self(vec![(now, free)])
    }
    /// When it changes.
    pub fn times(&self) -> impl Iterator<Item = Timestamp> + '_ {
        self.0.iter().map(|(at, _)| *at)
    }
    fn cut(&mut self, time: Timestamp) -> usize {
        let after = self.0.partition_point(|(at, _)| *at <= time);
        let Some(before) = after.checked_sub(1) else {
            return 0;
        };
        if self.0[before].0 == time {
            return before;
        }
        self.0.insert(after, (time, self.0[before].1));
        after
    }
    pub fn take(&mut self, from: Timestamp, to: Timestamp, count: u32) {
        if to > from {
            let (first, last) = (self.cut(from), self.cut(to));
            self.0[first..last]
                .iter_mut()
                .for_each(|(_, free)| *free = free.saturating_sub(count));
        }
    }
    pub fn give(&mut self, from: Timestamp, to: Timestamp, count: u32) {
        if to > from {
            let (first, last) = (self.cut(from), self.cut(to));
            self.0[first..last]
                .iter_mut()
                .for_each(|(_, free)| *free = free.saturating_add(count));
        }
    }
    /// The least that is free in a time.
    pub fn least(&self, from: Timestamp, to: Timestamp) -> u32 {
        let first = self
            .0
            .partition_point(|(at, _)| *at <= from)
            .saturating_sub(1);
        let within = self.0[first..]
            .iter()
            .enumerate()
            .take_while(|(at, (time, _))| *at == 0 || *time < to);
        within.map(|(_, (_, free))| *free).min().unwrap_or(0)
    }
    /// The first time from `from` on at which so much is free until an end.
    pub fn first(
        &self,
        count: u32,
        from: Timestamp,
        end: impl Fn(Timestamp) -> Timestamp,
    ) -> Option<Timestamp> {
        let later = self.0.iter().map(|(at, _)| *at).filter(|at| *at > from);
        std::iter::once(from)
            .chain(later)
            .find(|at| self.least(*at, end(*at)) >= count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn secs(at: i64) -> Timestamp {
        Timestamp::from_secs(at)
    }
    fn gpus(count: u8) -> Amount {
        Amount {
            cpus: u32::from(count),
            mem_bytes: 0,
            gpus: std::array::from_fn(|at| if at == 0 { count } else { 0 }),
        }
    }
    fn need(gpus: u8) -> Need {
        Need {
            cpus: 1,
            mem_bytes: 0,
            gpus,
            groups: 1,
            milli: 0,
            tenant: None,
            one_group: false,
            exclusive: false,
        }
    }

    proptest! {
        /// Against an array of seconds.
        #[test]
        fn a_profile_is_a_function_of_time(
            takes in prop::collection::vec((0i64..50, 1i64..20, 0u8..4), 0..12),
            ask in 1u8..8, length in 1u32..30, from in 0i64..40,
        ) {
            let mut profile = Profile::new(secs(0), gpus(20), &[], &gpus(20));
            let mut seconds = vec![20i64; 200];
            for (at, length, count) in takes {
                profile.take(secs(at), secs(at + length), &gpus(count));
                (at..at + length).for_each(|at| seconds[at as usize] = (seconds[at as usize] - i64::from(count)).max(0));
            }
            for (at, free) in seconds.iter().enumerate() {
                prop_assert_eq!(i64::from(profile.free_at(secs(at as i64)).gpus[0]), *free);
            }
            let fits = |at: i64| (at..at + i64::from(length)).all(|at| seconds[at as usize] >= i64::from(ask));
            let slow = (from..150).find(|at| fits(*at));
            let fast = profile.first(&need(ask), secs(from), length, secs(1000));
            prop_assert_eq!(fast, slow.map(secs));
            prop_assert_eq!(profile.fits(&need(ask), secs(from), secs(from + i64::from(length))), fits(from));
            let lasts = (from..200).find(|at| seconds[*at as usize] < i64::from(ask));
            prop_assert_eq!(profile.until(&need(ask), secs(from)), lasts.map(secs));
            let two = Need { groups: 3, ..need(ask) };
            prop_assert_eq!(profile.first(&two, secs(from), length, secs(1000)), fast, "two kinds, one of them none");
        }
    }

    #[test]
    fn what_is_given_back_is_as_before() {
        let mut profile = Profile::new(secs(0), gpus(4), &[(secs(10), gpus(4))], &gpus(8));
        let before = profile.clone();
        profile.take(secs(5), secs(15), &gpus(3));
        assert_eq!(profile.free_at(secs(12)).gpus[0], 5);
        profile.give(secs(5), secs(15), &gpus(3));
        for at in 0..20 {
            assert_eq!(profile.free_at(secs(at)), before.free_at(secs(at)));
        }
    }

    #[test]
    fn a_run_that_is_late_is_expected_in_a_second() {
        let profile = Profile::new(
            secs(100),
            gpus(0),
            &[(secs(90), gpus(1)), (secs(100), gpus(1))],
            &gpus(8),
        );
        assert_eq!(
            profile.first(&need(1), secs(100), 5, secs(1000)),
            Some(secs(101))
        );
    }

    #[test]
    fn licences_come_and_go() {
        let mut count = Count::new(secs(0), 3);
        count.take(secs(0), secs(10), 2);
        count.take(secs(20), secs(30), 3);
        assert_eq!(
            count.first(2, secs(0), |at| at.plus_secs(10)),
            Some(secs(10))
        );
        assert_eq!(
            count.first(2, secs(0), |at| at.plus_secs(11)),
            Some(secs(30))
        );
        assert_eq!(count.least(secs(5), secs(21)), 0);
    }
}
