//! `gsub` as a process, against a controller that takes everything: what is sent, what is said, how it exits.

use expect_test::{Expect, expect};
use gcli::fake_controller::{Answer, FakeController, Request};
use serde_json::Value;
use std::sync::atomic::{AtomicU32, Ordering};

const GSUB: &str = env!("CARGO_BIN_EXE_gsub");

fn answer(request: &Request) -> Answer {
    match request.path.as_str() {
        "/v1/cluster" => Answer::ok(r#"{"schema":1,"name":"lab"}"#),
        "/v1/jobs" => Answer::ok(
            r#"{"schema":1,"id":17,"notes":["no time limit was asked for; it is 1-00:00:00"]}"#,
        ),
        "/v1/jobs/dry-run" => Answer::ok(
            r#"{"schema":1,"nodelist":"","cpus":2,"partition":"main","reason":"Resources","text":"would wait in partition main (Resources): needs 2 h100 on a node; node1 has 1 free of 8"}"#,
        ),
        path if path.starts_with("/v1/jobs/17/wait") => Answer::ok(
            r#"{"schema":1,"jobs":[{"id":17,"state":"COMPLETED"},{"id":18,"shown_id":"17_1","state":"FAILED","exit_code":{"code":0,"signal":9},
                "end_text":"output file no/such: No such file or directory"}]}"#,
        ),
        _ => Answer::refuse(404, "not_found", "no such path"),
    }
}

/// Runs gsub beside a script `job.sh` with this head.
fn submit(head: &str, words: &[&str], variables: &[(&str, &str)]) -> (FakeController, String) {
    let controller = FakeController::start(answer);
    std::fs::write(
        controller.dir().join("job.sh"),
        format!("#!/bin/sh\n{head}\nhostname\n"),
    )
    .unwrap();
    let ran = controller.run_with(GSUB, words, variables, "");
    let text = ran
        .text()
        .replace(&controller.dir().display().to_string(), "DIR");
    (controller, text)
}

fn check(head: &str, words: &[&str], variables: &[(&str, &str)], want: Expect) {
    want.assert_eq(&submit(head, words, variables).1);
}

fn sent(controller: &FakeController) -> Value {
    let requests = controller.requests();
    serde_json::from_str(&requests.first().expect("something was sent").body).unwrap()
}

/// The submission, if one came.
fn sent_job(controller: &FakeController) -> Option<Value> {
    let requests = controller.requests();
    let job = requests.iter().find(|request| request.path == "/v1/jobs")?;
    Some(serde_json::from_str(&job.body).unwrap())
}

#[test]
fn stdout_is_the_id_and_nothing_else() {
    let (controller, text) = submit(
        "#SBATCH -J fit -n2",
        &["-t", "30", "job.sh", "--epochs", "10"],
        &[],
    );
    expect![[r#"
        17
        stderr: gsub: no time limit was asked for; it is 1-00:00:00
    "#]]
    .assert_eq(&text);
    let sent = sent(&controller);
    let (spec, launch) = (&sent["spec"], &sent["spec"]["launch"]);
    assert_eq!(
        (
            spec["name"].as_str(),
            spec["time_limit_secs"].as_u64(),
            spec["request"]["ntasks"].as_u64()
        ),
        (Some("fit"), Some(1800), Some(2))
    );
    assert_eq!(launch["argv"].as_array().map(Vec::len), Some(2));
    assert_eq!(launch["work_dir"].as_str(), controller.dir().to_str());
    assert_eq!(
        launch["command"].as_str(),
        controller.dir().join("job.sh").to_str()
    );
    let limits = launch["rlimits"]
        .as_array()
        .expect("the limits of this process");
    assert!(
        limits
            .iter()
            .any(|limit| limit["name"] == "NOFILE" && limit["soft"].is_u64()),
        "{limits:?}"
    );
    assert!(
        launch["submit_host"]
            .as_str()
            .is_some_and(|host| !host.is_empty())
            && launch["umask"].is_u64()
    );
    assert!(sent["script"].as_str().unwrap().ends_with("\nhostname\n"));
    assert_eq!(sent["client_key"].as_str().map(str::len), Some(32));
}

#[test]
fn under_the_name_sbatch_it_says_what_sbatch_says_and_names_the_same_files() {
    let says = |words: &[&str]| {
        let controller = FakeController::start(answer);
        let ran = controller.run_as("sbatch", GSUB, words);
        let stdout = sent_job(&controller).map(|sent| {
            sent["spec"]["launch"]["stdout"]
                .as_str()
                .unwrap_or_default()
                .to_owned()
        });
        (ran.stdout, stdout.unwrap_or_default())
    };
    let pair = |line: &str, file: &str| (line.to_owned(), file.to_owned());
    assert_eq!(
        says(&["--wrap", "true"]),
        pair("Submitted batch job 17\n", "slurm-%j.out")
    );
    assert_eq!(
        says(&["-a", "0-3", "--wrap", "true"]),
        pair("Submitted batch job 17\n", "slurm-%A_%a.out")
    );
    assert_eq!(
        says(&["--parsable", "-o", "x", "--wrap", "true"]),
        pair("17\n", "x")
    );
    assert_eq!(
        says(&["-M", "lab", "--wrap", "true"]).0,
        "Submitted batch job 17 on cluster lab\n"
    );
    assert_eq!(
        says(&["-M", "lab", "--parsable", "--wrap", "true"]).0,
        "17;lab\n"
    );
    assert_eq!(
        says(&["-M", "all", "--parsable", "--wrap", "true"]).0,
        "17\n"
    );
    assert_eq!(
        says(&["-Q", "--wrap", "true"]),
        pair("", "slurm-%j.out"),
        "sbatch --quiet leaves out the id"
    );
    assert_eq!(
        says(&["--test-only", "--wrap", "true"]).0,
        says(&["--dry-run", "--wrap", "true"]).0
    );
    assert!(
        says(&["--version"])
            .0
            .starts_with("slurm 25.05.0 (as gpupool ")
    );
}

#[test]
fn another_cluster_is_refused_before_anything_is_submitted() {
    let controller = FakeController::start(answer);
    expect![[r#"
        stderr: gsub: --clusters lab2: this is cluster "lab", and its controller knows no other. GPUPOOL_CONFIG names another configuration
        exit: Some(1)
    "#]].assert_eq(&controller.run(GSUB, &["-M", "lab2", "--wrap", "true"]).text());
    assert!(sent_job(&controller).is_none());
    assert_eq!(
        controller
            .run(GSUB, &["-Q", "-M", "lab", "--wrap", "true"])
            .stdout,
        "17\n",
        "gsub prints the id and nothing else"
    );
}

#[test]
fn json_is_one_line_with_the_id_or_with_what_a_dry_run_says() {
    check(
        "",
        &["--json", "-Q", "job.sh"],
        &[],
        expect![[r#"
        {"schema":1,"id":17,"notes":["no time limit was asked for; it is 1-00:00:00"],"repeated":false}
    "#]],
    );
    check(
        "",
        &["--json", "--dry-run", "job.sh"],
        &[],
        expect![[r#"
        {"schema":1,"nodelist":"","cpus":2,"partition":"main","reason":"Resources","text":"would wait in partition main (Resources): needs 2 h100 on a node; node1 has 1 free of 8","notes":[]}
    "#]],
    );
}

#[test]
fn lines_and_colons_part_the_components_of_a_job() {
    check(
        "#SBATCH -n1 -J whole -o a --requeue\n#SBATCH hetjob\n#SBATCH -n2 -J part -o b --requeue",
        &["--dry-run", "job.sh"],
        &[],
        expect![[r#"
            would wait in partition main (Resources): needs 2 h100 on a node; node1 has 1 free of 8
            stderr: gsub: component 1: --output is of the whole job, and counts with the first component only
        "#]],
    );
    check(
        "",
        &["-n1", "job.sh", ":", "-n2"],
        &[],
        expect![[r#"
        stderr: gsub: ":" stands between the options of a job's parts, before the script or command, as in: gsub --gpus 8 : --cpus-per-task 16 train.sh
        exit: Some(2)
    "#]],
    );
}

#[test]
fn the_command_line_outranks_variables_and_these_the_script() {
    let head = "#SBATCH -p script -A script -q script --mem-per-cpu=1G\n#GSUB --gres=gpu:1";
    let variables = [
        ("SBATCH_PARTITION", "slurm"),
        ("GSUB_PARTITION", "ours"),
        ("SBATCH_ACCOUNT", "slurm"),
    ];
    let (controller, _) = submit(
        head,
        &["-p", "cli", "--gpus", "h100:2", "--mem=2G", "job.sh"],
        &variables,
    );
    let spec = &sent(&controller)["spec"];
    let text = |key: &str| spec[key].as_str().unwrap().to_owned();
    assert_eq!(
        [text("partition"), text("account"), text("qos")],
        ["cli", "slurm", "script"]
    );
    assert_eq!(
        (
            spec["request"]["gpus"].as_str(),
            spec["request"]["gpu_scope"].as_str()
        ),
        (Some("h100:2"), Some("job"))
    );
    assert_eq!(spec["request"]["mem"]["per_node"].as_u64(), Some(2 << 30));
    let (controller, _) = submit(head, &["job.sh"], &variables);
    assert_eq!(
        sent(&controller)["spec"]["partition"].as_str(),
        Some("ours")
    );
}

#[test]
fn scripts_come_from_stdin_from_wrap_and_commands_from_behind_dashes() {
    let controller = FakeController::start(answer);
    let ran = controller.run_with(
        GSUB,
        &["--tag=a", "--tag=b"],
        &[],
        "#!/bin/sh\n#SBATCH -J piped\ntrue\n",
    );
    assert_eq!(ran.stdout, "17\n");
    controller.run(GSUB, &["--wrap", "echo $HOME"]);
    controller.run(
        GSUB,
        &["-n2", "--", "/usr/bin/python3", "train.py", "--lr=1"],
    );
    let bodies: Vec<Value> = controller
        .requests()
        .iter()
        .map(|request| serde_json::from_str(&request.body).unwrap())
        .collect();
    let name = |at: usize| bodies[at]["spec"]["name"].as_str().unwrap();
    assert_eq!((name(0), name(1), name(2)), ("piped", "wrap", "python3"));
    assert_eq!(bodies[0]["spec"]["tags"], serde_json::json!(["a", "b"]));
    assert!(
        bodies[1]["script"]
            .as_str()
            .unwrap()
            .ends_with("\necho $HOME\n")
    );
    assert_eq!(bodies[2]["script"].as_str(), Some(""));
    assert_eq!(
        bodies[2]["spec"]["launch"]["argv"],
        serde_json::json!(["/usr/bin/python3", "train.py", "--lr=1"])
    );
}

#[test]
fn of_the_hour_that_comes_twice_the_first_is_meant() {
    // By the table of zones, and by the rule that a zone's name may be.
    for zone in ["Europe/Berlin", "CET-1CEST,M3.5.0,M10.5.0/3"] {
        if zone.contains('/')
            && !std::path::Path::new("/usr/share/zoneinfo")
                .join(zone)
                .exists()
            && !zone.contains(',')
        {
            continue;
        }
        for (asked, wanted) in [
            ("2027-10-31T02:30", 1_824_942_600_000i64),
            ("2027-10-31T03:30", 1_824_949_800_000),
            ("2027-10-31T01:30", 1_824_939_000_000),
        ] {
            let (controller, _) = submit("", &["-b", asked, "job.sh"], &[("TZ", zone)]);
            assert_eq!(
                sent_job(&controller).unwrap()["spec"]["begin"].as_i64(),
                Some(wanted),
                "{asked} in {zone}"
            );
        }
    }
}

#[test]
fn a_byte_order_mark_is_called_by_its_name() {
    let controller = FakeController::start(answer);
    std::fs::write(controller.dir().join("bom.sh"), "\u{feff}#!/bin/sh\ntrue\n").unwrap();
    let text = controller.run_with(GSUB, &["bom.sh"], &[], "").text();
    assert!(
        text.contains(
            "gsub: bom.sh: the batch script begins with a byte order mark (EF BB BF), before #!"
        ),
        "{text}"
    );
    assert!(
        text.contains(r"sed -i '1s/^\xEF\xBB\xBF//' SCRIPT"),
        "{text}"
    );
}

#[test]
fn the_environment_goes_as_export_says() {
    let variables = [("A", "1"), ("B", "2")];
    let environment = |words: &[&str]| {
        let (controller, _) = submit("", words, &variables);
        sent(&controller)["environment"]
            .as_array()
            .unwrap()
            .iter()
            .map(|word| word.as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert!(environment(&["job.sh"]).contains(&"A=1".to_owned()));
    assert_eq!(
        environment(&["--export=NONE", "job.sh"]),
        ["SLURM_EXPORT_ENV=NONE"]
    );
    assert_eq!(
        environment(&["--export=B,C=x", "job.sh"]),
        ["B=2", "C=x", "SLURM_EXPORT_ENV=B,C=x"]
    );
}

#[test]
fn options_of_later_releases_are_stored_from_a_script_and_refused_on_the_command_line() {
    let (controller, text) = submit("#SBATCH --spread-job --contiguous", &["job.sh"], &[]);
    expect![[r#"
        17
        stderr: gsub: job.sh: line 2: --contiguous changes nothing here: the topology keeps the nodes of a job close, as always
        stderr: gsub: job.sh: line 2: --spread-job changes nothing here: nodes are chosen so that other jobs find room, too
        stderr: gsub: no time limit was asked for; it is 1-00:00:00
    "#]]
    .assert_eq(&text);
    assert_eq!(
        sent(&controller)["spec"]["later"],
        serde_json::json!({"spread-job": "", "contiguous": ""})
    );
    check(
        "",
        &["--contiguous", "job.sh"],
        &[],
        expect![[r#"
            17
            stderr: gsub: --contiguous changes nothing here: the topology keeps the nodes of a job close, as always
            stderr: gsub: no time limit was asked for; it is 1-00:00:00
        "#]],
    );
    check(
        "#SBATCH --uid=bob",
        &["job.sh"],
        &[],
        expect![[r#"
        stderr: gsub: job.sh: line 2: --uid has no meaning here: a job belongs to the user whom the kernel names. Submit as that user, for instance with runuser -u NAME
        exit: Some(1)
    "#]],
    );
    check(
        "",
        &["job.sh"],
        &[("SBATCH_CLUSTERS", "a")],
        expect![[r#"
        stderr: gsub: --clusters a: this is cluster "lab", and its controller knows no other. GPUPOOL_CONFIG names another configuration
        exit: Some(1)
    "#]],
    );
}

#[test]
fn quiet_leaves_the_id_and_errors() {
    let notes_of_all_kinds = "#SBATCH --contiguous\nhostname\n#SBATCH -p late";
    assert_eq!(submit(notes_of_all_kinds, &["-Q", "job.sh"], &[]).1, "17\n");
    assert_eq!(
        submit("#SBATCH --quiet --contiguous", &["job.sh"], &[]).1,
        "17\n"
    );
    check(
        notes_of_all_kinds,
        &["job.sh"],
        &[],
        expect![[r#"
            17
            stderr: gsub: job.sh: line 4 looks like an option and is none: options begin a line, before the first command
            stderr: gsub: job.sh: line 2: --contiguous changes nothing here: the topology keeps the nodes of a job close, as always
            stderr: gsub: no time limit was asked for; it is 1-00:00:00
        "#]],
    );
    // The command line outranks the script, here too.
    check(
        "#SBATCH --quiet",
        &["-v", "job.sh"],
        &[],
        expect![[r#"
        17
        stderr: gsub: from the command line: --verbose
        stderr: gsub: no time limit was asked for; it is 1-00:00:00
    "#]],
    );
    check(
        "#SBATCH --contiguous -t x",
        &["-Q", "job.sh"],
        &[],
        expect![[r#"
        stderr: gsub: job.sh: line 2: --time: time limit "x" is in none of the forms minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes, days-hours:minutes:seconds or UNLIMITED. Try 90 (minutes) or 1:30:00
        exit: Some(1)
    "#]],
    );
}

#[test]
fn verbose_says_where_options_were_taken_from() {
    let head = "#SBATCH -J fit -n2\n#SBATCH --comment 'a b' -p script";
    check(
        head,
        &["-v", "-t", "30", "-H", "job.sh"],
        &[("SBATCH_PARTITION", "var")],
        expect![[r#"
        17
        stderr: gsub: from the command line: --hold --verbose --time=30
        stderr: gsub: from the variable SBATCH_PARTITION: --partition=var
        stderr: gsub: from job.sh, line 2: --job-name=fit --ntasks=2
        stderr: gsub: from job.sh, line 3: --comment="a b"
        stderr: gsub: no time limit was asked for; it is 1-00:00:00
    "#]],
    );
}

#[test]
fn lines_for_pbs_count_after_those_for_slurm_unless_they_are_to_be_left_out() {
    let head = "#SBATCH -J fit -t 9\n#PBS -N tune -l select=2:ncpus=4,vmem=1gb\ncd $PBS_O_WORKDIR";
    let request = |words: &[&str], variables: &[(&str, &str)]| {
        let spec = sent(&submit(head, words, variables).0)["spec"].clone();
        let (name, cpus) = (&spec["name"], &spec["request"]["cpus_per_task"]);
        format!("{name} {cpus} {}", spec["time_limit_secs"])
    };
    assert_eq!(request(&["job.sh"], &[]), r#""tune" 4 540"#);
    assert_eq!(request(&["-J", "mine", "job.sh"], &[]), r#""mine" 4 540"#);
    let ignored = r#""fit" null 540"#;
    assert_eq!(request(&["--ignore-pbs", "job.sh"], &[]), ignored);
    assert_eq!(request(&["job.sh"], &[("SBATCH_IGNORE_PBS", "1")]), ignored);
    check(
        head,
        &["job.sh"],
        &[],
        expect![[r#"
        17
        stderr: gsub: job.sh: line 3: -l vmem=1gb has no counterpart here
        stderr: gsub: job.sh: line 3: $PBS_O_WORKDIR is not set here; $SLURM_SUBMIT_DIR is
        stderr: gsub: no time limit was asked for; it is 1-00:00:00
    "#]],
    );
    check(
        "#BSUB -n 2\n#BSUB -w done(12)",
        &["job.sh"],
        &[],
        expect![[r#"
            stderr: gsub: job.sh: line 3: #BSUB: -w: "done(12)" is a dependency in LSF's words. Write #SBATCH --dependency=afterok:JOB, or leave all such lines out with --ignore-pbs
            exit: Some(1)
        "#]],
    );
}

#[test]
fn no_kill_is_sent() {
    let no_kill = |head: &str, words: &[&str], variables: &[(&str, &str)]| {
        sent(&submit(head, words, variables).0)["spec"]["no_kill"] == true
    };
    assert!(no_kill("#SBATCH -k", &["job.sh"], &[]));
    assert!(no_kill("", &["--no-kill", "job.sh"], &[]));
    assert!(no_kill("", &["job.sh"], &[("SBATCH_NO_KILL", "1")]));
    assert!(!no_kill("#SBATCH -k", &["--no-kill=off", "job.sh"], &[]));
    assert!(!no_kill("", &["job.sh"], &[]));
    check(
        "",
        &["--no-kill=on", "job.sh"],
        &[],
        expect![[r#"
        stderr: gsub: --no-kill: "on" is not known here. Write --no-kill, or --no-kill=off
        exit: Some(2)
    "#]],
    );
}

#[test]
fn mistakes_say_where_and_what_would_work() {
    check(
        "#SBATCH --partiton=x",
        &["job.sh"],
        &[],
        expect![[r#"
        stderr: gsub: job.sh: line 2: unknown option --partiton. Did you mean --partition? gsub --help lists them all.
        exit: Some(1)
    "#]],
    );
    check(
        "#SBATCH -t 1:xx",
        &["job.sh"],
        &[],
        expect![[r#"
        stderr: gsub: job.sh: line 2: --time: time limit "1:xx" is in none of the forms minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes, days-hours:minutes:seconds or UNLIMITED. Try 90 (minutes) or 1:30:00
        exit: Some(1)
    "#]],
    );
    check(
        "#SBATCH main",
        &["job.sh"],
        &[],
        expect![[r#"
        stderr: gsub: job.sh: line 2: #SBATCH: "main" is no option
        exit: Some(1)
    "#]],
    );
    check(
        "",
        &["job.sh"],
        &[("SBATCH_TIMELIMIT", "soon")],
        expect![[r#"
        stderr: gsub: SBATCH_TIMELIMIT: --time: time limit "soon" is in none of the forms minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes, days-hours:minutes:seconds or UNLIMITED. Try 90 (minutes) or 1:30:00
        exit: Some(2)
    "#]],
    );
    check(
        "",
        &["--nosuchflag"],
        &[],
        expect![[r#"
        stderr: gsub: unknown option --nosuchflag. gsub --help lists them all.
        exit: Some(2)
    "#]],
    );
    check(
        "",
        &["jb.sh"],
        &[],
        expect![[r#"
        stderr: gsub: cannot open jb.sh: there is no such file. Did you mean "job.sh"?
        exit: Some(1)
    "#]],
    );
    check(
        "",
        &["."],
        &[],
        expect![[r#"
        stderr: gsub: . is a directory. Name the script in it
        exit: Some(1)
    "#]],
    );
    check(
        "",
        &["/bin/true"],
        &[],
        expect![[r#"
        stderr: gsub: /bin/true: the batch script has a NUL byte at offset 7: it is a binary file. Run a program with gsub -- PROGRAM, or from a script that begins with #!/bin/sh
        exit: Some(1)
    "#]],
    );
    check(
        "",
        &["--wrap", "true", "job.sh"],
        &[],
        expect![[r#"
        stderr: gsub: --wrap is a script by itself, and "job.sh" is another. Keep one of them
        exit: Some(2)
    "#]],
    );
    check(
        "",
        &["--"],
        &[],
        expect![[r#"
        stderr: gsub: there is no command behind --
        exit: Some(2)
    "#]],
    );
    check(
        "hostname\n#SBATCH -n4",
        &["job.sh"],
        &[],
        expect![[r#"
        17
        stderr: gsub: job.sh: line 3 looks like an option and is none: options begin a line, before the first command
        stderr: gsub: no time limit was asked for; it is 1-00:00:00
    "#]],
    );
    check(
        "#SBATCH --wrap=x",
        &["job.sh"],
        &[],
        expect![[r#"
        stderr: gsub: job.sh: line 2: --wrap: it is for the command line, not for a script
        exit: Some(1)
    "#]],
    );
}

#[test]
fn texts_that_are_no_scripts_are_refused_before_anything_is_sent() {
    let controller = FakeController::start(answer);
    let refuse = |stdin: &str, want: Expect| {
        want.assert_eq(&controller.run_with(GSUB, &[], &[], stdin).text());
    };
    refuse(
        "echo hi\n",
        expect![[r#"
        stderr: gsub: stdin: This does not look like a batch script. The first line must start with #! followed by the path to an interpreter. For instance: #!/bin/sh
        exit: Some(1)
    "#]],
    );
    refuse(
        "",
        expect![[r#"
        stderr: gsub: stdin: Batch script is empty. Write #!/bin/sh and the commands to run
        exit: Some(1)
    "#]],
    );
    refuse(
        "#!/bin/sh\r\ntrue\r\n",
        expect![[r#"
        stderr: gsub: stdin: Batch script contains DOS line breaks (\r\n), the first in line 1, instead of expected UNIX line breaks (\n). Convert it, for instance with: sed -i 's/\r$//' SCRIPT
        exit: Some(1)
    "#]],
    );
    std::fs::write(controller.dir().join("big.sh"), vec![b'x'; 20 << 20]).unwrap();
    std::fs::write(
        controller.dir().join("latin.sh"),
        b"#!/bin/sh\n# gr\xfc\xdfe\n",
    )
    .unwrap();
    let run = |word: &str| controller.run(GSUB, &[word]).text();
    expect![[r#"
        stderr: gsub: big.sh: the batch script has 20971520 bytes and 4194304 (4 MiB) are the most. Keep data in files and let the script read them
        exit: Some(1)
    "#]].assert_eq(&run("big.sh"));
    expect![[r#"
        stderr: gsub: latin.sh: line 2 is not UTF-8. Convert it, for instance with: iconv -f latin1 -t utf8 SCRIPT
        exit: Some(1)
    "#]].assert_eq(&run("latin.sh"));
    assert!(controller.requests().is_empty());
}

#[test]
fn a_directory_that_vanished_is_said() {
    let controller = FakeController::start(answer);
    let gone = controller.dir().join("gone");
    let script = format!(
        "mkdir {0} && cd {0} && rmdir {0} && exec {GSUB} --wrap true",
        gone.display()
    );
    let ran = controller.run_with(
        "/bin/sh",
        &["-c", &script],
        &[("PATH", "/usr/bin:/bin")],
        "",
    );
    expect![[r#"
        stderr: gsub: the working directory no longer exists. Change to one that does, or use --chdir with an absolute path
        exit: Some(1)
    "#]].assert_eq(&ran.text());
}

#[test]
fn waiting_ends_with_the_highest_code_of_the_tasks() {
    let controller = FakeController::start(answer);
    let ran = controller.run(GSUB, &["-W", "--wrap", "true"]);
    assert_eq!((ran.stdout.as_str(), ran.exit), ("17\n", Some(137)));
    let why = "gsub: job 17_1: FAILED: output file no/such: No such file or directory\n";
    assert!(ran.text().contains(why), "{}", ran.text());
    assert!(
        !controller
            .run(GSUB, &["-W", "-Q", "--wrap", "true"])
            .text()
            .contains(why)
    );
}

#[test]
fn a_dry_run_says_what_it_would_wait_for_and_submits_nothing() {
    let controller = FakeController::start(answer);
    let ran = controller.run(GSUB, &["--test-only", "--wrap", "true"]);
    expect![[r#"
        would wait in partition main (Resources): needs 2 h100 on a node; node1 has 1 free of 8
    "#]]
    .assert_eq(&ran.text());
    assert!(
        controller
            .requests()
            .iter()
            .all(|request| request.path == "/v1/jobs/dry-run")
    );
}

#[test]
fn a_lost_answer_is_asked_again_with_the_same_key() {
    let asked = AtomicU32::new(0);
    let controller =
        FakeController::start(move |request| match asked.fetch_add(1, Ordering::Relaxed) {
            0 => Answer::HangUp,
            _ => answer(request),
        });
    assert_eq!(controller.run(GSUB, &["--wrap", "true"]).stdout, "17\n");
    let keys: Vec<Value> = controller
        .requests()
        .iter()
        .map(|request| serde_json::from_str::<Value>(&request.body).unwrap()["client_key"].clone())
        .collect();
    assert!(
        keys.len() == 2 && keys[0] == keys[1] && keys[0].is_string(),
        "{keys:?}"
    );
}

#[test]
fn refusals_of_the_controller_are_passed_on() {
    let text = "--gpus h100:16 on one node: the largest node in partition \"train\" has 8. Try --nodes 2 --gpus-per-node h100:8.";
    let controller = FakeController::start(move |_| Answer::refuse(400, "invalid", text));
    assert_eq!(
        controller.run(GSUB, &["--wrap", "true"]).text(),
        format!("stderr: gsub: {text}\nexit: Some(1)\n")
    );
}

#[test]
fn instants_in_refusals_and_notes_are_on_the_readers_clock() {
    let late = "it cannot end by its deadline 2026-11-20T21:34:16Z any more.";
    let controller = FakeController::start(move |_| Answer::refuse(400, "invalid", late));
    let said = controller
        .run_with(GSUB, &["--wrap", "true"], &[("TZ", "EST5")], "")
        .text();
    assert_eq!(
        said,
        "stderr: gsub: it cannot end by its deadline 2026-11-20T16:34:16 any more.\nexit: Some(1)\n"
    );
}

#[test]
fn help_is_short_and_version_is_told() {
    let controller = FakeController::start(answer);
    let help = controller.run(GSUB, &["--help"]);
    assert!(
        help.exit == Some(0)
            && help.stdout.contains("-t, --time <TIME>")
            && help.stdout.contains("Examples:"),
        "{}",
        help.stdout
    );
    assert!(
        !help.stdout.contains("--contiguous"),
        "what is not acted on is not offered"
    );
    assert_eq!(
        controller.run(GSUB, &["-V"]).stdout,
        format!("gsub {}\n", env!("CARGO_PKG_VERSION"))
    );
}
