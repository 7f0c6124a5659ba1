//! Nodes, their GPUs, and partitions, as listings show them.

use super::{Gpus, MarkRow};
use gmodel::Instant;
use gmodel::gpu_link::GpuLink;
use gmodel::node::Role;
use gmodel::policy::Limits;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeRow {
    pub name: String,
    /// `IDLE`, `MIXED+DRAIN`, `DOWN`, `IDLE+MAINTENANCE+RESERVED`.
    pub state: String,
    /// Those in force over it now.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reservations: Vec<String>,
    pub role: Role,
    pub partitions: Vec<String>,
    pub features: Vec<String>,
    /// Where an operator set its features: those that it may have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available_features: Option<Vec<String>>,
    /// Switches above it, the highest first: `spine.leaf1`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub switches: String,
    /// Nodes with the same word here are joined by NVLink.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub nvlink_domain: String,
    pub cpus: u32,
    pub cpus_alloc: u32,
    pub mem_bytes: u64,
    pub mem_alloc_bytes: u64,
    pub gpus: Vec<GpuRow>,
    /// `h100:8`.
    pub gpu_summary: String,
    pub gpus_alloc: f64,
    pub runs: Vec<String>,
    pub drains: Vec<MarkRow>,
    /// Sound GPUs and slices that no job gets, since the node has more than sixteen kinds: `a100:3g.20gb:2`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
    /// Why it takes no work though it is up.
    pub unfit: String,
    /// Jobs with processes that do not die: which, and where the kernel holds them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hung: Vec<String>,
    /// Why MPS can share none of its GPUs; empty where it can, or where there is none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub no_mps: String,
    /// Why it is held for lost and what its jobs wait for, while they do.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub lost: String,
    /// Operators may administer from this login node.
    pub admin: bool,
    pub isolation: String,
    pub declared: bool,
    pub version: String,
    pub os: String,
    pub driver: String,
    pub last_seen: Option<Instant>,
    pub boot_time: Option<Instant>,
    /// Where it is connected from; none of one that is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<std::net::IpAddr>,
    pub strikes: Vec<String>,
    pub certificate: CertificateRow,
    /// What it noticed that is about none of its GPUs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

impl NodeRow {
    /// Its address; its name while that is not known.
    pub fn shown_address(&self) -> String {
        let address = self.address.map(|address| address.to_string());
        address.unwrap_or_else(|| self.name.clone())
    }
}

/// What is known of a node's certificate.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CertificateRow {
    /// Raised by each join after the first and by `gadm node revoke`.
    pub epoch: u32,
    /// First.
    pub joined: Option<Instant>,
    /// Last, under this epoch.
    pub renewed: Option<Instant>,
    /// Address of the machine that asked.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub renewed_from: String,
    pub renewals: u32,
}

/// A time in which a node took no work.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeEventRow {
    pub node: String,
    /// `DRAIN`, `NO_RESPOND`, `DOWN`.
    pub state: String,
    pub start: Option<Instant>,
    /// `None`: it lasts.
    pub end: Option<Instant>,
    pub reason: String,
    /// `admin:root`, `system`.
    pub by: String,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuRow {
    pub slot: u16,
    pub index: u32,
    pub minor: u32,
    pub uuid: String,
    #[serde(rename = "type")]
    pub gpu_type: String,
    pub memory_mib: u64,
    /// Of a MIG slice: its profile, and the UUID of its GPU.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub profile: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub gpu: String,
    /// Cut by MIG: its slices are given out, it is not.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub divided: bool,
    /// Shares of it can be held to their part.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub mps: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa: Option<u32>,
    /// Rail of the network between nodes that it is on, where the site names one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rail: Option<u32>,
    /// The best way to each other GPU of the node that is there, by its slot.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub links: BTreeMap<u16, GpuLink>,
    /// Job that holds it, as shown; several for shares.
    pub jobs: Vec<String>,
    pub fault: String,
    pub present: bool,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PartitionRow {
    pub name: String,
    /// The user that made it at run time, or last set a key of a file's; empty for what is as its file has it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub made_by: String,
    /// Keys of a file's partition that were set at run time, by their names in TOML.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub set_keys: Vec<String>,
    pub is_default: bool,
    /// `up`, `down`, `drain`, `inact`.
    pub state: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_time_secs: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_time_secs: Option<u32>,
    pub nodes: Vec<String>,
    pub priority_tier: u32,
    pub priority_factor: u32,
    /// `off`, `requeue`, `cancel`, `suspend`.
    pub preempt_mode: String,
    /// `pack`, `spread`, `best-fit`, `first-fit`.
    pub placement: String,
    /// What a part of a GPU gets there: `off`, `mps`, `uncapped`.
    pub gpu_sharing: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_nodes: Option<u32>,
    pub over_time_secs: u32,
    /// Idle GPUs kept for urgent work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub headroom: Option<Gpus>,
    /// Of all its jobs together, of each user and account in it.
    #[serde(with = "crate::record_json")]
    pub group: Limits,
    #[serde(with = "crate::record_json")]
    pub per_user: Limits,
    #[serde(with = "crate::record_json")]
    pub per_account: Limits,
    /// Empty allows all.
    pub allow_accounts: Vec<String>,
    pub allow_users: Vec<String>,
    pub allow_groups: Vec<String>,
    pub allow_qos: Vec<String>,
    /// What may not use it, where the list above is empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deny_accounts: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deny_qos: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_qos: Option<String>,
}
