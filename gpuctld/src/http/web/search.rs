//! The one field of a search: a job by its number, a node by its name, else a user.

use super::page::Visitor;
use axum::extract::Query;
use axum::response::{IntoResponse, Redirect, Response};
use gweb::percent_encoded;
use gwire::api::NodeRow;
use serde::Deserialize;

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Search {
    q: String,
}

pub(super) async fn search(visitor: Visitor, Query(search): Query<Search>) -> Response {
    let text = search.q.trim();
    let is_job = text.starts_with(|c: char| c.is_ascii_digit());
    let to = match text {
        "" => "/".to_owned(),
        _ if is_job => format!("/job/{}", percent_encoded(text)),
        _ => match visitor.inside().list::<NodeRow>("/v1/nodes", "nodes").await {
            Err(error) => return visitor.refused(&error),
            Ok(nodes) if nodes.iter().any(|node| node.name == text) => {
                format!("/pool?node={}", percent_encoded(text))
            }
            Ok(_) => format!("/jobs?user={}", percent_encoded(text)),
        },
    };
    Redirect::to(&to).into_response()
}
