//! Intervals for starts, made from how earlier forecasts turned out, and the record of how often they were right.
//!
//! Conformal correction (Vovk; Lei and others 2018) over the past forecasts of the partition that were most like the one
//! at hand, each with its wait over the square root of that by limits; of jobs that have waited for hours, as long as such
//! jobs still waited. Who is cancelled or waits now is counted as long as that lasted, as Kaplan and Meier (1958) do, so that
//! neither bends the result. The narrowest interval of the level is said, and the level is corrected by its own
//! successes (Gibbs and Candès 2021). Integers and bounds; no clock.

use gmodel::{JobId, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// What an interval is to hold, thousandths.
pub const NOMINAL_MILLI: u32 = 900;
/// A job is forecast when it is submitted and again when it has waited so long, seconds: the longer it has, the more is
/// known of it.
pub const AGES_SECS: [i64; 4] = [0, 600, 4 * 3600, 16 * 3600];
/// Outcomes remembered of each partition and age.
const OUTCOMES_KEPT: usize = 512;
/// Those most like a forecast that it is measured by.
const NEIGHBOURS: usize = 176;
/// From this of `AGES_SECS` on, plans say less of a job than how long others of its age went on waiting: it was passed over
/// for a reason that they do not know. Who still waits says nothing there: it is of the same jam.
const PASSED_OVER: usize = 2;
/// Ways in which the part that may be missed is split between too early and too late, from none too early to as many.
const SPLITS: i64 = 4;
/// Fewer outcomes say nothing: those of all partitions are asked.
const FEWEST: usize = 30;
/// Jobs of one partition and age that are learned from when many are forecast at once: they share their fate.
const SAMPLED: usize = 8;
/// So many of them say as much as one that has nothing to do with the others.
const SHARE_A_FATE: i64 = 4;
/// Jobs that are watched at once.
const MOST_OPEN: usize = 8192;
/// Added to waits before they are compared, seconds: from 2 to 4 is not twice as long for who waits.
const BLUR_SECS: i64 = 60;
/// How fast the level follows its successes at each age, thousandths of what an outcome was off it: there are few old jobs,
/// of few jams.
const PACE_MILLI: [i64; AGES_SECS.len()] = [3, 3, 10, 10];

/// An interval for a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interval {
    pub earliest: Timestamp,
    pub latest: Timestamp,
}

/// When a job starts by two plans of the same queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plans {
    /// If everything takes as long as its like did of late.
    pub expected: Timestamp,
    /// If everything takes as long as it may. The scheduler lets nobody go ahead who may be in the way, so this says more of
    /// a wait than the other where limits are loose.
    pub at_limits: Timestamp,
}

/// What was said of a job at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Said {
    /// Which of `AGES_SECS` the job had reached.
    pub age: u8,
    pub at: Timestamp,
    pub plans: Plans,
    /// `None`: too little was known.
    pub interval: Option<Interval>,
}

/// A forecast and what came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    pub job: JobId,
    pub partition: String,
    pub said: Said,
    /// It stands for those that were forecast with it.
    pub sampled: bool,
    /// When it started, or was cancelled.
    pub ended: Timestamp,
    pub started: bool,
}

/// How intervals turned out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Intervals whose job has started.
    pub intervals: u64,
    /// Of these, those that held the start.
    pub right: u64,
    /// Of the last ones, seconds.
    pub median_width_secs: Option<i64>,
}

/// A forecast whose job still waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Open {
    pub job: JobId,
    pub partition: String,
    pub said: Said,
    /// It stands for those that were forecast with it.
    pub sampled: bool,
}

/// Past forecasts by partition.
#[derive(Clone, Debug)]
pub struct Calibration {
    /// What its intervals are to hold, thousandths.
    level_milli: u32,
    by_partition: BTreeMap<String, [Ages; AGES_SECS.len()]>,
    all: [Ages; AGES_SECS.len()],
    /// Of each job the youngest age first.
    open: BTreeMap<JobId, Vec<Open>>,
}

/// Of one partition and age.
#[derive(Clone, Debug, Default)]
struct Ages {
    past: VecDeque<Past>,
    /// Moves the part that may be missed away from the nominal, millionths.
    shift_ppm: i64,
    intervals: u64,
    right: u64,
    /// Widths of the last intervals, seconds.
    widths: VecDeque<i64>,
}

/// Waits by both plans, from when they were made.
#[derive(Clone, Copy, Debug)]
struct Foretold {
    expected_secs: i64,
    at_limits_secs: i64,
}

impl Foretold {
    /// Square root of the wait by limits, thousandths of that of a second.
    fn root_milli(self) -> i64 {
        (self.at_limits_secs + BLUR_SECS).saturating_mul(1_000_000).isqrt()
    }
}

#[derive(Clone, Copy, Debug)]
struct Past {
    foretold: Foretold,
    waited_secs: i64,
    started: bool,
}

impl Past {
    /// Its wait over the root of that by limits, so that it may speak for a longer or a shorter one: waits differ less than
    /// plans do. Millionths.
    fn scaled(&self) -> i64 {
        (self.waited_secs + BLUR_SECS).saturating_mul(1_000_000) / self.foretold.root_milli()
    }
}

impl Default for Calibration {
    fn default() -> Self {
        Self::at_level(NOMINAL_MILLI)
    }
}

impl Calibration {
    /// Knows nothing yet. Its intervals are to hold so many thousandths of the starts.
    pub fn at_level(level_milli: u32) -> Self {
        Self { level_milli, by_partition: BTreeMap::new(), all: <[Ages; AGES_SECS.len()]>::default(), open: BTreeMap::new() }
    }

    /// The age at which a job that has waited so long is to be forecast; `None`: it was.
    pub fn due(&self, job: JobId, waited_secs: i64) -> Option<u8> {
        let age = age_of(waited_secs);
        let last = self.open.get(&job).and_then(|open| open.last());
        last.is_none_or(|open| open.said.age < age).then_some(age)
    }

    /// What may be said of a start of which the plans say so, right as often as the level. `None`: too little is known.
    pub fn interval(&self, partition: &str, waited_secs: i64, now: Timestamp, plans: Plans) -> Option<Interval> {
        let age = usize::from(age_of(waited_secs));
        let own = self.by_partition.get(partition).map(|ages| &ages[age]).filter(|ages| ages.past.len() >= FEWEST);
        let ages = own.unwrap_or(&self.all[age]);
        let mut like: Vec<Past> = ages.past.iter().rev().copied().collect();
        let foretold = plans.foretold(now);
        if age < PASSED_OVER {
            // Who still waits counts too, or long waits would be known of late.
            let here = self.open.values().flatten().filter(|open| own.is_none() || open.partition == partition);
            let open = here.filter(|open| open.sampled && usize::from(open.said.age) == age);
            like.extend(open.map(|open| open.said.past(now, false)));
            keep_nearest(&mut like, foretold);
        }
        if like.iter().filter(|past| past.started).count() < FEWEST {
            return None;
        }
        let missed_ppm = (self.missed_ppm() + ages.shift_ppm).clamp(5_000, 995_000);
        let (low, high) = if age < PASSED_OVER {
            let (low, high) = narrowest(&mut like, missed_ppm, Past::scaled);
            let of = |scaled: i64| (foretold.root_milli().saturating_mul(scaled) / 1_000_000 - BLUR_SECS).max(0);
            (of(low), of(high))
        } else {
            narrowest(&mut like, missed_ppm, |past| past.waited_secs)
        };
        // One more: what was cut off below.
        Some(Interval { earliest: now.plus_secs(low), latest: now.plus_secs(high + 1) })
    }

    /// The part that may be missed, millionths.
    fn missed_ppm(&self) -> i64 {
        1_000_000 - i64::from(self.level_milli) * 1000
    }

    /// Watches what comes of forecasts that were made at one time, in the order of the queue. Returns those that it does.
    pub fn say(&mut self, forecasts: Vec<(JobId, String, Said)>) -> Vec<Open> {
        let mut alike: BTreeMap<(String, u8), usize> = BTreeMap::new();
        for (_, partition, said) in &forecasts {
            *alike.entry((partition.clone(), said.age)).or_default() += 1;
        }
        let mut seen: BTreeMap<(String, u8), usize> = BTreeMap::new();
        let mut watched = Vec::new();
        for (job, partition, said) in forecasts {
            let group = (partition.clone(), said.age);
            let place = seen.entry(group.clone()).or_default();
            // From all over the queue, whoever starts first.
            let sampled = (*place).is_multiple_of(alike[&group].div_ceil(SAMPLED));
            *place += 1;
            if self.open.len() < MOST_OPEN || self.open.contains_key(&job) {
                let open = Open { job, partition, said, sampled };
                watched.push(open.clone());
                self.watch(open);
            }
        }
        watched
    }

    /// Goes on watching after a restart.
    pub fn watch(&mut self, open: Open) {
        self.open.entry(open.job).or_default().push(open);
    }

    /// Jobs that are watched.
    pub fn watched(&self) -> impl Iterator<Item = JobId> + '_ {
        self.open.keys().copied()
    }

    /// A job started, or left the queue without. The outcomes are to be kept, for [`Self::learn`] after a restart.
    pub fn over(&mut self, job: JobId, at: Timestamp, started: bool) -> Vec<Outcome> {
        let open = self.open.remove(&job).unwrap_or_default();
        let outcome = |Open { job, partition, said, sampled }| Outcome { job, partition, said, sampled, ended: at, started };
        let outcomes: Vec<Outcome> = open.into_iter().map(outcome).collect();
        outcomes.iter().for_each(|outcome| self.learn(outcome));
        outcomes
    }

    /// What happened to it says nothing of waiting: it was held, or its request was changed.
    pub fn forget(&mut self, job: JobId) {
        self.open.remove(&job);
    }

    /// Takes an outcome in, in the order in which they came.
    pub fn learn(&mut self, outcome: &Outcome) {
        let Some(own) = AGES_SECS.get(usize::from(outcome.said.age)).map(|_| usize::from(outcome.said.age)) else { return };
        let missed_ppm = self.missed_ppm();
        let of_partition = self.by_partition.entry(outcome.partition.clone()).or_default();
        of_partition[own].learn(outcome, missed_ppm);
        self.all[own].learn(outcome, missed_ppm);
    }

    /// How intervals of a partition turned out, over all ages; of all partitions with `None`.
    pub fn record(&self, partition: Option<&str>) -> Record {
        let ages = match partition {
            Some(name) => self.by_partition.get(name).map(|ages| &ages[..]).unwrap_or_default(),
            None => &self.all,
        };
        let mut widths: Vec<i64> = ages.iter().flat_map(|ages| &ages.widths).copied().collect();
        widths.sort_unstable();
        Record {
            intervals: ages.iter().map(|ages| ages.intervals).sum(),
            right: ages.iter().map(|ages| ages.right).sum(),
            median_width_secs: widths.get(widths.len() / 2).copied(),
        }
    }
}

impl Plans {
    fn foretold(self, at: Timestamp) -> Foretold {
        Foretold { expected_secs: secs_between(at, self.expected), at_limits_secs: secs_between(at, self.at_limits) }
    }
}

impl Said {
    fn past(&self, until: Timestamp, started: bool) -> Past {
        Past { foretold: self.plans.foretold(self.at), waited_secs: secs_between(self.at, until), started }
    }
}

fn secs_between(from: Timestamp, to: Timestamp) -> i64 {
    (to.since_millis(from) / 1000).max(0)
}

impl Ages {
    fn learn(&mut self, outcome: &Outcome, missed_ppm: i64) {
        let Outcome { said, sampled, ended, started, .. } = outcome;
        if *sampled {
            self.past.push_back(said.past(*ended, *started));
            if self.past.len() > OUTCOMES_KEPT {
                self.past.pop_front();
            }
        }
        let Some(interval) = said.interval.filter(|_| *started) else { return };
        let right = (interval.earliest..=interval.latest).contains(ended);
        self.intervals += 1;
        self.right += u64::from(right);
        if *sampled {
            // As many as are to be missed, less those that were.
            let off_ppm = missed_ppm - if right { 0 } else { 1_000_000 };
            let shift_ppm = self.shift_ppm + off_ppm * PACE_MILLI[usize::from(said.age)] / 1000;
            // It may be as bold as to miss twice as many. After misses it stays at its widest for a while: they come in rows.
            self.shift_ppm = shift_ppm.clamp(-2 * missed_ppm, missed_ppm);
        }
        self.widths.push_back(interval.latest.since_millis(interval.earliest) / 1000);
        if self.widths.len() > OUTCOMES_KEPT {
            self.widths.pop_front();
        }
    }
}

/// Keeps the outcomes of which the plans said most nearly this.
fn keep_nearest(past: &mut Vec<Past>, to: Foretold) {
    past.sort_by_cached_key(|past| {
        unlike(past.foretold.expected_secs, to.expected_secs).saturating_mul(unlike(past.foretold.at_limits_secs, to.at_limits_secs))
    });
    past.truncate(NEIGHBOURS);
}

/// The larger of the smaller, thousandths.
fn unlike(a_secs: i64, b_secs: i64) -> i64 {
    let (a, b) = (a_secs + BLUR_SECS, b_secs + BLUR_SECS);
    a.max(b).saturating_mul(1000) / a.min(b)
}

/// The narrowest of the intervals that all but so many millionths of the values lie in. It grows with the time waited, and most waits
/// being short, it mostly begins at none.
fn narrowest(past: &mut [Past], missed_ppm: i64, value: impl Fn(&Past) -> i64) -> (i64, i64) {
    // Of equal ones those that started first: who still waited then waited longer.
    past.sort_by_cached_key(|past| (value(past), !past.started));
    let early = (0..=SPLITS).map(|part| missed_ppm * part / (2 * SPLITS));
    let intervals = early.map(|early_ppm| quantiles(past, early_ppm, missed_ppm - early_ppm, &value));
    intervals.min_by_key(|(low, high)| high - low).unwrap_or((0, 0))
}

/// The values below and above which so many millionths lie, of outcomes in order.
fn quantiles(past: &[Past], early_ppm: i64, late_ppm: i64, value: impl Fn(&Past) -> i64) -> (i64, i64) {
    let count = past.len() as i64;
    // One forecast more than there are outcomes is to be among them.
    let apart = (count / SHARE_A_FATE).max(1);
    let early = early_ppm - early_ppm / apart;
    let late = late_ppm - (1_000_000 - late_ppm) / apart;
    let (mut low, mut high) = ((early_ppm == 0).then_some(0), None);
    let mut waiting_ppm = 1_000_000_i64;
    for (at, one) in past.iter().enumerate().filter(|(_, one)| one.started) {
        let at_risk = count - at as i64;
        waiting_ppm = waiting_ppm * (at_risk - 1) / at_risk;
        if low.is_none() && 1_000_000 - waiting_ppm > early {
            low = Some(value(one));
        }
        if high.is_none() && waiting_ppm <= late.max(0) {
            high = Some(value(one));
        }
    }
    let longest = past.last().map_or(0, value);
    (low.unwrap_or(0), high.unwrap_or(longest))
}

fn age_of(waited_secs: i64) -> u8 {
    AGES_SECS.iter().rposition(|from| waited_secs >= *from).unwrap_or(0) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: i64 = 60;

    fn at(secs: i64) -> Timestamp {
        Timestamp::from_secs(1_000_000 + secs)
    }

    /// Numbers that look like chance: the same each time.
    fn chance(n: u64) -> i64 {
        (n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407) >> 33) as i64
    }

    /// Both plans say so.
    fn plans(at: Timestamp) -> Plans {
        Plans { expected: at, at_limits: at }
    }

    /// One job after the other: to wait `expected` seconds by both plans, and waiting that times `ratio` thousandths.
    fn past(calibration: &mut Calibration, count: u64, expected: impl Fn(u64) -> i64, ratio: impl Fn(u64) -> i64) -> Vec<bool> {
        let mut right = Vec::new();
        for n in 0..count {
            let now = at(n as i64 * 100_000);
            let wait = expected(n) * ratio(n) / 1000;
            let interval = calibration.interval("p", 0, now, plans(now.plus_secs(expected(n))));
            let said = Said { age: 0, at: now, plans: plans(now.plus_secs(expected(n))), interval };
            calibration.say(vec![(JobId(n), "p".into(), said)]);
            calibration.over(JobId(n), now.plus_secs(wait), true);
            right.extend(interval.map(|interval| (interval.earliest..=interval.latest).contains(&now.plus_secs(wait))));
        }
        right
    }

    fn part(right: &[bool]) -> usize {
        right.iter().filter(|right| **right).count() * 1000 / right.len()
    }

    #[test]
    fn intervals_hold_nine_starts_in_ten_whatever_is_wrong_with_the_forecasts() {
        let expected = |n| 600 + chance(n) % 6000;
        for ratio in [|n: u64| 200 + chance(n + 7) % 300, |n: u64| 900 + chance(n + 7) % 8000] {
            let right = part(&past(&mut Calibration::default(), 2000, expected, ratio));
            assert!((870..=930).contains(&right), "{right}");
        }
    }

    /// Of 400 jobs, of which the plans say so, the waits; and an interval that holds four in five.
    fn of_past(age: u8, said: impl Fn(u64) -> (i64, i64), wait: impl Fn(u64) -> i64, now: (i64, i64)) -> (i64, i64) {
        let mut calibration = Calibration::at_level(800);
        let plans = |(expected, at_limits): (i64, i64)| Plans { expected: at(expected), at_limits: at(at_limits) };
        for n in 0..400 {
            let said = Said { age, at: at(0), plans: plans(said(n)), interval: None };
            calibration.learn(&Outcome { job: JobId(n), partition: "p".into(), said, sampled: true, ended: at(wait(n)), started: true });
        }
        let told = calibration.interval("p", AGES_SECS[usize::from(age)], at(0), plans(now)).unwrap();
        (told.earliest.since_millis(at(0)) / 1000, told.latest.since_millis(at(0)) / 1000)
    }

    /// The wait is from 0.4 to 0.6 of what the limits say, and has nothing to do with what runs of late say.
    #[test]
    fn the_plan_by_limits_is_what_waits_are_measured_by() {
        let at_limits = |n| 1000 + chance(n) % 50_000;
        let wait = |n| at_limits(n) * (400 + chance(n + 7) % 200) / 1000;
        let said = |n| (chance(n + 3) % 50_000, at_limits(n));
        let (low, high) = of_past(0, said, wait, (300, 20_000));
        assert!((7_500..9_500).contains(&low) && (12_000..18_000).contains(&high), "{low} {high}");
        let (_, sooner) = of_past(0, said, wait, (300, 4_000));
        assert!(sooner < low, "{sooner} {low}");
    }

    /// The plan is four times as long as any before.
    #[test]
    fn a_longer_plan_makes_the_interval_longer_by_its_root() {
        let wait = |n| 2_000 + chance(n) % 400;
        let (low, high) = of_past(0, |_| (1_000, 10_000), wait, (1_000, 4 * 10_060 - 60));
        assert!((4_060..4_300).contains(&low) && (4_500..4_870).contains(&high), "{low} {high}");
    }

    /// Whatever the plans say of it.
    #[test]
    fn who_was_passed_over_for_hours_waits_as_long_as_others_like_it_did() {
        let wait = |n| 30_000 + chance(n) % 10_000;
        let (low, high) = of_past(2, |n| (chance(n + 3) % 90_000, chance(n + 5) % 90_000), wait, (0, 0));
        assert!((29_000..33_000).contains(&low) && (37_000..40_010).contains(&high), "{low} {high}");
        let (low, high) = of_past(1, |n| (chance(n + 3) % 90_000, chance(n + 5) % 90_000), wait, (0, 0));
        assert!(high < 29_000, "of a younger one the plans say something: {low} {high}");
    }

    /// Half wait less than a minute, few a day.
    #[test]
    fn the_narrowest_interval_of_its_level_is_said() {
        let wait = |n| if chance(n) % 2 == 0 { chance(n + 7) % 60 } else { 86_400 * (chance(n + 9) % 1000).pow(3) / 1_000_000_000 };
        let (low, high) = of_past(0, |_| (600, 600), wait, (600, 600));
        let mut waits: Vec<i64> = (0..400).map(wait).collect();
        waits.sort_unstable();
        assert_eq!(low, 0);
        assert!(high < waits[345] && high > waits[310], "{high} {:?}", &waits[310..345]);
    }

    #[test]
    fn a_change_of_the_cluster_is_followed() {
        let right = past(&mut Calibration::default(), 3000, |n| 600 + chance(n) % 600, |n| {
            if n < 1000 { 500 + chance(n + 7) % 500 } else { 3000 + chance(n + 7) % 2000 }
        });
        assert!((850..=950).contains(&part(&right)), "{}", part(&right));
        assert!(part(&right[2000..]) >= 850, "{}", part(&right[2000..]));
    }

    #[test]
    fn nothing_is_said_before_enough_is_known() {
        let mut calibration = Calibration::default();
        past(&mut calibration, FEWEST as u64 - 1, |_| 600, |_| 1000);
        assert_eq!(calibration.interval("p", 0, at(0), plans(at(600))), None);
        past(&mut calibration, 1, |_| 600, |_| 1000);
        assert!(calibration.interval("p", 0, at(0), plans(at(600))).is_some());
        assert!(calibration.interval("new", 0, at(0), plans(at(600))).is_some(), "what all partitions know");
        assert_eq!(calibration.interval("p", 5 * 3600, at(0), plans(at(600))), None, "of this age nothing is known");
    }

    /// Of 400 jobs each second one is cancelled, half way through its wait. Left out or taken for starts they would not
    /// change the middle here; the ends of the interval must be those of the jobs that started.
    #[test]
    fn cancelled_jobs_do_not_bend_the_intervals() {
        let learn = |cancelled: bool| {
            let mut calibration = Calibration::at_level(800);
            for n in 0..400 {
                let wait = 600 + chance(n) % 1200;
                let said = Said { age: 0, at: at(0), plans: plans(at(900)), interval: None };
                let outcome = |ended, started| Outcome { job: JobId(n), partition: "p".into(), said, sampled: true, ended: at(ended), started };
                let gone = cancelled && n % 2 == 1;
                // Whoever waits longer is longer at risk of being cancelled.
                calibration.learn(&if gone { outcome(wait.min(chance(n + 99) % 1800), wait <= chance(n + 99) % 1800) } else { outcome(wait, true) });
            }
            calibration.interval("p", 0, at(0), plans(at(900))).unwrap()
        };
        let (plain, with_cancelled) = (learn(false), learn(true));
        let off = |a: Timestamp, b: Timestamp| a.since_millis(b).abs() / 1000;
        assert!(off(plain.earliest, with_cancelled.earliest) < 2 * MINUTE, "{plain:?} {with_cancelled:?}");
        assert!(off(plain.latest, with_cancelled.latest) < 2 * MINUTE, "{plain:?} {with_cancelled:?}");
    }

    #[test]
    fn who_still_waits_counts_before_the_start_unless_passed_over() {
        for age in [0, 2] {
            let mut calibration = Calibration::default();
            let said = |at: Timestamp| Said { age, at, plans: plans(at.plus_secs(600)), interval: None };
            for n in 0..60 {
                let begun = at(n as i64 * 1000);
                let ended = begun.plus_secs(500 + chance(n) % 500);
                calibration.learn(&Outcome { job: JobId(n), partition: "p".into(), said: said(begun), sampled: true, ended, started: true });
            }
            let now = at(10_000_000);
            let told = |calibration: &Calibration| calibration.interval("p", AGES_SECS[usize::from(age)], now, plans(now.plus_secs(600))).unwrap();
            let before = told(&calibration);
            for n in 0..40 {
                calibration.say(vec![(JobId(1000 + n), "p".into(), said(now.plus_secs(-6000)))]);
            }
            let after = told(&calibration);
            assert_eq!(after.latest > before.latest.plus_secs(4900), age == 0, "{before:?} {after:?}");
            assert_eq!(after == before, age == 2, "{before:?} {after:?}");
        }
    }

    #[test]
    fn the_level_follows_its_successes_within_bounds_and_remembers_a_row_of_misses() {
        let shift_after = |age: u8, rows: &[(u64, bool)]| {
            let mut calibration = Calibration::default();
            let said = Said { age, at: at(0), plans: plans(at(600)), interval: Some(Interval { earliest: at(0), latest: at(700) }) };
            for (many, right) in rows {
                let ended = at(if *right { 600 } else { 800 });
                let outcome = Outcome { job: JobId(1), partition: "p".into(), said, sampled: true, ended, started: true };
                (0..*many).for_each(|_| calibration.learn(&outcome));
            }
            calibration.by_partition["p"][usize::from(age)].shift_ppm
        };
        assert_eq!((shift_after(0, &[(10, true)]), shift_after(0, &[(10, false)])), (3_000, -27_000));
        assert_eq!((shift_after(2, &[(10, true)]), shift_after(2, &[(10, false)])), (10_000, -90_000), "faster");
        assert_eq!((shift_after(0, &[(5_000, true)]), shift_after(0, &[(5_000, false)])), (100_000, -200_000));
        assert_eq!(shift_after(0, &[(5_000, false), (300, true)]), -110_000, "as wide as can be for as long");
    }

    #[test]
    fn of_many_jobs_forecast_at_once_a_few_stand_for_all() {
        let mut calibration = Calibration::default();
        let said = Said { age: 0, at: at(0), plans: plans(at(600)), interval: Some(Interval { earliest: at(0), latest: at(700) }) };
        calibration.say((0..1000).map(|n| (JobId(n), "p".to_owned(), said)).collect());
        for n in 0..1000 {
            calibration.over(JobId(n), at(600), true);
        }
        assert_eq!(calibration.by_partition["p"][0].past.len(), SAMPLED);
        let record = calibration.record(Some("p"));
        assert_eq!((record.intervals, record.right, record.median_width_secs), (1000, 1000, Some(700)));
        assert_eq!(calibration.record(Some("other")), Record::default());
    }

    #[test]
    fn a_job_is_forecast_again_when_it_is_older_and_after_a_hold_not_learned_from() {
        let mut calibration = Calibration::default();
        assert_eq!(calibration.due(JobId(1), 0), Some(0));
        let said = |age| Said { age, at: at(0), plans: plans(at(600)), interval: None };
        calibration.say(vec![(JobId(1), "p".into(), said(0))]);
        assert_eq!((calibration.due(JobId(1), 599), calibration.due(JobId(1), 600)), (None, Some(1)));
        calibration.say(vec![(JobId(1), "p".into(), said(1))]);
        let mut again = calibration.clone();
        assert_eq!(calibration.over(JobId(1), at(900), true).len(), 2);
        again.forget(JobId(1));
        assert!(again.over(JobId(1), at(900), true).is_empty());
        assert_eq!(again.record(None), Record::default());
    }

    #[test]
    fn outcomes_learned_again_after_a_restart_say_the_same() {
        let mut calibration = Calibration::default();
        let mut outcomes = Vec::new();
        for n in 0..300 {
            let now = at(n as i64 * 1000);
            let interval = calibration.interval("p", 0, now, plans(now.plus_secs(700)));
            calibration.say(vec![(JobId(n), "p".into(), Said { age: 0, at: now, plans: plans(now.plus_secs(700)), interval })]);
            outcomes.extend(calibration.over(JobId(n), now.plus_secs(chance(n) % 2000), n % 5 > 0));
        }
        let mut again = Calibration::default();
        outcomes.iter().for_each(|outcome| again.learn(outcome));
        let now = at(1_000_000);
        assert_eq!(again.interval("p", 0, now, plans(now.plus_secs(700))), calibration.interval("p", 0, now, plans(now.plus_secs(700))));
        assert_eq!(again.record(None), calibration.record(None));
    }
}
