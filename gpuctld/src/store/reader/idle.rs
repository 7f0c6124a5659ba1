//! Runs that are over and had idle GPUs at some time, with their spells.

use super::stored::ReadResult;
use gmodel::idle::IdleSpell;
use gmodel::{RunId, Timestamp};
use rusqlite::{Connection, Row};
use std::collections::BTreeMap;

/// More are not looked at; the newest are.
const MAX_RUNS: u32 = 100_000;

/// One run as it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdleRun {
    pub run: RunId,
    pub user: String,
    pub account: String,
    pub partition: String,
    pub qos: String,
    /// Thousandths of GPUs that it held.
    pub gpus_milli: u64,
    pub started: Timestamp,
    pub ended: Timestamp,
    pub spells: Vec<IdleSpell>,
}

/// Those that ended between two instants, in the order of their ends.
pub fn runs(db: &Connection, from: Timestamp, to: Timestamp) -> ReadResult<Vec<IdleRun>> {
    let mut statement = db.prepare_cached(
        "SELECT job, attempt, user, account, partition, qos, gpus, coalesce(start_ms, placed_ms), end_ms, idle_spells
         FROM runs WHERE idle_spells IS NOT NULL AND end_ms >= ?1 AND end_ms <= ?2 ORDER BY end_ms DESC LIMIT ?3",
    )?;
    let mut rows = statement.query((from.0, to.0, MAX_RUNS))?;
    let mut runs = Vec::new();
    while let Some(row) = rows.next()? {
        runs.push(read(row)?);
    }
    runs.reverse();
    Ok(runs)
}

fn read(row: &Row<'_>) -> ReadResult<IdleRun> {
    let gpus: BTreeMap<String, u64> = serde_json::from_str(&row.get::<_, String>(6)?)?;
    Ok(IdleRun {
        run: RunId::new(gmodel::JobId(row.get(0)?), row.get(1)?),
        user: row.get(2)?,
        account: row.get(3)?,
        partition: row.get(4)?,
        qos: row.get(5)?,
        gpus_milli: gpus.values().sum(),
        started: Timestamp(row.get(7)?),
        ended: Timestamp(row.get(8)?),
        spells: serde_json::from_str(&row.get::<_, String>(9)?)?,
    })
}
