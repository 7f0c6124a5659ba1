//! What is past its time goes, and reports of it stay as they were.

use super::usage::insert_run;
use super::*;
use crate::store::retention::{RetentionDays, prune};

const DAY: i64 = 24 * HOUR;

fn count(db: &Connection, what: &str) -> i64 {
    db.query_row(&format!("SELECT count(*) FROM {what}"), [], |row| {
        row.get(0)
    })
    .unwrap()
}

#[test]
fn jobs_go_with_all_that_is_theirs_and_what_lives_stays() {
    let mut world = World::new();
    let node = world.add_node("node1", 8);
    let done = world.submit(spec("h100:1"));
    world.start(node, done);
    world.end(node, done);
    let over = world.submit(array("0-3"));
    world.command(Command::Cancel {
        targets: vec![Target::Job(over)],
        signal: None,
    });
    let running = world.submit(spec("h100:2"));
    world.start(node, running);
    let waiting = world.submit(changed(spec("h100:8"), |spec| {
        spec.comment = "of its own".into()
    }));
    let db = Connection::open(world.store.path()).unwrap();
    let left = |db: &Connection| {
        ["jobs", "arrays", "runs", "run_hours", "specs"].map(|table| count(db, table))
    };
    let before = left(&db);
    let keep = RetentionDays {
        scripts: 30,
        jobs: 10,
    };
    world.now = world.now.plus_secs(9 * DAY);
    assert_eq!(
        (
            prune(world.store.path(), world.now, keep).unwrap(),
            left(&db)
        ),
        (0, before)
    );
    world.now = world.now.plus_secs(2 * DAY);
    let events = count(&db, "events");
    assert_eq!(prune(world.store.path(), world.now, keep).unwrap(), 2);
    assert_eq!(left(&db), [2, 0, 1, 0, 2], "before {before:?}");
    assert_eq!(count(&db, "events WHERE job IN (1, 2)"), 0);
    assert!(count(&db, "events") < events && count(&db, "events WHERE kind = 'node_joined'") == 1);
    assert_eq!(wait(world.reader().job(done)).unwrap(), None);
    // The controller goes on, also with a request that went while it had it in memory.
    db.execute("DELETE FROM specs", []).unwrap();
    for job in [running, waiting] {
        world.command(Command::Hold {
            targets: vec![Target::Job(job)],
            reason: "x".into(),
            for_owner: false,
        });
    }
    world.end(node, running);
    world.assert_comes_back();
    let world = world.reopen();
    assert_eq!(
        world.state.jobs.get(waiting).unwrap().spec.comment,
        "of its own"
    );
}

#[test]
fn the_history_of_nodes_and_policy_is_kept_for_a_year_at_least() {
    let mut world = World::new();
    world.add_node("node1", 8);
    let db = Connection::open(world.store.path()).unwrap();
    let keep = RetentionDays {
        scripts: 30,
        jobs: 10,
    };
    prune(world.store.path(), world.now.plus_secs(364 * DAY), keep).unwrap();
    assert_eq!(count(&db, "events WHERE kind = 'node_joined'"), 1);
    prune(
        world.store.path(),
        world.now.plus_secs(366 * DAY),
        RetentionDays { jobs: 400, ..keep },
    )
    .unwrap();
    assert_eq!(count(&db, "events WHERE kind = 'node_joined'"), 1);
    prune(world.store.path(), world.now.plus_secs(366 * DAY), keep).unwrap();
    assert_eq!(count(&db, "events WHERE kind = 'node_joined'"), 0);
}

#[test]
fn pages_that_became_free_are_used_again() {
    let mut world = World::new();
    let node = world.add_node("node1", 8);
    let keep = RetentionDays {
        scripts: 0,
        jobs: 2,
    };
    let mut sizes = Vec::new();
    for _ in 0..5 {
        for number in 0..120 {
            let job = world.submit(changed(spec("h100:1"), |spec| {
                spec.comment = format!("{number} {}", "x".repeat(900))
            }));
            world.start(node, job);
            world.end(node, job);
        }
        world.now = world.now.plus_secs(3 * DAY);
        prune(world.store.path(), world.now, keep).unwrap();
        sizes.push(
            world
                .store
                .writer
                .db
                .pragma_query_value(None, "page_count", |row| row.get::<_, i64>(0))
                .unwrap(),
        );
    }
    assert!(sizes[4] * 10 <= sizes[1] * 11, "{sizes:?}");
}

proptest::proptest! {
    #![proptest_config(proptest::test_runner::Config::with_cases(24))]
    /// Of whole hours a report says the same to the last bit, whatever is gone. Of what it cannot say any more it says so.
    #[test]
    fn reports_are_the_same_after_pruning(
        runs in proptest::collection::vec((0i64..40 * 24 * 60, 0i64..5000, 0u64..12, 1u32..4, 0u8..20), 1..40),
        periods in proptest::collection::vec((0i64..42 * 24, 1i64..42 * 24), 3),
        kept_days in 20i64..60,
    ) {
        let world = World::new();
        let db = Connection::open(world.store.path()).unwrap();
        let begin = START.0 - START.0.rem_euclid(3_600_000);
        for (job, (start, minutes, kind, attempts, open)) in (1u64..).zip(runs) {
            let mut end = None;
            for attempt in 1..=attempts {
                let start = begin + (start + i64::from(attempt) * (minutes + 7)) * 60_000 + i64::from(attempt) * 137;
                let secs = (open > 0 || attempt < attempts).then_some(minutes * 60 + i64::from(attempt) - 1);
                insert_run(&db, job, attempt, start, secs, kind + u64::from(attempt) / 3);
                end = secs.map(|secs| start + secs * 1000);
            }
            db.execute(
                "INSERT INTO jobs (id, live, spec, user, account, partition, qos, name, state, submit_ms, end_ms, attempt, exit, end_text, doc)
                 VALUES (?1, ?2, 1, 'ada', 'lab', 'main', '', '', 'COMPLETED', 0, ?3, ?4, '0:0', '', '')",
                (job, end.is_none(), end, attempts),
            )
            .unwrap();
        }
        while usage_sums::count_older(&db, 200).unwrap() > 0 {}
        let now = Timestamp(begin + 60 * DAY * 1000);
        let price = |days: i64, per_gpu_hour_milli: u64| gmodel::policy::Price { from: Timestamp(begin + days * DAY * 1000), micro_per_hour: per_gpu_hour_milli * 1000, ..Default::default() };
        let prices = std::collections::BTreeMap::from([("h100".to_owned(), vec![price(-9, 2500), price(7, 3000), price(20, 1999)])]);
        let report = |by: &[&str], from: i64, to: i64| {
            let by = by.iter().map(|word| (*word).to_owned()).collect();
            wait(world.reader().report(by, Timestamp(from), Timestamp(to), now, prices.clone()))
        };
        let all = || {
            let by: [&[&str]; 5] = [&["account", "user"], &["gpu-type"], &["tag", "class"], &["partition"], &["gpus"]];
            let rows = periods.iter().flat_map(|(from, length)| {
                let from = begin + from * 3_600_000;
                by.map(|by| report(by, from, from + length * 3_600_000).unwrap())
            });
            serde_json::to_string(&rows.collect::<Vec<_>>()).unwrap()
        };
        let before = all();
        let removed = prune(world.store.path(), now, RetentionDays { scripts: 30, jobs: kept_days }).unwrap();
        let gone = i64::try_from(removed).unwrap();
        proptest::prop_assert_eq!(count(&db, "jobs WHERE end_ms IS NULL OR end_ms >= ?1".replace("?1", &(now.0 - kept_days * DAY * 1000).to_string()).as_str()), count(&db, "jobs"));
        proptest::prop_assert_eq!(count(&db, "runs WHERE job NOT IN (SELECT id FROM jobs)") + count(&db, "run_hours h WHERE NOT EXISTS (SELECT 1 FROM runs r WHERE r.job = h.job AND r.attempt = h.attempt)"), 0);
        proptest::prop_assert_eq!(before, all(), "{} gone", gone);
        if gone > 0 {
            let within = report(&["user"], begin + 1, begin + DAY * 1000).unwrap_err();
            proptest::prop_assert!(within.question().unwrap().contains("only the sums of whole hours are kept"));
            proptest::prop_assert!(report(&["cpus"], begin, now.0).unwrap_err().question().unwrap().contains("leave cpus out"));
        }
    }
}
