//! How the scheduler works: order, backfill, placement, priority, fair share, preemption, prices. `[scheduler]` and its neighbours in TOML.

use crate::checkpoint::CheckpointSpec;
use crate::policy::price::PriceBook;
use crate::topology::Topology;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How the scheduler works: order, backfill, placement, preemption. `[scheduler]` and its neighbours in TOML.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SchedulerConfig {
    pub order: JobOrder,
    pub backfill: Backfill,
    pub placement: Placement,
    pub priority: PriorityWeights,
    pub fair_share: FairShare,
    pub preempt: PreemptConfig,
    /// Licences of the cluster by name, and how many there are.
    pub licences: BTreeMap<String, u32>,
    /// What things cost.
    pub money: PriceBook,
    pub topology: Topology,
    /// Jobs may be started again to open room for larger ones.
    pub consolidate: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobOrder {
    /// Tier, guaranteed before borrowed, multifactor priority, submission, id.
    #[default]
    Multifactor,
    /// Submission, id.
    Fifo,
    /// Shortest time limit first, then submission, id.
    Sjf,
}

/// How many of the first waiting jobs get a start that later ones may not delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Backfill {
    /// No job overtakes a job that waits for resources in the same partition.
    Off,
    /// The first so many; 1 is EASY.
    First(u32),
    /// All: conservative.
    All,
}

impl Default for Backfill {
    /// One: reservations for many are conservative backfill, which waits 2 to 3 times as long where limits say little (docs/bench.md).
    fn default() -> Self {
        Self::EASY
    }
}

impl Backfill {
    pub const EASY: Self = Self::First(1);
}

/// Which of the nodes that fit is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Placement {
    /// What leaves the most for the jobs there usually are: whole nodes and islands stay open.
    #[default]
    Pack,
    /// The emptiest node first.
    Spread,
    /// The node with the fewest free GPUs that has enough; for more than one node whole empty ones and the
    /// rest on the one with the most free.
    BestFit,
    /// In the order of the nodes.
    FirstFit,
}

crate::words!(Placement {
    Pack = "pack",
    Spread = "spread",
    BestFit = "best-fit",
    FirstFit = "first-fit",
});

/// `[priority]`: each factor is 0 to 1, times its weight.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PriorityWeights {
    pub age: u32,
    pub fair_share: u32,
    pub qos: u32,
    pub partition: u32,
    pub size: u32,
    pub site: u32,
    /// Age counts fully after so long.
    pub max_age_secs: u32,
    /// Small jobs get the size factor instead of large ones.
    pub favor_small: bool,
}

impl Default for PriorityWeights {
    fn default() -> Self {
        Self {
            // Equal to fair share: otherwise a wide job of a heavy user could wait without end.
            age: 10_000,
            fair_share: 10_000,
            qos: 10_000,
            partition: 1_000,
            size: 0,
            site: 1_000,
            max_age_secs: 7 * 86_400,
            favor_small: false,
        }
    }
}

/// `[fair_share]`: how usage is charged and forgotten.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FairShare {
    pub half_life_secs: u32,
    /// Thousandths by GPU type; one that is not named weighs 1000.
    pub gpu_weights_milli: BTreeMap<String, u32>,
    /// What a CPU and a GiB of memory are charged, in thousandths of a GPU of weight 1000.
    pub cpu_weight_milli: u32,
    pub mem_gib_weight_milli: u32,
}

impl Default for FairShare {
    fn default() -> Self {
        Self {
            half_life_secs: 7 * 86_400,
            gpu_weights_milli: BTreeMap::new(),
            cpu_weight_milli: 10,
            mem_gib_weight_milli: 1,
        }
    }
}

/// `[preempt]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PreemptConfig {
    /// Work since the last mark protects a run up to this: never marking gains nothing.
    pub max_protected_loss_secs: u32,
    /// A run that was preempted is not preempted again before it ran so long.
    pub min_run_secs: u32,
    /// Jobs that do not say `--checkpoint`.
    pub default_checkpoint: Option<CheckpointSpec>,
    /// `--checkpoint` may ask for so much grace at most.
    pub max_grace_secs: u32,
}

impl Default for PreemptConfig {
    fn default() -> Self {
        Self {
            max_protected_loss_secs: 3_600,
            min_run_secs: 300,
            default_checkpoint: None,
            max_grace_secs: 1_800,
        }
    }
}
