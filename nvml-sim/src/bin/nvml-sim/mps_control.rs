//! A stand-in for `nvidia-cuda-mps-control`, which `nvml-sim` is when it is called by that name: daemon with `-d` or `-f`, else its
//! client, which reads commands from standard input. What it was told it keeps in `mps/GPU.json` in the directory it was called
//! from. There is no CUDA behind it. Source of the words: NVIDIA's manual of CUDA MPS.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// The name it is called by.
pub const NAME: &str = "nvidia-cuda-mps-control";
/// A daemon listens within a moment.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a test can read, and what is gone with a daemon that was told to quit.
#[derive(Default, Serialize, Deserialize)]
struct MpsRecord {
    daemon: u32,
    /// Of the daemon.
    uid: u32,
    /// What it was started with.
    visible: String,
    pipe: PathBuf,
    log: PathBuf,
    percent: f64,
    /// By device.
    memory: BTreeMap<String, String>,
    servers: Vec<Server>,
}

/// A server keeps the limits that were the defaults at its start.
#[derive(Clone, Serialize, Deserialize)]
struct Server {
    pid: u32,
    uid: u32,
    percent: f64,
    memory: BTreeMap<String, String>,
}

/// As the command would.
pub fn main(words: &[OsString]) -> ExitCode {
    let outcome = match words.first().and_then(|word| word.to_str()) {
        Some("-d") => start(),
        Some("-f") => serve(),
        None => ask(),
        Some(word) => Err(io::Error::other(format!(
            "{word}: this simulation knows -d and -f"
        ))),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}

/// Waits while the file `mps/hold-WORD` is there, for tests that look at this moment; `mps/held` says that it does.
fn wait_at(word: &str) {
    let hold = state_dir().join(format!("hold-{word}"));
    while hold.exists() {
        let _ = fs::write(state_dir().join("held"), word);
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn pipe_dir() -> PathBuf {
    std::env::var_os("CUDA_MPS_PIPE_DIRECTORY")
        .map_or_else(|| "/tmp/nvidia-mps".into(), PathBuf::from)
}

/// Where it was called from, links not followed: beside the state of the node's simulated GPUs.
fn state_dir() -> PathBuf {
    let called = std::env::args_os()
        .next()
        .map(PathBuf::from)
        .unwrap_or_default();
    called.parent().unwrap_or(Path::new(".")).join("mps")
}

/// `-d`: returns when the daemon listens.
fn start() -> io::Result<()> {
    let socket = pipe_dir().join("control");
    if UnixStream::connect(&socket).is_ok() {
        return Err(io::Error::other(
            "An instance of this daemon is already running",
        ));
    }
    if let Ok(why) = fs::read_to_string(state_dir().join("refuses")) {
        return Err(io::Error::other(why));
    }
    wait_at("-d");
    let mut command = Command::new(std::env::current_exe()?);
    command
        .arg0(std::env::args_os().next().unwrap_or_default())
        .arg("-f");
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    // SAFETY: setsid is async-signal-safe and touches no memory.
    unsafe {
        command.pre_exec(|| match libc::setsid() {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        });
    }
    let mut daemon = command.spawn()?;
    let begun = Instant::now();
    while UnixStream::connect(&socket).is_err() {
        if let Some(status) = daemon.try_wait()? {
            return Err(io::Error::other(format!("the daemon ended: {status}")));
        }
        if begun.elapsed() > PATIENCE {
            return Err(io::Error::other("the daemon does not listen"));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    wait_at("started");
    Ok(())
}

/// The client: each line of standard input is a command.
fn ask() -> io::Result<()> {
    let mut text = String::new();
    io::stdin().read_to_string(&mut text)?;
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        wait_at(line.split_whitespace().next().unwrap_or_default());
        let missing = |_| io::Error::other("Cannot find MPS control daemon process");
        let mut stream = UnixStream::connect(pipe_dir().join("control")).map_err(missing)?;
        writeln!(stream, "{line}")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        print!("{answer}");
    }
    Ok(())
}

struct Daemon {
    known: MpsRecord,
    file: PathBuf,
}

/// `-f`: the daemon itself.
fn serve() -> io::Result<()> {
    let pipe = pipe_dir();
    let socket = pipe.join("control");
    // Left by one that was killed.
    let _ = fs::remove_file(&socket);
    let listener = UnixListener::bind(&socket)?;
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o666))?;
    let mut daemon = Daemon::start(&pipe)?;
    fs::write(
        pipe.join("nvidia-cuda-mps-control.pid"),
        daemon.known.daemon.to_string(),
    )?;
    loop {
        let (stream, _) = listener.accept()?;
        let mut line = String::new();
        if BufReader::new(&stream).read_line(&mut line).is_err() {
            continue;
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let quits = words.first() == Some(&"quit");
        let answer = match peer_uid(&stream) {
            // Each peer that may connect may ask; only the daemon's own user changes anything.
            Some(peer)
                if peer != daemon.known.uid
                    && peer != 0
                    && !words[..]
                        .first()
                        .is_some_and(|word| word.starts_with("get_")) =>
            {
                "permission denied\n".to_owned()
            }
            Some(_) if quits => {
                daemon.end();
                String::new()
            }
            Some(_) => daemon.obey(&words).unwrap_or_else(|why| format!("{why}\n")),
            None => continue,
        };
        let _ = (&stream).write_all(answer.as_bytes());
        if quits && answer.is_empty() {
            let _ = fs::remove_file(&socket);
            return Ok(());
        }
    }
}

impl Daemon {
    fn start(pipe: &Path) -> io::Result<Daemon> {
        let visible = std::env::var("CUDA_VISIBLE_DEVICES").unwrap_or_default();
        let log = std::env::var_os("CUDA_MPS_LOG_DIRECTORY")
            .map_or_else(|| "/var/log/nvidia-mps".into(), PathBuf::from);
        fs::write(log.join("control.log"), "Starting control daemon\n")?;
        let file = state_dir().join(format!("{visible}.json"));
        fs::create_dir_all(state_dir())?;
        let (daemon, uid) = (std::process::id(), fs::metadata("/proc/self")?.uid());
        let known = MpsRecord {
            daemon,
            uid,
            visible,
            pipe: pipe.to_owned(),
            log,
            percent: 100.0,
            ..MpsRecord::default()
        };
        let daemon = Daemon { known, file };
        daemon.keep()?;
        Ok(daemon)
    }

    fn obey(&mut self, words: &[&str]) -> Result<String, String> {
        let known = &mut self.known;
        let answer = match *words {
            ["set_default_active_thread_percentage", percent] => {
                known.percent = percent
                    .parse()
                    .map_err(|_| format!("{percent:?} is no percentage"))?;
                format!("{:.1}\n", known.percent)
            }
            ["get_default_active_thread_percentage"] => format!("{:.1}\n", known.percent),
            ["set_default_device_pinned_mem_limit", device, limit] => {
                known.memory.insert(device.to_owned(), limit.to_owned());
                String::new()
            }
            ["get_default_device_pinned_mem_limit", device] => match known.memory.get(device) {
                Some(limit) => format!("{limit}\n"),
                None => "no limit\n".to_owned(),
            },
            ["start_server", "-uid", uid] => {
                let uid = uid.parse().map_err(|_| format!("{uid:?} is no uid"))?;
                let pid =
                    start_server(uid).map_err(|e| format!("starting a server as {uid}: {e}"))?;
                known.servers.push(Server {
                    pid,
                    uid,
                    percent: known.percent,
                    memory: known.memory.clone(),
                });
                String::new()
            }
            ["get_server_list"] => known
                .servers
                .iter()
                .map(|server| format!("{}\n", server.pid))
                .collect(),
            ["get_active_thread_percentage", pid] => {
                let server = known
                    .servers
                    .iter()
                    .find(|server| server.pid.to_string() == pid)
                    .ok_or("no such server")?;
                format!("{:.1}\n", server.percent)
            }
            _ => return Err(format!("unknown command {:?}", words.join(" "))),
        };
        self.keep().map_err(|e| e.to_string())?;
        Ok(answer)
    }

    /// Whole or not at all, for a concurrent reader.
    fn keep(&self) -> io::Result<()> {
        let aside = self.file.with_extension("new");
        fs::write(&aside, serde_json::to_vec_pretty(&self.known)?)?;
        fs::rename(&aside, &self.file)
    }

    fn end(&mut self) {
        for server in &self.known.servers {
            // SAFETY: both take numbers; the server is a child that is not waited for yet, so the pid is its own.
            unsafe {
                libc::kill(server.pid as i32, libc::SIGKILL);
                libc::waitpid(server.pid as i32, std::ptr::null_mut(), 0);
            }
        }
        let _ = fs::remove_file(&self.file);
    }
}

/// A process of that user that holds nothing, until it is killed.
fn start_server(uid: u32) -> io::Result<u32> {
    // SAFETY: this process has one thread, and the child makes nothing but system calls.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: as above.
        0 => unsafe {
            // The asking peer waits for the end of the connection.
            libc::close_range(0, u32::MAX, 0);
            if libc::setuid(uid) != 0 {
                libc::_exit(1);
            }
            loop {
                libc::pause();
            }
        },
        pid => Ok(pid as u32),
    }
}

/// The process at the other end, as the kernel tells.
fn peer_uid(stream: &UnixStream) -> Option<u32> {
    let mut peer = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the descriptor is open, and the structure is of the length that is told.
    let outcome = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &mut length,
        )
    };
    (outcome == 0).then_some(peer.uid)
}
