//! `scontrol` against canned answers: what is sent, what is said, how it exits.

use expect_test::expect;
use gcli::fake_controller::{Answer, FakeController, Request};
use serde_json::json;

const GSLURM: &str = env!("CARGO_BIN_EXE_gslurm");

fn answer(request: &Request) -> Answer {
    match request.path.as_str() {
        "/v1/nodes/n9/drain" => Answer::refuse(404, "not_found", "there is no node n9"),
        "/v1/jobs/release" | "/v1/jobs/hold" | "/v1/jobs/requeue" => Answer::ok(
            r#"{"schema":1,"results":[{"job":"17","ok":true},{"job":"18","ok":false,"code":"denied","error":"job 18 belongs to bob"}]}"#,
        ),
        "/v1/tokens" => Answer::ok(
            r#"{"schema":1,"token":"SECRET.HASH","expires":"2026-11-20T10:05:27Z","controller":"head:7070"}"#,
        ),
        "/v1/reload" => Answer::ok(
            r#"{"schema":1,"notes":["listen has changed and takes effect when gpuctld is restarted"]}"#,
        ),
        "/v1/check" => Answer::ok(
            r#"{"schema":1,"ok":false,"violations":["gpu n1/0 has two owners"],"checked":{"jobs":2,"runs":1,"nodes":3}}"#,
        ),
        "/v1/diag" => Answer::ok(r#"{"schema":1,"up_secs":5,"commit":{"p50_ms":0.2}}"#),
        _ => Answer::ok(r#"{"schema":1,"notes":[]}"#),
    }
}

#[test]
fn under_the_name_scontrol_jobs_are_updated_by_their_name() {
    let sent = |rows: &'static str, words: &[&str]| {
        let controller = FakeController::start(move |request: &Request| {
            match request.path.starts_with("/v1/jobs?") {
                true => Answer::ok(format!(r#"{{"schema":1,"jobs":[{rows}]}}"#)),
                false => answer(request),
            }
        });
        let said = controller.run_as("scontrol", GSLURM, words).text();
        let requests = controller.requests().into_iter().map(|request| {
            format!(
                "{} {}\n",
                request.path.split("&user=").next().unwrap_or_default(),
                request.body
            )
        });
        requests.collect::<String>() + &said
    };
    let two = sent(
        r#"{"id":17,"shown_id":"17"},{"id":18,"shown_id":"18_[1-3]"}"#,
        &["update", "JobName=train", "TimeLimit=2:00:00"],
    );
    assert!(
        two.starts_with("/v1/jobs?columns=shown_id&name=train \n/v1/jobs/update {\"job\":\"17\",")
            && two.contains("/v1/jobs/update {\"job\":\"18_[1-3]\","),
        "{two}"
    );
    let none = sent("", &["update", "JobName=train", "TimeLimit=2:00:00"]);
    assert!(
        none.contains("scontrol: error: No jobs with name \"train\"")
            && !none.contains("/v1/jobs/update"),
        "{none}"
    );
    // The name of one job is what changes, and a name alone chooses nothing.
    assert!(
        sent("", &["update", "JobId=17", "JobName=train"])
            .starts_with("/v1/jobs/update {\"job\":\"17\",\"change\":{\"name\":\"train\"}}")
    );
    assert!(sent("", &["update", "JobName=train"]).contains("update what?"));
}

#[test]
fn under_the_name_scontrol_its_words_do_what_gadms_do() {
    let sent = |words: &[&str]| {
        let controller = FakeController::start(answer);
        let said = controller.run_as("scontrol", GSLURM, words);
        let sent: String = controller
            .requests()
            .iter()
            .map(|request| format!("{} {}\n", request.path, request.body))
            .collect();
        format!("{sent}{}", said.text())
    };
    assert_eq!(
        sent(&["update", "NodeName=n[1-2]", "State=DRAIN", "Reason=bad fan"]),
        "/v1/nodes/n1/drain {\"reason\":\"bad fan\"}\n/v1/nodes/n2/drain {\"reason\":\"bad fan\"}\n"
    );
    assert_eq!(
        sent(&["update", "nodename=n1", "state=resume"]),
        "/v1/nodes/n1/resume {\"reason\":\"\"}\n"
    );
    assert_eq!(
        sent(&[
            "update",
            "nodename=n1",
            "AvailableFeatures=ib,fast,ib",
            "ActiveFeatures="
        ]),
        "/v1/nodes/n1/features {\"reason\":\"\",\"available_features\":[\"ib\",\"fast\"],\"active_features\":[]}\n"
    );
    assert_eq!(
        sent(&["update", "nodename=n1", "ActiveFeatures=ib", "State=resume"]),
        "/v1/nodes/n1/features {\"reason\":\"\",\"active_features\":[\"ib\"]}\n/v1/nodes/n1/resume {\"reason\":\"\"}\n"
    );
    assert!(
        sent(&["-M", "all", "update", "JobId=17", "TimeLimit=2:00:00"])
            .starts_with("/v1/jobs/update {\"job\":\"17\",\"change\":{\"time_limit_secs\":7200}}")
    );
    assert!(
        sent(&["requeuehold", "17,18"]).starts_with(r#"/v1/jobs/requeue {"jobs":["17","18"],"#)
    );
    assert!(sent(&["hold", "jobid=17"]).starts_with(r#"/v1/jobs/hold {"jobs":["17"]"#));
    assert_eq!(sent(&["show", "hostnames", "n[1-2]"]), "n1\nn2\n");
    assert!(sent(&["show", "config"]).contains("MinJobAge               = 0 sec"));
    expect![[r#"
        stderr: scontrol: error: Name= chooses no jobs here; name them: 17,18 or JobId=17
        exit: Some(1)
    "#]]
    .assert_eq(&sent(&["hold", "Name=x"]));
    expect![[r#"
        stderr: Invalid input: State=POWER_UP
        stderr: scontrol: error: State=POWER_UP is none that a node is put into. Known are DRAIN, DOWN, FAIL, RESUME, UNDRAIN, IDLE. Those that take its jobs away need Reason=
        exit: Some(1)
    "#]]
    .assert_eq(&sent(&["update", "NodeName=n1", "State=POWER_UP"]));
    expect![[r#"
        stderr: You must specify a reason when DOWNING or DRAINING a node. Request denied
        stderr: scontrol: error: a reason is needed, and users see it: Reason='fan broken'
        exit: Some(1)
    "#]]
    .assert_eq(&sent(&["update", "NodeName=n1", "State=FAIL"]));
    assert_eq!(
        sent(&["update", "NodeName=n1", "State=fai", "Reason=fan"]),
        "/v1/nodes/n1/drain {\"reason\":\"fan\"}\n"
    );
    assert_eq!(
        sent(&["update", "NodeName=n1", "State=DOWN", "Reason=fan"]),
        "/v1/nodes/n1/down {\"reason\":\"fan\"}\n"
    );
    assert!(
        sent(&["uhold", "17"]).starts_with(
            r#"/v1/jobs/hold {"jobs":["17"],"reason":"","hold":false,"for_owner":true}"#
        )
    );
    expect![[r#"
        stderr: scontrol: error: State=SpecialExit marks no jobs here: requeuehold puts them back and holds them
        exit: Some(1)
    "#]].assert_eq(&sent(&["requeuehold", "State=SpecialExit", "17"]));
    assert!(
        sent(&["reconfigure", "now"]).contains("reconfigure takes no words, and \"now\" is one")
    );
    expect![[r#"
        /v1/licences 
        No licenses in the system
    "#]]
    .assert_eq(&sent(&["show", "licences"]));
}

#[test]
fn under_the_name_scontrol_reservations_are_made_changed_and_removed() {
    let answer = |request: &Request| match request.path.as_str() {
        "/v1/cluster" => Answer::ok(r#"{"schema":1,"name":"lab"}"#),
        "/v1/reservations/gone" => {
            Answer::refuse(404, "not_found", "there is no reservation \"gone\".")
        }
        "/v1/reservations/course" if request.body.is_empty() => Answer::ok(
            r#"{"schema":1,"reservations":[{"name":"course","repeat":"weekly","window_end":"2027-01-18T11:00:00Z"}]}"#,
        ),
        "/v1/reservations" => Answer::ok(r#"{"schema":1,"reservations":[{"name":"ada_1"}]}"#),
        _ => Answer::ok(r#"{"schema":1,"notes":[]}"#),
    };
    let sent = |words: &[&str]| {
        let controller = FakeController::start(answer);
        let said = controller.run_as("scontrol", GSLURM, words);
        let sent: String = controller
            .requests()
            .iter()
            .map(|request| format!("{} {}\n", request.path, request.body))
            .collect();
        format!("{sent}{}", said.text())
    };
    expect![[r#"
        /v1/cluster 
        /v1/reservations/course {"create":true,"change":{"duration_secs":3600,"gpus":null,"maintenance":true,"node_count":null,"nodes":"n1","users":["ada"]}}
        Reservation created: course
    "#]].assert_eq(&sent(&["create", "reservation", "ReservationName=course", "Users=ada", "Nodes=n1", "Duration=60", "Flags=MAINT"]));
    expect![[r#"
        /v1/cluster 
        /v1/reservations/course {"create":true,"change":{"duration_secs":3600,"gpus":null,"node_count":2,"nodes":null}}
        Reservation created: course
    "#]].assert_eq(&sent(&["create", "Reservation=course", "NodeCnt=2", "Duration=60"]));
    expect![[r#"
        /v1/cluster 
        /v1/reservations/course 
        /v1/reservations/course {"create":false,"change":{"duration_secs":7200}}
        Reservation updated.
    "#]]
    .assert_eq(&sent(&["update", "ReservationName=course", "Duration=120"]));
    expect![[r#"
        /v1/reservations/course 
        /v1/reservations/course/remove {"create":false,"change":{"unused":true}}
    "#]]
    .assert_eq(&sent(&["delete", "ReservationName=course"]));
    expect![[r#"
        /v1/reservations/gone 
        stderr: scontrol: error: there is no reservation "gone".
        exit: Some(1)
    "#]]
    .assert_eq(&sent(&["delete", "reservation", "gone"]));
    expect![[r#"
        /v1/cluster 
        /v1/reservations/course 
        /v1/reservations/course {"create":false,"change":{"skip_until":"2027-01-18T11:00:00Z"}}
        Reservation updated.
    "#]]
    .assert_eq(&sent(&["update", "ReservationName=course", "skip"]));
    expect![[r#"
        /v1/reservations 
        /v1/cluster 
        /v1/reservations/ada_2 {"create":true,"change":{"magnetic":true,"nodes":"ALL","partition":"main","users":["ada","bob"]}}
        Reservation created: ada_2
    "#]].assert_eq(&sent(&["create", "reservation", "Users=ada,bob", "PartitionName=main", "Flags=MAGNETIC"]));
    expect![[r#"
        stderr: scontrol: error: whom is it for? Users=ada or Accounts=vision; ReservationName=course names it
        exit: Some(1)
    "#]].assert_eq(&sent(&["create", "reservation", "Nodes=n1"]));
    let said = |words: &[&str]| controller_said(&sent(words)).to_owned();
    assert!(said(&["create", "node", "NodeName=x"]).contains("nodes join by themselves"));
    assert_eq!(
        said(&[
            "create",
            "Reservation=x",
            "Users=ada",
            "Nodes=n1",
            "Flags=REPLACE"
        ]),
        "stderr: Error creating the reservation: Invalid node name specified"
    );
    assert_eq!(
        said(&[
            "create",
            "Reservation=x",
            "Users=ada",
            "NodeCnt=1",
            "Flags=HOURLY,WEEKDAY"
        ]),
        "stderr: Error creating the reservation: Requested operation not supported on this system"
    );
    assert_eq!(
        said(&["update", "ReservationName=course", "Flags=HOURLY"]),
        "stderr: slurm_update error: Requested operation not supported on this system"
    );
    // Of a job it is another word.
    assert!(
        sent(&["update", "JobId=17", "ReservationName=course"]).starts_with(
            "/v1/jobs/update {\"job\":\"17\",\"change\":{\"reservation\":\"course\"}}"
        )
    );
}

#[test]
fn under_the_name_scontrol_partitions_are_made_changed_and_removed() {
    let answer = |request: &Request| match request.path.as_str() {
        "/v1/partitions/main/remove" => {
            Answer::refuse(409, "conflict", "partition main is written in f:1")
        }
        _ => Answer::ok(r#"{"schema":1,"notes":[]}"#),
    };
    let sent = |words: &str| {
        let controller = FakeController::start(answer);
        let words: Vec<&str> = words.split(' ').collect();
        let said = controller.run_as("scontrol", GSLURM, &words).text();
        let requests = controller.requests();
        let all = requests
            .iter()
            .map(|one| format!("{} {}\n", one.path, one.body));
        all.collect::<String>() + &said
    };
    assert_eq!(
        sent("create PartitionName=debug Nodes=n[1-2] MaxTime=30 Default=NO PriorityTier=2"),
        "/v1/partitions/debug {\"create\":true,\"change\":{\"max_time_secs\":1800,\"nodes\":\"n[1-2]\",\"priority_tier\":2}}\n"
    );
    assert_eq!(
        sent("create partition partition=debug"),
        "/v1/partitions/debug {\"create\":true,\"change\":{\"nodes\":\"\"}}\n"
    );
    assert_eq!(
        sent("update PartitionName=debug State=DOWN MaxTime=UNLIMITED"),
        "/v1/partitions/debug {\"create\":false,\"change\":{\"max_time_secs\":null,\"state\":\"DOWN\"}}\n"
    );
    assert_eq!(
        sent("delete PartitionName=debug"),
        "/v1/partitions/debug \n/v1/partitions/debug/remove {\"create\":false,\"change\":{}}\n"
    );
    assert!(sent("delete partition main").contains("error: partition main is written in f:1"));
    let refused = sent("create PartitionName=x OverSubscribe=FORCE");
    assert!(
        refused.starts_with(
            "stderr: Error creating the partition: Requested operation not supported on this system\n"
        ) && refused.contains("gpu_sharing"),
        "{refused}"
    );
    assert!(sent("update PartitionName=x").contains("No changes specified"));
}

#[test]
fn under_the_name_scontrol_commands_are_read_by_the_line() {
    let controller = FakeController::start(|_: &Request| {
        Answer::ok(r#"{"schema":1,"name":"lab","host":"head1"}"#)
    });
    let program = controller.dir().join("scontrol");
    std::os::unix::fs::symlink(GSLURM, &program).expect("a link");
    let program = program.to_str().expect("a path");
    let said = controller.run_with(program, &[], &[], "ping\n!!\nnosuch\n\nquit\nping\n");
    assert_eq!(
        said.stdout
            .matches("Slurmctld(primary) at head1 is UP")
            .count(),
        2,
        "{said:?}"
    );
    assert!(
        said.stderr
            .contains("\"nosuch\" of scontrol is not known here"),
        "{said:?}"
    );
    assert!(said.stdout.ends_with("scontrol: "), "{said:?}");
}

/// The first line of stderr.
fn controller_said(all: &str) -> &str {
    let mut lines = all.lines();
    lines
        .find(|line| line.starts_with("stderr: "))
        .unwrap_or_default()
}

#[test]
fn under_the_name_scontrol_steps_all_nodes_and_the_controller_are_named() {
    let answer = |request: &Request| match request.path.as_str() {
        "/v1/cluster" => Answer::ok(r#"{"schema":1,"name":"lab","host":"head1"}"#),
        "/v1/nodes" => Answer::ok(r#"{"schema":1,"nodes":[{"name":"n1"},{"name":"n2"}]}"#),
        "/v1/steps" => Answer::ok(
            r#"{"schema":1,"steps":[
            {"job":17,"shown_id":"17.batch","name":"batch","user":"root","partition":"main","state":"RUNNING","ntasks":1,"nodes":1,"nodelist":"n1","start_time":"2026-11-20T09:05:27Z"},
            {"job":17,"shown_id":"17.0","name":"train","user":"root","partition":"main","state":"RUNNING","ntasks":2,"nodes":2,"nodelist":"n[1-2]","start_time":"2026-11-20T09:06:00Z","own":{"cpus":4,"gpus":2,"mem_bytes":1073741824}}]}"#,
        ),
        _ => Answer::ok(r#"{"schema":1,"notes":[]}"#),
    };
    let sent = |words: &[&str]| {
        let controller = FakeController::start(answer);
        let said = controller.run_as("scontrol", GSLURM, words);
        let sent: Vec<String> = controller
            .requests()
            .iter()
            .map(|r| format!("{} {}\n", r.path, r.body))
            .collect();
        (said.text(), sent.concat())
    };
    expect![[r#"
        StepId=17.0 UserId=0 StartTime=2026-11-20T09:06:00 TimeLimit=UNLIMITED
           State=RUNNING Partition=main NodeList=n[1-2]
           Nodes=2 CPUs=4 Tasks=2 Name=train Network=(null)
           TRES=cpu=4,mem=1024M,node=2,gres/gpu=2
           ResvPorts=(null)
           CPUFreqReq=Default
           SrunHost:Pid=(null):0
    "#]]
    .assert_eq(&sent(&["show", "step", "17.0"]).0);
    expect![[r#"
        StepId=17.batch UserId=0 StartTime=2026-11-20T09:05:27 TimeLimit=UNLIMITED State=RUNNING Partition=main NodeList=n1 Nodes=1 CPUs=0 Tasks=1 Name=batch Network=(null) TRES=(null) ResvPorts=(null) CPUFreqReq=Default SrunHost:Pid=(null):0
        StepId=17.0 UserId=0 StartTime=2026-11-20T09:06:00 TimeLimit=UNLIMITED State=RUNNING Partition=main NodeList=n[1-2] Nodes=2 CPUs=4 Tasks=2 Name=train Network=(null) TRES=cpu=4,mem=1024M,node=2,gres/gpu=2 ResvPorts=(null) CPUFreqReq=Default SrunHost:Pid=(null):0
    "#]].assert_eq(&sent(&["-o", "show", "step", "17"]).0);
    expect![[r#"
        stderr: scontrol: error: Job step 17.4 not found: it is not under way. sacct -j JOB shows steps that are over
        exit: Some(1)
    "#]].assert_eq(&sent(&["show", "step", "17.4"]).0);
    expect![[r#"
        Slurmctld(primary) at head1 is UP
    "#]]
    .assert_eq(&sent(&["ping"]).0);
    expect![[r#"
        /v1/nodes 
        /v1/nodes/n1/resume {"reason":""}
        /v1/nodes/n2/resume {"reason":""}
    "#]]
    .assert_eq(&sent(&["update", "NodeName=ALL", "State=RESUME"]).1);
}

#[test]
fn the_topology_is_shown_as_switches_and_blocks_and_narrowed_to_a_unit_or_a_node() {
    let node = |name: &str, switches: &str, domain: &str| json!({"name": name, "switches": switches, "nvlink_domain": domain});
    let nodes = json!({"schema": 1, "nodes": [
        node("n10", "spine.leaf2", "rack2"), node("n1", "spine.leaf1", "rack1"), node("n2", "spine.leaf1", "rack1"), node("login", "", ""),
    ]});
    let controller = FakeController::start(move |_: &Request| Answer::ok(nodes.to_string()));
    let shown = |words: &[&str]| {
        let words: Vec<&str> = ["show"].iter().chain(words).copied().collect();
        controller.run_as("scontrol", GSLURM, &words).text()
    };
    expect![[r#"
        SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n[1-2]
        SwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=n10
        SwitchName=spine Level=1 LinkSpeed=1 Nodes=n[1-2,10] Switches=leaf[1-2]
        BlockName=rack1 BlockIndex=0 Nodes=n[1-2] BlockSize=2
        BlockName=rack2 BlockIndex=1 Nodes=n10 BlockSize=1
    "#]]
    .assert_eq(&shown(&["topology"]));
    expect![[r#"
        SwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=n10
        SwitchName=spine Level=1 LinkSpeed=1 Nodes=n[1-2,10] Switches=leaf[1-2]
        BlockName=rack2 BlockIndex=1 Nodes=n10 BlockSize=1
    "#]]
    .assert_eq(&shown(&["topo", "node=n10"]));
    expect![[r#"
        SwitchName=spine Level=1 LinkSpeed=1 Nodes=n[1-2,10] Switches=leaf[1-2]
    "#]]
    .assert_eq(&shown(&["topology", "default", "unit=spine"]));
    expect![[r#"
        stderr: scontrol: error: no switch and no NVLink domain "leaf9" is above these nodes. scontrol show topology lists all
        exit: Some(1)
    "#]].assert_eq(&shown(&["topology", "unit=leaf9"]));
    expect![[r#"
        stderr: scontrol: error: there is no node "n11"
        exit: Some(1)
    "#]]
    .assert_eq(&shown(&["topology", "node=n11"]));
    expect![[r#"
        stderr: scontrol: error: topology "other": there is one, "default". unit=NAME chooses a switch or a block of it, node=NAME those of a node
        exit: Some(1)
    "#]].assert_eq(&shown(&["topology", "other"]));
    let flat = FakeController::start(|_: &Request| {
        Answer::ok(json!({"schema": 1, "nodes": [{"name": "n1"}]}).to_string())
    });
    assert_eq!(
        flat.run_as("scontrol", GSLURM, &["show", "topology"])
            .text(),
        "No topology information available\n"
    );
}
