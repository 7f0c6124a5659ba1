//! Command lines by clap, with errors in our one voice: `gq: unexpected argument '--foo' found ...`, exit code 2.

use crate::failure::{Failure, USAGE};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgMatches, Command};
use std::ffi::OsString;
use std::io::Write;

/// As [`parse`]; of an option that does not exist `explain` may know more than that.
///
/// # Errors
/// As [`parse`].
pub fn parse_explained(
    command: Command,
    words: impl IntoIterator<Item = OsString>,
    explain: impl Fn(&str) -> Option<String>,
) -> Result<ArgMatches, Failure> {
    command.try_get_matches_from(words).map_err(|error| match (error.kind(), error.get(ContextKind::InvalidArg)) {
        (ErrorKind::UnknownArgument, Some(ContextValue::String(word))) => match explain(word) {
            Some(text) => Failure::usage(text),
            None => failure(&error),
        },
        _ => failure(&error),
    })
}

/// Reads a command line; `--help` and `--version` are printed and end the command with 0.
///
/// # Errors
/// Exit code 2 and what is wrong, or 0 and nothing after `--help`.
pub fn parse(command: Command, words: impl IntoIterator<Item = OsString>) -> Result<ArgMatches, Failure> {
    command.try_get_matches_from(words).map_err(|error| failure(&error))
}

fn failure(error: &clap::Error) -> Failure {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let _ = error.print();
            Failure::silent(0)
        }
        // No subcommand: the help is the answer, and still it is a wrong command line.
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = write!(std::io::stderr(), "{}", error.render());
            Failure::silent(USAGE)
        }
        _ => {
            let text = error.render().to_string();
            Failure::usage(text.strip_prefix("error: ").unwrap_or(&text).trim_end())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_are_usage_errors_with_a_guess() {
        let command = Command::new("gq").arg(clap::Arg::new("user").long("user"));
        let failure = parse(command, ["gq", "--usr", "x"].map(OsString::from)).unwrap_err();
        assert_eq!(failure.exit, USAGE);
        assert!(failure.text.starts_with("unexpected argument '--usr'") && failure.text.contains("'--user'"), "{}", failure.text);
    }
}
