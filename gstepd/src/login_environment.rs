//! What a login of the job's user on this node would find in its environment, for `gsub --export=NONE` and `--get-user-env`: the
//! login shell is started in the job and as its user, and shows it. Never waits for it: the supervisor's loop looks again.
//! Source: `--get-user-env` in sbatch(1), and su(1) for how a shell is told that it is a login's.

use std::ffi::OsString;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use gmodel::byte_text;
use gmodel::launch_order::LaunchOrder;
use gmodel::supervise::RunSetup;
use gsys::cgroup::JoinFds;
use gsys::launch::{self, LaunchError, LaunchSpec, PendingLaunch, Stage, Stdio};
use gsys::process::Exit;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::unistd::pipe2;

use crate::batch::{binds, identity, os_string, set_limits, split_variables};
use crate::environment;
use crate::life::BootMillis;
use crate::resource_limits::JobLimits;

/// As much as a submission may have.
const MAX_BYTES: usize = 1 << 20;
/// Behind what the login files print comes this, and then the environment. In words that every shell reads alike, csh and fish too.
const SHOW: &str = "/usr/bin/env -i -0 GSUB_LOGIN=1; exec /usr/bin/env -0";
const MARK: &[u8] = b"GSUB_LOGIN=1\0";
/// Of the shell that was asked, and not of a login.
const OF_THE_SHELL: [&str; 4] = ["_", "SHLVL", "PWD", "OLDPWD"];

/// A login shell on its way.
pub struct LoginShell {
    launching: PendingLaunch,
    output: File,
    /// It has closed its output, and may live on.
    is_closed: bool,
    bytes: Vec<u8>,
    shell: PathBuf,
    home: PathBuf,
    secs: u32,
    until: BootMillis,
}

/// What a login shell is started with.
pub struct LoginShellSpec<'a> {
    pub order: &'a LaunchOrder,
    pub setup: &'a RunSetup,
    pub home: PathBuf,
    pub limits: &'a JobLimits,
    pub join: Option<&'a JoinFds>,
    /// How long a login may take, for the error text.
    pub secs: u32,
    pub until: BootMillis,
}

impl LoginShell {
    /// Starts it in `home`, which may be another directory where the user's own is missing.
    pub fn start(spec: LoginShellSpec<'_>) -> Result<LoginShell, LaunchError> {
        let LoginShellSpec {
            order,
            setup,
            home,
            limits,
            join,
            secs,
            until,
        } = spec;
        let shell = login_shell(setup);
        let no_pipe = |e: nix::Error| LaunchError {
            class: launch::ErrorClass::Node,
            stage: Stage::Fork,
            errno: e as i32,
            text: format!("making a pipe for the login shell: {e}"),
        };
        let (output, writer) = pipe2(OFlag::O_CLOEXEC).map_err(no_pipe)?;
        fcntl(&output, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).map_err(no_pipe)?;
        let mut called = OsString::from("-");
        called.push(shell.file_name().unwrap_or_default());
        let mut spec = LaunchSpec::new(vec![called, "-c".into(), SHOW.into()], identity(setup));
        spec.program = Some(shell.clone());
        spec.called = Some("the login shell");
        spec.env = split_variables(environment::login(order, setup));
        set_limits(&mut spec, limits);
        spec.cwd.clone_from(&home);
        spec.umask = order.umask;
        spec.join = join;
        spec.confine_root = setup.restrict_root;
        spec.binds = binds(setup);
        spec.stdout = Stdio::Fd(writer.as_fd());
        let launching = launch::spawn(&spec)?;
        Ok(LoginShell {
            launching,
            output: output.into(),
            is_closed: false,
            bytes: Vec::new(),
            shell,
            home,
            secs,
            until,
        })
    }

    pub fn pid(&self) -> i32 {
        self.launching.pid()
    }

    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.launching.pidfd()
    }

    /// To wait for more of what it writes; a closed pipe would be ready for ever.
    pub fn output_fd(&self) -> Option<BorrowedFd<'_>> {
        (!self.is_closed).then(|| self.output.as_fd())
    }

    pub fn deadline(&self) -> BootMillis {
        self.until
    }

    /// Takes what it wrote so far. The sentence for the job's end where it takes too long or writes too much.
    pub fn look(&mut self, user: &str, now: BootMillis) -> Result<(), String> {
        self.read();
        if self.bytes.len() > MAX_BYTES {
            return Err(self.failed(user, &format!("wrote more than {MAX_BYTES} bytes")));
        }
        if now >= self.until {
            return Err(self.failed(user, &format!("had not come to its end after {} s; ~/.profile, ~/.bashrc or what they call may wait for something", self.secs)));
        }
        Ok(())
    }

    /// It has ended: `NAME=value` lines of what it showed. `Err(None)`: there is no such directory; it may be started in another.
    pub fn ended(mut self, user: &str, exit: Exit) -> Result<Vec<String>, Option<String>> {
        self.read();
        let shown = shown(&self.bytes);
        let how = match exit {
            Exit::Code(code) => {
                format!("ended with exit code {code} before it showed its environment")
            }
            Exit::Signal(signal, _) => format!(
                "was ended by signal {} before it showed its environment",
                gmodel::signal::signal_word(signal as u8)
            ),
        };
        let is_elsewhere = self.home == Path::new("/");
        let sentence = self.failed(user, &how);
        match (self.launching.finish(), shown) {
            (Err(error), _) if error.stage == Stage::Directory && !is_elsewhere => Err(None),
            (Err(error), _) => Err(Some(format!(
                "the login environment of {user} could not be read on this node: {}",
                error.text
            ))),
            (Ok(_), Some(lines)) => Ok(lines),
            (Ok(_), None) => Err(Some(sentence)),
        }
    }

    fn read(&mut self) {
        let mut piece = [0; 16 << 10];
        while self.bytes.len() <= MAX_BYTES {
            match self.output.read(&mut piece) {
                Ok(count) if count > 0 => self.bytes.extend_from_slice(&piece[..count]),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                _ => {
                    self.is_closed = true;
                    return;
                }
            }
        }
    }

    fn failed(&self, user: &str, how: &str) -> String {
        format!(
            "the login environment of {user} could not be read on this node: {} {how}. Mend the login files, give more time by \
             --get-user-env=SECONDS, or do without it: --export=ALL, or --export=NIL",
            self.shell.display()
        )
    }
}

/// The lines that are new to a submission's environment: what that has counts.
pub fn added(login: Vec<String>, submission: &[String]) -> Vec<String> {
    let name = |line: &str| line.split('=').next().unwrap_or_default().to_owned();
    let known: std::collections::BTreeSet<String> =
        submission.iter().map(|line| name(line)).collect();
    login
        .into_iter()
        .filter(|line| !known.contains(&name(line)))
        .collect()
}

/// Users with a shell that refuses logins may still have jobs: /bin/sh starts these.
fn login_shell(setup: &RunSetup) -> PathBuf {
    let shell = PathBuf::from(os_string(&setup.shell));
    let lets_in = shell.is_absolute()
        && !matches!(
            shell.file_name().and_then(|name| name.to_str()),
            Some("nologin" | "false" | "true" | "sync") | None
        );
    if lets_in { shell } else { "/bin/sh".into() }
}

/// `None` where the mark is missing: the shell did not come so far.
fn shown(bytes: &[u8]) -> Option<Vec<String>> {
    let at = bytes
        .windows(MARK.len())
        .position(|window| window == MARK)?;
    let variables = bytes[at + MARK.len()..]
        .split(|byte| *byte == 0)
        .map(byte_text::from_bytes);
    let of_login = |line: &String| {
        line.split_once('=')
            .is_some_and(|(name, _)| !name.is_empty() && !OF_THE_SHELL.contains(&name))
    };
    Some(variables.filter(of_login).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_login_files_print_is_no_variable() {
        let bytes = b"Welcome!\nquota: ok\nGSUB_LOGIN=1\0PATH=/opt/bin:/bin\0_=/usr/bin/env\0SHLVL=1\0MOTD=two\nlines\0ODD=\xff\0BROKEN\0";
        assert_eq!(
            shown(bytes).unwrap(),
            ["PATH=/opt/bin:/bin", "MOTD=two\nlines", "ODD=\u{10f7ff}"]
        );
        assert_eq!(shown(b"Welcome!\n"), None);
    }

    #[test]
    fn what_the_submission_has_counts() {
        let lines = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(
            added(
                lines("PATH=/bin EDITOR=vi LANG=C"),
                &lines("PATH=/mine LANG=")
            ),
            ["EDITOR=vi"]
        );
    }

    #[test]
    fn a_user_who_may_not_log_in_gets_the_common_shell() {
        let of = |shell: &str| {
            login_shell(&RunSetup {
                shell: shell.into(),
                ..RunSetup::default()
            })
        };
        assert_eq!(of("/bin/zsh"), Path::new("/bin/zsh"));
        assert_eq!(
            [of("/usr/sbin/nologin"), of("/bin/false"), of("")],
            ["/bin/sh"; 3].map(PathBuf::from)
        );
    }
}
