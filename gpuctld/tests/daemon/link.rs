//! Nodes on the wire: joining, orders, reports, forged words, garbage, and permission by the way of a request.

use crate::controller::{Controller, Site, job, wait_until};
use crate::node::{Machine, hello};
use gmodel::run::{RunEnd, RunPhase, RunReport, RunTarget, RunUse, Usage};
use gmodel::{ExitCode, JobId, RunId, Timestamp};
use gwire::node_protocol::{ALPN_HTTP, ToController, ToNode};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

fn site() -> (Site, Controller) {
    let site = Site::new();
    let controller = site.start();
    (site, controller)
}

fn node_state(controller: &Controller, name: &str) -> String {
    let nodes = controller.client().get("/v1/nodes");
    let nodes = nodes["nodes"].as_array().unwrap().clone();
    let node = nodes.iter().find(|node| node["name"] == name);
    node.map_or("none".into(), |node| node["state"].as_str().unwrap().into())
}

fn job_row(controller: &Controller, id: u64) -> Value {
    controller.client().get(&format!("/v1/jobs/{id}"))["jobs"][0].clone()
}

fn wait_for_job(controller: &Controller, id: u64, state: &str) {
    wait_until(
        || job_row(controller, id)["state"] == state,
        || format!("{state}: {}", job_row(controller, id)),
    );
}

/// A job with two GPUs.
fn gpu_job() -> Value {
    let mut body = job("train");
    body["spec"]["request"] = json!({"gpus": "h100:2"});
    body
}

#[tokio::test]
async fn a_job_goes_to_the_node_and_its_end_comes_back() {
    let (site, controller) = site();
    let machine = Machine::join(&site, &controller, "compute", "n1").await;
    let (mut link, first) = machine.connect("boot", Vec::new()).await;
    assert!(
        matches!(&first, ToNode::Orders { orders, desired } if orders.is_empty() && desired.runs.is_empty())
    );
    let id = controller.client().submit(&gpu_job());
    let ToNode::Orders { orders, desired } = link.hear().await else {
        panic!("no orders")
    };
    let order = &orders[0];
    let run = RunId::new(JobId(id), 1);
    assert_eq!(
        (order.run, order.script.as_str()),
        (Some(run), "#!/bin/sh\necho train\n")
    );
    assert_eq!(order.environment, ["HOME=/root", "PATH=/usr/bin:/bin"]);
    assert_eq!(
        (
            order.gpus.len(),
            order.stdout.as_str(),
            order.stdin.as_str()
        ),
        (2, "gsub-%j.out", "/dev/null")
    );
    assert_eq!(
        (order.nodes[0].name.as_str(), order.allow_root),
        ("n1", true)
    );
    assert_eq!(
        (desired.runs[0].run, &desired.runs[0].want),
        (run, &RunTarget::Run)
    );
    link.say(&ToController::Obeyed {
        fence: desired.fence,
    })
    .await;
    link.report(
        run,
        RunPhase::Running {
            started: Timestamp(1),
        },
    )
    .await;
    wait_for_job(&controller, id, "RUNNING");
    let end = RunEnd {
        exit: ExitCode::exited(7),
        ..RunEnd::default()
    };
    link.report(run, RunPhase::Ended(end.clone().into())).await;
    link.report(run, RunPhase::Clean(end.into())).await;
    wait_for_job(&controller, id, "FAILED");
    let after = link.hear().await;
    assert!(
        matches!(&after, ToNode::Orders { desired, .. } if desired.runs.is_empty()),
        "{after:?}"
    );
}

#[tokio::test]
async fn what_a_node_may_forget_comes_with_its_next_run() {
    let (site, controller) = site();
    let machine = Machine::join(&site, &controller, "compute", "n1").await;
    let (mut link, _) = machine.connect("boot", Vec::new()).await;
    let run = |id: u64| RunId::new(JobId(id), 1);
    let (first, second) = (
        controller.client().submit(&gpu_job()),
        controller.client().submit(&gpu_job()),
    );
    let mut named = 0;
    while named < 2 {
        let ToNode::Orders { desired, .. } = link.hear().await else {
            panic!("no orders")
        };
        named = desired.runs.len();
    }
    // Whether the next run is in time is the machine's affair: of some rounds one is.
    let mut gone = first;
    let together = async {
        for _ in 0..20 {
            link.report(run(gone), RunPhase::Clean(RunEnd::default().into()))
                .await;
            wait_for_job(&controller, gone, "COMPLETED");
            let next = controller.client().submit(&gpu_job());
            let ToNode::Orders { desired, .. } = link.hear().await else {
                panic!("no orders")
            };
            assert!(
                desired.runs.iter().all(|one| one.run != run(gone)),
                "it is clean"
            );
            assert!(
                desired.runs.iter().any(|one| one.run == run(second)),
                "it is not"
            );
            if desired.runs.iter().any(|one| one.run == run(next)) {
                return true;
            }
            let ToNode::Orders { desired, .. } = link.hear().await else {
                panic!("no orders")
            };
            assert!(desired.runs.iter().any(|one| one.run == run(next)));
            gone = next;
        }
        false
    };
    assert!(together.await, "each came alone, twenty times");
}

#[tokio::test]
async fn a_job_that_ended_while_the_controller_was_down_is_known_as_ended() {
    let (site, controller) = site();
    let machine = Machine::join(&site, &controller, "compute", "n1").await;
    let (mut link, _) = machine.connect("boot", Vec::new()).await;
    let id = controller.client().submit(&gpu_job());
    let ToNode::Orders { desired, .. } = link.hear().await else {
        panic!("no orders")
    };
    let fence = desired.fence;
    let run = RunId::new(JobId(id), 1);
    link.report(
        run,
        RunPhase::Running {
            started: Timestamp(1),
        },
    )
    .await;
    wait_for_job(&controller, id, "RUNNING");
    controller.kill();
    let controller = site.start();
    assert_eq!(job_row(&controller, id)["state"], "RUNNING");
    assert_eq!(node_state(&controller, "n1"), "MIXED+NOT_RESPONDING");
    let report = RunReport::new(run, RunPhase::Clean(RunEnd::default().into()));
    let (_link, orders) = machine.connect("boot", vec![report]).await;
    wait_for_job(&controller, id, "COMPLETED");
    let ToNode::Orders { orders, desired } = orders else {
        panic!("{orders:?}")
    };
    assert!(
        orders.is_empty() && desired.runs.is_empty(),
        "a run that ended is not started again"
    );
    assert!(
        desired.fence >= fence,
        "the node would refuse {:?} after {fence:?}",
        desired.fence
    );
}

#[tokio::test]
async fn an_order_is_sent_again_after_a_reconnect_and_not_after_it_was_accepted() {
    let (site, controller) = site();
    let machine = Machine::join(&site, &controller, "compute", "n1").await;
    let (mut link, _) = machine.connect("boot", Vec::new()).await;
    let id = controller.client().submit(&gpu_job());
    assert!(matches!(link.hear().await, ToNode::Orders { orders, .. } if orders.len() == 1));
    drop(link);
    let (link, again) = machine.connect("boot", Vec::new()).await;
    assert!(
        matches!(again, ToNode::Orders { orders, .. } if orders.len() == 1),
        "it never reached the spool"
    );
    drop(link);
    let accepted = RunReport::new(RunId::new(JobId(id), 1), RunPhase::Accepted);
    let (_link, known) = machine.connect("boot", vec![accepted]).await;
    let ToNode::Orders { orders, desired } = known else {
        panic!("{known:?}")
    };
    assert_eq!((orders.len(), desired.runs.len()), (0, 1));
}

#[tokio::test]
async fn many_large_scripts_come_in_frames_that_are_accepted() {
    let (site, controller) = site();
    let machine = Machine::join(&site, &controller, "compute", "n1").await;
    drop(machine.connect("boot", Vec::new()).await); // known, and away while the jobs gather
    wait_until(
        || node_state(&controller, "n1").contains("NOT_RESPONDING"),
        || "silence".into(),
    );
    let script = format!("#!/bin/sh\n{}", "# \u{1}\n".repeat(600_000)); // each \u{1} takes six bytes in JSON
    let mut client = controller.client();
    let ids: Vec<u64> = (0..4)
        .map(|number| {
            let mut body = job("big");
            body["script"] = format!("{script}# {number}\n").into();
            client.submit(&body)
        })
        .collect();
    let (mut link, mut frame) = machine.connect("boot", Vec::new()).await;
    let mut came = std::collections::BTreeSet::new();
    let mut frames = 0;
    loop {
        let ToNode::Orders { orders, desired } = frame else {
            panic!("{frame:?}")
        };
        frames += usize::from(!orders.is_empty());
        came.extend(orders.iter().filter_map(|order| order.run));
        for run in desired.runs {
            assert!(
                came.contains(&run.run),
                "{} is named before its order",
                run.run
            );
        }
        if came.len() == ids.len() {
            break;
        }
        frame = link.hear().await;
    }
    assert!(frames > 1, "4 scripts of 4 MB in one frame");
}

#[tokio::test]
async fn a_token_works_once_and_gives_the_machine_its_name() {
    let (site, controller) = site();
    let token = controller
        .client()
        .post("/v1/tokens", &json!({"role": "login", "name": "front"}));
    let token = token["token"].as_str().unwrap().to_owned();
    let mut machine = Machine::stranger(&site);
    let (status, reply) = machine.spend(&token, "n1", "n1").await;
    assert_eq!(status, 200, "{reply}");
    machine.take(&reply);
    assert_eq!(
        (machine.name.as_str(), &reply["role"]),
        ("front", &json!("login"))
    );
    let (status, reply) = Machine::stranger(&site).spend(&token, "n2", "n2").await;
    assert_eq!(status, 403, "{reply}");
    let (status, reply) = Machine::stranger(&site)
        .spend("deadbeef.x", "n2", "n2")
        .await;
    assert_eq!(status, 403, "{reply}");
    // The pinned hash is that of the authority in the chain.
    let pin = token.split_once('.').unwrap().1;
    let sent = machine.dial(ALPN_HTTP).await.unwrap();
    use sha2::{Digest, Sha256};
    let digest: String = Sha256::digest(&sent.get_ref().1.peer_certificates().unwrap()[1])
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect();
    assert_eq!(digest, pin);
}

#[tokio::test]
async fn without_a_certificate_or_a_token_only_joining_is_possible() {
    let (site, controller) = site();
    let stranger = Machine::stranger(&site);
    for (method, path) in [
        ("GET", "/v1/jobs"),
        ("GET", "/metrics"),
        ("POST", "/v1/tokens"),
        ("POST", "/v1/renew"),
        ("POST", "/v1/join/../tokens"),
    ] {
        let (status, body) = stranger
            .as_user("0:0:root", method, path, &json!({"role": "compute"}))
            .await;
        assert_eq!(status, 401, "{method} {path}: {body}");
    }
    for (path, wanted) in [("/livez", 200), ("/readyz", 200), ("/readyz/x", 401)] {
        let asked = stranger
            .http(ALPN_HTTP, "GET", path, "", &Value::Null)
            .await;
        assert_eq!(asked.unwrap().0, wanted, "{path}");
    }
    // A token says who asks; a header that only nodes may send does not.
    let wanted = json!({"user": "daemon", "scopes": ["read"], "ttl_secs": 600});
    let made = controller.client().post("/v1/user-tokens", &wanted);
    let headers = format!(
        "0:0:root\r\nauthorization: Bearer {}",
        made["token"].as_str().unwrap()
    );
    let ask = async |path| stranger.as_user(&headers, "GET", path, &json!(null)).await;
    let (status, body) = ask("/v1/jobs").await;
    assert_eq!(status, 200, "{body}");
    let (status, body) = ask("/v1/config").await;
    assert_eq!(status, 403, "{body}");
    let mut link = stranger.link().await;
    let _ = gwire::frame::write(&mut link.sink, &hello("boot", Vec::new())).await;
    assert!(
        link.try_hear().await.is_none(),
        "the node protocol without a certificate"
    );
    drop(controller);
}

#[tokio::test]
async fn a_second_machine_with_the_name_is_refused_while_the_first_answers() {
    let (site, controller) = site();
    let machine = Machine::join(&site, &controller, "compute", "n1").await;
    let (mut first, _) = machine.connect("boot of the first", Vec::new()).await;
    let mut second = machine.link().await;
    second.say(&hello("boot of the second", Vec::new())).await;
    match second.hear().await {
        ToNode::Refused { text, permanent } => {
            assert!(
                text.contains("two machines say they are n1: one at 127.0.0.1:") && !permanent,
                "{text}"
            );
        }
        other => panic!("{other:?}"),
    }
    // Neither gets new work, and both addresses are shown, until an operator has seen to it.
    let id = controller.client().submit(&gpu_job());
    wait_until(
        || job_row(&controller, id)["reason"] != "None",
        || "a pass".into(),
    );
    assert_eq!(
        (
            node_state(&controller, "n1"),
            job_row(&controller, id)["state"].clone()
        ),
        ("IDLE+DRAIN".into(), json!("PENDING"))
    );
    let nodes = controller.client().get("/v1/nodes");
    let reason = nodes["nodes"][0]["drains"][0]["reason"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(
        reason.matches("127.0.0.1:").count() == 2 && reason.contains("gadm node resume n1"),
        "{reason}"
    );
    controller.client().post("/v1/nodes/n1/resume", &json!({}));
    // The first did not notice.
    let mut orders = first.hear().await;
    while matches!(&orders, ToNode::Orders { orders, .. } if orders.is_empty()) {
        orders = first.hear().await;
    }
    assert!(matches!(orders, ToNode::Orders { orders, .. } if orders.len() == 1));
    // It reconnects itself while its old connection is half open: it takes over.
    let (mut again, orders) = machine.connect("boot of the first", Vec::new()).await;
    assert!(matches!(orders, ToNode::Orders { orders, .. } if orders.len() == 1));
    assert!(
        first.try_hear().await.is_none(),
        "the old connection goes on"
    );
    again
        .report(
            RunId::new(JobId(id), 1),
            RunPhase::Running {
                started: Timestamp(1),
            },
        )
        .await;
    wait_for_job(&controller, id, "RUNNING");
    assert_eq!(node_state(&controller, "n1"), "MIXED");
}

#[tokio::test]
async fn a_removed_node_is_told_so_and_its_certificate_opens_nothing() {
    let (site, controller) = site();
    let machine = Machine::join(&site, &controller, "compute", "n1").await;
    let (mut link, _) = machine.connect("boot", Vec::new()).await;
    wait_until(
        || node_state(&controller, "n1") == "IDLE",
        || "the node".into(),
    );
    let mut client = controller.client();
    let (status, body) = client
        .ask("POST", "/v1/nodes/n1/remove", &json!({"reason": "sold"}))
        .unwrap();
    if status == 409 {
        // The core wants it silent first.
        drop(link);
        wait_until(
            || node_state(&controller, "n1").contains("NOT_RESPONDING"),
            || "silence".into(),
        );
        client.post("/v1/nodes/n1/down", &json!({"reason": "sold"}));
        client.post("/v1/nodes/n1/remove", &json!({"reason": "sold"}));
        link = machine.link().await;
        link.say(&hello("boot", Vec::new())).await;
    } else {
        assert_eq!(status, 200, "{body}");
    }
    match link.hear().await {
        ToNode::Refused { text, permanent } => {
            assert!(permanent && text.contains("was removed"), "{text}")
        }
        other => panic!("{other:?}"),
    }
    let (status, body) = machine
        .as_user("4000000:4000000:alice", "GET", "/v1/jobs", &Value::Null)
        .await;
    assert_eq!(status, 403, "{body}");
}

#[tokio::test]
async fn a_login_node_speaks_for_ordinary_users_only() {
    let (site, controller) = site();
    let compute = Machine::join(&site, &controller, "compute", "n1").await;
    let _link = compute.connect("boot", Vec::new()).await;
    let login = Machine::join(&site, &controller, "login", "front").await;
    let (status, body) = login
        .as_user("4000000:4000000:alice", "POST", "/v1/jobs", &job("x"))
        .await;
    assert_eq!(status, 200, "{body}");
    assert_eq!(
        job_row(&controller, body["id"].as_u64().unwrap())["user"],
        "alice"
    );
    for forged in ["0:0:root", "65534:65534:nobody", "root", "1000:alice"] {
        let (status, body) = login.as_user(forged, "POST", "/v1/jobs", &job("x")).await;
        assert!(status == 403 || status == 400, "{forged}: {status} {body}");
    }
    for (path, body) in [
        ("/v1/tokens", json!({"role": "compute"})),
        ("/v1/reload", Value::Null),
    ] {
        let (status, answer) = login
            .as_user("4000000:4000000:alice", "POST", path, &body)
            .await;
        assert_eq!(status, 403, "{path}: {answer}");
    }
    // A compute node only for users with a job there.
    let (status, body) = compute
        .as_user("1001:1001:bob", "POST", "/v1/jobs", &job("x"))
        .await;
    assert_eq!(status, 403, "{body}");
    // The header counts for nothing on the unix socket: the kernel names the user.
    let id = controller.client().submit(&job("of root"));
    assert_eq!(job_row(&controller, id)["user"], "root");
}

#[tokio::test]
async fn a_certificate_is_renewed_for_the_same_name_and_role_only() {
    let (site, controller) = site();
    let mut machine = Machine::join(&site, &controller, "login", "front").await;
    let kept = machine.identity.clone();
    let body = json!({"name": "n1", "csr_pem": machine.request("n1")});
    let new_key = machine.identity.clone();
    machine.identity = kept;
    let (status, reply) = machine
        .http(ALPN_HTTP, "POST", "/v1/renew", "", &body)
        .await
        .unwrap();
    assert_eq!(status, 200, "{reply}");
    machine.identity = new_key;
    machine.take(&reply);
    assert_eq!(
        (machine.name.as_str(), &reply["role"]),
        ("front", &json!("login"))
    );
    let (status, _) = machine
        .as_user("4000000:4000000:alice", "GET", "/v1/jobs", &Value::Null)
        .await;
    assert_eq!(status, 200);
    drop(controller);
}

#[tokio::test]
async fn garbage_and_oversized_frames_end_their_connection_only() {
    let (site, controller) = site();
    let machine = Machine::join(&site, &controller, "compute", "n1").await;
    let (mut good, _) = machine.connect("boot", Vec::new()).await;
    let garbage: [&[u8]; 5] = [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0\0\0\x05{\"fra",
        b"\0\0\0\x02{]",
        b"\xff\xff\xff\xff",
        b"\0\0\0\x10{\"frame\":\"ping\"}",
    ];
    for bytes in garbage {
        let mut link = machine.link().await;
        link.sink.write_all(bytes).await.unwrap();
        link.sink.shutdown().await.unwrap();
        while let Some(frame) = link.try_hear().await {
            assert!(matches!(frame, ToNode::Refused { .. }), "{frame:?}");
        }
    }
    let mut wrong = machine.link().await;
    wrong
        .say(&match hello("boot", Vec::new()) {
            ToController::Hello(hello) => ToController::Hello(gwire::node_protocol::Hello {
                protocol: 99,
                ..hello
            }),
            other => other,
        })
        .await;
    assert!(
        matches!(wrong.hear().await, ToNode::Refused { text, .. } if text.contains("protocol 99"))
    );
    let plain = tokio::net::TcpStream::connect(("127.0.0.1", site.port))
        .await
        .unwrap();
    plain.writable().await.unwrap();
    plain.try_write(&[0x16, 3, 1, 255, 255, 0, 0]).unwrap();
    drop(plain);
    controller.client().submit(&gpu_job());
    assert!(matches!(good.hear().await, ToNode::Orders { orders, .. } if orders.len() == 1));
}

#[tokio::test]
async fn a_log_is_read_over_the_nodes_own_connection() {
    let (site, controller) = site();
    let machine = Machine::join(&site, &controller, "compute", "n1").await;
    let (mut link, _) = machine.connect("boot", Vec::new()).await;
    let id = controller.client().submit(&gpu_job());
    let _orders = link.hear().await;
    let path = format!("/v1/jobs/{id}/log");
    let mut client = controller.client();
    let asked = tokio::task::spawn_blocking(move || client.get(&path));
    let question = loop {
        if let ToNode::ReadLog { question, run } = link.hear().await {
            assert_eq!(run, RunId::new(JobId(id), 1));
            break question;
        }
    };
    link.say(&ToController::Log {
        question,
        text: "prolog took 3 ms".into(),
        error: String::new(),
    })
    .await;
    let log = asked.await.unwrap().to_string();
    assert!(log.contains("prolog took 3 ms"), "{log}");
}

#[tokio::test]
async fn what_a_running_job_uses_is_asked_of_its_node_and_not_known_where_it_cannot_say() {
    let (site, controller) = site();
    let machine = Machine::join(&site, &controller, "compute", "n1").await;
    let (mut link, _) = machine.connect("boot", Vec::new()).await;
    let id = controller.client().submit(&gpu_job());
    let _orders = link.hear().await;
    link.report(
        RunId::new(JobId(id), 1),
        RunPhase::Running {
            started: Timestamp(1),
        },
    )
    .await;
    wait_for_job(&controller, id, "RUNNING");
    for (error, want) in [("", json!(2.0)), ("no cgroup", Value::Null)] {
        let mut client = controller.client();
        let asked = tokio::task::spawn_blocking(move || {
            client.get(&format!("/v1/steps?job={id}&live=true"))
        });
        let question = loop {
            if let ToNode::ReadUse { question, run } = link.hear().await {
                assert_eq!(run, RunId::new(JobId(id), 1));
                break question;
            }
        };
        let two = Usage {
            cpu_user_micros: 2_000_000,
            ..Usage::default()
        };
        let used = RunUse {
            all: two,
            steps: vec![(3, two)],
        };
        link.say(&ToController::Use {
            question,
            used,
            error: error.into(),
        })
        .await;
        assert_eq!(asked.await.unwrap()["steps"][0]["cpu_time_secs"], want);
    }
}

#[tokio::test]
async fn a_node_that_does_not_read_blocks_no_other() {
    let (site, controller) = site();
    let stuck = Machine::join(&site, &controller, "compute", "n1").await;
    let mut link = stuck.link().await;
    link.say(&hello("boot", Vec::new())).await;
    // It never reads: what is sent to it fills its socket.
    let mut client = controller.client();
    for number in 0..40 {
        let mut body = job("big");
        body["script"] = format!("#!/bin/sh\n# {number}{}\n", "x".repeat(300_000)).into();
        client.submit(&body);
    }
    let healthy = Machine::join(&site, &controller, "compute", "n2").await;
    let (mut other, first) = healthy.connect("boot2", Vec::new()).await;
    let mut orders = matches!(&first, ToNode::Orders { orders, .. } if !orders.is_empty());
    while !orders {
        orders = matches!(other.hear().await, ToNode::Orders { orders, .. } if !orders.is_empty());
    }
    assert_eq!(client.get("/v1/diag")["schema"], 1);
}
