//! One job: shown in full, waited for, changed, cancelled; accounting once it is over.

use super::pool::{Pool, column, local, until, until_forgotten, via};
use crate::http::Peer;
use gmodel::node::Role;
use gmodel::{ExitCode, JobId};
use serde_json::{Value, json};
use std::time::Duration;

fn alice() -> Peer {
    local(1000, "alice")
}

#[tokio::test]
async fn a_job_in_full_keeps_its_nodes_after_the_end() {
    let pool = Pool::new("");
    let node = pool.node("node1", Role::Compute, 2).await;
    let spec = json!({"name": "t", "request": {"gpus": "1"}, "launch": {"work_dir": "/w", "stdout": "%x-%j.out"}});
    let id = pool.submit(&alice(), spec).await;
    pool.pass().await;
    pool.running(node, id).await;
    let running = pool.get(&alice(), "/v1/jobs/1").await["jobs"][0].clone();
    assert_eq!(
        (&running["state"], &running["nodelist"], &running["stdout"]),
        (&json!("RUNNING"), &json!("node1"), &json!("/w/t-1.out"))
    );
    pool.ended(node, id, ExitCode::exited(3)).await;
    let over = pool.get(&alice(), "/v1/jobs/1").await["jobs"][0].clone();
    assert_eq!(
        (&over["state"], &over["reason"], &over["nodelist"]),
        (&json!("FAILED"), &json!("NonZeroExitCode"), &json!("node1"))
    );
    assert_eq!(over["exit_code"], json!({"code": 3, "signal": 0}));
    assert_eq!(
        (&over["cpus"], &over["gpu_count"]),
        (&running["cpus"], &running["gpu_count"])
    );
    let listed = pool
        .get(&alice(), "/v1/jobs?state=all&columns=nodelist")
        .await;
    assert_eq!(listed["jobs"], json!([{"id": 1, "nodelist": "node1"}]));
    let runs = pool.get(&alice(), "/v1/runs?job=1").await;
    assert_eq!(column(&runs, "runs", "state"), ["FAILED"]);
    let text = pool
        .refused(&alice(), "GET", "/v1/jobs/99", Value::Null)
        .await;
    assert!(
        text.starts_with("404 not_found: there is no job 99"),
        "{text}"
    );
}

#[tokio::test]
async fn jobs_that_left_memory_are_found_in_the_database() {
    let pool = Pool::new("min_job_age_secs = 0\n");
    let node = pool.node("node1", Role::Compute, 2).await;
    let id = pool.submit(&alice(), json!({"name": "gone"})).await;
    let array = pool
        .submit(&alice(), json!({"name": "tasks", "array": "5-6"}))
        .await;
    pool.pass().await;
    for job in [id, array, array + 1] {
        pool.running(node, job).await;
        pool.ended(node, job, ExitCode::SUCCESS).await;
    }
    until_forgotten(&pool).await;
    let job = pool.get(&alice(), "/v1/jobs/1").await;
    assert_eq!(
        (&job["jobs"][0]["name"], &job["jobs"][0]["nodelist"]),
        (&json!("gone"), &json!("node1"))
    );
    let tasks = pool.get(&alice(), &format!("/v1/jobs/{array}")).await;
    assert_eq!(column(&tasks, "jobs", "shown_id"), ["2_5", "2_6"]);
    assert_eq!(column(&tasks, "jobs", "state"), ["COMPLETED", "COMPLETED"]);
    let task = pool.get(&alice(), "/v1/jobs/2_6").await;
    assert_eq!(column(&task, "jobs", "id"), ["3"]);
    assert_eq!(
        pool.get(&alice(), "/v1/jobs/1/script").await,
        "#!/bin/sh\necho hello\n"
    );
    let log = pool.get(&alice(), "/v1/jobs/1/log").await;
    let lines = log["lines"].as_array().unwrap();
    assert!(
        lines
            .iter()
            .any(|line| line.as_str().unwrap() == "node1: started 1-1"),
        "{log}"
    );
    assert_eq!(
        column(&log, "events", "text"),
        [
            "submitted by alice to partition main",
            "placed on node1 (1 CPU, 4G), attempt 1",
            "ready on all nodes: told to start",
            "running on node1",
            "node1: cleaned up (exit 0:0)",
            "COMPLETED, exit 0:0",
            "holds nothing any more",
        ]
    );
    assert_eq!(log["events"][0]["event"]["event"], "job_submitted");
    assert!(!log.to_string().contains("client_key"), "{log}");
}

#[tokio::test]
async fn tasks_cancelled_untouched_are_shown_in_memory_and_after() {
    let pool = Pool::new("min_job_age_secs = 1\n");
    let node = pool.node("node1", Role::Compute, 1).await;
    let array = pool
        .submit(
            &alice(),
            json!({"name": "tasks", "array": "5-9", "request": {"gpus": "1"}}),
        )
        .await;
    pool.pass().await;
    pool.running(node, array).await;
    pool.post(&alice(), "/v1/jobs/cancel", json!({"jobs": ["1_[6-9]"]}))
        .await;
    let shown = async |path: &str, list: &str| {
        column(&pool.get(&alice(), path).await, list, "shown_id").join(" ")
    };
    assert_eq!(shown("/v1/jobs/1", "jobs").await, "1_5 1_[6-9]");
    assert_eq!(
        shown("/v1/runs?state=CANCELLED&qos=&user=alice", "runs").await,
        "1_[6-9]"
    );
    assert_eq!(shown("/v1/runs?nodelist=node1", "runs").await, "1_5");
    pool.ended(node, array, ExitCode::SUCCESS).await;
    until_forgotten(&pool).await;
    assert_eq!(shown("/v1/jobs/1", "jobs").await, "1_5 1_[6-9]");
    assert_eq!(shown("/v1/runs", "runs").await, "1_5 1_[6-9]");
    let bob = pool.get(&local(1001, "bob"), "/v1/runs?user=bob").await;
    assert_eq!(bob["runs"], json!([]));
}

#[tokio::test]
async fn waiting_ends_with_the_job_or_the_time() {
    let pool = std::sync::Arc::new(Pool::new(""));
    let node = pool.node("node1", Role::Compute, 2).await;
    let id = pool.submit(&alice(), json!({})).await;
    let waiting = pool.get(&alice(), "/v1/jobs/1/wait?timeout_secs=0").await;
    assert_eq!(waiting["jobs"][0]["state"], "PENDING");
    let asked = tokio::spawn({
        let pool = pool.clone();
        async move { pool.get(&alice(), "/v1/jobs/1/wait?timeout_secs=60").await }
    });
    pool.pass().await;
    pool.running(node, id).await;
    assert!(!asked.is_finished());
    pool.ended(node, id, ExitCode::exited(7)).await;
    let answer = tokio::time::timeout(Duration::from_secs(20), asked)
        .await
        .expect("the wait did not end")
        .unwrap();
    assert_eq!(answer["jobs"][0]["exit_code"]["code"], 7);
}

#[tokio::test]
async fn ten_thousand_are_cancelled_by_one_filter() {
    let pool = Pool::new("");
    pool.submit(&local(1001, "bob"), json!({"name": "stays"}))
        .await;
    for _ in 0..50 {
        pool.submit(&alice(), json!({"name": "sweep", "array": "1-200"}))
            .await;
    }
    let commits = pool
        .core
        .stats()
        .commits
        .load(std::sync::atomic::Ordering::Relaxed);
    let done = pool
        .post(
            &alice(),
            "/v1/jobs/cancel",
            json!({"filter": {"name": "sweep"}}),
        )
        .await;
    assert_eq!(done["results"].as_array().unwrap().len(), 50);
    assert!(
        done["results"]
            .as_array()
            .unwrap()
            .iter()
            .all(|result| result["ok"] == true)
    );
    assert_eq!(
        pool.core
            .stats()
            .commits
            .load(std::sync::atomic::Ordering::Relaxed),
        commits + 1
    );
    let left = pool.get(&alice(), "/v1/jobs?columns=name").await;
    assert_eq!(column(&left, "jobs", "name"), ["stays"]);
}

#[tokio::test]
async fn a_filter_on_waiting_tasks_leaves_the_running_ones() {
    let pool = Pool::new("");
    let node = pool.node("node1", Role::Compute, 2).await;
    let id = pool.submit(&alice(), json!({"array": "1-5%1"})).await;
    pool.pass().await;
    pool.running(node, id).await;
    pool.post(
        &alice(),
        "/v1/jobs/cancel",
        json!({"filter": {"state": "PENDING"}}),
    )
    .await;
    let list = pool.get(&alice(), "/v1/jobs?columns=shown_id,state").await;
    assert_eq!(
        list["jobs"],
        json!([{"id": 1, "shown_id": "1_1", "state": "RUNNING"}])
    );
    let text = pool
        .refused(&alice(), "POST", "/v1/jobs/cancel", json!({}))
        .await;
    assert!(text.contains("no job is named and no filter"), "{text}");
    let text = pool
        .refused(&alice(), "POST", "/v1/jobs/cancel", json!({"filter": {}}))
        .await;
    assert!(text.contains("would mean every job"), "{text}");
    let text = pool
        .refused(
            &alice(),
            "POST",
            "/v1/jobs/cancel",
            json!({"jobs": ["1"], "signal": 99}),
        )
        .await;
    assert!(text.contains("signal 99 is none"), "{text}");
    pool.post(
        &alice(),
        "/v1/jobs/cancel",
        json!({"jobs": ["1_1"], "signal": 10}),
    )
    .await;
    let view = pool.core.view().await;
    assert_eq!(view.runs.values().next().unwrap().signals.len(), 1);
}

#[tokio::test]
async fn the_size_of_a_waiting_job_changes_as_a_whole_or_not_at_all() {
    let pool = Pool::new("");
    let node = pool.node("node1", Role::Compute, 4).await;
    pool.submit(&alice(), json!({"request": {"gpus": "3"}}))
        .await;
    pool.pass().await;
    pool.running(node, 1).await;
    let waits = pool
        .submit(
            &alice(),
            json!({"request": {"gpus": "4", "cpus_per_task": 8}}),
        )
        .await;
    let update = |change: Value| json!({"job": waits.to_string(), "change": change});
    let odd = [
        (json!({"gpus": "1", "nodes": "9"}), "--nodes 9: partition"),
        (json!({"gpus": "1", "cpus": 0}), "cpus: 0 is too few"),
        (json!({"gpus": "1", "constraint": "a&"}), "constraint: "),
        (json!({"gpus": true}), "gpus = true is not text"),
        (json!({"gpu": "1"}), "Did you mean \"gpus\"?"),
    ];
    for (change, words) in odd {
        let text = pool
            .refused(&alice(), "POST", "/v1/jobs/update", update(change))
            .await;
        assert!(text.contains(words), "{words}: {text}");
    }
    let row = |answer: Value| answer["jobs"][0].clone();
    let before = row(pool.get(&alice(), &format!("/v1/jobs/{waits}")).await);
    assert_eq!(
        (&before["gpu_count"], &before["cpus"]),
        (&json!(4.0), &json!(8)),
        "nothing of it was done: {before}"
    );
    pool.post(
        &alice(),
        "/v1/jobs/update",
        update(json!({"gpus": "h100:1", "cpus": 2, "mem_per_node": "4G", "exclude": "node9"})),
    )
    .await;
    let after = row(pool.get(&alice(), &format!("/v1/jobs/{waits}")).await);
    assert_eq!(
        (&after["gpu_count"], &after["cpus"], &after["exclude"]),
        (&json!(1.0), &json!(2), &json!("node9")),
        "{after}"
    );
    pool.pass().await;
    let text = pool
        .refused(
            &alice(),
            "POST",
            "/v1/jobs/update",
            update(json!({"gpus": "2"})),
        )
        .await;
    assert!(
        text.contains("is running: its size can only change while it is pending"),
        "{text}"
    );
}

#[tokio::test]
async fn owners_hold_release_update_and_requeue() {
    let pool = Pool::new("");
    pool.submit(&alice(), json!({"time_limit_secs": 600})).await;
    pool.post(
        &alice(),
        "/v1/jobs/hold",
        json!({"jobs": ["1"], "reason": "not yet"}),
    )
    .await;
    let job = pool.get(&alice(), "/v1/jobs/1").await["jobs"][0].clone();
    assert_eq!(
        (&job["reason"], &job["holds"][0]["reason"]),
        (&json!("JobHeldUser"), &json!("not yet"))
    );
    pool.post(&alice(), "/v1/jobs/release", json!({"jobs": ["1"]}))
        .await;
    pool.post(
        &alice(),
        "/v1/jobs/update",
        json!({"job": "1", "change": {"name": "new", "nice": 5, "time_limit_secs": 60}}),
    )
    .await;
    let job = pool.get(&alice(), "/v1/jobs/1").await["jobs"][0].clone();
    assert_eq!(
        (&job["name"], &job["nice"], &job["time_limit_secs"]),
        (&json!("new"), &json!(5), &json!(60))
    );
    assert!(job.get("holds").is_none());
    for (change, want) in [
        (
            json!({"time_limt_secs": 60}),
            "Did you mean \"time_limit_secs\"?",
        ),
        (
            json!({"nice": "low"}),
            "nice = \"low\" is not a whole number",
        ),
        (json!({"begin": "tomorrow"}), "RFC 3339"),
        (json!({}), "nothing to change"),
    ] {
        let text = pool
            .refused(
                &alice(),
                "POST",
                "/v1/jobs/update",
                json!({"job": "1", "change": change}),
            )
            .await;
        assert!(
            text.starts_with("400 invalid") && text.contains(want),
            "{text}"
        );
    }
    let done = pool
        .post(&alice(), "/v1/jobs/requeue", json!({"jobs": ["1"]}))
        .await;
    assert_eq!(done["results"][0]["ok"], false, "it does not run");
}

#[tokio::test]
async fn a_step_goes_to_the_nodes_of_its_job() {
    let pool = Pool::new("");
    let node = pool.node("node1", Role::Compute, 2).await;
    let id = pool
        .submit(&alice(), json!({"request": {"ntasks": 2}}))
        .await;
    let here = via(node, Role::Compute, 1000, "alice");
    let step = json!({"argv": ["/bin/hostname"], "connect": "127.0.0.1:4000", "key": "k", "certificate": "0".repeat(64), "work_dir": "/"});
    assert!(
        pool.refused(&alice(), "POST", "/v1/jobs/1/steps", step.clone())
            .await
            .starts_with("409 conflict")
    );
    pool.pass().await;
    pool.running(node, id).await;
    let reply = pool.post(&here, "/v1/jobs/1/steps", step.clone()).await;
    assert_eq!(reply["nodes"], json!([{"name": "node1", "ranks": [0, 1]}]));
    let (to, run, order) = pool.steps.lock().unwrap()[0].clone();
    assert_eq!(
        (to, run.job, order.ntasks, order.node_tasks),
        (node, JobId(id), 2, vec![2])
    );
    let mut own = step.clone();
    own["share"] = json!({"cpus_per_task": 2});
    assert!(
        pool.refused(&here, "POST", "/v1/jobs/1/steps", own.clone())
            .await
            .contains("more than the job has there; node1 has 2 CPUs")
    );
    own["share"] = json!({"cpus_per_task": 1, "mem_per_cpu_bytes": 1 << 20, "gpus": {"per": "step", "count": 0}});
    assert_eq!(
        pool.post(&here, "/v1/jobs/1/steps", own.clone()).await["step"],
        1
    );
    let order = pool.steps.lock().unwrap()[1].2.clone();
    assert_eq!(
        (order.cpus_per_task, order.cpus, order.gpus, order.mem_bytes),
        (1, vec![0, 1], Some(vec![]), 2 << 20)
    );
    let waits = pool.post(&here, "/v1/jobs/1/steps", own.clone()).await["waits"].clone();
    assert_eq!(
        waits["holders"],
        json!([{"step": 1, "connect": "127.0.0.1:4000"}]),
        "{waits}"
    );
    let live = pool.get(&here, "/v1/steps?job=1&live=true").await["steps"].clone();
    assert_eq!(
        (
            &live[0]["cpu_time_secs"],
            &live[0]["peak_memory_bytes"],
            &live[1]["cpu_time_secs"]
        ),
        (&json!(2.0), &json!(1 << 20), &json!(1.0)),
        "{live}"
    );
    assert_eq!(
        pool.get(&here, "/v1/steps?job=1").await["steps"][0].get("cpu_time_secs"),
        None,
        "nobody was asked"
    );
    // What a grun of the release before says, and one that says more than its job can have used.
    pool.post(&here, "/v1/jobs/1/steps/1/end", json!({})).await;
    let used = json!({"cpu_user_micros": u64::MAX, "cpu_system_micros": u64::MAX, "peak_memory_bytes": 7, "oom_kills": 1});
    pool.post(
        &here,
        "/v1/jobs/1/steps/0/end",
        json!({"exit_code": {"code": 0, "signal": 9}, "used": used}),
    )
    .await;
    let steps = pool.get(&here, "/v1/runs?job=1&steps=true").await["runs"][0]["steps"].clone();
    assert_eq!(
        (&steps[1]["state"], &steps[1]["peak_memory_bytes"]),
        (&json!("OUT_OF_MEMORY"), &json!(7)),
        "{steps}"
    );
    assert_eq!(
        (
            &steps[2]["state"],
            steps[2].get("cpu_time_secs"),
            steps[0].get("cpu_time_secs")
        ),
        (&json!("COMPLETED"), None, None),
        "{steps}"
    );
    assert_eq!(pool.post(&here, "/v1/jobs/1/steps", own).await["step"], 2);
    let mut bad = step.clone();
    bad["share"] = json!({"gpus": {"per": "node", "count": 1, "gpu_type": "x".repeat(65)}});
    assert!(
        pool.refused(&here, "POST", "/v1/jobs/1/steps", bad)
            .await
            .contains("more than 64 bytes")
    );
    let mut bad = step.clone();
    bad["certificate"] = json!("abc");
    assert!(
        pool.refused(&here, "POST", "/v1/jobs/1/steps", bad)
            .await
            .contains("certificate has to be a SHA-256")
    );
    let mut bad = step;
    bad["connect"] = json!("localhost:4000");
    assert!(
        pool.refused(&here, "POST", "/v1/jobs/1/steps", bad)
            .await
            .contains("is not ADDRESS:PORT, numeric")
    );
}

#[tokio::test]
async fn usage_is_reported_in_groups() {
    let pool = Pool::new("privacy = \"own\"\n");
    let node = pool.node("node1", Role::Compute, 2).await;
    for user in [alice(), local(1001, "bob")] {
        let id = pool
            .submit(&user, json!({"account": "phys", "request": {"gpus": "1"}}))
            .await;
        pool.pass().await;
        pool.running(node, id).await;
        pool.ended(node, id, ExitCode::SUCCESS).await;
    }
    let all = pool
        .get(&local(0, "root"), "/v1/report?by=account,user")
        .await;
    assert_eq!(
        column(&all, "rows", "group"),
        ["[\"phys\",\"alice\"]", "[\"phys\",\"bob\"]"]
    );
    let own = pool.get(&alice(), "/v1/report?by=account").await;
    assert_eq!(
        (&own["rows"][0]["group"], &own["rows"][0]["jobs"]),
        (&json!(["phys"]), &json!(1)),
        "{own}"
    );
    let text = pool
        .refused(&alice(), "GET", "/v1/report?by=acount", Value::Null)
        .await;
    assert!(text.contains("Did you mean \"account\"?"), "{text}");
    let text = pool
        .refused(&alice(), "GET", "/v1/report?from=yesterday", Value::Null)
        .await;
    assert!(text.contains("no RFC 3339 time"), "{text}");
    let text = pool
        .refused(&alice(), "GET", "/v1/runs?user=bob", Value::Null)
        .await;
    assert!(text.contains("what bob ran is private here"), "{text}");
}

#[tokio::test]
async fn what_nodes_had_adds_up_to_what_was_held_down_and_idle() {
    let pool = Pool::new("privacy = \"own\"\n");
    let node = pool.node("node1", Role::Compute, 2).await;
    pool.node("node2", Role::Compute, 2).await;
    let before = pool
        .get(&alice(), "/v1/utilization?from=2020-01-01T00:00:00Z")
        .await;
    assert!(
        before["rows"][0]["allocated_hours"]
            .as_f64()
            .unwrap()
            .is_sign_positive(),
        "nothing was allocated, not -0.0: {before}"
    );
    let id = pool
        .submit(&alice(), json!({"request": {"gpus": "1"}}))
        .await;
    pool.pass().await;
    pool.running(node, id).await;
    let answer = until("what runs counts", async || {
        let answer = pool
            .get(
                &local(1001, "bob"),
                "/v1/utilization?from=2020-01-01T00:00:00Z",
            )
            .await;
        (answer["rows"][1]["allocated_hours"].as_f64()? > 0.0).then_some(answer)
    })
    .await;
    assert!(
        answer["known_from"].as_str().unwrap() > "2020-01-02",
        "the history begins with the cluster: {answer}"
    );
    assert_eq!(column(&answer, "rows", "tres"), ["cpu", "gres/gpu"]);
    let gpus = |key: &str| answer["rows"][1][key].as_f64().unwrap();
    assert!(gpus("idle_hours") > 0.0, "{answer}");
    assert!(
        (gpus("allocated_hours") + gpus("down_hours") + gpus("idle_hours") - gpus("hours")).abs()
            < 1e-9,
        "{answer}"
    );
    let unknown = pool
        .get(
            &alice(),
            "/v1/utilization?from=2020-01-01T00:00:00Z&to=2020-01-02T00:00:00Z",
        )
        .await;
    assert_eq!(
        (&unknown["known_from"], &unknown["rows"][0]["hours"]),
        (&answer["known_from"], &json!(0.0)),
        "from when on something is known"
    );
    let text = pool
        .refused(
            &alice(),
            "GET",
            "/v1/utilization?from=2026-01-02T00:00:00Z&to=2026-01-01T00:00:00Z",
            Value::Null,
        )
        .await;
    assert!(text.contains("is not before"), "{text}");
}

#[tokio::test]
async fn tasks_of_an_array_are_changed_together_and_a_star_is_all_of_it() {
    let pool = Pool::new("");
    pool.submit(
        &alice(),
        json!({"array": "1-5", "hold": true, "time_limit_secs": 600}),
    )
    .await;
    pool.post(
        &alice(),
        "/v1/jobs/update",
        json!({"job": "1_[3-4]", "change": {"nice": 7}}),
    )
    .await;
    for (task, nice) in [("1_2", 0), ("1_3", 7), ("1_4", 7), ("1_5", 0)] {
        assert_eq!(
            pool.get(&alice(), &format!("/v1/jobs/{task}")).await["jobs"][0]["nice"],
            nice,
            "{task}"
        );
    }
    let text = pool
        .refused(
            &alice(),
            "POST",
            "/v1/jobs/update",
            json!({"job": "1_[4-6]", "change": {"nice": 9}}),
        )
        .await;
    assert!(text.contains("has no array task 6"), "{text}");
    let text = pool
        .refused(
            &alice(),
            "POST",
            "/v1/jobs/update",
            json!({"job": "1_[1-1001]", "change": {"nice": 9}}),
        )
        .await;
    assert!(
        text.starts_with("400 invalid") && text.contains("more than 1000 tasks"),
        "{text}"
    );
    let done = pool
        .post(&alice(), "/v1/jobs/release", json!({"jobs": ["1_*"]}))
        .await;
    assert_eq!(done["results"][0]["ok"], true, "{done}");
    // A priority of zero is a hold, which any user may ask for.
    pool.post(
        &alice(),
        "/v1/jobs/update",
        json!({"job": "1_5", "change": {"priority": 0}}),
    )
    .await;
    assert_eq!(
        pool.get(&alice(), "/v1/jobs/1_5").await["jobs"][0]["reason"],
        "JobHeldUser"
    );
}

#[tokio::test]
async fn jobs_on_a_node_that_is_not_there_are_asked_for_in_vain() {
    let pool = Pool::new("");
    let node = pool.node("n1", Role::Compute, 4).await;
    let alice = local(1000, "alice");
    let job = pool.submit(&alice, json!({})).await;
    pool.pass().await;
    pool.running(node, job).await;
    assert_eq!(
        column(
            &pool.get(&alice, "/v1/jobs?nodelist=n1").await,
            "jobs",
            "shown_id"
        ),
        [job.to_string()]
    );
    let refused = pool
        .refused(&alice, "GET", "/v1/jobs?nodelist=n[1-2]", Value::Null)
        .await;
    assert_eq!(
        refused,
        r#"404 not_found: there is no node "n2". Did you mean "n1"?"#
    );
}

/// As squeue lists them, by what keeps them; the answer has a line for each set, not for each task.
#[tokio::test]
async fn a_set_of_held_tasks_is_one_line_of_its_own() {
    let pool = Pool::new("");
    let node = pool.node("node1", Role::Compute, 1).await;
    pool.submit(
        &alice(),
        json!({"array": "0-999", "request": {"gpus": "1"}}),
    )
    .await;
    let done = pool
        .post(
            &alice(),
            "/v1/jobs/hold",
            json!({"jobs": ["1_[0-499,2000-2001]"], "reason": "later"}),
        )
        .await;
    assert_eq!(
        column(&done, "results", "job"),
        ["1_[0-499]", "1_[2000-2001]"]
    );
    assert_eq!(
        (&done["results"][0]["ok"], &done["results"][1]["code"]),
        (&json!(true), &json!("not_found"))
    );
    pool.pass().await;
    pool.running(node, 501).await;
    let list = pool
        .get(&alice(), "/v1/jobs?columns=shown_id,state,reason,priority")
        .await;
    assert_eq!(
        column(&list, "jobs", "shown_id"),
        ["1_[501-999]", "1_[0-499]", "1_500"]
    );
    assert_eq!(
        column(&list, "jobs", "reason")[..2],
        ["Resources", "JobHeldUser"]
    );
    assert!(
        list["jobs"][1]["priority"] == 0 && list["jobs"][0]["priority"] != 0,
        "{list}"
    );
    let task = pool.get(&alice(), "/v1/jobs/1_7").await["jobs"][0].clone();
    assert_eq!(
        (
            &task["shown_id"],
            &task["reason"],
            &task["holds"][0]["reason"]
        ),
        (&json!("1_7"), &json!("JobHeldUser"), &json!("later"))
    );
    let why = pool.get(&alice(), "/v1/jobs/1_7/why").await["jobs"][0].clone();
    assert_eq!(
        (
            &why["reason"],
            &why["starts_now"],
            why["holds"][0]["owner"].as_str()
        ),
        (&json!("JobHeldUser"), &json!(false), Some("user:alice"))
    );
    let log = pool.get(&alice(), "/v1/jobs/1/log").await;
    assert!(
        column(&log, "events", "text")
            .iter()
            .any(|text| text.starts_with("tasks 0-499: held by")),
        "{log}"
    );
    // A filter means those lines, too; what runs goes on.
    pool.post(
        &alice(),
        "/v1/jobs/release",
        json!({"jobs": ["1_[10-499]"]}),
    )
    .await;
    pool.post(
        &alice(),
        "/v1/jobs/cancel",
        json!({"filter": {"state": "PENDING"}}),
    )
    .await;
    let list = pool.get(&alice(), "/v1/jobs?columns=shown_id,state").await;
    assert_eq!(column(&list, "jobs", "shown_id"), ["1_500"]);
}
