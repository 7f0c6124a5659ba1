//! Opening the database: the lock, the version check that touches nothing, migrations, connection settings.
//!
//! Numbered migrations go forward only, each in one transaction; the number is SQLite's `user_version`.

use super::high_water::{HIGH_WATER, HighWater};
use crate::state_dir::PKI_DIR;
use nix::fcntl::{Flock, FlockArg};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Schema this release writes; migrations lead to it from every older one.
pub const SCHEMA: u32 = 7;
/// File name of the database in the state directory.
pub const DATABASE: &str = "gpupool.db";
const LOCK: &str = "lock";
/// "gPUL": marks our files for file(1) and for us.
pub(super) const APPLICATION_ID: u32 = 0x6750_554c;
const MIGRATIONS: [&str; SCHEMA as usize] = [
    include_str!("migrations/0001.sql"),
    include_str!("migrations/0002.sql"),
    include_str!("migrations/0003.sql"),
    include_str!("migrations/0004.sql"),
    include_str!("migrations/0005.sql"),
    include_str!("migrations/0006.sql"),
    include_str!("migrations/0007.sql"),
];
/// Another connection (pruning, a checkpoint) holds the write lock for milliseconds at most.
const BUSY_TIMEOUT: Duration = Duration::from_secs(20);
/// A controller that was killed holds its lock until the last of its threads is gone, a moment after it looks dead.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);
const SHORT_BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Page cache of the writer, KiB.
const WRITER_CACHE_KIB: i64 = 4 << 10;
/// Of a new database; one that is there keeps its own. Two scripts of 2 KiB need two pages of 4 KiB and less than one of these, and
/// each page is written twice, to the log and from there.
const NEW_PAGE_BYTES: i64 = 8 << 10;
/// More than the statements of one commit.
const CACHED_STATEMENTS: usize = 64;
/// Places in the header of an SQLite file (fileformat2.html, section 1.3).
const HEADER_USER_VERSION: u64 = 60;
const HEADER_APPLICATION_ID: u64 = 68;

/// The database cannot be used. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(
        "another gpuctld has {0} open. One controller per state directory: stop that one first"
    )]
    Locked(PathBuf),
    #[error(
        "{path} has schema {found}, from a newer release; gpuctld {release} knows schemas up to {SCHEMA}. Nothing was changed. Install the newer release again, or restore a backup made by this one (gpuctld restore --from FILE)",
        release = env!("CARGO_PKG_VERSION")
    )]
    Newer { path: PathBuf, found: u32 },
    #[error(
        "{0} is an SQLite file of another program, not gpupool's database. Move it away, or set another state_dir"
    )]
    Foreign(PathBuf),
    #[error(
        "{path} is damaged: {detail}. Keep the file, and restore the newest backup: gpuctld restore --from FILE (backups are made with gadm backup)"
    )]
    Damaged { path: PathBuf, detail: String },
    #[error(
        "{path} is damaged: it is behind what this controller has committed: {detail}. Served so, it would lose jobs and give ids a second time. Put back what is missing{log}, or restore the newest backup: gpuctld restore --from FILE. To go on from this file as it is: gpuctld restore --from {path}; nodes then report their runs and ids are skipped"
    )]
    Behind {
        path: PathBuf,
        detail: String,
        log: &'static str,
    },
    #[error(
        "{0} is gone or empty, though this controller has served from there before (pki or high-water is beside it). A new one would give job ids a second time. Restore the newest backup: gpuctld restore --from FILE. To begin anew, without nodes and jobs, move the whole directory away"
    )]
    Lost(PathBuf),
    #[error(
        "there is no cluster in {0}. For the first start of a new one: gpuctld new, once, and then start this again. If there was one: is the directory's disk mounted? A backup is put there by gpuctld restore --from FILE"
    )]
    NoCluster(PathBuf),
    #[error(
        "{0} holds a cluster already ({1} is there): gpuctld run serves it. To begin anew, without its nodes and jobs, move the whole directory away"
    )]
    ClusterThere(PathBuf, &'static str),
    #[error("cannot open {path}")]
    Io {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("cannot open {path}")]
    Sqlite {
        path: PathBuf,
        #[source]
        source: rusqlite::Error,
    },
}

impl OpenError {
    pub(super) fn sqlite(path: &Path, error: rusqlite::Error) -> Self {
        let path = path.to_owned();
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Self::Damaged {
                path,
                detail: error.to_string(),
            },
            _ => Self::Sqlite {
                path,
                source: error,
            },
        }
    }
    /// A backup helps.
    pub fn asks_for_restore(&self) -> bool {
        matches!(
            self,
            Self::Damaged { .. } | Self::Behind { .. } | Self::Lost(_)
        )
    }
    pub(super) fn io(path: &Path, source: std::io::Error) -> Self {
        Self::Io {
            path: path.to_owned(),
            source,
        }
    }
}

/// The one controller's claim on a state directory; given back when dropped, and by the kernel at our end.
#[derive(Debug)]
pub struct StateLock {
    _file: Flock<File>,
}

impl StateLock {
    pub fn take(state_dir: &Path) -> Result<Self, OpenError> {
        let io = |e| OpenError::io(state_dir, e);
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(state_dir)
            .map_err(io)?;
        let path = state_dir.join(LOCK);
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(|e| OpenError::io(&path, e))?;
        let deadline = Instant::now() + LOCK_PATIENCE;
        let mut file = file;
        loop {
            match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(file) => return Ok(Self { _file: file }),
                Err((back, nix::errno::Errno::EWOULDBLOCK)) if Instant::now() < deadline => {
                    file = back
                }
                Err((_, nix::errno::Errno::EWOULDBLOCK)) => {
                    return Err(OpenError::Locked(state_dir.to_owned()));
                }
                Err((_, e)) => return Err(OpenError::io(&path, e.into())),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Whether there is a database to open. One is made by [`check_new`]'s caller only, never at an ordinary start.
pub fn check_there(path: &Path) -> Result<(), OpenError> {
    if path.metadata().is_ok_and(|file| file.len() > 0) {
        return Ok(());
    }
    let dir = path.parent().unwrap_or(Path::new("/"));
    let served_before = [PKI_DIR, HIGH_WATER]
        .iter()
        .any(|name| dir.join(name).exists());
    Err(if served_before {
        OpenError::Lost(path.to_owned())
    } else {
        OpenError::NoCluster(dir.to_owned())
    })
}

/// Whether a cluster may be made in a directory. A database of no bytes is left by a `gpuctld new` that was killed.
pub fn check_new(state_dir: &Path) -> Result<(), OpenError> {
    let there = [DATABASE, PKI_DIR, HIGH_WATER].into_iter().find(|name| {
        let found = state_dir.join(name).metadata();
        found.is_ok_and(|file| *name != DATABASE || file.len() > 0)
    });
    there.map_or(Ok(()), |name| {
        Err(OpenError::ClusterThere(state_dir.to_owned(), name))
    })
}

/// Whether a database is as new as its directory's mark says.
fn check_not_behind(
    db: &Connection,
    path: &Path,
    schema: u32,
    log_was_there: bool,
) -> Result<(), OpenError> {
    let dir = path.parent().unwrap_or(Path::new("/"));
    let Some(mark) = HighWater::read(dir).map_err(|e| OpenError::io(&dir.join(HIGH_WATER), e))?
    else {
        return Ok(());
    };
    let found = HighWater::of_any_schema(db, schema).map_err(|e| OpenError::sqlite(path, e))?;
    let log = if log_was_there {
        ""
    } else {
        " (there is no log beside it, gpupool.db-wal)"
    };
    match mark.doubts(&found) {
        Some(detail) => Err(OpenError::Behind {
            path: path.to_owned(),
            detail,
            log,
        }),
        None => Ok(()),
    }
}

/// The writing connection, on a database of the present schema.
pub fn open_writer(path: &Path, cluster: &str) -> Result<Connection, OpenError> {
    check_header(path)?;
    make_private(path)?;
    let db = open_migrated(path, cluster)?;
    let settings = || -> rusqlite::Result<()> {
        keep_statements(&db)?;
        db.pragma_update(None, "synchronous", "FULL")?;
        db.pragma_update(None, "wal_autocheckpoint", 0)?; // the checkpoint thread does it
        db.pragma_update(None, "cache_size", -WRITER_CACHE_KIB)?;
        db.pragma_update(None, "temp_store", "MEMORY")?;
        // Rows past this are returned to the disk when the log starts anew.
        db.pragma_update(None, "journal_size_limit", 256 << 20)
    };
    settings().map_err(|e| OpenError::sqlite(path, e))?;
    Ok(db)
}

/// Reads schema and owner from the file's header without opening it as a database: even a read-only
/// connection would leave files beside it. A missing or empty file is new.
pub fn check_header(path: &Path) -> Result<(), OpenError> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(OpenError::io(path, e)),
    };
    let length = file.metadata().map_err(|e| OpenError::io(path, e))?.len();
    if length == 0 {
        return Ok(());
    }
    let mut number = |at: u64| -> std::io::Result<u32> {
        let mut bytes = [0; 4];
        file.seek(SeekFrom::Start(at))?;
        file.read_exact(&mut bytes)?;
        Ok(u32::from_be_bytes(bytes))
    };
    let magic = number(0).map_err(|e| OpenError::io(path, e))?;
    if magic != u32::from_be_bytes(*b"SQLi") {
        let detail = "it does not begin as an SQLite file does".into();
        return Err(OpenError::Damaged {
            path: path.to_owned(),
            detail,
        });
    }
    let io = |e| OpenError::io(path, e);
    let (found, owner) = (
        number(HEADER_USER_VERSION).map_err(io)?,
        number(HEADER_APPLICATION_ID).map_err(io)?,
    );
    // Both are 0 when we were killed while making the file: its first pages are still in the log.
    if owner != APPLICATION_ID && owner != 0 {
        return Err(OpenError::Foreign(path.to_owned()));
    }
    if found > SCHEMA {
        return Err(OpenError::Newer {
            path: path.to_owned(),
            found,
        });
    }
    Ok(())
}

/// Scripts and environments are in there: for us only, from the first byte.
fn make_private(path: &Path) -> Result<(), OpenError> {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path);
    file.map(drop).map_err(|e| OpenError::io(path, e))
}

fn open_migrated(path: &Path, cluster: &str) -> Result<Connection, OpenError> {
    let sqlite = |e| OpenError::sqlite(path, e);
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let log_was_there = path
        .with_file_name(format!("{DATABASE}-wal"))
        .metadata()
        .is_ok_and(|log| log.len() > 0);
    let db = Connection::open_with_flags(path, flags).map_err(sqlite)?;
    db.busy_timeout(BUSY_TIMEOUT).map_err(sqlite)?;
    // A file that is refused below stays as it is, and so does its log.
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)
        .map_err(sqlite)?;
    // The log may hold a newer schema than the header did.
    let found: u32 = db
        .pragma_query_value(None, "user_version", |row| row.get(0))
        .map_err(sqlite)?;
    if found > SCHEMA {
        return Err(OpenError::Newer {
            path: path.to_owned(),
            found,
        });
    }
    let tables: u32 = db
        .query_row("SELECT count(*) FROM sqlite_master", [], |row| row.get(0))
        .map_err(sqlite)?;
    if found == 0 && tables > 0 {
        return Err(OpenError::Foreign(path.to_owned()));
    }
    if found > 0 {
        check_not_behind(&db, path, found, log_was_there)?;
    }
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false)
        .map_err(sqlite)?;
    if found == 0 {
        db.pragma_update(None, "page_size", NEW_PAGE_BYTES)
            .map_err(sqlite)?;
    }
    db.pragma_update(None, "journal_mode", "WAL")
        .map_err(sqlite)?;
    for (number, sql) in (1u32..).zip(MIGRATIONS) {
        if number > found {
            migrate(&db, number, sql, cluster).map_err(sqlite)?;
        }
    }
    if found < SCHEMA {
        // Into the header, where the version check of other releases looks.
        db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
            .map_err(sqlite)?;
    }
    Ok(db)
}

fn migrate(db: &Connection, number: u32, sql: &str, cluster: &str) -> rusqlite::Result<()> {
    let transaction = db.unchecked_transaction()?;
    transaction.execute_batch(sql)?;
    if number == 1 {
        transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
        transaction.execute(
            "INSERT INTO meta (one, release, cluster, incarnation, next_job, next_node, seq)
             VALUES (1, ?1, ?2, 1, 1, 1, 0)",
            (env!("CARGO_PKG_VERSION"), cluster),
        )?;
    }
    transaction.pragma_update(None, "user_version", number)?;
    transaction.commit()
}

/// A connection that cannot write.
pub fn open_reader(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = Connection::open_with_flags(path, flags)?;
    db.busy_timeout(BUSY_TIMEOUT)?;
    db.pragma_update(None, "query_only", true)?;
    keep_statements(&db)?;
    Ok(db)
}

/// Statements are made once. Left to itself SQLite makes a statement anew for each value that is bound where a partial index
/// might serve, to see whether it does; that was two fifths of `gacct --json`.
fn keep_statements(db: &Connection) -> rusqlite::Result<()> {
    db.set_prepared_statement_cache_capacity(CACHED_STATEMENTS);
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)
        .map(|_| ())
}

/// A second writing connection: it waits for the core thread's turns, and the core thread for its own, so they must be short.
pub fn open_second_writer(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = Connection::open_with_flags(path, flags)?;
    db.busy_timeout(SHORT_BUSY_TIMEOUT)?;
    db.pragma_update(None, "synchronous", "FULL")?;
    db.pragma_update(None, "wal_autocheckpoint", 0)?;
    Ok(db)
}
