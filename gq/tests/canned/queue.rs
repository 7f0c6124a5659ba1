//! The controller's answers about a queue, for the tests of gq, gdel and Slurm's commands like them.

use gcli::fake_controller::{Answer, Request};
use serde_json::{Value, json};

/// The queue that the recorded session of Slurm had.
fn queue() -> Vec<Value> {
    let job = |id: u64, name: &str, more: Value| {
        let mut job = json!({
            "id": id, "shown_id": id.to_string(), "name": name, "user": "root", "uid": 0, "account": "root",
            "partition": "main", "qos": "normal", "state": "PENDING", "reason": "None", "priority": 4294901682u64,
            "nodes": 1, "nodelist": "", "cpus": 1, "ntasks": 1, "mem": "100M", "mem_bytes": 104857600, "gpus": "",
            "gpu_count": 0.0, "time_limit_secs": 600, "elapsed_secs": 0, "submit_time": "2026-11-20T09:05:27Z",
            "exit_code": {"code": 0, "signal": 0}, "attempts": 0, "work_dir": "/home/me/w", "command": "",
            "stdout": format!("/home/me/w/slurm-{id}.out"), "stderr": "", "stdin": "/dev/null", "comment": "",
            "constraint": "", "req_nodelist": "", "exclude": "", "exclusive": false, "requeue": true,
            "submit_host": "login1", "tags": []
        });
        job.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        job
    };
    // That a running job ends by its limit is worked out here; the controller has an end only for what ended.
    let running = |elapsed: i64| {
        json!({"state": "RUNNING", "nodelist": "node2", "elapsed_secs": elapsed, "attempts": 1,
               "start_time": "2026-11-20T09:05:27Z"})
    };
    let with = |mut one: Value, more: Value| {
        one.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        one
    };
    vec![
        job(
            97,
            "dep",
            json!({"reason": "Dependency", "priority": 4294901682u64}),
        ),
        job(
            98,
            "arr",
            json!({"shown_id": "98_5", "array_id": 98, "array_index": 5, "reason": "JobArrayTaskLimit",
            "priority": 4294901681u64, "stdout": "/dev/null"}),
        ),
        job(
            119,
            "wrap",
            json!({"reason": "PartitionTimeLimit", "reason_text": "asks for 99 days, the partition gives 1",
            "priority": 4294901664u64, "time_limit_secs": 8553600}),
        ),
        job(
            95,
            "run",
            with(
                running(14),
                json!({"priority": 4294901683u64, "cpus": 2, "mem": "300M",
            "mem_bytes": 314572800, "mem_total_bytes": 314572800, "gpus": "1", "gpu_count": 1.0, "time_limit_secs": 3600, "comment": "a b",
            "gpus_held": ["node2:h100:0"], "gpu_links": ["node2:NV18"], "tags": ["sweep", "x"], "later": {"dependency": "afterok:1"},
            "stdout": "/home/me/w/run-95.out"}),
            ),
        ),
        job(
            104,
            "arr",
            with(
                running(14),
                json!({"shown_id": "98_1", "array_id": 98, "array_index": 1,
            "priority": 4294901681u64, "stdout": "/dev/null"}),
            ),
        ),
    ]
}

/// Serves the queue as the controller does: filters by `job` only, which is what the tests need.
pub fn answer(request: &Request) -> Answer {
    let listing = |jobs: Vec<Value>| Answer::ok(json!({"schema": 1, "jobs": jobs}).to_string());
    let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
    let job = query.split('&').find_map(|pair| pair.strip_prefix("job="));
    let one = |id: &str| {
        queue()
            .into_iter()
            .filter(|job| job["shown_id"] == id)
            .collect::<Vec<_>>()
    };
    match path {
        "/v1/cluster" => Answer::ok(r#"{"schema":1,"name":"lab"}"#),
        "/v1/jobs" => match job {
            Some(ids) => listing(ids.split(',').flat_map(one).collect()),
            None => listing(queue()),
        },
        "/v1/jobs/119/why" => Answer::ok(json!({"schema": 1, "jobs": [{
            "id": 119, "shown_id": "119", "state": "PENDING", "reason": "Resources", "ahead": 12,
            "blockers": [
                {"code": "Resources", "text": "needs 8 h100 on one node; node07 comes nearest and has 7 of 8 GPUs free, more becomes free there at 2026-11-20T14:20:00Z", "until": "2026-11-20T15:00:00Z"},
                {"code": "AssocGrpGRES", "text": "account vision holds 30 of its 32 GPUs"}
            ],
            "expected_start": "2026-11-20T15:00:00Z", "expected_nodes": "node07",
            "interval": {"earliest": "2026-11-20T12:00:00Z", "latest": "2026-11-20T14:30:00Z",
                "record": {"partition": "main", "nominal_percent": 90, "intervals": 342, "right": 311, "median_width_secs": 840}},
            "changes": [{"option": "--gpus h100:7", "now": true, "start": "2026-11-20T09:00:00Z", "loss": 0.125}, {"option": "--time 30:00", "now": false, "start": "2026-11-20T12:00:00Z", "loss": 0.5}]
        }]}).to_string()),
        "/v1/jobs/120/why" => Answer::ok(json!({"schema": 1, "jobs": [
            {"id": 120, "shown_id": "120_[3-9%2]", "state": "PENDING", "reason": "JobHeldAdmin", "reason_text": "held by admin:root",
                "holds": [{"owner": "admin:root", "reason": "", "since": "2026-11-20T09:00:00Z"}]},
            {"id": 220, "shown_id": "120_[100-299999]", "state": "CANCELLED", "reason": "None", "end_text": "cancelled by ada"}
        ]}).to_string()),
        "/v1/jobs/121/why" => Answer::ok(json!({"schema": 1, "more": 14, "jobs": [{
            "id": 121, "shown_id": "121_[3-9%2]", "state": "PENDING", "reason": "JobArrayTaskLimit", "alternative": "l4:8",
            "blockers": [{"code": "Resources", "text": "needs 8 l4 on one node"}],
            "alternatives": [{"gpus": "h100:4", "blockers": [{"code": "AssocGrpGRES", "text": "account vision holds 30 of its 32 GPUs"}]}],
            "changes": [{"option": "ArrayTaskThrottle=3", "now": true, "start": "2026-11-20T09:00:00Z", "loss": 0.5}]
        }]}).to_string()),
        "/v1/jobs/95/why" => Answer::ok(r#"{"schema":1,"jobs":[{"id":95,"shown_id":"95","state":"RUNNING","reason":"None"}]}"#),
        "/v1/starts" => Answer::ok(json!({"schema": 1, "jobs": [
            {"id": 119, "shown_id": "119", "name": "wrap", "user": "root", "partition": "main", "nodes": 1, "reason": "Resources", "ahead": 0,
             "earliest": "2026-11-20T11:00:00Z", "expected": "2026-11-20T12:00:00Z", "latest": "2026-11-20T13:30:00Z",
             "at_limits": "2026-11-20T15:00:00Z", "nodelist": "node07"},
            {"id": 97, "shown_id": "97", "name": "dep", "user": "root", "partition": "main", "nodes": 1, "reason": "Dependency", "ahead": 1},
            {"id": 98, "shown_id": "98_[5-9]", "name": "arr", "user": "root", "partition": "main", "nodes": 1, "reason": "Priority", "ahead": 1,
             "expected": "2026-11-20T12:30:00Z", "at_limits": "2026-11-20T15:00:00Z", "latest": "2026-11-20T15:00:00Z", "nodelist": "node07"},
            {"id": 130, "shown_id": "130", "name": "cap", "user": "root", "partition": "main", "nodes": 1, "reason": "AssocGrpGRES", "ahead": 2,
             "explanation": "account vision holds 30 of its 32 GPUs; job 95 ends first of its holders, by 2026-11-20T12:00:00Z"},
            {"id": 131, "shown_id": "131", "name": "cap", "user": "root", "partition": "main", "nodes": 1, "reason": "AssocGrpGRES", "ahead": 3,
             "explanation": "account vision holds 30 of its 32 GPUs; job 95 ends first of its holders, by 2026-11-20T12:00:00Z"}
        ], "records": [{"partition": "main", "nominal_percent": 90, "intervals": 342, "right": 311, "median_width_secs": 840}]}).to_string()),
        "/v1/jobs/95/log" => Answer::ok(concat!(r#"{"schema":1,"events":[{"at":"2026-11-20T09:05:20Z","text":"submitted by root to partition main","event":{}},"#,
            r#"{"at":"2026-11-20T09:05:27Z","text":"requeued, not before 2026-11-20T09:05:31Z: node2 was\u001b[2J lost","event":{}}],"#,
            r#""lines":["node2: 2026-11-20T09:05:27Z run 1 prepared\u001b[2J"]}"#)),
        "/v1/jobs/95/script" => Answer::Json(200, "#!/bin/sh\nhostname\n".into()),
        "/v1/jobs/cancel" => Answer::ok(match serde_json::from_str::<Value>(&request.body).unwrap()["jobs"][0].as_str() {
            Some("999999") => r#"{"schema":1,"results":[{"job":"999999","ok":false,"code":"not_found","error":"there is no job 999999","about":"job"}]}"#,
            Some(_) => r#"{"schema":1,"results":[{"job":"95","ok":true},{"job":"98_5","ok":true}]}"#,
            None => r#"{"schema":1,"results":[]}"#,
        }),
        path => match path.strip_prefix("/v1/jobs/").map(one) {
            Some(jobs) if !jobs.is_empty() => listing(jobs),
            _ => Answer::refuse(404, "not_found", "job 999999: there is no such job"),
        },
    }
}
