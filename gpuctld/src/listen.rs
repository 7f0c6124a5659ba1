//! The sockets: TLS for machines (ALPN says whether it speaks the node protocol or HTTP), the unix socket, and loopback for browsers.
//!
//! Owns accepting, handshakes and the identity of a peer: from the kernel on the unix socket, from the certificate on TLS.
//! A name in a header counts only on a connection with a node's certificate. Nothing here reads a body.

use crate::connection_limits::{ConnectionLimits, is_privileged};
use crate::core_thread::CoreHandle;
use crate::http::{
    ApiError, App, CertificateHolder, ForwarderAddress, PROBES, Peer, WebDoor, admit_browser,
    admit_token, unauthorised,
};
use crate::node_link::NodeConnections;
use crate::pki::NodeIdentity;
use crate::user_names::{ClaimedUser, UserMatch, UserNames};
use axum::Router;
use axum::body::Body;
use axum::http::{HeaderValue, Request, Response, StatusCode};
use axum::response::IntoResponse;
use gwire::api::FORWARD_HEADER;
use gwire::min_rate::{MinRateBody, MinRateStream};
use gwire::node_protocol::{ALPN_JOIN, ALPN_NODE};
use gwire::permits::{NoPermit, Permit, PermitPool};
use hyper::body::Incoming;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// A machine that wants to join has one request.
const JOIN_TIMEOUT: Duration = Duration::from_secs(30);
/// What is kept of a request before it is handled, bytes.
const READ_BUFFER_BYTES: usize = 64 << 10;
/// For the head of a request, from its first byte or the end of the one before.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// Answers under way are finished within this when we stop; long polls are cut.
const FINISH: Duration = Duration::from_millis(500);
/// After an error of accept(2), such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Owner of a node daemon's own requests: the uid of no user.
const NO_USER: u32 = 65_534;

/// A request with its peer in it, or the answer of one that is not let in.
type Admission = Result<Request<Incoming>, Box<Response<Body>>>;

/// What both listeners serve.
#[derive(Clone)]
pub struct Site {
    pub core: CoreHandle,
    pub router: Router,
    /// The pages, for requests that came through a [`WebDoor`].
    pub pages: Router,
    pub links: NodeConnections,
    pub names: UserNames,
    pub app: Arc<App>,
    pub limits: ConnectionLimits,
    /// True once we are stopping.
    pub stop: watch::Receiver<bool>,
}

/// Binds the unix socket, 0666: any user may connect, and the kernel names the uid. A socket left by a controller
/// that was killed is replaced; one that answers is not.
///
/// # Errors
/// The path cannot be bound.
pub fn bind_unix(path: &Path) -> std::io::Result<UnixListener> {
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir)?;
    }
    if std::os::unix::net::UnixStream::connect(path).is_ok() {
        return Err(std::io::Error::new(
            ErrorKind::AddrInUse,
            "another gpuctld answers there",
        ));
    }
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))?;
    Ok(listener)
}

/// Accepts on the unix socket until we stop.
pub async fn serve_unix(listener: UnixListener, site: Site) {
    let mut stop = site.stop.clone();
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => accepted.map(|(stream, _)| stream),
            () = until_stop(&mut stop) => break,
        };
        match stream {
            Ok(stream) => {
                tokio::spawn(serve_local(stream, site.clone()));
            }
            Err(e) => pause_after(&e).await,
        }
    }
    drop(listener);
    finish(&site.limits.local).await;
}

/// Accepts machines until we stop.
pub async fn serve_tls(listener: TcpListener, config: Arc<ServerConfig>, site: Site) {
    let acceptor = TlsAcceptor::from(config);
    let mut stop = site.stop.clone();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = until_stop(&mut stop) => break,
        };
        match accepted {
            Ok((stream, from)) => {
                let (site, acceptor) = (site.clone(), acceptor.clone());
                tokio::spawn(async move {
                    if let Err(e) = serve_machine(stream, from, acceptor, site).await {
                        tracing::info!(%from, "connection ended: {e}");
                    }
                });
            }
            Err(e) => pause_after(&e).await,
        }
    }
    drop(listener);
    finish(&site.limits.forwarders).await;
}

/// Accepts browsers of this machine, which find pages there and nothing else, until we stop.
pub async fn serve_loopback(listener: TcpListener, site: Site) {
    let mut stop = site.stop.clone();
    let port = listener.local_addr().map_or(0, |address| address.port());
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = until_stop(&mut stop) => break,
        };
        match accepted {
            Ok((stream, from)) => {
                let (site, from) = (site.clone(), from.ip());
                let door = WebDoor {
                    tls: false,
                    from,
                    port,
                };
                tokio::spawn(async move {
                    if let Ok(_permit) = site.limits.clients.take(from, false, 1) {
                        serve_http(stream, &site, move |request| {
                            Ok(of_client(request, from, Some(door)))
                        })
                        .await;
                    }
                });
            }
            Err(e) => pause_after(&e).await,
        }
    }
}

async fn until_stop(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await; // an error: the sender is gone, so we are stopping
}

/// Waits for the connections that are left.
async fn finish<C: Ord + Clone>(permits: &PermitPool<C>) {
    let empty = async {
        while permits.taken() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let _ = tokio::time::timeout(FINISH, empty).await;
}

async fn pause_after(error: &std::io::Error) {
    tracing::warn!("cannot accept a connection: {error}");
    tokio::time::sleep(ACCEPT_PAUSE).await;
}

async fn serve_local(stream: UnixStream, site: Site) {
    let Ok(credentials) = stream.peer_cred() else {
        return;
    };
    let (uid, gid) = (credentials.uid(), credentials.gid());
    let user = site.names.of(uid).await;
    let _permit = match site
        .limits
        .local
        .take(uid, is_privileged(&site.app, uid, &user), 1)
    {
        Ok(permit) => permit,
        Err(none) => return turn_away(&stream, none),
    };
    let peer = Peer {
        uid,
        gid,
        user,
        via: None,
        admin: false,
        local: true,
        known: true,
        token: None,
    };
    serve_http(stream, &site, move |mut request: Request<Incoming>| {
        request.headers_mut().remove(FORWARD_HEADER);
        request.extensions_mut().insert(peer.clone());
        Ok(request)
    })
    .await;
}

/// Says why before it closes; a client that still writes reads it afterwards.
fn turn_away(stream: &UnixStream, none: NoPermit) {
    let text = match none {
        NoPermit::PerClient(most) => format!(
            "you have {most} connections to the controller, as many as one user may. Close some"
        ),
        NoPermit::All(most) => format!(
            "users have {most} connections to the controller, and more are only for operators. Try again in a moment"
        ),
    };
    let body = error_body("limit", &text);
    let head = format!(
        "HTTP/1.1 429 Too Many Requests\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let _ = stream.try_write(&[head.into_bytes(), body].concat()); // it may be gone already
}

async fn serve_machine(
    stream: TcpStream,
    from: SocketAddr,
    acceptor: TlsAcceptor,
    site: Site,
) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let handshake = permitted(
        site.limits
            .handshakes
            .wait_for(from.ip(), false, 1, HANDSHAKE_TIMEOUT)
            .await,
    )?;
    let stream = tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await??;
    drop(handshake);
    let alpn = stream
        .get_ref()
        .1
        .alpn_protocol()
        .map(<[u8]>::to_vec)
        .unwrap_or_default();
    let identity = identity_of(&stream);
    match (alpn.as_slice(), identity) {
        (ALPN_NODE, Some(identity)) => {
            let mut stop = site.stop.clone();
            let _permit = permitted(site.limits.links.take(identity.node, false, 1))?;
            tokio::select! {
                () = site.links.serve(stream, identity, from) => {}
                () = until_stop(&mut stop) => {}
            }
        }
        (ALPN_NODE, None) => {
            return Err(std::io::Error::other(
                "the node protocol needs a node's certificate",
            ));
        }
        (ALPN_JOIN, _) => {
            let _permit = permitted(site.limits.joins.take(from.ip(), false, 1))?;
            tokio::time::timeout(JOIN_TIMEOUT, serve_http(stream, &site, only_joining)).await?;
        }
        (_, None) => {
            let _permit = permitted(site.limits.clients.take(from.ip(), false, 1))?;
            serve_client(stream, &site, from.ip()).await;
        }
        (_, Some(identity)) => {
            let _permit = permitted(site.limits.forwarders.take(identity.node, false, 1))?;
            serve_forwarder(
                stream,
                &site,
                CertificateHolder {
                    identity,
                    address: from.ip().to_string(),
                },
                from.ip(),
            )
            .await;
        }
    }
    Ok(())
}

fn permitted<C: Ord>(permit: Result<Permit<C>, NoPermit>) -> std::io::Result<Permit<C>> {
    permit.map_err(|none| {
        std::io::Error::other(match none {
            NoPermit::PerClient(most) => {
                format!("this machine has {most} such connections already")
            }
            NoPermit::All(most) => format!("there are {most} such connections already"),
        })
    })
}

/// Requests of a node daemon: its own, and those of users it saw on its socket.
async fn serve_forwarder(
    stream: TlsStream<TcpStream>,
    site: &Site,
    holder: CertificateHolder,
    from: IpAddr,
) {
    let (core, names) = (site.core.clone(), site.names.clone());
    // The node may have been removed since it joined; asked once a connection and at each request.
    serve_http(stream, site, move |mut request: Request<Incoming>| {
        let forwarded = forwarded_user(&request)
            .map_err(|text| Box::new(refusal(StatusCode::BAD_REQUEST, &text)))?;
        let (uid, gid, user) = forwarded.unwrap_or((NO_USER, NO_USER, String::new()));
        let identity = &holder.identity;
        let via = Some((identity.node, identity.role));
        request.headers_mut().remove(FORWARD_HEADER);
        request.extensions_mut().insert(Peer {
            uid,
            gid,
            user,
            via,
            admin: identity.admin,
            local: false,
            known: false,
            token: None,
        });
        request.extensions_mut().insert(StillMember {
            core: core.clone(),
            names: names.clone(),
            identity: identity.clone(),
        });
        request.extensions_mut().insert(holder.clone());
        request.extensions_mut().insert(ForwarderAddress(from));
        Ok(request)
    })
    .await;
}

/// A certificate outlives its node's membership, and what its daemon says of a user is compared with what is known here: both
/// before each request over it.
#[derive(Clone)]
struct StillMember {
    core: CoreHandle,
    names: UserNames,
    identity: NodeIdentity,
}

impl StillMember {
    /// # Errors
    /// The answer for a machine or a user that is not let in.
    async fn check(&self, request: &mut Request<Incoming>) -> Result<(), Response<Body>> {
        self.identity
            .check(&*self.core.view().await)
            .map_err(|text| refusal(StatusCode::FORBIDDEN, &text))?;
        let Some(peer) = request.extensions_mut().get_mut::<Peer>() else {
            return Ok(());
        };
        // The daemon's own requests, and users without a name on its machine: refused where a user is needed.
        if peer.user.is_empty() {
            return Ok(());
        }
        let claimed = ClaimedUser {
            uid: peer.uid,
            gid: peer.gid,
            name: peer.user.clone(),
        };
        match self.names.compare(claimed).await {
            Ok(Ok(standing)) => peer.known = standing == UserMatch::Same,
            Ok(Err(text)) => return Err(refusal(StatusCode::FORBIDDEN, &text)),
            Err(e) => {
                return Err(refusal(
                    StatusCode::SERVICE_UNAVAILABLE,
                    &format!("the controller's name service does not say who you are: {e}"),
                ));
            }
        }
        Ok(())
    }
}

/// Requests of users over the network.
async fn serve_client(stream: TlsStream<TcpStream>, site: &Site, from: IpAddr) {
    let config = site.app.config();
    let door = config.web.as_ref().map(|_| WebDoor {
        tls: true,
        from,
        port: config.listen.port(),
    });
    serve_http(stream, site, move |request| {
        Ok(of_client(request, from, door))
    })
    .await;
}

/// Where a connection without a certificate came from: failed tries of tokens are counted by it.
#[derive(Clone, Copy)]
struct ClientAddress(IpAddr);

/// A request without a certificate: a token has to say who asks, or the session of a page.
fn of_client(
    mut request: Request<Incoming>,
    from: IpAddr,
    door: Option<WebDoor>,
) -> Request<Incoming> {
    request.headers_mut().remove(FORWARD_HEADER);
    if let Some(door) = door.filter(|door| door.takes(request.uri().path())) {
        request.extensions_mut().insert(door);
    }
    request.extensions_mut().insert(ClientAddress(from));
    request
}

/// Refuses what nobody vouches for.
fn vouched(request: &Request<Incoming>) -> Result<(), ApiError> {
    let is_probe = request.method() == "GET" && PROBES.contains(&request.uri().path());
    if request.extensions().get::<Peer>().is_some() || is_join(request) || is_probe {
        return Ok(());
    }
    Err(unauthorised(
        "over the network a token says who you are, and none came with this request. `gq token new` on the cluster makes one; it goes into \
         the file that token_file in gpupool.toml names, or behind `Authorization: Bearer`",
    ))
}

fn is_join(request: &Request<Incoming>) -> bool {
    request.method() == "POST" && request.uri().path() == "/v1/join"
}

/// A peer that is not let in asks again over another connection.
fn not_let_in(error: ApiError) -> Response<Body> {
    let is_unknown = error.status == StatusCode::UNAUTHORIZED;
    let mut answer = error.into_response();
    let headers = answer.headers_mut();
    headers.insert("connection", HeaderValue::from_static("close"));
    if is_unknown {
        headers.insert("www-authenticate", HeaderValue::from_static("Bearer"));
    }
    answer
}

/// A machine that joins may do one thing.
fn only_joining(mut request: Request<Incoming>) -> Admission {
    request.headers_mut().remove(FORWARD_HEADER);
    if is_join(&request) {
        return Ok(request);
    }
    let text = "over this protocol only POST /v1/join is answered";
    Err(Box::new(refusal(StatusCode::FORBIDDEN, text)))
}

/// Whether the certificate, the token or the socket of a request vouches for its user; the answer where none does.
async fn let_in(site: &Site, request: &mut Request<Incoming>) -> Result<(), Box<Response<Body>>> {
    if let Some(member) = request.extensions().get::<StillMember>().cloned() {
        member.check(request).await.map_err(Box::new)?;
    }
    if request.extensions().get::<WebDoor>().is_some() {
        // A page says itself that there is no session.
        admit_browser(&site.core, &site.app.entrances.web, &site.names, request).await;
        return Ok(());
    }
    let from = request.extensions().get::<ClientAddress>();
    let from = from.map(|ClientAddress(address)| *address);
    let (core, gate) = (&site.core, &site.app.entrances.tokens);
    let admitted = admit_token(core, gate, &site.names, request, from).await;
    admitted
        .and_then(|()| vouched(request))
        .map_err(|error| Box::new(not_let_in(error)))
}

/// Serves HTTP/1.1 with keep-alive until the peer leaves or we stop. `admit` names the peer or refuses.
async fn serve_http<S, F>(stream: S, site: &Site, admit: F)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Fn(Request<Incoming>) -> Admission + Clone + Send + 'static,
{
    let api = TowerToHyperService::new(site.router.clone());
    let pages = TowerToHyperService::new(site.pages.clone());
    let at = site.clone();
    let stream = MinRateStream::new(stream);
    let switch = stream.switch();
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(switch.clone());
        request.extensions_mut().insert(at.limits.streams.clone());
        let (api, pages) = (api.clone(), pages.clone());
        let (admitted, site) = (admit(request), at.clone());
        async move {
            let mut request = match admitted {
                Ok(request) => request,
                Err(refusal) => return Ok::<_, std::convert::Infallible>(*refusal),
            };
            if let Err(answer) = let_in(&site, &mut request).await {
                return Ok(*answer);
            }
            let permits = match site.limits.permits_for(&request, &site.app).await {
                Ok(permits) => permits,
                Err(text) => return Ok(refusal(StatusCode::TOO_MANY_REQUESTS, &text)),
            };
            let routes = match request.extensions().get::<WebDoor>() {
                Some(_) => pages,
                None => api,
            };
            let answer = routes.call(request.map(MinRateBody::new)).await?;
            Ok(permits.until_written(answer))
        }
    });
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(READ_BUFFER_BYTES);
    let connection = builder
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    tokio::pin!(connection);
    let mut stop = site.stop.clone();
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = until_stop(&mut stop) => {
            connection.as_mut().graceful_shutdown(); // the answer under way is finished
            connection.await
        }
    };
    if let Err(e) = ended {
        tracing::debug!("connection ended: {e}");
    }
}

/// `uid:gid:name` as a node's daemon saw it.
fn forwarded_user<B>(request: &Request<B>) -> Result<Option<(u32, u32, String)>, String> {
    let Some(value) = request.headers().get(FORWARD_HEADER) else {
        return Ok(None);
    };
    let read = || {
        let mut parts = value.to_str().ok()?.splitn(3, ':');
        let uid = parts.next()?.parse().ok()?;
        let gid = parts.next()?.parse().ok()?;
        Some((uid, gid, parts.next()?.to_owned()))
    };
    read()
        .map(Some)
        .ok_or_else(|| format!("{FORWARD_HEADER} is not UID:GID:NAME"))
}

fn identity_of(stream: &TlsStream<TcpStream>) -> Option<NodeIdentity> {
    NodeIdentity::read(stream.get_ref().1.peer_certificates()?.first()?)
}

fn refusal(status: StatusCode, text: &str) -> Response<Body> {
    let code = match status {
        StatusCode::FORBIDDEN => "denied",
        StatusCode::SERVICE_UNAVAILABLE => "unavailable",
        StatusCode::TOO_MANY_REQUESTS => "limit",
        _ => "invalid",
    };
    let mut response = Response::new(Body::from(error_body(code, text)));
    *response.status_mut() = status;
    response.headers_mut().insert(
        "content-type",
        axum::http::HeaderValue::from_static("application/json"),
    );
    response
}

fn error_body(code: &str, text: &str) -> Vec<u8> {
    let body = gwire::api::ErrorBody {
        schema: gwire::api::SCHEMA,
        code: code.into(),
        error: text.into(),
        ..gwire::api::ErrorBody::default()
    };
    serde_json::to_vec(&body).expect("strings are JSON")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(value: &str) -> Request<()> {
        Request::builder()
            .header(FORWARD_HEADER, value)
            .body(())
            .unwrap()
    }

    #[test]
    fn a_forwarded_user_is_read_whole_or_refused() {
        assert_eq!(
            forwarded_user(&request("1000:100:alice")),
            Ok(Some((1000, 100, "alice".into())))
        );
        assert_eq!(forwarded_user(&Request::new(())), Ok(None));
        for bad in [
            "",
            "alice",
            "1000:alice",
            "-1:0:root",
            "1000:100",
            "99999999999:1:x",
        ] {
            assert!(forwarded_user(&request(bad)).is_err(), "{bad:?} was taken");
        }
    }

    #[tokio::test]
    async fn a_socket_that_answers_is_not_taken_over_and_a_dead_one_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sub/api.sock");
        let first = bind_unix(&path).unwrap();
        assert_eq!(bind_unix(&path).unwrap_err().kind(), ErrorKind::AddrInUse);
        drop(first); // the file stays, as after SIGKILL
        assert!(path.exists());
        bind_unix(&path).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o666);
    }
}
