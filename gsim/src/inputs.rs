//! What the programs of gsim and gsim-lab take: the options for a trace, a cluster and a policy, and how these are read.
//! Opens no file itself: the program gives a function that reads one.

use crate::experiment::ClusterChoice;
use crate::gzip;
use crate::hardware::{ClusterSizing, Hardware, LOAD, is_node_csv};
use crate::policy_file::{NAMED, PolicyFile};
use crate::trace::{MAX_TEXT_BYTES, NoLimit, Trace};
use crate::trace_run::Runtime;
use clap::{Args, ValueEnum};
use std::path::{Path, PathBuf};

/// Longest of --no-limit, seconds: ten years.
const MAX_LIMIT_SECS: u32 = 3660 * 86_400;

/// Reads the bytes of a file; an error does not name the file.
pub type ReadFile = fn(&Path) -> Result<Vec<u8>, String>;

#[derive(Args)]
pub struct TraceArgs {
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
pub struct ClusterArgs {
    #[command(flatten)]
    pub jobs: TraceArgs,
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
pub struct LimitArgs {
    /// What the scheduler believes of how long a job runs, whatever the policy file says
    #[arg(long, value_enum)]
    runtime: Option<RuntimeWord>,
    /// End runs at their time limit; otherwise they run as long as they did
    #[arg(long)]
    kill_at_limit: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum RuntimeWord {
    Limit,
    Actual,
}

impl TraceArgs {
    /// Path of the trace.
    pub fn path(&self) -> &Path {
        &self.trace
    }

    /// # Errors
    /// The file cannot be read, or is no trace.
    pub fn read(&self, file: ReadFile) -> Result<Trace, String> {
        let mut trace = read_trace(&self.trace, file)?;
        if let Some(rows) = self.rows {
            trace.jobs.truncate(rows as usize);
        }
        if let Some(by) = self.no_limit {
            trace.limit(by);
        }
        Ok(trace)
    }
}

impl ClusterArgs {
    /// The cluster on which the trace is run.
    ///
    /// # Errors
    /// The file of the cluster cannot be used, or the load is out of range.
    pub fn read(&self, trace: &Trace, file: ReadFile) -> Result<ClusterChoice, String> {
        if !(0.01..=10.0).contains(&self.load) {
            return Err(format!("--load {}: 0.01 to 10 is allowed", self.load));
        }
        let mut sizing = ClusterSizing {
            load: self.load,
            ..ClusterSizing::of(trace)
        };
        sizing.gpus_per_node = self.gpus_per_node;
        sizing.cpus_per_node = self.cpus_per_node;
        let jobs: Vec<_> = trace.jobs.iter().collect();
        let Some(path) = &self.cluster else {
            return Ok(match self.nodes {
                Some(count) => ClusterChoice::Each(Hardware::uniform_for(&jobs, &sizing, count)),
                None => ClusterChoice::Sized(sizing),
            });
        };
        let text = read_text(path, file)?;
        let hardware = match is_node_csv(&text) {
            true => Hardware::from_csv(&text).map_err(|errors| in_file(path, &errors)),
            false => Hardware::from_toml(
                &path.display().to_string(),
                &text,
                &Hardware::unknown_shape(&jobs, &sizing),
            ),
        };
        hardware.map(ClusterChoice::Given)
    }
}

impl LimitArgs {
    /// A policy by its name, or from its file, with these options.
    ///
    /// # Errors
    /// The file cannot be used.
    pub fn policy(&self, policy: &str, file: ReadFile) -> Result<PolicyFile, String> {
        let mut read = read_policy(policy, file)?;
        if let Some(runtime) = self.runtime {
            read.settings.runtime = match runtime {
                RuntimeWord::Limit => Runtime::Limit,
                RuntimeWord::Actual => Runtime::Actual,
            };
        }
        read.settings.kill_at_limit |= self.kill_at_limit;
        Ok(read)
    }
}

/// Reads a trace.
///
/// # Errors
/// The file cannot be read, or is no trace.
pub fn read_trace(path: &Path, file: ReadFile) -> Result<Trace, String> {
    Trace::parse(&read_text(path, file)?).map_err(|errors| in_file(path, &errors))
}

/// A policy by its name, or from its file.
///
/// # Errors
/// The file cannot be used.
pub fn read_policy(policy: &str, file: ReadFile) -> Result<PolicyFile, String> {
    if let Some(named) = PolicyFile::named(policy) {
        return Ok(named);
    }
    let text = read_text(Path::new(policy), file).map_err(|error| {
        let names: Vec<&str> = NAMED.iter().map(|(name, _)| *name).collect();
        format!(
            "--policy: {error}. Without a file there are: {}.",
            names.join(", ")
        )
    })?;
    PolicyFile::parse(policy, &text)
}

/// A text file, unpacked if it is a gzip; each error names the file.
///
/// # Errors
/// The file cannot be read, is a damaged gzip, or no UTF-8 text.
pub fn read_text(path: &Path, file: ReadFile) -> Result<String, String> {
    let named = |error: String| format!("{}: {error}", path.display());
    let data = file(path)
        .and_then(|data| gzip::unpacked(data, MAX_TEXT_BYTES))
        .map_err(named)?;
    String::from_utf8(data).map_err(|error| {
        let line = error.as_bytes()[..error.utf8_error().valid_up_to()]
            .iter()
            .filter(|b| **b == b'\n')
            .count()
            + 1;
        named(format!("line {line} is no UTF-8 text"))
    })
}

/// Mistakes with the name of the file before each line of them.
pub fn in_file(path: &Path, error: &impl ToString) -> String {
    let name = path.display();
    error
        .to_string()
        .lines()
        .map(|line| format!("{name}: {line}"))
        .collect::<Vec<_>>()
        .join("\n")
}

fn no_limit(text: &str) -> Result<NoLimit, String> {
    match text.parse() {
        Ok(secs @ 1..=MAX_LIMIT_SECS) => Ok(NoLimit::Secs(secs)),
        _ if text == "truth" => Ok(NoLimit::Truth),
        _ => Err(format!("1 to {MAX_LIMIT_SECS} seconds, or the word truth")),
    }
}
