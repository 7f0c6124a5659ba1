//! Whether an edited record makes sense beside the others: what it mentions exists, the tree has no circle, guarantees fit.
//!
//! Says it in the words of the API before the core is asked; who may edit is the core's word.

use crate::config::{gpu_text, overdrawn};
use crate::http::error::ApiError;
use gcore::ctl::State;
use gmodel::policy::{Account, Policy, Qos, Reservation};
use gmodel::suggest::did_you_mean;

/// An account as it would stand among the others.
pub(super) fn account(state: &State, account: &Account) -> Result<(), ApiError> {
    let policy = &*state.policy;
    if let Some(parent) = &account.parent {
        exists("account", parent, policy.accounts.keys())?;
        let line = policy.lineage(parent);
        if *parent == account.name || line.iter().any(|above| above.name == account.name) {
            let text = format!("account {} cannot be below {parent}: {parent} is below it", account.name);
            return Err(ApiError::conflict(text));
        }
    }
    for qos in account.allow_qos.iter().chain(&account.default_qos) {
        exists("qos", qos, policy.qos.keys())?;
    }
    if let Some(default) = account.default_qos.as_ref().filter(|default| !account.allow_qos.is_empty() && !account.allow_qos.contains(default)) {
        let text = format!("default_qos {default} is not in allow_qos ({})", account.allow_qos.join(", "));
        return Err(ApiError::conflict(text));
    }
    within_limit(account)?;
    let mut all = policy.clone();
    all.accounts.insert(account.name.clone(), account.clone());
    fits(policy, &all)
}

fn within_limit(account: &Account) -> Result<(), ApiError> {
    let (Some(guaranteed), Some(limit)) = (&account.guaranteed, &account.limit) else { return Ok(()) };
    for (gpu_type, most) in &limit.0 {
        if let Some(least) = guaranteed.of(gpu_type).filter(|least| least > most) {
            let (name, least, most) = (&account.name, gpu_text(least), gpu_text(*most));
            let text = format!("account {name} cannot be guaranteed {least} {gpu_type} with a limit of {most}. Raise the limit too");
            return Err(ApiError::conflict(text));
        }
    }
    Ok(())
}

/// Guarantees fit into those above, unless they did not before: then an edit may only not make it worse.
fn fits(before: &Policy, after: &Policy) -> Result<(), ApiError> {
    let old = overdrawn(before);
    let Some((parent, gpu_type, parts, own)) = overdrawn(after).into_iter().find(|found| !old.contains(found)) else { return Ok(()) };
    let list: Vec<String> = parts.iter().map(|(name, milli)| format!("{name} {}", gpu_text(*milli))).collect();
    let sum: u64 = parts.iter().map(|(_, milli)| milli).sum();
    let gpus = if gpu_type == gmodel::policy::ALL_GPUS { "GPUs" } else { &gpu_type };
    Err(ApiError::conflict(format!(
        "the accounts below {parent} would be guaranteed {} {gpus} together ({}) and it has {}. Raise its guarantee first, or lower theirs",
        gpu_text(sum), list.join(", "), gpu_text(own)
    )))
}

pub(super) fn qos(state: &State, qos: &Qos) -> Result<(), ApiError> {
    if qos.preempt.contains(&qos.name) {
        return Err(ApiError::conflict(format!("qos {} cannot preempt itself", qos.name)));
    }
    qos.preempt.iter().try_for_each(|other| exists("qos", other, state.policy.qos.keys()))
}

pub(super) fn reservation(state: &State, reservation: &Reservation) -> Result<(), ApiError> {
    if let Some(partition) = &reservation.partition {
        exists("partition", partition, state.config.partitions.iter().map(|partition| &partition.name))?;
    }
    if let gmodel::policy::ReservedPart::Nodes(hosts) = &reservation.what {
        hosts.iter().try_for_each(|host| exists("node", host, state.node_names.keys()))?;
    }
    Ok(())
}

/// What keeps an account from being removed.
pub(super) fn account_is_free(state: &State, name: &str) -> Result<(), ApiError> {
    let below: Vec<&str> = state.policy.accounts.values().filter(|account| account.parent.as_deref() == Some(name)).map(|account| &*account.name).collect();
    if below.is_empty() {
        return Ok(());
    }
    Err(ApiError::conflict(format!("account {name} has accounts below it ({}). Remove these first, or give them another parent", below.join(", "))))
}

/// What keeps a QOS from being removed.
pub(super) fn qos_is_free(state: &State, name: &str) -> Result<(), ApiError> {
    let accounts = state.policy.accounts.values();
    let users: Vec<String> = accounts
        .filter(|account| account.default_qos.as_deref() == Some(name) || account.allow_qos.iter().any(|qos| qos == name))
        .map(|account| format!("account {}", account.name))
        .chain(state.policy.qos.values().filter(|qos| qos.preempt.contains(name)).map(|qos| format!("qos {}", qos.name)))
        .collect();
    let waiting = state.jobs.values().filter(|job| !job.state.is_final() && job.spec.qos == name).count()
        + state.arrays.values().filter(|array| !array.is_over() && array.spec.qos == name).count();
    if !users.is_empty() {
        return Err(ApiError::conflict(format!("qos {name} is named by {}. Change these first", users.join(", "))));
    }
    if waiting > 0 {
        let text = format!("{waiting} jobs in the queue have qos {name}. Let them end, or give them another: gadm job update JOB QOS=...");
        return Err(ApiError::conflict(text));
    }
    Ok(())
}

pub(super) fn exists<'a>(what: &str, name: &str, mut names: impl Iterator<Item = &'a String> + Clone) -> Result<(), ApiError> {
    let all = names.clone();
    if names.any(|known| known == name) {
        return Ok(());
    }
    let guess = did_you_mean(name, all.map(String::as_str));
    Err(ApiError::not_found(format!("there is no {what} {name:?}.{guess}")))
}
