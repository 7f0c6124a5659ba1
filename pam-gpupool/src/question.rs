//! One question to gpud over its local socket, by HTTP, answered in time or not at all.
//!
//! sshd waits meanwhile, so nothing here waits longer than [`PATIENCE`], whatever gpud does; and nothing keeps more than it may.

use gmodel::node_login::{LOGIN_PATH, LoginAnswer, LoginQuestion, MAX_ANSWER_BYTES};
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// For a whole question. Root does not ask.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between tries where gpud takes no connection yet.
const PAUSE: Duration = Duration::from_millis(50);

/// Asks, and says in words what stands against an answer.
pub fn ask(path: &Path, question: &LoginQuestion) -> Result<LoginAnswer, String> {
    let until = Instant::now() + PATIENCE;
    let of_gpud = |e: io::Error| format!("gpud at {}: {}", path.display(), words(&e));
    let mut stream = dial(path, until).map_err(of_gpud)?;
    let body = serde_json::to_vec(question).map_err(|e| e.to_string())?;
    let head = format!(
        "POST {LOGIN_PATH} HTTP/1.1\r\nhost: gpud\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let request = [head.into_bytes(), body].concat();
    let answer = send(&mut stream, &request, until)
        .and_then(|()| receive(&mut stream, until))
        .map_err(of_gpud)?;
    read_answer(&answer).map_err(|text| format!("gpud at {}: {text}", path.display()))
}

fn words(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::TimedOut | ErrorKind::WouldBlock => {
            format!("no answer within {} s", PATIENCE.as_secs())
        }
        _ => error.to_string(),
    }
}

/// A gpud that stands still may have a full queue of connections, in which a blocking connect would wait for ever.
fn dial(path: &Path, until: Instant) -> io::Result<UnixStream> {
    let address = UnixAddr::new(path)?;
    loop {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket: OwnedFd = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
        match connect(socket.as_raw_fd(), &address) {
            Ok(()) => {
                let stream = UnixStream::from(socket);
                stream.set_nonblocking(false)?;
                return Ok(stream);
            }
            // It is being started again.
            Err(Errno::EAGAIN | Errno::ECONNREFUSED | Errno::ENOENT | Errno::EINTR) => {}
            Err(e) => return Err(e.into()),
        }
        left(until)?;
        std::thread::sleep(PAUSE);
    }
}

/// Time that is left, never none of it.
fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(ErrorKind::TimedOut.into());
    }
    Ok(left)
}

fn send(stream: &mut UnixStream, mut request: &[u8], until: Instant) -> io::Result<()> {
    while !request.is_empty() {
        stream.set_write_timeout(Some(left(until)?))?;
        match stream.write(request) {
            Ok(sent) => request = &request[sent..],
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

fn receive(stream: &mut UnixStream, until: Instant) -> io::Result<Vec<u8>> {
    let mut answer = Vec::new();
    let mut part = [0; 16 << 10];
    loop {
        stream.set_read_timeout(Some(left(until)?))?;
        match stream.read(&mut part) {
            Ok(0) => return Ok(answer),
            Ok(_) if answer.len() > MAX_ANSWER_BYTES => {
                return Err(io::Error::other("its answer is too long"));
            }
            Ok(read) => answer.extend_from_slice(&part[..read]),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

/// Status line, headers, an empty line, JSON. gpud sends short bodies whole, never in chunks.
fn read_answer(answer: &[u8]) -> Result<LoginAnswer, String> {
    let at = answer
        .windows(4)
        .position(|four| four == b"\r\n\r\n")
        .ok_or("its answer is no HTTP")?;
    let status = String::from_utf8_lossy(answer.get(9..12).unwrap_or_default());
    let body = &answer[at + 4..];
    if status != "200" {
        let said: String = String::from_utf8_lossy(body).chars().take(500).collect();
        return Err(format!("{status}: {said}"));
    }
    serde_json::from_slice(body).map_err(|e| format!("its answer is not understood: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gmodel::{JobId, RunId};
    use std::os::unix::net::UnixListener;

    fn question() -> LoginQuestion {
        LoginQuestion {
            uid: 1000,
            enter: false,
            refuse_several: false,
        }
    }

    /// A gpud for one connection, in a thread. Returns what was asked of it.
    fn answering(answer: &'static str) -> (std::path::PathBuf, std::thread::JoinHandle<String>) {
        let name = format!("pam-gpupool-{}-{}", std::process::id(), answer.len());
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let at = path.clone();
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = std::fs::remove_file(at);
            let mut asked = vec![0; 4096];
            let read = stream.read(&mut asked).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
            String::from_utf8_lossy(&asked[..read]).into_owned()
        });
        (path, thread)
    }

    #[test]
    fn a_question_is_answered() {
        let (path, asked) = answering(
            "HTTP/1.1 200 OK\r\ncontent-length: 36\r\n\r\n{\"answer\":\"admitted\",\"run\":\"17-1\"}",
        );
        let answer = ask(&path, &question());
        let run = RunId::new(JobId(17), 1);
        assert_eq!(answer, Ok(LoginAnswer::Admitted { run }));
        let asked = asked.join().unwrap();
        assert!(
            asked.starts_with("POST /node/login HTTP/1.1\r\n") && asked.contains("\"uid\":1000"),
            "{asked}"
        );
    }

    #[test]
    fn a_refusal_nonsense_and_half_an_answer_are_errors_in_words() {
        for (said, words) in [
            ("HTTP/1.1 403 Forbidden\r\n\r\nonly root", "403: only root"),
            ("HTTP/1.1 200 OK\r\n\r\n{\"answer\":\"adm", "not understood"),
            ("hello", "no HTTP"),
            ("", "no HTTP"),
        ] {
            let (path, asked) = answering(said);
            let error = ask(&path, &question()).unwrap_err();
            asked.join().unwrap();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn a_gpud_that_is_silent_is_waited_for_no_longer_than_the_patience() {
        let path = std::env::temp_dir().join(format!("pam-gpupool-silent-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let began = Instant::now();
        let error = ask(&path, &question()).unwrap_err();
        let took = began.elapsed();
        assert!(error.contains("no answer within 5 s"), "{error}");
        assert!(took < PATIENCE + Duration::from_secs(5), "{took:?}");
        drop(listener);
        let _ = std::fs::remove_file(&path);
        let error = ask(Path::new("/nowhere/gpud.sock"), &question()).unwrap_err();
        assert!(error.contains("no answer within"), "{error}");
    }
}
