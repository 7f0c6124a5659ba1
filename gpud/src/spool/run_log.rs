//! The log of one run, for `gq --log`: bounded lines in its directory, beside those of its supervisor.

use gmodel::Timestamp;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Most of a run's log that is kept.
const LOG_MAX_BYTES: u64 = 1 << 20;

/// One line in a run's log: for threads that have the directory and not the spool.
pub fn log_line(run_dir: &Path, now: Timestamp, line: &str) {
    let written = open_log(run_dir).and_then(|file| write_log_line(&file, now, line));
    if let Err(e) = written {
        tracing::debug!("the log in {}: {e}", run_dir.display());
    }
}

pub fn open_log(run_dir: &Path) -> std::io::Result<File> {
    OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(run_dir.join("log"))
}

/// One write, since others write there too.
pub fn write_log_line(mut file: &File, now: Timestamp, line: &str) -> std::io::Result<()> {
    match file.metadata()?.len() > LOG_MAX_BYTES {
        true => Ok(()),
        false => file.write_all(format!("{now} {}\n", line.replace('\n', " | ")).as_bytes()),
    }
}
