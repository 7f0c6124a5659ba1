//! The TLS connection of a node of the step that called back. One thread reads it, others write to it.

use rustls::ServerConnection;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Mutex;

/// Read of a connection at a time.
const READ_BYTES: usize = 32 << 10;

pub(crate) struct StepConnection {
    socket: TcpStream,
    tls: Mutex<ServerConnection>,
}

impl StepConnection {
    pub fn new(socket: TcpStream, tls: ServerConnection) -> Self {
        Self {
            socket,
            tls: Mutex::new(tls),
        }
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub fn set_nonblocking(&self, is_set: bool) -> io::Result<()> {
        self.socket.set_nonblocking(is_set)
    }

    /// Sends bytes whole. The node reads all the time, so this does not wait for what it writes.
    pub fn send(&self, bytes: &[u8]) -> io::Result<()> {
        let mut tls = self.tls.lock().expect("no panic while held");
        tls.writer().write_all(bytes)?;
        self.flush(&mut tls)
    }

    /// Adds what comes to `buffer`; false at the end of the connection.
    pub fn receive(&self, buffer: &mut Vec<u8>) -> io::Result<bool> {
        let mut records = [0; READ_BYTES];
        let count = match (&self.socket).read(&mut records) {
            Err(e) if e.kind() == ErrorKind::Interrupted => return Ok(true),
            read => read?,
        };
        let mut tls = self.tls.lock().expect("no panic while held");
        let mut rest = &records[..count];
        while !rest.is_empty() {
            tls.read_tls(&mut rest)?;
            let state = tls.process_new_packets().map_err(io::Error::other)?;
            let begin = buffer.len();
            buffer.resize(begin + state.plaintext_bytes_to_read(), 0);
            tls.reader().read_exact(&mut buffer[begin..])?;
        }
        self.flush(&mut tls)?;
        Ok(count > 0)
    }

    fn flush(&self, tls: &mut ServerConnection) -> io::Result<()> {
        while tls.wants_write() {
            match tls.write_tls(&mut &self.socket) {
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                written => drop(written?),
            }
        }
        Ok(())
    }
}
