//! A browser's request: through which door it came, whose session it has, and whether that still counts.
//!
//! A session is its user with the rights of the request that made its link, compared anew each time: the user is still known here, the token
//! still live, the login node still a member. A cookie counts for pages alone, never for `/v1`.

use super::session::{Session, WebSessions};
use crate::core_thread::{CoreHandle, now};
use crate::http::peer::Peer;
use crate::user_names::{ClaimedUser, UserMatch, UserNames};
use axum::http::header::COOKIE;
use axum::http::{HeaderMap, Request};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

/// How a browser is connected; the listener puts it beside the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WebDoor {
    /// Over TLS, where the API is too. Else on the loopback address, where nothing but pages is.
    pub(crate) tls: bool,
    pub(crate) from: IpAddr,
    /// Where it is listened on.
    pub(crate) port: u16,
}

/// First parts of the paths of pages.
const PAGES: [&str; 9] = [
    "", "login", "logout", "jobs", "job", "pool", "accounts", "search", "web",
];

impl WebDoor {
    /// Whether a path behind this door is a page, or nothing.
    pub(crate) fn takes(self, path: &str) -> bool {
        let first = path.trim_start_matches('/').split('/').next();
        !self.tls || PAGES.contains(&first.unwrap_or_default())
    }

    /// By the port, since browsers keep one set of cookies for all ports of an address. `__Host-`: no other host sets it.
    pub(super) fn cookie_name(self) -> String {
        match self.tls {
            true => "__Host-gpupool".to_owned(),
            false => format!("gpupool-{}", self.port),
        }
    }

    /// The value of the header that gives a browser its session, or takes it away.
    pub(super) fn set_cookie(self, value: &str, max_age_secs: u64) -> String {
        let secure = if self.tls { "; Secure" } else { "" };
        format!(
            "{}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={max_age_secs}{secure}",
            self.cookie_name()
        )
    }
}

/// Puts the session of a request beside it, and its user as the peer; neither where there is none.
pub(crate) async fn admit<B>(
    core: &CoreHandle,
    sessions: &WebSessions,
    names: &UserNames,
    request: &mut Request<B>,
) {
    let Some(door) = request.extensions().get::<WebDoor>().copied() else {
        return;
    };
    let cookie = cookie(request.headers(), &door.cookie_name());
    let Some(session) = cookie.and_then(|text| sessions.of_cookie(text, Instant::now())) else {
        return;
    };
    match standing(core, names, &session).await {
        Some(SessionMatch::Counts(peer)) => {
            request.extensions_mut().insert(*peer);
            request.extensions_mut().insert(session);
        }
        Some(SessionMatch::Over) => sessions.end(&session),
        // The name service does not answer: another time.
        None => {}
    }
}

fn cookie<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    let texts = headers.get_all(COOKIE).into_iter();
    let mut pairs = texts.filter_map(|text| text.to_str().ok());
    pairs.find_map(|text| {
        let mut pairs = text
            .split(';')
            .filter_map(|pair| pair.trim().split_once('='));
        pairs.find(|(one, _)| *one == name).map(|(_, value)| value)
    })
}

enum SessionMatch {
    Counts(Box<Peer>),
    Over,
}

/// None: it cannot be said now.
async fn standing(core: &CoreHandle, names: &UserNames, session: &Session) -> Option<SessionMatch> {
    let user = &session.user;
    let mut peer = user.peer.clone();
    let state = core.view().await;
    if let Some(identity) = &user.identity
        && identity.check(&state).is_err()
    {
        return Some(SessionMatch::Over);
    }
    if let Some(old) = &peer.token {
        let current = state.tokens.users.get(&old.id);
        let live = current.filter(|token| {
            token.hash == old.hash && token.revoked.is_none() && token.is_live(now())
        });
        match live {
            Some(token) => peer.token = Some(Arc::clone(token)),
            None => return Some(SessionMatch::Over),
        }
    }
    drop(state);
    let claimed = ClaimedUser {
        uid: peer.uid,
        gid: peer.gid,
        name: peer.user.clone(),
    };
    let is_same = match names.compare(claimed).await.ok()? {
        Ok(told) => told == UserMatch::Same,
        Err(_) => return Some(SessionMatch::Over),
    };
    // A user that was known and is no more.
    if peer.known && !is_same {
        return Some(SessionMatch::Over);
    }
    peer.known = is_same;
    Some(SessionMatch::Counts(Box::new(peer)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_is_found_among_others_by_its_whole_name() {
        let mut headers = HeaderMap::new();
        headers.append(COOKIE, "a=1; gpupool-71=no".parse().unwrap());
        headers.append(COOKIE, "xgpupool-7=no; gpupool-7=yes; b=2".parse().unwrap());
        assert_eq!(cookie(&headers, "gpupool-7"), Some("yes"));
        assert_eq!(cookie(&headers, "gpupool"), None);
    }

    #[test]
    fn the_api_is_behind_no_door_of_pages_but_on_loopback_everything_is() {
        let door = |tls| WebDoor {
            tls,
            from: IpAddr::from([127, 0, 0, 1]),
            port: 7,
        };
        for path in ["/", "/login/x", "/job/17", "/web/page.css"] {
            assert!(door(true).takes(path), "{path}");
        }
        for path in ["/v1/jobs", "/slurm/v0/jobs", "/metrics", "/livez", "/jobsx"] {
            assert!(!door(true).takes(path), "{path}");
            assert!(door(false).takes(path), "{path}");
        }
        let cookie = door(true).set_cookie("x", 9);
        assert_eq!(
            cookie,
            "__Host-gpupool=x; Path=/; HttpOnly; SameSite=Strict; Max-Age=9; Secure"
        );
        assert!(!door(false).set_cookie("x", 9).contains("Secure"));
    }
}
