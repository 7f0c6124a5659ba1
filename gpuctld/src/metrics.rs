//! What `/metrics` (Prometheus text) and `gadm diag` say: jobs, nodes and GPUs by state, times of the core.
//!
//! Counts come from the published state, times from [`CoreStats`]; nothing here changes anything. [`pool`] has what a site watches.

mod census;
mod exposition;
mod pool;

use crate::core_thread::{CoreHandle, CoreStats};
use crate::histogram::{Histogram, HistogramValues};
use crate::http::node::difference::differences;
use crate::mail_counts::MailCounts;
use census::census;
use exposition::{Exposition, Scale};
use gcore::ctl::{State, open_breakers};
use gmodel::Timestamp;
use gwire::api::SCHEMA;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Routes and the times of their answers.
pub type RequestTimes = [(String, Arc<Histogram>)];

/// The histograms of the core: name, meaning, unit is microseconds unless said.
fn histograms(stats: &CoreStats) -> [(&'static str, &'static str, &Histogram); 5] {
    [
        ("commit", "Time of a commit of the core", &stats.commit),
        ("queue", "Time an input waited for the core", &stats.queue),
        (
            "answer",
            "Time from a command's arrival to its answer",
            &stats.answer,
        ),
        ("pass", "Time of a pass of the scheduler", &stats.pass),
        (
            "checkpoint",
            "Time of a checkpoint of the write-ahead log",
            &stats.checkpoint,
        ),
    ]
}

/// Prometheus text format 0.0.4. `sees_all`: with what accounts and jobs hold.
pub fn prometheus(
    state: &State,
    core: &CoreHandle,
    requests: &RequestTimes,
    mail: &MailCounts,
    up: Duration,
    now: Timestamp,
    sees_all: bool,
) -> String {
    let mut out = Exposition::default();
    out.family(
        "gpupool_build_info",
        "gauge",
        "1, with the release and the name of the cluster",
    );
    out.sample(
        "gpupool_build_info",
        &[
            ("version", env!("CARGO_PKG_VERSION")),
            ("name", &state.config.name),
        ],
        1.0,
    );
    cluster(&mut out, state, now);
    pool::partitions(&mut out, state);
    pool::demand(&mut out, state, now);
    pool::out_of_service(&mut out, state);
    pool::job_flow(&mut out, state, &core.stats().flow);
    if sees_all {
        pool::accounts(&mut out, state, now);
        pool::job_gpus(&mut out, state);
    }
    controller(&mut out, core, requests, mail, up);
    out.text
}

/// Jobs, nodes and GPUs by state.
fn cluster(out: &mut Exposition, state: &State, now: Timestamp) {
    let count = census(state);
    out.family(
        "gpupool_jobs",
        "gauge",
        "Jobs and array tasks in memory by state",
    );
    for (state, jobs) in &count.jobs {
        out.sample("gpupool_jobs", &[("state", state)], *jobs as f64);
    }
    out.family("gpupool_nodes", "gauge", "Compute nodes by state");
    for (state, nodes) in &count.nodes {
        out.sample("gpupool_nodes", &[("state", state)], *nodes as f64);
    }
    out.family("gpupool_gpus", "gauge", "GPUs by type and state");
    for ((gpu_type, state), gpus) in &count.gpus {
        out.sample(
            "gpupool_gpus",
            &[("type", gpu_type), ("state", state)],
            *gpus,
        );
    }
    out.family("gpupool_gpu_health", "gauge", "GPUs by how they stand");
    for (state, gpus) in &count.health {
        out.sample("gpupool_gpu_health", &[("state", state)], *gpus as f64);
    }
    out.family(
        "gpupool_breaker_open",
        "gauge",
        "1 for a partition in which steps of repair wait for the breaker",
    );
    let open = open_breakers(state, now);
    for partition in &state.config.partitions {
        let is_open = open.iter().any(|(name, ..)| *name == partition.name);
        out.sample(
            "gpupool_breaker_open",
            &[("partition", &partition.name)],
            f64::from(u8::from(is_open)),
        );
    }
    let differing = differences(state).len() as f64;
    out.one(
        "gpupool_node_differences",
        "gauge",
        "Things in which nodes differ from what the configuration says they should have",
        differing,
    );
    out.one(
        "gpupool_runs",
        "gauge",
        "Runs that hold something",
        count.runs as f64,
    );
    out.one(
        "gpupool_arrays",
        "gauge",
        "Job arrays in memory",
        count.arrays as f64,
    );
}

/// The daemon itself: what waits for it, how long it takes, its disk.
fn controller(
    out: &mut Exposition,
    core: &CoreHandle,
    requests: &RequestTimes,
    mail: &MailCounts,
    up: Duration,
) {
    let stats = core.stats();
    out.one(
        "gpupool_queue_length",
        "gauge",
        "Commands waiting for the core",
        core.queue_len() as f64,
    );
    out.one(
        "gpupool_uptime_seconds",
        "gauge",
        "Seconds since gpuctld started",
        up.as_secs_f64(),
    );
    let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Relaxed) as f64;
    out.one(
        "gpupool_commits_total",
        "counter",
        "Commits of the core",
        load(&stats.commits),
    );
    out.one(
        "gpupool_events_total",
        "counter",
        "Events stored",
        load(&stats.events),
    );
    out.one(
        "gpupool_refusals_total",
        "counter",
        "Commands refused",
        load(&stats.refusals),
    );
    out.one(
        "gpupool_starts_total",
        "counter",
        "Jobs started by the scheduler",
        load(&stats.starts),
    );
    out.one(
        "gpupool_views_total",
        "counter",
        "Views of the state made for readers",
        load(&stats.views),
    );
    out.one(
        "gpupool_disk_free_bytes",
        "gauge",
        "Bytes free where the database is",
        load(&stats.disk_free_bytes),
    );
    out.one(
        "gpupool_wal_bytes",
        "gauge",
        "Size of the write-ahead log",
        load(&stats.wal_bytes),
    );
    out.one(
        "gpupool_database_bytes",
        "gauge",
        "Size of the database",
        load(&stats.database_bytes),
    );
    out.one(
        "gpupool_database_free_bytes",
        "gauge",
        "Bytes of the database that are free to be used again",
        load(&stats.database_free_bytes),
    );
    for (name, help, count) in [
        (
            "gpupool_mail_sent_total",
            "Letters to users that the mail server took",
            &mail.sent,
        ),
        (
            "gpupool_mail_dropped_total",
            "Letters that the mail server refused for good, or beyond per_user_hour",
            &mail.dropped,
        ),
        (
            "gpupool_mail_failed_tries_total",
            "Tries to send a letter that found no usable mail server",
            &mail.failed_tries,
        ),
    ] {
        out.one(name, "counter", help, load(count));
    }
    let damaged = f64::from(u8::from(stats.damage.get().is_some()));
    out.one(
        "gpupool_database_damaged",
        "gauge",
        "1 when pages of the database are not what was written: restore a backup",
        damaged,
    );
    for (name, help, histogram) in histograms(stats) {
        let family = format!("gpupool_{name}_seconds");
        out.family(&family, "histogram", help);
        out.histogram(&family, &[], &histogram.values(), Scale::Micros);
    }
    out.family(
        "gpupool_request_seconds",
        "histogram",
        "Time of answering a request, by route",
    );
    for (route, times) in requests {
        out.histogram(
            "gpupool_request_seconds",
            &[("route", route)],
            &times.values(),
            Scale::Micros,
        );
    }
}

/// The answer of `GET /v1/diag`.
pub fn diag(
    state: &State,
    core: &CoreHandle,
    requests: &RequestTimes,
    up: Duration,
    now: Timestamp,
) -> Value {
    let count = census(state);
    let stats = core.stats();
    let times: Map<String, Value> = histograms(stats)
        .iter()
        .map(|(name, _, histogram)| ((*name).to_owned(), summary(&histogram.values())))
        .collect();
    let routes: Map<String, Value> = requests
        .iter()
        .map(|(route, times)| (route.clone(), summary(&times.values())))
        .collect();
    let mut gpus: BTreeMap<&str, BTreeMap<&str, f64>> = BTreeMap::new();
    for ((gpu_type, state), amount) in &count.gpus {
        gpus.entry(gpu_type).or_default().insert(state, *amount);
    }
    let batch = stats.batch_inputs.values();
    json!({
        "schema": SCHEMA,
        "release": env!("CARGO_PKG_VERSION"),
        "cluster": state.config.name,
        "time": now.to_string(),
        "uptime_secs": up.as_secs(),
        "incarnation": state.incarnation,
        "seq": state.seq.0,
        "next_job": state.next_job,
        "jobs": count.jobs,
        "arrays": count.arrays,
        "runs": count.runs,
        "nodes": count.nodes,
        "gpus": gpus,
        "gpu_health": count.health,
        "breaker": breaker(state, now),
        "queue_length": core.queue_len(),
        "commits": stats.commits.load(Relaxed),
        "events": stats.events.load(Relaxed),
        "refusals": stats.refusals.load(Relaxed),
        "starts": stats.starts.load(Relaxed),
        "views": stats.views.load(Relaxed),
        "inputs_per_commit": {"mean": tenths(batch.sum, batch.count), "max": batch.max},
        "disk_free_bytes": stats.disk_free_bytes.load(Relaxed),
        "wal_bytes": stats.wal_bytes.load(Relaxed),
        "database_bytes": stats.database_bytes.load(Relaxed),
        "database_free_bytes": stats.database_free_bytes.load(Relaxed),
        "database_damage": stats.damage.get(),
        "times": times,
        "requests": routes,
    })
}

/// The mean of small numbers, to a tenth.
fn tenths(sum: u64, count: u64) -> f64 {
    (sum.saturating_mul(10) as f64 / count.max(1) as f64).round() / 10.0
}

/// Loudly: what waits, and why. Empty while nothing does.
fn breaker(state: &State, now: Timestamp) -> Vec<String> {
    let words = |(partition, gone, most): (String, u64, u64)| {
        let nodes = |milli: u64| milli as f64 / 1000.0;
        format!(
            "open in {partition}: {} nodes' worth of GPUs and nodes went by themselves within an hour, {} may; steps of repair wait",
            nodes(gone),
            nodes(most)
        )
    };
    open_breakers(state, now).into_iter().map(words).collect()
}

fn summary(values: &HistogramValues) -> Value {
    json!({
        "count": values.count,
        "mean_us": values.mean(),
        "p50_us": values.percentile(50),
        "p99_us": values.percentile(99),
        "max_us": values.max,
    })
}
