//! Taking a run off this node: its processes, cgroups, mounts and directories; the epilog in between. Nothing here may be
//! left half done and called done: a run is clean when this returned well, and its share is free only then.

use crate::daemon::wall_clock;
use crate::gpu_scrub;
use crate::gpu_share;
use crate::hook::{self, Kind};
use crate::imex;
use crate::site::Site;
use crate::spool::{remove_dir, remove_file};
use crate::step;
use anyhow::{Context, Result, bail};
use gmodel::RunId;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// For processes that were killed to be gone; one in an uninterruptible wait can take longer, then we come back.
const GONE_PATIENCE: Duration = Duration::from_secs(10);

/// Cleans up after a run that ended. Blocking and safe to repeat. `supervisor`: its process, when we know it.
pub fn clean(site: &Site, run: RunId, supervisor: Option<&OwnedFd>) -> Result<()> {
    match supervisor {
        Some(supervisor) => step::see_off(supervisor),
        None => step::Place::of(&site.spool, run).dismiss(),
    }
    // Begun by a daemon before this one, for a run that was stopped meanwhile.
    hook::finish(site, run, Kind::Prolog);
    // Nearly always the run has left nothing, and then the kernel lets its cgroups go. An epilog may want to look at them.
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
    for said in gpu_share::leave(site, run) {
        site.spool.log(run, wall_clock(), &said);
    }
    leave_gpus_clean(site, run);
    epilog(site, run);
    imex::remove(site, run)?;
    if let Some(cgroup) = &cgroup {
        // The end is on record: a supervisor that still is there has nothing left to do.
        cgroup
            .remove_with_supervisor(GONE_PATIENCE)
            .context("removing the run's cgroups")?;
    }
    // Left by a supervisor that was killed.
    remove_file(&site.spool.script(run))?;
    for ending in ["script", "sock"] {
        remove_file(&site.config.marks_dir().join(format!("{run}.{ending}")))?;
    }
    step::Place::of(&site.spool, run).remove_sockets()?;
    site.spool.mark_clean(run)
}

/// The first of them with where they hang.
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

/// Never follows a link a user made, nor needs a stack as deep as their directories: the mount goes as a whole, the rest by `remove_tree`.
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
    // On those that others have shares of, its processes are gone and theirs go on.
    let gpus = gpu_share::only_its_own(site, run, gpus);
    if !gpus.is_empty() {
        let seen = watch.leave_clean(run, &gpus, &site.gpus);
        site.spool.log(run, wall_clock(), &seen);
        if site.spool.order(run).is_ok_and(|order| order.scrub_gpus) {
            site.spool
                .log(run, wall_clock(), &gpu_scrub::after_run(site, run, &gpus));
        }
    }
}

/// Only where the run came as far as its prolog. A failing epilog is logged; the share is free all the same.
fn epilog(site: &Site, run: RunId) {
    let (Ok(order), Ok(Some(setup))) = (site.spool.order(run), site.spool.setup(run)) else {
        return;
    };
    if order.epilog.is_empty() {
        return;
    }
    if let Err(e) = hook::run(site, run, Kind::Epilog, &order, &setup) {
        site.spool.log(run, wall_clock(), &format!("{e:#}"));
    }
}
