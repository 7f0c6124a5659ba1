//! A node that lies: a real token and a real certificate, and in every field of every frame the extremes of its type; runs, fences and
//! users that do not exist. The controller goes on, bounded, and nothing of it reaches other nodes' jobs.
//!
//! `LIAR_SECS` is how long it lies, 20 s by default; `make soak` gives it more. Every lie follows from the number of its round.

use crate::controller::{Controller, Site, job, wait_until};
use crate::node::{Link, Machine, hello};
use gmodel::checkpoint::CheckpointMark;
use gmodel::idle::IdleReport;
use gmodel::launch_order::LaunchOrder;
use gmodel::run::{RunEnd, RunPhase, RunReport, RunUse, Usage};
use gmodel::{Fence, JobId, RunId, Timestamp};
use gwire::node_protocol::{Hello, ToController, ToNode};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;

/// What the controller may take above what it took before the lies, MiB. A frame may have 16 MiB, and is read into what it says.
const MOST_MIB: u64 = 400;

fn secs() -> u64 {
    std::env::var("LIAR_SECS")
        .ok()
        .and_then(|secs| secs.parse().ok())
        .unwrap_or(20)
}

fn resident_mib(pid: u32) -> u64 {
    let text =
        std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the controller lives");
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() >> 10
}

/// Every frame that a node may send, true ones first.
fn frames(own: RunId, other: RunId, fence: Fence) -> Vec<Value> {
    let usage = Usage {
        cpu_user_micros: 1,
        cpu_system_micros: 1,
        peak_memory_bytes: 1,
        oom_kills: 1,
        ..Usage::default()
    };
    let end = RunEnd {
        text: "over".into(),
        started: Some(Timestamp(1)),
        ended: Some(Timestamp(2)),
        usage,
        ..RunEnd::default()
    };
    let mark = CheckpointMark {
        number: 1,
        at: Timestamp(1),
        note: "epoch".into(),
    };
    let report = |run: RunId, phase: RunPhase| RunReport {
        mark: Some(mark.clone()),
        ..RunReport::new(run, phase)
    };
    let order = LaunchOrder {
        run: Some(other),
        job_name: "x".into(),
        ..LaunchOrder::default()
    };
    let ToController::Hello(plain) = hello("boot", vec![report(own, RunPhase::Accepted)]) else {
        unreachable!()
    };
    let all = [
        ToController::Hello(Hello {
            fence,
            ..plain.clone()
        }),
        ToController::Runs {
            runs: vec![
                report(own, RunPhase::Ready),
                report(other, RunPhase::Accepted),
            ],
        },
        ToController::Runs {
            runs: vec![report(
                own,
                RunPhase::Running {
                    started: Timestamp(1),
                },
            )],
        },
        ToController::Runs {
            runs: vec![report(other, RunPhase::Ended(end.clone().into()))],
        },
        ToController::Runs {
            runs: vec![report(other, RunPhase::Clean(end.clone().into()))],
        },
        ToController::Runs {
            runs: vec![report(own, RunPhase::Clean(end.into()))],
        },
        ToController::Inventory {
            inventory: plain.inventory,
        },
        ToController::Obeyed { fence },
        ToController::GpuOrders { done: Vec::new() },
        ToController::Idle {
            runs: vec![IdleReport {
                run: own,
                watched_secs: 60,
                idle_secs: vec![30],
            }],
        },
        ToController::Ping,
        ToController::Orders {
            orders: vec![order],
            done: true,
        },
        ToController::Log {
            question: 1,
            text: "x".into(),
            error: "y".into(),
        },
        ToController::Use {
            question: 1,
            used: RunUse {
                all: usage,
                steps: vec![(1, usage)],
            },
            error: String::new(),
        },
    ];
    all.iter()
        .map(|frame| serde_json::to_value(frame).unwrap())
        .collect()
}

/// Paths to all values within one, itself last.
fn paths(value: &Value, at: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => fields
            .iter()
            .for_each(|(key, value)| paths(value, &format!("{at}/{key}"), found)),
        Value::Array(items) => items
            .iter()
            .enumerate()
            .for_each(|(index, value)| paths(value, &format!("{at}/{index}"), found)),
        _ => {}
    }
    found.push(at.to_owned());
}

/// The extremes that stand in the place of a value.
fn lies(value: &Value) -> Vec<Value> {
    let numbers = [
        json!(0),
        json!(-1),
        json!(1),
        json!(i64::MIN),
        json!(i64::MAX),
        json!(u64::MAX),
        json!(1u64 << 63),
        json!(u32::MAX),
        json!(1u64 << 32),
        json!(1e300),
    ];
    let texts = [
        json!(""),
        json!("\u{0}"),
        json!("../../../etc/passwd"),
        json!("root"),
        json!("n1"),
        json!("x".repeat(300_000)),
        json!("\u{1b}[2J\n"),
        json!("GPU-0"),
    ];
    match value {
        Value::Number(_) => numbers.into(),
        Value::String(_) => texts.into(),
        Value::Bool(is) => vec![json!(!is), json!(7), Value::Null],
        Value::Array(items) => {
            let one = items.first().cloned().unwrap_or(json!(1));
            vec![
                json!([]),
                Value::Array(vec![one; 20_000]),
                Value::Null,
                json!({}),
            ]
        }
        Value::Object(_) => vec![json!({}), Value::Null, json!([])],
        Value::Null => vec![json!(1), json!("x")],
    }
}

/// Sends a frame as it stands. False when the controller has closed the connection.
async fn send(link: &mut Link, frame: &Value) -> bool {
    let body = serde_json::to_vec(frame).unwrap();
    let mut bytes = u32::try_from(body.len()).unwrap().to_be_bytes().to_vec();
    bytes.extend(body);
    link.sink.write_all(&bytes).await.is_ok() && link.sink.flush().await.is_ok()
}

/// A connection on which a true hello was said, whatever came before.
async fn greeted(machine: &Machine, runs: Vec<RunReport>) -> Option<Link> {
    let mut link = machine.link().await;
    link.say(&hello("boot", runs)).await;
    matches!(link.try_hear().await, Some(ToNode::Welcome { .. })).then_some(link)
}

fn one_job(controller: &Controller, id: u64) -> Value {
    controller.client().get(&format!("/v1/jobs/{id}"))["jobs"][0].clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lying_node_ends_nothing_and_touches_no_job_of_others() {
    let site = Site::new();
    let mut controller = site.start();
    let liar = Machine::join(&site, &controller, "compute", "liar").await;
    let honest = Machine::join(&site, &controller, "compute", "n1").await;
    // Each has a job: the honest one's runs while the other lies.
    drop(greeted(&liar, Vec::new()).await.expect("a true hello"));
    let (mut link, _) = honest.connect("boot of n1", Vec::new()).await;
    let body = |node: &str| {
        let mut body = job("of others");
        body["spec"]["request"] = json!({"nodelist": node});
        body
    };
    let theirs = controller.client().submit(&body("n1"));
    let run = RunId::new(JobId(theirs), 1);
    while !matches!(link.hear().await, ToNode::Orders { orders, .. } if !orders.is_empty()) {}
    let start = RunReport::new(
        run,
        RunPhase::Running {
            started: Timestamp(1),
        },
    );
    link.say(&ToController::Runs {
        runs: vec![start.clone()],
    })
    .await;
    wait_until(
        || one_job(&controller, theirs)["state"] == "RUNNING",
        || one_job(&controller, theirs).to_string(),
    );
    let pid = controller.pid();
    let (before, next) = (resident_mib(pid), controller.client().submit(&json_held()));
    let heart = tokio::spawn(async move {
        loop {
            link.say(&ToController::Ping).await;
            tokio::time::sleep(Duration::from_secs(2)).await;
            // What is sent to it must not fill its socket.
            while tokio::time::timeout(Duration::from_millis(1), link.try_hear())
                .await
                .is_ok_and(|frame| frame.is_some())
            {}
        }
    });
    let own = RunId::new(JobId(controller.client().submit(&body("liar"))), 1);
    let all = frames(
        own,
        run,
        Fence {
            incarnation: 1,
            generation: 1,
        },
    );
    let mut told: Vec<(usize, String, Value)> = Vec::new();
    for (number, frame) in all.iter().enumerate() {
        let mut found = Vec::new();
        paths(frame, "", &mut found);
        for path in found.into_iter().filter(|path| !path.ends_with("/frame")) {
            told.extend(
                lies(frame.pointer(&path).unwrap())
                    .into_iter()
                    .map(|lie| (number, path.clone(), lie)),
            );
        }
    }
    // Not always in the same order: what one lie leaves behind another may meet.
    let rounds = told.len();
    let (mut sent, mut link) = (0usize, None);
    let (end, mut at) = (Instant::now() + Duration::from_secs(secs()), 0);
    while Instant::now() < end {
        let (number, path, lie) = &told[at % rounds];
        at += 7919; // a prime, so that all come once before any comes again
        let mut frame = all[*number].clone();
        *frame.pointer_mut(path).unwrap() = lie.clone();
        if *number == 0 {
            // A hello is the first frame, and the only one.
            let mut first = liar.link().await;
            send(&mut first, &frame).await;
            if let Ok(Some(ToNode::TellOrders { .. })) =
                tokio::time::timeout(Duration::from_millis(500), first.try_hear()).await
            {
                panic!("its lie about {path} was taken for a restored backup: {lie}");
            }
            link = None;
        } else {
            if link.is_none() {
                link = greeted(&liar, Vec::new()).await;
            }
            let gone = match &mut link {
                Some(open) => !send(open, &frame).await,
                None => false,
            };
            if gone {
                link = None;
            }
        }
        sent += 1;
        if sent.is_multiple_of(50) {
            assert!(
                controller.is_alive(),
                "after {path} = {lie} in {}: {}",
                all[*number],
                site.log()
            );
            let now = resident_mib(pid);
            assert!(
                now < before + MOST_MIB,
                "{now} MiB, {before} before, after {path} = {lie}"
            );
        }
    }
    println!(
        "{sent} lies of {rounds}; the controller has {} MiB, {before} before",
        resident_mib(pid)
    );
    assert!(controller.is_alive(), "{}", site.log());
    heart.abort();
    // Nothing of it reached the other job, nor the ids, nor a user's name.
    let row = one_job(&controller, theirs);
    assert_eq!(
        (&row["state"], &row["attempts"], &row["user"]),
        (&json!("RUNNING"), &json!(1), &json!("root")),
        "{row}"
    );
    let after = controller.client().submit(&json_held());
    assert!(after <= next + 2, "the counter went from {next} to {after}");
    let jobs = controller
        .client()
        .get("/v1/jobs?state=all&columns=id,user");
    assert!(jobs["jobs"].as_array().unwrap().len() <= 4, "{jobs}");
    assert_eq!(
        controller.client().get("/v1/check")["ok"],
        true,
        "{}",
        controller.client().get("/v1/check")
    );
    // And it starts again from what was written.
    drop(link);
    assert_eq!(controller.stop(), 0);
    let controller = site.start();
    assert_eq!(one_job(&controller, theirs)["state"], "RUNNING");
    assert!(resident_mib(controller.pid()) < before + MOST_MIB);
    let end = RunEnd {
        started: Some(Timestamp(1)),
        ..RunEnd::default()
    };
    let (mut link, _) = honest.connect("boot of n1", vec![start]).await;
    link.report(run, RunPhase::Clean(end.into())).await;
    wait_until(
        || one_job(&controller, theirs)["state"] == "COMPLETED",
        || one_job(&controller, theirs).to_string(),
    );
}

fn json_held() -> Value {
    let mut body = job("held");
    body["spec"]["hold"] = json!(true);
    body
}
