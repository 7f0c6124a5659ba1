//! The run's spool directory as its supervisor uses it: the lock, order and setup, the script's copy, the log. The layout
//! is in `gmodel::supervise`. Never writes `exit.json`: that is the record's.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, bail};
use gmodel::Timestamp;
use gmodel::launch_order::LaunchOrder;
use gmodel::supervise::Setup;
use nix::fcntl::{Flock, FlockArg};

use crate::batch;

/// Files for the user, in a directory of the run's.
const SCRIPT: &str = "script";
const MARK_SOCKET: &str = "mark.sock";
/// How long a lock may be held before it counts as a supervisor's.
const LOCK_PATIENCE: Duration = Duration::from_millis(500);

/// An open run directory. While it lives no second supervisor can take the run.
pub struct RunDir {
    path: PathBuf,
    _lock: Flock<File>,
    log: Option<File>,
}

impl RunDir {
    /// Locks the directory and makes it the current one: a socket's path must be short, the spool's may be long. Refuses a
    /// run that has ended or was supervised before: what it left behind is no longer ours to know.
    pub fn enter(path: &Path) -> anyhow::Result<RunDir> {
        let path = fs::canonicalize(path).with_context(|| format!("run directory {}", path.display()))?;
        std::env::set_current_dir(&path).with_context(|| format!("entering {}", path.display()))?;
        let lock = lock(Path::new(".")).with_context(|| format!("{} has a supervisor already", path.display()))?;
        if Path::new("exit.json").exists() {
            bail!("{} has ended already: exit.json is there", path.display());
        }
        if Path::new("ctl.sock").exists() {
            bail!("{} was supervised before, by a process that is gone: ctl.sock is there", path.display());
        }
        let log = OpenOptions::new().append(true).create(true).mode(0o600).open("log").ok();
        Ok(RunDir { path, _lock: lock, log })
    }

    pub fn order(&self) -> anyhow::Result<LaunchOrder> {
        self.read_json("order.json")
    }

    pub fn setup(&self) -> anyhow::Result<Setup> {
        self.read_json("setup.json")
    }

    /// A line for `gq --log`. A log that cannot be written holds nothing up.
    pub fn log(&mut self, text: &str) {
        let line = format!("{} gstepd: {}\n", wall_clock(), text.replace('\n', " "));
        if let Some(file) = &mut self.log {
            let _ = file.write_all(line.as_bytes());
        }
    }

    /// Copies the script to where its user, and nobody else, can read and run it. Returns the path that the job sees.
    pub fn place_script(&self, text: &str, setup: &Setup) -> anyhow::Result<PathBuf> {
        let UserPlace { path, seen } = self.user_place(setup, SCRIPT)?;
        let dir = make_user_dir(&path)?;
        if path == seen {
            check_reachable(dir, setup)?;
        }
        let _ = fs::remove_file(&path);
        let write = || -> io::Result<()> {
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o500).open(&path)?;
            file.write_all(text.as_bytes())?;
            // The supervisor's umask may have taken bits away.
            file.set_permissions(Permissions::from_mode(0o500))?;
            if nix::unistd::geteuid().is_root() {
                std::os::unix::fs::fchown(&file, Some(setup.uid), Some(setup.gid))?;
            }
            Ok(())
        };
        write().with_context(|| format!("writing the script to {}", path.display()))?;
        Ok(seen)
    }

    /// The socket that the job's user writes marks to, and the path that the job sees.
    pub fn listen_for_marks(&self, setup: &Setup) -> anyhow::Result<(UnixListener, PathBuf)> {
        let UserPlace { path, seen } = self.user_place(setup, MARK_SOCKET)?;
        let dir = File::open(make_user_dir(&path)?)?;
        let _ = fs::remove_file(&path);
        // By the directory's descriptor: a socket's path has room for 107 bytes only.
        let short = PathBuf::from(format!("/proc/self/fd/{}/{MARK_SOCKET}", dir.as_raw_fd()));
        let listener = UnixListener::bind(&short).with_context(|| format!("making {}", path.display()))?;
        fs::set_permissions(&path, Permissions::from_mode(0o600))?;
        if nix::unistd::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(setup.uid), Some(setup.gid))?;
        }
        Ok((listener, seen))
    }

    /// What was made for the user goes, and its directory.
    pub fn remove_user_files(&self, setup: &Setup) {
        for name in [MARK_SOCKET, SCRIPT] {
            if let Ok(UserPlace { path, .. }) = self.user_place(setup, name) {
                let _ = fs::remove_file(&path);
                let _ = path.parent().map(fs::remove_dir);
            }
        }
    }

    /// `SPOOL/marks/RUN/NAME`. A private directory that is bound over the spool's own place hides it, as in a sandbox
    /// below /tmp; then it lies in that private directory.
    fn user_place(&self, setup: &Setup, name: &str) -> anyhow::Result<UserPlace> {
        let run = self.path.file_name().context("the run directory is /")?;
        let spool = self.path.parent().and_then(Path::parent).context("the run directory is not in SPOOL/runs")?;
        let usual = spool.join("marks").join(run).join(name);
        let hiding = batch::binds(setup).into_iter().find(|bind| usual.starts_with(&bind.target));
        Ok(match hiding {
            None => UserPlace { seen: usual.clone(), path: usual },
            Some(bind) => {
                let below = Path::new(".gpupool").join(name);
                UserPlace { path: bind.source.join(&below), seen: bind.target.join(&below) }
            }
        })
    }

    fn read_json<T: serde::de::DeserializeOwned>(&self, name: &str) -> anyhow::Result<T> {
        let bytes = fs::read(name).with_context(|| format!("reading {}", self.path.join(name).display()))?;
        serde_json::from_slice(&bytes).with_context(|| format!("{} is no {name}", self.path.join(name).display()))
    }
}

/// Where a file for the user is, and the path under which the job finds it.
struct UserPlace {
    path: PathBuf,
    seen: PathBuf,
}

/// The directory of a file for the user, made: it can be passed, and not listed.
fn make_user_dir(path: &Path) -> anyhow::Result<&Path> {
    let dir = path.parent().unwrap_or(Path::new("/"));
    let made = DirBuilder::new().recursive(true).mode(0o711).create(dir);
    made.with_context(|| format!("making {}", dir.display()))?;
    Ok(dir)
}

/// gpud looks at the lock for an instant to see whether a supervisor lives; only one that stays is another supervisor.
fn lock(dir: &Path) -> anyhow::Result<Flock<File>> {
    let deadline = Instant::now() + LOCK_PATIENCE;
    loop {
        match Flock::lock(File::open(dir)?, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(lock),
            Err((_, e)) if Instant::now() >= deadline => return Err(e.into()),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// The node's wall clock, for people; deadlines run on CLOCK_BOOTTIME.
pub fn wall_clock() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp(since.as_millis() as i64)
}

/// A user cannot pass a directory without an x bit; found here, it is the node's error and names the directory.
fn check_reachable(dir: &Path, setup: &Setup) -> anyhow::Result<()> {
    let uid = setup.uid;
    for part in dir.ancestors() {
        let meta = fs::metadata(part).with_context(|| format!("looking at {}", part.display()))?;
        let needed = match () {
            () if uid == 0 => 0,
            () if meta.uid() == uid => 0o100,
            () if meta.gid() == setup.gid || setup.groups.contains(&meta.gid()) => 0o010,
            () => 0o001,
        };
        if meta.mode() & needed != needed {
            bail!("{} cannot be passed by uid {uid}, so no script below it can run: chmod o+x it", part.display());
        }
    }
    Ok(())
}
