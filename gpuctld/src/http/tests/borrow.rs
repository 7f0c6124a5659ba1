//! The note on borrowing that a submission is answered with.

use super::policy::alice;
use super::pool::{Pool, request};
use crate::core_thread::now;
use expect_test::expect;
use gmodel::node::Role;
use serde_json::json;

#[tokio::test]
async fn a_submission_that_will_borrow_is_told_at_once() {
    let period = period_with_two_hours_left();
    let pool = Pool::new(&format!(
        "[account.vision]\nguaranteed = 2\n[account.guest]\n[account.spent]\n[[account.spent.budget]]\nkind = \"guaranteed\"\ngpu_hours = 1\nperiod = \"{period}\"\n"
    ));
    pool.node("n1", Role::Compute, 4).await;
    let mut told = String::new();
    for (account, gpus, more) in [
        ("vision", 2, json!({})),
        ("vision", 1, json!({})),
        ("vision", 1, json!({"borrow": false})),
        ("vision", 1, json!({"requeue": false})),
        ("vision", 3, json!({})),
        ("vision", 3, json!({"borrow": false})),
        ("vision", 3, json!({"requeue": false})),
        ("guest", 1, json!({})),
        ("guest", 1, json!({"borrow": false})),
        ("guest", 1, json!({"requeue": false})),
        ("guest", 0, json!({})),
        ("spent", 1, json!({"time_limit_secs": 3600})),
        ("spent", 1, json!({"time_limit_secs": 3660})),
    ] {
        let mut spec = json!({"account": account, "time_limit_secs": 60, "request": {"gpus": gpus.to_string()}});
        spec.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let answer = pool.post(&alice(), "/v1/jobs", request(spec)).await;
        pool.pass().await;
        told.push_str(&format!("{account} {gpus} {more}: {}\n", answer["notes"]));
    }
    expect![[r#"
        vision 2 {}: []
        vision 1 {}: ["would start on borrowed GPUs: account vision is guaranteed 2 GPUs and uses 2 of them, and this job needs 1. Their owners may take them back; with --no-borrow it waits for its own"]
        vision 1 {"borrow":false}: []
        vision 1 {"requeue":false}: ["waits for guaranteed GPUs: account vision is guaranteed 2 GPUs and uses 2 of them, and this job needs 1, and a job that may not be requeued borrows only with --borrow"]
        vision 3 {}: ["would start on borrowed GPUs: account vision is guaranteed 2 GPUs, and this job needs 3. Their owners may take them back"]
        vision 3 {"borrow":false}: ["does not start: account vision is guaranteed 2 GPUs, and this job needs 3, and with --no-borrow it waits for a larger guarantee"]
        vision 3 {"requeue":false}: ["does not start: account vision is guaranteed 2 GPUs, and this job needs 3, and a job that may not be requeued borrows only with --borrow"]
        guest 1 {}: ["account guest is guaranteed no GPUs: this job runs on what others leave idle, and gives way when they want it back"]
        guest 1 {"borrow":false}: ["account guest is guaranteed no GPUs, and --no-borrow waits for such: it starts when the account gets a guarantee, or without that option on what others leave idle"]
        guest 1 {"requeue":false}: ["account guest is guaranteed no GPUs, and a job that may not be requeued does not borrow: with --borrow it runs on what others leave idle, and ends for good when they want it back"]
        guest 0 {}: []
        spent 1 {"time_limit_secs":3600}: []
        spent 1 {"time_limit_secs":3660}: ["would start on borrowed GPUs: account spent is guaranteed 1 GPU-hours a PERIOD: 0 are used, guaranteed runs may use 0 more by their time limits, and this job 1.016. Their owners may take them back; with --no-borrow it waits for its own"]
    "#]].assert_eq(&told.replace(&format!("a {period}"), "a PERIOD"));
}

/// A period of budgets that does not end within two hours (UTC). In a period's last hour another note is right (docs/known-issues.md).
fn period_with_two_hours_left() -> &'static str {
    // The first day of the epoch was a Thursday.
    let hour_of_week = (now().0 / 3_600_000 + 3 * 24).rem_euclid(168);
    if hour_of_week < 166 { "week" } else { "month" }
}

#[tokio::test]
async fn a_job_that_fits_beside_borrowers_is_told_nothing_of_borrowing() {
    // The second job is too large for what is left of the guarantee: it will borrow, and the third stands on that.
    let pool = Pool::new(
        "[account.top]\nguaranteed = 4\n[account.vision]\nparent = \"top\"\nguaranteed = 3\n[account.other]\nparent = \"top\"\n",
    );
    pool.node("n1", Role::Compute, 8).await;
    let mut told = Vec::new();
    for (account, gpus) in [
        ("vision", 1),
        ("vision", 3),
        ("vision", 2),
        ("vision", 1),
        ("other", 1),
        ("other", 1),
    ] {
        let spec = json!({"account": account, "time_limit_secs": 60, "request": {"gpus": gpus.to_string()}});
        let dry = pool
            .post(&alice(), "/v1/jobs/dry-run", request(spec.clone()))
            .await;
        let answer = pool.post(&alice(), "/v1/jobs", request(spec)).await;
        assert_eq!(dry["notes"], answer["notes"], "a dry run says it too");
        told.push(answer["notes"].as_array().unwrap().len());
    }
    assert_eq!(told, [0, 1, 0, 1, 0, 1]);
}

#[tokio::test]
async fn borrowing_is_told_of_other_types_and_of_what_accounts_below_are_guaranteed() {
    let pool = Pool::new(
        "[account.other.guaranteed]\na100 = 4\n[account.all]\nguaranteed = 3\n[account.part]\nparent = \"all\"\nguaranteed = 2\n",
    );
    pool.node("n1", Role::Compute, 8).await;
    let mut told = String::new();
    for (account, gpus) in [
        ("other", "h100:1"),
        ("other", "1"),
        ("all", "2"),
        ("all", "1"),
        ("all", "1"),
        ("part", "2"),
        ("part", "1"),
    ] {
        let spec = json!({"account": account, "time_limit_secs": 60, "request": {"gpus": gpus}});
        let answer = pool.post(&alice(), "/v1/jobs", request(spec)).await;
        told.push_str(&format!("{account} {gpus}: {}\n", answer["notes"]));
    }
    expect![[r#"
        other h100:1: ["would start on borrowed GPUs: account other is guaranteed 0 h100, and this job needs 1. Their owners may take them back"]
        other 1: ["would start on borrowed GPUs: account other is guaranteed 0 h100, and this job needs 1. Their owners may take them back"]
        all 2: ["would start on borrowed GPUs: account all is guaranteed 3 GPUs, of which 2 are guaranteed to accounts below it, and this job needs 2. Their owners may take them back"]
        all 1: []
        all 1: ["would start on borrowed GPUs: jobs that wait before it stand on what account all has left of its guarantee. Their owners may take them back; with --no-borrow it waits for its own"]
        part 2: []
        part 1: ["would start on borrowed GPUs: jobs that wait before it stand on what account part has left of its guarantee. Their owners may take them back; with --no-borrow it waits for its own"]
    "#]].assert_eq(&told);
}
