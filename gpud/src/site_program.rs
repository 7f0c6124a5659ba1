//! Prolog and epilog: programs of the site, run as the daemon's user before and after a run.
//!
//! Only a file that nobody but root can change is run, checked each time; the environment is fixed, the time bounded, and
//! everything it started is killed at its end.

use anyhow::{Context, Result, bail};
use gmodel::launch_order::LaunchOrder;
use gsys::cgroup::{CgroupRoot, Limits, RunCgroup};
use gsys::launch::{Identity, LaunchSpec, OpenMode, Stdio, launch};
use gsys::process::Exit;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub const TIME_LIMIT: Duration = Duration::from_secs(60);
const TAIL_BYTES: u64 = 1024;

/// One run of one program.
pub struct SiteProgram<'a> {
    /// `prolog` or `epilog`.
    pub kind: &'static str,
    pub path: &'a Path,
    pub order: &'a LaunchOrder,
    pub node_name: &'a str,
    /// `CUDA_VISIBLE_DEVICES` of the run.
    pub gpu_uuids: &'a [String],
    pub run_dir: &'a Path,
    /// Where its own cgroup is made; `None` without isolation.
    pub cgroups: Option<&'a CgroupRoot>,
    pub time_limit: Duration,
}

impl SiteProgram<'_> {
    /// Blocks until it ended well. The error is one sentence with the program's last words.
    pub fn run(&self) -> Result<()> {
        check_ownership(self.path).with_context(|| format!("{} {} was not run", self.kind, self.path.display()))?;
        let output = self.run_dir.join(format!("{}.out", self.kind));
        let name = format!("{}_{}", self.kind, self.order.run.map_or_else(String::new, |run| run.to_string()));
        let cgroup = self.cgroups.map(|root| RunCgroup::create(root, &name, &Limits::default())).transpose()?;
        let outcome = self.run_in(cgroup.as_ref(), &output);
        if let Some(cgroup) = &cgroup {
            cgroup.kill()?;
            cgroup.wait_empty(Duration::from_secs(5))?;
            cgroup.remove()?;
        }
        match outcome? {
            Some(Exit::Code(0)) => Ok(()),
            Some(Exit::Code(code)) => bail!("{} {} ended with {code}{}", self.kind, self.path.display(), last_words(&output)),
            Some(Exit::Signal(signal, _)) => {
                bail!("{} {} was ended by signal {signal}{}", self.kind, self.path.display(), last_words(&output))
            }
            None => {
                let secs = self.time_limit.as_secs();
                bail!("{} {} did not end within {secs} s and was killed{}", self.kind, self.path.display(), last_words(&output))
            }
        }
    }

    /// `None` when the time is up.
    fn run_in(&self, cgroup: Option<&RunCgroup>, output: &Path) -> Result<Option<Exit>> {
        let identity = Identity {
            uid: nix::unistd::geteuid().as_raw(),
            gid: nix::unistd::getegid().as_raw(),
            groups: nix::unistd::getgroups()?.into_iter().map(|gid| gid.as_raw()).collect(),
        };
        let join = cgroup.map(RunCgroup::join_fds).transpose()?;
        let mut spec = LaunchSpec::new(vec![self.path.as_os_str().to_owned()], identity);
        spec.env = self.environment();
        spec.stdout = Stdio::Open { path: output.to_owned(), mode: OpenMode::Truncate };
        spec.stderr = Stdio::SameAsStdout;
        spec.umask = 0o077;
        spec.join = join.as_ref();
        let launched = launch(&spec).map_err(|e| anyhow::anyhow!("{}: {}", self.kind, e.text))?;
        let deadline = Instant::now() + self.time_limit;
        let mut fds = [PollFd::new(launched.pidfd.as_fd(), PollFlags::POLLIN)];
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match poll(&mut fds, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)) {
                Err(nix::Error::EINTR) => {}
                Ok(0) => break,
                _ => return Ok(Some(gsys::process::reap(launched.pid)?)),
            }
        }
        // With a cgroup all it started goes; without one, its session's leader.
        if let Some(cgroup) = cgroup {
            cgroup.kill()?;
        }
        let _ = gsys::process::pidfd_signal(launched.pidfd.as_fd(), nix::libc::SIGKILL);
        gsys::process::reap(launched.pid)?;
        Ok(None)
    }

    fn environment(&self) -> Vec<(OsString, OsString)> {
        let order = self.order;
        let mut env: Vec<(OsString, OsString)> = vec![
            ("PATH".into(), "/usr/sbin:/usr/bin:/sbin:/bin".into()),
            ("GSUB_ATTEMPT".into(), order.run.map_or(0, |run| run.attempt).to_string().into()),
            ("CUDA_VISIBLE_DEVICES".into(), self.gpu_uuids.join(",").into()),
        ];
        let twins = [
            ("JOB_ID", order.run.map_or(0, |run| run.job.0).to_string()),
            ("JOB_NAME", order.job_name.clone()),
            ("JOB_USER", order.user.name.clone()),
            ("JOB_UID", order.user.uid.to_string()),
            ("JOB_ACCOUNT", order.account.clone()),
            ("JOB_PARTITION", order.partition.clone()),
            ("CLUSTER_NAME", order.cluster.clone()),
            ("NODENAME", self.node_name.to_owned()),
        ];
        for (name, value) in twins {
            env.extend(["GSUB", "SLURM"].map(|prefix| (format!("{prefix}_{name}").into(), OsString::from(&value))));
        }
        env
    }
}

/// The file and the directory it is in belong to root (or to us, who are not root) and nobody else can write there.
pub fn check_ownership(path: &Path) -> Result<()> {
    if !path.is_absolute() {
        bail!("its path is not absolute");
    }
    let own = nix::unistd::geteuid().as_raw();
    let real: PathBuf = fs::canonicalize(path)?;
    for part in [Some(real.as_path()), real.parent()].into_iter().flatten() {
        let meta = fs::metadata(part)?;
        let sticky_root_dir = meta.is_dir() && meta.mode() & 0o1000 != 0;
        if meta.uid() != 0 && meta.uid() != own {
            bail!("{} belongs to uid {}, it must be root's", part.display(), meta.uid());
        }
        if meta.mode() & 0o022 != 0 && !sticky_root_dir {
            bail!("{} can be written by others (mode {:o}): chmod go-w it", part.display(), meta.mode() & 0o7777);
        }
    }
    Ok(())
}

fn last_words(output: &Path) -> String {
    let mut tail = Vec::new();
    let read = File::open(output).and_then(|mut file| {
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
        file.take(TAIL_BYTES).read_to_end(&mut tail)
    });
    match read {
        Ok(count) if count > 0 => format!(": {}", String::from_utf8_lossy(&tail).trim().replace('\n', " | ")),
        _ => String::new(),
    }
}
