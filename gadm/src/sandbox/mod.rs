//! `gadm sandbox`: a whole cluster on this machine, of real daemons and simulated GPUs.

use clap::{ArgMatches, Command};
use std::process::ExitCode;

/// The subcommand as `gadm` shows it.
pub fn command() -> Command {
    Command::new("sandbox").about("A whole cluster on this machine, with simulated GPUs").subcommand_required(true)
}

/// Runs what was asked for.
///
/// # Errors
/// What stood against it; `gadm` prints it and exits with 1.
pub fn run(_matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    anyhow::bail!("this build has no sandbox")
}
