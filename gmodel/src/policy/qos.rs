//! A QOS: priority, limits, which QOS it may preempt, headroom. Source of the words: sacctmgr(1).

use super::limits::{JobLimits, Limits};
use crate::gpu_amounts::GpuAmounts;
use crate::idle::IdlePolicy;
use crate::record::{Access, Key, Kind, NameOf};
use crate::{record, words};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

record! {
    /// A quality of service.
    pub struct Qos {
        /// What jobs and commands call it.
        name: String = String::new(), Key::new(Kind::Text).by(Access::Fixed);
        /// For people.
        description: String = String::new(), Key::new(Kind::Text);
        /// Its part of the priority of a job.
        priority: u32 = 0, Key::count(0, 1_000_000_000);
        /// Usage is charged times this, in thousandths.
        usage_factor_milli: u32 = 1000, Key::new(Kind::Decimal { most: 1_000_000 }).named("usage_factor");
        /// The QOS that this one may preempt.
        preempt: BTreeSet<String> = BTreeSet::new(), Key::new(Kind::Names(NameOf::Qos));
        /// How its own runs are preempted; `None`: as the partition says.
        preempt_mode: Option<PreemptMode> = None, Key::new(Kind::Word(PreemptMode::WORDS));
        /// A run is not preempted before it ran so long.
        min_run_secs: u32 = 0, Key::duration(0, super::MAX_DURATION_SECS).in_toml("min_run").spelled(&[("preemptexempttime", "")]);
        /// GPUs of this cluster that only jobs of this QOS may take when they are idle.
        headroom: Option<GpuAmounts> = None, Key::new(Kind::Gpus);
        /// Jobs of it neither count against guarantees nor borrow: they run outside of quotas, and give way to guaranteed demand
        /// before borrowed runs do, unless its preemption mode is off.
        outside_quota: bool = false, Key::new(Kind::Flag);
        /// The idle policy for its runs; `None`: the partition's.
        #[serde(skip_serializing_if = "Option::is_none")]
        idle: Option<IdlePolicy> = None, Key::new(Kind::WholeTable(IdlePolicy::KEYS)).sparse();
        /// Of all jobs of the QOS together.
        group: Limits = Limits::default(), Key::new(Kind::Table(Limits::KEYS)).spelled(&[
            ("grpjobs", "running_jobs"),
            ("grpsubmitjobs", "submitted_jobs"),
            ("grpsubmit", "submitted_jobs"),
            ("grptres", "gpus"),
        ]);
        /// Of each user's jobs of the QOS.
        per_user: Limits = Limits::default(), Key::new(Kind::Table(Limits::KEYS)).spelled(&[
            ("maxjobsperuser", "running_jobs"),
            ("maxjobspu", "running_jobs"),
            ("maxsubmitjobsperuser", "submitted_jobs"),
            ("maxsubmitpu", "submitted_jobs"),
            ("maxsubmitjobspu", "submitted_jobs"),
            ("maxtresperuser", "gpus"),
            ("maxtrespu", "gpus"),
        ]);
        /// Of each account's jobs of the QOS.
        per_account: Limits = Limits::default(), Key::new(Kind::Table(Limits::KEYS)).spelled(&[
            ("maxjobsperaccount", "running_jobs"),
            ("maxjobspa", "running_jobs"),
            ("maxsubmitjobsperaccount", "submitted_jobs"),
            ("maxsubmitjobspa", "submitted_jobs"),
            ("maxsubmitpa", "submitted_jobs"),
            ("maxtresperaccount", "gpus"),
            ("maxtrespa", "gpus"),
        ]);
        /// Of each job of the QOS.
        per_job: JobLimits = JobLimits::default(), Key::new(Kind::Table(JobLimits::KEYS)).spelled(&[
            ("maxwall", "max_time"),
            ("maxwalldurationperjob", "max_time"),
            ("maxtresperjob", "gpus"),
            ("maxtrespj", "gpus"),
            ("maxtres", "gpus"),
            ("mintresperjob", "min_gpus"),
            ("mintrespj", "min_gpus"),
            ("mintres", "min_gpus"),
        ]);
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

words!(PreemptMode {
    Off = "off",
    Requeue = "requeue",
    Cancel = "cancel",
    Suspend = "suspend",
});
