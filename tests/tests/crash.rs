//! SIGKILL for every daemon at every moment: nothing acknowledged is lost, nothing runs twice, exit codes are right.
//!
//! Ground truth is outside of the pool: files that jobs append to, and processes that are alive or not.

use gmodel::JobState::{Cancelled, Completed, Failed, Pending, Running};
use gpupool_tests::pool::{Pool, is_alive, kill_process};
use gwire::api::{EachResult, SubmitReply, TargetsRequest};
use gwire::client::Client;
use nix::sys::signal::Signal;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Numbers that a printed seed repeats (Steele, Lea, Flood: SplitMix64).
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides
    }
}

/// The seed of `GPUPOOL_TEST_SEED`, else of the clock; printed.
fn dice() -> Dice {
    let seed = match std::env::var("GPUPOOL_TEST_SEED") {
        Ok(text) => text.parse().expect("GPUPOOL_TEST_SEED is a number"),
        Err(_) => std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64,
    };
    println!("seed: GPUPOOL_TEST_SEED={seed}");
    Dice(seed)
}

/// How often a test of random moments kills: `GPUPOOL_TEST_ROUNDS`, else so often.
fn rounds(usual: usize) -> usize {
    std::env::var("GPUPOOL_TEST_ROUNDS").map_or(usual, |text| {
        text.parse().expect("GPUPOOL_TEST_ROUNDS is a number")
    })
}

/// Shell words that note a GPU held by another run's process: the lock lives as long as any process of this one.
const ONE_OWNER: &str =
    "exec 9>lock.$GSUB_GPU_UUIDS; flock -n 9 || echo $GSUB_JOB_ID $GSUB_GPU_UUIDS >> owners;";

#[test]
fn five_hundred_acknowledged_jobs_survive_a_kill_and_running_ones_go_on() {
    let Some(pool) = Pool::up(2, "h100:4") else {
        return;
    };
    let seven = pool.gsub(&[
        "--gpus",
        "1",
        "--wrap",
        "while [ ! -e go ]; do sleep 0.02; done; exit 7",
    ]);
    let nine = pool.gsub(&[
        "--gpus",
        "1",
        "--wrap",
        "touch up; while [ ! -e go ]; do sleep 0.02; done; kill -9 $$",
    ]);
    pool.wait_state(seven, Running);
    pool.wait_state(nine, Running);
    pool.wait_until("the job began", || pool.work.join("up").exists());
    let supervisors = [
        pool.supervisor("node1", &format!("{seven}-1")),
        pool.supervisor("node1", &format!("{nine}-1")),
    ];

    let ids = Mutex::new(Vec::new());
    std::thread::scope(|threads| {
        for connection in 0..8 {
            let (pool, ids) = (&pool, &ids);
            threads.spawn(move || {
                let mut client = Client::new(pool.socket());
                for n in 0..63 {
                    if connection * 63 + n >= 500 {
                        return;
                    }
                    let mut request = pool.request("true", None);
                    request.spec.hold = n % 4 != 0;
                    let answer: SubmitReply = client.post("/v1/jobs", &request).unwrap();
                    ids.lock().unwrap().push((answer.id.0, request.spec.hold));
                }
            });
        }
    });
    pool.kill("gpuctld");
    let ids = ids.into_inner().unwrap();
    let unique: BTreeSet<u64> = ids.iter().map(|(id, _)| *id).collect();
    let held = ids.iter().filter(|(_, hold)| *hold).count();
    assert_eq!(
        (ids.len(), unique.len()),
        (500, 500),
        "an id was given twice"
    );
    assert!(
        supervisors.iter().all(|pid| is_alive(*pid)),
        "a crash of the controller ended a job"
    );

    pool.start("gpuctld");
    let there = pool.ids();
    let missing: Vec<_> = unique
        .difference(&there)
        .filter(|id| pool.find_job(&id.to_string()).is_none())
        .collect();
    assert!(missing.is_empty(), "acknowledged and gone: {missing:?}");
    let next = pool.gsub(&["--hold", "--wrap", "true"]);
    assert!(
        unique.iter().all(|id| *id < next),
        "id {next} may have been given before"
    );
    assert!(
        supervisors.iter().all(|pid| is_alive(*pid)),
        "the restart ended a job"
    );
    assert_eq!(pool.job(seven).state, Running);
    pool.write("go", "");
    assert_eq!(pool.wait_state(seven, Failed).exit_code.code, 7);
    assert_eq!(pool.wait_state(nine, Failed).exit_code.signal, 9);
    assert_eq!(pool.job(seven).attempts, 1);
    pool.wait_until("the jobs that were not held have run", || {
        pool.jobs()
            .iter()
            .filter(|job| unique.contains(&job.id) && job.state == Pending)
            .count()
            == held
    });
    pool.check();
}

#[test]
fn nothing_acknowledged_is_missing_after_kills_at_random_moments() {
    let Some(pool) = Pool::up(2, "h100:4") else {
        return;
    };
    let mut dice = dice();
    let rounds = rounds(20);
    // key -> id acknowledged for it, and how many jobs stand for it.
    let acknowledged: Mutex<BTreeMap<String, (u64, u64)>> = Mutex::default();
    let done = AtomicBool::new(false);
    std::thread::scope(|threads| {
        for connection in 0..4 {
            let (pool, acknowledged, done) = (&pool, &acknowledged, &done);
            threads.spawn(move || submit_until(pool, connection, acknowledged, done));
        }
        // Also when an assertion fails: or the submitters would go on for ever.
        let _ends = SetOnDrop(&done);
        for round in 0..rounds {
            std::thread::sleep(Duration::from_millis(5 + dice.roll(150)));
            pool.kill("gpuctld");
            let before = acknowledged.lock().unwrap().clone();
            // Asks from before the start: the first answer must show everything.
            let first = threads.spawn(|| {
                let mut client = pool.client().wait_for(Duration::from_secs(30));
                client.get::<serde_json::Value>("/v1/diag").unwrap()["next_job"]
                    .as_u64()
                    .unwrap()
            });
            pool.start("gpuctld");
            let highest = before
                .values()
                .map(|(id, count)| id + count - 1)
                .max()
                .unwrap_or(0);
            assert!(
                first.join().unwrap() > highest,
                "round {round}: answered before recovery was complete"
            );
            // Those that are over may have left memory, never the database.
            let (there, over) = (pool.ids(), pool.accounted_ids());
            let all = before.values().flat_map(|(id, count)| *id..id + count);
            let missing: Vec<_> = all
                .filter(|id| !there.contains(id) && !over.contains(id))
                .collect();
            assert!(
                missing.is_empty(),
                "round {round}: acknowledged and gone: {missing:?}"
            );
        }
    });
    let acknowledged = acknowledged.into_inner().unwrap();
    println!(
        "{} submissions were acknowledged over {rounds} kills",
        acknowledged.len()
    );
    assert!(
        acknowledged.len() > rounds,
        "too few submissions to mean anything"
    );
    let mut given = BTreeSet::new();
    for (id, count) in acknowledged.values() {
        for id in *id..id + count {
            assert!(given.insert(id), "id {id} was given twice");
        }
    }
    pool.wait_until("all that was not held has run", || {
        pool.jobs()
            .iter()
            .all(|job| job.state == Pending || job.state == Completed)
    });
    pool.wait_until("held jobs are all that is left", || {
        pool.jobs()
            .iter()
            .filter(|job| job.state == Pending)
            .all(|job| !job.holds.is_empty())
    });
    // Each task of each array, and each single job, ran once: one line each, none twice.
    let lines = pool.file("ran");
    let ran: BTreeSet<&str> = lines.lines().collect();
    assert_eq!(ran.len(), lines.lines().count(), "something ran twice");
    pool.check();
}

/// Sets its flag when dropped.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Submits held jobs, jobs that run, and arrays, each with a key, asking again when the answer was lost.
fn submit_until(
    pool: &Pool,
    connection: usize,
    acknowledged: &Mutex<BTreeMap<String, (u64, u64)>>,
    done: &AtomicBool,
) {
    let mut client = pool.client().wait_for(Duration::from_secs(30));
    for n in 0.. {
        if done.load(Ordering::Relaxed) {
            return;
        }
        let key = format!("{connection}-{n}");
        let mut request = pool.request("echo $GSUB_JOB_ID-$GSUB_ATTEMPT >> ran", Some(key.clone()));
        let mut count = 1;
        match n % 24 {
            0 => {}
            1 => {
                count = 3;
                request.spec.array = Some("0-2".parse().unwrap());
            }
            _ => request.spec.hold = true,
        }
        let answer: SubmitReply = client.post_repeatable("/v1/jobs", &request).unwrap();
        acknowledged
            .lock()
            .unwrap()
            .insert(key, (answer.id.0, count));
        std::thread::sleep(Duration::from_millis(8));
    }
}

#[test]
fn a_job_that_ends_while_the_controller_is_down_is_known_as_ended() {
    let Some(pool) = Pool::up(1, "h100:2") else {
        return;
    };
    let id = pool.gsub(&[
        "--gpus",
        "1",
        "--wrap",
        "touch up; while [ ! -e go ]; do sleep 0.02; done; touch over; exit 5",
    ]);
    pool.wait_until("it runs", || pool.work.join("up").exists());
    pool.kill("gpuctld");
    pool.write("go", "");
    pool.wait_until("it ended", || {
        pool.work.join("over").exists() && pool.processes_of("node1", &format!("{id}-1")).is_empty()
    });
    pool.start("gpuctld");
    let job = pool.wait_state(id, Failed);
    assert_eq!((job.exit_code.code, job.attempts), (5, 1));
    pool.wait_idle("node1");
    pool.check();
}

#[test]
fn a_job_cancelled_while_its_node_daemon_is_down_is_gone_before_its_gpu_is_given_on() {
    let Some(pool) = Pool::up(1, "h100:1") else {
        return;
    };
    pool.reconfigure("gpuctld", "kill_grace_secs = 1");
    let first = pool.gsub(&[
        "--gpus",
        "1",
        "--wrap",
        "trap '' TERM; echo $$ > pid; while :; do sleep 0.1; done",
    ]);
    let pid: i32 = pool.wait_file("pid").trim().parse().unwrap();
    pool.kill("node1");
    assert_eq!(pool.run("gdel", &[&first.to_string()]).code, 0);
    let second = pool.gsub(&[
        "--gpus",
        "1",
        "--wrap",
        "kill -0 $(cat pid) 2>/dev/null && echo alive > seen || echo gone > seen",
    ]);
    // The job cannot be ended now, so its GPU must not be given away: long enough for many passes.
    let watched = Instant::now();
    while watched.elapsed() < Duration::from_millis(700) {
        assert!(is_alive(pid));
        assert_eq!(pool.job(second).state, Pending, "the GPU has two owners");
        std::thread::sleep(Duration::from_millis(20));
    }
    pool.start("node1");
    pool.wait_state(second, Completed);
    assert_eq!(pool.file("seen").trim(), "gone");
    assert!(!is_alive(pid));
    assert_eq!(pool.job(first).state, Cancelled);
    pool.check();
}

#[test]
fn a_killed_supervisor_costs_the_run_and_all_it_started_and_the_job_runs_again() {
    let Some(pool) = Pool::up(1, "h100:1") else {
        return;
    };
    let script = "echo $GSUB_ATTEMPT >> runs; setsid sleep 1000 & echo $! > orphan.$GSUB_ATTEMPT; echo $$ > pid.$GSUB_ATTEMPT\n\
                  if [ $GSUB_ATTEMPT = 1 ]; then sleep 1000; fi\n\
                  for pid in $(cat pid.1 orphan.1); do kill -0 $pid 2>/dev/null && echo $pid >> alive; done; exit 4";
    let id = pool.gsub(&["--gpus", "1", "--wrap", script]);
    pool.wait_file("pid.1");
    kill_process(pool.supervisor("node1", &format!("{id}-1")));
    let job = pool.wait_state_through(id, Failed);
    assert_eq!((job.exit_code.code, job.attempts), (4, 2));
    assert_eq!(pool.file("runs"), "1\n2\n");
    assert_eq!(
        pool.file("alive"),
        "",
        "processes of the first attempt were alive in the second"
    );
    let attempts: Vec<_> = pool
        .attempts(id)
        .iter()
        .map(|run| run.state.long())
        .collect();
    assert_eq!(attempts, ["NODE_FAIL", "FAILED"]);
    pool.wait_idle("node1");
    pool.check();
}

#[test]
fn a_job_that_may_not_be_requeued_ends_with_its_supervisor() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    let id = pool.gsub(&[
        "--no-requeue",
        "--wrap",
        "echo $GSUB_ATTEMPT >> runs; touch up; sleep 1000",
    ]);
    pool.wait_until("it runs", || pool.work.join("up").exists());
    kill_process(pool.supervisor("node1", &format!("{id}-1")));
    let job = pool.wait_state(id, gmodel::JobState::NodeFail);
    assert_eq!(job.attempts, 1);
    assert!(
        !job.end_text.is_empty(),
        "the record does not say what happened: {job:?}"
    );
    assert_eq!(pool.file("runs"), "1\n");
    pool.wait_idle("node1");
}

/// The moments that matter most, hit exactly: the job itself (of root) kills, in its first line or in its last.
#[test]
fn a_job_that_kills_the_daemons_in_its_first_or_last_line_runs_once_and_its_exit_code_is_known() {
    let Some(pool) = Pool::up(1, "h100:1") else {
        return;
    };
    for victims in [
        &["gpuctld"][..],
        &["node1"],
        &["gpuctld", "node1"],
        &["node1", "gpuctld"],
    ] {
        for first_line in [true, false] {
            let pids: Vec<String> = victims
                .iter()
                .map(|name| pool.daemon_pid(name).to_string())
                .collect();
            let kill = format!("kill -9 {}", pids.join(" "));
            let body = if first_line {
                format!("{kill}; sleep 0.1")
            } else {
                format!("sleep 0.1; {kill}")
            };
            let id = pool.gsub(&[
                "--gpus",
                "1",
                "--wrap",
                &format!("echo $GSUB_JOB_ID-$GSUB_ATTEMPT >> runs; {body}; exit 7"),
            ]);
            pool.wait_until("they are dead", || {
                pids.iter().all(|pid| !is_alive(pid.parse().unwrap()))
            });
            victims.iter().for_each(|name| pool.start(name));
            let job = pool.wait_state(id, Failed);
            let case = format!("{victims:?}, first line: {first_line}");
            assert_eq!(
                (job.exit_code.code, job.attempts),
                (7, 1),
                "{case}: {job:?}\n{}",
                pool.logs()
            );
            assert!(pool.file("runs").ends_with(&format!("{id}-1\n")), "{case}");
            pool.wait_idle("node1");
        }
    }
    assert_eq!(pool.file("runs").lines().count(), 8);
    pool.check();
}

#[test]
fn a_run_that_lost_its_supervisor_in_its_first_line_counts_as_started() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    for with_node_daemon in [false, true] {
        let also = if with_node_daemon {
            pool.daemon_pid("node1").to_string()
        } else {
            String::new()
        };
        // The parent of a batch script is its supervisor.
        let script =
            format!("echo $GSUB_JOB_ID-$GSUB_ATTEMPT >> runs; kill -9 {also} $PPID; sleep 1000");
        let id = pool.gsub(&["--no-requeue", "--wrap", &script]);
        if with_node_daemon {
            pool.wait_until("it is dead", || !is_alive(also.parse().unwrap()));
            pool.start("node1");
        }
        let job = pool.wait_state_through(id, gmodel::JobState::NodeFail);
        assert_eq!(
            job.attempts, 1,
            "it was run again against its will: {job:?}"
        );
        assert!(
            pool.file("runs").ends_with(&format!("{id}-1\n")),
            "{}",
            pool.file("runs")
        );
        pool.wait_idle("node1");
    }
    assert_eq!(pool.file("runs").lines().count(), 2);
}

/// Kills all three kinds of daemons in one order while jobs start, run and end; then everything must come right.
fn kill_in_order(order: [&str; 3]) {
    let Some(pool) = Pool::up(1, "h100:8") else {
        return;
    };
    let mut dice = dice();
    let mut codes = BTreeMap::new();
    // Each attempt says that it began, looks whether the one before it lives, and ends with the job's own code.
    let script = |body: &str, code: u64| {
        format!(
            "{ONE_OWNER} me=$GSUB_JOB_ID; [ ! -e pid.$me ] || ! kill -0 $(cat pid.$me) 2>/dev/null || echo $me >> overlap\n\
             echo $$ > pid.$me; echo $me-$GSUB_ATTEMPT >> began; {body}; exit {code}"
        )
    };
    let mut submit = |body: &str, code: u64| {
        let mut client = pool.client();
        let answer: SubmitReply = client
            .post("/v1/jobs", &{
                let mut request = pool.request(&script(body, code), None);
                request.spec.request.gpus = Some("1".parse().unwrap());
                request
            })
            .unwrap();
        codes.insert(answer.id.0, code);
        answer.id.0
    };
    let long = submit("while [ ! -e go ]; do sleep 0.02; done", 11);
    let victim = submit("touch victim; while [ ! -e go ]; do sleep 0.02; done", 12);
    pool.wait_until("the long ones run", || pool.work.join("victim").exists());
    for n in 0..8 {
        submit(&format!("sleep 0.{}", n % 4), 20 + n);
    }
    for what in order {
        std::thread::sleep(Duration::from_millis(dice.roll(120)));
        match what {
            "gstepd" => kill_process(pool.supervisor("node1", &format!("{victim}-1"))),
            daemon => pool.kill(daemon),
        }
    }
    std::thread::sleep(Duration::from_millis(dice.roll(200)));
    // Back in the order in which they went.
    for daemon in order.into_iter().filter(|what| *what != "gstepd") {
        pool.start(daemon);
    }
    pool.write("go", "");
    for (id, code) in &codes {
        let job = pool.wait_state_through(*id, Failed);
        assert_eq!(
            u64::from(job.exit_code.code),
            *code,
            "exit code of {id}: {job:?}\n{}",
            pool.logs()
        );
        let attempts = if *id == victim { 2 } else { 1 };
        assert_eq!(
            job.attempts,
            attempts,
            "attempts of {id} (the long one is {long}, the victim {victim})\n{}",
            pool.logs()
        );
    }
    let began = pool.file("began");
    let mut want: BTreeSet<String> = codes.keys().map(|id| format!("{id}-1")).collect();
    want.insert(format!("{victim}-2"));
    let lines: Vec<&str> = began.lines().collect();
    assert_eq!(lines.len(), want.len(), "lost or twice: {lines:?}");
    assert_eq!(
        lines
            .into_iter()
            .map(str::to_owned)
            .collect::<BTreeSet<_>>(),
        want
    );
    assert_eq!(pool.file("overlap"), "", "two attempts at once");
    assert_eq!(pool.file("owners"), "", "a GPU with two owners");
    pool.wait_idle("node1");
    pool.check();
}

#[test]
fn kills_of_controller_node_supervisor() {
    kill_in_order(["gpuctld", "node1", "gstepd"]);
}

#[test]
fn kills_of_controller_supervisor_node() {
    kill_in_order(["gpuctld", "gstepd", "node1"]);
}

#[test]
fn kills_of_node_controller_supervisor() {
    kill_in_order(["node1", "gpuctld", "gstepd"]);
}

#[test]
fn kills_of_node_supervisor_controller() {
    kill_in_order(["node1", "gstepd", "gpuctld"]);
}

#[test]
fn kills_of_supervisor_controller_node() {
    kill_in_order(["gstepd", "gpuctld", "node1"]);
}

#[test]
fn kills_of_supervisor_node_controller() {
    kill_in_order(["gstepd", "node1", "gpuctld"]);
}

#[test]
fn short_jobs_run_once_each_while_their_node_daemon_is_killed_again_and_again() {
    let Some(pool) = Pool::up(1, "h100:4") else {
        return;
    };
    let mut dice = dice();
    let mut request = pool.request(
        &format!("{ONE_OWNER} echo $GSUB_JOB_ID-$GSUB_ATTEMPT >> ran; exit 3"),
        None,
    );
    request.spec.array = Some("0-39".parse().unwrap());
    request.spec.request.gpus = Some("1".parse().unwrap());
    let first = pool
        .client()
        .post::<_, SubmitReply>("/v1/jobs", &request)
        .unwrap()
        .id
        .0;
    for _ in 0..6 {
        std::thread::sleep(Duration::from_millis(20 + dice.roll(120)));
        pool.kill("node1");
        std::thread::sleep(Duration::from_millis(dice.roll(40)));
        pool.start("node1");
    }
    for id in first..first + 40 {
        let job = pool.wait_state_through(id, Failed);
        assert_eq!(
            (job.exit_code.code, job.attempts),
            (3, 1),
            "{job:?}\n{}",
            pool.logs()
        );
    }
    let ran = pool.file("ran");
    let want: BTreeSet<String> = (first..first + 40).map(|id| format!("{id}-1")).collect();
    assert_eq!(ran.lines().count(), 40, "lost or twice: {ran}");
    assert_eq!(
        ran.lines().map(str::to_owned).collect::<BTreeSet<_>>(),
        want
    );
    assert_eq!(pool.file("owners"), "", "a GPU with two owners");
    pool.wait_idle("node1");
    pool.check();
}

#[test]
fn everything_is_killed_at_random_moments_and_every_job_still_ends_as_it_should() {
    let Some(pool) = Pool::up(2, "h100:4") else {
        return;
    };
    let mut dice = dice();
    let rounds = rounds(15);
    pool.reconfigure("gpuctld", "kill_grace_secs = 1");
    let mut codes = BTreeMap::new();
    let mut cancelled = BTreeSet::new();
    let mut bereaved = BTreeSet::new();
    for round in 0..rounds {
        for _ in 0..3 {
            let code = 1 + dice.roll(100);
            let body = format!(
                "{ONE_OWNER} echo $GSUB_JOB_ID-$GSUB_ATTEMPT >> began; (setsid sleep 0.{} &); sleep 0.{}; exit {code}",
                dice.roll(9),
                dice.roll(9)
            );
            let mut request = pool.request(&body, None);
            request.spec.request.gpus = Some("1".parse().unwrap());
            let answer: SubmitReply = pool.client().post("/v1/jobs", &request).unwrap();
            codes.insert(answer.id.0, code);
        }
        if dice.roll(3) == 0 {
            let ids: Vec<u64> = codes.keys().copied().collect();
            let id = ids[dice.roll(ids.len() as u64) as usize];
            // Refused where it is over already.
            if pool.run("gdel", &[&id.to_string()]).code == 0 {
                cancelled.insert(id);
            }
        }
        std::thread::sleep(Duration::from_millis(dice.roll(100)));
        match dice.roll(4) {
            // Three node failures hold a job, so each loses its supervisor once at most.
            0 => {
                let running = pool
                    .jobs()
                    .into_iter()
                    .filter(|job| job.state == Running && !bereaved.contains(&job.id));
                for job in running.collect::<Vec<_>>() {
                    if let Some(pid) =
                        pool.find_supervisor(&job.nodelist, &format!("{}-{}", job.id, job.attempts))
                    {
                        println!(
                            "round {round}: the supervisor of {}-{}",
                            job.id, job.attempts
                        );
                        bereaved.insert(job.id);
                        // It may end by itself in this very moment.
                        let _ = nix::sys::signal::kill(
                            nix::unistd::Pid::from_raw(pid),
                            Signal::SIGKILL,
                        );
                        break;
                    }
                }
            }
            n => {
                let daemon = ["gpuctld", "node1", "node2"][n as usize - 1];
                println!("round {round}: {daemon}");
                pool.kill(daemon);
                std::thread::sleep(Duration::from_millis(dice.roll(100)));
                pool.start(daemon);
            }
        }
    }
    pool.wait_until("all are over", || {
        codes.keys().all(|id| pool.job(*id).state.is_final())
    });
    for (id, code) in &codes {
        let job = pool.job(*id);
        let most = if bereaved.contains(id) { 2 } else { 1 };
        if cancelled.contains(id) && job.state == Cancelled {
            continue;
        }
        assert_eq!(
            (job.state, job.exit_code.code as u64),
            (Failed, *code),
            "{job:?}\n{}",
            pool.logs()
        );
        assert!(
            (1..=most).contains(&job.attempts),
            "{job:?}\n{}",
            pool.logs()
        );
        assert!(
            pool.file("began")
                .lines()
                .any(|line| line == format!("{id}-{}", job.attempts)),
            "{id} ended and never began"
        );
    }
    let began = pool.file("began");
    assert_eq!(
        began.lines().collect::<BTreeSet<_>>().len(),
        began.lines().count(),
        "something ran twice: {began}"
    );
    assert_eq!(pool.file("owners"), "", "a GPU with two owners");
    pool.wait_idle("node1");
    pool.wait_idle("node2");
    pool.check();
}

#[test]
fn holds_and_cancels_that_were_acknowledged_survive_a_kill() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    let [kept, gone] = [(); 2].map(|()| pool.gsub(&["--begin", "now+1hour", "--wrap", "true"]));
    let holder = TargetsRequest {
        jobs: vec![kept.to_string()],
        reason: "later".into(),
        ..TargetsRequest::default()
    };
    let _: EachResult = pool.client().post("/v1/jobs/hold", &holder).unwrap();
    assert_eq!(pool.run("gdel", &[&gone.to_string()]).code, 0);
    let drained: serde_json::Value = pool
        .client()
        .post(
            "/v1/nodes/node1/drain",
            &serde_json::json!({"reason": "a fan"}),
        )
        .unwrap();
    assert_eq!(drained["schema"], 1);
    pool.kill("gpuctld");
    pool.start("gpuctld");
    assert_eq!(pool.job(gone).state, Cancelled);
    assert_eq!(pool.job(kept).state, Pending);
    assert!(
        pool.job(kept)
            .holds
            .iter()
            .any(|hold| hold.reason == "later"),
        "{:?}",
        pool.job(kept).holds
    );
    assert_eq!(pool.node("node1").drains[0].reason, "a fan");
}

#[test]
fn a_dead_node_keeps_its_job_until_it_is_declared_down_where_the_site_wants_to_wait() {
    let Some(pool) = Pool::up(2, "h100:1") else {
        return;
    };
    pool.reconfigure(
        "gpuctld",
        "lost_node = \"wait\"\nnode_timeout_secs = 1\nkill_grace_secs = 1",
    );
    pool.wait_idle("node1");
    pool.wait_idle("node2");
    let script = "echo $$ > pid.$GSUB_ATTEMPT; while [ ! -e go ]; do sleep 0.02; done; exit 5";
    let id = pool.gsub(&["--gpus", "1", "--wrap", script]);
    let old: i32 = pool.wait_file("pid.1").trim().parse().unwrap();
    assert_eq!(pool.job(id).nodelist, "node1");
    pool.kill("node1");
    // Well over the time limit for silence: the job may still be running there, and it is.
    let watched = Instant::now();
    while watched.elapsed() < Duration::from_secs(3) {
        assert!(
            is_alive(old) && !pool.work.join("pid.2").exists(),
            "it was started twice"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    let said = pool.run(
        "gadm",
        &["node", "down", "node1", "--reason", "its power is off"],
    );
    assert_eq!(said.code, 0, "{said:?}");
    pool.wait_file("pid.2");
    // It was not: when the node comes back its old run is killed, before it takes anything new.
    pool.start("node1");
    pool.wait_until("the old run is dead", || !is_alive(old));
    pool.write("go", "");
    let job = pool.wait_state_through(id, Failed);
    assert_eq!((job.exit_code.code, job.attempts), (5, 2));
    pool.check();
}
