//! A node as it reports itself, and the axes of its state.
//!
//! Discovery is the truth: the inventory comes from the node; configuration only constrains it.

use crate::gpu_link::GpuLinks;
use crate::gpu_set::{GpuPart, GpuSlot};
use crate::ids::RunId;
use crate::mig::MigBoard;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// What a node has. Sent in its hello and whenever it changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Inventory {
    pub cpus: u32,
    pub mem_bytes: u64,
    pub gpus: Vec<GpuInfo>,
    /// Nodes with the same word here are joined by NVLink, as in an NVL72 rack: the fabric's cluster and clique.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub nvlink_domain: String,
    /// What GPUs of the node can be cut into, a type and size each; those that cannot are not named.
    #[serde(skip_serializing_if = "is_empty")]
    pub mig: Arc<Vec<MigBoard>>,
    /// Features the node derived by itself or was given in its TOML.
    pub features: Vec<String>,
    /// Why no GPU here can be shared by MPS; empty where some can, or where there is none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub no_mps: String,
    /// Warnings of the node that are about none of its GPUs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// CPUs and memory were declared, not found (sandbox nodes).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub declared: bool,
    /// How jobs are kept apart: `fence`, or `none` for a daemon without root.
    pub isolation: String,
    /// Why the node can take no work (failed self-test, full spool); empty when it can.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub unfit: String,
    /// Hung runs; at most [`MAX_HUNG_RUNS`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hung: Vec<HungRun>,
    pub os: String,
    pub driver: String,
    pub version: String,
    /// The node's uptime start, seconds since the epoch by its own clock; for display.
    pub boot_secs: i64,
}

/// Most runs that a node names as hung, and most of the words about each.
pub const MAX_HUNG_RUNS: usize = 16;
pub const MAX_HUNG_CHARS: usize = 512;

/// A run that was killed and of which processes are left.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HungRun {
    pub run: Option<RunId>,
    /// Which processes, and where the kernel holds them.
    pub text: String,
}

impl HungRun {
    /// Cuts what a node says to what is kept.
    pub fn bound(hung: &mut Vec<Self>) {
        hung.truncate(MAX_HUNG_RUNS);
        for one in hung
            .iter_mut()
            .filter(|one| one.text.chars().nth(MAX_HUNG_CHARS).is_some())
        {
            one.text = one.text.chars().take(MAX_HUNG_CHARS).collect();
        }
    }
}

fn is_empty(boards: &Arc<Vec<MigBoard>>) -> bool {
    boards.is_empty()
}

/// One GPU of a node, or a slice of one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuInfo {
    pub uuid: String,
    /// Short type: `h100`, `a100`, `l4`.
    #[serde(rename = "type")]
    pub gpu_type: String,
    /// NVML index, for display; it is not the minor number.
    pub index: u32,
    pub minor: u32,
    /// Nominal device memory, MiB: what `--gpu-mem` is compared with.
    pub memory_mib: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa: Option<u32>,
    /// GPUs of the node with the same number reach each other by NVLink; `None`: it reaches no other.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nvlink_island: Option<u32>,
    /// The best way to each other GPU of the node; empty for a slice.
    #[serde(
        skip_serializing_if = "GpuLinks::is_empty",
        deserialize_with = "crate::gpu_link::by_minor"
    )]
    pub links: GpuLinks,
    /// A slice of a GPU that is cut by MIG: an entry of its own, given out like a GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slice: Option<MigSlice>,
    /// Its node can hold jobs to a part of it by MPS.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub mps: bool,
    /// In MIG mode: its slices are given out, it is not.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub divided: bool,
    /// Lasting signs that take nothing out of service.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// The next step of its repair, which waits for the controller's word: `quarantine`, `reset`, `boot`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub wants: String,
    /// How it stands when it is out of service, or on its way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub standing: Option<Box<crate::gpu_health::GpuHealthStatus>>,
    /// Why the GPU is out of the pool; empty when healthy.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub fault: String,
}

/// What a MIG slice is of its GPU. Slices of the GPU's compute are sevenths, of its memory eighths.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default)]
pub struct MigSlice {
    /// UUID of the GPU.
    pub gpu: String,
    /// `2g.20gb`.
    pub profile: String,
    /// First memory slice.
    pub placement: u8,
    pub compute_slices: u8,
    pub memory_slices: u8,
}

/// A GPU as the controller keeps it: its slot is for ever, the report may vanish.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuEntry {
    pub slot: GpuSlot,
    pub info: GpuInfo,
    /// In the node's latest inventory.
    pub present: bool,
    /// Its absence is expected: it was seen in another node, or an operator says that it is gone for good.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub forgotten: bool,
    /// Why its node did not carry out the newest order for it; empty when it did.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub refused: String,
    /// What checks in idle gaps found, the newest of each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checks: Option<Arc<crate::gpu_check::GpuChecks>>,
}

impl GpuInfo {
    /// What a run that is given all of it holds.
    pub fn part(&self) -> GpuPart {
        match &self.slice {
            None => GpuPart::Whole,
            Some(slice) => GpuPart::Mig {
                profile: slice.profile.clone(),
                compute_slices: slice.compute_slices,
                memory_slices: slice.memory_slices,
            },
        }
    }
    /// UUID of the GPU that it is, or is a slice of.
    pub fn board(&self) -> &str {
        self.slice.as_ref().map_or(&self.uuid, |slice| &slice.gpu)
    }
    /// As requests name it: `h100`, `h100:1g.10gb`.
    pub fn kind(&self) -> String {
        match &self.slice {
            None => self.gpu_type.clone(),
            Some(slice) => format!("{}:{}", self.gpu_type, slice.profile),
        }
    }
}

impl GpuEntry {
    /// The node has it, or should have it: one that is missing comes back. A slice that is no more was cut away, and does not.
    pub fn is_expected(&self) -> bool {
        self.present || self.info.slice.is_none() && !self.forgotten
    }

    pub fn usable(&self) -> bool {
        self.present && self.info.fault.is_empty() && !self.info.divided
    }
}

/// Whether the node's daemon is connected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Link {
    /// Joined, never said hello since.
    #[default]
    Never,
    Up,
    /// Connection lost; runs go on. Within `node_timeout`.
    Silent,
    /// Silent for longer than `node_timeout`, or declared down by an administrator.
    Down,
}

/// What a machine does for the cluster, carried in its certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    #[default]
    Compute,
    Login,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Compute => "compute",
            Self::Login => "login",
        })
    }
}

/// Before the name of an operator, the owner of a drain by which a node that answers counts as down.
pub const DOWN_BY: &str = "down:";

/// One of several holds of a job, or of several drains of a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct HoldMark {
    /// Owner of the mark: `user:alice`, `admin:root`, `down:root`, `system`.
    pub owner: String,
    pub reason: String,
    pub since: crate::time::Timestamp,
}

/// The printed state of a node, derived from the axes: `IDLE+DRAIN`, `DOWN`, `MIXED`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeStateView {
    pub link: Link,
    pub drained: bool,
    pub unfit: bool,
    pub allocated: bool,
    /// Something is still free.
    pub room: bool,
    /// In a reservation that is in force, and in one for maintenance.
    pub reserved: bool,
    pub maintenance: bool,
}

impl fmt::Display for NodeStateView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let base = match (self.link, self.allocated, self.room) {
            (Link::Never, ..) => "UNKNOWN",
            (Link::Down, ..) => "DOWN",
            (_, false, _) => "IDLE",
            (_, true, true) => "MIXED",
            (_, true, false) => "ALLOCATED",
        };
        f.write_str(base)?;
        let flags = [
            (self.drained || self.unfit, "+DRAIN"),
            (self.maintenance, "+MAINTENANCE"),
            (self.link == Link::Silent, "+NOT_RESPONDING"),
            (self.reserved, "+RESERVED"),
        ];
        flags
            .iter()
            .filter(|(is_set, _)| *is_set)
            .try_for_each(|(_, word)| f.write_str(word))?;
        Ok(())
    }
}
