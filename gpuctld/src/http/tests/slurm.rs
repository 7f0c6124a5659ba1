//! Slurm's REST API: each route, who may do what, and what is refused.

use super::pool::{Pool, local};
use crate::http::Peer;
use axum::http::StatusCode;
use gmodel::node::Role;
use serde_json::{Value, json};

fn alice() -> Peer {
    local(1000, "alice")
}
fn bob() -> Peer {
    local(1001, "bob")
}
fn root() -> Peer {
    local(0, "root")
}

fn description() -> Value {
    json!({"script": "#!/bin/sh\ntrue\n", "job": {"name": "train", "current_working_directory": "/tmp", "environment": ["A=1"],
        "tasks": 1, "time_limit": {"set": true, "infinite": false, "number": 5}, "tres_per_job": "gres/gpu:1"}})
}

async fn submitted(pool: &Pool, peer: &Peer) -> u64 {
    let answer = pool
        .post(peer, "/slurm/v0.0.43/job/submit", description())
        .await;
    answer["job_id"].as_u64().unwrap()
}

/// Status, number and our sentence.
async fn refused(pool: &Pool, peer: &Peer, method: &str, path: &str, body: Value) -> String {
    let (status, answer) = pool.ask(peer, method, path, body).await;
    let error = &answer["errors"][0];
    assert!(error["source"].is_string(), "{path}: {status} {answer}");
    format!(
        "{} {} {}",
        status.as_u16(),
        error["error_number"],
        error["description"].as_str().unwrap()
    )
}

#[tokio::test]
async fn every_route_for_reading_answers_its_records() {
    let pool = Pool::new("");
    pool.node("node1", Role::Compute, 2).await;
    let id = submitted(&pool, &alice()).await;
    let cases = [
        ("slurm", "jobs/", "jobs"),
        ("slurm", "jobs/state/", "jobs"),
        ("slurm", "job/1", "jobs"),
        ("slurm", "nodes/", "nodes"),
        ("slurm", "node/node1", "nodes"),
        ("slurm", "partitions/", "partitions"),
        ("slurm", "partition/main", "partitions"),
        ("slurm", "reservations/", "reservations"),
        ("slurm", "ping/", "pings"),
        ("slurm", "diag/", "statistics"),
        ("slurm", "licenses/", "licenses"),
        ("slurm", "shares", "shares"),
        ("slurmdb", "jobs/", "jobs"),
        ("slurmdb", "job/1", "jobs"),
        ("slurmdb", "accounts/", "accounts"),
        ("slurmdb", "associations/", "associations"),
        ("slurmdb", "association/", "associations"),
        ("slurmdb", "users/", "users"),
        ("slurmdb", "qos/", "qos"),
        ("slurmdb", "qos/normal", "qos"),
        ("slurmdb", "clusters/", "clusters"),
        ("slurmdb", "tres/", "TRES"),
        ("slurmdb", "config", "tres"),
    ];
    for (root, path, key) in cases {
        for version in ["v0.0.41", "v0.0.45"] {
            let path = format!("/{root}/{version}/{path}");
            let answer = pool.get(&alice(), &path).await;
            assert!(!answer[key].is_null(), "{path}: {answer}");
            let parser = format!("data_parser/{version}");
            assert_eq!(answer["meta"]["plugin"]["data_parser"], json!(parser));
            assert_eq!(answer["errors"], json!([]), "{path}");
        }
    }
    let jobs = pool.get(&alice(), "/slurm/v0.0.43/jobs/").await;
    let job = &jobs["jobs"][0];
    assert_eq!(
        (&job["job_id"], &job["name"]),
        (&json!(id), &json!("train"))
    );
    assert_eq!(job["tres_per_job"], json!("gres/gpu:1"));
    assert_eq!(job["time_limit"]["number"], json!(5));
    assert_eq!(jobs["meta"]["client"]["user"], json!("alice"));
    let states = pool.get(&alice(), "/slurm/v0.0.43/jobs/state").await;
    assert_eq!(
        states["jobs"],
        json!([{"job_id": "1", "state": ["PENDING"]}])
    );
    let paths = &pool.get(&alice(), "/openapi/v3").await["paths"];
    assert!(paths["/slurm/v0.0.44/job/{job_id}"]["delete"].is_object());
    assert_eq!(pool.get(&alice(), "/openapi").await["paths"], *paths);
}

#[tokio::test]
async fn what_is_not_there_is_refused_in_slurms_shape() {
    let pool = Pool::new("");
    pool.node("node1", Role::Compute, 2).await;
    for (method, path, said) in [
        (
            "GET",
            "/slurm/v0.0.30/jobs/",
            "404 9006 there is no version \"v0.0.30\" here. Served are v0.0.41,",
        ),
        (
            "GET",
            "/slurm/v0.0.43/nope/",
            "404 9006 there is no such path",
        ),
        (
            "PUT",
            "/slurm/v0.0.43/jobs/",
            "405 9007 PUT is not done there. It takes GET, DELETE",
        ),
        (
            "GET",
            "/slurm/v0.0.43/job/77",
            "404 2017 there is no job 77",
        ),
        ("GET", "/slurm/v0.0.43/node/nope", "422 2018 there is none"),
        (
            "GET",
            "/slurm/v0.0.43/partition/nope",
            "422 2000 there is none",
        ),
        ("GET", "/slurmdb/v0.0.43/qos/nope", "422 2066 there is none"),
        (
            "GET",
            "/slurmdb/v0.0.43/jobs/?cpus_max=2",
            "501 2036 cpus_max chooses nothing",
        ),
        (
            "GET",
            "/slurmdb/v0.0.43/jobs/?start_time=soon",
            "400 9001 start_time=\"soon\"",
        ),
        (
            "POST",
            "/slurm/v0.0.43/job/allocate",
            "501 2036 an allocation lives as long",
        ),
        ("DELETE", "/slurm/v0.0.43/job/77", "404 2017 "),
        (
            "DELETE",
            "/slurm/v0.0.43/job/77?signal=BOO",
            "400 9001 signal: ",
        ),
    ] {
        let text = refused(&pool, &alice(), method, path, json!({})).await;
        assert!(text.starts_with(said), "{path}: {text}");
    }
    for path in ["nodes/", "jobs/"] {
        let odd = pool
            .get(&alice(), &format!("/slurm/v0.0.43/{path}?colour=red"))
            .await;
        let warning = odd["warnings"][0]["description"].as_str().unwrap();
        assert!(
            warning.starts_with("\"colour\" in the query is unknown"),
            "{odd}"
        );
    }
}

#[tokio::test]
async fn a_job_is_submitted_changed_held_and_cancelled_by_its_owner() {
    let pool = Pool::new("");
    pool.node("node1", Role::Compute, 2).await;
    let id = submitted(&pool, &alice()).await;
    let path = format!("/slurm/v0.0.42/job/{id}");
    let foreign = refused(&pool, &bob(), "DELETE", &path, Value::Null).await;
    assert!(foreign.starts_with("422 2002 "), "{foreign}");
    let foreign = refused(&pool, &bob(), "POST", &path, json!({"name": "mine"})).await;
    assert!(foreign.starts_with("422 2002 "), "{foreign}");
    let change = json!({"name": "tuned", "time_limit": {"set": true, "number": 7}, "hold": true});
    let done = pool.post(&alice(), &path, change).await;
    assert_eq!(done["results"][0]["error_code"], json!(0));
    let job = &pool.get(&alice(), &path).await["jobs"][0];
    assert_eq!(
        (&job["name"], &job["hold"]),
        (&json!("tuned"), &json!(true))
    );
    assert_eq!(job["time_limit"]["number"], json!(7));
    let odd = refused(&pool, &alice(), "POST", &path, json!({"colour": "red"})).await;
    assert!(
        odd.starts_with("501 2036 \"colour\" of a job cannot"),
        "{odd}"
    );
    let (status, done) = pool.ask(&alice(), "DELETE", &path, Value::Null).await;
    assert_eq!(
        (status, &done["status"][0]["error"]["code"]),
        (StatusCode::OK, &json!(0))
    );
    let job = &pool.get(&alice(), &path).await["jobs"][0];
    assert_eq!(job["job_state"], json!(["CANCELLED"]));
}

#[tokio::test]
async fn several_jobs_are_cancelled_by_ids_or_by_a_filter() {
    let pool = Pool::new("");
    pool.node("node1", Role::Compute, 2).await;
    let (one, other) = (
        submitted(&pool, &alice()).await,
        submitted(&pool, &bob()).await,
    );
    let path = "/slurm/v0.0.43/jobs/";
    let body = json!({"jobs": [one.to_string(), other.to_string()]});
    let (_, done) = pool.ask(&alice(), "DELETE", path, body).await;
    assert_eq!(done["status"][0]["error"]["code"], json!(0));
    assert_eq!(done["status"][1]["error"]["code"], json!(2002));
    let (_, done) = pool
        .ask(&bob(), "DELETE", path, json!({"user_name": "bob"}))
        .await;
    assert_eq!(done["status"][0]["job_id"]["number"], json!(other));
    let none = refused(&pool, &bob(), "DELETE", path, json!({})).await;
    assert!(none.contains("no job is named"), "{none}");
}

#[tokio::test]
async fn a_description_that_cannot_be_is_refused_by_its_key() {
    let pool = Pool::new("");
    pool.node("node1", Role::Compute, 2).await;
    let with = |key: &str, value: Value| {
        let mut body = description();
        body["job"][key] = value;
        body
    };
    let path = "/slurm/v0.0.43/job/submit";
    for (body, said) in [
        (json!([]), "400 9001 the body has to be an object"),
        (
            json!({"script": "#!/bin/sh\n"}),
            "400 9001 either job, or jobs",
        ),
        (
            json!({"job": {"current_working_directory": "/"}}),
            "422 4294967295 there is no script",
        ),
        (
            with("current_working_directory", json!("here")),
            "400 9001 current_working_directory is \"here\"",
        ),
        (
            with("tasks", json!({})),
            "400 9001 tasks: a whole number is wanted",
        ),
        (
            with("partition", json!("nope")),
            "422 2000 no partition \"nope\"",
        ),
        (with("tres_per_job", json!("gres/gpu:64")), "422 2014 "),
        (with("array", json!("9-1")), "422 "),
    ] {
        let text = refused(&pool, &alice(), "POST", path, body).await;
        assert!(text.starts_with(said), "{text}");
    }
    let (status, said) = pool
        .ask_text(Some(&alice()), "POST", path, "{\"script\": ")
        .await;
    assert!(
        status == StatusCode::BAD_REQUEST && said.to_string().contains("the body is no JSON"),
        "{said}"
    );
    let large = format!("{{\"script\": \"{}\"}}", "x".repeat(9 << 20));
    let (status, said) = pool.ask_text(Some(&alice()), "POST", path, large).await;
    assert_eq!(
        (status, &said["errors"][0]["error_number"]),
        (StatusCode::PAYLOAD_TOO_LARGE, &json!(9205))
    );
    let odd = pool
        .post(&alice(), path, with("tres_per_nod", json!("gres/gpu:1")))
        .await;
    let warning = odd["warnings"][0]["description"].as_str().unwrap();
    assert_eq!(
        warning,
        "\"tres_per_nod\" is no key of a job, and changes nothing"
    );
}

#[tokio::test]
async fn components_of_a_job_of_unlike_parts_are_a_list() {
    let pool = Pool::new("");
    pool.node("node1", Role::Compute, 2).await;
    let part = json!({"current_working_directory": "/tmp", "tres_per_job": "gres/gpu:1"});
    let body = json!({"script": "#!/bin/sh\ntrue\n", "jobs": [part, {"tasks": 2}]});
    let id = pool.post(&alice(), "/slurm/v0.0.43/job/submit", body).await["job_id"].as_u64();
    let jobs = pool.get(&alice(), "/slurm/v0.0.43/jobs").await;
    let leaders: Vec<_> = (0..2)
        .map(|at| jobs["jobs"][at]["het_job_id"]["number"].as_u64())
        .collect();
    assert_eq!(leaders, [id, id]);
}

#[tokio::test]
async fn who_asks_is_not_for_headers_to_say() {
    let pool = Pool::new("");
    pool.node("node1", Role::Compute, 2).await;
    let nobody = pool.ask_text(None, "GET", "/slurm/v0.0.43/ping", "").await;
    assert!(nobody.0 == StatusCode::UNAUTHORIZED, "{}", nobody.1);
    for (name, token, status) in [
        ("alice", "", StatusCode::OK),
        ("", "", StatusCode::OK),
        ("root", "", StatusCode::UNAUTHORIZED),
        ("alice", "abc", StatusCode::UNAUTHORIZED),
    ] {
        let headers = [("X-SLURM-USER-NAME", name), ("X-SLURM-USER-TOKEN", token)];
        let path = "/slurm/v0.0.43/ping";
        let (said, answer) = pool
            .ask_with(Some(&alice()), "GET", path, &headers, "")
            .await;
        assert_eq!(said, status, "{name} {token}: {answer}");
    }
}

#[tokio::test]
async fn nodes_and_records_are_for_operators_to_change() {
    let pool = Pool::new("");
    pool.node("node1", Role::Compute, 2).await;
    let (node, drain) = (
        "/slurm/v0.0.43/node/node1",
        json!({"state": ["DRAIN"], "reason": "disk"}),
    );
    let text = refused(&pool, &alice(), "POST", node, drain.clone()).await;
    assert!(text.starts_with("422 2002 "), "{text}");
    pool.post(&root(), node, drain).await;
    let row = &pool.get(&alice(), node).await["nodes"][0];
    assert_eq!(
        (&row["state"], &row["reason"]),
        (&json!(["IDLE", "DRAIN"]), &json!("disk"))
    );
    let text = refused(&pool, &root(), "POST", node, json!({"weight": 7})).await;
    assert!(text.starts_with("501 2036 \"weight\" of a node"), "{text}");
    let qos = json!({"qos": [{"name": "fast", "description": "x", "priority": {"set": true, "number": 10}, "flags": []}]});
    let path = "/slurmdb/v0.0.43/qos/";
    assert!(
        refused(&pool, &alice(), "POST", path, qos.clone())
            .await
            .starts_with("422 2002 ")
    );
    pool.post(&root(), path, qos).await;
    let row = &pool.get(&root(), "/slurmdb/v0.0.43/qos/fast").await["qos"][0];
    assert_eq!(row["priority"]["number"], json!(10));
    let (status, _) = pool
        .ask(&root(), "DELETE", "/slurmdb/v0.0.43/qos/fast", Value::Null)
        .await;
    assert_eq!(status, StatusCode::OK);
    let accounts =
        json!({"accounts": [{"name": "bio", "description": "b", "organization": "bio"}]});
    pool.post(&root(), "/slurmdb/v0.0.43/accounts", accounts)
        .await;
    let ada = json!({"associations": [{"account": "bio", "user": "ada", "is_default": true, "shares_raw": 7,
        "max": {"jobs": {"total": {"set": false, "infinite": false, "number": 0}}}}]});
    let path = "/slurmdb/v0.0.43/associations/";
    pool.post(&root(), path, ada).await;
    let rows = pool
        .get(&root(), &format!("{path}?user=ada&account=bio"))
        .await;
    let row = &rows["associations"][0];
    assert_eq!(
        (&row["is_default"], &row["shares_raw"]),
        (&json!(true), &json!(7))
    );
    let odd = json!({"associations": [{"account": "bio", "user": "eve", "max": {"jobs": {"total": {"set": true, "number": 3}}}}]});
    let text = refused(&pool, &root(), "POST", path, odd).await;
    assert!(text.starts_with("501 2036 \"max\" is not set so"), "{text}");
    let one = "/slurmdb/v0.0.43/association/?account=bio&user=ada";
    let of_another = format!("{one}&cluster=another");
    let text = refused(&pool, &root(), "DELETE", &of_another, Value::Null).await;
    assert!(text.contains("it knows of no other"), "{text}");
    let (status, done) = pool.ask(&root(), "DELETE", one, Value::Null).await;
    assert_eq!(
        (status, &done["removed_associations"]),
        (StatusCode::OK, &json!(["A=bio U=ada"]))
    );
    let users = &pool.get(&root(), "/slurmdb/v0.0.43/account/bio").await["accounts"][0];
    assert_eq!(users["description"], json!("b"));
    let (status, _) = pool
        .ask(
            &root(),
            "DELETE",
            "/slurmdb/v0.0.43/account/bio",
            Value::Null,
        )
        .await;
    assert_eq!(status, StatusCode::OK);
}
