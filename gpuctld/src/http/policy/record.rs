//! Edits of records: an edit's keys onto the JSON of a record, and that read back, by the record's table of keys.
//!
//! Refuses unknown keys with a guess and impossible values with what would be possible. Whether names that a record
//! mentions exist is said by [`super::check`].

use crate::config::{idle_sense, is_user, partition_sense};
use crate::http::error::ApiError;
use gmodel::config::Partition;
use gmodel::policy::{Account, AccountUser, Qos, ROOT_ACCOUNT, Reservation, ReservedPart};
use gmodel::record::{Key, Kind, Record};
use gmodel::suggest::did_you_mean;
use gwire::api::PolicyEdit;
use gwire::record_json;
use serde_json::{Map, Value};

/// The keys of a record that an edit may set.
fn settable<R: Record>() -> Vec<&'static Key> {
    let keys = R::keys().into_iter();
    keys.filter(|key| key.is_editable()).collect()
}

fn names(keys: &[&'static Key]) -> Vec<&'static str> {
    keys.iter().map(|key| key.json).collect()
}

/// The JSON of a record, or of a new one, with the edit's keys put over it.
fn edited_json<R: Record>(
    old: Option<&R>,
    edit: &PolicyEdit,
) -> Result<Map<String, Value>, ApiError> {
    let mut all = record_json::write(old.unwrap_or(&R::default()));
    if old.is_none() {
        let needed = R::keys().into_iter().filter(|key| key.is_needed);
        needed.for_each(|key| drop(all.remove(key.json)));
    }
    for (key, value) in &edit.change {
        put::<R>(&mut all, key, value)?;
    }
    Ok(all)
}

fn read<R: Record>(all: &Map<String, Value>) -> Result<R, ApiError> {
    match record_json::read(all) {
        (_, Some(fault)) => Err(ApiError::invalid(fault)),
        (record, None) => Ok(record),
    }
}

fn put<R: Record>(all: &mut Map<String, Value>, key: &str, value: &Value) -> Result<(), ApiError> {
    let (sign, name) = match key.strip_prefix(['+', '-']) {
        Some(name) => (key.chars().next(), name),
        None => (None, key),
    };
    let keys = settable::<R>();
    let Some(key) = keys.iter().find(|key| key.json == name) else {
        let known = names(&keys);
        let guess = did_you_mean(name, known.iter().copied());
        return Err(ApiError::invalid(format!(
            "{name:?} cannot be set.{guess} Keys: {}",
            known.join(", ")
        )));
    };
    match (sign, key.kind) {
        (Some(sign), _) => add_or_take(all, sign, name, value),
        // Without the table the partition's counts.
        (None, Kind::WholeTable(_)) if !value.is_null() => {
            let there = all.get(name).is_some_and(Value::is_object);
            if !there {
                all.insert(name.to_owned(), Value::Object(Map::new()));
            }
            put_into_table(all, key, value)
        }
        (None, Kind::Table(_)) => put_into_table(all, key, value),
        // Nothing is said of it any more: what it is without a word.
        (None, _) if value.is_null() => {
            all.remove(name);
            Ok(())
        }
        (None, _) => {
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
    let (Some(have), Some(words)) = (
        all.get_mut(name).and_then(Value::as_array_mut),
        value.as_array(),
    ) else {
        return Err(ApiError::invalid(format!(
            "{sign}{name} is for lists, as allow_qos, coordinators, preempt, users, accounts, budgets"
        )));
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

/// An edit of some keys of a table leaves the others.
fn put_into_table(all: &mut Map<String, Value>, key: &Key, value: &Value) -> Result<(), ApiError> {
    let (name, known) = (key.json, names(&key.below()));
    if value.is_null() {
        all.insert(name.to_owned(), Value::Object(Map::new()));
        return Ok(());
    }
    let (Some(table), Some(change)) = (
        all.get_mut(name).and_then(Value::as_object_mut),
        value.as_object(),
    ) else {
        return Err(ApiError::invalid(format!(
            "{name} is a table of {}",
            known.join(", ")
        )));
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

/// An account as an edit leaves it, or makes it.
pub(crate) fn account(
    name: &str,
    old: Option<&Account>,
    edit: &PolicyEdit,
) -> Result<Account, ApiError> {
    let mut account: Account = read(&edited_json(old, edit)?)?;
    name.clone_into(&mut account.name);
    account.parent = account.parent.filter(|parent| parent != ROOT_ACCOUNT);
    account
        .coordinators
        .iter()
        .try_for_each(|user| user_name(user))?;
    Ok(account)
}

pub(crate) fn user_entry(
    old: Option<&AccountUser>,
    edit: &PolicyEdit,
) -> Result<AccountUser, ApiError> {
    read(&edited_json(old, edit)?)
}

pub(crate) fn user_name(name: &str) -> Result<(), ApiError> {
    if is_user(name) {
        return Ok(());
    }
    Err(ApiError::invalid(format!("{name:?} is no name of a user")))
}

pub(crate) fn qos(name: &str, old: Option<&Qos>, edit: &PolicyEdit) -> Result<Qos, ApiError> {
    let mut qos: Qos = read(&edited_json(old, edit)?)?;
    name.clone_into(&mut qos.name);
    if let Some(policy) = &qos.idle {
        if [policy.warn_after_secs, policy.act_after_secs].contains(&0) {
            return Err(ApiError::invalid(
                "idle.warn_after and idle.act_after: a second at least",
            ));
        }
        idle_sense(policy)
            .map_err(|(_, wrong, hint)| ApiError::invalid(format!("idle: {wrong}: {hint}")))?;
    }
    Ok(qos)
}

pub(crate) fn partition(
    name: &str,
    old: Option<&Partition>,
    edit: &PolicyEdit,
) -> Result<Partition, ApiError> {
    let mut all = edited_json(old, edit)?;
    // Its nodes are said in one way: the new one.
    let said = |key: &str| edit.change.get(key).is_some_and(|value| !value.is_null());
    for (new, other) in [("nodes", "features"), ("features", "nodes")] {
        if said(new) && !said(other) {
            all.remove(other);
        }
    }
    let mut partition: Partition = read(&all)?;
    name.clone_into(&mut partition.name);
    partition
        .allow_users
        .iter()
        .try_for_each(|user| user_name(user))?;
    match partition_sense(&partition).into_iter().next() {
        None => Ok(partition),
        Some((_, wrong, hint)) => Err(ApiError::invalid(format!(
            "partition {name}: {wrong}: {hint}"
        ))),
    }
}

pub(crate) fn reservation(
    name: &str,
    old: Option<&Reservation>,
    edit: &PolicyEdit,
) -> Result<Reservation, ApiError> {
    let all = edited_json(old, edit)?;
    let is_said = |key: &str| {
        let empty = [Value::Null, Value::from(0), Value::from("")];
        let said = all.get(key).filter(|value| !empty.contains(value));
        said.is_some_and(|value| value.as_object().is_none_or(|gpus| !gpus.is_empty()))
    };
    for key in Reservation::keys().iter().filter(|key| key.is_needed) {
        if !is_said(key.json) {
            return Err(ApiError::invalid(format!(
                "reservation {name:?} has no {}",
                key.name
            )));
        }
    }
    let ways = ReservedPart::KEYS.iter();
    match ways.filter(|key| is_said(key.json)).count() {
        0 => {
            return Err(ApiError::invalid(format!(
                "reservation {name:?} reserves nothing: name nodes (a host list, or ALL), node_count or gpus"
            )));
        }
        1 => {}
        _ => {
            return Err(ApiError::invalid(format!(
                "reservation {name:?}: nodes, node_count and gpus exclude each other. Keep one of them"
            )));
        }
    }
    let mut reservation: Reservation = read(&all)?;
    name.clone_into(&mut reservation.name);
    reservation
        .users
        .iter()
        .try_for_each(|user| user_name(user))?;
    // What the controller makes of an edited reservation it makes anew.
    reservation.is_chosen = false;
    Ok(reservation)
}
