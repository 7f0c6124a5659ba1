//! The cgroups of runs: `<root>/<prefix>/run_N/job` in the main tree, with `run_N/sup` beside it, and `run_N` alone, for the job, in
//! every other tree that the run needs. `sup` holds the supervisor and has no limits; limits, fence, freeze, kill and OOM act on
//! the job only. A step of the job may have a cgroup below it (`step`). Never decides a limit.
//! Source: the kernel's Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/.

mod hierarchy;
mod kill;
mod limits;
mod root;
mod step;
mod usage;

use std::ffi::CString;
use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hierarchy::Place;
pub(crate) use hierarchy::unescape as unescape_mount;
pub use hierarchy::{Controller, Hierarchy, Trees, V1Tree};
pub use limits::Limits;
pub use root::{CgroupRoot, remove_all};
pub use step::{StepCgroup, StepUsage};
pub use usage::Usage;

/// How long a directory whose processes are dead may answer EBUSY before removal gives up.
const REMOVE_PATIENCE: Duration = Duration::from_secs(2);

/// The cgroups of one run, in every tree.
#[derive(Clone, Debug)]
pub struct RunCgroup {
    trees: Trees,
    /// Path of the run's directory below each tree's mount point, such as `gpupool/node1/run_17_1`.
    rel: PathBuf,
}

impl RunCgroup {
    /// Makes the cgroups of a run below `root` with their limits. Empty ones of an earlier attempt at the same prepare are
    /// removed first, with their counters and their fence; ones that hold processes are refused. On an error nothing stays.
    pub fn create(root: &CgroupRoot, run: &str, limits: &Limits) -> Result<RunCgroup, CgroupError> {
        check_name(run)?;
        limits.check(root)?;
        let cgroup = RunCgroup {
            trees: root.trees().for_run(limits),
            rel: root.rel().join(run),
        };
        let made = match cgroup.make(root, limits) {
            Err(e) if e.errno() == Some(libc::EEXIST) => {
                let stale = RunCgroup {
                    trees: root.trees().clone(),
                    rel: cgroup.rel.clone(),
                };
                stale.remove().and_then(|()| cgroup.make(root, limits))
            }
            made => made,
        };
        made.inspect_err(|_| {
            // Refuses where processes are, so a live run is safe from this.
            let _ = cgroup.remove();
        })?;
        Ok(cgroup)
    }

    /// The run's cgroups made earlier, by this process or by another before a restart. `NotFound` when they are gone.
    pub fn open(root: &CgroupRoot, run: &str) -> Result<RunCgroup, CgroupError> {
        check_name(run)?;
        RunCgroup::open_in(root.trees(), &root.rel().join(run))
    }

    /// As [`RunCgroup::open`], from the path another process got from [`RunCgroup::rel`].
    pub fn open_rel(rel: &Path) -> Result<RunCgroup, CgroupError> {
        RunCgroup::open_in(&Trees::detect()?, rel)
    }

    fn open_in(trees: &Trees, rel: &Path) -> Result<RunCgroup, CgroupError> {
        let cgroup = RunCgroup {
            trees: trees.holding(rel),
            rel: rel.to_owned(),
        };
        let dir = cgroup.main_dir("job");
        match fs::metadata(&dir) {
            Ok(_) => Ok(cgroup),
            Err(e) => Err(CgroupError::io("opening", &dir, e)),
        }
    }

    /// Path below the trees' mount points: what a supervisor is given to find its run again.
    pub fn rel(&self) -> &Path {
        &self.rel
    }

    /// The directory the device fence of this run is attached to: `job` in the v2 tree, else in the v1 devices tree.
    pub fn fence_dir(&self) -> Result<PathBuf, CgroupError> {
        fence_dir(&self.job())
    }

    /// Moves a process (all its threads) into `sup`. 0 means the caller. In trees that have no `sup` it stays where it is.
    pub fn attach_sup(&self, pid: i32) -> Result<(), CgroupError> {
        let procs = self.main_dir("sup").join("cgroup.procs");
        write_file(&procs, &pid.to_string())
    }

    /// The directory of `sup`, and whether a process can be born in it (it is in the v2 tree), or has to move there.
    pub fn sup_dir(&self) -> (PathBuf, bool) {
        (self.main_dir("sup"), self.trees.v2.is_some())
    }

    /// Moves a process into `job`. To start a job use [`RunCgroup::join_fds`]: a process moved from outside has run
    /// outside for a moment.
    pub fn attach_job(&self, pid: i32) -> Result<(), CgroupError> {
        self.job()
            .dirs()
            .try_for_each(|dir| write_file(&dir.join("cgroup.procs"), &pid.to_string()))
    }

    /// Open `cgroup.procs` of `job` in every tree, for the forked child of `launch` to join by itself.
    pub fn join_fds(&self) -> Result<JoinFds, CgroupError> {
        match self.batch_leaf() {
            Some(leaf) => JoinFds::open(std::iter::once(leaf)),
            None => JoinFds::open(self.job().dirs()),
        }
    }

    /// Sets the limits of a live run. `None` leaves a limit as it is.
    pub fn set_limits(&self, limits: &Limits) -> Result<(), CgroupError> {
        limits::write(&self.trees, &self.rel, limits)
    }

    /// The processors of its own that the run was given; `None` where it has none.
    pub fn cpu_set(&self) -> Result<Option<Vec<u32>>, CgroupError> {
        limits::cpu_set(&self.trees, &self.rel)
    }

    /// What the job has used so far, all its past and present processes together.
    pub fn usage(&self) -> Result<Usage, CgroupError> {
        usage::read(&self.job())
    }

    /// Pids in `job` and the cgroups below it, as the kernel lists them now.
    pub fn job_pids(&self) -> Result<Vec<i32>, CgroupError> {
        kill::pids_below(&self.main_dir("job"))
    }

    /// Sends SIGKILL to every process of `job`, however it forked, and whether or not it is frozen. Returns when the
    /// signals are sent; use [`RunCgroup::wait_empty`] for the end of the processes.
    pub fn kill(&self) -> Result<(), CgroupError> {
        kill::kill_tree(&self.job())
    }

    /// SIGKILL to what is in `sup`.
    pub fn kill_supervisor(&self) -> Result<(), CgroupError> {
        kill::kill_tree(&self.trees.at(&self.rel.join("sup")))
    }

    /// Sends `signal` once to every process of `job`; processes forked meanwhile may miss it. For anything but KILL.
    pub fn signal(&self, signal: i32) -> Result<(), CgroupError> {
        kill::signal_tree(&self.main_dir("job"), signal)
    }

    /// Stops every process of `job` from running (`SUSPENDED`), or lets them run on.
    pub fn freeze(&self, frozen: bool) -> Result<(), CgroupError> {
        kill::freeze(&self.job(), frozen)
    }

    /// Whether [`RunCgroup::freeze`] was the last that befell `job`.
    pub fn is_frozen(&self) -> Result<bool, CgroupError> {
        let job = self.job();
        let (path, thawed) = match (job.v2(), job.v1(Controller::Freezer)) {
            (Some(dir), _) => (dir.join("cgroup.freeze"), "0"),
            (None, Some(dir)) => (dir.join("freezer.state"), "THAWED"),
            (None, None) => return Ok(false),
        };
        Ok(read_file(&path)?.trim() != thawed)
    }

    /// No live process is in `job` or below. A cgroup that is gone is empty.
    pub fn is_empty(&self) -> Result<bool, CgroupError> {
        kill::is_empty(&self.job())
    }

    /// Waits until `job` is empty; false when `patience` ends first.
    pub fn wait_empty(&self, patience: Duration) -> Result<bool, CgroupError> {
        kill::wait_empty(&self.job(), patience)
    }

    /// `cgroup.events` of `job`: becomes ready for POLLPRI when `job` turns empty or is populated again; then call
    /// [`RunCgroup::is_empty`]. `None` on pure v1, where the caller has to look now and then.
    pub fn events_file(&self) -> Result<Option<fs::File>, CgroupError> {
        let Some(mount) = &self.trees.v2 else {
            return Ok(None);
        };
        let path = mount.join(&self.rel).join("job/cgroup.events");
        fs::File::open(&path)
            .map(Some)
            .map_err(|e| CgroupError::io("opening", &path, e))
    }

    /// Removes `job` with everything the job nested in it, `sup` and the run's directory. Removes at most an empty `sup` and fails
    /// with the number of processes when any is left in either; what is gone already is no error.
    pub fn remove(&self) -> Result<(), CgroupError> {
        // Nearly always nothing is nested and nothing is left: then the kernel, which refuses to remove what is occupied, need
        // not be asked before.
        if self.remove_left() {
            return Ok(());
        }
        if !kill::is_empty(&self.job())? || !kill::pids_below(&self.main_dir("sup"))?.is_empty() {
            self.refuse_occupied()?;
        }
        self.trees
            .mounts()
            .try_for_each(|mount| remove_tree(&mount.join(&self.rel), REMOVE_PATIENCE))
    }

    /// As [`RunCgroup::remove`], but only what goes at once: nothing is waited for, nor looked at, if this is false. The kernel
    /// removes no cgroup in which a process is.
    pub fn remove_left(&self) -> bool {
        // Until one cannot go. The main tree's `job` goes last: while it is there, the run is found again.
        let main = self.trees.main_mount();
        is_gone_now(fs::remove_dir(self.main_dir("sup")))
            && self
                .trees
                .mounts()
                .filter(|mount| Some(*mount) != main)
                .all(|mount| is_gone_now(fs::remove_dir(mount.join(&self.rel))))
            && is_gone_now(fs::remove_dir(self.main_dir("job")))
            && is_gone_now(fs::remove_dir(main_dir(&self.trees, &self.rel)))
    }

    /// As [`RunCgroup::remove`], of a run that has no use for a supervisor any more: one that is there, or on its way, is
    /// killed, for as long as `patience`.
    pub fn remove_with_supervisor(&self, patience: Duration) -> Result<(), CgroupError> {
        let deadline = Instant::now() + patience;
        loop {
            match self.remove() {
                Err(CgroupError::Occupied { .. }) if Instant::now() < deadline => {
                    kill::kill_tree(&self.trees.at(&self.rel.join("sup")))?;
                    std::thread::sleep(Duration::from_millis(2));
                }
                removed => return removed,
            }
        }
    }

    /// The error that names the first tree with processes in it; none when they have just gone.
    fn refuse_occupied(&self) -> Result<(), CgroupError> {
        for mount in self.trees.mounts() {
            let path = mount.join(&self.rel);
            let pids = kill::pids_below(&path)?.len();
            if pids > 0 {
                return Err(CgroupError::Occupied { path, pids });
            }
        }
        Ok(())
    }

    /// EEXIST when something of an earlier attempt is there.
    fn make(&self, root: &CgroupRoot, limits: &Limits) -> Result<(), CgroupError> {
        root.make_new(&self.trees, &self.rel)?;
        root.hand_down_controllers(&self.rel)?;
        for leaf in ["job", "sup"] {
            let dir = self.main_dir(leaf);
            fs::create_dir(&dir).map_err(|e| CgroupError::io("making", &dir, e))?;
            root.fill_lists(&self.trees, &self.rel.join(leaf))?;
        }
        self.set_limits(limits)
    }

    fn job(&self) -> Place<'_> {
        self.trees.job_of(&self.rel)
    }

    fn main_dir(&self, leaf: &str) -> PathBuf {
        main_dir(&self.trees, &self.rel.join(leaf))
    }
}

/// Open `cgroup.procs` files of one cgroup in every tree. Joining by writing to them allocates nothing, so a child may
/// do it between fork and exec.
#[derive(Debug)]
pub struct JoinFds {
    procs: Vec<OwnedFd>,
}

impl JoinFds {
    pub(crate) fn open(dirs: impl Iterator<Item = PathBuf>) -> Result<JoinFds, CgroupError> {
        let mut procs = Vec::new();
        for dir in dirs {
            let path = dir.join("cgroup.procs");
            let file = fs::OpenOptions::new()
                .write(true)
                .open(&path)
                .map_err(|e| CgroupError::io("opening", &path, e))?;
            procs.push(file.into());
        }
        Ok(JoinFds { procs })
    }

    /// Moves the calling process into the cgroup. Async-signal-safe. Returns the errno of the first tree that refused.
    pub(crate) fn join(&self) -> Result<(), i32> {
        for fd in &self.procs {
            // SAFETY: the descriptor is open and the buffer is two static bytes.
            let written = unsafe { libc::write(fd.as_raw_fd(), b"0\n".as_ptr().cast(), 2) };
            if written < 0 {
                return Err(crate::process::errno());
            }
        }
        Ok(())
    }
}

/// Why a cgroup operation failed. All of them are errors of the node, never of the user.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    #[error("cgroup: {verb} {}", path.display())]
    Io {
        verb: String,
        path: PathBuf,
        source: io::Error,
    },
    #[error(
        "cgroup: a {limit} limit was asked for, and no {controller} controller is usable here ({why}). \
         Mount it, or delegate it to this service"
    )]
    NoController {
        limit: &'static str,
        controller: &'static str,
        why: String,
    },
    #[error("cgroup: no cgroup tree is mounted. Mount one: mount -t cgroup2 none /sys/fs/cgroup")]
    NoTree,
    #[error("cgroup: {} holds {pids} processes, it must be empty for this", path.display())]
    Occupied { path: PathBuf, pids: usize },
    #[error(
        "cgroup: {0:?} is no name of a cgroup of ours: use letters, digits, '-', '_', '.', and no leading dot"
    )]
    Name(String),
    #[error("cgroup: {} says {text:?}, which is not what the kernel documents", path.display())]
    Unreadable { path: PathBuf, text: String },
}

impl CgroupError {
    /// The cgroup or the file does not exist.
    pub fn is_not_found(&self) -> bool {
        self.errno() == Some(libc::ENOENT)
    }

    pub fn errno(&self) -> Option<i32> {
        match self {
            CgroupError::Io { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }

    pub(crate) fn io(verb: impl Into<String>, path: &Path, source: io::Error) -> CgroupError {
        CgroupError::Io {
            verb: verb.into(),
            path: path.to_owned(),
            source,
        }
    }
}

/// The directory in the tree in which processes are counted.
fn main_dir(trees: &Trees, rel: &Path) -> PathBuf {
    match trees.main_mount() {
        Some(mount) => mount.join(rel),
        None => rel.to_owned(),
    }
}

fn fence_dir(place: &Place<'_>) -> Result<PathBuf, CgroupError> {
    place
        .v2()
        .or_else(|| place.v1(Controller::Devices))
        .ok_or_else(|| CgroupError::NoController {
            limit: "device",
            controller: "devices",
            why: "neither a v2 tree nor a v1 devices tree is mounted".into(),
        })
}

/// One path component that cannot climb out of our subtree.
fn check_name(name: &str) -> Result<(), CgroupError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    match !name.is_empty() && !name.starts_with('.') && name.len() < 128 && name.chars().all(plain)
    {
        true => Ok(()),
        false => Err(CgroupError::Name(name.into())),
    }
}

/// Files of cgroups and of /proc have no length to go by: with this much room most are read at once.
const READ_AT_ONCE: usize = 4096;

fn read_file(path: &Path) -> Result<String, CgroupError> {
    read_proc(path).map_err(|e| CgroupError::io("reading", path, e))
}

/// A file that has no length to go by.
pub(crate) fn read_proc(path: &Path) -> io::Result<String> {
    let mut text = String::with_capacity(READ_AT_ONCE);
    // Through `take`, because a `File` would ask for its length first.
    fs::File::open(path)?
        .take(u64::MAX)
        .read_to_string(&mut text)?;
    Ok(text)
}

/// One write(2): cgroup files take a value whole or not at all.
fn write_file(path: &Path, value: &str) -> Result<(), CgroupError> {
    fs::OpenOptions::new()
        .write(true)
        .open(path)
        .and_then(|mut file| file.write_all(value.as_bytes()))
        .map_err(|e| CgroupError::io(format!("writing {value:?} to"), path, e))
}

/// Directories directly below, empty when `dir` is gone.
fn child_dirs(dir: &Path) -> Vec<PathBuf> {
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

fn is_gone_now(removed: io::Result<()>) -> bool {
    removed.map_or_else(|e| e.kind() == io::ErrorKind::NotFound, |()| true)
}

/// rmdir from the leaves up. The kernel answers EBUSY for a moment after the last process died, so it is repeated.
fn remove_tree(dir: &Path, patience: Duration) -> Result<(), CgroupError> {
    let deadline = Instant::now() + patience;
    loop {
        match remove_once(dir) {
            Ok(()) => return Ok(()),
            Err(e) if e.errno() == Some(libc::EBUSY) && Instant::now() < deadline => {
                let pids = kill::pids_below(dir).unwrap_or_default();
                if !pids.is_empty() {
                    return Err(CgroupError::Occupied {
                        path: dir.to_owned(),
                        pids: pids.len(),
                    });
                }
                std::thread::sleep(Duration::from_millis(2));
            }
            Err(e) => return Err(e),
        }
    }
}

fn remove_once(dir: &Path) -> Result<(), CgroupError> {
    for child in child_dirs(dir) {
        remove_once(&child)?;
    }
    match fs::remove_dir(dir) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(CgroupError::io("removing", dir, e)),
        _ => Ok(()),
    }
}

/// A path for a system call.
pub(crate) fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}
