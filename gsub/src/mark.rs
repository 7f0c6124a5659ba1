//! `gsub --mark [NOTE]`, from inside a job: its checkpoint is safe. Talks to the run's supervisor over the socket that
//! GSUB_MARK_SOCKET names, and to nothing else; prints nothing when the mark was taken.

use gcli::{Failure, Outcome};
use gmodel::checkpoint::MAX_NOTE_BYTES;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

const SOCKET: &str = "GSUB_MARK_SOCKET";
/// The mark is on the node's disk before it is answered, and a disk may be busy.
const ANSWER_PATIENCE: Duration = Duration::from_secs(60);
/// One mark a second is taken: another process of the job may have been quicker, several times.
const TURN_PATIENCE: Duration = Duration::from_secs(10);

/// The words behind `--mark`, when that is what was asked for.
pub fn asked(words: &[String]) -> Option<Vec<String>> {
    let (first, rest) = words.split_first()?;
    match first.strip_prefix("--mark")? {
        "" => Some(rest.to_vec()),
        value => Some([&[value.strip_prefix('=')?.to_owned()], rest].concat()),
    }
}

/// Marks, with the words as the note.
///
/// # Errors
/// Why the mark was not taken.
pub fn main(words: &[String]) -> Outcome {
    let note = words.join(" ");
    if note.len() > MAX_NOTE_BYTES {
        return Err(Failure::new(format_args!(
            "--mark: a note of {} bytes, and {MAX_NOTE_BYTES} are the most",
            note.len()
        )));
    }
    if note.chars().any(char::is_control) {
        return Err(Failure::new(
            "--mark: a note is one line of printable text; this one has control characters",
        ));
    }
    let Some(path) = std::env::var_os(SOCKET) else {
        return Err(Failure::new(format_args!(
            "--mark works inside a job: {SOCKET} is not set here. A job that is to be marked is submitted, as in: \
             gsub --checkpoint USR1@120 train.sh"
        )));
    };
    let deadline = Instant::now() + TURN_PATIENCE;
    loop {
        let answer = ask(Path::new(&path), &note)?;
        match (answer.strip_prefix("ok "), wait_of(&answer)) {
            (Some(_), _) => return Ok(0),
            (None, Some(wait)) if Instant::now() + wait < deadline => std::thread::sleep(wait),
            (None, _) => {
                let why = answer.strip_prefix("error ").unwrap_or(&answer);
                return Err(Failure::new(format_args!("--mark: not taken: {why}")));
            }
        }
    }
}

/// One line there, one line back.
fn ask(path: &Path, note: &str) -> Result<String, Failure> {
    let fail = |what: &str, e: &io::Error| {
        Failure::new(format_args!("--mark: {what} {}: {e}", path.display()))
    };
    let mut stream = connect(path).map_err(|e| match e.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => Failure::new(format_args!(
            "--mark: the run that this process belonged to is over, nobody takes marks at {} any more",
            path.display()
        )),
        _ => fail("cannot reach the run's supervisor at", &e),
    })?;
    stream
        .set_read_timeout(Some(ANSWER_PATIENCE))
        .map_err(|e| fail("cannot use", &e))?;
    // After an early refusal the connection may be closed; the answer has the reason.
    let _ = stream.write_all(format!("{note}\n").as_bytes());
    let mut answer = String::new();
    BufReader::new(stream)
        .read_line(&mut answer)
        .map_err(|e| fail("no answer from", &e))?;
    match answer.trim_end() {
        "" => Err(Failure::new(
            "--mark: the run's supervisor went away without an answer; whether the mark was taken is not known",
        )),
        answer => Ok(answer.to_owned()),
    }
}

/// A socket's path has room for 107 bytes; one in a deep directory is reached by that directory's descriptor.
fn connect(path: &Path) -> io::Result<UnixStream> {
    match UnixStream::connect(path) {
        Err(e) if e.kind() == ErrorKind::InvalidInput => {
            let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
                return Err(e);
            };
            let dir = open(
                dir,
                OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC,
                Mode::empty(),
            )?;
            UnixStream::connect(
                Path::new("/proc/self/fd")
                    .join(dir.as_raw_fd().to_string())
                    .join(name),
            )
        }
        other => other,
    }
}

/// `error too soon: ...; again in 400 ms`.
fn wait_of(answer: &str) -> Option<Duration> {
    let millis = answer
        .strip_prefix("error too soon:")?
        .rsplit_once("again in ")?
        .1
        .strip_suffix(" ms")?;
    Some(Duration::from_millis(millis.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_note_is_what_is_behind_the_option() {
        let words = |text: &str| {
            text.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        let note = |text: &str| asked(&words(text)).map(|words| words.join(" "));
        assert_eq!(note("--mark"), Some(String::new()));
        assert_eq!(note("--mark epoch 7"), Some("epoch 7".into()));
        assert_eq!(note("--mark=epoch 7"), Some("epoch 7".into()));
        assert_eq!(note("--marked"), None);
        assert_eq!(note("train.sh --mark"), None, "that is the script's");
        assert_eq!(note(""), None);
    }

    /// A supervisor that answers each connection with one of these lines; its socket, deeper than a socket's path can be.
    fn supervisor(answers: &'static [&'static str]) -> std::path::PathBuf {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "gsub-mark-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let dir = std::env::temp_dir().join(name).join("d".repeat(120));
        std::fs::create_dir_all(&dir).unwrap();
        let handle = std::fs::File::open(&dir).unwrap();
        let short = format!("/proc/self/fd/{}/mark.sock", handle.as_raw_fd());
        let listener = std::os::unix::net::UnixListener::bind(short).unwrap();
        std::thread::spawn(move || {
            for answer in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let mut line = String::new();
                BufReader::new(&stream).read_line(&mut line).unwrap();
                assert_eq!(line, "epoch 7\n");
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        dir.join("mark.sock")
    }

    #[test]
    fn an_answer_is_found_at_the_end_of_a_long_path() {
        let path = supervisor(&["ok 3\n", "error too many\n", ""]);
        assert_eq!(ask(&path, "epoch 7").unwrap(), "ok 3");
        assert_eq!(ask(&path, "epoch 7").unwrap(), "error too many");
        assert!(
            ask(&path, "epoch 7")
                .unwrap_err()
                .text
                .contains("without an answer")
        );
        std::fs::remove_file(&path).unwrap();
        assert!(ask(&path, "epoch 7").unwrap_err().text.contains("is over"));
        std::fs::remove_dir_all(path.ancestors().nth(2).unwrap()).unwrap();
    }

    #[test]
    fn a_mark_that_came_too_soon_is_sent_again() {
        let answer = "error too soon: one mark a second is taken; again in 412 ms";
        assert_eq!(wait_of(answer), Some(Duration::from_millis(412)));
        assert_eq!(wait_of("error a note of 300 bytes: 256 are taken"), None);
        assert_eq!(wait_of("error too soon: again in a while"), None);
    }
}
