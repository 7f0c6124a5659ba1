//! Tables of limits, as accounts, QOS and partitions have them: what may be held at once, and what one job may ask.
//!
//! Owns their keys; never what they are applied to. The Slurm names of the bounds are in gpuctld.toml(5).

use crate::error::Errors;
use crate::section::{Section, gpu_text};
use gmodel::policy::{JobLimits, Limits};

const LIMIT_KEYS: [&str; 8] = [
    "running_jobs",
    "submitted_jobs",
    "gpus",
    "cpus",
    "nodes",
    "running_gpu_hours",
    "array_tasks",
    "submits_per_minute",
];

const JOB_LIMIT_KEYS: [&str; 5] = ["max_time", "nodes", "cpus", "gpus", "min_gpus"];

/// `[HOLDER.key]` with bounds of what is held at once; empty when it is not there.
pub fn limits(section: &Section, holder: &str, key: &str, errors: &mut Errors) -> Limits {
    let Some(table) = section.table(key, errors) else {
        return Limits::default();
    };
    let limits = Section::open(
        section.source,
        table,
        &LIMIT_KEYS,
        &format!("[{holder}.{key}]"),
        errors,
    );
    read(&limits, errors)
}

/// Bounds among other keys of a table.
pub fn read(section: &Section, errors: &mut Errors) -> Limits {
    let mut count = |key| section.number(key, 0..=100_000_000, errors);
    Limits {
        running_jobs: count("running_jobs"),
        submitted_jobs: count("submitted_jobs"),
        cpus: count("cpus"),
        nodes: count("nodes"),
        running_gpu_hours: count("running_gpu_hours").map(u64::from),
        array_tasks: count("array_tasks"),
        submits_per_minute: count("submits_per_minute"),
        gpus: section.amounts("gpus", errors),
    }
}

/// The keys of [`read`] together with others.
pub fn keys_with(others: &[&'static str]) -> Vec<&'static str> {
    LIMIT_KEYS.iter().chain(others).copied().collect()
}

/// `[qos.NAME.per_job]`.
pub fn job_limits(section: &Section, holder: &str, key: &str, errors: &mut Errors) -> JobLimits {
    let Some(table) = section.table(key, errors) else {
        return JobLimits::default();
    };
    let limits = Section::open(
        section.source,
        table,
        &JOB_LIMIT_KEYS,
        &format!("[{holder}.{key}]"),
        errors,
    );
    let bounds = JobLimits {
        time_secs: limits.limit("max_time", errors).flatten(),
        nodes: limits.number("nodes", 1..=1_000_000, errors),
        cpus: limits.number("cpus", 1..=100_000_000, errors),
        gpus: limits.amounts("gpus", errors),
        min_gpus: limits.amounts("min_gpus", errors),
    };
    if let Some((kind, least, most)) = bounds.asks_beyond_its_bound() {
        let text = format!(
            "min_gpus {kind} is {}, more than gpus with {}: no job could be submitted",
            gpu_text(least),
            gpu_text(most)
        );
        errors.add(
            section.source,
            limits.span("min_gpus"),
            text,
            "make it gpus or less",
        );
    }
    bounds
}
