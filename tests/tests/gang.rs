//! Jobs on several nodes: they start and end as one, and a node that is lost or silent ends or delays them as promised.

use gmodel::JobState::{Completed, Failed, Pending, Running};
use gpupool_tests::pool::{Pool, kill_process};

#[test]
fn a_job_on_two_nodes_starts_and_ends_as_one() {
    let Some(pool) = Pool::up(2, "h100:2") else {
        return;
    };
    let script = "echo $GSUB_JOB_NODELIST $GSUB_NNODES $GSUB_NTASKS >> seen\n\
                  grun -n 4 --label sh -c 'echo $SLURM_PROCID $SLURM_LOCALID $SLURMD_NODENAME $GSUB_GPU_UUIDS' | sort > ranks\n\
                  seq 1 50000 | grun -n 4 --label sh -c 'cksum' > read; seq 1 3 | grun -i2 -l sh -c 'cat; echo end' | sort > one; grun -i4 true 2> none\n\
                  grun sh -c 'exit $((SLURM_PROCID + 4))'; echo $? > highest; touch up; while [ ! -e go ]; do sleep 0.02; done; exit 2";
    let path = format!(
        "export PATH={}:$PATH\n{script}",
        gpupool_tests::pool::programs().display()
    );
    let id = pool.gsub(&[
        "-N",
        "2",
        "-n",
        "4",
        "--gpus-per-node",
        "1",
        "--mem",
        "1G",
        "--wrap",
        &path,
    ]);
    pool.wait_until("its steps ran", || pool.work.join("up").exists());
    assert_eq!(pool.file("seen"), "node[1-2] 2 4\n");
    let ranks = pool.file("ranks");
    assert!(
        !ranks.is_empty(),
        "{}",
        pool.file(&format!("gsub-{id}.out"))
    );
    let words: Vec<Vec<&str>> = ranks
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    let placed: Vec<_> = words
        .iter()
        .map(|words| (words[0], words[1], words[2], words[3]))
        .collect();
    assert_eq!(
        placed,
        [
            ("0:", "0", "0", "node1"),
            ("1:", "1", "1", "node1"),
            ("2:", "2", "0", "node2"),
            ("3:", "3", "1", "node2")
        ],
        "{ranks}"
    );
    assert!(
        words[0][4] == words[1][4] && words[0][4] != words[2][4] && words[0][4].starts_with("GPU-"),
        "{ranks}"
    );
    let sums = pool.file("read");
    assert_eq!(
        sums.lines().map(|line| &line[3..]).collect::<Vec<_>>(),
        ["2937936293 288894"; 4],
        "every task read all of it"
    );
    assert_eq!(
        pool.file("one"),
        "0: end\n1: end\n2: 1\n2: 2\n2: 3\n2: end\n3: end\n"
    );
    assert_eq!(
        pool.file("none"),
        "grun: --input 4: the last task of the step is 3\n"
    );
    assert_eq!(pool.file("highest"), "7\n");
    for node in ["node1", "node2"] {
        assert_eq!(pool.node(node).gpus_alloc, 1.0);
    }
    pool.write("go", "");
    assert_eq!(pool.wait_state(id, Failed).exit_code.code, 2);
    pool.wait_idle("node1");
    pool.wait_idle("node2");
    pool.check();
}

#[test]
fn a_job_on_two_nodes_ends_on_both_when_one_is_lost() {
    let Some(pool) = Pool::up(2, "none") else {
        return;
    };
    let path = format!(
        "export PATH={}:$PATH\n",
        gpupool_tests::pool::programs().display()
    );
    let script = "grun -N 2 -n 2 sh -c 'echo $$ > pid.$SLURM_PROCID.$GSUB_ATTEMPT; [ $GSUB_ATTEMPT = 2 ] || sleep 1000'; exit 5";
    let id = pool.gsub(&["-N", "2", "-n", "2", "--wrap", &format!("{path}{script}")]);
    let pids =
        ["pid.0.1", "pid.1.1"].map(|name| pool.wait_file(name).trim().parse::<i32>().unwrap());
    kill_process(pool.supervisor("node2", &format!("{id}-1")));
    let job = pool.wait_state_through(id, Failed);
    assert_eq!((job.exit_code.code, job.attempts), (5, 2));
    assert!(!pids.iter().any(|pid| gpupool_tests::pool::is_alive(*pid)));
    assert!(!pool.file("pid.0.2").is_empty() && !pool.file("pid.1.2").is_empty());
    pool.wait_idle("node1");
    pool.wait_idle("node2");
}

#[test]
fn two_nodes_on_which_every_start_fails_hold_no_job_and_all_run_once_they_are_mended() {
    let Some(pool) = Pool::up(2, "none") else {
        return;
    };
    let file = pool.dir.join("gpuctld/partitions.d/main.toml");
    let good = std::fs::read_to_string(&file).unwrap();
    let prolog = pool.dir.join("prolog");
    std::fs::write(&prolog, "#!/bin/sh\necho no licence >&2\nexit 1\n").unwrap();
    std::fs::set_permissions(&prolog, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::write(&file, format!("{good}prolog = \"{}\"\n", prolog.display())).unwrap();
    assert_eq!(pool.run("gadm", &["reload"]).code, 0);
    let jobs: Vec<u64> = (1..=4)
        .map(|job| pool.gsub(&["--wrap", &format!("echo ran > ran.{job}")]))
        .collect();
    let failed = |node: &str| !pool.node(node).strikes.is_empty();
    pool.wait_until("both nodes failed", || failed("node1") && failed("node2"));
    // One is drained, the other would be too much within an hour: it takes no new work for a while.
    pool.wait_until("a node is drained", || {
        ["node1", "node2"]
            .iter()
            .any(|node| !pool.node(node).drains.is_empty())
    });
    std::thread::sleep(std::time::Duration::from_secs(10));
    let tried: usize = jobs.iter().map(|job| pool.attempts(*job).len()).sum();
    assert!(
        (4..=12).contains(&tried),
        "{tried} starts of {} jobs in 10 s",
        jobs.len()
    );
    for job in &jobs {
        let job = pool.job(*job);
        assert!(job.holds.is_empty() && job.state == Pending, "{job:?}");
        let words = format!("{} {}", job.reason, job.reason_text);
        assert!(
            words.contains("again at"),
            "when it is tried again is not said: {words}"
        );
    }
    assert!(!pool.work.join("ran.1").exists());
    std::fs::write(&prolog, "#!/bin/sh\n").unwrap();
    for node in ["node1", "node2"] {
        let resumed = pool.run("gadm", &["node", "resume", node]);
        assert_eq!(resumed.code, 0, "{resumed:?}");
    }
    jobs.iter()
        .for_each(|job| drop(pool.wait_state(*job, Completed)));
    assert!(["node1", "node2"].iter().all(|node| !failed(node)));
    std::fs::remove_file(&prolog).unwrap();
}

#[test]
fn a_job_whose_other_node_is_silent_is_completing_and_each_node_is_charged_until_its_own_end() {
    let Some(pool) = Pool::up(2, "h100:2") else {
        return;
    };
    let wide = pool.gsub(&[
        "-N",
        "2",
        "--gpus-per-node",
        "2",
        "--wrap",
        "echo up > up; until [ -e stop ]; do sleep 0.1; done",
    ]);
    pool.wait_file("up");
    pool.wait_until("both run", || pool.job(wide).state == Running);
    std::thread::sleep(std::time::Duration::from_secs(1));
    pool.signal("node2", nix::sys::signal::Signal::SIGSTOP);
    pool.write("stop", "");
    pool.wait_until("its script is over", || {
        pool.job(wide).state == gmodel::JobState::Completing
    });
    pool.wait_idle("node1");
    let next = pool.gsub(&["--gpus", "2", "--wrap", "sleep 4"]);
    pool.wait_state(next, Completed);
    assert_eq!(pool.job(wide).state, gmodel::JobState::Completing);
    pool.signal("node2", nix::sys::signal::Signal::SIGCONT);
    pool.wait_state(wide, Completed);
    let elapsed = pool.attempts(wide)[0].elapsed_secs as f64;
    let report = pool.run("gacct", &["report", "--by", "gpus", "--json"]);
    let rows: serde_json::Value = serde_json::from_str(&report.out).unwrap();
    let row = rows["rows"]
        .as_array()
        .unwrap()
        .iter()
        .find(|row| row["group"][0] == "4")
        .unwrap_or_else(|| panic!("{report:?}"));
    let used = row["gpu_hours"].as_f64().unwrap() * 3600.0;
    // Whole seconds are shown.
    assert!(
        elapsed >= 5.0 && used > 2.0 * elapsed && used < 4.0 * (elapsed + 1.0) - 2.0 * 4.0,
        "{used} GPU-seconds of 4 GPUs and {elapsed} s, of which two were another job's for 4 s"
    );
}
