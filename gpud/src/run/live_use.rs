//! The current use of a run, read from its cgroups and those of its steps on request. Keeps nothing, decides nothing.

use crate::site::{Site, cgroup_name};
use anyhow::{Context, Result};
use gmodel::RunId;
use gmodel::run::{RunUse, Usage};
use gsys::cgroup::{self, RunCgroup};

/// Blocking.
pub fn read(site: &Site, run: RunId) -> Result<RunUse> {
    let root = site
        .cgroups
        .as_ref()
        .context("without isolation nothing is measured before the end")?;
    let cgroup = RunCgroup::open(root, &cgroup_name(run))?;
    let number = |name: &str| name.strip_prefix("step_")?.parse().ok();
    let steps = cgroup
        .steps()
        .into_iter()
        .filter_map(|(name, used)| Some((number(&name)?, usage_of(&used))))
        .collect();
    Ok(RunUse {
        all: usage_of(&cgroup.usage()?),
        steps,
    })
}

fn usage_of(used: &cgroup::Usage) -> Usage {
    Usage {
        cpu_user_micros: used.cpu_user_micros,
        cpu_system_micros: used.cpu_system_micros,
        peak_memory_bytes: used.memory_peak_bytes,
        oom_kills: used.oom_kills,
        ..Usage::default()
    }
}
