//! The environment of a job's processes: that of the submission, then the node's, then `SLURM_*` as Slurm 22.05 sets it,
//! and the same again as `GSUB_*`. Never reads the supervisor's own environment.
//! Source: "OUTPUT ENVIRONMENT VARIABLES" in sbatch(1) and srun(1), and what real Slurm set (tests below).

mod ranks;

use std::collections::BTreeMap;

use gmodel::binding::mask_text;
use gmodel::job_environment::{job_words, part_words, run_lengths, visible_gpus};
use gmodel::launch_order::LaunchOrder;
use gmodel::parallel::given_names;
use gmodel::supervise::{RunGpu, RunSetup, StepOrder};
use gmodel::{Timestamp, hostlist};

use crate::task_binding::TaskBinding;

/// What a job without a PATH of its own gets.
pub const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin";

/// The process's own number: only the process itself can have it.
pub const PID_NAMES: [&str; 2] = ["GSUB_TASK_PID", "SLURM_TASK_PID"];

/// When the script began, and when the limit it began with ends it; seconds since 1970.
const START_TIME: &str = "JOB_START_TIME";
const END_TIME: &str = "JOB_END_TIME";

/// Variables of an enclosing job, where a submission comes from inside one: removed.
const OWN_PREFIXES: [&str; 6] = [
    "SLURM_JOB",
    "SLURM_STEP",
    "SLURM_ARRAY_",
    "SLURM_TASK",
    "SLURM_HET_",
    "SLURM_NTASKS_HET_",
];
/// Options of the submission, under names of that kind.
const OPTIONS: [&str; 3] = [
    "SLURM_JOB_DEPENDENCY",
    "SLURM_JOB_LICENSES",
    "SLURM_JOB_SEGMENT_SIZE",
];
const OWN_NAMES: [&str; 24] = [
    "SLURMD_NODENAME",
    "SLURM_CLUSTER_NAME",
    "SLURM_CPUS_ON_NODE",
    "SLURM_CPUS_PER_TASK",
    "SLURM_GPUS_ON_NODE",
    "SLURM_GTIDS",
    "SLURM_LOCALID",
    "SLURM_MEM_PER_CPU",
    "SLURM_MEM_PER_GPU",
    "SLURM_MEM_PER_NODE",
    "SLURM_NNODES",
    "SLURM_NODEID",
    "SLURM_NODELIST",
    "SLURM_NODE_ALIASES",
    "SLURM_NPROCS",
    "SLURM_NTASKS",
    "SLURM_PRIO_PROCESS",
    "SLURM_PROCID",
    "SLURM_RESTART_COUNT",
    "SLURM_SUBMIT_DIR",
    "SLURM_SUBMIT_HOST",
    "SLURM_TOPOLOGY_ADDR",
    "SLURM_TOPOLOGY_ADDR_PATTERN",
    "SLURM_UMASK",
];

/// What `pmi` tells a task.
const PMI_NAMES: [&str; 4] = ["PMI_FD", "PMI_RANK", "PMI_SIZE", "PMI_JOBID"];

/// How the name of a step begins in PMIx.
pub const PMIX_SPACE: &str = "gpupool.";

/// What the PMIx server of an outer step told its task; settings of the user's own stay.
fn is_of_pmix_server(name: &str) -> bool {
    name.starts_with("PMIX_") && !name.starts_with("PMIX_MCA_")
}

/// Environment of the batch script or command: `NAME=value` in the order of the names.
pub fn batch(order: &LaunchOrder, setup: &RunSetup, started: Timestamp) -> Vec<String> {
    let mut env = Variables::inherited(&order.environment, setup);
    // Login files and scripts recognise a batch job by it; a value of the user's own stays.
    env.set_if_absent("ENVIRONMENT", "BATCH");
    user_variables(&mut env, setup, order);
    job_variables(&mut env, order, setup);
    // As later Slurms than 22.05 have it: programs write their last checkpoint by the second.
    env.slurm(START_TIME, started.secs().to_string());
    if let Some(limit) = order.limit_secs {
        env.slurm(END_TIME, (started.secs() + i64::from(limit)).to_string());
    }
    ranks::of_batch(&mut env, &setup.meeting.batch);
    // A batch script is task 0 of its node.
    task_variables(
        &mut env,
        &TaskPlace {
            rank: 0,
            local: 0,
            node_index: order.node_index,
            node_ranks: &[0],
        },
    );
    env.lines()
}

/// What the user's login shell begins with: as much as a login has, and what the node's configuration and its PAM session give.
pub fn login(order: &LaunchOrder, setup: &RunSetup) -> Vec<String> {
    let mut env = Variables::inherited(&[], setup);
    env.set_if_absent("ENVIRONMENT", "BATCH");
    env.set("USER", &order.user.name);
    env.set("LOGNAME", &order.user.name);
    env.set_if_absent("HOME", &setup.home);
    env.set_if_absent("SHELL", &setup.shell);
    env.set_if_absent("PATH", DEFAULT_PATH);
    env.lines()
}

/// Environment of one task of a step. `local` is its position in `step.ranks`.
pub fn task(
    order: &LaunchOrder,
    setup: &RunSetup,
    step: &StepOrder,
    local: usize,
    bound: &TaskBinding,
) -> Vec<String> {
    let mut env = Variables::inherited(&step.environment, setup);
    user_variables(&mut env, setup, order);
    job_variables(&mut env, order, setup);
    // Those of the script, which grun runs in: each node began at a moment of its own.
    for word in [START_TIME, END_TIME] {
        let name = format!("SLURM_{word}=");
        step.environment
            .iter()
            .filter_map(|line| line.strip_prefix(&name))
            .for_each(|value| env.slurm(word, value));
    }
    let place = TaskPlace {
        rank: step.ranks.get(local).copied().unwrap_or(0),
        local: local as u32,
        node_index: step.node_index,
        node_ranks: &step.ranks,
    };
    task_variables(&mut env, &place);
    step_variables(&mut env, order, setup, step);
    binding_variables(&mut env, order, setup, bound);
    ranks::of_task(&mut env, step, &place, bound);
    env.lines()
}

/// Variables by name; `slurm` also sets the `GSUB_` twin.
#[derive(Default)]
struct Variables(BTreeMap<String, String>);

/// Where a task stands among the others.
struct TaskPlace<'a> {
    rank: u32,
    local: u32,
    node_index: u32,
    node_ranks: &'a [u32],
}

impl Variables {
    fn inherited(submission: &[String], setup: &RunSetup) -> Variables {
        let mut env = Variables::default();
        let lines = || submission.iter().filter_map(|line| line.split_once('='));
        let known: BTreeMap<&str, &str> = lines().collect();
        let given = given_names(|name| known.get(name).copied());
        let of_pmix = known.get("PMIX_NAMESPACE");
        let is_in_pmix = of_pmix.is_some_and(|space| space.starts_with(PMIX_SPACE));
        for (name, value) in lines() {
            // A descriptor of an outer step's is not open here.
            let is_pmi = known.contains_key("PMI_FD") && PMI_NAMES.contains(&name);
            if !name.is_empty()
                && !is_own(name)
                && !given.contains(&name)
                && !is_pmi
                && !(is_in_pmix && is_of_pmix_server(name))
            {
                env.set(name, value);
            }
        }
        for (name, value) in setup
            .environment
            .iter()
            .filter_map(|line| line.split_once('='))
        {
            env.set(name, value);
        }
        env
    }

    fn set(&mut self, name: &str, value: impl Into<String>) {
        self.0.insert(name.to_owned(), value.into());
    }

    fn set_if_absent(&mut self, name: &str, value: &str) {
        if !value.is_empty() {
            self.0
                .entry(name.to_owned())
                .or_insert_with(|| value.to_owned());
        }
    }

    /// Puts a directory last in PATH, unless it is empty or there already.
    fn append_to_path(&mut self, dir: &str) {
        let path = self.0.entry("PATH".to_owned()).or_default();
        // An empty PATH is the user's word: nothing but what is here.
        if !dir.is_empty() && !path.is_empty() && path.split(':').all(|one| one != dir) {
            *path = format!("{path}:{dir}");
        }
    }

    /// `SLURM_<word>` and `GSUB_<word>`.
    fn slurm(&mut self, word: &str, value: impl ToString) {
        let value = value.to_string();
        self.set(&format!("GSUB_{word}"), value.clone());
        self.set(&format!("SLURM_{word}"), value);
    }

    fn lines(self) -> Vec<String> {
        self.0
            .into_iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect()
    }
}

fn is_own(name: &str) -> bool {
    let slurm = match name.strip_prefix("GSUB_") {
        Some(
            "ATTEMPT" | "NODENAME" | "GPU_UUIDS" | "GPU_RAILS" | "LAST_MARK" | "MARK_SOCKET"
            | "NODEFILE" | "MASTER_ADDR" | "MASTER_PORT",
        ) => {
            return true;
        }
        Some(word) => format!("SLURM_{word}"),
        None => name.to_owned(),
    };
    if OPTIONS.contains(&name) {
        return false;
    }
    OWN_NAMES.contains(&slurm.as_str())
        || OWN_PREFIXES.iter().any(|prefix| slurm.starts_with(prefix))
}

fn user_variables(env: &mut Variables, setup: &RunSetup, order: &LaunchOrder) {
    env.set("USER", &order.user.name);
    env.set("LOGNAME", &order.user.name);
    env.set_if_absent("HOME", &setup.home);
    env.set_if_absent("SHELL", &setup.shell);
    env.set_if_absent("PATH", DEFAULT_PATH);
    env.append_to_path(&setup.slurm_names);
    // The shell that submitted stood elsewhere.
    env.0.remove("OLDPWD");
    env.set("PWD", &order.work_dir);
    match setup.private_tmp.is_empty() {
        true => env.set_if_absent("TMPDIR", "/tmp"),
        false => env.set("TMPDIR", "/tmp"),
    }
}

fn job_variables(env: &mut Variables, order: &LaunchOrder, setup: &RunSetup) {
    for (word, value) in job_words(order) {
        env.slurm(word, value);
    }
    for (word, value) in part_words(order) {
        env.slurm(&word, value);
    }
    if let Some(run) = order.run {
        env.set("GSUB_ATTEMPT", run.attempt.to_string());
    }
    if let Some(mark) = &order.last_mark {
        env.set("GSUB_LAST_MARK", mark);
    }
    env.slurm("JOB_UID", setup.uid);
    env.slurm("JOB_GID", setup.gid);
    env.slurm("PRIO_PROCESS", 0);
    env.set("HOSTNAME", &setup.node_name);
    env.set("SLURMD_NODENAME", &setup.node_name);
    env.set("GSUB_NODENAME", &setup.node_name);
    let above = |name: &dyn Fn(&str) -> String| {
        order
            .switches
            .iter()
            .map(|switch| name(switch) + ".")
            .collect::<String>()
    };
    env.slurm(
        "TOPOLOGY_ADDR",
        above(&|switch| switch.to_owned()) + &setup.node_name,
    );
    env.slurm(
        "TOPOLOGY_ADDR_PATTERN",
        above(&|_| "switch".to_owned()) + "node",
    );
    env.slurm("CPUS_ON_NODE", order.cpus);
    gpu_variables(env, order, setup);
    if let Some(array) = &order.array {
        env.slurm("ARRAY_JOB_ID", array.array);
        env.slurm("ARRAY_TASK_ID", array.index);
        env.slurm("ARRAY_TASK_COUNT", array.count);
        env.slurm("ARRAY_TASK_MIN", array.min);
        env.slurm("ARRAY_TASK_MAX", array.max);
        env.slurm("ARRAY_TASK_STEP", array.step);
    }
}

/// A job without a GPU gets an empty list, or CUDA would try whatever the fence is about to deny.
fn gpu_variables(env: &mut Variables, order: &LaunchOrder, setup: &RunSetup) {
    let uuids = visible_variables(env, order, setup.gpus.iter());
    // What container runtimes look at.
    env.set(
        "NVIDIA_VISIBLE_DEVICES",
        if uuids.is_empty() { "void" } else { &uuids },
    );
    if !setup.gpus.is_empty() {
        env.slurm("GPUS_ON_NODE", setup.gpus.len());
        env.slurm("JOB_GPUS", gpu_indexes(setup));
    }
    if !order.gpu_rails.is_empty() {
        env.set(
            "GSUB_GPU_RAILS",
            order
                .gpu_rails
                .iter()
                .map(u32::to_string)
                .collect::<Vec<_>>()
                .join(","),
        );
    }
}

/// Returns the UUIDs of the GPUs that CUDA is to use.
fn visible_variables<'a>(
    env: &mut Variables,
    order: &LaunchOrder,
    gpus: impl Iterator<Item = &'a RunGpu>,
) -> String {
    let gpus = visible_gpus(order.visible_devices, gpus);
    env.set("CUDA_VISIBLE_DEVICES", gpus.cuda);
    if gpus.by_address {
        env.set_if_absent("CUDA_DEVICE_ORDER", "PCI_BUS_ID");
    }
    if !gpus.uuids.is_empty() {
        env.set("GSUB_GPU_UUIDS", gpus.uuids.as_str());
    }
    gpus.uuids
}

/// What the task is bound to, in srun's variables; nothing where it is bound to nothing.
fn binding_variables(
    env: &mut Variables,
    order: &LaunchOrder,
    setup: &RunSetup,
    bound: &TaskBinding,
) {
    if let Some(gpus) = &bound.gpus {
        visible_variables(
            env,
            order,
            gpus.iter().filter_map(|at| setup.gpus.get(*at as usize)),
        );
    }
    if let Some(cpus) = &bound.cpus {
        env.slurm(
            "CPU_BIND_VERBOSE",
            if bound.verbose { "verbose" } else { "quiet" },
        );
        env.slurm("CPU_BIND_TYPE", "mask_cpu:");
        env.slurm("CPU_BIND_LIST", mask_text(cpus));
    }
}

fn gpu_indexes(setup: &RunSetup) -> String {
    setup
        .gpus
        .iter()
        .map(|gpu| gpu.index.to_string())
        .collect::<Vec<_>>()
        .join(",")
}

fn task_variables(env: &mut Variables, place: &TaskPlace<'_>) {
    env.slurm("PROCID", place.rank);
    env.slurm("LOCALID", place.local);
    env.slurm("NODEID", place.node_index);
    env.slurm(
        "GTIDS",
        place
            .node_ranks
            .iter()
            .map(u32::to_string)
            .collect::<Vec<_>>()
            .join(","),
    );
}

fn step_variables(env: &mut Variables, order: &LaunchOrder, setup: &RunSetup, step: &StepOrder) {
    let nodes = hostlist::compress(&step.nodes);
    env.slurm("STEP_ID", step.step);
    env.slurm("STEPID", step.step);
    env.slurm("STEP_NODELIST", &nodes);
    env.slurm("STEP_NUM_NODES", step.nodes.len());
    env.slurm("STEP_NUM_TASKS", step.ntasks);
    env.slurm("NTASKS", step.ntasks);
    env.slurm("NPROCS", step.ntasks);
    if !step.node_tasks.is_empty() {
        let per_node = run_lengths(step.node_tasks.iter().copied());
        env.slurm("STEP_TASKS_PER_NODE", &per_node);
        env.slurm("TASKS_PER_NODE", per_node);
    }
    env.slurm("NNODES", step.nodes.len());
    env.slurm("UMASK", format!("{:04o}", order.umask));
    if step.cpus_per_task > 0 {
        env.slurm("CPUS_PER_TASK", step.cpus_per_task);
    }
    if !setup.gpus.is_empty() {
        env.slurm("STEP_GPUS", gpu_indexes(setup));
    }
    if !step.work_dir.is_empty() {
        env.set("PWD", &step.work_dir);
    }
}

#[cfg(test)]
mod tests;
