//! `grun`: start tasks inside a running job, on its nodes, and bring their output together. Source: srun(1).
//!
//! The controller counts the step and tells the nodes; their supervisors connect back here with a secret and
//! stream output and exits. When grun ends, its tasks end.

use crate::environment::{self, Export, describes_job};
use crate::multi_prog;
use crate::step_gathering::{EndConditions, StepGathering, accept, forward_signals, own_name};
use crate::step_input::{self, InputRanks};
use crate::step_output::{StepFiles, StepJob};
use crate::step_refusal;
use crate::step_turn::{self, ShareWords, TasksOfJob};
use clap::{CommandFactory, FromArgMatches, Parser};
use gcli::pages::ManPage;
use gcli::{Failure, Outcome, command_line};
use gmodel::ExitCode;
use gmodel::binding::{BadBinding, CpuBind, GpuBind};
use gmodel::byte_text;
use gmodel::duration::TimeLimit;
use gmodel::gpu_request::{GpuAmount, GpuRequest};
use gmodel::run::Usage;
use gmodel::signal::MAX_SIGNAL;
use gmodel::step_share::{GpuCountUnit, StepGpus};
use gwire::api::{StepEndRequest, StepReply, StepRequest};
use gwire::client::Client;
use nix::sys::signal::{SigSet, Signal};
use std::ffi::OsString;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::mpsc;
use std::time::Duration;

/// Where the nodes read how tasks are bound, as srun has it.
const CPU_BIND: &str = "SLURM_CPU_BIND";
const GPU_BIND: &str = "SLURM_GPU_BIND";
/// What `gsub --export` said, and srun takes for its own where it is given none.
const EXPORT: &str = "SLURM_EXPORT_ENV";
/// What `gsub --gpus-per-task` told the job; without --gpu-bind it is the tasks' binding, as srun takes it.
const GPUS_PER_TASK: &str = "SLURM_GPUS_PER_TASK";
/// Time the controller has to take note of a step's end.
const END_PATIENCE: Duration = Duration::from_secs(2);
/// Messages in flight: tasks that write faster than we print wait in their pipes.
const CHANNEL: usize = 1024;

const EXAMPLES: &str = "\
Inside a job script:
  grun hostname                   one task for each task of the job
  grun -N 2 -n 2 --label ./rank   two tasks on two nodes, output marked with the rank
  grun --gpu-bind=closest ./rank  each task on the GPUs near its CPUs
  grun -i0 ./rank < parameters    the first task reads the file, the others nothing
  grun -N1 -n1 -w node2 ./head &  one task on this node of the job
  grun -K -o rank-%t.log ./rank   a file for each task; when one fails, all end
  for i in $(seq 100); do grun --exact -n1 --gpus 1 ./one $i & done; wait
                                  a hundred steps, as many at a time as the job has CPUs and GPUs

SLURM_CPU_BIND, SLURM_GPU_BIND, SLURM_EXPORT_ENV and SLURM_OVERCOMMIT in the environment are as
--cpu-bind, --gpu-bind, --export and --overcommit; a job of gsub --export has the third of them.
Every task reads all of grun's input. In a loop that reads a list itself, give grun -i none, or it
takes the rest of the list. In a job of gsub --gpus-per-task each task has GPUs of its own, unless
--gpu-bind says otherwise.
grun returns the highest exit code of its tasks.";

#[derive(Parser)]
#[command(name = "grun", version, about = "Start tasks on the nodes of a running job", after_help = EXAMPLES)]
struct StepArgs {
    /// Nodes of the job to use
    #[arg(short = 'N', long, value_name = "N")]
    nodes: Option<u32>,
    /// Tasks to start
    #[arg(short = 'n', long, value_name = "N")]
    ntasks: Option<u32>,
    /// Tasks on each node; with --ntasks the most on one
    #[arg(long, alias = "tasks-per-node", value_name = "N")]
    ntasks_per_node: Option<u32>,
    /// Nodes of the job that the step must be on: node[1-2]
    #[arg(short = 'w', long, value_name = "NODES")]
    nodelist: Option<String>,
    /// Nodes of the job that the step must not be on
    #[arg(short = 'x', long, value_name = "NODES")]
    exclude: Option<String>,
    /// CPUs of each task, as --exact has them
    #[arg(short = 'c', long, value_name = "N")]
    cpus_per_task: Option<u32>,
    /// CPUs of its own for the step, --cpus-per-task for each task or as many as the job's tasks have; it waits for them
    #[arg(long, alias = "exclusive")]
    exact: bool,
    /// GPUs of its own for the step: a number, or type:number; it waits for them. 0: none
    #[arg(short = 'G', long, value_name = "N")]
    gpus: Option<String>,
    /// The same for each of its nodes
    #[arg(long, value_name = "N")]
    gpus_per_node: Option<String>,
    /// The same for each of its nodes, as gpu:N, gpu:type:N or none
    #[arg(long, value_name = "GRES")]
    gres: Option<String>,
    /// Memory of the step on each node: it waits until other such steps leave as much, and may have no more
    #[arg(long, value_name = "SIZE")]
    mem: Option<String>,
    /// The same for each CPU of an --exact step
    #[arg(long, value_name = "SIZE")]
    mem_per_cpu: Option<String>,
    /// The same for each of the step's GPUs
    #[arg(long, value_name = "SIZE")]
    mem_per_gpu: Option<String>,
    /// Begin with this node of the job, counted from 0
    #[arg(
        short,
        long,
        value_name = "N",
        default_value_t = 0,
        hide_default_value = true
    )]
    relative: u32,
    /// How ranks lie on the nodes: block fills one after the other, cyclic goes round
    #[arg(short = 'm', long, value_name = "HOW", default_value = "block", value_parser = ["block", "cyclic"])]
    distribution: String,
    /// GPUs of its own for each task of the step, which sees no others; it waits for them
    #[arg(long, value_name = "N", conflicts_with = "gpu_bind")]
    gpus_per_task: Option<String>,
    /// CPUs of each task: none (all of the job), cores, threads, map_cpu:LIST, mask_cpu:LIST; verbose, before it says which
    #[arg(long, value_name = "SPEC", value_parser = cpu_bind)]
    cpu_bind: Option<String>,
    /// GPUs of each task: none (all of the job), closest, single:N, per_task:N, map_gpu:LIST; verbose, before it says which
    #[arg(long, value_name = "SPEC", value_parser = gpu_bind)]
    gpu_bind: Option<String>,
    /// Put the rank before each line of output
    #[arg(short, long)]
    label: bool,
    /// What happens to a file that is there: truncate or append
    #[arg(long, value_name = "MODE", default_value = "truncate", value_parser = ["truncate", "append", "t", "a"])]
    open_mode: String,
    /// Which tasks read grun's standard input: all, none, or one by its rank
    #[arg(short, long, value_name = "WHICH", default_value = "all", value_parser = step_input::reads)]
    input: InputRanks,
    /// File for the tasks' stdout: %t rank, %N node, %j job, %s step; none, all for grun's own, or a rank for that task's alone
    #[arg(short, long, value_name = "FILE")]
    output: Option<String>,
    /// File for their stderr; without it stderr goes where stdout goes
    #[arg(short, long, value_name = "FILE")]
    error: Option<String>,
    /// End all tasks when one fails
    #[arg(short = 'K', long, value_name = "0|1", num_args = 0..=1, default_missing_value = "1", require_equals = true, value_parser = ["0", "1"])]
    kill_on_bad_exit: Option<String>,
    /// End the others so many seconds after the first task has ended; 0: wait for them
    #[arg(
        short = 'W',
        long,
        value_name = "SECONDS",
        default_value_t = 0,
        hide_default_value = true
    )]
    wait: u32,
    /// End the step after this time: minutes, or as gsub has it
    #[arg(short, long, value_name = "TIME", value_parser = TimeLimit::parse)]
    time: Option<TimeLimit>,
    /// Environment of the tasks: ALL, NONE, or NAME,NAME=VALUE
    #[arg(long, value_name = "LIST", value_parser = Export::parse)]
    export: Option<Export>,
    /// Name of the step, for listings; without it that of the command
    #[arg(short = 'J', long, value_name = "NAME")]
    job_name: Option<String>,
    /// Print output as it comes, as always
    #[arg(short, long)]
    unbuffered: bool,
    /// Wait for nothing: what the step asks for it shares with the job's other steps
    #[arg(long)]
    overlap: bool,
    /// The job to start tasks in, instead of the one around
    #[arg(long, value_name = "JOB")]
    jobid: Option<gmodel::JobId>,
    /// The command is a file that says which tasks run what, a line for the ranks of each: 0-3 ./worker %t
    #[arg(long)]
    multi_prog: bool,
    /// How MPI ranks find each other: none, for mpirun in the script or ranks that use SLURM_PROCID
    #[arg(long, value_name = "TYPE", value_parser = mpi)]
    mpi: Option<String>,
    /// Say nothing besides errors
    #[arg(short = 'Q', long)]
    quiet: bool,
    /// Say which tasks are on which node
    #[arg(short, long, action = clap::ArgAction::Count)]
    verbose: u8,
    /// More tasks than the job has CPUs on the nodes of the step
    #[arg(short = 'O', long)]
    overcommit: bool,
    /// One task a node that starts others itself, as mpirun does: nothing of the job is narrowed for it, whatever the job's own tasks have
    #[arg(long, value_name = "SPEC", num_args = 0..=1, default_missing_value = "", require_equals = true, conflicts_with_all = ["exact", "cpus_per_task", "gpus", "gpus_per_node", "gpus_per_task", "gres", "mem", "mem_per_cpu", "mem_per_gpu"])]
    external_launcher: Option<String>,
    /// Options of the job that scripts give to srun, too: in a running job nothing comes of them there either.
    #[command(flatten)]
    of_job: OptionsOfJob,
    /// Directory the tasks start in
    #[arg(short = 'D', long, value_name = "DIR")]
    chdir: Option<String>,
    /// What to start
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// What only a job has. Such words are told to change nothing.
#[derive(clap::Args)]
struct OptionsOfJob {
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
    /// Memory comes from where the kernel has it nearest, as without these words.
    #[arg(long, hide = true)]
    mem_bind: Option<String>,
}

impl OptionsOfJob {
    /// One line for each, unless the job has just that.
    fn notes(&self, variable: impl Fn(&str) -> Option<String>) -> Vec<String> {
        let all = [
            ("--partition", &self.partition, "SLURM_JOB_PARTITION"),
            ("--account", &self.account, "SLURM_JOB_ACCOUNT"),
            ("--qos", &self.qos, "SLURM_JOB_QOS"),
            ("--constraint", &self.constraint, "SLURM_JOB_CONSTRAINTS"),
            ("--reservation", &self.reservation, "SLURM_JOB_RESERVATION"),
        ];
        let differs = all
            .into_iter()
            .filter(|(_, given, name)| given.is_some() && **given != variable(name));
        let of_job = differs.map(|(flag, given, _)| {
            format!(
                "{flag} {} changes nothing here: it is for the job, give it to gsub",
                given.as_deref().unwrap_or_default()
            )
        });
        let bound = self
            .mem_bind
            .as_deref()
            .filter(|word| !["none", "no", "quiet", "q", "local"].contains(word));
        of_job
            .chain(bound.map(|word| {
                format!("--mem-bind {word} changes nothing here: memory is not bound to NUMA nodes")
            }))
            .collect()
    }
}

impl StepArgs {
    fn share_words(&self) -> ShareWords<'_> {
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

/// The man page.
pub fn page() -> ManPage {
    ManPage {
        command: command(),
        section: "1",
        exit_status: "Else the highest of its tasks: what each exits with, or 128 and the number of the signal that ended it.",
        see_also: "gsub(1), gq(1), gacct(1), gpupool(7)",
    }
}

/// `grun` itself.
///
/// # Errors
/// What stood in the way, with the exit code.
pub fn main(words: impl IntoIterator<Item = OsString>) -> Outcome {
    let words = words
        .into_iter()
        .map(|word| OsString::from(byte_text::from_bytes(word.as_bytes())));
    let matches = command_line::parse_explained(command(), words, step_refusal::of_srun)?;
    let mut args = StepArgs::from_arg_matches(&matches).map_err(Failure::usage)?;
    let job = job_of(args.jobid)?;
    let is_around = own_job().is_ok_and(|around| around == job);
    let variable =
        |name: &str| environment::own(name).filter(|_| is_around || !describes_job(name));
    let of_job = TasksOfJob {
        cpus: variable("SLURM_CPUS_PER_TASK")
            .and_then(|text| text.parse().ok())
            .unwrap_or(1),
        gpus: gpus_per_task_of_job(variable),
    };
    if args
        .command
        .split_last()
        .is_some_and(|(_, before)| before.iter().any(|word| word == ":"))
    {
        return Err(Failure::usage(
            "\":\" between commands makes a step of several programs, which is not offered. Say in a file which task runs what, and give --multi-prog",
        ));
    }
    args.exact |= args.cpus_per_task.is_some();
    if args.external_launcher.is_some() {
        // It starts the ranks itself: what the job has for each of its tasks is not for the one that starts them.
        args.gpu_bind.get_or_insert_with(|| "none".to_owned());
        args.cpu_bind.get_or_insert_with(|| "none".to_owned());
    }
    let words = args.share_words();
    let own_gpus = words.gpus()?;
    if words.mem_per_cpu.is_some() && !args.exact {
        return Err(Failure::usage(
            "--mem-per-cpu counts CPUs of the step's own: give --exact or --cpus-per-task, too",
        ));
    }
    args.of_job
        .notes(variable)
        .iter()
        .filter(|_| !args.quiet)
        .for_each(|note| eprintln!("{}: {note}", own_name()));
    let share = words.ask(&of_job)?;
    args.gpu_bind = args
        .gpu_bind
        .or_else(|| bind_per_task(own_gpus.as_ref(), of_job.gpus, variable(GPU_BIND).is_some()));
    check_inherited(&args)?;
    let export = match args.export.take() {
        Some(export) => Some(export),
        None => variable(EXPORT)
            .map(|text| {
                Export::parse(&text)
                    .map_err(|error| Failure::usage(format_args!("{EXPORT}: {error}")))
            })
            .transpose()?,
    };
    if args.multi_prog {
        take_programs(&mut args)?;
    }
    // Blocked before the first thread starts, so that none of them takes a signal.
    let signals = watched_signals();
    let failed =
        |what: &str, error: std::io::Error| Failure::new(format_args!("cannot {what}: {error}"));
    signals
        .thread_block()
        .map_err(|errno| failed("block signals", errno.into()))?;
    let listener =
        TcpListener::bind(listen_address()).map_err(|e| failed("listen for the nodes", e))?;
    let key = secret().map_err(|e| failed("read /dev/urandom", e))?;
    let request = StepRequest {
        argv: args.command.clone(),
        environment: environment_of_tasks(
            export.as_ref(),
            is_around,
            [(CPU_BIND, args.cpu_bind), (GPU_BIND, args.gpu_bind)],
        ),
        work_dir: work_dir(args.chdir)?,
        name: args.job_name.unwrap_or_default(),
        nodes: args.nodes,
        ntasks: args.ntasks,
        ntasks_per_node: args.ntasks_per_node,
        nodelist: args.nodelist.unwrap_or_default(),
        exclude: args.exclude.unwrap_or_default(),
        relative: args.relative,
        cyclic: args.distribution == "cyclic",
        overcommit: args.overcommit || variable("SLURM_OVERCOMMIT").is_some(),
        share,
        connect: listener
            .local_addr()
            .map_err(|e| failed("listen for the nodes", e))?
            .to_string(),
        key: key.clone(),
    };
    let mut client = gcli::connect("grun")?;
    let step = step_turn::start(&mut client, &job, &request, &signals, args.quiet)?;
    if args.verbose > 0 {
        eprintln!(
            "{}: step {} of job {job}: {}",
            own_name(),
            step.step,
            placed(&step)
        );
    }
    let (sender, messages) = mpsc::sync_channel(CHANNEL);
    let around = StepJob::from_env(&job, variable);
    let files = check_reader(&step, args.input).and_then(|()| {
        let own = std::env::current_dir().unwrap_or_default();
        StepFiles::open(
            args.output.as_deref(),
            args.error.as_deref(),
            args.open_mode.starts_with('a'),
            &own,
            &around,
            &step,
        )
    });
    let early_end = EndConditions {
        time: args.time.and_then(TimeLimit::secs).map(Duration::from_secs),
        wait: Some(Duration::from_secs(args.wait.into())).filter(|wait| !wait.is_zero()),
        bad_exit: args.kill_on_bad_exit.is_some_and(|text| text == "1"),
    };
    let mut used = None;
    let outcome = files.and_then(|files| {
        let peers = accept(&listener, &step, &key, &sender)?;
        forward_signals(signals, sender);
        let nodes: Vec<_> = peers.values().cloned().collect();
        std::thread::spawn(move || step_input::forward(std::io::stdin(), args.input, &nodes));
        let mut gathering = StepGathering::new(&step, args.label);
        (gathering.files, gathering.early_end) = (files, early_end);
        let outcome = gathering.run(&messages, &peers);
        used = gathering.used;
        outcome
    });
    let code = outcome.as_ref().copied().unwrap_or(gcli::failure::FAILED);
    report_end(client, &job, step.step, code, used);
    outcome
}

/// For listings of steps. That the controller is away now must not hold up the script: the step ends with its job then.
fn report_end(client: Client, job: &str, step: u32, code: u8, used: Option<Usage>) {
    let exit_code = match code.checked_sub(128) {
        Some(signal @ 1..=MAX_SIGNAL) => ExitCode::killed(signal),
        _ => ExitCode::exited(code),
    };
    let path = format!("/v1/jobs/{job}/steps/{step}/end");
    let _ = client
        .wait_for(END_PATIENCE)
        .post_repeatable::<_, serde_json::Value>(&path, &StepEndRequest { exit_code, used });
}

/// How many tasks there are is known only now.
fn check_reader(step: &StepReply, input: InputRanks) -> Result<(), Failure> {
    let last = step
        .nodes
        .iter()
        .flat_map(|node| &node.ranks)
        .max()
        .copied()
        .unwrap_or(0);
    match input {
        InputRanks::Rank(rank) if rank > last => Err(Failure::usage(format_args!(
            "--input {rank}: the last task of the step is {last}"
        ))),
        _ => Ok(()),
    }
}

/// What `gsub --gpu-bind` and scripts put into the environment is refused here, not by each node.
fn check_inherited(args: &StepArgs) -> Result<(), Failure> {
    let inherited = |name: &str, given: &Option<String>| {
        if given.is_some() {
            None
        } else {
            std::env::var(name).ok()
        }
    };
    let cpu = inherited(CPU_BIND, &args.cpu_bind).map(|text| cpu_bind(&text));
    let gpu = inherited(GPU_BIND, &args.gpu_bind).map(|text| gpu_bind(&text));
    for (name, read) in [(CPU_BIND, cpu), (GPU_BIND, gpu)] {
        read.transpose()
            .map_err(|error| Failure::usage(format_args!("{name}: {error}")))?;
    }
    Ok(())
}

/// `node1 has tasks 0-1, node2 has task 2`
fn placed(step: &StepReply) -> String {
    let one = |node: &gwire::api::StepNodeRow| {
        let ranks: Vec<String> = node.ranks.iter().map(u32::to_string).collect();
        format!(
            "{} has task{} {}",
            node.name,
            if ranks.len() == 1 { "" } else { "s" },
            ranks.join(",")
        )
    };
    step.nodes.iter().map(one).collect::<Vec<_>>().join("; ")
}

/// The step is called after its file, as without --multi-prog after its program.
fn take_programs(args: &mut StepArgs) -> Result<(), Failure> {
    let [path] = &args.command[..] else {
        return Err(Failure::usage(
            "--multi-prog: one file says what all tasks run; their arguments are in it",
        ));
    };
    let file = std::fs::read_to_string(os_string(path))
        .map_err(|error| Failure::new(format_args!("--multi-prog: cannot read {path}: {error}")))?;
    let name = path.rsplit('/').next().unwrap_or_default().to_owned();
    let command = multi_prog::command(path, &file)?;
    args.job_name.get_or_insert(name);
    args.command = command;
    Ok(())
}

fn mpi(word: &str) -> Result<String, &'static str> {
    match word {
        "none" => Ok(word.to_owned()),
        _ => Err(
            "grun starts no MPI. Call mpirun in the script, or give none and join the ranks over SLURM_PROCID and the first node's name",
        ),
    }
}

/// What `gsub --gpus-per-task` gave each task of the job. A share, and alternatives of unlike counts, say nothing of how many
/// whole GPUs that is.
fn gpus_per_task_of_job(variable: impl Fn(&str) -> Option<String>) -> Option<u32> {
    let ask = GpuRequest::parse(&variable(GPUS_PER_TASK)?).ok()?;
    let mut counts = ask
        .alternatives
        .iter()
        .map(|alternative| match alternative.amount {
            GpuAmount::Whole(count) | GpuAmount::Mig { count, .. } => Some(count),
            GpuAmount::Share { .. } => None,
        });
    let first = counts.next()??;
    counts.all(|count| count == Some(first)).then_some(first)
}

/// Each task sees its own GPUs where they are counted by the task, here or for the job, and nothing else is said of them.
fn bind_per_task(own: Option<&StepGpus>, of_job: Option<u32>, is_bound: bool) -> Option<String> {
    let count = match own {
        Some(gpus) => Some(gpus.count).filter(|_| gpus.per == GpuCountUnit::Task),
        None => of_job.filter(|_| !is_bound),
    };
    count
        .filter(|count| *count > 0)
        .map(|count| format!("per_task:{count}"))
}

fn job_of(given: Option<gmodel::JobId>) -> Result<String, Failure> {
    given.map_or_else(own_job, |job| Ok(job.to_string()))
}

fn own_job() -> Result<String, Failure> {
    ["SLURM_JOB_ID", "GSUB_JOB_ID"]
        .iter()
        .find_map(|name| std::env::var(name).ok())
        .filter(|id| id.parse::<gmodel::JobId>().is_ok())
        .ok_or_else(|| {
            Failure::new(
                "not inside a job (SLURM_JOB_ID is not set). grun starts tasks in an allocation: call it from a \
                 script given to gsub, or name a running job with --jobid.",
            )
        })
}

/// This node's address as its daemon knows it; the other nodes call back there.
fn listen_address() -> SocketAddr {
    let told = std::env::var("SLURM_LAUNCH_NODE_IPADDR").ok();
    let ip = told
        .and_then(|text| text.parse().ok())
        .unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
    SocketAddr::new(ip, 0)
}

fn secret() -> std::io::Result<String> {
    let mut bytes = [0u8; 32];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// `NAME=value` of this process as far as `--export` lets it through, and over it these of the command line. What describes
/// another job than the step's stays behind.
fn environment_of_tasks(
    export: Option<&Export>,
    is_around: bool,
    told: [(&str, Option<String>); 2],
) -> Vec<String> {
    let told: Vec<(String, String)> = told
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), value?)))
        .collect();
    let text = |word: OsString| byte_text::from_bytes(word.as_bytes());
    let own = std::env::vars_os().map(|(name, value)| (text(name), text(value)));
    let own: Vec<(String, String)> = own
        .filter(|(name, _)| is_around || !describes_job(name))
        .collect();
    let mut own = export.map_or(own.clone(), |export| export.inside(own));
    own.retain(|(name, _)| told.iter().all(|(known, _)| known != name));
    own.into_iter()
        .chain(told)
        .map(|(name, value)| format!("{name}={value}"))
        .collect()
}

fn cpu_bind(text: &str) -> Result<String, BadBinding> {
    CpuBind::parse(text).map(|_| text.to_owned())
}

fn gpu_bind(text: &str) -> Result<String, BadBinding> {
    GpuBind::parse(text).map(|_| text.to_owned())
}

fn work_dir(given: Option<String>) -> Result<String, Failure> {
    let own = std::env::current_dir()
        .map_err(|e| Failure::new(format_args!("cannot tell the directory: {e}")))?;
    let dir = given.map_or(own.clone(), |dir| own.join(os_string(&dir)));
    Ok(byte_text::from_bytes(dir.as_os_str().as_bytes()))
}

/// What a word of the command line names in the system.
pub(crate) fn os_string(text: &str) -> OsString {
    OsString::from_vec(byte_text::to_bytes(text).into_owned())
}

fn watched_signals() -> SigSet {
    [
        Signal::SIGINT,
        Signal::SIGTERM,
        Signal::SIGHUP,
        Signal::SIGUSR1,
        Signal::SIGUSR2,
        Signal::SIGQUIT,
    ]
    .into_iter()
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step_gathering::tests::two_nodes;

    #[test]
    fn gpus_per_task_of_the_job_are_read_where_they_are_whole_and_the_same() {
        let of = |text: &'static str| {
            gpus_per_task_of_job(|name| (name == "SLURM_GPUS_PER_TASK").then(|| text.to_owned()))
        };
        assert_eq!(of("h100:1"), Some(1));
        assert_eq!(of("h100"), Some(1), "a type alone is one GPU of it");
        assert_eq!([of("h100:2|a100:2"), of("1g.10gb:3")], [Some(2), Some(3)]);
        assert_eq!(
            of("h100:1|a100:2"),
            None,
            "which of them it is, is not said"
        );
        assert_eq!(
            [of("0.5"), of("0"), of("no:such:thing")],
            [None, None, None],
            "a share is no whole GPU"
        );
    }

    #[test]
    fn gpus_per_task_are_a_binding_unless_another_is_given() {
        let own = |per, count| StepGpus {
            per,
            count,
            gpu_type: None,
        };
        assert_eq!(bind_per_task(None, None, false), None);
        assert_eq!(
            bind_per_task(None, Some(1), false).as_deref(),
            Some("per_task:1")
        );
        assert_eq!(bind_per_task(None, Some(1), true), None);
        assert_eq!(
            bind_per_task(Some(&own(GpuCountUnit::Task, 2)), Some(1), true).as_deref(),
            Some("per_task:2")
        );
        assert_eq!(
            bind_per_task(Some(&own(GpuCountUnit::Step, 2)), Some(1), false),
            None,
            "its tasks share those of the step"
        );
        assert_eq!(
            bind_per_task(Some(&own(GpuCountUnit::Task, 0)), Some(1), false),
            None
        );
    }

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
    fn a_step_may_name_its_job_and_a_file_of_programs() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("mp.conf").to_str().unwrap().to_owned();
        std::fs::write(&file, "0 echo a\n").unwrap();
        let mut args = StepArgs::try_parse_from([
            "grun",
            "--jobid",
            "17",
            "-Q",
            "-vv",
            "--mpi=none",
            "--multi-prog",
            &file,
        ])
        .unwrap();
        assert_eq!(job_of(args.jobid).unwrap(), "17");
        take_programs(&mut args).unwrap();
        assert_eq!(
            (args.job_name.as_deref(), args.command[0].as_str()),
            (Some("mp.conf"), "/bin/sh")
        );
        args.command = vec!["/nosuch".into()];
        assert!(
            take_programs(&mut args)
                .unwrap_err()
                .text
                .starts_with("--multi-prog: cannot read /nosuch: ")
        );
        let refused = StepArgs::try_parse_from(["grun", "--mpi=pmix", "true"])
            .err()
            .unwrap()
            .to_string();
        assert!(refused.contains("grun starts no MPI"), "{refused}");
        assert!(StepArgs::try_parse_from(["grun", "--jobid", "x", "true"]).is_err());
    }

    #[test]
    fn a_step_says_where_its_tasks_are() {
        assert_eq!(placed(&two_nodes()), "n1 has tasks 0,1; n2 has task 2");
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
            (Some(1), Some(2), true)
        );
        assert_eq!(args.command, ["bash", "-c", "exit 1", "-n5"]);
        assert_eq!(read(&["--", "-x"]).command, ["-x"]);
        assert!(StepArgs::try_parse_from(["grun", "--nosuch", "true"]).is_err());
    }
}
