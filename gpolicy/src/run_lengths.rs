//! How long runs take, learned from ended runs as a share of their limits, by user and kind of job.
//!
//! Most limits are far too long (Mu'alem and Feitelson 2001). A user's last runs predict the next best (Tsafrir, Etsion and
//! Feitelson 2007). Integers and bounds; never decides what starts.

use crate::pending_job::PendingJob;
use crate::running_run::{RunningRun, end_of};
use gmodel::{JobSpec, Timestamp};
use std::collections::{BTreeMap, VecDeque};

/// Runs remembered of each user, account and partition.
const RUNS_KEPT: usize = 32;
/// A group with fewer runs predicts nothing.
const FEWEST_RUNS: usize = 4;
/// How many groups are remembered; the group that was longest without a run is forgotten first.
const MOST_GROUPS: usize = 16_384;
/// The length of a run without a limit is a share of this.
const NOMINAL_SECS: u32 = 86_400;

/// The lengths of recent runs.
#[derive(Clone, Debug, Default)]
pub struct RunLengths {
    groups: BTreeMap<Group, Runs>,
    /// Groups by when they had a run last.
    by_age: BTreeMap<u64, Group>,
    count: u64,
}

/// Groups of runs, from narrow to wide. Runs with and without a limit are apart.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Group {
    /// Account, user and limit.
    Habit(String, String, u32),
    User(String, String, bool),
    Account(String, bool),
    Partition(String, bool),
    All(bool),
}

/// The user, account and partition of a run.
#[derive(Clone, Copy, Debug)]
pub struct RunOwner<'a> {
    pub account: &'a str,
    pub user: &'a str,
    pub partition: &'a str,
}

impl<'a> From<&'a JobSpec> for RunOwner<'a> {
    fn from(spec: &'a JobSpec) -> Self {
        Self {
            account: &spec.account,
            user: &spec.user.name,
            partition: &spec.partition,
        }
    }
}

#[derive(Clone, Debug, Default)]
struct Runs {
    /// Thousandths of the limit, oldest first.
    shares: VecDeque<u32>,
    last: u64,
}

impl RunLengths {
    /// Takes a run that ended by itself, at its limit, or cancelled by its user.
    pub fn note(&mut self, owner: RunOwner, limit_secs: Option<u32>, ran_secs: i64) {
        let base = i64::from(limit_secs.unwrap_or(NOMINAL_SECS)).max(1);
        let most = if limit_secs.is_some() {
            1000
        } else {
            i64::from(u32::MAX)
        };
        let share = (ran_secs.max(0).saturating_mul(1000) / base).min(most) as u32;
        for group in groups(owner, limit_secs) {
            self.count += 1;
            let runs = self.groups.entry(group.clone()).or_default();
            self.by_age.remove(&runs.last);
            runs.last = self.count;
            runs.shares.push_back(share);
            if runs.shares.len() > RUNS_KEPT {
                runs.shares.pop_front();
            }
            self.by_age.insert(self.count, group);
        }
        while self.groups.len() > MOST_GROUPS
            && let Some((_, oldest)) = self.by_age.pop_first()
        {
            self.groups.remove(&oldest);
        }
    }

    /// The expected length of a run in all, seconds, after `ran_secs`: the mean of longer runs in the narrowest group with
    /// enough runs. `None`: nothing is known.
    pub fn expected_secs(
        &self,
        owner: RunOwner,
        limit_secs: Option<u32>,
        ran_secs: i64,
    ) -> Option<i64> {
        let base = i64::from(limit_secs.unwrap_or(NOMINAL_SECS)).max(1);
        for group in groups(owner, limit_secs) {
            let Some(runs) = self
                .groups
                .get(&group)
                .filter(|runs| runs.shares.len() >= FEWEST_RUNS)
            else {
                continue;
            };
            let took = runs
                .shares
                .iter()
                .map(|share| i64::from(*share) * base / 1000);
            let (count, sum) = took
                .filter(|secs| *secs > ran_secs)
                .fold((0, 0_i64), |(n, sum), secs| (n + 1, sum + secs));
            if count > 0 {
                return Some((sum / count).max(1));
            }
        }
        None
    }

    /// Ends each run when it is expected to end. A run without a prediction keeps its limit.
    pub fn expect_ends(&self, now: Timestamp, runs: &mut [RunningRun]) {
        for run in runs {
            let from = run.started.unwrap_or(run.placed);
            let limit_secs = run
                .ends_by
                .map(|end| u32::try_from(end.since_millis(from) / 1000).unwrap_or(0));
            let ran_secs = now.since_millis(from) / 1000;
            if let Some(secs) = self.expected_secs((&*run.spec).into(), limit_secs, ran_secs) {
                run.ends_by = Some(soonest(from.plus_secs(secs), now).min(end_of(run)));
            }
        }
    }

    /// Gives each pending job the limit that it is expected to need. Before a reservation's window a job still needs the room
    /// of its own limit.
    pub fn expect_limits(&self, has_reservations: bool, pending: &mut [PendingJob]) {
        for job in pending {
            if let Some(secs) = self.expected_secs((&*job.spec).into(), job.limit_secs, -1) {
                let (most, window) = (
                    job.limit_secs.unwrap_or(u32::MAX),
                    job.spec.time_min_secs.unwrap_or(job.held_secs()),
                );
                let believed = u32::try_from(secs).unwrap_or(u32::MAX).min(most).max(1);
                job.limit_secs = Some(believed);
                if has_reservations && believed < window {
                    job.particulars.window_secs = Some(window);
                }
            }
        }
    }
}

fn soonest(end: Timestamp, now: Timestamp) -> Timestamp {
    end.max(now.plus_secs(1))
}

fn groups(owner: RunOwner, limit_secs: Option<u32>) -> [Group; 5] {
    let (account, user, limited) = (
        owner.account.to_owned(),
        owner.user.to_owned(),
        limit_secs.is_some(),
    );
    [
        Group::Habit(
            account.clone(),
            user.clone(),
            limit_secs.unwrap_or(u32::MAX),
        ),
        Group::User(account.clone(), user, limited),
        Group::Account(account, limited),
        Group::Partition(owner.partition.to_owned(), limited),
        Group::All(limited),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by<'a>(account: &'a str, user: &'a str) -> RunOwner<'a> {
        RunOwner {
            account,
            user,
            partition: "p",
        }
    }

    #[test]
    fn the_narrowest_group_with_enough_runs_speaks() {
        let mut lengths = RunLengths::default();
        assert_eq!(lengths.expected_secs(by("a", "ann"), Some(1000), 0), None);
        for _ in 0..4 {
            lengths.note(by("a", "bob"), Some(1000), 500);
        }
        assert_eq!(
            lengths.expected_secs(by("a", "ann"), Some(2000), 0),
            Some(1000),
            "as others of the account"
        );
        for _ in 0..4 {
            lengths.note(by("a", "ann"), Some(1000), 100);
        }
        assert_eq!(
            lengths.expected_secs(by("a", "ann"), Some(2000), 0),
            Some(200),
            "as she does"
        );
        for _ in 0..4 {
            lengths.note(by("a", "ann"), Some(2000), 1800);
        }
        assert_eq!(
            lengths.expected_secs(by("a", "ann"), Some(2000), 0),
            Some(1800),
            "as she does with this limit"
        );
        assert_eq!(
            lengths.expected_secs(by("z", "zoe"), None, 0),
            None,
            "runs without a limit are others"
        );
    }

    #[test]
    fn a_run_is_compared_with_those_that_were_longer() {
        let mut lengths = RunLengths::default();
        for secs in [100, 100, 100, 900] {
            lengths.note(by("a", "ann"), Some(1000), secs);
        }
        assert_eq!(
            lengths.expected_secs(by("a", "ann"), Some(1000), 0),
            Some(300)
        );
        assert_eq!(
            lengths.expected_secs(by("a", "ann"), Some(1000), 100),
            Some(900)
        );
        assert_eq!(
            lengths.expected_secs(by("a", "ann"), Some(1000), 950),
            None,
            "none was"
        );
    }

    #[test]
    fn groups_are_bounded_and_the_stalest_goes() {
        let mut lengths = RunLengths::default();
        for n in 0..MOST_GROUPS {
            lengths.note(by("a", &format!("u{n}")), Some(1000), 100);
        }
        assert_eq!(lengths.groups.len(), MOST_GROUPS);
        assert_eq!(lengths.by_age.len(), MOST_GROUPS);
        assert!(
            lengths.groups.contains_key(&Group::All(true)),
            "had a run just now"
        );
        assert!(
            !lengths
                .groups
                .contains_key(&Group::User("a".into(), "u0".into(), true))
        );
    }
}
