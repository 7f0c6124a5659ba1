//! The database as a file: locked, newer, damaged, restored, of another release.

use super::*;

#[test]
fn one_state_directory_has_one_controller() {
    let world = World::new();
    let error = Store::open_or_make(world.dir.path())
        .unwrap_err()
        .to_string();
    assert!(error.contains("another gpuctld has"), "{error}");
    world.reopen();
}

#[test]
fn a_newer_database_is_refused_and_not_touched() {
    let world = World::new();
    let path = world.store.path().to_owned();
    world.store.close().unwrap();
    let db = Connection::open(&path).unwrap();
    db.pragma_update(None, "user_version", SCHEMA + 1).unwrap();
    db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
        .unwrap();
    drop(db);
    let look = || {
        let mut files: Vec<_> = std::fs::read_dir(world.dir.path())
            .unwrap()
            .map(|entry| {
                let path = entry.unwrap().path();
                (path.clone(), std::fs::read(path).unwrap())
            })
            .collect();
        files.sort();
        files
    };
    let before = look();
    let error = Store::open_or_make(world.dir.path())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("from a newer release") && error.contains("Nothing was changed"),
        "{error}"
    );
    assert!(before == look(), "a file was changed or made");
}

#[test]
fn a_damaged_database_points_to_the_backup() {
    let mut world = World::new();
    for _ in 0..300 {
        world.submit(spec("h100:1"));
    }
    let path = world.store.path().to_owned();
    world.store.close().unwrap();
    let whole = std::fs::read(&path).unwrap();
    let mut damages = vec![b"this is no database at all, but it is longer than a header of SQLite would be, which has 100 bytes".to_vec()];
    let mut torn = whole.clone();
    torn[4096..].fill(0xa5);
    damages.push(torn);
    for bytes in damages {
        std::fs::write(&path, bytes).unwrap();
        let error = Store::open_or_make(world.dir.path())
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("is damaged") && error.contains("gpuctld restore --from"),
            "{error}"
        );
        for end in ["-wal", "-shm"] {
            let _ = std::fs::remove_file(format!("{}{end}", path.display()));
        }
    }
    std::fs::write(&path, whole).unwrap();
    Store::open_or_make(world.dir.path()).unwrap();
}

#[test]
fn another_programs_database_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(DATABASE);
    let db = Connection::open(&path).unwrap();
    db.execute_batch("CREATE TABLE recipes (name TEXT)")
        .unwrap();
    drop(db);
    let before = std::fs::read(&path).unwrap();
    let error = Store::open_or_make(dir.path()).unwrap_err().to_string();
    assert!(error.contains("another program"), "{error}");
    assert_eq!(before, std::fs::read(&path).unwrap());
}

#[test]
fn a_restored_backup_gives_no_id_and_no_incarnation_twice() {
    let mut world = World::new();
    let node = world.add_node("node1", 8);
    let kept = world.submit(spec("h100:1"));
    let copies = tempfile::tempdir().unwrap();
    let file = copies.path().join("backup.db");
    backup(world.store.path(), &file).unwrap();
    assert!(matches!(
        backup(world.store.path(), &file),
        Err(BackupError::Exists(_))
    ));
    let later = world.submit(spec("h100:1"));
    let dir = world.dir.path().to_owned();
    assert!(
        restore(&dir, &file, "test")
            .unwrap_err()
            .to_string()
            .contains("another gpuctld has")
    );
    world.store.close().unwrap();
    let mut incarnations = vec![world.state.incarnation];
    for _ in 0..2 {
        let former = restore(&dir, &file, "test").unwrap().unwrap();
        assert!(former.exists());
        let (store, state) = Store::open_or_make(&dir).unwrap();
        assert!(
            state.jobs.contains(kept) && !state.jobs.contains(later) && state.nodes.contains(node)
        );
        assert!(
            state.next_job > later.0 + 900_000,
            "next id {}",
            state.next_job
        );
        incarnations.push(state.incarnation);
        store.close().unwrap();
    }
    assert!(incarnations.is_sorted_by(|a, b| a < b), "{incarnations:?}");
}

#[test]
fn a_database_that_was_there_is_never_made_anew() {
    let dir = tempfile::tempdir().unwrap();
    drop(Store::open_or_make(dir.path()).unwrap());
    drop(crate::pki::Pki::open(dir.path(), "test").unwrap());
    drop(Store::open_or_make(dir.path()).expect("it is there"));
    let path = dir.path().join(open::DATABASE);
    std::fs::write(&path, "").unwrap();
    let emptied = Store::open_or_make(dir.path()).unwrap_err().to_string();
    std::fs::remove_file(&path).unwrap();
    let gone = Store::open_or_make(dir.path()).unwrap_err().to_string();
    for error in [emptied, gone] {
        assert!(
            error.contains("gone or empty") && error.contains("gpuctld restore --from"),
            "{error}"
        );
    }
    assert!(!path.exists(), "nothing was made");
}

#[test]
fn a_damaged_backup_is_not_restored() {
    let mut world = World::new();
    for _ in 0..300 {
        world.submit(spec(""));
    }
    let copies = tempfile::tempdir().unwrap();
    let file = copies.path().join("backup.db");
    backup(world.store.path(), &file).unwrap();
    world.store.close().unwrap();
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..].fill(0x5a);
    std::fs::write(&file, bytes).unwrap();
    let error = restore(world.dir.path(), &file, "test")
        .unwrap_err()
        .to_string();
    assert!(error.contains("is damaged"), "{error}");
    let (_store, state) = Store::open_or_make(world.dir.path()).unwrap();
    assert_eq!(state.jobs.len(), 300, "the database is as it was");
}

/// Where the databases of released schemas are kept, one each: `schema-N.db`.
const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures");

/// A database with one of everything.
fn write_fixture(path: &Path) {
    let mut world = World::new();
    let node = world.add_node("node1", 8);
    let done = world.submit(spec("h100:1"));
    world.start(node, done);
    world.end(node, done);
    let running = world.submit(spec("h100:2"));
    world.start(node, running);
    world.submit(array("0-99%5"));
    world.command(Command::Hold {
        targets: vec![Target::Job(JobId(3))],
        reason: "wait".into(),
        for_owner: false,
    });
    world.plan();
    let db = Connection::open(world.store.path()).unwrap();
    db.execute("VACUUM INTO ?1", [path.to_str().unwrap()])
        .unwrap();
}

#[test]
fn a_new_database_has_large_pages_and_one_that_is_there_keeps_its_own() {
    let page_bytes = |store: &Store| {
        Connection::open(store.path())
            .unwrap()
            .pragma_query_value(None, "page_size", |row| row.get::<_, u32>(0))
            .unwrap()
    };
    let world = World::new();
    assert_eq!(page_bytes(&world.store), 8192);
    let dir = tempfile::tempdir().unwrap();
    std::fs::copy(
        Path::new(FIXTURES).join("schema-1.db"),
        dir.path().join(DATABASE),
    )
    .unwrap();
    let (store, _) = Store::open_or_make(dir.path()).unwrap();
    assert_eq!(page_bytes(&store), 4096);
}

#[test]
fn databases_of_every_released_schema_are_read() {
    let newest = Path::new(FIXTURES).join(format!("schema-{SCHEMA}.db"));
    if !newest.exists() {
        write_fixture(&newest);
        panic!(
            "{} was not there and has been written: commit it",
            newest.display()
        );
    }
    for schema in 1..=SCHEMA {
        let dir = tempfile::tempdir().unwrap();
        let fixture = Path::new(FIXTURES).join(format!("schema-{schema}.db"));
        std::fs::copy(&fixture, dir.path().join(DATABASE)).unwrap();
        let (store, state) = Store::open_or_make(dir.path()).unwrap();
        assert_eq!(gcore::ctl::check(&state), [], "{}", fixture.display());
        assert_eq!(state.jobs.get(JobId(2)).unwrap().state, JobState::Running);
        assert_eq!(state.jobs.get(JobId(2)).unwrap().spec.user.name, "alice");
        assert_eq!(state.arrays.get(JobId(3)).unwrap().holds.len(), 1);
        assert_eq!(
            (state.runs.len(), state.nodes.len(), state.next_job),
            (1, 1, 103)
        );
        assert_eq!(state.nodes.values().next().unwrap().gpus.len(), 8);
        let reader = Reader::new(store.path());
        let rows = wait(reader.runs(all(), START)).unwrap();
        assert_eq!(
            (rows[0].id, rows[0].state, rows[0].exit_code),
            (1, JobState::Failed, ExitCode::exited(3))
        );
        assert_eq!(
            (rows[0].gpus.as_str(), rows[0].nodelist.as_str()),
            ("h100:1", "node1")
        );
    }
}

#[test]
fn a_batch_that_met_a_full_disk_is_written_again_whole() {
    let mut world = World::new();
    let pages: u32 = world
        .store
        .writer
        .db
        .pragma_query_value(None, "page_count", |row| row.get(0))
        .unwrap();
    world
        .store
        .writer
        .db
        .pragma_update(None, "max_page_count", pages)
        .unwrap();
    let script = Blob {
        sha: [7; 32],
        data: vec![1; 100_000],
    };
    let mut batch = Batch {
        blobs: vec![script.clone()],
        now: world.now,
        ..Batch::default()
    };
    let mut asked = spec("h100:1");
    asked.launch.script = script.id();
    let submit = Input::Command {
        actor: alice(),
        command: Command::Submit {
            spec: Box::new(asked),
            client_key: None,
        },
    };
    handle(&mut world.state, &mut batch.events, submit, world.now).unwrap();
    for _ in 0..2 {
        let error = world.store.write(&world.state, &batch).unwrap_err();
        assert!(error.is_full() && !error.is_damage(), "{error:?}");
    }
    world
        .store
        .writer
        .db
        .pragma_update(None, "max_page_count", 1_000_000)
        .unwrap();
    world.store.write(&world.state, &batch).unwrap();
    assert_eq!(
        wait(world.reader().blob(script.id())).unwrap(),
        Some(script.data)
    );
    world.assert_comes_back();
}
