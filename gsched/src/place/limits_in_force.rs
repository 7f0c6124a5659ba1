//! Facts about the whole policy that passes ask once: any limit at all, any limit on time, licences over time.

use crate::cluster::timeline::Count;
use crate::ledger::Ledger;
use crate::snapshot::Snapshot;
use gmodel::config::Partition;
use gmodel::policy::{Account, Limits, Qos};
use gpolicy::running_run::end_of;
use std::collections::BTreeMap;

/// Whether the policy has no limits at all.
pub(crate) fn is_unlimited(snapshot: &Snapshot) -> bool {
    let free = |limits: &Limits| *limits == Limits::default();
    let open = |one: &Partition| {
        free(&one.group) && free(&one.per_user) && free(&one.per_account) && one.headroom.is_none()
    };
    snapshot.policy.accounts.is_empty()
        && snapshot.policy.qos.is_empty()
        && snapshot.config.partitions.iter().all(open)
}

/// What is held, for a pass that has no preemption to judge: without limits the ledger is not asked and knows no run.
pub(crate) fn usage(snapshot: &Snapshot) -> Ledger {
    match is_unlimited(snapshot) {
        true => empty_usage(snapshot),
        false => Ledger::new(snapshot),
    }
}

/// A ledger without runs, nodes and jobs.
pub(crate) fn empty_usage(snapshot: &Snapshot) -> Ledger {
    Ledger::new(&Snapshot {
        now: snapshot.now,
        config: snapshot.config.clone(),
        policy: snapshot.policy.clone(),
        ..Snapshot::default()
    })
}

/// Whether any limit looks at how long a job may run.
pub(crate) fn minds_time(snapshot: &Snapshot) -> bool {
    let hours = |limits: &Limits| limits.running_gpu_hours.is_some();
    let of_account = |one: &Account| {
        hours(&one.group)
            || hours(&one.per_user)
            || !one.budgets.is_empty()
            || one.users.values().any(|user| hours(&user.limits))
    };
    let of_qos = |one: &Qos| {
        hours(&one.group)
            || hours(&one.per_user)
            || hours(&one.per_account)
            || one.per_job.time_secs.is_some()
    };
    let of_partition =
        |one: &Partition| hours(&one.group) || hours(&one.per_user) || hours(&one.per_account);
    snapshot.policy.accounts.values().any(of_account)
        || snapshot.policy.qos.values().any(of_qos)
        || snapshot.config.partitions.iter().any(of_partition)
}

/// What is free of each licence over time.
pub(crate) fn licences(snapshot: &Snapshot) -> BTreeMap<String, Count> {
    let all = &snapshot.config.scheduler.licences;
    let now = snapshot.now;
    let mut free: BTreeMap<String, Count> = all
        .iter()
        .map(|(name, all)| (name.clone(), Count::new(now, *all)))
        .collect();
    if all.is_empty() {
        return free;
    }
    for run in &snapshot.running {
        for (name, count) in &run.spec.licences {
            if let Some(free) = free.get_mut(name) {
                free.take(now, end_of(run).max(now.plus_secs(1)), *count);
            }
        }
    }
    free
}
