//! Permits for a number of clients, with a share for each and some reserved for operators: connections, answers being written, bytes
//! being received. No client can take all of them, and a dropped permit is free at once. Knows neither sockets nor users.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

/// Numbers of permits.
#[derive(Clone, Copy, Debug)]
pub struct PermitLimits {
    pub all: usize,
    /// For one client; a privileged client may have more.
    pub per_client: usize,
    /// Of all, those for privileged clients only.
    pub reserved: usize,
}

/// Cheap to clone.
#[derive(Clone, Debug)]
pub struct PermitPool<C: Ord> {
    inner: Arc<SharedCounts<C>>,
}

#[derive(Debug)]
struct SharedCounts<C: Ord> {
    limits: PermitLimits,
    taken: Mutex<PermitCounts<C>>,
    freed: Notify,
}

#[derive(Debug)]
struct PermitCounts<C> {
    all: usize,
    by_client: BTreeMap<C, usize>,
}

/// Permits that are taken until this is dropped.
#[derive(Debug)]
pub struct Permit<C: Ord> {
    inner: Arc<SharedCounts<C>>,
    client: C,
    count: usize,
}

/// There is no permit, by which limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPermit {
    PerClient(usize),
    All(usize),
}

impl<C: Ord + Clone> PermitPool<C> {
    pub fn new(limits: PermitLimits) -> Self {
        let taken = Mutex::new(PermitCounts {
            all: 0,
            by_client: BTreeMap::new(),
        });
        Self {
            inner: Arc::new(SharedCounts {
                limits,
                taken,
                freed: Notify::new(),
            }),
        }
    }

    /// Takes so many permits now.
    ///
    /// # Errors
    /// There are too few.
    pub fn take(&self, client: C, privileged: bool, count: usize) -> Result<Permit<C>, NoPermit> {
        let PermitLimits {
            all,
            per_client,
            reserved,
        } = self.inner.limits;
        let mut taken = self.inner.taken();
        let own = taken.by_client.get(&client).copied().unwrap_or(0) + count;
        if own > per_client && !privileged {
            return Err(NoPermit::PerClient(per_client));
        }
        let most = if privileged {
            all
        } else {
            all.saturating_sub(reserved)
        };
        if taken.all + count > most {
            return Err(NoPermit::All(most));
        }
        taken.all += count;
        taken.by_client.insert(client.clone(), own);
        Ok(Permit {
            inner: self.inner.clone(),
            client,
            count,
        })
    }

    /// Waits so long for so many permits.
    ///
    /// # Errors
    /// There were none in time.
    pub async fn wait_for(
        &self,
        client: C,
        privileged: bool,
        count: usize,
        patience: Duration,
    ) -> Result<Permit<C>, NoPermit> {
        let deadline = Instant::now() + patience;
        loop {
            let freed = self.inner.freed.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            match self.take(client.clone(), privileged, count) {
                Ok(permit) => return Ok(permit),
                Err(none) if timeout_at(deadline, freed).await.is_err() => return Err(none),
                Err(_) => {}
            }
        }
    }

    /// The number of permits that are taken.
    pub fn taken(&self) -> usize {
        self.inner.taken().all
    }
}

impl<C: Ord> SharedCounts<C> {
    fn taken(&self) -> MutexGuard<'_, PermitCounts<C>> {
        self.taken.lock().expect("no panic while held")
    }
}

impl<C: Ord> Drop for Permit<C> {
    fn drop(&mut self) {
        {
            let mut taken = self.inner.taken();
            taken.all -= self.count;
            let own = taken
                .by_client
                .get_mut(&self.client)
                .expect("counted when taken");
            *own -= self.count;
            if *own == 0 {
                taken.by_client.remove(&self.client);
            }
        }
        self.inner.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_client_takes_all_permits_and_some_are_reserved() {
        let pool = PermitPool::new(PermitLimits {
            all: 10,
            per_client: 4,
            reserved: 2,
        });
        let take = |client: u32, privileged| pool.take(client, privileged, 1);
        let mut held: Vec<_> = (0..4).map(|_| take(1, false).unwrap()).collect();
        assert_eq!(take(1, false).unwrap_err(), NoPermit::PerClient(4));
        held.extend((0..4).map(|_| take(2, false).unwrap()));
        assert_eq!(take(3, false).unwrap_err(), NoPermit::All(8));
        let operators: Vec<_> = (0..2).map(|_| take(0, true).unwrap()).collect();
        assert_eq!(take(0, true).unwrap_err(), NoPermit::All(10));
        held.truncate(7);
        drop(operators);
        assert_eq!((pool.taken(), take(3, false).is_ok()), (7, true));
        drop(held);
        assert_eq!((pool.taken(), pool.inner.taken().by_client.len()), (0, 0));
    }

    #[tokio::test]
    async fn a_waiting_client_gets_permits_that_are_dropped_and_not_for_ever() {
        let pool = PermitPool::new(PermitLimits {
            all: 8,
            per_client: 8,
            reserved: 0,
        });
        let patience = Duration::from_secs(20);
        let permit = pool.wait_for(1, false, 6, patience).await.unwrap();
        assert_eq!(
            pool.wait_for(2, false, 3, Duration::from_millis(10))
                .await
                .unwrap_err(),
            NoPermit::All(8)
        );
        let other = tokio::spawn({
            let pool = pool.clone();
            async move { pool.wait_for(2, false, 3, patience).await.is_ok() }
        });
        tokio::task::yield_now().await;
        drop(permit);
        assert!(other.await.unwrap());
    }
}
