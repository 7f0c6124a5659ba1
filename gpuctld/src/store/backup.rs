//! Backup of a running controller's database, and restore of one while no controller runs.
//!
//! A restore raises the incarnation, so that nodes report before they obey, and skips job ids, so that none given
//! out since the backup is given again. The database that was there is kept beside the restored one.

use super::Store;
use super::error::WriteError;
use super::high_water::{HIGH_WATER, HighWater};
use super::open::{DATABASE, OpenError, StateLock, check_header, open_reader, open_writer};
use super::write::Batch;
use crate::core_thread::now;
use gcore::ctl::{Actor, Command, Input, Refusal, handle};
use rusqlite::{Connection, backup::Backup};
use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Pages copied at once, and the pause in which the core thread writes.
const PAGES: i32 = 1000;
const PAUSE: Duration = Duration::from_millis(2);

/// A backup or restore that was not made. What was there before is still there.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    #[error("{0} exists already. Name a file that does not, or remove it first")]
    Exists(PathBuf),
    #[error("{0} is not an absolute path: the file is written by the controller, on its host")]
    Relative(PathBuf),
    #[error("the backup {path} is damaged: {detail}. Take an older one")]
    Damaged { path: PathBuf, detail: String },
    #[error("there is no backup {0}")]
    Missing(PathBuf),
    #[error("cannot write {path}")]
    Io {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("cannot copy {path}")]
    Sqlite {
        path: PathBuf,
        #[source]
        source: rusqlite::Error,
    },
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Write(#[from] WriteError),
    #[error(transparent)]
    Refused(#[from] Refusal),
}

/// Copies the database as it is at one moment to a new file, 0600, whole or not at all. Blocks.
///
/// # Errors
/// The file exists, or cannot be written.
pub fn backup(database: &Path, to: &Path) -> Result<(), BackupError> {
    if !to.is_absolute() {
        return Err(BackupError::Relative(to.to_owned()));
    }
    if to.exists() {
        return Err(BackupError::Exists(to.to_owned()));
    }
    let temporary = suffixed(to, ".part");
    let result = copy(database, &temporary).and_then(|()| {
        settle(&temporary, to).map_err(|source| BackupError::Io {
            path: to.to_owned(),
            source,
        })
    });
    if result.is_err() {
        let _ = std::fs::remove_file(&temporary); // half a backup is none
    }
    result
}

/// Puts a backup in the place of the database. Returns where the former database is kept, if there was one.
///
/// # Errors
/// A controller runs, the backup is damaged or from a newer release, or the disk says no.
pub fn restore(
    state_dir: &Path,
    from: &Path,
    cluster: &str,
) -> Result<Option<PathBuf>, BackupError> {
    let lock = StateLock::take(state_dir)?;
    if !from.exists() {
        return Err(BackupError::Missing(from.to_owned()));
    }
    let damaged = |detail: String| BackupError::Damaged {
        path: from.to_owned(),
        detail,
    };
    check_header(from).map_err(|e| match e {
        OpenError::Damaged { detail, .. } => damaged(detail),
        other => other.into(),
    })?;
    match check_file(from) {
        Ok(None) => {}
        Ok(Some(detail)) => return Err(damaged(detail)),
        Err(e) => return Err(damaged(e.to_string())),
    }
    let database = state_dir.join(DATABASE);
    // Restoring twice from one backup must not give the same incarnation twice, nor an id that a lost database gave.
    let mark = HighWater::read(state_dir)
        .map_err(|source| BackupError::Io {
            path: state_dir.join(HIGH_WATER),
            source,
        })?
        .unwrap_or_default();
    let (incarnation, next_job) = counters(&database);
    let (incarnation, next_job) = (
        incarnation.max(mark.incarnation),
        next_job.max(mark.next_job),
    );
    let work_dir = state_dir.join("restore");
    let io = |path: &Path| {
        let path = path.to_owned();
        move |source| BackupError::Io { path, source }
    };
    let _ = std::fs::remove_dir_all(&work_dir); // left by an attempt that was killed
    std::fs::create_dir(&work_dir).map_err(io(&work_dir))?;
    let copied = work_dir.join(DATABASE);
    copy(from, &copied)?;
    drop(open_writer(&copied, cluster)?); // migrated before it is read
    raise(&work_dir, cluster, incarnation, next_job)?;
    let kept = keep_former(&database).map_err(io(&database))?;
    settle(&copied, &database).map_err(io(&database))?;
    // After the database: one of a higher incarnation is never behind.
    let mark = state_dir.join(HIGH_WATER);
    settle(&work_dir.join(HIGH_WATER), &mark).map_err(io(&mark))?;
    std::fs::remove_dir_all(&work_dir).map_err(io(&work_dir))?;
    drop(lock);
    Ok(kept)
}

/// Enters `Command::Restore` into the copy, above what the present database has seen.
fn raise(
    work_dir: &Path,
    cluster: &str,
    incarnation: u64,
    next_job: u64,
) -> Result<(), BackupError> {
    let (mut store, mut state) = Store::open(work_dir, cluster, 0)?;
    let mut batch = Batch {
        now: now(),
        ..Batch::default()
    };
    let actor = Actor {
        user: "root".into(),
        operator: true,
        ..Actor::default()
    };
    let input = Input::Command {
        actor,
        command: Command::Restore {
            incarnation,
            next_job,
        },
    };
    handle(&mut state, &mut batch.events, input, batch.now)?;
    store.write(&state, &batch)?;
    store.close()?;
    Ok(())
}

/// Incarnation and next job id of a database that may be missing or damaged.
fn counters(database: &Path) -> (u64, u64) {
    let read = || -> rusqlite::Result<(u64, u64)> {
        let db = open_reader(database)?;
        db.query_row("SELECT incarnation, next_job FROM meta", [], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
    };
    if database.exists() {
        read().unwrap_or((0, 0))
    } else {
        (0, 0)
    }
}

/// Renames the database and its log; a log without its file is worth nothing, and beside another it is poison.
fn keep_former(database: &Path) -> std::io::Result<Option<PathBuf>> {
    let kept = suffixed(database, &format!(".before-restore-{}", now().0));
    for end in ["-wal", "-shm"] {
        let log = suffixed(database, end);
        if log.exists() {
            std::fs::rename(&log, suffixed(&kept, end))?;
        }
    }
    if !database.exists() {
        return Ok(None);
    }
    std::fs::rename(database, &kept)?;
    Ok(Some(kept))
}

fn copy(from: &Path, to: &Path) -> Result<(), BackupError> {
    let sqlite = |source| BackupError::Sqlite {
        path: from.to_owned(),
        source,
    };
    let io = |source| BackupError::Io {
        path: to.to_owned(),
        source,
    };
    File::create(to).map_err(io)?;
    std::fs::set_permissions(to, std::fs::Permissions::from_mode(0o600)).map_err(io)?;
    let source = open_reader(from).map_err(sqlite)?;
    let mut target = Connection::open(to).map_err(sqlite)?;
    // One read transaction: the copy is of one moment, however long it takes.
    source
        .execute_batch("BEGIN; SELECT count(*) FROM meta")
        .map_err(sqlite)?;
    Backup::new(&source, &mut target)
        .and_then(|backup| backup.run_to_completion(PAGES, PAUSE, None))
        .map_err(sqlite)?;
    target
        .pragma_update(None, "journal_mode", "DELETE")
        .map_err(sqlite)?; // one file, no log beside it
    target.close().map_err(|(_, e)| sqlite(e))
}

fn settle(temporary: &Path, path: &Path) -> std::io::Result<()> {
    File::open(temporary)?.sync_all()?;
    std::fs::rename(temporary, path)?;
    File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
}

fn suffixed(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Whether the whole file is sound; the words of SQLite when it is not.
///
/// # Errors
/// The file cannot be read at all.
fn check_file(path: &Path) -> rusqlite::Result<Option<String>> {
    let db = open_reader(path)?;
    let word: String = db.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    Ok((word != "ok").then_some(word))
}
