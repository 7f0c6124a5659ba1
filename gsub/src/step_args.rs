//! The command line of `grun`: its options, their help, and the words of srun that change nothing here. Source: srun(1).

use crate::container_words::ContainerArgs;
use crate::environment::Export;
use crate::forwarded_port::ForwardedPort;
use crate::resources::node_range;
use crate::step_components::Components;
use crate::step_input::{self, InputWord};
use crate::step_mpi::{self, MpiWord};
use crate::step_turn::ShareWords;
use crate::tres_words;
use clap::{CommandFactory, Parser};
use gcli::pages::ManPage;
use gmodel::binding::{BadBinding, CpuBind, GpuBind};
use gmodel::duration::TimeLimit;
use gmodel::parallel::Rendezvous;
use gmodel::task_distribution::TaskDistribution;
use std::time::Duration;

const EXAMPLES: &str = "\
Outside of a job, in an allocation of its own:
  grun --gpus 2 -t 1:00:00 nvidia-smi      waits, runs, and ends the allocation with the step's code
  grun -p debug -N2 --ntasks-per-node 4 ./rank
All options of gsub that ask for nodes are taken there (gsub --help); -N, -n, -c, -t, --gpus, --mem and
the like are the job's then. --immediate[=SECONDS] gives up if it does not start by then. Ctrl-C while
it waits cancels it. It ends when grun was not heard for the partition's detached_time.

Inside a job script:
  grun hostname                   one task for each task of the job
  grun -N 2 -n 2 --label ./rank   two tasks on two nodes, output marked with the rank
  grun --gpu-bind=closest ./rank  each task on the GPUs near its CPUs
  grun -i0 ./rank < parameters    the first task reads the file, the others nothing
  grun -N1 -n1 -w node2 ./head &  one task on this node of the job
  grun -N2 --ntasks-per-node 1 sh -c 'torchrun --nnodes $SLURM_NNODES --node-rank $NODE_RANK \
      --master-addr $MASTER_ADDR --master-port $MASTER_PORT --nproc-per-node 8 train.py'
  grun --mpi=pmi2 -n 64 ./solver  ranks of MPICH (Open MPI: pmix); when one dies the step ends
  grun -K -o rank-%t.log ./rank   a file for each task; when one fails, all end
  grun --pty bash                 a shell in the job; ~. leaves it, grun --reattach 17.0 comes back
  grun -n1 ./master : -n4 ./worker  one step of two programs: the first rank is the master. In a job of
                                  unlike parts each is in a component of its own
  grun --jobid 17 --forward 8888  port 8888 of job 17 on this machine, until Ctrl-C
  for i in $(seq 100); do grun --exact -n1 --gpus 1 ./one $i & done; wait
                                  a hundred steps, as many at a time as the job has CPUs and GPUs

SLURM_CPU_BIND, SLURM_GPU_BIND, SLURM_EXPORT_ENV, SLURM_OVERCOMMIT and SLURM_MPI_TYPE in the environment
are as --cpu-bind, --gpu-bind, --export, --overcommit and --mpi; a job of gsub --export has the third.
Every task reads all of grun's input. In a loop that reads a list itself, give grun -i none, or it
takes the rest of the list. In a job of gsub --gpus-per-task each task has GPUs of its own, unless
--gpu-bind says otherwise.
Tasks have MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE and the like; --rendezvous jax or none, here,
for the job or in GSUB_RENDEZVOUS, changes that.
grun returns the highest exit code of its tasks.";

/// Of options that a running job does not take from a step.
const OF_JOB: &str = "it is for the job, give it to gsub";

#[derive(Clone, Parser)]
#[command(name = "grun", version, about = "Start tasks on the nodes of a running job, or of an allocation of their own", after_help = EXAMPLES)]
pub(crate) struct StepArgs {
    /// Nodes of the job to use; of a range as many as the job has
    #[arg(short = 'N', long, value_name = "N[-MAX]", value_parser = node_range)]
    pub nodes: Option<(u32, u32)>,
    /// Tasks to start
    #[arg(short = 'n', long, value_name = "N")]
    pub ntasks: Option<u32>,
    /// Tasks on each node; with --ntasks the most on one
    #[arg(long, alias = "tasks-per-node", value_name = "N")]
    pub ntasks_per_node: Option<u32>,
    /// Nodes of the job that the step must be on: node[1-2]
    #[arg(short = 'w', long, value_name = "NODES")]
    pub nodelist: Option<String>,
    /// Nodes of the job that the step must not be on
    #[arg(short = 'x', long, value_name = "NODES")]
    pub exclude: Option<String>,
    /// CPUs of each task, as --exact has them
    #[arg(short = 'c', long, value_name = "N")]
    pub cpus_per_task: Option<u32>,
    /// CPUs of its own for the step, --cpus-per-task for each task or as many as the job's tasks have; it waits for them
    #[arg(long, alias = "exclusive")]
    pub exact: bool,
    /// GPUs of its own for the step: a number, or type:number; it waits for them. 0: none
    #[arg(short = 'G', long, value_name = "N")]
    pub gpus: Option<String>,
    /// The same for each of its nodes
    #[arg(long, value_name = "N")]
    pub gpus_per_node: Option<String>,
    /// The same for each of its nodes, as gpu:N, gpu:type:N or none
    #[arg(long, value_name = "GRES")]
    pub gres: Option<String>,
    /// Memory of the step on each node: it waits until other such steps leave as much, and may have no more
    #[arg(long, value_name = "SIZE")]
    pub mem: Option<String>,
    /// The same for each CPU of an --exact step
    #[arg(long, value_name = "SIZE")]
    pub mem_per_cpu: Option<String>,
    /// The same for each of the step's GPUs
    #[arg(long, value_name = "SIZE")]
    pub mem_per_gpu: Option<String>,
    /// Begin with this node of the job, counted from 0
    #[arg(
        short,
        long,
        value_name = "N",
        default_value_t = 0,
        hide_default_value = true
    )]
    pub relative: u32,
    /// How ranks lie on the nodes: block, as without this, fills one after the other; cyclic goes round; plane=4 with 4 at a time
    #[arg(short = 'm', long, value_name = "HOW", value_parser = TaskDistribution::parse)]
    pub distribution: Option<TaskDistribution>,
    /// GPUs of its own for each task of the step, which sees no others; it waits for them
    #[arg(long, value_name = "N", conflicts_with = "gpu_bind")]
    pub gpus_per_task: Option<String>,
    /// CPUs of each task: none (all of the job), cores, threads, map_cpu:LIST, mask_cpu:LIST; verbose, before it says which
    #[arg(long, alias = "cpu_bind", value_name = "SPEC", value_parser = cpu_bind)]
    pub cpu_bind: Option<String>,
    /// GPUs of each task: none (all of the job), closest, single:N, per_task:N, map_gpu:LIST, mask_gpu:LIST; verbose, before it says which
    #[arg(long, value_name = "SPEC", value_parser = gpu_bind)]
    pub gpu_bind: Option<String>,
    /// The same as gres/gpu:SPEC, with map:LIST and mask:LIST
    #[arg(long, value_name = "SPEC", value_parser = tres_words::gpu_bind, conflicts_with_all = ["gpu_bind", "gpus_per_task"])]
    pub tres_bind: Option<String>,
    /// Put the rank before each line of output
    #[arg(short, long)]
    pub label: bool,
    /// What happens to a file that is there: truncate or append
    #[arg(long, value_name = "MODE", default_value = "truncate", value_parser = ["truncate", "append", "t", "a"])]
    pub open_mode: String,
    /// Which tasks read grun's standard input: all, none, or one by its rank; or a file that all read
    #[arg(short, long, value_name = "WHICH", default_value = "all", value_parser = step_input::reads)]
    pub input: InputWord,
    /// File for the tasks' stdout: %t rank, %N node, %j job, %s step; none, all for grun's own, or a rank for that task's alone
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<String>,
    /// File for their stderr; without it stderr goes where stdout goes
    #[arg(short, long, value_name = "FILE")]
    pub error: Option<String>,
    /// End all tasks when one fails
    #[arg(short = 'K', long, value_name = "0|1", num_args = 0..=1, default_missing_value = "1", require_equals = true, value_parser = ["0", "1"])]
    pub kill_on_bad_exit: Option<String>,
    /// End the others so many seconds after the first task has ended; 0: wait for them
    #[arg(
        short = 'W',
        long,
        value_name = "SECONDS",
        default_value_t = 0,
        hide_default_value = true
    )]
    pub wait: u32,
    /// End the step after this time: minutes, or as gsub has it
    #[arg(short, long, value_name = "TIME", value_parser = TimeLimit::parse)]
    pub time: Option<TimeLimit>,
    /// Environment of the tasks: ALL, NONE, or NAME,NAME=VALUE
    #[arg(long, value_name = "LIST", value_parser = Export::parse)]
    pub export: Option<Export>,
    /// Name of the step, for listings; without it that of the command
    #[arg(short = 'J', long, value_name = "NAME")]
    pub job_name: Option<String>,
    /// Print output as it comes; without it the lines of several tasks come whole
    #[arg(short, long)]
    pub unbuffered: bool,
    /// Wait for nothing: what the step asks for it shares with the job's other steps
    #[arg(long)]
    pub overlap: bool,
    /// The job to start tasks in, instead of the one around
    #[arg(long, value_name = "JOB")]
    pub jobid: Option<gmodel::JobId>,
    /// The components of a job of unlike parts to start tasks in, 0 or 0,2-3: 0 is the script's own. From the job's script
    #[arg(long, alias = "pack-group", value_name = "LIST", conflicts_with = "jobid", value_parser = Components::parse)]
    pub het_group: Option<Components>,
    /// The command is a file that says which tasks run what, a line for the ranks of each: 0-3 ./worker %t
    #[arg(long)]
    pub multi_prog: bool,
    /// Give the first task a terminal, and this one for it: grun --pty bash is a shell
    #[arg(long)]
    pub pty: bool,
    /// Come back to a step with a terminal, as after a lost connection: 17.0
    #[arg(long, value_name = "JOB.STEP", value_parser = step_name, conflicts_with_all = ["command", "jobid", "pty"])]
    pub reattach: Option<(gmodel::JobId, u32)>,
    /// Show what a running step writes, beside its own grun, as sattach: 17.0
    #[arg(long, value_name = "JOB.STEP", conflicts_with_all = ["command", "jobid", "pty", "reattach"])]
    pub watch: Option<String>,
    /// Bring a port of the job here: 8888, or PORT:HOST:PORT with the host and port that the job sees. May be given again
    #[arg(long, value_name = "PORT[:HOST:PORT]", conflicts_with_all = ["command", "pty", "reattach"])]
    pub forward: Vec<ForwardedPort>,
    /// Be the ProxyCommand of ssh for a job: gpupool-17. See gadm ssh-config
    #[arg(long, value_name = "HOST", conflicts_with_all = ["command", "jobid", "pty", "reattach", "forward"])]
    pub ssh: Option<String>,
    /// How MPI ranks find each other: pmi2, for MPICH and its kin; pmix, for Open MPI; none, for mpirun in the script; list says which there are
    #[arg(long, value_name = "TYPE", value_parser = step_mpi::parse)]
    pub mpi: Option<MpiWord>,
    /// For which framework the tasks have variables beside SLURM_*: torch (MASTER_ADDR, MASTER_PORT, RANK and the like), jax or none
    #[arg(long, value_name = "torch|jax|none", value_parser = Rendezvous::parse)]
    pub rendezvous: Option<Rendezvous>,
    /// Say nothing besides errors
    #[arg(short = 'Q', long)]
    pub quiet: bool,
    /// Say which tasks are on which node
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// More tasks than the job has CPUs on the nodes of the step
    #[arg(short = 'O', long)]
    pub overcommit: bool,
    /// One task a node that starts others itself, as mpirun does: nothing of the job is narrowed for it, whatever the job's own tasks have
    #[arg(long, value_name = "SPEC", num_args = 0..=1, default_missing_value = "", require_equals = true, conflicts_with_all = ["exact", "cpus_per_task", "gpus", "gpus_per_node", "gpus_per_task", "gres", "mem", "mem_per_cpu", "mem_per_gpu"])]
    pub external_launcher: Option<String>,
    /// Program of this machine's file systems that each task begins with; its lines `export NAME=VALUE`, `unset NAME` and `print TEXT` are followed
    #[arg(long, value_name = "FILE")]
    pub task_prolog: Option<String>,
    /// Program that runs after each task
    #[arg(long, value_name = "FILE")]
    pub task_epilog: Option<String>,
    /// Soft limits of this process that its tasks have: ALL, as without it inside of a job, NONE, or a list as NOFILE,STACK
    #[arg(long, value_name = "LIMITS", num_args = 0..=1, default_missing_value = "ALL", require_equals = true)]
    pub propagate: Option<String>,
    /// Send the program to all nodes first, under this name there; one that ends with / is a directory
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "", require_equals = true, conflicts_with_all = ["multi_prog", "pty"])]
    pub bcast: Option<String>,
    /// Tasks for each GPU of the step, or of the job: how many tasks there are
    #[arg(long, value_name = "N", conflicts_with_all = ["ntasks", "ntasks_per_node"], value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub ntasks_per_gpu: Option<u32>,
    /// How long it waits at most for what it asks for.
    #[arg(skip)]
    pub immediate: Option<Duration>,
    /// Options of the job that scripts give to srun, too: in a running job nothing comes of them there either.
    #[command(flatten)]
    pub of_job: OptionsOfJob,
    #[command(flatten)]
    pub container: ContainerArgs,
    /// Directory the tasks start in
    #[arg(short = 'D', long, value_name = "DIR")]
    pub chdir: Option<String>,
    /// What to start
    #[arg(
        required_unless_present_any = ["reattach", "watch", "forward", "ssh"],
        trailing_var_arg = true,
        value_name = "COMMAND"
    )]
    pub command: Vec<String>,
}

/// What only a job has. Such words are told to change nothing.
#[derive(Clone, clap::Args)]
pub(crate) struct OptionsOfJob {
    #[arg(short = 'p', long, hide = true)]
    partition: Option<String>,
    #[arg(short = 'A', long, hide = true)]
    account: Option<String>,
    #[arg(short = 'q', long, hide = true)]
    qos: Option<String>,
    #[arg(short = 'C', long, hide = true)]
    constraint: Option<String>,
    #[arg(long, hide = true)]
    reservation: Option<String>,
    #[arg(long, hide = true)]
    comment: Option<String>,
    /// Memory comes from where the kernel has it nearest, as without these words.
    #[arg(long, alias = "mem_bind", hide = true)]
    mem_bind: Option<String>,
    #[arg(short = 'M', long, hide = true)]
    pub clusters: Option<String>,
    #[arg(long, hide = true)]
    cpus_per_gpu: Option<String>,
    #[arg(long, hide = true)]
    signal: Option<String>,
    #[arg(short = 'k', long, num_args = 0..=1, require_equals = true, default_missing_value = "", hide = true)]
    no_kill: Option<String>,
    #[arg(long, hide = true)]
    accel_bind: Option<String>,
    /// A status is never shown; an interrupt is told in other words.
    #[arg(short = 'X', long, hide = true)]
    pub disable_status: bool,
    #[arg(short = 'T', long, hide = true)]
    threads: Option<String>,
    #[arg(short = 'E', long, hide = true)]
    preserve_env: bool,
}

impl OptionsOfJob {
    /// Options of srun of which nothing comes in any job, whether they were given, and why.
    fn unused(&self) -> [(&'static str, bool, &'static str); 6] {
        [
            (
                "--cpus-per-gpu",
                self.cpus_per_gpu.is_some(),
                "--cpus-per-task says how many CPUs a task has",
            ),
            ("--signal", self.signal.is_some(), OF_JOB),
            ("--no-kill", self.no_kill.is_some(), OF_JOB),
            (
                "--accel-bind",
                self.accel_bind.is_some(),
                "--gpu-bind says which GPUs a task has",
            ),
            (
                "--threads",
                self.threads.is_some(),
                "each node has a stream of its own",
            ),
            (
                "--preserve-env",
                self.preserve_env,
                "nodes and tasks are counted for each step",
            ),
        ]
    }

    /// One line for each, unless the job has just that.
    pub fn notes(&self, variable: impl Fn(&str) -> Option<String>) -> Vec<String> {
        let all = [
            ("--partition", &self.partition, "SLURM_JOB_PARTITION"),
            ("--account", &self.account, "SLURM_JOB_ACCOUNT"),
            ("--qos", &self.qos, "SLURM_JOB_QOS"),
            ("--constraint", &self.constraint, "SLURM_JOB_CONSTRAINTS"),
            ("--reservation", &self.reservation, "SLURM_JOB_RESERVATION"),
            ("--comment", &self.comment, "SLURM_JOB_COMMENT"),
        ];
        let differs = all
            .into_iter()
            .filter(|(_, given, name)| given.is_some() && **given != variable(name));
        let of_job = differs.map(|(flag, given, _)| {
            format!(
                "{flag} {} changes nothing here: {OF_JOB}",
                given.as_deref().unwrap_or_default()
            )
        });
        let bound = self
            .mem_bind
            .as_deref()
            .filter(|word| !["none", "no", "quiet", "q", "local"].contains(word));
        let others = self
            .unused()
            .into_iter()
            .filter(|(_, is_given, _)| *is_given);
        of_job
            .chain(bound.map(|word| {
                format!("--mem-bind {word} changes nothing here: memory is not bound to NUMA nodes")
            }))
            .chain(others.map(|(flag, _, why)| format!("{flag} changes nothing here: {why}")))
            .collect()
    }
}

impl StepArgs {
    pub fn share_words(&self) -> ShareWords<'_> {
        ShareWords {
            exact: self.exact,
            overlap: self.overlap,
            cpus_per_task: self.cpus_per_task,
            mem: self.mem.as_deref(),
            mem_per_cpu: self.mem_per_cpu.as_deref(),
            mem_per_gpu: self.mem_per_gpu.as_deref(),
            gpus: self.gpus.as_deref(),
            gpus_per_node: self.gpus_per_node.as_deref(),
            gpus_per_task: self.gpus_per_task.as_deref(),
            gres: self.gres.as_deref(),
        }
    }
}

/// The command line as clap knows it. As in srun options can be given again, and the last counts.
pub(crate) fn command() -> clap::Command {
    StepArgs::command().args_override_self(true)
}

/// The man page of grun.
pub fn page() -> ManPage {
    ManPage {
        command: command(),
        section: "1",
        exit_status: "Else the highest of its tasks: what each exits with, or 128 and the number of the signal that ended it.",
        see_also: "gsub(1), gq(1), gacct(1), gpupool(7)",
    }
}

/// `17.0`
fn step_name(text: &str) -> Result<(gmodel::JobId, u32), &'static str> {
    let read = || {
        let (job, step) = text.split_once('.')?;
        Some((job.parse().ok()?, step.parse().ok()?))
    };
    read().ok_or("a job and the number of its step, as gq --steps lists them: 17.0")
}

pub(crate) fn cpu_bind(text: &str) -> Result<String, BadBinding> {
    CpuBind::parse(text).map(|_| text.to_owned())
}

pub(crate) fn gpu_bind(text: &str) -> Result<String, BadBinding> {
    GpuBind::parse(text).map(|_| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::FromArgMatches;

    #[test]
    fn options_of_the_job_are_said_to_change_nothing_unless_the_job_has_them() {
        let args =
            StepArgs::try_parse_from(["grun", "-p", "main", "-A", "phys", "-C", "ib", "true"])
                .unwrap();
        let notes = args
            .of_job
            .notes(|name| (name == "SLURM_JOB_PARTITION").then(|| "main".to_owned()));
        let want = ["--account phys", "--constraint ib"]
            .map(|what| format!("{what} changes nothing here: it is for the job, give it to gsub"));
        assert_eq!(notes, want);
        let bound = |word: &str| {
            StepArgs::try_parse_from(["grun", "--mem-bind", word, "true"])
                .unwrap()
                .of_job
                .notes(|_| None)
        };
        assert_eq!(
            (bound("local"), bound("rank").len()),
            (Vec::new(), 1),
            "memory is local anyway"
        );
    }

    #[test]
    fn scripts_for_srun_may_say_the_same_twice() {
        let words = [
            "grun",
            "-n2",
            "--exact",
            "--exclusive",
            "--gpus-per-task=0",
            "--gres=none",
            "-u",
            "-n",
            "1",
            "true",
        ];
        let args =
            StepArgs::from_arg_matches(&command().try_get_matches_from(words).unwrap()).unwrap();
        assert!(
            args.exact
                && args
                    .share_words()
                    .gpus()
                    .unwrap()
                    .is_some_and(|gpus| gpus.count == 0)
        );
        assert_eq!(args.ntasks, Some(1), "the last counts");
    }

    #[test]
    fn options_end_where_the_command_begins() {
        let read = |words: &[&str]| StepArgs::try_parse_from([&["grun"], words].concat()).unwrap();
        let args = read(&["-n1", "-N", "2", "-l", "bash", "-c", "exit 1", "-n5"]);
        assert_eq!(
            (args.ntasks, args.nodes, args.label),
            (Some(1), Some((2, 2)), true)
        );
        assert_eq!(args.command, ["bash", "-c", "exit 1", "-n5"]);
        assert_eq!(read(&["--", "-x"]).command, ["-x"]);
        assert!(StepArgs::try_parse_from(["grun", "--nosuch", "true"]).is_err());
    }
}
