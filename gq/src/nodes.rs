//! `gnodes`: nodes, their GPUs, what holds them and what is wrong; with `-p` partitions as sinfo lists them.

use crate::node_column::{self, NodeColumn, NodeFormat, long_state};
use crate::node_filter::{NodeFilter, states, words};
use crate::partition_listing::{self as listing, lines};
use crate::partition_record;
use crate::{difference_listing, health_listing, node_record, reservation_record};
use clap::{ArgAction, CommandFactory, FromArgMatches, Parser};
use gcli::answer::{list, print_json};
use gcli::local_time::{self, TimeFormat};
use gcli::pages::ManPage;
use gcli::table::{Cell, Column, Screen, TableWriter, Tint, stdout};
use gcli::{ClusterChoice, Failure, Outcome, command_line};
use gmodel::hostlist::{self, Hostlist};
use gmodel::size::rough_size;
use gmodel::suggest::did_you_mean;
use gslurm_json::value::node::{gpus_by_type, reason};
use gwire::api::{NodeRow, PartitionRow, ReservationRow};
use gwire::client::Client;
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

/// Options of sinfo that gnodes does not have.
const ADVICE: &command_line::Advice = &[(
    &["-F", "--future"],
    "nodes come by joining; none is declared before",
)];

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
fn command() -> clap::Command {
    command_line::talking(
        NodeArgs::command().after_help(format!("{EXAMPLES}{}", node_column::help())),
    )
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

/// Columns of sinfo where gnodes has its own.
pub struct SinfoForm {
    /// Of `--long`.
    pub long: &'static str,
    /// Of `--Node --long`.
    pub by_node_long: &'static str,
    /// Prints these partitions and nodes, as `--json` asks.
    pub json: fn(&mut Client, Vec<PartitionRow>, Vec<NodeRow>) -> Outcome,
}

/// `gnodes` itself.
///
/// # Errors
/// What stood in the way, with the exit code.
pub fn main(words: impl IntoIterator<Item = OsString>) -> Outcome {
    run(words, None)
}

/// `gnodes` as sinfo.
///
/// # Errors
/// As [`main`].
pub fn sinfo(words: Vec<OsString>, form: &'static SinfoForm) -> Outcome {
    run(words, Some(form))
}

fn run(words: impl IntoIterator<Item = OsString>, sinfo: Option<&'static SinfoForm>) -> Outcome {
    let matches = command_line::parse_advising(command(), words, ADVICE)?;
    let mut args = NodeArgs::from_arg_matches(&matches).map_err(Failure::usage)?;
    if sinfo.is_some() {
        take_variables(&mut args)?;
    }
    if sinfo.is_some()
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
    let mut filter = node_filter(&args, sinfo.is_some())?;
    let format = sinfo_format(&args, sinfo)?;
    let sort = node_column::read_sort(args.sort.as_deref().unwrap_or_default());
    let sort = sort.map_err(|why| Failure::usage(format_args!("--sort: {why}")))?;
    let mut client = gcli::connect("gnodes")?;
    args.cluster.check(&mut client)?;
    filter.ask_completing(&mut client)?;
    let special = args.health || args.diff || args.reservations;
    if let Some(form) = sinfo.filter(|_| args.json && !special) {
        let mut nodes: Vec<NodeRow> = list(&mut client, "/v1/nodes")?;
        nodes.retain(|node| filter.takes(node));
        let mut partitions: Vec<PartitionRow> = list(&mut client, "/v1/partitions")?;
        if let Some(names) = &filter.partitions {
            partitions.retain(|partition| names.contains(&partition.name));
        }
        return (form.json)(&mut client, partitions, nodes);
    }
    let Some(secs) = args.iterate else {
        return show(&mut client, &args, &filter, format, &sort);
    };
    loop {
        filter.ask_completing(&mut client)?;
        writeln!(
            std::io::stdout(),
            "{}",
            local_time::banner(local_time::now())
        )?;
        show(&mut client, &args, &filter, format.clone(), &sort)?;
        writeln!(std::io::stdout())?;
        std::thread::sleep(Duration::from_secs(secs));
    }
}

/// `SINFO_PARTITION` and `SINFO_ALL`, below the options that they stand for.
fn take_variables(args: &mut NodeArgs) -> Result<(), Failure> {
    let set = |name| std::env::var(name).ok().filter(|text| !text.is_empty());
    if args.partitions.is_none() && !args.all {
        (args.partitions, args.all) = (set("SINFO_PARTITION"), set("SINFO_ALL").is_some());
    } else if !(args.partitions.is_some() && args.all) {
        return Ok(());
    }
    match args.partitions.is_some() && args.all {
        true => Err(Failure::usage(
            "Conflicting options, -p and -a: all partitions, or those that -p names",
        )),
        false => Ok(()),
    }
}

fn node_filter(args: &NodeArgs, as_sinfo: bool) -> Result<NodeFilter, Failure> {
    let hosts = |text: &str| {
        Hostlist::parse(text).map_err(|error| Failure::usage(format_args!("--nodes: {error}")))
    };
    let names = |text: &str| words(text).map(str::to_owned).collect::<Vec<_>>();
    Ok(NodeFilter {
        nodes: args.nodes.as_deref().map(hosts).transpose()?,
        states: args.states.as_deref().map(states).transpose()?,
        partitions: args
            .partitions
            .as_deref()
            .map(names)
            .filter(|names| !names.is_empty()),
        completing: Vec::new(),
        is_out: args.list_reasons,
        answers: match args.responding {
            true => Some(true),
            false => args.dead.then_some(false),
        },
        as_sinfo: as_sinfo || args.partitions.is_some(),
    })
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
    filter: &NodeFilter,
    format: Option<(NodeFormat, bool)>,
    sort: &[(NodeColumn, bool)],
) -> Outcome {
    if args.reservations {
        return reservation_table(client, !args.noheader, args.json);
    }
    if args.health {
        let names: Vec<String> = args.names.iter().chain(&args.nodes).cloned().collect();
        return health_listing::print(client, &names, !args.noheader, args.json);
    }
    if args.diff {
        return difference_listing::print(client, args.json);
    }
    if args.json {
        return json(client, args, filter);
    }
    let mut nodes: Vec<NodeRow> = list(client, "/v1/nodes")?;
    if !args.names.is_empty() {
        return in_full(&nodes, &args.names, filter);
    }
    if args.full {
        let partitions: Vec<PartitionRow> = list(client, "/v1/partitions")?;
        let mut out = stdout()?;
        for partition in partitions.iter().filter(|one| {
            filter
                .partitions
                .as_ref()
                .is_none_or(|names| names.contains(&one.name))
        }) {
            out.write_all(partition_record::text(partition, &nodes).as_bytes())?;
        }
        out.flush()?;
        return Ok(0);
    }
    nodes.retain(|node| filter.takes(node));
    match format {
        None => table(&nodes, args),
        Some((format, fitted)) => {
            let mut partitions: Vec<PartitionRow> = list(client, "/v1/partitions")?;
            if let Some(names) = &filter.partitions {
                partitions.retain(|partition| names.contains(&partition.name));
            }
            partitioned(format, fitted, &partitions, &nodes, args, sort)
        }
    }
}

/// sinfo's listing, if that is what is wanted, and whether its columns may grow.
fn sinfo_format(
    args: &NodeArgs,
    sinfo: Option<&SinfoForm>,
) -> Result<Option<(NodeFormat, bool)>, Failure> {
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
        (_, _, true, true) => sinfo.map_or(listing::BY_NODE_LONG, |form| form.by_node_long),
        (_, _, false, true) if sinfo.is_some() || args.partitions.is_some() => {
            sinfo.map_or(listing::LONG, |form| form.long)
        }
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

fn json(client: &mut Client, args: &NodeArgs, filter: &NodeFilter) -> Outcome {
    if args.partitions.is_some() && args.names.is_empty() {
        return print_json(client, "/v1/partitions");
    }
    let mut out = stdout()?;
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
        if filter.takes(&node)
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
    say_unknown(names.iter().flat_map(Hostlist::iter), &there)
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
///
/// # Errors
/// They are no host list.
pub fn named(names: &[String]) -> Result<Option<Hostlist>, Failure> {
    if names.is_empty() {
        return Ok(None);
    }
    Hostlist::parse(&names.join(","))
        .map(Some)
        .map_err(Failure::usage)
}

fn in_full(nodes: &[NodeRow], names: &[String], filter: &NodeFilter) -> Outcome {
    let times = TimeFormat::from_env();
    let wanted = named(names)?.unwrap_or_default();
    let mut out = stdout()?;
    let mut exit = 0;
    for name in wanted.iter() {
        match nodes.iter().find(|node| node.name == name) {
            Some(node) if filter.takes(node) => {
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

/// All reservations as a table, or as JSON.
fn reservation_table(client: &mut Client, heading: bool, json: bool) -> Outcome {
    if json {
        return print_json(client, "/v1/reservations");
    }
    let rows: Vec<ReservationRow> = list(client, "/v1/reservations")?;
    let nodes: Vec<NodeRow> = list(client, "/v1/nodes")?;
    let text = reservation_record::table(&rows, &nodes, &TimeFormat::from_env(), heading);
    let mut out = stdout()?;
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(0)
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
