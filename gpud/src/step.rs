//! A run's supervisor, gstepd, as the daemon sees it: start it, find it again, talk with it over its socket.
//!
//! The supervisor survives us and owes us nothing: whatever it says on the socket is in the run's directory, too. A run
//! directory's lock says whether it lives.

use crate::daemon::{Happening, wall_clock};
use crate::own_limits;
use crate::site::Site;
use crate::spool::{Spool, remove_file};
use crate::stand_by::{self, StandBy};
use anyhow::{Context, Result, bail};
use gmodel::launch_order::LaunchOrder;
use gmodel::run::{EndCause, NumberedSignal, RunEnd, StopCause};
use gmodel::supervise::{StepOrder, StepOutput, SupervisorCommand, SupervisorReport};
use gmodel::{RunId, Timestamp};
use gsys::cgroup::RunCgroup;
use nix::fcntl::{Flock, FlockArg};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, recv};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::sync::mpsc;

/// A supervisor that is not ready by then never will be.
const START_PATIENCE: Duration = Duration::from_secs(20);
/// Between the end of a run and the end of its supervisor.
const LEAVE_PATIENCE: Duration = Duration::from_secs(12);
const FIRST_WORDS_PATIENCE: Duration = Duration::from_secs(5);
/// After the grace of a stop, or of the time limit: a supervisor that has not ended the run by then is asked whether it lives.
const ACT_PATIENCE: Duration = Duration::from_secs(20);

/// A conversation with a supervisor that has said how far its run is.
#[derive(Debug)]
pub struct Supervisor {
    pub stream: UnixStream,
    /// For waiting for its end.
    pub process: Option<OwnedFd>,
    /// Whether its job stands still, as far as that is known: of one that was just made.
    suspended: Option<bool>,
}

/// Starts the supervisor of a run and returns when it is ready. Blocking; the caller is in a tokio runtime.
///
/// Whoever holds the other end of the conversation is the supervisor, and nobody else: when the stand-by has died over the
/// request, that tells whether it had forked, so that there are never two.
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
    // Our copy of the other end is in it: without that, its end is seen.
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

/// Waits for its first words, leaves them to be read, and returns the supervisor's process number.
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

/// What a supervisor was told, and when.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked {
    /// When it was told to stop, and the seconds that the job has.
    pub stop: Option<(Instant, u32)>,
    /// Since when the job runs, and its time limit.
    pub limit: Option<(Instant, u32)>,
    /// After the limit.
    pub kill_grace_secs: u32,
    pub heard: Option<Instant>,
}

impl Asked {
    fn overdue(&self, now: Instant) -> Option<RunEnd> {
        let passed = |since: Instant, secs: u32| {
            now >= since + Duration::from_secs(secs.into()) + ACT_PATIENCE
        };
        let end = |cause, what: &str| RunEnd {
            cause,
            text: format!("{what}; its supervisor (gstepd) stood still, and gpud killed the run"),
            ..RunEnd::default()
        };
        if self.heard.is_some_and(|heard| now < heard + ACT_PATIENCE) {
            None
        } else if self.stop.is_some_and(|(said, secs)| passed(said, secs)) {
            Some(end(EndCause::Stopped, "stopped"))
        } else {
            let (since, limit_secs) = self.limit?;
            passed(since, limit_secs.saturating_add(self.kill_grace_secs)).then(|| {
                end(
                    EndCause::TimeLimit,
                    &format!("the time limit of {limit_secs} s was reached"),
                )
            })
        }
    }
}

/// Where a run's supervisor is found: by its sockets, and by the lock of the run's directory.
pub struct Place {
    run_dir: PathBuf,
    sockets: Vec<PathBuf>,
}

impl Place {
    pub fn of(spool: &Spool, run: RunId) -> Place {
        let run_dir = spool.run_dir(run);
        // Without a setup there is no supervisor.
        let setup = spool.setup(run).ok().flatten().unwrap_or_default();
        Place {
            sockets: setup.control_sockets(&run_dir),
            run_dir,
        }
    }

    fn connect(&self) -> io::Result<UnixStream> {
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
                    // It may have listened between our two looks.
                    return self.connect().ok();
                }
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }

    /// What a supervisor says of itself to everyone who connects. Blocking.
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
            let _ = poll(
                &mut [PollFd::new(process.as_fd(), PollFlags::POLLIN)],
                PollTimeout::from(5000u16),
            );
        }
    }

    /// Sees off a supervisor that has ended its run and lingers, because whoever was to hear of the end is gone. Blocking.
    pub fn dismiss(&self) {
        let Ok(stream) = self.connect() else { return };
        let process =
            gsys::process::pidfd_open(gsys::peer::peer_of(&stream).map_or(0, |peer| peer.pid));
        // Whoever was told the end and hangs up lets it go.
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
    let mut fds = [PollFd::new(supervisor.as_fd(), PollFlags::POLLIN)];
    let deadline = Instant::now() + LEAVE_PATIENCE;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match poll(
            &mut fds,
            PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX),
        ) {
            Err(nix::Error::EINTR) => {}
            Ok(0) => break,
            _ => return,
        }
    }
    tracing::warn!(
        "a supervisor did not leave within {} s; killed",
        LEAVE_PATIENCE.as_secs()
    );
    let _ = gsys::process::pidfd_signal(supervisor.as_fd(), nix::libc::SIGKILL);
    let _ = poll(&mut fds, PollTimeout::from(1000u16));
}

/// The daemon's end of a conversation, with what was said on it: repeating costs nothing and says nothing.
#[derive(Debug)]
pub struct StepLink {
    pub connection: u64,
    sender: mpsc::UnboundedSender<SupervisorCommand>,
    /// For waiting for its end.
    pub process: Option<OwnedFd>,
    went: bool,
    limit: Option<Option<u32>>,
    suspended: Option<bool>,
    stop: Option<(StopCause, u32)>,
    /// When that was said.
    stop_said: Option<Instant>,
    /// Since when the job runs, by our clock, and by the node's.
    runs: Option<(Instant, Timestamp)>,
    /// It answered when it was asked whether it lives.
    heard: Option<Instant>,
    signalled: u32,
}

impl StepLink {
    /// Begins to listen; what the supervisor says comes as [`Happening::Step`], its silence as [`Happening::StepGone`].
    pub fn open(
        run: RunId,
        connection: u64,
        supervisor: Supervisor,
        daemon: mpsc::Sender<Happening>,
    ) -> Result<Self> {
        let Supervisor {
            stream,
            process,
            suspended,
        } = supervisor;
        let stream = tokio::net::UnixStream::from_std(stream)?;
        let (sender, queue) = mpsc::unbounded_channel();
        tokio::spawn(converse(run, connection, stream, queue, daemon));
        Ok(Self {
            connection,
            sender,
            process,
            went: false,
            limit: None,
            suspended,
            stop: None,
            stop_said: None,
            runs: None,
            heard: None,
            signalled: 0,
        })
    }

    pub fn go(&mut self) {
        if !std::mem::replace(&mut self.went, true) {
            self.say(SupervisorCommand::Go);
        }
    }
    pub fn limit(&mut self, limit_secs: Option<u32>) {
        if self.limit.replace(limit_secs) != Some(limit_secs) {
            self.say(SupervisorCommand::Limit { limit_secs });
        }
    }
    /// True when that is news.
    pub fn suspend(&mut self, suspended: bool) -> bool {
        let news = self.suspended.replace(suspended) != Some(suspended);
        if news {
            self.say(SupervisorCommand::Suspend { suspended });
        }
        news
    }
    pub fn stop(&mut self, why: StopCause, grace_secs: u32) {
        if self.stop.replace((why, grace_secs)) != Some((why, grace_secs)) {
            self.stop_said.get_or_insert_with(Instant::now);
            self.say(SupervisorCommand::Stop { why, grace_secs });
        }
    }
    /// `started`: the node's word, by a clock that may have been set since; it only says when the supervisor is asked.
    pub fn runs_since(&mut self, started: Timestamp) {
        let ran = Duration::from_millis(u64::try_from(wall_clock().0 - started.0).unwrap_or(0));
        let now = Instant::now();
        self.runs
            .get_or_insert((now.checked_sub(ran).unwrap_or(now), started));
    }
    pub fn heard_from(&mut self) {
        self.heard = Some(Instant::now());
    }
    /// The end that is to be recorded of a run whose supervisor should have ended it long ago; `None` as long as it may be at it.
    pub fn overdue(&self, site: &Site, run: RunId) -> Option<RunEnd> {
        let order = site.spool.order(run).ok();
        let of_order = |value: &dyn Fn(&LaunchOrder) -> u32| order.as_deref().map_or(0, value);
        let checkpoint_secs = of_order(&|order| {
            order
                .checkpoint
                .as_ref()
                .map_or(0, |checkpoint| checkpoint.grace_secs)
        });
        let asked = Asked {
            stop: self
                .stop
                .zip(self.stop_said)
                .map(|((_, grace_secs), said)| (said, grace_secs.saturating_add(checkpoint_secs))),
            limit: self
                .runs
                .zip(self.limit.flatten())
                .map(|((since, _), limit_secs)| (since, limit_secs)),
            kill_grace_secs: of_order(&|order| order.kill_grace_secs),
            heard: self.heard,
        };
        let end = asked.overdue(Instant::now())?;
        Some(RunEnd {
            started: self.runs.map(|(_, started)| started),
            ..end
        })
    }
    pub fn step(&mut self, step: StepOrder) {
        self.say(SupervisorCommand::Step {
            step: Box::new(step),
        });
    }
    pub fn signal(&mut self, signal: NumberedSignal) {
        if signal.number > self.signalled {
            self.signalled = signal.number;
            self.say(SupervisorCommand::Signal { signal });
        }
    }

    /// A supervisor that is gone says so by the end of its connection; nothing is lost with the words.
    fn say(&self, words: SupervisorCommand) {
        let _ = self.sender.send(words);
    }
}

/// Tells a waiting grun that none of its tasks starts here.
pub async fn refuse_step(order: StepOrder, text: String) {
    let Ok(address) = order.connect.parse::<std::net::SocketAddr>() else {
        return;
    };
    let hello = StepOutput::Hello {
        step: order.step,
        node_index: order.node_index,
        key: order.key,
    };
    let words = [hello.frame(), StepOutput::Refused { text }.frame()].concat();
    let say = async {
        let mut stream = tokio::net::TcpStream::connect(address).await?;
        stream.write_all(&words).await
    };
    // If it is gone there is nobody to tell.
    let _ = tokio::time::timeout(std::time::Duration::from_secs(5), say).await;
}

async fn converse(
    run: RunId,
    connection: u64,
    stream: tokio::net::UnixStream,
    mut queue: mpsc::UnboundedReceiver<SupervisorCommand>,
    daemon: mpsc::Sender<Happening>,
) {
    let (read, mut write) = stream.into_split();
    let mut lines = BufReader::new(read).lines();
    loop {
        tokio::select! {
            line = lines.next_line() => match line {
                Ok(Some(line)) => {
                    let Ok(words) = serde_json::from_str::<SupervisorReport>(&line) else { break };
                    let happening = Happening::Step { run, connection, words };
                    if daemon.send(happening).await.is_err() {
                        return;
                    }
                }
                _ => break,
            },
            words = queue.recv() => {
                // The daemon has let go: closing tells the supervisor that its last word was heard.
                let Some(words) = words else { return };
                let mut lines = line_of(&words);
                // A limit and the word to go come together: one write wakes it once.
                while let Ok(more) = queue.try_recv() {
                    lines.extend(line_of(&more));
                }
                if write.write_all(&lines).await.is_err() {
                    break;
                }
            }
        }
    }
    let _ = daemon.send(Happening::StepGone { run, connection }).await;
}

fn line_of(words: &SupervisorCommand) -> Vec<u8> {
    let mut line = serde_json::to_vec(words).expect("orders are plain data");
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_supervisor_is_given_its_grace_and_20_seconds_more() {
        let begun = Instant::now();
        let at = |secs: u64| begun + Duration::from_secs(secs);
        let cause = |asked: Asked, secs| asked.overdue(at(secs)).map(|end| end.cause);
        let runs = Asked {
            limit: Some((begun, 60)),
            kill_grace_secs: 5,
            ..Asked::default()
        };
        assert_eq!(
            [84, 85].map(|secs| cause(runs, secs)),
            [None, Some(EndCause::TimeLimit)]
        );
        let stopped = Asked {
            stop: Some((at(10), 30)),
            ..runs
        };
        assert_eq!(
            [59, 60].map(|secs| cause(stopped, secs)),
            [None, Some(EndCause::Stopped)]
        );
        assert_eq!(
            cause(
                Asked {
                    heard: Some(at(60)),
                    ..stopped
                },
                79
            ),
            None,
            "it was slow"
        );
        assert_eq!(cause(Asked::default(), 1 << 30), None, "no limit");
    }
}
