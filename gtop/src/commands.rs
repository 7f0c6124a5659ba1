//! The commands behind the panes: gq, gnodes, gadm, gacct, gdel, as a user would type them. Owns their processes; at most one
//! fills the pane, and it ends with the pane.

use crate::app::{Event, MAX_PANE_LINES, PaneCommand};
use gcli::printable::printable;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::Sender;

/// Longest output of a command that is read.
const MAX_OUTPUT_BYTES: u64 = 4 << 20;
/// Longest line that is kept; the rest of it is dropped.
const MAX_LINE_BYTES: u64 = 16 << 10;

/// The command that fills the pane.
pub(crate) struct Pane {
    child: Option<Child>,
    sender: Sender<Event>,
}

impl Pane {
    pub(crate) fn new(sender: Sender<Event>) -> Self {
        Self {
            child: None,
            sender,
        }
    }

    /// Ends the command before and starts this one; what it prints comes as events of this generation.
    pub(crate) fn show(&mut self, command: &PaneCommand, generation: u64) {
        self.end();
        if command.words.is_empty() {
            return;
        }
        let sender = self.sender.clone();
        let mut child = match start(&command.words) {
            Ok(child) => child,
            Err(why) => {
                let _ = sender.send(Event::Pane(generation, vec![why]));
                return;
            }
        };
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let follows = command.follows;
        std::thread::spawn(move || {
            let complaint = std::thread::spawn(move || lines_of(err));
            let printed = match (out, follows) {
                (Some(out), true) => {
                    pass_on(out, |line| {
                        sender.send(Event::PaneLine(generation, line)).is_ok()
                    });
                    Vec::new()
                }
                (out, _) => lines_of(out),
            };
            let complaints = complaint.join().unwrap_or_default();
            if follows {
                for line in complaints {
                    let _ = sender.send(Event::PaneLine(generation, line));
                }
            } else {
                let all = [printed, complaints].concat();
                let _ = sender.send(Event::Pane(generation, all));
            }
        });
        self.child = Some(child);
    }

    fn end(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Pane {
    fn drop(&mut self) {
        self.end();
    }
}

/// Runs a command to its end, and tells the first line of what it said.
pub(crate) fn run(words: Vec<String>, sender: Sender<Event>) {
    std::thread::spawn(move || {
        let said = match start(&words) {
            Err(why) => why,
            Ok(mut child) => {
                let err = child.stderr.take();
                let lines = [lines_of(child.stdout.take()), lines_of(err)].concat();
                let done = child.wait().is_ok_and(|status| status.success());
                let text = lines.into_iter().next();
                text.unwrap_or_else(|| match done {
                    true => format!("{}: done", words.join(" ")),
                    false => format!("{}: failed", words.join(" ")),
                })
            }
        };
        let _ = sender.send(Event::Said(said));
    });
}

/// The program beside gtop's own, or of that name in PATH.
fn start(words: &[String]) -> Result<Child, String> {
    let own = std::env::current_exe().map(|own| own.with_file_name(&words[0]));
    let beside = own.ok().filter(|path| path.is_file());
    let program = beside.unwrap_or_else(|| words[0].clone().into());
    Command::new(&program)
        .args(&words[1..])
        .env("NO_COLOR", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("cannot run {}: {error}", program.display()))
}

fn lines_of(source: Option<impl Read>) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(source) = source {
        pass_on(source.take(MAX_OUTPUT_BYTES), |line| {
            lines.push(line);
            lines.len() < MAX_PANE_LINES
        });
    }
    lines
}

/// Each line, safe to print, until the source ends or `each` has enough.
fn pass_on(source: impl Read, mut each: impl FnMut(String) -> bool) {
    let mut source = BufReader::new(source);
    loop {
        let mut line = Vec::new();
        let read = source
            .by_ref()
            .take(MAX_LINE_BYTES)
            .read_until(b'\n', &mut line);
        if !matches!(read, Ok(1..)) || !each(shown(&line)) {
            return;
        }
    }
}

/// A line as it may stand on a terminal: a progress bar's last state, no control characters.
fn shown(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    let text = text.trim_end_matches(['\n', '\r']);
    let last = text.rsplit('\r').next().unwrap_or(text);
    printable(&last.replace('\t', "    ")).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_bounded_and_safe() {
        assert_eq!(
            shown(b"10%\r20%\r100%\tdone\x1b[31m\r\n"),
            "100%    done?[31m"
        );
        let long = vec![b'x'; 3 * MAX_LINE_BYTES as usize];
        let mut lines = Vec::new();
        pass_on(&long[..], |line| {
            lines.push(line.len());
            true
        });
        assert_eq!(lines, [MAX_LINE_BYTES as usize; 3]);
        let many = "a\n".repeat(MAX_PANE_LINES + 10);
        assert_eq!(lines_of(Some(many.as_bytes())).len(), MAX_PANE_LINES);
    }
}
