//! The controller's answers about runs and reports, for the tests of gacct and sacct.

use gcli::fake_controller::{Answer, Request};
use serde_json::{Value, json};

pub fn answer(request: &Request) -> Answer {
    let run = |id: u64, name: &str, state: &str, exit: (u8, u8), more: Value| {
        let mut run = json!({
            "id": id, "shown_id": id.to_string(), "attempt": 1, "name": name, "user": "root", "account": "root",
            "partition": "main", "qos": "normal", "state": state, "exit_code": {"code": exit.0, "signal": exit.1},
            "end_text": "", "submit_time": "2026-11-20T09:05:27Z", "start_time": "2026-11-20T09:05:27Z",
            "end_time": "2026-11-20T09:05:27Z", "elapsed_secs": 0, "time_limit_secs": 600, "nodes": 1,
            "nodelist": "node2", "cpus": 1, "mem_bytes": 100 << 20, "gpus": "", "gpu_count": 0.0,
            "cpu_time_secs": 0.0, "peak_memory_bytes": 0, "work_dir": "/home/me/w", "comment": "", "tags": []
        });
        run.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        run
    };
    match request.path.split('?').next().unwrap() {
        "/v1/runs" => Answer::ok(
            json!({"schema": 1, "runs": [
                run(95, "run", "RUNNING", (0, 0), json!({"cpus": 2, "elapsed_secs": 14, "time_limit_secs": 3600, "end_time": null,
                    "mem_bytes": 300 << 20, "gpus": "1", "gpu_count": 1.0})),
                run(99, "fail", "FAILED", (3, 0), json!({"cpu_time_secs": 62.3456, "peak_memory_bytes": 1234567, "tags": ["a", "b"]})),
                run(101, "sig", "FAILED", (0, 9), json!({})),
                run(102, "can", "CANCELLED", (0, 0), json!({"elapsed_secs": 3})),
                run(104, "arr", "RUNNING", (0, 0), json!({"shown_id": "98_1", "array_id": 98, "array_index": 1})),
                run(100, "big", "PENDING", (0, 0), json!({"nodelist": "", "nodes": 2, "cpus": 4, "mem_bytes": 400 << 20,
                    "gpus": "4", "gpu_count": 4.0, "start_time": null, "end_time": null})),
            ]})
            .to_string(),
        ),
        "/v1/report" => Answer::ok(
            r#"{"schema":1,"rows":[{"group":["lab","h100"],"jobs":3,"gpu_hours":12.25,"cpu_hours":100.0},{"group":["other",""],"jobs":1,"gpu_hours":0.0,"cpu_hours":2.5}]}"#,
        ),
        "/v1/cluster" => Answer::ok(r#"{"schema":1,"name":"lab","version":"0.1.0"}"#),
        _ => Answer::refuse(404, "not_found", "no such path"),
    }
}
