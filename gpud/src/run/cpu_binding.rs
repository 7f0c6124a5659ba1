//! CPUs and memory nodes of a run's own, where the site wants that (`cpu_binding = "cpuset"`): near its GPUs, whole cores
//! first, never a CPU of another run. The CPUs of runs are read from the cgroups, so that a restarted daemon knows them.
//!
//! Chooses nothing itself: `gsys::cpu` does. With `"weight"` CPUs are shared by weight, and this is not used.

use crate::spool::Spool;
use anyhow::{Context, Result, bail};
use gmodel::RunId;
use gmodel::launch_order::LaunchOrder;
use gsys::cgroup::{CgroupRoot, Controller, Limits, RunCgroup};
use gsys::cpu::{CpuShare, CpuTopology, CpuWish, list_text};
use gsys::nvml::GpuFacts;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Mutex;

/// The CPUs of the machine that runs may get, and the lock for choosing CPUs.
#[derive(Debug)]
pub struct CpuBinding {
    topology: CpuTopology,
    /// Runs are prepared by several threads: one at a time looks at what is free and takes it.
    turn: Mutex<()>,
}

/// The CPUs and memory of the other runs.
#[derive(Default)]
struct HeldCpus {
    taken: BTreeSet<u32>,
    /// CPUs of suspended runs.
    frozen: BTreeSet<u32>,
    /// Bytes of each memory node that the other runs may fill.
    promised: BTreeMap<u32, u64>,
}

impl CpuBinding {
    /// # Errors
    /// What this machine lacks: the controller, or the CPUs that the configuration declares.
    pub fn open(root: &CgroupRoot, system: &Path, declared: Option<u32>) -> Result<Self> {
        if !root.supports(Controller::Cpuset) {
            bail!(
                "cpu_binding = \"cpuset\" needs the kernel's cpuset controller, which is not there ({})",
                root.hierarchy().name()
            );
        }
        let (cpus, mems) = root.cpu_bounds()?;
        let topology = CpuTopology::read(system)
            .with_context(|| format!("reading CPUs from {}", system.display()))?;
        let topology = topology.within(&cpus, &mems);
        let here = topology.len();
        if let Some(declared) = declared.filter(|declared| *declared as usize > here) {
            bail!(
                "cpu_binding = \"cpuset\" with cpus = {declared}: this machine has {here} to give. Leave cpus away, or set cpu_binding = \"weight\""
            );
        }
        Ok(Self {
            topology,
            turn: Mutex::default(),
        })
    }

    pub fn topology(&self) -> &CpuTopology {
        &self.topology
    }

    /// Makes the run's cgroup with `limits` and a set of CPUs that no other run has.
    ///
    /// # Errors
    /// Too few CPUs are free, with the numbers; or the cgroup cannot be made.
    pub fn create(
        &self,
        spool: &Spool,
        root: &CgroupRoot,
        name: &str,
        wish: &CpuWish,
        mut limits: Limits,
    ) -> Result<(RunCgroup, CpuShare)> {
        let _turn = self.turn.lock().expect("no holder panics");
        let held = self.held_by_others(root, name, &|run| mem_bytes(spool, run))?;
        let Some(share) = self.choose(wish, &held) else {
            let free = self.topology.len().saturating_sub(held.taken.len());
            bail!(
                "{} CPUs of its own are wanted, and {free} of {} are free",
                wish.cpus,
                self.topology.len()
            );
        };
        limits.cpu_set = Some(share.cpus.clone());
        limits.mem_set.clone_from(&share.mems);
        Ok((RunCgroup::create(root, name, &limits)?, share))
    }

    /// Before a suspended run resumes: where another run has taken CPUs of it meanwhile, the run gets free CPUs instead. Its memory stays
    /// in place. The new set; `None` where it is unchanged.
    ///
    /// # Errors
    /// Too few CPUs are free: it keeps what it has, and shares it.
    pub fn choose_again(
        &self,
        spool: &Spool,
        root: &CgroupRoot,
        name: &str,
        wish: &CpuWish,
    ) -> Result<Option<Vec<u32>>> {
        self.choose_beside(root, name, wish, &|run| mem_bytes(spool, run))
    }

    fn choose_beside(
        &self,
        root: &CgroupRoot,
        name: &str,
        wish: &CpuWish,
        mem_bytes: &dyn Fn(RunId) -> u64,
    ) -> Result<Option<Vec<u32>>> {
        let _turn = self.turn.lock().expect("no holder panics");
        let cgroup = RunCgroup::open(root, name)?;
        let own = cgroup.cpu_set()?.unwrap_or_default();
        let held = self.held_by_others(root, name, mem_bytes)?;
        let shared = own.iter().filter(|cpu| held.taken.contains(cpu)).count();
        if shared == 0 {
            return Ok(None);
        }
        let Some(share) = self.choose(wish, &held) else {
            bail!(
                "{shared} of its CPUs {} are used by another run, and too few others are free: they share them",
                list_text(&own)
            );
        };
        cgroup.set_limits(&Limits {
            cpu_set: Some(share.cpus.clone()),
            ..Limits::default()
        })?;
        Ok(Some(share.cpus))
    }

    /// Prefers CPUs of no run; a suspended run lends its CPUs where no others are free, as the controller counts on.
    fn choose(
        &self,
        wish: &CpuWish,
        HeldCpus {
            taken,
            frozen,
            promised,
        }: &HeldCpus,
    ) -> Option<CpuShare> {
        let all = taken.union(frozen).copied().collect();
        self.topology
            .choose(wish, &all, promised)
            .or_else(|| self.topology.choose(wish, taken, promised))
    }

    /// CPUs of the other runs here, and the bytes of each memory node that these may fill.
    fn held_by_others(
        &self,
        root: &CgroupRoot,
        own: &str,
        mem_bytes: &dyn Fn(RunId) -> u64,
    ) -> Result<HeldCpus> {
        let mut held = HeldCpus::default();
        for name in root.runs()?.into_iter().filter(|name| name != own) {
            let look = RunCgroup::open(root, &name).and_then(|cgroup| {
                Ok((cgroup.cpu_set()?.unwrap_or_default(), cgroup.is_frozen()?))
            });
            let (cpus, frozen) = match look {
                Ok(found) => found,
                // It was removed just now.
                Err(e) if e.is_not_found() => continue,
                Err(e) => return Err(e.into()),
            };
            let run = name
                .strip_prefix("run_")
                .and_then(|run| run.parse::<RunId>().ok());
            let bytes = run.map_or(0, mem_bytes);
            let nodes: BTreeSet<u32> = self.topology.nodes_of(&cpus);
            for node in &nodes {
                *held.promised.entry(*node).or_default() += bytes / nodes.len() as u64;
            }
            if frozen {
                held.frozen.extend(cpus)
            } else {
                held.taken.extend(cpus)
            }
        }
        Ok(held)
    }
}

/// What a run may fill; nothing, where its order cannot be read.
fn mem_bytes(spool: &Spool, run: RunId) -> u64 {
    spool.order(run).map_or(0, |order| order.mem_bytes)
}

/// What the order asks of the CPUs.
pub fn wish<'a>(order: &LaunchOrder, gpus: impl Iterator<Item = &'a GpuFacts>) -> CpuWish {
    CpuWish {
        cpus: order.cpus.max(1),
        mem_bytes: order.mem_bytes,
        near: gpus.filter_map(|gpu| gpu.numa_node).collect(),
    }
}

/// For the run's log.
pub fn words(share: &CpuShare) -> String {
    match share.mems.is_empty() {
        true => format!("CPUs {}", list_text(&share.cpus)),
        false => format!(
            "CPUs {}, memory of NUMA node {}",
            list_text(&share.cpus),
            list_text(&share.mems)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two CPUs of a machine that is described in a folder, and cgroups of runs.
    struct Machine {
        root: CgroupRoot,
        binding: CpuBinding,
        dir: std::path::PathBuf,
    }

    impl Machine {
        fn new(tag: &str) -> Option<Self> {
            if !gsys::user::is_root() {
                eprintln!("NOT RUN: a cpuset takes root");
                return None;
            }
            let dir = std::env::temp_dir().join(format!("gpud-cpus-{tag}-{}", std::process::id()));
            let write = |path: &str, text: &str| {
                let path = dir.join(path);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, text).unwrap();
            };
            write("cpu/online", "0-1");
            write("node/online", "0");
            write("node/node0/cpulist", "0-1");
            write("node/node0/meminfo", "Node 0 MemTotal: 268435456 kB\n");
            write("node/node0/distance", "10");
            (0..2).for_each(|cpu| {
                write(
                    &format!("cpu/cpu{cpu}/topology/thread_siblings_list"),
                    &cpu.to_string(),
                )
            });
            let root = CgroupRoot::open(&format!("{tag}{}", std::process::id())).unwrap();
            let Ok(binding) = CpuBinding::open(&root, &dir, Some(2)) else {
                eprintln!("NOT RUN: this machine has no two CPUs to give");
                return None;
            };
            Some(Self { root, binding, dir })
        }

        fn run(&self, name: &str, cpus: &[u32]) -> RunCgroup {
            RunCgroup::create(
                &self.root,
                name,
                &Limits {
                    cpu_set: Some(cpus.to_vec()),
                    mem_set: vec![0],
                    ..Limits::default()
                },
            )
            .unwrap()
        }

        fn end(self) {
            self.root.remove_all().unwrap();
            std::fs::remove_dir_all(&self.dir).unwrap();
        }

        fn goes_on(&self, name: &str) -> Result<Option<Vec<u32>>> {
            let wish = CpuWish {
                cpus: 1,
                mem_bytes: 0,
                near: Vec::new(),
            };
            self.binding.choose_beside(&self.root, name, &wish, &|_| 0)
        }
    }

    #[test]
    fn a_run_that_goes_on_gets_other_cpus_for_those_that_another_runs_on_meanwhile() {
        let Some(machine) = Machine::new("again") else {
            return;
        };
        let (lender, borrower) = (machine.run("run_1-1", &[0]), machine.run("run_2-1", &[0]));
        assert_eq!(machine.goes_on("run_1-1").unwrap(), Some(vec![1]));
        assert_eq!(
            (lender.cpu_set().unwrap(), borrower.cpu_set().unwrap()),
            (Some(vec![1]), Some(vec![0]))
        );
        assert_eq!(
            machine.goes_on("run_1-1").unwrap(),
            None,
            "now they are its own"
        );
        // A third has the other: there is none left, and it says so and keeps what it has.
        let third = machine.run("run_3-1", &[1]);
        let why = machine.goes_on("run_1-1").unwrap_err().to_string();
        assert_eq!(
            why,
            "1 of its CPUs 1 are used by another run, and too few others are free: they share them"
        );
        assert_eq!(lender.cpu_set().unwrap(), Some(vec![1]));
        [lender, borrower, third]
            .into_iter()
            .for_each(|run| run.remove().unwrap());
        machine.end();
    }
}
