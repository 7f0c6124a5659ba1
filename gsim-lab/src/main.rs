//! `gsim-lab`: experiments with the scheduler on gsim's clusters. Not part of the default build.
//!
//! Exit 0 when all went well, 1 when a file could not be used, 2 for wrong usage.

#[macro_use]
#[path = "../../gsim/src/bin/gsim/out.rs"]
mod out;

mod command;
#[path = "../../gsim/src/bin/gsim/files.rs"]
mod files;
mod frag;
mod plot;
mod reclaim;
mod slices;
mod start_intervals;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[derive(Parser)]
#[command(
    name = "gsim-lab",
    version,
    about = "Experiments with the scheduler on simulated clusters"
)]
struct Cli {
    #[command(subcommand)]
    experiment: Experiment,
}

/// A run makes and drops millions of small records: with this it takes a tenth less time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Subcommand)]
enum Experiment {
    /// Run a trace and say how often forecast starts would have been right, and how wide their intervals are
    Forecast(command::forecast::ForecastArgs),
    /// Fill nodes with pods in random orders: how much of the GPUs can be given out
    Frag(command::frag::FragArgs),
    /// Run a trace and plot use over time, the queue, and waits by size
    Plots(command::plots::PlotArgs),
    /// Let an account take its GPUs back every two hours: GPU-hours lost by gsched's choice of victims, and by other rules
    Reclaim(command::reclaim::ReclaimArgs),
    /// Cut GPUs by MIG as the queue needs it, beside cuts that never change
    Slices(command::slices::SlicesArgs),
}

fn main() -> ExitCode {
    let result = match Cli::parse().experiment {
        Experiment::Forecast(args) => command::forecast::forecast(&args),
        Experiment::Frag(args) => command::frag::frag(&args),
        Experiment::Plots(args) => command::plots::plots(&args),
        Experiment::Reclaim(args) => command::reclaim::reclaim(&args),
        Experiment::Slices(args) => command::slices::slices(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            for line in error.lines() {
                note!("gsim-lab: {line}");
            }
            ExitCode::FAILURE
        }
    }
}
