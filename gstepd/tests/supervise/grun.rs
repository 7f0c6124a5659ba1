//! The other end of a step, in place of grun: listens, checks the key, collects what the tasks write and how they end.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use gmodel::ExitCode;
use gmodel::run::Usage;
use gmodel::supervise::{StepInput, StepOrder, StepOutput, StepStream};
use gwire::step_tls::StepIdentity;
use rustls::{ServerConnection, StreamOwned};

use super::bench::wait_for;

pub struct Grun {
    listener: TcpListener,
    identity: StepIdentity,
    key: String,
}

/// What came of a step's tasks, by rank.
#[derive(Default, Debug)]
pub struct StepOutcome {
    pub stdout: BTreeMap<u32, String>,
    pub stderr: BTreeMap<u32, String>,
    pub ended: BTreeMap<u32, (ExitCode, String)>,
    pub refused: Option<String>,
    /// Bytes of input.
    pub taken: usize,
    pub used: Option<(Usage, String)>,
}

pub struct TaskConnection {
    stream: StreamOwned<ServerConnection, TcpStream>,
    received: Vec<u8>,
}

impl Grun {
    pub fn listen() -> Grun {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        Grun {
            listener,
            identity: StepIdentity::new().unwrap(),
            key: "open sesame".into(),
        }
    }

    /// An order of `tasks` tasks, all on this node.
    pub fn order(&self, step: u32, tasks: u32, script: &str) -> StepOrder {
        StepOrder {
            step,
            argv: ["sh", "-c", script].map(String::from).to_vec(),
            environment: vec!["PATH=/usr/bin:/bin".into()],
            ranks: (0..tasks).collect(),
            ntasks: tasks,
            nodes: vec!["n1".into()],
            connect: self.listener.local_addr().unwrap().to_string(),
            key: self.key.clone(),
            certificate: self.identity.pin.clone(),
            ..StepOrder::default()
        }
    }

    pub fn accept(&self) -> TaskConnection {
        let stream = wait_for("gstepd to connect", || self.listener.accept().ok()).0;
        stream.set_nonblocking(false).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        let mut connection = TaskConnection {
            stream: StreamOwned::new(self.identity.connection().unwrap(), stream),
            received: Vec::new(),
        };
        match connection.next() {
            Some(StepOutput::Hello { key, .. }) => assert_eq!(key, self.key),
            other => panic!("no hello but {other:?}"),
        }
        connection
    }
}

impl TaskConnection {
    /// The next frame; `None` at the end of the stream.
    pub fn next(&mut self) -> Option<StepOutput> {
        loop {
            if let Some((output, used)) = StepOutput::read(&self.received).unwrap() {
                self.received.drain(..used);
                return Some(output);
            }
            let mut buffer = [0; 4096];
            match self.stream.read(&mut buffer) {
                Ok(0) => return None,
                Ok(count) => self.received.extend_from_slice(&buffer[..count]),
                Err(e) if e.kind() == ErrorKind::UnexpectedEof => return None,
                Err(e) => panic!("gstepd sends nothing: {e}"),
            }
        }
    }

    pub fn signal(&mut self, signal: u8) {
        self.stream
            .write_all(&StepInput::Signal { signal }.frame())
            .unwrap();
    }

    pub fn input(&mut self, rank: Option<u32>, bytes: &[u8]) {
        self.stream
            .write_all(
                &StepInput::Stdin {
                    rank,
                    bytes: bytes.to_vec(),
                }
                .frame(),
            )
            .unwrap();
    }

    pub fn try_input(&mut self, rank: Option<u32>, bytes: &[u8]) {
        let _ = self.stream.write_all(
            &StepInput::Stdin {
                rank,
                bytes: bytes.to_vec(),
            }
            .frame(),
        );
    }

    /// Until the connection is closed or reset.
    pub fn read_to_the_end(mut self) {
        let mut buffer = [0; 4096];
        while self.stream.read(&mut buffer).is_ok_and(|count| count > 0) {}
    }

    /// Reads to the end of the stream.
    pub fn collect(mut self) -> StepOutcome {
        let mut all = StepOutcome::default();
        while let Some(output) = self.next() {
            match output {
                StepOutput::Output {
                    rank,
                    stream,
                    bytes,
                } => {
                    assert!(
                        !all.ended.contains_key(&rank),
                        "output of {rank} after its end"
                    );
                    let texts = if stream == StepStream::Stdout {
                        &mut all.stdout
                    } else {
                        &mut all.stderr
                    };
                    texts
                        .entry(rank)
                        .or_default()
                        .push_str(&String::from_utf8(bytes).unwrap());
                }
                StepOutput::Ended { rank, exit, text } => {
                    assert_eq!(all.ended.insert(rank, (exit, text)), None)
                }
                StepOutput::Refused { text } => all.refused = Some(text),
                StepOutput::Started { .. } => {}
                StepOutput::Taken { bytes } => all.taken += bytes as usize,
                StepOutput::Used { usage, text } => {
                    assert_eq!(all.used.replace((usage, text)), None)
                }
                other => panic!("{other:?}"),
            }
        }
        all
    }
}
