//! Names of uids on the controller's host, remembered for a minute: the name service may be slow.
//!
//! Owns the memory; the name service is asked on a blocking thread. An unknown uid has the empty name.

use nix::unistd::{Uid, User};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const REMEMBER: Duration = Duration::from_secs(60);
/// Above this the memory starts anew.
const MOST: usize = 65_536;

#[derive(Clone, Debug, Default)]
pub struct UserNames {
    known: Arc<Mutex<HashMap<u32, (Instant, String)>>>,
}

impl UserNames {
    pub async fn of(&self, uid: u32) -> String {
        let remembered = self.known.lock().expect("no panic while held").get(&uid).cloned();
        if let Some((since, name)) = remembered
            && since.elapsed() < REMEMBER
        {
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
        let mut known = self.known.lock().expect("no panic while held");
        if known.len() >= MOST {
            known.clear();
        }
        known.insert(uid, (Instant::now(), name.clone()));
        name
    }
}
