//! Kills, freezes and counts the processes of a cgroup, however these forked. `cgroup.kill` where the kernel has it
//! (5.14), else freeze, SIGKILL, thaw until nothing is left. Never signals a pid without holding it by a pidfd.

use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::error::CgroupError;
use super::file::{child_dirs, read_file, write_file};
use super::hierarchy::{CgroupPaths, Controller};
use super::usage::field;
use crate::process;

/// Rounds of SIGKILL without `cgroup.kill` go on for this long against a job that forks as fast as it can.
const KILL_ROUNDS: Duration = Duration::from_secs(5);
/// v1 has no event for an empty cgroup, and v2's may be missed by another reader's poll: look at least this often.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// SIGKILL to everything at and below `place` in every tree. A cgroup that is gone has nothing to kill.
pub(super) fn kill_tree(place: &CgroupPaths<'_>) -> Result<(), CgroupError> {
    let switch = place.v2().map(|dir| dir.join("cgroup.kill"));
    match switch.map(|path| write_file(&path, "1")) {
        Some(Ok(())) => {}
        Some(Err(e)) if !e.is_not_found() => return Err(e),
        _ => freeze(place, true)?,
    }
    let killed = kill_listed(place);
    // A kill leaves the frozen flag standing, and the next process to join would stop for ever.
    freeze(place, false)?;
    killed
}

/// Kills what `cgroup.procs` lists, again and again until nothing new turns up. After `cgroup.kill` this finds only
/// processes that sit in a v1 tree of the run and not in its v2 tree.
fn kill_listed(place: &CgroupPaths<'_>) -> Result<(), CgroupError> {
    let deadline = Instant::now() + KILL_ROUNDS;
    let mut signalled: Vec<i32> = Vec::new();
    loop {
        let mut fresh = false;
        for mount in place.trees().mounts() {
            for pid in pids_below(&place.dir(mount))? {
                if !signalled.contains(&pid) {
                    fresh |= signal_member(pid, place.rel(mount), libc::SIGKILL);
                    signalled.push(pid);
                }
            }
        }
        if !fresh || Instant::now() >= deadline {
            return Ok(());
        }
    }
}

/// One signal to every process below `dir`.
pub(super) fn signal_tree(dir: &Path, signal: i32) -> Result<(), CgroupError> {
    let Some(rel) = cgroup_suffix(dir) else {
        return Ok(());
    };
    for pid in pids_below(dir)? {
        signal_member(pid, &rel, signal);
    }
    Ok(())
}

/// Signals `pid` if it is still in the cgroup `rel`: the number may have been given to another process meanwhile.
fn signal_member(pid: i32, rel: &Path, signal: i32) -> bool {
    let Ok(pidfd) = process::pidfd_open(pid) else {
        return false;
    };
    let listed = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    is_listed_below(&listed, rel) && process::pidfd_signal(pidfd.as_fd(), signal).is_ok()
}

/// Whether a line of /proc/PID/cgroup has `rel` in its path.
pub(super) fn is_listed_below(listed: &str, rel: &Path) -> bool {
    let below = |line: &str| {
        line.splitn(3, ':')
            .nth(2)
            .is_some_and(|path| contains_path(Path::new(path), rel))
    };
    listed.lines().any(below)
}

/// Whether `rel` appears in `path` as whole components.
fn contains_path(path: &Path, rel: &Path) -> bool {
    path.ancestors().any(|ancestor| ancestor.ends_with(rel))
}

/// The last three components (tag or node, run, `job`): enough to recognise the cgroup in /proc/PID/cgroup.
fn cgroup_suffix(dir: &Path) -> Option<PathBuf> {
    let parts: Vec<_> = dir.components().collect();
    parts
        .len()
        .checked_sub(3)
        .map(|from| parts[from..].iter().collect())
}

/// Stops or lets run everything at and below `place`. Thawing reaches cgroups the job has nested and frozen itself.
pub(super) fn freeze(place: &CgroupPaths<'_>, frozen: bool) -> Result<(), CgroupError> {
    let (dir, file, value) = match (place.v2(), place.v1(Controller::Freezer)) {
        (Some(dir), _) => (dir, "cgroup.freeze", if frozen { "1" } else { "0" }),
        (None, Some(dir)) => (
            dir,
            "freezer.state",
            if frozen { "FROZEN" } else { "THAWED" },
        ),
        (None, None) => return Ok(()),
    };
    match write_file(&dir.join(file), value) {
        Err(e) if !e.is_not_found() => return Err(e),
        _ => {}
    }
    if !frozen {
        thaw_nested(&dir, file, value);
    }
    Ok(())
}

fn thaw_nested(dir: &Path, file: &str, value: &str) {
    for child in child_dirs(dir) {
        // A child that was removed meanwhile needs no thaw.
        let _ = write_file(&child.join(file), value);
        thaw_nested(&child, file, value);
    }
}

/// No live process at or below `place`, in any tree.
pub(super) fn is_empty(place: &CgroupPaths<'_>) -> Result<bool, CgroupError> {
    if let Some(dir) = place.v2() {
        match read_file(&dir.join("cgroup.events")) {
            Ok(events) if field(&events, "populated") != Some(0) => return Ok(false),
            Err(e) if !is_gone(&e) => return Err(e),
            _ => {}
        }
    }
    for tree in &place.trees().v1 {
        if !pids_below(&place.dir(&tree.mount))?.is_empty() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Waits for [`is_empty`]; false when `patience` ends first.
pub(super) fn wait_empty(place: &CgroupPaths<'_>, patience: Duration) -> Result<bool, CgroupError> {
    let deadline = Instant::now() + patience;
    let events = place
        .v2()
        .and_then(|dir| fs::File::open(dir.join("cgroup.events")).ok());
    loop {
        if is_empty(place)? {
            return Ok(true);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        let nap = left.min(LOOK_EVERY);
        match &events {
            Some(file) => {
                let mut fds = [PollFd::new(file.as_fd(), PollFlags::POLLPRI)];
                let millis = PollTimeout::try_from(nap).unwrap_or(PollTimeout::from(1u8));
                // An interrupted poll only means an earlier look.
                let _ = poll(&mut fds, millis);
            }
            None => std::thread::sleep(nap.min(Duration::from_millis(2))),
        }
    }
}

/// Pids listed at `dir` and below, the caller's own pid namespace only.
pub(super) fn pids_below(dir: &Path) -> Result<Vec<i32>, CgroupError> {
    let mut pids = pids_in(dir)?;
    for child in child_dirs(dir) {
        pids.extend(pids_below(&child)?);
    }
    Ok(pids)
}

/// Pids listed at `dir` itself; none when it is gone, or threaded (then its domain lists them).
pub(super) fn pids_in(dir: &Path) -> Result<Vec<i32>, CgroupError> {
    match read_file(&dir.join("cgroup.procs")) {
        Ok(text) => Ok(text
            .lines()
            .filter_map(|line| line.parse().ok())
            .filter(|pid| *pid > 0)
            .collect()),
        Err(e) if is_gone(&e) || e.errno() == Some(libc::EOPNOTSUPP) => Ok(Vec::new()),
        Err(e) => Err(e),
    }
}

/// ENOENT, or ENODEV from a file that was open when its cgroup was removed.
fn is_gone(e: &CgroupError) -> bool {
    matches!(e.errno(), Some(libc::ENOENT | libc::ENODEV))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_of_another_run_is_not_taken_for_a_member() {
        let rel = Path::new("gpupool/n1/run_1/job");
        assert!(contains_path(
            Path::new("/system.slice/x.service/gpupool/n1/run_1/job/nested"),
            rel
        ));
        assert!(contains_path(Path::new("/gpupool/n1/run_1/job"), rel));
        assert!(!contains_path(Path::new("/gpupool/n1/run_11/job"), rel));
        assert!(!contains_path(Path::new("/gpupool/n1/run_1/sup"), rel));
    }
}
