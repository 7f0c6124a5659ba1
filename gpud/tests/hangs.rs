//! What hangs on a real node: supervisors that stand still, processes that do not die, a daemon without open files. And what a job may
//! take of the machine.

mod fake;

use fake::{Controller, Node, is_root, run_id, stop, wait_file, want};
use gmodel::launch_order::{LaunchOrder, OrderGpu};
use gmodel::run::{DesiredRun, EndCause, RunTarget};
use gmodel::{ExitCode, GpuPart, GpuSlot, RunId};
use gsys::launch::{Resource, Rlimit};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const RUNNING: u8 = 2;
const ENDED: u8 = 3;
/// For what gpud does 20 s after the grace.
const LONG: Duration = Duration::from_secs(90);

/// The process in a run's `sup` cgroup.
fn supervisor(node: &Node, run: RunId) -> Pid {
    let trees = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"].map(|tree| {
        Path::new(tree)
            .join(&node.cgroup_tag)
            .join(format!("run_{run}/sup/cgroup.procs"))
    });
    let text = trees
        .iter()
        .find_map(|path| fs::read_to_string(path).ok())
        .unwrap();
    Pid::from_raw(text.trim().parse().unwrap())
}

async fn wait_dead(pid: i32) {
    let deadline = Instant::now() + fake::PATIENCE;
    while fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z ")) {
        assert!(Instant::now() < deadline, "{pid} lives");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_supervisor_stands_still_ends_by_a_stop_and_by_its_limit() {
    if !is_root() {
        return println!("NOT RUN: without root there is no cgroup to kill");
    }
    let mut ctl = Controller::start().await;
    ctl.patience = LONG;
    let mut node = Node::start(&ctl, "").await;
    ctl.wait_hello().await;
    let (stopped, limited) = (run_id("1-1"), run_id("2-1"));
    let order = |run| LaunchOrder {
        kill_grace_secs: 1,
        ..node.order(
            run,
            &format!("echo $$ > pid-{run}; trap '' TERM; while :; do sleep 1; done"),
        )
    };
    let limit = |run| DesiredRun {
        limit_secs: Some(2),
        ..want(run, RunTarget::Run)
    };
    ctl.desire(
        1,
        [stopped, limited].map(order).to_vec(),
        vec![want(stopped, RunTarget::Run), limit(limited)],
    );
    let mut pids = Vec::new();
    for run in [stopped, limited] {
        ctl.wait_phase(run, RUNNING).await;
        kill(supervisor(&node, run), Signal::SIGSTOP).unwrap();
        pids.push(
            wait_file(&node.path(&format!("work/pid-{run}")))
                .await
                .trim()
                .parse::<i32>()
                .unwrap(),
        );
    }
    ctl.desire(2, Vec::new(), vec![stop(stopped, 1), limit(limited)]);
    ctl.wait("generation 2", |ctl| {
        ctl.obeyed.is_some_and(|fence| fence.generation == 2)
    })
    .await;
    let end = ctl.wait_clean(stopped).await;
    assert_eq!(end.cause, EndCause::Stopped, "{}", end.text);
    assert!(
        end.text.contains("its supervisor (gstepd) stood still"),
        "{}",
        end.text
    );
    let end = ctl.wait_clean(limited).await;
    assert_eq!(end.cause, EndCause::TimeLimit, "{}", end.text);
    assert!(
        end.text.contains("the time limit of 2 s was reached") && end.started.is_some(),
        "{}",
        end.text
    );
    for (run, pid) in [stopped, limited].into_iter().zip(pids) {
        wait_dead(pid).await;
        node.assert_no_trace(run);
    }
    assert!(node.daemon.as_mut().unwrap().try_wait().unwrap().is_none());
}

/// A cgroup of the old freezer, in which a process hears no SIGKILL until it is let go: as one that waits in the kernel.
struct Freezer(PathBuf);

impl Freezer {
    fn with(pid: i32) -> Option<Freezer> {
        let dir = Path::new("/sys/fs/cgroup/freezer").join(format!("gpupool-hang-{pid}"));
        fs::create_dir(&dir).ok()?;
        let freezer = Freezer(dir);
        fs::write(freezer.0.join("cgroup.procs"), pid.to_string()).ok()?;
        fs::write(freezer.0.join("freezer.state"), "FROZEN").ok()?;
        Some(freezer)
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        let _ = fs::write(self.0.join("freezer.state"), "THAWED");
        let deadline = Instant::now() + Duration::from_secs(5);
        while fs::remove_dir(&self.0).is_err() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_that_do_not_die_are_named_and_the_share_stays_taken() {
    if !is_root() {
        return println!("NOT RUN: without root there is no cgroup to kill");
    }
    let mut ctl = Controller::start().await;
    ctl.patience = LONG;
    let mut node = Node::start(&ctl, "").await;
    ctl.wait_hello().await;
    let run = run_id("3-1");
    ctl.desire(
        1,
        vec![node.order(run, "sleep 1000 & echo $! > child; sleep 1000")],
        vec![want(run, RunTarget::Run)],
    );
    let child: i32 = wait_file(&node.path("work/child"))
        .await
        .trim()
        .parse()
        .unwrap();
    ctl.wait_phase(run, RUNNING).await;
    let Some(freezer) = Freezer::with(child) else {
        return println!(
            "NOT RUN: this machine has no v1 freezer, and nothing else holds a process against SIGKILL"
        );
    };
    ctl.desire(2, Vec::new(), vec![stop(run, 0)]);
    ctl.wait_phase(run, ENDED).await;
    assert_eq!(ctl.phases[&run].end().unwrap().cause, EndCause::Stopped);
    let names = |ctl: &Controller| {
        ctl.inventories.last().is_some_and(|inventory| {
            inventory.hung.iter().any(|hung| {
                hung.run == Some(run) && hung.text.contains(&format!("{child} (sleep, D in "))
            })
        })
    };
    ctl.wait("the hung process", names).await;
    // The next daemon says so again.
    node.kill_daemon();
    ctl.inventories.clear();
    node.start_daemon();
    ctl.wait_hello().await;
    ctl.wait("the hung process", names).await;
    let log = fs::read_to_string(node.run_dir(run).join("log")).unwrap();
    assert!(
        log.contains(&format!(
            "SIGKILL was sent and these processes do not end: {child} (sleep, D in "
        )),
        "{log}"
    );
    assert_eq!(ctl.phases[&run].rank(), ENDED, "its share is not free");
    drop(freezer);
    ctl.wait_clean(run).await;
    ctl.wait("no hung process", |ctl| {
        ctl.inventories
            .last()
            .is_some_and(|inventory| inventory.hung.is_empty())
    })
    .await;
    node.assert_no_trace(run);
}

fn open_files(node: &Node, soft: Option<u64>) {
    let pid = node.daemon.as_ref().unwrap().id() as i32;
    let hard = Resource::Nofile.current().unwrap().hard;
    // The next that it opens would have the lowest number that is free.
    let next = || (0..).find(|fd| !Path::new(&format!("/proc/{pid}/fd/{fd}")).exists());
    let soft = soft.or_else(next).unwrap();
    Rlimit {
        resource: Resource::Nofile,
        soft,
        hard,
    }
    .set_of(pid)
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_short_of_open_files_waits_and_jobs_have_the_usual_limit() {
    let mut ctl = Controller::start().await;
    let node = Node::start(&ctl, "").await;
    ctl.wait_hello().await;
    open_files(&node, None);
    let run = run_id("4-1");
    ctl.desire(
        1,
        vec![node.order(run, "ulimit -Sn > limit")],
        vec![want(run, RunTarget::Run)],
    );
    tokio::time::sleep(Duration::from_secs(2)).await;
    let own = Resource::Nofile.current().unwrap();
    open_files(&node, Some(own.hard));
    let end = ctl.wait_clean(run).await;
    assert_eq!(
        (end.cause, end.exit),
        (EndCause::Exited, ExitCode::SUCCESS),
        "{}",
        end.text
    );
    assert!(
        node.log_text().contains("waits, for up to 60 s"),
        "it was short of none: {}",
        node.log_text()
    );
    let limit = fs::read_to_string(node.path("work/limit")).unwrap();
    assert_eq!(
        limit.trim(),
        own.soft.to_string(),
        "as gpud had it at its start"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn one_job_cannot_take_all_process_numbers() {
    if !is_root() || !Path::new("/sys/fs/cgroup/pids").exists() {
        return println!("NOT RUN: needs root and a pids controller of v1");
    }
    let mut ctl = Controller::start().await;
    let node = Node::start(&ctl, "pids_max = 4000000").await;
    ctl.wait_hello().await;
    let run = run_id("5-1");
    ctl.desire(
        1,
        vec![node.order(run, "true")],
        vec![want(run, RunTarget::Prepare)],
    );
    ctl.wait_phase(run, 1).await;
    let number = |path: PathBuf| -> u64 {
        fs::read_to_string(&path)
            .unwrap_or_else(|e| panic!("{}: {e}", path.display()))
            .trim()
            .parse()
            .unwrap()
    };
    let tree = Path::new("/sys/fs/cgroup/pids").join(&node.cgroup_tag);
    let machine = number("/proc/sys/kernel/pid_max".into())
        .min(number("/proc/sys/kernel/threads-max".into()));
    let (one, all) = (
        tree.join(format!("run_{run}/pids.max")),
        number(tree.join("pids.max")),
    );
    let one = if one.exists() {
        one
    } else {
        tree.join(format!("run_{run}/job/pids.max"))
    };
    assert_eq!((number(one), all), (machine / 2, machine - machine / 8));
    ctl.desire(2, Vec::new(), vec![stop(run, 0)]);
    ctl.wait_clean(run).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_mode_of_a_shared_gpu_is_asked_when_a_part_is_given_out() {
    if !is_root() {
        return println!("NOT RUN: without root there are no simulated device files");
    }
    let mut ctl = Controller::start().await;
    let mut node = fake::gpu_node(&mut ctl, "gpu_watch_secs = 60").await;
    ctl.wait_hello().await;
    let state = node.path("nvml/state.json");
    let set_mode = |mode: &str| {
        let mut json: serde_json::Value =
            serde_json::from_slice(&fs::read(&state).unwrap()).unwrap();
        json["gpus"][0]["compute_mode"] = mode.into();
        fs::write(state.with_extension("aside"), json.to_string()).unwrap();
        fs::rename(state.with_extension("aside"), &state).unwrap();
    };
    // A daemon that starts while MPS has the GPU, which it leaves after that.
    set_mode("exclusive-process");
    node.stop_daemon();
    node.start_daemon();
    let gpu = ctl.wait_hello().await.inventory.gpus[0].clone();
    set_mode("default");
    let run = run_id("6-1");
    let mut order = node.order(run, "true");
    order.gpus = vec![OrderGpu {
        slot: GpuSlot(0),
        uuid: gpu.uuid,
        gpu_type: "h100".into(),
        part: GpuPart::Share {
            milli: 500,
            memory_mib: 1000,
            tenant: None,
        },
    }];
    ctl.desire(1, vec![order], vec![want(run, RunTarget::Run)]);
    let end = ctl.wait_clean(run).await;
    assert_eq!(
        (end.cause, end.exit),
        (EndCause::Exited, ExitCode::SUCCESS),
        "{}",
        end.text
    );
}
