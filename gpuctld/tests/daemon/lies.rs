//! What a node may report without harm: numbers that no machine has, in every report, and what a database of before holds of them.

use crate::controller::{Controller, Site, job, wait_until};
use crate::node::{Machine, hello};
use gmodel::gpu_use::GpuUseTotals;
use gmodel::run::{RunEnd, RunPhase, Usage};
use gmodel::{JobId, RunId, Timestamp};
use gwire::node_protocol::{ToController, ToNode};
use serde_json::{Value, json};

/// More than a controller of this size takes.
const MOST_KIB: u64 = 400 << 10;

fn node(controller: &Controller, name: &str) -> Value {
    let nodes = controller.client().get("/v1/nodes");
    nodes["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .find(|node| node["name"] == name)
        .unwrap()
        .clone()
}

fn peak_kib(controller: &Controller) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", controller.pid())).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

fn extreme_use() -> Usage {
    let all = u64::MAX;
    let gpu = GpuUseTotals {
        sampled_ms: all,
        idle_ms: all,
        busy_percent_ms: all,
        busy_told_ms: all,
        energy_mj: all,
        ..GpuUseTotals::default()
    };
    Usage {
        cpu_user_micros: 1 << 63,
        cpu_system_micros: all,
        peak_memory_bytes: 1 << 63,
        oom_kills: all,
        gpu,
    }
}

#[tokio::test]
async fn a_run_that_used_two_to_the_63_ends_as_any_other_and_the_books_stay_readable() {
    let site = Site::new();
    let controller = site.start();
    let machine = Machine::join(&site, &controller, "compute", "n1").await;
    let (mut link, _) = machine.connect("boot", Vec::new()).await;
    for round in 0..3 {
        let mut body = job("train");
        body["spec"]["request"] = json!({"gpus": "h100:1"});
        let id = controller.client().submit(&body);
        let run = RunId::new(JobId(id), 1);
        while !matches!(link.hear().await, ToNode::Orders { desired, .. } if desired.runs.iter().any(|one| one.run == run))
        {
        }
        link.report(
            run,
            RunPhase::Running {
                started: Timestamp(i64::MIN),
            },
        )
        .await;
        let (started, ended) = (Some(Timestamp(i64::MIN)), Some(Timestamp(i64::MAX)));
        let end = RunEnd {
            usage: extreme_use(),
            started,
            ended,
            text: "x".repeat(1 << 20),
            ..RunEnd::default()
        };
        link.report(run, RunPhase::Clean(end.into())).await;
        let row = || controller.client().get(&format!("/v1/runs?job={id}"))["runs"][0].clone();
        wait_until(
            || row()["state"] == "COMPLETED",
            || format!("round {round}: {}", row()),
        );
        assert!(
            row()["cpu_time_secs"].as_f64().unwrap() <= 2.0 * 16.0 * 86_500.0,
            "{}",
            row()
        );
    }
    let report = controller.client().get("/v1/report?by=user");
    assert_eq!(report["rows"].as_array().unwrap().len(), 1, "{report}");
    assert_eq!(controller.client().get("/v1/check")["ok"], true);
}

#[tokio::test]
async fn a_node_with_four_billion_cpus_takes_no_work_and_no_memory_and_says_why() {
    let site = Site::new();
    let controller = site.start();
    let good = Machine::join(&site, &controller, "compute", "n1").await;
    let (_link, _) = good.connect("boot", Vec::new()).await;
    let liar = Machine::join(&site, &controller, "compute", "n2").await;
    let ToController::Hello(mut lie) = hello("boot", Vec::new()) else {
        unreachable!()
    };
    (
        lie.inventory.cpus,
        lie.inventory.mem_bytes,
        lie.inventory.boot_secs,
    ) = (u32::MAX, u64::MAX, i64::MIN);
    lie.inventory
        .gpus
        .iter_mut()
        .for_each(|gpu| (gpu.uuid, gpu.memory_mib) = (format!("{}-lie", gpu.uuid), u64::MAX));
    lie.inventory.features = vec!["f".repeat(1000); 10_000];
    let mut link = liar.link().await;
    link.say(&ToController::Hello(lie)).await;
    link.hear().await;
    let is_unfit = |controller: &Controller| {
        node(controller, "n2")
            .to_string()
            .contains("its inventory is impossible: it says 4294967295 CPUs, and 65536 are")
    };
    wait_until(
        || is_unfit(&controller),
        || node(&controller, "n2").to_string(),
    );
    // The others' work goes on, and a pass of the planner has seen both.
    let id = controller.client().submit(&job("train"));
    let placed = |controller: &Controller| {
        controller.client().get(&format!("/v1/jobs/{id}"))["jobs"][0]["nodelist"].clone()
    };
    wait_until(
        || placed(&controller) == "n1",
        || placed(&controller).to_string(),
    );
    assert!(
        peak_kib(&controller) < MOST_KIB,
        "{} KiB",
        peak_kib(&controller)
    );
    controller.kill();
    // A database of before the bounds.
    let database = rusqlite::Connection::open(site.database()).unwrap();
    let doc: Vec<u8> = database
        .query_row("SELECT doc FROM nodes WHERE name = 'n2'", [], |row| {
            row.get(0)
        })
        .unwrap();
    let mut doc: Value = serde_json::from_slice(&doc).unwrap();
    doc["inventory"]["cpus"] = u32::MAX.into();
    doc["inventory"]["unfit"] = "".into();
    doc["inventory"]["mem_bytes"] = u64::MAX.into();
    database
        .execute(
            "UPDATE nodes SET doc = ?1 WHERE name = 'n2'",
            [serde_json::to_vec(&doc).unwrap()],
        )
        .unwrap();
    drop(database);
    let controller = site.start();
    controller.client().submit(&job("another"));
    wait_until(
        || is_unfit(&controller),
        || node(&controller, "n2").to_string(),
    );
    assert!(
        peak_kib(&controller) < MOST_KIB,
        "{} KiB",
        peak_kib(&controller)
    );
}
