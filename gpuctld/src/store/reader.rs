//! Questions to the database about what is no longer in memory: accounting, finished jobs, blobs, history.
//!
//! Owns a few read-only connections; never writes, never sees the core's state.

mod accounting;
mod bill;
mod cancelled_tasks;
mod capacity;
mod event_pages;
mod gpu_history;
mod history;
mod idle;
mod mail_events;
mod node_events;
mod past;
mod policy_events;
mod report;
mod run_fields;
mod steps;
mod stored;
mod trace;

pub use accounting::FoundRuns;
pub use bill::{BillQuestion, BilledRun, CSV_HEAD, CarriedRun, StoredBill};
pub use capacity::{Capacity, NodeNow};
pub use event_pages::{ArrayFacts, EventBounds, EventLookup, JobFacts, StoredEvent};
pub use history::{History, HistoryLine};
pub use idle::IdleRun;
pub use mail_events::MailPage;
pub use report::GROUPS;
pub use run_fields::{RunFields, RunKey, requested};
#[cfg(test)]
pub use steps::StoredEnd;
pub use steps::StoredStep;
pub use stored::StoredJob;
pub use trace::TracedJob;

use super::error::ReadError;
use super::open::open_reader;
use gcore::ctl::{Array, ForgottenJob};
use gmodel::dependency::JobRef;
use gmodel::{BlobId, JobId, Timestamp};
use gpolicy::bill::{BillLine, Tariff};
use gwire::api::{GpuHistoryRow, NodeEventRow, PolicyEventRow, ReportRow, RunQuery, RunRow};
use rusqlite::Connection;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
pub use stored::ReadResult;
use stored::{SpecCache, blob, stored_array, stored_job};

/// Connections kept open for later questions; more are opened while all are busy.
const KEPT_CONNECTIONS: usize = 4;

/// Read access to the database. Cheap to clone. Questions run on blocking threads.
#[derive(Clone, Debug)]
pub struct Reader {
    path: Arc<PathBuf>,
    idle: Arc<Mutex<Vec<Connection>>>,
}

impl Reader {
    pub fn new(path: &Path) -> Self {
        Self {
            path: Arc::new(path.to_owned()),
            idle: Arc::default(),
        }
    }

    /// Accounting, by id: one row per job (its last attempt) or per attempt. Jobs that have not run are listed
    /// when they are over, or when asked for by id or by the state PENDING. With a limit, the newest ones.
    ///
    /// # Errors
    /// The database does not answer, or a filter is not understood ([`ReadError::question`]).
    pub async fn runs(&self, query: RunQuery, now: Timestamp) -> Result<Vec<RunRow>, ReadError> {
        self.ask(move |db| accounting::runs(db, &query, now)).await
    }

    /// Which rows [`Self::runs`] would give, without those of jobs that wait if they are known better elsewhere.
    ///
    /// # Errors
    /// As [`Self::runs`].
    pub async fn found_runs(
        &self,
        query: RunQuery,
        without_waiting: bool,
    ) -> Result<FoundRuns, ReadError> {
        self.ask(move |db| accounting::found(db, &query, without_waiting))
            .await
    }

    /// These rows with these of their keys; None for what is not there.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn run_rows(
        &self,
        keys: Vec<RunKey>,
        fields: Arc<RunFields>,
        now: Timestamp,
    ) -> Result<Vec<Option<RunRow>>, ReadError> {
        self.ask(move |db| run_fields::rows(db, &keys, &fields, now))
            .await
    }

    /// A job by id, finished or not; a task without a record of its own as its array.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn job(&self, id: JobId) -> Result<Option<StoredJob>, ReadError> {
        self.ask(move |db| stored_job(db, id, &mut SpecCache::default()))
            .await
    }

    /// A component of a job of unlike parts.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn part(&self, leader: JobId, offset: u32) -> Result<Option<StoredJob>, ReadError> {
        let id = JobId(leader.0.saturating_add(u64::from(offset)));
        let is_it = |stored: &StoredJob| match stored {
            StoredJob::Job(job) => job.spec.part.is_some_and(|part| part.leader == leader),
            StoredJob::Array(_) => false,
        };
        Ok(self.job(id).await?.filter(is_it))
    }

    /// Several jobs, as [`Self::job`] finds them; none for an id that was never given.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn jobs(&self, ids: Vec<JobId>) -> Result<Vec<Option<StoredJob>>, ReadError> {
        self.ask(move |db| {
            let mut specs = SpecCache::default();
            ids.into_iter()
                .map(|id| stored_job(db, id, &mut specs))
                .collect()
        })
        .await
    }

    /// The steps of several jobs, in the order of the ids.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn steps(&self, ids: Vec<JobId>) -> Result<Vec<Vec<StoredStep>>, ReadError> {
        self.ask(move |db| steps::of_jobs(db, &ids)).await
    }

    /// A task with a record of its own, or its array.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn task(&self, array: JobId, index: u32) -> Result<Option<StoredJob>, ReadError> {
        self.ask(move |db| {
            let Some(found) = stored_array(db, array)? else {
                return Ok(None);
            };
            let Some(position) = found.tasks.position(index) else {
                return Ok(None);
            };
            match stored_job(db, found.task_id(position), &mut SpecCache::default())? {
                Some(StoredJob::Job(job)) if job.task.is_some() => Ok(Some(StoredJob::Job(job))),
                _ => Ok(Some(StoredJob::Array(Box::new(found)))),
            }
        })
        .await
    }

    /// What became of a GPU, oldest first, by its UUID or the beginning of one; nothing for one that was never seen.
    ///
    /// # Errors
    /// The database does not answer, or several begin so ([`ReadError::question`]).
    pub async fn gpu_history(&self, gpu: String) -> Result<Vec<GpuHistoryRow>, ReadError> {
        self.ask(move |db| gpu_history::lines(db, &gpu)).await
    }

    /// Runs that ended between two instants and had idle GPUs at some time.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn idle_runs(
        &self,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<Vec<IdleRun>, ReadError> {
        self.ask(move |db| idle::runs(db, from, to)).await
    }

    /// Jobs that are over, by id: those after an id that were submitted within a time, so many at most.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn trace_page(
        &self,
        submitted: Range<Timestamp>,
        after: Option<JobId>,
        limit: u32,
    ) -> Result<Vec<TracedJob>, ReadError> {
        self.ask(move |db| trace::page(db, submitted, after, limit))
            .await
    }

    /// The last attempt of a job, in accounting's words.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn last_run(&self, id: JobId, now: Timestamp) -> Result<Option<RunRow>, ReadError> {
        Ok(self.last_runs(vec![id], now).await?.pop())
    }

    /// Attempt and host list of the newest runs of a job, the oldest of them first.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn nodes_of_runs(
        &self,
        job: JobId,
        most: u32,
    ) -> Result<Vec<(u32, String)>, ReadError> {
        self.ask(move |db| {
            let sql =
                "SELECT attempt, nodelist FROM runs WHERE job = ?1 ORDER BY attempt DESC LIMIT ?2";
            let mut statement = db.prepare_cached(sql)?;
            let mut runs = statement
                .query_map((job.0, most), |row| Ok((row.get(0)?, row.get(1)?)))?
                .collect::<rusqlite::Result<Vec<_>>>()?;
            runs.reverse();
            Ok(runs)
        })
        .await
    }

    /// The last attempts of several jobs, in their order; jobs that are not there are left out.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn last_runs(
        &self,
        ids: Vec<JobId>,
        now: Timestamp,
    ) -> Result<Vec<RunRow>, ReadError> {
        self.ask(move |db| accounting::last_runs(db, &ids, now))
            .await
    }

    /// A script or an environment; none when it was never there or its time is over.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn blob(&self, id: BlobId) -> Result<Option<Vec<u8>>, ReadError> {
        self.ask(move |db| blob(db, &id)).await
    }

    /// Several blobs at one go, in the order asked for.
    pub(crate) async fn blobs(&self, ids: Vec<BlobId>) -> Result<Vec<Option<Vec<u8>>>, ReadError> {
        self.ask(move |db| ids.iter().map(|id| blob(db, id)).collect())
            .await
    }

    /// How jobs ended that a dependency names; those that are not over are left out.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn past_jobs(&self, names: Vec<JobRef>) -> Result<Vec<ForgottenJob>, ReadError> {
        self.ask(move |db| past::past_jobs(db, &names)).await
    }

    /// What happened to a job, oldest first; of an array also what happened to all of it.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn history(&self, job: JobId) -> Result<History, ReadError> {
        self.ask(move |db| history::history(db, job)).await
    }

    /// The events after `after` of which users may want mail, of a bounded number of events, oldest first.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn mail_events(&self, after: u64) -> Result<MailPage, ReadError> {
        self.ask(move |db| mail_events::page(db, after)).await
    }

    /// Which events there are.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn event_bounds(&self) -> Result<EventBounds, ReadError> {
        self.ask(event_pages::bounds).await
    }

    /// The number of the first event from a time on.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn first_event_at(&self, at: Timestamp) -> Result<u64, ReadError> {
        self.ask(move |db| {
            let newest = event_pages::bounds(db)?.newest;
            event_pages::first_at(db, newest, at)
        })
        .await
    }

    /// What `tell` makes of the events of some kinds after `after`, going through `most` events at most. The bounds are those of the page.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn event_page<T: Send + 'static>(
        &self,
        kinds: &'static str,
        after: u64,
        most: u64,
        tell: impl FnOnce(Vec<StoredEvent>, EventBounds, &EventLookup<'_>) -> ReadResult<T>
        + Send
        + 'static,
    ) -> Result<T, ReadError> {
        self.ask(move |db| {
            let (events, bounds) = event_pages::page(db, kinds, after, most)?;
            tell(events, bounds, &event_pages::lookup(db))
        })
        .await
    }

    /// An array by its id, which its first task may have too.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn array(&self, id: JobId) -> Result<Option<Array>, ReadError> {
        self.ask(move |db| stored_array(db, id)).await
    }

    /// How many tasks of an array there are in each state.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn task_states(&self, array: JobId) -> Result<BTreeMap<String, u64>, ReadError> {
        self.ask(move |db| mail_events::task_states(db, array))
            .await
    }

    /// GPU-hours, CPU-hours and jobs, of the part of each run between `from` and `to`, by any of [`GROUPS`].
    ///
    /// # Errors
    /// The database does not answer, or a group is unknown ([`ReadError::question`]).
    pub async fn report(
        &self,
        by: Vec<String>,
        from: Timestamp,
        to: Timestamp,
        now: Timestamp,
        prices: gmodel::policy::price::Prices,
    ) -> Result<Vec<ReportRow>, ReadError> {
        self.ask(move |db| report::report(db, &by, from, to, now, &prices))
            .await
    }

    /// The lines of a month's bill, and the runs that go on over its end.
    ///
    /// # Errors
    /// The database does not answer, or the runs are no longer kept.
    pub async fn bill(
        &self,
        question: BillQuestion,
        tariff: Arc<Tariff>,
    ) -> Result<(Vec<BillLine>, Vec<CarriedRun>), ReadError> {
        self.ask(move |db| bill::lines(db, &question, &tariff))
            .await
    }

    /// The runs of a bill, of users and accounts that `seen` says yes to.
    ///
    /// # Errors
    /// As [`Self::bill`], or there are too many.
    pub async fn billed_runs(
        &self,
        question: BillQuestion,
        seen: impl Fn(&str, &str) -> bool + Send + 'static,
    ) -> Result<Vec<BilledRun>, ReadError> {
        self.ask(move |db| bill::runs(db, &question, seen)).await
    }

    /// Some of these as lines of CSV, under [`CSV_HEAD`].
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn billed_lines(&self, runs: Vec<BilledRun>) -> Result<String, ReadError> {
        self.ask(move |db| bill::csv(db, &runs)).await
    }

    /// What the cluster had between `from` and `to`, which is not after now.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn capacity(
        &self,
        from: Timestamp,
        to: Timestamp,
        nodes: Vec<NodeNow>,
    ) -> Result<Capacity, ReadError> {
        self.ask(move |db| capacity::capacity(db, from, to, &nodes))
            .await
    }

    /// When nodes took no work, by node and start.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn node_events(
        &self,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<Vec<NodeEventRow>, ReadError> {
        self.ask(move |db| node_events::spells(db, from, to)).await
    }

    /// Changes of accounts, users, QOS and reservations with their authors, the oldest first.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn policy_events(
        &self,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<Vec<PolicyEventRow>, ReadError> {
        self.ask(move |db| policy_events::changes(db, from, to))
            .await
    }

    async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Connection) -> ReadResult<T> + Send + 'static,
    ) -> Result<T, ReadError> {
        let reader = self.clone();
        tokio::task::spawn_blocking(move || reader.ask_blocking(question))
            .await
            .expect("questions do not panic")
    }

    fn ask_blocking<T>(
        &self,
        question: impl FnOnce(&Connection) -> ReadResult<T>,
    ) -> Result<T, ReadError> {
        let answer = self.connection().and_then(|db| {
            // One state of the database for a whole question, and one lock instead of one for each row that is looked up.
            let snapshot = db.unchecked_transaction()?;
            let answer = question(&snapshot);
            drop(snapshot);
            let mut idle = self.idle.lock().expect("no panic while held");
            if idle.len() < KEPT_CONNECTIONS {
                idle.push(db);
            }
            answer
        });
        answer.map_err(|source| ReadError {
            path: self.path.display().to_string(),
            source,
        })
    }

    fn connection(&self) -> ReadResult<Connection> {
        let kept = self.idle.lock().expect("no panic while held").pop();
        kept.map_or_else(|| Ok(open_reader(&self.path)?), Ok)
    }
}
