//! What all handlers of the API share: the core, the configuration in force, the links to nodes, caches.
//!
//! Owns the reload of the configuration and the times of requests. Routes are [`super::router`]'s, decisions the core's.

use crate::attendance::Attendance;
use crate::config::{Config, ConfigError, LiveSettings};
use crate::core_thread::{CoreHandle, now};
use crate::event_feed::EventFeed;
use crate::forecaster::Forecaster;
use crate::group_members::GroupMembers;
use crate::histogram::Histogram;
use crate::http::error::ApiError;
use crate::http::forecast::plan::{ForecastPlan, ForecastPlanner};
use crate::http::job::rank::RankCache;
use crate::http::job::submit_hook::HookProcess;
use crate::http::step::stream_exchange::StreamExchange;
use crate::http::token::way_in::TokenGate;
use crate::http::web::session::WebSessions;
use crate::kept_outputs::KeptOutputs;
use crate::pki::Pki;
use gmodel::job::UserRef;
use gmodel::output_stream::OutputOrder;
use gmodel::run::RunUse;
use gmodel::supervise::StepOrder;
use gmodel::{JobId, NodeId, RunId};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Instant;

const MAX_BILLS_AT_ONCE: usize = 2;

/// An answer that comes later.
pub type NodeAnswer<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Questions to connected nodes, over the connections that they dialled.
pub trait NodeLinks: Send + Sync {
    /// The addresses that nodes are connected from.
    fn addresses(&self) -> BTreeMap<NodeId, IpAddr>;
    /// What the node did for a run; waits a few seconds at most.
    fn read_log(&self, node: NodeId, run: RunId) -> NodeAnswer<'_, Result<String, String>>;
    /// What a run uses there by now; waits a few seconds at most.
    fn read_use(&self, node: NodeId, run: RunId) -> NodeAnswer<'_, Result<RunUse, String>>;
    /// Hands tasks of a step to the supervisor of a run. What becomes of them goes to `order.connect`, not here.
    fn start_step(
        &self,
        node: NodeId,
        run: RunId,
        order: StepOrder,
    ) -> NodeAnswer<'_, Result<(), String>>;
    /// Sends the tasks of a step on a node a signal, or ends them; waits a few seconds at most.
    fn signal_step(
        &self,
        node: NodeId,
        run: RunId,
        step: u32,
        signal: Option<u8>,
    ) -> NodeAnswer<'_, Result<(), String>>;
    /// Asks a node to connect a stream with something of a run. It comes as a request of its own, or does not.
    fn open_stream(
        &self,
        node: NodeId,
        run: RunId,
        source: StreamSource,
        stream: String,
    ) -> NodeAnswer<'_, Result<(), String>>;
}

/// What a node connects a client's stream with.
pub enum StreamSource {
    Step {
        step: u32,
        /// The client takes the stream from no other, and sees a copy.
        watch: bool,
    },
    /// A file that its node reads as the user.
    Output { user: UserRef, order: OutputOrder },
}

/// What handlers need besides the core.
pub struct App {
    config_path: PathBuf,
    config: RwLock<Arc<Config>>,
    pub(crate) pki: Arc<Pki>,
    pub(crate) links: Arc<dyn NodeLinks>,
    live: LiveSettings,
    pub(crate) hook: HookProcess,
    /// Edits of the policy are read, changed and written one at a time.
    policy_turn: tokio::sync::Mutex<()>,
    /// Bills being made: each takes memory by the different runs of its month.
    bill_turns: tokio::sync::Semaphore,
    pub(crate) members: GroupMembers,
    /// False once a look showed that there are none, until the policy changes.
    pub(crate) may_have_quotas: AtomicBool,
    forecasts: ForecastPlanner,
    forecaster: Forecaster,
    pub(crate) ranks: Arc<RankCache>,
    attendance: Attendance,
    pub entrances: Entrances,
    pub events: Arc<EventFeed>,
    requests: Mutex<BTreeMap<String, Arc<Histogram>>>,
    pub(crate) streams: StreamExchange,
    pub(crate) kept: Arc<KeptOutputs>,
    pub(crate) started: Instant,
}

/// What is remembered of users over the network.
#[derive(Debug, Default)]
pub struct Entrances {
    pub tokens: TokenGate,
    pub(crate) web: WebSessions,
}

impl App {
    pub fn new(
        config_path: PathBuf,
        config: Arc<Config>,
        pki: Arc<Pki>,
        links: Arc<dyn NodeLinks>,
        live: LiveSettings,
    ) -> Arc<Self> {
        let kept = Arc::new(KeptOutputs::new(&config.state_dir));
        Arc::new(Self {
            kept,
            config_path,
            config: RwLock::new(config),
            pki,
            links,
            live,
            hook: HookProcess::default(),
            policy_turn: tokio::sync::Mutex::default(),
            bill_turns: tokio::sync::Semaphore::new(MAX_BILLS_AT_ONCE),
            members: GroupMembers::default(),
            may_have_quotas: AtomicBool::new(true),
            forecasts: ForecastPlanner::default(),
            forecaster: Forecaster::default(),
            ranks: Arc::default(),
            attendance: Attendance::default(),
            entrances: Entrances::default(),
            events: Arc::default(),
            requests: Mutex::default(),
            streams: StreamExchange::default(),
            started: Instant::now(),
        })
    }

    /// The configuration in force.
    pub fn config(&self) -> Arc<Config> {
        self.config.read().expect("no panic while held").clone()
    }

    pub fn config_path(&self) -> &Path {
        &self.config_path
    }

    /// Reads the files again and puts them in force as a whole, or not at all. For SIGHUP and `gadm reload`.
    /// The answer says what takes effect only after a restart.
    ///
    /// # Errors
    /// All mistakes of the files as text, or the core's refusal.
    pub async fn reload(&self, core: &CoreHandle) -> Result<Vec<String>, ApiError> {
        let new = self.read_config(core).await?;
        let old = self.config();
        let restart = Config::restart_needed(&old, &new);
        let merged = Arc::new(Config::reloaded(&old, &new));
        let _turn = self.policy_turn().await;
        self.pki
            .site
            .put_in_force(merged.https.as_ref())
            .map_err(ApiError::invalid)?;
        let taken_back = gcore::ctl::set_until_reload(&*core.view().await);
        core.reload(Arc::new(merged.cluster.clone())).await?;
        self.live.set(&merged);
        self.policy_changed();
        *self.config.write().expect("no panic while held") = merged;
        tracing::info!(path = %self.config_path.display(), restart = restart.join(","), "configuration reloaded");
        let unknown = gcore::ctl::unknown_accounts(&*core.view().await);
        unknown.iter().for_each(|note| tracing::warn!("{note}"));
        Ok(restart
            .iter()
            .map(|key| restart_note(key))
            .chain(taken_back)
            .chain(unknown)
            .collect())
    }

    /// The files as they are now.
    ///
    /// # Errors
    /// All mistakes of the files as text.
    pub(crate) async fn read_config(&self, core: &CoreHandle) -> Result<Config, ApiError> {
        let path = self.config_path.clone();
        let used = core.view().await.billing.used.clone();
        let used = (!used.is_empty()).then(|| (used, now()));
        let read = tokio::task::spawn_blocking(move || Config::load_after(&path, used)).await;
        let read = read.map_err(|_| {
            ApiError::unavailable("reading the configuration failed; this is a bug")
        })?;
        read.map_err(|errors| ApiError::invalid(refused(&errors)))
    }

    /// Removes kept outputs that are past their days, and of too many the oldest.
    pub async fn prune_outputs(&self) {
        let (kept, bounds) = (self.kept.clone(), self.config().output_bounds());
        let pruned = tokio::task::spawn_blocking(move || kept.prune(bounds)).await;
        if let Ok(Err(e)) = pruned {
            tracing::warn!("removing old outputs: {e}");
        }
    }

    /// Held while a record of the policy is read, changed and written.
    pub(crate) async fn policy_turn(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.policy_turn.lock().await
    }

    /// Held while a bill is made; others wait.
    pub(crate) async fn bill_turn(&self) -> tokio::sync::SemaphorePermit<'_> {
        let turn = self.bill_turns.acquire().await;
        turn.expect("it is never closed")
    }

    /// Quotas may have come with a change of the policy.
    pub(crate) fn policy_changed(&self) {
        self.may_have_quotas.store(true, Relaxed);
    }

    /// Plans that are made for forecasts.
    pub(crate) fn forecasts(&self) -> &ForecastPlanner {
        &self.forecasts
    }

    /// A plan with forecasts of these jobs.
    ///
    /// # Errors
    /// The plan could not be made.
    pub(crate) async fn plan_forecasts(
        &self,
        jobs: &BTreeSet<JobId>,
        core: &CoreHandle,
    ) -> Result<Arc<ForecastPlan>, ApiError> {
        self.forecasts.plan_for(jobs, core, &self.forecaster).await
    }

    /// When clients of allocations were last heard.
    pub fn attendance(&self) -> &Attendance {
        &self.attendance
    }

    /// What is known of how starts turn out.
    pub fn forecaster(&self) -> &Forecaster {
        &self.forecaster
    }

    pub(crate) fn request_times(&self, path: &str) -> Arc<Histogram> {
        let mut requests = self.requests.lock().expect("no panic while held");
        if let Some(times) = requests.get(path) {
            return times.clone();
        }
        requests.entry(path.to_owned()).or_default().clone()
    }

    /// Times of answered requests by route, for `/metrics` and `gadm diag`.
    pub fn requests(&self) -> Vec<(String, Arc<Histogram>)> {
        let requests = self.requests.lock().expect("no panic while held");
        requests
            .iter()
            .map(|(path, times)| (path.clone(), times.clone()))
            .collect()
    }
}

pub(crate) fn restart_note(key: &str) -> String {
    format!("{key} has changed and takes effect when gpuctld is restarted")
}

fn refused(errors: &[ConfigError]) -> String {
    let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    let count = errors.len();
    let mistakes = if count == 1 { "a mistake" } else { "mistakes" };
    format!(
        "the configuration has {mistakes} and stays as it was:\n{}",
        texts.join("\n")
    )
}

/// What every handler is given.
#[derive(Clone)]
pub(crate) struct ApiContext {
    pub(crate) core: CoreHandle,
    pub(crate) app: Arc<App>,
}
