//! A partition: a queue over a set of nodes, with its limits, defaults and policies. Source of the words: slurm.conf(5).

use crate::gpu_amounts::GpuAmounts;
use crate::hostlist::Hostlist;
use crate::idle::IdlePolicy;
use crate::job::{MemRequest, VisibleDevices};
use crate::policy::{Limits, Placement, Policy, PreemptMode};
use serde::{Deserialize, Serialize};

/// Whether users may submit from compute nodes where a job of theirs runs. Root there is each of these users.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", from = "SubmitFromJobsText")]
pub enum SubmitFromJobs {
    No,
    /// To the partitions in which they have a job there.
    #[default]
    SamePartition,
    Yes,
}

/// As a trace has it: older traces have true or false.
#[derive(Deserialize)]
#[serde(untagged)]
enum SubmitFromJobsText {
    Switch(bool),
    Word(String),
}

impl From<SubmitFromJobsText> for SubmitFromJobs {
    fn from(written: SubmitFromJobsText) -> Self {
        match written {
            SubmitFromJobsText::Switch(true) => Self::Yes,
            SubmitFromJobsText::Switch(false) => Self::No,
            SubmitFromJobsText::Word(word) => match word.as_str() {
                "yes" => Self::Yes,
                "same_partition" => Self::SamePartition,
                _ => Self::No,
            },
        }
    }
}

/// One partition: a queue over a set of nodes, with limits and defaults.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Partition {
    pub name: String,
    pub nodes: NodeSelection,
    /// The partition of jobs that name none.
    pub is_default: bool,
    pub state: PartitionState,
    /// Seconds; `None` is unlimited.
    pub max_time_secs: Option<u32>,
    pub default_time_secs: Option<u32>,
    pub max_nodes: Option<u32>,
    pub priority_tier: u32,
    /// Empty allows all.
    pub allow_accounts: Vec<String>,
    pub allow_users: Vec<String>,
    pub cpus_per_gpu: Option<u32>,
    pub mem_per_cpu_bytes: Option<u64>,
    pub mem_per_gpu_bytes: Option<u64>,
    /// A private /tmp and /dev/shm for each job.
    pub private_tmp: bool,
    /// Paths of programs run as root on each node before and after a run; empty for none.
    pub prolog: String,
    pub epilog: String,
    /// Zeros over the memory of a run's GPUs before they are given to another.
    pub gpu_scrub: bool,
    /// How a job's GPUs are named to CUDA; `None`: as the cluster says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub visible_devices: Option<VisibleDevices>,
    /// What jobs do after a node failure when they do not say.
    pub requeue: bool,
    pub submit_from_jobs: SubmitFromJobs,
    /// Seconds a run may go over its limit.
    pub over_time_secs: u32,
    /// PriorityJobFactor: the partition's part of the multifactor priority.
    pub priority_factor: u32,
    /// How runs here are preempted; `Off`: never.
    pub preempt_mode: PreemptMode,
    /// Where it differs from the cluster's.
    pub placement: Option<Placement>,
    /// Of all jobs of the partition together, and of each user and account in it.
    pub group: Limits,
    pub per_user: Limits,
    pub per_account: Limits,
    /// Idle GPUs kept for jobs of QOS that may use headroom, and for guaranteed demand.
    pub headroom: Option<GpuAmounts>,
    /// Empty allows all.
    pub allow_qos: Vec<String>,
    /// QOS of jobs that name none.
    pub default_qos: Option<String>,
    /// How its GPUs are cut by MIG.
    pub mig: MigCuts,
    /// One GPU asked for by `--gpu-mem` may be a MIG slice with memory enough.
    pub slices_for_memory: bool,
    /// Whether a part of a GPU may be asked for.
    pub gpu_sharing: GpuSharing,
    /// Its GPUs are checked in idle gaps where the cluster has that.
    pub diagnostics: bool,
    /// The idle policy for its runs; `None`: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle: Option<IdlePolicy>,
}

impl Partition {
    /// The memory that is asked for, with what the partition gives where the request says nothing: for each GPU of one
    /// that has some, else for each CPU. `Default` leaves it to the node.
    pub fn mem_ask(&self, asked: MemRequest, has_gpus: bool) -> MemRequest {
        let by_gpu = self
            .mem_per_gpu_bytes
            .filter(|_| has_gpus)
            .map(MemRequest::PerGpu);
        match asked {
            MemRequest::Default => by_gpu
                .or(self.mem_per_cpu_bytes.map(MemRequest::PerCpu))
                .unwrap_or_default(),
            asked => asked,
        }
    }
}

impl Default for Partition {
    fn default() -> Self {
        Self {
            name: String::new(),
            nodes: NodeSelection::All,
            is_default: false,
            state: PartitionState::Up,
            max_time_secs: None,
            default_time_secs: None,
            max_nodes: None,
            priority_tier: 1,
            allow_accounts: Vec::new(),
            allow_users: Vec::new(),
            cpus_per_gpu: None,
            mem_per_cpu_bytes: None,
            mem_per_gpu_bytes: None,
            private_tmp: false,
            prolog: String::new(),
            epilog: String::new(),
            gpu_scrub: false,
            visible_devices: None,
            requeue: true,
            submit_from_jobs: SubmitFromJobs::default(),
            over_time_secs: 0,
            priority_factor: 0,
            preempt_mode: PreemptMode::Requeue,
            placement: None,
            group: Limits::default(),
            per_user: Limits::default(),
            per_account: Limits::default(),
            headroom: None,
            allow_qos: Vec::new(),
            default_qos: None,
            mig: MigCuts::Fixed,
            slices_for_memory: false,
            gpu_sharing: GpuSharing::Off,
            diagnostics: true,
            idle: None,
        }
    }
}

/// What `--gpus 0.5` gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuSharing {
    /// A refusal.
    #[default]
    Off,
    /// A part that CUDA MPS holds the job to, on a GPU that holds equal parts of the same user at most.
    Mps,
    /// A place on a GPU that runs of all users may share: no bound holds a run to its share.
    Uncapped,
}

/// How GPUs are cut by MIG.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MigCuts {
    /// They are as the nodes report them: cut by hand, or by a layout of the configuration.
    #[default]
    Fixed,
    /// Empty GPUs are cut anew as the queue needs it.
    Planned,
}

/// Which nodes a partition holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeSelection {
    #[default]
    All,
    Names(Hostlist),
    /// Nodes that have all of these features.
    Features(Vec<String>),
}

/// Slurm's partition states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PartitionState {
    /// Takes submissions and starts jobs.
    #[default]
    Up,
    /// Takes submissions, starts nothing.
    Down,
    /// Takes no submissions, starts what is queued.
    Drain,
    /// Neither.
    Inactive,
}

impl Partition {
    /// Whether jobs charged to an account may run here: the partition lists no account, or this one, or one above it.
    pub fn takes_account(&self, policy: &Policy, account: &str) -> bool {
        let allowed = &self.allow_accounts;
        allowed.is_empty() || policy.is_among(account, |name| allowed.iter().any(|one| one == name))
    }

    pub fn is_open_to_user(&self, user: &str) -> bool {
        is_named(&self.allow_users, user)
    }

    pub fn is_open_to_qos(&self, qos: &str) -> bool {
        is_named(&self.allow_qos, qos)
    }

    pub fn holds(&self, node_name: &str, features: &[String]) -> bool {
        match &self.nodes {
            NodeSelection::All => true,
            NodeSelection::Names(names) => names.contains(node_name),
            NodeSelection::Features(wanted) => wanted.iter().all(|f| features.contains(f)),
        }
    }
}

/// A list of none allows all.
fn is_named(allowed: &[String], name: &str) -> bool {
    allowed.is_empty() || allowed.iter().any(|one| one == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_gives_memory_by_gpu_else_by_cpu_and_only_where_nothing_was_asked() {
        let partition = |mem_per_cpu_bytes, mem_per_gpu_bytes| Partition {
            mem_per_cpu_bytes,
            mem_per_gpu_bytes,
            ..Partition::default()
        };
        let both = partition(Some(1), Some(8));
        assert_eq!(
            (
                both.mem_ask(MemRequest::Default, true),
                both.mem_ask(MemRequest::Default, false)
            ),
            (MemRequest::PerGpu(8), MemRequest::PerCpu(1))
        );
        assert_eq!(
            both.mem_ask(MemRequest::PerNode(3), true),
            MemRequest::PerNode(3)
        );
        assert_eq!(
            partition(None, Some(8)).mem_ask(MemRequest::Default, false),
            MemRequest::Default,
            "the node's share"
        );
        assert_eq!(
            partition(Some(1), None).mem_ask(MemRequest::Default, true),
            MemRequest::PerCpu(1)
        );
    }
}
