//! Audits the fences of live runs, twice a minute, against the rules in the run's directory. A changed fence ends its run; nothing is
//! repaired, since devices may have been opened meanwhile.

use crate::clock::wall_clock;
use crate::input::DaemonInput;
use crate::site::Site;
use crate::spool::file::write_aside;
use crate::spool::run_log::log_line;
use anyhow::{Context, Result};
use gmodel::RunId;
use gsys::device_fence::{DeviceRule, FenceRules, audit_run};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// Audits for ever, and tells the daemon which runs have to end.
pub async fn keep(site: Arc<Site>, daemon: mpsc::Sender<DaemonInput>) {
    let every = Duration::from_secs(u64::from(site.config.fence_audit_secs));
    while site.cgroups.is_some() && !daemon.is_closed() {
        tokio::time::sleep(every).await;
        let site = Arc::clone(&site);
        let audited = tokio::task::spawn_blocking(move || broken(&site, &site.spool.live())).await;
        let runs = audited.unwrap_or_default();
        if !runs.is_empty()
            && daemon
                .send(DaemonInput::FencesBroken { runs })
                .await
                .is_err()
        {
            return;
        }
    }
}

/// `fence.json` of a run: device rules as (major, minor or all).
#[derive(Serialize, Deserialize)]
struct StoredRules {
    allow: Vec<(u32, Option<u32>)>,
    deny: Vec<(u32, Option<u32>)>,
    default_deny: bool,
}

/// Keeps the rules of a run: the GPUs of the node may change while it lives, and its fence must not.
pub fn remember(run_dir: &Path, rules: &FenceRules) -> Result<()> {
    let plain = |rules: &[DeviceRule]| rules.iter().map(|rule| (rule.major, rule.minor)).collect();
    let kept = StoredRules {
        allow: plain(&rules.allow),
        deny: plain(&rules.deny),
        default_deny: rules.default_deny,
    };
    write_aside(&run_dir.join("fence.json"), &serde_json::to_vec(&kept)?)
        .context("keeping the fence's rules")
}

fn remembered(run_dir: &Path) -> Result<FenceRules> {
    let text = std::fs::read(run_dir.join("fence.json")).context("reading the fence's rules")?;
    let kept: StoredRules = serde_json::from_slice(&text).context("reading the fence's rules")?;
    let rules = |plain: Vec<(u32, Option<u32>)>| {
        plain
            .into_iter()
            .map(|(major, minor)| DeviceRule { major, minor })
            .collect()
    };
    Ok(FenceRules {
        allow: rules(kept.allow),
        deny: rules(kept.deny),
        default_deny: kept.default_deny,
    })
}

/// The runs with a changed fence, marked as such in the spool: to be stopped. Blocking.
fn broken(site: &Site, live: &[RunId]) -> Vec<RunId> {
    live.iter()
        .copied()
        .filter(|run| is_broken(site, *run))
        .collect()
}

fn is_broken(site: &Site, run: RunId) -> bool {
    let dir = site.spool.run_dir(run);
    let looked = || -> Result<()> {
        let Some(cgroup) = site.cgroup_of(run)? else {
            return Ok(());
        };
        audit_run(&cgroup, &remembered(&dir)?)?;
        Ok(())
    };
    let Err(e) = looked() else { return false };
    // The run may have ended during the audit.
    if dir.join("exit.json").exists() {
        return false;
    }
    let text = format!("{e:#}");
    tracing::error!(%run, "{text}");
    log_line(&dir, wall_clock(), &text);
    match site.spool.mark_fence_broken(run, &text) {
        Ok(()) => true,
        Err(e) => {
            tracing::error!(%run, "{e:#}");
            false
        }
    }
}
