//! GPUs that are cut by MIG: slices are asked for, given out, fenced, shown and lost like GPUs; empty GPUs are cut as the
//! configuration says and as the queue needs it, through a daemon that is killed at every step.

use gmodel::JobState::{Completed, Pending, Running};
use gpupool_tests::pool::Pool;
use serde_json::Value;
use std::collections::BTreeSet;

const WAIT: &str = "until [ -e stop ]; do sleep 0.1; done";

/// A node with these GPUs, looked at every second.
fn pool(gpus: &str) -> Option<Pool> {
    let pool = Pool::up(1, gpus)?;
    pool.reconfigure("node1", "gpu_watch_secs = 1");
    pool.wait_idle("node1");
    Some(pool)
}

/// As `nvml-sim fault` does to a GPU of node1.
fn fault(pool: &Pool, words: &[&str]) {
    let said = pool.sandbox(&[&["fault", "node1"], words].concat());
    assert_eq!(said.code, 0, "{said:?}");
}

/// What the simulator says of a GPU of node1.
fn simulated(pool: &Pool, gpu: usize) -> Value {
    let text = std::fs::read(pool.dir.join("node1/nvml/state.json")).unwrap();
    serde_json::from_slice::<Value>(&text).unwrap()["gpus"][gpu].clone()
}

/// `2g.20gb` for each slice that node1 reports, sorted.
fn slices(pool: &Pool) -> Vec<String> {
    let mut slices: Vec<String> = pool
        .node("node1")
        .gpus
        .into_iter()
        .map(|gpu| gpu.profile)
        .filter(|profile| !profile.is_empty())
        .collect();
    slices.sort();
    slices
}

fn wait_for_slices(pool: &Pool, wanted: &[&str]) {
    pool.wait_until(&format!("node1 has the slices {wanted:?}"), || {
        slices(pool) == wanted
    });
}

/// The capability files of node1 that a slice is opened by: of its GPU instance, and of its compute instance.
fn caps_of(pool: &Pool, gpu: usize, uuid: &str) -> BTreeSet<String> {
    let gpu = simulated(pool, gpu);
    let instances = gpu["mig_instances"].as_array().unwrap();
    let instance = instances
        .iter()
        .find(|instance| instance["compute"][0]["uuid"] == uuid)
        .unwrap_or_else(|| panic!("{uuid} in {gpu}"));
    let names = ["access", "ci0/access"]
        .map(|end| format!("gpu{}/gi{}/{end}", gpu["minor"], instance["id"]));
    let table =
        std::fs::read_to_string(pool.dir.join("node1/nvml/nvidia-caps/mig-minors")).unwrap();
    let rows = table.lines().filter_map(|line| line.split_once(' '));
    rows.filter(|(name, _)| names.iter().any(|wanted| wanted == name))
        .map(|(_, minor)| format!("nvidia-cap{minor}"))
        .collect()
}

#[test]
fn a_job_with_a_slice_opens_its_own_capabilities_only() {
    let Some(pool) = pool("a100-80:2") else {
        return;
    };
    fault(&pool, &["gpu0", "mig", "3g.40gb,2g.20gb,2g.20gb"]);
    wait_for_slices(&pool, &["2g.20gb", "2g.20gb", "3g.40gb"]);
    // A permitted device answers "No such device" (there is no driver), a denied one "Operation not permitted".
    let script = format!(
        "echo $GSUB_GPU_UUIDS $NVIDIA_VISIBLE_DEVICES $CUDA_VISIBLE_DEVICES; cd {}/node1/dev; for d in nvidia[0-9]* nvidia-caps/*; do \
         echo \"$(basename $d) $( (: < $d) 2>&1 | sed 's/.*: //')\"; done; cd - >/dev/null; {WAIT}",
        pool.dir.display()
    );
    let asked = [
        ("--gpus", "a100:2g.20gb"),
        ("--gres", "gpu:2g.20gb:1"),
        ("--gpus", "1"),
        ("--gpus-per-node", "3g.40gb"),
    ];
    let ids = asked.map(|(option, value)| {
        pool.run_as_user("gsub", &[option, value, "-o", "%j.txt", "--wrap", &script])
            .id()
    });
    ids.iter()
        .for_each(|id| drop(pool.wait_state(*id, Running)));
    pool.write("stop", "");
    let mut seen = BTreeSet::new();
    for (at, id) in ids.iter().enumerate() {
        pool.wait_state(*id, Completed);
        let text = pool.file(&format!("{id}.txt"));
        let (uuids, devices) = text.split_once('\n').unwrap();
        let [uuid, of_containers, cuda] = uuids.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{text}")
        };
        assert_eq!(
            (uuid, if at == 2 { "0" } else { uuid }),
            (of_containers, cuda),
            "CUDA counts GPUs, and no slices"
        );
        let said = |words: &str| {
            devices
                .lines()
                .filter_map(|line| line.split_once(' ').filter(|(_, said)| *said == words))
                .map(|(name, _)| name.to_owned())
                .collect::<BTreeSet<_>>()
        };
        let (open, denied) = (
            said("No such device or address"),
            said("Operation not permitted"),
        );
        let gpu = if at == 2 { 1 } else { 0 };
        let mut wanted = BTreeSet::from([format!("nvidia{}", simulated(&pool, gpu)["minor"])]);
        match at {
            2 => assert!(uuid.starts_with("GPU-"), "{text}"),
            _ => wanted.extend(caps_of(&pool, 0, uuid)),
        }
        assert_eq!(wanted.len(), if at == 2 { 1 } else { 3 });
        assert_eq!(open, wanted, "{text}");
        assert!(denied.len() > 50, "{text}");
        assert!(seen.insert(uuid.to_owned()), "{uuid} was given out twice");
    }
    pool.check();
}

#[test]
fn slices_are_shown_charged_and_refused_with_what_there_is() {
    let Some(pool) = pool("a100-80:2") else {
        return;
    };
    fault(&pool, &["gpu0", "mig", "3g.40gb,1g.10gb"]);
    wait_for_slices(&pool, &["1g.10gb", "3g.40gb"]);
    let held = pool.gsub(&["--gpus", "3g.40gb", "--wrap", WAIT]);
    pool.wait_state(held, Running);
    let waiting = pool.gsub(&["--gpus", "3g.40gb", "--wrap", "true"]);
    pool.wait_until("the second waits for a slice", || {
        pool.job(waiting).reason_text.contains("1 slice 3g.40gb")
    });
    let row = pool.job(held);
    assert_eq!(
        (row.gpus_held, row.gpu_count),
        (vec!["node1:a100:3g.40gb:0.4".to_owned()], 0.5)
    );
    let node = pool.node("node1");
    assert_eq!(
        (node.gpu_summary.as_str(), node.gpus_alloc),
        ("a100:1,a100:1g.10gb:1,a100:3g.40gb:1", 0.5)
    );
    let shown = pool.run("gnodes", &["node1"]);
    assert!(
        shown.out.contains("Slice=3g.40gb of=GPU-") && shown.out.contains("Divided=yes"),
        "{shown:?}"
    );
    let listed = pool.run("gnodes", &["-o", "%G"]);
    assert!(listed.out.contains("gpu:a100:3g.40gb:1"), "{listed:?}");

    let refused = |gpus: &str| pool.run("gsub", &["--gpus", gpus, "--wrap", "true"]);
    refused("2g.20gb").fails_with(1, "1 2g.20gb on one node: partition \"main\" has none such (its slices are a100:1g.10gb; a100:3g.40gb). Administrators could cut its GPUs into a100: 1g.10gb,");
    refused("3g.40gb:2").fails_with(
        1,
        "the node of partition \"main\" with the most of them has 1",
    );
    // A GPU that is cut is no GPU; one that has all of it is.
    let two = pool.gsub(&["--gpus", "2", "--wrap", "true"]);
    pool.wait_until("two wait for a GPU that is cut", || {
        pool.job(two).reason_text.contains("gpu0 is cut by MIG")
    });
    pool.write("stop", "");
    pool.wait_state(waiting, Completed);
    let record = pool.run("gacct", &["-j", &held.to_string(), "--json"]);
    assert!(record.out.contains("\"gpus\":\"a100:0.5\""), "{record:?}");
    pool.check();
}

#[test]
fn a_sick_gpu_takes_all_its_slices_with_it() {
    let Some(pool) = pool("a100-80:2") else {
        return;
    };
    fault(&pool, &["gpu0", "mig", "3g.40gb,3g.40gb"]);
    wait_for_slices(&pool, &["3g.40gb", "3g.40gb"]);
    let ids =
        [1, 2].map(|_| pool.gsub(&["--gpus", "3g.40gb", "--no-requeue", "--wrap", "sleep 1000"]));
    let whole = pool.gsub(&["--gpus", "1", "--wrap", WAIT]);
    for id in ids.iter().chain([&whole]) {
        pool.wait_state(*id, Running);
    }
    fault(&pool, &["gpu0", "xid", "79"]);
    for id in ids {
        pool.wait_until("both jobs on it end", || {
            !matches!(pool.job(id).state, Running | Pending)
        });
    }
    let sick: Vec<_> = pool
        .node("node1")
        .gpus
        .into_iter()
        .filter(|gpu| gpu.fault.contains("Xid 79"))
        .map(|gpu| gpu.profile)
        .collect();
    assert_eq!(sick, ["", "3g.40gb", "3g.40gb"]);
    assert_eq!(pool.job(whole).state, Running);
    let next = pool.gsub(&["--gpus", "3g.40gb", "--wrap", "true"]);
    pool.wait_until("nothing of it is given out", || {
        pool.job(next).reason_text.contains("Xid 79")
    });
    pool.write("stop", "");
    pool.wait_state(whole, Completed);
    pool.check();
}

#[test]
fn what_a_job_leaves_in_its_slice_keeps_that_slice_out_and_no_other() {
    let Some(pool) = pool("a100-80:1") else {
        return;
    };
    fault(&pool, &["gpu0", "mig", "3g.40gb,3g.40gb"]);
    wait_for_slices(&pool, &["3g.40gb", "3g.40gb"]);
    let id = pool.gsub(&["--gpus", "3g.40gb", "--wrap", WAIT]);
    pool.wait_state(id, Running);
    let uuid = pool
        .node("node1")
        .gpus
        .into_iter()
        .find(|gpu| gpu.jobs == [id.to_string()])
        .unwrap()
        .uuid;
    let instance = simulated(&pool, 0)["mig_instances"]
        .as_array()
        .unwrap()
        .iter()
        .find(|one| one["compute"][0]["uuid"] == uuid.as_str())
        .unwrap()["id"]
        .to_string();
    // A process outside the job, which does not end with it.
    fault(
        &pool,
        &["gpu0", "process", "4194303", "100", &instance, "0"],
    );
    pool.write("stop", "");
    pool.wait_state(id, Completed);
    let faulty = || {
        pool.node("node1")
            .gpus
            .into_iter()
            .filter(|gpu| !gpu.fault.is_empty())
            .map(|gpu| gpu.uuid)
            .collect::<Vec<_>>()
    };
    pool.wait_until("that slice is not clean", || faulty() == [uuid.clone()]);
    let next = pool.gsub(&["--gpus", "3g.40gb", "--wrap", "true"]);
    pool.wait_state(next, Completed);
    fault(&pool, &["gpu0", "no-process"]);
    pool.wait_until("it is clean", || faulty().is_empty());
    pool.check();
}

/// A node of one GPU in a partition with planned MIG cuts, one a minute at most.
fn planned_pool(lines: &str) -> Option<Pool> {
    let pool = pool("a100-80:1")?;
    let path = pool.dir.join("gpuctld/partitions.d/main.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, format!("{text}mig = \"planned\"\n")).unwrap();
    pool.reconfigure("gpuctld", lines);
    pool.wait_idle("node1");
    Some(pool)
}

#[test]
fn operators_cut_an_idle_gpu_and_are_told_why_not() {
    let Some(pool) = pool("a100-80:1") else {
        return;
    };
    let cut = |gpu: &str, profiles: &str| pool.run("gadm", &["gpu", "cut", "node1", gpu, profiles]);
    let said = cut("0", "3g.40gb,2g.20gb");
    assert_eq!(said.code, 0, "{said:?}");
    assert_eq!(slices(&pool), ["2g.20gb", "3g.40gb"]);
    let id = pool.gsub(&["--gpus", "2g.20gb", "--wrap", WAIT]);
    pool.wait_state(id, Running);
    cut("0", "whole").fails_with(1, "a busy GPU is not cut. Drain the node, or wait.");
    cut("0", "4g.40gb,4g.40gb").fails_with(1, "4g.40gb, 4g.40gb do not go together on one GPU");
    cut("MIG-", "whole").fails_with(1, "means 2 GPUs");
    pool.write("stop", "");
    pool.wait_state(id, Completed);
    pool.wait_idle("node1");
    let said = cut("0", "whole");
    assert_eq!((said.code, slices(&pool)), (0, vec![]), "{said:?}");
    let health = pool.run("gnodes", &["--health"]);
    assert!(!health.out.contains("missing"), "{health:?}");
    pool.check();
}

/// Instances and compute instances of the only GPU, and whether it is in MIG mode: how far a cut is.
fn progress(pool: &Pool) -> (bool, usize, usize) {
    let gpu = simulated(pool, 0);
    let instances = gpu["mig_instances"].as_array().cloned().unwrap_or_default();
    let devices = instances
        .iter()
        .map(|one| one["compute"].as_array().map_or(0, Vec::len))
        .sum();
    (gpu["mig_enabled"] == true, instances.len(), devices)
}

#[test]
fn an_empty_gpu_is_cut_for_a_pending_job_and_made_whole_for_the_next() {
    let Some(pool) = planned_pool("mig_recut_secs = 1") else {
        return;
    };
    let small = [1, 2].map(|_| pool.gsub(&["--gpus", "2g.20gb", "--wrap", WAIT]));
    small
        .iter()
        .for_each(|id| drop(pool.wait_state(*id, Running)));
    assert_eq!(slices(&pool), ["1g.10gb", "2g.20gb", "2g.20gb", "2g.20gb"]);
    let whole = pool.gsub(&["--gpus", "1", "--wrap", "true"]);
    pool.wait_until("it waits for a whole GPU", || {
        pool.job(whole).reason_text.contains("needs 1 GPU")
    });
    std::thread::sleep(std::time::Duration::from_secs(2));
    assert_eq!(progress(&pool).2, 4, "a busy GPU is not cut");
    pool.write("stop", "");
    small
        .iter()
        .for_each(|id| drop(pool.wait_state(*id, Completed)));
    pool.wait_state(whole, Completed);
    assert_eq!((slices(&pool), progress(&pool).0), (vec![], false));
    pool.run("gsub", &["--gpus", "5g.50gb", "--wrap", "true"])
        .fails_with(1, "Its GPUs can be cut into a100: 1g.10gb,");
    pool.check();
}

#[test]
fn a_layout_of_the_configuration_is_made_and_a_cut_that_cannot_be_is_told() {
    let Some(pool) = pool("a100-80:2") else {
        return;
    };
    let path = pool.config("gpuctld");
    let text = std::fs::read_to_string(&path).unwrap();
    let with = |layout: &str| {
        std::fs::write(
            &path,
            format!("{text}\n[mig.fixed]\nnodes = \"node1\"\ngpus = 1\nlayout = [{layout}]\n"),
        )
        .unwrap()
    };
    with("\"3g.40gb\", \"2g.20gb\"");
    let said = pool.run("gadm", &["reload"]);
    assert_eq!(said.code, 0, "{said:?}");
    wait_for_slices(&pool, &["2g.20gb", "3g.40gb"]);
    let id = pool.gsub(&["--gpus", "3g.40gb", "--wrap", WAIT]);
    pool.wait_state(id, Running);
    with("");
    assert_eq!(pool.run("gadm", &["reload"]).code, 0);
    std::thread::sleep(std::time::Duration::from_secs(2));
    assert_eq!(
        slices(&pool),
        ["2g.20gb", "3g.40gb"],
        "a slice of it is held"
    );
    pool.write("stop", "");
    pool.wait_state(id, Completed);
    wait_for_slices(&pool, &[]);
    with("\"9g.90gb\"");
    let said = pool.run("gadm", &["reload"]);
    assert_eq!(said.code, 0, "{said:?}");
    let both = pool.gsub(&["--gpus", "2", "--wrap", "true"]);
    pool.wait_state(both, Completed);
    with("\"halves\"");
    pool.run("gadm", &["reload"])
        .fails_with(1, "\"halves\" is no MIG profile");
    pool.check();
}

#[test]
fn a_cut_goes_on_where_it_was_through_a_daemon_that_is_killed_at_every_step() {
    let Some(pool) = planned_pool("mig_recut_secs = 0") else {
        return;
    };
    // Every call takes so long that each step is seen.
    fault(&pool, &["gpu0", "slow", "10"]);
    let mut killed = BTreeSet::new();
    for (gpus, wanted) in [("3g.40gb", 2), ("2g.20gb", 4), ("1", 0)] {
        let id = pool.gsub(&["--gpus", gpus, "--wrap", "true"]);
        let begun = std::time::Instant::now();
        let mut seen = progress(&pool);
        while !pool.job(id).state.is_final() {
            assert!(
                begun.elapsed().as_secs() < 120,
                "{gpus}: {:?}\n{}",
                progress(&pool),
                pool.logs()
            );
            let now = progress(&pool);
            if now != seen {
                seen = now;
                // Once at each point of a cut.
                if killed.insert((gpus, now)) {
                    pool.kill("node1");
                    pool.start("node1");
                }
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert_eq!(pool.job(id).state, Completed);
        let (enabled, instances, devices) = progress(&pool);
        assert_eq!((enabled, instances, devices), (wanted > 0, wanted, wanted));
    }
    assert!(killed.len() >= 8, "only {killed:?} were seen");
    pool.check();
}
