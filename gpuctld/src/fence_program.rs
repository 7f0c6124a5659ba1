//! Calls the site's `fence_program` for each lost node that the core wants powered off, and tells the core how it ended.
//!
//! Decides nothing: which node, when, and when again is in the state ([`gcore::ctl::fence_orders`]). A controller that was
//! killed in the middle of a call makes it again, so the program has to bear being called twice.

use crate::config::FenceProgram;
use crate::core_thread::CoreHandle;
use crate::http::App;
use crate::site_program::check_ownership;
use gcore::ctl::{FenceOrder, fence_orders};
use gmodel::NodeId;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::collections::VecDeque;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Between two looks at the state: small beside the time until a node counts as lost.
const LOOK: Duration = Duration::from_millis(500);
/// Calls at once: a rack that lost its power is many nodes.
const CALLS: usize = 32;
/// Of what a program says the last so many bytes are kept.
const WORDS_BYTES: usize = 1000;
/// For words that are still in the pipe when the program has ended.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// What a call came to.
struct Called {
    node: NodeId,
    number: u64,
    failure: Option<String>,
}

/// Runs until we stop; calls under way are ended then, and made again by the next controller.
pub async fn run(core: CoreHandle, app: Arc<App>, mut stop: watch::Receiver<bool>) {
    let mut calls = JoinSet::new();
    let mut under_way: Vec<u64> = Vec::new();
    let mut seen = None;
    while !*stop.borrow() {
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            Some(Ok(Called { node, number, failure })) = calls.join_next() => {
                // Refused when we are stopping or swamped: the order stands, and is carried out once more.
                let _ = core.fenced(node, number, failure).await;
                under_way.retain(|one| *one != number);
                seen = None;
            }
            _ = stop.changed() => continue, // told to stop, or nobody is left who could
        }
        let Some(program) = app.config().fence.clone() else { continue };
        let version = core.version();
        if seen == Some(version) {
            continue;
        }
        seen = Some(version);
        for order in fence_orders(&*core.view().await) {
            if under_way.len() >= CALLS {
                break;
            }
            if !under_way.contains(&order.number) {
                under_way.push(order.number);
                calls.spawn(call(program.clone(), order));
            }
        }
    }
}

async fn call(program: FenceProgram, order: FenceOrder) -> Called {
    let FenceOrder { node, number, ref name, attempt, .. } = order;
    tracing::warn!(node = name, attempt, program = %program.program.display(), "powering off a lost node: {}", order.lost);
    let failure = carry_out(&program, &order).await.err();
    match &failure {
        None => tracing::warn!(node = name, attempt, "powered off"),
        Some(why) => tracing::error!(node = name, attempt, "it is not powered off, and its jobs wait: {why}"),
    }
    Called { node, number, failure }
}

/// # Errors
/// How it failed, in one sentence with the program's last words.
async fn carry_out(program: &FenceProgram, order: &FenceOrder) -> Result<(), String> {
    check_ownership(&program.program).map_err(|why| format!("fence_program was not called: {why}"))?;
    let mut command = Command::new(&program.program);
    command
        .arg(&order.name)
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("GPUPOOL_NODE", &order.name)
        .env("GPUPOOL_REASON", &order.lost)
        .env("GPUPOOL_ATTEMPT", order.attempt.to_string())
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    let child = command.spawn().map_err(|error| format!("fence_program cannot be started: {error}"))?;
    let mut group = Group::of(child);
    let (mut out, mut err) = (Words::default(), Words::default());
    let limit = Duration::from_secs(u64::from(program.timeout_secs));
    let ended = {
        let (stdout, stderr) = (group.child.stdout.take(), group.child.stderr.take());
        let words = async { tokio::join!(out.read(stdout), err.read(stderr)) };
        tokio::pin!(words);
        let wait = timeout(limit, group.child.wait());
        tokio::pin!(wait);
        let (ended, heard) = tokio::select! {
            ended = &mut wait => (ended, false),
            _ = &mut words => (wait.await, true),
        };
        if !heard {
            let _ = timeout(LAST_WORDS, words).await;
        }
        ended
    };
    let words = Words::text(&err, &out);
    match ended {
        Ok(Ok(status)) if status.success() => {
            group.is_over();
            Ok(())
        }
        Ok(Ok(status)) => Err(format!("fence_program {}{words}", ending(status))),
        Ok(Err(error)) => Err(format!("fence_program was lost: {error}{words}")),
        Err(_) => Err(format!("fence_program did not end within {} s and was killed{words}", program.timeout_secs)),
    }
}

fn ending(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with {code}"),
        (None, signal) => format!("was ended by signal {}", signal.unwrap_or_default()),
    }
}

/// A program with all it started in its process group: killed when the call is given up, for whatever reason.
struct Group {
    child: Child,
    leader: Option<Pid>,
}

impl Group {
    fn of(child: Child) -> Self {
        let leader = child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw);
        Self { child, leader }
    }

    /// It did its work: what it left behind may live on.
    fn is_over(&mut self) {
        self.leader = None;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(leader) = self.leader {
            let _ = killpg(leader, Signal::SIGKILL); // an error: nothing of it is left
        }
    }
}

/// The end of what a program says.
#[derive(Default)]
struct Words(VecDeque<u8>);

impl Words {
    async fn read(&mut self, stream: Option<impl AsyncRead + Unpin>) {
        let Some(mut stream) = stream else { return };
        let mut buffer = [0; 1024];
        while let Ok(count @ 1..) = stream.read(&mut buffer).await {
            self.0.extend(&buffer[..count]);
            self.0.drain(..self.0.len().saturating_sub(WORDS_BYTES));
        }
    }

    /// One line for people: what it complained of, else what it said.
    fn text(err: &Self, out: &Self) -> String {
        let said = [err, out].map(|words| String::from_utf8_lossy(&Vec::from(words.0.clone())).trim().replace('\n', " | "));
        said.into_iter().find(|said| !said.is_empty()).map_or_else(String::new, |said| format!(": {said}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;
    use std::time::Instant;

    fn script(dir: &tempfile::TempDir, text: &str) -> PathBuf {
        let path = dir.path().join("fence");
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    async fn called(program: PathBuf, timeout_secs: u32) -> Result<(), String> {
        let order = FenceOrder { node: NodeId(1), name: "n1".into(), number: 7, attempt: 2, lost: "silent".into() };
        carry_out(&FenceProgram { program, timeout_secs }, &order).await
    }

    #[tokio::test]
    async fn it_is_told_the_node_the_reason_and_the_attempt_and_its_end_counts() {
        let dir = tempfile::tempdir().unwrap();
        let path = script(&dir, "[ \"$1 $GPUPOOL_NODE $GPUPOOL_REASON $GPUPOOL_ATTEMPT\" = 'n1 n1 silent 2' ]");
        assert_eq!(called(path, 5).await, Ok(()));
        let path = script(&dir, "echo trying; echo no route to 10.0.0.7 >&2; exit 3");
        assert_eq!(called(path, 5).await, Err("fence_program ended with 3: no route to 10.0.0.7".into()));
        let path = script(&dir, "kill -9 $$");
        assert_eq!(called(path, 5).await, Err("fence_program was ended by signal 9".into()));
    }

    #[tokio::test]
    async fn one_that_hangs_is_killed_with_all_it_started() {
        let dir = tempfile::tempdir().unwrap();
        let pids = dir.path().join("pid");
        let path = script(&dir, &format!("echo waiting; sleep 1000 & echo $! > {}; wait", pids.display()));
        let begun = Instant::now();
        let why = called(path, 1).await.unwrap_err();
        assert_eq!(why, "fence_program did not end within 1 s and was killed: waiting");
        assert!(begun.elapsed() < Duration::from_secs(10));
        let pid = std::fs::read_to_string(pids).unwrap();
        let gone = || std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).map_or(true, |stat| stat.contains(") Z "));
        let deadline = Instant::now() + Duration::from_secs(5);
        while !gone() {
            assert!(Instant::now() < deadline, "the sleep that it started is still there");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    #[tokio::test]
    async fn one_that_others_can_change_is_not_called() {
        let dir = tempfile::tempdir().unwrap();
        let path = script(&dir, "exit 0");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).unwrap();
        let why = called(path.clone(), 5).await.unwrap_err();
        assert!(why.contains("was not called: others can write to it") && why.contains("chmod go-w"), "{why}");
        std::fs::remove_file(&path).unwrap();
        assert!(called(path, 5).await.unwrap_err().contains("cannot be read"));
    }
}
