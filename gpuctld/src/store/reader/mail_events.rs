//! Events of which users may want mail, page by page; and how the tasks of an array ended.

use super::stored::{ReadResult, bytes, read, stored_array};
use gcore::ctl::Event;
use gmodel::{JobId, JobState};
use rusqlite::Connection;
use std::collections::BTreeMap;

/// Events of all kinds that one page goes through.
const PAGE_EVENTS: u64 = 5_000;

/// A part of the history.
#[derive(Debug, Default)]
pub struct MailPage {
    /// With their numbers, the oldest first.
    pub events: Vec<(u64, Event)>,
    /// All events up to this number were looked at.
    pub upto: u64,
}

pub fn page(db: &Connection, after: u64) -> ReadResult<MailPage> {
    let newest: Option<u64> = db
        .prepare_cached("SELECT max(seq) FROM events")?
        .query_row([], |row| row.get(0))?;
    let upto = newest
        .unwrap_or(after)
        .min(after.saturating_add(PAGE_EVENTS))
        .max(after);
    let mut statement = db.prepare_cached(
        "SELECT seq, doc FROM events WHERE seq > ?1 AND seq <= ?2 AND kind IN
            ('run_placed', 'run_ended', 'run_settled', 'job_cancelled', 'job_requeued', 'tasks_cancelled', 'tasks_requeued') ORDER BY seq",
    )?;
    let rows = statement.query_map((after, upto), |row| Ok((row.get(0)?, bytes(row, 1)?)))?;
    let mut events = Vec::new();
    for row in rows {
        let (seq, doc) = row?;
        events.push((seq, read(&doc)?));
    }
    Ok(MailPage { events, upto })
}

pub fn task_states(db: &Connection, id: JobId) -> ReadResult<BTreeMap<String, u64>> {
    let Some(array) = stored_array(db, id)? else {
        return Ok(BTreeMap::new());
    };
    let mut statement = db.prepare_cached(
        "SELECT state, count(*) FROM jobs WHERE id BETWEEN ?1 AND ?2 GROUP BY state",
    )?;
    let last = id.0 + u64::from(array.len().saturating_sub(1));
    let rows = statement.query_map((id.0, last), |row| Ok((row.get(0)?, row.get(1)?)))?;
    let mut states = rows.collect::<rusqlite::Result<BTreeMap<String, u64>>>()?;
    let untouched = [
        (JobState::Cancelled, array.not_late().len()),
        (JobState::Deadline, array.dropped.late.len()),
    ];
    for (state, tasks) in untouched.into_iter().filter(|(_, tasks)| *tasks > 0) {
        *states.entry(state.long().to_owned()).or_default() += tasks;
    }
    Ok(states)
}
