//! `gacct`: what ran and how it ended, line by line as sacct prints it, and what was used. Source: sacct(1).

use crate::bare_row;
use crate::efficiency::{self, EfficiencyArgs};
use crate::job_filter::{own_name, states, user_name};
use crate::queue::copy_json;
use crate::run_column::{self, Manner, RunColumn, Units};
use crate::run_line::{Key, RunLine};
use crate::usage_report::{self, ReportArgs};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use gcli::column_format::Spec;
use gcli::local_time::{self, TimeFormat};
use gcli::printable::printable;
use gcli::table::stdout;
use gcli::{Failure, Outcome, command_line};
use gmodel::{Instant, Timestamp};
use gwire::api::RunQuery;
use gwire::client::path_with_query;
use nix::unistd::Uid;
use std::borrow::Cow;
use std::ffi::OsString;
use std::io::Write;

const EXAMPLES: &str = "\
Examples:
  gacct                          your jobs since midnight
  gacct 17                       one job in full, with what it made of its GPUs
  gacct -j 17                    one job, a line
  gacct -S now-7days -s FAILED   what failed in a week
  gacct -n -P -o jobid,state     for a script
  gacct efficiency --by user     what was used of what was held, since the first of the month
  gacct report --by account,user --from 2026-11-01

Times: now-1hour, 09:00, 2026-11-20, 2026-11-20T09:05. gacct -e lists the columns.";

#[derive(Parser)]
#[command(name = "gacct", version, about = "Show what ran, and what was used", after_help = EXAMPLES,
          args_conflicts_with_subcommands = true)]
struct AccountingArgs {
    #[command(subcommand)]
    sub: Option<Sub>,
    /// These jobs in full: 17, 98_5
    #[arg(value_name = "JOB", conflicts_with_all = ["jobs", "format", "long", "duplicates"])]
    named: Vec<String>,
    /// These jobs, a line each: 17, 98 (an array), 98_5; or steps of theirs: 17.0
    #[arg(short, long, value_name = "JOBS", alias = "job")]
    jobs: Option<String>,
    /// Jobs of these users
    #[arg(short, long, value_name = "USERS", alias = "uid")]
    user: Option<String>,
    /// Jobs of all users
    #[arg(short, long)]
    allusers: bool,
    /// Jobs charged to these accounts
    #[arg(short = 'A', long, value_name = "NAMES", alias = "account")]
    accounts: Option<String>,
    /// Jobs in these partitions
    #[arg(short = 'r', long, value_name = "NAMES")]
    partition: Option<String>,
    /// Jobs of these qualities of service
    #[arg(short, long, value_name = "NAMES")]
    qos: Option<String>,
    /// Jobs with these names
    #[arg(long, value_name = "NAMES")]
    name: Option<String>,
    /// Jobs that ran on one of these nodes
    #[arg(short = 'N', long, value_name = "NODES")]
    nodelist: Option<String>,
    /// Jobs in these states, FAILED or F
    #[arg(short, long, value_name = "STATES")]
    state: Option<String>,
    /// From this time; without it from midnight, or with -j from the beginning
    #[arg(short = 'S', long, value_name = "TIME")]
    starttime: Option<String>,
    /// Up to this time
    #[arg(short = 'E', long, value_name = "TIME")]
    endtime: Option<String>,
    /// Columns, with widths: jobid,state%20
    #[arg(short = 'o', long, value_name = "COLUMNS")]
    format: Option<String>,
    /// Many columns
    #[arg(short, long, conflicts_with = "format")]
    long: bool,
    /// Job, state and exit code only
    #[arg(short, long, conflicts_with_all = ["format", "long"])]
    brief: bool,
    /// All sizes in this unit: K, M, G, T or P
    #[arg(long, value_name = "UNIT", value_parser = Units::read)]
    units: Option<Units>,
    /// Sizes in the units they are counted in, as they are without --units
    #[arg(long, conflicts_with = "units")]
    noconvert: bool,
    /// Every attempt of a job, not only its last
    #[arg(short = 'D', long)]
    duplicates: bool,
    /// A line for each step of a job too: 17.batch, 17.0
    #[arg(long)]
    steps: bool,
    /// Jobs without their steps, as is usual
    #[arg(short = 'X', long, conflicts_with = "steps")]
    allocations: bool,
    /// No header line
    #[arg(short, long)]
    noheader: bool,
    /// Columns ended by |
    #[arg(short, long, conflicts_with = "parsable2")]
    parsable: bool,
    /// Columns parted by |
    #[arg(short = 'P', long)]
    parsable2: bool,
    /// Another sign than | for -p and -P
    #[arg(long, value_name = "TEXT")]
    delimiter: Option<String>,
    /// The newest so many
    #[arg(long, value_name = "COUNT")]
    limit: Option<u32>,
    /// List the columns
    #[arg(short = 'e', long)]
    helpformat: bool,
    /// One line of JSON with all columns
    #[arg(long)]
    json: bool,
}

#[derive(Subcommand)]
enum Sub {
    /// GPU-hours held and used, CPU-hours, energy, and jobs that began to run, by group
    Report(ReportArgs),
    /// What jobs made of the CPUs, memory and GPUs they held
    Efficiency(EfficiencyArgs),
}

/// The command line as clap knows it.
pub fn command() -> clap::Command {
    AccountingArgs::command()
}

/// `gacct` itself.
///
/// # Errors
/// What stood in the way, with the exit code.
pub fn main(words: impl IntoIterator<Item = OsString>) -> Outcome {
    let matches = command_line::parse(command(), words)?;
    let args = AccountingArgs::from_arg_matches(&matches).map_err(Failure::usage)?;
    let now = local_time::now();
    match &args.sub {
        Some(Sub::Report(report)) => return usage_report::run(&mut gcli::connect("gacct")?, report, now),
        Some(Sub::Efficiency(asked)) => return efficiency::run(&mut gcli::connect("gacct")?, asked, now),
        None => {}
    }
    if !args.named.is_empty() {
        return efficiency::records(&mut gcli::connect("gacct")?, &args.named, args.json, efficiency::record);
    }
    let mut out = stdout()?;
    if args.helpformat {
        out.write_all(run_column::names().as_bytes())?;
        out.flush()?;
        return Ok(0);
    }
    let columns = columns(&args)?;
    let named = Named::of(args.jobs.as_deref().unwrap_or_default());
    let steps = args.steps || !named.steps.is_empty();
    let query = RunQuery { steps, detail: args.json, ..query(&args, now)? };
    let query = if named.steps.is_empty() { query } else { RunQuery { job: named.all(), ..query } };
    let mut client = gcli::connect("gacct")?;
    if args.json {
        copy_json(&mut client, &path_with_query("/v1/runs", &query), &mut out)?;
        out.flush()?;
        return Ok(0);
    }
    let mut keys = run_column::keys(&columns);
    keys.extend(steps.then_some(["steps", "array_id"]).into_iter().flatten());
    let query = RunQuery { columns: keys.join(","), bare: true, ..query };
    let keys: Vec<Key> = keys.into_iter().map(Key::of).collect();
    let listing = Listing { columns, style: Style::of(&args), manner: Manner::new(TimeFormat::from_env(), args.units.unwrap_or_default()) };
    if !args.noheader {
        out.write_all(listing.header().as_bytes())?;
    }
    let mut rows = client.rows(&path_with_query("/v1/runs", &query))?;
    let mut line = String::with_capacity(256);
    while let Some(text) = rows.next_row()? {
        let run: RunLine = bare_row::read(text, &keys)
            .map_err(|error| Failure::new(format_args!("a row of accounting cannot be read: {error}")))?;
        if named.has_job(&run) {
            listing.add(&run, &mut line);
        }
        for step in run.steps.iter().filter(|step| args.steps && named.has_job(&run) || named.steps.contains(&step.shown_id)) {
            listing.add(&run.of_step(step), &mut line);
        }
        out.write_all(line.as_bytes())?;
        line.clear();
    }
    out.flush()?;
    Ok(0)
}

/// What `-j` names: jobs as they are asked for, and steps, which only we tell apart.
struct Named {
    jobs: Vec<String>,
    steps: Vec<String>,
}

impl Named {
    fn of(list: &str) -> Self {
        let words = list.split(',').map(|word| word.trim().to_owned()).filter(|word| !word.is_empty());
        let (steps, jobs) = words.partition(|word| word.contains('.'));
        Self { jobs, steps }
    }

    /// The jobs of all that is named.
    fn all(&self) -> String {
        let of_steps = self.steps.iter().filter_map(|step| step.split('.').next());
        self.jobs.iter().map(String::as_str).chain(of_steps).collect::<Vec<_>>().join(",")
    }

    /// Whether a row is there for itself, not only for a step of its job.
    fn has_job(&self, run: &RunLine) -> bool {
        let own = |job: &String| *job == run.shown_id || *job == run.id.to_string() || run.array_id.is_some_and(|id| *job == id.to_string());
        self.steps.is_empty() || self.jobs.iter().any(own)
    }
}

fn columns(args: &AccountingArgs) -> Result<Vec<(RunColumn, Spec)>, Failure> {
    let variable = std::env::var("SACCT_FORMAT").ok().filter(|text| !text.is_empty());
    let text = match &args.format {
        Some(text) => text.clone(),
        None if args.brief => run_column::BRIEF.to_owned(),
        None if args.long => run_column::LONG.to_owned(),
        None => variable.unwrap_or_else(|| run_column::USUAL.to_owned()),
    };
    run_column::read(&text).map_err(Failure::new)
}

fn query(args: &AccountingArgs, now: Timestamp) -> Result<RunQuery, Failure> {
    let time = |option: &str, text: &str| {
        local_time::read_past(text, now).map(Instant).map_err(|why| Failure::usage(format_args!("--{option}: {why}")))
    };
    let own = |value: &Option<String>| value.clone().unwrap_or_default();
    let user = match &args.user {
        Some(list) => {
            let names = list.split(',').filter(|user| !user.is_empty()).map(user_name);
            names.collect::<Result<Vec<_>, _>>()?.join(",")
        }
        // Root looks after everybody's jobs; jobs that are named need no user.
        None if args.allusers || args.jobs.is_some() || Uid::current().is_root() => String::new(),
        None => own_name()?,
    };
    let from = match (&args.starttime, &args.jobs) {
        (Some(text), _) => Some(time("starttime", text)?),
        (None, Some(_)) => None,
        (None, None) => Some(Instant(local_time::midnight(now))),
    };
    let to = args.endtime.as_deref().map(|text| time("endtime", text)).transpose()?;
    if let (Some(from), Some(to)) = (from, to)
        && from > to
    {
        return Err(Failure::usage(format_args!("-S ({}) is after -E ({}): there is nothing between them", from.0, to.0)));
    }
    Ok(RunQuery {
        job: own(&args.jobs),
        user,
        account: own(&args.accounts),
        partition: own(&args.partition),
        qos: own(&args.qos),
        name: own(&args.name),
        nodelist: own(&args.nodelist),
        state: args.state.as_deref().map(states).transpose()?.filter(|states| states != "all").unwrap_or_default(),
        from,
        to,
        attempts: args.duplicates,
        limit: args.limit,
        ..RunQuery::default()
    })
}

struct Listing {
    columns: Vec<(RunColumn, Spec)>,
    style: Style,
    manner: Manner,
}

/// How columns are parted.
enum Style {
    /// In their widths.
    Padded,
    /// By this text, which also ends a line if `ends`.
    Parted { by: String, ends: bool },
}

impl Style {
    fn of(args: &AccountingArgs) -> Self {
        let by = args.delimiter.clone().unwrap_or_else(|| "|".to_owned());
        match (args.parsable, args.parsable2) {
            (false, false) => Self::Padded,
            (ends, _) => Self::Parted { by, ends },
        }
    }
}

impl Listing {
    fn header(&self) -> String {
        let mut text = String::new();
        self.fill(&mut text, |column| column.title().into());
        if let Style::Padded = self.style {
            let rules = self.columns.iter().map(|(_, spec)| format!("{} ", "-".repeat(spec.width.unwrap_or(10))));
            text.extend(rules);
            text.push('\n');
        }
        text
    }

    fn add(&self, run: &RunLine, line: &mut String) {
        self.fill(line, |column| column.text(run, &self.manner));
    }

    fn fill<'t>(&self, line: &mut String, text: impl Fn(RunColumn) -> Cow<'t, str>) {
        for (at, (column, spec)) in self.columns.iter().enumerate() {
            match &self.style {
                Style::Padded => {
                    spec.fill(&text(*column), line);
                    line.push(' ');
                }
                Style::Parted { by, ends } => {
                    line.push_str(&printable(&text(*column)));
                    if *ends || at + 1 < self.columns.len() {
                        line.push_str(by);
                    }
                }
            }
        }
        line.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        command().debug_assert();
    }
}
