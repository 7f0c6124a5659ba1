//! The tables of a policy in the words of gpuctld.toml(5): weights, fair share, preemption, accounts, QOS, limits.

use crate::toml_table::Reader;
use gmodel::checkpoint::CheckpointSpec;
use gmodel::policy::{
    Account, AccountUser, Budget, BudgetKind, FairShare, JobLimits, Limits, Period, PreemptConfig, PreemptMode,
    PriorityWeights, Qos,
};

pub(crate) const PREEMPT_MODES: [(&str, PreemptMode); 4] = [
    ("off", PreemptMode::Off),
    ("requeue", PreemptMode::Requeue),
    ("cancel", PreemptMode::Cancel),
    ("suspend", PreemptMode::Suspend),
];
const BUDGET_KINDS: [(&str, BudgetKind); 2] = [("guaranteed", BudgetKind::Guaranteed), ("cap", BudgetKind::Cap)];
const PERIODS: [(&str, Period); 5] = [
    ("day", Period::Day),
    ("week", Period::Week),
    ("month", Period::Month),
    ("quarter", Period::Quarter),
    ("year", Period::Year),
];
const MAX_COUNT: u32 = 100_000_000;
const MAX_WEIGHT: u32 = 1_000_000_000;

pub(crate) fn replace<T>(place: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *place = value;
    }
}

pub(crate) fn read_weights(table: &Reader, weights: &mut PriorityWeights) {
    let PriorityWeights { age, fair_share, qos, partition, size, site, max_age_secs, favor_small } = weights;
    let all = [
        ("age", age),
        ("fair_share", fair_share),
        ("qos", qos),
        ("partition", partition),
        ("size", size),
        ("site", site),
    ];
    for (key, weight) in all {
        replace(weight, table.number(key, MAX_WEIGHT));
    }
    replace(max_age_secs, table.time_secs("max_age").flatten());
    replace(favor_small, table.boolean("favor_small"));
}

pub(crate) fn read_fair_share(table: &Reader, fair: &mut FairShare) {
    replace(&mut fair.half_life_secs, table.time_secs("half_life").flatten());
    if let Some(weights) = table.gpu_amounts("gpu_weights") {
        fair.gpu_weights_milli = weights.0.into_iter().map(|(name, milli)| (name, milli as u32)).collect();
    }
    replace(&mut fair.cpu_weight_milli, table.milli("cpu_weight", 1_000_000).map(|milli| milli as u32));
    replace(&mut fair.mem_gib_weight_milli, table.milli("mem_gib_weight", 1_000_000).map(|milli| milli as u32));
}

pub(crate) fn read_preempt(table: &Reader, preempt: &mut PreemptConfig) {
    replace(&mut preempt.max_protected_loss_secs, table.time_secs("max_protected_loss").flatten());
    replace(&mut preempt.min_run_secs, table.time_secs("min_run").flatten());
    replace(&mut preempt.max_grace_secs, table.time_secs("max_grace").flatten());
    if let Some(text) = table.text("default_checkpoint").filter(|text| !text.is_empty()) {
        preempt.default_checkpoint = table.parsed("default_checkpoint", CheckpointSpec::parse(&text));
    }
}

pub(crate) fn account(name: &str, table: &Reader) -> Account {
    let mut users: std::collections::BTreeMap<String, AccountUser> =
        table.texts("users").unwrap_or_default().into_iter().map(|user| (user, AccountUser::default())).collect();
    users.extend(table.tables("user").into_iter().map(|(name, user)| (name.to_owned(), account_user(&user))));
    Account {
        name: name.to_owned(),
        parent: table.text("parent").filter(|parent| parent != gmodel::policy::ROOT_ACCOUNT),
        description: table.text("description").unwrap_or_default(),
        shares: table.number("shares", 1_000_000).unwrap_or(1),
        guaranteed: table.gpu_amounts("guaranteed"),
        limit: table.gpu_amounts("limit"),
        lend_limit: table.gpu_amounts("lend_limit"),
        budgets: table.list("budget").iter().filter_map(budget).collect(),
        group: limits(&table.table("group")),
        per_user: limits(&table.table("per_user")),
        allow_qos: table.texts("allow_qos").unwrap_or_default(),
        default_qos: table.text("default_qos"),
        coordinators: table.texts("coordinators").unwrap_or_default().into_iter().collect(),
        users,
        closed: table.boolean("closed").unwrap_or(false),
    }
}

fn account_user(table: &Reader) -> AccountUser {
    AccountUser {
        shares: table.number("shares", 1_000_000).unwrap_or(1),
        is_default: table.boolean("default").unwrap_or(false),
        limits: limits(table),
    }
}

fn budget(table: &Reader) -> Option<Budget> {
    let kind = table.word("kind", &BUDGET_KINDS);
    let gpu_hours = table.number("gpu_hours", u32::MAX);
    let period = table.word("period", &PERIODS);
    let gpu_type = table.text("gpu_type").map(|kind| kind.to_ascii_lowercase());
    for key in ["kind", "gpu_hours", "period"] {
        if !table.skip(key) {
            table.fail(key, format!("a budget has no {key}: kind, gpu_hours and period are needed"));
        }
    }
    Some(Budget { kind: kind?, gpu_hours: u64::from(gpu_hours?), period: period?, gpu_type })
}

pub(crate) fn limits(table: &Reader) -> Limits {
    let count = |key| table.number(key, MAX_COUNT);
    Limits {
        running_jobs: count("running_jobs"),
        submitted_jobs: count("submitted_jobs"),
        gpus: table.gpu_amounts("gpus"),
        cpus: count("cpus"),
        nodes: count("nodes"),
        running_gpu_hours: count("running_gpu_hours").map(u64::from),
        array_tasks: count("array_tasks"),
        submits_per_minute: count("submits_per_minute"),
    }
}

pub(crate) fn qos(name: &str, table: &Reader) -> Qos {
    let per_job = table.table("per_job");
    // Traces do not say what of their GPUs jobs used.
    table.skip("idle");
    Qos {
        name: name.to_owned(),
        description: table.text("description").unwrap_or_default(),
        priority: table.number("priority", MAX_WEIGHT).unwrap_or(0),
        usage_factor_milli: table.milli("usage_factor", 1_000_000).map_or(1000, |milli| milli as u32),
        preempt: table.texts("preempt").unwrap_or_default().into_iter().collect(),
        preempt_mode: table.word("preempt_mode", &PREEMPT_MODES),
        min_run_secs: table.time_secs("min_run").flatten().unwrap_or(0),
        group: limits(&table.table("group")),
        per_user: limits(&table.table("per_user")),
        per_account: limits(&table.table("per_account")),
        per_job: JobLimits {
            time_secs: per_job.time_secs("max_time").flatten(),
            nodes: per_job.number("nodes", 1_000_000),
            cpus: per_job.number("cpus", MAX_COUNT),
            gpus: per_job.gpu_amounts("gpus"),
            min_gpus: per_job.gpu_amounts("min_gpus"),
        },
        headroom: table.gpu_amounts("headroom"),
        outside_quota: table.boolean("outside_quota").unwrap_or(false),
        idle: None,
    }
}
