//! `POST /v1/reload/dry-run`: what changed files would do to jobs.

use super::policy::{alice, root};
use super::pool::{Pool, write_config};
use expect_test::expect;
use gmodel::node::Role;
use serde_json::{Value, json};

#[tokio::test]
async fn a_dry_reload_names_accounts_that_go_with_jobs_and_gpus_that_no_node_has() {
    let pool = Pool::new("[account.vision]\nguaranteed = 2\n[account.idle]\n");
    pool.node("n1", Role::Compute, 4).await;
    for gpus in ["1", "4"] {
        pool.submit(
            &alice(),
            json!({"account": "vision", "request": {"gpus": gpus}, "time_limit_secs": 60}),
        )
        .await;
        pool.pass().await;
    }
    write_config(
        pool.dir.path(),
        "[account.new]\nguaranteed = { h10 = 2, gpu = 9 }\n[qos.q.per_job]\ngpus = { a100 = 1 }\n",
    );
    let notes = pool.post(&root(), "/v1/reload/dry-run", Value::Null).await["notes"].clone();
    let notes = notes
        .as_array()
        .unwrap()
        .iter()
        .map(|note| note.as_str().unwrap().to_owned() + "\n")
        .collect::<String>();
    expect![[r#"
        account idle is removed
        account new is added
        account vision is removed
        qos q is added
        account vision would be gone: its 1 waiting job and 1 running job would go on, without guarantee and limits of its own
        account new: no node has GPUs of type "h10" (there are h100); it counts when one comes. Did you mean "h100"?
        QOS q: no node has GPUs of type "a100" (there are h100); it counts when one comes. Did you mean "h100"?
        accounts are guaranteed 9 GPUs together, and the nodes have 4: not all can have theirs at once.
        job 1 of alice becomes borrowed
    "#]].assert_eq(&notes);
    write_config(
        pool.dir.path(),
        "[account.vision]\nguaranteed = { h100 = 2 }\n",
    );
    let answer = pool.post(&root(), "/v1/reload/dry-run", Value::Null).await;
    assert_eq!(
        answer["notes"],
        json!(["account idle is removed", "account vision is changed"]),
        "nobody is in idle, and h100 are there"
    );
}

#[tokio::test]
async fn a_dry_reload_names_a_qos_that_goes_with_jobs() {
    let pool = Pool::new("[qos.low]\n[qos.idle]\n");
    pool.node("n1", Role::Compute, 4).await;
    for gpus in ["1", "4"] {
        pool.submit(
            &alice(),
            json!({"qos": "low", "request": {"gpus": gpus}, "time_limit_secs": 60}),
        )
        .await;
        pool.pass().await;
    }
    write_config(pool.dir.path(), "");
    let notes = pool.post(&root(), "/v1/reload/dry-run", Value::Null).await["notes"].clone();
    let gone = "QOS low would be gone: its 1 waiting job and 1 running job would go on, without priority and limits of its own";
    assert_eq!(
        notes,
        json!(["qos idle is removed", "qos low is removed", gone])
    );
}

#[tokio::test]
async fn a_dry_reload_names_what_would_become_of_jobs() {
    let pool = Pool::new("[partition.a]\ndefault = true\n[partition.b]\n");
    pool.node("n1", Role::Compute, 4).await;
    let job = pool
        .submit(
            &alice(),
            json!({"request": {"gpus": "1"}, "time_limit_secs": 7200}),
        )
        .await;
    pool.submit(
        &alice(),
        json!({"partition": "b", "request": {"gpus": "1"}, "hold": true}),
    )
    .await;
    let (status, answer) = pool
        .ask(&root(), "POST", "/v1/reload/dry-run", Value::Null)
        .await;
    assert_eq!(
        (status.as_u16(), &answer["notes"]),
        (200, &json!(["nothing would change"]))
    );
    write_config(
        pool.dir.path(),
        "cluster = \"other\"\n[partition.a]\ndefault = true\nstate = \"DOWN\"\n[account.new]\n",
    );
    let answer = pool.post(&root(), "/v1/reload/dry-run", Value::Null).await;
    let notes = answer["notes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|note| note.as_str().unwrap().to_owned() + "\n")
        .collect::<String>();
    expect![[r#"
        cluster has changed and takes effect when gpuctld is restarted
        partition a is changed
        partition b is removed
        account new is added
        partition b would be gone: its 1 waiting job would not start, its 0 running jobs would go on
        job J of alice: waits (PartitionDown: partition "a" is DOWN: it takes jobs and starts none); now it starts at once
        job 2 of alice: waits (PartitionConfig: partition "b" is not in the configuration); now it waits (JobHeldUser: held by user:alice)
    "#]].assert_eq(&notes.replace(&format!("job {job} "), "job J "));
    assert_eq!(
        pool.core.view().await.config.partitions.len(),
        2,
        "nothing changed"
    );
    // What gadm made is in force until a file says it; what both say alike is no change.
    for (name, shares) in [("new", 3), ("same", 1), ("kept", 1)] {
        pool.post(
            &root(),
            &format!("/v1/accounts/{name}"),
            json!({"create": true, "change": {"shares": shares}}),
        )
        .await;
    }
    write_config(
        pool.dir.path(),
        "[partition.a]\ndefault = true\n[partition.b]\n[account.new]\n[account.same]\n",
    );
    let answer = pool.post(&root(), "/v1/reload/dry-run", Value::Null).await;
    assert_eq!(
        answer["notes"],
        json!(["account new is changed: what gadm made of it counts no more"])
    );
    // What does not go together with what gadm made is said.
    pool.post(
        &root(),
        "/v1/accounts/below",
        json!({"create": true, "change": {"parent": "kept", "guaranteed": {"gpu": 4}}}),
    )
    .await;
    write_config(
        pool.dir.path(),
        "privacy = \"own\"\n[partition.a]\ndefault = true\n[partition.b]\n[account.kept]\nguaranteed = 2\n",
    );
    let answer = pool.post(&root(), "/v1/reload/dry-run", Value::Null).await;
    assert_eq!(
        answer["notes"],
        json!([
            "privacy is changed",
            "account kept is changed: what gadm made of it counts no more",
            "the accounts below kept would be guaranteed 4 GPUs together (below 4), and it has 2. Raise its guarantee first.",
        ])
    );
}

/// Accounts can be made at any time: a list that names one that is not there is told, not refused.
#[tokio::test]
async fn a_partition_for_an_account_that_is_not_there_is_told_of() {
    let pool = Pool::new("[account.vision]\n[account.nlp]\n");
    assert_eq!(pool.get(&root(), "/v1/check").await["notes"], json!([]));
    write_config(
        pool.dir.path(),
        "[account.vision]\n[account.nlp]\n[partition.train]\nallow_accounts = [\"vison\"]\n[partition.all]\nallow_accounts = [\"nlp\", \"default\", \"students\"]\n",
    );
    let slip = "partition train: allow_accounts names \"vison\", and there is no such account, and lets nobody else in. Did you mean \"vision\"?";
    let more = "partition all: allow_accounts names \"students\", and there is no such account.";
    let dry = pool.post(&root(), "/v1/reload/dry-run", Value::Null).await["notes"].to_string();
    assert!(
        dry.contains(&slip.replace('"', "\\\"")) && dry.contains(&more.replace('"', "\\\"")),
        "{dry}"
    );
    assert_eq!(
        pool.post(&root(), "/v1/reload", Value::Null).await["notes"],
        json!([slip, more])
    );
    assert_eq!(
        pool.get(&root(), "/v1/check").await["notes"],
        json!([slip, more])
    );
    pool.post(
        &root(),
        "/v1/accounts/students",
        json!({"create": true, "change": {}}),
    )
    .await;
    assert_eq!(pool.get(&root(), "/v1/check").await["notes"], json!([slip]));
}
