//! The whole policy as TOML: exported, imported, compared.
//!
//! What an import repeats from the files stays theirs.

use crate::config::{RecordKind, policy_text, read_policy};
use crate::core_thread::now;
use crate::http::app::ApiContext;
use crate::http::error::ApiError;
use crate::http::permission::Caller;
use crate::http::policy::edit::EditAnswer;
use crate::http::query::QueryPairs;
use axum::Json;
use axum::extract::State as Shared;
use axum::extract::rejection::JsonRejection;
use gcore::ctl::{Command, PolicyChange, imported_policy};
use gmodel::policy::Policy;
use gwire::api::{ChangeReply, PolicyText, SCHEMA};
use std::collections::{BTreeMap, BTreeSet};

pub(crate) async fn export(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
    pairs: QueryPairs,
) -> Result<Json<PolicyText>, ApiError> {
    caller.must_administer("the whole policy")?;
    let all = pairs.only(&["all"])?.flag("all")?;
    let state = site.core.view().await;
    let toml = policy_text(if all {
        &state.policy
    } else {
        &state.own_policy
    });
    Ok(Json(PolicyText {
        schema: SCHEMA,
        toml,
        ..PolicyText::default()
    }))
}

pub(crate) async fn import(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
    body: Result<Json<PolicyText>, JsonRejection>,
) -> EditAnswer {
    let Json(request) = body?;
    caller.must_administer("import of a policy")?;
    let _turn = site.app.policy_turn().await;
    let state = site.core.view().await;
    let name = if request.name.is_empty() {
        "policy"
    } else {
        &request.name
    };
    let read = read_policy(name, &request.toml, &state.config);
    let mut new = read.map_err(|errors| {
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        ApiError::invalid(format!("the policy stays as it was:\n{}", texts.join("\n")))
    })?;
    for (name, reservation) in &mut new.reservations {
        let old = state.policy.reservations.get(name);
        reservation
            .created_by
            .clone_from(old.map_or(&caller.actor.user, |old| &old.created_by));
    }
    leave_to_files(&state.config.policy, &mut new, &site.app.config().places)?;
    let named: BTreeSet<String> = new.reservations.keys().cloned().collect();
    let new = imported_policy(&state, now(), &caller.actor, new)?;
    let over = named
        .iter()
        .filter(|name| !new.reservations.contains_key(*name));
    let mut notes: Vec<String> = over
        .map(|name| format!("reservation {name} is over and left out"))
        .collect();
    let changes = changes(&state.own_policy, &new);
    if changes.is_empty() {
        notes.push("nothing would change".to_owned());
    } else if request.dry_run {
        notes.extend(changes);
    } else {
        site.core
            .command(
                caller.actor,
                Command::Policy {
                    change: PolicyChange::All {
                        policy: Box::new(new),
                    },
                },
            )
            .await?;
        site.app.policy_changed();
    }
    Ok(Json(ChangeReply {
        schema: SCHEMA,
        notes,
    }))
}

/// What an import repeats from the files is theirs; what it says otherwise would never hold.
fn leave_to_files(
    files: &Policy,
    new: &mut Policy,
    places: &BTreeMap<(RecordKind, String), String>,
) -> Result<(), ApiError> {
    let differs = |kind: RecordKind, name: &String| {
        let place = places
            .get(&(kind, name.clone()))
            .map_or("a file", String::as_str);
        ApiError::conflict(format!(
            "{} {name} is written in {place} otherwise. Change it there, or leave it out of the import",
            kind.word()
        ))
    };
    for (name, record) in &files.accounts {
        if new.accounts.remove(name).is_some_and(|one| one != *record) {
            return Err(differs(RecordKind::Account, name));
        }
    }
    for (name, record) in &files.qos {
        if new.qos.remove(name).is_some_and(|one| one != *record) {
            return Err(differs(RecordKind::Qos, name));
        }
    }
    for (name, record) in &files.reservations {
        if new
            .reservations
            .remove(name)
            .is_some_and(|one| one != *record)
        {
            return Err(differs(RecordKind::Reservation, name));
        }
    }
    Ok(())
}

/// What becomes of each record, a line each.
pub(crate) fn changes(old: &Policy, new: &Policy) -> Vec<String> {
    let mut all = record_changes("account", &old.accounts, &new.accounts);
    all.extend(record_changes("qos", &old.qos, &new.qos));
    all.extend(record_changes(
        "reservation",
        &old.reservations,
        &new.reservations,
    ));
    all
}

/// What becomes of each record of a kind, a line each.
pub(crate) fn record_changes<T: PartialEq>(
    word: &str,
    old: &BTreeMap<String, T>,
    new: &BTreeMap<String, T>,
) -> Vec<String> {
    let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let line = |name: &&String| match (old.get(*name), new.get(*name)) {
        (None, Some(_)) => Some(format!("{word} {name} is added")),
        (Some(_), None) => Some(format!("{word} {name} is removed")),
        (Some(one), Some(other)) if one != other => Some(format!("{word} {name} is changed")),
        _ => None,
    };
    names.iter().filter_map(line).collect()
}
