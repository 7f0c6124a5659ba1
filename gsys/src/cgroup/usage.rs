//! What a job has used, read from whichever tree counts it. CPU time comes from the v2 tree's `cpu.stat` also on hybrid,
//! since it needs no controller; memory and OOM kills come from the memory controller. Never samples by itself.

use std::path::Path;

use super::error::CgroupError;
use super::file::{child_dirs, read_file};
use super::hierarchy::{CgroupPaths, Controller, Hierarchy};

/// Use since the cgroup was made, over all its past and present processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub cpu_user_micros: u64,
    pub cpu_system_micros: u64,
    /// The most memory that was charged at a time; what is charged now on v2 kernels before 5.19, which keep no peak.
    pub memory_peak_bytes: u64,
    /// Processes the kernel killed because the job was out of memory.
    pub oom_kills: u64,
}

/// Reads the use of the cgroup. What no controller counts is 0.
pub(super) fn read(place: &CgroupPaths<'_>) -> Result<Usage, CgroupError> {
    let mut usage = Usage::default();
    read_cpu(place, &mut usage)?;
    match (place.trees().hierarchy(), place.v2()) {
        (Hierarchy::V2, Some(dir)) => read_memory_v2(&dir, &mut usage)?,
        _ => {
            if let Some(dir) = place.v1(Controller::Memory) {
                read_memory_v1(&dir, &mut usage)?;
            }
        }
    }
    Ok(usage)
}

fn read_cpu(place: &CgroupPaths<'_>, usage: &mut Usage) -> Result<(), CgroupError> {
    if let Some(dir) = place.v2() {
        let stat = read_file(&dir.join("cpu.stat"))?;
        usage.cpu_user_micros = field(&stat, "user_usec").unwrap_or(0);
        usage.cpu_system_micros = field(&stat, "system_usec").unwrap_or(0);
    } else if let Some(dir) = place.v1(Controller::Cpuacct) {
        usage.cpu_user_micros = number(&dir.join("cpuacct.usage_user"))? / 1000;
        usage.cpu_system_micros = number(&dir.join("cpuacct.usage_sys"))? / 1000;
    }
    Ok(())
}

fn read_memory_v2(dir: &Path, usage: &mut Usage) -> Result<(), CgroupError> {
    let peak = match absent_is_none(number(&dir.join("memory.peak")))? {
        None => absent_is_none(number(&dir.join("memory.current")))?,
        peak => peak,
    };
    let Some(peak) = peak else { return Ok(()) };
    usage.memory_peak_bytes = peak;
    usage.oom_kills = field(&read_file(&dir.join("memory.events"))?, "oom_kill").unwrap_or(0);
    Ok(())
}

fn read_memory_v1(dir: &Path, usage: &mut Usage) -> Result<(), CgroupError> {
    usage.memory_peak_bytes = number(&dir.join("memory.max_usage_in_bytes"))?;
    usage.oom_kills = oom_kills_v1(dir)?;
    Ok(())
}

/// v1 charges memory by so much at a time; a cgroup at its limit is that near to it at least.
const CHARGE_BYTES: u64 = 64 * 4096;

/// Whether the processes of a cgroup came to its own limit, not only to one above it. v2 counts the kernel's calls for a victim
/// where the limit was reached. v1 does not say (`failcnt` stays 0 on recent kernels), so there the peak has to do.
pub(super) fn limit_reached(place: &CgroupPaths<'_>) -> Result<bool, CgroupError> {
    match (
        place.trees().hierarchy(),
        place.v2(),
        place.v1(Controller::Memory),
    ) {
        (Hierarchy::V2, Some(dir), _) => {
            let events = absent_is_none(read_file(&dir.join("memory.events")))?;
            Ok(events
                .and_then(|events| field(&events, "oom"))
                .is_some_and(|times| times > 0))
        }
        (_, _, Some(dir)) => {
            let [peak, limit] = ["memory.max_usage_in_bytes", "memory.limit_in_bytes"]
                .map(|file| number(&dir.join(file)));
            Ok(peak?.saturating_add(CHARGE_BYTES) > limit?)
        }
        _ => Ok(false),
    }
}

/// v1 counts a kill only in the victim's own cgroup, so nested ones are added up.
fn oom_kills_v1(dir: &Path) -> Result<u64, CgroupError> {
    let own = absent_is_none(read_file(&dir.join("memory.oom_control")))?.unwrap_or_default();
    let mut kills = field(&own, "oom_kill").unwrap_or(0);
    for child in child_dirs(dir) {
        kills += oom_kills_v1(&child)?;
    }
    Ok(kills)
}

fn number(path: &Path) -> Result<u64, CgroupError> {
    let text = read_file(path)?;
    text.trim().parse().map_err(|_| CgroupError::Unreadable {
        path: path.to_owned(),
        text,
    })
}

/// The value of `key` in a file of `key value` lines.
pub(super) fn field(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        line.strip_prefix(key)?
            .strip_prefix(' ')?
            .trim()
            .parse()
            .ok()
    })
}

fn absent_is_none<T>(read: Result<T, CgroupError>) -> Result<Option<T>, CgroupError> {
    match read {
        Err(e) if e.is_not_found() => Ok(None),
        other => other.map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_begins_like_another_is_not_taken_for_it() {
        let events = "low 0\nhigh 0\nmax 4\noom 3\noom_kill 2\noom_group_kill 7\n";
        assert_eq!(field(events, "oom"), Some(3));
        assert_eq!(field(events, "oom_kill"), Some(2));
        assert_eq!(field(events, "oom_k"), None);
    }
}
