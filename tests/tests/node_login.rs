//! Logins by a node's own sshd, with pam_gpupool: in the job or not at all.

use gmodel::JobState::{Cancelled, Completed, Running};
use gpupool_tests::pool::{CommandOutput, Pool, is_alive};
use gpupool_tests::sshd::{LoginSession, Sshd};
use nix::sys::signal::Signal;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// A node, and an sshd on it that asks gpud; `None` where the machine has no cgroups or no sshd.
fn node_with_sshd(gpus: &str) -> Option<(Pool, Sshd)> {
    let pool = Pool::up(1, gpus)?;
    let sshd = Sshd::beside(&pool, "")?;
    Some((pool, sshd))
}

/// A session that says its process number, and stays.
const STAYS: &str = "echo $$; exec sleep 1000";

/// What keeps a user out, said by `ssh`.
#[track_caller]
fn is_refused(said: &CommandOutput, words: &str) {
    assert!(
        said.code != 0 && said.out.is_empty() && said.err.contains(words),
        "wanted {words:?}: {said:?}"
    );
}

fn cgroups_of(pid: &str) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default()
}

fn job_of(pool: &Pool, id: u64) -> String {
    format!("/gpupool-{}/node1/run_{id}-1/job", pool.tag())
}

/// What has been killed may still wait for its parent to look at it.
fn living(pool: &Pool, id: u64) -> Vec<i32> {
    let mut pids = pool.processes_of("node1", &format!("{id}-1"));
    pids.retain(|pid| is_alive(*pid));
    pids
}

#[track_caller]
fn ends(pool: &Pool, mut session: LoginSession) {
    pool.wait_until("the session ends", || {
        session.client.try_wait().unwrap().is_some()
    });
    let pid = session.first.parse().expect("a process number");
    pool.wait_until("its process is gone", || !is_alive(pid));
}

#[test]
fn a_user_comes_in_only_with_a_job_here_and_is_in_it_behind_its_fence() {
    let Some((pool, sshd)) = node_with_sshd("h100:4") else {
        return;
    };
    let user = pool.person().name.clone();
    // A job of another user opens nothing.
    let of_root = pool.gsub(&["--gpus", "1", "--wrap", "sleep 1000"]);
    pool.wait_state(of_root, Running);
    let said = sshd.ssh(&user, "echo in");
    is_refused(&said, "gpupool: you have no job on this node (node1)");
    assert!(
        said.err
            .contains("grun --jobid 17 --pty bash, or ssh gpupool-17")
    );
    // Root comes in and is in no job, with one here too.
    let root = sshd.ssh("root", "echo in; cat /proc/self/cgroup");
    assert!(
        root.code == 0 && root.out.starts_with("in\n") && !root.out.contains("/run_"),
        "{root:?}"
    );
    let run = ["--gpus", "1", "-t", "10", "--wrap", "sleep 1000"];
    let older = pool.run_as_user("gsub", &run).id();
    pool.wait_state(older, Running);
    let job = pool.run_as_user("gsub", &run).id();
    pool.wait_state(job, Running);
    let devices = format!(
        "for d in {}/node1/dev/nvidia[0-9]; do echo \"$(basename $d) $( (: < $d) 2>&1 | sed 's/.*: //')\"; done",
        pool.dir.display()
    );
    let look = "cat /proc/self/cgroup; echo $SLURM_JOB_ID $GSUB_JOB_ID $SLURMD_NODENAME $GSUB_GPU_UUIDS $CUDA_VISIBLE_DEVICES.";
    let said = sshd.ssh(&user, &format!("{look}; {devices}"));
    assert!(said.out.contains(&job_of(&pool, job)), "{said:?}");
    let gpus = pool.node("node1").gpus;
    let own = gpus.iter().find(|gpu| gpu.jobs == [job.to_string()]);
    let own = own.expect("a GPU of the job");
    let variables = format!("{job} {job} node1 {} 0.\n", own.uuid);
    assert!(said.out.contains(&variables), "{said:?}");
    for gpu in &gpus {
        let words = match gpu.minor == own.minor {
            // There is no driver behind it.
            true => "No such device or address",
            false => "Operation not permitted",
        };
        let line = format!("nvidia{} {words}\n", gpu.minor);
        assert!(said.out.contains(&line), "{line}{said:?}");
    }
    let log = pool.run_as_user("gq", &["--log", &job.to_string()]);
    assert!(log.out.contains("a login of its user"), "{log:?}");
    // The newest goes, and the session is in what is left.
    pool.run_as_user("gdel", &[&job.to_string()]);
    pool.wait_state(job, Cancelled);
    let said = sshd.ssh(&user, look);
    assert!(said.out.contains(&job_of(&pool, older)), "{said:?}");
    pool.run("gadm", &["job", "suspend", &older.to_string()]);
    pool.wait_state(older, gmodel::JobState::Suspended);
    is_refused(&sshd.ssh(&user, "true"), "is suspended");
}

#[test]
fn a_session_ends_with_its_job_and_no_job_waits_for_one() {
    let Some((pool, sshd)) = node_with_sshd("none") else {
        return;
    };
    // A job that waited for a session would wait for longer than this test does.
    pool.reconfigure("gpuctld", "kill_grace_secs = 300");
    let user = pool.person().name.clone();
    let script = "trap 'touch caught' USR1; touch up; while [ ! -e go ]; do sleep 0.1 & wait $!; done; exit 0";
    let job = pool.run_as_user("gsub", &["--wrap", script]).id();
    pool.wait_until("up", || pool.work.join("up").exists());
    let deaf = "trap '' TERM HUP USR1; echo $$; while :; do sleep 1; done";
    let (one, other) = (sshd.open(&user, STAYS), sshd.open(&user, deaf));
    for session in [&one, &other] {
        assert!(cgroups_of(&session.first).contains(&job_of(&pool, job)));
    }
    // A signal is for the job, not for what came in by ssh.
    pool.run_as_user("gdel", &["-s", "USR1", "--full", &job.to_string()]);
    pool.wait_until("caught", || pool.work.join("caught").exists());
    assert!(is_alive(one.first.parse().unwrap()), "{}", sshd.log());
    // By its own end.
    pool.write("go", "");
    pool.wait_state(job, Completed);
    ends(&pool, one);
    ends(&pool, other);
    pool.wait_idle("node1");
    // By gdel, and of an allocation, which has no process of its own.
    let job = pool.run_as_user("gsub", &["--wrap", "sleep 1000"]).id();
    pool.wait_state(job, Running);
    let deaf = sshd.open(&user, deaf);
    assert_eq!(pool.run_as_user("gdel", &[&job.to_string()]).code, 0);
    pool.wait_state(job, Cancelled);
    ends(&pool, deaf);
    pool.wait_idle("node1");
    let mut shell = pool.user_command("gsub");
    shell.args(["--interactive", "--", "sleep", "1000"]);
    let mut shell = shell.stdin(Stdio::null()).spawn().unwrap();
    pool.wait_until("the allocation is there", || {
        sshd.ssh(&user, "true").code == 0
    });
    let session = sshd.open(&user, STAYS);
    shell.kill().unwrap();
    shell.wait().unwrap();
    let id = pool.jobs().iter().map(|job| job.id).max().unwrap();
    pool.run_as_user("gdel", &[&id.to_string()]);
    ends(&pool, session);
    pool.wait_idle("node1");
    is_refused(&sshd.ssh(&user, "true"), "no job on this node");
}

#[test]
fn without_gpud_a_user_is_refused_in_time_root_is_not_and_sessions_stay() {
    let Some((pool, sshd)) = node_with_sshd("none") else {
        return;
    };
    let user = pool.person().name.clone();
    let job = pool.run_as_user("gsub", &["--wrap", "sleep 1000"]).id();
    pool.wait_state(job, Running);
    let session = sshd.open(&user, STAYS);
    let refused_in_time = || {
        let began = Instant::now();
        is_refused(&sshd.ssh(&user, "echo in"), "only root may log in");
        let took = began.elapsed();
        assert!(took < Duration::from_secs(15), "{took:?}");
        let root = sshd.ssh("root", "echo in");
        assert_eq!((root.code, root.out.as_str()), (0, "in\n"), "{root:?}");
    };
    pool.signal("node1", Signal::SIGSTOP);
    refused_in_time();
    pool.kill("node1");
    refused_in_time();
    pool.start("node1");
    pool.wait_until("a user comes in again", || {
        sshd.ssh(&user, "true").code == 0
    });
    assert!(cgroups_of(&session.first).contains(&job_of(&pool, job)));
    pool.run_as_user("gdel", &[&job.to_string()]);
    ends(&pool, session);
    pool.wait_idle("node1");
}

#[test]
fn options_of_the_pam_line_do_what_they_say_and_a_slip_lets_no_user_in() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    let user = pool.person().name.clone();
    let Some(quiet) = Sshd::beside(&pool, "quiet action_unknown=deny") else {
        return;
    };
    let said = quiet.ssh(&user, "true");
    assert!(said.code != 0 && !said.err.contains("gpupool:"), "{said:?}");
    let run = ["--wrap", "sleep 1000"];
    let jobs = [(); 2].map(|()| pool.run_as_user("gsub", &run).id());
    for job in jobs {
        pool.wait_state(job, Running);
    }
    assert_ne!(quiet.ssh(&user, "true").code, 0);
    pool.run_as_user("gdel", &[&jobs[1].to_string()]);
    pool.wait_state(jobs[1], Cancelled);
    assert_eq!(quiet.ssh(&user, "true").code, 0, "{}", quiet.log());
    pool.run_as_user("gdel", &[&jobs[0].to_string()]);
    pool.wait_idle("node1");
    let open = Sshd::beside(&pool, "action_no_jobs=ignore").unwrap();
    let said = open.ssh(&user, "cat /proc/self/cgroup");
    assert!(said.code == 0 && !said.out.contains("/run_"), "{said:?}");
    let slip = Sshd::beside(&pool, "action_no_job=ignore").unwrap();
    assert_ne!(slip.ssh(&user, "true").code, 0);
    assert_eq!(slip.ssh("root", "true").code, 0, "{}", slip.log());
}

/// Asks gpud about logins, as the module does.
fn ask(pool: &Pool, question: &str) -> String {
    format!(
        "curl -s --unix-socket /run/gpupool/{}/node1/gpud.sock http://gpud/node/login -d '{question}'",
        pool.tag()
    )
}

#[test]
fn gpud_moves_only_the_process_that_asks_and_only_for_root_outside_of_jobs() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    let uid = pool.person().uid;
    let job = pool.run_as_user("gsub", &["--wrap", "sleep 1000"]).id();
    pool.wait_state(job, Running);
    let enter = format!("{{\"uid\":{uid},\"enter\":true}}");
    let of_user = pool.run_as_user("/bin/sh", &["-c", &ask(&pool, &enter)]);
    assert!(
        of_user.out.contains("only root asks about logins"),
        "{of_user:?}"
    );
    // No process can be named.
    let other = format!("{{\"uid\":{uid},\"enter\":true,\"pid\":1}}");
    let named = pool.run_shell(&ask(&pool, &other));
    assert!(named.out.contains("unknown field `pid`"), "{named:?}");
    assert!(!cgroups_of("1").contains("/run_"));
    // A job of root leaves its cgroup for no other one.
    let line = format!("{}; cat /proc/self/cgroup", ask(&pool, &enter));
    let of_root = pool.gsub(&["-o", "out", "--wrap", &line]);
    pool.wait_state(of_root, Completed);
    let said = pool.file("out");
    assert!(
        said.contains("is in a job itself") && said.contains(&job_of(&pool, of_root)),
        "{said}"
    );
    // And what is asked well is done, to the process that asks: curl itself.
    let asked = pool.run_shell(&format!("{}; cat /proc/self/cgroup", ask(&pool, &enter)));
    assert!(
        asked.out.contains("\"answer\":\"moved\"") && !asked.out.contains("/run_"),
        "{asked:?}"
    );
    let nonsense = pool.run_shell(&ask(&pool, &"x".repeat(10_000)));
    assert!(
        nonsense.out.contains("more than 4096 bytes"),
        "{nonsense:?}"
    );
    pool.check();
}

#[test]
fn two_hundred_sessions_at_once_are_all_in_the_job_and_end_with_it() {
    let Some((pool, sshd)) = node_with_sshd("none") else {
        return;
    };
    let user = pool.person().name.clone();
    let job = pool.run_as_user("gsub", &["--wrap", "sleep 1000"]).id();
    pool.wait_state(job, Running);
    let sessions: Vec<LoginSession> = std::thread::scope(|scope| {
        let open: Vec<_> = (0..200)
            .map(|_| scope.spawn(|| sshd.open(&user, STAYS)))
            .collect();
        open.into_iter().map(|one| one.join().unwrap()).collect()
    });
    for session in &sessions {
        assert!(
            cgroups_of(&session.first).contains(&job_of(&pool, job)),
            "{:?}",
            session.first
        );
    }
    pool.run_as_user("gdel", &[&job.to_string()]);
    sessions
        .into_iter()
        .for_each(|session| ends(&pool, session));
    pool.wait_idle("node1");
    assert_eq!(living(&pool, job), Vec::<i32>::new());
}

#[test]
fn a_session_that_comes_as_its_job_ends_is_refused_or_ends_with_it() {
    let Some((pool, sshd)) = node_with_sshd("none") else {
        return;
    };
    let user = pool.person().name.clone();
    let (mut came, mut refused) = (0, 0);
    for round in 0..10 {
        let script = format!("sleep 0.{}", 2 + round % 5);
        let job = pool.run_as_user("gsub", &["--wrap", &script]).id();
        pool.wait_until("it has begun", || {
            pool.job(job).state != gmodel::JobState::Pending
        });
        let mut clients: Vec<Child> = (0..6)
            .map(|_| {
                let mut command = sshd.command(&user, "echo in; exec sleep 1000");
                let client = command.stdout(Stdio::piped()).spawn().unwrap();
                std::thread::sleep(Duration::from_millis(60));
                client
            })
            .collect();
        pool.wait_state(job, Completed);
        for client in &mut clients {
            pool.wait_until("each session ends", || client.try_wait().unwrap().is_some());
        }
        for client in clients {
            match client.wait_with_output().unwrap().stdout.is_empty() {
                true => refused += 1,
                false => came += 1,
            }
        }
        assert_eq!(living(&pool, job), Vec::<i32>::new());
    }
    pool.wait_idle("node1");
    assert_eq!(came + refused, 60);
    assert!(refused > 0, "the last ones come too late");
    pool.check();
}
