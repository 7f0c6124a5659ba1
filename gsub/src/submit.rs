//! `gsub`: submit a script or a command. Stdout is the job's id and nothing else.
//!
//! Each submission carries a key of its own: after a lost answer it is sent again and makes no second job.

use crate::choice::Choices;
use crate::environment;
use crate::foreign_lines;
use crate::launch_context::Submitter;
use crate::mark;
use crate::notes::Notes;
use crate::option_words::{GivenOption, Origin, PositionalWords, read, read_environment};
use crate::salloc;
use crate::script::Work;
use crate::specification::{ReadParts, Submission, build};
use crate::step_programs::{LATE_SEPARATOR, SEPARATOR};
use crate::submission::{request, submitter};
use clap::{Arg, ArgAction, Command};
use gcli::local_time::TimeFormat;
use gcli::pages::ManPage;
use gcli::{Failure, Outcome, cluster_choice, slurm_help, slurm_name};
use gmodel::byte_text;
use gmodel::directive::{misplaced_directives, read_directives};
use gmodel::option_table::{OPTIONS, OptionSpec, OptionStatus, OptionValue};
use gmodel::{JobId, JobState};
use gwire::api::{DryRun, HOME, JobRow, MAX_ARGUMENT_BYTES, SubmitReply, SubmitRequest};
use gwire::client::Client;
use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

/// `--wait` outlasts any outage of the controller that an administrator would sleep through.
const WAIT_PATIENCE: Duration = Duration::from_secs(7 * 86_400);
/// Most tasks of an array with a line of their own for their end.
const MOST_ENDS: usize = 3;
/// A line with this word alone begins the next component's options; the second word is of older Slurms.
const PART_WORDS: [&str; 2] = ["hetjob", "packjob"];
/// The longest that one question of `--wait` is held open by the controller.
const WAIT_SECS: u32 = 30;

const EXAMPLES: &str = "\
Examples:
  gsub train.sh                       submit a script; its #GSUB, #SBATCH, #PBS or #BSUB lines are read
  gsub --gpus h100:4 -t 2:00:00 train.sh --epochs 10
  gsub -a 0-99%10 --gpus 1 sweep.sh   an array, ten tasks at once
  gsub --gpus 1 -- python train.py    a command instead of a script
  gsub --dry-run -N 2 train.sh        where and when it would start
  gsub --gpus 8 : -N 2 -c 16 train.sh a job of unlike parts: the script runs in the first, and
                                      grun --het-group 1 starts steps in the second

Options on the command line count before variables (SBATCH_PARTITION, GSUB_PARTITION, ...), and
these before the script's lines. GPUs may be counted in several ways at once, as in
--gpus-per-node 4 --gpus-per-task 1: nodes and tasks follow. The man page lists every option of sbatch and what becomes of it.";

/// The command line as clap knows it, made from the table: for help, man page and completions.
fn command() -> Command {
    let mut command = Command::new("gsub")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Submit a job: a script, or a command behind --")
        .override_usage("gsub [OPTIONS] [: OPTIONS]... [SCRIPT [ARGS]...]\n       gsub [OPTIONS] -- COMMAND [ARGS]...\n       gsub --mark [NOTE]")
        .disable_help_flag(true)
        .disable_version_flag(true)
        .after_help(EXAMPLES)
        .after_long_help(format!("{EXAMPLES}\n\n{}", table_text()));
    for option in OPTIONS
        .iter()
        .filter(|option| matches!(option.status, OptionStatus::Done | OptionStatus::SameAs(_)))
    {
        command = command.arg(argument(option));
    }
    command
        .arg(
            Arg::new("mark")
                .long("mark")
                .value_name("NOTE")
                .num_args(0..=1)
                .help("From inside a job, as the first word: its checkpoint is safe; the note goes to the next attempt as GSUB_LAST_MARK"),
        )
        .arg(
            Arg::new("interactive")
                .long("interactive")
                .action(ArgAction::SetTrue)
                .help("Get an allocation and run a shell, or a command, beside it here, as salloc does"),
        )
        .arg(Arg::new("SCRIPT").help("Script to run; without it, or -, the script is read from stdin"))
        .arg(Arg::new("ARGS").num_args(0..).trailing_var_arg(true).help("Its arguments"))
}

/// The man page.
pub fn page() -> ManPage {
    ManPage {
        command: command(),
        section: "1",
        exit_status: "With --wait: what the job exits with, 128 and the number of the signal that ended it, or 1 if it never ran.",
        see_also: "grun(1), gq(1), gdel(1), gacct(1), gpupool(7), gpupool-json(5)",
    }
}

fn argument(option: &'static OptionSpec) -> Arg {
    let arg = Arg::new(option.name).long(option.name).help(option.help);
    let arg = match option.short {
        Some(letter) => arg.short(letter),
        None => arg,
    };
    match option.value {
        OptionValue::None => arg.action(ArgAction::SetTrue),
        OptionValue::Required(what) => arg.value_name(what).action(ArgAction::Append),
        OptionValue::Optional(what) => arg.value_name(what).num_args(0..=1).require_equals(true),
    }
}

/// The options that are not acted on, for the man page.
fn table_text() -> String {
    let (mut later, mut hints, mut never) = (String::new(), String::new(), String::new());
    for option in OPTIONS {
        let (list, text) = match option.status {
            OptionStatus::Later => (&mut later, option.help),
            OptionStatus::Hint(why) => (&mut hints, why),
            OptionStatus::Never(reason) => (&mut never, reason),
            OptionStatus::Done | OptionStatus::SameAs(_) => continue,
        };
        list.push_str(&format!("  --{}  {text}\n", option.name));
    }
    format!(
        "Options of sbatch that are taken with a note on stderr, stored with the job and shown by gq, and change nothing here, \
         and why:\n{hints}\nOptions of sbatch that a script's lines may have, which are stored with the job and shown by gq, and \
         not acted on yet; on the command line they are refused:\n{later}\nOptions of sbatch that are refused, and why:\n{never}"
    )
}

/// `gsub` itself.
///
/// # Errors
/// What stood in the way, with the exit code.
pub fn main(words: impl IntoIterator<Item = OsString>) -> Outcome {
    let words: Vec<OsString> = words.into_iter().collect();
    let as_sbatch = slurm_name::is_one(words.first());
    let program = words.clone();
    // Names of files are bytes: what is not UTF-8 goes along all the same.
    let words: Vec<String> = words
        .iter()
        .skip(1)
        .map(|word| byte_text::from_bytes(word.as_bytes()))
        .collect();
    if let Some(outcome) = instead_of_submission(&words, as_sbatch) {
        return outcome;
    }
    let (mut parts, rest) = read_parts(&words)?;
    let is_given = |name: &str| parts.iter().any(|given| has(given, name));
    if let Some(text) = parts.iter().find_map(|given| about(given, &program)) {
        std::io::stdout().write_all(text.as_bytes())?;
        return Ok(0);
    }
    let json = is_given("json");
    let mut notes = Notes::new(is_given("quiet"));
    let work = work(&mut parts, rest)?;
    let mut client = gcli::connect("gsub")?;
    let mut submission = submission_from(&client, parts, &work, &mut notes)?;
    if as_sbatch {
        submission.name_output_as_sbatch();
    }
    notes.say_defined(&client);
    let cluster = cluster_choice::check(&submission.clusters, &mut client)?;
    let request = request(&submission, &work)?;
    if submission.dry_run {
        let form = match (json, as_sbatch) {
            (true, _) => DryRunForm::Json,
            (false, true) => DryRunForm::AsSbatch,
            (false, false) => DryRunForm::InFull,
        };
        return dry_run(&mut client, &request, &mut notes, form);
    }
    let submitted: SubmitReply = client.post_repeatable("/v1/jobs", &request)?;
    for note in &submitted.notes {
        notes.say(note);
    }
    let mut out = std::io::stdout();
    match json {
        true => write_json(serde_json::to_string(&submitted))?,
        // The id is gsub's answer; sbatch counts it among what --quiet leaves out.
        false if as_sbatch && notes.are_quiet() => {}
        false => {
            let in_words = as_sbatch && !submission.parsable;
            let line = said(submitted.id, in_words, as_sbatch, cluster.as_deref());
            writeln!(out, "{line}")?;
        }
    }
    out.flush()?;
    if submission.wait {
        return wait(client.wait_for(WAIT_PATIENCE), submitted.id, &mut notes);
    }
    Ok(0)
}

/// The submission as this machine makes it, inside of the cluster or outside.
fn submission_from(
    client: &Client,
    parts: Vec<Vec<GivenOption>>,
    work: &Work,
    notes: &mut Notes,
) -> Result<Submission, Failure> {
    let submitter = submitter(client.socket().is_err())?;
    let submission = read_submission(parts, work, &submitter, notes)?;
    if submitter.outside {
        say_outside(&submission, notes);
    }
    Ok(submission)
}

/// What a job gets that comes from outside of the cluster, where nothing else was asked.
fn say_outside(submission: &Submission, notes: &mut Notes) {
    let launch = &submission.spec.launch;
    let at_home = launch.work_dir == HOME;
    let as_login = submission.export.wants_login();
    let text = match (at_home, as_login) {
        (true, true) => "your home directory on the cluster, with a login's environment there",
        (true, false) => "your home directory on the cluster",
        (false, _) => return,
    };
    notes.say(&format!(
        "this machine is outside of the cluster: the job begins in {text}. --chdir and --export=NAMES change that"
    ));
}

/// A mark, or an allocation: then nothing is submitted as a script.
fn instead_of_submission(words: &[String], as_sbatch: bool) -> Option<Outcome> {
    if let Some(note) = mark::asked(words) {
        return Some(mark::main(&note));
    }
    let asks = !as_sbatch && salloc::is_asked(words);
    let all = std::iter::once("gsub".into()).chain(words.iter().map(OsString::from));
    asks.then(|| salloc::main(all))
}

/// What --help or --version prints.
fn about(given: &[GivenOption], words: &[OsString]) -> Option<String> {
    let name = slurm_name::of(words.first());
    if has(given, "help") {
        return Some(match name {
            Some(name) => slurm_help::answer(&command(), name, words),
            None => command().render_help().to_string(),
        });
    }
    let own = concat!("gsub ", env!("CARGO_PKG_VERSION"));
    let version = name.map_or(own, |_| slurm_name::VERSION);
    has(given, "version").then(|| format!("{version}\n"))
}

/// The submission that the command line, the environment and the script's head make together.
fn read_submission(
    given: Vec<Vec<GivenOption>>,
    work: &Work,
    submitter: &Submitter,
    notes: &mut Notes,
) -> Result<Submission, Failure> {
    let variables = read_environment("SBATCH_", |_| true, environment::own)?;
    let command_line = given.iter().flatten();
    let ignores = command_line
        .chain(&variables)
        .any(|given| given.option.name == "ignore-pbs");
    let in_script = script_options(work, ignores, notes)?;
    let count = given.len().max(in_script.len());
    let (mut given, mut in_script) = (given.into_iter(), in_script.into_iter());
    let mut parts = ReadParts::default();
    for _ in 0..count {
        let in_script = in_script.next().unwrap_or_default();
        let given = given.next().unwrap_or_default();
        let said = in_script.iter().chain(&given).cloned().collect();
        let part = read_part(in_script, variables.clone(), given, work, submitter, notes)?;
        for note in parts.add(said, part) {
            notes.say(&note);
        }
    }
    let whole = parts.whole;
    whole.ok_or_else(|| Failure::new("there is nothing to submit"))
}

/// The request of one component: most jobs have one only.
fn read_part(
    in_script: Vec<GivenOption>,
    variables: Vec<GivenOption>,
    given: Vec<GivenOption>,
    work: &Work,
    submitter: &Submitter,
    notes: &mut Notes,
) -> Result<Submission, Failure> {
    let mut choices = Choices::of(in_script.into_iter().chain(variables).chain(given))?;
    notes.decide(&choices);
    choices.unused().for_each(|note| notes.say(&note));
    let asked = nodes_and_tasks(&choices);
    let submission = build(&mut choices, work, submitter)?;
    if let Some((nodes, tasks)) =
        asked.filter(|(_, tasks)| submission.spec.request.nodes_max == *tasks)
    {
        notes.say(&format!("--nodes {nodes} is more than --ntasks {tasks}, and a node without a task is none: the job gets {tasks}"));
    }
    assert!(
        choices.left().is_empty(),
        "options nobody acts on: {:?}",
        choices.left()
    );
    Ok(submission)
}

/// The id; under the name sbatch as it says it, with the cluster where one was named.
fn said(id: JobId, in_words: bool, as_sbatch: bool, cluster: Option<&str>) -> String {
    match (in_words, cluster.filter(|_| as_sbatch)) {
        (true, Some(cluster)) => format!("Submitted batch job {id} on cluster {cluster}"),
        (true, None) => format!("Submitted batch job {id}"),
        (false, Some(cluster)) => format!("{id};{cluster}"),
        (false, None) => id.to_string(),
    }
}

fn has(given: &[GivenOption], name: &str) -> bool {
    given.iter().any(|given| given.option.name == name)
}

/// The options of each component, and the words behind them.
fn read_parts(words: &[String]) -> Result<(Vec<Vec<GivenOption>>, PositionalWords), Failure> {
    let mut parts = Vec::new();
    let mut words = words.to_vec();
    loop {
        let (given, mut rest) = read(&words, &Origin::CommandLine)?;
        parts.push(given);
        if rest.after_dashes || rest.words.first().is_none_or(|word| word != SEPARATOR) {
            return Ok((parts, rest));
        }
        words = rest.words.split_off(1);
    }
}

/// What is to be run. Takes `--wrap` out of the options.
fn work(parts: &mut [Vec<GivenOption>], rest: PositionalWords) -> Result<Work, Failure> {
    let wraps: Vec<GivenOption> = parts
        .iter_mut()
        .flat_map(|given| given.extract_if(.., |given| given.option.name == "wrap"))
        .collect();
    let arguments: usize = rest.words.iter().map(|word| word.len() + 1).sum();
    if arguments > MAX_ARGUMENT_BYTES {
        return Err(Failure::new(format_args!(
            "the arguments have {arguments} bytes and {MAX_ARGUMENT_BYTES} (1 MiB) are the most. Put them into a file that the script reads"
        )));
    }
    if !rest.after_dashes && rest.words.iter().any(|word| word == SEPARATOR) {
        return Err(Failure::usage(LATE_SEPARATOR));
    }
    let mut words = rest.words.into_iter();
    match (wraps.last(), rest.after_dashes, words.next()) {
        (Some(_), _, Some(word)) => Err(Failure::usage(format_args!(
            "--wrap is a script by itself, and {word:?} is another. Keep one of them"
        ))),
        (Some(wrap), _, None) if wrap.text().trim().is_empty() => {
            Err(wrap.fail("there is no command in it"))
        }
        (Some(wrap), _, None) => Ok(Work::wrapped(wrap.text())),
        (None, true, Some(word)) => Ok(Work::from_command(
            std::iter::once(word).chain(words).collect(),
        )),
        (None, true, None) => Err(Failure::usage("there is no command behind --")),
        (None, false, Some(path)) if path != "-" => Work::from_file(&path, words.collect()),
        (None, false, _) => Ok(Work {
            argv: words.collect(),
            ..Work::from_stdin()?
        }),
    }
}

/// Options in a script's head, and in its `#PBS` or `#BSUB` lines: those of each component.
fn script_options(
    work: &Work,
    ignores_foreign: bool,
    notes: &mut Notes,
) -> Result<Vec<Vec<GivenOption>>, Failure> {
    let mut parts = vec![Vec::new()];
    // A command has no lines, and those of --wrap are the command's.
    if work.script.is_empty() || work.shown == "--wrap" {
        return Ok(parts);
    }
    let script = work.script.as_bytes();
    let lines = read_directives(script)
        .map_err(|error| Failure::new(format_args!("{}: {error}", work.shown)))?;
    for line_no in misplaced_directives(script) {
        notes.say(&format!("{}: line {line_no} looks like an option and is none: options begin a line, before the first command", work.shown));
    }
    for line in lines {
        let origin = Origin::Script {
            script: work.shown.clone(),
            line_no: line.line_no,
        };
        let (options, rest) = read(&line.words, &origin)?;
        if options.is_empty() && matches!(&rest.words[..], [word] if PART_WORDS.contains(&&**word))
        {
            parts.push(Vec::new());
            continue;
        }
        if let Some(word) = rest.words.first() {
            return Err(origin.fail(format_args!("{}: {word:?} is no option", line.kind.word())));
        }
        let elsewhere = ["help", "version", "wrap", "dry-run", "json"];
        if let Some(option) = options
            .iter()
            .find(|given| elsewhere.contains(&given.option.name))
        {
            return Err(option.fail("it is for the command line, not for a script"));
        }
        parts
            .last_mut()
            .into_iter()
            .for_each(|given| given.extend(options.clone()));
    }
    let ignores_too = parts
        .iter()
        .flatten()
        .any(|given| given.option.name == "ignore-pbs");
    if !ignores_foreign && !ignores_too {
        let foreign = foreign_options(work, notes)?;
        for part in &mut parts {
            part.extend(foreign.clone());
        }
    }
    Ok(parts)
}

/// What `#PBS` or `#BSUB` lines come to: they count after `#SBATCH` lines, and in every component, as sbatch has it.
fn foreign_options(work: &Work, notes: &mut Notes) -> Result<Vec<GivenOption>, Failure> {
    let origin = |line_no| Origin::Script {
        script: work.shown.clone(),
        line_no,
    };
    let lines = foreign_lines::read(&work.script).map_err(|error| {
        origin(error.line_no).fail(format_args!("{}: {}", error.word, error.why))
    })?;
    let mut options = Vec::new();
    for line in lines {
        let origin = origin(line.line_no);
        for note in &line.notes {
            notes.say(&format!("{origin}{note}"));
        }
        options.extend(read(&line.words, &origin)?.0);
    }
    Ok(options)
}

/// As they were asked for, where tasks are fewer than nodes.
fn nodes_and_tasks(choices: &Choices) -> Option<(u32, u32)> {
    let number = |name: &str| {
        choices
            .get(name)?
            .text()
            .split('-')
            .next()?
            .parse::<u32>()
            .ok()
    };
    number("nodes")
        .zip(number("ntasks"))
        .filter(|(nodes, tasks)| tasks < nodes)
}

/// How the answer of a dry run is told.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DryRunForm {
    InFull,
    Json,
    /// The one line that programs read from `sbatch --test-only`, where a time and nodes are known.
    AsSbatch,
}

fn dry_run(
    client: &mut Client,
    request: &SubmitRequest,
    notes: &mut Notes,
    told: DryRunForm,
) -> Outcome {
    let answer: DryRun = client.post_repeatable("/v1/jobs/dry-run", request)?;
    if told == DryRunForm::Json {
        write_json(serde_json::to_string(&answer))?;
        return Ok(0);
    }
    for note in &answer.notes {
        notes.say(note);
    }
    if let Some(line) = test_only(&answer).filter(|_| told == DryRunForm::AsSbatch) {
        eprintln!("sbatch: {line}");
        return Ok(0);
    }
    let text = match (&answer.text, answer.nodelist.is_empty(), answer.start) {
        (text, ..) if !text.is_empty() => text.clone(),
        (_, false, _) => format!(
            "would start at once on {} in partition {}",
            answer.nodelist, answer.partition
        ),
        (_, true, Some(start)) => format!(
            "would start at {} in partition {}",
            TimeFormat::from_env().print(start.0),
            answer.partition
        ),
        (_, true, None) => format!(
            "would wait in partition {} ({})",
            answer.partition, answer.reason
        ),
    };
    let text = TimeFormat::from_env().in_text(&gcli::printable::printable(&text));
    writeln!(std::io::stdout(), "{text}")?;
    Ok(0)
}

/// As sbatch says it; the job has no number, for there is none.
fn test_only(answer: &DryRun) -> Option<String> {
    let (start, nodes) = match (
        answer.start,
        &answer.nodelist,
        answer.expected_start,
        &answer.expected_nodes,
    ) {
        (Some(start), nodes, ..) | (_, _, Some(start), nodes) if !nodes.is_empty() => {
            (start, nodes)
        }
        _ => return None,
    };
    let (start, cpus) = (TimeFormat::from_env().print(start.0), answer.cpus);
    Some(format!(
        "Job 0 to start at {start} using {cpus} processors on nodes {nodes} in partition {}",
        answer.partition
    ))
}

fn write_json(line: serde_json::Result<String>) -> Result<(), Failure> {
    Ok(writeln!(
        std::io::stdout(),
        "{}",
        line.map_err(Failure::new)?
    )?)
}

/// Waits for the end of a job, or of all tasks of an array; the highest of their exit codes. Says of those that did not end by
/// themselves why: their own output says nothing of it.
fn wait(mut client: Client, id: JobId, notes: &mut Notes) -> Outcome {
    let path = format!("/v1/jobs/{id}/wait?timeout_secs={WAIT_SECS}");
    loop {
        let mut rows = client.rows(&path)?;
        let (mut over, mut seen, mut worst) = (true, false, 0);
        let mut ends = Vec::new();
        while let Some(text) = rows.next_row()? {
            let job: JobRow = read_row(text)?;
            seen = true;
            over &= job.state.is_final();
            worst = worst.max(exit_code(&job));
            ends.extend(
                (!job.end_text.is_empty())
                    .then(|| format!("job {}: {}: {}", job.shown_id, job.state, job.end_text)),
            );
        }
        if !seen {
            return Err(Failure::new(format_args!(
                "job {id}: there is no such job any more"
            )));
        }
        if over {
            ends.iter().take(MOST_ENDS).for_each(|text| notes.say(text));
            if ends.len() > MOST_ENDS {
                notes.say(&format!(
                    "{} more of its tasks; gacct -j {id} shows them",
                    ends.len() - MOST_ENDS
                ));
            }
            return Ok(worst);
        }
    }
}

fn read_row(text: &[u8]) -> Result<JobRow, Failure> {
    serde_json::from_slice(text)
        .map_err(|error| Failure::new(format_args!("the job's record cannot be read: {error}")))
}

/// The job's code, 128+signal, or 1 if it never ran or was ended from outside.
fn exit_code(job: &JobRow) -> u8 {
    match (job.state, job.exit_code.shell_code()) {
        (JobState::Completed, code) => code,
        (_, 0) => 1,
        (_, code) => code,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gmodel::ExitCode;

    #[test]
    fn help_and_man_page_are_made_from_the_table() {
        command().debug_assert();
        let help = command().render_help().to_string();
        let man = command().render_long_help().to_string();
        for option in OPTIONS {
            let flag = option.flag();
            let done = matches!(option.status, OptionStatus::Done | OptionStatus::SameAs(_));
            assert!(!done || help.contains(&flag), "{flag} in --help");
            assert!(man.contains(&flag), "{flag} in the man page");
        }
        assert!(!help.contains("--uid"), "what is refused is not offered");
    }

    #[test]
    fn the_code_of_wait_is_the_jobs() {
        let job = |state, exit_code| JobRow {
            state,
            exit_code,
            ..JobRow::default()
        };
        assert_eq!(exit_code(&job(JobState::Completed, ExitCode::SUCCESS)), 0);
        assert_eq!(exit_code(&job(JobState::Failed, ExitCode::exited(5))), 5);
        assert_eq!(exit_code(&job(JobState::Failed, ExitCode::killed(9))), 137);
        assert_eq!(exit_code(&job(JobState::Cancelled, ExitCode::SUCCESS)), 1);
    }

    #[test]
    fn a_dry_run_says_to_programs_of_sbatch_what_they_read() {
        let at = |secs| Some(gmodel::Instant(gmodel::Timestamp::from_secs(secs)));
        let answer = DryRun {
            cpus: 4,
            partition: "main".into(),
            ..DryRun::default()
        };
        assert_eq!(test_only(&answer), None, "nobody knows when");
        let waits = DryRun {
            expected_start: at(0),
            expected_nodes: "n[1-2]".into(),
            ..answer
        };
        let line = test_only(&waits).unwrap();
        assert!(
            line.starts_with("Job 0 to start at 19")
                && line.ends_with("using 4 processors on nodes n[1-2] in partition main"),
            "{line}"
        );
        let starts = DryRun {
            start: at(1_795_165_527),
            nodelist: "n1".into(),
            ..waits
        };
        assert!(test_only(&starts).unwrap().contains("to start at 2026-"));
    }
}
