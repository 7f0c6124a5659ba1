//! The REST API under `/v1/` and `/metrics`, as `gwire::api` describes it: the same for commands and others.
//!
//! Owns routes, who may ask what, filters and the shape of answers. It changes nothing by itself: reading is done
//! on the published view, everything else is a command to the core. Sockets and TLS belong to the listener.

mod accounting;
mod admin;
mod alternatives;
mod cancel;
mod column;
mod differences;
mod dry_run;
mod error;
mod filter;
mod foreseen;
mod gpus;
mod hook;
mod idle;
mod job_list;
mod job_log;
mod join;
mod json_row;
mod live_use;
mod lookup;
mod nodes;
mod outlook;
mod permission;
mod policy;
mod query;
mod ranks;
mod reload_dry_run;
mod row;
mod run_column;
mod run_list;
mod show;
mod standing;
mod steps;
mod submit;
mod targets;
mod trace;
mod utilization;

#[cfg(test)]
mod tests;

pub(crate) use differences::differences;
pub use error::ApiError;
pub(crate) use gpus::state_word;

use crate::config::Config;
use crate::core_thread::CoreHandle;
use crate::histogram::Histogram;
use crate::outlook::Outlook;
use crate::pki::{NodeIdentity, Pki};
use axum::Router;
use axum::extract::{DefaultBodyLimit, MatchedPath, Request, State as Shared};
use axum::middleware::Next;
use axum::response::Response;
use axum::routing::{get, post};
use gmodel::node::Role;
use gmodel::run::RunUse;
use gmodel::supervise::StepOrder;
use gmodel::{NodeId, RunId, Timestamp};
use gwire::api::MAX_BODY_BYTES;
use std::collections::BTreeMap;
use std::future::Future;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Instant;

/// Largest body of a machine that has shown nothing but a connection.
const MAX_JOIN_BYTES: usize = 64 << 10;
/// Largest body where no script comes along.
const MAX_SMALL_BODY_BYTES: usize = 1 << 20;

/// Who is at the other end, inserted by the listener as an extension of every request. Requests without one
/// can only join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    pub uid: u32,
    pub gid: u32,
    /// Name of the uid; empty when the machine it came from does not know it, or when the request is the node
    /// daemon's own.
    pub user: String,
    /// The machine whose daemon forwards the request, by its certificate.
    pub via: Option<(NodeId, Role)>,
    /// That machine's certificate, and the cluster, say that operators may administer from there.
    pub admin: bool,
    /// Came over the controller's own unix socket.
    pub local: bool,
    /// This host's name service has the same name, uid and group; else it knows neither the name nor the uid.
    pub known: bool,
}

/// The machine at the other end of a connection with a node's certificate, inserted by the listener.
#[derive(Clone, Debug)]
pub struct Holder {
    pub identity: NodeIdentity,
    /// Its address.
    pub from: String,
}

/// The address of the machine that forwards a request, as the controller sees it: an extension of the request.
#[derive(Clone, Copy, Debug)]
pub struct CameFrom(pub IpAddr);

/// An answer that comes later.
pub type Later<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Questions to connected nodes, over the connections that they dialled.
pub trait NodeLinks: Send + Sync {
    /// A node is connected from this address.
    fn has_address(&self, address: IpAddr) -> bool;
    /// What the node did for a run; waits a few seconds at most.
    fn read_log(&self, node: NodeId, run: RunId) -> Later<'_, Result<String, String>>;
    /// What a run uses there by now; waits a few seconds at most.
    fn read_use(&self, node: NodeId, run: RunId) -> Later<'_, Result<RunUse, String>>;
    /// Hands tasks of a step to the supervisor of a run. What becomes of them goes to `order.connect`, not here.
    fn start_step(
        &self,
        node: NodeId,
        run: RunId,
        order: StepOrder,
    ) -> Later<'_, Result<(), String>>;
}

/// Settings that other threads read while they may be reloaded.
#[derive(Clone, Debug)]
pub struct LiveSettings {
    pub min_free_bytes: Arc<AtomicU64>,
    pub keep_scripts_days: Arc<AtomicU64>,
    pub keep_jobs_days: Arc<AtomicU64>,
}

impl LiveSettings {
    pub fn of(config: &Config) -> Self {
        Self {
            min_free_bytes: Arc::new(AtomicU64::new(config.min_free_bytes)),
            keep_scripts_days: Arc::new(AtomicU64::new(u64::from(config.keep_scripts_days))),
            keep_jobs_days: Arc::new(AtomicU64::new(u64::from(config.keep_jobs_days))),
        }
    }

    fn set(&self, config: &Config) {
        self.min_free_bytes.store(config.min_free_bytes, Relaxed);
        self.keep_scripts_days
            .store(u64::from(config.keep_scripts_days), Relaxed);
        self.keep_jobs_days
            .store(u64::from(config.keep_jobs_days), Relaxed);
    }
}

/// What handlers need besides the core.
pub struct App {
    config_path: PathBuf,
    config: RwLock<Arc<Config>>,
    pki: Arc<Pki>,
    links: Arc<dyn NodeLinks>,
    live: LiveSettings,
    hook: hook::HookProcess,
    /// Edits of the policy are read, changed and written one at a time.
    policy_turn: tokio::sync::Mutex<()>,
    /// False once a look showed that there are none, until the policy changes.
    may_have_quotas: AtomicBool,
    foresight: foreseen::Foresight,
    outlook: Outlook,
    rank_cache: ranks::RankCache,
    requests: Mutex<BTreeMap<String, Arc<Histogram>>>,
    started: Instant,
}

impl App {
    pub fn new(
        config_path: PathBuf,
        config: Arc<Config>,
        pki: Arc<Pki>,
        links: Arc<dyn NodeLinks>,
        live: LiveSettings,
    ) -> Arc<Self> {
        Arc::new(Self {
            config_path,
            config: RwLock::new(config),
            pki,
            links,
            live,
            hook: hook::HookProcess::default(),
            policy_turn: tokio::sync::Mutex::default(),
            may_have_quotas: AtomicBool::new(true),
            foresight: foreseen::Foresight::default(),
            outlook: Outlook::default(),
            rank_cache: ranks::RankCache::default(),
            requests: Mutex::default(),
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
        admin::reload(self, core).await
    }

    /// Held while a record of the policy is read, changed and written.
    async fn policy_turn(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.policy_turn.lock().await
    }

    /// Plans that are made for those who ask.
    fn foresight(&self) -> &foreseen::Foresight {
        &self.foresight
    }

    /// What is known of how starts turn out.
    pub fn outlook(&self) -> &Outlook {
        &self.outlook
    }

    fn request_times(&self, path: &str) -> Arc<Histogram> {
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

/// What every handler is given.
#[derive(Clone)]
struct Site {
    core: CoreHandle,
    app: Arc<App>,
}

/// The whole API. The listener adds a [`Peer`] to every request.
pub fn router(core: CoreHandle, app: Arc<App>) -> Router {
    let site = Site { core, app };
    Router::new()
        .route(
            "/v1/jobs",
            get(job_list::list)
                .post(submit::submit)
                .layer(DefaultBodyLimit::max(MAX_BODY_BYTES)),
        )
        .route(
            "/v1/jobs/dry-run",
            post(dry_run::dry_run).layer(DefaultBodyLimit::max(MAX_BODY_BYTES)),
        )
        .route("/v1/jobs/cancel", post(cancel::cancel))
        .route("/v1/jobs/hold", post(targets::hold))
        .route("/v1/jobs/release", post(targets::release))
        .route("/v1/jobs/requeue", post(targets::requeue))
        .route("/v1/jobs/suspend", post(targets::suspend))
        .route("/v1/jobs/resume", post(targets::resume))
        .route("/v1/jobs/update", post(targets::update))
        .route("/v1/jobs/{id}", get(show::show))
        .route("/v1/jobs/{id}/script", get(show::script))
        .route("/v1/jobs/{id}/log", get(job_log::log))
        .route("/v1/jobs/{id}/why", get(outlook::why))
        .route("/v1/starts", get(outlook::starts))
        .route("/v1/jobs/{id}/wait", get(show::wait))
        .route(
            "/v1/jobs/{id}/steps",
            post(steps::start).layer(DefaultBodyLimit::max(MAX_BODY_BYTES)),
        )
        .route("/v1/jobs/{id}/steps/{step}/end", post(steps::end))
        .route("/v1/steps", get(steps::list))
        .route("/v1/nodes", get(nodes::list))
        .route("/v1/nodes/{name}/{act}", post(nodes::act))
        .route("/v1/gpus", get(gpus::list))
        .route("/v1/gpus/{gpu}/history", get(gpus::history))
        .route("/v1/gpus/{gpu}/forget", post(gpus::forget))
        .route("/v1/nodes/{name}/gpus/{gpu}/{act}", post(gpus::act))
        .route("/v1/partitions", get(nodes::partitions))
        .route("/v1/cluster", get(nodes::cluster))
        .route("/v1/differences", get(differences::list))
        .route("/v1/runs", get(accounting::runs))
        .route("/v1/idle", get(idle::report))
        .route("/v1/report", get(accounting::report))
        .route("/v1/utilization", get(utilization::utilization))
        .route("/v1/node-events", get(utilization::node_events))
        .route("/v1/policy-events", get(policy::events))
        .route("/v1/trace", get(trace::page))
        .route("/v1/tokens", post(join::token))
        .route(
            "/v1/join",
            post(join::join).layer(DefaultBodyLimit::max(MAX_JOIN_BYTES)),
        )
        .route(
            "/v1/renew",
            post(join::renew).layer(DefaultBodyLimit::max(MAX_JOIN_BYTES)),
        )
        .route("/v1/diag", get(admin::diag))
        .route("/v1/check", get(admin::check))
        .route("/v1/config", get(admin::config))
        .route("/v1/reload", post(admin::reload_request))
        .route("/v1/reload/dry-run", post(reload_dry_run::reload_dry_run))
        .route("/v1/backup", post(admin::backup))
        .route("/v1/accounts", get(policy::accounts))
        .route(
            "/v1/accounts/{name}",
            get(policy::account).post(policy::edit_account),
        )
        .route("/v1/accounts/{name}/remove", post(policy::remove_account))
        .route("/v1/accounts/{name}/users/{user}", post(policy::edit_user))
        .route(
            "/v1/accounts/{name}/users/{user}/remove",
            post(policy::remove_user),
        )
        .route("/v1/qos", get(policy::qos_list))
        .route("/v1/qos/{name}", get(policy::qos).post(policy::edit_qos))
        .route("/v1/qos/{name}/remove", post(policy::remove_qos))
        .route("/v1/reservations", get(policy::reservations))
        .route(
            "/v1/reservations/{name}",
            get(policy::reservation).post(policy::edit_reservation),
        )
        .route(
            "/v1/reservations/{name}/remove",
            post(policy::remove_reservation),
        )
        .route("/v1/priorities", get(standing::priorities))
        .route("/v1/shares", get(standing::shares))
        .route("/v1/licences", get(policy::licences))
        .route(
            "/v1/policy",
            get(policy::export)
                .post(policy::import)
                .layer(DefaultBodyLimit::max(MAX_BODY_BYTES)),
        )
        .route("/metrics", get(admin::metrics))
        .fallback(no_such_endpoint)
        .method_not_allowed_fallback(wrong_method)
        .layer(axum::middleware::from_fn_with_state(site.clone(), measure))
        .layer(DefaultBodyLimit::max(MAX_SMALL_BODY_BYTES))
        .with_state(site)
}

async fn no_such_endpoint(request: Request) -> ApiError {
    ApiError::not_found(format!(
        "there is no {} {}; the API is under /v1/",
        request.method(),
        request.uri().path()
    ))
}

async fn wrong_method(request: Request) -> ApiError {
    ApiError::wrong_method(format!(
        "{} does not take {}",
        request.uri().path(),
        request.method()
    ))
}

/// Time of every request but the long polls, by route.
async fn measure(Shared(site): Shared<Site>, request: Request, next: Next) -> Response {
    let route = request
        .extensions()
        .get::<MatchedPath>()
        .map(MatchedPath::as_str)
        .unwrap_or("other");
    let times = (!route.ends_with("/wait")).then(|| site.app.request_times(route));
    let since = Instant::now();
    let answer = next.run(request).await;
    if let Some(times) = times {
        times.record_duration(since.elapsed());
    }
    answer
}

/// The controller's clock.
fn now() -> Timestamp {
    Timestamp(chrono::Utc::now().timestamp_millis())
}
