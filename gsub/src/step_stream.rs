//! A node of a step reached by a stream over the controller. One thread for each node keeps it: where a connection breaks it makes
//! another, and no byte is lost or doubled (`gmodel/src/resumable_stream.rs`).

use crate::step_message::Message;
use gmodel::resumable_stream::{BadStream, NEW_SESSION, ResumableStream, SessionId, StreamHello};
use gmodel::supervise::{StepInput, StepOutput};
use gwire::client::{Client, ClientError, ControllerStream, escape};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Time to connect, at first and again. The tasks wait about as long for their client.
const CONNECT_PATIENCE: Duration = Duration::from_secs(60);
const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// A lost connection is told after this.
const ANNOUNCE_AFTER: Duration = Duration::from_secs(2);
/// Written at a time.
const WRITE_BYTES: usize = 64 << 10;

/// A stream of a step on one of its nodes.
pub(crate) struct StreamAddress {
    pub socket: PathBuf,
    pub job: String,
    pub step: u32,
    pub node: String,
    /// Position of the node in the step.
    pub at: u32,
    /// Beside the client of the step.
    pub watch: bool,
}

/// The sending side, for other threads.
pub(crate) struct StreamSender {
    stream: Mutex<ResumableStream>,
    wake: EventFd,
}

impl StreamSender {
    pub fn send(&self, input: &StepInput) {
        self.lock().push(&input.frame());
        // A counter that is full wakes as well.
        let _ = self.wake.write(1);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, ResumableStream> {
        self.stream.lock().expect("no panic while held")
    }
}

/// Begins to keep the stream. What comes on it goes to `messages`.
///
/// # Errors
/// Out of descriptors, or no random numbers.
pub(crate) fn open(
    address: StreamAddress,
    messages: SyncSender<Message>,
) -> io::Result<Arc<StreamSender>> {
    let wake = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
    let mut session: SessionId = [1; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut session[1..])?;
    let sender = Arc::new(StreamSender {
        stream: Mutex::default(),
        wake,
    });
    let mut keeper = StreamKeeper {
        address,
        messages,
        sender: sender.clone(),
        session,
        incoming: Vec::new(),
        is_known: false,
        is_over: false,
    };
    std::thread::spawn(move || {
        let last = keeper.keep();
        // The receiver may have ended first.
        let _ = keeper.messages.send(last);
    });
    Ok(sender)
}

struct StreamKeeper {
    address: StreamAddress,
    messages: SyncSender<Message>,
    sender: Arc<StreamSender>,
    session: SessionId,
    /// Part of a frame of the step.
    incoming: Vec<u8>,
    /// The supervisor knows this session.
    is_known: bool,
    /// The step's last word was read.
    is_over: bool,
}

impl StreamKeeper {
    /// Until the step is over, or cannot be reached any more.
    fn keep(&mut self) -> Message {
        let at = self.address.at;
        let mut since = Instant::now();
        let mut is_told = false;
        loop {
            let refusal = match self.connect() {
                Ok((socket, read)) => {
                    let ended = self.converse(socket, read);
                    if self.is_over {
                        return Message::Gone(at);
                    }
                    if let Err(e) = ended
                        && e.get_ref().and_then(|e| e.downcast_ref()) == Some(&BadStream::Taken)
                    {
                        return Message::Left("another terminal has taken it over".to_owned());
                    }
                    (since, is_told) = (Instant::now(), false);
                    String::new()
                }
                Err(e) => match e {
                    ClientError::Refused { code, text, .. } if code != "unavailable" => {
                        return match self.is_known {
                            true => Message::Gone(at),
                            false => Message::Failed(at, text),
                        };
                    }
                    e => e.to_string(),
                },
            };
            if since.elapsed() >= CONNECT_PATIENCE {
                return Message::Failed(at, refusal);
            }
            if since.elapsed() >= ANNOUNCE_AFTER && !std::mem::replace(&mut is_told, true) {
                eprint!("\r\n[no connection to the step; trying again]\r\n");
            }
            std::thread::sleep(RETRY_PAUSE);
        }
    }

    fn connect(&self) -> Result<(UnixStream, Vec<u8>), ClientError> {
        let StreamAddress {
            socket,
            job,
            step,
            node,
            watch,
            ..
        } = &self.address;
        let node = escape(node);
        let path = format!("/v1/jobs/{job}/steps/{step}/stream?node={node}&watch={watch}");
        match Client::new(socket).open_stream(&path)? {
            (ControllerStream::Unix(stream), read) => Ok((stream, read)),
            (ControllerStream::Tls(_), _) => unreachable!("a socket was asked"),
        }
    }

    /// One connection, to its end.
    fn converse(&mut self, mut socket: UnixStream, read: Vec<u8>) -> io::Result<()> {
        let hello = StreamHello {
            session: self.session,
            received: self.sender.lock().received(),
        };
        socket.write_all(&hello.frame())?;
        let rest = self.greet(&mut socket, read)?;
        self.take(&rest)?;
        let mut buffer = vec![0; 64 << 10];
        loop {
            let frames = self.sender.lock().take_frames(WRITE_BYTES);
            if !frames.is_empty() {
                socket.write_all(&frames)?;
                continue;
            }
            let mut fds = [socket.as_fd(), self.sender.wake.as_fd()]
                .map(|fd| PollFd::new(fd, PollFlags::POLLIN));
            match poll(&mut fds, PollTimeout::NONE) {
                Ok(_) | Err(nix::Error::EINTR) => {}
                Err(e) => return Err(e.into()),
            }
            let [is_readable, is_woken] = fds.map(|fd| fd.any() == Some(true));
            if is_woken {
                let _ = self.sender.wake.read();
            }
            if !is_readable {
                continue;
            }
            match socket.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(count) => self.take(&buffer[..count])?,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
            if self.is_over {
                let last = self.sender.lock().take_acknowledgement();
                socket.write_all(&last)?;
            }
        }
    }

    /// The supervisor's hello: the stream goes on, or begins anew. Returns what came behind it.
    fn greet(&mut self, socket: &mut UnixStream, mut read: Vec<u8>) -> io::Result<Vec<u8>> {
        let (hello, used) = loop {
            if let Some(hello) = StreamHello::read(&read).map_err(io::Error::other)? {
                break hello;
            }
            let mut buffer = [0; 4096];
            match socket.read(&mut buffer)? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                count => read.extend_from_slice(&buffer[..count]),
            }
        };
        let mut stream = self.sender.lock();
        if hello.session == NEW_SESSION && self.is_known {
            *stream = ResumableStream::default();
            self.incoming.clear();
        }
        self.is_known = true;
        stream.resume(hello.received).map_err(io::Error::other)?;
        Ok(read.split_off(used))
    }

    /// Hands on the frames of the step that are whole.
    fn take(&mut self, bytes: &[u8]) -> io::Result<()> {
        let arrived = self
            .sender
            .lock()
            .receive(bytes)
            .map_err(io::Error::other)?;
        self.incoming.extend(arrived);
        let mut from = 0;
        while let Some((output, used)) =
            StepOutput::read(&self.incoming[from..]).map_err(io::Error::other)?
        {
            from += used;
            self.is_over |= matches!(output, StepOutput::Used { .. } | StepOutput::Refused { .. });
            if self
                .messages
                .send(Message::From(self.address.at, output))
                .is_err()
            {
                return Err(ErrorKind::BrokenPipe.into());
            }
        }
        self.incoming.drain(..from);
        Ok(())
    }
}
