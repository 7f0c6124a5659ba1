//! `gadm sandbox`: several side by side, long paths, ordinary users, and configurations that are wrong.

use gmodel::JobState::{Completed, Running};
use gpupool_tests::pool::{PATIENCE, Pool, programs, say, temp_dir};
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Instant;

#[test]
fn two_in_a_directory_of_150_characters_do_not_notice_each_other() {
    if !nix::unistd::geteuid().is_root() {
        return println!("NOT RUN: a pool with fences needs root");
    }
    let long = |temp: &tempfile::TempDir, name: &str| {
        let base = temp
            .path()
            .join("x".repeat(60))
            .join("y y'\"z".repeat(10))
            .join(name);
        let padding = 150 - base.as_os_str().len() - 1;
        base.join("p".repeat(padding))
    };
    let (first, second) = (temp_dir(), temp_dir());
    let (first_dir, second_dir) = (long(&first, "a"), long(&second, "b"));
    assert_eq!(
        (first_dir.as_os_str().len(), second_dir.as_os_str().len()),
        (150, 150)
    );
    let first = Pool::start_in(first, first_dir, 2, "h100:2");
    let second = Pool::start_in(second, second_dir, 2, "h100:2");
    assert_ne!(first.tag(), second.tag());
    let script = "touch up; while [ ! -e go ]; do sleep 0.02; done; exit 0";
    let [of_first, of_second] =
        [&first, &second].map(|pool| pool.gsub(&["--gpus", "2", "--wrap", script]));
    for (pool, id) in [(&first, of_first), (&second, of_second)] {
        pool.wait_until("it runs", || pool.work.join("up").exists());
        assert_eq!(pool.job(id).state, Running);
    }
    let pids = ["gpuctld", "node1", "node2"].map(|daemon| second.daemon_pid(daemon));
    first.down();
    assert_eq!(
        pids,
        ["gpuctld", "node1", "node2"].map(|daemon| second.daemon_pid(daemon))
    );
    assert_eq!(second.job(of_second).state, Running);
    second.write("go", "");
    assert_eq!(second.wait_state(of_second, Completed).attempts, 1);
    second.wait_idle("node1");
    second.check();
}

#[test]
fn an_ordinary_user_has_one_too_without_fences_and_it_says_so() {
    if !nix::unistd::geteuid().is_root() {
        return println!("NOT RUN: becoming an ordinary user needs root");
    }
    let temp = temp_dir();
    let home = temp.path().join("home");
    fs::create_dir(&home).unwrap();
    let user = gpupool_tests::person::Person::borrow();
    std::os::unix::fs::chown(&home, Some(user.uid), Some(user.gid)).unwrap();
    let programs = gpupool_tests::pool::programs_for(&user, temp.path());
    let dir = home.join("pool");
    let run = |program: &str, args: &[&str]| {
        let mut command = Command::new(programs.join(program));
        command
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("USER", &user.name)
            .env("XDG_RUNTIME_DIR", &home);
        command
            .env("GPUPOOL_CONFIG", dir.join("client.toml"))
            .current_dir(&home)
            .args(args)
            .uid(user.uid)
            .gid(user.gid);
        say(&mut command)
    };
    let directory = dir.display().to_string();
    let up = run(
        "gadm",
        &[
            "sandbox", "up", "--dir", &directory, "--nodes", "2", "--gpus", "l4:2",
        ],
    );
    let result = std::panic::catch_unwind(|| {
        assert_eq!(up.code, 0, "{up:?}");
        assert!(up.err.contains("without root"), "{up:?}");
        let script =
            "echo $GSUB_GPU_UUIDS $CUDA_VISIBLE_DEVICES; id -un; setsid sleep 1000 & exit 3";
        let id = run(
            "gsub",
            &["--gpus", "1", "-o", "out", "--wait", "--wrap", script],
        );
        assert_eq!(id.code, 3, "{id:?}");
        let out = fs::read_to_string(home.join("out")).unwrap();
        assert!(
            out.starts_with("GPU-")
                && out
                    .lines()
                    .next()
                    .is_some_and(|line| line.ends_with(" 0") || line.ends_with(" 1"))
                && out.lines().nth(1) == Some(user.name.as_str()),
            "{out}"
        );
        let nodes = run("gnodes", &["--json"]);
        assert!(nodes.out.contains(r#""isolation":"none""#), "{nodes:?}");
        let shown = run("gnodes", &[]);
        assert!(
            shown.out.contains("none"),
            "isolation none is not shown: {shown:?}"
        );
        // Administration is theirs.
        assert_eq!(
            run("gadm", &["node", "drain", "node1", "--reason", "mine"]).code,
            0
        );
        // A daemon that is killed comes back, its job goes on.
        let id = run(
            "gsub",
            &[
                "-w",
                "node2",
                "--wrap",
                "touch up; while [ ! -e go ]; do sleep 0.02; done; exit 4",
            ],
        )
        .id();
        let deadline = Instant::now() + PATIENCE;
        while !home.join("up").exists() {
            assert!(Instant::now() < deadline);
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        for words in [
            ["kill", "node2"],
            ["kill", "gpuctld"],
            ["start", "gpuctld"],
            ["start", "node2"],
        ] {
            let said = run(
                "gadm",
                &["sandbox", words[0], words[1], "--dir", &directory],
            );
            assert_eq!(said.code, 0, "{words:?}: {said:?}");
        }
        fs::write(home.join("go"), "").unwrap();
        loop {
            let said = run(
                "gacct",
                &["-n", "-P", "-o", "state,exitcode", "-j", &id.to_string()],
            );
            if said.out.trim() == "FAILED|4:0" {
                break;
            }
            assert!(Instant::now() < deadline, "{said:?}");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    });
    let down = run("gadm", &["sandbox", "down", "--dir", &directory]);
    let marker = format!("{directory}/");
    let left: Vec<String> = gpupool_tests::pool::processes_with(&marker);
    if let Err(panic) = result {
        std::panic::resume_unwind(panic);
    }
    assert_eq!(down.code, 0, "{down:?}");
    assert!(left.is_empty() && !dir.exists(), "left behind: {left:?}");
}

#[test]
fn a_second_one_in_the_same_directory_is_refused() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    let said = pool.sandbox(&["up", "--nodes", "1"]);
    said.fails_with(1, "holds a sandbox already");
    pool.sandbox(&["kill", "node7"])
        .fails_with(1, r#"this sandbox has no "node7". Did you mean "node1"?"#);
    pool.sandbox(&["fault", "node1", "gpu9", "xid", "79"])
        .fails_with(1, "");
    let elsewhere = temp_dir();
    let said = say(pool
        .command("gadm")
        .args(["sandbox", "down", "--dir"])
        .arg(elsewhere.path()));
    said.fails_with(1, "holds no sandbox");
    pool.wait_idle("node1");
}

#[test]
fn mistakes_in_a_nodes_configuration_are_shown_all_at_once_with_their_place() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    pool.kill("node1");
    let path = pool.config("node1");
    let good = fs::read_to_string(&path).unwrap();
    fs::write(
        &path,
        format!("isolatoin = \"fence\"\npids_max = \"many\"\n{good}"),
    )
    .unwrap();
    let said = say(pool.command("gpud").args(["run", "--config"]).arg(&path));
    assert_eq!(said.code, 1, "{said:?}");
    for words in [
        "isolatoin",
        "Did you mean \"isolation\"",
        "pids_max",
        "gpud.toml:1",
        "gpud.toml:2",
        "^",
    ] {
        assert!(said.err.contains(words), "{words}: {}", said.err);
    }
    // A start by the sandbox prints the error, so its log need not be read.
    let said = pool.sandbox(&["start", "node1"]);
    assert!(
        said.code == 1
            && said.err.contains("node1 ended while starting")
            && said.err.contains("Did you mean \"isolation\""),
        "{said:?}"
    );
    fs::write(&path, good).unwrap();
    pool.start("node1");
    pool.wait_idle("node1");
}

#[test]
fn a_bad_reload_changes_nothing_and_a_bad_file_starts_nothing() {
    let Some(pool) = Pool::up(1, "h100:2") else {
        return;
    };
    let file = pool.dir.join("gpuctld/partitions.d/main.toml");
    let good = fs::read_to_string(&file).unwrap();
    fs::write(
        &file,
        format!("{good}[partition.long]\nmax_tme = \"9-0\"\nnodes = \"node[\"\n"),
    )
    .unwrap();
    let check = say(pool
        .command("gpuctld")
        .args(["check", "--config"])
        .arg(pool.config("gpuctld")));
    assert_eq!(check.code, 1);
    for words in ["max_tme", "max_time", "main.toml", "nodes", "^"] {
        assert!(check.err.contains(words), "{words}: {}", check.err);
    }
    let said = pool.run("gadm", &["reload"]);
    said.fails_with(1, "max_tme");
    pool.signal("gpuctld", nix::sys::signal::Signal::SIGHUP);
    let said = pool.run("gnodes", &["-p", "-h", "-o", "%P"]);
    assert_eq!(said.out.trim(), "main*", "{said:?}");
    let id = pool.gsub(&["--wrap", "true"]);
    pool.wait_state(id, Completed);
    pool.kill("gpuctld");
    let said = say(pool
        .command("gpuctld")
        .args(["run", "--config"])
        .arg(pool.config("gpuctld")));
    said.fails_with(1, "max_tme");
    // A good one is taken while it runs.
    fs::write(&file, &good).unwrap();
    pool.start("gpuctld");
    fs::write(
        &file,
        format!("{good}[partition.long]\nmax_time = \"9-0\"\n"),
    )
    .unwrap();
    assert_eq!(pool.run("gadm", &["reload"]).code, 0);
    let id = pool.gsub(&["-p", "long", "-t", "8-0", "--wrap", "true"]);
    pool.wait_state(id, Completed);
}

#[test]
fn a_lost_gpu_costs_one_gpu() {
    let Some(pool) = Pool::up(1, "h100:4") else {
        return;
    };
    let ids: Vec<u64> = (0..2)
        .map(|_| {
            pool.gsub(&[
                "--gpus",
                "1",
                "--mem",
                "1G",
                "--wrap",
                "while [ ! -e go ]; do sleep 0.02; done",
            ])
        })
        .collect();
    for id in &ids {
        pool.wait_state(*id, Running);
    }
    let said = pool.sandbox(&["fault", "node1", "gpu3", "lost"]);
    assert_eq!(said.code, 0, "{said:?}");
    pool.wait_until("the fault is seen", || {
        pool.node("node1")
            .gpus
            .iter()
            .filter(|gpu| !gpu.fault.is_empty() || !gpu.present)
            .count()
            == 1
    });
    // Two are taken and one is broken: one is left.
    let fits = pool.gsub(&["--gpus", "1", "--mem", "1G", "--wrap", "true"]);
    pool.wait_state(fits, Completed);
    let waits = pool.gsub(&["--gpus", "2", "--mem", "1G", "--wrap", "true"]);
    pool.write("go", "");
    for id in &ids {
        assert_eq!(pool.wait_state(*id, Completed).attempts, 1);
    }
    pool.wait_state(waits, Completed);
    assert!(
        pool.node("node1").drains.is_empty(),
        "{:?}",
        pool.node("node1").drains
    );
}

#[test]
fn down_takes_running_jobs_daemons_and_mounts_with_it_also_when_daemons_are_dead() {
    let Some(pool) = Pool::up(2, "h100:2") else {
        return;
    };
    for node in ["node1", "node2"] {
        let id = pool.gsub(&[
            "--gpus",
            "1",
            "-w",
            node,
            "--wrap",
            "trap '' TERM; (setsid sleep 1000 &); while :; do sleep 1; done",
        ]);
        pool.wait_state(id, Running);
    }
    pool.kill("node1");
    pool.kill("gpuctld");
    pool.down();
}

#[test]
fn down_ends_hollow_nodes_and_daemons_whose_number_is_lost() {
    let temp = temp_dir();
    let dir = temp.path().join("pool");
    let gadm = programs().join("gadm");
    let shown = dir.display().to_string();
    let run = |args: &[&str]| {
        let mut command = Command::new(&gadm);
        say(command.arg("sandbox").args(args).args(["--dir", &shown]))
    };
    let up = run(&[
        "up",
        "--nodes",
        "1",
        "--gpus",
        "h100:2",
        "--hollow-nodes",
        "20",
    ]);
    assert_eq!(up.code, 0, "{up:?}");
    let home = format!("{shown}/");
    let running = || {
        let entries = fs::read_dir("/proc").unwrap().flatten();
        let lines = entries.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
        lines
            .filter(|line| {
                line.split(|byte| *byte == 0)
                    .any(|word| word.starts_with(home.as_bytes()))
            })
            .count()
    };
    assert!(running() >= 3, "gpuctld, node1 and the hollow nodes run");
    fs::remove_file(dir.join("node1/pid")).unwrap();
    let down = run(&["down"]);
    assert_eq!(down.code, 0, "{down:?}");
    assert_eq!(running(), 0, "{down:?}");
    assert!(!dir.exists());
}
