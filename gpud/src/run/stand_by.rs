//! The stand-by of this daemon: a gstepd that is loaded already and becomes, by fork, the supervisor of each run that is
//! asked for. Owns that process and starts another when it is gone; no run depends on it once it has its supervisor.

use crate::own_limits;
use anyhow::{Context, Result, bail};
use gsys::cgroup::RunCgroup;
use gsys::descriptor;
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::time::{TimeVal, TimeValLike};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;

/// It forks in less than a millisecond; one that does not answer by then is stopped or hangs, and is replaced.
const ANSWER_PATIENCE_SECS: i64 = 5;
/// Room in its command line for the name of a run, which a supervisor shows there.
const TITLE_ROOM: usize = 64;
pub const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// At most one process, made when it is first needed.
#[derive(Debug)]
pub struct StandBy {
    gstepd: PathBuf,
    runs: PathBuf,
    process: Mutex<Option<Process>>,
}

#[derive(Debug)]
struct Process {
    child: Child,
    requests: OwnedFd,
}

impl StandBy {
    /// For runs with their directories in `runs`.
    pub fn new(gstepd: PathBuf, runs: PathBuf) -> Self {
        Self {
            gstepd,
            runs,
            process: Mutex::new(None),
        }
    }

    pub fn gstepd(&self) -> &Path {
        &self.gstepd
    }

    /// Loads it before a run waits for it. That it cannot be started is told when a run needs it.
    pub fn prepare(&self) {
        let mut process = self.process.lock().expect("no holder panics");
        if process.is_none() {
            *process = Process::start(&self.gstepd, &self.runs).ok();
        }
    }

    /// Makes a supervisor for a run, in the `sup` cgroup. It holds `connection`: after an error only the other end of that
    /// tells whether there is one. Returns its process, held.
    pub fn fork(
        &self,
        run_dir: &Path,
        connection: &UnixStream,
        cgroup: Option<&RunCgroup>,
    ) -> Result<OwnedFd> {
        let sup = cgroup
            .map(RunCgroup::sup_dir)
            .filter(|(_, is_born_there)| *is_born_there);
        let sup = sup
            .map(|(dir, _)| File::open(dir))
            .transpose()
            .context("opening the supervisor's cgroup")?;
        let descriptors = [Some(connection.as_fd()), sup.as_ref().map(AsFd::as_fd)];
        let descriptors: Vec<_> = descriptors.into_iter().flatten().collect();
        let mut process = self.process.lock().expect("no holder panics");
        let request = run_dir.as_os_str().as_bytes();
        // One that died while it was idle has not taken the request.
        let sent = process
            .as_ref()
            .map(|process| descriptor::send(&process.requests, request, &descriptors));
        if !matches!(sent, Some(Ok(()))) {
            *process = None;
            let fresh = process.insert(Process::start(&self.gstepd, &self.runs)?);
            descriptor::send(&fresh.requests, request, &descriptors)
                .context("asking the stand-by of gstepd")?;
        }
        let answered = process
            .as_ref()
            .map(Process::answer)
            .context("no stand-by")?;
        match answered {
            Ok(Answer::Forked { pid, supervisor }) => {
                if let (None, Some(cgroup)) = (sup, cgroup) {
                    cgroup
                        .attach_sup(pid)
                        .context("moving gstepd into its cgroup")?;
                }
                Ok(supervisor)
            }
            Ok(Answer::Refused(text)) => bail!("the stand-by of gstepd: {text}"),
            Err(e) => {
                *process = None;
                Err(e.context("the stand-by of gstepd does not answer"))
            }
        }
    }
}

enum Answer {
    Forked { pid: i32, supervisor: OwnedFd },
    Refused(String),
}

impl Process {
    fn start(gstepd: &Path, runs: &Path) -> Result<Self> {
        let (requests, theirs) = descriptor::pair()?;
        setsockopt(
            &requests,
            sockopt::ReceiveTimeout,
            &TimeVal::seconds(ANSWER_PATIENCE_SECS),
        )?;
        let mut command = Command::new(gstepd);
        command
            .arg("--stand-by")
            .arg(runs)
            .arg(" ".repeat(TITLE_ROOM));
        command
            .env_clear()
            .env("PATH", PATH)
            .current_dir("/")
            .process_group(0);
        command.stdin(theirs).stdout(Stdio::null());
        let child = command
            .spawn()
            .with_context(|| format!("starting {}", gstepd.display()))?;
        own_limits::hand_down(child.id());
        Ok(Self { child, requests })
    }

    fn answer(&self) -> Result<Answer> {
        let mut text = [0; 1024];
        let answer = descriptor::receive(&self.requests, &mut text)?;
        let text = String::from_utf8_lossy(&text[..answer.length]);
        match answer.descriptors.into_iter().next() {
            Some(supervisor) => Ok(Answer::Forked {
                pid: text.parse().context("its answer is no pid")?,
                supervisor,
            }),
            None if !text.is_empty() => Ok(Answer::Refused(text.into_owned())),
            None => bail!("it ended"),
        }
    }
}

impl Drop for Process {
    /// What it was asked and has not done is never done then.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
