//! What the controller believes of machines: fences and runs that were never given, seals after a restore, copies of a node, old certificates.

use crate::controller::{Controller, Site, job, wait_until};
use crate::node::{Link, Machine, hello};
use gmodel::launch_order::LaunchOrder;
use gmodel::node::Inventory;
use gmodel::run::{RunPhase, RunReport};
use gmodel::{Fence, JobId, RunId, Timestamp};
use gwire::node_protocol::{ALPN_HTTP, Hello, ToController, ToNode};
use serde_json::{Value, json};

const ALICE: &str = "4000000:4000000:alice";

fn node_row(controller: &Controller, name: &str) -> Value {
    let nodes = controller.client().get("/v1/nodes");
    nodes["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .find(|node| node["name"] == name)
        .cloned()
        .unwrap()
}

fn running(run: RunId) -> RunReport {
    RunReport::new(
        run,
        RunPhase::Running {
            started: Timestamp(1),
        },
    )
}

/// As `hello`, of a node without GPUs that obeyed this fence.
fn hello_at(boot: &str, fence: Fence, runs: Vec<RunReport>) -> ToController {
    let ToController::Hello(plain) = hello(boot, runs) else {
        unreachable!()
    };
    let inventory = Inventory {
        gpus: Vec::new(),
        ..plain.inventory
    };
    ToController::Hello(Hello {
        fence,
        inventory,
        ..plain
    })
}

async fn connect_at(machine: &Machine, boot: &str, fence: Fence) -> (Link, ToNode) {
    let mut link = machine.link().await;
    link.say(&hello_at(boot, fence, Vec::new())).await;
    assert!(matches!(link.hear().await, ToNode::Welcome { .. }));
    let orders = link.hear().await;
    (link, orders)
}

/// A job of alice that runs on the node which was joined last; its order.
async fn job_of_alice(login: &Machine, link: &mut Link) -> (LaunchOrder, Fence) {
    let (status, body) = login
        .as_user(ALICE, "POST", "/v1/jobs", &job("train"))
        .await;
    assert_eq!(status, 200, "{body}");
    let ToNode::Orders { orders, desired } = link.hear().await else {
        panic!("no orders")
    };
    let order = orders[0].clone();
    link.say(&ToController::Obeyed {
        fence: desired.fence,
    })
    .await;
    link.report(
        order.run.unwrap(),
        RunPhase::Running {
            started: Timestamp(1),
        },
    )
    .await;
    (order, desired.fence)
}

#[tokio::test]
async fn a_fence_from_the_future_makes_no_job_moves_no_counter_and_is_shown() {
    let site = Site::new();
    let controller = site.start();
    let machine = Machine::join(&site, &controller, "compute", "n1").await;
    let forged = RunId::new(JobId(17), 1);
    for fence in [
        Fence {
            incarnation: 1,
            generation: 1 << 40,
        },
        Fence {
            incarnation: 900,
            generation: 1,
        },
        Fence {
            incarnation: u64::MAX,
            generation: u64::MAX,
        },
    ] {
        let mut link = machine.link().await;
        link.say(&hello_at("boot", fence, vec![running(forged)]))
            .await;
        let first = link.hear().await;
        assert!(
            matches!(first, ToNode::Welcome { .. }),
            "it is asked for nothing: {first:?}"
        );
        wait_until(
            || node_row(&controller, "n1")["drains"][0]["owner"] == "system:fence",
            || node_row(&controller, "n1").to_string(),
        );
        let reason = node_row(&controller, "n1")["drains"][0]["reason"]
            .as_str()
            .unwrap()
            .to_owned();
        assert!(
            reason.contains("obeyed order") && reason.contains("gpuctld restore --from"),
            "{reason}"
        );
        let (status, body) = machine
            .as_user(ALICE, "GET", "/v1/jobs", &Value::Null)
            .await;
        assert_eq!(status, 403, "{body}");
    }
    let mut client = controller.client();
    assert_eq!(
        client.ask("GET", "/v1/jobs/17", &Value::Null).unwrap().0,
        404
    );
    assert_eq!(client.submit(&job("x")), 1, "the counter was moved");
    // With a fence that was given it is believed again.
    let (_link, _) = connect_at(&machine, "boot", Fence::default()).await;
    wait_until(
        || node_row(&controller, "n1")["drains"] == json!([]),
        || node_row(&controller, "n1").to_string(),
    );
}

#[tokio::test]
async fn after_a_restore_only_sealed_runs_are_adopted_and_forward_no_user() {
    let site = Site::new();
    let controller = site.start();
    let login = Machine::join(&site, &controller, "login", "front").await;
    let honest = Machine::join(&site, &controller, "compute", "n1").await;
    let liar = Machine::join(&site, &controller, "compute", "n2").await;
    let (mut link, _) = connect_at(&honest, "boot", Fence::default()).await;
    let backup = site.dir.path().join("backup.db");
    controller
        .client()
        .post("/v1/backup", &json!({"path": backup}));
    let (order, fence) = job_of_alice(&login, &mut link).await;
    let run = order.run.unwrap();
    assert!(
        order.seal.len() == 64 && order.made_at > Fence::default(),
        "{order:?}"
    );
    wait_until(
        || controller.client().get("/v1/jobs/1")["jobs"][0]["state"] == "RUNNING",
        || "the job".into(),
    );
    let (status, _) = honest.as_user(ALICE, "GET", "/v1/jobs", &Value::Null).await;
    assert_eq!(status, 200, "her job runs there");
    drop(link);
    assert_eq!(controller.stop(), 0);
    let (status, said) = site.run_to_end(&["restore", "--from", backup.to_str().unwrap()]);
    assert_eq!(status, 0, "{said}");
    let controller = site.start();
    let known = |id: u64| {
        controller
            .client()
            .ask("GET", &format!("/v1/jobs/{id}"), &Value::Null)
            .unwrap()
            .0
            == 200
    };
    // The other node brings the order of the first, the same with other words, and one of its own making.
    let invented = LaunchOrder {
        run: Some(RunId::new(JobId(99), 1)),
        ..order.clone()
    };
    let mut as_root = LaunchOrder {
        run: Some(RunId::new(JobId(98), 1)),
        ..order.clone()
    };
    as_root.user.name = "root".into();
    as_root.nodes[0].name = "n2".into();
    let forged = [order.clone(), invented, as_root];
    let runs: Vec<RunReport> = forged
        .iter()
        .map(|order| running(order.run.unwrap()))
        .collect();
    let mut link = liar.link().await;
    link.say(&hello_at("other boot", fence, runs.clone())).await;
    let asked = link.hear().await;
    assert!(
        matches!(&asked, ToNode::TellOrders { runs } if runs.len() == 3),
        "{asked:?}"
    );
    link.say(&ToController::Orders {
        orders: forged.to_vec(),
        done: true,
    })
    .await;
    assert!(matches!(link.hear().await, ToNode::Welcome { .. }));
    let orders = link.hear().await;
    assert!(
        matches!(&orders, ToNode::Orders { desired, .. } if desired.runs.is_empty()),
        "its runs are to stop: {orders:?}"
    );
    assert!(!known(1) && !known(98) && !known(99));
    site.wait_for_log("bears no seal of this controller for this node");
    // Once only.
    let mut again = liar.link().await;
    again.say(&hello_at("other boot", fence, runs)).await;
    assert!(
        matches!(again.hear().await, ToNode::Welcome { .. }),
        "it was asked again"
    );
    // The node that really has it.
    let mut link = honest.link().await;
    link.say(&hello_at("boot", fence, vec![running(run)])).await;
    assert!(matches!(link.hear().await, ToNode::TellOrders { .. }));
    link.say(&ToController::Orders {
        orders: vec![LaunchOrder {
            script: String::new(),
            environment: Vec::new(),
            ..order
        }],
        done: true,
    })
    .await;
    assert!(matches!(link.hear().await, ToNode::Welcome { .. }));
    wait_until(|| known(1), || "its job".into());
    let row = controller.client().get("/v1/jobs/1")["jobs"][0].clone();
    assert_eq!(
        (&row["state"], &row["user"]),
        (&json!("RUNNING"), &json!("alice")),
        "{row}"
    );
    let (status, body) = honest
        .as_user(ALICE, "POST", "/v1/jobs", &job("another"))
        .await;
    assert!(
        status == 403
            && body["error"]
                .as_str()
                .unwrap()
                .contains("adopted after a restore"),
        "{status} {body}"
    );
    assert_eq!(
        controller.client().get("/v1/check")["violations"],
        json!([])
    );
}

#[tokio::test]
async fn where_an_older_database_was_put_in_place_restoring_it_from_itself_lets_nodes_bring_their_runs()
 {
    let site = Site::new();
    let controller = site.start();
    let login = Machine::join(&site, &controller, "login", "front").await;
    let machine = Machine::join(&site, &controller, "compute", "n1").await;
    let (mut link, _) = connect_at(&machine, "boot", Fence::default()).await;
    let copy = site.dir.path().join("copy.db");
    controller
        .client()
        .post("/v1/backup", &json!({"path": copy}));
    let (order, fence) = job_of_alice(&login, &mut link).await;
    drop(link);
    assert_eq!(controller.stop(), 0);
    std::fs::copy(&copy, site.database()).unwrap();
    let database = site.database();
    let (status, said) = site.run_to_end(&["restore", "--from", database.to_str().unwrap()]);
    assert_eq!(status, 0, "{said}");
    let controller = site.start();
    let mut link = machine.link().await;
    link.say(&hello_at("boot", fence, vec![running(order.run.unwrap())]))
        .await;
    assert!(matches!(link.hear().await, ToNode::TellOrders { .. }));
    link.say(&ToController::Orders {
        orders: vec![order],
        done: true,
    })
    .await;
    assert!(matches!(link.hear().await, ToNode::Welcome { .. }));
    wait_until(
        || {
            controller
                .client()
                .ask("GET", "/v1/jobs/1", &Value::Null)
                .unwrap()
                .0
                == 200
        },
        || "its job".into(),
    );
}

#[tokio::test]
async fn a_certificate_of_before_a_join_or_a_revocation_opens_nothing_and_renewals_are_on_record() {
    let site = Site::new();
    let controller = site.start();
    let stolen = Machine::join(&site, &controller, "compute", "n1").await;
    let (mut link, _) = stolen.connect("boot", Vec::new()).await;
    let mut machine = Machine::join(&site, &controller, "compute", "n1").await;
    match link.try_hear().await {
        Some(ToNode::Refused { text, permanent }) => assert!(
            permanent && text.contains("gadm token node --name n1"),
            "{text}"
        ),
        other => panic!("the connection goes on: {other:?}"),
    }
    let (status, body) = stolen
        .http(
            ALPN_HTTP,
            "POST",
            "/v1/renew",
            "",
            &json!({"name": "n1", "csr_pem": ""}),
        )
        .await
        .unwrap();
    assert_eq!(status, 403, "{body}");
    let (mut link, _) = machine.connect("boot", Vec::new()).await;
    assert_eq!(node_row(&controller, "n1")["certificate"]["epoch"], 1);
    // Renewed, and once more at once.
    let kept = machine.identity.clone();
    let body = json!({"name": "n1", "csr_pem": machine.request("n1")});
    let new_key = std::mem::replace(&mut machine.identity, kept);
    let (status, reply) = machine
        .http(ALPN_HTTP, "POST", "/v1/renew", "", &body)
        .await
        .unwrap();
    assert_eq!(status, 200, "{reply}");
    let row = node_row(&controller, "n1");
    assert_eq!(
        (
            &row["certificate"]["renewals"],
            &row["certificate"]["renewed_from"]
        ),
        (&json!(1), &json!("127.0.0.1")),
        "{row}"
    );
    let (status, reply_2) = machine
        .http(ALPN_HTTP, "POST", "/v1/renew", "", &body)
        .await
        .unwrap();
    assert!(
        status >= 400 && reply_2["error"].as_str().unwrap().contains("renewed at"),
        "{reply_2}"
    );
    machine.identity = new_key;
    machine.take(&reply);
    // An operator's word.
    controller.client().post("/v1/nodes/n1/revoke", &json!({}));
    match link.try_hear().await {
        Some(ToNode::Refused { text, permanent }) => {
            assert!(permanent && text.contains("gadm node revoke"), "{text}")
        }
        other => panic!("the connection goes on: {other:?}"),
    }
    let mut link = machine.link().await;
    link.say(&hello("boot", Vec::new())).await;
    assert!(
        matches!(
            link.try_hear().await,
            Some(ToNode::Refused {
                permanent: true,
                ..
            })
        ),
        "the renewed one"
    );
    let again = Machine::join(&site, &controller, "compute", "n1").await;
    let (_link, _) = again.connect("boot", Vec::new()).await;
    assert_eq!(node_row(&controller, "n1")["certificate"]["epoch"], 3);
}

#[tokio::test]
async fn a_user_known_by_another_name_is_not_forwarded() {
    let site = Site::new();
    let controller = site.start();
    let login = Machine::join(&site, &controller, "login", "front").await;
    for forged in [
        "1001:1:root",
        "1:1:root",
        "1001:1001:daemon",
        "2:1:daemon",
        "1:1:alice",
        "1:0:daemon",
        "1000:0:alice",
    ] {
        let (status, body) = login.as_user(forged, "GET", "/v1/jobs", &Value::Null).await;
        assert!(
            status == 403
                && body["error"]
                    .as_str()
                    .unwrap()
                    .contains("on the controller's host"),
            "{forged}: {status} {body}"
        );
    }
    for fine in ["1:1:daemon", "4000000:4000000:alice"] {
        let (status, body) = login.as_user(fine, "GET", "/v1/jobs", &Value::Null).await;
        assert_eq!(status, 200, "{fine}: {body}");
    }
}
