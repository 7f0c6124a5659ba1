//! Checks of GPUs at a real daemon: the program in its own cgroup and fence, its output bounded; a job that comes ends it and waits
//! for nothing else; and what hangs, crashes, writes without end, or dies with the daemon.

mod fake;

use fake::{Controller, Node, gpu_node, is_root, nvml_sim, run_id, wait_file, want};
use gmodel::gpu_check::{CheckProgram, CheckReport};
use gmodel::gpu_order::{GpuAction, GpuOrder, GpuOrderDone};
use gmodel::launch_order::{LaunchOrder, OrderGpu};
use gmodel::node::GpuInfo;
use gmodel::run::RunTarget;
use gmodel::{GpuPart, GpuSlot, RunId};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

/// From the order of a run until its process runs, where a check that ignores SIGTERM is in the way; on a machine under load.
const STARTS_WITHIN: Duration = Duration::from_secs(15);

/// A check by a script that notes that it ran, and does `body` then.
fn check(node: &Node, number: u64, gpu: &GpuInfo, body: &str) -> GpuOrder {
    // A directory that only root may write, and all users may read.
    let dir = node.path("sbin");
    let _ = fs::create_dir(&dir);
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
    let path = dir.join("check");
    let ran = node.path("work/checked");
    let script = format!(
        "#!/bin/sh\necho $GPUPOOL_GPU >> {}\n{body}\n",
        ran.display()
    );
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    let program = CheckProgram {
        program: path.display().to_string(),
        timeout_secs: 60,
        checks: vec!["arith".into(), "pcie".into()],
        ..CheckProgram::default()
    };
    GpuOrder {
        number,
        uuid: gpu.uuid.clone(),
        what: GpuAction::Check(program),
    }
}

fn with(mut order: GpuOrder, change: impl FnOnce(&mut CheckProgram)) -> GpuOrder {
    if let GpuAction::Check(program) = &mut order.what {
        change(program);
    }
    order
}

fn ran(node: &Node) -> usize {
    fs::read_to_string(node.path("work/checked"))
        .unwrap_or_default()
        .lines()
        .count()
}

async fn answer(ctl: &mut Controller) -> GpuOrderDone {
    let before = ctl.gpu_orders.len();
    ctl.wait("an answer to the order", |ctl| {
        ctl.gpu_orders.len() > before
    })
    .await;
    ctl.gpu_orders.last().unwrap().clone()
}

async fn report(ctl: &mut Controller) -> CheckReport {
    let done = answer(ctl).await;
    assert_eq!(done.error, "");
    *done
        .check
        .expect("a check is answered with what came of it")
}

async fn node_with_gpus(ctl: &mut Controller) -> (Node, Vec<GpuInfo>) {
    let node = gpu_node(ctl, "").await;
    let gpus = ctl.wait_hello().await.inventory.gpus;
    assert_eq!(gpus.len(), 4);
    (node, gpus)
}

/// A job of one GPU that says that it runs.
fn job(node: &Node, run: RunId, gpu: &GpuInfo) -> LaunchOrder {
    let mut order = node.order(run, "echo $GSUB_GPU_UUIDS > begun; sleep 1000");
    order.gpus = vec![OrderGpu {
        slot: GpuSlot(1),
        uuid: gpu.uuid.clone(),
        gpu_type: "h100".into(),
        part: GpuPart::Whole,
    }];
    order
}

/// Processes with the word in the command line.
fn processes(word: &str) -> usize {
    let all = fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    all.filter(|line| {
        String::from_utf8_lossy(line)
            .replace('\0', " ")
            .contains(word)
    })
    .count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_runs_in_the_fence_of_its_gpu_and_is_answered_once_run_and_as_often_as_it_comes() {
    let mut ctl = Controller::start().await;
    let (node, gpus) = node_with_gpus(&mut ctl).await;
    // Opening a device without driver says ENXIO where the fence permits it, EPERM where it denies.
    let body = format!(
        "seen=$(for d in {}/nvidia[0-9]*; do (: < $d) 2>&1 | grep -c permitted; done | tr -d '\\n')\n\
         echo talk\necho \"{{\\\"check\\\":\\\"fence\\\",\\\"checksum\\\":\\\"$seen\\\"}}\"\n\
         echo \"{{\\\"check\\\":\\\"user\\\",\\\"checksum\\\":\\\"$(id -u)\\\"}}\"\n\
         echo \"{{\\\"check\\\":\\\"asked\\\",\\\"checksum\\\":\\\"$(echo $GPUPOOL_CHECKS | tr ' ' +)\\\"}}\"",
        node.path("dev").display()
    );
    let order = with(check(&node, 3, &gpus[2], &body), |program| {
        program.user = if is_root() {
            "nobody".into()
        } else {
            String::new()
        }
    });
    ctl.order_gpus(3, vec![order.clone()]);
    let said = report(&mut ctl).await;
    let sums: Vec<(&str, &str)> = said
        .results
        .iter()
        .map(|result| (result.check.as_str(), result.sum.as_str()))
        .collect();
    if is_root() {
        let nobody = gsys::user::User::by_name("nobody")
            .unwrap()
            .unwrap()
            .uid
            .to_string();
        let mut denied = ['1'; 4];
        denied[gpus.iter().filter(|gpu| gpu.minor < gpus[2].minor).count()] = '0';
        assert_eq!(
            sums,
            [
                ("fence", denied.iter().collect::<String>().as_str()),
                ("user", nobody.as_str()),
                ("asked", "arith+pcie")
            ]
        );
    } else {
        println!("NOT RUN: without root there is no device fence");
    }
    assert_eq!(
        (said.trouble.as_str(), said.stopped.as_str(), ran(&node)),
        ("", "", 1)
    );
    // The answer was lost: the order comes again.
    ctl.order_gpus(3, vec![order]);
    assert_eq!(report(&mut ctl).await, said);
    assert_eq!(ran(&node), 1);
    if is_root() {
        let root = gsys::cgroup::CgroupRoot::open(&node.cgroup_tag).unwrap();
        assert_eq!(root.runs().unwrap(), [""; 0], "nothing of it is left");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_comes_ends_the_check_and_starts_though_the_program_ignores_it() {
    let mut ctl = Controller::start().await;
    let (node, gpus) = node_with_gpus(&mut ctl).await;
    for (round, stubborn) in [(0, false), (1, true)] {
        let word = format!("check-sleeps-{}-{round}", std::process::id());
        let trap = if stubborn { "trap '' TERM" } else { "" };
        let number = 10 * (round + 1);
        // A child in a session of its own would outlive its parent without a cgroup.
        let body = format!(
            "{trap}\nsetsid sh -c 'while :; do sleep 1; done' {word} &\nwhile :; do sleep 1; done"
        );
        let order = check(&node, number, &gpus[1], &body);
        ctl.order_gpus(number, vec![order.clone()]);
        wait_file(&node.path("work/checked")).await;
        let run = run_id(&format!("{}-1", round + 1));
        let begun = Instant::now();
        // The order to check still stands: the node itself puts the run first.
        let desired = gmodel::run::DesiredState {
            fence: gmodel::Fence {
                incarnation: 1,
                generation: number + 1,
            },
            runs: vec![want(run, RunTarget::Run)],
            gpus: vec![order],
        };
        ctl.send(&gwire::node_protocol::ToNode::Orders {
            orders: vec![job(&node, run, &gpus[1])],
            desired,
        });
        assert_eq!(
            wait_file(&node.path("work/begun")).await.trim(),
            gpus[1].uuid
        );
        let took = begun.elapsed();
        println!(
            "a job started {} ms after its order, the check {}",
            took.as_millis(),
            if stubborn { "ignores SIGTERM" } else { "ends" }
        );
        assert!(took < STARTS_WITHIN, "{took:?}");
        if is_root() {
            assert_eq!(
                processes(&word),
                0,
                "the check is gone, with all it started"
            );
        }
        ctl.wait("what came of the check", |ctl| {
            ctl.gpu_orders.iter().any(|done| done.number == number)
        })
        .await;
        let done = ctl.gpu_orders.last().unwrap().check.clone().unwrap();
        assert!(
            done.stopped
                .contains(&format!("run {run} was given the GPU"))
                && done.results.is_empty(),
            "{done:?}"
        );
        let log = fs::read_to_string(node.run_dir(run).join("log")).unwrap();
        assert!(log.contains("a check of its GPUs gave way, in "), "{log}");
        ctl.desire(number + 2, Vec::new(), vec![fake::stop(run, 0)]);
        ctl.wait_clean(run).await;
        fs::remove_file(node.path("work/begun")).unwrap();
        fs::remove_file(node.path("work/checked")).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_check_begins_on_a_gpu_that_a_run_holds_and_other_gpus_are_checked_beside_it() {
    let mut ctl = Controller::start().await;
    let (node, gpus) = node_with_gpus(&mut ctl).await;
    let run = run_id("1-1");
    ctl.desire(
        1,
        vec![job(&node, run, &gpus[1])],
        vec![want(run, RunTarget::Run)],
    );
    wait_file(&node.path("work/begun")).await;
    let (held, free) = (
        check(&node, 2, &gpus[1], "true"),
        check(&node, 3, &gpus[0], "echo '{\"check\":\"a\",\"pass\":true}'"),
    );
    let desired = gmodel::run::DesiredState {
        fence: gmodel::Fence {
            incarnation: 1,
            generation: 3,
        },
        runs: vec![want(run, RunTarget::Run)],
        gpus: vec![held, free],
    };
    ctl.send(&gwire::node_protocol::ToNode::Orders {
        orders: Vec::new(),
        desired,
    });
    ctl.wait("both answers", |ctl| ctl.gpu_orders.len() == 2)
        .await;
    let of = |number: u64| {
        ctl.gpu_orders
            .iter()
            .find(|done| done.number == number)
            .unwrap()
    };
    assert_eq!(of(2).error, "run 1-1 holds it");
    assert_eq!(of(3).check.as_ref().unwrap().results.len(), 1);
    assert_eq!(ran(&node), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_way_to_another_gpu_has_both_in_its_fence_and_gives_way_to_a_run_on_either() {
    let mut ctl = Controller::start().await;
    let (node, gpus) = node_with_gpus(&mut ctl).await;
    let opens = format!(
        "for d in {}/nvidia[0-9]*; do (: < $d) 2>&1 | grep -c permitted; done | tr -d '\\n'",
        node.path("dev").display()
    );
    let body = format!(
        "echo $CUDA_VISIBLE_DEVICES $GPUPOOL_PEER $GPUPOOL_PEER_LINK $({opens}) > {}\nwhile :; do sleep 1; done",
        node.path("work/told").display()
    );
    let order = with(check(&node, 7, &gpus[0], &body), |program| {
        program.peer = gpus[1].uuid.clone()
    });
    ctl.order_gpus(7, vec![order.clone()]);
    let told = wait_file(&node.path("work/told")).await;
    let (one, other) = (&gpus[0].uuid, &gpus[1].uuid);
    assert!(
        told.starts_with(&format!("{one},{other} {other} NV")),
        "{told}"
    );
    if is_root() {
        let opened = told.split_whitespace().last().unwrap();
        assert_eq!(opened.matches('0').count(), 2, "two of four: {told}");
    }
    // A run on the other end is made ready when the check is dead.
    let run = run_id("1-1");
    let desired = gmodel::run::DesiredState {
        fence: gmodel::Fence {
            incarnation: 1,
            generation: 8,
        },
        runs: vec![want(run, RunTarget::Run)],
        gpus: vec![order],
    };
    ctl.send(&gwire::node_protocol::ToNode::Orders {
        orders: vec![job(&node, run, &gpus[1])],
        desired,
    });
    assert_eq!(wait_file(&node.path("work/begun")).await.trim(), other);
    ctl.wait("what came of the check", |ctl| {
        ctl.gpu_orders.iter().any(|done| done.number == 7)
    })
    .await;
    let done = ctl.gpu_orders.last().unwrap().check.clone().unwrap();
    assert!(
        done.stopped.contains("run 1-1 was given the GPU"),
        "{done:?}"
    );
    // Nor does one begin to a GPU that a run holds.
    let held = with(check(&node, 9, &gpus[0], "true"), |program| {
        program.peer = gpus[1].uuid.clone()
    });
    let desired = gmodel::run::DesiredState {
        fence: gmodel::Fence {
            incarnation: 1,
            generation: 9,
        },
        runs: vec![want(run, RunTarget::Run)],
        gpus: vec![held],
    };
    ctl.send(&gwire::node_protocol::ToNode::Orders {
        orders: Vec::new(),
        desired,
    });
    ctl.wait("a refusal", |ctl| {
        ctl.gpu_orders.iter().any(|done| done.number == 9)
    })
    .await;
    assert_eq!(
        ctl.gpu_orders.last().unwrap().error,
        "run 1-1 holds the other end of the way"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_that_dies_with_the_daemon_is_not_done_again_and_leaves_nothing() {
    let mut ctl = Controller::start().await;
    let (mut node, gpus) = node_with_gpus(&mut ctl).await;
    let word = format!("check-orphan-{}", std::process::id());
    let order = check(
        &node,
        5,
        &gpus[0],
        &format!("exec sh -c 'while :; do sleep 1; done' {word}"),
    );
    ctl.order_gpus(5, vec![order.clone()]);
    wait_file(&node.path("work/checked")).await;
    node.kill_daemon();
    node.start_daemon();
    ctl.wait_hello().await;
    if is_root() {
        assert_eq!(processes(&word), 0, "before anything else begins");
    }
    ctl.order_gpus(5, vec![order]);
    assert_eq!(
        answer(&mut ctl).await.error,
        "gpud or its node ended during the check"
    );
    assert_eq!(ran(&node), 1);
    // The next one is.
    ctl.order_gpus(
        6,
        vec![check(
            &node,
            6,
            &gpus[0],
            "echo '{\"check\":\"a\",\"pass\":true}'",
        )],
    );
    assert_eq!(report(&mut ctl).await.results.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_hangs_crashes_or_writes_without_end_is_trouble_and_what_cannot_be_run_is_none() {
    let mut ctl = Controller::start().await;
    let (node, gpus) = node_with_gpus(&mut ctl).await;
    let sim = format!(
        "exec {} check --dir {} $GPUPOOL_GPU",
        fake::beside("nvml-sim").display(),
        node.path("nvml").display()
    );
    let slot = slot_of(&node, &gpus[0].uuid);
    let cases = [
        ("wrong", "", 60),
        ("hang", "did not end within 1 s", 1),
        ("crash", "was ended by signal 6", 60),
        ("garbage", "wrote more than 256 KiB", 60),
    ];
    for (number, (word, trouble, timeout_secs)) in (10..).zip(cases) {
        nvml_sim(&node, &["fault", &slot, "check", word]);
        ctl.order_gpus(
            number,
            vec![with(check(&node, number, &gpus[0], &sim), |program| {
                program.timeout_secs = timeout_secs
            })],
        );
        let said = report(&mut ctl).await;
        assert_eq!(
            (said.trouble.as_str(), said.stopped.as_str()),
            (trouble, ""),
            "{word}"
        );
        assert_eq!(said.results.len(), if word == "wrong" { 3 } else { 0 });
    }
    for (number, (body, trouble)) in (20..).zip([
        ("echo no GPU here >&2; exit 3", "ended with 3: no GPU here"),
        (
            "echo Segmentation fault",
            "it wrote no result; its first line is \"Segmentation fault\"",
        ),
        ("echo '{\"check\":\"memory\",\"pass\":false}'; exit 1", ""),
    ]) {
        ctl.order_gpus(number, vec![check(&node, number, &gpus[0], body)]);
        assert_eq!(report(&mut ctl).await.trouble, trouble);
    }
    ctl.order_gpus(
        25,
        vec![check(&node, 25, &gpus[0], "echo no compiler >&2; exit 77")],
    );
    let said = report(&mut ctl).await;
    assert!(
        said.stopped.ends_with("it cannot check here: no compiler") && said.trouble.is_empty(),
        "{said:?}"
    );
    let order = check(&node, 30, &gpus[0], "true");
    fs::set_permissions(node.path("sbin/check"), fs::Permissions::from_mode(0o777)).unwrap();
    ctl.order_gpus(30, vec![order]);
    let said = report(&mut ctl).await;
    assert!(
        said.stopped.contains("can be written by others") && said.trouble.is_empty(),
        "{said:?}"
    );
    ctl.order_gpus(
        31,
        vec![with(check(&node, 31, &gpus[0], "true"), |program| {
            program.program = "/no/such".into()
        })],
    );
    assert!(report(&mut ctl).await.stopped.contains("No such file"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_that_is_taken_back_ends_its_check() {
    let mut ctl = Controller::start().await;
    let (node, gpus) = node_with_gpus(&mut ctl).await;
    ctl.order_gpus(
        5,
        vec![check(&node, 5, &gpus[0], "while :; do sleep 1; done")],
    );
    wait_file(&node.path("work/checked")).await;
    ctl.order_gpus(6, Vec::new());
    assert!(
        report(&mut ctl)
            .await
            .stopped
            .ends_with("its order was taken back")
    );
}

/// `gpuN` of a UUID, as the simulator counts.
fn slot_of(node: &Node, uuid: &str) -> String {
    let said = std::process::Command::new(fake::beside("nvml-sim"))
        .args(["show", "--json", "--dir"])
        .arg(node.path("nvml"))
        .output()
        .unwrap();
    let state: serde_json::Value = serde_json::from_slice(&said.stdout).unwrap();
    let slot = state["gpus"]
        .as_array()
        .unwrap()
        .iter()
        .position(|gpu| gpu["uuid"] == uuid)
        .unwrap();
    format!("gpu{slot}")
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_that_comes_many_times_at_once_is_one_check() {
    let mut ctl = Controller::start().await;
    let (node, gpus) = node_with_gpus(&mut ctl).await;
    let order = check(
        &node,
        3,
        &gpus[0],
        "sleep 0.3; echo '{\"check\":\"a\",\"pass\":true}'",
    );
    (3..23).for_each(|generation| ctl.order_gpus(generation, vec![order.clone()]));
    let first = answer(&mut ctl).await;
    ctl.order_gpus(23, vec![order]);
    assert_eq!(answer(&mut ctl).await, first);
    assert!(
        ctl.gpu_orders
            .iter()
            .all(|done| done.error.is_empty() && done.check.as_ref().unwrap().results.len() == 1),
        "{:?}",
        ctl.gpu_orders
    );
    assert_eq!(ran(&node), 1);
}
