//! `gq` and `gdel` as processes, against canned answers of the API. Where Slurm's format is meant, the wanted
//! lines are those that Slurm 22.05.8 printed for the same jobs.

use expect_test::{Expect, expect};
use gcli::fake_controller::{Answer, FakeController, Request};
use serde_json::{Value, json};

const GQ: &str = env!("CARGO_BIN_EXE_gq");
const GDEL: &str = env!("CARGO_BIN_EXE_gdel");

/// The queue that the recorded session of Slurm had.
fn queue() -> Vec<Value> {
    let job = |id: u64, name: &str, more: Value| {
        let mut job = json!({
            "id": id, "shown_id": id.to_string(), "name": name, "user": "root", "uid": 0, "account": "root",
            "partition": "main", "qos": "normal", "state": "PENDING", "reason": "None", "priority": 4294901682u64,
            "nodes": 1, "nodelist": "", "cpus": 1, "ntasks": 1, "mem": "100M", "mem_bytes": 104857600, "gpus": "",
            "gpu_count": 0.0, "time_limit_secs": 600, "elapsed_secs": 0, "submit_time": "2026-11-20T09:05:27Z",
            "exit_code": {"code": 0, "signal": 0}, "attempts": 0, "work_dir": "/home/me/w", "command": "",
            "stdout": format!("/home/me/w/slurm-{id}.out"), "stderr": "", "stdin": "/dev/null", "comment": "",
            "constraint": "", "req_nodelist": "", "exclude": "", "exclusive": false, "requeue": true,
            "submit_host": "login1", "tags": []
        });
        job.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        job
    };
    // That a running job ends by its limit is worked out here; the controller has an end only for what ended.
    let running = |elapsed: i64| {
        json!({"state": "RUNNING", "nodelist": "node2", "elapsed_secs": elapsed, "attempts": 1,
               "start_time": "2026-11-20T09:05:27Z"})
    };
    let with = |mut one: Value, more: Value| {
        one.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        one
    };
    vec![
        job(
            97,
            "dep",
            json!({"reason": "Dependency", "priority": 4294901682u64}),
        ),
        job(
            98,
            "arr",
            json!({"shown_id": "98_5", "array_id": 98, "array_index": 5, "reason": "JobArrayTaskLimit",
            "priority": 4294901681u64, "stdout": "/dev/null"}),
        ),
        job(
            119,
            "wrap",
            json!({"reason": "PartitionTimeLimit", "reason_text": "asks for 99 days, the partition gives 1",
            "priority": 4294901664u64, "time_limit_secs": 8553600}),
        ),
        job(
            95,
            "run",
            with(
                running(14),
                json!({"priority": 4294901683u64, "cpus": 2, "mem": "300M",
            "mem_bytes": 314572800, "mem_total_bytes": 314572800, "gpus": "1", "gpu_count": 1.0, "time_limit_secs": 3600, "comment": "a b",
            "gpus_held": ["node2:h100:0"], "gpu_links": ["node2:NV18"], "tags": ["sweep", "x"], "later": {"dependency": "afterok:1"},
            "stdout": "/home/me/w/run-95.out"}),
            ),
        ),
        job(
            104,
            "arr",
            with(
                running(14),
                json!({"shown_id": "98_1", "array_id": 98, "array_index": 1,
            "priority": 4294901681u64, "stdout": "/dev/null"}),
            ),
        ),
    ]
}

/// Serves the queue as the controller does: filters by `job` only, which is what the tests need.
fn answer(request: &Request) -> Answer {
    let listing = |jobs: Vec<Value>| Answer::ok(json!({"schema": 1, "jobs": jobs}).to_string());
    let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
    let job = query.split('&').find_map(|pair| pair.strip_prefix("job="));
    let one = |id: &str| {
        queue()
            .into_iter()
            .filter(|job| job["shown_id"] == id)
            .collect::<Vec<_>>()
    };
    match path {
        "/v1/cluster" => Answer::ok(r#"{"schema":1,"name":"lab"}"#),
        "/v1/jobs" => match job {
            Some(ids) => listing(ids.split(',').flat_map(one).collect()),
            None => listing(queue()),
        },
        "/v1/jobs/119/why" => Answer::ok(json!({"schema": 1, "jobs": [{
            "id": 119, "shown_id": "119", "state": "PENDING", "reason": "Resources", "ahead": 12,
            "blockers": [
                {"code": "Resources", "text": "needs 8 h100 on one node; node07 comes nearest and has 7 of 8 GPUs free, more becomes free there at 2026-11-20T14:20:00Z", "until": "2026-11-20T15:00:00Z"},
                {"code": "AssocGrpGRES", "text": "account vision holds 30 of its 32 GPUs"}
            ],
            "expected_start": "2026-11-20T15:00:00Z", "expected_nodes": "node07",
            "interval": {"earliest": "2026-11-20T12:00:00Z", "latest": "2026-11-20T14:30:00Z",
                "record": {"partition": "main", "nominal_percent": 90, "intervals": 342, "right": 311, "median_width_secs": 840}},
            "changes": [{"option": "--gpus h100:7", "now": true, "start": "2026-11-20T09:00:00Z", "loss": 0.125}, {"option": "--time 30:00", "now": false, "start": "2026-11-20T12:00:00Z", "loss": 0.5}]
        }]}).to_string()),
        "/v1/jobs/120/why" => Answer::ok(json!({"schema": 1, "jobs": [
            {"id": 120, "shown_id": "120_[3-9%2]", "state": "PENDING", "reason": "JobHeldAdmin", "reason_text": "held by admin:root",
                "holds": [{"owner": "admin:root", "reason": "", "since": "2026-11-20T09:00:00Z"}]},
            {"id": 220, "shown_id": "120_[100-299999]", "state": "CANCELLED", "reason": "None", "end_text": "cancelled by ada"}
        ]}).to_string()),
        "/v1/jobs/121/why" => Answer::ok(json!({"schema": 1, "more": 14, "jobs": [{
            "id": 121, "shown_id": "121_[3-9%2]", "state": "PENDING", "reason": "JobArrayTaskLimit", "alternative": "l4:8",
            "blockers": [{"code": "Resources", "text": "needs 8 l4 on one node"}],
            "alternatives": [{"gpus": "h100:4", "blockers": [{"code": "AssocGrpGRES", "text": "account vision holds 30 of its 32 GPUs"}]}],
            "changes": [{"option": "Gpus=l4:4|h100:4 ArrayTaskThrottle=3", "now": true, "start": "2026-11-20T09:00:00Z", "loss": 0.5}]
        }]}).to_string()),
        "/v1/jobs/95/why" => Answer::ok(r#"{"schema":1,"jobs":[{"id":95,"shown_id":"95","state":"RUNNING","reason":"None"}]}"#),
        "/v1/starts" => Answer::ok(json!({"schema": 1, "jobs": [
            {"id": 119, "shown_id": "119", "name": "wrap", "user": "root", "partition": "main", "nodes": 1, "reason": "Resources", "ahead": 0,
             "earliest": "2026-11-20T11:00:00Z", "expected": "2026-11-20T12:00:00Z", "latest": "2026-11-20T13:30:00Z",
             "at_limits": "2026-11-20T15:00:00Z", "nodelist": "node07"},
            {"id": 97, "shown_id": "97", "name": "dep", "user": "root", "partition": "main", "nodes": 1, "reason": "Dependency", "ahead": 1},
            {"id": 98, "shown_id": "98_[5-9]", "name": "arr", "user": "root", "partition": "main", "nodes": 1, "reason": "Priority", "ahead": 1,
             "expected": "2026-11-20T12:30:00Z", "at_limits": "2026-11-20T15:00:00Z", "latest": "2026-11-20T15:00:00Z", "nodelist": "node07",
             "last_task": {"id": 102, "shown_id": "98_9", "expected": "2026-11-20T16:30:00Z", "at_limits": "2026-11-20T19:00:00Z", "latest": "2026-11-20T19:00:00Z"}}
        ], "records": [{"partition": "main", "nominal_percent": 90, "intervals": 342, "right": 311, "median_width_secs": 840}]}).to_string()),
        "/v1/jobs/95/log" => Answer::ok(concat!(r#"{"schema":1,"events":[{"at":"2026-11-20T09:05:20Z","text":"submitted by root to partition main","event":{}},"#,
            r#"{"at":"2026-11-20T09:05:27Z","text":"requeued, not before 2026-11-20T09:05:31Z: node2 was\u001b[2J lost","event":{}}],"#,
            r#""lines":["node2: 2026-11-20T09:05:27Z run 1 prepared\u001b[2J"]}"#)),
        "/v1/jobs/95/script" => Answer::Json(200, "#!/bin/sh\nhostname\n".into()),
        "/v1/jobs/cancel" => Answer::ok(match serde_json::from_str::<Value>(&request.body).unwrap()["jobs"][0].as_str() {
            Some("999999") => r#"{"schema":1,"results":[{"job":"999999","ok":false,"code":"not_found","error":"there is no job 999999","about":"job"}]}"#,
            Some(_) => r#"{"schema":1,"results":[{"job":"95","ok":true},{"job":"98_5","ok":true}]}"#,
            None => r#"{"schema":1,"results":[]}"#,
        }),
        path => match path.strip_prefix("/v1/jobs/").map(one) {
            Some(jobs) if !jobs.is_empty() => listing(jobs),
            _ => Answer::refuse(404, "not_found", "job 999999: there is no such job"),
        },
    }
}

fn check(program: &str, words: &[&str], want: Expect) {
    want.assert_eq(&FakeController::start(answer).run(program, words).text());
}

#[test]
fn the_listing_has_squeues_columns_and_the_gpus() {
    check(
        GQ,
        &[],
        expect![[r#"
        JOBID PARTITION NAME USER ST TIME NODES GPUS NODELIST(REASON)
           97 main      dep  root PD 0:00     1 0    (Dependency)
         98_5 main      arr  root PD 0:00     1 0    (JobArrayTaskLimit)
          119 main      wrap root PD 0:00     1 0    (PartitionTimeLimit)
           95 main      run  root R  0:14     1 1    node2
         98_1 main      arr  root R  0:14     1 0    node2
    "#]],
    );
    check(
        GQ,
        &["--long", "-h"],
        expect![[r#"
          97 main dep  root root PENDING 0:00       10:00 1 0       (Dependency)
        98_5 main arr  root root PENDING 0:00       10:00 1 0       (JobArrayTaskLimit)
         119 main wrap root root PENDING 0:00 99-00:00:00 1 0       (PartitionTimeLimit)
          95 main run  root root RUNNING 0:14     1:00:00 1 1       node2
        98_1 main arr  root root RUNNING 0:14       10:00 1 0       node2
    "#]],
    );
}

#[test]
fn under_the_name_squeue_the_listing_is_squeues_to_the_blank() {
    let controller = FakeController::start(answer);
    // Marked where lines begin: their blanks count.
    let lines = |words: &[&str]| {
        controller
            .run_as("squeue", GQ, words)
            .text()
            .lines()
            .map(|line| format!("|{line}\n"))
            .collect::<String>()
    };
    expect![[r#"
        |             JOBID PARTITION     NAME     USER ST       TIME  NODES NODELIST(REASON)
        |                97      main      dep     root PD       0:00      1 (Dependency)
        |              98_5      main      arr     root PD       0:00      1 (JobArrayTaskLimit)
        |               119      main     wrap     root PD       0:00      1 (PartitionTimeLimit)
        |                95      main      run     root  R       0:14      1 node2
        |              98_1      main      arr     root  R       0:14      1 node2
    "#]]
    .assert_eq(&lines(&[]));
    expect![[r#"
        |                97      main      dep     root  PENDING       0:00     10:00      1 (Dependency)
    "#]].assert_eq(&lines(&["-l", "-h", "-j", "97"]));
    assert_eq!(
        lines(&["-h", "-j", "97", "-o", "%i %T"]),
        "|97 PENDING\n",
        "a format is a format"
    );
    assert!(
        controller
            .run_as("squeue", GQ, &["--version"])
            .stdout
            .starts_with("slurm 25.05.0 ")
    );
    assert!(controller.run(GQ, &["--version"]).stdout.starts_with("gq "));
}

#[test]
fn clusters_are_this_one_or_all_and_jobs_may_be_named_in_several_options() {
    check(
        GQ,
        &["-h", "-o", "%i", "-j", "97", "-j", "95", "-M", "all"],
        expect![[r#"
        97
        95
    "#]],
    );
    check(
        GQ,
        &["--clusters", "lab2"],
        expect![[r#"
        stderr: gq: --clusters lab2: this is cluster "lab", and its controller knows no other. GPUPOOL_CONFIG names another configuration
        exit: Some(1)
    "#]],
    );
    check(
        GDEL,
        &["--clusters=lab2", "95"],
        expect![[r#"
        stderr: gdel: --clusters lab2: this is cluster "lab", and its controller knows no other. GPUPOOL_CONFIG names another configuration
        exit: Some(1)
    "#]],
    );
    check(GDEL, &["--clusters=all", "95"], expect![""]);
}

#[test]
fn a_filter_that_names_nothing_cancels_nothing() {
    let controller = FakeController::start(answer);
    expect![[r#"
        stderr: gdel: --user is empty: that names no job, and is not taken for all of them
        exit: Some(2)
    "#]]
    .assert_eq(&controller.run(GDEL, &["-u", ""]).text());
    assert_eq!(
        controller.run(GDEL, &["-t", "PD", "-n", " ,"]).exit,
        Some(2)
    );
    assert!(controller.requests().is_empty());
}

#[test]
fn under_the_name_scancel_jobs_that_are_over_are_no_failure() {
    let controller = FakeController::start(answer);
    assert_eq!(controller.run_as("scancel", GDEL, &["999999"]).text(), "");
    assert_eq!(
        controller
            .run_as("scancel", GDEL, &["-s", "KILL", "999999"])
            .text(),
        ""
    );
    expect![[r#"
        stderr: scancel: Terminating job 999999
        stderr: scancel: error: Kill job error on job id 999999: Invalid job id specified
        stderr: scancel: error: there is no job 999999
    "#]]
    .assert_eq(&controller.run_as("scancel", GDEL, &["-v", "999999"]).text());
    expect![[r#"
        stderr: scancel: error: Kill job error on job id 999999: Invalid job id specified
        stderr: scancel: error: there is no job 999999
        exit: Some(1)
    "#]]
    .assert_eq(
        &controller
            .run_as("scancel", GDEL, &["-s", "USR1", "999999"])
            .text(),
    );
    expect![[r#"
        stderr: scancel: Signal 10 to full job 95
        stderr: scancel: Signal 10 to full job 98_5
    "#]]
    .assert_eq(
        &controller
            .run_as("scancel", GDEL, &["-v", "-f", "-s", "USR1", "95", "98_5"])
            .text(),
    );
    expect![[r#"
        stderr: scancel: error: No job identification provided
        stderr: scancel: error: which jobs? Name them (gdel 17 98_5), or choose them with -u, --me, -n, -p, -t, -A, -q, -R or -w
        exit: Some(1)
    "#]].assert_eq(&controller.run_as("scancel", GDEL, &[]).text());
    assert_eq!(controller.run(GDEL, &["999999"]).exit, Some(1));
    assert_eq!(
        controller.run(GDEL, &["-s", "KILL", "999999"]).exit,
        Some(1),
        "gdel says what it did not find"
    );
}

#[test]
fn ids_and_states_alone_are_listed_as_squeue_does() {
    let controller = FakeController::start(answer);
    let text = |words: &[&str]| controller.run_as("squeue", GQ, words).text();
    let listed = "             JOBID ST\n                97 PD\n                95  R\n";
    assert_eq!(text(&["--only-job-state", "-j", "97,95"]), listed);
    assert_eq!(
        text(&["-h", "--only-job-state", "--jobs", "95", "-o", "%T"]),
        "RUNNING\n"
    );
    assert_eq!(
        text(&["-h", "--only-job-state", "-j", "999999"]),
        "",
        "a job that is not there is no error"
    );
    let refused = controller.run_as("squeue", GQ, &["--only-job-state", "-u", "ada"]);
    assert!(
        refused.exit == Some(1) && refused.stderr.contains("narrowed by -j and -t alone"),
        "{}",
        refused.stderr
    );
}

#[test]
fn what_is_asked_of_whom_is_said_when_that_is_wanted() {
    let controller = FakeController::start(answer);
    let ran = controller.run_as("squeue", GQ, &["-v", "-h", "-j", "95", "-o", "%i"]);
    assert_eq!((ran.stdout.as_str(), ran.exit), ("95\n", Some(0)));
    assert!(
        ran.stderr.starts_with("squeue: GET /v1/jobs?")
            && ran.stderr.contains(" of the controller at /"),
        "{}",
        ran.stderr
    );
    for (name, program) in [("squeue", GQ), ("scancel", GDEL), ("sprio", GQ)] {
        let usage = controller.run_as(name, program, &["--usage"]);
        assert!(
            usage.exit == Some(0)
                && usage
                    .stdout
                    .starts_with(&format!("Usage: {name} [OPTIONS]")),
            "{usage:?}"
        );
    }
}

#[test]
fn under_slurms_names_its_first_line_says_that_no_controller_answers() {
    let controller = FakeController::start(answer);
    std::fs::write(
        controller.config(),
        "socket = \"/nonexistent/gpuctld.sock\"\n",
    )
    .unwrap();
    for (name, program, words, first) in [
        (
            "squeue",
            GQ,
            &["-h"][..],
            "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n",
        ),
        (
            "scancel",
            GDEL,
            &["17"],
            "scancel: error: Kill job error on job id 17: Unable to contact slurm controller (connect failure)\n",
        ),
    ] {
        let ran = controller.run_as(name, program, words);
        assert!(
            ran.exit == Some(1) && ran.stderr.starts_with(first),
            "{}",
            ran.stderr
        );
        assert!(
            ran.stderr.contains(&format!(
                "\n{name}: error: no controller answers at /nonexistent/gpuctld.sock"
            )),
            "ours comes after it: {}",
            ran.stderr
        );
    }
}

#[test]
fn formats_print_what_squeue_printed() {
    // As recorded, but for the priorities' last digits of rounding, which are the same too.
    check(
        GQ,
        &[
            "-h",
            "-o",
            "%i|%j|%u|%P|%T|%t|%M|%l|%L|%D|%C|%m|%b|%R|%r|%N|%B|%p|%Q|%a|%q|%S|%V|%e|%Z|%o|%k|%f|%A|%F|%K",
        ],
        expect![[r#"
        97|dep|root|main|PENDING|PD|0:00|10:00|10:00|1|1|100M|N/A|(Dependency)|Dependency||n/a|0.99998472328297|4294901682|root|normal|N/A|2026-11-20T09:05:27|N/A|/home/me/w|(null)|(null)|(null)|97|97|N/A
        98_5|arr|root|main|PENDING|PD|0:00|10:00|10:00|1|1|100M|N/A|(JobArrayTaskLimit)|JobArrayTaskLimit||n/a|0.99998472305014|4294901681|root|normal|N/A|2026-11-20T09:05:27|N/A|/home/me/w|(null)|(null)|(null)|98|98|5
        119|wrap|root|main|PENDING|PD|0:00|99-00:00:00|99-00:00:00|1|1|100M|N/A|(PartitionTimeLimit)|PartitionTimeLimit||n/a|0.99998471909202|4294901664|root|normal|N/A|2026-11-20T09:05:27|N/A|/home/me/w|(null)|(null)|(null)|119|119|N/A
        95|run|root|main|RUNNING|R|0:14|1:00:00|59:46|1|2|300M|gres:gpu:1|node2|None|node2|node2|0.99998472351581|4294901683|root|normal|2026-11-20T09:05:27|2026-11-20T09:05:27|2026-11-20T10:05:27|/home/me/w|(null)|a b|(null)|95|95|N/A
        98_1|arr|root|main|RUNNING|R|0:14|10:00|9:46|1|1|100M|N/A|node2|None|node2|node2|0.99998472305014|4294901681|root|normal|2026-11-20T09:05:27|2026-11-20T09:05:27|2026-11-20T09:15:27|/home/me/w|(null)|(null)|(null)|104|98|1
    "#]],
    );
    check(
        GQ,
        &[
            "-j",
            "95",
            "-o",
            r#""%i","%j","%t","%M","%L","%D","%C","%m","%b","%R""#,
        ],
        expect![[r#"
        "JOBID","NAME","ST","TIME","TIME_LEFT","NODES","CPUS","MIN_MEMORY","TRES_PER_NODE","NODELIST(REASON)"
        "95","run","R","0:14","59:46","1","2","300M","gres:gpu:1","node2"
    "#]],
    );
    check(
        GQ,
        &["-j", "95", "-O", "jobid,name,state"],
        expect![[r#"
        JOBID               NAME                STATE               
        95                  run                 RUNNING             
    "#]],
    );
    check(
        GQ,
        &[
            "-h",
            "--array",
            "-j",
            "95",
            "--Format",
            "jobid:#,name:#,state:#,username:#,timeused:#,timelimit:#,StartTime:#,tres-alloc:#,partition:#,nodelist:#,stdout:#,command:#,statecompact:#,reason:#,ArrayJobID:#,ArrayTaskID:#",
        ],
        expect![[r#"
            95#run#RUNNING#root#0:14#1:00:00#2026-11-20T09:05:27#cpu=2,mem=300M,node=1,billing=2,gres/gpu=1#main#node2#/home/me/w/run-95.out#(null)#R#None#95#N/A#
        "#]],
    );
    // Compared as it is: an expectation would take the common indentation away.
    let ran = FakeController::start(answer).run(
        GQ,
        &[
            "-j",
            "98_5,98_1",
            "-o",
            "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R",
        ],
    );
    let want = [
        "             JOBID PARTITION     NAME     USER ST       TIME  NODES NODELIST(REASON)",
        "              98_5      main      arr     root PD       0:00      1 (JobArrayTaskLimit)",
        "              98_1      main      arr     root  R       0:14      1 node2",
    ];
    assert_eq!(ran.stdout.lines().collect::<Vec<_>>(), want);
}

#[test]
fn variables_of_squeue_are_honoured() {
    let controller = FakeController::start(answer);
    let run = |words: &[&str], variable| controller.run_with(GQ, words, &[variable], "").text();
    assert_eq!(
        run(&["-h", "-j", "95"], ("SQUEUE_FORMAT", "%i %T")),
        "95 RUNNING\n"
    );
    assert_eq!(
        run(&["-h", "-j", "95", "-o", "%i"], ("SQUEUE_FORMAT", "%T")),
        "95\n"
    );
    assert_eq!(
        run(&["-h", "-j", "95"], ("SQUEUE_FORMAT2", "jobid:4,state:")),
        "95  RUNNING\n"
    );
    let first = |order: &'static str| {
        run(&["-h", "-o", "%A"], ("GQ_SORT", order))
            .lines()
            .next()
            .unwrap()
            .parse::<u64>()
            .unwrap()
    };
    assert!(first("-i") > first("i"), "{} {}", first("-i"), first("i"));
    assert_eq!(
        run(&["-h", "-j", "95", "-o", "%S"], ("SLURM_TIME_FORMAT", "%s")),
        "1795165527\n"
    );
}

#[test]
fn sorting_is_by_value_and_stable() {
    check(
        GQ,
        &["-h", "-S", "-t,-i", "-o", "%i %t"],
        expect![[r#"
        98_1 R
        95 R
        119 PD
        98_5 PD
        97 PD
    "#]],
    );
}

#[test]
fn only_the_columns_that_are_shown_are_asked_for() {
    let controller = FakeController::start(answer);
    controller.run(
        GQ,
        &[
            "-h", "-u", "root", "-t", "pd", "-p", "main", "-r", "-S", "p", "-o", "%i %T",
        ],
    );
    expect![[r#"/v1/jobs?bare=true&columns=id,shown_id,state,priority&expand=true&partition=main&state=PENDING&user=root"#]].assert_eq(&controller.requests()[0].path);
}

#[test]
fn a_job_in_full_reads_like_scontrol() {
    check(
        GQ,
        &["95"],
        expect![[r#"
        JobId=95 JobName=run
           UserId=root(0) GroupId=root(0) MCS_label=N/A
           Priority=4294901683 Nice=0 Account=root QOS=normal
           JobState=RUNNING Reason=None Dependency=(null)
           Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0
           RunTime=00:00:14 TimeLimit=01:00:00 TimeMin=N/A
           SubmitTime=2026-11-20T09:05:27 EligibleTime=Unknown
           StartTime=2026-11-20T09:05:27 EndTime=2026-11-20T10:05:27 Deadline=N/A
           Partition=main AllocNode=login1
           ReqNodeList=(null) ExcNodeList=(null)
           NodeList=node2
           BatchHost=node2
           NumNodes=1 NumCPUs=2 NumTasks=1 CPUs/Task=2 ReqB:S:C:T=0:0:*:*
           TRES=cpu=2,mem=300M,node=1,billing=2,gres/gpu=1
           MinCPUsNode=2 MinMemoryNode=300M MinTmpDiskNode=0
           Features=(null) DelayBoot=00:00:00
           OverSubscribe=OK Contiguous=0 Licenses=(null) Network=(null)
           TresPerNode=gres:gpu:1
           GPUs=node2:h100:0
           GPULinks=node2:NV18
           Command=(null)
           WorkDir=/home/me/w
           Comment=a b
           StdErr=/home/me/w/run-95.out
           StdIn=/dev/null
           StdOut=/home/me/w/run-95.out
           Tags=sweep,x
           NotActedOn=--dependency=afterok:1

    "#]],
    );
}

#[test]
fn why_says_what_stands_against_the_start() {
    check(
        GQ,
        &["--why", "119"],
        expect![[r#"
        job 119: PENDING (Resources)
          Resources: needs 8 h100 on one node; node07 comes nearest and has 7 of 8 GPUs free, more becomes free there at 2026-11-20T14:20:00; until 2026-11-20T15:00:00 at the latest
          AssocGrpGRES: account vision holds 30 of its 32 GPUs
          12 jobs of its partition are ahead
          starts by 2026-11-20T15:00:00 on node07, if nobody more urgent comes
          nine times in ten between 2026-11-20T12:00:00 and 2026-11-20T14:30:00
          311 of 342 intervals for starts in partition main were right (90.9%; 90% is meant); half are narrower than 14 min
          it would start at once with --gpus h100:7
          or by 2026-11-20T12:00:00 with --time 30:00
    "#]],
    );
    check(
        GQ,
        &["--why", "95"],
        expect![[r#"
        job 95: RUNNING on node2 since 2026-11-20T09:05:27
    "#]],
    );
    check(
        GQ,
        &["--why", "120"],
        expect![[r#"
        job 120_[3-9%2]: PENDING (JobHeldAdmin)
          held by admin:root since 2026-11-20T09:00:00
        job 120_[100-299999]: CANCELLED: cancelled by ada
    "#]],
    );
    // Of each kind of GPUs by itself; and a change that the array takes as it waits.
    check(
        GQ,
        &["--why", "121"],
        expect![[r#"
        job 121_[3-9%2]: PENDING (JobArrayTaskLimit)
          for l4:8: Resources: needs 8 l4 on one node
          for h100:4: AssocGrpGRES: account vision holds 30 of its 32 GPUs
          it would start at once with gadm job update 121 Gpus=l4:4|h100:4 ArrayTaskThrottle=3
        and 14 more of job 121: ask for one of them by its number, as in gq --why 121_7
    "#]],
    );
    check(
        GQ,
        &["--why", "119", "--json"],
        expect![[r#"
        {"jobs":[{"ahead":12,"blockers":[{"code":"Resources","text":"needs 8 h100 on one node; node07 comes nearest and has 7 of 8 GPUs free, more becomes free there at 2026-11-20T14:20:00Z","until":"2026-11-20T15:00:00Z"},{"code":"AssocGrpGRES","text":"account vision holds 30 of its 32 GPUs"}],"changes":[{"loss":0.125,"now":true,"option":"--gpus h100:7","start":"2026-11-20T09:00:00Z"},{"loss":0.5,"now":false,"option":"--time 30:00","start":"2026-11-20T12:00:00Z"}],"expected_nodes":"node07","expected_start":"2026-11-20T15:00:00Z","id":119,"interval":{"earliest":"2026-11-20T12:00:00Z","latest":"2026-11-20T14:30:00Z","record":{"intervals":342,"median_width_secs":840,"nominal_percent":90,"partition":"main","right":311}},"reason":"Resources","shown_id":"119","state":"PENDING"}],"schema":1}
    "#]],
    );
}

#[test]
fn log_and_script_are_passed_on_without_escape_codes() {
    check(
        GQ,
        &["--log", "95"],
        expect![[r#"
        2026-11-20T09:05:20 submitted by root to partition main
        2026-11-20T09:05:27 requeued, not before 2026-11-20T09:05:31: node2 was?[2J lost
        node2: 2026-11-20T09:05:27 run 1 prepared?[2J
    "#]],
    );
    check(
        GQ,
        &["--script", "95"],
        expect![[r#"
        #!/bin/sh
        hostname
    "#]],
    );
}

#[test]
fn jobs_that_are_not_there_are_errors_where_one_is_named() {
    check(
        GQ,
        &["-j", "999999"],
        expect![[r#"
        stderr: gq: job 999999 is not in the queue. Finished jobs: gq 999999, or gacct -j 999999
        exit: Some(1)
    "#]],
    );
    check(GQ, &["-h", "-j", "999999,999998"], expect![[""]]);
    check(
        GQ,
        &["999999"],
        expect![[r#"
        stderr: gq: job 999999: there is no such job
        exit: Some(1)
    "#]],
    );
    check(
        GQ,
        &["--why", "999999"],
        expect![[r#"
        stderr: gq: job 999999: there is no such job
        exit: Some(1)
    "#]],
    );
    check(
        GQ,
        &["-t", "RUNING"],
        expect![[r#"
        stderr: gq: "RUNING" is no state of a job. Did you mean "RUNNING"? States are PENDING, RUNNING, SUSPENDED, COMPLETING, COMPLETED, FAILED, CANCELLED, TIMEOUT, NODE_FAIL, OUT_OF_MEMORY, PREEMPTED, REQUEUED, or all
        exit: Some(2)
    "#]],
    );
    check(
        GQ,
        &["-o", "%_"],
        expect![[r#"
        stderr: gq: format "%_": there is no column %_. --help lists them
        exit: Some(2)
    "#]],
    );
}

#[test]
fn json_is_one_line_of_the_contract() {
    let ran = FakeController::start(answer).run(GQ, &["--json"]);
    assert_eq!(ran.stdout.lines().count(), 1);
    let value: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(
        (
            value["schema"].as_u64(),
            value["jobs"].as_array().map(Vec::len)
        ),
        (Some(1), Some(5))
    );
    let ran = FakeController::start(answer).run(GQ, &["95", "98_1", "--json"]);
    assert_eq!(
        serde_json::from_str::<Value>(&ran.stdout).unwrap()["jobs"]
            .as_array()
            .map(Vec::len),
        Some(2)
    );
}

#[test]
fn output_is_followed_to_its_end() {
    let dir = std::env::temp_dir().join(format!("gq-follow-{}", std::process::id()));
    std::fs::create_dir(&dir).unwrap();
    let (file, asked) = (dir.join("out"), std::sync::atomic::AtomicU32::new(0));
    std::fs::write(&file, "first\n").unwrap();
    let path = file.clone();
    let controller = FakeController::start(move |_| {
        let state = match asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
            0 => "RUNNING",
            // What the job writes last is there before the controller knows that it is over.
            _ => {
                std::fs::write(&path, "first\nlast\n").unwrap();
                "COMPLETED"
            }
        };
        Answer::ok(json!({"schema": 1, "jobs": [{"id": 7, "shown_id": "7", "state": state, "work_dir": "/", "stdout": path}]}).to_string())
    });
    assert_eq!(
        controller.run(GQ, &["--follow", "7"]).text(),
        "first\nlast\n"
    );
    std::fs::remove_dir_all(dir).unwrap();
    check(
        GQ,
        &["--follow", "98_1"],
        expect![[r#"
        stderr: gq: job 98_1 writes to no file, so there is nothing to follow
        exit: Some(1)
    "#]],
    );
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let rows: Vec<Value> = (1..20_000)
        .map(|id| json!({"id": id, "shown_id": id.to_string()}))
        .collect();
    let body = json!({"schema": 1, "jobs": rows}).to_string();
    let controller = FakeController::start(move |_| Answer::ok(body.clone()));
    let script = format!("{{ {GQ} -h -o %i; echo $? >&2; }} | head -1");
    let ran = controller.run_with(
        "/bin/sh",
        &["-c", &script],
        &[("PATH", "/usr/bin:/bin")],
        "",
    );
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("1\n", "0\n"));
}

#[test]
fn iterating_shows_the_queue_again_with_the_time() {
    use std::io::{BufRead, BufReader};
    let controller = FakeController::start(answer);
    let mut child = std::process::Command::new(GQ)
        .args(["-h", "-j", "95", "-i", "1", "-o", "%i"])
        .env_clear()
        .env("GPUPOOL_CONFIG", controller.config())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap())
        .lines()
        .map(Result::unwrap);
    let rounds: Vec<String> = lines.filter(|line| line == "95").take(2).collect();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(rounds.len(), 2);
}

#[test]
fn no_controller_is_exit_code_3() {
    let controller = FakeController::start(answer);
    std::fs::write(
        controller.config(),
        "socket = \"/nonexistent/gpuctld.sock\"\n",
    )
    .unwrap();
    let ran = controller.run(GQ, &[]);
    assert_eq!(ran.exit, Some(3));
    assert!(
        ran.stderr
            .starts_with("gq: no controller answers at /nonexistent/gpuctld.sock"),
        "{}",
        ran.stderr
    );
    std::fs::write(controller.config(), "sockett = 1\n").unwrap();
    let ran = controller.run(GQ, &[]);
    assert!(
        ran.exit == Some(1)
            && ran
                .stderr
                .contains(r#"unknown key "sockett". Did you mean "socket"?"#),
        "{}",
        ran.stderr
    );
}

#[test]
fn cancelling_says_what_was_done() {
    check(
        GDEL,
        &["-v", "95", "98_5"],
        expect![[r#"
        stderr: gdel: cancelled job 95
        stderr: gdel: cancelled job 98_5
    "#]],
    );
    check(
        GDEL,
        &["999999"],
        expect![[r#"
        stderr: gdel: there is no job 999999
        exit: Some(1)
    "#]],
    );
    check(
        GDEL,
        &[],
        expect![[r#"
        stderr: gdel: which jobs? Name them (gdel 17 98_5), or choose them with -u, --me, -n, -p, -t, -A, -q, -R or -w
        exit: Some(2)
    "#]],
    );
    check(
        GDEL,
        &["-s", "TREM", "95"],
        expect![[r#"
        stderr: gdel: invalid value 'TREM' for '--signal <SIGNAL>': signal "TREM" is not known. Did you mean "TERM"? Try USR1, TERM, or a number from 1 to 64
        stderr: 
        stderr: For more information, try '--help'.
        exit: Some(2)
    "#]],
    );
    check(GDEL, &["--name=nosuch"], expect![[""]]);
}

#[test]
fn filters_and_signals_reach_the_controller() {
    let controller = FakeController::start(answer);
    controller.run(GDEL, &["-s", "usr1", "-b", "-u", "root"]);
    controller.run(GDEL, &["-n", "x", "-t", "PD", "98_[1-3]"]);
    controller.run(GDEL, &["-R", "maint", "-Q"]);
    controller.run(GDEL, &["-f", "-s", "USR2", "95"]);
    assert_eq!(
        controller.run(GDEL, &["-f", "-b", "-s", "USR2", "95"]).exit,
        Some(2)
    );
    let bodies: Vec<String> = controller
        .requests()
        .iter()
        .map(|request| request.body.clone())
        .collect();
    expect![[r#"
        {"jobs":[],"filter":{"user":"root","state":"RUNNING,SUSPENDED"},"signal":10,"batch_only":true}
        {"jobs":["98_[1-3]"],"filter":{"name":"x","state":"PENDING"},"batch_only":false}
        {"jobs":[],"filter":{"reservation":"maint"},"batch_only":false}
        {"jobs":["95"],"signal":12,"batch_only":false,"full":true}"#]].assert_eq(&bodies.join("\n"));
}

#[test]
fn squeues_and_scancels_ways_to_ask_are_understood_or_refused_with_advice() {
    check(
        GQ,
        &[
            "-h",
            "--job=95",
            "--part",
            "main",
            "-t",
            "R,CF",
            "-o",
            "%i %z %d %w %X",
        ],
        expect![[r#"
        95 *:*:* 0 (null) N/A
    "#]],
    );
    check(
        GDEL,
        &["95.0"],
        expect![[r#"
        stderr: gdel: 95.0 is a step: it ends with its grun (Ctrl-C there), or with its job. A job: gdel 95; its script alone: gdel -b -s TERM 95
        exit: Some(2)
    "#]],
    );
    check(
        GDEL,
        &["--ctld", "95"],
        expect![[r#"
        stderr: gdel: --ctld: the controller sends all signals; leave it out
        exit: Some(2)
    "#]],
    );
}

#[test]
fn a_quiet_cancellation_says_nothing_of_jobs_that_are_over() {
    let over = |_: &Request| {
        let results = serde_json::json!([{"job": "17", "ok": false, "code": "not_found", "error": "no job 17 in the queue."}]);
        Answer::ok(serde_json::json!({"schema": 1, "results": results}).to_string())
    };
    let controller = FakeController::start(over);
    assert_eq!(controller.run(GDEL, &["-Q", "17"]).text(), "");
    assert!(
        controller
            .run(GDEL, &["17"])
            .text()
            .contains("exit: Some(1)")
    );
    let denied = |_: &Request| {
        let results = serde_json::json!([{"job": "17", "ok": false, "code": "denied", "error": "job 17 is not yours."}]);
        Answer::ok(serde_json::json!({"schema": 1, "results": results}).to_string())
    };
    assert!(
        FakeController::start(denied)
            .run(GDEL, &["-Q", "17"])
            .text()
            .contains("not yours")
    );
}

#[test]
fn interactive_cancelling_asks_for_each() {
    let controller = FakeController::start(answer);
    let ran = controller.run_with(GDEL, &["-i", "-p", "main"], &[], "n\ny\nn\n");
    assert!(
        ran.stderr
            .starts_with("Cancel job 97 name=dep partition=main [y/n]? "),
        "{}",
        ran.stderr
    );
    assert_eq!(
        controller.requests()[1].body,
        r#"{"jobs":["98_5"],"batch_only":false}"#
    );
}

/// One job of two partitions and licences, and one that is over.
fn choosy(request: &Request) -> Answer {
    let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
    assert_eq!(path, "/v1/jobs", "{query}");
    let job = |id: u64, state: &str, more: Value| {
        let mut job = json!({"id": id, "shown_id": id.to_string(), "name": "two", "user": "root", "state": state, "partition": "train,debug",
            "licences": "matlab:2,idl:1", "nodes": 1, "nodelist": "", "elapsed_secs": 0, "reason": "Priority"});
        job.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        job
    };
    let waits = job(7, "PENDING", json!({}));
    let runs = job(
        8,
        "RUNNING",
        json!({"partition": "debug", "licences": "", "nodelist": "n1"}),
    );
    let over = job(9, "COMPLETED", json!({"partition": "debug"}));
    let listed = match (
        query.contains("job=9&") || query.ends_with("job=9"),
        query.contains("state=all"),
    ) {
        (true, true) => vec![over],
        _ if query.contains("job=") => vec![],
        _ => vec![waits, runs],
    };
    Answer::ok(json!({"schema": 1, "jobs": listed}).to_string())
}

#[test]
fn squeue_lists_a_job_in_each_of_its_partitions_and_by_its_licences() {
    let controller = FakeController::start(choosy);
    let lines = |words: &[&str]| controller.run_as("squeue", GQ, words).text();
    assert_eq!(lines(&["-h", "-o", "%i %P"]), "7 train,debug\n8 debug\n");
    assert_eq!(
        lines(&["-h", "-P", "-o", "%i %P"]),
        "7 train\n7 debug\n8 debug\n"
    );
    assert_eq!(
        lines(&["-h", "-P", "-S", "P,-i", "-o", "%i %P"]),
        "8 debug\n7 debug\n7 train\n"
    );
    assert_eq!(
        lines(&["-h", "-P", "-p", "debug", "-o", "%i %P"]),
        "7 debug\n8 debug\n"
    );
    assert_eq!(lines(&["-h", "-L", "idl", "-o", "%i"]), "7\n");
    assert_eq!(lines(&["-h", "-L", "matlab:2,nosuch", "-o", "%i"]), "");
}

/// Slurm knows a job for five minutes after its end: squeue then lists nothing, and fails only later.
#[test]
fn squeue_of_a_job_that_is_over_is_an_error_once_it_is_forgotten() {
    let controller = FakeController::start(choosy);
    let text = |words: &[&str]| controller.run_as("squeue", GQ, words).text();
    assert_eq!(text(&["-h", "-j", "9"]), "");
    assert_eq!(text(&["-j", "9", "-o", "%i %T"]), "JOBID STATE\n");
    let gone = "stderr: slurm_load_jobs error: Invalid job id specified\nstderr: squeue: error: job 10 is not in the queue. Finished jobs: gq 10, or gacct -j 10\nexit: Some(1)\n";
    assert_eq!(text(&["-j", "10"]), gone);
    let own = "stderr: gq: job 9 is not in the queue. Finished jobs: gq 9, or gacct -j 9\nexit: Some(1)\n";
    assert_eq!(controller.run(GQ, &["-j", "9"]).text(), own);
}

#[test]
fn squeues_long_listing_says_when_it_is() {
    let controller = FakeController::start(choosy);
    let text = controller.run_as("squeue", GQ, &["-l"]).text();
    let (day, rest) = text.split_once('\n').unwrap();
    assert!(
        day.len() == 24
            && day.split(':').count() == 3
            && rest.trim_start().starts_with("JOBID PARTITION"),
        "{text}"
    );
    assert!(
        !controller
            .run_as("squeue", GQ, &["-l", "-h"])
            .text()
            .contains(day.split_once(' ').unwrap().0)
    );
}

/// Three of the jobs that waited in the real Slurm, with its weights.
fn sprio(request: &Request) -> Answer {
    let (_, query) = request.path.split_once('?').unwrap_or_default();
    let job = |id: u64, shown: &str, user: &str, priority: u64, qos: f64, nice: i64| {
        let factors = |age: f64, share: f64, size: f64, partition: f64, qos: f64| json!({"age": age, "fair_share": share, "size": size, "partition": partition, "qos": qos, "nice": nice});
        json!({"id": id, "shown_id": shown, "user": user, "account": "vision", "partition": "main", "qos": "normal", "position": 9 - id, "priority": priority, "eligible": id != 5,
            "weighted": factors(0.0, 10000.0, 375.0, 100.0, qos), "normalized": factors(0.0000843, 1.0, 0.75, 1.0, qos / 2000.0)})
    };
    let held = job(5, "5", "games", 0, 0.0, 0);
    let mut both = job(4, "4", "both", 10475, 0.0, 0);
    both["partition"] = "main,debug".into();
    let mut in_debug = both.clone();
    (
        in_debug["partition"],
        in_debug["priority"],
        in_debug["weighted"]["partition"],
    ) = ("debug".into(), 11375.into(), 1000.0.into());
    let mut in_main = both.clone();
    in_main["partition"] = "main".into();
    both["by_partition"] = json!([in_main, in_debug]);
    if query.contains("user=both") || query.contains("partition=") {
        let weights = json!({"age": 1000, "fair_share": 10000, "size": 500, "partition": 1000});
        return Answer::ok(
            json!({"schema": 1, "weights": weights, "jobs": [held, both]}).to_string(),
        );
    }
    let jobs = [
        held,
        job(6, "6", "games", 12455, 2000.0, 20),
        job(1, "1", "games", 10475, 0.0, 0),
        job(8, "7_[1-5]", "news", 10475, 0.0, 0),
    ];
    let pairs: Vec<(&str, &str)> = query
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .collect();
    let meant = |job: &Value| {
        pairs.iter().all(|(key, value)| match *key {
            "job" => value
                .split(",")
                .any(|id| job["id"].as_u64() == id.parse().ok()),
            "user" => job["user"] == *value,
            _ => true,
        })
    };
    let jobs: Vec<Value> = jobs.into_iter().filter(meant).collect();
    let weights = json!({"site": 1, "age": 1000, "fair_share": 10000, "size": 500, "partition": 100, "qos": 2000});
    Answer::ok(json!({"schema": 1, "weights": weights, "jobs": jobs}).to_string())
}

/// What sprio 22.05.8 printed of them.
#[test]
fn sprio_prints_what_slurms_does() {
    let controller = FakeController::start(sprio);
    let check = |words: &[&str], wanted: Expect| {
        let text = controller.run_as("sprio", GQ, words).text();
        // Behind bars, for the blanks at both ends.
        wanted.assert_eq(
            &text
                .lines()
                .map(|line| format!("|{line}|\n"))
                .collect::<String>(),
        );
    };
    check(
        &[],
        expect![[r#"
        |          JOBID PARTITION   PRIORITY       SITE        AGE  FAIRSHARE    JOBSIZE  PARTITION        QOS|
        |              1 main           10475          0          0      10000        375        100          0|
        |              6 main           12455          0          0      10000        375        100       2000|
        |              7 main           10475          0          0      10000        375        100          0|
    "#]],
    );
    check(
        &["-u", "games"],
        expect![[r#"
        |          JOBID PARTITION     USER   PRIORITY       SITE        AGE  FAIRSHARE    JOBSIZE  PARTITION        QOS|
        |              1 main         games      10475          0          0      10000        375        100          0|
        |              6 main         games      12455          0          0      10000        375        100       2000|
    "#]],
    );
    check(
        &["-h", "-l", "-j6"],
        expect![
            "|              6 main         games      12455          0          0          0      10000        375        100       2000          20                     |\n"
        ],
    );
    check(
        &["-j", "6", "-l", "-n"],
        expect![[r#"
        |          JOBID PARTITION     USER PRIORITY   AGE        ASSOC      FAIRSHARE  JOBSIZE    PARTITION  QOS        TRES                |
        |              6 main         games 0.00000289 0.0000843  0.0000000  1.0000000  0.7500000  1.0000000  1.0000000                      |
    "#]],
    );
    check(
        &["-w"],
        expect![[r#"
        |          JOBID PARTITION   PRIORITY       SITE        AGE  FAIRSHARE    JOBSIZE  PARTITION        QOS|
        |        Weights                               1       1000      10000        500        100       2000|
    "#]],
    );
    check(
        &["-h", "-n", "-w"],
        expect![
            "|        Weights                      1000       10000      500        100        2000      |\n"
        ],
    );
    check(
        &["-h", "-u", "both"],
        expect![[r#"
        |              4 main          both      10475          0          0      10000        375        100|
        |              4 debug         both      11375          0          0      10000        375       1000|
    "#]],
    );
    check(
        &["-h", "-p", "debug"],
        expect![
            "|              4 debug          11375          0          0      10000        375       1000|\n"
        ],
    );
    check(
        &["-S", "u,-y", "-o", "%i %u %10y|%N"],
        expect![[r#"
        |JOBID USER PRIORITY  |NICE|
        |6 games 0.00000289|20|
        |1 games 0.00000243|0|
        |7 news 0.00000243|0|
    "#]],
    );
}

#[test]
fn sprio_refuses_what_it_cannot_show() {
    let controller = FakeController::start(sprio);
    let check = |words: &[&str], wanted: Expect| {
        wanted.assert_eq(&controller.run_as("sprio", GQ, words).text())
    };
    check(
        &["-j", "99"],
        expect![[r#"
        stderr: Unable to find jobs matching user/id(s) specified: 99 does not wait for its turn. gq 99 shows it
    "#]],
    );
    check(
        &["-j", "5"],
        expect![[r#"
        stderr: Unable to find jobs matching user/id(s) specified: 5 does not wait for its turn. gq 5 shows it
    "#]],
    );
    check(
        &["-u", "no-such-user"],
        expect![[r#"
        stderr: sprio: error: Invalid user: no job of "no-such-user" waits, and there is no user of that name on this machine
        exit: Some(1)
    "#]],
    );
    check(
        &["-o", "%i %Z"],
        expect![[r#"
        stderr: sprio: error: format "%i %Z": there is no column %Z. --help lists them
        exit: Some(1)
    "#]],
    );
    check(
        &["-S", "n"],
        expect![[r#"
        stderr: sprio: error: Invalid sort specification: "n" is no column's letter. Try u,-y; --help lists them
        exit: Some(1)
    "#]],
    );
}

fn priorities(_: &Request) -> Answer {
    let job = |id: u64, position: u32, class: &str| {
        let factors = |age: f64, share: f64| serde_json::json!({"age": age, "fair_share": share, "size": 0.0, "partition": 0.0, "qos": 5000.0, "nice": 10});
        serde_json::json!({"id": id, "shown_id": id.to_string(), "user": "ada", "account": "vision", "partition": "train", "qos": "normal", "position": position,
            "class": class, "priority": 9000 + id, "is_set": id == 18, "weighted": factors(12.0, 4321.0), "normalized": factors(0.012, 0.4321)})
    };
    let weights = serde_json::json!({"age": 1000, "fair_share": 10000, "size": 0, "partition": 1000, "qos": 10000});
    Answer::ok(serde_json::json!({"schema": 1, "weights": weights, "jobs": [job(18, 1, "guaranteed"), job(17, 2, "borrowed")]}).to_string())
}

#[test]
fn priorities_are_listed_with_their_factors() {
    let controller = FakeController::start(priorities);
    expect![[r#"
        JOBID PARTITION USER CLASS      POS PRIORITY AGE FAIRSHARE JOBSIZE PARTITION  QOS NICE
           18 train     ada  guaranteed   1    9018!  12      4321       0         0 5000   10
           17 train     ada  borrowed     2     9017  12      4321       0         0 5000   10
    "#]]
    .assert_eq(&controller.run(GQ, &["--prio", "--me"]).text());
    expect![[r#"
          JOBID PARTITION USER ACCOUNT QOSNAME CLASS      POS PRIORITY  AGE FAIRSHARE JOBSIZE PARTITION   QOS NICE
        Weights                                                        1000     10000       0      1000 10000
             18 train     ada  vision  normal  guaranteed   1    9018!   12      4321       0         0  5000   10
             17 train     ada  vision  normal  borrowed     2     9017   12      4321       0         0  5000   10
    "#]].assert_eq(&controller.run(GQ, &["--prio", "-l", "-p", "train"]).text());
    expect![[r#"
        18 train ada guaranteed 1 9018! 0.0120000 0.4321000 0.0000000 0.0000000 5000.0000000 10
        17 train ada borrowed   2  9017 0.0120000 0.4321000 0.0000000 0.0000000 5000.0000000 10
    "#]]
    .assert_eq(&controller.run(GQ, &["--prio", "--normalized", "-h"]).text());
    let paths: Vec<String> = controller
        .requests()
        .into_iter()
        .map(|request| request.path)
        .collect();
    assert!(
        paths[0].starts_with("/v1/priorities?user=")
            && paths[1] == "/v1/priorities?partition=train",
        "{paths:?}"
    );
    assert_eq!(controller.run(GQ, &["--normalized"]).exit, Some(2));
}

#[test]
fn starts_are_listed_as_intervals() {
    check(
        GQ,
        &["--start"],
        expect![[r#"
           JOBID PARTITION NAME USER ST EARLIEST            START_TIME          LATEST              NODES SCHEDNODES AHEAD (REASON)
             119 main      wrap root PD 2026-11-20T11:00:00 2026-11-20T12:00:00 2026-11-20T13:30:00     1 node07         0 (Resources)
              97 main      dep  root PD N/A                 N/A                 N/A                     1 (null)         1 (Dependency)
        98_[5-9] main      arr  root PD N/A                 2026-11-20T12:30:00 2026-11-20T15:00:00     1 node07         1 (Priority)
            98_9 main      arr  root PD N/A                 2026-11-20T16:30:00 2026-11-20T19:00:00     1 (null)         1 (last task)
        stderr: 311 of 342 intervals for starts in partition main were right (90.9%; 90% is meant); half are narrower than 14 min
    "#]],
    );
    let controller = FakeController::start(answer);
    controller.run(GQ, &["--start", "-u", "ada", "--json"]);
    assert_eq!(controller.requests()[0].path, "/v1/starts?user=ada");
}
