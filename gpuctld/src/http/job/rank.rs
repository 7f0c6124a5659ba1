//! Priorities and places of waiting jobs as listings show them: computed for a listing, and kept for a moment.
//!
//! A short queue is ranked anew for each state; a long one in the background, so that no listing waits for it. The planner
//! never reads this: it ranks for itself.

use gcore::ctl::{State, snapshot};
use gmodel::{JobId, RunClass, Seq, Timestamp};
use gsched::ledger::Ledger;
use gsched::queue_order::{each_once, in_order};
use std::cmp::Reverse;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Queues of this length are ranked while a listing waits.
const RANKED_INLINE: usize = 1_000;
/// How old the ranks of a longer queue may be before they are made anew.
const FRESH: Duration = Duration::from_secs(5);
/// Age grows with time: the ranks of an unchanged short queue are made anew after so long.
const UNCHANGED: Duration = Duration::from_secs(10);

/// The order of the waiting jobs at one moment.
pub(crate) struct Ranks {
    seq: Seq,
    made: Instant,
    /// In the order of their ids.
    by_id: Vec<(JobId, Rank)>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Rank {
    /// 1 is next.
    pub(crate) position: u32,
    pub(crate) priority: i64,
    pub(crate) class: Option<RunClass>,
}

impl Ranks {
    pub(crate) fn of(state: Arc<State>, now: Timestamp) -> Self {
        let (seq, snapshot) = (state.seq, snapshot(&state, now));
        drop(state); // records that change meanwhile need not be kept twice
        let order = each_once(&snapshot, in_order(&snapshot, &Ledger::new(&snapshot)));
        let rank = |(place, ordered): (usize, &gsched::queue_order::OrderedJob)| {
            let position = u32::try_from(place + 1).unwrap_or(u32::MAX);
            let rank = Rank {
                position,
                priority: ordered.factors.priority,
                class: ordered.class,
            };
            (snapshot.pending[ordered.at].id, rank)
        };
        let mut by_id: Vec<(JobId, Rank)> = order.iter().enumerate().map(rank).collect();
        // An array and its first task have one id; it stands with the one that is later.
        by_id.sort_by_key(|(id, rank)| (*id, Reverse(rank.position)));
        by_id.dedup_by_key(|(id, _)| *id);
        Self {
            seq,
            made: Instant::now(),
            by_id,
        }
    }

    pub(crate) fn get(&self, job: JobId) -> Option<Rank> {
        let place = self.by_id.binary_search_by_key(&job, |(id, _)| *id).ok()?;
        Some(self.by_id[place].1)
    }
}

/// The last ranks.
#[derive(Default)]
pub(crate) struct RankCache {
    last: Mutex<Option<Arc<Ranks>>>,
    under_way: AtomicBool,
}

impl RankCache {
    fn last(&self) -> Option<Arc<Ranks>> {
        self.last
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn put(&self, ranks: Arc<Ranks>) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(ranks);
    }
}

impl RankCache {
    /// Ranks for a listing of this state; none before a long queue was ranked for the first time.
    pub(crate) fn ranks_of(
        self: &Arc<Self>,
        state: &Arc<State>,
        now: Timestamp,
    ) -> Option<Arc<Ranks>> {
        let last = self.last();
        let age = last
            .as_ref()
            .map_or(Duration::MAX, |last| last.made.elapsed());
        if state.jobs.len() + state.arrays.len() <= RANKED_INLINE {
            if let Some(last) = last.filter(|last| last.seq == state.seq && age < UNCHANGED) {
                return Some(last);
            }
            let ranks = Arc::new(Ranks::of(state.clone(), now));
            self.put(ranks.clone());
            return Some(ranks);
        }
        if age > FRESH && !self.under_way.swap(true, Ordering::AcqRel) {
            let (cache, state) = (self.clone(), state.clone());
            tokio::task::spawn_blocking(move || {
                cache.put(Arc::new(Ranks::of(state, now)));
                cache.under_way.store(false, Ordering::Release);
            });
        }
        last
    }
}

/// As the API shows a class.
pub(crate) const fn class_word(class: RunClass) -> Option<&'static str> {
    match class {
        RunClass::Guaranteed => Some("guaranteed"),
        RunClass::Borrowed => Some("borrowed"),
        RunClass::Unknown => None,
    }
}
