//! What comes from the nodes of a step: the output of all tasks, their ends and what they used, brought together. Never asks the controller, and reads no command line. Source: srun(1) for labels, exit codes and early ends.

use crate::step_input::Peers;
use crate::step_message::Message;
use crate::step_mpi::FenceExchange;
use crate::step_output::StepFiles;
use crate::step_told::StepSpeech;
pub(crate) use crate::step_told::own_name;
use crate::terminal;
use gcli::{Failure, Outcome};
use gmodel::ExitCode;
use gmodel::duration::squeue_time;
use gmodel::run::Usage;
use gmodel::supervise::{StepInput, StepOutput, StepStream};
use gwire::api::StepReply;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::SignalFd;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Time the nodes have, after the last task, to end what the tasks left and to say what the step used.
const USE_PATIENCE: Duration = Duration::from_secs(10);
/// As a shell has it of SIGKILL.
const KILLED: u8 = 128 + Signal::SIGKILL as u8;
/// Longest line held back for `--label`, bytes.
const MAX_LINE_BYTES: usize = 64 << 10;
/// Time that tasks have between SIGTERM and SIGKILL.
const KILL_GRACE: Duration = Duration::from_secs(30);
/// What a grun that leaves its step ends with, as ssh.
const LEFT: u8 = 255;
/// Two interrupts within this time end the step.
const ABORT_WITHIN: Duration = Duration::from_secs(1);
/// Nothing is due.
const LONG: Duration = Duration::from_secs(3600);

/// What strsignal(3) says, as srun prints it.
fn signal_words(signal: u8) -> String {
    let words = match Signal::try_from(i32::from(signal)) {
        Ok(Signal::SIGHUP) => "Hangup",
        Ok(Signal::SIGINT) => "Interrupt",
        Ok(Signal::SIGQUIT) => "Quit",
        Ok(Signal::SIGILL) => "Illegal instruction",
        Ok(Signal::SIGTRAP) => "Trace/breakpoint trap",
        Ok(Signal::SIGABRT) => "Aborted",
        Ok(Signal::SIGBUS) => "Bus error",
        Ok(Signal::SIGFPE) => "Floating point exception",
        Ok(Signal::SIGKILL) => "Killed",
        Ok(Signal::SIGUSR1) => "User defined signal 1",
        Ok(Signal::SIGSEGV) => "Segmentation fault",
        Ok(Signal::SIGUSR2) => "User defined signal 2",
        Ok(Signal::SIGPIPE) => "Broken pipe",
        Ok(Signal::SIGALRM) => "Alarm clock",
        Ok(Signal::SIGTERM) => "Terminated",
        Ok(Signal::SIGXCPU) => "CPU time limit exceeded",
        Ok(Signal::SIGXFSZ) => "File size limit exceeded",
        Ok(Signal::SIGSYS) => "Bad system call",
        _ => return format!("killed by signal {}", gmodel::signal::signal_word(signal)),
    };
    words.to_owned()
}

pub(crate) fn forward_signals(signals: SigSet, sender: mpsc::SyncSender<Message>) {
    std::thread::spawn(move || {
        let Ok(fd) = SignalFd::new(&signals) else {
            return;
        };
        while let Ok(Some(info)) = fd.read_signal() {
            if sender.send(Message::Signal(info.ssi_signo as u8)).is_err() {
                return;
            }
        }
    });
}

/// Output and ends of all tasks coming together.
pub(crate) struct StepGathering<'a> {
    step: &'a StepReply,
    label: bool,
    /// Ranks that have not ended, by position of their node.
    running: BTreeMap<u32, BTreeSet<u32>>,
    /// Several tasks write to one place, so lines of theirs come whole.
    pub whole_lines: bool,
    /// Begun lines, by rank and stream.
    lines: BTreeMap<(u32, bool), Vec<u8>>,
    worst: u8,
    /// What the step used, by position of the nodes that have said so.
    pub used: BTreeMap<u32, Usage>,
    /// Positions of nodes that may still say it.
    unmeasured: BTreeSet<u32>,
    /// Of ranks as labels.
    pub width: usize,
    /// Only the task of this rank is shown: of stdout, of stderr.
    pub only: [Option<u32>; 2],
    pub files: StepFiles,
    pub early_end: EndConditions,
    first_end: Option<Instant>,
    pub speech: StepSpeech,
    /// The first task has a terminal, and this grun's stands for it.
    pub has_terminal: bool,
    /// Why this grun ends before its step.
    pub left: Option<String>,
    /// The tasks were told to end; what is left of them then is killed, once.
    ending: Option<Instant>,
    /// The last interrupt.
    interrupted: Option<Instant>,
    killed: bool,
    fence: FenceExchange,
}

/// What ends a step before its tasks are done.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EndConditions {
    pub time: Option<Duration>,
    /// From the end of the first task.
    pub wait: Option<Duration>,
    /// One task's failure (`--kill-on-bad-exit`).
    pub bad_exit: bool,
}

impl<'a> StepGathering<'a> {
    pub fn new(step: &'a StepReply, label: bool) -> Self {
        let running: BTreeMap<u32, BTreeSet<u32>> = step
            .nodes
            .iter()
            .enumerate()
            .filter(|(_, node)| !node.ranks.is_empty())
            .map(|(at, node)| (at as u32, node.ranks.iter().copied().collect()))
            .collect();
        let last = running.values().flatten().max().copied().unwrap_or(0);
        let (lines, width) = (BTreeMap::new(), last.to_string().len());
        let (files, early_end) = (StepFiles::default(), EndConditions::default());
        let (used, unmeasured) = (BTreeMap::new(), running.keys().copied().collect());
        Self {
            step,
            label,
            running,
            whole_lines: label,
            lines,
            worst: 0,
            used,
            unmeasured,
            width,
            only: [None, None],
            files,
            early_end,
            first_end: None,
            speech: StepSpeech::default(),
            has_terminal: false,
            left: None,
            ending: None,
            interrupted: None,
            killed: false,
            fence: FenceExchange::default(),
        }
    }

    pub fn run(&mut self, messages: &Receiver<Message>, peers: &Peers) -> Outcome {
        let began = Instant::now();
        while !self.running.is_empty() {
            let patience = self.end_early(began, peers);
            match messages.recv_timeout(patience) {
                Ok(Message::From(at, StepOutput::Taken { bytes })) => peers
                    .get(&at)
                    .into_iter()
                    .for_each(|peer| peer.taken(bytes)),
                Ok(Message::From(0, StepOutput::Meeting { address })) => {
                    let meeting = StepInput::Meeting { address };
                    let others = peers.iter().filter(|(at, _)| **at != 0);
                    others.for_each(|(_, peer)| peer.send(&meeting));
                }
                Ok(Message::From(at, StepOutput::Fence { is_last, piece })) => {
                    self.pass_fence(at, piece, is_last, peers);
                }
                Ok(Message::From(at, StepOutput::Direct { node, bytes })) => {
                    pass_direct(at, node, bytes, peers);
                }
                Ok(Message::From(at, StepOutput::Aborted { rank, text })) => {
                    self.worst = self.worst.max(1);
                    let why = format!("task {rank} on {}: {text}", self.name(at));
                    self.end_tasks(&why, peers);
                }
                Ok(Message::From(at, output)) => {
                    self.take(at, output)?;
                    self.end_for_want_of_ranks(peers);
                }
                Ok(Message::Gone(at)) => {
                    peers.get(&at).into_iter().for_each(|peer| peer.gone());
                    self.gone(at);
                }
                Ok(Message::Failed(at, text)) => self.take(at, StepOutput::Refused { text })?,
                Ok(Message::Left(why)) => {
                    self.left = Some(why);
                    return Ok(LEFT);
                }
                // The user's window is gone, and not what runs in it.
                Ok(Message::Signal(signal))
                    if self.has_terminal && signal == Signal::SIGHUP as u8 =>
                {
                    self.left = Some("its terminal hung up".to_owned());
                    return Ok(LEFT);
                }
                Ok(Message::Signal(signal)) if signal == Signal::SIGWINCH as u8 => peers
                    .values()
                    .for_each(|peer| peer.send(&StepInput::Resize(terminal::size()))),
                Ok(Message::Signal(signal)) => self.pass_on(signal, peers),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        self.flush_lines(None)?;
        self.await_use(messages);
        if self.worst == 0 && self.used.values().any(|used| used.oom_kills > 0) {
            self.worst = KILLED;
        }
        Ok(self.worst)
    }

    /// Passes a signal on to the tasks. Of two interrupts within a second the second ends the step, as srun has it.
    fn pass_on(&mut self, signal: u8, peers: &Peers) {
        let tell = |signal: u8| {
            peers
                .values()
                .for_each(|peer| peer.send(&StepInput::Signal { signal }));
        };
        tell(signal);
        if signal != Signal::SIGINT as u8 || self.ending.is_some() {
            return;
        }
        let (name, now) = (own_name(), Instant::now());
        let before = self.interrupted.replace(now);
        if before.is_none_or(|at| now - at > ABORT_WITHIN) {
            self.speech.interrupted();
            return;
        }
        eprintln!(
            "{name}: forcing job termination\n{name}: Job step aborted: Waiting up to {} seconds for job step to finish.",
            KILL_GRACE.as_secs()
        );
        tell(Signal::SIGTERM as u8);
        tell(Signal::SIGCONT as u8);
        self.ending = Some(now + KILL_GRACE);
    }

    /// Each node says last of all what the step used there; one of a release before closes the connection.
    fn await_use(&mut self, messages: &Receiver<Message>) {
        let deadline = Instant::now() + USE_PATIENCE;
        while !self.unmeasured.is_empty() {
            match messages.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(Message::From(at, StepOutput::Used { usage, text })) => {
                    self.measured(at, &usage, &text)
                }
                Ok(Message::Gone(at)) => drop(self.unmeasured.remove(&at)),
                Ok(_) => {}
                Err(_) => return,
            }
        }
    }

    fn measured(&mut self, at: u32, usage: &Usage, text: &str) {
        if !text.is_empty() {
            eprintln!("{}: error: {}: {text}", own_name(), self.name(at));
        }
        self.used.entry(at).or_default().add(usage);
        self.unmeasured.remove(&at);
    }

    /// Ends the tasks when it is time to, with SIGTERM first; how long to wait for the next such moment.
    fn end_early(&mut self, began: Instant, peers: &Peers) -> Duration {
        let now = Instant::now();
        let tell = |signal: Signal| {
            peers.values().for_each(|peer| {
                peer.send(&StepInput::Signal {
                    signal: signal as u8,
                })
            })
        };
        if let Some(kill_at) = self.ending {
            if now >= kill_at && !std::mem::replace(&mut self.killed, true) {
                tell(Signal::SIGKILL);
            }
            return if self.killed { LONG } else { kill_at - now };
        }
        let EndConditions {
            time,
            wait,
            bad_exit,
        } = self.early_end;
        let time_is_up = time.map(|time| began + time);
        let wait_is_over = wait.zip(self.first_end).map(|(wait, first)| first + wait);
        let why = if bad_exit && self.worst > 0 {
            "a task failed, and --kill-on-bad-exit ends the others".to_owned()
        } else if time_is_up.is_some_and(|at| now >= at) {
            self.speech.time_is_up(&self.step.nodes);
            format!(
                "its time is up (--time {})",
                squeue_time(time.unwrap_or_default().as_secs())
            )
        } else if wait_is_over.is_some_and(|at| now >= at) {
            format!(
                "its first task ended {} s ago (--wait)",
                wait.unwrap_or_default().as_secs()
            )
        } else {
            return time_is_up
                .into_iter()
                .chain(wait_is_over)
                .min()
                .map_or(LONG, |at| at - now);
        };
        self.end_tasks(&why, peers);
        KILL_GRACE
    }

    /// Brings the nodes each other's news, once all have come to the fence.
    fn pass_fence(&mut self, at: u32, piece: Vec<u8>, is_last: bool, peers: &Peers) {
        let nodes = peers.keys().copied().collect();
        match self.fence.take(at, piece, is_last, &nodes) {
            Ok(news) => news.iter().for_each(|(at, inputs)| {
                inputs.iter().for_each(|input| peers[at].send(input));
            }),
            Err(why) => self.end_tasks(&why, peers),
        }
        self.end_for_want_of_ranks(peers);
    }

    /// A node where a rank has ended comes to no fence any more, and ranks elsewhere may wait at one.
    fn end_for_want_of_ranks(&mut self, peers: &Peers) {
        let has_ended = |at: &u32| {
            let all = self.step.nodes.get(*at as usize);
            let left = self.running.get(at).map_or(0, BTreeSet::len);
            self.fence.waits_for(*at) && all.is_some_and(|node| node.ranks.len() > left)
        };
        if let Some(at) = peers.keys().copied().find(has_ended) {
            self.worst = self.worst.max(1);
            let why = format!(
                "a task on {} has ended, and ranks of other nodes wait for it",
                self.name(at)
            );
            self.end_tasks(&why, peers);
        }
    }

    /// With SIGTERM first. The reason that came first is told, and no other.
    fn end_tasks(&mut self, why: &str, peers: &Peers) {
        if self.ending.is_some() {
            return;
        }
        let left: Vec<String> = self
            .running
            .values()
            .flatten()
            .map(u32::to_string)
            .collect();
        eprintln!(
            "{}: error: step {}: {why}: ending task {}",
            own_name(),
            self.step.step,
            left.join(", ")
        );
        for signal in [Signal::SIGTERM, Signal::SIGCONT] {
            let signal = signal as u8;
            peers
                .values()
                .for_each(|peer| peer.send(&StepInput::Signal { signal }));
        }
        self.ending = Some(Instant::now() + KILL_GRACE);
    }

    fn name(&self, at: u32) -> &str {
        self.step
            .nodes
            .get(at as usize)
            .map_or("?", |node| node.name.as_str())
    }

    fn take(&mut self, at: u32, output: StepOutput) -> Result<(), Failure> {
        match output {
            StepOutput::Output {
                rank,
                stream,
                bytes,
            } => self.print(rank, stream == StepStream::Stderr, &bytes),
            StepOutput::Ended { rank, exit, text } => {
                self.flush_lines(Some(rank))?;
                // To one that watches over a new connection it is told again.
                let of_node = self.running.get_mut(&at);
                if of_node.is_some_and(|ranks| ranks.remove(&rank)) {
                    self.ended(at, rank, exit, &text);
                }
                self.running.retain(|_, ranks| !ranks.is_empty());
                Ok(())
            }
            StepOutput::Refused { text } => {
                eprintln!("{}: {}: {text}", own_name(), self.name(at));
                self.worst = self.worst.max(1);
                self.running.remove(&at);
                self.unmeasured.remove(&at);
                Ok(())
            }
            StepOutput::News { text } => {
                if !self.speech.is_quiet {
                    eprintln!("{}: {text} on {}", own_name(), self.name(at));
                }
                Ok(())
            }
            // With tasks on other nodes still at work.
            StepOutput::Used { usage, text } => {
                self.measured(at, &usage, &text);
                Ok(())
            }
            StepOutput::Layout { ranks } => {
                self.running.insert(at, ranks.into_iter().collect());
                self.running.retain(|_, ranks| !ranks.is_empty());
                Ok(())
            }
            StepOutput::Hello { .. }
            | StepOutput::Meeting { .. }
            | StepOutput::Fence { .. }
            | StepOutput::Direct { .. }
            | StepOutput::Aborted { .. }
            | StepOutput::Started { .. }
            | StepOutput::Taken { .. }
            | StepOutput::Unknown => Ok(()),
        }
    }

    fn ended(&mut self, at: u32, rank: u32, exit: ExitCode, text: &str) {
        self.first_end.get_or_insert_with(Instant::now);
        let code = exit.shell_code();
        self.worst = self.worst.max(code);
        self.speech.ended(self.name(at), rank, exit);
        let how = match () {
            () if !text.is_empty() => text.to_owned(),
            () if exit.signal != 0 => signal_words(exit.signal),
            () if code != 0 => format!("Exited with exit code {code}"),
            () => return,
        };
        eprintln!(
            "{}: error: {}: task {rank}: {how}",
            own_name(),
            self.name(at)
        );
    }

    fn gone(&mut self, at: u32) {
        self.unmeasured.remove(&at);
        if let Some(ranks) = self.running.remove(&at) {
            let ranks: Vec<String> = ranks.iter().map(u32::to_string).collect();
            eprintln!(
                "{}: error: {}: lost, with task {}",
                own_name(),
                self.name(at),
                ranks.join(", ")
            );
            self.worst = self.worst.max(1);
        }
    }

    fn print(&mut self, rank: u32, stderr: bool, bytes: &[u8]) -> Result<(), Failure> {
        if self.only[usize::from(stderr)].is_some_and(|only| only != rank) {
            return Ok(());
        }
        if !self.whole_lines {
            return Ok(self.files.write(rank, stderr, bytes)?);
        }
        let mut line = self.lines.remove(&(rank, stderr)).unwrap_or_default();
        if !self.label {
            line.extend_from_slice(bytes);
            // A progress bar ends its lines by a carriage return.
            let is_end = |byte: &u8| matches!(byte, b'\n' | b'\r');
            let whole = match line.iter().rposition(is_end) {
                Some(end) => end + 1,
                None if line.len() >= MAX_LINE_BYTES => line.len(),
                None => 0,
            };
            let begun = line.split_off(whole);
            if !begun.is_empty() {
                self.lines.insert((rank, stderr), begun);
            }
            return Ok(self.files.write(rank, stderr, &line)?);
        }
        let mut text = Vec::new();
        for byte in bytes {
            line.push(*byte);
            if *byte == b'\n' || line.len() >= MAX_LINE_BYTES {
                self.labelled(rank, &line, &mut text);
                line.clear();
            }
        }
        if !line.is_empty() {
            self.lines.insert((rank, stderr), line);
        }
        Ok(self.files.write(rank, stderr, &text)?)
    }

    fn labelled(&self, rank: u32, line: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(format!("{rank:>width$}: ", width = self.width).as_bytes());
        out.extend_from_slice(line);
    }

    /// Last lines without an end: of one task that has ended, or of all.
    fn flush_lines(&mut self, of: Option<u32>) -> Result<(), Failure> {
        let mut lines = std::mem::take(&mut self.lines);
        let mut ended = lines.split_off(&(of.unwrap_or(0), false));
        if let Some(rank) = of {
            lines.append(&mut ended.split_off(&(rank.saturating_add(1), false)));
            self.lines = lines;
        }
        for ((rank, stderr), mut line) in ended {
            let mut text = Vec::new();
            if self.label {
                line.push(b'\n');
                self.labelled(rank, &line, &mut text);
                std::mem::swap(&mut line, &mut text);
            }
            self.files.write(rank, stderr, &line)?;
        }
        Ok(())
    }
}

/// From the rank server of one node to that of another.
fn pass_direct(from: u32, to: u32, bytes: Vec<u8>, peers: &Peers) {
    let direct = StepInput::Direct { node: from, bytes };
    peers.get(&to).iter().for_each(|peer| peer.send(&direct));
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use gwire::api::StepNodeRow;

    /// The step of three tasks, two of them on the first node.
    pub(crate) fn two_nodes() -> StepReply {
        let node = |name: &str, ranks: &[u32]| StepNodeRow {
            name: name.into(),
            ranks: ranks.to_vec(),
        };
        StepReply {
            schema: 1,
            step: 0,
            nodes: vec![node("n1", &[0, 1]), node("n2", &[2])],
            ..StepReply::default()
        }
    }

    #[test]
    fn the_highest_exit_code_is_returned_and_all_tasks_are_waited_for() {
        let step = two_nodes();
        let (sender, messages) = mpsc::sync_channel(16);
        let ended = |rank, exit| StepOutput::Ended {
            rank,
            exit,
            text: String::new(),
        };
        sender
            .send(Message::From(0, ended(0, ExitCode::exited(3))))
            .unwrap();
        sender
            .send(Message::From(1, ended(2, ExitCode::killed(9))))
            .unwrap();
        sender
            .send(Message::From(0, ended(1, ExitCode::exited(0))))
            .unwrap();
        // Both nodes are of a release that measures nothing.
        [0, 1]
            .into_iter()
            .for_each(|at| sender.send(Message::Gone(at)).unwrap());
        let mut gathering = StepGathering::new(&step, false);
        assert_eq!(
            (gathering.run(&messages, &Peers::new()), gathering.used),
            (Ok(137), BTreeMap::new())
        );
    }

    #[test]
    fn the_use_of_all_nodes_comes_together_and_a_kill_for_memory_is_no_success() {
        let step = two_nodes();
        let (sender, messages) = mpsc::sync_channel(16);
        let ended = |rank| StepOutput::Ended {
            rank,
            exit: ExitCode::SUCCESS,
            text: String::new(),
        };
        let used = |micros, peak, kills| StepOutput::Used {
            usage: Usage {
                cpu_user_micros: micros,
                peak_memory_bytes: peak,
                oom_kills: kills,
                ..Usage::default()
            },
            text: String::new(),
        };
        let outcome = |kills| {
            // The second node is done while the first still works, and says more than its last task.
            for (at, output) in [
                (1, ended(2)),
                (1, used(5, 9, 0)),
                (0, ended(0)),
                (0, ended(1)),
                (0, used(7, 4, kills)),
            ] {
                sender.send(Message::From(at, output)).unwrap();
            }
            let mut gathering = StepGathering::new(&step, false);
            let outcome = gathering.run(&messages, &Peers::new());
            let used = gathering.used.values();
            let used = used.map(|used| (used.cpu_user_micros, used.peak_memory_bytes));
            (outcome, used.collect::<Vec<_>>())
        };
        assert_eq!(outcome(0), (Ok(0), vec![(7, 4), (5, 9)]));
        assert_eq!(outcome(1), (Ok(137), vec![(7, 4), (5, 9)]));
    }

    #[test]
    fn a_step_ends_early_when_a_task_fails_or_the_time_or_the_patience_is_over() {
        let step = two_nodes();
        let after = |early_end: EndConditions, exit: Option<ExitCode>| {
            let mut gathering = StepGathering::new(&step, false);
            gathering.early_end = early_end;
            exit.into_iter()
                .for_each(|exit| gathering.ended(0, 0, exit, ""));
            let patience = gathering.end_early(Instant::now(), &Peers::new());
            (gathering.ending.is_some(), patience)
        };
        let (failed, fine) = (Some(ExitCode::exited(4)), Some(ExitCode::exited(0)));
        let (bad_exit, at_once) = (
            EndConditions {
                bad_exit: true,
                ..EndConditions::default()
            },
            Some(Duration::ZERO),
        );
        assert_eq!(after(EndConditions::default(), failed), (false, LONG));
        assert_eq!(after(bad_exit, fine), (false, LONG));
        assert_eq!(after(bad_exit, failed), (true, KILL_GRACE));
        assert_eq!(
            after(
                EndConditions {
                    time: at_once,
                    ..EndConditions::default()
                },
                None
            ),
            (true, KILL_GRACE)
        );
        assert_eq!(
            after(
                EndConditions {
                    wait: at_once,
                    ..EndConditions::default()
                },
                None
            ),
            (false, LONG)
        );
        assert_eq!(
            after(
                EndConditions {
                    wait: at_once,
                    ..EndConditions::default()
                },
                fine
            ),
            (true, KILL_GRACE)
        );
        let (ending, patience) = after(
            EndConditions {
                time: Some(LONG / 2),
                ..EndConditions::default()
            },
            failed,
        );
        assert!(!ending && patience <= LONG / 2 && patience > LONG / 3);
    }

    #[test]
    fn a_node_that_vanishes_fails_the_step() {
        let step = two_nodes();
        let (sender, messages) = mpsc::sync_channel(16);
        let ended = |rank| StepOutput::Ended {
            rank,
            exit: ExitCode::exited(0),
            text: String::new(),
        };
        sender.send(Message::From(0, ended(0))).unwrap();
        sender.send(Message::From(0, ended(1))).unwrap();
        sender.send(Message::Gone(0)).unwrap();
        sender.send(Message::Gone(1)).unwrap();
        assert_eq!(
            StepGathering::new(&step, false).run(&messages, &Peers::new()),
            Ok(1)
        );
    }

    #[test]
    fn labels_are_put_before_whole_lines_only() {
        let step = two_nodes();
        let mut gathering = StepGathering::new(&step, true);
        let mut out = Vec::new();
        gathering.labelled(2, b"text\n", &mut out);
        assert_eq!(out, b"2: text\n");
        gathering.print(1, false, b"no end yet").unwrap();
        assert_eq!(gathering.lines[&(1, false)], b"no end yet");
    }

    #[test]
    fn lines_of_several_tasks_are_not_torn() {
        let (step, dir) = (two_nodes(), tempfile::tempdir().unwrap());
        let written = |label| {
            let mut gathering = StepGathering::new(&step, label);
            gathering.whole_lines = true;
            let job = crate::step_output::StepJob::default();
            gathering.files =
                crate::step_output::tests::open(Some("out"), None, false, dir.path(), &job, &step)
                    .unwrap();
            for (rank, text) in [(0, "a"), (1, "1\n2"), (0, "b\n"), (2, "50%\r7"), (0, "c")] {
                gathering.print(rank, false, text.as_bytes()).unwrap();
            }
            gathering.flush_lines(Some(1)).unwrap();
            gathering.flush_lines(None).unwrap();
            std::fs::read_to_string(dir.path().join("out")).unwrap()
        };
        assert_eq!(written(false), "1\nab\n50%\r2c7");
        assert_eq!(written(true), "1: 1\n0: ab\n1: 2\n0: c\n2: 50%\r7\n");
    }
}
