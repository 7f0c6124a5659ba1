//! The options of containers on the two command lines that have them: gsub's, by what counts of all its words, and grun's.

use crate::choice::Choices;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use gcli::Failure;
use gmodel::container::ContainerSpec;
use gmodel::option_table::{OPTIONS, OptionSpec, OptionStatus, OptionValue};

/// Flags that say the contrary of another one.
const CONTRARY: [(&str, &str); 4] = [
    ("container-writable", "container-readonly"),
    ("container-entrypoint", "no-container-entrypoint"),
    ("container-mount-home", "no-container-mount-home"),
    ("container-remap-root", "no-container-remap-root"),
];

fn options() -> impl Iterator<Item = &'static OptionSpec> {
    OPTIONS
        .iter()
        .filter(|option| option.status == OptionStatus::Done && has(option.name))
}

/// Whether an option is about containers.
pub(crate) fn has(name: &str) -> bool {
    name.trim_start_matches("no-").starts_with("container")
}

/// The container of a job.
///
/// # Errors
/// A value that cannot be, with where it was given; options without an image.
pub(crate) fn chosen(
    choices: &mut Choices,
    here: &str,
) -> Result<Option<Box<ContainerSpec>>, Failure> {
    let (mut spec, mut last) = (ContainerSpec::default(), None);
    for option in options() {
        if let Some(given) = choices.take(option.name) {
            spec.take(option.name, given.text())
                .map_err(|why| given.fail(why))?;
            last = Some(given);
        }
    }
    let complete = spec.complete().map_err(|why| match &last {
        Some(given) => given.fail(why),
        None => Failure::new(why),
    })?;
    Ok(complete.map(|spec| from_dir(spec, here)))
}

fn from_dir(mut spec: ContainerSpec, here: &str) -> Box<ContainerSpec> {
    spec.from_dir(here);
    Box::new(spec)
}

/// The same on grun's command line.
#[derive(Clone, Debug, Default)]
pub(crate) struct ContainerArgs(ContainerSpec);

impl ContainerArgs {
    /// # Errors
    /// Options without an image.
    pub fn take(&mut self) -> Result<Option<Box<ContainerSpec>>, Failure> {
        let here = std::env::current_dir().unwrap_or_default();
        let complete = std::mem::take(&mut self.0)
            .complete()
            .map_err(|why| Failure::usage(why))?;
        Ok(complete.map(|spec| from_dir(spec, &here.to_string_lossy())))
    }
}

impl Args for ContainerArgs {
    fn augment_args(command: Command) -> Command {
        options().fold(command, |command, option| command.arg(arg(option)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

fn arg(option: &'static OptionSpec) -> Arg {
    let arg = Arg::new(option.name).long(option.name).help(option.help);
    let rival = CONTRARY.iter().find_map(|(one, other)| match option.name {
        name if name == *one => Some(*other),
        name if name == *other => Some(*one),
        _ => None,
    });
    let arg = match option.value {
        OptionValue::Required(word) | OptionValue::Optional(word) => {
            arg.value_name(word).action(ArgAction::Set)
        }
        OptionValue::None => arg.action(ArgAction::SetTrue),
    };
    match rival {
        Some(rival) => arg.conflicts_with(rival),
        None => arg,
    }
}

impl FromArgMatches for ContainerArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut args = Self::default();
        args.update_from_arg_matches(matches)?;
        Ok(args)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for option in options() {
            let value = match option.value {
                OptionValue::None => matches.get_flag(option.name).then(String::new),
                _ => matches.get_one::<String>(option.name).cloned(),
            };
            if let Some(value) = value {
                self.0.take(option.name, &value).map_err(|why| {
                    let text = format!("--{}: {why}\n", option.name);
                    clap::Error::raw(clap::error::ErrorKind::ValueValidation, text)
                })?;
            }
        }
        Ok(())
    }
}
