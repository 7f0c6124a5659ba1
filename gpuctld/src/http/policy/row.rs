//! Records of the policy as the API shows them, and what accounts hold now.
//!
//! Owns the way from a record to its row; the way back is [`super::record`]'s.

use crate::config::{
    BUDGET_KINDS, Config, PERIODS, PLACEMENTS, PREEMPT_MODES, REPEATS, RecordKind, word_of,
};
use gcore::ctl::State;
use gmodel::gpu_set::GpuSet;
use gmodel::policy::{
    ALL_GPUS, Account, AccountUser, GpuAmounts, JobLimits, Limits, Placement, PreemptMode, Qos,
    Reservation, ReservedPart,
};
use gmodel::{Instant, NodeId, RunClass, Timestamp, hostlist};
use gwire::api::{
    AccountRow, BudgetRow, Gpus, JobLimitsRow, LimitsRow, QosRow, ReservationRow, UserRow,
};
use std::collections::BTreeMap;

/// As `off`, `requeue`, ...
pub(crate) fn preempt_mode_word(mode: PreemptMode) -> &'static str {
    word_of(&PREEMPT_MODES, mode)
}

/// As `pack`, `spread`, ...
pub(crate) fn placement_word(placement: Placement) -> &'static str {
    word_of(&PLACEMENTS, placement)
}

/// Thousandths as the API shows them.
pub(crate) fn gpus(amounts: &GpuAmounts) -> Gpus {
    amounts
        .0
        .iter()
        .map(|(gpu_type, milli)| (gpu_type.clone(), *milli as f64 / 1000.0))
        .collect()
}

pub(crate) fn account_row(
    account: &Account,
    held: Option<&HeldGpus>,
    config: &Config,
) -> AccountRow {
    let budget = |budget: &gmodel::policy::Budget| BudgetRow {
        kind: word_of(&BUDGET_KINDS, budget.kind).to_owned(),
        gpu_hours: budget.gpu_hours,
        period: word_of(&PERIODS, budget.period).to_owned(),
        gpu_type: budget.gpu_type.clone(),
        ..BudgetRow::default()
    };
    AccountRow {
        name: account.name.clone(),
        parent: account.parent.clone(),
        description: account.description.clone(),
        shares: account.shares,
        guaranteed: account.guaranteed.as_ref().map(gpus),
        limit: account.limit.as_ref().map(gpus),
        lend_limit: account.lend_limit.as_ref().map(gpus),
        budgets: account.budgets.iter().map(budget).collect(),
        group: limits_row(&account.group),
        per_user: limits_row(&account.per_user),
        allow_qos: account.allow_qos.clone(),
        default_qos: account.default_qos.clone(),
        coordinators: account.coordinators.clone(),
        users: account
            .users
            .iter()
            .map(|(name, user)| (name.clone(), user_row(user)))
            .collect(),
        users_only: account.users_only,
        closed: account.closed,
        guaranteed_held: held.map(|held| gpus(&held.guaranteed)).unwrap_or_default(),
        borrowed_held: held.map(|held| gpus(&held.borrowed)).unwrap_or_default(),
        outside_held: held.map(|held| gpus(&held.outside)).unwrap_or_default(),
        file: place(config, RecordKind::Account, &account.name),
    }
}

pub(crate) fn user_row(user: &AccountUser) -> UserRow {
    UserRow {
        shares: user.shares,
        default: user.is_default,
        limits: limits_row(&user.limits),
    }
}

pub(crate) fn limits_row(limits: &Limits) -> LimitsRow {
    LimitsRow {
        running_jobs: limits.running_jobs,
        submitted_jobs: limits.submitted_jobs,
        gpus: limits.gpus.as_ref().map(gpus),
        cpus: limits.cpus,
        nodes: limits.nodes,
        running_gpu_hours: limits.running_gpu_hours,
        array_tasks: limits.array_tasks,
        submits_per_minute: limits.submits_per_minute,
    }
}

fn job_limits_row(limits: &JobLimits) -> JobLimitsRow {
    JobLimitsRow {
        max_time_secs: limits.time_secs,
        nodes: limits.nodes,
        cpus: limits.cpus,
        gpus: limits.gpus.as_ref().map(gpus),
        min_gpus: limits.min_gpus.as_ref().map(gpus),
    }
}

pub(crate) fn qos_row(qos: &Qos, config: &Config) -> QosRow {
    QosRow {
        name: qos.name.clone(),
        description: qos.description.clone(),
        priority: qos.priority,
        usage_factor: f64::from(qos.usage_factor_milli) / 1000.0,
        preempt: qos.preempt.clone(),
        preempt_mode: qos
            .preempt_mode
            .map(|mode| preempt_mode_word(mode).to_owned()),
        min_run_secs: qos.min_run_secs,
        group: limits_row(&qos.group),
        per_user: limits_row(&qos.per_user),
        per_account: limits_row(&qos.per_account),
        per_job: job_limits_row(&qos.per_job),
        headroom: qos.headroom.as_ref().map(gpus),
        outside_quota: qos.outside_quota,
        idle: qos.idle.as_ref().map(Into::into),
        file: place(config, RecordKind::Qos, &qos.name),
    }
}

pub(crate) fn reservation_row(
    reservation: &Reservation,
    config: &Config,
    now: Timestamp,
) -> ReservationRow {
    let (nodes, node_count, amounts) = match &reservation.what {
        ReservedPart::AllNodes => (Some("ALL".to_owned()), None, None),
        ReservedPart::Nodes(hosts) => (Some(hostlist::compress(hosts.iter())), None, None),
        ReservedPart::NodeCount(count) => (None, Some(*count), None),
        ReservedPart::Gpus(amounts) => (None, None, Some(gpus(amounts))),
    };
    let window = window(reservation, now);
    let state = match window {
        Some((start, _)) if start <= now => "ACTIVE",
        Some(_) => "INACTIVE",
        None => "OVER",
    };
    ReservationRow {
        name: reservation.name.clone(),
        start: Some(Instant(reservation.start)),
        duration_secs: reservation.duration_secs,
        repeat: word_of(&REPEATS, reservation.repeat).to_owned(),
        nodes,
        node_count,
        gpus: amounts,
        users: reservation.users.clone(),
        accounts: reservation.accounts.clone(),
        partition: reservation.partition.clone(),
        features: Some(reservation.features.clone()).filter(|features| !features.is_empty()),
        maintenance: reservation.maintenance,
        flex: reservation.flex,
        ignore_running: reservation.ignore_running,
        magnetic: reservation.magnetic,
        overlap: reservation.overlap,
        purge_idle_secs: reservation.purge_idle_secs,
        static_nodes: reservation.static_nodes,
        release_jobs: reservation.release_jobs,
        skip_until: reservation.skip_until.map(Instant),
        chosen: reservation.is_chosen,
        created_by: reservation.created_by.clone(),
        state: state.to_owned(),
        window_start: window.map(|(start, _)| Instant(start)),
        window_end: window.map(|(_, end)| Instant(end)),
        file: place(config, RecordKind::Reservation, &reservation.name),
    }
}

/// The window that holds at an instant, or the next one; none when the last is over.
pub(crate) fn window(reservation: &Reservation, now: Timestamp) -> Option<(Timestamp, Timestamp)> {
    gpolicy::window::next(reservation, now)
}

/// What is used of each budget of an account, in the order of its budgets.
pub(crate) fn tell_use(row: &mut AccountRow, ledger: &gsched::ledger::Ledger) {
    let hours = |use_: u128| use_ as f64 / gpolicy::limits::GPU_HOUR as f64;
    for (budget, (_, used)) in row.budgets.iter_mut().zip(ledger.budgets(&row.name)) {
        budget.used_gpu_hours = Some(hours(used.used));
        budget.promised_gpu_hours = Some(hours(used.promised));
        budget.resets = Some(Instant(used.end));
    }
}

fn place(config: &Config, kind: RecordKind, name: &str) -> Option<String> {
    config.places.get(&(kind, name.to_owned())).cloned()
}

/// GPUs that an account and those below it hold.
#[derive(Clone, Debug, Default)]
pub(crate) struct HeldGpus {
    pub(crate) guaranteed: GpuAmounts,
    pub(crate) borrowed: GpuAmounts,
    pub(crate) outside: GpuAmounts,
}

/// What every account holds now, with those below it. Without quotas all of it counts as guaranteed.
pub(crate) fn held_by_account(state: &State) -> BTreeMap<String, HeldGpus> {
    let mut all: BTreeMap<String, HeldGpus> = BTreeMap::new();
    for run in state.runs.values() {
        let Some(job) = state.jobs.get(run.id.job) else {
            continue;
        };
        let mut amounts = GpuAmounts::default();
        for (share, member) in run.allocation.iter().zip(&run.members) {
            if !member.is_clean() {
                add_share(state, share.node, &share.gpus, &mut amounts);
            }
        }
        if amounts.is_empty() {
            continue;
        }
        let is_outside = state
            .policy
            .qos
            .get(&job.spec.qos)
            .is_some_and(|qos| qos.outside_quota);
        let line = state.policy.lineage(&job.spec.account);
        let mut names: Vec<&str> = line.iter().map(|account| &*account.name).collect();
        if names.is_empty() {
            names.push(&job.spec.account);
        }
        for name in names {
            let held = all.entry(name.to_owned()).or_default();
            let sum = match run.class {
                _ if is_outside => &mut held.outside,
                Some(RunClass::Borrowed) => &mut held.borrowed,
                _ => &mut held.guaranteed,
            };
            for (gpu_type, milli) in &amounts.0 {
                *sum.0.entry(gpu_type.clone()).or_default() += milli;
            }
        }
    }
    all
}

fn add_share(state: &State, node: NodeId, set: &GpuSet, amounts: &mut GpuAmounts) {
    let Some(node) = state.nodes.get(node) else {
        return;
    };
    for grant in &set.0 {
        let gpu_type = node
            .gpus
            .get(usize::from(grant.slot.0))
            .map(|gpu| gpu.info.gpu_type.clone());
        let milli = u64::from(grant.part.milli());
        for key in gpu_type.into_iter().chain([ALL_GPUS.to_owned()]) {
            *amounts.0.entry(key).or_default() += milli;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gmodel::policy::Repeat;

    #[test]
    fn windows_come_again_and_weekends_are_left_out() {
        let at = |text: &str| gmodel::time::parse_rfc3339(text).unwrap();
        // A Friday.
        let mut reservation = Reservation {
            start: at("2026-11-20T09:00:00Z"),
            duration_secs: 7200,
            ..Reservation::default()
        };
        let mut next = |repeat, now: &str| {
            reservation.repeat = repeat;
            window(&reservation, at(now)).map_or("over".to_owned(), |(start, _)| start.to_string())
        };
        assert_eq!(
            next(Repeat::Once, "2026-11-20T10:00:00Z"),
            "2026-11-20T09:00:00Z"
        );
        assert_eq!(next(Repeat::Once, "2026-11-20T11:00:00Z"), "over");
        assert_eq!(
            next(Repeat::Daily, "2026-11-20T11:00:00Z"),
            "2026-11-21T09:00:00Z"
        );
        assert_eq!(
            next(Repeat::Weekday, "2026-11-20T11:00:00Z"),
            "2026-11-23T09:00:00Z"
        );
        assert_eq!(
            next(Repeat::Weekly, "2027-11-20T11:00:00Z"),
            "2027-11-26T09:00:00Z"
        );
        assert_eq!(
            next(Repeat::Hourly, "2026-11-21T00:30:00Z"),
            "2026-11-20T23:00:00Z"
        );
        assert_eq!(
            next(Repeat::Daily, "2026-01-01T00:00:00Z"),
            "2026-11-20T09:00:00Z"
        );
    }
}
