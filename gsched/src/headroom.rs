//! Idle GPUs, and those of them that are kept ready for urgent work: headroom of partitions and of QOS.
//!
//! GPUs are counted by type. Jobs of a partition that only shares some nodes with one that keeps headroom
//! are held back on those. Never knows guarantees: lending limits are the quota's.

use crate::snapshot::{RunningRun, SchedNode, Snapshot};
use fixedbitset::FixedBitSet;
use gmodel::config::{ClusterConfig, Partition};
use gmodel::policy::GpuAmounts;
use gmodel::run::NodeShare;
use gmodel::{JobId, NodeId, Policy, Reason, ReasonCode};
use gpolicy::limits::{ALL, GpuTypes, Holding, milli_text};
use std::collections::{BTreeMap, BTreeSet};

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

/// Whether headroom or a lending limit keeps idle GPUs from some jobs.
pub(crate) fn keeps_idle(config: &ClusterConfig, policy: &Policy) -> bool {
    config.partitions.iter().any(|one| one.headroom.is_some())
        || policy.qos.values().any(|qos| qos.headroom.is_some())
        || policy
            .accounts
            .values()
            .any(|account| account.lend_limit.is_some())
}

/// Those that take work.
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

#[derive(Clone, Debug, Default)]
pub struct IdleGpus {
    /// What starts may count on.
    idle: Counts,
    /// With what runs leave that are on their way out, less what the jobs take for which they go: at least `idle`.
    coming: Counts,
    /// With what runs hold.
    usable: Counts,
    /// Of what is idle some is set aside for jobs that wait until enough is.
    is_set_aside: bool,
    /// What is kept for jobs that may start in another of their partitions yet.
    promised: BTreeMap<JobId, ChoiceHeadroom>,
}

/// What a promise changed.
#[derive(Clone, Debug)]
struct ChoiceHeadroom {
    /// So much less is idle.
    idle: Counts,
    /// And comes, or more where others leave more than the job takes.
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
    fn none(types: usize, keepers: &[bool]) -> Self {
        let none = vec![0; types];
        let of_keeper = |keeps: &bool| vec![none.clone(); if *keeps { keepers.len() } else { 0 }];
        Self {
            all: none.clone(),
            partitions: vec![none.clone(); keepers.len()],
            outside: keepers.iter().map(of_keeper).collect(),
        }
    }

    /// Some of a type on a node, which is in some partitions.
    fn add(&mut self, gpu_type: usize, milli: u64, holds: &[bool], keepers: &[bool]) {
        self.change_on(gpu_type, holds, keepers, |count| count + milli);
    }

    fn change_on(
        &mut self,
        gpu_type: usize,
        holds: &[bool],
        keepers: &[bool],
        change: impl Fn(u64) -> u64,
    ) {
        self.all[gpu_type] = change(self.all[gpu_type]);
        for at in (0..holds.len()).filter(|at| holds[*at]) {
            self.partitions[at][gpu_type] = change(self.partitions[at][gpu_type]);
            for keeper in (0..keepers.len()).filter(|keeper| keepers[*keeper] && !holds[*keeper]) {
                let outside = &mut self.outside[keeper][at][gpu_type];
                *outside = change(*outside);
            }
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

    /// What is on nodes that are not known yet counts where it certainly is: outside of what others keep as long as there is room.
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

impl IdleGpus {
    pub fn new(snapshot: &Snapshot, types: &GpuTypes) -> Self {
        let config = &snapshot.config;
        let keepers = &keepers(config)[..];
        let none = Counts::none(types.len(), keepers);
        let mut found = Self {
            idle: none.clone(),
            coming: Counts::default(),
            usable: none,
            is_set_aside: false,
            promised: BTreeMap::new(),
        };
        let mut last = ("", ALL);
        for node in snapshot
            .nodes
            .iter()
            .filter(|node| node.unavailable.is_none())
        {
            let holds = holds(node, config, keepers);
            for gpu in node.gpus.iter() {
                let of_slot = node
                    .free_gpu_milli
                    .get(usize::from(gpu.slot.0))
                    .copied()
                    .map_or(0, u64::from);
                let of_gpu = u64::from(gpu.info.part().milli());
                let (idle, usable) = (
                    of_slot * of_gpu / 1000,
                    if gpu.usable() { of_gpu } else { 0 },
                );
                if idle == 0 && usable == 0 {
                    continue;
                }
                let name = gpu.info.gpu_type.as_str();
                if last.0 != name {
                    last = (name, types.number(name));
                }
                for gpu_type in all_and(last.1) {
                    found.idle.add(gpu_type, idle, &holds, keepers);
                    found.usable.add(gpu_type, usable, &holds, keepers);
                }
            }
        }
        found.coming = found.idle.clone();
        snapshot
            .running
            .iter()
            .filter(|run| run.stops_by.is_some())
            .for_each(|run| found.leaves(run, snapshot, types));
        found
    }

    /// What a run holds is idle when it has left: where others may have it.
    fn leaves(&mut self, run: &RunningRun, snapshot: &Snapshot, types: &GpuTypes) {
        each_on(
            &run.shares,
            snapshot,
            types,
            |gpu_type, milli, holds, keepers| self.coming.add(gpu_type, milli, holds, keepers),
        );
    }

    /// One that was to leave may not.
    pub fn stays(&mut self, run: &RunningRun, snapshot: &Snapshot, types: &GpuTypes) {
        each_on(
            &run.shares,
            snapshot,
            types,
            |gpu_type, milli, holds, keepers| {
                self.coming.change_on(gpu_type, holds, keepers, |count| {
                    count.saturating_sub(milli)
                });
            },
        );
        self.idle.join(&self.coming, u64::min);
    }

    /// Counts as idle what will be when all that leaves has left, and some more runs; nothing of it is for a start now.
    pub fn go_on_without<'a>(
        &mut self,
        gone: impl Iterator<Item = &'a RunningRun>,
        snapshot: &Snapshot,
        types: &GpuTypes,
    ) {
        gone.for_each(|run| self.leaves(run, snapshot, types));
        self.idle = self.coming.clone();
    }

    /// Reserves for the preemptor, against other jobs, what its victims do not free. `choice`: it may start in another of its
    /// partitions.
    /// `on`: nodes on which it is to start, where they are known; each gives as much.
    #[expect(
        clippy::too_many_arguments,
        reason = "each says one thing of the job or of what it gets"
    )]
    pub fn promise<'a>(
        &mut self,
        choice: Option<JobId>,
        held: &Holding,
        partition: Option<usize>,
        on: &[NodeId],
        gone: impl Iterator<Item = &'a RunningRun>,
        snapshot: &Snapshot,
        types: &GpuTypes,
    ) {
        let before = choice.map(|job| (job, self.idle.clone(), self.coming.clone()));
        gone.for_each(|run| self.leaves(run, snapshot, types));
        let keepers = &keepers(&snapshot.config)[..];
        let places = on.iter().filter_map(|node| snapshot.place_of(*node));
        let places: Vec<usize> = places.filter(|_| !keepers.is_empty()).collect();
        for node in places.iter().map(|at| &snapshot.nodes[*at]) {
            let holds = holds(node, &snapshot.config, keepers);
            for (gpu_type, milli) in held.each() {
                let each = milli.div_ceil(places.len() as u64);
                self.coming.change_on(gpu_type, &holds, keepers, |count| {
                    count.saturating_sub(each)
                });
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

    /// A start, on nodes that are known.
    pub fn take_on(&mut self, shares: &[NodeShare], snapshot: &Snapshot, types: &GpuTypes) {
        each_on(
            shares,
            snapshot,
            types,
            |gpu_type, milli, holds, keepers| {
                for counts in [&mut self.idle, &mut self.coming] {
                    counts.change_on(gpu_type, holds, keepers, |count| {
                        count.saturating_sub(milli)
                    });
                }
            },
        );
    }

    /// The end of one.
    pub fn give_on(&mut self, shares: &[NodeShare], snapshot: &Snapshot, types: &GpuTypes) {
        each_on(
            shares,
            snapshot,
            types,
            |gpu_type, milli, holds, keepers| {
                for counts in [&mut self.idle, &mut self.coming] {
                    counts.add(gpu_type, milli, holds, keepers);
                }
            },
        );
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
    #[expect(
        clippy::too_many_arguments,
        reason = "each says one thing of the job or the policy"
    )]
    pub fn kept(
        &self,
        at: HeadroomTime,
        held: &Holding,
        partition: Option<usize>,
        spares: &dyn Fn(usize) -> bool,
        qos: &str,
        types: &GpuTypes,
        config: &ClusterConfig,
        policy: &Policy,
    ) -> Option<Reason> {
        let counts = self.counts(at);
        let own = partition.filter(|own| *own < counts.partitions.len());
        for (keeper, name, headroom) in own
            .iter()
            .flat_map(|_| keeping(config))
            .filter(|(keeper, ..)| spares(*keeper))
        {
            let own = own?;
            for (gpu_type, kept) in amounts(headroom, types) {
                let wants = held.of(gpu_type);
                let elsewhere = if keeper == own {
                    0
                } else {
                    counts.outside[keeper][own][gpu_type]
                };
                let within = wants.saturating_sub(elsewhere);
                let idle = counts.partitions[keeper][gpu_type];
                if within > 0 && idle < kept + within {
                    return Some(self.reason(
                        &format!("partition {name}"),
                        gpu_type,
                        kept,
                        idle,
                        wants,
                        types,
                    ));
                }
            }
        }
        for (name, other) in policy.qos.iter().filter(|(name, _)| *name != qos) {
            for (gpu_type, kept) in other
                .headroom
                .iter()
                .flat_map(|headroom| amounts(headroom, types))
            {
                let (wants, idle) = (held.of(gpu_type), counts.all[gpu_type]);
                if wants > 0 && idle < kept + wants {
                    return Some(self.reason(
                        &format!("QOS {name}"),
                        gpu_type,
                        kept,
                        idle,
                        wants,
                        types,
                    ));
                }
            }
        }
        None
    }

    /// Why so much may not be taken of what is idle on the nodes of a partition that keeps some; thousandths by type.
    pub fn kept_in(
        &self,
        at: HeadroomTime,
        keeper: usize,
        taken: &BTreeMap<String, u64>,
        types: &GpuTypes,
        config: &ClusterConfig,
    ) -> Option<Reason> {
        let one = config.partitions.get(keeper)?;
        let all = taken.values().sum();
        let wanted = |gpu_type: usize| match gpu_type {
            ALL => all,
            gpu_type => taken
                .iter()
                .filter(|(name, _)| types.number(name) == gpu_type)
                .map(|(_, milli)| *milli)
                .sum(),
        };
        amounts(one.headroom.as_ref()?, types).find_map(|(gpu_type, kept)| {
            let (wants, idle) = (
                wanted(gpu_type),
                self.counts(at).partitions.get(keeper)?[gpu_type],
            );
            let is_kept = wants > 0 && idle < kept + wants;
            is_kept.then(|| {
                self.reason(
                    &format!("partition {}", one.name),
                    gpu_type,
                    kept,
                    idle,
                    wants,
                    types,
                )
            })
        })
    }

    fn counts(&self, at: HeadroomTime) -> &Counts {
        match at {
            HeadroomTime::Now => &self.idle,
            HeadroomTime::AfterVictims => &self.coming,
        }
    }

    fn reason(
        &self,
        keeper: &str,
        gpu_type: usize,
        kept: u64,
        idle: u64,
        wants: u64,
        types: &GpuTypes,
    ) -> Reason {
        let text = format!(
            "{keeper} keeps {} idle for urgent work: {} and this job needs {}",
            types.text(gpu_type, kept),
            self.idle_text(&milli_text(idle), idle),
            milli_text(wants)
        );
        Reason::new(ReasonCode::Headroom, text)
    }
}

/// What is held of GPUs that others may have: of all types and of its own, thousandths, by the partitions that its node is in.
fn each_on(
    shares: &[NodeShare],
    snapshot: &Snapshot,
    types: &GpuTypes,
    mut count: impl FnMut(usize, u64, &[bool], &[bool]),
) {
    let keepers = &keepers(&snapshot.config)[..];
    for share in shares {
        let Some(at) = snapshot.place_of(share.node) else {
            continue;
        };
        let node = &snapshot.nodes[at];
        if node.unavailable.is_some() {
            continue;
        }
        let holds = holds(node, &snapshot.config, keepers);
        for grant in &share.gpus.0 {
            let Some(gpu) = node
                .gpus
                .get(usize::from(grant.slot.0))
                .filter(|gpu| gpu.usable())
            else {
                continue;
            };
            for gpu_type in all_and(types.number(&gpu.info.gpu_type)) {
                count(gpu_type, u64::from(grant.part.milli()), &holds, keepers);
            }
        }
    }
}

/// The types that a GPU counts for: all types, and its own if it is known.
fn all_and(gpu_type: usize) -> impl Iterator<Item = usize> {
    std::iter::once(ALL).chain((gpu_type != ALL).then_some(gpu_type))
}

/// Which partitions a node is in; empty where none keeps headroom.
fn holds(node: &SchedNode, config: &ClusterConfig, keepers: &[bool]) -> Vec<bool> {
    config.partitions[..keepers.len()]
        .iter()
        .map(|one| one.holds(&node.name, &node.features))
        .collect()
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

/// Which partitions keep headroom; empty where none does.
fn keepers(config: &ClusterConfig) -> Vec<bool> {
    let keepers: Vec<bool> = config
        .partitions
        .iter()
        .map(|one| one.headroom.is_some())
        .collect();
    if keepers.contains(&true) {
        keepers
    } else {
        Vec::new()
    }
}

fn keeping(config: &ClusterConfig) -> impl Iterator<Item = (usize, &str, &GpuAmounts)> {
    let partitions = config.partitions.iter().enumerate();
    partitions.filter_map(|(at, one)| Some((at, one.name.as_str(), one.headroom.as_ref()?)))
}

fn amounts<'a>(
    headroom: &'a GpuAmounts,
    types: &'a GpuTypes,
) -> impl Iterator<Item = (usize, u64)> + 'a {
    headroom
        .0
        .iter()
        .map(|(name, milli)| (types.number(name), *milli))
}
