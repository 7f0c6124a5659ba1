//! The database: one SQLite file that holds rows (the checkpoint) and events (the history), written together.
//!
//! Owns all SQL of gpuctld. The core thread owns the only `Store`; readers, backup and the checkpoint thread have
//! connections of their own. It never decides anything about jobs: what to write comes from the core's state.

mod backup;
mod documents;
pub mod forecasts;
mod gpu_checks;
mod gpu_history;
mod gpu_use;
mod high_water;
mod load;
pub mod maintenance;
mod open;
pub mod page_check;
pub mod reader;
mod retention;
mod spec_ids;
mod usage_sums;
mod write;

#[cfg(test)]
mod tests;

pub use backup::{backup, restore};
pub use open::{DATABASE, OpenError};

use gcore::ctl::{Event, State};
use gmodel::{BlobId, NodeId, Timestamp};
use gsched::usage::UsageBook;
use rusqlite::{Connection, ErrorCode};
use spec_ids::SpecIds;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Schema this release writes; migrations lead to it from every older one.
pub const SCHEMA: u32 = 5;

/// The writing side of the database. One per state directory: it holds the lock.
#[derive(Debug)]
pub struct Store {
    db: Connection,
    path: PathBuf,
    specs: SpecIds,
    /// After the last batch, to see which nodes' orders changed.
    generations: BTreeMap<NodeId, u64>,
    blobs: write::KnownBlobs,
    /// As of the last commit, to see which rows changed.
    usage: Arc<UsageBook>,
    /// Held as long as the store is open.
    _lock: open::StateLock,
}

/// A script or an environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blob {
    pub sha: [u8; 32],
    pub data: Vec<u8>,
}

/// What one commit writes: facts in order, and the blobs of the submissions among them.
#[derive(Debug, Default)]
pub struct Batch {
    pub events: Vec<Event>,
    pub blobs: Vec<Blob>,
    /// For events that carry no time of their own.
    pub now: Timestamp,
}

/// A write that did not become durable. Nothing of its batch may be answered.
#[derive(Debug, thiserror::Error)]
#[error("cannot write to {path}")]
pub struct WriteError {
    path: String,
    #[source]
    source: WriteFailure,
}

/// What a file that turned out damaged asks of an administrator.
pub const DAMAGED: &str = "the database is damaged: its disk gave back other bytes than were written. Keep the file, and restore the newest backup (backups are made with gadm backup)";

impl WriteError {
    /// There was no room on the disk: the same batch may be written again.
    pub fn is_full(&self) -> bool {
        self.code() == Some(ErrorCode::DiskFull)
    }
    /// The file is not what was written to it.
    pub fn is_damage(&self) -> bool {
        self.code().is_some_and(is_damage)
    }
    fn code(&self) -> Option<ErrorCode> {
        match &self.source {
            WriteFailure::Sqlite(error) => error.sqlite_error_code(),
            WriteFailure::Record(_) => None,
        }
    }
}

fn is_damage(code: ErrorCode) -> bool {
    matches!(code, ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)
}

#[derive(Debug, thiserror::Error)]
enum WriteFailure {
    #[error(transparent)]
    Sqlite(#[from] rusqlite::Error),
    #[error("a record cannot be put into JSON")]
    Record(#[from] serde_json::Error),
}

impl WriteError {
    /// The database or its disk failed; else a record could not be written as it was, which is a bug.
    pub fn is_of_disk(&self) -> bool {
        matches!(
            self.source,
            WriteFailure::Sqlite(rusqlite::Error::SqliteFailure(..))
        )
    }
}

impl Store {
    /// Opens the database in `state_dir`, migrating it, and reads the live rows, and of the jobs that are over those that a
    /// controller with this `min_job_age` would still have in memory.
    ///
    /// # Errors
    /// There is none, another controller has it, it is from a newer release, it is damaged or older than what was last served
    /// here, or the disk says no.
    pub fn open(
        state_dir: &Path,
        cluster: &str,
        min_job_age_secs: u32,
    ) -> Result<(Self, State), OpenError> {
        let lock = open::StateLock::take(state_dir)?;
        let path = state_dir.join(DATABASE);
        open::check_there(&path)?;
        let db = open::open_writer(&path, cluster)?;
        let loaded = load::load(&db, min_job_age_secs).map_err(|e| e.at(&path))?;
        let generations = loaded
            .state
            .nodes
            .values()
            .map(|n| (n.id, n.generation))
            .collect();
        let store = Self {
            specs: loaded.specs,
            generations,
            blobs: write::KnownBlobs::default(),
            usage: loaded.state.usage.clone(),
            db,
            path,
            _lock: lock,
        };
        Ok((store, loaded.state))
    }

    /// As [`Self::open`]; where nothing is, a new cluster.
    #[cfg(test)]
    pub fn open_or_make(state_dir: &Path) -> Result<(Self, State), OpenError> {
        if open::check_new(state_dir).is_ok() {
            Self::make(state_dir, "test")?;
        }
        Self::open(state_dir, "test", 300)
    }

    /// Makes the database of a new cluster.
    ///
    /// # Errors
    /// There is a cluster already, or the disk says no.
    pub fn make(state_dir: &Path, cluster: &str) -> Result<(), OpenError> {
        let lock = open::StateLock::take(state_dir)?;
        open::check_new(state_dir)?;
        let path = state_dir.join(DATABASE);
        let db = open::open_writer(&path, cluster)?;
        db.close().map_err(|(_, e)| OpenError::sqlite(&path, e))?;
        drop(lock);
        Ok(())
    }

    /// Writes a batch and the rows it touched, from the state after it; durable when it returns.
    /// Returns the nodes whose orders changed.
    ///
    /// # Errors
    /// Nothing of the batch is durable, and the state in memory is ahead of the disk: the batch is written again or the process
    /// must end.
    pub fn write(&mut self, state: &State, batch: &Batch) -> Result<Vec<NodeId>, WriteError> {
        let usage = self.usage.clone();
        write::write(self, state, batch).map_err(|source| {
            // What was noted as written is not. SQLite may have rolled back by itself.
            let _ = self.db.is_autocommit() || self.db.execute_batch("ROLLBACK").is_ok();
            self.blobs = write::KnownBlobs::default();
            self.usage = usage;
            WriteError {
                path: self.path.display().to_string(),
                source,
            }
        })
    }

    /// Writes how far the database has come beside it. That it cannot is no reason to stop.
    pub fn mark(&self) {
        high_water::mark(&self.db, &self.path);
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Moves what the log holds into the database, as far as readers allow.
    ///
    /// # Errors
    /// The disk's.
    pub fn checkpoint(&self) -> Result<(), WriteError> {
        let run = || {
            self.db
                .query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))
        };
        run().map_err(|e| WriteError {
            path: self.path.display().to_string(),
            source: e.into(),
        })
    }

    /// Ends cleanly: everything is in the one file afterwards.
    ///
    /// # Errors
    /// The disk's; the log is still there then, and nothing is lost.
    pub fn close(self) -> Result<(), WriteError> {
        let error = |e: rusqlite::Error| WriteError {
            path: self.path.display().to_string(),
            source: e.into(),
        };
        self.db
            .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
            .map_err(error)?;
        self.mark();
        self.db.close().map_err(|(_, e)| error(e))
    }
}

impl Blob {
    pub fn id(&self) -> BlobId {
        BlobId::of_sha(self.sha)
    }
}
