//! What all pages are made with: the visitor, the frame around a page, refusals as pages; and the pages that need no session.

use super::session::{NoLogin, SESSION, Session};
use super::visitor::WebDoor;
use crate::core_thread::now;
use crate::http::app::ApiContext;
use crate::http::inside::{Inside, InsideError};
use crate::http::peer::Peer;
use crate::http::permission::Caller;
use axum::extract::{FromRequestParts, Path, Request, State as Shared};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, SET_COOKIE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{Html, IntoResponse, Response};
use axum::{Extension, Router};
use gcli::local_time::TimeFormat;
use gmodel::Timestamp;
use gweb::{Frame, Markup, Notice, Place};
use std::sync::Arc;
use std::time::Instant;

/// What every handler of a page is given.
#[derive(Clone)]
pub(super) struct Web {
    pub(super) site: ApiContext,
    pub(super) v1: Router,
}

/// A user's browser with a session.
pub(super) struct Visitor {
    pub(super) session: Arc<Session>,
    pub(super) door: WebDoor,
    pub(super) user: String,
    operator: bool,
    inside: Inside,
    cluster: String,
}

impl FromRequestParts<Web> for Visitor {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, web: &Web) -> Result<Self, Response> {
        let session = parts.extensions.get::<Arc<Session>>().cloned();
        let peer = parts.extensions.get::<Peer>().cloned();
        let door = parts.extensions.get::<WebDoor>().copied();
        let (Some(session), Some(peer), Some(door)) = (session, peer, door) else {
            return Err(notice(web, StatusCode::UNAUTHORIZED, Notice::NoSession).await);
        };
        let caller = match Caller::of(&peer, &web.site).await {
            Ok(caller) => caller,
            Err(error) => return Err(notice(web, error.status, Notice::Text(&error.text)).await),
        };
        Ok(Self {
            session,
            door,
            user: caller.actor.user,
            operator: caller.actor.operator,
            inside: Inside {
                routes: web.v1.clone(),
                peer,
            },
            cluster: web.site.core.view().await.config.name.clone(),
        })
    }
}

impl Visitor {
    /// The routes of `/v1`, asked as this user.
    pub(super) fn inside(&self) -> &Inside {
        &self.inside
    }

    /// A whole page around `content`.
    pub(super) fn page(
        &self,
        status: StatusCode,
        title: &str,
        place: Place,
        content: &Markup,
    ) -> Response {
        let said = self.session.take_said();
        let frame = Frame {
            cluster: &self.cluster,
            user: &self.user,
            operator: self.operator,
            form_word: &self.session.form_word,
            said: said.as_ref().map(|said| (said.ok, said.text.as_str())),
            now: &show_time(now()),
            version: env!("CARGO_PKG_VERSION"),
        };
        (
            status,
            Html(frame.page(title, place, content).into_string()),
        )
            .into_response()
    }

    pub(super) fn ok(&self, title: &str, place: Place, content: &Markup) -> Response {
        self.page(StatusCode::OK, title, place, content)
    }

    /// What `/v1` refused, as a page.
    pub(super) fn refused(&self, error: &InsideError) -> Response {
        let content = gweb::refusal(&error.said.error);
        self.page(error.status, "Not done", Place::Elsewhere, &content)
    }

    /// Whether this user, or an operator, may change jobs of `owner`. The core decides; this is for what is offered.
    pub(super) fn may_change(&self, owner: &str) -> bool {
        self.operator || self.user == owner
    }
}

/// As the controller's clock shows it.
pub(super) fn show_time(at: Timestamp) -> String {
    TimeFormat::Standard.print(at).replacen('T', " ", 1)
}

async fn notice(web: &Web, status: StatusCode, notice: Notice<'_>) -> Response {
    let cluster = web.site.core.view().await.config.name.clone();
    (status, Html(gweb::notice(&cluster, notice).into_string())).into_response()
}

/// Takes the link for a session. The page that follows is asked for by this one, so that a strict cookie comes along.
pub(super) async fn log_in(
    Shared(web): Shared<Web>,
    Path(secret): Path<String>,
    Extension(door): Extension<WebDoor>,
    old: Option<Extension<Arc<Session>>>,
    method: Method,
    headers: HeaderMap,
) -> Response {
    // What only looks ahead, as a browser that guesses or a mail program, takes no link.
    if method != Method::GET || headers.contains_key("sec-purpose") {
        return StatusCode::METHOD_NOT_ALLOWED.into_response();
    }
    let sessions = &web.site.app.entrances.web;
    let logged_in = match sessions.log_in(&secret, door.from, Instant::now()) {
        Ok(logged_in) => logged_in,
        Err(error) => {
            let text = format!("the kernel gives no random bytes: {error}");
            return notice(&web, StatusCode::SERVICE_UNAVAILABLE, Notice::Text(&text)).await;
        }
    };
    let (status, why) = match logged_in {
        Ok((session, cookie)) => {
            if let Some(Extension(old)) = old {
                sessions.end(&old);
            }
            tracing::info!(user = session.user.peer.user, from = %door.from, "a browser logged in");
            let cookie = door.set_cookie(&cookie, SESSION.as_secs());
            let page = notice(&web, StatusCode::OK, Notice::LoggedIn).await;
            return ([(SET_COOKIE, cookie)], page).into_response();
        }
        Err(NoLogin::NotGood) => (StatusCode::FORBIDDEN, Notice::UsedLink),
        Err(NoLogin::TooOften) => (
            StatusCode::TOO_MANY_REQUESTS,
            Notice::Text(
                "too many links that are not good came from your address. Try again in a minute",
            ),
        ),
        Err(NoLogin::Full) => (
            StatusCode::SERVICE_UNAVAILABLE,
            Notice::Text("as many browsers are logged in as may be. Try again later"),
        ),
    };
    notice(&web, status, why).await
}

pub(super) async fn no_such_page(Shared(web): Shared<Web>, request: Request) -> Response {
    let known = request.extensions().get::<Arc<Session>>().is_some();
    let what = match known {
        true => Notice::NoSuchPage,
        false => Notice::NoSession,
    };
    notice(&web, StatusCode::NOT_FOUND, what).await
}

fn asset(kind: &'static str, text: &'static str) -> Response {
    let headers = [(CONTENT_TYPE, kind), (CACHE_CONTROL, "max-age=300")];
    (headers, text).into_response()
}

pub(super) async fn style() -> Response {
    asset("text/css; charset=utf-8", gweb::STYLE)
}

pub(super) async fn script() -> Response {
    asset("text/javascript; charset=utf-8", gweb::SCRIPT)
}

pub(super) async fn icon() -> Response {
    asset("image/svg+xml", gweb::ICON)
}
