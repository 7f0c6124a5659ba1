//! `gadm sandbox`: a whole cluster on this machine, of real daemons and simulated GPUs.
//!
//! Everything a sandbox makes (processes, cgroups, devices, sockets) carries the eight hex digits of its
//! directory, and `down` removes only those.

mod daemon;
mod down;
mod layout;
mod up;

use clap::{Arg, ArgMatches, Command, value_parser};
use layout::Sandbox;
use std::path::PathBuf;
use std::process::ExitCode;

/// The subcommand as `gadm` shows it.
pub fn command() -> Command {
    let dir = || {
        Arg::new("dir")
            .long("dir")
            .value_name("DIR")
            .value_parser(value_parser!(PathBuf))
            .help("Directory of the sandbox; else that of GPUPOOL_CONFIG")
    };
    let daemon = || {
        Arg::new("daemon")
            .required(true)
            .value_name("DAEMON")
            .help("gpuctld, or a node: node1")
    };
    Command::new("sandbox")
        .about("A whole cluster on this machine: real daemons, simulated GPUs")
        .subcommand_required(true)
        .subcommand(up_command(dir()))
        .subcommand(
            Command::new("kill")
                .about("Send SIGKILL to a daemon")
                .arg(daemon())
                .arg(dir()),
        )
        .subcommand(
            Command::new("start")
                .about("Start a daemon again")
                .arg(daemon())
                .arg(dir()),
        )
        .subcommand(
            Command::new("fault")
                .about("Break a simulated GPU: xid 79, lost, missing, hang, ecc 1, clear")
                .arg(Arg::new("node").required(true).value_name("NODE"))
                .arg(
                    Arg::new("gpu")
                        .required(true)
                        .value_name("GPU")
                        .help("gpu0, gpu1, ... or driver"),
                )
                .arg(
                    Arg::new("fault")
                        .required(true)
                        .num_args(1..)
                        .value_name("FAULT")
                        .help("As `nvml-sim fault` takes it"),
                )
                .arg(dir()),
        )
        .subcommand(
            Command::new("status")
                .about("What is running of it")
                .arg(dir()),
        )
        .subcommand(
            Command::new("down")
                .about("End it and remove everything it made")
                .arg(dir())
                .arg(
                    Arg::new("keep")
                        .long("keep")
                        .action(clap::ArgAction::SetTrue)
                        .help("Keep database, logs and spools in DIR"),
                ),
        )
        .after_help(
            "Examples:\n  \
             eval $(gadm sandbox up --dir /tmp/pool --nodes 2 --gpus h100:8)\n  \
             gadm sandbox kill gpuctld; gadm sandbox start gpuctld\n  \
             gadm sandbox fault node1 gpu3 xid 79\n  \
             gadm sandbox down",
        )
}

fn up_command(dir: Arg) -> Command {
    Command::new("up")
        .about("Start a cluster and leave it running; prints the line that points commands at it")
        .arg(dir.required(true))
        .arg(
            Arg::new("nodes")
                .long("nodes")
                .value_name("N")
                .value_parser(value_parser!(u32).range(1..=64))
                .default_value("1")
                .help("Nodes, each with its own gpud"),
        )
        .arg(
            Arg::new("gpus")
                .long("gpus")
                .value_name("TYPE:N")
                .default_value("h100:8")
                .help("GPUs of each node: h100:8, l4:4, h100:4,a100-80:4, none; or one such for each node, separated by /; real: this machine's own, for one node"),
        )
        .arg(
            Arg::new("hollow-nodes")
                .long("hollow-nodes")
                .value_name("M")
                .value_parser(value_parser!(u32).range(0..=10_000))
                .default_value("0")
                .help("Nodes more that speak the real protocol and only pretend to run, for scale tests"),
        )
        .arg(
            Arg::new("cpus")
                .long("cpus")
                .value_name("N")
                .value_parser(value_parser!(u32).range(1..=4096))
                .default_value("64")
                .help("CPUs each node declares"),
        )
        .arg(
            Arg::new("mem")
                .long("mem")
                .value_name("SIZE")
                .default_value("512G")
                .help("Memory each node declares"),
        )
}

/// The controller's configuration of the sandbox that GPUPOOL_CONFIG points at, if it points at one.
pub(crate) fn controller_config() -> Option<PathBuf> {
    let sandbox = Sandbox::find(None).ok()?;
    Some(sandbox.home("gpuctld").join("gpuctld.toml"))
}

/// Runs what was asked for.
///
/// # Errors
/// What stood against it; `gadm` prints it and exits with 1.
pub fn run(matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    let (what, args) = matches.subcommand().expect("clap asks for one");
    let given = args.get_one::<PathBuf>("dir").map(PathBuf::as_path);
    if what == "up" {
        up::up(args)?;
        return Ok(ExitCode::SUCCESS);
    }
    let sandbox = Sandbox::find(given)?;
    let text = |name: &str| args.get_one::<String>(name).expect("required").as_str();
    match what {
        "kill" => daemon::kill(&sandbox, text("daemon"))?,
        "start" => daemon::start(&sandbox, text("daemon"))?,
        "fault" => {
            let words: Vec<&str> = args
                .get_many::<String>("fault")
                .expect("required")
                .map(String::as_str)
                .collect();
            daemon::fault(&sandbox, text("node"), text("gpu"), &words)?;
        }
        "status" => daemon::status(&sandbox)?,
        _ => down::down(&sandbox, args.get_flag("keep"))?,
    }
    Ok(ExitCode::SUCCESS)
}
