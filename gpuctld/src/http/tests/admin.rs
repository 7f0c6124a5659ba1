//! Diagnosis, reload, backup, tokens and metrics.

use super::pool::{Pool, column, local, write_config};
use crate::http::Peer;
use gmodel::node::Role;
use serde_json::{Value, json};

fn root() -> Peer {
    local(0, "root")
}

#[tokio::test]
async fn a_bad_file_is_refused_as_a_whole_and_a_good_one_says_what_waits_for_a_restart() {
    let pool = Pool::new("kill_grace_secs = 5\n");
    write_config(
        pool.dir.path(),
        "kill_grace_secs = 9\nprivcy = \"own\"\n[partition.a]\nstate = \"UPP\"\n",
    );
    let text = pool
        .refused(&root(), "POST", "/v1/reload", Value::Null)
        .await;
    assert!(
        text.contains("did you mean \"privacy\"?") && text.contains("did you mean \"UP\"?"),
        "{text}"
    );
    assert_eq!(pool.core.view().await.config.kill_grace_secs, 5);
    write_config(
        pool.dir.path(),
        "kill_grace_secs = 9\ncluster = \"other\"\nmin_free = \"1M\"\n[partition.a]\n",
    );
    let done = pool.post(&root(), "/v1/reload", Value::Null).await;
    assert_eq!(
        done["notes"],
        json!(["cluster has changed and takes effect when gpuctld is restarted"])
    );
    let config = pool.get(&root(), "/v1/config").await;
    assert_eq!(
        (
            &config["cluster"]["kill_grace_secs"],
            &config["cluster"]["name"]
        ),
        (&json!(9), &json!("gpupool"))
    );
    assert_eq!(pool.core.view().await.config.kill_grace_secs, 9);
    assert_eq!(
        column(
            &pool.get(&root(), "/v1/partitions").await,
            "partitions",
            "name"
        ),
        ["a"]
    );
}

#[tokio::test]
async fn any_user_may_ask_for_the_clusters_name() {
    let pool = Pool::new("privacy = \"own\"\nmin_job_age_secs = 90\n");
    let cluster = pool.get(&local(1000, "alice"), "/v1/cluster").await;
    assert_eq!(
        (&cluster["name"], &cluster["min_job_age_secs"]),
        (&json!("gpupool"), &json!(90))
    );
    assert!(
        pool.refused(&root(), "GET", "/v1/cluster?name=x", Value::Null)
            .await
            .contains("name")
    );
}

#[tokio::test]
async fn partitions_and_nodes_are_listed_in_the_order_of_people() {
    let pool = Pool::new("[partition.p]\nnodes = \"n[2,10]\"\nmax_time = \"2:00:00\"\n");
    for name in ["n10", "n2", "login"] {
        pool.node(
            name,
            if name == "login" {
                Role::Login
            } else {
                Role::Compute
            },
            2,
        )
        .await;
    }
    let list = pool.get(&root(), "/v1/partitions").await;
    let row = &list["partitions"][0];
    assert_eq!(
        (&row["nodes"], &row["is_default"], &row["max_time_secs"]),
        (&json!(["n2", "n10"]), &json!(true), &json!(7200))
    );
    let nodes = pool.get(&root(), "/v1/nodes").await;
    assert_eq!(column(&nodes, "nodes", "name"), ["login", "n2", "n10"]);
    assert_eq!(
        (
            &nodes["nodes"][1]["gpu_summary"],
            &nodes["nodes"][1]["gpus"][0]["minor"]
        ),
        (&json!("h100:2"), &json!(7))
    );
}

#[tokio::test]
async fn a_token_carries_the_ca_and_joining_needs_no_peer() {
    let pool = Pool::new("");
    let reply = pool
        .post(
            &root(),
            "/v1/tokens",
            json!({"role": "login", "name": "l1", "ttl_secs": 99_999_999}),
        )
        .await;
    let (secret, ca) = reply["token"].as_str().unwrap().split_once('.').unwrap();
    assert_eq!(
        (secret.len(), ca.len(), &reply["controller"]),
        (64, 64, &json!("127.0.0.1:7000"))
    );
    let expires = gmodel::time::parse_rfc3339(reply["expires"].as_str().unwrap()).unwrap();
    assert!(
        expires <= crate::core_thread::now().plus_secs(7 * 86_400),
        "capped at 7 days"
    );
    let (status, answer) = pool
        .ask_text(
            None,
            "POST",
            "/v1/join",
            json!({"secret": secret, "csr_pem": "junk"}).to_string(),
        )
        .await;
    assert_eq!(
        (status.as_u16(), &answer["code"]),
        (400, &json!("invalid")),
        "the token is not spent: {answer}"
    );
    assert_eq!(pool.core.view().await.tokens.joins.len(), 1);
    let (status, _) = pool
        .ask_text(None, "POST", "/v1/renew", json!({}).to_string())
        .await;
    assert_eq!(status, 403);
}

#[tokio::test]
async fn diagnosis_check_backup_and_metrics_tell_the_state() {
    let pool = Pool::new("");
    pool.node("n1", Role::Compute, 4).await;
    let alice = local(1000, "alice");
    pool.submit(&alice, json!({"request": {"gpus": "1"}})).await;
    pool.submit(&alice, json!({"array": "1-10", "hold": true}))
        .await;
    pool.pass().await;
    let diag = pool.get(&alice, "/v1/diag").await;
    assert_eq!(
        (&diag["jobs"]["RUNNING"], &diag["jobs"]["PENDING"]),
        (&json!(1), &json!(10))
    );
    assert_eq!(diag["gpus"]["h100"], json!({"allocated": 1.0, "idle": 3.0}));
    assert_eq!(diag["requests"]["/v1/jobs"]["count"], 2);
    let check = pool.get(&root(), "/v1/check").await;
    assert_eq!(
        (&check["ok"], &check["violations"]),
        (&json!(true), &json!([]))
    );

    let text = pool.get(&alice, "/metrics").await;
    let text = text.as_str().unwrap();
    for line in [
        "gpupool_jobs{state=\"RUNNING\"} 1",
        "gpupool_jobs{state=\"PENDING\"} 10",
        "gpupool_gpus{type=\"h100\",state=\"idle\"} 3",
        "gpupool_nodes{state=\"MIXED\"} 1",
        "gpupool_partition_gpus{partition=\"main\",type=\"h100\",state=\"idle\"} 3",
        "gpupool_pending_jobs{partition=\"main\",reason=\"JobHeldUser\"} 10",
        "gpupool_oldest_pending_seconds{partition=\"main\"} 0",
        "gpupool_wait_seconds_count{partition=\"main\",class=\"guaranteed\"} 1",
        "gpupool_account_gpus{account=\"default\",type=\"h100\",class=\"guaranteed\"} 1",
        "gpupool_request_seconds_count{route=\"/v1/jobs\"} 2",
        "# TYPE gpupool_commit_seconds histogram",
    ] {
        assert!(
            text.lines().any(|have| have == line),
            "{line} is not in:\n{text}"
        );
    }
    assert!(
        text.contains("gpupool_job_gpu_info{job=\"1\",user=\"alice\",account=\"default\",partition=\"main\",node=\"n1\""),
        "{text}"
    );
    for metric in text.lines().filter(|line| !line.starts_with('#')) {
        let value = metric.rsplit(' ').next().unwrap();
        assert!(value.parse::<f64>().is_ok(), "{metric}");
    }

    let to = pool.dir.path().join("backup.db");
    pool.post(&root(), "/v1/backup", json!({"path": to})).await;
    assert!(std::fs::metadata(&to).unwrap().len() > 0);
    assert!(
        pool.refused(&root(), "POST", "/v1/backup", json!({"path": to}))
            .await
            .starts_with("409 conflict")
    );
    assert!(
        pool.refused(&root(), "POST", "/v1/backup", json!({"path": "b.db"}))
            .await
            .contains("not an absolute path")
    );
}
