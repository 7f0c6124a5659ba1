//! Requests with tokens: who they are, what they may, and what they are told where they may not.

use super::pool::{Pool, column, local, request, until, via};
use crate::http::Peer;
use axum::http::StatusCode;
use gcore::ctl::{Command, TokenChange};
use gmodel::node::Role;
use serde_json::{Value, json};

/// A user that every machine has: a token is compared with the name service.
fn daemon() -> Peer {
    local(1, "daemon")
}

fn root() -> Peer {
    local(0, "root")
}

const FROM: &str = "192.0.2.1";

/// The text of a new token of `daemon`.
async fn token(pool: &Pool, mut wanted: Value) -> String {
    if wanted["ttl_secs"].is_null() {
        wanted["ttl_secs"] = json!(3600);
    }
    let made = pool.post(&daemon(), "/v1/user-tokens", wanted).await;
    made["token"].as_str().unwrap().to_owned()
}

async fn ask(pool: &Pool, token: &str, method: &str, path: &str, body: Value) -> (u16, Value) {
    let bearer = format!("Bearer {token}");
    let headers = [("authorization", &*bearer)];
    let (status, answer) = pool
        .ask_over_network(FROM, &headers, method, path, body)
        .await;
    (status.as_u16(), answer)
}

fn said(answer: &Value) -> &str {
    answer["error"].as_str().unwrap_or_default()
}

#[tokio::test]
async fn a_token_is_its_user_with_its_scopes_and_nothing_else() {
    let pool = Pool::new("operators = [\"daemon\"]\n");
    let both = token(&pool, json!({"scopes": ["read", "submit"]})).await;
    let (status, answer) = ask(&pool, &both, "POST", "/v1/jobs", request(json!({}))).await;
    assert_eq!(status, 200, "{answer}");
    let (status, jobs) = ask(&pool, &both, "GET", "/v1/jobs", Value::Null).await;
    assert_eq!(status, 200);
    assert_eq!(column(&jobs, "jobs", "user"), ["daemon"]);
    let id = both.split('_').nth(1).unwrap();
    assert_eq!(jobs["jobs"][0]["token"], id);
    // A client outside of the cluster knows no directory there but its user's own.
    let home = nix::unistd::User::from_name("daemon").unwrap().unwrap().dir;
    let at_home = request(json!({"launch": {"work_dir": "~/runs"}}));
    let (_, answer) = ask(&pool, &both, "POST", "/v1/jobs", at_home).await;
    let job = pool
        .get(&daemon(), &format!("/v1/jobs/{}", answer["id"]))
        .await;
    let dir = home.join("runs").to_string_lossy().into_owned();
    assert_eq!(column(&job, "jobs", "work_dir"), [dir]);
    for (method, path, needed) in [
        ("POST", "/v1/jobs/cancel", "scope cancel"),
        ("GET", "/v1/runs", "scope report"),
        ("GET", "/metrics", "scope metrics"),
        ("POST", "/v1/reload", "scope operate"),
        ("POST", "/v1/nodes/n1/drain", "scope operate"),
        ("GET", "/v1/config", "scope operate"),
        ("POST", "/v1/user-tokens", "makes and revokes no tokens"),
        ("GET", "/v1/user-tokens", "makes and revokes no tokens"),
        ("POST", "/v1/jobs/1/steps", "grun, salloc and sattach"),
        ("POST", "/v1/tokens", "makes and revokes no tokens"),
    ] {
        let (status, answer) = ask(&pool, &both, method, path, json!({})).await;
        assert_eq!(status, 403, "{method} {path}: {answer}");
        assert!(said(&answer).contains(needed), "{method} {path}: {answer}");
    }
    // Its user is an operator, and the token is none: another user's job is not cancelled.
    let cancel = token(&pool, json!({"scopes": ["cancel"]})).await;
    let other = pool.submit(&local(2, "bin"), json!({})).await;
    let body = json!({"jobs": [other.to_string()]});
    let (_, answer) = ask(&pool, &cancel, "POST", "/v1/jobs/cancel", body).await;
    let text = answer.to_string();
    assert!(text.contains("belongs to bin"), "{text}");
    let (status, answer) = ask(&pool, &both, "GET", "/v1/no-such", Value::Null).await;
    assert_eq!(status, 404, "{answer}");
}

#[tokio::test]
async fn a_token_that_is_not_good_is_told_so_and_no_more() {
    let pool = Pool::new("");
    let good = token(&pool, json!({"scopes": ["read"]})).await;
    let parts: Vec<&str> = good.split('_').collect();
    let wrong_secret = good.replace(parts[2], &"0".repeat(64));
    let wrong_id = good.replace(parts[1], "00000000");
    let get = async |token: &str| ask(&pool, token, "GET", "/v1/jobs", Value::Null).await;
    let (status, of_secret) = get(&wrong_secret).await;
    assert_eq!(status, 401);
    let (status, of_id) = get(&wrong_id).await;
    assert_eq!(
        (status, &of_secret),
        (401, &of_id),
        "nothing tells which ids there are"
    );
    let (status, answer) = get("eyJhbGciOi").await;
    assert_eq!(status, 401);
    assert!(said(&answer).contains("begin with gptok_"), "{answer}");
    assert_eq!(get(&good).await.0, 200);

    let path = format!("/v1/user-tokens/{}/revoke", parts[1]);
    pool.post(&daemon(), &path, json!({})).await;
    let (status, answer) = get(&good).await;
    assert_eq!(status, 401);
    assert!(said(&answer).contains("was revoked by daemon"), "{answer}");
    assert!(!answer.to_string().contains(parts[2]), "{answer}");

    let short = token(&pool, json!({"scopes": ["read"], "ttl_secs": 1})).await;
    let expired = until("the token expires", async || {
        let (status, answer) = get(&short).await;
        (status == 401).then_some(answer)
    });
    let answer = expired.await;
    assert!(said(&answer).contains("expired at"), "{answer}");
    let rows = pool.get(&daemon(), "/v1/user-tokens?all=true").await;
    assert_eq!(column(&rows, "tokens", "state"), ["revoked", "expired"]);
    assert!(!rows.to_string().contains("hash"), "{rows}");
    let live = pool.get(&daemon(), "/v1/user-tokens").await;
    assert_eq!(live["tokens"], json!([]));
}

#[tokio::test]
async fn guesses_from_one_address_are_slowed_while_good_tokens_go_through() {
    let pool = Pool::new("");
    let good = token(&pool, json!({"scopes": ["read"]})).await;
    let bad = good.replace(good.split('_').nth(2).unwrap(), &"0".repeat(64));
    let mut statuses = Vec::new();
    for _ in 0..25 {
        statuses.push(ask(&pool, &bad, "GET", "/v1/jobs", Value::Null).await.0);
    }
    assert_eq!(statuses.iter().filter(|status| **status == 401).count(), 20);
    assert_eq!(statuses.last(), Some(&429));
    assert_eq!(
        ask(&pool, &good, "GET", "/v1/jobs", Value::Null).await.0,
        200
    );
    let mut last = 200;
    for _ in 0..700 {
        last = ask(&pool, &good, "GET", "/v1/cluster", Value::Null).await.0;
        if last != 200 {
            break;
        }
    }
    assert_eq!(last, 429, "a token has a rate");
}

#[tokio::test]
async fn a_token_narrows_what_is_seen_to_its_accounts_and_partitions() {
    let pool = Pool::new("[partition.main]\ndefault = true\n[partition.other]\n");
    for account in ["nlp", "vision"] {
        let body = json!({"create": true, "change": {"description": account}});
        let (status, answer) = pool
            .ask(&root(), "POST", &format!("/v1/accounts/{account}"), body)
            .await;
        assert_eq!(status, StatusCode::OK, "{answer}");
    }
    for (account, partition) in [("nlp", "main"), ("nlp", "other"), ("vision", "main")] {
        let spec = json!({"account": account, "partition": partition});
        pool.submit(&daemon(), spec).await;
    }
    let scopes = json!(["read", "submit", "cancel"]);
    let narrow = token(
        &pool,
        json!({"scopes": scopes, "accounts": ["nlp"], "partitions": ["main"]}),
    )
    .await;
    let (_, jobs) = ask(&pool, &narrow, "GET", "/v1/jobs", Value::Null).await;
    assert_eq!(column(&jobs, "jobs", "id"), ["1"]);
    assert_eq!(
        ask(&pool, &narrow, "GET", "/v1/jobs/1", Value::Null)
            .await
            .0,
        200
    );
    assert_eq!(
        ask(&pool, &narrow, "GET", "/v1/jobs/3", Value::Null)
            .await
            .0,
        404
    );
    let (status, answer) = ask(&pool, &narrow, "GET", "/v1/jobs/2/script", Value::Null).await;
    assert_eq!(status, 403);
    assert!(
        said(&answer).contains("is for account nlp and partition main"),
        "{answer}"
    );
    let all = json!({"filter": {"user": "daemon"}});
    let (status, answer) = ask(&pool, &narrow, "POST", "/v1/jobs/cancel", all).await;
    assert_eq!(
        (status, answer["results"].as_array().unwrap().len()),
        (200, 1),
        "{answer}"
    );
    let left = pool.get(&daemon(), "/v1/jobs").await;
    assert_eq!(left["jobs"].as_array().unwrap().len(), 2, "{left}");
    // The one account and partition of a token are those of its jobs.
    let (_, answer) = ask(&pool, &narrow, "POST", "/v1/jobs", request(json!({}))).await;
    let job = pool
        .get(&daemon(), &format!("/v1/jobs/{}", answer["id"]))
        .await;
    assert_eq!(column(&job, "jobs", "account"), ["nlp"]);
}

#[tokio::test]
async fn slurms_header_is_a_way_in_for_slurms_routes() {
    let pool = Pool::new("");
    let text = token(&pool, json!({"scopes": ["read"]})).await;
    let path = "/slurm/v0.0.43/jobs";
    let ask = async |headers: &[(&str, &str)], method: &str, path: &str| {
        pool.ask_over_network(FROM, headers, method, path, Value::Null)
            .await
    };
    let named = [
        ("x-slurm-user-token", &*text),
        ("x-slurm-user-name", "daemon"),
    ];
    let (status, answer) = ask(&named, "GET", path).await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(ask(&named[..1], "GET", path).await.0, 200);
    let (status, answer) = ask(&named, "DELETE", "/slurm/v0.0.43/job/1").await;
    // Slurm answers so where a right is missing.
    assert_eq!(status, 422, "{answer}");
    assert!(answer.to_string().contains("scope cancel"), "{answer}");
    let other = [("x-slurm-user-token", &*text), ("x-slurm-user-name", "bin")];
    let (status, answer) = ask(&other, "GET", path).await;
    assert_eq!(status, 401, "{answer}");
}

#[tokio::test]
async fn an_operators_token_operates_as_long_as_its_user_is_an_operator() {
    let pool = Pool::new("operators = [\"daemon\"]\n");
    let wanted = json!({"user": "daemon", "scopes": ["operate", "read"], "ttl_secs": 3600});
    let made = pool.post(&root(), "/v1/user-tokens", wanted).await;
    let text = made["token"].as_str().unwrap();
    assert_eq!(made["controller"], "https://127.0.0.1:7000");
    let config = async || ask(&pool, text, "GET", "/v1/config", Value::Null).await;
    assert_eq!(config().await.0, 200);
    super::pool::write_config(pool.dir.path(), "operators = [\"bin\"]\n");
    pool.app.reload(&pool.core).await.unwrap();
    let (status, answer) = config().await;
    assert_eq!(status, 403, "{answer}");
    let refused = pool
        .refused(
            &daemon(),
            "POST",
            "/v1/user-tokens",
            json!({"user": "bin", "ttl_secs": 60}),
        )
        .await;
    assert!(refused.starts_with("403"), "{refused}");
    let unknown = json!({"user": "no-such-user", "scopes": ["read"], "ttl_secs": 60});
    let refused = pool
        .refused(&root(), "POST", "/v1/user-tokens", unknown)
        .await;
    assert!(refused.starts_with("404"), "{refused}");
}

#[tokio::test]
async fn what_a_tokens_job_submits_from_its_node_counts_against_the_token_too() {
    let pool = Pool::new("[partition.main]\ndefault = true\nsubmit_from_jobs = true\n");
    let node = pool.node("node1", Role::Compute, 2).await;
    let capped = token(&pool, json!({"scopes": ["submit"], "jobs": 2})).await;
    let submit = request(json!({}));
    let (status, answer) = ask(&pool, &capped, "POST", "/v1/jobs", submit.clone()).await;
    assert_eq!(status, 200, "{answer}");
    pool.pass().await;
    pool.running(node, 1).await;
    let inside = via(node, Role::Compute, 1, "daemon");
    pool.post(&inside, "/v1/jobs", submit.clone()).await;
    let refused = pool.refused(&inside, "POST", "/v1/jobs", submit).await;
    assert!(refused.contains("may have 2 jobs"), "{refused}");
    let wanted = json!({"scopes": ["read"], "ttl_secs": 60});
    let refused = pool
        .refused(&inside, "POST", "/v1/user-tokens", wanted)
        .await;
    assert!(refused.contains("a token makes no tokens"), "{refused}");
}

#[tokio::test]
async fn its_last_day_of_use_is_noted_once_and_survives() {
    let pool = Pool::new("");
    let text = token(&pool, json!({"scopes": ["read"]})).await;
    let id = text.split('_').nth(1).unwrap().parse().unwrap();
    for _ in 0..5 {
        ask(&pool, &text, "GET", "/v1/jobs", Value::Null).await;
    }
    let day = until("the day is noted", async || {
        pool.core.view().await.tokens.users[&id].used_on
    });
    assert_eq!(day.await.0 % 86_400_000, 0);
    let revoke = Command::Token {
        change: TokenChange::Revoke(id),
    };
    let nobody = gcore::ctl::Actor::default();
    assert!(pool.core.command(nobody, revoke).await.is_err());
}
