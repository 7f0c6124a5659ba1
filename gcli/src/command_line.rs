//! Command lines by clap, with errors in our one voice: `gq: unexpected argument '--foo' found ...`, exit code 2.

use crate::failure::{Failure, USAGE};
use crate::{slurm_help, slurm_name};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, ArgMatches, Command};
use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// As [`parse`]; of an option that does not exist `explain` may know more than that.
///
/// # Errors
/// As [`parse`].
pub fn parse_explained(
    command: Command,
    words: impl IntoIterator<Item = OsString>,
    explain: impl Fn(&str) -> Option<String>,
) -> Result<ArgMatches, Failure> {
    let words: Vec<OsString> = words.into_iter().collect();
    let name = slurm_name::of(words.first());
    let mut command = slurm_name::versioned(command, words.first());
    if name.is_some() && !has(&command, None, USAGE_WORD) {
        command = command.arg(usage_option().hide(true));
    }
    let read = command.try_get_matches_from_mut(words.clone());
    read.map_err(
        |error| match (error.kind(), error.get(ContextKind::InvalidArg)) {
            (ErrorKind::DisplayHelp, _) => match help_text(&mut command, name, &words) {
                Some(text) => {
                    let _ = write!(std::io::stdout(), "{text}");
                    Failure::silent(0)
                }
                None => failure(&error),
            },
            (ErrorKind::UnknownArgument, Some(ContextValue::String(word))) => match explain(word) {
                Some(text) => Failure::usage(text),
                None => failure(&error),
            },
            _ => failure(&error),
        },
    )
}

/// What answers `--usage`, and under a name of Slurm's `--help` too; None where clap's own help is to be shown.
fn help_text(command: &mut Command, name: Option<&str>, words: &[OsString]) -> Option<String> {
    if let Some(name) = name {
        return Some(slurm_help::answer(command, name, words));
    }
    let called = Path::new(words.first()?).file_name()?.to_str()?;
    slurm_help::asks_usage(words).then(|| {
        let usage = command.clone().bin_name(called).render_usage();
        format!("{usage}\n")
    })
}

fn has(command: &Command, short: Option<char>, long: &str) -> bool {
    command.get_arguments().any(|arg| {
        short.is_some_and(|short| arg.get_short() == Some(short)) || arg.get_long() == Some(long)
    })
}

/// Reads a command line; `--help` and `--version` are printed and end the command with 0.
///
/// # Errors
/// Exit code 2 and what is wrong, or 0 and nothing after `--help`.
pub fn parse(
    command: Command,
    words: impl IntoIterator<Item = OsString>,
) -> Result<ArgMatches, Failure> {
    command
        .try_get_matches_from(words)
        .map_err(|error| failure(&error))
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

/// Options of Slurm's command that ours does not have, each with what to do instead.
pub type Advice = [(&'static [&'static str], &'static str)];

/// What holds for all commands.
const EVERYWHERE: &Advice = &[
    (
        &["--sibling", "--allclusters"],
        "there are no federations: each cluster has a queue of its own",
    ),
    (
        &["--yaml"],
        "--json prints the same, which readers of YAML take",
    ),
    (
        &["--wckey", "--wckeys"],
        "jobs have tags instead: gsub --tag, gacct -o tags, gacct report --by tag",
    ),
];

/// Options of Slurm's listings that say what is so here: one cluster, and no partition hidden.
const SO_ALREADY: [&str; 3] = ["federation", "local", "hide"];

fn flag(name: &'static str) -> Arg {
    Arg::new(name)
        .long(name)
        .hide(true)
        .action(ArgAction::SetTrue)
}

/// As [`parse`]. Options can be shortened as long as they are clear (`--part`) and given again (the last counts, or lists
/// grow), as Slurm's commands take them; those that Slurm's command has and ours has not are refused with advice.
///
/// # Errors
/// As [`parse`].
pub fn parse_advising(
    command: Command,
    words: impl IntoIterator<Item = OsString>,
    advice: &Advice,
) -> Result<ArgMatches, Failure> {
    let words: Vec<OsString> = words.into_iter().collect();
    let command = talking(command)
        .infer_long_args(true)
        .args_override_self(true);
    let added: Vec<_> = SO_ALREADY
        .into_iter()
        .filter(|name| !has(&command, None, name))
        .collect();
    let command = command.args(added.into_iter().map(flag));
    let name = slurm_name::of(words.first());
    let matches = parse_explained(command.clone(), words, |odd| {
        let found = advice
            .iter()
            .chain(EVERYWHERE)
            .find(|(words, _)| words.contains(&odd));
        found.map(|(_, text)| format!("{odd}: {text}"))
    })?;
    if matches
        .try_get_one::<u8>(TALK)
        .ok()
        .flatten()
        .is_some_and(|times| *times > 0)
    {
        IS_TALKING.store(true, Ordering::Relaxed);
        if name.is_some_and(|name| SHOW_OPTIONS.contains(&name)) {
            write!(
                std::io::stdout(),
                "{}",
                slurm_help::given(&command, &matches)
            )?;
        }
    }
    Ok(matches)
}

/// Commands of Slurm that with `-v` show their options before they list.
const SHOW_OPTIONS: [&str; 3] = ["sinfo", "sprio", "squeue"];
const USAGE_WORD: &str = "usage";

/// `--usage`: answered as `--help` is, before the rest of the command line is judged.
fn usage_option() -> Arg {
    Arg::new(USAGE_WORD)
        .long(USAGE_WORD)
        .action(ArgAction::Help)
        .help("Say in one line how it is called")
}

/// The option by which a command prints its requests to the controller.
const TALK: &str = "talk";
/// Whether this command was called with it.
static IS_TALKING: AtomicBool = AtomicBool::new(false);

/// Whether the requests of this command are to be told as they go out.
pub(crate) fn is_talking() -> bool {
    IS_TALKING.load(Ordering::Relaxed)
}

/// The command with the options that all of Slurm's listings have: `--usage`, and `-v` where it has none of its own.
pub fn talking(command: Command) -> Command {
    let talk = Arg::new(TALK)
        .short('v')
        .long("verbose")
        .action(ArgAction::Count)
        .help("Say what is asked of the controller, on stderr");
    let command = match has(&command, Some('v'), "verbose") {
        true => command,
        false => command.arg(talk),
    };
    match has(&command, None, USAGE_WORD) {
        true => command,
        false => command.arg(usage_option()),
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
        assert!(
            failure.text.starts_with("unexpected argument '--usr'")
                && failure.text.contains("'--user'"),
            "{}",
            failure.text
        );
    }

    #[test]
    fn options_of_slurm_that_are_not_ours_come_with_advice_and_ours_may_be_shortened() {
        let flag = |name: &'static str| {
            clap::Arg::new(name)
                .long(name)
                .action(clap::ArgAction::SetTrue)
        };
        let command = || {
            Command::new("gq")
                .arg(clap::Arg::new("partition").long("partition"))
                .arg(flag("start"))
                .arg(flag("states"))
        };
        let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        let read =
            |text: &str| parse_advising(command(), words(text), &[(&["-L"], "look elsewhere")]);
        assert_eq!(
            read("gq --part x")
                .unwrap()
                .get_one::<String>("partition")
                .unwrap(),
            "x"
        );
        assert!(read("gq --sta").is_err(), "two options begin so");
        assert!(read("gq --local --federation --hide").is_ok(), "so it is");
        assert_eq!(read("gq -L").unwrap_err().text, "-L: look elsewhere");
        assert!(
            read("gq --sibling")
                .unwrap_err()
                .text
                .contains("no federations")
        );
        assert_eq!(
            read("gq --part x --start --start --part y")
                .unwrap()
                .get_one::<String>("partition")
                .unwrap(),
            "y",
            "the last counts"
        );
        assert!(
            read("gq --nosuch")
                .unwrap_err()
                .text
                .starts_with("unexpected argument '--nosuch'")
        );
    }
}
