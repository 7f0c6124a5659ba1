//! `POST /v1/web-links` and `/v1/web-sessions/end`: how a user's command lets a browser in, and out.

use super::session::{SESSION, SessionUser};
use crate::config::Config;
use crate::core_thread::now;
use crate::http::app::ApiContext;
use crate::http::error::ApiError;
use crate::http::peer::{CertificateHolder, Peer};
use crate::http::permission::Caller;
use axum::extract::State as Shared;
use axum::{Extension, Json};
use gmodel::Instant;
use gwire::api::{SCHEMA, WEB_LINK_SECS, WebLinkReply, WebLogoutReply};

pub(crate) async fn make(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
    Extension(peer): Extension<Peer>,
    holder: Option<Extension<CertificateHolder>>,
) -> Result<Json<WebLinkReply>, ApiError> {
    if caller.confined_to().is_some() {
        return Err(ApiError::denied(
            "a job makes no link to the page: it would act on all jobs of its user. Ask on a login node or on the controller's host",
        ));
    }
    let config = site.app.config();
    let address = address(&config, &peer)?;
    let user = SessionUser {
        peer,
        identity: holder.map(|Extension(holder)| holder.identity),
    };
    let made = site
        .app
        .entrances
        .web
        .new_link(user, std::time::Instant::now());
    let secret = made.map_err(|error| {
        ApiError::unavailable(format!("the kernel gives no random bytes: {error}"))
    })?;
    let secret = secret.ok_or_else(|| {
        ApiError::limit("too many links to the page wait to be used. Try again in a minute")
    })?;
    Ok(Json(WebLinkReply {
        schema: SCHEMA,
        user: caller.actor.user,
        link: format!("{address}/login/{secret}"),
        expires: Instant(now().plus_secs(WEB_LINK_SECS.into())),
        session_secs: SESSION.as_secs(),
    }))
}

/// Where the browser of this peer finds the page: with the site's certificate if there is one, else beside the peer without TLS.
fn address(config: &Config, peer: &Peer) -> Result<String, ApiError> {
    let Some(web) = &config.web else {
        return Err(ApiError::conflict(
            "this controller serves no page. An administrator switches it on by [web] in gpuctld.toml, see gpuctld.toml(5)",
        ));
    };
    Ok(match web.listen {
        Some(listen) if peer.local && config.https.is_none() => format!("http://{listen}"),
        _ => config.https_address(),
    })
}

pub(crate) async fn end_all(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
) -> Result<Json<WebLogoutReply>, ApiError> {
    if caller.confined_to().is_some() {
        return Err(ApiError::denied(
            "a job ends no sessions of its user's browsers. Ask on a login node or on the controller's host",
        ));
    }
    let ended = site
        .app
        .entrances
        .web
        .end_all(caller.actor.uid, std::time::Instant::now());
    Ok(Json(WebLogoutReply {
        schema: SCHEMA,
        ended,
    }))
}
