//! PMI for the ranks of a step on this node (`grun --mpi=pmi2`): a socket pair for each, whose one end the task inherits and is told
//! of by `PMI_FD`. What is said there is in `wire`, what follows from it in `server`. Never waits for a rank.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use gmodel::launch_order::LaunchOrder;
use gmodel::supervise::StepOrder;
use nix::poll::PollFlags;

use super::server::{PmiEffect, PmiServer, PmiStep};
use super::wire::PmiRequest;
use super::words::RankWords;
use super::{RankEnd, known_as};

use crate::step_link::StepLink;

/// Read of one rank in one turn: a rank that sends without end delays no other rank for long.
const TURN_BYTES: usize = 64 << 10;
/// A rank that reads no answers is asked nothing more.
const MAX_UNREAD_BYTES: usize = 64 << 10;

/// All ranks of one step on this node.
pub struct PmiRanks {
    server: PmiServer,
    name: String,
    size: u32,
    ranks: Vec<u32>,
    sockets: Vec<RankSocket>,
    words: RankWords,
}

#[derive(Default)]
struct RankSocket {
    socket: Option<UnixStream>,
    incoming: Vec<u8>,
    outgoing: Vec<u8>,
}

impl PmiRanks {
    pub fn open(order: &StepOrder, job: &LaunchOrder) -> PmiRanks {
        let (job, step) = known_as(order, job);
        let name = format!("gpupool_{job}_{step}");
        let server = PmiServer::new(PmiStep {
            name: name.clone(),
            size: order.ntasks,
            ranks: order.ranks.clone(),
            mapping: order.parallel.process_mapping.clone(),
            is_alone: order.ranks.len() as u32 == order.ntasks,
        });
        PmiRanks {
            server,
            name,
            size: order.ntasks,
            ranks: order.ranks.clone(),
            sockets: order.ranks.iter().map(|_| RankSocket::default()).collect(),
            words: RankWords::new(&order.ranks),
        }
    }

    /// Makes the socket of a rank that is about to start.
    ///
    /// # Errors
    /// Out of descriptors.
    pub fn connect(&mut self, local: usize) -> std::io::Result<RankEnd> {
        let (own, theirs) = UnixStream::pair()?;
        own.set_nonblocking(true)?;
        // The task finds it under the number that it has here, and the first three are its standard files.
        let fd = OwnedFd::from(theirs).try_clone()?;
        self.sockets[local].socket = Some(own);
        let variables = vec![
            format!("PMI_FD={}", fd.as_raw_fd()),
            format!("PMI_RANK={}", self.ranks[local]),
            format!("PMI_SIZE={}", self.size),
            format!("PMI_JOBID={}", self.name),
        ];
        Ok(RankEnd {
            fd,
            variables,
            waits: false,
        })
    }

    pub fn poll_fds(&self) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        self.sockets.iter().filter_map(|rank| {
            let mut wants = PollFlags::empty();
            wants.set(PollFlags::POLLIN, rank.outgoing.len() < MAX_UNREAD_BYTES);
            wants.set(PollFlags::POLLOUT, !rank.outgoing.is_empty());
            Some((rank.socket.as_ref()?.as_fd(), wants))
        })
    }

    /// Reads what the ranks ask, and answers.
    pub fn service(&mut self) {
        for local in 0..self.sockets.len() {
            self.serve(local);
        }
        for rank in &mut self.sockets {
            rank.flush();
        }
    }

    /// A task has ended, and all that it said was read.
    pub fn ended(&mut self, local: usize) {
        self.sockets[local].socket = None;
        if let Some(text) = self.server.left(local) {
            self.abort(local, text);
        }
    }

    /// What other nodes have at a fence. The client's word is the user's, so anything may come.
    pub fn exchanged(&mut self, piece: &[u8], is_last: bool) {
        match self.server.exchanged(piece, is_last) {
            Ok(effects) => self.carry_out(effects),
            Err(text) => self.abort(0, text),
        }
    }

    pub fn tell(&mut self, link: &mut StepLink) -> bool {
        self.words.tell(link)
    }

    fn serve(&mut self, local: usize) {
        let rank = &mut self.sockets[local];
        let Some(socket) = &mut rank.socket else {
            return;
        };
        let mut is_over = false;
        let mut buffer = [0; 8 << 10];
        let mut read = 0;
        while read < TURN_BYTES && rank.outgoing.len() < MAX_UNREAD_BYTES {
            match socket.read(&mut buffer) {
                Ok(0) => {
                    is_over = true;
                    break;
                }
                Ok(count) => {
                    rank.incoming.extend_from_slice(&buffer[..count]);
                    read += count;
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => {
                    is_over = e.kind() != ErrorKind::WouldBlock;
                    break;
                }
            }
        }
        let incoming = std::mem::take(&mut rank.incoming);
        let mut at = 0;
        loop {
            match PmiRequest::read(self.server.version(local), &incoming[at..]) {
                Ok(Some((request, used))) => {
                    at += used;
                    let effects = self.server.take(local, &request);
                    self.carry_out(effects);
                }
                Ok(None) => break,
                Err(e) => {
                    self.sockets[local].socket = None;
                    self.server.left(local);
                    return self.abort(local, format!("its PMI cannot be read: {}", e.0));
                }
            }
        }
        self.sockets[local].incoming = incoming[at..].to_vec();
        if is_over {
            self.ended(local);
        }
    }

    fn carry_out(&mut self, effects: Vec<PmiEffect>) {
        for effect in effects {
            match effect {
                PmiEffect::Answer { local, bytes } => {
                    let rank = &mut self.sockets[local];
                    rank.outgoing.extend(bytes);
                    rank.flush();
                }
                PmiEffect::Exchange(pieces) => {
                    for piece in pieces {
                        self.words.fence(false, piece);
                    }
                    self.words.fence(true, Vec::new());
                }
                PmiEffect::Tell { local, text } => self.words.say(local, &text),
                PmiEffect::Abort { local, text } => self.abort(local, text),
            }
        }
    }

    fn abort(&mut self, local: usize, text: String) {
        self.words.abort(local, text);
    }
}

impl RankSocket {
    /// A rank that cannot be written to is found out by its end.
    fn flush(&mut self) {
        while let (Some(socket), false) = (&mut self.socket, self.outgoing.is_empty()) {
            match socket.write(&self.outgoing) {
                Ok(written) => drop(self.outgoing.drain(..written)),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(_) => self.outgoing.clear(),
            }
        }
    }
}
