//! The limits of a run, written to whichever tree has the controller. Memory, pids and cpuset go to `job`; the CPU weight
//! goes to the run's directory, because it is runs that compete. Never adjusts a limit to fit: what cannot be set is an error.

use std::path::{Path, PathBuf};

use super::error::CgroupError;
use super::file::{read_file, write_file};
use super::hierarchy::{CgroupPaths, Controller, Hierarchy, Trees};
use crate::cpu::{list_text, parse_list};

/// Limits of a run; `None` is unlimited at creation and unchanged on an update.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Hard limit of memory; swap counts into it (v1 memsw) or is denied (v2), where the kernel accounts swap.
    pub memory_bytes: Option<u64>,
    /// CPU numbers the job may run on.
    pub cpu_set: Option<Vec<u32>>,
    /// Memory nodes its memory may be on; with `cpu_set` only. Empty: all.
    pub mem_set: Vec<u32>,
    /// Share of CPU time under contention, in thousandths of a CPU: what the run was allocated.
    pub cpu_millis: Option<u64>,
    /// Most processes and threads at once.
    pub pids_max: Option<u64>,
}

/// Writes `limits` for the run in the directory `run_rel`.
pub(super) fn write(trees: &Trees, run_rel: &Path, limits: &Limits) -> Result<(), CgroupError> {
    let (run, job) = (trees.at(run_rel), trees.job_of(run_rel));
    let v2 = trees.hierarchy() == Hierarchy::V2;
    if let Some(bytes) = limits.memory_bytes {
        write_memory(&job, bytes)?;
    }
    if let Some(pids) = limits.pids_max {
        let dir = dir_of(&job, Controller::Pids, "pids")?;
        write_file(&dir.join("pids.max"), &pids.to_string())?;
    }
    if let Some(cpus) = &limits.cpu_set {
        let dir = dir_of(&job, Controller::Cpuset, "cpuset")?;
        write_file(&dir.join("cpuset.cpus"), &list_text(cpus))?;
        if !limits.mem_set.is_empty() {
            write_file(&dir.join("cpuset.mems"), &list_text(&limits.mem_set))?;
        }
    }
    if let Some(millis) = limits.cpu_millis {
        let dir = dir_of(&run, Controller::Cpu, "cpu weight")?;
        match v2 {
            true => write_file(&dir.join("cpu.weight"), &weight_v2(millis).to_string())?,
            false => write_file(&dir.join("cpu.shares"), &shares_v1(millis).to_string())?,
        }
    }
    Ok(())
}

fn dir_of(
    place: &CgroupPaths<'_>,
    controller: Controller,
    limit: &'static str,
) -> Result<PathBuf, CgroupError> {
    let hierarchy = place.trees().hierarchy();
    let v2 = place.v2().filter(|_| hierarchy == Hierarchy::V2);
    v2.or_else(|| place.v1(controller))
        .ok_or_else(|| CgroupError::NoController {
            limit,
            controller: controller.name(),
            why: format!("hierarchy {}", hierarchy.name()),
        })
}

/// What all processes at and below `place` may have together.
pub(super) fn write_memory(place: &CgroupPaths<'_>, bytes: u64) -> Result<(), CgroupError> {
    let dir = dir_of(place, Controller::Memory, "memory")?;
    match place.trees().hierarchy() {
        Hierarchy::V2 => write_memory_v2(&dir, bytes),
        _ => write_memory_v1(&dir, bytes),
    }
}

fn write_memory_v2(dir: &Path, bytes: u64) -> Result<(), CgroupError> {
    write_file(&dir.join("memory.max"), &bytes.to_string())?;
    unless_absent(write_file(&dir.join("memory.swap.max"), "0"))
}

/// memsw may never be below the limit, so the order depends on the direction of the change.
fn write_memory_v1(dir: &Path, bytes: u64) -> Result<(), CgroupError> {
    let (limit, memsw) = (
        dir.join("memory.limit_in_bytes"),
        dir.join("memory.memsw.limit_in_bytes"),
    );
    let value = bytes.to_string();
    match write_file(&limit, &value) {
        Err(e) if e.errno() == Some(libc::EINVAL) => {
            unless_absent(write_file(&memsw, &value))?;
            write_file(&limit, &value)
        }
        Err(e) => Err(e),
        Ok(()) => unless_absent(write_file(&memsw, &value)),
    }
}

/// Swap files exist only where the kernel accounts swap.
fn unless_absent(written: Result<(), CgroupError>) -> Result<(), CgroupError> {
    match written {
        Err(e) if e.is_not_found() => Ok(()),
        other => other,
    }
}

/// 1024 is one CPU; the kernel takes 2 to 262144.
fn shares_v1(cpu_millis: u64) -> u64 {
    (cpu_millis.saturating_mul(1024) / 1000).clamp(2, 262_144)
}

/// 10 is one CPU, so that a thousand CPUs still fit into the kernel's 1 to 10000.
fn weight_v2(cpu_millis: u64) -> u64 {
    (cpu_millis / 100).clamp(1, 10_000)
}

/// The processors that a run was given; `None` where it has no set of its own.
pub(super) fn cpu_set(trees: &Trees, run_rel: &Path) -> Result<Option<Vec<u32>>, CgroupError> {
    let Ok(dir) = dir_of(&trees.job_of(run_rel), Controller::Cpuset, "cpuset") else {
        return Ok(None);
    };
    match read_file(&dir.join("cpuset.cpus")) {
        Ok(text) => Ok(Some(parse_list(&text)).filter(|cpus| !cpus.is_empty())),
        Err(e) if e.is_not_found() => Ok(None),
        Err(e) => Err(e),
    }
}

/// Processors and memory nodes that the subtree may use.
pub(super) fn bounds(trees: &Trees, rel: &Path) -> Result<(Vec<u32>, Vec<u32>), CgroupError> {
    let dir = dir_of(&trees.at(rel), Controller::Cpuset, "cpuset")?;
    let names = match trees.hierarchy() {
        Hierarchy::V2 => ["cpuset.cpus.effective", "cpuset.mems.effective"],
        _ => ["cpuset.effective_cpus", "cpuset.effective_mems"],
    };
    let [cpus, mems] = names.map(|name| read_file(&dir.join(name)).map(|text| parse_list(&text)));
    Ok((cpus?, mems?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_keep_the_proportion_of_the_allocations() {
        assert_eq!(shares_v1(1000), 1024);
        assert_eq!(shares_v1(64_000), 65_536);
        assert_eq!(shares_v1(1), 2);
        assert_eq!(shares_v1(u64::MAX), 262_144);
        assert_eq!(weight_v2(1000), 10);
        assert_eq!(weight_v2(256_000), 2560);
        assert_eq!(weight_v2(1), 1);
    }
}
