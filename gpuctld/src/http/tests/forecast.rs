//! Why a job waits and when it starts, over a real core and scheduler.

use super::pool::{Pool, column, local, request};
use crate::http::Peer;
use gmodel::node::Role;
use serde_json::{Value, json};

/// A node of four GPUs, of which alice's job holds so many for an hour.
async fn busy(config: &str, gpus: &str) -> (Pool, Peer, u64) {
    let pool = Pool::new(config);
    let node = pool.node("n1", Role::Compute, 4).await;
    let alice = local(1000, "alice");
    let first = pool
        .submit(
            &alice,
            json!({"request": {"gpus": gpus}, "time_limit_secs": 3600}),
        )
        .await;
    pool.pass().await;
    pool.running(node, first).await;
    (pool, alice, first)
}

#[tokio::test]
async fn why_names_what_is_in_the_way_and_what_would_start_it() {
    let (pool, alice, first) = busy("[partition.main]\nmax_time = \"4:00:00\"\n", "3").await;
    let big = pool
        .submit(
            &alice,
            json!({"request": {"gpus": "4"}, "time_limit_secs": 7200}),
        )
        .await;
    let small = pool
        .submit(
            &alice,
            json!({"request": {"gpus": "2"}, "time_limit_secs": 600, "hold": true}),
        )
        .await;
    pool.pass().await;
    let why = pool.get(&alice, &format!("/v1/jobs/{big}/why")).await["jobs"][0].clone();
    assert_eq!(
        (
            &why["state"],
            &why["reason"],
            &why["ahead"],
            &why["starts_now"]
        ),
        (
            &json!("PENDING"),
            &json!("Resources"),
            &json!(0),
            &json!(false)
        )
    );
    let blockers = why["blockers"].as_array().unwrap();
    assert_eq!(
        (
            blockers.len(),
            &blockers[0]["nearest"]["gpus_free"],
            &blockers[0]["nearest"]["gpus_needed"]
        ),
        (1, &json!(1), &json!(4)),
        "{why}"
    );
    assert_eq!(why["expected_nodes"], "n1");
    let changes = why["changes"].as_array().unwrap();
    assert!(
        changes
            .iter()
            .any(|change| change["option"] == "--gpus 1" && change["now"] == true),
        "{why}"
    );
    // Without the change it waits, with it it starts.
    let held = pool
        .post(
            &alice,
            "/v1/jobs/dry-run",
            request(json!({"request": {"gpus": "1"}, "time_limit_secs": 1800, "hold": true})),
        )
        .await;
    assert_eq!(
        (&held["reason"], &held["text"]),
        (
            &json!("JobHeldUser"),
            &json!("would wait in partition main (JobHeldUser): held by user:alice")
        )
    );
    let dry = pool
        .post(
            &alice,
            "/v1/jobs/dry-run",
            request(json!({"request": {"gpus": "1"}, "time_limit_secs": 1800})),
        )
        .await;
    assert!(
        dry["text"]
            .as_str()
            .unwrap()
            .starts_with("would start at once"),
        "{dry}"
    );

    let held = pool.get(&alice, &format!("/v1/jobs/{small}/why")).await["jobs"][0].clone();
    assert_eq!(column(&held, "blockers", "code")[0], "JobHeldUser");
    let running = pool.get(&alice, &format!("/v1/jobs/{first}/why")).await;
    assert_eq!(
        (
            &running["jobs"][0]["state"],
            &running["jobs"][0]["blockers"]
        ),
        (&json!("RUNNING"), &json!([]))
    );
    let text = pool
        .refused(&alice, "GET", "/v1/jobs/99/why", Value::Null)
        .await;
    assert!(
        text.starts_with("404 not_found: there is no job 99 in the queue"),
        "{text}"
    );
}

#[tokio::test]
async fn a_job_without_a_start_before_its_reservation_ends_is_told_so() {
    let pool = Pool::new("");
    let node = pool.node("n1", Role::Compute, 4).await;
    let alice = local(1000, "alice");
    let start = crate::core_thread::now().plus_secs(-60).to_string();
    let window = json!({"start": start, "duration_secs": 3600, "nodes": "n1", "users": ["alice"]});
    pool.post(
        &local(0, "root"),
        "/v1/reservations/course",
        json!({"create": true, "change": window}),
    )
    .await;
    let all_of_it =
        || json!({"request": {"gpus": "4"}, "reservation": "course", "time_limit_secs": 3600});
    let told = "; by what is known it does not start before reservation \"course\" ends at ";
    let first = pool
        .post(&alice, "/v1/jobs/dry-run", request(all_of_it()))
        .await;
    assert!(
        first["text"]
            .as_str()
            .unwrap()
            .starts_with("would start at once"),
        "{first}"
    );
    let running = pool.submit(&alice, all_of_it()).await;
    pool.pass().await;
    pool.running(node, running).await;
    let second = pool
        .post(&alice, "/v1/jobs/dry-run", request(all_of_it()))
        .await;
    assert!(
        second["expected_start"].is_null() && second["text"].as_str().unwrap().contains(told),
        "{second}"
    );
    let waiting = pool.submit(&alice, all_of_it()).await;
    pool.pass().await;
    let why = pool.get(&alice, &format!("/v1/jobs/{waiting}/why")).await["jobs"][0].clone();
    assert!(
        column(&why, "blockers", "text")
            .last()
            .unwrap()
            .contains(told),
        "{why}"
    );
    // Not of the job that starts when that one is over.
    let short = json!({"request": {"gpus": "4"}, "time_limit_secs": 60});
    let outside = pool.post(&alice, "/v1/jobs/dry-run", request(short)).await;
    assert!(
        !outside["text"].as_str().unwrap().contains(told),
        "{outside}"
    );
}

/// Plans that were made so far.
fn made(pool: &Pool) -> usize {
    pool.app
        .forecasts()
        .made
        .load(std::sync::atomic::Ordering::Relaxed)
}

#[tokio::test]
async fn questions_at_one_time_share_a_plan_no_older_than_they_are() {
    let (pool, alice, _) = busy("", "4").await;
    let mut jobs = Vec::new();
    for _ in 0..10 {
        jobs.push(
            pool.submit(
                &alice,
                json!({"request": {"gpus": "4"}, "time_limit_secs": 3600}),
            )
            .await,
        );
    }
    pool.pass().await;
    let paths: Vec<String> = jobs
        .iter()
        .map(|job| format!("/v1/jobs/{job}/why"))
        .chain(["/v1/starts".to_owned()])
        .collect();
    let mut alone = Vec::new();
    for path in &paths[..10] {
        alone.push(pool.get(&alice, path).await["jobs"][0]["ahead"].clone());
    }
    assert_eq!((made(&pool), &alone[9]), (10, &json!(9)));
    // The first makes its plan at once, the others wait for the next one together.
    let told = futures_of(paths.iter().map(|path| pool.get(&alice, path))).await;
    assert_eq!(made(&pool), 12);
    let starts = told[10]["jobs"].as_array().unwrap();
    for (at, told) in told[..10].iter().enumerate() {
        let why = &told["jobs"][0];
        assert_eq!(why["ahead"], alone[at]);
        let gap = time_of(&why["expected_start"]).since_secs(time_of(&starts[at]["latest"]));
        assert!(gap.abs() <= 1, "as gq --start has it: {why} {}", starts[at]);
    }
    // A question that arrives while a plan is made is about the state as it is then.
    let turn = pool.app.forecasts().turn().await;
    let late = async {
        let more = pool
            .submit(
                &alice,
                json!({"request": {"gpus": "4"}, "time_limit_secs": 3600}),
            )
            .await;
        drop(turn);
        pool.get(&alice, &format!("/v1/jobs/{more}/why")).await["jobs"][0].clone()
    };
    let (before, late) = tokio::join!(pool.get(&alice, &paths[9]), late);
    assert_eq!(
        (&before["jobs"][0]["ahead"], &late["ahead"]),
        (&json!(9), &json!(10))
    );
    assert!(!late["expected_start"].is_null(), "{late}");
}

#[tokio::test]
async fn a_closed_connection_leaves_the_plan_under_way_to_the_others() {
    let pool = Pool::new("");
    pool.node("n1", Role::Compute, 4).await;
    let alice = local(1000, "alice");
    let job = pool
        .submit(
            &alice,
            json!({"request": {"gpus": "4"}, "time_limit_secs": 3600, "hold": true}),
        )
        .await;
    let path = format!("/v1/jobs/{job}/why");
    let turn = pool.app.forecasts().turn().await;
    let mut first = Box::pin(pool.get(&alice, &path));
    let soon = std::time::Duration::from_millis(50);
    assert!(
        tokio::time::timeout(soon, &mut first).await.is_err(),
        "it waits for its turn"
    );
    let mut second = Box::pin(pool.get(&alice, &path));
    assert!(tokio::time::timeout(soon, &mut second).await.is_err());
    drop(first);
    drop(turn);
    assert_eq!(second.await["jobs"][0]["id"], job);
}

async fn futures_of<F: Future<Output = Value>>(all: impl Iterator<Item = F>) -> Vec<Value> {
    let mut waiting: Vec<_> = all.map(|one| (Box::pin(one), None)).collect();
    std::future::poll_fn(|context| {
        for (one, told) in waiting.iter_mut().filter(|(_, told)| told.is_none()) {
            if let std::task::Poll::Ready(value) = one.as_mut().poll(context) {
                *told = Some(value);
            }
        }
        if waiting.iter().all(|(_, told)| told.is_some()) {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
    waiting.into_iter().filter_map(|(_, told)| told).collect()
}

fn time_of(text: &Value) -> gmodel::Timestamp {
    gmodel::time::parse_rfc3339(text.as_str().unwrap()).unwrap()
}

#[tokio::test]
async fn starts_and_dry_runs_say_when_and_where() {
    let (pool, alice, _) = busy("", "4").await;
    let second = pool
        .submit(
            &alice,
            json!({"request": {"gpus": "4"}, "time_limit_secs": 3600}),
        )
        .await;
    pool.submit(
        &local(1001, "bob"),
        json!({"request": {"gpus": "4"}, "time_limit_secs": 3600}),
    )
    .await;
    let answer = pool.get(&alice, "/v1/starts").await;
    assert_eq!(column(&answer, "jobs", "ahead"), ["0", "1"]);
    assert_eq!(column(&answer, "jobs", "nodelist"), ["n1", "n1"]);
    let at = |row: usize| {
        gmodel::time::parse_rfc3339(answer["jobs"][row]["latest"].as_str().unwrap()).unwrap()
    };
    let gap = at(1).since_secs(at(0));
    assert!(
        (3590..3700).contains(&gap),
        "the third waits for the second: {answer}"
    );
    assert!(
        answer["jobs"][0]["earliest"].is_null(),
        "nothing ran yet that would tell"
    );
    assert_eq!(
        column(
            &pool.get(&alice, "/v1/starts?user=alice").await,
            "jobs",
            "id"
        ),
        [second.to_string()]
    );
    let later = pool
        .submit(
            &alice,
            json!({"request": {"gpus": "1"}, "begin": 32_472_144_000_000_i64}),
        )
        .await;
    let row = pool.get(&alice, "/v1/starts").await["jobs"]
        .as_array()
        .unwrap()
        .iter()
        .find(|row| row["id"] == later)
        .cloned()
        .unwrap();
    assert_eq!(
        (&row["expected"], &row["earliest"]),
        (
            &json!("2999-01-01T00:00:00Z"),
            &json!("2999-01-01T00:00:00Z")
        ),
        "{row}"
    );
    let dry = pool
        .post(
            &alice,
            "/v1/jobs/dry-run",
            request(json!({"request": {"gpus": "2"}, "time_limit_secs": 600})),
        )
        .await;
    assert!(
        dry["text"].as_str().unwrap().contains("; would start by ")
            && dry["expected_nodes"] == "n1",
        "{dry}"
    );
    assert!(!dry["blockers"].as_array().unwrap().is_empty(), "{dry}");
    assert_eq!(pool.core.view().await.jobs.len(), 4, "nothing was kept");
}

#[tokio::test]
async fn the_start_of_an_array_is_that_of_its_next_task() {
    let (pool, alice, _) = busy("", "4").await;
    let array = pool
        .submit(
            &alice,
            json!({"array": "1-10", "request": {"gpus": "2"}, "time_limit_secs": 3600}),
        )
        .await;
    let answer = pool.get(&alice, "/v1/starts").await;
    let row = &answer["jobs"][0];
    assert_eq!(
        (&row["id"], &row["shown_id"]),
        (&json!(array), &json!(format!("{array}_[1-10]")))
    );
    let of_task = async |task: u32| {
        let path = format!("/v1/starts?job={array}_{task}");
        pool.get(&alice, &path).await["jobs"][0].clone()
    };
    let (first, third) = (of_task(1).await, of_task(3).await);
    assert_eq!(third["shown_id"], json!(format!("{array}_3")));
    assert!(row["latest"].is_string(), "{row}");
    assert_eq!(first["latest"], row["latest"]);
    assert!(third["latest"].is_null(), "{third}");
    // What stands in a task's way is told too; a task with a hold has no start.
    let why = async |task: u32| {
        let path = format!("/v1/jobs/{array}_{task}/why");
        pool.get(&alice, &path).await["jobs"][0].clone()
    };
    assert_eq!(column(&why(3).await, "blockers", "code"), ["Resources"]);
    assert_eq!(
        why(1).await["expected_start"],
        first["latest"],
        "as gq --start has it"
    );
    let held = pool.submit(&alice, json!({"array": "1-3", "hold": true, "request": {"gpus": "2"}, "time_limit_secs": 3600})).await;
    let row = pool.get(&alice, &format!("/v1/starts?job={held}")).await["jobs"][0].clone();
    assert!(row["latest"].is_null(), "{row}");
}

#[tokio::test]
async fn a_job_at_a_limit_has_no_start_and_the_first_holder_to_end_is_named() {
    let pool = Pool::new("");
    let node = pool.node("n1", Role::Compute, 4).await;
    let alice = local(1000, "alice");
    let array = pool
        .submit(
            &alice,
            json!({"array": "1-2%1", "request": {"cpus_per_task": 1}, "time_limit_secs": 3600}),
        )
        .await;
    pool.pass().await;
    pool.running(node, array).await;
    let row = pool.get(&alice, &format!("/v1/starts?job={array}_2")).await["jobs"][0].clone();
    let text = row["explanation"].as_str().unwrap_or_default();
    assert!(row["latest"].is_null(), "{row}");
    assert!(
        text.starts_with(&format!(
            "the array allows 1 at once, and 1 of its tasks run; job {array} ends first of its holders, by 2"
        )),
        "{row}"
    );
}

#[tokio::test]
async fn what_a_dry_run_proposes_starts_as_it_would_be_submitted() {
    // Fewer CPUs for each task bring the tasks to fewer nodes, on which they may not fit beside the others.
    let pool = Pool::new("");
    for name in ["n1", "n2", "n3"] {
        pool.node(name, Role::Compute, 4).await;
    }
    let alice = local(1000, "alice");
    for name in ["n1", "n2"] {
        pool.submit(&alice, json!({"request": {"nodelist": name, "cpus_per_task": 10, "gpus": "1"}, "time_limit_secs": 3600})).await;
    }
    pool.pass().await;
    let mut proposed = 0;
    for tasks in 2..24 {
        for cpus in [2, 3, 5] {
            let request_of = |tasks: u32, cpus: u32| json!({"request": {"ntasks": tasks, "nodes_any": true, "cpus_per_task": cpus}, "time_limit_secs": 600});
            let (status, dry) = pool
                .ask(
                    &alice,
                    "POST",
                    "/v1/jobs/dry-run",
                    request(request_of(tasks, cpus)),
                )
                .await;
            if status.as_u16() != 200 || dry.get("start").is_some() {
                continue;
            }
            for change in dry["changes"].as_array().into_iter().flatten() {
                let Some(cpus) = change["option"]
                    .as_str()
                    .unwrap()
                    .strip_prefix("--cpus-per-task ")
                else {
                    continue;
                };
                let again = pool
                    .post(
                        &alice,
                        "/v1/jobs/dry-run",
                        request(request_of(tasks, cpus.parse().unwrap())),
                    )
                    .await;
                assert!(
                    again["text"]
                        .as_str()
                        .unwrap()
                        .starts_with("would start at once"),
                    "{tasks} tasks, {change}: {again}"
                );
                proposed += 1;
            }
        }
    }
    assert!(proposed > 0);
}

#[tokio::test]
async fn a_dry_run_says_of_each_kind_whether_it_would_start_and_its_price() {
    let pool = Pool::new(
        "[[price]]\ngpu_type = \"h100\"\nfrom = 2020-01-01\nper_gpu_hour = 2.5\n
         [[price]]\ngpu_type = \"a100\"\nfrom = 2999-01-01\nper_gpu_hour = 1\n",
    );
    let node = pool.node("n1", Role::Compute, 4).await;
    let alice = local(1000, "alice");
    let busy = pool
        .submit(
            &alice,
            json!({"request": {"gpus": "3"}, "time_limit_secs": 3600}),
        )
        .await;
    pool.pass().await;
    pool.running(node, busy).await;
    let dry = async |gpus: &str| {
        pool.post(
            &alice,
            "/v1/jobs/dry-run",
            request(json!({"request": {"gpus": gpus}, "time_limit_secs": 600})),
        )
        .await
    };
    let several = dry("h100:2|h100:1").await;
    let rows = [
        json!({"gpus": "h100:2", "starts_now": false, "price_per_hour": 5.0, "cost": 0.833333}),
        json!({"gpus": "h100:1", "starts_now": true, "price_per_hour": 2.5, "cost": 0.416667}),
    ];
    assert_eq!(several["alternatives"], json!(rows), "{several}");
    assert!(
        several["text"].as_str().unwrap().ends_with(
            "; h100:2 would wait (5.00 an hour, 0.83 for its time limit), h100:1 would start at once (2.50 an hour, 0.42 for its time limit)"
        ),
        "{several}"
    );
    // What no node has is no matter of waiting.
    let never = dry("h200:1|h100:9|h100:1").await;
    let told: Vec<&str> = never["alternatives"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["never"].as_str().unwrap_or(""))
        .collect();
    let none_such = "1 h200 on one node: partition \"main\" has none such (it has h100).";
    assert_eq!(
        told,
        [
            none_such,
            "9 h100 on one node: the largest node in partition \"main\" has 4. Ask for fewer.",
            ""
        ],
        "{never}"
    );
    assert!(
        never["text"].as_str().unwrap().contains(
            "; h200:1 can never start: 1 h200 on one node: partition \"main\" has none such"
        ),
        "{never}"
    );
    let one = dry("h100:1").await;
    assert!(
        one["text"]
            .as_str()
            .unwrap()
            .ends_with("; its GPUs cost 2.50 an hour, 0.42 for its time limit"),
        "{one}"
    );
    // Of any type it is not known.
    assert!(dry("1").await["alternatives"].is_null());
    // A price that is not in force yet is none.
    assert_eq!(
        pool.core
            .view()
            .await
            .config
            .scheduler
            .money
            .price_at("a100", crate::core_thread::now()),
        None
    );
}

#[tokio::test]
async fn of_several_partitions_each_says_what_is_in_the_way() {
    let pool = Pool::new(
        "[partition.day]\nnodes = \"n1\"\ndefault = true\n[partition.night]\nnodes = \"n2\"\n",
    );
    let node = pool.node("n1", Role::Compute, 4).await;
    pool.node("n2", Role::Compute, 2).await;
    let alice = local(1000, "alice");
    let first = pool
        .submit(
            &alice,
            json!({"request": {"gpus": "4"}, "time_limit_secs": 3600}),
        )
        .await;
    pool.submit(
        &alice,
        json!({"request": {"gpus": "2"}, "time_limit_secs": 60, "partition": "night"}),
    )
    .await;
    pool.pass().await;
    pool.running(node, first).await;
    let both = pool
        .submit(
            &alice,
            json!({"request": {"gpus": "1"}, "time_limit_secs": 600, "partition": "day,night"}),
        )
        .await;
    pool.pass().await;
    let why = pool.get(&alice, &format!("/v1/jobs/{both}/why")).await["jobs"][0].clone();
    assert_eq!(
        (&why["partition"], &why["blockers"][0]["code"]),
        (&json!("day"), &json!("Resources")),
        "{why}"
    );
    assert_eq!(
        (
            &why["elsewhere"][0]["partition"],
            &why["elsewhere"][0]["blockers"][0]["code"]
        ),
        (&json!("night"), &json!("Resources"))
    );
    assert_eq!(
        (&why["expected_partition"], &why["expected_nodes"]),
        (&json!("night"), &json!("n2")),
        "it is free first: {why}"
    );
    for partition in ["day", "night"] {
        let listed = pool
            .get(
                &alice,
                &format!("/v1/jobs?partition={partition}&state=PENDING"),
            )
            .await;
        assert_eq!(column(&listed, "jobs", "partition"), ["day,night"]);
    }
    assert_eq!(
        column(&pool.get(&alice, "/v1/priorities").await, "jobs", "id"),
        [both.to_string()],
        "one line for one job"
    );
    let priorities = pool.get(&alice, "/v1/priorities").await;
    let of_both = &priorities["jobs"][0];
    let partitions = [
        &of_both["by_partition"][0]["partition"],
        &of_both["by_partition"][1]["partition"],
    ];
    assert_eq!(
        (&of_both["partition"], partitions),
        (&json!("day,night"), [&json!("day"), &json!("night")])
    );
    let dry = pool
        .post(
            &alice,
            "/v1/jobs/dry-run",
            request(
                json!({"request": {"gpus": "3"}, "time_limit_secs": 60, "partition": "night,day"}),
            ),
        )
        .await;
    assert_eq!(dry["partition"], "day");
    assert!(
        dry["notes"][0]
            .as_str()
            .unwrap()
            .starts_with("the job does not wait in partition night: 3 GPUs on one node"),
        "{dry}"
    );
}
