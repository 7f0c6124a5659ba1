//! `gdel` as a process, against canned answers of the API.

#[path = "canned/queue.rs"]
mod canned;

use canned::answer;
use expect_test::{Expect, expect};
use gcli::fake_controller::{Answer, FakeController, Request};

const GDEL: &str = env!("CARGO_BIN_EXE_gdel");

fn check(program: &str, words: &[&str], want: Expect) {
    want.assert_eq(&FakeController::start(answer).run(program, words).text());
}

#[test]
fn a_filter_that_names_nothing_cancels_nothing() {
    let controller = FakeController::start(answer);
    expect![[r#"
        stderr: gdel: --user is empty: that names no job, and is not taken for all of them
        exit: Some(2)
    "#]]
    .assert_eq(&controller.run(GDEL, &["-u", ""]).text());
    assert_eq!(
        controller.run(GDEL, &["-t", "PD", "-n", " ,"]).exit,
        Some(2)
    );
    assert!(controller.requests().is_empty());
}

#[test]
fn cancelling_says_what_was_done() {
    check(
        GDEL,
        &["-v", "95", "98_5"],
        expect![[r#"
        stderr: gdel: cancelled job 95
        stderr: gdel: cancelled job 98_5
    "#]],
    );
    check(
        GDEL,
        &["999999"],
        expect![[r#"
        stderr: gdel: there is no job 999999
        exit: Some(1)
    "#]],
    );
    check(
        GDEL,
        &[],
        expect![[r#"
        stderr: gdel: which jobs? Name them (gdel 17 98_5), or choose them with -u, --me, -n, -p, -t, -A, -q, -R or -w
        exit: Some(2)
    "#]],
    );
    check(
        GDEL,
        &["-s", "TREM", "95"],
        expect![[r#"
        stderr: gdel: invalid value 'TREM' for '--signal <SIGNAL>': signal "TREM" is not known. Did you mean "TERM"? Try USR1, TERM, or a number from 1 to 64
        stderr: 
        stderr: For more information, try '--help'.
        exit: Some(2)
    "#]],
    );
    check(GDEL, &["--name=nosuch"], expect![[""]]);
}

#[test]
fn filters_and_signals_reach_the_controller() {
    let controller = FakeController::start(answer);
    controller.run(GDEL, &["-s", "usr1", "-b", "-u", "root"]);
    controller.run(GDEL, &["-n", "x", "-t", "PD", "98_[1-3]"]);
    controller.run(GDEL, &["-R", "maint", "-Q"]);
    controller.run(GDEL, &["-f", "-s", "USR2", "95"]);
    assert_eq!(
        controller.run(GDEL, &["-f", "-b", "-s", "USR2", "95"]).exit,
        Some(2)
    );
    let bodies: Vec<String> = controller
        .requests()
        .iter()
        .map(|request| request.body.clone())
        .collect();
    expect![[r#"
        {"jobs":[],"filter":{"user":"root","state":"RUNNING,SUSPENDED"},"signal":10,"batch_only":true}
        {"jobs":["98_[1-3]"],"filter":{"name":"x","state":"PENDING"},"batch_only":false}
        {"jobs":[],"filter":{"reservation":"maint"},"batch_only":false}
        {"jobs":["95"],"signal":12,"batch_only":false,"full":true}"#]].assert_eq(&bodies.join("\n"));
}

#[test]
fn a_quiet_cancellation_says_nothing_of_jobs_that_are_over() {
    let over = |_: &Request| {
        let results = serde_json::json!([{"job": "17", "ok": false, "code": "not_found", "error": "no job 17 in the queue."}]);
        Answer::ok(serde_json::json!({"schema": 1, "results": results}).to_string())
    };
    let controller = FakeController::start(over);
    assert_eq!(controller.run(GDEL, &["-Q", "17"]).text(), "");
    assert!(
        controller
            .run(GDEL, &["17"])
            .text()
            .contains("exit: Some(1)")
    );
    let denied = |_: &Request| {
        let results = serde_json::json!([{"job": "17", "ok": false, "code": "denied", "error": "job 17 is not yours."}]);
        Answer::ok(serde_json::json!({"schema": 1, "results": results}).to_string())
    };
    assert!(
        FakeController::start(denied)
            .run(GDEL, &["-Q", "17"])
            .text()
            .contains("not yours")
    );
}

#[test]
fn interactive_cancelling_asks_for_each() {
    let controller = FakeController::start(answer);
    let ran = controller.run_with(GDEL, &["-i", "-p", "main"], &[], "n\ny\nn\n");
    assert!(
        ran.stderr
            .starts_with("Cancel job 97 name=dep partition=main [y/n]? "),
        "{}",
        ran.stderr
    );
    assert_eq!(
        controller.requests()[1].body,
        r#"{"jobs":["98_5"],"batch_only":false}"#
    );
}

#[test]
fn a_job_that_is_over_is_a_failure_unlike_in_scancel() {
    let controller = FakeController::start(answer);
    assert_eq!(controller.run(GDEL, &["999999"]).exit, Some(1));
    assert_eq!(
        controller.run(GDEL, &["-s", "KILL", "999999"]).exit,
        Some(1)
    );
}
