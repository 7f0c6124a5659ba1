//! Finished jobs for a simulation: in pages, for operators.

use super::pool::{Pool, column, local};
use crate::http::Peer;
use gmodel::ExitCode;
use gmodel::node::Role;
use serde_json::{Value, json};

fn root() -> Peer {
    local(0, "root")
}

fn alice() -> Peer {
    local(1000, "alice")
}

#[tokio::test]
async fn jobs_that_are_over_come_in_pages_with_what_they_asked_for() {
    let pool = Pool::new("");
    let node = pool.node("node1", Role::Compute, 4).await;
    let jobs = [
        json!({"request": {"gpus": "h100:2|a100:2"}}),
        json!({"request": {"gpus": "1"}}),
        json!({"array": "1-2"}),
        json!({"request": {"gpus": "4"}}),
    ];
    for job in jobs {
        pool.submit(&alice(), job).await;
    }
    pool.pass().await;
    for id in 1..=3 {
        pool.running(node, id).await;
        pool.ended(node, id, ExitCode::exited((id == 2).into()))
            .await;
    }
    pool.post(&alice(), "/v1/jobs/cancel", json!({"jobs": ["5"]}))
        .await;
    let page = pool.get(&root(), "/v1/trace?limit=2").await;
    assert_eq!(
        (column(&page, "trace", "id"), &page["next"]),
        (vec!["1".to_owned(), "2".to_owned()], &json!(2)),
        "{page}"
    );
    let first = &page["trace"][0];
    assert_eq!(
        (&first["gpus"], &first["gpu_types"], &first["nodes"]),
        (&json!(2.0), &json!(["h100", "a100"]), &json!(1))
    );
    assert_eq!(
        (
            &first["user"],
            &first["attempts"],
            &first["first_start_time"]
        ),
        (&json!("alice"), &json!(1), &first["start_time"])
    );
    assert_eq!(
        (&page["trace"][1]["state"], &page["trace"][1]["gpu_types"]),
        (&json!("FAILED"), &json!([]))
    );
    // A task that still runs is not over; one that never ran has no times.
    let rest = pool.get(&root(), "/v1/trace?limit=2&after=2").await;
    assert_eq!(
        (
            column(&rest, "trace", "id"),
            column(&rest, "trace", "state")
        ),
        (
            vec!["3".to_owned(), "5".to_owned()],
            vec!["COMPLETED".to_owned(), "CANCELLED".to_owned()]
        )
    );
    assert_eq!(
        (&rest["trace"][1]["start_time"], &rest["trace"][1]["gpus"]),
        (&Value::Null, &json!(4.0))
    );
    let none = pool.get(&root(), "/v1/trace?after=5").await;
    assert_eq!((&none["trace"], &none["next"]), (&json!([]), &Value::Null));
}

#[tokio::test]
async fn the_history_of_all_is_for_operators_and_within_a_time() {
    let pool = Pool::new("");
    let node = pool.node("node1", Role::Compute, 4).await;
    let id = pool.submit(&alice(), json!({})).await;
    pool.pass().await;
    pool.running(node, id).await;
    pool.ended(node, id, ExitCode::SUCCESS).await;
    let text = pool
        .refused(&alice(), "GET", "/v1/trace", Value::Null)
        .await;
    assert!(
        text.starts_with("403 denied: the history of all jobs is for root and the operators"),
        "{text}"
    );
    let count = async |query: &str| {
        pool.get(&root(), &format!("/v1/trace{query}")).await["trace"]
            .as_array()
            .unwrap()
            .len()
    };
    assert_eq!(
        (count("").await, count("?from=2020-01-01T00:00:00Z").await),
        (1, 1)
    );
    assert_eq!(
        (
            count("?to=2020-01-01T00:00:00Z").await,
            count("?from=2100-01-01T00:00:00Z").await
        ),
        (0, 0)
    );
    for (query, why) in [
        (
            "?from=2027-01-02T00:00:00Z&to=2027-01-01T00:00:00Z",
            "is not before",
        ),
        ("?after=98_5", "after = \"98_5\" is no number of a job"),
        ("?after=18446744073709551615", "is no number of a job"),
        ("?user=ada", "unknown key \"user\""),
    ] {
        let text = pool
            .refused(&root(), "GET", &format!("/v1/trace{query}"), Value::Null)
            .await;
        assert!(text.starts_with("400") && text.contains(why), "{text}");
    }
}
