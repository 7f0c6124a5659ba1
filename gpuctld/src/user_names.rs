//! Users as the controller's host knows them, remembered for a minute: the name service may be slow.
//!
//! Owns the memory; the name service is asked on a blocking thread. Names uids of the controller's own socket, and compares what other
//! machines say of their users with what is known here.

use nix::unistd::{Gid, Uid, User, getgrouplist};
use std::collections::HashMap;
use std::ffi::CString;
use std::hash::Hash;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const REMEMBER: Duration = Duration::from_secs(60);
/// Above this the memory starts anew.
const MOST: usize = 65_536;

#[derive(Clone, Debug, Default)]
pub struct UserNames {
    known: TimedCache<u32, String>,
    vouched: TimedCache<ClaimedUser, Result<UserMatch, String>>,
}

/// A user as another machine's daemon names them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClaimedUser {
    pub uid: u32,
    pub gid: u32,
    pub name: String,
}

/// What this host knows of a user that another machine names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UserMatch {
    /// By the same name and numbers.
    Same,
    /// Neither the name nor the uid.
    Unknown,
}

#[derive(Debug)]
struct TimedCache<K, V>(Arc<Mutex<HashMap<K, (Instant, V)>>>);

impl<K, V> Clone for TimedCache<K, V> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K, V> Default for TimedCache<K, V> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K: Eq + Hash, V: Clone> TimedCache<K, V> {
    fn get(&self, key: &K) -> Option<V> {
        let known = self.0.lock().expect("no panic while held");
        known
            .get(key)
            .filter(|(since, _)| since.elapsed() < REMEMBER)
            .map(|(_, value)| value.clone())
    }

    fn put(&self, key: K, value: V) {
        let mut known = self.0.lock().expect("no panic while held");
        if known.len() >= MOST {
            known.clear();
        }
        known.insert(key, (Instant::now(), value));
    }
}

impl UserNames {
    /// The name of a uid; empty when it has none.
    pub async fn of(&self, uid: u32) -> String {
        if let Some(name) = self.known.get(&uid) {
            return name;
        }
        let asked = tokio::task::spawn_blocking(move || User::from_uid(Uid::from_raw(uid))).await;
        let name = match asked {
            Ok(Ok(user)) => user.map_or(String::new(), |user| user.name),
            Ok(Err(e)) => {
                tracing::warn!("the name service does not say who uid {uid} is: {e}");
                return String::new();
            }
            Err(_) => return String::new(),
        };
        self.known.put(uid, name.clone());
        name
    }

    /// Whether a user that another machine names is the same one here.
    ///
    /// # Errors
    /// The sentence for the user: here the name, the uid or the group is another's. The outer error: the name service does not answer.
    pub async fn compare(
        &self,
        claimed: ClaimedUser,
    ) -> std::io::Result<Result<UserMatch, String>> {
        if let Some(known) = self.vouched.get(&claimed) {
            return Ok(known);
        }
        let asked = claimed.clone();
        let standing = tokio::task::spawn_blocking(move || compare(&asked))
            .await
            .map_err(std::io::Error::other)??;
        self.vouched.put(claimed, standing.clone());
        Ok(standing)
    }
}

fn compare(
    ClaimedUser { uid, gid, name }: &ClaimedUser,
) -> std::io::Result<Result<UserMatch, String>> {
    let refused = |here: String| {
        Ok(Err(format!(
            "on the machine you are on you are {name} (uid {uid}); on the controller's host {here}. Names and uids have to be the same on both"
        )))
    };
    let (by_name, by_uid) = (User::from_name(name)?, User::from_uid(Uid::from_raw(*uid))?);
    let user = match (by_name, by_uid) {
        (Some(user), _) if user.uid.as_raw() == *uid => user,
        (Some(user), _) => return refused(format!("{name} is uid {}", user.uid)),
        (None, Some(user)) => return refused(format!("uid {uid} is {}", user.name)),
        (None, None) if *gid == 0 => {
            return refused("nothing is known of you, and group 0 is root's".into());
        }
        (None, None) => return Ok(Ok(UserMatch::Unknown)),
    };
    let groups = CString::new(user.name.as_str()).map_err(std::io::Error::other)?;
    let groups = getgrouplist(&groups, user.gid)?;
    match user.gid.as_raw() == *gid || groups.contains(&Gid::from_raw(*gid)) {
        true => Ok(Ok(UserMatch::Same)),
        false => refused(format!("{name} is not in group {gid}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standing(uid: u32, gid: u32, name: &str) -> Result<UserMatch, String> {
        compare(&ClaimedUser {
            uid,
            gid,
            name: name.into(),
        })
        .unwrap()
    }

    #[test]
    fn a_name_and_a_uid_count_only_together() {
        // daemon is uid 1 wherever Linux is.
        assert_eq!(standing(1, 1, "daemon"), Ok(UserMatch::Same));
        assert_eq!(
            standing(1_234_567, 1_234_567, "nobody-we-know"),
            Ok(UserMatch::Unknown)
        );
        for (uid, gid, name) in [
            (1001, 1001, "root"),
            (1, 1, "root"),
            (0, 0, "daemon"),
            (2, 1, "daemon"),
            (1, 1, "nobody-we-know"),
            (1, 0, "daemon"),
            (1_234_567, 0, "nobody-we-know"),
        ] {
            let refused = standing(uid, gid, name).expect_err(name);
            assert!(refused.contains("on the controller's"), "{refused}");
        }
    }
}
