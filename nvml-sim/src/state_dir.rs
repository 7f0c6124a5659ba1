//! The directory of a state: one JSON file, replaced whole by rename, so that a reader sees either the old state or the new one.
//! Writers take turns on a lock file. Beside it stands what a driver tells in /proc and the kernel log.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use crate::kernel_log::KERNEL_LOG_FILE;
use crate::mig::mig_minors;
use crate::state::{Event, EventKind, MAX_EVENTS, State};

/// Name of the state file inside a state directory.
pub const STATE_FILE: &str = "state.json";

/// Stands for `/proc/driver/nvidia-caps/mig-minors`, inside a state directory.
pub const MIG_MINORS_FILE: &str = "nvidia-caps/mig-minors";

/// Why a state could not be read or written, with the file.
#[derive(Debug)]
pub enum StateError {
    Io {
        doing: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    Json {
        path: PathBuf,
        source: serde_json::Error,
    },
    Schema {
        path: PathBuf,
        found: u32,
    },
}

impl State {
    /// Reads `path`: the file, or a directory that holds [`STATE_FILE`].
    pub fn read(path: &Path) -> Result<State, StateError> {
        let path = state_file(path);
        let text = fs::read(&path).map_err(|source| StateError::Io {
            doing: "reading",
            path: path.clone(),
            source,
        })?;
        let state: State = serde_json::from_slice(&text).map_err(|source| StateError::Json {
            path: path.clone(),
            source,
        })?;
        if state.schema != 1 {
            return Err(StateError::Schema {
                path,
                found: state.schema,
            });
        }
        Ok(state)
    }

    /// Replaces the state in `dir` whole, making the directory where it is not there.
    pub fn write(&self, dir: &Path) -> Result<(), StateError> {
        fs::create_dir_all(dir).map_err(|source| StateError::Io {
            doing: "making",
            path: dir.to_owned(),
            source,
        })?;
        let _lock = lock(dir)?;
        self.write_beside(dir)?;
        self.replace(dir)
    }

    /// Beside the state, what the driver tells in /proc, which depends on the GPUs alone, and an empty kernel log.
    fn write_beside(&self, dir: &Path) -> Result<(), StateError> {
        let path = dir.join(MIG_MINORS_FILE);
        let parent = path.parent().unwrap_or(dir);
        let written = fs::create_dir_all(parent)
            .and_then(|()| fs::write(&path, mig_minors(self)))
            .and_then(|()| {
                let log = dir.join(KERNEL_LOG_FILE);
                File::options().create(true).append(true).open(log)
            });
        written.map(drop).map_err(|source| StateError::Io {
            doing: "writing",
            path,
            source,
        })
    }

    /// Reads, changes and replaces the state in `dir` while no other writer does, and returns what `change` returned.
    pub fn edit<T>(dir: &Path, change: impl FnOnce(&mut State) -> T) -> Result<T, StateError> {
        let _lock = lock(dir)?;
        let mut state = State::read(dir)?;
        let answer = change(&mut state);
        state.replace(dir)?;
        Ok(answer)
    }

    /// Adds an event for the GPU with this UUID; the oldest goes when there are too many.
    pub fn push_event(&mut self, uuid: &str, kind: EventKind) {
        self.events.push(Event {
            seq: self.next_event,
            uuid: uuid.to_owned(),
            kind,
            instance: None,
        });
        self.next_event += 1;
        if self.events.len() > MAX_EVENTS {
            let surplus = self.events.len() - MAX_EVENTS;
            self.events.drain(..surplus);
        }
    }

    fn replace(&self, dir: &Path) -> Result<(), StateError> {
        let path = dir.join(STATE_FILE);
        let fresh = dir.join(".state.json.new");
        let text = serde_json::to_vec_pretty(self).map_err(|source| StateError::Json {
            path: path.clone(),
            source,
        })?;
        let written = File::create(&fresh)
            .and_then(|mut file| file.write_all(&text))
            .and_then(|()| fs::rename(&fresh, &path));
        written.map_err(|source| StateError::Io {
            doing: "replacing",
            path,
            source,
        })
    }
}

/// `path` itself, or the state file inside it where it is a directory.
pub(crate) fn state_file(path: &Path) -> PathBuf {
    if path.is_dir() {
        path.join(STATE_FILE)
    } else {
        path.to_owned()
    }
}

/// Holds the directory's writer lock until dropped.
fn lock(dir: &Path) -> Result<File, StateError> {
    let path = dir.join(".state.lock");
    let failed = |source| StateError::Io {
        doing: "locking",
        path: path.clone(),
        source,
    };
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(failed)?;
    loop {
        // SAFETY: flock takes a descriptor, which `file` keeps open over the call, and no pointers.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) } == 0 {
            return Ok(file);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(StateError::Io {
                doing: "locking",
                path,
                source: error,
            });
        }
    }
}

impl fmt::Display for StateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StateError::Io { doing, path, .. } => write!(f, "{doing} {}", path.display()),
            StateError::Json { path, .. } => {
                write!(f, "{} is not a state of nvml-sim", path.display())
            }
            StateError::Schema { path, found } => write!(
                f,
                "{}: schema {found}, but this nvml-sim reads schema 1",
                path.display()
            ),
        }
    }
}

impl std::error::Error for StateError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            StateError::Io { source, .. } => Some(source),
            StateError::Json { source, .. } => Some(source),
            StateError::Schema { .. } => None,
        }
    }
}
