//! What this cluster has shown of how long runs take and how forecast starts turn out; and the thread that keeps it so.
//!
//! Channels: the thread owns the receiving end of `stop`; it asks the core for views and writes only the table of forecasts.
//! What a forecast is, and what is learned from it, is gsched's affair (`calibration`, `run_lengths`).

use crate::core_thread::{CoreHandle, now};
use crate::planner::step_back;
use crate::store::forecasts::{self, ForecastStore};
use gcore::ctl::{Job, State, snapshot};
use gmodel::{Instant, JobId, JobState, RunId, Timestamp};
use gpolicy::run_lengths::RunLengths;
use gsched::calibration::{Calibration, NOMINAL_MILLI, Outcome, Plans, Record, ToldStart};
use gsched::{Engine, Forecast, WorkBudget};
use gwire::api::{IntervalRecord, StartInterval};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// How often the thread looks.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// After a forecast of the queue it rests so many times as long as that took.
const REST_FACTOR: u32 = 50;
/// How often what runs took is read anew.
const LEARN_EVERY: Duration = Duration::from_secs(300);
/// Jobs that are forecast at once, from all over a longer queue.
const MOST_DUE: usize = 2048;
/// Steps of work of one forecast.
const WORK: WorkBudget = WorkBudget {
    node_probes: 200_000_000,
    starts: usize::MAX,
};

/// Shared by the thread that learns and the handlers of requests. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Forecaster(Arc<Mutex<ForecasterData>>);

#[derive(Debug, Default)]
struct ForecasterData {
    lengths: Arc<RunLengths>,
    calibration: Calibration,
}

impl Forecaster {
    pub fn lengths(&self) -> Arc<RunLengths> {
        self.known().lengths.clone()
    }

    /// Between when a job that may start since `eligible` and of which the plans say so starts nine times in ten.
    pub fn interval(
        &self,
        partition: &str,
        eligible: Timestamp,
        plans: Plans,
        now: Timestamp,
    ) -> Option<StartInterval> {
        let waited_secs = now.since_millis(eligible).max(0) / 1000;
        let interval = self
            .known()
            .calibration
            .interval(partition, waited_secs, now, plans)?;
        Some(StartInterval {
            earliest: Some(Instant(interval.earliest)),
            latest: Some(Instant(interval.latest)),
            record: self.record(partition),
        })
    }

    /// How intervals of a partition turned out.
    pub fn record(&self, partition: &str) -> IntervalRecord {
        let Record {
            intervals,
            right,
            median_width_secs,
        } = self.known().calibration.record(Some(partition));
        let nominal_percent = NOMINAL_MILLI / 10;
        IntervalRecord {
            partition: partition.to_owned(),
            nominal_percent,
            intervals,
            right,
            median_width_secs,
        }
    }

    fn known(&self) -> MutexGuard<'_, ForecasterData> {
        self.0.lock().expect("no panic while held")
    }
}

/// Runs until `stop` is dropped. Trouble with the database is logged and tried again: forecasts are no promise.
pub fn run(database: &Path, core: &CoreHandle, forecaster: &Forecaster, stop: &Receiver<()>) {
    step_back();
    let mut rest = LOOK_EVERY;
    let mut learner = None;
    loop {
        if learner.is_none() {
            match Learner::begin(database, forecaster) {
                Ok(begun) => learner = Some(begun),
                Err(e) => tracing::warn!("cannot read forecasts of {}: {e}", database.display()),
            }
        }
        match stop.recv_timeout(rest) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
        }
        rest = LOOK_EVERY;
        let (Some(known), Some(view)) = (&mut learner, core.view_blocking()) else {
            continue;
        };
        let begun = std::time::Instant::now();
        match known.look(view, forecaster, now()) {
            Ok(true) => rest = rest.max(begun.elapsed() * REST_FACTOR),
            Ok(false) => {}
            Err(e) => {
                tracing::warn!("cannot keep forecasts in {}: {e}", database.display());
                learner = None;
            }
        }
    }
}

struct Learner {
    store: ForecastStore,
    learned: std::time::Instant,
}

impl Learner {
    /// What is on record, as it was before the controller stopped.
    fn begin(database: &Path, forecaster: &Forecaster) -> forecasts::StoreResult<Self> {
        let store = ForecastStore::open(database)?;
        let mut calibration = Calibration::default();
        store
            .outcomes()?
            .iter()
            .for_each(|outcome| calibration.learn(outcome));
        store
            .open_forecasts()?
            .into_iter()
            .for_each(|open| calibration.watch(open));
        let lengths = Arc::new(store.run_lengths()?);
        *forecaster.known() = ForecasterData {
            lengths,
            calibration,
        };
        Ok(Self {
            store,
            learned: std::time::Instant::now(),
        })
    }

    /// Learns from watched jobs that started or left the queue, and forecasts the jobs that are due. Whether there were any.
    fn look(
        &mut self,
        view: Arc<State>,
        forecaster: &Forecaster,
        now: Timestamp,
    ) -> forecasts::StoreResult<bool> {
        if self.learned.elapsed() > LEARN_EVERY {
            self.learned = std::time::Instant::now();
            forecaster.known().lengths = Arc::new(self.store.run_lengths()?);
            self.store.prune()?;
        }
        let (outcomes, forgotten) = follow(&mut forecaster.known().calibration, &view, now);
        self.store.close(&outcomes, &forgotten)?;
        let due = due(&forecaster.known().calibration, &view, now);
        if due.is_empty() {
            return Ok(false);
        }
        let picture = snapshot(&view, now);
        drop(view); // chunks that are not shared need not be copied
        let ids = due.keys().copied().collect();
        let starts = |told: Vec<Forecast>| {
            told.into_iter()
                .filter_map(|one| Some((one.job, one.start?)))
        };
        let at_limits: BTreeMap<JobId, Timestamp> =
            starts(Engine::default().forecast(&picture, &ids, WORK)).collect();
        let expected = starts(Engine::default().forecast(
            &picture.believed(&forecaster.lengths()),
            &ids,
            WORK,
        ));
        let mut known = forecaster.known();
        let mut said = Vec::new();
        for (one, expected) in expected {
            let Some((age, partition, waited_secs)) = due.get(&one) else {
                continue;
            };
            let Some(plans) = plans(Some(expected), at_limits.get(&one).copied(), now) else {
                continue;
            };
            let interval = known
                .calibration
                .interval(partition, *waited_secs, now, plans);
            said.push((
                one,
                partition.clone(),
                ToldStart {
                    age: *age,
                    at: now,
                    plans,
                    interval,
                },
            ));
        }
        let watched = known.calibration.say(said);
        drop(known);
        self.store.say(&watched)?;
        Ok(true)
    }
}

/// What two plans say of a start; nothing where only runs and jobs as short as is usual leave room now: what goes by time limits, as a
/// cap of GPU-hours, does not.
pub fn plans(
    expected: Option<Timestamp>,
    at_limits: Option<Timestamp>,
    now: Timestamp,
) -> Option<Plans> {
    let expected = expected.filter(|at| at_limits.is_some() || *at > now)?;
    Some(Plans {
        expected,
        at_limits: at_limits.unwrap_or(expected),
    })
}

type DueForecasts = BTreeMap<JobId, (u8, String, i64)>;

/// Jobs that are to be forecast now: age, partition, seconds waited. A job with a hold or a dependency is not.
fn due(calibration: &Calibration, view: &State, now: Timestamp) -> DueForecasts {
    let waiting = |job: &&Job| {
        job.state == JobState::Pending
            && job.attempts == 0
            && job.holds.is_empty()
            && job.waits.is_none()
    };
    let all = || {
        view.jobs.values().filter(waiting).filter_map(|job| {
            let waited_secs = now.since_millis(job.eligible) / 1000;
            let age = (waited_secs >= 0)
                .then(|| calibration.due(job.id, waited_secs))
                .flatten()?;
            Some((job, age, waited_secs))
        })
    };
    let some = all().step_by(all().count().div_ceil(MOST_DUE).max(1));
    some.map(|(job, age, waited_secs)| (job.id, (age, job.spec.partition.clone(), waited_secs)))
        .collect()
}

/// What became of the jobs that are watched: outcomes, and jobs that say nothing of waiting any more.
fn follow(
    calibration: &mut Calibration,
    view: &State,
    now: Timestamp,
) -> (Vec<Outcome>, BTreeSet<JobId>) {
    let watched: Vec<JobId> = calibration.watched().collect();
    let (mut outcomes, mut forgotten) = (Vec::new(), BTreeSet::new());
    for id in watched {
        match view.jobs.get(id) {
            Some(job) if job.attempts > 0 => {
                let first = view.runs.get(RunId::new(id, 1)).map(|run| run.placed);
                outcomes.extend(calibration.over(
                    id,
                    first.or(job.past.started).unwrap_or(now),
                    true,
                ));
            }
            Some(job)
                if job.state == JobState::Pending
                    && job.holds.is_empty()
                    && job.waits.is_none() => {}
            Some(job) if job.state.is_final() => {
                outcomes.extend(calibration.over(id, job.past.ended.unwrap_or(now), false))
            }
            _ => {
                calibration.forget(id);
                forgotten.insert(id);
            }
        }
    }
    (outcomes, forgotten)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gsched::calibration::Interval;

    #[test]
    fn a_question_gets_the_interval_with_its_record() {
        let forecaster = Forecaster::default();
        let at = |secs: i64| Timestamp::from_secs(1_000_000 + secs);
        let plans = Plans {
            expected: at(300),
            at_limits: at(600),
        };
        assert_eq!(
            forecaster.interval("p", at(0), plans, at(0)),
            None,
            "nothing is known yet"
        );
        for n in 0..100 {
            let begun = at((n - 100) * 1000);
            let plans = Plans {
                expected: begun.plus_secs(300),
                at_limits: begun.plus_secs(600),
            };
            let said = ToldStart {
                age: 0,
                at: begun,
                plans,
                interval: Some(Interval {
                    earliest: begun,
                    latest: begun.plus_secs(600 + n),
                }),
            };
            let mut known = forecaster.known();
            known
                .calibration
                .say(vec![(JobId(n as u64), "p".into(), said)]);
            known
                .calibration
                .over(JobId(n as u64), begun.plus_secs(650), true);
        }
        let told = forecaster.interval("p", at(0), plans, at(0)).unwrap();
        assert!(
            told.earliest <= Some(Instant(at(650))) && Some(Instant(at(650))) <= told.latest,
            "{told:?}"
        );
        assert_eq!(
            (
                told.record.intervals,
                told.record.right,
                told.record.median_width_secs
            ),
            (100, 50, Some(650))
        );
        let text = told.record.text().unwrap();
        assert_eq!(
            text,
            "50 of 100 intervals for starts in partition p were right (50.0%; 90% is meant); half are narrower than 11 min"
        );
    }
}
