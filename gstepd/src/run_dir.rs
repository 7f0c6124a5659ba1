//! The run's spool directory as its supervisor uses it: the lock, order and setup, the script's copy, the log. The layout
//! is in `gmodel::supervise`. Never writes `exit.json`: that is the record's.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, anyhow, bail};
use gmodel::Timestamp;
use gmodel::job_output::OUTPUTS_DIR;
use gmodel::launch_order::LaunchOrder;
use gmodel::supervise::RunSetup;
use nix::fcntl::{Flock, FlockArg};

use crate::batch;

/// How long a lock may be held before it counts as a supervisor's.
const LOCK_PATIENCE: Duration = Duration::from_millis(500);
/// Longer scripts are copied to the disk: the runtime directory is memory.
const SHORT_SCRIPT_BYTES: usize = 64 << 10;

/// An open run directory. While it lives no second supervisor can take the run.
pub struct RunDir {
    path: PathBuf,
    _lock: Flock<File>,
    log: Option<File>,
    setup: anyhow::Result<RunSetup>,
}

impl RunDir {
    /// Locks the directory and makes it the current one: a socket's path must be short, the spool's may be long. Refuses a run that has
    /// ended or was supervised before: processes that it left may be unknown to this supervisor.
    pub fn enter(path: &Path) -> anyhow::Result<RunDir> {
        std::env::set_current_dir(path)
            .with_context(|| format!("run directory {}", path.display()))?;
        // As the kernel knows it: without links.
        let path =
            std::env::current_dir().with_context(|| format!("run directory {}", path.display()))?;
        let lock = lock(Path::new("."))
            .with_context(|| format!("{} has a supervisor already", path.display()))?;
        if Path::new("exit.json").exists() {
            bail!("{} has ended already: exit.json is there", path.display());
        }
        let setup = read_json::<RunSetup>(&path, "setup.json");
        let places = setup.as_ref().map_or_else(
            |_| RunSetup::default().control_sockets(&path),
            |setup| setup.control_sockets(&path),
        );
        if let Some(left) = places.iter().find(|place| place.exists()) {
            bail!(
                "{} was supervised before, by a process that is gone: {} is there",
                path.display(),
                left.display()
            );
        }
        let log = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open("log")
            .ok();
        Ok(RunDir {
            path,
            _lock: lock,
            log,
            setup,
        })
    }

    pub fn order(&self) -> anyhow::Result<LaunchOrder> {
        read_json(&self.path, "order.json")
    }

    /// What gpud prepared, read when the directory was entered.
    pub fn setup(&mut self) -> anyhow::Result<RunSetup> {
        std::mem::replace(&mut self.setup, Err(anyhow!("the setup is with somebody")))
    }

    /// Where to listen for gpud.
    pub fn control_places(&self, setup: &RunSetup) -> anyhow::Result<Vec<PathBuf>> {
        let places = setup.control_sockets(&self.path);
        if let Some(first) = places.first().filter(|_| !setup.marks_dir.is_empty()) {
            // Where it cannot be made there is the other place.
            let _ = make_user_dir(first);
        }
        Ok(places)
    }

    /// Of the outputs of all runs of this node.
    pub fn outputs_dir(&self) -> anyhow::Result<PathBuf> {
        let spool = self.path.parent().and_then(Path::parent);
        Ok(spool
            .context("a run's directory lies in a spool")?
            .join(OUTPUTS_DIR))
    }

    /// A line for `gq --log`. A log that cannot be written holds nothing up.
    pub fn log(&mut self, text: &str) {
        let line = format!("{} gstepd: {}\n", wall_clock(), text.replace('\n', " "));
        if let Some(file) = &mut self.log {
            let _ = file.write_all(line.as_bytes());
        }
    }

    /// Copies the script to a file that only its user can read and run. Returns the path that the job sees.
    pub fn place_script(&self, text: &str, setup: &RunSetup) -> anyhow::Result<PathBuf> {
        let (short, always) = self.script_places(setup)?;
        // Memory that has run out is no reason not to start.
        let placed = short
            .filter(|_| text.len() <= SHORT_SCRIPT_BYTES)
            .and_then(|place| write_user_file(place, text, setup, 0o500).ok());
        placed.map_or_else(|| write_user_file(always, text, setup, 0o500), Ok)
    }

    /// Writes the names of the job's nodes where its user can read them. Returns the path that the job sees.
    pub fn place_nodes(&self, names: &str, setup: &RunSetup) -> anyhow::Result<PathBuf> {
        let place = self.user_place(setup, "nodes")?;
        write_user_file(place, names, setup, 0o400)
    }

    /// The socket that the job's user writes marks to, and the path that the job sees.
    pub fn listen_for_marks(&self, setup: &RunSetup) -> anyhow::Result<(UnixListener, PathBuf)> {
        let UserPlace { path, seen } = self.user_place(setup, "sock")?;
        let dir = File::open(make_user_dir(&path)?)?;
        let _ = fs::remove_file(&path);
        // By the directory's descriptor: a socket's path has room for 107 bytes only.
        let name = path.file_name().context("a socket has a name")?;
        let short = Path::new("/proc/self/fd")
            .join(dir.as_raw_fd().to_string())
            .join(name);
        let listener =
            UnixListener::bind(&short).with_context(|| format!("making {}", path.display()))?;
        fs::set_permissions(&path, Permissions::from_mode(0o600))?;
        if nix::unistd::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(setup.uid), Some(setup.gid))?;
        }
        Ok((listener, seen))
    }

    /// What was made for the user goes, and its directory in a private one.
    pub fn remove_user_files(&self, setup: &RunSetup) {
        let scripts = self
            .script_places(setup)
            .into_iter()
            .flat_map(|(short, always)| short.into_iter().chain([always]));
        let others = ["sock", "nodes"].map(|ending| self.user_place(setup, ending));
        for UserPlace { path, seen } in scripts.chain(others.into_iter().flatten()) {
            let _ = fs::remove_file(&path);
            if path != seen {
                let _ = path.parent().map(fs::remove_dir);
            }
        }
    }

    /// `RUN_DIR/marks/RUN.script`, where short scripts can be executed there, and `SPOOL/marks/RUN.script`.
    fn script_places(&self, setup: &RunSetup) -> anyhow::Result<(Option<UserPlace>, UserPlace)> {
        let name = format!("{}.script", self.run()?);
        let short = setup
            .short_scripts_in_marks_dir
            .then(|| seen_place(setup, Path::new(&setup.marks_dir), &name));
        Ok((short, seen_place(setup, &self.marks_dir()?, &name)))
    }

    /// `RUN_DIR/marks/RUN.ENDING`; in the spool's directory where gpud names no other.
    fn user_place(&self, setup: &RunSetup, ending: &str) -> anyhow::Result<UserPlace> {
        let dir = match setup.marks_dir.as_str() {
            "" => self.marks_dir()?,
            dir => dir.into(),
        };
        Ok(seen_place(
            setup,
            &dir,
            &format!("{}.{ending}", self.run()?),
        ))
    }

    fn run(&self) -> anyhow::Result<&str> {
        self.path
            .file_name()
            .and_then(OsStr::to_str)
            .context("the run directory is named after no run")
    }

    fn marks_dir(&self) -> anyhow::Result<PathBuf> {
        Ok(self
            .path
            .parent()
            .and_then(Path::parent)
            .context("the run directory is not in SPOOL/runs")?
            .join("marks"))
    }
}

/// From the current directory, which is `dir`.
fn read_json<T: serde::de::DeserializeOwned>(dir: &Path, name: &str) -> anyhow::Result<T> {
    let bytes = fs::read(name).with_context(|| format!("reading {}", dir.join(name).display()))?;
    serde_json::from_slice(&bytes)
        .with_context(|| format!("{} is no {name}", dir.join(name).display()))
}

/// Where a file for the user is, and the path under which the job finds it.
struct UserPlace {
    path: PathBuf,
    seen: PathBuf,
}

/// Returns the path that the job sees.
fn write_user_file(
    UserPlace { path, seen }: UserPlace,
    text: &str,
    setup: &RunSetup,
    mode: u32,
) -> anyhow::Result<PathBuf> {
    let dir = make_user_dir(&path)?;
    if path == seen {
        check_reachable(dir, setup)?;
    }
    let _ = fs::remove_file(&path);
    let write = || -> io::Result<()> {
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(&path)?;
        file.write_all(text.as_bytes())?;
        // The supervisor's umask may have taken bits away.
        file.set_permissions(Permissions::from_mode(mode))?;
        if nix::unistd::geteuid().is_root() {
            std::os::unix::fs::fchown(&file, Some(setup.uid), Some(setup.gid))?;
        }
        Ok(())
    };
    let written = write().with_context(|| format!("writing {}", path.display()));
    written.inspect_err(|_| drop(fs::remove_file(&path)))?;
    Ok(seen)
}

/// A private directory that is bound over this place hides it, as in a sandbox below /tmp; then the file lies in that private
/// directory.
fn seen_place(setup: &RunSetup, dir: &Path, name: &str) -> UserPlace {
    match batch::binds(setup)
        .into_iter()
        .find(|bind| dir.starts_with(&bind.target))
    {
        None => UserPlace {
            path: dir.join(name),
            seen: dir.join(name),
        },
        Some(bind) => {
            let below = Path::new(".gpupool").join(name);
            UserPlace {
                path: bind.source.join(&below),
                seen: bind.target.join(&below),
            }
        }
    }
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
    let since = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    Timestamp(since.as_millis() as i64)
}

/// A user cannot pass a directory without an x bit; found here, it is the node's error and names the directory.
fn check_reachable(dir: &Path, setup: &RunSetup) -> anyhow::Result<()> {
    let uid = setup.uid;
    if uid == 0 {
        return Ok(());
    }
    for part in dir.ancestors() {
        let meta = fs::metadata(part).with_context(|| format!("looking at {}", part.display()))?;
        let needed = match () {
            () if meta.uid() == uid => 0o100,
            () if meta.gid() == setup.gid || setup.groups.contains(&meta.gid()) => 0o010,
            () => 0o001,
        };
        if meta.mode() & needed != needed {
            bail!(
                "{} cannot be passed by uid {uid}, so no script below it can run: chmod o+x it",
                part.display()
            );
        }
    }
    Ok(())
}
