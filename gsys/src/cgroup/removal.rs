//! Removing a cgroup with all cgroups that are nested in it.

use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use super::error::CgroupError;
use super::file::child_dirs;
use super::kill;

/// rmdir from the leaves up. The kernel answers EBUSY for a moment after the last process died, so it is repeated.
pub(super) fn remove_tree(dir: &Path, patience: Duration) -> Result<(), CgroupError> {
    let deadline = Instant::now() + patience;
    loop {
        match remove_once(dir) {
            Ok(()) => return Ok(()),
            Err(e) if e.errno() == Some(libc::EBUSY) && Instant::now() < deadline => {
                let pids = kill::pids_below(dir).unwrap_or_default();
                if !pids.is_empty() {
                    return Err(CgroupError::Occupied {
                        path: dir.to_owned(),
                        pids: pids.len(),
                    });
                }
                std::thread::sleep(Duration::from_millis(2));
            }
            Err(e) => return Err(e),
        }
    }
}

fn remove_once(dir: &Path) -> Result<(), CgroupError> {
    for child in child_dirs(dir) {
        remove_once(&child)?;
    }
    match fs::remove_dir(dir) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(CgroupError::io("removing", dir, e)),
        _ => Ok(()),
    }
}
