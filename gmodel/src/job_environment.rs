//! What the environment says of a job on all its nodes alike: the words behind `SLURM_` and `GSUB_`, from its launch order.
//!
//! Owns names and values; a node adds what is its own. Source: "OUTPUT ENVIRONMENT VARIABLES" in sbatch(1) and salloc(1).

use crate::hostlist;
use crate::job::MemRequest;
use crate::launch_order::{LaunchOrder, OrderNode};

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
