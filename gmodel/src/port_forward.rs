//! Connections of forwarded ports over one stream of bytes between grun and the job, each with a window of its own: a connection that
//! is not read holds up no other. Pure: sockets are the caller's.
//!
//! ```text
//! frame:  length u32 | kind u8 | connection u32 | body       numbers big-endian; the length counts all after it
//! O  HOST:PORT        a connection came: dial (grun to the job)
//! D  bytes            of the connection
//! A  bytes u32        so many were handed on: as many more may be sent
//! E                   no more bytes follow in this direction
//! X  text             the connection is over; the text says why it could not be made
//! ```

use std::collections::{BTreeMap, VecDeque};

/// Bytes of a connection that may be on their way in one direction.
pub const WINDOW_BYTES: usize = 256 << 10;
/// Connections at once.
pub const MAX_CONNECTIONS: usize = 128;
/// The most bytes of one `D` frame.
pub const PIECE_BYTES: usize = 32 << 10;
const MAX_FRAME_BYTES: usize = 5 + PIECE_BYTES;
/// No more is read from connections while so much waits for the stream.
const MAX_WAITING_BYTES: usize = 256 << 10;

/// One end of the stream.
#[derive(Debug, Default)]
pub struct PortForward {
    connections: BTreeMap<u32, ForwardConnection>,
    last: u32,
    incoming: Vec<u8>,
    outgoing: VecDeque<u8>,
}

#[derive(Debug)]
struct ForwardConnection {
    /// Bytes that may be sent.
    credit: usize,
    /// Arrived, and not yet handed on.
    arrived: VecDeque<u8>,
    /// The other side sends no more; this side does not.
    has_ended: bool,
    is_ended: bool,
}

impl Default for ForwardConnection {
    fn default() -> Self {
        Self {
            credit: WINDOW_BYTES,
            arrived: VecDeque::new(),
            has_ended: false,
            is_ended: false,
        }
    }
}

/// What the other side said, besides bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ForwardEvent {
    Opened { connection: u32, target: String },
    Over { connection: u32, text: String },
}

/// What comes is no forward: the stream cannot be read on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadForward {
    #[error("a frame of {length} bytes and kind {kind}")]
    Frame { length: usize, kind: u8 },
    #[error("connection {0} has more bytes on their way than its window")]
    Window(u32),
    #[error("more than {MAX_CONNECTIONS} connections")]
    Connections,
}

impl PortForward {
    /// A new connection that the other side is to dial; `None`: there are as many as may be.
    pub fn open(&mut self, target: &str) -> Option<u32> {
        if self.connections.len() >= MAX_CONNECTIONS {
            return None;
        }
        self.last = self.last.wrapping_add(1);
        self.connections
            .insert(self.last, ForwardConnection::default());
        self.push(b'O', self.last, target.as_bytes());
        Some(self.last)
    }

    /// How much may be read from a connection now.
    pub fn room(&self, connection: u32) -> usize {
        match self.connections.get(&connection) {
            Some(one) if !one.is_ended && self.outgoing.len() < MAX_WAITING_BYTES => {
                one.credit.min(PIECE_BYTES)
            }
            _ => 0,
        }
    }

    /// Bytes that were read from a connection, at most [`PortForward::room`]; none are its end.
    pub fn send(&mut self, connection: u32, bytes: &[u8]) {
        let Some(one) = self.connections.get_mut(&connection) else {
            return;
        };
        match bytes.is_empty() {
            true if one.is_ended => {}
            true => {
                one.is_ended = true;
                self.push(b'E', connection, &[]);
            }
            false => {
                one.credit = one.credit.saturating_sub(bytes.len());
                self.push(b'D', connection, bytes);
            }
        }
    }

    /// The connection is over here, in both directions; it may have failed by the text.
    pub fn close(&mut self, connection: u32, text: &str) {
        if self.connections.remove(&connection).is_some() {
            let end = text.floor_char_boundary(1024);
            self.push(b'X', connection, &text.as_bytes()[..end]);
        }
    }

    /// What arrived for a connection.
    pub fn arrived(&self, connection: u32) -> &[u8] {
        let one = self.connections.get(&connection);
        one.map_or(&[], |one| one.arrived.as_slices().0)
    }

    /// So much of that was handed on.
    pub fn handed_on(&mut self, connection: u32, count: usize) {
        let Some(one) = self.connections.get_mut(&connection) else {
            return;
        };
        one.arrived.drain(..count);
        self.push(b'A', connection, &(count as u32).to_be_bytes());
    }

    /// Everything that the other side sends was handed on.
    pub fn is_at_end(&self, connection: u32) -> bool {
        let one = self.connections.get(&connection);
        one.is_none_or(|one| one.has_ended && one.arrived.is_empty())
    }

    /// Both sides have sent all, and this one has handed it on: the connection is forgotten. The other side sees that by itself.
    pub fn is_over(&mut self, connection: u32) -> bool {
        let one = self.connections.get(&connection);
        let is_over = self.is_at_end(connection) && one.is_none_or(|one| one.is_ended);
        if is_over {
            self.connections.remove(&connection);
        }
        is_over
    }

    /// What the stream is to carry next.
    pub fn outgoing(&self) -> &[u8] {
        self.outgoing.as_slices().0
    }

    /// So much of that was written.
    pub fn written(&mut self, count: usize) {
        self.outgoing.drain(..count);
    }

    /// What came on the stream.
    ///
    /// # Errors
    /// As [`BadForward`].
    pub fn receive(&mut self, bytes: &[u8]) -> Result<Vec<ForwardEvent>, BadForward> {
        self.incoming.extend_from_slice(bytes);
        let incoming = std::mem::take(&mut self.incoming);
        let (mut events, mut at) = (Vec::new(), 0);
        while let Some((length, rest)) = incoming[at..].split_first_chunk::<4>() {
            let length = u32::from_be_bytes(*length) as usize;
            let bad = BadForward::Frame {
                length,
                kind: rest.first().copied().unwrap_or(0),
            };
            if !(5..=MAX_FRAME_BYTES).contains(&length) {
                return Err(bad);
            }
            let Some(frame) = rest.get(..length) else {
                break;
            };
            let (head, body) = frame.split_first_chunk::<5>().ok_or(bad.clone())?;
            let [kind, number @ ..] = *head;
            events.extend(
                self.take(kind, u32::from_be_bytes(number), body)
                    .map_err(|e| e.unwrap_or(bad))?,
            );
            at += 4 + length;
        }
        self.incoming = incoming[at..].to_vec();
        Ok(events)
    }

    /// `Err(None)`: the frame has no known form. Frames of a connection that is over here are passed over.
    fn take(
        &mut self,
        kind: u8,
        connection: u32,
        body: &[u8],
    ) -> Result<Option<ForwardEvent>, Option<BadForward>> {
        let text = || String::from_utf8_lossy(body).into_owned();
        if kind == b'O' {
            if self.connections.len() >= MAX_CONNECTIONS {
                return Err(Some(BadForward::Connections));
            }
            self.connections
                .insert(connection, ForwardConnection::default());
            let target = text();
            return Ok(Some(ForwardEvent::Opened { connection, target }));
        }
        let Some(one) = self.connections.get_mut(&connection) else {
            return match kind {
                b'D' | b'A' | b'E' | b'X' => Ok(None),
                _ => Err(None),
            };
        };
        match (kind, <[u8; 4]>::try_from(body)) {
            (b'D', _) if one.arrived.len() + body.len() > WINDOW_BYTES => {
                Err(Some(BadForward::Window(connection)))
            }
            (b'D', _) => {
                one.arrived.extend(body);
                Ok(None)
            }
            (b'A', Ok(count)) => {
                let credit = one
                    .credit
                    .saturating_add(u32::from_be_bytes(count) as usize);
                one.credit = credit.min(WINDOW_BYTES);
                Ok(None)
            }
            (b'E', _) => {
                one.has_ended = true;
                Ok(None)
            }
            (b'X', _) => {
                self.connections.remove(&connection);
                let text = text();
                Ok(Some(ForwardEvent::Over { connection, text }))
            }
            _ => Err(None),
        }
    }

    fn push(&mut self, kind: u8, connection: u32, body: &[u8]) {
        self.outgoing.extend((5 + body.len() as u32).to_be_bytes());
        self.outgoing.push_back(kind);
        self.outgoing.extend(connection.to_be_bytes());
        self.outgoing.extend(body);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn carry(from: &mut PortForward, to: &mut PortForward) -> Vec<ForwardEvent> {
        let mut events = Vec::new();
        while !from.outgoing().is_empty() {
            let bytes = from.outgoing().to_vec();
            from.written(bytes.len());
            events.extend(to.receive(&bytes).unwrap());
        }
        events
    }

    #[test]
    fn a_connection_that_is_not_read_takes_its_window_and_no_more_and_holds_up_no_other() {
        let (mut here, mut job) = (PortForward::default(), PortForward::default());
        let [still, quick] = [here.open("h:1").unwrap(), here.open("h:2").unwrap()];
        let opened = carry(&mut here, &mut job);
        assert_eq!(opened.len(), 2);
        let mut sent = 0;
        while here.room(still) > 0 {
            let count = here.room(still);
            here.send(still, &vec![7; count]);
            sent += count;
            carry(&mut here, &mut job);
        }
        assert_eq!(sent, WINDOW_BYTES);
        here.send(quick, b"text");
        here.send(quick, &[]);
        carry(&mut here, &mut job);
        assert_eq!(job.arrived(quick), b"text");
        assert!(!job.is_at_end(quick), "not handed on yet");
        job.handed_on(quick, 4);
        assert!(job.is_at_end(quick) && !job.is_over(quick));
        job.send(quick, b"answer");
        job.send(quick, &[]);
        assert!(job.is_over(quick));
        carry(&mut job, &mut here);
        assert_eq!(
            here.arrived(quick),
            b"answer",
            "on its way when the job was done"
        );
        job.handed_on(still, 1000);
        carry(&mut job, &mut here);
        assert_eq!(here.room(still), 1000);
        job.close(still, "refused");
        let over = ForwardEvent::Over {
            connection: still,
            text: "refused".into(),
        };
        assert_eq!(carry(&mut job, &mut here), [over]);
        assert_eq!(here.room(still), 0);
    }

    #[test]
    fn more_than_a_window_or_a_bound_is_refused() {
        let (mut here, mut job) = (PortForward::default(), PortForward::default());
        let one = here.open("h:1").unwrap();
        for _ in 0..=WINDOW_BYTES / PIECE_BYTES {
            here.push(b'D', one, &vec![0; PIECE_BYTES]);
        }
        let bytes = here.outgoing().to_vec();
        assert_eq!(job.receive(&bytes), Err(BadForward::Window(one)));
        let mut here = PortForward::default();
        (0..MAX_CONNECTIONS).for_each(|_| assert!(here.open("h:1").is_some()));
        assert_eq!(here.open("h:1"), None);
        assert!(PortForward::default().receive(b"GET / HTTP/1.1").is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_refused_or_waited_for(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = PortForward::default().receive(&bytes);
        }
    }
}
