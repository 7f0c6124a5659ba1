//! What jobs are promised, end to end: times, holds, arrays, several nodes, signals, exit codes, output, environment.

use gmodel::JobState::{Cancelled, Completed, Failed, Pending, Running, Timeout};
use gmodel::ReasonCode;
use gpupool_tests::pool::{CommandOutput, Pool};
use std::io::Write;
use std::process::Stdio;

/// `gsub` with a script on stdin.
fn gsub_stdin(pool: &Pool, args: &[&str], script: &str) -> CommandOutput {
    let mut child = pool
        .command("gsub")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(script.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    CommandOutput {
        code: output.status.code().unwrap(),
        out: text(&output.stdout),
        err: text(&output.stderr),
    }
}

#[test]
fn wait_exits_as_the_job_did() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    for (script, code) in [
        ("exit 0", 0),
        ("exit 3", 3),
        ("kill -9 $$", 137),
        ("kill -TERM $$", 143),
    ] {
        let said = pool.run("gsub", &["--wait", "--wrap", script]);
        assert_eq!(said.code, code, "{script}: {said:?}");
        assert!(said.out.trim().parse::<u64>().is_ok(), "{said:?}");
    }
    // An array waits for all its tasks and takes the highest code.
    assert_eq!(
        pool.run(
            "gsub",
            &["--wait", "-a", "0-3", "--wrap", "exit $GSUB_ARRAY_TASK_ID"]
        )
        .code,
        3
    );
    // One that never ran.
    let said = std::thread::scope(|threads| {
        let waiting = threads.spawn(|| {
            pool.run(
                "gsub",
                &["--wait", "--hold", "-J", "never", "--wrap", "true"],
            )
        });
        pool.wait_until("it is queued", || {
            pool.jobs().iter().any(|job| job.name == "never")
        });
        assert_eq!(pool.run("gdel", &["-n", "never"]).code, 0);
        waiting.join().unwrap()
    });
    assert_eq!(said.code, 1, "{said:?}");
}

#[test]
fn a_begin_time_is_waited_for_with_its_own_reason() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    let id = pool.gsub(&["--begin", "now+2", "--wrap", "true"]);
    let job = pool.job(id);
    assert_eq!((job.state, job.reason), (Pending, ReasonCode::BeginTime));
    let job = pool.wait_state(id, Completed);
    assert!(
        job.start_time >= job.eligible_time && job.eligible_time > job.submit_time,
        "{job:?}"
    );
}

#[test]
fn a_held_job_starts_when_it_is_released() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    let id = pool.gsub(&["--hold", "--wrap", "true"]);
    assert_eq!(
        (pool.job(id).state, pool.job(id).reason),
        (Pending, ReasonCode::JobHeldUser)
    );
    let other = pool.gsub(&["--wrap", "true"]);
    pool.wait_state(other, Completed);
    assert_eq!(pool.job(id).state, Pending);
    assert_eq!(
        pool.run("gadm", &["job", "release", &id.to_string()]).code,
        0
    );
    pool.wait_state(id, Completed);
}

#[test]
fn an_array_runs_no_more_tasks_at_once_than_its_cap() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    let script = "echo + >> log; sleep 0.15; echo - >> log; echo $GSUB_ARRAY_JOB_ID $GSUB_ARRAY_TASK_ID $SLURM_ARRAY_TASK_ID; exit $GSUB_ARRAY_TASK_ID";
    let id = pool.gsub(&["-a", "1-9:2%2", "-o", "%A.%a.txt", "--wrap", script]);
    for (at, index) in [1u64, 3, 5, 7, 9].into_iter().enumerate() {
        let task = format!("{id}_{index}");
        pool.wait_until(&format!("{task} has failed"), || {
            pool.find_job(&task).unwrap().state == Failed
        });
        let job = pool.find_job(&task).unwrap();
        assert_eq!(
            (job.exit_code.code as u64, job.shown_id, job.id),
            (index, task, id + at as u64)
        );
        assert_eq!(
            pool.file(&format!("{id}.{index}.txt")),
            format!("{id} {index} {index}\n")
        );
    }
    let mut running = 0;
    let mut most = 0;
    for line in pool.file("log").lines() {
        running += if line == "+" { 1 } else { -1 };
        most = most.max(running);
    }
    assert_eq!((most, running), (2, 0));
}

#[test]
fn single_tasks_of_an_array_are_cancelled_and_the_rest_goes_on() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    let id = pool.gsub(&["--hold", "-a", "0-9", "-o", "/dev/null", "--wrap", "true"]);
    assert_eq!(
        pool.run("gdel", &[&format!("{id}_3"), &format!("{id}_[5-7]")])
            .code,
        0
    );
    assert_eq!(
        pool.run("gadm", &["job", "release", &id.to_string()]).code,
        0
    );
    for task in 0..10 {
        let state = if [3, 5, 6, 7].contains(&task) {
            Cancelled
        } else {
            Completed
        };
        let task = format!("{id}_{task}");
        pool.wait_until(&format!("{task} is {state:?}"), || {
            pool.find_job(&task).unwrap().state == state
        });
    }
    assert_eq!(pool.find_job(&format!("{id}_5")).unwrap().id, id + 5);
}

#[test]
fn a_warning_comes_before_the_time_limit_and_term_before_kill() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    pool.reconfigure("gpuctld", "kill_grace_secs = 1");
    let script = "trap 'echo warned' USR1; trap 'echo term' TERM; while :; do sleep 0.05; done";
    let id = pool.gsub(&[
        "-t", "0:03", "--signal", "B:USR1@2", "-o", "out", "--wrap", script,
    ]);
    let job = pool.wait_state(id, Timeout);
    let out = pool.file("out");
    let said: Vec<_> = out.lines().filter(|line| *line != "Terminated").collect();
    assert_eq!(said, ["warned", "term"]);
    assert_eq!(pool.attempts(id)[0].state, Timeout, "{job:?}");
    // A job that heeds SIGTERM at its limit is TIMEOUT too, as in Slurm.
    let polite = pool.gsub(&[
        "-t",
        "0:01",
        "--wrap",
        "trap 'exit 0' TERM; while :; do sleep 0.05; done",
    ]);
    pool.wait_state(polite, Timeout);
}

#[test]
fn a_partition_may_let_runs_go_over_their_limit_for_so_long() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    pool.reconfigure(
        "gpuctld",
        "kill_grace_secs = 1\npartition.lax.over_time = \"0:02\"",
    );
    pool.wait_idle("node1");
    let within = pool.gsub(&["-p", "lax", "-t", "0:01", "--wrap", "sleep 1.5; exit 4"]);
    let beyond = pool.gsub(&["-p", "lax", "-t", "0:01", "--wrap", "sleep 60"]);
    let strict = pool.gsub(&["-t", "0:01", "--wrap", "sleep 1.5; exit 4"]);
    assert_eq!(pool.wait_state(within, Failed).exit_code.code, 4);
    pool.wait_state(strict, Timeout);
    pool.wait_state(beyond, Timeout);
}

#[test]
fn a_job_waits_in_several_partitions_and_starts_in_the_first_that_can() {
    let Some(pool) = Pool::up(2, "h100:1") else {
        return;
    };
    pool.reconfigure(
        "gpuctld",
        "partition.one.nodes = \"node1\"\npartition.two.nodes = \"node2\"",
    );
    pool.wait_idle("node1");
    pool.wait_idle("node2");
    let holds = pool.gsub(&[
        "-p",
        "one",
        "--gpus",
        "1",
        "-t",
        "10",
        "--wrap",
        "sleep 1000",
    ]);
    pool.wait_state(holds, Running);
    let said = pool.run(
        "gsub",
        &[
            "-p",
            "one,two",
            "--gpus",
            "1",
            "--wrap",
            "echo $SLURM_JOB_PARTITION > where",
        ],
    );
    let id: u64 = said.out.trim().parse().unwrap();
    assert_eq!(pool.wait_state(id, Completed).partition, "two");
    assert_eq!(
        std::fs::read_to_string(pool.work.join("where")).unwrap(),
        "two\n"
    );
    let dry = pool.run(
        "gsub",
        &[
            "--dry-run",
            "-p",
            "one,two,one",
            "--gpus",
            "1",
            "--wrap",
            "true",
        ],
    );
    assert!(
        dry.out.contains("would start at once") && dry.out.contains("in partition two"),
        "{dry:?}"
    );
    // Both are full: it waits in both, whatever becomes free first.
    let also = pool.gsub(&[
        "-p",
        "two",
        "--gpus",
        "1",
        "-t",
        "10",
        "--wrap",
        "sleep 1000",
    ]);
    pool.wait_state(also, Running);
    let waits = pool.gsub(&[
        "-p",
        "two,one",
        "--gpus",
        "1",
        "--wrap",
        "echo $SLURM_JOB_PARTITION > where",
    ]);
    pool.wait_state(waits, Pending);
    let listed = pool.run("gq", &["-h", "-o", "%i %P", "-p", "one", "-t", "PD"]);
    assert_eq!(listed.out.trim(), format!("{waits} two,one"), "{listed:?}");
    let why = pool.run("gq", &["--why", &waits.to_string()]);
    assert!(
        why.out.contains("in one: Resources") && why.out.contains("in two: Resources"),
        "{why:?}"
    );
    // A controller that is killed meanwhile knows it all.
    pool.kill("gpuctld");
    pool.start("gpuctld");
    pool.run("gdel", &[&holds.to_string()]);
    assert_eq!(pool.wait_state(waits, Completed).partition, "one");
    assert_eq!(pool.file("where"), "one\n");
    let log = pool.run("gq", &["--log", &waits.to_string()]);
    assert!(
        log.out.contains("to partitions two,one") && log.out.contains("in partition one"),
        "{log:?}"
    );
    let odd = pool.run("gsub", &["-p", "one,tow", "--wrap", "true"]);
    assert!(
        odd.code == 1
            && odd
                .err
                .contains("no partition \"tow\". Did you mean \"two\"?"),
        "{odd:?}"
    );
    let never = pool.run("gsub", &["-p", "one,two", "--gpus", "9", "--wrap", "true"]);
    assert!(
        never.code == 1 && never.err.contains("partition \"one\""),
        "{never:?}"
    );
}

#[test]
fn a_signal_goes_to_the_script_alone_or_to_what_it_started() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    let child =
        "sh -c 'trap \"echo child >> got\" USR1; touch child; while :; do sleep 0.05; done' &";
    let script = format!(
        "trap 'echo script >> got' USR1; {child} touch up; while [ ! -e go ]; do sleep 0.05; done"
    );
    let id = pool.gsub(&["--wrap", &script]);
    pool.wait_until("both run", || {
        pool.work.join("up").exists() && pool.work.join("child").exists()
    });
    assert_eq!(
        pool.run("gdel", &["-b", "-s", "USR1", &id.to_string()])
            .code,
        0
    );
    pool.wait_until("the script got it", || pool.file("got") == "script\n");
    assert_eq!(pool.run("gdel", &["-s", "USR1", &id.to_string()]).code, 0);
    // As with scancel: without --batch the script's own shell is spared.
    pool.wait_until("the child got it", || pool.file("got") == "script\nchild\n");
    assert_eq!(
        pool.run("gdel", &["-f", "-s", "USR1", &id.to_string()])
            .code,
        0
    );
    let both = |got: &str| got.matches("script").count() == 2 && got.matches("child").count() == 2;
    pool.wait_until("both got it", || both(&pool.file("got")));
    pool.write("go", "");
    pool.wait_state(id, Completed);
}

#[test]
fn the_environment_is_what_export_says() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    let run = |options: &[&str]| {
        let mut command = pool.command("gsub");
        command
            .env("ONE", "1 2")
            .env("TWO", "b,c")
            .env("SECRET", "s")
            .args(options);
        let id = gpupool_tests::pool::say(command.args([
            "-o",
            "env",
            "--wait",
            "--wrap",
            "env | grep -E '^(ONE|TWO|SECRET|NEW|HOME|GSUB_JOB_ID)=' | sort",
        ]));
        assert_eq!(id.code, 0, "{id:?}");
        pool.file("env")
            .lines()
            .filter(|line| !line.starts_with("GSUB_JOB_ID") && !line.starts_with("HOME"))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(run(&[]), ["ONE=1 2", "SECRET=s", "TWO=b,c"]);
    assert_eq!(
        run(&["--export", "ALL,NEW=x"]),
        ["NEW=x", "ONE=1 2", "SECRET=s", "TWO=b,c"]
    );
    assert_eq!(run(&["--export", "ONE,NEW=y"]), ["NEW=y", "ONE=1 2"]);
    assert_eq!(run(&["--export", "NONE"]), Vec::<String>::new());
    assert!(
        pool.file("env").contains("GSUB_JOB_ID="),
        "even then a job knows its id"
    );
}

#[test]
fn a_script_may_come_from_stdin_with_options_in_it_and_arguments_behind() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    let script = "#!/bin/bash\n#SBATCH -J from_stdin --comment='two words'\n#GSUB -o out.%x.%u.%N.%j\n\necho \"$1\" $# ${BASH_VERSION:+bash}\n";
    let id = gsub_stdin(&pool, &["-", "a b", "c"], script).id();
    let job = pool.wait_state(id, Completed);
    assert_eq!(
        (job.name.as_str(), job.comment.as_str()),
        ("from_stdin", "two words")
    );
    assert_eq!(
        pool.file(&format!("out.from_stdin.root.node1.{id}")),
        "a b 2 bash\n"
    );
    // The command line is stronger than the script, and a variable stands between.
    let id = gsub_stdin(&pool, &["-J", "stronger"], script).id();
    assert_eq!(pool.wait_state(id, Completed).name, "stronger");
    assert_eq!(pool.run("gq", &["--script", &id.to_string()]).out, script);
}

#[test]
fn input_output_and_error_go_where_they_are_sent() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    pool.write("in", "given\n");
    let id = pool.gsub(&[
        "-i",
        "in",
        "-o",
        "sub-%j/o",
        "-e",
        "%x.err",
        "-J",
        "n",
        "--hold",
        "--wrap",
        "cat; echo bad >&2",
    ]);
    std::fs::create_dir(pool.work.join(format!("sub-{id}"))).unwrap();
    assert_eq!(
        pool.run("gadm", &["job", "release", &id.to_string()]).code,
        0
    );
    let job = pool.wait_state(id, Completed);
    assert_eq!(
        (pool.file(&format!("sub-{id}/o")), pool.file("n.err")),
        ("given\n".into(), "bad\n".into())
    );
    assert_eq!(
        job.stdout,
        pool.work.join(format!("sub-{id}/o")).to_str().unwrap()
    );
    assert_eq!(
        pool.run("gq", &["--follow", &id.to_string()]).out,
        "given\n"
    );
}

#[test]
fn nodes_are_named_excluded_and_chosen_by_feature() {
    let Some(pool) = Pool::up(3, "none") else {
        return;
    };
    pool.reconfigure("node3", "features = [\"ib\", \"big\"]");
    pool.wait_until("the feature is known", || {
        pool.node("node3").features == ["big", "ib"] || pool.node("node3").features == ["ib", "big"]
    });
    pool.wait_idle("node3");
    for (options, node) in [
        (&["-w", "node2"][..], "node2"),
        (&["-x", "node[1-2]"], "node3"),
        (&["-x", "node1,node3"], "node2"),
        (&["-C", "ib"], "node3"),
        (&["-C", "ib&big"], "node3"),
    ] {
        let id = pool.gsub(&[options, &["-o", "/dev/null", "--wrap", "true"]].concat());
        pool.wait_state(id, Completed);
        assert_eq!(pool.attempts(id)[0].nodelist, node, "{options:?}");
    }
}

#[test]
fn an_exclusive_job_has_its_node_alone() {
    let Some(pool) = Pool::up(1, "h100:4") else {
        return;
    };
    let waits = "while [ ! -e $GSUB_JOB_NAME ]; do sleep 0.02; done";
    let small = pool.gsub(&["-J", "go1", "--mem", "1G", "--wrap", waits]);
    pool.wait_state(small, Running);
    let alone = pool.gsub(&["-J", "go2", "--exclusive", "--mem", "1G", "--wrap", waits]);
    pool.wait_until("it waits for the node", || {
        pool.job(alone).reason == ReasonCode::Resources
    });
    pool.write("go1", "");
    pool.wait_state(alone, Running);
    let after = pool.gsub(&["-J", "go3", "--mem", "1G", "--wrap", "true"]);
    pool.wait_until("a pass has looked at it", || {
        pool.job(after).reason != ReasonCode::None
    });
    assert_eq!(pool.job(after).state, Pending, "two on an exclusive node");
    pool.write("go2", "");
    pool.wait_state(after, Completed);
}

#[test]
fn a_waiting_job_says_why_and_starts_when_the_gpus_are_free() {
    let Some(pool) = Pool::up(1, "h100:2") else {
        return;
    };
    let first = pool.gsub(&[
        "--gpus",
        "2",
        "--wrap",
        "while [ ! -e go ]; do sleep 0.02; done",
    ]);
    pool.wait_state(first, Running);
    let second = pool.gsub(&["--gpus", "1", "--wrap", "true"]);
    pool.wait_until("the planner has seen it", || {
        pool.job(second).reason == ReasonCode::Resources
    });
    let why = pool.run("gq", &["--why", &second.to_string()]);
    assert!(why.code == 0 && why.out.contains("GPU"), "{why:?}");
    let line = pool.run("gq", &["-h", "-o", "%i %t %R", "-t", "PD"]);
    assert_eq!(line.out.trim(), format!("{second} PD (Resources)"));
    pool.write("go", "");
    pool.wait_state(second, Completed);
}

#[test]
fn accounting_adds_up() {
    let Some(pool) = Pool::up(1, "h100:4") else {
        return;
    };
    for gpus in ["1", "2"] {
        assert_eq!(
            pool.run_as_user(
                "gsub",
                &[
                    "--gpus",
                    gpus,
                    "--mem",
                    "1G",
                    "-J",
                    "acct",
                    "--wait",
                    "--wrap",
                    "sleep 1.2"
                ]
            )
            .code,
            0
        );
    }
    let listed = pool.run_as_user(
        "gacct",
        &["-n", "-P", "-o", "jobname,state,exitcode,gpus,user"],
    );
    let name = &pool.person().name;
    assert_eq!(
        listed.out,
        format!("acct|COMPLETED|0:0|h100:1|{name}\nacct|COMPLETED|0:0|h100:2|{name}\n"),
        "{listed:?}"
    );
    let mut used = 0.0;
    pool.wait_until("the report has all of it", || {
        let report = pool.run("gacct", &["report", "--by", "user,gpu-type", "--json"]);
        let rows: serde_json::Value = serde_json::from_str(&report.out).unwrap();
        let row = rows["rows"]
            .as_array()
            .unwrap()
            .iter()
            .find(|row| row["group"][0] == *name.as_str());
        let row = row.unwrap_or_else(|| panic!("{report:?}"));
        assert_eq!(
            (row["jobs"].as_u64(), row["group"][1].as_str()),
            (Some(2), Some("h100"))
        );
        used = row["gpu_hours"].as_f64().unwrap() * 3600.0;
        used >= 3.6
    });
    assert!(used < 8.0, "{used} GPU-seconds for 3.6 and the overhead");
}

#[test]
fn an_array_of_a_million_tasks_is_one_record() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    let id = pool.gsub(&["--hold", "-a", "0-999999", "--wrap", "true"]);
    let asked = std::time::Instant::now();
    let listed = pool.run("gq", &["-h", "-o", "%i"]);
    assert_eq!(listed.out.trim(), format!("{id}_[0-999999]"));
    assert_eq!(
        pool.find_job(&format!("{id}_765432")).unwrap().id,
        id + 765_432
    );
    assert_eq!(pool.run("gdel", &[&format!("{id}_500000")]).code, 0);
    let next = pool.gsub(&["--wrap", "true"]);
    assert_eq!(
        next,
        id + 1_000_000,
        "the ids of its tasks are taken in one go"
    );
    pool.wait_state(next, Completed);
    pool.kill("gpuctld");
    pool.start("gpuctld");
    assert_eq!(
        pool.run("gq", &["-h", "-o", "%i"]).out.trim(),
        format!("{id}_[0-499999,500001-999999]")
    );
    assert_eq!(pool.run("gdel", &[&id.to_string()]).code, 0);
    assert_eq!(pool.run("gq", &["-h"]).out, "");
    assert!(asked.elapsed().as_secs() < 10, "{:?}", asked.elapsed());
    pool.check();
}

#[test]
fn daemons_that_are_stopped_and_started_in_order_leave_jobs_alone() {
    let Some(pool) = Pool::up(1, "h100:1") else {
        return;
    };
    let id = pool.gsub(&[
        "--gpus",
        "1",
        "--wrap",
        "touch up; while [ ! -e go ]; do sleep 0.02; done; exit 9",
    ]);
    pool.wait_until("it runs", || pool.work.join("up").exists());
    let supervisor = pool.supervisor("node1", &format!("{id}-1"));
    // As an upgrade does it: SIGTERM, the new one, the controller last.
    for daemon in ["node1", "gpuctld"] {
        let pid = pool.daemon_pid(daemon);
        pool.signal(daemon, nix::sys::signal::Signal::SIGTERM);
        pool.wait_until(&format!("{daemon} ends"), || {
            !gpupool_tests::pool::is_alive(pid)
        });
        pool.start(daemon);
    }
    assert!(gpupool_tests::pool::is_alive(supervisor));
    pool.wait_until("the node is back", || {
        pool.node("node1").state == "ALLOCATED"
    });
    assert_eq!(pool.job(id).state, Running);
    pool.write("go", "");
    let job = pool.wait_state(id, Failed);
    assert_eq!((job.exit_code.code, job.attempts), (9, 1));
    pool.wait_idle("node1");
}

#[test]
fn linked_gpus_are_given_where_the_driver_says_that_they_are_linked() {
    let Some(pool) = Pool::up(1, "h100:8") else {
        return;
    };
    let id = pool.gsub(&["--gpus", "8", "--nvlink", "--wrap", "true"]);
    pool.wait_state(id, Completed);
    pool.down();
    let Some(pool) = Pool::up(1, "l4:4") else {
        return;
    };
    let said = pool.run("gsub", &["--gpus", "2", "--nvlink", "--wrap", "true"]);
    said.fails_with(1, "reports no NVLink between such GPUs");
    let id = pool.gsub(&["--gpus", "1", "--nvlink", "--wrap", "true"]);
    pool.wait_state(id, Completed);
    pool.run("gsub", &["--gpus", "0.5", "--wrap", "true"])
        .fails_with(1, "gives GPUs whole");
    pool.down();
}

#[test]
fn arguments_of_a_hundred_kilobytes_reach_the_script_and_the_record_has_their_beginning() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    let script = pool.write(
        "job.sh",
        "#!/bin/sh\necho $# \"$1\" \"$5000\" \"${5000}\" > words\n",
    );
    let words: Vec<String> = (0..5000)
        .map(|at| format!("/data/set/part-{at}.txt"))
        .collect();
    let mut args = vec!["-o", "/dev/null", script.to_str().unwrap()];
    args.extend(words.iter().map(String::as_str));
    let id = pool.gsub(&args);
    pool.wait_state(id, Completed);
    assert_eq!(
        pool.file("words"),
        format!(
            "5000 /data/set/part-0.txt {}000 /data/set/part-4999.txt\n",
            words[4]
        )
    );
    // A command is shown as far as it is kept.
    let command = pool.gsub(&[&["-H", "--", "echo"], &args[3..]].concat());
    let shown = pool.job(command).command;
    assert!(
        shown.starts_with("echo /data/set/part-0.txt ")
            && shown.ends_with("...")
            && shown.len() < 5000,
        "{shown}"
    );
}
