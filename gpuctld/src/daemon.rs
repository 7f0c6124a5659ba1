//! A running controller: what is started in which order, what a signal does, and how it ends.
//!
//! Recovery is complete before a socket is bound, so no answer comes from half a state. Long-lived parts: the
//! core, planner and checkpoint threads (std), the two listeners and this signal loop (tokio). See README.md.

use crate::attendance;
use crate::config::Config;
use crate::config::LiveSettings;
use crate::connection_limits::ConnectionLimits;
use crate::core_thread::{Core, CoreHandle, CoreParts, make_room_to_start, now};
use crate::event_feed;
use crate::forecaster::{self, Forecaster};
use crate::http::{self, App};
use crate::idle_program::Warning;
use crate::listen::{self, Site};
use crate::mail;
use crate::node_changes::NodeChanges;
use crate::node_link::NodeConnections;
use crate::pki::Pki;
use crate::planner;
use crate::site_orders;
use crate::store::{self, Store, WriteError, maintenance, page_check};
use crate::trace_file::TraceFile;
use crate::user_names::UserNames;
use crate::webhook;
use anyhow::Context;
use gcore::ctl::{FenceOrder, Input};
use sd_notify::NotifyState;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::net::{TcpListener, UnixListener};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{oneshot, watch};

/// Exit status when the database cannot be used or written: systemd's unit does not restart on it.
pub const EXIT_DATABASE: u8 = 74;
/// Exit status of a bug.
const EXIT_BUG: u8 = 255;
/// Answers under way have this long when we stop; long polls are cut.
const GRACE: Duration = Duration::from_secs(3);
/// Between looks at the age of kept outputs.
const PRUNE_OUTPUTS_EVERY: Duration = Duration::from_secs(3600);
/// Threads for sockets: the work is in the core thread.
const SOCKET_THREADS: usize = 4;

/// Runs until SIGTERM or SIGINT.
pub fn run(config_path: PathBuf, config: Config) -> ExitCode {
    log_to_stderr();
    let restore = restore_command(&config_path);
    match start_and_serve(config_path, config) {
        Ok(code) => code,
        Err(e) => {
            tracing::error!("{e:#}");
            if e.downcast_ref::<store::OpenError>()
                .is_some_and(store::OpenError::asks_for_restore)
            {
                tracing::error!("to restore: {restore}");
            }
            let database = e.downcast_ref::<store::OpenError>().is_some()
                || e.downcast_ref::<WriteError>().is_some();
            if database {
                ExitCode::from(EXIT_DATABASE)
            } else {
                ExitCode::FAILURE
            }
        }
    }
}

/// The command that an administrator types.
fn restore_command(config_path: &Path) -> String {
    format!(
        "gpuctld restore --config {} --from FILE",
        config_path.display()
    )
}

fn start_and_serve(config_path: PathBuf, config: Config) -> anyhow::Result<ExitCode> {
    let config = Arc::new(config);
    let threads = Threads::start(&config)?;
    let pki = Arc::new(Pki::open(&config.state_dir, &config.cluster.name)?);
    pki.site
        .put_in_force(config.https.as_ref())
        .map_err(anyhow::Error::msg)?;
    let workers = std::thread::available_parallelism()
        .map_or(2, usize::from)
        .min(SOCKET_THREADS);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers)
        .enable_all()
        .build()?;
    let result = runtime.block_on(serve(config_path, config, pki, threads));
    runtime.shutdown_timeout(GRACE);
    result
}

/// The threads that live as long as the process, and the ways to them.
struct Threads {
    core: CoreHandle,
    node_changes: NodeChanges,
    live: LiveSettings,
    database: PathBuf,
    core_thread: JoinHandle<()>,
    /// What the core thread ended with; dropped without a word when it panicked.
    ended: oneshot::Receiver<Result<(), WriteError>>,
    planner_thread: JoinHandle<()>,
}

impl Threads {
    /// Recovers the state and starts the threads.
    fn start(config: &Config) -> anyhow::Result<Self> {
        make_room_to_start(&config.state_dir);
        let (store, state) = Store::open(
            &config.state_dir,
            &config.cluster.name,
            config.cluster.min_job_age_secs,
        )?;
        let database = store.path().to_owned();
        let node_changes = NodeChanges::default();
        let (wake, planner) = planner::channel(config.trace);
        let live = LiveSettings::of(config);
        let mut trace = config
            .trace
            .then(|| TraceFile::open(&config.state_dir))
            .transpose()
            .context("cannot trace")?;
        if let Some(trace) = &mut trace {
            trace.begin(now(), &state);
        }
        let (jobs, runs, nodes) = (
            state.jobs.len() + state.arrays.len(),
            state.runs.len(),
            state.nodes.len(),
        );
        let (core, mut own) = Core::new(CoreParts {
            state,
            store,
            node_changes: node_changes.clone(),
            planner: wake,
            min_free_bytes: live.min_free_bytes.clone(),
            trace,
        });
        own.take(vec![
            Input::Configure {
                config: Arc::new(config.cluster.clone()),
            },
            Input::Started,
        ])?;
        own.mark();
        tracing::info!(jobs, runs, nodes, database = %database.display(), "recovered");
        let (tell, ended) = oneshot::channel();
        let core_thread = std::thread::Builder::new()
            .name("core".into())
            .spawn(move || {
                let _ = tell.send(own.run());
            })?;
        let handle = core.clone();
        let planner_thread = std::thread::Builder::new()
            .name("planner".into())
            .spawn(move || planner.run(&handle))?;
        Ok(Self {
            core,
            node_changes,
            live,
            database,
            core_thread,
            ended,
            planner_thread,
        })
    }

    fn start_background(&self, forecaster: &Forecaster) -> std::io::Result<BackgroundThreads> {
        let parts = || (self.database.clone(), self.core.clone());
        let (stop_checkpoint, stopped) = mpsc::channel();
        let ((database, core), live) = (parts(), self.live.clone());
        let checkpoint = std::thread::Builder::new()
            .name("checkpoint".into())
            .spawn(move || maintenance::run(&database, &core, &live, &stopped))?;
        let stop_page_check = Arc::new(AtomicBool::new(false));
        let ((database, core), stopped) = (parts(), stop_page_check.clone());
        std::thread::Builder::new()
            .name("page-check".into())
            .spawn(move || page_check::run(&database, core.stats(), &stopped))?;
        let (stop_forecaster, stopped) = mpsc::channel();
        let ((database, core), forecaster) = (parts(), forecaster.clone());
        let forecaster = std::thread::Builder::new()
            .name("forecaster".into())
            .spawn(move || forecaster::run(&database, &core, &forecaster, &stopped))?;
        Ok(BackgroundThreads {
            checkpoint,
            forecaster,
            stops: [stop_checkpoint, stop_forecaster],
            stop_page_check,
        })
    }

    /// Waits until the core thread has written what it took, and then for the others. `ended`: it is over already.
    async fn stop(mut self, background: BackgroundThreads, ended: Option<CoreEnd>) -> CoreEnd {
        drop(background.stops);
        background.stop_page_check.store(true, Relaxed);
        let ended = match ended {
            Some(ended) => ended,
            None => {
                answers_under_way(&self.core).await;
                self.core.stop();
                (&mut self.ended).await
            }
        };
        let _ = tokio::task::spawn_blocking(move || {
            let _ = self.core_thread.join();
            let _ = self.planner_thread.join();
            let _ = background.forecaster.join();
            background.checkpoint.join()
        })
        .await;
        ended
    }
}

/// Threads beside the core's that look after the database and learn how starts turn out.
struct BackgroundThreads {
    checkpoint: JoinHandle<()>,
    forecaster: JoinHandle<()>,
    /// These threads end when their senders are dropped.
    stops: [mpsc::Sender<()>; 2],
    /// The look at every page ends by itself, and soon after this is set.
    stop_page_check: Arc<AtomicBool>,
}

async fn serve(
    config_path: PathBuf,
    config: Arc<Config>,
    pki: Arc<Pki>,
    mut threads: Threads,
) -> anyhow::Result<ExitCode> {
    let core = threads.core.clone();
    let restore = restore_command(&config_path);
    let links = NodeConnections::new(core.clone(), threads.node_changes.clone(), pki.order_seal());
    let tls = Arc::new(pki.server_config(&host_names(&config))?);
    let app = App::new(
        config_path,
        config.clone(),
        pki,
        Arc::new(links.clone()),
        threads.live.clone(),
    );
    let background = threads.start_background(app.forecaster())?;
    let (stop, stopping) = watch::channel(false);
    let tasks = start_tasks(&core, &app, &stopping);
    let router = http::router(core.clone(), app.clone());
    let pages = http::web_router(core.clone(), app.clone(), router.clone());
    let site = Site {
        core: core.clone(),
        router,
        pages,
        links,
        names: UserNames::default(),
        app: app.clone(),
        limits: ConnectionLimits::default(),
        stop: stopping,
    };
    let mut signals = Signals::catch()?; // before a stop can arrive
    let (unix, tcp, loopback) = bind(&config).await?;
    let mut listeners = vec![
        tokio::spawn(listen::serve_unix(unix, site.clone())),
        tokio::spawn(listen::serve_tls(tcp, tls, site.clone())),
    ];
    listeners.extend(loopback.map(|tcp| tokio::spawn(listen::serve_loopback(tcp, site))));
    notify(&[NotifyState::Ready]);
    tracing::info!(socket = %config.socket.display(), listen = %config.listen, "ready");

    let ended = until_told_to_stop(&mut signals, &app, &core, &mut threads.ended).await;
    notify(&[NotifyState::Stopping]);
    stop.send_replace(true);
    let _ = std::fs::remove_file(&config.socket); // gone already, or of no use: the listener is ending
    for task in listeners.into_iter().chain(tasks) {
        let _ = tokio::time::timeout(GRACE, task).await;
    }
    let ended = threads.stop(background, ended).await;
    Ok(end_of(ended, &config.state_dir, &restore))
}

/// What looks at the state from time to time until we stop.
fn start_tasks(
    core: &CoreHandle,
    app: &Arc<App>,
    stopping: &watch::Receiver<bool>,
) -> [tokio::task::JoinHandle<()>; 7] {
    let (fences, warnings) = (
        site_orders::run::<FenceOrder>(core.clone(), app.clone(), stopping.clone()),
        site_orders::run::<Warning>(core.clone(), app.clone(), stopping.clone()),
    );
    let attendance = attendance::run(core.clone(), app.attendance().clone(), stopping.clone());
    let outputs = prune_outputs(app.clone(), stopping.clone());
    let state_dir = app.config().state_dir.clone();
    let webhooks = webhook::run(
        core.clone(),
        app.clone(),
        state_dir.clone(),
        stopping.clone(),
    );
    let mail = mail::run(core.clone(), app.clone(), state_dir, stopping.clone());
    let events = event_feed::run(core.clone(), app.events.clone(), stopping.clone());
    [
        tokio::spawn(events),
        tokio::spawn(webhooks),
        tokio::spawn(mail),
        tokio::spawn(outputs),
        tokio::spawn(fences),
        tokio::spawn(warnings),
        tokio::spawn(attendance),
    ]
}

async fn prune_outputs(app: Arc<App>, mut stopping: watch::Receiver<bool>) {
    loop {
        app.prune_outputs().await;
        tokio::select! {
            _ = stopping.changed() => return,
            () = tokio::time::sleep(PRUNE_OUTPUTS_EVERY) => {}
        }
    }
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    fn catch() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }
}

/// Waits for SIGTERM or SIGINT (`None`) or the end of the core thread; SIGHUP reads the configuration again.
async fn until_told_to_stop(
    signals: &mut Signals,
    app: &Arc<App>,
    core: &CoreHandle,
    ended: &mut oneshot::Receiver<Result<(), WriteError>>,
) -> Option<CoreEnd> {
    loop {
        tokio::select! {
            _ = signals.terminate.recv() => return None,
            _ = signals.interrupt.recv() => return None,
            ended = &mut *ended => return Some(ended),
            _ = signals.hangup.recv() => match app.reload(core).await {
                Ok(notes) => tracing::info!("configuration read again. {}", notes.iter().map(|note| note.trim_end_matches('.')).collect::<Vec<_>>().join("; ")),
                Err(e) => tracing::error!("{}", e.text),
            },
        }
    }
}

type CoreEnd = Result<Result<(), WriteError>, oneshot::error::RecvError>;

/// What the process ends with, said in words.
fn end_of(ended: CoreEnd, state_dir: &Path, restore: &str) -> ExitCode {
    match ended {
        Ok(Ok(())) => {
            tracing::info!("stopped; the database is in one file");
            ExitCode::SUCCESS
        }
        Ok(Err(e)) if !e.is_of_disk() => {
            let e = anyhow::Error::from(e);
            tracing::error!(
                "{e:#}. Nothing that was acknowledged is lost. This is a bug: please report it with the lines above"
            );
            ExitCode::from(EXIT_BUG)
        }
        Ok(Err(e)) if e.is_damage() => {
            tracing::error!(
                "{:#}: {}: {restore}. What was not yet written was not acknowledged. Jobs go on",
                anyhow::Error::from(e),
                store::error::DAMAGED
            );
            ExitCode::from(EXIT_DATABASE)
        }
        Ok(Err(e)) => {
            let e = anyhow::Error::from(e);
            tracing::error!(
                "{e:#}. Nothing that was acknowledged is lost; what was not yet written was not acknowledged. Jobs go on. Look at the disk of {} (df, dmesg), then start gpuctld again",
                state_dir.display()
            );
            ExitCode::from(EXIT_DATABASE)
        }
        Err(_) => {
            tracing::error!(
                "the core thread stopped on an assertion; see the lines above. This is a bug: please report it with them"
            );
            ExitCode::from(EXIT_BUG)
        }
    }
}

/// A moment for what is in the queue to be answered.
async fn answers_under_way(core: &CoreHandle) {
    let deadline = tokio::time::Instant::now() + GRACE;
    while core.queue_len() > 0 && tokio::time::Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The port first: where the socket answers, nodes can connect.
async fn bind(config: &Config) -> anyhow::Result<(UnixListener, TcpListener, Option<TcpListener>)> {
    let loopback = match config.web.as_ref().and_then(|web| web.listen) {
        Some(listen) => Some(
            TcpListener::bind(listen)
                .await
                .with_context(|| format!("cannot listen on {listen} (listen of [web])"))?,
        ),
        None => None,
    };
    let tcp = TcpListener::bind(config.listen)
        .await
        .with_context(|| format!("cannot listen on {} (listen)", config.listen))?;
    let unix = listen::bind_unix(&config.socket)
        .with_context(|| format!("cannot listen on {}", config.socket.display()))?;
    Ok((unix, tcp, loopback))
}

/// Names and addresses for the certificate. Nodes check a name that is always in it; these are for other clients.
fn host_names(config: &Config) -> Vec<String> {
    let mut names = vec![
        "localhost".to_owned(),
        "127.0.0.1".to_owned(),
        "::1".to_owned(),
    ];
    let advertised = config
        .advertise
        .rsplit_once(':')
        .map_or(config.advertise.as_str(), |(host, _)| host);
    names.push(advertised.trim_matches(['[', ']']).to_owned());
    names.extend(
        nix::unistd::gethostname()
            .ok()
            .and_then(|name| name.into_string().ok()),
    );
    if !config.listen.ip().is_unspecified() {
        names.push(config.listen.ip().to_string());
    }
    names.retain(|name| !name.is_empty());
    names.sort();
    names.dedup();
    names
}

/// Tells systemd, where there is one.
fn notify(state: &[NotifyState<'_>]) {
    if let Err(e) = sd_notify::notify(state) {
        tracing::debug!("systemd was not told: {e}");
    }
}

fn log_to_stderr() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("GPUCTLD_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    let colour = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(colour)
        .with_writer(std::io::stderr)
        .init();
}
