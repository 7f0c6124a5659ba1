//! Dependencies on jobs that are over and left the memory: the database knows how they ended.

use super::pool::{Pool, column, local, until_forgotten};
use crate::http::Peer;
use gmodel::ExitCode;
use gmodel::node::Role;
use serde_json::{Value, json};

fn alice() -> Peer {
    local(1000, "alice")
}

#[tokio::test]
async fn what_left_memory_is_looked_up() {
    let pool = Pool::new("min_job_age_secs = 0\n");
    let node = pool.node("node1", Role::Compute, 2).await;
    let well = pool.submit(&alice(), json!({"name": "well"})).await;
    let array = pool
        .submit(&alice(), json!({"name": "tasks", "array": "5-6"}))
        .await;
    pool.pass().await;
    for (job, code) in [(well, 0), (array, 0), (array + 1, 3)] {
        pool.running(node, job).await;
        pool.ended(node, job, ExitCode::exited(code)).await;
    }
    until_forgotten(&pool).await;
    let depends = [
        ("afterok:1", "None"),
        ("afternotok:1", "DependencyNeverSatisfied"),
        ("afterok:2", "DependencyNeverSatisfied"),
        ("afternotok:2", "None"),
        ("afterok:2_5", "None"),
        ("afterok:3", "DependencyNeverSatisfied"),
        ("after:2+0", "None"),
    ];
    let mut ids = Vec::new();
    for (text, _) in depends {
        ids.push(
            pool.submit(
                &alice(),
                json!({"dependency": text, "request": {"gpus": "2"}, "hold": true}),
            )
            .await,
        );
    }
    let state = pool.core.view().await;
    for (id, (text, reason)) in ids.iter().zip(depends) {
        let waits = &state.jobs.get(gmodel::JobId(*id)).unwrap().waits;
        let never = waits
            .as_ref()
            .is_some_and(|waits| waits.on[0].never.is_some());
        assert_eq!(
            (waits.is_none(), never),
            (reason == "None", reason != "None"),
            "{text}"
        );
    }
    let body = json!({"spec": {"dependency": "afterok:99", "launch": {"work_dir": "/w"}}, "script": "#!/bin/sh\n"});
    let text = pool.refused(&alice(), "POST", "/v1/jobs", body).await;
    assert!(text.contains("there has never been a job 99"), "{text}");
    let listed = pool.get(&alice(), "/v1/jobs?columns=id").await;
    assert_eq!(column(&listed, "jobs", "id").len(), depends.len());
    assert_eq!(listed["jobs"][0].get("waits"), None::<&Value>);
}
