//! Machines coming in: tokens for administrators, certificates for machines that hold one, renewal.
//!
//! Role and name are the token's, later the certificate's; nothing a machine says of itself changes them.

use crate::core_thread::now;
use crate::http::app::ApiContext;
use crate::http::error::ApiError;
use crate::http::peer::CertificateHolder;
use crate::http::permission::Caller;
use crate::pki::Pki;
use axum::extract::State as Shared;
use axum::extract::rejection::JsonRejection;
use axum::{Extension, Json};
use gcore::ctl::Command;
use gcore::ctl::state::JoinToken;
use gmodel::Instant;
use gwire::api::{JoinReply, JoinRequest, SCHEMA, TokenReply, TokenRequest};

const DEFAULT_TTL_SECS: u32 = 3_600;
const MAX_TTL_SECS: u32 = 7 * 86_400;

/// `POST /v1/tokens`: one-time, expiring; the secret is told once and never stored.
pub(crate) async fn token(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
    body: Result<Json<TokenRequest>, JsonRejection>,
) -> Result<Json<TokenReply>, ApiError> {
    let Json(request) = body?;
    caller.must_administer("inviting a node")?;
    let ttl_secs = request
        .ttl_secs
        .unwrap_or(DEFAULT_TTL_SECS)
        .clamp(1, MAX_TTL_SECS);
    let expires = now().plus_secs(i64::from(ttl_secs));
    let secret = Pki::new_secret()
        .map_err(|error| ApiError::unavailable(format!("no secret can be made: {error}")))?;
    let token = JoinToken {
        hash: Pki::token_hash(&secret),
        role: request.role,
        name: request.name,
        expires,
        minted_by: caller.actor.user.clone(),
        admin: request.admin,
    };
    site.core
        .command(caller.actor, Command::MintToken { token })
        .await?;
    Ok(Json(TokenReply {
        schema: SCHEMA,
        token: format!("{secret}.{}", site.app.pki.ca_sha256()),
        expires: Instant(expires),
        controller: site.app.config().advertise.clone(),
    }))
}

/// `POST /v1/join`: the token is what vouches for the machine; there is no certificate yet.
pub(crate) async fn join(
    Shared(site): Shared<ApiContext>,
    body: Result<Json<JoinRequest>, JsonRejection>,
) -> Result<Json<JoinReply>, ApiError> {
    let Json(request) = body?;
    let days = site.app.config().node_cert_days;
    Ok(Json(site.app.pki.join(&site.core, request, days).await?))
}

/// `POST /v1/renew`: only over a node's own certificate.
pub(crate) async fn renew(
    holder: Option<Extension<CertificateHolder>>,
    Shared(site): Shared<ApiContext>,
    body: Result<Json<JoinRequest>, JsonRejection>,
) -> Result<Json<JoinReply>, ApiError> {
    let Json(request) = body?;
    let Some(Extension(CertificateHolder { identity, address })) = holder else {
        return Err(ApiError::denied(
            "a certificate is renewed over the node's own TLS connection, by its gpud",
        ));
    };
    let days = site.app.config().node_cert_days;
    Ok(Json(
        site.app
            .pki
            .renew(&site.core, &identity, address, request, days)
            .await?,
    ))
}
