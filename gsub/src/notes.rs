//! What gsub says on stderr besides errors, once `--quiet` and `--verbose` are known.
//!
//! Owns `--quiet` and the telling of `--verbose`; never failures: these are always said.

use crate::choice::Choices;
use crate::defined_options::DefinedOptions;
use crate::option_words::{GivenOption, Origin};
use gcli::local_time::TimeFormat;
use gcli::slurm_name;
use gwire::client::Client;
use std::fmt::Write as _;

/// Notes of one submission.
#[derive(Debug)]
pub(crate) struct Notes {
    /// Unknown until all options are read.
    quiet: Option<bool>,
    held: Vec<String>,
    /// Of the first component, and how much is to be said.
    defined: Option<(DefinedOptions, u32)>,
}

impl Notes {
    /// `quiet`: the command line says so already.
    pub(crate) fn new(quiet: bool) -> Self {
        Self {
            quiet: quiet.then_some(true),
            held: Vec::new(),
            defined: None,
        }
    }

    /// The options are known: what was held back is said, or is not.
    pub(crate) fn decide(&mut self, choices: &Choices) {
        self.quiet = Some(choices.has("quiet"));
        self.defined
            .get_or_insert_with(|| (DefinedOptions::of(choices), choices.verbosity()));
        for text in std::mem::take(&mut self.held) {
            self.say(&text);
        }
        if choices.has("verbose") && !slurm_name::is_one(std::env::args_os().next()) {
            for line in taken_from(choices) {
                self.say(&line);
            }
        }
    }

    /// What `sbatch -v` says before it submits.
    pub(crate) fn say_defined(&self, client: &Client) {
        let name = slurm_name::of(std::env::args_os().next());
        if let (Some(name), Some((options, verbosity))) = (name, &self.defined) {
            options.say(name, *verbosity, client);
        }
    }

    pub(crate) fn are_quiet(&self) -> bool {
        self.quiet == Some(true)
    }

    pub(crate) fn say(&mut self, text: &str) {
        match self.quiet {
            None => self.held.push(text.to_owned()),
            Some(false) => print(text),
            Some(true) => {}
        }
    }
}

/// A failure before the options were known must not swallow what may explain it.
impl Drop for Notes {
    fn drop(&mut self) {
        self.held.iter().for_each(|text| print(text));
    }
}

fn print(text: &str) {
    let text = TimeFormat::from_env().in_text(&gcli::printable::printable(text));
    let _ = gcli::failure::note("gsub", text);
}

/// `from job.sh, line 2: --ntasks=2 --job-name=fit`, a line for each place.
fn taken_from(choices: &Choices) -> Vec<String> {
    let line = |(origin, given): (&Origin, Vec<&GivenOption>)| {
        let mut text = match origin {
            Origin::CommandLine => "from the command line:".to_owned(),
            Origin::Environment(variable) => format!("from the variable {variable}:"),
            Origin::Script { script, line_no } => format!("from {script}, line {line_no}:"),
        };
        for given in given {
            let _ = match &given.value {
                None => write!(text, " --{}", given.option.name),
                Some(value) if value.is_empty() || value.contains(char::is_whitespace) => {
                    write!(text, " --{}={value:?}", given.option.name)
                }
                Some(value) => write!(text, " --{}={value}", given.option.name),
            };
        }
        text
    };
    choices.by_origin().into_iter().map(line).collect()
}
