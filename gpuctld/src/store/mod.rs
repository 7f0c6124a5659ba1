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
mod load;
pub mod maintenance;
mod open;
pub mod reader;
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
use rusqlite::Connection;
use spec_ids::SpecIds;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Schema this release writes; migrations lead to it from every older one.
pub const SCHEMA: u32 = 4;

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
        matches!(self.source, WriteFailure::Sqlite(rusqlite::Error::SqliteFailure(..)))
    }
}

impl Store {
    /// Opens the database in `state_dir`, making or migrating it, and reads the live rows.
    ///
    /// # Errors
    /// Another controller has it, it is from a newer release, it is damaged, or the disk says no.
    pub fn open(state_dir: &Path, cluster: &str) -> Result<(Self, State), OpenError> {
        let lock = open::StateLock::take(state_dir)?;
        let path = state_dir.join(DATABASE);
        open::check_not_lost(&path)?;
        let db = open::open_writer(&path, cluster)?;
        let loaded = load::load(&db).map_err(|e| e.at(&path))?;
        let generations = loaded.state.nodes.values().map(|n| (n.id, n.generation)).collect();
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

    /// Writes a batch and the rows it touched, from the state after it; durable when it returns.
    /// Returns the nodes whose orders changed.
    ///
    /// # Errors
    /// Nothing of the batch is durable, and the state in memory is ahead of the disk: the process must end.
    pub fn write(&mut self, state: &State, batch: Batch) -> Result<Vec<NodeId>, WriteError> {
        write::write(self, state, batch)
            .map_err(|source| WriteError { path: self.path.display().to_string(), source })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Moves what the log holds into the database, as far as readers allow.
    ///
    /// # Errors
    /// The disk's.
    pub fn checkpoint(&self) -> Result<(), WriteError> {
        let run = || self.db.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
        run().map_err(|e| WriteError { path: self.path.display().to_string(), source: e.into() })
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
        self.db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).map_err(error)?;
        self.db.close().map_err(|(_, e)| error(e))
    }
}

impl Blob {
    pub fn id(&self) -> BlobId {
        BlobId::of_sha(self.sha)
    }
}
