//! Steps: tasks that grun starts inside a job, in the job's cgroup and as its user, their output sent to grun. A step
//! ends with its tasks, with its grun or with the job. Each task has a session of its own, which is what dies with it.
//! Source: srun(1) for ranks, environment and what a task's end takes along.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use gmodel::ExitCode;
use gmodel::launch_order::LaunchOrder;
use gmodel::supervise::{Setup, StepInput, StepOrder, StepOutput, StepStream};
use gsys::cpu::Affinity;
use gsys::launch::{self, LaunchError, LaunchSpec, Launching, Stdio};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::libc::{ENOENT, SIGCONT, SIGKILL, SIGTERM};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::pipe2;

use crate::batch::{binds, identity, set_limits, split_variables};
use crate::environment;
use crate::job_processes::JobProcesses;
use crate::life::Boot;
use crate::resource_limits::JobLimits;
use crate::step_link::StepLink;
use crate::task_binding::{self, TaskBinding};
use crate::task_input::{StepInputs, TaskInput};

/// Each task holds three pipes and, while it starts, two descriptors more.
const MAX_TASKS: usize = 1024;
/// grun has to take the connection, and at the end the last output, within this time.
const GRUN_PATIENCE_SECS: u32 = 10;
const PIECE_BYTES: usize = 32 << 10;

/// What a task is started with, beside its own order.
pub struct Job<'a> {
    pub order: &'a LaunchOrder,
    pub setup: &'a Setup,
    pub processes: &'a JobProcesses,
    pub limits: &'a JobLimits,
}

/// All steps of the run on this node.
#[derive(Default)]
pub struct Steps {
    live: Vec<Step>,
    /// Orders may come twice; a step is started once.
    seen: BTreeSet<u32>,
}

struct Step {
    order: StepOrder,
    link: Option<StepLink>,
    phase: Phase,
    tasks: Vec<Task>,
    inputs: StepInputs,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Waiting for grun to take the connection; given up at the instant.
    Connecting(Boot),
    Running,
    /// grun is gone: SIGTERM was sent, SIGKILL follows.
    Deserted(Boot),
    Killed,
    /// No task is left; the last output is being sent.
    Flushing(Boot),
}

struct Task {
    rank: u32,
    launching: Option<Launching>,
    /// Until it has been reaped.
    pid: Option<i32>,
    session: i32,
    /// Read ends of its stdout and stderr, until they end.
    pipes: [Option<File>; 2],
    stdin: Option<TaskInput>,
    exit: Option<(ExitCode, String)>,
    told: bool,
}

impl Steps {
    /// Begins a step, or says why not: to grun where it can be reached, and as the error to log.
    pub fn begin(&mut self, order: StepOrder, refusal: Option<String>, now: Boot) -> anyhow::Result<()> {
        if !self.seen.insert(order.step) {
            return Ok(());
        }
        let mut link = StepLink::open(&order.connect)?;
        link.send(&StepOutput::Hello { step: order.step, node_index: order.node_index, key: order.key.clone() });
        let too_many = order.ranks.len() > MAX_TASKS;
        let bound = too_many.then(|| format!("{} tasks on one node, and {MAX_TASKS} are the most", order.ranks.len()));
        let refusal = refusal.or(bound);
        let until = now.plus_secs(GRUN_PATIENCE_SECS);
        let phase = match &refusal {
            Some(text) => {
                link.send(&StepOutput::Refused { text: text.clone() });
                Phase::Flushing(until)
            }
            None => Phase::Connecting(until),
        };
        self.live.push(Step { order, link: Some(link), phase, tasks: Vec::new(), inputs: StepInputs::default() });
        refusal.map_or(Ok(()), |text| Err(anyhow::Error::msg(text)))
    }

    /// What to poll, and for what.
    pub fn poll_fds(&self) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        self.live.iter().flat_map(Step::poll_fds).collect()
    }

    pub fn next_deadline(&self) -> Option<Boot> {
        let deadline = |step: &Step| match step.phase {
            Phase::Connecting(at) | Phase::Deserted(at) | Phase::Flushing(at) => Some(at),
            Phase::Running | Phase::Killed => None,
        };
        self.live.iter().filter_map(deadline).min()
    }

    /// Nothing is left to be told to any grun.
    pub fn is_quiet(&self) -> bool {
        self.live.is_empty()
    }

    /// A child was reaped. If it was a task, what it leaves behind in its session goes with it.
    pub fn reaped(&mut self, job: &Job<'_>, pid: i32, exit: ExitCode) {
        let mut tasks = self.live.iter_mut().flat_map(|step| step.tasks.iter_mut());
        let Some(task) = tasks.find(|task| task.pid == Some(pid)) else { return };
        task.finish_launch_of_the_dead();
        task.pid = None;
        task.exit.get_or_insert((exit, String::new()));
        // A cgroup that cannot be listed is found out by the supervisor itself.
        let _ = job.processes.signal_session(task.session, SIGKILL);
    }

    /// Moves every step on: connections, output, deadlines. Never blocks.
    pub fn service(&mut self, job: &Job<'_>, now: Boot) {
        for step in &mut self.live {
            step.service(job, now);
        }
        self.live.retain(|step| !step.is_over());
    }
}

impl Step {
    fn service(&mut self, job: &Job<'_>, now: Boot) {
        self.service_link(job, now);
        if matches!(self.phase, Phase::Connecting(_)) && self.link.as_ref().is_some_and(StepLink::is_connected) {
            self.phase = Phase::Running;
            let job = Job { setup: &task_binding::seen_by(&self.order, job.setup), ..*job };
            self.tasks = (0..self.order.ranks.len()).map(|local| Task::start(&self.order, &job, local)).collect();
        }
        for task in &mut self.tasks {
            task.look_at_launch(self.link.as_mut());
            task.forward(self.link.as_mut());
        }
        match self.phase {
            Phase::Deserted(at) if now >= at => {
                self.signal(job, SIGKILL);
                self.phase = Phase::Killed;
            }
            Phase::Running | Phase::Deserted(_) | Phase::Killed if self.tasks.iter().all(|task| task.told) => {
                self.phase = Phase::Flushing(now.plus_secs(GRUN_PATIENCE_SECS));
            }
            Phase::Connecting(at) | Phase::Flushing(at) if now >= at => self.link = None,
            _ => {}
        }
        // What was just queued goes out now, not at the next event. Input may have come by either look.
        self.service_link(job, now);
        self.feed();
        let sent = |link: &mut StepLink| link.is_connected() && link.is_flushed();
        if matches!(self.phase, Phase::Flushing(_))
            && let Some(link) = self.link.take_if(sent)
        {
            link.finish();
        }
    }

    fn service_link(&mut self, job: &Job<'_>, now: Boot) {
        let Some(link) = &mut self.link else { return };
        if link.service().and_then(|inputs| self.obey(job, inputs)).is_err() {
            self.link = None;
            if self.phase == Phase::Running {
                self.signal(job, SIGTERM);
                self.signal(job, SIGCONT);
                self.phase = Phase::Deserted(now.plus_secs(job.order.kill_grace_secs));
            }
        }
    }

    fn obey(&mut self, job: &Job<'_>, inputs: Vec<StepInput>) -> io::Result<()> {
        for input in inputs {
            match input {
                StepInput::Signal { signal } => self.signal(job, i32::from(signal)),
                StepInput::Stdin { rank, bytes } => self.inputs.take(rank, &bytes)?,
                StepInput::Unknown => {}
            }
        }
        Ok(())
    }

    /// Gives the tasks what they have room for, and tells grun what they took.
    fn feed(&mut self) {
        if self.tasks.is_empty() {
            return;
        }
        for task in &mut self.tasks {
            if task.exit.is_some() || self.link.is_none() {
                task.stdin = None;
            }
            self.inputs.write_to(task.rank, &mut task.stdin);
        }
        let taken = self.inputs.forget(self.tasks.iter().filter_map(|task| task.stdin.as_ref()));
        if let (1.., Some(link)) = (taken, &mut self.link) {
            link.send(&StepOutput::Taken { bytes: taken as u32 });
        }
    }

    fn signal(&self, job: &Job<'_>, signal: i32) {
        for task in self.tasks.iter().filter(|task| task.pid.is_some()) {
            let _ = job.processes.signal_session(task.session, signal);
        }
    }

    /// Without a link there is nobody to tell; then only tasks keep a step.
    fn is_over(&self) -> bool {
        self.link.is_none() && self.tasks.iter().all(|task| task.told)
    }

    fn poll_fds(&self) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        let mut fds: Vec<_> = self.link.iter().map(|link| (link.fd(), link.wants())).collect();
        let readable = self.link.as_ref().is_none_or(StepLink::has_room);
        for task in &self.tasks {
            fds.extend(task.launching.iter().map(|l| (l.status_fd(), PollFlags::POLLIN)));
            if readable {
                fds.extend(task.pipes.iter().flatten().map(|pipe| (pipe.as_fd(), PollFlags::POLLIN)));
            }
            fds.extend(task.stdin.iter().filter_map(|stdin| Some((self.inputs.waits_for(stdin)?, PollFlags::POLLOUT))));
        }
        fds
    }
}

impl Task {
    /// A task that cannot be started has ended already, with the text that says why.
    fn start(order: &StepOrder, job: &Job<'_>, local: usize) -> Task {
        let rank = order.ranks[local];
        let mut task =
            Task { rank, launching: None, pid: None, session: 0, pipes: [None, None], stdin: None, exit: None, told: false };
        match spawn(order, job, local) {
            Ok((launching, stdin, pipes)) => {
                task.stdin = Some(TaskInput::new(stdin));
                task.pid = Some(launching.pid());
                // The child makes itself a session, whose number is its pid.
                task.session = launching.pid();
                task.launching = Some(launching);
                task.pipes = pipes.map(Some);
            }
            Err(failure) => task.exit = Some(failure),
        }
        task
    }

    fn look_at_launch(&mut self, link: Option<&mut StepLink>) {
        let Some(launching) = &self.launching else { return };
        let mut fds = [PollFd::new(launching.status_fd(), PollFlags::POLLIN)];
        if !poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0) {
            return;
        }
        match self.launching.take().map(Launching::finish) {
            Some(Ok(launched)) => {
                let started = StepOutput::Started { rank: self.rank, pid: launched.pid as u32 };
                if let Some(link) = link {
                    link.send(&started);
                }
            }
            Some(Err(e)) => {
                self.pid = None;
                self.exit = Some(failure(&e));
            }
            None => {}
        }
    }

    /// The child has ended before its start was looked at: what the start came to is known now.
    fn finish_launch_of_the_dead(&mut self) {
        if let Some(Err(e)) = self.launching.take().map(Launching::finish) {
            self.exit = Some(failure(&e));
        }
    }

    /// Sends what the task wrote, as far as there is room. When it has ended and its pipes are drained, its end is told.
    /// Without a connection the output goes nowhere.
    fn forward(&mut self, mut link: Option<&mut StepLink>) {
        let ended = self.exit.is_some() && self.pid.is_none();
        for (pipe, stream) in self.pipes.iter_mut().zip([StepStream::Stdout, StepStream::Stderr]) {
            while let Some(file) = pipe {
                if link.as_ref().is_some_and(|link| !link.has_room()) {
                    return;
                }
                let mut piece = vec![0; PIECE_BYTES];
                match file.read(&mut piece) {
                    Ok(count) if count > 0 => {
                        piece.truncate(count);
                        let output = StepOutput::Output { rank: self.rank, stream, bytes: piece };
                        if let Some(link) = &mut link {
                            link.send(&output);
                        }
                    }
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    // A killed descendant may still hold the pipe for a moment; it has nothing more to say.
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock && !ended => break,
                    _ => *pipe = None,
                }
            }
        }
        if let (true, false, Some((exit, text))) = (ended, self.told, &self.exit) {
            let output = StepOutput::Ended { rank: self.rank, exit: *exit, text: text.clone() };
            if let Some(link) = link {
                link.send(&output);
            }
            self.told = true;
        }
    }
}

type Failure = (ExitCode, String);

/// The start of a task, and our ends of its stdin, and of its stdout and stderr.
fn spawn(order: &StepOrder, job: &Job<'_>, local: usize) -> Result<(Launching, File, [File; 2]), Failure> {
    let node_failure = |e: &dyn std::fmt::Display| (ExitCode::exited(126), e.to_string());
    let join = job.processes.join_fds().map_err(|e| node_failure(&e))?;
    let (reader, stdin) = pipe2(OFlag::O_CLOEXEC).map_err(|e| node_failure(&e))?;
    let stdin = not_blocking(stdin).map_err(|e| node_failure(&e))?;
    let (out, out_writer) = output_pipe().map_err(|e| node_failure(&e))?;
    let (err, err_writer) = output_pipe().map_err(|e| node_failure(&e))?;
    let bound = TaskBinding::of(job.order, job.setup, order, local).map_err(|text| (ExitCode::exited(1), text))?;
    say(&err_writer, &bound.words).map_err(|e| node_failure(&e))?;
    let mut spec = LaunchSpec::new(order.argv.iter().map(OsString::from).collect(), identity(job.setup));
    spec.env = split_variables(environment::task(job.order, job.setup, order, local, &bound));
    spec.affinity = bound.cpus.as_deref().map(Affinity::new);
    spec.pid_variables = environment::PID_NAMES.map(OsString::from).to_vec();
    set_limits(&mut spec, job.limits);
    spec.cwd = PathBuf::from(if order.work_dir.is_empty() { &job.order.work_dir } else { &order.work_dir });
    spec.umask = job.order.umask;
    spec.join = join.as_ref();
    spec.confine_root = job.setup.restrict_root;
    spec.binds = binds(job.setup);
    spec.stdin = Stdio::Fd(reader.as_fd());
    spec.stdout = Stdio::Fd(out_writer.as_fd());
    spec.stderr = Stdio::Fd(err_writer.as_fd());
    let launching = launch::spawn(&spec).map_err(|e| failure(&e))?;
    Ok((launching, stdin, [out, err]))
}

/// What the task itself is to be told, before it writes anything.
fn say(stderr: &OwnedFd, words: &str) -> io::Result<()> {
    File::from(stderr.try_clone()?).write_all(words.as_bytes())
}

/// As a shell has it: 127 for what is not there, 126 for what cannot be run.
fn failure(error: &LaunchError) -> Failure {
    (ExitCode::exited(if error.errno == ENOENT { 127 } else { 126 }), error.text.clone())
}

fn output_pipe() -> nix::Result<(File, OwnedFd)> {
    let (reader, writer) = pipe2(OFlag::O_CLOEXEC)?;
    Ok((not_blocking(reader)?, writer))
}

/// Only our end must not block: to a program it is an ordinary pipe.
fn not_blocking(end: OwnedFd) -> nix::Result<File> {
    fcntl(&end, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok(File::from(end))
}
