//! `gacct` as a process, against canned answers. The wanted lines are those of sacct 22.05.8 for the same jobs.

#[path = "canned/accounting.rs"]
mod canned;

use canned::answer;
use expect_test::{Expect, expect};
use gcli::fake_controller::{Answer, FakeController, Request};
use serde_json::{Value, json};

const GACCT: &str = env!("CARGO_BIN_EXE_gacct");

fn check(words: &[&str], want: Expect) {
    want.assert_eq(&FakeController::start(answer).run(GACCT, words).text());
}

#[test]
fn the_listing_is_that_of_sacct() {
    check(
        &["-X", "-j", "95,99,102,101,100,98"],
        expect![[r#"
        JobID           JobName  Partition    Account  AllocCPUS      State ExitCode 
        ------------ ---------- ---------- ---------- ---------- ---------- -------- 
        95                  run       main       root          2    RUNNING      0:0 
        99                 fail       main       root          1     FAILED      3:0 
        101                 sig       main       root          1     FAILED      0:9 
        102                 can       main       root          1  CANCELLED      0:0 
        98_1                arr       main       root          1    RUNNING      0:0 
        100                 big       main       root          4    PENDING      0:0 
    "#]],
    );
}

#[test]
fn parsable_fields_are_those_of_sacct() {
    check(
        &[
            "-n",
            "-X",
            "-P",
            "-o",
            "JobIDRaw,JobID,JobName,State,ExitCode,Elapsed,ElapsedRaw,Timelimit,TimelimitRaw,NNodes,NCPUS,AllocTRES,ReqTRES,ReqMem,NodeList,Account,User,Partition,QOS,Comment",
            "-j",
            "95",
        ],
        expect![[r#"
        95|95|run|RUNNING|0:0|00:00:14|14|01:00:00|60|1|2|billing=2,cpu=2,gres/gpu=1,mem=300M,node=1|billing=2,cpu=2,gres/gpu=1,mem=300M,node=1|300M|node2|root|root|main|normal|
        99|99|fail|FAILED|3:0|00:00:00|0|00:10:00|10|1|1|billing=1,cpu=1,mem=100M,node=1|billing=1,cpu=1,mem=100M,node=1|100M|node2|root|root|main|normal|
        101|101|sig|FAILED|0:9|00:00:00|0|00:10:00|10|1|1|billing=1,cpu=1,mem=100M,node=1|billing=1,cpu=1,mem=100M,node=1|100M|node2|root|root|main|normal|
        102|102|can|CANCELLED|0:0|00:00:03|3|00:10:00|10|1|1|billing=1,cpu=1,mem=100M,node=1|billing=1,cpu=1,mem=100M,node=1|100M|node2|root|root|main|normal|
        104|98_1|arr|RUNNING|0:0|00:00:00|0|00:10:00|10|1|1|billing=1,cpu=1,mem=100M,node=1|billing=1,cpu=1,mem=100M,node=1|100M|node2|root|root|main|normal|
        100|100|big|PENDING|0:0|00:00:00|0|00:10:00|10|2|4||billing=4,cpu=4,gres/gpu=4,mem=400M,node=2|400M|None assigned|root|root|main|normal|
    "#]],
    );
    check(
        &["--parsable", "-X", "-o", "jobid,state"],
        expect![[r#"
        JobID|State|
        95|RUNNING|
        99|FAILED|
        101|FAILED|
        102|CANCELLED|
        98_1|RUNNING|
        100|PENDING|
    "#]],
    );
    check(
        &[
            "-P",
            "--delimiter",
            ";",
            "-o",
            "jobid,maxrss,totalcpu,tags,gpus",
        ],
        expect![[r#"
        JobID;MaxRSS;TotalCPU;Tags;GPUs
        95;;00:00.000;;1
        99;1206K;01:02.346;a,b;0
        101;;00:00.000;;0
        102;;00:00.000;;0
        98_1;;00:00.000;;0
        100;;00:00.000;;4
    "#]],
    );
    check(
        &["-X", "--noheader", "--format=jobid,state%20,jobname%-3"],
        expect![[r#"
        95                        RUNNING run 
        99                         FAILED fa+ 
        101                        FAILED sig 
        102                     CANCELLED can 
        98_1                      RUNNING arr 
        100                       PENDING big 
    "#]],
    );
}

#[test]
fn the_query_carries_times_and_filters() {
    let controller = FakeController::start(answer);
    controller.run(GACCT, &["-j", "98_5,17", "-s", "F,CA", "-D"]);
    controller.run(
        GACCT,
        &[
            "-j", "1", "--job", "2,3", "-s", "F", "-s", "CA", "-u", "0", "-u", "nobody", "-o",
            "jobid", "-o", "state",
        ],
    );
    controller.run(
        GACCT,
        &[
            "-u",
            "0",
            "-A",
            "lab",
            "-r",
            "main",
            "-q",
            "high",
            "-N",
            "node[1-2]",
            "--name",
            "x",
            "-S",
            "2026-11-20",
            "-E",
            "2026-11-20T09:05",
        ],
    );
    let paths: Vec<String> = controller
        .requests()
        .iter()
        .map(|request| request.path.clone())
        .collect();
    expect![[r#"
        /v1/runs?attempts=true&bare=true&columns=id,shown_id,name,partition,account,cpus,state,cancelled_by,exit_code&job=98_5,17&state=FAILED,CANCELLED
        /v1/runs?bare=true&columns=id,shown_id,state,cancelled_by&job=1,2,3&state=FAILED,CANCELLED&user=root,nobody
        /v1/runs?account=lab&bare=true&columns=id,shown_id,name,partition,account,cpus,state,cancelled_by,exit_code&from=2026-11-20T00%3A00%3A00Z&name=x&nodelist=node%5B1-2%5D&partition=main&qos=high&to=2026-11-20T09%3A05%3A00Z&user=root"#]].assert_eq(&paths.join("\n"));
}

#[test]
fn rows_without_names_are_those_with_names() {
    let bare = |request: &Request| {
        assert!(
            request
                .path
                .contains("columns=id,shown_id,state,cancelled_by,elapsed_secs,steps,array_id"),
            "{}",
            request.path
        );
        Answer::ok(
            r#"{"schema":1,"runs":[[99,"98_1","CANCELLED","root",14,null,98],[100,"100","RUNNING",null,3,[{"shown_id":"100.batch","state":"RUNNING"}],null]]}"#,
        )
    };
    expect![[r#"
        98_1|CANCELLED by 0|00:00:14
        100|RUNNING|00:00:03
        100.batch|RUNNING|00:00:00
    "#]]
    .assert_eq(
        &FakeController::start(bare)
            .run(GACCT, &["-n", "-P", "--steps", "-o", "jobid,state,elapsed"])
            .text(),
    );
}

#[test]
fn without_times_and_jobs_it_is_since_midnight() {
    let controller = FakeController::start(answer);
    controller.run(GACCT, &["-o", "jobid"]);
    let path = &controller.requests()[0].path;
    assert!(
        path.starts_with("/v1/runs?bare=true&columns=id,shown_id&from=20")
            && path.ends_with("T00%3A00%3A00Z") | path.contains("T00%3A00%3A00Z&user="),
        "{path}"
    );
}

#[test]
fn reports_add_up() {
    check(
        &["report", "--by", "account,gpu-type", "--from", "2026-11-01"],
        expect![[r#"
        ACCOUNT GPU_TYPE JOBS GPU_HOURS CPU_HOURS
        lab     h100        3      12.2     100.0
        other               1       0.0       2.5
        TOTAL               4      12.2     102.5
    "#]],
    );
    check(
        &["report", "--by", "account,gpu-type", "-P", "-n"],
        expect![[r#"
        lab|h100|3|12.2|100.0
        other||1|0.0|2.5
    "#]],
    );
    check(
        &["report", "--by", "acount"],
        expect![[r#"
        stderr: gacct: --by: there is no group "acount". Did you mean "account"? Groups are account, user, partition, gpu-type, tag, class, gpus, cpus
        exit: Some(2)
    "#]],
    );
    check(
        &["report", "--from", "2026-11-02", "--to", "2026-11-01"],
        expect![[r#"
        stderr: gacct: --from (2026-11-02T00:00:00Z) is not before --to (2026-11-01T00:00:00Z): there is nothing between them
        exit: Some(2)
    "#]],
    );
    let controller = FakeController::start(answer);
    controller.run(
        GACCT,
        &[
            "report",
            "--by",
            "account",
            "--from",
            "2026-11-01",
            "--to",
            "2026-11-20",
        ],
    );
    expect!["/v1/report?by=account&from=2026-11-01T00%3A00%3A00Z&to=2026-11-20T00%3A00%3A00Z"]
        .assert_eq(&controller.requests()[0].path);
}

#[test]
fn mistakes_are_refused() {
    check(
        &["-o", "nosuchfield"],
        expect![[r#"
        stderr: gacct: Invalid field requested: "nosuchfield". gacct -e lists them
        exit: Some(1)
    "#]],
    );
    check(
        &["-S", "soon"],
        expect![[r#"
        stderr: gacct: --starttime: time "soon" is no time that can be read. Try now-1hour, 16:00, yesterday, monday, 01/09, 2027-01-09 or 2027-01-09T06:00
        exit: Some(2)
    "#]],
    );
    check(
        &["-s", "BROKEN"],
        expect![[r#"
            stderr: gacct: "BROKEN" is no state of a job. States are PENDING, RUNNING, SUSPENDED, COMPLETING, COMPLETED, FAILED, CANCELLED, TIMEOUT, NODE_FAIL, OUT_OF_MEMORY, PREEMPTED, DEADLINE, REQUEUED, or all
            exit: Some(2)
        "#]],
    );
}

#[test]
fn jobs_are_chosen_by_nodes_cpus_and_limit_and_options_of_sacct_may_be_short() {
    check(
        &["-nXPo", "jobid", "-i", "2-"],
        expect![[r#"
        100
    "#]],
    );
    check(
        &[
            "-nXPo",
            "jobid",
            "-I",
            "2-3",
            "--end=2026-11-21",
            "--start=2026-11-19",
        ],
        expect![[r#"
        95
    "#]],
    );
    check(
        &["-nXPo", "jobid", "-k", "20", "-K", "1:00:00"],
        expect![[r#"
        95
    "#]],
    );
    check(
        &[
            "-nXPo",
            "jobid,start,end,elapsed",
            "-T",
            "-S",
            "2026-11-20T08",
            "-E",
            "2026-11-20T09:05:35",
            "-I",
            "2",
        ],
        expect![[r#"
        95|2026-11-20T09:05:27|Unknown|00:00:08
    "#]],
    );
    check(
        &["-i", "4-2"],
        expect![[r#"
        stderr: gacct: invalid value '4-2' for '--nnodes <COUNT>': 4 is more than 2
        stderr: 
        stderr: For more information, try '--help'.
        exit: Some(2)
    "#]],
    );
    check(
        &["-nXPo", "jobid", "-M", "all", "-I", "2"],
        expect![[r#"
        95
    "#]],
    );
    check(
        &["-nXPo", "jobid", "--clusters=lab", "-I", "2"],
        expect![[r#"
        95
    "#]],
    );
    check(
        &["-M", "lab,other"],
        expect![[r#"
        stderr: gacct: --clusters other: this is cluster "lab", and its controller knows no other. GPUPOOL_CONFIG names another configuration
        exit: Some(1)
    "#]],
    );
    check(
        &["-s", "BF"],
        expect![[r#"
            stderr: gacct: no job here is ever BOOT_FAIL. States are PENDING, RUNNING, SUSPENDED, COMPLETING, COMPLETED, FAILED, CANCELLED, TIMEOUT, NODE_FAIL, OUT_OF_MEMORY, PREEMPTED, DEADLINE, REQUEUED, or all
            exit: Some(2)
        "#]],
    );
}

#[test]
fn an_unknown_user_without_jobs_is_an_error_and_an_unknown_job_is_not() {
    let none = |_: &Request| Answer::ok(r#"{"schema":1,"runs":[]}"#);
    let check = |words: &[&str], want: Expect| {
        want.assert_eq(&FakeController::start(none).run(GACCT, words).text())
    };
    check(
        &["-u", "no-such-user"],
        expect![[r#"
        stderr: gacct: Invalid user: no job of "no-such-user" is in accounting, and there is no user of that name on this machine
        exit: Some(1)
    "#]],
    );
    check(
        &["-u", "root", "-X"],
        expect![[r#"
        JobID           JobName  Partition    Account  AllocCPUS      State ExitCode 
        ------------ ---------- ---------- ---------- ---------- ---------- -------- 
    "#]],
    );
    check(&["-j", "99999", "-nX"], expect![""]);
    assert!(
        FakeController::start(answer)
            .run(GACCT, &["-u", "no-such-user"])
            .exit
            == Some(0),
        "one who left has jobs still"
    );
}

#[test]
fn up_to_now_has_what_began_in_this_second() {
    let controller = FakeController::start(answer);
    controller.run(GACCT, &["-S", "2020-01-01", "-E", "now"]);
    controller.run(GACCT, &["-S", "2020-01-01", "-E", "now-1minutes"]);
    let paths: Vec<String> = controller
        .requests()
        .iter()
        .map(|request| request.path.clone())
        .collect();
    assert!(
        !paths[0].contains("&to=") && paths[1].contains("&to="),
        "{paths:?}"
    );
}

#[test]
fn an_error_of_the_controller_comes_without_a_header() {
    let refuse = |_: &Request| Answer::refuse(400, "invalid", "\"x\" names no job");
    expect![[r#"
        stderr: gacct: "x" names no job
        exit: Some(1)
    "#]]
    .assert_eq(
        &FakeController::start(refuse)
            .run(GACCT, &["-j", "x"])
            .text(),
    );
}

#[test]
fn fields_and_json_are_listed() {
    let controller = FakeController::start(answer);
    assert!(
        controller
            .run(GACCT, &["-e"])
            .stdout
            .starts_with("Account             AdminComment ")
    );
    let ran = controller.run(GACCT, &["--json"]);
    assert_eq!(ran.stdout.lines().count(), 1);
    assert_eq!(
        serde_json::from_str::<Value>(&ran.stdout).unwrap()["runs"]
            .as_array()
            .map(Vec::len),
        Some(6)
    );
}

#[test]
fn a_report_has_costs_where_there_are_prices_and_a_listing_its_class() {
    let answer = |request: &Request| {
        if request.path.starts_with("/v1/report") {
            return Answer::ok(
                r#"{"schema":1,"rows":[{"group":["borrowed"],"jobs":2,"gpu_hours":4.0,"cpu_hours":8.0,"cost":10.5},{"group":["guaranteed"],"jobs":1,"gpu_hours":1.0,"cpu_hours":1.0,"cost":2.25}]}"#,
            );
        }
        Answer::ok(
            r#"{"schema":1,"runs":[{"id":7,"shown_id":"7","attempt":2,"name":"fit","user":"ada","state":"PREEMPTED","exit_code":{"code":0,"signal":15},"class":"borrowed","lost_gpu_secs":1800}]}"#,
        )
    };
    let controller = FakeController::start(answer);
    expect![[r#"
        CLASS      JOBS GPU_HOURS CPU_HOURS  COST
        borrowed      2       4.0       8.0 10.50
        guaranteed    1       1.0       1.0  2.25
        TOTAL         3       5.0       9.0 12.75
    "#]]
    .assert_eq(&controller.run(GACCT, &["report", "--by", "class"]).text());
    expect![[r#"
        CLASS|JOBS|GPU_HOURS|CPU_HOURS|COST
        borrowed|2|4.0|8.0|10.50
        guaranteed|1|1.0|1.0|2.25
    "#]]
    .assert_eq(
        &controller
            .run(GACCT, &["report", "--by", "class", "-P"])
            .text(),
    );
    expect![[r#"
        JobID|Attempt|State|Class|LostGPUSecs
        7|2|PREEMPTED|borrowed|1800
    "#]]
    .assert_eq(
        &controller
            .run(
                GACCT,
                &[
                    "-j",
                    "7",
                    "-D",
                    "-X",
                    "-P",
                    "-o",
                    "JobID,Attempt,State,Class,LostGPUSecs",
                ],
            )
            .text(),
    );
}

/// What two jobs made of their GPUs, and of a group.
fn sampled(request: &Request) -> Answer {
    if request.path.starts_with("/v1/report") {
        return Answer::ok(
            json!({"schema": 1, "rows": [
                {"group": ["ada"], "jobs": 3, "gpu_hours": 12.0, "cpu_hours": 100.0, "cpu_used_hours": 25.0, "mem_gib_hours": 400.0,
                 "mem_peak_gib_hours": 100.0, "gpu_told_hours": 10.0, "gpu_busy_hours": 7.5, "gpu_idle_hours": 1.25,
                 "energy_kwh": 6.04, "cpu_percent": 25.0, "mem_percent": 25.0, "gpu_percent": 75.0},
                {"group": ["bob"], "jobs": 1, "gpu_hours": 2.0, "cpu_hours": 2.0},
            ]})
            .to_string(),
        );
    }
    let used = json!({"sampled_secs": 7200, "idle_secs": 3600, "busy_percent": 37.5, "memory_busy_percent": 10.0,
        "memory_peak_bytes": 42_949_672_960_u64, "power_peak_watts": 612.5, "temperature_peak_c": 71, "energy_joules": 1_804_000,
        "nvlink_bytes": 0, "pcie_bytes": 1024, "slowed_secs": 12});
    let run = |id: u64, more: Value| {
        let mut run = json!({"id": id, "shown_id": id.to_string(), "attempt": 1, "name": "train", "user": "ada", "account": "lab",
            "partition": "main", "qos": "normal", "state": "COMPLETED", "exit_code": {"code": 0, "signal": 0}, "end_text": "",
            "submit_time": "2026-11-20T09:05:27Z", "start_time": "2026-11-20T09:05:27Z", "end_time": "2026-11-20T10:05:27Z",
            "elapsed_secs": 3600, "nodes": 1, "nodelist": "node2", "cpus": 4, "mem_bytes": 8_u64 << 30, "gpus": "h100:2",
            "gpu_count": 2.0, "cpu_time_secs": 1800.0, "peak_memory_bytes": 1_u64 << 30, "cpu_percent": 12.5, "mem_percent": 12.5,
            "work_dir": "/home/ada", "comment": "", "tags": []});
        run.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        run
    };
    let plain = json!({"gpus": "", "gpu_count": 0.0, "cpu_time_secs": 0.0, "peak_memory_bytes": 0, "cpu_percent": null, "mem_percent": null});
    let runs = [run(7, json!({"gpu_use": used})), run(8, plain)];
    Answer::ok(json!({"schema": 1, "runs": runs}).to_string())
}

fn check_sampled(words: &[&str], want: Expect) {
    want.assert_eq(&FakeController::start(sampled).run(GACCT, words).text());
}

#[test]
fn a_job_in_full_says_what_it_made_of_its_gpus() {
    check_sampled(
        &["7"],
        expect![[r#"
        Job ID: 7
        Name: train
        User: ada
        Account: lab
        Partition: main
        QOS: normal
        State: COMPLETED (exit code 0:0)
        Attempt: 1
        Submitted: 2026-11-20T09:05:27
        Started: 2026-11-20T09:05:27
        Ended: 2026-11-20T10:05:27
        Nodes: node2
        Cores: 4
        Work Directory: /home/ada
        CPU Utilized: 00:30:00
        CPU Efficiency: 12.50% of 04:00:00 core-walltime
        Job Wall-clock time: 01:00:00
        Memory Utilized: 1.00 GB
        Memory Efficiency: 12.50% of 8G
        GPUs: h100:2
        GPU Efficiency: 37.50% of 02:00:00 GPU-walltime
        GPU Idle: 01:00:00
        GPU Memory Utilized: 40.00 GB at most on one GPU
        GPU Power: 612 W and 71 C at most
        GPU Energy: 0.50 kWh (1804000 J)
        GPU Slowed Down: 00:00:12

        Job ID: 8
        Name: train
        User: ada
        Account: lab
        Partition: main
        QOS: normal
        State: COMPLETED (exit code 0:0)
        Attempt: 1
        Submitted: 2026-11-20T09:05:27
        Started: 2026-11-20T09:05:27
        Ended: 2026-11-20T10:05:27
        Nodes: node2
        Cores: 4
        Work Directory: /home/ada
        CPU Utilized: 00:00:00
        CPU Efficiency: unknown, of 04:00:00 core-walltime
        Job Wall-clock time: 01:00:00
        Memory Utilized: 0.00 B
        Memory Efficiency: unknown, of 8G
    "#]],
    );
    check_sampled(
        &["efficiency", "7"],
        expect![[r#"
        Job ID: 7
        User: ada
        State: COMPLETED (exit code 0:0)
        Nodes: 1
        Cores: 4
        CPU Utilized: 00:30:00
        CPU Efficiency: 12.50% of 04:00:00 core-walltime
        Job Wall-clock time: 01:00:00
        Memory Utilized: 1.00 GB
        Memory Efficiency: 12.50% of 8G
        GPUs: h100:2
        GPU Efficiency: 37.50% of 02:00:00 GPU-walltime
        GPU Idle: 01:00:00
        GPU Memory Utilized: 40.00 GB at most on one GPU
        GPU Power: 612 W and 71 C at most
        GPU Energy: 0.50 kWh (1804000 J)
        GPU Slowed Down: 00:00:12

        Job ID: 8
        User: ada
        State: COMPLETED (exit code 0:0)
        Nodes: 1
        Cores: 4
        CPU Utilized: 00:00:00
        CPU Efficiency: unknown, of 04:00:00 core-walltime
        Job Wall-clock time: 01:00:00
        Memory Utilized: 0.00 B
        Memory Efficiency: unknown, of 8G
    "#]],
    );
}

#[test]
fn fields_of_use_are_named_as_sacct_names_them() {
    let fields = "jobid,consumedenergy,consumedenergyraw,tresusageinave,tresusageinmax,cpueff,memeff,gpueff,gpuidle,gpumaxmem,gpumaxpower";
    check_sampled(
        &["-P", "-o", fields],
        expect![[r#"
        JobID|ConsumedEnergy|ConsumedEnergyRaw|TRESUsageInAve|TRESUsageInMax|CPUEff|MemEff|GPUEff|GPUIdle|GPUMaxMem|GPUMaxPower
        7|1.80M|1804000|cpu=00:30:00,energy=1804000,gres/gpuutil=38|gres/gpumem=40960M,mem=1048576K|12.5%|12.5%|37.5%|01:00:00|40960M|612W
        8||||||||||
    "#]],
    );
}

#[test]
fn efficiency_is_shown_by_job_and_by_group_and_reports_have_used_beside_held() {
    check_sampled(
        &["efficiency"],
        expect![[r#"
        JOBID USER STATE      ELAPSED GPUS GPU_EFF GPU_IDLE CPU_EFF MEM_EFF
        7     ada  COMPLETED 01:00:00    2   37.5% 01:00:00   12.5%   12.5%
        8     ada  COMPLETED 01:00:00    0
    "#]],
    );
    check_sampled(
        &["efficiency", "-P", "--by", "user"],
        expect![[r#"
        USER|JOBS|GPU_HOURS|GPU_BUSY|GPU_IDLE|GPU_EFF|CPU_EFF|MEM_EFF|KWH
        ada|3|12.0|7.5|1.2|75.0%|25.0%|25.0%|6.0
        bob|1|2.0||||||
    "#]],
    );
    check_sampled(
        &["report", "--by", "user"],
        expect![[r#"
        USER  JOBS GPU_HOURS GPU_BUSY GPU_IDLE GPU_EFF KWH CPU_HOURS
        ada      3      12.0      7.5      1.2   75.0% 6.0     100.0
        bob      1       2.0                                     2.0
        TOTAL    4      14.0      7.5      1.2   75.0% 6.0     102.0
    "#]],
    );
}

#[test]
fn efficiency_asks_for_what_is_meant_and_copies_json() {
    let controller = FakeController::start(sampled);
    let text = controller
        .run(
            GACCT,
            &[
                "efficiency",
                "--json",
                "--by",
                "account,user",
                "--from",
                "2026-11-01",
            ],
        )
        .text();
    assert!(text.contains("\"gpu_percent\":75.0"), "{text}");
    let text = controller
        .run(GACCT, &["efficiency", "--json", "7", "8"])
        .text();
    assert!(text.contains("\"busy_percent\":37.5"), "{text}");
    let refused = controller.run(GACCT, &["efficiency", "--by", "usr"]).text();
    assert!(refused.contains(r#"Did you mean "user"?"#), "{refused}");
}
