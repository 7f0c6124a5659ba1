//! The supervisor's loop: one thread, one poll. It feeds the life of the run with what happened (orders, ended children,
//! deadlines, an empty cgroup) and carries out what comes back. Decides nothing about when and why: that is `life`.

mod launch;

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use anyhow::Context;
use gmodel::ExitCode;
use gmodel::checkpoint::CheckpointMethod;
use gmodel::launch_order::LaunchOrder;
use gmodel::run::{EndCause, RunEnd, Usage};
use gmodel::supervise::{RunSetup, StepOrder, SupervisorCommand, SupervisorReport};
use gsys::clock::{BootTimer, boottime_millis};
use gsys::launch::{PendingLaunch, spawn};
use gsys::process::{self, Exit};
use nix::libc::SIGKILL;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::batch;
use crate::control::{self, Control, StepVisit};
use crate::job_processes::JobProcesses;
use crate::life::{BootMillis, Life, LifeAction, Terms};
use crate::login_environment::LoginShell;
use crate::mark_socket::MarkSocket;
use crate::output_spool::OutputSpool;
use crate::pam_session::PamSession;
use crate::record::{Record, shorten};
use crate::rendezvous::{self, PortLease};
use crate::resource_limits::JobLimits;
use crate::run_dir::{RunDir, wall_clock};
use crate::step::Steps;
use crate::step_task::Job;

/// Steps that may wait for this node's start; grun is told of more at once.
const MAX_EARLY_STEPS: usize = 64;
/// After the end gpud has this long to fetch it from the socket; it is in `exit.json` too.
const LINGER_MILLIS: u64 = 10_000;
/// Signals that would end or stop the supervisor. Only an order ends a job.
pub const DEAF_TO: [Signal; 9] = [
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
    Signal::SIGTSTP,
    Signal::SIGPIPE,
];

/// Everything of one supervised run.
pub struct Supervisor {
    dir: RunDir,
    order: LaunchOrder,
    setup: RunSetup,
    life: Life,
    processes: JobProcesses,
    limits: JobLimits,
    /// Where the site has one for jobs.
    session: Option<PamSession>,
    /// Turns ready when the job's cgroup empties.
    events: Option<File>,
    control: Control,
    /// Until the end is on record; none where it could not be made.
    marks: Option<MarkSocket>,
    /// The port of the batch script.
    _port: Option<PortLease>,
    signals: SignalFd,
    timer: BootTimer,
    record: Record,
    launching: Option<PendingLaunch>,
    /// The login shell that gives the batch process its environment, until the shell has been reaped.
    login: Option<LoginShell>,
    /// The batch process: from its start until it has been reaped.
    main_pid: Option<i32>,
    /// Where the batch process writes to the spool.
    output: Option<OutputSpool>,
    /// The command of `--checkpoint`, on its way, and its process.
    checkpoint: Option<PendingLaunch>,
    checkpoint_pid: Option<i32>,
    started: Option<gmodel::Timestamp>,
    /// The same by a clock that is never set.
    began: Option<BootMillis>,
    steps: Steps,
    early_steps: Vec<StepOrder>,
    /// In this turn a kill found no process.
    found_empty: bool,
    leave_at: Option<BootMillis>,
}

/// What can be read without waiting.
struct ReadySources {
    control: bool,
    marks: bool,
}

impl Supervisor {
    /// Makes everything ready that can fail before the start, and says so on `connection`. Nothing of the user runs yet.
    pub fn prepare(
        mut dir: RunDir,
        order: LaunchOrder,
        mut setup: RunSetup,
        record: Record,
        connection: Option<UnixStream>,
    ) -> anyhow::Result<Supervisor> {
        anyhow::ensure!(order.run.is_some(), "order.json names no run");
        let root_job = setup.uid == 0 && !setup.cgroup_tag.is_empty();
        anyhow::ensure!(
            !root_job || order.allow_root,
            "jobs of uid 0 are refused here: allow_root_jobs is not set"
        );
        let signals = deaf_signals()?;
        process::set_child_subreaper().context("becoming the sub-reaper")?;
        let processes = JobProcesses::open(&setup)?;
        let session = match setup.pam_service.as_str() {
            "" => None,
            service => Some(PamSession::open(service, &order.user.name)?),
        };
        setup.environment.extend(
            session
                .iter()
                .flat_map(|session| session.environment(&order.environment)),
        );
        let of_session = session.iter().flat_map(PamSession::limits);
        let (marks, port) = prepare_places(&mut dir, &order, &mut setup);
        let ready = SupervisorReport::Ready {
            pid: std::process::id(),
        };
        Ok(Supervisor {
            life: Life::new(terms_of(&order)),
            limits: JobLimits::new(of_session.copied().collect(), &order.rlimits),
            session,
            events: processes.events_file(),
            control: Control::listen(&dir.control_places(&setup)?, ready, connection)
                .context("making the control socket")?,
            marks,
            _port: port,
            timer: BootTimer::new().context("making a timer")?,
            dir,
            order,
            setup,
            processes,
            signals,
            record,
            launching: None,
            login: None,
            main_pid: None,
            output: None,
            checkpoint: None,
            checkpoint_pid: None,
            started: None,
            began: None,
            steps: Steps::default(),
            early_steps: Vec::new(),
            found_empty: false,
            leave_at: None,
        })
    }

    /// Runs until the end is recorded and told; then this process ends.
    pub fn run(mut self) -> anyhow::Result<std::convert::Infallible> {
        let mut end_is_known = false;
        loop {
            let ready = self.wait()?;
            // Before the orders: a mark that was sent before the job was asked for it is only a mark.
            if ready.marks {
                self.take_marks();
            }
            let acknowledged = ready.control && self.take_orders();
            if let Some(output) = &mut self.output {
                output.take_some();
            }
            self.reap();
            self.look_at_login();
            self.look_at_launch();
            let due = self.life.tick(now());
            self.carry_out(due);
            self.begin_early_steps();
            self.look_whether_empty();
            let job = Job {
                order: &self.order,
                setup: &self.setup,
                processes: &self.processes,
                limits: &self.limits,
            };
            self.steps.service(&job, now());
            self.steps
                .take_notes()
                .iter()
                .for_each(|note| self.dir.log(note));
            end_is_known |= acknowledged;
            let told = end_is_known && self.steps.is_quiet();
            if self.life.is_recorded() && (told || self.leave_at.is_some_and(|at| now() >= at)) {
                self.leave();
            }
        }
    }

    /// Takes away what others would see and goes at once: to give back memory piece by piece costs a copy of each page of it.
    fn leave(self) -> ! {
        let Supervisor {
            control, session, ..
        } = self;
        drop((control, session));
        process::leave()
    }

    fn next_deadline(&self) -> Option<BootMillis> {
        let marks = self.marks.as_ref().filter(|_| self.life.is_running());
        let login = self.login.as_ref().filter(|_| self.life.is_starting());
        let deadlines = [
            self.leave_at,
            self.life.next_deadline(),
            self.steps.next_deadline(),
            marks.and_then(|marks| marks.next_deadline(now())),
            login.map(LoginShell::deadline),
        ];
        deadlines.into_iter().flatten().min()
    }

    fn wait(&mut self) -> anyhow::Result<ReadySources> {
        match self.next_deadline() {
            Some(at) => self.timer.set(at.0)?,
            None => self.timer.disarm()?,
        }
        let marks = self.marks.as_ref().filter(|_| self.life.is_running());
        let login = self.login.as_ref().filter(|_| self.life.is_starting());
        let mut fds = vec![
            PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.timer.as_fd(), PollFlags::POLLIN),
        ];
        fds.extend(
            self.events
                .iter()
                .map(|file| PollFd::new(file.as_fd(), PollFlags::POLLPRI)),
        );
        let of_control = fds.len();
        fds.extend(self.control.fds().map(readable));
        let of_marks = fds.len();
        fds.extend(
            marks
                .iter()
                .flat_map(|marks| marks.fds(now()))
                .map(readable),
        );
        let of_others = fds.len();
        let launching = self.launching.iter().chain(&self.checkpoint);
        fds.extend(launching.map(|l| readable(l.status_fd())));
        fds.extend(login.and_then(LoginShell::output_fd).map(readable));
        fds.extend(self.output.iter().flat_map(OutputSpool::fds).map(readable));
        fds.extend(
            self.steps
                .poll_fds()
                .into_iter()
                .map(|(fd, flags)| PollFd::new(fd, flags)),
        );
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) | Err(nix::Error::EINTR) => {}
            Err(e) => return Err(e).context("poll"),
        }
        let is_ready = |fd: &PollFd<'_>| fd.any() == Some(true);
        let [signals, timer] = [0, 1].map(|at| is_ready(&fds[at]));
        let events = fds[2..of_control].iter().any(is_ready);
        let control = fds[of_control..of_marks].iter().any(is_ready);
        let marks = fds[of_marks..of_others].iter().any(is_ready);
        if timer {
            self.timer.take_expiry()?;
        }
        while signals && matches!(self.signals.read_signal(), Ok(Some(_))) {}
        if events {
            self.take_cgroup_event();
        }
        Ok(ReadySources { control, marks })
    }

    /// Reading takes the event; the cgroup itself says whether it is empty.
    fn take_cgroup_event(&mut self) {
        use std::io::{Read, Seek};
        if let Some(file) = &mut self.events {
            let _ = file.rewind().and_then(|()| file.read(&mut [0; 256]));
        }
    }

    /// Only while the program runs: before that no process of the job exists.
    fn take_marks(&mut self) {
        let Some(marks) = self.marks.as_mut().filter(|_| self.life.is_running()) else {
            return;
        };
        for mark in marks.receive(now(), wall_clock()) {
            let is_answer = self.life.marked(now(), mark.number);
            // Not each: a log that takes one a second for a week fills the spool.
            if mark.number == 1 || is_answer {
                self.dir
                    .log(&format!("checkpoint mark {} {}", mark.number, mark.note));
            }
            self.control.publish_mark(mark);
        }
    }

    /// True when a peer that knows the end has gone.
    fn take_orders(&mut self) -> bool {
        let input = self.control.receive();
        for order in input.orders {
            let acts = match order {
                SupervisorCommand::Go => self.life.go(now()),
                SupervisorCommand::Stop { why, grace_secs } => {
                    self.life.stop(now(), why, grace_secs)
                }
                SupervisorCommand::Signal { signal } => self.life.signal(signal),
                SupervisorCommand::Limit { limit_secs } => {
                    self.life.set_limit(limit_secs, now());
                    Vec::new()
                }
                SupervisorCommand::Suspend { suspended } => {
                    self.life.set_suspended(suspended);
                    Vec::new()
                }
                SupervisorCommand::Step { step } => {
                    self.begin_step(*step);
                    Vec::new()
                }
                // They come as visits.
                SupervisorCommand::Attach { .. } | SupervisorCommand::SignalStep { .. } => {
                    Vec::new()
                }
                SupervisorCommand::Unknown => {
                    self.dir
                        .log("an order that this release does not know was passed over");
                    Vec::new()
                }
            };
            self.carry_out(acts);
        }
        for visit in input.visits {
            self.receive_visit(visit);
        }
        input.acknowledged
    }

    /// Answers on the connection. That of a stream is its step's from then on.
    fn receive_visit(&mut self, visit: StepVisit) {
        let StepVisit {
            order,
            mut stream,
            read,
        } = visit;
        match order {
            SupervisorCommand::Attach { step, watch: true } => {
                let found = self.steps.watchers_of(step);
                let answer = found.as_ref().err().unwrap_or(&SupervisorReport::Attached);
                if control::write_line(&mut stream, answer).is_ok()
                    && let Ok(watchers) = found
                {
                    let _ = watchers.add(stream, read, now());
                }
            }
            SupervisorCommand::Attach { step, watch: false } => {
                let found = self.steps.stream_of(step);
                let answer = found.as_ref().err().unwrap_or(&SupervisorReport::Attached);
                // It fits into any socket's buffer. What the step sends comes behind it.
                if control::write_line(&mut stream, answer).is_ok()
                    && let Ok(link) = found
                {
                    // A connection that fails may be made again.
                    let _ = link.attach(stream, read);
                }
            }
            SupervisorCommand::SignalStep { step, signal } => {
                let job = Job {
                    order: &self.order,
                    setup: &self.setup,
                    processes: &self.processes,
                    limits: &self.limits,
                };
                let done = self.steps.signal(&job, step, signal, now());
                let answer = done.err().unwrap_or(SupervisorReport::StepSignalled);
                // A peer that is gone needs no answer.
                let _ = control::write_line(&mut stream, &answer);
            }
            _ => {}
        }
    }

    /// Steps that came before this node was told to go: the batch script of another node was quicker.
    fn begin_early_steps(&mut self) {
        if self.life.is_running() || self.life.is_ending() {
            for step in std::mem::take(&mut self.early_steps) {
                self.begin_step(step);
            }
        }
    }

    fn begin_step(&mut self, step: StepOrder) {
        let waits = !self.life.is_running() && !self.life.is_ending();
        if waits && self.early_steps.len() < MAX_EARLY_STEPS {
            self.early_steps.push(step);
            return;
        }
        let number = step.step;
        let running = self.life.is_running() && !self.life.is_ending();
        let refusal = (!running).then(|| "the job is not running on this node".to_owned());
        if let Err(e) = self.steps.begin(step, refusal, now()) {
            self.dir
                .log(&format!("step {number} was not started: {e:#}"));
        }
    }

    fn carry_out(&mut self, acts: Vec<LifeAction>) {
        for act in acts {
            let done = match act {
                LifeAction::Start => self.start(),
                LifeAction::Signal {
                    signal, full: true, ..
                } => self.processes.signal(i32::from(signal), None),
                LifeAction::Signal {
                    signal,
                    batch_only: false,
                    ..
                } => self.signal_job(signal),
                LifeAction::Signal {
                    signal,
                    batch_only: true,
                    ..
                } => self.signal_main(signal),
                LifeAction::Warn { signal, batch_only } => self.warn(signal, batch_only),
                LifeAction::Checkpoint => self.ask_for_checkpoint(),
                LifeAction::Freeze => {
                    self.dir.log("suspended");
                    self.processes.freeze(true)
                }
                LifeAction::Thaw => {
                    self.dir.log("resumed");
                    self.processes.freeze(false)
                }
                LifeAction::Terminate => {
                    self.dir.log("SIGTERM to the job");
                    self.life
                        .terminating(self.main_pid.is_some_and(JobProcesses::dies_of_term));
                    self.processes.terminate(self.main_pid)
                }
                LifeAction::Kill => {
                    // It may not have come as far as its cgroup.
                    let login = self.login.iter().map(LoginShell::pidfd);
                    for on_its_way in self
                        .launching
                        .iter()
                        .chain(&self.checkpoint)
                        .map(PendingLaunch::pidfd)
                        .chain(login)
                    {
                        let _ = process::pidfd_signal(on_its_way, SIGKILL);
                    }
                    self.processes
                        .kill()
                        .map(|found_empty| self.found_empty = found_empty)
                }
                LifeAction::Record => self.record_end(),
            };
            if let Err(e) = done {
                self.dir.log(&format!("{act:?}: {e:#}"));
            }
        }
    }

    /// Reaps everything that has ended: the batch process, and orphans that fell to the sub-reaper.
    fn reap(&mut self) {
        for child in process::reap_all() {
            let (pid, exit) = (child.pid, child.exit);
            let job = Job {
                order: &self.order,
                setup: &self.setup,
                processes: &self.processes,
                limits: &self.limits,
            };
            if self.checkpoint_pid == Some(pid) {
                self.look_at_checkpoint(true);
                if self.checkpoint_pid.take().is_some() {
                    self.dir.log(&format!(
                        "the checkpoint command ended, {}",
                        exit_code(exit)
                    ));
                }
                continue;
            }
            if let Some(login) = self.login.take_if(|login| login.pid() == pid) {
                self.login_ended(login, exit);
                continue;
            }
            if self.main_pid != Some(pid) {
                self.steps.reaped(&job, &child, exit_code(exit));
                continue;
            }
            if let Some(launching) = self.launching.take() {
                self.finish_launch(launching);
            }
            // A launch that failed may have been begun anew.
            if self.main_pid.take_if(|main| *main == pid).is_some() {
                let exit = exit_code(exit);
                self.dir.log(&format!("the batch process ended, {exit}"));
                let acts = self.life.main_ended(now(), exit);
                self.carry_out(acts);
            }
        }
    }

    fn look_whether_empty(&mut self) {
        let holds_steps_only = self.order.holds_steps_only();
        if !(self.life.is_ending() || holds_steps_only && self.life.waits_to_stop()) {
            return;
        }
        // No process can have come since the kill of this turn, except by a launch under way.
        let found_empty = std::mem::take(&mut self.found_empty)
            && self.launching.is_none()
            && self.checkpoint.is_none()
            && self.login.is_none();
        match if found_empty {
            Ok(true)
        } else {
            self.processes.is_empty()
        } {
            Ok(true) => {
                if holds_steps_only {
                    let acts = self.life.deserted(now());
                    self.carry_out(acts);
                }
                let acts = if self.login.is_some() {
                    Vec::new()
                } else {
                    self.life.emptied(self.main_pid.is_some())
                };
                self.carry_out(acts);
            }
            Ok(false) => self.look_whether_logins_are_left(),
            Err(e) => self.dir.log(&format!("looking for processes: {e:#}")),
        }
    }

    /// No end of a job waits for a login.
    fn look_whether_logins_are_left(&mut self) {
        if !JobProcesses::own_are_over() {
            return;
        }
        if self.order.holds_steps_only() {
            let acts = self.life.deserted(now());
            self.carry_out(acts);
        }
        if self.life.is_ending() {
            self.carry_out(vec![LifeAction::Kill]);
        }
    }

    fn signal_main(&self, signal: u8) -> anyhow::Result<()> {
        let Some(pid) = self.main_pid else {
            return Ok(());
        };
        // A child that is not reaped yet, so the number is still its own.
        let pidfd = process::pidfd_open(pid)?;
        Ok(process::pidfd_signal(pidfd.as_fd(), i32::from(signal))?)
    }

    /// The shell that runs a script gets no signal, as in Slurm, unless it is the only process. SIGKILL goes to all.
    fn signal_job(&self, signal: u8) -> anyhow::Result<()> {
        let shell = self
            .main_pid
            .filter(|_| !self.order.script.is_empty() && i32::from(signal) != SIGKILL);
        match shell {
            Some(shell) if self.processes.is_alone(shell)? => self.signal_main(signal),
            shell => self.processes.signal(i32::from(signal), shell),
        }
    }

    /// Without `B:` the shell that runs a script is spared, as in Slurm: a warning that it does not trap would end the job.
    fn warn(&mut self, signal: u8, batch_only: bool) -> anyhow::Result<()> {
        self.dir
            .log(&format!("warning before the time limit: signal {signal}"));
        match batch_only {
            true => self.signal_main(signal),
            false => self.processes.signal(
                i32::from(signal),
                self.main_pid.filter(|_| !self.order.script.is_empty()),
            ),
        }
    }

    /// By signal on every node of the run, by its command on the first.
    fn ask_for_checkpoint(&mut self) -> anyhow::Result<()> {
        let Some(checkpoint) = self.order.checkpoint.clone() else {
            return Ok(());
        };
        self.dir
            .log(&format!("asked for a checkpoint: {checkpoint}"));
        match checkpoint.how {
            CheckpointMethod::Signal(signal) => self.processes.ask(
                i32::from(signal),
                self.main_pid.filter(|_| !self.order.script.is_empty()),
            ),
            CheckpointMethod::Command(_) if self.order.node_index != 0 => Ok(()),
            CheckpointMethod::Command(command) => {
                let join = self.processes.join_fds()?;
                let started = self.started.unwrap_or_else(wall_clock);
                let mut spec = batch::checkpoint_spec(
                    &command,
                    &self.order,
                    &self.setup,
                    &self.limits,
                    join.as_ref(),
                    started,
                )?;
                if let Some(output) = &self.output {
                    output.receive(&mut spec);
                }
                let launching = spawn(&spec).map_err(|e| anyhow::anyhow!(e.text))?;
                self.checkpoint_pid = Some(launching.pid());
                self.checkpoint = Some(launching);
                Ok(())
            }
        }
    }

    fn record_end(&mut self) -> anyhow::Result<()> {
        // From now on gpud may send it to the controller.
        if let Some(mut output) = self.output.take() {
            output.take_some();
        }
        let mut usage = self.processes.usage().unwrap_or_else(|e| {
            self.dir.log(&format!("usage is lost: {e:#}"));
            Usage::default()
        });
        usage.oom_kills = self.steps.kills_of_job(usage.oom_kills, &self.processes);
        let (cause, exit, text) = self.life.end(usage.oom_kills);
        let text = if cause == EndCause::OutOfMemory {
            out_of_memory_text(&usage, self.setup.mem_limit_bytes)
        } else {
            text
        };
        let answered = self.life.was_answered();
        let ran_millis = self.began.map(|began| now().0.saturating_sub(began.0));
        let ended = Some(wall_clock());
        let end = RunEnd {
            cause,
            exit,
            text: shorten(&text),
            answered,
            started: self.started,
            ended,
            ran_millis,
            usage,
            ..RunEnd::default()
        };
        self.marks = None;
        self.dir.remove_user_files(&self.setup);
        let written = self.record.write(&end).context("writing exit.json");
        self.dir.log(&format!("ended: {cause:?} {exit} {text}"));
        self.control.publish(SupervisorReport::Ended { end });
        self.close_session();
        self.leave_at = Some(BootMillis(now().0 + LINGER_MILLIS));
        written
    }

    /// After the end is on record and reported, since a module may block. A session that cannot be closed ends with this process.
    fn close_session(&mut self) {
        if let Some(Err(e)) = self.session.as_mut().map(PamSession::close) {
            self.dir.log(&format!("{e:#}"));
        }
    }
}

fn terms_of(order: &LaunchOrder) -> Terms {
    let checkpoint = order.checkpoint.as_ref();
    Terms {
        limit_secs: order.limit_secs,
        kill_grace_secs: order.kill_grace_secs,
        warning: order.signal,
        checkpoint_secs: checkpoint.map(|checkpoint| checkpoint.grace_secs),
    }
}

/// A job without it still has its grace when it must go.
fn mark_socket(dir: &mut RunDir, setup: &mut RunSetup) -> Option<MarkSocket> {
    let listening = dir.listen_for_marks(setup).and_then(|(listener, seen)| {
        setup
            .environment
            .push(format!("GSUB_MARK_SOCKET={}", seen.display()));
        Ok(MarkSocket::new(listener, setup.uid)?)
    });
    listening
        .map_err(|e| dir.log(&format!("no mark of a checkpoint can be taken: {e:#}")))
        .ok()
}

/// Where the job's processes mark checkpoints, and meet. What cannot be had they do without.
fn prepare_places(
    dir: &mut RunDir,
    order: &LaunchOrder,
    setup: &mut RunSetup,
) -> (Option<MarkSocket>, Option<PortLease>) {
    let marks = mark_socket(dir, setup);
    place_node_file(dir, order, setup);
    (marks, rendezvous::of_batch(order, setup))
}

/// A job without it still has its nodes in `SLURM_JOB_NODELIST`.
fn place_node_file(dir: &mut RunDir, order: &LaunchOrder, setup: &mut RunSetup) {
    let names: String = order
        .nodes
        .iter()
        .map(|node| format!("{}\n", node.name))
        .collect();
    match dir.place_nodes(&names, setup) {
        Ok(seen) => setup
            .environment
            .push(format!("GSUB_NODEFILE={}", seen.display())),
        Err(e) => dir.log(&format!("the job has no file of its nodes: {e:#}")),
    }
}

fn readable(fd: BorrowedFd<'_>) -> PollFd<'_> {
    PollFd::new(fd, PollFlags::POLLIN)
}

fn now() -> BootMillis {
    BootMillis(boottime_millis())
}

/// Blocked and read from a descriptor: ignored ones would stay ignored in the job, and a handler needs `unsafe`.
fn deaf_signals() -> anyhow::Result<SignalFd> {
    let mut set: SigSet = DEAF_TO.into_iter().collect();
    set.add(Signal::SIGCHLD);
    set.thread_block().context("blocking signals")?;
    SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
        .context("making a signalfd")
}

fn exit_code(exit: Exit) -> ExitCode {
    match exit {
        Exit::Code(code) => ExitCode::exited(code as u8),
        Exit::Signal(signal, _) => ExitCode::killed(signal as u8),
    }
}

fn out_of_memory_text(usage: &Usage, limit_bytes: Option<u64>) -> String {
    let (killed, peak_mib) = (usage.oom_kills, usage.peak_memory_bytes >> 20);
    let processes = if killed == 1 { "process" } else { "processes" };
    match limit_bytes.map(|bytes| bytes >> 20) {
        None => format!(
            "the kernel killed {killed} {processes} for want of memory; the peak was {peak_mib} MiB"
        ),
        Some(limit_mib) => format!(
            "the kernel killed {killed} {processes} for want of memory: the limit is {limit_mib} MiB, the peak was \
             {peak_mib} MiB. Ask for more with --mem"
        ),
    }
}
