//! The stand-by: a gstepd that is loaded once and becomes, by fork, the supervisor of each run that gpud asks for. Loading
//! the program costs more than all that a supervisor does for a short job. It holds nothing of a run, and ends with gpud.
//! Source: the application zygote of Android.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use anyhow::Context;
use gsys::descriptor;
use gsys::process::{self, ForkSide};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::{dup2_stderr, dup2_stdin, setsid};

/// A request is the path of a run directory.
const MAX_REQUEST_BYTES: usize = 4096;

/// What a supervisor is born with.
pub struct SupervisorRequest {
    pub run_dir: PathBuf,
    /// The conversation with gpud.
    pub connection: UnixStream,
}

/// Answers requests that come on stdin until gpud is gone: then it returns `None`. In each supervisor it returns what that
/// one is to do. A request brings the supervisor's end of the conversation, and, where a process can be born in a cgroup,
/// the directory of its own; the answer is the new process's number with a descriptor of it, or why there is none.
pub fn serve(runs: &Path) -> anyhow::Result<Option<SupervisorRequest>> {
    let requests = io::stdin().as_fd().try_clone_to_owned()?;
    let nothing = File::open("/dev/null")?;
    dup2_stdin(&nothing)?;
    let title = Title::find();
    // Read once for all supervisors; each reports an error of it by itself.
    let _ = gsys::cgroup::Hierarchy::detect();
    // The stand-by does not reap the supervisors; gpud waits on pidfds.
    process::disown_children(true)?;
    let mut buffer = [0; MAX_REQUEST_BYTES];
    loop {
        let request = match descriptor::receive(&requests, &mut buffer) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            request => request.context("reading a request")?,
        };
        if request.length == 0 {
            return Ok(None);
        }
        let run_dir = PathBuf::from(std::ffi::OsStr::from_bytes(&buffer[..request.length]));
        let (process, answer) = match fork(&run_dir, runs, request.descriptors) {
            Ok(Fork::Supervisor { connection }) => {
                drop(requests);
                begin(&run_dir, title.as_ref())?;
                return Ok(is_awaited(&connection).then_some(SupervisorRequest {
                    run_dir,
                    connection,
                }));
            }
            Ok(Fork::Begun { pid, process }) => (Some(process), pid.to_string()),
            Err(e) => (None, format!("{e:#}")),
        };
        let descriptors: Vec<BorrowedFd<'_>> = process.iter().map(AsFd::as_fd).collect();
        match descriptor::send(&requests, answer.as_bytes(), &descriptors) {
            // gpud has ended since its request. The forked supervisor does its work all the same.
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => return Ok(None),
            sent => sent.context("answering")?,
        }
    }
}

enum Fork {
    Begun { pid: i32, process: OwnedFd },
    Supervisor { connection: UnixStream },
}

fn fork(run_dir: &Path, runs: &Path, descriptors: Vec<OwnedFd>) -> anyhow::Result<Fork> {
    anyhow::ensure!(
        run_dir.parent() == Some(runs),
        "{} is no run in {}",
        run_dir.display(),
        runs.display()
    );
    let mut descriptors = descriptors.into_iter();
    let connection = descriptors
        .next()
        .context("a request brings a connection")?;
    let cgroup = descriptors.next();
    match process::fork(cgroup.as_ref().map(AsFd::as_fd)).context("forking a supervisor")? {
        ForkSide::Parent { pid, pidfd } => Ok(Fork::Begun {
            pid,
            process: pidfd,
        }),
        ForkSide::Child => Ok(Fork::Supervisor {
            connection: connection.into(),
        }),
    }
}

/// What an exec would have done for the new process.
fn begin(run_dir: &Path, title: Option<&Title>) -> anyhow::Result<()> {
    process::disown_children(false)?;
    setsid()?;
    let log = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(run_dir.join("log"))?;
    dup2_stderr(&log)?;
    if let Some(title) = title {
        title.show(run_dir);
    }
    Ok(())
}

/// A gpud that died meanwhile has a successor that begins this run again: there must not be two.
fn is_awaited(connection: &UnixStream) -> bool {
    let mut fds = [PollFd::new(connection.as_fd(), PollFlags::empty())];
    poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready == 0)
}

/// Where the kernel keeps the command line that `ps` shows, so that a supervisor shows its run and not its origin.
struct Title {
    program: Vec<u8>,
    start: u64,
    length: usize,
}

impl Title {
    /// Fields 48 and 49 of proc(5)'s stat.
    fn find() -> Option<Title> {
        let stat = fs::read_to_string("/proc/self/stat").ok()?;
        let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
        let (start, end) = (
            fields.get(45)?.parse().ok()?,
            fields.get(46)?.parse::<u64>().ok()?,
        );
        let line = fs::read("/proc/self/cmdline").ok()?;
        let program = line.split_inclusive(|byte| *byte == 0).next()?.to_vec();
        Some(Title {
            program,
            start,
            length: end.checked_sub(start)? as usize,
        })
    }

    /// Best effort: the title is for display. The memory is the arguments', which were read before.
    fn show(&self, run_dir: &Path) {
        let mut line = [
            &self.program[..],
            b"--run-dir\0",
            run_dir.as_os_str().as_bytes(),
        ]
        .concat();
        if line.len() < self.length {
            line.resize(self.length, 0);
            let memory = OpenOptions::new().write(true).open("/proc/self/mem");
            let _ = memory.and_then(|memory| memory.write_all_at(&line, self.start));
        }
    }
}
