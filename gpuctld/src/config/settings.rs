//! The controller's settings, as read from its files with defaults filled in, and which of them a reload changes.
//!
//! The policy in them goes to the core as a [`ClusterConfig`].

use crate::kept_outputs::OutputBounds;
use gconfig::policy::RecordKind;
use gmodel::config::ClusterConfig;
use gwire::api::EventKind;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Everything the administrator wrote, with defaults filled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// What the core decides from.
    pub cluster: ClusterConfig,
    /// Database, certificates and token secrets; 0700.
    pub state_dir: PathBuf,
    /// Unix socket of the REST API; 0666, identity from SO_PEERCRED.
    pub socket: PathBuf,
    /// TLS port for nodes and forwarded requests.
    pub listen: SocketAddr,
    /// `HOST:PORT` that nodes dial and tokens carry.
    pub advertise: String,
    /// The site's own certificate for clients with tokens.
    pub https: Option<HttpsSettings>,
    /// `None`: no pages are served.
    pub web: Option<WebSettings>,
    /// What is told outside of the cluster.
    pub outgoing: OutgoingSettings,
    /// Below so many free bytes in `state_dir`, commands that write are refused.
    pub min_free_bytes: u64,
    /// Life of a node's certificate; it renews by itself after two thirds.
    pub node_cert_days: u32,
    /// Scripts and environments are removed this long after the job's end.
    pub keep_scripts_days: u32,
    /// Jobs, their runs and their history are removed this long after their end; sums of use stay.
    pub keep_jobs_days: u32,
    /// Outputs that came from spools of nodes are removed this long after that, and the oldest when all have so many bytes.
    pub keep_output_days: u32,
    pub keep_output_bytes: u64,
    /// A site's program that may check or change submissions.
    pub submit_hook: Option<SubmitHook>,
    /// Powers a lost node off before its jobs go on elsewhere.
    pub fence: Option<SiteProgram>,
    /// Called for each run with idle GPUs.
    pub idle: Option<SiteProgram>,
    /// Keep every input of the core in `state_dir/trace` for replay.
    pub trace: bool,
    /// `time_zone` is in the file.
    pub has_time_zone: bool,
    /// Where each account, QOS and reservation of the files is written: `path:line`.
    pub places: BTreeMap<(RecordKind, String), String>,
}

/// The certificate for names of the site, as `[https]` has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpsSettings {
    pub names: Vec<String>,
    /// PEM: the certificate, and behind it what it is signed by.
    pub cert: PathBuf,
    /// PEM; for the daemon's user alone.
    pub key: PathBuf,
}

/// Where browsers find the controller's pages, as `[web]` has it: on the TLS port, and where this says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebSettings {
    /// Without TLS: a loopback address.
    pub listen: Option<SocketAddr>,
}

/// How users get mail of their jobs, as `[mail]` has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MailSettings {
    pub host: String,
    pub port: u16,
    pub tls: MailTls,
    /// User and the file with the password, where the server wants them.
    pub login: Option<(String, PathBuf)>,
    /// The sender's address.
    pub from: String,
    /// Of users without `--mail-user`, and of a `--mail-user` that is a name alone.
    pub domain: String,
    /// Mail goes to addresses of these domains only; empty: to any.
    pub only_domains: Vec<String>,
    /// Letters that the jobs of one user cause in an hour.
    pub per_user_hour: u32,
}

/// What is told outside of the cluster, and where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutgoingSettings {
    /// `None`: no mail is sent.
    pub mail: Option<MailSettings>,
    pub webhooks: Vec<WebhookSettings>,
}

/// A receiver of events, as `[[webhook]]` has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookSettings {
    pub name: String,
    /// Its path may be a secret, and is not shown.
    pub url: axum::http::Uri,
    /// Empty: all.
    pub kinds: BTreeSet<EventKind>,
    /// Empty: of all accounts, and what is of no job.
    pub accounts: BTreeSet<String>,
    /// What deliveries are signed with.
    pub secret_file: Option<PathBuf>,
    pub template: WebhookTemplate,
    /// In place of the authorities that this machine trusts.
    pub ca_file: Option<PathBuf>,
    /// Without encryption to other machines, too.
    pub allow_http: bool,
    /// A receiver that fails for so long is left alone.
    pub park_after_secs: u32,
}

/// The shape of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WebhookTemplate {
    Json,
    Slack,
    Teams,
}

/// What of a conversation with the mail server is encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MailTls {
    Nothing,
    /// From STARTTLS on, which the server has to offer.
    Starttls,
    All,
}

/// A long-lived program of the site that reads and writes JSON lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubmitHook {
    pub program: PathBuf,
    /// Ordinary system user it runs as.
    pub user: String,
    pub timeout_ms: u32,
    pub on_failure: OnFailure,
}

/// A program of the site that is called as gpuctld's own user, each time anew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteProgram {
    pub program: PathBuf,
    pub timeout_secs: u32,
}

/// What becomes of a submission when the hook does not answer in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFailure {
    Refuse,
    Accept,
}

impl Config {
    /// `https://HOST:PORT` for clients with tokens.
    pub fn https_address(&self) -> String {
        let name = self.https.as_ref().and_then(|https| https.names.first());
        match (name, self.advertise.rsplit_once(':')) {
            (Some(name), Some((_, port))) => format!("https://{name}:{port}"),
            _ => format!("https://{}", self.advertise),
        }
    }

    /// What is kept of outputs.
    pub fn output_bounds(&self) -> OutputBounds {
        OutputBounds {
            days: self.keep_output_days,
            all_bytes: self.keep_output_bytes,
            // The two files of a run, twice.
            job_bytes: self.cluster.output.max_bytes.saturating_mul(4),
        }
    }

    /// Settings that differ and take effect only when gpuctld starts again.
    pub fn restart_needed(old: &Self, new: &Self) -> Vec<String> {
        let changed = [
            ("cluster", old.cluster.name != new.cluster.name),
            ("state_dir", old.state_dir != new.state_dir),
            ("socket", old.socket != new.socket),
            ("listen", old.listen != new.listen),
            ("advertise", old.advertise != new.advertise),
            ("web", old.web != new.web),
            ("trace", old.trace != new.trace),
        ];
        changed
            .into_iter()
            .filter(|(_, differs)| *differs)
            .map(|(key, _)| key.to_owned())
            .collect()
    }

    /// The new settings as far as they take effect without a restart.
    pub fn reloaded(old: &Self, new: &Self) -> Self {
        let mut cluster = new.cluster.clone();
        cluster.name.clone_from(&old.cluster.name);
        Self {
            cluster,
            state_dir: old.state_dir.clone(),
            socket: old.socket.clone(),
            listen: old.listen,
            advertise: old.advertise.clone(),
            web: old.web.clone(),
            trace: old.trace,
            ..new.clone()
        }
    }
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
        let live = Self {
            min_free_bytes: Arc::default(),
            keep_scripts_days: Arc::default(),
            keep_jobs_days: Arc::default(),
        };
        live.set(config);
        live
    }

    pub fn set(&self, config: &Config) {
        self.min_free_bytes.store(config.min_free_bytes, Relaxed);
        self.keep_scripts_days
            .store(config.keep_scripts_days.into(), Relaxed);
        self.keep_jobs_days
            .store(config.keep_jobs_days.into(), Relaxed);
    }
}
