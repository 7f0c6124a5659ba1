//! `GET` and `POST /v1/user-tokens`, `POST /v1/user-tokens/{id}/revoke`: tokens of users, by the users themselves and by operators.
//!
//! Owns their shape and the making of secrets; who may have which token is the core's word. [`scope`] says what a token is good for,
//! [`way_in`] who a request with a token is.

pub(crate) mod scope;
pub(crate) mod way_in;

use crate::core_thread::now;
use crate::http::app::ApiContext;
use crate::http::error::ApiError;
use crate::http::job::control::odd;
use crate::http::permission::Caller;
use crate::http::query::QueryPairs;
use crate::pki::Pki;
use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State as Shared};
use gcore::ctl::{Command, Reply, State, TokenChange, token_use};
use gmodel::user_token::{GPU_SECOND, TokenText};
use gmodel::{Instant, Timestamp, TokenId, UserRef, UserToken};
use gwire::api::{ChangeReply, SCHEMA, TokenState, UserTokenReply, UserTokenRequest, UserTokenRow};
use serde_json::{Value, json};

/// Jobs in the queue, unless said otherwise.
const DEFAULT_JOBS: u32 = 1000;
/// Longest time to a token's end that is taken as a number at all, seconds; the site's own bound is shorter.
const MAX_TTL_SECS: u64 = 100 * 366 * 86_400;

pub(crate) async fn make(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
    body: Result<Json<UserTokenRequest>, JsonRejection>,
) -> Result<Json<UserTokenReply>, ApiError> {
    let Json(request) = body?;
    let user = match &request.user {
        Some(name) if *name != caller.actor.user => named(&caller, name).await?,
        _ => UserRef {
            name: caller.actor.user.clone(),
            uid: caller.actor.uid,
            gid: caller.actor.gid,
        },
    };
    let config = site.app.config();
    // With [https] clients trust the certificate of the site.
    let authority = config.https.is_none().then(|| site.app.pki.ca_sha256());
    let text = new_text(authority)?;
    let expires = now().plus_secs(request.ttl_secs.min(MAX_TTL_SECS).cast_signed());
    let token = UserToken {
        id: text.id,
        hash: Pki::token_hash(&text.secret),
        known: caller.is_known() || user.name != caller.actor.user,
        user,
        scopes: request.scopes.into_iter().collect(),
        accounts: request.accounts.into_iter().collect(),
        partitions: request.partitions.into_iter().collect(),
        expires,
        gpu_secs: request.gpu_secs,
        jobs: request.jobs.unwrap_or(DEFAULT_JOBS),
        note: request.note,
        made: now(),
        made_by: String::new(),
        revoked: None,
        used_on: None,
        gpu_used: 0,
    };
    let user = token.user.name.clone();
    let token = Box::new(token);
    match site
        .core
        .command(
            caller.actor,
            Command::Token {
                change: TokenChange::Make(token),
            },
        )
        .await?
    {
        Reply::Done => Ok(Json(UserTokenReply {
            schema: SCHEMA,
            id: text.id,
            user,
            token: text.reveal(),
            expires: Instant(expires),
            controller: config.https_address(),
        })),
        other => Err(odd(&other)),
    }
}

/// An id and a secret that cannot be guessed.
fn new_text(authority: Option<&str>) -> Result<TokenText, ApiError> {
    let random = || {
        Pki::new_secret()
            .map_err(|error| ApiError::unavailable(format!("no secret can be made: {error}")))
    };
    let id = u32::from_str_radix(&random()?[..8], 16).unwrap_or_default();
    Ok(TokenText {
        id: TokenId(id),
        secret: random()?,
        authority: authority.map(str::to_owned),
    })
}

/// Another user, as this host knows them.
async fn named(caller: &Caller, name: &str) -> Result<UserRef, ApiError> {
    caller.must_administer("a token for another user")?;
    let asked = name.to_owned();
    let found = tokio::task::spawn_blocking(move || nix::unistd::User::from_name(&asked)).await;
    let found = found.map_err(|_| ApiError::unavailable("asking for the user failed"))?;
    match found {
        Ok(Some(user)) => Ok(UserRef {
            name: user.name,
            uid: user.uid.as_raw(),
            gid: user.gid.as_raw(),
        }),
        Ok(None) => Err(ApiError::not_found(format!(
            "the controller's host knows no user {name:?}. `getent passwd NAME` there says which it knows"
        ))),
        Err(error) => Err(ApiError::unavailable(format!(
            "the controller's name service does not answer: {error}"
        ))),
    }
}

pub(crate) async fn list(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
    pairs: QueryPairs,
) -> Result<Json<Value>, ApiError> {
    let pairs = pairs.only(&["all", "everyone"])?;
    let (all, everyone) = (pairs.flag("all")?, pairs.flag("everyone")?);
    if everyone {
        caller.must_administer("the list of all users' tokens")?;
    }
    let state = site.core.view().await;
    let (actor, now) = (&caller.actor, now());
    let is_meant = |token: &UserToken| everyone || token.user.is(&actor.user, actor.uid);
    let tokens = state.tokens.users.values().filter(|token| is_meant(token));
    let shown = tokens.filter(|token| all || token.is_live(now));
    let mut rows: Vec<UserTokenRow> = shown.map(|token| row(&state, token, now)).collect();
    rows.sort_by_key(|row| row.made.0);
    Ok(Json(json!({"schema": SCHEMA, "tokens": rows})))
}

fn row(state: &State, token: &UserToken, now: Timestamp) -> UserTokenRow {
    let held = token_use(state, token.id, now);
    let secs = |gpu: u128| u64::try_from(gpu / u128::from(GPU_SECOND)).unwrap_or(u64::MAX);
    let revoked = token.revoked.as_ref();
    UserTokenRow {
        id: token.id,
        user: token.user.name.clone(),
        state: match revoked {
            Some(_) => TokenState::Revoked,
            None if token.is_live(now) => TokenState::Live,
            None => TokenState::Expired,
        },
        scopes: token.scopes.iter().copied().collect(),
        accounts: token.accounts.iter().cloned().collect(),
        partitions: token.partitions.iter().cloned().collect(),
        expires: Instant(token.expires),
        gpu_secs: token.gpu_secs,
        gpu_secs_used: secs(held.gpu_used),
        gpu_secs_promised: secs(held.gpu_promised),
        jobs: token.jobs,
        jobs_now: held.jobs,
        note: token.note.clone(),
        made: Instant(token.made),
        made_by: token.made_by.clone(),
        used_on: token.used_on.map(Instant),
        revoked: revoked.map(|revoked| Instant(revoked.at)),
        revoked_by: revoked.map_or(String::new(), |revoked| revoked.by.clone()),
    }
}

pub(crate) async fn revoke(
    caller: Caller,
    Shared(site): Shared<ApiContext>,
    Path(id): Path<String>,
) -> Result<Json<ChangeReply>, ApiError> {
    let token: TokenId = id
        .parse()
        .map_err(|error: gmodel::ids::BadTokenId| ApiError::invalid(error.to_string()))?;
    match site
        .core
        .command(
            caller.actor,
            Command::Token {
                change: TokenChange::Revoke(token),
            },
        )
        .await?
    {
        Reply::Done => Ok(Json(ChangeReply {
            schema: SCHEMA,
            notes: Vec::new(),
        })),
        other => Err(odd(&other)),
    }
}
