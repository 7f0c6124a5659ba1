//! Links that log a browser in, and the sessions that they began. In memory only, and there as hashes of their secrets.
//!
//! Owns how many there are and when they end. Which rights a session has is asked anew at each request ([`super::visitor`]).

use crate::http::peer::Peer;
use crate::http::request_rate::{Rate, Rates, network};
use crate::pki::{NodeIdentity, Pki};
use gwire::api::WEB_LINK_SECS;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// A session ends so long after its login.
pub(super) const SESSION: Duration = Duration::from_secs(12 * 3600);
const LINK: Duration = Duration::from_secs(WEB_LINK_SECS as u64);
/// Of one user; a further one ends the oldest.
const LINKS_OF_USER: usize = 8;
const SESSIONS_OF_USER: usize = 16;
/// Of all users.
const LINKS: usize = 4096;
const SESSIONS: usize = 16_384;
/// Logins of one address that fail.
const OF_FAILURES: Rate = Rate {
    burst: 20.0,
    per_sec: 0.2,
};

/// The user that a link, and then a session, speaks for: as the listener saw the request that made the link.
#[derive(Clone, Debug)]
pub(super) struct SessionUser {
    pub(super) peer: Peer,
    /// Of the machine that forwarded it.
    pub(super) identity: Option<NodeIdentity>,
}

/// A browser that is logged in.
#[derive(Debug)]
pub(crate) struct Session {
    pub(super) user: SessionUser,
    /// What each form of it says: a page of another site cannot know it.
    pub(super) form_word: String,
    hash: String,
    until: Instant,
    /// What the last form did, for the next page.
    said: Mutex<Option<FormResult>>,
}

/// What became of a form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FormResult {
    pub(super) ok: bool,
    pub(super) text: String,
}

/// All links and sessions.
#[derive(Debug, Default)]
pub(crate) struct WebSessions(Mutex<SessionTable>);

#[derive(Debug, Default)]
struct SessionTable {
    links: HashMap<String, Link>,
    sessions: HashMap<String, Arc<Session>>,
    failed: Rates<IpAddr>,
}

#[derive(Debug)]
struct Link {
    user: SessionUser,
    until: Instant,
}

/// Why there is no session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoLogin {
    /// The link is not known: it was used, is too old, or never was.
    NotGood,
    /// The address has failed too often.
    TooOften,
    /// All sessions are taken.
    Full,
}

impl WebSessions {
    /// The secret of a new link; none where too many users have one.
    ///
    /// # Errors
    /// The kernel gives no random bytes.
    pub(super) fn new_link(
        &self,
        user: SessionUser,
        now: Instant,
    ) -> std::io::Result<Option<String>> {
        let secret = Pki::new_secret()?;
        let mut kept = self.kept();
        kept.links.retain(|_, link| link.until > now);
        let of_user = |link: &Link| link.user.peer.uid == user.peer.uid;
        let mut own: Vec<(Instant, String)> = kept
            .links
            .iter()
            .filter(|(_, link)| of_user(link))
            .map(|(hash, link)| (link.until, hash.clone()))
            .collect();
        own.sort();
        for (_, hash) in own.iter().rev().skip(LINKS_OF_USER - 1) {
            kept.links.remove(hash);
        }
        if kept.links.len() >= LINKS {
            return Ok(None);
        }
        let until = now + LINK;
        kept.links
            .insert(Pki::token_hash(&secret), Link { user, until });
        Ok(Some(secret))
    }

    /// Takes a link, which is then gone, for a session; answers it with its secret, the text of the cookie.
    ///
    /// # Errors
    /// There is no session; outer: the kernel gives no random bytes.
    pub(super) fn log_in(
        &self,
        secret: &str,
        from: IpAddr,
        now: Instant,
    ) -> std::io::Result<Result<(Arc<Session>, String), NoLogin>> {
        let (cookie, form_word) = (Pki::new_secret()?, Pki::new_secret()?);
        let mut kept = self.kept();
        let link = kept.links.remove(&Pki::token_hash(secret));
        let Some(link) = link.filter(|link| link.until > now) else {
            let may_try = kept.failed.take(network(from), OF_FAILURES);
            return Ok(Err(match may_try {
                true => NoLogin::NotGood,
                false => NoLogin::TooOften,
            }));
        };
        kept.sessions.retain(|_, session| session.until > now);
        let mut own = kept.of_user(link.user.peer.uid);
        own.sort_by_key(|session| session.until);
        for session in own.iter().rev().skip(SESSIONS_OF_USER - 1) {
            kept.sessions.remove(&session.hash);
        }
        if kept.sessions.len() >= SESSIONS {
            return Ok(Err(NoLogin::Full));
        }
        let session = Arc::new(Session {
            user: link.user,
            form_word,
            hash: Pki::token_hash(&cookie),
            until: now + SESSION,
            said: Mutex::default(),
        });
        kept.sessions.insert(session.hash.clone(), session.clone());
        Ok(Ok((session, cookie)))
    }

    /// The session of a cookie, if it has not ended.
    pub(super) fn of_cookie(&self, cookie: &str, now: Instant) -> Option<Arc<Session>> {
        let kept = self.kept();
        let session = kept.sessions.get(&Pki::token_hash(cookie))?;
        (session.until > now).then(|| session.clone())
    }

    pub(super) fn end(&self, session: &Session) {
        self.kept().sessions.remove(&session.hash);
    }

    /// Ends all sessions and links of a user; how many sessions there were.
    pub(super) fn end_all(&self, uid: u32, now: Instant) -> u32 {
        let mut kept = self.kept();
        kept.links.retain(|_, link| link.user.peer.uid != uid);
        let mut ended = 0;
        kept.sessions.retain(|_, session| {
            let own = session.user.peer.uid == uid;
            ended += u32::from(own && session.until > now);
            !own
        });
        ended
    }

    fn kept(&self) -> MutexGuard<'_, SessionTable> {
        self.0.lock().expect("no panic while held")
    }
}

impl SessionTable {
    fn of_user(&self, uid: u32) -> Vec<Arc<Session>> {
        let all = self.sessions.values();
        all.filter(|session| session.user.peer.uid == uid)
            .cloned()
            .collect()
    }
}

impl Session {
    pub(super) fn say(&self, said: FormResult) {
        *self.said.lock().expect("no panic while held") = Some(said);
    }

    /// What is to be said, once.
    pub(super) fn take_said(&self) -> Option<FormResult> {
        self.said.lock().expect("no panic while held").take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(uid: u32) -> SessionUser {
        let peer = Peer {
            uid,
            gid: uid,
            user: format!("u{uid}"),
            via: None,
            admin: false,
            local: true,
            known: true,
            token: None,
        };
        SessionUser {
            peer,
            identity: None,
        }
    }

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn link(web: &WebSessions, uid: u32, now: Instant) -> String {
        web.new_link(user(uid), now).unwrap().unwrap()
    }

    #[test]
    fn a_link_is_good_once_and_not_for_long() {
        let (web, now) = (WebSessions::default(), Instant::now());
        let secret = link(&web, 1, now);
        assert_eq!(secret.len(), 64, "256 bits");
        let (session, cookie) = web.log_in(&secret, HERE, now).unwrap().unwrap();
        assert_eq!(session.user.peer.user, "u1");
        assert!(web.of_cookie(&cookie, now).is_some());
        for wrong in ["", &secret, &session.form_word, &session.hash] {
            assert!(web.of_cookie(wrong, now).is_none(), "{wrong}");
        }
        let again = web.log_in(&secret, HERE, now).unwrap();
        assert_eq!(again.unwrap_err(), NoLogin::NotGood);
        let late = link(&web, 1, now);
        let later = now + LINK;
        assert_eq!(
            web.log_in(&late, HERE, later).unwrap().unwrap_err(),
            NoLogin::NotGood
        );
        let kept = format!("{:?}", web.kept());
        assert!(!kept.contains(&cookie) && !kept.contains(&secret));
    }

    #[test]
    fn sessions_end_by_themselves_and_by_their_user() {
        let (web, now) = (WebSessions::default(), Instant::now());
        let log_in = |uid| {
            let secret = link(&web, uid, now);
            web.log_in(&secret, HERE, now).unwrap().unwrap()
        };
        let (_, of_one) = log_in(1);
        let (session, other_of_one) = log_in(1);
        let (_, of_two) = log_in(2);
        assert!(web.of_cookie(&of_one, now + SESSION).is_none());
        web.end(&session);
        assert!(web.of_cookie(&other_of_one, now).is_none());
        let open = link(&web, 1, now);
        assert_eq!(web.end_all(1, now), 1);
        assert!(web.of_cookie(&of_one, now).is_none());
        assert!(web.of_cookie(&of_two, now).is_some());
        assert_eq!(
            web.log_in(&open, HERE, now).unwrap().unwrap_err(),
            NoLogin::NotGood
        );
    }

    #[test]
    fn a_user_has_a_bounded_number_and_takes_none_of_others() {
        let (web, now) = (WebSessions::default(), Instant::now());
        let other = link(&web, 2, now);
        let links: Vec<String> = (0..20_u64)
            .map(|at| link(&web, 1, now + Duration::from_millis(at)))
            .collect();
        assert_eq!(web.kept().links.len(), LINKS_OF_USER + 1);
        assert_eq!(
            web.log_in(&links[0], HERE, now).unwrap().unwrap_err(),
            NoLogin::NotGood
        );
        let (_, other) = web.log_in(&other, HERE, now).unwrap().unwrap();
        let cookies: Vec<String> = (0..40_u64)
            .map(|at| {
                let at = now + Duration::from_millis(at);
                let secret = link(&web, 1, at);
                web.log_in(&secret, HERE, at).unwrap().unwrap().1
            })
            .collect();
        assert_eq!(web.kept().sessions.len(), SESSIONS_OF_USER + 1);
        assert!(web.of_cookie(&cookies[0], now).is_none());
        assert!(web.of_cookie(&cookies[39], now).is_some());
        assert!(web.of_cookie(&other, now).is_some());
    }

    #[test]
    fn an_address_that_guesses_is_slowed_and_a_good_link_is_taken_all_the_same() {
        let (web, now) = (WebSessions::default(), Instant::now());
        let guess = || web.log_in("0", HERE, now).unwrap().unwrap_err();
        let said: Vec<NoLogin> = (0..30).map(|_| guess()).collect();
        assert_eq!(said[..20], [NoLogin::NotGood; 20]);
        assert!(said[20..].contains(&NoLogin::TooOften));
        let secret = link(&web, 1, now);
        assert!(web.log_in(&secret, HERE, now).unwrap().is_ok());
    }

    #[test]
    fn what_is_said_is_said_once() {
        let (web, now) = (WebSessions::default(), Instant::now());
        let secret = link(&web, 1, now);
        let (session, _) = web.log_in(&secret, HERE, now).unwrap().unwrap();
        let said = FormResult {
            ok: true,
            text: "done".into(),
        };
        session.say(said.clone());
        assert_eq!(session.take_said(), Some(said));
        assert_eq!(session.take_said(), None);
    }
}
