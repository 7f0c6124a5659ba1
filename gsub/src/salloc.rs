//! `salloc`, and `gsub --interactive`: an allocation, and beside it a command on this machine. Source: salloc(1).

use crate::allocation::ask::AllocationAsk;
use crate::allocation::words::{take_apart, take_parts_apart};
use crate::allocation::{Allocation, News, WaitRules, immediate, revoked, take_immediate};
use crate::environment;
use crate::option_words::GivenOption;
use crate::signal_wait::signal_within;
use crate::step::own_job;
use clap::{Arg, ArgAction, Command};
use gcli::pages::ManPage;
use gcli::{Failure, Outcome, command_line, slurm_name};
use gmodel::byte_text;
use gmodel::signal::parse_signal;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::Pid;
use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::ExitStatusExt;
use std::process::Child;
use std::sync::mpsc::{RecvTimeoutError, Sender};
use std::time::Duration;

/// Between two looks for a signal.
const LOOK: Duration = Duration::from_millis(50);

const EXAMPLES: &str = "\
Examples:
  salloc --gpus 2 -t 1:00:00              a shell here; grun in it runs on the allocation's nodes
  salloc -N2 -p debug grun hostname       one command, and the allocation ends with its exit code
  salloc --no-shell -t 30                 an allocation that stays: grun --jobid, then gdel
  salloc --immediate=30 --gpus 8          give up if it does not start within 30 s
  salloc --gpus 8 : -N2 -c 16             unlike parts: grun --het-group 1 starts steps in the second

All options of gsub(1) that ask for nodes are options of salloc, too, and SALLOC_PARTITION and the like count as its
environment. gsub --interactive is the same command. In a partition with interactive_step the shell runs on the first node of
the allocation. While it waits, one line on a terminal says why and since when; Ctrl-C then cancels it. The shell's variables
are those of a job (SLURM_JOB_ID, SLURM_JOB_NODELIST). The allocation ends with the shell, by its time limit, by gdel, or when
salloc was not heard for the partition's detached_time; then the command gets the signal of --kill-command.";

/// The man page.
pub fn page() -> ManPage {
    ManPage {
        command: command(),
        section: "1",
        exit_status: "Else what the command exits with, or 128 and the signal that ended it.",
        see_also: "gsub(1), grun(1), gpupool(7)",
    }
}

fn command() -> Command {
    Command::new("salloc")
        .after_help(EXAMPLES)
        .version(env!("CARGO_PKG_VERSION"))
        .about("Get an allocation and run a command, or a shell, beside it on this machine; grun in it runs on its nodes")
        .arg(flag("no-shell").help("Ask for the allocation and leave it: it ends by its limit, or by gdel"))
        .arg(flag("interactive").hide(true))
        .arg(flag("quiet").short('Q').help("Say nothing besides errors"))
        .arg(flag("bell").hide(true))
        .arg(flag("no-bell").hide(true))
        .arg(flag("verbose").short('v').action(ArgAction::Count).help("Say which options count; twice, whom it asks, too"))
        .arg(immediate().help("Give up if it is not granted within so many seconds; 1 without a number"))
        .arg(
            Arg::new("kill-command")
                .long("kill-command")
                .short('K')
                .value_name("SIGNAL")
                .num_args(0..=1)
                .require_equals(true)
                .default_missing_value("TERM")
                .help("Signal to the command when the allocation is over; a shell on a terminal gets HUP"),
        )
        .arg(Arg::new("COMMAND").num_args(0..).trailing_var_arg(true))
}

fn flag(name: &'static str) -> Arg {
    Arg::new(name).long(name).action(ArgAction::SetTrue)
}

/// Whether `gsub` is asked for an allocation: `--interactive` among its options.
pub(crate) fn is_asked(words: &[String]) -> bool {
    take_apart(words, &command())
        .is_ok_and(|apart| apart.own.iter().any(|word| word == "--interactive"))
}

/// `salloc` itself.
///
/// # Errors
/// What stood in the way, with the exit code.
pub fn main(words: impl IntoIterator<Item = OsString>) -> Outcome {
    let words: Vec<OsString> = words.into_iter().collect();
    let name = slurm_name::of(words.first()).unwrap_or("gsub");
    let words: Vec<String> = words
        .iter()
        .skip(1)
        .map(|word| byte_text::from_bytes(word.as_bytes()))
        .collect();
    let SallocRequest {
        rules,
        job,
        program,
        no_shell,
        on_end,
        verbosity,
    } = SallocRequest::read(name, &words)?;
    if let Ok(job) = own_job() {
        return Err(Failure::usage(format_args!(
            "this is inside job {job}, and an allocation holds no other. Start steps in it with grun, or leave it first"
        )));
    }
    let signals: SigSet = WATCHED.into_iter().collect();
    signals
        .thread_block()
        .map_err(|errno| Failure::new(format_args!("cannot block signals: {errno}")))?;
    let mut client = gcli::connect_inside(name)?;
    let named = match program.is_empty() {
        true => vec![own_shell()],
        false => program.clone(),
    };
    let mut ask = AllocationAsk::new(job, &named, "SALLOC_", &mut client)?;
    ask.request.spec.unattended = no_shell;
    ask.defined.say(name, verbosity, &client);
    let (allocation, sender) = Allocation::obtain(&mut client, &ask.request, &rules, &signals)?;
    if no_shell {
        return Ok(0);
    }
    let program = match program.is_empty() {
        true => shell(&allocation),
        false => program,
    };
    let beside = BesideCommand {
        allocation: &allocation,
        rules: &rules,
        signals: &signals,
        on_end,
    };
    let outcome = beside.run(&program, &ask, sender);
    let code = match &outcome {
        Ok(code) => *code,
        Err(failure) => failure.exit,
    };
    if !rules.quiet {
        eprintln!("{name}: Relinquishing job allocation {}", allocation.id);
    }
    allocation.end(code);
    outcome
}

/// The user's shell: here, or as a step on the first node where the partition says so.
fn shell(allocation: &Allocation) -> Vec<String> {
    if !allocation.interactive_step {
        return vec![own_shell()];
    }
    let beside = std::env::current_exe().map(|own| own.with_file_name("grun"));
    let grun = beside.unwrap_or_else(|_| "grun".into());
    let grun = byte_text::from_bytes(grun.as_os_str().as_bytes());
    let options = [
        "-N1",
        "-n1",
        "--overlap",
        "--gpu-bind=none",
        "--cpu-bind=none",
        "--pty",
        "-J",
        "interactive",
    ];
    let jobid = format!("--jobid={}", allocation.id);
    let words = options.map(str::to_owned).into_iter();
    let all = [grun, jobid].into_iter().chain(words);
    all.chain([own_shell()]).collect()
}

fn own_shell() -> String {
    std::env::var("SHELL").unwrap_or_else(|_| "/bin/sh".to_owned())
}

/// A command line of salloc.
struct SallocRequest {
    rules: WaitRules,
    /// What asks for each component.
    job: Vec<Vec<GivenOption>>,
    /// Empty: the user's shell.
    program: Vec<String>,
    no_shell: bool,
    /// The signal that the command gets when the allocation is over.
    on_end: Option<u8>,
    verbosity: u32,
}

impl SallocRequest {
    fn read(name: &'static str, words: &[String]) -> Result<Self, Failure> {
        let (job, apart) = take_parts_apart(words, &command())?;
        let (immediate, own) = take_immediate(apart.own)?;
        let own = std::iter::once(name.to_owned()).chain(own);
        let matches = command_line::parse_explained(command(), own.map(OsString::from), |_| None)?;
        let no_shell = matches.get_flag("no-shell");
        if no_shell && !apart.command.is_empty() {
            return Err(Failure::usage(
                "--no-shell runs nothing, and a command is given. Keep one of them",
            ));
        }
        let on_end = match matches.get_one::<String>("kill-command") {
            Some(text) => Some(
                parse_signal(text)
                    .map_err(|error| Failure::usage(format_args!("--kill-command: {error}")))?,
            ),
            None => std::io::stdin()
                .is_terminal()
                .then_some(Signal::SIGHUP as u8),
        };
        Ok(Self {
            rules: WaitRules {
                name,
                quiet: matches.get_flag("quiet"),
                immediate,
                as_salloc: true,
            },
            job,
            program: apart.command,
            no_shell,
            on_end,
            verbosity: match matches.get_count("verbose") {
                0 => environment::own("SALLOC_DEBUG")
                    .and_then(|text| text.parse().ok())
                    .unwrap_or(0),
                given => given.into(),
            },
        })
    }
}

const WATCHED: [Signal; 7] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGQUIT,
    Signal::SIGPIPE,
];

/// A command on this machine while the allocation is there.
struct BesideCommand<'a> {
    allocation: &'a Allocation,
    rules: &'a WaitRules,
    signals: &'a SigSet,
    /// The signal that the command gets when the allocation is over.
    on_end: Option<u8>,
}

impl BesideCommand<'_> {
    fn run(&self, program: &[String], ask: &AllocationAsk, sender: Sender<News>) -> Outcome {
        let os = |text: &str| OsString::from_vec(byte_text::to_bytes(text).into_owned());
        let (first, arguments) = program.split_first().expect("a shell at least");
        let variables = ask.variables.iter().chain(&self.allocation.variables);
        let child = std::process::Command::new(os(first))
            .args(arguments.iter().map(|word| os(word)))
            .envs(variables.map(|(name, value)| (os(name), os(value))))
            .spawn()
            .map_err(|error| Failure {
                exit: if error.kind() == std::io::ErrorKind::NotFound {
                    127
                } else {
                    126
                },
                ..Failure::new(format_args!("{first}: {error}"))
            })?;
        let pid = Pid::from_raw(child.id().cast_signed());
        std::thread::spawn(move || report_end(child, &sender));
        loop {
            match self.allocation.news.recv_timeout(LOOK) {
                Ok(News::Ended(code)) => return Ok(code),
                Ok(News::Standing(told)) => {
                    if let Some(why) = revoked(&told) {
                        self.lose(pid, &why);
                    }
                }
                Ok(News::Refused(text)) => self.lose(pid, &text),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Failure::new("the command is lost from sight"));
                }
            }
            match signal_within(self.signals, Duration::ZERO)
                .map(i32::from)
                .map(Signal::try_from)
            {
                Some(Ok(Signal::SIGTERM)) => drop(kill(pid, Signal::SIGTERM)),
                Some(Ok(Signal::SIGHUP)) => {
                    let _ = kill(pid, Signal::SIGHUP);
                    return Ok(128 + Signal::SIGHUP as u8);
                }
                // A terminal sends the others to the command, too.
                _ => {}
            }
        }
    }

    fn lose(&self, pid: Pid, why: &str) {
        let (name, id) = (self.rules.name, self.allocation.id);
        eprintln!("{name}: Job allocation {id} has been revoked. ({why})");
        if let Some(signal) = self
            .on_end
            .and_then(|signal| Signal::try_from(i32::from(signal)).ok())
        {
            let _ = kill(pid, signal);
        }
    }
}

fn report_end(mut child: Child, sender: &Sender<News>) {
    let code = child
        .wait()
        .ok()
        .and_then(|status| status.code().or(status.signal().map(|signal| 128 + signal)));
    let _ = sender.send(News::Ended(
        code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1),
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interactive_is_an_option_and_no_argument_of_a_script() {
        let asked = |words: &str| {
            let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
            is_asked(&words)
        };
        assert!(asked("--gpus 2 --interactive") && asked("--interactive bash"));
        assert!(!asked("train.sh --interactive") && !asked("-- x --interactive"));
        command().debug_assert();
    }
}
