//! Steps: tasks that grun starts inside a job, in a cgroup below the job's and as its user; the output goes to grun. A step ends with
//! its tasks, with its grun or with the job, and kills what its tasks left. Each task has a session of its own.
//! Source: srun(1) for ranks, environment and what a task's end takes along.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use gmodel::ExitCode;
use gmodel::supervise::{
    MAX_NODE_TASKS, StepInput, StepOrder, StepOutput, StepStream, SupervisorReport,
};
use gsys::cgroup::StepCgroup;
use gsys::process::ReapedChild;
use nix::libc::{SIGCONT, SIGKILL, SIGTERM};
use nix::poll::PollFlags;

use crate::attached_link::AttachedLink;
use crate::container::{self, ContainerNews};
use crate::job_processes::JobProcesses;
use crate::life::BootMillis;
use crate::pmi::RankServer;
use crate::rendezvous::MeetingPlace;
use crate::step_account::{StepAccount, StepTotals};
use crate::step_link::StepLink;
use crate::step_task::{Job, PIECE_BYTES, Task, TaskSockets, container_of};
use crate::step_watch::Watchers;
use crate::task_binding;
use crate::task_input::StepInputs;
use crate::terminal::Terminal;

/// grun has to take the connection, and at the end the last output, within this time.
const GRUN_PATIENCE_SECS: u32 = 10;
/// What was killed at the end of a step, and sits in a system call so long, is the job's to end.
/// A rank server has so long to say how the last tasks ended.
const SETTLING_PATIENCE_SECS: u32 = 2;
const ENDING_PATIENCE_SECS: u32 = 5;
/// Ctrl-D.
const END_OF_TRANSMISSION: u8 = 4;

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
    watchers: Watchers,
    phase: StepPhase,
    tasks: Vec<Task>,
    inputs: StepInputs,
    /// Came before the tasks were started.
    held_signals: BTreeSet<i32>,
    /// Of the first task.
    terminal: Option<Terminal>,
    /// From the start of the tasks to their end.
    account: Option<StepAccount>,
    meeting: MeetingPlace,
    pmi: Option<RankServer>,
    container: Option<ContainerNews>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum StepPhase {
    /// Waiting for grun to take the connection; given up at the instant.
    Connecting(BootMillis),
    Running,
    /// grun is gone, or the step was cancelled: SIGTERM was sent, SIGKILL follows.
    Condemned(BootMillis),
    Killed,
    /// No task is left. Other processes of the step were killed, and are waited for until then.
    Ending(BootMillis),
    /// Nothing is left; the last output is being sent.
    Flushing(BootMillis),
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
            watchers: Watchers::default(),
            phase,
            tasks: Vec::new(),
            inputs: StepInputs::default(),
            held_signals: BTreeSet::new(),
            terminal: None,
            account: None,
            meeting: MeetingPlace::default(),
            pmi: None,
            container: None,
        });
        refusal.map_or(Ok(()), |text| Err(anyhow::Error::msg(text)))
    }

    /// The stream of a step, for its client.
    ///
    /// # Errors
    /// The answer to a client that asks for one that is not there.
    pub fn stream_of(&mut self, step: u32) -> Result<&mut AttachedLink, SupervisorReport> {
        let link = &mut self.live_step(step)?.link;
        link.as_mut().and_then(StepLink::attached).ok_or_else(|| {
            let text = format!("step {step} is read by the grun inside the job that began it");
            refusal(text, false)
        })
    }

    /// The clients of a step that only watch.
    ///
    /// # Errors
    /// The answer to one more, where there is no such step or no room.
    pub fn watchers_of(&mut self, step: u32) -> Result<&mut Watchers, SupervisorReport> {
        let watchers = &mut self.live_step(step)?.watchers;
        match watchers.is_full() {
            true => Err(refusal(
                format!("step {step} is watched by as many clients as may be. Let one end"),
                false,
            )),
            false => Ok(watchers),
        }
    }

    /// Sends the tasks of a step a signal, or ends the step.
    ///
    /// # Errors
    /// The answer where there is no such step, or it has ended.
    pub fn signal(
        &mut self,
        job: &Job<'_>,
        step: u32,
        signal: Option<u8>,
        now: BootMillis,
    ) -> Result<(), SupervisorReport> {
        let live = self.live_step(step)?;
        match signal {
            Some(signal) => live.signal(job, i32::from(signal)),
            None => live.cancel(job, now),
        }
        Ok(())
    }

    fn live_step(&mut self, step: u32) -> Result<&mut Step, SupervisorReport> {
        let is_over = self.seen.contains(&step);
        let found = self.live.iter_mut().find(|live| live.order.step == step);
        found.ok_or_else(|| match is_over {
            true => refusal(format!("step {step} is over"), false),
            false => refusal(format!("there is no step {step} on this node"), true),
        })
    }

    /// What to poll, and for what.
    pub fn poll_fds(&self) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        self.live.iter().flat_map(Step::poll_fds).collect()
    }

    pub fn next_deadline(&self) -> Option<BootMillis> {
        let of_phase = |step: &Step| match step.phase {
            StepPhase::Connecting(at)
            | StepPhase::Condemned(at)
            | StepPhase::Ending(at)
            | StepPhase::Flushing(at) => Some(at),
            StepPhase::Running | StepPhase::Killed => None,
        };
        let of_link = |step: &Step| step.link.as_ref()?.deadline();
        let deadlines = self
            .live
            .iter()
            .flat_map(|step| [of_phase(step), of_link(step), step.watchers.deadline()]);
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
        account.reaped(child);
        let of_memory = exit == ExitCode::killed(SIGKILL as u8) && account.blames_memory();
        task.reaped(exit, of_memory);
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

fn refusal(text: String, is_early: bool) -> SupervisorReport {
    SupervisorReport::NotAttached { text, is_early }
}

impl Step {
    /// Ends it by an order from outside: SIGTERM, and SIGKILL after the job's grace.
    fn cancel(&mut self, job: &Job<'_>, now: BootMillis) {
        let words = format!(
            "step {} on {}: CANCELLED",
            self.order.step, job.setup.node_name
        );
        match self.phase {
            StepPhase::Connecting(_) => {
                let text = "the step was cancelled before its tasks started".to_owned();
                self.link
                    .iter_mut()
                    .for_each(|link| link.send(&StepOutput::Refused { text: text.clone() }));
                self.phase = StepPhase::Flushing(now.plus_secs(GRUN_PATIENCE_SECS));
            }
            StepPhase::Running => {
                let said = StepOutput::Output {
                    rank: self.order.ranks.first().copied().unwrap_or(0),
                    stream: StepStream::Stderr,
                    bytes: format!("\r\n*** {words} ***\r\n").into_bytes(),
                };
                self.watchers.send(&said);
                self.link.iter_mut().for_each(|link| link.send(&said));
                self.condemn(job, now);
            }
            StepPhase::Condemned(_)
            | StepPhase::Killed
            | StepPhase::Ending(_)
            | StepPhase::Flushing(_) => {}
        }
    }

    fn condemn(&mut self, job: &Job<'_>, now: BootMillis) {
        self.signal(job, SIGTERM);
        self.signal(job, SIGCONT);
        self.phase = StepPhase::Condemned(now.plus_secs(job.order.kill_grace_secs));
    }

    /// Returns its account when it is closed.
    fn service(
        &mut self,
        job: &Job<'_>,
        now: BootMillis,
        notes: &mut Vec<String>,
    ) -> Option<StepTotals> {
        self.service_link(job, now);
        self.greet_watchers(now);
        if let StepPhase::Connecting(until) = self.phase
            && self.link.as_ref().is_some_and(StepLink::is_connected)
        {
            self.ask_for_meeting(job);
            if self.meeting.is_known() || now >= until {
                self.phase = StepPhase::Running;
                self.start_tasks(job, notes);
                for signal in std::mem::take(&mut self.held_signals) {
                    self.signal(job, signal);
                }
            }
        }
        self.show_screen();
        self.serve_ranks();
        self.hear_of_container();
        for task in &mut self.tasks {
            task.look_at_launch(self.link.as_mut());
            task.deliver_held(job.processes);
            let terminal = self.terminal.as_mut().filter(|_| task.has_terminal);
            task.forward(self.link.as_mut(), &mut self.watchers, terminal);
        }
        self.pass_deadlines(job, now);
        let closed = self.close_account(job, now, notes);
        // What was just queued goes out now, not at the next event. Input may have come by either look.
        self.service_link(job, now);
        self.greet_watchers(now);
        self.tell_of_ranks(job, now);
        self.feed();
        let sent = |link: &mut StepLink| link.is_connected() && link.is_flushed();
        if matches!(self.phase, StepPhase::Flushing(_))
            && let Some(link) = self.link.take_if(sent)
        {
            link.finish();
        }
        if let StepPhase::Flushing(at) = self.phase {
            self.watchers.release(now >= at);
        }
        closed
    }

    /// What time, or the end of the last task, brings with it.
    fn pass_deadlines(&mut self, job: &Job<'_>, now: BootMillis) {
        let has_ended = self.tasks.iter().all(|task| task.told);
        let is_settled =
            self.pmi.as_ref().is_none_or(RankServer::is_settled) || self.phase == StepPhase::Killed;
        match self.phase {
            StepPhase::Condemned(at) if now >= at => {
                self.signal(job, SIGKILL);
                self.account.iter().for_each(StepAccount::kill);
                self.phase = StepPhase::Killed;
            }
            // A server of its ranks that does not say how they ended is killed with the rest.
            StepPhase::Running if has_ended && !is_settled => {
                self.phase = StepPhase::Condemned(now.plus_secs(SETTLING_PATIENCE_SECS));
            }
            StepPhase::Running | StepPhase::Condemned(_) | StepPhase::Killed
                if has_ended && is_settled =>
            {
                self.account.iter().for_each(StepAccount::kill);
                self.phase = StepPhase::Ending(now.plus_secs(ENDING_PATIENCE_SECS));
            }
            StepPhase::Connecting(at) | StepPhase::Flushing(at) if now >= at => self.link = None,
            _ => {}
        }
    }

    /// Each time that the link takes all, there may be more to tell.
    fn tell_of_ranks(&mut self, job: &Job<'_>, now: BootMillis) {
        while let (Some(pmi), Some(link)) = (&mut self.pmi, &mut self.link)
            && pmi.tell(link)
        {
            self.service_link(job, now);
        }
    }

    /// A task that has ended said all that it had to say before.
    fn serve_ranks(&mut self) {
        let Some(pmi) = &mut self.pmi else { return };
        pmi.service();
        for (local, task) in self.tasks.iter().enumerate() {
            if task.pid.is_none() {
                pmi.ended(local);
            }
        }
        if let Some(link) = &mut self.link {
            pmi.tell(link);
        }
    }

    /// How far the tasks' container is, for the client; without one the tasks have ended.
    fn hear_of_container(&mut self) {
        let Some(news) = &mut self.container else {
            return;
        };
        for text in news.read() {
            self.link.iter_mut().for_each(|link| {
                link.send(&StepOutput::News { text: text.clone() });
            });
        }
        if let Some(name) = news.image.take() {
            container::note_image(&name);
        }
        if let Some(why) = &news.failure {
            self.tasks.iter_mut().for_each(|task| task.explain(why));
        }
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
                self.pmi = RankServer::open(&self.order, &job, account);
                let news = container_of(&self.order, job.order).and_then(|asked| {
                    ContainerNews::open(&asked.image, job.setup.uid, job.setup.gid).ok()
                });
                let (news, container) = news.unzip();
                self.container = news;
                let (terminal, pmi) = (&mut self.terminal, &mut self.pmi);
                locals
                    .map(|local| {
                        let open = &mut TaskSockets {
                            terminal,
                            pmi,
                            container: container.as_ref().map(AsFd::as_fd),
                        };
                        Task::start(&self.order, &job, account, local, open)
                    })
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

    /// A client that comes to watch hears which tasks there are, which have ended, and sees what is on the terminal.
    fn greet_watchers(&mut self, now: BootMillis) {
        if !self.watchers.service(now) {
            return;
        }
        let ranks = self.order.ranks.clone();
        let first = ranks.first().copied().unwrap_or(0);
        let screen = self.terminal.iter().flat_map(|terminal| {
            let screen = terminal.screen();
            let pieces: Vec<Vec<u8>> = screen.chunks(PIECE_BYTES).map(<[u8]>::to_vec).collect();
            pieces
        });
        let shown = screen.map(|bytes| StepOutput::Output {
            rank: first,
            stream: StepStream::Stdout,
            bytes,
        });
        let ended = self.tasks.iter().filter(|task| task.told);
        let greeting: Vec<StepOutput> = std::iter::once(StepOutput::Layout { ranks })
            .chain(shown)
            .chain(ended.filter_map(Task::end_words))
            .collect();
        self.watchers.greet(&greeting);
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
        let used = StepOutput::Used {
            usage: closed.usage,
            text: closed.text.clone(),
        };
        self.watchers.send(&used);
        self.link.iter_mut().for_each(|link| link.send(&used));
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
                self.condemn(job, now);
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
                StepInput::Fence { is_last, piece } => self
                    .pmi
                    .iter_mut()
                    .for_each(|pmi| pmi.exchanged(&piece, is_last)),
                StepInput::Direct { node, bytes } => self
                    .pmi
                    .iter_mut()
                    .for_each(|pmi| pmi.directed(node, &bytes)),
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

    /// Before there are tasks it waits for them.
    fn signal(&mut self, job: &Job<'_>, signal: i32) {
        if matches!(self.phase, StepPhase::Connecting(_)) {
            self.held_signals.insert(signal);
        }
        for task in &mut self.tasks {
            task.signal(job.processes, signal);
        }
    }

    /// A step without a link to grun lasts as long as its tasks and the processes that these left.
    fn is_over(&self) -> bool {
        let is_read = self.watchers.is_empty() || self.tasks.is_empty();
        self.link.is_none()
            && self.account.is_none()
            && is_read
            && self.tasks.iter().all(|task| task.told)
    }

    fn poll_fds(&self) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        let of_link = self.link.iter().filter_map(StepLink::poll_fd);
        let mut fds: Vec<_> = of_link.chain(self.watchers.poll_fds()).collect();
        let readable = self.link.as_ref().is_none_or(StepLink::has_room);
        let container = self.container.iter().filter_map(ContainerNews::poll_fd);
        fds.extend(container.map(|fd| (fd, PollFlags::POLLIN)));
        fds.extend(self.pmi.iter().flat_map(RankServer::poll_fds));
        for task in &self.tasks {
            fds.extend(task.poll_fds(readable));
            fds.extend(
                task.stdin
                    .iter()
                    .filter_map(|stdin| Some((self.inputs.waits_for(stdin)?, PollFlags::POLLOUT))),
            );
        }
        fds
    }
}
