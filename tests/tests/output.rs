//! Output of jobs without a file system that machines share: read by the node as the job's user, relayed, whole whatever is killed.

use gmodel::JobState::{Completed, Running};
use gpupool_tests::followed_output::follow_over_kills;
use gpupool_tests::pool::Pool;
use std::os::unix::fs::{PermissionsExt, symlink};

/// Runs gq where the jobs' directory is hidden.
fn gq_elsewhere(pool: &Pool, line: &str) -> gpupool_tests::pool::CommandOutput {
    let gq = gpupool_tests::pool::programs().join("gq");
    let (gq, work) = (gq.display(), pool.work.display());
    pool.run_shell(&format!(
        "unshare -m sh -c 'mount -t tmpfs none {work} && cd / && {gq} {line}'"
    ))
}

#[test]
fn output_is_read_on_its_node_while_the_job_runs_and_afterwards() {
    let Some(pool) = Pool::up(2, "none") else {
        return;
    };
    let script =
        "echo out; echo err >&2; echo more; while [ ! -e go ]; do sleep 0.1; done; echo end";
    let job = pool.gsub(&["-N2", "-o", "o-%j", "-e", "e-%N", "--wrap", script]);
    pool.wait_state(job, Running);
    pool.wait_until("its first lines", || {
        pool.file(&format!("o-{job}")).ends_with("more\n")
    });
    let id = job.to_string();
    assert_eq!(
        gq_elsewhere(&pool, &format!("--output {id}")).out,
        "out\nmore\n"
    );
    assert_eq!(
        gq_elsewhere(&pool, &format!("--tail 1 --output {id}")).out,
        "more\n"
    );
    assert_eq!(
        gq_elsewhere(&pool, &format!("--stderr --output {id}")).out,
        "err\n"
    );
    let mut follow = pool.command("gq");
    follow
        .args(["--follow", &id])
        .stdout(std::process::Stdio::piped());
    let follow = follow.spawn().unwrap();
    pool.run_shell("touch go");
    let said = follow.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&said.stdout), "out\nmore\nend\n");
    pool.wait_state(job, Completed);
    assert_eq!(
        gq_elsewhere(&pool, &format!("--stderr --output {id}")).out,
        "err\n"
    );
    // Its run is forgotten by then, or not: the file counts.
    std::fs::remove_file(pool.work.join(format!("o-{id}"))).unwrap();
    gq_elsewhere(&pool, &format!("--output {id}")).fails_with(1, "and there is no ");
    let array = pool.gsub(&[
        "-a",
        "1-3%1",
        "-o",
        "a-%a",
        "--wrap",
        "echo task $GSUB_ARRAY_TASK_ID",
    ]);
    for task in 1..=3 {
        let task = format!("{array}_{task}");
        let said = pool.run("gq", &["--follow", &task]);
        assert_eq!(
            said.out,
            format!("task {}\n", &task[task.len() - 1..]),
            "{said:?}"
        );
    }
    let whole = pool.run("gq", &["--follow", &array.to_string()]);
    whole.fails_with(
        1,
        "is an array, and each of its tasks has a file of its own",
    );
}

#[test]
fn a_followed_output_arrives_once_and_in_order_over_kills_of_every_daemon() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    follow_over_kills(&pool, &["-o", "out"]);
    // No reader outlives its client.
    pool.wait_until("no reader", || {
        pool.run_shell("ps -eo args | grep -c '[g]stepd --read-output'")
            .out
            .trim()
            == "0"
    });
}

#[test]
fn an_output_is_read_as_the_jobs_user_and_for_its_owner_and_operators() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    let secret = pool.work.join("secret");
    std::fs::write(&secret, "of root\n").unwrap();
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
    let job = pool
        .run_as_user("gsub", &["-o", "out", "--wrap", "echo mine"])
        .id();
    pool.wait_state(job, Completed);
    let id = job.to_string();
    assert_eq!(pool.run_as_user("gq", &["--output", &id]).out, "mine\n");
    assert_eq!(
        pool.run("gq", &["--output", &id]).out,
        "mine\n",
        "an operator"
    );
    let out = pool.work.join("out");
    std::fs::remove_file(&out).unwrap();
    symlink(&secret, &out).unwrap();
    for said in [
        pool.run_as_user("gq", &["--output", &id]),
        pool.run("gq", &["--output", &id]),
    ] {
        said.fails_with(1, "Permission denied");
        assert_eq!(said.out, "");
    }
    let of_root = pool.gsub(&["-o", "root-out", "--wrap", "echo root"]);
    pool.wait_state(of_root, Completed);
    let stolen = pool.run_as_user("gq", &["--output", &of_root.to_string()]);
    stolen.fails_with(1, "the output of job");
    assert_eq!(stolen.out, "");
}
