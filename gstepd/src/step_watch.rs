//! Second clients of a step: each is sent a copy of the output from its coming on, and says nothing. A client that reads too slowly
//! loses output and is told so; it holds up no step.

use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;

use gmodel::supervise::{StepOutput, StepStream};
use nix::poll::PollFlags;

use crate::attached_link::AttachedLink;
use crate::life::BootMillis;

/// Of one step on one node.
const MAX_WATCHERS: usize = 16;
/// A connection has to say hello, and at the end to take the last output, within this time.
const PATIENCE_SECS: u32 = 10;

#[derive(Default)]
pub struct Watchers(Vec<Watcher>);

struct Watcher {
    link: AttachedLink,
    is_greeted: bool,
    /// Bytes of output for which there was no room.
    missed: usize,
}

impl Watchers {
    pub fn is_full(&self) -> bool {
        self.0.len() >= MAX_WATCHERS
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// # Errors
    /// The socket's.
    pub fn add(&mut self, socket: UnixStream, read: Vec<u8>, now: BootMillis) -> io::Result<()> {
        // A connection that breaks is not waited for: the client comes anew.
        let mut link = AttachedLink::new(now.plus_secs(PATIENCE_SECS), 0);
        link.attach(socket, read)?;
        self.0.push(Watcher {
            link,
            is_greeted: false,
            missed: 0,
        });
        Ok(())
    }

    pub fn poll_fds(&self) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        let links = self.0.iter().map(|watcher| &watcher.link);
        links.filter_map(|link| Some((link.fd()?, link.wants())))
    }

    pub fn deadline(&self) -> Option<BootMillis> {
        self.0.iter().filter_map(|it| it.link.deadline()).min()
    }

    /// Moves the bytes that can be moved. True: a client is there that knows nothing of the step.
    pub fn service(&mut self, now: BootMillis) -> bool {
        self.0.retain_mut(|it| it.link.service(now).is_ok());
        self.0.iter().any(Watcher::is_new)
    }

    /// The first words to each new client.
    pub fn greet(&mut self, greeting: &[StepOutput]) {
        for watcher in self.0.iter_mut().filter(|it| it.is_new()) {
            greeting.iter().for_each(|words| watcher.link.send(words));
            watcher.is_greeted = true;
        }
    }

    pub fn send(&mut self, output: &StepOutput) {
        for watcher in self.0.iter_mut().filter(|it| it.is_greeted) {
            watcher.send(output);
        }
    }

    /// All was said: a client that has read it goes, and with `at_once` each other, too.
    pub fn release(&mut self, at_once: bool) {
        self.0.retain(|it| !at_once && !it.link.is_flushed());
    }
}

impl Watcher {
    fn is_new(&self) -> bool {
        self.link.is_connected() && !self.is_greeted
    }

    fn send(&mut self, output: &StepOutput) {
        if let StepOutput::Output { rank, bytes, .. } = output {
            if !self.link.has_room() {
                self.missed += bytes.len();
                return;
            }
            if self.missed > 0 {
                let text = format!(
                    "\r\n[{} bytes of output were lost here: read too slowly]\r\n",
                    self.missed
                );
                self.link.send(&StepOutput::Output {
                    rank: *rank,
                    stream: StepStream::Stderr,
                    bytes: text.into_bytes(),
                });
                self.missed = 0;
            }
        }
        self.link.send(output);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gmodel::resumable_stream::{ResumableStream, StreamHello, WINDOW_BYTES};
    use std::io::{Read, Write};

    const NOW: BootMillis = BootMillis(1000);

    fn output(byte: u8, count: usize) -> StepOutput {
        StepOutput::Output {
            rank: 0,
            stream: StepStream::Stdout,
            bytes: vec![byte; count],
        }
    }

    /// What a client has of the stream by now, acknowledged.
    fn read(client: &mut UnixStream, stream: &mut ResumableStream) -> Vec<u8> {
        let mut bytes = Vec::new();
        let _ = client.read_to_end(&mut bytes);
        let arrived = stream.receive(&bytes).unwrap();
        client.write_all(&stream.take_acknowledgement()).unwrap();
        arrived
    }

    #[test]
    fn a_client_that_stands_still_loses_output_and_holds_up_nothing() {
        let mut watchers = Watchers::default();
        let (mut client, theirs) = UnixStream::pair().unwrap();
        client.set_nonblocking(true).unwrap();
        watchers.add(theirs, Vec::new(), NOW).unwrap();
        watchers.send(&output(b'-', 10));
        assert!(!watchers.service(NOW), "it has said nothing yet");
        let hello = StreamHello {
            session: [7; 16],
            received: 0,
        };
        client.write_all(&hello.frame()).unwrap();
        assert!(watchers.service(NOW));
        watchers.greet(&[output(b'a', 3)]);
        assert!(!watchers.service(NOW));
        let mut stream = ResumableStream::default();
        let mut bytes = [0; 4096];
        let count = client.read(&mut bytes).unwrap();
        let (_, used) = StreamHello::read(&bytes[..count]).unwrap().unwrap();
        let greeting = stream.receive(&bytes[used..count]).unwrap();
        assert_eq!(
            greeting,
            output(b'a', 3).frame(),
            "nothing from before it came"
        );
        for _ in 0..100 {
            watchers.send(&output(b'b', 32 << 10));
            watchers.service(NOW);
        }
        let mut all = Vec::new();
        for _ in 0..100 {
            all.extend(read(&mut client, &mut stream));
            watchers.service(NOW);
        }
        assert!(all.len() < 2 * WINDOW_BYTES, "{}", all.len());
        watchers.send(&output(b'c', 1));
        watchers.service(NOW);
        let last = read(&mut client, &mut stream);
        let said = String::from_utf8_lossy(&last);
        assert!(
            said.contains("bytes of output were lost here") && said.ends_with('c'),
            "{said}"
        );
        watchers.service(NOW);
        watchers.release(false);
        assert!(watchers.is_empty());
    }

    #[test]
    fn a_client_that_says_no_hello_is_gone_in_time() {
        let mut watchers = Watchers::default();
        let (_client, theirs) = UnixStream::pair().unwrap();
        watchers.add(theirs, Vec::new(), NOW).unwrap();
        watchers.service(NOW);
        assert_eq!(watchers.deadline(), Some(NOW.plus_secs(PATIENCE_SECS)));
        watchers.service(NOW.plus_secs(PATIENCE_SECS));
        assert!(watchers.is_empty());
    }
}
