//! The proof at node start that fences work here: a child in a fenced cgroup must be denied one device and given another.
//! Never leaves its cgroup behind.

use std::path::Path;
use std::time::Duration;

use super::{DeviceRule, FenceError, FenceRules, attach};
use crate::cgroup::{CgroupRoot, JoinFds};
use crate::process::{self, Exit};

/// /dev/full, which every machine has and no job needs.
const DENIED: (&std::ffi::CStr, DeviceRule) = (
    c"/dev/full",
    DeviceRule {
        major: 1,
        minor: Some(7),
    },
);
const GIVEN: &std::ffi::CStr = c"/dev/null";

// What the child found, as its exit code.
const CHILD_FENCED: i32 = 0;
const CHILD_NOT_JOINED: i32 = 10;
const CHILD_NOT_DENIED: i32 = 11;
const CHILD_DENIED_OTHERWISE: i32 = 12;
const CHILD_NOT_GIVEN: i32 = 13;

/// Proves that a fence below `root` denies what it should and nothing else. The error says what happened instead; a node
/// on which this fails must start no run.
pub fn self_test(root: &CgroupRoot) -> Result<(), FenceError> {
    let rel = root.make_plain(&format!("fence_probe_{}", std::process::id()))?;
    let result = probe(root, &rel);
    let removed = root.remove_plain(&rel);
    result?;
    Ok(removed?)
}

fn probe(root: &CgroupRoot, rel: &Path) -> Result<(), FenceError> {
    let rules = FenceRules {
        deny: vec![DENIED.1],
        ..FenceRules::default()
    };
    attach(&root.fence_dir_of(rel)?, &rules)?;
    let join = JoinFds::open(root.trees().mounts().map(|m| m.join(rel)))?;
    let code = run_child(&join)?;
    let (denied, given) = (DENIED.0.to_string_lossy(), GIVEN.to_string_lossy());
    let found = match code {
        Exit::Code(CHILD_FENCED) => return Ok(()),
        Exit::Code(CHILD_NOT_JOINED) => "the probe could not join its cgroup".to_owned(),
        Exit::Code(CHILD_NOT_DENIED) => {
            format!("{denied} was denied and could be opened all the same")
        }
        Exit::Code(CHILD_DENIED_OTHERWISE) => {
            format!("{denied} failed to open, but not with EPERM")
        }
        Exit::Code(CHILD_NOT_GIVEN) => format!("{given} was not denied and could not be opened"),
        other => format!("the probe ended with {other:?}"),
    };
    Err(FenceError::Probe(format!(
        "the probe in {} failed: {found}. No run can start here",
        rel.display()
    )))
}

fn run_child(join: &JoinFds) -> Result<Exit, FenceError> {
    // SAFETY: the child calls write, open and _exit only, all async-signal-safe.
    let pid = unsafe { libc::fork() };
    match pid {
        -1 => Err(FenceError::Probe(format!(
            "fork failed: {}",
            std::io::Error::last_os_error()
        ))),
        0 => {
            let code = child(join);
            // SAFETY: ends the child without running the parent's exit handlers.
            unsafe { libc::_exit(code) }
        }
        _ => wait(pid),
    }
}

/// Bounded, since a probe that hangs must not hang the daemon.
fn wait(pid: i32) -> Result<Exit, FenceError> {
    let failed = |e: std::io::Error| FenceError::Probe(format!("waiting for the probe: {e}"));
    for _ in 0..5000 {
        if let Some(exit) = process::try_reap(pid).map_err(failed)? {
            return Ok(exit);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    // SAFETY: a child of this process, not reaped yet, so the pid is still its own.
    unsafe { libc::kill(pid, libc::SIGKILL) };
    process::reap(pid).map_err(failed)
}

fn child(join: &JoinFds) -> i32 {
    if join.join().is_err() {
        return CHILD_NOT_JOINED;
    }
    // SAFETY: a static NUL-terminated path.
    let denied = unsafe { libc::open(DENIED.0.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    if denied >= 0 {
        return CHILD_NOT_DENIED;
    }
    if process::errno() != libc::EPERM {
        return CHILD_DENIED_OTHERWISE;
    }
    // SAFETY: a static NUL-terminated path.
    let given = unsafe { libc::open(GIVEN.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    if given < 0 {
        CHILD_NOT_GIVEN
    } else {
        CHILD_FENCED
    }
}
