//! What the environment says of a job on all its nodes alike: the words behind `SLURM_` and `GSUB_`, from its launch order.
//!
//! Owns names and values; a node adds what is its own. Source: "OUTPUT ENVIRONMENT VARIABLES" in sbatch(1) and salloc(1).

use crate::hostlist;
use crate::job::{MemRequest, VisibleDevices};
use crate::launch_order::{LaunchOrder, OrderNode};
use crate::supervise::{RunGpu, RunSetup};

/// Words and values, without the prefix: `JOB_ID`, `17`.
pub fn job_words(order: &LaunchOrder) -> Vec<(&'static str, String)> {
    let mut words = Vec::new();
    if let Some(run) = order.run {
        words.push(("JOB_ID", run.job.to_string()));
        words.push(("JOBID", run.job.to_string()));
    }
    if order.restarts() > 0 {
        words.push(("RESTART_COUNT", order.restarts().to_string()));
    }
    let submit_dir = match order.submit_dir.is_empty() {
        true => &order.work_dir,
        false => &order.submit_dir,
    };
    let texts = [
        ("JOB_NAME", &order.job_name),
        ("JOB_PARTITION", &order.partition),
        ("JOB_ACCOUNT", &order.account),
        ("JOB_QOS", &order.qos),
        ("JOB_USER", &order.user.name),
        ("CLUSTER_NAME", &order.cluster),
        ("SUBMIT_DIR", submit_dir),
        ("SUBMIT_HOST", &order.submit_host),
    ];
    words.extend(texts.map(|(word, text)| (word, text.clone())));
    words.push(("NODE_ALIASES", "(null)".to_owned()));
    size_words(&mut words, order);
    words
}

/// What a job of unlike parts is told of its components, as `JOB_ID_HET_GROUP_1`; nothing of any other job.
pub fn part_words(order: &LaunchOrder) -> Vec<(String, String)> {
    if order.parts.is_empty() {
        return Vec::new();
    }
    let mut words = vec![("HET_SIZE".to_owned(), order.parts.len().to_string())];
    for (at, part) in order.parts.iter().enumerate() {
        let cpus = part.cpus_per_node.iter().copied();
        let of_part = [
            ("JOB_ID", part.job.to_string()),
            ("JOB_NODELIST", hostlist::compress(part.nodes.iter())),
            ("JOB_NUM_NODES", part.nodes.len().to_string()),
            ("JOB_CPUS_PER_NODE", run_lengths(cpus)),
            ("JOB_PARTITION", part.partition.clone()),
            ("NTASKS", part.ntasks.to_string()),
        ];
        words.extend(of_part.map(|(word, value)| (format!("{word}_HET_GROUP_{at}"), value)));
    }
    words
}

fn size_words(words: &mut Vec<(&'static str, String)>, order: &LaunchOrder) {
    let mut put = |word, value: String| words.push((word, value));
    let nodes = hostlist::compress(order.nodes.iter().map(|node| &node.name));
    put("JOB_NODELIST", nodes.clone());
    put("NODELIST", nodes);
    put("JOB_NUM_NODES", order.nodes.len().to_string());
    put("NNODES", order.nodes.len().to_string());
    // As sbatch has it: the number of tasks where it was asked for (frameworks take it for "srun started me"); else each node
    // has as many as its CPUs are for, which is what mpirun counts.
    let asked = order.ntasks_asked
        || order
            .environment
            .iter()
            .any(|variable| variable.starts_with("SLURM_NTASKS="));
    if asked {
        put("NTASKS", order.ntasks.to_string());
        put("NPROCS", order.ntasks.to_string());
    }
    let tasks = |node: &OrderNode| {
        if asked {
            node.tasks
        } else {
            (node.cpus / order.cpus_per_task.max(1)).max(1)
        }
    };
    put("TASKS_PER_NODE", run_lengths(order.nodes.iter().map(tasks)));
    let cpus = order.nodes.iter().map(|node| node.cpus);
    put("JOB_CPUS_PER_NODE", run_lengths(cpus));
    if order.cpus_per_task > 0 {
        put("CPUS_PER_TASK", order.cpus_per_task.to_string());
    }
    match order.mem_ask {
        MemRequest::PerCpu(bytes) => put("MEM_PER_CPU", (bytes >> 20).to_string()),
        MemRequest::PerGpu(bytes) => put("MEM_PER_GPU", (bytes >> 20).to_string()),
        _ if order.mem_bytes == 0 => {}
        MemRequest::Default | MemRequest::PerNode(_) => {
            put("MEM_PER_NODE", (order.mem_bytes >> 20).to_string())
        }
    }
}

/// GPUs as programs are told of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VisibleGpus {
    /// For `CUDA_VISIBLE_DEVICES`.
    pub cuda: String,
    /// `cuda` counts the GPUs by PCI address; CUDA's own order begins with the fastest.
    pub by_address: bool,
    pub uuids: String,
}

/// The GPUs that CUDA is to use, in this order. Behind the fence CUDA counts the GPUs of the whole job, so an index is a position among
/// these, also where a step or a task has only some.
pub fn visible_gpus<'a>(
    visible: VisibleDevices,
    gpus: impl Iterator<Item = &'a RunGpu>,
) -> VisibleGpus {
    let mut seen: Vec<&RunGpu> = Vec::new();
    for gpu in gpus {
        if seen.iter().all(|other| other.uuid != gpu.uuid) {
            seen.push(gpu);
        }
    }
    let uuids: Vec<&str> = seen.iter().map(|gpu| gpu.uuid.as_str()).collect();
    let uuids = uuids.join(",");
    let numbers: Option<Vec<u32>> = seen.iter().map(|gpu| gpu.cuda_index).collect();
    match numbers.filter(|_| visible == VisibleDevices::Index) {
        Some(numbers) => {
            let texts: Vec<String> = numbers.iter().map(u32::to_string).collect();
            VisibleGpus {
                by_address: !numbers.is_empty(),
                cuda: texts.join(","),
                uuids,
            }
        }
        None => VisibleGpus {
            cuda: uuids.clone(),
            by_address: false,
            uuids,
        },
    }
}

/// `NAME=value` lines for a login that is in the job: the job and its GPUs on this node, as each step has them.
pub fn login_lines(order: &LaunchOrder, setup: &RunSetup) -> Vec<String> {
    let mut lines = setup.environment.clone();
    let mut words: Vec<(&str, String)> = job_words(order);
    words.push(("CPUS_ON_NODE", order.cpus.to_string()));
    if !setup.gpus.is_empty() {
        let indexes: Vec<String> = setup.gpus.iter().map(|gpu| gpu.index.to_string()).collect();
        words.push(("GPUS_ON_NODE", setup.gpus.len().to_string()));
        words.push(("JOB_GPUS", indexes.join(",")));
    }
    let words = words
        .into_iter()
        .map(|(word, value)| (word.to_owned(), value));
    for (word, value) in words.chain(part_words(order)) {
        lines.push(format!("GSUB_{word}={value}"));
        lines.push(format!("SLURM_{word}={value}"));
    }
    lines.extend(order.run.map(|run| format!("GSUB_ATTEMPT={}", run.attempt)));
    lines.push(format!("SLURMD_NODENAME={}", setup.node_name));
    lines.push(format!("GSUB_NODENAME={}", setup.node_name));
    let gpus = visible_gpus(order.visible_devices, setup.gpus.iter());
    lines.push(format!("CUDA_VISIBLE_DEVICES={}", gpus.cuda));
    if gpus.by_address {
        lines.push("CUDA_DEVICE_ORDER=PCI_BUS_ID".to_owned());
    }
    if gpus.uuids.is_empty() {
        lines.push("NVIDIA_VISIBLE_DEVICES=void".to_owned());
    } else {
        lines.push(format!("NVIDIA_VISIBLE_DEVICES={}", gpus.uuids));
        lines.push(format!("GSUB_GPU_UUIDS={}", gpus.uuids));
    }
    lines
}

/// Slurm's form for a number per node: `6,2`, and `2(x3),1` for neighbours that are equal.
pub fn run_lengths(numbers: impl Iterator<Item = u32>) -> String {
    let mut groups: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match groups.last_mut() {
            Some((last, times)) if *last == number => *times += 1,
            _ => groups.push((number, 1)),
        }
    }
    let texts = groups.iter().map(|(number, times)| match times {
        1 => number.to_string(),
        times => format!("{number}(x{times})"),
    });
    texts.collect::<Vec<_>>().join(",")
}
