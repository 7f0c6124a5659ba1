//! What a token is good for: the one table of routes and scopes. What stands in no line is refused to tokens, whatever their scopes.
//!
//! Owns that a request's token has the scope of its route. Whose jobs those are, and in which accounts, is said where jobs are found
//! (`permission`, and the core).

use crate::http::error::ApiError;
use crate::http::peer::Peer;
use axum::extract::{MatchedPath, Request};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use gmodel::Scope;

/// The scope for a method and a route as `http::router` writes it.
const SCOPES: &[(Method, &str, Scope)] = &[
    (Method::GET, "/v1/jobs", Scope::Read),
    (Method::GET, "/v1/jobs/{id}", Scope::Read),
    (Method::GET, "/v1/jobs/{id}/script", Scope::Read),
    (Method::GET, "/v1/jobs/{id}/output", Scope::Read),
    (Method::GET, "/v1/jobs/{id}/log", Scope::Read),
    (Method::GET, "/v1/jobs/{id}/why", Scope::Read),
    (Method::GET, "/v1/jobs/{id}/wait", Scope::Read),
    (Method::GET, "/v1/starts", Scope::Read),
    (Method::GET, "/v1/demand", Scope::Read),
    (Method::GET, "/v1/steps", Scope::Read),
    (Method::GET, "/v1/priorities", Scope::Read),
    (Method::GET, "/v1/nodes", Scope::Read),
    (Method::GET, "/v1/events", Scope::Read),
    (Method::GET, "/v1/gpus", Scope::Read),
    (Method::GET, "/v1/gpus/{gpu}/history", Scope::Read),
    (Method::GET, "/v1/partitions", Scope::Read),
    (Method::GET, "/v1/partitions/{name}", Scope::Read),
    (Method::GET, "/v1/cluster", Scope::Read),
    (Method::GET, "/v1/differences", Scope::Read),
    (Method::GET, "/v1/licences", Scope::Read),
    (Method::GET, "/v1/reservations", Scope::Read),
    (Method::GET, "/v1/reservations/{name}", Scope::Read),
    // A session has no more rights than the token that made its link.
    (Method::POST, "/v1/web-links", Scope::Read),
    (Method::POST, "/v1/web-sessions/end", Scope::Read),
    (Method::POST, "/v1/jobs", Scope::Submit),
    (Method::POST, "/v1/jobs/dry-run", Scope::Submit),
    (Method::POST, "/v1/jobs/hold", Scope::Submit),
    (Method::POST, "/v1/jobs/release", Scope::Submit),
    (Method::POST, "/v1/jobs/requeue", Scope::Submit),
    (Method::POST, "/v1/jobs/update", Scope::Submit),
    (Method::POST, "/v1/jobs/cancel", Scope::Cancel),
    (Method::GET, "/v1/runs", Scope::Report),
    (Method::GET, "/v1/idle", Scope::Report),
    (Method::GET, "/v1/report", Scope::Report),
    (Method::GET, "/v1/bill", Scope::Report),
    (Method::GET, "/v1/bill/runs", Scope::Report),
    (Method::GET, "/v1/bill/prices", Scope::Report),
    (Method::GET, "/v1/utilization", Scope::Report),
    (Method::GET, "/v1/shares", Scope::Report),
    (Method::GET, "/v1/accounts", Scope::Report),
    (Method::GET, "/v1/accounts/{name}", Scope::Report),
    (Method::GET, "/v1/qos", Scope::Report),
    (Method::GET, "/v1/qos/{name}", Scope::Report),
    (Method::GET, "/metrics", Scope::Metrics),
    (Method::GET, "/livez", Scope::Metrics),
    (Method::GET, "/readyz", Scope::Metrics),
    (Method::GET, "/v1/node-events", Scope::Operate),
    (Method::GET, "/v1/policy-events", Scope::Operate),
    (Method::GET, "/v1/trace", Scope::Operate),
    (Method::GET, "/v1/diag", Scope::Operate),
    (Method::GET, "/v1/webhooks", Scope::Operate),
    (Method::POST, "/v1/webhooks/{name}/resume", Scope::Operate),
    (Method::GET, "/v1/check", Scope::Operate),
    (Method::GET, "/v1/config", Scope::Operate),
    (Method::GET, "/v1/policy", Scope::Operate),
    (Method::POST, "/v1/jobs/suspend", Scope::Operate),
    (Method::POST, "/v1/jobs/resume", Scope::Operate),
    (Method::POST, "/v1/nodes/{name}/{act}", Scope::Operate),
    (
        Method::POST,
        "/v1/nodes/{name}/gpus/{gpu}/{act}",
        Scope::Operate,
    ),
    (Method::POST, "/v1/gpus/{gpu}/forget", Scope::Operate),
    (Method::POST, "/v1/reload", Scope::Operate),
    (Method::POST, "/v1/reload/dry-run", Scope::Operate),
    (Method::POST, "/v1/backup", Scope::Operate),
    (Method::POST, "/v1/accounts/{name}", Scope::Operate),
    (Method::POST, "/v1/accounts/{name}/remove", Scope::Operate),
    (
        Method::POST,
        "/v1/accounts/{name}/users/{user}",
        Scope::Operate,
    ),
    (
        Method::POST,
        "/v1/accounts/{name}/users/{user}/remove",
        Scope::Operate,
    ),
    (Method::POST, "/v1/qos/{name}", Scope::Operate),
    (Method::POST, "/v1/qos/{name}/remove", Scope::Operate),
    (Method::POST, "/v1/reservations/{name}", Scope::Operate),
    (
        Method::POST,
        "/v1/reservations/{name}/remove",
        Scope::Operate,
    ),
    (Method::POST, "/v1/partitions/{name}", Scope::Operate),
    (Method::POST, "/v1/partitions/{name}/remove", Scope::Operate),
    (Method::POST, "/v1/policy", Scope::Operate),
    (Method::POST, "/v1/bill/close", Scope::Operate),
    (Method::POST, "/v1/bill/correct", Scope::Operate),
];

/// The routes that tokens never have, with what to do instead. A test finds each route of the router here or above.
const NEVER: &[(&str, &str)] = &[
    ("/v1/jobs/{id}/attend", STEPS),
    ("/v1/jobs/{id}/end", STEPS),
    ("/v1/jobs/{id}/steps", STEPS),
    ("/v1/jobs/{id}/steps/{step}/end", STEPS),
    ("/v1/jobs/{id}/steps/{step}/stream", STEPS),
    ("/v1/streams/{stream}", NODES),
    ("/v1/outputs/{file}", NODES),
    ("/v1/tokens", TOKENS),
    ("/v1/user-tokens", TOKENS),
    ("/v1/user-tokens/{id}/revoke", TOKENS),
    ("/v1/join", NODES),
    ("/v1/renew", NODES),
];
const STEPS: &str = "grun, salloc and sattach hold a connection to their step and work on the cluster's own machines. Submit a script with gsub, \
     and read its output with gq --follow";
const NODES: &str = "this is for nodes, which have certificates";
const TOKENS: &str =
    "a token makes and revokes no tokens. Log in to the controller's host or a login node";

/// The scope that a request needs.
///
/// # Errors
/// No token is good for it: what to do instead.
pub(crate) fn needed(method: &Method, route: &str) -> Result<Scope, &'static str> {
    // As GET, without the body.
    let method = if *method == Method::HEAD {
        &Method::GET
    } else {
        method
    };
    let mut lines = SCOPES.iter();
    if let Some((_, _, scope)) = lines.find(|(known, path, _)| known == method && *path == route) {
        return Ok(*scope);
    }
    let advice = NEVER.iter().find(|(path, _)| *path == route);
    Err(advice.map_or("no scope has it", |(_, advice)| advice))
}

/// Refuses a request with a token that has not the scope of its route. Others pass: permissions are asked behind this.
pub(crate) async fn gate(request: Request, next: Next) -> Response {
    match check(&request) {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

fn check(request: &Request) -> Result<(), ApiError> {
    let peer = request.extensions().get::<Peer>();
    let Some(token) = peer.and_then(|peer| peer.token.as_ref()) else {
        return Ok(());
    };
    // Without a route there is nothing to be done: 404 and 405 follow.
    let Some(route) = request.extensions().get::<MatchedPath>() else {
        return Ok(());
    };
    let (method, route) = (request.method(), route.as_str());
    match needed(method, route) {
        Ok(scope) if token.scopes.contains(&scope) => Ok(()),
        Ok(scope) => {
            let has: Vec<&str> = token.scopes.iter().map(|scope| scope.name()).collect();
            Err(ApiError::denied(format!(
                "token {} has not the scope {scope}, which {method} {} needs; it has {}. Make another: gq token new --scope {scope},...",
                token.id,
                request.uri().path(),
                has.join(", ")
            )))
        }
        Err(advice) => Err(ApiError::denied(format!(
            "with a token there is no {method} {}: {advice}",
            request.uri().path()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Each route of the router with its methods, from the text that makes it.
    fn routes() -> Vec<(String, Vec<Method>)> {
        let text = include_str!("../mod.rs");
        let routes = text.split(".route(").skip(1);
        let of = |part: &str| {
            let path = part.split('"').nth(1).unwrap().to_owned();
            let own = part.split(".route(").next().unwrap();
            let has = |word: &str| own.contains(&format!("{word}("));
            let methods = [("get", Method::GET), ("post", Method::POST)];
            let methods = methods.into_iter().filter(|(word, _)| has(word));
            (path, methods.map(|(_, method)| method).collect())
        };
        routes.map(of).collect()
    }

    #[test]
    fn each_route_has_a_scope_or_is_never_for_tokens_and_no_line_is_of_no_route() {
        let routes = routes();
        assert!(routes.len() > 60, "{} routes", routes.len());
        let mut known = BTreeSet::new();
        for (path, methods) in &routes {
            assert!(!methods.is_empty(), "{path} has no method");
            for method in methods {
                let never = NEVER.iter().any(|(one, _)| one == path);
                assert!(
                    needed(method, path).is_ok() != never,
                    "{method} {path} stands in both tables or in none"
                );
                known.insert((method.to_string(), path.clone()));
            }
        }
        for (method, path, _) in SCOPES {
            let line = (method.to_string(), (*path).to_owned());
            assert!(known.contains(&line), "{method} {path} is no route");
        }
        for (path, _) in NEVER {
            assert!(routes.iter().any(|(one, _)| one == path), "{path}");
        }
    }

    #[test]
    fn what_is_in_no_line_is_refused() {
        assert!(needed(&Method::POST, "/v1/nodes").is_err());
        assert!(needed(&Method::DELETE, "/v1/jobs").is_err());
        assert!(needed(&Method::GET, "/v1/new-route").is_err());
        assert_eq!(needed(&Method::HEAD, "/v1/jobs"), Ok(Scope::Read));
    }
}
