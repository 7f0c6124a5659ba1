//! Bills: what lines there are, that a closed month stays as it is, who sees which lines, that used prices stay.

use super::policy::{alice, root};
use super::pool::{Pool, local, write_config};
use crate::core_thread::now;
use crate::store::DATABASE;
use gmodel::node::Role;
use gmodel::{Month, TimeZone, Timestamp};
use rusqlite::{Connection, params};
use serde_json::{Value, json};
use std::process::Command;

const HOUR: i64 = 3_600_000;
const PRICES: &str =
    "currency = \"EUR\"\n[account.vision]\ncoordinators = [\"alice\"]\n[account.speech]\n
    [[price]]\ngpu_type = \"h100\"\nfrom = 2020-01-01\nper_slice_hour = 0.5\nmig = \"1g.10gb\"\n
    [[price]]\ngpu_type = \"h100\"\nfrom = 2020-01-01\nper_gpu_hour = 2.5\n
    [[price]]\nfrom = 2020-01-01\nper_cpu_hour = 0.01\n";

/// The last month, which is over, and its bounds.
fn last_month() -> (Month, Timestamp, Timestamp) {
    let utc = TimeZone::default();
    let month = Month(Month::of(&utc, now()).0 - 1);
    let (from, to) = month.bounds(&utc);
    (month, from, to)
}

struct Row<'a> {
    job: u64,
    who: (&'a str, &'a str),
    start: i64,
    end: Option<i64>,
    state: &'a str,
    parts: Option<&'a str>,
    tags: &'a str,
}

const ROW: Row = Row {
    job: 0,
    who: ("bob", "vision"),
    start: 0,
    end: None,
    state: "COMPLETED",
    parts: None,
    tags: "[]",
};

fn db(pool: &Pool) -> Connection {
    let db = Connection::open(pool.dir.path().join(DATABASE)).unwrap();
    db.busy_timeout(std::time::Duration::from_secs(10)).unwrap();
    db
}

fn insert(db: &Connection, row: &Row) {
    db.execute(
        "INSERT INTO runs (job, attempt, live, user, account, partition, qos, name, tags, state, placed_ms, start_ms, end_ms, cpus,
            mem_bytes, gpus, gpu_parts, nodes, nodelist, exit, end_text, cpu_micros, peak_bytes)
         VALUES (?1, 1, ?2, ?3, ?4, 'main', 'normal', 'train', ?5, ?6, ?7, ?7, ?8, 4, 0, ?9, ?10, 1, 'n', '0:0', '', 0, 0)",
        params![row.job, row.end.is_none(), row.who.0, row.who.1, row.tags, row.state, row.start, row.end, r#"{"h100":2000}"#, row.parts],
    )
    .unwrap();
}

/// Amounts in millionths by resource and ending, of a user's question.
async fn amounts(pool: &Pool, month: Month, by: &str) -> Vec<(String, String, i64)> {
    let bill = pool
        .get(&root(), &format!("/v1/bill?month={month}&by={by}"))
        .await;
    let rows = bill["rows"].as_array().unwrap().iter();
    let words = |row: &Value| {
        let group: Vec<&str> = row["group"]
            .as_array()
            .unwrap()
            .iter()
            .map(|g| g.as_str().unwrap())
            .collect();
        group.join(" ")
    };
    rows.map(|row| {
        let text = |key: &str| row[key].as_str().unwrap_or_default().to_owned();
        (
            words(row),
            text("resource"),
            row["amount_micro"].as_i64().unwrap(),
        )
    })
    .collect()
}

async fn total(pool: &Pool, month: Month) -> i64 {
    let bill = pool.get(&root(), &format!("/v1/bill?month={month}")).await;
    bill["total_micro"].as_i64().unwrap()
}

#[tokio::test]
async fn a_bill_has_lines_by_what_is_asked_for_and_the_same_total() {
    let pool = Pool::new(PRICES);
    let (month, from, _) = last_month();
    let db = db(&pool);
    let hours = |hours: i64| from.0 + hours * HOUR;
    let tagged = r#"["project=x","workload=train"]"#;
    insert(
        &db,
        &Row {
            job: 1,
            start: hours(1),
            end: Some(hours(3)),
            tags: tagged,
            ..ROW
        },
    );
    insert(
        &db,
        &Row {
            job: 2,
            start: hours(1),
            end: Some(hours(2)),
            state: "NODE_FAIL",
            ..ROW
        },
    );
    let slices = Some(r#"[["h100","1g.10gb",284,2]]"#);
    insert(
        &db,
        &Row {
            job: 3,
            who: ("eve", "speech"),
            start: hours(5),
            end: Some(hours(15)),
            parts: slices,
            ..ROW
        },
    );
    let vision = |amount| ("vision".to_owned(), amount);
    let rows = amounts(&pool, month, "account").await;
    let of = |resource: &str| -> Vec<(String, i64)> {
        rows.iter()
            .filter(|row| row.1 == resource)
            .map(|row| (row.0.clone(), row.2))
            .collect()
    };
    assert_eq!(
        of("h100"),
        [vision(10_000_000), vision(0)],
        "two hours of two, and a lost one that is free"
    );
    assert_eq!(of("h100/1g.10gb"), [("speech".to_owned(), 10_000_000)]);
    assert_eq!(
        of("cpu"),
        [("speech".to_owned(), 400_000), vision(80_000), vision(0)]
    );
    let sum: i64 = rows.iter().map(|row| row.2).sum();
    assert_eq!(sum, 20_480_000);
    for by in ["user", "gpu-type,user", "tag:project", "tags,qos,partition"] {
        let rows = amounts(&pool, month, by).await;
        assert_eq!(rows.iter().map(|row| row.2).sum::<i64>(), sum, "{by}");
    }
    let tagged = amounts(&pool, month, "tag:project").await;
    assert!(
        tagged.contains(&("x".into(), "h100".into(), 10_000_000)),
        "{tagged:?}"
    );
    let odd = pool
        .refused(&root(), "GET", "/v1/bill?by=acount", Value::Null)
        .await;
    assert!(odd.contains("Did you mean \"account\"?"), "{odd}");
    let many = format!("/v1/bill?by={}", ["user"; 9].join(","));
    let odd = pool.refused(&root(), "GET", &many, Value::Null).await;
    assert!(odd.contains("9 groups are too many"), "{odd}");
    let odd = pool
        .refused(&root(), "GET", "/v1/bill?month=2999-01", Value::Null)
        .await;
    assert!(odd.contains("has not begun"), "{odd}");
    let odd = pool
        .refused(&root(), "GET", "/v1/bill?account=vsion", Value::Null)
        .await;
    assert!(odd.contains("Did you mean \"vision\"?"), "{odd}");
}

#[tokio::test]
async fn a_closed_month_stays_and_the_next_bill_takes_up_the_difference() {
    let pool = Pool::new(PRICES);
    let (month, from, to) = last_month();
    let db = db(&pool);
    insert(
        &db,
        &Row {
            job: 1,
            start: from.0,
            end: Some(from.0 + HOUR),
            ..ROW
        },
    );
    // Goes on over the end of the month; its end is not known yet.
    insert(
        &db,
        &Row {
            job: 2,
            start: to.0 - 10 * HOUR,
            ..ROW
        },
    );
    let before = total(&pool, month).await;
    assert_eq!(before, 11 * 5_000_000 + 11 * 40_000);
    let close = json!({"month": month});
    let denied = pool
        .refused(&alice(), "POST", "/v1/bill/close", close.clone())
        .await;
    assert!(denied.starts_with("403"), "{denied}");
    let present = json!({"month": month.next()});
    let early = pool
        .refused(&root(), "POST", "/v1/bill/close", present)
        .await;
    assert!(early.contains("is not over"), "{early}");
    pool.post(&root(), "/v1/bill/close", close.clone()).await;
    let again = pool.refused(&root(), "POST", "/v1/bill/close", close).await;
    assert!(
        again.starts_with("409") && again.contains("a closed month does not change"),
        "{again}"
    );
    let bill = pool.get(&root(), &format!("/v1/bill?month={month}")).await;
    // A run that nobody had heard of, and the end of the other: it was suspended for five hours, and ended before the month did.
    insert(
        &db,
        &Row {
            job: 3,
            start: from.0 + HOUR,
            end: Some(from.0 + 2 * HOUR),
            ..ROW
        },
    );
    db.execute(
        "UPDATE runs SET live = 0, end_ms = ?1 WHERE job = 2",
        [to.0 - 2 * HOUR],
    )
    .unwrap();
    assert_eq!(
        pool.get(&root(), &format!("/v1/bill?month={month}")).await,
        bill
    );
    // Ten hours were billed of eight.
    let next = total(&pool, month.next()).await;
    assert_eq!(next, -2 * 5_000_000 - 2 * 40_000);
    let path = crate::store::DATABASE;
    let far = now().plus_secs(10 * 366 * 86_400);
    let keep = crate::store::RetentionDays {
        scripts: 1,
        jobs: 366_000,
    };
    crate::store::prune(&pool.dir.path().join(path), far, keep).unwrap();
    assert_eq!(
        pool.get(&root(), &format!("/v1/bill?month={month}")).await,
        bill,
        "its lines are kept for ever"
    );
}

#[tokio::test]
async fn a_suspension_after_the_close_leaves_the_sum_of_bills_right() {
    let pool = Pool::new(PRICES);
    let (month, _, to) = last_month();
    let db = db(&pool);
    let end = to.0 + 1000;
    insert(
        &db,
        &Row {
            job: 2,
            start: to.0 - 10 * HOUR,
            ..ROW
        },
    );
    pool.post(&root(), "/v1/bill/close", json!({"month": month}))
        .await;
    db.execute(
        "UPDATE runs SET live = 0, end_ms = ?1, suspended_ms = 500 WHERE job = 2",
        [end],
    )
    .unwrap();
    let sum = total(&pool, month).await + total(&pool, month.next()).await;
    let millis = 10 * HOUR + 500;
    let exact = (millis * 5_000_000 + millis * 40_000 + HOUR / 2) / HOUR;
    assert!(
        (sum - exact).abs() <= 2,
        "{sum} of {exact}: rounded on each bill"
    );
}

#[tokio::test]
async fn of_two_closes_at_once_one_is_refused() {
    let pool = Pool::new(PRICES);
    let (month, ..) = last_month();
    let (peer, close) = (root(), json!({"month": month}));
    let ask = || pool.ask(&peer, "POST", "/v1/bill/close", close.clone());
    let (one, other) = tokio::join!(ask(), ask());
    let mut codes = [one.0.as_u16(), other.0.as_u16()];
    codes.sort_unstable();
    assert_eq!(codes, [200, 409], "{} {}", one.1, other.1);
}

#[tokio::test]
async fn a_run_whose_begin_is_told_after_the_close_is_on_the_next_bill() {
    let pool = Pool::new(PRICES);
    let (month, _, to) = last_month();
    let db = db(&pool);
    for job in 1..=3 {
        let start = to.0 - 10 * HOUR;
        insert(&db, &Row { job, start, ..ROW });
    }
    db.execute("UPDATE runs SET start_ms = NULL", []).unwrap();
    assert_eq!(total(&pool, month).await, 0);
    pool.post(&root(), "/v1/bill/close", json!({"month": month}))
        .await;
    // The node was away: one ended before the month did, one goes over its end, one never began.
    let told = "UPDATE runs SET live = 0, start_ms = ?2, end_ms = ?3 WHERE job = ?1";
    for (job, start, end) in [(1, Some(-3), -1), (2, Some(-1), 2), (3, None, 1)] {
        let start = start.map(|hours: i64| to.0 + hours * HOUR);
        db.execute(told, (job, start, to.0 + end * HOUR)).unwrap();
    }
    assert_eq!(total(&pool, month).await, 0, "it is closed");
    let next = total(&pool, month.next()).await;
    assert_eq!(next, (2 + 3) * 5_040_000, "two hours and three");
    for (month, count) in [(month, 0), (month.next(), 2)] {
        let path = format!("/v1/bill/runs?month={month}");
        let csv = pool.get(&root(), &path).await;
        assert_eq!(csv.as_str().unwrap().lines().count() - 1, count, "{csv}");
    }
}

#[tokio::test]
async fn a_new_time_zone_bills_no_hour_twice_and_leaves_none_out() {
    for zone in ["Asia/Tokyo", "America/Los_Angeles"] {
        let pool = Pool::new(PRICES);
        let (month, _, to) = last_month();
        let db = db(&pool);
        let around = (to.0 - 10 * HOUR, Some(to.0 + 10 * HOUR));
        insert(
            &db,
            &Row {
                job: 1,
                start: around.0,
                end: around.1,
                ..ROW
            },
        );
        insert(
            &db,
            &Row {
                job: 2,
                start: around.0,
                end: Some(to.0 - HOUR),
                ..ROW
            },
        );
        let close = json!({"month": month});
        pool.post(&root(), "/v1/bill/close", close).await;
        write_config(
            pool.dir.path(),
            &format!("time_zone = \"{zone}\"\n{PRICES}"),
        );
        pool.post(&root(), "/v1/reload", Value::Null).await;
        let sum = total(&pool, month).await + total(&pool, month.next()).await;
        assert_eq!(sum, (20 + 9) * 5_040_000, "{zone}");
    }
}

#[tokio::test]
async fn the_runs_of_a_bill_come_in_pieces_each_once() {
    let pool = Pool::new(PRICES);
    let (month, from, _) = last_month();
    let db = db(&pool);
    let turn = db.unchecked_transaction().unwrap();
    for job in 1..=1_100 {
        let end = Some(from.0 + HOUR);
        insert(
            &db,
            &Row {
                job,
                start: from.0,
                end,
                ..ROW
            },
        );
    }
    turn.commit().unwrap();
    let path = format!("/v1/bill/runs?month={month}");
    let csv = pool.get(&root(), &path).await;
    let csv = csv.as_str().unwrap();
    let mut jobs: Vec<u64> = (csv.lines().skip(1))
        .map(|line| line.split(',').next().unwrap().parse().unwrap())
        .collect();
    jobs.sort_unstable();
    assert_eq!(jobs, (1..=1_100).collect::<Vec<_>>());
}

#[tokio::test]
async fn corrections_are_lines_of_the_next_open_month() {
    let pool = Pool::new(PRICES);
    let (month, ..) = last_month();
    let correct = |account: &str, amount: i64, reason: &str| json!({"account": account, "amount_micro": amount, "reason": reason});
    pool.post(&root(), "/v1/bill/close", json!({"month": month}))
        .await;
    let done = pool
        .post(
            &root(),
            "/v1/bill/correct",
            correct("vision", -12_500_000, "node7 was slow"),
        )
        .await;
    assert_eq!(
        done["notes"][0],
        format!(
            "-12.50 for vision is a line of the bill of {}",
            month.next()
        )
    );
    assert_eq!(total(&pool, month).await, 0);
    assert_eq!(total(&pool, month.next()).await, -12_500_000);
    for (body, what) in [
        (correct("vision", 0, "x"), "above or below zero"),
        (correct("vision", i64::MIN, "x"), "above or below zero"),
        (correct("vision", 5, " "), "has a reason"),
        (correct("vision", 5, "a\u{1b}[2J"), "in one line"),
        (correct("vision", 5, &"x".repeat(201)), "1 to 200"),
        (correct("vison", 5, "x"), "Did you mean \"vision\"?"),
    ] {
        let refused = pool
            .refused(&root(), "POST", "/v1/bill/correct", body)
            .await;
        assert!(refused.contains(what), "{refused}");
    }
    let denied = pool
        .refused(
            &alice(),
            "POST",
            "/v1/bill/correct",
            correct("vision", 5, "x"),
        )
        .await;
    assert!(denied.starts_with("403"), "{denied}");
}

#[tokio::test]
async fn users_see_their_own_lines_coordinators_those_of_their_accounts() {
    let pool = Pool::new(&format!("privacy = \"own\"\n{PRICES}"));
    let (month, from, _) = last_month();
    let db = db(&pool);
    for (job, who) in (1..).zip([("bob", "vision"), ("eve", "vision"), ("eve", "speech")]) {
        insert(
            &db,
            &Row {
                job,
                who,
                start: from.0,
                end: Some(from.0 + HOUR),
                ..ROW
            },
        );
    }
    let seen = async |peer| {
        let path = format!("/v1/bill?month={month}&by=user,account");
        let bill = pool.get(&peer, &path).await;
        let csv = pool
            .get(&peer, &format!("/v1/bill/runs?month={month}"))
            .await;
        let runs = csv.as_str().unwrap().lines().count() - 1;
        (bill["total_micro"].as_i64().unwrap() / 5_040_000, runs)
    };
    assert_eq!(seen(local(1001, "bob")).await, (1, 1));
    assert_eq!(seen(local(1002, "eve")).await, (2, 2));
    assert_eq!(seen(alice()).await, (2, 2), "coordinator of vision");
    assert_eq!(seen(local(1003, "mallory")).await, (0, 0));
    assert_eq!(seen(root()).await, (3, 3));
}

#[tokio::test]
async fn prices_that_a_run_was_charged_by_are_not_rewritten() {
    let pool = Pool::new(PRICES);
    let node = pool.node("n1", Role::Compute, 4).await;
    let changed = PRICES.replace("2.5", "3.5");
    write_config(pool.dir.path(), &changed);
    pool.post(&root(), "/v1/reload", Value::Null).await;
    let job = pool
        .submit(
            &alice(),
            json!({"account": "vision", "request": {"gpus": "1"}, "time_limit_secs": 60}),
        )
        .await;
    pool.pass().await;
    pool.running(node, job).await;
    pool.ended(node, job, gmodel::ExitCode::default()).await;
    write_config(pool.dir.path(), PRICES);
    let refused = pool
        .refused(&root(), "POST", "/v1/reload", Value::Null)
        .await;
    assert!(
        refused
            .contains("the prices of h100 from 2020-01-01T00:00:00Z were used and are not changed"),
        "{refused}"
    );
    assert!(
        refused.contains("from = 2020-01-01") && refused.contains("^"),
        "a caret under its date: {refused}"
    );
    assert!(
        refused.contains("add a new list with a later date"),
        "{refused}"
    );
    let without = changed.split("[[price]]").next().unwrap();
    write_config(pool.dir.path(), without);
    let refused = pool
        .refused(&root(), "POST", "/v1/reload", Value::Null)
        .await;
    assert!(
        refused.contains("were used and are missing here"),
        "{refused}"
    );
    let past =
        format!("{changed}[[price]]\ngpu_type = \"h100\"\nfrom = 2021-01-01\nper_gpu_hour = 9\n");
    write_config(pool.dir.path(), &past);
    let refused = pool
        .refused(&root(), "POST", "/v1/reload", Value::Null)
        .await;
    assert!(
        refused.contains("runs were charged by others since"),
        "{refused}"
    );
    let later = past.replace("2021-01-01", "2999-01-01");
    write_config(pool.dir.path(), &later);
    pool.post(&root(), "/v1/reload", Value::Null).await;
}

#[tokio::test]
async fn the_script_of_the_standard_library_computes_the_same_bill() {
    let night = "[[price]]\ngpu_type = \"h100\"\nfrom = 2020-01-01\nper_gpu_hour = 1.75\nhours = \"mon-sun 20:00-24:00\"\n";
    let prices = PRICES.replacen("[[price]]", &format!("{night}[[price]]"), 1);
    let pool = Pool::new(&format!("time_zone = \"Europe/Berlin\"\n{prices}"));
    let (month, from, to) = last_month();
    let db = db(&pool);
    let slices = Some(r#"[["h100","",1000,1],["h100","1g.10gb",142,1]]"#);
    for job in 1..=40i64 {
        let start = from.0 + job * 17 * HOUR + job * 1_234;
        let state = ["COMPLETED", "NODE_FAIL", "PREEMPTED"][job as usize % 3];
        let parts = slices.filter(|_| job % 4 == 0);
        let tags = ["[]", r#"["project=a, \"b\""]"#][job as usize % 2];
        insert(
            &db,
            &Row {
                job: job.unsigned_abs(),
                start,
                end: Some((start + job * 3_333_333).min(to.0 + HOUR)),
                state,
                parts,
                tags,
                ..ROW
            },
        );
    }
    db.execute(
        "UPDATE runs SET suspended_ms = 777777 WHERE job % 5 = 0",
        [],
    )
    .unwrap();
    for is_closed in [false, true] {
        if is_closed {
            pool.post(&root(), "/v1/bill/close", json!({"month": month}))
                .await;
        }
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        let csv = pool
            .get(&root(), &format!("/v1/bill/runs?month={month}"))
            .await;
        write("runs.csv", csv.as_str().unwrap());
        write(
            "prices.json",
            &pool
                .get(&root(), &format!("/v1/bill/prices?month={month}"))
                .await
                .to_string(),
        );
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../etc/verify-bill.py");
        let mut python = Command::new("python3");
        let Ok(out) = python
            .arg(script)
            .args(["runs.csv", "prices.json"])
            .current_dir(dir.path())
            .output()
        else {
            println!("NOT RUN: there is no python3");
            return;
        };
        let said = String::from_utf8_lossy(&out.stdout).into_owned();
        let micro = total(&pool, month).await;
        let total = gmodel::policy::money_text(micro, 6);
        assert!(
            micro > 0 && said.contains(&format!("{total} EUR")),
            "{total} is not in {said}{}",
            String::from_utf8_lossy(&out.stderr)
        );
    }
}
