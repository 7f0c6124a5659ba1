//! QOS over the API: listed, edited, removed.

use crate::config::RecordKind;
use crate::http::app::ApiContext;
use crate::http::error::ApiError;
use crate::http::existence::exists;
use crate::http::permission::Caller;
use crate::http::policy::edit::{
    EditAnswer, EditBody, check_presence, may_edit, send, send_noting,
};
use crate::http::policy::row::qos_row;
use crate::http::policy::{check, record};
use crate::http::query::QueryPairs;
use axum::Json;
use axum::extract::{Path, State as Shared};
use gcore::ctl::PolicyChange;
use gwire::api::{QosRow, SCHEMA};
use serde_json::{Value, json};

pub(crate) async fn qos_list(
    _: Caller,
    Shared(site): Shared<ApiContext>,
    pairs: QueryPairs,
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

pub(crate) async fn qos(
    _: Caller,
    Shared(site): Shared<ApiContext>,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let (state, config) = (site.core.view().await, site.app.config());
    exists("qos", &name, state.policy.qos.keys())?;
    Ok(Json(
        json!({"schema": SCHEMA, "qos": [qos_row(&state.policy.qos[&name], &config)]}),
    ))
}

pub(crate) async fn edit_qos(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
    Path(name): Path<String>,
    body: EditBody,
) -> EditAnswer {
    let Json(edit) = body?;
    caller.must_administer("editing QOS")?;
    may_edit(&site, &caller, RecordKind::Qos, &name)?;
    let _turn = site.app.policy_turn().await;
    let state = site.core.view().await;
    let old = state.policy.qos.get(&name);
    check_presence("qos", &name, edit.create, state.policy.qos.keys())?;
    let qos = record::qos(&name, old, &edit)?;
    check::qos(&state, &qos)?;
    let notes = check::unheard_of(&state, old, &qos);
    send_noting(
        &site,
        caller,
        PolicyChange::Qos { qos: Box::new(qos) },
        notes,
    )
    .await
}

pub(crate) async fn remove_qos(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
    Path(name): Path<String>,
    _: EditBody,
) -> EditAnswer {
    caller.must_administer("editing QOS")?;
    may_edit(&site, &caller, RecordKind::Qos, &name)?;
    let _turn = site.app.policy_turn().await;
    let state = site.core.view().await;
    exists("qos", &name, state.policy.qos.keys())?;
    send(&site, caller, PolicyChange::QosRemoved { name }).await
}
