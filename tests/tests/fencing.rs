//! A lost node is powered off before its jobs start elsewhere: the site's program fails, hangs, outlives the controller.
//!
//! The node's power is the job's process: it goes on without its daemon, and only the program ends it.

use gmodel::JobState::{Failed, Running};
use gmodel::ReasonCode;
use gpupool_tests::pool::{Pool, is_alive};

/// Fails while `broken` exists, hangs while `hangs` exists (and ends with it), else powers off what `pid.1` names.
const FENCE: &str = r#"#!/bin/sh
cd "${0%/*}" || exit 9
echo "$1 $GPUPOOL_ATTEMPT" >> calls
[ ! -e hangs ] || { while [ -e hangs ]; do sleep 0.05; done; exit 4; }
[ ! -e broken ] || { echo "no route to the BMC of $1" >&2; exit 3; }
kill -9 $(cat pid.1); echo off >> calls
"#;
const JOB: &str = "kill -0 $(cat pid.1) 2>/dev/null && echo \"attempt $GSUB_ATTEMPT beside a live one\" >> twice; \
    echo $$ > pid.$GSUB_ATTEMPT; while [ ! -e go ]; do sleep 0.02; done; exit 5";

/// Starts a job on node1 and kills the daemon there; the process of the job.
fn lost_node(pool: &Pool) -> (u64, i32) {
    let fence = pool.write("fence", FENCE);
    let lines = format!(
        "node_timeout_secs = 1\nkill_grace_secs = 1\nfence_timeout_secs = 1\nfence_program = {:?}",
        fence.display().to_string()
    );
    pool.reconfigure("gpuctld", &lines);
    pool.wait_idle("node1");
    pool.wait_idle("node2");
    let id = pool.gsub(&["--gpus", "1", "--wrap", JOB]);
    let old = pool.wait_file("pid.1").trim().parse().unwrap();
    pool.wait_until("the start is told", || pool.job(id).state == Running);
    assert_eq!(pool.job(id).nodelist, "node1");
    pool.kill("node1");
    (id, old)
}

#[test]
fn the_job_of_a_lost_node_waits_until_the_fence_program_has_ended_well() {
    let Some(pool) = Pool::up(2, "h100:1") else {
        return;
    };
    pool.write("broken", "");
    let (id, old) = lost_node(&pool);
    pool.wait_until("the node says why", || {
        pool.node("node1")
            .lost
            .contains("fence_program ended with 3: no route to the BMC of node1")
    });
    let job = pool.job(id);
    assert_eq!(
        (job.state, job.reason, job.attempts),
        (Running, ReasonCode::NodeDown, 1)
    );
    assert!(
        job.reason_text
            .contains("node1: the node was silent for 1 s; its jobs wait until it is powered off"),
        "{job:?}"
    );
    let said = pool.run("gnodes", &["-h", "-o", "%E"]);
    assert!(said.out.contains("no route to the BMC"), "{said:?}");
    // The next call hangs, and its controller is killed in the middle of it.
    pool.write("hangs", "");
    pool.wait_until("it is called again", || {
        pool.file("calls").lines().count() >= 2
    });
    pool.kill("gpuctld");
    pool.start("gpuctld");
    assert_eq!(pool.job(id).state, Running);
    pool.wait_until("a call of the new controller is given up", || {
        pool.node("node1").lost.contains("did not end within 1 s")
    });
    assert!(
        is_alive(old) && !pool.work.join("pid.2").exists(),
        "it was started twice"
    );
    for trouble in ["hangs", "broken"] {
        std::fs::remove_file(pool.work.join(trouble)).unwrap();
    }
    pool.wait_file("pid.2");
    assert!(
        !is_alive(old) && pool.file("twice").is_empty(),
        "{}",
        pool.file("twice")
    );
    assert!(
        pool.file("calls").ends_with("off\n"),
        "{}",
        pool.file("calls")
    );
    assert!(pool.node("node1").lost.is_empty());
    pool.write("go", "");
    let job = pool.wait_state_through(id, Failed);
    assert_eq!((job.exit_code.code, job.attempts), (5, 2));
    pool.start("node1");
    pool.wait_idle("node1");
    pool.check();
}

#[test]
fn a_node_that_reports_before_it_is_powered_off_keeps_its_job() {
    let Some(pool) = Pool::up(2, "h100:1") else {
        return;
    };
    pool.write("broken", "");
    let (id, old) = lost_node(&pool);
    pool.wait_until("a call has failed", || {
        pool.node("node1").lost.contains("ended with 3")
    });
    pool.start("node1");
    pool.wait_until("it is back", || pool.node("node1").lost.is_empty());
    let calls = pool.file("calls");
    assert!(is_alive(old));
    pool.write("go", "");
    let job = pool.wait_state(id, Failed);
    assert_eq!((job.exit_code.code, job.attempts), (5, 1));
    assert_eq!(pool.file("calls"), calls, "a node that is well was fenced");
    pool.wait_idle("node1");
    pool.check();
}

#[test]
fn an_administrator_who_pulled_the_plug_says_so() {
    let Some(pool) = Pool::up(2, "h100:1") else {
        return;
    };
    pool.write("broken", "");
    let (id, old) = lost_node(&pool);
    pool.wait_until("a call has failed", || {
        pool.node("node1").lost.contains("ended with 3")
    });
    let said = pool.run("gadm", &["node", "resume", "node1"]);
    assert_ne!(said.code, 0, "{said:?}");
    gpupool_tests::pool::kill_process(old);
    let said = pool.run(
        "gadm",
        &[
            "node",
            "down",
            "node1",
            "--fenced",
            "--reason",
            "pulled the plug",
        ],
    );
    assert_eq!(said.code, 0, "{said:?}");
    pool.write("go", "");
    let job = pool.wait_state_through(id, Failed);
    assert_eq!((job.exit_code.code, job.attempts), (5, 2));
    pool.run("gadm", &["node", "down", "node2", "--fenced"])
        .fails_with(1, "node2 is connected");
    pool.start("node1");
    pool.wait_idle("node1");
    pool.check();
}
