//! Forecasts of starts, one plan for all questions that arrive while another plan is made: a long queue costs seconds of one processor.
//!
//! A question joins the next plan with its jobs. The plan is made of the state at that moment, so never of an older one
//! than the question. It is dropped with the last question.

use crate::core_thread::{CoreHandle, now};
use crate::forecaster::Forecaster;
use crate::http::error::ApiError;
use gcore::ctl::{State, snapshot};
use gmodel::{JobId, Timestamp};
use gsched::{Engine, Forecast, Snapshot, WorkBudget};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::OnceCell;

/// Steps of work of one plan, or of one question.
pub(crate) const WORK: WorkBudget = WorkBudget {
    node_probes: 200_000_000,
    starts: usize::MAX,
};

/// The forecasts of one plan, and the state that it was made of.
pub(crate) struct ForecastPlan {
    pub state: Arc<State>,
    pub picture: Snapshot,
    pub now: Timestamp,
    /// If every run goes to its limit.
    pub at_limits: Forecasts,
    /// If everything takes as long as its like did of late.
    pub expected: Forecasts,
}

/// Forecasts of queue entries, in the order of the plan.
#[derive(Default)]
pub(crate) struct Forecasts {
    list: Vec<Forecast>,
    places: BTreeMap<EntryKey, usize>,
}

/// A job, or an array (`true`) by its own id.
pub(crate) type EntryKey = (JobId, bool);

impl Forecasts {
    fn new(list: Vec<Forecast>) -> Self {
        let places = list
            .iter()
            .enumerate()
            .map(|(place, one)| ((one.job, one.is_array), place))
            .collect();
        Self { list, places }
    }

    pub fn place(&self, entry: EntryKey) -> Option<usize> {
        self.places.get(&entry).copied()
    }

    pub fn of(&self, entry: EntryKey) -> Option<&Forecast> {
        self.place(entry).map(|place| &self.list[place])
    }
}

/// Makes the plans, one at a time.
#[derive(Default)]
pub(crate) struct ForecastPlanner {
    next: Mutex<Arc<PendingForecast>>,
    /// Questions about the future are worked out one at a time: frequent ones must not slow down the others.
    turn: tokio::sync::Mutex<()>,
    /// Plans that were made, at limits and as expected together.
    #[cfg(test)]
    pub made: std::sync::atomic::AtomicUsize,
}

/// A plan that is still to be made.
#[derive(Default)]
struct PendingForecast {
    asked: Mutex<BTreeSet<JobId>>,
    plan: OnceCell<Arc<ForecastPlan>>,
}

impl ForecastPlanner {
    /// Held while a question about the future is worked out.
    pub async fn turn(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.turn.lock().await
    }

    /// A plan with forecasts of these jobs (an array by its own id) and perhaps of others.
    ///
    /// # Errors
    /// The plan could not be made.
    pub async fn plan_for(
        &self,
        jobs: &BTreeSet<JobId>,
        core: &CoreHandle,
        forecaster: &Forecaster,
    ) -> Result<Arc<ForecastPlan>, ApiError> {
        let joined = self.join(jobs);
        let made = joined
            .plan
            .get_or_try_init(|| self.make(&joined, core, forecaster))
            .await?;
        Ok(made.clone())
    }

    fn join(&self, jobs: &BTreeSet<JobId>) -> Arc<PendingForecast> {
        let next = lock(&self.next);
        lock(&next.asked).extend(jobs);
        next.clone()
    }

    async fn make(
        &self,
        joined: &Arc<PendingForecast>,
        core: &CoreHandle,
        forecaster: &Forecaster,
    ) -> Result<Arc<ForecastPlan>, ApiError> {
        let _turn = self.turn().await;
        let asked = {
            let mut next = lock(&self.next);
            // A question from here on may mean a newer state.
            if Arc::ptr_eq(&next, joined) {
                *next = Arc::default();
            }
            lock(&joined.asked).clone()
        };
        #[cfg(test)]
        self.made.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let state = core.view().await;
        let forecaster = forecaster.clone();
        let task = tokio::task::spawn_blocking(move || {
            ForecastPlan::new(state, &asked, &forecaster, now())
        });
        task.await
            .map(Arc::new)
            .map_err(|_| ApiError::unavailable("the starts could not be worked out; this is a bug"))
    }
}

impl ForecastPlan {
    fn new(
        state: Arc<State>,
        jobs: &BTreeSet<JobId>,
        forecaster: &Forecaster,
        now: Timestamp,
    ) -> Self {
        let picture = snapshot(&state, now);
        let mut engine = Engine::default();
        let at_limits = engine.forecast(&picture, jobs, WORK);
        let expected = expected_starts(&mut engine, &picture, jobs, forecaster);
        Self {
            state,
            picture,
            now,
            at_limits: Forecasts::new(at_limits),
            expected: Forecasts::new(expected),
        }
    }
}

/// If everything takes as long as its like did of late. What an engine knows of the picture from a plan by limits is not worked out
/// again.
pub(crate) fn expected_starts(
    engine: &mut Engine,
    picture: &Snapshot,
    jobs: &BTreeSet<JobId>,
    forecaster: &Forecaster,
) -> Vec<Forecast> {
    if jobs.is_empty() {
        return Vec::new();
    }
    engine.forecast(&picture.clone().believed(&forecaster.lengths()), jobs, WORK)
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().expect("no panic while held")
}
