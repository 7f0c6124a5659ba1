//! gpuctld, the controller: keeps the queue and the accounting database, tells nodes what to run.
//!
//! This file reads the command line and hands over; what a running controller consists of is in `daemon.rs`.

mod attendance;
mod config;
mod connection_limits;
mod core_thread;
mod daemon;
mod event_feed;
mod fence_program;
mod forecaster;
mod group_members;
mod hex;
mod histogram;
mod http;
mod idle_program;
mod kept_outputs;
mod launch_orders;
mod launch_texts;
mod listen;
mod mail;
mod mail_counts;
mod metrics;
mod node_changes;
mod node_claim;
mod node_link;
mod past_import;
mod pki;
mod planner;
mod private_file;
mod seal;
mod site_certificate;
mod site_orders;
mod site_program;
mod state_dir;
mod store;
mod trace_file;
mod user_names;
mod webhook;
mod webhook_states;

use clap::{Parser, Subcommand};
use config::Config;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const CONFIG: &str = "/etc/gpupool/gpuctld.toml";

/// The controller of a gpupool cluster.
#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the controller in the foreground, as systemd does
    Run {
        /// The controller's TOML; topology.toml, partitions.d/*.toml and policy.d/*.toml beside it are read too
        #[arg(long, default_value = CONFIG)]
        config: PathBuf,
    },
    /// Make the database and the certificates of a new cluster, once, before its first start
    New {
        /// The controller's TOML, which names the cluster and the state directory
        #[arg(long, default_value = CONFIG)]
        config: PathBuf,
    },
    /// Read the configuration and show every mistake in it, with its place
    Check {
        /// The controller's TOML
        #[arg(long, default_value = CONFIG)]
        config: PathBuf,
    },
    /// Bring jobs that are over from Slurm, as sacct -a -P -o ALL lists them; the controller must be stopped
    ImportJobs {
        /// What sacct printed, best with SLURM_TIME_FORMAT=%s; other times are those of time_zone
        #[arg(long, value_name = "FILE")]
        from: PathBuf,
        /// The first number of this cluster's own jobs, at least [default: 1,000,000 above those that are brought]
        #[arg(long, value_name = "ID")]
        first_id: Option<u64>,
        /// The controller's TOML, which names the state directory and what usage weighs
        #[arg(long, default_value = CONFIG)]
        config: PathBuf,
    },
    /// Put a backup in the place of the database; no controller may run
    Restore {
        /// The backup, as `gadm backup` wrote it
        #[arg(long)]
        from: PathBuf,
        /// The controller's TOML, which names the state directory
        #[arg(long, default_value = CONFIG)]
        config: PathBuf,
    },
}

fn main() -> ExitCode {
    let command = Arguments::parse().command;
    let path = match &command {
        Command::Run { config }
        | Command::New { config }
        | Command::Check { config }
        | Command::ImportJobs { config, .. }
        | Command::Restore { config, .. } => config,
    };
    let config = match Config::load(path) {
        Ok(config) => config,
        Err(mistakes) => {
            for mistake in &mistakes {
                eprintln!("{mistake}\n");
            }
            let plural = if mistakes.len() == 1 { "" } else { "s" };
            eprintln!(
                "gpuctld: {} mistake{plural} in {}",
                mistakes.len(),
                path.display()
            );
            return ExitCode::FAILURE;
        }
    };
    match command {
        Command::Run { config: path } => {
            raise_open_files();
            daemon::run(path, config)
        }
        Command::New { .. } => report(make(&config)),
        Command::Check { config: path } => {
            let count = config.cluster.partitions.len();
            let plural = if count == 1 { "" } else { "s" };
            let path = path.display();
            report(Ok(format!(
                "{path}: {count} partition{plural}, no mistakes"
            )))
        }
        Command::ImportJobs { from, first_id, .. } => {
            report(past_import::run(&config, &from, first_id))
        }
        Command::Restore { from, .. } => report(restore(&config, &from)),
    }
}

fn report(done: anyhow::Result<String>) -> ExitCode {
    match done {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("gpuctld: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn make(config: &Config) -> anyhow::Result<String> {
    let (dir, name) = (&config.state_dir, &config.cluster.name);
    store::Store::make(dir, name)?;
    pki::Pki::open(dir, name)?;
    Ok(format!(
        "cluster {name} is made in {}: start gpuctld",
        dir.display()
    ))
}

fn restore(config: &Config, from: &Path) -> anyhow::Result<String> {
    let dir = &config.state_dir;
    let former = store::restore(dir, from, &config.cluster.name)?;
    let former = former.map_or(String::new(), |kept| {
        format!("the former database is kept as {}\n", kept.display())
    });
    Ok(format!(
        "{} is restored into {}\n{former}nodes will report their runs before they obey; runs that the backup does not know go on",
        from.display(),
        dir.display()
    ))
}

/// Each node and client is an open file; shells and service managers often give 1,024. Best effort.
fn raise_open_files() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}
