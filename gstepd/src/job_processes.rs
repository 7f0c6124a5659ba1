//! The processes of a job as one thing to signal, kill and measure: the run's cgroup, or without isolation everything that
//! descends from the supervisor, which is the sub-reaper of all of it. Never decides when.
//!
//! Logins that gpud moved into the cgroup descend from sshd: they are measured and killed with the job, and are told of its end. Other
//! signals are not for them, and no end waits for them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::Path;

use anyhow::Context;
use gmodel::run::Usage;
use gmodel::supervise::RunSetup;
use gsys::cgroup::{JoinFds, RunCgroup};
use gsys::process;
use nix::libc::{SIGCONT, SIGKILL, SIGSTOP, SIGTERM};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::wait::{Id, WaitPidFlag, waitid};

/// Without a cgroup a kill is a race with fork: so many rounds at once, and the supervisor comes back each second.
const KILL_ROUNDS: usize = 50;
/// Processes that are held by descriptors at a time.
const SIGNAL_BATCH: usize = 256;

pub enum JobProcesses {
    Cgroup(RunCgroup),
    /// `isolation = "none"`: the supervisor is an ordinary user's process.
    Descendants,
}

impl JobProcesses {
    /// The cgroup that gpud made, below the tag's subtree; an empty tag is no isolation.
    pub fn open(setup: &RunSetup) -> anyhow::Result<JobProcesses> {
        if setup.cgroup_tag.is_empty() {
            return Ok(JobProcesses::Descendants);
        }
        let rel = Path::new(&setup.cgroup_tag).join(&setup.cgroup_name);
        let cgroup = RunCgroup::open_rel(&rel)
            .with_context(|| format!("cgroup {} of the run", rel.display()))?;
        Ok(JobProcesses::Cgroup(cgroup))
    }

    /// For the child to join before it becomes the user.
    pub fn join_fds(&self) -> anyhow::Result<Option<JoinFds>> {
        match self {
            JobProcesses::Cgroup(cgroup) => Ok(Some(cgroup.join_fds()?)),
            JobProcesses::Descendants => Ok(None),
        }
    }

    /// Ready for POLLPRI when the last process has gone, where the kernel says so.
    pub fn events_file(&self) -> Option<File> {
        match self {
            JobProcesses::Cgroup(cgroup) => cgroup.events_file().ok().flatten(),
            JobProcesses::Descendants => None,
        }
    }

    /// One signal to every process of the job itself but `except`.
    pub fn signal(&self, signal: i32, except: Option<i32>) -> anyhow::Result<()> {
        let pids = self
            .own_pids()?
            .into_iter()
            .filter(|pid| Some(*pid) != except)
            .collect();
        self.signal_members(pids, signal)
    }

    /// A request by signal: to the processes that have a handler for it. Where none has, to those that block it, to read it
    /// from a signalfd; where none does, to all. `spare`, the shell of a script, gets it only if it has a handler: it would
    /// die of it. (Shells block signals for moments, so that alone says little.)
    pub fn ask(&self, signal: i32, spare: Option<i32>) -> anyhow::Result<()> {
        let looked: Vec<(i32, String)> = self
            .own_pids()?
            .into_iter()
            .map(|pid| (pid, status_of(pid)))
            .collect();
        let having = |mask: &str| -> Vec<i32> {
            looked
                .iter()
                .filter(|(_, status)| has_signal(status, mask, signal))
                .map(|(pid, _)| *pid)
                .collect()
        };
        let unspared = |pids: Vec<i32>| -> Vec<i32> {
            pids.into_iter().filter(|pid| Some(*pid) != spare).collect()
        };
        let all = looked.iter().map(|(pid, _)| *pid).collect();
        let tiers = [
            having("SigCgt:"),
            unspared(having("SigBlk:")),
            unspared(all),
        ];
        let asked = tiers
            .into_iter()
            .find(|pids| !pids.is_empty())
            .unwrap_or_default();
        self.signal_members(asked, signal)
    }

    /// One signal to the processes of one session: a step's task and what it started, unless that made a session of its
    /// own.
    pub fn signal_session(&self, session: i32, signal: i32) -> anyhow::Result<()> {
        let is_in_session = |pid: &i32| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat_fields(&stat).is_some_and(|fields| fields.session == session)
        };
        self.signal_members(
            self.pids()?.into_iter().filter(is_in_session).collect(),
            signal,
        )
    }

    /// Stops all of it where it stands, or lets it go on. Without a cgroup by signals that a process can see.
    pub fn freeze(&self, frozen: bool) -> anyhow::Result<()> {
        match self {
            JobProcesses::Cgroup(cgroup) => Ok(cgroup.freeze(frozen)?),
            JobProcesses::Descendants => self.signal(if frozen { SIGSTOP } else { SIGCONT }, None),
        }
    }

    /// SIGTERM to all, to `first` before the others, so that `first` does not react to the end of another process. A frozen or stopped
    /// process is woken to receive it.
    pub fn terminate(&self, first: Option<i32>) -> anyhow::Result<()> {
        if let Some(first) = first {
            self.signal_members(vec![first], SIGTERM)?;
        }
        let others = self.pids()?.into_iter().filter(|pid| Some(*pid) != first);
        self.signal_members(others.collect(), SIGTERM)?;
        self.signal_members(self.pids()?, SIGCONT)?;
        match self {
            JobProcesses::Cgroup(cgroup) => Ok(cgroup.freeze(false)?),
            JobProcesses::Descendants => Ok(()),
        }
    }

    /// Whether SIGTERM ends this process, or finds it ended: it has no handler for it, and neither blocks nor ignores it. If it then
    /// ends with an exit code of its own it had come to its end before the signal.
    pub fn dies_of_term(pid: i32) -> bool {
        let status = status_of(pid);
        !status.is_empty()
            && ["SigCgt:", "SigBlk:", "SigIgn:"]
                .iter()
                .all(|mask| !has_signal(&status, mask, SIGTERM))
    }

    /// SIGKILL to all processes of the job, however forked. True when there was none, as with most jobs.
    pub fn kill(&self) -> anyhow::Result<bool> {
        if self.is_empty()? {
            return Ok(true);
        }
        match self {
            JobProcesses::Cgroup(cgroup) => cgroup.kill()?,
            JobProcesses::Descendants => self.kill_descendants()?,
        }
        Ok(false)
    }

    pub fn is_empty(&self) -> anyhow::Result<bool> {
        match self {
            JobProcesses::Cgroup(cgroup) => Ok(cgroup.is_empty()?),
            JobProcesses::Descendants => Ok(JobProcesses::own_are_over()),
        }
    }

    /// Whether all that is left, if anything, are logins: a sub-reaper without a child has no descendant either, since orphans would
    /// have come to it.
    pub fn own_are_over() -> bool {
        let look = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        waitid(Id::All, look) == Err(nix::Error::ECHILD)
    }

    /// The process is the only one of the job itself.
    pub fn is_alone(&self, pid: i32) -> anyhow::Result<bool> {
        Ok(self.own_pids()?.iter().all(|other| *other == pid))
    }

    fn kill_descendants(&self) -> anyhow::Result<()> {
        let mut killed = BTreeSet::new();
        for _ in 0..KILL_ROUNDS {
            let fresh: Vec<i32> = descendants()
                .into_iter()
                .filter(|pid| killed.insert(*pid))
                .collect();
            if fresh.is_empty() {
                break;
            }
            self.signal_members(fresh, SIGKILL)?;
        }
        Ok(())
    }

    /// What all processes of the job, past and present, have used.
    pub fn usage(&self) -> anyhow::Result<Usage> {
        let JobProcesses::Cgroup(cgroup) = self else {
            return reaped_usage();
        };
        let usage = cgroup.usage()?;
        Ok(Usage {
            cpu_user_micros: usage.cpu_user_micros,
            cpu_system_micros: usage.cpu_system_micros,
            peak_memory_bytes: usage.memory_peak_bytes,
            oom_kills: usage.oom_kills,
            ..Usage::default()
        })
    }

    /// Whether the kills in [`JobProcesses::usage`] include those of steps without a cgroup any more.
    pub fn counts_kills_of_ended_steps(&self) -> bool {
        matches!(self, JobProcesses::Cgroup(cgroup) if cgroup.counts_kills_of_removed_steps())
    }

    fn pids(&self) -> anyhow::Result<Vec<i32>> {
        match self {
            JobProcesses::Cgroup(cgroup) => Ok(cgroup.job_pids()?),
            JobProcesses::Descendants => Ok(descendants()),
        }
    }

    /// Without logins.
    fn own_pids(&self) -> anyhow::Result<Vec<i32>> {
        let mut pids = self.pids()?;
        if matches!(self, JobProcesses::Cgroup(_)) {
            let own: BTreeSet<i32> = descendants().into_iter().collect();
            pids.retain(|pid| own.contains(pid));
        }
        Ok(pids)
    }

    /// Each is held by a pidfd and then looked up again, since a number may have gone to a stranger. In batches, so that
    /// neither descriptors nor look-ups grow with the square of a job.
    fn signal_members(&self, pids: Vec<i32>, signal: i32) -> anyhow::Result<()> {
        for batch in pids.chunks(SIGNAL_BATCH) {
            let open = |pid: &i32| process::pidfd_open(*pid).ok().map(|pidfd| (*pid, pidfd));
            let held: Vec<_> = batch.iter().filter_map(open).collect();
            let members: BTreeSet<i32> = self.pids()?.into_iter().collect();
            for (_, pidfd) in held.iter().filter(|(pid, _)| members.contains(pid)) {
                // ESRCH: it ended by itself.
                let _ = process::pidfd_signal(pidfd.as_fd(), signal);
            }
        }
        Ok(())
    }
}

/// What the reaped children used, and what those had reaped. The peak is that of the largest single process.
fn reaped_usage() -> anyhow::Result<Usage> {
    let used = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let micros = |secs: i64, micros: i64| (secs * 1_000_000 + micros).max(0) as u64;
    Ok(Usage {
        cpu_user_micros: micros(used.user_time().tv_sec(), used.user_time().tv_usec()),
        cpu_system_micros: micros(used.system_time().tv_sec(), used.system_time().tv_usec()),
        peak_memory_bytes: used.max_rss().max(0) as u64 * 1024,
        oom_kills: 0,
        ..Usage::default()
    })
}

/// Live processes below the caller, from /proc. Zombies are left out: those need reaping, not killing.
fn descendants() -> Vec<i32> {
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    let mut live = BTreeMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<i32>().ok())
        else {
            continue;
        };
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else {
            continue;
        };
        if let Some(fields) = stat_fields(&stat) {
            children.entry(fields.parent).or_default().push(pid);
            live.insert(pid, !matches!(fields.state, 'Z' | 'X'));
        }
    }
    let mut found = Vec::new();
    let mut open = vec![std::process::id() as i32];
    while let Some(pid) = open.pop() {
        for child in children.remove(&pid).unwrap_or_default() {
            open.push(child);
            if live.get(&child) == Some(&true) {
                found.push(child);
            }
        }
    }
    found
}

fn status_of(pid: i32) -> String {
    fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default()
}

/// Whether a mask of /proc/PID/status (`SigCgt:`, `SigBlk:`) has the signal.
fn has_signal(status: &str, mask: &str, signal: i32) -> bool {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(mask))
        .unwrap_or_default();
    let bits = u64::from_str_radix(line.trim(), 16).unwrap_or(0);
    bits & (1 << (signal - 1).clamp(0, 63)) != 0
}

struct StatFields {
    state: char,
    parent: i32,
    session: i32,
}

/// Third, fourth and sixth field of /proc/PID/stat. The second is the program's name in brackets and may hold anything.
fn stat_fields(stat: &str) -> Option<StatFields> {
    let fields: Vec<&str> = stat
        .rsplit_once(')')?
        .1
        .split_ascii_whitespace()
        .take(4)
        .collect();
    let [state, parent, _group, session] = fields[..] else {
        return None;
    };
    Some(StatFields {
        state: state.chars().next()?,
        parent: parent.parse().ok()?,
        session: session.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_handles_a_signal_is_known_by_its_masks() {
        let status = "Name:\tx\nSigBlk:\t0000000000000800\nSigIgn:\t0000000000001000\nSigCgt:\t0000000000000200\n";
        assert!(has_signal(status, "SigCgt:", 10) && has_signal(status, "SigBlk:", 12));
        assert!(
            !has_signal(status, "SigCgt:", 12)
                && !has_signal(status, "SigCgt:", 13)
                && !has_signal("", "SigCgt:", 10)
        );
    }

    #[test]
    fn a_process_that_sigterm_ends_is_known() {
        use std::process::Command;
        let mut plain = Command::new("sleep").arg("100").spawn().unwrap();
        let mut deaf = Command::new("sh")
            .args(["-c", "trap '' TERM; exec sleep 100"])
            .spawn()
            .unwrap();
        let pid = |child: &std::process::Child| child.id() as i32;
        let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while fs::read_to_string(format!("/proc/{}/comm", pid(&deaf))).unwrap() != "sleep\n"
            && std::time::Instant::now() < until
        {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert!(JobProcesses::dies_of_term(pid(&plain)) && !JobProcesses::dies_of_term(pid(&deaf)));
        for child in [&mut plain, &mut deaf] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert!(
            !JobProcesses::dies_of_term(pid(&plain)),
            "nothing is known of what was reaped"
        );
    }

    #[test]
    fn a_program_cannot_hide_behind_its_name() {
        let fields = stat_fields("12 (a) R 1 (b) S 34 35 36 0\n").unwrap();
        assert_eq!((fields.state, fields.parent, fields.session), ('S', 34, 36));
        assert!(stat_fields("12 (x) R 7").is_none() && stat_fields("nonsense").is_none());
    }
}
