//! CPUs and memory nodes of a run's own, where the site wants that (`cpu_binding = "cpuset"`): near its GPUs, whole cores
//! first, never one on which another run runs. What runs have is read from their cgroups, so a restarted daemon knows it.
//!
//! Chooses nothing itself: `gsys::cpu` does. With `"weight"` CPUs are shared by weight, and this is not used.

use crate::site::Site;
use anyhow::{Context, Result, bail};
use gmodel::RunId;
use gmodel::launch_order::LaunchOrder;
use gsys::cgroup::{CgroupRoot, Controller, Limits, RunCgroup};
use gsys::cpu::{CpuShare, CpuTopology, CpuWish, list_text};
use gsys::nvml::GpuFacts;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Mutex;

/// The machine's CPUs as far as they are ours to give, and the turn to give them.
#[derive(Debug)]
pub struct CpuBinding {
    topology: CpuTopology,
    /// Runs are prepared by several threads: one at a time looks at what is free and takes it.
    turn: Mutex<()>,
}

/// What other runs have.
#[derive(Default)]
struct Held {
    taken: BTreeSet<u32>,
    /// By runs that stand still.
    frozen: BTreeSet<u32>,
    /// Bytes of each memory node that they may fill.
    promised: BTreeMap<u32, u64>,
}

impl CpuBinding {
    /// # Errors
    /// What this machine lacks: the controller, or the CPUs that the configuration declares.
    pub fn open(root: &CgroupRoot, system: &Path, declared: Option<u32>) -> Result<Self> {
        if !root.supports(Controller::Cpuset) {
            bail!("cpu_binding = \"cpuset\" needs the kernel's cpuset controller, which is not there ({})", root.hierarchy().name());
        }
        let (cpus, mems) = root.cpu_bounds()?;
        let topology = CpuTopology::read(system).with_context(|| format!("reading CPUs from {}", system.display()))?;
        let topology = topology.within(&cpus, &mems);
        let here = topology.len();
        if let Some(declared) = declared.filter(|declared| *declared as usize > here) {
            bail!("cpu_binding = \"cpuset\" with cpus = {declared}: this machine has {here} to give. Leave cpus away, or set cpu_binding = \"weight\"");
        }
        Ok(Self { topology, turn: Mutex::default() })
    }

    pub fn topology(&self) -> &CpuTopology {
        &self.topology
    }

    /// Makes the run's cgroup with `limits` and a set of CPUs that no other run has.
    ///
    /// # Errors
    /// Too few CPUs are free, with the numbers; or the cgroup cannot be made.
    pub fn create(&self, site: &Site, root: &CgroupRoot, name: &str, wish: &CpuWish, mut limits: Limits) -> Result<(RunCgroup, CpuShare)> {
        let _turn = self.turn.lock().expect("no holder panics");
        let Held { taken, frozen, promised } = self.held_by_others(site, root, name)?;
        // A run that stands still lends its CPUs, where there are no others: the controller counts them as free.
        let all = taken.union(&frozen).copied().collect();
        let chosen = self.topology.choose(wish, &all, &promised).or_else(|| self.topology.choose(wish, &taken, &promised));
        let Some(share) = chosen else {
            let free = self.topology.len().saturating_sub(taken.len());
            bail!("{} CPUs of its own are wanted, and {free} of {} are free", wish.cpus, self.topology.len());
        };
        limits.cpu_set = Some(share.cpus.clone());
        limits.mem_set.clone_from(&share.mems);
        Ok((RunCgroup::create(root, name, &limits)?, share))
    }

    /// CPUs of the other runs here, and the bytes of each memory node that these may fill.
    fn held_by_others(&self, site: &Site, root: &CgroupRoot, own: &str) -> Result<Held> {
        let mut held = Held::default();
        for name in root.runs()?.into_iter().filter(|name| name != own) {
            let look = RunCgroup::open(root, &name).and_then(|cgroup| Ok((cgroup.cpu_set()?.unwrap_or_default(), cgroup.is_frozen()?)));
            let (cpus, frozen) = match look {
                Ok(found) => found,
                // It was removed just now.
                Err(e) if e.is_not_found() => continue,
                Err(e) => return Err(e.into()),
            };
            let run = name.strip_prefix("run_").and_then(|run| run.parse::<RunId>().ok());
            let order = run.and_then(|run| site.spool.order(run).ok());
            let nodes: BTreeSet<u32> = self.topology.nodes_of(&cpus);
            for node in &nodes {
                let bytes = order.as_ref().map_or(0, |order| order.mem_bytes) / nodes.len() as u64;
                *held.promised.entry(*node).or_default() += bytes;
            }
            if frozen { held.frozen.extend(cpus) } else { held.taken.extend(cpus) }
        }
        Ok(held)
    }
}

/// What the order asks of the CPUs.
pub fn wish<'a>(order: &LaunchOrder, gpus: impl Iterator<Item = &'a GpuFacts>) -> CpuWish {
    CpuWish { cpus: order.cpus.max(1), mem_bytes: order.mem_bytes, near: gpus.filter_map(|gpu| gpu.numa_node).collect() }
}

/// For the run's log.
pub fn words(share: &CpuShare) -> String {
    match share.mems.is_empty() {
        true => format!("CPUs {}", list_text(&share.cpus)),
        false => format!("CPUs {}, memory of NUMA node {}", list_text(&share.cpus), list_text(&share.mems)),
    }
}
