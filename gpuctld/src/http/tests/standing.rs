//! The order of the queue and the fair tree, as commands read them.

use super::pool::{Pool, column, local};
use gmodel::node::Role;
use serde_json::json;

#[tokio::test]
async fn the_queue_comes_in_its_order_with_its_factors() {
    let pool =
        Pool::new("[priority]\nqos = 500\n[qos.low]\npriority = 1\n[qos.high]\npriority = 4\n");
    pool.node("n1", Role::Compute, 1).await;
    let (alice, bob) = (local(1000, "alice"), local(1001, "bob"));
    let full = pool.submit(&alice, json!({"request": {"gpus": "1"}})).await;
    pool.pass().await;
    let low = pool
        .submit(&alice, json!({"qos": "low", "request": {"gpus": "1"}}))
        .await;
    let high = pool
        .submit(
            &bob,
            json!({"qos": "high", "nice": 10, "request": {"gpus": "1"}}),
        )
        .await;
    let answer = pool.get(&alice, "/v1/priorities").await;
    assert_eq!(
        column(&answer, "jobs", "id"),
        [high.to_string(), low.to_string()],
        "{answer}"
    );
    assert_eq!(column(&answer, "jobs", "position"), ["1", "2"]);
    let first = &answer["jobs"][0];
    assert_eq!(
        (
            &first["weighted"]["qos"],
            &first["normalized"]["qos"],
            &first["weighted"]["nice"]
        ),
        (&json!(500.0), &json!(1.0), &json!(10))
    );
    assert_eq!(
        (&answer["weights"]["qos"], &first["is_set"]),
        (&json!(500), &json!(false))
    );
    assert!(first["class"].is_null(), "there are no quotas");
    let one = pool.get(&alice, "/v1/priorities?user=alice").await;
    assert_eq!(
        column(&one, "jobs", "position"),
        ["2"],
        "the place is among all"
    );
    assert_eq!(first["eligible"], true);
    let held = pool
        .submit(&alice, json!({"hold": true, "request": {"gpus": "1"}}))
        .await;
    let of_held = pool
        .get(&alice, &format!("/v1/priorities?job={held}"))
        .await;
    assert_eq!(of_held["jobs"][0]["eligible"], false, "{of_held}");
    let _ = full;
}

#[tokio::test]
async fn each_partition_of_a_job_has_its_priority() {
    let pool = Pool::new(
        "[priority]\npartition = 1000\n[partition.slow]\nnodes = \"n1\"\npriority_factor = 1\n[partition.quick]\nnodes = \"n1\"\npriority_factor = 10\n",
    );
    pool.node("n1", Role::Compute, 1).await;
    let alice = local(1000, "alice");
    pool.submit(
        &alice,
        json!({"partition": "slow,quick", "request": {"gpus": "1"}}),
    )
    .await;
    let job = &pool.get(&alice, "/v1/priorities").await["jobs"][0];
    let of = |at: usize| {
        (
            job["by_partition"][at]["partition"].clone(),
            job["by_partition"][at]["weighted"]["partition"].clone(),
        )
    };
    assert_eq!(
        [of(0), of(1)],
        [
            (json!("slow"), json!(100.0)),
            (json!("quick"), json!(1000.0))
        ],
        "{job}"
    );
    assert_eq!(
        (&job["weighted"]["partition"], &job["priority"]),
        (&json!(1000.0), &job["by_partition"][1]["priority"])
    );
}

#[tokio::test]
async fn shares_are_a_tree_with_an_outlook() {
    let pool = Pool::new(
        "[account.top]\n[account.vision]\nparent = \"top\"\nshares = 3\nusers = [\"alice\", \"bob\"]\n[account.nlp]\nparent = \"top\"\n",
    );
    let alice = local(1000, "alice");
    let answer = pool.get(&alice, "/v1/shares").await;
    assert_eq!(
        column(&answer, "shares", "account"),
        ["root", "top", "nlp", "vision", "vision", "vision"],
        "{answer}"
    );
    assert_eq!(
        column(&answer, "shares", "depth"),
        ["0", "1", "2", "2", "3", "3"]
    );
    assert_eq!(
        column(&answer, "shares", "norm_shares")[2..4],
        ["0.25", "0.75"]
    );
    assert!(answer["shares"][3]["rank"].is_null() && answer["shares"][4]["fair_share"].is_number());
    let mine = pool.get(&alice, "/v1/shares?user=alice&outlook=true").await;
    assert_eq!(column(&mine, "shares", "account"), ["vision", "vision"]);
    assert_eq!(mine["shares"][1]["outlook"].as_array().unwrap().len(), 4);
    assert_eq!(mine["half_life_secs"], 604_800);
}

#[tokio::test]
async fn others_are_not_named_where_privacy_says_so() {
    let pool = Pool::new("privacy = \"own\"\n[account.vision]\nusers = [\"alice\", \"bob\"]\n");
    let answer = pool.get(&local(1000, "alice"), "/v1/shares").await;
    assert_eq!(
        column(&answer, "shares", "user"),
        ["null", "null", "alice"],
        "{answer}"
    );
}
