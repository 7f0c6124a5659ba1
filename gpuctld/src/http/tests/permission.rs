//! Permission: each way in against each kind of request.

use super::pool::{Pool, column, local, request, via};
use crate::http::Peer;
use axum::body::{Body, Bytes};
use gmodel::node::Role;
use hyper::body::Frame;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

fn alice() -> Peer {
    local(1000, "alice")
}
fn bob() -> Peer {
    local(1001, "bob")
}
fn root() -> Peer {
    local(0, "root")
}

/// What only administrators may ask.
const ADMINISTRATION: [(&str, &str); 8] = [
    ("POST", "/v1/nodes/node1/drain"),
    ("POST", "/v1/nodes/node1/resume"),
    ("POST", "/v1/nodes/node1/down"),
    ("POST", "/v1/nodes/node1/remove"),
    ("POST", "/v1/tokens"),
    ("POST", "/v1/backup"),
    ("GET", "/v1/check"),
    ("GET", "/v1/config"),
];

#[tokio::test]
async fn administration_is_for_root_and_operators_on_the_controllers_host() {
    let pool = Pool::new("operators = [\"ada\"]\n");
    let node = pool.node("node1", Role::Compute, 1).await;
    let login = pool.node("login1", Role::Login, 0).await;
    let body = json!({"reason": "disk"});
    for (method, path) in ADMINISTRATION {
        let text = pool.refused(&alice(), method, path, body.clone()).await;
        assert!(
            text.starts_with("403 denied") && text.contains("alice is none"),
            "{path}: {text}"
        );
        let forwarded = via(login, Role::Login, 900, "ada");
        let text = pool.refused(&forwarded, method, path, body.clone()).await;
        assert!(
            text.starts_with("403 denied") && text.contains("controller's own host"),
            "{path}: {text}"
        );
    }
    let _ = node;
    pool.post(&local(900, "ada"), "/v1/nodes/node1/drain", body.clone())
        .await;
    let nodes = pool.get(&alice(), "/v1/nodes").await;
    assert_eq!(column(&nodes, "nodes", "state"), ["IDLE", "IDLE+DRAIN"]);
    assert_eq!(nodes["nodes"][1]["drains"][0]["owner"], "admin:ada");
    pool.post(&root(), "/v1/nodes/node1/resume", json!({}))
        .await;
    let text = pool
        .refused(&root(), "POST", "/v1/nodes/nod1/drain", body)
        .await;
    assert!(text.contains("Did you mean \"node1\"?"), "{text}");
}

#[tokio::test]
async fn operators_administer_through_a_login_node_that_is_marked_admin_and_root_does_not() {
    let pool = Pool::new("operators = [\"ada\", \"root\"]\n");
    let node = pool.node("node1", Role::Compute, 1).await;
    let login = pool.node("login1", Role::Login, 0).await;
    let trusted = |uid, user: &str| Peer {
        admin: true,
        ..via(login, Role::Login, uid, user)
    };
    let body = json!({"reason": "disk"});
    let text = pool
        .refused(
            &via(login, Role::Login, 900, "ada"),
            "POST",
            "/v1/nodes/node1/drain",
            body.clone(),
        )
        .await;
    assert!(
        text.starts_with("403 denied") && text.contains("gadm token node --role login --admin"),
        "{text}"
    );
    pool.post(&trusted(900, "ada"), "/v1/nodes/node1/drain", body.clone())
        .await;
    let nodes = pool.get(&alice(), "/v1/nodes").await;
    assert_eq!(nodes["nodes"][1]["drains"][0]["owner"], "admin:ada");
    let text = pool
        .refused(
            &trusted(1000, "alice"),
            "POST",
            "/v1/nodes/node1/drain",
            body.clone(),
        )
        .await;
    assert!(text.contains("alice is none"), "{text}");
    for (uid, user) in [(0, "root"), (65_534, "nobody")] {
        let text = pool
            .refused(
                &trusted(uid, user),
                "POST",
                "/v1/nodes/node1/drain",
                body.clone(),
            )
            .await;
        assert!(text.contains("not forwarded"), "{text}");
    }
    // The mark of a compute node would be a mistake: there jobs run.
    pool.submit(&local(900, "ada"), json!({})).await;
    pool.post(&root(), "/v1/nodes/node1/resume", json!({}))
        .await;
    pool.pass().await;
    let compute = Peer {
        admin: true,
        ..via(node, Role::Compute, 900, "ada")
    };
    assert!(
        pool.refused(&compute, "POST", "/v1/nodes/node1/drain", body)
            .await
            .starts_with("403 denied")
    );
    let text = pool
        .refused(
            &root(),
            "POST",
            "/v1/tokens",
            json!({"role": "compute", "admin": true}),
        )
        .await;
    assert!(text.contains("--role login"), "{text}");
}

#[tokio::test]
async fn root_the_user_nobody_and_unknown_users_are_not_forwarded() {
    let pool = Pool::new("");
    pool.node("node1", Role::Compute, 1).await;
    let login = pool.node("login1", Role::Login, 0).await;
    for peer in [
        via(login, Role::Login, 0, "root"),
        via(login, Role::Login, 65_534, "nobody"),
        via(login, Role::Login, 7, ""),
    ] {
        for (method, path) in [
            ("GET", "/v1/jobs"),
            ("POST", "/v1/jobs"),
            ("GET", "/metrics"),
        ] {
            let text = pool.refused(&peer, method, path, request(json!({}))).await;
            assert!(text.starts_with("403 denied"), "{peer:?} {path}: {text}");
        }
    }
    let (status, _) = pool.ask_text(None, "GET", "/v1/jobs", String::new()).await;
    assert_eq!(status, 403, "without a peer there is nothing but joining");
    let network = Peer {
        local: false,
        ..alice()
    };
    assert!(
        pool.refused(&network, "GET", "/v1/jobs", Value::Null)
            .await
            .starts_with("403")
    );
    assert_eq!(
        pool.submit(&via(login, Role::Login, 1000, "alice"), json!({}))
            .await,
        1
    );
    assert!(
        pool.refused(&root(), "POST", "/v1/jobs", request(json!({})))
            .await
            .contains("jobs of root")
    );
}

#[tokio::test]
async fn a_compute_node_speaks_only_for_users_with_a_run_there() {
    let pool = Pool::new(
        "[partition.a]\ndefault = true\nnodes = \"node1\"\n[partition.b]\nnodes = \"node2\"\nsubmit_from_jobs = false\n",
    );
    let node1 = pool.node("node1", Role::Compute, 1).await;
    let node2 = pool.node("node2", Role::Compute, 1).await;
    let on_node1 = pool.submit(&alice(), json!({})).await;
    let on_node2 = pool.submit(&alice(), json!({"partition": "b"})).await;
    let waiting = pool.submit(&alice(), json!({"hold": true})).await;
    pool.pass().await;
    pool.running(node1, on_node1).await;
    pool.running(node2, on_node2).await;

    let here = via(node1, Role::Compute, 1000, "alice");
    assert_eq!(
        pool.get(&here, "/v1/jobs?columns=id").await["jobs"]
            .as_array()
            .unwrap()
            .len(),
        3
    );
    let text = pool
        .refused(
            &via(node1, Role::Compute, 1001, "bob"),
            "GET",
            "/v1/jobs",
            Value::Null,
        )
        .await;
    assert!(
        text.contains("bob has no running job on this compute node"),
        "{text}"
    );

    for (path, other) in [
        ("/v1/jobs/hold", waiting),
        ("/v1/jobs/cancel", on_node2),
        ("/v1/jobs/requeue", on_node2),
    ] {
        let text = pool
            .refused(&here, "POST", path, json!({"jobs": [other.to_string()]}))
            .await;
        assert!(
            text.starts_with("403 denied: from a compute node"),
            "{path}: {text}"
        );
    }
    let text = pool
        .refused(
            &here,
            "POST",
            "/v1/jobs/update",
            json!({"job": waiting.to_string(), "change": {"nice": 1}}),
        )
        .await;
    assert!(text.starts_with("403"), "{text}");
    let submitted = pool.submit(&here, json!({"hold": true})).await;
    assert_eq!(submitted, 4);
    let there = via(node2, Role::Compute, 1000, "alice");
    let text = pool
        .refused(&there, "POST", "/v1/jobs", request(json!({})))
        .await;
    assert!(text.contains("submit_from_jobs = false"), "{text}");

    let all = pool
        .post(
            &here,
            "/v1/jobs/cancel",
            json!({"filter": {"user": "alice"}}),
        )
        .await;
    assert_eq!(
        column(&all, "results", "job"),
        [on_node1.to_string()],
        "a filter means only what runs here"
    );
    pool.ended(node1, on_node1, gmodel::ExitCode::killed(15))
        .await;
    let text = pool.refused(&here, "GET", "/v1/jobs", Value::Null).await;
    assert!(
        text.starts_with("403"),
        "when the run is over the node speaks for nobody: {text}"
    );
}

#[tokio::test]
async fn from_a_compute_node_a_user_submits_to_the_partition_of_their_job_there_unless_the_site_says_otherwise()
 {
    let toml = |rule: &str| {
        format!(
            "[partition.a]\ndefault = true\nnodes = \"node1\"\n[partition.b]\nnodes = \"node2\"\n{rule}\n"
        )
    };
    let pool = Pool::new(&toml(""));
    let node2 = pool.node("node2", Role::Compute, 1).await;
    pool.node("node1", Role::Compute, 1).await;
    let run = pool.submit(&alice(), json!({"partition": "b"})).await;
    pool.pass().await;
    pool.running(node2, run).await;
    let here = via(node2, Role::Compute, 1000, "alice");
    for elsewhere in ["", "a", "a,b"] {
        let text = pool
            .refused(
                &here,
                "POST",
                "/v1/jobs",
                request(json!({"partition": elsewhere})),
            )
            .await;
        assert!(
            text.contains("not to a") && text.contains("Try -p b"),
            "{text}"
        );
        let text = pool
            .refused(
                &here,
                "POST",
                "/v1/jobs/dry-run",
                request(json!({"partition": elsewhere})),
            )
            .await;
        assert!(text.starts_with("403"), "{text}");
    }
    pool.submit(&here, json!({"partition": "b"})).await;
    // A user of that name with another uid is another user.
    let other = via(node2, Role::Compute, 1001, "alice");
    let text = pool.refused(&other, "GET", "/v1/jobs", Value::Null).await;
    assert!(text.contains("no running job"), "{text}");
    let login = pool.node("login1", Role::Login, 0).await;
    let other = via(login, Role::Login, 1001, "alice");
    let said = pool
        .post(
            &other,
            "/v1/jobs/cancel",
            json!({"jobs": [run.to_string()]}),
        )
        .await;
    let text = said["results"][0]["error"].as_str().unwrap();
    assert!(
        text.contains("belongs to alice of uid 1000; you are alice of uid 1001"),
        "{text}"
    );
    let text = pool
        .refused(
            &other,
            "GET",
            &format!("/v1/jobs/{run}/script"),
            Value::Null,
        )
        .await;
    assert!(text.starts_with("403"), "{text}");
    let pool = Pool::new(&toml("submit_from_jobs = true"));
    let node2 = pool.node("node2", Role::Compute, 1).await;
    let run = pool.submit(&alice(), json!({"partition": "b"})).await;
    pool.pass().await;
    pool.running(node2, run).await;
    pool.submit(
        &via(node2, Role::Compute, 1000, "alice"),
        json!({"partition": "a", "hold": true}),
    )
    .await;
}

#[tokio::test]
async fn an_operator_is_one_only_where_the_controllers_host_knows_them() {
    let pool = Pool::new("operators = [\"ada\"]\n");
    pool.node("node1", Role::Compute, 1).await;
    let login = pool.node("login1", Role::Login, 0).await;
    let unknown = Peer {
        admin: true,
        known: false,
        ..via(login, Role::Login, 900, "ada")
    };
    let text = pool
        .refused(
            &unknown,
            "POST",
            "/v1/nodes/node1/drain",
            json!({"reason": "disk"}),
        )
        .await;
    assert!(text.starts_with("403"), "{text}");
}

#[tokio::test]
async fn from_a_compute_node_one_task_is_not_the_whole_array() {
    let pool = Pool::new("");
    let node = pool.node("node1", Role::Compute, 1).await;
    let id = pool.submit(&alice(), json!({"array": "1-3%1"})).await;
    pool.pass().await;
    pool.running(node, id).await;
    let here = via(node, Role::Compute, 1000, "alice");
    let text = pool
        .refused(
            &here,
            "POST",
            "/v1/jobs/cancel",
            json!({"jobs": [id.to_string()]}),
        )
        .await;
    assert!(text.contains("not on all of array 1"), "{text}");
    let done = pool
        .post(&here, "/v1/jobs/cancel", json!({"jobs": ["1_1"]}))
        .await;
    assert_eq!(done["results"], json!([{"job": "1_1", "ok": true}]));
}

#[tokio::test]
async fn privacy_hides_the_jobs_of_others() {
    for (privacy, seen_by_bob, seen_by_carol) in [
        ("open", vec!["1", "2", "3"], vec!["1", "2", "3"]),
        ("account", vec!["1", "2"], vec!["3"]),
        ("own", vec!["2"], vec!["3"]),
    ] {
        let pool = Pool::new(&format!("privacy = {privacy:?}\n"));
        let node = pool.node("node1", Role::Compute, 1).await;
        pool.submit(&alice(), json!({"account": "phys"})).await;
        pool.submit(&bob(), json!({"account": "phys"})).await;
        let carol = local(1002, "carol");
        pool.submit(&carol, json!({"account": "chem"})).await;
        pool.pass().await;
        for id in 1..=3 {
            pool.running(node, id).await;
        }
        for (peer, seen) in [
            (&bob(), &seen_by_bob),
            (&carol, &seen_by_carol),
            (&root(), &vec!["1", "2", "3"]),
        ] {
            let list = pool.get(peer, "/v1/jobs?columns=id").await;
            assert_eq!(
                &column(&list, "jobs", "id"),
                seen,
                "{privacy} {}",
                peer.user
            );
            let nodes = pool.get(peer, "/v1/nodes").await;
            assert_eq!(
                &nodes["nodes"][0]["runs"],
                &json!(seen),
                "{privacy} {}",
                peer.user
            );
            let runs = pool.get(peer, "/v1/runs").await;
            assert_eq!(
                &column(&runs, "runs", "id"),
                seen,
                "{privacy} {}",
                peer.user
            );
        }
        if privacy != "open" {
            let text = pool.refused(&carol, "GET", "/v1/jobs/1", Value::Null).await;
            assert!(text.starts_with("404 not_found"), "{text}");
        }
    }
}

#[tokio::test]
async fn anothers_job_can_be_seen_but_not_touched() {
    let pool = Pool::new("");
    pool.submit(&alice(), json!({})).await;
    let done = pool
        .post(&bob(), "/v1/jobs/cancel", json!({"jobs": ["1", "17"]}))
        .await;
    assert_eq!(column(&done, "results", "code"), ["denied", "not_found"]);
    let text = pool
        .refused(
            &bob(),
            "POST",
            "/v1/jobs/cancel",
            json!({"filter": {"user": "alice"}}),
        )
        .await;
    assert!(
        text.starts_with("403 denied: the filter means 1 jobs of others and none of yours (bob)"),
        "{text}"
    );
    for path in ["/v1/jobs/1/log", "/v1/jobs/1/script"] {
        assert!(
            pool.refused(&bob(), "GET", path, Value::Null)
                .await
                .starts_with("403"),
            "{path}"
        );
    }
    assert_eq!(
        pool.get(&alice(), "/v1/jobs/1").await["jobs"][0]["state"],
        "PENDING"
    );
}

/// A body that notes whether anything read it.
struct WatchedBody(Arc<AtomicBool>);

impl hyper::body::Body for WatchedBody {
    type Data = Bytes;
    type Error = Infallible;
    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.store(true, Ordering::Relaxed);
        Poll::Ready(None)
    }
}

#[tokio::test]
async fn what_only_operators_may_is_refused_before_its_body_is_read() {
    let pool = Pool::new("");
    pool.node("node1", Role::Compute, 1).await;
    let posted = ADMINISTRATION
        .iter()
        .filter(|(method, _)| *method == "POST");
    for (method, path) in posted {
        for peer in [alice(), root()] {
            let was_read = Arc::new(AtomicBool::new(false));
            let body = Body::new(WatchedBody(was_read.clone()));
            let (status, _) = pool.ask_text(Some(&peer), method, path, body).await;
            assert_eq!(status == 403, peer.uid != 0, "{path} by {}", peer.user);
            assert_eq!(was_read.load(Ordering::Relaxed), peer.uid == 0, "{path}");
        }
    }
}
