//! Reservations over the API: listed, edited, removed.

use crate::config::RecordKind;
use crate::core_thread::now;
use crate::http::app::ApiContext;
use crate::http::error::ApiError;
use crate::http::existence::exists;
use crate::http::permission::Caller;
use crate::http::policy::edit::{
    EditAnswer, EditBody, check_presence, may_edit, send, send_noting,
};
use crate::http::policy::row::reservation_row;
use crate::http::policy::{check, record};
use crate::http::query::QueryPairs;
use axum::Json;
use axum::extract::{Path, State as Shared};
use gcore::ctl::{PolicyChange, State};
use gmodel::policy::Reservation;
use gmodel::{JobSpec, JobState, RefusalKind};
use gwire::api::{ReservationRow, SCHEMA};
use serde_json::{Value, json};

pub(crate) async fn reservations(
    _: Caller,
    Shared(site): Shared<ApiContext>,
    pairs: QueryPairs,
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

pub(crate) async fn reservation(
    _: Caller,
    Shared(site): Shared<ApiContext>,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let (state, config) = (site.core.view().await, site.app.config());
    exists("reservation", &name, state.policy.reservations.keys())?;
    let row = reservation_row(&state.policy.reservations[&name], &config, now());
    Ok(Json(json!({"schema": SCHEMA, "reservations": [row]})))
}

pub(crate) async fn edit_reservation(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
    Path(name): Path<String>,
    body: EditBody,
) -> EditAnswer {
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
        state.policy.reservations.keys(),
    )?;
    let mut reservation = record::reservation(&name, old, &edit)?;
    if edit.create {
        reservation.created_by.clone_from(&caller.actor.user);
    }
    check::reservation(&state, &reservation)?;
    let is_empty =
        |one: &Reservation| one.users.is_empty() && one.accounts.is_empty() && !one.maintenance;
    let is_new = is_empty(&reservation) && old.is_none_or(|old| !is_empty(old));
    let note = is_new.then(|| format!("reservation {name} is for nobody: users= and accounts= say for whom, maintenance=yes that it is maintenance"));
    let added = reservation
        .users
        .iter()
        .filter(|user| old.is_none_or(|old| !old.users.contains(*user)));
    let unknown = check::unknown_users(
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

pub(crate) async fn remove_reservation(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
    Path(name): Path<String>,
    body: EditBody,
) -> EditAnswer {
    let [force, unused] = removal(body)?;
    caller.must_administer("editing reservations")?;
    may_edit(&site, &caller, RecordKind::Reservation, &name)?;
    let _turn = site.app.policy_turn().await;
    let state = site.core.view().await;
    exists("reservation", &name, state.policy.reservations.keys())?;
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
        ))
        .about(RefusalKind::ReservationBusy, &name));
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
fn removal(body: EditBody) -> Result<[bool; 2], ApiError> {
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
