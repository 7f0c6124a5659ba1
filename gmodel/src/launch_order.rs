//! The full order for one run on one node: what gpud hands to gstepd, written to the run's spool.
//!
//! Made by the controller from the job, the allocation and the stored blobs; sent once per
//! connection, before the first `Desired` that names the run.

use crate::checkpoint::CheckpointSpec;
use crate::container::ContainerSpec;
use crate::gpu_set::{GpuPart, GpuSlot};
use crate::ids::{Fence, JobId, RunId};
use crate::job::{MemRequest, OpenMode, SoftLimit, UserRef, VisibleDevices, few_limits};
use crate::job_output::JobOutput;
use crate::signal::SigSpec;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LaunchOrder {
    pub run: Option<RunId>,
    pub job_name: String,
    pub user: UserRef,
    pub account: String,
    pub qos: String,
    pub partition: String,
    pub cluster: String,
    /// Set for a task of an array.
    pub array: Option<ArrayTask>,
    /// All nodes of the run in order, the batch node first.
    pub nodes: Vec<OrderNode>,
    /// Position of the receiving node in `nodes`.
    pub node_index: u32,
    /// Switches above the receiving node, the highest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub switches: Vec<String>,
    pub ntasks: u32,
    /// The request names `ntasks`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub ntasks_asked: bool,
    /// As asked for; 0 where it was not.
    pub cpus_per_task: u32,
    /// CPUs, bytes and GPUs on the receiving node.
    pub cpus: u32,
    pub mem_bytes: u64,
    /// How it was asked for, or as the partition has it.
    #[serde(skip_serializing_if = "MemRequest::is_default")]
    pub mem_ask: MemRequest,
    pub gpus: Vec<OrderGpu>,
    /// Rail of each of them, in their order; empty where not all are on one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpu_rails: Vec<u32>,
    /// How `CUDA_VISIBLE_DEVICES` names them.
    #[serde(skip_serializing_if = "is_index")]
    pub visible_devices: VisibleDevices,
    /// IMEX channel that the run opens here, and on its other nodes of the same NVLink domain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub imex_channel: Option<u32>,
    /// No node of the run has a batch process. A node of an earlier release reads over it and fails for want of a program.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub allocation: bool,
    /// All components of a job of unlike parts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<OrderPart>,
    /// Script text; empty when `argv` is the command.
    pub script: String,
    pub argv: Vec<String>,
    /// `NAME=value` of the submission, already filtered by `--export`.
    pub environment: Vec<String>,
    /// What a login on the node would have besides is read there, within so many seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub login_env_secs: Option<u32>,
    pub work_dir: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<Box<ContainerSpec>>,
    /// Empty: `work_dir`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub submit_dir: String,
    pub submit_host: String,
    /// Patterns, defaults filled in.
    pub stdout: String,
    /// Empty: with stdout.
    pub stderr: String,
    pub stdin: String,
    /// Whether its output goes to the spool; a controller of an earlier release knows no spool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<JobOutput>,
    pub open_mode: Option<OpenMode>,
    pub umask: u32,
    /// Soft limits for the job's processes; above the node's hard ones they are cut.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "few_limits")]
    pub rlimits: Vec<SoftLimit>,
    /// Seconds; `None` is unlimited. A newer limit comes with `Desired`.
    pub limit_secs: Option<u32>,
    pub kill_grace_secs: u32,
    pub signal: Option<SigSpec>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointSpec>,
    /// Number and note of the last mark of the attempts before: `3 epoch 40`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_mark: Option<String>,
    pub private_tmp: bool,
    pub prolog: String,
    pub epilog: String,
    /// Its GPUs are free only when their memory was overwritten.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub scrub_gpus: bool,
    pub allow_root: bool,
    /// Runs of the job before this one. Not said by controllers of the release before: then as many as the attempt's number says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restarts: Option<u32>,
    /// The controller's incarnation and the number of its newest event when the order was made. A restored controller knows by it
    /// whether its backup is older.
    #[serde(skip_serializing_if = "is_default")]
    pub made_at: Fence,
    /// The controller's seal over what an adoption relies on (`gpuctld/src/seal.rs`). The node keeps it and brings it back.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub seal: String,
}

impl LaunchOrder {
    /// The receiving node runs no batch process and holds its share for steps until it is told to stop.
    pub fn holds_steps_only(&self) -> bool {
        self.allocation || self.node_index != 0
    }

    /// How often the job was started before. Restores skip numbers of attempts, which were none.
    pub fn restarts(&self) -> u32 {
        self.restarts
            .or(self.run.map(|run| run.attempt.saturating_sub(1)))
            .unwrap_or(0)
    }
}

fn is_default(fence: &Fence) -> bool {
    *fence == Fence::default()
}

fn is_index(visible: &VisibleDevices) -> bool {
    *visible == VisibleDevices::Index
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArrayTask {
    pub array: JobId,
    pub index: u32,
    pub count: u32,
    pub min: u32,
    pub max: u32,
    pub step: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderNode {
    pub name: String,
    pub cpus: u32,
    pub tasks: u32,
    pub gpus: u32,
}

/// A component of a job of unlike parts, as the other components see it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OrderPart {
    pub job: JobId,
    pub nodes: Vec<String>,
    pub cpus_per_node: Vec<u32>,
    pub ntasks: u32,
    pub partition: String,
}

/// A GPU of the order, by UUID: the node maps it to its device files itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderGpu {
    pub slot: GpuSlot,
    pub uuid: String,
    #[serde(rename = "type")]
    pub gpu_type: String,
    pub part: GpuPart,
}
