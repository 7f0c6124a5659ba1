//! Joining a cgroup in every tree by descriptors that were opened before.

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;

use super::error::CgroupError;

/// Open `cgroup.procs` files of one cgroup in every tree. Joining by writing to them allocates nothing, so a child may
/// do it between fork and exec.
#[derive(Debug)]
pub struct JoinFds {
    procs: Vec<OwnedFd>,
}

impl JoinFds {
    pub(crate) fn open(dirs: impl Iterator<Item = PathBuf>) -> Result<JoinFds, CgroupError> {
        let mut procs = Vec::new();
        for dir in dirs {
            let path = dir.join("cgroup.procs");
            let file = fs::OpenOptions::new()
                .write(true)
                .open(&path)
                .map_err(|e| CgroupError::io("opening", &path, e))?;
            procs.push(file.into());
        }
        Ok(JoinFds { procs })
    }

    /// Moves the calling process into the cgroup. Async-signal-safe. Returns the errno of the first tree that refused.
    pub(crate) fn join(&self) -> Result<(), i32> {
        for fd in &self.procs {
            // SAFETY: the descriptor is open and the buffer is two static bytes.
            let written = unsafe { libc::write(fd.as_raw_fd(), b"0\n".as_ptr().cast(), 2) };
            if written < 0 {
                return Err(crate::process::errno());
            }
        }
        Ok(())
    }
}
