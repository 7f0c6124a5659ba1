//! The command line of a command that asks for an allocation: which options are gsub's and ask for the job, and which are the
//! command's own.

use crate::container_words;
use crate::option_words::{GivenOption, Origin, read};
use crate::step_programs::SEPARATOR;
use clap::{Arg, Command};
use gcli::Failure;
use gmodel::option_table::{OptionSpec, OptionValue};

/// Options of gsub that say how a batch script runs.
const OF_BATCH_SCRIPTS: [&str; 13] = [
    "array",
    "batch",
    "dry-run",
    "export-file",
    "get-user-env",
    "ignore-pbs",
    "json",
    "no-requeue",
    "parsable",
    "requeue",
    "test-only",
    "wait",
    "wrap",
];

/// Options of gsub that a step or a command on this machine has for itself.
const OF_STEPS: [&str; 15] = [
    "chdir",
    "distribution",
    "error",
    "export",
    "gpu-bind",
    "help",
    "input",
    "mem-bind",
    "open-mode",
    "output",
    "quiet",
    "tres-bind",
    "usage",
    "verbose",
    "version",
];

/// A command line, taken apart.
#[derive(Debug, Default)]
pub(crate) struct AllocationWords {
    /// What asks for the job.
    pub job: Vec<GivenOption>,
    /// The command's own options, each a word or two.
    pub own: Vec<String>,
    /// The program and its arguments; `--` before them is gone.
    pub command: Vec<String>,
    /// `--` was there.
    pub after_dashes: bool,
}

/// Whether an option of gsub asks for an allocation.
pub(crate) fn asks_for_nodes(option: &OptionSpec) -> bool {
    !OF_BATCH_SCRIPTS.contains(&option.name) && !OF_STEPS.contains(&option.name)
}

/// Takes a command line apart; `own` knows the options of the command itself, which go before gsub's of the same name only
/// where these are a step's.
///
/// # Errors
/// Options of batch scripts; values that are missing.
pub(crate) fn take_apart(words: &[String], own: &Command) -> Result<AllocationWords, Failure> {
    let mut apart = AllocationWords::default();
    let mut rest = words;
    while let [word, behind @ ..] = rest {
        if word == "--" {
            rest = behind;
            apart.after_dashes = true;
            break;
        }
        let used = match word.strip_prefix("--") {
            Some(long) => apart.take_long(word, long, behind, own)?,
            None if word.len() > 1 && word.starts_with('-') => {
                apart.take_letters(&word[1..], behind, own)?
            }
            None => break,
        };
        rest = &rest[used.min(rest.len())..];
    }
    apart.command = rest.to_vec();
    Ok(apart)
}

/// The same where `:` stands between the options of several components: what asks for each of them, and the rest of it all.
///
/// # Errors
/// The same.
pub(crate) fn take_parts_apart(
    words: &[String],
    own: &Command,
) -> Result<(Vec<Vec<GivenOption>>, AllocationWords), Failure> {
    let (mut parts, mut of_command) = (Vec::new(), Vec::new());
    let mut words = words.to_vec();
    loop {
        let mut apart = take_apart(&words, own)?;
        parts.push(std::mem::take(&mut apart.job));
        of_command.append(&mut apart.own);
        if apart.after_dashes || apart.command.first().is_none_or(|word| word != SEPARATOR) {
            apart.own = of_command;
            return Ok((parts, apart));
        }
        words = apart.command.split_off(1);
    }
}

/// The option of the command by itself, where it is not gsub's.
enum Owner<'c> {
    Job(&'static OptionSpec),
    Own(Option<&'c Arg>),
}

impl AllocationWords {
    /// How many words it took.
    fn take_long(
        &mut self,
        word: &str,
        long: &str,
        behind: &[String],
        own: &Command,
    ) -> Result<usize, Failure> {
        let (name, has_value) = long
            .split_once('=')
            .map_or((long, false), |(name, _)| (name, true));
        let arg = own.get_arguments().find(|arg| {
            arg.get_long() == Some(name)
                || arg
                    .get_all_aliases()
                    .is_some_and(|aliases| aliases.contains(&name))
        });
        let takes_next = match owner(OptionSpec::find_abbreviated(name).ok(), arg)? {
            Owner::Job(option) => {
                let more = !has_value && matches!(option.value, OptionValue::Required(_));
                let words: Vec<String> = std::iter::once(word.to_owned())
                    .chain(behind.first().filter(|_| more).cloned())
                    .collect();
                self.give(option, &words, own)?;
                more
            }
            Owner::Own(arg) => {
                let more = !has_value && arg.is_some_and(takes_next_word);
                self.own.push(word.to_owned());
                self.own.extend(behind.first().filter(|_| more).cloned());
                more
            }
        };
        Ok(1 + usize::from(takes_next))
    }

    /// Letters behind one dash: `-N2`, `-lN 2`.
    fn take_letters(
        &mut self,
        letters: &str,
        behind: &[String],
        own: &Command,
    ) -> Result<usize, Failure> {
        for (at, letter) in letters.char_indices() {
            let value = &letters[at + letter.len_utf8()..];
            let arg = own
                .get_arguments()
                .find(|arg| arg.get_short() == Some(letter));
            let (is_jobs, option, takes, may_stand_alone) =
                match owner(OptionSpec::find_short(letter), arg)? {
                    Owner::Job(option) => {
                        let takes = option.value != OptionValue::None;
                        let optional = matches!(option.value, OptionValue::Optional(_));
                        (true, Some(option), takes, optional)
                    }
                    Owner::Own(arg) => {
                        let takes = arg.is_some_and(|arg| arg.get_action().takes_values());
                        let alone = arg.is_some_and(Arg::is_require_equals_set);
                        (false, None, takes, alone)
                    }
                };
            let next = behind
                .first()
                .filter(|_| takes && value.is_empty() && !may_stand_alone);
            let long = arg.and_then(Arg::get_long).filter(|_| !is_jobs);
            let first = match (takes, long) {
                // clap takes such a value behind `=` only.
                (true, Some(long)) if may_stand_alone && !value.is_empty() => {
                    format!("--{long}={}", value.trim_start_matches('='))
                }
                (true, _) => format!("-{letter}{value}"),
                (false, _) => format!("-{letter}"),
            };
            let words: Vec<String> = std::iter::once(first).chain(next.cloned()).collect();
            match option.filter(|_| is_jobs) {
                Some(option) => self.give(option, &words, own)?,
                None => self.own.extend(words),
            }
            if takes {
                return Ok(1 + usize::from(next.is_some()));
            }
        }
        Ok(1)
    }

    fn give(
        &mut self,
        option: &OptionSpec,
        words: &[String],
        own: &Command,
    ) -> Result<(), Failure> {
        self.job.extend(read(words, &Origin::CommandLine)?.0);
        // A step is called and overcommitted as its job is, and runs in the image that its nodes pull for the job.
        if is_also_steps(option.name, own) {
            self.own.extend(words.iter().cloned());
        }
        Ok(())
    }
}

/// Whether the job and the step `own` both have this option.
pub(crate) fn is_also_steps(name: &str, own: &Command) -> bool {
    let has = || own.get_arguments().any(|arg| arg.get_long() == Some(name));
    (["job-name", "overcommit"].contains(&name) || container_words::has(name)) && has()
}

/// Whose option it is. What neither knows is left to the command, which says so.
fn owner<'c>(
    option: Option<&'static OptionSpec>,
    own: Option<&'c Arg>,
) -> Result<Owner<'c>, Failure> {
    match option {
        Some(option) if asks_for_nodes(option) => Ok(Owner::Job(option)),
        Some(option) if own.is_none() && OF_BATCH_SCRIPTS.contains(&option.name) => {
            Err(Failure::usage(format_args!(
                "{} is for a batch script: give it to gsub",
                option.flag()
            )))
        }
        _ => Ok(Owner::Own(own)),
    }
}

fn takes_next_word(arg: &Arg) -> bool {
    arg.get_action().takes_values() && !arg.is_require_equals_set()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apart(words: &str) -> String {
        let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
        match take_apart(&words, &crate::step_args::command()) {
            Err(failure) => failure.text,
            Ok(apart) => {
                let job: Vec<String> = apart
                    .job
                    .iter()
                    .map(|given| format!("{}={}", given.option.name, given.text()))
                    .collect();
                format!(
                    "{} | {} | {}",
                    job.join(" "),
                    apart.own.join(" "),
                    apart.command.join(" ")
                )
            }
        }
    }

    #[test]
    fn a_job_gets_its_options_and_a_step_its_own() {
        assert_eq!(
            apart("-N2 -l --gpus 2 -o out-%t hostname -N 3"),
            "nodes=2 gpus=2 | -l -o out-%t | hostname -N 3"
        );
        assert_eq!(
            apart("-lN 2 -W 5 --part=x -K --exclusive -- -x"),
            "nodes=2 partition=x exclusive= | -l -W 5 -K | -x"
        );
        assert_eq!(
            apart("-J a --cpu-bind cores -Qn4 -vv true"),
            "job-name=a ntasks=4 | -J a --cpu-bind cores -Q -v -v | true"
        );
        assert_eq!(
            apart("--tasks-per-node 2 -k -t 5 true"),
            "ntasks-per-node=2 no-kill= time=5 |  | true"
        );
    }

    #[test]
    fn a_colon_before_the_command_parts_the_components() {
        let apart = |words: &str| {
            let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
            let (parts, apart) = take_parts_apart(&words, &crate::step_args::command()).unwrap();
            let names = |part: &Vec<GivenOption>| {
                let names: Vec<&str> = part.iter().map(|given| given.option.name).collect();
                names.join(" ")
            };
            let parts: Vec<String> = parts.iter().map(names).collect();
            let (own, command) = (apart.own.join(" "), apart.command.join(" "));
            format!("{} | {own} | {command}", parts.join(" / "))
        };
        assert_eq!(
            apart("-N2 -l : --gpus 2 -n 1 -K : sh -c :"),
            "nodes / gpus ntasks /  | -l -K | sh -c :"
        );
        assert_eq!(apart("-N2 -- : true"), "nodes |  | : true");
    }

    #[test]
    fn options_of_batch_scripts_are_refused() {
        assert_eq!(
            apart("--array 0-3 true"),
            "--array is for a batch script: give it to gsub"
        );
        assert_eq!(
            apart("--wrap x true"),
            "--wrap is for a batch script: give it to gsub"
        );
        assert_eq!(apart("--nosuch true"), " | --nosuch | true");
    }
}
