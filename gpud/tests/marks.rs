//! Checkpoint marks on their way from a job to the controller, over a daemon that is killed and a supervisor that is lost.

mod fake;

use fake::{Controller, Node, is_root, run_id, wait_file, want};
use gmodel::RunId;
use gmodel::run::{DesiredRun, EndCause, RunTarget, StopCause};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

const RUNNING: u8 = 2;

/// Says when it is asked for a checkpoint, and goes on until it is terminated.
const WORKER: &str = "trap 'echo asked >> asked' USR1; trap 'exit 9' TERM; echo begun > started; while :; do sleep 0.02; done";

fn preempt(run: RunId) -> DesiredRun {
    want(
        run,
        RunTarget::Stop {
            why: StopCause::Preempted,
            grace_secs: 30,
        },
    )
}

/// Marks as a job does, as soon as one is taken; its number.
async fn mark(node: &Node, run: RunId, note: &str) -> u32 {
    let socket = node.path("run/marks").join(format!("{run}.sock"));
    let deadline = Instant::now() + fake::PATIENCE;
    loop {
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.write_all(format!("{note}\n").as_bytes()).unwrap();
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).unwrap();
        match answer.trim().strip_prefix("ok ") {
            Some(number) => return number.parse().unwrap(),
            None => assert!(
                answer.contains("too soon") && Instant::now() < deadline,
                "{answer}"
            ),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn begun(ctl: &mut Controller, node: &Node, run: RunId) {
    let mut order = node.order(run, WORKER);
    order.checkpoint = Some("USR1@3600".parse().unwrap());
    ctl.desire(1, vec![order], vec![want(run, RunTarget::Run)]);
    ctl.wait_phase(run, RUNNING).await;
    wait_file(&node.path("work/started")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mark_reaches_the_controller_and_ends_the_wait_of_a_preempted_run() {
    let mut ctl = Controller::start().await;
    let node = Node::start(&ctl, "").await;
    ctl.wait_hello().await;
    let run = run_id("1-1");
    begun(&mut ctl, &node, run).await;
    assert_eq!(mark(&node, run, "epoch 3").await, 1);
    ctl.wait("a mark", |ctl| {
        ctl.marks
            .get(&run)
            .is_some_and(|mark| mark.number == 1 && mark.note == "epoch 3")
    })
    .await;
    ctl.desire(2, Vec::new(), vec![preempt(run)]);
    wait_file(&node.path("work/asked")).await;
    assert_eq!(mark(&node, run, "saved").await, 2);
    let end = ctl.wait_clean(run).await;
    assert_eq!(
        (end.cause, end.exit.code),
        (EndCause::Stopped, 9),
        "{}",
        end.text
    );
    assert_eq!(
        (ctl.marks[&run].number, ctl.marks[&run].note.as_str()),
        (2, "saved"),
        "with every report to the last"
    );
    node.assert_no_trace(run);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_restarted_in_the_grace_asks_nothing_twice_and_knows_the_marks() {
    let mut ctl = Controller::start().await;
    let mut node = Node::start(&ctl, "").await;
    ctl.wait_hello().await;
    let run = run_id("2-1");
    begun(&mut ctl, &node, run).await;
    assert_eq!(mark(&node, run, "before").await, 1);
    ctl.desire(2, Vec::new(), vec![preempt(run)]);
    wait_file(&node.path("work/asked")).await;
    node.kill_daemon();
    node.start_daemon();
    let hello = ctl.wait_hello().await;
    assert_eq!(
        hello.runs[0].mark.as_ref().map(|mark| mark.note.as_str()),
        Some("before"),
        "{:?}",
        hello.runs
    );
    ctl.desire(3, Vec::new(), vec![preempt(run)]);
    ctl.wait("generation 3", |ctl| {
        ctl.obeyed.is_some_and(|fence| fence.generation == 3)
    })
    .await;
    // The mark comes while the daemon is away, and so does the end.
    node.kill_daemon();
    assert_eq!(mark(&node, run, "saved").await, 2);
    wait_file(&node.run_dir(run).join("exit.json")).await;
    node.start_daemon();
    let end = ctl.wait_clean(run).await;
    assert_eq!(
        (end.cause, end.exit.code),
        (EndCause::Stopped, 9),
        "{}",
        end.text
    );
    assert_eq!(ctl.marks[&run].note, "saved");
    assert_eq!(
        fs::read_to_string(node.path("work/asked")).unwrap(),
        "asked\n"
    );
    node.assert_no_trace(run);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_supervisor_lost_in_the_grace_leaves_the_mark_that_it_acknowledged() {
    if !is_root() {
        return println!("NOT RUN: without root there is no cgroup to kill");
    }
    let mut ctl = Controller::start().await;
    let mut node = Node::start(&ctl, "").await;
    ctl.wait_hello().await;
    let run = run_id("3-1");
    begun(&mut ctl, &node, run).await;
    // gpud is down when the mark is set, and the supervisor that could report it is killed.
    node.kill_daemon();
    assert_eq!(mark(&node, run, "epoch 8").await, 1);
    let trees = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"];
    let procs = |tree: &str| {
        fs::read_to_string(format!(
            "{tree}/{}/run_{run}/sup/cgroup.procs",
            node.cgroup_tag
        ))
        .ok()
    };
    let gstepd: i32 = trees
        .into_iter()
        .find_map(procs)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(gstepd),
        nix::sys::signal::Signal::SIGKILL,
    )
    .unwrap();
    node.start_daemon();
    let end = ctl.wait_clean(run).await;
    assert_eq!(end.cause, EndCause::SupervisorLost, "{}", end.text);
    assert_eq!(ctl.marks[&run].note, "epoch 8");
    node.assert_no_trace(run);
}
