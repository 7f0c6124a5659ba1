//! Files and directories of the spool: private, written whole or not at all for a crash of the daemon, removed without
//! following links. Knows no run.

use anyhow::{Context, Result};
use gsys::removal::remove_tree;
use serde::Deserialize;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

/// A record file is never larger; a larger one was not written by gpud or gstepd.
const RECORD_MAX_BYTES: u64 = 16 << 20;
const READ_AT_ONCE_BYTES: usize = 8 << 10;

/// A directory of root's that others cannot look into.
pub fn private_dir(path: &Path) -> Result<()> {
    let made = fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path);
    made.with_context(|| format!("making {}", path.display()))
}

pub fn make_dir(path: &Path, mode: u32) -> Result<()> {
    match fs::DirBuilder::new().mode(mode).create(path) {
        Err(e) if e.kind() != ErrorKind::AlreadyExists => {
            Err(e).with_context(|| format!("making {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// Removes a file, or the link that stands there; what is gone is fine.
pub fn remove_file(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != ErrorKind::NotFound => {
            Err(e).with_context(|| format!("removing {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// Removes a directory, of any depth, without following links; what is gone is fine.
pub fn remove_dir(path: &Path) -> Result<()> {
    remove_tree(path).with_context(|| format!("removing {}", path.display()))
}

/// Whole or not at all for a crash of the daemon; not synced, since these files mean nothing after a reboot.
pub fn write_aside(path: &Path, bytes: &[u8]) -> Result<()> {
    let aside = path.with_extension("new");
    let write = || {
        // Not truncated first: ext4 takes what is written after that for a replaced file, and writes it out when it is closed.
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&aside)?;
        file.write_all(bytes)?;
        if file.metadata()?.len() != bytes.len() as u64 {
            file.set_len(bytes.len() as u64)?;
        }
        fs::rename(&aside, path)
    };
    let written = write();
    written.with_context(|| format!("writing {}", path.display()))
}

/// A name says it by being there: another one of the order, which costs less than a file.
pub fn mark(path: &Path) -> Result<()> {
    let made = fs::hard_link(path.with_file_name("order.json"), path).or_else(|e| match e.kind() {
        ErrorKind::AlreadyExists => Ok(()),
        // There may be file systems without.
        _ => OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)
            .map(drop),
    });
    made.with_context(|| format!("making {}", path.display()))
}

pub fn read_json<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<Option<T>> {
    let file = match File::open(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened.with_context(|| format!("reading {}", path.display()))?,
    };
    // Most are read at once.
    let mut text = Vec::with_capacity(READ_AT_ONCE_BYTES);
    file.take(RECORD_MAX_BYTES).read_to_end(&mut text)?;
    serde_json::from_slice(&text)
        .map(Some)
        .with_context(|| format!("{} is not what we wrote", path.display()))
}
