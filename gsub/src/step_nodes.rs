//! The ways to the nodes of a step: nodes inside of the same job call back with a secret, to others grun opens a stream.

use crate::step_input::{Peer, Peers};
use crate::step_message::Message;
use crate::step_stream::{self, StreamAddress};
use gcli::Failure;
use gmodel::supervise::StepOutput;
use gwire::api::StepReply;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::collections::{BTreeSet, VecDeque};
use std::io::{ErrorKind, Read};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::mpsc::{self, Sender};
use std::time::{Duration, Instant};

/// Time the nodes have to call back.
const CONNECT_PATIENCE: Duration = Duration::from_secs(30);
/// A caller that says nothing is no supervisor of ours.
const HELLO_PATIENCE: Duration = Duration::from_secs(5);
/// Callers without a greeting yet; beyond that many the oldest is dropped.
const MAX_CALLERS: usize = 256;
/// More than a caller has to say of itself, bytes.
const MAX_HELLO_BYTES: usize = 4096;

/// Waits until every node of the step has called back and proved itself.
pub(crate) fn accept(
    listener: &TcpListener,
    step: &StepReply,
    key: &str,
    sender: &mpsc::SyncSender<Message>,
) -> Result<Peers, Failure> {
    let mut missing: BTreeSet<u32> = (0..step.nodes.len() as u32)
        .filter(|at| !step.nodes[*at as usize].ranks.is_empty())
        .collect();
    let deadline = Instant::now() + CONNECT_PATIENCE;
    let _ = listener.set_nonblocking(false);
    let (found, incoming) = mpsc::channel();
    let listener = listener
        .try_clone()
        .map_err(|e| Failure::new(format_args!("cannot listen: {e}")))?;
    let (key, number) = (key.to_owned(), step.step);
    std::thread::spawn(move || greet(&listener, number, &key, &found));
    let mut peers = Peers::new();
    while !missing.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        let (at, stream, rest) = incoming.recv_timeout(left).map_err(|_| {
            let names: Vec<&str> = missing
                .iter()
                .map(|at| step.nodes[*at as usize].name.as_str())
                .collect();
            Failure::new(format_args!(
                "step {}: no answer from {} in {} s",
                step.step,
                names.join(", "),
                CONNECT_PATIENCE.as_secs()
            ))
        })?;
        if !missing.remove(&at) {
            continue;
        }
        let reader = stream
            .try_clone()
            .map_err(|e| Failure::new(format_args!("a node's connection: {e}")))?;
        let sender = sender.clone();
        std::thread::spawn(move || read_node(at, reader, rest, &sender));
        peers.insert(at, Peer::new(stream));
    }
    Ok(peers)
}

/// Opens a stream to each node of the step that has tasks.
pub(crate) fn open_streams(
    socket: &Path,
    job: &str,
    step: &StepReply,
    sender: &mpsc::SyncSender<Message>,
) -> Result<Peers, Failure> {
    let mut peers = Peers::new();
    for (at, node) in (0..).zip(&step.nodes) {
        if node.ranks.is_empty() {
            continue;
        }
        let address = StreamAddress {
            socket: socket.to_owned(),
            job: job.to_owned(),
            step: step.step,
            node: node.name.clone(),
            at,
        };
        let stream = step_stream::open(address, sender.clone())
            .map_err(|e| Failure::new(format_args!("a node's stream: {e}")))?;
        peers.insert(at, Peer::by_stream(stream));
    }
    Ok(peers)
}

/// A caller without a complete greeting.
struct Caller {
    stream: TcpStream,
    said: Vec<u8>,
    since: Instant,
}

/// What a caller said so far.
enum Greeting {
    /// The position of the node of the step that it is.
    Node(u32),
    /// Nothing yet, or a part.
    Waits,
    Stranger,
}

/// Listens to all callers at once, since any machine of the network may connect. Callers without the key, without a greeting in
/// time or beyond the bound are dropped and delay no other: a supervisor greets at once.
fn greet(listener: &TcpListener, step: u32, key: &str, found: &Sender<(u32, TcpStream, Vec<u8>)>) {
    let mut callers: VecDeque<Caller> = VecDeque::new();
    let _ = listener.set_nonblocking(true);
    loop {
        let mut fds = vec![PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
        fds.extend(
            callers
                .iter()
                .map(|caller| PollFd::new(caller.stream.as_fd(), PollFlags::POLLIN)),
        );
        let oldest = callers
            .front()
            .map(|caller| HELLO_PATIENCE.saturating_sub(caller.since.elapsed()));
        let timeout = oldest.map_or(PollTimeout::NONE, |left| {
            PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX)
        });
        let _ = poll(&mut fds, timeout); // an interrupt: looked at again
        for mut caller in std::mem::take(&mut callers) {
            match caller.greeting(step, key) {
                Greeting::Waits if caller.since.elapsed() < HELLO_PATIENCE => {
                    callers.push_back(caller)
                }
                Greeting::Node(at) => {
                    let _ = caller.stream.set_nonblocking(false);
                    if found.send((at, caller.stream, caller.said)).is_err() {
                        return;
                    }
                }
                Greeting::Waits | Greeting::Stranger => {}
            }
        }
        match listener.accept() {
            Ok((stream, _)) => {
                if callers.len() >= MAX_CALLERS {
                    callers.pop_front();
                }
                let is_set = stream.set_nonblocking(true).is_ok();
                callers.extend(is_set.then(|| Caller {
                    stream,
                    said: Vec::new(),
                    since: Instant::now(),
                }));
            }
            Err(e)
                if matches!(
                    e.kind(),
                    ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::ConnectionAborted
                ) => {}
            // Too many open files, say: those that wait make room.
            Err(_) if callers.pop_front().is_some() => {}
            Err(_) => return,
        }
    }
}

impl Caller {
    fn greeting(&mut self, step: u32, key: &str) -> Greeting {
        let mut chunk = [0u8; MAX_HELLO_BYTES];
        let is_over = match self.stream.read(&mut chunk) {
            Ok(count) => {
                self.said.extend_from_slice(&chunk[..count]);
                count == 0
            }
            Err(e) => !matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
        };
        match StepOutput::read(&self.said) {
            Ok(Some((
                StepOutput::Hello {
                    step: told,
                    node_index,
                    key: theirs,
                },
                used,
            ))) if told == step && same(theirs.as_bytes(), key.as_bytes()) => {
                self.said.drain(..used);
                Greeting::Node(node_index)
            }
            Ok(None) if !is_over && self.said.len() < MAX_HELLO_BYTES => Greeting::Waits,
            _ => Greeting::Stranger,
        }
    }
}

/// Compares without telling by its time where the first difference is.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |sum, (x, y)| sum | (x ^ y)) == 0
}

fn read_node(
    at: u32,
    mut stream: TcpStream,
    mut buffer: Vec<u8>,
    sender: &mpsc::SyncSender<Message>,
) {
    while let Some(output) = next_frame(&mut stream, &mut buffer) {
        if sender.send(Message::From(at, output)).is_err() {
            return;
        }
    }
    let _ = sender.send(Message::Gone(at));
}

/// The next whole frame; `None` at the end and when what comes is no frame.
fn next_frame(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<StepOutput> {
    let mut chunk = [0u8; 16 << 10];
    loop {
        match StepOutput::read(buffer) {
            Err(_) => return None,
            Ok(Some((output, used))) => {
                buffer.drain(..used);
                return Some(output);
            }
            Ok(None) => {}
        }
        match stream.read(&mut chunk) {
            Ok(0) => return None,
            Ok(count) => buffer.extend_from_slice(&chunk[..count]),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step_gathering::tests::two_nodes;

    #[test]
    fn silent_and_wrong_callers_hold_up_no_node_of_the_step() {
        use std::io::Write;
        let step = two_nodes();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, _messages) = mpsc::sync_channel(16);
        let hello = |node_index, key: &str| {
            StepOutput::Hello {
                step: 0,
                node_index,
                key: key.into(),
            }
            .frame()
        };
        let dial = move |bytes: &[u8]| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(bytes).unwrap();
            stream
        };
        let begun = Instant::now();
        let callers = std::thread::spawn(move || {
            let mut open: Vec<TcpStream> = (0..300).map(|_| dial(b"")).collect();
            open.extend([
                dial(&hello(0, "wrong")),
                dial(&[0xff; 5000]),
                dial(b"GET / HTTP/1.1\r\n\r\n"),
                dial(&hello(0, "secret")[..6]),
            ]);
            open.extend([dial(&hello(1, "secret")), dial(&hello(0, "secret"))]);
            open
        });
        let peers = accept(&listener, &step, "secret", &sender).expect("both nodes are heard");
        assert_eq!(peers.len(), 2);
        assert!(begun.elapsed() < HELLO_PATIENCE, "{:?}", begun.elapsed());
        drop(callers.join());
    }

    #[test]
    fn secrets_are_compared_whole() {
        assert!(same(b"abc", b"abc"));
        assert!(!same(b"abc", b"abd") && !same(b"abc", b"ab"));
    }
}
