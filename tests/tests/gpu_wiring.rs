//! How GPUs are joined: found by NVML, shown, and what a job is given by it.

use gmodel::JobState::{Completed, Running};
use gpupool_tests::pool::Pool;

const WAIT: &str = "until [ -e stop ]; do sleep 0.1; done";

/// How the GPUs of a job are joined, as `gq JOB` says.
fn links(pool: &Pool, id: u64) -> String {
    let shown = pool.run("gq", &[&id.to_string()]).out;
    shown
        .lines()
        .find_map(|line| line.trim().strip_prefix("GPULinks="))
        .unwrap_or_default()
        .to_owned()
}

/// Four nodes on two switches; the second and the fourth in one NVLink domain.
fn network() -> Option<Pool> {
    let pool = Pool::up(4, "h100:2")?;
    let topology = "[switch.leaf1]\nnodes = \"node[1,3]\"\n[switch.leaf2]\nnodes = \"node[2,4]\"\n[switch.top]\nswitches = [\"leaf2\", \"leaf1\"]\n";
    std::fs::write(
        pool.config("gpuctld").with_file_name("topology.toml"),
        topology,
    )
    .unwrap();
    let said = pool.run("gadm", &["reload"]);
    assert_eq!(said.code, 0, "{said:?}");
    for (node, gpu) in ["node2", "node4"]
        .into_iter()
        .flat_map(|node| ["gpu0", "gpu1"].map(|gpu| (node, gpu)))
    {
        let said = pool.sandbox(&["fault", node, gpu, "nvlink-domain", "rack", "3"]);
        assert_eq!(said.code, 0, "{said:?}");
    }
    pool.wait_until("the domain is known", || {
        pool.node("node4").nvlink_domain.ends_with(".3")
            && !pool.node("node2").nvlink_domain.is_empty()
    });
    Some(pool)
}

#[test]
fn ranks_follow_the_network_and_nvlink_jobs_stay_in_their_domain() {
    let Some(pool) = network() else { return };
    assert_eq!(
        pool.node("node2").nvlink_domain,
        pool.node("node4").nvlink_domain
    );
    let shown = pool.run("gnodes", &["node1"]).out;
    assert!(
        shown.contains("Switches=top.leaf1") && !shown.contains("NVLinkDomain"),
        "{shown}"
    );

    let script = "echo $SLURM_JOB_NODELIST $SLURM_TOPOLOGY_ADDR $SLURM_TOPOLOGY_ADDR_PATTERN > batch
        grun sh -c 'echo $SLURM_PROCID $SLURM_NODEID $SLURM_LOCALID $SLURMD_NODENAME $SLURM_TOPOLOGY_ADDR > rank.$SLURM_PROCID'";
    let script = format!(
        "export PATH={}:$PATH\n{script}",
        gpupool_tests::pool::programs().display()
    );
    let id = pool.gsub(&[
        "-N",
        "4",
        "-n",
        "4",
        "--gpus-per-node",
        "1",
        "--wrap",
        &script,
    ]);
    assert_eq!(pool.wait_state(id, Completed).nodelist, "node[2,4,1,3]");
    assert_eq!(
        pool.file("batch"),
        "node[2,4,1,3] top.leaf2.node2 switch.switch.node\n"
    );
    let ranks: String = (0..4)
        .map(|rank| pool.file(&format!("rank.{rank}")))
        .collect();
    assert_eq!(
        ranks,
        "0 0 0 node2 top.leaf2.node2\n1 1 0 node4 top.leaf2.node4\n2 2 0 node1 top.leaf1.node1\n3 3 0 node3 top.leaf1.node3\n"
    );

    let pair = pool.gsub(&[
        "-N",
        "2",
        "--gpus-per-node",
        "2",
        "--nvlink",
        "--wrap",
        "true",
    ]);
    assert_eq!(pool.wait_state(pair, Completed).nodelist, "node[2,4]");
    let three = pool.run(
        "gsub",
        &[
            "-N",
            "3",
            "--gpus-per-node",
            "2",
            "--nvlink",
            "--wrap",
            "true",
        ],
    );
    three.fails_with(
        1,
        "--nvlink on 3 nodes: the largest NVLink domain in partition",
    );

    // One of them leaves the fabric: it is in no domain, and no job is given the two as one.
    let said = pool.sandbox(&["fault", "node4", "gpu0", "fabric", "failed"]);
    assert_eq!(said.code, 0, "{said:?}");
    pool.wait_until("its domain is gone", || {
        pool.node("node4").nvlink_domain.is_empty()
    });
    pool.run(
        "gsub",
        &[
            "-N",
            "2",
            "--gpus-per-node",
            "1",
            "--nvlink",
            "--wrap",
            "true",
        ],
    )
    .fails_with(1, "the largest NVLink domain in partition");
    pool.check();
    pool.down();
}

#[test]
fn a_job_on_two_nodes_gets_gpus_on_the_same_rails_in_their_order() {
    let Some(pool) = Pool::up(2, "h100:4") else {
        return;
    };
    let topology = |text: &str| {
        std::fs::write(pool.config("gpuctld").with_file_name("topology.toml"), text).unwrap();
        pool.run("gadm", &["reload"])
    };
    topology("[rails.pod]\nnodes = \"node[1-2]\"\ncount = 4\nof_gpu = [3, 2, 1, 0]\n")
        .fails_with(1, "say count and of_gpu");
    let said = topology("[rails.pod]\nnodes = \"node[1-2]\"\nof_gpu = [3, 2, 1, 0]\n");
    assert_eq!(said.code, 0, "{said:?}");
    assert!(pool.run("gadm", &["topology", "show"]).out.contains(
        "rails pod node[1-2] rail 0: GPU 3; rail 1: GPU 2; rail 2: GPU 1; rail 3: GPU 0"
    ));
    let rail_of = |node: &str, uuid: &str| {
        pool.node(node)
            .gpus
            .iter()
            .find(|gpu| gpu.uuid == uuid)
            .and_then(|gpu| gpu.rail)
    };

    // On one node two GPUs are taken; without rails the other would give the same two again.
    let held = pool.gsub(&["-w", "node1", "--gpus", "2", "--wrap", WAIT]);
    pool.wait_state(held, Running);
    let taken: Vec<u32> = pool
        .node("node1")
        .gpus
        .iter()
        .filter(|gpu| !gpu.jobs.is_empty())
        .filter_map(|gpu| gpu.rail)
        .collect();
    let script = "echo $GSUB_GPU_UUIDS $GSUB_GPU_RAILS > rank.$SLURMD_NODENAME";
    let script = format!(
        "{}/grun sh -c '{script}'",
        gpupool_tests::pool::programs().display()
    );
    let id = pool.gsub(&[
        "-N",
        "2",
        "-n",
        "2",
        "--gpus-per-node",
        "2",
        "--wrap",
        &script,
    ]);
    pool.wait_state(id, Completed);
    for node in ["node1", "node2"] {
        let said = pool.file(&format!("rank.{node}"));
        let (devices, rails) = said.trim().split_once(' ').unwrap();
        let of_devices: Vec<u32> = devices
            .split(',')
            .map(|uuid| rail_of(node, uuid).unwrap())
            .collect();
        assert_eq!(
            of_devices
                .iter()
                .map(u32::to_string)
                .collect::<Vec<_>>()
                .join(","),
            rails,
            "{said}"
        );
        assert!(
            of_devices.is_sorted() && of_devices.iter().all(|rail| !taken.contains(rail)),
            "{node}: {said}"
        );
    }
    assert!(pool.run("gnodes", &["node1"]).out.contains(" Rail=3"));
    pool.write("stop", "");
    pool.wait_state(held, Completed);
    pool.check();
    pool.down();
}

/// The device file of a channel on a node of the sandbox.
fn channel_file(pool: &Pool, node: &str, channel: u32) -> std::path::PathBuf {
    pool.dir
        .join(node)
        .join(format!("dev/nvidia-caps-imex-channels/channel{channel}"))
}

#[test]
fn a_job_on_two_nodes_of_a_domain_has_an_imex_channel_of_its_own() {
    let Some(pool) = network() else { return };
    // What may be opened says "No such device" (there is no driver behind), what may not "Operation not permitted".
    let script = format!(
        "echo $NVIDIA_IMEX_CHANNELS $GSUB_IMEX_CHANNEL > $SLURM_JOB_NAME.channel
         for d in {}/$SLURMD_NODENAME/dev/nvidia-caps-imex-channels/*; do echo ${{d##*/}} $(exec 2>&1; : < $d); done > $SLURM_JOB_NAME.opens
         echo up > $SLURM_JOB_NAME.up; {WAIT}",
        pool.dir.display()
    );
    let pair = |name: &str| {
        pool.gsub(&[
            "-J",
            name,
            "-N",
            "2",
            "--gpus-per-node",
            "1",
            "--mem",
            "1G",
            "--nvlink",
            "--wrap",
            &script,
        ])
    };
    let one = pair("one");
    pool.wait_file("one.up");
    let two = pair("two");
    pool.wait_file("two.up");
    let channels = [one, two].map(|id| pool.job(id).imex_channel.expect("it has a channel"));
    assert_ne!(channels[0], channels[1]);
    assert_eq!(pool.file("one.channel"), format!("{0} {0}\n", channels[0]));
    for channel in channels {
        assert!(
            ["node2", "node4"]
                .iter()
                .all(|node| channel_file(&pool, node, channel).exists())
        );
    }
    let opens = pool.file("two.opens");
    let said = |channel: u32| {
        opens
            .lines()
            .find(|line| line.starts_with(&format!("channel{channel} ")))
            .unwrap_or_default()
    };
    assert!(
        said(channels[1]).contains("No such device"),
        "its own: {opens}"
    );
    assert!(
        [0, channels[0]]
            .iter()
            .all(|channel| said(*channel).contains("not permitted")),
        "others': {opens}"
    );
    assert!(
        pool.run("gq", &[&one.to_string()])
            .out
            .contains(&format!("IMEXChannel={}", channels[0]))
    );

    // Neither a job on one node nor one across domains has one; and a controller that was killed gives none twice.
    pool.kill("gpuctld");
    pool.start("gpuctld");
    assert_eq!(pool.job(two).imex_channel, Some(channels[1]));
    let apart = pool.gsub(&[
        "-J",
        "apart",
        "-w",
        "node1,node3",
        "--gpus-per-node",
        "1",
        "--mem",
        "1G",
        "--wrap",
        &script,
    ]);
    pool.wait_file("apart.up");
    assert_eq!(
        (
            pool.job(apart).imex_channel,
            pool.file("apart.channel").trim()
        ),
        (None, "")
    );
    pool.write("stop", "");
    for id in [one, two, apart] {
        pool.wait_state(id, Completed);
    }
    ["node2", "node4"]
        .iter()
        .for_each(|node| pool.wait_idle(node));
    for channel in channels {
        assert!(
            ["node2", "node4"]
                .iter()
                .all(|node| !channel_file(&pool, node, channel).exists()),
            "the file goes with the job"
        );
    }
    pool.check();
    pool.down();
}

#[test]
fn a_job_gets_the_gpus_that_are_joined_best_and_a_broken_link_counts_at_once() {
    // Eight V100 as in a DGX-1: a cube mesh of one and two links.
    let Some(pool) = Pool::up(1, "v100:8") else {
        return;
    };
    let shown = pool.run("gnodes", &["node1"]).out;
    let rows: Vec<&str> = shown
        .lines()
        .skip_while(|line| !line.contains("Links"))
        .collect();
    assert!(
        rows[0].split_whitespace().eq([
            "Links", "GPU0", "GPU1", "GPU2", "GPU3", "GPU4", "GPU5", "GPU6", "GPU7", "NUMA"
        ]),
        "{shown}"
    );
    assert!(
        rows[1].split_whitespace().eq([
            "GPU0", "X", "NV1", "NV1", "NV2", "NV2", "SYS", "SYS", "SYS", "0"
        ]),
        "{shown}"
    );

    let four = pool.gsub(&["--gpus", "4", "--wrap", WAIT]);
    pool.wait_state(four, Running);
    assert_eq!(
        links(&pool, four),
        "node1:NV1",
        "four that are all joined, of which there are two sets"
    );
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
    let row = |pool: &Pool| {
        pool.run("gnodes", &["node1"])
            .out
            .lines()
            .find(|line| line.trim().starts_with("GPU0 "))
            .unwrap_or_default()
            .to_owned()
    };
    pool.wait_until("gnodes shows that no NVLink leads to it", || {
        !row(&pool).contains("NV")
    });
    let id = pool.gsub(&["--gpus", "2", "--wrap", "true"]);
    pool.wait_state(id, Completed);
    pool.check();
    pool.down();
}
