//! GPU memory between tenants: overwritten and verified before the next job, and given to no job without that.

use gmodel::JobState::Completed;
use gpupool_tests::pool::Pool;

fn pool(gpus: &str) -> Option<Pool> {
    let pool = Pool::up(1, gpus)?;
    let file = pool.dir.join("gpuctld/partitions.d/main.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, format!("{text}\ngpu_scrub = true\n")).unwrap();
    let said = pool.run("gadm", &["reload"]);
    assert_eq!(said.code, 0, "{said:?}");
    pool.reconfigure("node1", "gpu_watch_secs = 1\n");
    pool.wait_idle("node1");
    Some(pool)
}

fn fault(pool: &Pool, words: &[&str]) {
    let said = pool.sandbox(&[&["fault", "node1"], words].concat());
    assert_eq!(said.code, 0, "{said:?}");
}

fn faults(pool: &Pool) -> Vec<(u32, String)> {
    let gpus = pool.node("node1").gpus;
    gpus.into_iter()
        .filter(|gpu| !gpu.fault.is_empty())
        .map(|gpu| (gpu.index, gpu.fault))
        .collect()
}

fn log(pool: &Pool, job: u64) -> String {
    pool.run("gq", &["--log", &job.to_string()]).out
}

/// Runs a job on so many GPUs, until they are free again.
fn run(pool: &Pool, gpus: &str) -> u64 {
    let job = pool.gsub(&["--gpus", gpus, "--wrap", "true"]);
    pool.wait_state(job, Completed);
    pool.wait_until("its GPUs are taken off it", || {
        log(pool, job).contains("scrubbed")
    });
    job
}

#[test]
fn memory_is_overwritten_after_a_run_and_the_record_says_so() {
    let Some(pool) = pool("h100:2") else { return };
    let job = run(&pool, "2");
    assert!(
        log(&pool, job).contains("GPU memory scrubbed: 64 KiB of zeros; 64 KiB of zeros; in "),
        "{}",
        log(&pool, job)
    );
    assert!(faults(&pool).is_empty());
    // What has no GPU has nothing to scrub.
    let none = pool.gsub(&["--wrap", "true"]);
    pool.wait_state(none, Completed);
    pool.wait_idle("node1");
    assert!(!log(&pool, none).contains("scrubbed"));
    pool.check();
    pool.down();
}

#[test]
fn a_gpu_whose_memory_does_not_come_clean_is_kept_and_scrubbed_again() {
    let Some(pool) = pool("h100:2") else { return };
    fault(&pool, &["gpu0", "check", "fails"]);
    let job = run(&pool, "2");
    pool.wait_until("one GPU is out", || faults(&pool).len() == 1);
    let (_, words) = faults(&pool).remove(0);
    assert!(
        words.contains("not clean: after run")
            && words.contains("memory was not scrubbed: 2 times a word was wrong"),
        "{words}"
    );
    assert!(
        log(&pool, job).contains("is not given out: its memory was not scrubbed"),
        "{}",
        log(&pool, job)
    );
    // Its neighbour works on, and another daemon knows of it.
    run(&pool, "1");
    pool.kill("node1");
    pool.start("node1");
    pool.wait_idle("node1");
    assert_eq!(faults(&pool).len(), 1);
    fault(&pool, &["gpu0", "check", "none"]);
    pool.wait_until("it was tried again", || faults(&pool).is_empty());
    run(&pool, "2");
    pool.down();
}

#[test]
fn a_daemon_that_dies_while_memory_is_overwritten_does_it_again_before_the_gpu_is_given_out() {
    let Some(pool) = pool("h100:1") else { return };
    fault(&pool, &["gpu0", "check-takes", "600000"]);
    let job = pool.gsub(&["--gpus", "1", "--wrap", "true"]);
    pool.wait_until("it is scrubbed", || !scrubs(&pool).is_empty());
    let next = pool.gsub(&["--gpus", "1", "--wrap", "true"]);
    pool.kill("node1");
    pool.start("node1");
    pool.wait_until("it is scrubbed again", || !scrubs(&pool).is_empty());
    assert!(
        pool.job(next).start_time.is_none(),
        "the GPU is not given out meanwhile"
    );
    fault(&pool, &["gpu0", "check-takes", "0"]);
    // One that is in the driver by now would sleep on there. Its death is no success: then the GPU waits for the next try.
    scrubs(&pool)
        .into_iter()
        .for_each(gpupool_tests::pool::kill_process);
    pool.wait_state(next, Completed);
    let words = log(&pool, job);
    let outcome = words.contains("zeros; in")
        || words.contains("was not scrubbed: gcheck was ended by signal 9");
    assert!(
        outcome && words.matches("GPU memory scrubbed").count() == 1,
        "{words}"
    );
    pool.down();
}

#[test]
fn slices_are_overwritten_too() {
    let Some(pool) = pool("h100:1") else { return };
    fault(&pool, &["gpu0", "mig", "3g.40gb,3g.40gb"]);
    pool.wait_until("slices are there", || {
        pool.node("node1")
            .gpus
            .iter()
            .filter(|gpu| !gpu.profile.is_empty())
            .count()
            == 2
    });
    let job = run(&pool, "3g.40gb");
    assert!(
        log(&pool, job).contains("GPU memory scrubbed: 64 KiB of zeros; in "),
        "{}",
        log(&pool, job)
    );
    pool.check();
    pool.down();
}

/// Processes of this pool that overwrite memory.
fn scrubs(pool: &Pool) -> Vec<i32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let is_ours = |pid: &i32| {
        let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let cgroup = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        words.ends_with(b"gcheck\0scrub\0") && cgroup.contains(pool.tag())
    };
    pids.filter(is_ours).collect()
}
