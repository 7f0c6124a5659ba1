//! Webhooks of the site: readers of the events that post them to a receiver, each with a place of its own in them.
//!
//! Owns `state_dir/webhooks/NAME.json`: up to where events were delivered. So each goes at least once, through crashes of the controller and
//! a receiver that is away; it may go twice where the controller was killed between the answer and the file. A receiver that fails for
//! `park_after_secs` is left alone until an operator resumes it. Nothing waits for a webhook: no commit, no start, no other webhook.

mod body;
mod delivery;

use crate::config::WebhookSettings;
use crate::core_thread::{CoreHandle, now};
use crate::event_feed::{Cursor, EventFeed, EventPage, GivenCursor, Interest};
use crate::http::App;
use crate::private_file::write_private;
use crate::webhook_states::WebhookState;
use delivery::{Delivery, deliver};
use gmodel::{Instant, Timestamp};
use gwire::api::{EventRow, WebhookRow};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;

const DIRECTORY: &str = "webhooks";
/// Between two looks at the configuration.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// After a failed try; doubled each time, and up to a half is added by chance.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// A place that moves without a delivery is written so often.
const KEEP_EVERY: i64 = 10_000;

/// A webhook's file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct DeliveryPlace {
    /// All events up to this id are done.
    after: String,
    /// It was left alone at that time, and why.
    parked: Option<Timestamp>,
    error: String,
}

/// Keeps a task for each webhook of the configuration until we stop.
pub async fn run(
    core: CoreHandle,
    app: Arc<App>,
    state_dir: PathBuf,
    mut stopping: watch::Receiver<bool>,
) {
    let mut tasks: BTreeMap<String, (WebhookSettings, JoinHandle<()>)> = BTreeMap::new();
    loop {
        let config = app.config();
        tasks.retain(|name, (settings, task)| {
            let stays = config.outgoing.webhooks.contains(settings);
            if !stays {
                task.abort();
                app.events.webhooks.end(name);
            }
            stays
        });
        for settings in &config.outgoing.webhooks {
            if !tasks.contains_key(&settings.name) {
                let hook = Webhook::new(settings, &core, &app, &state_dir);
                let task = tokio::spawn(hook.run());
                tasks.insert(settings.name.clone(), (settings.clone(), task));
            }
        }
        tokio::select! {
            _ = stopping.changed() => break,
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
    }
    tasks.values().for_each(|(_, task)| task.abort());
}

struct Webhook {
    settings: WebhookSettings,
    core: CoreHandle,
    feed: Arc<EventFeed>,
    cluster: String,
    path: PathBuf,
    state: Arc<WebhookState>,
    cursor: Cursor,
    incarnation: u64,
    kept: Timestamp,
}

impl Webhook {
    fn new(settings: &WebhookSettings, core: &CoreHandle, app: &App, state_dir: &Path) -> Self {
        let row = WebhookRow {
            name: settings.name.clone(),
            host: settings.url.host().unwrap_or_default().to_owned(),
            state: "delivering".to_owned(),
            ..WebhookRow::default()
        };
        Self {
            state: app.events.webhooks.begin(row),
            settings: settings.clone(),
            core: core.clone(),
            feed: app.events.clone(),
            cluster: app.config().cluster.name.clone(),
            path: state_dir
                .join(DIRECTORY)
                .join(format!("{}.json", settings.name)),
            cursor: Cursor::whole(0),
            incarnation: 0,
            kept: Timestamp(0),
        }
    }

    async fn run(mut self) {
        let parked = self.begin().await;
        let feed = self.feed.clone();
        let _follower = feed.follow();
        let mut tip = feed.tip();
        if let Some(parked) = parked {
            self.park(&parked.error, parked.parked).await;
        }
        let interest = Interest {
            kinds: self.settings.kinds.clone(),
            accounts: self.settings.accounts.clone(),
            job: None,
        };
        loop {
            tip.borrow_and_update();
            match feed.next(&self.core, self.cursor.done()).await {
                Ok(Some(next)) => {
                    self.deliver_page(&next.page, &interest).await;
                    self.cursor = self.cursor.max(Cursor::whole(next.upto));
                    if now().since_millis(self.kept) > KEEP_EVERY {
                        self.keep(None);
                    }
                }
                Ok(None) => {
                    let _ = tip.changed().await; // the feed outlives its readers
                }
                Err(error) => {
                    let error = anyhow::Error::from(error);
                    tracing::warn!(
                        "webhook {} waits for the database: {error:#}",
                        self.settings.name
                    );
                    tokio::time::sleep(LONGEST_PAUSE).await;
                }
            }
        }
    }

    /// Finds the place: that of its file, or now for a new one. Where it was parked, its file.
    async fn begin(&mut self) -> Option<DeliveryPlace> {
        let bounds = loop {
            match self.core.reader().event_bounds().await {
                Ok(bounds) => break bounds,
                Err(_) => tokio::time::sleep(FIRST_PAUSE).await,
            }
        };
        self.incarnation = bounds.incarnation;
        let place: Option<DeliveryPlace> = std::fs::read(&self.path)
            .ok()
            .and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let given = place
            .as_ref()
            .and_then(|place| place.after.parse::<GivenCursor>().ok());
        let known = given.filter(|given| {
            given.incarnation == Some(bounds.incarnation) && given.at.done() <= bounds.newest
        });
        self.cursor = match known {
            Some(given) if given.at.done() + 1 >= bounds.oldest => given.at,
            Some(_) => Cursor::whole(bounds.oldest - 1),
            None => Cursor::whole(bounds.newest),
        };
        if known.is_none_or(|given| given.at != self.cursor) && place.is_some() {
            let name = &self.settings.name;
            tracing::warn!(
                "webhook {name}: events are missing that were removed, or numbered anew by a restore"
            );
        }
        let parked = place.filter(|place| place.parked.is_some());
        // What happens from here on is told, also where the controller is killed before the first delivery.
        self.keep(parked.as_ref());
        parked
    }

    /// Writes the place down.
    fn keep(&mut self, parked: Option<&DeliveryPlace>) {
        self.kept = now();
        let after = self.cursor.id(self.incarnation);
        let place = DeliveryPlace {
            after: after.clone(),
            parked: parked.and_then(|place| place.parked),
            error: parked.map(|place| place.error.clone()).unwrap_or_default(),
        };
        self.state.change(|row| row.after = after);
        let bytes = serde_json::to_vec(&place).expect("texts and numbers are JSON");
        let directory = self.path.parent().unwrap_or(Path::new("/"));
        let written =
            std::fs::create_dir_all(directory).and_then(|()| write_private(&self.path, &bytes));
        if let Err(error) = written {
            let path = self.path.display();
            tracing::warn!("cannot write {path}: {error}; events may be delivered twice");
        }
    }

    async fn deliver_page(&mut self, page: &EventPage, interest: &Interest) {
        let start = self.cursor;
        let wanted: Vec<_> = page
            .told
            .iter()
            .filter(|told| told.at > start && interest.has(told))
            .collect();
        for batch in wanted.chunks(body::most(self.settings.template)) {
            let rows: Vec<&EventRow> = batch.iter().map(|told| &told.row).collect();
            let Some(last) = batch.last() else { continue };
            if !self.deliver_batch(&rows).await {
                // Resumed without what waited.
                return;
            }
            self.cursor = last.at;
            self.keep(None);
            let count = rows.len() as u64;
            self.state.change(|row| row.delivered += count);
        }
    }

    /// Tries until the receiver took them; false: what waited is to be left out.
    async fn deliver_batch(&mut self, rows: &[&EventRow]) -> bool {
        let (mut pause, mut since) = (FIRST_PAUSE, None);
        loop {
            let error = match self.try_once(rows).await {
                Ok(()) => {
                    self.state.change(|row| {
                        "delivering".clone_into(&mut row.state);
                        (row.failing_since, row.error) = (None, String::new());
                    });
                    return true;
                }
                Err(error) => error,
            };
            let begun = *since.get_or_insert(now());
            if pause == FIRST_PAUSE {
                tracing::warn!(
                    "webhook {} waits for its receiver: {error}",
                    self.settings.name
                );
            }
            self.state.change(|row| {
                "retrying".clone_into(&mut row.state);
                row.failing_since = Some(Instant(begun));
                row.failed_tries += 1;
                row.error.clone_from(&error);
            });
            if now().since_millis(begun) >= i64::from(self.settings.park_after_secs) * 1000 {
                if self.park(&error, Some(now())).await {
                    return false;
                }
                (pause, since) = (FIRST_PAUSE, None);
                continue;
            }
            self.rest(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// A pause that an operator may end.
    async fn rest(&self, pause: Duration) {
        let mut resumed = self.state.resumed.subscribe();
        // By chance, so that webhooks that failed together do not come back together.
        let nanos = u64::from(
            std::time::UNIX_EPOCH
                .elapsed()
                .map_or(0, |time| time.subsec_nanos()),
        );
        let more = pause.mul_f64((nanos % 1000) as f64 / 2000.0);
        tokio::select! {
            _ = resumed.changed() => {}
            () = tokio::time::sleep(pause + more) => {}
        }
    }

    /// Rests until an operator resumes it; true: without what waited.
    async fn park(&mut self, error: &str, since: Option<Timestamp>) -> bool {
        let name = &self.settings.name;
        tracing::error!("webhook {name} is parked: {error}. Then: gadm webhook resume {name}");
        let mut resumed = self.state.resumed.subscribe();
        self.state.change(|row| {
            "parked".clone_into(&mut row.state);
            row.failing_since = since.map(Instant);
            error.clone_into(&mut row.error);
        });
        let place = DeliveryPlace {
            parked: since,
            error: error.to_owned(),
            ..DeliveryPlace::default()
        };
        self.keep(Some(&place));
        let _ = resumed.changed().await; // the state lives as long as we do
        let (_, skips) = *resumed.borrow();
        if skips {
            let newest = self.core.view().await.seq.0;
            self.cursor = Cursor::whole(newest);
        }
        self.state
            .change(|row| "delivering".clone_into(&mut row.state));
        self.keep(None);
        skips
    }

    async fn try_once(&self, rows: &[&EventRow]) -> Result<(), String> {
        let settings = &self.settings;
        let body = body::body(settings.template, &self.cluster, &settings.name, rows);
        let timestamp = now().0 / 1000;
        let last = rows.last().map(|row| row.id.clone()).unwrap_or_default();
        let mut headers = vec![
            ("gpupool-delivery", format!("{}-{last}", settings.name)),
            ("gpupool-timestamp", timestamp.to_string()),
        ];
        if let Some(file) = &settings.secret_file {
            let secret = tokio::fs::read(file).await;
            let secret = secret.map_err(|error| format!("{}: {error}", file.display()))?;
            let signature = body::signature(secret.trim_ascii(), timestamp, &body);
            headers.push(("gpupool-signature", signature));
        }
        deliver(settings, Delivery { headers, body }).await
    }
}
