//! The main file, `gpuctld.toml`: its keys, and the cluster-wide policy in it.
//!
//! Partitions are read by [`crate::partition`], records by [`crate::policy`]; where the controller lives is gpuctld's affair.

use crate::error::Errors;
use crate::name::{NAMES, is_name};
use crate::section::Section;
use gmodel::array_spec::MAX_TASKS;
use gmodel::config::{ClusterConfig, LostNodePolicy, Privacy};
use gmodel::job::VisibleDevices;
use gmodel::job_output::{JobOutput, MAX_BYTES, OutputPlace};
use gmodel::parallel::MpiType;

/// Keys of the main file, gpuctld's own included.
pub const KEYS: [&str; 55] = [
    "cluster",
    "state_dir",
    "socket",
    "listen",
    "advertise",
    "min_free",
    "node_cert_days",
    "keep_scripts_days",
    "keep_jobs_days",
    "keep_output_days",
    "keep_output_max",
    "output",
    "output_max",
    "trace",
    "operators",
    "privacy",
    "default_account",
    "allow_root_jobs",
    "visible_devices",
    "mpi_default",
    "node_timeout_secs",
    "lost_node",
    "fence_program",
    "fence_timeout_secs",
    "idle_program",
    "idle_timeout_secs",
    "prepare_timeout_secs",
    "kill_grace_secs",
    "min_job_age_secs",
    "max_token_days",
    "kill_invalid_depend",
    "time_zone",
    "max_array_tasks",
    "max_pending_jobs",
    "submit_hook",
    "https",
    "web",
    "mail",
    "webhook",
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
    "charging",
    "currency",
    "account",
    "qos",
    "reservation",
];

const LOST_NODE: [(&str, LostNodePolicy); 2] = [
    ("requeue", LostNodePolicy::Requeue),
    ("wait", LostNodePolicy::Wait),
];
const PRIVACY: [(&str, Privacy); 3] = [
    ("open", Privacy::Open),
    ("account", Privacy::Account),
    ("own", Privacy::Own),
];

/// What the core decides by, without partitions and records. What is wrong or missing has its default, so that reading goes
/// on. Dates in this file and those read after it are in its time zone.
pub fn read(section: &Section, errors: &mut Errors) -> ClusterConfig {
    if section.has("time_zone") {
        errors.zone = Some(crate::time_zone::read(section, errors));
    }
    let default = ClusterConfig::default();
    let mut secs = |key, bounds, default| section.number(key, bounds, errors).unwrap_or(default);
    let node_timeout_secs = secs("node_timeout_secs", 1..=86_400, default.node_timeout_secs);
    let prepare = default.prepare_timeout_secs;
    let prepare_timeout_secs = secs("prepare_timeout_secs", 1..=86_400, prepare);
    let kill_grace_secs = secs("kill_grace_secs", 0..=3_600, default.kill_grace_secs);
    let min_job_age_secs = secs("min_job_age_secs", 0..=86_400, default.min_job_age_secs);
    let mig_recut_secs = secs("mig_recut_secs", 0..=86_400, default.mig_recut_secs);
    let max_array_tasks = secs("max_array_tasks", 1..=MAX_TASKS, default.max_array_tasks);
    let max_pending_jobs = secs("max_pending_jobs", 1..=10_000_000, default.max_pending_jobs);
    ClusterConfig {
        max_token_days: secs("max_token_days", 1..=3650, default.max_token_days),
        name: name(section, "cluster", errors).unwrap_or(default.name),
        partitions: Vec::new(),
        default_account: name(section, "default_account", errors)
            .unwrap_or(default.default_account),
        node_timeout_secs,
        fence_program: section.has("fence_program"),
        idle_program: section.has("idle_program"),
        lost_node: section
            .word("lost_node", &LOST_NODE, errors)
            .unwrap_or_default(),
        prepare_timeout_secs,
        kill_grace_secs,
        max_array_tasks,
        max_pending_jobs,
        allow_root_jobs: section
            .boolean("allow_root_jobs", errors)
            .unwrap_or(default.allow_root_jobs),
        visible_devices: section
            .word("visible_devices", &VisibleDevices::WORDS, errors)
            .unwrap_or_default(),
        mpi_default: section
            .word("mpi_default", &MpiType::WORDS, errors)
            .unwrap_or_default(),
        output: job_output(section, errors),
        operators: section
            .user_names("operators", errors)
            .into_iter()
            .collect(),
        min_job_age_secs,
        kill_invalid_depend: section
            .boolean("kill_invalid_depend", errors)
            .unwrap_or(default.kill_invalid_depend),
        time_zone: errors.zone.clone().unwrap_or_default(),
        privacy: section
            .word("privacy", &PRIVACY, errors)
            .unwrap_or_default(),
        scheduler: crate::scheduling::read(section, errors),
        mig: crate::mig::read(section, errors),
        expected: crate::expect::read(section, errors),
        mig_recut_secs,
        diagnostics: crate::diagnostics::read(section, errors),
        ..default
    }
}

fn job_output(section: &Section, errors: &mut Errors) -> JobOutput {
    let default = JobOutput::default();
    JobOutput {
        place: section
            .word("output", &OutputPlace::WORDS, errors)
            .unwrap_or_default(),
        max_bytes: section
            .size_within("output_max", MAX_BYTES, errors)
            .unwrap_or(default.max_bytes),
    }
}

fn name(section: &Section, key: &str, errors: &mut Errors) -> Option<String> {
    let text = section.text(key, errors)?;
    if is_name(&text) {
        return Some(text);
    }
    let message = format!("{key} = {text:?} is not a name");
    errors.add(section.source, section.span(key), message, NAMES);
    None
}
