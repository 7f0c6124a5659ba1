//! Why a cgroup operation failed.

use std::io;
use std::path::{Path, PathBuf};

/// Why a cgroup operation failed. All of them are errors of the node, never of the user.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    #[error("cgroup: {verb} {}", path.display())]
    Io {
        verb: String,
        path: PathBuf,
        source: io::Error,
    },
    #[error(
        "cgroup: a {limit} limit was asked for, and no {controller} controller is usable here ({why}). \
         Mount it, or delegate it to this service"
    )]
    NoController {
        limit: &'static str,
        controller: &'static str,
        why: String,
    },
    #[error("cgroup: no cgroup tree is mounted. Mount one: mount -t cgroup2 none /sys/fs/cgroup")]
    NoTree,
    #[error("cgroup: {} holds {pids} processes, it must be empty for this", path.display())]
    Occupied { path: PathBuf, pids: usize },
    #[error(
        "cgroup: {0:?} is no name of a cgroup of ours: use letters, digits, '-', '_', '.', and no leading dot"
    )]
    Name(String),
    #[error("cgroup: {} says {text:?}, which is not what the kernel documents", path.display())]
    Unreadable { path: PathBuf, text: String },
}

impl CgroupError {
    /// The cgroup or the file does not exist.
    pub fn is_not_found(&self) -> bool {
        self.errno() == Some(libc::ENOENT)
    }

    pub fn errno(&self) -> Option<i32> {
        match self {
            CgroupError::Io { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }

    pub(crate) fn io(verb: impl Into<String>, path: &Path, source: io::Error) -> CgroupError {
        CgroupError::Io {
            verb: verb.into(),
            path: path.to_owned(),
            source,
        }
    }
}
