//! A program of the site, run to its end as the daemon's own user: its output in a file, its time bounded.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::cgroup::RunCgroup;
use crate::launch::{Identity, LaunchSpec, OpenMode, Stdio, launch};
use crate::process::{Exit, ends_by, pidfd_signal, reap};

/// What to run.
pub struct BoundedProgram<'a> {
    pub argv: Vec<OsString>,
    pub env: Vec<(OsString, OsString)>,
    /// For stdout and stderr; truncated.
    pub output: &'a Path,
    /// All the program started is killed with it there; without one only the program is.
    pub cgroup: Option<&'a RunCgroup>,
    pub time_limit: Duration,
}

/// How a program ended.
pub struct ProgramEnd {
    pub exit: Exit,
    /// It was killed at its time limit.
    pub timed_out: bool,
}

impl BoundedProgram<'_> {
    /// Blocks until the program has ended.
    ///
    /// # Errors
    /// It could not be started; the text says why.
    pub fn run(self) -> io::Result<ProgramEnd> {
        let join = self.cgroup.map(RunCgroup::join_fds).transpose();
        let join = join.map_err(io::Error::other)?;
        let mut spec = LaunchSpec::new(self.argv, Identity::own()?);
        spec.env = self.env;
        spec.stdout = Stdio::Open {
            path: self.output.to_owned(),
            mode: OpenMode::Truncate,
        };
        spec.stderr = Stdio::SameAsStdout;
        spec.umask = 0o077;
        spec.join = join.as_ref();
        let launched = launch(&spec).map_err(|e| io::Error::other(e.text))?;
        let timed_out = !ends_by(launched.pidfd.as_fd(), Instant::now() + self.time_limit);
        if timed_out {
            if let Some(cgroup) = self.cgroup {
                cgroup.kill().map_err(io::Error::other)?;
            }
            let _ = pidfd_signal(launched.pidfd.as_fd(), libc::SIGKILL);
        }
        let exit = reap(launched.pid)?;
        Ok(ProgramEnd { exit, timed_out })
    }
}
