//! A request with a token: which user it is, or why it is not let in. Asked by the listener before a route sees the request.
//!
//! Owns where a token stands in a request, its comparison with the record, and the rates at which tokens may be used and tried. The text of a
//! token leaves the request here: no route, log or trace has it.

use crate::core_thread::{CoreHandle, now};
use crate::http::error::ApiError;
use crate::http::peer::Peer;
use crate::http::request_rate::{MOST, Rate, Rates, network};
use crate::pki::Pki;
use crate::user_names::{ClaimedUser, UserMatch, UserNames};
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, HeaderName, Request, StatusCode};
use gcore::ctl::{Actor, Command, State, TokenChange};
use gmodel::user_token::{PREFIX, TokenText};
use gmodel::{Timestamp, TokenId, UserToken};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

/// Where Slurm's clients put a token.
const SLURM_HEADER: HeaderName = HeaderName::from_static("x-slurm-user-token");
/// Requests of one token: so many at once, and so many a second.
const OF_TOKEN: Rate = Rate {
    burst: 500.0,
    per_sec: 100.0,
};
/// Tries of one address that fail.
const OF_FAILURES: Rate = Rate {
    burst: 20.0,
    per_sec: 0.2,
};
const DAY_MILLIS: i64 = 86_400_000;
/// The one sentence for an unknown id and for a wrong secret.
const UNKNOWN: &str = "this token is not known here. It may have been forgotten after its end, or be another cluster's; `gq token list` on the \
     cluster shows yours";

/// What is remembered of tokens in use. In memory only.
#[derive(Debug, Default)]
pub struct TokenGate {
    used: Mutex<Rates<TokenId>>,
    failed: Mutex<Rates<IpAddr>>,
    /// The day for which the core was told of a token's use.
    days: Mutex<HashMap<TokenId, Timestamp>>,
}

/// Makes the peer of a request the user of its token, if it has one.
///
/// # Errors
/// The token is not good; `from`: the address that failed tries are counted for.
pub(crate) async fn admit<B>(
    core: &CoreHandle,
    gate: &TokenGate,
    names: &UserNames,
    request: &mut Request<B>,
    from: Option<IpAddr>,
) -> Result<(), ApiError> {
    let Some(text) = take(request.headers_mut()) else {
        return Ok(());
    };
    let peer = request.extensions().get::<Peer>();
    if peer.is_some_and(|peer| peer.via.is_some()) {
        return Err(ApiError::denied(
            "a token is taken by the controller alone, and this request came through a node. Leave the token out, or ask the controller's \
             https address",
        ));
    }
    let local = peer.is_some_and(|peer| peer.local);
    let state = core.view().await;
    let token = match known(&state, &text) {
        Ok(token) => token,
        Err(why) => return Err(gate.failed(from, why)),
    };
    drop(state);
    gate.take(token.id)?;
    let known = standing(names, &token).await?;
    request.extensions_mut().insert(Peer {
        uid: token.user.uid,
        gid: token.user.gid,
        user: token.user.name.clone(),
        via: None,
        admin: false,
        local,
        known,
        token: Some(token.clone()),
    });
    gate.note_use(core, &token);
    Ok(())
}

/// The token of a request, which it has no more. On a socket where the kernel says who asks, other authorisation means nothing.
fn take(headers: &mut HeaderMap) -> Option<String> {
    let bearer = headers.get(AUTHORIZATION).and_then(|value| {
        // What is no text is no token either, and is told so.
        let (scheme, text) = value.to_str().unwrap_or("bearer ?").split_once(' ')?;
        let is_bearer = scheme.eq_ignore_ascii_case("bearer");
        is_bearer.then(|| text.trim().to_owned())
    });
    let slurm = headers.get(SLURM_HEADER);
    let slurm = slurm.and_then(|value| Some(value.to_str().ok()?.to_owned()));
    let text = bearer.or(slurm.filter(|text| !text.is_empty()))?;
    headers.remove(AUTHORIZATION);
    headers.remove(SLURM_HEADER);
    Some(text)
}

/// The record of a token, by its text.
fn known(state: &State, text: &str) -> Result<Arc<UserToken>, String> {
    let Ok(text) = text.parse::<TokenText>() else {
        return Err(format!(
            "what is given as a token is none of this cluster, where they begin with {PREFIX}"
        ));
    };
    let record = state.tokens.users.get(&text.id);
    // An unknown id is compared like a known one, so that the time does not tell which ids there are.
    let nobody = String::new();
    let hash = record.map_or(&nobody, |token| &token.hash);
    let is_same = same(hash, &Pki::token_hash(&text.secret));
    let token = record.filter(|_| is_same).ok_or(UNKNOWN)?;
    if let Some(revoked) = &token.revoked {
        return Err(format!(
            "token {} was revoked by {} at {}. Make another: gq token new",
            token.id, revoked.by, revoked.at
        ));
    }
    if !token.is_live(now()) {
        return Err(format!(
            "token {} expired at {}. Make another: gq token new",
            token.id, token.expires
        ));
    }
    Ok(token.clone())
}

/// Whether two hashes are equal, in a time that does not say where they differ.
pub(crate) fn same(kept: &str, shown: &str) -> bool {
    let pairs = shown.bytes().zip(kept.bytes().chain(std::iter::repeat(0)));
    let differ = pairs.fold(0, |differ, (a, b)| differ | (a ^ b));
    std::hint::black_box(differ) == 0 && kept.len() == shown.len()
}

/// Whether this host knows the token's user, by the same name and numbers.
async fn standing(names: &UserNames, token: &UserToken) -> Result<bool, ApiError> {
    let claimed = ClaimedUser {
        uid: token.user.uid,
        gid: token.user.gid,
        name: token.user.name.clone(),
    };
    let gone = |why: &str| {
        Err(unauthorised(format!(
            "token {} was made for {} (uid {}), {why}. Make another: gq token new",
            token.id, token.user.name, token.user.uid
        )))
    };
    match names.compare(claimed).await {
        Ok(Ok(UserMatch::Same)) => Ok(true),
        Ok(Ok(UserMatch::Unknown)) if token.known => {
            gone("whom the controller's host knows no more")
        }
        Ok(Ok(UserMatch::Unknown)) => Ok(false),
        Ok(Err(_)) => gone("and on the controller's host this name or number is another's by now"),
        Err(error) => Err(ApiError::unavailable(format!(
            "the controller's name service does not say who you are: {error}"
        ))),
    }
}

/// 401: what was shown proves nothing.
pub(crate) fn unauthorised(text: impl Into<String>) -> ApiError {
    ApiError {
        status: StatusCode::UNAUTHORIZED,
        ..ApiError::denied(text)
    }
}

impl TokenGate {
    /// A request of a token that is good.
    fn take(&self, token: TokenId) -> Result<(), ApiError> {
        let mut used = self.used.lock().expect("no panic while held");
        if used.take(token, OF_TOKEN) {
            return Ok(());
        }
        Err(ApiError::limit(format!(
            "token {token} asks more than {} times a second. Ask less often, or for more at once",
            OF_TOKEN.per_sec
        )))
    }

    /// A try that failed. A good token from the same address is still let in: many may be behind one address.
    fn failed(&self, from: Option<IpAddr>, why: String) -> ApiError {
        let mut failed = self.failed.lock().expect("no panic while held");
        match from {
            Some(from) if !failed.take(network(from), OF_FAILURES) => ApiError::limit(
                "too many tokens that are not good came from your address. Look at the token's file, and try again in a minute",
            ),
            _ => unauthorised(why),
        }
    }

    /// Tells the core once a day that a token is in use. Nobody waits for it.
    fn note_use(&self, core: &CoreHandle, token: &UserToken) {
        let now = now();
        let day = Timestamp(now.0 - now.0.rem_euclid(DAY_MILLIS));
        if token.used_on == Some(day) {
            return;
        }
        let mut days = self.days.lock().expect("no panic while held");
        if days.len() >= MOST {
            days.clear();
        }
        if days.insert(token.id, day) == Some(day) {
            return;
        }
        let (core, tokens) = (core.clone(), vec![token.id]);
        tokio::spawn(async move {
            let told = core.command(
                Actor::default(),
                Command::Token {
                    change: TokenChange::NoteUse { tokens, day },
                },
            );
            if let Err(error) = told.await {
                tracing::debug!("the use of a token was not noted: {error}");
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let pairs = pairs.iter();
        pairs
            .map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()))
            .collect()
    }

    #[test]
    fn a_token_is_taken_out_of_its_request() {
        for (name, value) in [
            ("authorization", "Bearer gptok_x"),
            ("authorization", "bearer gptok_x"),
            ("x-slurm-user-token", "gptok_x"),
        ] {
            let mut headers = headers(&[(name, value), ("accept", "*/*")]);
            assert_eq!(take(&mut headers).as_deref(), Some("gptok_x"));
            assert_eq!(headers.len(), 1);
        }
        assert_eq!(take(&mut headers(&[("authorization", "Basic eDp5")])), None);
        assert_eq!(take(&mut headers(&[("x-slurm-user-token", "")])), None);
    }

    #[test]
    fn an_address_that_only_guesses_is_slowed_and_others_are_not() {
        let gate = TokenGate::default();
        let from = |text: &str| Some(text.parse().unwrap());
        let mut said = (0..30).map(|_| gate.failed(from("10.0.0.1"), "no".into()));
        let said: Vec<u16> = said.by_ref().map(|error| error.status.as_u16()).collect();
        assert_eq!(said[..20], [401; 20]);
        assert!(said[20..].contains(&429), "{said:?}");
        assert_eq!(gate.failed(from("10.0.0.2"), "no".into()).status, 401);
        // One host of IPv6 has all addresses of its network.
        let mut last = StatusCode::OK;
        for host in 1..30 {
            last = gate
                .failed(from(&format!("2001:db8::{host:x}")), "no".into())
                .status;
        }
        assert_eq!(last, 429);
        assert_eq!(gate.failed(from("2001:db8:1::1"), "no".into()).status, 401);
    }

    #[test]
    fn hashes_are_the_same_only_whole() {
        assert!(same("abcd", "abcd"));
        for other in ["", "abc", "abcde", "bbcd", "abce"] {
            assert!(!same(other, "abcd") && !same("abcd", other), "{other}");
        }
    }
}
