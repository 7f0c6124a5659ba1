//! Taking a run off this node: its processes, cgroups, mounts and directories; the epilog in between. Nothing here may be
//! left half done and called done: a run is clean when this returned well, and its share is free only then.

use crate::clock::wall_clock;
use crate::gpu::{imex, scrub, share};
use crate::hook::{epilog, prolog};
use crate::run::supervisor::{self, SupervisorAddress};
use crate::site::Site;
use crate::spool::file::{remove_dir, remove_file};
use anyhow::{Context, Result, bail};
use gmodel::RunId;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// For processes that were killed to be gone. A process in an uninterruptible wait can take longer; cleaning is then tried again.
const GONE_PATIENCE: Duration = Duration::from_secs(10);

/// Cleans up after a run that ended. Blocking and safe to repeat. `process`: its supervisor, where known.
pub fn clean(site: &Site, run: RunId, process: Option<&OwnedFd>) -> Result<()> {
    match process {
        Some(process) => supervisor::see_off(process),
        None => SupervisorAddress::of(&site.spool, run).dismiss(),
    }
    // Begun by a daemon before this one, for a run that was stopped meanwhile.
    prolog::finish(site, run);
    // Nearly always the run has left nothing, and the kernel removes its cgroups at once. An epilog may still read the cgroups.
    let has_epilog = site
        .spool
        .order(run)
        .is_ok_and(|order| !order.epilog.is_empty());
    let cgroup = site
        .cgroup_of(run)?
        .filter(|cgroup| has_epilog || !cgroup.remove_left());
    if let Some(cgroup) = &cgroup
        && !cgroup.is_empty()?
    {
        cgroup.kill()?;
        if !cgroup.wait_empty(GONE_PATIENCE)? {
            let text = hung_words(cgroup.job_pids()?);
            site.note_hung(run, Some(text.clone()));
            bail!(text);
        }
    }
    site.note_hung(run, None);
    remove_private_dirs(site, run)?;
    remove_dir(&site.spool.boxes_dir(run))?;
    for said in share::leave(site, run) {
        site.spool.log(run, wall_clock(), &said);
    }
    leave_gpus_clean(site, run);
    epilog::run(site, run);
    imex::remove(site, run)?;
    if let Some(cgroup) = &cgroup {
        // The end is on record: a supervisor that still is there has nothing left to do.
        cgroup
            .remove_with_supervisor(GONE_PATIENCE)
            .context("removing the run's cgroups")?;
    }
    // Left by a supervisor that was killed.
    remove_file(&site.spool.script(run))?;
    for ending in ["script", "sock", "nodes"] {
        remove_file(&site.config.marks_dir().join(format!("{run}.{ending}")))?;
    }
    SupervisorAddress::of(&site.spool, run).remove_sockets()?;
    site.spool.mark_clean(run)
}

/// The first few processes, and where in the kernel each hangs.
fn hung_words(mut pids: Vec<i32>) -> String {
    const MOST_NAMED: usize = 4;
    pids.sort_unstable();
    let mut words: Vec<String> = pids
        .iter()
        .take(MOST_NAMED)
        .map(|pid| gsys::process::whereabouts(*pid))
        .collect();
    if pids.len() > MOST_NAMED {
        words.push(format!("{} more", pids.len() - MOST_NAMED));
    }
    format!(
        "SIGKILL was sent and these processes do not end: {}; the run keeps its share of the node until they do",
        words.join(", ")
    )
}

/// Kills what a run without supervisor left, before its end is put on record. Blocking.
pub fn kill_orphans(site: &Site, run: RunId) -> Result<()> {
    if let Some(cgroup) = site.cgroup_of(run)? {
        cgroup.kill()?;
        cgroup.wait_empty(GONE_PATIENCE)?;
    }
    Ok(())
}

/// Follows no link of a user and needs no recursion: the mount goes as a whole, the rest by `remove_tree`.
fn remove_private_dirs(site: &Site, run: RunId) -> Result<()> {
    let parent = site.spool.private_dir(run);
    if parent.exists() {
        gsys::mount::unmount(&parent.join("shm"))?;
        remove_dir(&parent)?;
    }
    Ok(())
}

/// Only a GPU that is clean is given out again; the others stay out by themselves, and the run's share is free all the same.
fn leave_gpus_clean(site: &Site, run: RunId) {
    let (Some(watch), Ok(Some(setup))) = (&site.gpu_watch, site.spool.setup(run)) else {
        return;
    };
    let gpus = setup.gpus.iter().map(|gpu| gpu.uuid.clone()).collect();
    // A GPU with shares of other runs is left out: those runs go on.
    let gpus = share::only_its_own(site, run, gpus);
    if !gpus.is_empty() {
        let seen = watch.leave_clean(run, &gpus, &site.gpus);
        site.spool.log(run, wall_clock(), &seen);
        if site.spool.order(run).is_ok_and(|order| order.scrub_gpus) {
            site.spool
                .log(run, wall_clock(), &scrub::after_run(site, run, &gpus));
        }
    }
}
