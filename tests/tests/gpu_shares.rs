//! GPU shares: equal halves of one user run on one GPU behind an MPS daemon that bounds them; no other user's do. Nothing is
//! left behind, whatever is killed.

use gmodel::JobState::{Completed, Pending, Running};
use gpupool_tests::pool::{Pool, is_alive, kill_process};
use serde_json::Value;

const WAIT: &str = "until [ -e stop ]; do sleep 0.1; done";
/// What a job sees of MPS: the directory of its sockets, whether it can reach the daemon, and whether it may change it.
const SEES: &str = "echo $CUDA_MPS_PIPE_DIRECTORY; [ -S $CUDA_MPS_PIPE_DIRECTORY/control ] && echo reached; \
                    touch $CUDA_MPS_PIPE_DIRECTORY/mine 2>/dev/null || echo closed";

/// A node with one partition, which shares GPUs so.
fn pool(gpus: &str, sharing: &str) -> Option<Pool> {
    let pool = Pool::up(1, gpus)?;
    share(&pool, sharing);
    pool.reconfigure("node1", "gpu_watch_secs = 1");
    pool.wait_idle("node1");
    Some(pool)
}

fn share(pool: &Pool, sharing: &str) {
    let file = pool.dir.join("gpuctld/partitions.d/main.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let others: Vec<&str> = text
        .lines()
        .filter(|line| !line.starts_with("gpu_sharing"))
        .collect();
    std::fs::write(
        &file,
        format!("{}\ngpu_sharing = {sharing:?}\n", others.join("\n")),
    )
    .unwrap();
    let said = pool.run("gadm", &["reload"]);
    assert_eq!(said.code, 0, "{said:?}");
}

/// A job of the ordinary user with a part of a GPU. It says `up` first.
fn submit(pool: &Pool, part: &str, script: &str) -> u64 {
    pool.run_as_user(
        "gsub",
        &[
            "--gpus",
            part,
            "-o",
            "%j.txt",
            "--open-mode",
            "append",
            "--wrap",
            &format!("echo up; {script}"),
        ],
    )
    .id()
}

/// Waits for its first line, in so many attempts.
fn wait_up(pool: &Pool, id: u64, attempts: usize) {
    let ups = || {
        std::fs::read_to_string(pool.work.join(format!("{id}.txt")))
            .map_or(0, |text| text.lines().filter(|line| *line == "up").count())
    };
    pool.wait_until(&format!("job {id} has begun {attempts} times"), || {
        ups() >= attempts
    });
}

/// The compute mode of a GPU of node1, as the simulated driver has it.
fn mode(pool: &Pool, gpu: usize) -> String {
    let text = std::fs::read(pool.dir.join("node1/nvml/state.json")).unwrap();
    let state = serde_json::from_slice::<Value>(&text).unwrap();
    state["gpus"][gpu]["compute_mode"]
        .as_str()
        .unwrap_or("default")
        .to_owned()
}

fn uuid(pool: &Pool, gpu: u32) -> String {
    pool.node("node1")
        .gpus
        .into_iter()
        .find(|one| one.index == gpu)
        .unwrap()
        .uuid
}

/// What the simulated MPS daemon of a GPU was told; none: there is no such daemon.
fn mps(pool: &Pool, gpu: u32) -> Option<Value> {
    let path = pool
        .dir
        .join(format!("node1/nvml/mps/{}.json", uuid(pool, gpu)));
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}

/// Nothing of a share is left: no daemon, no cgroup, no record, and the GPU in its usual mode.
fn is_given_back(pool: &Pool, gpu: u32) -> bool {
    let record = pool
        .dir
        .join(format!("node1/spool/gpu-shares/{}.json", uuid(pool, gpu)));
    mode(pool, gpu as usize) == "default" && !record.exists() && daemons(pool).is_empty()
}

/// Simulated daemons and servers of this pool.
fn daemons(pool: &Pool) -> Vec<i32> {
    let dir = pool.dir.join("node1/nvml/mps");
    let files = std::fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.path().extension().is_some_and(|e| e == "json"));
    let known = files.filter_map(|entry| {
        serde_json::from_slice::<Value>(&std::fs::read(entry.path()).ok()?).ok()
    });
    let pids = known.flat_map(|known| {
        let servers = known["servers"].as_array().cloned().unwrap_or_default();
        servers
            .into_iter()
            .map(|server| server["pid"].clone())
            .chain([known["daemon"].clone()])
            .collect::<Vec<_>>()
    });
    pids.filter_map(|pid| Some(pid.as_i64()? as i32))
        .filter(|pid| is_alive(*pid))
        .collect()
}

#[test]
fn two_halves_of_one_user_run_on_one_gpu_behind_caps_and_anothers_half_waits_with_the_reason() {
    let Some(pool) = pool("h100:1", "mps") else {
        return;
    };
    let script = format!("{SEES}; echo $GSUB_GPU_UUIDS; echo $CUDA_VISIBLE_DEVICES; {WAIT}");
    let (one, two) = (submit(&pool, "0.5", &script), submit(&pool, "0.5", &script));
    [one, two].iter().for_each(|id| wait_up(&pool, *id, 1));
    assert_eq!(mode(&pool, 0), "exclusive-process");
    let known = mps(&pool, 0).expect("a daemon stands");
    assert_eq!(
        (
            known["uid"].as_u64(),
            known["percent"].as_f64(),
            known["memory"]["0"].as_str()
        ),
        (Some(0), Some(50.0), Some("40779M"))
    );
    let server = &known["servers"][0];
    assert_eq!(
        (server["uid"].as_u64(), server["percent"].as_f64()),
        (Some(u64::from(pool.person().uid)), Some(50.0)),
        "{known}"
    );
    // Root is another user than the GPU's tenant.
    let other = pool.gsub(&["--gpus", "0.5", "--wrap", "true"]);
    let quarter = submit(&pool, "0.25", "true");
    pool.wait_until("the other says why it waits", || {
        pool.job(other).reason_text.contains("0.5 of one GPU")
    });
    assert_eq!(
        (pool.job(other).state, pool.job(quarter).state),
        (Pending, Pending)
    );
    pool.check();
    let why = pool.run("gq", &["--why", &other.to_string()]);
    assert!(why.out.contains("0.5 of one GPU"), "{why:?}");
    pool.write("stop", "");
    for id in [one, two] {
        pool.wait_state(id, Completed);
        let (seen, uuid) = (pool.file(&format!("{id}.txt")), uuid(&pool, 0));
        let pipe = known["pipe"].as_str().unwrap();
        assert_eq!(
            seen.lines().collect::<Vec<_>>(),
            ["up", pipe, "reached", "closed", uuid.as_str(), "0"]
        );
    }
    // Then the others get their turn, one after the other, and all is given back.
    [other, quarter]
        .iter()
        .for_each(|id| drop(pool.wait_state(*id, Completed)));
    pool.wait_until("MPS is gone", || is_given_back(&pool, 0));
    let text = pool.run(
        "gacct",
        &["-j", &one.to_string(), "-n", "-P", "-o", "AllocTRES"],
    );
    assert!(text.out.contains("gres/gpu=0.5"), "{text:?}");
}

#[test]
fn room_that_another_users_shares_leave_is_named() {
    let Some(pool) = pool("h100:1", "mps") else {
        return;
    };
    let one = submit(&pool, "0.5", WAIT);
    pool.wait_state(one, Running);
    let other = pool.gsub(&["--gpus", "0.5", "--wrap", "true"]);
    let words = "1 GPU of node1 with room for it holds shares of another user";
    pool.wait_until("the reason names it", || {
        pool.job(other).reason_text.contains(words)
    });
    let why = pool.run("gq", &["--why", &other.to_string()]);
    assert!(
        why.out
            .replace('\n', " ")
            .contains("shares of another user"),
        "{why:?}"
    );
    pool.write("stop", "");
    pool.wait_state(other, Completed);
}

#[test]
fn where_sharing_is_off_a_part_is_refused_with_what_would_work_and_uncapped_takes_any_job() {
    let Some(pool) = pool("h100:1", "off") else {
        return;
    };
    let refused = pool.run_as_user("gsub", &["--gpus", "0.5", "--wrap", "true"]);
    refused.fails_with(
        1,
        "partition \"main\" gives GPUs whole (gpu_sharing = \"off\"). Ask for whole GPUs.",
    );
    pool.run_as_user("gsub", &["--dry-run", "--gpus", "0.5", "--wrap", "true"])
        .fails_with(1, "gives GPUs whole");
    share(&pool, "uncapped");
    let script = format!("echo pipe=$CUDA_MPS_PIPE_DIRECTORY; {WAIT}");
    let (one, two) = (
        submit(&pool, "0.5", &script),
        pool.gsub(&[
            "--gpus",
            "0.3",
            "-o",
            "%j.txt",
            "--wrap",
            &format!("echo up; {script}"),
        ]),
    );
    [one, two].iter().for_each(|id| wait_up(&pool, *id, 1));
    assert_eq!(
        (mode(&pool, 0), mps(&pool, 0)),
        ("default".into(), None),
        "nothing holds anybody to a part"
    );
    pool.write("stop", "");
    for id in [one, two] {
        pool.wait_state(id, Completed);
        assert_eq!(pool.file(&format!("{id}.txt")), "up\npipe=\n");
    }
}

#[test]
fn a_daemon_that_dies_ends_its_jobs_as_the_nodes_fault_and_the_gpu_goes_on() {
    let Some(pool) = pool("h100:1", "mps") else {
        return;
    };
    let ids = [(); 2].map(|()| submit(&pool, "0.5", WAIT));
    ids.iter().for_each(|id| wait_up(&pool, *id, 1));
    let daemon = mps(&pool, 0).unwrap()["daemon"].as_i64().unwrap() as i32;
    kill_process(daemon);
    // Both are started anew, behind a daemon of their own.
    for id in ids {
        wait_up(&pool, id, 2);
        let first = &pool.attempts(id)[0];
        assert!(format!("{first:?}").contains("MPS daemon"), "{first:?}");
    }
    let after = mps(&pool, 0).unwrap()["daemon"].as_i64().unwrap() as i32;
    assert!(after != daemon && mode(&pool, 0) == "exclusive-process");
    pool.write("stop", "");
    ids.iter()
        .for_each(|id| drop(pool.wait_state(*id, Completed)));
    pool.wait_until("MPS is gone", || is_given_back(&pool, 0));
    pool.wait_idle("node1");
}

#[test]
fn a_shared_gpu_that_is_lost_ends_its_jobs_and_is_given_back_in_its_usual_mode_when_it_returns() {
    let Some(pool) = pool("h100:1", "mps") else {
        return;
    };
    let one = submit(&pool, "0.5", WAIT);
    wait_up(&pool, one, 1);
    assert_eq!(pool.sandbox(&["fault", "node1", "gpu0", "lost"]).code, 0);
    pool.wait_until("its run has ended", || pool.job(one).state == Pending);
    assert_eq!(
        mode(&pool, 0),
        "exclusive-process",
        "nobody can change it now"
    );
    assert_eq!(pool.sandbox(&["fault", "node1", "gpu0", "clear"]).code, 0);
    pool.wait_until("MPS is gone", || is_given_back(&pool, 0));
    pool.run("gdel", &[&one.to_string()]);
    pool.check();
}

#[test]
fn a_killed_gpud_finds_its_shares_again_and_takes_back_unused_ones() {
    let Some(pool) = pool("h100:2", "mps") else {
        return;
    };
    // Killed while a share runs: the daemon goes on, and the next half joins it.
    let one = submit(&pool, "0.5", WAIT);
    wait_up(&pool, one, 1);
    let daemon = mps(&pool, 0).unwrap()["daemon"].clone();
    pool.kill("node1");
    assert!(is_alive(daemon.as_i64().unwrap() as i32));
    pool.start("node1");
    let two = submit(&pool, "0.5", WAIT);
    wait_up(&pool, two, 1);
    assert_eq!(mps(&pool, 0).unwrap()["daemon"], daemon);
    // Killed, and the runs end without it.
    pool.kill("node1");
    pool.write("stop", "");
    pool.start("node1");
    [one, two]
        .iter()
        .for_each(|id| drop(pool.wait_state(*id, Completed)));
    pool.wait_until("MPS is gone", || is_given_back(&pool, 0));
    // The daemon dies unobserved.
    std::fs::remove_file(pool.work.join("stop")).unwrap();
    let three = submit(&pool, "0.5", WAIT);
    wait_up(&pool, three, 1);
    pool.kill("node1");
    daemons(&pool).into_iter().for_each(kill_process);
    pool.start("node1");
    wait_up(&pool, three, 2);
    pool.write("stop", "");
    pool.wait_state(three, Completed);
    pool.wait_until("MPS is gone", || is_given_back(&pool, 0));
    pool.wait_idle("node1");
    pool.check();
}

/// The steps on the way there and back, one by one: killed at each, the next life goes on or takes back.
#[test]
fn gpud_killed_at_each_step_leaves_nothing_behind_and_runs_the_job() {
    let Some(pool) = pool("h100:1", "mps") else {
        return;
    };
    let state = pool.dir.join("node1/nvml/mps");
    std::fs::create_dir_all(&state).unwrap();
    let words = [
        "-d",
        "started",
        "set_default_active_thread_percentage",
        "set_default_device_pinned_mem_limit",
        "start_server",
        "quit",
    ];
    for word in words {
        let (hold, held) = (state.join(format!("hold-{word}")), state.join("held"));
        std::fs::write(&hold, "").unwrap();
        let id = submit(&pool, "0.5", "true");
        pool.wait_until(&format!("MPS is held at {word}"), || held.exists());
        assert_eq!(mode(&pool, 0), "exclusive-process", "at {word}");
        pool.kill("node1");
        std::fs::remove_file(&hold).unwrap();
        std::fs::remove_file(&held).unwrap();
        pool.start("node1");
        pool.wait_state_through(id, Completed);
        pool.wait_until(&format!("MPS is gone after {word}"), || {
            is_given_back(&pool, 0)
        });
        assert_eq!(
            pool.attempts(id).len(),
            1,
            "it was not started, or had ended: {word}"
        );
    }
    pool.wait_idle("node1");
    pool.check();
}

/// With no run left to clean up behind it, the next life finds the GPU by its record alone.
#[test]
fn a_share_whose_runs_are_gone_is_taken_back_at_the_next_start() {
    let Some(pool) = pool("h100:1", "mps") else {
        return;
    };
    let one = submit(&pool, "0.5", WAIT);
    wait_up(&pool, one, 1);
    // What the controller has heard of it is lost with the spool; what it has not is sent again.
    pool.wait_until("the controller has heard of it", || {
        pool.run("gq", &["--log", &one.to_string()])
            .out
            .contains("running on node1")
    });
    let daemons = daemons(&pool);
    pool.kill("node1");
    let spool = pool.dir.join("node1/spool/runs");
    pool.processes_of("node1", &format!("{one}-1"))
        .into_iter()
        .for_each(kill_process);
    kill_process(pool.supervisor("node1", &format!("{one}-1")));
    std::fs::remove_dir_all(spool.join(format!("{one}-1"))).unwrap();
    assert_eq!(mode(&pool, 0), "exclusive-process");
    pool.start("node1");
    pool.wait_until("MPS is gone", || {
        is_given_back(&pool, 0) && !daemons.iter().any(|pid| is_alive(*pid))
    });
    pool.run("gdel", &[&one.to_string()]);
}

/// Wherever gpud is killed while shares come and go, in the end all jobs have run and nothing is left.
#[test]
fn shares_come_and_go_while_gpud_is_killed_again_and_again() {
    let Some(pool) = pool("h100:2", "mps") else {
        return;
    };
    let ids: Vec<u64> = (0..8)
        .map(|at| submit(&pool, if at % 3 == 0 { "0.5" } else { "0.25" }, "sleep 0.2"))
        .collect();
    for pause_ms in [10, 60, 130, 220, 350, 30, 170, 90] {
        std::thread::sleep(std::time::Duration::from_millis(pause_ms));
        pool.kill("node1");
        pool.start("node1");
    }
    ids.iter()
        .for_each(|id| drop(pool.wait_state_through(*id, Completed)));
    pool.wait_until("MPS is gone", || {
        is_given_back(&pool, 0) && is_given_back(&pool, 1)
    });
    pool.wait_idle("node1");
    pool.check();
}

#[test]
fn without_mps_a_node_says_why_and_no_share_is_offered() {
    let Some(pool) = pool("h100:1", "mps") else {
        return;
    };
    std::fs::remove_file(pool.dir.join("node1/nvml/nvidia-cuda-mps-control")).unwrap();
    pool.reconfigure("node1", "");
    pool.wait_until("the node says why", || {
        pool.node("node1")
            .no_mps
            .contains("nvidia-cuda-mps-control: No such file")
    });
    let said = pool.run("gnodes", &["node1"]);
    assert!(said.out.contains("It comes with the driver"), "{said:?}");
    pool.run_as_user("gsub", &["--gpus", "0.5", "--wrap", "true"])
        .fails_with(1, "0 of the 1 GPUs in partition \"main\" can be shared");
}

#[test]
fn a_daemon_that_does_not_start_leaves_the_gpu_as_it_was() {
    let Some(pool) = pool("h100:1", "mps") else {
        return;
    };
    std::fs::create_dir_all(pool.dir.join("node1/nvml/mps")).unwrap();
    let refuses = pool.dir.join("node1/nvml/mps/refuses");
    std::fs::write(&refuses, "no CUDA-capable device is detected").unwrap();
    let one = submit(&pool, "0.5", "true");
    pool.wait_until("an attempt failed", || {
        pool.attempts(one)
            .first()
            .is_some_and(|run| format!("{run:?}").contains("no CUDA-capable device"))
    });
    std::fs::remove_file(&refuses).unwrap();
    // The job stays away from the node for a minute, or until it is resumed.
    let said = pool.run("gadm", &["node", "resume", "node1"]);
    assert_eq!(said.code, 0, "{said:?}");
    pool.wait_state_through(one, Completed);
    pool.wait_until("MPS is gone", || is_given_back(&pool, 0));
}
