//! The job's own socket: a line is a checkpoint mark with that note, answered `ok NUMBER` or `error WHY`. Owns the numbers, the
//! bounds, and `mark.json`, which is durable before the answer. What a mark means for the run is `life`'s.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use gmodel::Timestamp;
use gmodel::checkpoint::{CheckpointMark, MAX_NOTE_BYTES};
use gsys::durable_file::write_atomic;
use gsys::peer::peer_of;
use nix::sys::socket::{Backlog, listen};

use crate::life::BootMillis;

const RECORD: &str = "mark.json";
/// Longest line that is read; a longer one is answered and its connection dropped.
const MAX_LINE_BYTES: usize = 4096;
/// When one more comes, one that has been silent for a while goes; as long as none has, it waits to be let in.
const MAX_PEERS: usize = 64;
const SILENT_MILLIS: u64 = 1000;
/// Connections that wait in the kernel: a mark comes behind these at most.
const MAX_WAITING: i32 = 128;
/// Between two marks that are accepted.
const MARK_EVERY_MILLIS: u64 = 1000;
/// A job may send as fast as it can: after so many answers in a tenth of a second nothing is read until that is over. Few
/// enough to cost nothing, and enough for a mark to get through the kernel's queue of connections.
const MAX_ANSWERS: u32 = 25;
const ANSWERS_EVERY_MILLIS: u64 = 100;

pub struct MarkSocket {
    listener: UnixListener,
    /// The user that may set marks, beside root.
    uid: u32,
    peers: Vec<Peer>,
    newest: Option<CheckpointMark>,
    accepted_at: Option<BootMillis>,
    /// Begin of such a time, and answers given in it.
    answered: (BootMillis, u32),
}

struct Peer {
    stream: UnixStream,
    received: Vec<u8>,
    closed: bool,
    /// When it was first looked at in vain since it last sent something.
    silent_since: Option<BootMillis>,
}

impl MarkSocket {
    /// Marks from this listener, by this user.
    pub fn new(listener: UnixListener, uid: u32) -> io::Result<MarkSocket> {
        listener.set_nonblocking(true)?;
        listen(&listener, Backlog::new(MAX_WAITING)?)?;
        Ok(MarkSocket {
            listener,
            uid,
            peers: Vec::new(),
            newest: None,
            accepted_at: None,
            answered: (BootMillis(0), 0),
        })
    }

    /// What to poll for POLLIN; nothing while it rests, and no newcomers while there is no room for one.
    pub fn fds(&self, now: BootMillis) -> Vec<BorrowedFd<'_>> {
        if self.rests(now) {
            return Vec::new();
        }
        let listener = self.has_room(now).then(|| self.listener.as_fd());
        listener
            .into_iter()
            .chain(self.peers.iter().map(|peer| peer.stream.as_fd()))
            .collect()
    }

    /// When it has rested, or has room again.
    pub fn next_deadline(&self, now: BootMillis) -> Option<BootMillis> {
        match self.rests(now) {
            true => Some(BootMillis(self.answered.0.0 + ANSWERS_EVERY_MILLIS)),
            false => self
                .next_room()
                .filter(|at| !self.has_room(now) && *at > now),
        }
    }

    /// Reads what has come, answers it, and returns the marks that were accepted. Never blocks, but for the disk.
    pub fn receive(&mut self, now: BootMillis, at: Timestamp) -> Vec<CheckpointMark> {
        // Before new connections are read: the oldest connection does not wait for the next turn.
        while self.has_room(now)
            && let Ok((stream, _)) = self.listener.accept()
        {
            self.admit(stream);
        }
        let mut accepted = Vec::new();
        for index in 0..self.peers.len() {
            if self.rests(now) {
                break;
            }
            for line in self.peers[index].read(now) {
                let answer = line.and_then(|line| self.mark(&line, now, at));
                self.peers[index].answer(&answer);
                self.count_answer(now);
                accepted.extend(answer.ok());
                if self.peers[index].closed {
                    break;
                }
            }
        }
        self.peers.retain(|peer| !peer.closed);
        accepted
    }

    fn admit(&mut self, stream: UnixStream) {
        if stream.set_nonblocking(true).is_err() {
            return;
        }
        let mut peer = Peer {
            stream,
            received: Vec::new(),
            closed: false,
            silent_since: None,
        };
        if !peer_of(&peer.stream).is_ok_and(|peer| peer.uid == 0 || peer.uid == self.uid) {
            peer.answer(&Err(format!(
                "only the job's user (uid {}) marks its checkpoints",
                self.uid
            )));
            return;
        }
        if self.peers.len() >= MAX_PEERS {
            let silent = self
                .peers
                .iter()
                .enumerate()
                .filter_map(|(at, peer)| Some((peer.silent_since?, at)))
                .min();
            silent.map(|(_, at)| self.peers.remove(at));
        }
        self.peers.push(peer);
    }

    fn has_room(&self, now: BootMillis) -> bool {
        self.peers.len() < MAX_PEERS || self.next_room().is_some_and(|at| at <= now)
    }

    /// When the one that has been silent longest may go for another.
    fn next_room(&self) -> Option<BootMillis> {
        self.peers
            .iter()
            .filter_map(|peer| peer.silent_since)
            .min()
            .map(|since| BootMillis(since.0 + SILENT_MILLIS))
    }

    fn mark(
        &mut self,
        line: &[u8],
        now: BootMillis,
        at: Timestamp,
    ) -> Result<CheckpointMark, String> {
        let note = note(line)?;
        if let Some(last) = self.accepted_at
            && now.0 < last.0 + MARK_EVERY_MILLIS
        {
            let left = last.0 + MARK_EVERY_MILLIS - now.0;
            return Err(format!(
                "too soon: one mark a second is taken; again in {left} ms"
            ));
        }
        let mark = CheckpointMark {
            number: self.newest.as_ref().map_or(0, |mark| mark.number) + 1,
            at,
            note,
        };
        let bytes = serde_json::to_vec(&mark).map_err(|e| e.to_string())?;
        write_atomic(Path::new(RECORD), &bytes)
            .map_err(|e| format!("the node could not write the mark down: {e}"))?;
        self.newest = Some(mark.clone());
        self.accepted_at = Some(now);
        Ok(mark)
    }

    fn rests(&self, now: BootMillis) -> bool {
        let (since, count) = self.answered;
        count >= MAX_ANSWERS && now.0 < since.0 + ANSWERS_EVERY_MILLIS
    }

    fn count_answer(&mut self, now: BootMillis) {
        match now.0 < self.answered.0.0 + ANSWERS_EVERY_MILLIS {
            true => self.answered.1 += 1,
            false => self.answered = (now, 1),
        }
    }
}

/// The note on a line; it may be empty.
fn note(line: &[u8]) -> Result<String, String> {
    let text = str::from_utf8(line)
        .map_err(|_| "a note is one line of UTF-8 text".to_owned())?
        .trim();
    if text.len() > MAX_NOTE_BYTES {
        return Err(format!(
            "a note of {} bytes: {MAX_NOTE_BYTES} are taken",
            text.len()
        ));
    }
    match text.chars().any(char::is_control) {
        true => Err("a note is one line of printable text; this one has control characters".into()),
        false => Ok(text.to_owned()),
    }
}

impl Peer {
    /// Lines that are whole. The last one may end with the stream.
    fn read(&mut self, now: BootMillis) -> Vec<Result<Vec<u8>, String>> {
        let mut buffer = [0; MAX_LINE_BYTES];
        match self.stream.read(&mut buffer) {
            Ok(0) => {
                self.closed = true;
                let rest = std::mem::take(&mut self.received);
                return if rest.is_empty() {
                    Vec::new()
                } else {
                    vec![Ok(rest)]
                };
            }
            Ok(count) => {
                self.received.extend_from_slice(&buffer[..count]);
                self.silent_since = None;
            }
            Err(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) =>
            {
                self.silent_since.get_or_insert(now);
            }
            Err(_) => self.closed = true,
        }
        let mut lines: Vec<Result<Vec<u8>, String>> = Vec::new();
        while let Some(length) = self.received.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.received.drain(..=length).collect();
            lines.push(Ok(line[..length].to_vec()));
        }
        if self.received.len() >= MAX_LINE_BYTES {
            lines.push(Err(format!("a line of more than {MAX_LINE_BYTES} bytes")));
        }
        lines
    }

    /// A peer need not read the answer. After an error the connection ends, and the rest of its bytes is dropped.
    fn answer(&mut self, answer: &Result<CheckpointMark, String>) {
        let line = match answer {
            Ok(mark) => format!("ok {}\n", mark.number),
            Err(why) => format!("error {why}\n"),
        };
        let sent = self.stream.write_all(line.as_bytes());
        self.closed |= answer.is_err() || sent.is_err();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_a_line_of_text() {
        assert_eq!(note(b" epoch 7 \r").unwrap(), "epoch 7");
        assert_eq!(note(b"").unwrap(), "");
        assert_eq!(note("f\u{fc}nf".as_bytes()).unwrap(), "f\u{fc}nf");
        assert!(note(b"\xff\xfe").is_err() && note(b"a\0b").is_err() && note(b"\x1b[31m").is_err());
        assert!(note(&[b'x'; MAX_NOTE_BYTES]).is_ok());
        assert_eq!(
            note(&[b'x'; MAX_NOTE_BYTES + 1]).unwrap_err(),
            "a note of 257 bytes: 256 are taken"
        );
    }

    /// A socket in a directory of its own, and so many connections to it that have all sent this.
    fn crowd(name: &str, count: usize, words: &[u8]) -> (MarkSocket, Vec<UnixStream>) {
        let path = std::env::temp_dir().join(format!("gstepd-{name}-{}", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        let connect = |_| {
            let mut stream = UnixStream::connect(&path).unwrap();
            stream.set_nonblocking(true).unwrap();
            stream.write_all(words).unwrap();
            stream
        };
        let streams = (0..count).map(connect).collect();
        std::fs::remove_file(&path).unwrap();
        (MarkSocket::new(listener, 0).unwrap(), streams)
    }

    /// Hears them for some seconds, as the supervisor's loop does.
    fn hear(socket: &mut MarkSocket, millis: std::ops::Range<u64>) {
        for now in millis.step_by(100).map(BootMillis) {
            if !socket.fds(now).is_empty() {
                socket.receive(now, Timestamp::from_secs(1));
            }
        }
    }

    fn answer(mut stream: &UnixStream) -> String {
        let mut answer = [0; 200];
        let count = stream.read(&mut answer).unwrap_or(0);
        String::from_utf8_lossy(&answer[..count]).into_owned()
    }

    #[test]
    fn in_a_flood_each_is_answered_when_it_is_its_turn() {
        let (mut socket, streams) = crowd("flood", 120, b"\x1b\n");
        hear(&mut socket, 0..300);
        let answered = streams[..75]
            .iter()
            .filter(|stream| answer(stream).starts_with("error a note is"))
            .count();
        assert_eq!(
            (answered, answer(&streams[75])),
            (75, String::new()),
            "no more at a time, and none is sent away unheard"
        );
        hear(&mut socket, 300..600);
        assert!(
            streams[75..]
                .iter()
                .all(|stream| answer(stream).starts_with("error a note is"))
        );
    }

    #[test]
    fn a_silent_connection_makes_room_for_a_new_one() {
        let (mut socket, mut streams) = crowd("silent", MAX_PEERS + 1, b"");
        streams[MAX_PEERS].write_all(b"\x1b\n").unwrap();
        assert_eq!(socket.next_deadline(BootMillis(0)), None);
        hear(&mut socket, 0..1000);
        assert_eq!(
            answer(&streams[MAX_PEERS]),
            "",
            "nobody has been silent for long"
        );
        assert_eq!(
            socket.next_deadline(BootMillis(900)),
            Some(BootMillis(SILENT_MILLIS))
        );
        hear(&mut socket, 1000..1200);
        assert!(answer(&streams[MAX_PEERS]).starts_with("error a note is"));
        assert_eq!(
            socket.next_deadline(BootMillis(1200)),
            None,
            "there is room"
        );
    }
}
