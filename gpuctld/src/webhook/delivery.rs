//! One delivery: a connection of its own, a POST, and the status of the answer. No redirect is followed, and of the answer's body nothing is read.

use crate::config::WebhookSettings;
use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, HOST, USER_AGENT};
use axum::http::{Request, Uri};
use gwire::client::HttpsTrust;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// From the name's look-up to the head of the answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// What goes out.
pub struct Delivery {
    pub headers: Vec<(&'static str, String)>,
    pub body: Vec<u8>,
}

/// # Errors
/// Why it did not arrive, or the status of a receiver that did not take it. Never with the path of the url.
pub async fn deliver(settings: &WebhookSettings, delivery: Delivery) -> Result<(), String> {
    let sent = tokio::time::timeout(PATIENCE, send(settings, delivery));
    let status = sent
        .await
        .map_err(|_| format!("no answer within {} s", PATIENCE.as_secs()))??;
    match status {
        200..=299 => Ok(()),
        300..=399 => Err(format!(
            "the receiver answers {status}, and redirects are not followed"
        )),
        status => Err(format!("the receiver answers {status}")),
    }
}

async fn send(settings: &WebhookSettings, delivery: Delivery) -> Result<u16, String> {
    let url = &settings.url;
    let host = url.host().unwrap_or_default();
    let is_tls = url.scheme_str() == Some("https");
    let port = url.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
    let bare = host.trim_matches(['[', ']']);
    let found = tokio::net::lookup_host((bare, port)).await;
    let found: Vec<SocketAddr> = found.map_err(|error| error.to_string())?.collect();
    // Judged by the addresses that are connected to, not by the name.
    if !is_tls && !settings.allow_http && !found.iter().all(|at| at.ip().is_loopback()) {
        return Err("http goes to this machine alone; use https, or allow_http = true".into());
    }
    let tcp = TcpStream::connect(&*found).await;
    let tcp = tcp.map_err(|error| error.to_string())?;
    let request = request(url, host, delivery)?;
    if !is_tls {
        return exchange(tcp, request).await;
    }
    let trust = match &settings.ca_file {
        Some(file) => HttpsTrust::of_file(file)?,
        None => HttpsTrust::of_machine()?,
    };
    let name = ServerName::try_from(bare.to_owned()).map_err(|error| error.to_string())?;
    let connector = TlsConnector::from(trust.client_config());
    let tls = connector.connect(name, tcp).await;
    exchange(tls.map_err(|error| error.to_string())?, request).await
}

fn request(url: &Uri, host: &str, delivery: Delivery) -> Result<Request<Body>, String> {
    let path = url.path_and_query().map_or("/", |path| path.as_str());
    let host = match url.port_u16() {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    };
    let mut request = Request::post(path)
        .header(HOST, host)
        .header(USER_AGENT, "gpupool")
        .header(CONTENT_TYPE, "application/json");
    for (name, value) in delivery.headers {
        request = request.header(name, value);
    }
    request
        .body(Body::from(delivery.body))
        .map_err(|error| error.to_string())
}

async fn exchange<S>(stream: S, request: Request<Body>) -> Result<u16, String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let told = |error: hyper::Error| error.to_string();
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(told)?;
    let mut exchange = std::pin::pin!(sender.send_request(request));
    let mut connection = std::pin::pin!(connection);
    let mut is_open = true;
    loop {
        // A receiver that closes behind its answer has answered.
        tokio::select! {
            answer = &mut exchange => return Ok(answer.map_err(told)?.status().as_u16()),
            _ = &mut connection, if is_open => is_open = false,
        }
    }
}
