//! Starting a process as a user: fork, join the cgroup, become the user, directory, files, exec. What goes wrong in the child
//! comes back with its stage and errno, so that a user's mistake is never taken for a fault of the node. Never decides what to run.

mod bounded;
mod child;
mod error;
mod limit;
mod spec;

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use crate::caps;
use crate::process;

pub use crate::mount::Bind;
pub use bounded::{BoundedProgram, ProgramEnd};
pub use error::{ErrorClass, LaunchError, Stage};
pub use limit::{Resource, Rlimit};
pub use spec::{Identity, LaunchSpec, OpenMode, Stdio};

/// Starts the process and waits until it has been replaced by the program, or has failed. Blocks as long as the child's
/// opening of files and its exec do, which on a dead network file system is for ever: a caller with deadlines uses [`spawn`].
pub fn launch(spec: &LaunchSpec<'_>) -> Result<LaunchedProcess, LaunchError> {
    spawn(spec)?.finish()
}

/// Forks the child; the rest happens there. Watch [`PendingLaunch::status_fd`] for POLLIN, then call [`PendingLaunch::finish`].
pub fn spawn(spec: &LaunchSpec<'_>) -> Result<PendingLaunch, LaunchError> {
    let plan = child::Plan::new(spec)?;
    let (status, report) =
        status_pipe().map_err(|e| LaunchError::node(Stage::Fork, "making a pipe", &e))?;
    let pid = fork_child(&plan, report.as_raw_fd())
        .map_err(|e| LaunchError::node(Stage::Fork, "forking the job's process", &e))?;
    drop(report);
    match process::pidfd_open(pid) {
        Ok(pidfd) => Ok(PendingLaunch {
            pid,
            pidfd,
            status: File::from(status),
            words: error::Words::of(spec),
        }),
        Err(e) => {
            // SAFETY: a child of this process, not reaped yet, so the pid is still its own.
            unsafe { libc::kill(pid, libc::SIGKILL) };
            let _ = process::reap(pid);
            Err(LaunchError::node(
                Stage::Fork,
                "opening a pidfd of the job's process",
                &e,
            ))
        }
    }
}

/// A started program. It is the caller's child: the caller reaps it.
#[derive(Debug)]
pub struct LaunchedProcess {
    pub pid: i32,
    /// Readable when the process has ended.
    pub pidfd: OwnedFd,
}

/// A forked child on its way to the program. It may not have joined its cgroup yet: to end the run now, signal the pidfd as
/// well as killing the cgroup.
#[derive(Debug)]
pub struct PendingLaunch {
    pid: i32,
    pidfd: OwnedFd,
    status: File,
    words: error::Words,
}

impl PendingLaunch {
    pub fn pid(&self) -> i32 {
        self.pid
    }

    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Readable or hung up once the program runs or the start has failed.
    pub fn status_fd(&self) -> BorrowedFd<'_> {
        self.status.as_fd()
    }

    /// Waits for the outcome. A child that failed has been reaped when this returns. One that was killed on the way counts
    /// as started: its end says what happened.
    pub fn finish(mut self) -> Result<LaunchedProcess, LaunchError> {
        let mut message = Vec::new();
        let read = self.status.read_to_end(&mut message);
        match (read, error::Report::parse(&message)) {
            (Ok(0), _) => Ok(LaunchedProcess {
                pid: self.pid,
                pidfd: self.pidfd,
            }),
            (_, Some(report)) => {
                let _ = process::reap(self.pid);
                Err(report.explain(&self.words))
            }
            (read, None) => {
                let _ = process::pidfd_signal(self.pidfd.as_fd(), libc::SIGKILL);
                let _ = process::reap(self.pid);
                let e = read
                    .err()
                    .unwrap_or_else(|| io::Error::from_raw_os_error(libc::EBADMSG));
                Err(LaunchError::node(
                    Stage::Fork,
                    "reading the report of the job's process",
                    &e,
                ))
            }
        }
    }
}

/// Both ends close on exec; the child's end is above the standard files, which the child replaces.
fn status_pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [0; 2];
    // SAFETY: fds has room for the two descriptors.
    if unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made these two descriptors, and nothing else names one.
    let (read, write) = unsafe { (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])) };
    // SAFETY: fcntl on a descriptor that this function owns.
    let high = unsafe { libc::fcntl(write.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 3) };
    if high < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: as above.
    Ok((read, unsafe { OwnedFd::from_raw_fd(high) }))
}

/// Signals are blocked over the fork, so that none of the daemon's handlers runs in the child.
fn fork_child(plan: &child::Plan, report: RawFd) -> io::Result<i32> {
    let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigfillset fills the first set, pthread_sigmask the second; both outlive the calls.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), before.as_mut_ptr());
    }
    // SAFETY: the child calls only child::run, which makes async-signal-safe calls on memory prepared before.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        child::run(plan, report);
    }
    let error = io::Error::last_os_error();
    // SAFETY: the set was filled above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    if pid < 0 { Err(error) } else { Ok(pid) }
}

const _: () = assert!(caps::DENIED_TO_ROOT_JOBS.len() == 9);
