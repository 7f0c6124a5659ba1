//! An administrator sets up accounts at run time, a user of them asks why a job waits, and does what the answer says.

use gmodel::JobState::{Completed, Pending, Running};
use gpupool_tests::pool::Pool;
use serde_json::Value;

fn done(pool: &Pool, words: &[&str]) -> String {
    let said = pool.run("gadm", words);
    assert_eq!(said.code, 0, "gadm {words:?}: {said:?}");
    said.out
}

#[test]
fn accounts_outlive_the_controller_and_their_limits_hold() {
    let Some(pool) = Pool::up(1, "h100:4") else { return };
    done(&pool, &["account", "add", "top", "guaranteed=4"]);
    done(&pool, &["account", "add", "vision", "parent=top", "guaranteed=2", "MaxJobs=1"]);
    done(&pool, &["qos", "add", "long", "MaxWall=2:00:00"]);
    pool.run("gadm", &["account", "add", "nlp", "parent=top", "guaranteed=3"]).fails_with(1, "guaranteed 5 gpu together");
    pool.run_as_user("gadm", &["account", "set", "vision", "shares=9"]).fails_with(1, "for root and the operators");
    pool.run("gsub", &["-q", "long", "-t", "3:00:00", "--wrap", "true"]).fails_with(1, "QOS long allows 2 h a job; this job asks for 3 h");
    pool.kill("gpuctld");
    pool.start("gpuctld");
    let quotas = done(&pool, &["quota", "list"]);
    assert!(quotas.lines().any(|line| line.trim_start().starts_with("vision 2")), "{quotas}");
    let first = pool.gsub(&["-A", "vision", "--gpus", "1", "--wrap", "until [ -e stop ]; do sleep 0.1; done"]);
    pool.wait_state(first, Running);
    let second = pool.gsub(&["-A", "vision", "--gpus", "1", "--wrap", "true"]);
    pool.wait_until("the limit is its reason", || pool.job(second).reason.to_string().contains("MaxJobs"));
    let why = pool.run("gq", &["--why", &second.to_string()]).out;
    assert!(why.contains("vision") && why.contains('1'), "{why}");
    done(&pool, &["account", "set", "vision", "MaxJobs=none"]);
    pool.wait_state(second, Completed);
    let export = done(&pool, &["policy", "export"]);
    let file = pool.write("policy.toml", export.replace("guaranteed = 2", "guaranteed = 1"));
    let file = file.to_str().unwrap();
    assert_eq!(done(&pool, &["policy", "import", file, "--dry-run"]), "account vision is changed\n");
    done(&pool, &["policy", "import", file]);
    assert!(done(&pool, &["quota", "show", "vision"]).contains("guaranteed: 1 GPUs, 1 held"));
    pool.write("stop", "");
    pool.wait_state(first, Completed);
    pool.check();
    pool.down();
}

#[test]
fn what_why_proposes_starts_the_job() {
    let Some(pool) = Pool::up(1, "h100:4") else { return };
    let first = pool.gsub(&["--gpus", "3", "-t", "60", "--wrap", "until [ -e stop ]; do sleep 0.1; done"]);
    pool.wait_state(first, Running);
    let big = pool.gsub(&["--gpus", "4", "-t", "10", "--wrap", "true"]);
    pool.wait_until("it has its reason", || pool.job(big).reason.to_string() == "Resources");
    let why: Value = serde_json::from_str(&pool.run("gq", &["--why", &big.to_string(), "--json"]).out).unwrap();
    let why = &why["jobs"][0];
    assert_eq!(why["blockers"][0]["nearest"]["gpus_free"], 1, "{why}");
    let change = why["changes"].as_array().unwrap().iter().find(|change| change["now"] == true).expect("something would start it");
    let option = change["option"].as_str().unwrap();
    let dry = pool.run("gsub", &["--dry-run", "--gpus", "4", "-t", "10", "--wrap", "true"]).out;
    assert!(dry.contains("would wait in partition main (") && dry.contains(&format!("with {option} it would start at once")), "{dry}");
    let words: Vec<&str> = option.split(' ').collect();
    let changed = pool.gsub(&[&["--gpus", "4", "-t", "10"], &words[..], &["--wrap", "true"]].concat());
    pool.wait_state(changed, Completed);
    let starts = pool.run("gq", &["--start", "-h"]).out;
    assert!(starts.contains("node1") && starts.contains("(Resources)"), "{starts}");
    assert_eq!(pool.job(big).state, Pending);
    pool.write("stop", "");
    pool.wait_state(big, Completed);
    pool.check();
    pool.down();
}
