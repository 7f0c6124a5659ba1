//! What all edits of records have in common: permission, names, the way to the core.
//!
//! What is written in files is not edited here; whether a caller may edit the rest is the core's word, which gets whole records.

use crate::config::{RecordKind, beyond_files};
use crate::http::app::ApiContext;
use crate::http::error::ApiError;
use crate::http::existence::not_there;
use crate::http::permission::Caller;
use axum::Json;
use axum::extract::rejection::JsonRejection;
use gcore::ctl::{Command, PolicyChange, State};
use gmodel::RefusalKind;
use gmodel::policy::{Account, Policy, ROOT_ACCOUNT};
use gwire::api::{ChangeReply, PolicyEdit, SCHEMA};
use std::collections::BTreeMap;

pub(crate) type EditBody = Result<Json<PolicyEdit>, JsonRejection>;
pub(crate) type EditAnswer = Result<Json<ChangeReply>, ApiError>;

/// The names of a record that cannot be used.
fn check_name(what: &str, name: &str) -> Result<(), ApiError> {
    let is_name = (1..=64).contains(&name.len())
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b));
    if !is_name || what == "account" && name == ROOT_ACCOUNT {
        let text = format!(
            "{name:?} cannot be the name of a new {what}: use up to 64 letters, digits, '_', '-' and '.', not {ROOT_ACCOUNT}"
        );
        return Err(ApiError::invalid(text));
    }
    Ok(())
}

/// Policy is not edited from inside a job.
pub(crate) fn from_outside(caller: &Caller) -> Result<(), ApiError> {
    match caller.confined_to() {
        None => Ok(()),
        Some(_) => Err(ApiError::denied(
            "policy is not edited from compute nodes. Use a login node or the controller's host",
        )),
    }
}

/// Policy is not edited from inside a job, and a record of a file is changed in the file.
pub(crate) fn may_edit(
    site: &ApiContext,
    caller: &Caller,
    kind: RecordKind,
    name: &str,
) -> Result<(), ApiError> {
    from_outside(caller)?;
    if let Some(place) = site.app.config().places.get(&(kind, name.to_owned())) {
        let text = format!(
            "{} {name} is written in {place}. Change it there, then gadm reload",
            kind.word()
        );
        return Err(ApiError::conflict(text));
    }
    Ok(())
}

/// Operators, and coordinators of the account or of one above it.
pub(crate) fn may_coordinate(
    caller: &Caller,
    state: &State,
    account: &str,
) -> Result<(), ApiError> {
    if caller.actor.operator || state.policy.coordinates(&caller.actor.user, account) {
        return Ok(());
    }
    caller
        .must_administer(&format!("editing account {account}"))
        .map_err(|denied| {
            ApiError::denied(format!(
                "{}; nor is {} a coordinator of the account",
                denied.text, caller.actor.user
            ))
        })
}

/// A record must be among the `known` ones to be changed, and not among them to be made.
pub(crate) fn check_presence<'a>(
    what: &str,
    name: &str,
    create: bool,
    known: impl Iterator<Item = &'a String> + Clone,
) -> Result<(), ApiError> {
    match (create, known.clone().any(|one| one == name)) {
        (true, true) => Err(ApiError::conflict(format!(
            "{what} {name} exists. Change it with gadm {what} set"
        ))
        .about(
            match what {
                "reservation" => RefusalKind::ReservationExists,
                _ => RefusalKind::Other,
            },
            name,
        )),
        (true, false) => check_name(what, name),
        (false, false) => Err(not_there(what, name, known.map(String::as_str))),
        (false, true) => Ok(()),
    }
}

pub(crate) async fn send(site: &ApiContext, caller: Caller, change: PolicyChange) -> EditAnswer {
    send_noting(site, caller, change, Vec::new()).await
}

/// What is made here has the bounds of what is written in files.
fn can_be_exported(change: &PolicyChange) -> Result<(), ApiError> {
    let mut one = Policy::default();
    match change.clone() {
        PolicyChange::Account { account } => {
            drop(one.accounts.insert(account.name.clone(), *account))
        }
        PolicyChange::User {
            account,
            user,
            entry,
        } => {
            let account = Account {
                name: account,
                users: BTreeMap::from([(user, entry)]),
                ..Account::default()
            };
            one.accounts.insert(account.name.clone(), account);
        }
        PolicyChange::Qos { qos } => drop(one.qos.insert(qos.name.clone(), *qos)),
        PolicyChange::Reservation { reservation } => drop(
            one.reservations
                .insert(reservation.name.clone(), *reservation),
        ),
        _ => {}
    }
    beyond_files(&one).map_or(Ok(()), |text| Err(ApiError::invalid(text)))
}

pub(crate) async fn send_noting(
    site: &ApiContext,
    caller: Caller,
    change: PolicyChange,
    notes: Vec<String>,
) -> EditAnswer {
    can_be_exported(&change)?;
    site.core
        .command(caller.actor, Command::Policy { change })
        .await?;
    site.app.policy_changed();
    Ok(Json(ChangeReply {
        schema: SCHEMA,
        notes,
    }))
}
