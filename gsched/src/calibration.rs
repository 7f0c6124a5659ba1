//! Intervals for starts, made from how earlier forecasts turned out, and the record of how often they were right.
//!
//! Conformal correction (Vovk; Lei and others 2018) over the last forecasts of the partition at the age of the job, each with
//! its wait over the square root of that by limits; of jobs that have waited for hours, as long as such jobs still waited. Who
//! is cancelled or waits now is counted as long as that lasted, as Kaplan and Meier (1958) do, so that neither bends the
//! result. Jobs that wait at one time share their fate: what is known is worth as many outcomes as there are waits that do not
//! overlap. An interval is for who does not start within ten minutes. It begins now, unless a later begin makes it less than
//! half as wide, and ends where the level says, which is corrected by its own successes (Gibbs and Candès 2021). Integers; no
//! clock.

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
/// From this of `AGES_SECS` on, plans say less of a job than how long others of its age went on waiting: it was passed over
/// for a reason that they do not know.
const PASSED_OVER: usize = 2;
/// Ways in which the part that may be missed is split between too early and too late, up to as many.
const SPLITS: i64 = 4;
/// Fewer outcomes say nothing: those of all partitions are asked.
const FEWEST: usize = 30;
/// Jobs of one partition and age that stand for all that are forecast within `SAMPLED_WITHIN_SECS`: they share their fate, and
/// what is remembered is to reach back over more than one jam.
const SAMPLED: usize = 8;
const SAMPLED_WITHIN_SECS: i64 = 300;
/// Jobs that are watched at once.
const MOST_OPEN: usize = 8192;
/// Added to waits before they are compared, seconds: from 2 to 4 is not twice as long for a user.
const BLUR_SECS: i64 = 60;
/// How fast the level follows its successes, thousandths of what an outcome was off it.
const PACE_MILLI: i64 = 1;
/// The level may be as bold as to miss so many times as many again.
const BOLDEST: i64 = 4;

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
    /// Intervals of jobs that have started.
    pub intervals: u64,
    /// Of these, those that held the start.
    pub right: u64,
    /// Of the last ones, seconds.
    pub median_width_secs: Option<i64>,
}

/// A forecast for a pending job.
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
    /// Since when so many were sampled, by partition and age.
    sampled: BTreeMap<(String, u8), (Timestamp, usize)>,
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
    root_milli: i64,
    /// When it was said, seconds.
    from_secs: i64,
    waited_secs: i64,
    started: bool,
}

impl Past {
    /// Its wait over the root of that by limits, so that it may speak for a longer or a shorter one: waits differ less than
    /// plans do. Millionths.
    fn scaled(&self) -> i64 {
        (self.waited_secs + BLUR_SECS).saturating_mul(1_000_000) / self.root_milli
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
        let all = <[Ages; AGES_SECS.len()]>::default();
        Self {
            level_milli,
            by_partition: BTreeMap::new(),
            all,
            open: BTreeMap::new(),
            sampled: BTreeMap::new(),
        }
    }

    /// The age at which a job that has waited so long is to be forecast; `None`: it was.
    pub fn due(&self, job: JobId, waited_secs: i64) -> Option<u8> {
        let age = age_of(waited_secs);
        let last = self.open.get(&job).and_then(|open| open.last());
        last.is_none_or(|open| open.said.age < age).then_some(age)
    }

    /// What may be said of a start of which the plans say so, right as often as the level. `None`: too little is known.
    pub fn interval(
        &self,
        partition: &str,
        waited_secs: i64,
        now: Timestamp,
        plans: Plans,
    ) -> Option<Interval> {
        let age = usize::from(age_of(waited_secs));
        let own = self
            .by_partition
            .get(partition)
            .map(|ages| &ages[age])
            .filter(|ages| ages.past.len() >= FEWEST);
        let ages = own.unwrap_or(&self.all[age]);
        if ages.past.iter().filter(|past| past.started).count() < FEWEST {
            return None;
        }
        let mut past: Vec<Past> = ages.past.iter().copied().collect();
        // Pending jobs count too, or long waits would be known late.
        let here = self
            .open
            .values()
            .flatten()
            .filter(|open| own.is_none() || open.partition == partition);
        let open = here.filter(|open| open.sampled && usize::from(open.said.age) == age);
        past.extend(open.map(|open| open.said.past(now, false)));
        let missed_ppm = (self.missed_ppm() + ages.shift_ppm).clamp(5_000, 995_000);
        let apart = apart(&ages.past);
        let (low, known) = if age < PASSED_OVER {
            let (low, high) = held(&mut past, missed_ppm, apart, Past::scaled);
            let of = |scaled: i64| {
                (plans.root_milli(now).saturating_mul(scaled) / 1_000_000 - BLUR_SECS).max(0)
            };
            (of(low), of(high))
        } else {
            held(&mut past, missed_ppm, apart, |past| past.waited_secs)
        };
        // Too few jams are known to tell: not before the plan by limits.
        let is_known = late_part_ppm(missed_ppm, apart) > 0;
        let high = if is_known {
            known
        } else {
            known.max(secs_between(now, plans.at_limits))
        };
        // One more: what was cut off below.
        Some(Interval {
            earliest: now.plus_secs(low),
            latest: now.plus_secs(high + 1),
        })
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
            let before = self.sampled.entry(group.clone()).or_insert((said.at, 0));
            if *place == 0 && said.at.since_millis(before.0) >= SAMPLED_WITHIN_SECS * 1000 {
                *before = (said.at, 0);
            }
            // From all over the queue, in any order of starts.
            let sampled =
                before.1 < SAMPLED && place.is_multiple_of(alike[&group].div_ceil(SAMPLED));
            before.1 += usize::from(sampled);
            *place += 1;
            if self.open.len() < MOST_OPEN || self.open.contains_key(&job) {
                let open = Open {
                    job,
                    partition,
                    said,
                    sampled,
                };
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
        let outcome = |Open {
                           job,
                           partition,
                           said,
                           sampled,
                       }| Outcome {
            job,
            partition,
            said,
            sampled,
            ended: at,
            started,
        };
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
        let Some(own) = AGES_SECS
            .get(usize::from(outcome.said.age))
            .map(|_| usize::from(outcome.said.age))
        else {
            return;
        };
        let missed_ppm = self.missed_ppm();
        let of_partition = self
            .by_partition
            .entry(outcome.partition.clone())
            .or_default();
        of_partition[own].learn(outcome, missed_ppm);
        self.all[own].learn(outcome, missed_ppm);
    }

    /// How intervals of a partition turned out, over all ages; of all partitions with `None`.
    pub fn record(&self, partition: Option<&str>) -> Record {
        let ages = match partition {
            Some(name) => self
                .by_partition
                .get(name)
                .map(|ages| &ages[..])
                .unwrap_or_default(),
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
    /// Square root of the wait by limits, thousandths of that of a second.
    fn root_milli(self, at: Timestamp) -> i64 {
        (secs_between(at, self.at_limits) + BLUR_SECS)
            .saturating_mul(1_000_000)
            .isqrt()
    }
}

impl Said {
    fn past(&self, until: Timestamp, started: bool) -> Past {
        Past {
            root_milli: self.plans.root_milli(self.at),
            from_secs: self.at.0 / 1000,
            waited_secs: secs_between(self.at, until),
            started,
        }
    }
}

fn secs_between(from: Timestamp, to: Timestamp) -> i64 {
    (to.since_millis(from) / 1000).max(0)
}

impl Ages {
    fn learn(&mut self, outcome: &Outcome, missed_ppm: i64) {
        let Outcome {
            said,
            sampled,
            ended,
            started,
            ..
        } = outcome;
        let past = said.past(*ended, *started);
        // A job that starts before its next forecast asks for no interval, and would hide how long the others wait.
        let is_long = said.age > 0 || past.waited_secs >= AGES_SECS[1];
        if *sampled && is_long {
            self.past.push_back(past);
            if self.past.len() > OUTCOMES_KEPT {
                self.past.pop_front();
            }
        }
        let Some(interval) = said.interval.filter(|_| *started) else {
            return;
        };
        let right = (interval.earliest..=interval.latest).contains(ended);
        self.intervals += 1;
        self.right += u64::from(right);
        if is_long {
            // As many as are to be missed, less those that were.
            let off_ppm = missed_ppm - if right { 0 } else { 1_000_000 };
            self.shift_ppm = (self.shift_ppm + off_ppm * PACE_MILLI / 1000)
                .clamp(-missed_ppm, BOLDEST * missed_ppm);
        }
        self.widths
            .push_back(interval.latest.since_millis(interval.earliest) / 1000);
        if self.widths.len() > OUTCOMES_KEPT {
            self.widths.pop_front();
        }
    }
}

/// How many outcomes have nothing to do with each other: as many waits, in the order of their ends, as do not overlap.
fn apart(past: &VecDeque<Past>) -> i64 {
    let (mut count, mut free_secs) = (0, i64::MIN);
    for one in past.iter().filter(|one| one.started) {
        if one.from_secs >= free_secs {
            count += 1;
            free_secs = one.from_secs + one.waited_secs;
        }
    }
    count
}

/// The part of the outcomes beyond an interval that misses so many millionths, where they are worth as many as are `apart`: one
/// forecast more than these is to be among them. None where that is less than one of them.
fn late_part_ppm(missed_ppm: i64, apart: i64) -> i64 {
    (missed_ppm - (1_000_000 - missed_ppm) / apart.max(1)).max(0)
}

/// The values between which all but so many millionths of the outcomes lie: from none on, or from later where the narrowest of
/// such intervals is less than half as wide.
fn held(
    past: &mut [Past],
    missed_ppm: i64,
    apart: i64,
    value: impl Fn(&Past) -> i64,
) -> (i64, i64) {
    // Of equal ones those that started first: a job still pending then waited longer.
    past.sort_by_cached_key(|past| (value(past), !past.started));
    let from_none = longest_but(past, late_part_ppm(missed_ppm, apart), &value);
    let from_later = (1..=SPLITS)
        .map(|part| missed_ppm * part / (2 * SPLITS))
        .filter_map(|early_ppm| {
            let late_ppm = late_part_ppm(missed_ppm - early_ppm, apart);
            let low = longest_but(
                past,
                999_999 - (early_ppm - early_ppm / apart.max(1)),
                &value,
            );
            (late_ppm > 0).then(|| (low, longest_but(past, late_ppm, &value)))
        });
    let narrowest = from_later.min_by_key(|(low, high)| high - low);
    narrowest
        .filter(|(low, high)| 2 * (high - low) < from_none)
        .unwrap_or((0, from_none))
}

/// The value above which so many millionths of the outcomes lie, which are in order; for none the greatest.
fn longest_but(past: &[Past], late_ppm: i64, value: impl Fn(&Past) -> i64) -> i64 {
    let count = past.len() as i64;
    let mut waiting_ppm = 1_000_000_i64;
    for (at, one) in past.iter().enumerate().filter(|(_, one)| one.started) {
        let at_risk = count - at as i64;
        waiting_ppm = waiting_ppm * (at_risk - 1) / at_risk;
        if waiting_ppm <= late_ppm {
            return value(one);
        }
    }
    past.last().map_or(0, value)
}

fn age_of(waited_secs: i64) -> u8 {
    AGES_SECS
        .iter()
        .rposition(|from| waited_secs >= *from)
        .unwrap_or(0) as u8
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
        (n.wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407)
            >> 33) as i64
    }

    /// Both plans say so.
    fn plans(at: Timestamp) -> Plans {
        Plans {
            expected: at,
            at_limits: at,
        }
    }

    /// One job after the other: to wait `expected` seconds by both plans, and waiting that times `ratio` thousandths.
    fn past(
        calibration: &mut Calibration,
        count: u64,
        expected: impl Fn(u64) -> i64,
        ratio: impl Fn(u64) -> i64,
    ) -> Vec<bool> {
        let mut right = Vec::new();
        for n in 0..count {
            let now = at(n as i64 * 200_000);
            let wait = expected(n) * ratio(n) / 1000;
            let interval = calibration.interval("p", 0, now, plans(now.plus_secs(expected(n))));
            let said = Said {
                age: 0,
                at: now,
                plans: plans(now.plus_secs(expected(n))),
                interval,
            };
            calibration.say(vec![(JobId(n), "p".into(), said)]);
            calibration.over(JobId(n), now.plus_secs(wait), true);
            right.extend(interval.map(|interval| {
                (interval.earliest..=interval.latest).contains(&now.plus_secs(wait))
            }));
        }
        right
    }

    fn part(right: &[bool]) -> usize {
        right.iter().filter(|right| **right).count() * 1000 / right.len()
    }

    #[test]
    fn intervals_hold_nine_starts_in_ten_whatever_is_wrong_with_the_forecasts() {
        let expected = |n| 6000 + chance(n) % 6000;
        for ratio in [
            |n: u64| 200 + chance(n + 7) % 300,
            |n: u64| 900 + chance(n + 7) % 8000,
        ] {
            let right = part(&past(&mut Calibration::default(), 2000, expected, ratio));
            assert!((870..=930).contains(&right), "{right}");
        }
    }

    /// Of 400 jobs, of which the plans say so, the waits; and an interval that holds four in five.
    fn of_past(
        age: u8,
        said: impl Fn(u64) -> (i64, i64),
        wait: impl Fn(u64) -> i64,
        now: (i64, i64),
    ) -> (i64, i64) {
        let mut calibration = Calibration::at_level(800);
        let plans = |(expected, at_limits): (i64, i64)| Plans {
            expected: at(expected),
            at_limits: at(at_limits),
        };
        for n in 0..400 {
            let begun = (n as i64 - 400) * 200_000;
            let (expected, at_limits) = said(n);
            let said = Said {
                age,
                at: at(begun),
                plans: plans((begun + expected, begun + at_limits)),
                interval: None,
            };
            calibration.learn(&Outcome {
                job: JobId(n),
                partition: "p".into(),
                said,
                sampled: true,
                ended: at(begun + wait(n)),
                started: true,
            });
        }
        let told = calibration
            .interval("p", AGES_SECS[usize::from(age)], at(0), plans(now))
            .unwrap();
        (
            told.earliest.since_millis(at(0)) / 1000,
            told.latest.since_millis(at(0)) / 1000,
        )
    }

    /// The wait is from 0.4 to 0.6 of what the limits say, and has nothing to do with what runs of late say.
    #[test]
    fn the_plan_by_limits_is_what_waits_are_measured_by() {
        let at_limits = |n| 1000 + chance(n) % 50_000;
        let wait = |n| at_limits(n) * (400 + chance(n + 7) % 200) / 1000;
        let said = |n| (chance(n + 3) % 50_000, at_limits(n));
        let (low, high) = of_past(0, said, wait, (300, 20_000));
        assert!(
            low < high / 2 + 2_000 && (12_000..18_000).contains(&high),
            "{low} {high}"
        );
        let (_, sooner) = of_past(0, said, wait, (300, 4_000));
        assert!(sooner < high / 2, "{sooner} {high}");
    }

    /// The plan is four times as long as any before.
    #[test]
    fn a_longer_plan_makes_the_interval_longer_by_its_root() {
        let wait = |n| 2_000 + chance(n) % 400;
        let (low, high) = of_past(0, |_| (1_000, 10_000), wait, (1_000, 4 * 10_060 - 60));
        assert!(
            (4_060..4_400).contains(&low) && (4_500..4_870).contains(&high),
            "a later begin is much narrower: {low} {high}"
        );
    }

    /// Whatever the plans say of it.
    #[test]
    fn who_was_passed_over_for_hours_waits_as_long_as_others_like_it_did() {
        let wait = |n| 30_000 + chance(n) % 10_000;
        let (low, high) = of_past(
            2,
            |n| (chance(n + 3) % 90_000, chance(n + 5) % 90_000),
            wait,
            (0, 0),
        );
        assert!(
            (29_999..33_000).contains(&low) && (37_000..40_010).contains(&high),
            "{low} {high}"
        );
        let (_, high) = of_past(
            1,
            |n| (chance(n + 3) % 90_000, chance(n + 5) % 90_000),
            wait,
            (0, 0),
        );
        assert!(
            high < 29_000,
            "of a younger one the plans say something: {high}"
        );
    }

    /// Few wait a day.
    fn mostly_short(n: u64) -> i64 {
        600 + 86_400 * (chance(n + 9) % 1000).pow(3) / 1_000_000_000
    }

    #[test]
    fn an_interval_begins_now_and_ends_where_its_level_says() {
        let (low, high) = of_past(0, |_| (600, 600), mostly_short, (600, 600));
        let mut waits: Vec<i64> = (0..400).map(mostly_short).collect();
        waits.sort_unstable();
        assert_eq!(low, 0);
        assert!(
            high > waits[316] && high < waits[330],
            "{high} {:?}",
            &waits[310..335]
        );
    }

    /// Half start within a minute: they change nothing for the others.
    #[test]
    fn who_starts_at_once_does_not_hide_how_long_the_others_wait() {
        let (_, without) = of_past(0, |_| (600, 600), |n| mostly_short(n / 2), (600, 600));
        let (_, with) = of_past(
            0,
            |_| (600, 600),
            |n| {
                if n % 2 == 0 {
                    chance(n) % 60
                } else {
                    mostly_short(n / 2)
                }
            },
            (600, 600),
        );
        assert!((with - without).abs() < without / 20, "{with} {without}");
    }

    /// A hundred jobs that waited for 2,000 s at one time, or one after the other; the plan by limits is 9,000 s.
    #[test]
    fn what_is_known_of_one_jam_only_promises_nothing_before_the_plan_by_limits() {
        let told = |apart_secs: i64| {
            let mut calibration = Calibration::default();
            for n in 0..100 {
                let begun = at((n as i64 - 100) * apart_secs);
                let said = Said {
                    age: 0,
                    at: begun,
                    plans: plans(begun.plus_secs(9_000)),
                    interval: None,
                };
                let ended = begun.plus_secs(2_000);
                calibration.learn(&Outcome {
                    job: JobId(n),
                    partition: "p".into(),
                    said,
                    sampled: true,
                    ended,
                    started: true,
                });
            }
            let latest = calibration
                .interval("p", 0, at(0), plans(at(9_000)))
                .unwrap()
                .latest;
            (
                apart(&calibration.by_partition["p"][0].past),
                latest.since_millis(at(0)) / 1000,
            )
        };
        assert_eq!((told(1).0, told(20).0, told(2_000).0), (1, 1, 100));
        assert_eq!((told(1).1, told(20).1), (9_001, 9_001));
        assert!((1_999..2_010).contains(&told(2_000).1), "{:?}", told(2_000));
    }

    #[test]
    fn a_change_of_the_cluster_is_followed() {
        let right = past(
            &mut Calibration::default(),
            3000,
            |n| 6000 + chance(n) % 6000,
            |n| {
                if n < 1000 {
                    500 + chance(n + 7) % 500
                } else {
                    3000 + chance(n + 7) % 2000
                }
            },
        );
        assert!((850..=950).contains(&part(&right)), "{}", part(&right));
        assert!(part(&right[2000..]) >= 850, "{}", part(&right[2000..]));
    }

    #[test]
    fn nothing_is_said_before_enough_is_known() {
        let mut calibration = Calibration::default();
        past(&mut calibration, FEWEST as u64 - 1, |_| 600, |_| 1000);
        assert_eq!(calibration.interval("p", 0, at(0), plans(at(600))), None);
        past(&mut calibration, 1, |_| 600, |_| 1000);
        assert!(
            calibration
                .interval("p", 0, at(0), plans(at(600)))
                .is_some()
        );
        assert!(
            calibration
                .interval("new", 0, at(0), plans(at(600)))
                .is_some(),
            "what all partitions know"
        );
        assert_eq!(
            calibration.interval("p", 5 * 3600, at(0), plans(at(600))),
            None,
            "of this age nothing is known"
        );
    }

    /// Of 400 jobs each second one is cancelled, half way through its wait. Left out or taken for starts they would not
    /// change the middle here; the ends of the interval must be those of the jobs that started.
    #[test]
    fn cancelled_jobs_do_not_bend_the_intervals() {
        let learn = |cancelled: bool| {
            let mut calibration = Calibration::at_level(800);
            for n in 0..400 {
                let wait = 600 + chance(n) % 1200;
                let begun = (n as i64 - 400) * 2_000;
                let said = Said {
                    age: 0,
                    at: at(begun),
                    plans: plans(at(begun + 900)),
                    interval: None,
                };
                let outcome = |waited, started| Outcome {
                    job: JobId(n),
                    partition: "p".into(),
                    said,
                    sampled: true,
                    ended: at(begun + waited),
                    started,
                };
                let gone = cancelled && n % 2 == 1;
                // A longer wait is a longer risk of a cancellation.
                calibration.learn(&if gone {
                    outcome(
                        wait.min(chance(n + 99) % 1800),
                        wait <= chance(n + 99) % 1800,
                    )
                } else {
                    outcome(wait, true)
                });
            }
            calibration.interval("p", 0, at(0), plans(at(900))).unwrap()
        };
        let (plain, with_cancelled) = (learn(false), learn(true));
        let off = |a: Timestamp, b: Timestamp| a.since_millis(b).abs() / 1000;
        assert!(
            off(plain.earliest, with_cancelled.earliest) < 2 * MINUTE,
            "{plain:?} {with_cancelled:?}"
        );
        assert!(
            off(plain.latest, with_cancelled.latest) < 2 * MINUTE,
            "{plain:?} {with_cancelled:?}"
        );
    }

    #[test]
    fn who_still_waits_counts_before_the_start() {
        for age in [0, 2] {
            let mut calibration = Calibration::default();
            let said = |at: Timestamp| Said {
                age,
                at,
                plans: plans(at.plus_secs(600)),
                interval: None,
            };
            for n in 0..60 {
                let begun = at(n as i64 * 1000);
                let ended = begun.plus_secs(600 + chance(n) % 400);
                calibration.learn(&Outcome {
                    job: JobId(n),
                    partition: "p".into(),
                    said: said(begun),
                    sampled: true,
                    ended,
                    started: true,
                });
            }
            let now = at(10_000_000);
            let told = |calibration: &Calibration| {
                calibration
                    .interval(
                        "p",
                        AGES_SECS[usize::from(age)],
                        now,
                        plans(now.plus_secs(600)),
                    )
                    .unwrap()
            };
            let before = told(&calibration);
            for n in 0..40 {
                calibration.say(vec![(
                    JobId(1000 + n),
                    "p".into(),
                    said(now.plus_secs((n as i64 - 60) * SAMPLED_WITHIN_SECS)),
                )]);
            }
            let after = told(&calibration);
            assert!(
                after.latest > before.latest.plus_secs(4900),
                "{before:?} {after:?}"
            );
        }
    }

    #[test]
    fn the_level_follows_its_successes_within_bounds() {
        let shift_after = |sampled: bool, rows: &[(u64, i64)]| {
            let mut calibration = Calibration::default();
            let said = Said {
                age: 0,
                at: at(0),
                plans: plans(at(600)),
                interval: Some(Interval {
                    earliest: at(0),
                    latest: at(700),
                }),
            };
            for (many, waited_secs) in rows {
                let outcome = Outcome {
                    job: JobId(1),
                    partition: "p".into(),
                    said,
                    sampled,
                    ended: at(*waited_secs),
                    started: true,
                };
                (0..*many).for_each(|_| calibration.learn(&outcome));
            }
            calibration.by_partition["p"][0].shift_ppm
        };
        for sampled in [true, false] {
            assert_eq!(
                (
                    shift_after(sampled, &[(10, 600)]),
                    shift_after(sampled, &[(10, 800)])
                ),
                (1_000, -9_000)
            );
        }
        assert_eq!(
            (
                shift_after(true, &[(5_000, 600)]),
                shift_after(true, &[(5_000, 800)])
            ),
            (400_000, -100_000)
        );
        assert_eq!(
            shift_after(true, &[(5_000, 100)]),
            0,
            "who starts at once says nothing of the others"
        );
    }

    #[test]
    fn of_many_jobs_forecast_at_once_a_few_stand_for_all() {
        let mut calibration = Calibration::default();
        let said = Said {
            age: 0,
            at: at(0),
            plans: plans(at(600)),
            interval: Some(Interval {
                earliest: at(0),
                latest: at(700),
            }),
        };
        calibration.say(
            (0..1000)
                .map(|n| (JobId(n), "p".to_owned(), said))
                .collect(),
        );
        for n in 0..1000 {
            calibration.over(JobId(n), at(600), true);
        }
        assert_eq!(calibration.by_partition["p"][0].past.len(), SAMPLED);
        let sampled = |from: i64, calibration: &mut Calibration| {
            let said = Said {
                at: at(from),
                ..said
            };
            calibration
                .say(vec![(JobId(2000), "p".to_owned(), said)])
                .iter()
                .filter(|open| open.sampled)
                .count()
        };
        assert_eq!(
            (
                sampled(SAMPLED_WITHIN_SECS - 1, &mut calibration),
                sampled(SAMPLED_WITHIN_SECS, &mut calibration)
            ),
            (0, 1)
        );
        let record = calibration.record(Some("p"));
        assert_eq!(
            (record.intervals, record.right, record.median_width_secs),
            (1000, 1000, Some(700))
        );
        assert_eq!(calibration.record(Some("other")), Record::default());
    }

    #[test]
    fn a_job_is_forecast_again_when_it_is_older_and_after_a_hold_not_learned_from() {
        let mut calibration = Calibration::default();
        assert_eq!(calibration.due(JobId(1), 0), Some(0));
        let said = |age| Said {
            age,
            at: at(0),
            plans: plans(at(600)),
            interval: None,
        };
        calibration.say(vec![(JobId(1), "p".into(), said(0))]);
        assert_eq!(
            (
                calibration.due(JobId(1), 599),
                calibration.due(JobId(1), 600)
            ),
            (None, Some(1))
        );
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
            calibration.say(vec![(
                JobId(n),
                "p".into(),
                Said {
                    age: 0,
                    at: now,
                    plans: plans(now.plus_secs(700)),
                    interval,
                },
            )]);
            outcomes.extend(calibration.over(JobId(n), now.plus_secs(chance(n) % 2000), n % 5 > 0));
        }
        let mut again = Calibration::default();
        outcomes.iter().for_each(|outcome| again.learn(outcome));
        let now = at(1_000_000);
        assert_eq!(
            again.interval("p", 0, now, plans(now.plus_secs(700))),
            calibration.interval("p", 0, now, plans(now.plus_secs(700)))
        );
        assert_eq!(again.record(None), calibration.record(None));
    }
}
