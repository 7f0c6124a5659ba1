//! Records of the policy as the API shows them, and what accounts hold now.
//!
//! Owns what a row tells beside its record; the way back is [`super::record`]'s.

use crate::config::{Config, RecordKind};
use gcore::ctl::State;
use gmodel::gpu_set::GpuSet;
use gmodel::policy::{ALL_GPUS, Account, GpuAmounts, Qos, Reservation};
use gmodel::{Instant, NodeId, RunClass, Timestamp};
use gwire::api::{AccountRow, BudgetUse, QosRow, ReservationRow};
use gwire::record_json::gpus_json;
use serde_json::Value;
use std::collections::BTreeMap;

pub(crate) fn account_row(
    account: &Account,
    held: Option<&HeldGpus>,
    config: &Config,
) -> AccountRow {
    let held = held.cloned().unwrap_or_default();
    AccountRow {
        account: account.clone(),
        guaranteed_held: gpus_json(&held.guaranteed),
        borrowed_held: gpus_json(&held.borrowed),
        outside_held: gpus_json(&held.outside),
        file: place(config, RecordKind::Account, &account.name),
    }
}

pub(crate) fn qos_row(qos: &Qos, config: &Config) -> QosRow {
    QosRow {
        qos: qos.clone(),
        file: place(config, RecordKind::Qos, &qos.name),
    }
}

pub(crate) fn reservation_row(
    reservation: &Reservation,
    config: &Config,
    now: Timestamp,
) -> ReservationRow {
    let window = gpolicy::window::next(reservation, now);
    let state = match window {
        Some(window) if window.from <= now => "ACTIVE",
        Some(_) => "INACTIVE",
        None => "OVER",
    };
    ReservationRow {
        reservation: reservation.clone(),
        state: state.to_owned(),
        window_start: window.map(|window| Instant(window.from)),
        window_end: window.map(|window| Instant(window.to)),
        file: place(config, RecordKind::Reservation, &reservation.name),
    }
}

/// Puts into the JSON of an account what is used of each of its budgets.
pub(crate) fn tell_use(row: &mut Value, name: &str, ledger: &gsched::ledger::Ledger) {
    let hours = |use_: u128| use_ as f64 / gpolicy::limits::GPU_HOUR as f64;
    let budgets = row["budgets"].as_array_mut().into_iter().flatten();
    for (budget, (_, used)) in budgets.zip(ledger.budgets(name)) {
        let told = serde_json::to_value(BudgetUse {
            used_gpu_hours: Some(hours(used.used)),
            promised_gpu_hours: Some(hours(used.promised)),
            resets: Some(Instant(used.end)),
        });
        if let (Some(budget), Ok(Value::Object(told))) = (budget.as_object_mut(), told) {
            budget.extend(told);
        }
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
            gpolicy::window::next(&reservation, at(now))
                .map_or("over".to_owned(), |window| window.from.to_string())
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
