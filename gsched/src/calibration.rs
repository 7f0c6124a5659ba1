//! Intervals for starts, made from how earlier forecasts turned out, and the record of how often they were right.
//!
//! Conformal correction (Vovk; Lei and others 2018) over the last forecasts of the partition at the job's age. Each counts with
//! its wait over the square root of its wait by limits; after hours of waiting, with the remaining wait of such jobs.
//! A cancelled or pending job counts for as long as it waited (Kaplan and Meier 1958), so neither bends the result. Jobs that
//! wait at one time share their fate: the sample counts as many outcomes as there are waits that do not overlap.
//! Jobs that start within ten minutes get no interval. An interval begins now, unless a later begin halves its width. Its end
//! follows the level, corrected by its own successes (Gibbs and Candès 2021). Integers; no clock.

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
    /// If all runs last to their limits. No later job may delay this start, so with loose limits it bounds the wait better than
    /// the expected one.
    pub at_limits: Timestamp,
}

/// The forecast of a job at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToldStart {
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
    pub said: ToldStart,
    /// It represents all jobs that were forecast with it.
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
    /// How many of these held the start.
    pub right: u64,
    /// Of the last ones, seconds.
    pub median_width_secs: Option<i64>,
}

/// A forecast for a pending job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenForecast {
    pub job: JobId,
    pub partition: String,
    pub said: ToldStart,
    /// It represents all jobs that were forecast with it.
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
    open: BTreeMap<JobId, Vec<OpenForecast>>,
    /// Since when so many were sampled, by partition and age.
    sampled: BTreeMap<(String, u8), (Timestamp, usize)>,
}

/// Of one partition and age.
#[derive(Clone, Debug, Default)]
struct Ages {
    past: VecDeque<WaitRecord>,
    /// Moves the part that may be missed away from the nominal, millionths.
    shift_ppm: i64,
    intervals: u64,
    right: u64,
    /// Widths of the last intervals, seconds.
    widths: VecDeque<i64>,
}

#[derive(Clone, Copy, Debug)]
struct WaitRecord {
    root_milli: i64,
    /// When it was said, seconds.
    from_secs: i64,
    waited_secs: i64,
    started: bool,
}

impl WaitRecord {
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
        let mut past: Vec<WaitRecord> = ages.past.iter().copied().collect();
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
            let (low, high) = held(&mut past, missed_ppm, apart, WaitRecord::scaled);
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
    pub fn say(&mut self, forecasts: Vec<(JobId, String, ToldStart)>) -> Vec<OpenForecast> {
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
                let open = OpenForecast {
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
    pub fn watch(&mut self, open: OpenForecast) {
        self.open.entry(open.job).or_default().push(open);
    }

    /// Jobs that are watched.
    pub fn watched(&self) -> impl Iterator<Item = JobId> + '_ {
        self.open.keys().copied()
    }

    /// A job started, or left the queue without. The outcomes are to be kept, for [`Self::learn`] after a restart.
    pub fn over(&mut self, job: JobId, at: Timestamp, started: bool) -> Vec<Outcome> {
        let open = self.open.remove(&job).unwrap_or_default();
        let outcome = |OpenForecast {
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

    /// Enters an outcome, in the order of the outcomes.
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

impl ToldStart {
    fn past(&self, until: Timestamp, started: bool) -> WaitRecord {
        WaitRecord {
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
fn apart(past: &VecDeque<WaitRecord>) -> i64 {
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
    past: &mut [WaitRecord],
    missed_ppm: i64,
    apart: i64,
    value: impl Fn(&WaitRecord) -> i64,
) -> (i64, i64) {
    // Of equal ones the first to start: a job still pending then waited longer.
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
fn longest_but(past: &[WaitRecord], late_ppm: i64, value: impl Fn(&WaitRecord) -> i64) -> i64 {
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
mod tests;
