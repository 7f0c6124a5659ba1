//! Teams share a pool: guaranteed GPUs come back to their owner, borrowed ones are lent until then, and the job that
//! gives way has written its checkpoint first.

use gmodel::JobState::{Completed, Pending, Running};
use gmodel::ReasonCode;
use gpupool_tests::pool::{Pool, programs};

/// Two accounts that are guaranteed half of eight GPUs each.
const TWO_TEAMS: &str = "\
account.vision.guaranteed = 4
account.speech.guaranteed = 4
kill_grace_secs = 2
";

/// Counts epochs; on USR1 saves the number, says so, and goes on where it was after a restart.
const TRAINING: &str = r#"
epoch=$(cat "$1" 2>/dev/null || echo 0)
echo "attempt $GSUB_ATTEMPT begins at $epoch, last mark: ${GSUB_LAST_MARK:-none}"
save() { echo "$epoch" > "$1.new" && mv "$1.new" "$1" && GSUB --mark "epoch $epoch"; }
trap 'save "$1"' USR1
until [ -e stop ]; do
    epoch=$((epoch + 1))
    sleep 0.2 & wait $!
done
save "$1"
"#;

fn training() -> String {
    let gsub = programs().join("gsub");
    format!(
        "#!/bin/bash\n{}",
        TRAINING.replace("GSUB --mark", &format!("{} --mark", gsub.display()))
    )
}

#[test]
fn a_borrower_checkpoints_and_gives_way_when_the_owner_comes_back() {
    let Some(pool) = Pool::up(1, "h100:8") else {
        return;
    };
    pool.reconfigure("gpuctld", TWO_TEAMS);
    pool.write("train.sh", training());
    let vision: Vec<u64> = (0..8)
        .map(|n| {
            let output = format!("vision{n}.out");
            pool.gsub(&[
                "-A",
                "vision",
                "--gpus",
                "1",
                "--checkpoint",
                "USR1@10",
                "-o",
                &output,
                "train.sh",
                &format!("state{n}"),
            ])
        })
        .collect();
    for id in &vision {
        pool.wait_state(*id, Running);
    }
    pool.wait_until("all have begun", || {
        (0..8).all(|n| pool.file(&format!("vision{n}.out")).contains("attempt 1"))
    });
    let speech = pool.gsub(&[
        "-A",
        "speech",
        "--gpus",
        "2",
        "--wrap",
        "until [ -e stop ]; do sleep 0.1; done",
    ]);
    pool.wait_state(speech, Running);
    let back = |state| {
        vision
            .iter()
            .filter(|id| pool.job(**id).state == state)
            .count()
    };
    pool.wait_until("two of the borrowers are back in the queue", || {
        back(Pending) == 2 && back(Running) == 6
    });
    // Two more GPUs are speech's, but a borrower preempts none of vision's guaranteed four.
    let more: Vec<u64> = (0..4)
        .map(|_| {
            pool.gsub(&[
                "-A",
                "speech",
                "--gpus",
                "1",
                "--wrap",
                "until [ -e stop ]; do sleep 0.1; done",
            ])
        })
        .collect();
    pool.wait_until("speech holds its four", || {
        more.iter()
            .filter(|id| pool.job(**id).state == Running)
            .count()
            == 2
    });
    pool.wait_until("vision keeps its four", || {
        back(Running) == 4 && back(Pending) == 4
    });
    pool.write("stop", "");
    for id in vision.iter().chain(&more).chain([&speech]) {
        pool.wait_state(*id, Completed);
    }
    let resumed = (0..8)
        .filter(|n| pool.file(&format!("vision{n}.out")).contains("attempt 2"))
        .count();
    assert_eq!(resumed, 4);
    let again = (0..8)
        .filter(|n| pool.file(&format!("vision{n}.out")).contains("attempt 3"))
        .count();
    assert_eq!(again, 0, "nobody is preempted to and fro");
    for n in 0..8 {
        let output = pool.file(&format!("vision{n}.out"));
        if let Some(second) = output.lines().find(|line| line.starts_with("attempt 2")) {
            assert!(
                second.contains("last mark: ") && second.contains("epoch"),
                "{output}"
            );
            let epoch: u32 = second
                .split(' ')
                .nth(4)
                .unwrap()
                .trim_end_matches(',')
                .parse()
                .unwrap();
            assert!(epoch > 0, "{output}");
        }
    }
    pool.check();
    pool.down();
}

#[test]
fn a_job_that_may_not_borrow_waits_for_its_guarantee() {
    let Some(pool) = Pool::up(1, "h100:8") else {
        return;
    };
    pool.reconfigure("gpuctld", TWO_TEAMS);
    let wait = "until [ -e stop ]; do sleep 0.1; done";
    let first = pool.gsub(&["-A", "vision", "--gpus", "4", "--wrap", wait]);
    pool.wait_state(first, Running);
    let second = pool.gsub(&["-A", "vision", "--gpus", "1", "--no-borrow", "--wrap", wait]);
    pool.wait_until("it waits for the quota", || {
        pool.job(second).reason == ReasonCode::Quota
    });
    let third = pool.gsub(&[
        "-A",
        "vision",
        "--gpus",
        "1",
        "--no-requeue",
        "--wrap",
        wait,
    ]);
    pool.wait_until("it does not borrow either", || {
        pool.job(third).reason == ReasonCode::Quota
    });
    let fourth = pool.gsub(&[
        "-A",
        "vision",
        "--gpus",
        "1",
        "--no-requeue",
        "--borrow",
        "--wrap",
        wait,
    ]);
    pool.wait_state(fourth, Running);
    pool.write("stop", "");
    for id in [first, second, third, fourth] {
        pool.wait_state(id, Completed);
    }
    pool.down();
}

#[test]
fn a_controller_that_is_killed_in_a_preemption_finishes_it() {
    let Some(pool) = Pool::up(1, "h100:2") else {
        return;
    };
    pool.reconfigure(
        "gpuctld",
        "account.vision.guaranteed = 1\naccount.speech.guaranteed = 1\nkill_grace_secs = 2\n",
    );
    pool.write("train.sh", training());
    let start = |n: &str| {
        let output = format!("v{n}.out");
        pool.gsub(&[
            "-A",
            "vision",
            "--gpus",
            "1",
            "--checkpoint",
            "USR1@10",
            "-o",
            &output,
            "train.sh",
            &format!("s{n}"),
        ])
    };
    let jobs = [start("0"), start("1")];
    pool.wait_until("both have begun", || {
        ["v0.out", "v1.out"]
            .iter()
            .all(|f| pool.file(f).contains("attempt 1"))
    });
    let speech = pool.gsub(&[
        "-A",
        "speech",
        "--gpus",
        "1",
        "--wrap",
        "until [ -e stop ]; do sleep 0.1; done",
    ]);
    pool.kill("gpuctld");
    pool.start("gpuctld");
    pool.wait_state(speech, Running);
    pool.wait_until("one gave way", || {
        jobs.iter()
            .filter(|id| pool.job(**id).state == Pending)
            .count()
            == 1
    });
    pool.write("stop", "");
    for id in jobs.into_iter().chain([speech]) {
        pool.wait_state(id, Completed);
    }
    pool.check();
    pool.down();
}

/// Its victim ends while there is no controller, and the next one finds an older job that wants the same.
#[test]
fn what_was_freed_for_a_job_is_its_own_though_the_controller_is_killed_meanwhile() {
    let Some(pool) = Pool::up(1, "h100:2") else {
        return;
    };
    pool.reconfigure(
        "gpuctld",
        "account.vision.guaranteed = 2\naccount.speech.shares = 1\nkill_grace_secs = 600\n",
    );
    let wait = "until [ -e over ]; do sleep 0.05; done";
    let victim =
        "trap 'touch heard' TERM; touch up; until [ -e leave ]; do sleep 0.05; done; touch left";
    let lent = pool.gsub(&["-A", "speech", "--gpus", "2", "--wrap", victim]);
    pool.wait_until("it runs", || pool.work.join("up").exists());
    let older = pool.gsub(&["-A", "vision", "--gpus", "1", "--hold", "--wrap", wait]);
    let owner = pool.gsub(&["-A", "vision", "--gpus", "2", "--wrap", wait]);
    pool.wait_until("the run has its SIGTERM", || {
        pool.work.join("heard").exists()
    });
    assert_eq!(
        pool.run("gadm", &["job", "release", &older.to_string()])
            .code,
        0
    );
    pool.kill("gpuctld");
    pool.write("leave", "");
    pool.wait_until("it has gone", || {
        pool.work.join("left").exists()
            && pool.processes_of("node1", &format!("{lent}-1")).is_empty()
    });
    pool.start("gpuctld");
    pool.wait_state(owner, Running);
    assert_eq!(
        (pool.job(older).state, pool.job(lent).state),
        (Pending, Pending)
    );
    pool.write("over", "");
    for id in [older, owner, lent] {
        pool.wait_state(id, Completed);
    }
    pool.check();
    pool.down();
}

#[test]
fn a_drain_with_a_deadline_moves_jobs_after_their_checkpoint() {
    let Some(pool) = Pool::up(2, "h100:1") else {
        return;
    };
    pool.write("train.sh", training());
    let said = pool.run(
        "gadm",
        &[
            "node",
            "drain",
            "node1",
            "--reason",
            "x",
            "--deadline",
            "someday",
        ],
    );
    said.fails_with(2, "--deadline");
    let id = pool.gsub(&[
        "--gpus",
        "1",
        "-w",
        "node1",
        "--checkpoint",
        "USR1@10",
        "-o",
        "out",
        "train.sh",
        "state",
    ]);
    pool.wait_until("it has begun", || pool.file("out").contains("attempt 1"));
    assert_eq!(
        pool.run("gadm", &["job", "update", &id.to_string(), "Comment=stay"])
            .code,
        0
    );
    assert_eq!(
        pool.run(
            "gadm",
            &[
                "node",
                "drain",
                "node1",
                "--reason",
                "fan",
                "--deadline",
                "now+1"
            ]
        )
        .code,
        0
    );
    pool.wait_until("its work is safe and it waits", || {
        pool.job(id).state == Pending && !pool.file("state").is_empty()
    });
    assert_eq!(pool.run("gadm", &["node", "resume", "node1"]).code, 0);
    pool.wait_until("it goes on", || pool.file("out").contains("attempt 2"));
    pool.write("stop", "");
    pool.wait_state(id, Completed);
    pool.down();
}

/// The victim has its signal and takes its time: that is not taken back, and the record names the preemptor and the outcome.
#[test]
fn a_run_that_goes_for_a_job_that_started_elsewhere_says_so() {
    let Some(pool) = Pool::up(2, "h100:1") else {
        return;
    };
    pool.reconfigure("gpuctld", "kill_grace_secs = 600");
    for words in ["qos add low", "qos add firm", "qos add high preempt=low"] {
        let said = pool.run("gadm", &words.split_whitespace().collect::<Vec<_>>());
        assert_eq!(said.code, 0, "{said:?}");
    }
    let run = |qos: &str, node: &str, script: &str| {
        pool.gsub(&[
            "-q", qos, "-w", node, "--gpus", "1", "-t", "60", "--wrap", script,
        ])
    };
    let low = run(
        "low",
        "node1",
        "trap 'touch heard' TERM; touch up; until [ -e leave ]; do sleep 0.05; done",
    );
    let firm = run("firm", "node2", "until [ -e free ]; do sleep 0.05; done");
    pool.wait_until("it runs", || pool.work.join("up").exists());
    pool.wait_state(firm, Running);
    let high = pool.gsub(&[
        "-q",
        "high",
        "--gpus",
        "1",
        "-t",
        "60",
        "--wrap",
        "until [ -e over ]; do sleep 0.05; done",
    ]);
    pool.wait_until("the run has its SIGTERM", || {
        pool.work.join("heard").exists()
    });
    pool.write("free", "");
    pool.wait_state(high, Running);
    assert_eq!(pool.job(high).nodelist, "node2");
    let words = format!("job {high} started elsewhere");
    let log = pool.run("gq", &["--log", &low.to_string()]).out;
    assert!(
        log.contains(&format!(
            "{words}; its signal is out, so it goes all the same"
        )),
        "{log}"
    );
    pool.write("leave", "");
    pool.wait_until("it has gone", || !pool.attempts(low)[0].end_text.is_empty());
    let text = &pool.attempts(low)[0].end_text;
    assert!(text.contains(&words), "{text}");
    pool.write("over", "");
    pool.wait_state(high, Completed);
    pool.check();
}
