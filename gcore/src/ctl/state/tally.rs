//! Counts for limits at submission: jobs that are not over, and submissions of the last minute.

use gmodel::{JobSpec, Timestamp};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Most scopes with remembered submissions of the last minute; the oldest are forgotten.
const MAX_MINUTES: usize = 4096;

/// Most submissions a minute that are remembered of one scope.
const MAX_SUBMITS: usize = 10_000;

const MINUTE_MILLIS: i64 = 60_000;

/// Jobs that are not over, array tasks one by one, by account, user, QOS and partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally(BTreeMap<Arc<str>, u64>);

/// Times of recent submissions, by scope. A memo of the running controller: a restart forgets a minute.
#[derive(Clone, Debug, Default)]
pub struct SubmissionTimes(BTreeMap<String, VecDeque<Timestamp>>);

impl Tally {
    fn key(spec: &JobSpec) -> String {
        [&*spec.account, &spec.user.name, &spec.qos, &spec.partition].join("\0")
    }

    pub(crate) fn add(&mut self, spec: &JobSpec, jobs: u64) {
        if jobs > 0 {
            let key = Self::key(spec);
            match self.0.get_mut(&*key) {
                Some(count) => *count += jobs,
                None => drop(self.0.insert(key.into(), jobs)),
            }
        }
    }

    pub(crate) fn remove(&mut self, spec: &JobSpec, jobs: u64) {
        let key = Self::key(spec);
        if let Some(count) = self.0.get_mut(&*key) {
            *count -= jobs;
            if *count == 0 {
                self.0.remove(&*key);
            }
        }
    }

    /// Jobs of matching account, user, QOS and partition.
    pub fn count(&self, matches: impl Fn([&str; 4]) -> bool) -> u64 {
        let parts = |key: &'_ Arc<str>| -> bool {
            let mut parts = key.split('\0');
            matches(std::array::from_fn(|_| parts.next().unwrap_or("")))
        };
        self.0
            .iter()
            .filter(|(key, _)| parts(key))
            .map(|(_, count)| count)
            .sum()
    }
}

impl SubmissionTimes {
    /// Seconds until another submission is allowed; `None`: now.
    pub(crate) fn wait_secs(&self, subject: &str, most: u32, now: Timestamp) -> Option<i64> {
        let most = (most as usize).min(MAX_SUBMITS);
        let submits = self.0.get(subject)?;
        let decisive = submits.iter().rev().nth(most.checked_sub(1)?)?;
        let open = decisive.plus_millis(MINUTE_MILLIS);
        (open > now).then(|| (open.since_millis(now) + 999) / 1000)
    }

    pub(crate) fn note(&mut self, subject: String, most: u32, now: Timestamp) {
        if self.0.len() >= MAX_MINUTES {
            self.0.retain(|_, submits| {
                submits
                    .back()
                    .is_some_and(|at| at.plus_millis(MINUTE_MILLIS) > now)
            });
            if self.0.len() >= MAX_MINUTES {
                self.0.pop_first();
            }
        }
        let submits = self.0.entry(subject).or_default();
        submits.push_back(now);
        while submits.len() > (most as usize).min(MAX_SUBMITS) {
            submits.pop_front();
        }
    }
}
