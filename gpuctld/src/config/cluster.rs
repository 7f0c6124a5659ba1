//! The main file, `gpuctld.toml`: where the controller lives and the cluster-wide policy.
//!
//! Owns its keys and defaults. Partitions are read by [`super::partition`].

use super::error::{Errors, Source};
use super::section::Section;
use super::{Config, SiteProgram, Hook, OnFailure};
use crate::site_program::check_ownership;
use gmodel::array_spec::MAX_TASKS;
use gmodel::config::{ClusterConfig, LostNode, Privacy};
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use toml::de::DeTable;

/// Port of the controller when `listen` does not say.
pub(super) const DEFAULT_PORT: u16 = 7117;
/// A unix socket's path ends here (unix(7)).
const MAX_SOCKET_PATH_BYTES: usize = 107;

const KEYS: [&str; 41] = [
    "cluster",
    "state_dir",
    "socket",
    "listen",
    "advertise",
    "min_free",
    "node_cert_days",
    "keep_scripts_days",
    "trace",
    "operators",
    "privacy",
    "default_account",
    "allow_root_jobs",
    "node_timeout_secs",
    "lost_node",
    "fence_program",
    "fence_timeout_secs",
    "idle_program",
    "idle_timeout_secs",
    "prepare_timeout_secs",
    "kill_grace_secs",
    "min_job_age_secs",
    "kill_invalid_depend",
    "time_zone",
    "max_array_tasks",
    "max_pending_jobs",
    "submit_hook",
    "mig",
    "mig_recut_secs",
    "diagnostics",
    "expect",
    "partition",
    "scheduler",
    "priority",
    "fair_share",
    "preempt",
    "licences",
    "price",
    "account",
    "qos",
    "reservation",
];

const HOOK_KEYS: [&str; 4] = ["program", "user", "timeout_ms", "on_failure"];

/// Reads the main file. What is wrong or missing has its default, so that reading goes on.
pub(super) fn read(source: &Source, table: &DeTable<'_>, errors: &mut Errors) -> Config {
    let section = Section::open(source, table, &KEYS, "gpuctld.toml", errors);
    let listen = listen(&section, errors);
    Config {
        cluster: policy(&section, errors),
        state_dir: section.path("state_dir", false, errors).unwrap_or_else(|| "/var/lib/gpupool".into()),
        socket: socket(&section, errors),
        listen,
        advertise: advertise(&section, listen, errors),
        min_free_bytes: section.size("min_free", errors).unwrap_or(1 << 30),
        node_cert_days: section.number("node_cert_days", 1..=3650, errors).unwrap_or(90),
        keep_scripts_days: section.number("keep_scripts_days", 0..=3650, errors).unwrap_or(30),
        submit_hook: hook(&section, errors),
        fence: site_program(&section, "fence_program", "fence_timeout_secs", errors),
        idle: site_program(&section, "idle_program", "idle_timeout_secs", errors),
        trace: section.boolean("trace", errors).unwrap_or(false),
        places: std::collections::BTreeMap::new(),
    }
}

fn policy(section: &Section, errors: &mut Errors) -> ClusterConfig {
    // Dates in this file and those after it are read in it.
    errors.zone = section.has("time_zone").then(|| super::time_zone::read(section, errors));
    let default = ClusterConfig::default();
    let mut secs = |key, bounds, default| section.number(key, bounds, errors).unwrap_or(default);
    let node_timeout_secs = secs("node_timeout_secs", 1..=86_400, default.node_timeout_secs);
    let prepare_timeout_secs = secs("prepare_timeout_secs", 1..=86_400, default.prepare_timeout_secs);
    let kill_grace_secs = secs("kill_grace_secs", 0..=3_600, default.kill_grace_secs);
    let min_job_age_secs = secs("min_job_age_secs", 0..=86_400, default.min_job_age_secs);
    let mig_recut_secs = secs("mig_recut_secs", 0..=86_400, default.mig_recut_secs);
    let max_array_tasks = secs("max_array_tasks", 1..=MAX_TASKS, default.max_array_tasks);
    let max_pending_jobs = secs("max_pending_jobs", 1..=10_000_000, default.max_pending_jobs);
    let lost_node = [("requeue", LostNode::Requeue), ("wait", LostNode::Wait)];
    let privacy = [("open", Privacy::Open), ("account", Privacy::Account), ("own", Privacy::Own)];
    ClusterConfig {
        name: name(section, "cluster", errors).unwrap_or(default.name),
        partitions: Vec::new(),
        default_account: name(section, "default_account", errors).unwrap_or(default.default_account),
        node_timeout_secs,
        fence_program: section.has("fence_program"),
        idle_program: section.has("idle_program"),
        lost_node: section.word("lost_node", &lost_node, errors).unwrap_or_default(),
        prepare_timeout_secs,
        kill_grace_secs,
        max_array_tasks,
        max_pending_jobs,
        allow_root_jobs: section.boolean("allow_root_jobs", errors).unwrap_or(default.allow_root_jobs),
        operators: section.texts("operators", errors).unwrap_or_default(),
        min_job_age_secs,
        kill_invalid_depend: section.boolean("kill_invalid_depend", errors).unwrap_or(default.kill_invalid_depend),
        time_zone: errors.zone.clone().unwrap_or_default(),
        privacy: section.word("privacy", &privacy, errors).unwrap_or_default(),
        scheduler: super::scheduling::read(section, errors),
        mig: super::mig::read(section, errors),
        expected: super::expect::read(section, errors),
        mig_recut_secs,
        diagnostics: super::diagnostics::read(section, errors),
        ..default
    }
}

/// A name of letters, digits, `_`, `-` and `.`, at most 64 of them.
pub(super) fn is_name(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b))
}

fn name(section: &Section, key: &str, errors: &mut Errors) -> Option<String> {
    let text = section.text(key, errors)?;
    if is_name(&text) {
        return Some(text);
    }
    let message = format!("{key} = {text:?} is not a name");
    errors.add(section.source, section.span(key), message, "use up to 64 letters, digits, '_', '-' and '.'");
    None
}

fn socket(section: &Section, errors: &mut Errors) -> PathBuf {
    let default = || PathBuf::from("/run/gpupool/gpuctld.sock");
    let Some(path) = section.path("socket", false, errors) else { return default() };
    let bytes = path.as_os_str().as_bytes().len();
    if bytes <= MAX_SOCKET_PATH_BYTES {
        return path;
    }
    let message = format!("socket has a path of {bytes} bytes; Linux takes {MAX_SOCKET_PATH_BYTES}");
    errors.add(section.source, section.span("socket"), message, "use a shorter one, as under /run/gpupool");
    default()
}

fn listen(section: &Section, errors: &mut Errors) -> SocketAddr {
    let default = SocketAddr::from(([0, 0, 0, 0], DEFAULT_PORT));
    let Some(text) = section.text("listen", errors) else { return default };
    text.parse().unwrap_or_else(|_| {
        let message = format!("listen = {text:?} is not ADDRESS:PORT");
        errors.add(section.source, section.span("listen"), message, "as \"0.0.0.0:7117\" or \"[::]:7117\"");
        default
    })
}

/// `HOST:PORT` for nodes: as written, or the listening address, or this host's name.
fn advertise(section: &Section, listen: SocketAddr, errors: &mut Errors) -> String {
    let Some(text) = section.text("advertise", errors) else {
        if !listen.ip().is_unspecified() {
            return listen.to_string();
        }
        let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
        return format!("{}:{}", host.unwrap_or_else(|| "localhost".into()), listen.port());
    };
    let valid = text.rsplit_once(':').is_some_and(|(host, port)| {
        !host.is_empty() && !host.contains(char::is_whitespace) && port.parse::<u16>().is_ok_and(|port| port > 0)
    });
    if !valid {
        let message = format!("advertise = {text:?} is not HOST:PORT");
        errors.add(section.source, section.span("advertise"), message, "as \"gpuctl.example.org:7117\"");
    }
    text
}

/// A program that cannot be called would be noticed when it is needed, and then too late.
fn site_program(section: &Section, key: &str, timeout_key: &str, errors: &mut Errors) -> Option<SiteProgram> {
    let timeout_secs = section.number(timeout_key, 1..=3_600, errors).unwrap_or(60);
    let program = section.path(key, false, errors)?;
    if let Err(why) = check_ownership(&program) {
        let message = format!("{key} = {program:?} cannot be used: {why}");
        errors.add(section.source, section.span(key), message, "it has to be a program that only root can change");
    }
    Some(SiteProgram { program, timeout_secs })
}

fn hook(section: &Section, errors: &mut Errors) -> Option<Hook> {
    let table = section.table("submit_hook", errors)?;
    let hook = Section::open(section.source, table, &HOOK_KEYS, "[submit_hook]", errors);
    for key in ["program", "user"] {
        if !hook.has(key) {
            errors.add(section.source, section.span("submit_hook"), format!("[submit_hook] has no {key}"), "");
        }
    }
    let on_failure = [("refuse", OnFailure::Refuse), ("accept", OnFailure::Accept)];
    let user = hook.text("user", errors).unwrap_or_default();
    if user == "root" {
        let hint = "give it an ordinary system user of its own";
        errors.add(section.source, hook.span("user"), "the submission hook may not run as root", hint);
    }
    Some(Hook {
        program: hook.path("program", false, errors).unwrap_or_else(|| Path::new("/").into()),
        user,
        timeout_ms: hook.number("timeout_ms", 1..=60_000, errors).unwrap_or(200),
        on_failure: hook.word("on_failure", &on_failure, errors).unwrap_or(OnFailure::Refuse),
    })
}
