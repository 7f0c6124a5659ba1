//! What `--verbose` says under Slurm's names before a job is asked for: the options that count, as sbatch lists them.

use crate::choice::Choices;
use gmodel::duration::{TimeLimit, sacct_time};
use gwire::client::Client;

/// The options of a submission, as they are listed.
#[derive(Clone, Debug, Default)]
pub(crate) struct DefinedOptions(Vec<(&'static str, String)>);

impl DefinedOptions {
    pub fn of(choices: &Choices) -> Self {
        let mut options: Vec<(&'static str, String)> = choices
            .all()
            .filter(|given| given.option.name != "verbose")
            .map(|given| {
                let name = given.option.name;
                (name, shown(name, given.value.as_deref()))
            })
            .collect();
        options.sort();
        Self(options)
    }

    /// On stderr; with a second `-v` the controller's socket, too.
    pub fn say(&self, name: &str, verbosity: u32, client: &Client) {
        if verbosity == 0 {
            return;
        }
        let line = format!("{name}: {0} {0}", "-".repeat(20));
        eprintln!("{name}: defined options\n{line}");
        for (option, value) in &self.0 {
            eprintln!("{name}: {option:<20}: {value}");
        }
        eprintln!(
            "{name}: {:<20}: {verbosity}\n{line}\n{name}: end of defined options",
            "verbose"
        );
        if verbosity > 1 {
            eprintln!(
                "{name}: debug:  asks the controller at {}",
                client.address()
            );
        }
    }
}

/// A time limit in hours, a flag as `set`, all else as it was given.
fn shown(name: &str, value: Option<&str>) -> String {
    let Some(text) = value else {
        return "set".to_owned();
    };
    match name {
        "time" | "time-min" => TimeLimit::parse(text)
            .ok()
            .and_then(TimeLimit::secs)
            .map_or(text.to_owned(), sacct_time),
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_listed_as_sbatch_lists_them() {
        assert_eq!(shown("time", Some("3")), "00:03:00");
        assert_eq!(shown("time", Some("UNLIMITED")), "UNLIMITED");
        assert_eq!(
            (shown("hold", None), shown("nodes", Some("1-2"))),
            ("set".into(), "1-2".into())
        );
    }
}
