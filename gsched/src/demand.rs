//! A request turned into what each node must give: tasks, CPUs, memory, GPUs.
//!
//! Tasks are dealt in blocks as Slurm's default distribution does; GPUs asked for the whole job are
//! spread evenly, the first nodes taking the rest.

use crate::snapshot::SchedNode;
use gmodel::config::Partition;
use gmodel::gpu_request::{GpuAlternative, GpuAmount, GpuKind};
use gmodel::job::{GpuScope, MemAsk};
use gmodel::run::NodeShare;
use gmodel::{GpuGrant, GpuPart, GpuSet, GpuSlot, Request};

/// One way to serve a job: a demand for each node of a run, the largest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Demand {
    pub nodes: Vec<NodeDemand>,
}

/// What a run needs of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeDemand {
    pub tasks: u32,
    pub cpus: u32,
    pub mem: MemDemand,
    pub gpus: GpuDemand,
    /// The whole node, whatever it has.
    pub exclusive: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemDemand {
    Bytes(u64),
    /// All of the node's memory.
    All,
    /// In proportion to the larger of the CPU and GPU shares of the node.
    Share,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuDemand {
    /// `None`: any type.
    pub gpu_type: Option<String>,
    pub min_memory_mib: u64,
    pub amount: GpuAmount,
}

impl Demand {
    /// All ways to serve a request, best first: more nodes before fewer, then the user's ranking of
    /// GPU alternatives.
    pub fn all(request: &Request, partition: &Partition) -> Vec<Self> {
        let named = request.nodelist.as_ref().map_or(0, |list| list.len() as u32);
        let least = request.nodes_min.max(named).max(1);
        let most = request.nodes_max.max(least).min(least.saturating_add(64));
        let none = [GpuAlternative { kind: GpuKind::Any, amount: GpuAmount::Whole(0) }];
        let alternatives = match &request.gpus {
            Some(ask) if !ask.is_none() => &ask.alternatives[..],
            _ => &none,
        };
        (least..=most)
            .rev()
            .flat_map(|nodes| {
                alternatives.iter().map(move |gpus| Self::for_nodes(request, partition, nodes, gpus))
            })
            .collect()
    }

    fn for_nodes(
        request: &Request,
        partition: &Partition,
        nodes: u32,
        gpus: &GpuAlternative,
    ) -> Self {
        let tasks = tasks_by_node(request, nodes);
        let demands = tasks
            .iter()
            .enumerate()
            .map(|(at, &tasks)| node_demand(request, partition, nodes, at as u32, tasks, gpus))
            .collect();
        Self { nodes: demands }
    }
}

/// How many tasks each of `nodes` nodes gets, in blocks.
pub fn tasks_by_node(request: &Request, nodes: u32) -> Vec<u32> {
    if let Some(per_node) = request.ntasks_per_node
        && request.ntasks <= 1
    {
        return vec![per_node; nodes as usize];
    }
    let total = request.ntasks.max(nodes);
    (0..nodes).map(|at| total / nodes + u32::from(at < total % nodes)).collect()
}

fn node_demand(
    request: &Request,
    partition: &Partition,
    nodes: u32,
    at: u32,
    tasks: u32,
    gpus: &GpuAlternative,
) -> NodeDemand {
    let amount = amount_on_node(&gpus.amount, request.gpu_scope, nodes, at, tasks);
    let count = gpu_count(&amount);
    let by_task = request.cpus_per_task.map(|cpus| cpus.saturating_mul(tasks));
    let by_gpu = (count > 0)
        .then(|| request.cpus_per_gpu.or(partition.cpus_per_gpu.filter(|_| by_task.is_none())))
        .flatten()
        .map(|cpus| cpus.saturating_mul(count));
    let cpus = by_task.unwrap_or(tasks).max(by_gpu.unwrap_or(0)).max(1);
    NodeDemand {
        tasks,
        cpus,
        mem: mem_on_node(request, partition, cpus, count),
        gpus: GpuDemand {
            gpu_type: match &gpus.kind {
                GpuKind::Any => None,
                GpuKind::Type(name) => Some(name.clone()),
            },
            min_memory_mib: request.gpu_mem_mib.unwrap_or(0),
            amount,
        },
        exclusive: request.exclusive,
    }
}

fn amount_on_node(
    amount: &GpuAmount,
    scope: GpuScope,
    nodes: u32,
    at: u32,
    tasks: u32,
) -> GpuAmount {
    let here = |total: u32| match scope {
        GpuScope::Job => total / nodes + u32::from(at < total % nodes),
        GpuScope::Node => total,
        GpuScope::Task => total.saturating_mul(tasks),
    };
    match amount {
        GpuAmount::Whole(total) => GpuAmount::Whole(here(*total)),
        GpuAmount::Mig { profile, count } => {
            GpuAmount::Mig { profile: profile.clone(), count: here(*count) }
        }
        GpuAmount::Share { milli } => GpuAmount::Share { milli: *milli },
    }
}

fn gpu_count(amount: &GpuAmount) -> u32 {
    match amount {
        GpuAmount::Whole(count) | GpuAmount::Mig { count, .. } => *count,
        GpuAmount::Share { .. } => 1,
    }
}

fn mem_on_node(request: &Request, partition: &Partition, cpus: u32, gpus: u32) -> MemDemand {
    match request.mem {
        MemAsk::PerNode(0) => MemDemand::All,
        MemAsk::PerNode(bytes) => MemDemand::Bytes(bytes),
        MemAsk::PerCpu(bytes) => MemDemand::Bytes(bytes.saturating_mul(u64::from(cpus))),
        MemAsk::PerGpu(bytes) => MemDemand::Bytes(bytes.saturating_mul(u64::from(gpus))),
        MemAsk::Default => match (partition.mem_per_gpu_bytes, partition.mem_per_cpu_bytes) {
            (Some(bytes), _) if gpus > 0 => {
                MemDemand::Bytes(bytes.saturating_mul(u64::from(gpus)))
            }
            (_, Some(bytes)) => MemDemand::Bytes(bytes.saturating_mul(u64::from(cpus))),
            _ => MemDemand::Share,
        },
    }
}

impl GpuDemand {
    pub fn count(&self) -> u32 {
        gpu_count(&self.amount)
    }
    pub fn matches(&self, gpu: &gmodel::node::GpuInfo) -> bool {
        self.gpu_type.as_deref().is_none_or(|wanted| wanted.eq_ignore_ascii_case(&gpu.gpu_type))
            && gpu.memory_mib >= self.min_memory_mib
    }
}

/// What stands against a demand on one node. The order is from "never" to "not now".
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lack {
    /// Not with everything on the node free.
    Gpus,
    Cpus,
    Memory,
    /// Shares or slices, which this cluster's nodes do not offer.
    Kind,
    /// One node would do, but fewer have it than are asked for.
    Nodes,
}

impl NodeDemand {
    /// The share this demand takes of a node as it is, or what is missing.
    pub fn share_on(&self, node: &SchedNode) -> Result<NodeShare, Lack> {
        if self.exclusive && node.runs > 0 {
            return Err(Lack::Cpus);
        }
        let gpus = self.pick_gpus(node)?;
        let cpus = if self.exclusive { node.cpus } else { self.cpus };
        if cpus > node.free_cpus || self.cpus > cpus {
            return Err(Lack::Cpus);
        }
        let mem_bytes = self.mem_on(node);
        if mem_bytes > node.free_mem_bytes {
            return Err(Lack::Memory);
        }
        Ok(NodeShare { node: node.id, cpus, mem_bytes, gpus, tasks: self.tasks })
    }

    /// Whether `share_on` would succeed, without making the share: a pass asks this of every node.
    pub fn may_fit(&self, node: &SchedNode) -> bool {
        let GpuAmount::Whole(count) = self.gpus.amount else { return false };
        let cpus = if self.exclusive { node.cpus } else { self.cpus };
        if cpus > node.free_cpus || self.cpus > cpus || (self.exclusive && node.runs > 0) {
            return false;
        }
        let open = |gpu: &gmodel::node::GpuEntry| {
            if self.exclusive { gpu.usable() } else { is_free(node, gpu.slot) }
        };
        let free = || node.gpus.iter().filter(|gpu| open(gpu) && self.gpus.matches(&gpu.info));
        (count == 0 || free().nth(count as usize - 1).is_some())
            && self.mem_on(node) <= node.free_mem_bytes
    }

    /// Could the node serve it with nothing else running?
    pub fn fits_empty(&self, node: &SchedNode) -> Result<(), Lack> {
        match &self.gpus.amount {
            GpuAmount::Whole(count) => {
                let matching = node.gpus.iter().filter(|gpu| self.gpus.matches(&gpu.info)).count();
                if (matching as u64) < u64::from(*count) {
                    return Err(Lack::Gpus);
                }
            }
            _ => return Err(Lack::Kind),
        }
        if self.cpus > node.cpus {
            return Err(Lack::Cpus);
        }
        if self.mem_on(node) > node.mem_bytes {
            return Err(Lack::Memory);
        }
        Ok(())
    }

    fn mem_on(&self, node: &SchedNode) -> u64 {
        if self.exclusive && !matches!(self.mem, MemDemand::Bytes(_)) {
            return node.mem_bytes;
        }
        match self.mem {
            MemDemand::Bytes(bytes) => bytes,
            MemDemand::All => node.mem_bytes,
            MemDemand::Share => {
                let part = |wanted: u32, all: usize| {
                    let whole = u128::from(node.mem_bytes) * u128::from(wanted);
                    (whole / (all.max(1) as u128)) as u64
                };
                let by_cpu = part(self.cpus, node.cpus as usize);
                let by_gpu = part(self.gpus.count(), node.gpus.len());
                by_cpu.max(by_gpu).min(node.mem_bytes)
            }
        }
    }

    fn pick_gpus(&self, node: &SchedNode) -> Result<GpuSet, Lack> {
        let GpuAmount::Whole(count) = self.gpus.amount else { return Err(Lack::Kind) };
        if self.exclusive {
            let all = node.gpus.iter().filter(|gpu| gpu.usable()).map(|gpu| gpu.slot);
            let set = GpuSet::whole(all);
            let matching = node.gpus.iter().filter(|g| g.usable() && self.gpus.matches(&g.info));
            return if matching.count() < count as usize { Err(Lack::Gpus) } else { Ok(set) };
        }
        let free = node.gpus.iter().filter(|gpu| is_free(node, gpu.slot));
        let grants: Vec<_> = free
            .filter(|gpu| self.gpus.matches(&gpu.info))
            .take(count as usize)
            .map(|gpu| GpuGrant { slot: gpu.slot, part: GpuPart::Whole })
            .collect();
        if grants.len() < count as usize { Err(Lack::Gpus) } else { Ok(GpuSet(grants)) }
    }
}

fn is_free(node: &SchedNode, slot: GpuSlot) -> bool {
    node.free_gpu_milli.get(usize::from(slot.0)) == Some(&gmodel::gpu_set::WHOLE_GPU_MILLI)
}

impl SchedNode {
    /// Takes a share out of what is free.
    pub fn take(&mut self, share: &NodeShare) {
        self.free_cpus = self.free_cpus.saturating_sub(share.cpus);
        self.free_mem_bytes = self.free_mem_bytes.saturating_sub(share.mem_bytes);
        self.runs += 1;
        for grant in &share.gpus.0 {
            if let Some(free) = self.free_gpu_milli.get_mut(usize::from(grant.slot.0)) {
                *free = free.saturating_sub(grant.part.milli());
            }
        }
    }

    /// Gives a share back.
    pub fn give(&mut self, share: &NodeShare) {
        self.free_cpus = (self.free_cpus + share.cpus).min(self.cpus);
        self.free_mem_bytes = (self.free_mem_bytes + share.mem_bytes).min(self.mem_bytes);
        self.runs = self.runs.saturating_sub(1);
        for grant in &share.gpus.0 {
            let at = usize::from(grant.slot.0);
            if self.gpus.get(at).is_some_and(|gpu| gpu.usable())
                && let Some(free) = self.free_gpu_milli.get_mut(at)
            {
                *free = (*free + grant.part.milli()).min(gmodel::gpu_set::WHOLE_GPU_MILLI);
            }
        }
    }
}
