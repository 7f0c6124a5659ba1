//! SIGKILL at random moments while submissions, arrays, large scripts (so that the log is brought home) and the
//! reports of a node are under way. 20 kills; `GPUPOOL_KILLS=200` makes it 200, `GPUPOOL_SEED` repeats one.

use crate::controller::{Client, Controller, Site, job, wait_until};
use crate::node::{Machine, hello};
use gmodel::run::{RunEnd, RunPhase, RunReport};
use gmodel::{Fence, RunId};
use gwire::frame;
use gwire::node_protocol::{ToController, ToNode};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const CLIENTS: usize = 3;

/// What was acknowledged: first id and how many ids it stands for.
type Acknowledged = Arc<Mutex<BTreeMap<u64, u64>>>;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_at_random_moments_it_always_starts_again_and_nothing_acknowledged_is_missing() {
    let number = |name: &str| {
        std::env::var(name)
            .ok()
            .and_then(|text| text.parse::<u64>().ok())
    };
    let kills = number("GPUPOOL_KILLS").unwrap_or(20);
    let mut seed = number("GPUPOOL_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    println!("GPUPOOL_SEED={seed}");
    let site = Site::new();
    let mut controller = site.start();
    let machine = Machine::join(&site, &controller, "compute", "n1").await;
    let node = Arc::new(HollowNode::default());
    let running = tokio::spawn(node.clone().run(machine));
    let mut client = controller.client();
    tokio::task::block_in_place(|| {
        wait_until(
            || client.get("/v1/nodes")["nodes"][0]["state"] == "IDLE",
            || "the node's GPUs".into(),
        );
    });
    let acknowledged = Acknowledged::default();
    for kill in 0..kills {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let pause = Duration::from_micros(5_000 + (seed >> 33) % 150_000);
        controller = tokio::task::block_in_place(|| {
            submit_until_killed(&site, controller, pause, &acknowledged);
            let controller = site.start();
            assert_all_there(&mut controller.client(), &acknowledged, kill);
            controller
        });
        assert_eq!(node.told_twice(), None, "kill {kill}: started twice");
        assert!(
            !running.is_finished(),
            "kill {kill}: the node refused its orders"
        );
    }
    tokio::task::block_in_place(|| {
        wait_until(|| node.clean() > 0, || "the node to run anything".into())
    });
    node.stop.store(true, Ordering::Relaxed);
    running.abort();
}

fn submit_until_killed(
    site: &Site,
    controller: Controller,
    pause: Duration,
    acknowledged: &Acknowledged,
) {
    let dead = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for number in 0..CLIENTS {
            let mut client = controller.client();
            let dead = &dead;
            scope.spawn(move || {
                for count in 0.. {
                    let (body, ids) = submission(number, count);
                    match client.try_submit(&body) {
                        Ok(id) => {
                            let old = acknowledged.lock().unwrap().insert(id, ids);
                            assert_eq!(old, None, "id {id} was given twice");
                        }
                        Err(text) => {
                            assert!(
                                dead.load(Ordering::Relaxed),
                                "refused before the kill: {text}"
                            );
                            return;
                        }
                    }
                }
            });
        }
        std::thread::sleep(pause);
        dead.store(true, Ordering::Relaxed);
        controller.kill();
    });
    assert!(site.socket().exists());
}

/// Mostly small jobs, some arrays, some large scripts.
fn submission(client: usize, count: usize) -> (Value, u64) {
    let mut body = job(&format!("c{client}n{count}"));
    body["spec"]["request"] = json!({"gpus": "h100:1"});
    match count % 5 {
        3 => {
            body["spec"]["array"] = json!("0-99%2");
            (body, 100)
        }
        4 => {
            body["script"] =
                format!("#!/bin/sh\n# {client} {count} {}\n", "x".repeat(300_000)).into();
            (body, 1)
        }
        _ => (body, 1),
    }
}

fn assert_all_there(client: &mut Client, acknowledged: &Acknowledged, kill: u64) {
    let acknowledged = acknowledged.lock().unwrap();
    let mut taken = BTreeSet::new();
    for (first, ids) in acknowledged.iter() {
        let (status, body) = client
            .ask("GET", &format!("/v1/jobs/{first}"), &Value::Null)
            .unwrap();
        assert_eq!(status, 200, "kill {kill}: job {first} is lost: {body}");
        for id in *first..first + ids {
            assert!(taken.insert(id), "kill {kill}: id {id} belongs to two");
        }
    }
    let check = client.get("/v1/check");
    assert_eq!(check["ok"], true, "kill {kill}: {check}");
}

/// A node that ends every run at once, and remembers across the controller's deaths what it was told.
#[derive(Default)]
struct HollowNode {
    phases: Mutex<BTreeMap<RunId, RunPhase>>,
    twice: Mutex<Option<RunId>>,
    fence: Mutex<Fence>,
    stop: AtomicBool,
}

impl HollowNode {
    async fn run(self: Arc<Self>, machine: Machine) {
        while !self.stop.load(Ordering::Relaxed) {
            if let Ok(stream) = machine.dial(gwire::node_protocol::ALPN_NODE).await {
                let (source, mut sink) = tokio::io::split(stream);
                let mut frames = frame::FrameReader::new(source);
                if frame::write(&mut sink, &hello("boot", self.reports()))
                    .await
                    .is_ok()
                {
                    while let Ok(Some(told)) = frames.next::<ToNode>().await {
                        let ToNode::Orders { orders, desired } = told else {
                            continue;
                        };
                        self.obey(desired.fence);
                        let new: Vec<RunId> =
                            orders.into_iter().filter_map(|order| order.run).collect();
                        let runs = self.take(&new);
                        let frames = [
                            ToController::Obeyed {
                                fence: desired.fence,
                            },
                            ToController::Runs { runs },
                        ];
                        for frame in &frames {
                            let _ = frame::write(&mut sink, frame).await; // told again in the next hello
                        }
                    }
                }
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// A real node would refuse orders below what it made durable: the controller must not fall back.
    fn obey(&self, fence: Fence) {
        let mut newest = self.fence.lock().unwrap();
        if fence != Fence::default() {
            assert!(fence >= *newest, "{fence:?} after {newest:?}");
            *newest = fence;
        }
    }

    /// Runs each new order to its end. The controller may repeat an order of which it heard nothing; one that
    /// it heard the end of it must not.
    fn take(&self, new: &[RunId]) -> Vec<RunReport> {
        let mut phases = self.phases.lock().unwrap();
        new.iter()
            .map(|run| {
                let clean = RunPhase::Clean(RunEnd::default().into());
                if phases.insert(*run, clean.clone()).is_some() {
                    self.twice.lock().unwrap().get_or_insert(*run);
                }
                RunReport::new(*run, clean)
            })
            .collect()
    }

    /// Everything it knows: an order for any of these would be a second start.
    fn reports(&self) -> Vec<RunReport> {
        let phases = self.phases.lock().unwrap();
        phases
            .iter()
            .map(|(run, phase)| RunReport::new(*run, phase.clone()))
            .collect()
    }

    fn told_twice(&self) -> Option<RunId> {
        *self.twice.lock().unwrap()
    }

    fn clean(&self) -> usize {
        self.phases.lock().unwrap().len()
    }
}
