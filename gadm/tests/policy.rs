//! What `gadm account`, `user`, `quota`, `qos`, `reservation`, `policy`, `licence` and `topology` send, and what they print.

use expect_test::{Expect, expect};
use gcli::fake_controller::{Answer, FakeController, Request};

const GADM: &str = env!("CARGO_BIN_EXE_gadm");

const ACCOUNTS: &str = r#"{"schema":1,"accounts":[
    {"name":"nlp","parent":"research","shares":5,"guaranteed":{"gpu":8},"guaranteed_held":{"gpu":2,"h100":2},"users":{"bob":{"shares":1,"default":false}}},
    {"name":"research","shares":1,"guaranteed":{"gpu":32,"h100":16},"limit":{"gpu":64},"description":"all of us"},
    {"name":"vision","parent":"research","shares":10,"guaranteed":{"h100":12},"guaranteed_held":{"gpu":12,"h100":12},"borrowed_held":{"gpu":4,"h100":4},
     "budgets":[{"kind":"guaranteed","gpu_hours":10000,"period":"month"}],"lend_limit":{"gpu":8},
     "coordinators":["ada"],"users":{"ada":{"shares":3,"default":true},"eve":{"shares":1,"default":false,"running_jobs":2,"gpus":{"h100":4}}}}]}"#;

fn answer(request: &Request) -> Answer {
    match (request.method.as_str(), request.path.as_str()) {
        ("GET", "/v1/accounts" | "/v1/accounts/vision") => {
            let mut value: serde_json::Value = serde_json::from_str(ACCOUNTS).unwrap();
            if request.path.ends_with("vision") {
                value["accounts"].as_array_mut().unwrap().drain(..2);
            }
            Answer::ok(value.to_string())
        }
        ("GET", path) if path.starts_with("/v1/accounts/") => Answer::refuse(
            404,
            "not_found",
            "there is no account \"visio\". Did you mean \"vision\"?",
        ),
        ("GET", "/v1/qos") => Answer::ok(
            r#"{"schema":1,"qos":[{"name":"urgent","priority":100,"usage_factor":2.0,"preempt":["scavenger"],"preempt_mode":null,"per_user":{"running_jobs":2},"min_run_secs":600,"per_job":{"max_time_secs":14400},"headroom":{"gpu":4},"description":"before deadlines"},
                {"name":"scavenger","priority":0,"usage_factor":0.0,"preempt":[],"preempt_mode":null,"outside_quota":true,"description":"idle GPUs"}]}"#,
        ),
        ("GET", "/v1/reservations" | "/v1/reservations/course") => Answer::ok(
            r#"{"schema":1,"reservations":[{"name":"course","start":"2027-01-11T09:00:00Z","duration_secs":7200,"repeat":"weekly","nodes":null,"gpus":{"h100":8},"accounts":["physics"],"users":["grace"],"state":"INACTIVE","window_start":"2027-01-18T09:00:00Z","window_end":"2027-01-18T11:00:00Z"}]}"#,
        ),
        ("GET", "/v1/licences") => Answer::ok(
            r#"{"schema":1,"licences":[{"name":"matlab","total":20,"used":3,"free":17}]}"#,
        ),
        ("GET", "/v1/policy") => Answer::ok(
            r#"{"schema":1,"name":"","toml":"[account.a]\nshares = 2\n","dry_run":false}"#,
        ),
        ("POST", "/v1/policy") => {
            Answer::ok(r#"{"schema":1,"notes":["account a is removed","qos b is added"]}"#)
        }
        ("POST", "/v1/reload/dry-run") => Answer::ok(
            r#"{"schema":1,"notes":["partition a is changed","job 17 of alice: waits (PartitionDown); now it starts at once"]}"#,
        ),
        _ => Answer::ok(r#"{"schema":1,"notes":[]}"#),
    }
}

fn check(words: &[&str], want: Expect) {
    want.assert_eq(&FakeController::start(answer).run(GADM, words).text());
}

/// What is posted.
fn sent(words: &[&str]) -> String {
    let controller = FakeController::start(answer);
    let ran = controller.run(GADM, words);
    let posts = controller
        .requests()
        .into_iter()
        .filter(|request| request.method == "POST");
    posts
        .map(|request| format!("{} {}\n", request.path, request.body))
        .collect::<String>()
        + &ran.text()
}

#[test]
fn accounts_are_set_in_sacctmgrs_words() {
    expect![[r#"
        /v1/accounts/vision {"create":true,"change":{"guaranteed":{"gpu":32.0,"h100":16.0},"limit":{"gpu":64.0},"parent":"research","shares":10}}
    "#]].assert_eq(&sent(&["account", "add", "vision", "parent=research", "shares=10", "guaranteed=h100:16,gpu:32", "limit=64"]));
    expect![[r#"
        /v1/accounts/vision {"create":false,"change":{"+allow_qos":["urgent"],"-coordinators":["ada"],"closed":true,"group":{"running_jobs":5},"per_user":{"running_jobs":2},"shares":20}}
    "#]].assert_eq(&sent(&["account", "set", "vision", "Fairshare=20", "GrpJobs=5", "MaxJobs=2", "qos+=urgent", "coordinators-=ada", "closed=yes"]));
    check(
        &["account", "set", "vision"],
        expect![[r#"
        stderr: gadm: what is to be changed? gadm account set vision shares=20
        exit: Some(2)
    "#]],
    );
    check(
        &["account", "set", "vision", "share=3"],
        expect![[r#"
        stderr: gadm: share= cannot be set for accounts. Did you mean "shares"? Keys: parent, description, shares, guaranteed, limit, lend_limit, group.running_jobs, group.submitted_jobs, group.gpus, group.cpus, group.nodes, group.running_gpu_hours, group.array_tasks, group.submits_per_minute, per_user.running_jobs, per_user.submitted_jobs, per_user.gpus, per_user.cpus, per_user.nodes, per_user.running_gpu_hours, per_user.array_tasks, per_user.submits_per_minute, allow_qos, default_qos, coordinators, users_only, closed
        exit: Some(2)
    "#]],
    );
    check(
        &["account", "list"],
        expect![[r#"
        ACCOUNT  SHARES GUARANTEED     LIMIT USERS COORDINATORS DESCRIPTION
        research      1 gpu:32,h100:16 64      all              all of us
          nlp         5 8              -         1
          vision     10 h100:12        -         2 ada
    "#]],
    );
    check(
        &["account", "show", "vision"],
        expect![[r#"
        borrowed_held=gpu:4,h100:4
        budgets=guaranteed:10000/month
        coordinators=ada
        guaranteed=h100:12
        guaranteed_held=gpu:12,h100:12
        lend_limit=gpu:8
        name=vision
        parent=research
        shares=10
        users=ada(shares=3,default) eve(running_jobs=2,gpus=h100:4)
    "#]],
    );
    check(
        &["account", "show", "visio"],
        expect![[r#"
        stderr: gadm: there is no account "visio". Did you mean "vision"?
        exit: Some(1)
    "#]],
    );
}

#[test]
fn what_is_lost_is_asked_for() {
    check(
        &["account", "del", "vision"],
        expect![[r#"
        stderr: gadm: remove account vision with all that is set for it? Say --yes; there is no terminal to ask on
        exit: Some(2)
    "#]],
    );
    check(
        &["account", "del", "visio", "--yes"],
        expect![[r#"
        stderr: gadm: there is no account "visio". Did you mean "vision"?
        exit: Some(1)
    "#]],
    );
    expect![[r#"
        /v1/accounts/vision/remove {"create":false,"change":{}}
    "#]]
    .assert_eq(&sent(&["account", "del", "vision", "--yes"]));
}

#[test]
fn users_belong_to_accounts() {
    expect![[r#"
        /v1/accounts/vision/users/ada {"create":true,"change":{"default":true,"gpus":{"h100":4.0},"running_jobs":3}}
    "#]].assert_eq(&sent(&["user", "add", "ada", "account=vision", "default=yes", "maxjobs=3", "gpus=h100:4"]));
    expect![[r#"
        /v1/accounts/vision/users/ada/remove {"create":false,"change":{}}
    "#]]
    .assert_eq(&sent(&["user", "del", "ada", "account=vision", "--yes"]));
    check(
        &["user", "add", "ada", "shares=2"],
        expect![[r#"
        stderr: gadm: which account? gadm user add ada account=NAME
        exit: Some(2)
    "#]],
    );
    check(
        &["user", "list"],
        expect![[r#"
        USER ACCOUNT SHARES DEFAULT COORD LIMITS
        ada  vision       3 yes     yes
        bob  nlp          1
        eve  vision       1               running_jobs=2,gpus=h100:4
    "#]],
    );
    check(
        &["user", "list", "-u", "eve", "--json"],
        expect![[r#"
        {"schema":1,"users":[{"account":"vision","coordinator":false,"default":false,"gpus":{"h100":4.0},"running_jobs":2,"shares":1,"user":"eve"}]}
    "#]],
    );
}

#[test]
fn quotas_stand_beside_what_is_held() {
    expect![[r#"
        /v1/accounts/vision {"create":false,"change":{"budgets":[{"gpu_hours":10000,"kind":"guaranteed","period":"month"},{"gpu_hours":500,"gpu_type":"h100","kind":"cap","period":"week"}],"guaranteed":{"gpu":24.0},"lend_limit":null}}
    "#]].assert_eq(&sent(&["quota", "set", "vision", "guaranteed=24", "lend=none", "budget=cap:h100:500/week"]));
    check(
        &["quota", "list"],
        expect![[r#"
        ACCOUNT  GUARANTEED     HELD BORROWED LIMIT LEND BUDGETS
        research gpu:32,h100:16    0        0 64    -
          nlp    8                 2        0 -     -
          vision h100:12          12        4 -     8    guaranteed:10000/month
    "#]],
    );
    check(
        &["quota", "show", "vision"],
        expect![[r#"
        account vision, below research
        guaranteed: 12 h100, 12 held, 0 free to claim
        borrowed: 4 GPUs, which go back when their owners want them
        lends: at most 8 GPUs at once
        budget: runs are borrowed beyond 10000 GPU-hours a month
    "#]],
    );
    check(
        &["quota", "set", "vision", "budget=5/month"],
        expect![[r#"
        stderr: gadm: budget=5/month: there is no kind. Write guaranteed:10000/month, or cap:h100:500/week
        exit: Some(2)
    "#]],
    );
}

#[test]
fn qos_and_reservations_are_set_in_slurms_words() {
    expect![[r#"
        /v1/qos/urgent {"create":true,"change":{"min_run_secs":600,"per_job":{"max_time_secs":14400},"per_user":{"running_jobs":2},"preempt":["scavenger","low"],"priority":100,"usage_factor":2.5}}
    "#]].assert_eq(&sent(&["qos", "add", "urgent", "Priority=100", "UsageFactor=2.5", "Preempt=scavenger,low", "MaxWall=4:00:00", "MaxJobsPU=2", "min_run=10:00"]));
    check(
        &["qos", "list"],
        expect![[r#"
        NAME      PRIORITY FACTOR PREEMPTS  MODE MAXWALL MIN_RUN HEADROOM QUOTA   PER_USER       GROUP DESCRIPTION
        urgent         100      2 scavenger -    4:00:00 10:00   4        -       running_jobs=2       before deadlines
        scavenger        0      0           -    -       -       -        outside                      idle GPUs
    "#]],
    );
    expect![[r#"
        /v1/reservations/cool {"create":true,"change":{"duration_secs":28800,"gpus":null,"maintenance":true,"node_count":null,"nodes":"ALL","repeat":"weekly","start":"2027-03-01T06:00:00Z"}}
    "#]].assert_eq(&sent(&["reservation", "add", "cool", "StartTime=2027-03-01T06:00:00", "EndTime=2027-03-01T14:00:00", "Nodes=ALL", "Flags=MAINT,WEEKLY"]));
    expect![[r#"
        /v1/reservations/course {"create":false,"change":{"duration_secs":10800,"gpus":null,"node_count":null,"nodes":"n[1-2]"}}
    "#]].assert_eq(&sent(&["reservation", "set", "course", "nodes=n[1-2]", "end=2027-01-11T12:00:00"]));
    expect![[r#"
        /v1/reservations/x {"create":true,"change":{"gpus":null,"maintenance":true,"node_count":null,"nodes":"ALL","repeat":"weekend","users":["-bob"]}}
    "#]].assert_eq(&sent(&["reservation", "add", "x", "nodes=ALL", "users=-bob", "flags=WEEKEND,MAINT"]));
    expect![[r#"
        /v1/reservations/x {"create":true,"change":{"features":"a100","gpus":null,"node_count":2,"nodes":null,"users":["ada"]}}
    "#]].assert_eq(&sent(&["reservation", "add", "x", "NodeCnt=2", "Features=a100", "users=ada"]));
    check(
        &["reservation", "add", "x", "flags=REPLACE"],
        expect![[r#"
            stderr: gadm: flags=REPLACE: nodes that are chosen by node_count=2 are replaced, those that are named are not
            exit: Some(2)
        "#]],
    );
    check(
        &["reservation", "add", "x", "flags=MANT"],
        expect![[r#"
            stderr: gadm: flags=MANT: there is no such flag. Did you mean "MAINT"? Flags: MAINT, FLEX, IGNORE_JOBS, MAGNETIC, OVERLAP, STATIC_ALLOC, REPLACE, REPLACE_DOWN, NO_HOLD_JOBS_AFTER, NO_HOLD_JOBS_AFTER_END, PURGE_COMP, HOURLY, DAILY, WEEKDAY, WEEKEND, WEEKLY
            exit: Some(2)
        "#]],
    );
    check(
        &["reservation", "list"],
        expect![[r#"
        RESV_NAME STATE    START_TIME          END_TIME            DURATION REPEAT WHAT        FOR
        course    INACTIVE 2027-01-18T09:00:00 2027-01-18T11:00:00  2:00:00 weekly h100:8 GPUs grace in physics
    "#]],
    );
}

#[test]
fn the_policy_is_a_document() {
    check(
        &["policy", "export"],
        expect![[r#"
        [account.a]
        shares = 2
    "#]],
    );
    let controller = FakeController::start(answer);
    let import = |words: &[&str]| controller.run_with(GADM, words, &[], "[qos.b]\n").text();
    expect![[r#"
        account a is removed
        qos b is added
    "#]]
    .assert_eq(&import(&["policy", "import", "-", "--dry-run"]));
    expect![[r#"
        stderr: gadm: the file lacks account a: remove it? Say --yes; there is no terminal to ask on
        exit: Some(2)
    "#]]
    .assert_eq(&import(&["policy", "import", "-"]));
    expect![[r#"
        stderr: gadm: account a is removed
        stderr: gadm: qos b is added
    "#]]
    .assert_eq(&import(&["policy", "import", "-", "--yes"]));
    let last = controller.requests().pop().unwrap();
    expect![[r#"{"schema":1,"name":"stdin","toml":"[qos.b]\n","dry_run":false}"#]]
        .assert_eq(&last.body);
    check(
        &["licence", "list"],
        expect![[r#"
        LICENCE TOTAL USED FREE
        matlab     20    3   17
    "#]],
    );
    check(
        &["reload", "--dry-run"],
        expect![[r#"
        partition a is changed
        job 17 of alice: waits (PartitionDown); now it starts at once
    "#]],
    );
    check(
        &["reload", "--dry-run", "--json"],
        expect![[r#"
        {"schema":1,"notes":["partition a is changed","job 17 of alice: waits (PartitionDown); now it starts at once"]}
    "#]],
    );
    check(
        &["reload", "--json"],
        expect![[r#"
        stderr: gadm: the following required arguments were not provided:
        stderr:   --dry-run
        stderr: 
        stderr: Usage: gadm reload --dry-run --json
        stderr: 
        stderr: For more information, try '--help'.
        exit: Some(2)
    "#]],
    );
}
