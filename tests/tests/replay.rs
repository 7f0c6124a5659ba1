//! A controller's trace, with restarts and edits of the policy in it, gives the same decisions once more; and shows what
//! another policy would have done.

use gmodel::JobState::Completed;
use gpupool_tests::pool::Pool;
use serde_json::Value;

/// The trace as it is now: the controller goes on writing it.
fn trace_of(pool: &Pool) -> String {
    let trace = pool.config("gpuctld").with_file_name("state").join("trace");
    let copy = pool.config("gpuctld").with_file_name("trace-copy");
    std::fs::copy(&trace, &copy).unwrap();
    copy.to_str().unwrap().to_owned()
}

/// The last line of `gsim replay --json`.
fn replay(pool: &Pool, trace: &str, words: &[&str]) -> (i32, Value) {
    let all: Vec<&str> = ["replay", trace, "--json"]
        .into_iter()
        .chain(words.iter().copied())
        .collect();
    let said = pool.run("gsim", &all);
    let last = said
        .out
        .lines()
        .last()
        .unwrap_or_else(|| panic!("{said:?}"));
    (
        said.code,
        serde_json::from_str(last).unwrap_or_else(|_| panic!("{said:?}")),
    )
}

#[test]
fn a_real_trace_is_replayed_bit_for_bit() {
    let Some(pool) = Pool::up(2, "h100:4") else {
        return;
    };
    // Tracing begins when the controller knows its nodes already.
    pool.reconfigure("gpuctld", "trace = true");
    let job = |gpus: &str, account: &str| {
        pool.gsub(&[
            "-A",
            account,
            "--gpus",
            gpus,
            "-t",
            "5",
            "--wrap",
            "sleep 0.3",
        ])
    };
    let done = |words: &[&str]| {
        let said = pool.run("gadm", words);
        assert_eq!(said.code, 0, "gadm {words:?}: {said:?}");
    };
    let mut jobs: Vec<_> = (0..12)
        .map(|n| job(["1", "2", "4"][n % 3], "default"))
        .collect();
    pool.wait_state(jobs[3], Completed);
    done(&["account", "add", "vision", "guaranteed=2", "MaxJobs=2"]);
    jobs.extend((0..8).map(|n| {
        job(
            ["2", "1"][n % 2],
            if n % 3 == 0 { "vision" } else { "default" },
        )
    }));
    pool.wait_state(jobs[10], Completed);
    pool.kill("gpuctld");
    pool.start("gpuctld");
    jobs.extend((0..4).map(|_| job("3", "vision")));
    done(&["account", "set", "vision", "MaxJobs=none"]);
    for job in &jobs {
        pool.wait_state(*job, Completed);
    }
    let trace = trace_of(&pool);
    let (code, told) = replay(&pool, &trace, &[]);
    let result = &told["result"];
    assert_eq!((code, &told["same"]), (0, &Value::Bool(true)), "{told}");
    assert_eq!(
        (&result["plans_equal"], &result["lives"]),
        (&result["plans"], &Value::from(2)),
        "{told}"
    );
    // One that the kill took back is planned again.
    assert!(
        result["starts"].as_u64().is_some_and(|starts| starts >= 24),
        "{told}"
    );
    assert_eq!(result["notes"], Value::from(Vec::<Value>::new()), "{told}");
    assert_eq!(
        replay(&pool, &trace, &[]).1["result"]["hash"],
        result["hash"]
    );
    let (_, other) = replay(&pool, &trace, &["--policy", "fifo"]);
    assert_eq!(other["result"]["hash"], result["hash"]);
    assert!(
        other["under"]["would_be"]["finished"]
            .as_u64()
            .is_some_and(|jobs| jobs > 0),
        "{other}"
    );
    pool.check();
    pool.down();
}

#[test]
fn administrators_try_a_policy_on_their_own_history() {
    let Some(pool) = Pool::up(2, "h100:4") else {
        return;
    };
    let path = |name: &str| {
        pool.config("gpuctld")
            .with_file_name(name)
            .to_str()
            .unwrap()
            .to_owned()
    };
    let (jobs, cluster) = (path("jobs.csv"), path("pool.toml"));
    let nothing = pool.run("gadm", &["export-trace", "-o", &jobs]);
    assert_eq!(
        (nothing.code, std::fs::exists(&jobs).unwrap()),
        (1, false),
        "{nothing:?}"
    );
    assert!(
        nothing
            .err
            .contains("no job is over: there is nothing to export"),
        "{nothing:?}"
    );

    let job = |gpus: &str| pool.gsub(&["--gpus", gpus, "-t", "5", "--wrap", "sleep 0.3"]);
    let submitted: Vec<_> = ["1", "4", "h100:2", "2"]
        .into_iter()
        .cycle()
        .take(12)
        .map(job)
        .collect();
    let array = pool.gsub(&["-a", "1-3", "--wrap", "exit 3"]);
    let after = pool.gsub(&[
        "-d",
        &format!("afterany:{}", submitted[11]),
        "-N",
        "2",
        "--gpus-per-node",
        "4",
        "--wrap",
        "true",
    ]);
    for job in submitted.iter().chain([&after]) {
        pool.wait_state(*job, Completed);
    }
    for task in array..array + 3 {
        pool.wait_state(task, gmodel::JobState::Failed);
    }
    let held = pool.gsub(&["--hold", "--wrap", "true"]);
    assert_eq!(pool.run("gdel", &[&held.to_string()]).code, 0);

    let export = pool.run(
        "gadm",
        &["export-trace", "-o", &jobs, "--cluster", &cluster],
    );
    assert_eq!(export.code, 0, "{export:?}");
    assert!(
        export.err.contains("17 jobs, submitted ") && export.err.contains("1 of them never ran"),
        "{export:?}"
    );
    let text = std::fs::read_to_string(&jobs).unwrap();
    assert_eq!(text.lines().count(), 18, "{text}");
    assert!(
        !text.contains("root") && text.contains(",user1,account1,") && text.contains("FAILED"),
        "{text}"
    );

    let said = pool.run(
        "gsim",
        &[
            "run",
            "--trace",
            &jobs,
            "--cluster",
            &cluster,
            "--policy",
            "easy",
            "--json",
        ],
    );
    let told: Value = serde_json::from_str(said.out.lines().last().unwrap_or(""))
        .unwrap_or_else(|_| panic!("{said:?}"));
    let run = &told["results"][0];
    assert_eq!(
        (said.code, &run["finished"], &run["skipped"]),
        (0, &Value::from(16), &Value::from(1)),
        "{told}"
    );
    let kept = pool.run("gadm", &["export-trace", "--names", "--from", "now-1hour"]);
    let user = String::from_utf8(
        std::process::Command::new("id")
            .arg("-un")
            .output()
            .unwrap()
            .stdout,
    )
    .unwrap();
    assert!(
        kept.out
            .lines()
            .nth(1)
            .is_some_and(|line| line.contains(&format!(",{},default,", user.trim()))),
        "{kept:?}"
    );
    pool.down();
}

#[test]
fn a_trace_that_cannot_be_written_or_is_not_for_you_says_so() {
    let Some(pool) = Pool::up(1, "h100:1") else {
        return;
    };
    let job = pool.gsub(&["--wrap", "true"]);
    pool.wait_state(job, Completed);
    for (words, why) in [
        (
            &["-o", "/nowhere/jobs.csv"][..],
            "cannot write /nowhere/jobs.csv: No such file or directory",
        ),
        (
            &["-o", "/dev/full"],
            "cannot write /dev/full: No space left on device",
        ),
        (
            &["--cluster", "/nowhere/pool.toml"],
            "cannot write /nowhere/pool.toml: No such file or directory",
        ),
        (
            &["--from", "2100-01-01"],
            "no job is over that was submitted since 2100-01-01",
        ),
    ] {
        let said = pool.run("gadm", &[&["export-trace"], words].concat());
        assert!(said.code == 1 && said.err.contains(why), "{said:?}");
    }
    pool.run_as_user("gadm", &["export-trace"])
        .fails_with(1, "the history of all jobs is for root and the operators");
    let odd = pool.run("gadm", &["export-trace", "--from", "soonish"]);
    assert!(odd.code == 2 && odd.err.contains("--from"), "{odd:?}");
    pool.down();
}
