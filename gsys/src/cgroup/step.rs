//! The cgroup of a step, `step_N` below its run's job in the trees that count and limit: what its processes used, a limit
//! of the memory, and the end of what the step left. All else (the fence, CPUs, pids) stays the job's and holds in it.
//! Never touches a process of another step or of the batch script, but on pure v2: there a cgroup with others below it may
//! hold no process, so the first step moves those of the job into `batch` beside it. Source: cgroup-v2.rst, "No Internal Process".

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::RunCgroup;
use super::error::CgroupError;
use super::file::{check_name, child_dirs, is_gone_now, read_file, write_file};
use super::hierarchy::{CgroupPaths, Controller, Hierarchy, Trees};
use super::join::JoinFds;
use super::usage::{self, Usage};
use super::{kill, limits};

/// Where the job's own processes are on pure v2, once it has steps.
const BATCH_LEAF: &str = "batch";
/// A job that forks faster than it can be moved so many times over gets no step cgroup.
const MOVE_ROUNDS: usize = 200;

/// The cgroup of one step, in the trees that have it.
#[derive(Debug)]
pub struct StepCgroup {
    /// Those of the run.
    run_trees: Trees,
    /// Those that have the step's own.
    trees: Trees,
    run: PathBuf,
    name: String,
}

/// What a step used, and the limit for which its processes were killed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepUsage {
    pub usage: Usage,
    /// The limit of the step itself was reached, not only its job's.
    pub limit_reached: bool,
}

impl RunCgroup {
    /// Makes the cgroup `name` for a step of the run; its processes together may have `memory_bytes`. On an error nothing stays.
    pub fn begin_step(
        &self,
        name: &str,
        memory_bytes: Option<u64>,
    ) -> Result<StepCgroup, CgroupError> {
        check_name(name)?;
        let step = self.step(name);
        step.make(memory_bytes).inspect_err(|_| {
            step.remove_left();
        })?;
        Ok(step)
    }

    /// Names of the steps under way, with what each has used so far.
    pub fn steps(&self) -> Vec<(String, Usage)> {
        let dirs = child_dirs(&self.main_dir("job"));
        let names = dirs
            .iter()
            .filter_map(|dir| Some(dir.file_name()?.to_str()?.to_owned()))
            .filter(|name| name != BATCH_LEAF);
        // One that ends meanwhile is none.
        names
            .filter_map(|name| Some((name.clone(), self.step(&name).usage().ok()?.usage)))
            .collect()
    }

    fn step(&self, name: &str) -> StepCgroup {
        StepCgroup {
            trees: self.trees.for_step(),
            run_trees: self.trees.clone(),
            run: self.rel.clone(),
            name: name.to_owned(),
        }
    }

    /// The job's memory, and a step's, can be limited here.
    pub fn limits_memory(&self) -> bool {
        match self.trees.hierarchy() {
            Hierarchy::V2 => read_file(&self.main_dir("job").join("cgroup.controllers"))
                .is_ok_and(|list| has_memory(&list)),
            _ => self.trees.v1_mount(Controller::Memory).is_some(),
        }
    }

    /// Whether the kills of a step that is gone are still in the job's count.
    pub fn counts_kills_of_removed_steps(&self) -> bool {
        self.trees.hierarchy() == Hierarchy::V2
    }

    /// Where processes of the job that are in no step have to be, in the v2 tree.
    pub(super) fn batch_leaf(&self) -> Option<PathBuf> {
        let leaf = || self.main_dir("job").join(BATCH_LEAF);
        Some(self.trees.hierarchy())
            .filter(|shape| *shape == Hierarchy::V2)
            .map(|_| leaf())
            .filter(|dir| dir.is_dir())
    }
}

impl StepCgroup {
    /// For the forked child of a task to join by itself: the step's cgroup, and the job's in trees that have none of the step.
    pub fn join_fds(&self) -> Result<JoinFds, CgroupError> {
        let (own, job) = (self.place(), self.run_trees.job_of(&self.run));
        let has_own = |mount: &Path| self.trees.mounts().any(|known| known == mount);
        JoinFds::open(self.run_trees.mounts().map(|mount| {
            if has_own(mount) {
                own.dir(mount)
            } else {
                job.dir(mount)
            }
        }))
    }

    /// What all its processes, past and present, have used so far.
    pub fn usage(&self) -> Result<StepUsage, CgroupError> {
        let place = self.place();
        let usage = usage::read(&place)?;
        let limit_reached = usage.oom_kills > 0 && usage::limit_reached(&place)?;
        Ok(StepUsage {
            usage,
            limit_reached,
        })
    }

    /// SIGKILL to every process of the step, however it forked.
    pub fn kill(&self) -> Result<(), CgroupError> {
        kill::kill_tree(&self.place())
    }

    pub fn is_empty(&self) -> Result<bool, CgroupError> {
        kill::is_empty(&self.place())
    }

    /// Removes it where nothing is left in it; true when it is gone.
    pub fn remove_left(&self) -> bool {
        self.place()
            .dirs()
            .filter(|dir| !is_gone_now(fs::remove_dir(dir)))
            .count()
            == 0
    }

    fn make(&self, memory_bytes: Option<u64>) -> Result<(), CgroupError> {
        if self.trees.hierarchy() == Hierarchy::V2 {
            self.hand_down_memory(memory_bytes.is_some())?;
        }
        for dir in self.place().dirs() {
            make_dir(&dir)?;
        }
        memory_bytes.map_or(Ok(()), |bytes| limits::write_memory(&self.place(), bytes))
    }

    /// From the job to its steps. Where the job itself has no memory controller, nothing is counted, unless it `must` be.
    fn hand_down_memory(&self, must: bool) -> Result<(), CgroupError> {
        let Some(job) = self.run_trees.job_of(&self.run).v2() else {
            return Ok(());
        };
        let control = job.join("cgroup.subtree_control");
        if has_memory(&read_file(&control)?)
            || !must && !has_memory(&read_file(&job.join("cgroup.controllers"))?)
        {
            return Ok(());
        }
        let leaf = job.join(BATCH_LEAF);
        make_dir(&leaf)?;
        for _ in 0..MOVE_ROUNDS {
            for pid in kill::pids_in(&job)? {
                match write_file(&leaf.join("cgroup.procs"), &pid.to_string()) {
                    // It has ended.
                    Err(e) if e.errno() != Some(libc::ESRCH) => return Err(e),
                    _ => {}
                }
            }
            match write_file(&control, "+memory") {
                Err(e) if e.errno() == Some(libc::EBUSY) => {}
                done => return done,
            }
        }
        Err(CgroupError::Occupied {
            pids: kill::pids_in(&job)?.len(),
            path: job,
        })
    }

    fn place(&self) -> CgroupPaths<'_> {
        self.trees.step_of(&self.run, &self.name)
    }
}

fn has_memory(list: &str) -> bool {
    list.split_whitespace()
        .any(|word| word == Controller::Memory.name())
}

fn make_dir(dir: &Path) -> Result<(), CgroupError> {
    match fs::create_dir(dir) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
            Err(CgroupError::io("making", dir, e))
        }
        _ => Ok(()),
    }
}
