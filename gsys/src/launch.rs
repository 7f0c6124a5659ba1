//! Starting a process as a user: fork, join the cgroup, become the user, directory, files, exec. What goes wrong in the child
//! comes back with its stage and errno, so that a user's mistake is never taken for a sick node. Never decides what to run.

mod child;
mod error;

use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr;

use crate::caps;
use crate::cgroup::{JoinFds, c_path};
use crate::cpu::Affinity;
use crate::mount::PrivateMounts;
use crate::process;
use crate::user::User;

pub use crate::mount::Bind;
pub use error::{ErrorClass, LaunchError, Stage};

/// Starts the process and waits until it has been replaced by the program, or has failed. Blocks as long as the child's
/// opening of files and its exec do, which on a dead network file system is for ever: a caller with deadlines uses [`spawn`].
pub fn launch(spec: &LaunchSpec<'_>) -> Result<Launched, LaunchError> {
    spawn(spec)?.finish()
}

/// Forks the child; the rest happens there. Watch [`Launching::status_fd`] for POLLIN, then call [`Launching::finish`].
pub fn spawn(spec: &LaunchSpec<'_>) -> Result<Launching, LaunchError> {
    let plan = child::Plan::new(spec)?;
    let (status, report) =
        status_pipe().map_err(|e| LaunchError::node(Stage::Fork, "making a pipe", &e))?;
    let pid = fork_child(&plan, report.as_raw_fd())
        .map_err(|e| LaunchError::node(Stage::Fork, "forking the job's process", &e))?;
    drop(report);
    match process::pidfd_open(pid) {
        Ok(pidfd) => Ok(Launching {
            pid,
            pidfd,
            status: File::from(status),
            words: error::Words::of(spec),
        }),
        Err(e) => {
            // SAFETY: our own child, not reaped yet, so the pid is still its.
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

/// What to start and as whom. All of it is prepared before the fork; the child only makes system calls.
#[derive(Debug)]
pub struct LaunchSpec<'a> {
    /// Program and arguments. A program without a slash is looked for in the `PATH` of `env`, as the user.
    pub argv: Vec<OsString>,
    /// What is executed where `argv` calls it otherwise: a login shell by `-bash`.
    pub program: Option<PathBuf>,
    /// What error texts call the program where its path says nothing to its user: `the job's script`.
    pub called: Option<&'a str>,
    /// The whole environment: nothing is inherited.
    pub env: Vec<(OsString, OsString)>,
    /// Working directory, entered as the user, before relative output paths are opened.
    pub cwd: PathBuf,
    pub identity: Identity,
    pub umask: u32,
    /// Applied before the change of user; raising one is best effort, as far as the daemon's own hard limits go.
    pub rlimits: Vec<Rlimit>,
    /// Soft limits set last of all, as the user, and cut to the hard ones then in force. Nothing on the way to the program
    /// runs under them, so that a tight one is never taken for a sick node.
    pub soft_limits: Vec<(Resource, u64)>,
    /// Names of variables that get the process's own number as value. None of them may be in `env`.
    pub pid_variables: Vec<OsString>,
    /// Added to the daemon's own niceness.
    pub nice: i32,
    pub stdin: Stdio<'a>,
    pub stdout: Stdio<'a>,
    pub stderr: Stdio<'a>,
    /// Makes stdin, which must be a terminal, the controlling terminal of the new session (`grun --pty`).
    pub controlling_terminal: bool,
    /// The cgroup the child joins first of all ([`crate::cgroup::RunCgroup::join_fds`]).
    pub join: Option<&'a JoinFds>,
    /// Processors it runs on, among those of the cgroup.
    pub affinity: Option<Affinity>,
    /// For jobs of uid 0: takes the capabilities in [`crate::caps::DENIED_TO_ROOT_JOBS`] from its bounding set and shows it
    /// the cgroup trees read-only, in a mount namespace of its own.
    pub confine_root: bool,
    /// Directories bound over others in a mount namespace of the process's own (private /tmp); nosuid, nodev.
    pub binds: Vec<Bind>,
}

impl LaunchSpec<'_> {
    /// The program as that user in `/` with an empty environment, no output, umask 022 and nothing joined.
    pub fn new(argv: Vec<OsString>, identity: Identity) -> Self {
        LaunchSpec {
            argv,
            program: None,
            called: None,
            env: Vec::new(),
            cwd: PathBuf::from("/"),
            identity,
            umask: 0o022,
            rlimits: Vec::new(),
            soft_limits: Vec::new(),
            pid_variables: Vec::new(),
            nice: 0,
            stdin: Stdio::Null,
            stdout: Stdio::Null,
            stderr: Stdio::Null,
            controlling_terminal: false,
            join: None,
            affinity: None,
            confine_root: false,
            binds: Vec::new(),
        }
    }
}

/// Whom the child becomes. A daemon that is not root can only start processes as itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub uid: u32,
    pub gid: u32,
    /// Supplementary groups, `gid` included or not.
    pub groups: Vec<u32>,
}

impl From<&User> for Identity {
    fn from(user: &User) -> Identity {
        Identity {
            uid: user.uid,
            gid: user.gid,
            groups: user.groups.clone(),
        }
    }
}

/// One of the child's three standard files.
#[derive(Debug)]
pub enum Stdio<'a> {
    Null,
    /// Opened as the user, created with mode 0666 less the umask; relative to the working directory.
    Open {
        path: PathBuf,
        mode: OpenMode,
    },
    /// An open file of the caller.
    Fd(BorrowedFd<'a>),
    /// The same open file as stdout; for stderr only.
    SameAsStdout,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    Read,
    Append,
    Truncate,
}

/// A resource limit; `u64::MAX` is unlimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rlimit {
    pub resource: Resource,
    pub soft: u64,
    pub hard: u64,
}

/// The limits that sbatch propagates, under its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    As,
    Core,
    Cpu,
    Data,
    Fsize,
    Memlock,
    Nofile,
    Nproc,
    Rss,
    Stack,
}

impl Resource {
    pub const ALL: [Resource; 10] = [
        Resource::As,
        Resource::Core,
        Resource::Cpu,
        Resource::Data,
        Resource::Fsize,
        Resource::Memlock,
        Resource::Nofile,
        Resource::Nproc,
        Resource::Rss,
        Resource::Stack,
    ];

    /// sbatch's word: `AS`, `CORE`, `NOFILE`, ...
    pub fn name(self) -> &'static str {
        match self {
            Resource::As => "AS",
            Resource::Core => "CORE",
            Resource::Cpu => "CPU",
            Resource::Data => "DATA",
            Resource::Fsize => "FSIZE",
            Resource::Memlock => "MEMLOCK",
            Resource::Nofile => "NOFILE",
            Resource::Nproc => "NPROC",
            Resource::Rss => "RSS",
            Resource::Stack => "STACK",
        }
    }

    pub fn from_name(name: &str) -> Option<Resource> {
        Resource::ALL.into_iter().find(|r| r.name() == name)
    }

    fn number(self) -> libc::__rlimit_resource_t {
        match self {
            Resource::As => libc::RLIMIT_AS,
            Resource::Core => libc::RLIMIT_CORE,
            Resource::Cpu => libc::RLIMIT_CPU,
            Resource::Data => libc::RLIMIT_DATA,
            Resource::Fsize => libc::RLIMIT_FSIZE,
            Resource::Memlock => libc::RLIMIT_MEMLOCK,
            Resource::Nofile => libc::RLIMIT_NOFILE,
            Resource::Nproc => libc::RLIMIT_NPROC,
            Resource::Rss => libc::RLIMIT_RSS,
            Resource::Stack => libc::RLIMIT_STACK,
        }
    }

    /// The caller's own limit: soft and hard.
    pub fn current(self) -> io::Result<Rlimit> {
        let mut limit = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        // SAFETY: limit outlives the call.
        match unsafe { libc::getrlimit(self.number(), &mut limit) } {
            0 => Ok(Rlimit {
                resource: self,
                soft: limit.rlim_cur,
                hard: limit.rlim_max,
            }),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Rlimit {
    /// Makes it the caller's own limit.
    pub fn set(&self) -> io::Result<()> {
        let limit = libc::rlimit {
            rlim_cur: self.soft.min(self.hard),
            rlim_max: self.hard,
        };
        // SAFETY: limit outlives the call.
        match unsafe { libc::setrlimit(self.resource.number(), &limit) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Makes it that of another process, which its children inherit.
    pub fn set_of(&self, pid: i32) -> io::Result<()> {
        let limit = libc::rlimit {
            rlim_cur: self.soft.min(self.hard),
            rlim_max: self.hard,
        };
        // SAFETY: limit outlives the call, and the old limit is not asked for.
        match unsafe { libc::prlimit(pid, self.resource.number(), &limit, ptr::null_mut()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// A started program. It is the caller's child: the caller reaps it.
#[derive(Debug)]
pub struct Launched {
    pub pid: i32,
    /// Readable when the process has ended.
    pub pidfd: OwnedFd,
}

/// A forked child on its way to the program. It may not have joined its cgroup yet: to end the run now, signal the pidfd as
/// well as killing the cgroup.
#[derive(Debug)]
pub struct Launching {
    pid: i32,
    pidfd: OwnedFd,
    status: File,
    words: error::Words,
}

impl Launching {
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
    pub fn finish(mut self) -> Result<Launched, LaunchError> {
        let mut message = Vec::new();
        let read = self.status.read_to_end(&mut message);
        match (read, error::Report::parse(&message)) {
            (Ok(0), _) => Ok(Launched {
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
    // SAFETY: the kernel has just given us these two descriptors and nobody else knows them.
    let (read, write) = unsafe { (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])) };
    // SAFETY: fcntl on a descriptor we own.
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

/// The paths execve is tried on, in order.
fn candidates(spec: &LaunchSpec<'_>) -> Vec<PathBuf> {
    if let Some(program) = &spec.program {
        return vec![program.clone()];
    }
    let Some(program) = spec.argv.first() else {
        return Vec::new();
    };
    if program.as_bytes().contains(&b'/') {
        return vec![PathBuf::from(program)];
    }
    search_path(&spec.env)
        .split(|b| *b == b':')
        .map(|dir| Path::new(OsStr::from_bytes(dir)).join(program))
        .collect()
}

fn search_path(env: &[(OsString, OsString)]) -> &[u8] {
    env.iter()
        .find(|(name, _)| name == "PATH")
        .map_or(b"/usr/bin:/bin", |(_, value)| value.as_bytes())
}

fn private_mounts(spec: &LaunchSpec<'_>) -> io::Result<Option<PrivateMounts>> {
    match spec.confine_root || !spec.binds.is_empty() {
        true => PrivateMounts::new(&spec.binds, spec.confine_root).map(Some),
        false => Ok(None),
    }
}

fn c_string(text: &OsStr) -> io::Result<CString> {
    c_path(Path::new(text))
}

const _: () = assert!(caps::DENIED_TO_ROOT_JOBS.len() == 9);
