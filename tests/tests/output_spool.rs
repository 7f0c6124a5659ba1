//! Outputs in spools: written on the node, bounded, kept by the controller, whole whatever is killed.

use gmodel::JobState::{Cancelled, Completed, Pending, Running};
use gpupool_tests::followed_output::follow_over_kills;
use gpupool_tests::pool::Pool;
use std::path::PathBuf;
use std::process::Stdio;

/// A pool whose jobs write to spools.
fn spooling_pool(nodes: u32, lines: &str) -> Option<Pool> {
    let pool = Pool::up(nodes, "none")?;
    pool.reconfigure("gpuctld", &format!("output = \"spool\"\n{lines}"));
    Some(pool)
}

fn kept(pool: &Pool, name: &str) -> PathBuf {
    let job = name.split('-').next().unwrap();
    pool.dir.join("gpuctld/state/outputs").join(job).join(name)
}

fn spooled(pool: &Pool, node: &str, name: &str) -> PathBuf {
    pool.dir.join(node).join("spool/outputs").join(name)
}

fn output(pool: &Pool, id: u64) -> String {
    let said = pool.run("gq", &["--output", &id.to_string()]);
    assert_eq!(said.code, 0, "{said:?}");
    said.out
}

#[test]
fn an_output_goes_to_the_spool_and_is_read_there_and_at_the_controller() {
    let Some(pool) = spooling_pool(1, "") else {
        return;
    };
    let script = "echo out; echo err >&2; echo by name > /dev/stdout; while [ ! -e go ]; do sleep 0.1; done; echo end";
    let id = pool
        .run_as_user("gsub", &["-o", "o-%j", "-e", "e-%j", "--wrap", script])
        .id();
    pool.wait_until("its first lines", || {
        pool.run_as_user("gq", &["--output", &id.to_string()]).out == "out\nby name\n"
    });
    let name = id.to_string();
    assert_eq!(
        pool.run_as_user("gq", &["--stderr", "--output", &name]).out,
        "err\n"
    );
    let mut follow = pool.command("gq");
    follow.args(["--follow", &name]).stdout(Stdio::piped());
    let follow = follow.spawn().unwrap();
    pool.run_shell("touch go");
    let said = follow.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&said.stdout), "out\nby name\nend\n");
    pool.wait_state(id, Completed);
    pool.wait_until("both are at the controller", || {
        kept(&pool, &format!("{id}-1.out")).exists() && kept(&pool, &format!("{id}-1.err")).exists()
    });
    // The node is not needed any more.
    pool.kill("node1");
    assert_eq!(
        pool.run_as_user("gq", &["--output", &name]).out,
        "out\nby name\nend\n"
    );
    assert_eq!(
        pool.run_as_user("gq", &["--tail", "1", "--output", &name])
            .out,
        "end\n"
    );
    assert_eq!(
        pool.run_as_user("gq", &["--stderr", "--output", &name]).out,
        "err\n"
    );
    assert!(!pool.work.join(format!("o-{id}")).exists());
    pool.start("node1");
    let of_root = pool.gsub(&["--wrap", "echo root"]);
    pool.wait_until("it is at the controller", || {
        kept(&pool, &format!("{of_root}-1.out")).exists()
    });
    assert_eq!(output(&pool, of_root), "root\n");
    let stolen = pool.run_as_user("gq", &["--output", &of_root.to_string()]);
    stolen.fails_with(1, "the output of job");
    assert_eq!(stolen.out, "");
}

#[test]
fn a_missing_directory_sends_the_output_to_the_spool_and_the_bound_is_said() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    pool.reconfigure("gpuctld", "output_max = \"64K\"");
    let job = pool.gsub(&[
        "-o",
        "/nowhere/%j/out",
        "--wrap",
        "seq 100000; echo error >&2; exit 3",
    ]);
    pool.wait_until("its end", || pool.job(job).state.is_final());
    let said = output(&pool, job);
    assert_eq!(said.len(), 64 << 10);
    assert!(said.starts_with("1\n2\n3\n"));
    let last = said.lines().last().unwrap();
    assert_eq!(
        last,
        "[gpupool: the output ends here: 64K is kept of it (output_max)]"
    );
    assert_eq!(pool.job(job).exit_code.to_string(), "3:0");
    let log = pool.run("gq", &["--log", &job.to_string()]).out;
    assert!(log.contains("the output goes to the spool"), "{log}");
    // What may be written is not: a file in a directory of another user stays an error.
    let denied = pool
        .run_as_user("gsub", &["-o", "/root/out", "--wrap", "true"])
        .id();
    pool.wait_until("it failed", || pool.job(denied).state.is_final());
    assert!(pool.job(denied).end_text.contains("Permission denied"));
    // One that never began has none.
    let held = pool.gsub(&["-H", "--wrap", "true"]);
    pool.wait_state(held, Pending);
    pool.run("gdel", &[&held.to_string()]);
    pool.wait_state(held, Cancelled);
    pool.run("gq", &["--output", &held.to_string()])
        .fails_with(1, "never ran, so it has no output");
}

#[test]
fn a_followed_output_is_whole_over_kills_of_every_daemon_and_on_its_way_up() {
    let Some(pool) = spooling_pool(1, "") else {
        return;
    };
    follow_over_kills(&pool, &[]);
    // The controller is gone when the job ends, and killed while it receives.
    let big = pool.gsub(&[
        "--wrap",
        "while [ ! -e go ]; do sleep 0.1; done; seq 3000000",
    ]);
    pool.wait_state(big, Running);
    pool.kill("gpuctld");
    pool.run_shell("touch go");
    let name = format!("{big}-1.out");
    pool.wait_until("it is written", || {
        spooled(&pool, "node1", &name)
            .metadata()
            .is_ok_and(|file| file.len() == 22_888_896)
    });
    let parts = pool.dir.join("gpuctld/state/outputs").join(big.to_string());
    let come = || std::fs::read_dir(&parts).map_or(0, Iterator::count);
    for _ in 0..3 {
        let before = come();
        pool.start("gpuctld");
        // Its next try is not due for a while: another gpud tries at once.
        pool.kill("node1");
        pool.start("node1");
        pool.wait_until("more of it has come", || {
            come() > before || kept(&pool, &name).exists()
        });
        pool.kill("gpuctld");
    }
    pool.start("gpuctld");
    pool.wait_until("the controller has it", || kept(&pool, &name).exists());
    let gq = gpupool_tests::pool::programs().join("gq");
    let gq = gq.display();
    pool.run_shell(&format!(
        "{gq} --output {big} > all; seq 3000000 | cmp - all && echo same > whole"
    ));
    assert_eq!(pool.file("whole"), "same\n");
    // Another gpud sends once more, is told that it is there, and removes the file.
    pool.kill("node1");
    pool.start("node1");
    pool.wait_until("the spool is empty", || {
        !spooled(&pool, "node1", &name).exists()
    });
}

#[test]
fn outputs_of_a_requeued_job_are_one_after_the_other() {
    let Some(pool) = spooling_pool(1, "") else {
        return;
    };
    let script =
        "echo attempt ${SLURM_RESTART_COUNT:-0}; while [ ! -e go ]; do sleep 0.1; done; echo done";
    let job = pool.gsub(&["--requeue", "--wrap", script]);
    let truncating = pool.gsub(&["--requeue", "--open-mode", "truncate", "--wrap", script]);
    for job in [job, truncating] {
        pool.wait_state(job, Running);
        pool.wait_until("its line", || {
            pool.run("gq", &["--output", &job.to_string()])
                .out
                .contains("attempt")
        });
        pool.run("gadm", &["job", "requeue", &job.to_string()]);
        pool.wait_until("it runs again", || {
            let row = pool.job(job);
            row.attempts == 2 && row.state == Running
        });
        pool.wait_until("its first output is kept", || {
            kept(&pool, &format!("{job}-1.out")).exists()
        });
    }
    pool.wait_until("its second line", || {
        pool.run("gq", &["--output", &job.to_string()]).out
            == "attempt 0
attempt 1
"
    });
    pool.run_shell("touch go");
    for job in [job, truncating] {
        pool.wait_state(job, Completed);
        pool.wait_until("all is kept", || {
            kept(&pool, &format!("{job}-2.out")).exists()
        });
    }
    assert_eq!(output(&pool, job), "attempt 0\nattempt 1\ndone\n");
    assert_eq!(output(&pool, truncating), "attempt 1\ndone\n");
}

#[test]
fn a_full_spool_ends_the_output_and_not_the_job() {
    let Some(pool) = spooling_pool(1, "") else {
        return;
    };
    let dir = spooled(&pool, "node1", "");
    let mounted = pool.run_shell(&format!("mount -t tmpfs -o size=1m none {}", dir.display()));
    assert_eq!(mounted.code, 0, "{mounted:?}");
    let job = pool.gsub(&["--wrap", "seq 1000000"]);
    pool.wait_state(job, Completed);
    let said = output(&pool, job);
    assert!(
        said.len() <= 1 << 20 && said.starts_with("1\n2\n"),
        "{}",
        said.len()
    );
    let last = said.lines().last();
    assert_eq!(
        last,
        Some("[gpupool: the output ends here: the node's spool is full]")
    );
    pool.wait_until("it is kept", || {
        kept(&pool, &format!("{job}-1.out")).exists()
    });
    pool.run_shell(&format!("umount -l {}", dir.display()));
}
