//! Edited rows back into records: an edit's keys onto the row, and the row's words into the policy's.
//!
//! Refuses unknown keys with a guess and impossible values with what would be possible. Whether names that a record
//! mentions exist is said by [`super::sense`].

use crate::config::{BUDGET_KINDS, PERIODS, PREEMPT_MODES, REPEATS, idle_sense, is_user};
use crate::http::error::ApiError;
use gmodel::Instant;
use gmodel::hostlist::Hostlist;
use gmodel::idle::{IdleAction, IdlePolicy};
use gmodel::policy::{
    ALL_GPUS, Account, AccountUser, Budget, GpuAmounts, JobLimits, Limits, Qos, ROOT_ACCOUNT,
    Reservation, ReservedPart,
};
use gmodel::suggest::did_you_mean;
use gwire::api::{
    AccountRow, BudgetRow, Gpus, IdlePolicyRow, JobLimitsRow, LimitsRow, PolicyEdit, QosRow,
    ReservationRow, UserRow,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

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
const JOB_LIMIT_KEYS: [&str; 5] = ["max_time_secs", "nodes", "cpus", "gpus", "min_gpus"];
const IDLE_KEYS: [&str; 6] = [
    "action",
    "warn_after_secs",
    "act_after_secs",
    "grace_secs",
    "gpus_percent",
    "max_requeues",
];
/// Keys with tables of bounds: an edit of some bounds leaves the others.
const TABLES: [&str; 3] = ["group", "per_user", "per_account"];
const LISTS: [&str; 6] = [
    "allow_qos",
    "coordinators",
    "preempt",
    "users",
    "accounts",
    "budgets",
];

pub(crate) const ACCOUNT_KEYS: [&str; 14] = [
    "parent",
    "description",
    "shares",
    "guaranteed",
    "limit",
    "lend_limit",
    "budgets",
    "group",
    "per_user",
    "allow_qos",
    "default_qos",
    "coordinators",
    "users_only",
    "closed",
];
pub(crate) const QOS_KEYS: [&str; 13] = [
    "description",
    "priority",
    "usage_factor",
    "preempt",
    "preempt_mode",
    "min_run_secs",
    "group",
    "per_user",
    "per_account",
    "per_job",
    "headroom",
    "outside_quota",
    "idle",
];
pub(crate) const RESERVATION_KEYS: [&str; 19] = [
    "start",
    "duration_secs",
    "repeat",
    "nodes",
    "node_count",
    "gpus",
    "users",
    "accounts",
    "partition",
    "features",
    "maintenance",
    "flex",
    "ignore_running",
    "magnetic",
    "overlap",
    "purge_idle_secs",
    "static_nodes",
    "release_jobs",
    "skip_until",
];
const USER_KEYS: [&str; 10] = [
    "shares",
    "default",
    "running_jobs",
    "submitted_jobs",
    "gpus",
    "cpus",
    "nodes",
    "running_gpu_hours",
    "array_tasks",
    "submits_per_minute",
];

/// The row with the edit's keys put over it.
pub(crate) fn edited<R: Serialize + DeserializeOwned>(
    row: &R,
    edit: &PolicyEdit,
    known: &[&str],
) -> Result<R, ApiError> {
    let mut all = match serde_json::to_value(row) {
        Ok(Value::Object(all)) => all,
        _ => {
            return Err(ApiError::unavailable(
                "a record is no object; this is a bug",
            ));
        }
    };
    for (key, value) in &edit.change {
        put(&mut all, key, value, known)?;
    }
    serde_json::from_value(Value::Object(all))
        .map_err(|error| ApiError::invalid(format!("the change cannot be read: {error}")))
}

/// A user's entry with the edit's keys put over it.
pub(crate) fn edited_user(row: &UserRow, edit: &PolicyEdit) -> Result<UserRow, ApiError> {
    edited(row, edit, &USER_KEYS)
}

fn put(
    all: &mut Map<String, Value>,
    key: &str,
    value: &Value,
    known: &[&str],
) -> Result<(), ApiError> {
    let (sign, name) = match key.strip_prefix(['+', '-']) {
        Some(name) => (key.chars().next(), name),
        None => (None, key),
    };
    if !known.contains(&name) {
        let guess = did_you_mean(name, known.iter().copied());
        return Err(ApiError::invalid(format!(
            "{name:?} cannot be set.{guess} Keys: {}",
            known.join(", ")
        )));
    }
    let tables: &[&str] = match name {
        "per_job" => &JOB_LIMIT_KEYS,
        "idle" => &IDLE_KEYS,
        _ => &LIMIT_KEYS,
    };
    match sign {
        // Without the table the partition's counts.
        None if name == "idle" && !value.is_null() => {
            all.entry(name).or_insert_with(|| Value::Object(Map::new()));
            put_into_table(all, name, value, tables)
        }
        Some(sign) => add_or_take(all, sign, name, value),
        None if TABLES.contains(&name) || name == "per_job" => {
            put_into_table(all, name, value, tables)
        }
        // Nothing is said of it any more: what it is without a word.
        None if value.is_null() => {
            all.remove(name);
            Ok(())
        }
        None => {
            all.insert(name.to_owned(), value.clone());
            Ok(())
        }
    }
}

fn add_or_take(
    all: &mut Map<String, Value>,
    sign: char,
    name: &str,
    value: &Value,
) -> Result<(), ApiError> {
    let wrong = || {
        ApiError::invalid(format!(
            "{sign}{name} is for lists of names, as {}",
            LISTS.join(", ")
        ))
    };
    let (Some(have), Some(words)) = (
        all.get_mut(name).and_then(Value::as_array_mut),
        value.as_array(),
    ) else {
        return Err(wrong());
    };
    let had_some = !have.is_empty();
    have.retain(|item| !words.contains(item));
    // An empty list is none of its own.
    if name == "allow_qos" && sign == '-' && had_some && have.is_empty() {
        return Err(ApiError::invalid(
            "with the last QOS of the list gone those of the account above would be allowed, or all. Put another there first, or write allow_qos= if that is meant",
        ));
    }
    if sign == '+' {
        have.extend(words.iter().cloned());
    }
    Ok(())
}

fn put_into_table(
    all: &mut Map<String, Value>,
    name: &str,
    value: &Value,
    known: &[&str],
) -> Result<(), ApiError> {
    let wrong = || ApiError::invalid(format!("{name} is a table of {}", known.join(", ")));
    if value.is_null() {
        all.insert(name.to_owned(), Value::Object(Map::new()));
        return Ok(());
    }
    let (Some(table), Some(change)) = (
        all.get_mut(name).and_then(Value::as_object_mut),
        value.as_object(),
    ) else {
        return Err(wrong());
    };
    for (key, value) in change {
        if !known.contains(&key.as_str()) {
            let guess = did_you_mean(key, known.iter().copied());
            return Err(ApiError::invalid(format!(
                "{name} has no {key:?}.{guess} Keys: {}",
                known.join(", ")
            )));
        }
        table.insert(key.clone(), value.clone());
    }
    Ok(())
}

pub(crate) fn account(name: &str, row: AccountRow) -> Result<Account, ApiError> {
    let users = row
        .users
        .into_iter()
        .map(|(user, row)| Ok((user_name(&user)?, user_entry(row)?)));
    Ok(Account {
        name: name.to_owned(),
        parent: row
            .parent
            .filter(|parent| !parent.is_empty() && parent != ROOT_ACCOUNT),
        description: row.description,
        shares: row.shares,
        guaranteed: amounts("guaranteed", row.guaranteed)?,
        limit: amounts("limit", row.limit)?,
        lend_limit: amounts("lend_limit", row.lend_limit)?,
        budgets: row
            .budgets
            .into_iter()
            .map(budget)
            .collect::<Result<_, _>>()?,
        group: limits(row.group)?,
        per_user: limits(row.per_user)?,
        allow_qos: row.allow_qos,
        default_qos: row.default_qos.filter(|qos| !qos.is_empty()),
        coordinators: row
            .coordinators
            .iter()
            .map(|user| user_name(user))
            .collect::<Result<_, _>>()?,
        users: users.collect::<Result<_, ApiError>>()?,
        users_only: row.users_only,
        closed: row.closed,
    })
}

pub(crate) fn user_entry(row: UserRow) -> Result<AccountUser, ApiError> {
    Ok(AccountUser {
        shares: row.shares,
        limits: limits(row.limits)?,
        is_default: row.default,
    })
}

pub(crate) fn user_name(name: &str) -> Result<String, ApiError> {
    if is_user(name) {
        return Ok(name.to_owned());
    }
    Err(ApiError::invalid(format!("{name:?} is no name of a user")))
}

pub(crate) fn qos(name: &str, row: QosRow) -> Result<Qos, ApiError> {
    let factor = milli("usage_factor", row.usage_factor, 1_000_000)?;
    let mode = row.preempt_mode.filter(|mode| !mode.is_empty());
    Ok(Qos {
        name: name.to_owned(),
        description: row.description,
        priority: row.priority,
        usage_factor_milli: u32::try_from(factor).unwrap_or(u32::MAX),
        preempt: row.preempt,
        preempt_mode: mode
            .map(|mode| word("preempt_mode", &mode, &PREEMPT_MODES))
            .transpose()?,
        min_run_secs: row.min_run_secs,
        group: limits(row.group)?,
        per_user: limits(row.per_user)?,
        per_account: limits(row.per_account)?,
        per_job: job_limits(row.per_job)?,
        headroom: amounts("headroom", row.headroom)?,
        outside_quota: row.outside_quota,
        idle: row.idle.map(idle).transpose()?,
    })
}

fn idle(row: IdlePolicyRow) -> Result<IdlePolicy, ApiError> {
    let known = IdleAction::ALL.map(|(word, _)| word).join(", ");
    let policy = row.policy().ok_or_else(|| {
        ApiError::invalid(format!(
            "idle.action = {:?}: it is one of {known}",
            row.action
        ))
    })?;
    if [policy.warn_after_secs, policy.act_after_secs].contains(&0) {
        return Err(ApiError::invalid(
            "idle.warn_after and idle.act_after: a second at least",
        ));
    }
    idle_sense(&policy)
        .map_err(|(_, wrong, hint)| ApiError::invalid(format!("idle: {wrong}: {hint}")))?;
    Ok(policy)
}

pub(crate) fn reservation(name: &str, row: ReservationRow) -> Result<Reservation, ApiError> {
    let Some(Instant(start)) = row.start else {
        return Err(ApiError::invalid(format!(
            "reservation {name:?} has no start"
        )));
    };
    if row.duration_secs == 0 {
        return Err(ApiError::invalid(format!(
            "reservation {name:?} has no duration"
        )));
    }
    let repeat = if row.repeat.is_empty() {
        "once"
    } else {
        &row.repeat
    };
    Ok(Reservation {
        name: name.to_owned(),
        start,
        duration_secs: row.duration_secs,
        repeat: word("repeat", repeat, &REPEATS)?,
        what: reserved_part(name, row.nodes, row.node_count, row.gpus)?,
        users: row
            .users
            .iter()
            .map(|user| user_name(user))
            .collect::<Result<_, _>>()?,
        accounts: row.accounts,
        partition: row.partition.filter(|partition| !partition.is_empty()),
        features: row.features.unwrap_or_default().trim().to_owned(),
        maintenance: row.maintenance,
        flex: row.flex,
        ignore_running: row.ignore_running,
        magnetic: row.magnetic,
        overlap: row.overlap,
        purge_idle_secs: row.purge_idle_secs,
        static_nodes: row.static_nodes,
        release_jobs: row.release_jobs,
        skip_until: row.skip_until.map(|Instant(at)| at),
        created_by: row.created_by,
        ..Reservation::default()
    })
}

fn reserved_part(
    name: &str,
    nodes: Option<String>,
    count: Option<u32>,
    gpus: Option<Gpus>,
) -> Result<ReservedPart, ApiError> {
    let nodes = nodes.filter(|nodes| !nodes.is_empty());
    match (
        nodes,
        count.filter(|count| *count > 0),
        gpus.filter(|gpus| !gpus.is_empty()),
    ) {
        (Some(nodes), None, None) if nodes.eq_ignore_ascii_case("ALL") => {
            Ok(ReservedPart::AllNodes)
        }
        (Some(nodes), None, None) => Hostlist::parse(&nodes)
            .map(ReservedPart::Nodes)
            .map_err(|error| ApiError::invalid(format!("nodes: {error}"))),
        (None, Some(count), None) => Ok(ReservedPart::NodeCount(count)),
        (None, None, Some(gpus)) => Ok(ReservedPart::Gpus(
            amounts("gpus", Some(gpus))?.unwrap_or_default(),
        )),
        (None, None, None) => {
            let text = format!(
                "reservation {name:?} reserves nothing: name nodes (a host list, or ALL), node_count or gpus"
            );
            Err(ApiError::invalid(text))
        }
        _ => Err(ApiError::invalid(format!(
            "reservation {name:?}: nodes, node_count and gpus exclude each other. Keep one of them"
        ))),
    }
}

fn budget(row: BudgetRow) -> Result<Budget, ApiError> {
    Ok(Budget {
        kind: word("kind of a budget", &row.kind, &BUDGET_KINDS)?,
        gpu_hours: row.gpu_hours,
        period: word("period", &row.period, &PERIODS)?,
        gpu_type: row
            .gpu_type
            .map(|gpu_type| gpu_type.to_ascii_lowercase())
            .filter(|gpu_type| gpu_type != ALL_GPUS),
    })
}

fn limits(row: LimitsRow) -> Result<Limits, ApiError> {
    Ok(Limits {
        running_jobs: row.running_jobs,
        submitted_jobs: row.submitted_jobs,
        gpus: amounts("gpus", row.gpus)?,
        cpus: row.cpus,
        nodes: row.nodes,
        running_gpu_hours: row.running_gpu_hours,
        array_tasks: row.array_tasks,
        submits_per_minute: row.submits_per_minute,
    })
}

fn job_limits(row: JobLimitsRow) -> Result<JobLimits, ApiError> {
    Ok(JobLimits {
        time_secs: row.max_time_secs,
        nodes: row.nodes,
        cpus: row.cpus,
        gpus: amounts("gpus", row.gpus)?,
        min_gpus: amounts("min_gpus", row.min_gpus)?,
    })
}

fn amounts(key: &str, gpus: Option<Gpus>) -> Result<Option<GpuAmounts>, ApiError> {
    let Some(gpus) = gpus else { return Ok(None) };
    let mut amounts = GpuAmounts::default();
    for (gpu_type, count) in gpus {
        let is_type = (1..=64).contains(&gpu_type.len())
            && gpu_type
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b));
        if !is_type {
            return Err(ApiError::invalid(format!(
                "{key}: {gpu_type:?} is no type of GPU, as h100, or gpu for all types"
            )));
        }
        amounts
            .0
            .insert(gpu_type.to_ascii_lowercase(), milli(key, count, 1_000_000)?);
    }
    Ok(Some(amounts))
}

fn milli(key: &str, number: f64, most: u32) -> Result<u64, ApiError> {
    if !(0.0..=f64::from(most)).contains(&number) {
        return Err(ApiError::invalid(format!(
            "{key} = {number} is out of bounds: 0 to {most} is allowed"
        )));
    }
    Ok((number * 1000.0).round() as u64)
}

fn word<T: Copy>(what: &str, text: &str, words: &[(&str, T)]) -> Result<T, ApiError> {
    if let Some((_, value)) = words
        .iter()
        .find(|(word, _)| word.eq_ignore_ascii_case(text))
    {
        return Ok(*value);
    }
    let names: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
    let guess = did_you_mean(text, names.iter().copied());
    Err(ApiError::invalid(format!(
        "{text:?} is no {what}.{guess} There are: {}",
        names.join(", ")
    )))
}
