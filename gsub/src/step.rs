//! `grun`: start tasks inside a running job, on its nodes, and bring their output together. Source: srun(1).
//!
//! The controller counts the step and tells the nodes. To a grun inside the job their supervisors connect back with a secret; a grun
//! elsewhere, or with a terminal, opens a stream to each node. When grun ends, its tasks end.

use crate::allocation::ask::AllocationAsk;
use crate::allocation::words::{AllocationWords, take_apart};
use crate::allocation::{Allocation, WaitRules, immediate};
use crate::environment::{self, Export, describes_job};
use crate::forwarded_port;
use crate::helper_step::HelperPlace;
use crate::multi_prog;
use crate::sent_file;
use crate::ssh_proxy;
use crate::step_args::{StepArgs, command, cpu_bind, gpu_bind};
use crate::step_components::{self, PartsInJob, StepPart};
use crate::step_gathering::{EndConditions, StepGathering, forward_signals, own_name};
use crate::step_input::{self, InputRanks, PatientStdin, Peers};
use crate::step_message::Message;
use crate::step_mpi;
use crate::step_nodes::{CallbackListener, StreamUse, open_streams};
use crate::step_output::{StepFiles, last_rank, os_string};
use crate::step_programs;
use crate::step_refusal;
use crate::step_told::{self, StepSpeech};
use crate::step_turn::{self, TurnRules};
use crate::step_variables;
use crate::step_words::{self, DISTRIBUTION};
use crate::target_job::TargetJob;
use crate::terminal::{self, RawTerminal};
use clap::FromArgMatches;
use gcli::{Failure, Outcome, cluster_choice, command_line};
use gmodel::ExitCode;
use gmodel::byte_text;
use gmodel::duration::TimeLimit;
use gmodel::gpu_request::{GpuAmount, GpuRequest};
use gmodel::hostlist::Hostlist;
use gmodel::parallel::{ParallelSpec, RENDEZVOUS_VARIABLE, Rendezvous};
use gmodel::run::Usage;
use gmodel::signal::MAX_SIGNAL;
use gmodel::step_share::{GpuCountUnit, StepGpus, StepShareRequest};
use gmodel::supervise::StepInput;
use gmodel::task_distribution::TaskDistribution;
use gwire::api::{
    StepCallback, StepEndRequest, StepNodeRow, StepProgram, StepReply, StepRequest, StepRow,
};
use gwire::client::{Client, escape};
use nix::sys::signal::{SigSet, Signal};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::ffi::OsStrExt;
use std::sync::mpsc;
use std::time::Duration;

/// Where the nodes read how tasks are bound, as srun has it.
const CPU_BIND: &str = "SLURM_CPU_BIND";
const GPU_BIND: &str = "SLURM_GPU_BIND";
/// What `gsub --export` said, and srun takes for its own where it is given none.
const EXPORT: &str = "SLURM_EXPORT_ENV";
/// What `gsub --gpus-per-task` told the job; without --gpu-bind it is the tasks' binding, as srun takes it.
const GPUS_PER_TASK: &str = "SLURM_GPUS_PER_TASK";
/// Words by which grun outside of a job names one.
const OF_ANOTHER_JOB: [&str; 4] = ["--jobid", "--reattach", "--ssh", "--forward"];
/// Time the controller has to take note of a step's end.
const END_PATIENCE: Duration = Duration::from_secs(2);
/// Messages in flight: tasks that write faster than we print wait in their pipes.
const CHANNEL: usize = 1024;

/// `grun` itself, but for `--watch`.
///
/// # Errors
/// What stood in the way, with the exit code.
pub fn main(words: impl IntoIterator<Item = OsString>) -> Outcome {
    start(words, environment::own)
}

/// As [`main`], with the variables that are options of a step read by `variable`.
pub(crate) fn start(
    words: impl IntoIterator<Item = OsString>,
    variable: impl Fn(&str) -> Option<String>,
) -> Outcome {
    let words: Vec<String> = words
        .into_iter()
        .map(|word| byte_text::from_bytes(word.as_bytes()))
        .collect();
    let (program, options) = words.split_at(words.len().min(1));
    let apart = take_apart(options, &own_options())?;
    let variables = step_variables::of_step(variable);
    if step_mpi::asks_for_list(&apart.own) {
        step_mpi::print_list();
        return Ok(0);
    }
    let is_of_another =
        |word: &String| OF_ANOTHER_JOB.iter().any(|option| word.starts_with(option));
    if own_job().is_err() && !apart.own.iter().any(is_of_another) {
        return in_own_allocation(program, apart, &variables);
    }
    let PartsInJob { mut parts, notes } = step_components::in_job(program, apart, &variables)?;
    let args = &mut parts[0];
    if !args.quiet {
        say_all(&notes);
    }
    if let Some((job, step)) = args.reattach {
        return reattach(args, job, step);
    }
    if let Some(host) = &args.ssh {
        return ssh_proxy::connect(host, block_signals(false)?);
    }
    if !args.forward.is_empty() {
        let place = HelperPlace {
            job: TargetJob::of(args)?.id,
            node: args.nodelist.take(),
        };
        return forwarded_port::forward(&args.forward, place, block_signals(false)?);
    }
    let signals = block_signals(args.pty)?;
    let with_job = |args: StepArgs| {
        let job = TargetJob::of(&args)?;
        Ok::<_, Failure>(StepPart { args, job })
    };
    let parts = parts.into_iter().map(with_job).collect::<Result<_, _>>()?;
    run(parts, signals)?.outcome
}

/// grun's own options, beside those of gsub.
pub(crate) fn own_options() -> clap::Command {
    command().arg(immediate())
}

pub(crate) fn read(words: Vec<String>) -> Result<StepArgs, Failure> {
    let words = words.into_iter().map(OsString::from);
    let matches = command_line::parse_explained(command(), words, step_refusal::of_srun)?;
    StepArgs::from_arg_matches(&matches).map_err(Failure::usage)
}

/// Outside of a job: an allocation for this one step, as srun has it. One that is left at work waits for its client to come back.
fn in_own_allocation(program: &[String], apart: AllocationWords, variables: &[String]) -> Outcome {
    let asked = step_components::of_new_job(program, apart, variables)?;
    let args = &asked.parts[0];
    let signals = block_signals(args.pty)?;
    let mut client = gcli::connect_inside("grun")?;
    let ask = AllocationAsk::new(asked.asked, &args.command, "SLURM_", &mut client)?;
    if !args.quiet {
        say_all(&ask.notes);
        ask.defined.say(own_name(), args.verbose.into(), &client);
    }
    let rules = WaitRules {
        name: own_name(),
        quiet: args.quiet,
        immediate: asked.immediate,
        as_salloc: false,
    };
    let (allocation, _sender) = Allocation::obtain(&mut client, &ask.request, &rules, &signals)?;
    drop(client);
    let variables = ask.variables.into_iter();
    let job = TargetJob {
        variables: variables.chain(allocation.variables.clone()).collect(),
        ..TargetJob::elsewhere(allocation.id.to_string())
    };
    let end = step_components::jobs_of(job, asked.parts).and_then(|parts| run(parts, signals));
    let (outcome, is_left) = match end {
        Ok(end) => (end.outcome, end.is_left),
        Err(failure) => (Err(failure), false),
    };
    if is_left {
        return outcome;
    }
    let outcome = allocation.explained(outcome);
    let code = match &outcome {
        Ok(code) => *code,
        Err(failure) => failure.exit,
    };
    allocation.end(code);
    outcome
}

fn say_all(notes: &[String]) {
    for note in notes {
        eprintln!("{}: {note}", own_name());
    }
}

/// How a step ended for this grun.
struct StepEnd {
    outcome: Outcome,
    /// It goes on without it.
    is_left: bool,
}

/// Starts the step and stays with it. `signals` are blocked before the first thread starts, so that none of them takes one.
fn run(mut parts: Vec<StepPart>, signals: SigSet) -> Result<StepEnd, Failure> {
    let mut works = Vec::new();
    for StepPart { args, job } in &mut parts {
        works.push(settle(args, job)?);
        if let Some(dest) = &args.bcast {
            sent_file::send_program(dest, &job.id, &mut args.command)?;
        }
    }
    let StepPart { args, job } = &parts[0];
    step_words::open_input(&args.input)?;
    let listener = match args.pty || !job.is_here() {
        true => None,
        false => Some(
            CallbackListener::new(listen_address())
                .map_err(|e| Failure::new(format_args!("cannot listen for the nodes: {e}")))?,
        ),
    };
    let request = step_components::request(&mut parts, works, listener.as_ref())?;
    let StepPart { args, job } = &parts[0];
    let mut client = gcli::connect_inside("grun")?;
    if let Some(named) = &args.of_job.clusters {
        cluster_choice::check(named, &mut client)?;
    }
    let turn = TurnRules {
        quiet: args.quiet,
        immediate: args.immediate,
    };
    let step = step_turn::start(&mut client, &job.id, &request, &signals, turn)?;
    if args.verbose > 0 {
        step_told::say_where(&job.id, &step, |name| job.variable(name));
    }
    let files = step_components::check_started(&request, &step)
        .and_then(|()| check_reader(&step, args.input.ranks()))
        .and_then(|()| step_components::open_files(&parts, &step));
    let channel = StepChannel::new();
    let sender = &channel.sender;
    let peers = files.and_then(|files| {
        let peers = match listener {
            Some(listener) => listener.accept(&step, sender)?,
            None => open_streams(client.socket()?, &job.id, &step, StreamUse::Client, sender)?,
        };
        Ok((files, peers))
    });
    let step = RunningStep {
        job: job.id.clone(),
        step,
        client,
    };
    match peers {
        Ok((files, peers)) => Ok(step.attend(args, files, peers, channel, signals)),
        Err(failure) => {
            step.report_end(gcli::failure::FAILED, BTreeMap::new());
            Err(failure)
        }
    }
}

/// Comes back to the terminal of a step.
fn reattach(args: &StepArgs, job: gmodel::JobId, step: u32) -> Outcome {
    let signals = block_signals(true)?;
    let mut client = gcli::connect_inside("grun")?;
    let shown = format!("{job}.{step}");
    let row = step_under_way(&mut client, &job.to_string(), &shown)?;
    let nodes = Hostlist::parse(&row.nodelist).ok();
    let first = nodes.as_ref().and_then(|nodes| nodes.iter().next());
    let first = first.ok_or_else(|| Failure::new(format_args!("step {shown} has no node")))?;
    // Only the first task has a terminal.
    let step = StepReply {
        step,
        nodes: vec![StepNodeRow {
            name: first.to_string(),
            ranks: vec![0],
        }],
        ..StepReply::default()
    };
    let allocation = Allocation::resume(&mut client, job, own_name())?;
    let (channel, job) = (StepChannel::new(), job.to_string());
    let peers = open_streams(
        client.socket()?,
        &job,
        &step,
        StreamUse::Client,
        &channel.sender,
    )?;
    let step = RunningStep { job, step, client };
    let end = step.attend(args, StepFiles::default(), peers, channel, signals);
    let ends = allocation.filter(|_| !end.is_left);
    if let (Some(allocation), Ok(code)) = (ends, &end.outcome) {
        allocation.end(*code);
    }
    end.outcome
}

/// A step under way (`17.0`), as the controller lists it.
///
/// # Errors
/// There is none of this name.
pub(crate) fn step_under_way(
    client: &mut Client,
    job: &str,
    shown: &str,
) -> Result<StepRow, Failure> {
    let mut steps = client.rows(&format!("/v1/steps?job={}", escape(job)))?;
    while let Some(row) = steps.next_row()? {
        let row: StepRow = serde_json::from_slice(row)
            .map_err(|e| Failure::new(format_args!("the controller's list of steps: {e}")))?;
        if row.shown_id == shown {
            return Ok(row);
        }
    }
    Err(Failure::new(format_args!(
        "there is no step {shown} under way. `gq --steps` lists the steps"
    )))
}

/// A step that was started, and the controller to tell of its end.
struct RunningStep {
    job: String,
    step: StepReply,
    client: Client,
}

impl RunningStep {
    /// Carries input and output until the step ends, or this grun leaves it.
    fn attend(
        self,
        args: &StepArgs,
        files: StepFiles,
        peers: Peers,
        channel: StepChannel,
        signals: SigSet,
    ) -> StepEnd {
        let StepChannel { sender, messages } = channel;
        let early_end = EndConditions {
            time: args.time.and_then(TimeLimit::secs).map(Duration::from_secs),
            wait: Some(Duration::from_secs(args.wait.into())).filter(|wait| !wait.is_zero()),
            bad_exit: args.kill_on_bad_exit.as_deref() == Some("1"),
        };
        let has_terminal = args.pty || args.reattach.is_some();
        let raw = has_terminal.then(RawTerminal::enter).flatten();
        forward_signals(signals, sender.clone());
        if has_terminal {
            let (first, has_escape) = (peers.values().next().cloned(), raw.is_some());
            let size = StepInput::Resize(terminal::size());
            peers.values().for_each(|peer| peer.send(&size));
            std::thread::spawn(move || {
                first
                    .iter()
                    .for_each(|peer| terminal::forward(peer, &sender, has_escape));
            });
        } else {
            let (nodes, input): (Vec<_>, _) =
                (peers.values().cloned().collect(), args.input.ranks());
            std::thread::spawn(move || step_input::forward(PatientStdin, input, &nodes));
        }
        let mut gathering = StepGathering::new(&self.step, args.label);
        (gathering.files, gathering.early_end) = (files, early_end);
        gathering.has_terminal = has_terminal;
        gathering.speech = self.speech(args);
        gathering.whole_lines |=
            !args.unbuffered && !has_terminal && last_rank(&self.step.nodes) > 0;
        let outcome = gathering.run(&messages, &peers);
        drop(raw);
        if let Some(why) = gathering.left {
            let (name, id) = (own_name(), &gathering.speech.step_id);
            eprintln!("\n{name}: step {id}: {why}; `{name} --reattach {id}` comes back to it");
            return StepEnd {
                outcome,
                is_left: true,
            };
        }
        let code = outcome.as_ref().copied().unwrap_or(gcli::failure::FAILED);
        let used = gathering.used;
        self.report_end(code, used);
        StepEnd {
            outcome,
            is_left: false,
        }
    }
}

impl RunningStep {
    fn speech(&self, args: &StepArgs) -> StepSpeech {
        StepSpeech {
            step_id: format!("{}.{}", self.job, self.step.step),
            is_verbose: args.verbose > 0,
            is_quiet: args.quiet,
            tells_interrupts: args.of_job.disable_status,
        }
    }

    /// For listings of steps. That the controller is away now must not hold up the script: the step ends with its job then.
    fn report_end(self, code: u8, used: BTreeMap<u32, Usage>) {
        let exit_code = match code.checked_sub(128) {
            Some(signal @ 1..=MAX_SIGNAL) => ExitCode::killed(signal),
            _ => ExitCode::exited(code),
        };
        let mut client = self.client.wait_for(END_PATIENCE);
        for part in self.step.parts(&self.job) {
            let path = format!("/v1/jobs/{}/steps/{}/end", part.job, part.step);
            let used = used.range(part.nodes).map(|(_, used)| *used);
            let used = used.reduce(|mut sum, used| {
                sum.add(&used);
                sum
            });
            let end = StepEndRequest { exit_code, used };
            let _ = client.post_repeatable::<_, serde_json::Value>(&path, &end);
        }
    }
}

/// What the threads tell the main one by, and where it reads that.
pub(crate) struct StepChannel {
    pub sender: mpsc::SyncSender<Message>,
    pub messages: mpsc::Receiver<Message>,
}

impl StepChannel {
    pub fn new() -> Self {
        let (sender, messages) = mpsc::sync_channel(CHANNEL);
        Self { sender, messages }
    }
}

fn block_signals(has_terminal: bool) -> Result<SigSet, Failure> {
    let mut signals = watched_signals();
    if has_terminal {
        signals.add(Signal::SIGWINCH);
    }
    signals
        .thread_block()
        .map_err(|errno| failed("block signals", errno.into()))?;
    Ok(signals)
}

fn failed(what: &str, error: std::io::Error) -> Failure {
    Failure::new(format_args!("cannot {what}: {error}"))
}

/// Refuses words that contradict each other, fills in what the job's environment says of the step, and reads the step's share.
fn settle(args: &mut StepArgs, job: &TargetJob) -> Result<StepWork, Failure> {
    let of_job = job.tasks();
    let programs = step_programs::take_others(&mut args.command)?;
    args.exact |= args.cpus_per_task.is_some();
    args.gpu_bind = args.gpu_bind.take().or(args.tres_bind.take());
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
    if !args.quiet {
        say_all(&args.of_job.notes(|name| job.variable(name)));
    }
    let share = words.ask(&of_job)?;
    if args.gpu_bind.is_none() {
        let is_bound = job.variable(GPU_BIND).is_some();
        args.gpu_bind = bind_per_task(own_gpus.as_ref(), of_job.gpus, is_bound);
    }
    check_inherited(args)?;
    if let (None, Some(text)) = (&args.export, job.variable(EXPORT)) {
        let export = Export::parse(&text);
        args.export =
            Some(export.map_err(|error| Failure::usage(format_args!("{EXPORT}: {error}")))?);
    }
    args.ntasks = step_words::tasks_by_gpus(args, own_gpus.as_ref(), job)?;
    let is_alone = programs.is_empty();
    step_words::put_around(args, is_alone)?;
    if !is_alone && share.is_some() {
        return Err(Failure::usage(
            "a step of several programs shares its job: leave out --exact, -c, --gpus and --mem, or start a grun for each program",
        ));
    }
    match (args.multi_prog, is_alone) {
        (true, false) => {
            return Err(Failure::usage(
                "--multi-prog and \":\" both say which tasks run what: keep one of them",
            ));
        }
        (true, true) => take_programs(args)?,
        (false, _) => {}
    }
    let plane = step_words::plane(args, job)?;
    Ok(StepWork {
        share,
        programs,
        plane,
    })
}

/// What is read of the command line before the step is asked for.
pub(crate) struct StepWork {
    share: Option<StepShareRequest>,
    /// Behind the first.
    programs: Vec<StepProgram>,
    plane: u32,
}

/// What the controller is asked for. Takes the words that nothing else reads out of `args`.
pub(crate) fn request(
    args: &mut StepArgs,
    job: &TargetJob,
    work: StepWork,
    listener: Option<&CallbackListener>,
) -> Result<StepRequest, Failure> {
    let connect = listener
        .map(|listener| listener.address().map(|address| address.to_string()))
        .transpose()
        .map_err(|e| failed("listen for the nodes", e))?;
    Ok(StepRequest {
        argv: args.command.clone(),
        programs: work.programs,
        environment: environment_of_tasks(
            args.export.as_ref(),
            job,
            [
                (CPU_BIND, args.cpu_bind.take()),
                (GPU_BIND, args.gpu_bind.take()),
                (DISTRIBUTION, Some(TaskDistribution::word(work.plane))),
            ],
        ),
        work_dir: work_dir(args.chdir.take())?,
        container: args.container.take()?,
        name: args.job_name.take().unwrap_or_default(),
        nodes: step_words::nodes(args, job),
        ntasks: args.ntasks,
        ntasks_per_node: args.ntasks_per_node,
        nodelist: args.nodelist.take().unwrap_or_default(),
        exclude: args.exclude.take().unwrap_or_default(),
        relative: args.relative,
        plane: work.plane,
        limits: step_words::limits(args, job)?,
        share: work.share,
        terminal: args.pty.then(terminal::size),
        parallel: ParallelSpec {
            rendezvous: rendezvous(args, job)?,
            mpi: step_mpi::chosen(args.mpi, args.pty)?,
            ..ParallelSpec::default()
        },
        helper: None,
        callback: StepCallback {
            connect: connect.unwrap_or_default(),
            key: listener.map_or_else(String::new, |one| one.key.clone()),
            certificate: listener.map_or_else(String::new, |one| one.certificate().to_owned()),
        },
        components: Vec::new(),
    })
}

/// As the command line or the job has it. A shell in a terminal is no rank: frameworks started there would wait for others.
fn rendezvous(args: &StepArgs, job: &TargetJob) -> Result<Rendezvous, Failure> {
    let own = job.variables.get(RENDEZVOUS_VARIABLE).cloned();
    let of_job = || job.variable(RENDEZVOUS_VARIABLE).filter(|_| !args.pty);
    match (args.rendezvous, own.or_else(of_job)) {
        (Some(given), _) => Ok(given),
        (None, Some(text)) => Rendezvous::parse(&text)
            .map_err(|why| Failure::usage(format_args!("{RENDEZVOUS_VARIABLE}: {why}"))),
        (None, None) if args.pty => Ok(Rendezvous::None),
        (None, None) => Ok(Rendezvous::Torch),
    }
}

/// How many tasks there are is known only now.
fn check_reader(step: &StepReply, input: InputRanks) -> Result<(), Failure> {
    let last = last_rank(&step.nodes);
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

/// What `gsub --gpus-per-task` gave each task of the job. A share, and alternatives of unlike counts, say nothing of how many
/// whole GPUs that is.
pub(crate) fn gpus_per_task_of_job(variable: impl Fn(&str) -> Option<String>) -> Option<u32> {
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

pub(crate) fn own_job() -> Result<String, Failure> {
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

/// `NAME=value` of this process as far as `--export` lets it through, and over it these of the command line. What describes
/// another job than the step's stays behind.
fn environment_of_tasks(
    export: Option<&Export>,
    job: &TargetJob,
    told: [(&str, Option<String>); 3],
) -> Vec<String> {
    let told: Vec<(String, String)> = told
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), value?)))
        .collect();
    let text = |word: OsString| byte_text::from_bytes(word.as_bytes());
    let own = std::env::vars_os().map(|(name, value)| (text(name), text(value)));
    let given = environment::given_names();
    let own: Vec<(String, String)> = own
        .filter(|(name, _)| {
            job.is_around
                || step_variables::has(name)
                || !describes_job(name) && !given.contains(&&name[..])
        })
        .chain(job.variables.clone())
        .collect();
    let mut own = export.map_or(own.clone(), |export| export.inside(own));
    own.retain(|(name, _)| told.iter().all(|(known, _)| known != name));
    own.into_iter()
        .chain(told)
        .map(|(name, value)| format!("{name}={value}"))
        .collect()
}

fn work_dir(given: Option<String>) -> Result<String, Failure> {
    let own = std::env::current_dir()
        .map_err(|e| Failure::new(format_args!("cannot tell the directory: {e}")))?;
    let dir = given.map_or(own.clone(), |dir| own.join(os_string(&dir)));
    Ok(byte_text::from_bytes(dir.as_os_str().as_bytes()))
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
    use clap::Parser;

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
        assert_eq!(TargetJob::of(&args).unwrap().id, "17");
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
        let refused = StepArgs::try_parse_from(["grun", "--mpi=openmpi", "true"])
            .err()
            .unwrap()
            .to_string();
        assert!(
            refused.contains("\"openmpi\" is not offered. There is pmi2"),
            "{refused}"
        );
        assert!(StepArgs::try_parse_from(["grun", "--jobid", "x", "true"]).is_err());
    }
}
