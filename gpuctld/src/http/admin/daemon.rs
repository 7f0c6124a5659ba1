//! For administrators: diagnosis, the checker, configuration in force, reload, backup, metrics.
//!
//! Owns these answers; numbers come from [`crate::metrics`], carets from [`crate::config`].

use crate::core_thread::now;
use crate::http::app::ApiContext;
use crate::http::error::{ApiError, with_sources};
use crate::http::permission::{Caller, Visibility};
use crate::{metrics, store};
use axum::Json;
use axum::extract::State as Shared;
use axum::extract::rejection::JsonRejection;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use gwire::api::{BackupRequest, ChangeReply, SCHEMA};
use serde_json::{Value, json};
use std::path::PathBuf;

pub(crate) async fn diag(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
) -> Result<Json<Value>, ApiError> {
    let state = site.core.view().await;
    let (requests, up) = (site.app.requests(), site.app.started.elapsed());
    let mut diag = metrics::diag(&state, &site.core, &requests, up, now());
    let webhooks = site.app.events.webhooks.rows().into_iter();
    let troubled = webhooks.filter(|row| row.state != "delivering");
    let troubled: Vec<String> = troubled
        .map(|row| format!("{} is {}: {}", row.name, row.state, row.error))
        .collect();
    if caller.actor.operator && !troubled.is_empty() {
        diag["webhooks"] = json!(troubled);
    }
    Ok(Json(diag))
}

/// Holdings of accounts and jobs are left out for readers that do not see all jobs (`privacy`).
pub(crate) async fn metrics(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
) -> Result<Response, ApiError> {
    let state = site.core.view().await;
    let sees_all = Visibility::of(&caller, &state).sees_all();
    let task = tokio::task::spawn_blocking(move || {
        let (requests, up) = (site.app.requests(), site.app.started.elapsed());
        metrics::prometheus(
            &state,
            &site.core,
            &requests,
            &site.app.events.mail,
            up,
            now(),
            sees_all,
        )
    });
    let text = task
        .await
        .map_err(|_| ApiError::unavailable("the metrics could not be told; this is a bug"))?;
    let kind = [(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    Ok((kind, text).into_response())
}

/// What the checker finds wrong with the whole state; nothing, if all is well.
pub(crate) async fn check(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
) -> Result<Json<Value>, ApiError> {
    caller.must_administer("the check")?;
    let state = site.core.full_state().await?;
    let (jobs, runs, nodes) = (state.jobs.len(), state.runs.len(), state.nodes.len());
    let notes = gcore::ctl::unknown_accounts(&state);
    let task = tokio::task::spawn_blocking(move || gcore::ctl::check(&state));
    let found = task
        .await
        .map_err(|_| ApiError::unavailable("the check itself failed; this is a bug"))?;
    let violations: Vec<String> = found.iter().map(ToString::to_string).collect();
    let checked = json!({"jobs": jobs, "runs": runs, "nodes": nodes});
    Ok(Json(
        json!({"schema": SCHEMA, "ok": violations.is_empty(), "violations": violations, "notes": notes, "checked": checked}),
    ))
}

/// The configuration in force, defaults filled in.
pub(crate) async fn config(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
) -> Result<Json<Value>, ApiError> {
    caller.must_administer("the configuration")?;
    let config = site.app.config();
    let hook = config
        .submit_hook
        .as_ref()
        .map(|hook| hook.program.display().to_string());
    Ok(Json(json!({
        "schema": SCHEMA,
        "file": site.app.config_path().display().to_string(),
        "state_dir": config.state_dir.display().to_string(),
        "socket": config.socket.display().to_string(),
        "listen": config.listen.to_string(),
        "advertise": config.advertise,
        "min_free_bytes": config.min_free_bytes,
        "node_cert_days": config.node_cert_days,
        "keep_scripts_days": config.keep_scripts_days,
        "keep_jobs_days": config.keep_jobs_days,
        "keep_output_days": config.keep_output_days,
        "keep_output_bytes": config.keep_output_bytes,
        "submit_hook": hook,
        "trace": config.trace,
        "cluster": serde_json::to_value(&config.cluster).unwrap_or(Value::Null),
    })))
}

pub(crate) async fn reload_request(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
) -> Result<Json<ChangeReply>, ApiError> {
    caller.must_administer("reload")?;
    let notes = site.app.reload(&site.core).await?;
    Ok(Json(ChangeReply {
        schema: SCHEMA,
        notes,
    }))
}

pub(crate) async fn backup(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
    body: Result<Json<BackupRequest>, JsonRejection>,
) -> Result<Json<ChangeReply>, ApiError> {
    let Json(request) = body?;
    caller.must_administer("backup")?;
    let path = PathBuf::from(&request.path);
    if !path.is_absolute() {
        return Err(ApiError::invalid(format!(
            "{:?} is not an absolute path on the controller's host",
            request.path
        )));
    }
    if path.exists() {
        return Err(ApiError::conflict(format!(
            "{} exists already; name another file",
            path.display()
        )));
    }
    let (database, to) = (
        site.app.config().state_dir.join(store::DATABASE),
        path.clone(),
    );
    let written = tokio::task::spawn_blocking(move || store::backup(&database, &to)).await;
    let written = written.map_err(|_| ApiError::unavailable("the backup failed; this is a bug"))?;
    written.map_err(|error| {
        ApiError::unavailable(format!(
            "the backup was not written: {}",
            with_sources(&error)
        ))
    })?;
    Ok(Json(ChangeReply {
        schema: SCHEMA,
        notes: vec![format!("written to {}", path.display())],
    }))
}
