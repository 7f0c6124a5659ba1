//! Where a controller is asked: a unix socket, or an https address with a token.

use crate::client::https::{HttpsTrust, TlsStream};
use gmodel::user_token::TokenText;
use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// For one address of a name.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Where a controller is asked.
#[derive(Clone, Debug)]
pub enum ControllerAddress {
    Socket(PathBuf),
    Https(HttpsAddress),
}

/// A controller over the network, and what is shown to it.
#[derive(Clone, Debug)]
pub struct HttpsAddress {
    pub place: HttpsPlace,
    pub token: TokenText,
    pub trust: HttpsTrust,
}

/// `https://HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpsPlace {
    /// A name, or an address without brackets.
    pub host: String,
    pub port: u16,
}

impl HttpsPlace {
    /// Reads `https://HOST:PORT`.
    ///
    /// # Errors
    /// What is missing, or what is too much.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("{text:?} is not https://HOST:PORT, as https://gpuctl.example.org:7117");
        let rest = text.strip_prefix("https://").ok_or_else(wrong)?;
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (host, port) = rest.rsplit_once(':').ok_or_else(wrong)?;
        let bare = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        // Without brackets a colon is part of an address of IPv6.
        let is_host = |host: &str| {
            let odd = |c: char| c.is_whitespace() || c.is_control() || "/@?#[]".contains(c);
            !host.is_empty() && !host.contains(odd)
        };
        let host = bare.unwrap_or(host);
        if !is_host(host) || (bare.is_none() && host.contains(':')) {
            return Err(wrong());
        }
        Ok(Self {
            host: host.to_owned(),
            port: port
                .parse()
                .ok()
                .filter(|port| *port > 0)
                .ok_or_else(wrong)?,
        })
    }

    /// As `Host` has it.
    fn authority(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

impl fmt::Display for ControllerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(path) => path.display().fmt(f),
            Self::Https(https) => write!(f, "https://{}", https.place.authority()),
        }
    }
}

impl ControllerAddress {
    /// What to look at without an answer.
    pub(super) fn advice(&self) -> &'static str {
        match self {
            Self::Socket(_) => {
                "Is gpupool-gpuctld (or, on a login node, gpupool-gpud) running? GPUPOOL_CONFIG names another configuration"
            }
            Self::Https(_) => {
                "Is `controller` in gpupool.toml right, and does the way there let its port through?"
            }
        }
    }

    /// Lines of the head of each request.
    pub(super) fn headers(&self) -> String {
        match self {
            Self::Socket(_) => "Host: gpuctld\r\n".to_owned(),
            Self::Https(https) => format!(
                "Host: {}\r\nAuthorization: Bearer {}\r\n",
                https.place.authority(),
                https.token.reveal()
            ),
        }
    }

    /// Connects once.
    pub(super) fn connect(&self) -> io::Result<ControllerStream> {
        match self {
            Self::Socket(path) => UnixStream::connect(path).map(ControllerStream::Unix),
            Self::Https(https) => {
                let tcp = connect_tcp(&https.place)?;
                https.trust.handshake(tcp, &https.place.host)
            }
        }
    }

    /// Whether a controller that starts again may answer where connecting failed so.
    pub(super) fn may_come(&self, error: &io::Error) -> bool {
        match (self, error.kind()) {
            (_, ErrorKind::ConnectionRefused) => true,
            // A controller that restarts leaves a dead socket, or none in its directory; a machine without gpupool has not even
            // the directory.
            (Self::Socket(_), ErrorKind::WouldBlock) => true,
            (Self::Socket(path), ErrorKind::NotFound) => path.parent().is_some_and(Path::is_dir),
            (Self::Https(_), kind) => matches!(
                kind,
                ErrorKind::ConnectionReset
                    | ErrorKind::ConnectionAborted
                    | ErrorKind::UnexpectedEof
            ),
            _ => false,
        }
    }
}

fn connect_tcp(place: &HttpsPlace) -> io::Result<TcpStream> {
    let mut last = io::Error::new(ErrorKind::NotFound, "the name has no address");
    for address in (&*place.host, place.port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// A connection to a controller, by either way.
pub enum ControllerStream {
    Unix(UnixStream),
    Tls(Box<TlsStream>),
}

impl ControllerStream {
    /// For reading; `None`: no limit. A read that takes longer fails with `WouldBlock`.
    ///
    /// # Errors
    /// The socket's.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Unix(stream) => stream.set_read_timeout(timeout),
            Self::Tls(stream) => stream.sock.set_read_timeout(timeout),
        }
    }

    pub(super) fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Unix(stream) => stream.set_write_timeout(timeout),
            Self::Tls(stream) => stream.sock.set_write_timeout(timeout),
        }
    }

    /// The socket, to wait for.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(stream) => stream.as_fd(),
            Self::Tls(stream) => stream.sock.as_fd(),
        }
    }
}

impl Read for ControllerStream {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.read(out),
            Self::Tls(stream) => stream.read(out),
        }
    }
}

impl Write for ControllerStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.write(bytes),
            Self::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Unix(stream) => stream.flush(),
            Self::Tls(stream) => stream.flush(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_its_port_and_nothing_behind_it() {
        let read = |text: &str| HttpsPlace::parse(text).map(|place| (place.host, place.port));
        assert_eq!(
            read("https://gpu.example.org:7117"),
            Ok(("gpu.example.org".into(), 7117))
        );
        assert_eq!(
            read("https://[2001:db8::1]:443/"),
            Ok(("2001:db8::1".into(), 443))
        );
        for bad in [
            "http://a:1",
            "https://a",
            "https://:1",
            "https://a:0",
            "https://a:99999",
            "https://a:1/x",
            "https://u@a:1",
            "https://2001:db8::1:443",
            "a:1",
            "https://a b:1",
            "",
        ] {
            assert!(read(bad).is_err(), "{bad:?}");
        }
    }
}
