//! How a command ends: one line on stderr and a frozen exit code.
//!
//! 0 done, 1 refused or failed, 2 usage, 3 controller unreachable, 255 a bug. A reader that went away
//! (`gq | head`) is no failure. Under Slurm's names the codes and the first line are Slurm's.

use crate::local_time::TimeFormat;
use crate::printable::printable;
use crate::slurm_name;
use crate::slurm_words::{self, Cause};
use gwire::api::OneResult;
use gwire::client::ClientError;
use std::fmt::Display;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::process::ExitCode;

/// Refused or failed.
pub const FAILED: u8 = 1;
/// The command line is wrong.
pub const USAGE: u8 = 2;
/// No controller could be asked.
pub const UNREACHABLE: u8 = 3;
/// A bug.
pub const BUG: u8 = 255;

/// What a command's main function returns: an exit code, or why there is nothing to show.
pub type Outcome = Result<u8, Failure>;

/// Why a command ends without having done what was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub exit: u8,
    /// Printed behind the command's name, or Slurm's if it was called so; nothing is printed when empty.
    pub text: String,
    /// What a command of Slurm's says first.
    pub cause: Cause,
}

impl Failure {
    /// Refused or failed: exit code 1.
    pub fn new(text: impl Display) -> Self {
        Self {
            exit: FAILED,
            text: text.to_string(),
            cause: Cause::Ours,
        }
    }

    /// A wrong command line: exit code 2.
    pub fn usage(text: impl Display) -> Self {
        Self {
            exit: USAGE,
            text: text.to_string(),
            cause: Cause::Ours,
        }
    }

    /// Ends with this exit code and says nothing more.
    pub fn silent(exit: u8) -> Self {
        Self {
            exit,
            text: String::new(),
            cause: Cause::Ours,
        }
    }

    /// The same, of which Slurm's commands say this first.
    pub fn because(self, cause: Cause) -> Self {
        Self { cause, ..self }
    }

    /// The same with words in front: `context: text`.
    pub fn context(self, context: impl Display) -> Self {
        Self {
            text: format!("{context}: {}", self.text),
            ..self
        }
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let exit = if error.is_unreachable() {
            UNREACHABLE
        } else {
            FAILED
        };
        // The controller writes instants in UTC; the terminal has a zone of its own.
        let text = TimeFormat::from_env().in_text(&error.to_string());
        let cause = match error {
            error if error.is_unreachable() => Cause::Unreachable,
            ClientError::Refused { about, subject, .. } => Cause::Refused { about, subject },
            _ => Cause::Ours,
        };
        Self { exit, text, cause }
    }
}

/// Errors of writing to stdout.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::BrokenPipe => Self::silent(0),
            _ => Self::new(format_args!("cannot write the output: {error}")),
        }
    }
}

/// One line on stderr that is no error, behind the name that the command was called by.
pub fn note(program: &str, text: impl Display) -> io::Result<()> {
    writeln!(
        io::stderr(),
        "{}: {text}",
        slurm_name::of(std::env::args_os().next()).unwrap_or(program)
    )
}

/// Says that a command waits for its controller. Programs for Slurm read the first line of stderr, so under its names only a
/// terminal is told.
pub fn say_waiting(program: &str, text: impl Display) -> io::Result<()> {
    match slurm_name::is_one(std::env::args_os().next()) && !io::stderr().is_terminal() {
        true => Ok(()),
        false => note(program, text),
    }
}

/// One line on stderr of what could not be done, under Slurm's names in the form of Slurm's commands.
pub fn say(program: &str, text: impl Display) -> io::Result<()> {
    match slurm_name::of(std::env::args_os().next()) {
        Some(name) => writeln!(io::stderr(), "{name}: error: {text}"),
        None => writeln!(io::stderr(), "{program}: {text}"),
    }
}

/// The same of one of several jobs that were named. The controller's sentence names the job as a rule.
pub fn say_of(program: &str, result: &OneResult) -> io::Result<()> {
    let text = TimeFormat::from_env().in_text(&printable(&result.error));
    let first = slurm_name::of(std::env::args_os().next())
        .and_then(|name| slurm_words::of_job(name, &result.job, result.about));
    if let Some(line) = first {
        writeln!(io::stderr(), "{}", printable(&line))?;
    }
    match text.contains(&result.job) {
        true => say(program, text),
        false => say(program, format_args!("job {}: {text}", result.job)),
    }
}

/// Says why something was not done: under Slurm's names its line first.
pub fn say_failure(program: &str, failure: &Failure) -> io::Result<()> {
    if let Some(name) = slurm_name::of(std::env::args_os().next()) {
        let words: Vec<String> = std::env::args_os()
            .map(|word| word.to_string_lossy().into_owned())
            .collect();
        for line in slurm_words::first_lines(name, &words, &failure.cause) {
            writeln!(io::stderr(), "{}", printable(&line))?;
        }
    }
    say(program, &failure.text)
}

/// The exit code, under Slurm's names as its commands have it: 1 for what is ours to tell apart, and 255 for a command line that
/// sbatch and srun cannot read.
fn exit_under(name: Option<&str>, exit: u8) -> u8 {
    match (name, exit) {
        (Some("sbatch" | "srun"), USAGE) => 255,
        (Some(_), USAGE | UNREACHABLE) => FAILED,
        _ => exit,
    }
}

/// Runs a command's main function; what it returns is for the process's own `main` to return. A panic is said in
/// one line and exits with 255.
pub fn run<E: Into<ExitCode>>(
    program: &'static str,
    main: impl FnOnce() -> Result<E, Failure>,
) -> ExitCode {
    std::panic::set_hook(Box::new(move |info| {
        let text = info.payload_as_str().unwrap_or("no message");
        let place = info
            .location()
            .map(|at| format!(" at {}:{}", at.file(), at.line()))
            .unwrap_or_default();
        let _ = writeln!(io::stderr(), "{program}: this is a bug{place}: {text}");
        std::process::exit(i32::from(BUG));
    }));
    match main() {
        Ok(exit) => exit.into(),
        Err(failure) => {
            if !failure.text.is_empty() {
                // Without stderr there is no place left for the text.
                let _ = say_failure(program, &failure);
            }
            ExitCode::from(exit_under(
                slurm_name::of(std::env::args_os().next()),
                failure.exit,
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gmodel::RefusalKind;

    #[test]
    fn exit_codes_are_those_of_the_contract() {
        let (about, subject) = (RefusalKind::JobOver, String::from("17"));
        let refused = ClientError::Refused {
            status: 409,
            code: "conflict".into(),
            text: "no".into(),
            about,
            subject: subject.clone(),
        };
        assert_eq!(
            Failure::from(refused),
            Failure {
                exit: 1,
                text: "no".into(),
                cause: Cause::Refused { about, subject }
            }
        );
        let lost = ClientError::Lost {
            source: ErrorKind::UnexpectedEof.into(),
        };
        let lost = Failure::from(lost);
        assert_eq!((lost.exit, lost.cause), (3, Cause::Unreachable));
        assert_eq!(
            [Some("squeue"), Some("sbatch"), None].map(|name| exit_under(name, UNREACHABLE)),
            [1, 1, 3]
        );
        assert_eq!(
            [Some("squeue"), Some("sbatch"), None].map(|name| exit_under(name, USAGE)),
            [1, 255, 2]
        );
        assert_eq!(
            [Some("squeue"), Some("srun"), None].map(|name| exit_under(name, 7)),
            [7, 7, 7]
        );
        assert_eq!(
            Failure::from(io::Error::from(ErrorKind::BrokenPipe)),
            Failure::silent(0)
        );
        assert_eq!(Failure::new("b").context("a").text, "a: b");
    }
}
