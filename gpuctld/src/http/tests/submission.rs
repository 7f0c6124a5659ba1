//! What a researcher reads when a submission is taken or refused.

use super::pool::{Pool, local, request, until};
use crate::http::Peer;
use axum::http::StatusCode;
use expect_test::{Expect, expect};
use gmodel::node::Role;
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;

fn alice() -> Peer {
    local(1000, "alice")
}

#[tokio::test]
async fn a_submission_answers_with_its_id_and_the_script_is_kept_for_its_owner() {
    let pool = Pool::new("");
    let answer = pool
        .post(&alice(), "/v1/jobs", request(json!({"name": "b"})))
        .await;
    assert_eq!(
        (answer["schema"].as_u64(), answer["id"].as_u64()),
        (Some(1), Some(1))
    );
    assert_eq!(pool.submit(&alice(), json!({"name": "a"})).await, 2);
    assert!(
        answer["notes"]
            .as_array()
            .unwrap()
            .iter()
            .any(|n| n.as_str().unwrap().contains("has reported yet"))
    );
    assert_eq!(
        pool.get(&alice(), "/v1/jobs/1/script").await,
        "#!/bin/sh\necho hello\n"
    );
    let bob = local(1001, "bob");
    assert_eq!(
        pool.refused(&bob, "GET", "/v1/jobs/1/script", Value::Null)
            .await,
        "403 denied: the script of job 1 is for its owner alice and operators"
    );
    assert_eq!(
        pool.get(&local(0, "root"), "/v1/jobs/1/script").await,
        "#!/bin/sh\necho hello\n"
    );
}

#[tokio::test]
async fn the_same_key_makes_no_second_job() {
    let pool = Pool::new("");
    let mut body = request(json!({}));
    body["client_key"] = json!("k1");
    let first = pool.post(&alice(), "/v1/jobs", body.clone()).await;
    let again = pool.post(&alice(), "/v1/jobs", body.clone()).await;
    assert_eq!(
        (&first["id"], &again["id"], &again["repeated"]),
        (&json!(1), &json!(1), &json!(true))
    );
    let other = pool.post(&local(1001, "bob"), "/v1/jobs", body).await;
    assert_eq!(other["id"], 2, "a key is the user's own");
}

async fn check(pool: &Pool, body: Value, want: Expect) {
    want.assert_eq(&pool.refused(&alice(), "POST", "/v1/jobs", body).await);
}

#[tokio::test]
async fn what_cannot_be_taken_is_refused_with_what_would_work() {
    let pool = Pool::new("[partition.train]\nmax_time = 60\ndefault = true\n");
    pool.node("node1", Role::Compute, 4).await;
    let with = |key: &str, value: Value| {
        let mut body = request(json!({}));
        body[key] = value;
        body
    };
    check(&pool, with("script", json!("x".repeat((4 << 20) + 1))), expect!["429 limit: the script has 4194305 bytes; 4194304 (4 MiB) are the most. Keep data in files beside it"]).await;
    check(&pool, with("script", json!("echo hi\n")), expect!["400 invalid: this does not look like a batch script: its first line has to be #! and the path of an interpreter, as #!/bin/sh. To run a program, write gsub -- PROGRAM"]).await;
    check(&pool, with("script", json!("#!/bin/sh\n\0")), expect!["400 invalid: the script has a NUL byte in it: it is no text. To run a program, write gsub -- PROGRAM"]).await;
    check(
        &pool,
        with("script", json!("")),
        expect!["400 invalid: there is neither a script nor a command to run"],
    )
    .await;
    check(
        &pool,
        with("environment", json!(["A"])),
        expect![[r#"400 invalid: the environment has "A", which is not NAME=value"#]],
    )
    .await;
    check(&pool, with("environment", json!([format!("A={}", "x".repeat(1 << 20))])), expect!["429 limit: the environment has 1048579 bytes; 1048576 (1 MiB) are the most. Pass less of it with --export"]).await;
    check(&pool, with("environment", json!(7)), expect!["400 invalid: the request's body cannot be read: Failed to deserialize the JSON body into the target type: environment: invalid type: integer `7`, expected a list of NAME=value at line 1 column 16"]).await;
    check(
        &pool,
        request(json!({"partition": "trian"})),
        expect![[r#"400 invalid: no partition "trian". Did you mean "train"? There are: train."#]],
    )
    .await;
    check(
        &pool,
        request(json!({"time_limit_secs": 7200})),
        expect![[r#"400 invalid: --time 2:00:00: partition "train" allows at most 1:00:00."#]],
    )
    .await;
    check(&pool, request(json!({"request": {"gpus": "h100:16"}})), expect![[r#"400 invalid: 16 h100 on one node: the largest node in partition "train" has 4. Ask for fewer."#]]).await;
    check(&pool, request(json!({"request": {"nodelist": "node[1-1000000000]"}})), expect!["400 invalid: the request's body cannot be read: Failed to deserialize the JSON body into the target type: spec.request.nodelist: the host list names 1000000000 nodes and 131072 are the most. Use a smaller range at line 1 column 148"]).await;
    let listed = pool.get(&alice(), "/v1/jobs?state=all").await;
    assert_eq!(
        listed["jobs"],
        json!([]),
        "nothing is left of a refused submission"
    );
}

/// Programs for Slurm read a sentence for each kind, so each has to come with its refusal.
#[tokio::test]
async fn a_refusal_says_what_it_is_about() {
    let pool = Pool::new(
        "[partition.train]\nmax_time = 60\nmax_nodes = 1\ndefault = true\n[partition.train.per_user]\nsubmitted_jobs = 1\n\
         [partition.shut]\nstate = \"drain\"\n[partition.own]\nallow_users = [\"bob\"]\n",
    );
    pool.node("node1", Role::Compute, 4).await;
    let about = async |method: &str, path: &str, body: Value| {
        let (status, answer) = pool.ask(&alice(), method, path, body).await;
        assert!(!status.is_success(), "{answer}");
        format!(
            "{} {}",
            answer["about"].as_str().unwrap_or("-"),
            answer["subject"].as_str().unwrap_or_default()
        )
        .trim()
        .to_owned()
    };
    let submit = async |spec: Value| about("POST", "/v1/jobs", request(spec)).await;
    for (spec, wanted) in [
        (json!({"partition": "trian"}), "partition trian"),
        (json!({"partition": "shut"}), "partition_closed"),
        (json!({"partition": "own"}), "partition_access"),
        (json!({"time_limit_secs": 7200}), "time_limit"),
        (
            json!({"request": {"gpus": "h100:16"}}),
            "node_configuration",
        ),
        (
            json!({"request": {"nodes_min": 2, "nodes_max": 2, "ntasks": 2}}),
            "node_count",
        ),
        (json!({"request": {"nodelist": "node9"}}), "node_name"),
        (json!({"request": {"constraint": "nosuch"}}), "feature"),
        (json!({"licences": {"matlab": 1}}), "licence"),
        (json!({"reservation": "course"}), "reservation"),
        (json!({"nice": -5}), "access"),
        (
            json!({"array": "0-1"}),
            "policy_limit QOSMaxSubmitJobPerUserLimit",
        ),
    ] {
        assert_eq!(submit(spec.clone()).await, wanted, "{spec}");
    }
    assert_eq!(about("GET", "/v1/jobs/99", Value::Null).await, "job 99");
    assert_eq!(
        about(
            "POST",
            "/v1/jobs/update",
            json!({"job": "99", "change": {"nice": 1}})
        )
        .await,
        "job 99"
    );
    let held = pool
        .post(&alice(), "/v1/jobs/hold", json!({"jobs": ["99"]}))
        .await;
    assert_eq!(held["results"][0]["about"], "job", "{held}");
}

#[tokio::test]
async fn twenty_megabytes_are_refused_as_too_large() {
    let pool = Pool::new("");
    let mut body = request(json!({}));
    body["script"] = json!("x".repeat(20 << 20));
    let (status, answer) = pool.ask(&alice(), "POST", "/v1/jobs", body).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    assert!(
        answer["error"]
            .as_str()
            .unwrap()
            .contains("A script may have 4 MiB"),
        "{answer}"
    );
}

#[tokio::test]
async fn unknown_fields_of_newer_clients_are_ignored() {
    let pool = Pool::new("");
    let mut body = request(json!({"name": "a", "from_the_future": 1}));
    body["also_new"] = json!([]);
    assert_eq!(pool.post(&alice(), "/v1/jobs", body).await["id"], 1);
}

#[tokio::test]
async fn a_dry_run_says_where_and_why_and_leaves_nothing() {
    let pool = Pool::new("");
    pool.node("node1", Role::Compute, 4).await;
    let answer = pool
        .post(
            &alice(),
            "/v1/jobs/dry-run",
            request(json!({"request": {"gpus": "4", "cpus_per_task": 2}})),
        )
        .await;
    assert_eq!(
        (&answer["nodelist"], &answer["cpus"], &answer["partition"]),
        (&json!("node1"), &json!(2), &json!("main"))
    );
    assert!(answer["start"].is_string() && answer["reason"] == "");
    pool.submit(&alice(), json!({"request": {"gpus": "3"}}))
        .await;
    pool.pass().await;
    let answer = pool
        .post(
            &alice(),
            "/v1/jobs/dry-run",
            request(json!({"request": {"gpus": "2"}})),
        )
        .await;
    assert_eq!(
        (&answer["nodelist"], &answer["reason"]),
        (&json!(""), &json!("Resources")),
        "{answer}"
    );
    let answer = pool
        .post(
            &alice(),
            "/v1/jobs/dry-run",
            request(json!({"array": "0-9"})),
        )
        .await;
    assert_eq!(
        answer["nodelist"], "node1",
        "the first task of an array: {answer}"
    );
    assert_eq!(
        pool.get(&alice(), "/v1/jobs?state=all&columns=id").await["jobs"],
        json!([{"id": 1}])
    );
    assert!(
        pool.refused(
            &alice(),
            "POST",
            "/v1/jobs/dry-run",
            request(json!({"request": {"gpus": "9"}}))
        )
        .await
        .starts_with("400")
    );
}

/// A pool with this shell script as its hook, run by an ordinary user.
fn with_hook(body: &str, on_failure: &str) -> Pool {
    let pool = Pool::new("");
    let program = pool.dir.path().join("hook");
    std::fs::write(&program, format!("#!/bin/sh\n{body}")).unwrap();
    for path in [pool.dir.path(), &program] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let me = nix::unistd::User::from_uid(nix::unistd::geteuid())
        .unwrap()
        .unwrap()
        .name;
    let user = if me == "root" {
        "nobody".to_owned()
    } else {
        me
    };
    let table = format!(
        "[submit_hook]\nprogram = {program:?}\nuser = {user:?}\ntimeout_ms = 2000\non_failure = {on_failure:?}\n"
    );
    super::pool::write_config(pool.dir.path(), &table);
    pool
}

/// Answers each line; `$n` is the question's number.
const LOOP: &str = "n=0\nwhile read -r line; do n=$((n+1))\n";

#[tokio::test]
async fn the_sites_hook_may_change_and_refuse() {
    let pool = with_hook(
        &format!(
            "{LOOP}case \"$line\" in *bad*) echo '{{\"question\":'$n',\"accept\":false,\"error\":\"no bad jobs here\"}}';;\n\
             *) echo '{{\"question\":'$n',\"accept\":true,\"change\":{{\"site_factor_milli\":250,\"comment\":\"by '$(id -un)'\"}},\"notes\":[\"changed\"]}}';;\nesac\ndone\n"
        ),
        "refuse",
    );
    pool.post(&local(0, "root"), "/v1/reload", Value::Null)
        .await;
    let answer = pool
        .post(&alice(), "/v1/jobs", request(json!({"name": "good"})))
        .await;
    assert_eq!(answer["notes"][0], "changed");
    let job = pool.get(&alice(), "/v1/jobs/1").await;
    let comment = job["jobs"][0]["comment"].as_str().unwrap();
    assert!(
        comment.starts_with("by ") && comment != "by root",
        "{comment}"
    );
    let order = pool.get(&alice(), "/v1/priorities").await;
    assert_eq!(
        (
            &order["jobs"][0]["normalized"]["site"],
            &order["jobs"][0]["weighted"]["site"]
        ),
        (&json!(0.25), &json!(250.0))
    );
    assert_eq!(
        pool.refused(
            &alice(),
            "POST",
            "/v1/jobs",
            request(json!({"site_factor_milli": 9}))
        )
        .await,
        "403 denied: site_factor_milli: only operators and the submission hook set a job's site factor"
    );
    assert_eq!(
        pool.refused(
            &alice(),
            "POST",
            "/v1/jobs",
            request(json!({"name": "bad"}))
        )
        .await,
        "403 denied: no bad jobs here"
    );
}

#[tokio::test]
async fn a_hook_that_dies_refuses_or_accepts_as_configured() {
    for (on_failure, accepted) in [("refuse", false), ("accept", true)] {
        let pool = with_hook("read -r line\nexit 1\n", on_failure);
        pool.post(&local(0, "root"), "/v1/reload", Value::Null)
            .await;
        let (status, answer) = pool
            .ask(&alice(), "POST", "/v1/jobs", request(json!({})))
            .await;
        assert_eq!(status.is_success(), accepted, "{answer}");
        if !accepted {
            let text = answer["error"].as_str().unwrap();
            assert!(text.contains("ended without an answer"), "{text}");
        }
    }
}

#[tokio::test]
async fn a_hook_that_is_late_is_ended_and_started_again() {
    // The first life never answers, the second does.
    let pool = with_hook(
        &format!(
            "[ -e \"$0.second\" ] && {{ {LOOP}echo '{{\"question\":'$((n+1))',\"accept\":true}}'; done; }}\nread -r line\nexec sleep 600\n"
        ),
        "refuse",
    );
    let toml = std::fs::read_to_string(pool.app.config_path()).unwrap();
    std::fs::write(
        pool.app.config_path(),
        toml.replace("timeout_ms = 2000", "timeout_ms = 300"),
    )
    .unwrap();
    pool.post(&local(0, "root"), "/v1/reload", Value::Null)
        .await;
    let text = pool
        .refused(&alice(), "POST", "/v1/jobs", request(json!({})))
        .await;
    assert!(text.contains("did not answer within 300 ms"), "{text}");
    std::fs::write(pool.dir.path().join("hook.second"), "").unwrap();
    until("the hook comes back", async || {
        let (status, _) = pool
            .ask(&alice(), "POST", "/v1/jobs", request(json!({})))
            .await;
        status.is_success().then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_hook_that_others_can_write_to_is_not_run() {
    let pool = with_hook(
        &format!("{LOOP}echo '{{\"question\":'$n',\"accept\":true}}'; done\n"),
        "refuse",
    );
    pool.post(&local(0, "root"), "/v1/reload", Value::Null)
        .await;
    let program = pool.dir.path().join("hook");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o777)).unwrap();
    let text = pool
        .refused(&alice(), "POST", "/v1/jobs", request(json!({})))
        .await;
    assert!(text.contains("others can write to it (mode 777)"), "{text}");
}
