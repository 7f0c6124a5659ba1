//! What a step's tasks say of their container before they become their programs, a [`PullWord`] a line on a pipe to the supervisor: how far
//! the image is, which one it is, or why there is no container. The supervisor believes no more of it than of any user's word.

use gmodel::image_pull::{
    ContainerFault, MAX_PULL_LINE_BYTES, MAX_PULL_TEXT, PullProgress, PullWord, ToldPull,
};
use gmodel::supervise::IMAGE_FILE;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::unistd::{fchown, pipe2};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// News is told so often, and that nothing is new so rarely.
const TELL_EVERY: Duration = Duration::from_millis(500);
const TELL_AT_LEAST: Duration = Duration::from_secs(2);
/// Whatever the tasks of a step say, its client hears no more lines.
const MAX_LINES: u32 = 40;

/// A sentence for the user that submitted it.
pub fn failure_words(fault: ContainerFault, text: &str) -> String {
    let hope = match fault {
        ContainerFault::User => "",
        ContainerFault::Registry | ContainerFault::Node => {
            " (the job is not to blame, and may be submitted again)"
        }
    };
    format!("container: {text}{hope}")
}

/// The supervisor's end, for all tasks of a step on this node.
pub struct ContainerNews {
    reader: Option<File>,
    begun: Vec<u8>,
    asked: String,
    /// What the client heard last.
    told: ToldPull,
    lines: u32,
    /// The image that they are in, once; why there is no container.
    pub image: Option<String>,
    pub failure: Option<String>,
}

impl ContainerNews {
    /// With the tasks' end. `asked`: the image as its user wrote it.
    ///
    /// # Errors
    /// Out of descriptors.
    pub fn open(asked: &str, uid: u32, gid: u32) -> io::Result<(Self, OwnedFd)> {
        let (reader, writer) = pipe2(OFlag::O_CLOEXEC)?;
        // Tasks open it by its number.
        fchown(&writer, Some(uid.into()), Some(gid.into()))?;
        fcntl(&reader, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        let news = Self {
            reader: Some(reader.into()),
            begun: Vec::new(),
            asked: asked.to_owned(),
            told: ToldPull::default(),
            lines: 0,
            image: None,
            failure: None,
        };
        Ok((news, writer))
    }

    pub fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        self.reader.as_ref().map(AsFd::as_fd)
    }

    /// Reads what has come, and returns the lines for the client. Ends with the last task's end of the pipe.
    pub fn read(&mut self) -> Vec<String> {
        let mut piece = [0; MAX_PULL_LINE_BYTES as usize];
        let Some(reader) = &mut self.reader else {
            return Vec::new();
        };
        match reader.read(&mut piece) {
            Ok(count @ 1..) => self.begun.extend(&piece[..count]),
            Err(e)
                if [io::ErrorKind::WouldBlock, io::ErrorKind::Interrupted].contains(&e.kind()) => {}
            _ => self.reader = None,
        }
        let mut lines = Vec::new();
        while let Some(end) = self.begun.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.begun.drain(..=end).collect();
            if let Ok(word) = serde_json::from_slice(&line) {
                lines.extend(self.take(word));
            }
        }
        if self.begun.len() > MAX_PULL_LINE_BYTES as usize {
            self.reader = None;
        }
        lines
    }

    fn take(&mut self, word: PullWord) -> Option<String> {
        match word {
            PullWord::Progress(now) => {
                if self.lines < MAX_LINES && self.told.is_news(now) {
                    self.lines += 1;
                    return Some(now.of_image(&self.asked));
                }
            }
            PullWord::Done { image } => drop(self.image.get_or_insert_with(|| plain(&image))),
            PullWord::Failed { fault, text } => {
                let words = || failure_words(fault, &plain(&text));
                self.failure.get_or_insert_with(words);
            }
        }
        None
    }
}

fn plain(text: &str) -> String {
    let shown = text.chars().filter(|c| !c.is_control());
    shown.take(MAX_PULL_TEXT).collect()
}

/// In the current directory, which is the run's, unless it is known: the script's image, or the first step's.
pub fn note_image(name: &str) {
    let path = Path::new(IMAGE_FILE);
    let file = File::options().write(true).create_new(true).open(path);
    let _ = file.and_then(|mut file| file.write_all(name.as_bytes()));
}

/// The other end: passes words on, progress not too often.
pub struct Teller<W> {
    to: W,
    last: Option<(PullProgress, Instant)>,
}

impl<W: Write> Teller<W> {
    pub fn new(to: W) -> Self {
        Self { to, last: None }
    }

    /// # Errors
    /// There is no reader any more.
    pub fn tell(&mut self, progress: PullProgress) -> io::Result<()> {
        let is_due = self.last.is_none_or(|(known, at)| {
            at.elapsed() >= TELL_AT_LEAST || known != progress && at.elapsed() >= TELL_EVERY
        });
        if !is_due {
            return Ok(());
        }
        self.last = Some((progress, Instant::now()));
        self.say(&PullWord::Progress(progress))
    }

    /// # Errors
    /// As [`Self::tell`].
    pub fn say(&mut self, word: &PullWord) -> io::Result<()> {
        let line = serde_json::to_string(word)?;
        self.to.write_all(format!("{line}\n").as_bytes())
    }
}

/// The pipe that a task was started with, which its program is not to find open. `None` where the number is none.
pub fn inherited(number: Option<RawFd>) -> Option<File> {
    let number = number.filter(|number| *number > 2)?;
    let path = format!("/proc/self/fd/{number}");
    // Opened anew by its number: the old descriptor is closed, whatever it was.
    let file = File::options().write(true).open(path).ok();
    let _ = nix::unistd::close(number);
    file
}
