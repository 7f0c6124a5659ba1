//! Steps: tasks that grun starts inside a job, in a cgroup below the job's and as its user; the output goes to grun. A step ends with
//! its tasks, with its grun or with the job, and kills what its tasks left. Each task has a session of its own.
//! Source: srun(1) for ranks, environment and what a task's end takes along.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use gmodel::ExitCode;
use gmodel::launch_order::LaunchOrder;
use gmodel::supervise::{
    MAX_NODE_TASKS, RunSetup, StepInput, StepOrder, StepOutput, StepStream, SupervisorReport,
    TerminalSize,
};
use gsys::cgroup::StepCgroup;
use gsys::cpu::Affinity;
use gsys::launch::{self, LaunchError, LaunchSpec, PendingLaunch, Stdio};
use gsys::process::ReapedChild;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::libc::{ENOENT, SIGCONT, SIGKILL, SIGTERM};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::pipe2;

use crate::attached_link::AttachedLink;
use crate::batch::{binds, identity, os_string, set_limits, split_variables};
use crate::environment;
use crate::job_processes::JobProcesses;
use crate::life::BootMillis;
use crate::rendezvous::MeetingPlace;
use crate::resource_limits::JobLimits;
use crate::step_account::{StepAccount, StepTotals};
use crate::step_link::StepLink;
use crate::task_binding::{self, TaskBinding};
use crate::task_input::{StepInputs, TaskInput};
use crate::terminal::Terminal;

/// grun has to take the connection, and at the end the last output, within this time.
const GRUN_PATIENCE_SECS: u32 = 10;
/// What was killed at the end of a step, and sits in a system call so long, is the job's to end.
const ENDING_PATIENCE_SECS: u32 = 5;
const PIECE_BYTES: usize = 32 << 10;
/// Ctrl-D.
const END_OF_TRANSMISSION: u8 = 4;
/// As srun says it of a task.
const OUT_OF_MEMORY: &str = "Out Of Memory";

/// What a task is started with, beside its own order.
pub struct Job<'a> {
    pub order: &'a LaunchOrder,
    pub setup: &'a RunSetup,
    pub processes: &'a JobProcesses,
    pub limits: &'a JobLimits,
}

/// All steps of the run on this node.
#[derive(Default)]
pub struct Steps {
    live: Vec<Step>,
    /// Orders may come twice; a step is started once.
    seen: BTreeSet<u32>,
    notes: Vec<String>,
    /// Cgroups that were not empty when the step was given up.
    left: Vec<StepCgroup>,
    /// Kills for want of memory in steps that are over: at the limit of the step, and at the job's.
    own_kills: u64,
    job_kills: u64,
}

struct Step {
    order: StepOrder,
    link: Option<StepLink>,
    phase: StepPhase,
    tasks: Vec<Task>,
    inputs: StepInputs,
    /// Of the first task.
    terminal: Option<Terminal>,
    /// From the start of the tasks to their end.
    account: Option<StepAccount>,
    meeting: MeetingPlace,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum StepPhase {
    /// Waiting for grun to take the connection; given up at the instant.
    Connecting(BootMillis),
    Running,
    /// grun is gone: SIGTERM was sent, SIGKILL follows.
    Deserted(BootMillis),
    Killed,
    /// No task is left. Other processes of the step were killed, and are waited for until then.
    Ending(BootMillis),
    /// Nothing is left; the last output is being sent.
    Flushing(BootMillis),
}

struct Task {
    rank: u32,
    launching: Option<PendingLaunch>,
    /// Until it has been reaped.
    pid: Option<i32>,
    session: i32,
    /// Read ends of its stdout and stderr, until end of file.
    pipes: [Option<File>; 2],
    stdin: Option<TaskInput>,
    has_terminal: bool,
    exit: Option<(ExitCode, String)>,
    told: bool,
}

/// The supervisor's ends of a task's input and output.
struct TaskEnds {
    stdin: File,
    /// Of stdout and stderr; a terminal has one for both.
    pipes: [Option<File>; 2],
    terminal: Option<Terminal>,
}

impl Steps {
    /// Begins a step, or says why not: to grun where it can be reached, and as the error to log.
    pub fn begin(
        &mut self,
        order: StepOrder,
        refusal: Option<String>,
        now: BootMillis,
    ) -> anyhow::Result<()> {
        if !self.seen.insert(order.step) {
            return Ok(());
        }
        let until = now.plus_secs(GRUN_PATIENCE_SECS);
        let mut link = StepLink::open(&order, until)?;
        let too_many = order.ranks.len() > MAX_NODE_TASKS as usize;
        let bound = too_many.then(|| {
            format!(
                "{} tasks on one node, and {MAX_NODE_TASKS} are the most",
                order.ranks.len()
            )
        });
        let refusal = refusal.or(bound);
        let phase = match &refusal {
            Some(text) => {
                link.send(&StepOutput::Refused { text: text.clone() });
                StepPhase::Flushing(until)
            }
            None => StepPhase::Connecting(until),
        };
        self.live.push(Step {
            order,
            link: Some(link),
            phase,
            tasks: Vec::new(),
            inputs: StepInputs::default(),
            terminal: None,
            account: None,
            meeting: MeetingPlace::default(),
        });
        refusal.map_or(Ok(()), |text| Err(anyhow::Error::msg(text)))
    }

    /// The stream of a step, for its client.
    ///
    /// # Errors
    /// The answer to a client that asks for one that is not there.
    pub fn stream_of(&mut self, step: u32) -> Result<&mut AttachedLink, SupervisorReport> {
        let refusal = |text: String, is_early| SupervisorReport::NotAttached { text, is_early };
        let is_over = self.seen.contains(&step);
        let Some(live) = self.live.iter_mut().find(|live| live.order.step == step) else {
            return Err(match is_over {
                true => refusal(format!("step {step} is over"), false),
                false => refusal(format!("there is no step {step} on this node"), true),
            });
        };
        live.link
            .as_mut()
            .and_then(StepLink::attached)
            .ok_or_else(|| {
                let text = format!("step {step} is read by the grun inside the job that began it");
                refusal(text, false)
            })
    }

    /// What to poll, and for what.
    pub fn poll_fds(&self) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        self.live.iter().flat_map(Step::poll_fds).collect()
    }

    pub fn next_deadline(&self) -> Option<BootMillis> {
        let of_phase = |step: &Step| match step.phase {
            StepPhase::Connecting(at)
            | StepPhase::Deserted(at)
            | StepPhase::Ending(at)
            | StepPhase::Flushing(at) => Some(at),
            StepPhase::Running | StepPhase::Killed => None,
        };
        let of_link = |step: &Step| step.link.as_ref()?.deadline();
        let deadlines = self
            .live
            .iter()
            .flat_map(|step| [of_phase(step), of_link(step)]);
        deadlines.flatten().min()
    }

    /// Nothing is left to be told to any grun.
    pub fn is_quiet(&self) -> bool {
        self.live.is_empty()
    }

    /// A child was reaped. If it was a task, what it leaves behind in its session goes with it.
    pub fn reaped(&mut self, job: &Job<'_>, child: &ReapedChild, exit: ExitCode) {
        let is_its = |task: &Task| task.pid == Some(child.pid);
        let mut found = self.live.iter_mut().filter_map(|step| {
            Some((
                step.tasks.iter_mut().find(|task| is_its(task))?,
                step.account.as_mut()?,
            ))
        });
        let Some((task, account)) = found.next() else {
            return;
        };
        task.finish_launch_of_the_dead();
        task.pid = None;
        account.reaped(child);
        if task.exit.is_none() {
            let of_memory = exit == ExitCode::killed(SIGKILL as u8) && account.blames_memory();
            task.exit = Some((
                exit,
                if of_memory {
                    OUT_OF_MEMORY.to_owned()
                } else {
                    String::new()
                },
            ));
        }
        // A cgroup that cannot be listed is found out by the supervisor itself.
        let _ = job.processes.signal_session(task.session, SIGKILL);
    }

    /// Moves every step on: connections, output, deadlines. Never blocks.
    pub fn service(&mut self, job: &Job<'_>, now: BootMillis) {
        for step in &mut self.live {
            if let Some(closed) = step.service(job, now, &mut self.notes) {
                let kills = if closed.is_own_limit {
                    &mut self.own_kills
                } else {
                    &mut self.job_kills
                };
                *kills += closed.usage.oom_kills;
                self.left.extend(closed.left);
            }
        }
        self.live.retain(|step| !step.is_over());
        self.left.retain(|cgroup| !cgroup.remove_left());
    }

    /// What is to be in the run's log.
    pub fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    /// Of the kills for want of memory that the job's cgroup counts, those that are the job's: a step that came to its own
    /// limit is out of memory, its job is not.
    pub fn kills_of_job(&self, counted: u64, processes: &JobProcesses) -> u64 {
        let at_live_limits: u64 = self
            .live
            .iter()
            .filter_map(|step| step.account.as_ref())
            .map(StepAccount::own_kills)
            .sum();
        let (counted, over) = match processes.counts_kills_of_ended_steps() {
            true => (counted, self.own_kills),
            false => (counted + self.job_kills, 0),
        };
        counted.saturating_sub(over + at_live_limits)
    }
}

impl Step {
    /// Returns its account when it is closed.
    fn service(
        &mut self,
        job: &Job<'_>,
        now: BootMillis,
        notes: &mut Vec<String>,
    ) -> Option<StepTotals> {
        self.service_link(job, now);
        if let StepPhase::Connecting(until) = self.phase
            && self.link.as_ref().is_some_and(StepLink::is_connected)
        {
            self.ask_for_meeting(job);
            if self.meeting.is_known() || now >= until {
                self.phase = StepPhase::Running;
                self.start_tasks(job, notes);
            }
        }
        self.show_screen();
        for task in &mut self.tasks {
            task.look_at_launch(self.link.as_mut());
            let terminal = self.terminal.as_mut().filter(|_| task.has_terminal);
            task.forward(self.link.as_mut(), terminal);
        }
        match self.phase {
            StepPhase::Deserted(at) if now >= at => {
                self.signal(job, SIGKILL);
                self.account.iter().for_each(StepAccount::kill);
                self.phase = StepPhase::Killed;
            }
            StepPhase::Running | StepPhase::Deserted(_) | StepPhase::Killed
                if self.tasks.iter().all(|task| task.told) =>
            {
                self.account.iter().for_each(StepAccount::kill);
                self.phase = StepPhase::Ending(now.plus_secs(ENDING_PATIENCE_SECS));
            }
            StepPhase::Connecting(at) | StepPhase::Flushing(at) if now >= at => self.link = None,
            _ => {}
        }
        let closed = self.close_account(job, now, notes);
        // What was just queued goes out now, not at the next event. Input may have come by either look.
        self.service_link(job, now);
        self.feed();
        let sent = |link: &mut StepLink| link.is_connected() && link.is_flushed();
        if matches!(self.phase, StepPhase::Flushing(_))
            && let Some(link) = self.link.take_if(sent)
        {
            link.finish();
        }
        closed
    }

    /// The first node of several says where the ranks meet.
    fn ask_for_meeting(&mut self, job: &Job<'_>) {
        let told = self.meeting.ask(&mut self.order, job.order, job.setup);
        if let (Some(address), Some(link)) = (told, &mut self.link) {
            link.send(&StepOutput::Meeting { address });
        }
    }

    fn start_tasks(&mut self, job: &Job<'_>, notes: &mut Vec<String>) {
        let job = Job {
            setup: &task_binding::seen_by(&self.order, job.setup),
            ..*job
        };
        let locals = 0..self.order.ranks.len();
        self.tasks = match StepAccount::open(&self.order, job.setup, job.processes) {
            Ok((account, note)) => {
                notes.extend(note.map(|note| format!("step {} {note}", self.order.step)));
                let account = self.account.insert(account);
                let terminal = &mut self.terminal;
                locals
                    .map(|local| Task::start(&self.order, &job, account, local, terminal))
                    .collect()
            }
            Err(text) => {
                notes.push(format!("step {}: {text}", self.order.step));
                let failed = |local: usize| {
                    Task::failed(
                        self.order.ranks[local],
                        (ExitCode::exited(126), text.clone()),
                    )
                };
                locals.map(failed).collect()
            }
        };
    }

    /// A client that did not see the terminal before is shown its newest output. While no client is there, output goes on: what the
    /// window has no room for is on the screen.
    fn show_screen(&mut self) {
        let (Some(terminal), Some(StepLink::Attached(link))) = (&self.terminal, &mut self.link)
        else {
            return;
        };
        if !link.has_client() && !link.has_room() {
            link.forget_session();
        }
        if link.take_fresh() {
            for bytes in terminal.screen().chunks(PIECE_BYTES) {
                link.send(&StepOutput::Output {
                    rank: self.order.ranks.first().copied().unwrap_or(0),
                    stream: StepStream::Stdout,
                    bytes: bytes.to_vec(),
                });
            }
            terminal.ask_to_redraw();
        }
    }

    /// When nothing of the step is left, or that has taken too long: what it used goes to grun, behind all that it wrote.
    fn close_account(
        &mut self,
        job: &Job<'_>,
        now: BootMillis,
        notes: &mut Vec<String>,
    ) -> Option<StepTotals> {
        let StepPhase::Ending(at) = self.phase else {
            return None;
        };
        if now < at
            && self
                .account
                .as_ref()
                .is_some_and(|account| !account.is_empty())
        {
            return None;
        }
        self.phase = StepPhase::Flushing(now.plus_secs(GRUN_PATIENCE_SECS));
        let closed = self
            .account
            .take()?
            .close(self.order.step, job.setup.mem_limit_bytes);
        notes.extend(Some(closed.text.clone()).filter(|text| !text.is_empty()));
        if let Some(link) = &mut self.link {
            link.send(&StepOutput::Used {
                usage: closed.usage,
                text: closed.text.clone(),
            });
        }
        Some(closed)
    }

    fn service_link(&mut self, job: &Job<'_>, now: BootMillis) {
        let Some(link) = &mut self.link else { return };
        if link
            .service(now)
            .and_then(|inputs| self.obey(job, inputs))
            .is_err()
        {
            self.link = None;
            if self.phase == StepPhase::Running {
                self.signal(job, SIGTERM);
                self.signal(job, SIGCONT);
                self.phase = StepPhase::Deserted(now.plus_secs(job.order.kill_grace_secs));
            }
        }
    }

    fn obey(&mut self, job: &Job<'_>, inputs: Vec<StepInput>) -> io::Result<()> {
        for input in inputs {
            match input {
                StepInput::Signal { signal } => self.signal(job, i32::from(signal)),
                // A terminal has no end: its task reads the character that stands for it.
                StepInput::Stdin { rank, bytes } if bytes.is_empty() && self.terminal.is_some() => {
                    self.inputs.take(rank, &[END_OF_TRANSMISSION])?;
                }
                StepInput::Stdin { rank, bytes } => self.inputs.take(rank, &bytes)?,
                StepInput::Resize(size) => self.terminal.iter().for_each(|one| one.resize(size)),
                StepInput::Meeting { address } => self.meeting.told(&mut self.order, address),
                StepInput::Unknown => {}
            }
        }
        Ok(())
    }

    /// Writes to each task what its pipe has room for, and tells grun how much was taken.
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
        let taken = self
            .inputs
            .forget(self.tasks.iter().filter_map(|task| task.stdin.as_ref()));
        if let (1.., Some(link)) = (taken, &mut self.link) {
            link.send(&StepOutput::Taken {
                bytes: taken as u32,
            });
        }
    }

    fn signal(&self, job: &Job<'_>, signal: i32) {
        for task in self.tasks.iter().filter(|task| task.pid.is_some()) {
            let _ = job.processes.signal_session(task.session, signal);
        }
    }

    /// A step without a link to grun lasts as long as its tasks and the processes that these left.
    fn is_over(&self) -> bool {
        self.link.is_none() && self.account.is_none() && self.tasks.iter().all(|task| task.told)
    }

    fn poll_fds(&self) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        let mut fds: Vec<_> = self.link.iter().filter_map(StepLink::poll_fd).collect();
        let readable = self.link.as_ref().is_none_or(StepLink::has_room);
        for task in &self.tasks {
            fds.extend(
                task.launching
                    .iter()
                    .map(|l| (l.status_fd(), PollFlags::POLLIN)),
            );
            if readable {
                fds.extend(
                    task.pipes
                        .iter()
                        .flatten()
                        .map(|pipe| (pipe.as_fd(), PollFlags::POLLIN)),
                );
            }
            fds.extend(
                task.stdin
                    .iter()
                    .filter_map(|stdin| Some((self.inputs.waits_for(stdin)?, PollFlags::POLLOUT))),
            );
        }
        fds
    }
}

impl Task {
    /// A task that cannot be started has ended already, with the text that says why.
    /// The terminal of the first task goes into its place.
    fn start(
        order: &StepOrder,
        job: &Job<'_>,
        account: &StepAccount,
        local: usize,
        terminal: &mut Option<Terminal>,
    ) -> Task {
        let rank = order.ranks[local];
        match spawn(order, job, account, local) {
            Ok((launching, ends)) => {
                let has_terminal = ends.terminal.is_some();
                *terminal = ends.terminal.or(terminal.take());
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
                }
            }
            Err(failure) => Task::failed(rank, failure),
        }
    }

    fn failed(rank: u32, failure: Failure) -> Task {
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
        }
    }

    fn look_at_launch(&mut self, link: Option<&mut StepLink>) {
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

    /// The child has ended before its start was looked at: what the start came to is known now.
    fn finish_launch_of_the_dead(&mut self) {
        if let Some(Err(e)) = self.launching.take().map(PendingLaunch::finish) {
            self.exit = Some(failure(&e));
        }
    }

    /// Sends what the task wrote, as far as there is room. When it has ended and its pipes are drained, its end is told.
    /// Without a connection the output goes nowhere.
    fn forward(&mut self, mut link: Option<&mut StepLink>, mut terminal: Option<&mut Terminal>) {
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
            let output = StepOutput::Ended {
                rank: self.rank,
                exit: *exit,
                text: text.clone(),
            };
            if let Some(link) = link {
                link.send(&output);
            }
            self.told = true;
        }
    }
}

type Failure = (ExitCode, String);

/// The start of a task.
fn spawn(
    order: &StepOrder,
    job: &Job<'_>,
    account: &StepAccount,
    local: usize,
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
    let mut spec = LaunchSpec::new(
        order.argv.iter().map(|word| os_string(word)).collect(),
        identity(job.setup),
    );
    spec.env = split_variables(environment::task(
        job.order, job.setup, order, local, &bound,
    ));
    spec.affinity = bound.cpus.as_deref().map(Affinity::new);
    spec.pid_variables = environment::PID_NAMES.map(OsString::from).to_vec();
    set_limits(&mut spec, job.limits);
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
    let launching = launch::spawn(&spec).map_err(|e| failure(&e))?;
    Ok((launching, ends))
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
