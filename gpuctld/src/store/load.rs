//! Reading the live rows at boot. Finished jobs stay in the file: partial indexes keep them out of the way.

use super::documents::{ArrayDocument, JobDocument};
use super::open::OpenError;
use super::spec_ids::SpecIds;
use gcore::ctl::RecentSpecs;
use gcore::ctl::state::{Array, Job, JoinToken, Node, Run, State};
use gcore::ctl::{KEPT_FINISHED, Rows};
use gmodel::billing::Billing;
use gmodel::{JobSpec, NodeId, Policy, Seq, Timestamp, UserToken};
use gpolicy::usage::{UsageBook, UsageEntry};
use rusqlite::{Connection, OptionalExtension, Row, Statement};
use serde::de::DeserializeOwned;
use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;

pub struct LoadedState {
    pub state: State,
    pub specs: SpecIds,
}

/// A row that cannot be read.
#[derive(Debug)]
pub enum LoadError {
    Sqlite(rusqlite::Error),
    Record(String),
}

impl LoadError {
    pub fn at(self, path: &Path) -> OpenError {
        match self {
            Self::Sqlite(e) => OpenError::sqlite(path, e),
            Self::Record(detail) => OpenError::Damaged {
                path: path.to_owned(),
                detail,
            },
        }
    }
}

impl From<rusqlite::Error> for LoadError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

/// Jobs that ended within this before the last event are back in memory after a start whatever `min_job_age` says: a client
/// that lost its answer with the old process finds its job by its key.
const RECENT_MILLIS: i64 = 120_000;
/// The newest of them; a pool that ends more in two minutes forgets the others early.
const MAX_RECENT: u32 = 100_000;

/// A job with a run that still holds something is live although it may be over, and so is the array of a live task.
const LIVE_JOBS: &str = "SELECT doc, spec FROM jobs WHERE live = 1
    UNION ALL
    SELECT doc, spec FROM jobs WHERE live = 0 AND id IN (SELECT job FROM runs WHERE live = 1)";
const LIVE_ARRAYS: &str = "SELECT id FROM arrays WHERE live = 1
        UNION SELECT array_id FROM jobs WHERE live = 1
        UNION SELECT array_id FROM runs JOIN jobs ON jobs.id = runs.job WHERE runs.live = 1";

/// As [`LIVE_JOBS`], with those that ended since.
fn jobs_since(since: i64) -> String {
    format!(
        "{LIVE_JOBS} UNION ALL
         SELECT doc, spec FROM (SELECT doc, spec FROM jobs WHERE end_ms >= {since} AND live = 0
             AND id NOT IN (SELECT job FROM runs WHERE live = 1) ORDER BY end_ms DESC LIMIT {MAX_RECENT})"
    )
}

fn arrays_since(since: i64) -> String {
    format!(
        "SELECT doc, spec FROM arrays WHERE id IN ({LIVE_ARRAYS}
             UNION SELECT array_id FROM jobs WHERE end_ms >= {since}
             UNION SELECT id FROM arrays WHERE cancelled_ms >= {since})"
    )
}

const REQUEST: &str = "SELECT doc FROM specs WHERE id = ?1";

pub fn load(db: &Connection, min_job_age_secs: u32) -> Result<LoadedState, LoadError> {
    let rows = load_meta(db)?;
    let last_spec: Option<i64> = db.query_row("SELECT max(id) FROM specs", [], |row| row.get(0))?;
    let mut requests = RequestCache {
        by_id: HashMap::new(),
        late: RecentSpecs::default(),
        read: db.prepare(REQUEST)?,
        ids: SpecIds::starting_after(last_spec.unwrap_or(0)),
    };
    let since = remembered_since(db, min_job_age_secs)?;
    let arrays: Vec<Array> = each(db, &arrays_since(since), |row| {
        let document: ArrayDocument = document(row, 0, "array")?;
        Ok(document.with_spec(requests.get(row)?, &mut requests.late))
    })?;
    let jobs: Vec<Job> = each(db, &jobs_since(since), |row| {
        let document: JobDocument = document(row, 0, "job")?;
        Ok(document.with_spec(requests.get(row)?, &mut requests.late))
    })?;
    let runs: Vec<Run> = each(db, "SELECT doc FROM runs WHERE live = 1", |row| {
        document(row, 0, "run")
    })?;
    // Generations and the runs a node holds follow from the rest; `from_rows` knows how.
    let nodes: Vec<Node> = each(
        db,
        "SELECT doc FROM nodes WHERE removed_ms IS NULL ORDER BY id",
        |row| document(row, 0, "node"),
    )?;
    let tokens: Vec<JoinToken> = each(db, "SELECT doc FROM tokens", |row| {
        document(row, 0, "token")
    })?;
    let user_tokens: Vec<UserToken> = each(db, "SELECT doc FROM user_tokens", |row| {
        document(row, 0, "user's token")
    })?;
    let policy: Policy = only(db, "SELECT doc FROM policy", "policy")?;
    let billing: Billing = only(db, "SELECT doc FROM billing", "bills")?;
    let usage = load_usage(db)?;
    let rows = Rows {
        jobs,
        arrays,
        runs,
        nodes,
        tokens,
        user_tokens,
        billing,
        policy,
        usage,
        automatic_drains: load_automatic_drains(db)?,
        automatic_gpus: load_automatic_quarantines(db)?,
        ..rows
    };
    Ok(LoadedState {
        state: State::from_rows(rows),
        specs: requests.ids,
    })
}

/// The one document of a table; a new cluster has none.
fn only<T: DeserializeOwned + Default>(
    db: &Connection,
    sql: &str,
    what: &'static str,
) -> Result<T, LoadError> {
    let found: Vec<T> = each(db, sql, |row| document(row, 0, what))?;
    Ok(found.into_iter().next().unwrap_or_default())
}

/// What accounts and users have used.
pub fn load_usage(db: &Connection) -> Result<UsageBook, LoadError> {
    let mut usage = UsageBook::default();
    for (account, user, entry) in each(db, "SELECT doc, account, user FROM usage", usage_row)? {
        usage.insert(&account, &user, entry);
    }
    Ok(usage)
}

/// The counters, and the adoption window.
fn load_meta(db: &Connection) -> Result<Rows, LoadError> {
    let sql = "SELECT incarnation, seq, next_job, next_node, adoption FROM meta";
    db.query_row(sql, [], |row| {
        let adoption: Option<Vec<u8>> = row.get(4)?;
        let adoption = adoption.map(|doc| serde_json::from_slice(&doc)).transpose();
        let rows = Rows {
            incarnation: row.get(0)?,
            seq: Seq(row.get(1)?),
            next_job: row.get(2)?,
            next_node: row.get(3)?,
            ..Rows::default()
        };
        Ok(adoption.map(|adoption| Rows { adoption, ..rows }))
    })?
    .map_err(|e| LoadError::Record(format!("the stored adoption window cannot be read ({e})")))
}

/// Jobs that ended since then are back in memory: those within `min_job_age` of the last event, and of very many the newest, as
/// a controller that runs forgets them.
fn remembered_since(db: &Connection, min_job_age_secs: u32) -> Result<i64, LoadError> {
    let last_event: Option<i64> = db.query_row(
        "SELECT (SELECT at FROM events ORDER BY seq DESC LIMIT 1)",
        [],
        |row| row.get(0),
    )?;
    // Without an event no job ended here: what there is was brought from elsewhere.
    let Some(last_event) = last_event else {
        return Ok(i64::MAX);
    };
    let aged = last_event - i64::from(min_job_age_secs) * 1000;
    let crowded: Option<i64> = db
        .query_row(
            "SELECT end_ms FROM jobs WHERE end_ms >= ?1 ORDER BY end_ms DESC LIMIT 1 OFFSET ?2",
            (aged, i64::try_from(KEPT_FINISHED).unwrap_or(i64::MAX)),
            |row| row.get(0),
        )
        .optional()?;
    Ok(crowded
        .map_or(aged, |end| end + 1)
        .min(last_event - RECENT_MILLIS))
}

fn usage_row(row: &Row<'_>) -> Result<(String, String, UsageEntry), LoadError> {
    Ok((row.get(1)?, row.get(2)?, document(row, 0, "usage")?))
}

fn load_automatic_drains(db: &Connection) -> Result<BTreeSet<(Timestamp, NodeId)>, LoadError> {
    let drains = each(db, "SELECT at, node FROM automatic_drains", |row| {
        Ok((Timestamp(row.get(0)?), NodeId(row.get(1)?)))
    })?;
    Ok(drains.into_iter().collect())
}

/// What the breaker counts, of the last day that is on record.
fn load_automatic_quarantines(
    db: &Connection,
) -> Result<BTreeSet<(Timestamp, NodeId, String)>, LoadError> {
    let sql = "SELECT at_ms, node, uuid FROM gpu_history WHERE automatic = 1
               AND at_ms > (SELECT max(at_ms) FROM gpu_history WHERE automatic = 1) - 86400000";
    let lines = each(db, sql, |row| {
        Ok((Timestamp(row.get(0)?), NodeId(row.get(1)?), row.get(2)?))
    })?;
    Ok(lines.into_iter().collect())
}

/// Requests by row; jobs with one row share one request.
struct RequestCache<'a> {
    by_id: HashMap<i64, Arc<JobSpec>>,
    /// Equal ones among those with a row in common.
    late: RecentSpecs,
    read: Statement<'a>,
    ids: SpecIds,
}

impl RequestCache<'_> {
    /// From the column `spec` after the document.
    fn get(&mut self, row: &Row<'_>) -> Result<Arc<JobSpec>, LoadError> {
        let id: i64 = row.get(1)?;
        if let Some(spec) = self.by_id.get(&id) {
            return Ok(spec.clone());
        }
        let mut rows = self.read.query([id])?;
        let found = rows
            .next()?
            .ok_or_else(|| LoadError::Record(format!("the request {id} of a job is missing")))?;
        let spec: Arc<JobSpec> = document(found, 0, "request")?;
        self.ids.remember(&spec, id);
        self.by_id.insert(id, spec.clone());
        Ok(spec)
    }
}

pub(super) fn each<T>(
    db: &Connection,
    sql: &str,
    mut read: impl FnMut(&Row<'_>) -> Result<T, LoadError>,
) -> Result<Vec<T>, LoadError> {
    let mut statement = db.prepare(sql)?;
    let mut rows = statement.query([])?;
    let mut all = Vec::new();
    while let Some(row) = rows.next()? {
        all.push(read(row)?);
    }
    Ok(all)
}

fn document<T: DeserializeOwned>(row: &Row<'_>, column: usize, what: &str) -> Result<T, LoadError> {
    let bytes = row
        .get_ref(column)?
        .as_blob()
        .map_err(|e| LoadError::Record(format!("{what}: {e}")))?;
    serde_json::from_slice(bytes)
        .map_err(|e| LoadError::Record(format!("a stored {what} cannot be read ({e})")))
}
