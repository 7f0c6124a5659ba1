//! What holds for every page: headers that keep other sites out, the name by which a browser may ask, forms from these pages alone.

use super::visitor::WebDoor;
use axum::extract::Request;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HOST, ORIGIN, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
    X_FRAME_OPTIONS,
};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

/// Nothing from elsewhere, and of here the style, the script and what that fetches. No page of another site frames these.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; form-action 'self'; \
     base-uri 'none'; frame-ancestors 'none'";
/// Browsers leave out the origin of a form where no referrer is sent at all.
const HEADERS: [(HeaderName, &str); 6] = [
    (CONTENT_SECURITY_POLICY, POLICY),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (REFERRER_POLICY, "same-origin"),
    (X_FRAME_OPTIONS, "DENY"),
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    ),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
];

/// Refuses what no page of ours sends, and puts the headers on every answer.
pub(super) async fn guard(request: Request, next: Next) -> Response {
    let mut answer = match refused(&request) {
        None => next.run(request).await,
        Some(text) => (StatusCode::FORBIDDEN, text).into_response(),
    };
    let headers = answer.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    // A page is one user's, at one moment. Only the style and the script say otherwise.
    headers
        .entry(CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("no-store"));
    answer
}

fn refused(request: &Request) -> Option<&'static str> {
    let Some(door) = request.extensions().get::<WebDoor>() else {
        return Some("this connection is for no browser\n");
    };
    let text = |name| {
        request
            .headers()
            .get(name)
            .and_then(|value| value.to_str().ok())
    };
    let host = text(HOST).unwrap_or_default();
    // A name of another site that now points here would make its scripts ours; over TLS the certificate stands against that.
    if !door.tls && !is_loopback_name(host) {
        return Some(
            "this page is asked for as 127.0.0.1 or localhost, and by no other name of this machine\n",
        );
    }
    if matches!(*request.method(), Method::GET | Method::HEAD) {
        return None;
    }
    let scheme = if door.tls { "https" } else { "http" };
    let is_ours = text(ORIGIN).and_then(|origin| origin.strip_prefix(scheme)?.strip_prefix("://"));
    (is_ours != Some(host)).then_some("forms of other sites are not taken\n")
}

/// With any port: a tunnel has one of its own.
fn is_loopback_name(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    ["127.0.0.1", "localhost", "[::1]"].contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_itself_are_loopback() {
        for good in [
            "127.0.0.1:7118",
            "localhost:8080",
            "localhost",
            "[::1]:9",
            "[::1]",
        ] {
            assert!(is_loopback_name(good), "{good}");
        }
        for bad in [
            "",
            "evil.example:7118",
            "127.0.0.1.evil.example",
            "localhost.evil:1",
            "127.0.0.1:x",
            "10.0.0.1",
            "::1",
        ] {
            assert!(!is_loopback_name(bad), "{bad}");
        }
    }
}
