//! `gsim-lab slices`: cuts by MIG that follow the queue, beside cuts that never change.

use crate::files::read_file;
use crate::slices::compare;
use clap::Args;
use gsim::inputs::read_trace;
use std::path::PathBuf;

#[derive(Args)]
pub struct SlicesArgs {
    /// CSV of jobs; those of at most one GPU are taken
    #[arg(long, value_name = "FILE")]
    trace: PathBuf,
    /// Nodes of eight GPUs
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    nodes: u32,
    /// Jobs, from a place of the trace that the seed chooses
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    jobs: u32,
    /// What they ask for, in percent of all GPUs
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', default_values_t = [60, 80], value_parser = clap::value_parser!(u32).range(1..=200))]
    load: Vec<u32>,
    /// Leave out jobs that ask for more than such a part of a GPU, in thousandths
    #[arg(long, value_name = "MILLI", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=1000))]
    most: u64,
    /// How many random places and times
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    /// The first of them
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// One JSON document as the last line
    #[arg(long)]
    json: bool,
}

pub fn slices(args: &SlicesArgs) -> Result<(), String> {
    let trace = read_trace(&args.trace, read_file)?;
    let mut results = Vec::new();
    say!("load  seed  waited of asked  mean wait, s   cuts  way");
    for load in &args.load {
        for seed in args.seed..args.seed + args.seeds {
            let rows = compare(
                &trace,
                args.nodes,
                args.jobs as usize,
                f64::from(*load) / 100.0,
                seed,
                args.most,
            );
            for row in &rows {
                let part =
                    100.0 * row.waited_gpu_hours / row.asked_gpu_hours.max(f64::MIN_POSITIVE);
                say!(
                    "{load:>3}%  {seed:>4}  {part:>14.2}%  {:>12.0}  {:>5}  {}",
                    row.mean_wait_secs,
                    row.cuts,
                    row.way
                );
            }
            results.push(
                serde_json::json!({ "load": f64::from(*load) / 100.0, "seed": seed, "ways": rows }),
            );
        }
    }
    say!(
        "{} jobs of at most one GPU on {} GPUs; waited: GPU-hours of demand that waited, of the GPU-hours asked for",
        args.jobs,
        args.nodes * 8
    );
    if args.json {
        say!(
            "{}",
            serde_json::json!({ "schema": 1, "command": "slices", "results": results })
        );
    }
    Ok(())
}
