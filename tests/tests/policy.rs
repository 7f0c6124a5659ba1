//! An administrator sets up accounts at run time, a user of them asks why a job waits, and does what the answer says.

use gmodel::JobState::{Completed, Pending, Running, Suspended};
use gpupool_tests::pool::Pool;
use serde_json::Value;

fn done(pool: &Pool, words: &[&str]) -> String {
    let said = pool.run("gadm", words);
    assert_eq!(said.code, 0, "gadm {words:?}: {said:?}");
    said.out
}

#[test]
fn accounts_outlive_the_controller_and_their_limits_hold() {
    let Some(pool) = Pool::up(1, "h100:4") else {
        return;
    };
    done(&pool, &["account", "add", "top", "guaranteed=4"]);
    done(
        &pool,
        &[
            "account",
            "add",
            "vision",
            "parent=top",
            "guaranteed=2",
            "MaxJobs=1",
        ],
    );
    done(&pool, &["qos", "add", "long", "MaxWall=2:00:00"]);
    pool.run(
        "gadm",
        &["account", "add", "nlp", "parent=top", "guaranteed=3"],
    )
    .fails_with(1, "guaranteed 5 GPUs together");
    pool.run_as_user("gadm", &["account", "set", "vision", "shares=9"])
        .fails_with(1, "for root and the operators");
    pool.run("gsub", &["-q", "long", "-t", "3:00:00", "--wrap", "true"])
        .fails_with(1, "QOS long allows 2 h a job; this job asks for 3 h");
    pool.kill("gpuctld");
    pool.start("gpuctld");
    let quotas = done(&pool, &["quota", "list"]);
    assert!(
        quotas
            .lines()
            .any(|line| line.trim_start().starts_with("vision 2")),
        "{quotas}"
    );
    let first = pool.gsub(&[
        "-A",
        "vision",
        "--gpus",
        "1",
        "--wrap",
        "until [ -e stop ]; do sleep 0.1; done",
    ]);
    pool.wait_state(first, Running);
    let second = pool.gsub(&["-A", "vision", "--gpus", "1", "--wrap", "true"]);
    pool.wait_until("the limit is its reason", || {
        pool.job(second).reason.to_string().contains("MaxJobs")
    });
    let why = pool.run("gq", &["--why", &second.to_string()]).out;
    assert!(why.contains("vision") && why.contains('1'), "{why}");
    done(&pool, &["account", "set", "vision", "MaxJobs=none"]);
    pool.wait_state(second, Completed);
    let export = done(&pool, &["policy", "export"]);
    let file = pool.write(
        "policy.toml",
        export.replace("guaranteed = 2", "guaranteed = 1"),
    );
    let file = file.to_str().unwrap();
    assert_eq!(
        done(&pool, &["policy", "import", file, "--dry-run"]),
        "account vision is changed\n"
    );
    done(&pool, &["policy", "import", file]);
    assert!(done(&pool, &["quota", "show", "vision"]).contains("guaranteed: 1 GPUs, 1 held"));
    pool.write("stop", "");
    pool.wait_state(first, Completed);
    pool.check();
    pool.down();
}

#[test]
fn times_of_reservations_are_the_clusters_and_not_those_of_the_administrators_machine() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    let start_of = |name: &str| {
        let gadm = gpupool_tests::pool::programs()
            .join("gadm")
            .display()
            .to_string();
        let made = pool.run_shell(&format!("TZ=Asia/Tokyo {gadm} reservation add {name} start=2027-01-09T08:00 duration=60 users=root nodes=node1"));
        assert_eq!(made.code, 0, "{made:?}");
        let list: Value =
            serde_json::from_str(&pool.run("gadm", &["reservation", "list", "--json"]).out)
                .unwrap();
        let rows = list["reservations"].as_array().unwrap();
        rows.iter()
            .find(|row| row["name"] == name)
            .and_then(|row| row["start"].as_str())
            .unwrap()
            .to_owned()
    };
    assert_eq!(
        start_of("own"),
        "2027-01-08T23:00:00Z",
        "the file says no zone: the machine's"
    );
    let file = pool.config("gpuctld");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, format!("time_zone = \"America/New_York\"\n{text}")).unwrap();
    done(&pool, &["reservation", "del", "own", "--yes"]);
    done(&pool, &["reload"]);
    assert_eq!(start_of("clusters"), "2027-01-09T13:00:00Z");
}

#[test]
fn what_why_proposes_starts_the_job() {
    let Some(pool) = Pool::up(1, "h100:4") else {
        return;
    };
    let first = pool.gsub(&[
        "--gpus",
        "3",
        "-t",
        "60",
        "--wrap",
        "until [ -e stop ]; do sleep 0.1; done",
    ]);
    pool.wait_state(first, Running);
    let big = pool.gsub(&["--gpus", "4", "-t", "10", "--wrap", "true"]);
    pool.wait_until("it has its reason", || {
        pool.job(big).reason.to_string() == "Resources"
    });
    let why: Value =
        serde_json::from_str(&pool.run("gq", &["--why", &big.to_string(), "--json"]).out).unwrap();
    let why = &why["jobs"][0];
    assert_eq!(why["blockers"][0]["nearest"]["gpus_free"], 1, "{why}");
    let change = why["changes"]
        .as_array()
        .unwrap()
        .iter()
        .find(|change| change["now"] == true)
        .expect("something would start it");
    let option = change["option"].as_str().unwrap();
    let dry = pool
        .run(
            "gsub",
            &["--dry-run", "--gpus", "4", "-t", "10", "--wrap", "true"],
        )
        .out;
    assert!(
        dry.contains("would wait in partition main (")
            && dry.contains(&format!("with {option} it would start at once")),
        "{dry}"
    );
    let words: Vec<&str> = option.split(' ').collect();
    let changed = pool.gsub(
        &[
            &["--gpus", "4", "-t", "10"],
            &words[..],
            &["--wrap", "true"],
        ]
        .concat(),
    );
    pool.wait_state(changed, Completed);
    let starts = pool.run("gq", &["--start", "-h"]).out;
    assert!(
        starts.contains("node1") && starts.contains("(Resources)"),
        "{starts}"
    );
    assert_eq!(pool.job(big).state, Pending);
    pool.write("stop", "");
    pool.wait_state(big, Completed);
    pool.check();
    pool.down();
}

/// Counts in a file until it is told to stop.
const COUNTER: &str = "n=0; while [ ! -e stop ]; do n=$((n+1)); echo $n > count; sleep 0.05; done";

#[test]
fn a_suspended_job_stands_still_whoever_dies_and_goes_on_at_the_operators_word() {
    let Some(pool) = Pool::up(1, "h100:2") else {
        return;
    };
    let job = pool.gsub(&["--gpus", "1", "--time", "60", "--wrap", COUNTER]);
    pool.wait_file("count");
    assert_eq!(
        pool.run_as_user("gadm", &["job", "suspend", &job.to_string()])
            .code,
        1,
        "users do not"
    );
    assert_eq!(
        pool.run("gadm", &["job", "suspend", &job.to_string()]).code,
        0
    );
    let log = || pool.run("gq", &["--log", &job.to_string()]).out;
    let by_node = |word: &str| {
        log()
            .lines()
            .any(|line| line.ends_with(&format!(" {word}")))
    };
    pool.wait_until("its node has frozen it", || by_node("suspended"));
    pool.wait_state(job, Suspended);
    let count = pool.file("count");
    pool.kill("node1");
    pool.kill("gpuctld");
    pool.start("gpuctld");
    pool.start("node1");
    pool.wait_until("the node is back", || {
        pool.node("node1").state.starts_with("MIXED") || pool.node("node1").state == "ALLOCATED"
    });
    // It still holds its GPU: another job gets the second one only.
    let other = pool.gsub(&["--gpus", "1", "--wrap", "true"]);
    pool.wait_state(other, Completed);
    assert_eq!(pool.job(job).state, Suspended);
    assert_eq!(pool.file("count"), count, "it stood still all the time");
    assert_eq!(
        pool.run("gadm", &["job", "resume", &job.to_string()]).code,
        0
    );
    pool.wait_until("it counts again", || pool.file("count") != count);
    pool.write("stop", "");
    pool.wait_state(job, Completed);
    pool.check();
    pool.down();
}

#[test]
fn a_job_without_gpus_runs_on_the_cpus_of_one_that_is_frozen_for_it() {
    let Some(pool) = Pool::up(1, "h100:1") else {
        return;
    };
    for words in [
        "qos add low preempt_mode=suspend",
        "qos add high preempt=low",
    ] {
        let said = pool.run("gadm", &words.split_whitespace().collect::<Vec<_>>());
        assert_eq!(said.code, 0, "{said:?}");
    }
    let low = pool.gsub(&[
        "-q", "low", "--gpus", "1", "-c", "60", "--mem", "1G", "--wrap", COUNTER,
    ]);
    pool.wait_file("count");
    let high = pool.gsub(&[
        "-q",
        "high",
        "-c",
        "30",
        "--mem",
        "1G",
        "--wrap",
        "while [ ! -e over ]; do sleep 0.05; done",
    ]);
    pool.wait_state(high, Running);
    pool.wait_state(low, Suspended);
    let said = pool.run("gadm", &["job", "resume", &low.to_string()]);
    assert!(
        said.code == 1 && said.err.contains(&format!("suspended for job {high}")),
        "{said:?}"
    );
    pool.write("over", "");
    pool.wait_state(high, Completed);
    pool.wait_state(low, Running);
    let count = pool.file("count");
    pool.wait_until("it counts again", || pool.file("count") != count);
    pool.write("stop", "");
    pool.wait_state(low, Completed);
    pool.check();
    pool.down();
}
