//! Orders for GPUs at a real daemon: each carried out once and answered as often as it comes, whatever kills the daemon; and the
//! steps of a repair, with the site's programs that work, fail or hang.

mod fake;

use fake::{Controller, Node, gpu_node, nvml_sim};
use gmodel::gpu_health::RepairStage;
use gmodel::gpu_order::{GpuAction, GpuOrder, GpuOrderDone};
use gmodel::node::GpuInfo;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

fn order(number: u64, gpu: &GpuInfo, what: GpuAction) -> GpuOrder {
    GpuOrder {
        number,
        uuid: gpu.uuid.clone(),
        what,
    }
}

fn quarantine() -> GpuAction {
    GpuAction::Quarantine {
        reason: "smells".into(),
    }
}

fn gpu(ctl: &Controller, index: usize) -> GpuInfo {
    ctl.inventories
        .last()
        .map_or_else(GpuInfo::default, |inventory| inventory.gpus[index].clone())
}

fn stage(ctl: &Controller, index: usize) -> RepairStage {
    gpu(ctl, index)
        .standing
        .map_or(RepairStage::InService, |standing| standing.stage)
}

/// Waits for one more answer, and gives it.
async fn answer(ctl: &mut Controller) -> GpuOrderDone {
    let before = ctl.gpu_orders.len();
    ctl.wait("an answer to the order", |ctl| {
        ctl.gpu_orders.len() > before
    })
    .await;
    ctl.gpu_orders.last().unwrap().clone()
}

/// A program of the site that notes that it ran and does `body` then.
fn program(node: &Node, name: &str, body: &str) -> PathBuf {
    // A directory that only root may write.
    let path = node.path("state").join(name);
    let script = format!(
        "#!/bin/sh\necho $CUDA_VISIBLE_DEVICES >> {}\n{body}\n",
        node.path(&format!("state/{name}.ran")).display()
    );
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

fn ran(node: &Node, name: &str) -> usize {
    fs::read_to_string(node.path(&format!("state/{name}.ran")))
        .unwrap_or_default()
        .lines()
        .count()
}

/// A node with four GPUs that are looked at every second, and more settings.
async fn watched_node(ctl: &mut Controller, settings: impl FnOnce(&Node) -> String) -> Node {
    let mut node = gpu_node(ctl, "").await;
    ctl.wait_hello().await;
    node.stop_daemon();
    let (path, log) = (node.path("gpud.toml"), node.path("nvml/kmsg"));
    fs::write(&log, "").unwrap();
    let more = format!(
        "gpu_watch_secs = 1\ngpu_repair_pause_secs = 1\nkernel_log = \"{}\"\n",
        log.display()
    );
    let text = fs::read_to_string(&path).unwrap() + &more + &settings(&node);
    fs::write(&path, text).unwrap();
    node.start_daemon();
    ctl.wait_hello().await;
    node
}

/// A node that resets its GPUs by a program that does `body`, and the index of the one that is to be reset.
async fn node_to_reset(ctl: &mut Controller, body: &str) -> (Node, usize) {
    let node = watched_node(ctl, |node| {
        format!(
            "gpu_reset = \"{}\"\n",
            program(node, "reset", body).display()
        )
    })
    .await;
    nvml_sim(&node, &["fault", "gpu3", "xid", "48"]);
    ctl.wait("a reset is asked for", |ctl| {
        (0..4).any(|at| gpu(ctl, at).wants == "reset")
    })
    .await;
    let at = (0..4).find(|at| gpu(ctl, *at).wants == "reset").unwrap();
    (node, at)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_is_carried_out_once_and_answered_whenever_it_comes() {
    let mut ctl = Controller::start().await;
    let mut node = watched_node(&mut ctl, |_| String::new()).await;
    let sick = gpu(&ctl, 1);
    let out = order(7, &sick, quarantine());
    ctl.order_gpus(7, vec![out.clone()]);
    let done = GpuOrderDone {
        number: 7,
        uuid: sick.uuid.clone(),
        error: String::new(),
        check: None,
    };
    assert_eq!(answer(&mut ctl).await, done);
    let there = gpu(&ctl, 1);
    assert_eq!(
        there.fault, "quarantined: smells",
        "who hears the answer has the inventory already"
    );
    assert!(
        there
            .standing
            .as_ref()
            .is_some_and(|standing| standing.held)
    );
    assert_eq!(
        (0..4).filter(|at| !gpu(&ctl, *at).fault.is_empty()).count(),
        1,
        "the other three work on"
    );

    // The same order on a new connection, after a kill: answered, and nothing else.
    node.kill_daemon();
    node.start_daemon();
    ctl.wait_hello().await;
    assert_eq!(gpu(&ctl, 1).fault, there.fault);
    ctl.order_gpus(7, vec![out.clone()]);
    assert_eq!(answer(&mut ctl).await, done);

    // Returned; the old order that comes late does not take it out again.
    ctl.order_gpus(9, vec![order(9, &sick, GpuAction::Return)]);
    assert_eq!(answer(&mut ctl).await.number, 9);
    ctl.wait("the GPU is back", |ctl| gpu(ctl, 1).fault.is_empty())
        .await;
    ctl.order_gpus(10, vec![out]);
    let late = answer(&mut ctl).await;
    assert_eq!(
        (late.number, late.error.as_str()),
        (7, "order 9 came after it")
    );
    assert_eq!(gpu(&ctl, 1).fault, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_carried_out_is_said_and_a_repair_needs_a_step_that_waits() {
    let mut ctl = Controller::start().await;
    let node = watched_node(&mut ctl, |_| String::new()).await;
    let well = gpu(&ctl, 0);
    let stranger = GpuInfo {
        uuid: "GPU-none".into(),
        ..GpuInfo::default()
    };
    for (number, what, words) in [
        (
            1,
            order(1, &stranger, GpuAction::Return),
            "this node has never seen GPU GPU-none",
        ),
        (
            2,
            order(2, &well, GpuAction::Repair),
            "no step of its repair waits",
        ),
        (
            3,
            order(3, &well, GpuAction::Unknown),
            "does not know this order",
        ),
    ] {
        ctl.order_gpus(number, vec![what]);
        let said = answer(&mut ctl).await;
        assert!(
            said.number == number && said.error.contains(words),
            "{said:?}"
        );
    }
    // A sign that puts no result at risk waits for the controller's word, and the GPU works meanwhile.
    nvml_sim(&node, &["fault", "gpu2", "xid", "94"]);
    let sim = |ctl: &Controller| {
        ctl.inventories
            .last()
            .and_then(|i| i.gpus.iter().find(|gpu| !gpu.wants.is_empty()).cloned())
    };
    ctl.wait("one is suspect", |ctl| sim(ctl).is_some()).await;
    let suspect = sim(&ctl).unwrap();
    assert_eq!(
        (suspect.wants.as_str(), suspect.fault.as_str()),
        ("quarantine", "")
    );
    ctl.order_gpus(4, vec![order(4, &suspect, GpuAction::Repair)]);
    assert_eq!(answer(&mut ctl).await.error, "");
    ctl.wait("it is out", |ctl| {
        ctl.inventories
            .last()
            .unwrap()
            .gpus
            .iter()
            .any(|gpu| gpu.fault.starts_with("Xid 94"))
    })
    .await;
}

/// A boot: the daemon is there before the driver, and what is open on the controller comes at once.
#[tokio::test(flavor = "multi_thread")]
async fn an_order_that_comes_before_the_first_look_waits_for_it() {
    let mut ctl = Controller::start().await;
    let mut node = watched_node(&mut ctl, |_| String::new()).await;
    let sick = gpu(&ctl, 1);
    node.stop_daemon();
    let _ = fs::remove_file(node.path("spool/gpu-health.json"));
    nvml_sim(&node, &["fault", "driver", "not-loaded"]);
    node.start_daemon();
    ctl.wait_hello().await;
    ctl.wait("a node that shows no GPU", |ctl| {
        ctl.inventories
            .last()
            .is_some_and(|inventory| inventory.gpus.is_empty())
    })
    .await;
    ctl.order_gpus(1, vec![order(1, &sick, quarantine())]);
    nvml_sim(&node, &["fault", "driver", "clear"]);
    assert_eq!(answer(&mut ctl).await.error, "");
    assert_eq!(gpu(&ctl, 1).fault, "quarantined: smells");

    // A driver that never comes costs its time, and no more.
    node.stop_daemon();
    let _ = fs::remove_file(node.path("spool/gpu-health.json"));
    nvml_sim(&node, &["fault", "driver", "not-loaded"]);
    node.start_daemon();
    ctl.wait_hello().await;
    ctl.order_gpus(2, vec![order(2, &sick, quarantine())]);
    let said = answer(&mut ctl).await.error;
    assert!(said.contains("has never seen GPU"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gpu_is_reset_when_the_controller_allows_it_and_comes_back() {
    let mut ctl = Controller::start().await;
    let (node, at) = node_to_reset(&mut ctl, "true").await;
    assert_eq!(ran(&node, "reset"), 0, "not before the word");
    let sick = gpu(&ctl, at);
    ctl.order_gpus(5, vec![order(5, &sick, GpuAction::Repair)]);
    assert_eq!(answer(&mut ctl).await.error, "");
    assert_eq!(
        stage(&ctl, at),
        RepairStage::Resetting,
        "begun, and told before the answer"
    );
    ctl.order_gpus(5, vec![order(5, &sick, GpuAction::Repair)]);
    ctl.wait("it is back", |ctl| gpu(ctl, at).fault.is_empty())
        .await;
    assert_eq!(
        fs::read_to_string(node.path("state/reset.ran")).unwrap(),
        format!("{}\n", sick.uuid),
        "once"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_daemon_lets_go_of_nvml_for_a_reset_which_its_driver_would_refuse_and_begins_anew() {
    let mut ctl = Controller::start().await;
    let (node, at) = node_to_reset(&mut ctl, "").await;
    // As a site's program calls nvidia-smi: by UUID, and with the driver's answer as its own.
    let sim = format!(
        "{} reset --dir {} $GPUPOOL_GPUS",
        fake::beside("nvml-sim").display(),
        node.path("nvml").display()
    );
    let refused = std::process::Command::new(fake::beside("nvml-sim"))
        .args(["reset", "--dir"])
        .arg(node.path("nvml"))
        .arg("gpu3")
        .output()
        .unwrap();
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && words.contains("which has NVML initialised"),
        "the daemon has it open: {words}"
    );
    program(
        &node,
        "reset",
        &format!("{} && sleep 2", sim.replace("$GPUPOOL_GPUS", "gpu3")),
    );
    let before = ctl.inventories.len();
    ctl.order_gpus(5, vec![order(5, &gpu(&ctl, at), GpuAction::Repair)]);
    assert_eq!(answer(&mut ctl).await.error, "");
    // The state of the GPUs stays as it was without a reading.
    fake::wait_file(&node.path("state/reset.ran")).await;
    ctl.wait("it is back", |ctl| gpu(ctl, at).fault.is_empty())
        .await;
    assert_eq!(ran(&node, "reset"), 1, "it was not refused");
    let faults = |told: &gmodel::node::Inventory| {
        told.gpus
            .iter()
            .filter(|gpu| !gpu.fault.is_empty())
            .map(|gpu| gpu.fault.clone())
            .collect::<Vec<_>>()
    };
    let odd = ctl.inventories[before..]
        .iter()
        .find(|told| told.gpus.len() != 4 || faults(told).len() > 1);
    assert!(odd.is_none(), "{:?}", odd.map(faults));
    // And it looks again.
    nvml_sim(&node, &["fault", "gpu1", "xid", "79"]);
    ctl.wait("another is out", |ctl| {
        (0..4).filter(|at| !gpu(ctl, *at).fault.is_empty()).count() == 1
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_reset_is_tried_once_more_then_waits_for_an_administrator_and_marks_no_board() {
    let mut ctl = Controller::start().await;
    let (node, at) = node_to_reset(&mut ctl, "echo in use; exit 1").await;
    for number in [5, 6] {
        ctl.wait("a reset is asked for", |ctl| gpu(ctl, at).wants == "reset")
            .await;
        ctl.order_gpus(
            number,
            vec![order(number, &gpu(&ctl, at), GpuAction::Repair)],
        );
        assert_eq!(answer(&mut ctl).await.error, "");
    }
    ctl.wait("it waits", |ctl| {
        gpu(ctl, at).standing.is_some_and(|standing| {
            standing.next == "reset it, then gadm gpu return; or boot the node"
        })
    })
    .await;
    assert_eq!(
        (ran(&node, "reset"), stage(&ctl, at)),
        (2, RepairStage::Out)
    );
    let fault = gpu(&ctl, at).fault;
    assert!(
        fault.contains("ended with 1: in use") && !fault.contains("replaced"),
        "{fault}"
    );
    assert!(node.log_text().contains("gpu_reset"), "{}", node.log_text());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_killed_during_a_reset_does_not_reset_again_by_itself() {
    let mut ctl = Controller::start().await;
    let (mut node, at) = node_to_reset(&mut ctl, "sleep 1000").await;
    let sick = gpu(&ctl, at);
    let repair = order(5, &sick, GpuAction::Repair);
    ctl.order_gpus(5, vec![repair.clone()]);
    answer(&mut ctl).await;
    fake::wait_file(&node.path("state/reset.ran")).await;
    node.kill_daemon();
    node.start_daemon();
    ctl.wait_hello().await;
    assert_eq!(stage(&ctl, at), RepairStage::Out);
    ctl.order_gpus(5, vec![repair]);
    assert_eq!(answer(&mut ctl).await.error, "", "it was carried out, once");
    // It counts as an attempt that failed: another is asked for, after a pause.
    ctl.wait("another is asked for", |ctl| gpu(ctl, at).wants == "reset")
        .await;
    assert_eq!(ran(&node, "reset"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gpu_that_is_lost_while_it_is_reset_stays_out_for_its_second_fault() {
    let mut ctl = Controller::start().await;
    let (node, at) = node_to_reset(&mut ctl, "sleep 1").await;
    ctl.order_gpus(5, vec![order(5, &gpu(&ctl, at), GpuAction::Repair)]);
    answer(&mut ctl).await;
    fake::wait_file(&node.path("state/reset.ran")).await;
    nvml_sim(&node, &["fault", "gpu3", "lost"]);
    let second = |gpu: GpuInfo| {
        gpu.standing
            .is_some_and(|standing| standing.sign == "lost" && standing.stage == RepairStage::Out)
    };
    ctl.wait("the second fault is seen", |ctl| second(gpu(ctl, at)))
        .await;
    assert!(
        gpu(&ctl, at).wants.is_empty(),
        "a boot would be next, which this site has no program for"
    );
    assert_eq!(
        (
            ran(&node, "reset"),
            gpu(&ctl, at).standing.unwrap().next.as_str()
        ),
        (1, "boot the node; or gadm gpu return when it is mended")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_boot_waits_until_the_node_is_empty_and_a_program_that_fails_is_no_boot() {
    let mut ctl = Controller::start().await;
    let node = watched_node(&mut ctl, |node| {
        format!(
            "node_reboot = \"{}\"\n",
            program(node, "reboot", "exit 3").display()
        )
    })
    .await;
    // A job without a GPU is a job.
    let run = fake::run_id("1-1");
    ctl.desire(
        1,
        vec![node.order(run, "until [ -e stop ]; do sleep 0.1; done")],
        vec![fake::want(run, gmodel::run::RunTarget::Run)],
    );
    ctl.wait_phase(run, 2).await;
    nvml_sim(&node, &["fault", "gpu0", "xid", "79"]);
    ctl.wait("it is out", |ctl| {
        (0..4).any(|at| gpu(ctl, at).fault.starts_with("Xid 79"))
    })
    .await;
    let at = (0..4).find(|at| !gpu(&ctl, *at).fault.is_empty()).unwrap();
    let next = |ctl: &Controller| gpu(ctl, at).standing.unwrap().next;
    assert_eq!(
        (gpu(&ctl, at).wants.as_str(), next(&ctl).as_str()),
        ("", "the next step, when no run is on the node")
    );
    fs::write(node.path("work/stop"), "").unwrap();
    ctl.wait_clean(run).await;
    ctl.desire(2, Vec::new(), Vec::new());
    ctl.wait("a boot is asked for", |ctl| gpu(ctl, at).wants == "boot")
        .await;
    ctl.order_gpus(3, vec![order(3, &gpu(&ctl, at), GpuAction::Repair)]);
    assert_eq!(answer(&mut ctl).await.error, "");
    let waits = "boot the node; or gadm gpu return when it is mended";
    ctl.wait("the boot failed, and there is no other", |ctl| {
        next(ctl) == waits
    })
    .await;
    assert_eq!(
        (ran(&node, "reboot"), stage(&ctl, at)),
        (1, RepairStage::Out)
    );
    let fault = gpu(&ctl, at).fault;
    assert!(
        fault.contains("ended with 3") && !fault.contains("replaced"),
        "{fault}"
    );
}
