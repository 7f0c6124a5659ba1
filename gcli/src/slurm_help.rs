//! `--help`, `--usage` and what `-v` shows first, under Slurm's names: in the form of Slurm's commands, made from the options that ours have.
//!
//! Owns the form; options and their words are those of the command and of the option table. Source: what Slurm's commands print.

use clap::{Arg, ArgAction, ArgMatches, Command};
use gmodel::option_table::{OPTIONS, OptionStatus, OptionValue};
use std::ffi::OsString;
use std::fmt::Write as _;

/// How the help of a command is laid out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Layout {
    /// `Usage: squeue [OPTIONS]`, an option a line, and `Help options:`.
    Lines,
    /// `sacct [<OPTION>]`, `Valid <OPTION> values are:`, and each option above its text.
    Valid,
}

/// What stands behind the options in `--help` and in `--usage`.
struct SlurmForm {
    name: &'static str,
    layout: Layout,
    help: &'static str,
    usage: &'static str,
}

const fn lines(name: &'static str, help: &'static str, usage: &'static str) -> SlurmForm {
    SlurmForm {
        name,
        layout: Layout::Lines,
        help,
        usage,
    }
}

const fn valid(name: &'static str, help: &'static str, usage: &'static str) -> SlurmForm {
    SlurmForm {
        name,
        layout: Layout::Valid,
        help,
        usage,
    }
}

const PROGRAM: &str = "[ : [OPTIONS(N)...]] executable(N) [args(N)...]";
const FORMS: [SlurmForm; 17] = [
    valid("sacct", "", "[options]\n\tUse --help for help"),
    valid("sacctmgr", " [<COMMAND>]", ""),
    lines("salloc", PROGRAM, "[executable [args...]]"),
    lines("sattach", "<job.step>", "<job.step>"),
    lines(
        "sbatch",
        "[ : [OPTIONS(N)...]] script(0) [args(0)...]",
        "executable [args...]",
    ),
    lines("sbcast", "SOURCE DEST", "SOURCE DEST"),
    lines(
        "scancel",
        "[job_id[_array_id][.step_id]]",
        "[job_id[_array_id][.step_id]]",
    ),
    valid("scontrol", " [<COMMAND>]", ""),
    lines("sdiag", "", ""),
    lines("seff", "job_id...", "job_id..."),
    lines("sinfo", "", ""),
    lines("sprio", "", ""),
    lines("squeue", "", ""),
    valid("sreport", " [<COMMAND>]", ""),
    lines("srun", PROGRAM, "executable [args...]"),
    valid("sshare", "", ""),
    valid(
        "sstat",
        " -j <job(.step)>",
        "[options] -j <job(.step)>\n\tUse --help for help",
    ),
];

fn form_of(name: &str) -> &'static SlurmForm {
    let found = FORMS.iter().find(|form| form.name == name);
    found.expect("a test compares the forms with the names")
}

/// Commands that take the options of the table besides their own.
const SUBMITTING: [&str; 3] = ["salloc", "sbatch", "srun"];

/// Groups of options in the help of sbatch, srun and salloc. Options of no group stand before them.
const GROUPS: [(&str, &[&str]); 3] = [
    (
        "Constraint options:",
        &[
            "constraint",
            "contiguous",
            "exclude",
            "mem",
            "mincpus",
            "nodefile",
            "nodelist",
            "prefer",
            "reservation",
            "tmp",
        ],
    ),
    (
        "Consumable resources related options:",
        &["exclusive", "mem-per-cpu", "oversubscribe"],
    ),
    (
        "GPU scheduling options:",
        &[
            "cpus-per-gpu",
            "gpu-bind",
            "gpu-freq",
            "gpus",
            "gpus-per-node",
            "gpus-per-socket",
            "gpus-per-task",
            "mem-per-gpu",
            "ntasks-per-gpu",
        ],
    ),
];

/// An option as help tells of it.
struct Entry {
    short: Option<char>,
    long: Option<String>,
    /// Its placeholder, and whether the value may be left out.
    value: Option<(String, bool)>,
    text: String,
}

impl Entry {
    fn of(arg: &Arg) -> Self {
        let takes = matches!(arg.get_action(), ArgAction::Set | ArgAction::Append);
        let long = arg.get_long().unwrap_or_default();
        let may_lack = arg
            .get_num_args()
            .is_some_and(|range| range.min_values() == 0);
        let names = arg.get_value_names().and_then(|names| names.first());
        let word = names.map_or(long, |name| name.as_str());
        Self {
            short: arg.get_short(),
            long: arg.get_long().map(str::to_owned),
            value: takes.then(|| (placeholder(long, word), may_lack)),
            text: arg.get_help().map(ToString::to_string).unwrap_or_default(),
        }
    }

    fn is_help(&self) -> bool {
        let name = self.long.as_deref().unwrap_or_default();
        name == "usage" || name.starts_with("help")
    }

    /// `-A, --account=account`, `--json[=data_parser]`.
    fn flag(&self, with_value: bool) -> String {
        let short = self.short.map(|letter| format!("-{letter}"));
        let long =
            self.long
                .as_ref()
                .map(|long| match self.value.as_ref().filter(|_| with_value) {
                    Some((value, true)) => format!("--{long}[={value}]"),
                    Some((value, false)) => format!("--{long}={value}"),
                    None => format!("--{long}"),
                });
        match (short, long) {
            (Some(short), Some(long)) => format!("{short}, {long}"),
            (None, Some(long)) => format!("    {long}"),
            (short, None) => short.unwrap_or_default(),
        }
    }
}

/// A placeholder as Slurm's commands write it: a count is `n`, a name that of its option.
fn placeholder(long: &str, word: &str) -> String {
    match (long, word) {
        ("nodes", _) => "N".to_owned(),
        (_, "COUNT" | "GPUS") => "n".to_owned(),
        (_, "NAME" | "NAMES") => long.to_owned(),
        (_, other) => other.to_ascii_lowercase(),
    }
}

/// The options that are told, in the order of their long names.
fn entries(command: &Command, name: &str) -> Vec<Entry> {
    let shown = |arg: &&Arg| !arg.is_positional() && !arg.is_hide_set();
    let mut all: Vec<Entry> = command
        .get_arguments()
        .filter(shown)
        .map(Entry::of)
        .collect();
    let mut add = |short, long: &str, value: Option<(String, bool)>, text: &str| {
        if !all.iter().any(|entry| entry.long.as_deref() == Some(long)) {
            all.push(Entry {
                short,
                long: Some(long.to_owned()),
                value,
                text: text.to_owned(),
            });
        }
    };
    let taken = |status| {
        matches!(
            status,
            OptionStatus::Done | OptionStatus::SameAs(_) | OptionStatus::Hint(_)
        )
    };
    let of_table = OPTIONS
        .iter()
        .filter(|option| option.slurm && taken(option.status) && SUBMITTING.contains(&name));
    for option in of_table {
        let value = match option.value {
            OptionValue::None => None,
            OptionValue::Required(word) => Some((placeholder(option.name, word), false)),
            OptionValue::Optional(word) => Some((placeholder(option.name, word), true)),
        };
        add(option.short, option.name, value, option.help);
    }
    add(
        Some('V'),
        "version",
        None,
        "display tool version number, and exit",
    );
    add(None, "help", None, "show this help message");
    add(
        None,
        "usage",
        None,
        "display a brief summary of the options",
    );
    all.retain(|entry| entry.long.is_some() || entry.short.is_some());
    all.sort_by_cached_key(|entry| {
        let long = entry.long.clone().unwrap_or_default();
        (entry.is_help(), long.to_ascii_lowercase())
    });
    all
}

/// What `--help` prints under this name of Slurm's.
pub fn help(command: &Command, name: &str) -> String {
    let form = form_of(name);
    let entries = entries(command, name);
    let mut out = match form.layout {
        Layout::Lines => in_lines(&entries, form),
        Layout::Valid => in_valid(&entries, form),
    };
    // What stands below the options of a command of gpupool tells of that command.
    let below = command
        .get_after_help()
        .filter(|_| command.get_name() == name);
    if let Some(below) = below {
        let _ = write!(out, "\n{below}\n");
    }
    out
}

const INDENT: usize = 34;
const WIDTH: usize = 80;

fn in_lines(entries: &[Entry], form: &SlurmForm) -> String {
    let several = if SUBMITTING.contains(&form.name) {
        "[OPTIONS(0)...]"
    } else {
        "[OPTIONS]"
    };
    let mut out = format!("Usage: {} {several} {}", form.name, form.help)
        .trim_end()
        .to_owned();
    out.push('\n');
    let group_of = |entry: &Entry| {
        let long = entry.long.as_deref().unwrap_or_default();
        let grouped = SUBMITTING.contains(&form.name);
        GROUPS
            .iter()
            .position(|(_, names)| grouped && names.contains(&long))
    };
    let mut section = |title: Option<&str>, wanted: &dyn Fn(&Entry) -> bool| {
        if !entries.iter().any(wanted) {
            return;
        }
        if let Some(title) = title {
            let _ = write!(out, "\n{title}\n");
        }
        for entry in entries.iter().filter(|entry| wanted(entry)) {
            add_line(&mut out, &format!("  {}", entry.flag(true)), &entry.text);
        }
    };
    section(None, &|entry| !entry.is_help() && group_of(entry).is_none());
    for (at, (title, _)) in GROUPS.iter().enumerate() {
        section(Some(title), &|entry| group_of(entry) == Some(at));
    }
    section(Some("Help options:"), &Entry::is_help);
    out
}

/// An option and its text beside it, on as many lines as that takes.
fn add_line(out: &mut String, flag: &str, text: &str) {
    let _ = write!(out, "{flag:<INDENT$}");
    if flag.chars().count() >= INDENT {
        let _ = write!(out, "\n{:INDENT$}", "");
    }
    let mut column = INDENT;
    for (at, word) in text.split_whitespace().enumerate() {
        let long = word.chars().count();
        if at > 0 && column + long + 1 > WIDTH {
            let _ = write!(out, "\n{:INDENT$}{word}", "");
            column = INDENT + long;
        } else {
            let _ = write!(out, "{}{word}", if at == 0 { "" } else { " " });
            column += long + usize::from(at > 0);
        }
    }
    out.push('\n');
}

fn in_valid(entries: &[Entry], form: &SlurmForm) -> String {
    let mut out = format!(
        "{} [<OPTION>]{}\n    Valid <OPTION> values are:\n",
        form.name, form.help
    );
    for entry in entries {
        let _ = writeln!(
            out,
            "     {}: {}",
            entry.flag(false).trim_start(),
            entry.text
        );
    }
    out
}

/// What `--usage` prints under this name of Slurm's.
pub fn usage(command: &Command, name: &str) -> String {
    let form = form_of(name);
    if form.layout == Layout::Valid && form.usage.is_empty() {
        return help(command, name);
    }
    if form.layout == Layout::Valid {
        return format!("Usage: {name} {}\n", form.usage);
    }
    let entries = entries(command, name);
    let is_flag = |entry: &&Entry| entry.value.is_none() && entry.short.is_some();
    let letters: String = entries
        .iter()
        .filter(is_flag)
        .filter_map(|entry| entry.short)
        .collect();
    let mut words: Vec<String> = entries
        .iter()
        .filter(|entry| !is_flag(entry))
        .map(in_brackets)
        .collect();
    words.extend((!letters.is_empty()).then(|| format!("[-{letters}]")));
    words.extend((!form.usage.is_empty()).then(|| form.usage.to_owned()));
    let lead = format!("Usage: {name}");
    let (mut out, mut column) = (lead.clone(), lead.len());
    for word in words {
        if column + word.len() + 1 > WIDTH {
            let _ = write!(out, "\n{:1$}", "", lead.len());
            column = lead.len();
        }
        let _ = write!(out, " {word}");
        column += word.len() + 1;
    }
    out.push('\n');
    out
}

/// `[-A account]`, `[--start]`, `[--json=data_parser]`.
fn in_brackets(entry: &Entry) -> String {
    let value = entry
        .value
        .as_ref()
        .map(|(value, _)| value.split('[').next().unwrap_or_default());
    match (entry.short, &entry.long, value) {
        (Some(letter), _, Some(value)) => format!("[-{letter} {value}]"),
        (_, Some(long), Some(value)) => format!("[--{long}={value}]"),
        (_, long, _) => format!("[--{}]", long.as_deref().unwrap_or_default()),
    }
}

/// Whether a command line that asks for help asks for the short one: of `--help` and `--usage` the first counts.
pub(crate) fn asks_usage(words: &[OsString]) -> bool {
    let first = words
        .iter()
        .find(|word| *word == "--usage" || *word == "--help");
    first.is_some_and(|word| word == "--usage")
}

/// What is to be printed where a command line asks for help.
pub fn answer(command: &Command, name: &str, words: &[OsString]) -> String {
    match asks_usage(words) {
        true => usage(command, name),
        false => help(command, name),
    }
}

/// The options of a command line and their values, as `squeue -v` and its like show them before they list.
pub(crate) fn given(command: &Command, matches: &ArgMatches) -> String {
    let mut out = "-----------------------------\n".to_owned();
    for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
        let Some(long) = arg
            .get_long()
            .filter(|long| !["help", "usage", "version"].contains(long))
        else {
            continue;
        };
        let id = arg.get_id().as_str();
        let value = match arg.get_action() {
            ArgAction::SetTrue => matches.get_flag(id).to_string(),
            ArgAction::Count => matches.get_count(id).to_string(),
            _ => match matches.get_raw(id) {
                Some(values) => {
                    let values: Vec<_> = values.map(|value| value.to_string_lossy()).collect();
                    values.join(",")
                }
                None => "(null)".to_owned(),
            },
        };
        let _ = writeln!(out, "{long:<12} = {value}");
    }
    out.push_str("-----------------------------\n\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slurm_name;
    use expect_test::expect;

    fn command(name: &'static str) -> Command {
        let user = Arg::new("user").short('u').long("user").value_name("USERS");
        let quiet = Arg::new("array")
            .short('r')
            .long("array")
            .action(ArgAction::SetTrue);
        let json = Arg::new("json")
            .long("json")
            .value_name("DATA_PARSER")
            .num_args(0..=1)
            .require_equals(true);
        let hidden = Arg::new("odd").long("odd").hide(true);
        Command::new(name)
            .disable_help_flag(true)
            .args([
                user.help("Only jobs of these users, each by name or uid, and any of them may be left out"),
                quiet.help("A line for each"),
                json.help("Print JSON"),
                hidden,
            ])
            .after_help("Below")
    }

    #[test]
    fn every_name_has_a_form() {
        assert_eq!(FORMS.map(|form| form.name), slurm_name::NAMES);
    }

    #[test]
    fn help_is_laid_out_as_slurms() {
        expect![[r#"
            Usage: squeue [OPTIONS]
              -r, --array                     A line for each
                  --json[=data_parser]        Print JSON
              -u, --user=users                Only jobs of these users, each by name or uid,
                                              and any of them may be left out
              -V, --version                   display tool version number, and exit

            Help options:
                  --help                      show this help message
                  --usage                     display a brief summary of the options
        "#]]
        .assert_eq(&help(&command("gq"), "squeue"));
        let text = help(&command("sacctmgr"), "sacctmgr");
        assert!(
            text.starts_with("sacctmgr [<OPTION>] [<COMMAND>]\n    Valid <OPTION> values are:\n     -r, --array: A line")
                && text.ends_with("\nBelow\n"),
            "{text}"
        );
        assert_eq!(
            usage(&command("sacctmgr"), "sacctmgr"),
            text,
            "it has no shorter one"
        );
    }

    #[test]
    fn usage_is_one_bracket_for_each_option() {
        expect![[r#"
            Usage: squeue [--json=data_parser] [-u users] [--help] [--usage] [-rV]
        "#]]
        .assert_eq(&usage(&command("gq"), "squeue"));
        assert_eq!(
            usage(&command("gacct"), "sacct"),
            "Usage: sacct [options]\n\tUse --help for help\n"
        );
    }

    #[test]
    fn commands_that_submit_tell_the_options_of_the_table() {
        let text = help(&command("grun"), "srun");
        for line in [
            "Usage: srun [OPTIONS(0)...] [ : [OPTIONS(N)...]] executable(N) [args(N)...]\n",
            "\n  -b, --begin=time",
            "\n  -N, --nodes=N",
            "\n  -q, --qos=qos",
            "\n  -G, --gpus=n",
            "\nConstraint options:\n",
        ] {
            assert!(text.contains(line), "{line:?} in {text}");
        }
        assert!(
            !text.contains("--borrow") && !text.contains("--uid"),
            "not Slurm's, or refused"
        );
        let usage = usage(&command("gsub"), "sbatch");
        assert!(
            usage.ends_with(" executable [args...]\n")
                && usage.lines().all(|line| line.len() <= WIDTH),
            "{usage}"
        );
    }

    #[test]
    fn the_first_word_that_asks_says_for_what() {
        let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        let usage = usage(&command("gq"), "squeue");
        assert_eq!(
            answer(&command("gq"), "squeue", &words("squeue --usage --help")),
            usage
        );
        assert_ne!(
            answer(&command("gq"), "squeue", &words("squeue --help --usage")),
            usage
        );
    }

    #[test]
    fn options_are_shown_with_their_values() {
        let matches = command("gq")
            .try_get_matches_from(["gq", "-r", "-u", "ada"])
            .unwrap();
        expect![[r#"
            -----------------------------
            user         = ada
            array        = true
            json         = (null)
            -----------------------------

        "#]]
        .assert_eq(&given(&command("gq"), &matches));
    }
}
