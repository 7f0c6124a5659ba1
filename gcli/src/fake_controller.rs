//! A controller made of canned answers on a unix socket, for the tests of the commands.
//!
//! Answers whatever its handler returns and remembers what it was asked; knows nothing of jobs.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

/// One request as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub method: String,
    /// With its query, still escaped.
    pub path: String,
    pub body: String,
}

/// What to answer.
#[derive(Clone, Debug)]
pub enum Answer {
    Json(u16, String),
    /// Hang up without an answer, after the request was read.
    HangUp,
    /// The connection becomes a stream with these bytes, and ends.
    Stream(Vec<u8>),
}

impl Answer {
    /// 200 with this JSON.
    pub fn ok(json: impl Into<String>) -> Self {
        Self::Json(200, json.into())
    }
    /// An error body of the contract.
    pub fn refuse(status: u16, code: &str, text: &str) -> Self {
        let body = serde_json::json!({"schema": 1, "code": code, "error": text});
        Self::Json(status, body.to_string())
    }
}

/// What a command did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandOutput {
    pub stdout: String,
    pub stderr: String,
    /// None when a signal ended it.
    pub exit: Option<i32>,
}

impl CommandOutput {
    /// All of it as one text: stdout, then stderr marked, then the exit code unless it is 0.
    pub fn text(&self) -> String {
        let mut text = self.stdout.clone();
        for line in self.stderr.lines() {
            text.push_str(&format!("stderr: {line}\n"));
        }
        if self.exit != Some(0) {
            text.push_str(&format!("exit: {:?}\n", self.exit));
        }
        text
    }
}

/// The server and the files that lead to it; all go when it is dropped.
pub struct FakeController {
    dir: PathBuf,
    requests: Arc<Mutex<Vec<Request>>>,
}

static NEXT: AtomicU32 = AtomicU32::new(0);

impl FakeController {
    /// Serves until the test's process ends.
    ///
    /// # Panics
    /// When the socket cannot be made.
    pub fn start(handler: impl Fn(&Request) -> Answer + Send + Sync + 'static) -> Self {
        let at = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("gpupool-fake-{}-{at}", std::process::id()));
        std::fs::create_dir(&dir).expect("a fresh directory");
        let listener = UnixListener::bind(dir.join("gpuctld.sock")).expect("a socket");
        let socket = dir.join("gpuctld.sock");
        std::fs::write(
            dir.join("gpupool.toml"),
            format!("socket = {socket:?}\nwait_secs = 2\n"),
        )
        .expect("a file");
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (seen, handler) = (Arc::clone(&requests), Arc::new(handler));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (seen, handler) = (Arc::clone(&seen), Arc::clone(&handler));
                std::thread::spawn(move || serve(stream, &seen, &*handler));
            }
        });
        Self { dir, requests }
    }

    /// What `GPUPOOL_CONFIG` must name.
    pub fn config(&self) -> PathBuf {
        self.dir.join("gpupool.toml")
    }

    /// A directory of the test's own.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Runs a command against this controller, in UTC and with nothing else in its environment.
    ///
    /// # Panics
    /// When the program cannot be started.
    pub fn run(&self, program: &str, words: &[&str]) -> CommandOutput {
        self.run_with(program, words, &[], "")
    }

    /// As [`FakeController::run`], called by another name through a link.
    ///
    /// # Panics
    /// When the link cannot be made or the program not started.
    pub fn run_as(&self, name: &str, program: &str, words: &[&str]) -> CommandOutput {
        let link = self.dir.join(name);
        if !link.is_symlink() {
            std::os::unix::fs::symlink(program, &link).expect("a link");
        }
        self.run(link.to_str().expect("a path of ours"), words)
    }

    /// As [`FakeController::run`], in the test's directory, with variables and a text on stdin.
    ///
    /// # Panics
    /// When the program cannot be started.
    pub fn run_with(
        &self,
        program: &str,
        words: &[&str],
        variables: &[(&str, &str)],
        stdin: &str,
    ) -> CommandOutput {
        let mut command = Command::new(program);
        command
            .args(words)
            .current_dir(&self.dir)
            .env_clear()
            .env("TZ", "UTC")
            .env("GPUPOOL_CONFIG", self.config());
        command
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program is built");
        // A command that does not read its stdin may be gone already.
        let _ = child
            .stdin
            .take()
            .expect("piped")
            .write_all(stdin.as_bytes());
        let output = child.wait_with_output().expect("its output can be read");
        CommandOutput {
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            exit: output.status.code(),
        }
    }

    /// All requests so far, in order.
    ///
    /// # Panics
    /// When a handler panicked.
    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().expect("no handler panicked").clone()
    }
}

impl Drop for FakeController {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn serve(stream: UnixStream, seen: &Mutex<Vec<Request>>, handler: &dyn Fn(&Request) -> Answer) {
    let mut reader = BufReader::new(stream.try_clone().expect("a second handle"));
    let mut stream = stream;
    while let Some(request) = read_request(&mut reader) {
        seen.lock()
            .expect("no handler panicked")
            .push(request.clone());
        match handler(&request) {
            Answer::HangUp => return,
            Answer::Stream(bytes) => {
                let head =
                    "HTTP/1.1 101 X\r\nConnection: upgrade\r\nUpgrade: gpupool-stream\r\n\r\n";
                let _ = stream.write_all(&[head.as_bytes(), &bytes].concat());
                return;
            }
            Answer::Json(status, body) => {
                let head = format!(
                    "HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n",
                    body.len()
                );
                if stream
                    .write_all(head.as_bytes())
                    .and_then(|()| stream.write_all(body.as_bytes()))
                    .is_err()
                {
                    return;
                }
            }
        }
    }
}

fn read_request(reader: &mut impl BufRead) -> Option<Request> {
    let mut line = String::new();
    reader
        .read_line(&mut line)
        .ok()
        .filter(|&count| count > 0)?;
    let mut words = line.split(' ').map(str::to_owned);
    let (method, path) = (words.next()?, words.next()?);
    let mut length = 0;
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok()?;
        match header.trim().split_once(": ") {
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                length = value.parse().ok()?
            }
            Some(_) => {}
            None => break,
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(Request {
        method,
        path,
        body: String::from_utf8(body).ok()?,
    })
}
