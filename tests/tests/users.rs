//! What users get wrong: the error says what stands against it and what would work, and nothing is half done.

use gmodel::JobState::{Completed, Failed, Pending, Running};
use gpupool_tests::pool::{CommandOutput, Pool, say};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command};

/// `gsub` as an ordinary user.
fn gsub(pool: &Pool, args: &[&str]) -> CommandOutput {
    pool.run_as_user("gsub", args)
}

#[test]
fn requests_that_no_node_can_ever_meet_are_refused_with_numbers() {
    let Some(pool) = Pool::up(2, "h100:4") else {
        return;
    };
    let cases: [(&[&str], &str); 12] = [
        (&["-p", "nope"], r#"no partition "nope". There are: main."#),
        (
            &["--gpus", "8"],
            r#"8 GPUs on one node: the largest node in partition "main" has 4. Try --nodes 2 --gpus-per-node 4."#,
        ),
        (
            &["--gpus", "16"],
            r#"16 GPUs on one node: the largest node in partition "main" has 4. Ask for fewer."#,
        ),
        (
            &["--nodes", "1", "--ntasks", "6", "--gpus-per-task", "1"],
            r#"6 GPUs on one node: the largest node in partition "main" has 4. Try --nodes 2."#,
        ),
        (
            &["--gpus", "h100:5"],
            r#"5 h100 on one node: the largest node in partition "main" has 4. Try --nodes 2"#,
        ),
        (
            &["--gpus", "b200:1"],
            r#"partition "main" has none such (it has h100)"#,
        ),
        (
            &["--gpus", "1", "--gpu-mem", "400G"],
            r#"1 GPU with 400G on one node: partition "main" has none such (it has h100 with 80G)"#,
        ),
        (
            &["-N", "3"],
            r#"--nodes 3: partition "main" has 2 such nodes"#,
        ),
        (
            &["-c", "65"],
            r#"65 CPUs on one node: the largest node in partition "main" has 64"#,
        ),
        (
            &["--mem", "600G"],
            r#"the largest in partition "main" has 512G"#,
        ),
        (
            &["-t", "8-0"],
            r#"--time 8-00:00:00: partition "main" allows at most 7-00:00:00"#,
        ),
        (
            &["-C", "ib"],
            r#"no node of partition "main" has the feature "ib""#,
        ),
    ];
    for (options, words) in cases {
        let said = gsub(&pool, &[options, &["--wrap", "true"]].concat());
        said.fails_with(1, words);
        assert!(
            said.out.is_empty() && said.err.starts_with("gsub: "),
            "{said:?}"
        );
    }
    gsub(&pool, &["-w", "node7", "--wrap", "true"])
        .fails_with(1, r#""node7" is not a node of partition "main""#);
    // Of a refused submission nothing is left: the first that is taken is job 1.
    assert!(pool.jobs().is_empty());
    assert_eq!(gsub(&pool, &["--wrap", "true"]).id(), 1);
}

#[test]
fn host_lists_that_name_a_billion_nodes_are_refused_at_once() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    for (program, args) in [
        ("gsub", &["-w", "node[1-1000000000]", "--wrap", "true"][..]),
        ("gsub", &["-x", "node[1-1000000000]", "--wrap", "true"]),
        ("gq", &["-w", "node[1-1000000000]"]),
        ("gdel", &["-w", "node[1-1000000000]"]),
        ("gnodes", &["-n", "node[1-1000000000]"]),
        (
            "gadm",
            &["node", "drain", "node[1-1000000000]", "--reason", "x"],
        ),
    ] {
        let said = pool.run_as_user(program, args);
        assert!(said.code == 2 || said.code == 1, "{program}: {said:?}");
        assert!(
            said.err
                .contains("1000000000 nodes and 131072 are the most"),
            "{program}: {said:?}"
        );
    }
    gsub(&pool, &["-a", "0-9999999999", "--wrap", "true"])
        .fails_with(2, "index 9999999999 is larger than");
}

#[test]
fn scripts_that_are_none_are_refused_before_they_are_sent() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    let script = |name: &str, text: &str| pool.write(name, text).display().to_string();
    let unknown = script("unknown.sh", "#!/bin/sh\n#SBATCH --timee=5\ntrue\n");
    gsub(&pool, &[&unknown]).fails_with(
        1,
        "unknown.sh: line 2: unknown option --timee. Did you mean --time?",
    );
    let time = script("time.sh", "#!/bin/sh\n\n#GSUB --time=soon\ntrue\n");
    gsub(&pool, &[&time]).fails_with(
        1,
        "time.sh: line 3: --time: time limit \"soon\" is in none of the forms",
    );
    let plain = script("plain.sh", "echo hi\n");
    gsub(&pool, &[&plain]).fails_with(1, "The first line must start with #!");
    let empty = script("empty.sh", "");
    gsub(&pool, &[&empty]).fails_with(1, "Batch script is empty");
    gsub(&pool, &["absent.sh"]).fails_with(1, "cannot open absent.sh: there is no such file");
    gsub(&pool, &[pool.work.to_str().unwrap()]).fails_with(1, "directory");
    let binary = pool.write("binary", fs::read("/bin/true").unwrap());
    gsub(&pool, &[binary.to_str().unwrap()])
        .fails_with(1, "it is a binary file. Run a program with gsub -- PROGRAM");
    let large = pool.write("large.sh", vec![b'#'; 20_000_000]);
    gsub(&pool, &[large.to_str().unwrap()])
        .fails_with(1, "has 20000000 bytes and 4194304 (4 MiB) are the most");
    fs::set_permissions(&plain, fs::Permissions::from_mode(0o600)).unwrap();
    gsub(&pool, &[&plain]).fails_with(1, "plain.sh");
    assert!(pool.jobs().is_empty());
}

#[test]
fn a_script_in_the_window_before_the_limit_runs() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    let mut text = "#!/bin/sh\necho $0 > ran; exit 6\n".to_owned();
    text.push_str(
        &"# data data data data data data data data data data data data\n".repeat(65_000),
    );
    assert!((3 << 20..4 << 20).contains(&text.len()), "{}", text.len());
    let path = pool.write("large.sh", &text);
    let id = gsub(&pool, &["-o", "/dev/null", path.to_str().unwrap()]).id();
    assert_eq!(pool.wait_state(id, Failed).exit_code.code, 6);
}

#[test]
fn words_on_the_command_line_that_make_no_sense_are_usage_errors() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    let cases: [(&[&str], &str); 7] = [
        (&["--foo"], "unknown option --foo"),
        (&["--job-nme", "x"], "Did you mean --job-name?"),
        (
            &["--signal", "FOO"],
            r#"signal "FOO" is not known. Try USR1"#,
        ),
        (&["--begin", "yesterdaay"], "Try now+1hour, 16:00, tomorrow"),
        (&["--mem", "12Q"], "12Q"),
        (&["--nodes", "0"], "--nodes"),
        (&["--array", "5-1"], "--array"),
    ];
    for (options, words) in cases {
        let said = gsub(&pool, &[options, &["--wrap", "true"]].concat());
        assert!(
            said.err.contains(words) && said.out.is_empty(),
            "{options:?}: {said:?}"
        );
        assert!(said.code == 2 || said.code == 1, "{options:?}: {said:?}");
    }
    gsub(&pool, &["--"]).fails_with(2, "there is no command behind --");
    assert!(pool.jobs().is_empty());
}

#[test]
fn a_users_bad_directory_output_or_interpreter_fails_the_job_and_drains_nothing() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    pool.write("interpreter.sh", "#!/no/such/interp\ntrue\n");
    let secret = pool.work.join("roots");
    fs::create_dir(&secret).unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o700)).unwrap();
    let vanished = pool.work.join("vanished");
    let vanished = vanished.to_str().unwrap();
    let cases: [(&[&str], &str); 5] = [
        (
            &["-D", vanished, "--wrap", "true"],
            "vanished: No such file or directory",
        ),
        (&["-o", "roots/x", "--wrap", "true"], "Permission denied"),
        (&["-i", "no-input", "--wrap", "true"], "no-input"),
        (&["interpreter.sh"], r#"its interpreter "/no/such/interp""#),
        (&["--", "no-such-program"], "no-such-program"),
    ];
    for (args, words) in cases {
        let id = gsub(&pool, args).id();
        let job = pool.wait_state(id, Failed);
        assert!(job.end_text.contains(words), "{args:?}: {}", job.end_text);
        assert_eq!(job.attempts, 1, "{args:?} was tried again");
        let shown = pool.run("gq", &[&id.to_string()]);
        assert!(shown.out.contains("JobState=FAILED"), "{shown:?}");
    }
    pool.wait_idle("node1");
    let node = pool.node("node1");
    assert!(
        node.drains.is_empty() && node.strikes.is_empty(),
        "{node:?}"
    );
    // A directory that is not on the node may be on another machine: the output is kept, and read from there.
    let kept = gsub(&pool, &["-o", "none/x", "--wrap", "echo kept"]).id();
    pool.wait_state(kept, Completed);
    let output = pool.run("gq", &["--output", &kept.to_string()]);
    assert_eq!(output.out, "kept\n", "{output:?}");
}

#[test]
fn a_working_directory_that_vanishes_after_submission_fails_the_job_with_its_name() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    let dir = pool.work.join("gone");
    fs::create_dir(&dir).unwrap();
    let id = gsub(
        &pool,
        &["--hold", "-D", dir.to_str().unwrap(), "--wrap", "true"],
    )
    .id();
    fs::remove_dir(&dir).unwrap();
    assert_eq!(
        pool.run_as_user("gadm", &["job", "release", &id.to_string()])
            .code,
        0
    );
    let job = pool.wait_state(id, Failed);
    assert!(
        job.end_text.contains("gone: No such file or directory")
            && job.end_text.contains("--chdir"),
        "{}",
        job.end_text
    );
    assert!(pool.node("node1").drains.is_empty());
}

#[test]
fn an_array_of_500_with_a_missing_input_file_fails_500_times_and_drains_no_node() {
    let Some(pool) = Pool::up(2, "h100:4") else {
        return;
    };
    let id = gsub(
        &pool,
        &["-a", "0-499", "-i", "missing/%A_%a.in", "--wrap", "true"],
    )
    .id();
    let mut last = Vec::new();
    pool.wait_until("all 500 are over", || {
        last = pool
            .run(
                "gacct",
                &["-n", "-P", "-o", "state,reason", "-j", &id.to_string()],
            )
            .out
            .lines()
            .map(str::to_owned)
            .collect();
        last.len() == 500 && last.iter().all(|line| line.starts_with("FAILED"))
    });
    assert!(
        last.iter()
            .all(|line| line.contains("missing/") && line.contains("No such file or directory")),
        "{:?}",
        last[0]
    );
    for name in ["node1", "node2"] {
        pool.wait_idle(name);
        assert!(
            pool.node(name).drains.is_empty() && pool.node(name).strikes.is_empty(),
            "{:?}",
            pool.node(name)
        );
    }
    pool.check();
}

#[test]
fn another_users_job_is_looked_at_and_not_touched() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    let of_root = pool
        .gsub(&["--wrap", "echo secret; sleep 1000"])
        .to_string();
    pool.wait_state(of_root.parse().unwrap(), Running);
    let name = &pool.person().name;
    let whose = format!("job {of_root} belongs to root; you are {name}");
    pool.run_as_user("gdel", &[&of_root]).fails_with(1, &whose);
    pool.run_as_user("gdel", &["-s", "USR1", &of_root])
        .fails_with(1, &whose);
    pool.run_as_user("gadm", &["job", "hold", &of_root])
        .fails_with(1, &whose);
    pool.run_as_user("gadm", &["job", "requeue", &of_root])
        .fails_with(1, &whose);
    pool.run_as_user("gadm", &["job", "update", &of_root, "TimeLimit=10"])
        .fails_with(1, &whose);
    pool.run_as_user("gq", &["--script", &of_root])
        .fails_with(1, "is for its owner root and operators");
    let listed = pool.run_as_user("gq", &["-h", "-o", "%i %u %T"]);
    assert_eq!(
        listed.out.split_whitespace().collect::<Vec<_>>(),
        [&of_root, "root", "RUNNING"]
    );
    assert_eq!(pool.job(of_root.parse().unwrap()).state, Running);
    // One refusal among several leaves the rest done, and says which.
    let own = gsub(&pool, &["--hold", "--wrap", "true"]).id();
    let said = pool.run_as_user("gdel", &[&of_root, &own.to_string(), "999"]);
    said.fails_with(1, &whose);
    assert!(said.err.contains("no job 999 in the queue"), "{said:?}");
    pool.wait_state(own, gmodel::JobState::Cancelled);
    assert_eq!(pool.job(of_root.parse().unwrap()).state, Running);
}

#[test]
fn administration_is_refused_to_ordinary_users() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    let backup = pool.work.join("backup.db");
    let cases: [&[&str]; 7] = [
        &["node", "drain", "node1", "--reason", "x"],
        &["node", "resume", "node1"],
        &["node", "down", "node1", "--reason", "x"],
        &["node", "remove", "node1"],
        &["token", "node", "--role", "compute"],
        &["reload"],
        &["backup", backup.to_str().unwrap()],
    ];
    for words in cases {
        let said = pool.run_as_user("gadm", words);
        said.fails_with(1, "is for root and the operators in gpuctld.toml");
    }
    assert!(!backup.exists());
    assert_eq!(pool.node("node1").state, "IDLE");
    // No other user reads the daemons' files.
    for path in [
        "gpuctld/state/gpupool.db",
        "node1/state/node.key",
        "node1/spool/life.json",
    ] {
        let path = pool.dir.join(path);
        let said = say(Command::new("cat")
            .arg(&path)
            .uid(pool.person().uid)
            .gid(pool.person().gid));
        assert!(
            said.code != 0 && said.err.contains("Permission denied"),
            "{}: {said:?}",
            path.display()
        );
    }
}

#[test]
fn owners_hold_release_update_requeue_and_cancel_their_own() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    let id = gsub(&pool, &["--begin", "now+1hour", "--wrap", "true"]).id();
    let text = id.to_string();
    for words in [
        &["job", "hold", &text][..],
        &["job", "release", &text],
        &["job", "update", &text, "TimeLimit=10", "Comment=mine"],
    ] {
        let said = pool.run_as_user("gadm", words);
        assert_eq!(said.code, 0, "{words:?}: {said:?}");
    }
    let job = pool.job(id);
    assert_eq!(
        (job.time_limit_secs, job.comment.as_str(), job.state),
        (Some(600), "mine", Pending)
    );
    assert_eq!(pool.run_as_user("gdel", &[&text]).code, 0);
    pool.wait_state(id, gmodel::JobState::Cancelled);
    pool.run_as_user("gadm", &["job", "update", "999", "TimeLimit=10"])
        .fails_with(1, "no job 999");
}

#[test]
fn a_job_is_its_users_own_with_their_groups_umask_and_directory() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    let id =
        gsub(&pool, &["--wrap", "id -un; id -G; umask; pwd; cat /proc/self/status | grep -i CapEff; ls -l /proc/self/fd | wc -l"]).id();
    pool.wait_state(id, Completed);
    let person = pool.person();
    let out = pool.file(&format!("gsub-{id}.out"));
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines[0], person.name);
    assert_eq!(lines[1], person.gid.to_string());
    assert_eq!(lines[2], "0022");
    assert_eq!(lines[3], pool.work.to_str().unwrap());
    assert!(lines[4].ends_with("0000000000000000"), "{out}");
    // stdin, stdout, stderr, the listing itself, and ls's "total" line.
    assert_eq!(lines[5].trim(), "5", "{out}");
    let owner = fs::metadata(pool.work.join(format!("gsub-{id}.out"))).unwrap();
    assert_eq!((owner.uid(), owner.gid()), (person.uid, person.gid));
}

#[test]
fn without_a_controller_commands_exit_with_3_and_say_where_they_looked() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    let socket = pool.socket();
    let config = fs::read_to_string(pool.dir.join("client.toml")).unwrap();
    fs::write(
        pool.dir.join("client.toml"),
        format!("wait_secs = 0\n{config}"),
    )
    .unwrap();
    pool.kill("gpuctld");
    for (program, args) in [
        ("gsub", &["--wrap", "true"][..]),
        ("gq", &[]),
        ("gdel", &["1"]),
        ("gnodes", &[]),
        ("gacct", &[]),
        ("gadm", &["diag"]),
    ] {
        let said = pool.run_as_user(program, args);
        said.fails_with(3, &format!("no controller answers at {}", socket.display()));
    }
}

#[test]
fn holds_and_drains_of_several_stand_side_by_side() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    let id = gsub(&pool, &["--hold", "--wrap", "true"]).id();
    let text = id.to_string();
    assert_eq!(pool.run("gadm", &["job", "hold", &text]).code, 0);
    assert_eq!(pool.job(id).holds.len(), 2, "{:?}", pool.job(id).holds);
    // The owner lifts their own, and only that.
    assert_eq!(pool.run_as_user("gadm", &["job", "release", &text]).code, 0);
    let job = pool.job(id);
    assert_eq!(
        (job.holds.len(), job.state, job.reason),
        (1, Pending, gmodel::ReasonCode::JobHeldAdmin),
        "{job:?}"
    );

    let name = pool.person().name.clone();
    pool.reconfigure("gpuctld", &format!("operators = [\"{name}\"]"));
    pool.wait_idle("node1");
    assert_eq!(
        pool.run("gadm", &["node", "drain", "node1", "--reason", "a fan"])
            .code,
        0
    );
    assert_eq!(
        pool.run_as_user("gadm", &["node", "drain", "node1", "--reason", "a disk"])
            .code,
        0
    );
    let reasons: Vec<_> = pool
        .node("node1")
        .drains
        .into_iter()
        .map(|drain| drain.reason)
        .collect();
    assert_eq!(reasons.len(), 2, "{reasons:?}");
    let shown = pool.run("gnodes", &["-R"]);
    assert!(
        shown.out.contains("a fan") && shown.out.contains("a disk"),
        "{shown:?}"
    );
    // An operator's release is not bound to owners.
    assert_eq!(pool.run("gadm", &["job", "release", &text]).code, 0);
    let unavailable = gmodel::ReasonCode::ReqNodeNotAvail;
    pool.wait_until("it waits for the drained node", || {
        pool.job(id).reason == unavailable
    });
    assert_eq!(pool.job(id).state, Pending, "a drained node got a job");
    while !pool.node("node1").drains.is_empty() {
        let said = pool.run("gadm", &["node", "resume", "node1"]);
        assert_eq!(said.code, 0, "{said:?}");
        let said = pool.run_as_user("gadm", &["node", "resume", "node1"]);
        assert!(
            said.code == 0 || pool.node("node1").drains.is_empty(),
            "{said:?}"
        );
    }
    pool.wait_state(id, Completed);
}

/// A login node of its own beside the pool: `gpud` as `gpud join` and its unit would have it. Ended when dropped.
struct LoginNode {
    config: PathBuf,
    state: PathBuf,
    client: PathBuf,
    daemon: Option<Child>,
}

impl LoginNode {
    fn new(pool: &Pool, name: &str) -> Self {
        let home = pool.work.join(name);
        fs::create_dir(&home).unwrap();
        let path = |part: &str| home.join(part).display().to_string();
        let text = format!(
            "controller = {:?}\nstate_dir = {:?}\nspool_dir = {:?}\nrun_dir = {:?}\ngpus = \"none\"\nisolation = \"none\"\n",
            pool.controller(),
            path("state"),
            path("spool"),
            path("run"),
        );
        let config = pool.write(&format!("{name}/gpud.toml"), text);
        let client = pool.write(
            &format!("{name}/client.toml"),
            format!("socket = {:?}\n", path("run/gpud.sock")),
        );
        Self {
            config,
            state: home.join("state"),
            client,
            daemon: None,
        }
    }

    /// Joins with a new token and serves from then on.
    fn join(&mut self, pool: &Pool, words: &[&str]) {
        let said = pool.run(
            "gadm",
            &[&["token", "node", "--role", "login"], words].concat(),
        );
        assert_eq!(said.code, 0, "{said:?}");
        let mut join = pool.command("gpud");
        join.args([
            "join",
            "--controller",
            &pool.controller(),
            "--token",
            said.out.trim(),
            "--state-dir",
        ])
        .arg(&self.state);
        let said = say(&mut join);
        assert!(
            said.code == 0 && said.err.contains("as login node"),
            "{said:?}"
        );
        self.start(pool);
    }

    fn start(&mut self, pool: &Pool) {
        self.stop();
        let log = fs::File::create(self.state.join("log")).unwrap();
        let mut daemon = pool.command("gpud");
        daemon
            .args(["run", "--config"])
            .arg(&self.config)
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        self.daemon = Some(daemon.spawn().unwrap());
        pool.wait_until("the login node serves", || {
            say(pool.user_command("gq").env("GPUPOOL_CONFIG", &self.client)).code == 0
        });
    }

    fn stop(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            daemon.kill().unwrap();
            daemon.wait().unwrap();
        }
    }

    /// `gadm` there, as the ordinary user.
    fn gadm(&self, pool: &Pool, words: &[&str]) -> CommandOutput {
        say(pool
            .user_command("gadm")
            .env("GPUPOOL_CONFIG", &self.client)
            .args(words))
    }
}

impl Drop for LoginNode {
    fn drop(&mut self) {
        self.stop();
    }
}

#[test]
fn operators_administer_from_login_nodes_that_are_marked_admin_and_from_no_other() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    let drain = ["node", "drain", "node1", "--reason", "a fan"];
    let resume = ["node", "resume", "node1"];
    let mut login = LoginNode::new(&pool, "login1");
    login.join(&pool, &["--name", "login1", "--admin"]);
    login
        .gadm(&pool, &drain)
        .fails_with(1, "is for root and the operators in gpuctld.toml");
    pool.reconfigure(
        "gpuctld",
        &format!("operators = [\"{}\", \"root\"]", pool.person().name),
    );
    pool.wait_idle("node1");
    let works = |login: &LoginNode| {
        for words in [&drain[..], &resume[..]] {
            let mut last = None;
            // Connections to the controller that was killed end one by one.
            pool.wait_until("the operator may", || {
                let said = login.gadm(&pool, words);
                let done = said.code == 0;
                last = Some(said);
                done || {
                    assert!(
                        !last.as_ref().unwrap().err.contains("marked admin"),
                        "{last:?}"
                    );
                    false
                }
            });
        }
    };
    works(&login);
    say(pool
        .command("gadm")
        .env("GPUPOOL_CONFIG", &login.client)
        .args(drain))
    .fails_with(1, "not forwarded from other machines");
    // A new certificate is marked as the old one was.
    let said = say(pool
        .command("gpud")
        .args(["renew", "--config"])
        .arg(&login.config));
    assert_eq!(said.code, 0, "{said:?}");
    login.start(&pool);
    works(&login);

    let mut plain = LoginNode::new(&pool, "login2");
    plain.join(&pool, &["--name", "login2"]);
    plain
        .gadm(&pool, &drain)
        .fails_with(1, "gadm token node --role login --admin");
    assert_eq!(pool.node("node1").state, "IDLE");
    assert!(pool.node("login1").admin && !pool.node("login2").admin);

    // The mark is taken away by a newer token; the certificate that had it opens nothing any more.
    let marked =
        ["node.crt", "node.key"].map(|file| (file, fs::read(login.state.join(file)).unwrap()));
    login.stop();
    login.join(&pool, &["--name", "login1"]);
    login
        .gadm(&pool, &drain)
        .fails_with(1, "gadm token node --role login --admin");
    login.stop();
    for (file, bytes) in marked {
        fs::write(login.state.join(file), bytes).unwrap();
    }
    let log = fs::File::create(login.state.join("log")).unwrap();
    let mut daemon = pool.command("gpud");
    daemon
        .args(["run", "--config"])
        .arg(&login.config)
        .stdout(log.try_clone().unwrap())
        .stderr(log);
    login.daemon = Some(daemon.spawn().unwrap());
    pool.wait_until("it is told", || {
        fs::read_to_string(login.state.join("log"))
            .unwrap()
            .contains("since then the machine joined again")
    });
    assert_ne!(login.gadm(&pool, &drain).code, 0);
    assert_eq!(pool.node("node1").state, "IDLE");
    pool.run("gadm", &["token", "node", "--role", "compute", "--admin"])
        .fails_with(2, "--admin is for login nodes");
}
