//! Accounting as `gacct` gets it: columns, order, pieces, what waits beside what ran.

use super::pool::{Pool, column, local};
use gmodel::ExitCode;
use gmodel::node::Role;
use gwire::api::RunRow;
use serde_json::{Value, json};

/// More than one piece of an answer has.
const JOBS: usize = 530;

#[tokio::test]
async fn a_long_listing_comes_whole_and_in_order_with_the_columns_asked_for() {
    let (pool, alice) = (
        Pool::new("[partition.a]\ndefault = true\n[partition.b]\n"),
        local(1000, "alice"),
    );
    for number in 0..JOBS {
        pool.submit(
            &alice,
            json!({"name": format!("job {number}"), "partition": "a,b"}),
        )
        .await;
    }
    let wanted = |state: &str| -> Vec<Value> {
        (0..JOBS)
            .map(|number| json!([number + 1, format!("job {number}"), null, state]))
            .collect()
    };
    let listed = async |filter: &str| {
        pool.get(
            &alice,
            &format!("/v1/runs?columns=name,array_id,state&bare=true&{filter}"),
        )
        .await["runs"]
            .clone()
    };
    assert_eq!(
        listed("partition=b").await,
        json!(wanted("PENDING")),
        "it may start in either"
    );
    assert_eq!(listed("partition=c").await, json!([]));
    pool.post(
        &alice,
        "/v1/jobs/cancel",
        json!({"filter": {"user": "alice"}}),
    )
    .await;
    assert_eq!(
        listed("partition=b").await,
        json!(wanted("CANCELLED")),
        "it never started in one of them"
    );
    assert_eq!(
        listed("limit=2&partition=a").await,
        json!(wanted("CANCELLED")[JOBS - 2..])
    );
    assert_eq!(listed("state=PENDING").await, json!([]));
    let refused = pool
        .refused(&alice, "GET", "/v1/runs?columns=nam", Value::Null)
        .await;
    assert!(
        refused.contains("there is no column \"nam\". Did you mean \"name\"?"),
        "{refused}"
    );
}

#[tokio::test]
async fn a_row_with_all_keys_is_the_sum_of_its_columns() {
    let (pool, alice) = (Pool::new(""), local(1000, "alice"));
    let node = pool.node("node1", Role::Compute, 2).await;
    let job = pool
        .submit(
            &alice,
            json!({"name": "train", "tags": ["x"], "comment": "c", "request": {"gpus": "h100:2"}}),
        )
        .await;
    pool.pass().await;
    pool.running(node, job).await;
    pool.ended(node, job, ExitCode::SUCCESS).await;
    for query in [
        "job=1",
        "job=1&attempts=true",
        "job=1&steps=true&detail=true",
    ] {
        let whole = pool.get(&alice, &format!("/v1/runs?{query}")).await["runs"][0].clone();
        let row: RunRow = serde_json::from_value(whole.clone()).unwrap();
        assert_eq!(
            (
                row.gpus.as_str(),
                row.gpu_count,
                row.nodelist.as_str(),
                row.attempt
            ),
            ("h100:2", 2.0, "node1", 1),
            "{query}"
        );
        assert_eq!(
            (row.detail.is_some(), row.steps.len()),
            (
                query.contains("detail"),
                usize::from(query.contains("detail"))
            ),
            "{query}"
        );
        for (key, value) in whole.as_object().unwrap() {
            let one = pool
                .get(&alice, &format!("/v1/runs?{query}&columns={key}"))
                .await["runs"][0]
                .clone();
            assert_eq!(&one[key], value, "{key}");
            assert!(one.as_object().unwrap().len() <= 2, "{one}");
        }
    }
}

#[tokio::test]
async fn an_unasked_column_still_hides_what_is_private() {
    let pool = Pool::new("privacy = \"own\"\n");
    let (alice, bob) = (local(1000, "alice"), local(1001, "bob"));
    for peer in [&alice, &bob] {
        pool.submit(peer, json!({"name": peer.user})).await;
    }
    pool.post(
        &local(0, "root"),
        "/v1/jobs/cancel",
        json!({"filter": {"state": "PENDING"}}),
    )
    .await;
    assert_eq!(
        column(
            &pool.get(&alice, "/v1/runs?columns=name").await,
            "runs",
            "name"
        ),
        ["alice"]
    );
    assert_eq!(
        column(
            &pool.get(&local(0, "root"), "/v1/runs?columns=name").await,
            "runs",
            "name"
        ),
        ["alice", "bob"]
    );
}

#[tokio::test]
async fn tasks_that_wait_are_listed_behind_those_of_their_array_that_ran() {
    let (pool, alice) = (Pool::new(""), local(1000, "alice"));
    let node = pool.node("node1", Role::Compute, 1).await;
    // The first task has the number of its array, and so has the line of those that wait.
    let array = pool
        .submit(&alice, json!({"array": "5-8%1", "request": {"gpus": "1"}}))
        .await;
    let other = pool.submit(&alice, json!({})).await;
    pool.pass().await;
    pool.running(node, array).await;
    let listed = async |query: &str| {
        column(
            &pool.get(&alice, &format!("/v1/runs?{query}")).await,
            "runs",
            "shown_id",
        )
    };
    assert_eq!(
        listed(&format!("job={array}")).await,
        [format!("{array}_5"), format!("{array}_[6-8%1]")]
    );
    assert_eq!(
        listed(&format!("job={array}&steps=true&detail=true")).await,
        [format!("{array}_5"), format!("{array}_[6-8%1]")]
    );
    assert_eq!(
        listed("state=PENDING").await,
        [format!("{array}_[6-8%1]"), other.to_string()]
    );
    let waiting = pool
        .get(&alice, &format!("/v1/runs?job={array}&steps=true"))
        .await["runs"][1]
        .clone();
    assert_eq!(
        (&waiting["state"], waiting["steps"].as_array().map(Vec::len)),
        (&json!("PENDING"), None),
        "{waiting}"
    );
}
