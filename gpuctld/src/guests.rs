//! Who gets a place at the controller: connections, bodies being received, answers being written. A user has a share and no more, some
//! places are kept for root and the operators, and a machine that has shown nothing has few. So nobody locks out or fills anybody.
//!
//! Owns the numbers; sockets are the listener's, and a user is who the kernel or a node's daemon says.

use crate::http::{App, Peer};
use axum::body::Body;
use axum::http::header::CONTENT_LENGTH;
use axum::http::{Method, Request, Response};
use gmodel::NodeId;
use gwire::api::MAX_BODY_BYTES;
use gwire::door::{Door, Full, Place, Places};
use hyper::body::{Bytes, Frame, SizeHint};
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// Connections of users on the controller's own socket.
const LOCAL: Places = Places {
    all: 8192,
    each: 1024,
    kept: 512,
};
/// Machines that have not shown a certificate yet, by address. Each has a few seconds.
const HANDSHAKES: Places = Places {
    all: 2048,
    each: 128,
    kept: 0,
};
/// Connections over which a node's daemon forwards requests.
const FORWARDERS: Places = Places {
    all: 16_384,
    each: 4096,
    kept: 0,
};
/// Connections of one node in the node protocol: the one in force, and its successors that wait for their turn.
const LINKS: Places = Places {
    all: 131_072,
    each: 4,
    kept: 0,
};
/// Machines without a certificate that want to join, by address.
const STRANGERS: Places = Places {
    all: 256,
    each: 16,
    kept: 0,
};
/// Bytes of bodies that are being received, or handled. Small ones are not counted: connections bound them.
const BODIES: Places = Places {
    all: 320 << 20,
    each: 64 << 20,
    kept: 64 << 20,
};
const SMALL_BODY_BYTES: usize = 64 << 10;
/// Answers to questions that are being made or written.
const ANSWERS: Places = Places {
    all: 64,
    each: 8,
    kept: 16,
};
/// A request waits so long for the user's others.
const PATIENCE: Duration = Duration::from_secs(30);
/// Of requests that have no user.
const NO_USER: u32 = u32::MAX;

/// All doors. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Guests {
    pub local: Door<u32>,
    pub handshakes: Door<IpAddr>,
    pub forwarders: Door<NodeId>,
    pub links: Door<NodeId>,
    pub strangers: Door<IpAddr>,
    bodies: Door<u32>,
    answers: Door<u32>,
}

impl Default for Guests {
    fn default() -> Self {
        Self {
            local: Door::new(LOCAL),
            handshakes: Door::new(HANDSHAKES),
            forwarders: Door::new(FORWARDERS),
            links: Door::new(LINKS),
            strangers: Door::new(STRANGERS),
            bodies: Door::new(BODIES),
            answers: Door::new(ANSWERS),
        }
    }
}

/// What a request holds: until it is answered, and until its answer is written.
pub struct Held {
    _body: Option<Place<u32>>,
    answer: Option<Place<u32>>,
}

impl Guests {
    /// What a request needs, when there is room for it.
    ///
    /// # Errors
    /// In words, when there was none in time.
    pub async fn room_for<B>(&self, request: &Request<B>, app: &App) -> Result<Held, String> {
        let peer = request.extensions().get::<Peer>();
        let (uid, privileged) = peer.map_or((NO_USER, false), |peer| {
            (peer.uid, is_privileged(app, peer.uid, &peer.user))
        });
        let bytes = body_bytes(request);
        let body = match bytes > SMALL_BODY_BYTES {
            true => Some(
                self.bodies
                    .wait(uid, privileged, bytes, PATIENCE)
                    .await
                    .map_err(|full| words(full, "bytes of requests", "being received"))?,
            ),
            false => None,
        };
        let answer = match is_question(request) {
            true => Some(
                self.answers
                    .wait(uid, privileged, 1, PATIENCE)
                    .await
                    .map_err(|full| words(full, "answers", "being written and not read"))?,
            ),
            false => None,
        };
        Ok(Held {
            _body: body,
            answer,
        })
    }
}

/// Root and the operators have places of their own.
pub fn is_privileged(app: &App, uid: u32, user: &str) -> bool {
    uid == 0
        || app
            .config()
            .cluster
            .operators
            .iter()
            .any(|operator| operator == user)
}

fn words(full: Full, what: &str, doing: &str) -> String {
    match full {
        Full::Each(most) => format!(
            "your other requests have all the {most} {what} that one user may have {doing}, for {} s now. Try again when they are done",
            PATIENCE.as_secs()
        ),
        Full::All(most) => format!(
            "{most} {what} of all users are {doing}, for {} s now. Try again in a moment",
            PATIENCE.as_secs()
        ),
    }
}

/// What the body may take; one that does not say may take all.
fn body_bytes<B>(request: &Request<B>) -> usize {
    if matches!(*request.method(), Method::GET | Method::HEAD) {
        return 0;
    }
    let announced = request
        .headers()
        .get(CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    announced.unwrap_or(MAX_BODY_BYTES).min(MAX_BODY_BYTES)
}

/// Listings and the like; not what waits for a job's end.
fn is_question<B>(request: &Request<B>) -> bool {
    request.method() == Method::GET && !request.uri().path().ends_with("/wait")
}

impl Held {
    /// The answer keeps its place until it is written or given up.
    pub fn until_written(self, answer: Response<Body>) -> Response<Body> {
        match self.answer {
            Some(place) => answer.map(|body| {
                Body::new(Placed {
                    body,
                    _place: place,
                })
            }),
            None => answer,
        }
    }
}

struct Placed {
    body: Body,
    _place: Place<u32>,
}

impl hyper::body::Body for Placed {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
