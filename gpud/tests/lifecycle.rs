//! Runs on a real node daemon with a real supervisor: from order to oblivion, through kill -9 of everything.

mod fake;

use fake::{Controller, Node, is_root, run_id, stop, wait_file, want};
use gmodel::run::{EndCause, RunPhase, RunTarget};
use gmodel::{ExitCode, Fence};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Instant;

const RUNNING: u8 = 2;
const ENDED: u8 = 3;

/// A job that runs until the file `go` is there, then exits with 7.
const WAITS: &str = "echo begun > started\nwhile [ ! -e go ]; do sleep 0.02; done\nexit 7";

#[tokio::test(flavor = "multi_thread")]
async fn a_run_ends_with_its_exit_code_and_leaves_no_trace() {
    let mut ctl = Controller::start().await;
    let node = Node::start(&ctl, "").await;
    let hello = ctl.wait_hello().await;
    assert_eq!(
        (
            hello.inventory.cpus,
            hello.inventory.declared,
            hello.inventory.unfit.as_str()
        ),
        (4, true, "")
    );
    let run = run_id("1-1");
    let asked = Instant::now();
    ctl.desire(
        1,
        vec![node.order(run, "echo here > first; exit 3")],
        vec![want(run, RunTarget::Run)],
    );
    wait_file(&node.path("work/first")).await;
    println!(
        "from order to the script's first line: {:?}",
        asked.elapsed()
    );
    let end = ctl.wait_clean(run).await;
    assert_eq!(
        (end.cause, end.exit),
        (EndCause::Exited, ExitCode::exited(3))
    );
    assert!(end.started.is_some() && end.ended >= end.started);
    assert_eq!(
        ctl.obeyed,
        Some(Fence {
            incarnation: 1,
            generation: 1
        })
    );
    node.assert_no_trace(run);
    assert!(
        node.run_dir(run).exists(),
        "the record stays until the controller lets go"
    );
    ctl.desire(2, Vec::new(), Vec::new());
    ctl.wait("generation 2", |ctl| {
        ctl.obeyed.is_some_and(|fence| fence.generation == 2)
    })
    .await;
    let deadline = Instant::now() + fake::PATIENCE;
    while node.run_dir(run).exists() {
        assert!(Instant::now() < deadline, "the record was not removed");
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_daemon_finds_its_run_again_and_reports_the_end() {
    let mut ctl = Controller::start().await;
    let mut node = Node::start(&ctl, "").await;
    ctl.wait_hello().await;
    let run = run_id("2-1");
    ctl.desire(
        1,
        vec![node.order(run, WAITS)],
        vec![want(run, RunTarget::Run)],
    );
    wait_file(&node.path("work/started")).await;
    ctl.wait_phase(run, RUNNING).await;
    let before = ctl.phases[&run].clone();
    node.kill_daemon();
    node.start_daemon();
    let hello = ctl.wait_hello().await;
    assert_eq!(
        hello.fence,
        Fence {
            incarnation: 1,
            generation: 1
        }
    );
    assert_eq!(
        hello
            .runs
            .iter()
            .map(|r| (r.run, r.phase.clone()))
            .collect::<Vec<_>>(),
        [(run, before)]
    );
    fs::write(node.path("work/go"), "").unwrap();
    let end = ctl.wait_clean(run).await;
    assert_eq!(
        (end.cause, end.exit),
        (EndCause::Exited, ExitCode::exited(7))
    );
    node.assert_no_trace(run);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_ended_while_the_daemon_was_down_is_reported_when_it_is_back() {
    let mut ctl = Controller::start().await;
    let mut node = Node::start(&ctl, "").await;
    ctl.wait_hello().await;
    let run = run_id("3-1");
    ctl.desire(
        1,
        vec![node.order(run, WAITS)],
        vec![want(run, RunTarget::Run)],
    );
    ctl.wait_phase(run, RUNNING).await;
    wait_file(&node.path("work/started")).await;
    node.stop_daemon();
    fs::write(node.path("work/go"), "").unwrap();
    wait_file(&node.run_dir(run).join("exit.json")).await;
    node.start_daemon();
    let hello = ctl.wait_hello().await;
    assert!(hello.runs[0].phase.rank() >= ENDED, "{:?}", hello.runs);
    assert_eq!(ctl.wait_clean(run).await.exit, ExitCode::exited(7));
    node.assert_no_trace(run);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lower_fence_is_refused_and_an_unnamed_run_is_stopped() {
    let mut ctl = Controller::start().await;
    let mut node = Node::start(&ctl, "").await;
    ctl.wait_hello().await;
    let run = run_id("4-1");
    ctl.desire(
        5,
        vec![node.order(run, WAITS)],
        vec![want(run, RunTarget::Run)],
    );
    ctl.wait_phase(run, RUNNING).await;
    ctl.desire(4, Vec::new(), Vec::new());
    ctl.desire(5, Vec::new(), vec![want(run, RunTarget::Run)]);
    // A restart in between: the fence is on the disk.
    node.kill_daemon();
    node.start_daemon();
    ctl.wait_hello().await;
    ctl.desire(4, Vec::new(), Vec::new());
    ctl.desire(6, Vec::new(), vec![want(run, RunTarget::Run)]);
    ctl.wait("generation 6", |ctl| {
        ctl.obeyed.is_some_and(|fence| fence.generation == 6)
    })
    .await;
    assert!(matches!(ctl.phases[&run], RunPhase::Running { .. }));
    assert!(
        node.log_text().contains("was refused"),
        "{}",
        node.log_text()
    );
    ctl.desire(7, Vec::new(), Vec::new());
    let end = ctl.wait_clean(run).await;
    assert_eq!(end.cause, EndCause::Stopped);
    node.assert_no_trace(run);
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_costs_a_connection_and_no_run() {
    let mut ctl = Controller::start().await;
    let node = Node::start(&ctl, "").await;
    ctl.wait_hello().await;
    let run = run_id("5-1");
    ctl.desire(
        1,
        vec![node.order(run, WAITS)],
        vec![want(run, RunTarget::Run)],
    );
    ctl.wait_phase(run, RUNNING).await;
    for garbage in [b"\xff\xff\xff\xff".to_vec(), b"\0\0\0\x04!!!!".to_vec()] {
        ctl.send_bytes(garbage);
        let hello = ctl.wait_hello().await;
        assert!(matches!(hello.runs[0].phase, RunPhase::Running { .. }));
    }
    ctl.desire(2, Vec::new(), vec![stop(run, 1)]);
    assert_eq!(ctl.wait_clean(run).await.cause, EndCause::Stopped);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_supervisor_ends_its_run_and_all_its_processes() {
    if !is_root() {
        return println!("NOT RUN: without root there is no cgroup to kill");
    }
    let mut ctl = Controller::start().await;
    let node = Node::start(&ctl, "").await;
    ctl.wait_hello().await;
    let run = run_id("6-1");
    ctl.desire(
        1,
        vec![node.order(run, "setsid sleep 1000 & echo $! > child; sleep 1000")],
        vec![want(run, RunTarget::Run)],
    );
    let child: i32 = wait_file(&node.path("work/child"))
        .await
        .trim()
        .parse()
        .unwrap();
    ctl.wait_phase(run, RUNNING).await;
    let sup = std::path::Path::new("/sys/fs/cgroup/unified")
        .join(&node.cgroup_tag)
        .join("run_6-1/sup/cgroup.procs");
    let sup = if sup.exists() {
        sup
    } else {
        std::path::Path::new("/sys/fs/cgroup")
            .join(&node.cgroup_tag)
            .join("run_6-1/sup/cgroup.procs")
    };
    let gstepd: i32 = fs::read_to_string(sup).unwrap().trim().parse().unwrap();
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(gstepd),
        nix::sys::signal::Signal::SIGKILL,
    )
    .unwrap();
    let end = ctl.wait_clean(run).await;
    assert_eq!(end.cause, EndCause::SupervisorLost);
    assert!(
        !std::path::Path::new(&format!("/proc/{child}/stat")).exists() || is_zombie(child),
        "a process is left"
    );
    node.assert_no_trace(run);
}

fn is_zombie(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") Z "))
}

#[tokio::test(flavor = "multi_thread")]
async fn launch_errors_say_whose_they_are() {
    let mut ctl = Controller::start().await;
    let node = Node::start(&ctl, "").await;
    ctl.wait_hello().await;
    let (dir, number, nobody) = (run_id("7-1"), run_id("8-1"), run_id("9-1"));
    let mut bad_dir = node.order(dir, "true");
    bad_dir.work_dir = node.path("work/gone").display().to_string();
    let mut bad_number = node.order(number, "true");
    bad_number.user.uid += 1;
    let mut unknown = node.order(nobody, "true");
    unknown.user.name = "no-such-user-of-gpupool".into();
    let runs = [dir, number, nobody].map(|run| want(run, RunTarget::Run));
    ctl.desire(1, vec![bad_dir, bad_number, unknown], runs.to_vec());
    let end = ctl.wait_clean(dir).await;
    assert_eq!(end.cause, EndCause::LaunchUser, "{}", end.text);
    assert!(end.text.contains("work/gone"), "{}", end.text);
    let end = ctl.wait_clean(number).await;
    assert_eq!(end.cause, EndCause::LaunchNode, "{}", end.text);
    assert!(end.text.contains("on this node and uid"), "{}", end.text);
    let end = ctl.wait_clean(nobody).await;
    assert!(
        end.cause == EndCause::LaunchNode && end.text.contains("does not exist on this node"),
        "{}",
        end.text
    );
    for run in [dir, number, nobody] {
        node.assert_no_trace(run);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn prolog_and_epilog_run_and_a_failing_prolog_starts_nothing() {
    let mut ctl = Controller::start().await;
    let node = Node::start(&ctl, "").await;
    ctl.wait_hello().await;
    let program = |name: &str, body: &str, mode: u32| {
        let dir = node.path("site");
        fs::create_dir_all(&dir).unwrap();
        let path = dir.join(name);
        fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path.display().to_string()
    };
    let log = node.path("site.log").display().to_string();
    let good = program(
        "good",
        &format!("echo prolog $SLURM_JOB_ID $GSUB_JOB_USER >> {log}"),
        0o755,
    );
    let after = program(
        "after",
        &format!("echo epilog $GSUB_JOB_ID >> {log}"),
        0o755,
    );
    let bad = program("bad", "echo the disk is broken; exit 1", 0o755);
    let open = program("open", "true", 0o777);
    let (fine, failing, writable) = (run_id("10-1"), run_id("11-1"), run_id("12-1"));
    let order = |run, prolog: &String| {
        let mut order = node.order(run, &format!("echo ran > ran-{run}"));
        (order.prolog, order.epilog) = (prolog.clone(), after.clone());
        order
    };
    let orders = vec![
        order(fine, &good),
        order(failing, &bad),
        order(writable, &open),
    ];
    let user = orders[0].user.name.clone();
    ctl.desire(
        1,
        orders,
        [fine, failing, writable]
            .map(|run| want(run, RunTarget::Run))
            .to_vec(),
    );
    assert_eq!(ctl.wait_clean(fine).await.cause, EndCause::Exited);
    let end = ctl.wait_clean(failing).await;
    assert_eq!(end.cause, EndCause::PrologFailed);
    assert!(
        end.text.contains("ended with 1: the disk is broken"),
        "{}",
        end.text
    );
    let end = ctl.wait_clean(writable).await;
    assert_eq!(end.cause, EndCause::PrologFailed);
    assert!(
        end.text.contains("can be written by others (mode 777)"),
        "{}",
        end.text
    );
    let site_log = fs::read_to_string(&log).unwrap();
    assert!(
        site_log.contains(&format!("prolog 10 {user}\n")) && site_log.contains("epilog 10\n"),
        "{site_log}"
    );
    assert!(!node.path("work/ran-11-1").exists() && !node.path("work/ran-12-1").exists());
    for run in [fine, failing, writable] {
        node.assert_no_trace(run);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_in_a_long_prolog_is_reported_as_accepted() {
    let mut ctl = Controller::start().await;
    let node = Node::start(&ctl, "").await;
    ctl.wait_hello().await;
    fs::create_dir(node.path("site")).unwrap();
    let prolog = node.path("site/prolog");
    let go = node.path("work/go");
    fs::write(
        &prolog,
        format!(
            "#!/bin/sh\nwhile [ ! -e {} ]; do sleep 0.02; done\n",
            go.display()
        ),
    )
    .unwrap();
    fs::set_permissions(&prolog, fs::Permissions::from_mode(0o755)).unwrap();
    let run = run_id("18-1");
    let order = gmodel::launch_order::LaunchOrder {
        prolog: prolog.display().to_string(),
        ..node.order(run, "true")
    };
    ctl.desire(1, vec![order], vec![want(run, RunTarget::Run)]);
    ctl.wait_phase(run, 0).await;
    assert_eq!(ctl.phases[&run], RunPhase::Accepted);
    fs::write(go, "").unwrap();
    assert_eq!(ctl.wait_clean(run).await.exit, ExitCode::SUCCESS);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_waits_for_go_and_a_stop_before_it_starts_nothing() {
    let mut ctl = Controller::start().await;
    let node = Node::start(&ctl, "").await;
    ctl.wait_hello().await;
    let (goes, stopped) = (run_id("13-1"), run_id("14-1"));
    let orders = [goes, stopped].map(|run| node.order(run, &format!("echo ran > ran-{run}")));
    ctl.desire(
        1,
        orders.to_vec(),
        [goes, stopped]
            .map(|run| want(run, RunTarget::Prepare))
            .to_vec(),
    );
    ctl.wait_phase(goes, 1).await;
    ctl.wait_phase(stopped, 1).await;
    ctl.desire(
        2,
        Vec::new(),
        vec![want(goes, RunTarget::Run), stop(stopped, 30)],
    );
    assert_eq!(ctl.wait_clean(goes).await.exit, ExitCode::SUCCESS);
    assert_eq!(ctl.wait_clean(stopped).await.cause, EndCause::Stopped);
    assert!(node.path("work/ran-13-1").exists() && !node.path("work/ran-14-1").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn private_directories_come_and_go_with_the_run() {
    if !is_root() {
        return println!("NOT RUN: without root there are no private mounts");
    }
    let mut ctl = Controller::start().await;
    let node = Node::start(&ctl, "").await;
    ctl.wait_hello().await;
    let run = run_id("15-1");
    let body = format!(
        "touch /tmp/gpud-test-{0} /dev/shm/gpud-test-{0}; [ $(ls /tmp | wc -l) = 1 ]",
        std::process::id()
    );
    let mut order = node.order(run, &body);
    order.private_tmp = true;
    ctl.desire(1, vec![order], vec![want(run, RunTarget::Run)]);
    let end = ctl.wait_clean(run).await;
    assert_eq!(end.exit, ExitCode::SUCCESS, "{}", end.text);
    for dir in ["/tmp", "/dev/shm"] {
        assert!(
            !std::path::Path::new(dir)
                .join(format!("gpud-test-{}", std::process::id()))
                .exists()
        );
    }
    node.assert_no_trace(run);
}

/// 45,000 directories in one another and a link out, below the run's own /tmp.
const NESTS: &str = "perl -e 'chdir \"/tmp\"; symlink \"/etc\", \"out\"; for (1..45000) { mkdir \"d\" or die $!; chdir \"d\" or die $! }' || exit 9";

#[tokio::test(flavor = "multi_thread")]
async fn deeply_nested_private_directories_are_removed_and_the_daemon_lives() {
    if !is_root() {
        return println!("NOT RUN: without root there are no private mounts");
    }
    let mut ctl = Controller::start().await;
    let mut node = Node::start(&ctl, "").await;
    ctl.wait_hello().await;
    // In memory, where this many directories take a second and not minutes.
    node.stop_daemon();
    gsys::mount::mount_tmpfs(&node.path("spool"), 1 << 30).unwrap();
    node.start_daemon();
    ctl.wait_hello().await;
    let (first, second) = (run_id("19-1"), run_id("20-1"));
    let order = |run, body: &str| gmodel::launch_order::LaunchOrder {
        private_tmp: true,
        ..node.order(run, body)
    };
    let (nests, waits) = (
        order(first, NESTS),
        order(
            second,
            &format!("{NESTS}\necho begun > started; sleep 1000"),
        ),
    );
    ctl.desire(1, vec![nests], vec![want(first, RunTarget::Run)]);
    assert_eq!(ctl.wait_clean(first).await.exit, ExitCode::SUCCESS);
    node.assert_no_trace(first);
    assert!(
        node.daemon.as_mut().unwrap().try_wait().unwrap().is_none(),
        "gpud died: {}",
        node.log_text()
    );
    // Killed in the middle of it, the next daemon goes on.
    ctl.desire(2, vec![waits], vec![want(second, RunTarget::Run)]);
    wait_file(&node.path("work/started")).await;
    let top = node.path("spool/private/20-1/tmp");
    ctl.desire(3, Vec::new(), vec![stop(second, 0)]);
    let deadline = Instant::now() + fake::PATIENCE;
    let is_moving = || {
        fs::read_dir(&top).is_ok_and(|mut all| {
            all.any(|entry| {
                entry.is_ok_and(|entry| entry.file_name() != "d" && entry.file_name() != "out")
            })
        })
    };
    while top.exists() && !is_moving() && Instant::now() < deadline {
        std::hint::spin_loop();
    }
    node.kill_daemon();
    node.start_daemon();
    ctl.wait_clean(second).await;
    node.assert_no_trace(second);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_controller_may_read_what_the_node_did() {
    use gwire::node_protocol::ToNode;
    let mut ctl = Controller::start().await;
    let node = Node::start(&ctl, "").await;
    ctl.wait_hello().await;
    let run = run_id("16-1");
    ctl.desire(
        1,
        vec![node.order(run, "true")],
        vec![want(run, RunTarget::Run)],
    );
    ctl.wait_clean(run).await;
    ctl.send(&ToNode::ReadLog { question: 9, run });
    ctl.send(&ToNode::ReadLog {
        question: 10,
        run: run_id("99-1"),
    });
    ctl.wait("two answers", |ctl| ctl.logs.len() == 2).await;
    let (text, error) = &ctl.logs[&9];
    for words in [
        "accepted",
        "ready",
        "running",
        "ended: Exited, exit 0:0",
        "clean",
    ] {
        assert!(
            text.contains(words),
            "{words:?} is not in {text:?} ({error})"
        );
    }
    assert!(ctl.logs[&10].1.contains("no record of run 99-1"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_supervisor_is_told_the_pam_service() {
    let mut ctl = Controller::start().await;
    let node = Node::start(&ctl, "pam_service = \"gpupool-is-not-there\"").await;
    ctl.wait_hello().await;
    let run = run_id("17-1");
    ctl.desire(
        1,
        vec![node.order(run, "true")],
        vec![want(run, RunTarget::Run)],
    );
    ctl.wait_clean(run).await; // started or refused by the machine's own "other" service
    let setup = fs::read(node.run_dir(run).join("setup.json")).unwrap();
    let setup: gmodel::supervise::RunSetup = serde_json::from_slice(&setup).unwrap();
    assert_eq!(setup.pam_service, "gpupool-is-not-there");
}
