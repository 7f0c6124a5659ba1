//! `sacctmgr dump` and `load`, and what is said of clusters, against canned answers.

use expect_test::expect;
use gcli::fake_controller::{Answer, FakeController, Request};

const GSLURM: &str = env!("CARGO_BIN_EXE_gslurm");

const ACCOUNTS: &str = r#"{"schema":1,"accounts":[{"name":"lab","description":"the lab","shares":4,"guaranteed":{"gpu":8},
    "users":{"ada":{"shares":2,"default":true,"running_jobs":3}}},{"name":"bio","parent":"lab","users":{}}]}"#;

fn pool() -> FakeController {
    FakeController::start(|request: &Request| {
        let path = request.path.split('?').next().unwrap_or_default();
        match (request.method.as_str(), path) {
            ("POST", _) => Answer::ok(r#"{"schema":1,"notes":[]}"#),
            (_, "/v1/cluster") => Answer::ok(r#"{"schema":1,"name":"pool","host":"ctl"}"#),
            (_, "/v1/accounts") => Answer::ok(ACCOUNTS),
            (_, "/v1/qos") => Answer::ok(r#"{"schema":1,"qos":[]}"#),
            _ => Answer::ok("{}"),
        }
    })
}

fn sent(controller: &FakeController) -> String {
    let sent = controller.requests().into_iter();
    let posts = sent.filter(|request| request.method == "POST");
    posts
        .map(|request| format!("{} {}\n", request.path, request.body))
        .collect()
}

#[test]
fn a_file_of_slurms_is_loaded_and_what_has_no_meaning_here_is_told() {
    let controller = pool();
    let path = controller.dir().join("tux.cfg");
    let file = "# from another cluster\n\
        QOS - 'high':Description='High':Priority=10:Flags=DenyOnLimit\n\
        Cluster - 'tux'\n\
        Parent - 'root'\n\
        User - 'root':DefaultAccount='root':AdminLevel='Administrator':Fairshare=1\n\
        Account - 'lab':Description='our lab':Organization='uni':Fairshare=7\n\
        Account - 'cs':Description='Computer: Science':Fairshare=3:MaxWall=60\n\
        Parent - 'cs'\n\
        User - 'bob':DefaultAccount='cs':Fairshare=2:MaxJobs=5:AdminLevel='Operator':Coordinator='cs'\n";
    std::fs::write(&path, file).unwrap();
    let path = path.to_str().unwrap();
    let ran = controller.run_as("sacctmgr", GSLURM, &["-i", "load", path]);
    expect![[r#"
        stderr: sacctmgr: line 2: Flags=DenyOnLimit is left out: Flags=DenyOnLimit: no QOS has flags; gadm qos set --help and gpuctld.toml(5) tell its keys
        stderr: sacctmgr: line 7: MaxWall=60 is left out: MaxWall=60: a job's time is bounded by its QOS (modify qos NAME set MaxWall=) and its partition (max_time)
        stderr: sacctmgr: line 9: AdminLevel=Operator is left out: operators are listed in gpuctld.toml
    "#]]
    .assert_eq(&ran.text());
    expect![[r#"
        /v1/qos/high {"create":true,"change":{"description":"High","priority":10}}
        /v1/accounts/lab {"create":false,"change":{"description":"our lab","parent":null,"shares":7}}
        /v1/accounts/cs {"create":true,"change":{"description":"Computer: Science","shares":3}}
        /v1/accounts/cs/users/bob {"create":true,"change":{"default":true,"running_jobs":5,"shares":2}}
        /v1/accounts/cs {"create":false,"change":{"+coordinators":["bob"]}}
    "#]]
    .assert_eq(&sent(&controller));
    std::fs::write(path, "Parent - root\nLab - x\n").unwrap();
    let ran = controller.run_as("sacctmgr", GSLURM, &["-i", "load", path]);
    assert!(
        ran.exit == Some(1)
            && ran
                .stderr
                .contains("line 2: \"lab\" is none of QOS, Cluster"),
        "{ran:?}"
    );
    let ran = controller.run_as("sacctmgr", GSLURM, &["-i", "load", path, "clean"]);
    assert!(
        ran.stderr.contains("clean would remove accounts"),
        "{ran:?}"
    );
}

#[test]
fn accounts_are_dumped_with_a_word_of_what_the_file_cannot_hold() {
    let controller = pool();
    let path = controller.dir().join("pool.cfg");
    let file = format!("file={}", path.display());
    let ran = controller.run_as("sacctmgr", GSLURM, &["dump", "pool", &file]);
    assert!(
        ran.exit == Some(0)
            && ran
                .stderr
                .starts_with("sacctmgr: guarantees and budgets, as of lab,"),
        "{ran:?}"
    );
    expect![[r#"
        Cluster - 'pool'
        Parent - 'root'
        User - 'root':DefaultAccount='root':AdminLevel='Administrator':Fairshare=1
        Account - 'lab':Description='the lab':Fairshare=4
        Parent - 'lab'
        Account - 'bio':Fairshare=1
        User - 'ada':Fairshare=2:DefaultAccount='lab':MaxJobs=3
    "#]]
    .assert_eq(&std::fs::read_to_string(&path).unwrap());
    let ran = controller.run_as("sacctmgr", GSLURM, &["dump", "cluster=tux", &file]);
    assert_ne!(ran.exit, Some(0), "another cluster");
}

#[test]
fn no_cluster_is_added_and_there_are_no_federations() {
    let controller = pool();
    let run = |words: &[&str]| controller.run_as("sacctmgr", GSLURM, words);
    let ran = run(&["-i", "add", "cluster", "pool"]);
    assert_eq!(
        (ran.stdout.as_str(), ran.exit),
        (" This cluster pool already exists.  Not adding.\n", Some(1))
    );
    let ran = run(&["-i", "add", "cluster", "tux"]);
    assert!(
        ran.exit == Some(1) && ran.stderr.contains("keeps the accounting of pool alone"),
        "{ran:?}"
    );
    let ran = run(&["-i", "add", "federation", "all"]);
    assert!(ran.stderr.contains("there are no federations"), "{ran:?}");
    let ran = run(&["-nP", "show", "cluster", "format=Cluster,ControlHost"]);
    assert_eq!(ran.stdout, "pool|ctl\n");
    assert_eq!(sent(&controller), "");
}

#[test]
fn the_qos_that_is_always_there_gets_a_record_when_it_is_changed() {
    let controller = pool();
    let ran = controller.run_as(
        "sacctmgr",
        GSLURM,
        &["-i", "modify", "qos", "normal", "set", "priority=5"],
    );
    assert_eq!(ran.stdout, " Modified qos...\n  normal\n");
    assert_eq!(
        sent(&controller),
        "/v1/qos/normal {\"create\":true,\"change\":{\"priority\":5}}\n"
    );
}
