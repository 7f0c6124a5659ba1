//! `gq` as a process, against canned answers of the API. Where Slurm's format is meant, the wanted
//! lines are those that Slurm 22.05.8 printed for the same jobs.

#[path = "canned/queue.rs"]
mod canned;
#[path = "canned/two_partitions.rs"]
mod two_partitions;

use canned::answer;
use expect_test::{Expect, expect};
use gcli::fake_controller::{Answer, FakeController, Request};
use serde_json::{Value, json};

const GQ: &str = env!("CARGO_BIN_EXE_gq");
const GDEL: &str = env!("CARGO_BIN_EXE_gdel");

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
        95|run|root|main|RUNNING|R|0:14|1:00:00|59:46|1|2|300M|gres/gpu:1|node2|None|node2|node2|0.99998472351581|4294901683|root|normal|2026-11-20T09:05:27|2026-11-20T09:05:27|2026-11-20T10:05:27|/home/me/w|(null)|a b|(null)|95|95|N/A
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
        "95","run","R","0:14","59:46","1","2","300M","gres/gpu:1","node2"
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
           TresPerNode=gres/gpu:1
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
fn an_allocation_in_full_names_no_files_of_output() {
    let controller = FakeController::start(|_| {
        Answer::ok(
            json!({"schema": 1, "jobs": [{"id": 7, "shown_id": "7", "state": "RUNNING", "stdout": "/out", "allocation": true}]})
                .to_string(),
        )
    });
    let shown = controller.run(GQ, &["7"]).stdout;
    assert!(
        shown.contains("BatchFlag=0") && !shown.contains("Std"),
        "{shown}"
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
          starts by 2026-11-20T15:00:00 on node07, unless a more urgent job comes
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
          it would start at once with gadm job update 121 ArrayTaskThrottle=3
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
            stderr: gq: "RUNING" is no state of a job. Did you mean "RUNNING"? States are PENDING, RUNNING, SUSPENDED, COMPLETING, COMPLETED, FAILED, CANCELLED, TIMEOUT, NODE_FAIL, OUT_OF_MEMORY, PREEMPTED, DEADLINE, REQUEUED, or all
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
fn output_is_followed_to_its_end_over_a_connection_that_breaks() {
    use gmodel::output_stream::{FileIdentity, OutputFrame};
    let file = |position| OutputFrame::File {
        file: FileIdentity {
            device: 1,
            inode: 2,
        },
        position,
    };
    let streams = std::sync::atomic::AtomicU32::new(0);
    let controller = FakeController::start(move |request| {
        if !request.path.contains("/output") {
            let state = match streams.load(std::sync::atomic::Ordering::Relaxed) {
                0 => "RUNNING",
                _ => "COMPLETED",
            };
            return Answer::ok(json!({"schema": 1, "jobs": [{"id": 7, "shown_id": "7", "state": state, "stdout": "/out"}]}).to_string());
        }
        let frames = match streams.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
            0 => vec![file(0), OutputFrame::Data(b"first\n".to_vec())],
            _ => vec![
                file(6),
                OutputFrame::Data(b"last\n".to_vec()),
                OutputFrame::End,
            ],
        };
        Answer::Stream(frames.iter().flat_map(OutputFrame::bytes).collect())
    });
    assert_eq!(
        controller.run(GQ, &["--follow", "7", "--tail", "9"]).text(),
        "first\nlast\n"
    );
    let asked: Vec<String> = controller
        .requests()
        .into_iter()
        .map(|request| request.path)
        .filter(|path| path.contains("/output"))
        .collect();
    assert_eq!(
        asked,
        [
            "/v1/jobs/7/output?file=&follow=true&position=0&stderr=false&tail=9",
            "/v1/jobs/7/output?file=1.2&follow=false&position=6&stderr=false&tail=9"
        ]
    );
}

#[test]
fn output_that_cannot_be_read_is_an_error_without_control_characters() {
    use gmodel::output_stream::OutputFrame;
    let of = |frames: Vec<OutputFrame>, words: &[&str]| {
        let controller = FakeController::start(move |request| {
            if request.path.contains("/output") {
                return Answer::Stream(frames.iter().flat_map(OutputFrame::bytes).collect());
            }
            Answer::ok(json!({"schema": 1, "jobs": [{"id": 7, "shown_id": "7", "state": "FAILED", "nodelist": "n1", "stdout": "/o\u{1b}ut"}]}).to_string())
        });
        controller.run(GQ, words).text()
    };
    expect![[r#"
        stderr: gq: cannot read /o?ut: Permission denied
        exit: Some(1)
    "#]]
    .assert_eq(&of(
        vec![OutputFrame::Refused(
            "cannot read /o\u{1b}ut: Permission denied".into(),
        )],
        &["--output", "7"],
    ));
    expect![[r#"
        stderr: gq: job 7 is over (FAILED), and there is no /o?ut on n1
        exit: Some(1)
    "#]]
    .assert_eq(&of(
        vec![OutputFrame::Missing, OutputFrame::End],
        &["--output", "7"],
    ));
    let usage = of(Vec::new(), &["--tail", "3", "7"]);
    assert!(usage.contains("exit: Some(2)"), "{usage}");
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
        &["--ctld", "95"],
        expect![[r#"
        stderr: gdel: --ctld: the controller sends all signals; leave it out
        exit: Some(2)
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
             130 main      cap  root PD N/A                 N/A                 N/A                     1 (null)         2 (AssocGrpGRES)
             131 main      cap  root PD N/A                 N/A                 N/A                     1 (null)         3 (AssocGrpGRES)
        stderr: 130 and 1 more: account vision holds 30 of its 32 GPUs; job 95 ends first of its holders, by 2026-11-20T12:00:00Z
        stderr: 311 of 342 intervals for starts in partition main were right (90.9%; 90% is meant); half are narrower than 14 min
    "#]],
    );
    let controller = FakeController::start(answer);
    controller.run(GQ, &["--start", "-u", "ada", "--json"]);
    assert_eq!(controller.requests()[0].path, "/v1/starts?user=ada");
}

#[test]
fn a_job_that_is_over_is_not_in_the_queue() {
    let own = "stderr: gq: job 9 is not in the queue. Finished jobs: gq 9, or gacct -j 9\nexit: Some(1)\n";
    let controller = FakeController::start(two_partitions::answer);
    assert_eq!(controller.run(GQ, &["-j", "9"]).text(), own);
}

#[test]
fn the_version_is_gqs_own() {
    let controller = FakeController::start(answer);
    assert!(controller.run(GQ, &["--version"]).stdout.starts_with("gq "));
}
