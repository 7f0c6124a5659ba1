//! Which of the groups that partitions are for a user is in, as the controller's host knows it: asked of the name service off the core
//! thread, within a time, and remembered for a minute.
//!
//! Owns the memory and the bounds. What follows from the answer is the core's affair (`gcore/src/ctl/job/partition.rs`). A
//! group of which nothing was heard in time is left out of the answer: the core then says so where a partition is for it.

use gmodel::config::ClusterConfig;
use gmodel::partition_list::names;
use nix::unistd::{Gid, Group, User, getgrouplist};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::CString;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// How long the name service may take.
const PATIENCE: Duration = Duration::from_secs(5);
const REMEMBER: Duration = Duration::from_secs(60);
/// Threads that wait for the name service at once: one that hangs takes no others.
const MOST_ASKING: usize = 8;
/// Above this the memory starts anew.
const MOST: usize = 65_536;

/// Whether a user is in each of some groups.
pub type Membership = BTreeMap<String, bool>;

/// The groups of each partition that is for some; the default partition has no name besides its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartitionGroups(BTreeMap<String, Vec<String>>);

impl PartitionGroups {
    pub fn of(config: &ClusterConfig) -> Self {
        let some = config.partitions.iter();
        let some = some.filter(|one| !one.allow_groups.is_empty());
        let named = some.flat_map(|one| {
            let default = one.is_default.then(String::new);
            let names = default.into_iter().chain([one.name.clone()]);
            names.map(|name| (name, one.allow_groups.clone()))
        });
        Self(named.collect())
    }

    /// What has to be asked before a job goes to these partitions, as `--partition` names them.
    pub fn of_partitions(&self, list: &str) -> BTreeSet<String> {
        if self.0.is_empty() {
            return BTreeSet::new();
        }
        // An empty list is the default partition.
        let names = names(list).chain([""].into_iter().filter(|_| list.is_empty()));
        let groups = names.filter_map(|name| self.0.get(name));
        groups.flatten().cloned().collect()
    }

    pub fn all(&self) -> BTreeSet<String> {
        self.0.values().flatten().cloned().collect()
    }
}

#[derive(Debug)]
pub struct GroupMembers {
    patience: Duration,
    known: Mutex<HashMap<String, (Instant, Membership)>>,
    asking: Arc<Semaphore>,
}

impl Default for GroupMembers {
    fn default() -> Self {
        Self {
            patience: PATIENCE,
            known: Mutex::default(),
            asking: Arc::new(Semaphore::new(MOST_ASKING)),
        }
    }
}

impl GroupMembers {
    /// For each of the groups whether the user is in it; without those that the name service did not tell of in time.
    pub async fn of(&self, user: &str, groups: &BTreeSet<String>) -> Membership {
        self.asked_by(user, groups, look_up).await
    }

    async fn asked_by(
        &self,
        user: &str,
        groups: &BTreeSet<String>,
        look_up: fn(&str, &BTreeSet<String>) -> nix::Result<Membership>,
    ) -> Membership {
        if groups.is_empty() {
            return Membership::new();
        }
        if let Some(known) = self.remembered(user, groups) {
            return known;
        }
        let asking = self.asking.clone();
        let asked = (user.to_owned(), groups.clone());
        let answer = tokio::time::timeout(self.patience, async move {
            let permit = asking.acquire_owned().await.ok()?;
            let task = tokio::task::spawn_blocking(move || {
                let _permit = permit;
                look_up(&asked.0, &asked.1)
            });
            task.await.ok()
        });
        match answer.await {
            Ok(Some(Ok(told))) => {
                self.remember(user, told.clone());
                told
            }
            Ok(Some(Err(error))) => {
                tracing::warn!("the name service does not say which groups {user} is in: {error}");
                Membership::new()
            }
            Ok(None) => Membership::new(),
            Err(_) => {
                let patience = self.patience;
                tracing::warn!(
                    "the name service does not say within {patience:?} which groups {user} is in"
                );
                Membership::new()
            }
        }
    }

    fn remembered(&self, user: &str, groups: &BTreeSet<String>) -> Option<Membership> {
        let known = self.known.lock().expect("no panic while held");
        let (since, told) = known.get(user)?;
        let is_all = groups.iter().all(|group| told.contains_key(group));
        (since.elapsed() < REMEMBER && is_all).then(|| told.clone())
    }

    fn remember(&self, user: &str, told: Membership) {
        let mut known = self.known.lock().expect("no panic while held");
        if known.len() >= MOST {
            known.clear();
        }
        known.insert(user.to_owned(), (Instant::now(), told));
    }
}

/// A user or a group that this host does not know: the user is not in it.
fn look_up(user: &str, groups: &BTreeSet<String>) -> nix::Result<Membership> {
    let own: Vec<Gid> = match (User::from_name(user)?, CString::new(user)) {
        (Some(found), Ok(name)) => getgrouplist(&name, found.gid)?,
        _ => Vec::new(),
    };
    let is_in = |group: &String| {
        let found = Group::from_name(group)?;
        let is_in = found.is_some_and(|found| own.contains(&found.gid));
        Ok((group.clone(), is_in))
    };
    groups.iter().map(is_in).collect()
}

/// Those of the groups that this host does not know: they may come, or be a slip. None where the name service does not answer in time.
pub async fn unknown(groups: Vec<String>) -> Vec<String> {
    let task = tokio::task::spawn_blocking(move || {
        let is_unknown = |group: &String| matches!(Group::from_name(group), Ok(None));
        groups.into_iter().filter(is_unknown).collect()
    });
    let told = tokio::time::timeout(PATIENCE, task).await;
    told.ok().and_then(Result::ok).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[tokio::test]
    async fn a_user_is_in_its_groups_and_in_no_others() {
        let members = GroupMembers::default();
        let asked = groups(&["root", "daemon", "no-such-group"]);
        let told = members.of("root", &asked).await;
        assert_eq!((told["root"], told["no-such-group"]), (true, false));
        let told = members.of("nobody-we-know", &asked).await;
        assert!(told.len() == 3 && told.values().all(|is_in| !is_in));
        assert!(members.of("root", &BTreeSet::new()).await.is_empty());
    }

    #[tokio::test]
    async fn an_answer_counts_for_a_minute_and_for_the_groups_that_were_asked() {
        let members = GroupMembers::default();
        let yes = |_: &str, all: &BTreeSet<String>| {
            Ok(all.iter().map(|one| (one.clone(), true)).collect())
        };
        let no = |_: &str, all: &BTreeSet<String>| {
            Ok(all.iter().map(|one| (one.clone(), false)).collect())
        };
        assert!(members.asked_by("ada", &groups(&["a"]), yes).await["a"]);
        assert!(members.asked_by("ada", &groups(&["a"]), no).await["a"]);
        let told = members.asked_by("ada", &groups(&["a", "b"]), no).await;
        assert_eq!((told["a"], told["b"]), (false, false));
    }

    #[tokio::test]
    async fn a_name_service_that_fails_or_hangs_tells_nothing_and_is_asked_again() {
        let members = GroupMembers {
            patience: Duration::from_millis(50),
            ..GroupMembers::default()
        };
        let fails = |_: &str, _: &BTreeSet<String>| Err(nix::Error::EIO);
        let asked = groups(&["a"]);
        assert!(members.asked_by("ada", &asked, fails).await.is_empty());
        // All threads that may wait for it do.
        let asking = members.asking.clone();
        let all = asking.acquire_many_owned(MOST_ASKING as u32).await.unwrap();
        assert!(members.of("root", &asked).await.is_empty());
        drop(all);
        let no = |_: &str, _: &BTreeSet<String>| Ok([("a".to_owned(), false)].into());
        assert_eq!(members.asked_by("ada", &asked, no).await.len(), 1);
    }
}
