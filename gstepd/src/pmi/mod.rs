//! PMI for the ranks of a step on this node (`grun --mpi=pmi2`): a socket pair for each, whose one end the task inherits and is told
//! of by `PMI_FD`. What is said there is in `wire`, what follows from it in `server`. Never waits for a rank.

mod server;
mod wire;

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use gmodel::launch_order::LaunchOrder;
use gmodel::parallel::MpiType;
use gmodel::supervise::{StepOrder, StepOutput, StepStream};
use nix::poll::PollFlags;

use server::{PmiEffect, PmiServer, PmiStep};
use wire::PmiRequest;

use crate::step_link::StepLink;

/// Read of one rank in one turn, so that none keeps the others waiting.
const TURN_BYTES: usize = 64 << 10;
/// A rank that reads no answers is asked nothing more.
const MAX_UNREAD_BYTES: usize = 64 << 10;

/// Refusals that a step's client hears of.
const MAX_TOLD: usize = 100;

/// All ranks of one step on this node.
pub struct PmiRanks {
    server: PmiServer,
    name: String,
    size: u32,
    ranks: Vec<u32>,
    sockets: Vec<RankSocket>,
    /// For the step's client, as it has room.
    words: VecDeque<StepOutput>,
    told: usize,
    /// The client has heard why the step ends.
    is_aborted: bool,
}

#[derive(Default)]
struct RankSocket {
    socket: Option<UnixStream>,
    incoming: Vec<u8>,
    outgoing: Vec<u8>,
}

/// A task's end of its socket.
pub struct RankEnd {
    pub fd: OwnedFd,
    /// `NAME=value` of what the task is told.
    pub variables: Vec<String>,
}

impl PmiRanks {
    /// None where the step has no PMI.
    pub fn open(order: &StepOrder, job: &LaunchOrder) -> Option<PmiRanks> {
        if order.parallel.mpi != Some(MpiType::Pmi2) {
            return None;
        }
        let job = job.run.map_or(0, |run| run.job.0);
        let name = format!("gpupool_{job}_{}", order.step);
        let server = PmiServer::new(PmiStep {
            name: name.clone(),
            size: order.ntasks,
            ranks: order.ranks.clone(),
            mapping: order.parallel.process_mapping.clone(),
            is_alone: order.ranks.len() as u32 == order.ntasks,
        });
        Some(PmiRanks {
            server,
            name,
            size: order.ntasks,
            ranks: order.ranks.clone(),
            sockets: order.ranks.iter().map(|_| RankSocket::default()).collect(),
            words: VecDeque::new(),
            told: 0,
            is_aborted: false,
        })
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
        Ok(RankEnd { fd, variables })
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

    /// True when something was sent.
    pub fn tell(&mut self, link: &mut StepLink) -> bool {
        let before = self.words.len();
        while link.has_room()
            && let Some(word) = self.words.pop_front()
        {
            link.send(&word);
        }
        self.words.len() < before
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
                    let piece = |piece| StepOutput::Fence {
                        is_last: false,
                        piece,
                    };
                    self.words.extend(pieces.into_iter().map(piece));
                    self.words.push_back(StepOutput::Fence {
                        is_last: true,
                        piece: Vec::new(),
                    });
                }
                // A rank that is refused again and again is not told of each time.
                PmiEffect::Tell { .. } if self.told >= MAX_TOLD => {}
                PmiEffect::Tell { local, text } => {
                    self.told += 1;
                    self.words.push_back(StepOutput::Output {
                        rank: self.ranks[local],
                        stream: StepStream::Stderr,
                        bytes: format!("task {}: {text}\n", self.ranks[local]).into_bytes(),
                    });
                }
                PmiEffect::Abort { local, text } => self.abort(local, text),
            }
        }
    }

    fn abort(&mut self, local: usize, text: String) {
        let rank = self.ranks.get(local).copied().unwrap_or(0);
        if !std::mem::replace(&mut self.is_aborted, true) {
            self.words.push_back(StepOutput::Aborted { rank, text });
        }
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
