//! The start of a run's batch process: its user's login environment where that is asked for, then the program. A launch may hang in a
//! dead file system, so the loop watches it.

use std::path::PathBuf;

use anyhow::Context;
use gmodel::job_output::OutputPlace;
use gmodel::launch_order::LaunchOrder;
use gmodel::run::EndCause;
use gmodel::supervise::SupervisorReport;
use gsys::launch::{self, ErrorClass, LaunchError, LaunchSpec, PendingLaunch, Stage};
use gsys::process::Exit;
use nix::libc::{ENOENT, ENOTDIR, SIGKILL};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::{Supervisor, now};
use crate::batch;
use crate::container;
use crate::life::BootMillis;
use crate::login_environment::{self, LoginShell, LoginShellSpec};
use crate::output_spool::OutputSpool;
use crate::pam_session::PamSession;
use crate::run_dir::wall_clock;

impl Supervisor {
    pub(super) fn start(&mut self) -> anyhow::Result<()> {
        if self.order.holds_steps_only() {
            self.now_running(std::process::id());
            return Ok(());
        }
        let begun = match self.order.login_env_secs {
            None => self.spawn_batch(),
            Some(secs) => {
                let home = PathBuf::from(batch::os_string(&self.setup.home));
                self.start_login_shell(home, secs, now().plus_secs(secs))
            }
        };
        if let Err(failure) = begun {
            self.launch_failed(failure);
        }
        Ok(())
    }

    fn start_login_shell(
        &mut self,
        home: PathBuf,
        secs: u32,
        until: BootMillis,
    ) -> Result<(), LaunchFailure> {
        let join = self.processes.join_fds()?;
        self.login = Some(LoginShell::start(LoginShellSpec {
            order: &self.order,
            setup: &self.setup,
            home,
            limits: &self.limits,
            join: join.as_ref(),
            secs,
            until,
        })?);
        Ok(())
    }

    /// Ends the job where its login shell takes too long. One that the end of the job overtook is only waited for.
    pub(super) fn look_at_login(&mut self) {
        let Some(login) = self.login.as_mut().filter(|_| self.life.is_starting()) else {
            return;
        };
        if let Err(text) = login.look(&self.order.user.name, now()) {
            self.launch_failed(LaunchFailure {
                cause: EndCause::LaunchUser,
                text,
            });
        }
    }

    pub(super) fn login_ended(&mut self, login: LoginShell, exit: Exit) {
        let (session, until) = (login.pid(), login.deadline());
        // What it left behind in its session is none of the job's.
        let _ = self.processes.signal_session(session, SIGKILL);
        let ended = login.ended(&self.order.user.name, exit);
        if !self.life.is_starting() {
            return;
        }
        let begun = match ended {
            Ok(lines) => {
                let added = login_environment::added(lines, &self.order.environment);
                self.dir.log(&format!(
                    "{} variables of a login of {}",
                    added.len(),
                    self.order.user.name
                ));
                self.take_login_environment(added);
                self.spawn_batch()
            }
            Err(None) => self.start_login_shell(
                PathBuf::from("/"),
                self.order.login_env_secs.unwrap_or(1),
                until,
            ),
            Err(Some(text)) => Err(LaunchFailure {
                cause: EndCause::LaunchUser,
                text,
            }),
        };
        if let Err(failure) = begun {
            self.launch_failed(failure);
        }
    }

    /// As if the user had brought it along: what PAM says of the same names does not count over it.
    fn take_login_environment(&mut self, added: Vec<String>) {
        let of_session = |session: &Option<PamSession>, order: &LaunchOrder| -> Vec<String> {
            session
                .iter()
                .flat_map(|session| session.environment(&order.environment))
                .collect()
        };
        let before = of_session(&self.session, &self.order);
        self.order.environment.extend(added);
        let still = of_session(&self.session, &self.order);
        self.setup
            .environment
            .retain(|line| !before.contains(line) || still.contains(line));
    }

    fn spawn_batch(&mut self) -> Result<(), LaunchFailure> {
        let script = match self.order.script.is_empty() {
            true => None,
            false => Some(self.dir.place_script(&self.order.script, &self.setup)?),
        };
        if let Some(text) = self.limits.shortfall() {
            self.dir.log(&text);
        }
        let join = self.processes.join_fds()?;
        let mut spec = batch::launch_spec(
            &self.order,
            &self.setup,
            &self.limits,
            script.as_deref(),
            join.as_ref(),
            wall_clock(),
        )
        .map_err(|e| LaunchFailure {
            cause: EndCause::LaunchUser,
            text: e.to_string(),
        })?;
        container::contain_batch(&mut spec, &self.order, &self.setup, script.as_deref()).map_err(
            |e| LaunchFailure {
                cause: EndCause::LaunchNode,
                text: e.text,
            },
        )?;
        let rule = self.order.output.unwrap_or_default();
        if rule.place == OutputPlace::Spool && self.output.is_none() {
            self.output = Some(self.open_spool(&spec)?);
        }
        if let Some(output) = &self.output {
            output.receive(&mut spec);
        }
        let launching = launch::spawn(&spec)?;
        self.main_pid = Some(launching.pid());
        self.launching = Some(launching);
        Ok(())
    }

    fn open_spool(&self, spec: &LaunchSpec<'_>) -> anyhow::Result<OutputSpool> {
        let max_bytes = self.order.output.unwrap_or_default().max_bytes;
        let run = self.order.run.context("the order names no run")?;
        OutputSpool::open(self.dir.outputs_dir()?, run, max_bytes, spec)
    }

    /// Starts the batch process again where it found no directory for its output, as on a node without the cluster's file system.
    fn start_with_spool(&mut self, error: &LaunchError) -> bool {
        let is_missing = matches!(error.stage, Stage::Stdout | Stage::Stderr)
            && matches!(error.errno, ENOENT | ENOTDIR);
        if !is_missing || self.output.is_some() || !self.life.is_starting() {
            return false;
        }
        let Some(rule) = &mut self.order.output else {
            return false;
        };
        rule.place = OutputPlace::Spool;
        self.dir
            .log(&format!("{}; the output goes to the spool", error.text));
        if let Err(failure) = self.spawn_batch() {
            self.launch_failed(failure);
        }
        true
    }

    /// The child has become the program, or says why not. Called when it is known to have done either, or ended.
    pub(super) fn finish_launch(&mut self, launching: PendingLaunch) {
        match launching.finish() {
            Ok(launched) => self.now_running(launched.pid as u32),
            Err(error) => {
                self.main_pid = None;
                if self.start_with_spool(&error) {
                    return;
                }
                self.launch_failed(error.into());
            }
        }
    }

    pub(super) fn look_at_launch(&mut self) {
        self.look_at_checkpoint(false);
        let Some(launching) = &self.launching else {
            return;
        };
        let mut fds = [PollFd::new(launching.status_fd(), PollFlags::POLLIN)];
        let is_decided = poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0);
        if let Some(launching) = self.launching.take_if(|_| is_decided) {
            self.finish_launch(launching);
        }
    }

    /// Known to be decided when its status can be read, or when it has been reaped.
    pub(super) fn look_at_checkpoint(&mut self, is_reaped: bool) {
        let is_decided = |launching: &mut PendingLaunch| {
            let mut fds = [PollFd::new(launching.status_fd(), PollFlags::POLLIN)];
            is_reaped || poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
        };
        if let Some(launching) = self.checkpoint.take_if(is_decided)
            && let Err(e) = launching.finish()
        {
            self.checkpoint_pid = None;
            self.dir.log(&format!(
                "the checkpoint command was not started: {}",
                e.text
            ));
        }
    }

    fn now_running(&mut self, pid: u32) {
        self.life.started(now());
        if self.life.is_running() {
            let started = wall_clock();
            self.started = Some(started);
            self.began = Some(now());
            self.dir.log(&format!("running, pid {pid}"));
            self.control
                .publish(SupervisorReport::Running { pid, started });
        }
    }

    fn launch_failed(&mut self, failure: LaunchFailure) {
        self.dir.log(&format!("not started: {}", failure.text));
        let acts = self.life.launch_failed(now(), failure.cause, failure.text);
        self.carry_out(acts);
    }
}

/// Why the batch process does not run, and whether the user or the node is to blame.
struct LaunchFailure {
    cause: EndCause,
    text: String,
}

impl From<LaunchError> for LaunchFailure {
    fn from(error: LaunchError) -> LaunchFailure {
        let cause = match error.class {
            ErrorClass::User => EndCause::LaunchUser,
            ErrorClass::Node => EndCause::LaunchNode,
        };
        LaunchFailure {
            cause,
            text: error.text,
        }
    }
}

/// What fails here without a class of its own is the node's: spool and cgroup.
impl From<anyhow::Error> for LaunchFailure {
    fn from(error: anyhow::Error) -> LaunchFailure {
        LaunchFailure {
            cause: EndCause::LaunchNode,
            text: format!("{error:#}"),
        }
    }
}
