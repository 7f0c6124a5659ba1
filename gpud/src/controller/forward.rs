//! `gpud.sock`: where local users' commands speak HTTP, forwarded to the controller as this machine.
//!
//! The kernel names the asking user (SO_PEERCRED), in a header that clients cannot set. Knows one endpoint, which the daemon answers
//! itself ([`LoginDoor`]). All other bodies stream through in both directions, bounded in size; the controller decides what a user may do.

use crate::controller::identity::{CONTROLLER_NAME, Identity, dial};
use crate::controller::link::Dial;
use anyhow::{Context, Result};
use gmodel::node_login::{LOGIN_PATH, MAX_QUESTION_BYTES};
use gsys::peer::Peer;
use gwire::api::{ErrorBody, FORWARD_HEADER, MAX_BODY_BYTES, SCHEMA, STREAM_UPGRADE};
use gwire::min_rate::{MinRateBody, MinRateStream};
use gwire::node_protocol::ALPN_HTTP;
use gwire::permits::{NoPermit, Permit, PermitLimits, PermitPool};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::SendRequest;
use hyper::header::{CONNECTION, HOST, HeaderMap, HeaderName, HeaderValue, UPGRADE};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::copy_bidirectional_with_sizes;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;

/// Connections at once, and those of one user; root has some of its own.
const CONNECTIONS: PermitLimits = PermitLimits {
    all: 4096,
    per_client: 512,
    reserved: 128,
};
/// Streams to steps at once, and those of one user.
const STREAMS: PermitLimits = PermitLimits {
    all: 2048,
    per_client: 512,
    reserved: 0,
};
/// Kept of each direction of a stream.
const RELAY_BYTES: usize = 16 << 10;
/// What is kept of a request or an answer on its way, bytes.
const BUFFER_BYTES: usize = 64 << 10;
/// Idle connections to the controller that are kept.
const MAX_IDLE: usize = 16;
const MAX_DRAINED_BYTES: usize = 64 << 20;
const HEADER_PATIENCE: Duration = Duration::from_secs(10);
/// Headers that belong to one connection and not to the request (RFC 9110 §7.6.1), and the two that gpud sets.
const NOT_FORWARDED: [&str; 10] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    FORWARD_HEADER,
];

/// Questions about logins that are looked at at once; others wait.
static LOGINS: Semaphore = Semaphore::const_new(16);

/// Answers what sshd asks about a login, for root alone. Blocking.
pub type LoginDoor = Arc<dyn Fn(Peer, &[u8]) -> Result<Vec<u8>, String> + Send + Sync>;

type Body = BoxBody<Bytes, Box<dyn std::error::Error + Send + Sync>>;

/// The listening socket, made before the daemon says it is ready.
pub fn listen(run_dir: &Path) -> Result<UnixListener> {
    std::fs::create_dir_all(run_dir).with_context(|| format!("making {}", run_dir.display()))?;
    std::fs::set_permissions(run_dir, std::fs::Permissions::from_mode(0o755))?;
    let (path, aside) = (run_dir.join("gpud.sock"), run_dir.join("gpud.sock.new"));
    let _ = std::fs::remove_file(&aside);
    let listener = UnixListener::bind(&aside).with_context(|| {
        let bytes = aside.as_os_str().len();
        format!(
            "listening on {} ({bytes} bytes; a socket's path has room for 107)",
            aside.display()
        )
    })?;
    std::fs::set_permissions(&aside, std::fs::Permissions::from_mode(0o666))?;
    std::fs::rename(&aside, &path)?;
    Ok(listener)
}

/// Serves local users for ever.
pub async fn serve(listener: UnixListener, to: Dial, logins: LoginDoor) {
    let upstream = Arc::new(Upstream {
        to,
        logins,
        idle: Mutex::new(Vec::new()),
    });
    let (permits, streams) = (PermitPool::new(CONNECTIONS), PermitPool::new(STREAMS));
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(e) => {
                tracing::warn!("gpud.sock: {e}");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let (upstream, permits) = (Arc::clone(&upstream), permits.clone());
        let streams = streams.clone();
        tokio::spawn(async move {
            if let Err(e) = serve_user(stream, upstream, permits, streams).await {
                tracing::debug!("gpud.sock: {e:#}");
            }
        });
    }
}

async fn serve_user(
    stream: UnixStream,
    upstream: Arc<Upstream>,
    permits: PermitPool<u32>,
    streams: PermitPool<u32>,
) -> Result<()> {
    let peer = gsys::peer::peer_of(&stream)?;
    let _permit = match permits.take(peer.uid, peer.uid == 0, 1) {
        Ok(permit) => permit,
        Err(none) => return turn_away(&stream, none),
    };
    let name = tokio::task::spawn_blocking(move || gsys::user::user_name(peer.uid)).await?;
    let identity = match name {
        Ok(name) => Ok(format!(
            "{}:{}:{}",
            peer.uid,
            peer.gid,
            name.unwrap_or_default()
        )),
        Err(e) => Err(format!("{:#}", anyhow::Error::from(e))),
    };
    let stream = MinRateStream::new(stream);
    let switch = stream.switch();
    let service = hyper::service::service_fn(move |request| {
        let (upstream, identity) = (Arc::clone(&upstream), identity.clone());
        let (switch, streams) = (switch.clone(), streams.clone());
        async move {
            let answer = match identity {
                _ if request.uri().path() == LOGIN_PATH => {
                    upstream.answer_login(peer, request).await
                }
                Ok(identity) if asks_stream(&request) => {
                    match streams.take(peer.uid, peer.uid == 0, 1) {
                        Ok(permit) => {
                            switch.turn_off();
                            upstream.forward_stream(request, &identity, permit).await
                        }
                        Err(none) => too_many_streams(none),
                    }
                }
                Ok(identity) => upstream.forward(request, &identity).await,
                Err(text) => unavailable(&format!("this node cannot say who you are: {text}")),
            };
            Ok::<_, std::convert::Infallible>(answer)
        }
    });
    let mut server = hyper::server::conn::http1::Builder::new();
    server
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_PATIENCE)
        .max_buf_size(BUFFER_BYTES);
    Ok(server
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades()
        .await?)
}

/// Says why before it closes; a client that still writes reads it afterwards.
fn turn_away(stream: &UnixStream, none: NoPermit) -> Result<()> {
    let text = match none {
        NoPermit::PerClient(most) => format!(
            "you have {most} connections to this machine's gpud, as many as one user may. Close some"
        ),
        NoPermit::All(most) => format!(
            "users have {most} connections to this machine's gpud, and more are only for root. Try again in a moment"
        ),
    };
    let body = error_body("limit", text);
    let head = format!(
        "HTTP/1.1 429 Too Many Requests\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.try_write(&[head.into_bytes(), body].concat())?;
    Ok(())
}

fn asks_stream(request: &Request<Incoming>) -> bool {
    request
        .headers()
        .get(UPGRADE)
        .is_some_and(|protocol| protocol == STREAM_UPGRADE)
}

fn too_many_streams(none: NoPermit) -> Response<Body> {
    let (NoPermit::PerClient(most) | NoPermit::All(most)) = none;
    let text =
        format!("{most} streams are open on this machine, and no more are taken. Close some");
    refusal(StatusCode::TOO_MANY_REQUESTS, "limit", text)
}

/// The way to the controller, with connections kept for the next request.
struct Upstream {
    to: Dial,
    logins: LoginDoor,
    idle: Mutex<Vec<SendRequest<Body>>>,
}

impl Upstream {
    async fn answer_login(&self, peer: Peer, request: Request<Incoming>) -> Response<Body> {
        if peer.uid != 0 {
            let text = "only root asks about logins (sshd, by pam_gpupool)".to_owned();
            return refusal(StatusCode::FORBIDDEN, "forbidden", text);
        }
        let Ok(question) = Limited::new(request.into_body(), MAX_QUESTION_BYTES)
            .collect()
            .await
        else {
            let text =
                format!("a question of more than {MAX_QUESTION_BYTES} bytes, or half of one");
            return refusal(StatusCode::BAD_REQUEST, "invalid", text);
        };
        let (logins, question) = (Arc::clone(&self.logins), question.to_bytes());
        let Ok(_permit) = LOGINS.acquire().await else {
            return unavailable("this node's gpud is ending");
        };
        let answered = tokio::task::spawn_blocking(move || logins(peer, &question)).await;
        match answered {
            Ok(Ok(answer)) => json(StatusCode::OK, answer),
            Ok(Err(text)) => refusal(StatusCode::BAD_REQUEST, "invalid", text),
            Err(e) => unavailable(&e.to_string()),
        }
    }

    async fn forward(
        self: Arc<Self>,
        request: Request<Incoming>,
        identity: &str,
    ) -> Response<Body> {
        let request = match prepared(request, identity) {
            Ok(request) => request,
            Err((text, body)) => {
                drain(MinRateBody::new(body)).await;
                return refusal(StatusCode::BAD_REQUEST, "invalid", text);
            }
        };
        match self.exchange(request).await {
            Ok(response) => response,
            Err((e, unsent)) => {
                if let Some(request) = unsent {
                    drain(request.into_body()).await;
                }
                unavailable(&format!(
                    "the controller at {} cannot be reached from this node: {e:#}",
                    self.to.controller
                ))
            }
        }
    }

    /// As [`Upstream::forward`], for a request whose connection becomes a stream: it gets a connection of its own.
    async fn forward_stream(
        &self,
        mut request: Request<Incoming>,
        identity: &str,
        permit: Permit<u32>,
    ) -> Response<Body> {
        let client = hyper::upgrade::on(&mut request);
        let sent = async {
            let (mut parts, _) = request.into_parts();
            rewritten(&mut parts, identity).map_err(anyhow::Error::msg)?;
            parts
                .headers
                .insert(CONNECTION, HeaderValue::from_static("upgrade"));
            parts
                .headers
                .insert(UPGRADE, HeaderValue::from_static(STREAM_UPGRADE));
            let empty = http_body_util::Empty::new().map_err(|never| match never {});
            let request = Request::from_parts(parts, empty.boxed());
            anyhow::Ok(self.connect().await?.send_request(request).await?)
        };
        let mut answer = match sent.await {
            Ok(answer) => answer,
            Err(e) => {
                return unavailable(&format!(
                    "the controller at {} cannot be reached from this node: {e:#}",
                    self.to.controller
                ));
            }
        };
        if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
            let controller = hyper::upgrade::on(&mut answer);
            tokio::spawn(async move {
                let _permit = permit;
                // Either end may go before its answer is read.
                if let (Ok(client), Ok(controller)) = (client.await, controller.await) {
                    let (mut client, mut controller) =
                        (TokioIo::new(client), TokioIo::new(controller));
                    let _ = copy_bidirectional_with_sizes(
                        &mut client,
                        &mut controller,
                        RELAY_BYTES,
                        RELAY_BYTES,
                    )
                    .await;
                }
            });
        }
        answer.map(|body| body.map_err(Into::into).boxed())
    }

    /// A kept connection may have died meanwhile: a request it gave back unsent goes over the next.
    async fn exchange(
        self: &Arc<Self>,
        mut request: Request<Body>,
    ) -> Result<Response<Body>, (anyhow::Error, Option<Request<Body>>)> {
        loop {
            let kept = self.idle.lock().expect("no holder panics").pop();
            let is_fresh = kept.is_none();
            let mut sender = match kept {
                Some(sender) if sender.is_closed() => continue,
                Some(sender) => sender,
                None => match self.connect().await {
                    Ok(sender) => sender,
                    Err(e) => return Err((e, Some(request))),
                },
            };
            match sender.try_send_request(request).await {
                Ok(response) => return Ok(self.streamed(response, sender)),
                Err(mut failed) => match failed.take_message() {
                    Some(unsent) if !is_fresh => request = unsent,
                    unsent => return Err((failed.into_error().into(), unsent)),
                },
            }
        }
    }

    async fn connect(&self) -> Result<SendRequest<Body>> {
        let tls = Identity::load(&self.to.state_dir)?.tls(ALPN_HTTP)?;
        let stream = dial(&self.to.controller, tls).await?;
        let (sender, connection) = hyper::client::conn::http1::Builder::new()
            .max_buf_size(BUFFER_BYTES)
            .handshake(TokioIo::new(stream))
            .await?;
        tokio::spawn(connection.with_upgrades());
        Ok(sender)
    }

    /// Passes the answer on; the connection is kept once it can take the next request.
    fn streamed(
        self: &Arc<Self>,
        response: Response<Incoming>,
        mut sender: SendRequest<Body>,
    ) -> Response<Body> {
        let upstream = Arc::clone(self);
        tokio::spawn(async move {
            if sender.ready().await.is_ok() {
                let mut idle = upstream.idle.lock().expect("no holder panics");
                if idle.len() < MAX_IDLE {
                    idle.push(sender);
                }
            }
        });
        let (mut parts, body) = response.into_parts();
        strip(&mut parts.headers);
        Response::from_parts(parts, body.map_err(Into::into).boxed())
    }
}

/// The request as it is forwarded: path and query only, and the forwarding headers of gpud alone.
fn prepared(
    request: Request<Incoming>,
    identity: &str,
) -> Result<Request<Body>, (String, Incoming)> {
    let (mut parts, body) = request.into_parts();
    match rewritten(&mut parts, identity) {
        Ok(()) => Ok(Request::from_parts(
            parts,
            Limited::new(MinRateBody::new(body), MAX_BODY_BYTES).boxed(),
        )),
        Err(text) => Err((text, body)),
    }
}

fn rewritten(parts: &mut hyper::http::request::Parts, identity: &str) -> Result<(), String> {
    let announced = parts
        .headers
        .get(hyper::header::CONTENT_LENGTH)
        .and_then(|v| v.to_str().ok()?.parse::<usize>().ok());
    if announced.is_some_and(|bytes| bytes > MAX_BODY_BYTES) {
        return Err(format!(
            "a request of {} bytes; at most {MAX_BODY_BYTES} are taken",
            announced.unwrap_or(0)
        ));
    }
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    parts.uri = path
        .parse()
        .map_err(|_| "the path cannot be read".to_owned())?;
    strip(&mut parts.headers);
    let identity = HeaderValue::try_from(identity)
        .map_err(|_| "your user name cannot stand in a header".to_owned())?;
    parts
        .headers
        .insert(HeaderName::from_static(FORWARD_HEADER), identity);
    parts
        .headers
        .insert(HOST, HeaderValue::from_static(CONTROLLER_NAME));
    Ok(())
}

/// Reads and drops the rest of the body: a client that still writes when its connection closes never sees the answer.
async fn drain<B: hyper::body::Body + Unpin>(mut body: B) {
    let mut left = MAX_DRAINED_BYTES;
    while let Some(Ok(frame)) = body.frame().await {
        let bytes = frame.data_ref().map_or(0, hyper::body::Buf::remaining);
        left = left.saturating_sub(bytes);
        if left == 0 {
            return;
        }
    }
}

fn strip(headers: &mut HeaderMap) {
    for name in NOT_FORWARDED {
        headers.remove(name);
    }
}

fn unavailable(text: &str) -> Response<Body> {
    refusal(StatusCode::SERVICE_UNAVAILABLE, "unavailable", text.into())
}

fn refusal(status: StatusCode, code: &str, error: String) -> Response<Body> {
    json(status, error_body(code, error))
}

fn json(status: StatusCode, bytes: Vec<u8>) -> Response<Body> {
    let mut response = Response::new(
        http_body_util::Full::new(Bytes::from(bytes))
            .map_err(|never| match never {})
            .boxed(),
    );
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert("content-type", HeaderValue::from_static("application/json"));
    response
}

fn error_body(code: &str, error: String) -> Vec<u8> {
    serde_json::to_vec(&ErrorBody {
        schema: SCHEMA,
        code: code.into(),
        error,
        ..ErrorBody::default()
    })
    .unwrap_or_default()
}
