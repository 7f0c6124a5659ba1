//! `sacctmgr`, `sshare` and `sreport` against canned answers. The wanted lines are those that Slurm 22.05.8 printed of the same
//! accounts, users and QOS, without the user root and without what Slurm counts of TRES.

use expect_test::{Expect, expect};
use gcli::fake_controller::{Answer, FakeController, Request};

const GSLURM: &str = env!("CARGO_BIN_EXE_gslurm");

const ACCOUNTS: &str = r#"{"schema":1,"accounts":[
    {"name":"nlp","parent":"research","description":"nlp","shares":6,"limit":{"gpu":4},"users":{"games":{"shares":3},"news":{"shares":9,"default":true}}},
    {"name":"research","description":"all research","shares":10,"users":{"chief":{}},"coordinators":["chief"],"allow_qos":["normal","urgent"],"default_qos":"normal"},
    {"name":"vision","parent":"research","description":"vision lab","shares":4,"users":{"games":{"shares":6,"default":true,"running_jobs":7,"submitted_jobs":20}}},
    {"name":"old","closed":true}]}"#;

const SHARES: &str = r#"{"schema":1,"half_life_secs":604800,"shares":[
    {"depth":0,"account":"root","norm_shares":0.0,"raw_shares":1,"raw_usage":911,"norm_usage":1.0,"effective_usage":0.0},
    {"depth":1,"account":"research","raw_shares":10,"norm_shares":0.909091,"raw_usage":911,"norm_usage":1.0,"effective_usage":1.0,"level_fs":0.909091},
    {"depth":2,"account":"nlp","raw_shares":6,"norm_shares":0.6},
    {"depth":3,"account":"nlp","user":"games","raw_shares":3,"norm_shares":0.25,"fair_share":0.8},
    {"depth":3,"account":"nlp","user":"news","raw_shares":9,"norm_shares":0.75,"fair_share":0.8},
    {"depth":2,"account":"vision","raw_shares":4,"norm_shares":0.4,"raw_usage":911,"norm_usage":1.0,"effective_usage":1.0,"level_fs":0.4},
    {"depth":3,"account":"vision","user":"games","raw_shares":6,"norm_shares":0.75,"raw_usage":911,"norm_usage":1.0,"effective_usage":1.0,"level_fs":0.75,"fair_share":0.2}]}"#;

const QOS: &str = r#"{"schema":1,"qos":[{"name":"normal","description":"Normal QOS default"},
    {"name":"urgent","description":"hurry","priority":100,"usage_factor":2.0,"preempt":["normal"],"preempt_mode":"requeue","per_user":{"running_jobs":2},
     "per_job":{"max_time_secs":86400},"group":{"cpus":64,"gpus":{"gpu":8}}}]}"#;

/// 1838 s of CPU and 919 of a GPU, and a little in an account that is gone.
const REPORT: &str = r#"{"schema":1,"rows":[{"group":["gone","games"],"jobs":1,"gpu_hours":0.0,"cpu_hours":0.0333334},
    {"group":["vision","games"],"jobs":2,"gpu_hours":0.2552778,"cpu_hours":0.5105556}]}"#;

/// In CPU-seconds 22528 by 32 CPUs, 192 by 16, 24 by 2 and 18 by 1, as of jobs of the real Slurm.
const SIZES: &str = r#"{"schema":1,"rows":[{"group":["nlp","news","main","16"],"jobs":1,"cpu_hours":0.0533333},
    {"group":["vision","games","debug","1"],"jobs":5,"cpu_hours":0.005},
    {"group":["vision","games","main","2"],"jobs":1,"cpu_hours":0.0066667},
    {"group":["vision","games","main","32"],"jobs":7,"cpu_hours":6.2577778}]}"#;

const GPU_SIZES: &str = r#"{"schema":1,"rows":[{"group":["nlp","news","main","0"],"jobs":1,"gpu_hours":0.0},
    {"group":["vision","games","main","0.5"],"jobs":2,"gpu_hours":0.5},{"group":["vision","games","main","4"],"jobs":7,"gpu_hours":0.7822222}]}"#;

fn answer(request: &Request) -> Answer {
    let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
    match (path, query) {
        ("/v1/cluster", _) => Answer::ok(r#"{"schema":1,"name":"pool"}"#),
        ("/v1/config", _) => Answer::ok(r#"{"schema":1,"cluster":{"operators":["news"]}}"#),
        ("/v1/accounts", _) => Answer::ok(ACCOUNTS),
        ("/v1/qos", _) => Answer::ok(QOS),
        ("/v1/nodes", _) => Answer::ok(
            r#"{"schema":1,"nodes":[{"name":"n1","gpus":[{"type":"h100"},{"type":"h100"}]}]}"#,
        ),
        ("/v1/report", query) if query.starts_with("by=account,user&from=") => Answer::ok(REPORT),
        ("/v1/report", query) if query.starts_with("by=account,user,partition,cpus&from=") => {
            Answer::ok(SIZES)
        }
        ("/v1/report", query) if query.starts_with("by=account,user,partition,gpus&from=") => {
            Answer::ok(GPU_SIZES)
        }
        ("/v1/utilization", _) => Answer::ok(
            r#"{"schema":1,"known_from":"2026-11-20T00:00:00Z","rows":[
            {"tres":"cpu","hours":4.7,"allocated_hours":2.95,"down_hours":0.2166667,"idle_hours":1.5333333},
            {"tres":"gres/gpu","hours":0.5833333,"allocated_hours":0.3666667,"down_hours":0.0333333,"idle_hours":0.1833333}]}"#,
        ),
        ("/v1/shares", "") => Answer::ok(SHARES),
        // As the controller answers for one account.
        ("/v1/shares", "account=vision") => {
            let mut value: serde_json::Value = serde_json::from_str(SHARES).unwrap();
            value["shares"]
                .as_array_mut()
                .unwrap()
                .retain(|row| row["account"] == "vision");
            Answer::ok(value.to_string())
        }
        _ => Answer::refuse(404, "not_found", "no such path"),
    }
}

/// What is printed, each line between bars for the blanks at both ends.
fn check(line: &str, wanted: Expect) {
    let words: Vec<&str> = line.split(' ').collect();
    let text = FakeController::start(answer)
        .run_as(words[0], GSLURM, &words[1..])
        .text();
    wanted.assert_eq(
        &text
            .lines()
            .map(|line| format!("|{line}|\n"))
            .collect::<String>(),
    );
}

#[test]
fn sshare_prints_the_tree_as_slurms_does() {
    check(
        "sshare -a",
        expect![[r#"
        |Account                    User  RawShares  NormShares    RawUsage  EffectvUsage  FairShare |
        |-------------------- ---------- ---------- ----------- ----------- ------------- ---------- |
        |root                                          0.000000         911      1.000000            |
        | research                               10    0.909091         911      1.000000            |
        |  nlp                                    6    0.600000           0      0.000000            |
        |   nlp                    games          3    0.250000           0      0.000000   0.800000 |
        |   nlp                     news          9    0.750000           0      0.000000   0.800000 |
        |  vision                                 4    0.400000         911      1.000000            |
        |   vision                 games          6    0.750000         911      1.000000   0.200000 |
    "#]],
    );
    check(
        "sshare -a -l -P",
        expect![[r#"
        |Account|User|RawShares|NormShares|RawUsage|NormUsage|EffectvUsage|FairShare|LevelFS|
        |root|||0.000000|911||1.000000|||
        | research||10|0.909091|911|1.000000|1.000000||0.909091|
        |  nlp||6|0.600000|0|0.000000|0.000000||inf|
        |   nlp|games|3|0.250000|0|0.000000|0.000000|0.800000|inf|
        |   nlp|news|9|0.750000|0|0.000000|0.000000|0.800000|inf|
        |  vision||4|0.400000|911|1.000000|1.000000||0.400000|
        |   vision|games|6|0.750000|911|1.000000|1.000000|0.200000|0.750000|
    "#]],
    );
}

#[test]
fn sshare_chooses_users_accounts_and_columns() {
    check(
        "sshare -u news -n",
        expect![[r#"
        |root                                          0.000000         911      1.000000            |
        | research                               10    0.909091         911      1.000000            |
        |  nlp                                    6    0.600000           0      0.000000            |
        |   nlp                     news          9    0.750000           0      0.000000   0.800000 |
        |  vision                                 4    0.400000         911      1.000000            |
    "#]],
    );
    check(
        "sshare -h -a -A vision",
        expect![[r#"
        |vision                                   4    0.400000         911      1.000000            |
        | vision                   games          6    0.750000         911      1.000000   0.200000 |
    "#]],
    );
    check(
        "sshare -U -u games,news",
        expect![[r#"
        |Account                    User  RawShares  NormShares    RawUsage  EffectvUsage  FairShare |
        |-------------------- ---------- ---------- ----------- ----------- ------------- ---------- |
        |nlp                       games          3    0.250000           0      0.000000   0.800000 |
        |nlp                        news          9    0.750000           0      0.000000   0.800000 |
        |vision                    games          6    0.750000         911      1.000000   0.200000 |
    "#]],
    );
    check(
        "sshare -nap -o account%-9,u,Fair,cluster",
        expect![[r#"
        |root|||pool||
        | research|||pool||
        |  nlp|||pool||
        |   nlp|games|0.800000|pool||
        |   nlp|news|0.800000|pool||
        |  vision|||pool||
        |   vision|games|0.200000|pool||
    "#]],
    );
}

#[test]
fn sshare_refuses_what_it_cannot_show() {
    check(
        "sshare -o account,GrpTRESMins",
        expect![[r#"
        |stderr: sshare: error: there is no column "GrpTRESMins" here: --helpformat names those there are; gadm share shows shares and use, gadm quota limits and budgets|
        |exit: Some(1)|
    "#]],
    );
    check(
        "sshare -m",
        expect![[r#"
        |stderr: sshare: error: -m: nobody's shares are by partition|
        |exit: Some(1)|
    "#]],
    );
    check(
        "sshare -M other",
        expect![[r#"
        |stderr: sshare: error: --clusters other: this is cluster "pool", and its controller knows no other. GPUPOOL_CONFIG names another configuration|
        |exit: Some(1)|
    "#]],
    );
}

#[test]
fn sacctmgr_lists_accounts_and_associations_as_slurms_does() {
    check(
        "sacctmgr show account",
        expect![[r#"
        |   Account                Descr                  Org |
        |---------- -------------------- -------------------- |
        |       nlp                  nlp             research |
        |  research         all research             research |
        |    vision           vision lab             research |
    "#]],
    );
    check(
        "sacctmgr -P show assoc where account=nlp,vision",
        expect![[r#"
        |Cluster|Account|User|Partition|Share|Priority|GrpJobs|GrpTRES|GrpSubmit|GrpWall|GrpTRESMins|MaxJobs|MaxTRES|MaxTRESPerNode|MaxSubmit|MaxWall|MaxTRESMins|QOS|Def QOS|GrpTRESRunMins|
        |pool|nlp|||6|||gres/gpu=4||||||||||normal,urgent|normal||
        |pool|nlp|games||3|||||||||||||normal,urgent|normal||
        |pool|nlp|news||9|||||||||||||normal,urgent|normal||
        |pool|vision|||4|||||||||||||normal,urgent|normal||
        |pool|vision|games||6|||||||7|||20|||normal,urgent|normal||
    "#]],
    );
    check(
        "sacctmgr show assoc tree format=account,user,share where parent=research",
        expect![[r#"
        |Account                    User     Share |
        |-------------------- ---------- --------- |
        |nlp                                     6 |
        | nlp                      games         3 |
        | nlp                       news         9 |
        |vision                                  4 |
        | vision                   games         6 |
    "#]],
    );
    check(
        "sacctmgr -n -P show account vision withassoc format=account,parentname,user,maxjobs",
        expect![[r#"
        |vision|research|||
        |vision||games|7|
    "#]],
    );
}

#[test]
fn sacctmgr_lists_users_once_or_with_their_accounts() {
    check(
        "sacctmgr show user",
        expect![[r#"
        |      User   Def Acct     Admin |
        |---------- ---------- --------- |
        |     chief   research      None |
        |     games     vision      None |
        |      news        nlp  Operator |
    "#]],
    );
    check(
        "sacctmgr -P show user games -s",
        expect![[r#"
        |User|Def Acct|Admin|Cluster|Account|Partition|Share|Priority|MaxJobs|MaxNodes|MaxCPUs|MaxSubmit|MaxWall|MaxCPUMins|QOS|Def QOS|
        |games|vision|None|pool|nlp||3||||||||normal,urgent|normal|
        |games|vision|None|pool|vision||6||7|||20|||normal,urgent|normal|
    "#]],
    );
    check(
        "sacctmgr -nP list user withcoord",
        expect![[r#"
        |chief|research|None|research|
        |games|vision|None||
        |news|nlp|Operator||
    "#]],
    );
}

#[test]
fn sacctmgr_lists_qos_as_slurms_does() {
    check(
        "sacctmgr -P show qos",
        expect![[r#"
        |Name|Priority|GraceTime|Preempt|PreemptExemptTime|PreemptMode|Flags|UsageThres|UsageFactor|GrpTRES|GrpTRESMins|GrpTRESRunMins|GrpJobs|GrpSubmit|GrpWall|MaxTRES|MaxTRESPerNode|MaxTRESMins|MaxWall|MaxTRESPU|MaxJobsPU|MaxSubmitPU|MaxTRESPA|MaxJobsPA|MaxSubmitPA|MinTRES|
        |normal|0|00:00:00|||cluster|||1.000000||||||||||||||||||
        |urgent|100|00:00:00|normal||requeue|||2.000000|cpu=64,gres/gpu=8|||||||||1-00:00:00||2||||||
    "#]],
    );
    check(
        "sacctmgr show qos where name=urgent format=name%20,flags,preempt,grptres%30,maxtrespu",
        expect![[r#"
        |                Name                Flags    Preempt                        GrpTRES     MaxTRESPU |
        |-------------------- -------------------- ---------- ------------------------------ ------------- |
        |              urgent                          normal              cpu=64,gres/gpu=8               |
    "#]],
    );
    check(
        "sacctmgr -n list qos urgent format=name,priority,maxwall,maxjobspu",
        expect![[r#"
        |    urgent        100  1-00:00:00         2 |
    "#]],
    );
}

#[test]
fn sacctmgr_says_what_is_elsewhere() {
    check(
        "sacctmgr show qos format=max",
        expect![[r#"
        |stderr: sacctmgr: error: "max" may be maxtres or maxtrespernode: write more of it|
        |exit: Some(1)|
    "#]],
    );
    check(
        "sacctmgr show tres",
        expect![[r#"
        |    Type            Name     ID |
        |-------- --------------- ------ |
        |     cpu                      1 |
        |     mem                      2 |
        |  energy                      3 |
        |    node                      4 |
        | billing                      5 |
        |    gres             gpu   1001 |
        |    gres        gpu:h100   1002 |
    "#]],
    );
    check(
        "sacctmgr show qos user=ada",
        expect![[r#"
        |stderr: sacctmgr: error: "user=ada" chooses nothing here. Known are name= and format=|
        |exit: Some(1)|
    "#]],
    );
    check(
        "sacctmgr modify user ada",
        expect![[r#"
        |stderr: sacctmgr: error: what is to be set? modify account vision set maxjobs=10|
        |exit: Some(1)|
    "#]],
    );
}

#[test]
fn sreport_sums_up_what_accounts_and_users_used_as_slurms_does() {
    check(
        "sreport cluster AccountUtilizationByUser start=2026-11-20T15:00 end=2026-11-20T16:00",
        expect![[r#"
        |--------------------------------------------------------------------------------|
        |Cluster/Account/User Utilization 2026-11-20T15:00:00 - 2026-11-20T15:59:59 (3600 secs)|
        |Usage reported in CPU Minutes|
        |--------------------------------------------------------------------------------|
        |  Cluster         Account     Login     Proper Name     Used |
        |--------- --------------- --------- --------------- -------- |
        |     pool            root                                 33 |
        |     pool        research                                 31 |
        |     pool          vision                                 31 |
        |     pool          vision     games           games       31 |
        |     pool            gone                                  2 |
        |     pool            gone     games           games        2 |
    "#]],
    );
    check(
        "sreport -n -P -T cpu,gres/gpu -t sec cluster AccountUtil tree start=2026-11-20T15:00 end=2026-11-20T16:00 accounts=vision",
        expect![[r#"
        |pool|  vision|||cpu|1838|
        |pool|  vision|||gres/gpu|919|
        |pool|   vision|games|games|cpu|1838|
        |pool|   vision|games|games|gres/gpu|919|
    "#]],
    );
    check(
        "sreport user top start=2026-11-20T15:00 end=2026-11-20T16:00 topcount=1",
        expect![[r#"
        |--------------------------------------------------------------------------------|
        |Top 1 Users 2026-11-20T15:00:00 - 2026-11-20T15:59:59 (3600 secs)|
        |Usage reported in CPU Minutes|
        |--------------------------------------------------------------------------------|
        |  Cluster     Login     Proper Name         Account     Used |
        |--------- --------- --------------- --------------- -------- |
        |     pool     games           games          vision       31 |
    "#]],
    );
    check(
        "sreport -n -P -T gres/gpu -t hours user top group format=login,account,used start=2026-11-20T15:00 end=2026-11-20T16:00",
        expect![[r#"
        |games|gone,vision|0|
    "#]],
    );
}

#[test]
fn sreport_says_what_became_of_the_cluster_as_slurms_does() {
    const TIME: &str = "start=2026-11-20 end=2026-11-20T20:00";
    check(
        &format!("sreport cluster utilization {TIME}"),
        expect![[r#"
        |--------------------------------------------------------------------------------|
        |Cluster Utilization 2026-11-20T00:00:00 - 2026-11-20T19:59:59|
        |Usage reported in CPU Minutes|
        |--------------------------------------------------------------------------------|
        |  Cluster Allocate     Down PLND Dow     Idle  Planned Reported |
        |--------- -------- -------- -------- -------- -------- -------- |
        |     pool      177       13                92               282 |
    "#]],
    );
    check(
        &format!("sreport -T cpu,gres/gpu cluster util {TIME}"),
        expect![[r#"
        |--------------------------------------------------------------------------------|
        |Cluster Utilization 2026-11-20T00:00:00 - 2026-11-20T19:59:59|
        |Usage reported in TRES Minutes|
        |--------------------------------------------------------------------------------|
        |  Cluster      TRES Name Allocate     Down PLND Dow     Idle  Planned Reported |
        |--------- -------------- -------- -------- -------- -------- -------- -------- |
        |     pool            cpu      177       13                92               282 |
        |     pool       gres/gpu       22        2                11                35 |
    "#]],
    );
    check(
        &format!("sreport -P -T gres/gpu -t percent cluster utilization {TIME}"),
        expect![[r#"
        |--------------------------------------------------------------------------------|
        |Cluster Utilization 2026-11-20T00:00:00 - 2026-11-20T19:59:59|
        |Usage reported in Percentage of Total|
        |--------------------------------------------------------------------------------|
        |Cluster|TRES Name|Allocated|Down|PLND Down|Idle|Planned|Reported|
        |pool|gres/gpu|62.86%|5.71%||31.43%||100.00%|
    "#]],
    );
    check(
        "sreport -n -t hours cluster utilization start=2026-11-19T20:00 end=2026-11-20T20:00 format=cluster,allocated,idle",
        expect![[r#"
        |     pool        3        2 |
        |stderr: sreport: what nodes had is known from 2026-11-20T00:00:00 on: the time before is not counted|
    "#]],
    );
    check(
        "sreport -n -t percent cluster utilization start=2026-11-19T20:00 end=2026-11-20T20:00 format=reported",
        expect![[r#"
        |  83.33% |
        |stderr: sreport: what nodes had is known from 2026-11-20T00:00:00 on: the time before is not counted|
    "#]],
    );
    check(
        "sreport -n -t percent cluster utilization start=2026-11-18 end=2026-11-19 format=reported",
        expect![[r#"
        |   0.00% |
        |stderr: sreport: of this time nothing is known: what nodes had is known from 2026-11-20T00:00:00 on|
    "#]],
    );
}

#[test]
fn sreport_sums_up_by_sizes_as_slurms_does() {
    const TIME: &str = "start=2026-11-20 end=2026-11-20T20:00";
    check(
        &format!("sreport job sizesbyaccount {TIME}"),
        expect![[r#"
        |--------------------------------------------------------------------------------|
        |Job Sizes 2026-11-20T00:00:00 - 2026-11-20T19:59:59 (72000 secs)|
        |Time reported in Minutes|
        |--------------------------------------------------------------------------------|
        |  Cluster   Account     0-49 CPUs   50-249 CPUs  250-499 CPUs  500-999 CPUs  >= 1000 CPUs % of cluster |
        |--------- --------- ------------- ------------- ------------- ------------- ------------- ------------ |
        |     pool      root           379             0             0             0             0      100.00% |
    "#]],
    );
    check(
        &format!("sreport -t sec job sizesbyaccount {TIME} flatview grouping=4,16"),
        expect![[r#"
        |--------------------------------------------------------------------------------|
        |Job Sizes 2026-11-20T00:00:00 - 2026-11-20T19:59:59 (72000 secs)|
        |Time reported in Seconds|
        |--------------------------------------------------------------------------------|
        |  Cluster   Account      0-3 CPUs     4-15 CPUs    >= 16 CPUs % of cluster |
        |--------- --------- ------------- ------------- ------------- ------------ |
        |     pool       nlp             0             0           192        0.84% |
        |     pool    vision            42             0         22528       99.16% |
    "#]],
    );
    check(
        &format!("sreport -n -t sec job sizes {TIME} accounts=research,nlp grouping=individual"),
        expect![[r#"
        |     pool       nlp             0             0           192             0        0.84% |
        |     pool  research            18            24           192         22528       99.16% |
    "#]],
    );
    check(
        &format!("sreport -P job sizes {TIME} acctasparent printjobcount grouping=16"),
        expect![[r#"
        |--------------------------------------------------------------------------------|
        |Job Sizes 2026-11-20T00:00:00 - 2026-11-20T19:59:59 (72000 secs)|
        |Units are in number of jobs ran|
        |--------------------------------------------------------------------------------|
        |Cluster|Account|0-15 CPUs|>= 16 CPUs|% of cluster|
        |pool|research|6|8|100.00%|
    "#]],
    );
    check(
        &format!("sreport -n -t sec job sizes {TIME} flatview users=news grouping=8"),
        expect![[r#"
        |     pool       nlp             0           192      100.00% |
    "#]],
    );
    check(
        &format!("sreport -n -P -t sec job sizes {TIME} flatview partitions=debug"),
        expect![[r#"
        |pool|vision|18|0|0|0|0|100.00%|
    "#]],
    );
    check(
        &format!("sreport -T gres/gpu -t hours job sizes {TIME} flatview grouping=1,4"),
        expect![[r#"
        |--------------------------------------------------------------------------------|
        |Job Sizes 2026-11-20T00:00:00 - 2026-11-20T19:59:59 (72000 secs)|
        |TRES type is gres/gpu|
        |Time reported in Hours|
        |--------------------------------------------------------------------------------|
        |  Cluster   Account      0-0 TRES      1-3 TRES     >= 4 TRES % of cluster |
        |--------- --------- ------------- ------------- ------------- ------------ |
        |     pool       nlp             0             0             0        0.00% |
        |     pool    vision             0             0             1      100.00% |
    "#]],
    );
    check(
        "sreport -T cpu,gres/gpu job sizes",
        expect![[r#"
        |stderr: sreport: error: sizes are of one thing: ask for each with a --tres of its own|
        |exit: Some(1)|
    "#]],
    );
    check(
        "sreport job sizes grouping=16,4",
        expect![[r#"
        |stderr: sreport: error: grouping=16,4: write where groups begin, smaller ones first: 50,250; or individual|
        |exit: Some(1)|
    "#]],
    );
    check(
        "sreport job sizesbyaccountandwckey",
        expect![[r#"
        |stderr: sreport: error: job sizesbyaccountandwckey: sizes are summed up by accounts alone: sreport job SizesByAccount; gacct report --by user,gpus or --by tag,cpus has more|
        |exit: Some(1)|
    "#]],
    );
}

#[test]
fn sreport_refuses_what_accounting_does_not_hold() {
    check(
        "sreport reservation utilization",
        expect![[r#"
        |stderr: sreport: error: reservation utilization: what reservations held in the past is not kept. gacct report says what was used, sreport cluster Utilization what was idle|
        |exit: Some(1)|
    "#]],
    );
    check(
        "sreport -t percent user top start=2026-11-20 end=2026-11-21",
        expect![[r#"
        |--------------------------------------------------------------------------------|
        |Top 10 Users 2026-11-20T00:00:00 - 2026-11-20T23:59:59 (86400 secs)|
        |Usage reported in Percentage of Total|
        |--------------------------------------------------------------------------------|
        |  Cluster     Login     Proper Name         Account     Used |
        |--------- --------- --------------- --------------- -------- |
        |     pool     games           games          vision   10.86% |
        |     pool     games           games            gone    0.71% |
    "#]],
    );
    check(
        "sreport cluster utilization nodes=n1",
        expect![[r#"
        |stderr: sreport: error: "nodes=n1" chooses nothing here. Known are start=, end= and format=|
        |exit: Some(1)|
    "#]],
    );
    check(
        "sreport user top format=login,energy",
        expect![[r#"
        |stderr: sreport: error: there is no column "energy" here: Cluster, Account, Login, Proper, TresName and Used are; gacct report has more: energy, cost, how busy GPUs were|
        |exit: Some(1)|
    "#]],
    );
    check(
        "sreport user top nodes=n1",
        expect![[r#"
        |stderr: sreport: error: "nodes=n1" chooses nothing here. Known are start=, end=, accounts=, users=, format=, tree, group and topcount=|
        |exit: Some(1)|
    "#]],
    );
}

/// What is said, and the edits that reach the controller.
fn edits(line: &str) -> String {
    let words: Vec<&str> = line.split(' ').collect();
    let controller = FakeController::start(|request: &Request| match request.method.as_str() {
        "POST" => Answer::ok(r#"{"schema":1,"notes":[]}"#),
        // A record that is to go is looked at before.
        _ if request.path.starts_with("/v1/qos/") || request.path.starts_with("/v1/accounts/") => {
            Answer::ok("{}")
        }
        _ => answer(request),
    });
    let text = controller.run_as(words[0], GSLURM, &words[1..]).text();
    let sent = controller
        .requests()
        .into_iter()
        .filter(|request| request.method == "POST");
    let sent: String = sent
        .map(|request| format!("{} {}\n", request.path, request.body))
        .collect();
    text + &sent
}

#[test]
fn sacctmgr_adds_changes_and_deletes() {
    expect![[r#"
         Adding Account(s)
          bio
        stderr: sacctmgr: Organization=uni is not kept: the parent's name stands there
        /v1/accounts/bio {"create":true,"change":{"parent":"research","shares":5}}
    "#]]
    .assert_eq(&edits(
        "sacctmgr -i add account bio parent=research fairshare=5 Organization=uni",
    ));
    expect![[r#"
         Adding User(s)
          eve
          games
         Associations =
          U = eve       A = nlp
          U = eve       A = vision
        /v1/accounts/nlp/users/eve {"create":true,"change":{"running_jobs":3}}
        /v1/accounts/vision/users/eve {"create":true,"change":{"default":true,"running_jobs":3}}
    "#]]
    .assert_eq(&edits(
        "sacctmgr -i add user eve,games account=nlp,vision defaultaccount=vision maxjobs=3",
    ));
    expect![[r#"
         Modified user associations...
          A = vision               U = games
        /v1/accounts/vision/users/games {"create":false,"change":{"cpus":8,"gpus":{"gpu":4.0},"shares":2}}
    "#]].assert_eq(&edits("sacctmgr -i modify user games where account=vision set GrpTRES=gres/gpu=4,cpu=8 fairshare=2"));
    expect![[r#"
         Modified user associations...
          A = nlp                  U = games
        /v1/accounts/nlp/users/games {"create":false,"change":{"default":true}}
    "#]]
    .assert_eq(&edits(
        "sacctmgr -i modify user games set defaultaccount=nlp",
    ));
    expect![[r#"
         Modified account associations...
          nlp
          vision
        /v1/accounts/nlp {"create":false,"change":{"allow_qos":["normal","urgent"]}}
        /v1/accounts/vision {"create":false,"change":{"allow_qos":["normal","urgent"]}}
    "#]]
    .assert_eq(&edits(
        "sacctmgr -i modify account where parent=research set qos+=urgent",
    ));
    expect![[r#"
         Modified qos...
          urgent
        /v1/qos/urgent {"create":false,"change":{"per_job":{"max_time_secs":3600},"priority":7}}
    "#]]
    .assert_eq(&edits(
        "sacctmgr -i modify qos urgent set priority=7 MaxWall=1:00:00",
    ));
    expect![[r#"
         Adding Coordinator User(s)
          news
         To Account(s) and all sub-accounts
          nlp
        /v1/accounts/nlp {"create":false,"change":{"+coordinators":["news"]}}
    "#]]
    .assert_eq(&edits("sacctmgr -i add coordinator account=nlp names=news"));
    expect![[r#"
         Deleting user associations...
          A = nlp        U = games
        /v1/accounts/nlp/users/games/remove {"create":false,"change":{}}
    "#]]
    .assert_eq(&edits("sacctmgr -i delete user games where account=nlp"));
    expect![[r#"
         Deleting QOS(s)...
          urgent
        /v1/qos/urgent/remove {"create":false,"change":{}}
    "#]]
    .assert_eq(&edits("sacctmgr -i delete qos urgent"));
}

#[test]
fn sacctmgr_changes_nothing_that_is_not_there_nor_unasked() {
    expect![[r#"
         Nothing new added.
        stderr: sacctmgr: error: they are there already
        exit: Some(1)
    "#]]
    .assert_eq(&edits("sacctmgr -i add account vision"));
    expect![[r#"
         Nothing new added.
        stderr: sacctmgr: error: they are there already
        exit: Some(1)
    "#]]
    .assert_eq(&edits("sacctmgr -i add user games account=vision"));
    expect![[r#"
        stderr: sacctmgr: error: there is no account "nosuch": add account nosuch
        exit: Some(1)
    "#]]
    .assert_eq(&edits("sacctmgr -i add user eve account=nosuch"));
    expect![[r#"
         Nothing modified
        stderr: sacctmgr: error: nobody of that name may charge that account
        exit: Some(1)
    "#]]
    .assert_eq(&edits("sacctmgr -i modify user eve set maxjobs=3"));
    expect![[r#"
        stderr: sacctmgr: error: what is to be set? modify account vision set maxjobs=10
        exit: Some(1)
    "#]]
    .assert_eq(&edits("sacctmgr -i modify account vision set"));
    expect![[r#"
        stderr: sacctmgr: error: which? modify account NAME set KEY=VALUE
        exit: Some(1)
    "#]]
    .assert_eq(&edits("sacctmgr -i modify account set maxjobs=3"));
    expect![[r#"
         Nothing deleted
        stderr: sacctmgr: error: there is none of that name
        exit: Some(1)
    "#]]
    .assert_eq(&edits("sacctmgr -i delete qos nosuch"));
    expect![[r#"
        stderr: sacctmgr: error: delete nlp? Say -i; there is no terminal to ask on
        exit: Some(1)
    "#]]
    .assert_eq(&edits("sacctmgr delete account nlp"));
}

#[test]
fn under_the_names_sacctmgr_and_sshare_accounts_are_listed_and_nothing_is_made() {
    let answer = |request: &Request| match request.path.as_str() {
        "/v1/cluster" => Answer::ok(r#"{"schema":1,"name":"lab"}"#),
        "/v1/qos" => Answer::ok(r#"{"schema":1,"qos":[]}"#),
        "/v1/shares" => Answer::ok(
            r#"{"schema":1,"half_life_secs":1,"shares":[{"depth":1,"account":"vision"},{"depth":2,"account":"vision","user":"ada"}]}"#,
        ),
        "/v1/accounts" => Answer::ok(
            r#"{"schema":1,"accounts":[{"name":"vision","description":"eyes","users":{"ada":{"default":true,"shares":3}}},{"name":"open"}]}"#,
        ),
        _ => Answer::refuse(404, "not_found", "no such path"),
    };
    let controller = FakeController::start(answer);
    let said = |name: &str, words: &[&str]| {
        controller
            .run_as(name, GSLURM, words)
            .text()
            .lines()
            .map(|line| format!("|{line}\n"))
            .collect::<String>()
    };
    expect![[r#"
        |                open 
        |              vision 
    "#]]
    .assert_eq(&said(
        "sacctmgr",
        &["-n", "-s", "list", "user", "ada", "format=account%20"],
    ));
    expect![[r#"
        ||vision
        |ada|vision
        ||open
    "#]]
    .assert_eq(&said(
        "sacctmgr",
        &["-nP", "show", "assoc", "format=User,Account"],
    ));
    expect![[r#"
        |Cluster|Account|User|Partition|Share|Priority|GrpJobs|GrpTRES|GrpSubmit|GrpWall|GrpTRESMins|MaxJobs|MaxTRES|MaxTRESPerNode|MaxSubmit|MaxWall|MaxTRESMins|QOS|Def QOS|GrpTRESRunMins
        |lab|vision|ada||3|||||||||||||normal||
    "#]].assert_eq(&said("sacctmgr", &["-P", "list", "associations", "where", "user=ada", "account=vision"]));
    expect![[r#"
        |              vision 
        |                open 
    "#]]
    .assert_eq(&said(
        "sshare",
        &["-U", "-u", "ada", "--format", "Account%20", "--noheader"],
    ));
    expect![[r#"
        |stderr: sacctmgr: error: whom, and into which account? add user ada account=vision
        |exit: Some(1)
    "#]]
    .assert_eq(&said("sacctmgr", &["add", "user", "eve"]));
    assert!(
        said("sshare", &["-U", "--format", "FairShare,Nosuch"])
            .contains("there is no column \"Nosuch\" here")
    );
    // What would choose something is not passed over.
    assert!(
        said("sacctmgr", &["list", "user", "cluster=other"])
            .contains("this is cluster \"lab\", and its controller knows no other")
    );
    assert!(said("sacctmgr", &["-nP", "list", "cluster", "cluster=lab"]).starts_with("|lab|"));
    assert!(said("sacctmgr", &["-u", "ada", "list", "assoc"]).contains("unexpected argument '-u'"));
    assert!(said("sshare", &["ada"]).contains("unexpected argument 'ada'"));
}
