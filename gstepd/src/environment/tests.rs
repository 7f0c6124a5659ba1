//! The environment of jobs and tasks against what real Slurm set.

use super::*;
use crate::task_binding;
use gmodel::job::MemRequest;
use gmodel::job::VisibleDevices;
use gmodel::launch_order::ArrayTask;
use gmodel::launch_order::OrderNode;
use gmodel::parallel::{ParallelSpec, Rendezvous};
use gmodel::{JobId, RunId, UserRef};

/// The job of the environment that was read off a real Slurm: `sbatch -N2 -n4 --gres=gpu:1 -c2 --mem=200M`.
fn golden_job() -> (LaunchOrder, RunSetup) {
    let node = |name: &str, cpus, tasks| OrderNode {
        name: name.into(),
        cpus,
        tasks,
        gpus: 1,
    };
    let order = LaunchOrder {
        run: Some(RunId::new(JobId(168), 1)),
        job_name: "wrap".into(),
        user: UserRef {
            name: "root".into(),
            uid: 0,
            gid: 0,
        },
        account: "root".into(),
        qos: "normal".into(),
        partition: "main".into(),
        cluster: "clitest".into(),
        nodes: vec![node("node2", 6, 3), node("n1", 2, 1)],
        ntasks: 4,
        ntasks_asked: true,
        cpus_per_task: 2,
        cpus: 6,
        mem_bytes: 200 << 20,
        work_dir: "/home/me/w".into(),
        submit_host: "n1".into(),
        umask: 0o022,
        ..LaunchOrder::default()
    };
    let setup = RunSetup {
        node_name: "node2".into(),
        home: "/root".into(),
        shell: "/bin/bash".into(),
        gpus: vec![RunGpu {
            uuid: "GPU-aa".into(),
            index: 0,
            cuda_index: Some(0),
            device: "/dev/nvidia0".into(),
            ..RunGpu::default()
        }],
        ..RunSetup::default()
    };
    (order, setup)
}

const STARTED: Timestamp = Timestamp::from_secs(1_795_165_527);

fn value<'a>(env: &'a [String], name: &str) -> Option<&'a str> {
    env.iter()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
}

/// Lines of the golden environment that gstepd does not set, with the reason.
fn is_slurms_own(name: &str) -> bool {
    match name {
        // Of AMD's libraries: AMD GPUs are not offered.
        "GPU_DEVICE_ORDINAL" | "ROCR_VISIBLE_DEVICES" => true,
        // Slurm's configuration, ports and debug level.
        "SLURM_CONF" | "SLURM_WORKING_CLUSTER" | "SLURM_LAUNCH_NODE_IPADDR" | "SRUN_DEBUG" => true,
        "SLURM_SRUN_COMM_HOST" | "SLURM_SRUN_COMM_PORT" | "SLURM_STEP_LAUNCHER_PORT" => true,
        "SLURM_DISTRIBUTION" | "SLURM_JOB_CPUS_PER_NODE_PACK_GROUP_0" => true,
        // Set between fork and exec.
        "SLURM_TASK_PID" => true,
        _ => false,
    }
}

fn golden(section: &str, until: &str) -> Vec<(String, String)> {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/slurm-22.05-environment.txt"
    );
    let text = std::fs::read_to_string(path).unwrap();
    let lines = text
        .lines()
        .skip_while(|line| *line != section)
        .skip(1)
        .take_while(|line| *line != until);
    lines
        .filter_map(|line| line.split_once('='))
        .map(|(n, v)| (n.to_owned(), v.to_owned()))
        .collect()
}

fn compare(env: &[String], golden: Vec<(String, String)>) {
    assert!(golden.len() > 20, "the golden file was not read");
    for (name, want) in golden.iter().filter(|(name, _)| !is_slurms_own(name)) {
        assert_eq!(value(env, name), Some(want.as_str()), "{name}");
        if let Some(word) = name.strip_prefix("SLURM_") {
            assert_eq!(
                value(env, &format!("GSUB_{word}")),
                Some(want.as_str()),
                "twin of {name}"
            );
        }
    }
}

#[test]
fn a_batch_job_sees_what_slurm_shows_it() {
    let (order, setup) = golden_job();
    let env = batch(&order, &setup, STARTED);
    compare(&env, golden("[batch]", "[task 3 of 4]"));
    assert_eq!(
        (
            value(&env, "CUDA_VISIBLE_DEVICES"),
            value(&env, "GSUB_GPU_UUIDS")
        ),
        (Some("0"), Some("GPU-aa"))
    );
    assert_eq!(
        (value(&env, "ENVIRONMENT"), value(&env, "HOSTNAME")),
        (Some("BATCH"), value(&env, "SLURMD_NODENAME"))
    );
    assert_eq!(value(&env, "GSUB_ATTEMPT"), Some("1"));
    assert_eq!(value(&env, "SLURM_RESTART_COUNT"), None);
    assert_eq!(value(&env, "SLURM_TASK_PID"), None);
    assert_eq!(
        (
            value(&env, "SLURM_JOB_START_TIME"),
            value(&env, "GSUB_JOB_END_TIME")
        ),
        (Some("1795165527"), None)
    );
    let limited = LaunchOrder {
        limit_secs: Some(60),
        ..order.clone()
    };
    assert_eq!(
        value(&batch(&limited, &setup, STARTED), "SLURM_JOB_END_TIME"),
        Some("1795165587")
    );
    let elsewhere = LaunchOrder {
        submit_dir: "/home/me".into(),
        ..order
    };
    let env = batch(&elsewhere, &setup, STARTED);
    assert_eq!(
        (
            value(&env, "SLURM_SUBMIT_DIR"),
            value(&env, "GSUB_SUBMIT_DIR")
        ),
        (Some("/home/me"), Some("/home/me"))
    );
    assert_eq!(value(&env, "PWD"), Some("/home/me/w"), "where the job is");
    assert_eq!(
        (value(&env, "HOME"), value(&env, "USER")),
        (Some("/root"), Some("root"))
    );
}

/// Two GPUs of a job in the order of rails, which differs from the order of addresses.
#[test]
fn gpus_are_numbers_among_the_jobs_own_unless_uuids_are_wished_or_must_be() {
    let (mut order, mut setup) = golden_job();
    let gpu = |uuid: &str, index, cuda_index| RunGpu {
        uuid: uuid.into(),
        index,
        cuda_index,
        ..RunGpu::default()
    };
    setup.gpus = vec![gpu("GPU-d", 7, Some(1)), gpu("GPU-b", 3, Some(0))];
    let seen = |order: &LaunchOrder, setup: &RunSetup, bound: Option<Vec<u32>>| {
        let step = StepOrder {
            ranks: vec![0],
            ..StepOrder::default()
        };
        let env = task(
            order,
            setup,
            &step,
            0,
            &TaskBinding {
                gpus: bound,
                ..TaskBinding::default()
            },
        );
        let of = |name: &str| value(&env, name).unwrap_or("-").to_owned();
        [
            "CUDA_VISIBLE_DEVICES",
            "CUDA_DEVICE_ORDER",
            "GSUB_GPU_UUIDS",
            "NVIDIA_VISIBLE_DEVICES",
        ]
        .map(of)
        .join(" ")
    };
    assert_eq!(
        seen(&order, &setup, None),
        "1,0 PCI_BUS_ID GPU-d,GPU-b GPU-d,GPU-b"
    );
    assert_eq!(
        seen(&order, &setup, Some(vec![0])),
        "1 PCI_BUS_ID GPU-d GPU-d,GPU-b",
        "the fence of a bound task is the job's"
    );
    let own = task_binding::seen_by(
        &StepOrder {
            gpus: Some(vec![0]),
            ..StepOrder::default()
        },
        &setup,
    );
    assert_eq!(
        seen(&order, &own, None),
        "1 PCI_BUS_ID GPU-d GPU-d",
        "and so is that of a step with a part"
    );
    order.environment = vec![
        "CUDA_DEVICE_ORDER=FASTEST_FIRST".into(),
        "GSUB_GPU_UUIDS=GPU-outer".into(),
        "GSUB_GPU_RAILS=3".into(),
    ];
    let env = batch(&order, &setup, STARTED);
    assert_eq!(
        (
            value(&env, "CUDA_DEVICE_ORDER"),
            value(&env, "GSUB_GPU_UUIDS")
        ),
        (Some("FASTEST_FIRST"), Some("GPU-d,GPU-b"))
    );
    assert_eq!(value(&env, "GSUB_GPU_RAILS"), None);
    order.visible_devices = VisibleDevices::Uuid;
    assert_eq!(
        seen(&order, &setup, Some(vec![1])),
        "GPU-b - GPU-b GPU-d,GPU-b"
    );
    order.visible_devices = VisibleDevices::Index;
    setup.gpus = vec![gpu("MIG-1", 0, None)];
    assert_eq!(seen(&order, &setup, None), "MIG-1 - MIG-1 MIG-1");
    setup.gpus.clear();
    assert_eq!(seen(&order, &setup, None), " - - void");
}

#[test]
fn sizes_are_told_as_they_were_asked_for() {
    let (order, setup) = golden_job();
    let sizes = |order: &LaunchOrder| {
        let env = batch(order, &setup, STARTED);
        let of = |name: &str| {
            value(&env, &format!("SLURM_{name}"))
                .unwrap_or("-")
                .to_owned()
        };
        [
            "NTASKS",
            "NPROCS",
            "TASKS_PER_NODE",
            "MEM_PER_NODE",
            "MEM_PER_CPU",
            "MEM_PER_GPU",
        ]
        .map(of)
        .join(" ")
    };
    assert_eq!(sizes(&order), "4 4 3,1 200 - -");
    let nobody = LaunchOrder {
        ntasks_asked: false,
        mem_ask: MemRequest::PerCpu(100 << 20),
        ..order
    };
    assert_eq!(
        sizes(&nobody),
        "- - 3,1 - 100 -",
        "6 and 2 CPUs, 2 for a task"
    );
    let exclusive = LaunchOrder {
        cpus_per_task: 0,
        mem_ask: MemRequest::PerGpu(1 << 30),
        ..nobody
    };
    assert_eq!(sizes(&exclusive), "- - 6,2 - - 1024");
    // -n 1, which no number tells from nothing.
    let one = LaunchOrder {
        ntasks: 1,
        environment: vec!["SLURM_NTASKS=1".into()],
        ..exclusive
    };
    assert!(sizes(&one).starts_with("1 1 3,1 "));
}

#[test]
fn a_task_on_the_second_node_sees_what_slurm_shows_it() {
    let (mut order, mut setup) = golden_job();
    order.node_index = 1;
    order.cpus = 2;
    setup.node_name = "n1".into();
    let step = StepOrder {
        ranks: vec![2, 3],
        ntasks: 4,
        nodes: vec!["node2".into(), "n1".into()],
        node_index: 1,
        node_tasks: vec![2, 2],
        work_dir: "/home/me/w".into(),
        environment: vec!["SLURM_JOB_END_TIME=1795165587".into()],
        ..StepOrder::default()
    };
    let env = task(&order, &setup, &step, 1, &TaskBinding::default());
    compare(&env, golden("[task 3 of 4]", "[array]"));
    assert_eq!(
        value(&env, "SLURM_JOB_END_TIME"),
        Some("1795165587"),
        "the same on each node"
    );
}

#[test]
fn the_way_through_the_switches_is_told_from_the_top() {
    let (order, setup) = golden_job();
    let order = LaunchOrder {
        switches: vec!["spine".into(), "leaf2".into()],
        ..order
    };
    let env = batch(&order, &setup, STARTED);
    assert_eq!(
        value(&env, "SLURM_TOPOLOGY_ADDR"),
        Some("spine.leaf2.node2")
    );
    assert_eq!(
        value(&env, "GSUB_TOPOLOGY_ADDR_PATTERN"),
        Some("switch.switch.node")
    );
}

#[test]
fn an_array_task_knows_its_place_and_a_restart_its_number() {
    let (mut order, setup) = golden_job();
    order.run = Some(RunId::new(JobId(170), 3));
    order.array = Some(ArrayTask {
        array: JobId(169),
        index: 9,
        count: 2,
        min: 5,
        max: 9,
        step: 4,
    });
    let env = batch(&order, &setup, STARTED);
    for (name, want) in golden("[array]", "")
        .iter()
        .filter(|(name, _)| name.contains("ARRAY"))
    {
        assert_eq!(value(&env, name), Some(want.as_str()), "{name}");
    }
    assert_eq!(value(&env, "SLURM_RESTART_COUNT"), Some("2"));
    assert_eq!(value(&env, "GSUB_JOB_ID"), Some("170"));
    // After a restore of the controller attempts have high numbers without as many restarts.
    order.run = Some(RunId::new(JobId(170), 1001));
    order.restarts = Some(0);
    assert_eq!(
        value(&batch(&order, &setup, STARTED), "SLURM_RESTART_COUNT"),
        None
    );
}

#[test]
fn nothing_of_an_enclosing_job_shines_through() {
    let (mut order, mut setup) = golden_job();
    setup.gpus.clear();
    let outer = [
        "SLURM_ARRAY_TASK_ID=3",
        "GSUB_ARRAY_TASK_ID=3",
        "SLURM_STEP_GPUS=1",
        "GSUB_TASK_PID=1",
        "GSUB_ATTEMPT=9",
        "CUDA_VISIBLE_DEVICES=0",
        "SLURM_TIME_FORMAT=%s",
        "HOME=/elsewhere",
        "ENVIRONMENT=production",
        "HOSTNAME=login1",
        "OLDPWD=/x",
        "BROKEN",
        "=x",
    ];
    order.environment = outer.iter().map(|line| line.to_string()).collect();
    let env = batch(&order, &setup, STARTED);
    for gone in [
        "SLURM_ARRAY_TASK_ID",
        "GSUB_ARRAY_TASK_ID",
        "SLURM_STEP_GPUS",
        "SLURM_JOB_GPUS",
        "GSUB_TASK_PID",
        "OLDPWD",
        "BROKEN",
        "",
    ] {
        assert_eq!(value(&env, gone), None, "{gone:?}");
    }
    assert_eq!(
        value(&env, "CUDA_VISIBLE_DEVICES"),
        Some(""),
        "a job without GPUs sees none"
    );
    assert_eq!(
        value(&env, "SLURM_TIME_FORMAT"),
        Some("%s"),
        "a user's own setting stays"
    );
    assert_eq!(
        (value(&env, "HOME"), value(&env, "ENVIRONMENT")),
        (Some("/elsewhere"), Some("production"))
    );
    assert_ne!(value(&env, "HOSTNAME"), Some("login1"), "it runs here");
    assert_eq!(value(&env, "GSUB_ATTEMPT"), Some("1"));
}

#[test]
fn equal_neighbours_share_a_count() {
    assert_eq!(run_lengths([6, 2].into_iter()), "6,2");
    assert_eq!(run_lengths([2, 2].into_iter()), "2(x2)");
    assert_eq!(run_lengths([3, 2, 2, 3].into_iter()), "3,2(x2),3");
}

#[test]
fn ranks_meet_at_the_steps_port_and_keep_what_the_user_said() {
    let (order, setup) = golden_job();
    let mut step = StepOrder {
        ranks: vec![2, 3],
        ntasks: 4,
        nodes: vec!["node2".into(), "n1".into()],
        node_index: 1,
        node_tasks: vec![2, 2],
        parallel: ParallelSpec {
            rendezvous: Rendezvous::Torch,
            address: "node2:28100".into(),
            ..ParallelSpec::default()
        },
        ..StepOrder::default()
    };
    let names = [
        "MASTER_ADDR",
        "MASTER_PORT",
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "NODE_RANK",
        "JAX_COORDINATOR_ADDRESS",
        "JAX_LOCAL_DEVICE_IDS",
    ];
    let seen = |step: &StepOrder, bound: &TaskBinding| {
        let env = task(&order, &setup, step, 1, bound);
        names
            .map(|name| value(&env, name).unwrap_or("-").to_owned())
            .join(" ")
    };
    let free = TaskBinding::default();
    assert_eq!(seen(&step, &free), "node2 28100 3 4 1 2 1 - -");
    step.environment = vec!["MASTER_PORT=6000".into(), "WORLD_SIZE=16".into()];
    assert_eq!(seen(&step, &free), "node2 6000 3 16 1 2 1 - -");
    // A task of an outer step starts this one.
    step.environment = task(&order, &setup, &step, 0, &free);
    step.environment.retain(|line| line != "MASTER_PORT=6000");
    step.parallel.address = "node2:28107".into();
    assert_eq!(seen(&step, &free), "node2 28107 3 16 1 2 1 - -");
    step.environment.clear();
    step.parallel.rendezvous = Rendezvous::Jax;
    let bound = TaskBinding {
        gpus: Some(vec![2, 3]),
        ..TaskBinding::default()
    };
    assert_eq!(seen(&step, &bound), "- - - - - - - node2:28107 0,1");
    step.parallel.address.clear();
    assert_eq!(
        seen(&step, &free),
        "- - - - - - - - -",
        "the first node had no port"
    );
    step.parallel.rendezvous = Rendezvous::Torch;
    assert_eq!(seen(&step, &free), "- - 3 4 1 2 1 - -");
}

#[test]
fn slurms_names_are_last_in_the_path_once() {
    let (mut order, mut setup) = golden_job();
    setup.slurm_names = "/run/names".to_owned();
    for (given, seen) in [
        ("PATH=/opt/bin:/bin", "/opt/bin:/bin:/run/names"),
        ("PATH=/run/names:/bin", "/run/names:/bin"),
        ("PATH=", ""),
    ] {
        order.environment = vec![given.to_owned()];
        let env = batch(&order, &setup, STARTED);
        assert_eq!(value(&env, "PATH"), Some(seen));
    }
    setup.slurm_names.clear();
    order.environment = vec!["PATH=/bin".to_owned()];
    let env = batch(&order, &setup, STARTED);
    assert_eq!(value(&env, "PATH"), Some("/bin"));
}
