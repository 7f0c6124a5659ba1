//! What runs used: in their rows, in reports, and in the sums that reports are made from.

use super::*;

#[test]
fn a_report_counts_the_part_of_each_run_in_the_period() {
    let mut world = World::new();
    let node = world.add_node("node1", 8);
    let long = world.submit(spec("h100:4"));
    world.start(node, long);
    let short = world.submit(changed(spec(""), |spec| {
        spec.tags.clear();
        spec.request.cpus_per_task = Some(3);
    }));
    world.start(node, short);
    let cpus = |world: &World, job| {
        f64::from(world.state.runs.get(RunId::new(job, 1)).unwrap().allocation[0].cpus)
    };
    let (long_cpus, short_cpus) = (cpus(&world, long), cpus(&world, short));
    world.now = world.now.plus_secs(HOUR);
    world.end(node, short);
    world.now = world.now.plus_secs(HOUR);
    let report = |by: &[&str], from: i64, to: i64| {
        let by = by.iter().map(|word| (*word).to_owned()).collect();
        let none = BTreeMap::new();
        wait(world.reader().report(
            by,
            START.plus_secs(from),
            START.plus_secs(to),
            world.now,
            none,
        ))
        .unwrap()
    };
    let rows = report(&["user"], 0, 10 * HOUR);
    assert_eq!((rows.len(), rows[0].jobs, rows[0].gpu_hours), (1, 2, 8.0));
    assert_eq!(rows[0].cpu_hours, 2.0 * long_cpus + short_cpus);
    let rows = report(&["gpu-type"], HOUR / 2, HOUR + HOUR / 2);
    assert_eq!(
        (
            rows[1].group[0].as_str(),
            rows[1].gpu_hours,
            rows[1].cpu_hours
        ),
        ("h100", 4.0, long_cpus)
    );
    assert_eq!(
        (
            rows[0].group[0].as_str(),
            rows[0].gpu_hours,
            rows[0].cpu_hours
        ),
        ("", 0.0, short_cpus / 2.0)
    );
    let rows = report(&["account", "tag"], 0, HOUR);
    assert_eq!(rows[1].group, ["default", "paper"]);
    assert!(report(&["user"], -2 * HOUR, -HOUR).is_empty());
    assert_eq!(
        report(&["class"], 0, HOUR)[0].group,
        [""],
        "there are no quotas"
    );
    let sizes: Vec<_> = report(&["gpus"], 0, 2 * HOUR)
        .into_iter()
        .map(|row| (row.group.concat(), row.jobs, row.gpu_hours))
        .collect();
    assert_eq!(sizes, [("0".to_owned(), 1, 0.0), ("4".to_owned(), 1, 8.0)]);
    let by_cpus: Vec<_> = report(&["cpus"], HOUR / 2, HOUR + HOUR / 2)
        .into_iter()
        .map(|row| (row.group.concat(), row.jobs, row.cpu_hours))
        .collect();
    let mut wanted = [(short_cpus, short_cpus / 2.0), (long_cpus, long_cpus)];
    wanted.sort_by(|a, b| a.0.total_cmp(&b.0));
    assert_eq!(
        by_cpus,
        wanted.map(|(cpus, hours)| (cpus.to_string(), 1, hours))
    );
    let error =
        wait(
            world
                .reader()
                .report(vec!["colour".into()], START, START, START, BTreeMap::new()),
        )
        .unwrap_err();
    assert!(
        error
            .question()
            .unwrap()
            .contains("account,user,partition,gpu-type,tag,class,gpus,cpus")
    );

    // Nothing before the first price; 2.00 in the second half hour, 3.00 from then on.
    let price = |secs: i64, per_gpu_hour_milli: u64| gmodel::policy::Price {
        from: START.plus_secs(secs),
        micro_per_hour: per_gpu_hour_milli * 1000,
        ..Default::default()
    };
    let prices = BTreeMap::from([(
        "h100".to_owned(),
        vec![price(HOUR / 2, 2000), price(HOUR, 3000)],
    )]);
    let priced = |by: &str| {
        let reader = world.reader();
        let rows = reader.report(
            vec![by.into()],
            START,
            START.plus_secs(2 * HOUR),
            world.now,
            prices.clone(),
        );
        wait(rows)
            .unwrap()
            .iter()
            .map(|row| row.cost.unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!(priced("user"), [4.0 * (0.5 * 2.0 + 3.0)]);
    assert_eq!(priced("gpu-type"), [0.0, 16.0]);
}

#[test]
fn what_nodes_had_comes_from_their_events() {
    let mut world = World::new();
    world.now = START.plus_secs(HOUR);
    let node = world.add_node("node1", 8);
    world.now = world.now.plus_secs(HOUR);
    let root = Actor {
        user: "root".into(),
        operator: true,
        ..Actor::default()
    };
    world.input(Input::Command {
        actor: root.clone(),
        command: Command::NodeDrain {
            node,
            reason: "fan".into(),
        },
    });
    world.now = world.now.plus_secs(HOUR);
    let capacity = |world: &World, from: i64, to: i64| {
        let nodes = world
            .state
            .nodes
            .values()
            .map(crate::store::reader::NodeNow::from)
            .collect();
        let found = wait(world.reader().capacity(
            START.plus_secs(from),
            START.plus_secs(to),
            nodes,
        ))
        .unwrap();
        let hours = |both: [u128; 2]| both.map(|millis| millis as f64 / 3_600_000.0);
        (
            found.from.since_secs(START) / HOUR,
            hours(found.all),
            hours(found.down),
        )
    };
    assert_eq!(
        capacity(&world, -5 * HOUR, 3 * HOUR),
        (0, [128.0, 16.0], [64.0, 8.0])
    );
    assert_eq!(
        capacity(&world, HOUR, 2 * HOUR + HOUR / 2),
        (1, [96.0, 12.0], [32.0, 4.0])
    );
    // Of a year ago nothing is left but how the node is now, and what was done to it since.
    Connection::open(world.store.path())
        .unwrap()
        .execute(
            "DELETE FROM events WHERE kind IN ('node_joined', 'node_hello', 'node_inventory')",
            [],
        )
        .unwrap();
    assert_eq!(capacity(&world, 0, 3 * HOUR).1, [192.0, 24.0]);
    assert_eq!(capacity(&world, 0, 3 * HOUR).2, [64.0, 8.0]);
}

/// Runs as rows of their own, for what no simulated cluster makes in a moment: attempts, price changes, long spans.
pub(super) fn insert_run(
    db: &Connection,
    job: u64,
    attempt: u32,
    start: i64,
    secs: Option<i64>,
    kind: u64,
) {
    let account = ["lab", "physics"][kind as usize % 2];
    let gpus = [r#"{"h100":2000}"#, r#"{"a100":1000,"h100":500}"#, "{}"][kind as usize % 3];
    let tags = ["[]", r#"["paper","paper"]"#, r#"["paper","sweep"]"#][kind as usize % 3];
    db.execute(
        "INSERT INTO runs (job, attempt, live, user, account, partition, qos, name, tags, state, placed_ms, start_ms, end_ms, cpus,
            mem_bytes, gpus, nodes, nodelist, exit, end_text, cpu_micros, peak_bytes, class, gpu_idle_ms, gpu_busy_percent_ms,
            gpu_busy_told_ms, gpu_energy_mj)
         VALUES (?1,?2,?3,?4,?5,'main','','train',?6,'COMPLETED',?7,?7,?8,?9,?10,?11,1,'n','0:0','',?12,?13,?14,?15,?16,?17,?18)",
        rusqlite::params![
            job, attempt, secs.is_none(), if kind.is_multiple_of(5) { "ada" } else { "bob" }, account, tags, start,
            secs.map(|secs| start + secs * 1000), 1 + kind, kind << 28, gpus, kind * 1_000_003, kind << 27,
            kind.is_multiple_of(4).then_some("borrowed"), kind.is_multiple_of(2).then_some(kind * 997), kind * 10_007, kind * 997, kind * 123_457,
        ],
    )
    .unwrap();
}

proptest::proptest! {
    #![proptest_config(proptest::test_runner::Config::with_cases(24))]
    /// Sums, edges and runs that are not in the sums yet give what the runs themselves give, to the last bit.
    #[test]
    fn a_report_from_sums_is_that_of_the_runs(
        runs in proptest::collection::vec((0i64..40 * 24 * 60, 0i64..5000, 0u64..12, 1u32..4, 0u8..20), 1..40),
        (from, length) in (0i64..42 * 24 * 60, 1i64..42 * 24 * 60),
        aligned in proptest::bool::ANY,
        left in 0u32..10,
    ) {
        use gmodel::policy::Price;
        let world = World::new();
        let db = Connection::open(world.store.path()).unwrap();
        let begin = START.0 - START.0.rem_euclid(1000);
        for (job, (start, minutes, kind, attempts, open)) in (1u64..).zip(runs) {
            for attempt in 1..=attempts {
                let start = begin + (start + i64::from(attempt) * (minutes + 7)) * 60_000 + i64::from(attempt) * 137;
                let secs = (open > 0 || attempt < attempts).then_some(minutes * 60 + i64::from(attempt) - 1);
                insert_run(&db, job, attempt, start, secs, kind + u64::from(attempt) / 3);
            }
        }
        let mut from = begin + from * 60_000 + 11;
        let mut to = from + length * 60_000;
        if aligned {
            (from, to) = (from - from.rem_euclid(3_600_000), to - to.rem_euclid(3_600_000) + 3_600_000);
        }
        let price = |days: i64, per_gpu_hour_milli: u64| Price { from: Timestamp(begin + days * 86_400_000 + 1_234_567), micro_per_hour: per_gpu_hour_milli * 1000, ..Default::default() };
        let prices = std::collections::BTreeMap::from([("h100".to_owned(), vec![price(-9, 2500), price(7, 3000), price(20, 1999)])]);
        let now = Timestamp(begin + 60 * 86_400_000);
        let report = |by: &[&str]| {
            let by = by.iter().map(|word| (*word).to_owned()).collect();
            wait(world.reader().report(by, Timestamp(from), Timestamp(to), now, prices.clone())).unwrap()
        };
        let all = || {
            let by: [&[&str]; 4] = [&["account", "user"], &["gpu-type"], &["tag", "class"], &["partition"]];
            serde_json::to_string(&by.map(report)).unwrap()
        };
        // Read from the runs whatever the sums are, and of the same use.
        let by_size = || {
            let rows = report(&["cpus", "gpus"]);
            let whole = |rows: &[gwire::api::ReportRow]| (rows.iter().map(|row| row.gpu_hours).sum::<f64>(), rows.iter().map(|row| row.cpu_hours).sum::<f64>());
            let (sized, all) = (whole(&rows), whole(&report(&["user"])));
            assert!((sized.0 - all.0).abs() + (sized.1 - all.1).abs() < 1e-6, "{sized:?} {all:?}");
            serde_json::to_string(&rows).unwrap()
        };
        let sized = by_size();
        let from_runs = all();
        while usage_sums::count_older(&db, 7).unwrap() == 7 && left > 3 {}
        let from_both = all();
        while usage_sums::count_older(&db, 7).unwrap() > 0 {}
        let from_sums = all();
        proptest::prop_assert_eq!(&from_runs, &from_both);
        proptest::prop_assert_eq!(&from_runs, &from_sums);
        proptest::prop_assert_eq!(sized, by_size());
    }
}

#[test]
fn what_a_run_made_of_its_gpus_is_in_its_row_and_in_reports() {
    let mut world = World::new();
    let node = world.add_node("node1", 8);
    let job = world.submit(spec("h100:2"));
    world.start(node, job);
    world.now = world.now.plus_secs(HOUR);
    let gpu = gmodel::gpu_use::GpuUseTotals {
        sampled_ms: 7_200_000,
        idle_ms: 3_600_000,
        busy_percent_ms: 270_000_000,
        busy_told_ms: 7_200_000,
        memory_peak_bytes: 40 << 30,
        power_peak_mw: 612_500,
        energy_mj: 1_800_000_000,
        ..Default::default()
    };
    let end = RunEnd {
        started: Some(world.now.plus_secs(-HOUR)),
        ended: Some(world.now),
        usage: Usage {
            cpu_user_micros: 1_800_000_000,
            peak_memory_bytes: 1 << 30,
            gpu,
            ..Usage::default()
        },
        ..RunEnd::default()
    };
    let idle = gmodel::idle::IdleReport {
        run: RunId::new(job, 1),
        watched_secs: 3000,
        idle_secs: vec![1800, 600],
    };
    world.report(node, NodeReport::Idle { runs: vec![idle] });
    world.phase(node, job, RunPhase::Clean(end.into()));
    let run = wait(world.reader().idle_runs(START, world.now))
        .unwrap()
        .remove(0);
    let spells: Vec<_> = run
        .spells
        .iter()
        .map(|spell| (spell.percent, spell.from_secs, spell.secs))
        .collect();
    assert_eq!(
        (run.run.job, run.gpus_milli, spells),
        (job, 2000, vec![(50, 1200, 1800), (100, 2400, 600)])
    );
    assert_eq!(
        wait(world.reader().idle_runs(START, world.now.plus_secs(-1))).unwrap(),
        []
    );
    let row = wait(world.reader().runs(all(), world.now))
        .unwrap()
        .remove(0);
    let used = row.gpu_use.unwrap();
    assert_eq!(
        (used.busy_percent, used.idle_secs, used.energy_joules),
        (Some(37.5), 3600, 1_800_000)
    );
    assert_eq!(
        (
            used.memory_peak_bytes,
            used.power_peak_watts,
            used.sampled_secs
        ),
        (40 << 30, 612.5, 7200)
    );
    let report = |world: &World| {
        let (from, to) = (START.plus_secs(-HOUR), world.now.plus_secs(HOUR));
        wait(
            world
                .reader()
                .report(vec!["user".into()], from, to, to, Default::default()),
        )
        .unwrap()
        .remove(0)
    };
    let row = report(&world);
    assert_eq!(
        (
            row.jobs,
            row.gpu_hours,
            row.gpu_busy_hours,
            row.gpu_idle_hours
        ),
        (1, 2.0, 0.75, 1.0)
    );
    assert_eq!(
        (row.gpu_percent, row.energy_kwh, row.cpu_used_hours),
        (Some(37.5), 0.5, 0.5)
    );
    // The row is written again with the end of the run: it is counted once.
    let world = world.reopen();
    let again = report(&world);
    assert_eq!(
        (again.jobs, again.gpu_hours, again.energy_kwh),
        (1, 2.0, 0.5)
    );
    let db = Connection::open(world.store.path()).unwrap();
    let begun: i64 = db
        .query_row(
            "SELECT sum(begun) FROM usage_sums WHERE span = 1",
            [],
            |row| row.get(0),
        )
        .unwrap();
    assert_eq!(begun, 1);
}

#[test]
fn suspended_time_is_charged_to_no_account() {
    let mut world = World::new();
    let node = world.add_node("node1", 8);
    let (resumed, ended) = (world.submit(spec("h100:2")), world.submit(spec("h100:2")));
    [resumed, ended]
        .into_iter()
        .for_each(|job| world.start(node, job));
    let root = |world: &mut World, command| {
        world.input(Input::Command {
            actor: Actor {
                user: "root".into(),
                operator: true,
                ..Actor::default()
            },
            command,
        });
    };
    let later = |world: &mut World| world.now = world.now.plus_secs(HOUR);
    // What the listing says of both, and the GPU-hours of the report.
    let told = |world: &World| {
        let rows = wait(world.reader().runs(all(), world.now)).unwrap();
        let secs: Vec<_> = rows
            .iter()
            .map(|row| (row.elapsed_secs / HOUR, row.suspended_secs / HOUR))
            .collect();
        let reader = world.reader();
        let report = reader.report(
            vec!["user".into()],
            START,
            world.now,
            world.now,
            Default::default(),
        );
        (secs, wait(report).unwrap()[0].gpu_hours)
    };
    later(&mut world);
    root(
        &mut world,
        Command::Suspend {
            targets: vec![Target::Job(resumed), Target::Job(ended)],
        },
    );
    later(&mut world);
    later(&mut world);
    assert_eq!(
        told(&world),
        (vec![(1, 2), (1, 2)], 4.0),
        "while they stand still"
    );
    world.assert_comes_back();
    root(
        &mut world,
        Command::Resume {
            targets: vec![Target::Job(resumed)],
        },
    );
    later(&mut world);
    assert_eq!(told(&world), (vec![(2, 2), (1, 3)], 6.0), "one goes on");
    for job in [resumed, ended] {
        let end = RunEnd {
            started: Some(START),
            ended: Some(world.now),
            ..RunEnd::default()
        };
        world.phase(node, job, RunPhase::Clean(end.into()));
    }
    assert_eq!(told(&world), (vec![(2, 2), (1, 3)], 6.0), "they are over");
    let mut world = world.reopen();
    later(&mut world);
    assert_eq!(
        told(&world),
        (vec![(2, 2), (1, 3)], 6.0),
        "and stay as they were"
    );
}
