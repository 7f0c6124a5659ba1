//! `gadm sandbox`: a whole cluster on this machine, of real daemons and simulated GPUs.
//!
//! Everything a sandbox makes (processes, cgroups, devices, sockets) carries the eight hex digits of its
//! directory, and `down` removes only those.

mod daemon;
mod down;
mod layout;
mod up;

use layout::Sandbox;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  eval $(gadm sandbox up --dir /tmp/pool --nodes 2 --gpus h100:8)
  gadm sandbox kill gpuctld; gadm sandbox start gpuctld
  gadm sandbox fault node1 gpu3 xid 79
  gadm sandbox down";

/// `gadm sandbox`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SandboxArgs {
    #[command(subcommand)]
    act: SandboxAct,
}

#[derive(clap::Subcommand)]
enum SandboxAct {
    /// Start a cluster and leave it running; prints the line that points commands at it
    Up(up::UpArgs),
    /// Send SIGKILL to a daemon
    Kill(DaemonArgs),
    /// Start a daemon again
    Start(DaemonArgs),
    /// Break a simulated GPU: xid 79, lost, missing, hang, ecc 1, clear
    Fault {
        #[arg(value_name = "NODE")]
        node: String,
        /// gpu0, gpu1, ... or driver
        #[arg(value_name = "GPU")]
        gpu: String,
        /// As `nvml-sim fault` takes it
        #[arg(value_name = "FAULT", required = true, num_args = 1..)]
        fault: Vec<String>,
        #[command(flatten)]
        place: PlaceArgs,
    },
    /// What is running of it
    Status(PlaceArgs),
    /// End it and remove everything it made
    Down {
        #[command(flatten)]
        place: PlaceArgs,
        /// Keep database, logs and spools in DIR
        #[arg(long)]
        keep: bool,
    },
}

#[derive(clap::Args)]
struct PlaceArgs {
    /// Directory of the sandbox; else that of GPUPOOL_CONFIG
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

impl PlaceArgs {
    fn find(&self) -> anyhow::Result<Sandbox> {
        Sandbox::find(self.dir.as_deref())
    }
}

#[derive(clap::Args)]
struct DaemonArgs {
    /// gpuctld, or a node: node1
    #[arg(value_name = "DAEMON")]
    daemon: String,
    #[command(flatten)]
    place: PlaceArgs,
}

/// The controller's configuration of the sandbox that GPUPOOL_CONFIG points at, if it points at one.
pub(crate) fn controller_config() -> Option<PathBuf> {
    let sandbox = Sandbox::find(None).ok()?;
    Some(sandbox.home("gpuctld").join("gpuctld.toml"))
}

/// Carries it out.
///
/// # Errors
/// What stood against it.
pub(crate) fn run(args: SandboxArgs) -> anyhow::Result<()> {
    match args.act {
        SandboxAct::Up(args) => up::up(&args),
        SandboxAct::Kill(args) => daemon::kill(&args.place.find()?, &args.daemon),
        SandboxAct::Start(args) => daemon::start(&args.place.find()?, &args.daemon),
        SandboxAct::Fault {
            node,
            gpu,
            fault,
            place,
        } => daemon::fault(&place.find()?, &node, &gpu, &fault),
        SandboxAct::Status(place) => daemon::status(&place.find()?),
        SandboxAct::Down { place, keep } => down::down(&place.find()?, keep),
    }
}
