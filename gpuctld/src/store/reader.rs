//! Questions to the database about what is no longer in memory: accounting, finished jobs, blobs, history.
//!
//! Owns a few read-only connections; never writes, never sees the core's state.

use gcore::ctl::{Array, Job};
use gmodel::{BlobId, JobId, NodeId, RunId, Timestamp};
use gwire::api::{ReportRow, RunQuery, RunRow};
use rusqlite::Connection;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// Connections kept open for later questions; more are opened while all are busy.
const KEPT_CONNECTIONS: usize = 4;

/// Read access to the database. Cheap to clone.
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
    /// The id is that of an array and its first task has no record of its own.
    Array(Box<Array>),
}

/// One line of a job's or node's history.
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

impl Reader {
    /// Accounting, by end and then id; running jobs last, pending ones not at all unless asked by state or id.
    pub async fn runs(&self, query: RunQuery, now: Timestamp) -> Result<Vec<RunRow>, ReadError>;
    /// A job, finished or not, by id.
    pub async fn job(&self, id: JobId) -> Result<Option<StoredJob>, ReadError>;
    /// A task with a record of its own, or its array.
    pub async fn task(&self, array: JobId, index: u32) -> Result<Option<StoredJob>, ReadError>;
    /// The last attempt of a job, in accounting's words.
    pub async fn last_run(&self, id: JobId, now: Timestamp) -> Result<Option<RunRow>, ReadError>;
    pub async fn blob(&self, id: BlobId) -> Result<Option<Vec<u8>>, ReadError>;
    /// What happened to a job, oldest first.
    pub async fn history(&self, job: JobId) -> Result<Vec<HistoryLine>, ReadError>;
    /// `by`: any of account, user, partition, gpu-type, tag.
    pub async fn report(&self, by: Vec<String>, from: Timestamp, to: Timestamp, now: Timestamp) -> Result<Vec<ReportRow>, ReadError>;
}
