//! The controller's pages for browsers. What they show and do is asked of the routes of `/v1` inside this process, as the session's user;
//! how they look is `gweb`'s.
//!
//! Owns login, sessions, forms and which questions a page asks. It has no right of its own and reads no state.

mod accounts;
mod act;
mod guard;
mod job;
mod jobs;
pub(super) mod link;
mod page;
mod pool;
mod search;
pub(crate) mod session;
pub(crate) mod visitor;

pub(crate) use visitor::{WebDoor, admit};

use crate::core_thread::CoreHandle;
use crate::http::app::{ApiContext, App};
use crate::http::request_times::measure;
use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::routing::{get, post};
use page::Web;
use std::sync::Arc;

/// Largest form: a few short fields.
const MAX_FORM_BYTES: usize = 16 << 10;

/// The pages, which ask the routes of `v1`. The listener puts a [`WebDoor`] beside every request, and [`admit`] its session.
pub fn router(core: CoreHandle, app: Arc<App>, v1: Router) -> Router {
    let site = ApiContext { core, app };
    Router::new()
        .route("/", get(jobs::overview))
        .route("/jobs", get(jobs::list))
        .route("/job/{id}", get(job::show))
        .route("/job/{id}/{act}", post(act::act))
        .route("/pool", get(pool::show))
        .route("/accounts", get(accounts::show))
        .route("/search", get(search::search))
        .route("/login/{secret}", get(page::log_in))
        .route("/logout", post(act::log_out))
        .route("/web/page.css", get(page::style))
        .route("/web/page.js", get(page::script))
        .route("/web/icon.svg", get(page::icon))
        .fallback(page::no_such_page)
        .layer(axum::middleware::from_fn(guard::guard))
        .layer(axum::middleware::from_fn_with_state(site.clone(), measure))
        .layer(DefaultBodyLimit::max(MAX_FORM_BYTES))
        .with_state(Web { site, v1 })
}
