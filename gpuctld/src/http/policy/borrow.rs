//! What a user hears at once when a job will not stand on GPUs that its account is guaranteed.
//!
//! An estimate from what runs now; which class a run has is the scheduler's word.

use super::row::held_by_account;
use crate::config::gpu_text;
use crate::http::lookup::{JobName, one_row};
use crate::http::now;
use crate::http::row::{Row, View};
use gcore::ctl::State;
use gmodel::gpu_request::GpuKind;
use gmodel::policy::{ALL_GPUS, Account, BudgetKind};
use gmodel::{JobId, JobState, Timestamp};
use gsched::ledger::Ledger;
use std::collections::BTreeMap;

/// Queues of this length are looked through for an estimate.
const FEW_JOBS: usize = 2_000;

/// One line for the submitter; none where there are no quotas, or the guarantee has room.
pub(in crate::http) fn borrow_note(state: &State, id: JobId) -> Option<String> {
    if !state.policy.has_quotas() {
        return None;
    }
    let row = one_row(state, &JobName::Job(id))?;
    let spec = row.spec();
    let outside = state.policy.qos.get(&spec.qos).is_some_and(|qos| qos.outside_quota);
    let asked = row.gpu_milli(View::new(state, Timestamp::default()));
    if outside || asked == 0 || spec.borrow == Some(false) {
        return None;
    }
    let kind = spec.request.gpus.as_ref()?.first().map(|one| &one.kind);
    let short = shortage(state, id, &spec.account, asked, kind).or_else(|| budget_shortage(state, id, &spec.account))?;
    let usual = state.config.partitions_of(&spec.partition).next().is_none_or(|partition| partition.requeue);
    if spec.borrow.is_none() && !spec.requeue.unwrap_or(usual) {
        return Some(format!("waits for guaranteed GPUs: {short}, and a job that may not be requeued borrows only with --borrow"));
    }
    Some(format!("would start on borrowed GPUs: {short}. Their owners may take them back; with --no-borrow it waits for its own"))
}

/// Which guarantee has no room for so many GPUs more; none if all have.
fn shortage(state: &State, id: JobId, account: &str, asked: u64, kind: Option<&GpuKind>) -> Option<String> {
    let held = held_by_account(state);
    let line = state.policy.lineage(account);
    if !line.iter().any(|account| account.guaranteed.is_some()) {
        return None; // the core has said so
    }
    let gpu_type = match kind {
        Some(GpuKind::Type(name)) => name.to_ascii_lowercase(),
        _ => ALL_GPUS.to_owned(),
    };
    let of = |account: &Account, key: &str| held.get(&account.name).and_then(|held| held.guaranteed.of(key)).unwrap_or(0);
    let keys = [gpu_type.as_str(), ALL_GPUS];
    // Thousandths that those stand on who wait already: whole jobs only, where they have room on every level.
    let mut queued: BTreeMap<&str, u64> = BTreeMap::new();
    let full = |account: &Account, queued: &BTreeMap<&str, u64>, more: u64| {
        let guaranteed = account.guaranteed.as_ref()?;
        let more = more + queued.get(account.name.as_str()).copied().unwrap_or(0);
        keys.into_iter().find(|key| guaranteed.of(key).is_some_and(|most| of(account, key) + more > most))
    };
    for (line, milli) in waiting_before(state, id) {
        if line.iter().all(|account| full(account, &queued, milli).is_none()) {
            line.iter().for_each(|account| *queued.entry(&account.name).or_default() += milli);
        }
    }
    line.iter().find_map(|account| {
        let guaranteed = account.guaranteed.as_ref()?;
        let key = full(account, &queued, asked)?;
        let (of, queued) = (|key: &str| of(account, key), queued.get(account.name.as_str()).copied().unwrap_or(0));
        let (name, what) = (&account.name, if key == ALL_GPUS { "GPUs" } else { key });
        let (have, most) = (gpu_text(of(key)), gpu_text(guaranteed.of(key)?));
        let queue = if queued > 0 { format!(" and waits for {} more", gpu_text(queued)) } else { String::new() };
        Some(format!("account {name} holds {have} of its {most} guaranteed {what}{queue}"))
    })
}

/// Which guaranteed budget of GPU-hours has too little left.
fn budget_shortage(state: &State, id: JobId, account: &str) -> Option<String> {
    let line = state.policy.lineage(account);
    if !line.iter().any(|account| account.budgets.iter().any(|budget| budget.kind == BudgetKind::Guaranteed)) {
        return None;
    }
    let snapshot = gcore::ctl::snapshot(state, now());
    let job = snapshot.pending.iter().find(|job| job.id == id)?;
    Ledger::new(&snapshot).borrows(job)
}

/// Accounts, with those above, and thousandths of GPUs of the jobs that wait already; a long queue is left aside.
fn waiting_before(state: &State, id: JobId) -> Vec<(Vec<&Account>, u64)> {
    if state.jobs.len() > FEW_JOBS {
        return Vec::new();
    }
    let view = View::new(state, Timestamp::default());
    let earlier = state.jobs.values().filter(|job| job.state == JobState::Pending && job.id < id && job.holds.is_empty());
    earlier.map(|job| (state.policy.lineage(&job.spec.account), Row::Job(job).gpu_milli(view))).collect()
}
