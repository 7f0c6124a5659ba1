//! Which of several options counts: command line over environment over script, and the last within each.
//!
//! Options that say the same thing in different ways rival each other: `--mem` on the command line puts
//! `--mem-per-cpu` of the script aside. What of them may stand side by side in one place is said here, not what they come to.

use crate::option_words::{GivenOption, Origin};
use gcli::Failure;
use gmodel::option_table::OptionStatus;
use std::collections::BTreeMap;

/// Options that put each other aside across origins, and what two of one origin are.
const RIVALS: [(&[&str], RepeatRule); 9] = [
    (&["mem", "mem-per-cpu", "mem-per-gpu"], RepeatRule::Refused),
    (
        &["gpus", "gpus-per-node", "gpus-per-task", "gres"],
        RepeatRule::Together,
    ),
    (&["requeue", "no-requeue"], RepeatRule::LastWins),
    (&["borrow", "no-borrow"], RepeatRule::LastWins),
    (&["quiet", "verbose"], RepeatRule::LastWins),
    (
        &["container-writable", "container-readonly"],
        RepeatRule::Refused,
    ),
    (
        &["container-entrypoint", "no-container-entrypoint"],
        RepeatRule::Refused,
    ),
    (
        &["container-mount-home", "no-container-mount-home"],
        RepeatRule::Refused,
    ),
    (
        &["container-remap-root", "no-container-remap-root"],
        RepeatRule::Refused,
    ),
];

/// Rivals of one origin, side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RepeatRule {
    Refused,
    LastWins,
    /// Both count.
    Together,
}

/// Options that may be given several times.
const ADDING_UP: [&str; 2] = ["tag", "verbose"];

/// The options that count.
#[derive(Debug, Default)]
pub(crate) struct Choices(Vec<GivenOption>);

impl Choices {
    /// Of all that were given, in the order in which they were given.
    ///
    /// # Errors
    /// Two rivals of the same origin.
    pub(crate) fn of(given: impl IntoIterator<Item = GivenOption>) -> Result<Self, Failure> {
        let mut topics: BTreeMap<&'static str, Vec<GivenOption>> = BTreeMap::new();
        for given in given {
            topics
                .entry(topic(given.option.name))
                .or_default()
                .push(given);
        }
        let mut chosen = Vec::new();
        for mut given in topics.into_values() {
            let rank = given
                .iter()
                .map(|given| given.origin.rank())
                .max()
                .unwrap_or_default();
            given.retain(|given| given.origin.rank() == rank);
            let last = given
                .last()
                .map(|given| given.option.name)
                .unwrap_or_default();
            let side = RIVALS
                .iter()
                .find(|(names, _)| names.contains(&last))
                .map_or(RepeatRule::LastWins, |(_, side)| *side);
            if let Some(rival) = given.iter().find(|given| given.option.name != last)
                && side == RepeatRule::Refused
            {
                let (one, other) = (rival.option.name, last);
                return Err(rival.origin.fail(format_args!(
                    "--{one} and --{other} say the same thing in two ways. Keep one of them"
                )));
            }
            if side != RepeatRule::Together {
                given.retain(|given| given.option.name == last);
            }
            if !ADDING_UP.contains(&last) {
                let names: Vec<&str> = given.iter().map(|given| given.option.name).collect();
                let mut place = 0..;
                given.retain(|given| {
                    place
                        .next()
                        .is_some_and(|place| !names[place + 1..].contains(&given.option.name))
                });
            }
            chosen.append(&mut given);
        }
        Ok(Self(chosen))
    }

    /// What counts, by where it was given: the command line first, then variables, then the script's lines.
    pub(crate) fn by_origin(&self) -> Vec<(&Origin, Vec<&GivenOption>)> {
        let mut origins: Vec<(&Origin, Vec<&GivenOption>)> = Vec::new();
        let mut sorted: Vec<&GivenOption> = self.0.iter().collect();
        sorted.sort_by_key(|given| (std::cmp::Reverse(given.origin.rank()), &given.origin));
        for given in sorted {
            match origins
                .iter_mut()
                .find(|(origin, _)| **origin == given.origin)
            {
                Some((_, all)) => all.push(given),
                None => origins.push((&given.origin, vec![given])),
            }
        }
        origins
    }

    /// All that count.
    pub(crate) fn all(&self) -> impl Iterator<Item = &GivenOption> {
        self.0.iter()
    }

    /// How often `--verbose` was given, or as a variable says it.
    pub(crate) fn verbosity(&self) -> u32 {
        let given = self.all().filter(|given| given.option.name == "verbose");
        given.map(|given| given.text().parse().unwrap_or(1)).sum()
    }

    /// What is said of options of which nothing comes.
    pub(crate) fn unused(&self) -> impl Iterator<Item = String> {
        self.0.iter().filter_map(GivenOption::note)
    }

    /// Whether a flag counts, without taking it.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// An option that counts, without taking it.
    pub(crate) fn get(&self, name: &str) -> Option<&GivenOption> {
        self.0.iter().find(|given| given.option.name == name)
    }

    /// Takes the last of an option.
    pub(crate) fn take(&mut self, name: &str) -> Option<GivenOption> {
        self.take_all(name).pop()
    }

    /// Takes all of an option, in their order.
    pub(crate) fn take_all(&mut self, name: &str) -> Vec<GivenOption> {
        self.0
            .extract_if(.., |given| given.option.name == name)
            .collect()
    }

    /// Whether a flag was given.
    pub(crate) fn take_flag(&mut self, name: &str) -> bool {
        self.take(name).is_some()
    }

    /// Takes the options that are stored and not acted on.
    pub(crate) fn take_unused(&mut self) -> Vec<GivenOption> {
        let is_unused = |given: &mut GivenOption| {
            matches!(
                given.option.status,
                OptionStatus::Later | OptionStatus::Hint(_)
            )
        };
        self.0.extract_if(.., is_unused).collect()
    }

    /// Names of the options that were not taken; none when all are acted on.
    pub(crate) fn left(&self) -> Vec<&'static str> {
        self.0.iter().map(|given| given.option.name).collect()
    }
}

fn topic(name: &'static str) -> &'static str {
    RIVALS
        .iter()
        .find(|(names, _)| names.contains(&name))
        .map_or(name, |(names, _)| names[0])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::option_words::read;

    fn given(origin: &Origin, text: &str) -> Vec<GivenOption> {
        let words: Vec<String> = text
            .split(' ')
            .filter(|word| !word.is_empty())
            .map(str::to_owned)
            .collect();
        read(&words, origin).unwrap().0
    }

    fn chosen(script: &str, environment: &str, command_line: &str) -> Result<String, Failure> {
        let in_script = Origin::Script {
            script: "job.sh".into(),
            line_no: 2,
        };
        let variable = Origin::Environment("SBATCH_X".into());
        let all = [
            given(&in_script, script),
            given(&variable, environment),
            given(&Origin::CommandLine, command_line),
        ];
        let choices = Choices::of(all.concat())?;
        let show = |given: &GivenOption| format!("{}={}", given.option.name, given.text());
        Ok(choices.0.iter().map(show).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn the_command_line_outranks_the_environment_and_that_the_script() {
        assert_eq!(
            chosen("-p script -t 1", "-p env -n 2", "-p cli").unwrap(),
            "ntasks=2 partition=cli time=1"
        );
        assert_eq!(chosen("-p script", "-p env", "").unwrap(), "partition=env");
        assert_eq!(chosen("-p a -p b", "", "").unwrap(), "partition=b");
    }

    #[test]
    fn rivals_are_put_aside_across_origins_and_refused_within_one() {
        assert_eq!(
            chosen("--mem-per-cpu=1G --gres=gpu:1", "", "--mem=2G --gpus=4").unwrap(),
            "gpus=4 mem=2G"
        );
        assert_eq!(
            chosen("--requeue --no-requeue", "", "").unwrap(),
            "no-requeue="
        );
        assert_eq!(
            chosen("", "", "--gpus=8 --gres=gpu:2 --gpus=4").unwrap(),
            "gres=gpu:2 gpus=4",
            "taken together"
        );
        let refused = chosen("--mem=1G --mem-per-cpu=2G", "", "").unwrap_err();
        assert_eq!(
            refused.text,
            "job.sh: line 2: --mem and --mem-per-cpu say the same thing in two ways. Keep one of them"
        );
    }

    #[test]
    fn tags_of_one_origin_add_up() {
        assert_eq!(
            chosen("--tag=x", "", "--tag=a --tag=b").unwrap(),
            "tag=a tag=b"
        );
    }
}
