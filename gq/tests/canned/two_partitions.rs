//! The controller's answers about a queue whose jobs have several partitions and licences.

use gcli::fake_controller::{Answer, Request};
use serde_json::{Value, json};

/// One job of two partitions and licences, and one that is over.
pub fn answer(request: &Request) -> Answer {
    let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
    if path == "/v1/jobs/cancel" {
        return Answer::ok(r#"{"schema":1,"results":[{"job":"9","ok":true}]}"#);
    }
    if path == "/v1/partitions" {
        let tier = |name: &str, tier: u32| json!({"name": name, "is_default": false, "state": "up", "nodes": [], "priority_tier": tier});
        let all = [tier("train", 1), tier("debug", 2)];
        return Answer::ok(json!({"schema": 1, "partitions": all}).to_string());
    }
    assert_eq!(path, "/v1/jobs", "{query}");
    let job = |id: u64, state: &str, more: Value| {
        let mut job = json!({"id": id, "shown_id": id.to_string(), "name": "two", "user": "root", "state": state, "partition": "train,debug",
            "licences": "matlab:2,idl:1", "nodes": 1, "nodelist": "", "elapsed_secs": 0, "reason": "Priority"});
        job.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        job
    };
    let waits = job(7, "PENDING", json!({}));
    let runs = job(
        8,
        "RUNNING",
        json!({"partition": "debug", "licences": "", "nodelist": "n1"}),
    );
    let over = job(9, "COMPLETED", json!({"partition": "debug"}));
    let listed = match (
        query.contains("job=9&") || query.ends_with("job=9"),
        query.contains("state=all"),
    ) {
        (true, true) => vec![over],
        _ if query.contains("job=") => vec![],
        _ => vec![waits, runs],
    };
    Answer::ok(json!({"schema": 1, "jobs": listed}).to_string())
}
