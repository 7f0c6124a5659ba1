//! A step's stream to a client that comes by gpud: it outlives its connections (`gmodel/src/resumable_stream.rs`). Knows nothing of
//! tasks.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use gmodel::resumable_stream::{NEW_SESSION, ResumableStream, SessionId, StreamHello, taken_frame};
use gmodel::supervise::{StepInput, StepOutput};
use nix::poll::PollFlags;

use crate::life::BootMillis;

/// Written to a connection at a time.
const WRITE_BYTES: usize = 64 << 10;

pub struct AttachedLink {
    stream: ResumableStream,
    session: SessionId,
    connection: Option<ClientConnection>,
    /// The client has to be back by then.
    until: Option<BootMillis>,
    patience_secs: u32,
    /// Input of the client, up to a part of a frame.
    incoming: Vec<u8>,
    is_fresh: bool,
}

struct ClientConnection {
    socket: UnixStream,
    /// What came before the hello was whole; `None`: the hello is answered.
    greeting: Option<Vec<u8>>,
    outgoing: Vec<u8>,
}

impl AttachedLink {
    /// The first client has until then to come, each later one `patience_secs`.
    pub fn new(until: BootMillis, patience_secs: u32) -> Self {
        Self {
            stream: ResumableStream::default(),
            session: NEW_SESSION,
            connection: None,
            until: Some(until),
            patience_secs,
            incoming: Vec::new(),
            is_fresh: false,
        }
    }

    /// A client's connection, with what was read from it.
    ///
    /// # Errors
    /// The socket's.
    pub fn attach(&mut self, socket: UnixStream, read: Vec<u8>) -> io::Result<()> {
        socket.set_nonblocking(true)?;
        let before = self.connection.replace(ClientConnection {
            socket,
            greeting: Some(read),
            outgoing: Vec::new(),
        });
        if let Some(mut before) = before {
            // It may be the same client, whose connection broke elsewhere: then nothing reads this.
            let _ = before.socket.write(&taken_frame());
        }
        Ok(())
    }

    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.connection.as_ref().map(|c| c.socket.as_fd())
    }

    pub fn wants(&self) -> PollFlags {
        let writes = |c: &ClientConnection| {
            !c.outgoing.is_empty() || c.greeting.is_none() && self.stream.has_frames()
        };
        match self.connection.as_ref().is_some_and(writes) {
            true => PollFlags::POLLIN | PollFlags::POLLOUT,
            false => PollFlags::POLLIN,
        }
    }

    /// A client has come: the tasks may start.
    pub fn is_connected(&self) -> bool {
        self.session != NEW_SESSION
    }

    pub fn has_client(&self) -> bool {
        self.until.is_none()
    }

    pub fn has_room(&self) -> bool {
        self.stream.room() > 0
    }

    /// The client has all.
    pub fn is_flushed(&self) -> bool {
        self.stream.is_acknowledged()
    }

    pub fn deadline(&self) -> Option<BootMillis> {
        self.until
    }

    pub fn send(&mut self, output: &StepOutput) {
        self.stream.push(&output.frame());
    }

    /// A client has come that knows nothing of what was sent before.
    pub fn take_fresh(&mut self) -> bool {
        std::mem::take(&mut self.is_fresh)
    }

    /// What is kept for the client is dropped: if it comes back, it begins anew.
    pub fn forget_session(&mut self) {
        self.stream = ResumableStream::default();
        self.session = [0xff; 16];
    }

    /// Reads what came and writes what waits. An error: the client did not come, or not come back, in time.
    pub fn service(&mut self, now: BootMillis) -> io::Result<Vec<StepInput>> {
        let mut inputs = Vec::new();
        if self.connection.is_some() {
            match self.exchange() {
                Ok(arrived) => {
                    self.incoming.extend(arrived);
                    inputs = self.take_inputs()?;
                }
                // Its gpud, its controller or itself went; it may come back.
                Err(_) => self.connection = None,
            }
        }
        match self.connection.as_ref().map(|c| c.greeting.is_none()) {
            Some(true) => self.until = None,
            Some(false) | None => {
                let until = now.plus_secs(self.patience_secs);
                self.until.get_or_insert(until);
            }
        }
        match self.until.is_some_and(|until| now >= until) {
            true => Err(ErrorKind::TimedOut.into()),
            false => Ok(inputs),
        }
    }

    /// The bytes of the stream that came, after what waits was written.
    fn exchange(&mut self) -> io::Result<Vec<u8>> {
        let mut arrived = Vec::new();
        let mut buffer = [0; 16 << 10];
        let mut at_end = false;
        while let Some(connection) = &mut self.connection {
            let read = match connection.socket.read(&mut buffer) {
                Ok(0) => {
                    at_end = true;
                    break;
                }
                Ok(count) => &buffer[..count],
                Err(e) if e.kind() == ErrorKind::WouldBlock => &[],
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            };
            let is_drained = read.is_empty();
            match &mut connection.greeting {
                Some(said) => {
                    said.extend_from_slice(read);
                    if let Some((hello, used)) =
                        StreamHello::read(said).map_err(io::Error::other)?
                    {
                        let rest = said.split_off(used);
                        connection.greeting = None;
                        self.greeted(hello)?;
                        arrived.extend(self.stream.receive(&rest).map_err(io::Error::other)?);
                    }
                }
                None => arrived.extend(self.stream.receive(read).map_err(io::Error::other)?),
            }
            if is_drained {
                break;
            }
        }
        match self.write() {
            // What arrived before the connection's end counts.
            Err(e) if arrived.is_empty() => Err(e),
            _ if at_end => {
                self.connection = None;
                Ok(arrived)
            }
            _ => Ok(arrived),
        }
    }

    /// Answers the hello: the stream goes on where it was, or begins.
    fn greeted(&mut self, hello: StreamHello) -> io::Result<()> {
        let session = match hello.session == self.session {
            true => {
                self.stream
                    .resume(hello.received)
                    .map_err(io::Error::other)?;
                hello.session
            }
            false => {
                // Before the first client nothing was read from what is kept.
                if self.session != NEW_SESSION {
                    self.stream = ResumableStream::default();
                    self.is_fresh = true;
                }
                self.incoming.clear();
                self.session = hello.session;
                NEW_SESSION
            }
        };
        let answer = StreamHello {
            session,
            received: self.stream.received(),
        };
        if let Some(connection) = &mut self.connection {
            connection.outgoing.extend(answer.frame());
        }
        Ok(())
    }

    fn write(&mut self) -> io::Result<()> {
        while let Some(connection) = &mut self.connection {
            if connection.outgoing.is_empty() && connection.greeting.is_none() {
                connection.outgoing = self.stream.take_frames(WRITE_BYTES);
            }
            if connection.outgoing.is_empty() {
                break;
            }
            match connection.socket.write(&connection.outgoing) {
                Ok(written) => drop(connection.outgoing.drain(..written)),
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    fn take_inputs(&mut self) -> io::Result<Vec<StepInput>> {
        let (mut inputs, mut at) = (Vec::new(), 0);
        while let Some((input, used)) =
            StepInput::read(&self.incoming[at..]).map_err(io::Error::other)?
        {
            inputs.push(input);
            at += used;
        }
        self.incoming.drain(..at);
        Ok(inputs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gmodel::supervise::StepStream;

    const NOW: BootMillis = BootMillis(1000);

    /// A client on a socket pair: reads all that came, and says what of the stream arrived.
    struct Client {
        socket: UnixStream,
        stream: ResumableStream,
    }

    impl Client {
        fn come(link: &mut AttachedLink, session: SessionId, stream: ResumableStream) -> Client {
            let (mut socket, theirs) = UnixStream::pair().unwrap();
            socket.set_nonblocking(true).unwrap();
            let hello = StreamHello {
                session,
                received: stream.received(),
            };
            socket.write_all(&hello.frame()).unwrap();
            link.attach(theirs, Vec::new()).unwrap();
            Client { socket, stream }
        }

        fn read(&mut self) -> Vec<u8> {
            let mut bytes = Vec::new();
            let _ = self.socket.read_to_end(&mut bytes);
            bytes
        }

        /// The supervisor's hello, and the stream behind it.
        fn greeted(&mut self) -> (StreamHello, Vec<u8>) {
            let bytes = self.read();
            let (hello, used) = StreamHello::read(&bytes).unwrap().expect("a hello");
            self.stream.resume(hello.received).unwrap();
            (hello, self.stream.receive(&bytes[used..]).unwrap())
        }
    }

    fn output(text: &str) -> StepOutput {
        StepOutput::Output {
            rank: 0,
            stream: StepStream::Stdout,
            bytes: text.as_bytes().to_vec(),
        }
    }

    #[test]
    fn a_client_that_comes_back_in_time_goes_on_where_it_was() {
        let mut link = AttachedLink::new(NOW.plus_secs(10), 60);
        let mut client = Client::come(&mut link, [1; 16], ResumableStream::default());
        link.service(NOW).unwrap();
        assert_eq!(client.greeted().0.session, NEW_SESSION);
        assert!(link.is_connected() && link.has_client());
        link.send(&output("one"));
        link.service(NOW).unwrap();
        let bytes = client.read();
        assert_eq!(
            client.stream.receive(&bytes).unwrap(),
            output("one").frame()
        );
        // Input is under way when the connection breaks.
        client.stream.push(&StepInput::Signal { signal: 2 }.frame());
        drop(client.socket);
        link.send(&output("two"));
        assert_eq!(link.service(NOW).unwrap(), []);
        assert!(!link.has_client());
        let mut again = Client::come(&mut link, [1; 16], client.stream);
        link.service(NOW.plus_secs(59)).unwrap();
        let (hello, arrived) = again.greeted();
        assert_eq!(hello.session, [1; 16]);
        assert_eq!(arrived, output("two").frame());
        let frames = again.stream.take_frames(1000);
        again.socket.write_all(&frames).unwrap();
        assert_eq!(
            link.service(NOW.plus_secs(60)).unwrap(),
            [StepInput::Signal { signal: 2 }]
        );
        assert!(!link.take_fresh());
    }

    #[test]
    fn a_client_that_does_not_come_back_in_time_is_gone() {
        let mut link = AttachedLink::new(NOW.plus_secs(10), 60);
        assert!(link.service(NOW.plus_secs(9)).is_ok());
        assert!(link.service(NOW.plus_secs(10)).is_err(), "never came");
        let mut link = AttachedLink::new(NOW.plus_secs(10), 60);
        drop(Client::come(&mut link, [1; 16], ResumableStream::default()));
        link.service(NOW).unwrap();
        assert_eq!(link.deadline(), Some(NOW.plus_secs(10)));
        assert!(link.service(NOW.plus_secs(10)).is_err());
    }

    #[test]
    fn another_client_takes_the_stream_and_the_first_hears_it() {
        let mut link = AttachedLink::new(NOW.plus_secs(10), 60);
        let mut first = Client::come(&mut link, [1; 16], ResumableStream::default());
        link.service(NOW).unwrap();
        first.greeted();
        let mut second = Client::come(&mut link, [2; 16], ResumableStream::default());
        link.service(NOW).unwrap();
        assert!(link.take_fresh(), "it is shown the screen");
        assert_eq!(second.greeted().0.session, NEW_SESSION);
        let bytes = first.read();
        assert_eq!(
            first.stream.receive(&bytes),
            Err(gmodel::resumable_stream::BadStream::Taken)
        );
    }

    #[test]
    fn bytes_that_are_no_stream_end_the_connection_and_not_the_step() {
        let mut link = AttachedLink::new(NOW.plus_secs(10), 60);
        let (mut stranger, theirs) = UnixStream::pair().unwrap();
        stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        link.attach(theirs, Vec::new()).unwrap();
        assert_eq!(link.service(NOW).unwrap(), []);
        assert!(link.fd().is_none());
    }
}
