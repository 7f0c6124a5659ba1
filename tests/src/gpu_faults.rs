//! Simulated GPUs that fail: a node of eight, its faults, its slots.

use crate::pool::{Pool, say};

/// Eight GPUs that are looked at every second.
pub fn pool_of_eight() -> Option<Pool> {
    let pool = Pool::up(1, "h100:8")?;
    pool.reconfigure("node1", "gpu_watch_secs = 1\n");
    pool.wait_idle("node1");
    Some(pool)
}

/// What stands against each GPU of node1 that has a fault: (index, words).
pub fn faults(pool: &Pool) -> Vec<(u32, String)> {
    let gpus = pool.node("node1").gpus;
    gpus.into_iter()
        .filter(|gpu| !gpu.fault.is_empty())
        .map(|gpu| (gpu.index, gpu.fault))
        .collect()
}

/// Injects a fault into node1.
pub fn fault(pool: &Pool, words: &[&str]) {
    let said = pool.sandbox(&[&["fault", "node1"], words].concat());
    assert_eq!(said.code, 0, "{said:?}");
}

/// `gpuN` of a UUID, as the simulator counts.
pub fn slot_of(pool: &Pool, uuid: &str) -> String {
    let shown = say(pool
        .command("nvml-sim")
        .args(["show", "--json", "--dir"])
        .arg(pool.dir.join("node1/nvml")));
    let state: serde_json::Value = serde_json::from_str(&shown.out).unwrap();
    let gpus = state["gpus"].as_array().unwrap();
    format!(
        "gpu{}",
        gpus.iter().position(|gpu| gpu["uuid"] == uuid).unwrap()
    )
}
