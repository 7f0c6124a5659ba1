//! Slurm's REST API, as slurmrestd answers it: `/slurm/VERSION/...` and `/slurmdb/VERSION/...`.
//!
//! Owns paths, queries and bodies in Slurm's shape, and translates: what is done, and who may do it, is said by the routes of `/v1`,
//! which are asked inside this process. The records are `gslurm_json`'s.

mod accounting;
mod change;
mod cluster;
mod description;
mod error;
mod job;
mod listing;
mod openapi;
mod question;
mod record;
mod request;
mod submit;
mod v1;

use crate::http::app::ApiContext;
use crate::http::peer::Peer;
use axum::body::{Body, to_bytes};
use axum::extract::{Path, Request, State as Shared};
use axum::http::Method;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use axum::{Json, Router};
use error::SlurmError;
use gslurm_json::document::Meta;
use gwire::api::MAX_BODY_BYTES;
use question::{Family, Query, RestQuestion};
use request::{Answer, RestRequest};
use serde_json::{Value, json};
use std::sync::Arc;
use v1::V1;

/// The routes, which ask those of `v1`.
pub(super) fn routes(site: ApiContext, v1: Router) -> Router {
    Router::new()
        .route(
            "/slurm/{version}/{*path}",
            any(|at, shared, request| answer(Family::Slurm, at, shared, request)),
        )
        .route(
            "/slurmdb/{version}/{*path}",
            any(|at, shared, request| answer(Family::Slurmdb, at, shared, request)),
        )
        .route("/openapi/v3", get(openapi::document))
        .route("/openapi", get(openapi::document))
        .route("/openapi.json", get(openapi::document))
        .with_state(Slurm { site, v1 })
}

/// Largest body where no script comes along.
const MAX_SMALL_BODY_BYTES: usize = 1 << 20;

/// What the routes share.
#[derive(Clone)]
struct Slurm {
    site: ApiContext,
    v1: Router,
}

async fn answer(
    family: Family,
    Path((version, path)): Path<(String, String)>,
    Shared(slurm): Shared<Slurm>,
    request: Request,
) -> Response {
    let (head, body) = request.into_parts();
    let (user, gid) = head
        .extensions
        .get::<Peer>()
        .map_or((String::new(), 0), |peer| (peer.user.clone(), peer.gid));
    let cluster: Arc<str> = slurm.site.core.view().await.config.name.as_str().into();
    let meta = Meta {
        cluster: &cluster,
        data_parser: &version.clone(),
        command: vec![head.method.to_string(), head.uri.path().to_owned()],
        source: "",
        user,
        group: gid.to_string(),
    };
    let question = RestQuestion::of(family, version, &path, &head);
    let answered = match question {
        Ok(question) => carry_out(question, &slurm, cluster.clone(), body).await,
        Err(error) => (Err(error), json!([])),
    };
    let mut tail = meta.tail(&[], crate::core_thread::now());
    tail["warnings"] = answered.1;
    match answered.0 {
        Ok(Answer::Listing(body)) => ([(CONTENT_TYPE, "application/json")], body).into_response(),
        Ok(Answer::Parts(parts)) => {
            for (key, value) in parts {
                tail[key] = value;
            }
            Json(tail).into_response()
        }
        Err(error) => {
            tail["errors"] = json!([error.json()]);
            (error.status, Json(tail)).into_response()
        }
    }
}

type Answered = (Result<Answer, SlurmError>, Value);

/// The answer, and what is to be said besides.
async fn carry_out(
    question: RestQuestion,
    slurm: &Slurm,
    cluster: Arc<str>,
    body: Body,
) -> Answered {
    // Refused before the body is read.
    if let Err(error) = openapi::check(question.family, &question.method, &question.path) {
        return (Err(error), json!([]));
    }
    // A script comes with submissions alone.
    let most = match question.path.last().map(String::as_str) {
        Some("submit") => MAX_BODY_BYTES,
        _ => MAX_SMALL_BODY_BYTES,
    };
    let Ok(body) = to_bytes(body, most).await else {
        let text = format!(
            "the body has more than {} MiB, or did not come to its end",
            most >> 20
        );
        return (Err(SlurmError::too_large(text)), json!([]));
    };
    let body = body.to_vec();
    let RestQuestion {
        family,
        version,
        method,
        path,
        mut query,
        peer,
        command,
    } = question;
    let asked = RestRequest {
        v1: V1::new(slurm.v1.clone(), peer),
        cluster,
        version,
        command,
        body,
    };
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    let answer = match family {
        Family::Slurm => of_slurm(&asked, &method, &path, &mut query).await,
        Family::Slurmdb => of_slurmdb(&asked, &method, &path, &mut query).await,
    };
    (answer, query.warnings())
}

async fn of_slurm(
    asked: &RestRequest,
    method: &Method,
    path: &[&str],
    query: &mut Query,
) -> Result<Answer, SlurmError> {
    let is_read = method == Method::GET;
    let parts = match path {
        ["jobs"] if is_read => return job::list(asked, query).await,
        ["jobs"] => change::cancel_several(asked, query).await,
        ["jobs", "state"] => return job::states(asked, query).await,
        ["job", "submit"] => submit::submit(asked, query).await,
        ["job", "allocate"] => Err(SlurmError::not_done(
            "an allocation lives as long as its client, which holds a connection: salloc and grun make one. Submit a job whose script waits instead",
        )),
        ["job", id] if is_read => return job::one(asked, id, query).await,
        ["job", id] if method == Method::DELETE => change::cancel(asked, id, query).await,
        ["job", id] => change::update(asked, id, query).await,
        ["nodes"] => cluster::nodes(asked, None, query).await,
        ["node", name] if is_read => cluster::nodes(asked, Some(name), query).await,
        ["node", name] => change::node(asked, name).await,
        ["partitions"] => cluster::partitions(asked, None, query).await,
        ["partition", name] => cluster::partitions(asked, Some(name), query).await,
        ["reservations"] => cluster::reservations(asked, None, query).await,
        ["reservation", name] => cluster::reservations(asked, Some(name), query).await,
        ["ping"] => cluster::ping(asked).await,
        ["diag"] => cluster::diagnosis(asked).await,
        ["licenses"] => cluster::licences(asked).await,
        ["shares"] => cluster::shares(asked, query).await,
        ["reconfigure"] => change::reconfigure(asked).await,
        _ => Err(openapi::no_such_path()),
    };
    parts.map(Answer::Parts)
}

async fn of_slurmdb(
    asked: &RestRequest,
    method: &Method,
    path: &[&str],
    query: &mut Query,
) -> Result<Answer, SlurmError> {
    let (is_read, is_removal) = (method == Method::GET, method == Method::DELETE);
    let parts = match path {
        ["jobs"] => return job::runs(asked, None, query).await,
        ["job", id] => return job::runs(asked, Some(id), query).await,
        ["accounts"] if is_read => accounting::accounts(asked, None, query).await,
        ["accounts"] => record::put_accounts(asked).await,
        ["account", name] if is_removal => record::remove(asked, "accounts", name).await,
        ["account", name] => accounting::accounts(asked, Some(name), query).await,
        ["association" | "associations"] if is_removal => {
            record::remove_association(asked, query).await
        }
        ["associations"] if is_read => accounting::associations(asked, query, false).await,
        ["associations"] => record::put_associations(asked).await,
        ["association"] => accounting::associations(asked, query, true).await,
        ["users"] => accounting::users(asked, None, query).await,
        ["user", name] => accounting::users(asked, Some(name), query).await,
        ["qos"] if is_read => accounting::qos(asked, None, query).await,
        ["qos"] => record::put_qos(asked).await,
        ["qos", name] if is_removal => record::remove(asked, "qos", name).await,
        ["qos", name] => accounting::qos(asked, Some(name), query).await,
        ["clusters"] => accounting::clusters(asked, None).await,
        ["cluster", name] => accounting::clusters(asked, Some(name)).await,
        ["tres"] => accounting::tres(asked).await,
        ["config"] => accounting::config(asked).await,
        ["ping"] => cluster::ping(asked).await,
        ["diag"] => cluster::diagnosis(asked).await,
        ["wckeys"] => Ok(vec![("wckeys", json!([]))]),
        ["instances"] => Ok(vec![("instances", json!([]))]),
        _ => Err(openapi::no_such_path()),
    };
    parts.map(Answer::Parts)
}
