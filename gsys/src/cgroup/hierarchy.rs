//! Which cgroup trees this machine has mounted, read from /proc/self/mountinfo. Hybrid means v1 controllers plus a
//! v2 tree that carries no controller and still gives `cgroup.kill`, `cgroup.events`, `cpu.stat` and device programs.
//! Never guesses from one well-known path: a hybrid node mounts the v2 tree anywhere.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::error::CgroupError;
use super::file::read_file;

/// The four shapes a Linux machine comes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hierarchy {
    /// Only v1 trees.
    V1,
    /// One v2 tree with the controllers.
    V2,
    /// v1 trees hold the controllers; a v2 tree is mounted beside them.
    Hybrid,
    /// No cgroup tree is mounted.
    None,
}

impl Hierarchy {
    /// Reads /proc/self/mountinfo.
    pub fn detect() -> Result<Hierarchy, CgroupError> {
        Ok(Trees::detect()?.hierarchy())
    }

    /// The word for status output: `v1`, `v2`, `hybrid`, `none`.
    pub fn name(self) -> &'static str {
        match self {
            Hierarchy::V1 => "v1",
            Hierarchy::V2 => "v2",
            Hierarchy::Hybrid => "hybrid",
            Hierarchy::None => "none",
        }
    }
}

/// The controllers this crate writes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Controller {
    Cpu,
    Cpuacct,
    Cpuset,
    Memory,
    Pids,
    Freezer,
    Devices,
}

impl Controller {
    pub(super) const ALL: [Controller; 7] = [
        Controller::Cpu,
        Controller::Cpuacct,
        Controller::Cpuset,
        Controller::Memory,
        Controller::Pids,
        Controller::Freezer,
        Controller::Devices,
    ];

    /// The kernel's name of it.
    pub fn name(self) -> &'static str {
        match self {
            Controller::Cpu => "cpu",
            Controller::Cpuacct => "cpuacct",
            Controller::Cpuset => "cpuset",
            Controller::Memory => "memory",
            Controller::Pids => "pids",
            Controller::Freezer => "freezer",
            Controller::Devices => "devices",
        }
    }
}

/// One mounted v1 tree and its controllers (`cpu,cpuacct` are often mounted together).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct V1Tree {
    pub controllers: Vec<Controller>,
    pub mount: PathBuf,
}

/// The trees in use: each controller once, and the v2 tree where there is one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trees {
    pub v1: Vec<V1Tree>,
    pub v2: Option<PathBuf>,
}

impl Trees {
    /// Reads /proc/self/mountinfo, once in a process: a node's cgroup trees are mounted when it boots.
    pub fn detect() -> Result<Trees, CgroupError> {
        static DETECTED: OnceLock<Trees> = OnceLock::new();
        if let Some(trees) = DETECTED.get() {
            return Ok(trees.clone());
        }
        let trees = Trees::mounted()?;
        // On hybrid the v2 tree does killing, freezing and devices; the v1 trees for those are left alone.
        let trees = match trees.hierarchy() {
            Hierarchy::None => return Ok(trees),
            Hierarchy::Hybrid => trees.without(&[Controller::Freezer, Controller::Devices]),
            Hierarchy::V1 | Hierarchy::V2 => trees,
        };
        Ok(DETECTED.get_or_init(|| trees).clone())
    }

    /// The v1 trees alone, as if no v2 tree were mounted: how a hybrid machine tests the code of pure v1.
    pub fn detect_v1_alone() -> Result<Trees, CgroupError> {
        Ok(Trees {
            v2: None,
            ..Trees::mounted()?
        })
    }

    pub fn hierarchy(&self) -> Hierarchy {
        match (self.v1.is_empty(), &self.v2) {
            (true, None) => Hierarchy::None,
            (true, Some(_)) => Hierarchy::V2,
            (false, None) => Hierarchy::V1,
            (false, Some(_)) => Hierarchy::Hybrid,
        }
    }

    /// Mount point of the v1 tree that holds `controller`.
    pub fn v1_mount(&self, controller: Controller) -> Option<&Path> {
        self.v1
            .iter()
            .find(|t| t.controllers.contains(&controller))
            .map(|t| t.mount.as_path())
    }

    /// Every tree's mount point, v1 first: a task enters the v2 tree last, so that the kill list there is never
    /// ahead of the limits.
    pub fn mounts(&self) -> impl Iterator<Item = &Path> {
        self.v1
            .iter()
            .map(|t| t.mount.as_path())
            .chain(self.v2.as_deref())
    }

    /// The trees in which a run needs cgroups, with or without processors of its own: each costs some tens of microseconds to make and to remove.
    /// CPU time is read from the v2 tree where there is one.
    pub(super) fn for_run(&self, has_cpu_set: bool) -> Trees {
        let needed = |controller: &Controller| match controller {
            Controller::Cpuset => has_cpu_set,
            Controller::Cpuacct => self.v2.is_none(),
            _ => true,
        };
        self.keeping(|tree| tree.controllers.iter().any(needed))
    }

    /// The trees in which the directory exists, and the v2 tree.
    pub(super) fn holding(&self, rel: &Path) -> Trees {
        self.keeping(|tree| tree.mount.join(rel).is_dir())
    }

    /// Where processes are counted and supervisors sit: v2 where there is one, else the freezer's v1 tree or the first.
    pub(super) fn main_mount(&self) -> Option<&Path> {
        let v1 = || {
            self.v1_mount(Controller::Freezer)
                .or(self.v1.first().map(|tree| tree.mount.as_path()))
        };
        self.v2.as_deref().or_else(v1)
    }

    /// The trees in which a step has a cgroup of its own: where memory and CPU time are counted and processes are killed.
    pub(super) fn for_step(&self) -> Trees {
        let main = self.main_mount();
        let needed = |controller: &Controller| match controller {
            Controller::Memory => true,
            Controller::Cpuacct => self.v2.is_none(),
            _ => false,
        };
        self.keeping(|tree| {
            Some(tree.mount.as_path()) == main || tree.controllers.iter().any(needed)
        })
    }

    /// The directory in the tree in which processes are counted.
    pub(super) fn main_dir(&self, rel: &Path) -> PathBuf {
        match self.main_mount() {
            Some(mount) => mount.join(rel),
            None => rel.to_owned(),
        }
    }

    /// The cgroup of that path in every tree.
    pub(super) fn at(&self, rel: &Path) -> CgroupPaths<'_> {
        CgroupPaths {
            trees: self,
            main: rel.to_owned(),
            others: rel.to_owned(),
        }
    }

    /// The job of the run with that path: beside its supervisor in the main tree, the run's own cgroup in the others.
    pub(super) fn job_of(&self, run: &Path) -> CgroupPaths<'_> {
        CgroupPaths {
            trees: self,
            main: run.join("job"),
            others: run.to_owned(),
        }
    }

    /// A step of that run: below its job.
    pub(super) fn step_of(&self, run: &Path, step: &str) -> CgroupPaths<'_> {
        CgroupPaths {
            trees: self,
            main: run.join("job").join(step),
            others: run.join(step),
        }
    }

    fn keeping(&self, keep: impl Fn(&V1Tree) -> bool) -> Trees {
        Trees {
            v1: self.v1.iter().filter(|tree| keep(tree)).cloned().collect(),
            v2: self.v2.clone(),
        }
    }

    fn mounted() -> Result<Trees, CgroupError> {
        let path = Path::new("/proc/self/mountinfo");
        Ok(Trees::parse(&read_file(path)?))
    }

    fn parse(mountinfo: &str) -> Trees {
        let mut trees = Trees::default();
        for line in mountinfo.lines() {
            let Some((left, right)) = line.split_once(" - ") else {
                continue;
            };
            let Some(mount) = left.split(' ').nth(4).map(unescape) else {
                continue;
            };
            let mut fields = right.split(' ');
            let (kind, options) = (fields.next().unwrap_or(""), fields.nth(1).unwrap_or(""));
            match kind {
                "cgroup2" if trees.v2.is_none() => trees.v2 = Some(mount),
                "cgroup" => {
                    let controllers: Vec<Controller> = Controller::ALL
                        .into_iter()
                        .filter(|c| options.split(',').any(|o| o == c.name()))
                        .filter(|c| trees.v1_mount(*c).is_none())
                        .collect();
                    if !controllers.is_empty() {
                        trees.v1.push(V1Tree { controllers, mount });
                    }
                }
                _ => {}
            }
        }
        trees
    }

    fn without(mut self, unwanted: &[Controller]) -> Trees {
        for tree in &mut self.v1 {
            tree.controllers.retain(|c| !unwanted.contains(c));
        }
        self.v1.retain(|t| !t.controllers.is_empty());
        self
    }
}

/// One cgroup in every tree; its path may be another in the main one.
pub(super) struct CgroupPaths<'a> {
    trees: &'a Trees,
    main: PathBuf,
    others: PathBuf,
}

impl CgroupPaths<'_> {
    pub fn trees(&self) -> &Trees {
        self.trees
    }

    /// Its path below this mount point.
    pub fn rel(&self, mount: &Path) -> &Path {
        if self.trees.main_mount() == Some(mount) {
            &self.main
        } else {
            &self.others
        }
    }

    pub fn dir(&self, mount: &Path) -> PathBuf {
        mount.join(self.rel(mount))
    }

    /// Its directories, in the order of [`Trees::mounts`].
    pub fn dirs(&self) -> impl Iterator<Item = PathBuf> {
        self.trees.mounts().map(|mount| self.dir(mount))
    }

    /// In the v2 tree, where there is one.
    pub fn v2(&self) -> Option<PathBuf> {
        self.trees.v2.as_deref().map(|mount| self.dir(mount))
    }

    /// The directory to which a device fence is attached: in the v2 tree, else in the v1 devices tree.
    pub fn fence_dir(&self) -> Result<PathBuf, CgroupError> {
        self.v2()
            .or_else(|| self.v1(Controller::Devices))
            .ok_or_else(|| CgroupError::NoController {
                limit: "device",
                controller: "devices",
                why: "neither a v2 tree nor a v1 devices tree is mounted".into(),
            })
    }

    /// In the v1 tree of this controller.
    pub fn v1(&self, controller: Controller) -> Option<PathBuf> {
        self.trees.v1_mount(controller).map(|mount| self.dir(mount))
    }
}

/// Octal escapes of mountinfo (`\040` is a space).
pub(crate) fn unescape(field: &str) -> PathBuf {
    let mut out = String::with_capacity(field.len());
    let mut rest = field;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        match rest
            .get(at + 1..at + 4)
            .and_then(|octal| u8::from_str_radix(octal, 8).ok())
        {
            Some(byte) => {
                out.push(byte as char);
                rest = &rest[at + 4..];
            }
            None => {
                out.push('\\');
                rest = &rest[at + 1..];
            }
        }
    }
    out.push_str(rest);
    PathBuf::from(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(mount: &str, kind: &str, options: &str) -> String {
        format!("31 25 0:26 / {mount} rw,relatime shared:9 - {kind} {kind} {options}\n")
    }

    #[test]
    fn pure_v2_is_one_tree() {
        let trees = Trees::parse(&line("/sys/fs/cgroup", "cgroup2", "rw,nsdelegate"));
        assert_eq!(trees.hierarchy(), Hierarchy::V2);
        assert_eq!(trees.v2.as_deref(), Some(Path::new("/sys/fs/cgroup")));
    }

    #[test]
    fn hybrid_is_found_wherever_the_v2_tree_is_mounted() {
        let text = line("/sys/fs/cgroup/cpu,cpuacct", "cgroup", "rw,cpu,cpuacct")
            + &line("/sys/fs/cgroup/memory", "cgroup", "rw,memory")
            + &line("/sys/fs/cgroup/systemd", "cgroup", "rw,xattr,name=systemd")
            + &line("/run/my\\040cgroup2", "cgroup2", "rw");
        let trees = Trees::parse(&text);
        assert_eq!(trees.hierarchy(), Hierarchy::Hybrid);
        assert_eq!(
            trees.v1.len(),
            2,
            "the named systemd tree holds no controller"
        );
        assert_eq!(
            trees.v1_mount(Controller::Cpuacct),
            Some(Path::new("/sys/fs/cgroup/cpu,cpuacct"))
        );
        assert_eq!(trees.v2.as_deref(), Some(Path::new("/run/my cgroup2")));
    }

    #[test]
    fn a_controller_mounted_twice_is_used_once() {
        let text = line("/a", "cgroup", "rw,memory") + &line("/b", "cgroup", "rw,memory");
        let trees = Trees::parse(&text);
        assert_eq!(trees.hierarchy(), Hierarchy::V1);
        assert_eq!(
            trees.v1,
            [V1Tree {
                controllers: vec![Controller::Memory],
                mount: "/a".into()
            }]
        );
    }

    #[test]
    fn nothing_mounted_is_none() {
        assert_eq!(
            Trees::parse(&line("/tmp", "tmpfs", "rw")).hierarchy(),
            Hierarchy::None
        );
    }
}
