//! The output of a batch process in the node's spool: pipes from the job, files of root's, a bound. What comes beyond the bound is read and
//! dropped, so that the job goes on. gpud reads the files and sends them to the controller.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context;
use gmodel::RunId;
use gmodel::job_output::{SpooledFile, bound_line, full_line};
use gsys::launch::{LaunchSpec, Stdio};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::unistd::{Gid, Uid, fchown, pipe2};

/// Taken of a stream in one turn of the loop.
const TURN_BYTES: usize = 1 << 20;
const PIECE_BYTES: usize = 64 << 10;

/// The spooled output of one batch process.
pub struct OutputSpool {
    stdout: Option<SpooledStream>,
    /// Where it has a file of its own.
    stderr: Option<SpooledStream>,
    piece: Vec<u8>,
}

struct SpooledStream {
    reader: File,
    /// Stays open for a checkpoint command.
    writer: OwnedFd,
    file: BoundedFile,
}

/// A file that says in its last line why it ends, where it met its bound.
struct BoundedFile {
    file: File,
    bytes: u64,
    max_bytes: u64,
    is_full: bool,
}

impl OutputSpool {
    /// Makes pipes for what the launch would open, devices such as /dev/null apart.
    pub fn open(
        dir: PathBuf,
        run: RunId,
        max_bytes: u64,
        spec: &LaunchSpec<'_>,
    ) -> anyhow::Result<OutputSpool> {
        DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        let stream = |stdio: &Stdio<'_>, stderr| {
            is_file(stdio)
                .then(|| {
                    let path = dir.join(SpooledFile { run, stderr }.to_string());
                    SpooledStream::open(&path, max_bytes, spec)
                        .with_context(|| format!("making {}", path.display()))
                })
                .transpose()
        };
        Ok(OutputSpool {
            stdout: stream(&spec.stdout, false)?,
            stderr: stream(&spec.stderr, true)?,
            piece: vec![0; PIECE_BYTES],
        })
    }

    /// The process of the launch writes here.
    pub fn receive<'a>(&'a self, spec: &mut LaunchSpec<'a>) {
        let ends = [
            (&mut spec.stdout, &self.stdout),
            (&mut spec.stderr, &self.stderr),
        ];
        for (stdio, stream) in ends {
            if let Some(stream) = stream.as_ref().filter(|_| is_file(stdio)) {
                *stdio = Stdio::Fd(stream.writer.as_fd());
            }
        }
    }

    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let streams = [&self.stdout, &self.stderr];
        streams
            .into_iter()
            .flatten()
            .map(|stream| stream.reader.as_fd())
    }

    /// What was written by now; of a job that writes without end a part, yet more than a pipe holds.
    pub fn take_some(&mut self) {
        for stream in [&mut self.stdout, &mut self.stderr].into_iter().flatten() {
            for _ in 0..TURN_BYTES / PIECE_BYTES {
                if !stream.take_piece(&mut self.piece) {
                    break;
                }
            }
        }
    }
}

/// What a launch opens as the job's file.
fn is_file(stdio: &Stdio<'_>) -> bool {
    matches!(stdio, Stdio::Open { path, .. } if path != Path::new("/dev/null"))
}

impl SpooledStream {
    fn open(path: &Path, max_bytes: u64, spec: &LaunchSpec<'_>) -> anyhow::Result<SpooledStream> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let file = options.open(path)?;
        let (reader, writer) = pipe2(OFlag::O_CLOEXEC)?;
        // Only the supervisor's end must not block: to a program it is an ordinary pipe.
        fcntl(&reader, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        if nix::unistd::geteuid().is_root() {
            // A program opens /dev/stdout anew, as the job's user.
            let (uid, gid) = (spec.identity.uid, spec.identity.gid);
            fchown(&writer, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
        }
        Ok(SpooledStream {
            reader: reader.into(),
            writer,
            file: BoundedFile::new(file, max_bytes),
        })
    }

    /// False when nothing is there to be read now.
    fn take_piece(&mut self, piece: &mut [u8]) -> bool {
        match self.reader.read(piece) {
            Ok(0) => false,
            Ok(count) => {
                self.file.append(&piece[..count]);
                true
            }
            Err(e) => e.kind() == ErrorKind::Interrupted,
        }
    }
}

impl BoundedFile {
    fn new(file: File, max_bytes: u64) -> BoundedFile {
        BoundedFile {
            file,
            bytes: 0,
            max_bytes,
            is_full: false,
        }
    }

    fn append(&mut self, piece: &[u8]) {
        if self.is_full {
            return;
        }
        let line = bound_line(self.max_bytes);
        let room = self.max_bytes.saturating_sub(line.len() as u64) - self.bytes;
        let fits = piece.len() as u64 <= room;
        let kept = if fits { piece } else { &piece[..room as usize] };
        match self.write(kept) {
            Ok(()) if fits => {}
            Ok(()) => {
                self.is_full = true;
                if self.write(line.as_bytes()).is_err() {
                    self.overwrite_end(&line);
                }
            }
            Err(_) => {
                self.is_full = true;
                self.overwrite_end(&full_line());
            }
        }
    }

    fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.file.write(bytes) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => {
                    self.bytes += count as u64;
                    bytes = &bytes[count..];
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// On a full disk there is room only where there are bytes.
    fn overwrite_end(&mut self, line: &str) {
        let at = self.bytes.saturating_sub(line.len() as u64);
        // A file that has less bytes than the line ends without a word; its job's log has no more to say, either.
        let _ = self.file.write_all_at(line.as_bytes(), at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gmodel::JobId;
    use gsys::launch::{Identity, OpenMode};

    fn spec_for(paths: [&str; 2]) -> LaunchSpec<'static> {
        let mut spec = LaunchSpec::new(vec!["true".into()], Identity::own().unwrap());
        let open = |path: &str| Stdio::Open {
            path: path.into(),
            mode: OpenMode::Append,
        };
        (spec.stdout, spec.stderr) = (open(paths[0]), open(paths[1]));
        spec
    }

    fn write(stdio: &Stdio<'_>, bytes: &[u8]) {
        let Stdio::Fd(fd) = stdio else {
            panic!("{stdio:?}")
        };
        File::from(fd.try_clone_to_owned().unwrap())
            .write_all(bytes)
            .unwrap();
    }

    #[test]
    fn an_output_is_kept_up_to_its_bound_and_the_job_writes_on() {
        let dir = tempfile::tempdir().unwrap();
        let (spec, run) = (spec_for(["out", "err"]), RunId::new(JobId(17), 2));
        let mut output = OutputSpool::open(dir.path().join("outputs"), run, 100, &spec).unwrap();
        for round in 0..40 {
            let mut spec = spec_for(["out", "err"]);
            output.receive(&mut spec);
            write(&spec.stdout, &[b'x'; 50_000]);
            if round == 0 {
                write(&spec.stderr, b"short\n");
            }
            drop(spec);
            output.take_some();
        }
        let read = |name: &str| std::fs::read_to_string(dir.path().join("outputs").join(name));
        let kept = read("17-2.out").unwrap();
        let line = bound_line(100);
        assert_eq!(kept, format!("{}{line}", "x".repeat(100 - line.len())));
        assert_eq!(read("17-2.err").unwrap(), "short\n");
    }

    #[test]
    fn devices_are_left_as_they_are() {
        let dir = tempfile::tempdir().unwrap();
        let (mut spec, run) = (spec_for(["/dev/null", "err"]), RunId::new(JobId(17), 1));
        let output = OutputSpool::open(dir.path().to_owned(), run, 100, &spec).unwrap();
        output.receive(&mut spec);
        assert!(matches!(spec.stdout, Stdio::Open { .. }));
        assert!(matches!(spec.stderr, Stdio::Fd(_)));
        assert!(!dir.path().join("17-1.out").exists());
    }

    #[test]
    fn a_full_disk_is_said_in_the_last_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let text = "y".repeat(200);
        std::fs::write(&path, &text).unwrap();
        // Opened for reading only, a write fails as on a full disk; the line goes where bytes are.
        let mut file = BoundedFile::new(File::open(&path).unwrap(), 1000);
        file.append(b"more");
        assert!(file.is_full, "said once");
        let mut file = BoundedFile {
            file: OpenOptions::new().write(true).open(&path).unwrap(),
            bytes: 200,
            max_bytes: 1000,
            is_full: false,
        };
        file.overwrite_end(&full_line());
        let kept = std::fs::read_to_string(&path).unwrap();
        assert_eq!(kept.len(), 200);
        assert!(kept.ends_with(&full_line()) && kept.starts_with("yyy"));
    }
}
