//! The daemons of a sandbox: start, find, kill. A process is known by pid and start time, so that a
//! process which got the number later is never killed.

use super::layout::{HOLLOW, Sandbox};
use anyhow::{Context, bail};
use nix::sys::signal::{Signal, kill as send};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use std::fs::{self, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Time a daemon has to answer after its start.
const START_PATIENCE: Duration = Duration::from_secs(60);
/// Time a daemon has to end after SIGTERM.
const STOP_PATIENCE: Duration = Duration::from_secs(15);

/// What the pid file holds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct DaemonProcess {
    pid: i32,
    /// Field 22 of /proc/PID/stat: ticks from boot to start.
    started: u64,
    /// Bytes of the log before its start: what follows are its own words.
    #[serde(default)]
    log_from: u64,
}

/// How long a node's daemon is watched after its start.
const NODE_PATIENCE: Duration = Duration::from_millis(700);

/// Starts a daemon unless it runs.
pub fn start(sandbox: &Sandbox, name: &str) -> anyhow::Result<()> {
    sandbox.check_daemon(name)?;
    if alive(sandbox, name).is_some() {
        eprintln!("{name} is running already");
        return Ok(());
    }
    spawn(sandbox, name)?;
    if name == "gpuctld" {
        wait_for_controller(sandbox)
    } else {
        wait_for_first_words(sandbox, name)
    }
}

/// A node's daemon that does not like its configuration ends at once, and says so only in its log. A controller that is away is no fault.
fn wait_for_first_words(sandbox: &Sandbox, name: &str) -> anyhow::Result<()> {
    let deadline = Instant::now() + NODE_PATIENCE;
    wait(sandbox, name, || {
        Ok(log_tail(sandbox, name).contains("connected to cluster") || Instant::now() > deadline)
    })
}

pub fn spawn(sandbox: &Sandbox, name: &str) -> anyhow::Result<()> {
    let home = sandbox.home(name);
    let (program, config) = match name {
        "gpuctld" => ("gpuctld", home.join("gpuctld.toml")),
        _ => ("gpud", home.join("gpud.toml")),
    };
    let log = OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o644)
        .open(home.join("log"))?;
    let log_from = log.metadata()?.len();
    let mut command = Command::new(sandbox.record.programs.join(program));
    command.args(["run", "--config"]).arg(config);
    if name == HOLLOW {
        let count = sandbox.record.hollow_nodes.to_string();
        command
            .args(["--hollow", &count, "--hollow-tokens"])
            .arg(home.join("tokens"));
        command.args(
            sandbox
                .record
                .hollow_gpus
                .iter()
                .flat_map(|gpus| ["--hollow-gpus", gpus]),
        );
    }
    let child = command
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .env_remove("NOTIFY_SOCKET")
        .env_remove("GPUPOOL_CONFIG")
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot start {program}"))?;
    let pid = child.id() as i32;
    let started = start_time(pid).context("the daemon ended at once")?;
    fs::write(
        home.join("pid"),
        serde_json::to_vec(&DaemonProcess {
            pid,
            started,
            log_from,
        })?,
    )?;
    Ok(())
}

/// Waits until the controller answers; it does so only when its recovery is complete.
pub fn wait_for_controller(sandbox: &Sandbox) -> anyhow::Result<()> {
    wait(sandbox, "gpuctld", || {
        let mut client = gwire::client::Client::new(sandbox.socket()).wait_for(Duration::ZERO);
        Ok(client.get_text("/v1/partitions").is_ok())
    })
}

/// Polls until `ready`, watching that the daemon lives.
pub fn wait(
    sandbox: &Sandbox,
    name: &str,
    mut ready: impl FnMut() -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    let deadline = Instant::now() + START_PATIENCE;
    loop {
        if ready()? {
            return Ok(());
        }
        if alive(sandbox, name).is_none() {
            bail!("{name} ended while starting:\n{}", log_tail(sandbox, name));
        }
        if Instant::now() > deadline {
            bail!(
                "{name} did not get ready in {} s:\n{}",
                START_PATIENCE.as_secs(),
                log_tail(sandbox, name)
            );
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The last lines since its last start.
fn log_tail(sandbox: &Sandbox, name: &str) -> String {
    let home = sandbox.home(name);
    let log = fs::read(home.join("log")).unwrap_or_default();
    let noted = fs::read(home.join("pid"))
        .ok()
        .and_then(|text| serde_json::from_slice::<DaemonProcess>(&text).ok());
    let from = noted.map_or(0, |noted| noted.log_from as usize);
    let text = String::from_utf8_lossy(log.get(from..).unwrap_or(&log));
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(12)..].join("\n")
}

/// SIGKILL, as a crash would end it.
pub fn kill(sandbox: &Sandbox, name: &str) -> anyhow::Result<()> {
    sandbox.check_daemon(name)?;
    let Some(pid) = alive(sandbox, name) else {
        bail!("{name} is not running")
    };
    send(pid, Signal::SIGKILL).with_context(|| format!("cannot kill {name}"))?;
    wait_gone(pid)
}

/// SIGTERM, then SIGKILL when it does not end.
pub fn stop(sandbox: &Sandbox, name: &str) -> anyhow::Result<()> {
    let Some(pid) = alive(sandbox, name) else {
        return Ok(());
    };
    let _ = send(pid, Signal::SIGTERM);
    if wait_gone(pid).is_err() {
        eprintln!(
            "gadm sandbox: {name} (process {pid}) did not end within {} s of SIGTERM and is killed",
            STOP_PATIENCE.as_secs()
        );
        let _ = send(pid, Signal::SIGKILL);
        wait_gone(pid)?;
    }
    Ok(())
}

fn wait_gone(pid: Pid) -> anyhow::Result<()> {
    let deadline = Instant::now() + STOP_PATIENCE;
    while is_running(pid.as_raw()) {
        if Instant::now() > deadline {
            bail!("process {pid} does not end");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// The daemon's process, if it is the one we started.
pub fn alive(sandbox: &Sandbox, name: &str) -> Option<Pid> {
    let text = fs::read_to_string(sandbox.home(name).join("pid")).ok()?;
    let noted: DaemonProcess = serde_json::from_str(&text).ok()?;
    let same = is_running(noted.pid) && start_time(noted.pid) == Some(noted.started);
    same.then(|| Pid::from_raw(noted.pid))
}

/// Exists and holds something: a zombie is gone only when its other threads are, which hold its locks until then.
fn is_running(pid: i32) -> bool {
    let Some(fields) = stat_fields(pid) else {
        return false;
    };
    let zombie = fields.first().is_some_and(|state| state == "Z");
    let threads = || fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    !zombie || threads() > 1
}

fn start_time(pid: i32) -> Option<u64> {
    stat_fields(pid)?.get(19)?.parse().ok()
}

/// Fields of /proc/PID/stat from the third (state) on; the second may hold anything.
fn stat_fields(pid: i32) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = text.rsplit_once(") ")?;
    Some(rest.split_whitespace().map(str::to_owned).collect())
}

/// Breaks or mends a simulated GPU of a node.
pub fn fault(sandbox: &Sandbox, node: &str, gpu: &str, words: &[String]) -> anyhow::Result<()> {
    if !sandbox.record.nodes.iter().any(|name| name == node) {
        let known = sandbox.record.nodes.join(", ");
        bail!("this sandbox has no node {node:?}. It has {known}");
    }
    nvml_sim(
        &sandbox.record.programs,
        &["fault", "--dir"],
        &nvml_dir(sandbox, node),
        |command| {
            command.arg(gpu).args(words);
        },
    )
}

pub fn nvml_dir(sandbox: &Sandbox, node: &str) -> PathBuf {
    sandbox.home(node).join("nvml")
}

/// Runs `nvml-sim WORDS DIR ...`; its complaint becomes ours.
pub fn nvml_sim(
    programs: &Path,
    words: &[&str],
    dir: &Path,
    more: impl FnOnce(&mut Command),
) -> anyhow::Result<()> {
    let mut command = Command::new(programs.join("nvml-sim"));
    command.args(words).arg(dir);
    more(&mut command);
    let output = command
        .stdin(Stdio::null())
        .output()
        .context("cannot run nvml-sim")?;
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// One line a daemon.
pub fn status(sandbox: &Sandbox) -> anyhow::Result<()> {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    for name in sandbox.daemons() {
        match alive(sandbox, name) {
            Some(pid) => writeln!(out, "{name} running, pid {pid}")?,
            None => writeln!(out, "{name} not running")?,
        }
    }
    writeln!(
        out,
        "export GPUPOOL_CONFIG={}",
        sandbox.client_config().display()
    )?;
    Ok(())
}
