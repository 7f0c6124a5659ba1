//! The cluster's policy as the core needs it. Files, carets and defaults are the daemon's affair.

use crate::expected_hardware::ExpectedHardware;
use crate::gpu_check::Diagnostics;
use crate::hostlist::Hostlist;
use crate::job::VisibleDevices;
use crate::job_output::JobOutput;
use crate::parallel::MpiType;
pub use crate::partition::{
    GpuSharing, MigCuts, NodeSelection, Partition, PartitionState, SubmitFromJobs,
};
use crate::policy::{Policy, SchedulerConfig};
use crate::time_zone::TimeZone;
use serde::{Deserialize, Serialize};

use std::sync::Arc;

/// Everything of the controller's TOML that decisions depend on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClusterConfig {
    pub name: String,
    pub partitions: Vec<Partition>,
    /// The partitions as the files have them, where operators made or changed some.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub file_partitions: Vec<Partition>,
    /// The account of a user without one.
    pub default_account: String,
    /// Seconds of silence until a node counts as failed.
    pub node_timeout_secs: u32,
    pub lost_node: LostNodePolicy,
    /// The site has a program that powers lost nodes off; their runs wait for it.
    pub fence_program: bool,
    /// The site has a program that is told of each run with idle GPUs.
    pub idle_program: bool,
    /// Seconds a run may take to get ready on all its nodes.
    pub prepare_timeout_secs: u32,
    /// Seconds between SIGTERM and SIGKILL.
    pub kill_grace_secs: u32,
    /// Limits on the size of the queue.
    pub max_array_tasks: u32,
    pub max_pending_jobs: u32,
    /// Jobs of uid 0.
    pub allow_root_jobs: bool,
    /// Where neither job nor partition says it.
    pub visible_devices: VisibleDevices,
    /// Of steps that name none.
    #[serde(default)]
    pub mpi_default: MpiType,
    /// Where outputs of scripts go.
    #[serde(default)]
    pub output: JobOutput,
    /// Cancels a job when its dependency can never be met, unless it says `--kill-on-invalid-dep=no`.
    pub kill_invalid_depend: bool,
    /// What recurring windows and the periods of budgets are counted in.
    #[serde(default)]
    pub time_zone: Arc<TimeZone>,
    /// Operators, besides root on the controller's host.
    pub operators: Vec<String>,
    /// Finished jobs stay in memory this long (of more than 10,000 the oldest for 60 s), for `gq` without the database and to be requeued.
    pub min_job_age_secs: u32,
    /// Longest time for which a user's token is made, days.
    pub max_token_days: u32,
    /// What of others' jobs listings show.
    pub privacy: Privacy,
    /// Order, backfill, placement, weights, licences, prices, topology.
    pub scheduler: SchedulerConfig,
    /// How GPUs are to be cut by MIG where that is fixed; the first that names a GPU counts.
    pub mig: Vec<MigLayout>,
    /// What nodes should have; the first that names a node counts. Differences are shown, and decide nothing.
    pub expected: Vec<ExpectedHardware>,
    /// Seconds between two cuts of one GPU that are the queue's wish.
    pub mig_recut_secs: u32,
    /// How GPUs are checked in idle gaps; `None`: they are not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub diagnostics: Option<Diagnostics>,
    /// Accounts, QOS and reservations that are written in files. What `gadm` makes is in the state; files win.
    pub policy: Policy,
}

impl Default for ClusterConfig {
    fn default() -> Self {
        Self {
            name: "gpupool".into(),
            partitions: Vec::new(),
            file_partitions: Vec::new(),
            default_account: "default".into(),
            node_timeout_secs: 300,
            lost_node: LostNodePolicy::Requeue,
            fence_program: false,
            idle_program: false,
            prepare_timeout_secs: 60,
            kill_grace_secs: 30,
            max_array_tasks: 1_000_000,
            max_pending_jobs: 1_000_000,
            allow_root_jobs: false,
            visible_devices: VisibleDevices::Index,
            mpi_default: MpiType::None,
            output: JobOutput::default(),
            kill_invalid_depend: false,
            time_zone: Arc::default(),
            operators: Vec::new(),
            min_job_age_secs: 300,
            max_token_days: 365,
            privacy: Privacy::Open,
            scheduler: SchedulerConfig::default(),
            mig: Vec::new(),
            expected: Vec::new(),
            mig_recut_secs: 300,
            diagnostics: None,
            policy: Policy::default(),
        }
    }
}

/// What happens to the jobs of a node that fell silent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LostNodePolicy {
    /// A new attempt starts elsewhere, as in Slurm.
    #[default]
    Requeue,
    /// They wait until the node reports, has a new boot id, or is declared down.
    Wait,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Privacy {
    #[default]
    Open,
    Account,
    Own,
}

/// `[mig.NAME]`: how GPUs of some nodes are to be cut.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MigLayout {
    pub name: String,
    pub nodes: Hostlist,
    /// `None`: of any type that can be cut so.
    pub gpu_type: Option<String>,
    /// So many GPUs of each node, those with the lowest index; `None`: all.
    pub gpus: Option<u32>,
    /// Profiles of each GPU; none: not cut.
    pub layout: Vec<String>,
}

impl ClusterConfig {
    pub fn partition(&self, name: &str) -> Option<&Partition> {
        self.partitions.iter().find(|p| p.name == name)
    }
    /// The partitions as the files have them.
    pub fn of_files(&self) -> &[Partition] {
        match self.file_partitions.is_empty() {
            true => &self.partitions,
            false => &self.file_partitions,
        }
    }
    pub fn file_partition(&self, name: &str) -> Option<&Partition> {
        self.of_files().iter().find(|p| p.name == name)
    }
    pub fn default_partition(&self) -> Option<&Partition> {
        self.partitions
            .iter()
            .find(|p| p.is_default)
            .or(match &self.partitions[..] {
                [only] => Some(only),
                _ => None,
            })
    }
}
