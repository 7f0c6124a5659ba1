//! One `nvidia-cuda-mps-control` daemon: started, given its limits, watched, ended. Knows nothing of runs. The daemon runs as root and
//! obeys root only; the server that it starts runs as the user of the shares.
//! Source: NVIDIA's manual of CUDA MPS.

use crate::spool::file::remove_dir;
use anyhow::{Context, Result, bail, ensure};
use gsys::cgroup::{CgroupRoot, Limits, RunCgroup};
use gsys::device_fence::{self, FenceRules};
use gsys::launch::{Identity, LaunchSpec, OpenMode, Stdio, launch};
use gsys::process::Exit;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// For the program to be done: it starts in well under a second, and what it is told takes less.
const PATIENCE: Duration = Duration::from_secs(10);
/// For processes that were killed to be gone.
const GONE_PATIENCE: Duration = Duration::from_secs(5);

/// Where one daemon has its things, and what it is for.
#[derive(Clone, Debug)]
pub struct MpsDaemon<'a> {
    pub program: &'a Path,
    pub cgroups: &'a CgroupRoot,
    /// Name of its cgroup.
    pub cgroup: String,
    /// The directory of its sockets, which only the user's processes can enter.
    pub pipe: PathBuf,
    pub log: PathBuf,
    /// UUID.
    pub gpu: &'a str,
}

/// What its server holds every client to.
#[derive(Clone, Copy, Debug)]
pub struct MpsCaps {
    /// Of the GPU's multiprocessors, for each client.
    pub percent: u32,
    /// Of device memory, for each client.
    pub memory_mib: u64,
    pub uid: u32,
}

impl MpsDaemon<'_> {
    /// Starts the daemon in a cgroup of its own, behind a fence that leaves it one GPU, sets the limits and starts the server. Its
    /// pid. Blocking.
    pub fn start(&self, caps: &MpsCaps, rules: &FenceRules) -> Result<i32> {
        self.make_dirs(caps.uid)?;
        let cgroup = RunCgroup::create(self.cgroups, &self.cgroup, &Limits::default())?;
        device_fence::attach_run(&cgroup, rules)?;
        self.run(&cgroup, &["-d"], "")?;
        let pid = *cgroup
            .job_pids()?
            .first()
            .context("nvidia-cuda-mps-control -d went well and left no daemon")?;
        self.tell(
            &cgroup,
            &format!("set_default_active_thread_percentage {}\n", caps.percent),
        )?;
        self.tell(
            &cgroup,
            &format!(
                "set_default_device_pinned_mem_limit 0 {}M\n",
                caps.memory_mib
            ),
        )?;
        let percent = self.tell(&cgroup, "get_default_active_thread_percentage\n")?;
        ensure!(
            percent
                .trim()
                .parse()
                .is_ok_and(|told: f64| (told - f64::from(caps.percent)).abs() < 0.5),
            "it was told to hold clients to {}% of the GPU and says {:?}",
            caps.percent,
            percent.trim()
        );
        // Before the job: a server of the job's own making would have no limits, and a GPU in exclusive mode takes the first.
        self.tell(&cgroup, &format!("start_server -uid {}\n", caps.uid))?;
        let servers = self.tell(&cgroup, "get_server_list\n")?;
        ensure!(
            servers
                .split_whitespace()
                .any(|word| word.parse::<u32>().is_ok()),
            "it has no server: {:?}",
            servers.trim()
        );
        Ok(pid)
    }

    /// Whether the daemon of this pid lives. Only the daemon and its server are in the cgroup.
    pub fn lives(&self, pid: i32) -> bool {
        let pids = RunCgroup::open(self.cgroups, &self.cgroup).and_then(|cgroup| cgroup.job_pids());
        pids.is_ok_and(|pids| pids.contains(&pid)) && !is_zombie(pid)
    }

    /// Ends daemon and server, in whatever state, and removes what is left of both. Blocking.
    pub fn end(&self) -> Result<()> {
        match RunCgroup::open(self.cgroups, &self.cgroup) {
            Err(e) if e.is_not_found() => {}
            Err(e) => return Err(e.into()),
            Ok(cgroup) => {
                if !cgroup.is_empty()? && self.pipe.join("control").exists() {
                    // Its own way first; what stays is killed.
                    if let Err(e) = self.tell(&cgroup, "quit\n") {
                        tracing::debug!("{e:#}");
                    }
                }
                cgroup.kill()?;
                if !cgroup.wait_empty(GONE_PATIENCE)? {
                    bail!("processes {:?} of MPS do not die", cgroup.job_pids()?);
                }
                cgroup.remove()?;
            }
        }
        remove_dir(&self.pipe)
    }

    fn make_dirs(&self, uid: u32) -> Result<()> {
        for dir in [&self.pipe, &self.log] {
            remove_dir(dir)?;
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(dir)
                .with_context(|| format!("making {}", dir.display()))?;
        }
        gsys::access::let_enter(&self.pipe, uid)
            .with_context(|| format!("letting uid {uid} enter {}", self.pipe.display()))
    }

    /// Says one line to the daemon; its answer.
    fn tell(&self, cgroup: &RunCgroup, line: &str) -> Result<String> {
        self.run(cgroup, &[], line)
            .with_context(|| format!("{:?}", line.trim()))
    }

    /// Runs the program to its end; what it said. In the daemon's cgroup: what a killed gpud was about to say goes with the rest.
    fn run(&self, cgroup: &RunCgroup, words: &[&str], input: &str) -> Result<String> {
        let join = cgroup.join_fds()?;
        let said = self.log.join("said");
        // A line fits into a pipe.
        let (read, mut write) = std::io::pipe()?;
        write.write_all(input.as_bytes())?;
        drop(write);
        let argv = std::iter::once(self.program.as_os_str())
            .chain(words.iter().map(OsStr::new))
            .map(OsString::from)
            .collect();
        let mut spec = LaunchSpec::new(
            argv,
            Identity {
                uid: 0,
                gid: 0,
                groups: Vec::new(),
            },
        );
        spec.env = self.environment();
        spec.stdin = Stdio::Fd(read.as_fd());
        spec.stdout = Stdio::Open {
            path: said.clone(),
            mode: OpenMode::Truncate,
        };
        spec.stderr = Stdio::SameAsStdout;
        spec.join = Some(&join);
        let launched = launch(&spec).map_err(|e| anyhow::anyhow!("{}", e.text))?;
        let ended = gsys::process::ends_by(launched.pidfd.as_fd(), Instant::now() + PATIENCE);
        if !ended {
            let _ = gsys::process::pidfd_signal(launched.pidfd.as_fd(), nix::libc::SIGKILL);
        }
        let exit = gsys::process::reap(launched.pid)?;
        let text = fs::read_to_string(&said).unwrap_or_default();
        match exit {
            Exit::Code(0) => Ok(text),
            _ if !ended => bail!(
                "{} did not end within {} s",
                self.program.display(),
                PATIENCE.as_secs()
            ),
            how => bail!(
                "{} ended with {how:?}: {}",
                self.program.display(),
                text.trim().replace('\n', " | ")
            ),
        }
    }

    fn environment(&self) -> Vec<(OsString, OsString)> {
        vec![
            ("PATH".into(), crate::run::stand_by::PATH.into()),
            ("CUDA_VISIBLE_DEVICES".into(), self.gpu.into()),
            ("CUDA_MPS_PIPE_DIRECTORY".into(), self.pipe.clone().into()),
            ("CUDA_MPS_LOG_DIRECTORY".into(), self.log.clone().into()),
        ]
    }
}

/// Killed and not yet waited for by its parent.
fn is_zombie(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')')
        .next()
        .is_none_or(|rest| matches!(rest.trim_start().chars().next(), None | Some('Z' | 'X')))
}
