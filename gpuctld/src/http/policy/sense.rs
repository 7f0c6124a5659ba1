//! Names that an edit mentions, looked up before the core is asked: what is not there gets a guess.
//!
//! Whether the whole makes sense, and who may edit it, is the core's word.

use crate::http::error::ApiError;
use gcore::ctl::State;
use gmodel::policy::{Account, Qos, Reservation, ReservedPart};
use gmodel::suggest::did_you_mean;

pub(super) fn account(state: &State, account: &Account) -> Result<(), ApiError> {
    if let Some(parent) = &account.parent {
        exists("account", parent, state.policy.accounts.keys().chain([&account.name]))?;
    }
    account.allow_qos.iter().chain(&account.default_qos).try_for_each(|qos| exists("qos", qos, state.policy.qos.keys()))
}

/// # Errors
/// When other accounts hang on it.
pub(super) fn nothing_is_below(state: &State, name: &str) -> Result<(), ApiError> {
    let below = state.policy.accounts.values().filter(|account| account.parent.as_deref() == Some(name));
    let below: Vec<&str> = below.map(|account| &*account.name).collect();
    if below.is_empty() {
        return Ok(());
    }
    let text = format!("account {name} has accounts below it ({}). Remove these first, or give them another parent", below.join(", "));
    Err(ApiError::conflict(text))
}

pub(super) fn qos(state: &State, qos: &Qos) -> Result<(), ApiError> {
    qos.preempt.iter().try_for_each(|other| exists("qos", other, state.policy.qos.keys().chain([&qos.name])))
}

pub(super) fn reservation(state: &State, reservation: &Reservation) -> Result<(), ApiError> {
    if let Some(partition) = &reservation.partition {
        exists("partition", partition, state.config.partitions.iter().map(|partition| &partition.name))?;
    }
    match &reservation.what {
        ReservedPart::Nodes(hosts) => hosts.iter().try_for_each(|host| exists("node", host, state.node_names.keys())),
        _ => Ok(()),
    }
}

pub(super) fn exists<'a>(what: &str, name: &str, mut names: impl Iterator<Item = &'a String> + Clone) -> Result<(), ApiError> {
    let all = names.clone();
    if names.any(|known| known == name) {
        return Ok(());
    }
    let guess = did_you_mean(name, all.map(String::as_str));
    Err(ApiError::not_found(format!("there is no {what} {name:?}.{guess}")))
}
