//! Places for a number of guests, with a share for each and some kept for operators: connections, answers being written, bytes being
//! received. Nobody can take all of them, and a place that is left is free at once. Knows neither sockets nor users.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

/// How many places there are.
#[derive(Clone, Copy, Debug)]
pub struct Places {
    pub all: usize,
    /// For one guest; those who are privileged may have more.
    pub each: usize,
    /// Of all, those that only privileged guests may have.
    pub kept: usize,
}

/// Cheap to clone.
#[derive(Clone, Debug)]
pub struct Door<G: Ord> {
    inner: Arc<Inner<G>>,
}

#[derive(Debug)]
struct Inner<G: Ord> {
    places: Places,
    taken: Mutex<Taken<G>>,
    freed: Notify,
}

#[derive(Debug)]
struct Taken<G> {
    all: usize,
    by: BTreeMap<G, usize>,
}

/// Places that are taken until this is dropped.
#[derive(Debug)]
pub struct Place<G: Ord> {
    inner: Arc<Inner<G>>,
    guest: G,
    count: usize,
}

/// There is no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// The guest has all that one may have: so many.
    Each(usize),
    /// Others have them.
    All(usize),
}

impl<G: Ord + Clone> Door<G> {
    pub fn new(places: Places) -> Self {
        let taken = Mutex::new(Taken {
            all: 0,
            by: BTreeMap::new(),
        });
        Self {
            inner: Arc::new(Inner {
                places,
                taken,
                freed: Notify::new(),
            }),
        }
    }

    /// Takes so many places now.
    ///
    /// # Errors
    /// There are not so many.
    pub fn enter(&self, guest: G, privileged: bool, count: usize) -> Result<Place<G>, Full> {
        let Places { all, each, kept } = self.inner.places;
        let mut taken = self.inner.taken();
        let own = taken.by.get(&guest).copied().unwrap_or(0) + count;
        if own > each && !privileged {
            return Err(Full::Each(each));
        }
        let most = if privileged {
            all
        } else {
            all.saturating_sub(kept)
        };
        if taken.all + count > most {
            return Err(Full::All(most));
        }
        taken.all += count;
        taken.by.insert(guest.clone(), own);
        Ok(Place {
            inner: self.inner.clone(),
            guest,
            count,
        })
    }

    /// Waits so long for so many places.
    ///
    /// # Errors
    /// There were none in time.
    pub async fn wait(
        &self,
        guest: G,
        privileged: bool,
        count: usize,
        patience: Duration,
    ) -> Result<Place<G>, Full> {
        let deadline = Instant::now() + patience;
        loop {
            let freed = self.inner.freed.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            match self.enter(guest.clone(), privileged, count) {
                Ok(place) => return Ok(place),
                Err(full) if timeout_at(deadline, freed).await.is_err() => return Err(full),
                Err(_) => {}
            }
        }
    }

    /// All that are taken.
    pub fn taken(&self) -> usize {
        self.inner.taken().all
    }
}

impl<G: Ord> Inner<G> {
    fn taken(&self) -> MutexGuard<'_, Taken<G>> {
        self.taken.lock().expect("no panic while held")
    }
}

impl<G: Ord> Drop for Place<G> {
    fn drop(&mut self) {
        {
            let mut taken = self.inner.taken();
            taken.all -= self.count;
            let own = taken.by.get_mut(&self.guest).expect("entered");
            *own -= self.count;
            if *own == 0 {
                taken.by.remove(&self.guest);
            }
        }
        self.inner.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_takes_all_places_and_some_are_kept() {
        let door = Door::new(Places {
            all: 10,
            each: 4,
            kept: 2,
        });
        let enter = |guest: u32, privileged| door.enter(guest, privileged, 1);
        let mut inside: Vec<_> = (0..4).map(|_| enter(1, false).unwrap()).collect();
        assert_eq!(enter(1, false).unwrap_err(), Full::Each(4));
        inside.extend((0..4).map(|_| enter(2, false).unwrap()));
        assert_eq!(enter(3, false).unwrap_err(), Full::All(8));
        let operators: Vec<_> = (0..2).map(|_| enter(0, true).unwrap()).collect();
        assert_eq!(enter(0, true).unwrap_err(), Full::All(10));
        inside.truncate(7);
        drop(operators);
        assert_eq!((door.taken(), enter(3, false).is_ok()), (7, true));
        drop(inside);
        assert_eq!((door.taken(), door.inner.taken().by.len()), (0, 0));
    }

    #[tokio::test]
    async fn who_waits_enters_when_there_is_room_and_not_for_ever() {
        let door = Door::new(Places {
            all: 8,
            each: 8,
            kept: 0,
        });
        let patience = Duration::from_secs(20);
        let place = door.wait(1, false, 6, patience).await.unwrap();
        assert_eq!(
            door.wait(2, false, 3, Duration::from_millis(10))
                .await
                .unwrap_err(),
            Full::All(8)
        );
        let other = tokio::spawn({
            let door = door.clone();
            async move { door.wait(2, false, 3, patience).await.is_ok() }
        });
        tokio::task::yield_now().await;
        drop(place);
        assert!(other.await.unwrap());
    }
}
