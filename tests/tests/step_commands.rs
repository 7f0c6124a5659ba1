//! Commands that reach a step from outside: its end, its output.

use gmodel::JobState::Running;
use gpupool_tests::pool::{CommandOutput, Pool, say};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};

/// A command that goes on beside the test.
fn begin(pool: &Pool, program: &str, args: &[&str]) -> Child {
    pool.command(program)
        .args(args)
        .stdin(Stdio::piped())
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

/// A job on all nodes of the pool that waits for steps.
fn running_job(pool: &Pool, nodes: &str) -> String {
    let id = pool.gsub(&["-N", nodes, "-t", "10", "--wrap", "sleep 600"]);
    pool.wait_state(id, Running);
    id.to_string()
}

#[test]
fn a_step_is_ended_or_signalled_and_its_job_goes_on() {
    let Some(pool) = Pool::up(2, "h100:1") else {
        return;
    };
    pool.reconfigure("gpuctld", "kill_grace_secs = 2");
    let job = running_job(&pool, "2");
    let step = |number: u32| format!("{job}.{number}");
    let on_both = ["--jobid", &job, "-N2", "-n2", "sh", "-c"];
    let started = |script: &str, mark: &str| {
        let child = begin(&pool, "grun", &[&on_both[..], &[script]].concat());
        pool.wait_file(&format!("{mark}.0"));
        pool.wait_file(&format!("{mark}.1"));
        child
    };
    let first = started("echo up > a.$SLURM_PROCID; sleep 600", "a");
    let said = pool.run("gdel", &["-v", &step(0)]);
    assert_eq!(
        (said.code, said.err.as_str()),
        (0, &*format!("gdel: cancelled step {job}.0\n"))
    );
    let ended = outcome(first);
    assert_eq!(ended.code, 143, "{ended:?}");
    assert!(
        ended.err.contains("step 0 on node1: CANCELLED")
            && ended.err.contains("task 1: Terminated"),
        "{ended:?}"
    );
    pool.run("gdel", &[&step(0)]).fails_with(1, "is over");

    // A step that does not go is killed after the grace, though gpud was killed in between; another signal is a signal only.
    let stays = started(
        "trap 'echo got > usr.$SLURM_PROCID' USR1; trap '' TERM; echo up > b.$SLURM_PROCID; while :; do sleep 0.1; done",
        "b",
    );
    assert_eq!(pool.run("gdel", &["-s", "USR1", &step(1)]).code, 0);
    pool.wait_file("usr.0");
    pool.wait_file("usr.1");
    pool.kill("node2");
    pool.run("gdel", &[&step(1)]).fails_with(1, "node2: ");
    pool.start("node2");
    pool.wait_until("both nodes have the order", || {
        pool.run("gdel", &[&step(1)]).code == 0
    });
    pool.kill("node2");
    pool.start("node2");
    assert_eq!(outcome(stays).code, 137);

    let theirs = begin(
        &pool,
        "grun",
        &["--jobid", &job, "-n1", "sh", "-c", "echo up > c; sleep 600"],
    );
    pool.wait_file("c");
    pool.run_as_user("gdel", &[&step(2)])
        .fails_with(1, "is for its owner");
    pool.run("gdel", &["-b", "-s", "TERM", &step(2)])
        .fails_with(1, "is a step and has no script");
    pool.run("gdel", &[&step(7)])
        .fails_with(1, &format!("job {job} has no step 7"));
    pool.run("gdel", &[&format!("{job}.batch")])
        .fails_with(1, "gdel -b -s TERM");
    assert_eq!(pool.job(job.parse().unwrap()).state, Running);
    // A job and a step of another one in one command.
    assert_eq!(pool.run("gdel", &[&step(2), &job]).code, 0);
    assert_ne!(outcome(theirs).code, 0);
    pool.check();
}

#[test]
fn a_second_client_sees_a_step_beside_the_first_and_holds_up_nothing() {
    let Some(pool) = Pool::up(2, "h100:1") else {
        return;
    };
    let links = pool.work.join("links");
    assert_eq!(
        pool.run("gadm", &["slurm-names", links.to_str().unwrap()])
            .code,
        0
    );
    let sattach = links.join("sattach");
    let sattach = |words: &[&str]| [&[sattach.to_str().unwrap()], words].concat().join(" ");
    let job = running_job(&pool, "2");
    let (first_step, second_step) = (format!("{job}.0"), format!("{job}.1"));
    let script = "echo up > a.$SLURM_PROCID; read line; echo rank $SLURM_PROCID has $line; read line; echo bye >&2; exit $((SLURM_PROCID + 3))";
    let mut first = begin(
        &pool,
        "grun",
        &["--jobid", &job, "-N2", "-n2", "sh", "-c", script],
    );
    pool.wait_file("a.0");
    pool.wait_file("a.1");
    let said = pool.run_shell(&sattach(&["--layout", &first_step]));
    assert_eq!(
        (said.code, said.out.as_str()),
        (
            0,
            "Job step layout:\n\t2 tasks, 2 nodes (node[1-2])\n\n\tNode 0 (node1), 1 task(s): 0 \n\tNode 1 (node2), 1 task(s): 1 \n"
        ),
        "{said:?}"
    );
    let labelled = sattach(&["-l", &first_step, "> labelled 2>&1; echo $? > code"]);
    let labelled = begin(&pool, "/bin/sh", &["-c", &labelled]);
    let one = sattach(&[
        "--output-filter",
        "1",
        "--error-filter",
        "0",
        &first_step,
        "> one 2> one.err",
    ]);
    let one = begin(&pool, "/bin/sh", &["-c", &one]);
    // A stopped reader, whose node's daemon is killed too: neither holds up the step.
    let stopped = begin(&pool, "grun", &["--watch", &first_step]);
    std::thread::sleep(std::time::Duration::from_millis(500));
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(stopped.id() as i32),
        nix::sys::signal::Signal::SIGSTOP,
    )
    .unwrap();
    let typed = first.stdin.as_mut().unwrap();
    typed.write_all(b"one\n").unwrap();
    pool.wait_file("one");
    let text = pool.wait_file("labelled");
    assert!(text.contains("rank "), "{text}");
    pool.kill("node1");
    pool.start("node1");
    typed.write_all(b"two\n").unwrap();
    let ended = outcome(first);
    assert_eq!(ended.code, 4, "{ended:?}");
    assert!(
        ended.out.contains("rank 0 has one\n") && ended.out.contains("rank 1 has one\n"),
        "{ended:?}"
    );
    outcome(labelled);
    outcome(one);
    assert_eq!(pool.file("code"), "4\n");
    let text = pool.file("labelled");
    for words in [
        "0: rank 0 has one\n",
        "1: rank 1 has one\n",
        "1: bye\n",
        "sattach: error: node2: task 1: Exited with exit code 4\n",
    ] {
        assert!(text.contains(words), "{words:?} is not in {text}");
    }
    assert_eq!(pool.file("one"), "rank 1 has one\n");
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(stopped.id() as i32),
        nix::sys::signal::Signal::SIGKILL,
    )
    .unwrap();
    outcome(stopped);

    let busy = begin(
        &pool,
        "grun",
        &["--jobid", &job, "-n1", "sh", "-c", "echo up > b; sleep 600"],
    );
    pool.wait_file("b");
    pool.run_as_user("grun", &["--watch", &second_step])
        .fails_with(1, "is for its owner");
    let refused = pool.run_shell(&sattach(&["--input-filter", "0", &second_step]));
    refused.fails_with(1, "sends no input");
    pool.run_shell(&sattach(&["--output-filter", "7", &second_step]))
        .fails_with(1, "its last task is 0");
    pool.run_shell(&sattach(&[&first_step]))
        .fails_with(1, &format!("there is no step {first_step} under way"));
    pool.run_shell(&sattach(&["nonsense"]))
        .fails_with(1, "is no step");
    pool.run("gdel", &[&job]);
    outcome(busy);
}

#[test]
fn a_file_comes_whole_to_each_node_or_not_at_all() {
    let Some(pool) = Pool::up(2, "h100:1") else {
        return;
    };
    let links = pool.work.join("links");
    assert_eq!(
        pool.run("gadm", &["slurm-names", links.to_str().unwrap()])
            .code,
        0
    );
    let sbcast = format!("{}/sbcast", links.display());
    let out = pool.work.join("out");
    std::fs::create_dir(&out).unwrap();
    let send = |line: &str| pool.run_shell(&format!("{sbcast} {line}"));
    pool.run_shell("head -c 5000001 /dev/urandom > 'a file'; chmod 640 'a file'; touch -d @1000000000.5 'a file'");
    // Both nodes of a sandbox have this directory, so each writes to a name of its own.
    let job = running_job(&pool, "2");
    let said = send(&format!("-v -p -j {job} 'a file' out/it"));
    assert!(
        said.code == 1 && said.err.contains("out/it is there already")
            || said.err.contains("not put in place"),
        "one of the two was first: {said:?}"
    );
    assert_eq!(
        pool.run_shell("cmp 'a file' out/it && stat -c '%a %Y' out/it; ls -A out")
            .out,
        "640 1000000000\nit\n"
    );
    let said = send(&format!(
        "-f -j {job} 'a file' {}/out/it",
        pool.work.display()
    ));
    assert_eq!(said.code, 0, "{said:?}");
    assert_eq!(
        pool.run_shell("cmp 'a file' out/it && ls -A out").out,
        "it\n"
    );

    send(&format!("-j {job} 'a file' out")).fails_with(1, "out is a directory");
    send(&format!("-j {job} /dev/zero out/z")).fails_with(1, "is no regular file");
    send(&format!("-j {job} 'a file' /proc/nowhere/z"))
        .fails_with(1, "no file can be made in /proc/nowhere/");
    send(&format!("--send-libs -j {job} 'a file' out/z"))
        .fails_with(1, "libraries of a program are not looked up");
    send("'a file' out/z").fails_with(1, "which job's nodes?");

    // As the user: not where that user may not write, and with that user's name on it.
    let theirs = pool
        .run_as_user("gsub", &["-N1", "-t", "10", "--wrap", "sleep 600"])
        .id();
    pool.wait_state(theirs, Running);
    let send_as_user = |target: &str| {
        let mut command = pool.user_command("gslurm");
        say(command
            .arg0("sbcast")
            .args(["-j", &theirs.to_string(), "/etc/hostname", target]))
    };
    send_as_user(&format!("{}/out/z", pool.work.display())).fails_with(1, "no file can be made in");
    let target = pool.work.join("theirs");
    assert_eq!(send_as_user(target.to_str().unwrap()).code, 0);
    assert_eq!(std::fs::metadata(&target).unwrap().uid(), pool.person().uid);

    // A sender and a node's daemon that are killed on the way leave nothing under the name.
    for victim in ["client", "node1"] {
        pool.run_shell("rm -f big out/big; truncate -s 80M big");
        let sending = begin(
            &pool,
            "/bin/sh",
            &["-c", &format!("exec {sbcast} -j {job} big out/big")],
        );
        pool.wait_until("it is on its way", || {
            pool.run_shell("ls -A out").out.contains(".sbcast.")
        });
        assert!(!out.join("big").exists());
        match victim {
            "client" => nix::sys::signal::kill(
                nix::unistd::Pid::from_raw(sending.id() as i32),
                nix::sys::signal::Signal::SIGKILL,
            )
            .unwrap(),
            _ => {
                pool.kill(victim);
                pool.start(victim);
            }
        }
        let said = outcome(sending);
        match victim {
            "client" => {
                let listed = pool.run("gq", &["--steps", "-h", "-o", "%i %j"]).out;
                let mut lines = listed
                    .lines()
                    .filter_map(|line| line.trim().strip_suffix(" sbcast"));
                assert!(!out.join("big").exists(), "{said:?}");
                // The step waits for its client to come back, unless it is ended.
                let step = lines.next_back().expect("it waits for its client");
                assert_eq!(pool.run("gdel", &[step]).code, 0);
                pool.wait_until("the part is gone", || {
                    pool.run_shell("ls -A out").out == "it\n"
                });
            }
            _ => assert!(pool.run_shell("cmp big out/big").code == 0, "{said:?}"),
        }
    }
}

#[test]
fn a_program_is_sent_before_its_step_and_variables_are_the_steps_alone() {
    let Some(pool) = Pool::up(1, "h100:1") else {
        return;
    };
    let links = pool.work.join("links");
    let made = pool.run("gadm", &["slurm-names", links.to_str().unwrap()]);
    assert_eq!(made.code, 0, "{made:?}");
    pool.run_shell(
        "mkdir out; printf '#!/bin/sh\\ncat; echo from $0\\n' > program; chmod 755 program",
    );
    let job = running_job(&pool, "1");
    let srun = format!("{}/srun --jobid={job}", links.display());
    let sent = format!("from {}/out/sent", pool.work.display());

    let given = pool.run_shell(&format!("echo in | {srun} --bcast=out/sent ./program"));
    assert_eq!((given.code, given.out), (0, format!("in\n{sent}\n")));
    pool.run_shell("rm out/sent");
    let by_variables = pool.run_shell(&format!(
        "echo in | SLURM_BCAST=out/sent SLURM_STDINMODE=none SLURM_LABELIO=1 {srun} ./program"
    ));
    assert_eq!(
        (by_variables.code, by_variables.out),
        (0, format!("0: {sent}\n"))
    );
    pool.run_shell(&format!("SLURM_BCAST=out {srun} ./program"))
        .fails_with(1, "not all nodes took");
}
