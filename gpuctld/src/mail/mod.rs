//! Mail of jobs to their users, as `--mail-type` asks: a reader of the stored events with a place of its own in them.
//!
//! Owns `state_dir/mail.json`: the number of the last event whose letter went. So each letter goes at least once, through crashes of the
//! controller and days without a mail server; it may go twice where the controller was killed between the server's word and the file.
//! Nothing waits for mail: no commit, no answer, no start.

mod letter;
mod smtp;

use crate::config::{Config, MailSettings};
use crate::core_thread::{CoreHandle, now};
use crate::http::App;
use crate::private_file::write_private;
use crate::store::ReadError;
use crate::store::reader::StoredJob;
use gcore::ctl::{Event, State};
use gmodel::mail::{MailEvent, mail_events};
use gmodel::{JobId, JobSpec, JobState, ReasonCode, Timestamp};
use letter::{Letter, Occasion, letter};
use serde::{Deserialize, Serialize};
use smtp::NotSent;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::sync::watch;

const FILE: &str = "mail.json";
/// Between two looks at new events, and at jobs near their limits.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// After a mail server that cannot be used; doubled each time.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// Tries of a letter that the server asks to wait with; the next letter waits for it.
const MAX_TRIES: u32 = 5;
/// Addresses of one `--mail-user`.
const MAX_ADDRESSES: usize = 16;
/// Arrays of which it is remembered that letters went.
const MAX_ARRAYS: usize = 4_096;
/// Users whose letters are counted at once.
const MAX_COUNTED: usize = 16_384;
const HOUR_MILLIS: i64 = 3_600_000;

/// The place in the events, as the file has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Place {
    /// Of the database: after a restore its events have other numbers.
    incarnation: u64,
    /// All events up to this number are done.
    seq: u64,
    /// Limits of running jobs were looked at up to here.
    looked: Timestamp,
    /// The newest arrays whose first start, and whose end, was told.
    begun: VecDeque<JobId>,
    ended: VecDeque<JobId>,
}

/// Sends mail until we stop. Without `[mail]` it only keeps up with the events.
pub async fn run(
    core: CoreHandle,
    app: Arc<App>,
    state_dir: PathBuf,
    mut stopping: watch::Receiver<bool>,
) {
    let mut post = Post {
        place: read_place(&state_dir),
        path: state_dir.join(FILE),
        core,
        app,
        hour: (0, BTreeMap::new()),
        pause: FIRST_PAUSE,
        asked_to_wait: 0,
        limits_told: BTreeSet::new(),
    };
    loop {
        let rest = match post.round().await {
            Ok(()) => LOOK_EVERY,
            Err(rest) => rest,
        };
        tokio::select! {
            _ = stopping.changed() => return,
            () = tokio::time::sleep(rest) => {}
        }
    }
}

fn read_place(state_dir: &Path) -> Option<Place> {
    let bytes = std::fs::read(state_dir.join(FILE)).ok()?;
    serde_json::from_slice(&bytes).ok()
}

struct Post {
    /// `None`: the first round begins at the newest event.
    place: Option<Place>,
    path: PathBuf,
    core: CoreHandle,
    app: Arc<App>,
    /// The hour, and how many letters each user's jobs caused in it.
    hour: (i64, BTreeMap<String, u32>),
    pause: Duration,
    /// How often the server asked to wait with the letter that is due.
    asked_to_wait: u32,
    /// Letters of limits that went since `looked`.
    limits_told: BTreeSet<(JobId, MailEvent)>,
}

impl Post {
    /// Does what is new.
    ///
    /// # Errors
    /// How long to rest, here and below: the mail server or the database cannot be used now.
    async fn round(&mut self) -> Result<(), Duration> {
        let config = self.app.config();
        let state = self.core.view().await;
        let fresh = Place {
            incarnation: state.incarnation,
            seq: state.seq.0,
            looked: now(),
            ..Place::default()
        };
        let known = self.place.take();
        let place = known
            .filter(|place| place.incarnation == state.incarnation && place.seq <= state.seq.0);
        let Some(settings) = &config.outgoing.mail else {
            // What happens while no mail is sent is not told later.
            self.place = Some(fresh);
            let _ = std::fs::remove_file(&self.path);
            return Ok(());
        };
        let is_new = place.is_none();
        let place = self.place.insert(place.unwrap_or(fresh));
        let (seq, looked) = (place.seq, place.looked);
        if is_new {
            // What happens from here on is told, also where the controller is killed before the first letter.
            self.done(seq);
        }
        self.tell_limits(&state, &config, settings, looked).await?;
        if seq == state.seq.0 {
            return Ok(());
        }
        drop(state);
        self.tell_events(&config, settings, seq).await
    }

    async fn tell_events(
        &mut self,
        config: &Config,
        settings: &MailSettings,
        mut after: u64,
    ) -> Result<(), Duration> {
        loop {
            let page = self.core.reader().mail_events(after).await;
            let page = page.map_err(unread)?;
            if page.upto == after {
                return Ok(());
            }
            for (seq, event) in &page.events {
                if self.tell_event(config, settings, event).await? {
                    self.done(*seq);
                }
            }
            self.done(page.upto);
            after = page.upto;
        }
    }

    /// Writes down that the letters of all events up to this one went.
    fn done(&mut self, seq: u64) {
        if let Some(place) = &mut self.place {
            place.seq = seq;
            let bytes = serde_json::to_vec(place).expect("numbers are JSON");
            if let Err(error) = write_private(&self.path, &bytes) {
                tracing::warn!(
                    "cannot write {}: {error}; letters may go twice",
                    self.path.display()
                );
            }
        }
    }

    /// True when a letter went.
    async fn tell_event(
        &mut self,
        config: &Config,
        settings: &MailSettings,
        event: &Event,
    ) -> Result<bool, Duration> {
        let Some((id, occasion)) = occasion_of(event) else {
            return Ok(false);
        };
        let found = self.core.reader().job(id).await;
        let Some(stored) = found.map_err(unread)? else {
            return Ok(false); // removed since
        };
        let array = match &stored {
            StoredJob::Job(job) => job.task.map(|task| task.array),
            StoredJob::Array(array) => Some(array.id),
        };
        let spec = match &stored {
            StoredJob::Job(job) => job.spec.clone(),
            StoredJob::Array(array) => array.spec.clone(),
        };
        let wanted = wanted(&spec);
        if wanted.is_empty() {
            return Ok(false);
        }
        if let Some(array) = array.filter(|_| !wanted.contains(&MailEvent::ArrayTasks)) {
            return self
                .tell_array(config, settings, array, &spec, &wanted, occasion)
                .await;
        }
        let (StoredJob::Job(job), Some(occasion)) = (&stored, occasion) else {
            return Ok(false);
        };
        if !occasion.is_wanted(&wanted) {
            return Ok(false);
        }
        let row = self.core.reader().last_run(id, now()).await;
        let row = row.map_err(unread)?.filter(|row| row.attempt > 0);
        let (subject, body) = letter(
            &config.cluster.name,
            &job.shown_id(),
            &spec.name,
            &occasion,
            row.as_ref(),
            shown_in(config),
        );
        self.send(settings, &spec, subject, body).await?;
        Ok(true)
    }

    /// One letter when the first task begins, and one when all are over.
    async fn tell_array(
        &mut self,
        config: &Config,
        settings: &MailSettings,
        id: JobId,
        spec: &JobSpec,
        wanted: &BTreeSet<MailEvent>,
        occasion: Option<Occasion>,
    ) -> Result<bool, Duration> {
        let told = |told: &VecDeque<JobId>| told.contains(&id);
        let Some(place) = &mut self.place else {
            return Ok(false);
        };
        if matches!(occasion, Some(Occasion::Requeued { .. })) {
            // Its tasks will be over once more.
            place.ended.retain(|told| *told != id);
            return Ok(false);
        }
        let is_start = matches!(occasion, Some(Occasion::Began { .. }));
        let occasion = match occasion {
            Some(began @ Occasion::Began { .. }) if !told(&place.begun) => began,
            Some(Occasion::Began { .. }) => return Ok(false),
            _ if told(&place.ended) => return Ok(false),
            _ => {
                let array = self.core.reader().array(id).await;
                let array = array.map_err(unread)?;
                if array.is_none_or(|array| array.ended.is_none()) {
                    return Ok(false);
                }
                let states = self.core.reader().task_states(id).await;
                Occasion::ArrayEnded(states.map_err(unread)?)
            }
        };
        let went = occasion.is_wanted(wanted);
        if went {
            let name = &config.cluster.name;
            let id = id.to_string();
            let (subject, body) = letter(name, &id, &spec.name, &occasion, None, shown_in(config));
            self.send(settings, spec, subject, body).await?;
        }
        if let Some(place) = &mut self.place {
            let list = if is_start {
                &mut place.begun
            } else {
                &mut place.ended
            };
            list.push_back(id);
            if list.len() > MAX_ARRAYS {
                list.pop_front();
            }
        }
        Ok(went)
    }

    /// Running jobs that passed a part of their time limit since `looked`.
    async fn tell_limits(
        &mut self,
        state: &State,
        config: &Config,
        settings: &MailSettings,
        looked: Timestamp,
    ) -> Result<(), Duration> {
        let now = now();
        for run in state.runs.values() {
            let (Some(limit), Some(started)) = (run.limit_secs, run.started) else {
                continue;
            };
            let Some(job) = state.jobs.get(run.id.job) else {
                continue;
            };
            if job.spec.launch.mail_type.is_none() || run.outcome.is_some() {
                continue;
            }
            let passed = |percent: u32| {
                let at = moment_of(percent, started, limit, run.suspended_millis);
                looked < at && at <= now
            };
            let wanted = wanted(&job.spec);
            let due = wanted
                .iter()
                .filter(|event| event.percent().is_some_and(passed));
            let Some(event) = due.max_by_key(|event| event.percent()) else {
                continue;
            };
            if self.limits_told.contains(&(job.id, *event)) {
                continue;
            }
            let row = self.core.reader().last_run(job.id, now).await;
            let row = row.map_err(unread)?;
            let (subject, body) = letter(
                &config.cluster.name,
                &job.shown_id(),
                &job.spec.name,
                &Occasion::LimitNear(*event),
                row.as_ref(),
                shown_in(config),
            );
            self.send(settings, &job.spec, subject, body).await?;
            self.limits_told.insert((job.id, *event));
        }
        self.limits_told.clear();
        if let Some(place) = &mut self.place {
            place.looked = now;
        }
        Ok(())
    }

    /// Returns when the server took the letter, or never will.
    async fn send(
        &mut self,
        settings: &MailSettings,
        spec: &JobSpec,
        subject: String,
        mut body: String,
    ) -> Result<(), Duration> {
        let counts = self.app.events.mail.clone();
        match self.count(&spec.user.name, settings.per_user_hour) {
            std::cmp::Ordering::Less => {}
            std::cmp::Ordering::Equal => body.push_str(
                "\nThis is the last letter of this hour: jobs of yours caused as many as one user gets (per_user_hour).\n",
            ),
            std::cmp::Ordering::Greater => {
                counts.dropped.fetch_add(1, Relaxed);
                return Ok(());
            }
        }
        let to = addresses(spec, settings);
        if to.is_empty() {
            counts.dropped.fetch_add(1, Relaxed);
            return Ok(());
        }
        let (settings, letter) = (settings.clone(), Letter { to, subject, body });
        let sent = tokio::task::spawn_blocking(move || smtp::send(&settings, &letter)).await;
        self.after(&spec.user.name, sent.map_err(|_| LONGEST_PAUSE)?)
    }

    /// What becomes of a letter that was handed to the server.
    fn after(&mut self, user: &str, sent: Result<(), NotSent>) -> Result<(), Duration> {
        let counts = &self.app.events.mail;
        if matches!(sent, Err(NotSent::AskedToWait(_))) {
            self.asked_to_wait += 1;
        }
        let why = match sent {
            Err(NotSent::Later(why)) => why,
            Err(NotSent::AskedToWait(why)) if self.asked_to_wait < MAX_TRIES => why,
            Ok(()) => {
                counts.sent.fetch_add(1, Relaxed);
                (self.pause, self.asked_to_wait) = (FIRST_PAUSE, 0);
                return Ok(());
            }
            Err(NotSent::Never(why) | NotSent::AskedToWait(why)) => {
                tracing::warn!(user, "a letter is not taken by the mail server: {why}");
                counts.dropped.fetch_add(1, Relaxed);
                (self.pause, self.asked_to_wait) = (FIRST_PAUSE, 0);
                return Ok(());
            }
        };
        // It did not go, and counts again when it does.
        if let Some(count) = self.hour.1.get_mut(user) {
            *count -= 1;
        }
        counts.failed_tries.fetch_add(1, Relaxed);
        if self.pause == FIRST_PAUSE {
            tracing::warn!("mail waits for the mail server: {why}");
        }
        let rest = self.pause;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        Err(rest)
    }

    /// Counts a letter of a user in this hour: how it stands to the most.
    fn count(&mut self, user: &str, most: u32) -> std::cmp::Ordering {
        let hour = now().0 / HOUR_MILLIS;
        if self.hour.0 != hour || self.hour.1.len() > MAX_COUNTED {
            self.hour = (hour, BTreeMap::new());
        }
        let count = self.hour.1.entry(user.to_owned()).or_default();
        *count += 1;
        (*count).cmp(&most)
    }
}

/// How long to rest where the database does not answer.
fn unread(error: ReadError) -> Duration {
    tracing::warn!(
        "mail waits for the database: {:#}",
        anyhow::Error::from(error)
    );
    LONGEST_PAUSE
}

/// When a run has used so much of its limit. While it is suspended its time stands still.
fn moment_of(
    percent: u32,
    started: Timestamp,
    limit_secs: u32,
    suspended_millis: u64,
) -> Timestamp {
    let used = i64::from(limit_secs) * 10 * i64::from(percent);
    Timestamp(started.0 + used + suspended_millis.cast_signed())
}

/// The job of an event, and what happened to it; `None` inside: an array may be over by it.
fn occasion_of(event: &Event) -> Option<(JobId, Option<Occasion>)> {
    Some(match event {
        Event::RunPlaced { run, .. } => {
            let attempt = run.attempt;
            (run.job, Some(Occasion::Began { attempt }))
        }
        Event::RunEnded { run, outcome, .. } => (
            run.job,
            Some(Occasion::Ended {
                state: outcome.state,
                requeued: outcome.requeue.is_some(),
                text: outcome.text.clone(),
            }),
        ),
        Event::RunSettled { run, .. } => (run.job, None),
        Event::JobCancelled {
            job,
            text,
            reason: ReasonCode::DeadLine,
            ..
        } => (
            *job,
            Some(Occasion::Ended {
                state: JobState::Deadline,
                requeued: false,
                text: text.clone(),
            }),
        ),
        Event::JobCancelled {
            job,
            by,
            text,
            reason,
            ..
        } => (
            *job,
            Some(Occasion::Cancelled {
                by: by.clone(),
                text: text.clone(),
                never_met: *reason == ReasonCode::DependencyNeverSatisfied,
            }),
        ),
        Event::JobRequeued { job, by, .. } => (*job, Some(Occasion::Requeued { by: by.clone() })),
        Event::TasksCancelled { array, .. } => (*array, None),
        Event::TasksRequeued { array, by, .. } => {
            (*array, Some(Occasion::Requeued { by: by.clone() }))
        }
        _ => return None,
    })
}

fn wanted(spec: &JobSpec) -> BTreeSet<MailEvent> {
    let text = spec.launch.mail_type.as_deref();
    text.and_then(|text| mail_events(text).ok())
        .unwrap_or_default()
}

/// Where a job's mail goes: of `--mail-user`, else the user at the site's domain. What is no address, or of a domain that the site does not
/// mail to, is left out.
fn addresses(spec: &JobSpec, settings: &MailSettings) -> Vec<String> {
    let named = spec.launch.mail_user.as_deref().unwrap_or(&spec.user.name);
    let whole = |text: &str| match text.contains('@') {
        true => text.to_owned(),
        false => format!("{text}@{}", settings.domain),
    };
    let is_meant = |address: &lettre::Address| {
        settings.only_domains.is_empty()
            || settings
                .only_domains
                .iter()
                .any(|domain| domain.eq_ignore_ascii_case(address.domain()))
    };
    let texts = named
        .split(',')
        .map(str::trim)
        .filter(|text| !text.is_empty());
    texts
        .take(MAX_ADDRESSES)
        .filter_map(|text| whole(text).parse::<lettre::Address>().ok())
        .filter(is_meant)
        .map(|address| address.to_string())
        .collect()
}

/// Times as the cluster's files have them.
fn shown_in(config: &Config) -> impl Fn(Timestamp) -> String {
    let zone = config.cluster.time_zone.clone();
    move |at| {
        let local = Timestamp(zone.local_millis(at)).to_string();
        local.trim_end_matches('Z').replace('T', " ")
    }
}

#[cfg(test)]
mod tests;
