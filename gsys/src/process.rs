//! Processes by pidfd, copies of the caller, and the reaping of children. Never decides which process to signal.

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

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
    // SAFETY: the kernel has just made this descriptor, and nothing else names it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// The program of this command is killed when the thread that starts it ends.
pub fn end_with_parent(command: &mut Command) {
    // SAFETY: between fork and exec the closure makes one system call that is safe there.
    unsafe {
        command.pre_exec(
            || match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0) {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            },
        );
    }
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

/// Threads that [`whereabouts`] looks at.
const MOST_THREADS: usize = 256;

/// `4711 (python, D in nfs_wait_bit_killable)`: a process and where the kernel holds it, by the first of its threads that does not sleep
/// interruptibly. Bounded, without control characters; only the number where nothing else is told.
pub fn whereabouts(pid: i32) -> String {
    let look = |dir: &Path| {
        let stat = fs::read_to_string(dir.join("stat")).ok()?;
        let state = stat.rsplit_once(") ")?.1.chars().next()?;
        let of_stack = || {
            fs::read_to_string(dir.join("stack"))
                .ok()?
                .lines()
                .next()?
                .split_whitespace()
                .nth(1)
                .map(str::to_owned)
        };
        let place = fs::read_to_string(dir.join("wchan"))
            .ok()
            .filter(|place| !matches!(place.as_str(), "" | "0"))
            .or_else(of_stack);
        Some((state, place.unwrap_or_default()))
    };
    let dir = PathBuf::from(format!("/proc/{pid}"));
    let threads = fs::read_dir(dir.join("task"))
        .into_iter()
        .flatten()
        .flatten()
        .take(MOST_THREADS);
    let held = threads
        .filter_map(|thread| look(&thread.path()))
        .find(|(state, _)| *state == 'D')
        .or_else(|| look(&dir));
    let name = fs::read(dir.join("comm")).unwrap_or_default();
    let name: String = String::from_utf8_lossy(&name)
        .chars()
        .filter(|c| !c.is_control())
        .take(32)
        .collect();
    match held {
        None => pid.to_string(),
        Some((state, place)) if place.is_empty() => format!("{pid} ({name}, {state})"),
        Some((state, place)) => format!(
            "{pid} ({name}, {state} in {})",
            place
                .chars()
                .filter(|c| !c.is_control())
                .take(64)
                .collect::<String>()
        ),
    }
}

/// Which of the two a process is after [`fork`].
#[derive(Debug)]
pub enum ForkSide {
    Parent { pid: i32, pidfd: OwnedFd },
    Child,
}

/// Makes a copy of the calling process, which must have a single thread: then all that it holds may be used in the copy,
/// too. `cgroup` is a directory of the v2 tree, in which the copy begins its life (clone3(2), CLONE_INTO_CGROUP).
pub fn fork(cgroup: Option<BorrowedFd<'_>>) -> io::Result<ForkSide> {
    // A directory's links are itself, its name, and one for each thread in it.
    if fs::metadata("/proc/self/task")?.nlink() != 3 {
        return Err(io::Error::other(
            "a process of several threads makes no copies of itself",
        ));
    }
    // The libc crate's constant is cut to 32 bits.
    const CLONE_INTO_CGROUP: u64 = 1 << 33;
    let mut pidfd = -1i32;
    let flags = libc::CLONE_PIDFD as u64
        | if cgroup.is_some() {
            CLONE_INTO_CGROUP
        } else {
            0
        };
    // SAFETY: a struct of integers, for which zero means not used.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = flags;
    args.pidfd = &raw mut pidfd as u64;
    args.exit_signal = libc::SIGCHLD as u64;
    args.cgroup = cgroup.map_or(0, |dir| dir.as_raw_fd() as u64);
    // SAFETY: without CLONE_VM and a stack this is fork(2): the copy goes on here on its own copy of the memory. No other
    // thread holds a lock that would stay locked in it, since there is none. `args` and `pidfd` outlive the call.
    let pid = unsafe {
        libc::syscall(
            libc::SYS_clone3,
            &raw const args,
            size_of::<libc::clone_args>(),
        )
    };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(ForkSide::Child),
        // SAFETY: the kernel has just made this descriptor, and nothing else names it.
        pid => Ok(ForkSide::Parent {
            pid: pid as i32,
            pidfd: unsafe { OwnedFd::from_raw_fd(pidfd) },
        }),
    }
}

/// Whether children that end leave nothing behind for the caller to reap. A process that wants to know how its children
/// ended says `false`, above all after a [`fork`] from one that said `true`.
pub fn disown_children(disown: bool) -> io::Result<()> {
    let how = if disown { libc::SIG_IGN } else { libc::SIG_DFL };
    // SAFETY: no handler is set, only ignoring or the default.
    match unsafe { libc::signal(libc::SIGCHLD, how) } {
        libc::SIG_ERR => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Ends the calling process well and at once: no exit handler runs, and nothing is given back but by the kernel.
pub fn leave() -> ! {
    // SAFETY: takes an integer and does not return.
    unsafe { libc::_exit(0) }
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
    Ok(wait(pid, libc::WNOHANG)?.map(|reaped| reaped.exit))
}

/// Waits for the child `pid` to end and reaps it.
pub fn reap(pid: i32) -> io::Result<Exit> {
    loop {
        if let Some(reaped) = wait(pid, 0)? {
            return Ok(reaped.exit);
        }
    }
}

/// Waits for a process to end, until the deadline. Whether it has ended; it is not reaped.
pub fn ends_by(process: BorrowedFd<'_>, deadline: Instant) -> bool {
    let mut fds = [PollFd::new(process, PollFlags::POLLIN)];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match poll(
            &mut fds,
            PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX),
        ) {
            Err(nix::Error::EINTR) => {}
            ready => return ready != Ok(0),
        }
    }
}

/// A child that has ended: how, and what it and the descendants that were waited for have used.
#[derive(Clone, Copy, Debug)]
pub struct ReapedChild {
    pub pid: i32,
    pub exit: Exit,
    pub cpu_user_micros: u64,
    pub cpu_system_micros: u64,
    /// Of the largest single process.
    pub max_rss_bytes: u64,
}

/// Reaps every child that has ended. For a sub-reaper's SIGCHLD.
pub fn reap_all() -> Vec<ReapedChild> {
    let mut all = Vec::new();
    while let Ok(Some(child)) = wait(-1, libc::WNOHANG) {
        all.push(child);
    }
    all
}

fn wait(pid: i32, flags: i32) -> io::Result<Option<ReapedChild>> {
    let mut status = 0;
    // SAFETY: a struct of integers.
    let mut used: libc::rusage = unsafe { std::mem::zeroed() };
    loop {
        // SAFETY: status and used outlive the call.
        let pid = unsafe { libc::wait4(pid, &mut status, flags, &mut used) };
        let exit = match pid {
            0 => return Ok(None),
            -1 if errno() == libc::EINTR => continue,
            -1 => return Err(io::Error::last_os_error()),
            _ if libc::WIFEXITED(status) => Exit::Code(libc::WEXITSTATUS(status)),
            _ if libc::WIFSIGNALED(status) => {
                Exit::Signal(libc::WTERMSIG(status), libc::WCOREDUMP(status))
            }
            _ => return Ok(None),
        };
        let micros = |time: libc::timeval| (time.tv_sec * 1_000_000 + time.tv_usec).max(0) as u64;
        return Ok(Some(ReapedChild {
            pid,
            exit,
            cpu_user_micros: micros(used.ru_utime),
            cpu_system_micros: micros(used.ru_stime),
            max_rss_bytes: used.ru_maxrss.max(0) as u64 * 1024,
        }));
    }
}

/// The calling thread's errno; async-signal-safe.
pub(crate) fn errno() -> i32 {
    // SAFETY: __errno_location always points at the thread's own errno.
    unsafe { *libc::__errno_location() }
}
