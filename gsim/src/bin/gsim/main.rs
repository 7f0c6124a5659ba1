//! `gsim`: traces of real jobs under policies of your own; seeds that break a promise; measurements of the scheduler.
//!
//! Exit 0 when all went well, 1 when a file could not be used or a seed did not come to rest, 2 for wrong usage.

#[macro_use]
mod out;

mod bench_command;
mod files;
mod health_command;
mod replay_command;
mod run_command;

use bench_command::BenchArgs;
use clap::{Parser, Subcommand};
use gsim::fuzz::{Failure, run, shrink};
use gsim::inputs::ClusterArgs;
use gsim::scenario::Scenario;
use health_command::HealthArgs;
use run_command::OutputArgs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

#[derive(Parser)]
#[command(
    name = "gsim",
    version,
    about = "Simulates a whole cluster in virtual time: real traces, or faults by a seed"
)]
struct Cli {
    #[command(subcommand)]
    command: Subcommands,
}

/// A replay makes and drops millions of small records: with this it takes a tenth less time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Subcommand)]
enum Subcommands {
    /// Run a trace of jobs and print waits, use, fragmentation, losses and fairness
    Run {
        #[command(flatten)]
        place: ClusterArgs,
        /// default, fifo, sjf, easy, conservative, sjf-easy, or a TOML file with [scheduler], [simulation], [account.NAME], ...
        #[arg(long, value_name = "NAME|FILE")]
        policy: Option<String>,
        /// Every run of every job with its start, end and nodes, as CSV; more than one where it was preempted
        #[arg(long, value_name = "FILE")]
        starts: Option<PathBuf>,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Run a trace under several policies, side by side
    Compare {
        #[command(flatten)]
        place: ClusterArgs,
        /// A policy, as for `gsim run`; once for each column
        #[arg(long, value_name = "NAME|FILE", required = true)]
        policy: Vec<String>,
        /// Every run of every job with its start, end and nodes, as a CSV for each policy in this directory
        #[arg(long, value_name = "DIR")]
        starts: Option<PathBuf>,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Run many seeds; print the first that fails, cut down to what matters
    Fuzz {
        /// OutputArgs many seeds to run
        #[arg(long, default_value_t = 200)]
        seeds: u64,
        /// The first seed
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Machines in the cluster [default: 2 to 8, by the seed]
        #[arg(long)]
        nodes: Option<u16>,
        /// Print a failing scenario as it is, without cutting it down
        #[arg(long)]
        no_shrink: bool,
    },
    /// Simulate GPUs that fall ill and sensors that lie; no healthy GPU may be drained
    Health(HealthArgs),
    /// Feed a controller's own trace through core and scheduler again and compare every decision
    Replay(replay_command::ReplayArgs),
    /// Run one seed and print its acts; where it fails, everything that happens
    ReplaySeed {
        /// The seed, as fuzz names it
        seed: u64,
        /// Machines in the cluster, as fuzz was told
        #[arg(long)]
        nodes: Option<u16>,
        /// Cut the scenario down first, if it fails
        #[arg(long)]
        shrink: bool,
    },
    /// Measure the scheduler: passes over long queues, filling idle nodes, arrays, verdicts
    Bench(BenchArgs),
    /// Ten minutes of a large busy cluster with its daemons: CPU time per run
    BusyDay {
        /// Simulated node daemons
        #[arg(long, default_value_t = 5000)]
        agents: u16,
        /// Jobs that they run
        #[arg(long, default_value_t = 10_000)]
        tasks: u32,
        /// Simulated seconds
        #[arg(long, default_value_t = 600)]
        secs: i64,
    },
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Subcommands::Run {
            place,
            policy,
            starts,
            output,
        } => exit_code(run_command::run(
            &place,
            policy.as_deref(),
            starts.as_deref(),
            &output,
        )),
        Subcommands::Compare {
            place,
            policy,
            starts,
            output,
        } => exit_code(run_command::compare(
            &place,
            &policy,
            starts.as_deref(),
            &output,
        )),
        Subcommands::Fuzz {
            seeds,
            seed,
            nodes,
            no_shrink,
        } => fuzz(seed, seeds, nodes, !no_shrink),
        Subcommands::ReplaySeed {
            seed,
            nodes,
            shrink,
        } => replay_seed(seed, nodes, shrink),
        Subcommands::Health(args) => health_command::run(&args),
        Subcommands::Replay(args) => match replay_command::run(&args) {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(error) => exit_code(Err(error)),
        },
        Subcommands::Bench(args) => exit_code(bench_command::bench(&args)),
        Subcommands::BusyDay {
            agents,
            tasks,
            secs,
        } => busy_day(agents, tasks, secs),
    }
}

fn exit_code(result: Result<(), String>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error.lines().for_each(|line| note!("gsim: {line}"));
            ExitCode::FAILURE
        }
    }
}

fn fuzz(first: u64, seeds: u64, nodes: Option<u16>, cut_down: bool) -> ExitCode {
    let before = cpu_time();
    let mut total = gsim::fuzz::Summary::default();
    for seed in first..first.saturating_add(seeds) {
        // A build that aborts on panic still says which seed it was.
        std::panic::set_hook(Box::new(move |panic| note!("gsim: seed {seed}: {panic}")));
        match run(&Scenario::from_seed(seed, nodes), false) {
            Ok(one) => {
                total.happenings += one.happenings;
                total.commits += one.commits;
                total.runs_placed += one.runs_placed;
                total.jobs += one.jobs;
                total.suspensions += one.suspensions;
                total.fenced += one.fenced;
                total.returns += one.returns;
                total.unneeded += one.unneeded;
                total.simulated_secs += one.simulated_secs;
            }
            Err(failure) => {
                std::panic::set_hook(Box::new(|_| {}));
                let failure = if cut_down { shrink(failure) } else { failure };
                report(&failure, nodes);
                return ExitCode::FAILURE;
            }
        }
    }
    say!(
        "{seeds} seeds came to rest: {} jobs, {} runs, {} stood still, {} put back, {} asked in vain, {} nodes fenced, {} commits, {} happenings, {} h simulated, {:.2} s of CPU",
        total.jobs,
        total.runs_placed,
        total.suspensions,
        total.returns,
        total.unneeded,
        total.fenced,
        total.commits,
        total.happenings,
        total.simulated_secs / 3600,
        (cpu_time() - before).as_secs_f64(),
    );
    ExitCode::SUCCESS
}

fn replay_seed(seed: u64, nodes: Option<u16>, cut_down: bool) -> ExitCode {
    let scenario = Scenario::from_seed(seed, nodes);
    let mut result = run(&scenario, true);
    if cut_down {
        std::panic::set_hook(Box::new(|_| {}));
        result = result.map_err(shrink);
    }
    match result {
        Ok(summary) => {
            scenario.acts.iter().for_each(|act| say!("{act}"));
            say!("seed {seed} came to rest: {summary:?}");
            ExitCode::SUCCESS
        }
        Err(failure) => {
            failure.trace.iter().for_each(|line| say!("{line}"));
            report(&failure, nodes);
            ExitCode::FAILURE
        }
    }
}

fn report(failure: &Failure, nodes: Option<u16>) {
    let Scenario {
        seed,
        machines,
        gpus,
        acts,
        ..
    } = &failure.scenario;
    let nodes = nodes.map_or(String::new(), |nodes| format!(" --nodes {nodes}"));
    note!("gsim: seed {seed} fails: {}", failure.violation);
    note!("{machines} machines with {gpus} GPUs; the acts that matter:");
    acts.iter().for_each(|act| note!("{act}"));
    let from = failure.trace.len().saturating_sub(60);
    note!("the last of {} lines:", failure.trace.len());
    failure.trace[from..]
        .iter()
        .for_each(|line| note!("{line}"));
    note!("again, in full: gsim replay-seed {seed}{nodes} --shrink");
}

fn busy_day(agents: u16, tasks: u32, secs: i64) -> ExitCode {
    let before = cpu_time();
    match gsim::bench::busy_day(agents, tasks, secs) {
        Ok(summary) => {
            let cpu = cpu_time() - before;
            let each = cpu.as_secs_f64() * 1e6 / summary.runs_placed.max(1) as f64;
            say!(
                "{agents} agents, {secs} simulated s: {:.2} s of CPU, {} runs ({each:.0} us each), {} commits, {} happenings",
                cpu.as_secs_f64(),
                summary.runs_placed,
                summary.commits,
                summary.happenings,
            );
            ExitCode::SUCCESS
        }
        Err(violation) => {
            note!("gsim: {violation}");
            ExitCode::FAILURE
        }
    }
}

/// CPU time of this process so far, user and system, from /proc/self/stat in hundredths of a second.
#[allow(clippy::disallowed_methods)] // The library does no I/O; its program may.
fn cpu_time() -> Duration {
    let stat = std::fs::read("/proc/self/stat").unwrap_or_default();
    let text = String::from_utf8_lossy(&stat);
    let after_name = text.rsplit(')').next().unwrap_or("");
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    let ticks = |at: usize| {
        fields
            .get(at)
            .and_then(|field| field.parse::<u64>().ok())
            .unwrap_or(0)
    };
    Duration::from_millis(10 * (ticks(11) + ticks(12)))
}
