//! One task of a step: its start, its pipes or its terminal, its end. A task has a session of its own.
//! Source: srun(1) for ranks and environment.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use gmodel::ExitCode;
use gmodel::container::ContainerSpec;
use gmodel::launch_order::LaunchOrder;
use gmodel::supervise::{RunSetup, StepOrder, StepOutput, StepStream, TerminalSize};
use gsys::cpu::Affinity;
use gsys::launch::{self, LaunchError, LaunchSpec, PendingLaunch, Stdio};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::libc::ENOENT;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::pipe2;

use crate::batch::{binds, identity, os_string, set_limits, split_variables};
use crate::container;
use crate::environment;
use crate::helper::HelperProgram;
use crate::job_processes::JobProcesses;
use crate::pmi::{RankServer, wait_for_server};
use crate::resource_limits::JobLimits;
use crate::step_account::StepAccount;
use crate::step_link::StepLink;
use crate::step_watch::Watchers;
use crate::task_binding::TaskBinding;
use crate::task_input::TaskInput;
use crate::terminal::Terminal;

/// Read of a task's output at a time.
pub const PIECE_BYTES: usize = 32 << 10;
/// As srun says it of a task.
const OUT_OF_MEMORY: &str = "Out Of Memory";

/// What a task is started with, beside its own order.
pub struct Job<'a> {
    pub order: &'a LaunchOrder,
    pub setup: &'a RunSetup,
    pub processes: &'a JobProcesses,
    pub limits: &'a JobLimits,
}

pub struct Task {
    pub rank: u32,
    launching: Option<PendingLaunch>,
    /// Until it has been reaped.
    pub pid: Option<i32>,
    pub session: i32,
    /// Read ends of its stdout and stderr, until end of file.
    pipes: [Option<File>; 2],
    pub stdin: Option<TaskInput>,
    pub has_terminal: bool,
    pub exit: Option<(ExitCode, String)>,
    pub told: bool,
    /// Came before its program was there to get them.
    pub held_signals: BTreeSet<i32>,
}

/// The supervisor's ends of a task's input and output.
struct TaskEnds {
    stdin: File,
    /// Of stdout and stderr; a terminal has one for both.
    pipes: [Option<File>; 2],
    terminal: Option<Terminal>,
}

/// What the tasks of a step have beside their pipes.
pub struct TaskSockets<'a> {
    /// Of the first task.
    pub terminal: &'a mut Option<Terminal>,
    pub pmi: &'a mut Option<RankServer>,
    /// Where tasks in a container say how far it is.
    pub container: Option<BorrowedFd<'a>>,
}

impl Task {
    /// A task that cannot be started has ended already, with the text that says why.
    /// The terminal of the first task goes into its place.
    pub fn start(
        order: &StepOrder,
        job: &Job<'_>,
        account: &StepAccount,
        local: usize,
        open: &mut TaskSockets<'_>,
    ) -> Task {
        let rank = order.ranks[local];
        match spawn(order, job, account, local, open) {
            Ok((launching, ends)) => {
                let has_terminal = ends.terminal.is_some();
                *open.terminal = ends.terminal.or(open.terminal.take());
                Task {
                    rank,
                    pid: Some(launching.pid()),
                    // The child makes itself a session with its pid as number.
                    session: launching.pid(),
                    launching: Some(launching),
                    pipes: ends.pipes,
                    stdin: Some(TaskInput::new(ends.stdin)),
                    has_terminal,
                    exit: None,
                    told: false,
                    held_signals: BTreeSet::new(),
                }
            }
            Err(failure) => Task::failed(rank, failure),
        }
    }

    pub fn failed(rank: u32, failure: Failure) -> Task {
        Task {
            rank,
            launching: None,
            pid: None,
            session: 0,
            pipes: [None, None],
            stdin: None,
            has_terminal: false,
            exit: Some(failure),
            told: false,
            held_signals: BTreeSet::new(),
        }
    }

    pub fn look_at_launch(&mut self, link: Option<&mut StepLink>) {
        let Some(launching) = &self.launching else {
            return;
        };
        let mut fds = [PollFd::new(launching.status_fd(), PollFlags::POLLIN)];
        if !poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0) {
            return;
        }
        match self.launching.take().map(PendingLaunch::finish) {
            Some(Ok(launched)) => {
                let started = StepOutput::Started {
                    rank: self.rank,
                    pid: launched.pid as u32,
                };
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

    /// What to poll, but for its input; its output only where it can go on.
    pub fn poll_fds(&self, with_output: bool) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        let launching = self.launching.iter().map(PendingLaunch::status_fd);
        let pipes = self.pipes.iter().flatten().filter(|_| with_output);
        launching
            .chain(pipes.map(AsFd::as_fd))
            .map(|fd| (fd, PollFlags::POLLIN))
            .collect()
    }

    /// `of_memory`: the kernel killed it for want of memory.
    pub fn reaped(&mut self, exit: ExitCode, of_memory: bool) {
        self.finish_launch_of_the_dead();
        self.pid = None;
        let why = if of_memory { OUT_OF_MEMORY } else { "" };
        self.exit.get_or_insert_with(|| (exit, why.to_owned()));
    }

    /// To all processes of its session. A program that is being started gets it once it has started.
    pub fn signal(&mut self, processes: &JobProcesses, signal: i32) {
        if self.launching.is_some() {
            self.held_signals.insert(signal);
        } else if self.pid.is_some() {
            let _ = processes.signal_session(self.session, signal);
        }
    }

    /// Delivers what came before the start.
    pub fn deliver_held(&mut self, processes: &JobProcesses) {
        if self.launching.is_none() {
            for signal in std::mem::take(&mut self.held_signals) {
                self.signal(processes, signal);
            }
        }
    }

    /// The child has ended before its start was looked at: what the start came to is known now.
    fn finish_launch_of_the_dead(&mut self) {
        if let Some(Err(e)) = self.launching.take().map(PendingLaunch::finish) {
            self.exit = Some(failure(&e));
        }
    }

    /// Sends what the task wrote, as far as there is room. When it has ended and its pipes are drained, its end is told.
    /// Without a connection the output goes nowhere.
    pub fn forward(
        &mut self,
        mut link: Option<&mut StepLink>,
        watchers: &mut Watchers,
        mut terminal: Option<&mut Terminal>,
    ) {
        let ended = self.exit.is_some() && self.pid.is_none();
        for (pipe, stream) in self
            .pipes
            .iter_mut()
            .zip([StepStream::Stdout, StepStream::Stderr])
        {
            while let Some(file) = pipe {
                if link.as_ref().is_some_and(|link| !link.has_room()) {
                    return;
                }
                let mut piece = vec![0; PIECE_BYTES];
                match file.read(&mut piece) {
                    Ok(count) if count > 0 => {
                        piece.truncate(count);
                        if let Some(terminal) = &mut terminal {
                            terminal.show(&piece);
                        }
                        let output = StepOutput::Output {
                            rank: self.rank,
                            stream,
                            bytes: piece,
                        };
                        watchers.send(&output);
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
        if let (true, false, Some(output)) = (ended, self.told, self.end_words()) {
            watchers.send(&output);
            if let Some(link) = link {
                link.send(&output);
            }
            self.told = true;
        }
    }

    /// It ended without its program: there was no container for it.
    pub fn explain(&mut self, why: &str) {
        if let Some((exit, text)) = &mut self.exit
            && text.is_empty()
            && *exit == ExitCode::exited(container::NO_CONTAINER)
        {
            why.clone_into(text);
        }
    }

    pub fn end_words(&self) -> Option<StepOutput> {
        let (exit, text) = self.exit.as_ref()?;
        Some(StepOutput::Ended {
            rank: self.rank,
            exit: *exit,
            text: text.clone(),
        })
    }
}

type Failure = (ExitCode, String);

/// The start of a task.
fn spawn(
    order: &StepOrder,
    job: &Job<'_>,
    account: &StepAccount,
    local: usize,
    open: &mut TaskSockets<'_>,
) -> Result<(PendingLaunch, TaskEnds), Failure> {
    let node_failure = |e: &dyn std::fmt::Display| (ExitCode::exited(126), e.to_string());
    let join = account
        .join_fds(job.processes)
        .map_err(|e| node_failure(&e))?;
    let (ends, theirs) = match order.terminal.filter(|_| order.ranks[local] == 0) {
        Some(size) => open_terminal(size, job.setup).map_err(|e| node_failure(&e))?,
        None => open_pipes().map_err(|e| node_failure(&e))?,
    };
    let [stdin, stdout, stderr] = &theirs;
    let bound = TaskBinding::of(job.order, job.setup, order, local)
        .map_err(|text| (ExitCode::exited(1), text))?;
    say(stderr, &bound.words).map_err(|e| node_failure(&e))?;
    let helper = order.helper.map(HelperProgram::open).transpose();
    let helper = helper.map_err(|text| (ExitCode::exited(126), text))?;
    let words = || {
        let argv = order.argv_of(order.ranks[local]).iter();
        argv.map(|word| os_string(word)).collect()
    };
    let argv = helper.as_ref().map_or_else(words, HelperProgram::argv);
    let mut spec = LaunchSpec::new(argv, identity(job.setup));
    spec.program = helper.as_ref().map(HelperProgram::path);
    let pmi = open.pmi.as_mut().map(|pmi| pmi.connect(local)).transpose();
    let pmi = pmi.map_err(|e| node_failure(&e))?;
    let mut variables = environment::task(job.order, job.setup, order, local, &bound);
    variables.extend(pmi.iter().flat_map(|end| end.variables.clone()));
    spec.env = split_variables(variables);
    spec.kept.extend(pmi.as_ref().map(|end| end.fd.as_fd()));
    spec.affinity = bound.cpus.as_deref().map(Affinity::new);
    spec.pid_variables = environment::PID_NAMES.map(OsString::from).to_vec();
    set_limits(&mut spec, &job.limits.of_step(&order.rlimits));
    spec.cwd = PathBuf::from(os_string(if order.work_dir.is_empty() {
        &job.order.work_dir
    } else {
        &order.work_dir
    }));
    spec.umask = job.order.umask;
    spec.join = join.as_ref();
    spec.confine_root = job.setup.restrict_root;
    spec.binds = binds(job.setup);
    spec.stdin = Stdio::Fd(stdin.as_fd());
    spec.stdout = Stdio::Fd(stdout.as_fd());
    spec.stderr = Stdio::Fd(stderr.as_fd());
    spec.controlling_terminal = ends.terminal.is_some();
    go_into_container(&mut spec, order, job, open.container).map_err(|e| node_failure(&e))?;
    if let Some(end) = pmi.as_ref().filter(|end| end.waits) {
        wait_for_server(&mut spec, end.fd.as_fd());
    }
    let launching = launch::spawn(&spec).map_err(|e| failure(&e))?;
    Ok((launching, ends))
}

fn go_into_container<'a>(
    spec: &mut LaunchSpec<'a>,
    order: &StepOrder,
    job: &Job<'_>,
    news: Option<BorrowedFd<'a>>,
) -> Result<(), container::ContainerError> {
    let Some(asked) = container_of(order, job.order) else {
        return Ok(());
    };
    let mut its = container::step_order(asked, job.setup, order);
    its.news = news.map(|fd| fd.as_raw_fd());
    spec.kept.extend(news);
    container::contain(spec, its, &job.order.user.name)
}

/// The steps of an allocation run in its container; a batch script is in the job's container itself.
pub fn container_of<'a>(step: &'a StepOrder, job: &'a LaunchOrder) -> Option<&'a ContainerSpec> {
    let of_job = job.container.as_deref().filter(|_| job.allocation);
    step.container.as_deref().or(of_job)
}

/// Three pipes, and the task's ends of them.
fn open_pipes() -> nix::Result<(TaskEnds, [OwnedFd; 3])> {
    let (reader, stdin) = pipe2(OFlag::O_CLOEXEC)?;
    let (out, out_writer) = output_pipe()?;
    let (err, err_writer) = output_pipe()?;
    let ends = TaskEnds {
        stdin: not_blocking(stdin)?,
        pipes: [Some(out), Some(err)],
        terminal: None,
    };
    Ok((ends, [reader, out_writer, err_writer]))
}

fn open_terminal(size: TerminalSize, setup: &RunSetup) -> anyhow::Result<(TaskEnds, [OwnedFd; 3])> {
    let (terminal, slave) = Terminal::open(size, setup.uid, setup.gid)?;
    let ends = TaskEnds {
        stdin: terminal.side()?,
        pipes: [Some(terminal.side()?), None],
        terminal: Some(terminal),
    };
    Ok((ends, [slave.try_clone()?, slave.try_clone()?, slave]))
}

/// What the task itself is to be told, before it writes anything.
fn say(stderr: &OwnedFd, words: &str) -> io::Result<()> {
    File::from(stderr.try_clone()?).write_all(words.as_bytes())
}

/// As a shell has it: 127 for what is not there, 126 for what cannot be run.
fn failure(error: &LaunchError) -> Failure {
    (
        ExitCode::exited(if error.errno == ENOENT { 127 } else { 126 }),
        error.text.clone(),
    )
}

fn output_pipe() -> nix::Result<(File, OwnedFd)> {
    let (reader, writer) = pipe2(OFlag::O_CLOEXEC)?;
    Ok((not_blocking(reader)?, writer))
}

/// Only the supervisor's end must not block: to a program it is an ordinary pipe.
fn not_blocking(end: OwnedFd) -> nix::Result<File> {
    fcntl(&end, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok(File::from(end))
}
