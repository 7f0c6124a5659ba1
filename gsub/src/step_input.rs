//! grun's stdin on its way to the tasks of a step. A thread of its own reads it, since it may be silent for ever, and sends each
//! node as much as has room there: [`STEP_INPUT_WINDOW_BYTES`] that the tasks have not taken.

use crate::step_connection::StepConnection;
use crate::step_stream::StreamSender;
use gmodel::supervise::{STEP_INPUT_WINDOW_BYTES, StepInput};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::{getpgrp, tcgetpgrp};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io::{ErrorKind, Read};
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

const PIECE_BYTES: usize = 32 << 10;
/// Between two looks at whom the terminal belongs to.
const LOOK: Duration = Duration::from_millis(200);

/// Which tasks read what grun reads, as `srun --input`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputRanks {
    All,
    None,
    Rank(u32),
}

/// `--input`
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InputWord {
    Ranks(InputRanks),
    /// All tasks read it.
    File(String),
}

impl InputWord {
    pub fn ranks(&self) -> InputRanks {
        match self {
            Self::Ranks(ranks) => *ranks,
            Self::File(_) => InputRanks::All,
        }
    }
}

/// `all`, `none`, the rank of a task; all else is a file.
pub fn reads(text: &str) -> Result<InputWord, Infallible> {
    Ok(match (text, text.parse()) {
        ("all", _) => InputWord::Ranks(InputRanks::All),
        ("none", _) => InputWord::Ranks(InputRanks::None),
        (_, Ok(rank)) => InputWord::Ranks(InputRanks::Rank(rank)),
        (path, Err(_)) => InputWord::File(path.to_owned()),
    })
}

/// Stdin that is read only once there is something, and never while its terminal is another program's: a reader in the background
/// would be stopped.
pub(crate) struct PatientStdin;

impl Read for PatientStdin {
    fn read(&mut self, piece: &mut [u8]) -> std::io::Result<usize> {
        let mut input = std::io::stdin();
        loop {
            poll(
                &mut [PollFd::new(input.as_fd(), PollFlags::POLLIN)],
                PollTimeout::NONE,
            )?;
            match tcgetpgrp(&input) {
                Ok(reader) if reader != getpgrp() => std::thread::sleep(LOOK),
                _ => return input.read(piece),
            }
        }
    }
}

/// How a node of the step is reached.
enum PeerWay {
    /// It called back.
    Connection(Arc<StepConnection>),
    Stream(Arc<StreamSender>),
}

/// One node of the step, which two threads write to.
pub(crate) struct Peer {
    way: PeerWay,
    /// Bytes that may still be sent; `None`: it is gone.
    room: Mutex<Option<usize>>,
    changed: Condvar,
}

/// By the position of their node in the step.
pub(crate) type Peers = BTreeMap<u32, Arc<Peer>>;

impl Peer {
    pub fn by_connection(connection: Arc<StepConnection>) -> Arc<Self> {
        Self::by(PeerWay::Connection(connection))
    }

    pub fn by_stream(sender: Arc<StreamSender>) -> Arc<Self> {
        Self::by(PeerWay::Stream(sender))
    }

    fn by(way: PeerWay) -> Arc<Self> {
        Arc::new(Self {
            way,
            room: Mutex::new(Some(STEP_INPUT_WINDOW_BYTES)),
            changed: Condvar::new(),
        })
    }

    /// A lost node is reported by the thread that reads from it.
    pub fn send(&self, input: &StepInput) {
        match &self.way {
            PeerWay::Stream(sender) => sender.send(input),
            PeerWay::Connection(connection) => drop(connection.send(&input.frame())),
        }
    }

    pub fn taken(&self, bytes: u32) {
        let mut room = self.room.lock().expect("no panic while held");
        *room = room.map(|room| room.saturating_add(bytes as usize));
        self.changed.notify_all();
    }

    pub fn gone(&self) {
        *self.room.lock().expect("no panic while held") = None;
        self.changed.notify_all();
    }

    pub fn wait_for_room(&self, bytes: usize) {
        let room = self.room.lock().expect("no panic while held");
        let mut room = self
            .changed
            .wait_while(room, |room| room.is_some_and(|room| room < bytes))
            .expect("no panic while held");
        *room = room.map(|room| room - bytes);
    }
}

/// Reads to the end, each piece for every node.
pub(crate) fn forward(mut input: impl Read, reads: InputRanks, peers: &[Arc<Peer>]) {
    let rank = match reads {
        InputRanks::Rank(rank) => Some(rank),
        InputRanks::All | InputRanks::None => None,
    };
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        // What cannot be read is at its end, as for a program that reads it itself.
        let count = match reads {
            InputRanks::None => 0,
            _ => match input.read(&mut piece) {
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                read => read.unwrap_or(0),
            },
        };
        let frame = StepInput::Stdin {
            rank,
            bytes: piece[..count].to_vec(),
        };
        for peer in peers {
            peer.wait_for_room(count);
            peer.send(&frame);
        }
        if count == 0 {
            return;
        }
    }
}
