//! `sprio`: the factors of pending jobs' priorities, in sprio's columns.
//!
//! Owns the columns and their order; the figures are those of `gq --prio`. Source: sprio(1), and what sprio 22.05.8 printed.

use clap::{ArgAction, CommandFactory, FromArgMatches, Parser};
use gcli::column_format::{Piece, parse_letters};
use gcli::table::stdout;
use gcli::{ClusterChoice, Failure, Outcome, command_line};
use gq::job_filter::{unknown_user, user_name};
use gwire::api::{FactorsRow, JobQuery, PartitionPriorityRow, PriorityRow, PriorityWeightsRow};
use gwire::client::path_with_query;
use serde::Deserialize;
use std::borrow::Cow;
use std::cmp::Ordering;
use std::ffi::OsString;
use std::io::Write;

const COLUMNS: &str = "\
Columns of -o and -S, small letters for factors from 0 to 1, capitals for factors times weights:
  %i job, %r partition, %u user, %o account, %Y %y priority, %N nice, %S site, %n QOS by its name
  %a %A age, %f %F fair share, %j %J size, %p %P partition, %q %Q QOS
  %b %B association and %t %T TRES, which have no weight here: 0 and blank

Jobs that are held, too early or wait for another job are not listed, as in sprio; one of several partitions has a line for each.
SPRIO_FORMAT is as -o. This is gpupool: gq --prio says more, gq --why what stands in a job's way.";

#[derive(Parser)]
#[command(name = "sprio", version, about = "sprio's listing, by gq", after_help = COLUMNS, disable_help_flag = true)]
struct SprioArgs {
    /// Of these waiting jobs
    #[arg(short, long, value_name = "JOBS", num_args = 0..=1, default_missing_value = "")]
    jobs: Vec<String>,
    /// Of these users, with a column for them
    #[arg(short, long, value_name = "USERS", alias = "users")]
    user: Vec<String>,
    /// In these partitions
    #[arg(short, long, value_name = "NAMES")]
    partition: Vec<String>,
    /// All columns
    #[arg(short, long)]
    long: bool,
    /// Factors from 0 to 1 instead of times their weights
    #[arg(short, long)]
    norm: bool,
    /// The weights instead of jobs
    #[arg(short, long)]
    weights: bool,
    /// No header line
    #[arg(short = 'h', long)]
    noheader: bool,
    /// Columns by letter: '%.15i %.10Y'
    #[arg(short = 'o', long, value_name = "FORMAT")]
    format: Option<String>,
    /// Order by columns, - for descending: u,-y; without it by job
    #[arg(
        short = 'S',
        long,
        value_name = "LETTERS",
        default_value = "i",
        allow_hyphen_values = true
    )]
    sort: String,
    /// Tell first what was asked for; twice also each job and user
    #[arg(short, long, action = ArgAction::Count)]
    verbose: u8,
    #[command(flatten)]
    cluster: ClusterChoice,
    /// Show this help
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
}

#[derive(Deserialize)]
struct PriorityList {
    weights: PriorityWeightsRow,
    jobs: Vec<PriorityRow>,
}

/// `sprio`.
pub(crate) fn main(words: Vec<OsString>) -> Outcome {
    let matches = command_line::parse_advising(SprioArgs::command(), words, &[])?;
    let args = SprioArgs::from_arg_matches(&matches).map_err(Failure::usage)?;
    let keys = sort_keys(&args.sort)?;
    let query = query(&args)?;
    tell_options(&args, &query)?;
    let mut client = gcli::connect("sprio")?;
    args.cluster.check(&mut client)?;
    let PriorityList { weights, jobs } = client.get(&path_with_query("/v1/priorities", &query))?;
    let own = std::env::var("SPRIO_FORMAT")
        .ok()
        .filter(|format| !format.is_empty());
    let format = args
        .format
        .clone()
        .or(own)
        .unwrap_or_else(|| usual(&args, &weights));
    let pieces = parse_letters(&format, PriorityColumn::of).map_err(Failure::usage)?;
    let mut jobs: Vec<PriorityRow> = jobs
        .into_iter()
        .filter(|job| job.eligible)
        .flat_map(in_each_partition)
        .collect();
    if !args.weights && jobs.is_empty() {
        if let Some(user) = unknown_user(&query.user) {
            return Err(Failure::new(format_args!(
                "Invalid user: no job of {user:?} waits, and there is no user of that name on this machine"
            )));
        }
        if !query.job.is_empty() {
            writeln!(
                std::io::stderr(),
                "Unable to find jobs matching user/id(s) specified: {} does not wait for its turn. gq {0} shows it",
                query.job
            )?;
            return Ok(0);
        }
    }
    let meant = |row: &PriorityRow| {
        query.partition.is_empty() || query.partition.split(',').any(|name| name == row.partition)
    };
    jobs.retain(meant);
    jobs.sort_by(|a, b| {
        keys.iter()
            .map(|key| key.order(a, b))
            .fold(Ordering::Equal, Ordering::then)
    });
    let mut out = stdout()?;
    if !args.noheader {
        writeln!(out, "{}", line(&pieces, |column| column.title().into()))?;
    }
    if args.weights {
        writeln!(out, "{}", line(&pieces, |column| column.weight(&weights)))?;
    }
    for job in jobs.iter().filter(|_| !args.weights) {
        writeln!(out, "{}", line(&pieces, |column| column.text(job)))?;
    }
    out.flush()?;
    Ok(0)
}

/// What was asked for, as `sprio -v` tells it.
fn tell_options(args: &SprioArgs, query: &JobQuery) -> Result<(), Failure> {
    if args.verbose == 0 {
        return Ok(());
    }
    const RULE: &str = "-----------------------------";
    let or_null = |text: &str| match text {
        "" => "(null)".to_owned(),
        text => text.to_owned(),
    };
    let mut text = format!("{RULE}\n");
    for (name, value) in [
        (
            "format",
            or_null(args.format.as_deref().unwrap_or_default()),
        ),
        ("job_flag", u8::from(!args.jobs.is_empty()).to_string()),
        ("jobs", or_null(&query.job)),
        ("partition", or_null(&query.partition)),
        ("users", or_null(&query.user)),
        ("verbose", args.verbose.to_string()),
    ] {
        text.push_str(&format!("{name:<10} = {value}\n"));
    }
    for (name, all) in [("job_list", &query.job), ("user_list", &query.user)] {
        let each = all.split(',').filter(|one| !one.is_empty());
        for (at, one) in each.enumerate().filter(|_| args.verbose > 1) {
            text.push_str(&format!("{name}[{at}] = {one}\n"));
        }
    }
    let mut out = stdout()?;
    write!(out, "{text}{RULE}\n\n\n")?;
    Ok(out.flush()?)
}

fn query(args: &SprioArgs) -> Result<JobQuery, Failure> {
    let users: Vec<String> = args
        .user
        .iter()
        .flat_map(|list| list.split(','))
        .filter(|user| !user.is_empty())
        .map(user_name)
        .collect();
    let jobs: Vec<&str> = args
        .jobs
        .iter()
        .flat_map(|list| list.split(','))
        .filter(|job| !job.is_empty())
        .collect();
    Ok(JobQuery {
        user: users.join(","),
        job: jobs.join(","),
        partition: args.partition.join(","),
        ..JobQuery::default()
    })
}

/// A line for each partition that it waits in.
fn in_each_partition(mut job: PriorityRow) -> Vec<PriorityRow> {
    let parts = std::mem::take(&mut job.by_partition);
    if parts.is_empty() {
        return vec![job];
    }
    let one = |part: PartitionPriorityRow| {
        let PartitionPriorityRow {
            partition,
            priority,
            weighted,
            normalized,
        } = part;
        PriorityRow {
            partition,
            priority,
            weighted,
            normalized,
            ..job.clone()
        }
    };
    parts.into_iter().map(one).collect()
}

/// sprio's columns, without the factors that have no weight.
fn usual(args: &SprioArgs, weights: &PriorityWeightsRow) -> String {
    let mut format = "%.15i %9r".to_owned();
    if args.long || !args.user.is_empty() {
        format.push_str(" %.8u");
    }
    if args.long {
        format.push_str(" %.10o");
    }
    format.push_str(if args.norm { " %10y" } else { " %.10Y %.10S" });
    let factors = [
        ('a', weights.age),
        ('b', 0),
        ('f', weights.fair_share),
        ('j', weights.size),
        ('p', weights.partition),
        ('q', weights.qos),
    ];
    for (letter, _) in factors
        .into_iter()
        .filter(|(_, weight)| args.long || *weight > 0)
    {
        if args.long && letter == 'q' {
            format.push_str(" %.10n");
        }
        format.push_str(&if args.norm {
            format!(" %10{letter}")
        } else {
            format!(" %.10{}", letter.to_ascii_uppercase())
        });
    }
    match (args.long, args.norm) {
        (true, true) => format.push_str(" %20t"),
        (true, false) => format.push_str(" %.11N %.20T"),
        _ => {}
    }
    format
}

#[derive(Clone, Copy)]
enum PriorityColumn {
    Job,
    Partition,
    User,
    Account,
    QosName,
    Nice,
    /// The sum, or as a part of the highest there can be.
    Priority {
        normal: bool,
    },
    Factor {
        factor: Factor,
        normal: bool,
    },
    Site,
    /// Nothing here: TRES have no weights.
    Tres,
}

#[derive(Clone, Copy)]
enum Factor {
    Age,
    Association,
    FairShare,
    Size,
    Partition,
    Qos,
}

/// The highest priority and one, in Slurm.
const WHOLE_PRIORITY: f64 = 4_294_967_296.0;

impl PriorityColumn {
    fn of(letter: char) -> Option<Self> {
        let normal = letter.is_ascii_lowercase();
        let factor = |factor| Some(Self::Factor { factor, normal });
        match letter {
            'i' => Some(Self::Job),
            'r' => Some(Self::Partition),
            'u' => Some(Self::User),
            'o' => Some(Self::Account),
            'n' => Some(Self::QosName),
            'N' => Some(Self::Nice),
            'S' => Some(Self::Site),
            'y' | 'Y' => Some(Self::Priority { normal }),
            't' | 'T' => Some(Self::Tres),
            'a' | 'A' => factor(Factor::Age),
            'b' | 'B' => factor(Factor::Association),
            'f' | 'F' => factor(Factor::FairShare),
            'j' | 'J' => factor(Factor::Size),
            'p' | 'P' => factor(Factor::Partition),
            'q' | 'Q' => factor(Factor::Qos),
            _ => None,
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Job => "JOBID",
            Self::Partition
            | Self::Factor {
                factor: Factor::Partition,
                ..
            } => "PARTITION",
            Self::User => "USER",
            Self::Account => "ACCOUNT",
            Self::QosName => "QOSNAME",
            Self::Nice => "NICE",
            Self::Priority { .. } => "PRIORITY",
            Self::Site => "SITE",
            Self::Tres => "TRES",
            Self::Factor {
                factor: Factor::Age,
                ..
            } => "AGE",
            Self::Factor {
                factor: Factor::Association,
                ..
            } => "ASSOC",
            Self::Factor {
                factor: Factor::FairShare,
                ..
            } => "FAIRSHARE",
            Self::Factor {
                factor: Factor::Size,
                ..
            } => "JOBSIZE",
            Self::Factor {
                factor: Factor::Qos,
                ..
            } => "QOS",
        }
    }

    fn text(self, job: &PriorityRow) -> Cow<'_, str> {
        match self {
            // An array that waits as a whole is one job with its number.
            Self::Job => job
                .shown_id
                .split_once("_[")
                .map_or_else(|| job.id.to_string().into(), |(array, _)| array.into()),
            Self::Partition => job.partition.as_str().into(),
            Self::User => job.user.as_str().into(),
            Self::Account => job.account.as_str().into(),
            Self::QosName => job.qos.as_str().into(),
            Self::Tres => "".into(),
            Self::Priority { normal: true } => format!("{:.14}", self.number(job)).into(),
            Self::Factor { normal: true, .. } => format!("{:.7}", self.number(job)).into(),
            _ => format!("{:.0}", self.number(job)).into(),
        }
    }

    /// What it is ordered by, of columns of numbers.
    fn number(self, job: &PriorityRow) -> f64 {
        match self {
            Self::Job => job.id as f64,
            Self::Nice => job.weighted.nice as f64,
            Self::Priority { normal: false } => job.priority as f64,
            Self::Priority { normal: true } => job.priority as f64 / WHOLE_PRIORITY,
            Self::Site => job.weighted.site,
            Self::Factor { factor, normal } => factor.of(if normal {
                &job.normalized
            } else {
                &job.weighted
            }),
            Self::Partition | Self::User | Self::Account | Self::QosName | Self::Tres => 0.0,
        }
    }

    fn weight(self, weights: &PriorityWeightsRow) -> Cow<'static, str> {
        let weight = match self {
            Self::Job => return "Weights".into(),
            Self::Site => weights.site,
            Self::Factor {
                factor: Factor::Age,
                ..
            } => weights.age,
            Self::Factor {
                factor: Factor::Association,
                ..
            } => 0,
            Self::Factor {
                factor: Factor::FairShare,
                ..
            } => weights.fair_share,
            Self::Factor {
                factor: Factor::Size,
                ..
            } => weights.size,
            Self::Factor {
                factor: Factor::Partition,
                ..
            } => weights.partition,
            Self::Factor {
                factor: Factor::Qos,
                ..
            } => weights.qos,
            Self::Partition
            | Self::User
            | Self::Account
            | Self::QosName
            | Self::Nice
            | Self::Priority { .. }
            | Self::Tres => {
                return "".into();
            }
        };
        weight.to_string().into()
    }
}

impl Factor {
    fn of(self, factors: &FactorsRow) -> f64 {
        match self {
            Self::Age => factors.age,
            Self::Association => 0.0,
            Self::FairShare => factors.fair_share,
            Self::Size => factors.size,
            Self::Partition => factors.partition,
            Self::Qos => factors.qos,
        }
    }
}

/// A column to order by.
struct SortKey {
    column: PriorityColumn,
    descending: bool,
}

impl SortKey {
    fn order(&self, a: &PriorityRow, b: &PriorityRow) -> Ordering {
        let order = match self.column {
            PriorityColumn::Partition => a.partition.cmp(&b.partition),
            PriorityColumn::User => a.user.cmp(&b.user),
            PriorityColumn::Account => a.account.cmp(&b.account),
            PriorityColumn::QosName => a.qos.cmp(&b.qos),
            column => column.number(a).total_cmp(&column.number(b)),
        };
        if self.descending {
            order.reverse()
        } else {
            order
        }
    }
}

/// `u,-y`.
fn sort_keys(text: &str) -> Result<Vec<SortKey>, Failure> {
    let key = |word: &str| {
        let letters = word.strip_prefix(['-', '+']).unwrap_or(word);
        let mut letter = letters.chars();
        let column = letter
            .next()
            .filter(|_| letter.as_str().is_empty())
            .and_then(PriorityColumn::of);
        let column = column.ok_or_else(|| Failure::usage(format_args!("Invalid sort specification: {word:?} is no column's letter. Try u,-y; --help lists them")))?;
        Ok(SortKey {
            column,
            descending: word.starts_with('-'),
        })
    };
    text.split(',')
        .map(str::trim)
        .filter(|word| !word.is_empty())
        .map(key)
        .collect()
}

fn line<'t>(
    pieces: &[Piece<PriorityColumn>],
    text: impl Fn(PriorityColumn) -> Cow<'t, str>,
) -> String {
    let mut line = String::new();
    for piece in pieces {
        match piece {
            Piece::Text(text) => line.push_str(text),
            Piece::Field(column, spec) => spec.fill(&text(*column), &mut line),
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        SprioArgs::command().debug_assert();
    }
}
