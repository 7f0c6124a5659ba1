//! The processes that have the simulated GPUs open: a lock on a file beside the state, shared by each process that has NVML initialised.
//! The driver resets no GPU that a process has open.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

const FILE: &str = ".clients.lock";

/// Open until it is dropped.
pub fn hold_open(dir: &Path) -> io::Result<File> {
    let file = open(dir)?;
    file.lock_shared()?;
    Ok(file)
}

/// While it lives no process has the GPUs open, or opens one. The error names the process that does, as far as the kernel tells.
pub fn keep_out(dir: &Path) -> Result<File, String> {
    let file = open(dir).map_err(|e| e.to_string())?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            let pids = holders(&file);
            let who = if pids.is_empty() {
                "another client".to_owned()
            } else {
                format!("process {}", pids.join(", "))
            };
            Err(format!("in use by {who}, which has NVML initialised"))
        }
        Err(TryLockError::Error(e)) => Err(e.to_string()),
    }
}

fn open(dir: &Path) -> io::Result<File> {
    File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(dir.join(FILE))
}

/// Processes with a lock on a file, by `N: FLOCK ADVISORY READ 4711 08:02:131 0 EOF` of /proc/locks.
fn holders(file: &File) -> Vec<String> {
    let Ok(inode) = file.metadata().map(|data| data.ino().to_string()) else {
        return Vec::new();
    };
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    let of_file = |line: &&str| {
        line.contains(" FLOCK ")
            && line
                .split_whitespace()
                .nth(5)
                .and_then(|place| place.rsplit(':').next())
                == Some(inode.as_str())
    };
    locks
        .lines()
        .filter(of_file)
        .filter_map(|line| line.split_whitespace().nth(4))
        .map(str::to_owned)
        .collect()
}
