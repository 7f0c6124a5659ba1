//! A gpuctld process with a state directory, and the smallest HTTP client that keeps its connection.

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longest wait for a state that must come.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A directory with configuration and state; the process in it may come and go.
pub struct Site {
    pub dir: tempfile::TempDir,
    pub port: u16,
}

impl Site {
    pub fn new() -> Self {
        Self::in_dir(tempfile::tempdir().unwrap())
    }

    pub fn in_dir(dir: tempfile::TempDir) -> Self {
        // Free when asked for; nothing else on this machine binds this address.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let site = Self {
            port: listener.local_addr().unwrap().port(),
            dir,
        };
        site.configure("min_free = \"1M\"\nallow_root_jobs = true\n");
        site
    }

    /// Writes the configuration: the directories, these lines, and one partition.
    pub fn configure(&self, lines: &str) {
        let dir = self.dir.path().display();
        let port = self.port;
        let text = format!(
            "cluster = \"test\"\nstate_dir = \"{dir}/state\"\nsocket = \"{dir}/api.sock\"\nlisten = \"127.0.0.1:{port}\"\nadvertise = \"127.0.0.1:{port}\"\n{lines}\n[partition.main]\ndefault = true\n"
        );
        std::fs::write(self.config(), text).unwrap();
    }

    pub fn config(&self) -> PathBuf {
        self.dir.path().join("gpuctld.toml")
    }
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("api.sock")
    }
    pub fn database(&self) -> PathBuf {
        self.dir.path().join("state/gpupool.db")
    }

    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpuctld"));
        command
            .args(words)
            .arg("--config")
            .arg(self.config())
            .env_remove("NOTIFY_SOCKET");
        command
    }

    /// Starts the controller, of a new cluster where nothing is, and waits until it answers.
    pub fn start(&self) -> Controller {
        if !self.dir.path().join("state").exists() {
            let (status, said) = self.run_to_end(&["new"]);
            assert_eq!(status, 0, "{said}");
        }
        let log = std::fs::File::create(self.dir.path().join("log")).unwrap();
        let process = self
            .command(&["run"])
            .stderr(log)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let mut controller = Controller {
            process,
            socket: self.socket(),
        };
        let deadline = Instant::now() + PATIENCE;
        loop {
            if UnixStream::connect(self.socket()).is_ok() {
                return controller;
            }
            let ended = controller.process.try_wait().unwrap();
            assert!(
                ended.is_none(),
                "gpuctld ended with {ended:?}:\n{}",
                self.log()
            );
            assert!(
                Instant::now() < deadline,
                "gpuctld does not answer:\n{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Runs until it ends by itself; status and what it said.
    pub fn run_to_end(&self, words: &[&str]) -> (i32, String) {
        let output = self.command(words).stdin(Stdio::null()).output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        (
            output.status.code().unwrap_or(-1),
            String::from_utf8(said).unwrap(),
        )
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    pub fn wait_for_log(&self, words: &str) {
        wait_until(
            || self.log().contains(words),
            || format!("{words:?} in the log:\n{}", self.log()),
        );
    }
}

/// Polls until it is so.
pub fn wait_until(mut so: impl FnMut() -> bool, what: impl Fn() -> String) {
    let deadline = Instant::now() + PATIENCE;
    while !so() {
        assert!(Instant::now() < deadline, "waited in vain for {}", what());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A running gpuctld. Killed when dropped.
pub struct Controller {
    process: Child,
    socket: PathBuf,
}

impl Controller {
    pub fn client(&self) -> Client {
        Client::new(&self.socket)
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    pub fn signal(&self, signal: nix::sys::signal::Signal) {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.process.id()).unwrap());
        nix::sys::signal::kill(pid, signal).unwrap();
    }

    pub fn is_alive(&mut self) -> bool {
        self.process.try_wait().unwrap().is_none()
    }

    /// SIGKILL, now.
    pub fn kill(mut self) {
        self.process.kill().unwrap();
        let status = self.process.wait().unwrap();
        assert_eq!(
            status.signal(),
            Some(9),
            "it ended before it was killed: {status}"
        );
    }

    /// SIGTERM; the exit status.
    pub fn stop(mut self) -> i32 {
        self.signal(nix::sys::signal::Signal::SIGTERM);
        self.wait()
    }

    pub fn wait(&mut self) -> i32 {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                return status.code().unwrap_or(-1);
            }
            assert!(Instant::now() < deadline, "gpuctld does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// One kept-alive connection.
pub struct Client {
    stream: BufReader<UnixStream>,
}

impl Client {
    pub fn new(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self {
            stream: BufReader::new(stream),
        }
    }

    /// Status and body, or why there was no answer.
    pub fn ask(&mut self, method: &str, path: &str, body: &Value) -> std::io::Result<(u16, Value)> {
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        self.stream.get_mut().write_all(request.as_bytes())?;
        let (status, text) = read_answer(&mut self.stream)?;
        Ok((status, serde_json::from_slice(&text).unwrap_or(Value::Null)))
    }

    pub fn get(&mut self, path: &str) -> Value {
        let (status, body) = self.ask("GET", path, &Value::Null).unwrap();
        assert_eq!(status, 200, "GET {path}: {body}");
        body
    }

    pub fn post(&mut self, path: &str, body: &Value) -> Value {
        let (status, body) = self.ask("POST", path, body).unwrap();
        assert_eq!(status, 200, "POST {path}: {body}");
        body
    }

    /// The id, or the error.
    pub fn try_submit(&mut self, body: &Value) -> Result<u64, String> {
        let (status, answer) = self
            .ask("POST", "/v1/jobs", body)
            .map_err(|e| e.to_string())?;
        match answer["id"].as_u64() {
            Some(id) if status == 200 => Ok(id),
            _ => Err(format!("{status} {answer}")),
        }
    }

    pub fn submit(&mut self, body: &Value) -> u64 {
        self.try_submit(body).unwrap()
    }

    pub fn job_ids(&mut self) -> Vec<u64> {
        let jobs = self.get("/v1/jobs?state=all&columns=id");
        jobs["jobs"]
            .as_array()
            .unwrap()
            .iter()
            .map(|job| job["id"].as_u64().unwrap())
            .collect()
    }
}

/// A small job.
pub fn job(name: &str) -> Value {
    json!({
        "spec": {"name": name, "launch": {"work_dir": "/tmp"}},
        "script": format!("#!/bin/sh\necho {name}\n"),
        "environment": ["HOME=/root", "PATH=/usr/bin:/bin"],
    })
}

/// An HTTP/1.1 answer with a length or in chunks.
pub fn read_answer(stream: &mut impl BufRead) -> std::io::Result<(u16, Vec<u8>)> {
    let gone = || std::io::Error::other("the connection ended before the answer");
    let mut line = String::new();
    stream.read_line(&mut line)?;
    let status = line
        .split(' ')
        .nth(1)
        .and_then(|word| word.parse().ok())
        .ok_or_else(gone)?;
    let (mut length, mut chunked) = (0, false);
    loop {
        line.clear();
        if stream.read_line(&mut line)? == 0 {
            return Err(gone());
        }
        let lower = line.to_ascii_lowercase();
        if let Some(value) = lower.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        chunked |= lower.starts_with("transfer-encoding:") && lower.contains("chunked");
        if line == "\r\n" {
            break;
        }
    }
    let mut body = Vec::new();
    if !chunked {
        body.resize(length, 0);
        stream.read_exact(&mut body)?;
        return Ok((status, body));
    }
    loop {
        line.clear();
        stream.read_line(&mut line)?;
        let size = usize::from_str_radix(line.trim(), 16).map_err(|_| gone())?;
        let mut chunk = vec![0; size + 2];
        stream.read_exact(&mut chunk)?;
        if size == 0 {
            return Ok((status, body));
        }
        body.extend_from_slice(&chunk[..size]);
    }
}
