//! Partitions over the API: made, changed and removed beside those of the files.

use super::policy::{alice, refuses, root};
use super::pool::{Pool, column};
use expect_test::expect;
use gmodel::node::Role;
use serde_json::json;

const FILE: &str = "[partition.main]\nmax_time = \"1:00:00\"\n[qos.fast]\n";

async fn pool() -> Pool {
    let pool = Pool::new(FILE);
    for node in ["n1", "n2"] {
        pool.node(node, Role::Compute, 4).await;
    }
    pool
}

#[tokio::test]
async fn a_partition_is_made_takes_jobs_and_goes_when_none_names_it() {
    let pool = pool().await;
    pool.post(
        &root(),
        "/v1/qos/slow",
        json!({"create": true, "change": {}}),
    )
    .await;
    let make = json!({"create": true, "change": {"nodes": "n[1-2]", "max_time_secs": 600, "allow_qos": ["slow"]}});
    pool.post(&root(), "/v1/partitions/debug", make.clone())
        .await;
    let list = pool.get(&root(), "/v1/partitions").await;
    assert_eq!(
        (
            column(&list, "partitions", "name"),
            column(&list, "partitions", "is_default"),
            column(&list, "partitions", "made_by")
        ),
        (
            vec!["main".to_owned(), "debug".to_owned()],
            vec!["true".to_owned(), "false".to_owned()],
            vec!["null".to_owned(), "root".to_owned()]
        ),
        "{list}"
    );
    refuses(
        &pool,
        "/v1/partitions/debug",
        make,
        expect!["409 conflict: partition debug exists. Change it with gadm partition set"],
    )
    .await;
    refuses(
        &pool,
        "/v1/qos/slow/remove",
        json!({}),
        expect![[r#"400 invalid: partition debug: QOS "slow" does not exist."#]],
    )
    .await;
    pool.post(
        &root(),
        "/v1/partitions/debug",
        json!({"change": {"state": "down", "features": ["h100"], "allow_qos": []}}),
    )
    .await;
    let one = &pool.get(&root(), "/v1/partitions/debug").await["partitions"][0];
    assert_eq!((&one["state"], &one["nodes"]), (&json!("down"), &json!([])));
    pool.submit(&alice(), json!({"partition": "debug"})).await;
    refuses(&pool, "/v1/partitions/debug/remove", json!({}), expect!["409 conflict: partition debug has 1 jobs that are not over. Cancel them, wait for them, or give those that wait another."]).await;
    pool.post(&root(), "/v1/jobs/cancel", json!({"jobs": ["1"]}))
        .await;
    pool.post(&root(), "/v1/partitions/debug/remove", json!({}))
        .await;
    let list = pool.get(&root(), "/v1/partitions").await;
    assert_eq!(column(&list, "partitions", "name"), ["main"]);
    refuses(
        &pool,
        "/v1/partitions/debug/remove",
        json!({}),
        expect![[r#"404 not_found: there is no partition "debug"."#]],
    )
    .await;
}

#[tokio::test]
async fn keys_of_a_files_partition_are_set_and_are_its_files_again_when_they_are_as_there() {
    let pool = pool().await;
    let set = |change: serde_json::Value| json!({"change": change});
    let path = "/v1/partitions/main";
    refuses(
        &pool,
        path,
        set(json!({"prolog": "/bin/evil"})),
        expect![[r#"400 invalid: "prolog" cannot be set. Keys: state, max_time_secs, default_time_secs, over_time_secs, max_nodes, priority_tier, allow_accounts, allow_users, allow_groups, cpus_per_gpu, mem_per_cpu_bytes, mem_per_gpu_bytes, requeue, detached_secs, priority_factor, preempt_mode, placement, group, per_user, per_account, headroom, allow_qos, deny_accounts, deny_qos, default_qos, nodes, features"#]],
    )
    .await;
    refuses(&pool, path, set(json!({"default": false})), expect![[r#"400 invalid: "default" cannot be set. Did you mean "default_time_secs"? Keys: state, max_time_secs, default_time_secs, over_time_secs, max_nodes, priority_tier, allow_accounts, allow_users, allow_groups, cpus_per_gpu, mem_per_cpu_bytes, mem_per_gpu_bytes, requeue, detached_secs, priority_factor, preempt_mode, placement, group, per_user, per_account, headroom, allow_qos, deny_accounts, deny_qos, default_qos, nodes, features"#]]).await;
    refuses(
        &pool,
        path,
        set(json!({"default_time_secs": 7200})),
        expect!["400 invalid: partition main: default_time is 7200 s, more than max_time with 3600 s: make it max_time or less"],
    )
    .await;
    refuses(
        &pool,
        path,
        set(json!({"nodes": "n9"})),
        expect![[r#"404 not_found: there is no node "n9". Did you mean "n1"?"#]],
    )
    .await;
    refuses(
        &pool,
        path,
        set(json!({"allow_qos": ["slow"]})),
        expect![[r#"404 not_found: there is no qos "slow"."#]],
    )
    .await;
    let text = pool
        .refused(&root(), "POST", "/v1/partitions/main/remove", json!({}))
        .await;
    assert!(text.contains("partition main is written in "), "{text}");
    pool.post(
        &root(),
        path,
        set(json!({"state": "down", "max_nodes": 1, "max_time_secs": 7200})),
    )
    .await;
    let one = pool.get(&root(), path).await;
    let one = &one["partitions"][0];
    assert_eq!(
        (&one["state"], &one["max_nodes"], &one["max_time_secs"]),
        (&json!("down"), &json!(1), &json!(7200))
    );
    assert_eq!(one["set_keys"], json!(["state", "max_time", "max_nodes"]));
    // As its file has it, nothing is kept of it.
    pool.post(
        &root(),
        path,
        set(json!({"state": "up", "max_nodes": null, "max_time_secs": 3600})),
    )
    .await;
    assert!(pool.core.view().await.own_policy.partitions.is_empty());
    let text = pool
        .refused(&alice(), "POST", path, set(json!({"state": "down"})))
        .await;
    assert!(text.contains("editing partitions is for root"), "{text}");
}

/// The users and groups `root` and `daemon` are those of the host that runs this.
#[tokio::test]
async fn a_partition_for_groups_takes_users_whom_this_host_knows_to_be_in_one() {
    let pool = pool().await;
    let make = json!({"create": true, "change": {"nodes": "n1", "allow_groups": ["daemon", "no-such-group"]}});
    let made = pool.post(&root(), "/v1/partitions/ours", make).await;
    assert_eq!(
        made["notes"],
        json!(["group no-such-group: this host does not know such a name, so it lets nobody in"])
    );
    let list = pool.get(&alice(), "/v1/partitions").await;
    assert_eq!(
        list["partitions"][1]["allow_groups"],
        json!(["daemon", "no-such-group"])
    );
    let job = |partition: &str| json!({"spec": {"partition": partition, "launch": {"argv": ["true"], "work_dir": "/tmp"}}});
    let daemon = super::pool::local(1, "daemon");
    let id = pool.post(&daemon, "/v1/jobs", job("ours")).await["id"].clone();
    assert!(id.is_u64(), "{id}");
    for path in ["/v1/jobs", "/v1/jobs/dry-run"] {
        let (status, told) = pool.ask(&alice(), "POST", path, job("ours")).await;
        assert_eq!(status.as_u16(), 403, "{told}");
        assert_eq!(
            told["error"],
            "partition \"ours\" is for the groups daemon, no-such-group, and alice is in none of them on the controller's host. Choose another with -p."
        );
    }
    let id = pool.post(&alice(), "/v1/jobs", job("main")).await["id"].clone();
    let moved = |to: &str| json!({"job": id.to_string(), "change": {"partition": to}});
    let (status, _) = pool
        .ask(&alice(), "POST", "/v1/jobs/update", moved("ours"))
        .await;
    assert_eq!(status.as_u16(), 403);
    // From the answer on the change counts.
    let open = json!({"change": {"allow_groups": []}});
    pool.post(&root(), "/v1/partitions/ours", open).await;
    pool.post(&alice(), "/v1/jobs/update", moved("ours")).await;
    let narrow = json!({"change": {"allow_groups": ["root"]}});
    pool.post(&root(), "/v1/partitions/ours", narrow).await;
    let (status, _) = pool.ask(&daemon, "POST", "/v1/jobs", job("ours")).await;
    assert_eq!(status.as_u16(), 403);
}
