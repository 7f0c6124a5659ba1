//! Options as words: `--time=30`, `--time 30`, `-t30`, `-HW`, on a command line and in a script's lines alike.
//!
//! Owns the reading that getopt_long does for sbatch, from the one table; never acts on an option.

use crate::tres_words;
use gcli::Failure;
use gcli::failure::{FAILED, USAGE};
use gmodel::option_table::{OPTIONS, OptionSpec, OptionStatus, OptionValue};
use std::fmt;

/// Where an option was given. A later one outranks an earlier one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Origin {
    /// A line of this script.
    Script {
        script: String,
        line_no: u32,
    },
    /// This variable.
    Environment(String),
    CommandLine,
}

/// One option with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GivenOption {
    pub option: &'static OptionSpec,
    pub value: Option<String>,
    pub origin: Origin,
}

impl Origin {
    /// 0 script, 1 environment, 2 command line.
    pub(crate) fn rank(&self) -> u8 {
        match self {
            Self::Script { .. } => 0,
            Self::Environment(_) => 1,
            Self::CommandLine => 2,
        }
    }

    /// A failure that says where the mistake is. In a script it is a refusal, else a wrong command line.
    pub(crate) fn fail(&self, why: impl fmt::Display) -> Failure {
        let exit = if self.rank() == 0 { FAILED } else { USAGE };
        Failure {
            exit,
            ..Failure::new(format_args!("{self}{why}"))
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Script { script, line_no } => write!(f, "{script}: line {line_no}: "),
            Self::Environment(variable) => write!(f, "{variable}: "),
            Self::CommandLine => Ok(()),
        }
    }
}

impl GivenOption {
    /// The value cannot be; the parser's message follows the option's name.
    pub(crate) fn fail(&self, why: impl fmt::Display) -> Failure {
        self.origin
            .fail(format_args!("--{}: {why}", self.option.name))
    }

    /// What is said of it where nothing comes of it.
    pub(crate) fn note(&self) -> Option<String> {
        let (origin, name) = (&self.origin, self.option.name);
        match self.option.status {
            OptionStatus::Later => Some(format!(
                "{origin}--{name} is not acted on yet; it is stored with the job"
            )),
            OptionStatus::Hint(why) => {
                Some(format!("{origin}--{name} changes nothing here: {why}"))
            }
            _ if self.shares_nodes_with_some() => Some(format!(
                "{origin}--{name}={} changes nothing here: jobs of any user may share the nodes; \
                 --exclusive alone takes whole nodes",
                self.text()
            )),
            _ => None,
        }
    }

    /// `--exclusive=user`
    pub(crate) fn shares_nodes_with_some(&self) -> bool {
        self.option.name == "exclusive" && ["user", "mcs", "topo"].contains(&self.text())
    }

    /// The same, said of the option of this name.
    fn renamed(&self, name: &str) -> Self {
        Self {
            option: OptionSpec::find(name).expect("a test of the table finds every other name"),
            ..self.clone()
        }
    }

    /// The value of an option that always has one.
    pub(crate) fn text(&self) -> &str {
        self.value.as_deref().unwrap_or_default()
    }
}

/// Reads options up to `--` or the first word that is none; the words from there on are returned too, and
/// whether `--` came before them.
///
/// # Errors
/// Unknown options, values that are missing or too many, options that are refused.
pub(crate) fn read(
    words: &[String],
    origin: &Origin,
) -> Result<(Vec<GivenOption>, PositionalWords), Failure> {
    let mut given = Vec::new();
    let mut words = words.iter();
    loop {
        let before = words.as_slice();
        let Some(word) = words.next() else {
            return Ok((
                given,
                PositionalWords {
                    words: Vec::new(),
                    after_dashes: false,
                },
            ));
        };
        if word == "--" {
            return Ok((
                given,
                PositionalWords {
                    words: words.as_slice().to_vec(),
                    after_dashes: true,
                },
            ));
        }
        if let Some(long) = word.strip_prefix("--") {
            given.extend(read_long(long, &mut words, origin)?);
        } else if word.len() > 1 && word.starts_with('-') {
            read_short(&word[1..], &mut words, origin, &mut given)?;
        } else {
            return Ok((
                given,
                PositionalWords {
                    words: before.to_vec(),
                    after_dashes: false,
                },
            ));
        }
    }
}

/// What follows the options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PositionalWords {
    pub words: Vec<String>,
    pub after_dashes: bool,
}

fn read_long<'w>(
    word: &str,
    next: &mut impl Iterator<Item = &'w String>,
    origin: &Origin,
) -> Result<Vec<GivenOption>, Failure> {
    let (name, value) = word
        .split_once('=')
        .map_or((word, None), |(name, value)| (name, Some(value.to_owned())));
    let option = OptionSpec::find_abbreviated(name).map_err(|why| origin.fail(why))?;
    let value = match (option.value, value) {
        (OptionValue::None, Some(value)) => {
            return Err(origin.fail(format_args!(
                "--{} takes no value, and was given {value:?}",
                option.name
            )));
        }
        (OptionValue::Required(what), None) => Some(value_behind(option, what, next, origin)?),
        (_, value) => value,
    };
    accept(option, value, origin)
}

fn read_short<'w>(
    letters: &str,
    next: &mut impl Iterator<Item = &'w String>,
    origin: &Origin,
    given: &mut Vec<GivenOption>,
) -> Result<(), Failure> {
    let mut rest = letters.chars();
    while let Some(letter) = rest.next() {
        let option = OptionSpec::find_short(letter).ok_or_else(|| {
            origin.fail(format_args!(
                "unknown option -{letter}. gsub --help lists them all."
            ))
        })?;
        let value = match option.value {
            OptionValue::None => {
                given.extend(accept(option, None, origin)?);
                continue;
            }
            OptionValue::Optional(_) => {
                Some(rest.as_str().to_owned()).filter(|value| !value.is_empty())
            }
            OptionValue::Required(what) => Some(match rest.as_str() {
                "" => value_behind(option, what, next, origin)?,
                value if value.starts_with('=') => {
                    let value = &value[1..];
                    let text = format!(
                        "-{letter}={value}: write -{letter} {value} or --{}={value}",
                        option.name
                    );
                    return Err(origin.fail(text));
                }
                value => value.to_owned(),
            }),
        };
        given.extend(accept(option, value, origin)?);
        break;
    }
    Ok(())
}

/// The next word, unless it is an option itself: then the value was forgotten.
fn value_behind<'w>(
    option: &OptionSpec,
    what: &str,
    next: &mut impl Iterator<Item = &'w String>,
    origin: &Origin,
) -> Result<String, Failure> {
    let word = next
        .next()
        .ok_or_else(|| origin.fail(format_args!("--{} needs a value, {what}", option.name)))?;
    match word
        .strip_prefix("--")
        .and_then(|long| OptionSpec::find(long.split('=').next()?))
    {
        Some(_) => Err(origin.fail(format_args!(
            "--{} needs a value, {what}; {word} follows instead",
            option.name
        ))),
        None => Ok(word.clone()),
    }
}

/// Follows other names to the options that are meant, and refuses what is refused here.
fn accept(
    option: &'static OptionSpec,
    value: Option<String>,
    origin: &Origin,
) -> Result<Vec<GivenOption>, Failure> {
    let refused = match option.status {
        OptionStatus::Later => *origin == Origin::CommandLine,
        OptionStatus::Never(_) => true,
        OptionStatus::Done | OptionStatus::SameAs(_) | OptionStatus::Hint(_) => false,
    };
    if let Some(refusal) = option.refusal().filter(|_| refused) {
        return Err(origin.fail(refusal));
    }
    let given = GivenOption {
        option,
        value,
        origin: origin.clone(),
    };
    let words = match (option.name, option.status) {
        ("tres-per-task", _) => tres_words::per_task(given.text()),
        ("tres-bind", _) => tres_words::bind(given.text()),
        (_, OptionStatus::SameAs(name)) => return Ok(vec![given.renamed(name)]),
        _ => return Ok(vec![given]),
    };
    let words = words.map_err(|why| given.fail(why))?;
    Ok(words
        .into_iter()
        .map(|(name, value)| GivenOption {
            value: Some(value),
            ..given.renamed(name)
        })
        .collect())
}

/// Options set by variables, as far as they are read. A `GSUB_` variable outranks the Slurm one of the same end, which begins with
/// `prefix`; inside of a job the former describe that job and are not read.
///
/// # Errors
/// Options that are refused.
pub(crate) fn read_environment(
    prefix: &str,
    is_read: impl Fn(&OptionSpec) -> bool,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Vec<GivenOption>, Failure> {
    let inside_job = variable("GSUB_JOB_ID").is_some();
    let mut given = Vec::new();
    for option in OPTIONS.iter().filter(|option| is_read(option)) {
        let Some(name) = option.env else { continue };
        let end = name.strip_prefix("SBATCH_");
        let twin = end.filter(|_| !inside_job).map(|end| format!("GSUB_{end}"));
        let name = end.map_or(name.to_owned(), |end| format!("{prefix}{end}"));
        let set = [twin, Some(name)]
            .into_iter()
            .flatten()
            .find_map(|name| Some((variable(&name)?, name)));
        let Some((value, name)) = set else { continue };
        let value = match option.value {
            // How much it says; 0 is nothing.
            OptionValue::None if option.name == "verbose" => match value.parse::<u32>() {
                Ok(0) => continue,
                _ => Some(value),
            },
            OptionValue::None if is_off(&value) => continue,
            OptionValue::None => None,
            // Set and empty is as unset, but for options that may stand alone.
            OptionValue::Required(_) if value.is_empty() => continue,
            OptionValue::Optional(_) if value.is_empty() => None,
            _ => Some(value),
        };
        given.extend(accept(option, value, &Origin::Environment(name))?);
    }
    Ok(given)
}

/// A variable sets a flag if it is empty, `yes`, or a number other than 0, as in sbatch.
fn is_off(value: &str) -> bool {
    let is_number = value.parse::<i64>().is_ok_and(|number| number != 0);
    !(value.is_empty() || value.eq_ignore_ascii_case("yes") || is_number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};
    use proptest::prelude::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ')
            .filter(|word| !word.is_empty())
            .map(str::to_owned)
            .collect()
    }

    fn check(text: &str, want: Expect) {
        want.assert_eq(&match read(&words(text), &Origin::CommandLine) {
            Err(failure) => format!("{}: {}", failure.exit, failure.text),
            Ok((given, rest)) => {
                let show = |given: &GivenOption| match &given.value {
                    Some(value) => format!("{}={value} ", given.option.name),
                    None => format!("{} ", given.option.name),
                };
                let options: String = given.iter().map(show).collect();
                format!(
                    "{options}{}{}",
                    if rest.after_dashes { "-- " } else { "" },
                    rest.words.join(" ")
                )
            }
        });
    }

    #[test]
    fn words_are_cut_as_getopt_cuts_them() {
        check(
            "--time=30 --time 40 -t50 -t 60 job.sh --time=70",
            expect!["time=30 time=40 time=50 time=60 job.sh --time=70"],
        );
        check(
            "-HWn4 -- srun -n 8",
            expect!["hold wait ntasks=4 -- srun -n 8"],
        );
        check(
            "--nice --nice=5 --exclusive job.sh",
            expect!["nice nice=5 exclusive job.sh"],
        );
        check("--test-only --usage", expect!["dry-run help "]);
        check("--comment= -J - x", expect!["comment= job-name=- x"]);
    }

    #[test]
    fn a_name_may_be_cut_short_where_it_says_enough() {
        check(
            "--part x --out=y --tasks-per-node=2 --job z",
            expect!["partition=x output=y ntasks-per-node=2 job-name=z "],
        );
        check(
            "--mem-per=1G",
            expect!["2: --mem-per could be --mem-per-cpu, --mem-per-gpu. Write it in full."],
        );
        check("--mem=1G --time 3", expect!["mem=1G time=3 "]);
        check(
            "--=x",
            expect!["2: unknown option --. gsub --help lists them all."],
        );
    }

    #[test]
    fn mistakes_name_what_would_work() {
        check(
            "--partiton x",
            expect![
                "2: unknown option --partiton. Did you mean --partition? gsub --help lists them all."
            ],
        );
        check(
            "-Y",
            expect!["2: unknown option -Y. gsub --help lists them all."],
        );
        check("--time", expect!["2: --time needs a value, TIME"]);
        check(
            "--hold=1",
            expect![[r#"2: --hold takes no value, and was given "1""#]],
        );
        check("-n=4", expect!["2: -n=4: write -n 4 or --ntasks=4"]);
        check(
            "--tmp 4",
            expect![
                "2: --tmp is not acted on yet. In a #SBATCH line it is stored with the job; on the command line leave it out"
            ],
        );
        check("--contiguous", expect!["contiguous "]);
        check(
            "--uid bob",
            expect![
                "2: --uid has no meaning here: a job belongs to the user whom the kernel names. Submit as that user, for instance with runuser -u NAME"
            ],
        );
    }

    #[test]
    fn a_script_may_ask_for_what_comes_later() {
        let origin = Origin::Script {
            script: "job.sh".into(),
            line_no: 3,
        };
        let (given, _) = read(&words("--tmp 4 --contiguous"), &origin).unwrap();
        assert_eq!(given.len(), 2);
        let refused = read(&words("--uid bob"), &origin).unwrap_err();
        assert!(
            refused.exit == FAILED
                && refused
                    .text
                    .starts_with("job.sh: line 3: --uid has no meaning"),
            "{}",
            refused.text
        );
    }

    #[test]
    fn variables_set_options_and_ours_outrank_those_of_slurm() {
        let set = [
            ("SBATCH_PARTITION", "a"),
            ("GSUB_PARTITION", "b"),
            ("SBATCH_TIMELIMIT", ""),
            ("SBATCH_NO_REQUEUE", "1"),
            ("SBATCH_IGNORE_PBS", "0"),
            ("SBATCH_USE_MIN_NODES", "no"),
            ("GSUB_JOB_NAME", "outer"),
        ];
        let read = |inside: bool| {
            let given = read_environment(
                "SBATCH_",
                |_| true,
                |name| {
                    let inside = (inside && name == "GSUB_JOB_ID").then(|| "17".to_owned());
                    inside.or_else(|| {
                        set.iter()
                            .find(|(known, _)| *known == name)
                            .map(|(_, value)| (*value).to_owned())
                    })
                },
            );
            given
                .unwrap()
                .iter()
                .map(|given| format!("{}={}", given.option.name, given.text()))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            read(false),
            ["job-name=outer", "no-requeue=", "partition=b"]
        );
        assert_eq!(
            read(true),
            ["no-requeue=", "partition=a"],
            "inside of a job GSUB_ variables describe that job"
        );
    }

    proptest! {
        #[test]
        fn any_words_are_read_or_refused(words in prop::collection::vec("\\PC{0,12}|-[a-zA-Z=]{0,5}|--[a-z-]{0,9}=?[a-z0-9]{0,3}", 0..6)) {
            let _ = read(&words, &Origin::CommandLine);
        }
    }
}
