//! Plans that foretell starts, made together for all who ask while another is being made: a long queue costs seconds of one processor.
//!
//! Who asks joins the plan that is made next, and says about whom. It is made of the state as it is when its turn comes, so never of
//! one that is older than the question, and it is gone with the last who asked.

use super::error::ApiError;
use super::{Site, now};
use crate::outlook::Outlook;
use gcore::ctl::{State, snapshot};
use gmodel::{JobId, Timestamp};
use gsched::{Engine, Forecast, Snapshot, WorkBudget};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::OnceCell;

/// Steps of work of one plan, or of one question.
pub(super) const WORK: WorkBudget = WorkBudget {
    node_probes: 200_000_000,
    starts: usize::MAX,
};

/// What was foretold, and of which state.
pub(super) struct Foreseen {
    pub state: Arc<State>,
    pub picture: Snapshot,
    pub now: Timestamp,
    /// If every run goes to its limit, and if everything takes as long as its like did of late.
    pub at_limits: Told,
    pub expected: Told,
}

/// What a plan foretells of entries of the queue, in its order.
#[derive(Default)]
pub(super) struct Told {
    list: Vec<Forecast>,
    places: BTreeMap<Entry, usize>,
}

/// A job, or an array (`true`) by its own id.
pub(super) type Entry = (JobId, bool);

impl Told {
    fn new(list: Vec<Forecast>) -> Self {
        let places = list
            .iter()
            .enumerate()
            .map(|(place, one)| ((one.job, one.tasks.is_some()), place))
            .collect();
        Self { list, places }
    }

    pub fn place(&self, entry: Entry) -> Option<usize> {
        self.places.get(&entry).copied()
    }

    pub fn of(&self, entry: Entry) -> Option<&Forecast> {
        self.place(entry).map(|place| &self.list[place])
    }
}

/// Those who ask, and whose turn it is.
#[derive(Default)]
pub(super) struct Foresight {
    next: Mutex<Arc<Next>>,
    /// Questions about the future are worked out one at a time: who asks often must not slow down the others.
    turn: tokio::sync::Mutex<()>,
    /// Plans that were made, at limits and as expected together.
    #[cfg(test)]
    pub made: std::sync::atomic::AtomicUsize,
}

/// A plan that is still to be made.
#[derive(Default)]
struct Next {
    asked: Mutex<BTreeSet<JobId>>,
    plan: OnceCell<Arc<Foreseen>>,
}

impl Foresight {
    /// Held while a question about the future is worked out.
    pub async fn turn(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.turn.lock().await
    }

    /// What is foretold of some jobs (an array by its own id) and perhaps of others.
    ///
    /// # Errors
    /// The plan could not be made.
    pub async fn of(&self, site: &Site, jobs: &BTreeSet<JobId>) -> Result<Arc<Foreseen>, ApiError> {
        let joined = self.join(jobs);
        let made = joined
            .plan
            .get_or_try_init(|| self.make(site, &joined))
            .await?;
        Ok(made.clone())
    }

    fn join(&self, jobs: &BTreeSet<JobId>) -> Arc<Next> {
        let next = lock(&self.next);
        lock(&next.asked).extend(jobs);
        next.clone()
    }

    async fn make(&self, site: &Site, joined: &Arc<Next>) -> Result<Arc<Foreseen>, ApiError> {
        let _turn = self.turn().await;
        let asked = {
            let mut next = lock(&self.next);
            // Who asks from here on may mean a newer state.
            if Arc::ptr_eq(&next, joined) {
                *next = Arc::default();
            }
            lock(&joined.asked).clone()
        };
        #[cfg(test)]
        self.made.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let state = site.core.view().await;
        let outlook = site.app.outlook().clone();
        let task =
            tokio::task::spawn_blocking(move || Foreseen::new(state, &asked, &outlook, now()));
        task.await
            .map(Arc::new)
            .map_err(|_| ApiError::unavailable("the starts could not be worked out; this is a bug"))
    }
}

impl Foreseen {
    fn new(state: Arc<State>, jobs: &BTreeSet<JobId>, outlook: &Outlook, now: Timestamp) -> Self {
        let picture = snapshot(&state, now);
        let mut engine = Engine::default();
        let at_limits = engine.forecast(&picture, jobs, WORK);
        let expected = expected_starts(&mut engine, &picture, jobs, outlook);
        Self {
            state,
            picture,
            now,
            at_limits: Told::new(at_limits),
            expected: Told::new(expected),
        }
    }
}

/// If everything takes as long as its like did of late. What an engine knows of the picture from a plan by limits is not worked out
/// again.
pub(super) fn expected_starts(
    engine: &mut Engine,
    picture: &Snapshot,
    jobs: &BTreeSet<JobId>,
    outlook: &Outlook,
) -> Vec<Forecast> {
    if jobs.is_empty() {
        return Vec::new();
    }
    engine.forecast(&outlook.lengths().believed(picture.clone()), jobs, WORK)
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().expect("no panic while held")
}
