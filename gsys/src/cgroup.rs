//! The cgroups of runs: `<root>/<prefix>/run_N/job` in the main tree, with `run_N/sup` beside it, and `run_N` alone, for the job, in
//! every other tree that the run needs. `sup` holds the supervisor and has no limits; limits, fence, freeze, kill and OOM act on
//! the job only. A step of the job may have a cgroup below it (`step`). Never decides a limit.
//! Source: the kernel's Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/.

mod error;
mod file;
mod hierarchy;
mod join;
mod kill;
mod limits;
mod removal;
mod root;
mod step;
mod usage;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub use error::CgroupError;
pub(crate) use file::{c_path, read_proc};
use file::{check_name, is_gone_now, read_file, write_file};
use hierarchy::CgroupPaths;
pub(crate) use hierarchy::unescape as unescape_mount;
pub use hierarchy::{Controller, Hierarchy, Trees, V1Tree};
pub use join::JoinFds;
pub use limits::Limits;
use removal::remove_tree;
pub use root::{CgroupRoot, remove_all};
pub use step::{StepCgroup, StepUsage};
pub use usage::Usage;

/// How long a directory without live processes may answer EBUSY before removal gives up.
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
        root.check(limits)?;
        let cgroup = RunCgroup {
            trees: root.trees().for_run(limits.cpu_set.is_some()),
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
        self.job().fence_dir()
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
        let attach = || {
            let dirs = match self.batch_leaf() {
                Some(leaf) => vec![leaf],
                None => self.job().dirs().collect(),
            };
            dirs.iter()
                .try_for_each(|dir| write_file(&dir.join("cgroup.procs"), &pid.to_string()))
        };
        match attach() {
            // The first step has come meanwhile, and made the leaf before.
            Err(e) if e.errno() == Some(libc::EBUSY) => attach(),
            done => done,
        }
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
            && is_gone_now(fs::remove_dir(self.trees.main_dir(&self.rel)))
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

    fn job(&self) -> CgroupPaths<'_> {
        self.trees.job_of(&self.rel)
    }

    fn main_dir(&self, leaf: &str) -> PathBuf {
        self.trees.main_dir(&self.rel.join(leaf))
    }
}
