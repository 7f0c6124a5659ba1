//! Processes by pidfd, and the reaping of children. Never decides whom to signal.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Code(i32),
    /// Signal number, and whether a core was dumped.
    Signal(i32, bool),
}

/// A file descriptor of a process: readable (POLLIN) when it has ended, and never another process.
pub fn pidfd_open(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: pidfd_open takes two integers and returns a new descriptor or -1.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given us this descriptor and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Sends `signal` to the process of a pidfd; ESRCH once it has been reaped.
pub fn pidfd_signal(pidfd: BorrowedFd<'_>, signal: i32) -> io::Result<()> {
    // SAFETY: a null siginfo means an ordinary signal; the descriptor is borrowed for the call.
    let sent = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd.as_raw_fd(),
            signal,
            std::ptr::null::<libc::siginfo_t>(),
            0,
        )
    };
    if sent < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Makes orphans below the caller its children, so that a job's daemons are reaped by its supervisor.
pub fn set_child_subreaper() -> io::Result<()> {
    // SAFETY: prctl with integer arguments.
    match unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Reaps the child `pid` if it has ended; `None` while it runs. ECHILD when it is no child of the caller.
pub fn try_reap(pid: i32) -> io::Result<Option<Exit>> {
    wait(pid, libc::WNOHANG).map(|reaped| reaped.map(|(_, exit)| exit))
}

/// Waits for the child `pid` to end and reaps it.
pub fn reap(pid: i32) -> io::Result<Exit> {
    loop {
        if let Some((_, exit)) = wait(pid, 0)? {
            return Ok(exit);
        }
    }
}

/// Reaps every child that has ended: pid and how. For a sub-reaper's SIGCHLD.
pub fn reap_all() -> Vec<(i32, Exit)> {
    let mut reaped = Vec::new();
    while let Ok(Some(child)) = wait(-1, libc::WNOHANG) {
        reaped.push(child);
    }
    reaped
}

fn wait(pid: i32, flags: i32) -> io::Result<Option<(i32, Exit)>> {
    loop {
        let mut status = 0;
        // SAFETY: status outlives the call.
        let reaped = unsafe { libc::waitpid(pid, &mut status, flags) };
        match reaped {
            0 => return Ok(None),
            -1 if errno() == libc::EINTR => continue,
            -1 => return Err(io::Error::last_os_error()),
            _ if libc::WIFEXITED(status) => {
                return Ok(Some((reaped, Exit::Code(libc::WEXITSTATUS(status)))));
            }
            _ if libc::WIFSIGNALED(status) => {
                return Ok(Some((
                    reaped,
                    Exit::Signal(libc::WTERMSIG(status), libc::WCOREDUMP(status)),
                )));
            }
            _ => return Ok(None),
        }
    }
}

/// The calling thread's errno; async-signal-safe.
pub(crate) fn errno() -> i32 {
    // SAFETY: __errno_location always points at the thread's own errno.
    unsafe { *libc::__errno_location() }
}
