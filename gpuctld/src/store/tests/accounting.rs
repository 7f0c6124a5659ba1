//! Which jobs accounting finds, and what their rows say.

use super::*;

#[test]
fn a_run_that_is_placed_and_gone_in_one_commit_is_in_the_accounting() {
    let mut world = World::new();
    let node = world.add_node("node1", 8);
    let job = world.submit(spec("h100:4"));
    let plan = gsched::plan(
        &snapshot(&world.state, world.now),
        gsched::WorkBudget::default(),
    );
    let run = RunId::new(job, 1);
    let end = RunEnd {
        exit: ExitCode::exited(9),
        started: Some(world.now),
        ended: Some(world.now),
        ..RunEnd::default()
    };
    let clean = NodeReport::Runs {
        runs: vec![RunReport::new(run, RunPhase::Clean(end.into()))],
    };
    world.inputs(
        vec![
            Input::Plan { plan },
            Input::Node {
                node,
                report: clean,
            },
        ],
        Vec::new(),
    );
    assert!(world.state.runs.is_empty());
    let rows = wait(world.reader().runs(
        RunQuery {
            attempts: true,
            ..all()
        },
        world.now,
    ))
    .unwrap();
    let row = &rows[0];
    assert_eq!(
        (row.id, row.exit_code, row.gpus.as_str()),
        (job.0, ExitCode::exited(9), "h100:4")
    );
    assert_eq!((row.nodelist.as_str(), row.nodes), ("node1", 1));
    world.assert_comes_back();
}

#[test]
fn a_job_that_goes_on_has_no_exit_code_of_an_attempt_before() {
    let mut world = World::new();
    let node = world.add_node("node1", 8);
    let job = world.submit(spec("h100:1"));
    let exits = |world: &World| {
        let rows = wait(world.reader().runs(
            RunQuery {
                attempts: true,
                ..all()
            },
            world.now,
        ))
        .unwrap();
        rows.iter()
            .map(|row| (row.attempt, row.state, row.exit_code))
            .collect::<Vec<_>>()
    };
    world.start(node, job);
    world.end(node, job);
    let failed = (1, JobState::Failed, ExitCode::exited(3));
    assert_eq!(exits(&world), [failed]);
    world.command(Command::Requeue {
        targets: vec![Target::Job(job)],
        hold: false,
    });
    let waits = wait(world.reader().runs(
        RunQuery {
            state: "pd".into(),
            ..all()
        },
        world.now,
    ))
    .unwrap();
    assert_eq!(
        (waits[0].state, waits[0].exit_code),
        (JobState::Pending, ExitCode::SUCCESS)
    );
}

#[test]
fn accounting_finds_jobs_by_user_state_id_and_time() {
    let mut world = World::new();
    let node = world.add_node("node1", 8);
    let first = world.submit(spec("h100:1"));
    world.start(node, first);
    world.now = world.now.plus_secs(HOUR);
    world.end(node, first);
    let tasks = world.submit(array("5-6"));
    world.plan();
    let waiting = world.submit(spec("h100:8"));
    let named = |job: String| RunQuery { job, ..all() };
    assert_eq!(
        world.runs(all()),
        ["1#1 FAILED", "2_5#1 RUNNING", "2_6#1 RUNNING"]
    );
    assert_eq!(
        world.runs(named(waiting.to_string())),
        [format!("{waiting}#0 PENDING")]
    );
    assert_eq!(
        world.runs(named(tasks.to_string())),
        ["2_5#1 RUNNING", "2_6#1 RUNNING"]
    );
    assert_eq!(
        world.runs(named("2_[6-7],1".into())),
        ["1#1 FAILED", "2_6#1 RUNNING"]
    );
    assert_eq!(
        world.runs(RunQuery {
            state: "f,pd".into(),
            ..all()
        }),
        ["1#1 FAILED", "4#0 PENDING"]
    );
    assert_eq!(
        world.runs(RunQuery {
            user: "bob".into(),
            ..all()
        }),
        [""; 0]
    );
    assert_eq!(
        world.runs(RunQuery {
            limit: Some(1),
            user: "alice".into(),
            ..all()
        }),
        ["2_6#1 RUNNING"]
    );
    let from = |at| RunQuery {
        from: Some(gmodel::Instant(at)),
        user: "alice".into(),
        ..all()
    };
    assert_eq!(
        world.runs(from(START.plus_secs(HOUR + 1))),
        ["2_5#1 RUNNING", "2_6#1 RUNNING"]
    );
    assert_eq!(world.runs(from(START)).len(), 3);
    let to = RunQuery {
        to: Some(gmodel::Instant(START.plus_secs(1))),
        ..all()
    };
    assert_eq!(world.runs(to), ["1#1 FAILED"]);
    for (query, word) in [
        (named("x'; DROP TABLE jobs".into()), "is not a job"),
        (
            RunQuery {
                state: "LOST".into(),
                ..all()
            },
            "States:",
        ),
    ] {
        let error = wait(world.reader().runs(query, world.now)).unwrap_err();
        assert!(error.question().unwrap().contains(word), "{error:?}");
    }
}

#[test]
fn between_two_times_a_state_is_one_that_a_job_was_in_then() {
    let mut world = World::new();
    let node = world.add_node("node1", 8);
    let first = world.submit(spec("h100:8"));
    world.now = world.now.plus_secs(HOUR);
    world.start(node, first);
    let second = world.submit(spec("h100:8"));
    world.now = world.now.plus_secs(HOUR);
    world.end(node, first);
    world.now = world.now.plus_secs(HOUR);
    world.start(node, second);
    let shown = |state: &str, from: i64, to: i64| {
        let at = |minutes: i64| Some(gmodel::Instant(START.plus_secs(minutes * 60)));
        world
            .runs(RunQuery {
                state: state.into(),
                from: at(from),
                to: at(to),
                ..all()
            })
            .join(" ")
    };
    // The first waited for an hour and ran for one; the second waited for two and runs.
    assert_eq!(shown("PD", 10, 20), "1#1 FAILED");
    assert_eq!(shown("PD", 70, 80), "2#1 RUNNING");
    assert_eq!(shown("PD", 190, 200), "");
    assert_eq!(shown("R", 10, 20), "");
    assert_eq!(shown("R", 70, 80), "1#1 FAILED");
    assert_eq!(shown("R", 70, 200), "1#1 FAILED 2#1 RUNNING");
    assert_eq!(shown("F", 70, 80), "", "it ended later");
    assert_eq!(shown("F,CD", 110, 130), "1#1 FAILED");
    assert_eq!(shown("R,PD", 0, 200), "1#1 FAILED 2#1 RUNNING");
}

#[test]
fn tasks_cancelled_untouched_are_one_line_of_accounting() {
    let mut world = World::new();
    let node = world.add_node("node1", 1);
    let tasks = world.submit(array("5-9"));
    world.submit(array("0-3"));
    world.start(node, tasks);
    world.now = world.now.plus_secs(HOUR);
    let shown = |world: &World, query: RunQuery| world.runs(query);
    let cancel = |world: &mut World, indices: &[u32]| {
        let targets = indices
            .iter()
            .map(|index| Target::Task {
                array: tasks,
                index: *index,
            })
            .collect();
        world.command(Command::Cancel {
            targets,
            signal: None,
        });
    };
    cancel(&mut world, &[7, 8]);
    let lines = ["1_5#1 RUNNING", "1_[7-8]#0 CANCELLED"];
    assert_eq!(shown(&world, all()), lines);
    assert_eq!(
        shown(
            &world,
            RunQuery {
                job: "1".into(),
                ..all()
            }
        ),
        lines
    );
    for (job, want) in [
        ("1_[6-7]", "1_7#0 CANCELLED"),
        ("4", "1_8#0 CANCELLED"),
        ("1_9", ""),
        ("1_7,4", lines[1]),
    ] {
        let want: Vec<&str> = Some(want)
            .filter(|want| !want.is_empty())
            .into_iter()
            .collect();
        assert_eq!(
            shown(
                &world,
                RunQuery {
                    job: job.into(),
                    ..all()
                }
            ),
            want,
            "{job}"
        );
    }
    assert_eq!(
        shown(
            &world,
            RunQuery {
                state: "CA".into(),
                ..all()
            }
        ),
        lines[1..]
    );
    assert_eq!(
        shown(
            &world,
            RunQuery {
                state: "R".into(),
                ..all()
            }
        ),
        lines[..1]
    );
    assert_eq!(
        shown(
            &world,
            RunQuery {
                limit: Some(1),
                ..all()
            }
        ),
        lines[1..]
    );
    let at = |secs| Some(gmodel::Instant(START.plus_secs(secs)));
    assert_eq!(
        shown(
            &world,
            RunQuery {
                from: at(HOUR + 1),
                ..all()
            }
        ),
        lines[..1]
    );
    assert_eq!(
        shown(
            &world,
            RunQuery {
                from: at(HOUR),
                user: "alice,bob".into(),
                name: "train".into(),
                ..all()
            }
        ),
        lines
    );
    for query in [
        RunQuery {
            user: "bob".into(),
            ..all()
        },
        RunQuery {
            partition: "night".into(),
            ..all()
        },
        RunQuery {
            qos: "high".into(),
            ..all()
        },
        RunQuery {
            to: at(-1),
            ..all()
        },
    ] {
        assert_eq!(shown(&world, query), [""; 0]);
    }
    let row = wait(world.reader().runs(
        RunQuery {
            state: "CA".into(),
            ..all()
        },
        world.now,
    ))
    .unwrap()
    .remove(0);
    assert_eq!(
        (row.id, row.array_id, row.array_tasks.as_deref()),
        (3, Some(1), Some("7-8"))
    );
    assert_eq!((row.start_time, row.end_time), (None, at(HOUR)));
    // A database of schema 1 had it in its history only.
    let mut world = world;
    let db = Connection::open(world.store.path()).unwrap();
    for column in gpu_use::COLUMNS {
        db.execute_batch(&format!("ALTER TABLE runs DROP COLUMN gpu_{column}"))
            .unwrap();
    }
    db.execute_batch(
        "ALTER TABLE meta DROP COLUMN cluster_id; ALTER TABLE meta DROP COLUMN pruned_before_ms; DROP INDEX jobs_spec; DROP INDEX arrays_spec; DROP INDEX arrays_end;
         DROP TABLE pruned_hours; DROP TABLE pruned_repeats; DROP INDEX events_policy; DROP INDEX runs_unsummed; DROP INDEX runs_repeated; DROP INDEX runs_idle; ALTER TABLE runs DROP COLUMN idle_spells;
         ALTER TABLE runs DROP COLUMN suspended_ms; ALTER TABLE runs DROP COLUMN suspended_since_ms; ALTER TABLE runs DROP COLUMN unheld_ms;
         ALTER TABLE runs DROP COLUMN gpu_uuids; ALTER TABLE runs DROP COLUMN gpu_events; ALTER TABLE runs DROP COLUMN image; DROP TABLE usage_sums; DROP TABLE usage_keys; DROP TABLE run_hours; ALTER TABLE runs DROP COLUMN summed;
         DROP TABLE policy; DROP TABLE billing; DROP TABLE bill_months; ALTER TABLE runs DROP COLUMN gpu_parts; DROP TABLE user_tokens; DROP TABLE usage; ALTER TABLE runs DROP COLUMN class; ALTER TABLE runs DROP COLUMN lost_gpu_secs;
         DROP TABLE gpu_history; DROP TABLE gpu_checks; DROP TABLE forecasts; ALTER TABLE jobs DROP COLUMN script; ALTER TABLE arrays DROP COLUMN script; DROP INDEX arrays_cancelled; ALTER TABLE arrays DROP COLUMN cancelled_ms; ALTER TABLE meta DROP COLUMN adoption; PRAGMA user_version = 1",
    )
    .unwrap();
    drop(db);
    world = world.reopen();
    assert_eq!(
        shown(
            &world,
            RunQuery {
                from: at(HOUR),
                ..all()
            }
        ),
        lines
    );
    // More of them, later.
    world.now = world.now.plus_secs(60);
    cancel(&mut world, &[9]);
    let world = world.reopen();
    assert_eq!(
        shown(
            &world,
            RunQuery {
                from: at(HOUR + 60),
                state: "CA".into(),
                ..all()
            }
        ),
        ["1_[7-9]#0 CANCELLED"]
    );
}

#[test]
fn accounting_finds_jobs_by_node_and_quality_of_service() {
    let mut world = World::new();
    let nodes = [world.add_node("node1", 1), world.add_node("node2", 1)];
    let first = world.submit(changed(spec("h100:1"), |spec| spec.qos = "high".into()));
    let second = world.submit(spec("h100:1"));
    world.plan();
    let on = |job| world.state.runs.get(RunId::new(job, 1)).unwrap().allocation[0].node;
    let name = |job| {
        if on(job) == nodes[0] {
            "node1"
        } else {
            "node2"
        }
    };
    let (one, other) = (name(first).to_owned(), name(second).to_owned());
    assert_ne!(one, other);
    let by_node = |nodelist: &str| {
        world.runs(RunQuery {
            nodelist: nodelist.into(),
            ..all()
        })
    };
    assert_eq!(by_node(&one), ["1#1 RUNNING"]);
    assert_eq!(by_node("node[1-9]"), ["1#1 RUNNING", "2#1 RUNNING"]);
    assert_eq!(by_node("node3"), [""; 0]);
    let limited = RunQuery {
        nodelist: one.clone(),
        limit: Some(1),
        attempts: true,
        ..all()
    };
    assert_eq!(
        world.runs(limited),
        ["1#1 RUNNING"],
        "the limit counts what is on the node"
    );
    assert_eq!(
        world.runs(RunQuery {
            qos: "high,low".into(),
            ..all()
        }),
        ["1#1 RUNNING"]
    );
    let error = wait(world.reader().runs(
        RunQuery {
            nodelist: "node[".into(),
            ..all()
        },
        world.now,
    ))
    .unwrap_err();
    assert!(error.question().is_some(), "{error:?}");
}

#[test]
fn the_last_run_of_an_arrays_first_task_is_its_own() {
    let mut world = World::new();
    let node = world.add_node("node1", 8);
    let tasks = world.submit(array("0-1"));
    world.start(node, tasks);
    let run = wait(world.reader().last_run(tasks, world.now))
        .unwrap()
        .unwrap();
    assert_eq!(run.shown_id, "1_0");
}

#[test]
fn a_finished_job_is_found_by_id_with_its_request_and_history() {
    let mut world = World::new();
    let node = world.add_node("node1", 8);
    let job = world.submit(spec("h100:1"));
    world.start(node, job);
    world.end(node, job);
    world.now = world.now.plus_secs(301);
    world.input(Input::Wake);
    assert!(!world.state.jobs.contains(job), "forgotten");
    match wait(world.reader().job(job)).unwrap() {
        Some(StoredJob::Job(found)) => {
            assert_eq!(
                (found.state, found.spec.name.as_str()),
                (JobState::Failed, "train")
            );
            assert_eq!(found.spec.user.name, "alice");
        }
        other => panic!("{other:?}"),
    }
    let history = wait(world.reader().history(job)).unwrap().lines;
    let kinds: Vec<&str> = history.iter().map(|line| line.kind.as_str()).collect();
    assert_eq!(kinds[..3], ["job_submitted", "run_placed", "run_go"]);
    assert!(
        kinds.contains(&"run_ended") && history.iter().any(|line| line.node == Some(node)),
        "{kinds:?}"
    );
    assert_eq!(wait(world.reader().job(JobId(999))).unwrap(), None);
}

#[test]
fn tasks_are_found_with_and_without_a_record_of_their_own() {
    let mut world = World::new();
    let node = world.add_node("node1", 1);
    let tasks = world.submit(array("10-12"));
    world.start(node, tasks);
    let own = wait(world.reader().task(tasks, 10)).unwrap().unwrap();
    assert!(matches!(own, StoredJob::Job(job) if job.task.unwrap().index == 10));
    let shared = wait(world.reader().task(tasks, 12)).unwrap().unwrap();
    assert!(matches!(shared, StoredJob::Array(array) if array.id == tasks));
    assert_eq!(wait(world.reader().task(tasks, 13)).unwrap(), None);
}

#[test]
fn tasks_that_a_deadline_ended_are_a_line_of_accounting_beside_the_cancelled_ones() {
    let mut world = World::new();
    let deadline = Some(START.plus_secs(2 * HOUR));
    let timely = |spec| {
        changed(spec, |spec| {
            (spec.deadline, spec.time_limit_secs) = (deadline, Some(60));
        })
    };
    let tasks = world.submit(timely(array("5-9")));
    let alone = world.submit(timely(spec("h100:1")));
    let targets = vec![Target::Task {
        array: tasks,
        index: 6,
    }];
    world.command(Command::Cancel {
        targets,
        signal: None,
    });
    world.now = world.now.plus_secs(2 * HOUR);
    world.input(Input::Wake);
    let of_state = |world: &World, state: &str| {
        world.runs(RunQuery {
            state: state.into(),
            ..all()
        })
    };
    let late = ["1_[5,7-9]#0 DEADLINE", "6#0 DEADLINE"];
    assert_eq!(of_state(&world, "DL"), late);
    assert_eq!(of_state(&world, "CA"), ["1_6#0 CANCELLED"]);
    let mut world = world.reopen();
    assert_eq!(of_state(&world, "DEADLINE"), late);
    // Forgotten, they still did not end well.
    world.now = world.now.plus_secs(HOUR);
    world.input(Input::Wake);
    let asked = [
        (alone, None, JobState::Deadline),
        (tasks, Some(7), JobState::Deadline),
        (tasks, Some(6), JobState::Cancelled),
    ];
    for (id, index, state) in asked {
        let name = gmodel::dependency::JobRef { id, index };
        let past = wait(world.reader().past_jobs(vec![name])).unwrap();
        assert_eq!(
            past.last().map(|past| past.state),
            Some(state),
            "{id} {index:?}"
        );
    }
    // A row of a release that had no such state is as it was.
    let db = Connection::open(world.store.path()).unwrap();
    db.execute_batch("UPDATE jobs SET state = 'CANCELLED', doc = CAST(replace(CAST(doc AS TEXT), '\"DEADLINE\"', '\"CANCELLED\"') AS BLOB)").unwrap();
    drop(db);
    let world = world.reopen();
    assert_eq!(of_state(&world, "CA"), ["1_6#0 CANCELLED", "6#0 CANCELLED"]);
}
