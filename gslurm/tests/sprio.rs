//! `sprio` against canned answers of the API. The wanted lines are those that sprio 22.05.8 printed.

use expect_test::{Expect, expect};
use gcli::fake_controller::{Answer, FakeController, Request};
use serde_json::{Value, json};

const GSLURM: &str = env!("CARGO_BIN_EXE_gslurm");

/// Three of the jobs that waited in the real Slurm, with its weights.
fn sprio(request: &Request) -> Answer {
    let (_, query) = request.path.split_once('?').unwrap_or_default();
    let job = |id: u64, shown: &str, user: &str, priority: u64, qos: f64, nice: i64| {
        let factors = |age: f64, share: f64, size: f64, partition: f64, qos: f64| json!({"age": age, "fair_share": share, "size": size, "partition": partition, "qos": qos, "nice": nice});
        json!({"id": id, "shown_id": shown, "user": user, "account": "vision", "partition": "main", "qos": "normal", "position": 9 - id, "priority": priority, "eligible": id != 5,
            "weighted": factors(0.0, 10000.0, 375.0, 100.0, qos), "normalized": factors(0.0000843, 1.0, 0.75, 1.0, qos / 2000.0)})
    };
    let held = job(5, "5", "games", 0, 0.0, 0);
    let mut both = job(4, "4", "both", 10475, 0.0, 0);
    both["partition"] = "main,debug".into();
    let mut in_debug = both.clone();
    (
        in_debug["partition"],
        in_debug["priority"],
        in_debug["weighted"]["partition"],
    ) = ("debug".into(), 11375.into(), 1000.0.into());
    let mut in_main = both.clone();
    in_main["partition"] = "main".into();
    both["by_partition"] = json!([in_main, in_debug]);
    if query.contains("user=both") || query.contains("partition=") {
        let weights = json!({"age": 1000, "fair_share": 10000, "size": 500, "partition": 1000});
        return Answer::ok(
            json!({"schema": 1, "weights": weights, "jobs": [held, both]}).to_string(),
        );
    }
    let jobs = [
        held,
        job(6, "6", "games", 12455, 2000.0, 20),
        job(1, "1", "games", 10475, 0.0, 0),
        job(8, "7_[1-5]", "news", 10475, 0.0, 0),
    ];
    let pairs: Vec<(&str, &str)> = query
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .collect();
    let meant = |job: &Value| {
        pairs.iter().all(|(key, value)| match *key {
            "job" => value
                .split(",")
                .any(|id| job["id"].as_u64() == id.parse().ok()),
            "user" => job["user"] == *value,
            _ => true,
        })
    };
    let jobs: Vec<Value> = jobs.into_iter().filter(meant).collect();
    let weights = json!({"site": 1, "age": 1000, "fair_share": 10000, "size": 500, "partition": 100, "qos": 2000});
    Answer::ok(json!({"schema": 1, "weights": weights, "jobs": jobs}).to_string())
}

/// What sprio 22.05.8 printed of them; later releases have columns for the account and the name of the QOS, too.
#[test]
fn sprio_prints_what_slurms_does() {
    let controller = FakeController::start(sprio);
    let check = |words: &[&str], wanted: Expect| {
        let text = controller.run_as("sprio", GSLURM, words).text();
        // Behind bars, for the blanks at both ends.
        wanted.assert_eq(
            &text
                .lines()
                .map(|line| format!("|{line}|\n"))
                .collect::<String>(),
        );
    };
    check(
        &[],
        expect![[r#"
        |          JOBID PARTITION   PRIORITY       SITE        AGE  FAIRSHARE    JOBSIZE  PARTITION        QOS|
        |              1 main           10475          0          0      10000        375        100          0|
        |              6 main           12455          0          0      10000        375        100       2000|
        |              7 main           10475          0          0      10000        375        100          0|
    "#]],
    );
    check(
        &["-u", "games"],
        expect![[r#"
        |          JOBID PARTITION     USER   PRIORITY       SITE        AGE  FAIRSHARE    JOBSIZE  PARTITION        QOS|
        |              1 main         games      10475          0          0      10000        375        100          0|
        |              6 main         games      12455          0          0      10000        375        100       2000|
    "#]],
    );
    check(
        &["-h", "-l", "-j6"],
        expect![[r#"
        |              6 main         games     vision      12455          0          0          0      10000        375        100     normal       2000          20                     |
    "#]],
    );
    check(
        &["-j", "6", "-l", "-n"],
        expect![[r#"
        |          JOBID PARTITION     USER    ACCOUNT PRIORITY   AGE        ASSOC      FAIRSHARE  JOBSIZE    PARTITION     QOSNAME QOS        TRES                |
        |              6 main         games     vision 0.00000289 0.0000843  0.0000000  1.0000000  0.7500000  1.0000000      normal 1.0000000                      |
    "#]],
    );
    check(
        &["-w"],
        expect![[r#"
        |          JOBID PARTITION   PRIORITY       SITE        AGE  FAIRSHARE    JOBSIZE  PARTITION        QOS|
        |        Weights                               1       1000      10000        500        100       2000|
    "#]],
    );
    check(
        &["-h", "-n", "-w"],
        expect![
            "|        Weights                      1000       10000      500        100        2000      |\n"
        ],
    );
    check(
        &["-h", "-u", "both"],
        expect![[r#"
        |              4 main          both      10475          0          0      10000        375        100|
        |              4 debug         both      11375          0          0      10000        375       1000|
    "#]],
    );
    check(
        &["-h", "-p", "debug"],
        expect![
            "|              4 debug          11375          0          0      10000        375       1000|\n"
        ],
    );
    check(
        &["-S", "u,-y", "-o", "%i %u %10y|%N"],
        expect![[r#"
        |JOBID USER PRIORITY  |NICE|
        |6 games 0.00000289|20|
        |1 games 0.00000243|0|
        |7 news 0.00000243|0|
    "#]],
    );
}

#[test]
fn sprio_refuses_what_it_cannot_show() {
    let controller = FakeController::start(sprio);
    let check = |words: &[&str], wanted: Expect| {
        wanted.assert_eq(&controller.run_as("sprio", GSLURM, words).text())
    };
    check(
        &["-j", "99"],
        expect![[r#"
        stderr: Unable to find jobs matching user/id(s) specified: 99 does not wait for its turn. gq 99 shows it
    "#]],
    );
    check(
        &["-j", "5"],
        expect![[r#"
        stderr: Unable to find jobs matching user/id(s) specified: 5 does not wait for its turn. gq 5 shows it
    "#]],
    );
    check(
        &["-vv", "-h", "-o", "%i", "-p", "main", "-j", "6,1"],
        expect![[r#"
            -----------------------------
            format     = %i
            job_flag   = 1
            jobs       = 6,1
            partition  = main
            users      = (null)
            verbose    = 2
            job_list[0] = 6
            job_list[1] = 1
            -----------------------------


            4
        "#]],
    );
    check(
        &["-u", "no-such-user"],
        expect![[r#"
        stderr: sprio: error: Invalid user: no job of "no-such-user" waits, and there is no user of that name on this machine
        exit: Some(1)
    "#]],
    );
    check(
        &["-o", "%i %Z"],
        expect![[r#"
        stderr: sprio: error: format "%i %Z": there is no column %Z. --help lists them
        exit: Some(1)
    "#]],
    );
    check(
        &["-S", "x"],
        expect![[r#"
            stderr: sprio: error: Invalid sort specification: "x" is no column's letter. Try u,-y; --help lists them
            exit: Some(1)
        "#]],
    );
}
