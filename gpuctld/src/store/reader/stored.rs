//! Jobs, arrays and blobs as rows of the database, and how any row is read.

use crate::store::documents::{ArrayDocument, JobDocument};
use crate::store::error::ReadFailure;
use gcore::ctl::{Array, Job, RecentSpecs};
use gmodel::{BlobId, JobId, JobSpec};
use rusqlite::{Connection, OptionalExtension, Row};
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::sync::Arc;

pub type ReadResult<T> = Result<T, ReadFailure>;

/// A job or array as the database keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoredJob {
    Job(Box<Job>),
    /// The id is that of an array, or of a task that never had a record of its own.
    Array(Box<Array>),
}

/// The specs that a question has read: jobs that were submitted alike share one.
#[derive(Default)]
pub struct SpecCache(BTreeMap<u64, Arc<JobSpec>>);

impl SpecCache {
    pub fn read(&mut self, db: &Connection, id: u64) -> ReadResult<Arc<JobSpec>> {
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

pub fn stored_job(
    db: &Connection,
    id: JobId,
    specs: &mut SpecCache,
) -> ReadResult<Option<StoredJob>> {
    let job = db
        .prepare_cached("SELECT doc, spec FROM jobs WHERE id = ?1")?
        .query_row([id.0], |row| Ok((bytes(row, 0)?, row.get::<_, u64>(1)?)))
        .optional()?;
    if let Some((doc, spec)) = job {
        let document: JobDocument = read(&doc)?;
        return Ok(Some(StoredJob::Job(Box::new(
            document.with_spec(specs.read(db, spec)?, &mut RecentSpecs::default()),
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

pub fn stored_array(db: &Connection, id: JobId) -> ReadResult<Option<Array>> {
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
        document.with_spec(read(&spec)?, &mut RecentSpecs::default()),
    ))
}

pub fn blob(db: &Connection, id: &BlobId) -> ReadResult<Option<Vec<u8>>> {
    let Some(sha) = id.sha() else { return Ok(None) };
    Ok(db
        .prepare_cached("SELECT data FROM blobs WHERE sha = ?1")?
        .query_row([sha], |row| row.get(0))
        .optional()?)
}

pub fn bytes(row: &Row<'_>, column: usize) -> rusqlite::Result<Vec<u8>> {
    row.get(column)
}

pub fn read<T: DeserializeOwned>(doc: &[u8]) -> ReadResult<T> {
    Ok(serde_json::from_slice(doc)?)
}
