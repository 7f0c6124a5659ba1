//! Which jobs are over, page by page, in the order of their ids: the order in which they were submitted.

use super::stored::ReadResult;
use gmodel::{JobId, Timestamp};
use rusqlite::Connection;
use std::ops::Range;

/// One job of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracedJob {
    pub id: JobId,
    /// When its first run began; `None`: it never ran.
    pub first_start: Option<Timestamp>,
}

/// The jobs after an id that were `submitted` in a time and are over; array tasks that had no record of their own never
/// ran and are left out.
pub fn page(
    db: &Connection,
    submitted: Range<Timestamp>,
    after: Option<JobId>,
    limit: u32,
) -> ReadResult<Vec<TracedJob>> {
    let after = match after {
        Some(id) => id.0.cast_signed(),
        None => begin(db, submitted.start)? - 1,
    };
    // The plus keeps SQLite from taking the index over ends, and sorting all of it for each page.
    let mut statement = db.prepare_cached(
        "SELECT j.id, (SELECT min(r.start_ms) FROM runs r WHERE r.job = j.id) FROM jobs j
         WHERE j.id > ?1 AND +j.end_ms IS NOT NULL AND j.submit_ms >= ?2 AND j.submit_ms < ?3 ORDER BY j.id LIMIT ?4",
    )?;
    let rows = statement.query_map((after, submitted.start.0, submitted.end.0, limit), |row| {
        Ok(TracedJob {
            id: JobId(row.get(0)?),
            first_start: row.get::<_, Option<i64>>(1)?.map(Timestamp),
        })
    })?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

/// No job with a lower id was submitted after `from`: what ended earlier was. The index over ends has ids too.
fn begin(db: &Connection, from: Timestamp) -> ReadResult<i64> {
    let first: Option<i64> = db
        .prepare_cached("SELECT min(id) FROM jobs WHERE end_ms >= ?1")?
        .query_row([from.0], |row| row.get(0))?;
    Ok(first.unwrap_or(i64::MAX))
}
