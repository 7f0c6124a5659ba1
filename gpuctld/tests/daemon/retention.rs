//! What is past its time goes while the controller serves, and a kill in the middle leaves nothing half removed.

use crate::controller::{Site, job, wait_until};
use rusqlite::Connection;

const JOBS: i64 = 6000;
const DAY_MILLIS: i64 = 24 * 3600 * 1000;

fn number(db: &Connection, sql: &str) -> i64 {
    db.query_row(sql, [], |row| row.get(0)).unwrap()
}

/// Copies of job 1 that ended 400 days ago, each with a run and three lines of history.
fn write_old_jobs(db: &mut Connection) {
    let turn = db.transaction().unwrap();
    let end = number(&turn, "SELECT at FROM events ORDER BY seq DESC LIMIT 1") - 400 * DAY_MILLIS;
    turn.execute_batch("CREATE TEMP TABLE old AS SELECT * FROM jobs WHERE id = 1; UPDATE meta SET next_job = 10000").unwrap();
    for n in 0..JOBS {
        let (id, end) = (1000 + n, end + n * 1000);
        turn.execute("UPDATE old SET id = ?1, end_ms = ?2", (id, end))
            .unwrap();
        turn.execute("INSERT INTO jobs SELECT * FROM old", [])
            .unwrap();
        turn.execute(
            "INSERT INTO runs (job, attempt, live, user, account, partition, qos, name, tags, state, placed_ms, start_ms, end_ms, cpus,
                mem_bytes, gpus, nodes, nodelist, exit, end_text, cpu_micros, peak_bytes)
             VALUES (?1, 1, 0, 'root', 'default', 'main', '', 'x', '[]', 'COMPLETED', ?2, ?2, ?3, 1, 0, '{}', 1, 'n', '0:0', '', 0, 0)",
            (id, end - 5_000_000, end),
        )
        .unwrap();
        for line in 0..3 {
            turn.execute("INSERT INTO events (seq, at, kind, job, doc) VALUES (?1, ?2, 'job_held', ?3, x'7b7d')", (-(3 * n + line) - 1, end, id)).unwrap();
        }
    }
    turn.commit().unwrap();
}

#[test]
fn killed_while_it_removes_old_jobs_it_leaves_nothing_half_removed() {
    let site = Site::new();
    let controller = site.start();
    let mut client = controller.client();
    let kept = client.submit(&job("x"));
    client.post(
        "/v1/jobs/cancel",
        &serde_json::json!({"jobs": [kept.to_string()]}),
    );
    assert_eq!(controller.stop(), 0);
    let mut db = Connection::open(site.database()).unwrap();
    write_old_jobs(&mut db);
    drop(db);
    let old = "SELECT count(*) FROM jobs WHERE id >= 1000";
    let mut left = JOBS;
    for kill in 0..2 {
        let controller = site.start();
        let db = Connection::open(site.database()).unwrap();
        // A while after it began, in one transaction or between two.
        wait_until(
            || number(&db, old) < left - 700,
            || format!("jobs to go, kill {kill}:\n{}", site.log()),
        );
        controller.kill();
        left = number(&db, old);
        assert!(left > 0, "it was killed too late");
        for (what, sql) in [
            (
                "runs without a job",
                "SELECT count(*) FROM runs WHERE job NOT IN (SELECT id FROM jobs)",
            ),
            (
                "jobs without a run",
                "SELECT count(*) FROM jobs WHERE id >= 1000 AND id NOT IN (SELECT job FROM runs)",
            ),
            (
                "hours without a run",
                "SELECT count(*) FROM run_hours WHERE job NOT IN (SELECT job FROM runs)",
            ),
            (
                "history without a job",
                "SELECT count(*) FROM events WHERE seq < 0 AND job NOT IN (SELECT id FROM jobs)",
            ),
        ] {
            assert_eq!(number(&db, sql), 0, "{what}");
        }
        assert_eq!(
            number(&db, "SELECT sum(begun) FROM usage_sums WHERE span = 1"),
            JOBS,
            "sums stay"
        );
        assert_eq!(
            number(
                &db,
                "SELECT count(*) FROM pragma_integrity_check WHERE integrity_check <> 'ok'"
            ),
            0
        );
    }
    let controller = site.start();
    site.wait_for_log("removed");
    let db = Connection::open(site.database()).unwrap();
    assert_eq!(
        (number(&db, old), number(&db, "SELECT count(*) FROM runs")),
        (0, 0)
    );
    assert_eq!(
        number(&db, "SELECT sum(begun) FROM usage_sums WHERE span = 1"),
        JOBS
    );
    // Commands are answered as ever, and the job that is not old is there.
    assert!(controller.client().submit(&job("y")) >= 10_000);
    assert_eq!(number(&db, "SELECT count(*) FROM jobs WHERE id = 1"), 1);
    // The room is there to be used again, and said.
    let diagnosis = || controller.client().get("/v1/diag");
    wait_until(
        || diagnosis()["database_free_bytes"].as_u64().unwrap() > 1 << 20,
        || diagnosis().to_string(),
    );
    assert!(diagnosis()["database_bytes"].as_u64().unwrap() > 1 << 20);
    assert_eq!(controller.stop(), 0);
}
