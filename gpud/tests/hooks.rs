//! Prologs and epilogs on a real node daemon: once each, whatever befalls the daemon meanwhile, and what they are told.

mod fake;

use fake::{Controller, Node, run_id, stop, wait_file, want};
use gmodel::launch_order::{ArrayTask, LaunchOrder, OrderNode};
use gmodel::run::{EndCause, RunPhase, RunTarget};
use gmodel::{ExitCode, JobId, RunId};
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const RUNNING: u8 = 2;
const ENDED: u8 = 3;

/// A node with hooks that say when they begin and end, and wait for a file in between.
struct Hooks {
    log: PathBuf,
    prolog: String,
    epilog: String,
}

impl Hooks {
    fn of(node: &Node) -> Self {
        let log = node.path("hooks.log");
        let program = |kind: &str| {
            let (log, go) = (
                log.display(),
                node.path(&format!("work/go-{kind}")).display().to_string(),
            );
            let body = format!(
                "echo {kind} begins >> {log}\nwhile [ ! -e {go} ]; do sleep 0.02; done\necho {kind} ends >> {log}"
            );
            node.site_program(kind, &body)
        };
        Self {
            prolog: program("prolog"),
            epilog: program("epilog"),
            log,
        }
    }

    fn order(&self, node: &Node, run: RunId) -> LaunchOrder {
        LaunchOrder {
            prolog: self.prolog.clone(),
            epilog: self.epilog.clone(),
            ..node.order(run, "true")
        }
    }

    fn lines(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    async fn wait_for(&self, line: &str) {
        let deadline = Instant::now() + fake::PATIENCE;
        while !self.lines().contains(line) {
            assert!(
                Instant::now() < deadline,
                "no {line:?} in {:?}",
                self.lines()
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

const ALL_LINES: &str = "prolog begins\nprolog ends\nepilog begins\nepilog ends\n";

fn go(node: &Node, kind: &str) {
    fs::write(node.path(&format!("work/go-{kind}")), "").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_daemon_finds_its_prolog_and_its_epilog_again() {
    let mut ctl = Controller::start().await;
    let mut node = Node::start(&ctl, "").await;
    ctl.wait_hello().await;
    let (hooks, run) = (Hooks::of(&node), run_id("1-1"));
    ctl.desire(
        1,
        vec![hooks.order(&node, run)],
        vec![want(run, RunTarget::Run)],
    );
    hooks.wait_for("prolog begins").await;
    node.kill_daemon();
    node.start_daemon();
    assert_eq!(ctl.wait_hello().await.runs[0].phase, RunPhase::Accepted);
    ctl.desire(1, Vec::new(), vec![want(run, RunTarget::Run)]);
    tokio::time::sleep(Duration::from_millis(300)).await;
    go(&node, "prolog");
    hooks.wait_for("epilog begins").await;
    node.kill_daemon();
    node.start_daemon();
    ctl.wait_hello().await;
    // Longer than a clean-up without epilog takes: its GPUs are not free before that has ended.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    ctl.wait_phase(run, ENDED).await;
    assert_eq!(
        (ctl.phases[&run].rank(), hooks.lines().as_str()),
        (ENDED, "prolog begins\nprolog ends\nepilog begins\n")
    );
    go(&node, "epilog");
    assert_eq!(ctl.wait_clean(run).await.exit, ExitCode::SUCCESS);
    assert_eq!(hooks.lines(), ALL_LINES);
    node.assert_no_trace(run);
}

#[tokio::test(flavor = "multi_thread")]
async fn hooks_that_end_while_the_daemon_is_upgraded_are_not_run_again() {
    let mut ctl = Controller::start().await;
    let mut node = Node::start(&ctl, "").await;
    ctl.wait_hello().await;
    let (hooks, run) = (Hooks::of(&node), run_id("2-1"));
    ctl.desire(
        1,
        vec![hooks.order(&node, run)],
        vec![want(run, RunTarget::Run)],
    );
    for kind in ["prolog", "epilog"] {
        hooks.wait_for(&format!("{kind} begins")).await;
        node.stop_daemon();
        go(&node, kind);
        hooks.wait_for(&format!("{kind} ends")).await;
        node.start_daemon();
        ctl.wait_hello().await;
        ctl.desire(1, Vec::new(), vec![want(run, RunTarget::Run)]);
    }
    assert_eq!(ctl.wait_clean(run).await.exit, ExitCode::SUCCESS);
    assert_eq!(hooks.lines(), ALL_LINES);
    node.assert_no_trace(run);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_stopped_in_its_prolog_has_its_epilog_after_that() {
    let mut ctl = Controller::start().await;
    let mut node = Node::start(&ctl, "").await;
    ctl.wait_hello().await;
    let (hooks, run) = (Hooks::of(&node), run_id("3-1"));
    ctl.desire(
        1,
        vec![hooks.order(&node, run)],
        vec![want(run, RunTarget::Run)],
    );
    hooks.wait_for("prolog begins").await;
    node.kill_daemon();
    node.start_daemon();
    ctl.wait_hello().await;
    ctl.desire(2, Vec::new(), vec![stop(run, 0)]);
    ctl.wait_phase(run, ENDED).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(hooks.lines(), "prolog begins\n");
    go(&node, "prolog");
    go(&node, "epilog");
    assert_eq!(ctl.wait_clean(run).await.cause, EndCause::Stopped);
    assert_eq!(hooks.lines(), ALL_LINES);
    node.assert_no_trace(run);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prolog_whose_supervisor_is_killed_has_failed_and_is_not_run_again() {
    let mut ctl = Controller::start().await;
    let node = Node::start(&ctl, "").await;
    ctl.wait_hello().await;
    let (hooks, run) = (Hooks::of(&node), run_id("4-1"));
    go(&node, "epilog");
    ctl.desire(
        1,
        vec![hooks.order(&node, run)],
        vec![want(run, RunTarget::Run)],
    );
    hooks.wait_for("prolog begins").await;
    let supervisor = wait_file(&node.run_dir(run).join("prolog.lock"))
        .await
        .parse()
        .unwrap();
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(supervisor),
        nix::sys::signal::Signal::SIGKILL,
    )
    .unwrap();
    let end = ctl.wait_clean(run).await;
    assert_eq!(end.cause, EndCause::PrologFailed);
    assert!(
        end.text.contains("supervisor was killed") && end.text.contains("not run again"),
        "{}",
        end.text
    );
    assert_eq!(hooks.lines(), "prolog begins\nepilog begins\nepilog ends\n");
    node.assert_no_trace(run);
}

#[tokio::test(flavor = "multi_thread")]
async fn hooks_are_told_the_run_its_node_and_its_gpus() {
    if !fake::is_root() {
        return println!("NOT RUN: without root there are no simulated device files");
    }
    let mut ctl = Controller::start().await;
    let node = fake::gpu_node(&mut ctl, "").await;
    let hello = ctl.wait_hello().await;
    let gpu = &hello.inventory.gpus[2];
    let program = node.site_program(
        "hook",
        &format!("env > {}/hook-$SLURM_JOB_ID", node.dir.display()),
    );
    let run = run_id("5-1");
    let mut order = LaunchOrder {
        prolog: program,
        ..node.order(run, "true")
    };
    order.gpus = vec![gmodel::launch_order::OrderGpu {
        slot: gmodel::GpuSlot(2),
        uuid: gpu.uuid.clone(),
        gpu_type: "h100".into(),
        part: gmodel::GpuPart::Whole,
    }];
    order.array = Some(ArrayTask {
        array: JobId(4),
        index: 7,
        count: 9,
        min: 1,
        max: 9,
        step: 1,
    });
    order.nodes = ["n1", "n2"]
        .map(|name| OrderNode {
            name: name.into(),
            cpus: 1,
            tasks: 1,
            gpus: 1,
        })
        .into();
    ctl.desire(1, vec![order], vec![want(run, RunTarget::Prepare)]);
    ctl.wait_phase(run, 1).await;
    let told = fs::read_to_string(node.path("hook-5")).unwrap();
    let work = node.path("work");
    let wanted = [
        ("SLURMD_NODENAME", "n1"),
        ("SLURM_ARRAY_JOB_ID", "4"),
        ("SLURM_ARRAY_TASK_ID", "7"),
        ("SLURM_JOB_GPUS", &gpu.index.to_string()),
        ("SLURM_JOB_NODELIST", "n[1-2]"),
        ("SLURM_JOB_WORK_DIR", work.to_str().unwrap()),
        ("GSUB_JOB_WORK_DIR", work.to_str().unwrap()),
        ("CUDA_VISIBLE_DEVICES", &gpu.uuid),
    ];
    for (name, value) in wanted {
        assert!(
            told.lines().any(|line| line == format!("{name}={value}")),
            "{name}={value} is not in {told}"
        );
    }
    ctl.desire(2, Vec::new(), vec![stop(run, 0)]);
    ctl.wait_clean(run).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_cannot_reach_its_hooks() {
    let mut ctl = Controller::start().await;
    let node = Node::start(&ctl, "").await;
    ctl.wait_hello().await;
    let (hooks, run) = (Hooks::of(&node), run_id("6-1"));
    go(&node, "prolog");
    go(&node, "epilog");
    // The run's directory, its locks and ends, and the hook itself.
    let body = format!(
        "cd {} && exit 1; echo x >> {} && exit 2; touch started; exit 0",
        node.run_dir(run).display(),
        hooks.epilog
    );
    ctl.desire(
        1,
        vec![LaunchOrder {
            script: format!("#!/bin/sh\n{body}\n"),
            ..hooks.order(&node, run)
        }],
        vec![want(run, RunTarget::Run)],
    );
    let end = ctl.wait_clean(run).await;
    if fake::is_root() {
        assert_eq!(end.exit, ExitCode::SUCCESS);
    }
    assert!(RUNNING < ctl.phases[&run].rank());
}
