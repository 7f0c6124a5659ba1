//! A QOS: priority, limits, which QOS it may preempt, headroom. Source of the words: sacctmgr(1).

use super::limits::{JobLimits, Limits};
use crate::gpu_amounts::GpuAmounts;
use crate::idle::IdlePolicy;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// A quality of service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Qos {
    pub name: String,
    pub description: String,
    pub priority: u32,
    /// Usage is charged times this, in thousandths.
    pub usage_factor_milli: u32,
    /// The QOS that this one may preempt.
    pub preempt: BTreeSet<String>,
    /// How its own runs are preempted; `None`: as the partition says.
    pub preempt_mode: Option<PreemptMode>,
    /// A run is not preempted before it ran so long.
    pub min_run_secs: u32,
    /// Of all jobs of the QOS together.
    pub group: Limits,
    pub per_user: Limits,
    pub per_account: Limits,
    pub per_job: JobLimits,
    /// GPUs of this cluster that only jobs of this QOS may take when they are idle.
    pub headroom: Option<GpuAmounts>,
    /// Jobs of it neither count against guarantees nor borrow: they run outside of quotas, and give way to guaranteed demand
    /// before borrowed runs do, unless its preemption mode is off.
    pub outside_quota: bool,
    /// The idle policy for its runs; `None`: the partition's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle: Option<IdlePolicy>,
}

impl Default for Qos {
    fn default() -> Self {
        Self {
            name: String::new(),
            description: String::new(),
            priority: 0,
            usage_factor_milli: 1000,
            preempt: BTreeSet::new(),
            preempt_mode: None,
            min_run_secs: 0,
            group: Limits::default(),
            per_user: Limits::default(),
            per_account: Limits::default(),
            per_job: JobLimits::default(),
            headroom: None,
            outside_quota: false,
            idle: None,
        }
    }
}

/// What happens to a victim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PreemptMode {
    Off,
    /// Checkpointed, ended, back to the queue.
    #[default]
    Requeue,
    /// Checkpointed, ended.
    Cancel,
    /// Suspended in place; only where the preemptor does not need its GPUs.
    Suspend,
}
