//! A look at every page of the database after a start, in the background, so that damage to what is seldom read is known before it is
//! needed: the start itself reads the live rows only.
//!
//! One table with its indexes at a time, each in a read transaction of its own: the log can start anew in between.

use super::error::{DAMAGED, is_damage};
use super::open::open_reader;
use crate::core_thread::CoreStats;
use rusqlite::Connection;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Findings of one table that are said.
const FINDINGS: u32 = 3;

/// Looks until all is seen or `stop` is set; what it finds is logged and kept for `gadm diag`.
pub fn run(path: &Path, stats: &CoreStats, stop: &AtomicBool) {
    match find(path, stop) {
        Ok(None) if stop.load(Relaxed) => {}
        Ok(None) => tracing::info!("every page is sound in {}", path.display()),
        Ok(Some(found)) => {
            tracing::error!("{}: {found}. {DAMAGED}", path.display());
            let _ = stats.damage.set(found);
        }
        Err(e) => tracing::warn!("the pages of {} cannot be checked: {e}", path.display()),
    }
}

/// The first damage, in SQLite's words.
fn find(path: &Path, stop: &AtomicBool) -> rusqlite::Result<Option<String>> {
    let found = |error: rusqlite::Error| match error.sqlite_error_code() {
        Some(code) if is_damage(code) => Ok(Some(error.to_string())),
        _ => Err(error),
    };
    let db = match open_reader(path) {
        Ok(db) => db,
        Err(e) => return found(e),
    };
    let tables = match tables(&db) {
        Ok(tables) => tables,
        Err(e) => return found(e),
    };
    for table in tables {
        if stop.load(Relaxed) {
            return Ok(None);
        }
        match check(&db, &table) {
            Ok(None) => {}
            Ok(Some(words)) => return Ok(Some(format!("table {table}: {words}"))),
            Err(e) => return found(e),
        }
    }
    Ok(None)
}

fn tables(db: &Connection) -> rusqlite::Result<Vec<String>> {
    let mut statement =
        db.prepare("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")?;
    statement.query_map([], |row| row.get(0))?.collect()
}

fn check(db: &Connection, table: &str) -> rusqlite::Result<Option<String>> {
    let mut statement = db.prepare(&format!("PRAGMA quick_check('{table}')"))?;
    let words: Vec<String> = statement
        .query_map([], |row| row.get(0))?
        .take(FINDINGS as usize)
        .collect::<rusqlite::Result<_>>()?;
    Ok((words != ["ok"]).then(|| words.join("; ").replace('\n', " ")))
}
