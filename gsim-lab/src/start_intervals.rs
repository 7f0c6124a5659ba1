//! How well starts are foretold: the intervals of `gq --start` over a whole trace, beside what a partition's past waits say.
//!
//! Looks on while a trace is run, forecasts jobs as gpuctld does, and compares with the real starts. It changes nothing.

use gcore::ctl::{Event, Mirror, State};
use gmodel::{JobId, Timestamp};
use gpolicy::run_lengths::RunLengths;
use gsched::calibration::{AGES_SECS, Calibration, Interval, NOMINAL_MILLI, Plans, ToldStart};
use gsched::{Engine, Forecast, WorkBudget};
use gsim::trace_run::Observer;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Levels at which both are measured, thousandths.
const LEVELS: [u32; 42] = [
    10, 25, 50, 100, 150, 200, 250, 300, 350, 400, 450, 500, 550, 600, 650, 675, 700, 725, 750,
    775, 800, 810, 820, 830, 840, 850, 860, 870, 880, 890, 900, 910, 920, 930, 940, 945, 950, 955,
    960, 970, 980, 985,
];
/// What a partition's past waits are asked at: their 10th to 90th percentile.
const WAITS_LEVEL: u32 = 800;
/// Waits of a partition that are remembered.
const WAITS_KEPT: usize = 512;
const UNBOUNDED: WorkBudget = WorkBudget {
    node_probes: u64::MAX,
    starts: usize::MAX,
};
/// Shorter waits are not counted, seconds.
pub const LONG_WAIT_SECS: i64 = 600;

/// Looks on and forecasts.
pub struct ForecastObserver {
    every_ms: i64,
    next: Timestamp,
    lengths: RunLengths,
    /// By what is promised.
    calibration: Calibration,
    /// One for each of `LEVELS`.
    at_levels: Vec<Calibration>,
    mirror: Mirror,
    engine: Engine,
    /// By partition, waits of jobs that waited long, oldest first.
    waits: BTreeMap<String, VecDeque<i64>>,
    open: BTreeMap<JobId, Vec<ForecastCase>>,
    closed: Vec<ForecastCase>,
    pub forecasts: u64,
}

/// One forecast of one job.
#[derive(Clone, Debug)]
struct ForecastCase {
    age: u8,
    submitted: Timestamp,
    at: Timestamp,
    plans: Plans,
    /// By what is promised, and at each level.
    nominal: Option<Interval>,
    ours: Vec<Interval>,
    waits: Vec<Interval>,
    start: Timestamp,
}

/// What one way of foretelling came to.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct IntervalQuality {
    pub intervals: u64,
    /// Part that held the start.
    pub coverage: f64,
    pub median_width_secs: f64,
    /// Median of width over the wait from submission to start.
    pub median_width_of_wait: f64,
    pub mean_width_secs: f64,
}

/// Of the forecasts made at one age of the jobs.
#[derive(Clone, Debug, Serialize)]
pub struct AgeClass {
    /// The jobs had waited at least so long, seconds.
    pub waited_secs: i64,
    pub nominal: IntervalQuality,
    /// The partition's past waits, 10th to 90th percentile.
    pub past_waits: IntervalQuality,
    /// Ours at the level where they are right as often as that, and the level.
    pub at_equal_coverage: IntervalQuality,
    pub level: f64,
    /// The past waits at the level where they are right as often as ours at the nominal one, or the widest that is tried;
    /// and that level.
    pub past_waits_as_often: IntervalQuality,
    pub past_waits_level: f64,
    /// Ours where they are right as often as these, and the level: the same as nominal unless the past waits never are.
    pub as_often_as_past_waits: IntervalQuality,
    pub as_often_level: f64,
    /// Part of the starts that came before they were expected.
    pub early: f64,
}

impl ForecastObserver {
    /// Forecasts at most this often, in milliseconds of the trace.
    pub fn new(every_ms: i64) -> Self {
        Self {
            every_ms,
            next: Timestamp::default(),
            lengths: RunLengths::default(),
            calibration: Calibration::default(),
            at_levels: LEVELS
                .iter()
                .map(|level| Calibration::at_level(*level))
                .collect(),
            mirror: Mirror::default(),
            engine: Engine::default(),
            waits: BTreeMap::new(),
            open: BTreeMap::new(),
            closed: Vec::new(),
            forecasts: 0,
        }
    }

    /// Over the jobs that waited long.
    pub fn told(&self) -> Vec<AgeClass> {
        let of_age = |age: usize| -> Vec<&ForecastCase> {
            let is = |case: &&ForecastCase| {
                usize::from(case.age) == age
                    && case.nominal.is_some()
                    && case.start.since_millis(case.submitted) > LONG_WAIT_SECS * 1000
            };
            self.closed.iter().filter(is).collect()
        };
        (0..AGES_SECS.len())
            .map(|age| at_age(AGES_SECS[age], &of_age(age)))
            .filter(|told| told.nominal.intervals > 0)
            .collect()
    }

    /// Each forecast as a line of CSV.
    pub fn csv(&self) -> String {
        let secs = |a: Timestamp, b: Timestamp| a.since_millis(b) as f64 / 1000.0;
        let mut text =
            "forecast_at,age,submitted_to_forecast,expected,at_limits,real,low,high\n".to_owned();
        for case in &self.closed {
            let (low, high) = case.nominal.map_or((-1.0, -1.0), |i| {
                (secs(i.earliest, case.at), secs(i.latest, case.at))
            });
            text.push_str(&format!(
                "{},{},{},{},{},{},{low},{high}\n",
                case.at.0 / 1000,
                case.age,
                secs(case.at, case.submitted),
                secs(case.plans.expected, case.at),
                secs(case.plans.at_limits, case.at),
                secs(case.start, case.at)
            ));
        }
        text
    }

    fn forecast(&mut self, state: &State, now: Timestamp) {
        let picture = self.mirror.update(state, now);
        let waited = |submitted: Timestamp| now.since_millis(submitted) / 1000;
        let due: BTreeMap<JobId, (u8, Timestamp, String)> = picture
            .pending
            .iter()
            .filter(|job| job.particulars.positions.is_none())
            .filter_map(|job| {
                let age = self.calibration.due(job.id, waited(job.submitted))?;
                Some((job.id, (age, job.submitted, job.spec.partition.clone())))
            })
            .collect();
        if due.is_empty() {
            return;
        }
        self.forecasts += 1;
        let believed = picture.clone().believed(&self.lengths);
        let ids: BTreeSet<JobId> = due.keys().copied().collect();
        let at_limits: BTreeMap<JobId, Timestamp> =
            starts(self.engine.forecast(picture, &ids, UNBOUNDED)).collect();
        let mut said = Vec::new();
        for (job, expected) in starts(self.engine.forecast(&believed, &ids, UNBOUNDED)) {
            let Some((age, submitted, partition)) = due.get(&job) else {
                continue;
            };
            let plans = Plans {
                expected,
                at_limits: at_limits.get(&job).copied().unwrap_or(expected),
            };
            let of = |calibration: &Calibration| {
                calibration.interval(partition, waited(*submitted), now, plans)
            };
            let at_levels: Vec<Option<Interval>> = self.at_levels.iter().map(of).collect();
            let told = ToldStart {
                age: *age,
                at: now,
                plans,
                interval: of(&self.calibration),
            };
            let waits = self.waits.get(partition).filter(|waits| waits.len() >= 30);
            let case = ForecastCase {
                age: *age,
                submitted: *submitted,
                at: now,
                plans,
                nominal: told.interval.filter(|_| waits.is_some()),
                ours: at_levels.iter().flatten().copied().collect(),
                waits: waits
                    .map(|waits| past_waits(waits, *submitted))
                    .unwrap_or_default(),
                start: now,
            };
            self.open.entry(job).or_default().push(case);
            said.push((job, partition.clone(), told, at_levels));
        }
        self.learn(said);
    }

    /// Remembers the forecasts, until their jobs start.
    fn learn(&mut self, said: Vec<LevelledForecast>) {
        let of_level = |level: usize| {
            said.iter().map(move |(job, partition, said, ours)| {
                (
                    *job,
                    partition.clone(),
                    ToldStart {
                        interval: ours[level],
                        ..*said
                    },
                )
            })
        };
        for (level, calibration) in self.at_levels.iter_mut().enumerate() {
            calibration.say(of_level(level).collect());
        }
        self.calibration.say(
            said.into_iter()
                .map(|(job, partition, said, _)| (job, partition, said))
                .collect(),
        );
    }
}

/// A forecast of a job in a partition, and its interval at each level.
type LevelledForecast = (JobId, String, ToldStart, Vec<Option<Interval>>);

impl Observer for ForecastObserver {
    fn facts(&mut self, state: &State, events: &[Event]) {
        for event in events {
            match event {
                Event::RunPlaced { run, at, .. } if run.attempt == 1 => {
                    for calibration in self.at_levels.iter_mut().chain([&mut self.calibration]) {
                        calibration.over(run.job, *at, true);
                    }
                    let cases = self.open.remove(&run.job).unwrap_or_default();
                    self.closed.extend(
                        cases
                            .into_iter()
                            .map(|case| ForecastCase { start: *at, ..case }),
                    );
                    let Some(job) = state.jobs.get(run.job) else {
                        continue;
                    };
                    let waited = at.since_millis(job.submitted) / 1000;
                    if waited > LONG_WAIT_SECS {
                        let waits = self.waits.entry(job.spec.partition.clone()).or_default();
                        waits.push_back(waited);
                        if waits.len() > WAITS_KEPT {
                            waits.pop_front();
                        }
                    }
                }
                Event::RunEnded { run, outcome, .. } if outcome.requeue.is_none() => {
                    let (Some(job), Some(started)) = (state.jobs.get(run.job), outcome.started)
                    else {
                        continue;
                    };
                    self.lengths.note(
                        (&*job.spec).into(),
                        job.limit_secs,
                        outcome.ended.since_millis(started) / 1000,
                    );
                }
                _ => {}
            }
        }
    }

    fn rest(&mut self, state: &State, now: Timestamp) {
        if now >= self.next {
            self.next = now.plus_millis(self.every_ms);
            self.forecast(state, now);
        }
    }
}

fn starts(told: Vec<Forecast>) -> impl Iterator<Item = (JobId, Timestamp)> {
    told.into_iter()
        .filter_map(|one| Some((one.job, one.start?)))
}

/// What a partition's past waits say of a start, at each level.
fn past_waits(waits: &VecDeque<i64>, submitted: Timestamp) -> Vec<Interval> {
    let mut sorted: Vec<i64> = waits.iter().copied().collect();
    sorted.sort_unstable();
    let at = |milli: u32| sorted[((sorted.len() - 1) as u64 * u64::from(milli) / 1000) as usize];
    let of = |level: &u32| Interval {
        earliest: submitted.plus_secs(at((1000 - level) / 2)),
        latest: submitted.plus_secs(at(1000 - (1000 - level) / 2)),
    };
    LEVELS.iter().map(of).collect()
}

fn at_age(waited_secs: i64, cases: &[&ForecastCase]) -> AgeClass {
    let at = |level: u32| LEVELS.iter().position(|one| *one == level).unwrap_or(0);
    let ours = |level: usize| {
        told(
            cases
                .iter()
                .filter_map(|case| Some((*case, *case.ours.get(level)?))),
        )
    };
    let waits = |level: usize| {
        told(
            cases
                .iter()
                .filter_map(|case| Some((*case, *case.waits.get(level)?))),
        )
    };
    let nominal = told(cases.iter().filter_map(|case| Some((*case, case.nominal?))));
    let past_waits = waits(at(WAITS_LEVEL));
    let as_often = (0..LEVELS.len())
        .find(|level| waits(*level).coverage >= nominal.coverage)
        .unwrap_or(LEVELS.len() - 1);
    let ours_at = |coverage: f64| {
        (0..LEVELS.len())
            .find(|level| ours(*level).coverage >= coverage)
            .unwrap_or(at(NOMINAL_MILLI))
    };
    let past_waits_as_often = waits(as_often);
    let (equal, as_often_level) = (
        ours_at(past_waits.coverage),
        ours_at(past_waits_as_often.coverage),
    );
    let part = |level: usize| f64::from(LEVELS[level]) / 1000.0;
    let early = cases
        .iter()
        .filter(|case| case.start <= case.plans.expected)
        .count();
    AgeClass {
        waited_secs,
        nominal,
        past_waits,
        at_equal_coverage: ours(equal),
        level: part(equal),
        past_waits_as_often,
        past_waits_level: part(as_often),
        as_often_as_past_waits: ours(as_often_level),
        as_often_level: part(as_often_level),
        early: early as f64 / cases.len().max(1) as f64,
    }
}

fn told<'a>(intervals: impl Iterator<Item = (&'a ForecastCase, Interval)>) -> IntervalQuality {
    let mut widths = Vec::new();
    let mut of_wait = Vec::new();
    let mut right = 0;
    for (case, interval) in intervals {
        let width = interval.latest.since_millis(interval.earliest) as f64 / 1000.0;
        let wait = case.start.since_millis(case.submitted) as f64 / 1000.0;
        right += u64::from((interval.earliest..=interval.latest).contains(&case.start));
        widths.push(width);
        of_wait.push(width / wait.max(1.0));
    }
    let count = widths.len();
    let median = |values: &mut Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values.get(count / 2).copied().unwrap_or(0.0)
    };
    IntervalQuality {
        intervals: count as u64,
        coverage: right as f64 / count.max(1) as f64,
        mean_width_secs: widths.iter().sum::<f64>() / count.max(1) as f64,
        median_width_secs: median(&mut widths),
        median_width_of_wait: median(&mut of_wait),
    }
}
