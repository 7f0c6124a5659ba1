//! SIGKILL in the middle of the close of a month: it is closed as a whole, or not at all, and then it can be.

use crate::controller::Site;
use gmodel::{Month, TimeZone, Timestamp};
use rusqlite::Connection;
use serde_json::json;
use std::time::{Duration, SystemTime};

const RUNS: i64 = 20_000;

fn last_month() -> (Month, i64) {
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap();
    let utc = TimeZone::default();
    let month = Month(Month::of(&utc, Timestamp(now.as_millis() as i64)).0 - 1);
    (month, month.start(&utc).0)
}

#[test]
fn a_month_whose_close_was_killed_is_closed_as_a_whole_or_not_at_all() {
    let site = Site::new();
    site.configure(
        "min_free = \"1M\"\n[[price]]\ngpu_type = \"h100\"\nfrom = 2020-01-01\nper_gpu_hour = 2\n",
    );
    assert_eq!(site.start().stop(), 0);
    let (month, start) = last_month();
    let mut db = Connection::open(site.database()).unwrap();
    let turn = db.transaction().unwrap();
    for job in 0..RUNS {
        // Each with a tag of its own: as many lines as runs.
        turn.execute(
            "INSERT INTO runs (job, attempt, live, user, account, partition, qos, name, tags, state, placed_ms, start_ms, end_ms, cpus,
                mem_bytes, gpus, nodes, nodelist, exit, end_text, cpu_micros, peak_bytes, summed)
             VALUES (?1, 1, 0, 'root', 'default', 'main', '', 'x', ?2, 'COMPLETED', ?3, ?3, ?4, 1, 0, '{\"h100\":1000}', 1, 'n', '0:0', '', 0, 0, 1)",
            (1_000_000 + job, format!("[\"run={job}\"]"), start + job, start + job + 1_800_000),
        )
        .unwrap();
    }
    turn.commit().unwrap();
    drop(db);
    let path = format!("/v1/bill?month={month}");
    let mut closed = false;
    for millis in [
        5, 40, 80, 120, 160, 200, 300, 450, 700, 1_000, 2_000, 4_000, 8_000,
    ] {
        let controller = site.start();
        let mut client = controller.client();
        let killed = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(millis));
            controller.kill();
        });
        let answer = client.ask("POST", "/v1/bill/close", &json!({"month": month}));
        let acknowledged = answer.is_ok_and(|(status, _)| status == 200);
        killed.join().unwrap();
        let controller = site.start();
        let bill = controller.client().get(&path);
        assert_eq!(
            bill["total_micro"].as_i64(),
            Some(RUNS * 1_000_000),
            "after {millis} ms: whatever became of the close"
        );
        closed = bill["closed"].is_string();
        assert!(closed || !acknowledged, "it was acknowledged");
        assert_eq!(controller.stop(), 0);
        if closed {
            break;
        }
    }
    assert!(closed, "8 s are enough for a close");
    let blobs = "SELECT count(*) FROM bill_months m JOIN blobs b ON b.sha = m.bill";
    let db = Connection::open(site.database()).unwrap();
    assert_eq!(
        db.query_row(blobs, [], |row| row.get::<_, i64>(0)).unwrap(),
        1
    );
}
