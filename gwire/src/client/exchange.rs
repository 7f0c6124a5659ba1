//! One request and its answer on a kept-alive connection: HTTP/1.1 as far as the controller speaks it.
//!
//! Owns framing: the head with a bound, bodies by length, in chunks, or until the end. Never retries.

use crate::client::address::ControllerStream;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::io::{self, ErrorKind, Read, Write};
use std::time::Duration;

/// Largest head of an answer.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// Longest line that announces a chunk.
const MAX_CHUNK_LINE_BYTES: usize = 256;
const BUFFER_BYTES: usize = 64 << 10;

/// A connected socket with what has been read from it and not yet used.
pub(super) struct Connection {
    stream: ControllerStream,
    /// Lines in the head of each request.
    headers: String,
    read_timeout: Duration,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    /// The last answer was read to its end and the peer keeps the connection.
    usable: bool,
}

/// Status and framing of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub status: u16,
    framing: Framing,
    close: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    /// So many bytes are left.
    Length(u64),
    /// So many bytes are left of the present chunk; `first` before the first.
    Chunked {
        left: u64,
        first: bool,
    },
    UntilClose,
    Finished,
}

/// The body of an answer. Read it to its end, and the connection serves the next request.
pub struct Body<'a> {
    connection: &'a mut Connection,
    framing: Framing,
    close: bool,
}

impl Head {
    pub fn is_success(self) -> bool {
        (200..300).contains(&self.status)
    }
}

impl Connection {
    pub fn new(
        stream: ControllerStream,
        headers: String,
        read_timeout: Duration,
    ) -> io::Result<Self> {
        stream.set_read_timeout(Some(read_timeout))?;
        stream.set_write_timeout(Some(read_timeout))?;
        Ok(Self {
            stream,
            headers,
            read_timeout,
            buffer: vec![0; BUFFER_BYTES].into(),
            start: 0,
            end: 0,
            usable: true,
        })
    }

    pub fn is_usable(&self) -> bool {
        self.usable
    }

    /// Sends a request and reads the head of the answer.
    pub fn exchange(&mut self, method: &str, path: &str, body: Option<&[u8]>) -> io::Result<Head> {
        self.usable = false;
        let mut request = format!(
            "{method} {path} HTTP/1.1\r\n{}Accept: application/json\r\n",
            self.headers
        )
        .into_bytes();
        if let Some(body) = body {
            write!(
                request,
                "Content-Type: application/json\r\nContent-Length: {}\r\n",
                body.len()
            )?;
        }
        request.extend_from_slice(b"\r\n");
        request.extend_from_slice(body.unwrap_or_default());
        let sent = self.stream.write_all(&request);
        if let Err(error) = sent.and_then(|()| self.stream.flush()) {
            // A peer that refuses a large body answers and closes before it has read all of it.
            return self.read_head().map_err(|_| error);
        }
        self.await_answer()?;
        loop {
            let head = self.read_head()?;
            if head.status >= 200 {
                return Ok(head);
            }
        }
    }

    /// Asks for the connection to become a stream and reads the head of the answer: 101 where it does.
    pub fn ask_upgrade(&mut self, path: &str, protocol: &str) -> io::Result<Head> {
        self.usable = false;
        let request = format!(
            "GET {path} HTTP/1.1\r\n{}Connection: upgrade\r\nUpgrade: {protocol}\r\n\r\n",
            self.headers
        );
        self.stream.write_all(request.as_bytes())?;
        self.stream.flush()?;
        self.await_answer()?;
        self.read_head()
    }

    /// The socket without timeouts, and what was read of it and not used.
    pub fn into_stream(self) -> io::Result<(ControllerStream, Vec<u8>)> {
        self.stream.set_read_timeout(None)?;
        self.stream.set_write_timeout(None)?;
        Ok((self.stream, self.buffer[self.start..self.end].to_vec()))
    }

    /// Waits without reading: a thread that waits in read(2) is woken, at the controller's cost, as soon as that takes the
    /// request from the socket, and finds nothing.
    fn await_answer(&self) -> io::Result<()> {
        let mut fds = [PollFd::new(self.stream.fd(), PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(self.read_timeout).unwrap_or(PollTimeout::MAX);
        loop {
            match poll(&mut fds, timeout) {
                Err(nix::Error::EINTR) => {}
                Ok(0) => return Err(ErrorKind::WouldBlock.into()),
                done => return done.map(drop).map_err(io::Error::from),
            }
        }
    }

    fn read_head(&mut self) -> io::Result<Head> {
        let mut text = Vec::new();
        loop {
            let seen = text.len();
            text.extend_from_slice(&self.buffer[self.start..self.end]);
            let from = seen.saturating_sub(3);
            if let Some(at) = text[from..]
                .windows(4)
                .position(|window| window == b"\r\n\r\n")
            {
                let head_bytes = from + at + 4;
                self.start += head_bytes - seen;
                return parse_head(&text[..head_bytes]);
            }
            self.start = self.end;
            if text.len() > MAX_HEAD_BYTES {
                return Err(invalid("the head of the answer is too long"));
            }
            if self.fill()? == 0 {
                return Err(io::Error::new(
                    ErrorKind::UnexpectedEof,
                    "connection closed",
                ));
            }
        }
    }

    /// Reads more into the empty buffer; 0 at the end.
    fn fill(&mut self) -> io::Result<usize> {
        debug_assert_eq!(self.start, self.end, "nothing unread is overwritten");
        let count = loop {
            match self.stream.read(&mut self.buffer) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                other => break other?,
            }
        };
        (self.start, self.end) = (0, count);
        Ok(count)
    }

    /// Up to `limit` bytes of the body into `out`; an end before `limit` is an error.
    fn read_some(&mut self, out: &mut [u8], limit: u64) -> io::Result<usize> {
        if self.start == self.end && self.fill()? == 0 {
            return Ok(0);
        }
        let count = out
            .len()
            .min(self.end - self.start)
            .min(usize::try_from(limit).unwrap_or(usize::MAX));
        out[..count].copy_from_slice(&self.buffer[self.start..self.start + count]);
        self.start += count;
        Ok(count)
    }

    /// A line of chunked framing without its end.
    fn read_line(&mut self) -> io::Result<Vec<u8>> {
        let mut line = Vec::new();
        loop {
            if self.start == self.end && self.fill()? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            let byte = self.buffer[self.start];
            self.start += 1;
            match byte {
                b'\n' => {
                    if line.last() == Some(&b'\r') {
                        line.pop();
                    }
                    return Ok(line);
                }
                _ if line.len() >= MAX_CHUNK_LINE_BYTES => {
                    return Err(invalid("a chunk's head is too long"));
                }
                byte => line.push(byte),
            }
        }
    }
}

impl<'a> Body<'a> {
    pub(super) fn new(connection: &'a mut Connection, head: Head) -> Self {
        let mut body = Self {
            connection,
            framing: head.framing,
            close: head.close,
        };
        if body.framing == Framing::Length(0) {
            body.finish();
        }
        body
    }

    fn finish(&mut self) {
        self.framing = Framing::Finished;
        self.connection.usable = !self.close;
    }

    /// Reads the line before the next chunk; at the last chunk, the trailers too.
    fn next_chunk(&mut self, first: bool) -> io::Result<()> {
        if !first && !self.connection.read_line()?.is_empty() {
            return Err(invalid("a chunk is longer than it said"));
        }
        let line = self.connection.read_line()?;
        let digits = line
            .split(|&byte| byte == b';')
            .next()
            .unwrap_or_default()
            .trim_ascii();
        let digits = std::str::from_utf8(digits).unwrap_or_default();
        if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(invalid("a chunk's length is not a number"));
        }
        let left = u64::from_str_radix(digits, 16)
            .map_err(|_| invalid("a chunk's length is too large"))?;
        self.framing = Framing::Chunked { left, first: false };
        if left == 0 {
            for _ in 0..64 {
                if self.connection.read_line()?.is_empty() {
                    self.finish();
                    return Ok(());
                }
            }
            return Err(invalid("too many trailers"));
        }
        Ok(())
    }
}

impl Read for Body<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        if let Framing::Chunked { left: 0, first } = self.framing {
            self.next_chunk(first)?;
        }
        match self.framing {
            Framing::Finished => Ok(0),
            Framing::UntilClose => {
                let count = self.connection.read_some(out, u64::MAX)?;
                if count == 0 {
                    self.close = true;
                    self.finish();
                }
                Ok(count)
            }
            Framing::Length(left) | Framing::Chunked { left, .. } => {
                let count = self.connection.read_some(out, left)?;
                if count == 0 {
                    return Err(io::Error::new(
                        ErrorKind::UnexpectedEof,
                        "the answer ended too early",
                    ));
                }
                let left = left - count as u64;
                match &mut self.framing {
                    Framing::Chunked { left: of_chunk, .. } => *of_chunk = left,
                    _ if left == 0 => self.finish(),
                    framing => *framing = Framing::Length(left),
                }
                Ok(count)
            }
        }
    }
}

/// Status line and the three headers that matter.
fn parse_head(bytes: &[u8]) -> io::Result<Head> {
    let text =
        std::str::from_utf8(bytes).map_err(|_| invalid("the head of the answer is not text"))?;
    let mut lines = text.split("\r\n");
    let status_line = lines.next().unwrap_or_default();
    let status = status_line
        .strip_prefix("HTTP/1.")
        .and_then(|rest| rest.get(2..5))
        .and_then(|digits| digits.parse::<u16>().ok())
        .filter(|status| (100..600).contains(status))
        .ok_or_else(|| invalid("it does not speak HTTP/1.1"))?;
    let mut framing = Framing::UntilClose;
    let mut close = status_line.starts_with("HTTP/1.0");
    for line in lines {
        let Some((name, value)) = line.split_once(':') else {
            continue;
        };
        let value = value.trim();
        if name.eq_ignore_ascii_case("content-length") {
            let bytes = value
                .parse::<u64>()
                .map_err(|_| invalid("its content length is not a number"))?;
            framing = Framing::Length(bytes);
        } else if name.eq_ignore_ascii_case("transfer-encoding")
            && value.eq_ignore_ascii_case("chunked")
        {
            framing = Framing::Chunked {
                left: 0,
                first: true,
            };
        } else if name.eq_ignore_ascii_case("connection") {
            close |= value.eq_ignore_ascii_case("close");
        }
    }
    if matches!(status, 100..=199 | 204 | 304) {
        framing = Framing::Length(0);
    }
    Ok(Head {
        status,
        framing,
        close,
    })
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::net::UnixStream;

    /// All of an answer's body, from a peer that sends these bytes and closes.
    fn answer(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let (ours, mut theirs) = UnixStream::pair()?;
        let bytes = bytes.to_vec();
        let peer = std::thread::spawn(move || {
            let _ = theirs.write_all(&bytes);
        });
        let mut connection = Connection::new(
            ControllerStream::Unix(ours),
            String::new(),
            Duration::from_secs(20),
        )?;
        let mut body = Vec::new();
        let read = connection
            .read_head()
            .and_then(|head| Body::new(&mut connection, head).read_to_end(&mut body));
        peer.join().expect("the peer only writes");
        read.map(|_| body)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn any_answer_is_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = answer(&bytes);
            let _ = answer(&[b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".as_slice(), &bytes].concat());
        }

        #[test]
        fn chunks_are_joined(chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..80), 0..8)) {
            let mut text = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
            for chunk in &chunks {
                text.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
                text.extend_from_slice(chunk);
                text.extend_from_slice(b"\r\n");
            }
            text.extend_from_slice(b"0\r\n\r\n");
            prop_assert_eq!(answer(&text).unwrap(), chunks.concat());
        }
    }

    #[test]
    fn a_head_without_end_is_bounded() {
        let endless = [
            b"HTTP/1.1 200 OK\r\n".to_vec(),
            vec![b'x'; 2 * MAX_HEAD_BYTES],
        ]
        .concat();
        assert_eq!(answer(&endless).unwrap_err().kind(), ErrorKind::InvalidData);
    }

    #[test]
    fn heads_are_read_and_bad_ones_refused() {
        let head = parse_head(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nConnection: close\r\n\r\n")
            .unwrap();
        assert_eq!(
            head,
            Head {
                status: 200,
                framing: Framing::Length(5),
                close: true
            }
        );
        let head =
            parse_head(b"HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n").unwrap();
        assert_eq!((head.status, head.is_success()), (404, false));
        for bad in [
            &b"SSH-2.0-OpenSSH\r\n\r\n"[..],
            b"HTTP/1.1 9\r\n\r\n",
            b"HTTP/1.1 200\r\ncontent-length: -1\r\n\r\n",
            b"\xff\r\n\r\n",
        ] {
            assert_eq!(
                parse_head(bad).unwrap_err().kind(),
                ErrorKind::InvalidData,
                "{bad:?}"
            );
        }
    }
}
