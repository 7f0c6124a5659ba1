//! The TCP connection of one step to its grun: opened without waiting, written through a bounded queue, read for signals and input.
//! Frames are `gmodel::supervise::StepOutput`. Knows nothing of tasks.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use gmodel::supervise::{StepInput, StepOutput};
use nix::poll::PollFlags;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, SockaddrIn6, connect, setsockopt, socket,
    sockopt,
};

/// While more than this waits for a slow grun, the tasks' pipes are left full.
const ROOM_BYTES: usize = 256 << 10;

pub struct DialledLink {
    stream: TcpStream,
    connected: bool,
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
}

impl DialledLink {
    /// Begins to connect to `ADDRESS:PORT`, numeric.
    pub fn open(address: &str) -> anyhow::Result<DialledLink> {
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
            outgoing: Vec::new(),
            incoming: Vec::new(),
        })
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    pub fn wants(&self) -> PollFlags {
        match self.connected && self.outgoing.is_empty() {
            true => PollFlags::POLLIN,
            false => PollFlags::POLLIN | PollFlags::POLLOUT,
        }
    }

    pub fn is_connected(&self) -> bool {
        self.connected
    }

    pub fn has_room(&self) -> bool {
        self.outgoing.len() < ROOM_BYTES
    }

    pub fn is_flushed(&self) -> bool {
        self.outgoing.is_empty()
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
        self.receive()
    }

    /// Everything was sent: the other side reads to the end of the stream.
    pub fn finish(self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    fn flush(&mut self) -> io::Result<()> {
        while !self.outgoing.is_empty() {
            match self.stream.write(&self.outgoing) {
                Ok(written) => drop(self.outgoing.drain(..written)),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    fn receive(&mut self) -> io::Result<Vec<StepInput>> {
        let mut buffer = [0; 16 << 10];
        let mut inputs = Vec::new();
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.incoming.extend_from_slice(&buffer[..count]),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(inputs),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
            while let Some((input, used)) =
                StepInput::read(&self.incoming).map_err(io::Error::other)?
            {
                inputs.push(input);
                self.incoming.drain(..used);
            }
        }
    }
}
