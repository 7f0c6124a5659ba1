//! Intervals for starts, made from how earlier forecasts turned out, and the record of how often they were right.
//!
//! Conformal correction (Vovk; Lei and others 2018) over the past forecasts of the partition that were most like the one
//! at hand, each with the part of the predicted wait that it really took, or the wait itself where that is narrower and the
//! record allows it. Who is cancelled or still waits is counted as long as that lasted, as Kaplan and Meier (1958) do, so
//! that neither bends the result. The level is corrected by its own successes (Gibbs and Candès 2021). Integers and bounds;
//! no clock.

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
const NEIGHBOURS: usize = 128;
/// Fewer outcomes say nothing: those of all partitions are asked.
const FEWEST: usize = 30;
/// Jobs of one partition and age that are learned from when many are forecast at once: they share their fate.
const SAMPLED: usize = 8;
/// Jobs that are watched at once.
const MOST_OPEN: usize = 8192;
/// Added to waits before they are compared, seconds: from 2 to 4 is not twice as long for who waits.
const BLUR_SECS: i64 = 60;
/// The part that may be missed moves by so much, millionths, for a hit; for a miss by what keeps the balance.
const STEP_PPM: i64 = 1_000;
const MISS_PPM: i64 = 1_000_000 - NOMINAL_MILLI as i64 * 1000;
/// How far ahead of that balance the record has to be before a narrower way is taken.
const AHEAD_PPM: i64 = 2 * STEP_PPM;

/// An interval for a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interval {
    pub earliest: Timestamp,
    pub latest: Timestamp,
}

/// What was said of a job at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Said {
    /// Which of `AGES_SECS` the job had reached.
    pub age: u8,
    pub at: Timestamp,
    /// When the plan expected it to start.
    pub expected: Timestamp,
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
#[derive(Clone, Debug, Default)]
pub struct Calibration {
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

#[derive(Clone, Copy, Debug)]
struct Past {
    expected_secs: i64,
    waited_secs: i64,
    started: bool,
}

impl Past {
    /// Waited of expected, thousandths.
    fn ratio(&self) -> i64 {
        (self.waited_secs + BLUR_SECS).saturating_mul(1000) / (self.expected_secs + BLUR_SECS)
    }
}

impl Calibration {
    /// The age at which a job that has waited so long is to be forecast; `None`: it was.
    pub fn due(&self, job: JobId, waited_secs: i64) -> Option<u8> {
        let age = age_of(waited_secs);
        let last = self.open.get(&job).and_then(|open| open.last());
        last.is_none_or(|open| open.said.age < age).then_some(age)
    }

    /// What may be said of a start that the plan expects then, nine times in ten right. `None`: too little is known.
    pub fn interval(&self, partition: &str, waited_secs: i64, now: Timestamp, expected: Timestamp) -> Option<Interval> {
        self.interval_at(partition, waited_secs, now, expected, NOMINAL_MILLI, true)
    }

    /// As [`Self::interval`] at another level, thousandths, with or without the correction of the level.
    pub fn interval_at(
        &self,
        partition: &str,
        waited_secs: i64,
        now: Timestamp,
        expected: Timestamp,
        level_milli: u32,
        corrected: bool,
    ) -> Option<Interval> {
        let age = usize::from(age_of(waited_secs));
        let own = self.by_partition.get(partition).map(|ages| &ages[age]).filter(|ages| ages.past.len() >= FEWEST);
        let ages = own.unwrap_or(&self.all[age]);
        let expected_secs = (expected.since_millis(now) / 1000).max(0);
        // Who still waits counts too, or long waits would be known of late.
        let here = self.open.values().flatten().filter(|open| own.is_none() || open.partition == partition);
        let open = here.filter(|open| open.sampled && usize::from(open.said.age) == age).map(|open| open.said.past(now, false));
        let mut like = nearest(ages.past.iter().rev().copied().chain(open), expected_secs);
        if like.iter().filter(|past| past.started).count() < FEWEST {
            return None;
        }
        let missed_ppm = 1_000_000 - i64::from(level_milli) * 1000 + if corrected { ages.shift_ppm } else { 0 };
        let missed_ppm = missed_ppm.clamp(5_000, 995_000);
        let (low, high) = quantiles(&mut like, missed_ppm, Past::ratio);
        let of = |ratio: i64| ((expected_secs + BLUR_SECS).saturating_mul(ratio) / 1000 - BLUR_SECS).max(0);
        let (mut low, mut high) = (of(low), of(high));
        if ages.shift_ppm >= AHEAD_PPM {
            // As those most like it waited, not scaled: where plans say little this is much narrower, and seldom right in a jam
            // that nobody has seen before. So only while there are successes to spare.
            let (least, most) = quantiles(&mut like, missed_ppm, |past| past.waited_secs);
            if most - least < high - low {
                (low, high) = (least, most);
            }
        }
        // One more: what was cut off below.
        Some(Interval { earliest: now.plus_secs(low), latest: now.plus_secs(high + 1) })
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
        let of_partition = self.by_partition.entry(outcome.partition.clone()).or_default();
        of_partition[own].learn(outcome);
        self.all[own].learn(outcome);
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

impl Said {
    fn past(&self, until: Timestamp, started: bool) -> Past {
        let secs = |to: Timestamp| (to.since_millis(self.at) / 1000).max(0);
        Past { expected_secs: secs(self.expected), waited_secs: secs(until), started }
    }
}

impl Ages {
    fn learn(&mut self, outcome: &Outcome) {
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
            let step = if right { STEP_PPM } else { STEP_PPM - STEP_PPM * 1_000_000 / MISS_PPM };
            self.shift_ppm = (self.shift_ppm + step).clamp(-MISS_PPM, MISS_PPM);
        }
        self.widths.push_back(interval.latest.since_millis(interval.earliest) / 1000);
        if self.widths.len() > OUTCOMES_KEPT {
            self.widths.pop_front();
        }
    }
}

/// The outcomes whose expected wait was most like this.
fn nearest(past: impl Iterator<Item = Past>, expected_secs: i64) -> Vec<Past> {
    let mut all: Vec<Past> = past.collect();
    all.sort_by_key(|past| unlike(past.expected_secs, expected_secs));
    all.truncate(NEIGHBOURS);
    all
}

/// The larger of the smaller, thousandths.
fn unlike(a_secs: i64, b_secs: i64) -> i64 {
    let (a, b) = (a_secs + BLUR_SECS, b_secs + BLUR_SECS);
    a.max(b).saturating_mul(1000) / a.min(b)
}

/// The values between which all but so many millionths lie, half of these on each side. It grows with the time waited.
fn quantiles(past: &mut [Past], missed_ppm: i64, value: impl Fn(&Past) -> i64) -> (i64, i64) {
    // Of equal ones those that started first: who still waited then waited longer.
    past.sort_by_key(|past| (value(past), !past.started));
    let half = missed_ppm / 2;
    let count = past.len() as i64;
    // One forecast more than there are outcomes is to be among them.
    let below = half - (1_000_000 - half) / count.max(1);
    let (mut low, mut high) = (None, None);
    let mut waiting_ppm = 1_000_000_i64;
    for (at, one) in past.iter().enumerate().filter(|(_, one)| one.started) {
        let at_risk = count - at as i64;
        waiting_ppm = waiting_ppm * (at_risk - 1) / at_risk;
        if low.is_none() && 1_000_000 - waiting_ppm > half - half / count.max(1) {
            low = Some(value(one));
        }
        if high.is_none() && waiting_ppm <= below.max(0) {
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

    /// One job after the other: expected to wait `expected` seconds, and waiting that times `ratio` thousandths.
    fn past(calibration: &mut Calibration, count: u64, expected: impl Fn(u64) -> i64, ratio: impl Fn(u64) -> i64) -> Vec<bool> {
        let mut right = Vec::new();
        for n in 0..count {
            let now = at(n as i64 * 100_000);
            let wait = expected(n) * ratio(n) / 1000;
            let interval = calibration.interval("p", 0, now, now.plus_secs(expected(n)));
            let said = Said { age: 0, at: now, expected: now.plus_secs(expected(n)), interval };
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

    /// Plans that say from one minute to a day of waits of half an hour: what the waits were is narrower than a part of that.
    #[test]
    fn where_plans_say_little_the_waits_themselves_do() {
        let mut calibration = Calibration::default();
        let expected = |n: u64| 60 + chance(n) % 86_400;
        let right = past(&mut calibration, 2000, expected, |n| (1200 + chance(n + 7) % 1200) * 1000 / expected(n));
        assert!((850..=950).contains(&part(&right)), "{}", part(&right));
        let width = calibration.record(Some("p")).median_width_secs.unwrap();
        assert!((900..=1300).contains(&width), "{width}");
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
        assert_eq!(calibration.interval("p", 0, at(0), at(600)), None);
        past(&mut calibration, 1, |_| 600, |_| 1000);
        assert!(calibration.interval("p", 0, at(0), at(600)).is_some());
        assert!(calibration.interval("new", 0, at(0), at(600)).is_some(), "what all partitions know");
        assert_eq!(calibration.interval("p", 5 * 3600, at(0), at(600)), None, "of this age nothing is known");
    }

    /// Of 400 jobs each second one is cancelled, half way through its wait. Left out or taken for starts they would not
    /// change the middle here; the ends of the interval must be those of the jobs that started.
    #[test]
    fn cancelled_jobs_do_not_bend_the_intervals() {
        let learn = |cancelled: bool| {
            let mut calibration = Calibration::default();
            for n in 0..400 {
                let wait = 600 + chance(n) % 1200;
                let said = Said { age: 0, at: at(0), expected: at(900), interval: None };
                let outcome = |ended, started| Outcome { job: JobId(n), partition: "p".into(), said, sampled: true, ended: at(ended), started };
                let gone = cancelled && n % 2 == 1;
                // Whoever waits longer is longer at risk of being cancelled.
                calibration.learn(&if gone { outcome(wait.min(chance(n + 99) % 1800), wait <= chance(n + 99) % 1800) } else { outcome(wait, true) });
            }
            calibration.interval_at("p", 0, at(0), at(900), 800, false).unwrap()
        };
        let (plain, with_cancelled) = (learn(false), learn(true));
        let off = |a: Timestamp, b: Timestamp| a.since_millis(b).abs() / 1000;
        assert!(off(plain.earliest, with_cancelled.earliest) < 2 * MINUTE, "{plain:?} {with_cancelled:?}");
        assert!(off(plain.latest, with_cancelled.latest) < 2 * MINUTE, "{plain:?} {with_cancelled:?}");
    }

    #[test]
    fn who_still_waits_counts_before_the_start() {
        let mut calibration = Calibration::default();
        past(&mut calibration, 60, |_| 600, |_| 1000);
        let now = at(10_000_000);
        let before = calibration.interval("p", 0, now, now.plus_secs(600)).unwrap();
        for n in 0..40 {
            let said = Said { age: 0, at: now.plus_secs(-6000), expected: now.plus_secs(-5400), interval: None };
            calibration.say(vec![(JobId(1000 + n), "p".into(), said)]);
        }
        let after = calibration.interval("p", 0, now, now.plus_secs(600)).unwrap();
        assert!(after.latest > before.latest.plus_secs(5000), "{before:?} {after:?}");
    }

    #[test]
    fn of_many_jobs_forecast_at_once_a_few_stand_for_all() {
        let mut calibration = Calibration::default();
        let said = Said { age: 0, at: at(0), expected: at(600), interval: Some(Interval { earliest: at(0), latest: at(700) }) };
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
        let said = |age| Said { age, at: at(0), expected: at(600), interval: None };
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
            let interval = calibration.interval("p", 0, now, now.plus_secs(700));
            calibration.say(vec![(JobId(n), "p".into(), Said { age: 0, at: now, expected: now.plus_secs(700), interval })]);
            outcomes.extend(calibration.over(JobId(n), now.plus_secs(chance(n) % 2000), n % 5 > 0));
        }
        let mut again = Calibration::default();
        outcomes.iter().for_each(|outcome| again.learn(outcome));
        let now = at(1_000_000);
        assert_eq!(again.interval("p", 0, now, now.plus_secs(700)), calibration.interval("p", 0, now, now.plus_secs(700)));
        assert_eq!(again.record(None), calibration.record(None));
    }
}
