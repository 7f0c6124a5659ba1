//! The two ends of forwarded ports: connections on one side, the stream that carries them on the other. One thread and a poll, beside
//! threads that dial. What the bytes of the stream mean is `gmodel/src/port_forward.rs`.

use gmodel::port_forward::{ForwardEvent, PortForward};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

/// A target has to take a connection within this.
const DIAL_PATIENCE: Duration = Duration::from_secs(10);

/// A port here, whose connections are dialled on the other side.
pub struct ForwardListener {
    pub listener: TcpListener,
    /// `HOST:PORT` as the other side sees it.
    pub target: String,
}

/// What the connections of one side are.
pub enum ForwardSide {
    /// They come to these ports; the text of one that failed is told.
    Listens(Vec<ForwardListener>, fn(&str)),
    /// They are dialled, as the other side asks.
    Dials,
}

/// Serves until the stream is at its end. `input` and `output` must not block.
///
/// # Errors
/// The stream's, and what comes is no forward.
pub fn serve(
    input: impl Read + AsFd,
    output: impl Write + AsFd,
    side: ForwardSide,
) -> io::Result<()> {
    let (dialled, found) = mpsc::channel();
    let wake = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
    let mut relay = PortRelay {
        forward: PortForward::default(),
        sockets: BTreeMap::new(),
        side,
        dialled,
        found,
        wake: Arc::new(wake),
        input,
        output,
    };
    while relay.turn()? {}
    Ok(())
}

struct PortRelay<R, W> {
    forward: PortForward,
    sockets: BTreeMap<u32, LocalSocket>,
    side: ForwardSide,
    dialled: Sender<DialledSocket>,
    found: Receiver<DialledSocket>,
    wake: Arc<EventFd>,
    input: R,
    output: W,
}

struct LocalSocket {
    stream: TcpStream,
    /// It was told the end of what comes.
    is_shut: bool,
}

struct DialledSocket {
    connection: u32,
    stream: io::Result<TcpStream>,
}

impl<R: Read + AsFd, W: Write + AsFd> PortRelay<R, W> {
    /// False at the end of the stream.
    fn turn(&mut self) -> io::Result<bool> {
        self.wait()?;
        let goes_on = self.read_stream()?;
        self.accept();
        self.take_dialled();
        for connection in self.sockets.keys().copied().collect::<Vec<_>>() {
            if let Err(e) = self.move_bytes(connection) {
                self.sockets.remove(&connection);
                self.forward.close(connection, &e.to_string());
            }
        }
        self.write_stream()?;
        Ok(goes_on)
    }

    fn wait(&self) -> io::Result<()> {
        let mut fds = vec![
            PollFd::new(self.input.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.wake.as_fd(), PollFlags::POLLIN),
        ];
        if !self.forward.outgoing().is_empty() {
            fds.push(PollFd::new(self.output.as_fd(), PollFlags::POLLOUT));
        }
        if let ForwardSide::Listens(listeners, _) = &self.side {
            fds.extend(
                listeners
                    .iter()
                    .map(|one| PollFd::new(one.listener.as_fd(), PollFlags::POLLIN)),
            );
        }
        for (connection, socket) in &self.sockets {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::POLLIN, self.forward.room(*connection) > 0);
            let has_bytes = !self.forward.arrived(*connection).is_empty();
            flags.set(PollFlags::POLLOUT, has_bytes);
            if !flags.is_empty() {
                fds.push(PollFd::new(socket.stream.as_fd(), flags));
            }
        }
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) | Err(nix::Error::EINTR) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    fn read_stream(&mut self) -> io::Result<bool> {
        let mut piece = vec![0; 64 << 10];
        match self.input.read(&mut piece) {
            Ok(0) => return Ok(false),
            Ok(count) => {
                let events = self.forward.receive(&piece[..count]);
                for event in events.map_err(io::Error::other)? {
                    self.obey(event)?;
                }
            }
            Err(e) if is_not_ready(&e) => {}
            Err(e) => return Err(e),
        }
        Ok(true)
    }

    fn obey(&mut self, event: ForwardEvent) -> io::Result<()> {
        match (event, &self.side) {
            (ForwardEvent::Opened { connection, target }, ForwardSide::Dials) => {
                self.dial(connection, target);
            }
            (ForwardEvent::Opened { .. }, ForwardSide::Listens(..)) => {
                return Err(io::Error::other("the job opens no connections here"));
            }
            (ForwardEvent::Over { connection, text }, side) => {
                self.sockets.remove(&connection);
                if let ForwardSide::Listens(_, tell) = side
                    && !text.is_empty()
                {
                    tell(&text);
                }
            }
        }
        Ok(())
    }

    /// In a thread: a name server or a target may be silent.
    fn dial(&self, connection: u32, target: String) {
        let (dialled, wake) = (self.dialled.clone(), Arc::clone(&self.wake));
        std::thread::spawn(move || {
            let stream = connect(&target);
            // The stream may be at its end by now.
            let _ = dialled.send(DialledSocket { connection, stream });
            let _ = wake.write(1);
        });
    }

    fn take_dialled(&mut self) {
        let _ = self.wake.read();
        while let Ok(DialledSocket { connection, stream }) = self.found.try_recv() {
            match stream {
                Ok(stream) => self.add(connection, stream),
                Err(e) => self.forward.close(connection, &e.to_string()),
            }
        }
    }

    fn accept(&mut self) {
        let ForwardSide::Listens(listeners, _) = &self.side else {
            return;
        };
        let mut came = Vec::new();
        for one in listeners {
            while let Ok((stream, _)) = one.listener.accept() {
                // Beyond the bound a connection is closed at once.
                let opened = self.forward.open(&one.target);
                came.extend(opened.map(|connection| (connection, stream)));
            }
        }
        for (connection, stream) in came {
            self.add(connection, stream);
        }
    }

    fn add(&mut self, connection: u32, stream: TcpStream) {
        // A keystroke must not wait for the next one.
        let _ = stream.set_nodelay(true);
        match stream.set_nonblocking(true) {
            Ok(()) => {
                let socket = LocalSocket {
                    stream,
                    is_shut: false,
                };
                self.sockets.insert(connection, socket);
            }
            Err(e) => self.forward.close(connection, &e.to_string()),
        }
    }

    /// What can be moved without waiting.
    fn move_bytes(&mut self, connection: u32) -> io::Result<()> {
        let Some(socket) = self.sockets.get_mut(&connection) else {
            return Ok(());
        };
        let room = self.forward.room(connection);
        if room > 0 {
            let mut piece = vec![0; room];
            match socket.stream.read(&mut piece) {
                Ok(count) => self.forward.send(connection, &piece[..count]),
                Err(e) if is_not_ready(&e) => {}
                Err(e) => return Err(e),
            }
        }
        while !self.forward.arrived(connection).is_empty() {
            match socket.stream.write(self.forward.arrived(connection)) {
                Ok(count) => self.forward.handed_on(connection, count),
                Err(e) if is_not_ready(&e) => break,
                Err(e) => return Err(e),
            }
        }
        if self.forward.is_at_end(connection) && !std::mem::replace(&mut socket.is_shut, true) {
            let _ = socket.stream.shutdown(Shutdown::Write);
        }
        if self.forward.is_over(connection) {
            self.sockets.remove(&connection);
        }
        Ok(())
    }

    fn write_stream(&mut self) -> io::Result<()> {
        while !self.forward.outgoing().is_empty() {
            match self.output.write(self.forward.outgoing()) {
                Ok(count) => self.forward.written(count),
                Err(e) if is_not_ready(&e) => break,
                Err(e) => return Err(e),
            }
        }
        self.output.flush()
    }
}

/// Each address of the target in turn.
fn connect(target: &str) -> io::Result<TcpStream> {
    let text = |e: io::Error| io::Error::new(e.kind(), format!("{target}: {e}"));
    let mut last = io::Error::new(ErrorKind::NotFound, format!("{target}: no address"));
    for address in target.to_socket_addrs().map_err(text)? {
        match TcpStream::connect_timeout(&address, DIAL_PATIENCE) {
            Ok(stream) => return Ok(stream),
            Err(e) => last = text(e),
        }
    }
    Err(last)
}

fn is_not_ready(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    /// A forwarded port to this target: its address here.
    fn forwarded(target: String) -> std::net::SocketAddr {
        let (here, job) = UnixStream::pair().unwrap();
        here.set_nonblocking(true).unwrap();
        job.set_nonblocking(true).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let listeners = vec![ForwardListener { listener, target }];
        std::thread::spawn(move || {
            let side = ForwardSide::Listens(listeners, |_| ());
            serve(here.try_clone().unwrap(), here, side)
        });
        std::thread::spawn(move || serve(job.try_clone().unwrap(), job, ForwardSide::Dials));
        address
    }

    #[test]
    fn ten_megabytes_come_back_whole_beside_a_connection_that_is_not_read() {
        let echo = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = forwarded(echo.local_addr().unwrap().to_string());
        std::thread::spawn(move || {
            for stream in echo.incoming().flatten() {
                std::thread::spawn(move || io::copy(&mut &stream, &mut &stream));
            }
        });
        let mut still = TcpStream::connect(address).unwrap();
        still.set_nonblocking(true).unwrap();
        let filler = vec![1; 1 << 20];
        // Until nothing goes in any more.
        while still.write(&filler).is_ok() {}
        let text: Vec<u8> = (0..10_000_000u32).map(|n| (n % 251) as u8).collect();
        let mut busy = TcpStream::connect(address).unwrap();
        let mut writer = busy.try_clone().unwrap();
        let sent = text.clone();
        std::thread::spawn(move || {
            writer.write_all(&sent).unwrap();
            writer.shutdown(Shutdown::Write).unwrap();
        });
        let mut back = Vec::new();
        busy.read_to_end(&mut back).unwrap();
        assert!(back == text);
    }

    #[test]
    fn a_target_that_does_not_listen_closes_the_connection() {
        let closed = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        let mut stream = TcpStream::connect(forwarded(closed.to_string())).unwrap();
        let mut said = Vec::new();
        // A reset or an end.
        let _ = stream.read_to_end(&mut said);
        assert_eq!(said, b"");
    }
}
