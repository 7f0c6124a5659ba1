//! Limits of connections, of bodies being received and of answers being written. A user has a share and no more, some permits are
//! reserved for root and the operators, and a machine without a certificate has few. So no user locks out or fills others.
//!
//! Owns the numbers; sockets are the listener's, and a user's identity comes from the kernel or a node's daemon.

use crate::http::{App, Peer};
use axum::body::Body;
use axum::http::header::CONTENT_LENGTH;
use axum::http::{Method, Request, Response};
use gmodel::NodeId;
use gwire::api::MAX_BODY_BYTES;
use gwire::permits::{NoPermit, Permit, PermitLimits, PermitPool};
use hyper::body::{Bytes, Frame, SizeHint};
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// Connections of users on the controller's own socket.
const LOCAL: PermitLimits = PermitLimits {
    all: 8192,
    per_client: 1024,
    reserved: 512,
};
/// Handshakes under way, by address. Each has a few seconds.
const HANDSHAKES: PermitLimits = PermitLimits {
    all: 2048,
    per_client: 128,
    reserved: 0,
};
/// Connections over which a node's daemon forwards requests.
const FORWARDERS: PermitLimits = PermitLimits {
    all: 16_384,
    per_client: 4096,
    reserved: 0,
};
/// Connections of one node in the node protocol: the one in force, and its successors that wait for their turn.
const LINKS: PermitLimits = PermitLimits {
    all: 131_072,
    per_client: 4,
    reserved: 0,
};
/// Joins by machines without a certificate, by address.
const JOINS: PermitLimits = PermitLimits {
    all: 256,
    per_client: 16,
    reserved: 0,
};
/// Connections of clients with tokens, by address: a whole site may be behind one.
const CLIENTS: PermitLimits = PermitLimits {
    all: 4096,
    per_client: 512,
    reserved: 0,
};
/// Bytes of bodies that are being received, or handled. Small ones are not counted: connections bound them.
const BODIES: PermitLimits = PermitLimits {
    all: 320 << 20,
    per_client: 64 << 20,
    reserved: 64 << 20,
};
const SMALL_BODY_BYTES: usize = 64 << 10;
/// Answers to questions that are being made or written.
const ANSWERS: PermitLimits = PermitLimits {
    all: 64,
    per_client: 8,
    reserved: 16,
};
/// Streams to steps: each has two connections here.
const STREAMS: PermitLimits = PermitLimits {
    all: 8192,
    per_client: 512,
    reserved: 64,
};
/// A request waits so long for others of its user.
const PERMIT_TIMEOUT: Duration = Duration::from_secs(30);
/// Of requests that have no user.
const NO_USER: u32 = u32::MAX;

/// All pools of permits. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ConnectionLimits {
    pub local: PermitPool<u32>,
    pub handshakes: PermitPool<IpAddr>,
    pub forwarders: PermitPool<NodeId>,
    pub links: PermitPool<NodeId>,
    pub joins: PermitPool<IpAddr>,
    pub clients: PermitPool<IpAddr>,
    pub streams: PermitPool<u32>,
    bodies: PermitPool<u32>,
    answers: PermitPool<u32>,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            local: PermitPool::new(LOCAL),
            handshakes: PermitPool::new(HANDSHAKES),
            forwarders: PermitPool::new(FORWARDERS),
            links: PermitPool::new(LINKS),
            joins: PermitPool::new(JOINS),
            clients: PermitPool::new(CLIENTS),
            streams: PermitPool::new(STREAMS),
            bodies: PermitPool::new(BODIES),
            answers: PermitPool::new(ANSWERS),
        }
    }
}

/// The permits of a request: of its body until it is answered, of its answer until that is written.
pub struct RequestPermits {
    _body: Option<Permit<u32>>,
    answer: Option<Permit<u32>>,
}

impl ConnectionLimits {
    /// The permits that a request needs.
    ///
    /// # Errors
    /// In words, when there were none in time.
    pub async fn permits_for<B>(
        &self,
        request: &Request<B>,
        app: &App,
    ) -> Result<RequestPermits, String> {
        let peer = request.extensions().get::<Peer>();
        let (uid, privileged) = peer.map_or((NO_USER, false), |peer| {
            let privileged = is_privileged(app, peer.uid, &peer.user);
            (peer.uid, privileged && peer.token.is_none())
        });
        let bytes = body_bytes(request);
        let body = match bytes > SMALL_BODY_BYTES {
            true => Some(
                self.bodies
                    .wait_for(uid, privileged, bytes, PERMIT_TIMEOUT)
                    .await
                    .map_err(|none| words(none, "bytes of requests", "being received"))?,
            ),
            false => None,
        };
        let answer = match is_question(request) {
            true => Some(
                self.answers
                    .wait_for(uid, privileged, 1, PERMIT_TIMEOUT)
                    .await
                    .map_err(|none| words(none, "answers", "being written and not read"))?,
            ),
            false => None,
        };
        Ok(RequestPermits {
            _body: body,
            answer,
        })
    }
}

/// Root and the operators have permits of their own.
pub fn is_privileged(app: &App, uid: u32, user: &str) -> bool {
    uid == 0
        || app
            .config()
            .cluster
            .operators
            .iter()
            .any(|operator| operator == user)
}

fn words(none: NoPermit, what: &str, doing: &str) -> String {
    match none {
        NoPermit::PerClient(most) => format!(
            "your other requests have all the {most} {what} that one user may have {doing}, for {} s now. Try again when they are done",
            PERMIT_TIMEOUT.as_secs()
        ),
        NoPermit::All(most) => format!(
            "{most} {what} of all users are {doing}, for {} s now. Try again in a moment",
            PERMIT_TIMEOUT.as_secs()
        ),
    }
}

/// The most bytes that a body may have; without a length it may have all.
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

/// Listings and the like; not the wait for a job's end, and no stream. Readers of events have permits of their own.
fn is_question<B>(request: &Request<B>) -> bool {
    let path = request.uri().path();
    request.method() == Method::GET
        && !path.ends_with("/wait")
        && !path.ends_with("/stream")
        && path != "/v1/events"
}

impl RequestPermits {
    /// The answer keeps its permit until it is written or given up.
    pub fn until_written(self, answer: Response<Body>) -> Response<Body> {
        match self.answer {
            Some(permit) => answer.map(|body| {
                Body::new(PermittedBody {
                    body,
                    _permit: permit,
                })
            }),
            None => answer,
        }
    }
}

struct PermittedBody {
    body: Body,
    _permit: Permit<u32>,
}

impl hyper::body::Body for PermittedBody {
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
