//! `gadm` as a process, against canned answers: what is sent, what is said, how it exits.

use expect_test::{Expect, expect};
use gcli::fake_controller::{Answer, FakeController, Request};

const GADM: &str = env!("CARGO_BIN_EXE_gadm");

fn answer(request: &Request) -> Answer {
    match request.path.as_str() {
        "/v1/nodes/n9/drain" => Answer::refuse(404, "not_found", "there is no node n9"),
        "/v1/jobs/release" | "/v1/jobs/hold" | "/v1/jobs/requeue" => Answer::ok(
            r#"{"schema":1,"results":[{"job":"17","ok":true},{"job":"18","ok":false,"code":"denied","error":"job 18 belongs to bob"}]}"#,
        ),
        "/v1/tokens" => Answer::ok(
            r#"{"schema":1,"token":"SECRET.HASH","expires":"2026-11-20T10:05:27Z","controller":"head:7070"}"#,
        ),
        "/v1/reload" => Answer::ok(
            r#"{"schema":1,"notes":["listen has changed and takes effect when gpuctld is restarted"]}"#,
        ),
        "/v1/check" => Answer::ok(
            r#"{"schema":1,"ok":false,"violations":["gpu n1/0 has two owners"],"checked":{"jobs":2,"runs":1,"nodes":3}}"#,
        ),
        "/v1/diag" => Answer::ok(r#"{"schema":1,"up_secs":5,"commit":{"p50_ms":0.2}}"#),
        _ => Answer::ok(r#"{"schema":1,"notes":[]}"#),
    }
}

fn check(words: &[&str], want: Expect) {
    want.assert_eq(&FakeController::start(answer).run(GADM, words).text());
}

fn sent(words: &[&str]) -> String {
    let controller = FakeController::start(answer);
    controller.run(GADM, words);
    controller
        .requests()
        .iter()
        .map(|request| format!("{} {}\n", request.path, request.body))
        .collect()
}

#[test]
fn nodes_are_named_by_host_lists_and_a_drain_needs_its_reason() {
    expect![[r#"
        /v1/nodes/n1/drain {"reason":"fan"}
        /v1/nodes/n2/drain {"reason":"fan"}
    "#]]
    .assert_eq(&sent(&["node", "drain", "n[1-2]", "--reason", "fan"]));
    expect![[r#"
        /v1/nodes/n1/resume {"reason":""}
    "#]]
    .assert_eq(&sent(&["node", "resume", "n1"]));
    check(
        &["node", "drain", "n1"],
        expect![[r#"
        stderr: gadm: the following required arguments were not provided:
        stderr:   --reason <TEXT>
        stderr: 
        stderr: Usage: gadm node drain --reason <TEXT> <NODE>...
        stderr: 
        stderr: For more information, try '--help'.
        exit: Some(2)
    "#]],
    );
    check(
        &["node", "drain", "n[8-9]", "--reason", "fan"],
        expect![[r#"
        stderr: gadm: there is no node n9
        exit: Some(1)
    "#]],
    );
    check(
        &["node", "down", "n[1-1000000000]"],
        expect![[r#"
        stderr: gadm: the host list names 1000000000 nodes and 131072 are the most. Use a smaller range
        exit: Some(2)
    "#]],
    );
}

#[test]
fn jobs_are_changed_with_scontrols_keys() {
    expect![[r#"
        /v1/jobs/update {"job":"17","change":{"nice":5,"time_limit_secs":7200}}
    "#]]
    .assert_eq(&sent(&[
        "job",
        "update",
        "17",
        "TimeLimit=2:00:00",
        "Nice=5",
    ]));
    expect![[r#"
        /v1/jobs/update {"job":"98_5","change":{"max_running":4,"time_limit_secs":null}}
    "#]]
    .assert_eq(&sent(&[
        "job",
        "update",
        "JobId=98_5",
        "--time",
        "UNLIMITED",
        "ArrayTaskThrottle=4",
    ]));
    expect![[r#"
        /v1/jobs/hold {"jobs":["17","98_[1-3]"],"reason":"wait for data","hold":false,"for_owner":false}
    "#]].assert_eq(&sent(&["job", "hold", "17", "98_[1-3]", "--reason", "wait for data"]));
    expect![[r#"
        /v1/jobs/requeue {"jobs":["17"],"reason":"","hold":true,"for_owner":false}
    "#]]
    .assert_eq(&sent(&["job", "requeue", "17", "--hold"]));
    check(
        &["job", "update", "17"],
        expect![[r#"
        stderr: gadm: what is to be changed? gadm job update 17 TimeLimit=4:00:00
        exit: Some(2)
    "#]],
    );
    check(
        &["job", "update", "17", "TimeLimit=junk"],
        expect![[r#"
        stderr: gadm: TimeLimit: time limit "junk" is in none of the forms minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes, days-hours:minutes:seconds or UNLIMITED. Try 90 (minutes) or 1:30:00
        exit: Some(2)
    "#]],
    );
    check(
        &["job", "release", "17", "18"],
        expect![[r#"
        stderr: gadm: job 18 belongs to bob
        exit: Some(1)
    "#]],
    );
}

#[test]
fn a_token_is_all_of_stdout() {
    check(
        &["token", "node", "--role", "login", "--ttl", "60"],
        expect![[r#"
        SECRET.HASH
        stderr: gadm: good once, until 2026-11-20T10:05:27: gpud join --controller head:7070 --token TOKEN
    "#]],
    );
    expect![[r#"
        /v1/tokens {"role":"compute","name":"n7","ttl_secs":86400}
    "#]]
    .assert_eq(&sent(&["token", "node", "--name", "n7", "--ttl", "1-0"]));
    check(
        &["token", "node", "--role", "gpu"],
        expect![[r#"
        stderr: gadm: invalid value 'gpu' for '--role <ROLE>': roles are compute and login
        stderr: 
        stderr: For more information, try '--help'.
        exit: Some(2)
    "#]],
    );
}

#[test]
fn the_controllers_own_affairs() {
    check(
        &["reload"],
        expect![[r#"
        stderr: gadm: listen has changed and takes effect when gpuctld is restarted
    "#]],
    );
    check(
        &["check"],
        expect![[r#"
        gpu n1/0 has two owners
        1 contradiction in 2 jobs, 1 runs, 3 nodes
        exit: Some(1)
    "#]],
    );
    check(
        &["diag"],
        expect![[r#"
        commit:
          p50_ms: 0.2
        up_secs: 5
    "#]],
    );
    expect![[r#"
        /v1/backup {"path":"/var/backups/x.db"}
    "#]]
    .assert_eq(&sent(&["backup", "/var/backups/x.db"]));
}

#[test]
fn without_a_subcommand_the_help_is_shown_as_an_error() {
    let ran = FakeController::start(answer).run(GADM, &[]);
    assert!(
        ran.exit == Some(2) && ran.stderr.contains("Usage: gadm") && ran.stdout.is_empty(),
        "{}",
        ran.text()
    );
}
