//! The controller's answers about nodes and partitions, for the tests of gnodes and sinfo.

use gcli::fake_controller::{Answer, Request};
use serde_json::{Value, json};

pub fn node(name: &str, state: &str, more: Value) -> Value {
    let gpu = |slot: u16, job: &[&str], fault: &str| {
        json!({"slot": slot, "index": slot, "minor": slot + 2, "uuid": format!("GPU-{name}-{slot}"), "type": "h100",
               "memory_mib": 81559, "jobs": job, "fault": fault, "present": true})
    };
    let held: &[&str] = if state.starts_with("MIXED") {
        &["95"]
    } else {
        &[]
    };
    let mut node = json!({
        "name": name, "state": state, "role": "compute", "partitions": ["main"], "features": ["a100"],
        "cpus": 16, "cpus_alloc": 0, "mem_bytes": 8000u64 << 20, "mem_alloc_bytes": 0, "gpu_summary": "h100:2",
        "gpus": [gpu(0, held, ""), gpu(1, &[], if name == "n3" { "XID 79" } else { "" })], "gpus_alloc": 0.0,
        "runs": [], "drains": [], "unfit": "", "isolation": "fence", "declared": false, "version": "0.1.0",
        "os": "Linux 6.18", "driver": "550.1", "last_seen": "2026-11-20T09:05:40Z", "boot_time": "2026-11-20T08:12:53Z",
        "strikes": []
    });
    node.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    node
}

pub fn answer(request: &Request) -> Answer {
    let drain = json!([{"owner": "admin:root", "reason": "fan replaced on Monday", "since": "2026-11-20T09:00:00Z"}]);
    match request.path.as_str() {
        "/v1/nodes" => Answer::ok(
            json!({"schema": 1, "nodes": [
                node("n1", "IDLE", json!({})),
                node("node2", "MIXED", json!({"cpus_alloc": 4, "mem_alloc_bytes": 500u64 << 20, "runs": ["95-1"]})),
                node("n3", "IDLE+DRAIN", json!({"partitions": ["main", "long"], "drains": drain, "declared": true})),
                node("n10", "DOWN", json!({"isolation": "none", "available_features": ["a100", "fast"]})),
                node("n4", "IDLE", json!({})),
            ]})
            .to_string(),
        ),
        "/v1/partitions" => Answer::ok(
            json!({"schema": 1, "partitions": [
                {"name": "main", "is_default": true, "state": "up", "max_time_secs": 86400, "nodes": ["n1"], "priority_tier": 1, "priority_factor": 7,
                 "preempt_mode": "requeue", "placement": "pack", "headroom": {"gpu": 2}, "per_user": {"running_jobs": 2, "gpus": {"h100": 4}},
                 "allow_groups":["staff","ops"],"allow_qos": ["normal", "urgent"], "default_qos": "normal"},
                {"name": "long", "is_default": false, "state": "down", "nodes": [], "priority_tier": 1},
            ]})
            .to_string(),
        ),
        "/v1/jobs?columns=nodelist&state=COMPLETING" => Answer::ok(json!({"schema": 1, "jobs": [{"id": 7, "nodelist": "n[1,3]"}]}).to_string()),
        path => Answer::refuse(404, "not_found", &format!("no such path: {path}")),
    }
}
