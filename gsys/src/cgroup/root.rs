//! gpupool's subtree of the machine's cgroup trees: `gpupool-<tag>/<node>` below the mount point, or below the service's own
//! delegated cgroup on a pure v2 systemd node. Makes directories and hands down controllers; knows nothing of runs.

use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use super::error::CgroupError;
use super::file::{c_path, check_name, read_file, write_file};
use super::hierarchy::{Controller, Hierarchy, Trees};
use super::kill;
use super::limits::{self, Limits};
use super::removal::remove_tree;

/// Where the daemon itself sits in a delegated cgroup, since a v2 cgroup with controllers below it may hold no process.
/// The unit file says the same (`DelegateSubgroup=daemon`), or a restart with live runs would fail with EBUSY.
const DAEMON_LEAF: &str = "daemon";

/// What a v2 cgroup hands down to its children.
const V2_CONTROLLERS: [Controller; 4] = [
    Controller::Cpu,
    Controller::Cpuset,
    Controller::Memory,
    Controller::Pids,
];

/// gpupool's subtree, in every tree.
#[derive(Clone, Debug)]
pub struct CgroupRoot {
    trees: Trees,
    rel: PathBuf,
}

impl CgroupRoot {
    /// Makes (or finds again) gpupool's subtree. `prefix` is the tag and whatever is nested below it, such as `gpupool` or
    /// `gpupool-1a2b3c4d/node1`. On a systemd service with `Delegate=yes` on pure v2 it lies in the service's cgroup, and
    /// the service's own processes move to `daemon` there.
    pub fn open(prefix: &str) -> Result<CgroupRoot, CgroupError> {
        CgroupRoot::open_in(Trees::detect()?, prefix)
    }

    /// As [`CgroupRoot::open`], in the given trees.
    pub fn open_in(trees: Trees, prefix: &str) -> Result<CgroupRoot, CgroupError> {
        let base = match trees.hierarchy() {
            Hierarchy::None => return Err(CgroupError::NoTree),
            Hierarchy::V2 => delegated_base()?,
            Hierarchy::V1 | Hierarchy::Hybrid => PathBuf::new(),
        };
        let mut root = CgroupRoot { trees, rel: base };
        root.enter_daemon_leaf()?;
        root.hand_down_controllers(&root.rel)?;
        for part in parts(prefix)? {
            let rel = root.rel.join(part);
            root.make_dir(&rel)?;
            root.rel = rel;
        }
        Ok(root)
    }

    /// Kills every process below this root and removes it with everything in it. Refuses when the caller is in it.
    pub fn remove_all(&self) -> Result<(), CgroupError> {
        remove_subtree(&self.trees, &self.rel)
    }

    /// Path below the trees' mount points.
    pub fn rel(&self) -> &Path {
        &self.rel
    }

    pub fn hierarchy(&self) -> Hierarchy {
        self.trees.hierarchy()
    }

    pub fn trees(&self) -> &Trees {
        &self.trees
    }

    /// Whether runs here can be limited by this controller.
    pub fn supports(&self, controller: Controller) -> bool {
        match self.trees.hierarchy() {
            Hierarchy::None => false,
            Hierarchy::V1 | Hierarchy::Hybrid => self.trees.v1_mount(controller).is_some(),
            Hierarchy::V2 => {
                let dir = self
                    .trees
                    .v2
                    .as_deref()
                    .unwrap_or(Path::new(""))
                    .join(&self.rel);
                let listed = read_file(&dir.join("cgroup.subtree_control")).unwrap_or_default();
                !V2_CONTROLLERS.contains(&controller)
                    || listed.split_whitespace().any(|c| c == controller.name())
            }
        }
    }

    /// Fails before anything is made when a controller is missing.
    pub(super) fn check(&self, limits: &Limits) -> Result<(), CgroupError> {
        let wanted = [
            ("memory", Controller::Memory, limits.memory_bytes.is_some()),
            ("cpuset", Controller::Cpuset, limits.cpu_set.is_some()),
            ("cpu weight", Controller::Cpu, limits.cpu_millis.is_some()),
            ("pids", Controller::Pids, limits.pids_max.is_some()),
        ];
        for (limit, controller, asked) in wanted {
            if asked && !self.supports(controller) {
                let why = format!(
                    "hierarchy {}, subtree {}",
                    self.hierarchy().name(),
                    self.rel.display()
                );
                return Err(CgroupError::NoController {
                    limit,
                    controller: controller.name(),
                    why,
                });
            }
        }
        Ok(())
    }

    /// Holds all runs together to so many processes and threads.
    pub fn limit_pids(&self, most: u64) -> Result<(), CgroupError> {
        let mount = self
            .trees
            .v1_mount(Controller::Pids)
            .or(self.trees.v2.as_deref());
        mount.map_or(Ok(()), |mount| {
            write_file(&mount.join(&self.rel).join("pids.max"), &most.to_string())
        })
    }

    /// Processors and memory nodes that runs here may be given.
    pub fn cpu_bounds(&self) -> Result<(Vec<u32>, Vec<u32>), CgroupError> {
        limits::bounds(&self.trees, &self.rel)
    }

    /// Names of the run directories that exist: what gpud scans when it starts.
    pub fn runs(&self) -> Result<Vec<String>, CgroupError> {
        let dir = self.trees.main_dir(&self.rel);
        let entries = fs::read_dir(&dir).map_err(|e| CgroupError::io("listing", &dir, e))?;
        let name = |e: fs::DirEntry| e.file_name().into_string().ok();
        let dirs = entries.flatten().filter(|e| e.path().join("job").is_dir());
        Ok(dirs.filter_map(name).collect())
    }

    /// Whether a process is in a run's cgroup below this root, in any tree. One that has ended is in none.
    pub fn holds(&self, pid: i32) -> bool {
        let listed = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        kill::is_listed_below(&listed, &self.rel)
    }

    /// A cgroup for processes that are no job (a prolog, a probe), without limits: its directory relative to the mounts.
    pub(crate) fn make_plain(&self, name: &str) -> Result<PathBuf, CgroupError> {
        check_name(name)?;
        let rel = self.rel.join(name);
        self.make_leaf(&rel)?;
        Ok(rel)
    }

    pub(crate) fn remove_plain(&self, rel: &Path) -> Result<(), CgroupError> {
        for mount in self.trees.mounts() {
            remove_tree(&mount.join(rel), Duration::from_secs(2))?;
        }
        Ok(())
    }

    pub(crate) fn fence_dir_of(&self, rel: &Path) -> Result<PathBuf, CgroupError> {
        self.trees.at(rel).fence_dir()
    }

    /// A directory that will have child cgroups.
    pub(super) fn make_dir(&self, rel: &Path) -> Result<(), CgroupError> {
        self.make_leaf(rel)?;
        self.hand_down_controllers(rel)
    }

    /// A directory that will hold processes.
    pub(super) fn make_leaf(&self, rel: &Path) -> Result<(), CgroupError> {
        for mount in self.trees.mounts() {
            let dir = mount.join(rel);
            match fs::create_dir(&dir) {
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(CgroupError::io("making", &dir, e));
                }
                _ => {}
            }
        }
        if let Some(mount) = self.trees.v1_mount(Controller::Memory) {
            // Kernels before 5.11 account children separately unless told; later ones know only this mode. Runs inherit it.
            let _ = write_file(&mount.join(rel).join("memory.use_hierarchy"), "1");
        }
        self.fill_lists(&self.trees, rel)
    }

    /// As [`CgroupRoot::make_leaf`] in some of the trees; EEXIST where it is there already.
    pub(super) fn make_new(&self, trees: &Trees, rel: &Path) -> Result<(), CgroupError> {
        for mount in trees.mounts() {
            let dir = mount.join(rel);
            fs::create_dir(&dir).map_err(|e| CgroupError::io("making", &dir, e))?;
        }
        self.fill_lists(trees, rel)
    }

    /// What a new v1 cgroup needs before it may hold processes or children.
    pub(super) fn fill_lists(&self, trees: &Trees, rel: &Path) -> Result<(), CgroupError> {
        if let Some(mount) = trees.v1_mount(Controller::Cpuset) {
            let dir = mount.join(rel);
            if dir.is_dir() {
                fill_cpuset(&dir)?;
            }
        }
        Ok(())
    }

    pub(super) fn hand_down_controllers(&self, rel: &Path) -> Result<(), CgroupError> {
        let Some(mount) = &self.trees.v2 else {
            return Ok(());
        };
        // On hybrid the controllers are in the v1 trees.
        if self.trees.hierarchy() == Hierarchy::Hybrid {
            return Ok(());
        }
        let dir = mount.join(rel);
        let available = read_file(&dir.join("cgroup.controllers"))?;
        let enabled = read_file(&dir.join("cgroup.subtree_control"))?;
        let has = |list: &str, c: Controller| list.split_whitespace().any(|word| word == c.name());
        for controller in V2_CONTROLLERS {
            if has(&available, controller) && !has(&enabled, controller) {
                write_file(
                    &dir.join("cgroup.subtree_control"),
                    &format!("+{}", controller.name()),
                )?;
            }
        }
        Ok(())
    }

    /// A delegated cgroup must be free of processes before it hands controllers down. All in it are this service's own.
    fn enter_daemon_leaf(&self) -> Result<(), CgroupError> {
        let Some(mount) = self
            .trees
            .v2
            .as_ref()
            .filter(|_| self.rel.components().next().is_some())
        else {
            return Ok(());
        };
        let dir = mount.join(&self.rel);
        let leaf = dir.join(DAEMON_LEAF);
        for pid in kill::pids_in(&dir)? {
            match fs::create_dir(&leaf) {
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(CgroupError::io("making", &leaf, e));
                }
                _ => write_file(&leaf.join("cgroup.procs"), &pid.to_string())?,
            }
        }
        Ok(())
    }
}

/// Kills every process below the subtree `tag` in every tree and removes the subtree: what `gadm sandbox down` leaves
/// behind is nothing. Refuses when the caller itself is in it. A tag that does not exist is removed already.
pub fn remove_all(tag: &str) -> Result<(), CgroupError> {
    check_name(tag)?;
    let trees = Trees::detect()?;
    let mut rels = vec![PathBuf::from(tag)];
    if trees.hierarchy() == Hierarchy::V2 {
        let base = delegated_base()?;
        if base.components().next().is_some() {
            rels.push(base.join(tag));
        }
    }
    rels.iter().try_for_each(|rel| remove_subtree(&trees, rel))
}

fn remove_subtree(trees: &Trees, rel: &Path) -> Result<(), CgroupError> {
    if let Some(dir) = trees
        .mounts()
        .map(|m| m.join(rel))
        .find(|dir| holds_caller(dir))
    {
        return Err(CgroupError::Occupied { path: dir, pids: 1 });
    }
    kill::kill_tree(&trees.at(rel))?;
    kill::wait_empty(&trees.at(rel), Duration::from_secs(10))?;
    trees
        .mounts()
        .try_for_each(|mount| remove_tree(&mount.join(rel), Duration::from_secs(2)))
}

fn holds_caller(dir: &Path) -> bool {
    let own = std::process::id() as i32;
    kill::pids_below(dir).is_ok_and(|pids| pids.contains(&own))
}

fn parts(prefix: &str) -> Result<Vec<&str>, CgroupError> {
    let parts: Vec<&str> = prefix.split('/').collect();
    for part in &parts {
        check_name(part)?;
    }
    Ok(parts)
}

/// The v2 cgroup delegated to this service, or the mount point's own (an empty path).
fn delegated_base() -> Result<PathBuf, CgroupError> {
    let text = read_file(Path::new("/proc/self/cgroup"))?;
    let own = text
        .lines()
        .find_map(|line| line.strip_prefix("0::/"))
        .unwrap_or("");
    let Some(mount) = Trees::detect()?.v2 else {
        return Ok(PathBuf::new());
    };
    let own = Path::new(own);
    if own.components().any(|c| !matches!(c, Component::Normal(_))) {
        return Ok(PathBuf::new());
    }
    let parent = own
        .parent()
        .filter(|_| own.file_name().is_some_and(|n| n == DAEMON_LEAF));
    let candidates = [parent, Some(own)].into_iter().flatten();
    Ok(candidates
        .filter(|rel| rel.components().next().is_some())
        .find(|rel| is_delegated(&mount.join(rel)))
        .map(Path::to_owned)
        .unwrap_or_default())
}

/// systemd marks a cgroup it has delegated with an extended attribute (`trusted.` for root, `user.` for others).
fn is_delegated(dir: &Path) -> bool {
    let Ok(path) = c_path(dir) else {
        return false;
    };
    [c"trusted.delegate", c"user.delegate"].iter().any(|name| {
        let mut value = [0u8; 8];
        // SAFETY: both strings are NUL-terminated and the buffer's length is given.
        let n = unsafe {
            libc::getxattr(
                path.as_ptr(),
                name.as_ptr(),
                value.as_mut_ptr().cast(),
                value.len(),
            )
        };
        n == 1 && value[0] == b'1'
    })
}

/// A v1 cpuset without CPUs or memory nodes accepts no process, and children start without any.
fn fill_cpuset(dir: &Path) -> Result<(), CgroupError> {
    let Some(parent) = dir.parent() else {
        return Ok(());
    };
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let path = dir.join(file);
        if read_file(&path)?.trim().is_empty() {
            write_file(&path, read_file(&parent.join(file))?.trim())?;
        }
    }
    Ok(())
}
