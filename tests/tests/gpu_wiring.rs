//! How GPUs are joined: found by NVML, shown, and what a job is given by it.

use gmodel::JobState::{Completed, Running};
use gpupool_tests::pool::Pool;

const WAIT: &str = "until [ -e stop ]; do sleep 0.1; done";

/// How the GPUs of a job are joined, as `gq JOB` says.
fn links(pool: &Pool, id: u64) -> String {
    let shown = pool.run("gq", &[&id.to_string()]).out;
    shown.lines().find_map(|line| line.trim().strip_prefix("GPULinks=")).unwrap_or_default().to_owned()
}

#[test]
fn a_job_gets_the_gpus_that_are_joined_best_and_a_broken_link_counts_at_once() {
    // Eight V100 as in a DGX-1: a cube mesh of one and two links.
    let Some(pool) = Pool::up(1, "v100:8") else { return };
    let shown = pool.run("gnodes", &["node1"]).out;
    let rows: Vec<&str> = shown.lines().skip_while(|line| !line.contains("Links")).collect();
    assert!(rows[0].split_whitespace().eq(["Links", "GPU0", "GPU1", "GPU2", "GPU3", "GPU4", "GPU5", "GPU6", "GPU7", "NUMA"]), "{shown}");
    assert!(rows[1].split_whitespace().eq(["GPU0", "X", "NV1", "NV1", "NV2", "NV2", "SYS", "SYS", "SYS", "0"]), "{shown}");

    let four = pool.gsub(&["--gpus", "4", "--wrap", WAIT]);
    pool.wait_state(four, Running);
    assert_eq!(links(&pool, four), "node1:NV1", "four that are all joined, of which there are two sets");
    let two = pool.gsub(&["--gpus", "2", "--wrap", WAIT]);
    pool.wait_state(two, Running);
    assert_eq!(links(&pool, two), "node1:NV2");
    let one = pool.gsub(&["--gpus", "1", "--wrap", WAIT]);
    pool.wait_state(one, Running);
    assert_eq!(links(&pool, one), "");
    pool.write("stop", "");
    for id in [four, two, one] {
        pool.wait_state(id, Completed);
    }

    // All links of one GPU are down: two others are taken, and it is shown.
    for link in 0..6 {
        let said = pool.sandbox(&["fault", "node1", "gpu0", "nvlink-down", &link.to_string()]);
        assert_eq!(said.code, 0, "{said:?}");
    }
    let row = |pool: &Pool| pool.run("gnodes", &["node1"]).out.lines().find(|line| line.trim().starts_with("GPU0 ")).unwrap_or_default().to_owned();
    pool.wait_until("gnodes shows that no NVLink leads to it", || !row(&pool).contains("NV"));
    let id = pool.gsub(&["--gpus", "2", "--wrap", "true"]);
    pool.wait_state(id, Completed);
    pool.check();
    pool.down();
}
