//! Accounts, users, QOS, reservations and licences over the API: shown, edited, exported, imported.
//!
//! Owns reading edits and the shape of answers. What is written in files is not edited here; who may edit the rest is the
//! core's word, which gets whole records.

mod borrow;
mod record;
mod row;
mod sense;

pub(super) use borrow::borrow_note;
pub(super) use row::{gpus, limits_row, placement_word, preempt_mode_word};
pub(super) use sense::{beyond_the_pool, exists, unheard_of};

use super::accounting::{in_order, month_of};
use super::error::ApiError;
use super::permission::{Caller, Sight};
use super::query::Pairs;
use super::{Site, now};
use crate::config::{RecordKind, beyond_files, policy_text, read_policy};
use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State as Shared};
use gcore::ctl::{Command, NORMAL_QOS, PolicyChange, State, imported_policy};
use gmodel::policy::{Account, Policy, ROOT_ACCOUNT, Reservation};
use gmodel::suggest::did_you_mean;
use gmodel::{JobSpec, JobState};
use gwire::api::{
    AccountRow, Done, LicenceRow, PolicyEdit, PolicyText, QosRow, ReservationRow, SCHEMA, UserRow,
};
use row::{Held, account_row, held_by_account, licence_rows, qos_row, reservation_row, user_row};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering::Relaxed;

type Body = Result<Json<PolicyEdit>, JsonRejection>;
type Answer = Result<Json<Done>, ApiError>;

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

/// Nobody edits policy from inside a job, and what a file says is changed there.
fn may_edit(site: &Site, caller: &Caller, kind: RecordKind, name: &str) -> Result<(), ApiError> {
    if caller.confined_to().is_some() {
        return Err(ApiError::denied(
            "policy is not edited from compute nodes. Use a login node or the controller's host",
        ));
    }
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
fn may_coordinate(caller: &Caller, state: &State, account: &str) -> Result<(), ApiError> {
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

/// Who changed what of it.
pub(super) async fn events(
    caller: Caller,
    Shared(site): Shared<Site>,
    pairs: Pairs,
) -> Result<Json<Value>, ApiError> {
    caller.must_administer("the history of accounts and QOS")?;
    let pairs = pairs.only(&["from", "to"])?;
    // What was changed just now is told as well.
    let to = pairs.instant("to")?.unwrap_or_else(|| now().plus_secs(1));
    let from = pairs.instant("from")?.unwrap_or_else(|| month_of(to));
    in_order(Some(from), Some(to))?;
    let rows = site.core.reader().policy_events(from, to).await?;
    Ok(Json(json!({"schema": SCHEMA, "changes": rows})))
}

/// No record of that name, which may be meant by jobs all the same.
fn not_there<'a>(what: &str, name: &str, known: impl Iterator<Item = &'a str>) -> ApiError {
    let made = match what {
        "qos" if name == NORMAL_QOS => {
            " Jobs that name none have it without a record; gadm qos add normal makes one."
                .to_owned()
        }
        _ => did_you_mean(name, known),
    };
    ApiError::not_found(format!("there is no {what} {name:?}.{made}"))
}

/// A record must be there to be changed, and not there to be made.
fn check_presence(
    what: &str,
    name: &str,
    create: bool,
    present: bool,
    known: impl Iterator<Item = String>,
) -> Result<(), ApiError> {
    match (create, present) {
        (true, true) => Err(ApiError::conflict(format!(
            "{what} {name} exists. Change it with gadm {what} set"
        ))),
        (true, false) => check_name(what, name),
        (false, false) => {
            let known: Vec<String> = known.collect();
            Err(not_there(what, name, known.iter().map(String::as_str)))
        }
        (false, true) => Ok(()),
    }
}

async fn send(site: &Site, caller: Caller, change: PolicyChange) -> Answer {
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

async fn send_noting(
    site: &Site,
    caller: Caller,
    change: PolicyChange,
    notes: Vec<String>,
) -> Answer {
    can_be_exported(&change)?;
    site.core
        .command(caller.actor, Command::Policy { change })
        .await?;
    site.app.may_have_quotas.store(true, Relaxed);
    Ok(Json(Done {
        schema: SCHEMA,
        notes,
    }))
}

// accounts

pub(super) async fn accounts(
    caller: Caller,
    shared: Shared<Site>,
    pairs: Pairs,
) -> Result<Json<Value>, ApiError> {
    pairs.only(&[])?;
    list_accounts(caller, shared, None).await
}

pub(super) async fn account(
    caller: Caller,
    shared: Shared<Site>,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    list_accounts(caller, shared, Some(name)).await
}

async fn list_accounts(
    caller: Caller,
    Shared(site): Shared<Site>,
    only: Option<String>,
) -> Result<Json<Value>, ApiError> {
    let state = site.core.view().await;
    if let Some(name) = &only {
        sense::account_exists(&state, name)?;
    }
    let (config, held) = (site.app.config(), held_by_account(&state));
    let chosen = state
        .policy
        .accounts
        .values()
        .filter(|account| only.as_ref().is_none_or(|name| *name == account.name));
    let sight = Sight::of(&caller, &state);
    let seen = chosen.filter(|account| sees_account(&state, &caller, &sight, account));
    let mut rows: Vec<AccountRow> = seen
        .map(|account| shown_account(&state, &caller, account, held.get(&account.name), &config))
        .collect();
    if rows.iter().any(|row| !row.budgets.is_empty()) {
        let ledger = gsched::ledger::Ledger::new(&gcore::ctl::snapshot(&state, now()));
        rows.iter_mut().for_each(|row| row::tell_use(row, &ledger));
    }
    Ok(Json(json!({"schema": SCHEMA, "accounts": rows})))
}

/// Under `privacy`, users see accounts that they are in or have jobs in, and those above them.
fn sees_account(state: &State, caller: &Caller, sight: &Sight, account: &Account) -> bool {
    let user = &caller.actor.user;
    let is_in = |account: &Account| {
        account.users.contains_key(user) || sight.accounts().contains(&account.name)
    };
    sight.sees_all()
        || state.policy.coordinates(user, &account.name)
        || state.policy.accounts.values().any(|other| {
            is_in(other)
                && state
                    .policy
                    .lineage(&other.name)
                    .iter()
                    .any(|up| up.name == account.name)
        })
}

/// Other users of an account are for those who may see its jobs.
fn shown_account(
    state: &State,
    caller: &Caller,
    account: &Account,
    held: Option<&Held>,
    config: &crate::config::Config,
) -> AccountRow {
    let mut row = account_row(account, held, config);
    let sight = Sight::of(caller, state);
    let user = &caller.actor.user;
    if !sight.sees_named("", &account.name) && !state.policy.coordinates(user, &account.name) {
        row.users.retain(|name, _| name == user);
    }
    row
}

pub(super) async fn edit_account(
    caller: Caller,
    Shared(site): Shared<Site>,
    Path(name): Path<String>,
    body: Body,
) -> Answer {
    let Json(edit) = body?;
    let _turn = site.app.policy_turn().await;
    let state = site.core.view().await;
    let parent = edit
        .change
        .get("parent")
        .and_then(Value::as_str)
        .unwrap_or(&name);
    may_coordinate(&caller, &state, if edit.create { parent } else { &name })?;
    may_edit(&site, &caller, RecordKind::Account, &name)?;
    let old = state.policy.accounts.get(&name);
    if !edit.create {
        sense::account_exists(&state, &name)?;
    }
    check_presence(
        "account",
        &name,
        edit.create,
        old.is_some(),
        state.policy.accounts.keys().cloned(),
    )?;
    let config = site.app.config();
    let row = old
        .map(|account| account_row(account, None, &config))
        .unwrap_or_default();
    let account = record::account(&name, record::edited(&row, &edit, &record::ACCOUNT_KEYS)?)?;
    sense::account(&state, &account)?;
    let mut notes = sense::unheard_of(&state, old, &account);
    if notes.is_empty() {
        notes.extend(sense::beyond_the_pool(&state, old, &account));
    }
    send_noting(
        &site,
        caller,
        PolicyChange::Account {
            account: Box::new(account),
        },
        notes,
    )
    .await
}

pub(super) async fn remove_account(
    caller: Caller,
    Shared(site): Shared<Site>,
    Path(name): Path<String>,
    _: Body,
) -> Answer {
    let _turn = site.app.policy_turn().await;
    let state = site.core.view().await;
    may_coordinate(&caller, &state, &name)?;
    may_edit(&site, &caller, RecordKind::Account, &name)?;
    sense::account_exists(&state, &name)?;
    sense::nothing_is_below(&state, &name)?;
    send(&site, caller, PolicyChange::AccountRemoved { name }).await
}

pub(super) async fn edit_user(
    caller: Caller,
    Shared(site): Shared<Site>,
    Path((name, user)): Path<(String, String)>,
    body: Body,
) -> Answer {
    let Json(edit) = body?;
    let _turn = site.app.policy_turn().await;
    let state = site.core.view().await;
    // Users may choose their default account themselves: the core knows what of an edit is only that.
    if user != caller.actor.user {
        may_coordinate(&caller, &state, &name)?;
    }
    sense::account_exists(&state, &name)?;
    may_edit(&site, &caller, RecordKind::Account, &name)?;
    let old = state
        .policy
        .accounts
        .get(&name)
        .and_then(|account| account.users.get(&user));
    match (edit.create, old) {
        (true, Some(_)) => {
            let text = format!(
                "user {user} is in account {name}. Change them with gadm user set {user} account={name} ..."
            );
            return Err(ApiError::conflict(text));
        }
        (false, None) => {
            return Err(ApiError::not_found(format!(
                "user {user:?} is not in account {name}"
            )));
        }
        _ => {}
    }
    let user = record::user_name(&user)?;
    let row: UserRow = old.map(user_row).unwrap_or_default();
    let entry = record::user_entry(record::edited_user(&row, &edit)?)?;
    let notes = sense::unheard_of(&state, old, &entry);
    send_noting(
        &site,
        caller,
        PolicyChange::User {
            account: name,
            user,
            entry,
        },
        notes,
    )
    .await
}

pub(super) async fn remove_user(
    caller: Caller,
    Shared(site): Shared<Site>,
    Path((name, user)): Path<(String, String)>,
    _: Body,
) -> Answer {
    let _turn = site.app.policy_turn().await;
    let state = site.core.view().await;
    may_coordinate(&caller, &state, &name)?;
    sense::account_exists(&state, &name)?;
    may_edit(&site, &caller, RecordKind::Account, &name)?;
    sense::exists(
        &format!("user in account {name}"),
        &user,
        state.policy.accounts[&name].users.keys(),
    )?;
    let last = state.policy.accounts[&name].users.len() == 1;
    let answer = send(
        &site,
        caller,
        PolicyChange::UserRemoved {
            account: name.clone(),
            user: user.clone(),
        },
    )
    .await?;
    let note = format!(
        "{user} was the last user of account {name}: none but its coordinators may use it now. gadm account set {name} users_only=no opens it to everybody"
    );
    Ok(if last {
        Json(Done {
            schema: SCHEMA,
            notes: vec![note],
        })
    } else {
        answer
    })
}

// QOS

pub(super) async fn qos_list(
    _: Caller,
    Shared(site): Shared<Site>,
    pairs: Pairs,
) -> Result<Json<Value>, ApiError> {
    pairs.only(&[])?;
    let (state, config) = (site.core.view().await, site.app.config());
    let rows: Vec<QosRow> = state
        .policy
        .qos
        .values()
        .map(|qos| qos_row(qos, &config))
        .collect();
    Ok(Json(json!({"schema": SCHEMA, "qos": rows})))
}

pub(super) async fn qos(
    _: Caller,
    Shared(site): Shared<Site>,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let (state, config) = (site.core.view().await, site.app.config());
    sense::exists("qos", &name, state.policy.qos.keys())?;
    Ok(Json(
        json!({"schema": SCHEMA, "qos": [qos_row(&state.policy.qos[&name], &config)]}),
    ))
}

pub(super) async fn edit_qos(
    caller: Caller,
    Shared(site): Shared<Site>,
    Path(name): Path<String>,
    body: Body,
) -> Answer {
    let Json(edit) = body?;
    caller.must_administer("editing QOS")?;
    may_edit(&site, &caller, RecordKind::Qos, &name)?;
    let _turn = site.app.policy_turn().await;
    let state = site.core.view().await;
    let old = state.policy.qos.get(&name);
    check_presence(
        "qos",
        &name,
        edit.create,
        old.is_some(),
        state.policy.qos.keys().cloned(),
    )?;
    let row = old
        .map(|qos| qos_row(qos, &site.app.config()))
        .unwrap_or_default();
    let qos = record::qos(&name, record::edited(&row, &edit, &record::QOS_KEYS)?)?;
    sense::qos(&state, &qos)?;
    let notes = sense::unheard_of(&state, old, &qos);
    send_noting(
        &site,
        caller,
        PolicyChange::Qos { qos: Box::new(qos) },
        notes,
    )
    .await
}

pub(super) async fn remove_qos(
    caller: Caller,
    Shared(site): Shared<Site>,
    Path(name): Path<String>,
    _: Body,
) -> Answer {
    caller.must_administer("editing QOS")?;
    may_edit(&site, &caller, RecordKind::Qos, &name)?;
    let _turn = site.app.policy_turn().await;
    let state = site.core.view().await;
    sense::exists("qos", &name, state.policy.qos.keys())?;
    send(&site, caller, PolicyChange::QosRemoved { name }).await
}

// reservations

pub(super) async fn reservations(
    _: Caller,
    Shared(site): Shared<Site>,
    pairs: Pairs,
) -> Result<Json<Value>, ApiError> {
    pairs.only(&[])?;
    let (state, config, now) = (site.core.view().await, site.app.config(), now());
    let rows: Vec<ReservationRow> = state
        .policy
        .reservations
        .values()
        .map(|one| reservation_row(one, &config, now))
        .collect();
    Ok(Json(json!({"schema": SCHEMA, "reservations": rows})))
}

pub(super) async fn reservation(
    _: Caller,
    Shared(site): Shared<Site>,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let (state, config) = (site.core.view().await, site.app.config());
    sense::exists("reservation", &name, state.policy.reservations.keys())?;
    let row = reservation_row(&state.policy.reservations[&name], &config, now());
    Ok(Json(json!({"schema": SCHEMA, "reservations": [row]})))
}

pub(super) async fn edit_reservation(
    caller: Caller,
    Shared(site): Shared<Site>,
    Path(name): Path<String>,
    body: Body,
) -> Answer {
    let Json(edit) = body?;
    caller.must_administer("editing reservations")?;
    may_edit(&site, &caller, RecordKind::Reservation, &name)?;
    let _turn = site.app.policy_turn().await;
    let state = site.core.view().await;
    let old = state.policy.reservations.get(&name);
    check_presence(
        "reservation",
        &name,
        edit.create,
        old.is_some(),
        state.policy.reservations.keys().cloned(),
    )?;
    let row = old
        .map(|one| reservation_row(one, &site.app.config(), now()))
        .unwrap_or_default();
    let mut reservation = record::reservation(
        &name,
        record::edited(&row, &edit, &record::RESERVATION_KEYS)?,
    )?;
    if edit.create {
        reservation.created_by.clone_from(&caller.actor.user);
    }
    sense::reservation(&state, &reservation)?;
    let is_empty =
        |one: &Reservation| one.users.is_empty() && one.accounts.is_empty() && !one.maintenance;
    let is_new = is_empty(&reservation) && old.is_none_or(|old| !is_empty(old));
    let note = is_new.then(|| format!("reservation {name} is for nobody: users= and accounts= say for whom, maintenance=yes that it is maintenance"));
    let added = reservation
        .users
        .iter()
        .filter(|user| old.is_none_or(|old| !old.users.contains(*user)));
    let unknown = sense::unknown_users(
        &state,
        added
            .map(|user| user.trim_start_matches('-').to_owned())
            .collect(),
    )
    .await;
    let notes = note.into_iter().chain(unknown).collect();
    send_noting(
        &site,
        caller,
        PolicyChange::Reservation {
            reservation: Box::new(reservation),
        },
        notes,
    )
    .await
}

pub(super) async fn remove_reservation(
    caller: Caller,
    Shared(site): Shared<Site>,
    Path(name): Path<String>,
    body: Body,
) -> Answer {
    let [force, unused] = removal(body)?;
    caller.must_administer("editing reservations")?;
    may_edit(&site, &caller, RecordKind::Reservation, &name)?;
    let _turn = site.app.policy_turn().await;
    let state = site.core.view().await;
    sense::exists("reservation", &name, state.policy.reservations.keys())?;
    let releases = state
        .policy
        .reservations
        .get(&name)
        .is_some_and(|one| one.release_jobs);
    let waiting = waiting_for(&state, &name);
    if unused && waiting > 0 {
        let (jobs, they) = if waiting == 1 {
            ("1 job waits", "it")
        } else {
            (&*format!("{waiting} jobs wait"), "them")
        };
        return Err(ApiError::conflict(format!(
            "reservation {name} is in use: {jobs} for it. Give {they} another (gadm job update reservation=), cancel {they}, or remove it all the same: \
             gadm reservation del {name}"
        )));
    }
    let Json(mut done) = send(
        &site,
        caller,
        PolicyChange::ReservationRemoved {
            name: name.clone(),
            force,
        },
    )
    .await?;
    if waiting > 0 {
        let then = match (waiting, releases) {
            (1, true) => "1 job that waits names it, and waits on without it",
            (1, false) => "1 job that waits names it, and will not start",
            (_, true) => &format!("{waiting} jobs that wait name it, and wait on without it"),
            (_, false) => &format!("{waiting} jobs that wait name it, and will not start"),
        };
        done.notes.push(format!("reservation {name}: {then}"));
    }
    Ok(Json(done))
}

/// Jobs and tasks that wait and name a reservation.
fn waiting_for(state: &State, name: &str) -> usize {
    let is_its = |spec: &JobSpec| spec.reservation.as_deref() == Some(name);
    let jobs = state
        .jobs
        .values()
        .filter(|job| job.state == JobState::Pending && is_its(&job.spec))
        .count();
    let tasks = state
        .arrays
        .values()
        .filter(|array| is_its(&array.spec))
        .map(|array| array.pending.len() as usize);
    jobs + tasks.sum::<usize>()
}

/// `{"change":{"force":true}}`, or nothing: whether jobs may run in it; whether none may name it, as `{"unused":true}` says.
fn removal(body: Body) -> Result<[bool; 2], ApiError> {
    const KEYS: [&str; 2] = ["force", "unused"];
    let Json(edit) = body?;
    if let Some(odd) = edit.change.keys().find(|key| !KEYS.contains(&key.as_str())) {
        return Err(ApiError::invalid(format!(
            "{odd}: force and unused (true or false) are all that a removal takes"
        )));
    }
    let said = |key: &str| match edit.change.get(key) {
        None => Ok(false),
        Some(Value::Bool(said)) => Ok(*said),
        Some(other) => Err(ApiError::invalid(format!(
            "{key} is true or false, not {other}"
        ))),
    };
    Ok([said(KEYS[0])?, said(KEYS[1])?])
}

// licences

pub(super) async fn licences(
    _: Caller,
    Shared(site): Shared<Site>,
    pairs: Pairs,
) -> Result<Json<Value>, ApiError> {
    pairs.only(&[])?;
    let rows: Vec<LicenceRow> = licence_rows(&*site.core.view().await);
    Ok(Json(json!({"schema": SCHEMA, "licences": rows})))
}

// all of it as a text

pub(super) async fn export(
    caller: Caller,
    Shared(site): Shared<Site>,
    pairs: Pairs,
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

pub(super) async fn import(
    caller: Caller,
    Shared(site): Shared<Site>,
    body: Result<Json<PolicyText>, JsonRejection>,
) -> Answer {
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
        site.app.may_have_quotas.store(true, Relaxed);
    }
    Ok(Json(Done {
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
pub(super) fn changes(old: &Policy, new: &Policy) -> Vec<String> {
    fn of<T: PartialEq>(
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
    let mut all = of("account", &old.accounts, &new.accounts);
    all.extend(of("qos", &old.qos, &new.qos));
    all.extend(of("reservation", &old.reservations, &new.reservations));
    all
}
