//! `gadm` as a process, against canned answers: what is sent, what is said, how it exits.

use expect_test::{Expect, expect};
use gcli::fake_controller::{Answer, FakeController, Request};

const GADM: &str = env!("CARGO_BIN_EXE_gadm");

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

fn check(words: &[&str], want: Expect) {
    want.assert_eq(&FakeController::start(answer).run(GADM, words).text());
}

fn sent(words: &[&str]) -> String {
    let controller = FakeController::start(answer);
    controller.run(GADM, words);
    controller
        .requests()
        .iter()
        .map(|request| format!("{} {}\n", request.path, request.body))
        .collect()
}

#[test]
fn nodes_are_named_by_host_lists_and_a_drain_needs_its_reason() {
    expect![[r#"
        /v1/nodes/n1/drain {"reason":"fan"}
        /v1/nodes/n2/drain {"reason":"fan"}
    "#]]
    .assert_eq(&sent(&["node", "drain", "n[1-2]", "--reason", "fan"]));
    expect![[r#"
        /v1/nodes/n1/resume {"reason":""}
    "#]]
    .assert_eq(&sent(&["node", "resume", "n1"]));
    check(
        &["node", "drain", "n1"],
        expect![[r#"
        stderr: gadm: the following required arguments were not provided:
        stderr:   --reason <TEXT>
        stderr: 
        stderr: Usage: gadm node drain --reason <TEXT> <NODE>...
        stderr: 
        stderr: For more information, try '--help'.
        exit: Some(2)
    "#]],
    );
    check(
        &["node", "drain", "n[8-9]", "--reason", "fan"],
        expect![[r#"
        stderr: gadm: there is no node n9
        exit: Some(1)
    "#]],
    );
    check(
        &["node", "down", "n[1-1000000000]"],
        expect![[r#"
        stderr: gadm: the host list names 1000000000 nodes and 131072 are the most. Use a smaller range
        exit: Some(2)
    "#]],
    );
}

#[test]
fn jobs_are_changed_with_scontrols_keys() {
    expect![[r#"
        /v1/jobs/update {"job":"17","change":{"nice":5,"time_limit_secs":7200}}
    "#]]
    .assert_eq(&sent(&[
        "job",
        "update",
        "17",
        "TimeLimit=2:00:00",
        "Nice=5",
    ]));
    expect![[r#"
        /v1/jobs/update {"job":"98_5","change":{"max_running":4,"time_limit_secs":null}}
    "#]]
    .assert_eq(&sent(&[
        "job",
        "update",
        "JobId=98_5",
        "--time",
        "UNLIMITED",
        "ArrayTaskThrottle=4",
    ]));
    expect![[r#"
        /v1/jobs/hold {"jobs":["17","98_[1-3]"],"reason":"wait for data","hold":false,"for_owner":false}
    "#]].assert_eq(&sent(&["job", "hold", "17", "98_[1-3]", "--reason", "wait for data"]));
    expect![[r#"
        /v1/jobs/requeue {"jobs":["17"],"reason":"","hold":true,"for_owner":false}
    "#]]
    .assert_eq(&sent(&["job", "requeue", "17", "--hold"]));
    check(
        &["job", "update", "17"],
        expect![[r#"
        stderr: gadm: what is to be changed? gadm job update 17 TimeLimit=4:00:00
        exit: Some(2)
    "#]],
    );
    check(
        &["job", "update", "17", "TimeLimit=junk"],
        expect![[r#"
        stderr: gadm: TimeLimit: time limit "junk" is in none of the forms minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes, days-hours:minutes:seconds or UNLIMITED. Try 90 (minutes) or 1:30:00
        exit: Some(2)
    "#]],
    );
    check(
        &["job", "release", "17", "18"],
        expect![[r#"
        stderr: gadm: job 18 belongs to bob
        exit: Some(1)
    "#]],
    );
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
        let said = controller.run_as("scontrol", GADM, words).text();
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
        let said = controller.run_as("scontrol", GADM, words);
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
        stderr: scontrol: error: State=FAIL is none that a node is put into. Known are DRAIN (with Reason=), RESUME and DOWN
        exit: Some(1)
    "#]].assert_eq(&sent(&["update", "NodeName=n1", "State=FAIL"]));
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
        let said = controller.run_as("scontrol", GADM, words);
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
    expect![[r#"
        stderr: scontrol: error: reservations are made and removed so: ReservationName=course; partitions are files (partitions.d), nodes join by themselves
        exit: Some(1)
    "#]].assert_eq(&sent(&["create", "partition", "PartitionName=x"]));
    expect![[r#"
        stderr: scontrol: error: reservations are made and removed so: ReservationName=course; partitions are files (partitions.d), nodes join by themselves
        exit: Some(1)
    "#]].assert_eq(&sent(&["delete", "partition=x"]));
    // Of a job it is another word.
    assert!(
        sent(&["update", "JobId=17", "ReservationName=course"]).starts_with(
            "/v1/jobs/update {\"job\":\"17\",\"change\":{\"reservation\":\"course\"}}"
        )
    );
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
            .run_as(name, GADM, words)
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
    assert!(said("sacctmgr", &["-nP", "list", "cluster", "cluster=lab"]).starts_with("|lab\n"));
    assert!(said("sacctmgr", &["-u", "ada", "list", "assoc"]).contains("unexpected argument '-u'"));
    assert!(said("sshare", &["ada"]).contains("unexpected argument 'ada'"));
}

#[test]
fn a_token_is_all_of_stdout() {
    check(
        &["token", "node", "--role", "login", "--ttl", "60"],
        expect![[r#"
        SECRET.HASH
        stderr: gadm: good once, until 2026-11-20T10:05:27: gpud join --controller head:7070 --token TOKEN
    "#]],
    );
    expect![[r#"
        /v1/tokens {"role":"compute","name":"n7","ttl_secs":86400}
    "#]]
    .assert_eq(&sent(&["token", "node", "--name", "n7", "--ttl", "1-0"]));
    check(
        &["token", "node", "--role", "gpu"],
        expect![[r#"
        stderr: gadm: invalid value 'gpu' for '--role <ROLE>': roles are compute and login
        stderr: 
        stderr: For more information, try '--help'.
        exit: Some(2)
    "#]],
    );
}

#[test]
fn the_controllers_own_affairs() {
    check(
        &["reload"],
        expect![[r#"
        stderr: gadm: listen has changed and takes effect when gpuctld is restarted
    "#]],
    );
    check(
        &["check"],
        expect![[r#"
        gpu n1/0 has two owners
        1 contradiction in 2 jobs, 1 runs, 3 nodes
        exit: Some(1)
    "#]],
    );
    check(
        &["diag"],
        expect![[r#"
        commit:
          p50_ms: 0.2
        up_secs: 5
    "#]],
    );
    expect![[r#"
        /v1/backup {"path":"/var/backups/x.db"}
    "#]]
    .assert_eq(&sent(&["backup", "/var/backups/x.db"]));
}

#[test]
fn pages_and_completions_cover_all_commands() {
    let controller = FakeController::start(answer);
    let dir = controller.dir().join("man");
    let ran = controller.run(GADM, &["man", "--dir", dir.to_str().unwrap()]);
    expect![[r#"
        gsub.1
        grun.1
        gq.1
        gdel.1
        gnodes.1
        gacct.1
        gadm.8
    "#]]
    .assert_eq(&ran.text());
    let page = |name: &str| std::fs::read_to_string(dir.join(name)).unwrap();
    assert!(
        page("gsub.1").contains("\\-\\-dependency"),
        "the table of options is on the page"
    );
    assert!(page("gadm.8").contains("GADM NODE DRAIN") && page("gadm.8").contains("GADM SANDBOX"));
    for shell in ["bash", "zsh", "fish"] {
        let script = controller.run(GADM, &["completions", shell]).stdout;
        for command in ["gsub", "gq", "gdel", "gnodes", "gacct", "gadm"] {
            assert!(script.contains(command), "{command} in {shell}");
        }
    }
}

#[test]
fn without_a_subcommand_the_help_is_shown_as_an_error() {
    let ran = FakeController::start(answer).run(GADM, &[]);
    assert!(
        ran.exit == Some(2) && ran.stderr.contains("Usage: gadm") && ran.stdout.is_empty(),
        "{}",
        ran.text()
    );
}
