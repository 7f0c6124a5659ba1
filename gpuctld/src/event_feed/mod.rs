//! Events for readers that follow them: read once from the database while any follows, and shared by all.
//!
//! Owns the newest pages in memory and their bound, and keeps how mail and webhooks stand. A reader that is behind them reads the database for itself, a few at a time. It decides
//! neither for which readers an event is nor how one goes out: that is `http`'s. No commit waits for it.

mod cursor;
mod page;
mod telling;

pub use cursor::{Cursor, GivenCursor};
pub use page::{
    Audience, EventForm, EventPage, Interest, ToldEvent, WantedJob, cursor_text, kinds_of,
};

use crate::core_thread::CoreHandle;
use crate::mail_counts::MailCounts;
use crate::store::ReadError;
use crate::store::reader::{EventBounds, EventLookup, StoredEvent};
use crate::webhook_states::WebhookStates;
use gwire::permits::{PermitLimits, PermitPool};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{Notify, Semaphore, watch};

/// Stored events of all kinds that one page goes through.
const PAGE_EVENTS: u64 = 2_000;
/// What the newest pages may take, bytes, and how many they are.
const RECENT_BYTES: usize = 32 << 20;
const RECENT_PAGES: usize = 4_096;
/// Between two looks at new events: what is committed meanwhile is one page.
const GATHER: Duration = Duration::from_millis(10);
/// After a database that does not answer.
const UNREAD_PAUSE: Duration = Duration::from_secs(1);
/// Readers that are behind and read the database at once.
const LATE_READS: usize = 2;
/// Readers at once, by user.
const READERS: PermitLimits = PermitLimits {
    all: 512,
    per_client: 16,
    reserved: 64,
};

/// The newest events and how many readers follow them.
pub struct EventFeed {
    recent: Mutex<RecentPages>,
    tip: watch::Sender<Tip>,
    followers: AtomicUsize,
    began: Notify,
    late: Semaphore,
    pub readers: PermitPool<u32>,
    pub webhooks: WebhookStates,
    pub mail: Arc<MailCounts>,
}

/// How far the feed is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tip {
    pub seq: u64,
    /// We are stopping: readers come back to the next controller.
    pub is_closing: bool,
}

#[derive(Default)]
struct RecentPages {
    /// In a row without a gap.
    pages: VecDeque<RecentPage>,
    bytes: usize,
}

struct RecentPage {
    page: Arc<EventPage>,
    /// As the page's own, or later where nothing followed that is told.
    upto: u64,
}

/// Where the next events of a reader were found.
pub struct NextEvents {
    pub page: Arc<EventPage>,
    /// All up to here is in the page, or is not told.
    pub upto: u64,
    /// Not among the newest: the database was asked.
    pub is_late: bool,
}

/// A reader that follows, until it is dropped.
pub struct Follower<'a>(&'a EventFeed);

impl Drop for Follower<'_> {
    fn drop(&mut self) {
        self.0.followers.fetch_sub(1, SeqCst);
    }
}

impl Default for EventFeed {
    fn default() -> Self {
        Self {
            recent: Mutex::default(),
            tip: watch::Sender::new(Tip::default()),
            followers: AtomicUsize::new(0),
            began: Notify::new(),
            late: Semaphore::new(LATE_READS),
            readers: PermitPool::new(READERS),
            webhooks: WebhookStates::default(),
            mail: Arc::default(),
        }
    }
}

impl EventFeed {
    /// While this is kept, new events are read as they come.
    pub fn follow(&self) -> Follower<'_> {
        self.followers.fetch_add(1, SeqCst);
        self.began.notify_one();
        Follower(self)
    }

    /// Changes when there is something new.
    pub fn tip(&self) -> watch::Receiver<Tip> {
        self.tip.subscribe()
    }

    /// The events after this number; `None`: there are none yet.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn next(
        &self,
        core: &CoreHandle,
        after: u64,
    ) -> Result<Option<NextEvents>, ReadError> {
        match self.recent(after) {
            Ok(next) => Ok(next),
            Err(NotRecent) => {
                let _turn = self.late.acquire().await;
                let page = read_page(core, after).await?;
                let upto = page.upto;
                Ok((upto > after).then_some(NextEvents {
                    page,
                    upto,
                    is_late: true,
                }))
            }
        }
    }

    fn recent(&self, after: u64) -> Result<Option<NextEvents>, NotRecent> {
        let recent = self.recent.lock().expect("no panic while held");
        let first = recent.pages.front().ok_or(NotRecent)?;
        if after < first.page.after {
            return Err(NotRecent);
        }
        let at = recent.pages.partition_point(|one| one.upto <= after);
        Ok(recent.pages.get(at).map(|found| NextEvents {
            page: found.page.clone(),
            upto: found.upto,
            is_late: false,
        }))
    }

    fn keep(&self, page: Arc<EventPage>) {
        let mut recent = self.recent.lock().expect("no panic while held");
        let upto = page.upto;
        match recent.pages.back_mut() {
            // A page without events only moves the end of the one before.
            Some(last) if page.told.is_empty() => last.upto = upto,
            _ => {
                recent.bytes += page.size();
                recent.pages.push_back(RecentPage { page, upto });
            }
        }
        while recent.pages.len() > 1
            && (recent.bytes > RECENT_BYTES || recent.pages.len() > RECENT_PAGES)
        {
            let oldest = recent.pages.pop_front().expect("more than one");
            recent.bytes -= oldest.page.size();
        }
        drop(recent);
        self.tip.send_modify(|tip| tip.seq = upto);
    }

    fn forget(&self) {
        *self.recent.lock().expect("no panic while held") = RecentPages::default();
    }
}

struct NotRecent;

/// Reads what is new while any reader follows, until we stop.
pub async fn run(core: CoreHandle, feed: Arc<EventFeed>, mut stopping: watch::Receiver<bool>) {
    tokio::select! {
        _ = stopping.changed() => {}
        () = read_on(&core, &feed) => {}
    }
    feed.tip.send_modify(|tip| tip.is_closing = true);
}

async fn read_on(core: &CoreHandle, feed: &EventFeed) {
    let mut versions = core.versions();
    loop {
        while feed.followers.load(SeqCst) == 0 {
            feed.forget();
            feed.began.notified().await;
        }
        versions.borrow_and_update();
        let bounds = match core.reader().event_bounds().await {
            Ok(bounds) => bounds,
            Err(error) => {
                unread(error).await;
                continue;
            }
        };
        let mut after = bounds.newest;
        feed.forget();
        // Readers that came before us look again.
        feed.keep(EventPage::new(bounds.incarnation, after, after, Vec::new()));
        while feed.followers.load(SeqCst) > 0 {
            match read_page(core, after).await {
                Ok(page) if page.upto > after => {
                    after = page.upto;
                    feed.keep(page);
                }
                Ok(_) => {
                    let _ = versions.changed().await; // the core outlives the feed
                }
                Err(error) => unread(error).await,
            }
            tokio::time::sleep(GATHER).await;
        }
    }
}

async fn unread(error: ReadError) {
    let error = anyhow::Error::from(error);
    tracing::warn!("readers of events wait for the database: {error:#}");
    tokio::time::sleep(UNREAD_PAUSE).await;
}

async fn read_page(core: &CoreHandle, after: u64) -> Result<Arc<EventPage>, ReadError> {
    let tell = move |stored: Vec<StoredEvent>, bounds: EventBounds, lookup: &EventLookup<'_>| {
        let mut told = Vec::with_capacity(stored.len());
        for event in &stored {
            told.extend(telling::tell(event, bounds.incarnation, lookup)?);
        }
        let (incarnation, upto) = (bounds.incarnation, bounds.newest);
        Ok(EventPage::new(incarnation, after, upto, told))
    };
    core.reader()
        .event_page(telling::TOLD_KINDS, after, PAGE_EVENTS, tell)
        .await
}
