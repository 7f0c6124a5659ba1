//! `gnodes` as a process, against canned answers. The lines of `-p` are those that sinfo 22.05.8 prints.

#[path = "canned/nodes.rs"]
mod canned;

use canned::{answer, node};
use expect_test::{Expect, expect};
use gcli::fake_controller::{Answer, FakeController, Request};
use serde_json::{Value, json};

const GNODES: &str = env!("CARGO_BIN_EXE_gnodes");

/// Two GPUs of three are joined by two NVLinks; the third hangs on the other socket. One kind too many.
fn joined() -> Value {
    let gpu = |slot: u16, numa: u32, links: Value| {
        json!({"slot": slot, "index": slot, "minor": slot, "uuid": format!("GPU-{slot}"), "type": "v100", "memory_mib": 32768,
               "jobs": [], "fault": "", "present": true, "numa": numa, "links": links})
    };
    node(
        "n10",
        "IDLE",
        json!({"left_out": ["v100:1"], "switches": "spine.leaf1", "nvlink_domain": "abc.1", "gpus": [
            gpu(0, 0, json!({"1": "NV2", "2": "SYS"})), gpu(1, 0, json!({"0": "NV2", "2": "SYS"})), gpu(2, 1, json!({"0": "SYS", "1": "C2C"})),
        ]}),
    )
}

#[test]
fn one_node_in_full_shows_how_its_gpus_are_joined() {
    let controller = FakeController::start(|_: &Request| {
        Answer::ok(json!({"schema": 1, "nodes": [joined()]}).to_string())
    });
    let shown = controller.run(GNODES, &["n10"]).text();
    let matrix: Vec<&str> = shown
        .lines()
        .skip_while(|line| !line.contains("Links"))
        .map(str::trim)
        .collect();
    expect![[r#"
           Links GPU0  GPU1  GPU2  NUMA
           GPU0  X     NV2   SYS   0
           GPU1  NV2   X     SYS   0
           GPU2  SYS   ?     X     1
    "#]]
    .assert_eq(&format!("{}\n", matrix.join("\n").trim_end()));
    assert!(
        shown.contains("\n   Switches=spine.leaf1\n   NVLinkDomain=abc.1\n"),
        "{shown}"
    );
    assert!(
        shown.contains("LeftOut=v100:1 (a node offers 16 kinds"),
        "{shown}"
    );
    assert!(
        controller
            .run(GNODES, &[])
            .text()
            .contains("not offered: v100:1"),
        "{shown}"
    );
}

fn check(words: &[&str], want: Expect) {
    want.assert_eq(&FakeController::start(answer).run(GNODES, words).text());
}

#[test]
fn nodes_are_listed_with_their_gpus_and_what_is_wrong() {
    check(
        &[],
        expect![[r#"
        NODE  STATE   PARTITIONS CPUS    MEMORY GPUS     NOTES
        n1    idle    main       0/16    0/7.8G h100:0/2
        node2 mixed   main       4/16 500M/7.8G h100:1/2
        n3    drained main,long  0/16    0/7.8G h100:0/2 fan replaced on Monday; gpu1 XID 79; declared
        n10   down    main       0/16    0/7.8G h100:0/2 Not responding; isolation none
        n4    idle    main       0/16    0/7.8G h100:0/2
    "#]],
    );
    check(
        &["-h", "-t", "drain,down"],
        expect![[r#"
        n3  drained main,long 0/16 0/7.8G h100:0/2 fan replaced on Monday; gpu1 XID 79; declared
        n10 down    main      0/16 0/7.8G h100:0/2 Not responding; isolation none
    "#]],
    );
    check(
        &["-h", "-t", "comp", "--noconvert"],
        expect![[r#"
        n1 idle    main      0/16 0/7.8G h100:0/2
        n3 drained main,long 0/16 0/7.8G h100:0/2 fan replaced on Monday; gpu1 XID 79; declared
    "#]],
    );
    check(
        &["-h", "-n", "n[1-4]", "--long"],
        expect![[r#"
        n1 idle    main      0/16 0/7.8G h100:0/2 a100 0.1.0
        n3 drained main,long 0/16 0/7.8G h100:0/2 a100 0.1.0     fan replaced on Monday; gpu1 XID 79; declared
        n4 idle    main      0/16 0/7.8G h100:0/2 a100 0.1.0
    "#]],
    );
}

#[test]
fn partitions_are_listed_as_sinfo_lists_them() {
    check(
        &["-p"],
        expect![[r#"
        PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST
        main*        up 1-00:00:00      1   down n10
        main*        up 1-00:00:00      1  drain n3
        main*        up 1-00:00:00      1    mix node2
        main*        up 1-00:00:00      2   idle n[1,4]
        long       down   infinite      1  drain n3
    "#]],
    );
    check(
        &["-p", "main", "-n", "n1,node2"],
        expect![[r#"
        PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST
        main*        up 1-00:00:00      1    mix node2
        main*        up 1-00:00:00      1   idle n1
    "#]],
    );
    check(
        &["-s", "-p", "main", "-n", "n1,node2"],
        expect![[r#"
        PARTITION AVAIL  TIMELIMIT   NODES(A/I/O/T) NODELIST
        main*        up 1-00:00:00          1/1/0/2 n1,node2
    "#]],
    );
    check(
        &["-R"],
        expect![[r#"
        REASON               USER      TIMESTAMP           NODELIST
        Not responding       Unknown   Unknown             n10
        fan replaced on Mond root      2026-11-20T09:00:00 n3
    "#]],
    );
    check(&["-p", "nosuch", "-h"], expect![[""]]);
}

#[test]
fn formats_print_what_sinfo_printed() {
    check(
        &[
            "-h",
            "-n",
            "node2",
            "-o",
            "%P|%a|%l|%D|%t|%T|%N|%c|%m|%C|%f|%F|%w|%R|%n",
        ],
        expect![[r#"
        main*|up|1-00:00:00|1|mix|mixed|node2|16|8000|4/12/0/16|a100|1/0/0/1|1|main|node2
        long|down|infinite|0|n/a|n/a||0|0|0/0/0/0|(null)|0/0/0/0|0|long|
    "#]],
    );
    check(
        &[
            "-h",
            "-N",
            "-n",
            "n1,node2",
            "-O",
            "NodeList,AllocMem,Memory,CPUsState,StateLong",
        ],
        expect![[r#"
        n1                  0                   8000                0/16/0/16           idle                
        node2               500                 8000                4/12/0/16           mixed               
    "#]],
    );
    check(
        &[
            "-h",
            "-N",
            "-n",
            "node2",
            "-O",
            "nodehost:30,gres:30,gresused:40,statelong",
        ],
        expect![[r#"
        node2                         gpu:h100:2                    gpu:h100:1                              mixed               
    "#]],
    );
    check(
        &["-h", "-o", "%P,%m", "-n", "n1"],
        expect![[r#"
        main*,8000
        long,0
    "#]],
    );
    check(
        &["-h", "-N", "-l", "-p", "long"],
        expect![[r#"
        n3             1      long     drained    16     8000 gpu:h100:2           fan replaced on Monday
    "#]],
    );
}

#[test]
fn one_node_in_full_names_each_gpu() {
    check(
        &["n3"],
        expect![[r#"
        NodeName=n3 State=IDLE+DRAIN Role=compute
           Partitions=main,long
           CPUAlloc=0 CPUEfctv=16 CPUTot=16 CPULoad=N/A
           NodeAddr=n3 NodeHostName=n3
           RealMemory=8000 AllocMem=0 FreeMem=N/A
           CfgTRES=cpu=16,mem=8000M,billing=16,gres/gpu=2
           AllocTRES=
           AvailableFeatures=a100 ActiveFeatures=a100
           Gres=gpu:h100:2 GresUsed=gpu:h100:0
           OS=Linux 6.18 Driver=550.1 Version=0.1.0
           Isolation=fence Resources=declared
           BootTime=2026-11-20T08:12:53 LastSeen=2026-11-20T09:05:40
           Reason=fan replaced on Monday [root@2026-11-20T09:00:00]
           Drain=admin:root since 2026-11-20T09:00:00: fan replaced on Monday
           GPU=0 Type=h100 Index=0 Minor=2 UUID=GPU-n3-0 Memory=81559M Jobs=none
           GPU=1 Type=h100 Index=1 Minor=3 UUID=GPU-n3-1 Memory=81559M Jobs=none Fault=XID 79

    "#]],
    );
    check(
        &["n1", "nod2"],
        expect![[r#"
        NodeName=n1 State=IDLE Role=compute
           Partitions=main
           CPUAlloc=0 CPUEfctv=16 CPUTot=16 CPULoad=N/A
           NodeAddr=n1 NodeHostName=n1
           RealMemory=8000 AllocMem=0 FreeMem=N/A
           CfgTRES=cpu=16,mem=8000M,billing=16,gres/gpu=2
           AllocTRES=
           AvailableFeatures=a100 ActiveFeatures=a100
           Gres=gpu:h100:2 GresUsed=gpu:h100:0
           OS=Linux 6.18 Driver=550.1 Version=0.1.0
           Isolation=fence Resources=found
           BootTime=2026-11-20T08:12:53 LastSeen=2026-11-20T09:05:40
           GPU=0 Type=h100 Index=0 Minor=2 UUID=GPU-n1-0 Memory=81559M Jobs=none
           GPU=1 Type=h100 Index=1 Minor=3 UUID=GPU-n1-1 Memory=81559M Jobs=none

        stderr: gnodes: there is no node "nod2". Did you mean "node2"?
        exit: Some(1)
    "#]],
    );
}

#[test]
fn lines_are_sorted_and_narrowed_as_sinfo_does_it() {
    check(
        &["-p", "-h", "-S", "-P,-t", "-o", "%P %t %N"],
        expect![[r#"
        main* idle n[1,4]
        main* mix node2
        main* drain n3
        main* down n10
        long drain n3
    "#]],
    );
    check(
        &["-N", "-h", "-S", "-N", "-o", "%N"],
        expect![[r#"
        node2
        n4
        n3
        n3
        n10
        n1
    "#]],
    );
    check(
        &["-r", "-h", "-N", "-o", "%N"],
        expect![[r#"
        n1
        node2
        n3
        n3
        n4
    "#]],
    );
    check(
        &["-d", "-h", "-o", "%N"],
        expect![[r#"
        n10
    "#]],
    );
    // Where a line names partitions, sinfo has one for each that has none of the nodes asked for.
    check(
        &["-p", "-h", "-t", "fail"],
        expect![[r#"
        main*        up 1-00:00:00      0    n/a 
        long       down   infinite      0    n/a 
    "#]],
    );
    check(
        &["-h", "-t", "fail", "-o", "%P %D %t %N|%c|%m|%G|%f|%E|%C|%F"],
        expect![[r#"
        main* 0 n/a |0|0|(null)|(null)|none|0/0/0/0|0/0/0/0
        long 0 n/a |0|0|(null)|(null)|none|0/0/0/0|0/0/0/0
    "#]],
    );
    for words in [
        &["-h", "-t", "fail", "-o", "%D %a"][..],
        &["-h", "-t", "fail", "-N"],
    ] {
        check(words, expect![""]);
    }
    check(
        &[
            "-a",
            "-h",
            "--state=all",
            "--partition=long",
            "-o",
            "%N %L %v",
        ],
        expect![[r#"
        n3 n/a 0.1.0
    "#]],
    );
    check(
        &["-S", "x"],
        expect![[r#"
        stderr: gnodes: --sort: "x" is no column's letter. Try P,-t,N; --help lists them
        exit: Some(2)
    "#]],
    );
}

#[test]
fn host_lists_are_expanded_and_folded_as_scontrol_does_it() {
    check(
        &["--hostnames", "n[01-03,7],m1"],
        expect![[r#"
        n01
        n02
        n03
        n7
        m1
    "#]],
    );
    check(
        &["--hostnames", "None"],
        expect![[r#"
        None
    "#]],
    );
    check(
        &["--hostlist", "n01,n02,n03,m1"],
        expect![[r#"
        n[01-03],m1
    "#]],
    );
    check(
        &["--hostnames", "n[1-1000000000]"],
        expect![[r#"
        stderr: gnodes: the host list names 1000000000 nodes and 131072 are the most. Use a smaller range
        exit: Some(1)
    "#]],
    );
    let mut in_job = std::process::Command::new(GNODES);
    let in_job = in_job
        .arg("--hostnames")
        .env("SLURM_JOB_NODELIST", "node[1-2]")
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&in_job.stdout), "node1\nnode2\n");
}

#[test]
fn mistakes_are_refused_with_a_guess() {
    check(
        &["-t", "drian"],
        expect![[r#"
        stderr: gnodes: "drian" is no state of a node. Did you mean "drain"? States are unknown, unk, down, idle, allocated, mixed, drain, drained, draining, drng, completing, comp, maint, reserved, resv, alloc, mix, no_respond, all
        exit: Some(2)
    "#]],
    );
    check(
        &["-n", "node[1-1000000000]"],
        expect![[r#"
        stderr: gnodes: --nodes: the host list names 1000000000 nodes and 131072 are the most. Use a smaller range
        exit: Some(2)
    "#]],
    );
    check(
        &["-o", "%q"],
        expect![[r#"
        stderr: gnodes: format "%q": there is no column %q. --help lists them
        exit: Some(2)
    "#]],
    );
    check(
        &["-T", "-N"],
        expect![[r#"
        stderr: gnodes: the argument '--reservation' cannot be used with '--Node'
        stderr: 
        stderr: Usage: gnodes --reservation [NODE]...
        stderr: 
        stderr: For more information, try '--help'.
        exit: Some(2)
    "#]],
    );
    check(
        &["-t", "resv"],
        expect![[r#"
        NODE STATE PARTITIONS CPUS MEMORY GPUS NOTES
    "#]],
    );
}

#[test]
fn sinfos_ways_to_ask_are_understood() {
    check(
        &["-hNe", "-t", "down,fail,drain", "-o", "%N %t %o"],
        expect![[r#"
        n3 drain n3
        n3 drain n3
        n10 down n10
    "#]],
    );
    check(
        &["-h", "-t", "no_respond", "-o", "%N"],
        expect![[r#"
        n10
    "#]],
    );
    check(
        &[
            "-h",
            "--part=long",
            "-o",
            "%R %B %d %g %h %r %S %s %X:%Y:%Z",
        ],
        expect![[r#"
        long UNLIMITED 0 all NO no all 1-infinite N/A:N/A:N/A
    "#]],
    );
}

/// Scripts add up what they print: sinfo 22.05.8 lists a node of two partitions twice only where the line says of which it is.
#[test]
fn a_node_of_two_partitions_is_counted_once_where_nothing_tells_them_apart() {
    check(
        &["-p", "-h", "-o", "%t %D %N"],
        expect![[r#"
        down 1 n10
        drain 1 n3
        mix 1 node2
        idle 2 n[1,4]
    "#]],
    );
    check(
        &["-p", "-h", "-o", "%D"],
        expect![[r#"
        5
    "#]],
    );
    check(
        &["-p", "-h", "-o", "%a %D %g"],
        expect![[r#"
            up 5 staff,ops
            down 1 all
        "#]],
    );
    check(
        &["-h", "-o", "%f %b", "-n", "n4,n10"],
        expect![[r#"
        a100,fast a100
        a100 a100
    "#]],
    );
    check(
        &["-h", "-N", "-o", "%N %P"],
        expect![[r#"
        n1 main*
        node2 main*
        n3 main*
        n3 long
        n10 main*
        n4 main*
    "#]],
    );
}

#[test]
fn json_is_one_line_and_follows_the_filters() {
    let controller = FakeController::start(answer);
    let count = |words: &[&str], key: &str| {
        let ran = controller.run(GNODES, words);
        assert_eq!(ran.stdout.lines().count(), 1);
        serde_json::from_str::<Value>(&ran.stdout).unwrap()[key]
            .as_array()
            .map(Vec::len)
    };
    assert_eq!(count(&["--json"], "nodes"), Some(5));
    assert_eq!(count(&["--json", "-t", "idle"], "nodes"), Some(2));
    assert_eq!(count(&["--json", "n3", "n4"], "nodes"), Some(2));
    assert_eq!(count(&["--json", "-p"], "partitions"), Some(2));
}

#[test]
fn partitions_are_shown_with_their_limits_and_how_they_preempt() {
    check(
        &["-p", "main", "--full"],
        expect![[r#"
        PartitionName=main
           AllowGroups=staff,ops AllowAccounts=ALL AllowUsers=ALL AllowQos=normal,urgent
           AllocNodes=ALL Default=YES QoS=normal Hidden=NO RootOnly=NO
           DefaultTime=NONE MaxTime=1-00:00:00 OverTimeLimit=NONE
           MinNodes=0 MaxNodes=UNLIMITED MaxCPUsPerNode=UNLIMITED
           Nodes=n1
           PriorityJobFactor=7 PriorityTier=1
           OverSubscribe=NO PreemptMode=REQUEUE Placement=pack GpuSharing=
           State=UP TotalCPUs=80 TotalNodes=5 GPUs=10
           TRES=cpu=80,mem=40000M,node=5,gres/gpu=10
           Headroom=gpu:2
           PerUserLimits=running_jobs:2,gpus[h100:4]

    "#]],
    );
    check(
        &[
            "-p",
            "-h",
            "-O",
            "partition,prioritytier,priorityjobfactor,preemptmode,placement,defaultqos",
        ],
        expect![[r#"
        main*               1                   7                   REQUEUE             pack                normal              
        long                1                   0                                                           (null)              
    "#]],
    );
    check(
        &["--full"],
        expect![[r#"
        stderr: gnodes: the following required arguments were not provided:
        stderr:   --partitions [<NAMES>]
        stderr: 
        stderr: Usage: gnodes --partitions [<NAMES>] --full [NODE]...
        stderr: 
        stderr: For more information, try '--help'.
        exit: Some(2)
    "#]],
    );
}

#[test]
fn a_drained_node_is_not_idle() {
    let listed = FakeController::start(answer).run(GNODES, &["-t", "idle"]);
    assert!(!listed.stdout.contains("n3"), "{listed:?}");
}
