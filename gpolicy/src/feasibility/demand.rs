//! A request turned into what each node must give: tasks, CPUs, memory, GPUs.
//!
//! Tasks are dealt in blocks, as Slurm does by default. GPUs asked for the whole job are spread evenly, and the first nodes
//! take the rest.

use crate::feasibility::gpu_group::GpuGroup;
use crate::sched_node::SchedNode;
use gmodel::GpuPart;
use gmodel::Request;
use gmodel::config::Partition;
use gmodel::gpu_request::{GpuAlternative, GpuAmount, GpuKind};
use gmodel::job::{GpuScope, MemRequest};
use gmodel::mig::{MEMORY_SLICES, least_milli};
use gmodel::node::GpuInfo;
use std::collections::BTreeMap;

/// One way to serve a job: a demand for each node, the largest first.
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
    /// All its GPUs within one NVLink island.
    pub nvlink: bool,
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
    /// A MIG slice with enough memory serves as the one GPU asked for.
    pub or_slice: bool,
    /// A share that MPS must enforce; not every GPU allows it.
    pub capped: bool,
}

impl Demand {
    /// All ways to serve a request, best first: more nodes before fewer, then the user's ranking of
    /// GPU alternatives.
    pub fn all(request: &Request, partition: &Partition) -> Vec<Self> {
        Self::dealt(request, partition, |_| None)
    }

    /// As `all`, with the GPUs of a job dealt by filling nodes one after the other where `fill` says how many a node
    /// has: whole nodes first, the rest on the last. Elsewhere they are spread evenly.
    pub fn dealt(
        request: &Request,
        partition: &Partition,
        fill: impl Fn(&GpuAlternative) -> Option<u32>,
    ) -> Vec<Self> {
        let named = request
            .nodelist
            .as_ref()
            .map_or(0, |list| list.len() as u32);
        let least = request.nodes_min.max(named).max(1);
        let most = request.nodes_max.max(least).min(least.saturating_add(64));
        let none = [GpuAlternative {
            kind: GpuKind::Any,
            amount: GpuAmount::Whole(0),
        }];
        let alternatives = match &request.gpus {
            Some(ask) if !ask.is_none() => &ask.alternatives[..],
            _ => &none,
        };
        (least..=most)
            .rev()
            .flat_map(|nodes| alternatives.iter().map(move |gpus| (nodes, gpus)))
            .map(|(nodes, gpus)| Self::for_nodes(request, partition, nodes, gpus, fill(gpus)))
            .collect()
    }

    fn for_nodes(
        request: &Request,
        partition: &Partition,
        nodes: u32,
        gpus: &GpuAlternative,
        fill: Option<u32>,
    ) -> Self {
        let tasks = tasks_by_node(request, nodes);
        let fill = fill.filter(|_| request.gpu_scope == GpuScope::Job);
        let demands = tasks
            .iter()
            .enumerate()
            .map(|(at, &tasks)| {
                let scope = request.gpu_scope;
                let amount = amount_on_node(&gpus.amount, scope, fill, nodes, at as u32, tasks);
                node_demand(request, partition, gpus, amount, tasks)
            })
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
    (0..nodes)
        .map(|at| total / nodes + u32::from(at < total % nodes))
        .collect()
}

fn node_demand(
    request: &Request,
    partition: &Partition,
    gpus: &GpuAlternative,
    amount: GpuAmount,
    tasks: u32,
) -> NodeDemand {
    let count = gpu_count(&amount);
    let counted = request.tasks_with_cpus(tasks, 1);
    let by_task = request
        .cpus_per_task
        .map(|cpus| cpus.saturating_mul(counted));
    let by_gpu = (count > 0)
        .then(|| {
            request
                .cpus_per_gpu
                .or(partition.cpus_per_gpu.filter(|_| by_task.is_none()))
        })
        .flatten()
        .map(|cpus| cpus.saturating_mul(count));
    let cpus = by_task
        .unwrap_or(counted)
        .max(by_gpu.unwrap_or(0))
        .max(request.mincpus.unwrap_or(1))
        .max(1);
    NodeDemand {
        tasks,
        cpus,
        mem: mem_on_node(request, partition, cpus, count),
        gpus: GpuDemand::of(request, Some(partition), gpus, amount),
        exclusive: request.exclusive,
        nvlink: request.nvlink,
    }
}

/// The part of a job's GPUs for the node number `at` of `nodes`. `fill`: the GPUs of a node, where nodes are filled in turn.
fn amount_on_node(
    amount: &GpuAmount,
    scope: GpuScope,
    fill: Option<u32>,
    nodes: u32,
    at: u32,
    tasks: u32,
) -> GpuAmount {
    if let (GpuAmount::Whole(total), Some(most)) = (amount, fill)
        && total.div_ceil(most.max(1)) == nodes
    {
        return GpuAmount::Whole((total - (at * most).min(*total)).min(most));
    }
    let here = |total: u32| match scope {
        GpuScope::Job => total / nodes + u32::from(at < total % nodes),
        GpuScope::Node => total,
        GpuScope::Task => total.saturating_mul(tasks),
    };
    match amount {
        GpuAmount::Whole(total) => GpuAmount::Whole(here(*total)),
        GpuAmount::Mig { profile, count } => GpuAmount::Mig {
            profile: profile.clone(),
            count: here(*count),
        },
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
    match partition.mem_ask(request.mem, gpus > 0) {
        MemRequest::PerNode(0) => MemDemand::All,
        MemRequest::PerNode(bytes) => MemDemand::Bytes(bytes),
        MemRequest::PerCpu(bytes) => MemDemand::Bytes(bytes.saturating_mul(u64::from(cpus))),
        MemRequest::PerGpu(bytes) => MemDemand::Bytes(bytes.saturating_mul(u64::from(gpus))),
        MemRequest::Default => MemDemand::Share,
    }
}

impl GpuDemand {
    /// So much of an alternative, on one node.
    pub fn of(
        request: &Request,
        partition: Option<&Partition>,
        gpus: &GpuAlternative,
        amount: GpuAmount,
    ) -> Self {
        let slices = partition.is_some_and(|partition| partition.slices_for_memory);
        Self {
            gpu_type: match &gpus.kind {
                GpuKind::Any => None,
                GpuKind::Type(name) => Some(name.clone()),
            },
            min_memory_mib: request.gpu_mem_mib.unwrap_or(0),
            or_slice: slices && request.gpu_mem_mib.is_some() && amount == GpuAmount::Whole(1),
            capped: partition.is_some_and(|partition| {
                crate::feasibility::share_request::is_capped(&amount, partition)
            }),
            amount,
        }
    }
    pub fn count(&self) -> u32 {
        gpu_count(&self.amount)
    }
    /// Thousandths of a GPU that one of what is asked for counts at least, wherever it is.
    pub fn least_milli(&self) -> u32 {
        match &self.amount {
            GpuAmount::Mig { profile, .. } => least_milli(profile),
            GpuAmount::Whole(_) if self.or_slice => 1000 / u32::from(MEMORY_SLICES),
            GpuAmount::Whole(_) => 1000,
            GpuAmount::Share { milli } => *milli,
        }
    }
    pub fn matches(&self, gpu: &gmodel::node::GpuInfo) -> bool {
        self.is_served_by(&gpu.gpu_type, gpu.memory_mib, &gpu.part()) && (gpu.mps || !self.capped)
    }
    pub fn is_served_by_kind(&self, kind: &GpuGroup) -> bool {
        self.is_served_by(&kind.gpu_type, kind.memory_mib, &kind.part) && (kind.mps || !self.capped)
    }
    /// Whether GPUs, or slices, of this type and memory will do.
    pub fn is_served_by(&self, gpu_type: &str, memory_mib: u64, part: &GpuPart) -> bool {
        let of_part = match (&self.amount, part) {
            (GpuAmount::Mig { profile, .. }, GpuPart::Mig { profile: has, .. }) => {
                profile.eq_ignore_ascii_case(has)
            }
            (GpuAmount::Mig { .. }, _) => false,
            (_, GpuPart::Mig { .. }) => self.or_slice,
            _ => true,
        };
        // A share comes with its part of the memory.
        let memory_mib = match self.amount {
            GpuAmount::Share { milli } => memory_mib * u64::from(milli) / 1000,
            _ => memory_mib,
        };
        of_part && memory_mib >= self.min_memory_mib && self.is_of_type(gpu_type)
    }
    pub fn is_of_type(&self, gpu_type: &str) -> bool {
        self.gpu_type
            .as_deref()
            .is_none_or(|wanted| wanted.eq_ignore_ascii_case(gpu_type))
    }
}

/// What a node lacks for a demand. The order is from "never" to "not now".
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lack {
    /// Not with everything on the node free.
    Gpus,
    Cpus,
    Memory,
    /// One node would do, but fewer have it than are asked for.
    Nodes,
}

impl NodeDemand {
    /// Its GPUs must reach each other by NVLink. One alone needs no link.
    pub fn is_linked(&self) -> bool {
        self.nvlink && self.gpus.count() > 1
    }

    /// The most matching GPUs that the node could give it; of one island where they must be linked.
    pub fn most_gpus(&self, node: &SchedNode) -> usize {
        let expected = node.gpus.iter().filter(|gpu| gpu.is_expected());
        let matching = expected
            .map(|gpu| &gpu.info)
            .filter(|gpu| self.gpus.matches(gpu));
        if !self.is_linked() {
            return matching.count();
        }
        let mut islands: BTreeMap<u32, usize> = BTreeMap::new();
        matching
            .filter_map(|gpu| gpu.nvlink_island)
            .for_each(|island| *islands.entry(island).or_default() += 1);
        islands.into_values().max().unwrap_or(0)
    }

    /// Bytes of memory on a node with so much, so many CPUs and GPUs. `slice_milli`: what one of its GPUs is of a whole one's memory.
    pub fn mem_of(&self, cpus: u32, mem_bytes: u64, gpus: usize, slice_milli: u32) -> u64 {
        if self.exclusive && !matches!(self.mem, MemDemand::Bytes(_)) {
            return mem_bytes;
        }
        match self.mem {
            MemDemand::Bytes(bytes) => bytes,
            MemDemand::All => mem_bytes,
            MemDemand::Share => {
                let part = |wanted: u64, all: u64| {
                    let whole = u128::from(mem_bytes) * u128::from(wanted);
                    (whole / u128::from(all.max(1))) as u64
                };
                let milli = match self.gpus.amount {
                    GpuAmount::Share { milli } => u64::from(milli),
                    _ => u64::from(self.gpus.count()) * u64::from(slice_milli),
                };
                let by_cpu = part(u64::from(self.cpus), u64::from(cpus));
                let by_gpu = part(milli, gpus as u64 * 1000);
                by_cpu.max(by_gpu).min(mem_bytes)
            }
        }
    }

    /// Could the node serve it with nothing else running? GPUs that are sick or missing count: a repair brings them back.
    pub fn fits_empty(&self, node: &SchedNode) -> Result<(), Lack> {
        if self.most_gpus(node) < self.gpus.count() as usize {
            return Err(Lack::Gpus);
        }
        if self.cpus > node.cpus {
            return Err(Lack::Cpus);
        }
        let matching = node.gpus.iter().filter(|gpu| self.gpus.matches(&gpu.info));
        let milli = matching
            .map(|gpu| gpu.info.part().memory_milli())
            .min()
            .unwrap_or(1000);
        if self.mem_of(node.cpus, node.mem_bytes, node.gpu_count(), milli) > node.mem_bytes {
            return Err(Lack::Memory);
        }
        Ok(())
    }

    /// Could the node serve it with nothing else running, if its GPUs were cut for it? Those that are sick or missing do not
    /// count.
    pub fn fits_cut(&self, node: &SchedNode) -> bool {
        let boards = node
            .gpus
            .iter()
            .filter(|gpu| gpu.present && gpu.info.fault.is_empty() && gpu.info.slice.is_none());
        let boards = boards
            .map(|gpu| &gpu.info)
            .filter(|gpu| self.gpus.is_of_type(&gpu.gpu_type));
        let of_board = |gpu: &GpuInfo| {
            let whole = u32::from(gpu.memory_mib >= self.gpus.min_memory_mib);
            let GpuAmount::Mig { profile, .. } = &self.gpus.amount else {
                return whole;
            };
            let kind = node
                .mig
                .kinds_of(gpu)
                .iter()
                .find(|kind| kind.profile.eq_ignore_ascii_case(profile));
            kind.filter(|kind| kind.memory_mib >= self.gpus.min_memory_mib)
                .map_or(0, |kind| u32::from(kind.most))
        };
        !self.is_linked()
            && boards.map(of_board).sum::<u32>() >= self.gpus.count()
            && self.cpus <= node.cpus
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpus(request: Request) -> Vec<u32> {
        let demands = Demand::all(&request, &Partition::default());
        demands[0].nodes.iter().map(|node| node.cpus).collect()
    }

    #[test]
    fn an_overcommitted_job_has_cpus_for_one_task_on_each_node() {
        let request = Request {
            nodes_min: 2,
            nodes_max: 2,
            ntasks: 10,
            cpus_per_task: Some(2),
            ..Request::default()
        };
        assert_eq!(cpus(request.clone()), [10, 10]);
        let over = Request {
            overcommit: true,
            ..request
        };
        let tasks = Demand::all(&over, &Partition::default())[0].nodes[0].tasks;
        assert_eq!((cpus(over.clone()), tasks), (vec![2, 2], 5));
        let least = Request {
            mincpus: Some(4),
            ..over
        };
        assert_eq!(cpus(least), [4, 4]);
    }
}
