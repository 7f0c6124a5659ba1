//! gpud, the node daemon: dials the controller, is told what should run here, and makes it so. Survives its own death:
//! supervisors keep the jobs, the spool keeps the record. See README.md for the life of a run on a node.

mod clock;
mod config;
mod controller;
mod daemon;
mod gpu;
mod hollow;
mod hook;
mod input;
mod inventory;
mod own_limits;
mod run;
mod site;
mod spool;

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand, ValueEnum};
use clock::wall_clock;
use config::Config;
use controller::identity::{Identity, JoinOptions};
use controller::link::Dial;
use controller::{forward, identity, link};
use daemon::Daemon;
use gmodel::node::Role;
use gpu::check_book::GpuChecks;
use gpu::job_files::JobFiles;
use gpu::{catalogue, health, order, share, table, watch, watch_thread};
use hollow::HollowOptions;
use input::DaemonInput;
use run::{fence_audit, login, output_keeper, stand_by};
use site::Site;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, mpsc};

/// How often the room in the spool is looked at.
const SHORTAGE_EVERY: Duration = Duration::from_secs(10);

#[derive(Parser)]
#[command(name = "gpud", version, about = "The node daemon of gpupool", long_about = None)]
struct Options {
    #[command(subcommand)]
    command: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Run the daemon. Role and name are the certificate's
    Run {
        #[arg(long, value_name = "FILE", default_value = config::DEFAULT_FILE)]
        config: PathBuf,
        /// Refuse to start with a certificate for another role
        #[arg(long)]
        role: Option<RoleWord>,
        /// Play N nodes that speak the real protocol and only pretend to run, for scale tests
        #[arg(long, value_name = "N", conflicts_with = "role")]
        hollow: Option<u32>,
        /// Their state directories are STATE_DIR/PREFIX1 and on
        #[arg(long, value_name = "PREFIX", default_value = "h", requires = "hollow")]
        hollow_prefix: String,
        /// One-time tokens, one a line, for those that have not joined yet
        #[arg(long, value_name = "FILE", requires = "hollow")]
        hollow_tokens: Option<PathBuf>,
        /// What each pretends to have, as h100:8
        #[arg(long, value_name = "TYPE:COUNT", requires = "hollow")]
        hollow_gpus: Option<String>,
    },
    /// Join this machine to a cluster with a one-time token from `gadm token node`
    Join {
        /// Where gpuctld listens for nodes
        #[arg(long, value_name = "HOST:PORT")]
        controller: String,
        #[arg(long)]
        token: String,
        /// The node's name, where the token carries none [default: this host's name]
        #[arg(long)]
        name: Option<String>,
        #[arg(long, value_name = "DIR", default_value = config::DEFAULT_STATE_DIR)]
        state_dir: PathBuf,
    },
    /// Get a new certificate now; the daemon does so by itself when two thirds of the old one's life are over
    Renew {
        #[arg(long, value_name = "FILE", default_value = config::DEFAULT_FILE)]
        config: PathBuf,
    },
    /// GPUs of this node: what is known of their health, and an administrator's word on one
    Gpu {
        #[command(subcommand)]
        order: GpuOrder,
        #[arg(long, value_name = "FILE", default_value = config::DEFAULT_FILE, global = true)]
        config: PathBuf,
    },
    /// Read the configuration, say what is wrong with it, and end
    Check {
        #[arg(long, value_name = "FILE", default_value = config::DEFAULT_FILE)]
        config: PathBuf,
    },
}

#[derive(Subcommand)]
enum GpuOrder {
    /// Each GPU that was seen here, what keeps it out of service, and the signs that stand
    List,
    /// Take one GPU out of service, until it is returned
    Quarantine {
        /// UUID, its beginning, or the driver's index
        gpu: String,
        #[arg(long)]
        reason: String,
    },
    /// Put one GPU back into service: what it showed is forgotten, and it has to answer well
    Return {
        /// UUID, its beginning, or the driver's index
        gpu: String,
    },
}

#[derive(Clone, Copy, ValueEnum)]
enum RoleWord {
    Compute,
    Login,
}

fn main() -> ExitCode {
    let options = Options::parse();
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_target(false)
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("GPUD_LOG")
                .unwrap_or_else(|_| "info".into()),
        )
        .init();
    // One thread for all conversations of a node: between two each word would wake the other. What blocks has its own.
    let workers = if matches!(
        options.command,
        Action::Run {
            hollow: Some(_),
            ..
        }
    ) {
        2
    } else {
        1
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers)
        .enable_all()
        .build();
    let outcome = match runtime {
        Ok(runtime) => {
            let outcome = runtime.block_on(carry_out(options.command));
            // A thread may hang in NVML or on a dead file system: it must not keep the process.
            runtime.shutdown_timeout(Duration::from_millis(200));
            outcome
        }
        Err(e) => Err(e.into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            let text = format!("{e:#}");
            eprintln!(
                "{}{text}",
                if text.starts_with("gpud: ") {
                    ""
                } else {
                    "gpud: "
                }
            );
            ExitCode::FAILURE
        }
    }
}

async fn carry_out(action: Action) -> Result<()> {
    match action {
        Action::Run {
            config,
            hollow: Some(count),
            hollow_prefix,
            hollow_tokens,
            hollow_gpus,
            ..
        } => {
            let options = HollowOptions {
                count,
                prefix: hollow_prefix,
                tokens: hollow_tokens,
                gpus: hollow_gpus,
            };
            own_limits::raise_open_files();
            play_until_told(Config::load(&config)?, options).await
        }
        Action::Run { config, role, .. } => {
            let role = role.map(|word| match word {
                RoleWord::Compute => Role::Compute,
                RoleWord::Login => Role::Login,
            });
            run(Config::load(&config)?, role).await
        }
        Action::Join {
            controller,
            token,
            name,
            state_dir,
        } => {
            let name = name.map_or_else(host_name, Ok)?;
            join(JoinOptions {
                controller,
                token,
                name,
                state_dir,
            })
            .await
        }
        Action::Renew { config } => {
            let config = Config::load(&config)?;
            let identity = identity::renew(&config.controller, &config.state_dir).await?;
            eprintln!(
                "the certificate of {:?} ends at {}",
                identity.name,
                gmodel::Timestamp::from_secs(identity.not_after)
            );
            Ok(())
        }
        Action::Gpu { order, config } => order_gpu(&Config::load(&config)?, order),
        Action::Check { config } => {
            let config = Config::load(&config)?;
            catalogue::SiteCatalogue::open(config.gpu_signs.as_deref())
                .map(|_| ())
                .map_err(Into::into)
        }
    }
}

async fn join(options: JoinOptions) -> Result<()> {
    let reply = identity::join(&options).await?;
    eprintln!(
        "joined cluster {:?} as {} node {:?}",
        reply.cluster, reply.role, reply.name
    );
    Ok(())
}

fn order_gpu(config: &Config, order: GpuOrder) -> Result<()> {
    use gcore::node::gpu_health::LocalOrder;
    let (gpu, order) = match order {
        GpuOrder::List => return health::list(&config.spool_dir),
        GpuOrder::Quarantine { gpu, reason } => (gpu, LocalOrder::Quarantine(reason)),
        GpuOrder::Return { gpu } => (gpu, LocalOrder::Return),
    };
    let uuid = order::leave(&config.spool_dir, &gpu, &order)?;
    eprintln!("GPU {uuid}: gpud obeys within a second, if it runs");
    Ok(())
}

async fn play_until_told(config: Config, options: HollowOptions) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        played = hollow::play(config, options) => played,
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    }
}

/// The name until the first dot, as nodes are named in clusters.
fn host_name() -> Result<String> {
    let name = nix::unistd::gethostname().context("asking for this host's name")?;
    let name = name.to_string_lossy();
    Ok(name.split('.').next().unwrap_or(&name).to_owned())
}

async fn run(config: Config, role: Option<Role>) -> Result<()> {
    own_limits::raise_open_files();
    let (inputs, queue) = mpsc::channel(input::QUEUE);
    let sender = inputs.clone();
    let (site, daemon) = tokio::task::spawn_blocking(move || begin(config, role, sender)).await??;
    let to = Dial {
        controller: site.config.controller.clone(),
        state_dir: site.config.state_dir.clone(),
    };
    let listener = forward::listen(&site.config.run_dir)?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;

    let daemon = tokio::spawn(daemon.run(queue));
    let of_logins = Arc::clone(&site);
    let logins: forward::LoginDoor =
        Arc::new(move |peer, question| login::answer(&of_logins, peer, question));
    tokio::spawn(forward::serve(listener, to.clone(), logins));
    tokio::spawn(link::keep(to.clone(), inputs.clone()));
    tokio::spawn(identity::keep_fresh(to.controller, to.state_dir));
    tokio::spawn(output_keeper::keep(Arc::clone(&site)));
    tokio::spawn(fence_audit::keep(site, inputs.clone()));
    tokio::spawn(look_at_the_spool(inputs));
    // Without systemd there is no socket, and the error says nothing.
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);

    tokio::select! {
        ended = daemon => match ended {
            Ok(()) => bail!("the daemon's loop ended"),
            Err(e) => bail!("the daemon's loop failed: {e}"),
        },
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
    tracing::info!("ending; jobs run on under their supervisors");
    Ok(())
}

/// Everything before the first connection. Blocking.
fn begin(
    config: Config,
    role: Option<Role>,
    inputs: mpsc::Sender<DaemonInput>,
) -> Result<(Arc<Site>, Daemon)> {
    let identity = load_identity(&config, role)?;
    let site = Arc::new(open_site(config, identity)?);
    share::settle(&site);
    let daemon = Daemon::begin(Arc::clone(&site), inputs.clone())?;
    watch_thread::start(Arc::clone(&site), inputs)?;
    Ok((site, daemon))
}

/// The certificate's name and role, where they agree with the configuration and the command line.
fn load_identity(config: &Config, role: Option<Role>) -> Result<Identity> {
    let identity = Identity::load(&config.state_dir)?;
    if let Some(name) = config.name.as_ref().filter(|name| **name != identity.name) {
        bail!(
            "the configuration says name = {name:?}, the certificate is for {:?}. Join again, or drop the setting",
            identity.name
        );
    }
    if let Some(role) = role.filter(|role| *role != identity.role) {
        bail!(
            "--role {role}: the certificate is for a {} node. Join again with a token for {role}",
            identity.role
        );
    }
    if config.isolation == config::Isolation::Fence
        && !config.gstepd.exists()
        && identity.role == Role::Compute
    {
        bail!(
            "gstepd is not at {}. Install it, or name it with gstepd = \"PATH\"",
            config.gstepd.display()
        );
    }
    Ok(identity)
}

/// Opens spool, GPUs, cgroups and CPUs. A node that lacks isolation is unfit, which is no error.
fn open_site(config: Config, identity: Identity) -> Result<Site> {
    let spool = spool::Spool::open(&config.spool_dir, wall_clock())?;
    std::fs::create_dir_all(&config.run_dir)
        .with_context(|| format!("making {}", config.run_dir.display()))?;
    let gpus = Arc::new(table::GpuTable::default());
    let is_compute = identity.role == Role::Compute;
    let has_gpus = is_compute && config.gpus == config::GpuDiscovery::Auto;
    let gpu_watch = has_gpus
        .then(|| watch::GpuWatch::open(&config, &spool, &gpus))
        .transpose()?;
    let (cgroups, no_isolation) = match is_compute {
        true => site::open_isolation(&config),
        false => (None, String::new()),
    };
    let (cpus, no_cpus) = site::open_cpus(&config, cgroups.as_ref());
    let unfit = [no_isolation, no_cpus]
        .into_iter()
        .find(|text| !text.is_empty())
        .unwrap_or_default();
    if !unfit.is_empty() {
        tracing::error!("this node takes no work: {unfit}");
    }
    let stand_by = stand_by::StandBy::new(config.gstepd.clone(), spool.runs_dir());
    if is_compute {
        stand_by.prepare();
    }
    let job_files = JobFiles::new(&config);
    let name_resolves = Arc::new(OnceLock::new());
    if is_compute {
        site::look_up_name(identity.name.clone(), name_resolves.clone());
    }
    Ok(Site {
        name: identity.name,
        role: identity.role,
        short_scripts_in_marks_dir: site::holds_programs(&config.run_dir),
        config,
        spool,
        cgroups,
        cpus,
        gpus,
        gpu_watch,
        job_files,
        left_shares: Mutex::default(),
        checks: GpuChecks::default(),
        scrub_tries: Mutex::default(),
        pulls: Mutex::default(),
        hung: Mutex::default(),
        outputs: Notify::new(),
        stand_by,
        unfit,
        address: OnceLock::new(),
        name_resolves,
    })
}

async fn look_at_the_spool(inputs: mpsc::Sender<DaemonInput>) {
    while inputs.send(DaemonInput::InventoryChanged).await.is_ok() {
        tokio::time::sleep(SHORTAGE_EVERY).await;
    }
}
