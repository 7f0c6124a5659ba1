//! The control socket, for root and the supervisor's own user: one JSON object a line in both directions, the newest state on each new
//! connection. Several connections at a time, so that a new gpud need not wait for the old one to be gone. Never blocks; a peer that
//! does not read, or sends what is no line, is dropped, and may connect again.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use gmodel::checkpoint::CheckpointMark;
use gmodel::supervise::{SupervisorCommand, SupervisorReport};
use gsys::peer::peer_of;

/// gpud has one, and for a moment two, when it is replaced.
const MAX_CONNECTIONS: usize = 16;
/// A step carries arguments and environment, of 1 MiB each, as escaped JSON.
const MAX_LINE_BYTES: usize = 16 << 20;

pub struct Control {
    listener: UnixListener,
    path: PathBuf,
    connections: Vec<Connection>,
    state: SupervisorReport,
    /// The newest checkpoint mark: told after the state.
    mark: Option<CheckpointMark>,
}

/// A connection about one step, with the order that came on it.
pub struct StepVisit {
    pub order: SupervisorCommand,
    pub stream: UnixStream,
    /// What was read from it behind the order.
    pub read: Vec<u8>,
}

/// What the peers sent.
#[derive(Default)]
pub struct ControlInput {
    pub orders: Vec<SupervisorCommand>,
    pub visits: Vec<StepVisit>,
    /// A peer which had been told the end is gone.
    pub acknowledged: bool,
}

struct Connection {
    stream: UnixStream,
    received: Vec<u8>,
    /// The end was told: when this peer closes, it knows.
    told_end: bool,
    /// It is about one step: what follows in it is no line.
    is_visit: bool,
    closed: bool,
}

impl Control {
    /// Listens at the first of `places` where a socket can be made. `connection`: the peer that started this process, which gets the
    /// state.
    pub fn listen(
        places: &[PathBuf],
        state: SupervisorReport,
        connected: Option<UnixStream>,
    ) -> io::Result<Control> {
        let mut made = Err(io::Error::other("no place for the control socket"));
        for path in places {
            made = bind(path).map(|listener| (listener, path.clone()));
            if made.is_ok() {
                break;
            }
        }
        let (listener, path) = made?;
        let mut control = Control {
            listener,
            path,
            connections: Vec::new(),
            state,
            mark: None,
        };
        connected
            .into_iter()
            .for_each(|stream| control.admit(stream));
        Ok(control)
    }

    /// Sends the words to each peer, now and on connection.
    pub fn publish(&mut self, state: SupervisorReport) {
        self.state = state;
        for connection in &mut self.connections {
            connection.send(&self.state);
        }
        self.connections.retain(|connection| !connection.closed);
    }

    /// As [`Control::publish`], beside the state.
    pub fn publish_mark(&mut self, mark: CheckpointMark) {
        for connection in &mut self.connections {
            connection.send(&SupervisorReport::Mark { mark: mark.clone() });
        }
        self.connections.retain(|connection| !connection.closed);
        self.mark = Some(mark);
    }

    /// What to poll for POLLIN: the listener first, then the connections.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        std::iter::once(self.listener.as_fd())
            .chain(self.connections.iter().map(|c| c.stream.as_fd()))
    }

    /// Takes new connections and reads what the others sent.
    pub fn receive(&mut self) -> ControlInput {
        let mut input = ControlInput::default();
        for mut connection in std::mem::take(&mut self.connections) {
            connection.read(&mut input.orders);
            input.acknowledged |= connection.closed && connection.told_end;
            match input.orders.pop_if(|order| is_visit(order)) {
                Some(order) => input.visits.push(StepVisit {
                    order,
                    stream: connection.stream,
                    read: connection.received,
                }),
                None if connection.closed => {}
                None => self.connections.push(connection),
            }
        }
        while let Ok((stream, _)) = self.listener.accept() {
            self.admit(stream);
        }
        input
    }

    fn admit(&mut self, stream: UnixStream) {
        let own = nix::unistd::geteuid().as_raw();
        let allowed = peer_of(&stream).is_ok_and(|peer| peer.uid == 0 || peer.uid == own);
        if !allowed
            || self.connections.len() >= MAX_CONNECTIONS
            || stream.set_nonblocking(true).is_err()
        {
            return;
        }
        let mut connection = Connection {
            stream,
            received: Vec::new(),
            told_end: false,
            is_visit: false,
            closed: false,
        };
        connection.send(&self.state);
        if let Some(mark) = self.mark.clone().filter(|_| !connection.closed) {
            connection.send(&SupervisorReport::Mark { mark });
        }
        if !connection.closed {
            self.connections.push(connection);
        }
    }
}

/// The connection of such an order has no further one.
fn is_visit(order: &SupervisorCommand) -> bool {
    matches!(
        order,
        SupervisorCommand::Attach { .. } | SupervisorCommand::SignalStep { .. }
    )
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// A socket for root and the supervisor's own user that appears under its name only when it can be connected to. Made by the
/// directory's descriptor: a socket's path has room for 107 bytes only.
fn bind(path: &Path) -> io::Result<UnixListener> {
    let (Some(dir), Some(name)) = (
        path.parent(),
        path.file_name().and_then(|name| name.to_str()),
    ) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let dir = File::open(dir)?;
    let aside = Path::new("/proc/self/fd")
        .join(dir.as_raw_fd().to_string())
        .join(format!("{name}.new"));
    let _ = fs::remove_file(&aside);
    let listener = UnixListener::bind(&aside)?;
    fs::set_permissions(&aside, fs::Permissions::from_mode(0o600))?;
    listener.set_nonblocking(true)?;
    fs::rename(&aside, path)?;
    Ok(listener)
}

/// One line, whole or not at all.
///
/// # Errors
/// The peer has stopped reading, or is gone.
pub fn write_line(stream: &mut UnixStream, words: &SupervisorReport) -> io::Result<()> {
    let mut line = serde_json::to_vec(words)?;
    line.push(b'\n');
    match stream.write(&line)? {
        written if written == line.len() => Ok(()),
        _ => Err(io::ErrorKind::WriteZero.into()),
    }
}

impl Connection {
    /// A few hundred bytes fit into any socket's buffer; a full buffer means that the peer has stopped reading.
    fn send(&mut self, state: &SupervisorReport) {
        match write_line(&mut self.stream, state) {
            Ok(()) => self.told_end |= matches!(state, SupervisorReport::Ended { .. }),
            Err(_) => self.closed = true,
        }
    }

    fn read(&mut self, orders: &mut Vec<SupervisorCommand>) {
        // Orders are short. Each page of the stack that is touched is copied, in a process that is a copy.
        let mut buffer = [0; 4 << 10];
        while !self.closed && !self.is_visit {
            match self.stream.read(&mut buffer) {
                Ok(0) => self.closed = true,
                Ok(count) => {
                    self.received.extend_from_slice(&buffer[..count]);
                    // Only a piece with an end of line in it can complete a line.
                    let complete = buffer[..count].contains(&b'\n');
                    self.closed = complete && self.take_lines(orders).is_none()
                        || self.received.len() > MAX_LINE_BYTES;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => self.closed = true,
            }
        }
    }

    /// Whole lines become orders; `None` for what is no order.
    fn take_lines(&mut self, orders: &mut Vec<SupervisorCommand>) -> Option<()> {
        let mut from = 0;
        while let Some(length) = self.received[from..].iter().position(|b| *b == b'\n') {
            let order = serde_json::from_slice(&self.received[from..from + length]).ok()?;
            from += length + 1;
            self.is_visit = is_visit(&order);
            orders.push(order);
            if self.is_visit {
                break;
            }
        }
        self.received.drain(..from);
        Some(())
    }
}
