//! A full disk, a wrong database, a lost one: the controller says what is the matter, loses nothing that it acknowledged,
//! and the nodes' jobs go on meanwhile.

use gmodel::JobState::{Completed, Failed, Running};
use gpupool_tests::pool::{CommandOutput, Pool, is_alive, say};
use std::fs;
use std::path::{Path, PathBuf};

/// The controller's exit code when starting it again cannot help: systemd does not (RestartPreventExitStatus).
const GIVES_UP: i32 = 74;

fn database(pool: &Pool) -> PathBuf {
    pool.dir.join("gpuctld/state/gpupool.db")
}

/// The name and content of every file in the state directory.
fn state_files(pool: &Pool) -> Vec<(PathBuf, Vec<u8>)> {
    let mut files: Vec<_> = fs::read_dir(pool.dir.join("gpuctld/state"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_file())
        .collect();
    files.sort();
    files
        .into_iter()
        .map(|path| (path.clone(), fs::read(&path).unwrap()))
        .collect()
}

/// Runs the controller in the foreground until it gives up.
fn run_controller(pool: &Pool) -> CommandOutput {
    say(pool
        .command("gpuctld")
        .args(["run"])
        .arg("--config")
        .arg(pool.config("gpuctld")))
}

#[test]
fn a_full_disk_refuses_commands_by_name_answers_reads_and_loses_nothing() {
    let Some(pool) = Pool::up(1, "h100:1") else {
        return;
    };
    let state = pool.dir.join("gpuctld/state");
    pool.kill("gpuctld");
    mount_small(&state, "size=48m,mode=700");
    let config = fs::read_to_string(pool.config("gpuctld")).unwrap();
    fs::write(
        pool.config("gpuctld"),
        config.replace("min_free = \"64M\"", "min_free = \"8M\""),
    )
    .unwrap();
    pool.start("gpuctld");
    pool.wait_idle("node1");
    let running = pool.gsub(&[
        "--gpus",
        "1",
        "--wrap",
        "touch up; while [ ! -e go ]; do sleep 0.02; done; exit 5",
    ]);
    pool.wait_until("it runs", || pool.work.join("up").exists());
    let before = pool.gsub(&["--hold", "--wrap", "true"]);
    let controller = pool.daemon_pid("gpuctld");

    // Others fill the disk, down to less than min_free but not to nothing.
    let filler = state.join("filler");
    let free = || {
        let found = nix::sys::statvfs::statvfs(&state).unwrap();
        found.blocks_available() * found.fragment_size()
    };
    fs::write(
        &filler,
        vec![1; usize::try_from(free() - (4 << 20)).unwrap()],
    )
    .unwrap();
    let mut refused = None;
    pool.wait_until("submissions are refused", || {
        let said = pool.run("gsub", &["--hold", "--wrap", "true"]);
        let over = said.code != 0;
        refused = Some(said);
        over
    });
    refused
        .expect("one at least")
        .fails_with(1, &state.display().to_string());
    pool.run("gdel", &[&before.to_string()])
        .fails_with(1, &state.display().to_string());
    assert_eq!(pool.run("gq", &["-h"]).code, 0);
    assert_eq!(pool.job(running).state, Running);
    // Reports of nodes are still taken: the job's end is known.
    pool.write("go", "");
    assert_eq!(pool.wait_state(running, Failed).exit_code.code, 5);

    // Then to the last byte. Whatever the controller does, what it acknowledged is there afterwards.
    let _ = fs::write(state.join("filler2"), vec![1; 64 << 20]);
    assert_eq!(free(), 0);
    let _ = pool.run("gq", &["-h"]);
    fs::remove_file(state.join("filler2")).unwrap();
    fs::remove_file(&filler).unwrap();
    if !is_alive(controller) {
        pool.start("gpuctld");
    }
    let mut after = None;
    pool.wait_until("submissions are taken again", || {
        let said = pool.run("gsub", &["--wrap", "true"]);
        let over = said.code == 0;
        after = Some(said);
        over
    });
    pool.wait_state(after.expect("one").id(), Completed);
    assert!(
        pool.job(before).state == gmodel::JobState::Pending && pool.job(running).state == Failed
    );
    pool.check();
}

#[test]
fn a_database_of_a_newer_release_is_not_touched_and_running_jobs_do_not_care() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    let id = pool.gsub(&[
        "--wrap",
        "touch up; while [ ! -e go ]; do sleep 0.02; done; exit 6",
    ]);
    pool.wait_until("it runs", || pool.work.join("up").exists());
    pool.kill("gpuctld");
    let version: u32 = {
        let db = rusqlite::Connection::open(database(&pool)).unwrap();
        db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
            .unwrap();
        let version = db
            .query_row("PRAGMA user_version", [], |row| row.get(0))
            .unwrap();
        db.pragma_update(None, "user_version", 999).unwrap();
        version
    };
    let before = state_files(&pool);
    let said = run_controller(&pool);
    said.fails_with(GIVES_UP, "gpupool.db");
    assert!(
        said.err.contains("newer") && said.err.contains("999"),
        "{said:?}"
    );
    assert!(
        before == state_files(&pool),
        "the refused database was changed"
    );
    rusqlite::Connection::open(database(&pool))
        .unwrap()
        .pragma_update(None, "user_version", version)
        .unwrap();
    pool.write("go", "");
    pool.start("gpuctld");
    let job = pool.wait_state(id, Failed);
    assert_eq!((job.exit_code.code, job.attempts), (6, 1));
}

#[test]
fn a_corrupt_database_says_so_and_points_to_the_backup() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    let backup = pool.work.join("backup.db");
    assert_eq!(
        pool.run("gadm", &["backup", backup.to_str().unwrap()]).code,
        0
    );
    pool.kill("gpuctld");
    for (what, damage) in [("header", 0..200), ("schema", 100..4096)] {
        let mut bytes = fs::read(database(&pool)).unwrap();
        bytes[damage].fill(0x5a);
        fs::write(database(&pool), bytes).unwrap();
        let said = run_controller(&pool);
        assert_eq!(said.code, GIVES_UP, "{what}: {said:?}");
        assert!(
            said.err.contains("gpupool.db") && said.err.contains("restore"),
            "{what}: {said:?}"
        );
        let said = pool.run(
            "gadm",
            &[
                "restore",
                "--config",
                pool.config("gpuctld").to_str().unwrap(),
                backup.to_str().unwrap(),
            ],
        );
        assert_eq!(said.code, 0, "{what}: {said:?}");
    }
    pool.start("gpuctld");
    let id = pool.gsub(&["--wrap", "true"]);
    pool.wait_state(id, Completed);
    // What is no backup is not restored.
    pool.kill("gpuctld");
    let nonsense = pool.write("nonsense.db", "not a database");
    let before = state_files(&pool);
    let said = pool.run(
        "gadm",
        &[
            "restore",
            "--config",
            pool.config("gpuctld").to_str().unwrap(),
            nonsense.to_str().unwrap(),
        ],
    );
    assert!(
        said.code == 1 && said.err.contains("nonsense.db"),
        "{said:?}"
    );
    assert!(before == state_files(&pool));
    pool.start("gpuctld");
    assert_eq!(pool.job(id).state, Completed);
}

#[test]
fn after_a_restore_no_id_is_given_again_and_runs_the_backup_does_not_know_go_on() {
    let Some(pool) = Pool::up(1, "h100:4") else {
        return;
    };
    let waits = |code: u32| {
        format!("echo $$ > pid.$GSUB_JOB_ID; while [ ! -e go ]; do sleep 0.02; done; exit {code}")
    };
    let known = pool.gsub(&["--gpus", "1", "--mem", "1G", "--wrap", &waits(5)]);
    pool.wait_file(&format!("pid.{known}"));
    let held = pool.gsub(&[
        "--hold",
        "--wrap",
        "echo \"[$SLURM_RESTART_COUNT]\" >> counts",
    ]);
    let backup = pool.work.join("backup.db");
    let said = pool.run("gadm", &["backup", backup.to_str().unwrap()]);
    assert_eq!(said.code, 0, "{said:?}");
    assert_eq!(
        fs::metadata(&backup)
            .map(|file| std::os::unix::fs::PermissionsExt::mode(&file.permissions()) & 0o777)
            .unwrap(),
        0o600
    );
    pool.run("gadm", &["backup", backup.to_str().unwrap()])
        .fails_with(1, "backup.db");
    // After the backup: one that runs on, one that ends before the restore, some that only wait.
    let unknown = pool.gsub(&["--gpus", "1", "--mem", "1G", "--wrap", &waits(6)]);
    pool.wait_file(&format!("pid.{unknown}"));
    let last = (0..5)
        .map(|_| pool.gsub(&["--hold", "--wrap", "true"]))
        .last()
        .unwrap();
    let pids = [known, unknown].map(|id| {
        pool.file(&format!("pid.{id}"))
            .trim()
            .parse::<i32>()
            .unwrap()
    });
    let restore = [
        "restore",
        "--config",
        pool.config("gpuctld").to_str().unwrap(),
        backup.to_str().unwrap(),
    ]
    .map(str::to_owned);
    let restore: Vec<&str> = restore.iter().map(String::as_str).collect();
    let running = pool.run("gadm", &restore);
    assert_eq!(
        running.code, 1,
        "a database in use was replaced: {running:?}"
    );
    pool.kill("gpuctld");
    let said = pool.run("gadm", &restore);
    assert_eq!(said.code, 0, "{said:?}");
    pool.start("gpuctld");
    pool.wait_until("the node reports", || pool.node("node1").state == "MIXED");
    let next = pool.gsub(&["--hold", "--wrap", "true"]);
    // A number that a node reports was assigned; a million above it was never seen.
    assert!(
        next > last && next > unknown + 999_999,
        "{next} after {last}"
    );
    pool.wait_until("the run that the backup does not know is adopted", || {
        pool.find_job(&unknown.to_string())
            .is_some_and(|job| job.state == Running)
    });
    assert!(
        pids.iter().all(|pid| is_alive(*pid)),
        "a restore ended a job"
    );
    // Neither a new job nor one that waited was started before, whatever the numbers of their attempts.
    assert_eq!(
        pool.run("gadm", &["job", "release", &held.to_string()])
            .code,
        0
    );
    let new = pool.gsub(&["--wrap", "echo \"[$SLURM_RESTART_COUNT]\" >> counts"]);
    pool.wait_state(held, Completed);
    pool.wait_state(new, Completed);
    assert_eq!(pool.file("counts"), "[]\n[]\n");
    pool.write("go", "");
    assert_eq!(pool.wait_state(known, Failed).exit_code.code, 5);
    assert_eq!(pool.wait_state(unknown, Failed).exit_code.code, 6);
    pool.wait_idle("node1");
    pool.check();
}

#[test]
fn a_full_spool_takes_no_new_run_and_still_records_the_end_of_the_old() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    pool.kill("node1");
    let spool = pool.dir.join("node1/spool");
    mount_small(&spool, "size=80m,mode=711");
    pool.start("node1");
    pool.wait_idle("node1");
    let id = pool.gsub(&[
        "-o",
        "/dev/null",
        "--wrap",
        "touch up; while [ ! -e go ]; do sleep 0.02; done; exit 7",
    ]);
    pool.wait_until("it runs", || pool.work.join("up").exists());
    let _ = fs::write(spool.join("filler"), vec![1; 96 << 20]);
    pool.wait_until("the node says so", || {
        pool.node("node1").unfit.contains("spool full")
    });
    let next = pool.gsub(&["-o", "/dev/null", "--wrap", "touch next"]);
    pool.write("go", "");
    let job = pool.wait_state(id, Failed);
    assert_eq!(
        (job.exit_code.code, pool.job(next).state),
        (7, gmodel::JobState::Pending)
    );
    fs::remove_file(spool.join("filler")).unwrap();
    pool.wait_state_through(next, Completed);
    assert!(pool.work.join("next").exists());
    pool.wait_until("the node takes work again", || {
        pool.node("node1").state == "IDLE"
    });
}

/// Puts a small file system in the place of a directory, with what was in it. `down` unmounts it.
fn mount_small(at: &Path, options: &str) {
    let kept = at.with_extension("on-disk");
    fs::rename(at, &kept).unwrap();
    fs::create_dir(at).unwrap();
    nix::mount::mount(
        Some("gpupool-test"),
        at,
        Some("tmpfs"),
        nix::mount::MsFlags::empty(),
        Some(options),
    )
    .unwrap();
    assert_eq!(
        say(std::process::Command::new("cp")
            .arg("-a")
            .arg(kept.join("."))
            .arg(at))
        .code,
        0
    );
}
