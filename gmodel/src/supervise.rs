//! Between gpud and gstepd: the run's spool directory and the messages on its control socket.
//!
//! ```text
//! SPOOL/runs/17-1/          root, 0700
//!   order.json              LaunchOrder, as the controller sent it
//!   setup.json              Setup, what gpud prepared for the run
//!   mark.json               Mark, the newest of the run (fsync, rename), there before it is acknowledged
//!   exit.json               RunEnd, written once (fsync, rename): the truth about the end
//!   prolog.json             HookOrder; beside it prolog.lock, prolog.out and prolog.end.json (HookEnd); and so for epilog
//!   log                     what the node did for the run, for `gq --log`
//! RUN_DIR/marks/17-1.ctl      messages below, one JSON object a line, root only; SPOOL/runs/17-1/ctl.sock where that cannot be made
//! RUN_DIR/marks/17-1.script   the script's copy, its user's; in SPOOL/marks where it is long or cannot be executed there
//! RUN_DIR/marks/17-1.sock     where the job itself may write, a stream: a line is a mark with that note, the answer is a line
//!                             `ok NUMBER` or `error WHY`; GSUB_MARK_SOCKET names it
//! ```

use crate::checkpoint::CheckpointMark;
use crate::exit_code::ExitCode;
use crate::parallel::{ParallelSpec, PortRange};
use crate::run::{NumberedSignal, RunEnd, StopCause, Usage};
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

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

/// gstepd to grun, over the one TLS connection that gstepd opens per step and node: `Hello`, then what the tasks do.
/// Over a stream the same without `Hello`.
/// When grun closes the connection, gstepd ends the step's tasks; when the last task has ended, gstepd closes it.
///
/// ```text
/// frame:  length u32 | kind u8 | body         numbers big-endian; the length counts kind and body
/// H  step u32, node index u32, key            S  rank u32, pid u32
/// O  rank u32, bytes of its stdout            E  rank u32, bytes of its stderr
/// X  rank u32, code u8, signal u8, text       R  text
/// T  bytes of input taken u32                 M  where the ranks meet: HOST:PORT   (of the first node; grun tells the others)
/// L  ranks, u32 each
/// U  CPU user u64, system u64 (microseconds), peak of memory u64 (bytes), OOM kills u64, text
/// K  signal u8                                (grun to gstepd)
/// I  rank u32, bytes for its stdin            (grun to gstepd; no bytes: its end; rank 2^32-1: every task)
/// W  rows u16, columns u16                    (grun to gstepd)
/// M  HOST:PORT                                (grun to gstepd)
/// P  is last u8, keys and values of PMI       (both ways: what is new on a node at a fence, and on all others)
/// A  rank u32, why it ends the step
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepOutput {
    /// The first frame. A peer that does not say the key is none of ours.
    Hello {
        step: u32,
        node_index: u32,
        key: String,
    },
    Started {
        rank: u32,
        pid: u32,
    },
    Output {
        rank: u32,
        stream: StepStream,
        bytes: Vec<u8>,
    },
    /// All output of the task came before. The text says why it could not be started, or was killed; else it is empty.
    Ended {
        rank: u32,
        exit: ExitCode,
        text: String,
    },
    /// No task of the step was started here.
    Refused {
        text: String,
    },
    /// So much of the input has reached every task that it is for, or will never: as much more may be sent.
    Taken {
        bytes: u32,
    },
    /// Where the ranks of all nodes meet, by the first node; empty: it has no port for them.
    Meeting {
        address: String,
    },
    /// The tasks of this node; the first frame to a client that only watches.
    Layout {
        ranks: Vec<u32>,
    },
    /// A piece of what the ranks here have put since the last fence, and wait there.
    Fence {
        is_last: bool,
        piece: Vec<u8>,
    },
    /// The step cannot go on because of this rank.
    Aborted {
        rank: u32,
        text: String,
    },
    /// Nothing of the step is left here: what all of it used together. Where the kernel killed some of it for want of memory
    /// the text says so. Not sent by older releases, nor without a measurement.
    Used {
        usage: Usage,
        text: String,
    },
    /// From a newer gstepd.
    Unknown,
}

/// grun to gstepd, in frames of the same form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepInput {
    /// To every process of the step's tasks.
    Signal {
        signal: u8,
    },
    /// More of what the tasks read, or one of them while the others read nothing; no bytes are its end.
    Stdin {
        rank: Option<u32>,
        bytes: Vec<u8>,
    },
    /// The client's terminal has another size.
    Resize(TerminalSize),
    /// What the first node said as [`StepOutput::Meeting`].
    Meeting {
        address: String,
    },
    /// A piece of what the ranks of the other nodes have put; the last one opens the fence.
    Fence {
        is_last: bool,
        piece: Vec<u8>,
    },
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepStream {
    Stdout,
    Stderr,
}

/// Longest frame either side takes, without its length: output is cut into pieces far below this.
pub const MAX_STEP_FRAME_BYTES: usize = 256 << 10;

/// Bytes of input that may be on their way to the tasks of one node, not yet told as taken.
pub const STEP_INPUT_WINDOW_BYTES: usize = 256 << 10;
/// In place of a rank: all of them.
const EVERY_RANK: u32 = u32::MAX;

/// Bytes that are no frame: the connection cannot be read on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a step frame of {length} bytes and kind {kind}: frames are 1 to {MAX_STEP_FRAME_BYTES} bytes of a known form"
)]
pub struct BadFrame {
    pub length: usize,
    pub kind: u8,
}

impl StepOutput {
    pub fn frame(&self) -> Vec<u8> {
        let number = |n: &u32| n.to_be_bytes();
        match self {
            Self::Hello {
                step,
                node_index,
                key,
            } => frame(b'H', &[&number(step), &number(node_index), key.as_bytes()]),
            Self::Started { rank, pid } => frame(b'S', &[&number(rank), &number(pid)]),
            Self::Output {
                rank,
                stream: StepStream::Stdout,
                bytes,
            } => frame(b'O', &[&number(rank), bytes]),
            Self::Output {
                rank,
                stream: StepStream::Stderr,
                bytes,
            } => frame(b'E', &[&number(rank), bytes]),
            Self::Ended { rank, exit, text } => frame(
                b'X',
                &[&number(rank), &[exit.code, exit.signal], text.as_bytes()],
            ),
            Self::Refused { text } => frame(b'R', &[text.as_bytes()]),
            Self::Taken { bytes } => frame(b'T', &[&number(bytes)]),
            Self::Meeting { address } => frame(b'M', &[address.as_bytes()]),
            Self::Layout { ranks } => {
                let ranks: Vec<u8> = ranks.iter().flat_map(|rank| rank.to_be_bytes()).collect();
                frame(b'L', &[&ranks])
            }
            Self::Fence { is_last, piece } => frame(b'P', &[&[u8::from(*is_last)], piece]),
            Self::Aborted { rank, text } => frame(b'A', &[&number(rank), text.as_bytes()]),
            Self::Used { usage, text } => {
                let numbers = [
                    usage.cpu_user_micros,
                    usage.cpu_system_micros,
                    usage.peak_memory_bytes,
                    usage.oom_kills,
                ];
                frame(
                    b'U',
                    &[&numbers.map(u64::to_be_bytes).concat(), text.as_bytes()],
                )
            }
            Self::Unknown => frame(0, &[]),
        }
    }

    /// The first frame of `buffer` and its length with the header; `None` while it is not whole.
    pub fn read(buffer: &[u8]) -> Result<Option<(Self, usize)>, BadFrame> {
        let Some((kind, body, used)) = split_frame(buffer)? else {
            return Ok(None);
        };
        let bad = BadFrame {
            length: body.len() + 1,
            kind,
        };
        let output = match kind {
            b'R' => Self::Refused {
                text: text_of(body),
            },
            b'M' => Self::Meeting {
                address: text_of(body),
            },
            b'P' => body
                .split_first()
                .map(|(is_last, piece)| Self::Fence {
                    is_last: *is_last != 0,
                    piece: piece.to_vec(),
                })
                .ok_or(bad)?,
            b'U' => Self::used(body).ok_or(bad)?,
            b'L' => match body.as_chunks() {
                (ranks, []) => Self::Layout {
                    ranks: ranks.iter().map(|rank| u32::from_be_bytes(*rank)).collect(),
                },
                _ => return Err(bad),
            },
            b'H' | b'A' | b'S' | b'O' | b'E' | b'X' | b'T' => {
                Self::from_body(kind, body).ok_or(bad)?
            }
            _ => Self::Unknown,
        };
        Ok(Some((output, used)))
    }

    fn used(body: &[u8]) -> Option<Self> {
        let (numbers, text) = body.split_first_chunk::<32>()?;
        let mut numbers = numbers.chunks_exact(8).map(|bytes| {
            bytes
                .iter()
                .fold(0, |number, byte| number << 8 | u64::from(*byte))
        });
        let mut next = || numbers.next();
        let usage = Usage {
            cpu_user_micros: next()?,
            cpu_system_micros: next()?,
            peak_memory_bytes: next()?,
            oom_kills: next()?,
            ..Usage::default()
        };
        Some(Self::Used {
            usage,
            text: text_of(text),
        })
    }

    fn from_body(kind: u8, body: &[u8]) -> Option<Self> {
        let (first, rest) = split_number(body)?;
        Some(match kind {
            b'H' => {
                let (node_index, key) = split_number(rest)?;
                Self::Hello {
                    step: first,
                    node_index,
                    key: text_of(key),
                }
            }
            b'T' => Self::Taken { bytes: first },
            b'A' => Self::Aborted {
                rank: first,
                text: text_of(rest),
            },
            b'S' => Self::Started {
                rank: first,
                pid: split_number(rest)?.0,
            },
            b'X' => {
                let ([code, signal], text) = rest.split_first_chunk::<2>()?;
                Self::Ended {
                    rank: first,
                    exit: ExitCode {
                        code: *code,
                        signal: *signal,
                    },
                    text: text_of(text),
                }
            }
            b'E' => Self::Output {
                rank: first,
                stream: StepStream::Stderr,
                bytes: rest.to_vec(),
            },
            _ => Self::Output {
                rank: first,
                stream: StepStream::Stdout,
                bytes: rest.to_vec(),
            },
        })
    }
}

impl StepInput {
    pub fn frame(&self) -> Vec<u8> {
        match self {
            Self::Signal { signal } => frame(b'K', &[&[*signal]]),
            Self::Stdin { rank, bytes } => {
                frame(b'I', &[&rank.unwrap_or(EVERY_RANK).to_be_bytes(), bytes])
            }
            Self::Resize(TerminalSize { rows, columns }) => {
                frame(b'W', &[&rows.to_be_bytes(), &columns.to_be_bytes()])
            }
            Self::Meeting { address } => frame(b'M', &[address.as_bytes()]),
            Self::Fence { is_last, piece } => frame(b'P', &[&[u8::from(*is_last)], piece]),
            Self::Unknown => frame(0, &[]),
        }
    }

    /// As [`StepOutput::read`].
    pub fn read(buffer: &[u8]) -> Result<Option<(Self, usize)>, BadFrame> {
        let Some((kind, body, used)) = split_frame(buffer)? else {
            return Ok(None);
        };
        let bad = BadFrame {
            length: body.len() + 1,
            kind,
        };
        let input = match (kind, body) {
            (b'K', [signal]) => Self::Signal { signal: *signal },
            (b'W', [a, b, c, d]) => Self::Resize(TerminalSize {
                rows: u16::from_be_bytes([*a, *b]),
                columns: u16::from_be_bytes([*c, *d]),
            }),
            (b'K' | b'W', _) => return Err(bad),
            (b'M', _) => Self::Meeting {
                address: text_of(body),
            },
            (b'P', [is_last, piece @ ..]) => Self::Fence {
                is_last: *is_last != 0,
                piece: piece.to_vec(),
            },
            (b'P', _) => return Err(bad),
            (b'I', _) => {
                let (rank, bytes) = split_number(body).ok_or(bad)?;
                Self::Stdin {
                    rank: Some(rank).filter(|rank| *rank != EVERY_RANK),
                    bytes: bytes.to_vec(),
                }
            }
            _ => Self::Unknown,
        };
        Ok(Some((input, used)))
    }
}

fn frame(kind: u8, parts: &[&[u8]]) -> Vec<u8> {
    let length = 1 + parts.iter().map(|part| part.len()).sum::<usize>();
    let mut bytes = Vec::with_capacity(4 + length);
    bytes.extend_from_slice(&(length as u32).to_be_bytes());
    bytes.push(kind);
    parts.iter().for_each(|part| bytes.extend_from_slice(part));
    bytes
}

/// A frame in a buffer: kind, body, and its length with the header.
type Frame<'a> = (u8, &'a [u8], usize);

/// The first frame, once it is whole; a frame that is too long is refused by its header.
fn split_frame(buffer: &[u8]) -> Result<Option<Frame<'_>>, BadFrame> {
    let Some((length, rest)) = split_number(buffer) else {
        return Ok(None);
    };
    let (length, kind) = (length as usize, rest.first().copied().unwrap_or(0));
    if length == 0 || length > MAX_STEP_FRAME_BYTES {
        return Err(BadFrame { length, kind });
    }
    Ok(rest.get(1..length).map(|body| (kind, body, 4 + length)))
}

fn split_number(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (number, rest) = bytes.split_first_chunk::<4>()?;
    Some((u32::from_be_bytes(*number), rest))
}

fn text_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frames() -> Vec<StepOutput> {
        vec![
            StepOutput::Hello {
                step: 3,
                node_index: 1,
                key: "secret".into(),
            },
            StepOutput::Started {
                rank: 2,
                pid: 4_000_000,
            },
            StepOutput::Output {
                rank: 2,
                stream: StepStream::Stdout,
                bytes: b"a\n\0\xff".to_vec(),
            },
            StepOutput::Output {
                rank: 0,
                stream: StepStream::Stderr,
                bytes: Vec::new(),
            },
            StepOutput::Ended {
                rank: 2,
                exit: ExitCode::killed(9),
                text: String::new(),
            },
            StepOutput::Ended {
                rank: 1,
                exit: ExitCode::exited(127),
                text: "program x: not found".into(),
            },
            StepOutput::Refused {
                text: "ended".into(),
            },
            StepOutput::Taken { bytes: 70_000 },
            StepOutput::Meeting {
                address: "node1:28100".into(),
            },
            StepOutput::Layout {
                ranks: vec![0, 7, 65_535],
            },
            StepOutput::Fence {
                is_last: true,
                piece: b"\0\xff".to_vec(),
            },
            StepOutput::Aborted {
                rank: 3,
                text: "left".into(),
            },
            StepOutput::Used {
                usage: Usage {
                    cpu_user_micros: 1 << 40,
                    cpu_system_micros: 7,
                    peak_memory_bytes: u64::MAX,
                    oom_kills: 1,
                    ..Usage::default()
                },
                text: "killed".into(),
            },
        ]
    }

    #[test]
    fn frames_read_back_from_a_stream_in_any_pieces() {
        let stream: Vec<u8> = frames().iter().flat_map(StepOutput::frame).collect();
        let mut read = Vec::new();
        let mut at = 0;
        for end in 0..=stream.len() {
            while let Some((output, used)) = StepOutput::read(&stream[at..end]).unwrap() {
                read.push(output);
                at += used;
            }
        }
        assert_eq!(read, frames());
        assert_eq!(at, stream.len());
        let signal = StepInput::Signal { signal: 15 };
        assert_eq!(StepInput::read(&signal.frame()), Ok(Some((signal, 6))));
        let size = TerminalSize {
            rows: 50,
            columns: 300,
        };
        let text = b"text\0\xff".to_vec();
        for input in [
            StepInput::Stdin {
                rank: None,
                bytes: text,
            },
            StepInput::Stdin {
                rank: Some(7),
                bytes: Vec::new(),
            },
            StepInput::Resize(size),
            StepInput::Fence {
                is_last: false,
                piece: b"a=b".to_vec(),
            },
        ] {
            let frame = input.frame();
            assert_eq!(StepInput::read(&frame), Ok(Some((input, frame.len()))));
        }
    }

    #[test]
    fn a_length_that_no_frame_has_is_refused_before_it_arrives() {
        assert_eq!(
            StepOutput::read(&[0, 0, 0, 0]),
            Err(BadFrame { length: 0, kind: 0 })
        );
        let long = (MAX_STEP_FRAME_BYTES as u32 + 1).to_be_bytes();
        assert!(StepOutput::read(&long).is_err() && StepInput::read(&long).is_err());
        assert!(
            StepOutput::read(&[0, 0, 0, 3, b'X', 0, 0]).is_err(),
            "too short for its kind"
        );
        assert!(StepOutput::read(&[0, 0, 0, 3, b'U', 0, 0]).is_err());
        assert_eq!(
            StepOutput::read(&[0, 0, 0, 2, b'?', 9]),
            Ok(Some((StepOutput::Unknown, 6))),
            "newer"
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_refused_or_waited_for(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(Some((_, used))) = StepOutput::read(&bytes) {
                prop_assert!(used <= bytes.len());
            }
            let _ = StepInput::read(&bytes);
        }
    }
}
