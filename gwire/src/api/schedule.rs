//! Bodies of the API that say how the scheduler sees a job: its priority, the standing of its user, why it waits, when it starts.

use super::MarkRow;
use gmodel::{Instant, JobState, ReasonCode};
use serde::{Deserialize, Serialize};

/// Weights of the factors, as `[priority]` has them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PriorityWeightsRow {
    pub site: u32,
    pub age: u32,
    pub fair_share: u32,
    pub size: u32,
    pub partition: u32,
    pub qos: u32,
}

/// A waiting job's priority with what it is made of: sprio(1)'s line.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PriorityRow {
    pub id: u64,
    pub shown_id: String,
    pub user: String,
    pub account: String,
    pub partition: String,
    pub qos: String,
    /// Its place among all waiting jobs; 1 is next.
    pub position: u32,
    /// `guaranteed` or `borrowed`, as what it would start; absent where there are no quotas.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    pub priority: i64,
    /// Set by an operator in place of the sum.
    pub is_set: bool,
    /// Factors times weights; `nice` is taken off.
    pub weighted: FactorsRow,
    /// Factors from 0 to 1.
    pub normalized: FactorsRow,
    /// Neither held, nor too early, nor waiting for another job: sprio(1) lists no others.
    pub eligible: bool,
    /// Of a job that waits in several partitions, in the order in which it names them; above stands where its turn comes first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub by_partition: Vec<PartitionPriorityRow>,
}

/// What a waiting job's priority is in one of its partitions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PartitionPriorityRow {
    pub partition: String,
    pub priority: i64,
    pub weighted: FactorsRow,
    pub normalized: FactorsRow,
}

/// Factors by name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FactorsRow {
    pub site: f64,
    pub age: f64,
    pub fair_share: f64,
    pub size: f64,
    pub partition: f64,
    pub qos: f64,
    pub nice: i64,
}

/// An account, or a user in one, in the fair tree: sshare(1)'s line.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ShareRow {
    /// Below the root by so many accounts.
    pub depth: u32,
    pub account: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    pub raw_shares: u32,
    /// Part of the siblings' shares.
    pub norm_shares: f64,
    /// Weighted GPU-seconds, decayed.
    pub raw_usage: u64,
    /// Part of all usage.
    pub norm_usage: f64,
    /// Part of the siblings' usage.
    pub effective_usage: f64,
    /// `norm_shares` over `effective_usage`; absent for no use at all, which is above every number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub level_fs: Option<f64>,
    /// Of users: from the number of users, the best, down to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<u64>,
    /// Of users: rank over the number of users.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fair_share: Option<f64>,
    /// How the standing of the user develops if they run nothing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub outlook: Vec<OutlookRow>,
}

/// A user's standing later.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OutlookRow {
    pub at: Option<Instant>,
    pub raw_usage: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub level_fs: Option<f64>,
    pub fair_share: f64,
}

/// Why a job waits: all that stands in its way, and what would start it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WhyRow {
    pub id: u64,
    pub shown_id: String,
    pub state: JobState,
    /// The one reason that listings show, with its numbers.
    pub reason: ReasonCode,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason_text: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub end_text: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub holds: Vec<MarkRow>,
    /// Of a job that waits in several partitions the one that is meant: where the least stands in its way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<String>,
    /// What stands in its way in the others.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub elsewhere: Vec<ElsewhereRow>,
    /// Of a job that takes one kind of GPUs or another the kind that is meant: where the least stands in its way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alternative: Option<String>,
    /// What stands in the way of the others.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub alternatives: Vec<OtherGpusRow>,
    /// It starts in the next pass of the scheduler; then nothing stands in its way.
    pub starts_now: bool,
    /// Pending jobs of its partition that come before it.
    pub ahead: u32,
    /// Each must go before it starts.
    pub blockers: Vec<BlockerRow>,
    /// Why its account's guarantee would not carry it: then it would start on borrowed GPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub borrows: Option<String>,
    /// When it starts at the latest if no more urgent job comes, and where; absent where it is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected_start: Option<Instant>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub expected_nodes: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected_partition: Option<String>,
    /// Between when it starts nine times in ten; absent while too little is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<StartInterval>,
    /// Changes of the request that would start it now, the smallest first; else the one that starts it soonest.
    pub changes: Vec<ChangeRow>,
}

/// What stands in a job's way in another of its partitions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ElsewhereRow {
    pub partition: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alternative: Option<String>,
    pub ahead: u32,
    pub blockers: Vec<BlockerRow>,
}

/// What stands in a job's way that would take such GPUs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OtherGpusRow {
    /// `h100:4`.
    pub gpus: String,
    pub blockers: Vec<BlockerRow>,
}

/// One thing that stands in a job's way.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BlockerRow {
    pub code: ReasonCode,
    pub text: String,
    /// When it goes away by itself, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Instant>,
    /// From when on runs may be ended for it that are in its way, if they must run for so long first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub may_preempt_from: Option<Instant>,
    /// From when on GPUs are cut by MIG, or made whole, to make room for it: that takes seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cut_from: Option<Instant>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nearest: Option<NearestRow>,
}

/// The node that comes nearest to what a job needs of one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NearestRow {
    pub node: String,
    pub nodes_free: u32,
    pub nodes_needed: u32,
    pub gpus_free: u32,
    pub gpus_needed: u32,
    pub cpus_free: u32,
    pub cpus_needed: u32,
    pub mem_free_bytes: u64,
    pub mem_needed_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_change: Option<Instant>,
}

/// A change of a request and when the job would start with it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ChangeRow {
    /// As options of gsub, `--time 90`, or as gadm job update takes it: `ArrayTaskThrottle=5`.
    pub option: String,
    /// It would start with the next pass.
    pub now: bool,
    pub start: Option<Instant>,
    /// How much of the request it gives up, 0 to 1.
    pub loss: f64,
}

/// When a waiting job is expected to start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StartRow {
    pub id: u64,
    pub shown_id: String,
    pub name: String,
    pub user: String,
    pub partition: String,
    pub nodes: u32,
    pub reason: ReasonCode,
    /// Pending jobs of its partition that come before it.
    pub ahead: u32,
    /// Begin of the interval that holds nine starts in ten; absent while too few forecasts have turned out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub earliest: Option<Instant>,
    /// If everything takes as long as its like did of late; without such runs, as long as its limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected: Option<Instant>,
    /// End of the interval; without one, as `at_limits`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latest: Option<Instant>,
    /// If every run goes to its limit and no job of higher priority comes; absent where that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_limits: Option<Instant>,
    /// Where it would start then.
    pub nodelist: String,
    /// The limit that refuses it, and the holder of that limit that ends first; where it has no start for that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub explanation: Option<String>,
}

/// Jobs that wait for one reason, of one account in one partition. Tasks of arrays count one each.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DemandRow {
    pub account: String,
    /// As asked for; several are parted by commas.
    pub partition: String,
    pub reason: ReasonCode,
    pub jobs: u64,
    /// All that they ask for.
    pub gpus: f64,
}

/// How often intervals for starts were right, of the forecasts that are remembered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct IntervalRecord {
    pub partition: String,
    /// What they are made to hold.
    pub nominal_percent: u32,
    /// Intervals of jobs that have started.
    pub intervals: u64,
    /// Of these, those that held the start.
    pub right: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub median_width_secs: Option<i64>,
}

/// An interval for a start, with the record of such intervals.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StartInterval {
    pub earliest: Option<Instant>,
    pub latest: Option<Instant>,
    pub record: IntervalRecord,
}

impl IntervalRecord {
    /// `311 of 342 intervals for starts in partition p held (90.9%); half are narrower than 14 min`; nothing without any.
    pub fn text(&self) -> Option<String> {
        let part = self.right as f64 * 100.0 / self.intervals.max(1) as f64;
        let width = self
            .median_width_secs
            .map(|secs| format!("; half are narrower than {} min", (secs + 59) / 60));
        (self.intervals > 0).then(|| {
            format!(
                "{} of {} intervals for starts in partition {} were right ({part:.1}%; {}% is meant){}",
                self.right, self.intervals, self.partition, self.nominal_percent, width.unwrap_or_default()
            )
        })
    }
}
