//! `gnodes`: nodes, their GPUs, what holds them and what is wrong; with `-p` partitions as sinfo lists them.

use crate::node_column::{
    self, NodeColumn, NodeFormat, gpus_by_type, is_based_on, is_in_state, long_state, reason,
};
use crate::partition_listing::{self as listing, lines};
use crate::partition_record;
use crate::{difference_listing, health_listing, node_record, queue, record_listing};
use clap::{ArgAction, CommandFactory, FromArgMatches, Parser};
use gcli::local_time::{self, TimeFormat};
use gcli::table::{Cell, Column, Screen, TableWriter, Tint, stdout};
use gcli::{ClusterChoice, Failure, Outcome, command_line, slurm_name};
use gmodel::JobState;
use gmodel::hostlist::{self, Hostlist};
use gmodel::size::rough_size;
use gmodel::suggest::did_you_mean;
use gwire::api::{JobQuery, NodeRow, PartitionRow};
use gwire::client::{Client, path_with_query};
use serde::de::DeserializeOwned;
use std::ffi::OsString;
use std::io::Write;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  gnodes                nodes with their GPUs
  gnodes node7          one node in full, each GPU with its job, and how they are joined
  gnodes -p             partitions, as sinfo prints them
  gnodes -p --full      partitions with their limits and how they preempt
  gnodes -R             nodes that are out, and why
  gnodes --health       every GPU: in service or not, why, what comes next
  gnodes --diff         where nodes are not what gpuctld.toml says they should be
  gnodes -h -o '%n %G'  names and GPUs, for a script
  gnodes --hostnames    in a job's script: its nodes, one a line (the first is the batch node)

Columns of -o and -O:
";

/// Where a beginning fits several, the first is meant, as in sinfo.
const STATES: [&str; 19] = [
    "unknown",
    "unk",
    "down",
    "idle",
    "allocated",
    "mixed",
    "drain",
    "drained",
    "draining",
    "drng",
    COMPLETING,
    "comp",
    "maint",
    "reserved",
    "resv",
    "alloc",
    "mix",
    "no_respond",
    "all",
];
/// Nodes that hold jobs which are ending.
const COMPLETING: &str = "completing";

/// States of Slurm's nodes that none is ever in here.
const NEVER: [&str; 25] = [
    "error",
    "future",
    "futr",
    "fail",
    "failing",
    "failg",
    "invalid_reg",
    "perfctrs",
    "npc",
    "planned",
    "plnd",
    "power_down",
    "powered_down",
    "powering_down",
    "powering_up",
    "pow_dn",
    "pow_up",
    "power_drain",
    "power_up",
    "reboot_requested",
    "reboot_issued",
    "boot",
    "blocked",
    "cloud",
    "dynamic",
];

/// Options of sinfo that gnodes does not have.
const ADVICE: &command_line::Advice = &[
    (
        &["-F", "--future"],
        "nodes come by joining; none is declared before",
    ),
    (&["--hide"], "no partition is hidden; -p chooses some"),
];

#[derive(Parser)]
#[command(
    name = "gnodes",
    version,
    about = "Show nodes, GPUs and partitions",
    disable_help_flag = true
)]
struct NodeArgs {
    /// Nodes to show in full: node7, node[1-3]
    #[arg(value_name = "NODE")]
    names: Vec<String>,
    /// Partitions as sinfo lists them, all or these
    #[arg(short, long, value_name = "NAMES", num_args = 0..=1, default_missing_value = "", alias = "partition")]
    partitions: Option<String>,
    #[command(flatten)]
    cluster: ClusterChoice,
    /// With -p: each partition in full, as scontrol shows it
    #[arg(long, requires = "partitions", conflicts_with_all = ["by_node", "summarize", "list_reasons", "long", "format", "format_names"])]
    full: bool,
    /// A line for each GPU of all nodes, or of those named: how it stands, why, what comes next
    #[arg(long, conflicts_with_all = ["partitions", "by_node", "summarize", "list_reasons", "format", "format_names", "states"])]
    health: bool,
    /// Where nodes differ from what the configuration says they should have
    #[arg(long, conflicts_with_all = ["names", "health", "partitions", "by_node", "summarize", "list_reasons", "format", "format_names", "states"])]
    diff: bool,
    /// Reservations, their windows and nodes, as sinfo lists them
    #[arg(short = 'T', long = "reservation", conflicts_with_all = ["names", "health", "diff", "full", "by_node", "summarize", "list_reasons", "format", "format_names", "states", "nodes", "responding", "dead", "sort"])]
    reservations: bool,
    /// A line for each node of each partition
    #[arg(short = 'N', long = "Node")]
    by_node: bool,
    /// A line for each partition
    #[arg(short, long, conflicts_with = "by_node")]
    summarize: bool,
    /// Nodes that take no work, and why
    #[arg(short = 'R', long)]
    list_reasons: bool,
    /// More columns
    #[arg(short, long)]
    long: bool,
    /// Only nodes in these states: idle,drain; all
    #[arg(short = 't', long, value_name = "STATES", alias = "state")]
    states: Option<String>,
    /// Only these nodes: node[1-3]
    #[arg(short, long, value_name = "NODES")]
    nodes: Option<String>,
    /// Only nodes that answer
    #[arg(short, long, conflicts_with = "dead")]
    responding: bool,
    /// Only nodes that do not answer
    #[arg(short, long)]
    dead: bool,
    /// All partitions, as is usual: none is hidden
    #[arg(short, long)]
    all: bool,
    /// Nodes share a line only if they are alike in all it shows, as is usual
    #[arg(short, long)]
    exact: bool,
    /// Order of the lines of partitions by columns, - for descending: P,-t,N
    #[arg(short = 'S', long, value_name = "LETTERS", allow_hyphen_values = true)]
    sort: Option<String>,
    /// Show it again every so many seconds
    #[arg(short, long, value_name = "SECS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    iterate: Option<u64>,
    /// Sizes in the units they are counted in, as is usual
    #[arg(long)]
    noconvert: bool,
    /// Print the names that a host list stands for, one a line; without LIST those of the job around it
    #[arg(long, value_name = "LIST", num_args = 0..=1, default_missing_value = "", exclusive = true)]
    hostnames: Option<String>,
    /// Print names as a host list: n01,n02 is n[01-02]
    #[arg(long, value_name = "NAMES", exclusive = true)]
    hostlist: Option<String>,
    /// No header line
    #[arg(short = 'h', long)]
    noheader: bool,
    /// Columns by letter: '%P %t %N'
    #[arg(short = 'o', long, value_name = "FORMAT")]
    format: Option<String>,
    /// Columns by name: nodelist,statelong
    #[arg(
        short = 'O',
        long = "Format",
        value_name = "FORMAT",
        conflicts_with = "format"
    )]
    format_names: Option<String>,
    /// One line of JSON, of nodes or with -p of partitions
    #[arg(long)]
    json: bool,
    /// Show this help
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
}

/// The command line as clap knows it.
pub fn command() -> clap::Command {
    command_line::talking(
        NodeArgs::command().after_help(format!("{EXAMPLES}{}", node_column::help())),
    )
}

/// `gnodes` itself.
///
/// # Errors
/// What stood in the way, with the exit code.
pub fn main(words: impl IntoIterator<Item = OsString>) -> Outcome {
    let words: Vec<OsString> = words.into_iter().collect();
    let as_sinfo = slurm_name::is_one(words.first());
    let matches = command_line::parse_advising(command(), words, ADVICE)?;
    let mut args = NodeArgs::from_arg_matches(&matches).map_err(Failure::usage)?;
    if as_sinfo
        && args.names.is_empty()
        && !(args.health || args.diff || args.json || args.reservations)
    {
        // sinfo lists partitions.
        args.partitions.get_or_insert_default();
    }
    if let Some(list) = &args.hostnames {
        return hostnames(list);
    }
    if let Some(names) = &args.hostlist {
        writeln!(std::io::stdout(), "{}", hostlist::compress(expand(names)?))?;
        return Ok(0);
    }
    let mut choice = Choice::of(&args, as_sinfo)?;
    let format = sinfo_format(&args, as_sinfo)?;
    let sort = node_column::read_sort(args.sort.as_deref().unwrap_or_default());
    let sort = sort.map_err(|why| Failure::usage(format_args!("--sort: {why}")))?;
    let mut client = gcli::connect("gnodes")?;
    args.cluster.check(&mut client)?;
    choice.ask_completing(&mut client)?;
    let Some(secs) = args.iterate else {
        return show(&mut client, &args, &choice, format, &sort);
    };
    loop {
        choice.ask_completing(&mut client)?;
        writeln!(
            std::io::stdout(),
            "{}",
            local_time::banner(local_time::now())
        )?;
        show(&mut client, &args, &choice, format.clone(), &sort)?;
        writeln!(std::io::stdout())?;
        std::thread::sleep(Duration::from_secs(secs));
    }
}

fn expand(list: &str) -> Result<Vec<String>, Failure> {
    hostlist::expand(list, hostlist::MAX_HOSTS).map_err(Failure::new)
}

/// As `scontrol show hostnames`.
fn hostnames(list: &str) -> Outcome {
    let own = || {
        ["SLURM_JOB_NODELIST", "GSUB_JOB_NODELIST", "SLURM_NODELIST"]
            .iter()
            .find_map(|name| std::env::var(name).ok())
    };
    let list = match list {
        "" => own().ok_or_else(|| {
            Failure::usage(
                "--hostnames without a list is for scripts of jobs: SLURM_JOB_NODELIST is not set",
            )
        })?,
        list => list.to_owned(),
    };
    let mut out = stdout()?;
    for name in expand(&list)? {
        writeln!(out, "{name}")?;
    }
    out.flush()?;
    Ok(0)
}

fn show(
    client: &mut Client,
    args: &NodeArgs,
    choice: &Choice,
    format: Option<(NodeFormat, bool)>,
    sort: &[(NodeColumn, bool)],
) -> Outcome {
    if args.reservations {
        return record_listing::reservation_table(client, !args.noheader, args.json);
    }
    if args.health {
        let names: Vec<String> = args.names.iter().chain(&args.nodes).cloned().collect();
        return health_listing::print(client, &names, !args.noheader, args.json);
    }
    if args.diff {
        return difference_listing::print(client, args.json);
    }
    if args.json {
        return json(client, args, choice);
    }
    let mut nodes: Vec<NodeRow> = list(client, "/v1/nodes")?;
    if !args.names.is_empty() {
        return in_full(&nodes, &args.names, choice);
    }
    if args.full {
        let partitions: Vec<PartitionRow> = list(client, "/v1/partitions")?;
        let mut out = stdout()?;
        for partition in partitions.iter().filter(|one| {
            choice
                .partitions
                .as_ref()
                .is_none_or(|names| names.contains(&one.name))
        }) {
            out.write_all(partition_record::text(partition, &nodes).as_bytes())?;
        }
        out.flush()?;
        return Ok(0);
    }
    nodes.retain(|node| choice.takes(node));
    match format {
        None => table(&nodes, args),
        Some((format, fitted)) => {
            let mut partitions: Vec<PartitionRow> = list(client, "/v1/partitions")?;
            if let Some(names) = &choice.partitions {
                partitions.retain(|partition| names.contains(&partition.name));
            }
            partitioned(format, fitted, &partitions, &nodes, args, sort)
        }
    }
}

/// sinfo's listing, if that is what is wanted, and whether its columns may grow.
fn sinfo_format(args: &NodeArgs, as_sinfo: bool) -> Result<Option<(NodeFormat, bool)>, Failure> {
    let letters = |text: &str| node_column::read_letters(text).map_err(Failure::usage);
    if let Some(text) = &args.format {
        return Ok(Some((letters(text)?, false)));
    }
    if let Some(text) = &args.format_names {
        return Ok(Some((
            node_column::read_names(text).map_err(Failure::usage)?,
            false,
        )));
    }
    let usual = match (args.list_reasons, args.summarize, args.by_node, args.long) {
        (true, _, _, true) => listing::REASONS_LONG,
        (true, ..) => listing::REASONS,
        (_, true, ..) => listing::SUMMARY,
        (_, _, true, false) => listing::BY_NODE,
        (_, _, true, true) if as_sinfo => listing::SINFO_BY_NODE_LONG,
        (_, _, true, true) => listing::BY_NODE_LONG,
        (_, _, false, true) if as_sinfo => listing::SINFO_LONG,
        (_, _, false, true) if args.partitions.is_some() => listing::LONG,
        _ if args.partitions.is_some() => listing::USUAL,
        _ => return Ok(None),
    };
    match std::env::var("SINFO_FORMAT")
        .ok()
        .filter(|text| !text.is_empty() && usual == listing::USUAL)
    {
        Some(text) => Ok(Some((letters(&text)?, false))),
        None => Ok(Some((letters(usual)?, true))),
    }
}

/// Which nodes are meant.
struct Choice {
    nodes: Option<Hostlist>,
    states: Option<Vec<&'static str>>,
    /// Nodes with jobs that are ending, where these are asked for.
    completing: Vec<String>,
    partitions: Option<Vec<String>>,
    only_out: bool,
    /// Only those that answer, or do not.
    answering: Option<bool>,
    /// As sinfo lists: a drained node without jobs is idle, too.
    as_sinfo: bool,
}

impl Choice {
    fn of(args: &NodeArgs, as_sinfo: bool) -> Result<Self, Failure> {
        let hosts = |text: &str| {
            Hostlist::parse(text).map_err(|error| Failure::usage(format_args!("--nodes: {error}")))
        };
        let words = |text: &str| {
            text.split(',')
                .map(|word| word.trim().to_owned())
                .filter(|word| !word.is_empty())
                .collect::<Vec<_>>()
        };
        let states = args.states.as_deref().map(|text| {
            words(&text.to_lowercase())
                .iter()
                .map(|word| state_named(word))
                .collect::<Result<Vec<_>, _>>()
        });
        Ok(Self {
            nodes: args.nodes.as_deref().map(hosts).transpose()?,
            states: states.transpose()?,
            partitions: args
                .partitions
                .as_deref()
                .map(words)
                .filter(|names| !names.is_empty()),
            completing: Vec::new(),
            only_out: args.list_reasons,
            answering: if args.responding {
                Some(true)
            } else {
                args.dead.then_some(false)
            },
            as_sinfo: as_sinfo || args.partitions.is_some(),
        })
    }

    /// Asks which nodes hold jobs that are ending, if that is what is wanted.
    fn ask_completing(&mut self, client: &mut Client) -> Result<(), Failure> {
        #[derive(serde::Deserialize)]
        struct Job {
            nodelist: String,
        }
        if self
            .states
            .as_ref()
            .is_some_and(|states| states.contains(&COMPLETING))
        {
            let query = JobQuery {
                state: JobState::Completing.long().to_owned(),
                columns: "nodelist".to_owned(),
                ..JobQuery::default()
            };
            let jobs: Vec<Job> = list(client, &path_with_query("/v1/jobs", &query))?;
            self.completing = jobs
                .iter()
                .filter_map(|job| hostlist::expand(&job.nodelist, hostlist::MAX_HOSTS).ok())
                .flatten()
                .collect();
        }
        Ok(())
    }

    fn takes(&self, node: &NodeRow) -> bool {
        let in_state = |states: &Vec<&'static str>| {
            states.iter().any(|state| match *state {
                "no_respond" => !answers(node),
                COMPLETING => self.completing.contains(&node.name),
                state => {
                    is_in_state(&node.state, state)
                        || self.as_sinfo && is_based_on(&node.state, state)
                }
            })
        };
        self.nodes
            .as_ref()
            .is_none_or(|nodes| nodes.contains(&node.name))
            && self.states.as_ref().is_none_or(in_state)
            && self
                .partitions
                .as_ref()
                .is_none_or(|names| node.partitions.iter().any(|name| names.contains(name)))
            && (!self.only_out || reason(node) != "none")
            && self
                .answering
                .is_none_or(|answering| answering == answers(node))
    }
}

/// A state by its name or the beginning of it.
fn state_named(word: &str) -> Result<&'static str, Failure> {
    let known = || STATES.into_iter().chain(NEVER);
    let found = known()
        .find(|state| *state == word)
        .or_else(|| known().find(|state| state.starts_with(word)));
    match found {
        Some("comp") => Ok(COMPLETING),
        Some(state) => Ok(state),
        None => {
            let hint = did_you_mean(word, STATES);
            Err(Failure::usage(format_args!(
                "{word:?} is no state of a node.{hint} States are {}",
                STATES.join(", ")
            )))
        }
    }
}

/// sinfo's "responding".
fn answers(node: &NodeRow) -> bool {
    !node.state.contains("+NOT_RESPONDING")
        && !node.state.starts_with("DOWN")
        && long_state(&node.state) != "unknown"
}

/// All rows of a listing.
pub(crate) fn list<T: DeserializeOwned>(
    client: &mut Client,
    path: &str,
) -> Result<Vec<T>, Failure> {
    let mut rows = client.rows(path)?;
    let mut list = Vec::new();
    while let Some(text) = rows.next_row()? {
        list.push(serde_json::from_slice(text).map_err(|error| {
            Failure::new(format_args!("a row of {path} cannot be read: {error}"))
        })?);
    }
    Ok(list)
}

fn json(client: &mut Client, args: &NodeArgs, choice: &Choice) -> Outcome {
    let mut out = stdout()?;
    if args.partitions.is_some() && args.names.is_empty() {
        queue::copy_json(client, "/v1/partitions", &mut out)?;
    } else {
        let names = named(&args.names)?;
        let mut rows = client.rows("/v1/nodes")?;
        write!(out, "{{\"schema\":{},\"nodes\":[", gwire::api::SCHEMA)?;
        let mut first = true;
        let mut there = Vec::new();
        while let Some(text) = rows.next_row()? {
            let node: NodeRow = serde_json::from_slice(text).map_err(Failure::new)?;
            if names.is_some() {
                there.push(node.name.clone());
            }
            if choice.takes(&node)
                && names
                    .as_ref()
                    .is_none_or(|names| names.contains(&node.name))
            {
                if !std::mem::take(&mut first) {
                    out.write_all(b",")?;
                }
                out.write_all(text)?;
            }
        }
        out.write_all(b"]}\n")?;
        out.flush()?;
        return say_unknown(names.iter().flat_map(Hostlist::iter), &there);
    }
    out.flush()?;
    Ok(0)
}

/// Says which of these names no node has; the exit code.
fn say_unknown<'a>(names: impl Iterator<Item = &'a str>, there: &[String]) -> Outcome {
    let mut exit = 0;
    for name in names.filter(|name| !there.iter().any(|node| node == name)) {
        let hint = did_you_mean(name, there.iter().map(String::as_str));
        gcli::failure::say("gnodes", format_args!("there is no node {name:?}.{hint}"))?;
        exit = gcli::failure::FAILED;
    }
    Ok(exit)
}

/// The nodes named on the command line; None for no names.
pub(crate) fn named(names: &[String]) -> Result<Option<Hostlist>, Failure> {
    if names.is_empty() {
        return Ok(None);
    }
    Hostlist::parse(&names.join(","))
        .map(Some)
        .map_err(Failure::usage)
}

fn in_full(nodes: &[NodeRow], names: &[String], choice: &Choice) -> Outcome {
    let times = TimeFormat::from_env();
    let wanted = named(names)?.unwrap_or_default();
    let mut out = stdout()?;
    let mut exit = 0;
    for name in wanted.iter() {
        match nodes.iter().find(|node| node.name == name) {
            Some(node) if choice.takes(node) => {
                out.write_all(node_record::text(node, &times).as_bytes())?
            }
            Some(_) => {}
            None => {
                out.flush()?;
                let hint = did_you_mean(name, nodes.iter().map(|node| node.name.as_str()));
                gcli::failure::say("gnodes", format_args!("there is no node {name:?}.{hint}"))?;
                exit = gcli::failure::FAILED;
            }
        }
    }
    out.flush()?;
    Ok(exit)
}

fn table(nodes: &[NodeRow], args: &NodeArgs) -> Outcome {
    let mut columns = vec![
        Column::whole("NODE"),
        Column::whole("STATE"),
        Column::text("PARTITIONS"),
        Column::number("CPUS"),
        Column::number("MEMORY"),
        Column::whole("GPUS"),
    ];
    if args.long {
        columns.extend([
            Column::text("FEATURES"),
            Column::text("VERSION"),
            Column::text("RUNS"),
        ]);
    }
    columns.push(Column::text("NOTES"));
    let mut table = TableWriter::new(stdout()?, columns, Screen::of_stdout(), !args.noheader);
    for node in nodes {
        let mut cells = vec![
            Cell::from(node.name.as_str()),
            Cell::tinted(long_state(&node.state), tint(&node.state)),
            node.partitions.join(",").into(),
            format!("{}/{}", node.cpus_alloc, node.cpus).into(),
            format!(
                "{}/{}",
                rough_size(node.mem_alloc_bytes),
                rough_size(node.mem_bytes)
            )
            .into(),
            gpus(node).into(),
        ];
        if args.long {
            cells.extend([
                node.features.join(",").into(),
                node.version.as_str().into(),
                node.runs.join(",").into(),
            ]);
        }
        cells.push(notes(node).into());
        table.row(cells)?;
    }
    table.finish()?;
    Ok(0)
}

/// `h100:3/8`, held of all; `-` for none.
fn gpus(node: &NodeRow) -> String {
    let types: Vec<String> = gpus_by_type(node)
        .iter()
        .map(|(kind, used, all)| format!("{kind}:{used}/{all}"))
        .collect();
    if types.is_empty() {
        "-".to_owned()
    } else {
        types.join(",")
    }
}

/// Everything about a node that an administrator should know at a glance.
fn notes(node: &NodeRow) -> String {
    let mut notes = Vec::new();
    if reason(node) != "none" {
        notes.push(reason(node));
    }
    notes.extend(gpu_faults(node));
    if !node.left_out.is_empty() {
        notes.push(format!("not offered: {}", node.left_out.join(",")));
    }
    if node.isolation == "none" {
        notes.push("isolation none".to_owned());
    }
    if node.declared {
        notes.push("declared".to_owned());
    }
    notes.join("; ")
}

/// `gpu3 hot: 90 C`; what is wrong with several GPUs alike, or with a GPU and its slices, is said once: `gpu0,2-7 the driver is not
/// loaded`. By the driver's index, as `gadm gpu` takes it.
fn gpu_faults(node: &NodeRow) -> Vec<String> {
    let mut faults: Vec<(&str, Vec<u32>)> = Vec::new();
    for gpu in node
        .gpus
        .iter()
        .filter(|gpu| !gpu.fault.is_empty() || !gpu.present)
    {
        let fault = if gpu.present {
            gpu.fault.as_str()
        } else {
            "missing"
        };
        match faults.iter_mut().find(|(text, _)| *text == fault) {
            Some((_, indices)) => indices.push(gpu.index),
            None => faults.push((fault, vec![gpu.index])),
        }
    }
    let words = faults.into_iter().map(|(fault, mut indices)| {
        indices.sort_unstable();
        indices.dedup();
        format!("gpu{} {fault}", ranges(&indices))
    });
    words.collect()
}

/// `0,2-7`.
fn ranges(numbers: &[u32]) -> String {
    let runs = numbers.chunk_by(|one, next| one + 1 == *next);
    let words = runs.map(|run| match run {
        [one] => one.to_string(),
        _ => format!("{}-{}", run[0], run[run.len() - 1]),
    });
    words.collect::<Vec<_>>().join(",")
}

fn tint(state: &str) -> Tint {
    match long_state(state).as_str() {
        "idle" | "mixed" | "allocated" => Tint::Good,
        "drained" | "draining" => Tint::Waiting,
        _ => Tint::Bad,
    }
}

fn partitioned(
    format: NodeFormat,
    fitted: bool,
    partitions: &[PartitionRow],
    nodes: &[NodeRow],
    args: &NodeArgs,
    sort: &[(NodeColumn, bool)],
) -> Outcome {
    let mut out = stdout()?;
    let times = TimeFormat::from_env();
    let format = if fitted {
        listing::fit(format, partitions, nodes)
    } else {
        format
    };
    if args.long && !args.noheader {
        writeln!(out, "{}", local_time::banner(local_time::now()))?;
    }
    let mut shown = lines(
        &format,
        partitions,
        nodes,
        args.by_node,
        sort,
        !args.noheader,
        &times,
    );
    if args.list_reasons {
        // A node of several partitions has one reason.
        let mut seen = std::collections::BTreeSet::new();
        shown.retain(|line| seen.insert(line.clone()));
    }
    for line in shown {
        writeln!(out, "{line}")?;
    }
    out.flush()?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        command().debug_assert();
    }

    #[test]
    fn states_are_named_by_their_beginnings() {
        let named = |word| state_named(word).map_err(|failure| failure.exit);
        assert_eq!(
            [
                "idle",
                "comp",
                "completing",
                "mai",
                "al",
                "dr",
                "drained",
                "plnd",
                "unk"
            ]
            .map(named),
            [
                Ok("idle"),
                Ok("completing"),
                Ok("completing"),
                Ok("maint"),
                Ok("allocated"),
                Ok("drain"),
                Ok("drained"),
                Ok("plnd"),
                Ok("unk")
            ]
        );
        assert_eq!(named("nosuch"), Err(gcli::failure::USAGE));
    }

    #[test]
    fn what_is_wrong_with_several_gpus_alike_is_said_once() {
        let gpu = |index: u32, fault: &str| gwire::api::GpuRow {
            slot: 9,
            index,
            fault: fault.to_owned(),
            present: fault != "gone",
            ..Default::default()
        };
        let gpus = vec![
            gpu(0, "no driver"),
            gpu(1, "hot: 90 C"),
            gpu(2, "no driver"),
            gpu(3, "no driver"),
            gpu(3, "no driver"),
            gpu(4, ""),
            gpu(5, "gone"),
        ];
        let node = NodeRow {
            gpus,
            ..NodeRow::default()
        };
        assert_eq!(
            gpu_faults(&node),
            ["gpu0,2-3 no driver", "gpu1 hot: 90 C", "gpu5 missing"]
        );
    }
}
