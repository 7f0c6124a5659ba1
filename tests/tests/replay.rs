//! A controller's trace, with restarts and edits of the policy in it, gives the same decisions once more; and shows what
//! another policy would have done.

use gmodel::JobState::Completed;
use gpupool_tests::pool::Pool;
use serde_json::Value;

/// The last line of `gsim replay --json`.
fn replay(pool: &Pool, words: &[&str]) -> (i32, Value) {
    let trace = pool.config("gpuctld").with_file_name("state").join("trace");
    let trace = trace.to_str().unwrap().to_owned();
    let all: Vec<&str> = ["replay", &trace, "--json"].into_iter().chain(words.iter().copied()).collect();
    let said = pool.run("gsim", &all);
    let last = said.out.lines().last().unwrap_or_else(|| panic!("{said:?}"));
    (said.code, serde_json::from_str(last).unwrap_or_else(|_| panic!("{said:?}")))
}

#[test]
fn a_real_trace_is_replayed_bit_for_bit() {
    let Some(pool) = Pool::up(2, "h100:4") else { return };
    // Tracing begins when the controller knows its nodes already.
    pool.reconfigure("gpuctld", "trace = true");
    let job = |gpus: &str, account: &str| pool.gsub(&["-A", account, "--gpus", gpus, "-t", "5", "--wrap", "sleep 0.3"]);
    let done = |words: &[&str]| {
        let said = pool.run("gadm", words);
        assert_eq!(said.code, 0, "gadm {words:?}: {said:?}");
    };
    let mut jobs: Vec<_> = (0..12).map(|n| job(["1", "2", "4"][n % 3], "default")).collect();
    pool.wait_state(jobs[3], Completed);
    done(&["account", "add", "vision", "guaranteed=2", "MaxJobs=2"]);
    jobs.extend((0..8).map(|n| job(["2", "1"][n % 2], if n % 3 == 0 { "vision" } else { "default" })));
    pool.wait_state(jobs[10], Completed);
    pool.kill("gpuctld");
    pool.start("gpuctld");
    jobs.extend((0..4).map(|_| job("3", "vision")));
    done(&["account", "set", "vision", "MaxJobs=none"]);
    for job in &jobs {
        pool.wait_state(*job, Completed);
    }
    let (code, told) = replay(&pool, &[]);
    let result = &told["result"];
    assert_eq!((code, &told["same"]), (0, &Value::Bool(true)), "{told}");
    assert_eq!((&result["plans_equal"], &result["lives"]), (&result["plans"], &Value::from(2)), "{told}");
    // One that the kill took back is planned again.
    assert!(result["starts"].as_u64().is_some_and(|starts| starts >= 24), "{told}");
    assert_eq!(result["notes"], Value::from(Vec::<Value>::new()), "{told}");
    assert_eq!(replay(&pool, &[]).1["result"]["hash"], result["hash"]);
    let (_, other) = replay(&pool, &["--policy", "fifo"]);
    assert_eq!(other["result"]["hash"], result["hash"]);
    assert!(other["under"]["would_be"]["finished"].as_u64().is_some_and(|jobs| jobs > 0), "{other}");
    pool.check();
    pool.down();
}
