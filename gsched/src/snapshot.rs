//! What a pass looks at: nodes with what is free, jobs that wait, runs with their latest end.

use gmodel::array_spec::RangeSet;
use gmodel::config::ClusterConfig;
use gmodel::node::GpuEntry;
use gmodel::run::NodeShare;
use gmodel::{JobId, JobSpec, NodeId, Reason, RunId, Seq, Timestamp};
use std::sync::Arc;

/// An immutable picture of the cluster.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    pub seq: Seq,
    pub now: Timestamp,
    pub config: Arc<ClusterConfig>,
    /// In the order of their ids.
    pub nodes: Vec<SchedNode>,
    /// In no particular order; jobs that are held or not yet eligible are included and get a reason.
    pub pending: Vec<PendingJob>,
    pub running: Vec<RunningShare>,
}

#[derive(Clone, Debug)]
pub struct SchedNode {
    pub id: NodeId,
    pub name: String,
    /// Why it takes no new work; `None` when it does.
    pub unavailable: Option<String>,
    pub features: Vec<String>,
    pub cpus: u32,
    pub mem_bytes: u64,
    /// Shared: a pass copies its nodes many times, and these never change in it.
    pub gpus: Arc<Vec<GpuEntry>>,
    pub free_cpus: u32,
    pub free_mem_bytes: u64,
    /// By slot, thousandths; 0 for a GPU that is missing or sick.
    pub free_gpu_milli: Vec<u32>,
    /// Runs with a share here: an exclusive job needs 0.
    pub runs: u32,
    /// An exclusive run holds all of it.
    pub exclusive: bool,
}

#[derive(Clone, Debug)]
pub struct PendingJob {
    /// For an array the id of its first task, which may also be waiting with a record of its own.
    pub id: JobId,
    pub spec: Arc<JobSpec>,
    pub submitted: Timestamp,
    pub eligible: Timestamp,
    pub nice: i32,
    pub limit_secs: Option<u32>,
    /// The reason it has: a plan names only reasons that are new.
    pub reason: Reason,
    /// Owner of the first hold: `user:...` or otherwise an administrator's or the system's.
    pub held_by: Option<Box<str>>,
    /// Nodes that failed this job before: avoided while others fit.
    pub avoid: Vec<NodeId>,
    /// For an array: positions still to start. `None`: a job, or a task with a record of its own.
    pub positions: Option<RangeSet>,
    /// How many more tasks of its array may run at once; `None` is no cap.
    pub room: Option<u32>,
}

/// What a live run holds on one node and when it must be over.
#[derive(Clone, Debug)]
pub struct RunningShare {
    pub run: RunId,
    pub share: NodeShare,
    /// Start plus limit; `None` for unlimited.
    pub ends_by: Option<Timestamp>,
}
