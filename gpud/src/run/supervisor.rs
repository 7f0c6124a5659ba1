//! The process gstepd of a run as the daemon sees it: started, found again, dismissed, killed.
//!
//! The supervisor outlives this daemon: what it says on its socket is in the run's directory, too. The lock of that directory
//! says whether the supervisor lives.

use crate::own_limits;
use crate::run::stand_by::{self, StandBy};
use crate::spool::Spool;
use crate::spool::file::remove_file;
use anyhow::{Context, Result, bail};
use gmodel::RunId;
use gmodel::supervise::SupervisorReport;
use gsys::cgroup::RunCgroup;
use gsys::process::ends_by;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::socket::{MsgFlags, recv};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// A supervisor that is not ready by then never will be.
const START_PATIENCE: Duration = Duration::from_secs(20);
/// Between the end of a run and the end of its supervisor.
const LEAVE_PATIENCE: Duration = Duration::from_secs(12);
const FIRST_WORDS_PATIENCE: Duration = Duration::from_secs(5);

/// A conversation with a supervisor that has said how far its run is.
#[derive(Debug)]
pub struct Supervisor {
    pub stream: UnixStream,
    /// For waiting for its end.
    pub process: Option<OwnedFd>,
    /// Whether its job is suspended, as far as that is known: of one that was just made.
    pub suspended: Option<bool>,
}

/// Starts the supervisor of a run and returns when it is ready. Blocking; the caller is in a tokio runtime.
///
/// The process at the other end of the connection is the supervisor: after a stand-by died over the request, the connection tells
/// whether it had forked, so that there are never two supervisors.
pub fn start(stand_by: &StandBy, run_dir: &Path, cgroup: Option<&RunCgroup>) -> Result<Supervisor> {
    let (stream, theirs) = UnixStream::pair()?;
    let forked = stand_by.fork(run_dir, &theirs, cgroup);
    drop(theirs);
    let ready = wait_until_ready(&stream);
    match (forked, ready) {
        (Ok(process), Ok(_)) => Ok(Supervisor::new(stream, Some(process))?),
        (Ok(_), Err(e)) => Err(e),
        (Err(e), Ok(pid)) => {
            tracing::warn!("{e:#}; its last supervisor began all the same");
            Ok(Supervisor::new(
                stream,
                gsys::process::pidfd_open(pid).ok(),
            )?)
        }
        (Err(e), Err(_)) => {
            tracing::warn!("{e:#}; gstepd is started anew");
            exec(stand_by.gstepd(), run_dir, cgroup)
        }
    }
}

impl Supervisor {
    /// One that was just made.
    fn new(stream: UnixStream, process: Option<OwnedFd>) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            process,
            suspended: Some(false),
        })
    }
}

/// The slow way, which needs no stand-by.
fn exec(gstepd: &Path, run_dir: &Path, cgroup: Option<&RunCgroup>) -> Result<Supervisor> {
    let log = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(run_dir.join("log"))?;
    let (stream, theirs) = UnixStream::pair()?;
    let mut command = tokio::process::Command::new(gstepd);
    command
        .arg("--run-dir")
        .arg(run_dir)
        .arg("--connected")
        .env_clear()
        .env("PATH", stand_by::PATH)
        .current_dir("/");
    command
        .stdin(OwnedFd::from(theirs))
        .stdout(Stdio::null())
        .stderr(log)
        .process_group(0);
    let mut child = command
        .spawn()
        .with_context(|| format!("starting {}", gstepd.display()))?;
    // The command holds gpud's copy of the other end: without it the hang-up of gstepd is seen.
    drop(command);
    let pid = child.id().context("gstepd ended at once")? as i32;
    own_limits::hand_down(pid as u32);
    let process = gsys::process::pidfd_open(pid).ok();
    tokio::spawn(async move { child.wait().await });
    if let Some(cgroup) = cgroup {
        cgroup
            .attach_sup(pid)
            .context("moving gstepd into its cgroup")?;
    }
    wait_until_ready(&stream)?;
    Ok(Supervisor::new(stream, process)?)
}

/// Waits for the first line, leaves it unread, and returns the supervisor's process number.
fn wait_until_ready(stream: &UnixStream) -> Result<i32> {
    stream.set_read_timeout(Some(START_PATIENCE))?;
    let mut words = [0; 1024];
    let length = loop {
        match recv(stream.as_raw_fd(), &mut words, MsgFlags::MSG_PEEK) {
            Err(nix::Error::EINTR) => {}
            Err(nix::Error::EAGAIN) => {
                bail!("gstepd was not ready within {} s", START_PATIENCE.as_secs())
            }
            length => break length?,
        }
    };
    let words = words[..length]
        .split(|byte| *byte == b'\n')
        .next()
        .unwrap_or_default();
    match serde_json::from_slice(words) {
        Ok(SupervisorReport::Ready { pid }) => Ok(pid as i32),
        _ => bail!("gstepd ended before it was ready; its words are in the run's log"),
    }
}

/// Where the supervisor of a run is found: its sockets, and the lock of the run's directory.
pub struct SupervisorAddress {
    run_dir: PathBuf,
    sockets: Vec<PathBuf>,
}

impl SupervisorAddress {
    pub fn of(spool: &Spool, run: RunId) -> SupervisorAddress {
        let run_dir = spool.run_dir(run);
        // Without a setup there is no supervisor.
        let setup = spool.setup(run).ok().flatten().unwrap_or_default();
        SupervisorAddress {
            sockets: setup.control_sockets(&run_dir),
            run_dir,
        }
    }

    /// # Errors
    /// None listens.
    pub fn connect(&self) -> io::Result<UnixStream> {
        let mut last = io::ErrorKind::NotFound.into();
        for socket in &self.sockets {
            match connect(socket) {
                Ok(stream) => return Ok(stream),
                Err(e) => last = e,
            }
        }
        Err(last)
    }

    /// A connection, with patience for a supervisor that is about to listen or to leave. `None`: there is none.
    pub fn find(&self) -> Option<Supervisor> {
        let stream = self.find_stream()?;
        let process = gsys::peer::peer_of(&stream)
            .and_then(|peer| gsys::process::pidfd_open(peer.pid))
            .ok();
        Some(Supervisor {
            stream,
            process,
            suspended: None,
        })
    }

    fn find_stream(&self) -> Option<UnixStream> {
        let deadline = Instant::now() + START_PATIENCE;
        loop {
            match self.connect() {
                Ok(stream) => return Some(stream),
                Err(_)
                    if self.run_dir.join("exit.json").exists()
                        || !is_locked(&self.run_dir)
                        || Instant::now() >= deadline =>
                {
                    // The supervisor may have begun to listen in between.
                    return self.connect().ok();
                }
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }

    /// The first line that a supervisor sends on each connection. Blocking.
    pub fn first_words(&self) -> Option<SupervisorReport> {
        first_words_of(self.connect().ok()?)
    }

    /// Kills the supervisor, whatever state it is in. Blocking.
    pub fn kill(&self) {
        let peer = self
            .connect()
            .and_then(|stream| gsys::peer::peer_of(&stream));
        if let Ok(process) = peer.and_then(|peer| gsys::process::pidfd_open(peer.pid)) {
            let _ = gsys::process::pidfd_signal(process.as_fd(), nix::libc::SIGKILL);
            ends_by(process.as_fd(), Instant::now() + Duration::from_secs(5));
        }
    }

    /// Sees off a supervisor that has ended its run and lingers, because the daemon that was to hear of the end is gone. Blocking.
    pub fn dismiss(&self) {
        let Ok(stream) = self.connect() else { return };
        let process =
            gsys::process::pidfd_open(gsys::peer::peer_of(&stream).map_or(0, |peer| peer.pid));
        // The supervisor leaves when a peer that has read the end hangs up.
        if first_words_of(stream).is_some()
            && let Ok(process) = process
        {
            see_off(&process);
        }
    }

    /// What a supervisor that was killed left: another one refuses to begin beside it.
    pub fn remove_sockets(&self) -> Result<()> {
        self.sockets
            .iter()
            .try_for_each(|socket| remove_file(socket))
    }
}

/// Goes by the directory's descriptor, because a socket's path has room for 107 bytes.
fn connect(socket: &Path) -> io::Result<UnixStream> {
    let (Some(dir), Some(name)) = (socket.parent(), socket.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let dir = File::open(dir)?;
    let stream = UnixStream::connect(
        Path::new("/proc/self/fd")
            .join(dir.as_raw_fd().to_string())
            .join(name),
    )?;
    stream.set_nonblocking(true)?;
    Ok(stream)
}

fn first_words_of(stream: UnixStream) -> Option<SupervisorReport> {
    use std::io::BufRead;
    stream.set_nonblocking(false).ok()?;
    stream.set_read_timeout(Some(FIRST_WORDS_PATIENCE)).ok()?;
    let mut line = String::new();
    io::BufReader::new(stream).read_line(&mut line).ok()?;
    serde_json::from_str(&line).ok()
}

/// A supervisor holds the lock of its run directory as long as it lives.
fn is_locked(run_dir: &Path) -> bool {
    File::open(run_dir).is_ok_and(|dir| Flock::lock(dir, FlockArg::LockSharedNonblock).is_err())
}

/// Waits for the process behind a connection to leave; one that does not is killed. Blocking.
pub fn see_off(supervisor: &OwnedFd) {
    if ends_by(supervisor.as_fd(), Instant::now() + LEAVE_PATIENCE) {
        return;
    }
    tracing::warn!(
        "a supervisor did not leave within {} s; killed",
        LEAVE_PATIENCE.as_secs()
    );
    let _ = gsys::process::pidfd_signal(supervisor.as_fd(), nix::libc::SIGKILL);
    ends_by(supervisor.as_fd(), Instant::now() + Duration::from_secs(1));
}
