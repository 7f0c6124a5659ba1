//! `GET /v1/policy-events`: changes of accounts, users, QOS and reservations on record.

use crate::core_thread::now;
use crate::http::app::ApiContext;
use crate::http::error::ApiError;
use crate::http::period::{in_order, month_of};
use crate::http::permission::Caller;
use crate::http::query::QueryPairs;
use axum::Json;
use axum::extract::State as Shared;
use gwire::api::SCHEMA;
use serde_json::{Value, json};

/// Each change, with its author.
pub(crate) async fn events(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
    pairs: QueryPairs,
) -> Result<Json<Value>, ApiError> {
    caller.must_administer("the history of accounts and QOS")?;
    let pairs = pairs.only(&["from", "to"])?;
    // What was changed just now is included.
    let to = pairs.instant("to")?.unwrap_or_else(|| now().plus_secs(1));
    let from = pairs.instant("from")?.unwrap_or_else(|| month_of(to));
    in_order(Some(from), Some(to))?;
    let rows = site.core.reader().policy_events(from, to).await?;
    Ok(Json(json!({"schema": SCHEMA, "changes": rows})))
}
