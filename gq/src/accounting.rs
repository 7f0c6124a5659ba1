//! `gacct`: what ran and how it ended, line by line as sacct prints it, and what was used. Source: sacct(1).

mod live;

use crate::bill::{self, BillArgs};
use crate::efficiency::{self, EfficiencyArgs};
use crate::job_filter::{own_name, states, unknown_user, user_name};
use crate::run_column::{self, RunColumn};
use crate::run_format::{RunFormat, Units};
use crate::run_line::{AccountingRow, RunLine};
use crate::usage_report::{self, ReportArgs};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use gcli::answer::print_json;
use gcli::column_format::Spec;
use gcli::local_time::{self, TimeFormat};
use gcli::pages::ManPage;
use gcli::printable::printable;
use gcli::table::stdout;
use gcli::{ClusterChoice, Failure, Outcome, command_line};
use gmodel::duration::TimeLimit;
use gmodel::{Instant, Timestamp};
use gwire::api::{RunQuery, RunRowKey};
use gwire::client::{Client, path_with_query};
use gwire::row;
use nix::unistd::{Group, Uid};
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
  gacct --live -j 17             what its steps use by now
  gacct efficiency --by user     what was used of what was held, since the first of the month
  gacct report --by account,user --from 2026-11-01
  gacct bill --account vision --month 2026-11

Times: now-1hour, 09:00, 2026-11-20, 2026-11-20T09:05. gacct -e lists the columns.";

/// Options of sacct that gacct does not have.
const ADVICE: &command_line::Advice = &[
    (&["-B", "--batch-script"], "gq --script JOB prints it"),
    (
        &["-c", "--completion", "-d", "--dump", "-f", "--file"],
        "accounting is the controller's database: -P -o COLUMNS prints it for scripts, --json all of it",
    ),
    (&["-C", "--constraints"], "-o jobid,constraints shows them"),
    (
        &["-F"],
        "there are no federations: each cluster has a queue of its own",
    ),
    (
        &["-L"],
        "there are no federations: each cluster has a queue of its own",
    ),
    (
        &["-R", "--reason"],
        "gq -t PD -o '%i %r' shows why jobs wait; gacct -o jobid,reason why they ended",
    ),
    (&["-U", "--use-local-uid"], "names are kept, not numbers"),
    (
        &["-w", "-W"],
        "jobs have tags instead: gsub --tag, gacct -o tags, gacct report --by tag",
    ),
    (
        &["-x", "--associations"],
        "-u and -A choose; gadm account list shows accounts and their users",
    ),
    (
        &["--array", "--expand-patterns"],
        "tasks that ran have lines of their own already; file names are as gq JOB shows them",
    ),
];

#[derive(Parser)]
#[command(name = "gacct", version, about = "Show what ran, and what was used", after_help = EXAMPLES,
          args_conflicts_with_subcommands = true)]
struct AccountingArgs {
    #[command(subcommand)]
    sub: Option<AccountingCommand>,
    /// These jobs in full: 17, 98_5
    #[arg(value_name = "JOB")]
    named: Vec<String>,
    /// These jobs, a line each: 17, 98 (an array), 98_5; or steps of theirs: 17.0
    #[arg(short, long, value_name = "JOBS", alias = "job")]
    jobs: Vec<String>,
    /// Jobs of these users
    #[arg(short, long, value_name = "USERS", alias = "uid")]
    user: Vec<String>,
    /// Jobs of all users
    #[arg(short, long)]
    allusers: bool,
    /// Jobs charged to these accounts
    #[arg(short = 'A', long, value_name = "NAMES", alias = "account")]
    accounts: Vec<String>,
    /// Jobs of these groups, by name or number
    #[arg(short, long, value_name = "GROUPS", alias = "group")]
    gid: Vec<String>,
    /// Jobs in these partitions
    #[arg(short = 'r', long, value_name = "NAMES")]
    partition: Vec<String>,
    /// Jobs of these qualities of service
    #[arg(short, long, value_name = "NAMES")]
    qos: Vec<String>,
    /// Jobs with these names
    #[arg(long, value_name = "NAMES")]
    name: Vec<String>,
    /// Jobs that ran on one of these nodes
    #[arg(short = 'N', long, value_name = "NODES")]
    nodelist: Vec<String>,
    /// Jobs on so many nodes: 2, 2-4, 2-
    #[arg(short = 'i', long, value_name = "COUNT", value_parser = CountRange::read)]
    nnodes: Option<CountRange>,
    /// Jobs with so many CPUs: 8, 8-16, 8-
    #[arg(short = 'I', long, value_name = "COUNT", value_parser = CountRange::read)]
    ncpus: Option<CountRange>,
    /// Jobs with this time limit, or with -K from this on: 30, 1:00:00, 2-0
    #[arg(short = 'k', long, value_name = "TIME", value_parser = limit_secs)]
    timelimit_min: Option<u64>,
    /// With -k: jobs with time limits up to this
    #[arg(short = 'K', long, value_name = "TIME", value_parser = limit_secs, requires = "timelimit_min")]
    timelimit_max: Option<u64>,
    /// Jobs in these states, FAILED or F; with -S those that were in one at some time between -S and -E
    #[arg(short, long, value_name = "STATES")]
    state: Vec<String>,
    #[command(flatten)]
    cluster: ClusterChoice,
    /// From this time; without it from midnight, or with -j from the beginning
    #[arg(short = 'S', long, value_name = "TIME")]
    starttime: Option<String>,
    /// Up to this time
    #[arg(short = 'E', long, value_name = "TIME")]
    endtime: Option<String>,
    /// Columns, with widths: jobid,state%20
    #[arg(short = 'o', long, value_name = "COLUMNS", alias = "fields")]
    format: Vec<String>,
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
    /// Steps that run now, with what they use so far; as sstat the first of each job, unless with -a or a step's number
    #[arg(long, conflicts_with_all = ["named", "steps", "allocations", "state", "starttime", "endtime", "duplicates", "truncate", "limit", "long", "brief", "nnodes", "ncpus", "timelimit_min"])]
    live: bool,
    /// Jobs without their steps, as is usual
    #[arg(short = 'X', long, conflicts_with = "steps")]
    allocations: bool,
    /// Of each job only what lies between -S and -E: its start, its end and its time are cut there
    #[arg(short = 'T', long, conflicts_with = "json")]
    truncate: bool,
    /// No header line
    #[arg(short, long)]
    noheader: bool,
    /// Columns ended by |
    #[arg(short, long, overrides_with = "parsable2")]
    parsable: bool,
    /// Columns parted by |
    #[arg(short = 'P', long, overrides_with = "parsable")]
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
enum AccountingCommand {
    /// GPU-hours held and used, CPU-hours, energy, and jobs that began to run, by group
    Report(ReportArgs),
    /// What accounts owe for a month, and of what
    Bill(BillArgs),
    /// What jobs made of the CPUs, memory and GPUs they held
    Efficiency(EfficiencyArgs),
}

/// The command line as clap knows it.
fn command() -> clap::Command {
    command_line::talking(AccountingArgs::command())
}

/// The man page.
pub fn page() -> ManPage {
    ManPage {
        command: command(),
        section: "1",
        exit_status: "",
        see_also: "gq(1), gadm(8), gpupool(7), gpupool-json(5)",
    }
}

/// Which command is asked for.
#[derive(Clone, Copy)]
enum Program {
    Gacct,
    /// With what prints `--json`.
    Sacct(fn(&mut Client, &RunQuery) -> Outcome),
    Sstat,
}

/// `gacct` itself.
///
/// # Errors
/// What stood in the way, with the exit code.
pub fn main(words: impl IntoIterator<Item = OsString>) -> Outcome {
    run(words, Program::Gacct)
}

/// `gacct` as sacct, which lists steps too.
///
/// # Errors
/// As [`main`].
pub fn sacct(words: Vec<OsString>, json: fn(&mut Client, &RunQuery) -> Outcome) -> Outcome {
    run(words, Program::Sacct(json))
}

/// `gacct --live` as sstat.
///
/// # Errors
/// As [`main`].
pub fn sstat(words: Vec<OsString>) -> Outcome {
    run(words, Program::Sstat)
}

fn run(words: impl IntoIterator<Item = OsString>, program: Program) -> Outcome {
    let matches = command_line::parse_advising(command(), words, ADVICE)?;
    let mut args = AccountingArgs::from_arg_matches(&matches).map_err(Failure::usage)?;
    args.steps |= matches!(program, Program::Sacct(_)) && !args.allocations;
    let as_sstat = matches!(program, Program::Sstat);
    if as_sstat {
        args.jobs.append(&mut args.named);
    }
    let now = local_time::now();
    match &args.sub {
        Some(AccountingCommand::Report(report)) => {
            return usage_report::run(&mut gcli::connect("gacct")?, report, now);
        }
        Some(AccountingCommand::Bill(asked)) => {
            return bill::run(&mut gcli::connect("gacct")?, asked);
        }
        Some(AccountingCommand::Efficiency(asked)) => {
            return efficiency::run(&mut gcli::connect("gacct")?, asked, now);
        }
        None => {}
    }
    if let Some(job) = args.named.first() {
        let listed = [
            (!args.jobs.is_empty(), "-j"),
            (!args.format.is_empty(), "-o"),
            (args.long, "-l"),
            (args.duplicates, "-D"),
        ];
        if let Some((_, option)) = listed.into_iter().find(|(given, _)| *given) {
            return Err(Failure::usage(format_args!(
                "a job by itself is shown in full, and {option} is for lines: gacct -j {job}"
            )));
        }
        return efficiency::records(
            &mut gcli::connect("gacct")?,
            &args.named,
            args.json,
            efficiency::record,
        );
    }
    if args.helpformat {
        let mut out = stdout()?;
        out.write_all(run_column::names(as_sstat).as_bytes())?;
        out.flush()?;
        return Ok(0);
    }
    match args.live || as_sstat {
        // `-a` of sstat are all steps.
        true => live::print(&args, as_sstat && !args.allusers, now),
        false => list(&args, program, now),
    }
}

/// A line for each job, while they come.
fn list(args: &AccountingArgs, program: Program, now: Timestamp) -> Outcome {
    let mut out = stdout()?;
    let columns = columns(args, &program)?;
    let named = JobsAndSteps::of(&args.jobs.join(","));
    let mut query = query(args, now)?;
    query.steps = args.steps || !named.steps.is_empty();
    query.detail = args.json;
    if !named.steps.is_empty() {
        query.job = named.all();
    }
    let mut client = gcli::connect("gacct")?;
    args.cluster.check(&mut client)?;
    let only = RunFilter::of(args)?;
    if args.json && only.is_some() {
        return Err(Failure::usage(
            "-g, -i, -I, -k and -K choose lines, not rows of JSON: leave them out",
        ));
    }
    let span = args.truncate.then_some(TimeSpan {
        from: query.from,
        to: query.to,
    });
    match program {
        Program::Sacct(json) if args.json => return json(&mut client, &query),
        _ if args.json => return print_json(&mut client, &path_with_query("/v1/runs", &query)),
        _ => {}
    }
    let keys = keys(&columns, query.steps, only.as_ref(), span.as_ref());
    query.columns = keys.join(",");
    query.bare = true;
    let keys: Vec<RunRowKey> = keys.into_iter().map(RunRowKey::of).collect();
    let listing = Listing::new(args, columns);
    let mut rows = client.rows(&path_with_query("/v1/runs", &query))?;
    // It goes out with the first row: an error comes without it.
    let mut line = listing.header();
    let mut found = false;
    while let Some(text) = rows.next_row()? {
        let mut run = read_row(text, &keys)?;
        found = true;
        if only.as_ref().is_some_and(|only| !only.takes(&run)) {
            continue;
        }
        if let Some(span) = &span {
            span.cut(&mut run);
        }
        listing.add_run(run, &named, args.steps, &mut line);
        out.write_all(line.as_bytes())?;
        line.clear();
    }
    // Jobs of a removed user stay in accounting: an unknown name is an error only where there are none.
    if !found && let Some(user) = unknown_user(&query.user) {
        return Err(Failure::new(format_args!(
            "Invalid user: no job of {user:?} is in accounting, and there is no user of that name on this machine"
        )));
    }
    out.write_all(line.as_bytes())?;
    out.flush()?;
    Ok(0)
}

fn read_row<'a>(text: &'a [u8], keys: &[RunRowKey]) -> Result<AccountingRow<'a>, Failure> {
    row::read(text, keys)
        .map_err(|error| Failure::new(format_args!("a row of accounting cannot be read: {error}")))
}

/// The keys of a row that columns, steps and the choice of lines need.
fn keys(
    columns: &[(RunColumn, Spec)],
    steps: bool,
    only: Option<&RunFilter>,
    span: Option<&TimeSpan>,
) -> Vec<&'static str> {
    let mut keys = run_column::keys(columns);
    let more: [(bool, &[&str]); 3] = [
        (steps, &["steps", "array_id"]),
        (only.is_some(), only.map_or(&[], RunFilter::keys)),
        (span.is_some(), &TimeSpan::KEYS),
    ];
    for key in more
        .into_iter()
        .filter(|(needed, _)| *needed)
        .flat_map(|(_, keys)| keys)
    {
        if !keys.contains(key) {
            keys.push(key);
        }
    }
    keys
}

/// `2`, `2-4`, `2-`: a number and the largest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CountRange(u32, u32);

impl CountRange {
    fn read(text: &str) -> Result<Self, String> {
        let number = |text: &str| {
            text.trim()
                .parse::<u32>()
                .map_err(|_| format!("{text:?} is no number; write 2, 2-4 or 2-"))
        };
        match text.split_once('-') {
            None => number(text).map(|one| Self(one, one)),
            Some((least, "")) => number(least).map(|least| Self(least, u32::MAX)),
            Some((least, most)) => match (number(least)?, number(most)?) {
                (least, most) if least <= most => Ok(Self(least, most)),
                (least, most) => Err(format!("{least} is more than {most}")),
            },
        }
    }

    fn has(self, number: u32) -> bool {
        (self.0..=self.1).contains(&number)
    }
}

/// Seconds of a time limit; none is the longest.
fn limit_secs(text: &str) -> Result<u64, String> {
    TimeLimit::parse(text)
        .map(|limit| limit.secs().unwrap_or(u64::MAX))
        .map_err(|error| error.to_string())
}

/// A group by its name or number.
fn group_id(text: &str) -> Result<u32, Failure> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    let known = Group::from_name(text).ok().flatten();
    known.map(|group| group.gid.as_raw()).ok_or_else(|| {
        Failure::usage(format_args!(
            "there is no group {text:?} on this machine. Give its number"
        ))
    })
}

/// What only we tell apart of the jobs that come.
struct RunFilter {
    nodes: Option<CountRange>,
    cpus: Option<CountRange>,
    limit_secs: Option<(u64, u64)>,
    groups: Vec<u32>,
}

impl RunFilter {
    /// Keys of a row that it looks at.
    fn keys(&self) -> &'static [&'static str] {
        match self.groups.is_empty() {
            true => &["nodes", "cpus", "time_limit_secs"],
            false => &["nodes", "cpus", "time_limit_secs", "detail"],
        }
    }

    /// # Errors
    /// A group that this machine does not know.
    fn of(args: &AccountingArgs) -> Result<Option<Self>, Failure> {
        let least = args.timelimit_min;
        // One limit alone is the one that is meant, as in sacct.
        let limit_secs = least.map(|least| (least, args.timelimit_max.unwrap_or(least)));
        let names = args.gid.iter().flat_map(|list| list.split(','));
        let groups = names.filter(|name| !name.is_empty()).map(group_id);
        let only = Self {
            nodes: args.nnodes,
            cpus: args.ncpus,
            limit_secs,
            groups: groups.collect::<Result<_, _>>()?,
        };
        let chooses = only.nodes.is_some()
            || only.cpus.is_some()
            || limit_secs.is_some()
            || !only.groups.is_empty();
        Ok(chooses.then_some(only))
    }

    fn takes(&self, run: &AccountingRow) -> bool {
        let limit = run
            .time_limit_secs
            .filter(|secs| *secs != u32::MAX)
            .map_or(u64::MAX, u64::from);
        let gid = run.detail.as_ref().map(|detail| detail.gid);
        (self.groups.is_empty() || gid.is_some_and(|gid| self.groups.contains(&gid)))
            && self.nodes.is_none_or(|between| between.has(run.nodes))
            && self.cpus.is_none_or(|between| between.has(run.cpus))
            && self
                .limit_secs
                .is_none_or(|(least, most)| (least..=most).contains(&limit))
    }
}

/// The time that is looked at.
struct TimeSpan {
    from: Option<Instant>,
    to: Option<Instant>,
}

impl TimeSpan {
    /// Keys of a row that it changes.
    const KEYS: [&str; 3] = ["start_time", "end_time", "elapsed_secs"];

    /// Leaves of a job what lies within: as sacct, what stood still counts.
    fn cut(&self, run: &mut AccountingRow) {
        let Some(start) = run.start_time else { return };
        let cut_start = self.from.filter(|from| *from > start);
        let cut_end = self
            .to
            .filter(|to| run.end_time.is_none_or(|end| end > *to));
        if cut_start.is_none() && cut_end.is_none() {
            return;
        }
        let full_end = run
            .end_time
            .map_or(start.0.plus_secs(run.elapsed_secs), |end| end.0);
        let (start, end) = (
            cut_start.unwrap_or(start),
            cut_end.map_or(full_end, |end| end.0.min(full_end)),
        );
        run.start_time = Some(start);
        run.end_time = run.end_time.map(|_| Instant(end));
        run.elapsed_secs = end.since_secs(start.0).max(0);
    }
}

/// What `-j` names: jobs as they are asked for, and steps, which only we tell apart.
struct JobsAndSteps {
    jobs: Vec<String>,
    steps: Vec<String>,
}

impl JobsAndSteps {
    fn of(list: &str) -> Self {
        let words = list
            .split(',')
            .map(|word| word.trim().to_owned())
            .filter(|word| !word.is_empty());
        let (steps, jobs) = words.partition(|word| word.contains('.'));
        Self { jobs, steps }
    }

    /// The jobs of all that is named.
    fn all(&self) -> String {
        let of_steps = self.steps.iter().filter_map(|step| step.split('.').next());
        self.jobs
            .iter()
            .map(String::as_str)
            .chain(of_steps)
            .collect::<Vec<_>>()
            .join(",")
    }

    /// Whether a row is there for itself, not only for a step of its job.
    fn has_job(&self, run: &AccountingRow) -> bool {
        let own = |job: &String| {
            *job == *run.shown_id
                || *job == run.id.to_string()
                || run.array_id.is_some_and(|id| *job == id.to_string())
        };
        self.steps.is_empty() || self.jobs.iter().any(own)
    }
}

fn columns(args: &AccountingArgs, program: &Program) -> Result<Vec<(RunColumn, Spec)>, Failure> {
    let variable = std::env::var("SACCT_FORMAT")
        .ok()
        .filter(|text| !text.is_empty());
    let text = match () {
        () if !args.format.is_empty() => args.format.join(","),
        () if args.brief => run_column::BRIEF.to_owned(),
        () if args.long && matches!(program, Program::Sacct(_)) => {
            run_column::SACCT_LONG.to_owned()
        }
        () if args.long => run_column::LONG.to_owned(),
        () => variable.unwrap_or_else(|| run_column::USUAL.to_owned()),
    };
    run_column::read(&text).map_err(Failure::new)
}

/// The time that `-S` and `-E` choose; without `-S` since midnight, or all of it for named jobs.
fn time_span(args: &AccountingArgs, now: Timestamp) -> Result<TimeSpan, Failure> {
    let no_job_named = args.jobs.is_empty();
    let midnight = || no_job_named.then(|| Instant(local_time::midnight(now)));
    let from =
        local_time::past_option("starttime", args.starttime.as_deref(), now)?.or_else(midnight);
    let to = local_time::past_option("endtime", args.endtime.as_deref(), now)?;
    if let (Some(from), Some(to)) = (from, to)
        && from > to
    {
        return Err(Failure::usage(format_args!(
            "-S ({}) is after -E ({}): there is nothing between them",
            from.0, to.0
        )));
    }
    if let (Some(from), None) = (from.filter(|from| from.0 > now), to) {
        return Err(Failure::usage(format_args!(
            "-S ({}) has not come yet: there is nothing after it",
            from.0
        )));
    }
    // Times are whole seconds: what began in this very one lies before now all the same.
    let to = to.filter(|to| !(to.0 <= now && now < to.0.plus_secs(1)));
    Ok(TimeSpan { from, to })
}

fn query(args: &AccountingArgs, now: Timestamp) -> Result<RunQuery, Failure> {
    let TimeSpan { from, to } = time_span(args, now)?;
    let jobs_named = !args.jobs.is_empty();
    let names = args
        .user
        .iter()
        .flat_map(|list| list.split(','))
        .filter(|user| !user.is_empty())
        .map(user_name);
    let user = match names.collect::<Vec<_>>().join(",") {
        // Root sees the jobs of all users; named jobs need no user.
        none if none.is_empty() && !(args.allusers || jobs_named || Uid::current().is_root()) => {
            own_name()?
        }
        names => names,
    };
    let states = Some(states(&args.state.join(","))?)
        .filter(|states| states != "all")
        .unwrap_or_default();
    // With both ends a state is one that a job was in between them.
    let is_between = args.starttime.is_some() && !states.is_empty();
    let to = to.or(is_between.then(|| Instant(now.plus_secs(1))));
    Ok(RunQuery {
        job: args.jobs.join(","),
        user,
        account: args.accounts.join(","),
        partition: args.partition.join(","),
        qos: args.qos.join(","),
        name: args.name.join(","),
        nodelist: args.nodelist.join(","),
        state: states,
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
    format: RunFormat,
    noheader: bool,
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
    fn new(args: &AccountingArgs, columns: Vec<(RunColumn, Spec)>) -> Self {
        Self {
            columns,
            style: Style::of(args),
            format: RunFormat::new(TimeFormat::from_env(), args.units.unwrap_or_default()),
            noheader: args.noheader,
        }
    }

    /// Titles and rules; empty with `--noheader`.
    fn header(&self) -> String {
        let mut text = String::new();
        if self.noheader {
            return text;
        }
        self.fill(&mut text, |column| column.title().into());
        if let Style::Padded = self.style {
            let rules = self
                .columns
                .iter()
                .map(|(_, spec)| format!("{} ", "-".repeat(spec.width.unwrap_or(10))));
            text.extend(rules);
            text.push('\n');
        }
        text
    }

    /// The line of a job where it is named, and those of its steps: all of them with `--steps`, else the named ones.
    fn add_run(&self, run: AccountingRow, named: &JobsAndSteps, steps: bool, lines: &mut String) {
        let has_job = named.has_job(&run);
        let run = RunLine {
            row: run,
            step: None,
        };
        if has_job {
            self.add(&run, lines);
        }
        for step in &run.row.steps {
            if steps && has_job || named.steps.contains(&step.shown_id) {
                self.add(&run.of_step(step), lines);
            }
        }
    }

    fn add(&self, run: &RunLine, line: &mut String) {
        self.fill(line, |column| column.value(run, &self.format));
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

    #[test]
    fn numbers_are_one_or_a_range() {
        assert_eq!(
            (
                CountRange::read("2"),
                CountRange::read("2-4"),
                CountRange::read("2-")
            ),
            (
                Ok(CountRange(2, 2)),
                Ok(CountRange(2, 4)),
                Ok(CountRange(2, u32::MAX))
            )
        );
        assert_eq!(CountRange::read("4-2").unwrap_err(), "4 is more than 2");
        assert!(
            CountRange::read("-2").is_err()
                && CountRange::read("x").is_err()
                && CountRange::read("").is_err()
        );
    }

    #[test]
    fn a_job_is_cut_to_the_time_that_is_looked_at() {
        let at = |secs: i64| Some(Instant(Timestamp::from_secs(secs)));
        let cut = |start: Option<Instant>, end: Option<Instant>, elapsed_secs: i64| {
            let mut run = AccountingRow {
                start_time: start,
                end_time: end,
                elapsed_secs,
                ..AccountingRow::default()
            };
            TimeSpan {
                from: at(100),
                to: at(200),
            }
            .cut(&mut run);
            (run.start_time, run.end_time, run.elapsed_secs)
        };
        assert_eq!(cut(at(50), at(250), 200), (at(100), at(200), 100));
        assert_eq!(
            cut(at(120), at(150), 30),
            (at(120), at(150), 30),
            "it lies within"
        );
        assert_eq!(cut(at(150), None, 100), (at(150), None, 50), "it runs on");
        assert_eq!(cut(None, None, 0), (None, None, 0), "it waits");
    }
}
