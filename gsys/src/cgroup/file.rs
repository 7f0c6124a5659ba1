//! Files and directories of cgroups: read and written in one call each, listed by what they hold.

use std::ffi::CString;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::error::CgroupError;

/// One path component that cannot climb out of gpupool's subtree.
pub fn check_name(name: &str) -> Result<(), CgroupError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    match !name.is_empty() && !name.starts_with('.') && name.len() < 128 && name.chars().all(plain)
    {
        true => Ok(()),
        false => Err(CgroupError::Name(name.into())),
    }
}

/// Files of cgroups and of /proc have no length to go by: with this much room most are read at once.
const READ_AT_ONCE: usize = 4096;

pub fn read_file(path: &Path) -> Result<String, CgroupError> {
    read_proc(path).map_err(|e| CgroupError::io("reading", path, e))
}

/// A file that has no length to go by.
pub fn read_proc(path: &Path) -> io::Result<String> {
    let mut text = String::with_capacity(READ_AT_ONCE);
    // Through `take`, because a `File` would ask for its length first.
    fs::File::open(path)?
        .take(u64::MAX)
        .read_to_string(&mut text)?;
    Ok(text)
}

/// One write(2): cgroup files take a value whole or not at all.
pub fn write_file(path: &Path, value: &str) -> Result<(), CgroupError> {
    fs::OpenOptions::new()
        .write(true)
        .open(path)
        .and_then(|mut file| file.write_all(value.as_bytes()))
        .map_err(|e| CgroupError::io(format!("writing {value:?} to"), path, e))
}

/// Directories directly below, empty when `dir` is gone.
pub fn child_dirs(dir: &Path) -> Vec<PathBuf> {
    // A cgroup's link count is two and one for each cgroup below it: listing its files is spared.
    if fs::metadata(dir).is_ok_and(|meta| meta.nlink() == 2) {
        return Vec::new();
    }
    let Ok(entries) = fs::read_dir(dir) else {
        return Vec::new();
    };
    let is_dir = |e: &fs::DirEntry| e.file_type().is_ok_and(|t| t.is_dir());
    entries.flatten().filter(is_dir).map(|e| e.path()).collect()
}

pub fn is_gone_now(removed: io::Result<()>) -> bool {
    removed.map_or_else(|e| e.kind() == io::ErrorKind::NotFound, |()| true)
}

/// A path for a system call.
pub fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}
