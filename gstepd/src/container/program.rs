//! The programs that know registries, images and namespaces: skopeo, umoci, squashfs-tools, crun. They run as the user, with the
//! user's own configuration, and nothing of the job's environment decides which program it is.

use crate::container::ContainerError;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PLACES: [&str; 5] = [
    "/usr/local/bin",
    "/usr/local/sbin",
    "/usr/bin",
    "/usr/sbin",
    "/bin",
];
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// What is kept of its words.
const MAX_WORDS_BYTES: u64 = 64 << 10;

/// Where the node has the program.
pub fn find(name: &str) -> Option<PathBuf> {
    PLACES
        .iter()
        .map(|place| Path::new(place).join(name))
        .find(|path| path.is_file())
}

/// One call of a program.
pub struct Program {
    name: &'static str,
    command: Command,
    words: PathBuf,
}

/// How it ended, if not well.
#[derive(Debug)]
pub enum ProgramFailure {
    /// The node lacks it, or there is no room.
    Refused(ContainerError),
    Ended {
        words: String,
    },
    /// It was ended: nothing had moved for so long.
    Stalled(Duration),
}

/// Where skopeo looks for logins at registries of a user without a session.
fn login_file() -> PathBuf {
    format!("/run/containers/{}/auth.json", nix::unistd::geteuid()).into()
}

/// skopeo takes a login file that is not there for none, and ends at one that it may not look for: podman of root closes `/run/containers`.
fn is_closed(file: &Path) -> bool {
    file.metadata()
        .is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
}

impl Program {
    /// `words` is a file for what it says, made and removed here.
    ///
    /// # Errors
    /// The node lacks it.
    pub fn new(name: &'static str, words: PathBuf) -> Result<Self, ContainerError> {
        let path = find(name).ok_or_else(|| {
            ContainerError::node(format_args!(
                "this node has no {name}, which images of this kind need"
            ))
        })?;
        let mut command = Command::new(path);
        command
            .env("PATH", PLACES.join(":"))
            .current_dir("/")
            .stdin(Stdio::null());
        gsys::process::end_with_parent(&mut command);
        for name in ["LD_PRELOAD", "LD_LIBRARY_PATH", "TMPDIR"] {
            command.env_remove(name);
        }
        if is_closed(&login_file()) {
            command.env("XDG_RUNTIME_DIR", words.parent().unwrap_or(Path::new("/")));
        }
        Ok(Self {
            name,
            command,
            words,
        })
    }

    pub fn args<I: IntoIterator<Item = S>, S: AsRef<std::ffi::OsStr>>(mut self, args: I) -> Self {
        self.command.args(args);
        self
    }

    /// Runs it to its end. `moved` is asked again and again how far it is: a program that does not move for `patience` is ended.
    pub fn run(
        mut self,
        patience: Duration,
        moved: &mut dyn FnMut() -> Result<u64, ContainerError>,
    ) -> Result<Vec<u8>, ProgramFailure> {
        let lost = |e: std::io::Error| {
            ProgramFailure::Refused(ContainerError::node(format_args!("{}: {e}", self.name)))
        };
        let words = File::create(&self.words).map_err(lost)?;
        let errors = words.try_clone().map_err(lost)?;
        let mut child = self
            .command
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .map_err(lost)?;
        let ended = wait(&mut child, patience, moved);
        let said = tail(&self.words);
        let _ = fs::remove_file(&self.words);
        match ended {
            Ok((true, output)) => Ok(output),
            Ok((false, _)) => Err(ProgramFailure::Ended { words: said }),
            Err(failure) => Err(failure),
        }
    }
}

fn wait(
    child: &mut Child,
    patience: Duration,
    moved: &mut dyn FnMut() -> Result<u64, ContainerError>,
) -> Result<(bool, Vec<u8>), ProgramFailure> {
    let stdout = child.stdout.take();
    let reader = std::thread::spawn(move || {
        let mut output = Vec::new();
        if let Some(stdout) = stdout {
            let _ = stdout.take(8 << 20).read_to_end(&mut output);
        }
        output
    });
    let (mut place, mut since) = (0, Instant::now());
    let (mut looked, mut took) = (None::<Instant>, Duration::ZERO);
    loop {
        match child.try_wait() {
            Ok(Some(status)) => {
                return Ok((status.success(), reader.join().unwrap_or_default()));
            }
            Ok(None) => {}
            Err(e) => return Err(ProgramFailure::Refused(ContainerError::node(e))),
        }
        // Looking at many files takes a twentieth of the time.
        if looked.is_none_or(|at| at.elapsed() >= took * 20) {
            let before = Instant::now();
            let now = moved();
            (looked, took) = (Some(Instant::now()), before.elapsed());
            match now {
                Ok(now) if now != place => (place, since) = (now, Instant::now()),
                Ok(_) if since.elapsed() <= patience => {}
                stuck => {
                    let _ = child.kill();
                    let _ = child.wait();
                    return Err(stuck.map_or_else(ProgramFailure::Refused, |_| {
                        ProgramFailure::Stalled(patience)
                    }));
                }
            }
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// The last line that says something, without a program's decoration.
fn tail(path: &Path) -> String {
    let mut text = String::new();
    if let Ok(file) = File::open(path) {
        let _ = file.take(MAX_WORDS_BYTES).read_to_string(&mut text);
    }
    let line = text
        .lines()
        .rev()
        .map(str::trim)
        .find(|line| !line.is_empty());
    let line = line.unwrap_or("it said nothing");
    let line = line
        .split_once("msg=")
        .map_or(line, |(_, said)| said.trim_matches('"'));
    let line = line.replace("\\\"", "\"");
    line.chars().filter(|c| !c.is_control()).take(400).collect()
}

/// Bytes of the files in a directory, with those below it, as far as the directory can be read.
pub fn bytes_below(dir: &Path) -> u64 {
    let mut open = vec![dir.to_owned()];
    let mut sum = 0_u64;
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(meta) if meta.is_dir() => open.push(entry.path()),
                Ok(meta) => sum = sum.saturating_add(meta.len()),
                Err(_) => {}
            }
        }
    }
    sum
}
