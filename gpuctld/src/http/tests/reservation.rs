//! Reservations over the API: made, listed, imported, removed.

use super::policy::{alice, refuses, root};
use super::pool::{Pool, column, local, request, write_config};
use expect_test::expect;
use gmodel::node::Role;
use serde_json::{Value, json};

#[tokio::test]
async fn an_import_of_reservations_is_refused_as_the_making_of_one_is() {
    let pool = Pool::new(
        "[partition.a]\ndefault = true\n[reservation.filed]\nstart = 2090-01-02T00:00:00Z\nduration = 60\nnodes = \"n1\"\n",
    );
    for node in ["n1", "n2"] {
        pool.node(node, Role::Compute, 4).await;
    }
    let reservation = |name: &str, more: &str| {
        format!(
            "[reservation.{name}]\nstart = 2090-01-02T00:00:00Z\nduration = 600\nusers = [\"alice\"]\n{more}\n"
        )
    };
    let import = |toml: String, dry_run: bool| json!({"toml": toml, "dry_run": dry_run});
    let both = reservation("one", "node_count = 1") + &reservation("other", "nodes = \"n2\"");
    for dry_run in [true, false] {
        let (status, answer) = pool
            .ask(&root(), "POST", "/v1/policy", import(both.clone(), dry_run))
            .await;
        let text = answer["error"].as_str().unwrap_or_default();
        assert_eq!(
            (status.as_u16(), text),
            (
                409,
                "reservation one: reservation filed has nodes of it at 2090-01-02T00:00:00Z."
            ),
            "{answer}"
        );
    }
    let past = reservation("past", "nodes = \"n2\"").replace("2090", "2020");
    let one = reservation("one", "node_count = 1") + &past;
    let told = pool
        .post(&root(), "/v1/policy", import(one.clone(), true))
        .await;
    assert_eq!(
        told["notes"],
        json!([
            "reservation past is over and left out",
            "reservation one is added"
        ])
    );
    assert_eq!(
        pool.post(&root(), "/v1/policy", import(one.clone(), false))
            .await["notes"],
        json!(["reservation past is over and left out"])
    );
    let list = pool.get(&root(), "/v1/reservations").await;
    assert_eq!(
        (
            column(&list, "reservations", "name"),
            column(&list, "reservations", "nodes")
        ),
        (
            vec!["filed".into(), "one".into()],
            vec!["n1".into(), "n2".into()]
        )
    );
    let again = pool.post(&root(), "/v1/policy", import(one, true)).await;
    assert_eq!(
        again["notes"],
        json!([
            "reservation past is over and left out",
            "nothing would change"
        ]),
        "the count is the nodes that it became"
    );
}

#[tokio::test]
async fn licences_and_reservations_are_listed() {
    let pool = Pool::new(
        "[licences]\nmatlab = 20\n[reservation.past]\nstart = 2020-01-01T00:00:00Z\nduration = 60\nnodes = \"ALL\"\n",
    );
    pool.node("n1", Role::Compute, 1).await;
    let list = pool.get(&alice(), "/v1/licences").await;
    assert_eq!(
        list["licences"],
        json!([{"name": "matlab", "total": 20, "used": 0, "free": 20}])
    );
    let window = json!({"start": "2020-01-01T00:00:00Z", "duration_secs": 3600, "repeat": "hourly", "node_count": 1, "users": ["alice"]});
    pool.post(
        &root(),
        "/v1/reservations/always",
        json!({"create": true, "change": window}),
    )
    .await;
    let list = pool.get(&alice(), "/v1/reservations").await;
    assert_eq!(column(&list, "reservations", "name"), ["always", "past"]);
    assert_eq!(column(&list, "reservations", "state"), ["ACTIVE", "OVER"]);
    assert_eq!(column(&list, "reservations", "created_by")[0], "root");
    pool.post(&root(), "/v1/reservations/always/remove", json!({}))
        .await;
    assert_eq!(
        column(
            &pool.get(&root(), "/v1/reservations").await,
            "reservations",
            "name"
        ),
        ["past"]
    );
    let id = pool
        .submit(&alice(), json!({"licences": {"matlab": 3}}))
        .await;
    pool.pass().await;
    // A run still holds a licence that was taken out of the file.
    write_config(pool.dir.path(), "[licences]\nansys = 1\n");
    pool.post(&root(), "/v1/reload", Value::Null).await;
    let list = pool.get(&alice(), "/v1/licences").await;
    let held = json!({"name": "matlab", "total": 0, "used": 3, "free": 0});
    assert_eq!(
        list["licences"],
        json!([{"name": "ansys", "total": 1, "used": 0, "free": 1}, held]),
        "job {id} holds what is no more"
    );
}

#[tokio::test]
async fn a_reservation_tells_its_users_and_its_pending_jobs() {
    let pool = Pool::new("[account.vision.user.eve]\n");
    pool.node("n1", Role::Compute, 1).await;
    let window = |users: &[&str]| json!({"start": "2099-01-01T00:00:00Z", "duration_secs": 3600, "node_count": 1, "users": users});
    let make = |users: &[&str]| json!({"create": true, "change": window(users)});
    let notes =
        async |path: &str, body: Value| pool.post(&root(), path, body).await["notes"].clone();
    assert_eq!(
        notes("/v1/reservations/known", make(&["root", "eve"])).await,
        json!([])
    );
    pool.post(&root(), "/v1/reservations/known/remove", json!({}))
        .await;
    let slip = "nobody-of-that-name";
    let word = format!("user {slip}: this host does not know such a name, and no account has it");
    assert_eq!(
        notes("/v1/reservations/r", make(&["root", slip])).await,
        json!([word])
    );
    assert_eq!(
        notes(
            "/v1/reservations/r",
            json!({"change": {"duration_secs": 60}})
        )
        .await,
        json!([]),
        "once"
    );
    assert_eq!(
        notes(
            "/v1/reservations/r",
            json!({"change": {"users": ["-a-slip", "-another"]}})
        )
        .await,
        json!([
            "users a-slip, another: this host does not know such a name, and no account has it"
        ])
    );
    pool.post(
        &root(),
        "/v1/reservations/r",
        json!({"change": {"users": ["eve"]}}),
    )
    .await;
    let eve = local(1001, "eve");
    pool.post(
        &eve,
        "/v1/jobs",
        request(json!({"reservation": "r", "time_limit_secs": 600})),
    )
    .await;
    refuses(&pool, "/v1/reservations/r/remove", json!({"change": {"unused": true}}), expect!["409 conflict: reservation r is in use: 1 job waits for it. Give it another (gadm job update reservation=), cancel it, or remove it all the same: gadm reservation del r"]).await;
    pool.post(
        &eve,
        "/v1/jobs",
        request(json!({"reservation": "r", "time_limit_secs": 600, "array": "0-4"})),
    )
    .await;
    refuses(&pool, "/v1/reservations/r/remove", json!({"change": {"unused": true}}), expect!["409 conflict: reservation r is in use: 6 jobs wait for it. Give them another (gadm job update reservation=), cancel them, or remove it all the same: gadm reservation del r"]).await;
    refuses(
        &pool,
        "/v1/reservations/r/remove",
        json!({"change": {"now": true}}),
        expect!["400 invalid: now: force and unused (true or false) are all that a removal takes"],
    )
    .await;
    assert_eq!(
        notes("/v1/reservations/r/remove", json!({})).await,
        json!(["reservation r: 6 jobs that wait name it, and will not start"])
    );
}

#[tokio::test]
async fn a_reservation_shows_on_its_nodes_and_goes_with_its_jobs_or_by_force() {
    let pool = Pool::new("");
    let (n1, _) = (
        pool.node("n1", Role::Compute, 4).await,
        pool.node("n2", Role::Compute, 4).await,
    );
    let new = |nodes: &str, maintenance: bool| {
        let start = gmodel::Instant(crate::core_thread::now().plus_secs(-1));
        json!({"create": true, "change": {"start": start, "duration_secs": 3600, "nodes": nodes, "users": ["alice"], "maintenance": maintenance, "magnetic": !maintenance}})
    };
    pool.post(&root(), "/v1/reservations/pull", new("n1", false))
        .await;
    pool.post(&root(), "/v1/reservations/repair", new("n2", true))
        .await;
    let job = pool
        .submit(
            &alice(),
            json!({"request": {"nodelist": "n1"}, "time_limit_secs": 600}),
        )
        .await;
    let held = pool.submit(&alice(), json!({"hold": true})).await;
    pool.pass().await;
    pool.running(n1, job).await;
    let nodes = pool.get(&alice(), "/v1/nodes").await;
    assert_eq!(
        column(&nodes, "nodes", "state"),
        ["MIXED+RESERVED", "IDLE+MAINTENANCE+RESERVED"]
    );
    assert_eq!(
        (
            &nodes["nodes"][0]["reservations"],
            &nodes["nodes"][1]["reservations"]
        ),
        (&json!(["pull"]), &json!(["repair"]))
    );
    let rows = pool
        .get(
            &alice(),
            "/v1/jobs?columns=reservation,eligible_time&reservation=pull",
        )
        .await;
    assert_eq!(
        (
            &rows["jobs"][0]["id"],
            &rows["jobs"][0]["reservation"],
            rows["jobs"].as_array().unwrap().len()
        ),
        (&json!(job), &json!("pull"), 1)
    );
    let row = pool.get(&alice(), &format!("/v1/jobs/{held}")).await;
    assert!(row["jobs"][0]["eligible_time"].is_null(), "{row}");
    refuses(&pool, "/v1/reservations/pull/remove", json!({}), expect!["409 conflict: reservation pull is in use: job 1 runs in it. Wait for the end, or remove it by force (gadm reservation del pull --force): then it runs on, and others may have the rest of its nodes."]).await;
    refuses(
        &pool,
        "/v1/reservations/pull/remove",
        json!({"change": {"force": "yes"}}),
        expect![[r#"400 invalid: force is true or false, not "yes""#]],
    )
    .await;
    refuses(
        &pool,
        "/v1/reservations/pull/remove",
        json!({"change": {"fast": true}}),
        expect!["400 invalid: fast: force and unused (true or false) are all that a removal takes"],
    )
    .await;
    pool.post(
        &root(),
        "/v1/reservations/pull/remove",
        json!({"change": {"force": true}}),
    )
    .await;
    assert_eq!(
        column(&pool.get(&alice(), "/v1/nodes").await, "nodes", "state"),
        ["MIXED", "IDLE+MAINTENANCE+RESERVED"]
    );
}
