//! What becomes of jobs comes back as it was written, at every step of their lives.

use super::*;

#[test]
fn everything_comes_back_at_every_step_of_a_life() {
    let mut world = World::new();
    let node = world.add_node("node1", 8);
    world.assert_comes_back();
    let job = world.submit(spec("h100:2"));
    let tasks = world.submit(array("0-9%3"));
    world.assert_comes_back();
    world.start(node, job);
    world.assert_comes_back();
    let hold = Command::Hold {
        targets: vec![Target::Job(tasks)],
        reason: "wait".into(),
        for_owner: false,
    };
    world.command(hold);
    world.assert_comes_back();
    world.report(node, NodeReport::Gone);
    world.assert_comes_back();
    world.now = world.now.plus_secs(60);
    world.end(node, job);
    world.assert_comes_back();
    let used: Vec<_> = world
        .state
        .usage
        .rows()
        .map(|(account, user, _)| format!("{account}/{user}"))
        .collect();
    assert_eq!(used, ["default/", "default/alice"]);
    let mut world = world.reopen();
    assert!(
        world.state.jobs.contains(job),
        "it ended just before: its client may ask again"
    );
    assert_eq!(world.state.arrays.get(tasks).unwrap().own_live, 3);
    world.now = world.now.plus_secs(HOUR);
    world.submit(spec(""));
    let world = world.reopen();
    assert!(
        !world.state.jobs.contains(job),
        "a job that ended long ago stays in the file"
    );
}

#[test]
fn a_token_and_what_counts_against_its_caps_come_back() {
    let mut world = World::new();
    let node = world.add_node("node1", 8);
    let id = gmodel::TokenId(7);
    let token = gmodel::UserToken {
        id,
        user: gmodel::UserRef {
            name: "alice".into(),
            uid: 1000,
            gid: 1000,
        },
        hash: "ab".repeat(32),
        scopes: [gmodel::Scope::Submit].into(),
        accounts: Default::default(),
        partitions: Default::default(),
        expires: world.now.plus_secs(86_400),
        gpu_secs: Some(36_000),
        jobs: 3,
        note: "ci".into(),
        made: world.now,
        made_by: String::new(),
        known: true,
        revoked: None,
        used_on: None,
        gpu_used: 0,
    };
    world.command(Command::Token {
        change: gcore::ctl::TokenChange::Make(Box::new(token)),
    });
    let with_token = || Actor {
        token: Some(id),
        ..alice()
    };
    let submit = |spec: JobSpec| Input::Command {
        actor: with_token(),
        command: Command::Submit {
            spec: Box::new(changed(spec, |spec| {
                spec.common.time_limit_secs = Some(600)
            })),
            client_key: None,
        },
    };
    world.input(submit(spec("h100:2")));
    world.input(submit(array("0-1")));
    let job = world.state.jobs.keys().next().unwrap();
    world.assert_comes_back();
    world.start(node, job);
    world.now = world.now.plus_secs(60);
    world.end(node, job);
    world.assert_comes_back();
    let before = gcore::ctl::token_use(&world.state, id, world.now);
    assert!(before.gpu_used > 0 && before.jobs == 2, "{before:?}");
    world.input(Input::Command {
        actor: alice(),
        command: Command::Token {
            change: gcore::ctl::TokenChange::Revoke(id),
        },
    });
    world.assert_comes_back();
    let world = world.reopen();
    assert_eq!(gcore::ctl::token_use(&world.state, id, world.now), before);
    assert_eq!(
        world.state.tokens.users[&id].revoked.as_ref().unwrap().by,
        "alice"
    );
}

#[test]
fn a_client_key_outlives_a_restart_though_its_job_is_over() {
    let mut world = World::new();
    let node = world.add_node("node1", 8);
    let actor = Actor {
        user: "alice".into(),
        uid: 1001,
        gid: 1001,
        ..Actor::default()
    };
    let ask = || Input::Command {
        actor: actor.clone(),
        command: Command::Submit {
            spec: Box::new(spec("h100:1")),
            client_key: Some("k".into()),
        },
    };
    world.inputs(vec![ask()], Vec::new());
    let job = world.state.jobs.keys().next().unwrap();
    world.start(node, job);
    world.end(node, job);
    let mut world = world.reopen();
    world.inputs(vec![ask()], Vec::new());
    assert_eq!(
        world.state.jobs.len(),
        1,
        "the same question made a second job"
    );
}

#[test]
fn a_million_tasks_are_one_row() {
    let mut world = World::new();
    let id = world.submit(array("0-999999"));
    let size = world
        .store
        .path()
        .with_extension("db-wal")
        .metadata()
        .unwrap()
        .len();
    assert!(size < 1 << 20, "{size} bytes");
    let next = world.submit(spec(""));
    assert_eq!(next.0, id.0 + 1_000_000);
    world.assert_comes_back();
}

#[test]
fn held_tasks_of_an_array_come_back_in_its_row() {
    let mut world = World::new();
    let id = world.submit(array("0-99999"));
    let held = vec![Target::Tasks {
        array: id,
        indices: "0-49999".parse().unwrap(),
    }];
    world.command(Command::Hold {
        targets: held,
        reason: "later".into(),
        for_owner: false,
    });
    world.assert_comes_back();
    let world = world.reopen();
    let array = world.state.arrays.get(id).unwrap();
    assert_eq!(
        (
            array.apart[0].positions.to_string(),
            array.holds_of(7)[0].reason.as_str(),
            array.holds_of(50_000).len()
        ),
        ("0-49999".into(), "later", 0)
    );
}

#[test]
fn an_updated_array_leaves_the_requests_of_its_started_tasks() {
    let mut world = World::new();
    let node = world.add_node("node1", 1);
    let tasks = world.submit(array("0-3"));
    world.start(node, tasks);
    let change = gcore::ctl::JobChange {
        name: Some("second".into()),
        ..Default::default()
    };
    world.command(Command::Update {
        target: Target::Job(tasks),
        change,
    });
    world.assert_comes_back();
    let first = wait(world.reader().task(tasks, 0)).unwrap().unwrap();
    let name = match first {
        StoredJob::Job(job) => job.spec.name.clone(),
        StoredJob::Array(array) => panic!("{array:?}"),
    };
    assert_eq!(name, world.state.jobs.get(tasks).unwrap().spec.name);
}

#[test]
fn scripts_go_when_their_time_is_over_and_not_while_a_job_needs_them() {
    let mut world = World::new();
    let node = world.add_node("node1", 8);
    let blob = |text: &str| {
        use sha2::{Digest, Sha256};
        Blob {
            sha: Sha256::digest(text).into(),
            data: text.into(),
        }
    };
    let (of_done, of_waiting) = (blob("#!/bin/sh\n# done"), blob("#!/bin/sh\n# waiting"));
    let with = |script: &Blob, gpus: &str| {
        let mut spec = spec(gpus);
        spec.launch.script = script.id();
        let command = Command::Submit {
            spec: Box::new(spec),
            client_key: None,
        };
        Input::Command {
            actor: alice(),
            command,
        }
    };
    world.inputs(
        vec![with(&of_done, "h100:8"), with(&of_waiting, "h100:8")],
        vec![of_done.clone(), of_waiting.clone()],
    );
    let done = JobId(1);
    world.start(node, done);
    let read = |world: &World, blob: &Blob| wait(world.reader().blob(blob.id())).unwrap();
    assert_eq!(read(&world, &of_done), Some(of_done.data.clone()));
    world.now = world.now.plus_secs(40 * 24 * HOUR);
    world.end(node, done);
    // 40 days after the submission and on the day of the end: kept.
    crate::store::retention::prune(world.store.path(), world.now, KEEP).unwrap();
    assert!(read(&world, &of_done).is_some());
    crate::store::retention::prune(
        world.store.path(),
        world.now.plus_secs(31 * 24 * HOUR),
        KEEP,
    )
    .unwrap();
    assert_eq!(read(&world, &of_done), None);
    assert!(read(&world, &of_waiting).is_some(), "its job still waits");
    assert_eq!(
        read(
            &world,
            &Blob {
                sha: [0; 32],
                data: Vec::new()
            }
        ),
        None
    );
}

#[test]
fn jobs_that_differ_in_name_and_script_share_the_row_of_their_request() {
    let mut world = World::new();
    let named = |name: &str| changed(spec("h100:1"), |spec| spec.name = name.into());
    let jobs: Vec<JobId> = ["one", "two", "three"]
        .map(|name| world.submit(named(name)))
        .to_vec();
    let db = Connection::open(world.store.path()).unwrap();
    let rows: u32 = db
        .query_row("SELECT count(*) FROM specs", [], |row| row.get(0))
        .unwrap();
    assert_eq!(rows, 1);
    world.assert_comes_back();
    let world = world.reopen();
    let specs: Vec<_> = jobs
        .iter()
        .map(|job| world.state.jobs.get(*job).unwrap().spec.clone())
        .collect();
    assert_eq!(
        specs
            .iter()
            .map(|spec| spec.name.as_str())
            .collect::<Vec<_>>(),
        ["one", "two", "three"]
    );
    assert!(
        specs[0].common.is_same(&specs[2].common)
            && specs[0].launch.around.is_same(&specs[1].launch.around)
    );
}

#[tokio::test]
async fn what_checks_of_a_gpu_found_comes_back_in_its_history_and_only_the_newest_is_kept() {
    let mut world = World::new();
    let terms = Diagnostics {
        idle_after_secs: 0,
        every_secs: 1,
        ..Diagnostics::default()
    };
    let config = ClusterConfig {
        diagnostics: Some(terms),
        ..(*world.state.config).clone()
    };
    world.input(Input::Configure {
        config: Arc::new(config),
    });
    let node = world.add_node("node1", 1);
    for round in 0..500 {
        world.now = world.now.plus_secs(60);
        world.input(Input::Wake);
        let order = gcore::ctl::desired(&world.state, node).gpus.remove(0);
        let result = CheckResult {
            check: "pcie".into(),
            value_micro: Some(round * 1_000_000),
            unit: "GB/s".into(),
            ..CheckResult::default()
        };
        let report = CheckReport {
            results: vec![result],
            took_ms: 1500,
            ..CheckReport::default()
        };
        let done = GpuOrderDone {
            check: Some(Box::new(report)),
            ..GpuOrderDone::new(&order, "")
        };
        world.report(node, NodeReport::GpuOrders { done: vec![done] });
    }
    world.assert_comes_back();
    let lines = world
        .reader()
        .gpu_history("GPU-node1".into())
        .await
        .unwrap();
    let checked: Vec<&str> = lines
        .iter()
        .filter(|line| line.kind == "checked")
        .map(|line| line.text.as_str())
        .collect();
    assert_eq!(
        (checked.len(), checked[0], checked[399]),
        (400, "pcie 100 GB/s; in 1.5 s", "pcie 499 GB/s; in 1.5 s")
    );
    assert_eq!(lines[0].kind, "appeared");
}

#[test]
fn jobs_that_ended_within_min_job_age_are_in_memory_after_a_start() {
    let mut world = World::new();
    let node = world.add_node("node1", 8);
    let ended: Vec<JobId> = (0..3)
        .map(|_| {
            let job = world.submit(spec("h100:1"));
            world.start(node, job);
            world.end(node, job);
            world.now = world.now.plus_secs(140);
            job
        })
        .collect();
    world.submit(spec("h100:1"));
    let found = |world: &World, age_secs: u32| {
        let copy = tempfile::tempdir().unwrap();
        backup(world.store.path(), &copy.path().join(DATABASE)).unwrap();
        let (_store, state) = Store::open(copy.path(), "test", age_secs).unwrap();
        ended
            .iter()
            .filter(|job| state.jobs.contains(**job))
            .count()
    };
    assert_eq!(
        [0, 150, 300, 3600].map(|age| found(&world, age)),
        [0, 1, 2, 3]
    );
}
