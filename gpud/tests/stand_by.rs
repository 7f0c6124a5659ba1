//! The loaded gstepd of which a daemon's supervisors are copies: killed, stopped and left alone at each moment, it costs no
//! run and starts none twice.

#[path = "fake/mod.rs"]
mod fake;

use fake::{Controller, Node, PATIENCE, run_id, wait_file, want};
use gmodel::ExitCode;
use gmodel::run::RunTarget;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::time::{Duration, Instant};

const WAITS: &str =
    "echo begun >> runs; echo $PPID > supervisor\nwhile [ ! -e go ]; do sleep 0.02; done\nexit 7";

/// The processes with both words in the command line: of this node, since its directory is in one word.
fn processes(node: &Node, word: &str) -> Vec<i32> {
    let dir = node.path("spool/runs").display().to_string();
    let pids = fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_it = |pid: &i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).into_owned();
        line.split('\0').any(|part| part == word) && line.contains(&dir)
    };
    pids.filter(is_it).collect()
}

async fn stand_by(node: &Node) -> i32 {
    wait_until("a stand-by", || {
        processes(node, "--stand-by").first().copied()
    })
    .await
}

async fn wait_until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited {PATIENCE:?} for {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn signal(pid: i32, signal: Signal) {
    kill(Pid::from_raw(pid), signal).unwrap();
}

fn parent(pid: i32) -> i32 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit_once(") ")
        .unwrap()
        .1
        .split(' ')
        .nth(1)
        .unwrap()
        .parse()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_stand_by_costs_no_run_and_the_next_run_has_another() {
    let mut ctl = Controller::start().await;
    let node = Node::start(&ctl, "").await;
    ctl.wait_hello().await;
    let first = stand_by(&node).await;
    let (one, two) = (run_id("1-1"), run_id("2-1"));
    ctl.desire(
        1,
        vec![node.order(one, WAITS)],
        vec![want(one, RunTarget::Run)],
    );
    let supervisor: i32 = wait_file(&node.path("work/supervisor"))
        .await
        .trim()
        .parse()
        .unwrap();
    assert_eq!(
        (processes(&node, "--run-dir"), parent(supervisor)),
        (vec![supervisor], first)
    );
    signal(first, Signal::SIGKILL);
    let more = node.order(two, "echo two >> runs; exit 2");
    ctl.desire(
        2,
        vec![more],
        vec![want(one, RunTarget::Run), want(two, RunTarget::Run)],
    );
    assert_eq!(ctl.wait_clean(two).await.exit, ExitCode::exited(2));
    assert_ne!(stand_by(&node).await, first);
    fs::write(node.path("work/go"), "").unwrap();
    assert_eq!(ctl.wait_clean(one).await.exit, ExitCode::exited(7));
    assert_eq!(
        fs::read_to_string(node.path("work/runs")).unwrap(),
        "begun\ntwo\n"
    );
    for run in [one, two] {
        node.assert_no_trace(run);
    }
}

/// Stopped, so that the request waits in its socket when it is killed; the run's own directory says when it is asked for.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_was_asked_of_a_dying_stand_by_runs_once() {
    let mut ctl = Controller::start().await;
    let node = Node::start(&ctl, "").await;
    ctl.wait_hello().await;
    let run = run_id("1-1");
    let first = stand_by(&node).await;
    signal(first, Signal::SIGSTOP);
    ctl.desire(
        1,
        vec![node.order(run, "echo begun >> runs; exit 3")],
        vec![want(run, RunTarget::Run)],
    );
    wait_file(&node.run_dir(run).join("setup.json")).await;
    signal(first, Signal::SIGKILL);
    let end = ctl.wait_clean(run).await;
    assert_eq!(end.exit, ExitCode::exited(3), "{}", end.text);
    assert_eq!(
        fs::read_to_string(node.path("work/runs")).unwrap(),
        "begun\n"
    );
    node.assert_no_trace(run);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stand_by_that_does_not_answer_is_replaced() {
    let mut ctl = Controller::start().await;
    let node = Node::start(&ctl, "").await;
    ctl.wait_hello().await;
    let (one, two) = (run_id("1-1"), run_id("2-1"));
    let first = stand_by(&node).await;
    signal(first, Signal::SIGSTOP);
    ctl.desire(
        1,
        vec![node.order(one, "echo one >> runs; exit 3")],
        vec![want(one, RunTarget::Run)],
    );
    assert_eq!(
        ctl.wait_clean(one).await.exit,
        ExitCode::exited(3),
        "gstepd was started anew"
    );
    let log = node.log_text();
    assert!(
        log.contains("the stand-by of gstepd does not answer") && log.contains("started anew"),
        "{log}"
    );
    ctl.desire(
        2,
        vec![node.order(two, "echo two >> runs; exit 4")],
        vec![want(two, RunTarget::Run)],
    );
    assert_eq!(ctl.wait_clean(two).await.exit, ExitCode::exited(4));
    assert_eq!(
        fs::read_to_string(node.path("work/runs")).unwrap(),
        "one\ntwo\n"
    );
    assert!(
        !processes(&node, "--stand-by").contains(&first),
        "it is gone"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_and_its_stand_by_go_together_and_its_successor_has_its_own() {
    let mut ctl = Controller::start().await;
    let mut node = Node::start(&ctl, "").await;
    ctl.wait_hello().await;
    let first = stand_by(&node).await;
    let (one, two) = (run_id("1-1"), run_id("2-1"));
    ctl.desire(
        1,
        vec![node.order(one, WAITS)],
        vec![want(one, RunTarget::Run)],
    );
    wait_file(&node.path("work/supervisor")).await;
    node.kill_daemon();
    wait_until("the end of the stand-by", || {
        processes(&node, "--stand-by").is_empty().then_some(())
    })
    .await;
    assert_eq!(
        processes(&node, "--run-dir").len(),
        1,
        "the supervisor stays"
    );
    node.start_daemon();
    ctl.wait_hello().await;
    assert_ne!(stand_by(&node).await, first);
    ctl.desire(
        2,
        vec![node.order(two, "exit 2")],
        vec![want(one, RunTarget::Run), want(two, RunTarget::Run)],
    );
    assert_eq!(ctl.wait_clean(two).await.exit, ExitCode::exited(2));
    fs::write(node.path("work/go"), "").unwrap();
    assert_eq!(ctl.wait_clean(one).await.exit, ExitCode::exited(7));
    assert_eq!(
        fs::read_to_string(node.path("work/runs")).unwrap(),
        "begun\n"
    );
}
