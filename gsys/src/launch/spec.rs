//! What to start, and as which user: all that a launch needs, before anything is done.

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::limit::{Resource, Rlimit};
use crate::cgroup::{JoinFds, c_path};
use crate::cpu::Affinity;
use crate::mount::{Bind, PrivateMounts};
use crate::user::User;

/// What to start, and as which user. All of it is prepared before the fork; the child only makes system calls.
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
    /// Names of variables that get the process's own number as value. `env` may hold none of these names.
    pub pid_variables: Vec<OsString>,
    /// Added to the daemon's own niceness.
    pub nice: i32,
    pub stdin: Stdio<'a>,
    pub stdout: Stdio<'a>,
    pub stderr: Stdio<'a>,
    /// Further open files that the process inherits, under the numbers that they have here.
    pub kept: Vec<BorrowedFd<'a>>,
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
            kept: Vec::new(),
            controlling_terminal: false,
            join: None,
            affinity: None,
            confine_root: false,
            binds: Vec::new(),
        }
    }
}

/// The user that the child becomes. A daemon that is not root can only start processes as its own user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub uid: u32,
    pub gid: u32,
    /// Supplementary groups, `gid` included or not.
    pub groups: Vec<u32>,
}

impl Identity {
    /// The daemon's own user.
    pub fn own() -> nix::Result<Self> {
        let groups = nix::unistd::getgroups()?;
        Ok(Self {
            uid: nix::unistd::geteuid().as_raw(),
            gid: nix::unistd::getegid().as_raw(),
            groups: groups.into_iter().map(|gid| gid.as_raw()).collect(),
        })
    }
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

/// The paths execve is tried on, in order.
pub(super) fn candidates(spec: &LaunchSpec<'_>) -> Vec<PathBuf> {
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

pub(super) fn search_path(env: &[(OsString, OsString)]) -> &[u8] {
    env.iter()
        .find(|(name, _)| name == "PATH")
        .map_or(b"/usr/bin:/bin", |(_, value)| value.as_bytes())
}

pub(super) fn private_mounts(spec: &LaunchSpec<'_>) -> io::Result<Option<PrivateMounts>> {
    match spec.confine_root || !spec.binds.is_empty() {
        true => PrivateMounts::new(&spec.binds, spec.confine_root).map(Some),
        false => Ok(None),
    }
}

pub(super) fn c_string(text: &OsStr) -> io::Result<CString> {
    c_path(Path::new(text))
}
