//! `gstepd --read-output`: reads a job's output file as the job's user and writes it to the stream on stdin, as
//! `gmodel/src/output_stream.rs` says. gpud starts it for each client; it ends with its stream. Supervises nothing.

use std::env;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use gmodel::output_stream::{self, FileIdentity, OutputFrame, OutputOrder, PIECE_BYTES};
use gmodel::supervise::OUTPUT_ORDER_VARIABLE;
use nix::fcntl::{OFlag, open};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::stat::Mode;

use crate::batch::os_string;

/// Pause between looks at a file that is followed.
const LOOK: Duration = Duration::from_millis(100);
/// A file that is missing for so long is looked for anew.
const MISSING: Duration = Duration::from_secs(1);

/// Reads what the order in the environment asks for.
pub fn serve() -> anyhow::Result<()> {
    let order = env::var(OUTPUT_ORDER_VARIABLE).context("gpud gives the order")?;
    let order: OutputOrder = serde_json::from_str(&order).context("the order")?;
    let stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    OutputReader::new(order, stream).run()
}

struct OutputReader {
    path: PathBuf,
    order: OutputOrder,
    stream: UnixStream,
    file: Option<OpenFile>,
    is_told_missing: bool,
}

struct OpenFile {
    file: File,
    identity: FileIdentity,
    position: u64,
}

/// What a look at the file came to.
enum Look {
    /// More was sent.
    Moved,
    AtEnd,
    Missing,
}

impl OutputReader {
    fn new(order: OutputOrder, stream: UnixStream) -> Self {
        Self {
            path: os_string(&order.path).into(),
            order,
            stream,
            file: None,
            is_told_missing: false,
        }
    }

    /// To the end of the file, or of the client.
    fn run(mut self) -> anyhow::Result<()> {
        let begun = Instant::now();
        loop {
            let looked = match self.look() {
                Ok(looked) => looked,
                Err(LookError::Stream(e)) => return Err(e).context("the stream"),
                Err(LookError::File(e)) => {
                    let text = format!("cannot read {}: {e}", self.order.path);
                    return self.send(&OutputFrame::Refused(text)).map_err(Into::into);
                }
            };
            let is_missing = matches!(looked, Look::Missing);
            if is_missing && !std::mem::replace(&mut self.is_told_missing, true) {
                self.send(&OutputFrame::Missing)?;
            }
            match looked {
                Look::Moved => {}
                Look::AtEnd | Look::Missing if !self.order.follow => {
                    return self.send(&OutputFrame::End).map_err(Into::into);
                }
                // The run may write to the spool instead: the client asks again.
                Look::Missing if self.file.is_none() && begun.elapsed() >= MISSING => {
                    return self.send(&OutputFrame::End).map_err(Into::into);
                }
                Look::AtEnd | Look::Missing if self.client_is_gone()? => return Ok(()),
                Look::AtEnd | Look::Missing => {}
            }
        }
    }

    /// Sends what is new.
    fn look(&mut self) -> Result<Look, LookError> {
        // An output in the spool has one file, which may lose its name while it is read.
        if self.order.attempt.is_none() || self.file.is_none() {
            let Some(named) = self.named_file()? else {
                return Ok(Look::Missing);
            };
            let named = self.identity(&named);
            if self.file.as_ref().is_none_or(|open| open.identity != named) {
                self.open()?;
            }
        }
        let Some(open) = &mut self.file else {
            return Ok(Look::Missing);
        };
        if open.file.metadata().map_err(LookError::File)?.len() < open.position {
            // It was cut: a new attempt of the job begins it anew.
            open.position = 0;
            let begun = OutputFrame::File {
                file: open.identity,
                position: 0,
            };
            self.stream
                .write_all(&begun.bytes())
                .map_err(LookError::Stream)?;
        }
        let mut piece = vec![0; PIECE_BYTES];
        let count = open
            .file
            .read_at(&mut piece, open.position)
            .map_err(LookError::File)?;
        if count == 0 {
            return Ok(Look::AtEnd);
        }
        piece.truncate(count);
        open.position += count as u64;
        self.send(&OutputFrame::Data(piece))
            .map_err(LookError::Stream)?;
        Ok(Look::Moved)
    }

    /// What has the path now. A device or a pipe is looked at and not opened.
    fn named_file(&self) -> Result<Option<fs::Metadata>, LookError> {
        match fs::metadata(&self.path) {
            Ok(named) if named.is_file() => Ok(Some(named)),
            Ok(_) => Err(LookError::File(io::Error::other("it is no regular file"))),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(LookError::File(e)),
        }
    }

    /// Opens the file, and begins where the client is.
    fn open(&mut self) -> Result<(), LookError> {
        let file = match open_regular(&self.path) {
            Ok(file) => file,
            // It was replaced between two looks.
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(LookError::File(e)),
        };
        let is_first = self.file.is_none();
        let found = file.metadata().map_err(LookError::File)?;
        let identity = self.identity(&found);
        let position = match (self.order.file, self.order.tail_lines) {
            (Some(had), _) if is_first && had == identity && self.order.position <= found.len() => {
                self.order.position
            }
            (None, Some(lines)) if is_first && !self.is_told_missing => {
                tail_position(&file, lines).map_err(LookError::File)?
            }
            _ => 0,
        };
        self.file = Some(OpenFile {
            file,
            identity,
            position,
        });
        let begun = OutputFrame::File {
            file: identity,
            position,
        };
        self.send(&begun).map_err(LookError::Stream)
    }

    fn identity(&self, file: &fs::Metadata) -> FileIdentity {
        let (device, inode) = (file.dev(), file.ino());
        let named = FileIdentity { device, inode };
        self.order.attempt.map_or(named, FileIdentity::of_attempt)
    }

    fn send(&mut self, frame: &OutputFrame) -> io::Result<()> {
        self.stream.write_all(&frame.bytes())
    }

    /// After a pause: a client says nothing, so what can be read is its end.
    fn client_is_gone(&mut self) -> io::Result<bool> {
        let mut fds = [PollFd::new(self.stream.as_fd(), PollFlags::POLLIN)];
        let pause = PollTimeout::try_from(LOOK).unwrap_or(PollTimeout::MAX);
        match poll(&mut fds, pause) {
            Ok(0) | Err(nix::Error::EINTR) => Ok(false),
            Ok(_) => Ok(self.stream.read(&mut [0; 64])? == 0),
            Err(e) => Err(e.into()),
        }
    }
}

enum LookError {
    File(io::Error),
    Stream(io::Error),
}

/// Opened twice: the first time without effect on what it may be by now.
fn open_regular(path: &Path) -> io::Result<File> {
    let found = open(path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())?;
    let found = File::from(found);
    if !found.metadata()?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    File::open(Path::new("/proc/self/fd").join(found.as_raw_fd().to_string()))
}

fn tail_position(mut file: &File, lines: u64) -> io::Result<u64> {
    let end = file.seek(SeekFrom::End(0))?;
    output_stream::tail_position(end, lines, |piece, at| file.read_exact_at(piece, at))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a client hears that has all of it read until the end.
    fn frames(order: OutputOrder) -> Vec<OutputFrame> {
        let (near, mut far) = UnixStream::pair().unwrap();
        let reader = std::thread::spawn(move || OutputReader::new(order, near).run());
        let mut bytes = Vec::new();
        far.read_to_end(&mut bytes).unwrap();
        reader.join().unwrap().unwrap();
        let (mut frames, mut at) = (Vec::new(), 0);
        while let Some((frame, used)) = OutputFrame::read(&bytes[at..]).unwrap() {
            frames.push(frame);
            at += used;
        }
        frames
    }

    fn text(frames: &[OutputFrame]) -> String {
        let pieces = frames.iter().flat_map(|frame| match frame {
            OutputFrame::Data(bytes) => bytes.clone(),
            _ => Vec::new(),
        });
        String::from_utf8(pieces.collect()).unwrap()
    }

    #[test]
    fn lines_are_counted_from_the_end_and_a_position_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        fs::write(&path, "one\ntwo\nthree\n").unwrap();
        let order = OutputOrder {
            path: path.display().to_string(),
            ..OutputOrder::default()
        };
        let tail = |lines| {
            text(&frames(OutputOrder {
                tail_lines: Some(lines),
                ..order.clone()
            }))
        };
        assert_eq!(tail(0), "");
        assert_eq!(tail(1), "three\n");
        assert_eq!(tail(2), "two\nthree\n");
        assert_eq!(tail(99), "one\ntwo\nthree\n");
        let [OutputFrame::File { file, position: 0 }, ..] = frames(order.clone())[..] else {
            panic!("no file")
        };
        let from = |file, position| {
            text(&frames(OutputOrder {
                file: Some(file),
                position,
                ..order.clone()
            }))
        };
        assert_eq!(from(file, 4), "two\nthree\n");
        let other = FileIdentity { inode: 0, ..file };
        assert_eq!(from(other, 4), "one\ntwo\nthree\n", "another file");
        assert_eq!(from(file, 99), "one\ntwo\nthree\n", "it was cut");
    }

    #[test]
    fn what_is_no_file_is_refused_and_not_opened() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        nix::unistd::mkfifo(&pipe, Mode::from_bits_truncate(0o600)).unwrap();
        let of = |path: &Path| {
            frames(OutputOrder {
                path: path.display().to_string(),
                ..OutputOrder::default()
            })
        };
        let [OutputFrame::Refused(text)] = &of(&pipe)[..] else {
            panic!("a pipe")
        };
        assert!(text.ends_with("it is no regular file"), "{text}");
        let missing = of(&dir.path().join("none"));
        assert_eq!(missing, [OutputFrame::Missing, OutputFrame::End]);
    }

    #[test]
    fn a_followed_file_is_read_as_it_grows_and_begins_anew_and_the_reader_goes_with_its_client() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let order = OutputOrder {
            path: path.display().to_string(),
            follow: true,
            ..OutputOrder::default()
        };
        let (near, mut far) = UnixStream::pair().unwrap();
        let reader = std::thread::spawn(move || OutputReader::new(order, near).run());
        let mut said = Vec::new();
        let mut hears = |words: &[u8]| {
            let mut byte = [0];
            while !said.ends_with(words) {
                far.read_exact(&mut byte).unwrap();
                said.push(byte[0]);
            }
            said.clear();
        };
        hears(&OutputFrame::Missing.bytes());
        fs::write(&path, "first\n").unwrap();
        hears(b"first\n");
        let mut more = fs::OpenOptions::new().append(true).open(&path).unwrap();
        more.write_all(b"second\n").unwrap();
        hears(b"second\n");
        fs::write(&path, "anew\n").unwrap();
        hears(b"anew\n");
        drop(far);
        reader.join().unwrap().unwrap();
    }
}
