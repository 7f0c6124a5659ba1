//! Limits of accounts, users and QOS, and of one job. Source of the words: sacctmgr(1).

use crate::gpu_amounts::GpuAmounts;
use serde::{Deserialize, Serialize};

/// Limits of an account, a user or a QOS; `None` is no bound.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Limits {
    /// Jobs (array tasks count each) that run at once: MaxJobs, GrpJobs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running_jobs: Option<u32>,
    /// Jobs in the queue and running together: MaxSubmitJobs, GrpSubmitJobs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub submitted_jobs: Option<u32>,
    /// GPUs held at once: MaxTRESPerUser, GrpTRES.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpus: Option<GpuAmounts>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<u32>,
    /// GPU-hours that the time limits of the running jobs add up to: GrpTRESRunMins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running_gpu_hours: Option<u64>,
    /// Tasks of one array: checked when it is submitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub array_tasks: Option<u32>,
    /// Submissions (an array is one) in any 60 s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub submits_per_minute: Option<u32>,
}

/// Bounds on one job; `None` is no bound.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobLimits {
    /// MaxWall, seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_secs: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<u32>,
    /// MaxTRES.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpus: Option<GpuAmounts>,
    /// MinTRES.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_gpus: Option<GpuAmounts>,
}

impl JobLimits {
    /// The first type of which a job must ask more than it may: with both, thousandths.
    pub fn asks_beyond_its_bound(&self) -> Option<(&str, u64, u64)> {
        self.min_gpus.as_ref()?.beyond(self.gpus.as_ref()?)
    }
}
