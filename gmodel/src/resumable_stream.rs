//! A stream of bytes in both directions that outlives its connections: each side keeps what the other has not acknowledged, and
//! sends it again on the next connection. No byte is lost, doubled or out of order. Pure: connections are the caller's.
//!
//! ```text
//! frame:  length u32 | kind u8 | body         numbers big-endian; the length counts kind and body
//! H  session 16 bytes, received u64           the first of each connection, from the client; the supervisor answers with the same
//!                                             session where the stream goes on, with [`NEW_SESSION`] where it begins
//! G                                           another client has taken the stream; the last of a connection
//! D  bytes                                    more of the stream
//! A  received u64                             so many bytes of the stream have arrived in all
//! ```

use std::collections::VecDeque;

/// Bytes that a side keeps until the other acknowledges them. More is not taken: its writer waits.
pub const WINDOW_BYTES: usize = 256 << 10;
/// The most bytes of one `D` frame.
const PIECE_BYTES: usize = 16 << 10;
/// A side acknowledges after so many bytes, so that a busy stream never stands still for want of room.
const ACK_BYTES: u64 = 32 << 10;
/// The longest frame, without its length.
const MAX_FRAME_BYTES: usize = 1 + PIECE_BYTES;

/// Names one client of a stream. A connection with another name is of another client.
pub type SessionId = [u8; 16];

/// In the supervisor's hello: it knows nothing of the client's session, and the stream begins anew.
pub const NEW_SESSION: SessionId = [0; 16];

/// The first frame of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamHello {
    pub session: SessionId,
    /// Bytes of the stream that the sender of the hello has.
    pub received: u64,
}

/// Bytes that are no stream: the connection cannot be read on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadStream {
    #[error("a stream frame of {length} bytes and kind {kind}")]
    Frame { length: usize, kind: u8 },
    #[error("another client has taken the stream")]
    Taken,
    #[error("the other side has {received} bytes of a stream of which {from} to {to} are kept")]
    Position { received: u64, from: u64, to: u64 },
}

impl StreamHello {
    pub fn frame(&self) -> Vec<u8> {
        let mut body = self.session.to_vec();
        body.extend(self.received.to_be_bytes());
        frame(b'H', &body)
    }

    /// The hello at the begin of `buffer` and its length; `None` while it is not whole.
    ///
    /// # Errors
    /// Another frame stands there.
    pub fn read(buffer: &[u8]) -> Result<Option<(Self, usize)>, BadStream> {
        let Some((kind, body, used)) = split_frame(buffer)? else {
            return Ok(None);
        };
        let bad = BadStream::Frame {
            length: body.len() + 1,
            kind,
        };
        let (session, received) = body.split_first_chunk::<16>().ok_or(bad.clone())?;
        match (kind, <[u8; 8]>::try_from(received)) {
            (b'H', Ok(received)) => Ok(Some((
                Self {
                    session: *session,
                    received: u64::from_be_bytes(received),
                },
                used,
            ))),
            _ => Err(bad),
        }
    }
}

/// Tells a client that another one has taken the stream.
pub fn taken_frame() -> Vec<u8> {
    frame(b'G', &[])
}

/// One side of the stream.
#[derive(Debug, Default)]
pub struct ResumableStream {
    /// Bytes that the other side has not acknowledged, from this position of the stream on.
    kept: VecDeque<u8>,
    kept_from: u64,
    /// How many of them were sent on this connection.
    sent: usize,
    received: u64,
    acknowledged: u64,
    /// Part of a frame.
    incoming: Vec<u8>,
}

impl ResumableStream {
    /// Bytes of the stream that have arrived.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// How many bytes [`ResumableStream::push`] takes now within the window.
    pub fn room(&self) -> usize {
        WINDOW_BYTES.saturating_sub(self.kept.len())
    }

    /// The other side has all.
    pub fn is_acknowledged(&self) -> bool {
        self.kept.is_empty()
    }

    /// More to send. Beyond the window it is taken too: the caller looks at [`ResumableStream::room`] first.
    pub fn push(&mut self, bytes: &[u8]) {
        self.kept.extend(bytes);
    }

    /// A new connection, whose other side has `received` bytes: what it lacks is sent again.
    ///
    /// # Errors
    /// The other side has more than was sent, or lacks what is no longer kept.
    pub fn resume(&mut self, received: u64) -> Result<(), BadStream> {
        self.forget(received)?;
        self.sent = 0;
        self.incoming.clear();
        self.acknowledged = self.received;
        Ok(())
    }

    /// Frames to write next, of about `most` bytes; empty: nothing is to be sent.
    pub fn take_frames(&mut self, most: usize) -> Vec<u8> {
        let mut frames = Vec::new();
        if self.received - self.acknowledged >= ACK_BYTES {
            frames.extend(self.acknowledgement());
        }
        while self.sent < self.kept.len() && frames.len() < most {
            let end = self.kept.len().min(self.sent + PIECE_BYTES);
            let (front, back) = self.kept.as_slices();
            let piece = match front.get(self.sent..) {
                Some(front) if !front.is_empty() => &front[..front.len().min(end - self.sent)],
                _ => &back[self.sent - front.len()..end - front.len()],
            };
            frames.extend(frame(b'D', piece));
            self.sent += piece.len();
        }
        frames
    }

    /// Tells the other side how much has arrived; empty where it knows.
    pub fn take_acknowledgement(&mut self) -> Vec<u8> {
        match self.received > self.acknowledged {
            true => self.acknowledgement(),
            false => Vec::new(),
        }
    }

    /// There is something to write.
    pub fn has_frames(&self) -> bool {
        self.sent < self.kept.len() || self.received - self.acknowledged >= ACK_BYTES
    }

    /// What came on the connection; the bytes of the stream in it.
    ///
    /// # Errors
    /// As [`BadStream`].
    pub fn receive(&mut self, bytes: &[u8]) -> Result<Vec<u8>, BadStream> {
        self.incoming.extend_from_slice(bytes);
        let incoming = std::mem::take(&mut self.incoming);
        let (mut arrived, mut at) = (Vec::new(), 0);
        while let Some((kind, body, used)) = split_frame(&incoming[at..])? {
            match (kind, <[u8; 8]>::try_from(body)) {
                (b'D', _) => arrived.extend_from_slice(body),
                (b'G', _) => return Err(BadStream::Taken),
                (b'A', Ok(received)) => self.forget(u64::from_be_bytes(received))?,
                _ => {
                    return Err(BadStream::Frame {
                        length: body.len() + 1,
                        kind,
                    });
                }
            }
            at += used;
        }
        self.incoming = incoming[at..].to_vec();
        self.received += arrived.len() as u64;
        Ok(arrived)
    }

    fn acknowledgement(&mut self) -> Vec<u8> {
        self.acknowledged = self.received;
        frame(b'A', &self.received.to_be_bytes())
    }

    fn forget(&mut self, received: u64) -> Result<(), BadStream> {
        let to = self.kept_from + self.kept.len() as u64;
        if received < self.kept_from || received > to {
            return Err(BadStream::Position {
                received,
                from: self.kept_from,
                to,
            });
        }
        let count = (received - self.kept_from) as usize;
        self.kept.drain(..count);
        self.kept_from = received;
        self.sent = self.sent.saturating_sub(count);
        Ok(())
    }
}

fn frame(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = (1 + body.len() as u32).to_be_bytes().to_vec();
    bytes.push(kind);
    bytes.extend_from_slice(body);
    bytes
}

/// Kind, body, and length with the header of the first frame; `None` while it is not whole.
fn split_frame(buffer: &[u8]) -> Result<Option<(u8, &[u8], usize)>, BadStream> {
    let Some((length, rest)) = buffer.split_first_chunk::<4>() else {
        return Ok(None);
    };
    let length = u32::from_be_bytes(*length) as usize;
    let kind = rest.first().copied().unwrap_or(0);
    if length == 0 || length > MAX_FRAME_BYTES {
        return Err(BadStream::Frame { length, kind });
    }
    Ok(rest.get(1..length).map(|body| (kind, body, 4 + length)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_hello_reads_back_and_another_frame_is_none() {
        let hello = StreamHello {
            session: [7; 16],
            received: 1 << 40,
        };
        let bytes = hello.frame();
        for end in 0..bytes.len() {
            assert_eq!(StreamHello::read(&bytes[..end]), Ok(None));
        }
        assert_eq!(StreamHello::read(&bytes), Ok(Some((hello, bytes.len()))));
        assert!(StreamHello::read(&frame(b'D', b"text")).is_err());
        assert!(StreamHello::read(b"GET / HTTP/1.1").is_err());
    }

    #[test]
    fn a_position_that_is_not_kept_is_refused() {
        let mut side = ResumableStream::default();
        side.push(b"abcdef");
        side.resume(4).unwrap();
        assert!(side.resume(3).is_err(), "forgotten");
        assert!(side.resume(7).is_err(), "never sent");
        assert_eq!(side.take_frames(100), frame(b'D', b"ef"));
    }

    #[test]
    fn a_side_that_is_not_acknowledged_runs_out_of_room_and_an_acknowledgement_gives_it_back() {
        let (mut near, mut far) = (ResumableStream::default(), ResumableStream::default());
        near.push(&vec![1; WINDOW_BYTES]);
        assert_eq!(near.room(), 0);
        let arrived = far.receive(&near.take_frames(usize::MAX)).unwrap();
        assert_eq!(arrived.len(), WINDOW_BYTES);
        near.receive(&far.take_frames(100)).unwrap();
        assert!(near.is_acknowledged() && near.room() == WINDOW_BYTES);
        assert_eq!(far.take_acknowledgement(), Vec::<u8>::new(), "told already");
    }

    proptest! {
        /// Connections are cut at any byte of either direction.
        #[test]
        fn each_byte_arrives_once_and_in_order(
            text in proptest::collection::vec(any::<u8>(), 0..200_000),
            cuts in proptest::collection::vec((0usize..60_000, 0usize..40), 0..20),
        ) {
            let (mut near, mut far) = (ResumableStream::default(), ResumableStream::default());
            let (mut got, mut given) = (Vec::new(), 0);
            let mut cuts = cuts.into_iter();
            loop {
                let (there, back) = cuts.next().unwrap_or((usize::MAX, usize::MAX));
                let received = far.received();
                near.resume(received).unwrap();
                far.resume(near.received()).unwrap();
                let more = (text.len() - given).min(near.room());
                near.push(&text[given..given + more]);
                given += more;
                let frames = near.take_frames(usize::MAX);
                got.extend(far.receive(&frames[..frames.len().min(there)]).unwrap());
                let answer = [far.take_frames(usize::MAX), far.take_acknowledgement()].concat();
                near.receive(&answer[..answer.len().min(back)]).unwrap();
                if there == usize::MAX && given == text.len() && near.is_acknowledged() {
                    break;
                }
            }
            prop_assert!(got == text);
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = ResumableStream::default().receive(&bytes);
            let _ = StreamHello::read(&bytes);
        }
    }
}
