//! Files that are there whole or not at all, after a crash too: write aside, fsync, rename, fsync the directory. And room
//! kept for one such file on a disk that may be full by then. Source: fsync(2), rename(2).

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Replaces `path` by `bytes`, mode 0600. When this returns Ok the content survives a power cut; on an error the old
/// content is still there.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let aside = beside(path, "new");
    let written = create(&aside).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    let renamed = written.and_then(|()| fs::rename(&aside, path));
    if renamed.is_err() {
        let _ = fs::remove_file(&aside);
    }
    renamed?;
    sync_parent(path)
}

/// Room on the disk for one file that must be writable later, whatever happens to the disk: the record of a job's exit.
#[derive(Debug)]
pub struct ReservedFile {
    file: File,
    aside: PathBuf,
    path: PathBuf,
    room_bytes: u64,
}

impl ReservedFile {
    /// Takes `room_bytes` on the disk for a later `path` (in `<path>.room`). ENOSPC now is better than then. A reservation
    /// that an earlier process made is taken over.
    ///
    /// The room outlives the process and not a power cut: no fsync, and the caller's start does not wait for the disk. After a
    /// power cut there is nothing for this process to record any more. fallocate takes its blocks at once, on file systems
    /// with delayed allocation too; a test with a full ext4 holds it to that.
    pub fn reserve(path: &Path, room_bytes: u64) -> io::Result<ReservedFile> {
        let aside = beside(path, "room");
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&aside)?;
        allocate(&file, room_bytes)?;
        Ok(ReservedFile {
            file,
            aside,
            path: path.to_owned(),
            room_bytes,
        })
    }

    /// Overwrites the reserved room with `bytes` and renames it to its path. Needs no new block for content that fits;
    /// more is refused with `FileTooLarge`. The file is cut to the content's length, which frees blocks. When this returns Ok the
    /// content survives a power cut, perhaps under the name of the room: a reader looks there too.
    pub fn commit(mut self, bytes: &[u8]) -> io::Result<()> {
        if bytes.len() as u64 > self.room_bytes {
            let text = format!(
                "{} bytes do not fit into the {} reserved for {}",
                bytes.len(),
                self.room_bytes,
                self.path.display()
            );
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
        }
        self.file.write_all(bytes)?;
        self.file.set_len(bytes.len() as u64)?;
        self.file.sync_all()?;
        fs::rename(&self.aside, &self.path)
    }

    /// Gives the room back unused.
    pub fn release(self) -> io::Result<()> {
        fs::remove_file(&self.aside)
    }
}

/// Makes entries of the file's directory (creations, renames, removals) durable.
pub fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = path
        .parent()
        .filter(|p| !p.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    File::open(parent)?.sync_all()
}

/// Blocks, not just a length: fallocate, or where the file system has none zeros, written out.
fn allocate(file: &File, room_bytes: u64) -> io::Result<()> {
    let Ok(length) = libc::off_t::try_from(room_bytes) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    // SAFETY: fallocate on an open file with integers.
    if unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, length) } == 0 {
        return Ok(());
    }
    match io::Error::last_os_error() {
        e if e.raw_os_error() == Some(libc::EOPNOTSUPP) => {
            use std::os::unix::fs::FileExt;
            file.write_all_at(&vec![0; room_bytes as usize], 0)?;
            // Written zeros may still be without blocks, or, on NFS, without the server's word.
            file.sync_data()
        }
        e => Err(e),
    }
}

fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(ending);
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    fn scratch(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("gsys-durable-{}-{name}", std::process::id()));
        fs::create_dir_all(&dir).expect("scratch directory");
        dir
    }

    #[test]
    fn a_write_replaces_the_content_and_leaves_nothing_beside_it() {
        let dir = scratch("atomic");
        let path = dir.join("state.json");
        write_atomic(&path, b"one").expect("first");
        write_atomic(&path, b"two").expect("second");
        assert_eq!(fs::read(&path).expect("read"), b"two");
        assert_eq!(fs::read_dir(&dir).expect("list").count(), 1);
        assert_eq!(fs::metadata(&path).expect("stat").mode() & 0o777, 0o600);
        fs::remove_dir_all(dir).expect("clean up");
    }

    #[test]
    fn reserved_room_is_on_the_disk_before_it_is_used() {
        let dir = scratch("reserve");
        let path = dir.join("exit.json");
        let reserved = ReservedFile::reserve(&path, 64 * 1024).expect("reserve");
        assert!(
            fs::metadata(dir.join("exit.json.room"))
                .expect("stat")
                .blocks()
                * 512
                >= 64 * 1024
        );
        assert!(!path.exists(), "a reservation is no record");
        reserved.commit(b"{\"code\":0}").expect("commit");
        assert_eq!(fs::read(&path).expect("read"), b"{\"code\":0}");
        let again = ReservedFile::reserve(&path, 4).expect("reserve");
        let refused = again.commit(b"too long").expect_err("does not fit");
        assert_eq!(refused.kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(fs::read(&path).expect("read"), b"{\"code\":0}");
        fs::remove_dir_all(dir).expect("clean up");
    }
}
