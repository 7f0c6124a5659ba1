//! What a site watches of its pool: demand and waits, what accounts and jobs hold, what is out of service.
//!
//! One series joins what a GPU's exporter measures with the job on it (`gpupool_job_gpu_info`); no other family has a job in it.

use super::census::gpus_of;
use super::exposition::{Exposition, Scale};
use crate::core_thread::JobFlow;
use crate::http::node::gpu::state_word;
use crate::http::policy::row::held_by_account;
use gcore::ctl::{Node, State};
use gmodel::node::Role;
use gmodel::policy::{ALL_GPUS, GpuAmounts};
use gmodel::{JobSpec, JobState, Reason, ReasonCode, Timestamp, partition_list};
use gsched::ledger::Ledger;
use std::collections::BTreeMap;

/// Of a text that becomes a label, characters.
const MAX_LABEL_CHARS: usize = 120;

/// Pending jobs of one partition.
#[derive(Default)]
struct Demand<'a> {
    /// Array tasks count one each.
    jobs: BTreeMap<ReasonCode, u64>,
    /// Thousandths of GPUs by account and type.
    gpu_milli: BTreeMap<(&'a str, &'a str), u64>,
    /// When the job could start that has waited longest.
    oldest: Option<Timestamp>,
}

impl<'a> Demand<'a> {
    fn add(&mut self, spec: &'a JobSpec, tasks: u64, reason: &Reason, since: Option<Timestamp>) {
        *self.jobs.entry(reason.code).or_default() += tasks;
        let (gpu_type, milli) = gpolicy::priority::gpus_asked(&spec.request);
        if milli > 0 {
            let key = (spec.account.as_str(), gpu_type.unwrap_or("any"));
            *self.gpu_milli.entry(key).or_default() += milli.saturating_mul(tasks);
        }
        if let Some(since) = since {
            self.oldest = Some(self.oldest.map_or(since, |oldest| oldest.min(since)));
        }
    }
}

fn first_partition(spec: &JobSpec) -> Option<&str> {
    partition_list::names(&spec.partition).next()
}

/// Pending jobs by partition; of a list of partitions by the first.
fn demand_by_partition(state: &State, now: Timestamp) -> BTreeMap<&str, Demand<'_>> {
    let mut all: BTreeMap<&str, Demand> = BTreeMap::new();
    for partition in &state.config.partitions {
        all.insert(&partition.name, Demand::default());
    }
    let mut add = |spec, tasks, reason, since| {
        let first = first_partition(spec);
        if let Some(demand) = first.and_then(|name| all.get_mut(name)) {
            demand.add(spec, tasks, reason, since);
        }
    };
    for job in state.jobs.values() {
        if job.state == JobState::Pending {
            let is_able = job.holds.is_empty() && job.waits.is_none() && job.is_due(now);
            let since = is_able.then_some(job.submitted.max(job.eligible));
            add(&job.spec, 1, &job.reason, since);
        }
    }
    for array in state.arrays.values() {
        let tasks = array.pending.len();
        if tasks > 0 {
            let is_able = array.holds.is_empty() && array.waits.is_none() && array.eligible <= now;
            let since = is_able.then_some(array.submitted.max(array.eligible));
            add(&array.spec, tasks, &array.reason, since);
        }
    }
    all
}

/// GPUs of each partition.
pub(super) fn partitions(out: &mut Exposition, state: &State) {
    let name = "gpupool_partition_gpus";
    out.family(
        name,
        "gauge",
        "GPUs of a partition by type and state; a node may be in several partitions",
    );
    for partition in &state.config.partitions {
        let mut gpus: BTreeMap<(String, &str), f64> = BTreeMap::new();
        let is_in = |node: &&Node| {
            node.role == Role::Compute && partition.holds(&node.name, &node.inventory.features)
        };
        for node in state.nodes.values().filter(is_in) {
            gpus_of(state, node, |gpu_type, gpu_state, amount| {
                *gpus.entry((gpu_type.to_owned(), gpu_state)).or_default() += amount;
            });
        }
        for ((gpu_type, gpu_state), amount) in gpus {
            let labels = [
                ("partition", partition.name.as_str()),
                ("type", &gpu_type),
                ("state", gpu_state),
            ];
            out.sample(name, &labels, amount);
        }
    }
}

/// What waits for each partition.
pub(super) fn demand(out: &mut Exposition, state: &State, now: Timestamp) {
    let all = demand_by_partition(state, now);
    out.family(
        "gpupool_pending_jobs",
        "gauge",
        "Pending jobs and array tasks by the first partition they name and the reason of gq",
    );
    for (partition, demand) in &all {
        for (reason, jobs) in &demand.jobs {
            let reason = reason.to_string();
            let labels = [("partition", *partition), ("reason", &reason)];
            out.sample("gpupool_pending_jobs", &labels, *jobs as f64);
        }
    }
    out.family(
        "gpupool_pending_gpus",
        "gauge",
        "GPUs that pending jobs ask for, of the type they name first or any",
    );
    for (partition, demand) in &all {
        for ((account, gpu_type), milli) in &demand.gpu_milli {
            let labels = [
                ("partition", *partition),
                ("account", account),
                ("type", gpu_type),
            ];
            out.sample("gpupool_pending_gpus", &labels, in_gpus(*milli));
        }
    }
    out.family(
        "gpupool_oldest_pending_seconds",
        "gauge",
        "How long the job has waited that could start first: not held, its begin time and dependencies met",
    );
    for (partition, demand) in &all {
        let waited = demand
            .oldest
            .map_or(0, |since| now.since_millis(since).max(0));
        let labels = [("partition", *partition)];
        out.sample(
            "gpupool_oldest_pending_seconds",
            &labels,
            waited as f64 / 1e3,
        );
    }
}

fn in_gpus(milli: u64) -> f64 {
    milli as f64 / 1000.0
}

/// Starts and ends since this controller started.
pub(super) fn job_flow(out: &mut Exposition, state: &State, flow: &JobFlow) {
    for partition in &state.config.partitions {
        flow.begin(&partition.name);
    }
    out.family(
        "gpupool_wait_seconds",
        "histogram",
        "From the time a job could start (submitted, begin time reached) to its first start",
    );
    flow.read(|partition, flow| {
        for (class, waits) in &flow.waits {
            let labels = [("partition", partition), ("class", class)];
            out.histogram(
                "gpupool_wait_seconds",
                &labels,
                &waits.values(),
                Scale::Seconds,
            );
        }
    });
    out.family(
        "gpupool_reclaim_seconds",
        "histogram",
        "From the order to a run to make room for another job, its checkpoint first, until it holds nothing",
    );
    flow.read(|partition, flow| {
        let labels = [("partition", partition)];
        out.histogram(
            "gpupool_reclaim_seconds",
            &labels,
            &flow.reclaims.values(),
            Scale::Seconds,
        );
    });
    out.family(
        "gpupool_runs_ended_total",
        "counter",
        "Runs that ended, by the state they ended in",
    );
    flow.read(|partition, flow| {
        for (state, runs) in &flow.ends {
            let labels = [("partition", partition), ("state", state)];
            out.sample("gpupool_runs_ended_total", &labels, *runs as f64);
        }
    });
}

/// Nodes and GPUs that take no work, one series each, with the reason.
pub(super) fn out_of_service(out: &mut Exposition, state: &State) {
    let compute = || {
        state
            .nodes
            .values()
            .filter(|node| node.role == Role::Compute)
    };
    out.family(
        "gpupool_node_out_of_service_info",
        "gauge",
        "1 for each node that takes no new jobs, with its state and the first reason",
    );
    for node in compute().filter(|node| !node.is_available()) {
        let view = state.node_view(node).to_string();
        let drain = node.drains.first().map(|mark| mark.reason.as_str());
        let reason = label(drain.unwrap_or(&node.inventory.unfit));
        let labels = [
            ("node", node.name.as_str()),
            ("state", &view),
            ("reason", &reason),
        ];
        out.sample("gpupool_node_out_of_service_info", &labels, 1.0);
    }
    out.family(
        "gpupool_gpu_out_of_service_info",
        "gauge",
        "1 for each GPU that is not given out, with how it stands and why",
    );
    for node in compute() {
        let sick = |gpu: &&gmodel::node::GpuEntry| {
            gpu.is_expected() && !(gpu.present && gpu.info.fault.is_empty())
        };
        for gpu in node.gpus.iter().filter(sick) {
            let (index, reason) = (gpu.info.index.to_string(), label(&gpu.info.fault));
            let labels = [
                ("node", node.name.as_str()),
                ("gpu", &index),
                ("uuid", &gpu.info.uuid),
                ("type", &gpu.info.gpu_type),
                ("state", state_word(gpu)),
                ("reason", &reason),
            ];
            out.sample("gpupool_gpu_out_of_service_info", &labels, 1.0);
        }
    }
}

fn label(text: &str) -> String {
    text.chars().take(MAX_LABEL_CHARS).collect()
}

/// What accounts hold, with those below them, beside what they are guaranteed, may hold and may spend.
pub(super) fn accounts(out: &mut Exposition, state: &State, now: Timestamp) {
    let name = "gpupool_account_gpus";
    out.family(
        name,
        "gauge",
        "GPUs that an account and those below it hold, by type and class: guaranteed, borrowed, outside (of quotas)",
    );
    for (account, held) in held_by_account(state) {
        for (class, amounts) in [
            ("guaranteed", &held.guaranteed),
            ("borrowed", &held.borrowed),
            ("outside", &held.outside),
        ] {
            for (gpu_type, gpus) in by_type(amounts) {
                let labels = [
                    ("account", account.as_str()),
                    ("type", gpu_type),
                    ("class", class),
                ];
                out.sample(name, &labels, gpus);
            }
        }
    }
    let all = || state.policy.accounts.values();
    let name = "gpupool_account_guaranteed_gpus";
    out.family(
        name,
        "gauge",
        "GPUs that an account is guaranteed, by type; gpu: all types together",
    );
    for account in all() {
        let Some(guaranteed) = &account.guaranteed else {
            continue;
        };
        let labels = |gpu_type| [("account", account.name.as_str()), ("type", gpu_type)];
        for (gpu_type, gpus) in by_type(guaranteed) {
            out.sample(name, &labels(gpu_type), gpus);
        }
        let sum = || by_type(guaranteed).map(|(_, gpus)| gpus).sum();
        let together = guaranteed.0.get(ALL_GPUS).map(|milli| in_gpus(*milli));
        out.sample(name, &labels(ALL_GPUS), together.unwrap_or_else(sum));
    }
    let name = "gpupool_account_limit_gpus";
    out.family(
        name,
        "gauge",
        "GPUs that an account may hold at once, by type; gpu: all types together",
    );
    for account in all() {
        for (gpu_type, milli) in account.limit.iter().flat_map(|limit| &limit.0) {
            let labels = [("account", account.name.as_str()), ("type", gpu_type)];
            out.sample(name, &labels, in_gpus(*milli));
        }
    }
    if all().any(|account| !account.budgets.is_empty()) {
        budgets(out, state, now);
    }
}

/// By type, without the sum of all.
fn by_type(amounts: &GpuAmounts) -> impl Iterator<Item = (&str, f64)> {
    amounts
        .0
        .iter()
        .filter(|(gpu_type, _)| *gpu_type != ALL_GPUS)
        .map(|(gpu_type, milli)| (gpu_type.as_str(), in_gpus(*milli)))
}

fn budgets(out: &mut Exposition, state: &State, now: Timestamp) {
    let ledger = Ledger::new(&gcore::ctl::snapshot(state, now));
    let secs = |gpu_time: u128| gpu_time as f64 * 3600.0 / gpolicy::limits::GPU_HOUR as f64;
    let families = [
        (
            "gpupool_account_budget_gpu_seconds",
            "GPU-seconds of a budget, of its running period",
        ),
        (
            "gpupool_account_budget_used_gpu_seconds",
            "GPU-seconds of a budget that were used in its running period",
        ),
        (
            "gpupool_account_budget_promised_gpu_seconds",
            "GPU-seconds of a budget that running jobs may still use, up to their limits",
        ),
    ];
    for (at, (name, help)) in families.iter().enumerate() {
        out.family(name, "gauge", help);
        for account in state.policy.accounts.values() {
            for (budget, (_, used)) in account.budgets.iter().zip(ledger.budgets(&account.name)) {
                let labels = [
                    ("account", account.name.as_str()),
                    ("kind", budget.kind.word()),
                    ("period", budget.period.word()),
                    ("type", budget.gpu_type.as_deref().unwrap_or("all")),
                ];
                let value = [
                    budget.gpu_hours as f64 * 3600.0,
                    secs(used.used),
                    secs(used.promised),
                ][at];
                out.sample(name, &labels, value);
            }
        }
    }
}

/// Which job has which GPU or slice: the one series to join on.
pub(super) fn job_gpus(out: &mut Exposition, state: &State) {
    let name = "gpupool_job_gpu_info";
    out.family(
        name,
        "gauge",
        "1 for each GPU or MIG slice that a job holds, to be joined with an exporter's metrics on uuid",
    );
    for run in state.runs.values() {
        let Some(job) = state.jobs.get(run.id.job) else {
            continue;
        };
        let id = job.shown_id();
        for (share, member) in run.allocation.iter().zip(&run.members) {
            let Some(node) = state.nodes.get(share.node).filter(|_| !member.is_clean()) else {
                continue;
            };
            for grant in &share.gpus.0 {
                let Some(gpu) = node.gpus.get(usize::from(grant.slot.0)) else {
                    continue;
                };
                let index = gpu.info.index.to_string();
                let labels = [
                    ("job", id.as_str()),
                    ("user", &job.spec.user.name),
                    ("account", &job.spec.account),
                    ("partition", &job.spec.partition),
                    ("node", &node.name),
                    ("gpu", &index),
                    ("uuid", &gpu.info.uuid),
                ];
                out.sample(name, &labels, 1.0);
            }
        }
    }
}
