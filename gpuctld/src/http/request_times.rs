//! How long requests take, by route: for `/metrics` and `gadm diag`.

use crate::http::app::ApiContext;
use axum::extract::{MatchedPath, Request, State as Shared};
use axum::middleware::Next;
use axum::response::Response;
use std::time::Instant;

/// Time of every request but the long polls, by route.
pub(crate) async fn measure(
    Shared(site): Shared<ApiContext>,
    request: Request,
    next: Next,
) -> Response {
    let route = request
        .extensions()
        .get::<MatchedPath>()
        .map(MatchedPath::as_str)
        .unwrap_or("other");
    let times = (!route.ends_with("/wait") && !route.ends_with("/attend"))
        .then(|| site.app.request_times(route));
    let since = Instant::now();
    let answer = next.run(request).await;
    if let Some(times) = times {
        times.record_duration(since.elapsed());
    }
    answer
}
