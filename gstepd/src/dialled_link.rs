//! The TLS connection of one step to its grun: opened without waiting, written through a bounded queue, read for signals and input.
//! Frames are `gmodel::supervise::StepOutput`. Knows nothing of tasks.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use gmodel::supervise::{StepInput, StepOutput};
use gwire::step_tls;
use nix::poll::PollFlags;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, SockaddrIn6, connect, setsockopt, socket,
    sockopt,
};
use rustls::ClientConnection;

/// While more than this waits for a slow grun, the tasks' pipes are left full.
const ROOM_BYTES: usize = 256 << 10;

pub struct DialledLink {
    stream: TcpStream,
    connected: bool,
    tls: ClientConnection,
    /// Frames that TLS has not taken yet.
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
}

impl DialledLink {
    /// Begins to connect to `ADDRESS:PORT`, numeric, where grun shows the certificate with this SHA-256.
    pub fn open(address: &str, certificate: &str) -> anyhow::Result<DialledLink> {
        let tls = step_tls::client_connection(certificate)?;
        let numeric =
            || anyhow::anyhow!("{address:?} is no numeric ADDRESS:PORT to send a step's output to");
        let address: SocketAddr = address.parse().map_err(|_| numeric())?;
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let family = if address.is_ipv4() {
            AddressFamily::Inet
        } else {
            AddressFamily::Inet6
        };
        let fd = socket(family, SockType::Stream, flags, None)?;
        let begun = match address {
            SocketAddr::V4(v4) => connect(fd.as_raw_fd(), &SockaddrIn::from(v4)),
            SocketAddr::V6(v6) => connect(fd.as_raw_fd(), &SockaddrIn6::from(v6)),
        };
        match begun {
            Ok(()) | Err(nix::Error::EINPROGRESS) => {}
            Err(e) => anyhow::bail!("connecting to {address}: {e}"),
        }
        // Output comes in small pieces, and the loss of grun's machine must be noticed.
        let _ = setsockopt(&fd, sockopt::TcpNoDelay, &true);
        let _ = setsockopt(&fd, sockopt::KeepAlive, &true);
        Ok(DialledLink {
            stream: TcpStream::from(fd),
            connected: false,
            tls,
            outgoing: Vec::new(),
            incoming: Vec::new(),
        })
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    pub fn wants(&self) -> PollFlags {
        let has_words = !self.outgoing.is_empty() && !self.tls.is_handshaking();
        match !self.connected || self.tls.wants_write() || has_words {
            false => PollFlags::POLLIN,
            true => PollFlags::POLLIN | PollFlags::POLLOUT,
        }
    }

    /// With the grun of the step.
    pub fn is_connected(&self) -> bool {
        self.connected && !self.tls.is_handshaking()
    }

    pub fn has_room(&self) -> bool {
        self.outgoing.len() < ROOM_BYTES
    }

    pub fn is_flushed(&self) -> bool {
        self.outgoing.is_empty() && !self.tls.wants_write()
    }

    pub fn send(&mut self, output: &StepOutput) {
        self.outgoing.extend_from_slice(&output.frame());
    }

    /// Goes on connecting, writes what waits, reads what came. An error is the end of the connection.
    pub fn service(&mut self) -> io::Result<Vec<StepInput>> {
        if !self.connected {
            match self.stream.take_error()? {
                Some(e) => return Err(e),
                None if self.stream.peer_addr().is_err() => return Ok(Vec::new()),
                None => self.connected = true,
            }
        }
        self.flush()?;
        let inputs = self.receive()?;
        // An answer of the handshake, and the words that it lets pass.
        self.flush()?;
        Ok(inputs)
    }

    /// Everything was sent: the other side reads to the end of the stream.
    pub fn finish(mut self) {
        self.tls.send_close_notify();
        // The end of the connection says the same.
        let _ = self.flush();
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    fn flush(&mut self) -> io::Result<()> {
        loop {
            while self.tls.wants_write() {
                match self.tls.write_tls(&mut self.stream) {
                    Ok(_) => {}
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) => return Err(e),
                }
            }
            if self.outgoing.is_empty() || self.tls.is_handshaking() {
                return Ok(());
            }
            let taken = self.tls.writer().write(&self.outgoing)?;
            self.outgoing.drain(..taken);
        }
    }

    fn receive(&mut self) -> io::Result<Vec<StepInput>> {
        let mut inputs = Vec::new();
        loop {
            match self.tls.read_tls(&mut self.stream) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(inputs),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            }
            let state = self.tls.process_new_packets().map_err(io::Error::other)?;
            let begin = self.incoming.len();
            self.incoming
                .resize(begin + state.plaintext_bytes_to_read(), 0);
            self.tls.reader().read_exact(&mut self.incoming[begin..])?;
            while let Some((input, used)) =
                StepInput::read(&self.incoming).map_err(io::Error::other)?
            {
                inputs.push(input);
                self.incoming.drain(..used);
            }
        }
    }
}
