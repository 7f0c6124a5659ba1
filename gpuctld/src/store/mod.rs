//! The database: one SQLite file that holds rows (the checkpoint) and events (the history), written together.
//!
//! Owns all SQL of gpuctld. The core thread owns the only `Store`; readers, backup and the checkpoint thread have
//! connections of their own. It never decides anything about jobs: what to write comes from the core's state.

mod backup;
mod blob;
mod documents;
pub mod error;
pub mod forecasts;
mod gpu_checks;
mod gpu_history;
mod gpu_use;
mod granted_gpus;
mod high_water;
mod load;
pub mod maintenance;
mod number;
mod open;
pub mod page_check;
mod past_jobs;
pub mod reader;
mod retention;
mod spec_ids;
mod usage_sums;
mod write;

#[cfg(test)]
mod tests;

pub use backup::{backup, restore};
pub use blob::Blob;
pub use error::{ReadError, WriteError};
pub use open::{DATABASE, OpenError};
pub use past_jobs::{Arrival, PastJobs};
#[cfg(test)]
pub(crate) use retention::{RetentionDays, prune};
pub use write::Batch;

use gcore::ctl::State;
use gmodel::NodeId;
use std::path::{Path, PathBuf};
use write::Writer;

/// The writing side of the database. One per state directory: it holds the lock.
#[derive(Debug)]
pub struct Store {
    writer: Writer,
    path: PathBuf,
    /// Held as long as the store is open.
    _lock: open::StateLock,
}

impl Store {
    /// Opens and migrates the database in `state_dir`, and reads the live rows. Ended jobs are read as far as a
    /// controller with this `min_job_age` would still have them in memory.
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
        let store = Self {
            writer: Writer::new(db, loaded.specs, &loaded.state),
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
    /// Returns the nodes with changed orders.
    ///
    /// # Errors
    /// Nothing of the batch is durable, and the state in memory is ahead of the disk: the batch is written again or the process
    /// must end.
    pub fn write(&mut self, state: &State, batch: &Batch) -> Result<Vec<NodeId>, WriteError> {
        self.writer
            .write(state, batch)
            .map_err(|source| WriteError {
                path: self.path.display().to_string(),
                source,
            })
    }

    /// Writes how far the database has come beside it. That it cannot is no reason to stop.
    pub fn mark(&self) {
        high_water::mark(&self.writer.db, &self.path);
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
            self.writer
                .db
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
        self.writer
            .db
            .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
            .map_err(error)?;
        self.mark();
        self.writer.db.close().map_err(|(_, e)| error(e))
    }
}
