//! Idle GPUs, and the headroom of partitions and QOS: idle GPUs that are kept for urgent work.
//!
//! GPUs are counted by type. Jobs of a partition that only shares some nodes with one that keeps headroom
//! are held back on those. Never knows guarantees: lending limits are the quota's.

use crate::snapshot::{RunningRun, SchedNode, Snapshot};
use fixedbitset::FixedBitSet;
use gmodel::config::{ClusterConfig, Partition};
use gmodel::gpu_amounts::milli_text;
use gmodel::policy::GpuAmounts;
use gmodel::run::NodeShare;
use gmodel::{JobId, NodeId, Reason, ReasonCode};
use gpolicy::limits::{ALL, GpuTypes, Holding};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Partitions that keep some GPUs idle, with their nodes.
pub(crate) fn kept_idle_on(snapshot: &Snapshot) -> Vec<(usize, FixedBitSet)> {
    let keeping = snapshot
        .config
        .partitions
        .iter()
        .enumerate()
        .filter(|(_, one)| one.headroom.is_some());
    keeping
        .map(|(partition, one)| (partition, nodes_of(one, snapshot)))
        .collect()
}

/// The nodes of a partition that take work.
fn nodes_of(partition: &Partition, snapshot: &Snapshot) -> FixedBitSet {
    let is_there = |node: &SchedNode| {
        node.unavailable.is_none() && partition.holds(&node.name, &node.features)
    };
    let mut nodes = FixedBitSet::with_capacity(snapshot.nodes.len());
    nodes.extend((0..snapshot.nodes.len()).filter(|at| is_there(&snapshot.nodes[*at])));
    nodes
}

/// Idle GPUs now, or once the victims have ended and the preempting jobs have started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadroomTime {
    Now,
    AfterVictims,
}

/// Which partitions and QOS keep GPUs idle, and how many of each type. A pass only reads it.
#[derive(Debug)]
struct Headroom {
    types: Arc<GpuTypes>,
    /// How many partitions there are where any keeps headroom; else 0.
    partition_count: usize,
    partitions: BTreeMap<usize, KeptGpus>,
    qos: BTreeMap<String, KeptGpus>,
    /// A lending limit keeps GPUs idle.
    is_lending_limited: bool,
}

/// The headroom of a partition or a QOS: thousandths of GPUs by type.
#[derive(Debug)]
struct KeptGpus {
    keeper: String,
    amounts: Vec<(usize, u64)>,
}

/// How many GPUs of a type a job needs, how many of these are on the keeper's nodes, and how many are idle there. Thousandths.
struct TypeDemand {
    needs: u64,
    within: u64,
    idle: u64,
}

/// Idle GPUs, and which of them stay idle for urgent work.
#[derive(Clone, Debug)]
pub struct IdleGpus {
    headroom: Arc<Headroom>,
    /// What a start may use.
    idle: Counts,
    /// Idle GPUs after the end of all runs that are being ended, less the GPUs of the jobs that preempted them: at least `idle`.
    coming: Counts,
    /// Idle GPUs without any run.
    usable: Counts,
    /// Some idle GPUs are set aside for jobs that wait for more.
    is_set_aside: bool,
    /// What is kept for jobs that may start in another of their partitions yet.
    promised: BTreeMap<JobId, ChoiceHeadroom>,
}

/// What a promise changed.
#[derive(Clone, Debug)]
struct ChoiceHeadroom {
    /// So much less is idle.
    idle: Counts,
    /// So much less comes, or so much more where the victims free more than the job takes.
    less: Counts,
    more: Counts,
}

/// Thousandths of GPUs on nodes that take work.
#[derive(Clone, Debug, Default)]
struct Counts {
    /// By type.
    all: Vec<u64>,
    /// Of each partition, where any keeps headroom; else empty.
    partitions: Vec<Vec<u64>>,
    /// On nodes of the second and not of the first partition.
    outside: Vec<Vec<Vec<u64>>>,
}

impl Counts {
    fn none(headroom: &Headroom) -> Self {
        let none = vec![0; headroom.types.len()];
        let of_all =
            |keeps: bool| vec![none.clone(); if keeps { headroom.partition_count } else { 0 }];
        let outside =
            (0..headroom.partition_count).map(|at| of_all(headroom.partitions.contains_key(&at)));
        Self {
            outside: outside.collect(),
            partitions: of_all(true),
            all: none.clone(),
        }
    }

    /// Changes the count of a type on a node, by the partitions that hold the node.
    fn change_on(&mut self, gpu_type: usize, holds: &[bool], change: impl Fn(u64) -> u64) {
        let of_type = |counts: &mut Vec<u64>| counts[gpu_type] = change(counts[gpu_type]);
        of_type(&mut self.all);
        for at in (0..holds.len()).filter(|at| holds[*at]) {
            of_type(&mut self.partitions[at]);
            let others = self
                .outside
                .iter_mut()
                .zip(holds)
                .filter(|(_, holds)| !**holds);
            others
                .filter_map(|(outside, _)| outside.get_mut(at))
                .for_each(of_type);
        }
    }

    fn each(&self) -> impl Iterator<Item = &Vec<u64>> {
        std::iter::once(&self.all)
            .chain(&self.partitions)
            .chain(self.outside.iter().flatten())
    }

    fn each_mut(&mut self) -> impl Iterator<Item = &mut Vec<u64>> {
        std::iter::once(&mut self.all)
            .chain(&mut self.partitions)
            .chain(self.outside.iter_mut().flatten())
    }

    /// Each with what another has in its place.
    fn join(&mut self, other: &Self, join: impl Fn(u64, u64) -> u64) {
        let counts = self.each_mut().flatten().zip(other.each().flatten());
        counts.for_each(|(own, other)| *own = join(*own, *other));
    }

    /// How much more it is than another.
    fn beyond(&self, other: &Self) -> Self {
        let mut beyond = self.clone();
        beyond.join(other, u64::saturating_sub);
        beyond
    }

    /// GPUs on nodes that are not known yet count outside of other partitions' headroom as long as there is room.
    fn change(
        &mut self,
        held: &Holding,
        partition: Option<usize>,
        change: impl Fn(u64, u64) -> u64,
    ) {
        let Self {
            all,
            partitions,
            outside,
        } = self;
        for (gpu_type, milli) in held.each() {
            all[gpu_type] = change(all[gpu_type], milli);
            let Some(own) = partition.filter(|own| *own < partitions.len()) else {
                continue;
            };
            for keeper in 0..partitions.len() {
                let within = if keeper == own {
                    milli
                } else if let Some(outside) = outside[keeper].get_mut(own) {
                    let before = outside[gpu_type];
                    outside[gpu_type] = change(before, milli);
                    milli.saturating_sub(before.abs_diff(outside[gpu_type]))
                } else {
                    continue;
                };
                partitions[keeper][gpu_type] = change(partitions[keeper][gpu_type], within);
            }
        }
    }
}

impl Headroom {
    fn new(snapshot: &Snapshot, types: Arc<GpuTypes>) -> Self {
        let (config, policy) = (&snapshot.config, &snapshot.policy);
        let kept = |keeper: String, headroom: &GpuAmounts| {
            let amounts = headroom
                .0
                .iter()
                .map(|(name, milli)| (types.number(name), *milli));
            KeptGpus {
                keeper,
                amounts: amounts.collect(),
            }
        };
        let partitions = config.partitions.iter().enumerate();
        let partitions: BTreeMap<usize, KeptGpus> = partitions
            .filter_map(|(at, one)| {
                Some((
                    at,
                    kept(format!("partition {}", one.name), one.headroom.as_ref()?),
                ))
            })
            .collect();
        let qos = policy.qos.iter();
        let qos = qos.filter_map(|(name, qos)| {
            Some((
                name.clone(),
                kept(format!("QOS {name}"), qos.headroom.as_ref()?),
            ))
        });
        Self {
            qos: qos.collect(),
            partition_count: if partitions.is_empty() {
                0
            } else {
                config.partitions.len()
            },
            is_lending_limited: policy
                .accounts
                .values()
                .any(|account| account.lend_limit.is_some()),
            partitions,
            types,
        }
    }

    /// Which partitions hold a node; empty where none keeps headroom.
    fn holds(&self, node: &SchedNode, config: &ClusterConfig) -> Vec<bool> {
        config.partitions[..self.partition_count]
            .iter()
            .map(|one| one.holds(&node.name, &node.features))
            .collect()
    }

    /// Changes counts by the usable GPUs of some shares, for all types together and for each type.
    fn count(
        &self,
        counts: &mut [&mut Counts],
        shares: &[NodeShare],
        snapshot: &Snapshot,
        change: fn(u64, u64) -> u64,
    ) {
        for share in shares {
            let Some(at) = snapshot.place_of(share.node) else {
                continue;
            };
            let node = &snapshot.nodes[at];
            if node.unavailable.is_some() {
                continue;
            }
            let holds = self.holds(node, &snapshot.config);
            for grant in &share.gpus.0 {
                let gpu = node.gpus.get(usize::from(grant.slot.0));
                let Some(gpu) = gpu.filter(|gpu| gpu.usable()) else {
                    continue;
                };
                let milli = u64::from(grant.part.milli());
                for gpu_type in all_and(self.types.number(&gpu.info.gpu_type)) {
                    for counts in &mut *counts {
                        counts.change_on(gpu_type, &holds, |count| change(count, milli));
                    }
                }
            }
        }
    }
}

impl IdleGpus {
    pub fn new(snapshot: &Snapshot, types: &Arc<GpuTypes>) -> Self {
        let headroom = Headroom::new(snapshot, types.clone());
        let mut idle = Counts::none(&headroom);
        let mut usable = idle.clone();
        let mut last = ("", ALL);
        for node in snapshot
            .nodes
            .iter()
            .filter(|node| node.unavailable.is_none())
        {
            let holds = headroom.holds(node, &snapshot.config);
            for gpu in node.gpus.iter() {
                let of_slot = node.free_gpu_milli.get(usize::from(gpu.slot.0));
                let of_slot = of_slot.copied().map_or(0, u64::from);
                let of_gpu = u64::from(gpu.info.part().milli());
                let free = of_slot * of_gpu / 1000;
                let most = if gpu.usable() { of_gpu } else { 0 };
                if free == 0 && most == 0 {
                    continue;
                }
                let name = gpu.info.gpu_type.as_str();
                if last.0 != name {
                    last = (name, types.number(name));
                }
                for gpu_type in all_and(last.1) {
                    idle.change_on(gpu_type, &holds, |count| count + free);
                    usable.change_on(gpu_type, &holds, |count| count + most);
                }
            }
        }
        let mut found = Self {
            headroom: Arc::new(headroom),
            coming: idle.clone(),
            idle,
            usable,
            is_set_aside: false,
            promised: BTreeMap::new(),
        };
        snapshot
            .running
            .iter()
            .filter(|run| run.stops_by.is_some())
            .for_each(|run| found.leaves(run, snapshot));
        found
    }

    /// Whether headroom or a lending limit keeps idle GPUs from some jobs.
    pub fn is_kept(&self) -> bool {
        self.is_kept_on_nodes() || !self.headroom.qos.is_empty() || self.headroom.is_lending_limited
    }

    /// Whether a partition keeps headroom: then it matters which nodes have idle GPUs.
    pub fn is_kept_on_nodes(&self) -> bool {
        !self.headroom.partitions.is_empty()
    }

    /// Counts the GPUs of a run as coming.
    fn leaves(&mut self, run: &RunningRun, snapshot: &Snapshot) {
        self.headroom.count(
            &mut [&mut self.coming],
            &run.shares,
            snapshot,
            u64::saturating_add,
        );
    }

    /// Counts a run that was being ended as one that may stay.
    pub fn stays(&mut self, run: &RunningRun, snapshot: &Snapshot) {
        if self.is_kept() {
            self.headroom.count(
                &mut [&mut self.coming],
                &run.shares,
                snapshot,
                u64::saturating_sub,
            );
            self.idle.join(&self.coming, u64::min);
        }
    }

    /// Counts the GPUs of ending runs, and of some more, as idle.
    pub fn go_on_without<'a>(
        &mut self,
        gone: impl Iterator<Item = &'a RunningRun>,
        snapshot: &Snapshot,
    ) {
        gone.for_each(|run| self.leaves(run, snapshot));
        self.idle = self.coming.clone();
    }

    /// Reserves for the preemptor, against other jobs, what its victims do not free. `choice`: it may start in another of its
    /// partitions.
    /// `on`: nodes on which it is to start, where they are known; each gives as much.
    pub fn promise<'a>(
        &mut self,
        choice: Option<JobId>,
        held: &Holding,
        partition: Option<usize>,
        on: &[NodeId],
        gone: impl Iterator<Item = &'a RunningRun>,
        snapshot: &Snapshot,
    ) {
        let before = choice.map(|job| (job, self.idle.clone(), self.coming.clone()));
        gone.for_each(|run| self.leaves(run, snapshot));
        let places = on.iter().filter_map(|node| snapshot.place_of(*node));
        let places: Vec<usize> = places.filter(|_| self.is_kept_on_nodes()).collect();
        for node in places.iter().map(|at| &snapshot.nodes[*at]) {
            let holds = self.headroom.holds(node, &snapshot.config);
            for (gpu_type, milli) in held.each() {
                let each = milli.div_ceil(places.len() as u64);
                self.coming
                    .change_on(gpu_type, &holds, |count| count.saturating_sub(each));
            }
        }
        if places.is_empty() {
            self.coming.change(held, partition, u64::saturating_sub);
        }
        self.idle.join(&self.coming, u64::min);
        self.is_set_aside = true;
        if let Some((job, idle, coming)) = before {
            let changed = ChoiceHeadroom {
                idle: idle.beyond(&self.idle),
                less: coming.beyond(&self.coming),
                more: self.coming.beyond(&coming),
            };
            self.promised.insert(job, changed);
        }
    }

    /// Takes the promise to a job back; whether there was one.
    pub fn lift_promise(&mut self, job: JobId) -> bool {
        let Some(ChoiceHeadroom { idle, less, more }) = self.promised.remove(&job) else {
            return false;
        };
        self.coming.join(&less, u64::saturating_add);
        self.coming.join(&more, u64::saturating_sub);
        self.idle.join(&idle, u64::saturating_add);
        self.idle.join(&self.coming, u64::min);
        true
    }

    /// Whether some of it is set aside for a job that waits.
    pub fn is_set_aside(&self) -> bool {
        self.is_set_aside
    }

    /// Thousandths of a type that no run holds.
    pub fn of(&self, at: HeadroomTime, gpu_type: usize) -> u64 {
        self.counts(at).all[gpu_type]
    }

    /// Takes the GPUs of a start on known nodes.
    pub fn take_on(&mut self, shares: &[NodeShare], snapshot: &Snapshot) {
        let counts = &mut [&mut self.idle, &mut self.coming];
        self.headroom
            .count(counts, shares, snapshot, u64::saturating_sub);
    }

    /// Gives back the GPUs of a run that ended.
    pub fn give_on(&mut self, shares: &[NodeShare], snapshot: &Snapshot) {
        let counts = &mut [&mut self.idle, &mut self.coming];
        self.headroom
            .count(counts, shares, snapshot, u64::saturating_add);
    }

    pub fn take(&mut self, held: &Holding, partition: Option<usize>) {
        [&mut self.idle, &mut self.coming]
            .into_iter()
            .for_each(|counts| counts.change(held, partition, u64::saturating_sub));
    }

    pub fn give(&mut self, held: &Holding, partition: Option<usize>) {
        [&mut self.idle, &mut self.coming]
            .into_iter()
            .for_each(|counts| counts.change(held, partition, u64::saturating_add));
    }

    /// For the rest of a pass no job behind this one takes what it waits for.
    pub fn set_aside(&mut self, held: &Holding, partition: Option<usize>) {
        self.take(held, partition);
        self.is_set_aside = true;
    }

    /// What is idle, in words, by how much that is: thousandths.
    pub fn idle_text(&self, count: &str, milli: u64) -> String {
        let beside = if self.is_set_aside {
            " beside what a job before it waits for"
        } else {
            ""
        };
        let are = if (1..=1000).contains(&milli) {
            "is"
        } else {
            "are"
        };
        format!("{count} {are} idle{beside}")
    }

    /// Counts all as idle that takes work.
    pub fn go_on_idle(&mut self) {
        self.idle = self.usable.clone();
        self.coming = self.usable.clone();
    }

    /// The headroom that forbids a job so much of the idle GPUs, now or after the victims' end. `spares`: places of partitions
    /// with headroom closed to the job; `qos`: the QOS with headroom open to it.
    pub fn kept(
        &self,
        at: HeadroomTime,
        held: &Holding,
        partition: Option<usize>,
        spares: &dyn Fn(usize) -> bool,
        qos: &str,
    ) -> Option<Reason> {
        let counts = self.counts(at);
        let in_partition = |own: usize, (keeper, kept): (&usize, &KeptGpus)| {
            self.reason(kept, |gpu_type| {
                let needs = held.of(gpu_type);
                let outside = counts.outside[*keeper].get(own).filter(|_| *keeper != own);
                TypeDemand {
                    needs,
                    within: needs.saturating_sub(outside.map_or(0, |counts| counts[gpu_type])),
                    idle: counts.partitions[*keeper][gpu_type],
                }
            })
        };
        let in_qos = |kept: &KeptGpus| {
            self.reason(kept, |gpu_type| TypeDemand {
                needs: held.of(gpu_type),
                within: held.of(gpu_type),
                idle: counts.all[gpu_type],
            })
        };
        let partitions = &self.headroom.partitions;
        let mut keepers = partitions.iter().filter(|(keeper, _)| spares(**keeper));
        let mut others = self.headroom.qos.iter().filter(|(name, _)| *name != qos);
        partition
            .and_then(|own| keepers.find_map(|kept| in_partition(own, kept)))
            .or_else(|| others.find_map(|(_, kept)| in_qos(kept)))
    }

    /// Why so much may not be taken of what is idle on the nodes of a partition that keeps some; thousandths by type.
    pub fn kept_in(
        &self,
        at: HeadroomTime,
        keeper: usize,
        taken: &BTreeMap<String, u64>,
    ) -> Option<Reason> {
        let types = &self.headroom.types;
        self.reason(self.headroom.partitions.get(&keeper)?, |gpu_type| {
            let of_type = taken
                .iter()
                .filter(|(name, _)| gpu_type == ALL || types.number(name) == gpu_type);
            let needs = of_type.map(|(_, milli)| *milli).sum();
            let idle = self.counts(at).partitions[keeper][gpu_type];
            TypeDemand {
                needs,
                within: needs,
                idle,
            }
        })
    }

    fn counts(&self, at: HeadroomTime) -> &Counts {
        match at {
            HeadroomTime::Now => &self.idle,
            HeadroomTime::AfterVictims => &self.coming,
        }
    }

    /// Why a job may not take its GPUs, where a type has too few idle beside what is kept.
    fn reason(&self, kept: &KeptGpus, of_type: impl Fn(usize) -> TypeDemand) -> Option<Reason> {
        kept.amounts.iter().find_map(|&(gpu_type, most)| {
            let TypeDemand {
                needs,
                within,
                idle,
            } = of_type(gpu_type);
            let text = || {
                format!(
                    "{} keeps {} idle for urgent work: {} and this job needs {}",
                    kept.keeper,
                    self.headroom.types.text(gpu_type, most),
                    self.idle_text(&milli_text(idle), idle),
                    milli_text(needs)
                )
            };
            (within > 0 && idle < most + within).then(|| Reason::new(ReasonCode::Headroom, text()))
        })
    }
}

/// The types that a GPU counts for: all types, and its own if it is known.
fn all_and(gpu_type: usize) -> impl Iterator<Item = usize> {
    std::iter::once(ALL).chain((gpu_type != ALL).then_some(gpu_type))
}

/// The partitions that keep GPUs idle on any of some nodes, by their place.
pub(crate) fn keepers_on(nodes: &[NodeId], snapshot: &Snapshot) -> BTreeSet<usize> {
    let nodes: Vec<&SchedNode> = nodes
        .iter()
        .filter_map(|node| Some(&snapshot.nodes[snapshot.place_of(*node)?]))
        .collect();
    let keeps = |one: &Partition| {
        one.headroom.is_some()
            && nodes
                .iter()
                .any(|node| one.holds(&node.name, &node.features))
    };
    let partitions = snapshot.config.partitions.iter().enumerate();
    partitions
        .filter(|(_, one)| keeps(one))
        .map(|(at, _)| at)
        .collect()
}
