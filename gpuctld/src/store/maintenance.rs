//! The checkpoint thread: checkpoints the write-ahead log while the core thread goes on. It also writes the high-water mark, adds
//! older runs to the sums of use, and prunes records past their retention.
//!
//! Channels: owns the receiving end of `stop`; asks the core thread by `CoreHandle` to finish a checkpoint.

use super::error::{DAMAGED, is_damage};
use super::open::{open_reader, open_second_writer};
use super::retention::{self, RetentionDays};
use super::{high_water, usage_sums};
use crate::config::LiveSettings;
use crate::core_thread::{CoreHandle, now};
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
/// After the start, and from then on.
const PRUNE_FIRST: Duration = Duration::from_secs(5);
const PRUNE_EVERY: Duration = Duration::from_secs(3600);
/// Runs added to the sums in one transaction, transactions between two looks at the log, and the core thread's turn between them.
const COUNTED_ROWS: u32 = 200;
const COUNTED_SLICES: u32 = 50;
const COUNTED_PAUSE: Duration = Duration::from_millis(20);
/// The high-water mark is written after so many events, and after any in so long a time.
const MARK_EVENTS: u64 = 1000;
const MARK_EVERY: Duration = Duration::from_secs(5);

/// Runs until `stop` is dropped. Trouble is logged and tried again: the log only grows meanwhile.
pub fn run(path: &Path, core: &CoreHandle, live: &LiveSettings, stop: &Receiver<()>) {
    let log = wal_of(path);
    let mut next_prune = Instant::now() + PRUNE_FIRST;
    let mut last_size = 0;
    let mut sums_complete = false;
    let mut marked = MarkTime {
        events: 0,
        at: Instant::now(),
    };
    loop {
        match stop.recv_timeout(LOOK_EVERY) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
        }
        let size = log.metadata().map_or(0, |m| m.len());
        core.stats().wal_bytes.store(size, Relaxed);
        core.stats()
            .database_bytes
            .store(path.metadata().map_or(0, |m| m.len()), Relaxed);
        marked.look(path, core);
        if size > CHECKPOINT_ABOVE && size != last_size {
            checkpoint(path, core, size);
        }
        last_size = size;
        if !sums_complete {
            match count_older(path) {
                Ok(complete) => sums_complete = complete,
                Err(e) => warn(path, "cannot add older runs to the sums of use", &e),
            }
        }
        if sums_complete && Instant::now() >= next_prune {
            next_prune = Instant::now() + PRUNE_EVERY;
            let days =
                |setting: &AtomicU64| i64::try_from(setting.load(Relaxed)).unwrap_or(i64::MAX);
            let keep = RetentionDays {
                scripts: days(&live.keep_scripts_days),
                jobs: days(&live.keep_jobs_days),
            };
            match retention::prune(path, now(), keep) {
                Ok(0) => {}
                Ok(removed) => {
                    tracing::info!(
                        "removed {removed} jobs that ended more than {} days ago (keep_jobs_days)",
                        keep.jobs
                    );
                    note_free_pages(path, core);
                }
                Err(e) => warn(path, "cannot remove what is past its time", &e),
            }
        }
    }
}

/// Says what went wrong, and that it is no disk trouble where the file is damaged.
fn warn(path: &Path, what: &str, error: &rusqlite::Error) {
    if error.sqlite_error_code().is_some_and(is_damage) {
        return tracing::error!("{what}: {}: {error}: {}", path.display(), DAMAGED);
    }
    tracing::warn!("{what}: {}: {error}", path.display());
}

/// When the high-water mark was written last.
struct MarkTime {
    events: u64,
    at: Instant,
}

impl MarkTime {
    fn look(&mut self, path: &Path, core: &CoreHandle) {
        let new = core.stats().events.load(Relaxed) - self.events;
        if new == 0 || new < MARK_EVENTS && self.at.elapsed() < MARK_EVERY {
            return;
        }
        *self = Self {
            events: self.events + new,
            at: Instant::now(),
        };
        match open_reader(path) {
            Ok(db) => high_water::mark(&db, path),
            Err(e) => warn(path, "cannot read how far the database has come", &e),
        }
        note_free_pages(path, core);
    }
}

/// Counts the free pages of the database, for the metrics of its size.
fn note_free_pages(path: &Path, core: &CoreHandle) {
    let bytes = open_reader(path).and_then(|db| {
        let pages = |name| db.pragma_query_value(None, name, |row| row.get::<_, u64>(0));
        Ok(pages("freelist_count")?.saturating_mul(pages("page_size")?))
    });
    match bytes {
        Ok(bytes) => core.stats().database_free_bytes.store(bytes, Relaxed),
        Err(e) => warn(path, "cannot read the size of the database", &e),
    }
}

/// Adds runs of an older release to the sums, a few at a time; true when none are left.
fn count_older(path: &Path) -> rusqlite::Result<bool> {
    let db = open_second_writer(path)?;
    for _ in 0..COUNTED_SLICES {
        if usage_sums::count_older(&db, COUNTED_ROWS)? == 0 {
            return Ok(true);
        }
        std::thread::sleep(COUNTED_PAUSE);
    }
    Ok(false)
}

fn checkpoint(path: &Path, core: &CoreHandle, size: u64) {
    let begun = Instant::now();
    let done = open_second_writer(path).and_then(|db| {
        // busy, frames in the log, frames brought home
        db.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| {
            row.get::<_, i64>(0)
        })
    });
    core.stats().checkpoint.record_duration(begun.elapsed());
    match done {
        Ok(_) if size > FINISH_ABOVE => core.finish_checkpoint(),
        Ok(_) => {}
        Err(e) => warn(path, "cannot make a checkpoint", &e),
    }
}

fn wal_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push("-wal");
    name.into()
}
