//! `gsim run` and `gsim compare`: a trace under one policy, or under several side by side.

use crate::files::{clock, in_file, make_dir, read_text, write_text};
use clap::{Args, ValueEnum};
use gsim::experiment::{ClusterChoice, Experiment};
use gsim::hardware::{ClusterSizing, Hardware, LOAD, is_node_csv};
use gsim::measures::{Measures, table};
use gsim::plot::{Series, over_time, waits_by_size};
use gsim::policy_file::{NAMED, PolicyFile};
use gsim::trace::{NoLimit, Trace};
use gsim::trace_run::Runtime;
use std::path::{Path, PathBuf};

/// Longest of --no-limit, seconds: ten years.
const MAX_LIMIT_SECS: u32 = 3660 * 86_400;

#[derive(Args)]
pub struct Jobs {
    /// Jobs as CSV, plain or gzip (columns: job_id,user,account,submit_s,run_s,time_limit_s,nodes,gpus,gpu_type,cpus,
    /// mem_mb,state,partition,qos,wait_s; submit_s and run_s are needed)
    #[arg(long, value_name = "FILE")]
    trace: PathBuf,
    /// Only the first so many rows of the trace
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rows: Option<u32>,
    /// The time limit of jobs that the trace gives none: seconds, or how long each runs, which no real scheduler
    /// knows [default: what the controller gives such a job, its partition's or a day]
    #[arg(long, value_name = "SECONDS|truth", value_parser = no_limit)]
    no_limit: Option<NoLimit>,
}

#[derive(Args)]
pub struct Where {
    #[command(flatten)]
    jobs: Jobs,
    /// Nodes: a CSV with the columns node,cpus,mem_mb,gpus,gpu_type, or TOML with [[node]] and [partition.NAME] tables.
    /// Without it the cluster is sized to --load
    #[arg(long, value_name = "FILE")]
    cluster: Option<PathBuf>,
    /// So many equal nodes instead of a file
    #[arg(long, value_name = "N", conflicts_with = "cluster", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    nodes: Option<u32>,
    /// GPUs of each node that no file describes [default: 8, or more where a job needs them]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1024))]
    gpus_per_node: Option<u32>,
    /// CPUs of each node that no file describes [default: as many as the jobs keep busy]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    cpus_per_node: Option<u32>,
    /// Part of the time that a sized cluster would be busy
    #[arg(long, value_name = "PART", default_value_t = LOAD, conflicts_with_all = ["cluster", "nodes"])]
    load: f64,
}

#[derive(Args)]
pub struct Limits {
    /// What the scheduler believes of how long a job runs, whatever the policy file says
    #[arg(long, value_enum)]
    runtime: Option<RuntimeWord>,
    /// End runs at their time limit; otherwise they run as long as they did
    #[arg(long)]
    kill_at_limit: bool,
}

#[derive(Args)]
pub struct How {
    #[command(flatten)]
    limits: Limits,
    /// Every account on a cluster of its own, as per_account_clusters in a policy file
    #[arg(long)]
    per_account_clusters: bool,
    /// One JSON document as the last line
    #[arg(long)]
    json: bool,
    /// Plots as SVG into this directory: use over time, waits by size
    #[arg(long, value_name = "DIR")]
    plots: Option<PathBuf>,
}

impl Where {
    pub fn jobs(&self) -> &Jobs {
        &self.jobs
    }
}

impl Jobs {
    pub fn trace(&self) -> &Path {
        &self.trace
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum RuntimeWord {
    Limit,
    Actual,
}

fn no_limit(text: &str) -> Result<NoLimit, String> {
    match text.parse() {
        Ok(secs @ 1..=MAX_LIMIT_SECS) => Ok(NoLimit::Secs(secs)),
        _ if text == "truth" => Ok(NoLimit::Truth),
        _ => Err(format!("1 to {MAX_LIMIT_SECS} seconds, or the word truth")),
    }
}

/// `gsim run`.
pub fn run(
    place: &Where,
    policy: Option<&str>,
    starts: Option<&Path>,
    how: &How,
) -> Result<(), String> {
    let trace = read_trace(&place.jobs)?;
    let policies = [policy_for(policy.unwrap_or("default"), how)?];
    let done = experiments(&trace, place, &policies)?;
    if let Some(path) = starts {
        write_text(path, &done[0].starts_csv())?;
    }
    print(place, &policies, &done, how, "run")
}

/// `gsim compare`.
pub fn compare(
    place: &Where,
    policies: &[String],
    starts: Option<&Path>,
    how: &How,
) -> Result<(), String> {
    let trace = read_trace(&place.jobs)?;
    let mut read = policies
        .iter()
        .map(|policy| policy_for(policy, how))
        .collect::<Result<Vec<_>, _>>()?;
    distinct(&mut read);
    let done = experiments(&trace, place, &read)?;
    if let Some(dir) = starts {
        make_dir(dir)?;
        for one in &done {
            write_text(
                &dir.join(format!("{}.csv", one.measures.policy)),
                &one.starts_csv(),
            )?;
        }
    }
    print(place, &read, &done, how, "compare")
}

/// Two files of one name in two directories stay apart.
fn distinct(policies: &mut [PolicyFile]) {
    for at in 1..policies.len() {
        let (before, rest) = policies.split_at_mut(at);
        if before.iter().any(|policy| policy.name == rest[0].name) {
            rest[0].name = format!("{}-{}", rest[0].name, at + 1);
        }
    }
}

pub fn read_trace(jobs: &Jobs) -> Result<Trace, String> {
    let text = read_text(&jobs.trace)?;
    let mut trace = Trace::parse(&text).map_err(|errors| in_file(&jobs.trace, &errors))?;
    if !trace.passed_over.is_empty() {
        note!(
            "gsim: {}: columns passed over: {}",
            jobs.trace.display(),
            trace.passed_over.join(", ")
        );
    }
    if let Some(rows) = jobs.rows {
        trace.jobs.truncate(rows as usize);
    }
    if let Some(by) = jobs.no_limit {
        trace.limit(by);
    }
    Ok(trace)
}

/// A policy by its name, or from its file.
pub fn read_policy(policy: &str) -> Result<PolicyFile, String> {
    if let Some(named) = PolicyFile::named(policy) {
        return Ok(named);
    }
    let path = Path::new(policy);
    let text = read_text(path).map_err(|error| {
        let names: Vec<&str> = NAMED.iter().map(|(name, _)| *name).collect();
        format!(
            "--policy: {error}. Without a file there are: {}.",
            names.join(", ")
        )
    })?;
    PolicyFile::parse(policy, &text)
}

pub fn policy_with(policy: &str, limits: &Limits) -> Result<PolicyFile, String> {
    let mut read = read_policy(policy)?;
    if let Some(runtime) = limits.runtime {
        read.settings.runtime = match runtime {
            RuntimeWord::Limit => Runtime::Limit,
            RuntimeWord::Actual => Runtime::Actual,
        };
    }
    read.settings.kill_at_limit |= limits.kill_at_limit;
    Ok(read)
}

fn policy_for(policy: &str, how: &How) -> Result<PolicyFile, String> {
    let mut read = policy_with(policy, &how.limits)?;
    read.per_account_clusters |= how.per_account_clusters;
    Ok(read)
}

pub fn read_place(place: &Where, trace: &Trace) -> Result<ClusterChoice, String> {
    if !(0.01..=10.0).contains(&place.load) {
        return Err(format!("--load {}: 0.01 to 10 is allowed", place.load));
    }
    let mut wish = ClusterSizing {
        load: place.load,
        ..ClusterSizing::of(trace)
    };
    wish.gpus_per_node = place.gpus_per_node;
    wish.cpus_per_node = place.cpus_per_node;
    let jobs: Vec<_> = trace.jobs.iter().collect();
    let Some(path) = &place.cluster else {
        return Ok(match place.nodes {
            Some(count) => ClusterChoice::Each(Hardware::uniform_for(&jobs, &wish, count)),
            None => ClusterChoice::Sized(wish),
        });
    };
    let text = read_text(path)?;
    let hardware = match is_node_csv(&text) {
        true => Hardware::from_csv(&text).map_err(|errors| in_file(path, &errors)),
        false => Hardware::from_toml(
            &path.display().to_string(),
            &text,
            &Hardware::unknown_shape(&jobs, &wish),
        ),
    };
    hardware.map(ClusterChoice::Given)
}

fn experiments<'a>(
    trace: &'a Trace,
    place: &Where,
    policies: &[PolicyFile],
) -> Result<Vec<Experiment<'a>>, String> {
    let place = read_place(place, trace)?;
    let mut clock = clock();
    policies
        .iter()
        .map(|policy| Experiment::run(trace, &place, policy, &mut clock))
        .collect()
}

fn print(
    place: &Where,
    policies: &[PolicyFile],
    done: &[Experiment],
    how: &How,
    what: &str,
) -> Result<(), String> {
    let columns: Vec<Measures> = done.iter().map(|one| one.measures.clone()).collect();
    say!("trace    {}", place.jobs.trace.display());
    say!("cluster  {}", columns[0].cluster);
    policies
        .iter()
        .for_each(|policy| say!("policy   {}", policy.describe()));
    let mut notes: Vec<&String> = Vec::new();
    columns.iter().flat_map(|m| &m.notes).for_each(|note| {
        if !notes.contains(&note) {
            notes.push(note)
        }
    });
    notes.iter().for_each(|note| say!("note     {note}"));
    say!("\n{}", table(&columns));
    for m in &columns {
        m.refusals
            .iter()
            .for_each(|(text, count)| say!("{}: {count} jobs not run: {text}", m.policy));
    }
    say!(
        "fairness: Jain's index over the mean bounded slowdown (tau 10 s) of each account; 1 is equal for all"
    );
    say!("fragmentation: free GPUs on nodes partly in use, of all free GPUs, over time");
    if let Some(dir) = &how.plots {
        plots(dir, done, &columns)?;
    }
    if how.json {
        let document = serde_json::json!({
            "schema": 1,
            "command": what,
            "trace": place.jobs.trace.display().to_string(),
            "results": columns,
        });
        say!("{document}");
    }
    Ok(())
}

fn plots(dir: &Path, done: &[Experiment], columns: &[Measures]) -> Result<(), String> {
    make_dir(dir)?;
    for one in done {
        for part in &one.parts {
            let out = &part.outcome;
            let has_gpus = part.hardware.gpus() > 0;
            let (unit, most) = if has_gpus {
                ("GPUs", part.hardware.gpus())
            } else {
                ("CPUs", part.hardware.cpus())
            };
            let value = |s: &gsim::ledger::Sample| {
                if has_gpus {
                    s.gpu_milli as f64 / 1000.0
                } else {
                    s.cpus as f64
                }
            };
            let steps = out
                .ledger
                .samples
                .iter()
                .map(|s| (s.at, value(s)))
                .collect();
            let used = Series {
                name: "in use".into(),
                steps,
            };
            let waiting: Vec<_> = out
                .ledger
                .samples
                .iter()
                .map(|s| (s.at, s.pending as f64))
                .collect();
            let longest = waiting.iter().map(|(_, count)| *count).fold(1.0, f64::max);
            let account = part
                .account
                .as_ref()
                .map_or(String::new(), |account| format!("-{account}"));
            let name =
                |what: &str| dir.join(format!("{what}-{}{account}.svg", one.measures.policy));
            let title = format!("{}{account}: {unit} in use, of {most}", one.measures.policy);
            let svg = over_time(&title, unit, out.begin_ms, out.end_ms, most as f64, &[used]);
            write_text(&name("use"), &svg)?;
            let title = format!("{}{account}: jobs that wait", one.measures.policy);
            let waiting = Series {
                name: "waiting".into(),
                steps: waiting,
            };
            write_text(
                &name("queue"),
                &over_time(&title, "", out.begin_ms, out.end_ms, longest, &[waiting]),
            )?;
        }
    }
    write_text(&dir.join("waits-by-size.svg"), &waits_by_size(columns))?;
    say!("plots    {}", dir.display());
    Ok(())
}
