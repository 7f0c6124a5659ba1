//! What a priority is made of: factors of age, fair share, QOS, partition and size, each times its weight.
//!
//! Each factor is 0 to 1 in millionths. Nice is taken off, and an operator's number replaces the sum.
//! Never says whether a job may start. Source: Slurm's page "Multifactor Priority Plugin", sprio(1).

use crate::fair_tree::PPM;
use crate::names::Names;
use crate::sched_node::SchedNode;
use crate::slice_sizes::SliceSizes;
use gmodel::config::ClusterConfig;
use gmodel::gpu_request::{GpuAmount, GpuKind};
use gmodel::job::{GpuScope, Request};
use gmodel::mig::least_milli;
use gmodel::policy::PriorityWeights;
use gmodel::{JobSpec, Policy, Timestamp};

/// The factors of a priority, in millionths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Factors {
    pub age: u32,
    pub fair_share: u32,
    pub qos: u32,
    pub partition: u32,
    pub size: u32,
    /// Given by the site's submission hook.
    pub site: u32,
    pub nice: i32,
    /// Set by an operator in place of the sum.
    pub set: Option<u32>,
    /// A larger number is first in the queue.
    pub priority: i64,
}

/// The factors times their weights, as sprio(1) lists them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WeightedFactors {
    pub age: i64,
    pub fair_share: i64,
    pub qos: i64,
    pub partition: i64,
    pub size: i64,
    pub site: i64,
    /// Subtracted.
    pub nice: i64,
}

impl Factors {
    pub fn weighted(&self, weights: &PriorityWeights) -> WeightedFactors {
        let times = |factor: u32, weight: u32| i64::from(factor) * i64::from(weight) / PPM as i64;
        WeightedFactors {
            age: times(self.age, weights.age),
            fair_share: times(self.fair_share, weights.fair_share),
            qos: times(self.qos, weights.qos),
            partition: times(self.partition, weights.partition),
            size: times(self.size, weights.size),
            site: times(self.site, weights.site),
            nice: i64::from(self.nice),
        }
    }

    /// With the age of a job that may start since `eligible`.
    pub fn at_age(self, eligible: Timestamp, now: Timestamp, weights: &PriorityWeights) -> Self {
        let most = u64::from(weights.max_age_secs);
        let waited = now.since_secs(eligible) as u64;
        Self {
            age: part(waited.min(most), most),
            ..self
        }
        .with_priority(weights)
    }

    fn with_priority(mut self, weights: &PriorityWeights) -> Self {
        let parts = self.weighted(weights);
        let sum =
            parts.age + parts.fair_share + parts.qos + parts.partition + parts.size + parts.site
                - parts.nice;
        self.priority = self.set.map_or(sum, i64::from);
        self
    }
}

/// The largest values, against which factors are measured.
#[derive(Clone, Debug, Default)]
pub struct Scale {
    partitions: Names,
    most_qos: u32,
    most_partition: u32,
    gpus: u64,
    cpus: u64,
    slices: SliceSizes,
}

impl Scale {
    pub fn new(config: &ClusterConfig, policy: &Policy, nodes: &[SchedNode]) -> Self {
        let partitions = &config.partitions;
        Self {
            partitions: partitions.iter().map(|one| one.name.as_str()).collect(),
            most_qos: policy
                .qos
                .values()
                .map(|qos| qos.priority)
                .max()
                .unwrap_or(0),
            most_partition: partitions
                .iter()
                .map(|one| one.priority_factor)
                .max()
                .unwrap_or(0),
            gpus: nodes
                .iter()
                .map(|node| node.gpu_count() as u64 * 1000)
                .sum(),
            cpus: nodes.iter().map(|node| u64::from(node.cpus)).sum(),
            slices: SliceSizes::new(config, nodes),
        }
    }

    /// Place of a partition in the configuration.
    pub fn partition(&self, name: &str) -> Option<usize> {
        self.partitions.number(name).map(|at| at as usize)
    }

    /// The tier, and the factors other than age and fair share.
    pub fn factors(
        &self,
        config: &ClusterConfig,
        policy: &Policy,
        spec: &JobSpec,
    ) -> (u32, Factors) {
        let partition = self
            .partition(&spec.partition)
            .and_then(|at| config.partitions.get(at));
        let qos = policy.qos.get(&spec.qos).map_or(0, |qos| qos.priority);
        let large = self.size(&spec.request);
        let favor_small = config.scheduler.priority.favor_small;
        let factors = Factors {
            qos: part(u64::from(qos), u64::from(self.most_qos)),
            partition: part(
                partition.map_or(0, |one| u64::from(one.priority_factor)),
                u64::from(self.most_partition),
            ),
            size: if favor_small {
                PPM as u32 - large
            } else {
                large
            },
            site: part(u64::from(spec.site_factor_milli.unwrap_or(0)), 1000),
            set: spec.priority,
            ..Factors::default()
        };
        (partition.map_or(0, |one| one.priority_tier), factors)
    }

    /// The part of the cluster's GPUs, or of its CPUs for a job without GPUs.
    fn size(&self, request: &Request) -> u32 {
        match gpus_of_first(request, |profile| self.slices.milli(profile)).1 {
            0 => {
                let tasks = u64::from(request.ntasks.max(request.nodes_min).max(1));
                part(
                    tasks * u64::from(request.cpus_per_task.unwrap_or(1)),
                    self.cpus,
                )
            }
            milli => part(milli, self.gpus),
        }
    }
}

/// Millionths, at most one million.
fn part(one: u64, all: u64) -> u32 {
    if all == 0 {
        return 0;
    }
    (u128::from(one.min(all)) * u128::from(PPM) / u128::from(all)) as u32
}

/// Thousandths of GPUs by the first alternative, with the type if it names one. A slice counts the least that its name allows.
pub fn gpus_asked(request: &Request) -> (Option<&str>, u64) {
    gpus_of_first(request, least_milli)
}

/// The same; `slice_milli` says what a slice counts.
pub fn gpus_of_first(request: &Request, slice_milli: impl Fn(&str) -> u32) -> (Option<&str>, u64) {
    let Some(first) = request
        .gpus
        .as_ref()
        .and_then(|ask| ask.alternatives.first())
    else {
        return (None, 0);
    };
    let times = match request.gpu_scope {
        GpuScope::Job => 1,
        GpuScope::Node => u64::from(request.nodes_min.max(1)),
        GpuScope::Task => u64::from(request.ntasks.max(request.nodes_min).max(1)),
    };
    let milli = match &first.amount {
        GpuAmount::Whole(count) => u64::from(*count) * 1000,
        GpuAmount::Share { milli } => u64::from(*milli),
        GpuAmount::Mig { profile, count } => u64::from(*count) * u64::from(slice_milli(profile)),
    };
    let gpu_type = match &first.kind {
        GpuKind::Any => None,
        GpuKind::Type(name) => Some(name.as_str()),
    };
    (gpu_type, milli * times)
}
