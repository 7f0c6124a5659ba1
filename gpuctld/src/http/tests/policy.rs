//! Accounts, users and QOS: permission to edit, what an edit does, what is refused and why.

use super::pool::{Pool, column, local, via};
use crate::http::Peer;
use expect_test::{Expect, expect};
use gmodel::node::Role;
use serde_json::{Value, json};

pub fn root() -> Peer {
    local(0, "root")
}
pub fn alice() -> Peer {
    local(1000, "alice")
}

pub const FILE: &str = "operators = [\"ada\"]\n[account.vision]\ncoordinators = [\"alice\"]\nguaranteed = 8\n[qos.normal]\n";

pub async fn refuses(pool: &Pool, path: &str, body: Value, want: Expect) {
    want.assert_eq(&pool.refused(&root(), "POST", path, body).await);
}

#[tokio::test]
async fn accounts_are_made_changed_and_removed() {
    let pool = Pool::new("");
    let make =
        json!({"create": true, "change": {"guaranteed": {"H100": 16, "gpu": 32}, "shares": 10}});
    pool.post(&root(), "/v1/accounts/research", make.clone())
        .await;
    refuses(
        &pool,
        "/v1/accounts/research",
        make,
        expect!["409 conflict: account research exists. Change it with gadm account set"],
    )
    .await;
    let change = json!({"change": {"limit": {"gpu": 64}, "+coordinators": ["ada", "bob"], "group": {"running_jobs": 5}}});
    pool.post(&root(), "/v1/accounts/research", change).await;
    let change = json!({"change": {"-coordinators": ["bob"], "group": {"cpus": 4}, "budgets": [{"kind": "cap", "gpu_hours": 9, "period": "week"}]}});
    pool.post(&root(), "/v1/accounts/research", change).await;
    pool.post(
        &root(),
        "/v1/accounts/vision",
        json!({"create": true, "change": {"parent": "research"}}),
    )
    .await;
    pool.post(
        &root(),
        "/v1/accounts/vision/users/eve",
        json!({"create": true, "change": {"shares": 3, "running_jobs": 2}}),
    )
    .await;
    let list = pool.get(&alice(), "/v1/accounts").await;
    assert_eq!(column(&list, "accounts", "name"), ["research", "vision"]);
    let row = &list["accounts"][0];
    assert_eq!(
        (&row["guaranteed"], &row["limit"], &row["shares"]),
        (
            &json!({"gpu": 32.0, "h100": 16.0}),
            &json!({"gpu": 64.0}),
            &json!(10)
        )
    );
    assert_eq!(
        (&row["coordinators"], &row["group"]),
        (&json!(["ada"]), &json!({"running_jobs": 5, "cpus": 4}))
    );
    let budget = &row["budgets"][0];
    assert_eq!(
        (&budget["kind"], &budget["gpu_hours"], &budget["period"]),
        (&json!("cap"), &json!(9), &json!("week"))
    );
    assert_eq!(
        (&budget["used_gpu_hours"], &budget["promised_gpu_hours"]),
        (&json!(0.0), &json!(0.0))
    );
    assert!(
        budget["resets"].as_str().unwrap().ends_with("T00:00:00Z"),
        "a week ends at midnight: {budget}"
    );
    assert_eq!(
        list["accounts"][1]["users"],
        json!({"eve": {"shares": 3, "default": false, "running_jobs": 2}})
    );
    refuses(&pool, "/v1/accounts/research/remove", json!({}), expect!["409 conflict: account research has accounts below it (vision). Remove these first, or give them another parent"]).await;
    pool.post(
        &root(),
        "/v1/accounts/vision",
        json!({"change": {"guaranteed": null, "parent": null}}),
    )
    .await;
    pool.post(&root(), "/v1/accounts/research/remove", json!({}))
        .await;
    assert_eq!(
        column(&pool.get(&root(), "/v1/accounts").await, "accounts", "name"),
        ["vision"]
    );
}

#[tokio::test]
async fn amounts_of_a_type_that_no_node_has_are_taken_with_a_note() {
    let pool = Pool::new("[qos.normal]\n");
    let make = json!({"create": true, "change": {"guaranteed": {"b200": 4}}});
    let done = pool.post(&root(), "/v1/accounts/early", make).await;
    assert_eq!(
        done["notes"],
        json!([]),
        "of a pool without nodes nothing is known: {done}"
    );
    pool.node("n1", Role::Compute, 4).await;
    let note = |kind: &str, guess: &str| {
        json!([format!(
            "no node has GPUs of type {kind:?} (there are h100); it counts when one comes.{guess}"
        )])
    };
    let done = pool
        .post(
            &root(),
            "/v1/accounts/slip",
            json!({"create": true, "change": {"guaranteed": {"h10": 3, "H100": 2, "gpu": 9}}}),
        )
        .await;
    assert_eq!(done["notes"], note("h10", " Did you mean \"h100\"?"));
    assert_eq!(
        pool.get(&root(), "/v1/accounts/slip").await["accounts"][0]["guaranteed"],
        json!({"h10": 3.0, "h100": 2.0, "gpu": 9.0})
    );
    // It is said once, of what the edit brought in.
    let done = pool
        .post(
            &root(),
            "/v1/accounts/slip",
            json!({"change": {"limit": {"gpu": 20}}}),
        )
        .await;
    assert_eq!(done["notes"], json!([]));
    let done = pool.post(&root(), "/v1/accounts/slip", json!({"change": {"budgets": [{"kind": "cap", "gpu_hours": 9, "period": "week", "gpu_type": "a100"}]}})).await;
    assert_eq!(done["notes"], note("a100", " Did you mean \"h100\"?"));
    let done = pool
        .post(
            &root(),
            "/v1/qos/normal2",
            json!({"create": true, "change": {"per_user": {"gpus": {"mi300": 1}}}}),
        )
        .await;
    assert_eq!(done["notes"], note("mi300", ""));
}

#[tokio::test]
async fn impossible_edits_say_what_stands_against_them() {
    let pool = Pool::new("[qos.normal]\n");
    pool.node("n1", Role::Compute, 4).await;
    for (name, change) in [
        ("top", json!({"guaranteed": {"h100": 16}})),
        ("a", json!({"parent": "top", "guaranteed": {"h100": 12}})),
    ] {
        pool.post(
            &root(),
            &format!("/v1/accounts/{name}"),
            json!({"create": true, "change": change}),
        )
        .await;
    }
    let set = |change: Value| json!({"change": change});
    let new = |change: Value| json!({"create": true, "change": change});
    refuses(
        &pool,
        "/v1/accounts/b",
        new(json!({"parent": "tap"})),
        expect![[r#"404 not_found: there is no account "tap". Did you mean "top"?"#]],
    )
    .await;
    refuses(&pool, "/v1/accounts/b", new(json!({"parent": "top", "guaranteed": {"h100": 8}})), expect!["400 invalid: the accounts below top would be guaranteed 20 h100 together (a 12, b 8), and it has 16. Raise its guarantee first."]).await;
    refuses(
        &pool,
        "/v1/accounts/top",
        set(json!({"parent": "a"})),
        expect!["400 invalid: account a would be below itself."],
    )
    .await;
    refuses(
        &pool,
        "/v1/accounts/top",
        set(json!({"limit": {"h100": 8}})),
        expect![
            "400 invalid: guaranteed h100 is 16, more than the limit 8: make it the limit or less"
        ],
    )
    .await;
    refuses(&pool, "/v1/accounts/top", set(json!({"guarantee": 8})), expect![[r#"400 invalid: "guarantee" cannot be set. Did you mean "guaranteed"? Keys: parent, description, shares, guaranteed, limit, lend_limit, budgets, group, per_user, allow_qos, default_qos, coordinators, users_only, closed"#]]).await;
    refuses(&pool, "/v1/accounts/top", set(json!({"group": {"gpu": 8}})), expect![[r#"400 invalid: group has no "gpu". Did you mean "gpus"? Keys: running_jobs, submitted_jobs, gpus, cpus, nodes, running_gpu_hours, array_tasks, submits_per_minute"#]]).await;
    refuses(
        &pool,
        "/v1/accounts/top",
        set(json!({"shares": "many"})),
        expect![[
            r#"400 invalid: the change cannot be read: invalid type: string "many", expected u32"#
        ]],
    )
    .await;
    pool.post(
        &root(),
        "/v1/qos/q",
        json!({"create": true, "change": {"priority": 3}}),
    )
    .await;
    for (path, change) in [
        (
            "/v1/accounts/top",
            json!({"shares": null, "description": null}),
        ),
        ("/v1/qos/q", json!({"priority": null})),
    ] {
        let answer = pool.post(&root(), path, set(change)).await;
        assert!(
            answer["error"].is_null(),
            "none is what it is without a word: {answer}"
        );
    }
    refuses(&pool, "/v1/accounts/root", new(json!({})), expect![[r#"400 invalid: "root" cannot be the name of a new account: use up to 64 letters, digits, '_', '-' and '.', not root"#]]).await;
    refuses(
        &pool,
        "/v1/accounts/tip",
        set(json!({})),
        expect![[r#"404 not_found: there is no account "tip". Did you mean "top"?"#]],
    )
    .await;
    let unwritten = "404 not_found: there is no account \"default\". Jobs of users without an account have it without a record; gadm account add default makes one.";
    for path in ["/v1/accounts/default", "/v1/accounts/default/users/ada"] {
        assert_eq!(
            pool.refused(&root(), "POST", path, set(json!({}))).await,
            unwritten
        );
    }
    refuses(
        &pool,
        "/v1/qos/urgent",
        new(json!({"preempt": ["nomal"]})),
        expect![[r#"404 not_found: there is no qos "nomal". Did you mean "normal"?"#]],
    )
    .await;
    // What is being made is no guess at what is meant.
    refuses(
        &pool,
        "/v1/qos/urgent",
        new(json!({"preempt": ["urgnt"]})),
        expect![[r#"404 not_found: there is no qos "urgnt"."#]],
    )
    .await;
    refuses(
        &pool,
        "/v1/accounts/nets",
        new(json!({"parent": "netz"})),
        expect![[r#"404 not_found: there is no account "netz"."#]],
    )
    .await;
    refuses(&pool, "/v1/qos/urgent", new(json!({"preempt_mode": "requee"})), expect![[r#"400 invalid: "requee" is no preempt_mode. Did you mean "requeue"? There are: off, requeue, cancel, suspend"#]]).await;
    let window = json!({"start": "2027-01-01T00:00:00Z", "duration_secs": 3600, "nodes": "n1", "gpus": {"gpu": 1}});
    refuses(&pool, "/v1/reservations/r", new(window), expect![[r#"400 invalid: reservation "r": nodes, node_count and gpus exclude each other. Keep one of them"#]]).await;
    refuses(
        &pool,
        "/v1/reservations/r",
        new(json!({"start": "2027-01-01T00:00:00Z", "duration_secs": 3600, "nodes": "n[1-2]"})),
        expect![[r#"404 not_found: there is no node "n2". Did you mean "n1"?"#]],
    )
    .await;
}

#[tokio::test]
async fn an_edit_of_the_default_qos_without_a_record_is_told_to_make_it() {
    let pool = Pool::new("");
    let new = json!({"create": true, "change": {"preempt": ["normal"]}});
    refuses(&pool, "/v1/qos/high", new, expect![[r#"404 not_found: there is no qos "normal". Jobs that name none have it without a record; gadm qos add normal makes one."#]]).await;
    let text = pool
        .refused(
            &root(),
            "POST",
            "/v1/qos/normal",
            json!({"change": {"priority": 5}}),
        )
        .await;
    assert!(text.ends_with("gadm qos add normal makes one."), "{text}");
}

#[tokio::test]
async fn users_coordinators_and_operators_edit_what_is_theirs() {
    let pool = Pool::new("operators = [\"ada\"]\n");
    let node = pool.node("n1", Role::Compute, 4).await;
    let login = pool.node("l1", Role::Login, 0).await;
    let ada = local(900, "ada");
    pool.post(
        &ada,
        "/v1/accounts/vision",
        json!({"create": true, "change": {"coordinators": ["alice"]}}),
    )
    .await;
    let user = json!({"create": true, "change": {}});
    let text = pool
        .refused(
            &local(1002, "mallory"),
            "POST",
            "/v1/accounts/vision/users/bob",
            user.clone(),
        )
        .await;
    assert!(
        text.starts_with("403 denied") && text.contains("nor is mallory a coordinator"),
        "{text}"
    );
    for path in ["/v1/qos/x", "/v1/reservations/x", "/v1/accounts/x"] {
        let text = pool.refused(&alice(), "POST", path, user.clone()).await;
        assert!(text.starts_with("403 denied"), "{path}: {text}");
    }
    for (method, path) in [
        ("GET", "/v1/policy"),
        ("POST", "/v1/policy"),
        ("POST", "/v1/reload/dry-run"),
    ] {
        let text = pool
            .refused(&alice(), method, path, json!({"toml": ""}))
            .await;
        assert!(text.starts_with("403 denied"), "{path}: {text}");
    }
    // An operator is one on the controller's host only.
    let text = pool
        .refused(
            &via(login, Role::Login, 900, "ada"),
            "POST",
            "/v1/qos/x",
            user.clone(),
        )
        .await;
    assert!(text.starts_with("403 denied"), "{text}");
    // From inside a job no user edits.
    let job = pool
        .submit(&alice(), json!({"request": {"gpus": "1"}}))
        .await;
    pool.pass().await;
    pool.running(node, job).await;
    let inside = via(node, Role::Compute, 1000, "alice");
    let text = pool
        .refused(&inside, "POST", "/v1/accounts/vision/users/bob", user)
        .await;
    assert!(text.contains("not edited from compute nodes"), "{text}");
    assert_eq!(
        column(&pool.get(&inside, "/v1/accounts").await, "accounts", "name"),
        ["vision"]
    );
}

#[tokio::test]
async fn what_a_file_says_is_changed_in_the_file() {
    let pool = Pool::new(FILE);
    let text = pool
        .refused(
            &root(),
            "POST",
            "/v1/accounts/vision",
            json!({"change": {"shares": 2}}),
        )
        .await;
    assert!(
        text.contains("account vision is written in ")
            && text.contains("gpuctld.toml:5. Change it there"),
        "{text}"
    );
    let text = pool
        .refused(&root(), "POST", "/v1/qos/normal/remove", json!({}))
        .await;
    assert!(text.contains("qos normal is written in "), "{text}");
    pool.post(
        &root(),
        "/v1/accounts/beside",
        json!({"create": true, "change": {"parent": "vision", "default_qos": "normal"}}),
    )
    .await;
    let list = pool.get(&root(), "/v1/accounts").await;
    assert!(
        list["accounts"][0]["file"].is_null() && list["accounts"][1]["file"].is_string(),
        "{list}"
    );
}

#[tokio::test]
async fn a_policy_goes_out_and_comes_in_as_toml() {
    let pool = Pool::new(FILE);
    pool.post(
        &root(),
        "/v1/accounts/sub",
        json!({"create": true, "change": {"parent": "vision", "guaranteed": {"gpu": 4}}}),
    )
    .await;
    let own = pool.get(&root(), "/v1/policy").await;
    expect![[r#"
        [account.sub]
        parent = "vision"
        guaranteed = 4
    "#]]
    .assert_eq(own["toml"].as_str().unwrap());
    let all = pool.get(&root(), "/v1/policy?all=true").await;
    assert!(all["toml"].as_str().unwrap().contains("[account.vision]"));
    // What the files say may be repeated, not changed.
    let done = pool
        .post(&root(), "/v1/policy", json!({"toml": all["toml"]}))
        .await;
    assert_eq!(done["notes"], json!(["nothing would change"]));
    let new = "[account.sub]\nparent = \"vision\"\nguaranteed = 6\n[qos.fast]\npriority = 9\n";
    let done = pool
        .post(&root(), "/v1/policy", json!({"toml": new, "dry_run": true}))
        .await;
    assert_eq!(
        done["notes"],
        json!(["account sub is changed", "qos fast is added"])
    );
    assert!(
        pool.core.view().await.own_policy.qos.is_empty(),
        "a dry run changes nothing"
    );
    pool.post(&root(), "/v1/policy", json!({"toml": new})).await;
    assert_eq!(pool.core.view().await.policy.qos["fast"].priority, 9);
    let text = pool.refused(&root(), "POST", "/v1/policy", json!({"name": "p.toml", "toml": "[account.sub]\nparent = \"visio\"\nguaranteed = 60\n"})).await;
    assert!(
        text.contains("--> p.toml:2:10") && text.contains("did you mean \"vision\"?"),
        "{text}"
    );
    let text = pool
        .refused(
            &root(),
            "POST",
            "/v1/policy",
            json!({"toml": "[account.vision]\n"}),
        )
        .await;
    assert!(
        text.contains("account vision is written in ") && text.contains("otherwise"),
        "{text}"
    );
}

#[tokio::test]
async fn the_private_see_their_own_accounts_and_those_above() {
    let pool = Pool::new(
        "privacy = \"own\"\n[account.top]\n[account.a]\nparent = \"top\"\nusers = [\"alice\", \"bob\"]\n[account.b]\nusers = [\"bob\"]\n",
    );
    let list = pool.get(&alice(), "/v1/accounts").await;
    assert_eq!(column(&list, "accounts", "name"), ["a", "top"]);
    assert_eq!(
        list["accounts"][0]["users"],
        json!({"alice": {"shares": 1, "default": false}}),
        "others are not named"
    );
    assert_eq!(
        column(&pool.get(&root(), "/v1/accounts").await, "accounts", "name"),
        ["a", "b", "top"]
    );
}

#[tokio::test]
async fn what_an_edit_makes_can_be_exported_and_read_again() {
    let pool = Pool::new("");
    pool.node("n1", Role::Compute, 8).await;
    let new = |change: Value| json!({"create": true, "change": change});
    let mut told = String::new();
    for (path, change) in [
        ("accounts/a", json!({"shares": 4_294_967_295u32})),
        (
            "accounts/a",
            json!({"per_user": {"running_jobs": 4_000_000_000u32}}),
        ),
        (
            "accounts/a",
            json!({"budgets": [{"kind": "cap", "gpu_hours": 99_999_999_999u64, "period": "day"}]}),
        ),
        ("qos/q", json!({"priority": 4_294_967_295u32})),
        ("qos/q", json!({"min_run_secs": 40_000_000})),
        (
            "reservations/r",
            json!({"start": "2100-01-01T00:00:00Z", "duration_secs": 30, "nodes": "n1"}),
        ),
        (
            "reservations/r",
            json!({"start": "2100-01-01T00:00:00Z", "duration_secs": 40_000_000, "nodes": "n1"}),
        ),
        (
            "reservations/r",
            json!({"start": "2100-01-01T00:00:00Z", "duration_secs": 90_000, "nodes": "n1", "repeat": "daily"}),
        ),
        (
            "reservations/r",
            json!({"start": "2100-01-01T00:00:00Z", "duration_secs": 600, "gpus": {"gpu": 0.0}}),
        ),
    ] {
        told.push_str(&format!(
            "{}\n",
            pool.refused(&root(), "POST", &format!("/v1/{path}"), new(change))
                .await
        ));
    }
    expect![[r#"
        400 invalid: shares = 4294967295 is out of bounds: 0 to 1000000 is allowed
        400 invalid: running_jobs = 4000000000 is out of bounds: 0 to 100000000 is allowed
        400 invalid: gpu_hours = 99999999999 is out of bounds: 0 to 4294967295 is allowed
        400 invalid: priority = 4294967295 is out of bounds: 0 to 1000000000 is allowed
        400 invalid: min_run is 40000000 s, which is out of bounds: 0 s to 31622400 s is allowed
        400 invalid: duration is 30 s, which is out of bounds: 60 s to 31622400 s is allowed
        400 invalid: duration is 40000000 s, which is out of bounds: 60 s to 31622400 s is allowed
        400 invalid: [reservation.r] lasts longer than until it comes again: at most an hour, a day or a week, as it comes
        400 invalid: [reservation.r] reserves no GPU: write a number, or numbers by type
    "#]].assert_eq(&told);
    let most = json!({"shares": 1_000_000, "description": "two\nlines, \"quoted\", ü", "coordinators": ["ünï"],
        "guaranteed": {"h100": 0.125}, "budgets": [{"kind": "cap", "gpu_hours": 4_294_967_295u32, "period": "day"}]});
    pool.post(&root(), "/v1/accounts/a", new(most)).await;
    pool.post(
        &root(),
        "/v1/accounts/a/users/bob.b",
        new(json!({"shares": 0, "default": true})),
    )
    .await;
    pool.post(&root(), "/v1/reservations/r", new(json!({"start": "2100-01-01T00:00:00.007Z", "duration_secs": 86_400, "gpus": {"h100": 2, "gpu": 3}, "repeat": "daily", "flex": true}))).await;
    let export = pool.get(&root(), "/v1/policy").await;
    let done = pool
        .post(
            &root(),
            "/v1/policy",
            json!({"toml": export["toml"], "dry_run": true}),
        )
        .await;
    assert_eq!(done["notes"], json!(["nothing would change"]));
}

#[tokio::test]
async fn guarantees_beyond_the_pool_are_noted_and_taken() {
    let pool = Pool::new("");
    let new = |change: Value| json!({"create": true, "change": change});
    let set = |change: Value| json!({"change": change});
    assert_eq!(
        pool.post(
            &root(),
            "/v1/accounts/early",
            new(json!({"guaranteed": {"gpu": 100}}))
        )
        .await["notes"],
        json!([]),
        "no node has come yet"
    );
    pool.post(
        &root(),
        "/v1/accounts/early",
        set(json!({"guaranteed": null})),
    )
    .await;
    pool.node("n1", Role::Compute, 8).await;
    let told = |what: &str| {
        json!([format!(
            "accounts are guaranteed {what}: not all can have theirs at once."
        )])
    };
    for (account, change, notes) in [
        ("top", new(json!({"guaranteed": {"gpu": 6}})), json!([])),
        (
            "below",
            new(json!({"parent": "top", "guaranteed": {"gpu": 6}})),
            json!([]),
        ),
        ("rest", new(json!({"guaranteed": {"gpu": 2}})), json!([])),
        (
            "rest",
            set(json!({"guaranteed": {"gpu": 3}})),
            told("9 GPUs together, and the nodes have 8"),
        ),
        ("rest", set(json!({"shares": 3})), json!([])),
        (
            "typed",
            new(json!({"guaranteed": {"h100": 9}})),
            told("9 h100 together, and the nodes have 8"),
        ),
    ] {
        assert_eq!(
            pool.post(&root(), &format!("/v1/accounts/{account}"), change)
                .await["notes"],
            notes,
            "{account}"
        );
    }
}

#[tokio::test]
async fn operators_are_told_the_changes_of_the_policy_and_their_authors() {
    let pool = Pool::new("");
    pool.post(
        &root(),
        "/v1/accounts/vision",
        json!({"create": true, "change": {"shares": 3}}),
    )
    .await;
    pool.post(
        &root(),
        "/v1/accounts/vision/users/ada",
        json!({"create": true, "change": {}}),
    )
    .await;
    pool.post(
        &root(),
        "/v1/qos/low",
        json!({"create": true, "change": {}}),
    )
    .await;
    pool.post(&root(), "/v1/qos/low/remove", json!({})).await;
    let told = pool.get(&root(), "/v1/policy-events").await;
    assert_eq!(
        column(&told, "changes", "action"),
        ["set account", "set user", "set qos", "remove qos"]
    );
    assert_eq!(
        column(&told, "changes", "name"),
        ["vision", "ada", "low", "low"]
    );
    let account = &told["changes"][0];
    assert!(
        account["by"] == "root" && account["info"].as_str().unwrap().contains("\"shares\":3"),
        "{account}"
    );
    assert_eq!(told["changes"][1]["account"], "vision");
    let before = pool
        .get(
            &root(),
            "/v1/policy-events?from=2001-01-01T00:00:00Z&to=2001-01-02T00:00:00Z",
        )
        .await;
    assert_eq!(before["changes"], json!([]));
    let text = pool
        .refused(&alice(), "GET", "/v1/policy-events", Value::Null)
        .await;
    assert!(text.starts_with("403 denied"), "{text}");
}
