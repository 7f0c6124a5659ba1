//! `gq`: reads the command line and calls the listing or the record that it asks for. Source: squeue(1).

use crate::event_listing::{self, EventListing};
use crate::job_column::{self, JobColumn};
use crate::job_filter::{JobFilter, own_name};
use crate::job_format::{self, ListingForm, fields};
use crate::output_file::{self, OutputChoice};
use crate::queue_listing::{self, QueueListing};
use crate::token::TokenAct;
use crate::web::WebAct;
use crate::{one_job, priority_listing, start_listing, step_listing, token, web};
use clap::{ArgAction, CommandFactory, FromArgMatches, Parser};
use gcli::pages::ManPage;
use gcli::{ClusterChoice, Failure, Outcome, command_line};
use gwire::api::{JobQuery, JobRowKey};
use gwire::client::Client;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::IsTerminal;

pub use crate::queue_listing::SqueueForm;

/// Columns of the listing.
const USUAL: &[JobColumn] = &[
    JobColumn::ShownId,
    JobColumn::Text(JobRowKey::partition),
    JobColumn::Text(JobRowKey::name),
    JobColumn::Text(JobRowKey::user),
    JobColumn::ShortState,
    JobColumn::Elapsed,
    JobColumn::Nodes,
    JobColumn::Gpus,
    JobColumn::NodelistOrReason,
];
/// Columns of `--long`.
const LONG: &[JobColumn] = &[
    JobColumn::ShownId,
    JobColumn::Text(JobRowKey::partition),
    JobColumn::Text(JobRowKey::name),
    JobColumn::Text(JobRowKey::user),
    JobColumn::Text(JobRowKey::account),
    JobColumn::State,
    JobColumn::Elapsed,
    JobColumn::TimeLimit,
    JobColumn::Nodes,
    JobColumn::Gpus,
    JobColumn::Text(JobRowKey::class),
    JobColumn::NodelistOrReason,
];
const ONLY_STATE: &str = "%.18i %.2t";
const WATCH_SECS: u64 = 2;

const EXAMPLES: &str = "\
Examples:
  gq                    the queue
  gq --me -t PD         what you have waiting
  gq 17                 one job in full
  gq --why 17           what stands against its start
  gq --start --me       when yours are expected to start; of arrays the next task
  gq --prio --me        the priorities of yours, and what they are made of
  gq --follow 17        its output, as it comes
  gq --tail 20 --output 17   the last lines of it, also when the job is over
  gq -s                 steps of running jobs
  gq -h -o '%i %T'      ids and states, for a script
  gq events --follow    what happens, as it comes; without --follow the last hour
  gq token new --scope read,submit --expires 30d --gpu-hours 200   a token for CI
  gq web                a link to your jobs in a browser

GQ_FORMAT, GQ_FORMAT2 (names), GQ_SORT, GQ_ARRAY, GQ_USERS, GQ_PARTITION, GQ_STATES, GQ_ACCOUNT,
GQ_QOS and GQ_NAMES in the environment are as the options; without them those of squeue count,
SQUEUE_FORMAT and so on.

Columns of -o and -O (-S takes the letters):
";

/// Options of squeue that gq does not have.
const ADVICE: &command_line::Advice = &[
    (
        &["-F"],
        "there are no federations: each cluster has a queue of its own",
    ),
    (
        &["--nodefile"],
        "-w names nodes: gq -w \"$(paste -sd, FILE)\"",
    ),
];

#[derive(Parser)]
#[command(
    name = "gq",
    version,
    about = "Show the queue, or jobs in full",
    disable_help_flag = true,
    args_conflicts_with_subcommands = true,
    disable_help_subcommand = true
)]
struct QueueArgs {
    /// Jobs to show in full: 17, 98_5, 98 (an array)
    #[arg(value_name = "JOB")]
    jobs: Vec<String>,
    #[command(flatten)]
    filter: JobFilter,
    /// Jobs of all users but yourself
    #[arg(long, conflicts_with_all = ["me", "jobs"])]
    notme: bool,
    #[command(flatten)]
    cluster: ClusterChoice,
    /// List only these jobs
    #[arg(
        short,
        long = "jobs",
        value_name = "JOBS",
        alias = "job",
        conflicts_with = "jobs"
    )]
    job_list: Vec<String>,
    /// No header line
    #[arg(short = 'h', long)]
    noheader: bool,
    /// Memory that is asked for in MiB: 2048M, not 2G
    #[arg(long)]
    noconvert: bool,
    /// Steps of running jobs: batch scripts, and what gruns started; all, or these: 17.0,98
    #[arg(short, long, value_name = "STEPS", num_args = 0..=1, default_missing_value = "",
          conflicts_with_all = ["jobs", "about_one", "watch", "long", "array", "sort", "start", "prio"])]
    steps: Option<String>,
    /// Account, state in full and time limit too
    #[arg(short, long)]
    long: bool,
    /// Jobs in all partitions, as is usual: none is hidden
    #[arg(short, long)]
    all: bool,
    /// A line for each waiting task of an array
    #[arg(short = 'r', long)]
    array: bool,
    /// One line for all waiting tasks of an array, as is usual
    #[arg(long, conflicts_with = "array")]
    array_unique: bool,
    /// A line for each partition that a waiting job may start in
    #[arg(short = 'P', long = "priority", conflicts_with_all = ["json", "steps", "prio"])]
    by_partition: bool,
    /// Only jobs that ask for these licences
    #[arg(short = 'L', long, value_name = "NAMES", conflicts_with_all = ["json", "steps", "prio"])]
    licenses: Vec<String>,
    /// Columns by letter: '%.18i %T'
    #[arg(short = 'o', long, value_name = "FORMAT")]
    format: Option<String>,
    /// Columns by name: jobid:10,name,state
    #[arg(
        short = 'O',
        long = "Format",
        value_name = "FORMAT",
        conflicts_with = "format"
    )]
    names: Option<String>,
    /// Order by columns, - for descending: t,-p,i
    #[arg(short = 'S', long, value_name = "LETTERS", allow_hyphen_values = true)]
    sort: Option<String>,
    /// Show the queue again every so many seconds
    #[arg(short = 'i', long, value_name = "SECS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    iterate: Option<u64>,
    /// Keep the terminal showing the queue
    #[arg(long, value_name = "SECS", num_args = 0..=1, require_equals = true, conflicts_with = "iterate",
          value_parser = clap::value_parser!(u64).range(1..=86_400))]
    watch: Option<Option<u64>>,
    /// The waiting jobs in their order, with what their priorities are made of; with --long more, with --normalized
    /// the factors from 0 to 1
    #[arg(long, conflicts_with_all = ["about_one", "iterate", "watch", "format", "names", "sort", "array"])]
    prio: bool,
    /// When waiting jobs are expected to start, as squeue --start lists them
    #[arg(long, conflicts_with_all = ["about_one", "iterate", "watch", "prio"])]
    start: bool,
    /// With --prio: factors from 0 to 1 instead of times their weights
    #[arg(long, requires = "prio")]
    normalized: bool,
    /// What stands against a job's start
    #[arg(long, value_name = "JOB", group = "about_one")]
    why: Option<String>,
    /// Print a job's output until it ends
    #[arg(long, value_name = "JOB", group = "about_one")]
    follow: Option<String>,
    /// Print a job's output so far, also of one that is over
    #[arg(long, value_name = "JOB", group = "about_one")]
    output: Option<String>,
    /// With --follow or --output: only the last lines
    #[arg(long, value_name = "LINES", requires = "about_one", conflicts_with_all = ["why", "log", "script"])]
    tail: Option<u64>,
    /// With --follow or --output: the file of the job's errors, where it has one of its own
    #[arg(long, requires = "about_one", conflicts_with_all = ["why", "log", "script"])]
    stderr: bool,
    /// What the controller and the nodes did for a job
    #[arg(long, value_name = "JOB", group = "about_one")]
    log: Option<String>,
    /// A job's script
    #[arg(long, value_name = "JOB", group = "about_one")]
    script: Option<String>,
    /// Ids and states alone. Narrowed by -j and -t only; a job that is not there is no error
    #[arg(long, conflicts_with_all = ["jobs", "about_one", "steps", "long", "start", "prio", "by_partition", "licenses", "noconvert", "watch"])]
    only_job_state: bool,
    /// One line of JSON with all columns
    #[arg(long)]
    json: bool,
    /// Show this help
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
    #[command(subcommand)]
    act: Option<QueueAct>,
}

/// What is not about jobs.
#[derive(clap::Subcommand)]
enum QueueAct {
    /// Your tokens, with which other machines ask the controller: new, list, revoke
    #[command(subcommand)]
    Token(TokenAct),
    /// What happened: jobs, nodes, GPUs, reservations; once, or as it comes
    Events(EventListing),
    /// Print a link to the controller's page, good once and for five minutes; or end your sessions there
    Web(WebAct),
}

impl QueueAct {
    fn run(self, client: &mut Client) -> Outcome {
        match self {
            Self::Token(act) => token::run(client, act),
            Self::Events(listing) => event_listing::print(client, &listing),
            Self::Web(act) => web::run(client, &act),
        }
    }
}

/// The command line as clap knows it, for the man page and completions too.
fn command() -> clap::Command {
    let command = QueueArgs::command()
        .mut_subcommand("token", helped)
        .mut_subcommand("web", helped)
        .mut_subcommand("events", helped);
    command_line::talking(command.after_help(format!("{EXAMPLES}{}", job_column::help())))
}

/// With the option that gq has in place of clap's own, which -h is not, here and below.
fn helped(command: clap::Command) -> clap::Command {
    let below: Vec<String> = command
        .get_subcommands()
        .map(|one| one.get_name().to_owned())
        .collect();
    let help = clap::Arg::new("help").long("help").action(ArgAction::Help);
    let command = command.arg(help.help("Show this help"));
    below.iter().fold(command, |command, name| {
        command.mut_subcommand(name, helped)
    })
}

/// The man page.
pub fn page() -> ManPage {
    ManPage {
        command: command(),
        section: "1",
        exit_status: "",
        see_also: "gsub(1), gdel(1), gnodes(1), gacct(1), gpupool(7), gpupool-reasons(7), gpupool-json(5)",
    }
}

/// `gq` itself.
///
/// # Errors
/// What stood in the way, with the exit code.
pub fn main(words: impl IntoIterator<Item = OsString>) -> Outcome {
    run(words, None)
}

/// `gq` as squeue.
///
/// # Errors
/// As [`main`].
pub fn squeue(words: Vec<OsString>, form: &'static SqueueForm) -> Outcome {
    run(words, Some(form))
}

fn run(words: impl IntoIterator<Item = OsString>, squeue: Option<&'static SqueueForm>) -> Outcome {
    let matches = command_line::parse_advising(command(), words, ADVICE)?;
    let mut args = QueueArgs::from_arg_matches(&matches).map_err(Failure::usage)?;
    args.settle_jobs()?;
    let mut client = gcli::connect("gq")?;
    if let Some(act) = args.act.take() {
        return act.run(&mut client);
    }
    args.cluster.check(&mut client)?;
    if let Some(outcome) = about_one(&mut client, &args) {
        return outcome;
    }
    if args.start && squeue.is_none() && !args.chooses_form() {
        let query = args.query(&args.filter)?;
        return start_listing::print(&mut client, &query, !args.noheader, args.json);
    }
    if args.prio {
        let query = args.query(&args.filter)?;
        let shape = priority_listing::PriorityForm {
            long: args.long,
            normalized: args.normalized,
            header: !args.noheader,
            json: args.json,
        };
        return priority_listing::print(&mut client, &query, shape);
    }
    if !args.jobs.is_empty() {
        if !args.filter.is_empty() {
            return Err(Failure::usage(
                "a job is shown whatever its state or user is: leave the filters out, or list it with -j",
            ));
        }
        return one_job::records(&mut client, &args.jobs, args.json);
    }
    let mut listing = listing(&args, squeue)?;
    if args.start {
        listing.expect_starts(&mut client)?;
    }
    listing.learn_tiers(&mut client)?;
    if let Some(named) = &args.steps {
        return step_listing::print(
            &mut client,
            listing.query,
            named,
            &listing.shape,
            listing.header,
        );
    }
    match (args.iterate, args.watch) {
        (Some(secs), _) => queue_listing::repeat(&mut client, &listing, secs, false),
        (None, Some(secs)) => queue_listing::repeat(
            &mut client,
            &listing,
            secs.unwrap_or(WATCH_SECS),
            std::io::stdout().is_terminal(),
        ),
        (None, None) => listing.print(&mut client),
    }
}

/// What is asked about a single job, where the words do.
fn about_one(client: &mut Client, args: &QueueArgs) -> Option<Outcome> {
    match (&args.why, &args.log, &args.script) {
        (Some(job), ..) => return Some(one_job::why(client, job, args.json)),
        (_, Some(job), _) => return Some(one_job::log(client, job, args.json)),
        (.., Some(job)) => return Some(one_job::script(client, job)),
        (None, None, None) => {}
    }
    let choice = OutputChoice {
        job: args.follow.as_ref().or(args.output.as_ref())?,
        stderr: args.stderr,
        tail: args.tail,
        follow: args.follow.is_some(),
    };
    Some(output_file::print(client, choice))
}

/// The form of the listing: that of the options, else of the variables, else that of squeue or our own.
fn form(args: &QueueArgs, squeue: Option<&'static SqueueForm>) -> Result<ListingForm, Failure> {
    let free = args.format.is_none() && args.names.is_none() && !args.long && args.steps.is_none();
    let letters = args
        .format
        .clone()
        .or_else(|| variable("FORMAT").filter(|_| free));
    let by_name = variable("FORMAT2").filter(|_| free && letters.is_none());
    let names = args.names.clone().or(by_name);
    let of_squeue = |form: &SqueueForm| {
        match (args.steps.is_some(), args.start, args.long) {
            (true, ..) => form.steps,
            (_, true, _) => form.start,
            (.., true) => form.long,
            _ => form.usual,
        }
        .to_owned()
    };
    let letters =
        letters.or_else(|| (args.only_job_state && names.is_none()).then(|| ONLY_STATE.to_owned()));
    let letters = letters.or_else(|| squeue.filter(|_| names.is_none()).map(of_squeue));
    Ok(match (&letters, &names) {
        _ if args.json => ListingForm::Json,
        (Some(letters), _) => {
            ListingForm::Format(job_format::read_letters(letters).map_err(Failure::usage)?)
        }
        (None, Some(names)) => {
            ListingForm::Format(job_format::read_names(names).map_err(Failure::usage)?)
        }
        (None, None) => ListingForm::Table(if args.long { LONG } else { USUAL }),
    })
}

fn listing(args: &QueueArgs, squeue: Option<&'static SqueueForm>) -> Result<QueueListing, Failure> {
    let shape = form(args, squeue)?;
    let sort = args
        .sort
        .clone()
        .or_else(|| variable("SORT"))
        .unwrap_or_default();
    let sort = sort_keys(&sort)?;
    let filter = args.filter.with_variables(variable);
    let mut query = args.query(&filter)?;
    query.expand = args.array || variable("ARRAY").is_some();
    let licences = args.licences();
    let chosen_by = (args
        .by_partition
        .then_some([JobColumn::State, JobColumn::Text(JobRowKey::partition)])
        .into_iter()
        .flatten())
    .chain((!licences.is_empty()).then_some(JobColumn::TextOrNull(JobRowKey::licences)));
    let sorted_by = sort.iter().map(|(column, _)| *column).chain(chosen_by);
    query.bare = !args.json;
    query.columns = match &shape {
        ListingForm::Json => String::new(),
        // The state decides the colour.
        ListingForm::Table(columns) => job_column::keys(
            columns
                .iter()
                .copied()
                .chain([JobColumn::State])
                .chain(sorted_by),
        ),
        ListingForm::Format(pieces) => job_column::keys(fields(pieces).chain(sorted_by)),
    };
    let only_job = (!args.only_job_state
        && filter.is_empty()
        && !query.job.is_empty()
        && !query.job.contains(','))
    .then(|| query.job.clone());
    Ok(QueueListing {
        query,
        shape,
        sort,
        header: !args.noheader,
        only_job,
        squeue,
        dated: squeue.is_some()
            && args.long
            && !args.noheader
            && args.iterate.is_none()
            && args.watch.is_none(),
        by_partition: args.by_partition,
        licences,
        starts: BTreeMap::new(),
        tiers: BTreeMap::new(),
        noconvert: args.noconvert,
    })
}

impl QueueArgs {
    /// Columns or an order are named.
    fn chooses_form(&self) -> bool {
        let columns = self.format.is_some() || self.names.is_some() || self.long;
        columns || self.array || self.sort.is_some()
    }

    /// Licences of `-L`.
    fn licences(&self) -> Vec<String> {
        let names = self.licenses.iter().flat_map(|list| list.split(','));
        names
            .filter(|name| !name.is_empty())
            .map(str::to_owned)
            .collect()
    }

    /// The jobs of a filter, among them those of `-j` alone.
    fn query(&self, filter: &JobFilter) -> Result<JobQuery, Failure> {
        Ok(JobQuery {
            job: self.job_list.join(","),
            not_user: match self.notme {
                true => own_name()?,
                false => String::new(),
            },
            ..filter.query()?
        })
    }

    /// `--start` and `--prio` list the jobs that are named, too; what is about one job has no others beside it.
    fn settle_jobs(&mut self) -> Result<(), Failure> {
        let narrows = JobFilter {
            states: Vec::new(),
            ..self.filter.clone()
        };
        if self.only_job_state && !narrows.is_empty() {
            return Err(Failure::usage(
                "--only-job-state is narrowed by -j and -t alone: leave the other filters out, or use -o '%i %t' with them",
            ));
        }
        if self.start || self.prio {
            self.job_list.append(&mut self.jobs);
        }
        let about_one = [
            ("why", &self.why),
            ("follow", &self.follow),
            ("output", &self.output),
            ("log", &self.log),
            ("script", &self.script),
        ];
        let named = about_one
            .into_iter()
            .find_map(|(option, job)| Some((option, job.as_ref()?)));
        match (named, self.jobs.first()) {
            (Some((option, job)), Some(other)) => Err(Failure::usage(format_args!(
                "--{option} is about one job: {job}. For {other} ask again: gq --{option} {other}"
            ))),
            _ => Ok(()),
        }
    }
}

/// What sets an option that is not given: `GQ_SORT`, or squeue's variable of the same end.
fn variable(end: &str) -> Option<String> {
    ["GQ", "SQUEUE"]
        .iter()
        .find_map(|command| std::env::var(format!("{command}_{end}")).ok())
        .filter(|value| !value.is_empty())
}

/// `t,-p,i` as columns, and whether each descends.
fn sort_keys(text: &str) -> Result<Vec<(JobColumn, bool)>, Failure> {
    let key = |word: &str| {
        let (descending, letter) = match word.strip_prefix('-') {
            Some(letter) => (true, letter),
            None => (false, word.strip_prefix('+').unwrap_or(word)),
        };
        let mut letters = letter.chars();
        let column = letters
            .next()
            .filter(|_| letters.as_str().is_empty())
            .and_then(job_column::of_letter);
        column.map(|column| (column, descending)).ok_or_else(|| {
            Failure::usage(format_args!(
                "--sort: {word:?} is no column's letter. Try t,-p,i; --help lists them"
            ))
        })
    };
    text.split(',')
        .map(str::trim)
        .filter(|word| !word.is_empty())
        .map(key)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        command().debug_assert();
    }

    #[test]
    fn a_token_is_made_by_words_of_its_own_and_each_of_them_has_help() {
        for words in ["token --help", "token new --help", "token revoke --help"] {
            let asked = command().try_get_matches_from(format!("gq {words}").split(' '));
            let said = asked.unwrap_err();
            assert_eq!(said.kind(), clap::error::ErrorKind::DisplayHelp, "{words}");
        }
        let refused = |words: &str| command().try_get_matches_from(words.split(' ')).is_err();
        assert!(refused("gq token new --scope read"), "it has no end");
        assert!(
            refused("gq token new --expires 1d"),
            "it is good for nothing"
        );
        assert!(refused("gq token new --scope raed --expires 1d"));
        assert!(refused("gq token revoke 17"));
        assert!(!refused(
            "gq token new --scope read,submit --expires 30d --gpu-hours 0.5"
        ));
    }

    #[test]
    fn jobs_that_are_named_are_listed_or_refused_and_never_passed_over() {
        let settled = |words: &str| {
            let mut args = QueueArgs::from_arg_matches(
                &command().try_get_matches_from(words.split(' ')).unwrap(),
            )
            .unwrap();
            args.settle_jobs()
                .map(|()| (args.jobs, args.job_list))
                .map_err(|failure| failure.text)
        };
        let list = |jobs: &[&str]| jobs.iter().map(|job| (*job).to_owned()).collect::<Vec<_>>();
        assert_eq!(
            settled("gq --start 17 98_5").unwrap(),
            (list(&[]), list(&["17", "98_5"]))
        );
        assert_eq!(settled("gq --prio 17").unwrap(), (list(&[]), list(&["17"])));
        assert_eq!(
            settled("gq 17 18").unwrap(),
            (list(&["17", "18"]), list(&[]))
        );
        assert_eq!(
            settled("gq --why 17 18").unwrap_err(),
            "--why is about one job: 17. For 18 ask again: gq --why 18"
        );
        assert!(settled("gq 18 --log 17").is_err() && settled("gq --log 17").is_ok());
    }

    #[test]
    fn sort_keys_are_letters_with_signs() {
        assert_eq!(
            sort_keys("t,-p,+i").unwrap(),
            [
                (JobColumn::ShortState, false),
                (JobColumn::PriorityShare, true),
                (JobColumn::ShownId, false)
            ]
        );
        assert_eq!(sort_keys("xx").unwrap_err().exit, 2);
    }
}
