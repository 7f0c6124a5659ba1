//! GPUs that change nodes, vanish for good, or share an index with a missing one.

use gmodel::JobState::{Completed, Running};
use gpupool_tests::gpu_faults::{fault, faults, pool_of_eight, slot_of};
use gpupool_tests::pool::{CommandOutput, Pool};

const WAIT: &str = "until [ -e stop ]; do sleep 0.1; done";

/// `gadm` as the operator.
fn gadm(pool: &Pool, words: &[&str]) -> CommandOutput {
    pool.run("gadm", words)
}

/// Swaps two boards of two hosts as hands would: each board is where the other was on the bus.
fn swap_boards(pool: &Pool, one: &str, other: &str, slot: usize) {
    let path = |node: &str| pool.dir.join(node).join("nvml/state.json");
    let read = |node: &str| {
        serde_json::from_slice::<serde_json::Value>(&std::fs::read(path(node)).unwrap()).unwrap()
    };
    let (mut first, mut second) = (read(one), read(other));
    let (mut a, mut b) = (first["gpus"][slot].take(), second["gpus"][slot].take());
    for place in ["minor", "pci_bus_id"] {
        std::mem::swap(&mut a[place], &mut b[place]);
    }
    (first["gpus"][slot], second["gpus"][slot]) = (b, a);
    for (node, state) in [(one, first), (other, second)] {
        let new = path(node).with_extension("new");
        std::fs::write(&new, state.to_string()).unwrap();
        std::fs::rename(&new, path(node)).unwrap();
    }
}

#[test]
fn a_gpu_that_is_put_into_another_node_is_out_there_too_and_its_old_node_says_where_it_is() {
    let Some(pool) = Pool::up(2, "h100:2") else {
        return;
    };
    for node in ["node1", "node2"] {
        pool.reconfigure(node, "gpu_watch_secs = 1\n");
        pool.wait_idle(node);
    }
    let uuid_of = |node: &str| {
        pool.node(node)
            .gpus
            .into_iter()
            .find(|gpu| gpu.index == 1 && gpu.present)
            .unwrap()
            .uuid
    };
    let (sick, sound) = (uuid_of("node1"), uuid_of("node2"));
    let said = gadm(
        &pool,
        &["gpu", "quarantine", "node1:1", "--reason", "fan noise"],
    );
    assert!(
        format!("{}{}", said.out, said.err).contains("is quarantined: fan noise"),
        "{said:?}"
    );
    swap_boards(&pool, "node1", "node2", 1);
    let there = |node: &str, uuid: &str| {
        pool.node(node)
            .gpus
            .into_iter()
            .find(|gpu| gpu.uuid == uuid && gpu.present)
    };
    pool.wait_until("it is out in its new node", || {
        there("node2", &sick)
            .is_some_and(|gpu| gpu.fault.contains("out of service when it left node1"))
    });
    pool.wait_until("the other came", || there("node1", &sound).is_some());
    assert_eq!(
        there("node1", &sound).unwrap().fault,
        "",
        "the one that came in its place is sound"
    );
    let shown = pool.run("gnodes", &["--health", "--json"]).out;
    let rows: serde_json::Value = serde_json::from_str(&shown).unwrap();
    let old = rows["gpus"]
        .as_array()
        .unwrap()
        .iter()
        .find(|row| row["node"] == "node1" && row["uuid"] == *sick)
        .unwrap();
    assert_eq!(
        (old["state"].as_str(), old["next"].as_str()),
        (Some("moved"), Some("it is in node2 now")),
        "{old}"
    );
    let listed = pool.run("gnodes", &[]).out;
    assert!(
        !listed.contains("missing"),
        "nobody looks for it in its old node: {listed}"
    );
    let history = gadm(&pool, &["gpu", "history", &sick]).out;
    assert!(
        history.contains("quarantined by root: fan noise")
            && history.contains("it left node1 out of service"),
        "{history}"
    );
    gadm(&pool, &["gpu", "return", "node2:1"]);
    pool.wait_until("it is back", || {
        there("node2", &sick).is_some_and(|gpu| gpu.fault.is_empty())
    });
    let id = pool.gsub(&["--nodes", "2", "--gpus-per-node", "2", "--wrap", "true"]);
    pool.wait_state(id, Completed);
    pool.down();
}

#[test]
fn a_gpu_that_is_gone_for_good_is_forgotten_by_an_operators_word_and_taken_again_when_it_comes_back()
 {
    let Some(pool) = Pool::up(1, "h100:2") else {
        return;
    };
    pool.reconfigure("node1", "gpu_watch_secs = 1\n");
    pool.wait_idle("node1");
    let notes = || pool.run("gnodes", &[]).out;
    let uuid = pool
        .node("node1")
        .gpus
        .iter()
        .find(|gpu| gpu.index == 1)
        .unwrap()
        .uuid
        .clone();
    let said = gadm(&pool, &["gpu", "forget", &uuid]);
    assert!(
        said.code != 0 && said.err.contains("is in node1 (gpu1)"),
        "{said:?}"
    );
    // Its job has it until the job is over.
    let id = pool.gsub(&[
        "--no-requeue",
        "--gpus",
        "2",
        "--wrap",
        "trap '' TERM; until [ -e stop ]; do sleep 0.1; done",
    ]);
    pool.wait_state(id, Running);
    fault(&pool, &["gpu1", "missing"]);
    pool.wait_until("it is missed", || notes().contains("gpu1 missing"));
    pool.wait_until("its job left it", || pool.node("node1").runs.is_empty());
    let health = pool.run("gnodes", &["--health"]).out;
    assert!(health.contains("gadm gpu forget"), "{health}");
    let both = pool.gsub(&["--gpus", "2", "--wrap", "true"]);
    let said = gadm(&pool, &["gpu", "forget", &uuid[..12]]);
    assert_eq!(said.code, 0, "{said:?}");
    assert!(
        !notes().contains("missing") && pool.node("node1").gpus.len() == 1,
        "{}",
        notes()
    );
    let refused = pool.run("gsub", &["--gpus", "2", "--wrap", "true"]);
    assert!(
        refused.code != 0 && refused.err.contains("has 1"),
        "two GPUs are promised by nobody any more: {refused:?}"
    );
    let history = gadm(&pool, &["gpu", "history", &uuid]).out;
    assert!(history.contains("gone for good, says root"), "{history}");
    // It comes back all the same, after the boot that it calls for, and is a GPU as any.
    fault(&pool, &["gpu1", "clear"]);
    pool.wait_until("it is there", || pool.node("node1").gpus.len() == 2);
    gadm(&pool, &["gpu", "return", "node1:1"]);
    pool.wait_state(both, Completed);
    pool.down();
}

#[test]
fn an_index_that_means_two_gpus_while_one_is_missing_is_refused_with_their_uuids() {
    let Some(pool) = pool_of_eight() else { return };
    let with_index = |index: u32| {
        pool.node("node1")
            .gpus
            .into_iter()
            .filter(|gpu| gpu.index == index)
            .map(|gpu| gpu.uuid)
            .collect::<Vec<_>>()
    };
    let fifth = with_index(5).remove(0);
    fault(&pool, &[&slot_of(&pool, &fifth), "missing"]);
    pool.wait_until("another has its index", || {
        with_index(5).len() == 2 || with_index(5).first().is_some_and(|uuid| *uuid != fifth)
    });
    let healthy = with_index(5)
        .into_iter()
        .find(|uuid| *uuid != fifth)
        .unwrap();
    for words in [
        &["gpu", "quarantine", "node1", "5", "--reason", "hot"][..],
        &["gpu", "return", "node1:5"],
    ] {
        let said = gadm(&pool, words);
        assert!(
            said.code == 1
                && [&fifth, &healthy]
                    .iter()
                    .all(|uuid| said.err.contains(uuid.as_str())),
            "{said:?}"
        );
    }
    assert!(
        faults(&pool)
            .iter()
            .all(|(_, words)| !words.contains("hot")),
        "{:?}",
        faults(&pool)
    );
    let said = gadm(
        &pool,
        &["gpu", "quarantine", "node1", &healthy, "--reason", "hot"],
    );
    assert_eq!(said.code, 0, "{said:?}");
    // What the node does not see cannot be put back, which a script must notice.
    let said = gadm(&pool, &["gpu", "return", "node1", &fifth]);
    assert_eq!(said.code, 1, "{said:?}");
    let job = pool.gsub(&["--gpus", "1", "--wrap", WAIT]);
    let job = pool.wait_state(job, Running);
    assert!(
        matches!(&job.gpu_uuids[..], [uuid] if uuid.starts_with("node1:GPU-")),
        "{:?}",
        job.gpu_uuids
    );
    pool.write("stop", "");
    pool.wait_state(job.id, Completed);
    assert_eq!(pool.attempts(job.id)[0].gpu_uuids, job.gpu_uuids);
    pool.down();
}
