//! On which nodes few runs block a job: a sketch by GPUs, CPUs and memory that says where to look.
//!
//! What it finds is only a proposal: placement, topology and licences are for the proof. Never chooses the victims
//! beyond the order it is given.

use crate::snapshot::{PendingJob, RunningRun, SchedNode, Snapshot};
use gmodel::JobSpec;
use gmodel::config::Partition;
use gmodel::constraint::Constraint;
use gmodel::gpu_request::{GpuAlternative, GpuAmount, GpuKind};
use gmodel::gpu_set::WHOLE_GPU_MILLI;
use gmodel::job::{GpuScope, MemRequest};
use gmodel::run::NodeShare;
use gpolicy::feasibility::demand::{GpuDemand, tasks_by_node};
use std::collections::BTreeSet;

/// What a job needs of each of its nodes, by one of its alternatives.
#[derive(Clone, Debug)]
pub struct NodeNeed {
    pub nodes: usize,
    gpus: GpuDemand,
    /// GPUs, or slices, that are wholly free.
    whole: u32,
    /// Or a part of one, thousandths.
    share: u32,
    cpus: u32,
    mem_bytes: u64,
    exclusive: bool,
}

/// A run on a node that may be ended, in the caller's order.
pub struct NodeVictim<'a> {
    /// Place in the caller's order: the smallest is preempted first.
    pub order: usize,
    pub excess: u64,
    pub protected: u64,
    pub run: &'a RunningRun,
    /// The run is suspended, and frees only its CPUs.
    pub freezes: bool,
}

/// Runs that would make room on a node by ending.
#[derive(Clone, Debug)]
pub struct NodeSet {
    pub node: usize,
    /// Places in the caller's order.
    pub orders: Vec<usize>,
    /// Of the account that is least above its guarantee.
    pub least_excess: u64,
    pub protected: u64,
    /// Nodes that the run on the most of them is on.
    pub widest: usize,
}

impl NodeNeed {
    /// One for each alternative.
    pub fn all(job: &PendingJob, snapshot: &Snapshot) -> Vec<Self> {
        let partition = snapshot.config.partition(&job.spec.partition);
        let request = &job.spec.request;
        let named = request.nodelist.as_ref().map_or(0, |list| list.len());
        let nodes = (request.nodes_min as usize).max(named).max(1);
        let tasks = tasks_by_node(request, nodes as u32)
            .first()
            .copied()
            .unwrap_or(1);
        let none = [GpuAlternative {
            kind: GpuKind::Any,
            amount: GpuAmount::Whole(0),
        }];
        let alternatives = match &request.gpus {
            Some(ask) if !ask.is_none() => &ask.alternatives[..],
            _ => &none,
        };
        alternatives
            .iter()
            .map(|one| Self::of(job, partition, nodes, tasks, one))
            .collect()
    }

    fn of(
        job: &PendingJob,
        partition: Option<&Partition>,
        nodes: usize,
        tasks: u32,
        gpus: &GpuAlternative,
    ) -> Self {
        let request = &job.spec.request;
        let here = |count: u32| match request.gpu_scope {
            GpuScope::Job => count.div_ceil(nodes as u32),
            GpuScope::Node => count,
            GpuScope::Task => count.saturating_mul(tasks),
        };
        let (whole, share) = match &gpus.amount {
            GpuAmount::Whole(count) | GpuAmount::Mig { count, .. } => (here(*count), 0),
            GpuAmount::Share { milli } => (0, *milli),
        };
        let counted = request.tasks_with_cpus(tasks, 1);
        let by_task = request
            .cpus_per_task
            .map(|cpus| cpus.saturating_mul(counted));
        let of_partition = partition
            .and_then(|one| one.cpus_per_gpu)
            .filter(|_| by_task.is_none());
        let by_gpu = request
            .cpus_per_gpu
            .or(of_partition)
            .map_or(0, |cpus| cpus.saturating_mul(whole));
        let least = request.mincpus.unwrap_or(1);
        let cpus = by_task.unwrap_or(counted).max(by_gpu).max(least);
        Self {
            nodes,
            gpus: GpuDemand::of(request, partition, gpus, gpus.amount.clone()),
            whole,
            share,
            cpus,
            mem_bytes: match request.mem {
                MemRequest::PerNode(bytes) => bytes,
                MemRequest::PerCpu(bytes) => bytes.saturating_mul(u64::from(cpus)),
                MemRequest::PerGpu(bytes) => bytes.saturating_mul(u64::from(whole)),
                MemRequest::Default => 0,
            },
            exclusive: request.exclusive,
        }
    }

    fn is_met(&self, node: &SchedNode, free: &FreeAmounts) -> bool {
        if self.exclusive && free.runs > 0 {
            return false;
        }
        if self.cpus > free.cpus || self.mem_bytes > free.mem_bytes {
            return false;
        }
        let matching = node.gpus.iter().filter(|gpu| self.gpus.matches(&gpu.info));
        let milli = |slot: gmodel::GpuSlot| {
            free.gpu_milli
                .get(usize::from(slot.0))
                .copied()
                .unwrap_or(0)
        };
        if self.share > 0 {
            // A shared GPU may be on other terms, or have other slices: only a GPU without runs is sure.
            let least = if self.gpus.capped {
                WHOLE_GPU_MILLI
            } else {
                self.share
            };
            return matching
                .map(|gpu| milli(gpu.slot))
                .any(|free| free >= least);
        }
        matching
            .filter(|gpu| milli(gpu.slot) >= WHOLE_GPU_MILLI)
            .count()
            >= self.whole as usize
    }
}

/// What is free on a node, and would be.
#[derive(Clone)]
struct FreeAmounts {
    cpus: u32,
    mem_bytes: u64,
    gpu_milli: Vec<u32>,
    runs: u32,
}

impl FreeAmounts {
    fn of(node: &SchedNode) -> Self {
        Self {
            cpus: node.free_cpus,
            mem_bytes: node.free_mem_bytes,
            gpu_milli: node.free_gpu_milli.clone(),
            runs: node.runs,
        }
    }

    fn give(&mut self, node: &SchedNode, share: &NodeShare, only_cpus: bool) {
        self.cpus += share.cpus;
        if only_cpus {
            return;
        }
        self.mem_bytes += share.mem_bytes;
        self.runs = self.runs.saturating_sub(1);
        for grant in &share.gpus.0 {
            let at = usize::from(grant.slot.0);
            if node.gpus.get(at).is_some_and(|gpu| gpu.usable()) {
                self.gpu_milli[at] += grant.part.of_slot_milli();
            }
        }
    }
}

/// For each node that could serve the job the runs that block it: chosen in the caller's order, and, where that
/// takes fewer, the largest first. `holders` knows the runs of a node (by its place) that may be ended.
pub fn cheapest_nodes<'a>(
    snapshot: &Snapshot,
    job: &PendingJob,
    needs: &[NodeNeed],
    holders: &dyn Fn(usize) -> Vec<NodeVictim<'a>>,
) -> Vec<NodeSet> {
    let mut sets = Vec::new();
    let may_use = usable_nodes(snapshot, &job.spec);
    for (at, node) in snapshot.nodes.iter().enumerate() {
        if !may_use(node) {
            continue;
        }
        let mut holders = holders(at);
        holders.sort_by_key(|one| one.order);
        for need in needs {
            let Some(liked) = set_of(need, at, node, &holders) else {
                continue;
            };
            let liked_runs = liked.orders.len();
            sets.push(liked);
            if liked_runs > 1 {
                let share = |one: &NodeVictim| {
                    share_on(node, one.run).map_or(0, |share| share.gpus.milli())
                };
                let mut by_size: Vec<&NodeVictim> = holders.iter().collect();
                by_size.sort_by_key(|one| std::cmp::Reverse(share(one)));
                sets.extend(
                    set_of(need, at, node, by_size).filter(|set| set.orders.len() < liked_runs),
                );
            }
        }
    }
    sets
}

/// Whether a node is one that a request takes.
pub(crate) fn usable_nodes<'a>(
    snapshot: &'a Snapshot,
    spec: &'a JobSpec,
) -> impl Fn(&SchedNode) -> bool + 'a {
    let request = &spec.request;
    let partition = snapshot.config.partition(&spec.partition);
    let constraint = request
        .constraint
        .as_deref()
        .and_then(|text| Constraint::parse(text).ok());
    move |node| {
        node.unavailable.is_none()
            && partition.is_none_or(|one| one.holds(&node.name, &node.features))
            && request
                .exclude
                .as_ref()
                .is_none_or(|list| !list.contains(&node.name))
            && request
                .nodelist
                .as_ref()
                .is_none_or(|list| list.len() > 1 || list.contains(&node.name))
            && constraint.as_ref().is_none_or(|wanted| {
                wanted.eval(
                    &node
                        .features
                        .iter()
                        .map(String::as_str)
                        .collect::<BTreeSet<_>>(),
                )
            })
    }
}

fn set_of<'h, 'a: 'h>(
    need: &NodeNeed,
    at: usize,
    node: &SchedNode,
    holders: impl IntoIterator<Item = &'h NodeVictim<'a>>,
) -> Option<NodeSet> {
    let mut free = FreeAmounts::of(node);
    let mut chosen: Vec<&NodeVictim> = Vec::new();
    for holder in holders {
        if need.is_met(node, &free) {
            break;
        }
        free.give(node, share_on(node, holder.run)?, holder.freezes);
        chosen.push(holder);
    }
    if !need.is_met(node, &free) {
        return None;
    }
    // The first ones that turned out not to help stay.
    let mut keep = chosen.len();
    while keep > 0 && chosen.len() > 1 {
        keep -= 1;
        let mut without = FreeAmounts::of(node);
        for (_, other) in chosen
            .iter()
            .enumerate()
            .filter(|(place, _)| *place != keep)
        {
            without.give(node, share_on(node, other.run)?, other.freezes);
        }
        if need.is_met(node, &without) {
            chosen.remove(keep);
        }
    }
    Some(NodeSet {
        node: at,
        orders: chosen.iter().map(|one| one.order).collect(),
        least_excess: chosen
            .iter()
            .map(|one| one.excess)
            .min()
            .unwrap_or(u64::MAX),
        protected: chosen.iter().map(|one| one.protected).sum(),
        widest: chosen
            .iter()
            .map(|one| one.run.shares.len())
            .max()
            .unwrap_or(1),
    })
}

fn share_on<'a>(node: &SchedNode, run: &'a RunningRun) -> Option<&'a NodeShare> {
    run.shares.iter().find(|share| share.node == node.id)
}
