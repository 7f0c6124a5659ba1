//! `GET /livez` and `GET /readyz`, for load balancers and watchdogs: whether the controller lives, and whether it takes commands. The only
//! answers without user or token; they tell no number and no name.

use crate::core_thread::COMMAND_QUEUE;
use crate::http::app::ApiContext;
use axum::extract::State as Shared;
use axum::http::StatusCode;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// For the core thread to show its state.
const PATIENCE: Duration = Duration::from_secs(5);

/// Paths for which a request needs no user.
pub const PROBES: [&str; 2] = ["/livez", "/readyz"];

/// 200 while the core thread shows its state, else 503.
pub(crate) async fn livez(Shared(site): Shared<ApiContext>) -> (StatusCode, &'static str) {
    match tokio::time::timeout(PATIENCE, site.core.view()).await {
        Ok(_) => (StatusCode::OK, "ok\n"),
        Err(_) => (
            StatusCode::SERVICE_UNAVAILABLE,
            "the core does not answer\n",
        ),
    }
}

/// As [`livez`], and 503 while commands are refused: the disk is short, or too many wait.
pub(crate) async fn readyz(Shared(site): Shared<ApiContext>) -> (StatusCode, &'static str) {
    let not_ready = |why| (StatusCode::SERVICE_UNAVAILABLE, why);
    let free = site.core.stats().disk_free_bytes.load(Relaxed);
    // 0: nothing was committed yet.
    if free > 0 && free < site.app.config().min_free_bytes {
        return not_ready("the disk of the database is short: see gadm diag\n");
    }
    if site.core.queue_len() >= COMMAND_QUEUE {
        return not_ready("too many commands wait\n");
    }
    livez(Shared(site)).await
}
