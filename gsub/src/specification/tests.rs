use super::*;
use crate::option_words::{Origin, read};
use expect_test::{Expect, expect};
use gmodel::job::Switches;
use gmodel::option_table::{OPTIONS, OptionStatus, OptionValue};

fn submission(words: &[&str]) -> Result<Submission, Failure> {
    let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    let mut choices = Choices::of(read(&words, &Origin::CommandLine)?.0)?;
    let submitter = Submitter {
        work_dir: Some("/home/me".into()),
        host: "login1".into(),
        umask: 0o22,
        limits: Vec::new(),
        now: Timestamp::from_secs(1_795_165_527),
        outside: false,
    };
    let submission = build(&mut choices, &Work::wrapped("true"), &submitter)?;
    assert_eq!(choices.left(), [""; 0]);
    Ok(submission)
}

fn check(words: &str, want: Expect) {
    let words: Vec<&str> = words.split(' ').collect();
    want.assert_eq(&match submission(&words) {
        Ok(submission) => serde_json::to_string(&submission.spec.request).unwrap(),
        Err(failure) => format!("{}: {}", failure.exit, failure.text),
    });
}

/// A value for each option that takes one.
fn sample(name: &str) -> &'static str {
    match name {
        "array" => "1-3",
        "container-env" => "LANG",
        "container-mounts" => "/data:/data:ro",
        "begin" | "deadline" => "now+1hour",
        "checkpoint" => "USR1@120",
        "dependency" => "afterok:17",
        "kill-on-invalid-dep" => "yes",
        "mail-type" => "END,fail",
        "licenses" => "matlab:2",
        "switches" => "1@30:00",
        "export" => "NONE",
        "gpu-bind" => "closest",
        "gpu-mem" => "40G",
        "gres" => "gpu:2",
        "distribution" => "cyclic",
        "nodefile" => concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/nodes.txt"),
        "tres-bind" => "gres/gpu:closest",
        "tres-per-task" => "cpu=3",
        "mem" | "mem-per-cpu" | "mem-per-gpu" => "2G",
        "nodelist" | "exclude" => "n[1-2]",
        "open-mode" => "append",
        "visible-devices" => "uuid",
        "signal" => "USR1@60",
        "rendezvous" => "jax",
        "chdir" => "/tmp",
        "job-name" | "account" | "partition" | "qos" | "comment" | "constraint" | "prefer"
        | "reservation" | "output" | "error" | "input" | "mail-user" | "tag" => "x",
        _ => "7",
    }
}

#[test]
fn of_a_range_of_nodes_the_least_is_taken_where_it_is_asked_for() {
    let nodes = |words: &[&str]| {
        let request = submission(words).unwrap().spec.common.request.clone();
        (request.nodes_min, request.nodes_max)
    };
    assert_eq!(nodes(&["-N2-4"]), (2, 4));
    assert_eq!(nodes(&["-N2-4", "--use-min-nodes"]), (2, 2));
}

#[test]
fn every_done_option_changes_the_submission() {
    let show = |submission: &Submission| {
        let Submission {
            spec,
            others: _,
            export,
            wait,
            dry_run,
            parsable,
            clusters,
        } = submission;
        format!("{spec:?} {export:?} {wait} {dry_run} {parsable} {clusters}")
    };
    let plain = show(&submission(&["--hold"]).unwrap());
    for option in OPTIONS
        .iter()
        .filter(|option| option.status == OptionStatus::Done)
    {
        // Read before there is a submission, or without effect on it by definition.
        if [
            "help",
            "version",
            "wrap",
            "json",
            "quiet",
            "verbose",
            "hold",
            "ignore-pbs",
            "propagate",
            // Of a range of nodes.
            "use-min-nodes",
            "wait-all-nodes",
        ]
        .contains(&option.name)
        {
            continue;
        }
        let word = match option.value {
            OptionValue::Required(_) => format!("--{}={}", option.name, sample(option.name)),
            _ => option.flag(),
        };
        // What is asked of each GPU is for jobs that say something of GPUs.
        let changed = submission(&["--hold", &word])
            .or_else(|_| submission(&["--hold", "--gpus=0", &word]))
            .or_else(|_| submission(&["--hold", "--gpus=1", &word]))
            .or_else(|_| submission(&["--hold", "--container-image=x", &word]));
        let changed = show(&changed.unwrap());
        let contained = submission(&["--hold", "--container-image=x"]).map(|one| show(&one));
        assert!(
            changed != plain && (word == "--container-image=x" || Ok(changed) != contained),
            "{word}"
        );
    }
    assert_eq!(
        submission(&["--wckey=submitit"]).unwrap().spec.tags,
        ["submitit"],
        "every script of submitit has one"
    );
    check(
        "--wait-all-nodes=0",
        expect![[
            r#"2: --wait-all-nodes: "0": a job always begins when all its nodes are ready. Write 1, or leave it out"#
        ]],
    );
    assert!(
        submission(&["--hold"]).unwrap().spec.hold
            && !submission(&["--parsable"]).unwrap().spec.hold
    );
}

#[test]
fn requests_are_kept_in_the_users_terms() {
    check(
        "-N2-4 -n 8 -c 4",
        expect![[
            r#"{"nodes_min":2,"nodes_max":4,"ntasks":8,"cpus_per_task":4,"gpu_scope":"job"}"#
        ]],
    );
    check(
        "-N2 -n1",
        expect![[r#"{"nodes_min":1,"nodes_max":1,"ntasks":1,"gpu_scope":"job"}"#]],
    );
    check(
        "-N4 -n2 -w n[1-4]",
        expect![[
            r#"{"nodes_min":4,"nodes_max":4,"ntasks":2,"gpu_scope":"job","nodelist":"n[1-4]"}"#
        ]],
    );
    check(
        "-n 8 --ntasks-per-node=3",
        expect![[
            r#"{"nodes_min":3,"nodes_max":3,"ntasks":8,"ntasks_per_node":3,"gpu_scope":"job"}"#
        ]],
    );
    check(
        "--gpus-per-task=h100:1 --mem-per-gpu=10G",
        expect![[
            r#"{"nodes_min":1,"nodes_max":1,"ntasks":1,"mem":{"per_gpu":10737418240},"gpus":"h100:1","gpu_scope":"task"}"#
        ]],
    );
    check(
        "--gres=gpu:a100:2 --mem=0 --exclusive",
        expect![[
            r#"{"nodes_min":1,"nodes_max":1,"ntasks":1,"mem":{"per_node":0},"gpus":"a100:2","gpu_scope":"node","exclusive":true}"#
        ]],
    );
    check(
        "-G 0",
        expect![[r#"{"nodes_min":1,"nodes_max":1,"ntasks":1,"gpu_scope":"job"}"#]],
    );
    check(
        "--gpus=8 --gpus-per-node=4 --gpus-per-task=2",
        expect![[
            r#"{"nodes_min":2,"nodes_max":2,"ntasks":4,"ntasks_per_node":2,"gpus":"4","gpu_scope":"node"}"#
        ]],
    );
    check(
        "-G 0 --mem-per-gpu=10G --cpus-per-gpu=4",
        expect![[
            r#"{"nodes_min":1,"nodes_max":1,"ntasks":1,"cpus_per_gpu":4,"mem":{"per_gpu":10737418240},"gpu_scope":"job"}"#
        ]],
    );
    check(
        "-w n[1-2] -x m1 -C a100&ib",
        expect![[
            r#"{"nodes_min":1,"nodes_max":1,"ntasks":1,"gpu_scope":"job","nodelist":"n[1-2]","exclude":"m1","constraint":"a100&ib"}"#
        ]],
    );
}

#[test]
fn what_was_asked_for_is_in_the_jobs_environment_as_sbatch_has_it() {
    let variables = |words: &[&str]| {
        let mut all = submission(words).unwrap().export.select([]);
        all.retain(|line| line.starts_with("SLURM_"));
        all.join(" ")
    };
    assert_eq!(
        variables(&["-d", "singleton", "--hint=nomultithread", "-L", "a:2"]),
        "SLURM_JOB_DEPENDENCY=singleton SLURM_HINT=nomultithread SLURM_JOB_LICENSES=a:2"
    );
    assert_eq!(
        variables(&[
            "-N2",
            "--ntasks-per-node=4",
            "--mem-per-cpu=1G",
            "-G",
            "h100:8"
        ]),
        "SLURM_NTASKS_PER_NODE=4 SLURM_GPUS=h100:8"
    );
    assert_eq!(
        variables(&["--gres=gpu:2", "--cpus-per-gpu=3", "--mem-per-gpu=2G"]),
        "SLURM_CPUS_PER_GPU=3 SLURM_GPUS_PER_NODE=2"
    );
    assert_eq!(
        variables(&["-n2", "--gpus-per-task=1", "--mem=2G"]),
        "SLURM_GPUS_PER_TASK=1 SLURM_NTASKS=2"
    );
    assert_eq!(
        variables(&["-G2", "--ntasks-per-gpu=2"]),
        "SLURM_GPU_BIND=map_gpu:0*2,1*2 SLURM_GPUS=2 SLURM_NTASKS_PER_GPU=2 SLURM_NTASKS=4"
    );
    assert_eq!(
        variables(&["-G4", "--gpus-per-task=1"]),
        "SLURM_GPUS=4 SLURM_GPUS_PER_TASK=1 SLURM_NTASKS=4"
    );
    assert!(
        submission(&["-G1"])
            .unwrap()
            .export
            .select([])
            .contains(&"GSUB_GPUS=1".to_owned())
    );
}

#[test]
fn the_environment_of_a_login_is_asked_for_as_sbatch_has_it() {
    let secs = |words: &[&str]| {
        submission(&[words, &["--hold"]].concat())
            .unwrap()
            .spec
            .launch
            .login_env_secs
    };
    assert_eq!(
        [
            secs(&[]),
            secs(&["--export=ALL"]),
            secs(&["--export=NIL"]),
            secs(&["--export=ALL,A=1"])
        ],
        [None; 4]
    );
    assert_eq!(
        [
            secs(&["--export=NONE"]),
            secs(&["--export=A"]),
            secs(&["--get-user-env"]),
            secs(&["--get-user-env=L"])
        ],
        [Some(30); 4]
    );
    assert_eq!(
        [
            secs(&["--get-user-env=10"]),
            secs(&["--export=NONE", "--get-user-env=10L"])
        ],
        [Some(10); 2]
    );
    check(
        "--get-user-env=5S",
        expect![[
            r#"2: --get-user-env: "5S": an su without a login reads nothing of the user's. Write L, or leave the letter out"#
        ]],
    );
    check(
        "--get-user-env=0",
        expect![[r#"2: --get-user-env: "0" is not a number of seconds from 1 to 600"#]],
    );
    let told = submission(&["--export=A,B=1"]).unwrap().export.select([]);
    assert!(
        told.contains(&"SLURM_EXPORT_ENV=A,B=1".to_owned()),
        "{told:?}"
    );
}

#[test]
fn bad_values_name_their_option_and_what_would_work() {
    check(
        "-N 4-2",
        expect![[r#"2: --nodes: "4-2" has its larger number first. Write 2-4"#]],
    );
    check(
        "-n 0",
        expect!["2: --ntasks: 0 is too few: ask for at least 1"],
    );
    check(
        "-c x",
        expect![[r#"2: --cpus-per-task: "x" is not a whole number"#]],
    );
    check(
        "--mem 1.5G",
        expect![[
            r#"2: --mem: size "1.5G" has a fraction. Use the next smaller unit, as in 1536M for 1.5G"#
        ]],
    );
    check(
        "-w ./nodes",
        expect!["2: --nodelist: the nodes in ./nodes: No such file or directory (os error 2)"],
    );
    check(
        "-w node[1-1000000000]",
        expect![
            "2: --nodelist: the host list names 1000000000 nodes and 131072 are the most. Use a smaller range"
        ],
    );
    check(
        "--exclusive=user",
        expect![[r#"{"nodes_min":1,"nodes_max":1,"ntasks":1,"gpu_scope":"job"}"#]],
    );
    check(
        "--gpus=2 --nvlink=on",
        expect![[r#"2: --nvlink: "on" is not known here. Write --nvlink, or --nvlink=off"#]],
    );
    check(
        "--gpu-mem=40G",
        expect!["2: --gpu-mem: the job asks for no GPU. Add --gpus 1, or leave this out"],
    );
    check(
        "-N3 --gpus=8 --gpus-per-node=4",
        expect![
            "2: --gpus: 8 at --gpus-per-node 4 make 2 nodes, and --nodes asks for 3. Leave one of the three out"
        ],
    );
    check(
        "-n3 --gpus=8 --gpus-per-task=2",
        expect![
            "2: --gpus: 8 at --gpus-per-task 2 make 4 tasks, and --ntasks asks for 3. Leave one of the three out"
        ],
    );
    check(
        "--mail-type=END,FIAL",
        expect![[
            r#"2: --mail-type: "FIAL" is no event. Did you mean "FAIL"? Events are NONE, BEGIN, END, FAIL, REQUEUE, ALL, INVALID_DEPEND, STAGE_OUT, TIME_LIMIT, TIME_LIMIT_90, TIME_LIMIT_80, TIME_LIMIT_50, ARRAY_TASKS"#
        ]],
    );
    check(
        "--open-mode=w",
        expect![[r#"2: --open-mode: "w" is neither append nor truncate"#]],
    );
    check(
        "-t 1:xx",
        expect![[
            r#"2: --time: time limit "1:xx" is in none of the forms minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes, days-hours:minutes:seconds or UNLIMITED. Try 90 (minutes) or 1:30:00"#
        ]],
    );
}

#[test]
fn options_of_the_scheduler_are_read_early() {
    let spec = submission(&[
        "-d",
        "afterok:17?afterany:98_5",
        "-L",
        "matlab:2,ansys",
        "--time=60",
        "--time-min=10",
        "--switches=2",
        "--no-borrow",
    ])
    .unwrap()
    .spec;
    assert_eq!(
        spec.dependency.clone().unwrap().to_string(),
        "afterok:17?afterany:98_5"
    );
    assert_eq!(
        (
            spec.licences["matlab"],
            spec.licences["ansys"],
            spec.time_min_secs,
            spec.borrow
        ),
        (2, 1, Some(600), Some(false))
    );
    assert_eq!(
        spec.request.switches,
        Some(Switches {
            most: 2,
            wait_secs: None
        })
    );
    check(
        "-d afterok",
        expect![[
            r#"2: --dependency: "afterok": afterok names no job. Write afterok:17:18, after:17+10, aftercorr:98, singleton; `,` between conditions for all of them, `?` for any"#
        ]],
    );
    check(
        "-d afterok:1,after:2?afterany:3",
        expect![[
            r#"2: --dependency: "afterok:1,after:2?afterany:3": `,` and `?` cannot be mixed: all of the conditions, or any of them"#
        ]],
    );
    check(
        "-d aftrok:1",
        expect![[
            r#"2: --dependency: "aftrok:1": "aftrok" is no kind of dependency. Did you mean "afterok"? Write afterok:17:18, after:17+10, aftercorr:98, singleton; `,` between conditions for all of them, `?` for any"#
        ]],
    );
    check(
        "-L matlab:0",
        expect![[
            r#"2: --licenses: "matlab:0": counts go from 1 to 1000000. Write name:count with commas between, as in matlab:2,ansys"#
        ]],
    );
    check(
        "--time=10 --time-min=60",
        expect!["2: --time-min: 1:00:00 is more than the time limit 10:00. Make it less"],
    );
    check(
        "--deadline=2020-01-01",
        expect!["2: --deadline: 2020-01-01 has passed"],
    );
    check(
        "--deadline=someday",
        expect![[
            r#"2: --deadline: time "someday" is no time that can be read. Try now+1hour, 16:00, tomorrow, 2027-01-09 or 2027-01-09T06:00"#
        ]],
    );
    check(
        "--switches=1@x",
        expect![[
            r#"2: --switches: time limit "x" is in none of the forms minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes, days-hours:minutes:seconds or UNLIMITED. Try 90 (minutes) or 1:30:00"#
        ]],
    );
    check(
        "--reservation=a,b",
        expect![[
            r#"2: --reservation: "a,b" names several; a job runs in one. gadm reservation list shows them"#
        ]],
    );
    check(
        "--priority=TOP",
        expect!["2: --priority: TOP is not offered. Write a number above what gq --prio shows"],
    );
    check(
        "--kill-on-invalid-dep=maybe",
        expect![[r#"2: --kill-on-invalid-dep: "maybe" is neither yes nor no"#]],
    );
    check(
        "--checkpoint=KILL@10",
        expect![[
            r#"2: --checkpoint: "KILL@10": KILL and STOP cannot be answered. Write SIGNAL@GRACE, as in USR1@120 (seconds) or USR1@10:00, or a command as in './save.sh@120'"#
        ]],
    );
    check(
        "--prefer=a&&b",
        expect![[
            r#"2: --prefer: constraint "a&&b": a feature is missing beside & or |. Try a100&ib or a100|h100"#
        ]],
    );
}

#[test]
fn what_a_script_asks_for_is_put_aside_by_what_is_typed() {
    let plain = submission(&["--hold"]).unwrap();
    for typed in ["--exclusive=off", "--nvlink=off", "--switches=0"] {
        assert_eq!(
            submission(&["--hold", typed]).unwrap().spec,
            plain.spec,
            "{typed}"
        );
    }
}

#[test]
fn empty_values_of_lists_are_as_if_not_given() {
    let plain = submission(&["--hold"]).unwrap();
    for option in [
        "constraint",
        "prefer",
        "nodelist",
        "exclude",
        "dependency",
        "licenses",
        "reservation",
        "mail-type",
        "gres",
    ] {
        assert_eq!(
            submission(&["--hold", &format!("--{option}=")])
                .unwrap()
                .spec,
            plain.spec,
            "{option}"
        );
    }
    assert_eq!(
        submission(&["-o", "none", "-e", "None"])
            .unwrap()
            .spec
            .launch
            .stdout,
        "/dev/null",
        "as sbatch reads it"
    );
}

#[test]
fn times_and_directories_are_resolved_where_they_are_asked_for() {
    let spec = submission(&["-t", "30", "-b", "now+1hour", "-D", "run", "--nice"])
        .unwrap()
        .spec;
    assert_eq!(
        (
            spec.time_limit_secs,
            spec.launch.work_dir.as_str(),
            spec.nice
        ),
        (Some(1800), "/home/me/run", 100)
    );
    assert_eq!(spec.begin, Some(Timestamp::from_secs(1_795_165_527 + 3600)));
    assert_eq!(
        spec.launch.submit_dir, "/home/me",
        "where gsub was called, which --chdir does not change"
    );
    assert_eq!(
        submission(&["-D", "/home/me"])
            .unwrap()
            .spec
            .launch
            .submit_dir,
        "",
        "said once"
    );
    assert_eq!(
        submission(&["-t", "UNLIMITED"])
            .unwrap()
            .spec
            .time_limit_secs,
        Some(u32::MAX)
    );
    assert_eq!(
        submission(&["-D", "."]).unwrap().spec.launch.work_dir,
        "/home/me"
    );
}
