//! Taking a sandbox down: jobs, daemons, cgroups, mounts, devices, sockets; only what carries its tag.

use super::daemon;
use super::layout::Sandbox;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const PROGRAMS: [&[u8]; 4] = [b"gpuctld", b"gpud", b"gstepd", b"gcheck"];
/// Time that killed processes have to be gone.
const LEFT_PATIENCE: Duration = Duration::from_secs(15);

/// Ends everything. Without `keep` the files below the directory go too. Safe to repeat: what cannot be
/// done is said, and the record stays until all is done.
pub fn down(sandbox: &Sandbox, keep: bool) -> anyhow::Result<()> {
    // The controller last, so that it hears of ends.
    for name in sandbox.daemons().collect::<Vec<_>>().into_iter().rev() {
        daemon::stop(sandbox, name)?;
    }
    if sandbox.record.isolated {
        gsys::cgroup::remove_all(&sandbox.cgroup_tag())?;
    }
    end_what_is_left(sandbox)?;
    unmount_below(&sandbox.dir)?;
    for name in &sandbox.record.nodes {
        remove_devices(&sandbox.home(name).join("dev"))?;
    }
    if sandbox.record.isolated {
        gsys::mount::unmount(&sandbox.run_dir())?;
    }
    remove_dir(&sandbox.run_dir())?;
    if !keep {
        for name in sandbox.daemons() {
            remove_dir(&sandbox.home(name))?;
        }
        remove_file(&sandbox.client_config())?;
    }
    remove_file(&sandbox.dir.join("sandbox.json"))?;
    // Only when nothing else is in it: the directory may be the user's.
    let _ = fs::remove_dir(&sandbox.dir);
    Ok(())
}

/// Kills supervisors outside of a cgroup (without root) and daemons without a noted pid, with all their descendants. They are
/// found by the sandbox's directory on their command lines.
fn end_what_is_left(sandbox: &Sandbox) -> anyhow::Result<()> {
    let deadline = Instant::now() + LEFT_PATIENCE;
    loop {
        let found = left(sandbox);
        if found.is_empty() {
            return Ok(());
        }
        if Instant::now() > deadline {
            let pids: Vec<String> = found.iter().map(i32::to_string).collect();
            anyhow::bail!(
                "processes {} do not end, though SIGKILL was sent. See what holds them in /proc/PID/stack",
                pids.join(", ")
            );
        }
        for pid in found {
            for child in descendants(pid) {
                let _ = kill(Pid::from_raw(child), Signal::SIGKILL);
            }
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Programs of ours that run and name the sandbox's directory. What has ended and was not yet waited for has no
/// command line.
fn left(sandbox: &Sandbox) -> Vec<i32> {
    let homes = sandbox.daemons().map(|name| {
        [
            sandbox.home(name).into_os_string().into_encoded_bytes(),
            vec![b'/'],
        ]
        .concat()
    });
    let homes: Vec<Vec<u8>> = homes.collect();
    pids()
        .filter(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let mut words = line.split(|byte| *byte == 0);
            let program = words.next().unwrap_or_default();
            let ours = PROGRAMS.contains(
                &program
                    .rsplit(|byte| *byte == b'/')
                    .next()
                    .unwrap_or_default(),
            );
            ours && words.any(|word| homes.iter().any(|home| word.starts_with(home)))
        })
        .collect()
}

fn descendants(of: i32) -> Vec<i32> {
    let parents: Vec<(i32, i32)> = pids().filter_map(|pid| Some((pid, parent(pid)?))).collect();
    let mut found = vec![of];
    let mut at = 0;
    while at < found.len() {
        let children = parents.iter().filter(|(_, parent)| *parent == found[at]);
        found.extend(children.map(|(pid, _)| *pid).collect::<Vec<_>>());
        at += 1;
    }
    found.split_off(1)
}

fn parent(pid: i32) -> Option<i32> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    text.rsplit_once(") ")?
        .1
        .split_whitespace()
        .nth(1)?
        .parse()
        .ok()
}

fn pids() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// Unmounts what is mounted below a directory, the deepest first.
fn unmount_below(dir: &Path) -> anyhow::Result<()> {
    let text = fs::read_to_string("/proc/self/mounts")?;
    let mut points: Vec<PathBuf> = text
        .lines()
        .filter_map(|line| line.split(' ').nth(1))
        .map(|point| PathBuf::from(point.replace("\\040", " ")))
        .filter(|point| point.starts_with(dir) && point != dir)
        .collect();
    points.sort();
    for point in points.iter().rev() {
        gsys::mount::unmount(point)?;
    }
    Ok(())
}

fn remove_devices(dir: &Path) -> anyhow::Result<()> {
    let Ok(entries) = fs::read_dir(dir) else {
        return Ok(());
    };
    for entry in entries {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => remove_devices(&entry.path())?,
            false => gsys::device_node::remove_char_device(&entry.path())?,
        }
    }
    Ok(())
}

fn remove_dir(dir: &Path) -> anyhow::Result<()> {
    absent_is_fine(gsys::removal::remove_tree(dir), dir)
}

fn remove_file(path: &Path) -> anyhow::Result<()> {
    absent_is_fine(fs::remove_file(path), path)
}

fn absent_is_fine(result: std::io::Result<()>, path: &Path) -> anyhow::Result<()> {
    match result {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            anyhow::bail!("cannot remove {}: {e}", path.display())
        }
        _ => Ok(()),
    }
}
