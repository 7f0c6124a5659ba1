//! The checkpoint contract end to end: a job that gives way is asked, marks, goes, and comes back to its mark.

use gmodel::JobState::{Completed, Pending, Running};
use gpupool_tests::pool::{Pool, programs, say};

/// Works until it is asked; marks when the file `may-mark` is there, with `gsub` as its user would; the attempt that finds
/// a mark is the last.
const WORKER: &str = "echo \"attempt $GSUB_ATTEMPT from ${GSUB_LAST_MARK:-nothing}\"\n\
     [ -n \"$GSUB_LAST_MARK\" ] && exit 0\n\
     trap 'echo asked; echo asked > asked' USR1\n\
     trap 'echo ended; exit 1' TERM\n\
     echo begun > begun\n\
     while :; do\n\
       if [ -e asked ] && [ -e may-mark ]; then rm asked; ./gsub --mark epoch 40; echo \"marked: $?\"; fi\n\
       sleep 0.05\n\
     done\n";

/// Nodes of one GPU, all guaranteed to `owners`; both accounts are open to all users.
fn pool(nodes: u32) -> Option<Pool> {
    let pool = Pool::up(nodes, "h100:1")?;
    gadm(&pool, &format!("account add owners guaranteed=gpu:{nodes}"));
    gadm(&pool, "account add guests");
    for user in ["root", &pool.person().name] {
        gadm(&pool, &format!("user add {user} account=guests"));
        gadm(&pool, &format!("user add {user} account=owners"));
    }
    // Where its user may run it.
    pool.write("gsub", std::fs::read(programs().join("gsub")).unwrap());
    pool.write("worker.sh", format!("#!/bin/sh\n{WORKER}"));
    Some(pool)
}

fn gadm(pool: &Pool, words: &str) {
    let said = pool.run("gadm", &words.split_whitespace().collect::<Vec<_>>());
    assert_eq!(said.code, 0, "gadm {words}: {said:?}");
}

const GUEST: [&str; 9] = [
    "-A",
    "guests",
    "--gpus",
    "1",
    "-o",
    "out",
    "--checkpoint",
    "USR1@600",
    "worker.sh",
];
const OWNER: [&str; 6] = [
    "-A",
    "owners",
    "--gpus",
    "1",
    "--wrap",
    "while [ ! -e over ]; do sleep 0.05; done",
];

#[test]
fn a_job_on_borrowed_gpus_marks_its_checkpoint_gives_way_and_goes_on_from_it() {
    let Some(pool) = pool(1) else { return };
    pool.write("may-mark", "");
    let guest = pool.run_as_user("gsub", &GUEST).id();
    pool.wait_file("begun");
    let owner = pool.gsub(&OWNER);
    pool.wait_state(owner, Running);
    let lines = |text: &str| {
        text.lines()
            .filter(|line| *line != "Terminated")
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        lines(&pool.file("out")),
        ["attempt 1 from nothing", "asked", "marked: 0", "ended"]
    );
    assert_eq!(
        pool.job(guest).state,
        Pending,
        "it waits for its turn again"
    );
    pool.write("over", "");
    pool.wait_state(owner, Completed);
    pool.wait_state(guest, Completed);
    let out = pool.file("out");
    assert!(
        out.ends_with("attempt 2 from 1 epoch 40\n") && out.starts_with("attempt 1"),
        "{out}"
    );
    pool.check();
    pool.down();
}

#[test]
fn a_node_that_holds_no_process_takes_the_first_no_time_for_its_checkpoint() {
    let Some(pool) = pool(2) else { return };
    let guest = pool
        .run_as_user(
            "gsub",
            &[
                &["-N", "2", "--gpus-per-node", "1"],
                &GUEST[..2],
                &GUEST[4..],
            ]
            .concat(),
        )
        .id();
    pool.wait_file("begun");
    let owner = pool.gsub(
        &[
            &["-N", "2", "--gpus-per-node", "1"],
            &OWNER[..2],
            &OWNER[4..],
        ]
        .concat(),
    );
    let log = || pool.run("gq", &["--log", &guest.to_string()]).out;
    pool.wait_until("both nodes were told", || {
        log().matches("asked for a checkpoint: ").count() == 2
    });
    pool.wait_until("the second has nothing to wait for", || {
        log().contains("the end of its last process")
    });
    pool.wait_file("asked");
    let on_first = |line: &&str| line.starts_with("node1: ") && line.contains("SIGTERM");
    assert_eq!(log().lines().filter(on_first).count(), 0, "{}", log());
    pool.write("may-mark", "");
    pool.wait_state(owner, Running);
    assert!(
        pool.file("out").contains("marked: 0\n"),
        "{}",
        pool.file("out")
    );
    pool.write("over", "");
    pool.wait_state(guest, Completed);
    pool.check();
    pool.down();
}

#[test]
fn the_example_loses_nothing() {
    let Some(pool) = pool(1) else { return };
    let example =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../etc/examples/counting.sh");
    pool.write("counting.sh", std::fs::read(example).unwrap());
    let mut gsub = pool.user_command("gsub");
    let path = format!("{}:/usr/bin:/bin", pool.work.display());
    let guest = say(gsub
        .args(["-A", "guests", "counting.sh"])
        .env("PATH", path)
        .env("COUNT_TO", "40"))
    .id();
    assert_eq!(pool.wait_file("counting.out"), "counts from 0\n");
    let owner = pool.gsub(&OWNER);
    pool.wait_state(owner, Running);
    let saved: u32 = pool
        .file(&format!("counting-{guest}.state"))
        .trim()
        .parse()
        .expect("a number was saved");
    pool.write("over", "");
    pool.wait_state(guest, Completed);
    let out = pool.file("counting.out");
    let rest = format!(
        "attempt 2 goes on from {saved}, after mark 1 at {saved}\ncounts from {saved}\ncounted to 40\n"
    );
    assert!(out.ends_with(&rest), "{out}");
    pool.down();
}

#[test]
fn daemons_that_are_killed_in_the_grace_forget_neither_that_it_was_asked_nor_the_mark() {
    let Some(pool) = pool(1) else { return };
    let guest = pool.run_as_user("gsub", &GUEST).id();
    pool.wait_file("begun");
    let owner = pool.gsub(&OWNER);
    pool.wait_file("asked");
    // It marks while only its supervisor is there.
    pool.kill("gpuctld");
    pool.kill("node1");
    pool.write("may-mark", "");
    pool.wait_until("it has marked and is over", || {
        pool.file("out").ends_with("ended\n")
    });
    pool.start("gpuctld");
    pool.start("node1");
    pool.wait_state(owner, Running);
    pool.write("over", "");
    pool.wait_state(guest, Completed);
    let out = pool.file("out");
    assert_eq!(out.matches("asked\n").count(), 1, "{out}");
    assert!(
        out.contains("marked: 0\n") && out.ends_with("attempt 2 from 1 epoch 40\n"),
        "{out}"
    );
    pool.check();
    pool.down();
}

#[test]
fn a_mark_outside_a_job_is_refused_with_what_to_do() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    pool.run("gsub", &["--mark", "epoch 1"]).fails_with(
        1,
        "--mark works inside a job: GSUB_MARK_SOCKET is not set here",
    );
    pool.down();
}
