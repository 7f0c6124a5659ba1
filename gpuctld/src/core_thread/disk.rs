//! Room on the disk that holds the database: looked at once a second, kept with a reserved file.
//!
//! Below `min_free` commands are refused; node reports are still taken, at the very end from the bytes of the
//! reserved file, which is given up for them and made again when there is room.

use gcore::ctl::Refusal;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::statvfs::statvfs;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Enough for the reports of some ten thousand runs.
const RESERVE_BYTES: u64 = 32 << 20;
/// The reserve is given up below this, bytes.
const GIVE_UP_BELOW: u64 = 8 << 20;
const RESERVE: &str = "reserve";

pub struct Disk {
    dir: PathBuf,
    min_free_bytes: Arc<AtomicU64>,
    free_bytes: u64,
    looked: Option<Instant>,
    reserved: bool,
}

impl Disk {
    pub fn new(dir: &Path, min_free_bytes: Arc<AtomicU64>) -> Self {
        let reserved = dir.join(RESERVE).exists();
        let mut disk =
            Self { dir: dir.to_owned(), min_free_bytes, free_bytes: u64::MAX, looked: None, reserved };
        disk.look();
        disk
    }

    /// Reads the free space, at most once a second, and keeps or gives up the reserve.
    pub fn look(&mut self) {
        if self.looked.is_some_and(|at| at.elapsed() < LOOK_EVERY) {
            return;
        }
        self.looked = Some(Instant::now());
        match statvfs(&self.dir) {
            Ok(stat) => self.free_bytes = stat.blocks_available() * stat.fragment_size(),
            Err(e) => tracing::warn!("cannot read the free space of {}: {e}", self.dir.display()),
        }
        let min_free = self.min_free_bytes.load(Relaxed);
        if self.reserved && self.free_bytes < GIVE_UP_BELOW {
            tracing::error!(
                "{} has {} MiB left: giving up the reserved file so that node reports can be kept",
                self.dir.display(),
                self.free_bytes >> 20
            );
            self.reserved = std::fs::remove_file(self.dir.join(RESERVE)).is_err();
        } else if !self.reserved && self.free_bytes > min_free + 2 * RESERVE_BYTES {
            match reserve(&self.dir.join(RESERVE)) {
                Ok(()) => self.reserved = true,
                Err(e) => tracing::warn!("cannot reserve space in {}: {e}", self.dir.display()),
            }
        }
    }

    pub fn free_bytes(&self) -> u64 {
        self.free_bytes
    }

    /// Only node reports may still be written.
    pub fn reserve_is_given_up(&self) -> bool {
        !self.reserved
    }

    /// Why a command that writes is not taken now.
    pub fn refusal(&self) -> Option<Refusal> {
        let min_free = self.min_free_bytes.load(Relaxed);
        (self.free_bytes < min_free).then(|| {
            Refusal::unavailable(format!(
                "the disk of {} has {} MiB free and gpuctld keeps {} MiB (min_free): nothing new is accepted. Running jobs go on. An administrator has to make room",
                self.dir.display(),
                self.free_bytes >> 20,
                min_free >> 20
            ))
        })
    }
}

fn reserve(path: &Path) -> std::io::Result<()> {
    let file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    let length = i64::try_from(RESERVE_BYTES).expect("fits");
    fallocate(&file, FallocateFlags::empty(), 0, length).map_err(|e| {
        let _ = std::fs::remove_file(path); // half a reserve is none
        e.into()
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
        disk.min_free_bytes.store(1 << 30, Relaxed);
        disk.free_bytes = 300 << 20;
        let refusal = disk.refusal().unwrap();
        assert_eq!(refusal.code, RefusalCode::Unavailable);
        assert!(refusal.text.contains("has 300 MiB free and gpuctld keeps 1024 MiB"), "{}", refusal.text);
    }

    #[test]
    fn the_reserve_really_holds_its_bytes() {
        use std::os::unix::fs::MetadataExt;
        let dir = tempfile::tempdir().unwrap();
        let disk = disk(dir.path(), 0);
        assert!(!disk.reserve_is_given_up());
        let file = dir.path().join(RESERVE).metadata().unwrap();
        assert!(file.blocks() * 512 >= RESERVE_BYTES, "{} blocks", file.blocks());
    }
}
