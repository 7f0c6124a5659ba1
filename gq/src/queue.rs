//! `gq`: the queue, one job in full, why a job waits, what it prints.
//!
//! Listings are formatted row by row while they arrive, and ask only for the columns they show. Source: squeue(1).

use crate::bare_row;
use crate::job_column::{self, JobColumn, JobFormat};
use crate::job_filter::{self, JobFilter};
use crate::queue_row::{Key, QueueRow};
use crate::{
    job_record, output_file, priority_listing, slurm_json, sprio, start_listing, step_listing,
    why_text,
};
use clap::{ArgAction, CommandFactory, FromArgMatches, Parser};
use gcli::column_format::Piece;
use gcli::local_time::{self, TimeFormat};
use gcli::printable::printable;
use gcli::slurm_words::Cause;
use gcli::table::{Column, Screen, TableWriter, Tint, stdout};
use gcli::{ClusterChoice, Failure, Outcome, command_line, slurm_name};
use gmodel::{Instant, JobState, RefusalKind};
use gwire::api::{JobQuery, JobRow, LogText, StartRow, WhyRow};
use gwire::client::{Client, escape, path_with_query};
use serde::Deserialize;
use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{IsTerminal, Read, Write};
use std::time::Duration;

/// Columns of the listing.
const USUAL: &[JobColumn] = &[
    JobColumn::ShownId,
    JobColumn::Partition,
    JobColumn::Name,
    JobColumn::User,
    JobColumn::ShortState,
    JobColumn::Elapsed,
    JobColumn::Nodes,
    JobColumn::Gpus,
    JobColumn::NodelistOrReason,
];
/// Columns of `--long`.
const LONG: &[JobColumn] = &[
    JobColumn::ShownId,
    JobColumn::Partition,
    JobColumn::Name,
    JobColumn::User,
    JobColumn::Account,
    JobColumn::State,
    JobColumn::Elapsed,
    JobColumn::TimeLimit,
    JobColumn::Nodes,
    JobColumn::Gpus,
    JobColumn::Class,
    JobColumn::NodelistOrReason,
];
/// Listings under the name squeue.
const SQUEUE_USUAL: &str = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R";
const SQUEUE_LONG: &str = "%.18i %.9P %.8j %.8u %.8T %.10M %.9l %.6D %R";
const SQUEUE_STEPS: &str = "%.15i %.8j %.9P %.8u %.9M %N";
const ONLY_STATE: &str = "%.18i %.2t";
const SQUEUE_START: &str = "%.18i %.9P %.8j %.8u %.2t %.19S %.6D %20Y %R";
const WATCH_SECS: u64 = 2;

const EXAMPLES: &str = "\
Examples:
  gq                    the queue
  gq --me -t PD         what you have waiting
  gq 17                 one job in full
  gq --why 17           what stands against its start
  gq --start --me       when yours are expected to start; of arrays the next task and the last
  gq --prio --me        the priorities of yours, and what they are made of
  gq --follow 17        its output, as it comes
  gq -s                 steps of running jobs
  gq -h -o '%i %T'      ids and states, for a script

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
    (&["--hide"], "no partition is hidden; -p chooses some"),
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
    disable_help_flag = true
)]
struct QueueArgs {
    /// Jobs to show in full: 17, 98_5, 98 (an array)
    #[arg(value_name = "JOB")]
    jobs: Vec<String>,
    #[command(flatten)]
    filter: JobFilter,
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
}

/// The command line as clap knows it, for the man page and completions too.
pub fn command() -> clap::Command {
    command_line::talking(
        QueueArgs::command().after_help(format!("{EXAMPLES}{}", job_column::help())),
    )
}

/// `gq` itself.
///
/// # Errors
/// What stood in the way, with the exit code.
pub fn main(words: impl IntoIterator<Item = OsString>) -> Outcome {
    let words: Vec<OsString> = words.into_iter().collect();
    if slurm_name::of(words.first()) == Some("sprio") {
        return sprio::main(words);
    }
    let as_squeue = slurm_name::is_one(words.first());
    let matches = command_line::parse_advising(command(), words, ADVICE)?;
    let mut args = QueueArgs::from_arg_matches(&matches).map_err(Failure::usage)?;
    args.settle_jobs()?;
    let mut client = gcli::connect("gq")?;
    args.cluster.check(&mut client)?;
    if let Some(job) = &args.why {
        return why(&mut client, job, args.json);
    }
    if let Some(job) = &args.follow {
        return output_file::follow(&mut client, job);
    }
    if let Some(job) = &args.log {
        return log(&mut client, job, args.json);
    }
    if let Some(job) = &args.script {
        let text = client.get_text(&job_path(job, "/script"))?;
        stdout()?.write_all(text.as_bytes())?;
        return Ok(0);
    }
    let chosen = args.format.is_some()
        || args.names.is_some()
        || args.long
        || args.array
        || args.sort.is_some();
    if args.start && !as_squeue && !chosen {
        let mut query = args.filter.query()?;
        query.job = args.job_list.join(",");
        return start_listing::print(&mut client, &query, !args.noheader, args.json);
    }
    if args.prio {
        let mut query = args.filter.query()?;
        query.job = args.job_list.join(",");
        let shape = priority_listing::Shape {
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
        return jobs_in_full(&mut client, &args.jobs, args.json);
    }
    let mut listing = Listing::of(&args, as_squeue)?;
    if args.start {
        listing.expect_starts(&mut client)?;
    }
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
        (Some(secs), _) => repeat(&mut client, &listing, secs, false),
        (None, Some(secs)) => repeat(
            &mut client,
            &listing,
            secs.unwrap_or(WATCH_SECS),
            std::io::stdout().is_terminal(),
        ),
        (None, None) => listing.print(&mut client),
    }
}

impl QueueArgs {
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
        .find_map(|whose| std::env::var(format!("{whose}_{end}")).ok())
        .filter(|value| !value.is_empty())
}

/// What is listed and how.
struct Listing {
    query: JobQuery,
    shape: Shape,
    sort: Vec<(JobColumn, bool)>,
    header: bool,
    /// The one job that was asked for: that it is not there is an error.
    only_job: Option<String>,
    as_squeue: bool,
    /// With the day and time before it, as `squeue -l` has them.
    dated: bool,
    /// A line for each partition of a waiting job.
    by_partition: bool,
    /// Licences of which a job asks for one at least; empty: any job.
    licences: Vec<String>,
    /// When waiting jobs are expected to start, and where; by their ids.
    starts: BTreeMap<u64, (Option<Instant>, String)>,
    noconvert: bool,
}

pub(crate) enum Shape {
    Json,
    Table(&'static [JobColumn]),
    Format(JobFormat),
}

impl Listing {
    fn of(args: &QueueArgs, as_squeue: bool) -> Result<Self, Failure> {
        let free =
            args.format.is_none() && args.names.is_none() && !args.long && args.steps.is_none();
        let letters = args
            .format
            .clone()
            .or_else(|| variable("FORMAT").filter(|_| free));
        let by_name = variable("FORMAT2").filter(|_| free && letters.is_none());
        let names = args.names.clone().or(by_name);
        let of_squeue = match (args.steps.is_some(), args.start, args.long) {
            (true, ..) => SQUEUE_STEPS,
            (_, true, _) => SQUEUE_START,
            (.., true) => SQUEUE_LONG,
            _ => SQUEUE_USUAL,
        };
        let letters = letters
            .or_else(|| (args.only_job_state && names.is_none()).then(|| ONLY_STATE.to_owned()));
        let letters =
            letters.or_else(|| (as_squeue && names.is_none()).then(|| of_squeue.to_owned()));
        let shape = if args.json {
            Shape::Json
        } else if let Some(letters) = &letters {
            Shape::Format(job_column::read_letters(letters).map_err(Failure::usage)?)
        } else if let Some(names) = &names {
            Shape::Format(job_column::read_names(names).map_err(Failure::usage)?)
        } else {
            Shape::Table(if args.long { LONG } else { USUAL })
        };
        let sort = args
            .sort
            .clone()
            .or_else(|| variable("SORT"))
            .unwrap_or_default();
        let sort = sort_keys(&sort)?;
        let filter = args.filter.with_variables(variable);
        let mut query = filter.query()?;
        query.job = args.job_list.join(",");
        query.expand = args.array || variable("ARRAY").is_some();
        let licences: Vec<String> = args
            .licenses
            .iter()
            .flat_map(|list| list.split(','))
            .filter(|name| !name.is_empty())
            .map(str::to_owned)
            .collect();
        let chosen_by = (args
            .by_partition
            .then_some([JobColumn::State, JobColumn::Partition])
            .into_iter()
            .flatten())
        .chain((!licences.is_empty()).then_some(JobColumn::Licences));
        let sorted_by = sort.iter().map(|(column, _)| *column).chain(chosen_by);
        query.bare = !args.json;
        query.columns = match &shape {
            Shape::Json => String::new(),
            // The state decides the colour.
            Shape::Table(columns) => job_column::keys(
                columns
                    .iter()
                    .copied()
                    .chain([JobColumn::State])
                    .chain(sorted_by),
            ),
            Shape::Format(pieces) => job_column::keys(fields(pieces).chain(sorted_by)),
        };
        let only_job = (!args.only_job_state
            && filter.is_empty()
            && !query.job.is_empty()
            && !query.job.contains(','))
        .then(|| query.job.clone());
        Ok(Self {
            query,
            shape,
            sort,
            header: !args.noheader,
            only_job,
            as_squeue,
            dated: as_squeue
                && args.long
                && !args.noheader
                && args.iterate.is_none()
                && args.watch.is_none(),
            by_partition: args.by_partition,
            licences,
            starts: BTreeMap::new(),
            noconvert: args.noconvert,
        })
    }

    /// The waiting jobs alone, each with the start that is expected of it.
    fn expect_starts(&mut self, client: &mut Client) -> Result<(), Failure> {
        #[derive(Deserialize)]
        struct Answer {
            jobs: Vec<StartRow>,
        }
        self.query.state = JobState::Pending.long().to_owned();
        let query = JobQuery {
            columns: String::new(),
            bare: false,
            ..self.query.clone()
        };
        let answer: Answer = client.get(&path_with_query("/v1/starts", &query))?;
        self.starts = answer
            .jobs
            .into_iter()
            .map(|job| (job.id, (job.expected.or(job.at_limits), job.nodelist)))
            .collect();
        Ok(())
    }

    /// What a column prints, with what is expected in it.
    fn text<'r>(
        &self,
        column: JobColumn,
        row: &'r QueueRow<'_>,
        times: &TimeFormat,
    ) -> Cow<'r, str> {
        match (column, self.starts.get(&row.id)) {
            (JobColumn::Mem, _) if self.noconvert => format!("{}M", row.mem_bytes >> 20).into(),
            (JobColumn::StartTime, Some((Some(at), _))) => times.print(at.0).into(),
            (column, Some((_, nodes))) if column.is_planned_nodes() && !nodes.is_empty() => {
                nodes.clone().into()
            }
            _ => column.text(row, times),
        }
    }

    fn print(&self, client: &mut Client) -> Outcome {
        let path = path_with_query("/v1/jobs", &self.query);
        let count = match &self.shape {
            Shape::Json if self.as_squeue => {
                let rows = slurm_json::jobs_of(client, &self.query)?;
                return match &self.only_job {
                    Some(job) if rows.is_empty() && !is_remembered(client, job)? => {
                        Err(not_in_queue(job))
                    }
                    _ => slurm_json::print_jobs(client, &rows),
                };
            }
            Shape::Json => {
                let mut out = stdout()?;
                copy_json(client, &path, &mut out)?;
                out.flush()?;
                return Ok(0);
            }
            Shape::Table(columns) => self.print_table(client, &path, columns)?,
            Shape::Format(pieces) => self.print_lines(client, &path, pieces)?,
        };
        if count == 0
            && let Some(user) = job_filter::unknown_user(&self.query.user)
        {
            return Err(Failure::new(format_args!(
                "no job of {user:?} is here, and there is no user of that name on this machine"
            )));
        }
        match &self.only_job {
            // squeue knows a job for a while after its end, and lists it no more.
            Some(job) if count == 0 && self.as_squeue && is_remembered(client, job)? => {
                self.print_header()?;
                Ok(0)
            }
            Some(job) if count == 0 => Err(not_in_queue(job)),
            _ => Ok(0),
        }
    }

    fn print_header(&self) -> Result<(), Failure> {
        if let (Shape::Format(pieces), true) = (&self.shape, self.header) {
            let mut line = String::new();
            fill(pieces, &mut line, |column| column.title().into());
            std::io::stdout().write_all(line.as_bytes())?;
        }
        Ok(())
    }

    fn print_table(
        &self,
        client: &mut Client,
        path: &str,
        columns: &[JobColumn],
    ) -> Result<usize, Failure> {
        let layout = columns.iter().map(|column| table_column(*column)).collect();
        let mut table = TableWriter::new(stdout()?, layout, Screen::of_stdout(), self.header);
        let times = TimeFormat::from_env();
        let count = self.each_row(client, path, &mut |row| {
            let cell = |column: &JobColumn| {
                let coloured = matches!(column, JobColumn::State | JobColumn::ShortState);
                (
                    column.cell(row, &times),
                    if coloured {
                        tint(row.state)
                    } else {
                        Tint::Plain
                    },
                )
            };
            Ok(table.row_of(columns.iter().map(cell))?)
        })?;
        if count > 0 || self.only_job.is_none() {
            table.finish()?;
        }
        Ok(count)
    }

    fn print_lines(
        &self,
        client: &mut Client,
        path: &str,
        pieces: &JobFormat,
    ) -> Result<usize, Failure> {
        let times = TimeFormat::from_env();
        let mut out = stdout()?;
        let mut line = String::with_capacity(256);
        if self.dated {
            line.push_str(&local_time::banner(local_time::now()));
            line.push('\n');
        }
        if self.header {
            fill(pieces, &mut line, |column| column.title().into());
        }
        let count = self.each_row(client, path, &mut |row| {
            // The header goes out with the first row: an error comes without it.
            fill(pieces, &mut line, |column| self.text(column, row, &times));
            out.write_all(line.as_bytes())?;
            line.clear();
            Ok(())
        })?;
        if self.only_job.is_none() {
            out.write_all(line.as_bytes())?;
        }
        out.flush()?;
        Ok(count)
    }

    /// Calls back for what is listed of a row; returns how many lines there were.
    fn lines_of<'r>(
        &self,
        mut row: QueueRow<'r>,
        mut each: impl FnMut(&QueueRow<'r>) -> Result<(), Failure>,
    ) -> Result<usize, Failure> {
        let is_meant = |licence: &str| {
            self.licences
                .iter()
                .any(|name| licence.split(':').next() == Some(name))
        };
        if !self.licences.is_empty() && !row.licences.split(',').any(is_meant) {
            return Ok(0);
        }
        if !self.by_partition || row.state != JobState::Pending {
            each(&row)?;
            return Ok(1);
        }
        let meant = |name: &str| {
            self.query.partition.is_empty()
                || self.query.partition.split(',').any(|one| one == name)
        };
        let partitions: Vec<String> = row
            .partition
            .split(',')
            .filter(|name| meant(name))
            .map(str::to_owned)
            .collect();
        for partition in &partitions {
            row.partition = partition.clone().into();
            each(&row)?;
        }
        Ok(partitions.len())
    }

    /// Calls back for each row, in the order asked for; returns how many there were.
    fn each_row(
        &self,
        client: &mut Client,
        path: &str,
        each: &mut dyn FnMut(&QueueRow<'_>) -> Result<(), Failure>,
    ) -> Result<usize, Failure> {
        let keys: Vec<Key> = self.query.columns.split(',').map(Key::of).collect();
        let mut rows = client.rows(path)?;
        let mut texts = Vec::new();
        let mut count = 0;
        while let Some(text) = rows.next_row()? {
            if self.sort.is_empty() {
                count += self.lines_of(read_row(text, &keys)?, |row| each(row))?;
            } else {
                texts.push(text.to_vec());
            }
        }
        if self.sort.is_empty() {
            return Ok(count);
        }
        let mut sorted = Vec::with_capacity(texts.len());
        for text in &texts {
            self.lines_of(read_row(text, &keys)?, |row| {
                sorted.push(row.clone());
                Ok(())
            })?;
        }
        sorted.sort_by(|a, b| {
            let by_key = self.sort.iter().map(|(column, descending)| {
                let order = column.compare(a, b);
                if *descending { order.reverse() } else { order }
            });
            by_key.fold(Ordering::Equal, Ordering::then)
        });
        sorted.iter().try_for_each(each)?;
        Ok(sorted.len())
    }
}

fn not_in_queue(job: &str) -> Failure {
    let failure = Failure::new(format_args!(
        "job {job} is not in the queue. Finished jobs: gq {job}, or gacct -j {job}"
    ));
    failure.because(Cause::Refused {
        about: RefusalKind::Job,
        subject: job.to_owned(),
    })
}

/// Whether the controller still has it in memory, over or not.
fn is_remembered(client: &mut Client, job: &str) -> Result<bool, Failure> {
    let query = JobQuery {
        job: job.to_owned(),
        state: "all".to_owned(),
        ..JobQuery::default()
    };
    Ok(client
        .rows(&path_with_query("/v1/jobs", &query))?
        .next_row()?
        .is_some())
}

/// The line of a format, with its end.
pub(crate) fn fill<'t>(
    pieces: &JobFormat,
    line: &mut String,
    text: impl Fn(JobColumn) -> Cow<'t, str>,
) {
    for piece in pieces {
        match piece {
            Piece::Text(text) => line.push_str(text),
            Piece::Field(column, spec) => spec.fill(&text(*column), line),
        }
    }
    line.push('\n');
}

fn fields(pieces: &JobFormat) -> impl Iterator<Item = JobColumn> {
    pieces.iter().filter_map(|piece| match piece {
        Piece::Field(column, _) => Some(*column),
        Piece::Text(_) => None,
    })
}

fn read_row<'a>(text: &'a [u8], keys: &[Key]) -> Result<QueueRow<'a>, Failure> {
    bare_row::read(text, keys)
        .map_err(|error| Failure::new(format_args!("a row of the queue cannot be read: {error}")))
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

fn table_column(column: JobColumn) -> Column {
    let title = match column {
        JobColumn::TimeLimit => "LIMIT",
        column => column.title(),
    };
    match column {
        JobColumn::ShownId | JobColumn::Elapsed | JobColumn::TimeLimit | JobColumn::Nodes => {
            Column::number(title)
        }
        JobColumn::State | JobColumn::ShortState => Column::whole(title),
        _ => Column::text(title),
    }
}

fn tint(state: JobState) -> Tint {
    match state {
        JobState::Running | JobState::Completing | JobState::Completed => Tint::Good,
        JobState::Pending | JobState::Suspended => Tint::Waiting,
        _ => Tint::Bad,
    }
}

/// Prints the listing again and again, until the command is ended.
fn repeat(client: &mut Client, listing: &Listing, secs: u64, clear: bool) -> Outcome {
    loop {
        let mut out = stdout()?;
        if clear {
            out.write_all(b"\x1b[H\x1b[2J\x1b[3J")?;
        }
        writeln!(out, "{}", local_time::banner(local_time::now()))?;
        out.flush()?;
        listing.print(client)?;
        if !clear {
            writeln!(out)?;
            out.flush()?;
        }
        std::thread::sleep(Duration::from_secs(secs));
    }
}

/// `/v1/jobs/98_5/log`.
pub(crate) fn job_path(job: &str, what: &str) -> String {
    format!("/v1/jobs/{}{what}", escape(job))
}

/// The jobs a name stands for, all columns, finished ones too.
pub(crate) fn jobs_named(client: &mut Client, job: &str) -> Result<Vec<JobRow>, Failure> {
    let mut rows = client.rows(&job_path(job, ""))?;
    let mut jobs = Vec::new();
    while let Some(text) = rows.next_row()? {
        let row = serde_json::from_slice(text);
        jobs.push(row.map_err(|error| {
            Failure::new(format_args!(
                "the record of job {job} cannot be read: {error}"
            ))
        })?);
    }
    if jobs.is_empty() {
        let cause = Cause::Refused {
            about: RefusalKind::Job,
            subject: job.to_owned(),
        };
        return Err(Failure::new(format_args!("job {job}: there is no such job")).because(cause));
    }
    Ok(jobs)
}

fn jobs_in_full(client: &mut Client, names: &[String], json: bool) -> Outcome {
    let mut out = stdout()?;
    if let ([only], true) = (names, json) {
        copy_json(client, &job_path(only, ""), &mut out)?;
        out.flush()?;
        return Ok(0);
    }
    if json {
        let mut jobs = Vec::new();
        for name in names {
            let mut rows = client.rows(&job_path(name, ""))?;
            while let Some(text) = rows.next_row()? {
                jobs.push(String::from_utf8_lossy(text).into_owned());
            }
        }
        writeln!(
            out,
            "{{\"schema\":{},\"jobs\":[{}]}}",
            gwire::api::SCHEMA,
            jobs.join(",")
        )?;
        out.flush()?;
        return Ok(0);
    }
    let times = TimeFormat::from_env();
    let mut worst = 0;
    for name in names {
        match jobs_named(client, name) {
            Ok(jobs) => {
                for job in &jobs {
                    out.write_all(job_record::text(job, &times).as_bytes())?;
                }
            }
            // The others are shown all the same.
            Err(failure) if failure.exit == gcli::failure::FAILED && names.len() > 1 => {
                out.flush()?;
                gcli::failure::say_failure("gq", &failure)?;
                worst = failure.exit;
            }
            Err(failure) => return Err(failure),
        }
    }
    out.flush()?;
    Ok(worst)
}

/// Passes an answer on as it comes, as one line.
pub(crate) fn copy_json(
    client: &mut Client,
    path: &str,
    out: &mut impl Write,
) -> Result<(), Failure> {
    copy_line(client.open(path)?, out)
}

/// The answer as one line, whether it ends with a line break or not.
fn copy_line(mut body: impl Read, out: &mut impl Write) -> Result<(), Failure> {
    let mut chunk = vec![0; 64 << 10];
    let mut last = b' ';
    loop {
        match body.read(&mut chunk) {
            Ok(0) => break,
            Ok(count) => {
                out.write_all(&chunk[..count])?;
                last = chunk[count - 1];
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    if last != b'\n' {
        out.write_all(b"\n")?;
    }
    Ok(())
}

#[derive(Deserialize)]
struct WhyAnswer {
    jobs: Vec<WhyRow>,
    /// That are meant, too.
    #[serde(default)]
    more: u64,
}

fn why(client: &mut Client, job: &str, json: bool) -> Outcome {
    let mut out = stdout()?;
    if json {
        copy_json(client, &job_path(job, "/why"), &mut out)?;
        out.flush()?;
        return Ok(0);
    }
    // A job that has left the queue says how it ended.
    let (told, more) = match client.get::<WhyAnswer>(&job_path(job, "/why")) {
        Ok(answer) => (answer.jobs, answer.more),
        Err(error) if error.code() == "not_found" => (
            vec![WhyRow {
                shown_id: job.to_owned(),
                state: JobState::Unknown,
                ..WhyRow::default()
            }],
            0,
        ),
        Err(error) => return Err(error.into()),
    };
    let times = TimeFormat::from_env();
    for row in &told {
        // What a job that runs or is over has to say is in its record.
        if row.state == JobState::Pending {
            out.write_all(why_text::text(row, &times).as_bytes())?;
        } else if row.shown_id.contains('[') {
            out.write_all(why_text::ended(row, &times).as_bytes())?;
        } else {
            for job in &jobs_named(client, &row.shown_id)? {
                out.write_all(job_record::ended(job, &times).as_bytes())?;
            }
        }
    }
    if more > 0 {
        let array = printable(job.split('_').next().unwrap_or_default());
        writeln!(
            out,
            "and {more} more of job {array}: ask for one of them by its number, as in gq --why {array}_7"
        )?;
    }
    out.flush()?;
    Ok(0)
}

fn log(client: &mut Client, job: &str, json: bool) -> Outcome {
    let mut out = stdout()?;
    if json {
        copy_json(client, &job_path(job, "/log"), &mut out)?;
    } else {
        let log: LogText = client.get(&job_path(job, "/log"))?;
        let times = TimeFormat::from_env();
        for event in &log.events {
            let text = times.in_text(&event.text);
            writeln!(
                out,
                "{} {}",
                times.print(event.at.0),
                gcli::printable::printable(&text)
            )?;
        }
        for line in &log.lines {
            writeln!(out, "{}", gcli::printable::printable(&times.in_text(line)))?;
        }
    }
    out.flush()?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_one_line_whether_the_answer_ends_so_or_not() {
        for answer in ["{}", "{}\n"] {
            let mut out = Vec::new();
            copy_line(answer.as_bytes(), &mut out).unwrap();
            assert_eq!(out, b"{}\n");
        }
    }

    #[test]
    fn the_command_line_is_sound() {
        command().debug_assert();
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
