//! Room on the disk that holds the database: looked at once a second, kept with a reserved file.
//!
//! Below `min_free` commands are refused; node reports are still taken. A commit that finds the disk full is written again into the
//! bytes of the reserved file; from there on commands are refused until there is room to reserve them again.

use gcore::ctl::Refusal;
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::statvfs::statvfs;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Enough for the reports of some ten thousand runs.
const RESERVE_BYTES: u64 = 32 << 20;
/// Left free when the reserve is made.
const SLACK_BYTES: u64 = 1 << 20;
/// Below this a start needs the reserve: SQLite makes files before it reads.
const START_BYTES: u64 = 1 << 20;
const RESERVE: &str = "reserve";

pub struct Disk {
    dir: PathBuf,
    min_free_bytes: Arc<AtomicU64>,
    free_bytes: u64,
    looked: Option<Instant>,
    reserved: bool,
    /// The file system cannot reserve bytes: no reserve is waited for.
    cannot_reserve: bool,
}

impl Disk {
    pub fn new(dir: &Path, min_free_bytes: Arc<AtomicU64>) -> Self {
        // A copy of a state directory may hold a reserve without its bytes.
        let reserved = dir
            .join(RESERVE)
            .metadata()
            .is_ok_and(|file| file.blocks() * 512 >= RESERVE_BYTES);
        let mut disk = Self {
            dir: dir.to_owned(),
            min_free_bytes,
            free_bytes: u64::MAX,
            looked: None,
            reserved,
            cannot_reserve: false,
        };
        disk.look();
        disk
    }

    /// Reads the free space, at most once a second, and makes the reserve where there is room for it.
    pub fn look(&mut self) {
        if self.looked.is_some_and(|at| at.elapsed() < LOOK_EVERY) {
            return;
        }
        self.looked = Some(Instant::now());
        match free_bytes(&self.dir) {
            Ok(bytes) => self.free_bytes = bytes,
            Err(e) => tracing::warn!("cannot read the free space of {}: {e}", self.dir.display()),
        }
        if self.reserved || self.cannot_reserve || self.free_bytes < self.needed_bytes() {
            return;
        }
        match reserve(&self.dir.join(RESERVE)) {
            Ok(()) => {
                self.reserved = true;
                self.free_bytes = self.free_bytes.saturating_sub(RESERVE_BYTES);
                tracing::info!(
                    "{} MiB are reserved in {}: commands are taken",
                    RESERVE_BYTES >> 20,
                    self.dir.display()
                );
            }
            Err(e) => {
                tracing::warn!("cannot reserve space in {}: {e}", self.dir.display());
                self.cannot_reserve = matches!(e, Errno::EOPNOTSUPP | Errno::ENOSYS);
            }
        }
    }

    /// Gives the reserve up for a commit that found the disk full; false when it was given up before.
    pub fn give_up_reserve(&mut self) -> bool {
        if !self.reserved {
            return false;
        }
        self.reserved = false;
        let removed = std::fs::remove_file(self.dir.join(RESERVE));
        tracing::error!(
            "the disk of {} is full: its {} reserved MiB are given up for node reports, and no command is taken until there is room",
            self.dir.display(),
            RESERVE_BYTES >> 20
        );
        removed.is_ok()
    }

    pub fn free_bytes(&self) -> u64 {
        self.free_bytes
    }

    /// Free bytes from which on the reserve is made.
    fn needed_bytes(&self) -> u64 {
        self.min_free_bytes
            .load(Relaxed)
            .saturating_add(RESERVE_BYTES + SLACK_BYTES)
    }

    /// Nothing new is started, and only node reports may be written.
    pub fn reserve_is_given_up(&self) -> bool {
        !self.reserved
    }

    /// Why a command that writes is not taken now. Nothing is refused for what was so a second ago.
    pub fn refusal(&mut self) -> Option<Refusal> {
        self.shortage()?;
        self.looked = None;
        self.look();
        self.shortage().map(Refusal::unavailable)
    }

    fn shortage(&self) -> Option<String> {
        let min_free = self.min_free_bytes.load(Relaxed);
        let (dir, free) = (self.dir.display(), self.free_bytes >> 20);
        let why = if !self.reserved && !self.cannot_reserve {
            let needed = self.needed_bytes() >> 20;
            format!(
                "the disk of {dir} has {free} MiB free and gpuctld needs {needed} MiB (min_free and a reserve of {} MiB)",
                RESERVE_BYTES >> 20
            )
        } else if self.free_bytes < min_free {
            format!(
                "the disk of {dir} has {free} MiB free and gpuctld keeps {} MiB (min_free)",
                min_free >> 20
            )
        } else {
            return None;
        };
        Some(format!(
            "{why}: nothing new is accepted. Running jobs go on. An administrator has to make room"
        ))
    }
}

/// Gives the reserve up where nothing else is left, so that the database can be opened at all.
pub fn make_room_to_start(dir: &Path) {
    if free_bytes(dir).is_ok_and(|free| free < START_BYTES)
        && std::fs::remove_file(dir.join(RESERVE)).is_ok()
    {
        tracing::error!(
            "the disk of {} is full: the reserve is given up to start",
            dir.display()
        );
    }
}

fn free_bytes(dir: &Path) -> nix::Result<u64> {
    let stat = statvfs(dir)?;
    Ok(stat.blocks_available() * stat.fragment_size())
}

fn reserve(path: &Path) -> nix::Result<()> {
    let opened = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path);
    let file = opened.map_err(|e| e.raw_os_error().map_or(Errno::EIO, Errno::from_raw))?;
    let length = i64::try_from(RESERVE_BYTES).expect("fits");
    fallocate(&file, FallocateFlags::empty(), 0, length).inspect_err(|_| {
        let _ = std::fs::remove_file(path); // half a reserve is none
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use gcore::ctl::RefusalCode;

    fn disk(dir: &Path, min_free: u64) -> Disk {
        Disk::new(dir, Arc::new(AtomicU64::new(min_free)))
    }

    #[test]
    fn a_short_disk_is_named_with_its_numbers() {
        let dir = tempfile::tempdir().unwrap();
        let mut disk = disk(dir.path(), 0);
        assert!(disk.refusal().is_none());
        disk.min_free_bytes.store(1 << 50, Relaxed);
        let refusal = disk.refusal().unwrap();
        assert_eq!(refusal.code, RefusalCode::Unavailable);
        let free = format!(
            "has {} MiB free and gpuctld keeps 1073741824 MiB (min_free): nothing new",
            disk.free_bytes >> 20
        );
        assert!(refusal.text.contains(&free), "{}", refusal.text);
    }

    #[test]
    fn a_reserve_that_was_given_up_refuses_commands_until_it_is_made_again() {
        let dir = tempfile::tempdir().unwrap();
        let mut disk = disk(dir.path(), 1 << 20);
        assert!(disk.give_up_reserve() && !dir.path().join(RESERVE).exists());
        assert!(!disk.give_up_reserve(), "once");
        disk.min_free_bytes.store(1 << 50, Relaxed);
        let text = disk.refusal().expect("refused").text;
        assert!(
            text.contains(
                "MiB free and gpuctld needs 1073741857 MiB (min_free and a reserve of 32 MiB)"
            ),
            "{text}"
        );
        disk.min_free_bytes.store(1 << 20, Relaxed);
        assert!(disk.refusal().is_none() && dir.path().join(RESERVE).exists());
    }

    #[test]
    fn a_reserve_without_its_bytes_is_made_anew() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::File::create(dir.path().join(RESERVE))
            .unwrap()
            .set_len(RESERVE_BYTES)
            .unwrap();
        disk(dir.path(), 0);
        assert!(dir.path().join(RESERVE).metadata().unwrap().blocks() * 512 >= RESERVE_BYTES);
    }

    #[test]
    fn the_reserve_really_holds_its_bytes() {
        use std::os::unix::fs::MetadataExt;
        let dir = tempfile::tempdir().unwrap();
        let disk = disk(dir.path(), 0);
        assert!(!disk.reserve_is_given_up());
        let file = dir.path().join(RESERVE).metadata().unwrap();
        assert!(
            file.blocks() * 512 >= RESERVE_BYTES,
            "{} blocks",
            file.blocks()
        );
    }
}
