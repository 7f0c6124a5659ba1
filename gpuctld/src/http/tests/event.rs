//! Which events are seen by which readers.

use super::pool::{Pool, local};
use crate::http::Peer;
use gmodel::node::Role;
use serde_json::{Value, json};

fn rows(answer: &Value) -> Vec<Value> {
    let text = answer
        .as_str()
        .map_or_else(|| answer.to_string(), str::to_owned);
    let rows = text.lines().map(|line| serde_json::from_str(line).unwrap());
    rows.filter(|row: &Value| row["kind"] != "cursor").collect()
}

async fn seen_by(pool: &Pool, peer: &Peer, query: &str) -> Vec<Value> {
    let path = format!("/v1/events?after=0{query}");
    rows(&pool.get(peer, &path).await)
}

fn kinds(rows: &[Value]) -> Vec<&str> {
    rows.iter().filter_map(|row| row["kind"].as_str()).collect()
}

#[tokio::test]
async fn events_of_jobs_are_seen_by_those_who_see_the_job_and_edits_by_operators() {
    let pool = Pool::new("privacy = \"own\"\n");
    let (root, ada, bob) = (local(0, "root"), local(1, "daemon"), local(2, "bin"));
    for account in ["nlp", "vision"] {
        let body = json!({"create": true, "change": {"description": account}});
        pool.post(&root, &format!("/v1/accounts/{account}"), body)
            .await;
    }
    let window = json!({"create": true, "change": {"nodes": "n1", "start": "2030-01-01T00:00:00Z", "duration_secs": 3600, "users": ["daemon"]}});
    pool.node("n1", Role::Compute, 0).await;
    pool.post(&root, "/v1/reservations/class", window).await;
    let of_ada = pool.submit(&ada, json!({"account": "nlp"})).await;
    pool.submit(&ada, json!({"account": "vision"})).await;
    let of_bob = pool.submit(&bob, json!({"account": "nlp"})).await;

    let seen = seen_by(&pool, &bob, "&kinds=job").await;
    assert_eq!(seen.len(), 1, "{seen:?}");
    assert_eq!(seen[0]["job_id"], of_bob);
    let seen = seen_by(&pool, &bob, "").await;
    let told = kinds(&seen);
    assert!(
        told.contains(&"node_up") && told.contains(&"reservation_changed"),
        "{told:?}"
    );
    assert!(
        !told.contains(&"policy_changed") && !told.contains(&"cluster_configured"),
        "{told:?}"
    );
    let seen = seen_by(&pool, &root, "").await;
    let told = kinds(&seen);
    assert_eq!(
        told.iter()
            .filter(|kind| **kind == "policy_changed")
            .count(),
        2,
        "{told:?}"
    );
    assert!(told.contains(&"cluster_configured"), "{told:?}");
    assert_eq!(seen_by(&pool, &root, "&account=nlp").await.len(), 2);
    assert_eq!(
        seen_by(&pool, &bob, &format!("&job={of_ada}")).await.len(),
        0
    );

    // A token sees its accounts alone, also of its own user's jobs.
    let wanted = json!({"scopes": ["read"], "accounts": ["vision"], "ttl_secs": 3600});
    let made = pool.post(&ada, "/v1/user-tokens", wanted).await;
    let bearer = format!("Bearer {}", made["token"].as_str().unwrap());
    let ask = async |headers: &[(&str, &str)], path: &str| {
        pool.ask_over_network("192.0.2.1", headers, "GET", path, Value::Null)
            .await
    };
    let headers = [("authorization", bearer.as_str())];
    let (status, answer) = ask(&headers, "/v1/events?after=0&kinds=job,policy").await;
    assert_eq!(status.as_u16(), 200, "{answer}");
    let seen = rows(&answer);
    assert_eq!(seen.len(), 1, "{seen:?}");
    assert_eq!(seen[0]["account"], "vision");
    // And one without the scope nothing.
    let wanted = json!({"scopes": ["submit"], "ttl_secs": 3600});
    let made = pool.post(&ada, "/v1/user-tokens", wanted).await;
    let bearer = format!("Bearer {}", made["token"].as_str().unwrap());
    let (status, answer) = ask(&[("authorization", &bearer)], "/v1/events").await;
    assert_eq!(status.as_u16(), 403, "{answer}");
}

#[tokio::test]
async fn a_job_is_told_from_its_hold_to_its_cancelling_with_what_was_changed() {
    let pool = Pool::new("");
    let ada = local(1, "daemon");
    let job = pool
        .submit(&ada, json!({"hold": true, "name": "train"}))
        .await;
    let body = json!({"job": job.to_string(), "change": {"time_limit_secs": 600}});
    pool.ask(&ada, "POST", "/v1/jobs/update", body).await;
    let targets = json!({"jobs": [job.to_string()]});
    pool.post(&ada, "/v1/jobs/release", targets.clone()).await;
    pool.post(&ada, "/v1/jobs/hold", targets.clone()).await;
    pool.post(&ada, "/v1/jobs/cancel", targets).await;
    let seen = seen_by(&pool, &ada, &format!("&job={job}")).await;
    let told = kinds(&seen);
    assert_eq!(told.first(), Some(&"job_submitted"));
    assert_eq!(
        told[told.len() - 3..],
        ["job_released", "job_held", "job_cancelled"]
    );
    assert_eq!(seen.last().unwrap()["reason"], "cancelled");
    assert_eq!(seen.last().unwrap()["by"], "daemon");
    // What a job brought along is no part of an event.
    let text = serde_json::to_string(&seen).unwrap();
    for secret in ["environment", "script", "client_key", "PATH"] {
        assert!(!text.contains(secret), "{secret} in {text}");
    }
}
