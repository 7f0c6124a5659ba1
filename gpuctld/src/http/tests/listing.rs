//! The queue as `gq` gets it: order, columns, filters, arrays.

use super::pool::{Pool, column, local, request};
use crate::http::Peer;
use gcore::ctl::NodeReport;
use gmodel::node::{HungRun, Inventory, Role};
use gmodel::run::{RunEnd, RunPhase};
use gmodel::{ExitCode, JobId, RunId};
use gwire::api::JobRow;
use serde_json::{Value, json};
use std::collections::BTreeSet;

fn alice() -> Peer {
    local(1000, "alice")
}

#[tokio::test]
async fn what_waits_comes_first_then_what_runs() {
    let pool = Pool::new("");
    let node = pool.node("node1", Role::Compute, 2).await;
    let run = pool
        .submit(
            &alice(),
            json!({"name": "run", "request": {"gpus": "h100:2"}}),
        )
        .await;
    pool.pass().await;
    pool.running(node, run).await;
    pool.submit(
        &alice(),
        json!({"name": "late", "nice": 10, "request": {"gpus": "1"}}),
    )
    .await;
    pool.submit(&alice(), json!({"name": "soon", "request": {"gpus": "1"}}))
        .await;
    pool.submit(&alice(), json!({"name": "held", "hold": true}))
        .await;
    pool.pass().await;
    let list = pool.get(&alice(), "/v1/jobs").await;
    assert_eq!(
        column(&list, "jobs", "name"),
        ["soon", "late", "held", "run"]
    );
    let reasons = column(&list, "jobs", "reason");
    assert_eq!(
        [&reasons[0], &reasons[2], &reasons[3]],
        ["Resources", "JobHeldUser", "None"]
    );
    assert_eq!(column(&list, "jobs", "nodelist"), ["", "", "", "node1"]);
    let running = &list["jobs"][3];
    assert_eq!(running["gpus_held"], json!(["node1:h100:0-1"]));
    let held = &running["held"][0];
    assert!(
        held["node"] == "node1"
            && held["cpus"].as_u64() > Some(0)
            && held["mem_bytes"].as_u64() > Some(0),
        "{held}"
    );
    assert_eq!(
        (&running["gpus"], &running["gpu_count"]),
        (&json!("h100:2"), &json!(2.0))
    );
    assert_eq!(list["jobs"][2]["priority"], 0);
}

#[tokio::test]
async fn of_a_completing_job_it_is_said_which_processes_do_not_die() {
    let pool = Pool::new("");
    let node = pool.node("node1", Role::Compute, 2).await;
    let job = pool
        .submit(&alice(), json!({"request": {"gpus": "h100:2"}}))
        .await;
    pool.pass().await;
    pool.running(node, job).await;
    pool.report(node, job, RunPhase::Ended(RunEnd::default().into()))
        .await;
    let hung = |text: &str| HungRun {
        run: Some(RunId::new(JobId(job), 1)),
        text: text.into(),
    };
    let inventory = Inventory {
        cpus: 16,
        mem_bytes: 64 << 30,
        hung: vec![hung("4711 (python, D in nfs_wait)")],
        ..Inventory::default()
    };
    pool.core
        .node_input(node, NodeReport::Inventory { inventory })
        .await
        .unwrap();
    let row = &pool.get(&alice(), "/v1/jobs").await["jobs"][0];
    assert_eq!(
        (&row["state"], &row["reason_text"]),
        (
            &json!("COMPLETING"),
            &json!("node1: 4711 (python, D in nfs_wait)")
        )
    );
    let nodes = pool.get(&alice(), "/v1/nodes").await;
    assert_eq!(
        nodes["nodes"][0]["hung"],
        json!([format!("job {job}: 4711 (python, D in nfs_wait)")])
    );
    pool.core
        .node_input(
            node,
            NodeReport::Inventory {
                inventory: Inventory::default(),
            },
        )
        .await
        .unwrap();
    let row = &pool.get(&alice(), "/v1/jobs").await["jobs"][0];
    assert_eq!(
        (&row["state"], row.get("reason_text")),
        (&json!("COMPLETING"), None)
    );
}

#[tokio::test]
async fn partitions_follow_each_other_by_name_as_in_squeue() {
    let pool = Pool::new("[partition.b]\ndefault = true\n[partition.a]\n");
    pool.submit(&alice(), json!({"partition": "b"})).await;
    pool.submit(&alice(), json!({"partition": "a"})).await;
    assert_eq!(
        column(&pool.get(&alice(), "/v1/jobs").await, "jobs", "partition"),
        ["a", "b"]
    );
}

#[tokio::test]
async fn only_the_columns_asked_for_are_sent() {
    let pool = Pool::new("");
    pool.submit(&alice(), json!({"name": "a \"b\""})).await;
    let list = pool
        .get(&alice(), "/v1/jobs?columns=name,id,user,array_id")
        .await;
    assert_eq!(
        list,
        json!({"schema": 1, "jobs": [{"id": 1, "name": "a \"b\"", "user": "alice"}]})
    );
}

#[tokio::test]
async fn every_key_of_a_row_is_a_column_and_reads_back() {
    let pool = Pool::new("");
    let keys: BTreeSet<&str> = crate::http::job::column::COLUMNS
        .iter()
        .map(|column| column.key)
        .chain(["id"])
        .collect();
    let full: JobRow = JobRow {
        array_id: Some(1),
        array_index: Some(1),
        array_tasks: Some("1".into()),
        component_ids: Some("1-2".into()),
        reason_text: "x".into(),
        mem_per: "x".into(),
        gpus_per: Some("x".into()),
        gpus_held: vec!["x".into()],
        held: vec![gwire::api::HeldRow::default()],
        gpu_uuids: vec!["x".into()],
        gpu_events: vec!["x".into()],
        image: "x".into(),
        gpu_links: vec!["x".into()],
        imex_channel: Some(1),
        time_limit_secs: Some(1),
        end_text: "x".into(),
        tres_bind: "x".into(),
        holds: vec![gwire::api::MarkRow {
            owner: "x".into(),
            reason: String::new(),
            since: gmodel::Instant(gmodel::Timestamp(0)),
        }],
        later: [("a".to_owned(), "b".to_owned())].into(),
        mail_type: Some("x".into()),
        mail_user: Some("x".into()),
        idle: Some("x".into()),
        pull: "x".into(),
        idle_exempt: true,
        allocation: true,
        position: Some(1),
        class: Some("x".into()),
        dependency: "x".into(),
        licences: "x".into(),
        reservation: Some("x".into()),
        token: Some("x".into()),
        prefer: Some("x".into()),
        nvlink: true,
        switches: Some("x".into()),
        time_min_secs: Some(1),
        deadline: Some(gmodel::Instant(gmodel::Timestamp(0))),
        borrow: Some(true),
        checkpoint: Some("x".into()),
        last_mark: Some(gwire::api::CheckpointMarkRow::default()),
        preempted_time: Some(gmodel::Instant(gmodel::Timestamp(0))),
        preempted_for: Some("x".into()),
        // Only where one job is asked for: from the database.
        preemptions: None,
        ..JobRow::default()
    };
    let full = serde_json::to_value(&full).unwrap();
    let of_row: BTreeSet<&str> = full
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    assert_eq!(keys, of_row);

    pool.node("n1", Role::Compute, 2).await;
    let spec = json!({"name": "a \"b\"", "comment": "ä\\", "array": "0-3%2", "tags": ["t"], "later": {"dependency": "x"},
        "launch": {"work_dir": "/w", "mail_type": "END"}, "request": {"gpus": "h100:2", "mem": {"per_node": 1048576}, "nodelist": "n1"}});
    let id = pool.submit(&alice(), spec).await;
    let list = pool.get(&alice(), "/v1/jobs").await;
    let row: JobRow = serde_json::from_value(list["jobs"][0].clone()).unwrap();
    assert_eq!(
        (
            row.id,
            row.shown_id.as_str(),
            row.name.as_str(),
            row.comment.as_str()
        ),
        (id, "1_[0-3%2]", "a \"b\"", "ä\\")
    );
    assert_eq!(
        (row.mem.as_str(), row.gpu_count, row.stdout.as_str()),
        ("1M", 2.0, "/w/gsub-%A_%a.out")
    );
}

#[tokio::test]
async fn of_an_array_that_waits_task_by_task_each_task_says_what_became_of_its_partner() {
    let pool = Pool::new("");
    let node = pool.node("n1", Role::Compute, 1).await;
    pool.submit(&alice(), json!({"array": "0-3%2"})).await;
    let second = pool
        .submit(
            &alice(),
            json!({"array": "0-3", "dependency": "aftercorr:1"}),
        )
        .await;
    pool.pass().await;
    let running = pool.get(&alice(), "/v1/jobs?state=RUNNING").await;
    for row in running["jobs"].as_array().unwrap() {
        let id = row["id"].as_u64().unwrap();
        pool.running(node, id).await;
        pool.ended(node, id, ExitCode::exited(1)).await;
    }
    let list = pool
        .get(&alice(), &format!("/v1/jobs?job={second}&expand=true"))
        .await;
    assert_eq!(
        column(&list, "jobs", "dependency"),
        [
            "aftercorr:1(failed)",
            "aftercorr:1(failed)",
            "aftercorr:1(unfulfilled)",
            "aftercorr:1(unfulfilled)"
        ]
    );
}

#[tokio::test]
async fn what_the_scheduler_was_asked_for_is_shown() {
    let pool = Pool::new(
        "[licences]\nmatlab = 4\n[[account.a.budget]]\nkind = \"guaranteed\"\ngpu_hours = 1\nperiod = \"day\"\n",
    );
    pool.node("n1", Role::Compute, 1).await;
    let first = pool
        .submit(&alice(), json!({"request": {"gpus": "1"}}))
        .await;
    let spec = json!({"dependency": format!("afterok:{first}"), "licences": {"matlab": 2}, "time_min_secs": 60, "borrow": true,
        "checkpoint": {"how": {"signal": 10}, "grace_secs": 120}, "deadline": 4_000_000_000_000_i64,
        "request": {"gpus": "1", "nvlink": true, "switches": {"most": 1, "wait_secs": 1800}, "prefer": "ib"}});
    let id = pool.submit(&alice(), spec).await;
    let row = pool.get(&alice(), &format!("/v1/jobs/{id}")).await["jobs"][0].clone();
    let shown = |key: &str| row[key].to_string();
    assert_eq!(
        shown("dependency"),
        format!("\"afterok:{first}(unfulfilled)\"")
    );
    assert_eq!(
        (shown("licences"), shown("switches"), shown("checkpoint")),
        (
            "\"matlab:2\"".into(),
            "\"1@00:30:00\"".into(),
            "\"USR1@120\"".into()
        )
    );
    assert_eq!(
        (
            shown("nvlink"),
            shown("borrow"),
            shown("time_min_secs"),
            shown("prefer")
        ),
        ("true".into(), "true".into(), "60".into(), "\"ib\"".into())
    );
    assert_eq!(
        (shown("position"), shown("deadline")),
        ("2".into(), "\"2096-10-02T07:06:40Z\"".into())
    );
    assert_eq!(shown("class"), "null", "it waits for another job");
    let refused = pool
        .refused(
            &alice(),
            "POST",
            "/v1/jobs",
            super::pool::request(json!({"priority": 5})),
        )
        .await;
    assert_eq!(
        refused,
        "403 denied: --priority 5: only operators set a job's priority. With --nice you may lower it"
    );
    let change = json!({"job": id.to_string(), "change": {"dependency": null, "licences": "matlab:1", "checkpoint": "TERM@60"}});
    pool.post(&alice(), "/v1/jobs/update", change).await;
    let row = pool.get(&alice(), &format!("/v1/jobs/{id}")).await["jobs"][0].clone();
    assert_eq!(
        (&row["licences"], &row["checkpoint"], &row["dependency"]),
        (&json!("matlab:1"), &json!("TERM@60"), &Value::Null)
    );
    assert_eq!(row["class"], json!("borrowed"));
}

#[tokio::test]
async fn an_array_is_one_row_until_it_is_expanded() {
    let pool = Pool::new("");
    let node = pool.node("node1", Role::Compute, 2).await;
    let id = pool.submit(&alice(), json!({"array": "1,3,5-9%2"})).await;
    pool.pass().await;
    let list = pool
        .get(
            &alice(),
            "/v1/jobs?columns=shown_id,state,array_index,array_tasks",
        )
        .await;
    assert_eq!(
        column(&list, "jobs", "shown_id"),
        [
            format!("{id}_[5-9%2]"),
            format!("{id}_1"),
            format!("{id}_3")
        ]
    );
    assert_eq!(
        column(&list, "jobs", "array_tasks"),
        ["5-9%2", "null", "null"]
    );
    let bare = pool
        .get(
            &alice(),
            "/v1/jobs?bare=true&columns=id,shown_id,array_tasks,state",
        )
        .await;
    assert_eq!(
        bare["jobs"][0],
        json!([id, "1_[5-9%2]", "5-9%2", "PENDING"])
    );
    assert_eq!(
        bare["jobs"][2],
        json!([id + 1, "1_3", null, "RUNNING"]),
        "what a row does not have keeps its place"
    );
    let list = pool
        .get(&alice(), "/v1/jobs?expand=true&columns=shown_id&state=PD")
        .await;
    assert_eq!(
        column(&list, "jobs", "shown_id"),
        ["1_5", "1_6", "1_7", "1_8", "1_9"]
    );
    assert_eq!(list["jobs"][0]["id"], id + 2, "each has the id of its own");
    pool.running(node, id).await;
    let list = pool.get(&alice(), "/v1/jobs/1_[3,5]").await;
    assert_eq!(column(&list, "jobs", "state"), ["PENDING", "RUNNING"]);
    pool.post(&alice(), "/v1/jobs/cancel", json!({"jobs": ["1_[5-8]"]}))
        .await;
    let list = pool
        .get(&alice(), "/v1/jobs?columns=shown_id,array_index")
        .await;
    assert_eq!(
        list["jobs"][0]["shown_id"], "1_9",
        "one waiting task is written by its index"
    );
    let list = pool
        .get(&alice(), "/v1/jobs?columns=shown_id&state=CA")
        .await;
    assert_eq!(column(&list, "jobs", "shown_id"), ["1_[5-8%2]"]);
}

#[tokio::test]
async fn filters_mean_what_squeue_means() {
    let pool = Pool::new("[partition.a]\ndefault = true\n[partition.b]\n");
    let node = pool.node("node1", Role::Compute, 1).await;
    let bob = local(1001, "bob");
    pool.submit(&alice(), json!({"name": "one", "account": "phys"}))
        .await;
    pool.submit(&bob, json!({"name": "two", "partition": "b"}))
        .await;
    pool.submit(
        &alice(),
        json!({"name": "three", "array": "1-3", "hold": true}),
    )
    .await;
    pool.pass().await;
    pool.running(node, 1).await;
    pool.ended(node, 2, ExitCode::exited(3)).await;
    for (query, names) in [
        ("", vec!["three", "one"]),
        ("state=all", vec!["three", "one", "two"]),
        ("state=F", vec!["two"]),
        ("state=pd,r&user=alice", vec!["three", "one"]),
        ("user=bob", vec![]),
        ("account=phys", vec!["one"]),
        ("name=three,one&partition=a", vec!["three", "one"]),
        ("nodelist=node[1-1]", vec!["one"]),
        ("job=3_2,1", vec!["three", "one"]),
        ("job=3,4", vec!["three", "three"]),
        ("job=999", vec![]),
    ] {
        let list = pool
            .get(&alice(), &format!("/v1/jobs?columns=name&{query}"))
            .await;
        assert_eq!(column(&list, "jobs", "name"), names, "{query}");
    }
}

#[tokio::test]
async fn questions_that_cannot_be_read_are_refused_with_a_guess() {
    let pool = Pool::new("");
    for (query, want) in [
        (
            "usre=bob",
            "400 invalid: unknown key \"usre\" in the query. Did you mean \"user\"?",
        ),
        (
            "state=RUNING",
            "400 invalid: \"RUNING\" is no state of a job. Did you mean \"RUNNING\"?",
        ),
        (
            "columns=nmae",
            "400 invalid: there is no column \"nmae\". Did you mean \"name\"?",
        ),
        (
            "job=x1",
            "400 invalid: \"x1\" names no job. Write 17, 17+1, 98_5 or 98_[1-3]",
        ),
        ("nodelist=n[", "400 invalid: host list item"),
        (
            "nodelist=node[1-2]",
            "404 not_found: there is no node \"node1\"",
        ),
        (
            "expand=maybe",
            "400 invalid: expand = \"maybe\" is neither true nor false",
        ),
        (
            "user=a&user=b",
            "400 invalid: \"user\" is twice in the query",
        ),
    ] {
        let text = pool
            .refused(&alice(), "GET", &format!("/v1/jobs?{query}"), Value::Null)
            .await;
        assert!(text.starts_with(want), "{query}: {text}");
    }
    let text = pool.refused(&alice(), "GET", "/v1/jbos", Value::Null).await;
    assert!(
        text.starts_with("404 not_found: there is no GET /v1/jbos"),
        "{text}"
    );
    let text = pool
        .refused(&alice(), "DELETE", "/v1/jobs", Value::Null)
        .await;
    assert!(
        text.starts_with("405 invalid: /v1/jobs does not take DELETE"),
        "{text}"
    );
}

#[tokio::test]
async fn a_long_queue_comes_in_pieces_and_in_order() {
    let pool = Pool::new("");
    for _ in 0..40 {
        pool.submit(&alice(), json!({"array": "0-99"})).await;
    }
    pool.post(&alice(), "/v1/jobs", request(json!({"name": "last"})))
        .await;
    let list = pool
        .get(
            &alice(),
            "/v1/jobs?expand=1&columns=shown_id,name,user,state,partition,reason,elapsed_secs",
        )
        .await;
    let ids: Vec<u64> = list["jobs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["id"].as_u64().unwrap())
        .collect();
    assert_eq!(ids, (1..=4001).collect::<Vec<_>>());
}
