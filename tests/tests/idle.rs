//! Jobs that hold GPUs and do not use them: seen before anything is done, warned, told by the site's program, taken back to the
//! queue; and jobs that work, are exempt, or have GPUs without samples, are left alone.

use gmodel::JobState::Running;
use gpupool_tests::pool::Pool;
use gwire::api::{IdleReportAnswer, IdleRunRow};
use std::time::Instant;

/// Writes down what it is told.
const PROGRAM: &str = r#"#!/bin/sh
cd "${0%/*}" || exit 9
echo "$1 $GPUPOOL_USER $GPUPOOL_PARTITION $GPUPOOL_NODES $GPUPOOL_GPUS gpus $GPUPOOL_ACTION in $GPUPOOL_ACTION_SECS, mail $GPUPOOL_MAIL_USER on $GPUPOOL_MAIL_TYPE" >> calls
[ ! -e broken ] || { echo "no mail today" >&2; exit 3; }
"#;
/// Says when it is asked for its checkpoint.
const JOB: &str = "echo begun > begun.$GSUB_ATTEMPT; trap 'echo checkpoint >> asked; exit 0' USR1; while :; do sleep 0.1; done";

/// Seconds: long enough for some samples, one each second.
fn policy(pool: &Pool, action: &str, act_after: &str) {
    let path = pool.dir.join("gpuctld/partitions.d/main.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    let own = text.split("[partition.main.idle]").next().unwrap();
    let idle = format!(
        "[partition.main.idle]\naction = {action:?}\nwarn_after = \"0:03\"\nact_after = {act_after:?}\ngrace = \"0:01\"\n"
    );
    std::fs::write(&path, format!("{own}{idle}")).unwrap();
}

fn reload(pool: &Pool, action: &str) {
    policy(pool, action, "0:06");
    let said = pool.run("gadm", &["reload"]);
    assert_eq!(said.code, 0, "{said:?}");
}

fn set(pool: &Pool, words: &[&str]) {
    let said = pool.sandbox(&[&["fault", "node1"], words].concat());
    assert_eq!(said.code, 0, "{said:?}");
}

fn report(pool: &Pool, options: &[&str]) -> IdleReportAnswer {
    let said = pool.run("gadm", &[&["idle", "report", "--json"], options].concat());
    serde_json::from_str(&said.out).unwrap_or_else(|error| panic!("{error}: {said:?}"))
}

fn row(pool: &Pool, job: u64, attempt: u32, options: &[&str]) -> Option<IdleRunRow> {
    report(pool, options)
        .runs
        .into_iter()
        .find(|run| run.job == job.to_string() && run.attempt == attempt)
}

#[test]
fn what_would_be_done_is_seen_first_and_then_an_idle_job_is_warned_told_and_requeued() {
    let Some(pool) = Pool::up(1, "h100:2") else {
        return;
    };
    let program = pool.write("program", PROGRAM);
    std::fs::set_permissions(
        &program,
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .unwrap();
    policy(&pool, "report", "0:06");
    pool.reconfigure(
        "gpuctld",
        &format!("idle_program = {:?}", program.display().to_string()),
    );
    for gpu in ["gpu0", "gpu1"] {
        set(&pool, &[gpu, "set", "util=0"]);
    }
    pool.reconfigure("node1", "gpu_watch_secs = 1\n");
    pool.wait_idle("node1");
    let job = pool.gsub(&[
        "--gpus",
        "2",
        "--checkpoint",
        "USR1@20",
        "--mail-type",
        "ALL",
        "--mail-user",
        "ada@example.org",
        "--wrap",
        JOB,
    ]);
    let begun = Instant::now();
    pool.wait_until("the record says what would be done", || {
        pool.job(job).idle.is_some_and(|idle| {
            idle.ends_with("would have been ended, but the policy only reports")
        })
    });
    assert!(
        begun.elapsed().as_secs() >= 4,
        "ended by the report in the middle of its time"
    );
    let shown = row(&pool, job, 1, &[]).expect("it is in the report");
    assert!(
        shown.running && shown.gpus == 2.0 && shown.action == "report",
        "{shown:?}"
    );
    assert!(
        (4..=6).contains(&shown.warned_secs)
            && shown.ended_secs.is_some_and(|at| (7..=9).contains(&at)),
        "{shown:?}"
    );
    assert_eq!(
        row(&pool, job, 1, &["--act-after", "1:00:00"]),
        None,
        "under a policy with more patience nothing comes of it"
    );
    let table = pool.run("gadm", &["idle", "report"]);
    assert!(
        table.out.contains("GPUH_BACK")
            && table.out.contains("running")
            && table.err.contains("1 run warned, 1 of them"),
        "{table:?}"
    );
    assert_eq!(
        pool.file("calls"),
        "",
        "nobody is told under a policy that only reports"
    );

    reload(&pool, "requeue");
    let calls = pool.wait_file("calls");
    assert_eq!(
        calls,
        format!("{job} root main node1 2 gpus requeue in 3, mail ada@example.org on ALL\n")
    );
    // A controller that comes up between warns nobody again: what it was told is on record.
    pool.wait_until("the call is on record", || {
        pool.run("gq", &["--log", &job.to_string()])
            .out
            .contains("idle_program was told that it is idle")
    });
    pool.kill("gpuctld");
    pool.start("gpuctld");
    pool.wait_file("begun.2");
    reload(&pool, "warn");
    assert_eq!(pool.wait_file("asked"), "checkpoint\n");
    assert_eq!(pool.file("calls"), calls);
    let log = pool.run("gq", &["--log", &job.to_string()]).out;
    for sentence in [
        "would be warned, but the policy only reports",
        "would be ended, under an idle policy that ends something",
        "warned; goes back to the queue when that is",
        "idle_program was told that it is idle",
        "taken back to the queue by idle policy: its GPUs did nothing for",
    ] {
        assert!(log.contains(sentence), "{sentence:?} is not in\n{log}");
    }
    let past = row(
        &pool,
        job,
        1,
        &[
            "--warn-after",
            "0:02",
            "--act-after",
            "0:05",
            "--grace",
            "0",
        ],
    )
    .expect("what is over is in the report");
    assert!(
        !past.running && past.ended_secs.is_some() && past.end_time.is_some(),
        "{past:?}"
    );

    // The second attempt is exempt from now on; the mail of its warning fails, and that is noted.
    pool.write("broken", "");
    pool.wait_until("it is warned again", || {
        pool.file("calls").lines().count() == 2
    });
    let said = pool.run(
        "gadm",
        &["job", "update", &job.to_string(), "IdleExempt=yes"],
    );
    assert_eq!(said.code, 0, "{said:?}");
    reload(&pool, "requeue");
    let exempt = Instant::now();
    pool.wait_until("twice its time is gone", || {
        exempt.elapsed().as_secs() >= 12
    });
    let shown = pool.job(job);
    assert_eq!(
        (shown.state, shown.attempts, shown.idle_exempt),
        (Running, 2, true),
        "{shown:?}"
    );
    assert!(
        pool.run("gq", &[&job.to_string()])
            .out
            .contains("IdleExempt=YES")
    );
    assert_eq!(row(&pool, job, 2, &[]), None);
    let log = pool.run("gq", &["--log", &job.to_string()]).out;
    assert!(
        log.contains(
            "its owner may not know that it is idle: idle_program ended with 3: no mail today"
        ),
        "{log}"
    );
    pool.check();
    pool.down();
}

#[test]
fn busy_jobs_and_jobs_without_samples_are_left_alone() {
    let Some(pool) = Pool::up(1, "h100:2") else {
        return;
    };
    policy(&pool, "cancel", "0:20");
    pool.reconfigure("gpuctld", "");
    set(&pool, &["gpu0", "set", "util=3"]);
    set(&pool, &["gpu1", "set", "util=0"]);
    pool.reconfigure("node1", "gpu_watch_secs = 1\n");
    pool.wait_idle("node1");
    let works = pool.gsub(&["--gpus", "1", "--wrap", "sleep 600"]);
    pool.wait_state(works, Running);
    let idle = pool.gsub(&["--gpus", "1", "--wrap", "sleep 600"]);
    pool.wait_until("the idle one is warned", || {
        pool.job(idle)
            .idle
            .is_some_and(|idle| idle.contains("warned; it is cancelled when that is"))
    });
    // From here on there are no samples.
    set(&pool, &["driver", "hang"]);
    let hangs = Instant::now();
    pool.wait_until("more than its time is gone", || {
        hangs.elapsed().as_secs() >= 22
    });
    for job in [works, idle] {
        assert_eq!(pool.job(job).state, Running, "job {job}\n{}", pool.logs());
    }
    set(&pool, &["driver", "clear"]);
    let ended = pool.wait_state(idle, gmodel::JobState::Cancelled);
    assert!(
        ended.end_text.starts_with("its GPUs did nothing for "),
        "{ended:?}"
    );
    assert_eq!(
        (pool.job(works).state, pool.job(works).idle),
        (Running, None)
    );
    assert_eq!(report(&pool, &["--user", "nobody"]).runs, []);
    pool.check();
    pool.down();
}
