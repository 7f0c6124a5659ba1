//! Features that are otherwise tested in pure crates, each once through real daemons and commands: dependencies, budgets, headroom, licences,
//! reservations, the fair tree, pack and spread, consolidation; and small questions to the queue.

use gmodel::JobState::{Cancelled, Completed, Failed, Pending, Running};
use gmodel::ReasonCode::{self, Dependency, DependencyNeverSatisfied, Headroom, Licenses};
use gpupool_tests::pool::Pool;

/// A job's script that ends with a code when a file is there.
fn until(file: &str, code: u32) -> String {
    format!("until [ -e {file} ]; do sleep 0.02; done; exit {code}")
}

fn admin(pool: &Pool, line: &str) {
    let said = pool.run("gadm", &line.split_whitespace().collect::<Vec<_>>());
    assert_eq!(said.code, 0, "gadm {line}: {said:?}");
}

fn wait_reason(pool: &Pool, id: u64, reason: ReasonCode) {
    pool.wait_until(&format!("job {id} waits for {reason:?}"), || {
        let job = pool.job(id);
        assert_eq!(job.state, Pending, "{job:?}");
        job.reason == reason
    });
}

#[test]
fn jobs_start_after_others_as_their_dependencies_say_though_the_controller_is_killed_meanwhile() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    let (good, bad) = (
        pool.gsub(&["--wrap", &until("go", 0)]),
        pool.gsub(&["--wrap", &until("go", 3)]),
    );
    let after = |dependency: String, more: &[&str]| {
        pool.gsub(&[&["-d", &dependency], more, &["--wrap", "true"]].concat())
    };
    let ok = after(format!("afterok:{good}"), &[]);
    let not_ok = after(format!("afternotok:{bad}"), &[]);
    let any = after(format!("afterany:{good}:{bad}"), &[]);
    let either = after(format!("afterok:{bad}?afterok:{good}"), &[]);
    let begun = after(format!("after:{good}"), &[]);
    let never = after(format!("afterok:{bad}"), &[]);
    let gone = after(
        format!("afternotok:{good}"),
        &["--kill-on-invalid-dep", "yes"],
    );
    let chain = after(format!("afterok:{ok}"), &[]);
    let alone: Vec<u64> = (0..2)
        .map(|_| {
            pool.gsub(&[
                "-J",
                "alone",
                "-d",
                "singleton",
                "--wrap",
                &until("alone", 0),
            ])
        })
        .collect();
    let script = "test $GSUB_ARRAY_TASK_ID != 1";
    let first = pool.gsub(&["--array", "0-2", "--hold", "--wrap", script]);
    let second = pool.gsub(&[
        "--array",
        "0-2",
        "-d",
        &format!("aftercorr:{first}"),
        "--wrap",
        "true",
    ]);
    pool.wait_state(begun, Completed);
    pool.wait_state(alone[0], Running);
    for id in [ok, not_ok, any, either, never, gone, chain, alone[1]] {
        wait_reason(&pool, id, Dependency);
    }
    pool.kill("gpuctld");
    pool.start("gpuctld");
    assert_eq!(
        pool.run("gadm", &["job", "release", &first.to_string()])
            .code,
        0
    );
    pool.write("go", "");
    for id in [good, ok, not_ok, any, either, chain] {
        pool.wait_state(id, Completed);
    }
    pool.wait_state(bad, Failed);
    pool.wait_state(gone, Cancelled);
    wait_reason(&pool, never, DependencyNeverSatisfied);
    let ended = |id: u64| pool.job(id).end_time;
    assert!(ended(chain) >= ended(ok) && ended(ok) >= ended(good));
    assert_eq!(pool.job(alone[1]).state, Pending, "its like still runs");
    pool.write("alone", "");
    pool.wait_state(alone[1], Completed);
    let task = |index: u32| pool.find_job(&format!("{second}_{index}")).expect("there");
    pool.wait_until("tasks follow theirs", || {
        task(0).state == Completed && task(2).state == Completed
    });
    pool.wait_until("one follows a task that failed", || {
        task(1).reason == DependencyNeverSatisfied
    });
    assert_eq!(task(1).state, Pending);
    pool.check();
    pool.down();
}

#[test]
fn budgets_headroom_licences_and_reservations_hold_jobs_back_and_let_them_go() {
    let Some(pool) = Pool::up(1, "h100:4") else {
        return;
    };
    pool.reconfigure(
        "gpuctld",
        "licences.matlab = 1\naccount.capped.budget = [{ kind = \"cap\", gpu_hours = 1, period = \"year\" }]",
    );
    // A budget of one GPU-hour: what could use more does not start.
    let within = pool.gsub(&[
        "-A",
        "capped",
        "--gpus",
        "1",
        "-t",
        "30",
        "--wrap",
        &until("budget", 0),
    ]);
    pool.wait_state(within, Running);
    let beyond = pool.gsub(&["-A", "capped", "--gpus", "1", "-t", "45", "--wrap", "true"]);
    pool.wait_until("the budget is its reason", || {
        pool.run("gq", &["--why", &beyond.to_string()])
            .out
            .contains("may use 1 GPU-hours a year")
    });
    assert_eq!(pool.job(beyond).state, Pending);
    // What the first did not use is there again for it.
    pool.write("budget", "");
    pool.wait_state(within, Completed);
    pool.wait_state(beyond, Completed);

    // One licence, two jobs.
    let holder = pool.gsub(&["-L", "matlab", "--wrap", &until("licence", 0)]);
    pool.wait_state(holder, Running);
    let next = pool.gsub(&["-L", "matlab", "--wrap", "true"]);
    wait_reason(&pool, next, Licenses);
    pool.run("gsub", &["-L", "matlab:2", "--wrap", "true"])
        .fails_with(1, "matlab");
    pool.write("licence", "");
    pool.wait_state(next, Completed);

    // Two GPUs are set apart.
    admin(
        &pool,
        "reservation add course start=now duration=1:00:00 gpus=h100:2 users=root",
    );
    let outside: Vec<u64> = (0..3)
        .map(|_| pool.gsub(&["--gpus", "1", "-t", "20", "--wrap", &until("course", 0)]))
        .collect();
    let running = || {
        outside
            .iter()
            .filter(|id| pool.job(**id).state == Running)
            .count()
    };
    let inside = pool.gsub(&[
        "--reservation",
        "course",
        "--gpus",
        "2",
        "-t",
        "5",
        "--wrap",
        &until("lesson", 0),
    ]);
    pool.wait_state(inside, Running);
    pool.wait_until("two run beside it", || running() == 2);
    pool.write("lesson", "");
    pool.wait_state(inside, Completed);
    let waits = *outside
        .iter()
        .find(|id| pool.job(**id).state == Pending)
        .expect("one waits");
    pool.wait_until("it has its reason", || {
        !pool.job(waits).reason.to_string().is_empty()
    });
    assert_eq!(running(), 2, "what is set apart stays so");
    admin(&pool, "reservation del course --yes");
    pool.wait_state(waits, Running);
    pool.write("course", "");
    outside
        .iter()
        .for_each(|id| drop(pool.wait_state(*id, Completed)));

    // One GPU is kept for a QOS.
    admin(&pool, "qos add urgent headroom=1");
    let usual: Vec<u64> = (0..3)
        .map(|_| pool.gsub(&["--gpus", "1", "--wrap", &until("room", 0)]))
        .collect();
    usual
        .iter()
        .for_each(|id| drop(pool.wait_state(*id, Running)));
    let more = pool.gsub(&["--gpus", "1", "--wrap", "true"]);
    wait_reason(&pool, more, Headroom);
    let urgent = pool.gsub(&["-q", "urgent", "--gpus", "1", "--wrap", "true"]);
    pool.wait_state(urgent, Completed);
    assert_eq!(pool.job(more).state, Pending);
    pool.write("room", "");
    pool.wait_state(more, Completed);
    pool.check();
    pool.down();
}

#[test]
fn the_account_that_used_less_goes_first_and_what_runs_where_is_as_the_partition_says() {
    let Some(pool) = Pool::up(2, "h100:2") else {
        return;
    };
    pool.reconfigure(
        "gpuctld",
        "kill_grace_secs = 2\nscheduler.consolidate = true\npreempt.min_run = 0\npartition.wide.nodes = \"ALL\"\npartition.wide.placement = \"spread\"\n\
         account.heavy.shares = 1\naccount.light.shares = 1\naccount.lab.shares = 1\naccount.one.parent = \"lab\"\naccount.two.parent = \"lab\"",
    );
    // The fair tree: one of lab used its part, so that two of lab goes behind light and before one.
    for account in ["heavy", "one"] {
        let used = pool.gsub(&[
            "-A",
            account,
            "--nodes",
            "2",
            "--gpus-per-node",
            "2",
            "--wrap",
            if account == "heavy" {
                "sleep 2"
            } else {
                "sleep 1"
            },
        ]);
        pool.wait_state(used, Completed);
    }
    let all = ["--nodes", "2", "--gpus-per-node", "2", "-t", "10"];
    let first = pool.gsub(&[&all[..], &["-A", "light", "--wrap", &until("tree", 0)]].concat());
    pool.wait_state(first, Running);
    let accounts = ["heavy", "one", "two", "light"];
    let jobs = accounts.map(|account| {
        pool.gsub(
            &[
                &all[..],
                &["-A", account, "--wrap", &format!("echo {account} >> order")],
            ]
            .concat(),
        )
    });
    pool.wait_until("all wait", || {
        jobs.iter()
            .all(|id| pool.job(*id).state == Pending && pool.job(*id).priority > 0)
    });
    pool.write("tree", "");
    jobs.iter()
        .for_each(|id| drop(pool.wait_state(*id, Completed)));
    let order: Vec<String> = pool
        .file("order")
        .split_whitespace()
        .map(str::to_owned)
        .collect();
    assert_eq!(
        order,
        ["light", "two", "one", "heavy"],
        "{}",
        pool.run("gadm", &["share"]).out
    );

    // Packed on one node, or one on each.
    let nodes_of = |partition: &str, file: &str, options: &[&str]| {
        let ids = [0, 1].map(|n| {
            let output = format!("{file}{n}.out");
            pool.gsub(
                &[
                    &["-p", partition, "--gpus", "1", "--mem", "1G", "-o", &output][..],
                    options,
                    &[
                        "--wrap",
                        &format!("echo run $GSUB_ATTEMPT; {}", until(file, 0)),
                    ],
                ]
                .concat(),
            )
        });
        let nodes = ids.map(|id| pool.wait_state(id, Running).nodelist);
        (ids, nodes)
    };
    let (packed, nodes) = nodes_of("main", "packed", &[]);
    assert_eq!(nodes[0], nodes[1]);
    pool.write("packed", "");
    packed
        .iter()
        .for_each(|id| drop(pool.wait_state(*id, Completed)));
    let (spread, nodes) = nodes_of("wide", "spread", &["--checkpoint", "USR1@1"]);
    assert_ne!(nodes[0], nodes[1]);
    // A job of a whole node: one of the two moves to the other's.
    let large = pool.gsub(&["-p", "wide", "--gpus", "2", "--wrap", &until("large", 0)]);
    pool.wait_state(large, Running);
    pool.wait_until("both run on one node", || {
        spread.iter().all(|id| pool.job(*id).state == Running)
    });
    let nodes = spread.map(|id| pool.job(id).nodelist);
    assert!(
        nodes[0] == nodes[1] && nodes[0] != pool.job(large).nodelist,
        "{nodes:?}"
    );
    let moved = *spread
        .iter()
        .find(|id| pool.job(**id).attempts == 2)
        .expect("one began again");
    // Its log has the lines of both runs, of both nodes.
    let log = pool.run("gq", &["--log", &moved.to_string()]).out;
    for (node, attempt) in [("node1", 1), ("node2", 1), ("node1", 2), ("node2", 2)] {
        let was_there = pool
            .attempts(moved)
            .iter()
            .any(|run| run.attempt == attempt && run.nodelist == node);
        assert_eq!(
            log.contains(&format!("{node} run {attempt}: ")),
            was_there,
            "{node} {attempt}: {log}"
        );
    }
    ["large", "spread"]
        .iter()
        .for_each(|file| drop(pool.write(file, "")));
    spread
        .iter()
        .chain([&large])
        .for_each(|id| drop(pool.wait_state(*id, Completed)));

    // Queries without a result.
    let said = pool.run("gq", &["-h", "-u", "4200000001"]);
    assert_eq!((said.code, said.out.as_str()), (0, ""), "{said:?}");
    let said = pool.run("gacct", &["-n", "-u", "4200000001"]);
    assert_eq!((said.code, said.out.as_str()), (0, ""), "{said:?}");
    assert!(pool.run("gacct", &["-n", "-u", "0"]).out.lines().count() > 5);
    let said = pool.run("gnodes", &["--json", "node1", "node9"]);
    said.fails_with(1, "there is no node \"node9\". Did you mean \"node1\"?");
    assert!(said.out.contains("\"node1\""), "{said:?}");
    pool.check();
    pool.down();
}
