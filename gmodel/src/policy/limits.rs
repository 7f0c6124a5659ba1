//! Limits of accounts, users and QOS, and of one job. Source of the words: sacctmgr(1).

use crate::gpu_amounts::GpuAmounts;
use crate::record;
use crate::record::{Key, Kind};

/// Most of anything that a limit may allow.
const MOST: u32 = 100_000_000;

record! {
    /// Limits of an account, a user or a QOS; `None` is no bound.
    pub struct Limits {
        /// Jobs (array tasks count each) that run at once: MaxJobs, GrpJobs.
        #[serde(skip_serializing_if = "Option::is_none")]
        running_jobs: Option<u32> = None, Key::count(0, MOST).sparse();
        /// Jobs in the queue and running together: MaxSubmitJobs, GrpSubmitJobs.
        #[serde(skip_serializing_if = "Option::is_none")]
        submitted_jobs: Option<u32> = None, Key::count(0, MOST).sparse();
        /// GPUs held at once: MaxTRESPerUser, GrpTRES.
        #[serde(skip_serializing_if = "Option::is_none")]
        gpus: Option<GpuAmounts> = None, Key::new(Kind::Gpus).sparse();
        /// CPUs held at once.
        #[serde(skip_serializing_if = "Option::is_none")]
        cpus: Option<u32> = None, Key::count(0, MOST).sparse();
        /// Nodes held at once.
        #[serde(skip_serializing_if = "Option::is_none")]
        nodes: Option<u32> = None, Key::count(0, MOST).sparse();
        /// GPU-hours that the time limits of the running jobs add up to: GrpTRESRunMins.
        #[serde(skip_serializing_if = "Option::is_none")]
        running_gpu_hours: Option<u64> = None, Key::count(0, MOST).sparse();
        /// Tasks of one array: checked when it is submitted.
        #[serde(skip_serializing_if = "Option::is_none")]
        array_tasks: Option<u32> = None, Key::count(0, MOST).sparse();
        /// Submissions (an array is one) in any 60 s.
        #[serde(skip_serializing_if = "Option::is_none")]
        submits_per_minute: Option<u32> = None, Key::count(0, MOST).sparse();
    }
}

record! {
    /// Bounds on one job; `None` is no bound.
    pub struct JobLimits {
        /// MaxWall, seconds.
        #[serde(skip_serializing_if = "Option::is_none")]
        time_secs: Option<u32> = None, Key::new(Kind::TimeLimit).in_toml("max_time").in_json("max_time_secs").sparse();
        /// Nodes of one job.
        #[serde(skip_serializing_if = "Option::is_none")]
        nodes: Option<u32> = None, Key::count(1, 1_000_000).sparse();
        /// CPUs of one job.
        #[serde(skip_serializing_if = "Option::is_none")]
        cpus: Option<u32> = None, Key::count(1, MOST).sparse();
        /// MaxTRES.
        #[serde(skip_serializing_if = "Option::is_none")]
        gpus: Option<GpuAmounts> = None, Key::new(Kind::Gpus).sparse();
        /// MinTRES.
        #[serde(skip_serializing_if = "Option::is_none")]
        min_gpus: Option<GpuAmounts> = None, Key::new(Kind::Gpus).sparse();
    }
}

impl JobLimits {
    /// The first type of which a job must ask more than it may: with both, thousandths.
    pub fn asks_beyond_its_bound(&self) -> Option<(&str, u64, u64)> {
        self.min_gpus.as_ref()?.beyond(self.gpus.as_ref()?)
    }
}
