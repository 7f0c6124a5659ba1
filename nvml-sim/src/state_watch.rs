//! Waiting for a change of the state file, by inotify(7) on its directory: a wait for events costs nothing while nothing
//! happens. The descriptor is kept for good, because closing one waits for a grace period of the kernel.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Another thread may have read what this one waits for, and some file systems tell nothing: then it is seen this late.
const LONGEST: Duration = Duration::from_millis(250);

static WATCHED: Mutex<BTreeMap<PathBuf, RawFd>> = Mutex::new(BTreeMap::new());

/// Changes in one directory.
pub struct StateWatch {
    descriptor: Option<RawFd>,
    /// How often to look where nothing can be watched.
    look_again: Duration,
}

impl StateWatch {
    /// Of the directory of this file. What happens from now on is not missed.
    pub fn of(file: &Path, look_again: Duration) -> StateWatch {
        let dir = file.parent().unwrap_or(Path::new("."));
        let mut watched = WATCHED.lock().unwrap_or_else(PoisonError::into_inner);
        let known = watched.get(dir).copied();
        let descriptor = known.or_else(|| watch(dir));
        if let Some(descriptor) = descriptor {
            watched.insert(dir.to_owned(), descriptor);
        }
        StateWatch {
            descriptor,
            look_again,
        }
    }

    /// Forgets what has happened: the caller is about to look.
    pub fn begin_to_look(&self) {
        let mut room = [0u8; 4096];
        if let Some(descriptor) = self.descriptor {
            // SAFETY: the buffer's length is given; the descriptor stays open and does not block.
            while unsafe { libc::read(descriptor, room.as_mut_ptr().cast(), room.len()) } > 0 {}
        }
    }

    /// Returns when something has happened since [`StateWatch::begin_to_look`], or after this long, or sooner for no reason.
    pub fn wait(&self, longest: Duration) {
        let Some(descriptor) = self.descriptor else {
            return thread::sleep(longest.min(self.look_again));
        };
        let mut poll = libc::pollfd {
            fd: descriptor,
            events: libc::POLLIN,
            revents: 0,
        };
        // Rounded up: a wait of less than a millisecond must not become a loop.
        let millis = longest.min(LONGEST).as_micros().div_ceil(1000) as libc::c_int;
        // SAFETY: one pollfd, which outlives the call.
        unsafe { libc::poll(&mut poll, 1, millis) };
    }
}

/// A descriptor that watches files appear in `dir`, change and go.
fn watch(dir: &Path) -> Option<RawFd> {
    let path = CString::new(dir.as_os_str().as_bytes()).ok()?;
    let changes = libc::IN_MOVED_TO | libc::IN_CLOSE_WRITE | libc::IN_CREATE | libc::IN_DELETE;
    // SAFETY: a NUL-terminated path that outlives the call; a useless descriptor is closed, and nothing else names it.
    unsafe {
        let descriptor = libc::inotify_init1(libc::IN_NONBLOCK | libc::IN_CLOEXEC);
        if descriptor < 0 {
            return None;
        }
        if libc::inotify_add_watch(descriptor, path.as_ptr(), changes) < 0 {
            libc::close(descriptor);
            return None;
        }
        Some(descriptor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::time::Instant;

    #[test]
    fn a_wait_ends_with_the_change_and_not_before() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("state.json");
        let watch = StateWatch::of(&file, Duration::from_millis(10));
        watch.begin_to_look();
        let began = Instant::now();
        watch.wait(Duration::from_millis(50));
        assert!(
            began.elapsed() >= Duration::from_millis(50),
            "nothing happened"
        );
        fs::write(dir.path().join("fresh"), "{}")
            .and_then(|()| fs::rename(dir.path().join("fresh"), &file))
            .expect("replace");
        let began = Instant::now();
        watch.wait(LONGEST);
        assert!(began.elapsed() < LONGEST, "it had changed already");
        watch.begin_to_look();
        let began = Instant::now();
        watch.wait(Duration::from_millis(30));
        assert!(
            began.elapsed() >= Duration::from_millis(30),
            "that was seen"
        );
    }

    #[test]
    fn where_nothing_can_be_watched_it_looks_often() {
        let watch = StateWatch::of(Path::new("/nowhere/at/all"), Duration::from_millis(10));
        let began = Instant::now();
        watch.wait(Duration::from_secs(5));
        assert!(began.elapsed() < Duration::from_secs(1));
    }
}
