//! Allocations: grun outside of a job, salloc, and what becomes of them when the controller or the client dies.

use gmodel::JobState::{Cancelled, Completed, Failed, Pending, Running};
use gpupool_tests::pool::{CommandOutput, Pool, say};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::process::{Child, Stdio};

/// A command that goes on beside the test.
fn begin(pool: &Pool, program: &str, args: &[&str]) -> Child {
    pool.command(program)
        .args(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn outcome(child: Child) -> CommandOutput {
    let output = child.wait_with_output().unwrap();
    CommandOutput {
        code: output.status.code().unwrap_or(-1),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

fn newest(pool: &Pool) -> u64 {
    pool.ids().into_iter().max().expect("a job")
}

#[test]
fn a_command_outside_of_a_job_gets_an_allocation_of_its_own() {
    let Some(pool) = Pool::up(1, "h100:2") else {
        return;
    };
    let script = "echo $SLURM_JOB_ID $SLURM_JOB_NODELIST $SLURM_PROCID of $SLURM_NTASKS; exit 3";
    let said = pool.run(
        "grun",
        &["--gpus", "1", "-n2", "-J", "mine", "sh", "-c", script],
    );
    let id = newest(&pool);
    let mut lines: Vec<&str> = said.out.lines().collect();
    lines.sort_unstable();
    assert_eq!(
        lines,
        [format!("{id} node1 0 of 2"), format!("{id} node1 1 of 2")],
        "{said:?}"
    );
    assert_eq!(said.code, 3, "{said:?}");
    let job = pool.wait_state(id, Failed);
    assert_eq!(
        (job.exit_code.code, job.name.as_str(), job.allocation),
        (3, "mine", true)
    );
    assert_eq!(pool.run("grun", &["true"]).code, 0);
    pool.wait_state(newest(&pool), Completed);

    pool.run("grun", &["--array", "0-3", "true"])
        .fails_with(2, "--array is for a batch script: give it to gsub");
    pool.run("grun", &["-p", "nosuch", "true"])
        .fails_with(1, "no partition \"nosuch\"");
    pool.run("grun", &["--gpus", "9", "true"])
        .fails_with(1, "the largest node");

    let busy = pool.gsub(&["--gpus", "2", "--wrap", "sleep 600"]);
    pool.wait_state(busy, Running);
    pool.run("grun", &["--immediate=1", "--gpus", "2", "true"])
        .fails_with(1, "Requested nodes are busy");
    pool.wait_state(newest(&pool), Cancelled);
    let waits = begin(&pool, "grun", &["--gpus", "2", "true"]);
    pool.wait_until("it waits", || newest(&pool) == busy + 2);
    pool.wait_state(busy + 2, Pending);
    kill(Pid::from_raw(waits.id().cast_signed()), Signal::SIGINT).unwrap();
    outcome(waits).fails_with(130, "has been revoked");
    pool.wait_state(busy + 2, Cancelled);
}

#[test]
fn salloc_runs_a_command_here_and_steps_there() {
    let Some(pool) = Pool::up(1, "h100:2") else {
        return;
    };
    let links = pool.work.join("links");
    let said = pool.run("gadm", &["slurm-names", links.to_str().unwrap()]);
    assert_eq!(said.code, 0, "{said:?}");
    let salloc = links.join("salloc");
    let grun = gpupool_tests::pool::programs().join("grun");
    let script = format!(
        "echo here $SLURM_JOB_ID $SLURM_JOB_NUM_NODES; {} -n1 sh -c 'echo there $SLURM_JOB_ID $SLURM_STEP_ID'; exit 4",
        grun.display()
    );
    let line = |words: &[&str]| {
        let mut command = pool.command("/bin/sh");
        command.args(["-c", "exec \"$@\"", "sh", salloc.to_str().unwrap()]);
        say(command.args(words))
    };
    let said = line(&["--gpus=1", "sh", "-c", &script]);
    let id = newest(&pool);
    assert_eq!(said.out, format!("here {id} 1\nthere {id} 0\n"), "{said:?}");
    assert!(
        said.err
            .contains(&format!("salloc: Granted job allocation {id}\n"))
            && said
                .err
                .ends_with(&format!("salloc: Relinquishing job allocation {id}\n")),
        "{said:?}"
    );
    assert_eq!(said.code, 4);
    assert_eq!(pool.wait_state(id, Failed).exit_code.code, 4);

    let said = line(&["--no-shell", "-t", "5"]);
    assert_eq!(said.code, 0, "{said:?}");
    let left = newest(&pool);
    pool.wait_state(left, Running);
    assert_eq!(pool.run("gdel", &[&left.to_string()]).code, 0);
    pool.wait_state(left, Cancelled);

    let said = pool.run(
        "gsub",
        &["--interactive", "-Q", "sh", "-c", "echo $GSUB_JOB_ID"],
    );
    assert_eq!(
        (said.code, said.out, said.err.as_str()),
        (0, format!("{}\n", left + 1), "")
    );
    pool.wait_state(left + 1, Completed);
}

#[test]
fn an_allocation_outlives_its_controller_and_ends_with_its_client() {
    let Some(pool) = Pool::up(1, "h100:2") else {
        return;
    };
    // The controller dies while the client waits.
    let busy = pool.gsub(&["--gpus", "2", "--wrap", "sleep 600"]);
    pool.wait_state(busy, Running);
    let waits = begin(
        &pool,
        "grun",
        &["--gpus", "2", "sh", "-c", "echo $SLURM_JOB_ID"],
    );
    pool.wait_until("it waits", || newest(&pool) == busy + 1);
    pool.kill("gpuctld");
    pool.start("gpuctld");
    assert_eq!(pool.run("gdel", &[&busy.to_string()]).code, 0);
    let said = outcome(waits);
    assert_eq!(
        (said.code, said.out.as_str()),
        (0, format!("{}\n", busy + 1).as_str()),
        "{said:?}"
    );
    pool.wait_state(busy + 1, Completed);

    // It dies while the step runs, and is away at its end.
    let script = "echo up > up; while [ ! -e go ]; do sleep 0.05; done; exit 6";
    let runs = begin(&pool, "grun", &["--gpus", "1", "sh", "-c", script]);
    pool.wait_file("up");
    pool.kill("gpuctld");
    pool.write("go", "");
    pool.start("gpuctld");
    let said = outcome(runs);
    assert_eq!(said.code, 6, "{said:?}");
    assert_eq!(pool.wait_state(busy + 2, Failed).exit_code.code, 6);

    // The client dies.
    let partitions = pool.config("gpuctld").with_file_name("partitions.d");
    let file = std::fs::read_dir(&partitions)
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let text = std::fs::read_to_string(&file).unwrap();
    let text = text.replacen("default = true", "default = true\ndetached_time = 0", 1);
    std::fs::write(&file, text).unwrap();
    pool.kill("gpuctld");
    pool.start("gpuctld");
    let mut runs = begin(
        &pool,
        "grun",
        &["--gpus", "1", "sh", "-c", "echo up > up2; sleep 600"],
    );
    pool.wait_file("up2");
    runs.kill().unwrap();
    runs.wait().unwrap();
    let job = pool.wait_state(busy + 3, Cancelled);
    assert_eq!(job.end_text, "its client is gone");
    pool.check();
}
