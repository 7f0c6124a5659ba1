//! The commands' side of the REST API: a small blocking HTTP/1.1 client over a unix socket, or over TLS with a token.
//!
//! Owns connecting, waiting for a controller that restarts, sending again what is safe to send again, and
//! reading answers of any length row by row. On std alone: an async runtime would cost a command more to
//! start than its request takes. Never prints; never interprets rows.

mod address;
mod exchange;
mod https;
mod row_stream;

pub use address::{ControllerAddress, ControllerStream, HttpsAddress, HttpsPlace};
pub use exchange::Body;
pub use https::HttpsTrust;
pub use row_stream::{ListText, RowStream};

use crate::api::{ErrorBody, STREAM_UPGRADE};
use exchange::{Connection, Head};
use gmodel::RefusalKind;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use thiserror::Error;

/// Seconds a command waits for a controller that does not answer, unless its configuration says otherwise.
pub const DEFAULT_WAIT_SECS: u64 = 10;
/// Silence for this long is said aloud.
const ANNOUNCE_AFTER: Duration = Duration::from_millis(700);
/// The status of an answer after which the connection is a stream.
const SWITCHING_PROTOCOLS: u16 = 101;
/// Pause between attempts to connect.
const RETRY_PAUSE: Duration = Duration::from_millis(50);
/// Longest silence inside an answer. `wait` answers within 30 seconds.
const READ_TIMEOUT: Duration = Duration::from_secs(120);
/// Largest answer that is read as a whole (listings are read row by row and have no bound).
const MAX_ANSWER_BYTES: u64 = 256 << 20;
/// Largest text of an error that is shown.
const MAX_ERROR_BYTES: u64 = 1 << 20;

/// A connection to the controller, made at the first request and kept for the next.
pub struct Client {
    address: ControllerAddress,
    wait: Duration,
    on_wait: Box<dyn Fn(&ControllerAddress)>,
    on_request: Box<dyn Fn(&str, &str)>,
    connection: Option<Connection>,
}

/// Why a request has no answer.
#[derive(Debug, Error)]
pub enum ClientError {
    /// No process listens there.
    #[error("no controller answers at {address}: {source}. {}", address.advice())]
    Unreachable {
        address: ControllerAddress,
        source: io::Error,
    },
    /// What answers there is not the controller that the token, or the site's certificates, speak of.
    #[error(
        "what answers at {address} is not your controller: {source}. Nothing was sent to it. If the cluster was made anew, make a new token there"
    )]
    Untrusted {
        address: ControllerAddress,
        source: io::Error,
    },
    /// A connection that only a machine of the cluster has.
    #[error(
        "over {address} there is no connection to steps. Log in to a machine of the cluster for that; here gsub submits a script, and gq --follow \
         shows its output"
    )]
    OnlyInside { address: ControllerAddress },
    /// The connection ended after the request was sent: it may or may not have been carried out.
    #[error(
        "the connection to the controller was lost before its answer came ({source}); what was asked may have been done"
    )]
    Lost { source: io::Error },
    /// The controller said no. `code` is one of [`ErrorBody`]'s.
    #[error("{text}")]
    Refused {
        status: u16,
        code: String,
        text: String,
        about: RefusalKind,
        subject: String,
    },
    /// The answer is not what the contract says; a bug, or another program's socket.
    #[error("the answer from {address} cannot be read: {why}")]
    Unreadable {
        address: ControllerAddress,
        why: String,
    },
}

impl ClientError {
    /// True where no controller could be asked (exit code 3 of the commands).
    pub fn is_unreachable(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Lost { .. } => true,
            Self::Refused { code, .. } => code == UNREACHABLE_CODE,
            Self::Untrusted { .. } | Self::OnlyInside { .. } | Self::Unreadable { .. } => false,
        }
    }

    /// The code of a refusal, or "" for everything else.
    pub fn code(&self) -> &str {
        match self {
            Self::Refused { code, .. } => code,
            _ => "",
        }
    }
}

/// What a forwarding `gpud` answers (503) while it has no controller itself: worth waiting for.
pub const UNREACHABLE_CODE: &str = "unreachable";

/// May a request be sent again when the connection was lost under it?
#[derive(Clone, Copy, PartialEq, Eq)]
enum Repeat {
    Safe,
    Never,
}

impl Client {
    /// A client of the socket; connects at the first request.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self::at(ControllerAddress::Socket(socket.into()))
    }

    /// A client of an address; connects at the first request.
    pub fn at(address: ControllerAddress) -> Self {
        Self {
            address,
            wait: Duration::from_secs(DEFAULT_WAIT_SECS),
            on_wait: Box::new(|_| ()),
            on_request: Box::new(|_, _| ()),
            connection: None,
        }
    }

    /// How long to wait for a controller that does not answer; zero gives up at once.
    pub fn wait_for(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// Called once for each wait that takes longer than a moment.
    pub fn on_wait(mut self, announce: impl Fn(&ControllerAddress) + 'static) -> Self {
        self.on_wait = Box::new(announce);
        self
    }

    /// Called with method and path before each request goes out.
    pub fn on_request(mut self, announce: impl Fn(&str, &str) + 'static) -> Self {
        self.on_request = Box::new(announce);
        self
    }

    /// What is asked.
    pub fn address(&self) -> &ControllerAddress {
        &self.address
    }

    /// The socket that is asked.
    ///
    /// # Errors
    /// A controller over the network is asked.
    pub fn socket(&self) -> Result<&Path, ClientError> {
        match &self.address {
            ControllerAddress::Socket(path) => Ok(path),
            ControllerAddress::Https(_) => Err(ClientError::OnlyInside {
                address: self.address.clone(),
            }),
        }
    }

    /// `GET`, the JSON answer as a value.
    ///
    /// # Errors
    /// As [`ClientError`]; so for all requests.
    pub fn get<T: DeserializeOwned>(&mut self, path: &str) -> Result<T, ClientError> {
        let text = self.get_bytes(path)?;
        self.parse(&text)
    }

    /// `GET`, the answer as text (scripts, metrics). Bytes that are not UTF-8 are replaced.
    pub fn get_text(&mut self, path: &str) -> Result<String, ClientError> {
        Ok(String::from_utf8_lossy(&self.get_bytes(path)?).into_owned())
    }

    /// `GET`, the answer to be read as it comes.
    pub fn open(&mut self, path: &str) -> Result<Body<'_>, ClientError> {
        self.send("GET", path, None, Repeat::Safe)
    }

    /// `GET` of a listing (`{"schema":1,"jobs":[...]}`), row by row as it comes.
    pub fn rows(&mut self, path: &str) -> Result<RowStream<'_>, ClientError> {
        let address = self.address.clone();
        Ok(RowStream::new(self.open(path)?, address))
    }

    /// `POST`, never sent twice.
    pub fn post<B: Serialize, T: DeserializeOwned>(
        &mut self,
        path: &str,
        body: &B,
    ) -> Result<T, ClientError> {
        self.post_json(path, body, Repeat::Never)
    }

    /// `POST` of something that may be sent again when the answer was lost: done twice it is as done once.
    pub fn post_repeatable<B: Serialize, T: DeserializeOwned>(
        &mut self,
        path: &str,
        body: &B,
    ) -> Result<T, ClientError> {
        self.post_json(path, body, Repeat::Safe)
    }

    fn post_json<B: Serialize, T: DeserializeOwned>(
        &mut self,
        path: &str,
        body: &B,
        repeat: Repeat,
    ) -> Result<T, ClientError> {
        let body = serde_json::to_vec(body).map_err(|error| ClientError::Unreadable {
            address: self.address.clone(),
            why: error.to_string(),
        })?;
        let answer = self.send("POST", path, Some(&body), repeat)?;
        let text =
            read_all(answer, MAX_ANSWER_BYTES).map_err(|source| ClientError::Lost { source })?;
        self.parse(&text)
    }

    fn get_bytes(&mut self, path: &str) -> Result<Vec<u8>, ClientError> {
        let answer = self.send("GET", path, None, Repeat::Safe)?;
        read_all(answer, MAX_ANSWER_BYTES).map_err(|source| ClientError::Lost { source })
    }

    fn parse<T: DeserializeOwned>(&self, text: &[u8]) -> Result<T, ClientError> {
        serde_json::from_slice(text).map_err(|error| ClientError::Unreadable {
            address: self.address.clone(),
            why: error.to_string(),
        })
    }

    /// Sends a request and reads the head of its answer; refusals become errors.
    fn send(
        &mut self,
        method: &str,
        path: &str,
        body: Option<&[u8]>,
        repeat: Repeat,
    ) -> Result<Body<'_>, ClientError> {
        let mut patience = Patience::new(self.wait);
        (self.on_request)(method, path);
        let head = loop {
            let mut connection = match self.connection.take().filter(Connection::is_usable) {
                Some(kept) => kept,
                None => self.connect(&mut patience)?,
            };
            match connection.exchange(method, path, body) {
                Ok(head) if head.is_success() => {
                    self.connection = Some(connection);
                    break head;
                }
                Ok(head) => {
                    let refusal = read_refusal(&mut connection, head);
                    self.connection = Some(connection);
                    if refusal.code() == UNREACHABLE_CODE
                        && repeat == Repeat::Safe
                        && patience.pause(&self.address, &self.on_wait)
                    {
                        continue;
                    }
                    return Err(refusal);
                }
                Err(error) if error.kind() == ErrorKind::InvalidData => {
                    return Err(ClientError::Unreadable {
                        address: self.address.clone(),
                        why: error.to_string(),
                    });
                }
                Err(error)
                    if repeat == Repeat::Safe
                        && is_hang_up(&error)
                        && patience.pause(&self.address, &self.on_wait) => {}
                Err(source) => return Err(ClientError::Lost { source }),
            }
        };
        let connection = self.connection.as_mut().expect("set before the loop ends");
        Ok(Body::new(connection, head))
    }

    /// Opens a connection of its own that becomes a stream: the socket, and what came of the stream already. Waits for no controller.
    ///
    /// # Errors
    /// As [`ClientError`].
    pub fn open_stream(&self, path: &str) -> Result<(ControllerStream, Vec<u8>), ClientError> {
        (self.on_request)("GET", path);
        let mut connection = self.connect(&mut Patience::new(Duration::ZERO))?;
        let lost = |source| ClientError::Lost { source };
        let head = connection.ask_upgrade(path, STREAM_UPGRADE).map_err(lost)?;
        if head.status != SWITCHING_PROTOCOLS {
            return Err(read_refusal(&mut connection, head));
        }
        connection.into_stream().map_err(lost)
    }

    fn connect(&self, patience: &mut Patience) -> Result<Connection, ClientError> {
        loop {
            let unreachable = |source| ClientError::Unreachable {
                address: self.address.clone(),
                source,
            };
            let error = match self.address.connect() {
                Ok(stream) => {
                    let headers = self.address.headers();
                    return Connection::new(stream, headers, READ_TIMEOUT).map_err(unreachable);
                }
                Err(source) if https::is_distrust(&source) => {
                    return Err(ClientError::Untrusted {
                        address: self.address.clone(),
                        source,
                    });
                }
                Err(error) => error,
            };
            if !self.address.may_come(&error) || !patience.pause(&self.address, &self.on_wait) {
                return Err(unreachable(error));
            }
        }
    }
}

/// How long is left to wait for a controller, over all attempts of one request.
struct Patience {
    start: Instant,
    wait: Duration,
    announced: bool,
}

impl Patience {
    fn new(wait: Duration) -> Self {
        Self {
            start: Instant::now(),
            wait,
            announced: false,
        }
    }

    /// Waits a moment before the next attempt; false when the time is up.
    fn pause(
        &mut self,
        address: &ControllerAddress,
        announce: &dyn Fn(&ControllerAddress),
    ) -> bool {
        let waited = self.start.elapsed();
        if waited >= self.wait {
            return false;
        }
        if waited >= ANNOUNCE_AFTER && !self.announced {
            self.announced = true;
            announce(address);
        }
        std::thread::sleep(RETRY_PAUSE.min(self.wait - waited));
        true
    }
}

fn is_hang_up(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::BrokenPipe
            | ErrorKind::ConnectionReset
            | ErrorKind::ConnectionAborted
            | ErrorKind::UnexpectedEof
    )
}

fn read_all(mut body: Body<'_>, max_bytes: u64) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    (&mut body).take(max_bytes).read_to_end(&mut text)?;
    if text.len() as u64 == max_bytes {
        return Err(io::Error::new(
            ErrorKind::FileTooLarge,
            format!("the answer is longer than {max_bytes} bytes"),
        ));
    }
    Ok(text)
}

fn read_refusal(connection: &mut Connection, head: Head) -> ClientError {
    let status = head.status;
    let text = read_all(Body::new(connection, head), MAX_ERROR_BYTES).unwrap_or_default();
    match serde_json::from_slice::<ErrorBody>(&text) {
        Ok(body) => ClientError::Refused {
            status,
            code: body.code,
            text: body.error,
            about: body.about,
            subject: body.subject,
        },
        // Not from our handlers: a proxy, or axum's own 404 and 405.
        Err(_) => {
            let text = String::from_utf8_lossy(&text)
                .trim()
                .chars()
                .take(300)
                .collect::<String>();
            let text = if text.is_empty() {
                format!("the controller answered with HTTP status {status}")
            } else {
                text
            };
            ClientError::Refused {
                status,
                code: String::new(),
                text,
                about: RefusalKind::Other,
                subject: String::new(),
            }
        }
    }
}

/// A path with its query, from a struct of filters; lists and empty values as the struct serializes them.
///
/// # Panics
/// When `filters` does not serialize to a flat object: a bug of the caller.
pub fn path_with_query(path: &str, filters: &impl Serialize) -> String {
    let value = serde_json::to_value(filters).expect("filters are plain data");
    let object = value.as_object().expect("filters are an object");
    let mut text = path.to_owned();
    for (at, (key, value)) in object.iter().enumerate() {
        text.push(if at == 0 { '?' } else { '&' });
        text.push_str(key);
        text.push('=');
        match value {
            serde_json::Value::String(value) => text.push_str(&escape(value)),
            other => text.push_str(&escape(&other.to_string())),
        }
    }
    text
}

/// One path segment or query value, percent-encoded where it must be (RFC 3986).
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b',' => {
                escaped.push(char::from(byte))
            }
            _ => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}

#[cfg(test)]
mod https_tests;
#[cfg(test)]
mod tests;
