//! Between gpud and gstepd: the run's spool directory and the messages on its control socket.
//!
//! ```text
//! SPOOL/runs/17-1/          root, 0700
//!   order.json              LaunchOrder, as the controller sent it
//!   setup.json              Setup, what gpud prepared for the run
//!   mark.json               Mark, the newest of the run (fsync, rename), there before it is acknowledged
//!   exit.json               RunEnd, written once (fsync, rename): the truth about the end
//!   prolog.json             HookOrder; beside it prolog.lock, prolog.out and prolog.end.json (HookEnd); and so for epilog
//!   image                   the image that the run is in, by its digest; written by the first that knows
//!   log                     what the node did for the run, for `gq --log`
//! RUN_DIR/marks/17-1.ctl      messages below, one JSON object a line, root only; SPOOL/runs/17-1/ctl.sock where that cannot be made
//! RUN_DIR/marks/17-1.script   the script's copy, its user's; in SPOOL/marks where it is long or cannot be executed there
//! RUN_DIR/marks/17-1.sock     where the job itself may write, a stream: a line is a mark with that note, the answer is a line
//!                             `ok NUMBER` or `error WHY`; GSUB_MARK_SOCKET names it
//! ```

use crate::checkpoint::CheckpointMark;
use crate::container::ContainerSpec;
use crate::exit_code::ExitCode;
use crate::job::{SoftLimit, few_limits};
use crate::parallel::{ParallelSpec, PortRange};
use crate::run::{NumberedSignal, RunEnd, StopCause};
pub use crate::step_frame::{
    BadFrame, MAX_STEP_FRAME_BYTES, STEP_INPUT_WINDOW_BYTES, StepInput, StepOutput, StepStream,
};
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Its name in a run's directory.
pub const IMAGE_FILE: &str = "image";

/// What gpud made ready, for gstepd to use. Paths are absolute.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunSetup {
    /// Tag of the cgroup subtree and the run's name in it; empty tag: no isolation.
    pub cgroup_tag: String,
    pub cgroup_name: String,
    pub node_name: String,
    /// Numeric identity as the node resolved it.
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    pub home: String,
    pub shell: String,
    /// Processors of the run's own; empty: it shares those of the machine.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cpus: Vec<u32>,
    /// What its cgroup holds the job's memory to, where it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mem_limit_bytes: Option<u64>,
    /// GPUs of the run in the order of the launch order.
    pub gpus: Vec<RunGpu>,
    /// Empty: no private directories. Else bound over /tmp and /dev/shm of the job.
    pub private_tmp: String,
    pub private_shm: String,
    /// Where the sockets of the run are made; empty: the job's in SPOOL/marks, the supervisor's in the run's directory.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub marks_dir: String,
    /// Programs can be executed in `marks_dir`, and it is no disk.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub short_scripts_in_marks_dir: bool,
    /// A directory that is last in the job's PATH: commands by Slurm's names.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub slurm_names: String,
    pub containers: ContainerPlaces,
    /// Service name of the PAM session; empty for none.
    pub pam_service: String,
    /// Drop capabilities and make the cgroup trees read-only (jobs of uid 0).
    pub restrict_root: bool,
    /// Extra `NAME=value` lines from the node's own configuration.
    pub environment: Vec<String>,
    /// Device file of its IMEX channel that was made for it, and goes with it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub imex_device: String,
    pub meeting: MeetingSetup,
}

/// Where ranks of other nodes reach this node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MeetingSetup {
    /// The node's name where it can be resolved, else an address; empty: nothing is known.
    pub host: String,
    /// One of these is for one job only.
    pub ports: PortRange,
    /// `HOST:PORT` of the batch script's own; gstepd chooses it.
    #[serde(skip)]
    pub batch: String,
}

/// Directories of the run's user, in directories of root's; made when they are needed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ContainerPlaces {
    /// Containers of the run: removed with it.
    pub boxes: String,
    /// Images that the user has here.
    pub images: String,
    /// What they may take; those in use stay whatever they take.
    pub cache_bytes: u64,
    /// For a registry that sends nothing.
    pub registry_timeout_secs: u32,
    pub driver: DriverFiles,
}

/// What a container with GPUs needs of their driver, beside the device files of the GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DriverFiles {
    /// Device files, each with its place in the container.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<(String, String)>,
    /// By their names, where they are not the driver's own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub libraries: Vec<(String, String)>,
    /// Where the node keeps specs of devices.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cdi_dirs: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunGpu {
    pub uuid: String,
    pub index: u32,
    /// Device file of the GPU.
    pub device: String,
    /// Of a MIG slice: UUID of its GPU.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub gpu: String,
    /// Of a share: thousandths of the GPU; 0: all of it.
    #[serde(skip_serializing_if = "is_zero")]
    pub share_milli: u32,
    /// Its number in CUDA, counted by PCI address over what the job can open; `None`: it has none that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cuda_index: Option<u32>,
    /// Ranges of the processors nearest to it; empty: not told.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub near_cpus: Vec<(u32, u32)>,
}

impl RunSetup {
    /// Where the run's supervisor listens, and where it does if it cannot there; run directories have the run's name.
    pub fn control_sockets(&self, run_dir: &Path) -> Vec<PathBuf> {
        let run = run_dir
            .file_name()
            .and_then(|name| name.to_str())
            .filter(|_| !self.marks_dir.is_empty());
        let first = run.map(|run| Path::new(&self.marks_dir).join(format!("{run}.ctl")));
        first
            .into_iter()
            .chain([run_dir.join("ctl.sock")])
            .collect()
    }
}

/// A prolog or an epilog, as gpud hands it to the supervisor that runs it (`gstepd --hook`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HookOrder {
    pub program: String,
    /// `NAME=value`: all of its environment.
    pub environment: Vec<String>,
    pub time_limit_secs: u32,
    /// Its cgroups below the trees' mount points; empty: none.
    pub cgroup: String,
}

/// How a prolog or an epilog ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HookEnd {
    pub exit: ExitCode,
    /// It was killed at its time limit.
    pub timed_out: bool,
    /// Why it could not be started; empty where it was.
    pub error: String,
}

/// Files of a prolog or an epilog in the run's directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookFiles {
    pub order: PathBuf,
    /// Held locked by its supervisor; not empty once the program may have been started: the supervisor's process number.
    pub lock: PathBuf,
    pub end: PathBuf,
    pub output: PathBuf,
}

impl HookFiles {
    /// `kind`: `prolog` or `epilog`.
    pub fn of(run_dir: &Path, kind: &str) -> Self {
        let file = |ending: &str| run_dir.join(format!("{kind}.{ending}"));
        Self {
            order: file("json"),
            lock: file("lock"),
            end: file("end.json"),
            output: file("out"),
        }
    }
}

fn is_zero(milli: &u32) -> bool {
    *milli == 0
}

fn is_no_bytes(bytes: &u64) -> bool {
    *bytes == 0
}

/// gpud to gstepd.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "to_step", rename_all = "snake_case")]
pub enum SupervisorCommand {
    /// Start the user's process. Repeating it does nothing.
    Go,
    /// SIGTERM, and SIGKILL to all after the grace. A second stop may only shorten the grace. A job that is preempted or
    /// drained and has a checkpoint is asked for it first, for as long as its order says.
    Stop { why: StopCause, grace_secs: u32 },
    /// Deliver, unless a signal with this number or a higher one was delivered.
    Signal { signal: NumberedSignal },
    /// The time limit changed; seconds from the start, `None` is unlimited.
    Limit { limit_secs: Option<u32> },
    /// Suspend the job's processes, or resume them. The time limit does not run meanwhile; a stop ends the suspension.
    Suspend { suspended: bool },
    /// Start tasks of a step; output and end go to the address as [`StepOutput`] frames.
    Step { step: Box<StepOrder> },
    /// Once [`SupervisorReport::Attached`] answers, this connection is a client's stream of the step
    /// (`gmodel/src/resumable_stream.rs`), and carries no further line. A client that only watches gets a copy of the output and takes
    /// the stream from no other.
    Attach {
        step: u32,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        watch: bool,
    },
    /// Send the tasks of a step a signal; without one end the step, as a job is ended. The answer comes on this connection.
    SignalStep {
        step: u32,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        signal: Option<u8>,
    },
    #[serde(other)]
    Unknown,
}

/// gstepd to gpud: sent on connection and at every change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "from_step", rename_all = "snake_case")]
pub enum SupervisorReport {
    Ready {
        pid: u32,
    },
    Running {
        pid: u32,
        started: Timestamp,
    },
    /// A mark was accepted and is durable. On connection the newest follows the state.
    Mark {
        mark: CheckpointMark,
    },
    /// `exit.json` is durable; no process of the job is left. gstepd ends after this.
    Ended {
        end: RunEnd,
    },
    /// The answer to `SignalStep`.
    StepSignalled,
    /// The answer to `Attach`.
    Attached,
    /// The refusal of either.
    NotAttached {
        text: String,
        /// The step's order may still be on its way.
        is_early: bool,
    },
    #[serde(other)]
    Unknown,
}

/// Holds the [`crate::output_stream::OutputOrder`] of `gstepd --read-output`, as JSON.
pub const OUTPUT_ORDER_VARIABLE: &str = "GPUPOOL_OUTPUT_ORDER";

/// Tasks that a step may have on one node. Each holds three pipes of gstepd's and, while it starts, two descriptors more.
pub const MAX_NODE_TASKS: u32 = 1024;

/// Tasks to start in a run on one node, for `grun`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StepOrder {
    pub step: u32,
    pub argv: Vec<String>,
    pub environment: Vec<String>,
    pub work_dir: String,
    /// Programs of the ranks from another one's first rank on, in this order: `grun A : B`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub programs: Vec<ProgramOfRanks>,
    /// Its tasks on this node share one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<Box<ContainerSpec>>,
    /// Global ranks of the tasks on this node.
    pub ranks: Vec<u32>,
    pub ntasks: u32,
    /// Nodes of the step, and the position of this one.
    pub nodes: Vec<String>,
    pub node_index: u32,
    /// Tasks on each of `nodes`; empty when not told.
    pub node_tasks: Vec<u32>,
    /// `ADDRESS:PORT` where grun listens, numeric (gstepd has one thread and cannot wait for a name server), and the
    /// secret that opens it. Empty: grun comes by a stream (`Attach`).
    pub connect: String,
    pub key: String,
    /// SHA-256 of the certificate that grun shows there, in hexadecimal.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub certificate: String,
    /// The first task gets a terminal of this size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub terminal: Option<TerminalSize>,
    /// Soft limits of its tasks; empty: those of the job.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "few_limits")]
    pub rlimits: Vec<SoftLimit>,
    /// A part of gstepd that runs in the place of `argv`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub helper: Option<StepHelper>,
    /// How long the tasks go on without their client's stream.
    #[serde(skip_serializing_if = "is_zero")]
    pub detached_secs: u32,
    /// CPUs of each task; 0: as many as the job's tasks have.
    #[serde(skip_serializing_if = "is_zero")]
    pub cpus_per_task: u32,
    /// The CPUs of the step's own, as positions among the run's here; none: it shares all of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cpus: Vec<u32>,
    /// Its GPUs, as positions among the run's here; `None`: all of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpus: Option<Vec<u32>>,
    /// What its tasks on this node may have of memory together; 0: as much as the job.
    #[serde(skip_serializing_if = "is_no_bytes")]
    pub mem_bytes: u64,
    #[serde(skip_serializing_if = "ParallelSpec::is_default")]
    pub parallel: ParallelSpec,
}

impl StepOrder {
    /// What the task of this rank runs.
    pub fn argv_of(&self, rank: u32) -> &[String] {
        let mut later = self.programs.iter().rev();
        let own = later.find(|program| program.first_rank <= rank);
        own.map_or(&self.argv, |program| &program.argv)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProgramOfRanks {
    pub first_rank: u32,
    pub argv: Vec<String>,
}

/// What gstepd itself runs in a step, as the job's user in the job's cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepHelper {
    /// Dials what forwarded ports ask for (`crate::port_forward`).
    Forward,
    /// Gives `sshd -i` its keys and its environment (`SshKeys`).
    Sshd,
    /// From a newer client: refused.
    #[serde(other)]
    Unknown,
}

/// The first line on stdin of [`StepHelper::Sshd`], as JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SshKeys {
    /// The server's private key, as OpenSSH writes it.
    pub host_key: String,
    /// The client's public key: one line of `authorized_keys`.
    pub authorized_key: String,
}

/// Of a terminal, in characters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalSize {
    pub rows: u16,
    pub columns: u16,
}
