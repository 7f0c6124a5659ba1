//! grun's own terminal while it stands for the terminal of a task (`grun --pty`).

use crate::step_input::Peer;
use crate::step_message::Message;
use gmodel::supervise::{StepInput, TerminalSize};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use std::io::{ErrorKind, Read, stdin, stdout};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

/// Of a terminal that has none, as a file or a pipe.
const USUAL_SIZE: TerminalSize = TerminalSize {
    rows: 24,
    columns: 80,
};
const PIECE_BYTES: usize = 4096;

/// The size of the terminal at stdin, or else at stdout.
pub(crate) fn size() -> TerminalSize {
    let of = |size: rustix::io::Result<rustix::termios::Winsize>| {
        let size = size
            .ok()
            .filter(|size| size.ws_row > 0 && size.ws_col > 0)?;
        Some(TerminalSize {
            rows: size.ws_row,
            columns: size.ws_col,
        })
    };
    of(tcgetwinsize(stdin()))
        .or_else(|| of(tcgetwinsize(stdout())))
        .unwrap_or(USUAL_SIZE)
}

/// Passes each key on as it is typed, until it is dropped.
pub(crate) struct RawTerminal {
    before: Termios,
}

impl RawTerminal {
    /// `None` where stdin is no terminal.
    pub fn enter() -> Option<Self> {
        let before = tcgetattr(stdin()).ok()?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(stdin(), OptionalActions::Drain, &raw).ok()?;
        Some(Self { before })
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing.
        let _ = tcsetattr(stdin(), OptionalActions::Drain, &self.before);
    }
}

/// Reads what is typed and sends it to the first task. `~.` at the begin of a line leaves the step, which goes on without a client for
/// a while; `~~` is a `~`.
pub(crate) fn forward(peer: &Arc<Peer>, messages: &SyncSender<Message>, has_escape: bool) {
    let mut escape = EscapeScan::new(has_escape);
    let mut piece = [0; PIECE_BYTES];
    loop {
        let count = match stdin().read(&mut piece) {
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            read => read.unwrap_or(0),
        };
        let (bytes, leaves) = escape.scan(&piece[..count]);
        if count == 0 || !bytes.is_empty() {
            peer.wait_for_room(bytes.len());
            peer.send(&StepInput::Stdin {
                rank: Some(0),
                bytes,
            });
        }
        if leaves {
            // The receiver may have ended first.
            let _ = messages.send(Message::Left("left by ~.".to_owned()));
        }
        if count == 0 || leaves {
            return;
        }
    }
}

/// Looks for `~.` at the begin of a line, as ssh(1) has it.
struct EscapeScan {
    is_on: bool,
    at_line_start: bool,
    /// A `~` that is not sent yet.
    held: bool,
}

impl EscapeScan {
    fn new(is_on: bool) -> Self {
        Self {
            is_on,
            at_line_start: true,
            held: false,
        }
    }

    /// The bytes to send, and whether the user leaves.
    fn scan(&mut self, typed: &[u8]) -> (Vec<u8>, bool) {
        if !self.is_on {
            return (typed.to_vec(), false);
        }
        let mut bytes = Vec::with_capacity(typed.len() + 1);
        for byte in typed {
            match (std::mem::take(&mut self.held), byte) {
                (true, b'.') => return (bytes, true),
                (true, b'~') => {}
                (true, _) => bytes.push(b'~'),
                (false, b'~') if self.at_line_start => {
                    self.held = true;
                    continue;
                }
                (false, _) => {}
            }
            bytes.push(*byte);
            self.at_line_start = matches!(byte, b'\r' | b'\n');
        }
        (bytes, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tilde_and_a_dot_leave_at_the_begin_of_a_line_only() {
        let scan = |pieces: &[&str]| {
            let mut scan = EscapeScan::new(true);
            let mut sent = String::new();
            for piece in pieces {
                let (bytes, leaves) = scan.scan(piece.as_bytes());
                sent.push_str(std::str::from_utf8(&bytes).unwrap());
                if leaves {
                    sent.push_str("<left>");
                }
            }
            sent
        };
        assert_eq!(scan(&["~."]), "<left>");
        assert_eq!(scan(&["ls\r", "~", "."]), "ls\r<left>");
        assert_eq!(scan(&["cd ~.", "\r"]), "cd ~.\r", "inside a line");
        assert_eq!(scan(&["~~.\r"]), "~.\r");
        assert_eq!(scan(&["~/bin\r"]), "~/bin\r");
        assert_eq!(EscapeScan::new(false).scan(b"~."), (b"~.".to_vec(), false));
    }
}
