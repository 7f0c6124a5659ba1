//! For administrators: diagnosis, the checker, configuration in force, reload, backup, metrics.
//!
//! Owns these answers; numbers come from [`crate::metrics`], carets from [`crate::config`].

use super::error::ApiError;
use super::permission::Caller;
use super::{App, Site, now};
use crate::config::{Config, ConfigError};
use crate::core_thread::CoreHandle;
use crate::{metrics, store};
use axum::Json;
use axum::extract::State as Shared;
use axum::extract::rejection::JsonRejection;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use gwire::api::{BackupRequest, Done, SCHEMA};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Arc;

pub(super) async fn diag(_: Caller, Shared(site): Shared<Site>) -> Result<Json<Value>, ApiError> {
    let state = site.core.view().await;
    Ok(Json(metrics::diag(
        &state,
        &site.core,
        &site.app.requests(),
        site.app.started.elapsed(),
        now(),
    )))
}

pub(super) async fn metrics(_: Caller, Shared(site): Shared<Site>) -> Response {
    let state = site.core.view().await;
    let text = metrics::prometheus(
        &state,
        &site.core,
        &site.app.requests(),
        site.app.started.elapsed(),
        now(),
    );
    (
        [(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")],
        text,
    )
        .into_response()
}

/// What the checker finds wrong with the whole state; nothing, if all is well.
pub(super) async fn check(
    caller: Caller,
    Shared(site): Shared<Site>,
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
pub(super) async fn config(
    caller: Caller,
    Shared(site): Shared<Site>,
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
        "submit_hook": hook,
        "trace": config.trace,
        "cluster": serde_json::to_value(&config.cluster).unwrap_or(Value::Null),
    })))
}

pub(super) async fn reload_request(
    caller: Caller,
    Shared(site): Shared<Site>,
) -> Result<Json<Done>, ApiError> {
    caller.must_administer("reload")?;
    let notes = reload(&site.app, &site.core).await?;
    Ok(Json(Done {
        schema: SCHEMA,
        notes,
    }))
}

/// See [`App::reload`].
pub(super) async fn reload(app: &App, core: &CoreHandle) -> Result<Vec<String>, ApiError> {
    let new = read_config(app).await?;
    let old = app.config();
    let restart = Config::restart_needed(&old, &new);
    let merged = Arc::new(Config::reloaded(&old, &new));
    core.reload(Arc::new(merged.cluster.clone())).await?;
    app.live.set(&merged);
    app.may_have_quotas
        .store(true, std::sync::atomic::Ordering::Relaxed);
    *app.config.write().expect("no panic while held") = merged;
    tracing::info!(path = %app.config_path.display(), restart = restart.join(","), "configuration reloaded");
    let unknown = gcore::ctl::unknown_accounts(&*core.view().await);
    unknown.iter().for_each(|note| tracing::warn!("{note}"));
    Ok(restart
        .iter()
        .map(|key| restart_note(key))
        .chain(unknown)
        .collect())
}

/// The files as they are now.
pub(super) async fn read_config(app: &App) -> Result<Config, ApiError> {
    let path = app.config_path.clone();
    let read = tokio::task::spawn_blocking(move || Config::load(&path)).await;
    let read =
        read.map_err(|_| ApiError::unavailable("reading the configuration failed; this is a bug"))?;
    read.map_err(|errors| ApiError::invalid(refused(&errors)))
}

pub(super) fn restart_note(key: &str) -> String {
    format!("{key} has changed and takes effect when gpuctld is restarted")
}

fn refused(errors: &[ConfigError]) -> String {
    let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    let count = errors.len();
    let mistakes = if count == 1 { "a mistake" } else { "mistakes" };
    format!(
        "the configuration has {mistakes} and stays as it was:\n{}",
        texts.join("\n")
    )
}

pub(super) async fn backup(
    caller: Caller,
    Shared(site): Shared<Site>,
    body: Result<Json<BackupRequest>, JsonRejection>,
) -> Result<Json<Done>, ApiError> {
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
    Ok(Json(Done {
        schema: SCHEMA,
        notes: vec![format!("written to {}", path.display())],
    }))
}

/// An error and what caused it, in one line.
pub(super) fn with_sources(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
