//! The REST API under `/v1/` and `/metrics`, as `gwire::api` describes it: the same for commands and others. Beside it Slurm's.
//!
//! Owns routes, permission to ask, filters and the shape of answers, in a folder for each noun. It changes nothing by itself:
//! reading is done on the published view, everything else is a command to the core. Sockets and TLS belong to the listener.

mod accounting;
mod admin;
mod app;
mod bill;
mod error;
mod event;
mod existence;
mod forecast;
mod inside;
mod job;
mod json_row;
pub mod node;
mod peer;
mod period;
mod permission;
pub(crate) mod policy;
mod query;
mod request_rate;
mod request_times;
mod row_pieces;
mod slurm;
mod step;
mod token;
pub(crate) mod web;

#[cfg(test)]
mod tests;

pub(crate) use admin::probe::PROBES;
pub use app::{App, NodeAnswer, NodeLinks, StreamSource};
pub use error::ApiError;
pub use peer::{CertificateHolder, ForwarderAddress, Peer};
pub(crate) use token::way_in::{admit as admit_token, unauthorised};
pub use web::router as web_router;
pub(crate) use web::{WebDoor, admit as admit_browser};

use crate::core_thread::CoreHandle;
use app::ApiContext;
use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::routing::{get, post};
use gwire::api::MAX_BODY_BYTES;
use std::sync::Arc;

/// Largest body of a machine that has shown nothing but a connection.
const MAX_JOIN_BYTES: usize = 64 << 10;
/// Largest body where no script comes along.
const MAX_SMALL_BODY_BYTES: usize = 1 << 20;

/// The whole API. The listener adds a [`Peer`] to every request.
pub fn router(core: CoreHandle, app: Arc<App>) -> Router {
    let site = ApiContext { core, app };
    let own = Router::new()
        .route(
            "/v1/jobs",
            get(job::list::list)
                .post(job::submit::submit)
                .layer(DefaultBodyLimit::max(MAX_BODY_BYTES)),
        )
        .route(
            "/v1/jobs/dry-run",
            post(job::dry_run::dry_run).layer(DefaultBodyLimit::max(MAX_BODY_BYTES)),
        )
        .route("/v1/jobs/cancel", post(job::cancel::cancel))
        .route("/v1/jobs/hold", post(job::control::hold))
        .route("/v1/jobs/release", post(job::control::release))
        .route("/v1/jobs/requeue", post(job::control::requeue))
        .route("/v1/jobs/suspend", post(job::control::suspend))
        .route("/v1/jobs/resume", post(job::control::resume))
        .route("/v1/jobs/update", post(job::control::update))
        .route("/v1/jobs/{id}", get(job::show::show))
        .route("/v1/jobs/{id}/script", get(job::show::script))
        .route("/v1/jobs/{id}/output", get(step::output::open))
        .route("/v1/jobs/{id}/log", get(job::log::log))
        .route("/v1/jobs/{id}/why", get(forecast::why::why))
        .route("/v1/demand", get(job::demand::demand))
        .route("/v1/starts", get(forecast::why::starts))
        .route("/v1/jobs/{id}/wait", get(job::show::wait))
        .route("/v1/jobs/{id}/attend", post(job::allocation::attend))
        .route("/v1/jobs/{id}/end", post(job::allocation::end))
        .route(
            "/v1/jobs/{id}/steps",
            post(step::start::start).layer(DefaultBodyLimit::max(MAX_BODY_BYTES)),
        )
        .route("/v1/jobs/{id}/steps/{step}/end", post(step::start::end))
        .route("/v1/jobs/{id}/steps/{step}/stream", get(step::stream::open))
        .route("/v1/streams/{stream}", post(step::stream::answer))
        .route("/v1/outputs/{file}", post(step::kept_output::upload))
        .route("/v1/steps", get(step::list::list))
        .route("/v1/nodes", get(node::list::list))
        .route("/v1/nodes/{name}/{act}", post(node::list::act))
        .route("/v1/events", get(event::events))
        .route("/v1/gpus", get(node::gpu::list))
        .route("/v1/gpus/{gpu}/history", get(node::gpu::history))
        .route("/v1/gpus/{gpu}/forget", post(node::gpu::forget))
        .route("/v1/nodes/{name}/gpus/{gpu}/{act}", post(node::gpu::act))
        .route("/v1/partitions", get(node::list::partitions))
        .route("/v1/cluster", get(node::list::cluster))
        .route("/v1/differences", get(node::difference::list))
        .route("/v1/runs", get(accounting::runs::runs))
        .route("/v1/idle", get(accounting::idle::report))
        .route("/v1/report", get(accounting::report::report))
        .route("/v1/bill", get(bill::bill))
        .route("/v1/bill/runs", get(bill::runs::runs))
        .route("/v1/bill/prices", get(bill::prices))
        .route("/v1/bill/close", post(bill::change::close))
        .route("/v1/bill/correct", post(bill::change::correct))
        .route("/v1/utilization", get(accounting::utilization::utilization))
        .route("/v1/node-events", get(accounting::utilization::node_events))
        .route("/v1/policy-events", get(policy::history::events))
        .route("/v1/trace", get(accounting::trace::page))
        .route("/v1/tokens", post(node::join::token))
        .route("/v1/user-tokens", get(token::list).post(token::make))
        .route("/v1/user-tokens/{id}/revoke", post(token::revoke))
        .route("/v1/web-links", post(web::link::make))
        .route("/v1/web-sessions/end", post(web::link::end_all))
        .route(
            "/v1/join",
            post(node::join::join).layer(DefaultBodyLimit::max(MAX_JOIN_BYTES)),
        )
        .route(
            "/v1/renew",
            post(node::join::renew).layer(DefaultBodyLimit::max(MAX_JOIN_BYTES)),
        )
        .route("/v1/webhooks", get(admin::webhook::list))
        .route("/v1/webhooks/{name}/resume", post(admin::webhook::resume))
        .route("/v1/diag", get(admin::daemon::diag))
        .route("/v1/check", get(admin::daemon::check))
        .route("/v1/config", get(admin::daemon::config))
        .route("/v1/reload", post(admin::daemon::reload_request))
        .route(
            "/v1/reload/dry-run",
            post(admin::reload_dry_run::reload_dry_run),
        )
        .route("/v1/backup", post(admin::daemon::backup))
        .route("/v1/accounts", get(policy::account::accounts))
        .route(
            "/v1/accounts/{name}",
            get(policy::account::account).post(policy::account::edit_account),
        )
        .route(
            "/v1/accounts/{name}/remove",
            post(policy::account::remove_account),
        )
        .route(
            "/v1/accounts/{name}/users/{user}",
            post(policy::account::edit_user),
        )
        .route(
            "/v1/accounts/{name}/users/{user}/remove",
            post(policy::account::remove_user),
        )
        .route("/v1/qos", get(policy::qos::qos_list))
        .route(
            "/v1/qos/{name}",
            get(policy::qos::qos).post(policy::qos::edit_qos),
        )
        .route("/v1/qos/{name}/remove", post(policy::qos::remove_qos))
        .route("/v1/reservations", get(policy::reservation::reservations))
        .route(
            "/v1/reservations/{name}",
            get(policy::reservation::reservation).post(policy::reservation::edit_reservation),
        )
        .route(
            "/v1/reservations/{name}/remove",
            post(policy::reservation::remove_reservation),
        )
        .route(
            "/v1/partitions/{name}",
            get(policy::partition::partition).post(policy::partition::edit_partition),
        )
        .route(
            "/v1/partitions/{name}/remove",
            post(policy::partition::remove_partition),
        )
        .route("/v1/priorities", get(job::priority::priorities))
        .route("/v1/shares", get(policy::share::shares))
        .route("/v1/licences", get(policy::licence::licences))
        .route(
            "/v1/policy",
            get(policy::text::export)
                .post(policy::text::import)
                .layer(DefaultBodyLimit::max(MAX_BODY_BYTES)),
        )
        .route("/metrics", get(admin::daemon::metrics))
        .route("/livez", get(admin::probe::livez))
        .route("/readyz", get(admin::probe::readyz))
        .fallback(no_such_endpoint)
        .method_not_allowed_fallback(wrong_method)
        .layer(axum::middleware::from_fn(token::scope::gate))
        .layer(axum::middleware::from_fn_with_state(
            site.clone(),
            request_times::measure,
        ))
        .layer(DefaultBodyLimit::max(MAX_SMALL_BODY_BYTES))
        .with_state(site.clone());
    own.clone().merge(slurm::routes(site, own))
}

async fn no_such_endpoint(request: Request) -> ApiError {
    ApiError::not_found(format!(
        "there is no {} {}; the API is under /v1/, and as slurmrestd has it under /slurm/ and /slurmdb/",
        request.method(),
        request.uri().path()
    ))
}

async fn wrong_method(request: Request) -> ApiError {
    ApiError::wrong_method(format!(
        "{} does not take {}",
        request.uri().path(),
        request.method()
    ))
}
