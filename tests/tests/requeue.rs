//! Requeued jobs: the same id, output that goes on, every attempt accounted; and which jobs do not come back.

use gmodel::JobState::{Completed, Failed, Pending};
use gmodel::ReasonCode;
use gpupool_tests::pool::{Pool, kill_process};

#[test]
fn a_requeued_job_keeps_its_id_and_appends_to_its_output() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    pool.write("out", "old\n");
    let script = "echo attempt $GSUB_ATTEMPT of $GSUB_JOB_ID; [ $GSUB_ATTEMPT = 1 ] && { touch up; sleep 1000; }; exit 0";
    let id = pool.gsub(&["-o", "out", "--wrap", script]);
    pool.wait_until("it runs", || pool.work.join("up").exists());
    let said = pool.run("gadm", &["job", "requeue", &id.to_string()]);
    assert_eq!(said.code, 0, "{said:?}");
    let job = pool.wait_state_through(id, Completed);
    assert_eq!(job.attempts, 2);
    // The first run truncates, the next appends.
    assert_eq!(
        pool.file("out"),
        format!("attempt 1 of {id}\nattempt 2 of {id}\n")
    );
    assert_eq!(pool.attempts(id).len(), 2);
    let appended = pool.gsub(&["--open-mode", "append", "-o", "out", "--wrap", "echo third"]);
    pool.wait_state(appended, Completed);
    assert_eq!(pool.file("out").lines().count(), 3);
}

#[test]
fn a_job_that_is_over_runs_again_under_its_id_and_each_attempt_stays_accounted() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    let script = "echo attempt $GSUB_ATTEMPT restarts $SLURM_RESTART_COUNT; [ $GSUB_ATTEMPT = 1 ] && exit 7; exit 0";
    let id = pool
        .run_as_user("gsub", &["-o", "out", "--wrap", script])
        .id();
    let anew = pool
        .run_as_user(
            "gsub",
            &["-o", "anew", "--open-mode", "truncate", "--wrap", script],
        )
        .id();
    let dependant = pool
        .run_as_user(
            "gsub",
            &[
                "-d",
                &format!("afternotok:{id}"),
                "--wrap",
                "echo ran >> dependant",
            ],
        )
        .id();
    assert_eq!(pool.wait_state(id, Failed).exit_code.code, 7);
    pool.wait_state(anew, Failed);
    pool.wait_state(dependant, Completed);
    let requeue = |word: &str, id: u64| pool.run_as_user("gadm", &["job", word, &id.to_string()]);
    for id in [id, anew] {
        let said = requeue("requeue", id);
        assert_eq!(said.code, 0, "{said:?}");
        let job = pool.wait_state_through(id, Completed);
        assert_eq!(job.attempts, 2);
    }
    assert_eq!(
        pool.file("out"),
        "attempt 1 restarts\nattempt 2 restarts 1\n"
    );
    assert_eq!(pool.file("anew"), "attempt 2 restarts 1\n");
    assert_eq!(
        pool.file("dependant"),
        "ran\n",
        "what its first end decided stands"
    );
    let states: Vec<_> = pool
        .attempts(id)
        .iter()
        .map(|run| (run.attempt, run.state))
        .collect();
    assert_eq!(states, [(1, Failed), (2, Completed)]);
    let log = pool.run("gq", &["--log", &id.to_string()]).out;
    assert!(
        log.contains(&format!(
            "put back into the queue by {}: it had been over",
            pool.person().name
        )),
        "{log}"
    );

    // Held there, which a crash straight after the answer does not undo.
    assert_eq!(requeue("requeuehold", id).code, 0);
    pool.kill("gpuctld");
    pool.start("gpuctld");
    let job = pool.job(id);
    assert_eq!(
        (job.state, job.reason, job.attempts),
        (Pending, ReasonCode::JobHeldUser, 2)
    );
    assert_eq!(
        pool.run_as_user("gadm", &["job", "release", &id.to_string()])
            .code,
        0
    );
    pool.wait_state(id, Completed);
    assert_eq!(
        (pool.attempts(id).len(), pool.file("out").lines().count()),
        (3, 3)
    );
    pool.check();
}

#[test]
fn what_is_not_to_run_twice_or_is_no_more_known_is_not_put_back() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    let of_root = pool.gsub(&["--wrap", "true"]);
    pool.wait_state(of_root, Completed);
    pool.run_as_user("gadm", &["job", "requeue", &of_root.to_string()])
        .fails_with(1, "belongs to root");
    let once = pool.gsub(&["--no-requeue", "--wrap", "true"]);
    pool.wait_state(once, Completed);
    let requeue = |id: u64| pool.run("gadm", &["job", "requeue", &id.to_string()]);
    requeue(once).fails_with(1, "--no-requeue");
    assert_eq!(
        pool.run("gadm", &["job", "update", &once.to_string(), "Requeue=1"])
            .code,
        0
    );
    assert_eq!(requeue(once).code, 0);
    assert_eq!(pool.wait_state_through(once, Completed).attempts, 2);
    pool.reconfigure("gpuctld", "min_job_age_secs = 0");
    pool.wait_until("it has left the memory", || !pool.ids().contains(&once));
    requeue(once).fails_with(1, "submit it again with gsub");
    assert_eq!(pool.attempts(once).len(), 2, "and its record is there");
}

#[test]
fn a_job_whose_supervisor_is_lost_again_and_again_is_tried_again_and_never_held() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    let id = pool.gsub(&["--wrap", "echo x > up.$GSUB_ATTEMPT; sleep 1000"]);
    for attempt in 1..=3 {
        pool.wait_file(&format!("up.{attempt}"));
        kill_process(pool.supervisor("node1", &format!("{id}-{attempt}")));
    }
    pool.wait_file("up.4");
    assert!(pool.job(id).holds.is_empty());
}
