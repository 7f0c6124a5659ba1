//! The checkpoint thread: brings the write-ahead log home while the core thread goes on, and removes what is past
//! its time: scripts and environments `keep_scripts_days` after their last use, and history after a year.
//!
//! Channels: owns the receiving end of `stop`; asks the core thread by `CoreHandle` to finish a checkpoint.

use super::open::open_reader;
use super::usage_sums;
use crate::core_thread::{CoreHandle, now};
use gmodel::Timestamp;
use rusqlite::{Connection, OpenFlags};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// How often the log's size is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// A checkpoint is made above this; reading a log of this size at boot takes no time.
const CHECKPOINT_ABOVE: u64 = 16 << 20;
/// Above this the core thread is asked for the rest, so that the log can start anew.
const FINISH_ABOVE: u64 = 64 << 20;
const PRUNE_EVERY: Duration = Duration::from_secs(3600);
/// Rows removed in one transaction: the core thread waits that long at most.
const PRUNE_ROWS: u32 = 200;
const PRUNE_PAUSE: Duration = Duration::from_millis(20);
/// Runs added to the sums in one transaction, and transactions between two looks at the log.
const COUNTED_ROWS: u32 = 200;
const COUNTED_SLICES: u32 = 50;
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
const KEEP_EVENTS_DAYS: i64 = 365;
const MILLIS_PER_DAY: i64 = 24 * 3600 * 1000;

/// Runs until `stop` is dropped. Trouble is logged and tried again: the log only grows meanwhile.
pub fn run(path: &Path, core: &CoreHandle, keep_scripts_days: &AtomicU64, stop: &Receiver<()>) {
    let log = wal_of(path);
    let mut pruned = Instant::now();
    let mut last_size = 0;
    let mut sums_complete = false;
    loop {
        match stop.recv_timeout(LOOK_EVERY) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
        }
        let size = log.metadata().map_or(0, |m| m.len());
        core.stats().wal_bytes.store(size, Relaxed);
        if size > CHECKPOINT_ABOVE && size != last_size {
            checkpoint(path, core, size);
        }
        last_size = size;
        if !sums_complete {
            match count_older(path) {
                Ok(complete) => sums_complete = complete,
                Err(e) => tracing::warn!("cannot add older runs to the sums of use: {e}"),
            }
        }
        if pruned.elapsed() > PRUNE_EVERY {
            pruned = Instant::now();
            let keep = i64::try_from(keep_scripts_days.load(Relaxed)).unwrap_or(i64::MAX / MILLIS_PER_DAY);
            if let Err(e) = prune(path, now(), keep) {
                tracing::warn!("cannot prune {}: {e}", path.display());
            }
        }
    }
}

/// Adds runs of an older release to the sums, a few at a time; true when none are left.
fn count_older(path: &Path) -> rusqlite::Result<bool> {
    let db = open_writer(path)?;
    for _ in 0..COUNTED_SLICES {
        if usage_sums::count_older(&db, COUNTED_ROWS)? == 0 {
            return Ok(true);
        }
        std::thread::sleep(PRUNE_PAUSE);
    }
    Ok(false)
}

fn checkpoint(path: &Path, core: &CoreHandle, size: u64) {
    let begun = Instant::now();
    let done = open_writer(path).and_then(|db| {
        // busy, frames in the log, frames brought home
        db.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| row.get::<_, i64>(0))
    });
    core.stats().checkpoint.record_duration(begun.elapsed());
    match done {
        Ok(_) if size > FINISH_ABOVE => core.finish_checkpoint(),
        Ok(_) => {}
        Err(e) => tracing::warn!("checkpoint of {}: {e}", path.display()),
    }
}

/// Removes what is past its time, a few rows at a time.
pub(super) fn prune(path: &Path, now: Timestamp, keep_scripts_days: i64) -> rusqlite::Result<()> {
    let db = open_writer(path)?;
    let today = now.0.div_euclid(MILLIS_PER_DAY);
    // A job that waits longer than that still needs its script.
    const BLOBS: &str = "DELETE FROM blobs WHERE rowid IN (
        SELECT rowid FROM blobs WHERE last_use < ?1 AND sha NOT IN (
            SELECT script FROM specs WHERE script IS NOT NULL AND id IN (
                SELECT spec FROM jobs WHERE live = 1 UNION SELECT spec FROM arrays WHERE live = 1)
            UNION SELECT script FROM jobs WHERE live = 1 AND script IS NOT NULL
            UNION SELECT script FROM arrays WHERE live = 1 AND script IS NOT NULL
            UNION SELECT environment FROM specs WHERE environment IS NOT NULL AND id IN (
                SELECT spec FROM jobs WHERE live = 1 UNION SELECT spec FROM arrays WHERE live = 1))
        LIMIT ?2)";
    const EVENTS: &str =
        "DELETE FROM events WHERE seq IN (SELECT seq FROM events WHERE at < ?1 ORDER BY seq LIMIT ?2)";
    in_steps(&db, BLOBS, today - keep_scripts_days)?;
    // Only while the oldest one is too old: `at` has no index and needs none.
    let oldest = |db: &Connection| {
        db.query_row("SELECT at FROM events ORDER BY seq LIMIT 1", [], |row| row.get::<_, i64>(0))
    };
    let before = now.0 - KEEP_EVENTS_DAYS * MILLIS_PER_DAY;
    if oldest(&db).is_ok_and(|at| at < before) {
        in_steps(&db, EVENTS, before)?;
    }
    Ok(())
}

fn in_steps(db: &Connection, sql: &str, before: i64) -> rusqlite::Result<()> {
    loop {
        let removed = db.prepare_cached(sql)?.execute((before, PRUNE_ROWS))?;
        if removed < PRUNE_ROWS as usize {
            return Ok(());
        }
        std::thread::sleep(PRUNE_PAUSE); // the core thread's turn
    }
}

/// A second writing connection: it waits for the core thread's turns, and the core thread for its own, so they must be short.
pub(super) fn open_writer(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = Connection::open_with_flags(path, flags)?;
    db.busy_timeout(BUSY_TIMEOUT)?;
    db.pragma_update(None, "synchronous", "FULL")?;
    db.pragma_update(None, "wal_autocheckpoint", 0)?;
    Ok(db)
}

fn wal_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push("-wal");
    name.into()
}

/// Whether the whole file is sound; the words of SQLite when it is not.
///
/// # Errors
/// The file cannot be read at all.
pub(super) fn check_file(path: &Path) -> rusqlite::Result<Option<String>> {
    let db = open_reader(path)?;
    let word: String = db.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    Ok((word != "ok").then_some(word))
}
