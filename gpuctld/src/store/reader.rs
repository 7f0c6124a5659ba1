//! Questions to the database about what is no longer in memory: accounting, finished jobs, blobs, history.
//!
//! Owns a few read-only connections; never writes, never sees the core's state.

mod accounting;
mod cancelled_tasks;
mod capacity;
mod gpu_history;
mod idle;
mod node_events;
mod past;
mod policy_events;
mod report;
mod run_fields;
mod steps;
mod trace;

pub use accounting::Found;
pub use capacity::{Capacity, NodeNow};
pub use idle::IdleRun;
pub use report::GROUPS;
pub use run_fields::{RunFields, RunKey};
#[cfg(test)]
pub use steps::StoredEnd;
pub use steps::StoredStep;
pub use trace::TracedJob;

use super::documents::{ArrayDocument, JobDocument};
use super::open::open_reader;
use gcore::ctl::{Array, Job, LateSpecs, PastJob};
use gmodel::dependency::JobRef;
use gmodel::{BlobId, JobId, JobSpec, NodeId, RunId, Timestamp};
use gwire::api::{GpuHistoryRow, NodeEventRow, PolicyEventRow, ReportRow, RunQuery, RunRow};
use rusqlite::{Connection, OptionalExtension, Row};
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// Connections kept open for later questions; more are opened while all are busy.
const KEPT_CONNECTIONS: usize = 4;
/// Lines of history given out for one job, and what they may take, bytes: the newest.
const HISTORY_LINES: u32 = 10_000;
const HISTORY_BYTES: usize = 4 << 20;

/// Read access to the database. Cheap to clone. Questions run on blocking threads.
#[derive(Clone, Debug)]
pub struct Reader {
    path: Arc<PathBuf>,
    idle: Arc<Mutex<Vec<Connection>>>,
}

/// The database did not answer a question.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {path}")]
pub struct ReadError {
    path: String,
    #[source]
    source: ReadFailure,
}

#[derive(Debug, thiserror::Error)]
pub enum ReadFailure {
    #[error(transparent)]
    Sqlite(#[from] rusqlite::Error),
    #[error("a stored record is not what this release writes")]
    Record(#[from] serde_json::Error),
    /// The question itself was wrong.
    #[error("{0}")]
    Question(String),
}

/// A job or array as the database keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoredJob {
    Job(Box<Job>),
    /// The id is that of an array, or of a task that never had a record of its own.
    Array(Box<Array>),
}

/// One line of a job's history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryLine {
    pub seq: u64,
    pub at: Timestamp,
    /// Name of the event: `job_submitted`.
    pub kind: String,
    pub run: Option<RunId>,
    pub node: Option<NodeId>,
    /// The event as JSON.
    pub doc: String,
}

type Answer<T> = Result<T, ReadFailure>;

impl ReadError {
    /// The text for the one who asked, when the question was wrong.
    pub fn question(&self) -> Option<&str> {
        match &self.source {
            ReadFailure::Question(text) => Some(text),
            _ => None,
        }
    }
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
    ) -> Result<Found, ReadError> {
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
        self.ask(move |db| stored_job(db, id, &mut Specs::default()))
            .await
    }

    /// Several jobs, as [`Self::job`] finds them; none for an id that was never given.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn jobs(&self, ids: Vec<JobId>) -> Result<Vec<Option<StoredJob>>, ReadError> {
        self.ask(move |db| {
            let mut specs = Specs::default();
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
            match stored_job(db, found.task_id(position), &mut Specs::default())? {
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

    /// Runs that ended between two instants and whose GPUs stood idle at some time.
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
        within: (Timestamp, Timestamp),
        after: Option<JobId>,
        limit: u32,
    ) -> Result<Vec<TracedJob>, ReadError> {
        self.ask(move |db| trace::page(db, within, after, limit))
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
    pub async fn past_jobs(&self, names: Vec<JobRef>) -> Result<Vec<PastJob>, ReadError> {
        self.ask(move |db| past::past_jobs(db, &names)).await
    }

    /// What happened to a job, oldest first; of an array also what happened to all of it.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn history(&self, job: JobId) -> Result<History, ReadError> {
        self.ask(move |db| history(db, job)).await
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
        prices: report::Prices,
    ) -> Result<Vec<ReportRow>, ReadError> {
        self.ask(move |db| report::report(db, &by, from, to, now, &prices))
            .await
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

    /// Who changed which account, user, QOS or reservation, the oldest first.
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
        question: impl FnOnce(&Connection) -> Answer<T> + Send + 'static,
    ) -> Result<T, ReadError> {
        let reader = self.clone();
        tokio::task::spawn_blocking(move || reader.ask_blocking(question))
            .await
            .expect("questions do not panic")
    }

    fn ask_blocking<T>(
        &self,
        question: impl FnOnce(&Connection) -> Answer<T>,
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

    fn connection(&self) -> Answer<Connection> {
        let kept = self.idle.lock().expect("no panic while held").pop();
        kept.map_or_else(|| Ok(open_reader(&self.path)?), Ok)
    }
}

/// The specs that a question has read: jobs that were submitted alike share one.
#[derive(Default)]
struct Specs(BTreeMap<u64, Arc<JobSpec>>);

impl Specs {
    fn read(&mut self, db: &Connection, id: u64) -> Answer<Arc<JobSpec>> {
        if let Some(spec) = self.0.get(&id) {
            return Ok(Arc::clone(spec));
        }
        let doc = db
            .prepare_cached("SELECT doc FROM specs WHERE id = ?1")?
            .query_row([id], |row| bytes(row, 0))?;
        let spec: Arc<JobSpec> = read(&doc)?;
        self.0.insert(id, Arc::clone(&spec));
        Ok(spec)
    }
}

fn stored_job(db: &Connection, id: JobId, specs: &mut Specs) -> Answer<Option<StoredJob>> {
    let job = db
        .prepare_cached("SELECT doc, spec FROM jobs WHERE id = ?1")?
        .query_row([id.0], |row| Ok((bytes(row, 0)?, row.get::<_, u64>(1)?)))
        .optional()?;
    if let Some((doc, spec)) = job {
        let document: JobDocument = read(&doc)?;
        return Ok(Some(StoredJob::Job(Box::new(
            document.with_spec(specs.read(db, spec)?, &mut LateSpecs::default()),
        ))));
    }
    let array: Option<u64> = db
        .prepare_cached("SELECT id FROM arrays WHERE id <= ?1 ORDER BY id DESC LIMIT 1")?
        .query_row([id.0], |row| row.get(0))
        .optional()?;
    let Some(array) = array
        .map(JobId)
        .map(|id| stored_array(db, id))
        .transpose()?
        .flatten()
    else {
        return Ok(None);
    };
    let within = id.0 < array.id.0 + u64::from(array.len());
    Ok(within.then(|| StoredJob::Array(Box::new(array))))
}

fn stored_array(db: &Connection, id: JobId) -> Answer<Option<Array>> {
    let found = db
        .prepare_cached(
            "SELECT arrays.doc, specs.doc FROM arrays JOIN specs ON specs.id = spec WHERE arrays.id = ?1",
        )?
        .query_row([id.0], |row| Ok((bytes(row, 0)?, bytes(row, 1)?)))
        .optional()?;
    let Some((doc, spec)) = found else {
        return Ok(None);
    };
    let document: ArrayDocument = read(&doc)?;
    Ok(Some(
        document.with_spec(read(&spec)?, &mut LateSpecs::default()),
    ))
}

fn blob(db: &Connection, id: &BlobId) -> Answer<Option<Vec<u8>>> {
    let Some(sha) = id.sha() else { return Ok(None) };
    Ok(db
        .prepare_cached("SELECT data FROM blobs WHERE sha = ?1")?
        .query_row([sha], |row| row.get(0))
        .optional()?)
}

/// What befell a job, the oldest first.
pub struct History {
    pub lines: Vec<HistoryLine>,
    /// There is more, older than these.
    pub is_cut: bool,
}

fn history(db: &Connection, job: JobId) -> Answer<History> {
    // What befell the array before a task had a record of its own befell the task.
    const SQL: &str = "SELECT seq, at, kind, job, attempt, node, doc FROM events
        WHERE job IN (?1, (SELECT array_id FROM jobs WHERE id = ?1)) ORDER BY seq DESC LIMIT ?2";
    let mut statement = db.prepare_cached(SQL)?;
    let newest = statement.query_map((job.0, HISTORY_LINES), |row| {
        let attempt: Option<u32> = row.get(4)?;
        let job = JobId(row.get(3)?);
        Ok(HistoryLine {
            seq: row.get(0)?,
            at: Timestamp(row.get(1)?),
            kind: row.get(2)?,
            run: attempt
                .filter(|attempt| *attempt > 0)
                .map(|attempt| RunId::new(job, attempt)),
            node: row.get::<_, Option<u32>>(5)?.map(NodeId),
            doc: String::from_utf8_lossy(&bytes(row, 6)?).into_owned(),
        })
    })?;
    let (mut lines, mut bytes) = (Vec::new(), 0);
    let mut is_cut = false;
    for line in newest {
        let line = line?;
        bytes += line.doc.len();
        is_cut = bytes > HISTORY_BYTES || lines.len() + 1 == HISTORY_LINES as usize;
        if is_cut {
            break;
        }
        lines.push(line);
    }
    lines.reverse();
    // The first task has the array's id: its runs are not another task's.
    lines.retain(|line| line.run.is_none_or(|run| run.job == job));
    Ok(History { lines, is_cut })
}

fn bytes(row: &Row<'_>, column: usize) -> rusqlite::Result<Vec<u8>> {
    row.get(column)
}

fn read<T: DeserializeOwned>(doc: &[u8]) -> Answer<T> {
    Ok(serde_json::from_slice(doc)?)
}
