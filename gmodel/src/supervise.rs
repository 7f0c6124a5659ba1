//! Between gpud and gstepd: the run's spool directory and the messages on its control socket.
//!
//! ```text
//! SPOOL/runs/17-1/          root, 0700
//!   order.json              LaunchOrder, as the controller sent it
//!   setup.json              Setup, what gpud prepared for the run
//!   ctl.sock                messages below, one JSON object a line, root only
//!   exit.json               RunEnd, written once (fsync, rename): the truth about the end
//!   log                     what the node did for the run, for `gq --log`
//! SPOOL/marks/17-1/mark.sock  where the job itself may write
//! ```

use crate::run::{NumberedSignal, RunEnd, StopWhy};
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};

/// What gpud made ready, for gstepd to use. Paths are absolute.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Setup {
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
    /// GPUs of the run in the order of the launch order.
    pub gpus: Vec<SetupGpu>,
    /// Empty: no private directories. Else bound over /tmp and /dev/shm of the job.
    pub private_tmp: String,
    pub private_shm: String,
    /// Service name of the PAM session; empty for none.
    pub pam_service: String,
    /// Drop capabilities and make the cgroup trees read-only (jobs of uid 0).
    pub restrict_root: bool,
    /// Extra `NAME=value` lines from the node's own configuration.
    pub environment: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SetupGpu {
    pub uuid: String,
    pub index: u32,
    /// Device file of the GPU.
    pub device: String,
}

/// gpud to gstepd.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "to_step", rename_all = "snake_case")]
pub enum ToStep {
    /// Start the user's process. Repeating it does nothing.
    Go,
    /// SIGTERM, and SIGKILL to all after the grace. A second stop may only shorten the grace.
    Stop { why: StopWhy, grace_secs: u32 },
    /// Deliver, unless a signal with this number or a higher one was delivered.
    Signal { signal: NumberedSignal },
    /// The time limit changed; seconds from the start, `None` is unlimited.
    Limit { limit_secs: Option<u32> },
    /// Start tasks of a step; output and end go to the address as `StepOutput` lines.
    Step { step: StepOrder },
    #[serde(other)]
    Unknown,
}

/// gstepd to gpud: sent on connection and at every change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "from_step", rename_all = "snake_case")]
pub enum FromStep {
    Ready { pid: u32 },
    Running { pid: u32, started: Timestamp },
    /// `exit.json` is durable; no process of the job is left. gstepd ends after this.
    Ended { end: RunEnd },
    #[serde(other)]
    Unknown,
}

/// Tasks to start in a run on one node, for `grun`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StepOrder {
    pub step: u32,
    pub argv: Vec<String>,
    pub environment: Vec<String>,
    pub work_dir: String,
    /// Global ranks of the tasks on this node.
    pub ranks: Vec<u32>,
    pub ntasks: u32,
    /// Nodes of the step, and the position of this one.
    pub nodes: Vec<String>,
    pub node_index: u32,
    /// `HOST:PORT` where grun listens, and the secret that opens it.
    pub connect: String,
    pub key: String,
}
