//! Checks of GPUs in idle gaps, through the whole pool: what computes wrong goes out with its evidence, a job that comes goes first,
//! and nothing is lost or done twice when a daemon is killed meanwhile.

use gmodel::JobState::{Completed, Pending, Running};
use gpupool_tests::pool::{CommandOutput, Pool};
use std::os::unix::fs::PermissionsExt;
use std::time::Instant;

const WAIT: &str = "until [ -e stop ]; do sleep 0.1; done";

/// A pool of one node; the simulator's program checks its GPUs as soon as they are idle. `more`: lines of [diagnostics].
fn pool_with_checks(faults: &[&[&str]], more: &str) -> Option<Pool> {
    let pool = Pool::up(1, "h100:8")?;
    pool.wait_idle("node1");
    for words in faults {
        fault(&pool, words);
    }
    let program = pool.dir.join("node1/state/gpu-check");
    let script = format!(
        "#!/bin/sh\nexec '{}' check --dir '{}' $GPUPOOL_GPU\n",
        program_of("nvml-sim"),
        pool.dir.join("node1/nvml").display()
    );
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    let path = pool.config("gpuctld");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(
        &path,
        format!(
            "{text}\n[diagnostics]\nprogram = \"{}\"\n{more}\n",
            program.display()
        ),
    )
    .unwrap();
    let said = pool.run("gadm", &["reload"]);
    assert_eq!(said.code, 0, "{said:?}");
    Some(pool)
}

fn program_of(name: &str) -> String {
    gpupool_tests::pool::programs()
        .join(name)
        .display()
        .to_string()
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

/// What `gnodes --health` has of each GPU.
fn health(pool: &Pool) -> Vec<serde_json::Value> {
    let said = pool.run("gnodes", &["--health", "--json"]);
    let list: serde_json::Value =
        serde_json::from_str(&said.out).unwrap_or_else(|e| panic!("{e}: {said:?}"));
    list["gpus"].as_array().unwrap().clone()
}

/// Index of the GPU under check.
fn under_check(pool: &Pool) -> Option<u64> {
    health(pool)
        .iter()
        .find(|gpu| gpu["ordered"] == "check")
        .map(|gpu| gpu["index"].as_u64().unwrap())
}

fn checked(pool: &Pool) -> usize {
    health(pool)
        .iter()
        .filter(|gpu| gpu["checked"].is_string())
        .count()
}

fn history(pool: &Pool, index: u64) -> CommandOutput {
    pool.run("gadm", &["gpu", "history", "node1", &index.to_string()])
}

#[test]
fn a_gpu_that_computes_wrong_is_found_in_idle_gaps_and_the_others_work_on() {
    let Some(pool) = pool_with_checks(&[&["gpu3", "check", "wrong"]], "idle_after = 0") else {
        return;
    };
    pool.wait_until("one GPU is out", || faults(&pool).len() == 1);
    pool.wait_until("all are checked", || checked(&pool) == 8);
    let (index, words) = faults(&pool).remove(0);
    assert!(
        words.starts_with("quarantined: check arith, the second time: checksum ")
            && words.contains("7 of 8 GPUs of type h100 have"),
        "{words}"
    );
    let said = history(&pool, index.into());
    let kinds: Vec<&str> = said
        .out
        .lines()
        .skip(1)
        .filter_map(|line| line.split_whitespace().nth(2))
        .collect();
    assert_eq!(
        kinds,
        [
            "appeared", "checked", "odd", "checked", "odd", "ordered", "sick"
        ],
        "{said:?}"
    );
    assert!(
        said.out.contains("arith ")
            && said.out.contains("pcie 25.")
            && said.out.contains("quarantined by the checks"),
        "{said:?}"
    );
    assert!(
        pool.log("gpuctld").contains("check arith: checksum"),
        "the controller's log does not say it"
    );
    let eight = pool.gsub(&["--gpus", "8", "--wrap", "true"]);
    let seven = pool.gsub(&["--gpus", "7", "--wrap", "true"]);
    pool.wait_state(seven, Completed);
    assert_eq!(pool.job(eight).state, Pending);
    // Another controller knows what was found, and checks nothing again before its time.
    let before = health(&pool);
    pool.kill("gpuctld");
    pool.start("gpuctld");
    pool.wait_idle("node1");
    let times = |gpus: &[serde_json::Value]| {
        gpus.iter()
            .map(|gpu| gpu["checked"].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(times(&health(&pool)), times(&before));
    // Mended and returned it is like the others.
    fault(&pool, &["gpu3", "check", "none"]);
    let said = pool.run("gadm", &["gpu", "return", "node1", &index.to_string()]);
    assert_eq!(said.code, 0, "{said:?}");
    pool.wait_state(eight, Completed);
    let said = pool.run("gadm", &["gpu", "check", &format!("node1:{index}")]);
    assert!(
        said.code == 0 && said.out.contains("memory passed"),
        "{said:?}"
    );
    pool.check();
    pool.down();
}

#[test]
fn a_job_goes_before_a_check_and_a_check_comes_back_when_the_gpu_is_idle() {
    let slow: Vec<Vec<String>> = (0..8)
        .map(|at| vec![format!("gpu{at}"), "check-takes".into(), "600000".into()])
        .collect();
    let words: Vec<Vec<&str>> = slow
        .iter()
        .map(|words| words.iter().map(String::as_str).collect())
        .collect();
    let faults: Vec<&[&str]> = words.iter().map(Vec::as_slice).collect();
    let Some(pool) = pool_with_checks(&faults, "idle_after = 0\ntimeout_secs = 3600") else {
        return;
    };
    pool.wait_until("a GPU is checked", || under_check(&pool).is_some());
    let index = under_check(&pool).unwrap();
    let begun = Instant::now();
    let job = pool.gsub(&["--gpus", "8", "--wrap", WAIT]);
    pool.wait_state(job, Running);
    println!(
        "a job on all GPUs of the node runs {} ms after its submission, a check was under way",
        begun.elapsed().as_millis()
    );
    assert_eq!(under_check(&pool), None);
    let said = history(&pool, index);
    assert!(
        !said.out.contains("checked"),
        "nothing was found out: {said:?}"
    );
    pool.run("gadm", &["gpu", "check", "node1", "0"])
        .fails_with(1, "a job holds GPU");
    pool.write("stop", "");
    pool.wait_state(job, Completed);
    pool.wait_until("a GPU is checked again", || under_check(&pool).is_some());

    // The node's daemon dies during it: it is not done again for the same order.
    let index = under_check(&pool).unwrap();
    pool.kill("node1");
    pool.start("node1");
    pool.wait_until("the order is answered", || {
        history(&pool, index)
            .out
            .contains("gpud or its node ended during the check")
    });
    // The controller dies during the next: it stands, and what it finds is heard.
    pool.wait_until("another is checked", || {
        under_check(&pool).is_some_and(|other| other != index)
    });
    let index = under_check(&pool).unwrap();
    pool.kill("gpuctld");
    pool.start("gpuctld");
    pool.wait_idle("node1");
    assert_eq!(under_check(&pool), Some(index));
    pool.check();
    pool.down();
}

#[test]
fn a_program_that_hangs_on_one_gpu_takes_that_one_out_and_one_that_cannot_be_run_none() {
    let Some(pool) = pool_with_checks(
        &[&["gpu5", "check", "hang"]],
        "idle_after = 0\ntimeout_secs = 2",
    ) else {
        return;
    };
    pool.wait_until("one GPU is out", || faults(&pool).len() == 1);
    let (_, words) = faults(&pool).remove(0);
    assert!(words.contains("check program, the second time: did not end within 2 s; 7 of 8 GPUs of type h100 passed"), "{words}");
    let path = pool.dir.join("node1/state/gpu-check");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o777)).unwrap();
    let said = pool.run("gadm", &["gpu", "check", "node1:0"]);
    assert!(
        said.code == 1
            && said.out.contains("not run to its end")
            && said.out.contains("chmod go-w"),
        "{said:?}"
    );
    assert!(
        pool.run("gnodes", &["--health"])
            .out
            .contains("not checked: "),
        "whoever switched checks on sees that there are none"
    );
    assert_eq!(faults(&pool).len(), 1);
    let said = pool.run("gadm", &["gpu", "check", "node1:0", "--no-wait"]);
    assert!(
        said.code == 0 && said.err.contains("gadm gpu history"),
        "{said:?}"
    );
    pool.down();
}

/// A pool with GPUs that gpupool's own program checks.
fn pool_with_our_checks(faults: &[&[&str]], more: &str) -> Option<Pool> {
    nodes_with_our_checks(1, faults, more)
}

fn nodes_with_our_checks(nodes: u32, faults: &[&[&str]], more: &str) -> Option<Pool> {
    let pool = Pool::up(nodes, "h100:6")?;
    (1..=nodes).for_each(|node| pool.wait_idle(&format!("node{node}")));
    for words in faults {
        fault(&pool, words);
    }
    let path = pool.config("gpuctld");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(
        &path,
        format!("{text}\n[diagnostics]\nprogram = \"builtin\"\nidle_after = 0\n{more}\n"),
    )
    .unwrap();
    let said = pool.run("gadm", &["reload"]);
    assert_eq!(said.code, 0, "{said:?}");
    Some(pool)
}

#[test]
fn our_own_program_finds_a_gpu_that_computes_wrong_by_kernels_that_are_really_carried_out() {
    let Some(pool) = pool_with_our_checks(&[&["gpu2", "check", "wrong"]], "") else {
        return;
    };
    pool.wait_until("one GPU is out", || faults(&pool).len() == 1);
    pool.wait_until("all are checked", || checked(&pool) == 6);
    let (index, words) = faults(&pool).remove(0);
    assert!(
        words.starts_with("quarantined: check arith.")
            && words.contains("of 768 threads are wrong, the first is thread 37 of block 1"),
        "{words}"
    );
    let said = history(&pool, index.into());
    assert!(
        said.out.contains("memory passed, 64 KiB, patterns: 5")
            && said.out.contains("copy.to-gpu 53.557 GB/s"),
        "{said:?}"
    );
    // Its fence lets a check open its own GPU and no other.
    let said = pool.run("gadm", &["gpu", "check", "node1:0"]);
    assert!(
        said.code == 0 && said.out.contains("arith.fp64 "),
        "{said:?}"
    );
    pool.check();
    pool.down();
}

#[test]
fn a_driver_that_hangs_under_our_own_program_costs_one_gpu_and_delays_no_job() {
    let Some(pool) = pool_with_our_checks(
        &[&["gpu4", "check", "hang"]],
        "timeout_secs = 10\nchecks = [\"arith\"]",
    ) else {
        return;
    };
    pool.wait_until("it is under check", || {
        health(&pool).iter().any(|gpu| gpu["ordered"] == "check")
    });
    pool.wait_until("one GPU is out", || faults(&pool).len() == 1);
    let (_, words) = faults(&pool).remove(0);
    assert!(
        words.contains("check program, the second time: did not end within 10 s"),
        "{words}"
    );
    let five = pool.gsub(&["--gpus", "5", "--wrap", "true"]);
    pool.wait_state(five, Completed);
    pool.down();
}

#[test]
fn a_gpu_that_moves_bytes_half_as_fast_as_its_like_is_found_by_our_own_program() {
    let Some(pool) = pool_with_our_checks(&[&["gpu1", "check", "slow"]], "checks = [\"copy\"]")
    else {
        return;
    };
    pool.wait_until("one GPU is out", || faults(&pool).len() == 1);
    let (_, words) = faults(&pool).remove(0);
    assert!(
        words.starts_with("quarantined: check copy.")
            && words.contains("the median of 6 GPUs of type h100 is"),
        "{words}"
    );
    pool.down();
}

#[test]
fn a_gpu_whose_links_to_others_are_slow_is_found_and_those_at_their_other_ends_are_not() {
    let Some(pool) = nodes_with_our_checks(
        2,
        &[&["gpu1", "nvlink-slow"]],
        "checks = [\"copy\"]\nat_once = 2",
    ) else {
        return;
    };
    pool.wait_until("one GPU is out", || faults(&pool).len() == 1);
    let (index, words) = faults(&pool).remove(0);
    assert!(
        words.starts_with("quarantined: check copy.to-peer, the second time: to GPU-")
            && words.contains("of type h100 is"),
        "{words}"
    );
    let said = history(&pool, index.into());
    assert!(said.out.contains(" GB/s to GPU-"), "{said:?}");
    assert_eq!(index, 1, "and not one whose way leads there");
    pool.check();
    pool.down();
}
