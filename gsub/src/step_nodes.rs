//! The ways to the nodes of a step: nodes inside of the same job call back by TLS with a secret, to others grun opens a stream.

use crate::step_connection::StepConnection;
use crate::step_input::{Peer, Peers};
use crate::step_message::Message;
use crate::step_stream::{self, StreamAddress};
use gcli::Failure;
use gmodel::supervise::StepOutput;
use gwire::api::StepReply;
use gwire::step_tls::StepIdentity;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::collections::{BTreeSet, VecDeque};
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
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

/// Where a grun inside of a job waits for the nodes of its step.
pub(crate) struct CallbackListener {
    listener: TcpListener,
    identity: StepIdentity,
    /// The secret that a node says.
    pub key: String,
}

impl CallbackListener {
    pub fn new(address: SocketAddr) -> anyhow::Result<Self> {
        let mut secret = [0u8; 32];
        File::open("/dev/urandom")?.read_exact(&mut secret)?;
        Ok(Self {
            listener: TcpListener::bind(address)?,
            identity: StepIdentity::new()?,
            key: secret.iter().map(|byte| format!("{byte:02x}")).collect(),
        })
    }

    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// SHA-256 of the certificate that the nodes accept.
    pub fn certificate(&self) -> &str {
        &self.identity.pin
    }

    /// Waits until every node of the step has called back and proved itself.
    pub fn accept(
        self,
        step: &StepReply,
        sender: &mpsc::SyncSender<Message>,
    ) -> Result<Peers, Failure> {
        let mut missing: BTreeSet<u32> = (0..step.nodes.len() as u32)
            .filter(|at| !step.nodes[*at as usize].ranks.is_empty())
            .collect();
        let deadline = Instant::now() + CONNECT_PATIENCE;
        let (found, incoming) = mpsc::channel();
        let numbers: Vec<u32> = step.parts("").map(|part| part.step).collect();
        std::thread::spawn(move || self.greet(&numbers, &found));
        let mut peers = Peers::new();
        while !missing.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            let node = incoming.recv_timeout(left).map_err(|_| {
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
            let CallingNode {
                at,
                connection,
                said,
            } = node;
            if !missing.remove(&at) {
                continue;
            }
            let connection = Arc::new(connection);
            peers.insert(at, Peer::by_connection(connection.clone()));
            let sender = sender.clone();
            std::thread::spawn(move || read_node(at, &connection, said, &sender));
        }
        Ok(peers)
    }

    /// `None`: out of memory or random numbers.
    fn caller(&self, stream: TcpStream) -> Option<Caller> {
        stream.set_nonblocking(true).ok()?;
        Some(Caller {
            connection: StepConnection::new(stream, self.identity.connection().ok()?),
            said: Vec::new(),
            since: Instant::now(),
        })
    }

    /// Listens to all callers at once, since any machine of the network may connect. Callers without the key, without a greeting in
    /// time or beyond the bound are dropped and delay no other: a supervisor greets at once.
    fn greet(&self, steps: &[u32], found: &Sender<CallingNode>) {
        let mut callers: VecDeque<Caller> = VecDeque::new();
        let listener = &self.listener;
        let _ = listener.set_nonblocking(true);
        loop {
            let mut fds = vec![PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
            fds.extend(
                callers
                    .iter()
                    .map(|caller| PollFd::new(caller.connection.fd(), PollFlags::POLLIN)),
            );
            let oldest = callers
                .front()
                .map(|caller| HELLO_PATIENCE.saturating_sub(caller.since.elapsed()));
            let timeout = oldest.map_or(PollTimeout::NONE, |left| {
                PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX)
            });
            let _ = poll(&mut fds, timeout); // an interrupt: looked at again
            for mut caller in std::mem::take(&mut callers) {
                match caller.greeting(steps, &self.key) {
                    Greeting::Waits if caller.since.elapsed() < HELLO_PATIENCE => {
                        callers.push_back(caller)
                    }
                    Greeting::Node(at) => {
                        let _ = caller.connection.set_nonblocking(false);
                        let (connection, said) = (caller.connection, caller.said);
                        let node = CallingNode {
                            at,
                            connection,
                            said,
                        };
                        if found.send(node).is_err() {
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
                    callers.extend(self.caller(stream));
                }
                Err(e)
                    if matches!(
                        e.kind(),
                        ErrorKind::WouldBlock
                            | ErrorKind::Interrupted
                            | ErrorKind::ConnectionAborted
                    ) => {}
                // Too many open files, say: those that wait make room.
                Err(_) if callers.pop_front().is_some() => {}
                Err(_) => return,
            }
        }
    }
}

/// What a stream is opened for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamUse {
    /// To be the client of the step: another one that is there is told and loses it.
    Client,
    /// To see its output beside the client.
    Watch,
}

/// Opens a stream to each node of the step that has tasks.
pub(crate) fn open_streams(
    socket: &Path,
    job: &str,
    step: &StepReply,
    what_for: StreamUse,
    sender: &mpsc::SyncSender<Message>,
) -> Result<Peers, Failure> {
    let mut peers = Peers::new();
    for part in step.parts(job) {
        let with_tasks = part.nodes.zip(part.rows);
        for (at, node) in with_tasks.filter(|(_, node)| !node.ranks.is_empty()) {
            let address = StreamAddress {
                socket: socket.to_owned(),
                job: part.job.to_owned(),
                step: part.step,
                node: node.name.clone(),
                at,
                watch: what_for == StreamUse::Watch,
            };
            let stream = step_stream::open(address, sender.clone())
                .map_err(|e| Failure::new(format_args!("a node's stream: {e}")))?;
            peers.insert(at, Peer::by_stream(stream));
        }
    }
    Ok(peers)
}

/// A caller without a complete greeting.
struct Caller {
    connection: StepConnection,
    said: Vec<u8>,
    since: Instant,
}

/// A caller that proved to be a node of the step.
struct CallingNode {
    /// Its position in the step.
    at: u32,
    connection: StepConnection,
    /// Its first words after the greeting.
    said: Vec<u8>,
}

/// What a caller said so far.
enum Greeting {
    /// The position of the node of the step that it is.
    Node(u32),
    /// Nothing yet, or a part.
    Waits,
    Stranger,
}

impl Caller {
    fn greeting(&mut self, steps: &[u32], key: &str) -> Greeting {
        let is_over = match self.connection.receive(&mut self.said) {
            Ok(is_open) => !is_open,
            Err(e) => e.kind() != ErrorKind::WouldBlock,
        };
        match StepOutput::read(&self.said) {
            Ok(Some((
                StepOutput::Hello {
                    step: told,
                    node_index,
                    key: theirs,
                },
                used,
            ))) if steps.contains(&told) && same(theirs.as_bytes(), key.as_bytes()) => {
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
    connection: &StepConnection,
    mut buffer: Vec<u8>,
    sender: &mpsc::SyncSender<Message>,
) {
    while let Some(output) = next_frame(connection, &mut buffer) {
        if sender.send(Message::From(at, output)).is_err() {
            return;
        }
    }
    let _ = sender.send(Message::Gone(at));
}

/// The next whole frame; `None` at the end and when what comes is no frame.
fn next_frame(connection: &StepConnection, buffer: &mut Vec<u8>) -> Option<StepOutput> {
    loop {
        match StepOutput::read(buffer) {
            Err(_) => return None,
            Ok(Some((output, used))) => {
                buffer.drain(..used);
                return Some(output);
            }
            Ok(None) => {}
        }
        if !connection.receive(buffer).ok()? {
            return None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step_gathering::tests::two_nodes;
    use gwire::step_tls;

    #[test]
    fn silent_and_wrong_callers_hold_up_no_node_of_the_step() {
        use std::io::Write;
        let step = two_nodes();
        let mut listener = CallbackListener::new("127.0.0.1:0".parse().unwrap()).unwrap();
        listener.key = "secret".into();
        let (address, pin) = (
            listener.address().unwrap(),
            listener.certificate().to_owned(),
        );
        let (sender, _messages) = mpsc::sync_channel(16);
        let hello = |node_index, key: &str| {
            StepOutput::Hello {
                step: 0,
                node_index,
                key: key.into(),
            }
            .frame()
        };
        let plain = move |bytes: &[u8]| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(bytes).unwrap();
            stream
        };
        let dial = move |bytes: &[u8]| {
            let mut tls = step_tls::client_connection(&pin).unwrap();
            tls.writer().write_all(bytes).unwrap();
            let mut stream = TcpStream::connect(address).unwrap();
            while tls.is_handshaking() || tls.wants_write() {
                tls.complete_io(&mut stream).unwrap();
            }
            stream
        };
        let begun = Instant::now();
        let callers = std::thread::spawn(move || {
            let mut open: Vec<TcpStream> = (0..300).map(|_| plain(b"")).collect();
            open.extend([
                dial(&hello(0, "wrong")),
                dial(&[0xff; 5000]),
                plain(&hello(1, "secret")),
                plain(b"GET / HTTP/1.1\r\n\r\n"),
                dial(&hello(0, "secret")[..6]),
            ]);
            open.extend([dial(&hello(1, "secret")), dial(&hello(0, "secret"))]);
            open
        });
        let peers = listener
            .accept(&step, &sender)
            .expect("both nodes are heard");
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
