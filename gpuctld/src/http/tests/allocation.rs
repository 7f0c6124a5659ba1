//! Allocations over the API: how a client waits, stays and ends.

use super::pool::{Pool, local, request, until};
use crate::attendance::look;
use crate::http::Peer;
use expect_test::expect;
use gmodel::node::Role;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

fn alice() -> Peer {
    local(1000, "alice")
}

async fn allocation(pool: &Pool, request: Value) -> u64 {
    let body = json!({"spec": {"allocation": true, "launch": {"argv": ["hostname"], "work_dir": "/tmp"}, "request": request}});
    pool.post(&alice(), "/v1/jobs", body).await["id"]
        .as_u64()
        .unwrap()
}

async fn attend(pool: &Pool, job: u64, body: Value) -> Value {
    pool.post(&alice(), &format!("/v1/jobs/{job}/attend"), body)
        .await
}

async fn state_of(pool: &Pool, job: u64) -> String {
    let job = pool.get(&alice(), &format!("/v1/jobs/{job}")).await["jobs"][0].clone();
    let text = |key: &str| job[key].as_str().unwrap_or_default().to_owned();
    format!(
        "{} {} {}",
        text("state"),
        job["exit_code"]["code"],
        text("end_text")
    )
}

#[tokio::test]
async fn a_client_waits_until_its_nodes_take_steps_and_ends_the_allocation_with_its_code() {
    let pool = Pool::new("");
    let node = pool.node("node1", Role::Compute, 4).await;
    let id = allocation(&pool, json!({"gpus": "h100:2", "ntasks": 2})).await;
    let first = attend(&pool, id, json!({})).await;
    assert_eq!(
        (&first["state"], &first["granted"]),
        (&json!("PENDING"), &json!(false))
    );
    let known = json!({"state": first["state"], "reason": first["reason"], "granted": false});
    let waiting = attend(&pool, id, json!({"known": known, "wait_secs": 10}));
    let asked = Instant::now();
    let (granted, ()) = tokio::join!(waiting, pool.pass());
    assert!(
        asked.elapsed() < Duration::from_secs(9),
        "it answers as soon as there is news"
    );
    assert_eq!(granted["granted"], true, "{granted}");
    assert_eq!(granted["nodelist"], "node1");
    let environment: Vec<&str> = granted["environment"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_str)
        .collect();
    for variable in [
        "SLURM_JOB_ID=1",
        "GSUB_JOB_NODELIST=node1",
        "SLURM_NTASKS=2",
        "SLURM_JOB_UID=1000",
    ] {
        assert!(
            environment.contains(&variable),
            "{variable} in {environment:?}"
        );
    }
    pool.running(node, id).await;
    let end = |code: u8| json!({"exit_code": {"code": code, "signal": 0}});
    pool.post(&alice(), &format!("/v1/jobs/{id}/end"), end(3))
        .await;
    pool.post(&alice(), &format!("/v1/jobs/{id}/end"), end(4))
        .await;
    pool.stopped(node, id).await;
    assert_eq!(state_of(&pool, id).await, "FAILED 3 ");
    let log = pool
        .get(&alice(), &format!("/v1/jobs/{id}/log"))
        .await
        .to_string();
    assert!(log.contains("allocation ended by alice"), "{log}");
    let shown = pool.get(&alice(), &format!("/v1/jobs/{id}")).await;
    assert_eq!(shown["jobs"][0]["allocation"], true);
}

#[tokio::test]
async fn what_is_no_allocation_of_the_callers_is_refused() {
    let pool = Pool::new("");
    pool.node("node1", Role::Compute, 4).await;
    let id = allocation(&pool, json!({})).await;
    let script = pool.submit(&alice(), json!({})).await;
    let bob = local(1001, "bob");
    let refused = async |peer: &Peer, path: String, body: Value| {
        pool.refused(peer, "POST", &path, body).await
    };
    let end = json!({"exit_code": {"code": 0, "signal": 0}});
    let told = [
        refused(&bob, format!("/v1/jobs/{id}/attend"), json!({})).await,
        refused(&bob, format!("/v1/jobs/{id}/end"), end.clone()).await,
        refused(&alice(), format!("/v1/jobs/{script}/attend"), json!({})).await,
        refused(&alice(), format!("/v1/jobs/{script}/end"), end.clone()).await,
        refused(&alice(), "/v1/jobs/99/attend".into(), json!({})).await,
        refused(&alice(), "/v1/jobs/9_1/end".into(), end).await,
        refused(&alice(), "/v1/jobs".into(), {
            let mut body = request(json!({}));
            body["spec"]["allocation"] = json!(true);
            body
        })
        .await,
        refused(
            &alice(),
            "/v1/jobs".into(),
            json!({"spec": {"allocation": true, "array": "0-3", "launch": {"work_dir": "/tmp"}}}),
        )
        .await,
    ];
    expect![[r#"
        403 denied: the client of job 1 is for its owner alice and operators
        403 denied: job 1 belongs to alice; you are bob. Ask them or an operator.
        409 conflict: job 2 has a script and needs no client
        409 conflict: job 2 has a script, and ends with it. To cancel it: gdel 2
        404 not_found: there is no job 99 in the queue any more: gacct -j 99
        400 invalid: "9_1" names no allocation. Write its number: 17
        400 invalid: an allocation has no script: its client starts steps in it
        400 invalid: an allocation is one job: an array has a script for its tasks. Submit it with gsub"#]].assert_eq(&told.join("\n"));
}

#[tokio::test]
async fn an_allocation_ends_when_its_client_was_silent_for_the_detached_time() {
    let pool = Pool::new(
        "[partition.main]\ndefault = true\ndetached_time = 0\n[partition.slow]\ndetached_time = 3600\n",
    );
    let node = pool.node("node1", Role::Compute, 4).await;
    let left = allocation(&pool, json!({})).await;
    let attended = allocation(&pool, json!({})).await;
    let body =
        json!({"spec": {"allocation": true, "partition": "slow", "launch": {"work_dir": "/tmp"}}});
    let patient = pool.post(&alice(), "/v1/jobs", body).await["id"]
        .as_u64()
        .unwrap();
    pool.pass().await;
    for id in [left, attended, patient] {
        pool.running(node, id).await;
    }
    let known = attend(&pool, attended, json!({})).await;
    let known =
        json!({"state": known["state"], "reason": known["reason"], "granted": known["granted"]});
    let stays = attend(&pool, attended, json!({"known": known, "wait_secs": 4}));
    let looks = until("the client is gone", async || {
        look(&pool.core, pool.app.attendance()).await;
        let state = pool.core.view().await;
        let stopped = |id: u64| {
            state
                .runs
                .values()
                .any(|run| run.id.job.0 == id && run.stop.is_some())
        };
        assert!(!stopped(attended), "its client waits for an answer");
        assert!(!stopped(patient));
        stopped(left).then_some(())
    });
    tokio::join!(stays, looks);
    pool.stopped(node, left).await;
    assert_eq!(
        state_of(&pool, left).await,
        "CANCELLED 0 its client is gone"
    );
}
