//! An attached fence as the kernel names it, and why there is none.

use std::io;
use std::path::{Path, PathBuf};

use crate::cgroup::CgroupError;

/// An attached fence. The tag is a hash of its rules: equal rules have equal tags on one boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fence {
    /// The kernel's number of the program; 0 on pure v1.
    pub program_id: u32,
    pub tag: FenceTag,
}

/// The kernel's hash of a program's instructions, or gpupool's hash of the v1 rules.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct FenceTag(pub [u8; 8]);

impl std::fmt::Display for FenceTag {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl std::fmt::Debug for FenceTag {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

/// Why there is no fence, or not the right one. Always an error of the node: the run must not start, or must end.
#[derive(Debug, thiserror::Error)]
pub enum FenceError {
    #[error("device fence: {what} {}", path.display())]
    Io {
        what: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("device fence: the kernel refused the program ({log})")]
    Load { log: String, source: io::Error },
    #[error("device fence: {} does not carry the fence it was given; {found} other device programs are attached", path.display())]
    Changed { path: PathBuf, found: usize },
    #[error("device fence: {0}")]
    Probe(String),
    #[error("device fence: {} is neither in a v2 tree nor in a v1 devices tree", .0.display())]
    NoTree(PathBuf),
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
}

impl FenceError {
    pub(super) fn at(what: &'static str, path: &Path, source: io::Error) -> FenceError {
        FenceError::Io {
            what,
            path: path.to_owned(),
            source,
        }
    }
}
