//! `GET /v1/webhooks` and `POST /v1/webhooks/{name}/resume`, for operators.

use crate::http::app::ApiContext;
use crate::http::error::ApiError;
use crate::http::permission::Caller;
use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State as Shared};
use gwire::api::{ChangeReply, SCHEMA, WebhookResume};
use serde_json::{Value, json};

pub(crate) async fn list(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
) -> Result<Json<Value>, ApiError> {
    caller.must_administer("the list of webhooks")?;
    Ok(Json(
        json!({"schema": SCHEMA, "webhooks": site.app.events.webhooks.rows()}),
    ))
}

pub(crate) async fn resume(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
    Path(name): Path<String>,
    body: Result<Json<WebhookResume>, JsonRejection>,
) -> Result<Json<ChangeReply>, ApiError> {
    caller.must_administer("webhook resume")?;
    let Json(request) = body?;
    let Some(webhook) = site.app.events.webhooks.of(&name) else {
        let rows = site.app.events.webhooks.rows();
        let names: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
        return Err(ApiError::not_found(format!(
            "there is no webhook {name:?}; there are: {}",
            names.join(", ")
        )));
    };
    let row = webhook.row();
    if row.state == "delivering" {
        return Err(ApiError::conflict(format!(
            "webhook {name} delivers already"
        )));
    }
    webhook
        .resumed
        .send_modify(|(count, skips)| (*count, *skips) = (*count + 1, request.skip));
    let what = if request.skip {
        "what comes"
    } else {
        "what waited"
    };
    Ok(Json(ChangeReply {
        schema: SCHEMA,
        notes: vec![format!("webhook {name} goes on with {what}")],
    }))
}
